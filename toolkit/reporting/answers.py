"""Answers of a first screen: what an interval says, and the verdicts on several models or regimes as one."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import TypeAlias

from toolkit.reporting.page import NOTHING, Answer

Case: TypeAlias = tuple[str, str]
"""The verdict on one model and regime, and its numbers in a sentence."""
Answers: TypeAlias = tuple[Answer, ...]
NOT_JUDGED, NOT_DECIDED = "not judged", "not decided"
MOST_CASES = 3
"""Cases whose numbers an answer gives: the tables below have all of them."""


def judged(
    text: str, low: float, high: float, note: str = "", *, below: str = "no", num_seeds: int | None = None
) -> Case:
    """What an interval says of a number's being above 0, or with ``below="yes"`` other than 0; ``note``: why none."""
    if low == high == 0:
        return "no", text
    if num_seeds == 1 or math.isnan(low) or math.isnan(high):
        return NOT_JUDGED, f"{text} Not judged: {'one seed' if num_seeds == 1 else note}."
    return "yes" if low > 0 else below if high < 0 else NOT_DECIDED, text


def answer(question: str, cases: Iterable[Case], otherwise: str = NOTHING) -> Answer:
    """The verdict, or how many cases have which, and the numbers of the first; ``otherwise``: why there is none."""
    found = list(cases) or [(NOT_JUDGED, otherwise)]
    counts = Counter(verdict for verdict, _ in found)
    verdict = ", ".join(f"{word} ({n})" for word, n in counts.items()) if len(counts) > 1 else found[0][0]
    return Answer(question=question, verdict=verdict, text=" ".join(text for _, text in found[:MOST_CASES]))
