"""A model's embedding layer taken apart on one sentence: eight questions, measured answers, and their tables."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Document = dict[str, Any]
"""What ``toolkit anatomy --json`` prints."""

EMBEDDING = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm.weight", "LayerNorm.bias")
WIDEST = 100
"""Columns; longer lines are hard to read."""

MOST_TOKENS = 16
"""Tokens that are listed; of a longer text the first ones and the last."""

PARTS = ("word", "position", "segment")

Section = tuple[str, Callable[[Document], Iterable[str]], Callable[[Document], Table | None]]


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
            yield f"{name}: {lines[name]['reason']}."


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
        f"{word['num_rows']:,}, by the table, {word['num_rows']:,} x {word['num_columns']}."
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
    tables = [line for line in found["parameters"] if line["num_rows"] is not None and line["requires_grad"]]
    if tables and all(line["num_used"] == line["num_with_gradient"] for line in tables):
        yield "Within a table, the rows that the text uses got one, all others exactly 0."
    elif tables:
        yield "The rows with a gradient are not all the rows that the text uses: see the table."
    for line in found["rows"]:
        if line["gradient_norm"] == 0 and (line["num_tokens"] or line["reason"].startswith("no token")):
            yield f"{line['parameter']} row {line['row']}: 0 exactly ({line['reason'] or 'no reason is known'})."
    if found["num_padding"] and tables:
        padding = [line for line in found["rows"] if "padding" in line["reason"]]
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


def print_anatomy(document: Document) -> None:
    """Print all sections, coloured on a terminal and plain elsewhere; 80 columns are enough."""
    console = Console(highlight=False, markup=False)
    console.width = min(console.width, WIDEST)
    sentence = document["sentence"]
    console.print(Text(f"{document['model']} ({document['family']})", style="bold"))
    for name, text in zip(("Text", "Pair"), sentence["texts"], strict=False):
        console.print(f"{name}: {_cut(text, 4 * WIDEST)}")
    console.print(f"{len(sentence['tokens'])} tokens: {shortened(sentence['tokens'])}")
    for difference in document["differences"]:
        console.print(f"Not as in BERT: {difference}")
    for question, answer, table in SECTIONS:
        console.print()
        console.print(Text(question, style="bold"))
        for line in answer(document):
            _print_wrapped(console, line.strip(), 2 + len(line) - len(line.lstrip()))
        if (shown := table(document)) is not None:
            console.print(Padding(shown, (0, 0, 0, 1)))


def _print_wrapped(console: Console, line: str, indent: int) -> None:
    for part in Text(line).wrap(console, console.width - indent):
        console.print(" " * indent + part.plain.rstrip())


def _cut(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], num_words: int = 1, *, is_tight: bool = False
) -> Table:
    """A table whose first ``num_words`` columns are words and the others numbers; nothing in it is markup."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0 if is_tight else (0, 1))
    for i, header in enumerate(headers):
        table.add_column(Text(header), justify="left" if i < num_words else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _parameters(document: Document) -> Table:
    rows = []
    for line in document["parameters"]:
        if line["num_values"] is None:
            rows.append((line["parameter"], "not applicable", "", "", ""))
            continue
        sizes = [f"{n:,}" for n in (line["num_rows"], line["num_columns"]) if n is not None]
        shape = " x ".join(sizes) or f"{line['number']} parameters"
        state = {True: "yes", False: "frozen", None: "in part"}[line["requires_grad"]]
        rows.append((line["parameter"], shape, f"{line['num_values']:,}", f"{line['share']:.3%}", state))
    return _table(("parameter", "shape", "values", "share", "trainable"), rows)


def _tokens(document: Document) -> Table:
    """Per token: row, norm and share of each part that the model has."""
    lines = document["tokens"]
    parts = [part for part in PARTS if any(line["part"] == part for line in lines)]
    headers = ["", "token"]
    headers += [f"{part}\nrow" for part in parts] + [f"{part}\nnorm" for part in parts] + ["sum\nnorm"]
    headers += [f"{part}\nshare" for part in parts]
    cells: dict[int, dict[str, Any]] = {}
    for line in lines:
        cells.setdefault(line["index"], {"token": line["token"]})[line["part"]] = line
    last = len(cells) - 1
    rows = []
    for i, cell in cells.items():
        if last >= MOST_TOKENS and MOST_TOKENS - 2 <= i < last:
            if i == MOST_TOKENS - 2:
                rows.append(["", f"({last - i} more)", *[""] * (len(headers) - 2)])
            continue
        words = [f"{cell[part]['row']}" for part in parts]
        norms = [f"{cell[part]['length']:.2f}" for part in (*parts, "sum")]
        shares = ["-" if (s := cell[part]["share"]) is None else f"{s:.0%}" for part in parts]
        rows.append([str(i), _cut(cell["token"], 14), *words, *norms, *shares])
    short = [header.replace("position", "pos.").replace("segment", "seg.") for header in headers]
    return _table(short, rows, 2, is_tight=True)


def _about_tokens(document: Document) -> Iterable[str]:
    parts = [part for part in PARTS if any(line["part"] == part for line in document["tokens"])]
    if len(parts) == 1:
        yield f"One row per token, from the {parts[0]} table; nothing is added to it."
        return
    yield f"One row from each table ({listed(parts)}), added number by number."
    shares = [line["share"] for line in document["tokens"] if line["part"] in parts and line["share"] is not None]
    if not shares:
        return
    totals: dict[str, list[float]] = {part: [] for part in parts}
    for line in document["tokens"]:
        if line["part"] in parts and line["share"] is not None:
            totals[line["part"]].append(line["share"])
    means = [f"{part} rows {percent(math.fsum(values) / len(values))}" for part, values in totals.items()]
    yield (
        f"Share of the sum's length, on average over the tokens: {listed(means)}. The shares of a token add up "
        "to 100%; one below 0 points against the sum."
    )


def _layer_sum(document: Document) -> Table | None:
    rows = [(line["computed"], number(line["largest_difference"])) for line in document["layer_sum"][2:]]
    return _table(("computed by hand", "largest difference"), rows) if rows else None


def _gradients(document: Document) -> Table:
    rows = []
    for line in document["gradients"]["parameters"]:
        counts = [line[key] for key in ("num_rows", "num_used", "num_with_gradient")]
        shown = ["-" if count is None else f"{count:,}" for count in counts]
        norm = "frozen" if line["gradient_norm"] is None else number(line["gradient_norm"])
        rows.append((line["parameter"], "yes" if line["requires_grad"] else "no", *shown, norm))
    headers = ("parameter", "requires\ngrad", "rows", "used by\nthe text", "with a\ngradient", "gradient\nnorm")
    return _table(headers, rows)


def _segments(document: Document) -> Table | None:
    changes: dict[str, dict[str, float | None]] = {}
    for line in document["segments"]["changes"]:
        changes.setdefault(line["change"], {})[line["stage"]] = line["relative_difference"]
    rows = [(change, *map(percent, stages.values())) for change, stages in changes.items()]
    return _table(("token_type_ids", "embedding output", "encoder output"), rows) if rows else None


def _special_tokens(document: Document) -> Table | None:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for line in document["special_tokens"]["table"]:
        state = "equal" if line["is_equal"] else f"{percent(line['relative_difference'])} apart"
        found.setdefault((line["token"], line["other"]), {})[line["stage"]] = state
    rows = [(*key, *stages.values()) for key, stages in found.items()]
    return _table(("token", "compared with", *STAGES), rows, 2) if rows else None


STAGES = ("word row", "embedding output", "encoder output")


def _about_special_tokens(document: Document) -> Iterable[str]:
    yield from about_special_tokens(document)
    for name, text in document["special_tokens"]["others"].items():
        yield f"  {name}: {shortened(text.split(), 12)}"


def _order(document: Document) -> Table:
    rows = []
    for i, line in enumerate(document["permutation"]["table"]):
        name = f"{'also ' if i > 1 else ''}without the {line['without']}" if line["without"] else "the model as it is"
        noticed = "no" if line["is_equivariant"] else "yes"
        rows.append((name, number(line["relative_difference"]), noticed))
    return _table(("tokens in another order", "vectors change by", "order shows"), rows)


SECTIONS: tuple[Section, ...] = (
    ("What is the embedding layer made of?", about_parameters, _parameters),
    ("Which rows does this text pick, and what does each add?", _about_tokens, _tokens),
    ("What does the layer compute?", about_sum, _layer_sum),
    ("What is an embedding look-up (nn.Embedding)?", about_look_up, lambda document: None),
    ("Are these weights learnable?", about_gradients, _gradients),
    ("How does the model know which sentence a word belongs to?", about_segments, _segments),
    ("Are the first and the last token the same in every text?", _about_special_tokens, _special_tokens),
    ("Why are positions needed?", about_order, _order),
)
"""Question, answer, table: the order of the screen."""
