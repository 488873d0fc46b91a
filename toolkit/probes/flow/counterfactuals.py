"""A model and texts in, what changes out when its position rows are shifted, permuted, replaced or taken away."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from toolkit.data.batches import EncodedSplit, EncodedTask, evaluation_batches
from toolkit.models.classifier import Loaded
from toolkit.models.positions import position_rows
from toolkit.probes.flow.ledger import LEVEL, NUM_DRAWS, has_position_table
from toolkit.probes.flow.stages import Stages, forward_stages, in_eval_mode, stage_name
from toolkit.training.scores import compute_scores, predict

COUNTERFACTUAL_COLUMNS: tuple[str, ...] = ("counterfactual", "quantity", "layer", "stage", "value", "low", "high")
COUNTERFACTUAL_COLUMNS += ("reference", "unit", "num_texts", "note")

SHIFT = 16
NUM_TEXTS = 200
Rows = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Request:
    """What a replacement needs to know beside the rows."""

    longest: int
    """Tokens of the longest text: the rows in use."""
    shift: int
    seed: int


def _shifted(rows: Rows, request: Request) -> Rows:
    if request.longest + request.shift > len(rows):
        raise ValueError(
            f"a text of {request.longest} tokens shifted by {request.shift} needs {request.longest + request.shift} "
            f"position rows, the model has {len(rows)}: pass a smaller --shift, or shorter texts"
        )
    return np.concatenate([rows[request.shift :], rows[: request.shift]])


def _mean(rows: Rows, request: Request) -> Rows:
    used = rows[: request.longest].astype(np.float64).mean(axis=0)
    return np.tile(used, (len(rows), 1)).astype(np.float32)


COUNTERFACTUALS: Mapping[str, Callable[[Rows, Request], Rows]] = {
    "shifted": _shifted,
    "permuted": lambda rows, request: position_rows("shuffled", rows, num_reached=request.longest, seed=request.seed),
    "sinusoid": lambda rows, request: position_rows("sinusoidal", rows, num_reached=request.longest),
    "mean": _mean,
    "zero": lambda rows, request: position_rows("zero", rows, num_reached=request.longest),
}
"""Name to the rows that stand in for the table's, from a text's first position on: row i + shift for row i; the rows in
use in an order that leaves none in its place; the sinusoid of equal mean square norm; the mean row in use everywhere,
which takes order away and leaves the offset that all positions share; zeros, which take both."""


@contextlib.contextmanager
def replaced_positions(
    loaded: Loaded, counterfactual: str, *, longest: int, shift: int = SHIFT, seed: int = 0
) -> Iterator[None]:
    """The model reads other position rows inside the block and has its own back, bit for bit, after it.

    ValueError for a model without a position table, an unknown counterfactual, or a shift beyond the table.
    """
    from toolkit.lookup import lookup

    if not has_position_table(loaded):
        raise ValueError(f"not applicable: {loaded.source.name} ({loaded.family.name}) has no position table")
    table = dict(loaded.model.backbone.named_parameters())[loaded.family.embedding_parameters["position_embeddings"]]
    kept = table.detach().clone()
    own = kept[loaded.position_offset :].cpu().numpy()
    rows = lookup(COUNTERFACTUALS, counterfactual, "counterfactual")(own, Request(longest, shift, seed))
    with torch.no_grad():
        table[loaded.position_offset :] = torch.from_numpy(rows).to(table)
    try:
        yield
    finally:
        with torch.no_grad():
            table.copy_(kept)


def measure_counterfactuals(
    loaded: Loaded,
    data: EncodedTask,
    split: EncodedSplit,
    *,
    has_head: bool = False,
    shift: int = SHIFT,
    num_texts: int = NUM_TEXTS,
    num_draws: int = NUM_DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> pd.DataFrame:
    """How far states, logits, predictions and the score move under each counterfactual: COUNTERFACTUAL_COLUMNS.

    ``quantity`` state: sqrt(sum |h' - h|² / sum |h|²) over real tokens, one line per stage; ``reference`` is the same
    for a state replaced by that of a random other token, so that a value reads as a share of "unrelated". With a
    trained head (``has_head``): logits likewise (reference: those of another text), predictions (share that changed),
    and score (the task's headline score afterwards minus before; reference: before). Intervals: bootstrap over texts;
    none for scores that are no mean over texts. ``num_texts``: the first of the split in a random order. A model
    without a position table has one line that says not applicable. Definitions are ours.
    """
    if not has_position_table(loaded):
        note = "not applicable: the model has no position table"
        return pd.DataFrame([{"quantity": "state", "note": note}], columns=list(COUNTERFACTUAL_COLUMNS))
    order = np.random.default_rng([*b"flow", seed]).permutation(len(split))[:num_texts]
    weights = np.vstack(
        [
            np.ones(len(order)),
            np.random.default_rng([*b"texts", seed]).multinomial(
                len(order), np.full(len(order), 1 / len(order)), size=num_draws
            ),
        ]
    )
    longest = int(split.lengths[order].max())
    sums = _Sums(len(order))
    with in_eval_mode(loaded):
        for chosen in evaluation_batches(split.lengths[order]):
            before = forward_stages(loaded, split, order[chosen], data)
            sums.add_before(chosen, before)
            for name in COUNTERFACTUALS:
                with replaced_positions(loaded, name, longest=longest, shift=shift, seed=seed):
                    after = forward_stages(loaded, split, order[chosen], data)
                sums.add_after(name, chosen, before, after)
    lines = sums.state_lines(weights, level)
    if has_head:
        labels = None if split.labels is None else split.labels[order]
        lines += sums.output_lines(weights, level, data.task.kind, data.task.score, labels)
    return pd.DataFrame(lines, columns=list(COUNTERFACTUAL_COLUMNS)).assign(num_texts=len(order))


class _Sums:
    """Per text and stage, squared sizes and changes; the logits, which are few, as they are."""

    def __init__(self, num_texts: int) -> None:
        self.num_texts = num_texts
        self.sizes: list[NDArray[np.float64]] = []
        self.means: list[NDArray[np.float64]] = []
        self.num_tokens = 0
        self.changes: dict[str, list[NDArray[np.float64]]] = {}
        self.logits: dict[str, NDArray[np.float32]] = {}

    def add_before(self, chosen: NDArray[np.int64], stages: Stages) -> None:
        if not self.sizes:
            self.sizes = [np.zeros(self.num_texts) for _ in stages.layers]
            self.means = [np.zeros(layer.shape[2]) for layer in stages.layers]
        for k, layer in enumerate(stages.layers):
            states = layer.double() * stages.mask.unsqueeze(-1)
            self.sizes[k][chosen] = states.square().sum(dim=(1, 2)).cpu().numpy()
            self.means[k] += states.sum(dim=(0, 1)).cpu().numpy()
        self.num_tokens += int(stages.mask.sum())
        self._keep("", chosen, stages)

    def add_after(self, name: str, chosen: NDArray[np.int64], before: Stages, after: Stages) -> None:
        changes = self.changes.setdefault(name, [np.zeros(self.num_texts) for _ in self.sizes])
        for k, (old, new) in enumerate(zip(before.layers, after.layers, strict=True)):
            change = (new.double() - old.double()) * before.mask.unsqueeze(-1)
            changes[k][chosen] = change.square().sum(dim=(1, 2)).cpu().numpy()
        self._keep(name, chosen, after)

    def _keep(self, name: str, chosen: NDArray[np.int64], stages: Stages) -> None:
        logits = stages.logits.cpu().numpy()
        self.logits.setdefault(name, np.zeros((self.num_texts, logits.shape[1]), np.float32))[chosen] = logits

    def state_lines(self, weights: NDArray[np.float64], level: float) -> list[dict[str, object]]:
        lines = []
        for name, changes in self.changes.items():
            for layer, (change, size, total) in enumerate(zip(changes, self.sizes, self.means, strict=True), start=-1):
                spread = size.sum() - (total @ total) / self.num_tokens
                line = {"counterfactual": name, "quantity": "state", "layer": layer, "stage": stage_name(layer)}
                ratio = _ratio(weights @ change, weights @ size)
                reference = float(np.sqrt(2 * spread / size.sum())) if size.sum() else np.nan
                lines.append(line | _estimate(ratio, level) | {"reference": reference, "unit": "1", "note": ""})
        return lines

    def output_lines(
        self, weights: NDArray[np.float64], level: float, kind: str, score: str, labels: NDArray[np.generic] | None
    ) -> list[dict[str, object]]:
        lines = []
        before = self.logits[""].astype(np.float64)
        size = np.square(before).sum(axis=1)
        spread = np.square(before - before.mean(axis=0)).sum()
        scores = compute_scores(kind, labels, self.logits[""])
        for name in self.changes:
            after = self.logits[name].astype(np.float64)
            start: dict[str, object] = {"counterfactual": name, "note": ""}
            ratio = _ratio(weights @ np.square(after - before).sum(axis=1), weights @ size)
            reference = float(np.sqrt(2 * spread / size.sum())) if size.sum() else np.nan
            lines.append(start | {"quantity": "logits", "reference": reference, "unit": "1"} | _estimate(ratio, level))
            predictions = [predict(kind, self.logits[key]) for key in ("", name)]
            if kind == "classification":
                changed = (predictions[0] != predictions[1]).astype(np.float64)
                share = weights @ changed / weights.sum(axis=1)
                lines.append(start | {"quantity": "predictions", "unit": "share"} | _estimate(share, level))
            if labels is not None:
                value = compute_scores(kind, labels, self.logits[name])[score] - scores[score]
                drawn: NDArray[np.float64] = np.array([value])
                if score == "accuracy":
                    right = [(each == labels).astype(np.float64) for each in predictions]
                    drawn = weights @ (right[1] - right[0]) / weights.sum(axis=1)
                line = {"quantity": "score", "reference": scores[score], "unit": score}
                lines.append(start | line | _estimate(drawn, level))
        return lines


def _ratio(change: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.sqrt(change / size))


def _estimate(draws: NDArray[np.float64], level: float) -> dict[str, object]:
    """The first is the estimate, the others are draws of the bootstrap."""
    if len(draws) == 1:
        return {"value": float(draws[0]), "low": np.nan, "high": np.nan, "note": "no interval: no mean over texts"}
    low, high = np.quantile(draws[1:], [(1 - level) / 2, (1 + level) / 2])
    return {"value": float(draws[0]), "low": float(low), "high": float(high)}
