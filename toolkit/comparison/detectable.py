"""Numbers of seeds and items, or differences, in; the smallest gap that the comparison could have shown out.

A gap is a true mean difference, in the unit of the differences. Smallest detectable = it would be found, two-sided at
``alpha``, with probability ``power``.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toolkit.comparison.intervals import (
    Interval,
    MeanSquares,
    combine,
    count_equal_items,
    interval_of,
    t_quantile,
)


def detectable_gap(differences: Interval | ArrayLike, *, power: float = 0.8, alpha: float = 0.05) -> float:
    """Smallest detectable gap of a comparison with the spread that it has, whatever its mean.

    ``differences``: an Interval of two_way_interval or seeds_interval, or what it is made from, (seeds,) or (seeds,
    items). The gap is where a t test with the interval's V and df, and non-centrality gap/√V, has this power. Where all
    differences are 0 (or all 1) the discordance of other items is unknown, and taken to be the gap itself (ours), which
    by the normal approximation to McNemar's test is (z_{1-alpha/2} + z_power)²/N. NaN where the interval is refused or
    bootstrapped. It tells what could have been seen, never whether there is nothing (that is `tost`).
    """
    _check_shares(power, alpha)
    interval = interval_of(differences)
    if interval.variance == 0:
        return _gap_at_its_own_discordance(count_equal_items(interval), power, alpha)
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
    formula does, discordance is taken to be the gap itself. ValueError: values out of range.
    """
    _check_planned(num_seeds, num_items, discordance, power, alpha)
    if not (seed_sd >= 0 and 0 <= item_share <= 1):
        raise ValueError(f"expected seed_sd from 0 and item_share in [0, 1]; got {seed_sd} and {item_share}")
    if num_items < 2:
        raise ValueError("a planned gap needs at least two items; got 1")
    while True:
        variance, df = _planned(num_seeds, num_items, discordance, seed_sd, item_share)
        gap = min(1.0, _noncentrality(df, power, alpha) * math.sqrt(variance))
        if gap <= discordance * (1 + 1e-6):
            return gap
        discordance = gap


def _planned(
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
    scipy's non-central t gives NaN for thousands of degrees of freedom, and this does not.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr
    from scipy.stats import chi2

    nodes, weights = _legendre()
    scales = np.sqrt(chi2.ppf((nodes + 1) / 2, df) / df) * t_quantile(1 - alpha / 2, df)

    def missing(noncentrality: float) -> float:
        return power - float(weights @ (ndtr(noncentrality - scales) + ndtr(-noncentrality - scales)) / 2)

    return float(brentq(missing, 0.0, float(scales.max()) + 10, xtol=1e-10))


@cache
def _legendre() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    nodes, weights = np.polynomial.legendre.leggauss(200)
    return nodes, weights


def _gap_at_its_own_discordance(num_items: int, power: float, alpha: float) -> float:
    from scipy.stats import norm

    return float(min(1.0, (norm.ppf(1 - alpha / 2) + norm.ppf(power)) ** 2 / num_items))


def _check_shares(power: float, alpha: float) -> None:
    if not (0 < alpha < power < 1):
        raise ValueError(f"expected 0 < alpha < power < 1, for example .05 and .8; got {alpha} and {power}")


def _check_planned(num_seeds: int, num_items: int, discordance: float, power: float, alpha: float) -> None:
    _check_shares(power, alpha)
    if num_seeds < 1 or num_items < 1:
        raise ValueError(f"expected at least one seed and one item; got {num_seeds} and {num_items}")
    if not 0 < discordance <= 1:
        raise ValueError(f"discordance is a share of the items in (0, 1], for example .1; got {discordance}")
