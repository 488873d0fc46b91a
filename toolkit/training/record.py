"""``toolkit.record``: a model in any training loop, recorded as a run directory."""

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from toolkit.families import TABLES, component_of, regime_name
from toolkit.models.regimes import Embeddings, find_parameter, has_adapters, layer_norm_eps, locate_embeddings
from toolkit.naming import first_few, refuse_first
from toolkit.progress import show
from toolkit.snapshots.files import sha256_of_array
from toolkit.snapshots.importers import import_checkpoints
from toolkit.snapshots.run_writer import RunWriter, facts_of, read_git_commit, read_versions
from toolkit.snapshots.snapshot import Snapshot, Vocabulary, check_word_rows, name_undefined, read_vocabulary, to_array
from toolkit.snapshots.store import Run, open_run
from toolkit.snapshots.tokenizer_files import EMBEDDED, EMBEDDED_PACKAGE
from toolkit.training.accelerators import start_together
from toolkit.training.device_steps import rows_on_host
from toolkit.training.live_drift import LiveDrift, as_columns, drift_and_norms
from toolkit.training.passes import PassWatch, Rows, uncompiled
from toolkit.training.record_checks import (
    answers_table,
    check_epoch,
    check_objects,
    check_tokens,
    checked_facts,
    fault_of_score,
    named_folder,
)
from toolkit.training.step_recorder import IS_OUTPUT_TOO, Recorder
from toolkit.training.trains import describe_training
from toolkit.training.updates import Updates

IS_ADAPTED = (
    "is changed by an adapter: its snapshots are the base's table with what the active adapters make of it, and what "
    "the input used is known, not the gradient of a row"
)
SHARED_BATCH = (
    "parameters are shared out otherwise than by FSDP2 over all processes (tensor parallel, say): which processes see "
    "the same batch is not known, nor is exposure"
)


def put_back_shards(model: nn.Module) -> None:
    """Undo what a forward pass of FSDP2 may leave: the root's parameters gathered, in the type that it computes in."""
    for module in model.modules():
        if callable(reshard := getattr(module, "reshard", None)):
            reshard()


def check_whole(parameters: Mapping[str, nn.Parameter]) -> None:
    """ValueError where this process has but a part of a parameter that cannot be gathered, or no values at all."""
    for name, parameter in parameters.items():
        faults = {
            f"{name} is on the meta device and has no values yet: load the weights, then call record()": (
                parameter.is_meta
            ),
            f"{name} has the shape {tuple(parameter.shape)} here: this process holds only a flat part of it "
            "(FSDP1, DeepSpeed ZeRO-3): use FSDP2 (torch.distributed.fsdp.fully_shard; fsdp_version 2 in "
            "Accelerate and Trainer)": parameter.ndim != (1 if name.startswith("LayerNorm") else 2),
        }
        refuse_first(faults)


def check_same(backbone: nn.Module, names: Mapping[str, str], parameters: Mapping[str, nn.Parameter]) -> None:
    """ValueError where the model no longer holds the parameters that are recorded.

    ``names``: canonical name to the model's own. Not of DTensors: during a step FSDP2 itself puts others there.
    """
    for name, parameter in parameters.items():
        located = find_parameter(backbone, names[name])
        is_same = located is not None and located.parameter is parameter
        if not is_same and not hasattr(parameter, "full_tensor"):
            raise ValueError(
                f"{name} was replaced after record(), by fully_shard, FSDP, accelerator.prepare or a wrapper of the "
                "table: call record() after that"
            )


def shares_batches(model: nn.Module, num_processes: int) -> bool:
    """Whether several processes may be given one batch: where parameters are not sharded by FSDP2 alone."""
    is_fsdp = any(hasattr(module, "reshard") for module in model.modules())
    sharded: list[Any] = [p for p in model.parameters() if hasattr(p, "full_tensor")]
    return num_processes > 1 and any(
        not is_fsdp
        or p.device_mesh.size() != num_processes
        or sum(not placement.is_replicate() for placement in p.placements) > 1  # HSDP replicates in one of two
        for p in sharded
    )


CALLED_AGAIN = (
    "the optimizer called its closure more than once in a step: which rows a step used, and with what gradient, is "
    "not known"
)
NO_STEP_SEEN = (
    "no optimizer step was seen where the embedding parameters changed, or an epoch went by (of an optimizer that is "
    "no torch.optim.Optimizer none is: call recording.before_step() before each of its steps): exposure is not known"
)
NOT_BY_A_STEP = "changed in a span in which no step that was seen can have moved it: its exposure is not known"
REPLACED = "was replaced while it was recorded: the snapshots from here on are not of the model, and none is taken"


def record(
    model: nn.Module,
    run_dir: str | Path,
    *,
    tokenizer: Any = None,
    added_tokens: Sequence[str] = (),
    allow_half: bool = False,
    overwrite: bool = False,
    condition: str | None = None,
    seed: int | None = None,
    task: str | None = None,
    epochs_before: float = 0.0,
    facts: Mapping[str, Any] | None = None,
) -> "Recording":
    """Start recording the embedding parameters of a model in any training loop; call it before training.

    Write ``with toolkit.record(model, run_dir) as recording:`` around the loop, ``recording.snapshot(epoch=0)`` before
    the first step (which takes it where it is forgotten) and ``recording.snapshot(epoch=)`` after every epoch; what
    comes after the last snapshot is lost.

    Parameters
    ----------
    model
        A model of a supported family.
    run_dir
        The run directory to write: new, empty, or with an unfinished run, which starts again.
    tokenizer
        Gives the rows their texts; None leaves them without.
    added_tokens
        Tokens that you added to the model's own, as ``tokenizer.add_tokens`` was given them: their rows are told of
        apart (:func:`toolkit.measure_added_rows`). They are not guessed: ``tokenizer.get_added_vocab()`` holds tokens
        that checkpoints come with, too, and words that had a row before (name none of these: there is a warning).
    allow_half
        Also record trainable embeddings in half precision, which hardly move.
    overwrite
        Replace a finished run; it is kept until the new one is finished.
    condition
        What tells this run from those of other conditions, such as ``"embeddings frozen"``: runs of one condition that
        differ in their seed are replicates. None: reports go by what was proven frozen.
    seed
        Seed of every random draw; that of the training, None where it is not known.
    task
        What the data are called: runs of one model and task are compared.
    epochs_before
        Epochs that the model was trained before recording began: the first snapshot is of that epoch.
    facts
        Written into config.json as they are; ``num_train_examples`` of these is what pages and methods say.

    Returns
    -------
    Recording
        The run directory that is being written, also a context manager that finishes it.

    Raises
    ------
    ValueError
        The model is of no supported family, a process holds only flat parts of it (FSDP1, DeepSpeed ZeRO-3), the
        tokenizer has more tokens than the model has word rows, or lacks an added one, the directory holds anything
        else, or trainable embeddings are in half precision.

    Notes
    -----
    Exposure is taken from the forward passes that a gradient comes back from, in whichever mode the model is, gradient
    norms (as the optimizer gets them) and learning rates from whichever optimizer holds the embedding parameters at
    that step: there may be several, or a new one in each phase. Of an optimizer that is no ``torch.optim.Optimizer``
    call :meth:`Recording.before_step` before each step. What was not seen is not known, and the run's problems say so.
    A snapshot of a schedule-free optimizer is the average, which is saved. With several processes each of them calls
    everything, after DDP or FSDP2 has the model (a torch.compile may come later); rows are those of all processes. A
    model that tensor parallelism shares out has no exposure.

    Examples
    --------
    >>> with toolkit.record(model, "runs/frozen_0", condition="frozen", seed=0) as recording:  # doctest: +SKIP
    ...     recording.snapshot(epoch=0)
    ...     for batch in batches:
    ...         model(**batch).loss.backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...     recording.snapshot(epoch=1)
    ...     recording.score("accuracy", validation=0.87)
    """
    run_facts = checked_facts({"task": task, "condition": condition, "seed": seed, **(facts or {})})
    check_objects(model, tokenizer)
    check_epoch(epochs_before)
    folder = named_folder(run_dir)
    return Recording(model, folder, tokenizer, added_tokens, allow_half, overwrite, run_facts, epochs_before)


def num_examples_of(dataloader: Any) -> int | None:
    """The examples that a dataloader has in an epoch; None where it does not say."""
    with contextlib.suppress(AttributeError, TypeError):
        # Without a sampler of batches each item of the data may be a batch.
        return None if dataloader.batch_sampler is None else len(dataloader.dataset)
    return None


def _warn_of_old_rows(name: str, vocabulary: Vocabulary, tokenizer: Any) -> None:
    """Say so where tokens that are called added have rows of the tokenizer's own: ``add_tokens`` passes by these."""
    old_rows = [row for row in sorted(vocabulary.added_rows) if row < getattr(tokenizer, "vocab_size", 0)]
    if old_rows:
        names = first_few([repr(vocabulary.tokens[row]) for row in old_rows])
        warnings.warn(
            f"{name}: added_tokens names {names}, in the vocabulary that the tokenizer came with: add_tokens gives "
            "such a token no new row; leave it out, unless its row was a spare one",
            stacklevel=4,
        )


class Recording:
    """A run directory that is being written; made by :func:`record`."""

    def __init__(
        self,
        model: nn.Module,
        path: Path,
        tokenizer: Any,
        added_tokens: Sequence[str],
        allow_half: bool,
        overwrite: bool,
        facts: dict[str, Any],
        epochs_before: float = 0.0,
    ) -> None:
        self.path = path
        put_back_shards(model)
        self._model, self._embeddings = model, locate_embeddings(model)
        check_whole(self._embeddings.parameters)
        self._allow_half = allow_half
        _check_precision(self._embeddings.parameters, allow_half)
        self._frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        self._before = _fingerprint(self._frozen)
        self._vocabulary = self._read_vocabulary(tokenizer, check_tokens(added_tokens))
        self._facts, self._first_epoch = facts, epochs_before
        self._writer = self._start_writer(overwrite=overwrite)
        if self._writer is not None and self._vocabulary is not None:
            _warn_of_old_rows(path.name, self._vocabulary, tokenizer)
        shared = self._tied = _tied_parameters(model, self._embeddings)
        adapted = self._embeddings.adapted
        self._notes = [f"{name} {IS_OUTPUT_TOO}" for name in shared] + [f"{name} {IS_ADAPTED}" for name in adapted]
        parameters = self._embeddings.parameters
        self._recorder = Recorder(
            {table: parameters[table] for table in TABLES if table in parameters}, shared=[*shared, *adapted]
        )
        if shares_batches(model, _world_size()):
            self._recorder.problem = SHARED_BATCH
        self._watch = PassWatch(model, self._embeddings)
        self._updates = Updates(parameters, adapted)
        self._updates.problem = self._embeddings.why_not_replayed or None
        # What an adapter changes is no parameter: of the one beneath it nothing moves.
        unadapted = {name: p for name, p in parameters.items() if name not in adapted}
        self._live = LiveDrift(unadapted, path.name)
        self._drift: dict[str, float] = {}
        self._stepping: list[torch.optim.Optimizer | None] = []
        """The optimizers that have had a part in the last step; None is one that torch does not know."""
        self._num_skipped = 0
        self._inside: list[torch.optim.Optimizer] = []
        """Optimizers whose step is going on."""
        self._handles = (
            register_optimizer_step_pre_hook(self._on_step),
            register_optimizer_step_post_hook(self._after_step),
        )
        self._last: tuple[float, int] | None = None
        """Epoch and step of the last snapshot."""
        self._reference: Mapping[str, Any] = {}
        self._digests: dict[str, str] = {}
        self.first_digests: dict[str, str] = {}
        """The sha256 of each embedding parameter in the first snapshot."""
        self._scores: dict[tuple[float, int, str], dict[str, float]] = {}
        self._predictions: dict[str, pd.DataFrame] = {}
        self.headline: str | None = None
        """The score that stands for the run; None: the first that is given."""
        self._warned: set[str] = set()
        self._has_diverged = self._is_finished = False

    def _read_vocabulary(self, tokenizer: Any, added_tokens: list[str]) -> Vocabulary | None:
        """The texts of the word rows; None without a tokenizer, or ValueError where tokens are called added."""
        if tokenizer is None:
            needs = "added_tokens needs the tokenizer, which says where their rows are: pass it too"
            refuse_first({needs: added_tokens})
            return None
        num_rows = len(self._embeddings.parameters["word_embeddings"])
        check_word_rows(_name_of(self._model, self._embeddings.backbone), len(tokenizer), num_rows)
        return read_vocabulary(tokenizer, num_rows, added_tokens)

    def _start_writer(self, *, overwrite: bool) -> RunWriter | None:
        """What writes the run directory, its config and vocabulary written; None in all processes but the first."""
        writer, _ = start_together(self.path, overwrite=overwrite, is_main=_rank() == 0, is_recorded=True)
        if writer is not None:
            eps = layer_norm_eps(self._embeddings.backbone, self._embeddings.family)
            writer.facts = facts_of(self._embeddings.position_offset, eps)
            writer.write_recorded_config({"model": _name_of(self._model, self._embeddings.backbone), **self._facts})
            if self._vocabulary is not None:
                writer.write_vocabulary(self._vocabulary)
        return writer

    @property
    def num_steps(self) -> int:
        """Optimizer steps seen so far."""
        return self._recorder.num_steps

    @property
    def live(self) -> dict[str, float]:
        """Numbers for a tracker, by name: at the last snapshot ``norm/<parameter>``, ‖E‖, and ``drift/<parameter>``,
        ‖E - E⁰‖ / ‖E⁰‖; of the last step whose number is a power of two ``update_to_weight/<parameter>`` (norms of the
        update and of the weights, of the rows with a gradient) and ``lost_to_rounding/<parameter>`` (the share of their
        values with a gradient that the update left as they were). Empty in all processes but the first."""
        return {**self._drift, **self._live.values} if self._writer is not None else {}

    def drift(self, epoch: float | None = None) -> pd.Series:
        """How far each embedding parameter moved so far, in % of the norm that it had, as of a :class:`toolkit.Run`."""
        return self._run.drift(epoch)

    def note(self, problem: str) -> None:
        """Add a line to the manifest's problems."""
        self._notes.append(problem)

    def drop_passes(self) -> None:
        """Forget the passes since the last step: no step will learn from them."""
        self._watch.drop()

    def check_saved(self, checkpoint: Path) -> None:
        """Note a checkpoint, of the step of the last snapshot, whose embedding parameters are not those of the model.

        What cannot be read (an adapter alone, a pickle) is not compared.
        """
        if self._writer is None:
            return
        try:
            saved = import_checkpoints([checkpoint]).trajectory.snapshots[0].tensors
        except (ValueError, OSError):
            return
        last_snapshot = max(map(self._run.open_snapshot, self._run.snapshot_names()), key=_moment_of)
        names = [
            name
            for name, tensor in last_snapshot.tensors.items()
            if name in saved and saved[name].shape == tensor.shape
        ]
        if differ := [name for name in names if not np.array_equal(saved[name], last_snapshot.tensors[name])]:
            self.note(
                f"{checkpoint.name} was saved with other values of {', '.join(differ)} than the model had (an average, "
                f"say): for the drift of what is saved pass the folder of the checkpoints, {checkpoint.parent.name}"
            )

    def before_step(self) -> None:
        """Say that an optimizer is about to update the model; call it before each step of an optimizer that is no
        ``torch.optim.Optimizer``, whose steps nobody else tells of."""
        self._begin_step()
        self._end_step(None)

    def score(self, name: str, /, **splits: float) -> None:
        """Keep a score of the model as it is now, by split: ``recording.score("accuracy", validation=0.87)``.

        It is of the epoch of the last snapshot. The first score that is not ``loss`` stands for the run in reports.
        """
        if not splits:
            raise ValueError(f"score({name!r}) needs the value of at least one split, such as validation=0.87")
        for value in splits.values():
            if fault := fault_of_score(name, value):
                raise ValueError(fault)
        for split, value in splits.items():
            self.add_score(name, split, value)

    @property
    def _last_epoch(self) -> float:
        """That of the last snapshot."""
        return self._first_epoch if self._last is None else self._last[0]

    def keep_predictions(
        self,
        split: str,
        *,
        ids: Sequence[Any],
        labels: Sequence[Any],
        predictions: Sequence[Any],
        clusters: Sequence[Any] | None = None,
    ) -> None:
        """Keep the answers to the items of a split, as the model is now: comparisons then have intervals over items.

        All have one length; an item has the same id in every run that it is compared with. They are of the epoch of the
        last snapshot, and those of a later epoch take their place. ``ids`` are whole numbers or texts, ``labels`` and
        ``predictions`` numbers, of classes their places. ``clusters``: of each item an id of what it comes from
        together with others, such as a review; intervals are then over clusters. They are kept as numbers. ValueError
        for answers of another form.
        """
        answers = answers_table(split, ids, labels, predictions, clusters)
        for other_split, others in self._predictions.items():
            if others["id"].dtype != answers["id"].dtype:
                raise ValueError(f"ids of {split!r} and of {other_split!r} must be of one kind: whole numbers or texts")
        answers.insert(0, "epoch", self._last_epoch)
        self._predictions[split] = answers

    def add_score(self, name: str, split: str, value: float, epoch: float | None = None) -> None:
        """:meth:`score` of one split, by default at the last snapshot's epoch; one that cannot be kept is left out."""
        if fault := fault_of_score(name, value):
            self._note_at_once(f"a score is left out: {fault}")
            return
        key = self._last_epoch if epoch is None else epoch, self.num_steps, split
        self._scores.setdefault(key, {})[name] = float(value)
        if self.headline is None and name != "loss":
            self.headline = name

    def snapshot(self, *, epoch: float, step: int | None = None) -> None:
        """Write the embedding parameters as they are now, and what is known of the steps so far.

        ``epoch`` is a whole number at the end of an epoch (0 before training) and a fraction between two. ``step`` is
        the number of optimizer steps that were seen, and need not be given. ValueError for another number, when
        ``epoch`` does not come after the last one, and when the first is not that in which the recording began.
        """
        check_epoch(epoch)
        step = self.num_steps if step is None else step
        first = f"{self._first_epoch:g}"
        faults = {
            f"snapshots come in order: epoch {epoch:g}, step {step} after {self._last}": (
                self._last is not None and (epoch <= self._last[0] or step < self._last[1])
            ),
            f"step {step} was given, but {self.num_steps} optimizer steps were seen: leave step= out to take these "
            "(fewer are seen where record() came after some, where a GradScaler skipped some, and of an optimizer "
            "that is not a torch.optim.Optimizer those alone before which recording.before_step() is called)": (
                step != self.num_steps
            ),
            f"the first snapshot is of epoch {epoch:g}: call snapshot(epoch={first}) before training": (
                self._last is None and epoch != self._first_epoch
            ),
        }
        refuse_first(faults)
        put_back_shards(self._model)
        if not self._has_recorded_parameters():
            return
        self._live.after_update()
        with self._updates.as_saved():
            tensors = self._embeddings.values()  # may be a collective
        previous, self._last = self._last, (epoch, step)
        self._recorder.settle()
        if self._writer is not None:
            self._writer.write_snapshot(epoch, step, tensors, is_epoch_end=float(epoch).is_integer())
            digests, digests_before = self._writer.last_digests, self._digests
            changed = [name for name in digests_before if digests[name] != digests_before[name]]
            self._digests = dict(digests)
            self.first_digests = self.first_digests or self._digests
            self._account_for(changed, has_stepped=previous is None or step > previous[1])
            self._reference = self._reference or self._first_tensors()
            self._look_for_problems(tensors, epoch)
            self._write_logs(self._writer)
            self._measure_live(tensors, self._writer, is_epoch_end=float(epoch).is_integer())

    def _account_for(self, changed: list[str], *, has_stepped: bool) -> None:
        """Where parameters changed in no step that was seen, say that their exposure is not known."""
        unseen = self._updates.unseen(changed)
        if changed and not has_stepped:
            self._recorder.problem = self._recorder.problem or NO_STEP_SEEN
        for name in unseen:
            self._recorder.leave_out(name, NOT_BY_A_STEP)

    @property
    def _run(self) -> Run:
        """What is on disk so far."""
        return Run(self.path if self._writer is None else self._writer.path)

    def _first_tensors(self) -> Mapping[str, Any]:
        return self._run.open_snapshot(self._run.snapshot_names()[0]).tensors

    def _look_for_problems(self, tensors: Mapping[str, Any], epoch: float) -> None:
        """Note and warn of problems at once that would otherwise be known only at the end."""
        problems = list(self._updates.moved_though_frozen(tensors))
        for name, tensor in () if self._has_diverged else tensors.items():
            if where := name_undefined(name, tensor, self._vocabulary, self._embeddings.position_offset):
                problems.append(f"{name} holds NaN or infinity {where} from epoch {epoch:g} on: training diverged")
                self._has_diverged = True
                break
        for problem in problems:
            self._note_at_once(problem)

    def _note_at_once(self, problem: str) -> None:
        """:meth:`note` a problem, and warn of it the first time."""
        if problem not in self._warned:
            self._warned.add(problem)
            self.note(problem)
            warnings.warn(f"{self.path.name}: {problem}", stacklevel=4)

    def _measure_live(self, tensors: Mapping[str, Any], writer: RunWriter, *, is_epoch_end: bool) -> None:
        """Measure drift since the first snapshot, and warn of parameters that train otherwise than it seems."""
        self._drift = drift_and_norms(self._reference, tensors)
        log = self._updates.settings
        moved = writer.moved_parameters()
        self._live.warn_of_stillness(moved)
        if is_epoch_end and self.num_steps > 1:  # the rate of a first step may be 0, as warm-up has it
            self._live.warn_of_idle_adapters([name for name in self._embeddings.adapted if name not in moved])
        exposure = self._recorder.exposure()
        self._live.warn_of_l2(log["algorithm"], log["weight_decay"], exposure, self._reference, tensors)

    def _write_logs(self, writer: RunWriter) -> None:
        """Write exposure and optimizer log so far; what turned out not to be known is taken away again."""
        writer.write_exposure(None if self._watch.problem else self._recorder.exposure())
        dtype = next(iter(self._embeddings.parameters.values())).dtype
        writer.write_optimizer_log(self._updates.optimizer_log(self._recorder, dtype))

    def finish(self) -> Run:
        """Write the manifest, take the hooks off the model, and return the run.

        A parameter that was frozen from the start to the end and has changed all the same is a problem that the
        manifest names: nothing is raised where a model is still to be saved.
        """
        if self._is_finished:
            return open_run(self.path)
        self._is_finished = True
        self._unhook()
        self._recorder.settle()
        try:
            put_back_shards(self._model)
            if self.num_steps:
                self._has_recorded_parameters()
            after = _fingerprint(self._frozen)
            if self._last is not None and (num_missed := self.num_steps - self._last[1]):
                last = f"epoch {self._last[0]:g}, step {self._last[1]}"
                self.note(
                    f"no snapshot covers the last {num_missed} optimizer steps (the last is of {last}): take one at "
                    "the end"
                )
            # Epochs went by without a step that was seen: that is not known, and not nothing.
            if not self.num_steps and not self._num_skipped and self._last and self._last[0] > self._first_epoch:
                self._recorder.problem = self._recorder.problem or NO_STEP_SEEN
            if moved := self._changed_though_frozen(after):
                self.note(f"frozen parameters have changed: {first_few(moved)}")
            if self._writer is not None:
                self._write_logs(self._writer)
                if self._scores:
                    self._writer.write_scores(_score_table(self._scores))
                if self._predictions:
                    self._writer.write_predictions(pd.concat(self._predictions.values(), ignore_index=True))
                for problem in self._problems():
                    if problem not in self._warned:
                        warnings.warn(f"{self.path.name}: {problem}", stacklevel=2)
                self._writer.finish(self._manifest(after))
        finally:
            self.close()
        _barrier()
        return open_run(self.path)

    def _changed_though_frozen(self, after: Mapping[str, str]) -> list[str]:
        """What was frozen from start to end and yet has changed, or is no longer the model's."""
        current = {id(p) for p in self._model.parameters()}
        return [name for name, p in self._frozen.items() if after[name] != self._before[name] or id(p) not in current]

    def close(self) -> None:
        """Take the hooks off the model and let others write; without :meth:`finish` the run stays unfinished."""
        self._unhook()
        if self._writer is not None:
            self._writer.release()

    def _unhook(self) -> None:
        self._watch.close()
        self._stepping, self._inside = [], []  # or they would keep an optimizer's moments in memory
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> "Recording":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.close()  # what is on disk is kept, and the run stays unfinished
        else:
            self.finish()

    @uncompiled
    def _on_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Before the update of any optimizer, of this model's or of others.

        The passes of ``optimizer.step(closure)``, as Lightning calls it, run within the step: then the closure's end
        is the moment before the update, and the optimizer gets a closure that says so.
        """
        if not any(other is optimizer for other in self._updates.optimizers):  # those are the model's
            held_ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if not any(id(p) in held_ids for p in self._model.parameters()):
                return None
        if any(other is optimizer for other in self._inside) and not self._watch.has_passes:
            return None  # a class of the user's own calls its parent's step, of which torch tells again
        self._inside.append(optimizer)
        self._begin_step()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if not callable(closure):
            self._end_step(optimizer)
            return None
        wrapped = self._with_end(optimizer, closure)
        return ((args[0], wrapped, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": wrapped})

    def _after_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inside = [other for other in self._inside if other is not optimizer]

    def _begin_step(self) -> None:
        """Look at what a step may change, before its passes where they run within the step."""
        self._live.after_update()
        self._forget_unfrozen()
        # Later a snapshot looks, before it is written: to look for every parameter takes as long as a small layer.
        if not self.num_steps and self._has_recorded_parameters() and self._last is None:
            self.snapshot(epoch=self._first_epoch)  # the last moment at which it can be taken
        self._updates.note_frozen(self.num_steps)

    def _has_recorded_parameters(self) -> bool:
        """Whether the model still has the parameters that are recorded.

        ValueError where it lost them before the first step; later, when an error would end somebody's training, a
        problem of the run.
        """
        names = self._embeddings.family.embedding_parameters
        try:
            check_same(self._embeddings.backbone, names, self._embeddings.parameters)
            check_whole(self._embeddings.parameters)
        except ValueError:
            if not self.num_steps:
                raise
            self._recorder.problem = self._recorder.problem or f"an embedding parameter {REPLACED}"
            return False
        return True

    def _forget_unfrozen(self) -> None:
        """Forget what a step may move: it is frozen no longer, and nothing can be proven of it (gradual unfreezing)."""
        for name in [name for name, p in self._frozen.items() if p.requires_grad]:
            del self._frozen[name], self._before[name]
            try:
                _check_precision(self._embeddings.parameters, self._allow_half)
            except ValueError as error:
                if not self.num_steps:
                    raise
                self.note(str(error))  # an error would end somebody's training

    def _with_end(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure of one step, wrapped: when it first ends, the step is noted."""
        has_ended = False

        def ending() -> Any:
            nonlocal has_ended
            loss = closure()
            if has_ended:  # LBFGS: several passes and updates in what it calls a step
                self._recorder.problem = self._updates.problem = CALLED_AGAIN
            else:
                self._end_step(optimizer)
            has_ended = True
            return loss

        return ending

    def _end_step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Note a part of a step, when its gradients are as the update will find them.

        A step is an update after passes that no update has used yet: of several optimizers that update in turn after
        the same passes (the backbone's and the head's, say) each has a part in one step.
        """
        # A GradScaler tells a fused optimizer to skip a step, or to divide the gradients itself.
        found_inf = getattr(optimizer, "found_inf", None)
        scale = getattr(optimizer, "grad_scale", None)
        if found_inf is not None and bool(found_inf):
            self._watch.drop()
            self._num_skipped += 1
            return
        groups = [] if optimizer is None else optimizer.param_groups
        if optimizer is not None and all(p.grad is None for group in groups for p in group["params"]):
            return  # as before a scheduler that wants to see one: it updates nothing
        tokens, num_passes = _gather(self._watch.take(), self._recorder.names)
        is_first = num_passes > 0 or not self._stepping or any(other is optimizer for other in self._stepping)
        if is_first:
            if self.num_steps == 1 and self._writer is not None:  # every optimizer has had its turn
                summary = describe_training(self._model, self._updates.optimizers or None)
                show(f"{self.path.name}, by the optimizers that have stepped: {summary}", is_result=False)
            self._stepping = []
            self._recorder.record_passes(tokens, num_passes, 1.0 if scale is None else float(scale))
        self._stepping.append(optimizer)
        self._live.before_update(self.num_steps, groups)
        self._updates.note_step(optimizer, self._recorder, is_first=is_first)

    def _problems(self) -> list[str]:
        """What could not be recorded, and why."""
        recorder = self._recorder
        problems = [
            *self._notes,
            self._watch.problem,
            recorder.problem,
            *recorder.left_out.values(),
            self._updates.problem,
        ]
        return list(dict.fromkeys(problem for problem in problems if problem))

    def _regime_label(self, frozen: set[int]) -> str | None:
        """What of the backbone was frozen from start to end, in the words of ``--freeze``; None under adapters, which
        train beside what is frozen. ``frozen``: the identities of these parameters."""
        is_frozen: dict[str, bool] = {}
        try:
            for name, parameter in self._embeddings.backbone.named_parameters():
                component = component_of(self._embeddings.family, name)
                is_frozen[component] = is_frozen.get(component, True) and id(parameter) in frozen
        except ValueError:  # peft has put in what no model of the family has
            return None
        is_adapted = has_adapters(self._model) or bool(self._embeddings.adapted)
        return None if is_adapted else regime_name([name for name, value in is_frozen.items() if value], is_frozen)

    def _manifest(self, after: Mapping[str, str]) -> dict[str, Any]:
        """What the manifest says of the recording; ``after``: digests at the end of what was frozen at the start."""
        backbone, family = self._embeddings.backbone, self._embeddings.family
        moved = self._changed_though_frozen(after)
        frozen = {id(p) for name, p in self._frozen.items() if name not in moved}
        embeddings_by_name = self._embeddings.parameters.items()
        embeddings = [
            name for name, p in embeddings_by_name if id(p) in frozen and name not in self._embeddings.adapted
        ]
        parameters = list(self._model.parameters())
        return {
            "recorded": True,
            "regime": {"label": self._regime_label(frozen), "frozen_components": sorted(embeddings)},
            "frozen": {
                "is_bit_identical": not moved,
                "parameters": {n: {"before": digest, "after": after[n]} for n, digest in self._before.items()},
            },
            "model": {
                "name": _name_of(self._model, backbone),
                "family": family.name,
                "tied": self._tied,
                "adapted": list(self._embeddings.adapted),
                "num_parameters": sum(p.numel() for p in parameters),
                "num_trainable": sum(p.numel() for p in parameters if p.requires_grad),
            },
            "task": {
                "name": self._facts.get("task"),
                "kind": None,
                "score": self.headline,
                "reported_split": next((split for _, _, split in self._scores), None),
            },
            "begins_after_steps": self._facts.get("resumed_after_steps") or self._updates.steps_before,
            "problems": self._problems(),
            "step_sizes": as_columns(self._live.sizes),
            "devices": parameters[0].device.type,
            "num_processes": _world_size(),
            "position_offset": self._embeddings.position_offset,
            "layer_norm_eps": layer_norm_eps(backbone, family),
            "versions": read_versions(),
            "git_commit": read_git_commit(),
        }


def _moment_of(snapshot: Snapshot) -> tuple[float, int]:
    """By which snapshots are in order."""
    return snapshot.epoch, snapshot.step


def _score_table(scores: Mapping[tuple[float, int, str], Mapping[str, float]]) -> pd.DataFrame:
    """scores.csv: a line per epoch, step and split, in the order in which they came."""
    records = [dict(zip(("epoch", "step", "split"), key, strict=True)) | dict(values) for key, values in scores.items()]
    table = pd.DataFrame(records).sort_values(["epoch", "step"], kind="stable")
    leading = ["epoch", "step", "split", "num_examples"]
    score_names = [name for name in table if name not in leading]
    return table.reindex(columns=[*leading, *score_names, "train_loss"])


def _fingerprint(parameters: Mapping[str, nn.Parameter]) -> dict[str, str]:
    return {name: sha256_of_array(to_array(parameter)) for name, parameter in parameters.items()}


def _check_precision(parameters: Mapping[str, nn.Parameter], allow_half: bool) -> None:
    """ValueError where a parameter would be trained in half precision, unless that is allowed."""
    halved = [name for name, p in parameters.items() if p.requires_grad and p.dtype in (torch.float16, torch.bfloat16)]
    if halved and not allow_half:
        dtype = str(parameters[halved[0]].dtype).removeprefix("torch.")
        raise ValueError(
            f"{first_few(halved)} would be trained in {dtype}, where most small updates are rounded away: load the "
            "model with dtype=torch.float32 (and compute in half precision by autocast), or pass allow_half=True"
        )


def _tied_parameters(model: nn.Module, embeddings: Embeddings) -> list[str]:
    """The embedding parameters that another module uses too (tied weights), save modules that look rows up in them."""
    other_lookups = {id(module) for module in embeddings.lookups[1:]}  # T5's second: its rows are counted as well
    modules = (module for module in model.modules() if id(module) not in other_lookups)
    num_uses = Counter(id(p) for module in modules for p in module.parameters(recurse=False))
    return [name for name, p in embeddings.parameters.items() if num_uses[id(p)] > 1]


def _name_of(model: nn.Module, backbone: nn.Module) -> str:
    """The checkpoint's name as transformers knows it, of a folder the last part only; else the class."""
    name = str(getattr(getattr(backbone, "config", None), "_name_or_path", "") or "")
    is_folder = Path(name).is_absolute() or Path(name).is_dir()
    if is_folder and Path(name).parent.name == EMBEDDED_PACKAGE:
        return EMBEDDED
    return (Path(name).name if is_folder else name) or type(model).__name__


def _rank() -> int:
    return torch.distributed.get_rank() if _world_size() > 1 else 0


def _world_size() -> int:
    is_on = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if is_on else 1


def _barrier() -> None:
    if _world_size() > 1:
        torch.distributed.barrier()


def _gather(passes: list[Rows], names: Sequence[str]) -> tuple[Rows, int]:
    """The rows of the passes of every process, and the number of these passes; one collective per optimizer step.

    Those of a single process stay on the GPU where they are there.
    """
    on_device = [rows for rows in passes if isinstance(rows, torch.Tensor)]
    if _world_size() == 1 and on_device and len(on_device) == len(passes):
        return torch.cat(on_device, dim=1), len(passes)
    on_host = [rows_on_host(rows.cpu().numpy(), names) if isinstance(rows, torch.Tensor) else rows for rows in passes]
    rows_here = {name: np.concatenate([np.empty(0, np.int64), *(rows[name] for rows in on_host)]) for name in names}
    if _world_size() == 1:
        return rows_here, len(passes)
    gathered: list[Any] = [None] * _world_size()
    torch.distributed.all_gather_object(gathered, (rows_here, len(passes)))
    return {name: np.concatenate([rows[name] for rows, _ in gathered]) for name in names}, sum(
        num_passes for _, num_passes in gathered
    )
