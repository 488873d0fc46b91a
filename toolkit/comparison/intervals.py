"""Differences of two arms, seeds x items, in; their mean with a confidence interval over new seeds and new items out.

All results are in the unit of the differences: a share for right-or-wrong scores (callers make points of it).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

ITEMS_ONLY = "one seed: the interval covers new items, not new seeds"
SEEDS_ONLY = "one item: the interval covers new seeds, not new items"
SCORES_OVER_SEEDS = "interval over seeds only: the items stay the same"
NO_SEED = "no seed: nothing to make an interval from"
ONE_VALUE = "one seed and one item: no spread to make an interval from"
ONE_SEED = "one seed: no spread to make an interval from"
EQUAL_SEEDS = "all seeds have the same difference: no spread to make an interval from"
EQUAL_VALUES = "all differences are equal: no spread to make an interval from"
ROUNDING = 1e-9
"""Values that are apart by no more than this share of their size are equal: fp64 arithmetic leaves 1e-16 to 1e-13."""
NO_DISCORDANCE = "the same difference on every item and seed: exact bound on the share of items that would differ"


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval; ``note`` says what it does not cover, or why it is refused (then NaN)."""

    estimate: float
    low: float
    high: float
    df: float
    """Degrees of freedom of Student's t; NaN where the interval does not come from it."""
    variance: float
    """Of the estimate, in squared units; NaN where it is unknown."""
    level: float
    note: str = ""


class MeanSquares(NamedTuple):
    """The two-way table without replication: mean squares between seeds, between items, and of the residual."""

    seed: float
    item: float
    residual: float


def is_constant(values: NDArray[np.float64], size: float | None = None) -> bool:
    """Whether all values are equal but for rounding; ``size``: of what they were computed from (default: their own)."""
    return bool(np.ptp(values) <= ROUNDING * (float(np.abs(values).max()) if size is None else size))


def two_way_interval(differences: ArrayLike, level: float = 0.95, *, size: float | None = None) -> Interval:
    """Mean difference with an interval over both seeds and items, by Student's t.

    ``differences``: float64 (seeds K, items N), first arm minus second on the same items with the same seed. The
    interval is D̄ ± t_df·√V, V = U/(KN), U = max(MS_seed + MS_item - MS_res, MS_seed), df = U² / [MS_seed²/(K-1) +
    MS_item²/(N-1) + MS_res²/((K-1)(N-1))], but at least K - 1: the random-effects variance of a two-way table with
    Satterthwaite's degrees of freedom (Satterthwaite 1946). The two floors are ours: V and df are never below those of
    Student's t over the K seeds. A third floor, at MS_item, would make the interval too wide wherever five or more
    seeds differ in noise only; MS_res stands in only where U would be 0, which is to say that every seed has the same
    mean and items vary no more than the residual. Simulated coverage at .95 (`experiments/benchmarks/coverage.py`):
    .936 to .969 with 5 to 20 seeds, .911 to .959 with 3, .881 to .963 with 2, least where seeds differ most.

    One seed: V = MS_item/N, df = N - 1. One item: V = MS_seed/K, df = K - 1. The ``note`` says which of the two is not
    covered. All values equal (see :func:`is_constant`, which takes ``size``): t has nothing to work with. If the value
    is -1, 0 or 1 (right-or-wrong scores), the bounds are exact in the items: were more than 1 - (1 - level)^(1/N) of
    all items to differ from it in these seeds, N items without one would have less than 1 - level chance (variance 0,
    df NaN); any other value is refused.
    ValueError: no two-dimensional array of finite values, or a level outside (0, 1).
    """
    table = checked(differences, 2, level)
    (num_seeds, num_items), mean = table.shape, float(table.mean())
    if table.size == 1:
        return Interval(mean, np.nan, np.nan, np.nan, np.nan, level, ONE_VALUE)
    if is_constant(table, size):
        return _interval_of_equals(float(table[0, 0]), num_items, level, size)
    squares = mean_squares(table)
    if num_seeds == 1:
        return t_interval(mean, squares.item / num_items, num_items - 1, level, ITEMS_ONLY)
    if num_items == 1:
        return t_interval(mean, squares.seed / num_seeds, num_seeds - 1, level, SEEDS_ONLY)
    total, df = combine(squares, num_seeds, num_items)
    return t_interval(mean, total / table.size, df, level)


def seeds_interval(differences: ArrayLike, level: float = 0.95, *, size: float | None = None) -> Interval:
    """Mean of K per-seed differences with Student's t interval, for scores that are no mean over items.

    ``differences``: float64 (seeds K,). It covers new seeds on the same items. Refused (NaN, with a note) for one seed,
    for none, and where all seeds are equal (see :func:`is_constant`, which takes ``size``). ValueError: no finite
    one-dimensional array, or a level outside (0, 1).
    """
    values = checked(differences, 1, level)
    if not len(values):
        return Interval(np.nan, np.nan, np.nan, np.nan, np.nan, level, NO_SEED)
    mean = float(values.mean())
    if len(values) == 1 or is_constant(values, size):
        note = ONE_SEED if len(values) == 1 else EQUAL_SEEDS
        return Interval(mean, np.nan, np.nan, np.nan, np.nan, level, note)
    return t_interval(mean, float(values.var(ddof=1)) / len(values), len(values) - 1, level, SCORES_OVER_SEEDS)


def mean_squares(differences: ArrayLike) -> MeanSquares:
    """Mean squares of the two-way analysis of variance of (seeds K, items N) without replication.

    NaN where a factor has one level only: MS_seed for K = 1, MS_item for N = 1, MS_res for either.
    """
    table = checked(differences, 2)
    num_seeds, num_items = table.shape
    by_seed, by_item = table.mean(axis=1, keepdims=True), table.mean(axis=0, keepdims=True)
    mean = table.mean()
    sums = (
        num_items * float(((by_seed - mean) ** 2).sum()),
        num_seeds * float(((by_item - mean) ** 2).sum()),
        float(((table - by_seed - by_item + mean) ** 2).sum()),
    )
    dfs = (num_seeds - 1, num_items - 1, (num_seeds - 1) * (num_items - 1))
    return MeanSquares(*(total / df if df else np.nan for total, df in zip(sums, dfs, strict=True)))


def combine(squares: MeanSquares, num_seeds: int, num_items: int) -> tuple[float, float]:
    """U and df of :func:`two_way_interval` from mean squares of at least two seeds and two items, not all 0."""
    seed, item, residual = squares
    total = max(seed + item - residual, seed)
    if total < 1e-12 * residual:  # 0 but for rounding
        total = residual
    spread = seed**2 / (num_seeds - 1) + item**2 / (num_items - 1) + residual**2 / ((num_seeds - 1) * (num_items - 1))
    return total, max(total**2 / spread, num_seeds - 1.0)


def t_interval(mean: float, variance: float, df: float, level: float, note: str = "") -> Interval:
    """Estimate ± t_df·√variance."""
    half = t_quantile((1 + level) / 2, df) * variance**0.5
    return Interval(mean, mean - half, mean + half, float(df), variance, level, note)


def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t: what ``scipy.stats.t.ppf`` calls, without a millisecond of checks around it."""
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def interval_of(differences: "Interval | ArrayLike", level: float = 0.95) -> Interval:
    """An interval as it is, per-seed differences (K,) by Student's t, differences (K, N) by the two-way interval."""
    if isinstance(differences, Interval):
        return differences
    return (seeds_interval if np.ndim(differences) == 1 else two_way_interval)(differences, level)


def count_equal_items(interval: Interval) -> int:
    """The number of items N that an interval of equal differences (variance 0) was made from, read off its width."""
    width = max(interval.estimate - interval.low, interval.high - interval.estimate) / (1 + abs(interval.estimate))
    return 1 if width >= 1 else round(float(np.log1p(-interval.level) / np.log1p(-width)))


def _interval_of_equals(value: float, num_items: int, level: float, size: float | None) -> Interval:
    nearest = round(value)
    is_whole = abs(value - nearest) <= ROUNDING * (abs(value) if size is None else size)
    value = float(nearest) if is_whole else value
    if value not in (-1.0, 0.0, 1.0):
        return Interval(value, np.nan, np.nan, np.nan, np.nan, level, EQUAL_VALUES)
    share = 1 - (1 - level) ** (1 / num_items)
    # An item that differs from -1 or 1 can differ by 2, from 0 by 1.
    half = share * (1 + abs(value))
    return Interval(value, max(-1.0, value - half), min(1.0, value + half), np.nan, 0.0, level, NO_DISCORDANCE)


def checked(differences: ArrayLike, num_dimensions: int, level: float = 0.95) -> NDArray[np.float64]:
    """Differences as a float64 array of 1 or 2 dimensions, all finite; (0,) passes, (0, N) and (K, 0) do not."""
    values = np.asarray(differences, dtype=np.float64)
    shape = "(seeds, items), at least one of each" if num_dimensions == 2 else "(seeds,)"
    if values.ndim != num_dimensions or (num_dimensions == 2 and values.size == 0):
        raise ValueError(f"expected differences of shape {shape}; got shape {values.shape}")
    if not np.isfinite(values).all():
        number = int((~np.isfinite(values)).sum())
        raise ValueError(
            f"{number} of {values.size} differences are not finite: leave those seeds or items out, by name"
        )
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, for example .95; got {level}")
    return values
