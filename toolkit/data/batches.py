"""Encoded splits, the order of examples in every epoch, and padded batches."""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.config import RunConfig
from toolkit.data.splits import Split, Task
from toolkit.data.tokens import UNTAGGED

CHUNK_BATCHES = 50
"""Examples are sorted by length inside chunks of this many batches: little padding, and still a shuffled order."""

IS_WORD = "is_word"
"""The part of a batch that no backbone takes: which tokens answer for words, or are masked."""

LABELS = "labels"
"""Another one: the rows of masked tokens, from which their likelihood is made before all others' are forgotten."""

EVALUATION_TOKENS = 4096
"""Of a batch that nothing is learned from, padding included: as fast as larger ones on a CPU, and bounded in memory."""


@dataclass(frozen=True, slots=True)
class WordTokens:
    """Which tokens stand for words: of a token task, where a word answers by its first token (Devlin et al. 2019, 5.3).

    A word that was truncated, of which the tokenizer keeps nothing, or that is not tagged has none and is left out.
    """

    places: NDArray[np.int64]
    """(words,) place of each word's first token in its sequence."""
    numbers: NDArray[np.int64]
    """(words,) number of each word in its example, counted from 0."""
    offsets: NDArray[np.int64]
    """(examples + 1,): example i owns words offsets[i] to offsets[i + 1]."""


@dataclass(frozen=True, slots=True)
class EncodedSplit:
    """Token ids of one split, stored end to end."""

    ids: NDArray[np.int64]
    """(examples,) as in :class:`Split`."""
    labels: NDArray[Any] | None
    """(rows,) as in :class:`Split`, of a token task that of each word of ``words``."""
    tokens: NDArray[np.int32]
    """(tokens,) word rows of all examples, special tokens included, truncated to --max-length."""
    segments: NDArray[np.int32]
    """(tokens,) segment rows; zeros where the tokenizer gives none."""
    offsets: NDArray[np.int64]
    """(sequences + 1,): sequence i owns tokens offsets[i] to offsets[i + 1]. An example is one sequence, or
    ``num_sequences`` in a row."""
    num_truncated: int
    """Examples of which a sequence was longer than --max-length."""
    num_empty_texts: int
    """Pairs of which one text is empty."""
    num_sequences: int = 1
    """Sequences of each example: 2 where the texts of a pair are encoded apart."""
    words: WordTokens | None = None
    """Of a token task."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(examples,) tokens that each example takes in a batch as long as it: its own, or where its texts are encoded
        apart twice those of the longer text, beside which the other is padded."""
        return np.asarray(np.diff(self.offsets).reshape(-1, self.num_sequences).max(axis=1) * self.num_sequences)

    @property
    def num_rows(self) -> int:
        """Answers of the split: one for each example, or of a token task for each word."""
        return len(self) if self.words is None else len(self.words.places)

    def sizes_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """(examples,) answers of each of some examples."""
        if self.words is None:
            return np.ones(len(indices), np.int64)
        return np.asarray(self.words.offsets[indices + 1] - self.words.offsets[indices])

    def rows_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The answers of some examples, in their order: the examples themselves, or of a token task their words."""
        return indices if self.words is None else _addresses(self.words.offsets, indices)[0]

    def sequences_of(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sequences of some examples, those of one example in a row."""
        return np.asarray(indices[:, None] * self.num_sequences + np.arange(self.num_sequences)).ravel()


MASKED_SHARE, REPLACED_SHARE = 0.8, 0.1
"""Of the tokens to tell: those that the mask token stands for, and those that another token does; the rest stay."""


@dataclass(frozen=True, slots=True)
class Masking:
    """Which tokens of a text are to be told, and what stands in their places (Devlin et al. 2019, section 3.1)."""

    mask_row: int
    rows: NDArray[np.int64]
    """Rows of the vocabulary that are no special token's: these may be masked, and stand in for others."""
    probability: float

    def mask(self, split: EncodedSplit, seed: Sequence[int], masked_share: float = MASKED_SHARE) -> EncodedSplit:
        """The split as the model is to see it, with the masked tokens in ``words`` and their rows as ``labels``.

        Of n tokens ``probability`` x n are drawn, rounded up or down at random so that their mean is just that, but at
        least one. All is a function of ``seed`` and the split's tokens. ``masked_share`` 1 leaves none of them to be
        seen: a token that stays as it was is told by copying it. ValueError for a text without such a token.
        """
        rng = np.random.default_rng(seed)
        owner = np.repeat(np.arange(len(split)), np.diff(split.offsets))
        address = np.flatnonzero(np.isin(split.tokens, self.rows))
        sizes = np.bincount(owner[address], minlength=len(split))
        if not sizes.all():
            raise ValueError(
                f"row {split.ids[int(sizes.argmin())] + 1} has no token to mask, only special or unknown ones: drop "
                "the row, if the tokenizer is that of the model"
            )
        chosen = np.maximum(np.floor(sizes * self.probability + rng.random(len(split))).astype(np.int64), 1)
        drawn = address[np.lexsort((rng.random(len(address)), owner[address]))]  # each text's in random order
        rank = np.arange(len(drawn)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        masked = np.sort(drawn[rank < np.repeat(chosen, sizes)])
        tokens, fate = split.tokens.copy(), rng.random(len(masked))
        others = rng.choice(self.rows, len(masked))
        tokens[masked[fate < masked_share]] = self.mask_row
        is_replaced = (fate >= masked_share) & (fate < masked_share + REPLACED_SHARE)
        tokens[masked[is_replaced]] = others[is_replaced]
        places = masked - split.offsets[owner[masked]]
        words = WordTokens(places, places, np.concatenate([[0], np.cumsum(chosen)]))
        return replace(split, tokens=tokens, labels=split.tokens[masked].astype(np.int64), words=words)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedTask:
    """What training needs to know of a task."""

    task: Task
    splits: Mapping[str, EncodedSplit]
    pad_id: int
    num_segments: int
    """Rows of the model's segment table; 0 where it has none. token_type_ids are passed when there are two or more."""
    position_offset: int
    """Position row of an example's first token."""
    masking: Masking | None = None
    """Of masked-LM training, where the scored splits are masked once and for all, and train anew in each epoch."""

    def of_epoch(self, seed: int, epoch: int) -> "EncodedTask":
        """What the steps of an epoch learn from: this task itself, or with train masked by seed and epoch."""
        if self.masking is None:
            return self
        train = self.masking.mask(self.splits["train"], [seed, 5, epoch])
        return replace(self, splits={**self.splits, "train": train})


def encode_split(
    split: Split, tokenizer: Any, max_length: int, num_segments: int, *, pair_encoding: str = "joint"
) -> EncodedSplit:
    """Tokenize one split once; a longer sequence is truncated (the longer text of a pair first) and counted.

    ``num_segments``: rows of the model's segment table; with fewer than two every token is of segment 0.
    ``pair_encoding``: with ``separate`` each text of a pair is a sequence of its own, which starts at the first
    position, is of segment 0 and has ``max_length`` tokens at most.
    """
    if split.words is not None:
        return _encode_words(split, tokenizer, max_length, num_segments)
    num_sequences = len(split.texts[0]) if pair_encoding == "separate" else 1
    one_after_other = [[text for example in split.texts for text in example]]
    columns = one_after_other if num_sequences > 1 else [list(column) for column in zip(*split.texts, strict=True)]
    encoded = tokenizer(*columns, truncation=False, verbose=False, return_attention_mask=False)
    ids: list[list[int]] = encoded["input_ids"]
    has_segments = num_segments > 1 and "token_type_ids" in encoded
    segments: list[list[int]] = encoded["token_type_ids"] if has_segments else [[0] * len(x) for x in ids]
    too_long = [i for i, x in enumerate(ids) if len(x) > max_length]
    if too_long:
        short = tokenizer(*([c[i] for i in too_long] for c in columns), truncation=True, max_length=max_length)
        for k, i in enumerate(too_long):
            ids[i] = short["input_ids"][k]
            segments[i] = short["token_type_ids"][k] if has_segments else [0] * len(ids[i])
    offsets = np.zeros(len(ids) + 1, np.int64)
    np.cumsum([len(x) for x in ids], out=offsets[1:])
    return EncodedSplit(
        ids=split.ids,
        labels=split.labels,
        tokens=np.concatenate([np.asarray(x, np.int32) for x in ids]),
        segments=np.concatenate([np.asarray(x, np.int32) for x in segments]),
        offsets=offsets,
        num_truncated=len({i // num_sequences for i in too_long}),
        num_empty_texts=sum(any(not text.strip() for text in example) for example in split.texts),
        num_sequences=num_sequences,
    )


def _encode_words(split: Split, tokenizer: Any, max_length: int, num_segments: int) -> EncodedSplit:
    """Tokenize the examples of a token task, and find each word's first token by its place in the text.

    ValueError for a tokenizer that does not tell places, and where no example keeps a word.
    """
    assert split.words is not None
    if not tokenizer.is_fast:
        raise ValueError("a token task needs a fast tokenizer, which tells where in a text each token stands")
    whole = encode_split(replace(split, words=None, labels=None), tokenizer, max_length, num_segments)
    texts = [text for (text,) in split.texts]
    spans = tokenizer(texts, truncation=True, max_length=max_length, return_offsets_mapping=True, verbose=False)
    tags = split.labels if split.labels is not None else [np.zeros(len(words), np.int64) for words in split.words]
    places, numbers, sizes, cut, unread = [], [], [], 0, Counter[str]()
    for words, own_tags, own in zip(split.words, tags, spans["offset_mapping"], strict=True):
        ends = np.cumsum([len(word) + 1 for word in words]) - 1
        begins = ends - [len(word) for word in words]
        starts, stops = np.array(own, np.int64).T
        is_real = stops > starts
        # A token may begin with the space before its word: what counts is where it ends.
        first = np.searchsorted(np.maximum.accumulate(np.where(is_real, stops, 0)), begins, side="right")
        has_token = first < len(starts)
        has_token[has_token] &= starts[first[has_token]] < ends[has_token]
        is_cut = (len(starts) == max_length) & (np.arange(len(words)) > np.flatnonzero(has_token).max(initial=-1))
        cut += int(is_cut.sum())
        unread.update(words[k] for k in np.flatnonzero(~has_token & ~is_cut))
        has_token &= own_tags != UNTAGGED
        places.append(first[has_token])
        numbers.append(np.flatnonzero(has_token))
        sizes.append(int(has_token.sum()))
    kept_tags = np.concatenate([own_tags[kept] for own_tags, kept in zip(tags, numbers, strict=True)])
    labels = None if split.labels is None else kept_tags
    if 0 in sizes:
        where = f"example {split.ids[sizes.index(0)]} ({' '.join(split.words[sizes.index(0)])[:60]!r})"
        raise ValueError(
            f"no word of {where} has a token and a tag: remove it, if the tokenizer is that of the model and "
            "--max-length enough"
        )
    of_no_token = f"become no token of this tokenizer ({', '.join(list(unread)[:3])})"
    for num, why in ((cut, f"have no token within --max-length {max_length}"), (unread.total(), of_no_token)):
        if num:
            warnings.warn(
                f"{num:,} of {sum(map(len, split.words)):,} words of a split {why}: they are neither trained on nor "
                "scored, so that entities among them are not counted as missed",
                stacklevel=2,
            )
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return replace(whole, labels=labels, words=WordTokens(np.concatenate(places), np.concatenate(numbers), offsets))


def gather_tokens(split: EncodedSplit, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Flat token addresses of some examples and, for each, its place in its sequence (0 = first token)."""
    return _addresses(split.offsets, split.sequences_of(indices))


def _addresses(offsets: NDArray[np.int64], owners: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Addresses of what some owners have, those of one after those of another, and the place of each in its owner's."""
    sizes = offsets[owners + 1] - offsets[owners]
    place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.repeat(offsets[owners], sizes) + place, place


def make_batch(
    split: EncodedSplit, indices: NDArray[np.int64], data: EncodedTask, longest: int | None = None
) -> dict[str, torch.Tensor]:
    """Padded tensors of some examples: input_ids, attention_mask and token_type_ids, each (sequences, longest) int64.

    ``longest``: tokens to pad to; by default those of the longest sequence.

    Of a token task also ``is_word``, bool: the tokens that answer for words; of masked ones ``labels`` (rows,) too.
    Sequences are examples; of texts encoded apart there are twice as many, the two of an example in a row.
    """
    address, place = gather_tokens(split, indices)
    sequences = split.sequences_of(indices)
    lengths = split.offsets[sequences + 1] - split.offsets[sequences]
    row = np.repeat(np.arange(len(sequences)), lengths)
    shape = (len(sequences), longest or int(lengths.max()))
    input_ids, mask = np.full(shape, data.pad_id, np.int64), np.zeros(shape, np.int64)
    input_ids[row, place] = split.tokens[address]
    mask[row, place] = 1
    batch = {"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(mask)}
    if data.num_segments > 1:
        segments = np.zeros(shape, np.int64)
        segments[row, place] = split.segments[address]
        batch["token_type_ids"] = torch.from_numpy(segments)
    if split.words is not None:
        is_word = np.zeros(shape, bool)
        is_word[
            np.repeat(np.arange(len(indices)), split.sizes_of(indices)), split.words.places[split.rows_of(indices)]
        ] = True
        batch[IS_WORD] = torch.from_numpy(is_word)
    if data.masking is not None and split.labels is not None:
        batch[LABELS] = torch.from_numpy(split.labels[split.rows_of(indices)])
    return batch


def training_batches(
    lengths: NDArray[np.int64], batch_size: int, batch_tokens: int | None = None, *, seed: int, epoch: int
) -> list[NDArray[np.int64]]:
    """The batches of one epoch, as example indices: a function of seed and epoch alone.

    Examples are shuffled, sorted by length inside chunks of CHUNK_BATCHES batches, cut, and the batches of each chunk
    shuffled again. The last batch of a chunk may be smaller, and with ``batch_tokens`` (padding included, or one
    example) any may be. Resuming or adding processes therefore needs no state of a sampler.
    """
    rng = np.random.default_rng([seed, 2, epoch])
    order = rng.permutation(len(lengths))
    batches: list[NDArray[np.int64]] = []
    for start in range(0, len(order), CHUNK_BATCHES * batch_size):
        chunk = order[start : start + CHUNK_BATCHES * batch_size]
        chunk = chunk[np.argsort(lengths[chunk], kind="stable")]
        cut = _cut(chunk, lengths, batch_size, batch_tokens or np.inf)
        batches += [cut[i] for i in rng.permutation(len(cut))]
    return batches


def epoch_batches(lengths: NDArray[np.int64], config: RunConfig, epoch: int) -> list[NDArray[np.int64]]:
    """The batches of an epoch of a run, as example indices."""
    return training_batches(lengths, config.batch_size, config.batch_tokens, seed=config.seed, epoch=epoch)


def evaluation_batches(lengths: NDArray[np.int64], num_tokens: int = EVALUATION_TOKENS) -> list[NDArray[np.int64]]:
    """All examples once, in the order of length, in batches of at most ``num_tokens`` tokens or one example."""
    return _cut(np.argsort(lengths, kind="stable"), lengths, len(lengths), num_tokens)


def _cut(
    order: NDArray[np.int64], lengths: NDArray[np.int64], batch_size: int, num_tokens: float
) -> list[NDArray[np.int64]]:
    """Batches of at most ``batch_size`` examples and ``num_tokens`` tokens (or one example), in an order by length."""
    batches, start = [], 0
    for end in range(1, len(order) + 1):
        more = end + 1 - start
        if end == len(order) or more > batch_size or more * lengths[order[end]] > num_tokens:
            batches.append(order[start:end])
            start = end
    return batches


def parts_of_batch(
    indices: NDArray[np.int64], num_parts: int
) -> Sequence[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Split a batch into ``num_parts`` of nearly equal size, each with a weight per example.

    Every part has at least one example, because each process must take part in each backward pass: a part that would
    be empty repeats the first example with weight 0, which changes neither the loss nor any gradient.
    """
    of_none = indices[:1], np.zeros(1, np.float32)
    parts = (indices[k::num_parts] for k in range(num_parts))
    return [(part, np.ones(len(part), np.float32)) if len(part) else of_none for part in parts]
