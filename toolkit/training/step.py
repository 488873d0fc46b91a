"""One optimizer step at a time, on a CPU or a GPU, in one process or several."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from toolkit.config import RunConfig
from toolkit.data.batches import IS_WORD, EncodedTask, make_batch, parts_of_batch
from toolkit.families import TABLES
from toolkit.models.classifier import Classifier
from toolkit.models.heads import example_losses
from toolkit.models.regimes import BACKBONE, locate_embeddings
from toolkit.training.graphs import Blocks, Graphs, Inputs, padded_length, quick_attention, to_device
from toolkit.training.live_drift import LiveDrift
from toolkit.training.optimizer import (
    StepLog,
    build_optimizer,
    check_finite,
    clipping_factor,
    embedding_rate,
    group_parameters,
    learning_rate_factors,
)
from toolkit.training.shortcuts import leave_shortcuts, take_shortcuts
from toolkit.training.step_recorder import BatchRows, Recorder
from toolkit.training.weights import HALVED, CompactWords, FlatGroup, HalfWeights, halved_names, is_halved

MAY_CAPTURE = True
"""Whether steps on a GPU may be replayed from CUDA graphs."""
ANSWERS, WEIGHTS, ROWS = "answers", "weights", "rows of "
"""What a step's inputs hold beside a batch: labels, what the loss of each counts, and the rows whose norms are kept."""
BESIDE_BATCH = {ANSWERS, WEIGHTS, *(ROWS + name for name in TABLES)}
ROWS_MULTIPLE = 8
"""Of the examples in a batch that holds as many as fit a budget of tokens, on a GPU."""


class Stepper:
    """One optimizer step at a time over a global batch, whatever the number of processes and accumulation steps.

    Word rows that no batch uses, and in half precision all weights, are kept apart from the model while steps are
    taken: between `settle` and the next `take` the model is an ordinary one. `release` also gives the parameters memory
    of their own again. On a GPU no step waits for the one before: losses, norms and rows come back in blocks.
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
        self.accelerator, self.model, self.data, self.config, self.recorder = accelerator, model, data, config, recorder
        self.device: torch.device = accelerator.device
        self.report: Callable[[StepLog], None] = lambda log: None
        """Is given the log of each step when it is known, those of all steps in order."""
        self.factors = learning_rate_factors(num_steps, config.warmup_fraction)
        self.graphs: Graphs | None = None
        model.to(self.device)
        self.embeddings = locate_embeddings(model.backbone)
        names = {id(p): name for name, p in model.named_parameters()}
        reached = self._reached()
        self.words = self._compact_words()
        parameters = {name: p for name, p in model.named_parameters() if name in reached}
        tables = {name: names[id(p)] for name, p in self.embeddings.parameters.items()}
        word_table = tables["word_embeddings"]
        if self.words is not None:
            parameters[word_table] = self.words.parameter
        self.is_halved = accelerator.mixed_precision == "bf16" and is_halved(model)
        halved = [BACKBONE + n for n in halved_names(self.embeddings, self.device)] if self.is_halved else []
        trained = [replace(g, names=tuple(n for n in g.names if n in reached)) for g in group_parameters(model, config)]
        self.groups = [group for group in trained if group.names]
        self.flat = [FlatGroup({n: parameters[n] for n in g.names}, halved, torch.bfloat16) for g in self.groups]
        copies = {name: copy for flat in self.flat for name, copy in flat.copies.items()}
        parameters_by_name = dict(model.named_parameters())
        copies |= {name: parameters_by_name[name].detach().bfloat16() for name in halved if name not in copies}
        self.half = HalfWeights(self.embeddings, {n.removeprefix(BACKBONE): copy for n, copy in copies.items()})
        self.optimizer = self._build_optimizer()
        self.embedding_rate = embedding_rate(model, self.groups)
        decayed = [(group.rate, group.weight_decay) for group in self.groups if word_table in group.names]
        self.word_rate, self.word_decay = decayed[0] if decayed else (0.0, 0.0)
        gradients = {name: gradient for flat in self.flat for name, gradient in flat.gradients.items()}
        self.gradients = {name: gradients[full] for name, full in tables.items() if full in gradients}
        small = {} if self.words is None else {"word_embeddings": self.words.parameter}
        self.live = LiveDrift({**recorder.tables, **small}, gradient_of=self.gradients.get)
        self.is_shortened = self.embeddings.family.name in HALVED and not model.asked and self.data.masking is None
        self.blocks, self.loss = Blocks(self.device), torch.zeros((), device=self.device)
        self.why_not_captured = self._why_not_captured()
        """Why steps are not replayed from CUDA graphs; empty where they are."""
        if self.why_not_captured and self.device.type == "cuda" and accelerator.is_main_process:
            self._warn_of_capture()
        self.graphs = None if self.why_not_captured else Graphs(self.device)
        self.num_steps = self.num_replayed = 0
        self._attention: str | None = None
        self._is_ready = False

    def _reached(self) -> set[str]:
        """Names of the trainable parameters that a loss gives a gradient: no others are updated, or decayed."""
        data = self.data.of_epoch(self.config.seed, 0)
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            self.model.train()
            batch = to_device(self._inputs_of(data, np.zeros(1, np.int64), np.ones(1, np.float32)), self.device)
            with self.accelerator.autocast(), quick_attention(self.device):
                self._losses(batch).sum().backward()  # type: ignore[no-untyped-call]
        reached = {name for name, p in self.model.named_parameters() if p.grad is not None}
        self.model.zero_grad(set_to_none=True)
        return reached

    def _compact_words(self) -> CompactWords | None:
        """The word rows that train uses, where the table is trained, is a plain one, and nothing else uses it."""
        module: Any = self.embeddings.backbone.get_input_embeddings()  # type: ignore[operator]
        if type(module) is not nn.Embedding or not module.weight.requires_grad:
            return None
        if sum(p is module.weight for _, p in self.model.named_parameters(remove_duplicate=False)) > 1:
            return None
        if module.weight is not self.embeddings.parameters["word_embeddings"] or self.data.masking is not None:
            return None
        return CompactWords(module, np.append(np.unique(self.data.splits["train"].tokens), self.data.pad_id))

    def _build_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the flat groups, its moments there from the start."""
        values = nn.ParameterDict({str(k): flat.values for k, flat in enumerate(self.flat)})
        groups = [replace(group, names=(str(k),)) for k, group in enumerate(self.groups)]
        optimizer = build_optimizer(values, groups, self.config, self.device, is_captured=self.device.type == "cuda")
        if self.config.optimizer == "adamw":
            for flat in self.flat:
                moments = {key: torch.zeros_like(flat.values.detach()) for key in ("exp_avg", "exp_avg_sq")}
                has_fused = any(group.get("fused") for group in optimizer.param_groups)
                step = torch.zeros((), device=self.device if has_fused else "cpu")
                optimizer.state[flat.values] = {"step": step, **moments}
        self.scalars = torch.zeros(2 * len(groups), device=self.device)
        """Of each group the learning rate of the step, and what its weights are multiplied by before."""
        self.is_capturable = any(group.get("capturable") for group in optimizer.param_groups)
        if self.is_capturable:
            for group, rate in zip(optimizer.param_groups, self.scalars, strict=False):
                group["lr"] = rate
        return optimizer

    def _why_not_captured(self) -> str:
        """Why steps cannot be replayed from CUDA graphs, the first reason that holds; empty where they can."""
        config, kind = self.config, self.data.task.kind
        reasons = {
            "no CUDA device": self.device.type != "cuda",
            "turned off": not MAY_CAPTURE,
            "several processes": self.accelerator.num_processes > 1,
            "SGD": config.optimizer != "adamw",
            "masked tokens": kind == "masked",
            "a head that reads texts of other sizes": config.head == "bilstm",
            "positions are added again by hooks": config.reinject_positions,
            "a family or a way of reading it that was not tried": not self.is_shortened,
            "autocast": self.accelerator.mixed_precision == "bf16" and not self.is_halved,
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def take(self, indices: NDArray[np.int64], step: int) -> None:
        """Backward passes over this process's parts of a global batch, then one update; ``step`` counts from 0.

        NonFiniteLossError, on every process alike, when a gradient turns out not to be finite: on a GPU some steps
        later, and before anything is saved.
        """
        self._prepare()
        factor, accelerator, split = float(self.factors[step]), self.accelerator, self.data.splits["train"]
        self._set_rates(factor)
        rows = self.recorder.rows_of(self.data, indices) if accelerator.is_main_process else None
        num_parts = accelerator.num_processes * self.config.gradient_accumulation_steps
        parts = parts_of_batch(indices, num_parts)[accelerator.process_index :: accelerator.num_processes]
        num_rows = int(split.sizes_of(indices).sum())
        gradient_rows = self._gradient_rows(rows)
        # Counted from 1, steps whose number is a power of two.
        is_looked_at = not (step + 1) & step
        inputs = [self._inputs_of(self.data, examples, weight / np.float32(num_rows)) for examples, weight in parts]
        slots = self._slots(gradient_rows, len(parts) * max(batch["input_ids"].numel() for batch in inputs))
        for k in range(len(parts) - 1):
            self._run(inputs[k], (k == 0, False), 0)
        result = self._run(inputs[-1] | slots, (len(parts) == 1, True), step + 1 if is_looked_at else 0)
        if is_looked_at:
            self.recorder.step_sizes += self.live.after_update()
        if self.words is not None:
            self.words.decay(self.word_rate * factor * self.word_decay)
        assert result is not None
        num_slots = {name: len(slots[ROWS + name]) for name in gradient_rows}
        self.blocks.add(result, partial(self._note_result, step, factor, rows, gradient_rows, num_slots))

    def _set_rates(self, factor: float) -> None:
        """Set the learning rates of a step; ``factor``: its share of the peak."""
        rates = [group.rate * factor for group in self.groups]
        if not self.is_capturable:
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            return
        decays = [1 - rate * group.weight_decay for rate, group in zip(rates, self.groups, strict=True)]
        self.scalars.copy_(torch.tensor([*rates, *decays]).pin_memory(), non_blocking=True)

    def _gradient_rows(self, rows: BatchRows | None) -> dict[str, NDArray[np.int64]]:
        """Table to where the distinct rows of a step are in its gradient; -1 for rows that have none there."""
        gradient_rows = {}
        for name, gradient in self.gradients.items():
            if rows is None or name not in rows.rows:
                continue
            distinct_rows, _ = rows.rows[name]
            gradient_row = distinct_rows.astype(np.int64)
            if name == "word_embeddings" and self.words is not None:
                gradient_row = self.words.place_of(gradient_row)
            gradient_row = gradient_row - self.recorder.first_rows.get(name, 0)
            gradient_rows[name] = np.where((gradient_row >= 0) & (gradient_row < len(gradient)), gradient_row, -1)
        return gradient_rows

    def _inputs_of(self, data: EncodedTask, examples: NDArray[np.int64], weight: NDArray[np.float32]) -> Inputs:
        """What a backward pass reads of some examples, on the host; for a graph filled up with examples of weight 0."""
        split = data.splits["train"]
        longest = None
        weights = np.repeat(weight, split.sizes_of(examples)).astype(np.float32)
        is_padded = self.graphs is not None
        if is_padded:
            longest = padded_length(int(split.lengths[examples].max()) // split.num_sequences)
            size = self.config.batch_size // self.config.gradient_accumulation_steps
            if self.config.batch_tokens is not None:
                size = -(-len(examples) // ROWS_MULTIPLE) * ROWS_MULTIPLE  # the next multiple
            num_answers = len(weights)
            examples = np.append(examples, np.repeat(examples[:1], size - len(examples)))
        batch = make_batch(split, examples, data, longest)
        assert split.labels is not None
        labels = split.labels[split.rows_of(examples)]
        if is_padded:
            num_slots = batch["input_ids"].numel() if IS_WORD in batch else len(examples)
            if IS_WORD in batch:  # of which the places of the words, so that their number is always the same
                address = batch[IS_WORD].flatten().nonzero()[:num_answers, 0]
                batch[IS_WORD] = nn.functional.pad(address, (0, num_slots - num_answers))
                labels = np.append(labels[:num_answers], np.zeros(num_slots - num_answers, labels.dtype))
            weights = np.append(weights, np.zeros(num_slots - num_answers, np.float32))
        return batch | {ANSWERS: torch.from_numpy(labels), WEIGHTS: torch.from_numpy(weights)}

    def _slots(self, gradient_rows: Mapping[str, NDArray[np.int64]], num_tokens: int) -> Inputs:
        """The places whose norms are kept, for a graph filled up to as many as ``num_tokens`` can have."""
        slots = {}
        for name, rows in gradient_rows.items():
            # Of a table of which some rows are trained the places of the others count too.
            most = num_tokens if name in self.recorder.first_rows else min(num_tokens, len(self.gradients[name]))
            size = len(rows) if self.graphs is None else most
            slots[ROWS + name] = torch.from_numpy(np.append(rows.clip(0), np.zeros(size - len(rows), np.int64)))
        return slots

    def _run(self, inputs: Inputs, ends: tuple[bool, bool], looked_at: int) -> torch.Tensor | None:
        """:meth:`_pass`, one backward pass with the update behind the last, from a graph where that can be."""
        _, is_last = ends
        self.num_steps += is_last
        if self.graphs is None:
            return self._pass(to_device(inputs, self.device), ends, looked_at)
        key = (*ends, *((name, tensor.shape) for name, tensor in inputs.items()))
        values_before = self.live.copy_values() if looked_at else {}
        try:
            result = self.graphs.run(key, inputs, lambda on_device: self._pass(on_device, ends, 0), self._warm_up)
        except RuntimeError as error:
            self.graphs, self.why_not_captured = None, f"{type(error).__name__}: {error}"
            self._warn_of_capture()
            self.model.zero_grad(set_to_none=True)
            return self._pass(to_device(inputs, self.device), ends, looked_at)
        if looked_at:  # a graph knows no moment before the update, whose gradients stay
            self.live.before_update(looked_at, values=values_before)
        self.num_replayed += is_last
        return result

    def _warn_of_capture(self) -> None:
        warnings.warn(
            f"steps are not replayed from CUDA graphs ({self.why_not_captured}): they take longer", stacklevel=2
        )

    def _warm_up(self, inputs: Inputs) -> None:
        with self._precision(), quick_attention(self.device):
            self._losses(inputs).sum().backward()  # type: ignore[no-untyped-call]
        self.model.zero_grad(set_to_none=True)

    def _pass(self, inputs: Inputs, ends: tuple[bool, bool], looked_at: int) -> torch.Tensor | None:
        """Loss, gradient norm and norms of rows, behind one another, fp32; None before the last pass of a step.

        ``ends``: whether the pass is the step's first and its last; ``looked_at``: the step's number where it is looked
        at, else 0.
        """
        is_first, is_last = ends
        with self._precision(), quick_attention(self.device):
            loss = (self._losses(inputs) * inputs[WEIGHTS]).sum()
            loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.loss.copy_(loss) if is_first else self.loss.add_(loss)
            for flat in self.flat:
                flat.collect(is_first=is_first)
            if not is_last:
                return None
            if self.accelerator.num_processes > 1:
                for tensor in (self.loss, *(flat.values.grad for flat in self.flat)):
                    torch.distributed.all_reduce(tensor)
            norms = [
                torch.linalg.vector_norm(gradient.index_select(0, inputs[ROWS + name]), dim=1)
                for name, gradient in self.gradients.items()  # in the order of the places
                if ROWS + name in inputs
            ]
            if looked_at:
                self.live.before_update(looked_at)
            norm = self._update()
            return torch.cat([self.loss.reshape(1), norm.reshape(1), *norms])

    @torch.no_grad()
    def _update(self) -> torch.Tensor:
        """Clip, decay and update; the norm of the gradient before."""
        norms = [torch.linalg.vector_norm(flat.values.grad) for flat in self.flat if flat.values.grad is not None]
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
        excess = ((norm + 1e-6) / self.config.max_gradient_norm).clamp(min=1)
        # Always on a GPU: to ask it whether clipping is needed would be to wait for it.
        is_divided = self.device.type == "cuda" or bool(excess > 1)
        has_fused = any(group.get("fused") for group in self.optimizer.param_groups)
        if is_divided and has_fused:
            # What a GradScaler would set: the fused kernel divides gradients by it, without a pass of its own.
            self.optimizer.grad_scale = excess  # type: ignore[attr-defined]
        elif is_divided:
            for flat in self.flat:
                flat.values.grad.div_(excess)  # type: ignore[union-attr]
        if self.is_capturable:
            for k, (flat, group) in enumerate(zip(self.flat, self.groups, strict=True)):
                if group.weight_decay:  # not by the fused kernel, whose rounding on a GPU is another
                    flat.values.mul_(self.scalars[len(self.groups) + k])
        self.optimizer.step()
        self.optimizer.grad_scale = None  # type: ignore[attr-defined]
        for flat in self.flat:
            flat.refresh()
        return norm

    def _losses(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """(rows,) loss of each example, or word."""
        batch = {name: tensor for name, tensor in inputs.items() if name not in BESIDE_BATCH}
        return example_losses(self.data.task.kind, self.model(**batch), inputs[ANSWERS])

    def _precision(self) -> AbstractContextManager[Any]:
        """What a pass runs in: nothing where weights are in half precision already, else Accelerate's autocast."""
        block: AbstractContextManager[Any] = nullcontext() if self.is_halved else self.accelerator.autocast()
        return block

    def _note_result(
        self,
        step: int,
        factor: float,
        rows: BatchRows | None,
        gradient_rows: Mapping[str, NDArray[np.int64]],
        num_slots: Mapping[str, int],
        values: NDArray[np.float32],
    ) -> None:
        """Record and report a step whose ``values`` have come back; ``factor``: share of the peak learning rate.

        ``num_slots``: table to the norms among the values, those of its rows and of what fills a graph up.
        """
        config = self.config
        loss, norm = values[:2].tolist()
        if rows is not None:
            norms = {}
            start = 2  # behind loss and norm
            for name, rows_of_table in gradient_rows.items():
                norms[name] = np.where(rows_of_table < 0, np.float32(0), values[start : start + len(rows_of_table)])
                start += num_slots[name]
            self.recorder.record_batch(rows, norms)
        check_finite(norm, step)
        rates = self.embedding_rate * factor, config.head_rate * factor
        self.recorder.record_rates(*rates, clipping_factor(norm, config.max_gradient_norm))
        self.report(StepLog(step + 1, loss, config.learning_rate * factor, norm))

    def _prepare(self) -> None:
        """Put in place what steps work on, once: half-precision weights, the small word table, shortcuts."""
        if not self._is_ready:
            self._is_ready = True  # first: what follows can be interrupted, and `settle` undoes any part of it
            self.model.train()
            self.half.install()
            if self.words is not None:
                self.words.install()
            if self.is_shortened:
                self._attention = take_shortcuts(self.embeddings.backbone, self.model.pooling)

    def graph_facts(self) -> dict[str, Any] | None:
        """Share of the steps so far that were replayed from a CUDA graph, and why none was; None without a GPU."""
        if self.device.type != "cuda":
            return None
        return {"share_of_steps": self.num_replayed / max(self.num_steps, 1), "reason": self.why_not_captured}

    def settle(self) -> None:
        """Report all steps, and restore the ordinary model, with everything that was learned."""
        self.blocks.drain()
        self._restore_model()

    def _restore_model(self) -> None:
        """Undo :meth:`_prepare`."""
        if self._is_ready:
            if self.words is not None:
                self.words.settle()
            self.half.settle()
            leave_shortcuts(self.embeddings.backbone, self._attention)
            self._attention, self._is_ready = None, False

    def release(self) -> None:
        """Restore the ordinary model, and give its parameters memory of their own: nothing may be trained here more.

        Steps that have not been reported are not.
        """
        self.graphs = None
        self._restore_model()
        for flat in self.flat:
            flat.release()

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
            for key, tensor in self.optimizer.state[flat.values].items():  # in its memory, which graphs read
                tensor.copy_(state[f"{i}.{key}"])
            flat.refresh()
        self._prepare()  # and settled, the model is as it was
        self.settle()
