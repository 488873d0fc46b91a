"""A position table in, how well its rows tell their position out: linear decoding, and the order of two rows.

The idea of decoding positions from their vectors is Wang & Chen's (2020); estimator, folds and pairs are ours. Tables
are (n, p) float64.
"""

from typing import Any

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Refused

NUM_FOLDS = 5
NUM_PAIRS = 20_000
PENALTIES = np.geomspace(1e-9, 1e5, 29)
"""Ridge penalties on offer, for standardised columns; plain least squares is degenerate where rows ≈ columns."""


def predict_positions(table: Array, *, seed: int = 0, is_shuffled: bool = True) -> Array:
    """(n,) the position of each row as predicted from rows of the other folds: standardised ridge regression.

    Five folds of positions, shuffled by ``seed``; the penalty is chosen within the training rows by leave-one-out.
    Contiguous folds (``is_shuffled=False``) ask for extrapolation instead and fail even for the sinusoid.
    Refused for fewer than 10 rows.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.model_selection import KFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(table) < 2 * NUM_FOLDS:
        raise Refused(f"decoding needs {2 * NUM_FOLDS} rows; got {len(table)}")
    folds = KFold(NUM_FOLDS, shuffle=is_shuffled, random_state=seed if is_shuffled else None)
    model = make_pipeline(StandardScaler(), RidgeCV(alphas=PENALTIES))
    return np.asarray(cross_val_predict(model, table, np.arange(len(table), dtype=np.float64), cv=folds))


def decoding_error(table: Array, *, seed: int = 0, is_shuffled: bool = True) -> float:
    """Mean absolute error, in positions, of :func:`predict_positions`; n / 4 is that of always saying the middle."""
    predicted = predict_positions(table, seed=seed, is_shuffled=is_shuffled)
    return float(np.abs(predicted - np.arange(len(table))).mean())


def order_error(table: Array, *, num_pairs: int = NUM_PAIRS, seed: int = 0) -> float:
    """Error rate of a logistic regression that tells which of two rows comes first; .5 is chance.

    A pair is represented by the difference of its rows, earlier minus later with the sign flipped at random (so that
    both answers are equally frequent and no intercept is needed). Four fifths of the positions, drawn by ``seed``, give
    ``num_pairs`` training pairs drawn with replacement; the test pairs are all pairs among the other positions: no
    position is in both. Refused for fewer than 10 rows.
    """
    if len(table) < 2 * NUM_FOLDS:
        raise Refused(f"the order of pairs needs {2 * NUM_FOLDS} rows; got {len(table)}")
    rng = np.random.default_rng([seed, len(table)])
    positions = rng.permutation(len(table))
    num_test = len(table) // NUM_FOLDS
    test, train = positions[:num_test], positions[num_test:]
    first = rng.integers(len(train), size=num_pairs)
    second = (first + rng.integers(1, len(train), size=num_pairs)) % len(train)  # never the row itself
    model = _order_model()
    model.fit(table[train[first]] - table[train[second]], train[first] < train[second])
    left, right = np.triu_indices(num_test, 1)
    predicted = model.predict(table[test[left]] - table[test[right]])
    return float(np.mean(predicted != (test[left] < test[right])))


def _order_model() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # Differences have mean 0 by symmetry: scaling only keeps them antisymmetric. A penalty 100 times the default, with
    # which noise converges in a fraction of the steps; the error rates are no worse (measured on the references).
    classifier = LogisticRegression(C=0.01, fit_intercept=False, max_iter=2000)
    return make_pipeline(StandardScaler(with_mean=False), classifier)
