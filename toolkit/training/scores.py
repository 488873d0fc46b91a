"""Labels and model outputs in, scores out."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.data.batches import EncodedTask
from toolkit.data.tokens import has_entities

TOKEN_SCORES = ("accuracy", "precision", "recall", "f1")
"""Of a token task: of words, and of entities, an entity being right when its words and its type are."""
CLASSIFICATION_SCORES = ("accuracy", "macro_f1", "matthews")
REGRESSION_SCORES = ("pearson", "spearman", "r2")


def predict(kind: str, outputs: NDArray[np.float32]) -> NDArray[np.int64] | NDArray[np.float64]:
    """(examples,) predicted class indices, or values in regression, from outputs (examples, classes or 1)."""
    return outputs.argmax(axis=1) if kind != "regression" else outputs[:, 0].astype(np.float64)


def score_split(data: EncodedTask, split: str, outputs: NDArray[np.float32]) -> dict[str, float]:
    """:func:`compute_scores` of what answers (rows, outputs) to one split of a task."""
    encoded, task = data.splits[split], data.task
    offsets = None if encoded.words is None else encoded.words.offsets
    return compute_scores(task.kind, encoded.labels, outputs, offsets=offsets, label_names=task.label_names)


def compute_scores(
    kind: str,
    labels: NDArray[Any] | None,
    outputs: NDArray[np.float32],
    *,
    offsets: NDArray[np.int64] | None = None,
    label_names: Sequence[str] = (),
) -> dict[str, float]:
    """Loss (nats, or squared error) and the scores of the kind; all NaN for a split without labels.

    Correlations are NaN where a side is constant, R2 (1 - squared errors / squared deviations of the labels from their
    mean, as scikit-learn's r2_score) where the labels are or there is one; macro-F1 is over the classes that occur in
    labels or predictions. Of a token task rows are words, ``offsets`` (examples + 1,) says which of them are one
    example's, ``label_names`` what the tags are called. Precision, recall and F1 are seqeval's of entities (as CoNLL's
    own script counts them), 0 where none is found, NaN where the tags mark none.
    """
    names = {"classification": CLASSIFICATION_SCORES, "tokens": TOKEN_SCORES}.get(kind, REGRESSION_SCORES)
    if labels is None:
        return dict.fromkeys(("loss", *names), float("nan"))
    if kind == "tokens":
        return _tokens(labels, outputs, offsets, label_names)
    if kind == "classification":
        return _classification(labels, outputs)
    return _regression(labels, outputs)


def _classification(labels: NDArray[np.int64], outputs: NDArray[np.float32]) -> dict[str, float]:
    predictions = outputs.argmax(axis=1)
    log_probabilities = torch.log_softmax(torch.from_numpy(outputs).double(), dim=1).numpy()
    return {
        "loss": float(-log_probabilities[np.arange(len(labels)), labels].mean()),
        "accuracy": float((predictions == labels).mean()),
        **_from_confusion(labels, predictions, outputs.shape[1]),
    }


def _tokens(
    labels: NDArray[np.int64],
    outputs: NDArray[np.float32],
    offsets: NDArray[np.int64] | None,
    label_names: Sequence[str],
) -> dict[str, float]:
    assert offsets is not None
    found = {name: value for name, value in _classification(labels, outputs).items() if name in ("loss", "accuracy")}
    if not has_entities(label_names):
        return found | dict.fromkeys(TOKEN_SCORES[1:], float("nan"))
    from seqeval.metrics import f1_score, precision_score, recall_score

    names = np.array(label_names, dtype=object)
    true, predicted = (
        [names[part].tolist() for part in np.split(tags, offsets[1:-1])] for tags in (labels, outputs.argmax(axis=1))
    )
    functions = {"precision": precision_score, "recall": recall_score, "f1": f1_score}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where nothing is marked at all seqeval warns whatever it is told
        return found | {name: float(score(true, predicted, zero_division=0)) for name, score in functions.items()}


def _from_confusion(labels: NDArray[np.int64], predictions: NDArray[np.int64], num_classes: int) -> dict[str, float]:
    """Macro-F1 and Matthews correlation (0 where a side is constant), as scikit-learn has them.

    By hand, because importing scikit-learn takes longer than all else that comes before the first training step.
    """
    table = np.bincount(labels * num_classes + predictions, minlength=num_classes**2).reshape(num_classes, num_classes)
    hits, of_labels, of_predictions = np.diag(table).astype(float), table.sum(axis=1), table.sum(axis=0)
    total, both = float(table.sum()), of_labels + of_predictions
    spread = (total**2 - float(of_labels @ of_labels)) * (total**2 - float(of_predictions @ of_predictions))
    covariance = hits.sum() * total - float(of_labels @ of_predictions)
    return {
        "macro_f1": float((2 * hits[both > 0] / both[both > 0]).mean()),
        "matthews": float(covariance / spread**0.5) if spread > 0 else 0.0,
    }


def _regression(labels: NDArray[np.float64], outputs: NDArray[np.float32]) -> dict[str, float]:
    from scipy.stats import pearsonr, spearmanr

    values = outputs[:, 0].astype(np.float64)
    is_defined = len(labels) > 1 and np.ptp(values) > 0 and np.ptp(labels) > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nearly constant input: scipy warns and answers all the same
        pearson = float(pearsonr(labels, values).statistic) if is_defined else float("nan")
        spearman = float(spearmanr(labels, values).statistic) if is_defined else float("nan")
    errors, deviations = ((values - labels) ** 2).sum(), ((labels - labels.mean()) ** 2).sum()
    has_spread = len(labels) > 1 and np.ptp(labels) > 0
    r2 = float(1 - errors / deviations) if has_spread else float("nan")
    return {"loss": float(errors / len(labels)), "pearson": pearson, "spearman": spearman, "r2": r2}
