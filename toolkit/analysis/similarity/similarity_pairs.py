"""Two versions of the same rows in, what several similarities need of them out, computed once; and null pairs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.lazy import LazyProperty
from toolkit.analysis.similarity.moments import BLOCK_ROWS, Moments, moments_of, noise_moments, permuted_moments
from toolkit.analysis.similarity.neighbourhoods import Neighbourhoods, find_neighbourhoods
from toolkit.analysis.similarity.refusal import Rows
from toolkit.analysis.similarity.rsa import item_distances, permute_items

MAX_QUERIES = 1000
"""Rows whose neighbours are looked up (among all rows)."""
MAX_ITEMS = 500
"""Rows whose distances to one another are compared: 124,750 pairs."""
MAX_NULL_ROWS = 32_768
"""Rows of a null: BERT's whole vocabulary. Of a longer table as many are drawn, and the value over these rows too
is given, because most nulls depend on how many rows there are."""


@dataclass(frozen=True)
class TablePair:
    """Two versions of the same rows, (n, p) float32 or float64 both."""

    reference: Rows
    current: Rows
    k: int = 10
    """Neighbours of a row."""
    seed: int = 0
    """Draws the rows that are items and queries where there are more than MAX_ITEMS, MAX_QUERIES."""

    @LazyProperty
    def drawn(self) -> NDArray[np.int64]:
        """(n,) all rows in random order: the first are the items, the first some more the queries."""
        return np.random.default_rng([*b"drawn rows", self.seed]).permutation(len(self.reference))

    @property
    def items(self) -> NDArray[np.int64]:
        return np.sort(self.drawn[:MAX_ITEMS])

    @property
    def queries(self) -> NDArray[np.int64]:
        return np.sort(self.drawn[:MAX_QUERIES])

    @LazyProperty
    def drift_lengths(self) -> Array:
        """(n,) float64 Euclidean length of each row's drift."""
        lengths = np.empty(len(self.reference))
        for start in range(0, len(lengths), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            lengths[rows] = np.linalg.norm(
                np.subtract(self.current[rows], self.reference[rows], dtype=np.float64), axis=1
            )
        return lengths

    @LazyProperty
    def moments(self) -> Moments:
        return moments_of(self.reference, self.current)

    @LazyProperty
    def distances(self) -> tuple[Array, Array]:
        """(items, items) distances between the items in both versions."""
        return item_distances(self.reference[self.items]), item_distances(self.current[self.items])

    @LazyProperty
    def raw_neighbours(self) -> Neighbourhoods:
        return find_neighbourhoods(self.reference, self.current, self.k, queries=self.queries)

    @LazyProperty
    def centred_neighbours(self) -> Neighbourhoods:
        return find_neighbourhoods(self.reference, self.current, self.k, queries=self.queries, is_centred=True)


@dataclass(frozen=True)
class PermutedPair(TablePair):
    """A pair whose current rows were dealt out anew: row i holds what row ``order[i]`` held. Little is recomputed."""

    origin: TablePair = field(kw_only=True)
    order: NDArray[np.int64] = field(kw_only=True)

    @LazyProperty
    def moments(self) -> Moments:
        return permuted_moments(self.origin.moments, self.current, self.order)

    @LazyProperty
    def distances(self) -> tuple[Array, Array]:
        reference, current = self.origin.distances
        return reference, permute_items(current, np.searchsorted(self.items, self.order[self.items]))

    @LazyProperty
    def raw_neighbours(self) -> Neighbourhoods:
        return self._renamed(self.origin.raw_neighbours)

    @LazyProperty
    def centred_neighbours(self) -> Neighbourhoods:
        return self._renamed(self.origin.centred_neighbours)

    def _renamed(self, found: Neighbourhoods) -> Neighbourhoods:
        """The neighbours of row i are those of row order[i], under the names that they have now."""
        place = np.full(len(self.order), -1)
        place[found.queries] = np.arange(len(found.queries))
        sources = place[self.order[found.queries]]
        kept = sources >= 0  # a row without a direction was no query
        current = np.argsort(self.order)[found.current[sources[kept]]]
        return Neighbourhoods(found.queries[kept], found.reference[kept], current, found.num_others[kept], found.means)


def _permuted(pair: TablePair, generator: np.random.Generator) -> TablePair:
    """Items stay among the items and queries among the queries, so that what was found for them can be dealt out."""
    order = np.empty(len(pair.drawn), np.int64)
    for group in np.split(pair.drawn, [MAX_ITEMS, MAX_QUERIES]):
        order[group] = generator.permutation(group)
    return PermutedPair(pair.reference, pair.current[order], pair.k, pair.seed, origin=pair, order=order)


def _gaussians(pair: TablePair, generator: np.random.Generator) -> TablePair:
    reference, current = (generator.standard_normal(pair.reference.shape, np.float32) for _ in range(2))
    return TablePair(reference, current, pair.k, pair.seed)


def _noise(pair: TablePair, generator: np.random.Generator) -> TablePair:
    """The reference, and the reference plus Gaussian noise as long, row by row, as the real drift."""
    moments = noise_moments(pair.moments, pair.drift_lengths, generator)
    drawn = TablePair(pair.reference, moments.versions[1], pair.k, pair.seed)
    vars(drawn)["moments"] = moments  # where the lazy property would keep them: they came with the draw
    return drawn


PERMUTED = "permuted rows"
NOISE = "isotropic drift"
NULLS: Mapping[str, Callable[[TablePair, np.random.Generator], TablePair]] = {
    PERMUTED: _permuted,
    "independent Gaussians": _gaussians,
    NOISE: _noise,
}
"""Pairs of the same shape in which no row corresponds, or (isotropic drift) each row moved as far but anywhere."""


def null_base(pair: TablePair) -> TablePair:
    """The pair that nulls are made of: the pair itself, or MAX_NULL_ROWS of its rows drawn at random."""
    if len(pair.drawn) <= MAX_NULL_ROWS:
        return pair
    rows = np.sort(pair.drawn[:MAX_NULL_ROWS])
    return TablePair(pair.reference[rows], pair.current[rows], pair.k, pair.seed)
