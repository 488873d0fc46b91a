"""The words of pages for verdicts: in a table, a legend, on the first screen, and as the answer to a card's question.

Which verdict it is, and its reason, is decided in ``comparison/verdicts.py``; nothing reads these words back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from toolkit.comparison.verdicts import CLAIMED, REFUSALS, Card
from toolkit.naming import NOT_MEASURABLE
from toolkit.reporting.cells import number

Tone = Literal["", "same", "apart", "open"]
"""What kind of answer: nothing differs, something does, or these data cannot tell. A page shows it as a colour."""

CANNOT_TELL = "cannot tell"
OPEN_VERDICTS = {"under-powered": f"{CANNOT_TELL}: too few data", "not supported": CANNOT_TELL}
"""Verdict that decides nothing to what every page says."""
DECIDING_VERDICTS = ("equivalent", *CLAIMED)
"""Verdicts by which the runs say yes or no."""
FEW_SEEDS = {
    num: f"not judged: {word}, three are needed" for num, word in enumerate(("no seed", "one seed", "two seeds"))
}
"""Number of seeds to what is said instead of a verdict."""
LEGEND_WORDS = {
    "supported": "the scores differ",
    "equivalent": "no difference beyond the margin",
} | OPEN_VERDICTS
"""Verdict to what the legend of a chart of differences says."""
SHUFFLED_LABELS_WORDS = {"equivalent": "no", "supported": "yes", "the other way": "less alike than shuffled ones"}
"""Verdict to what the first screen says of real labels beside shuffled ones; of any other: cannot tell."""


@dataclass(frozen=True, slots=True)
class ScoreWords:
    """What a verdict on two scores says of the second condition."""

    word: str
    """Alone: what several tasks are counted by."""
    sized: str
    """With its size or its margin; as a template it has the fields ``size`` and ``margin``, both in points."""
    tone: Tone


_SCORE_WORDS = {
    "equivalent": ScoreWords("same score", "same score, within ±{margin:#.3g} points", "same"),
    "lower": ScoreWords("worse", "{size:.1f} points worse", "apart"),
    "higher": ScoreWords("better", "{size:.1f} points better", "apart"),
}
"""No "yes" or "no": alone they would be good news under one question and bad news under another. Lower and higher: the
second condition's score, in a supported difference."""


def score_words(comparison: Mapping[Any, Any]) -> ScoreWords:
    """What a record of ``toolkit.compare`` (first minus second) says of the second condition, its size filled in."""
    verdict, difference = str(comparison["verdict"]), comparison["difference_points"]
    outcome = ("lower" if difference > 0 else "higher") if verdict == "supported" else verdict
    if outcome in _SCORE_WORDS:
        words = _SCORE_WORDS[outcome]
        sized = words.sized.format(margin=comparison["margin_points"], size=abs(difference))
        return ScoreWords(words.word, sized, words.tone)
    undecided_words = {
        "not judged": FEW_SEEDS.get(comparison["num_seeds"], CANNOT_TELL),
        NOT_MEASURABLE: NOT_MEASURABLE,
    }
    word = undecided_words.get(verdict, CANNOT_TELL)
    return ScoreWords(word, word, "open")


def question_of(card: Card) -> str:
    """The claim of a card as the question that it answers."""
    return f"Is this so: {card.claim}?"


def answer_of(card: Card) -> str:
    """The answer that the verdict gives to that question, in a word or a few."""
    if card.verdict == "supported":
        return "yes"
    if card.verdict == "equivalent":
        return f"no, within ±{number(card.margin, 2)} {card.unit}".removesuffix(" 1")
    if card.verdict == "the other way":
        return f"no, {card.verdict}"
    if card.verdict in REFUSALS:
        return card.verdict
    if card.num_seeds < 3:
        return FEW_SEEDS[card.num_seeds]
    return "described only" if card.kind == "drift" and card.verdict == "not judged" else CANNOT_TELL
