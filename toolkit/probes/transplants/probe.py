"""Pooled vectors of training and scored items in, the logits of a re-fitted logistic regression out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array
from toolkit.training.features import PROBE_FOLDS, PROBE_STRENGTHS
from toolkit.training.threads import one_thread

TOLERANCE, MAX_STEPS = 1e-10, 3000
"""Of the fit: with scikit-learn's 1e-4 the logits of two fits to nearly equal features differ by some 1e-3, as much as
what is measured; to the end it takes milliseconds longer."""


class Probe:
    """Multinomial logistic regression on standardised features, of one strength for every coalition of a run.

    A strength of each coalition's own would jump from one to the next and count as what the components are worth.
    """

    def __init__(self, labels: NDArray[np.int64], num_outputs: int, seed: int) -> None:
        """``labels``: (items,) classes of the training items; ``seed`` draws the folds."""
        self.labels, self.num_outputs, self.seed = labels, num_outputs, seed
        self.strength: float | None = None
        counts = np.bincount(labels)
        self.num_folds = min(PROBE_FOLDS, int(counts[counts > 0].min()))
        if self.num_folds < 2 or (counts > 0).sum() < 2:
            raise ValueError("too few training items of a class to fit a probe on: raise --max-probe-examples")

    def choose_strength(self, ends: Sequence[Array]) -> None:
        """Take the inverse penalty of the least cross-validated log loss, on average over some (items, hidden)."""
        from sklearn.model_selection import StratifiedKFold, validation_curve

        folds = StratifiedKFold(self.num_folds, shuffle=True, random_state=self.seed)
        setting = {"param_name": "logisticregression__C", "param_range": list(PROBE_STRENGTHS)}
        with one_thread():
            curves = [
                validation_curve(_pipeline(), features, self.labels, cv=folds, scoring="neg_log_loss", **setting)[1]
                for features in ends
            ]
        self.strength = PROBE_STRENGTHS[int(np.argmax(np.mean(curves, axis=(0, 2))))]

    def outputs(self, features: Array, scored: Array) -> Array:
        """Fit to (items, hidden) features; (scored items, classes) logits, -1e9 of classes that training lacks."""
        assert self.strength is not None
        with one_thread():
            fitted = _pipeline(self.strength).fit(features, self.labels)
        logits = fitted.decision_function(scored)
        outputs = np.full((len(scored), self.num_outputs), -1e9)
        # Of two classes scikit-learn gives the log-odds of the second.
        outputs[:, fitted.classes_] = np.stack([-logits / 2, logits / 2], axis=1) if logits.ndim == 1 else logits
        return outputs


def _pipeline(strength: float = 1.0) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, tol=TOLERANCE, max_iter=MAX_STEPS))
