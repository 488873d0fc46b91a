"""Verdicts on claims, each with its reason, from an interval, its margin, null, seeds and q; and the card that has one.

The rules and their order are this project's; a verdict is about a claim, never about a p value
alone. Of many true nulls some have an interval that excludes 0 by chance: q (Benjamini & Hochberg over the claims of
one kind in one report) decides how many of them are believed.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from toolkit.naming import REFUSALS as REFUSALS
from toolkit.naming import Described, lookup, parse_object, refuse_first
from toolkit.snapshots import files

CLAIMED = ("supported", "the other way")
"""Verdicts that an interval makes on one side or the other: only these depend on q."""
VERDICTS = (*REFUSALS, "not judged", "equivalent", *CLAIMED, "under-powered", "not supported")
"""In the order in which they are tried: the first whose rule holds is the verdict."""

LEAST_SEEDS = 3
"""Two seeds leave one degree of freedom: their intervals covered .881 to .963 in simulation where .95 was asked for
(intervals.py), and both "supported" and "equivalent" are read off such an interval."""
NO_INTERVAL = "no interval could be computed: there are too few seeds or items"
SAME_IN_THESE = "the same in these {} seeds, which bounds nothing about other seeds"

Side = Literal["either", "above"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One of VERDICTS and the sentence that says why."""

    name: str
    reason: str


def verdict(
    *,
    num_seeds: int,
    refusal: Verdict | None = None,
    low: float,
    high: float,
    low90: float,
    high90: float,
    margin: float,
    null_low: float = 0.0,
    null_high: float = 0.0,
    gap: float,
    q: float = math.nan,
    num_claims: int = 1,
    alpha: float = 0.05,
    side: Side = "either",
    unit: str = "points",
    do_seeds_differ: bool = True,
) -> Verdict:
    """The verdict on a claim about one quantity; every number in one ``unit``, the interval ``low`` to ``high``.

    1. *not applicable*, *not recorded*, *not measurable here*, 2. *not identifiable*: ``refusal`` says so, and why.
    3. *not judged*: under three seeds, whatever the interval: another seed could be anywhere.
    4. *equivalent*: the 90 % interval lies inside (-margin, margin) (two tests at 5 %), even if it excludes 0; the
       reason says when it does.
    5. *supported*: the interval excludes 0 and the null range ``null_low`` to ``null_high``, and ``q``, where it is
       known, is below ``alpha``. ``side`` "above" is for claims with a direction: only an interval above both counts.
       An interval that is enough while q is not makes the claim *not supported*, with q and ``num_claims``.
    6. *the other way*: of a claim with a direction, an interval below both, by the same q: what is false is then the
       direction, and more seeds would not help the claim.
    7. *under-powered*: the smallest detectable ``gap`` is above the margin. A missing interval, or a missing gap beside
       a margin, counts as that too: nothing may pass for a finding because its power could not be worked out.
    8. *not supported*: none of these.

    Seeds that do not differ (``do_seeds_differ``) bound nothing about other seeds, however many they are: the reason of
    4 to 8 says so.

    NaN is "unknown" and never helps a claim: no equivalence without margin and 90 % interval, no support without
    interval and null. A NaN ``q`` is no family of claims: the claim stands alone. A NaN ``margin`` means that no
    smallest difference of interest was named, so that rules 4 and 7 (its gap) do not apply. ValueError: an interval or
    null whose ends are swapped, a margin that is not above 0, a ``refusal`` that is none, a ``side`` that is none.
    """
    lookup(dict.fromkeys(get_args(Side)), side, "side")
    ends = {"interval": (low, high), "90 % interval": (low90, high90), "null": (null_low, null_high)}
    faults = {
        f"the {name} runs from {first} to {second}: pass its lower end first": first > second
        for name, (first, second) in ends.items()
    }
    refuse_first(faults | {f"margin is {margin}: it must be above 0 (or NaN, where no margin was named)": margin <= 0})
    if refusal is not None:
        lookup(dict.fromkeys(REFUSALS), refusal.name, "refusal")
        return refusal
    if num_seeds < LEAST_SEEDS:
        return Verdict("not judged", few_seeds(num_seeds))
    has_interval = not (math.isnan(low) or math.isnan(high))
    has_null = not (math.isnan(null_low) or math.isnan(null_high))
    null = "0" if null_low == null_high == 0 else f"0 and the null {_span(null_low, null_high)}"
    is_above, is_below = low > max(0.0, null_high), high < min(0.0, null_low)
    is_apart = (low > 0 or high < 0) and (low > null_high or high < null_low)
    interval_text = f"the interval {_span(low, high)} {unit}"
    if -margin < low90 and high90 < margin:
        apart_from_0 = " and excludes 0" if low90 > 0 or high90 < 0 else ""
        inside = f"the 90 % interval {_span(low90, high90)} lies within ±{margin:.3g} {unit}{apart_from_0}"
        judged = Verdict("equivalent", inside)
    elif has_interval and has_null and (is_above if side == "above" else is_apart):
        relation = "lies above" if side == "above" else "excludes"
        judged = among(Verdict("supported", f"{interval_text} {relation} {null}"), q, num_claims, alpha)
    elif has_interval and has_null and is_below:  # of a claim without a direction the one before has it
        judged = among(Verdict("the other way", f"{interval_text} lies below {null}"), q, num_claims, alpha)
    elif not has_interval:
        judged = Verdict("under-powered", NO_INTERVAL)
    elif not math.isnan(margin) and not gap <= margin:  # nor a gap that is unknown
        size = "is unknown" if math.isnan(gap) else f"is {gap:.3g} {unit}, above the margin of {margin:.3g}"
        judged = Verdict("under-powered", f"the smallest detectable gap {size}")
    else:
        relation = "does not lie above" if side == "above" else "does not exclude"
        judged = Verdict("not supported", f"{interval_text} {relation} {null}" if has_null else "the null is unknown")
    return judged if do_seeds_differ else replace(judged, reason=f"{judged.reason}; {SAME_IN_THESE.format(num_seeds)}")


def among(alone: Verdict, q: float, num_claims: int, alpha: float) -> Verdict:
    """The verdict that remains of ``alone`` beside the other claims: one on a side only where q < ``alpha``."""
    if alone.name not in CLAIMED or math.isnan(q) or q < alpha:
        return alone
    claims = f"of {num_claims} claims" if num_claims > 1 else "of this claim"
    return replace(
        alone, name="not supported", reason=f"{alone.reason}; the q {claims}, {q:.3g}, is not below {alpha:g}"
    )


def few_seeds(num_seeds: int) -> str:
    """Why nothing is judged by so few seeds."""
    reasons = {0: "no seed", 1: "one seed says nothing of others", 2: "two seeds leave one degree of freedom"}
    return f"{reasons[num_seeds]}: at least {LEAST_SEEDS} are needed"


def _span(low: float, high: float) -> str:
    """``-1.2 to 3.4``."""
    return f"{low:.3g} to {high:.3g}"


FORMAT = 1
"""Version of cards.json, and of the formulas of its cards; a reader refuses any other."""

CARDS = "cards.json"
DIGITS = 10
"""Significant digits of a number on a card: a library that adds up in another order must not make another card."""

UNWRITTEN = ("group", "subject", "needs_control")
"""Fields of a card that pages are made by, and that a reader has in other words."""

NAN = math.nan


@dataclass(frozen=True, slots=True)
class Span:
    """An interval at a level, such as .95; NaN where there is none."""

    low: float = NAN
    high: float = NAN
    level: float = NAN


@dataclass(frozen=True, slots=True)
class Null:
    """The range of the number if the claim were empty."""

    what: str
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Card(Described):
    """One claim; every number in ``unit``, NaN (null in JSON) where it is unknown or does not apply."""

    kind: str
    """score, forbid, labels, drift, offset, tokens or association."""
    group: str = ""
    """The model and task that it is about; empty across tasks."""
    subject: tuple[str, ...]
    """What of them."""
    claim: str
    estimator: str
    unit: str
    value: float
    interval: Span
    equivalence: Span = Span()
    """The interval that decides equivalence."""
    margin: float = NAN
    null: Null
    noise_floor: float = NAN
    """The same quantity between two seeds of one condition."""
    num_seeds: int
    num_items: int | None = None
    detectable_gap: float = NAN
    q: float = NAN
    """Benjamini-Hochberg over the claims of this kind in the report: a claim with another test is no help to it."""
    num_claims: int | None = None
    """How many claims ``q`` is over; None where the claim has no q."""
    is_discovery: bool | None = None
    """Whether q is below the report's alpha; None where the claim has no q."""
    verdict: str
    """Of VERDICTS; one of CLAIMED only where ``q`` is below the report's alpha too."""
    reason: str
    source: str
    """The formula and where it comes from."""
    inputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """``files``: evidence file to sha256; ``runs``: run to the sha256 of its manifest."""

    needs_control: bool = False
    """Whether only a control that was not run could say what its number means."""

    def __post_init__(self) -> None:
        lookup(dict.fromkeys(VERDICTS), self.verdict, "verdict")

    @property
    def id(self) -> str:
        """The name of the card, which no other of the report has."""
        return f"{self.kind}: {' / '.join([self.group, *self.subject] if self.group else self.subject)}"

    @property
    def deciding(self) -> Span:
        """The interval that decided the verdict, which is the one to print and to draw: that of equivalence, or .95."""
        return self.equivalence if self.verdict == "equivalent" else self.interval

    def facts(self) -> dict[str, str]:
        """The claim, its number with the interval that decided, and the verdict with its reason."""
        low, high, level = self.deciding.low, self.deciding.high, self.deciding.level
        fields = {"interval": f"{low:.4g} to {high:.4g} ({100 * level:g} %)"} if low == low else {}
        fields = {"claim": self.claim, "value": f"{self.value:.4g} {self.unit}".strip()} | fields
        return fields | {"seeds": str(self.num_seeds), "verdict": self.verdict, "reason": self.reason}

    def to_dict(self) -> dict[str, Any]:
        """The card as it is written: numbers to ten digits, null for NaN; of its subject the id alone."""
        values = {name: value for name, value in asdict(self).items() if name not in UNWRITTEN}
        written: dict[str, Any] = _written({"id": self.id, **values})
        return written


def save_cards(cards: list[Card], folder: str | Path, hashes: Mapping[str, str]) -> Path:
    """Write ``folder``/cards.json with the sha256 of the evidence files beside the cards; its path."""
    path = Path(folder) / CARDS
    values = {"format": FORMAT, "evidence": dict(hashes), "cards": [card.to_dict() for card in cards]}
    files.write_text(path, json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def load_cards(folder: str | Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The cards of a report as they are written, and the sha256 of each evidence file.

    ValueError when cards.json is missing, no JSON, of another format, or no list of cards.
    """
    path = Path(folder) / CARDS
    if not path.is_file():
        raise ValueError(f"{folder} is not a report with cards: it has no {CARDS}")
    fields = {"format": int, "evidence": dict, "cards": list}
    values = parse_object(path.read_bytes(), CARDS, fields, version=FORMAT)
    return values["cards"], values["evidence"]


def _written(value: Any) -> Any:
    """A value as cards.json has it: numbers to DIGITS, null for what is not finite, through all nested values."""
    if isinstance(value, Mapping):
        return {str(name): _written(item) for name, item in value.items()}
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") + 0.0 if math.isfinite(value) else None
    return value
