"""Near-duplicates: what an exact comparison of every pair finds, and only what a reader would call a repetition."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import check_refused
from toolkit.data.builtin import BUILTIN_TASKS
from toolkit.data.duplicates import THRESHOLD, near_duplicates, words_of
from toolkit.data.splits import Split
from toolkit.data.tasks import remove_near_duplicates

Example = tuple[str, ...]

TEXT = st.lists(st.sampled_from(["a", "b", "c", "The", "the", "..."]), max_size=9).map(" ".join)
EXAMPLE = st.one_of(st.tuples(TEXT), st.tuples(TEXT, TEXT))
EXAMPLES = st.lists(EXAMPLE, max_size=12)
THRESHOLDS = st.integers(min_value=1, max_value=100).map(lambda hundredths: hundredths / 100)


def jaccard(first: str, second: str) -> Fraction:
    """The definition, with exact fractions and pairs of words."""

    def bigrams(text: str) -> set[tuple[str, str]]:
        words = ["<s>", *words_of(text), "</s>"]
        return {(words[i], words[i + 1]) for i in range(len(words) - 1)}

    one, two = bigrams(first), bigrams(second)
    return Fraction(len(one & two), len(one | two))


def by_brute_force(texts: list[Example], others: list[Example], threshold: float) -> list[bool]:
    exact = Fraction(threshold).limit_denominator(1000)
    return [
        any(len(a) == len(b) and all(jaccard(x, y) >= exact for x, y in zip(a, b, strict=True)) for b in others)
        for a in texts
    ]


def numbered(num_words: int) -> list[str]:
    return [f"w{i}" for i in range(num_words)]


def is_duplicate(first: str, second: str, threshold: float = THRESHOLD) -> bool:
    return bool(near_duplicates([(first,)], [(second,)], threshold)[0])


def split_of(*texts: str, first_id: int = 0) -> Split:
    ids = np.arange(first_id, first_id + len(texts))
    return Split(ids, tuple((text,) for text in texts), ids % 2)


@settings(max_examples=300, deadline=None)
@given(EXAMPLES, EXAMPLES, THRESHOLDS)
def test_an_exact_comparison_of_every_pair_finds_the_same(
    texts: list[Example], others: list[Example], threshold: float
) -> None:
    found = near_duplicates(texts, others, threshold)
    assert (found.dtype, found.tolist()) == (bool, by_brute_force(texts, others, threshold))


@pytest.mark.parametrize("threshold", [0.28, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9])
def test_long_texts_at_the_very_threshold(threshold: float) -> None:
    rng = np.random.default_rng(0)
    others = [(" ".join(rng.choice(numbered(40), size=int(rng.integers(5, 50)))),) for _ in range(30)]
    texts = []
    for (other,) in others:
        words = other.split()
        for num_changed in range(0, len(words), 2):
            changed = words.copy()
            for place in rng.choice(len(words), size=num_changed, replace=False):
                changed[place] = f"new{place}"
            texts.append((" ".join(changed),))
    found = near_duplicates(texts, others, threshold).tolist()
    assert found == by_brute_force(texts, others, threshold)
    assert 0 < sum(found) < len(texts)


def test_rounding_hides_no_pair_that_just_reaches_the_threshold() -> None:
    short = numbered(6)
    long = " ".join([*short, *(f"z{i}" for i in range(17)), short[-1]])
    assert jaccard(" ".join(short), long) == Fraction(7, 25)
    assert is_duplicate(" ".join(short), long, 0.28)  # 0.28 * 25 is above 7 in floating point


@pytest.mark.parametrize(
    ("first", "second", "threshold", "is_found"),
    [
        # Case, punctuation, spacing and Unicode's forms do not tell texts apart.
        ("It was GOOD .", "it was good", 1.0, True),
        ("Straße 7", "STRASSE 7", 1.0, True),
        ("\uff21 film \u2461", "a film 2", 1.0, True),  # a full-width letter, a digit in a circle
        ("cafe\u0301 noir", "café noir", 1.0, True),
        ("  well-made  ", "Well made!", 1.0, True),
        (":)", " :) ", 1.0, True),
        # Short texts that may differ in their label are kept.
        ("the dog chased the cat", "the cat chased the dog", THRESHOLD, False),
        ("a good film", "a bad film", THRESHOLD, False),
        ("good", "not good", THRESHOLD, False),
        ("a film", "a film that nobody should see", THRESHOLD, False),
        (":)", ":(", THRESHOLD, False),
        ("...", "good", THRESHOLD, False),
        # Reversing who did it leaves half.
        ("the dog chased the cat", "the cat chased the dog", 0.5, True),
        ("the dog chased the cat", "the cat chased the dog", 0.51, False),
    ],
)
def test_what_a_reader_would_call_a_repetition(first: str, second: str, threshold: float, is_found: bool) -> None:
    assert is_duplicate(first, second, threshold) == is_found


@pytest.mark.parametrize(("num_words", "is_found"), [(16, False), (17, True)])
def test_one_replaced_word_is_forgiven_from_17_words_on(num_words: int, is_found: bool) -> None:
    for place in range(num_words):
        words = numbered(num_words)
        words[place] = "other"
        assert is_duplicate(" ".join(words), " ".join(numbered(num_words))) is is_found


@pytest.mark.parametrize(("num_words", "is_found"), [(34, False), (35, True)])
def test_a_swap_is_forgiven_from_35_words_on(num_words: int, is_found: bool) -> None:
    for first, second in combinations(range(num_words), 2):
        if second - first > 2:  # nearer ones change fewer bigrams
            words = numbered(num_words)
            words[first], words[second] = words[second], words[first]
            assert is_duplicate(" ".join(words), " ".join(numbered(num_words))) is is_found


def test_a_pair_repeats_a_pair_text_by_text() -> None:
    pair = ("a man sleeps in the park", "somebody is awake")
    assert near_duplicates([("A man sleeps in the park.", "Somebody is awake!")], [pair]).all()
    unlike = [
        ("a man sleeps in the park", "somebody is asleep"),  # the same premise with another hypothesis
        ("a man runs in the park", "somebody is awake"),
        (pair[1], pair[0]),
        (pair[0],),
        (f"{pair[0]} {pair[1]}",),
    ]
    assert not near_duplicates(unlike, [pair]).any()
    assert not near_duplicates([pair], unlike).any()


def test_planted_repetitions_are_found_among_random_texts_and_nothing_else() -> None:
    rng = np.random.default_rng(0)

    def text() -> str:
        return " ".join(rng.choice(numbered(1000), size=12))

    others = [(text(),) for _ in range(200)]
    texts = [(text(),) for _ in range(2000)]
    planted = np.sort(rng.choice(2000, size=40, replace=False))
    for i in planted:
        texts[i] = (f"{others[rng.integers(200)][0].upper()} !",)
    assert np.flatnonzero(near_duplicates(texts, others)).tolist() == planted.tolist()
    assert near_duplicates(others * 3, others).all()


@pytest.mark.parametrize("name", BUILTIN_TASKS)
def test_the_built_in_tasks_lose_nothing(name: str) -> None:
    splits = dict(BUILTIN_TASKS[name].build())
    train = splits.pop("train")
    for split in splits.values():
        assert not near_duplicates(train.texts, split.texts).any()


@pytest.mark.parametrize("threshold", [0.0, -0.5, 1.01, float("nan")])
def test_a_threshold_outside_its_range_is_refused(threshold: float) -> None:
    check_refused("threshold must be above 0 and at most 1, got", near_duplicates, [("a",)], [("a",)], threshold)


def test_training_loses_what_any_scored_split_repeats() -> None:
    train = split_of("one of a kind", "Seen here!", "seen there", "seen here", "seen in both", "another", first_id=10)
    scored = {"validation": split_of("seen here", "seen in both"), "test": split_of("seen there", "SEEN in both", "x")}
    left, counts = remove_near_duplicates(train, scored)
    assert (counts, left.texts, (left.ids.tolist(), left.labels.tolist())) == (
        {"validation": 3, "test": 2},
        (("one of a kind",), ("another",)),
        ([10, 15], [0, 1]),
    )
    assert not any(near_duplicates(left.texts, split.texts).any() for split in scored.values())


@pytest.mark.parametrize(("scored", "left"), [("four", ("one", "two", "three")), ("two", ("one", "three"))])
@pytest.mark.parametrize("is_labelled", [True, False])
def test_training_with_and_without_labels_keeps_the_rest(scored: str, left: tuple[str, ...], is_labelled: bool) -> None:
    train = split_of("one", "two", "three")
    found, counts = remove_near_duplicates(
        train if is_labelled else replace(train, labels=None), {"validation": split_of(scored)}
    )
    assert (counts, found.texts, found.labels is not None) == (
        {"validation": 3 - len(left)},
        tuple((text,) for text in left),
        is_labelled,
    )


def test_training_data_that_are_the_scored_data_are_refused() -> None:
    split = split_of("a b c", "d e f")
    with pytest.raises(ValueError, match="every one of the 2 training examples nearly repeats an example of test"):
        remove_near_duplicates(split, {"test": split})
