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
DECIDED = ("supported", "equivalent")
"""Verdicts by which the runs say yes or no."""
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


def verdicts_frame(cards: Sequence[Card]) -> pd.DataFrame:
    """One line per card, for tables/verdicts: numbers in the card's unit."""
    fields = "margin detectable_gap noise_floor q num_seeds num_items reason estimator kind"
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
            **{name: getattr(card, name) for name in fields.split()},
            "group": group_of(card),
            "id": card.id,
        }
        for card in cards
    ]
    return pd.DataFrame(lines).astype({"num_items": "Int64"}) if lines else pd.DataFrame(columns=["claim", "verdict"])


def span_of(card: Card) -> str:
    """The interval that decided, with its level."""
    own = card.deciding
    if own.low != own.low or own.high != own.high:
        return UNDEFINED
    return f"{number(own.low)} to {number(own.high)} ({100 * own.level:.0f} %)"


def claims_block(cards: Sequence[Card], caption: str) -> Block:
    """Cards as a table: what is asked, the answer, then what it stands on, in the card's unit."""
    if not cards:
        return TextBlock(text="These runs decide no question: what stays open, and why, stands below.")
    titles = {group_of(card) for card in cards}
    shared = titles.pop() if len(titles) == 1 else ""  # of all of them, which no question then repeats
    header = ["question", "answer", "estimate", "interval", "smallest gap", "q", "seeds"]
    rows = [
        [
            question_of(card).replace(f", {shared}", "" if shared else ", "),
            answer_of(card),
            f"{number(card.value)} {card.unit}".removesuffix(" 1") if card.value == card.value else UNDEFINED,
            span_of(card),
            number(card.detectable_gap),
            number(card.q),
            card.num_seeds,
        ]
        for card in cards
    ]
    return rows_block(header, rows, caption, HOWS)


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
        if card.verdict in DECIDED and not (card.kind == "score" and card.id.partition(": ")[2] in better)
    ]


def limits_section(data: ReportData, cards: Sequence[Card]) -> Section:
    """What these runs cannot tell: every open question once, and what has to be known to read any number."""
    left = [card for card in cards if card.verdict not in DECIDED and card.kind != "drift"]
    left = [card for card in left if card.kind != "association" or card.verdict != "not applicable"]
    order = list(reversed(VERDICTS))
    lines: dict[tuple[str, str], list[Card]] = {}
    for card in sorted(left, key=lambda card: order.index(card.verdict)):
        shared = card.reason if card.verdict in (*REFUSALS, "not judged") else card.id
        lines.setdefault((card.kind, shared), []).append(card)
    rows = []
    for first, *others in lines.values():
        more = f" (and {len(others)} more like it)" if others else ""
        rows.append([question_of(first) + more, answer_of(first), "" if others else span_of(first), first.reason])
    table = [rows_block(["question", "answer", "interval", "why"], rows, "Questions that stay open")] if rows else []
    said = caveats(data)
    if any(card.kind == "drift" and NO_CONTROL in card.reason for card in cards):
        said.append(f"Drift beside sign noise describes and shows no learning: {NO_CONTROL}.")
    notes = tuple(NoteBlock(text=text, is_warning=text.startswith("WARNING")) for text in said)
    return Section(id="limits", title="What these runs cannot tell", blocks=(*notes, *table))


def group_of(card: Card) -> str:
    """The model and task that a card is about, as its id names them; empty for one across tasks."""
    return "" if card.kind == "association" else card.id.partition(": ")[2].split(" / ")[0]
