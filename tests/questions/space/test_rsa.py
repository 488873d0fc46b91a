"""The distances between permuted items are the permuted distances: what a null of RSA is made of."""

import numpy as np

from toolkit.analysis.kernels import item_distances
from toolkit.questions.space.similarity_measures import permute_items


def test_permuted_items():
    x = np.random.default_rng(3).normal(size=(9, 4))
    order = np.random.default_rng(4).permutation(9)
    assert np.allclose(permute_items(item_distances(x), order), item_distances(x[order]))
