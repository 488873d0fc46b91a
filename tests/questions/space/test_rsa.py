"""RSA against scipy, and its interval against the spread over fresh items, which pairs as units would understate."""

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from toolkit.analysis.kernels import item_distances, rsa_of_distances
from toolkit.questions.space import similarity_measures as module
from toolkit.questions.space.similarity_measures import permute_items, rsa_interval


@pytest.mark.parametrize("is_ranked", [True, False])
def test_the_interval_is_that_of_copied_items_without_pairs_of_copies(is_ranked, monkeypatch):
    monkeypatch.setattr(module, "NUM_RESAMPLES", 15)
    monkeypatch.setattr(module, "MIN_ITEMS", 2)
    x, noise = np.random.default_rng(0).normal(size=(2, 12, 3))
    x, y = np.round(x, 1), np.round(x + noise, 1)
    distances = item_distances(x), item_distances(y)
    generator = np.random.default_rng([*b"rsa", 5])
    values = []
    for _ in range(15):
        items = generator.integers(12, size=12)
        pairs = [(items[i], items[j]) for i in range(12) for j in range(i) if items[i] != items[j]]
        sides = [[side[pair] for pair in pairs] for side in distances]
        values.append((spearmanr if is_ranked else pearsonr)(*sides)[0])
    assert np.allclose(rsa_interval(*distances, is_ranked=is_ranked, seed=5), np.quantile(values, [0.025, 0.975]))


def test_the_interval_is_as_wide_as_the_spread_over_fresh_items():
    rng = np.random.default_rng(1)
    draws = []
    for _ in range(150):
        x, noise = rng.normal(size=(2, 40, 5))
        draws.append((item_distances(x), item_distances(x + noise)))
    values = [rsa_of_distances(*draw) for draw in draws]
    widths = [np.subtract(*rsa_interval(*draw)[::-1]) for draw in draws[:25]]
    spread = 2 * 1.96 * np.std(values)
    assert 0.75 < np.mean(widths) / spread < 1.5
    pairs = np.triu_indices(40, 1)
    over_pairs = []
    for left, right in draws[:10]:
        chosen = [rng.integers(len(pairs[0]), size=len(pairs[0])) for _ in range(60)]
        resampled = [spearmanr(left[pairs][some], right[pairs][some])[0] for some in chosen]
        over_pairs.append(np.subtract(*np.quantile(resampled, [0.975, 0.025])))
    assert np.mean(over_pairs) < 0.7 * spread, "resampled pairs would be as good: the test has lost its point"


def test_few_items_have_no_interval_and_copies_of_one_item_no_correlation(monkeypatch):
    x, y = np.random.default_rng(6).normal(size=(2, 20, 4))
    assert np.isfinite(rsa_interval(item_distances(x), item_distances(y))).all()
    assert np.isnan(rsa_interval(item_distances(x[:19]), item_distances(y[:19]))).all()
    monkeypatch.setattr(module, "MIN_ITEMS", 2)
    assert np.isfinite(rsa_interval(item_distances(x[:4]), item_distances(y[:4]))).all()


def test_permuted_items():
    x = np.random.default_rng(3).normal(size=(9, 4))
    order = np.random.default_rng(4).permutation(9)
    assert np.allclose(permute_items(item_distances(x), order), item_distances(x[order]))
