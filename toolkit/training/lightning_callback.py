"""The callback that records any Lightning Trainer as a run directory."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolkit.snapshots.run_writer import check_startable
from toolkit.training.record import Recording, num_examples_of, record
from toolkit.training.record_checks import check_tokens, checked_facts, named_folder

try:  # One package under two names, each of which runs callbacks of the other too.
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError:
        Callback = None

OF_VALIDATION = re.compile(r"^(val|valid|validation)[_/]")
"""How the names of scores begin by which users tell them from those of training."""


class LightningSnapshotCallback(Callback or object):  # type: ignore[misc]  # Lightning is untyped here
    """Record the embedding parameters before training and after each epoch of a Lightning Trainer, with exposure.

    ``Trainer(callbacks=[toolkit.LightningSnapshotCallback("runs/mine", tokenizer=tokenizer)])``, of ``lightning`` or
    ``pytorch_lightning``, writes the run directory ``runs/mine``, as :func:`toolkit.record` does. The module may have
    several optimizers, step them by hand and accumulate gradients. Sanity validation comes before the recording. What
    validation at the end of an epoch logs (``self.log``) are its scores, on the split ``validation``.

    Parameters
    ----------
    run_dir
        The run directory to write; it is for nothing else.
    tokenizer
        Gives the rows their texts; None leaves them without.
    condition, seed, task
        What tells this run from those of other conditions, its seed, and what its data are called; see
        :func:`toolkit.record`.
    added_tokens
        Tokens that you added to the model's own, as ``tokenizer.add_tokens`` was given them; see
        :func:`toolkit.record`.
    allow_half
        Also record trainable embeddings in half precision, which hardly move.
    overwrite
        Replace a finished run; it is kept until the new one is finished.

    Raises
    ------
    ValueError
        As :func:`toolkit.record`, and where Lightning is not installed.

    Notes
    -----
    A Trainer that resumes from a checkpoint records the rest of the run, its epochs numbered on. Where ``max_steps`` or
    ``max_time`` ends training within an epoch, the last snapshot is of that fraction of it. An exception leaves the run
    unfinished.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        tokenizer: Any = None,
        condition: str | None = None,
        seed: int | None = None,
        task: str | None = None,
        added_tokens: Sequence[str] = (),
        allow_half: bool = False,
        overwrite: bool = False,
    ) -> None:
        if Callback is None:
            raise ValueError("LightningSnapshotCallback needs Lightning: pip install lightning")
        check_startable(named_folder(run_dir), overwrite=overwrite, is_recorded=True)  # before data are prepared
        self._path, self._options = Path(run_dir), {"tokenizer": tokenizer, "added_tokens": check_tokens(added_tokens)}
        self._options |= {"allow_half": allow_half, "overwrite": overwrite}
        self._options |= checked_facts({"condition": condition, "seed": seed, "task": task})
        self._recording: Recording | None = None
        self._num_batches, self._last = 0, 0.0
        self._known: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start recording and take the snapshot of epoch 0, after sanity validation."""
        self._last = float(trainer.current_epoch)
        facts = {"recorded_by": type(self).__name__, "resumed_after_steps": trainer.global_step or None}
        facts["num_train_examples"] = num_examples_of(trainer.train_dataloader)
        self._recording = record(pl_module, self._path, facts=facts, epochs_before=self._last, **self._options)
        self._recording.snapshot(epoch=self._last)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count what an epoch has had, in case it is the last and is cut short."""
        self._num_batches = batch_idx + 1

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Know what training has logged, which stands among the same metrics."""
        self._known = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """The scores of an epoch, beside its snapshot; validation within one has no snapshot of its weights."""
        if self._recording is None or not trainer.is_last_batch:
            return
        self._snapshot(trainer)
        for name, value in trainer.callback_metrics.items():
            if value is not self._known.get(name):
                self._recording.add_score(OF_VALIDATION.sub("", name), "validation", float(value))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The snapshot of the epoch."""
        self._snapshot(trainer)

    def _snapshot(self, trainer: Any) -> None:
        """Take the snapshot of the epoch so far, a fraction of it where training was cut short."""
        share = 1 if trainer.is_last_batch else self._num_batches / trainer.num_training_batches
        epoch = trainer.current_epoch + share
        if self._recording is not None and epoch > self._last:
            self._recording.snapshot(epoch=epoch)
            self._last = epoch

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """The manifest."""
        if self._recording is not None:
            self._recording.finish()
            self._recording = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Take the hooks off the model; what is on disk is kept, and the run stays unfinished."""
        if self._recording is not None:
            self._recording.close()
            self._recording = None
