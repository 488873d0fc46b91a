"""A sentence in, which embedding parameters and which of their rows get a gradient on it out: measured, not told."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import nn

from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.models.classifier import Loaded, in_eval_mode
from toolkit.probes.anatomy.forward import Array, as_array, in_float64
from toolkit.probes.anatomy.parts import find_parts
from toolkit.probes.anatomy.sentence import Rows, Sentence, make_inputs, make_sentence
from toolkit.schema import columns_of

NUM_PADDING = 2
"""Padding tokens behind the text, as in a batch with longer ones; fewer where the model has no room."""

SCALAR = "the last hidden states, averaged over the real tokens, along one random direction (seed 0)"
"""What is differentiated. Not their plain sum: behind a fresh LayerNorm that is constant, and has no gradient."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradient of one stated scalar at every embedding parameter."""

    scalar: str
    """What was differentiated."""
    parameters: pd.DataFrame
    """One line per embedding parameter that the model has. ``num_rows``, ``num_used`` and
    ``num_with_gradient`` are NA for the vectors of LayerNorm; ``gradient_norm`` is NaN where a parameter is frozen."""
    rows: pd.DataFrame
    """One line per row that the text or its padding uses, and per segment row."""
    num_padding: int
    """Padding tokens that stood behind the text, masked out."""
    padding_row: int | None
    """The word table's padding_idx; None where it has none."""
    unmasked_padding_norm: float
    """Gradient norm of that row when the mask lets the padding through: 0 is padding_idx's doing. NaN if frozen or not
    applicable."""


def measure_gradients(loaded: Loaded, sentence: Sentence, seed: int = 0) -> Gradients:
    """One backward pass of SCALAR, in float64 and without dropout, for the text followed by NUM_PADDING [PAD]s."""
    room = NUM_PADDING if loaded.max_length is None else min(NUM_PADDING, loaded.max_length - len(sentence))
    padded = _pad(loaded, sentence, room)
    with in_float64(loaded):
        found = _differentiate(loaded, padded, len(sentence), seed, is_masked=True)
        unmasked = _differentiate(loaded, padded, len(sentence), seed, is_masked=False) if room else {}
    padding_row = find_parts(loaded).word.padding_idx
    words = unmasked.get("word_embeddings")
    is_known = words is not None and padding_row is not None
    return Gradients(
        scalar=SCALAR,
        parameters=_parameter_lines(loaded, padded, len(sentence), found),
        rows=_row_lines(padded, len(sentence), found, find_parts(loaded).tables),
        num_padding=room,
        padding_row=padding_row,
        unmasked_padding_norm=float(np.linalg.norm(words[padding_row])) if is_known else float("nan"),  # type: ignore[index]
    )


def _pad(loaded: Loaded, sentence: Sentence, num_padding: int) -> Sentence:
    words = np.append(sentence.words, [loaded.tokenizer.pad_token_id] * num_padding).astype(np.int64)
    types = sentence.token_type_ids
    padded = make_sentence(
        loaded, words, None if types is None else np.append(types, [0] * num_padding).astype(np.int64)
    )
    return replace(padded, texts=sentence.texts)


def _differentiate(
    loaded: Loaded, padded: Sentence, length: int, seed: int, *, is_masked: bool
) -> dict[str, Array | None]:
    """Canonical name to the gradient of SCALAR, or None where the parameter is frozen."""
    backbone = loaded.model.backbone
    named = dict(backbone.named_parameters())
    names = {c: n for c, n in loaded.family.embedding_parameters.items() if n in named}
    wanted = {c: named[names[c]] for c in EMBEDDING_PARAMETERS if c in names and named[names[c]].requires_grad}
    inputs = make_inputs(loaded, padded)
    if is_masked:
        inputs["attention_mask"][:, length:] = 0
    with in_eval_mode(backbone), torch.enable_grad():
        mean = backbone(**inputs).last_hidden_state[0, :length].mean(dim=0)
        direction = np.random.default_rng(seed).standard_normal(len(mean))
        scalar = mean @ torch.as_tensor(direction).to(mean)
        gradients = torch.autograd.grad(scalar, list(wanted.values())) if wanted else ()
    found = {name: as_array(g) for name, g in zip(wanted, gradients, strict=True)}
    return {name: found.get(name) for name in names}


def _used(padded: Sentence, parameter: str) -> Rows | None:
    return {
        "word_embeddings": padded.words,
        "position_embeddings": padded.positions,
        "token_type_embeddings": padded.segments,
    }.get(parameter)


def _parameter_lines(loaded: Loaded, padded: Sentence, length: int, found: dict[str, Array | None]) -> pd.DataFrame:
    tables = find_parts(loaded).tables
    lines = []
    for name, gradient in found.items():
        rows = _used(padded, name)
        size = (pd.NA, pd.NA) if rows is None else (tables[name].num_embeddings, len(set(rows[:length].tolist())))
        if gradient is None:
            lines.append((name, False, *size, pd.NA if rows is None else 0, float("nan"), "frozen"))
            continue
        hit = pd.NA if rows is None else int(np.any(gradient != 0, axis=1).sum())
        lines.append((name, True, *size, hit, float(np.linalg.norm(gradient)), ""))
    frame = pd.DataFrame(lines, columns=columns_of("take_apart.gradients.parameters"))
    return frame.astype(dict.fromkeys(("num_rows", "num_used", "num_with_gradient"), "Int64"))


def _row_lines(
    padded: Sentence, length: int, found: dict[str, Array | None], tables: Mapping[str, nn.Embedding]
) -> pd.DataFrame:
    lines: list[tuple[object, ...]] = []
    for name in TABLES:
        rows = _used(padded, name)
        if rows is None or name not in found:
            continue
        gradient = found[name]
        others = range(tables[name].num_embeddings) if name == TABLES[2] else ()
        shown = dict.fromkeys([*rows.tolist(), *others])
        for row in shown:
            count = int((rows[:length] == row).sum())
            token = padded.tokens[rows.tolist().index(row)] if name == TABLES[0] else ""
            norm = float("nan") if gradient is None else float(np.linalg.norm(gradient[row]))
            note = _why(count, is_padding=row in rows, is_padding_idx=row == tables[name].padding_idx)
            lines.append((name, row, token, count, norm, "frozen" if gradient is None else note))
    return pd.DataFrame(lines, columns=columns_of("take_apart.gradients.rows"))


def _why(num_tokens: int, *, is_padding: bool, is_padding_idx: bool) -> str:
    """Why a row may have no gradient."""
    if is_padding_idx:
        return "padding_idx: its gradient is dropped"
    if num_tokens:
        return ""
    return "padding only: behind the mask" if is_padding else "no token of this text uses it"
