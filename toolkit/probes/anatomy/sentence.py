"""A text, or a pair, in; the rows that it picks from each embedding table out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.models.classifier import Loaded
from toolkit.probes.anatomy.parts import find_parts
from toolkit.snapshots.capture import check_word_rows

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One text or one pair, token by token, without padding."""

    texts: tuple[str, ...]
    tokens: tuple[str, ...]
    """As the tokenizer writes them."""
    words: Rows
    """(tokens,) rows of the word table."""
    positions: Rows | None
    """(tokens,) rows of the position table; None where there is none."""
    segments: Rows | None
    """(tokens,) rows of the segment table, as the model is given them; None where there is none."""
    token_type_ids: Rows | None
    """(tokens,) what the tokenizer gives, used or not; None where it gives none."""

    def __len__(self) -> int:
        return len(self.words)


def read_sentence(loaded: Loaded, text: str, pair: str | None = None) -> Sentence:
    """Tokenize one text or one pair, nothing cut off.

    ValueError when a text is empty or has no tokens, when it is longer than the model reads, or when the tokenizer
    and the word table do not fit.
    """
    texts = (text,) if pair is None else (text, pair)
    for flag, value in zip(("--text", "--pair"), texts, strict=False):
        if not value.strip():
            instead = "pass a sentence" if flag == "--text" else "leave it out, or pass a second sentence"
            raise ValueError(f"{flag} is empty: {instead}")
        if not loaded.tokenizer(value, add_special_tokens=False, verbose=False)["input_ids"]:
            raise ValueError(f"{flag} {value!r} has no token that {loaded.source.name} knows: pass a sentence")
    encoded = loaded.tokenizer(*texts, truncation=False, verbose=False)
    words = np.asarray(encoded["input_ids"], np.int64)
    if loaded.max_length is not None and len(words) > loaded.max_length:
        what = "--text and --pair together are" if pair is not None else "--text is"
        raise ValueError(
            f"{what} {len(words)} tokens long, and {loaded.source.name} reads {loaded.max_length} at most: shorten it"
        )
    num_words = find_parts(loaded).word.num_embeddings
    check_word_rows(loaded.source.name, int(words.max()) + 1, num_words)
    given = encoded.get("token_type_ids")
    types = None if given is None else np.asarray(given, np.int64)
    return make_sentence(loaded, words, types, texts)


def make_sentence(loaded: Loaded, words: Rows, token_type_ids: Rows | None, texts: tuple[str, ...] = ()) -> Sentence:
    """A Sentence of these word rows: positions as the family counts them, segments where its table has a choice."""
    parts = find_parts(loaded)
    segments = None
    if parts.segment is not None:
        has_choice = parts.num_segments > 1 and token_type_ids is not None
        segments = token_type_ids if has_choice else np.zeros(len(words), np.int64)
    return Sentence(
        texts=texts,
        tokens=tuple(loaded.tokenizer.convert_ids_to_tokens(words.tolist())),
        words=words,
        positions=None if parts.position is None else position_rows(loaded, words),
        segments=segments,
        token_type_ids=token_type_ids,
    )


def position_rows(loaded: Loaded, words: Rows) -> Rows:
    """(tokens,) position row of each token: 0, 1, 2 ..., or (RoBERTa) from padding_idx + 1, padding not counted."""
    if loaded.family.position_start == "zero":
        return np.arange(len(words))
    config: Any = loaded.model.backbone.config
    is_real = words != config.pad_token_id
    rows: Rows = np.where(is_real, config.pad_token_id + np.cumsum(is_real), config.pad_token_id)
    return rows


def make_inputs(loaded: Loaded, sentence: Sentence) -> dict[str, torch.Tensor]:
    """(1, tokens) tensors for the backbone; token_type_ids where its segment table has a choice, as in training."""
    inputs = {"input_ids": sentence.words, "attention_mask": np.ones(len(sentence), np.int64)}
    if sentence.segments is not None and find_parts(loaded).num_segments > 1:
        inputs["token_type_ids"] = sentence.segments
    device = next(loaded.model.backbone.parameters()).device
    return {name: torch.as_tensor(values, device=device)[None] for name, values in inputs.items()}
