"""What the embedding layer does with one sentence: parameters, gradients, sums, permutations, special tokens."""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from toolkit.analysis.measures import Array
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.models.classifier import Loaded, in_eval_mode
from toolkit.models.regimes import BACKBONE, list_components
from toolkit.naming import Described
from toolkit.progress import counted, shows_progress
from toolkit.questions.models import (
    SAME,
    Ids,
    Parts,
    Sentence,
    as_array,
    find_parts,
    in_float64,
    largest,
    make_inputs,
    make_sentence,
    read_sentence,
    relative_difference,
    replaced,
    run_model,
    why_absent,
)
from toolkit.schema import columns_of, with_columns

NUM_PADDING = 2
"""Padding tokens behind the text, as in a batch with longer ones; fewer where the model has no room."""

SCALAR = "the last hidden states, averaged over the real tokens, along one random direction (seed 0)"
"""What is differentiated. Not their plain sum: behind a fresh LayerNorm that is constant, and has no gradient."""


STAGES = ("word row", "embedding output", "encoder output")


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


def measure_gradients(loaded: Loaded, sentence: Sentence, seed: int = 0) -> Gradients:
    """One backward pass of SCALAR, in float64 and without dropout, for the text followed by NUM_PADDING [PAD]s."""
    parts = find_parts(loaded)
    num_tokens = len(sentence)
    num_padding = NUM_PADDING if loaded.max_length is None else min(NUM_PADDING, loaded.max_length - num_tokens)
    padded = _pad(loaded, sentence, num_padding)
    with in_float64(loaded):
        gradients = _differentiate(loaded, padded, num_tokens, seed)
    return Gradients(
        scalar=SCALAR,
        parameters=_parameter_table(parts, padded, num_tokens, gradients),
        rows=_row_table(parts, padded, num_tokens, gradients),
        num_padding=num_padding,
        padding_row=parts.word.padding_idx,
    )


def _pad(loaded: Loaded, sentence: Sentence, num_padding: int) -> Sentence:
    """The sentence with ``num_padding`` [PAD]s behind it; its texts stay as they were."""
    word_rows = np.append(sentence.words, [loaded.tokenizer.pad_token_id] * num_padding).astype(np.int64)
    type_ids = sentence.token_type_ids
    padded = make_sentence(
        loaded, word_rows, None if type_ids is None else np.append(type_ids, [0] * num_padding).astype(np.int64)
    )
    return replace(padded, texts=sentence.texts)


def _differentiate(loaded: Loaded, padded: Sentence, num_tokens: int, seed: int) -> dict[str, Array | None]:
    """Canonical name to the gradient of SCALAR, or None where the parameter is frozen.

    ``padded`` is the text with padding behind its ``num_tokens`` tokens; the padding is masked out.
    """
    backbone = loaded.model.backbone
    parameters = dict(backbone.named_parameters())
    module_names = {
        canonical: module_name
        for canonical, module_name in loaded.family.embedding_parameters.items()
        if module_name in parameters
    }
    trainable = {
        canonical: parameters[module_names[canonical]]
        for canonical in EMBEDDING_PARAMETERS
        if canonical in module_names and parameters[module_names[canonical]].requires_grad
    }
    inputs = make_inputs(loaded, padded)
    inputs["attention_mask"][:, num_tokens:] = 0
    with in_eval_mode(backbone), torch.enable_grad():
        mean = backbone(**inputs).last_hidden_state[0, :num_tokens].mean(dim=0)
        scalar = mean @ torch.as_tensor(np.random.default_rng(seed).standard_normal(len(mean))).to(mean)
        gradients = torch.autograd.grad(scalar, list(trainable.values())) if trainable else ()
    gradients_by_name = {name: as_array(gradient) for name, gradient in zip(trainable, gradients, strict=True)}
    return {name: gradients_by_name.get(name) for name in module_names}


def _parameter_table(
    parts: Parts, padded: Sentence, num_tokens: int, gradients: dict[str, Array | None]
) -> pd.DataFrame:
    """One record per embedding parameter: its rows, how many are used and how many got a gradient, and its norm."""
    records = []
    for name, gradient in gradients.items():
        rows = padded.rows.get(name)  # (tokens,); None for a vector of LayerNorm
        num_rows = num_used = num_with_gradient = pd.NA
        if rows is not None:
            num_rows = parts.tables[name].num_embeddings
            num_used = len(set(rows[:num_tokens].tolist()))
            num_with_gradient = 0 if gradient is None else int(np.any(gradient != 0, axis=1).sum())
        gradient_norm = float("nan") if gradient is None else float(np.linalg.norm(gradient))
        reason = "frozen" if gradient is None else ""
        records.append((name, gradient is not None, num_rows, num_used, num_with_gradient, gradient_norm, reason))
    frame = pd.DataFrame(records, columns=columns_of("take_apart.gradients.parameters"))
    return frame.astype(dict.fromkeys(("num_rows", "num_used", "num_with_gradient"), "Int64"))


def _row_table(
    parts: Parts, padded: Sentence, num_real_tokens: int, gradients: dict[str, Array | None]
) -> pd.DataFrame:
    """One record per row that the padded text looks up, and per row of the segment table: the norm of its gradient.

    The first ``num_real_tokens`` are the text's; padding follows.
    """
    records: list[tuple[object, ...]] = []
    for name, rows in padded.rows.items():
        if name not in gradients:
            continue
        gradient, table = gradients[name], parts.tables[name]
        all_segments = range(table.num_embeddings) if name == "token_type_embeddings" else ()
        for row in dict.fromkeys([*rows.tolist(), *all_segments]):
            num_tokens = int((rows[:num_real_tokens] == row).sum())
            token = padded.tokens[rows.tolist().index(row)] if name == "word_embeddings" else ""
            gradient_norm = float("nan") if gradient is None else float(np.linalg.norm(gradient[row]))
            if gradient is None:
                reason = "frozen"
            elif row == table.padding_idx:
                reason = "padding_idx: its gradient is dropped"
            elif num_tokens:
                reason = ""
            else:
                reason = "padding only: behind the mask" if row in rows else "no token of this text uses it"
            records.append((name, row, token, num_tokens, gradient_norm, reason))
    return pd.DataFrame(records, columns=columns_of("take_apart.gradients.rows"))


TOKENS_AT_ONCE = 64
"""One-hot vectors of a large vocabulary fill the memory."""


def compare_one_hot(loaded: Loaded, sentence: Sentence) -> pd.DataFrame:
    """One line per table: (tokens, rows) one-hot vectors @ (rows, width) table against nn.Embedding, in fp32.

    The two are equal bit for bit: all other products are 0, and adding 0 rounds nothing.
    """
    records = []
    for name, table in find_parts(loaded).tables.items():
        rows = torch.as_tensor(sentence.rows[name], device=table.weight.device)
        largest_difference = 0.0
        with torch.inference_mode():
            for block in torch.split(rows, TOKENS_AT_ONCE):
                one_hot = torch.nn.functional.one_hot(block, table.num_embeddings).to(table.weight.dtype)
                block_difference = (one_hot @ table.weight - table(block)).abs().max()
                largest_difference = max(largest_difference, float(block_difference))
        num_rows, num_columns = table.weight.shape
        records.append((name, len(rows), num_rows, num_columns, largest_difference))
    return pd.DataFrame(records, columns=columns_of("take_apart.one_hot"))


TABLE = "position table"
DISTANCES = "relative distances"
ANGLES = "rotary angles and the local window"
CONVOLUTION = "convolution"


@dataclass(frozen=True, slots=True)
class Permutation:
    """The encoder's output for shuffled tokens against its output for the text, put in the same order."""

    order: tuple[int, ...]
    """Token ``order[i]`` of the text stands at place i of the shuffled one."""
    table: pd.DataFrame
    """In float64. The first line is the model as it is (``without`` empty); each next line takes
    away one source of order more. What a family does not have has no line."""


def measure_permutation(loaded: Loaded, sentence: Sentence, seed: int = 0) -> Permutation:
    """Shuffle the tokens, each with its segment, and ask whether the output is shuffled alike and nothing more.

    A function f is permutation-equivariant where f(Px) = P f(x) for every P; shown here for one P drawn with ``seed``
    that is neither the identity nor, with three tokens or more, the reversal, which keeps distances.
    """
    parts = find_parts(loaded)
    order = _draw_order(len(sentence), seed)
    segments = None if sentence.segments is None else sentence.segments[order]
    shuffled = replace(sentence, words=sentence.words[order], segments=segments)
    # Source of order to the weights that hold it; "" is the model as it is, and rotary angles have no weights.
    sources: dict[str, torch.Tensor | None] = {"": None}
    if parts.position is not None:
        sources[TABLE] = parts.position.weight
    if parts.relative is not None:
        sources[DISTANCES] = parts.relative.weight  # equal rows for all distances, so that none differs
    if parts.convolution is not None:
        sources[CONVOLUTION] = parts.convolution.get_parameter("conv.weight")
    if parts.is_rotary:
        sources[ANGLES] = None
    records = []
    with in_float64(loaded), contextlib.ExitStack() as zeroed:
        arguments: dict[str, Any] = {}
        for name, weight in sources.items():
            if weight is not None:
                zeroed.enter_context(replaced(weight, torch.zeros_like(weight)))
            if name == ANGLES:
                # Every token at place 0 turns all of them by one angle; no mask lets each see all the others.
                device = parts.word.weight.device
                arguments["position_ids"] = torch.zeros(1, len(sentence), dtype=torch.long, device=device)
                arguments["attention_mask"] = {"full_attention": None, "sliding_attention": None}
            expected = run_model(loaded, sentence, **arguments).encoded[order]
            permuted = run_model(loaded, shuffled, **arguments).encoded
            difference = relative_difference(permuted, expected)
            records.append((name, difference, largest(permuted - expected), difference < SAME))
    return Permutation(tuple(order.tolist()), pd.DataFrame(records, columns=columns_of("take_apart.permutation.table")))


def _draw_order(num_tokens: int, seed: int) -> Ids:
    """A permutation of ``num_tokens`` places: never the identity and, of three places or more, never the reversal."""
    rng = np.random.default_rng(seed)
    identity = np.arange(num_tokens)
    if num_tokens < 2:  # one token has one order
        return identity
    while True:
        order = rng.permutation(num_tokens)
        is_reversal = num_tokens > 2 and np.array_equal(order, identity[::-1])
        if not np.array_equal(order, identity) and not is_reversal:
            return order


@dataclass(frozen=True, slots=True)
class Segments:
    """What the tokenizer gives, what the model has, and what a change of it does."""

    token_type_ids: tuple[int, ...] | None
    """Per token, as the tokenizer gives them; None where it gives none."""
    num_rows: int
    """Rows of the model's segment table; 0 where it has none."""
    changes: pd.DataFrame
    """One line per change of the segments and stage, in float64; empty where there is no choice."""
    note: str
    """Why there is no choice, or why the tokenizer's ids are not used; empty otherwise."""


def compare_segments(loaded: Loaded, sentence: Sentence) -> Segments:
    """Swap the segments (0 for 1), set all to 0, and compare the outputs with those of the text as it is.

    A change that leaves the ids as they are has no line.
    """
    num_rows = find_parts(loaded).num_segments
    columns = columns_of("take_apart.segments.changes")
    token_type_ids = sentence.token_type_ids
    type_ids = None if token_type_ids is None else tuple(int(i) for i in token_type_ids)
    original = sentence.segments
    if original is None or num_rows < 2:
        reason = why_absent(loaded, "token_type_embeddings") or "the segment table has one row: every token has it"
        return Segments(type_ids, num_rows, pd.DataFrame(columns=columns), reason)
    note = "" if token_type_ids is not None else "the tokenizer gives no token_type_ids: every token is of segment 0"
    changes = {
        "swapped": np.where(original == 0, 1, np.where(original == 1, 0, original)),
        "all 0": np.zeros_like(original),
    }
    records = []
    compared = [original]
    with in_float64(loaded):
        before = run_model(loaded, sentence)
        for change, segments in changes.items():
            if any(np.array_equal(segments, earlier) for earlier in compared):
                continue
            compared.append(segments)
            after = run_model(loaded, replace(sentence, segments=segments))
            for stage, old, new in zip(STAGES[1:], before.stages, after.stages, strict=True):
                difference = relative_difference(new, old)
                records.append((change, stage, difference, largest(new - old), difference < SAME))
    return Segments(type_ids, num_rows, pd.DataFrame(records, columns=columns), note)


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """[CLS] and [SEP] of the text against those of other texts, built from it."""

    table: pd.DataFrame
    """One line per token, other text and stage. ``relative_difference`` is ‖a - b‖ / ‖b‖ in float64;
    ``is_equal`` where it is below SAME. Empty where the tokenizer frames a text with neither token."""
    others: dict[str, str]
    """What the names in ``other`` mean: the tokens that were compared with."""
    names: dict[str, str]
    """``cls`` and ``sep``: what this tokenizer calls them; what it does not use is left out."""


def compare_special_tokens(loaded: Loaded, sentence: Sentence) -> SpecialTokens:
    """Compare the first token, [CLS], and the last, [SEP], across texts.

    The other texts: ``same place`` has as many tokens, each of its own word; ``next place`` one of these more (one
    fewer where the model has no room); ``other segment`` is the same as the first, of segment 1 throughout (only where
    the table has a choice). The two [SEP] of a pair are compared within the text (``other end of the pair``).
    """
    tokenizer, word_rows = loaded.tokenizer, sentence.words
    names = {}
    if word_rows[0] in (tokenizer.cls_token_id, tokenizer.bos_token_id):
        names["cls"] = sentence.tokens[0]
    if word_rows[-1] in (tokenizer.sep_token_id, tokenizer.eos_token_id):
        names["sep"] = sentence.tokens[-1]
    columns = columns_of("take_apart.special_tokens.table")
    if not names:
        return SpecialTokens(pd.DataFrame(columns=columns), {}, {})
    other_texts = _other_texts(loaded, sentence)
    with in_float64(loaded):
        stages_of_text = _stages(loaded, sentence)
        stages_of_others = {name: _stages(loaded, text) for name, text in other_texts.items()}
    # Token, other text, the token's index, the other text's stages, the index there.
    comparisons = []
    for other_name, other_stages in stages_of_others.items():
        if "cls" in names and other_name != "other segment":
            comparisons.append(("cls", other_name, 0, other_stages, 0))
        if "sep" in names:
            comparisons.append(("sep", other_name, -1, other_stages, -1))
    first_sep = int(np.flatnonzero(word_rows == word_rows[-1])[0])
    if "sep" in names and first_sep < len(sentence) - 1 and len(sentence.texts) > 1:
        comparisons.append(("sep", "other end of the pair", first_sep, stages_of_text, -1))
    records = []
    for token, other_name, index, other_stages, other_index in comparisons:
        for stage, vectors, other_vectors in zip(STAGES, stages_of_text, other_stages, strict=True):
            difference = relative_difference(vectors[index], other_vectors[other_index])
            records.append((names[token], other_name, stage, difference, difference < SAME))
    tokens = {name: " ".join(text.tokens) for name, text in other_texts.items()}
    return SpecialTokens(pd.DataFrame(records, columns=columns), tokens, names)


def _other_texts(loaded: Loaded, sentence: Sentence) -> dict[str, Sentence]:
    """The texts that :func:`compare_special_tokens` compares with, by name; each repeats one content word."""
    parts, tokenizer, type_ids = find_parts(loaded), loaded.tokenizer, sentence.token_type_ids
    boundary_rows = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
    special_rows = {*tokenizer.all_special_ids, *boundary_rows}
    fill_row = tokenizer.mask_token_id
    if fill_row is None or fill_row in sentence.words:
        fill_row = next(
            i for i in range(parts.word.num_embeddings) if i not in special_rows and i not in sentence.words
        )
    is_content = np.array([word not in boundary_rows for word in sentence.words])
    filled_rows = np.where(is_content, fill_row, sentence.words)
    # The last content token is left out, or stands twice, so that what follows it is one place from where it was.
    last_content = int(np.flatnonzero(is_content)[-1]) if is_content.any() else max(len(filled_rows) - 2, 0)
    if loaded.max_length is not None and len(filled_rows) >= loaded.max_length:
        shifted_rows = np.delete(filled_rows, last_content)
        shifted_types = None if type_ids is None else np.delete(type_ids, last_content)
    else:
        shifted_rows = np.insert(filled_rows, last_content, fill_row)
        shifted_types = None if type_ids is None else np.insert(type_ids, last_content, type_ids[last_content])
    texts = {
        "same place": make_sentence(loaded, filled_rows, type_ids),
        "next place": make_sentence(loaded, shifted_rows, shifted_types),
    }
    if parts.num_segments > 1:
        # Segment 1 throughout where the last token has 0, and 0 where it has 1: the [SEP] changes sides.
        last_segment = 0 if sentence.segments is None else int(sentence.segments[-1])
        other_segments = np.full(len(filled_rows), 0 if last_segment else 1, np.int64)
        texts["other segment"] = make_sentence(loaded, filled_rows, other_segments)
    return texts


def _stages(loaded: Loaded, sentence: Sentence) -> tuple[Array, ...]:
    """For each of STAGES the (tokens, width) vectors."""
    return as_array(find_parts(loaded).word.weight)[sentence.words], *run_model(loaded, sentence).stages


def look_up(loaded: Loaded, sentence: Sentence) -> dict[str, Array]:
    """Part (word, position, segment) to its (tokens, width) float64 rows, of those that the model has."""
    tables = find_parts(loaded).tables
    return {
        PARTS[name]: as_array(table.weight.detach().cpu()[sentence.rows[name].tolist()])
        for name, table in tables.items()
    }


PARTS = {"word_embeddings": "word", "position_embeddings": "position", "token_type_embeddings": "segment"}


def decompose_tokens(loaded: Loaded, sentence: Sentence) -> pd.DataFrame:
    """One line per token and part, and one for their sum; a part that does not exist has no line.

    ``share`` is ⟨part, e⟩ / ‖e‖² with e the sum of the parts: the length of the part along the sum. Shares of a token
    add up to 1 (ours; the projection of a sum is the sum of projections); one below 0 points against the sum. They
    are those of the tables as stored: a constant moved from one table to another changes them and nothing else. NaN
    where e is 0.
    """
    vectors = look_up(loaded, sentence)
    rows = {PARTS[name]: row_ids for name, row_ids in sentence.rows.items()}
    sums = np.sum(list(vectors.values()), axis=0)
    squared_lengths = np.sum(sums**2, axis=1)
    records: list[tuple[object, ...]] = []
    for i, token in enumerate(sentence.tokens):
        for part, values in vectors.items():
            share = float(values[i] @ sums[i] / squared_lengths[i]) if squared_lengths[i] else float("nan")
            records.append((i, token, part, int(rows[part][i]), float(np.linalg.norm(values[i])), share))
        share_of_all = 1.0 if squared_lengths[i] else float("nan")
        records.append((i, token, "sum", pd.NA, float(np.sqrt(squared_lengths[i])), share_of_all))
    return pd.DataFrame(records, columns=columns_of("take_apart.tokens")).astype({"row": "Int64"})


HALF_ULP = {"float32": 2.0**-24, "float64": 2.0**-53}
"""Relative rounding of one operation."""

NUM_ROUNDINGS = 16
"""Of one entry on the way through two sums, a mean, a variance and a product, generously counted (ours)."""


def prove_sum(loaded: Loaded, sentence: Sentence) -> pd.DataFrame:
    """The layer computed by hand in float64 against the real module's output.

    The first two lines leave nothing out: the module as it is, and with its weights in float64. Every other line is a
    control: without one part, or without LayerNorm, the two must differ. ``rounding`` is how far the module's
    precision lets it stray (ours, first order): rounding of the sum, stretched by LayerNorm's weight over the standard
    deviation.
    """
    parts = find_parts(loaded)
    vectors = look_up(loaded, sentence)
    output = run_model(loaded, sentence).embedded
    with in_float64(loaded):
        exact = run_model(loaded, sentence).embedded

    def by_hand(left_out: str = "") -> tuple[str, Array]:
        """The layer in words, as ``LayerNorm(word + position + segment)``, and what it gives without one part."""
        summed_parts = [name for name in vectors if name != left_out]
        summed = project(parts, np.sum([vectors[name] for name in summed_parts], axis=0))
        text = " + ".join(summed_parts) if parts.inner_projection is None else f"projection({' + '.join(summed_parts)})"
        return (text, summed) if left_out == "LayerNorm" else (f"LayerNorm({text})", normalise(parts, summed))

    controls = [*(vectors if len(vectors) > 1 else ()), "LayerNorm"]
    comparisons = [
        ("", "float32", output),
        ("", "float64", exact),
        *((name, "float32", output) for name in controls),
    ]
    records = []
    for left_out, precision, module_output in comparisons:
        text, values = by_hand(left_out)
        difference = largest(values - module_output)
        bound = rounding_bound(parts, vectors, module_output, precision)
        records.append((text, left_out, precision, difference, bound, difference <= bound))
    return pd.DataFrame(records, columns=columns_of("take_apart.layer_sum"))


def project(parts: Parts, vectors: Array) -> Array:
    """The inner projection of (tokens, width) vectors, where the family has one."""
    if parts.inner_projection is None:
        return vectors
    bias = 0.0 if parts.inner_projection.bias is None else as_array(parts.inner_projection.bias)
    return vectors @ as_array(parts.inner_projection.weight).T + bias


def normalise(parts: Parts, vectors: Array) -> Array:
    """LayerNorm (Ba, Kiros and Hinton 2016) by hand, per row: variance over the width, eps as the module has it."""
    norm = parts.layer_norm
    centred = vectors - vectors.mean(axis=1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + norm.eps)
    bias = 0.0 if norm.bias is None else as_array(norm.bias)
    output: Array = scaled * as_array(norm.weight) + bias
    return output


def rounding_bound(parts: Parts, vectors: dict[str, Array], output: Array, precision: str) -> float:
    """The largest difference that rounding in this precision explains, over all entries.

    n·u·(max|w| · max_t(max_j(Σ|v_tj|) / s_t) + max|output|): n roundings of relative size u (HALF_ULP), over tokens t
    and columns j. Rounding of the sum of the parts v is a share of the sum of their magnitudes, which LayerNorm
    multiplies by its weight w over the token's standard deviation s_t; its own roundings are shares of its output. A
    projection P before LayerNorm adds up as many terms as it has inputs: n grows by these, and Σ|v| becomes Σ|v|·|P|ᵀ.
    """
    magnitudes: Array = np.sum([np.abs(values) for values in vectors.values()], axis=0)
    num_roundings = NUM_ROUNDINGS
    if parts.inner_projection is not None:
        magnitudes = magnitudes @ np.abs(as_array(parts.inner_projection.weight)).T
        num_roundings += parts.inner_projection.in_features
    sums = project(parts, np.sum(list(vectors.values()), axis=0))
    deviations = np.sqrt(sums.var(axis=1) + parts.layer_norm.eps)  # (tokens,)
    largest_weight = np.abs(as_array(parts.layer_norm.weight)).max()
    normalised_magnitudes = magnitudes.max(axis=1) / deviations * largest_weight
    largest_error = normalised_magnitudes.max() + np.abs(output).max()
    return float(num_roundings * HALF_ULP[precision] * largest_error)


@dataclass(frozen=True, slots=True, repr=False)
class Anatomy(Described):
    """The embedding layer of one model, taken apart on one text or pair."""

    model: str
    """As the user wrote it."""
    family: str
    sentence: Sentence
    parameters: pd.DataFrame
    tokens: pd.DataFrame
    layer_sum: pd.DataFrame
    one_hot: pd.DataFrame
    gradients: Gradients
    special_tokens: SpecialTokens
    segments: Segments
    permutation: Permutation

    def facts(self) -> dict[str, str]:
        """The model, the text as it reads it, and what is at hand."""
        tables = ("parameters", "tokens", "layer_sum", "one_hot")
        shapes = {name: f"table of {len(getattr(self, name))} lines" for name in tables}
        return {"model": f"{self.model} ({self.family})", "text": " ".join(self.sentence.tokens)} | shapes


PARTS_OF_ANATOMY: Mapping[str, Callable[[Loaded, Sentence], Any]] = {
    "parameters": lambda loaded, _: list_parameters(loaded),
    "tokens": decompose_tokens,
    "layer_sum": prove_sum,
    "one_hot": compare_one_hot,
    "gradients": measure_gradients,
    "special_tokens": compare_special_tokens,
    "segments": compare_segments,
    "permutation": measure_permutation,
}
"""Field of an anatomy to what measures it."""


@shows_progress("anatomy")
@with_columns
def take_apart(loaded: Loaded, text: str, pair: str | None = None, *, name: str | None = None) -> Anatomy:
    """What the embedding layer of a model does with one text or pair.

    Parameters
    ----------
    loaded
        What :func:`toolkit.open_model` returns; it is left as it was.
    text
        The text, or the first of a pair.
    pair
        The second text; None for a single text.
    name
        What to call the model; None calls it as it was loaded.

    Returns
    -------
    Anatomy
        One table or record per question.

    Raises
    ------
    ValueError
        The text is empty, has no tokens or is longer than the model reads, or ``loaded`` is a model's name.
    """
    if not isinstance(loaded, Loaded):
        name = repr(str(loaded)) if isinstance(loaded, str | Path) else "NAME"
        raise ValueError(f"expected a model; got {loaded!s:.60}: pass open_model({name})")
    sentence = read_sentence(loaded, text, pair)
    parts = {part: measure(loaded, sentence) for part, measure in counted(PARTS_OF_ANATOMY.items(), "questions")}
    return Anatomy(model=name or loaded.source.name, family=loaded.family.name, sentence=sentence, **parts)


def as_document(value: Any) -> Any:
    """An anatomy as plain values: records as dicts, tables as lists of dicts, what is undefined as None."""
    if is_dataclass(value):
        return {field.name: as_document(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, pd.DataFrame):
        return [
            {str(column): as_document(cell) for column, cell in zip(value.columns, cells, strict=True)}
            for cells in value.astype(object).itertuples(index=False, name=None)
        ]
    if isinstance(value, dict):
        return {key: as_document(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | tuple | list):
        return [as_document(item) for item in value]
    if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value


def list_parameters(loaded: Loaded) -> pd.DataFrame:
    """One line per embedding parameter, then one per other component, then ``all``.

    The head is left out: the backbone is counted as published. ``number``: place in ``named_parameters()``, from 1,
    and for a component or ``all`` how many named parameters it has (``name`` is empty then). ``share`` is of all
    values of the backbone. ``requires_grad`` is None where a component holds both. An embedding parameter that the
    model does not have keeps its line, with NA and its ``reason``.
    """
    parameters = dict(loaded.model.backbone.named_parameters())
    num_values = sum(tensor.numel() for tensor in parameters.values())
    numbers = {name: i for i, name in enumerate(parameters, start=1)}
    records: list[tuple[object, ...]] = []
    for parameter in EMBEDDING_PARAMETERS:
        name = loaded.family.embedding_parameters.get(parameter, "")
        if name not in parameters:
            reason = why_absent(loaded, parameter) or "not applicable: the model has none"
            records.append((parameter, "", pd.NA, pd.NA, pd.NA, pd.NA, float("nan"), None, reason))
            continue
        tensor = parameters[name]
        num_rows = len(tensor) if tensor.ndim == 2 else pd.NA
        share = tensor.numel() / num_values
        size = (num_rows, tensor.shape[-1], tensor.numel(), share)
        records.append((parameter, name, numbers[name], *size, tensor.requires_grad, ""))
    records += _component_records(loaded, num_values)
    frame = pd.DataFrame(records, columns=columns_of("take_apart.parameters"))
    return frame.astype(dict.fromkeys(("number", "num_rows", "num_columns", "num_values"), "Int64"))


def _component_records(loaded: Loaded, num_values: int) -> list[tuple[object, ...]]:
    """One record per component but the head and the embedding parameters (the layers as one), and one for ``all``.

    ``num_values``: of the whole backbone.
    """
    groups: dict[str, list[str]] = {}
    for leaf, names in list_components(loaded.model, loaded.family).items():
        if leaf not in EMBEDDING_PARAMETERS and leaf != "head":
            group = "layers" if leaf.startswith("layers.") else leaf
            groups.setdefault(group, []).extend(names)
    parameters = {f"{BACKBONE}{name}": tensor for name, tensor in loaded.model.backbone.named_parameters()}
    groups["all"] = list(parameters)
    records: list[tuple[object, ...]] = []
    for group, members in groups.items():
        group_size = sum(parameters[name].numel() for name in members)
        states = {parameters[name].requires_grad for name in members}
        requires_grad = states.pop() if len(states) == 1 else None
        note = "" if requires_grad is not None else "some frozen"
        share = group_size / num_values
        records.append((group, "", len(members), pd.NA, pd.NA, group_size, share, requires_grad, note))
    return records
