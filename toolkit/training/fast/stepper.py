"""Optimizer steps of one CPU process: what `toolkit.training.loop.Stepper` does, in less time.

Where the plain step's time goes, and what is done about it here: dropout's random bits (`dropout`), gradients, moments
and updates of word rows that no batch exposes (`words`), casts of weights and states (`half`), gradients in fresh
memory and hundreds of short loops (`flat`), passes over memory within a layer (`layer`), states of the top layer that
the pooling does not read (`top`). experiments/benchmarks/NOTES.md has what each is worth.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.config import RunConfig
from toolkit.data.batches import EncodedTask, make_batch, parts_of_batch
from toolkit.models.classifier import Classifier
from toolkit.models.locate import locate_embeddings
from toolkit.models.regimes import BACKBONE
from toolkit.training.fast.flat import CompactWords, FlatGroup, HalfBackbone, allocate, halved_names
from toolkit.training.fast.layer import (
    NAME,
    fuse_layers,
    narrow_top,
    pack_dropout,
    part_layers,
    unpack_dropout,
    use_attention,
)
from toolkit.training.optimizer import (
    BETAS,
    EPS,
    StepLog,
    check_finite,
    clipping_factor,
    example_losses,
    group_parameters,
    is_fused,
    learning_rate_factors,
)
from toolkit.training.step_recorder import Recorder, norms_of_rows


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
        self.groups = group_parameters(model, config.weight_decay)
        self.flat = [FlatGroup(group, parameters, halved, dtype) for group in self.groups]
        copies = {name: copy for flat in self.flat for name, copy in flat.copies.items()}
        frozen = {name: parameters[name].detach().to(dtype) for name in halved if name not in copies}
        weights = {name.removeprefix(BACKBONE): weight for name, weight in (copies | frozen).items()}
        self.backbone = HalfBackbone(self.embeddings, weights, dtype)
        self.optimizer = self._build_optimizer()
        self.word_decay = next((g.weight_decay for g in self.groups if word_table in g.names), 0.0)
        self.gradients = {
            key: flat.gradients[BACKBONE + name]
            for key, name in self.embeddings.family.embedding_parameters.items()
            for flat in self.flat
            if BACKBONE + name in flat.gradients
        }
        self._attention: str | None = None
        self._is_ready = False

    def _compact_words(self) -> CompactWords | None:
        if not self.embeddings.parameters["word_embeddings"].requires_grad:
            return None
        tokens = self.data.splits["train"].tokens
        module: Any = self.embeddings.backbone.get_input_embeddings()  # type: ignore[operator]
        return CompactWords(module, np.append(np.unique(tokens), self.data.pad_id).astype(np.int64))

    def _build_optimizer(self) -> torch.optim.AdamW:
        """AdamW over the flat groups, its moments in memory like theirs."""
        config = self.config
        peaks = [config.head_learning_rate if group.is_head else config.learning_rate for group in self.groups]
        optimizer = torch.optim.AdamW(
            [
                {"params": [flat.values], "lr": peak, "weight_decay": group.weight_decay, "peak": peak}
                for flat, group, peak in zip(self.flat, self.groups, peaks, strict=True)
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
            self.words.decay(self.config.learning_rate * factor * self.word_decay)
        for flat in self.flat:
            flat.refresh()
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
        self.recorder.record_step(indices, self._row_norms)
        check_finite(norm, step)
        clipping = clipping_factor(norm, config.max_gradient_norm)
        # What a GradScaler would set: the fused kernel divides gradients by it, without a pass over them of its own.
        self.optimizer.grad_scale = torch.tensor(1 / clipping) if clipping < 1 else None  # type: ignore[attr-defined]
        has_backbone = any(not group.is_head for group in self.groups)
        rate = config.learning_rate * factor if has_backbone else float("nan")
        self.recorder.record_rates(rate, config.head_learning_rate * factor, clipping)
        return norm

    def _row_norms(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(rows,) Euclidean norm of some rows of a table's gradient; NaN where it has none."""
        if name == "word_embeddings" and self.words is not None:
            rows = self.words.place_of(rows)
        return norms_of_rows(self.gradients.get(name), rows)

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
