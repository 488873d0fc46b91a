"""Labels and model outputs in, scores out."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from scipy.stats import pearsonr, spearmanr

CLASSIFICATION_SCORES = ("accuracy", "macro_f1", "matthews")
REGRESSION_SCORES = ("pearson", "spearman")


def predict(kind: str, outputs: NDArray[np.float32]) -> NDArray[np.int64] | NDArray[np.float64]:
    """(examples,) predicted class indices, or values in regression, from outputs (examples, classes or 1)."""
    return outputs.argmax(axis=1) if kind == "classification" else outputs[:, 0].astype(np.float64)


def compute_scores(kind: str, labels: NDArray[Any] | None, outputs: NDArray[np.float32]) -> dict[str, float]:
    """Loss (nats, or squared error) and the scores of the kind; all NaN for a split without labels.

    Correlations are NaN where a side is constant; macro-F1 is over the classes that occur in labels or predictions.
    """
    names = CLASSIFICATION_SCORES if kind == "classification" else REGRESSION_SCORES
    if labels is None:
        return dict.fromkeys(("loss", *names), float("nan"))
    if kind == "classification":
        return _classification(labels, outputs)
    return _regression(labels, outputs)


def _classification(labels: NDArray[np.int64], outputs: NDArray[np.float32]) -> dict[str, float]:
    from sklearn.metrics import f1_score, matthews_corrcoef

    predictions = predict("classification", outputs)
    log_probabilities = log_softmax(outputs.astype(np.float64), axis=1)
    return {
        "loss": float(-log_probabilities[np.arange(len(labels)), labels].mean()),
        "accuracy": float((predictions == labels).mean()),
        "macro_f1": float(f1_score(labels, predictions, average="macro", zero_division=0)),
        "matthews": float(matthews_corrcoef(labels, predictions)),
    }


def _regression(labels: NDArray[np.float64], outputs: NDArray[np.float32]) -> dict[str, float]:
    values = outputs[:, 0].astype(np.float64)
    is_defined = len(labels) > 1 and np.ptp(values) > 0 and np.ptp(labels) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nearly constant input: scipy warns and answers all the same
        pearson = float(pearsonr(labels, values).statistic) if is_defined else float("nan")
        spearman = float(spearmanr(labels, values).statistic) if is_defined else float("nan")
    return {"loss": float(((values - labels) ** 2).mean()), "pearson": pearson, "spearman": spearman}
