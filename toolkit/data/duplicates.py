"""Examples that nearly repeat others."""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray

Bigrams = frozenset[str]

THRESHOLD = 0.8
"""Least Jaccard similarity of two near-duplicates. While no bigram recurs, it forgives one replaced word in a text of
17 words or more, and a swap of two distant words in one of 35 or more: shorter texts that differ in a word,
or in who did it to whom, may well differ in their label and are kept."""

_WORD = re.compile(r"[^\W_]+")


def near_duplicates(
    texts: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]], threshold: float = THRESHOLD
) -> NDArray[np.bool_]:
    """Which of ``texts`` nearly repeat any of ``others``.

    Two examples are near-duplicates when they have equally many texts and each text, in its place, has a Jaccard
    similarity of at least ``threshold`` with its counterpart: two pairs with the same premise and different hypotheses
    are none. An example that repeats another up to case, punctuation and spacing always is. Compared are sets of word
    bigrams, both ends marked (our choice). They make order count: reversing who did it to whom in a five-word sentence
    leaves .5.

    Parameters
    ----------
    texts
        Per example its one or two texts.
    others
        The same, for the examples that must not be repeated.
    threshold
        Least similarity, above 0 and at most 1.

    Returns
    -------
    numpy.ndarray
        (examples,) bool, for each example of ``texts``.

    Raises
    ------
    ValueError
        The threshold is outside its range.

    Notes
    -----
    Exact, without comparing every pair: two sets with a Jaccard similarity of t or more share at least ceil(t n) of the
    n elements of each, so that in one common order their first n - ceil(t n) + 1 elements must meet (the prefix filter
    of similarity joins: Chaudhuri et al. 2006, Bayardo et al. 2007). With the rarest bigrams first, few pairs do, and
    those are compared in full.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be above 0 and at most 1, got {threshold}")
    index = _Index(others, threshold)
    return np.array([index.holds(_bigrams_of(example)) for example in texts], dtype=bool)


def words_of(text: str) -> list[str]:
    """Runs of letters and digits after Unicode NFKC and case folding; of a text without any, what spaces separate.

    A script that writes no spaces gives one word per run, so that only its exact repetitions are found.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    return _WORD.findall(text) or text.split()


def _bigrams_of(example: tuple[str, ...]) -> tuple[Bigrams, ...]:
    """Words hold no space: a bigram that starts or ends with one marks the start or the end of the text."""
    marked = (["", *words_of(text), ""] for text in example)
    return tuple(frozenset(f"{left} {right}" for left, right in pairwise(words)) for words in marked)


def _jaccard(first: Bigrams, second: Bigrams) -> float:
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared)


class _Index:
    """Examples by the rare bigrams of each of their texts."""

    def __init__(self, examples: Iterable[tuple[str, ...]], threshold: float) -> None:
        self.threshold = threshold
        self.examples = list(dict.fromkeys(_bigrams_of(example) for example in examples))
        self.counts = Counter(bigram for example in self.examples for text in example for bigram in text)
        self.holders: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        for number, example in enumerate(self.examples):
            for place, text in enumerate(example):
                for bigram in self._prefix(text):
                    self.holders[place, bigram].append(number)

    def holds(self, example: tuple[Bigrams, ...]) -> bool:
        """Whether there is an example whose texts are all similar to these."""
        # Each text alone finds all candidates: take the one with fewer (a premise may recur in thousands of pairs).
        found = [
            [self.holders[place, bigram] for bigram in self._prefix(text) if (place, bigram) in self.holders]
            for place, text in enumerate(example)
        ]
        candidates: list[list[int]] = min(found, key=lambda lists: sum(map(len, lists)), default=[])
        return any(self._is_similar(example, self.examples[number]) for number in set().union(*candidates))

    def _prefix(self, text: Bigrams) -> list[str]:
        """The rarest bigrams: a similar text has one of them among its own."""
        # The tiny term: .07 * 100 is 7.000000000000001, and one bigram too few would miss a near-duplicate.
        length = len(text) - ceil(self.threshold * len(text) - 1e-9) + 1
        return sorted(text, key=lambda bigram: (self.counts[bigram], bigram))[:length]

    def _is_similar(self, example: tuple[Bigrams, ...], other: tuple[Bigrams, ...]) -> bool:
        return len(example) == len(other) and all(
            _jaccard(first, second) >= self.threshold for first, second in zip(example, other, strict=True)
        )
