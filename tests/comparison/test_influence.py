"""Scores that are no mean over items: their influences against leaving items out one by one, and their laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.comparison.influence import SCORES, influence_of_entities
from toolkit.comparison.intervals import by_cluster
from toolkit.training.evaluation import compute_scores

CLASSES = {"f1": 2, "macro_f1": 3, "matthews": 3}


def answers(score, num_items, seed=0):
    """Labels and predictions: a few classes, or numbers with ties."""
    rng = np.random.default_rng(seed)
    labels, others = rng.integers(CLASSES.get(score, 9), size=(2, num_items))
    return labels, np.where(rng.random(num_items) < 0.6, labels, others)


@pytest.mark.parametrize("score", SCORES)
def test_a_score_is_the_one_that_runs_keep_and_its_influences_are_the_jackknifes(score):
    """Leaving item i out changes the score by -influence / N, but for terms of 1/N² that N = 800 leaves small."""
    labels, predictions = answers(score, 800)
    value, influence = SCORES[score](labels, predictions)
    kind, outputs = "regression", predictions[:, None]
    if score in CLASSES:
        kind, outputs = "classification", np.eye(CLASSES[score])[predictions]
    assert value == pytest.approx(compute_scores(kind, labels, outputs.astype(np.float32))[score], abs=1e-6)
    assert influence.mean() == pytest.approx(0, abs=1e-12)
    without = [SCORES[score](np.delete(labels, i), np.delete(predictions, i))[0] for i in range(800)]
    np.testing.assert_allclose(influence, 799 * (value - np.array(without)), atol=0.02 * np.abs(influence).max())


CHANGES = {"spearman": lambda x: x**3, "pearson": lambda x: 3 * x + 1, "r2": lambda x: 3 * x + 1}
"""What a score does not look at: units, or all but ranks."""


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*SCORES]), st.integers(0, 999), st.randoms(use_true_random=False))
def test_order_unit_and_copies_change_no_influence(score, seed, random):
    both = np.array(answers(score, 30, seed))
    value, influence = SCORES[score](*both)
    order = random.sample(range(30), 30)
    found = SCORES[score](*CHANGES.get(score, lambda x: x)(np.tile(both[:, order], 2)))
    assert found[0] == pytest.approx(value)
    np.testing.assert_allclose(found[1], np.tile(influence[order], 2), atol=1e-9)
    if score in ("pearson", "spearman", "matthews"):  # of one answer to every item
        assert not np.any(SCORES[score](both[0], np.ones(30))[1])


@pytest.mark.parametrize("score", ["precision", "recall", "f1"])
def test_entities_weigh_by_their_sentence(score):
    names, sizes = np.array(["O", "B-A", "I-A", "B-B", "I-B"]), np.random.default_rng(1).integers(1, 9, size=150)
    sentences, (labels, predictions) = np.repeat(np.arange(150), sizes), answers("", sizes.sum()) % np.array(5)

    def found(is_kept):
        return influence_of_entities(score, *names[[labels[is_kept], predictions[is_kept]]], sentences[is_kept])

    value, words = found(sentences >= 0)
    outputs, offsets = np.eye(5, dtype=np.float32)[predictions], np.append(0, np.cumsum(sizes))
    assert value == pytest.approx(compute_scores("tokens", labels, outputs, offsets=offsets, label_names=names)[score])
    without = [found(sentences != i)[0] for i in range(150)]
    np.testing.assert_allclose(by_cluster(words, sentences), 149 * (value - np.array(without)), atol=0.05)
