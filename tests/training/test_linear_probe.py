"""The strength that warm-started folds choose is the one that scikit-learn's own search chooses."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from toolkit.training.features import PROBE_ITERATIONS, PROBE_STRENGTHS, choose_strength


def _problem(noise: float, num_classes: int, num_examples: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((num_examples, 20), dtype=np.float32) * np.geomspace(1, 30, 20, dtype=np.float32)
    scores = (features / features.std(axis=0)) @ rng.standard_normal((20, num_classes))
    return features, (scores + noise * rng.gumbel(size=scores.shape)).argmax(axis=1)


def test_it_is_the_choice_of_a_grid_search():
    chosen = []
    for noise, num_classes in ((0.05, 2), (2.0, 2), (20.0, 2), (3.0, 4)):
        features, labels = _problem(noise, num_classes)
        search = GridSearchCV(
            make_pipeline(StandardScaler(), LogisticRegression(max_iter=PROBE_ITERATIONS)),
            {"logisticregression__C": list(PROBE_STRENGTHS)},
            cv=StratifiedKFold(5, shuffle=True, random_state=3),
            scoring="neg_log_loss",
        ).fit(features, labels)
        chosen.append(choose_strength(features, labels, 5, seed=3))
        assert chosen[-1] == search.best_params_["logisticregression__C"]
    assert len(set(chosen)) >= 3  # the problems ask for different strengths


@pytest.mark.parametrize("threads", [1, 3])
def test_it_does_not_depend_on_the_number_of_threads(monkeypatch, threads):
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    assert choose_strength(*_problem(2.0, 3), 4, seed=0) == choose_strength(*_problem(2.0, 3), 4, seed=0)
    features, labels = _problem(2.0, 3)
    with pytest.raises(ValueError, match="n_splits"):
        choose_strength(features, labels, 1, seed=0)
