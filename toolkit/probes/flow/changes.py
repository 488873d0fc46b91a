"""Stages of a forward pass before and after a change in, how far states, logits, predictions and scores moved out."""

import numpy as np
from numpy.typing import NDArray

from toolkit.probes.flow.jackknife import Array, Units, bounds, unit_values
from toolkit.probes.flow.stages import Stages, stage_name
from toolkit.training.scores import compute_scores, predict

Line = dict[str, object]
NO_MEAN = "no interval: no mean over texts"


class Changes:
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

    def state_lines(self) -> list[Line]:
        """One line per change and stage."""
        lines = []
        for name, changes in self.changes.items():
            for layer, (change, size, total) in enumerate(zip(changes, self.sizes, self.means, strict=True), start=-1):
                spread = size.sum() - (total @ total) / self.num_tokens
                start: Line = {"counterfactual": name, "layer": layer, "stage": stage_name(layer)}
                lines.append(start | {"measure": "state"} | _ratio_line(change, size, spread))
        return lines

    def output_lines(self, kind: str, score: str, labels: NDArray[np.generic] | None) -> list[Line]:
        """Three lines per change: logits, predictions (of classes) and the score (with labels)."""
        lines = []
        before = self.logits[""].astype(np.float64)
        size = np.square(before).sum(axis=1)
        spread = np.square(before - before.mean(axis=0)).sum()
        for name in self.changes:
            after = self.logits[name].astype(np.float64)
            start: Line = {"counterfactual": name}
            change = np.square(after - before).sum(axis=1)
            lines.append(start | {"measure": "logits"} | _ratio_line(change, size, spread))
            old, new = (predict(kind, self.logits[key]) for key in ("", name))
            if kind == "classification":
                line = _mean_line((old != new).astype(np.float64))
                lines.append(start | {"measure": "predictions", "unit": "share"} | line)
            if labels is not None:
                scores = [compute_scores(kind, labels, self.logits[key])[score] for key in ("", name)]
                line = {"value": scores[1] - scores[0], "unit_values": (), "reason": NO_MEAN}
                if score == "accuracy":
                    line = _mean_line((new == labels).astype(np.float64) - (old == labels))
                lines.append(start | {"measure": "score", "reference": scores[0], "unit": score} | line)
        return lines


def _ratio_line(change: Array, size: Array, spread: float) -> Line:
    """sqrt(sum of changes / sum of sizes), and the same for unrelated states as its reference."""
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(np.sqrt(change.sum() / size.sum()))
        left_out = np.sqrt((change.sum() - change) / (size.sum() - size))
        reference = float(np.sqrt(2 * spread / size.sum()))
    units = unit_values([value, *left_out])
    return {"value": value, **bounds(units), "reference": reference, "unit": "1", "reason": ""}


def _mean_line(of_texts: Array) -> Line:
    """A mean over texts of -1, 0 and 1: the texts are the units themselves."""
    units: Units = tuple(of_texts.tolist())
    return {"value": float(of_texts.mean()), **bounds(units, is_share=True), "reason": ""}
