"""``toolkit.record``: a model in any training loop, recorded as a run directory."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from toolkit.models.regimes import Embeddings, find_parameter, layer_norm_eps, locate_embeddings
from toolkit.snapshots.files import sha256_of_array
from toolkit.snapshots.logs import NOT_REPLAYED, OptimizerLog
from toolkit.snapshots.run_writer import RunWriter, facts_of, read_git_commit, read_versions
from toolkit.snapshots.snapshot import Vocabulary, check_word_rows, read_vocabulary, to_array
from toolkit.snapshots.store import Run, open_run
from toolkit.training.accelerators import start_together
from toolkit.training.live_drift import LiveDrift, as_columns, drift_and_norms
from toolkit.training.step_recorder import IS_OUTPUT_TOO, ExposureWatch, RowsByTable, uncompiled

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
        if parameter.is_meta:
            raise ValueError(
                f"{name} is on the meta device and has no values yet: load the weights, then call record()"
            )
        if parameter.ndim != (1 if name.startswith("LayerNorm") else 2):
            raise ValueError(
                f"{name} has the shape {tuple(parameter.shape)} here: this process holds only a flat part of it "
                "(FSDP1, DeepSpeed ZeRO-3): use FSDP2 (torch.distributed.fsdp.fully_shard; fsdp_version 2 in "
                "Accelerate and Trainer)"
            )


def check_same(backbone: nn.Module, names: Mapping[str, str], parameters: Mapping[str, nn.Parameter]) -> None:
    """ValueError where others stand in the places of the parameters that are recorded; ``names``: canonical to own.

    Not of DTensors: during a step FSDP2 itself puts others there.
    """
    for name, parameter in parameters.items():
        found = find_parameter(backbone, names[name])
        is_same = found is not None and found.parameter is parameter
        if not is_same and not hasattr(parameter, "full_tensor"):
            raise ValueError(
                f"{name} was replaced after record(), by fully_shard, FSDP, accelerator.prepare or a wrapper of the "
                "table: call record() after that"
            )


def shares_batches(model: nn.Module, num_processes: int) -> bool:
    """Whether some processes may be given one batch: what is sharded is not FSDP2's alone."""
    is_fsdp = any(hasattr(module, "reshard") for module in model.modules())
    sharded: list[Any] = [p for p in model.parameters() if hasattr(p, "full_tensor")]
    return num_processes > 1 and any(
        not is_fsdp
        or p.device_mesh.size() != num_processes
        or sum(not placement.is_replicate() for placement in p.placements) > 1  # HSDP replicates in one of two
        for p in sharded
    )


class UpdateLog:
    """The hyperparameters and learning rates of the optimizer that updates the embedding parameters."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._optimizer: torch.optim.Optimizer | None = None
        self._first: dict[str, Any] | None = None
        self._rates: list[float] = []
        self.problem: str | None = None

    @property
    def num_steps(self) -> int:
        return len(self._rates)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Algorithm and weight decay by parameter at the first step; of neither anything before it."""
        return self._first or {"algorithm": "", "weight_decay": {}}

    def concerns(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
        """Whether a step of this optimizer is a step of the run: the first one that updates what is of interest.

        One that updates embedding parameters beside it is a problem: the log would call frozen what it moves.
        """
        if self._optimizer is None:
            trainable = [p for p in self._parameters.values() if p.requires_grad]
            wanted = {id(p) for p in trainable or model.parameters()}
            own = {id(p) for group in optimizer.param_groups for p in group["params"]}
            self._optimizer = None if own.isdisjoint(wanted) else optimizer
        if self._optimizer is not None and optimizer is not self._optimizer:
            self._note_another(optimizer, self._optimizer)
        return optimizer is self._optimizer

    def _note_another(self, optimizer: torch.optim.Optimizer, followed: torch.optim.Optimizer) -> None:
        """Note a step of another optimizer; a wrapper such as SAM shares its groups with the one that it wraps."""
        shared = {id(group) for group in followed.param_groups}
        own = {id(p) for group in optimizer.param_groups if id(group) not in shared for p in group["params"]}
        names = [name for name, p in self._parameters.items() if p.requires_grad and id(p) in own]
        if names:
            self.problem = (
                f"{', '.join(names)}: held by another optimizer than the one logged, which steps too: {NOT_REPLAYED}"
            )

    def note_moved(self, moved: Iterable[str]) -> None:
        """Note parameters that changed although the logged optimizer does not hold them: by no optimizer, as it seems.

        One that is trainable, in no optimizer and never changes is frozen, as the log has it.
        """
        held = self._first["weight_decay"] if self._first else {}
        names = [name for name in moved if name not in held]
        if names and self.problem is None:
            self.problem = f"{', '.join(names)}: changed, but not by the optimizer that was logged: {NOT_REPLAYED}"

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Note one step of an optimizer, before it."""
        groups = {
            name: group
            for name, parameter in self._parameters.items()
            for group in optimizer.param_groups
            if any(parameter is p for p in group["params"]) and parameter.requires_grad
        }
        rates = {_number(group["lr"]) for group in groups.values()}
        self._rates.append(rates.pop() if rates else float("nan"))
        if rates:
            self.problem = f"the embedding parameters have different learning rates: {NOT_REPLAYED}"
        settings = next(iter(groups.values()), optimizer.defaults)
        betas = settings.get("betas")
        if self._first is None and (taken := _steps_taken(optimizer, self._parameters)):
            self.problem = (
                f"the optimizer had taken {taken} steps before recording began, whose moments are not known: "
                f"{NOT_REPLAYED}"
            )
        first = {
            "algorithm": _algorithm(optimizer, list(groups.values()) or [optimizer.defaults]),
            "is_fused": any(bool(group.get("fused")) for group in groups.values()),
            "betas": tuple(map(_number, betas if isinstance(betas, tuple | list) else (None, None))),
            "eps": _number(settings.get("eps")),
            "weight_decay": {name: _number(group.get("weight_decay", 0.0)) for name, group in groups.items()},
        }
        # As text, in which an undefined number equals itself.
        if self._first is not None and repr(first) != repr(self._first):
            self.problem = f"the optimizer, its weight decay or what it updates changed during training: {NOT_REPLAYED}"
        self._first = self._first or first

    def optimizer_log(self, dtype: torch.dtype) -> OptimizerLog | None:
        """The log of the steps so far; None without steps, or when one log cannot describe them."""
        if self._first is None or self.problem:
            return None
        rates = np.array(self._rates, dtype=np.float64)
        none = np.full(len(rates), np.nan)
        precision = "no" if dtype == torch.float32 else str(dtype).removeprefix("torch.")
        ones = np.ones(len(rates))  # the recorded norms are those after clipping
        return OptimizerLog(
            **self._first, learning_rates=rates, head_learning_rates=none, clipping_factors=ones, precision=precision
        )


def _number(value: Any) -> float:
    """A number, or a tensor of one, as a float; NaN for anything else that an optimizer may keep there."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _steps_taken(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> int:
    """Steps that the optimizer's state counts for any of the parameters: it may have been loaded, or used before."""
    steps = [optimizer.state[p].get("step", 0) for p in parameters.values() if p in optimizer.state]
    return max((int(_number(step)) for step in steps), default=0)


def _algorithm(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> str:
    """``torch.optim.AdamW`` or ``torch.optim.SGD`` for exactly these with the update that is replayed, another text for
    anything else: SGD with momentum, or with decay, which it adds to the gradient.
    """
    kind = type(optimizer)
    name = f"{'torch.optim' if kind.__module__.startswith('torch.optim.') else kind.__module__}.{kind.__name__}"
    keys = ("momentum", "weight_decay", "maximize") if kind is torch.optim.SGD else ("amsgrad", "maximize")
    variants = [key for key in keys if any(group.get(key, optimizer.defaults.get(key)) for group in groups)]
    return f"{name} ({', '.join(variants)})" if variants else name


NUM_NAMES_SHOWN = 3
CALLED_AGAIN = (
    "the optimizer called its closure more than once in a step: which rows a step used, and with what gradient, is "
    "not known"
)
NO_STEP_SEEN = (
    "the embedding parameters changed, but no optimizer step was seen (of an optimizer that is no "
    "torch.optim.Optimizer none is): exposure is not known"
)


def named_folder(run_dir: str | Path) -> Path:
    """Where a run goes; ValueError for an empty text, such as of a variable that is not set: it would mean ``.``."""
    if run_dir == "":
        raise ValueError("run_dir must be a name or path; got ''")
    return Path(run_dir)


def check_tokens(tokens: Sequence[Any]) -> list[str]:
    """``added_tokens`` as a list of texts, of an AddedToken its own; ValueError for what is no list.

    Of one text the letters would be taken for tokens.
    """
    if isinstance(tokens, str) or not isinstance(tokens, Iterable):
        raise ValueError(f"added_tokens must be a list of tokens; got {tokens!r}")
    return [getattr(token, "content", token) for token in tokens]


def record(
    model: nn.Module,
    run_dir: str | Path,
    *,
    tokenizer: Any = None,
    added_tokens: Sequence[str] = (),
    allow_half: bool = False,
    overwrite: bool = False,
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
    facts
        Written into config.json as they are.

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
    Exposure is taken from the forward passes in training mode, gradient norms (as the optimizer gets them) and learning
    rates from the optimizer that updates the embedding parameters, whichever it is. With several processes each of them
    calls everything, after DDP or FSDP2 has the model (a torch.compile may come later); rows are those of all
    processes. A model that tensor parallelism shares out has no exposure.
    """
    return Recording(model, named_folder(run_dir), tokenizer, added_tokens, allow_half, overwrite, dict(facts or {}))


def _warn_of_old_rows(name: str, vocabulary: Vocabulary, tokenizer: Any) -> None:
    """Say so where tokens that are called added have rows of the tokenizer's own: ``add_tokens`` passes by these."""
    old = [row for row in sorted(vocabulary.added_rows) if row < getattr(tokenizer, "vocab_size", 0)]
    if old:
        shown = _some([repr(vocabulary.tokens[row]) for row in old])
        warnings.warn(
            f"{name}: added_tokens names {shown}, in the vocabulary that the tokenizer came with: add_tokens gives "
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
    ) -> None:
        self.path = path
        put_back_shards(model)
        self._model, self._embeddings = model, locate_embeddings(model)
        check_whole(self._embeddings.parameters)
        self._allow_half = allow_half
        _check_precision(self._embeddings.parameters, allow_half)
        self._frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        self._before = _fingerprint(self._frozen)
        num_rows, vocabulary = len(self._embeddings.parameters["word_embeddings"]), None
        added = check_tokens(added_tokens)
        if tokenizer is not None:
            check_word_rows(_name_of(model, self._embeddings.backbone), len(tokenizer), num_rows)
            vocabulary = read_vocabulary(tokenizer, num_rows, added)
        elif added:
            raise ValueError("added_tokens needs the tokenizer, which says where their rows are: pass it too")
        self._writer: RunWriter | None
        self._writer, _ = start_together(path, overwrite=overwrite, is_main=_rank() == 0, is_recorded=True)
        if self._writer is not None:
            eps = layer_norm_eps(self._embeddings.backbone, self._embeddings.family)
            self._writer.facts = facts_of(self._embeddings.position_offset, eps)
            self._writer.write_recorded_config({"model": _name_of(model, self._embeddings.backbone), **facts})
            if vocabulary is not None:
                self._writer.write_vocabulary(vocabulary)
                _warn_of_old_rows(path.name, vocabulary, tokenizer)
        shared = _shared(model, self._embeddings)
        adapted = self._embeddings.adapted
        self._notes = [f"{name} {IS_OUTPUT_TOO}" for name in shared] + [f"{name} {IS_ADAPTED}" for name in adapted]
        self._watch = ExposureWatch(self._embeddings, {*shared, *adapted})
        if shares_batches(model, _world_size()):
            self._watch.problem = SHARED_BATCH
        self._log = UpdateLog(dict(self._embeddings.parameters))
        self._log.problem = self._embeddings.why_not_replayed or None
        # What an adapter changes is no parameter: of the one beneath it nothing moves.
        own = {name: p for name, p in self._embeddings.parameters.items() if name not in adapted}
        self._live = LiveDrift(own, path.name)
        self._drift: dict[str, float] = {}
        self._num_other = 0
        self._handle = register_optimizer_step_pre_hook(self._on_step)
        self._last: tuple[float, int] | None = None
        self._is_finished = False

    @property
    def num_steps(self) -> int:
        """Optimizer steps seen so far."""
        return self._log.num_steps

    @property
    def live(self) -> dict[str, float]:
        """Numbers for a tracker, by name: at the last snapshot ``norm/<parameter>``, ‖E‖, and ``drift/<parameter>``,
        ‖E - E⁰‖ / ‖E⁰‖; of the last step whose number is a power of two ``update_to_weight/<parameter>`` (norms of the
        update and of the weights, of the rows with a gradient) and ``lost_to_rounding/<parameter>`` (the share of their
        values with a gradient that the update left as they were). Empty in all processes but the first."""
        return {**self._drift, **self._live.values} if self._writer is not None else {}

    def note(self, problem: str) -> None:
        """Add a line to the manifest's problems."""
        self._notes.append(problem)

    def snapshot(self, *, epoch: float, step: int | None = None) -> None:
        """Write the embedding parameters as they are now, and what is known of the steps so far.

        ``epoch`` is a whole number at the end of an epoch (0 before training) and a fraction between two. ``step`` is
        the number of optimizer steps that were seen, and need not be given. ValueError for another number, when
        ``epoch`` does not come after the last one, and when the first is not 0.
        """
        step = self.num_steps if step is None else step
        if self._last is not None and (epoch <= self._last[0] or step < self._last[1]):
            raise ValueError(f"snapshots come in order: epoch {epoch:g}, step {step} after {self._last}")
        if step != self.num_steps:
            raise ValueError(
                f"step {step} was given, but {self.num_steps} optimizer steps of the embedding parameters were seen: "
                "leave step= out to take these (fewer are seen where record() came after some, where a GradScaler "
                "skipped some, and none of an optimizer that is not a torch.optim.Optimizer)"
            )
        if self._last is None and epoch != 0:
            raise ValueError(f"the first snapshot is of epoch {epoch:g}: call snapshot(epoch=0) before training")
        put_back_shards(self._model)
        self._check_same()
        self._live.after_update()
        tensors = self._embeddings.values()  # may be a collective
        self._last = (epoch, step)
        if self._writer is not None:
            self._writer.write_snapshot(epoch, step, tensors, is_epoch_end=float(epoch).is_integer())
            self._log.note_moved(self._writer.moved_parameters())
            self._write_logs(self._writer)
            self._look_at(tensors, self._writer, is_epoch_end=float(epoch).is_integer())

    def _look_at(self, tensors: Mapping[str, Any], writer: RunWriter, *, is_epoch_end: bool) -> None:
        """Drift since the first snapshot, and warnings of what trains otherwise than it seems to."""
        run = Run(self.path)
        reference = run.open_snapshot(run.snapshot_names()[0]).tensors
        self._drift = drift_and_norms(reference, tensors)
        log = self._log.settings
        moved = writer.moved_parameters()
        self._live.warn_of_stillness(moved)
        if is_epoch_end and self.num_steps > 1:  # the rate of a first step may be 0, as warm-up has it
            self._live.warn_of_idle_adapters([name for name in self._embeddings.adapted if name not in moved])
        self._live.warn_of_l2(log["algorithm"], log["weight_decay"], self._watch.exposure(), reference, tensors)

    def _write_logs(self, writer: RunWriter) -> None:
        """Exposure and optimizer log so far; what turned out not to be known is taken away again."""
        writer.write_exposure(None if self._saw_no_step(writer) else self._watch.exposure())
        writer.write_optimizer_log(self._log.optimizer_log(next(iter(self._embeddings.parameters.values())).dtype))

    def _saw_no_step(self, writer: RunWriter) -> bool:
        """Whether something moved that no optimizer is known to have moved: no row is "never seen" then."""
        return self.num_steps == 0 and bool(writer.moved_parameters())

    def finish(self) -> Run:
        """Write the manifest, take the hooks off the model, and return the run.

        RuntimeError when a parameter has changed that was frozen from the start to the end.
        """
        if self._is_finished:
            return open_run(self.path)
        self._is_finished = True
        self._unhook()
        try:
            put_back_shards(self._model)
            after, held = _fingerprint(self._frozen), {id(p) for p in self._model.parameters()}
            moved = [n for n, p in self._frozen.items() if after[n] != self._before[n] or id(p) not in held]
            if moved:
                raise RuntimeError(f"frozen parameters have changed: {_some(moved)}")
            if self._last is not None and (left := self.num_steps - self._last[1]):
                last = f"epoch {self._last[0]:g}, step {self._last[1]}"
                self.note(
                    f"no snapshot covers the last {left} optimizer steps (the last is of {last}): take one at the end"
                )
            if self._writer is not None:
                if self._saw_no_step(self._writer):
                    self.note(NO_STEP_SEEN)
                self._write_logs(self._writer)
                for problem in self._problems():
                    warnings.warn(f"{self.path.name}: {problem}", stacklevel=2)
                self._writer.finish(self._manifest())
        finally:
            self.close()
        _barrier()
        return open_run(self.path)

    def close(self) -> None:
        """Take the hooks off the model and let others write; without :meth:`finish` the run stays unfinished."""
        self._unhook()
        if self._writer is not None:
            self._writer.release()

    def _unhook(self) -> None:
        self._watch.close()
        self._handle.remove()

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
        """Before any optimizer's update: one more step, when it is the one that trains this model.

        The passes of ``optimizer.step(closure)``, as Lightning calls it, run within the step: then the closure's end
        is the moment before the update, and the optimizer gets a closure that says so.
        """
        self._live.after_update()
        self._forget_unfrozen()
        self._check_same()
        if not self._log.concerns(optimizer, self._model):
            self._note_other(optimizer)
            return None
        if self._last is None:
            self.snapshot(epoch=0)  # the last moment at which it can be taken
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if not callable(closure):
            self._end_step(optimizer)
            return None
        told = self._with_end(optimizer, closure)
        return ((args[0], told, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": told})

    def _note_other(self, optimizer: torch.optim.Optimizer) -> None:
        """A step of an optimizer that holds no embedding parameter; of this model's it may be the only one."""
        self._num_other += 1
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not self.num_steps and any(id(p) in own for p in self._model.parameters()):
            self._live.before_update(self._num_other, optimizer.param_groups)

    def _check_same(self) -> None:
        """ValueError where the model no longer has the parameters that are recorded."""
        names = self._embeddings.family.embedding_parameters
        check_same(self._embeddings.backbone, names, self._embeddings.parameters)
        check_whole(self._embeddings.parameters)

    def _forget_unfrozen(self) -> None:
        """Parameters that a step may move are frozen no more, and nothing is proven of them (gradual unfreezing)."""
        for name in [name for name, p in self._frozen.items() if p.requires_grad]:
            del self._frozen[name], self._before[name]
            _check_precision(self._embeddings.parameters, self._allow_half)

    def _with_end(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure of one step, at whose first end the step is noted."""
        has_ended = False

        def ending() -> Any:
            nonlocal has_ended
            loss = closure()
            if has_ended:  # LBFGS: several passes and updates in what it calls a step
                self._watch.problem = self._log.problem = CALLED_AGAIN
            else:
                self._end_step(optimizer)
            has_ended = True
            return loss

        return ending

    def _end_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note one step, when its gradients are as the update will find them."""
        # A GradScaler tells a fused optimizer to skip a step, or to divide the gradients itself.
        skipped, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
        if skipped is not None and bool(skipped):
            self._watch.drop_step()
            return
        self._live.before_update(self.num_steps + 1, optimizer.param_groups)
        self._watch.end_step(_gather, 1.0 if scale is None else float(scale))
        self._log.add(optimizer)

    def _problems(self) -> list[str]:
        """What could not be recorded, and why."""
        found = [*self._notes, self._watch.problem, *self._watch.left_out.values(), self._log.problem]
        return list(dict.fromkeys(problem for problem in found if problem))

    def _manifest(self) -> dict[str, Any]:
        backbone, family = self._embeddings.backbone, self._embeddings.family
        frozen = {id(p) for p in self._frozen.values()}
        parts = self._embeddings.parameters.items()
        embeddings = [name for name, p in parts if id(p) in frozen and name not in self._embeddings.adapted]
        parameters = list(self._model.parameters())
        return {
            "recorded": True,
            "regime": {"label": None, "frozen_components": sorted(embeddings)},
            "frozen": {
                "is_bit_identical": True,
                "parameters": {name: {"before": digest, "after": digest} for name, digest in self._before.items()},
            },
            "model": {
                "name": _name_of(self._model, backbone),
                "family": family.name,
                "num_parameters": sum(p.numel() for p in parameters),
                "num_trainable": sum(p.numel() for p in parameters if p.requires_grad),
            },
            "problems": self._problems(),
            "step_sizes": as_columns(self._live.sizes),
            "devices": parameters[0].device.type,
            "num_processes": _world_size(),
            "position_offset": self._embeddings.position_offset,
            "layer_norm_eps": layer_norm_eps(backbone, family),
            "versions": read_versions(),
            "git_commit": read_git_commit(),
        }


def _fingerprint(parameters: Mapping[str, nn.Parameter]) -> dict[str, str]:
    return {name: sha256_of_array(to_array(parameter)) for name, parameter in parameters.items()}


def _check_precision(parameters: Mapping[str, nn.Parameter], allow_half: bool) -> None:
    half = [name for name, p in parameters.items() if p.requires_grad and p.dtype in (torch.float16, torch.bfloat16)]
    if half and not allow_half:
        dtype = str(parameters[half[0]].dtype).removeprefix("torch.")
        raise ValueError(
            f"{_some(half)} would be trained in {dtype}, where most small updates are rounded away: load the model "
            "with dtype=torch.float32 (and compute in half precision by autocast), or pass allow_half=True"
        )


def _shared(model: nn.Module, embeddings: Embeddings) -> list[str]:
    """The embedding parameters that the model uses under a second name as well (tied weights), but to look rows up."""
    again = {id(module) for module in embeddings.lookups[1:]}  # whose rows are counted too
    modules = (m for _, m in model.named_modules(remove_duplicate=False) if id(m) not in again)
    uses = Counter(id(p) for module in modules for p in module.parameters(recurse=False))
    return [name for name, p in embeddings.parameters.items() if uses[id(p)] > 1]


def _some(names: list[str]) -> str:
    more = len(names) - NUM_NAMES_SHOWN
    return ", ".join(names[:NUM_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _name_of(model: nn.Module, backbone: nn.Module) -> str:
    """The checkpoint's name as transformers knows it, of a folder the last part only; else the class."""
    name = str(getattr(getattr(backbone, "config", None), "_name_or_path", "") or "")
    is_folder = Path(name).is_absolute() or Path(name).is_dir()
    return (Path(name).name if is_folder else name) or type(model).__name__


def _rank() -> int:
    return torch.distributed.get_rank() if _world_size() > 1 else 0


def _world_size() -> int:
    is_on = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if is_on else 1


def _barrier() -> None:
    if _world_size() > 1:
        torch.distributed.barrier()


def _gather(rows: RowsByTable) -> list[RowsByTable]:
    """The rows of every process; one collective per optimizer step."""
    if _world_size() == 1:
        return [rows]
    parts: list[Any] = [None] * _world_size()
    torch.distributed.all_gather_object(parts, rows)
    return parts
