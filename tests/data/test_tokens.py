"""Token tasks: CoNLL and list columns are read whole or refused, and the built-in task obeys its laws."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import check_refused
from toolkit.config import RunConfig
from toolkit.data.builtin import BUILTIN_TOKEN_TASKS
from toolkit.data.files import read_file
from toolkit.data.tasks import load_task

ROLES = BUILTIN_TOKEN_TASKS["roles"].build()
SENTENCE = st.lists(
    st.tuples(st.text("abcä.'\"#-", min_size=1, max_size=5), st.sampled_from(["O", "B-PER", "I-PER"])),
    min_size=1,
    max_size=6,
)


def write_conll(path: Path, sentences: list[list[tuple[str, str]]], between: str = " x y ") -> Path:
    text = "\n\n".join("\n".join(f"{word}{between}{tag}" for word, tag in sentence) for sentence in sentences)
    path.write_text(f"-DOCSTART-{between}O\n\n{text}\n", encoding="utf-8")
    return path


@given(st.lists(SENTENCE, min_size=1, max_size=4), st.sampled_from([" ", "\t", " NN ", "\tNN\tB-NP\t"]))
def test_what_is_written_in_columns_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, str]]], between: str
) -> None:
    split = read_file(write_conll(tmp_path_factory.mktemp("conll") / "a.conll", sentences, between), ("1",), "label")
    assert (split.words, split.labels, split.texts) == (
        [tuple(word for word, _ in sentence) for sentence in sentences],
        [tuple(tag for _, tag in sentence) for sentence in sentences],
        [(" ".join(words),) for words in split.words],
    )


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        ("a O\nb c O\n", "line 2 has 3 columns where 2 columns"),
        ("alone\n", "line 1 has 1 columns where a word and its tag"),
        ("a\tO\nb\t\n", "line 2 lacks its word or its tag"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, lines: str, match: str) -> None:
    (tmp_path / "a.conll").write_text(lines)
    check_refused(match, read_file, tmp_path / "a.conll", (), "label")


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return str(path)


ROWS: list[dict[str, object]] = [
    {"tokens": ["Ada", "sleeps"], "ner_tags": ["B-PER", "O"]},
    {"tokens": ["No"], "ner_tags": ["O"]},
]


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([*ROWS, {"tokens": ["a", "b"], "ner_tags": ["O"]}], "row 3: 2 words and 1 tags"),
        ([*ROWS, {"tokens": "a b", "ner_tags": ["O"]}], "row 3: expected a list of words"),
        ([*ROWS, {"tokens": ["a"], "ner_tags": [None]}], "row 3: a tag is missing"),
        ([{"tokens": ["x"], "ner_tags": ["B-LOC"]}], "'validation' has the tag 'B-LOC', which training lacks"),
        ([{"text": "x", "label": "O"}], "train of a hold words with tags, validation texts"),
    ],
)
def test_rows_that_do_not_match_training_or_one_another_are_refused(
    tmp_path: Path, rows: list[dict[str, object]], match: str
) -> None:
    train, other = write_jsonl(tmp_path / "a.jsonl", ROWS), write_jsonl(tmp_path / "b.jsonl", rows)
    check_refused(match, load_task, RunConfig(train_file=train, validation_file=other))


def test_drawing_holding_out_and_shuffling_keep_words_and_tags_of_one_example_together() -> None:
    whole = load_task(RunConfig(task="roles"))
    drawn = load_task(RunConfig(task="roles", max_train_examples=40, selection_fraction=0.25))
    assert (len(drawn.splits["train"]), len(drawn.splits["selection"])) == (30, 10)
    of_text = {
        words: tags.tolist() for words, tags in zip(whole.splits["train"].words or (), _tags(whole), strict=True)
    }
    for split in drawn.splits.values():
        for words, tags in zip(split.words or (), split.labels, strict=True):  # type: ignore[arg-type]
            assert of_text[words] == tags.tolist()
    shuffled = load_task(RunConfig(task="roles", shuffle_labels=True))
    assert [len(tags) for tags in _tags(shuffled)] == [len(tags) for tags in _tags(whole)]
    both = [np.bincount(np.concatenate(_tags(task))) for task in (whole, shuffled)]
    assert both[0].tolist() == both[1].tolist()
    assert np.mean(np.concatenate(_tags(whole)) == np.concatenate(_tags(shuffled))) < 0.6


def _tags(task: object) -> list[np.ndarray]:
    return list(task.splits["train"].labels)  # type: ignore[attr-defined]


@pytest.mark.parametrize("split", ["train", "validation", "test", "ood"])
def test_roles_every_noun_is_tagged_both_ways_equally_often(split: str) -> None:
    words, tags = ROLES[split].words, ROLES[split].labels
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for sentence, own in zip(words, tags, strict=True):
        assert Counter(own)[1] == Counter(own)[2] == Counter(own)[3] == Counter(own)[4] == 1
        for word, tag in zip(sentence, own, strict=True):
            counts[word.lower()][tag] += 1
    nouns = {word: seen for word, seen in counts.items() if seen[2] + seen[4]}
    assert len(nouns) > 20
    assert all(seen[2] == seen[4] and not seen[0] for seen in nouns.values())


def nouns_of(split: str) -> set[str]:
    rows = zip(ROLES[split].words, ROLES[split].labels, strict=True)
    return {word for words, tags in rows for word, tag in zip(words, tags, strict=True) if tag in (2, 4)}


def test_roles_shares_no_noun_with_its_ood_and_repeats_no_sentence() -> None:
    assert nouns_of("train").isdisjoint(nouns_of("ood"))
    sentences = [row for split in ROLES.values() for row in split.words]
    assert len(set(sentences)) == len(sentences)
