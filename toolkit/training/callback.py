"""The callback that records any transformers.Trainer (or sentence-transformers trainer) as a run directory."""

import math
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import EvalPrediction
from transformers.training_args import TrainingArguments

from toolkit.progress import show
from toolkit.snapshots.output_folder import evaluations
from toolkit.snapshots.run_writer import check_startable
from toolkit.training.record import Recording, num_examples_of, record
from toolkit.training.record_checks import as_array, check_tokens, checked_facts, named_folder

Metrics: TypeAlias = Callable[..., dict[str, float]]
"""What a Trainer takes as ``compute_metrics``: it is called with an EvalPrediction, of ``batch_eval_metrics`` for each
batch and with ``compute_result``, which is true of the last."""

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
    """Record the embedding parameters before training and after each epoch of a Trainer, with exposure and scores.

    ``Trainer(..., callbacks=[toolkit.EmbeddingSnapshotCallback("runs/mine")])`` writes the run directory ``runs/mine``:
    ``toolkit.open_run`` opens it, and every analysis takes it. Pass the Trainer ``processing_class=tokenizer`` too:
    without a tokenizer the rows of the word table have no words, of which a warning tells.

    Parameters
    ----------
    run_dir
        The run directory to write. It is for nothing else: the Trainer's output_dir is refused, a new folder in it is
        fine.
    condition, task
        What tells this run from those of other conditions, and what its data are called; see :func:`toolkit.record`.
    seed
        Seed of every random draw; None takes the Trainer's.
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
    Scores are those of the Trainer's evaluations. A Trainer that resumes from a checkpoint records the rest of the run:
    its epochs are numbered on, and drift is since that checkpoint (what was recorded before is replaced, unless each
    start has a directory of its own). One that starts again by itself with smaller batches
    (``auto_find_batch_size``) goes on from the weights that it had moved, and the recording goes on too. Of data
    without a length an epoch is a pass. The last snapshot is of the end of training: with ``load_best_model_at_end``
    the Trainer then goes back to another checkpoint, which the manifest's problems name, as they do a checkpoint that
    is saved with other weights than the model has (an average).
    """

    def __init__(
        self,
        run_dir: str | Path,
        *,
        condition: str | None = None,
        seed: int | None = None,
        task: str | None = None,
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
        self._options |= {"condition": condition, "task": task, "added_tokens": check_tokens(added_tokens)}
        self._seed = checked_facts({"condition": condition, "task": task, "seed": seed})["seed"]
        self._recording: Recording | None = None
        self._model: Any = None
        self._log: Callable[[dict[str, float]], None] | None = None
        self._passes = _Passes(0, 0, True)
        self._last = (-1.0, -1)
        """Epoch and step of the last snapshot."""
        self._answers: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None
        self._answers_of: dict[str, tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {}

    def keeping_predictions(self, compute_metrics: Metrics | None = None) -> Metrics:
        """What to give the Trainer as ``compute_metrics``: it keeps the answer to each item as well.

        Scores then have intervals over items, and a run that gives every item one answer is known to have failed. The
        answer is the class of the greatest output, of a single output its value; of other tasks none is kept.

        Examples
        --------
        ``Trainer(..., compute_metrics=snapshots.keeping_predictions(compute_metrics), callbacks=[snapshots])``
        """
        batches: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None] = []

        def compute(evaluated: EvalPrediction, **of_batch: bool) -> dict[str, float]:
            batches.append(_answers_in(evaluated))
            if of_batch.get("compute_result", True):
                known = [each for each in batches if each is not None]
                if len(known) == len(batches):
                    labels, predictions = map(np.concatenate, zip(*known, strict=True))
                    self._answers = labels, predictions
                batches.clear()
            return {} if compute_metrics is None else compute_metrics(evaluated, **of_batch)

        return compute if compute_metrics is None else wraps(compute_metrics)(compute)

    def log_to(self, trainer: Any) -> None:
        """Log drift at each snapshot by ``trainer.log``, so that what the Trainer reports to shows it as it trains.

        :attr:`toolkit.training.record.Recording.live` says which series there are.
        """
        self._log = trainer.log

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start recording and take the first snapshot; ValueError where the Trainer itself writes there."""
        model, previous = kwargs["model"], self._recording
        has_length = _has_length(kwargs.get("train_dataloader"))
        # Started again by itself with smaller batches, from the weights that it had moved: the recording goes on.
        if previous is not None and model is self._model and args.auto_find_batch_size:
            previous.drop_passes()
            self._passes = _Passes(math.ceil(self._last[0]), state.global_step, has_length)
            return
        self._check_apart(args.output_dir)
        if previous is not None:
            previous.close()
        facts: dict[str, Any] = {"recorded_by": type(self).__name__}
        facts["arguments"] = _arguments(args, state.max_steps, model)
        facts["num_train_examples"] = num_examples_of(kwargs.get("train_dataloader"))
        if state.global_step:
            facts["resumed_after_steps"] = state.global_step
        tokenizer = tokenizer_of(kwargs.get("processing_class"))
        seed, epoch = args.seed if self._seed is None else self._seed, _rounded(state.epoch or 0.0)
        options = self._options | {"tokenizer": tokenizer, "seed": seed, "epochs_before": epoch, "facts": facts}
        self._recording = record(model, self._path, **options)
        if tokenizer is None and state.is_world_process_zero:
            warnings.warn(
                "no tokenizer: pass processing_class=tokenizer to the Trainer, or rows have no words", stacklevel=2
            )
        self._model, self._last = model, (-1.0, -1)
        self._passes = _Passes(0 if has_length else math.floor(epoch), state.global_step, has_length)
        self._snapshot(epoch)
        if previous is not None and previous.first_digests != self._recording.first_digests:
            self._recording.note(
                "an earlier training of this callback was interrupted: the first snapshot is of the weights as that "
                f"left them after {previous.num_steps} steps"
            )

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tell of the step of an optimizer that torch does not know."""
        if self._recording is not None and not isinstance(kwargs.get("optimizer"), torch.optim.Optimizer):
            self._recording.before_step()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A snapshot between epochs, when one is due."""
        recording = self._recording
        if recording is not None and self._snapshot_steps and recording.num_steps % self._snapshot_steps == 0:
            epoch = self._passes.epoch(state)
            if not epoch.is_integer():
                self._snapshot(epoch)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The snapshot of the epoch, whether or not a step was seen in it."""
        self._snapshot(self._passes.end(state))

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep the scores of an evaluation, and its answers."""
        answers, self._answers = self._answers, None
        if self._recording is None:
            return
        for split, scores in evaluations(metrics or {}):
            if answers is not None:
                self._answers_of[split] = self._recording.num_steps, *answers
                self._keep_answers()
            for name, value in scores.items():
                self._recording.add_score(name, split, value, self._passes.epoch(state))
        if args.metric_for_best_model and args.metric_for_best_model.removeprefix("eval_") != "loss":
            self._recording.headline = args.metric_for_best_model.removeprefix("eval_")

    def _keep_answers(self) -> None:
        """Keep the answers that are of the last snapshot's model: it is taken before a scoring, or right after."""
        for split, (step, labels, predictions) in self._answers_of.items():
            if self._recording is not None and step == self._last[1]:
                self._recording.keep_predictions(
                    split, ids=range(len(labels)), labels=labels.tolist(), predictions=predictions.tolist()
                )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Hold the checkpoint against the snapshot of the same step."""
        recording, folder = self._recording, Path(args.output_dir or "") / f"checkpoint-{state.global_step}"
        if recording is not None and state.is_world_process_zero and recording.num_steps == self._last[1]:
            recording.check_saved(folder)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The last snapshot, where training ended within an epoch, and the manifest."""
        if self._recording is None:
            return
        if self._recording.num_steps > self._last[1]:
            self._snapshot(self._passes.epoch(state))
        best = Path(state.best_model_checkpoint or "").name
        if best and args.load_best_model_at_end and best != f"checkpoint-{state.global_step}":
            self._recording.note(
                f"load_best_model_at_end: the model that is kept is that of {best}, not that of the last snapshot"
            )
        self._recording.finish()
        self._recording = self._model = None
        if state.is_world_process_zero:
            self._say_pages()

    def _say_pages(self) -> None:
        """Say how the page of the run is made."""
        page = self._path.with_name(f"{self._path.name}_page")
        command = shlex.join(["python", "-m", "toolkit", "drift", str(self._path), "--out", str(page)])
        show(f"Recorded {self._path}. Its page: {command}")
        show(f"All runs there: python -m toolkit report {shlex.quote(str(self._path.parent))}/* --out my_report")

    def _check_apart(self, output_dir: str | None) -> None:
        """ValueError when the Trainer's checkpoints would lie in the run directory."""
        if output_dir is not None and Path(output_dir).resolve().is_relative_to(self._path.resolve()):
            raise ValueError(
                f"{self._path} would hold the Trainer's output_dir {output_dir}: pass the callback a folder of its "
                f"own, such as {Path(output_dir) / 'embeddings'}"
            )

    def _snapshot(self, epoch: float) -> None:
        """Take the snapshot of an epoch, unless it or a later one is there, and have the Trainer log live drift."""
        recording = self._recording
        if recording is not None and epoch > self._last[0]:
            recording.snapshot(epoch=epoch)
            if self._log is not None and (live := recording.live):
                self._log(live)
            self._last = (epoch, recording.num_steps)
            self._keep_answers()


@dataclass
class _Passes:
    """Passes over the training data. The Trainer's epochs are these only where the data have a length: of streams it
    divides by all steps."""

    done: int
    """Whole passes before those that the Trainer counts; of streams, all."""
    start: int
    """The Trainer's step at which the present pass began."""
    has_length: bool
    num_steps: int | None = None
    """Of a stream's pass that is through."""

    def epoch(self, state: TrainerState) -> float:
        """Epochs done: whole at the end of a pass, a fraction within one."""
        if self.has_length:
            return self.done + _rounded(state.epoch or 0.0)
        num_taken = state.global_step - self.start
        return _rounded(self.done + num_taken / (self.num_steps or max(state.max_steps, num_taken + 1)))

    def end(self, state: TrainerState) -> float:
        """:meth:`epoch` where a pass ends, or is cut short by the end of training."""
        num_taken = state.global_step - self.start
        if not self.has_length and (state.global_step < state.max_steps or num_taken == self.num_steps):
            self.done, self.start, self.num_steps = self.done + 1, state.global_step, num_taken
        elif not self.has_length:
            self.num_steps = self.num_steps or num_taken  # a first pass that is cut short: how long it is, nobody knows
        return self.epoch(state)


def _answers_in(evaluated: EvalPrediction) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    """(items,) labels and answers; None of a task that has not one of each for an item."""
    predictions = evaluated.predictions
    labels = as_array(evaluated.label_ids)
    outputs = as_array(predictions[0] if isinstance(predictions, tuple) else predictions)
    if outputs.ndim > 2 or labels.size != len(outputs):
        return None
    return labels.reshape(-1), outputs.reshape(-1) if outputs.size == len(outputs) else outputs.argmax(axis=1)


def _arguments(args: TrainingArguments, num_steps: int, model: Any) -> dict[str, Any]:
    """:data:`ARGUMENTS`, and what a paper says beside them where it is known: warm-up and dropout."""
    arguments = {name: getattr(args, name, None) for name in ARGUMENTS}
    arguments["max_steps"] = args.max_steps if args.max_steps > 0 else None  # as many as the epochs take
    if num_steps > 0:
        arguments["warmup_fraction"] = args.get_warmup_steps(num_steps) / num_steps
    config = getattr(model, "config", None)
    dropout = getattr(config, "hidden_dropout_prob", getattr(config, "dropout", None))
    return arguments if dropout is None else arguments | {"dropout": dropout}


def _has_length(dataloader: Any) -> bool:
    try:
        return len(dataloader) is not None
    except TypeError:
        return False


def _rounded(epoch: float) -> float:
    """The Trainer's count of epochs carries the rounding of a quotient."""
    return float(round(epoch)) if abs(epoch - round(epoch)) < 1e-6 else epoch


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer in what a Trainer calls its processing class; None when there is none."""
    processor = getattr(processor, "tokenizer", processor)
    return processor if hasattr(processor, "convert_ids_to_tokens") else None
