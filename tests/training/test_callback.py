"""The callback in the real Trainer, against a count by hand; that of sentence-transformers is in test_any_loop."""

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import EvalPrediction, Trainer, TrainerControl, TrainerState, TrainingArguments

import toolkit
from tests.refusals import check_refused
from tests.training.recorded_texts import TEXTS, count, encode, load, totals, totals_of_tables, update
from toolkit import EmbeddingSnapshotCallback as Callback
from toolkit.analysis.adam import unexplained_by_decay
from toolkit.comparison.measure import measure
from toolkit.comparison.report_data import ReportData
from toolkit.questions.drift_report import show_drift
from toolkit.reporting.methods import paragraphs_of


def arguments(folder: Path, **changes: Any) -> dict[str, Any]:
    common = {
        "output_dir": str(folder),
        "num_train_epochs": 2,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "report_to": "none",
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_strategy": "no",
    }
    return common | changes


class Examples(torch.utils.data.Dataset):
    def __init__(self, tokenizer: Any) -> None:
        self.items = [{**tokenizer(text), "labels": i % 2} for i, text in enumerate(TEXTS)]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.items[index]


def trained(
    model: Any,
    tokenizer: Any,
    folder: Path,
    callback: Callback,
    *,
    checkpoint: str | None = None,
    metrics: Any = None,
    **changes: Any,
) -> Trainer:
    """A Trainer, which has trained, of the folder ``out`` in this one."""
    examples, settings = Examples(tokenizer), TrainingArguments(**arguments(folder / "out", **changes))
    trainer = Trainer(
        model=model,
        args=settings,
        callbacks=[callback],
        train_dataset=examples,
        eval_dataset=examples,
        processing_class=tokenizer,
        compute_metrics=metrics,
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def test_the_callback_in_the_real_trainer(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    trained(model, tokenizer, tmp_path, Callback(tmp_path / "run", snapshot_steps=1), seed=3)
    run = toolkit.open_run(tmp_path / "run")
    assert [(s.epoch, s.step) for s in run.trajectory] == [(0, 0), (0.5, 1), (1, 2), (1.5, 3), (2, 4)]
    assert totals_of_tables(run) == count(model, 2 * [encode(tokenizer, [text]) for text in TEXTS])
    log = run.optimizer_log
    assert log.algorithm == "torch.optim.AdamW"
    assert log.learning_rates.tolist() == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])
    assert (log.weight_decay["word_embeddings"], log.weight_decay["LayerNorm.bias"]) == (0.1, 0)
    assert unexplained_by_decay(run.trajectory, log) == 0


def test_what_a_paper_says_of_the_methods_is_in_the_arguments(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    model.config.hidden_dropout_prob = 0.25
    trained(model, tokenizer, tmp_path, Callback(tmp_path / "run"), optim="adafactor", warmup_steps=1)
    (group, *_) = paragraphs_of(ReportData(measure([toolkit.open_run(tmp_path / "run")])))
    expected = (
        "optimizer adafactor",
        "weight decay 0.1",
        "warmup fraction 0.25",
        "dropout 0.25",
        "max gradient norm 1",
        f"({len(TEXTS)} training examples)",
    )
    assert [text for text in expected if text not in group] == []
    assert "max steps" not in group


@pytest.mark.parametrize(("every", "epoch"), [("steps", 1.5), ("epoch", 1)])
@pytest.mark.parametrize("kind", ["classes", "numbers", "words"])
def test_answers_are_kept_where_a_trainer_scores(
    kind: str, every: str, epoch: float, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """Scored before the last snapshot, at the end of training, or behind it, at the end of an epoch."""
    callback, heard = Callback(tmp_path / "run"), []

    def score(evaluated: Any) -> dict[str, float]:
        heard.append(evaluated)
        return {"accuracy": 0.5, "f1": 0.25}

    def scored(evaluated: Any) -> dict[str, float]:
        if kind == "numbers":
            evaluated = EvalPrediction(evaluated.predictions[:, :1], evaluated.label_ids)
        if kind == "words":
            evaluated = EvalPrediction(evaluated.predictions[:, None], evaluated.label_ids[:, None])
        return callback.keeping_predictions(score)(evaluated)

    trained(
        model,
        tokenizer,
        tmp_path,
        callback,
        metrics=scored,
        eval_strategy=every,
        eval_steps=1,
        max_steps=int(2 * epoch),
        metric_for_best_model="eval_f1",
    )
    assert toolkit.open_run(tmp_path / "run").manifest["task"]["score"] == "f1"
    assert ("predictions.parquet" in toolkit.open_run(tmp_path / "run").manifest["files"]) == (kind != "words")
    if kind != "words":
        predictions, outputs = toolkit.open_run(tmp_path / "run").predictions, heard[-1].predictions
        assert (set(predictions["split"]), set(predictions["epoch"])) == ({"validation"}, {epoch})
        np.testing.assert_array_equal(
            predictions["prediction"], outputs[:, 0] if kind == "numbers" else outputs.argmax(1)
        )
        np.testing.assert_array_equal(predictions["label"], heard[-1].label_ids)


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_a_trainer_without_a_tokenizer_is_warned_of_once(
    has_tokenizer: bool, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    settings = TrainingArguments(**arguments(tmp_path / "out", max_steps=2, per_device_train_batch_size=1))
    own = {"processing_class": tokenizer} if has_tokenizer else {}
    trainer = Trainer(model, settings, train_dataset=Examples(tokenizer), callbacks=[Callback(tmp_path / "run")], **own)
    with warnings.catch_warnings(record=True, action="always") as caught:
        trainer.train()
    said = [str(warning.message) for warning in caught if "processing_class" in str(warning.message)]
    line = "no tokenizer: pass processing_class=tokenizer to the Trainer, or rows have no words"
    assert said == [line] * (not has_tokenizer)


@pytest.mark.parametrize("greater_is_better", [True, False])
def test_the_checkpoint_that_a_trainer_goes_back_to_is_named(
    greater_is_better: bool, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    trainer = trained(
        model,
        tokenizer,
        tmp_path,
        Callback(tmp_path / "run"),
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=greater_is_better,
        save_strategy="epoch",
        eval_strategy="epoch",
    )
    kept = Path(trainer.state.best_model_checkpoint).name
    assert kept == ("checkpoint-2" if greater_is_better else "checkpoint-4")  # the loss falls
    manifest = toolkit.open_run(tmp_path / "run").manifest
    assert [kept in problem for problem in manifest["problems"]] == [True] * greater_is_better
    assert manifest["task"]["score"] is None  # a loss is no score


def test_training_that_ends_within_an_epoch_and_goes_on(
    model: Any, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(model, tokenizer, tmp_path, Callback(tmp_path / "first"), max_steps=3, save_strategy="steps", save_steps=3)
    assert [(s.epoch, s.step) for s in toolkit.open_run(tmp_path / "first").trajectory] == [(0, 0), (1, 2), (1.5, 3)]
    checkpoint = str(tmp_path / "out" / "checkpoint-3")
    trained(model, tokenizer, tmp_path, Callback(tmp_path / "second"), checkpoint=checkpoint, max_steps=6)
    run = toolkit.open_run(tmp_path / "second")
    assert [(s.epoch, s.step) for s in run.trajectory] == [(1.5, 0), (2, 1), (3, 3)]
    assert run.manifest["begins_after_steps"] == 3
    saved = load_file(Path(checkpoint) / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert np.array_equal(run.trajectory.snapshots[0].tensors["word_embeddings"], saved)
    show_drift((str(run.path),))
    assert "drift is since step 3, where recording began" in capsys.readouterr().out.replace("\n", " ")


def test_the_checkpoints_of_a_trainer_survive(tiny_model: Any, tmp_path: Path) -> None:
    """A callback on the Trainer's own folder is refused, before and after there are checkpoints, and leaves them."""

    def train(out: Path, run_dir: Path, checkpoint: str | None = None) -> None:
        trained(
            *load(tiny_model("bert")),
            out.parent,
            Callback(run_dir),
            checkpoint=checkpoint,
            output_dir=str(out),
            max_steps=4,
            save_strategy="steps",
            save_steps=1,
        )

    out = tmp_path / "out"
    for place, run_dir in ((out, out), (tmp_path / "b", tmp_path / "b/../b"), (tmp_path / "c/out", tmp_path / "c")):
        check_refused(
            r"would hold the Trainer's output_dir .*: pass the callback a folder of its own", train, place, run_dir
        )
        assert not place.exists() or not list(place.iterdir())
    train(out, out / "embeddings")
    checkpoints = {path: path.read_bytes() for path in out.glob("checkpoint-*/*")}
    assert len({path.parent for path in checkpoints}) == 4
    (out / "embeddings" / "manifest.json").rename(out / "embeddings" / "unfinished.json")  # interrupted
    check_refused(
        r"holds no run, but checkpoint-1/.*: pass a folder of its own", train, out, out, str(out / "checkpoint-2")
    )
    kept = {path: content for path, content in checkpoints.items() if path.parent.name <= "checkpoint-2"}
    assert {path: path.read_bytes() for path in checkpoints} == checkpoints
    train(out, out / "embeddings", str(out / "checkpoint-2"))
    assert {path: path.read_bytes() for path in kept} == kept
    assert toolkit.verify_run(out / "embeddings") == []


def test_of_a_trainer_that_tells_of_no_epoch_the_end_is_kept(
    model: Any, tokenizer: Any, adamw: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As those of reinforcement learning do, which have a loop of their own; and what is known of any Trainer's run."""
    settings = TrainingArguments(**arguments(tmp_path / "out", seed=7, warmup_steps=1, max_steps=1))
    callback, state = Callback(tmp_path / "run", task="mine"), TrainerState(max_steps=4, epoch=0)
    loader = torch.utils.data.DataLoader(Examples(tokenizer), batch_size=2)
    kept = {"model": model.train(), "processing_class": tokenizer, "train_dataloader": loader}
    callback.on_train_begin(settings, state, TrainerControl(), **kept)
    update(adamw, model(**encode(tokenizer, TEXTS)).logits.sum())
    callback.on_train_end(settings, TrainerState(max_steps=4, epoch=0.25, global_step=1), TrainerControl())
    run = toolkit.open_run(tmp_path / "run")
    assert [(snapshot.epoch, snapshot.step) for snapshot in run.trajectory] == [(0, 0), (0.25, 1)]
    facts = json.loads((run.path / "config.json").read_text())
    wanted = {"seed": 7, "task": "mine", "condition": None, "num_train_examples": len(TEXTS)}
    assert wanted.items() <= facts.items()
    assert facts["recorded_by"] == "EmbeddingSnapshotCallback"
    assert "resumed_after_steps" not in facts
    wanted = {"learning_rate": 1e-3, "max_steps": 1, "num_train_epochs": 2, "warmup_fraction": 0.25, "dropout": 0.1}
    assert wanted.items() <= facts["arguments"].items()
    page = f"python -m toolkit drift {run.path} --out {run.path}_page"
    assert page in capsys.readouterr().out


def test_one_that_joins_a_trainer_within_training_records_nothing_and_ends_nothing(tmp_path: Path) -> None:
    callback, settings = Callback(tmp_path / "run", snapshot_steps=1), TrainingArguments(**arguments(tmp_path / "out"))
    state = TrainerState(epoch=1.0, global_step=1, max_steps=2)
    for moment in ("pre_optimizer_step", "step_end", "epoch_end", "evaluate", "save", "train_end"):
        getattr(callback, f"on_{moment}")(settings, state, TrainerControl())
    assert not (tmp_path / "run").exists()
    check_refused("snapshot_steps must be at least 1 or None; got 0", Callback, tmp_path / "run", snapshot_steps=0)


@pytest.mark.filterwarnings("ignore")
def test_the_callback_while_a_decoder_learns_to_write(tiny_model: Any, tmp_path: Path) -> None:
    """The Trainer's own collator of language models hides and does not score padding."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling

    folder = tiny_model("llama")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    texts = [tokenizer(text) for text in TEXTS]
    Trainer(
        model=model,
        args=TrainingArguments(**arguments(tmp_path / "out")),
        train_dataset=texts,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
        callbacks=[Callback(tmp_path / "run")],
    ).train()
    run = toolkit.open_run(tmp_path / "run")
    assert run.manifest["problems"] == []
    expected = Counter(row for text in texts for row in 2 * text["input_ids"] if row != tokenizer.sep_token_id)
    assert totals(run, "word_embeddings") == dict(expected)  # [SEP], which ends each text, has no token to foretell
    assert unexplained_by_decay(run.trajectory, run.optimizer_log) == 0
