"""The callback in Lightning's own Trainer: drift against numpy, whoever steps, and what is not counted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toolkit
from tests.refusals import check_refused
from tests.training.recorded_texts import TEXTS, count, encode, totals_of_tables
from toolkit.models.regimes import locate_embeddings
from toolkit.training import lightning_callback
from toolkit.training.record import Recording

lightning = pytest.importorskip("lightning.pytorch", reason="the extra 'dev' is not installed")
KINDS = [lightning, pytest.importorskip("pytorch_lightning", reason="the extra 'dev' is not installed")]


def fit(kind: Any, way: str, model: Any, tokenizer: Any, path: Path, **settings: Any) -> Any:
    """A fit over four texts, one a batch; ``way``: one optimizer, two by hand, or accumulated gradients."""

    class Module(kind.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.automatic_optimization = model, way != "two by hand"

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.model(**batch).logits.square().sum()
            self.log("train_loss", loss)
            if self.automatic_optimization:
                return loss
            for each in self.optimizers():
                each.zero_grad()
            self.manual_backward(loss)
            return [each.step() for each in self.optimizers()] and None

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            if settings.get("fails_at") == (self.trainer.current_epoch, self.trainer.sanity_checking):
                raise RuntimeError("planted")
            self.model.train()(**batch)  # as a careless module does: a pass without gradients exposes nothing
            self.log_dict({"val_loss": self.model.eval()(**batch).logits.square().sum(), "share": batch_idx / 3})

        def configure_optimizers(self) -> Any:
            words = [locate_embeddings(self.model).parameters["word_embeddings"]]
            others = [p for p in self.model.parameters() if p is not words[0]]
            parts = [[*self.model.parameters()]] if self.automatic_optimization else [words, others]
            return [torch.optim.AdamW(part, lr=1e-2) for part in parts]

    model.train()  # Lightning leaves modules in the mode that they come in, and from_pretrained in eval mode
    batches = [encode(tokenizer, [text]) for text in TEXTS]
    trainer = kind.Trainer(
        **{"max_epochs": 2, "accelerator": "cpu", "logger": False, "num_sanity_val_steps": 2}
        | {"accumulate_grad_batches": 2 if way == "accumulated" else 1, "enable_checkpointing": False}
        | {"enable_progress_bar": False, "enable_model_summary": False}
        | {name: value for name, value in settings.items() if name not in ("fails_at", "ckpt_path")},
        callbacks=[toolkit.LightningSnapshotCallback(path, tokenizer=tokenizer)],
    )
    loaders = [torch.utils.data.DataLoader(batches, batch_size=1, collate_fn=lambda own: own[0]) for _ in range(2)]
    trainer.fit(Module(), *loaders, ckpt_path=settings.get("ckpt_path"))
    trainer.save_checkpoint(path.parent / "last.ckpt")
    return batches


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("way", ["one", "two by hand", "accumulated"])
def test_drift_is_what_numpy_says_whoever_steps(
    way: str, kind: Any, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    before = locate_embeddings(model).values()
    batches = fit(kind, way, model, tokenizer, tmp_path / "run")
    run, after = toolkit.open_run(tmp_path / "run"), locate_embeddings(model).values()
    assert not toolkit.verify_run(run.path)
    facts = json.loads((run.path / "config.json").read_text())
    said = (facts["recorded_by"], facts["num_train_examples"], facts["resumed_after_steps"])
    assert said == ("LightningSnapshotCallback", len(TEXTS), None)
    steps = 2 if way == "accumulated" else 4
    assert [(s.epoch, s.step) for s in run.trajectory] == [(epoch, epoch * steps) for epoch in range(3)]
    drift = toolkit.measure_drift(run, ("norm",)).set_index(["epoch", "stratum", "statistic", "parameter"])["value"]
    for name in before:
        change = np.linalg.norm(after[name].astype(np.float64) - before[name])
        assert change > 0
        assert drift[2, "whole parameter", "value", name] == pytest.approx(change, rel=1e-12)
    # In training alone: validation and its sanity pass are not exposure.
    assert totals_of_tables(run) == count(model, 2 * batches)


def test_an_epoch_that_is_cut_short_is_a_fraction(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    fit(lightning, "one", model, tokenizer, tmp_path / "run", max_epochs=-1, max_steps=6)
    assert [(s.epoch, s.step) for s in toolkit.open_run(tmp_path / "run").trajectory] == [(0, 0), (1, 4), (1.5, 6)]


@pytest.mark.parametrize("is_sanity", [True, False])
def test_an_exception_leaves_the_run_unfinished_and_the_model_free(
    is_sanity: bool, model: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close = [], toolkit.Recording.close
    monkeypatch.setattr(toolkit.Recording, "close", lambda self: closed.append(close(self)))
    with pytest.raises(RuntimeError, match="planted"):
        fit(lightning, "one", model, tokenizer, tmp_path / "run", fails_at=(0 if is_sanity else 1, is_sanity))
    assert len(closed) == (0 if is_sanity else 1)
    assert (tmp_path / "run").exists() != is_sanity
    fit(lightning, "one", model, tokenizer, tmp_path / "run")  # starts again
    assert toolkit.open_run(tmp_path / "run").is_finished


def test_the_epochs_of_a_trainer_that_goes_on_are_numbered_on(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    fit(lightning, "one", model, tokenizer, tmp_path / "first", max_epochs=1)
    fit(lightning, "one", model, tokenizer, tmp_path / "rest", ckpt_path=tmp_path / "last.ckpt")
    run = toolkit.open_run(tmp_path / "rest")
    assert [(s.epoch, s.step) for s in run.trajectory] == [(1, 0), (2, 4)]
    assert json.loads((run.path / "config.json").read_text())["resumed_after_steps"] == 4


def test_without_lightning_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lightning_callback, "Callback", None)
    check_refused("needs Lightning: pip install lightning", toolkit.LightningSnapshotCallback, tmp_path / "run")


@pytest.mark.parametrize("settings", [{}, {"val_check_interval": 0.5}], ids=["each epoch", "each half"])
def test_scores_are_what_validation_logged_at_the_end_of_an_epoch(
    settings: dict[str, float], model: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[float, str, str, float]] = []
    monkeypatch.setattr(Recording, "add_score", lambda self, *score: heard.append((self._last[0], *score)))
    batches = fit(lightning, "one", model, tokenizer, tmp_path / "run", **settings)
    assert [(epoch, name) for epoch, name, *_ in heard] == [(e, name) for e in (1, 2) for name in ("loss", "share")]
    with torch.no_grad():
        losses = [float(model.eval()(**batch).logits.square().sum()) for batch in batches]
    assert heard[-2][2:] == ("validation", pytest.approx(np.mean(losses), rel=1e-5))
    assert heard[-1][2:] == ("validation", pytest.approx(0.5))
