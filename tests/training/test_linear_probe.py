"""The linear probe is what scikit-learn's own search finds, to the item, whatever the size and width of features."""

import joblib
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn

from tests.refusals import check_refused
from toolkit.data.batches import EncodedSplit, EncodedTask
from toolkit.data.tasks import Task
from toolkit.training import features as features_module
from toolkit.training.features import (
    PROBE_ITERATIONS,
    PROBE_STRENGTHS,
    choose_ridge,
    choose_strength,
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
    """The best of both scalings by scikit-learn's search; standardised first, so that it wins a tie."""
    found = []
    for scaler in (StandardScaler(), OneScale()):
        if is_regression:
            model, scoring = Ridge(solver="svd"), "neg_mean_squared_error"
            cv = KFold(5, shuffle=True, random_state=seed)
            grid = {"ridge__alpha": [1 / s for s in PROBE_STRENGTHS]}
        else:
            model, scoring = LogisticRegression(max_iter=PROBE_ITERATIONS), "neg_log_loss"
            cv = StratifiedKFold(5, shuffle=True, random_state=seed)
            grid = {"logisticregression__C": list(PROBE_STRENGTHS)}
        found.append(GridSearchCV(make_pipeline(scaler, model), grid, cv=cv, scoring=scoring).fit(features, labels))
    return max(found, key=lambda search: search.best_score_)


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


@pytest.mark.slow  # fits hundreds of probes
@pytest.mark.filterwarnings("ignore")  # of scikit-learn's search
@pytest.mark.parametrize(("noise", "num_classes"), [(0.05, 2), (2.0, 2), (20.0, 2), (3.0, 4)])
def test_its_choice_is_that_of_a_grid_search(noise, num_classes):
    features, labels = _problem(noise, num_classes)
    search = searched(features, labels, is_regression=False, seed=3)
    strength, is_standardised = choose_strength(features, labels, 5, seed=3)
    assert strength == search.best_params_["logisticregression__C"]
    assert is_standardised == isinstance(search.best_estimator_[0], StandardScaler)


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
    """Also with more coordinates than examples, where it is fitted in another space."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((width, 3)) / np.sqrt(width)
    arrays = {n: rng.standard_normal((s, width)).astype(np.float32) for n, s in (("train", 250), ("validation", 90))}
    arrays = {name: 3 * array * np.linspace(0.5, 2, width, dtype=np.float32) + 1 for name, array in arrays.items()}
    noise = {name: 0.3 * rng.standard_normal((len(array), 3)) for name, array in arrays.items()}
    scores = {name: array @ weights + noise[name] for name, array in arrays.items()}
    is_regression = kind == "regression"
    labels = {name: s[:, 0] if is_regression else s.argmax(axis=1) for name, s in scores.items()}
    probe = linear_probe(nn.Linear(width, 1 if is_regression else 3), arrays, encoded(kind, labels, 3), seed=4)
    search = searched(arrays["train"], labels["train"], is_regression=is_regression, seed=4)
    expected = search.predict(arrays["validation"])
    if is_regression:
        np.testing.assert_allclose(probe.outputs["validation"][:, 0], expected, rtol=1e-3, atol=1e-3)
        assert probe.strength == pytest.approx(1 / search.best_params_["ridge__alpha"])
    else:
        np.testing.assert_array_equal(probe.outputs["validation"].argmax(axis=1), expected)
        assert probe.strength == search.best_params_["logisticregression__C"]


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
    assert linear_probe(nn.Linear(20, 2), arrays, data, 0).num_compared == 100
    monkeypatch.undo()
    assert linear_probe(nn.Linear(20, 2), arrays, data, 0).num_compared == 300


def test_a_class_of_one_example_has_no_probe():
    features, labels = _problem(2.0, 2)
    labels[:] = np.arange(len(labels)) == 0
    data = encoded("classification", {"train": labels, "validation": labels}, 2)
    assert linear_probe(nn.Linear(20, 2), {"train": features, "validation": features}, data, 0) is None


def test_folds_run_side_by_side_though_torch_sees_one_thread_within_the_fits(monkeypatch):
    asked, features = [], {name: _problem(2.0, 3)[0] for name in ("train", "validation")}
    data = encoded("classification", {name: _problem(2.0, 3)[1] for name in features}, 3)
    fit_all = joblib.Parallel
    monkeypatch.setattr(joblib, "Parallel", lambda n_jobs, **kind: asked.append(n_jobs) or fit_all(n_jobs, **kind))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        linear_probe(nn.Linear(20, 3), features, data, 0)
    finally:
        torch.set_num_threads(before)
    assert set(asked) == {3}


@pytest.mark.parametrize("threads", [1, 3])
def test_it_does_not_depend_on_the_number_of_threads(threads):
    assert choose_strength(*_problem(2.0, 3), 4, 0) == choose_strength(*_problem(2.0, 3), 4, 0, threads)
    features, labels = _problem(2.0, 3)
    check_refused("n_splits", choose_strength, features, labels, 1, seed=0)


def test_the_ridge_of_a_line_needs_no_penalty():
    rng = np.random.default_rng(0)
    features = rng.standard_normal((200, 10)).astype(np.float32)
    assert choose_ridge(features, features @ np.arange(10.0), 5, seed=0)[0] == PROBE_STRENGTHS[-1]
    strength, _ = choose_ridge(features, rng.standard_normal(200), 5, seed=0)
    assert strength <= 0.01  # a penalty of 100 or more, of 160 examples
