"""Evidence cards in, the lines of a report's table of verdicts out, in the order in which a reader asks."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import pandas as pd

from toolkit.analysis.comparison.card import Card
from toolkit.reporting.cells import interval
from toolkit.reporting.comparison.drift_answers import whose
from toolkit.reporting.markdown import number
from toolkit.reporting.page.model import VerdictLine

MOST_IN_OVERVIEW = 40
"""With more lines than these the overview keeps to scores; drift has its verdicts in its own section."""

_ABOUT_SCORES = ("forbid", "score", "association")
_KINDS = {
    "forbid": "Scores",
    "score": "Scores",
    "labels": "Drift",
    "drift": "Drift",
    "offset": "Drift",
    "association": "Across tasks",
}
_NAMES = {"Drift": "drift", "Across tasks": "association", "Scores": "scores"}


def overview(cards: Sequence[Card], arms: Collection[str] | None = None) -> tuple[VerdictLine, ...]:
    """The lines that stand first in a report: all of them, or those on scores where there are many.

    ``arms`` names the arms of the most training examples: of very many lines, those on scores keep to these.
    """
    chosen = _without_repetition(cards)
    if len(chosen) > MOST_IN_OVERVIEW:
        chosen = [card for card in chosen if card.kind in _ABOUT_SCORES]
    if len(chosen) > MOST_IN_OVERVIEW and arms is not None:
        ends = tuple(f" / {first} - {second}" for first in arms for second in arms)
        chosen = [card for card in chosen if card.kind == "association" or card.id.endswith(ends)]
    groups = list(dict.fromkeys(group_of(card) for card in chosen))
    kinds = list(_KINDS)

    def place(card: Card) -> tuple[bool, int, int]:
        return (card.kind == "association", groups.index(group_of(card)), kinds.index(card.kind))

    return tuple(line_of(card) for card in sorted(chosen, key=place))


def _without_repetition(cards: Sequence[Card]) -> list[Card]:
    """Without score cards that a forbid card repeats, and one for all associations that one reason refuses."""
    forbidden = {card.id.partition(": ")[2] for card in cards if card.kind == "forbid"}
    kept: list[Card] = []
    refused: dict[str, list[Card]] = {}
    for card in cards:
        if card.kind == "association" and card.value != card.value:
            refused.setdefault(card.reason, []).append(card)
    for card in cards:
        if card.kind == "score" and card.id.partition(": ")[2] in forbidden:
            continue
        if card.kind == "association" and card.value != card.value:
            if card is not refused[card.reason][0]:
                continue
            card = replace(card, claim=_claim_of_all(refused[card.reason]))
        kept.append(card)
    return kept


def _claim_of_all(cards: Sequence[Card]) -> str:
    """One claim for associations that one reason refuses: it names the parameters and the arms that it is about."""
    parts = [card.id.partition(": ")[2].split(" / ", 1) for card in cards]
    arms = [(model, *rest.rpartition(" / ")[::2]) for model, rest in parts]
    several = len({model for model, _, _ in arms}) > 1
    named = whose((parameter, f"{arm} ({model})" if several else arm) for model, arm, parameter in arms)
    return f"Tasks that moved further gained more from moving: {named}"


def not_listed(cards: Sequence[Card], lines: Sequence[VerdictLine]) -> str:
    """How many cards have no line of their own in the overview, of what kinds, and where they are; '' without any."""
    left = Counter(_KINDS[card.kind] for card in cards)
    left.subtract(line.group.partition(":")[0] for line in lines)
    parts = [f"{left[kind]} on {name}" for kind, name in _NAMES.items() if left[kind] > 0]
    if not parts:
        return ""
    total = sum(left.values())
    which, be = ("1 more card", "is") if total == 1 else (f"{total} more cards", "are")
    return f"{which} ({', '.join(parts)}) {be} in cards.json and tables/verdicts and {be} not in this count."


def group_of(card: Card) -> str:
    """The model and task that a card is about, as its id names them; empty for one across tasks."""
    return "" if card.kind == "association" else card.id.partition(": ")[2].split(" / ")[0]


def line_of(card: Card) -> VerdictLine:
    """One card as a reader sees it."""
    is_points = card.unit == "points"
    value = f"{card.value:+.2f} points" if is_points else _with_unit(card.value, card.unit)
    span = card.deciding
    text = interval(span.low, span.high) if is_points else f"{number(span.low)} to {number(span.high)}"
    is_known = span.low == span.low and span.high == span.high
    kind = _KINDS[card.kind]
    return VerdictLine(
        claim=card.claim,
        verdict=card.verdict,
        value=value if card.value == card.value else "undefined",
        interval=f"{text} ({100 * span.level:.0f} %)" if is_known else "",
        detail=detail_of(card),
        group=f"{kind}: {group_of(card)}" if group_of(card) else kind,
        estimate=card.value,
        low=span.low,
        high=span.high,
        margin=card.margin,
        null=1.0 if card.kind == "drift" else 0.0,  # drift is a multiple of its noise
        unit=card.unit,
    )


def _with_unit(value: float, unit: str) -> str:
    """A number with the short form of its unit: what a percentage is of stands in the detail."""
    return f"{number(value)} %" if unit.startswith("%") else f"{number(value)} {unit}".removesuffix(" 1").strip()


def detail_of(card: Card) -> str:
    """Why this verdict, and all that the number stands on, in sentences."""
    seeds = f"{card.num_seeds} seed{'' if card.num_seeds == 1 else 's'}"
    items = f", {card.num_items:,} items" if card.num_items else ""
    parts = [
        f"{card.reason[:1].upper()}{card.reason[1:]}",
        f"{card.estimator[:1].upper()}{card.estimator[1:]}; {seeds}{items}",
    ]
    parts += [f"Unit: {card.unit}"]
    if card.null.what:
        has_range = card.null.low != 0 or card.null.high != 0
        null_range = f", {number(card.null.low)} to {number(card.null.high)}" if has_range else ""
        parts += [f"Null: {card.null.what}{null_range if card.null.low == card.null.low else ''}"]
    for name, value in (
        ("Noise floor (between two seeds of one arm)", card.noise_floor),
        ("Smallest detectable gap", card.detectable_gap),
        ("Margin", card.margin),
        ("False discovery rate q", card.q),
    ):
        parts += [f"{name}: {number(value)}"] if value == value else []
    return ". ".join(parts) + "."


def verdicts_frame(cards: Sequence[Card]) -> pd.DataFrame:
    """One line per card, for tables/verdicts: numbers in the card's unit."""
    lines = [
        {
            "claim": card.claim,
            "verdict": card.verdict,
            "value": card.value,
            "low": card.deciding.low,
            "high": card.deciding.high,
            "level": card.deciding.level,
            "unit": card.unit,
            "margin": card.margin,
            "detectable_gap": card.detectable_gap,
            "noise_floor": card.noise_floor,
            "q": card.q,
            "num_seeds": card.num_seeds,
            "num_items": card.num_items,
            "reason": card.reason,
            "estimator": card.estimator,
            "kind": card.kind,
            "group": group_of(card),
            "id": card.id,
        }
        for card in cards
    ]
    return pd.DataFrame(lines).astype({"num_items": "Int64"}) if lines else pd.DataFrame(columns=["claim", "verdict"])
