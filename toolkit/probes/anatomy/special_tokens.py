"""A sentence in, where its [CLS] and [SEP] equal those of other texts out: before the encoder, and behind it."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from toolkit.models.classifier import Loaded
from toolkit.probes.anatomy.forward import SAME, Array, in_float64, relative_difference, run_model
from toolkit.probes.anatomy.parts import find_parts
from toolkit.probes.anatomy.sentence import Sentence, make_sentence
from toolkit.schema import columns_of

STAGES = ("word row", "embedding output", "encoder output")


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
    cls, sep = _frame(loaded, sentence)
    names = {k: sentence.tokens[i] for k, i in (("cls", cls), ("sep", sep)) if i is not None}
    if not names:
        return SpecialTokens(pd.DataFrame(columns=columns_of("take_apart.special_tokens.table")), {}, {})
    others = _other_texts(loaded, sentence)
    lines: list[tuple[object, ...]] = []
    with in_float64(loaded):
        own = _stages(loaded, sentence)
        for other, text in others.items():
            stages = _stages(loaded, text)
            if cls is not None and other != "other segment":
                lines += _lines(names["cls"], other, [s[cls] for s in own], [s[cls] for s in stages])
            if sep is not None:
                lines += _lines(names["sep"], other, [s[sep] for s in own], [s[-1] for s in stages])
    first = np.flatnonzero(sentence.words == sentence.words[-1])[0]
    if sep is not None and first < len(sentence) - 1 and len(sentence.texts) > 1:
        lines += _lines(names["sep"], "other end of the pair", [s[first] for s in own], [s[sep] for s in own])
    table = pd.DataFrame(lines, columns=columns_of("take_apart.special_tokens.table"))
    return SpecialTokens(table, {k: " ".join(text.tokens) for k, text in others.items()}, names)


def _frame(loaded: Loaded, sentence: Sentence) -> tuple[int | None, int | None]:
    """The places of [CLS] and of the last [SEP], where the text has them at its ends."""
    tokenizer, last = loaded.tokenizer, len(sentence) - 1
    begins, ends = (tokenizer.cls_token_id, tokenizer.bos_token_id), (tokenizer.sep_token_id, tokenizer.eos_token_id)
    return (0 if sentence.words[0] in begins else None, last if sentence.words[last] in ends else None)


def _other_texts(loaded: Loaded, sentence: Sentence) -> dict[str, Sentence]:
    parts, tokenizer = find_parts(loaded), loaded.tokenizer
    frame = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
    special = {*tokenizer.all_special_ids, *frame}
    candidates = [i for i in range(parts.word.num_embeddings) if i not in special and i not in sentence.words]
    usual = tokenizer.mask_token_id
    fill = usual if usual is not None and usual not in sentence.words else candidates[0]
    is_content = np.array([word not in frame for word in sentence.words])
    words = np.where(is_content, fill, sentence.words)
    types = sentence.token_type_ids
    is_full = loaded.max_length is not None and len(words) >= loaded.max_length
    place = int(np.flatnonzero(is_content)[-1]) if is_content.any() else max(len(words) - 2, 0)
    if is_full:
        moved = np.delete(words, place)
        moved_types = None if types is None else np.delete(types, place)
    else:
        moved = np.insert(words, place, fill)
        moved_types = None if types is None else np.insert(types, place, types[place])
    others = {
        "same place": make_sentence(loaded, words, types),
        "next place": make_sentence(loaded, moved, moved_types),
    }
    if parts.num_segments > 1:
        others["other segment"] = make_sentence(loaded, words, _flip(sentence, len(words)))
    return others


def _flip(sentence: Sentence, length: int) -> np.ndarray:
    """Segment 1 throughout where the last token has 0, and 0 where it has 1: the [SEP] changes sides."""
    last = 0 if sentence.segments is None else int(sentence.segments[-1])
    return np.full(length, 0 if last else 1, np.int64)


def _stages(loaded: Loaded, sentence: Sentence) -> tuple[Array, Array, Array]:
    words = find_parts(loaded).word.weight.detach().cpu().double().numpy()[sentence.words]
    outputs = run_model(loaded, sentence)
    return words, outputs.embedded, outputs.encoded


def _lines(token: str, other: str, own: list[Array], theirs: list[Array]) -> list[tuple[object, ...]]:
    lines: list[tuple[object, ...]] = []
    for stage, mine, reference in zip(STAGES, own, theirs, strict=True):
        difference = relative_difference(mine, reference)
        lines.append((token, other, stage, difference, difference < SAME))
    return lines
