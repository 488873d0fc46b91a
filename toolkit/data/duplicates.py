"""Examples that nearly repeat others."""

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

THRESHOLD = 0.8
"""Least Jaccard similarity of two near-duplicates. While no bigram recurs, it forgives one replaced word in a text of
17 words or more, and a swap of two distant words in one of 35 or more: shorter texts that differ in a word,
or in who did it to whom, may well differ in their label and are kept."""

AT_A_TIME = 256
"""Examples that are compared with all others at a time, which bounds memory: a number for each two."""

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
    Each example is compared with every other one: one product of sparse matrices counts what their bigrams share.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be above 0 and at most 1, got {threshold}")
    of_places = [_bigram_matrix(texts_in_place) for texts_in_place in zip_longest(*texts, *others)]
    is_repeated = np.zeros(len(texts), dtype=bool)
    for start in range(0, len(texts), AT_A_TIME):
        chunk = slice(start, min(start + AT_A_TIME, len(texts)))
        is_similar = [_jaccard(matrix[chunk], matrix[len(texts) :]) >= threshold for matrix in of_places]
        is_repeated[chunk] = np.all(is_similar, axis=0).any(axis=1)
    return is_repeated


def words_of(text: str) -> list[str]:
    """Runs of letters and digits after Unicode NFKC and case folding; of a text without any, what spaces separate.

    A script that writes no spaces gives one word per run, so that only its exact repetitions are found.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    return _WORD.findall(text) or text.split()


def _bigrams_of(text: str | None) -> list[tuple[str, ...]]:
    """Its bigrams, both ends marked by an empty word; of a text that an example lacks one that no text has."""
    return [()] if text is None else list(pairwise(["", *words_of(text), ""]))


def _bigram_matrix(texts: Sequence[str | None]) -> Any:
    """(texts, bigrams) sparse ones where a text has a bigram."""
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(analyzer=_bigrams_of, binary=True, dtype=np.int32).fit_transform(texts)


def _jaccard(first: Any, second: Any) -> NDArray[np.float64]:
    """(first, second) the similarity of each two rows."""
    shared = (first @ second.T).toarray()
    num_in_either: NDArray[np.int64] = first.getnnz(axis=1)[:, None] + second.getnnz(axis=1) - shared
    return np.asarray(shared / num_in_either)
