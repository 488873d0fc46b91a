"""Optimizer steps of one CPU process: what `toolkit.training.loop.Stepper` does, in less time.

Where the plain step's time goes, and what is saved of it: gradients, moments and updates of word rows that no batch
exposes, casts of weights and states, gradients in fresh memory, hundreds of short loops; and in `fast_layer` dropout's
random bits, passes over memory within a layer, states of the top layer that the pooling does not read.
experiments/benchmarks/NOTES.md has what each is worth.
"""

import contextlib
import mmap
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from toolkit.config import RunConfig
from toolkit.data.batches import EncodedTask, make_batch, parts_of_batch
from toolkit.models.classifier import Classifier
from toolkit.models.heads import MaskedHead, example_losses
from toolkit.models.new_tokens import HeldTable
from toolkit.models.regimes import BACKBONE, Embeddings, has_adapters, locate_embeddings
from toolkit.training.accelerators import is_fast
from toolkit.training.fast_layer import (
    NAME,
    fuse_layers,
    narrow_top,
    pack_dropout,
    part_layers,
    unpack_dropout,
    use_attention,
)
from toolkit.training.live_drift import LiveDrift
from toolkit.training.optimizer import (
    BETAS,
    EPS,
    ParameterGroup,
    StepLog,
    check_finite,
    clipping_factor,
    embedding_rate,
    group_parameters,
    is_fused,
    learning_rate_factors,
)
from toolkit.training.recorder import Recorder

NORMS = (nn.LayerNorm, nn.RMSNorm)
SERVED = ("BERT", "RoBERTa", "DistilBERT", "ELECTRA", "ALBERT", "DeBERTa-v2", "ModernBERT")
"""The families that tests compare with the plain step, layer by layer; others take that."""


def serves(accelerator: Any, model: Classifier) -> bool:
    """Whether what is here stands in for a model: of SERVED, in one process on a CPU, which reads the last layer.

    What stands in for layers hands no states of theirs on, and knows of no adapter in them, nor of a masked-LM head.
    """
    is_served = locate_embeddings(model.backbone).family.name in SERVED and not has_adapters(model.backbone)
    # Of a masked-LM head all word rows get a gradient, and not only those of the batch.
    return is_fast(accelerator) and is_served and not model.asked and not isinstance(model.head, MaskedHead)


def halved_names(embeddings: Embeddings) -> tuple[str, ...]:
    """Names of the backbone's parameters that are computed with in half precision.

    All but those of the embedding module, whose rows are what we measure, and of normalisations, whose kernels take
    fp32 weights beside half-precision states.
    """
    kept = {id(p) for lookup in embeddings.lookups for p in lookup.parameters()}
    kept |= {id(p) for m in embeddings.backbone.modules() if isinstance(m, NORMS) for p in m.parameters()}
    return tuple(name for name, p in embeddings.backbone.named_parameters() if id(p) not in kept)


class HalfBackbone:
    """A backbone with half-precision copies of its weights, which autocast would make anew in every step.

    ``weights``: name to copy; those that require gradients get them in half precision. The embedding module runs in
    fp32, and its output is cast. Between `install` and `settle` the modules hold the copies instead of their own
    parameters; calls may come from several threads.
    """

    def __init__(self, embeddings: Embeddings, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        self._backbone, (self._module,) = embeddings.backbone, embeddings.lookups
        self._weights, self._dtype = dict(weights), dtype
        self._own: dict[str, nn.Parameter] = {}
        self._handle: Any = None

    def install(self) -> None:
        """Put the copies in the parameters' places."""
        self._handle = self._module.register_forward_hook(self._cast)
        for name, weight in self._weights.items():
            owner, _, leaf = name.rpartition(".")
            places: Any = self._backbone.get_submodule(owner)._parameters
            self._own[name], places[leaf] = places[leaf], weight

    def settle(self) -> None:
        """Put the parameters back."""
        for name, parameter in self._own.items():
            owner, _, leaf = name.rpartition(".")
            self._backbone.get_submodule(owner)._parameters[leaf] = parameter
        self._own.clear()
        if self._handle is not None:
            self._handle.remove()

    def __enter__(self) -> "HalfBackbone":
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.settle()

    def __call__(self, **batch: torch.Tensor) -> Any:
        """The backbone's own output, with states of the half-precision dtype."""
        with torch.autocast(next(iter(batch.values())).device.type, enabled=False):
            return self._backbone(**batch)

    def _cast(self, module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output.to(self._dtype)


CACHED_ROWS = 256
"""Decayed step after step while they are in a core's cache."""


class CompactWords:
    """The rows of a word table that some training data use, as a parameter of their own.

    A row that no batch exposes has no gradient: AdamW's moments of it stay 0 and its step is its decay alone. So only
    the used rows need gradients, moments and updates; the others are multiplied by the decay, exactly as AdamW does it.
    Between `install` and `settle` the module looks words up in the small table.
    """

    def __init__(self, module: nn.Embedding, rows: NDArray[np.int64]) -> None:
        """``rows``: distinct rows, which must hold every id that `module` is called with while installed."""
        self.module, self.table = module, module.weight
        self.rows = torch.from_numpy(np.unique(rows))
        is_other = torch.ones(len(self.table), dtype=torch.bool)
        is_other[self.rows] = False
        self.others = is_other.nonzero()[:, 0]
        self._place = torch.full((len(self.table),), -1)
        self._place[self.rows] = torch.arange(len(self.rows))
        self.parameter = nn.Parameter(self.table.detach()[self.rows])
        self.rest = self.table.detach()[self.others]
        self._decays: list[float] = []
        padding = module.padding_idx
        self._padding = None if padding is None or is_other[padding] else int(self._place[padding])

    def place_of(self, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Where rows of the whole table are in the small one; -1 for those that are not."""
        places: NDArray[np.int64] = self._place.numpy()[rows]
        return places

    def install(self) -> None:
        """Look words up in the small table."""
        module: Any = self.module
        module.weight = self.parameter
        module.forward = self._look_up

    def _look_up(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(self._place[ids], self.parameter, self._padding)

    def decay(self, amount: float) -> None:
        """One AdamW step of the rows that are not in use; ``amount``: learning rate times weight decay.

        It is done at the next `settle`: nobody looks at these rows before.
        """
        if amount:
            self._decays.append(1 - amount)

    @torch.no_grad()
    def settle(self) -> None:
        """Write all rows back into the whole table and look words up there again."""
        module: Any = self.module
        for rows in torch.split(self.rest, CACHED_ROWS):
            for factor in self._decays:
                rows.mul_(factor)  # one by one, as AdamW rounds
        self._decays.clear()
        self.table[self.rows] = self.parameter.detach()
        self.table[self.others] = self.rest
        if "forward" in vars(module):
            del module.forward
        module.weight = self.table


def allocate(number: int, dtype: torch.dtype) -> torch.Tensor:
    """(number,) zeros, in huge pages where the system has them: a step walks through all of it several times."""
    if not number:
        return torch.zeros(0, dtype=dtype)
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(number, dtype=dtype)
    # Private, not shared as by default: only such memory gets huge pages, and a forked process must not write to it.
    memory = mmap.mmap(-1, number * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype)


class FlatGroup:
    """The parameters of one optimizer group, end to end: values, gradients and half-precision copies.

    The same numbers as parameter by parameter, since AdamW works element by element (one that gets no gradient, which
    torch's AdamW would leave alone, decays here: no family has one); but nothing is allocated in a
    step, and a step is a few long loops instead of hundreds of short ones. The parameters' own ``data`` become views,
    until `release`.
    """

    def __init__(
        self, group: ParameterGroup, parameters: Mapping[str, nn.Parameter], halved: Collection[str], dtype: torch.dtype
    ) -> None:
        """``parameters`` holds every name of ``group``, fp32; ``halved`` names those to copy to ``dtype``."""
        names = sorted(group.names, key=lambda name: name not in halved)
        self._own = {name: parameters[name] for name in names}
        sizes = [p.numel() for p in self._own.values()]
        self.values = nn.Parameter(allocate(sum(sizes), torch.float32))
        self.values.grad = allocate(sum(sizes), torch.float32)
        self._half = allocate(sum(n for n, name in zip(sizes, names, strict=True) if name in halved), dtype)
        self.gradients: dict[str, torch.Tensor] = {}
        """Name to its gradient, a view."""
        self.copies: dict[str, torch.Tensor] = {}
        """Name of a halved parameter to its copy, a view and a leaf of the graph."""
        start = 0
        for (name, parameter), size in zip(self._own.items(), sizes, strict=True):
            part = slice(start, start + size)
            view = self.values.data[part].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            self.gradients[name] = self.values.grad[part].view(parameter.shape)
            if name in halved:
                self.copies[name] = self._half[part].view(parameter.shape).detach().requires_grad_()
            start += size
        self.refresh()

    @torch.no_grad()
    def collect(self, *, is_first: bool) -> torch.Tensor:
        """Take what the backward pass left (``is_first``: instead of what was there, else added to it).

        The sum of the gradients' squares comes back: each is in the cache now, which they are not all at once.
        """
        squares = torch.zeros(())
        for name, parameter in self._own.items():
            source, target = self.copies.get(name, parameter), self.gradients[name]
            if source.grad is None:
                target.zero_() if is_first else target
            elif is_first:
                target.copy_(source.grad)
            else:
                target.add_(source.grad)
            source.grad = None
            squares += torch.dot(target.view(-1), target.view(-1))
        return squares

    @torch.no_grad()
    def refresh(self) -> None:
        """Make the half-precision copies again, after an update."""
        self._half.copy_(self.values.data[: len(self._half)])

    def release(self) -> None:
        """Give every parameter memory of its own again."""
        for parameter in self._own.values():
            parameter.data = parameter.data.clone()


class FastStepper:
    """One optimizer step at a time over a whole batch, in one process on a CPU.

    Between `settle` and the next `take` the model is an ordinary one: whole tables, its own attention. `release`
    also gives the parameters memory of their own again.
    """

    def __init__(
        self,
        accelerator: Any,
        model: Classifier,
        data: EncodedTask,
        config: RunConfig,
        num_steps: int,
        recorder: Recorder,
    ) -> None:
        self.model, self.data, self.config, self.recorder = model, data, config, recorder
        self.factors = learning_rate_factors(num_steps, config.warmup_fraction)
        self.embeddings = locate_embeddings(model.backbone)
        self.words = self._compact_words()
        parameters = dict(model.named_parameters())
        word_table = BACKBONE + self.embeddings.family.embedding_parameters["word_embeddings"]
        if self.words is not None:
            parameters[word_table] = self.words.parameter
        dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float32
        halved = {} if dtype == torch.float32 else dict.fromkeys(BACKBONE + n for n in halved_names(self.embeddings))
        self.groups = group_parameters(model, config)
        self.flat = [FlatGroup(group, parameters, halved, dtype) for group in self.groups]
        copies = {name: copy for flat in self.flat for name, copy in flat.copies.items()}
        frozen = {name: parameters[name].detach().to(dtype) for name in halved if name not in copies}
        weights = {name.removeprefix(BACKBONE): weight for name, weight in (copies | frozen).items()}
        self.backbone = HalfBackbone(self.embeddings, weights, dtype)
        self.optimizer = self._build_optimizer()
        self.embedding_rate = embedding_rate(model, self.groups)
        own = [(group.rate, group.weight_decay) for group in self.groups if word_table in group.names]
        self.word_rate, self.word_decay = own[0] if own else (0.0, 0.0)
        self.gradients = {
            key: flat.gradients[BACKBONE + name]
            for key, name in self.embeddings.family.embedding_parameters.items()
            for flat in self.flat
            if BACKBONE + name in flat.gradients
        }
        small = {} if self.words is None else {"word_embeddings": self.words.parameter}
        self.live = LiveDrift({**recorder.tables, **small}, gradient_of=self.gradients.get)
        self._attention: str | None = None
        self._is_ready = False

    def _compact_words(self) -> CompactWords | None:
        if not self.embeddings.parameters["word_embeddings"].requires_grad:
            return None
        tokens = self.data.splits["train"].tokens
        module: Any = self.embeddings.backbone.get_input_embeddings()  # type: ignore[operator]
        if isinstance(module, HeldTable):  # which trains few rows as it is
            return None
        return CompactWords(module, np.append(np.unique(tokens), self.data.pad_id).astype(np.int64))

    def _build_optimizer(self) -> torch.optim.AdamW:
        """AdamW over the flat groups, its moments in memory like theirs."""
        optimizer = torch.optim.AdamW(
            [
                {"params": [flat.values], "lr": own.rate, "weight_decay": own.weight_decay, "peak": own.rate}
                for flat, own in zip(self.flat, self.groups, strict=True)
            ],
            betas=BETAS,
            eps=EPS,
            fused=is_fused(torch.device("cpu")),
        )
        for flat in self.flat:
            moments = {key: allocate(flat.values.numel(), torch.float32) for key in ("exp_avg", "exp_avg_sq")}
            optimizer.state[flat.values] = {"step": torch.zeros(()), **moments}
        return optimizer

    def take(self, indices: NDArray[np.int64], step: int) -> StepLog:
        """Backward passes over the parts of a batch, then one update; ``step`` counts from 0."""
        self._prepare()
        factor = float(self.factors[step])
        loss_sum, split = 0.0, self.data.splits["train"]
        num_rows = int(split.sizes_of(indices).sum())
        for k, (part, weight) in enumerate(parts_of_batch(indices, self.config.gradient_accumulation_steps)):
            losses = self._losses(part) * torch.from_numpy(np.repeat(weight, split.sizes_of(part)))
            (losses.sum() / num_rows).backward()  # type: ignore[no-untyped-call]
            loss_sum += float(losses.detach().sum())
            squares = [flat.collect(is_first=k == 0) for flat in self.flat]
        norm = self._clip(float(torch.stack(squares).sum().sqrt()), indices, factor, step)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        self.optimizer.step()
        if self.words is not None:
            self.words.decay(self.word_rate * factor * self.word_decay)
        for flat in self.flat:
            flat.refresh()
        self.recorder.step_sizes += self.live.after_update()
        return StepLog(step + 1, loss_sum / num_rows, self.config.learning_rate * factor, norm)

    def _losses(self, indices: NDArray[np.int64]) -> torch.Tensor:
        """(rows,) loss of each example, or word."""
        split = self.data.splits["train"]
        batch = make_batch(split, indices, self.data)
        assert split.labels is not None
        outputs = self.model.classify(*self.model.run(self.backbone, batch))
        return example_losses(self.data.task.kind, outputs, torch.from_numpy(split.labels[split.rows_of(indices)]))

    def _clip(self, norm: float, indices: NDArray[np.int64], factor: float, step: int) -> float:
        """Record the step and let the optimizer clip; NonFiniteLossError when the gradient is not finite."""
        config = self.config
        self.recorder.record_batch(indices, self._row_norms)
        self.live.before_update(step + 1)
        check_finite(norm, step)
        clipping = clipping_factor(norm, config.max_gradient_norm)
        # What a GradScaler would set: the fused kernel divides gradients by it, without a pass over them of its own.
        self.optimizer.grad_scale = torch.tensor(1 / clipping) if clipping < 1 else None  # type: ignore[attr-defined]
        self.recorder.record_rates(self.embedding_rate * factor, config.head_learning_rate * factor, clipping)
        return norm

    def _row_norms(self, name: str, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """(rows,) Euclidean norm of some rows of a table's gradient; NaN where it has none."""
        if name == "word_embeddings" and self.words is not None:
            rows = self.words.place_of(rows)
        return self.recorder.norms(name, self.gradients.get(name), rows)

    def _prepare(self) -> None:
        if not self._is_ready:
            self._is_ready = True  # first: what follows can be interrupted, and `settle` undoes any part of it
            self.model.train()
            pack_dropout(self.model.backbone)
            fuse_layers(self.embeddings.backbone)
            narrow_top(self.embeddings.backbone, self.model.pooling)
            self.backbone.install()
            if self.words is not None:
                self.words.install()
            self._attention = use_attention(self.embeddings.backbone, NAME)

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and moments of what is trained, group by group, and the word rows that no batch uses."""
        self.settle()  # decays what is to be decayed
        state = {} if self.words is None else {"rest": self.words.rest}
        for i, flat in enumerate(self.flat):
            state |= {f"{i}.values": flat.values.detach()}
            state |= {f"{i}.{key}": tensor for key, tensor in self.optimizer.state[flat.values].items()}
        return state

    @torch.no_grad()
    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up what :meth:`state` gave."""
        if self.words is not None:
            self.words.rest.copy_(state["rest"])
        for i, flat in enumerate(self.flat):
            flat.values.copy_(state[f"{i}.values"])
            for key, tensor in self.optimizer.state[flat.values].items():  # in its memory, which was made for speed
                tensor.copy_(state[f"{i}.{key}"])
            flat.refresh()
        self._prepare()  # and settled, the model is as it was
        self.settle()

    def settle(self) -> None:
        """Restore the ordinary model, with everything that was learned."""
        if self._is_ready:
            if self.words is not None:
                self.words.settle()
            self.backbone.settle()
            if self._attention is not None:
                use_attention(self.embeddings.backbone, self._attention)
            unpack_dropout(self.model.backbone)
            part_layers(self.embeddings.backbone)
            self._attention, self._is_ready = None, False

    def release(self) -> None:
        """Settle, and give the parameters memory of their own again: nothing may be trained here any more."""
        self.settle()
        for flat in self.flat:
            flat.release()
