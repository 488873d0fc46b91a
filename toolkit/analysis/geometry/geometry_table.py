"""A cloud of rows in, one number for its shape out: every geometry statistic, with its source and its refusals."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from toolkit.analysis.geometry import spectra
from toolkit.analysis.geometry.cloud import Cloud
from toolkit.analysis.similarity.refusal import Refused
from toolkit.lookup import Table, lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometryStatistic:
    """One number for a group of rows, and what must be known to read it."""

    name: str
    function: Callable[[Cloud], float]
    """Raises Refused where the number would say nothing."""
    source: str
    """Where the formula comes from, with any departure."""
    description: str
    """One plain sentence."""
    variants: tuple[str, ...] = ("raw", "centred")
    """Whether it is taken of the rows as they are, about their mean, or both."""
    has_common_mean_null: bool = False
    """Whether the null rows share a random mean of 1 SD per coordinate; else they are centred at 0."""
    uses_directions: bool = False
    """Whether rows of length 0 are left out, and counted as undefined."""


def _partition_ratio(cloud: Cloud) -> float:
    logs = cloud.log_partition
    return float(np.exp(logs.min() - logs.max()))


def _isoscore(cloud: Cloud) -> float:
    needed = spectra.ISOSCORE_ROWS_PER_DIMENSION * cloud.hidden
    if cloud.num_rows < needed:
        raise Refused(f"{cloud.num_rows} rows, and IsoScore needs {needed} at hidden {cloud.hidden}")
    return spectra.isoscore_of(cloud.squared_singular_values, cloud.hidden)


def _cosine_share(k: int) -> Callable[[Cloud], float]:
    def share(cloud: Cloud) -> float:
        contributions, n = cloud.cosine_contributions, cloud.num_rows - cloud.num_without_direction
        # The SD of the mean cosine of n independent random directions: below a few of them there is nothing to share.
        chance = math.sqrt(2 / (n * (n - 1) * cloud.hidden))
        if contributions.sum() < 10 * chance:
            raise Refused(f"the mean cosine is {contributions.sum():.2g}: hardly above chance, so it has no shares")
        return float(np.sort(contributions)[-k:].sum() / contributions.sum())

    return share


def _variance_share(k: int) -> Callable[[Cloud], float]:
    return lambda cloud: spectra.energy_in_top(np.sort(np.diag(cloud.products))[::-1], k)


_TIMKEY = "W. Timkey & M. van Schijndel, All Bark and No Bite: Rogue Dimensions (EMNLP 2021)"
_ROY = "O. Roy & M. Vetterli, The effective rank (EUSIPCO 2007), of the squared singular values"

GEOMETRY: Mapping[str, GeometryStatistic] = Table(
    {
        statistic.name: statistic
        for statistic in (
            GeometryStatistic(
                name="average_cosine",
                function=lambda cloud: float(cloud.cosine_contributions.sum()),
                source="K. Ethayarajh, How Contextual are Contextualized Word Representations? (EMNLP 2019), over all "
                "pairs at once, (‖Σû‖² - n)/(n(n - 1)), instead of a sample of them",
                description="Mean cosine between two different rows.",
                uses_directions=True,
            ),
            GeometryStatistic(
                name="partition_ratio",
                function=_partition_ratio,
                source="J. Mu & P. Viswanath, All-but-the-Top (ICLR 2018), with the partition function of S. Arora et "
                "al. (TACL 2016); of both signs of each eigenvector, at mean length 1, because it depends on the scale",
                description="Smallest over largest partition function along the principal directions; isotropic: 1.",
            ),
            GeometryStatistic(
                name="isoscore",
                function=_isoscore,
                source="W. Rudman et al., IsoScore (Findings of ACL 2022), in closed form",
                description="Share of the dimensions that the variance uses evenly, 0 to 1.",
                variants=("centred",),
            ),
            GeometryStatistic(
                name="effective_rank",
                function=lambda cloud: spectra.entropy_rank(cloud.squared_singular_values),
                source=_ROY,
                description="Number of directions among which the squared lengths are divided, by entropy.",
            ),
            GeometryStatistic(
                name="stable_rank",
                function=lambda cloud: spectra.stable_rank_of(cloud.squared_singular_values),
                source="M. Rudelson & R. Vershynin, Sampling from large matrices (JACM 2007)",
                description="Sum of the squared lengths over the part along the first principal direction.",
            ),
            GeometryStatistic(
                name="participation_ratio",
                function=lambda cloud: spectra.participation_ratio_of(cloud.squared_singular_values),
                source="(Σσ²)²/Σσ⁴, the inverse Simpson index of σ²/Σσ²",
                description="Number of directions among which the squared lengths are divided, by their squares.",
            ),
            *(
                GeometryStatistic(
                    name=f"cosine_share_top{k}",
                    function=_cosine_share(k),
                    source=f"{_TIMKEY}, over all pairs at once",
                    description=f"Share of the mean cosine that the {k} largest contributing dimension(s) make.",
                    variants=("raw",),  # about the mean there is no mean cosine to share
                    has_common_mean_null=True,
                    uses_directions=True,
                )
                for k in (1, 3)
            ),
            *(
                GeometryStatistic(
                    name=f"variance_share_top{k}",
                    function=_variance_share(k),
                    source=f"ours, after {_TIMKEY}",
                    description=f"Share of the variance in the {k} dimension(s) that vary most.",
                    variants=("centred",),
                )
                for k in (1, 3)
            ),
        )
    }
)
"""Every geometry statistic, in the order of every table."""


def select_statistics(
    statistics: Mapping[str, GeometryStatistic] | Iterable[str] | None,
) -> tuple[GeometryStatistic, ...]:
    """The entries of a mapping, those of GEOMETRY with the given names, or all; ValueError for an unknown name."""
    if statistics is None or isinstance(statistics, Mapping):
        return tuple((GEOMETRY if statistics is None else statistics).values())
    names = (statistics,) if isinstance(statistics, str) else statistics
    return tuple(lookup(GEOMETRY, name, "geometry statistic") for name in names)
