"""The numbers that a comparison prints of paired differences, in points.

Two cases: differences of items (an accuracy) have the two-way interval over seeds and items; differences of scores that
are no mean over items have one over seeds only.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from toolkit.comparison.intervals import Interval

Array = NDArray[np.float64]
POINTS = 100.0
EQUIVALENCE_LEVEL = 0.90
"""Two one-sided tests at .05 are a 90 % interval."""

NOT_FAILED = (
    "num_seeds_not_failed",
    "difference_points_not_failed",
    "low_points_not_failed",
    "high_points_not_failed",
)
"""What :func:`estimate_not_failed` gives: the difference over the pairs of runs of which neither failed."""

BOOTSTRAP = ("bootstrap_low_points", "bootstrap_high_points")
"""Of differences of items only: there is nothing to draw beneath a score per seed."""

NO_MEAN = "no mean over items: the interval covers seeds, and items only as far as they vary with them"
OTHER_ITEMS_PER_SEED = "each seed has its own items: the interval is over seeds"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a comparison is made; the defaults are those of :func:`toolkit.compare`."""

    margin_points: float = 1.0
    level: float = 0.95
    alpha: float = 0.05
    num_draws: int = 2000
    """Of the bootstrap; 0 leaves it out."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("level", self.level), ("alpha", self.alpha)):
            if not 0 < value < 1:
                raise ValueError(f"{name} must be between 0 and 1; got {value}")
        if not 0 < self.margin_points < np.inf:
            raise ValueError(f"margin_points must be above 0 and finite; got {self.margin_points}")


def estimate_from_items(differences: Array, settings: Settings) -> dict[str, Any]:
    """What :func:`toolkit.compare` says of (seeds, items) differences, each -1, 0 or 1 or any real share.

    With one seed the interval is over items, and no p rests on it; under three seeds there is no verdict.
    """
    from toolkit.comparison.intervals import hierarchical_interval, two_way_interval

    wide, narrow = (two_way_interval(differences, level) for level in (settings.level, EQUIVALENCE_LEVEL))
    line = _line(wide, narrow, differences.mean(axis=1), settings) | dict.fromkeys(BOOTSTRAP, np.nan)
    if not settings.num_draws:
        return line | {"note": wide.note}
    drawn = hierarchical_interval(differences, settings.level, settings.num_draws, settings.seed)
    line |= {"bootstrap_low_points": POINTS * drawn.low, "bootstrap_high_points": POINTS * drawn.high}
    return line | {"note": wide.note}


def estimate_from_seeds(differences: Array, settings: Settings, *, is_mean_over_items: bool = False) -> dict[str, Any]:
    """What :func:`toolkit.compare` says of (seeds,) differences of a score; NaN differences are left out and counted.

    A run that collapsed must not be among the NaN: what it lost would not count (ArmPair.counted_scores makes it 0).
    For scores that are no mean over items, and for accuracies whose items differ between seeds.
    """
    from toolkit.comparison.intervals import SCORES_OVER_SEEDS, seeds_interval

    defined = differences[~np.isnan(differences)]
    notes = [OTHER_ITEMS_PER_SEED if is_mean_over_items else NO_MEAN]
    undefined = len(differences) - len(defined)
    notes += [f"undefined in {undefined} of {len(differences)} seeds"] if undefined else []
    if not len(defined):
        nothing = {"margin_points": settings.margin_points, "is_equivalent": False}
        said = {"verdict": "not measurable here", "reason": "; ".join(notes[1:]) or "no seed", "note": "; ".join(notes)}
        return {"difference_points": np.nan} | nothing | said
    wide, narrow = (seeds_interval(defined, level) for level in (settings.level, EQUIVALENCE_LEVEL))
    notes += [wide.note] if wide.note != SCORES_OVER_SEEDS else []
    line = _line(wide, narrow, defined, settings)
    return line | dict.fromkeys(BOOTSTRAP, np.nan) | {"note": "; ".join(notes)}


def estimate_not_failed(differences: Array, settings: Settings) -> dict[str, Any]:
    """NOT_FAILED of the differences, (pairs, items) or (pairs,), of pairs of runs of which neither failed.

    NaN is left out; with fewer than two pairs all but their number is NaN.
    """
    from toolkit.comparison.intervals import interval_of

    kept = differences[~np.isnan(differences)] if differences.ndim == 1 else differences
    if len(kept) < 2:
        return dict.fromkeys(NOT_FAILED, np.nan) | {NOT_FAILED[0]: len(kept)}
    found = interval_of(kept, settings.level)
    values = (len(kept), POINTS * found.estimate, POINTS * found.low, POINTS * found.high)
    return dict(zip(NOT_FAILED, values, strict=True))


def _line(wide: "Interval", narrow: "Interval", by_seed: Array, settings: Settings) -> dict[str, Any]:
    """All but the bootstrap, with the verdict, from the intervals at both levels and the (seeds,) differences."""
    from toolkit.comparison.intervals import detectable_gap, is_equivalent, tost
    from toolkit.comparison.tests import sign_flip, smallest_p
    from toolkit.comparison.verdicts import LEAST_SEEDS

    margin, has_seeds = settings.margin_points / POINTS, len(by_seed) > 1
    is_judged = len(by_seed) >= LEAST_SEEDS
    line = {
        "difference_points": POINTS * wide.estimate,
        "low_points": POINTS * wide.low,
        "high_points": POINTS * wide.high,
        "df": wide.df,
        "p": p_value(wide) if has_seeds else np.nan,
        "low90_points": POINTS * narrow.low,
        "high90_points": POINTS * narrow.high,
        "sign_flip_p": sign_flip(by_seed, seed=settings.seed),
        "smallest_p": smallest_p(len(by_seed)),
        "tost_p": tost(wide, margin) if has_seeds else np.nan,
        "margin_points": settings.margin_points,
        "is_equivalent": is_judged and is_equivalent(narrow, margin),
        "detectable_gap_points": POINTS * detectable_gap(wide, alpha=settings.alpha),
    }
    return _judged(line, settings, len(by_seed))


def p_value(interval: "Interval") -> float:
    """Two-sided p of the t test that the interval inverts: 2·P(T > |D̄|/√V), T with df degrees of freedom.

    1 where the difference and its variance are both exactly 0, NaN where only the variance is, or the interval is not
    defined: a variance of 0 is then too few seeds or items, not certainty. Approximate far out: of 9,000 nulls with 5
    seeds and 3 points between them 4.5 % have p < .05, and .33 % have p < .0017, twice as many as should.
    """
    from scipy.special import stdtr

    if interval.variance == 0:
        return 1.0 if interval.estimate == 0 else np.nan
    return float(2 * stdtr(interval.df, -abs(interval.estimate) / np.sqrt(interval.variance)))


def _judged(line: dict[str, Any], settings: Settings, num_seeds: int) -> dict[str, Any]:
    """The line with its verdict on "the two arms differ", alone: q is known when all lines are (compare.py)."""
    from toolkit.comparison.verdicts import verdict

    found = verdict(
        num_seeds=num_seeds,
        low=line["low_points"],
        high=line["high_points"],
        low90=line["low90_points"],
        high90=line["high90_points"],
        margin=settings.margin_points,
        gap=line["detectable_gap_points"],
    )
    return line | {"verdict": found.name, "reason": found.reason}
