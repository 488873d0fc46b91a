"""The callback that records any transformers.Trainer (or sentence-transformers trainer) as a run directory."""

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from toolkit.snapshots.run_writer import check_startable
from toolkit.training.record import Recording, check_tokens, named_folder, record

ARGUMENTS = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "max_grad_norm",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "optim",
    "seed",
    "bf16",
    "fp16",
)
"""The TrainingArguments that are kept in config.json: those that say how rows come to move."""


class EmbeddingSnapshotCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Record the embedding parameters before training and after each epoch of a Trainer, with exposure.

    ``Trainer(..., callbacks=[toolkit.EmbeddingSnapshotCallback("runs/mine")])`` writes the run directory ``runs/mine``:
    ``toolkit.open_run`` opens it, and every analysis takes it. Pass the Trainer ``processing_class=tokenizer`` too:
    without a tokenizer the rows of the word table have no words, of which a warning tells.

    Parameters
    ----------
    run_dir
        The run directory to write. It is for nothing else: the Trainer's output_dir is refused, a new folder in it is
        fine.
    snapshot_steps
        Also take a snapshot every so many optimizer steps; None takes none between epochs.
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
        As :func:`toolkit.record`.

    Notes
    -----
    A Trainer that resumes from a checkpoint records the rest of the run, from there on (what it recorded before is
    replaced, unless each start has a directory of its own); the epoch that it resumes within ends as epoch 1. The last
    snapshot is of the end of training: with ``load_best_model_at_end`` the Trainer then goes back to another
    checkpoint, which the manifest's problems name.
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        snapshot_steps: int | None = None,
        added_tokens: Sequence[str] = (),
        allow_half: bool = False,
        overwrite: bool = False,
    ) -> None:
        if snapshot_steps is not None and snapshot_steps < 1:
            raise ValueError(f"snapshot_steps must be at least 1 or None; got {snapshot_steps}")
        # Now already: train() may come after an hour of preparing data.
        check_startable(named_folder(run_dir), overwrite=overwrite, is_recorded=True)
        self._path, self._snapshot_steps = Path(run_dir), snapshot_steps
        self._options: dict[str, Any] = {"allow_half": allow_half, "overwrite": overwrite}
        self._options["added_tokens"] = check_tokens(added_tokens)
        self._recording: Recording | None = None
        self._log: Callable[[dict[str, float]], None] | None = None
        self._last = (-1.0, -1)
        self._start = 0

    def log_to(self, trainer: Any) -> None:
        """Log drift at each snapshot by ``trainer.log``, so that what the Trainer reports to shows it as it trains.

        :attr:`toolkit.training.record.Recording.live` says which series there are.
        """
        self._log = trainer.log

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start recording and take the snapshot of epoch 0; ValueError where the Trainer itself writes there."""
        self._check_apart(args.output_dir)
        if self._recording is not None:
            self._recording.close()
        facts = {"recorded_by": type(self).__name__, "arguments": {k: getattr(args, k, None) for k in ARGUMENTS}}
        if state.global_step:
            facts["resumed_after_steps"] = state.global_step
        tokenizer = tokenizer_of(kwargs.get("processing_class"))
        self._recording = record(kwargs["model"], self._path, tokenizer=tokenizer, facts=facts, **self._options)
        if tokenizer is None and state.is_world_process_zero:
            warnings.warn(
                "no tokenizer: pass processing_class=tokenizer to the Trainer, or rows have no words", stacklevel=2
            )
        self._start, self._last = math.floor(_rounded(float(state.epoch or 0.0))), (-1.0, -1)
        self._snapshot(0.0)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A snapshot between epochs, when one is due."""
        recording = self._recording
        if recording is not None and self._snapshot_steps and recording.num_steps % self._snapshot_steps == 0:
            epoch = self._epoch(state)
            if not epoch.is_integer():
                self._snapshot(epoch)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The snapshot of the epoch."""
        self._snapshot(self._epoch(state))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The last snapshot, where training ended within an epoch, and the manifest."""
        if self._recording is not None:
            self._snapshot(self._epoch(state))
            best = Path(state.best_model_checkpoint or "").name
            if best and args.load_best_model_at_end and best != f"checkpoint-{state.global_step}":
                self._recording.note(
                    f"load_best_model_at_end: the model that is kept is that of {best}, not that of the last snapshot"
                )
            self._recording.finish()
            self._recording = None

    def _check_apart(self, output_dir: str | None) -> None:
        """ValueError when the Trainer's checkpoints would lie in the run directory."""
        if output_dir is not None and Path(output_dir).resolve().is_relative_to(self._path.resolve()):
            raise ValueError(
                f"{self._path} would hold the Trainer's output_dir {output_dir}: pass the callback a folder of its "
                f"own, such as {Path(output_dir) / 'embeddings'}"
            )

    def _epoch(self, state: TrainerState) -> float:
        """Epochs since the start of the one in which recording began: whole at the end of an epoch."""
        return _rounded(float(state.epoch or 0.0) - self._start)

    def _snapshot(self, epoch: float) -> None:
        recording = self._recording
        if recording is not None and (epoch > self._last[0] and recording.num_steps > self._last[1]):
            recording.snapshot(epoch=epoch, step=recording.num_steps)
            if self._log is not None and (live := recording.live):
                self._log(live)
            self._last = (epoch, recording.num_steps)


def _rounded(epoch: float) -> float:
    """The Trainer's count of epochs carries the rounding of a quotient."""
    return float(round(epoch)) if abs(epoch - round(epoch)) < 1e-6 else epoch


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer in what a Trainer calls its processing class; None when there is none."""
    processor = getattr(processor, "tokenizer", processor)
    return processor if hasattr(processor, "convert_ids_to_tokens") else None
