"""A difference and a margin in, whether the two arms are equivalent within the margin out."""

import math

from numpy.typing import ArrayLike

from toolkit.comparison.intervals import Interval, count_equal_items, interval_of


def is_equivalent(interval90: Interval, margin: float) -> bool:
    """Whether a 90 % interval lies inside (-margin, margin): the two one-sided tests at .05 (Schuirmann 1987).

    False where the interval is NaN. ValueError: an interval of another level, or a margin that is not positive.
    """
    _check_margin(margin)
    if not math.isclose(interval90.level, 0.90):
        raise ValueError(f"equivalence at .05 is read off the 90 % interval; got one of level {interval90.level:g}")
    return -margin < interval90.low and interval90.high < margin


def tost(differences: Interval | ArrayLike, margin: float) -> float:
    """p of the two one-sided t tests of equivalence: the larger of p(mean ≤ -margin) and p(mean ≥ margin).

    ``differences``: an Interval of any level, or the differences that it is made from, (seeds,) or (seeds, items).
    Below .05 exactly where the 90 % interval lies inside (-margin, margin), also where all differences are equal and
    the interval is exact in the items. NaN where the interval is refused. ValueError: a margin that is not positive.
    """
    from scipy.stats import t

    _check_margin(margin)
    interval = interval_of(differences)
    if math.isnan(interval.variance) or math.isnan(interval.low):
        return math.nan
    if interval.variance == 0:
        return _tost_of_equals(interval, margin)
    if math.isnan(interval.df):
        raise ValueError("tost needs an interval by Student's t, such as two_way_interval's; got a bootstrap interval")
    error = math.sqrt(interval.variance)
    return float(t.sf((margin - abs(interval.estimate)) / error, interval.df))


def _tost_of_equals(interval: Interval, margin: float) -> float:
    """The p at which the exact interval of level 1 - 2p just reaches the margin: (1 - margin)^N / 2 around 0."""
    if margin > 1:
        return 0.0  # no difference of right-or-wrong scores is as large
    if interval.estimate != 0:
        return 1.0  # every item differs, by the most that it can
    return float(0.5 * (1 - margin) ** count_equal_items(interval))


def _check_margin(margin: float) -> None:
    if not margin > 0:
        raise ValueError(f"the margin of equivalence must be above 0, in the unit of the differences; got {margin}")
