"""Scores against scikit-learn's and scipy's, and NaN where nothing is defined."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, log_loss, matthews_corrcoef, r2_score

from toolkit.training.evaluation import compute_scores, predict

RNG = np.random.default_rng(0)


@given(st.integers(2, 5), st.integers(1, 60), st.integers(0, 1000))
def test_classification_against_scikit_learn(classes: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, labels = rng.normal(size=(size, classes)).astype(np.float32), rng.integers(classes, size=size)
    scores, predictions = compute_scores("classification", labels, outputs), outputs.argmax(axis=1)
    probabilities = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    only_two = {"f1": pytest.approx(f1_score(labels, predictions, zero_division=0))} if classes == 2 else {}
    assert scores == only_two | {
        "accuracy": accuracy_score(labels, predictions),
        "macro_f1": pytest.approx(f1_score(labels, predictions, average="macro", zero_division=0)),
        "matthews": pytest.approx(matthews_corrcoef(labels, predictions), abs=1e-12),
        "loss": pytest.approx(log_loss(labels, probabilities, labels=range(classes)), rel=1e-4),
    }
    np.testing.assert_array_equal(predict("classification", outputs), predictions)


def test_regression_of_a_line_is_perfect() -> None:
    labels = RNG.normal(size=40)
    scores = compute_scores("regression", labels, (2 * labels[:, None] + 1).astype(np.float32))
    assert scores.pop("r2") < 0  # in the right order, and far off
    assert scores == pytest.approx({"pearson": 1, "spearman": 1, "loss": np.mean((labels + 1) ** 2)}, rel=1e-5)


@pytest.mark.parametrize("num_examples", [2, 3, 40])
@pytest.mark.parametrize("noise", [0.0, 0.3, 5.0])
def test_r2_is_scikit_learns(num_examples: int, noise: float) -> None:
    labels = RNG.normal(size=num_examples) + 3
    outputs = (labels + noise * RNG.normal(size=num_examples))[:, None].astype(np.float32)
    scores = compute_scores("regression", labels, outputs)
    assert scores["r2"] == pytest.approx(r2_score(labels, outputs[:, 0].astype(float)), abs=1e-12)


def test_undefined_is_nan() -> None:
    """Of a constant answer R² is defined, of constant labels it is not."""
    constant = np.full((5, 1), 2.0, np.float32)
    scores = compute_scores("regression", np.arange(5.0), constant)
    assert scores["r2"] == 0
    assert np.isnan([scores["pearson"], scores["spearman"]]).all()
    for labels in (np.full(5, 0.1), np.ones(1)):
        assert math.isnan(compute_scores("regression", labels, constant[: len(labels)])["r2"])
    for kind, width in (("classification", 3), ("classification", 2), ("regression", 1)):
        assert all(math.isnan(v) for v in compute_scores(kind, None, np.ones((5, width), np.float32)).values())
