"""What people's threads were seen to do, each by its smallest input, and one more input of its kind."""

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Trainer, TrainerCallback, TrainingArguments

import toolkit
from tests.training.recorded_texts import TEXTS, count, encode, ended, load, start, totals, update
from tests.training.test_any_loop import Own
from tests.training.test_callback import Examples, arguments
from toolkit import EmbeddingSnapshotCallback as Callback
from toolkit.snapshots.output_folder import evaluations

WORDS = "word_embeddings"
pytestmark = pytest.mark.filterwarnings("ignore")


def norm(first: Any, last: Any) -> float:
    return float(np.linalg.norm(np.asarray(last, np.float64) - np.asarray(first, np.float64)))


def drift_of(run: toolkit.Run) -> float:
    return norm(*(run.trajectory.snapshots[k].tensors[WORDS] for k in (0, -1)))


def words_of(model: Any) -> np.ndarray:
    return model.bert.embeddings.word_embeddings.weight.detach().numpy().copy()


def train(
    model: Any, tokenizer: Any, tmp_path: Path, *callbacks: TrainerCallback, data: Any = None, **changes: Any
) -> Trainer:
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**arguments(tmp_path / "out", **changes)),
        train_dataset=data or Examples(tokenizer),
        eval_dataset=Examples(tokenizer),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
    for callback in callbacks:
        callback.trainer = trainer
    trainer.train()
    return trainer


def test_every_epoch_has_its_snapshot_whether_or_not_a_step_was_seen(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """A Trainer's callbacks are told of the optimizer that it began with: of another that torch does not know nobody
    tells, and the bits do."""
    before = words_of(model)

    class Swaps(TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                self.trainer.optimizer = Own(model.parameters())

    train(model, tokenizer, tmp_path, Swaps(), Callback(tmp_path / "run"))
    run = toolkit.open_run(tmp_path / "run")
    assert [snapshot.epoch for snapshot in run.trajectory] == [0, 1, 2]
    assert drift_of(run) == pytest.approx(norm(before, words_of(model)), rel=1e-12)
    assert run.trajectory.exposure is None
    assert any("no optimizer step was seen" in problem for problem in run.manifest["problems"])


def by_parts(model: Any, batch: dict[str, torch.Tensor], is_still: bool) -> torch.Tensor:
    """The backbone and the head called by themselves."""
    with torch.set_grad_enabled(not is_still):
        states = model.bert(**batch).pooler_output
    logits: torch.Tensor = model.classifier(states)
    return logits[:, 0].sum()


class Inside(torch.nn.Module):
    """A model that keeps its backbone from gradients within its forward pass, whether or not it is frozen."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.bert, self.classifier = model.bert, model.classifier

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        return by_parts(self, batch, True)


@pytest.mark.parametrize("way", ["by parts", "inside", "inside, in eval mode"])
def test_a_backbone_without_gradients_is_exposed_all_the_same(
    way: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    whole = Inside(model) if way != "by parts" else model
    model.bert.requires_grad_(False)
    optimizer, batches = torch.optim.SGD(model.classifier.parameters(), lr=1e-2), [encode(tokenizer, TEXTS[:2])] * 2
    with toolkit.record(whole, tmp_path / "run") as recording:
        recording.snapshot(epoch=0)
        whole.train("eval" not in way)
        for batch in batches:
            update(optimizer, by_parts(model, batch, True) if way == "by parts" else whole(**batch))
            with torch.no_grad():  # an evaluation between two steps exposes nothing
                whole.eval()
                whole(**encode(tokenizer, TEXTS[3:]))
                whole.train("eval" not in way)
        recording.snapshot(epoch=1)
    run = toolkit.open_run(tmp_path / "run")
    assert totals(run, WORDS) == dict(count(model, batches)[WORDS])
    assert drift_of(run) == 0


def test_a_step_that_no_pass_was_seen_to_lead_to_leaves_exposure_unknown(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """Parts of a model in eval mode, called by themselves, cannot be told from an evaluation."""
    model.bert.requires_grad_(False)
    optimizer, recording = (
        torch.optim.SGD(model.classifier.parameters(), lr=1e-2),
        start(model.eval(), tmp_path / "run"),
    )
    update(optimizer, by_parts(model, encode(tokenizer, TEXTS), True))
    run = ended(recording, epoch=1)
    assert run.trajectory.exposure is None
    assert any("no forward pass of the model was seen to lead to" in problem for problem in run.manifest["problems"])


class Runs(TrainerCallback):
    """Runs out of memory once, at a step."""

    def __init__(self, step: int) -> None:
        self.step, self.is_done = step, False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step and not self.is_done:
            self.is_done = True
            raise RuntimeError("CUDA out of memory.")


@pytest.mark.parametrize("step", [1, 3])
def test_a_trainer_that_starts_again_by_itself(step: int, model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """With smaller batches, from the weights that it had moved: in its first epoch, or in its second."""
    before, path = words_of(model), tmp_path / "run"
    train(model, tokenizer, tmp_path, Callback(path), Runs(step), auto_find_batch_size=True, max_steps=-1)
    run = toolkit.open_run(path)
    assert drift_of(run) == pytest.approx(norm(before, words_of(model)), rel=1e-12)
    epochs = [snapshot.epoch for snapshot in run.trajectory]
    assert epochs == [0, 1, 2] if step == 1 else epochs == [0, 1, 2, 3]
    assert run.trajectory.snapshots[-1].step > step
    assert run.trajectory.exposure.tables[WORDS].num_steps == run.trajectory.snapshots[-1].step


def test_an_interrupted_training_that_is_started_again(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """The same cell of a notebook twice: the model is where the interruption left it, and the run says so."""

    class Stops(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise KeyboardInterrupt

    callback = Callback(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(model, tokenizer, tmp_path, callback, Stops())
    before = words_of(model)
    train(model, tokenizer, tmp_path, callback)
    run = toolkit.open_run(tmp_path / "run")
    assert drift_of(run) == pytest.approx(norm(before, words_of(model)), rel=1e-12)
    assert any("was interrupted: the first snapshot is of the weights" in p for p in run.manifest["problems"])


@pytest.mark.parametrize("way", ["NaN", "infinity in one row"])
@pytest.mark.parametrize("loop", ["own", "Trainer"])
def test_a_run_that_diverges_says_so_at_once(way: str, loop: str, model: Any, tokenizer: Any, tmp_path: Path) -> None:
    def break_it() -> None:
        with torch.no_grad():
            model.bert.embeddings.word_embeddings.weight[7:8] = float("nan" if way == "NaN" else "inf")

    class Breaks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            break_it()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if loop == "Trainer":
            train(model, tokenizer, tmp_path, Breaks(), Callback(tmp_path / "run"))
        else:
            recording, optimizer = start(model, tmp_path / "run"), torch.optim.SGD(model.parameters(), lr=1e-2)
            update(optimizer, model(**encode(tokenizer, TEXTS)).logits.sum())
            break_it()
            recording.snapshot(epoch=1)
            assert any("training diverged" in str(warning.message) for warning in caught), "before the end"
            recording.finish()
    said = [problem for problem in toolkit.open_run(tmp_path / "run").manifest["problems"] if "diverged" in problem]
    assert len(said) == 1
    assert f"{WORDS} holds NaN or infinity" in said[0]
    assert not any("rows that no recorded forward pass used" in str(warning.message) for warning in caught)


class Stream(torch.utils.data.IterableDataset):
    """Data without a length."""

    def __init__(self, tokenizer: Any, times: int) -> None:
        self.items = times * Examples(tokenizer).items

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.items)


@pytest.mark.parametrize(
    ("max_steps", "expected"),
    [(10, [(0, 0), (1, 4), (2, 8), (2.5, 10)]), (8, [(0, 0), (1, 4), (2, 8)]), (3, [(0, 0), (1, 3)])],
)
def test_an_epoch_of_a_stream_is_a_pass(
    max_steps: int, expected: list[Any], model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """transformers divides by max_steps there; of a single pass that is cut short nobody knows the length."""
    train(model, tokenizer, tmp_path, Callback(tmp_path / "run"), data=Stream(tokenizer, 2), max_steps=max_steps)
    run = toolkit.open_run(tmp_path / "run")
    assert [(snapshot.epoch, snapshot.step) for snapshot in run.trajectory] == expected


@pytest.mark.parametrize(
    ("make", "set_to_none", "moves"),
    [
        (lambda parameters: torch.optim.AdamW(parameters, lr=1e-2), False, True),
        (lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9), False, True),
        (lambda parameters: torch.optim.AdamW(parameters, lr=1e-2), True, False),
        (lambda parameters: torch.optim.SGD(parameters, lr=1e-2), False, False),
    ],
)
def test_what_is_frozen_later_and_moves_on_is_told(
    make: Callable[..., Any], set_to_none: bool, moves: bool, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    optimizer, recording = make(model.parameters()), start(model.train(), tmp_path / "run")
    for epoch in (1, 2):
        for _ in range(2):
            model(**encode(tokenizer, TEXTS)).logits[:, 0].sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
        recording.snapshot(epoch=epoch)
        model.bert.embeddings.requires_grad_(False)
    said = [problem for problem in recording.finish().manifest["problems"] if "frozen since step 2" in problem]
    assert (f"{WORDS}: frozen since step 2, moved since (its gradient is 0 and not None" in " ".join(said)) == moves


def test_a_checkpoint_that_is_saved_with_other_weights_is_told(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """Averages are swapped in for saving, here in the file itself; its control is the plain one."""

    class Averages(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            file = Path(args.output_dir) / f"checkpoint-{state.global_step}" / "model.safetensors"
            tensors = load_file(file)
            tensors["bert.embeddings.word_embeddings.weight"] *= 0.5
            save_file(tensors, file, {"format": "pt"})

    problems = {}
    for name, others in (("swapped", [Averages()]), ("plain", [])):
        train(model, tokenizer, tmp_path / f"{name}_out", *others, Callback(tmp_path / name), save_strategy="epoch")
        problems[name] = toolkit.open_run(tmp_path / name).manifest["problems"]
    assert [problem.partition(" was saved")[0] for problem in problems["swapped"]] == ["checkpoint-2", "checkpoint-4"]
    assert problems["plain"] == []


def test_an_optimizer_of_two_modes_that_does_not_say_which(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    class TwoModes(torch.optim.SGD):
        def train(self) -> None: ...

        def eval(self) -> None: ...

    optimizer, recording = TwoModes(model.parameters(), lr=1e-2), start(model.train(), tmp_path / "run")
    update(optimizer, model(**encode(tokenizer, TEXTS)).logits.sum())
    assert any("does not say which it is in" in problem for problem in ended(recording, epoch=1).manifest["problems"])


def test_a_snapshot_of_an_average_leaves_training_as_it_was(tiny_model: Any, tmp_path: Path) -> None:
    """There and back by the optimizer's own arithmetic would round: two twins end with the same bits."""
    import schedulefree

    ends = []
    for name in ("plain", "recorded"):
        model, tokenizer = load(tiny_model("bert"))
        model.train().bert.embeddings.dropout.p = 0.0
        torch.manual_seed(1)
        optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-2)
        optimizer.train()
        recording = start(model, tmp_path / "run") if name == "recorded" else None
        for epoch in range(1, 5):
            update(optimizer, model(**encode(tokenizer, TEXTS)).logits[:, 0].sum())
            if recording is not None:
                recording.snapshot(epoch=epoch)
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(map(torch.equal, *ends))


def test_a_table_that_is_replaced_after_the_first_step_ends_no_training(
    model: Any, tokenizer: Any, adamw: Any, tmp_path: Path
) -> None:
    recording = start(model.train(), tmp_path / "run")
    update(adamw, model(**encode(tokenizer, TEXTS)).logits.sum())
    model.bert.embeddings.word_embeddings.weight = torch.nn.Parameter(torch.zeros_like(
        model.bert.embeddings.word_embeddings.weight))  # fmt: skip
    update(adamw, model(**encode(tokenizer, TEXTS)).logits.sum())
    run = ended(recording, epoch=1)
    assert [snapshot.epoch for snapshot in run.trajectory] == [0]
    assert any("was replaced while it was recorded" in problem for problem in run.manifest["problems"])


def test_scores_are_those_of_the_trainers_evaluations(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    callback = Callback(tmp_path / "run", condition="all trained", task="mine")
    seen: list[dict[str, Any]] = []

    class Listens(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
            seen.append(dict(metrics))

    trainer = Trainer(
        model=model,
        args=TrainingArguments(**arguments(tmp_path / "out", eval_strategy="epoch", seed=5)),
        train_dataset=Examples(tokenizer),
        eval_dataset={"dev": Examples(tokenizer), "ood": Examples(tokenizer)},
        processing_class=tokenizer,
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
        callbacks=[callback, Listens()],
    )
    trainer.train()
    run = toolkit.open_run(tmp_path / "run")
    scores = pd.read_csv(run.path / "scores.csv")
    assert scores[["epoch", "step", "split"]].values.tolist() == [
        [1, 2, "dev"], [1, 2, "ood"], [2, 4, "dev"], [2, 4, "ood"]
    ]  # fmt: skip
    told = zip(seen, scores["split"], strict=True)
    assert scores["accuracy"].tolist() == [own[f"eval_{split}_accuracy"] for own, split in told]
    assert run.manifest["task"] == {"name": "mine", "kind": None, "score": "accuracy", "reported_split": "dev"}
    config = json.loads((run.path / "config.json").read_text())
    assert [config[name] for name in ("condition", "seed", "task")] == ["all trained", 5, "mine"]


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"eval_loss": 1.0, "eval_runtime": 2.0, "eval_samples_per_second": 3.0}, {"validation": {"loss": 1.0}}),
        ({"eval_a_f1": 0.5, "eval_a_runtime": 2.0, "epoch": 1.0}, {"a": {"f1": 0.5}}),
        ({"epoch": 1.0}, {}),
    ],
)
def test_metrics_by_split(metrics: dict[str, float], expected: dict[str, Any]) -> None:
    assert dict(evaluations(metrics)) == expected


def test_how_the_page_is_made_is_said(
    model: Any, tokenizer: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(model, tokenizer, tmp_path, Callback(tmp_path / "run"))
    assert f"python -m toolkit drift {tmp_path / 'run'} --out {tmp_path / 'run_page'}" in capfd.readouterr().out


class Targets(torch.nn.Module):
    """A branch without gradients beside the one that learns, as BYOL and distillation have it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.net = model

    def forward(self, own: Any, other: Any) -> torch.Tensor:
        with torch.no_grad():
            target = self.net(**other).logits
        loss: torch.Tensor = (self.net(**own).logits - target).square().sum()
        return loss


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("way", ["targets", "teacher", "raised", "skipped", "buffers", "twice", "nested"])
def test_only_what_a_step_learned_from_is_exposed(
    way: str, is_frozen: bool, model: Any, tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    """A count by hand, of trained tables and of frozen ones under an encoder that is trained."""
    model.bert.embeddings.requires_grad_(not is_frozen)
    teacher, _ = load(tiny_model("bert"))
    teacher.bert.embeddings = model.bert.embeddings
    own, other = encode(tokenizer, TEXTS[:1]), encode(tokenizer, TEXTS[2:3])
    expected = [own]

    class Nested(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    whole = Targets(model) if way == "targets" else model
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = (Nested if way == "nested" else torch.optim.AdamW)(parameters, lr=1e-3)
    torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])  # which has torch tell of the parent's step too
    recording = start(whole.train(), tmp_path / "run")
    if way == "targets":
        update(optimizer, whole(own, other))
    else:
        if way == "teacher":
            with torch.no_grad():
                teacher.train()(**other)
        elif way == "raised":
            with pytest.raises(ValueError, match="must be the same as input size"):
                model(**other, labels=torch.tensor([9, 9, 9]).float().view(1, 3))
        elif way == "skipped":  # as a GradScaler does, whose first scale is too large
            model(**other).logits.sum().backward()
            optimizer.zero_grad()
        loss = model(**own).logits[:, 0].sum()
        if way == "twice":
            loss, expected = loss + model(**own).logits[:, 0].sum(), [own, own]
        if way == "buffers" and is_frozen:  # of trained tables autograd itself refuses that
            expected = [{k: v.clone() for k, v in own.items()}]
            own["input_ids"].fill_(3)
        update(optimizer, loss)
    run = ended(recording, epoch=1)
    assert totals(run, WORDS) == dict(count(model, expected)[WORDS]), run.manifest["problems"]
    assert run.trajectory.snapshots[-1].step == 1


@pytest.mark.parametrize("way", ["functional", "half precision"])
def test_a_recording_ends_no_training(way: str, model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """What cannot be watched, or should not be trained so, is a problem after the first step, and no error."""
    batch = encode(tokenizer, TEXTS[:1])
    if way == "half precision":
        model.bfloat16()
        model.bert.embeddings.requires_grad_(False)
    optimizer, recording = torch.optim.SGD(model.parameters(), lr=1e-2), start(model.train(), tmp_path / "run")
    update(optimizer, model(**batch).logits.sum())
    if way == "functional":
        model.eval()
        own = {name: p.detach() for name, p in model.named_parameters()}
        torch.func.grad(lambda p: torch.func.functional_call(model, p, (), batch).logits.sum())(own)
    model.bert.embeddings.requires_grad_(True)
    update(optimizer, model(**batch).logits.sum())
    problems = " ".join(ended(recording, epoch=1).manifest["problems"])
    assert "bfloat16, where most small updates are rounded away" in problems or way == "functional"


def test_predictions_that_are_kept_bring_intervals_over_items(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    optimizer, labels, rng = torch.optim.SGD(model.parameters(), lr=1e-2), [0, 1] * 20, np.random.default_rng(0)
    runs = []
    for condition in ("a", "b"):
        for seed in (0, 1, 2):
            with toolkit.record(
                model.train(), tmp_path / f"{condition}{seed}", condition=condition, seed=seed, task="mine"
            ) as recording:
                recording.snapshot(epoch=0)
                update(optimizer, model(**encode(tokenizer, TEXTS)).logits[:, 0].sum())
                recording.snapshot(epoch=1)
                answers = [label if rng.random() < 0.8 else 1 - label for label in labels]
                recording.score("accuracy", validation=float(np.mean(np.equal(answers, labels))))
                own = {"labels": labels, "predictions": answers, "clusters": [f"pair {i // 2}" for i in range(40)]}
                recording.keep_predictions("validation", ids=range(40), **own)
                with pytest.raises(ValueError, match="missing id: give each item the id of its cluster"):
                    recording.keep_predictions("validation", ids=range(40), **own | {"clusters": [*"abc", None] * 10})
            runs.append(tmp_path / f"{condition}{seed}")
    (line,) = toolkit.compare(runs, pairs=[("a", "b")]).to_dict("records")
    assert (line["num_items"], line["num_units"]) == (40, 20)
    assert np.isfinite(line["low_points"])
    assert "seeds alone" not in line["note"]
