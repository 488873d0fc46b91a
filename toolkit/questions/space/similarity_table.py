"""The list of matrix similarities: what each is, what leaves it unchanged, when it is refused."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.kernels import Rows, item_distances, rsa_of_distances
from toolkit.analysis.measures import Array
from toolkit.naming import Table
from toolkit.questions.space.cross_products import (
    BLOCK_ROWS,
    CrossProducts,
    cross_products_of,
    permuted_cross_products,
)
from toolkit.questions.space.similarity_measures import (
    Neighbourhoods,
    aligned_relative_drift,
    biased_cka,
    debiased_cka,
    find_neighbourhoods,
    overlap,
    permute_items,
    procrustes_similarity,
    pwcca,
    rotation_share,
    second_order_cosine,
    svcca,
    translation_share,
    unaligned_relative_drift,
)

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

    @cached_property
    def drawn(self) -> NDArray[np.int64]:
        """(n,) all rows in random order: the first are the items, the first some more the queries."""
        return np.random.default_rng([*b"drawn rows", self.seed]).permutation(len(self.reference))

    @property
    def items(self) -> NDArray[np.int64]:
        return np.sort(self.drawn[:MAX_ITEMS])

    @property
    def queries(self) -> NDArray[np.int64]:
        return np.sort(self.drawn[:MAX_QUERIES])

    @cached_property
    def products(self) -> CrossProducts:
        return cross_products_of(self.reference, self.current)

    @cached_property
    def distances(self) -> tuple[Array, Array]:
        """(items, items) distances between the items in both versions."""
        return item_distances(self.reference[self.items]), item_distances(self.current[self.items])

    @cached_property
    def raw_neighbours(self) -> Neighbourhoods:
        return find_neighbourhoods(self.reference, self.current, self.k, queries=self.queries)

    @cached_property
    def centred_neighbours(self) -> Neighbourhoods:
        return find_neighbourhoods(self.reference, self.current, self.k, queries=self.queries, is_centred=True)


@dataclass(frozen=True)
class PermutedPair(TablePair):
    """A pair whose current rows were dealt out anew: row i holds what row ``order[i]`` held. Little is recomputed."""

    origin: TablePair = field(kw_only=True)
    order: NDArray[np.int64] = field(kw_only=True)

    @cached_property
    def products(self) -> CrossProducts:
        return permuted_cross_products(self.origin.products, self.current, self.order)

    @cached_property
    def distances(self) -> tuple[Array, Array]:
        reference, current = self.origin.distances
        return reference, permute_items(current, np.searchsorted(self.items, self.order[self.items]))

    @cached_property
    def raw_neighbours(self) -> Neighbourhoods:
        return self._renamed(self.origin.raw_neighbours)

    @cached_property
    def centred_neighbours(self) -> Neighbourhoods:
        return self._renamed(self.origin.centred_neighbours)

    def _renamed(self, neighbourhoods: Neighbourhoods) -> Neighbourhoods:
        """The neighbourhoods of this pair, from those of the pair that it permutes, without a new search.

        Row i now holds what row ``order[i]`` held: it has that row's current neighbours, each at its new row. In the
        reference nothing was permuted.
        """
        query_number = np.full(len(self.order), -1)
        query_number[neighbourhoods.queries] = np.arange(len(neighbourhoods.queries))
        source_numbers = query_number[self.order[neighbourhoods.queries]]
        is_query = source_numbers >= 0  # a row without a direction was no query
        # argsort inverts a permutation: it takes an old row to the row that holds it now.
        current = np.argsort(self.order)[neighbourhoods.current[source_numbers[is_query]]]
        return Neighbourhoods(
            neighbourhoods.queries[is_query],
            neighbourhoods.reference[is_query],
            current,
            neighbourhoods.num_others,
            neighbourhoods.means,
        )


def _permuted(pair: TablePair, generator: np.random.Generator) -> TablePair:
    """The pair with current rows permuted: items among items, queries among queries, so that little is recomputed."""
    order = np.empty(len(pair.drawn), np.int64)
    for group in np.split(pair.drawn, [MAX_ITEMS, MAX_QUERIES]):
        order[group] = generator.permutation(group)
    return PermutedPair(pair.reference, pair.current[order], pair.k, pair.seed, origin=pair, order=order)


def _noise(pair: TablePair, generator: np.random.Generator) -> TablePair:
    """The reference, and the reference plus Gaussian noise as long, row by row, as the real drift."""
    current = np.empty(pair.reference.shape)  # in float32 the sum would lose what a small drift is made of
    for start in range(0, len(current), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        noise = generator.standard_normal(current[rows].shape, np.float32).astype(np.float64)
        lengths = np.linalg.norm(np.subtract(pair.current[rows], pair.reference[rows], dtype=np.float64), axis=1)
        current[rows] = pair.reference[rows] + noise * (lengths / np.sqrt(np.vecdot(noise, noise)))[:, None]
    return TablePair(pair.reference, current, pair.k, pair.seed)


PERMUTED = "permuted rows"
NOISE = "isotropic drift"
NULLS: Mapping[str, Callable[[TablePair, np.random.Generator], TablePair]] = {
    PERMUTED: _permuted,
    NOISE: _noise,
}
"""Pairs of the same shape in which no row corresponds, or (isotropic drift) each row moved as far but anywhere."""
STREAMS = {PERMUTED: 0, NOISE: 2}
"""Of the random numbers of each."""


def null_base(pair: TablePair) -> TablePair:
    """The pair that nulls are made of: the pair itself, or MAX_NULL_ROWS of its rows drawn at random."""
    if len(pair.drawn) <= MAX_NULL_ROWS:
        return pair
    rows = np.sort(pair.drawn[:MAX_NULL_ROWS])
    return TablePair(pair.reference[rows], pair.current[rows], pair.k, pair.seed)


ROTATION, SCALING, TRANSLATION = "rotation", "scaling", "translation"
SHAPE = frozenset({ROTATION, SCALING, TRANSLATION})
"""What leaves the shape of a cloud of points alone: an orthogonal map, one common factor above 0, one common shift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """A number that compares two versions of a table, and what must be known to read it."""

    function: Callable[[TablePair], float]
    """Raises Refused outside the range in which the number means anything."""
    source: str
    """Where the formula comes from, with any departure."""
    description: str
    """One plain sentence."""
    identical: float = 1.0
    """Its value when nothing moved; NaN where it is refused then."""
    invariant_to: frozenset[str] = SHAPE
    """What may be done to the current version alone without changing the value."""
    is_symmetric: bool = True
    """Whether the two versions may change places."""
    null: str = PERMUTED
    """The entry of NULLS that is shown beside it."""
    min_rows: int = 3
    """Below this many rows it is refused: undefined, or the same whatever the rows are."""


def _of_products(function: Callable[[CrossProducts], float]) -> Callable[[TablePair], float]:
    return lambda pair: function(pair.products)


def _rsa(pair: TablePair, *, is_ranked: bool) -> float:
    return rsa_of_distances(*pair.distances, is_ranked=is_ranked)


def _second_order(pair: TablePair, *, is_centred: bool) -> float:
    neighbourhoods = pair.centred_neighbours if is_centred else pair.raw_neighbours
    return _mean(second_order_cosine(pair.reference, pair.current, neighbourhoods))


def _mean(values: Array) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else math.nan


_CKA = "Kornblith et al. 2019 (arXiv 1905.00414)"
_HSIC = "Nguyen et al. 2021 (arXiv 2010.15327) with HSIC₁ of Song et al. 2012 (JMLR 13)"
_STANDARDISED = "; columns standardised first (ours)"
_PROCRUSTES = "Schönemann 1966"
_OURS = "defined by this project"
_PWCCA = "Morcos et al. 2018 (arXiv 1806.05759)"
_RSA = "Kriegeskorte et al. 2008, Euclidean distances"
_KNN = "share of common neighbours by cosine"
_CORRECTED = "; corrected for chance k/(n-1)"
_SECOND = "Hamilton, Leskovec & Jurafsky 2016 (arXiv 1606.02821)"
_TURN = frozenset({ROTATION, SCALING})
_SHIFT_AND_SCALE = frozenset({SCALING, TRANSLATION})

SIMILARITIES: Mapping[str, Similarity] = Table(
    {
        "biased_cka": Similarity(
            function=_of_products(biased_cka),
            source=_CKA,
            description="Whether rows relate to one another as before; unrelated rows give about p/(n+p), not 0.",
        ),
        "biased_cka_standardised": Similarity(
            function=_of_products(partial(biased_cka, is_standardised=True)),
            source=_CKA + _STANDARDISED,
            description="The same with every column given one weight.",
            invariant_to=_SHIFT_AND_SCALE,
        ),
        "debiased_cka": Similarity(
            function=_of_products(debiased_cka),
            source=_HSIC,
            description="Whether rows relate to one another as before; 0 on average for unrelated rows.",
            min_rows=4,
        ),
        "debiased_cka_standardised": Similarity(
            function=_of_products(partial(debiased_cka, is_standardised=True)),
            source=_HSIC + _STANDARDISED,
            description="The same with every column given one weight.",
            invariant_to=_SHIFT_AND_SCALE,
            min_rows=4,
        ),
        "procrustes_similarity": Similarity(
            function=_of_products(procrustes_similarity),
            source=_PROCRUSTES,
            description="Cosine of the two tables after the best shift and rotation.",
        ),
        "unaligned_relative_drift": Similarity(
            function=_of_products(unaligned_relative_drift),
            source="by definition",
            description="Length of the change as a share of the reference, nothing removed: the primary number.",
            identical=0.0,
            invariant_to=frozenset(),
            is_symmetric=False,
            min_rows=1,
        ),
        "aligned_relative_drift": Similarity(
            function=_of_products(aligned_relative_drift),
            source=_PROCRUSTES,
            description="What is left of it after the best shift and rotation, which absorb real drift of few rows.",
            identical=0.0,
            invariant_to=frozenset({ROTATION, TRANSLATION}),
            is_symmetric=False,
            null=NOISE,
        ),
        "translation_share": Similarity(
            function=_of_products(translation_share),
            source=_OURS,
            description="Share of the squared change that is one shift of all rows.",
            identical=math.nan,
            invariant_to=frozenset(),
            null=NOISE,
            min_rows=2,
        ),
        "rotation_share": Similarity(
            function=_of_products(rotation_share),
            source=_OURS,
            description="Share of the squared change that the best rotation or reflection removes after that shift.",
            identical=math.nan,
            invariant_to=frozenset(),
            null=NOISE,
        ),
        "svcca": Similarity(
            function=_of_products(svcca),
            source="Raghu et al. 2017 (arXiv 1706.05806)",
            description="Mean canonical correlation of the directions that hold 99 % of each version's variance.",
        ),
        "pwcca_reference": Similarity(
            function=_of_products(pwcca),
            source=_PWCCA,
            description="Canonical correlations weighted by how much of the reference they account for.",
            is_symmetric=False,
        ),
        "pwcca_current": Similarity(
            function=_of_products(partial(pwcca, weights_of="current")),
            source=_PWCCA,
            description="Canonical correlations weighted by how much of the current version they account for.",
            invariant_to=_SHIFT_AND_SCALE,
            is_symmetric=False,
        ),
        "rsa_spearman": Similarity(
            function=partial(_rsa, is_ranked=True),
            source=_RSA,
            description="Rank correlation of the distances between items before and after.",
            min_rows=4,
        ),
        "rsa_pearson": Similarity(
            function=partial(_rsa, is_ranked=False),
            source=_RSA,
            description="Correlation of the distances between items before and after.",
            min_rows=4,
        ),
        "knn_overlap": Similarity(
            function=lambda pair: _mean(overlap(pair.raw_neighbours, is_corrected=False)),
            source=_KNN,
            description="Share of its k nearest rows that a row keeps; unrelated rows keep k/(n-1).",
            invariant_to=_TURN,
        ),
        "knn_overlap_corrected": Similarity(
            function=lambda pair: _mean(overlap(pair.raw_neighbours)),
            source=_KNN + _CORRECTED,
            description="The same, 0 for what unrelated rows keep.",
            invariant_to=_TURN,
        ),
        "knn_overlap_centred": Similarity(
            function=lambda pair: _mean(overlap(pair.centred_neighbours)),
            source=_KNN + _CORRECTED + "; mean row taken away first",
            description="The same with the mean row of each version taken away first.",
        ),
        "second_order_cosine": Similarity(
            function=partial(_second_order, is_centred=True),
            source=_SECOND + "; mean row taken away first (ours)",
            description="Whether a row stands to the neighbours of both versions as before.",
        ),
        "second_order_cosine_raw": Similarity(
            function=partial(_second_order, is_centred=False),
            source=_SECOND,
            description="The same without centring: near 1 for unrelated rows that have a common mean.",
            invariant_to=_TURN,
        ),
    }
)
"""Every matrix similarity, in the order of every table."""
