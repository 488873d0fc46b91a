"""Pooled features before and after training, or two heads' outputs on them, in; how far they are apart out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

STILL = "no feature moved"
NO_SPREAD = "all features are equal: no spread to hold a distance against"
CONSTANT = "a head gives every text one answer"

Array = NDArray[np.floating[Any]]


def feature_movement(before: Array, after: Array) -> dict[str, tuple[float, str]]:
    """How far (texts, hidden) pooled features moved, each with a note where it is undefined; float64 inside.

    ``feature_distance``: mean over texts of ‖f' - f‖, in the features' unit. ``relative_feature_distance``:
    √(Σ‖f' - f‖² / Σ‖f - f̄‖²), in spreads of the features before: 0 when nothing moved, √2 where f' is as f and has
    nothing to do with it; invariant to a rotation or scaling of both. ``shared_share``: ‖mean Δ‖² / mean ‖Δ‖², the
    part of the movement that all texts share and a bias could undo; 1 is a translation. Ours.
    """
    first, second = np.asarray(before, np.float64), np.asarray(after, np.float64)
    change = second - first
    total, spread = float((change**2).sum()), float(((first - first.mean(axis=0)) ** 2).sum())
    shared = len(change) * float((change.mean(axis=0) ** 2).sum())
    return {
        "feature_distance": (float(np.linalg.norm(change, axis=1).mean()), ""),
        "relative_feature_distance": ((total / spread) ** 0.5, "") if spread else (float("nan"), NO_SPREAD),
        "shared_share": (shared / total, "") if total else (float("nan"), STILL),
    }


def head_alignment(start: Array, best: Array) -> tuple[float, str]:
    """Cosine of two heads on the same features, from their (texts, outputs) outputs, and a note where it is undefined.

    Outputs are centred over texts (a bias is no direction) and, of several, over outputs (which softmax cannot see);
    the cosine is that of what is left, so that heads v and v* have ⟨v, v*⟩_Σ / ‖v‖_Σ‖v*‖_Σ with Σ the covariance of
    the features. 1: the same direction, however long; 0 on average for a random head. The plain cosine
    of the weights would be ruled by directions in which no feature varies, and which no data determine (our choice).
    """
    first, second = (_centred(np.asarray(outputs, np.float64)) for outputs in (start, best))
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    return (float((first * second).sum()) / size, "") if size else (float("nan"), CONSTANT)


def _centred(outputs: NDArray[np.float64]) -> NDArray[np.float64]:
    centred: NDArray[np.float64] = outputs - outputs.mean(axis=0)
    if outputs.shape[1] > 1:
        centred -= centred.mean(axis=1, keepdims=True)
    return centred
