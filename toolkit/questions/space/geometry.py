"""The shape of a cloud of rows: anisotropy, ranks and rogue dimensions, with nulls."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd

from toolkit.analysis.blocks import Scratch, file_of, iterate_blocks, tables_of
from toolkit.analysis.drift import ALL_ROWS, Indices
from toolkit.analysis.kernels import Refused
from toolkit.analysis.measures import Array, summarise_null
from toolkit.analysis.spectra import NO_SPREAD, entropy_rank, variance_shares
from toolkit.analysis.strata import count_rows, rows_by_stratum
from toolkit.families import TABLES
from toolkit.naming import Table, at_least
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Epochs, Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

ISOSCORE_ROWS_PER_DIMENSION = 20
"""Below this many rows per dimension IsoScore measures the size of the sample: an isotropic Gaussian of 512 rows
of 768 has .40, of 30,522 rows .975 (both computed by this project, and the limit is ours)."""


def stable_rank_of(squared: Array) -> float:
    """Σσ²/max σ² from (r,) σ², 1 to r (Rudelson & Vershynin 2007)."""
    return float(1 / variance_shares(squared).max())


def participation_ratio_of(squared: Array) -> float:
    """(Σσ²)²/Σσ⁴ from (r,) σ², 1 to r."""
    return float(1 / np.sum(np.square(variance_shares(squared))))


def energy_in_top(squared: Array, k: int) -> float:
    """Share of Σσ² in the k largest of (r,) σ², which are in descending order."""
    return float(variance_shares(squared)[:k].sum())


def isoscore_of(squared: Array, hidden: int) -> float:
    """(participation ratio - 1)/(p - 1) from the centred σ²: IsoScore in closed form.

    W. Rudman, N. Gillman, T. Rayne, C. Eickhoff, IsoScore: Measuring the Uniformity of Embedding Space Utilization
    (Findings of ACL 2022). Their steps (principal axes, variances scaled to length √p, distance to all-ones, share of
    dimensions used, rescaling) come to this number exactly; a test follows them one by one.
    """
    if hidden < 2:
        raise Refused("one dimension: nothing to be isotropic in")
    return (participation_ratio_of(squared) - 1) / (hidden - 1)


@dataclass(frozen=True, slots=True)
class RowMoments:
    """What one pass over (n, p) rows keeps of them."""

    num_rows: int
    mean: Array
    """(p,)"""
    scatter: Array
    """(p, p) sum of the outer products of the rows less their mean."""


def accumulate_moments(blocks: Iterable[Array]) -> RowMoments:
    """Mean and scatter of (rows, p) float64 blocks, about each block's own mean and then merged.

    T. Chan, G. Golub, R. LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances (1979):
    Σxxᵀ - nμμᵀ would lose digits where the mean is large. Rows that are all equal have scatter 0 exactly.
    """
    count, mean, scatter = 0, np.zeros(0), np.zeros((0, 0))
    for block in blocks:
        if not len(block):
            continue
        # Less a row first, so that rows that are all equal have scatter 0 exactly.
        first_row = block[0]
        shifted = block - first_row
        shift = shifted.mean(axis=0)
        shifted -= shift
        block_mean, block_scatter = first_row + shift, shifted.T @ shifted
        if count == 0:
            count, mean, scatter = len(block), block_mean, block_scatter
            continue
        total, delta = count + len(block), block_mean - mean
        scatter += block_scatter
        scatter += np.outer(delta, delta) * (count * len(block) / total)
        mean, count = mean + delta * (len(block) / total), total
    if count == 0:
        raise Refused("no rows")
    return RowMoments(count, mean, scatter)


class Cloud:
    """The rows of one group as points, as they are or about their mean; each part is computed when it is asked for."""

    def __init__(self, read: Callable[[], Iterable[Array]], *, centre: bool, moments: RowMoments | None = None) -> None:
        """``read`` yields the rows as (rows, p) float64 blocks, the same ones at every call."""
        self._read, self.is_centred = read, centre
        self.moments = accumulate_moments(read()) if moments is None else moments
        self.num_rows, self.hidden = self.moments.num_rows, len(self.moments.mean)
        self._offset = self.moments.mean if centre else np.zeros(self.hidden)

    def recentred(self) -> "Cloud":
        """The same rows about their mean, without reading them again."""
        return Cloud(self._read, centre=True, moments=self.moments)

    @cached_property
    def products(self) -> Array:
        """(p, p) XᵀX of the rows, less their mean where the cloud is centred."""
        mean = self.moments.mean
        raw = 0.0 if self.is_centred else self.num_rows * np.outer(mean, mean)
        return np.asarray(self.moments.scatter + raw)

    @cached_property
    def _eigen(self) -> tuple[Array, Array]:
        """σ², largest first, and their directions as columns."""
        values, vectors = np.linalg.eigh(self.products)
        return np.maximum(values[::-1], 0.0), vectors[:, ::-1]

    @property
    def squared_singular_values(self) -> Array:
        """(p,) σ² in descending order; those beyond the number of rows are 0 up to rounding."""
        return self._eigen[0]

    @property
    def directions(self) -> Array:
        """(p, p) the principal directions, one per column, in the order of the σ²."""
        return self._eigen[1]

    @cached_property
    def _lengths(self) -> tuple[float, float, int, Array, Array]:
        """Mean and largest length, rows without a direction, Σû and Σû² (p,) of the directions û of the others."""
        total, largest, num_zero = 0.0, 0.0, 0
        sums, squares = np.zeros(self.hidden), np.zeros(self.hidden)
        # What is left of a row that equals the mean is rounding, and so would its direction be.
        smallest = 1e-12 * float(np.linalg.norm(self._offset))
        for block in self._read():
            rows = block - self._offset
            lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            has_direction = lengths > smallest
            total, largest = total + float(lengths.sum()), max(largest, float(lengths.max(initial=0.0)))
            num_zero += int(np.sum(~has_direction))
            units = rows[has_direction] / lengths[has_direction, None]
            sums, squares = sums + units.sum(axis=0), squares + np.square(units).sum(axis=0)
        return total / self.num_rows, largest, num_zero, sums, squares

    @property
    def num_without_direction(self) -> int:
        """Rows that are 0 (or equal to the mean, where the cloud is centred): no cosine is defined for them."""
        return self._lengths[2]

    @property
    def cosine_contributions(self) -> Array:
        """(p,) what each dimension adds to the mean cosine over all pairs of different rows that have a direction."""
        _, _, num_zero, sums, squares = self._lengths
        num_rows = self.num_rows - num_zero
        if num_rows < 2:
            raise Refused(f"{num_rows} row(s) with a direction: a cosine needs two")
        return np.asarray((sums**2 - squares) / (num_rows * (num_rows - 1)))

    @cached_property
    def log_partition(self) -> Array:
        """(2p,) log of Z(c) = Σ_i exp⟨x_i, c⟩ for c = ± each principal direction, rows scaled to mean length 1."""
        mean, largest, *_ = self._lengths
        if mean == 0:
            raise Refused(NO_SPREAD)
        sums, shift = np.zeros(2 * self.hidden), largest / mean  # |⟨x, c⟩| is at most the shift: no overflow
        for block in self._read():
            products = (block - self._offset) @ (self.directions / mean)
            for half, sign in ((sums[: self.hidden], 1), (sums[self.hidden :], -1)):
                half += np.exp(sign * products - shift).sum(axis=0)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(sums) + shift)


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
    uses_directions: bool = False
    """Whether rows of length 0 are left out, and counted as undefined."""


def _isoscore(cloud: Cloud) -> float:
    needed = ISOSCORE_ROWS_PER_DIMENSION * cloud.hidden
    if cloud.num_rows < needed:
        raise Refused(f"{cloud.num_rows} rows, and IsoScore needs {needed} at hidden {cloud.hidden}")
    return isoscore_of(cloud.squared_singular_values, cloud.hidden)


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
                function=lambda cloud: float(np.exp(-np.ptp(cloud.log_partition))),
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
                function=lambda cloud: entropy_rank(cloud.squared_singular_values),
                source=_ROY,
                description="Number of directions among which the squared lengths are divided, by entropy.",
            ),
            GeometryStatistic(
                name="stable_rank",
                function=lambda cloud: stable_rank_of(cloud.squared_singular_values),
                source="M. Rudelson & R. Vershynin, Sampling from large matrices (JACM 2007)",
                description="Sum of the squared lengths over the part along the first principal direction.",
            ),
            GeometryStatistic(
                name="participation_ratio",
                function=lambda cloud: participation_ratio_of(cloud.squared_singular_values),
                source="(Σσ²)²/Σσ⁴, the inverse Simpson index of σ²/Σσ²",
                description="Number of directions among which the squared lengths are divided, by their squares.",
            ),
        )
    }
)
"""Every geometry statistic, in the order of every table."""


MIN_ROWS = 10
"""Groups of fewer rows are refused: about their mean, two rows have cosine -1 whatever they are (the limit is ours)."""

BLOCK_ROWS = 1024
"""Rows at a time: each block updates a (hidden, hidden) matrix, which small blocks would do more often than needed."""


@with_columns
def measure_geometry(
    source: Source,
    parameter: str = "word_embeddings",
    epochs: Epochs = None,
    *,
    by_stratum: bool = True,
    num_null: int = 3,
    seed: int = 0,
) -> pd.DataFrame:
    """The geometry of a table's rows, one value per line.

    Parameters
    ----------
    by_stratum
        Measure every stratum that has rows beside ``all rows``.
    num_null
        Number of draws of the null. With 0, ``null`` and ``null_sd`` are NaN.

    Returns
    -------
    pandas.DataFrame
        ``null`` and ``null_sd`` are over independent Gaussian tables of the same shape; the SD of a few draws is rough.
        A value that would say nothing is NaN, and ``reason`` says why. ``num_undefined`` counts the rows that the
        statistic had to leave out (length 0).

    Raises
    ------
    ValueError
        The parameter is a LayerNorm vector.

    Notes
    -----
    Nothing larger than a block of rows and a (hidden, hidden) matrix is kept in memory.
    """
    trajectory = trajectory_of(source)
    at_least("num_null", num_null, 0)
    groups = group_rows(trajectory, parameter, by_stratum=by_stratum)
    snapshots = trajectory.chosen(epochs)
    tables_of([trajectory.snapshots[0], *snapshots], parameter)  # the groups are rows of the first
    records_by_file: dict[str | int, list[tuple[object, ...]]] = {}
    records: list[tuple[object, ...]] = []
    for index, snapshot in enumerate(snapshots):
        # A frozen parameter is one file for all epochs: what was computed from that file holds for all of them.
        key = file_of(snapshot, parameter) or index
        if key not in records_by_file:
            records_by_file[key] = [
                (parameter, stratum, *record)
                for stratum, indices in groups.items()
                for record in _group_records(snapshot, parameter, indices, num_null, seed)
            ]
        records += [(float(snapshot.epoch), *record) for record in records_by_file[key]]
    return pd.DataFrame(records, columns=columns_of("measure_geometry"))


def group_rows(trajectory: Trajectory, parameter: str, *, by_stratum: bool) -> dict[str, Indices]:
    """Name to row indices of each group; ValueError for a LayerNorm vector."""
    all_rows = {ALL_ROWS: np.arange(count_rows(trajectory, parameter))}
    if parameter not in TABLES:
        tables = ", ".join(name for name in TABLES if name in trajectory.parameters)
        raise ValueError(f"{parameter} is one vector and has no rows to measure; choose from: {tables}")
    return all_rows | rows_by_stratum(trajectory, parameter) if by_stratum else all_rows


def read_rows(snapshots: Sequence[Snapshot], parameter: str, rows: Indices) -> Iterator[tuple[slice, list[Array]]]:
    """Blocks of the given rows, BLOCK_ROWS at a time, which hold until the next ones are asked for."""
    return iterate_blocks(snapshots, parameter, BLOCK_ROWS, rows=rows, scratch=Scratch())


def read_changes(reference: Snapshot, snapshot: Snapshot, parameter: str, rows: Indices) -> Iterator[Array]:
    """Blocks of Δ of the given rows, (block, hidden) float64 each."""
    for _, (before, after) in read_rows([reference, snapshot], parameter, rows):
        yield after - before


def _group_records(
    snapshot: Snapshot,
    parameter: str,
    rows: Indices,
    num_null: int,
    seed: int,
) -> Iterator[tuple[object, ...]]:
    """The records of one group, from the statistic on."""
    nothing = math.nan, math.nan
    if len(rows) < MIN_ROWS:
        reason = f"{len(rows)} row(s), fewer than {MIN_ROWS}"
        for statistic in GEOMETRY.values():
            yield from ((statistic.name, v, math.nan, *nothing, len(rows), 0, reason) for v in statistic.variants)
        return
    raw = Cloud(lambda: (block for _, (block,) in read_rows([snapshot], parameter, rows)), centre=False)
    clouds = {"raw": raw, "centred": raw.recentred()}
    nulls = measure_null(len(rows), raw.hidden, num_null, seed)
    for statistic in GEOMETRY.values():
        for variant in statistic.variants:
            value, reason = _value(statistic, clouds[variant])
            null = nothing if reason else nulls[statistic.name, variant]
            num_undefined = clouds[variant].num_without_direction if statistic.uses_directions else 0
            yield statistic.name, variant, value, *null, len(rows), num_undefined, reason


def _value(statistic: GeometryStatistic, cloud: Cloud) -> tuple[float, str]:
    try:
        return statistic.function(cloud), ""
    except Refused as refusal:
        return math.nan, str(refusal)


@lru_cache(maxsize=256)
def measure_null(num_rows: int, hidden: int, num_null: int, seed: int) -> dict[tuple[str, str], tuple[float, float]]:
    """(statistic, variant) to its mean and SD over standard normal tables of one shape; kept for each shape."""
    values: dict[tuple[str, str], list[float]] = {(s.name, v): [] for s in GEOMETRY.values() for v in s.variants}
    for draw in range(num_null):
        raw = Cloud(_gaussian(num_rows, hidden, (seed, draw)), centre=False)
        clouds = {"raw": raw, "centred": raw.recentred()}
        for name, variant in values:
            values[name, variant].append(_value(GEOMETRY[name], clouds[variant])[0])
    return {key: summarise_null(drawn)[:2] for key, drawn in values.items()}


def _gaussian(num_rows: int, hidden: int, seed: tuple[int, int]) -> Callable[[], Iterator[Array]]:
    """A reader of one table of independent standard normal values, drawn again at every reading, and the same."""

    def draw() -> Iterator[Array]:
        generator = np.random.default_rng([*b"geometry", *seed])
        for start in range(0, num_rows, BLOCK_ROWS):
            yield generator.normal(size=(min(BLOCK_ROWS, num_rows - start), hidden))

    return draw
