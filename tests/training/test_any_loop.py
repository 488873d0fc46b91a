"""Every optimizer in every loop under every freezing: drift by numpy, exposure by a count of the batches."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import schedulefree
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import toolkit
from tests.training.recorded_texts import TEXTS, count, encode, load, totals, update
from tests.training.test_callback import Examples, arguments
from toolkit.families import TABLES
from toolkit.models.regimes import locate_embeddings
from toolkit.training.step_recorder import Recorder
from toolkit.training.trains import describe_training
from toolkit.training.updates import Updates


class Own:
    """A step that torch knows nothing of."""

    def __init__(self, parameters: Any) -> None:
        self.param_groups = [{"params": list(parameters), "lr": 1e-2}]
        self.state: dict[str, Any] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        with torch.enable_grad():
            _ = closure() if closure is not None else None
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter -= 1e-2 * parameter.grad

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {}


def adamw(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


KINDS: dict[str, Callable[[Any], Any]] = {
    "AdamW": adamw,
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=1e-2),
    "two optimizers": adamw,
    "made anew": adamw,
    "schedule-free": lambda parameters: schedulefree.AdamWScheduleFree(parameters, lr=1e-2),
    "own class": Own,
}
UNKNOWN = {("own class", "loop"), ("own class", "closure")}
"""Cells whose exposure is not known: nobody tells of a step; ``recording.before_step()`` would."""
FREEZINGS = ("all trained", "frozen then thawed", "thawed then frozen", "head alone", "eval()")


def freeze(model: Any, freezing: str, phase: int) -> None:
    """What of a model is trained in the first and in the second epoch."""
    backbone = locate_embeddings(model).backbone
    is_frozen = (
        freezing in ("head alone", "eval()") or phase == ("frozen then thawed", "thawed then frozen").index(freezing)
        if freezing != "all trained"
        else False
    )
    (backbone if freezing in ("head alone", "eval()") else backbone.embeddings).requires_grad_(not is_frozen)
    if freezing == "eval()":
        backbone.train = lambda mode=True: backbone  # dropout stays off, whoever calls model.train()
        backbone.eval()


def optimizers_of(kind: str, model: Any) -> list[Any]:
    """One, or one of the embeddings and one of all else."""
    if kind != "two optimizers":
        return [KINDS[kind](model.parameters())]
    own = {id(p) for p in locate_embeddings(model).parameters.values()}
    parts = [[p for p in model.parameters() if (id(p) in own) == is_own] for is_own in (False, True)]
    return [KINDS[kind](part) for part in parts]


def in_a_loop(model: Any, tokenizer: Any, kind: str, freezing: str, path: Path, *, has_closure: bool) -> Any:
    """Two epochs of two batches; the optimizer."""
    freeze(model, freezing, 0)
    optimizers = optimizers_of(kind, model)
    with toolkit.record(model, path) as recording:
        recording.snapshot(epoch=0)
        for phase in (0, 1):
            freeze(model, freezing, phase)
            if kind == "made anew":
                optimizers = optimizers_of(kind, model)
            model.train()
            if kind == "schedule-free":
                optimizers[0].train()
            for texts in (TEXTS[:2], TEXTS[2:]):

                def passes(texts: list[str] = texts) -> torch.Tensor:
                    loss: torch.Tensor = model(**encode(tokenizer, texts), labels=torch.tensor([0, 1])).loss
                    loss.backward()
                    return loss

                if has_closure:
                    optimizers[0].step(passes)
                else:
                    passes()
                for optimizer in optimizers[has_closure:]:
                    optimizer.step()
                for optimizer in optimizers:
                    optimizer.zero_grad()
            recording.snapshot(epoch=phase + 1)
    return optimizers[0]


class Phases(TrainerCallback):
    """Freezes as a Trainer goes, makes its optimizer anew, and steps a second one, as people's callbacks do."""

    trainer: Trainer

    def __init__(self, model: Any, kind: str, freezing: str, beside: list[Any]) -> None:
        self.model, self.kind, self.freezing, self.beside = model, kind, freezing, beside

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        phase = round(state.epoch or 0)
        freeze(self.model, self.freezing, phase)
        if self.kind == "made anew" and phase == 1:
            self.trainer.optimizer = KINDS[self.kind](self.model.parameters())

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for optimizer in self.beside:
            optimizer.step()


class Constant:
    """A schedule for an optimizer that torch's own do not take."""

    def step(self) -> None: ...

    def get_last_lr(self) -> list[float]:
        return [1e-2]

    def state_dict(self) -> dict[str, Any]:
        return {}


def in_a_trainer(model: Any, kind: str, freezing: str, path: Path, make: Callable[..., Trainer], **options: Any) -> Any:
    freeze(model, freezing, 0)
    first, *beside = optimizers_of(kind, model)
    schedule: Any = Constant() if kind == "own class" else torch.optim.lr_scheduler.LambdaLR(first, lambda _: 1.0)
    phases = Phases(model, kind, freezing, beside)
    phases.trainer = make(
        model=model,
        callbacks=[phases, toolkit.EmbeddingSnapshotCallback(path)],
        optimizers=(first, schedule),
        **options,
    )
    phases.trainer.train()
    return phases.trainer.optimizer


def cells() -> Iterator[Any]:
    for kind in KINDS:
        for loop in ("loop", "closure", "Trainer", "sentence-transformers"):
            for freezing in FREEZINGS:
                yield pytest.param(kind, loop, freezing, id=f"{kind}-{loop}-{freezing}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "loop", "freezing"), cells())
def test_drift_and_exposure_of_any_loop(kind: str, loop: str, freezing: str, tiny_model: Any, tmp_path: Path) -> None:
    model, tokenizer = load(tiny_model("bert"))
    times = 2
    if loop == "sentence-transformers":
        from datasets import Dataset
        from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
        from sentence_transformers import SentenceTransformerTrainingArguments as SentenceArguments
        from sentence_transformers.losses import MultipleNegativesRankingLoss
        from sentence_transformers.models import Dense

        model = SentenceTransformer(str(tiny_model("bert")), device="cpu")
        model.append(Dense(16, 8))
        times = 4  # each text is an anchor and a positive
    parameters = locate_embeddings(model).parameters
    before = {name: p.detach().numpy().astype(np.float64) for name, p in parameters.items()}
    path, options = tmp_path / "run", arguments(tmp_path / "out")
    if loop == "Trainer":
        optimizer = in_a_trainer(
            model, kind, freezing, path, Trainer, args=TrainingArguments(**options), train_dataset=Examples(tokenizer),
            processing_class=tokenizer,
        )  # fmt: skip
    elif loop == "sentence-transformers":
        optimizer = in_a_trainer(
            model, kind, freezing, path, SentenceTransformerTrainer, args=SentenceArguments(**options),
            train_dataset=Dataset.from_dict({"anchor": TEXTS, "positive": TEXTS[::-1]}),
            loss=MultipleNegativesRankingLoss(model),
        )  # fmt: skip
    else:
        optimizer = in_a_loop(model, tokenizer, kind, freezing, path, has_closure=loop == "closure")
    if kind == "schedule-free":
        getattr(optimizer, "optimizer", optimizer).eval()  # what is saved

    run = toolkit.open_run(path)

    assert [snapshot.epoch for snapshot in run.trajectory] == [0, 1, 2]
    first, last = (run.trajectory.snapshots[k].tensors for k in (0, -1))
    for name, own in before.items():
        truth = np.linalg.norm(parameters[name].detach().numpy().astype(np.float64) - own)
        told = np.linalg.norm(last[name].astype(np.float64) - first[name].astype(np.float64))
        assert told == pytest.approx(truth, rel=1e-12)
        assert bool(truth) == (freezing not in ("head alone", "eval()"))
    assert (run.trajectory.vocabulary is not None) == (loop in ("Trainer", "sentence-transformers"))
    if (kind, freezing) == ("made anew", "all trained"):
        assert any("by another optimizer" in problem for problem in run.manifest["problems"])
    exposure = run.trajectory.exposure
    if (kind, loop) in UNKNOWN:
        assert exposure is None
        assert any("before_step()" in problem for problem in run.manifest["problems"])
        return
    expected = count(model, [encode(tokenizer, [text]) for text in TEXTS for _ in range(times)])
    for name in TABLES:
        assert Counter(totals(run, name)) == expected[name], run.manifest["problems"]
        assert exposure.tables[name].num_steps == run.trajectory.snapshots[-1].step == 4


def test_a_step_accounts_for_what_changed_before_the_next_snapshot_alone() -> None:
    """What changes later, while only others step, changed in no step that was seen."""
    words, others = (torch.nn.Parameter(torch.ones(4, 2)) for _ in range(2))
    updates, recorder = Updates({TABLES[0]: words}), Recorder({TABLES[0]: words})
    for held, expected in ((words, []), (others, [TABLES[0]]), (words, [])):
        recorder.record_rates(np.nan, np.nan, 1.0)
        updates.note_step(torch.optim.SGD([held], lr=0.1), recorder, is_first=True)
        assert updates.unseen([TABLES[0]]) == expected
    assert updates.unseen([TABLES[0]]) == [TABLES[0]]


@pytest.mark.parametrize("rates", [(0.1, 0.1), (0.1, 0.2)])
def test_embeddings_at_rates_of_their_own_are_not_replayed_by_one(rates: tuple[float, float]) -> None:
    parameters = {name: torch.nn.Parameter(torch.ones(4, 2)) for name in TABLES[:2]}
    groups = [{"params": [own], "lr": rate} for own, rate in zip(parameters.values(), rates, strict=True)]
    updates, recorder = Updates(parameters), Recorder(parameters)
    for _ in range(2):
        recorder.record_rates(np.nan, np.nan, 1.0)
        updates.note_step(torch.optim.SGD(groups), recorder, is_first=True)
    assert recorder.learning_rates[0] in rates
    assert "different learning rates" in str(updates.problem) or rates == (0.1, 0.1)


@pytest.mark.parametrize(("decays", "is_told"), [((1, 1, 1), False), ((1, 2, 1), True), ((1, 1, 2), True)])
def test_a_setting_that_changes_is_told_though_it_changes_back(decays: tuple[float, ...], is_told: bool) -> None:
    parameters = {TABLES[0]: torch.nn.Parameter(torch.ones(4, 2))}
    updates, recorder = Updates(parameters), Recorder(parameters)
    optimizer = adamw(parameters.values())
    for decay in decays:
        optimizer.param_groups[0]["weight_decay"] = decay
        recorder.record_rates(np.nan, np.nan, 1.0)
        updates.note_step(optimizer, recorder, is_first=True)
    assert (updates.optimizer_log(recorder, torch.float32) is None) == is_told
    assert ("changed during training" in str(updates.problem)) == is_told


def test_what_will_train_is_said_once_when_every_optimizer_has_had_its_turn(
    model: Any, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps of another model's optimizer are none of this one."""
    optimizers, of_another = optimizers_of("two optimizers", model), torch.nn.Linear(2, 2)
    foreign = torch.optim.SGD(of_another.parameters(), lr=0.1)
    with toolkit.record(model.train(), tmp_path / "run") as recording:
        for _ in range(3):
            model(**encode(tokenizer, TEXTS)).logits.sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            for _ in range(2):
                update(foreign, of_another(torch.ones(2)).sum())
        recording.snapshot(epoch=1)
        assert recording.num_steps == 3
    line = f"run, by the optimizers that have stepped: {describe_training(model, optimizers)}\n"
    assert capsys.readouterr().err.count(line) == 1


def test_an_own_class_in_an_own_loop_that_says_so(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    """What the cells that are not known would need."""
    optimizer = Own(model.parameters())
    with warnings.catch_warnings(), toolkit.record(model.train(), tmp_path / "run") as recording:
        warnings.simplefilter("ignore")
        for text in TEXTS:
            model(**encode(tokenizer, [text])).logits.sum().backward()
            recording.before_step()
            optimizer.step()
            optimizer.zero_grad()
        recording.snapshot(epoch=1)
    run = toolkit.open_run(tmp_path / "run")
    assert totals(run, "word_embeddings") == dict(
        count(model, [encode(tokenizer, [text]) for text in TEXTS])["word_embeddings"]
    )
    assert run.optimizer_log is None
    assert any("no torch.optim.Optimizer" in problem for problem in run.manifest["problems"])
