"""Batches: every example once, order a function of seed and epoch, parts that add up, tensors as the tokenizer's."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.data.batches import (
    CHUNK_BATCHES,
    EncodedTask,
    encode_split,
    evaluation_batches,
    make_batch,
    parts_of_batch,
    training_batches,
)
from toolkit.data.splits import Split

lengths_of = st.lists(st.integers(1, 128), min_size=1, max_size=400).map(np.array)


@given(lengths_of, st.integers(1, 40), st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_an_epoch_holds_every_example_once(lengths: np.ndarray, size: int, seed: int, epoch: int) -> None:
    batches = training_batches(lengths, size, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert all(len(batch) <= size for batch in batches)
    assert len(batches) == -(-len(lengths) // size)
    again = training_batches(lengths, size, seed=seed, epoch=epoch)
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))


@given(lengths_of, st.integers(1, 40), st.integers(1, 600), st.integers(0, 2**32 - 1))
def test_a_budget_of_tokens_cuts_batches_and_changes_nothing_else(
    lengths: np.ndarray, size: int, num_tokens: int, seed: int
) -> None:
    batches = training_batches(lengths, size, num_tokens, seed=seed, epoch=1)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) <= size
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= num_tokens
    free = training_batches(lengths, size, seed=seed, epoch=1)
    ample = training_batches(lengths, size, int(size * lengths.max()), seed=seed, epoch=1)
    assert len(batches) >= len(free) == len(ample)
    assert all(np.array_equal(a, b) for a, b in zip(free, ample, strict=True))


def test_seed_and_epoch_change_the_order() -> None:
    lengths = np.full(300, 7)
    orders = [
        np.concatenate(training_batches(lengths, 10, seed=s, epoch=e)).tolist() for s, e in ((0, 0), (0, 1), (1, 0))
    ]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_batches_of_a_chunk_are_of_similar_length() -> None:
    """Padding saved, measured: real tokens are most of a batch; in random batches (the control) they are not."""
    lengths = np.random.default_rng(0).integers(4, 60, size=32 * CHUNK_BATCHES)

    def share(batches: list[np.ndarray]) -> float:
        return float(lengths.sum() / sum(len(b) * lengths[b].max() for b in batches))

    order = np.random.default_rng(1).permutation(len(lengths))
    assert share(training_batches(lengths, 32, seed=0, epoch=0)) > 0.95
    assert share(list(order.reshape(-1, 32))) < 0.65


@given(lengths_of, st.integers(1, 600))
def test_batches_for_scoring_are_as_large_as_the_tokens_allow(lengths: np.ndarray, num_tokens: int) -> None:
    batches = evaluation_batches(lengths, num_tokens)
    assert np.concatenate(batches).tolist() == np.argsort(lengths, kind="stable").tolist()
    assert all(len(batch) * lengths[batch].max() <= num_tokens or len(batch) == 1 for batch in batches)
    for batch, after in pairwise(batches):
        assert (len(batch) + 1) * lengths[after[0]] > num_tokens


@given(st.integers(1, 70), st.integers(1, 9))
def test_parts_add_up_to_the_batch(size: int, num_parts: int) -> None:
    indices = np.random.default_rng(size).permutation(1000)[:size]
    parts = parts_of_batch(indices, num_parts)
    assert len(parts) == num_parts
    assert all(len(part) for part, _ in parts)
    real = np.concatenate([part[weight > 0] for part, weight in parts])
    assert sorted(real.tolist()) == sorted(indices.tolist())


@pytest.fixture
def tokenizer(tiny_model: Callable[[str], Path]) -> object:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model("bert"))


PAIRS = (("the nurse saw the dog", "the dog"), ("the dog", ""), ("a", "the nurse " * 20))


def encode(
    tokenizer: object, texts: tuple[tuple[str, ...], ...], max_length: int = 16, num_segments: int = 2
) -> EncodedTask:
    split = encode_split(Split(np.arange(len(texts)), texts, None), tokenizer, max_length, num_segments)
    return EncodedTask(
        task=None,
        splits={"train": split},
        pad_id=0,
        num_segments=num_segments,
        position_offset=0,
    )


@pytest.mark.parametrize("texts", [PAIRS, tuple((a,) for a, _ in PAIRS)], ids=["pairs", "single"])
def test_tensors_are_those_of_the_tokenizer(tokenizer: object, texts: tuple[tuple[str, ...], ...]) -> None:
    data = encode(tokenizer, texts)
    batch = make_batch(data.splits["train"], np.arange(len(texts)), data)
    columns = [list(column) for column in zip(*texts, strict=True)]
    expected = tokenizer(*columns, truncation=True, max_length=16, padding=True, return_tensors="pt")
    for name, tensor in batch.items():
        assert tensor.tolist() == expected[name].tolist(), name


def test_truncated_and_empty_texts_are_counted(tokenizer: object) -> None:
    split = encode(tokenizer, PAIRS).splits["train"]
    assert (split.num_truncated, split.num_empty_texts) == (1, 1)
    assert split.lengths.max() == 16


def test_a_model_with_one_segment_row_gets_no_segments(tokenizer: object) -> None:
    data = encode(tokenizer, PAIRS, num_segments=1)
    assert "token_type_ids" not in make_batch(data.splits["train"], np.arange(3), data)
    assert not data.splits["train"].segments.any()
