"""The reverse: the same identities as forward, in the body from before, and the probe that is fitted to each."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.special import softmax

from tests.questions.conftest import GetRun
from tests.questions.transplants.test_transplant_play import put_embeddings
from tests.refusals import check_refusals
from toolkit.analysis.shapley import shapley_values
from toolkit.data.tasks import load_task
from toolkit.models.tuned import load_untuned
from toolkit.questions.transplants.games import Body, Probe, TransplantSettings, build_components, play_run, score_items
from toolkit.training.encoding import encode_task
from toolkit.training.features import PROBE_STRENGTHS

LIKELIHOOD = "log-likelihood"
REVERSE = TransplantSettings(direction="reverse", num_reverse_draws=0)


def untuned_body(run, dtype="float32", *, with_last_snapshot=False):
    """The model from before as it is loaded, or with all five parameters of the last epoch copied into it."""
    loaded = load_untuned(run)
    data = encode_task(load_task(run.config), loaded, run.config.max_length)
    if with_last_snapshot:
        put_embeddings(loaded, run.trajectory.snapshots[-1].tensors)
    return Body(loaded, data, dtype), data


@pytest.mark.parametrize("task", ["single", "pair"])
def test_raw_coordinates_start_in_the_model_from_before_and_end_in_the_tuned_embeddings(
    tuned_run: GetRun, task: str
) -> None:
    run = tuned_run(task)
    game = play_run(run, replace(REVERSE, coordinates="raw"))
    (before, data), (after, _) = untuned_body(run), untuned_body(run, with_last_snapshot=True)
    ends = [[body.features(data.splits[name]) for name in ("train", "validation")] for body in (before, after)]
    probe = Probe(data.splits["train"].labels, 2, run.config.seed)
    probe.choose_strength([train for train, _ in ends])
    for coalition, (train, scored) in zip((0, -1), ends, strict=True):
        expected = score_items(probe.outputs(train, scored), data.splits["validation"].labels)
        np.testing.assert_array_equal(game.values[LIKELIHOOD][coalition], expected[LIKELIHOOD])


@pytest.mark.parametrize("task", ["single", "pair"])
def test_the_fixed_gauge_changes_no_feature_of_the_body_from_before(tuned_run: GetRun, task: str) -> None:
    run = tuned_run(task)
    for dtype, bound in (("float32", 1e-5), ("float64", 1e-12)):
        body, data = untuned_body(run, dtype)
        after = {name: np.array(tensor) for name, tensor in run.trajectory.snapshots[-1].tensors.items()}
        splits, found = list(data.splits.values()), []
        for coordinates in ("raw", "fixed"):
            components = build_components(run, after, data, splits, coordinates)
            placed = components.place(2 ** len(components.players) - 1)
            body.place(placed)
            found.append(body.features(data.splits["validation"]))
        assert np.abs(found[0] - found[1]).max() <= bound
        rows, words = placed["word_embeddings"]
        body.place({**placed, "word_embeddings": (rows, 1.1 * words)})  # no gauge: it must show
        assert np.abs(body.features(data.splits["validation"]) - found[0]).max() > 1e-3


def test_values_add_up_and_a_coalition_or_a_draw_is_one_pass(tuned_run: GetRun) -> None:
    game = play_run(tuned_run("pair"), replace(REVERSE, num_reverse_draws=1, num_draws=9))
    for values in game.values.values():
        np.testing.assert_allclose(shapley_values(values).sum(axis=0), values[-1] - values[0], atol=1e-12)
    assert (game.num_passes, game.gauge) == (64 + 7 + 4, None)
    for kind, (drawn, applies) in {"random": (7, range(7)), "rotated": (4, (0, 1, 2, 6))}.items():
        found = game.perturbed[kind][LIKELIHOOD]
        assert found.shape[:2] == (7, 1)
        assert [i for i in range(7) if np.isfinite(found[i]).all()] == list(applies)
        assert sum(bool((own != game.values[LIKELIHOOD][0]).any()) for own in found[list(applies), 0]) == drawn


@pytest.mark.parametrize("coordinates", ["fixed", "raw"])
def test_what_was_frozen_gets_exactly_0(tuned_run: GetRun, coordinates: str) -> None:
    game = play_run(
        tuned_run("pair", freeze="position_embeddings"), replace(REVERSE, num_reverse_draws=1, coordinates=coordinates)
    )
    phi = dict(zip(game.players, shapley_values(game.values[LIKELIHOOD]), strict=True))
    assert [name for name in game.players if not phi[name].any()] == ["position"]
    for drawn in game.perturbed.values():
        np.testing.assert_array_equal(drawn[LIKELIHOOD][1, 0], game.values[LIKELIHOOD][0])


def test_all_embeddings_frozen_is_one_pass_and_all_0(tuned_run: GetRun) -> None:
    game = play_run(tuned_run("pair", freeze="embeddings"), replace(REVERSE, num_reverse_draws=2))
    assert (game.num_passes, shapley_values(game.values[LIKELIHOOD]).any()) == (1, False)


def make_data(num_items=120, num_classes=3, hidden=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=num_items)
    return rng.normal(size=(num_classes, hidden))[labels] + rng.normal(size=(num_items, hidden)), labels


def test_the_strength_has_the_least_cross_validated_loss_over_both_ends_together() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, labels = make_data()
    ends = [features, features + np.random.default_rng(1).normal(0, 3, features.shape)]
    folds, chosen = StratifiedKFold(5, shuffle=True, random_state=4), []
    losses = np.empty((2, len(PROBE_STRENGTHS)))
    for (end, features), (place, strength) in product(enumerate(ends), enumerate(PROBE_STRENGTHS)):
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=3000, tol=1e-10))
        losses[end, place] = -cross_val_score(pipeline, features, labels, cv=folds, scoring="neg_log_loss").mean()
    for own in ([0], [1], [0, 1], [1, 0]):
        probe = Probe(labels, 3, seed=4)
        probe.choose_strength([ends[end] for end in own])
        assert probe.strength == PROBE_STRENGTHS[int(np.argmin(losses[own].sum(axis=0)))]
        chosen.append(probe.strength)
    assert chosen[0] != chosen[1]  # else the test of both together would show nothing


def test_the_probe_is_at_the_optimum_of_its_loss() -> None:
    """There C Σ (p - y) xᵀ + W = 0, with x standardised; scikit-learn's own tolerance misses it by more."""
    features, labels = make_data()
    probe = Probe(labels, 3, seed=0)
    probe.choose_strength([features])
    standard = (features - features.mean(axis=0)) / features.std(axis=0)
    outputs = probe.outputs(features, features)
    errors = softmax(outputs, axis=1) - np.eye(3)[labels]
    weights = np.linalg.lstsq(np.column_stack([standard, np.ones(len(labels))]), outputs, rcond=None)[0]
    gradient = probe.strength * errors.T @ standard + weights[:-1].T
    assert max(np.abs(gradient).max(), np.abs(errors.sum(axis=0)).max()) < 1e-6 * len(labels)


def test_a_class_that_training_lacks_is_never_chosen_and_two_classes_have_log_odds() -> None:
    features, labels = make_data(num_classes=2)
    for num_outputs in (2, 3):
        probe = Probe(labels, num_outputs, seed=0)
        probe.choose_strength([features])
        outputs = probe.outputs(features, features)
        assert (outputs.shape, (outputs[:, 2:] == -1e9).all()) == ((120, num_outputs), True)
        assert (outputs.argmax(axis=1) == labels).mean() > 0.7


@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 1], [0, 0, 0, 0]])
def test_too_few_items_of_a_class_are_refused(labels) -> None:
    check_refusals(("--max-probe-examples", lambda: Probe(np.array(labels), 2, seed=0)))
