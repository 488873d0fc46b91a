"""Evidence cards as questions with their answers: those that the runs decide, and those that they cannot."""

from collections.abc import Sequence

import pandas as pd

from toolkit.comparison.cards import NO_CONTROL
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.verdicts import REFUSALS, VERDICTS, Card
from toolkit.reporting.cells import UNDEFINED, number
from toolkit.reporting.page import Block, FoldBlock, NoteBlock, Section, TextBlock, rows_block
from toolkit.reporting.topics.caveats import caveats

FREE = "With the embeddings free and forbidden to drift the scores differ"
HOWS = {
    "answer": "yes: the 95 % interval excludes 0 and q is below .05. No: the 90 % interval lies within the margin. "
    "Both only from three seeds on.",
    "interval": "The interval that decided: 90 % where the answer is no, else 95 %.",
    "q": "Bounds the share of findings by chance among the claims of one kind in this report with no greater q.",
    "smallest gap": "What these data would have found with 80 % power.",
}


def question_of(card: Card) -> str:
    """The claim of a card as the question that it answers."""
    claim = card.claim
    if card.kind == "forbid":
        return f"Does freezing the embeddings change the score{claim.removeprefix(FREE)}?"
    if card.kind == "score":
        return f"Do {claim}?"
    past = claim.replace(" moved ", " move ", 1).replace(" gained ", " gain ", 1)
    return f"Did {past[:1].lower()}{past[1:]}?" if past[:4] in ("The ", "Task", "Seed") else f"Did {past}?"


def answer_of(card: Card) -> str:
    """What the verdict says to that question, in a word or a few."""
    if card.verdict == "supported":
        return "yes"
    if card.verdict == "equivalent":
        return f"no, within ±{number(card.margin, 2)} {card.unit}".removesuffix(" 1")
    if card.verdict in REFUSALS:
        return card.verdict
    if card.num_seeds < 2:
        return "one seed: not judged"
    if card.num_seeds < 3:
        return "two seeds: not judged"
    return "described only" if card.kind == "drift" and card.verdict == "not judged" else "undecided"


def is_decided(card: Card) -> bool:
    """Whether the runs say yes or no."""
    return card.verdict in ("supported", "equivalent")


def claims_table(cards: Sequence[Card], title: str = "") -> pd.DataFrame:
    """One line per card, in the card's unit: what is asked, the answer, and what it stands on.

    ``title``: of the model and task that all of them are about, which no question then repeats.
    """
    lines = [
        {
            "question": question_of(card).replace(f", {title}", "") if title else question_of(card),
            "answer": answer_of(card),
            "estimate": f"{number(card.value)} {card.unit}".removesuffix(" 1")
            if card.value == card.value
            else UNDEFINED,
            "interval": span_of(card),
            "smallest gap": number(card.detectable_gap),
            "q": number(card.q),
            "seeds": card.num_seeds,
            "why": card.reason,
            "kind": card.kind,
            "verdict": card.verdict,
        }
        for card in cards
    ]
    return pd.DataFrame(lines)


def span_of(card: Card) -> str:
    """The interval that decided, with its level."""
    own = card.deciding
    if own.low != own.low or own.high != own.high:
        return UNDEFINED
    return f"{number(own.low)} to {number(own.high)} ({100 * own.level:.0f} %)"


def claims_block(cards: Sequence[Card], caption: str) -> Block:
    """Cards as a table: the answer, then what it stands on."""
    if not cards:
        return TextBlock(text="These runs decide no question: what stays open, and why, stands below.")
    header = ["question", "answer", "estimate", "interval", "smallest gap", "q", "seeds"]
    titles = {group_of(card) for card in cards}
    table = claims_table(cards, titles.pop() if len(titles) == 1 else "")
    return rows_block(header, table[header].to_numpy().tolist(), caption, HOWS)


def described(cards: Sequence[Card]) -> dict[str, Block]:
    """Title of a group to its cards on drift: what they say is description, and stands with the drift."""
    own: dict[str, list[Card]] = {}
    for card in cards:
        if card.kind in ("labels", "drift"):
            own.setdefault(group_of(card), []).append(card)
    caption = "Drift beside noise, and beside shuffled labels, on "
    return {
        title: FoldBlock(title="Further than noise?", blocks=(claims_block(found, f"{caption}{title}"),))
        for title, found in own.items()
    }


def decided(cards: Sequence[Card]) -> list[Card]:
    """The cards that say yes or no, without those on a score that another card asks in better words."""
    better = {card.id.partition(": ")[2] for card in cards if card.kind == "forbid"}
    return [
        card
        for card in cards
        if is_decided(card) and not (card.kind == "score" and card.id.partition(": ")[2] in better)
    ]


def limits_section(data: ReportData, cards: Sequence[Card]) -> Section:
    """What these runs cannot tell: every open question once, and what has to be known to read any number."""
    left = [card for card in cards if not is_decided(card) and card.kind != "drift"]
    left = [card for card in left if card.kind != "association" or card.verdict != "not applicable"]
    order = {name: place for place, name in enumerate(reversed(VERDICTS))}
    lines: dict[tuple[str, str], list[Card]] = {}
    for card in sorted(left, key=lambda card: order[card.verdict]):
        shared = card.reason if card.verdict in (*REFUSALS, "not judged") else card.id
        lines.setdefault((card.kind, shared), []).append(card)
    rows = [
        [_asked(own), answer_of(own[0]), span_of(own[0]) if len(own) == 1 else "", own[0].reason]
        for own in lines.values()
    ]
    table = rows_block(["question", "answer", "interval", "why"], rows, "Questions that stay open") if rows else None
    said = caveats(data)
    if any(card.kind == "drift" and NO_CONTROL in card.reason for card in cards):
        said.append(f"Drift beside sign noise describes and shows no learning: {NO_CONTROL}.")
    notes = tuple(NoteBlock(text=text, is_warning=text.startswith("WARNING")) for text in said)
    return Section(id="limits", title="What these runs cannot tell", blocks=(*notes, *((table,) if table else ())))


def _asked(cards: Sequence[Card]) -> str:
    more = f" (and {len(cards) - 1} more like it)" if len(cards) > 1 else ""
    return f"{question_of(cards[0])}{more}"


def group_of(card: Card) -> str:
    """The model and task that a card is about, as its id names them; empty for one across tasks."""
    return "" if card.kind == "association" else card.id.partition(": ")[2].split(" / ")[0]


def verdicts_frame(cards: Sequence[Card]) -> pd.DataFrame:
    """One line per card, for tables/verdicts: numbers in the card's unit."""
    lines = [
        {
            "question": question_of(card),
            "answer": answer_of(card),
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
