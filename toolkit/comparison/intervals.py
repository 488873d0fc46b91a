"""Intervals over seeds and items, tests of paired differences, and what both could have found.

All results are in the unit of the differences: a share for right-or-wrong scores (callers make points of it).

There is no bootstrap of seeds and items. Where seeds differ and are few it is too narrow, because K seeds show less
spread than what they were drawn from and no t quantile makes up for it; where only noise differs it is too wide,
because the noise is resampled twice (Owen 2007): .85 to .99 where .95 was asked for.

A gap is a true mean difference, in the unit of the differences. Smallest detectable = it would be found, two-sided at
``alpha``, with probability ``power``.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
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
NO_DISCORDANCE = (
    "the same difference on every item in these seeds: exact bound on the share of other items that would differ, and "
    "none on other seeds"
)

HELD = "equivalent by Student's t alone, and not by the exact bound on the few items that differ"
"""Of an interval that :func:`held_near_0` moved."""


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
    num_effective: float = math.nan
    """:func:`count_effective` items that are right or wrong; NaN for other differences and those over seeds alone."""
    item_weight: float = 1.0
    """By how much an item that differs moves the mean times the number of items: 1 of an accuracy."""
    discordance: float = math.nan
    """Share of the answers that are right under one of the two conditions alone; NaN where that is not known."""


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

    ``differences``: float64 (seeds K, items N), first condition minus second on the same items with the same seed. The
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
        value, nearest = float(table[0, 0]), float(round(table[0, 0]))
        is_whole = abs(value - nearest) <= ROUNDING * (abs(value) if size is None else size)
        value = nearest if is_whole else value
        if value not in (-1.0, 0.0, 1.0):
            return Interval(value, np.nan, np.nan, np.nan, np.nan, level, EQUAL_VALUES)
        # An item that differs from -1 or 1 can differ by 2, from 0 by 1.
        half_width = (1 - (1 - level) ** (1 / num_items)) * (1 + abs(value))
        ends = max(-1.0, value - half_width), min(1.0, value + half_width)
        return Interval(value, *ends, np.nan, 0.0, level, NO_DISCORDANCE, num_items)
    squares = mean_squares(table)
    if num_items == 1:
        return t_interval(mean, squares.seed / num_seeds, num_seeds - 1, level, SEEDS_ONLY)
    if num_seeds == 1:
        interval = t_interval(mean, squares.item / num_items, num_items - 1, level, ITEMS_ONLY)
    else:
        total, df = combine(squares, num_seeds, num_items)
        interval = t_interval(mean, total / table.size, df, level)
    return weigh_items(interval, table, table != 0) if np.isin(table, (-1, 0, 1)).all() else interval


def count_effective(table: NDArray[np.float64], interval: Interval, num_units: int, weight: float = 1.0) -> float:
    """How many items, each with one answer in all seeds, would leave the mean difference as unsure.

    ``table``: float64 (seeds, items). The variance of one difference over that of the mean, times (t_{N-1} / t_df)² at
    .95: a variance on few degrees of freedom is itself unsure (Korn & Graubard 1998, of surveys in clusters). It is no
    more than with one more of the ``num_units`` (items, or the clusters they come in) that differs, by ``weight``, in
    all seeds (ours): a few differences that happen to lie on different items do not show that seeds err independently,
    and with none at all there are as many as units.
    """
    ratio_of_quantiles = t_quantile(0.95, table.shape[1] - 1) / t_quantile(0.95, interval.df)
    with_one_more = (table.var() + weight**2 / num_units) / (interval.variance + weight**2 / num_units**2)
    return float(min(table.var() / interval.variance * ratio_of_quantiles**2, with_one_more))


def weigh_items(
    interval: Interval, table: NDArray[np.float64], is_other: NDArray[np.bool_], num_units: int | None = None
) -> Interval:
    """The interval with its ``num_effective`` items and what one of them weighs, for the exact bound of equivalence.

    ``table``: float64 (seeds, items) of a right-or-wrong score, or of one that is no mean over items by the influence
    of each; ``is_other``: bool (seeds, items), where one of the two conditions is right; ``num_units``: clusters that
    the items come in (default: each is one). The weight is the root of the differences' mean square over those (ours):
    exactly 1 of an accuracy, more where rare items decide, as in F1, and never less. Where there are none, two wrong
    answers differ: then nothing is known of how often one will be right.
    """
    num_units = num_units or table.shape[1]
    if not is_other.any():
        return replace(interval, num_effective=float(num_units))
    share = float(is_other.mean())
    weight = max(1.0, math.sqrt(float((table**2).mean() / share)))
    num_effective = count_effective(table, interval, num_units, weight)
    return replace(interval, num_effective=num_effective, item_weight=weight, discordance=share)


def seeds_interval(differences: ArrayLike, level: float = 0.95, *, size: float | None = None) -> Interval:
    """Mean of K per-seed differences with Student's t interval, for what is known per seed and not per item.

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


def by_cluster(values: ArrayLike, clusters: ArrayLike) -> NDArray[np.float64]:
    """A table of items as one of the clusters that they come in, which are then the units of the two-way interval.

    ``values``: float64 (..., items N); ``clusters``: (N,) ids of C clusters, such as the review of each sentence. The
    result, (..., C), holds m + C/N · Σ_i (x_i - m) over the items i of each cluster, m the mean over all N items, so
    that every mean stays what it was. With one seed the interval of it has V = C/(C-1) · Σ_c (Σ_i (x_i - m))²/N²: the
    Taylor-linearised variance of the ratio of cluster totals to cluster sizes (Cochran 1977, Sampling Techniques,
    chapters 6 and 9A), which does not take the items of a cluster for independent. Clusters of equal size have their
    means, and clusters of one item each leave the values bit for bit as they are. Simulated coverage with five or ten
    items a cluster (`experiments/benchmarks/coverage.py`): .92 to .95 over clusters, .78 to .93 over items.
    """
    items = np.asarray(values, dtype=np.float64)
    _, cluster_of, sizes = np.unique(np.asarray(clusters), return_inverse=True, return_counts=True)
    if len(sizes) == items.shape[-1]:
        return items
    mean = items.mean(axis=-1, keepdims=True)
    order = np.argsort(cluster_of, kind="stable")
    sums = np.add.reduceat((items - mean)[..., order], np.cumsum(sizes) - sizes, axis=-1)
    return np.asarray(mean + len(sizes) / items.shape[-1] * sums)


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
    half_width = t_quantile((1 + level) / 2, df) * variance**0.5
    return Interval(mean, mean - half_width, mean + half_width, float(df), variance, level, note)


def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t: what ``scipy.stats.t.ppf`` calls, without a millisecond of checks around it."""
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def interval_of(differences: "Interval | ArrayLike", level: float = 0.95) -> Interval:
    """An interval as it is, per-seed differences (K,) by Student's t, differences (K, N) by the two-way interval."""
    if isinstance(differences, Interval):
        return differences
    return (seeds_interval if np.ndim(differences) == 1 else two_way_interval)(differences, level)


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


def detectable_gap(differences: Interval | ArrayLike, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """Smallest detectable gap of a comparison with the spread that it has, whatever its mean.

    ``differences``: an Interval of two_way_interval or seeds_interval, or what it is made from, (seeds,) or (seeds,
    items). The gap is where a t test with the interval's V and df, and non-centrality gap/√V, has this power. Where
    all differences are 0 (or all 1) the discordance of other items is unknown, and taken to be the gap itself (ours),
    which by the normal approximation to McNemar's test is (z_{1-alpha/2} + z_power)²/N. NaN where the interval is
    refused. It tells what could have been seen, never whether there is nothing (that is equivalence).
    """
    from scipy.special import ndtri

    interval = interval_of(differences)
    if interval.variance == 0:
        return float(min(1.0, (ndtri(1 - alpha / 2) + ndtri(power)) ** 2 / interval.num_effective))
    if math.isnan(interval.df):
        return math.nan
    return _noncentrality(interval.df, power, alpha) * math.sqrt(interval.variance)


def detectable_gap_planned(
    num_seeds: int,
    num_items: int,
    discordance: float,
    seed_sd: float,
    *,
    item_share: float = 1.0,
    power: float = 0.8,
    alpha: float = 0.05,
) -> float:
    """Smallest detectable gap of a planned comparison of right-or-wrong scores, before anything is run.

    ``discordance``: share of items that exactly one of two runs has right; about the variance of one difference.
    ``seed_sd``: standard deviation of the true difference between seeds, a share. ``item_share``: how much of the
    discordance repeats from seed to seed; 1 (all of it: seeds do not help against few items) is the careful end, 0
    would say that every seed errs on other items. The expected mean squares r = (1 - item_share)·discordance
    (residual), N·seed_sd² + r (seeds) and K·item_share·discordance + r (items) give V and df as in two_way_interval
    (ours); then as `detectable_gap`. One seed: items only, V = discordance/N. No gap exceeds the discordance: where the
    formula does, discordance is taken to be the gap itself.
    """
    while True:
        variance, df = _planned_variance(num_seeds, num_items, discordance, seed_sd, item_share)
        gap = min(1.0, _noncentrality(df, power, alpha) * math.sqrt(variance))
        if gap <= discordance * (1 + 1e-6):
            return gap
        discordance = gap


def _planned_variance(
    num_seeds: int, num_items: int, discordance: float, seed_sd: float, item_share: float
) -> tuple[float, float]:
    """Variance of the mean difference and its degrees of freedom from the expected mean squares."""
    if num_seeds == 1:
        return discordance / num_items, num_items - 1.0
    residual = (1 - item_share) * discordance
    squares = MeanSquares(num_items * seed_sd**2 + residual, num_seeds * item_share * discordance + residual, residual)
    total, df = combine(squares, num_seeds, num_items)
    return total / (num_seeds * num_items), df


def _noncentrality(df: float, power: float, alpha: float) -> float:
    """The non-centrality at which a two-sided t test of level alpha has this power.

    P(|T| > t) given the chi of the denominator is normal; its mean over the chi's quantiles is a Gauss-Legendre sum.
    ``scipy.stats.nct`` gives NaN at most degrees of freedom that occur here (1.17.1), and this does not.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr
    from scipy.stats import chi2

    if not 0 < alpha < power < 1:
        raise ValueError(f"expected 0 < alpha < power < 1, for example .05 and .8; got {alpha} and {power}")
    nodes, weights = _legendre()
    scales = np.sqrt(chi2.ppf((nodes + 1) / 2, df) / df) * t_quantile(1 - alpha / 2, df)

    def missing_power(noncentrality: float) -> float:
        return power - float(weights @ (ndtr(noncentrality - scales) + ndtr(-noncentrality - scales)) / 2)

    return float(brentq(missing_power, 0.0, float(scales.max()) + 10, xtol=1e-10))


@cache
def _legendre() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights of the Gauss-Legendre sum over (-1, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return nodes, weights


def held_near_0(interval: Interval) -> Interval:
    """The interval with its end that is farther from 0 moved out, where few items differ: for equivalence.

    Conditions are equivalent where a 90 % interval, held so, lies inside (-margin, margin): the two one-sided tests at
    .05 (Schuirmann 1987).

    Fewer than the truth would have are then seen with too small a variance, and a t interval is too short just when it
    lies near 0: conditions of 1.000 and .985 were called equivalent within 1.5 points in up to .20 of studies, .995 and
    .98 in .09. Two bounds hold it. Clopper & Pearson's (1934) exact one for |mean|·n of n = ``num_effective`` items,
    one-sided, since no right-or-wrong differences of some mean vary less than those of one sign. And t with the
    variance that the mean at its end would have, not the one seen: the score test of paired shares (Tango 1998), with
    the likeliest shares for that mean where they are small. Together .05 at most of such studies with 3, 5 and 10
    seeds and 100 to 872 items, whose seeds err alike, unevenly or independently (tests/comparison/test_equivalence.py).
    """
    from scipy.special import betaincinv

    share, num_items = abs(interval.estimate) / interval.item_weight, interval.num_effective
    if math.isnan(num_items):
        return interval
    end = 1.0
    if share < 1:
        end = float(betaincinv(share * num_items + 1, (1 - share) * num_items, (1 + interval.level) / 2))
    if not math.isnan(interval.discordance):
        # To be ``end - share`` from a discordance q, the likeliest is (q + √(q² + 4·end·(end - share)))/2: the two
        # small shares of items that one condition alone has right, apart by ``end``, as Poisson counts have them (ours,
        # after Tango 1998). Over q it is what V grows by: a cubic in end - share, of which this is the root above 0.
        square = (t_quantile((1 + interval.level) / 2, interval.df) / interval.item_weight) ** 2 * interval.variance
        ratio = (square / interval.discordance) ** 2
        end = max(end, share + float(np.roots([1, 0, -square - ratio, -ratio * share]).real.max()))
    end *= interval.item_weight
    low = min(interval.low, -end) if interval.estimate <= 0 else interval.low
    return replace(interval, low=low, high=max(interval.high, end) if interval.estimate >= 0 else interval.high)


NUM_DRAWS = 99_999
"""Sign flips that are tried: all 2^K of up to 16 seeds, random ones of more."""


_BLOCK_FLIPS = 1_000_000


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar p: under the null each discordant item falls to either side with probability 1/2.

    ``only_first``, ``only_second``: number of items that only the first or only the second run has right. McNemar
    1947 in its exact binomial form; 1 when no item is discordant. It says nothing of other seeds.
    """
    from scipy.stats import binomtest

    num_discordant = int(only_first) + int(only_second)
    return float(binomtest(int(only_first), num_discordant, 0.5).pvalue) if num_discordant else 1.0


def sign_flip(differences: ArrayLike, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> float:
    """Two-sided p that per-seed differences are symmetric about 0, by flipping their signs.

    ``differences``: float64 (seeds K,). p = the share of sign patterns whose |sum| is at least the observed one
    (Fisher's randomisation test for pairs). All patterns where 2^K is at most ``num_draws``; else as many random ones
    and the observed one, (1 + hits)/(1 + draws), which is never 0 (Phipson & Smyth 2010). K seeds cannot reach below
    `smallest_p(K)`. NaN for no seed. ValueError: no finite one-dimensional array.
    """
    values = checked(differences, 1)
    if len(values) < 2:
        return smallest_p(len(values))
    from scipy.stats import permutation_test

    size = float(np.abs(values).sum()) or 1.0

    def distance(signed: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        # Sums in another order differ by rounding: rounded, the observed pattern counts itself.
        return np.asarray(np.round(np.abs(signed.sum(axis=axis)) / size, 12))

    options = {"permutation_type": "samples", "n_resamples": num_draws, "batch": _BLOCK_FLIPS // len(values)}
    return float(
        permutation_test((values,), distance, vectorized=True, alternative="greater", rng=seed, **options).pvalue
    )


def smallest_p(num_seeds: int, *, num_draws: int = NUM_DRAWS) -> float:
    """The smallest p of sign_flip: 2/2^K, all K seeds pointing one way; 1/(1 + draws) of random flips; NaN for none."""
    if num_seeds < 1:
        return float("nan")
    return 2.0 ** (1 - num_seeds) if 2**num_seeds <= num_draws else 1 / (1 + num_draws)


def p_value(interval: Interval) -> float:
    """Two-sided p of the t test that the interval inverts: 2·P(T > |D̄|/√V), T with df degrees of freedom.

    1 where the difference and its variance are both exactly 0, NaN where only the variance is, or the interval is not
    defined: a variance of 0 is then too few seeds or items, not certainty. Its far tail is too heavy where seeds
    differ and are few: of nulls with 3 seeds and 872 items 1.1 % have p < .0017. Many claims are therefore judged by
    :func:`toolkit.comparison.multiplicity.moderated_p`.
    """
    from scipy.special import stdtr

    if interval.variance == 0:
        return 1.0 if interval.estimate == 0 else np.nan
    return float(2 * stdtr(interval.df, -abs(interval.estimate) / np.sqrt(interval.variance)))


STATISTICS = ("mean", "sd", "median", "min", "max")


def statistics(values: Iterable[float]) -> dict[str, float]:
    """STATISTICS of the values that are not NaN; all NaN without any, and sd NaN for one."""
    defined = np.array([value for value in values if not np.isnan(value)], dtype=float)
    if not len(defined):
        return dict.fromkeys(STATISTICS, np.nan)
    return {
        "mean": float(defined.mean()),
        # Of equal values exactly 0, where the sum of squares would be what rounding left of their mean.
        "sd": float(defined.std(ddof=1) if np.ptp(defined) else 0) if len(defined) > 1 else np.nan,
        "median": float(np.median(defined)),
        "min": float(defined.min()),
        "max": float(defined.max()),
    }


def defined_mean(values: Iterable[float]) -> float:
    """The mean of the values that are not NaN; NaN of nothing."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else np.nan
