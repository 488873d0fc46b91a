"""The document of an anatomy in, text on the terminal out: questions, measured answers, and their tables."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from toolkit.reporting.probes import anatomy_answers as answers
from toolkit.reporting.probes.anatomy_answers import Document, number, percent, shortened

WIDEST = 100
"""Columns; longer lines are hard to read."""

MOST_TOKENS = 16
"""Tokens that are listed; of a longer text the first ones and the last."""

PARTS = ("word", "position", "segment")

Section = tuple[str, Callable[[Document], Iterable[str]], Callable[[Document], Table | None]]


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
        sizes = [f"{n:,}" for n in (line["rows"], line["width"]) if n is not None]
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
        norms = [f"{cell[part]['norm']:.2f}" for part in (*parts, "sum")]
        shares = ["-" if (s := cell[part]["share"]) is None else f"{s:.0%}" for part in parts]
        rows.append([str(i), _cut(cell["token"], 14), *words, *norms, *shares])
    short = [header.replace("position", "pos.").replace("segment", "seg.") for header in headers]
    return _table(short, rows, 2, is_tight=True)


def _about_tokens(document: Document) -> Iterable[str]:
    parts = [part for part in PARTS if any(line["part"] == part for line in document["tokens"])]
    if len(parts) == 1:
        yield f"One row per token, from the {parts[0]} table; nothing is added to it."
        return
    yield f"One row from each table ({answers.listed(parts)}), added number by number."
    shares = [line["share"] for line in document["tokens"] if line["part"] in parts and line["share"] is not None]
    if not shares:
        return
    totals: dict[str, list[float]] = {part: [] for part in parts}
    for line in document["tokens"]:
        if line["part"] in parts and line["share"] is not None:
            totals[line["part"]].append(line["share"])
    means = [f"{part} rows {percent(math.fsum(values) / len(values))}" for part, values in totals.items()]
    yield (
        f"Share of the sum's length, on average over the tokens: {answers.listed(means)}. The shares of a token add up "
        "to 100%; one below 0 points against the sum."
    )


def _layer_sum(document: Document) -> Table | None:
    rows = [(line["computed"], number(line["largest_difference"])) for line in document["layer_sum"][2:]]
    return _table(("computed by hand", "largest difference"), rows) if rows else None


def _gradients(document: Document) -> Table:
    rows = []
    for line in document["gradients"]["parameters"]:
        counts = [line[key] for key in ("rows", "num_used", "num_with_gradient")]
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
    yield from answers.about_special_tokens(document)
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
    ("What is the embedding layer made of?", answers.about_parameters, _parameters),
    ("Which rows does this text pick, and what does each add?", _about_tokens, _tokens),
    ("What does the layer compute?", answers.about_sum, _layer_sum),
    ("What is an embedding look-up (nn.Embedding)?", answers.about_look_up, lambda document: None),
    ("Are these weights learnable?", answers.about_gradients, _gradients),
    ("How does the model know which sentence a word belongs to?", answers.about_segments, _segments),
    ("Are the first and the last token the same in every text?", _about_special_tokens, _special_tokens),
    ("Why are positions needed?", answers.about_order, _order),
)
"""Question, answer, table: the order of the screen."""
