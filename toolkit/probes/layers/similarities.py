"""Two models' vectors of the same texts in, how similar each layer is out, with what each group of texts adds to it.

The jackknife stands behind every interval here, because its pseudo-values are one number per seed and group of texts:
that is a table which the interval over seeds and items takes, and two of which can be subtracted.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.similarity.kernels import cka_of_kernels, kernel, standardised
from toolkit.analysis.similarity.refusal import Refused
from toolkit.analysis.similarity.rsa import MIN_ITEMS, item_distances, rsa_of_distances
from toolkit.probes.layers.vectors import Vectors

Array = NDArray[np.float64]
Kept = NDArray[np.bool_]
Place = tuple[str, int, str]
"""Domain of texts, layer, measure."""

MAX_GROUPS = 30
"""Texts are left out in at most so many groups: RSA ranks all pairs of texts anew for each (our choice)."""


@dataclass(frozen=True, eq=False)
class Similarity:
    """One value, its pseudo-value for every group of texts, and why there is none where it is NaN."""

    value: float
    pseudo: Array = field(default_factory=lambda: np.empty(0))
    """(groups,), with ``value`` as their mean; none for too few texts."""
    num_texts: int = 0
    reason: str = ""


def compare_layers(
    first: Mapping[str, Vectors], second: Mapping[str, Vectors], seed: int = 0
) -> dict[Place, Similarity]:
    """Every measure of two models' vectors, (texts, hidden) per domain and layer; groups are drawn with ``seed``."""
    return {
        (name, layer, measure): compare(function, left, right, seed)
        for name in first
        for layer, (left, right) in enumerate(zip(first[name], second[name], strict=True))
        for measure, function in MEASURES.items()
    }


def compare(measure: "Measure", left: Array, right: Array, seed: int = 0) -> Similarity:
    """A measure of two (texts, hidden) versions with its pseudo-values h·θ - (h - 1)·θ without the group, h = n/m.

    Jackknife over groups of m of the n texts (Tukey 1958; groups of unequal size as Busing, Meijer & van der Leeden
    1999, doi:10.1023/A:1008800423698), re-centred at θ (ours). Below 20 texts there are none.
    """
    num = len(left)
    try:
        if num < 4:
            raise Refused(f"similarity needs at least 4 texts, there are {num}")
        of = measure(left, right)
        value = of(np.ones(num, bool))
        if math.isnan(value):
            raise Refused("undefined: all texts of a model are equally far from one another")
        if num < MIN_ITEMS:
            return Similarity(value, num_texts=num)
        groups = text_groups(num, seed)
        times = num / np.bincount(groups)
        without = np.array([of(groups != group) for group in range(len(times))])
    except Refused as refusal:
        return Similarity(math.nan, num_texts=num, reason=str(refusal))
    pseudo = times * value - (times - 1) * without
    return Similarity(value, pseudo + value - pseudo.mean(), num)


def text_groups(num: int, seed: int = 0) -> NDArray[np.intp]:
    """(num,) the group of every text: at most MAX_GROUPS, as equal as can be, the same for all models."""
    size = math.ceil(num / MAX_GROUPS)
    order = np.random.default_rng([*b"text groups", seed]).permutation(num)
    return np.asarray(order % (num // size))


Measure = Callable[[Array, Array], Callable[[Kept], float]]
"""Two (texts, hidden) versions to the function of which texts are kept that gives their similarity."""


def _cka(left: Array, right: Array) -> Callable[[Kept], float]:
    before, after = kernel(left), kernel(right)  # the texts that are left out need not be centred anew: HSIC₁ does it
    return lambda kept: cka_of_kernels(before, after, kept.astype(np.float64))


def _standardised_cka(left: Array, right: Array) -> Callable[[Kept], float]:
    def of(kept: Kept) -> float:
        sides = (standardised(left[kept]), standardised(right[kept]))
        if not all(side.shape[1] for side in sides):
            raise Refused("undefined: all texts of a model are equal")
        return cka_of_kernels(kernel(sides[0]), kernel(sides[1]))

    return of


def _rsa(left: Array, right: Array) -> Callable[[Kept], float]:
    before, after = item_distances(left), item_distances(right)

    def of(kept: Kept) -> float:
        places = np.ix_(kept, kept)
        return rsa_of_distances(before[places], after[places])

    return of


CKA, STANDARDISED, RSA = "debiased CKA", "debiased CKA, standardised columns", "RSA"
MEASURES: Mapping[str, Measure] = {CKA: _cka, STANDARDISED: _standardised_cka, RSA: _rsa}
