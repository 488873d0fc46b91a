"""The document of an anatomy in, its answers in plain words out: every clause follows from a value."""

from collections.abc import Iterable, Sequence
from typing import Any

Document = dict[str, Any]
"""What ``toolkit anatomy --json`` prints."""

EMBEDDING = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm.weight", "LayerNorm.bias")


def number(value: float | None) -> str:
    """A difference: ``0 exactly``, ``undefined``, or two digits."""
    if value is None:
        return "undefined"
    return "0 exactly" if value == 0 else f"{value:.1e}" if abs(value) < 1e-3 else f"{value:.2g}"


def percent(value: float | None) -> str:
    """A share with sensible digits."""
    if value is None:
        return "undefined"
    digits = 0 if abs(value) >= 0.1 else 1 if abs(value) >= 0.001 else 4
    return f"{value:.{digits}%}"


def listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def plural(count: int, word: str) -> str:
    """``1 row``, ``2 rows``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def about_parameters(document: Document) -> Iterable[str]:
    lines = {line["parameter"]: line for line in document["parameters"]}
    present = [lines[name] for name in EMBEDDING if lines[name]["num_values"] is not None]
    numbers = sorted(line["number"] for line in present)
    whole = lines["all"]
    is_first = numbers == list(range(1, len(numbers) + 1))
    which = f"the first {len(numbers)}" if is_first else f"numbers {listed([str(n) for n in numbers])}"
    share = sum(line["share"] for line in present)
    yield (
        f"{which.capitalize()} of {whole['number']} named parameters are the embedding layer. They hold "
        f"{share:.1%} of the {whole['num_values']:,} values (a head is not counted)."
    )
    for name in EMBEDDING:
        if lines[name]["num_values"] is None:
            yield f"{name}: {lines[name]['note']}."


def about_sum(document: Document) -> Iterable[str]:
    single, double = document["layer_sum"][:2]
    if not (single["is_equal"] and double["is_equal"]):
        yield (
            f"NOT {single['computed']}: computed by hand it differs from the module's own output by up to "
            f"{number(single['largest_difference'])}, more than rounding explains ({number(single['rounding'])})."
        )
        return
    yield (
        f"{single['computed']}. Computed by hand from these rows, it differs from the module's own output by "
        f"{number(single['largest_difference'])} at most, which is rounding (fp32 allows {number(single['rounding'])} "
        f"here); with the same weights in float64 by {number(double['largest_difference'])}."
    )
    useless = [line["left_out"] for line in document["layer_sum"][2:] if line["is_equal"]]
    if useless:
        yield f"Without {listed(useless)} it is the same on this text: that part adds nothing here."
    elif len(document["layer_sum"]) > 2:
        yield "Leave one part out, and it is no longer the same:"


def about_look_up(document: Document) -> Iterable[str]:
    lines = document["one_hot"]
    word = lines[0]
    yield (
        f"A table. Picking rows is the same as multiplying one-hot vectors, here {word['num_tokens']} x "
        f"{word['rows']:,}, by the table, {word['rows']:,} x {word['width']}."
    )
    exact = [line["parameter"] for line in lines if line["is_exact"]]
    if exact:
        yield f"Measured on these tokens: equal bit for bit for {listed(exact)}."
    for line in lines:
        if not line["is_exact"]:
            yield f"{line['parameter']}: NOT equal, the largest difference is {number(line['largest_difference'])}."


def about_gradients(document: Document) -> Iterable[str]:
    found = document["gradients"]
    lines = found["parameters"]
    moved = [line["parameter"] for line in lines if line["gradient_norm"]]
    frozen = [line["parameter"] for line in lines if not line["requires_grad"]]
    still = [line["parameter"] for line in lines if line["gradient_norm"] == 0]
    if moved:
        yield f"Measured by a backward pass: {listed(moved)} got a gradient on this text, so each can learn from it."
    if frozen:
        yield f"Frozen by the run's regime (requires_grad is off), no gradient: {listed(frozen)}."
    if still:
        yield f"Trainable, but with gradient 0 on this text: {listed(still)}."
    yield from _about_rows(found)
    yield f"(The scalar behind the gradient: {found['scalar']}.)"


def _about_rows(found: Document) -> Iterable[str]:
    tables = [line for line in found["parameters"] if line["rows"] is not None and line["requires_grad"]]
    if tables and all(line["num_used"] == line["num_with_gradient"] for line in tables):
        yield "Within a table, the rows that the text uses got one, all others exactly 0."
    elif tables:
        yield "The rows with a gradient are not all the rows that the text uses: see the table."
    for line in found["rows"]:
        if line["gradient_norm"] == 0 and (line["num_tokens"] or line["note"].startswith("no token")):
            yield f"{line['parameter']} row {line['row']}: 0 exactly ({line['note'] or 'no reason is known'})."
    if found["num_padding"] and tables:
        padding = [line for line in found["rows"] if "padding" in line["note"]]
        if padding and all(line["gradient_norm"] == 0 for line in padding):
            yield f"Padding ({plural(found['num_padding'], 'token')} behind the text) gave no row a gradient."
        if found["padding_row"] is not None and found["unmasked_padding_norm"] == 0:
            yield (
                f"Even where the mask lets padding through, word row {found['padding_row']} keeps 0: it is the "
                "table's padding_idx, whose gradient is dropped."
            )


def about_segments(document: Document) -> Iterable[str]:
    segments, sentence = document["segments"], document["sentence"]
    types, tokens = segments["token_type_ids"], sentence["tokens"]
    if len(sentence["texts"]) > 1:
        yield f"Both sentences go through the model together, as one sequence of {len(tokens)} tokens."
    if types is None:
        yield "The tokenizer gives no token_type_ids for this model."
    else:
        yield "The tokenizer marks each token with its token_type_id:"
        for kind in sorted(set(types)):
            yield f"  {kind}: {shortened([t for t, k in zip(tokens, types, strict=True) if k == kind])}"
    if segments["note"]:
        yield f"{segments['note'][0].upper()}{segments['note'][1:]}."
        if segments["num_rows"] < 2 and len(sentence["texts"]) > 1:
            yield "What is left to tell the two apart is the separator between them, and the order."
    else:
        yield f"Each id picks one of the {segments['num_rows']} segment rows, which is added to the word's."
    if segments["changes"]:
        yield "Change the ids and nothing else, and the vectors change by this share of their length:"
    elif not segments["note"]:
        yield "Changing the ids was not measured: there is nothing to change."


def shortened(tokens: Sequence[str], most: int = 24) -> str:
    """Tokens in a row, the middle of a long list left out and counted."""
    if len(tokens) <= most:
        return " ".join(tokens)
    kept = most // 2
    return " ".join([*tokens[:kept], f"... ({len(tokens) - 2 * kept} more) ...", *tokens[-kept:]])


def about_special_tokens(document: Document) -> Iterable[str]:
    found = document["special_tokens"]
    if not found["table"]:
        yield "Not applicable: this tokenizer puts no such token around a text."
        return
    parts = list(dict.fromkeys(line["part"] for line in document["tokens"] if line["part"] != "sum"))
    state = {(line["token"], line["other"], line["stage"]): line["is_equal"] for line in found["table"]}
    for role, token in found["names"].items():
        others = [other for name, other, stage in state if name == token and stage == "word row"]
        if role == "sep" and token == found["names"].get("cls"):
            continue
        same = [other for other in others if state[token, other, "embedding output"]]
        unlike = [other for other in others if other not in same]
        before = [f"equal at the {listed(same)}"] if same else []
        before += [f"not equal at the {' or '.join(unlike)}"] if unlike else []
        behind = [other for other in others if state[token, other, "encoder output"]]
        after = f"equal at the {listed(behind)}" if behind else "never equal, for context came in"
        yield f"{token}: before the encoder {', '.join(before)}; after it {after}."
    yield f"Before the encoder, a vector is made of its {listed(parts)} row{'s' if len(parts) > 1 else ''} alone."


def about_order(document: Document) -> Iterable[str]:
    lines = document["permutation"]["table"]
    first, last = lines[0], lines[-1]
    if first["is_equivariant"]:
        yield "This model does not notice the order of its tokens at all."
        return
    yield (
        "Because attention does not see order by itself. Tokens of this text in another order give other vectors "
        f"(by {percent(first['relative_difference'])} of their length, each token compared with itself)."
    )
    taken = listed([f"the {line['without']}" for line in lines[1:]])
    if last["is_equivariant"]:
        yield (
            f"Without {taken}, each token has the same vector wherever it stands (difference "
            f"{number(last['relative_difference'])}, float64): the encoder is permutation-equivariant."
        )
    else:
        yield f"Without {taken} the order still shows ({number(last['relative_difference'])})."
    for i, line in enumerate(lines[1:-1], start=1):
        if not line["is_equivariant"]:
            taken = listed([f"the {each['without']}" for each in lines[1 : i + 1]])
            yield f"Without {taken} only, the order still shows: it enters elsewhere too."
