"""An interval, its margin, its null and its power in, one of five verdicts with its reason out.

The rules and their order are this project's; a verdict is about a claim, never about a p value alone. It is about one
claim: of many true nulls some are "supported" by chance, and nothing here corrects for their number. That is what the q
beside a verdict is for (Benjamini & Hochberg over all claims of its kind).
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from toolkit.lookup import unknown

VERDICTS = ("not identifiable", "equivalent", "supported", "under-powered", "not supported")
"""In the order in which they are tried: the first whose rule holds is the verdict."""

NO_INTERVAL = "no interval could be computed: there are too few seeds or items"

Side = Literal["either", "above"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One of VERDICTS and the sentence that says why."""

    name: str
    reason: str


def verdict(
    *,
    refusal: str | None = None,
    low: float,
    high: float,
    low90: float,
    high90: float,
    margin: float,
    null_low: float = 0.0,
    null_high: float = 0.0,
    gap: float,
    side: Side = "either",
    unit: str = "points",
    missing: str = NO_INTERVAL,
) -> Verdict:
    """The verdict on a claim about one quantity; every number in one ``unit``, the interval ``low`` to ``high``.

    1. *not identifiable*: ``refusal`` says why no data of this kind could tell (a gauge quantity, a refused measure).
    2. *equivalent*: the 90 % interval lies inside (-margin, margin), even if it excludes 0 (two tests at 5 %).
    3. *supported*: the interval excludes 0 and the null range ``null_low`` to ``null_high``. ``side`` "above" is for
       claims with a direction: only an interval above both counts.
    4. *under-powered*: the smallest detectable ``gap`` is above the margin. A missing interval, or a missing gap beside
       a margin, counts as that too: nothing may pass for a finding because its power could not be worked out.
    5. *not supported*: none of these.

    NaN is "unknown" and never helps a claim: no equivalence without margin and 90 % interval, no support without
    interval and null. ``missing`` is the reason that is given where there is no interval. A NaN ``margin`` means that
    no smallest difference of interest was named, so that rules 2 and 4 (its gap) do not apply. ValueError: an interval
    or null whose ends are swapped, a margin that is not above 0, a ``side`` that is none.
    """
    _check(low, high, low90, high90, margin, null_low, null_high, side)
    if refusal is not None:
        return Verdict("not identifiable", refusal)
    if -margin < low90 and high90 < margin:
        return Verdict("equivalent", f"the 90 % interval {_span(low90, high90)} lies within ±{margin:.3g} {unit}")
    has_interval = not (math.isnan(low) or math.isnan(high))
    above = low > max(0.0, null_high)
    apart = (low > 0 or high < 0) and (low > null_high or high < null_low)
    is_known = not (math.isnan(null_low) or math.isnan(null_high))
    null = "0" if null_low == null_high == 0 else f"0 and the null {_span(null_low, null_high)}"
    if has_interval and is_known and (above if side == "above" else apart):
        does = "lies above" if side == "above" else "excludes"
        return Verdict("supported", f"the interval {_span(low, high)} {unit} {does} {null}")
    if not has_interval:
        return Verdict("under-powered", missing)
    if not math.isnan(margin) and not gap <= margin:
        size = "is unknown" if math.isnan(gap) else f"is {gap:.3g} {unit}, above the margin of {margin:.3g}"
        return Verdict("under-powered", f"the smallest detectable gap {size}")
    if not is_known:
        return Verdict("not supported", "the null is unknown")
    beyond = "does not lie above" if side == "above" else "does not exclude"
    return Verdict("not supported", f"the interval {_span(low, high)} {unit} {beyond} {null}")


def _span(low: float, high: float) -> str:
    return f"{low:.3g} to {high:.3g}"


def _check(
    low: float,
    high: float,
    low90: float,
    high90: float,
    margin: float,
    null_low: float,
    null_high: float,
    side: str,
) -> None:
    if side not in get_args(Side):
        raise ValueError(unknown(side, "side", get_args(Side)))
    ends = {"interval": (low, high), "90 % interval": (low90, high90), "null": (null_low, null_high)}
    for name, (first, second) in ends.items():
        if first > second:
            raise ValueError(f"the {name} runs from {first} to {second}: pass its lower end first")
    if margin <= 0:
        raise ValueError(f"margin is {margin}: it must be above 0 (or NaN, where no margin was named)")
