"""The linear probe is what scikit-learn's own search finds, to the item, whatever the size and width of features; and
it is the head where the trained one is no better by more than noise."""

from dataclasses import replace
from itertools import product

import joblib
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn

from toolkit.data.batches import EncodedSplit, EncodedTask, WordTokens
from toolkit.data.splits import Task
from toolkit.training import features as features_module
from toolkit.training.features import (
    PROBE_STRENGTHS,
    LinearProbe,
    choose_strength,
    fit_linear,
    keep_the_better,
    linear_probe,
)


def _problem(noise: float, num_classes: int, num_examples: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((num_examples, 20), dtype=np.float32) * np.geomspace(1, 30, 20, dtype=np.float32)
    scores = (features / features.std(axis=0)) @ rng.standard_normal((20, num_classes))
    return features, (scores + noise * rng.gumbel(size=scores.shape)).argmax(axis=1)


class OneScale(FunctionTransformer):
    """Centred, and divided by one number: what the probe does where it does not standardise."""

    def fit(self, X, y=None):
        self.mean_, self.scale_ = X.mean(axis=0), np.sqrt(X.var(axis=0).mean())
        return super().fit(X, y)

    def transform(self, X):
        return (X - self.mean_) / self.scale_


def searched(features, labels, *, is_regression, seed):
    """The best model of both scalings, fitted, and its strength, by scikit-learn's cross-validation.

    By squared error; or by log loss, of those whose hits are within a standard error of the most.
    """
    found = []
    for scaler, strength in product((StandardScaler(), OneScale()), PROBE_STRENGTHS):
        head = Ridge(1 / strength, solver="svd") if is_regression else LogisticRegression(C=strength, max_iter=300)
        model, kind = make_pipeline(scaler, head), KFold if is_regression else StratifiedKFold
        given = {"estimator": model, "X": features, "y": labels, "cv": kind(5, shuffle=True, random_state=seed)}
        judge = "neg_mean_squared_error" if is_regression else "neg_log_loss"
        hits = np.zeros(1) if is_regression else 1.0 * (cross_val_predict(**given) == labels)
        found.append((hits, cross_val_score(**given, scoring=judge).mean(), strength, model))
    most = max((own[0] for own in found), key=np.mean)
    near = [own for own in found if (most - own[0]).mean() <= np.sqrt(np.var(most - own[0]) / len(most))]
    _, _, strength, model = max(near, key=lambda own: own[1])
    return model.fit(features, labels), strength


def encoded(kind, labels, num_outputs):
    ends = {name: np.arange(len(own) + 1) for name, own in labels.items()}
    splits = {name: EncodedSplit(e[:-1], labels[name], e[:-1], e[:-1], e, 0, 0) for name, e in ends.items()}
    task = Task(
        name="t",
        kind=kind,
        label_names=tuple(map(str, range(num_outputs))) if kind == "classification" else (),
        splits={},
        reported_split="validation",
        score="accuracy",
        file_hashes={},
    )
    return EncodedTask(task=task, splits=splits, pad_id=0, num_segments=0, position_offset=0)


HELD_OUT = np.arange(0, 240, 3)
KEPT = np.setdiff1d(np.arange(240), HELD_OUT)


def planted(kind, num_words=1):
    """Features of which the first four of 60 coordinates, the smallest, tell the labels; of examples of equal words."""
    rng, noise = np.random.default_rng(0), 4 if kind == "regression" else 1
    features = (rng.standard_normal((240, 60)) * np.geomspace(0.1, 10, 60)).astype(np.float32)
    values = features[:, :4] @ np.full(4, 20.0) + noise * rng.standard_normal(240)
    labels = values if kind == "regression" else (values > 0).astype(int)
    features, labels = (np.repeat(each, num_words, axis=0) for each in (features, labels))
    data = encoded(kind, {"train": labels}, 2)
    words = WordTokens(labels, labels, np.arange(0, len(labels) + 1, num_words))
    return features, replace(data, splits={"train": replace(data.splits["train"], ids=np.arange(240), words=words)})


def keep(features, data, probe, trained):
    """What is said of the head that is kept beside a trained one, a linear map, after a look at its weights."""
    head = nn.Linear(60, len(trained[1]))
    head.weight.data, head.bias.data = (torch.from_numpy(values).float() for values in trained)
    facts = keep_the_better(head, probe, features, data, KEPT, HELD_OUT)
    kept = trained if facts["chosen"] == "trained" else probe.linear_map
    np.testing.assert_array_equal(head.weight.detach(), kept[0].astype(np.float32))
    return facts


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_convex_head_is_kept_unless_the_trained_one_is_better_by_more_than_noise(kind):
    features, data = planted(kind)
    signs = [1.0] if kind == "regression" else [-0.5, 0.5]
    probe = linear_probe(nn.Linear(60, 2), {"train": features}, data, 0)
    rule = np.outer(signs, 20.0 * (np.arange(60) < 4)), np.zeros(len(signs))
    few = features[KEPT], data.splits["train"].labels[KEPT]
    overfitted, same = (
        fit_linear(*few, strength, probe.choice["is_standardised"], len(signs))
        for strength in (1e6, probe.choice["strength"])
    )
    # What knows the rule; what fits noise; what is as good and lucky, as the best of many epochs is.
    assert [keep(features, data, probe, own)["chosen"] for own in (rule, overfitted)] == ["trained", "convex"]
    rng = np.random.default_rng(1)
    lucky = [(same[0] * (1 + 0.1 * rng.standard_normal(same[0].shape)), same[1]) for _ in range(20)]
    found = [keep(features, data, probe, own) for own in lucky]
    assert min(own["held_out_error"] for own in found) < found[0]["convex"]["held_out_error"]
    assert {own["chosen"] for own in found} == {"convex"}


def test_equal_words_of_an_example_are_one_observation():
    """Each of five words adds a fifth of the loss that an example had before, so that a fifth of C is the same fit."""
    own, said = (np.ones((2, 60)), np.ones(2)), []
    for num_words in (1, 5):
        probe = LinearProbe(own, {}, {"strength": 0.1 / num_words, "is_standardised": True}, 0.0)
        said.append(keep(*planted("classification", num_words), probe, own)["convex"])
    for name in ("held_out_loss", "standard_error"):
        assert said[1][name] == pytest.approx(said[0][name], rel=1e-2)


def test_problems_ask_for_different_choices():
    assert len({choose_strength(*_problem(noise, 2), 5, seed=3) for noise in (0.05, 2.0, 20.0)}) == 3
    rng = np.random.default_rng(0)
    features = rng.standard_normal((300, 40)).astype(np.float32) * np.geomspace(1e-3, 1, 40, dtype=np.float32)
    # What is small says nothing of the first labels, and everything of the second.
    for told, is_standardised in ((features[:, -1], False), (features[:, 0] * 1e3, True)):
        labels = (told + 0.3 * rng.standard_normal(300) > 0).astype(int)
        assert choose_strength(features, labels, 5, seed=0)[1] is is_standardised


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("width", [30, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_it_answers_every_item_as_scikit_learn_does(kind, width):
    """Also with more coordinates than examples, where it is fitted in another space; and where the standard error
    decides, as it does of these classes of 30 coordinates."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((width, 3)) / np.sqrt(width)
    arrays = {n: rng.standard_normal((s, width)).astype(np.float32) for n, s in (("train", 250), ("validation", 90))}
    arrays = {name: 3 * array * np.linspace(0.5, 2, width, dtype=np.float32) + 1 for name, array in arrays.items()}
    noise = {name: 0.3 * rng.standard_normal((len(array), 3)) for name, array in arrays.items()}
    scores = {name: array @ weights + noise[name] for name, array in arrays.items()}
    is_regression = kind == "regression"
    labels = {name: s[:, 0] if is_regression else s.argmax(axis=1) for name, s in scores.items()}
    probe = linear_probe(nn.Linear(width, 1 if is_regression else 3), arrays, encoded(kind, labels, 3), seed=4)
    model, strength = searched(arrays["train"], labels["train"], is_regression=is_regression, seed=4)
    expected = model.predict(arrays["validation"])
    assert probe.choice["strength"] == strength
    assert 0 < probe.seconds < 600
    if is_regression:
        np.testing.assert_allclose(probe.outputs["validation"][:, 0], expected, rtol=1e-3, atol=1e-3)
    else:
        np.testing.assert_array_equal(probe.outputs["validation"].argmax(axis=1), expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_nothing_warns_of_features_that_say_one_thing_twice(kind):
    """Singular products, constant coordinates and separable classes: what made SciPy and scikit-learn warn."""
    base = np.random.default_rng(0).standard_normal((60, 5)).astype(np.float32)
    features = np.hstack([base, base, base * 1e-4, np.full((60, 2), 3.0, np.float32), np.zeros((60, 1), np.float32)])
    labels = base[:, 0].astype(float) if kind == "regression" else (base[:, 0] > 0).astype(int)
    data = encoded(kind, {"train": labels, "validation": labels}, 2)
    probe = linear_probe(nn.Linear(features.shape[1], 2), {"train": features, "validation": features}, data, 0)
    outputs = probe.outputs["validation"]
    assert np.isfinite(outputs).all()
    is_right = np.abs(outputs[:, 0] - labels) < 0.05 if kind == "regression" else outputs.argmax(axis=1) == labels
    assert is_right.mean() > (0.95 if kind == "classification" else 0.999)


def test_its_choice_is_made_on_a_part_of_many_numbers(monkeypatch):
    monkeypatch.setattr(features_module, "PROBE_CELLS", 2000)
    monkeypatch.setattr(features_module, "LEAST_COMPARED", 50)
    features, labels = _problem(2.0, 2)
    data = encoded("classification", {"train": labels, "validation": labels}, 2)
    arrays = {"train": features, "validation": features}
    assert linear_probe(nn.Linear(20, 2), arrays, data, 0).choice["num_compared"] == 100
    monkeypatch.undo()
    assert linear_probe(nn.Linear(20, 2), arrays, data, 0).choice["num_compared"] == 300


def test_a_class_of_one_example_has_no_probe():
    """One of two has: an example in each of two folds."""
    features, labels = _problem(2.0, 2)
    for num_rare in (1, 2):
        labels[:] = np.arange(len(labels)) < num_rare
        data = encoded("classification", {"train": labels, "validation": labels}, 2)
        probe = linear_probe(nn.Linear(20, 2), {"train": features, "validation": features}, data, 0)
        assert (probe is None) == (num_rare == 1)
    # Beside two other classes it takes no part in the choice, and in the fit it does.
    labels = np.concatenate([[0], 1 + _problem(2.0, 2)[1][1:]])
    probe = linear_probe(nn.Linear(20, 3), {"train": features}, encoded("classification", {"train": labels}, 4), 0)
    assert probe.choice["num_compared"] == 299
    assert (list(probe.linear_map[1][3:]), np.ptp(probe.linear_map[0][0]) > 0) == ([-20], True)


def test_folds_run_side_by_side_though_torch_sees_one_thread_within_the_fits(monkeypatch):
    asked, features = [], {name: _problem(2.0, 3)[0] for name in ("train", "validation")}
    data = encoded("classification", {name: _problem(2.0, 3)[1] for name in features}, 3)
    fit_all = joblib.Parallel
    monkeypatch.setattr(
        joblib,
        "Parallel",
        lambda n_jobs, **kind: asked.append((n_jobs, torch.get_num_threads())) or fit_all(n_jobs, **kind),
    )
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        linear_probe(nn.Linear(20, 3), features, data, 0)
    finally:
        torch.set_num_threads(before)
    assert set(asked) == {(3, 1)}


@pytest.mark.parametrize("threads", [1, 3])
def test_it_does_not_depend_on_the_number_of_threads(threads):
    assert choose_strength(*_problem(2.0, 3), 4, 0) == choose_strength(*_problem(2.0, 3), 4, 0, threads)
