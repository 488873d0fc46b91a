"""A model's embedding layer taken apart on one sentence: eight questions, measured answers, and their tables."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from toolkit.questions.anatomy.measure import PARTS, STAGES
from toolkit.reporting.charts import Chart, altair, colour, data_of, panels, pick, shape, tips
from toolkit.reporting.page import Block, Page, Section, TextBlock, Tile, picture, rows_block

Document = dict[str, Any]
"""An anatomy as plain values (:func:`toolkit.questions.anatomy.measure.as_document`)."""

MAX_TOKENS_DRAWN = 60
"""Of the chart; the table has all tokens."""


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
    return f"{value:.{digits}%}".replace("%", " %")


def shortened(tokens: Sequence[str], max_tokens: int = 24) -> str:
    """Tokens in a row, the middle of a long list left out and counted."""
    if len(tokens) <= max_tokens:
        return " ".join(tokens)
    half = max_tokens // 2
    return " ".join([*tokens[:half], f"... ({len(tokens) - 2 * half} more) ...", *tokens[-half:]])


def parts_of(document: Document) -> list[str]:
    """The parts of which the model adds up a token."""
    part_names = {record["part"] for record in document["tokens"]}
    return [part for part in PARTS.values() if part in part_names]


def mean_shares(document: Document) -> dict[str, float]:
    """Part to its mean share of the sum's length over the tokens where it is defined."""
    shares_by_part: dict[str, list[float]] = {part: [] for part in parts_of(document)}
    for record in document["tokens"]:
        if record["part"] in shares_by_part and record["share"] is not None:
            shares_by_part[record["part"]].append(record["share"])
    return {part: math.fsum(shares) / len(shares) for part, shares in shares_by_part.items() if shares}


def _parameters(document: Document) -> Iterable[Block]:
    """Shape, number of values, share and state of every embedding parameter and component."""
    rows = []
    for record in document["parameters"]:
        if record["num_values"] is None:
            rows.append([record["parameter"], record["reason"], "", "", ""])
            continue
        sizes = [f"{n:,}" for n in (record["num_rows"], record["num_columns"]) if n is not None]
        size = " x ".join(sizes) or f"{record['number']} parameters"
        state = {True: "yes", False: "frozen", None: "in part"}[record["requires_grad"]]
        rows.append(
            [record["parameter"], size, record["num_values"], f"{record['share']:.3%}".replace("%", " %"), state]
        )
    yield rows_block(("parameter", "shape", "values", "share", "trainable"), rows, "")


def _tokens(document: Document) -> Iterable[Block]:
    """A row per token: row, length and share of each part, and the length of their sum."""
    parts = parts_of(document)
    record_of = {(record["index"], record["part"]): record for record in document["tokens"]}
    rows: list[list[object]] = []
    for (i, part), total in record_of.items():
        if part == "sum":
            records = [record_of[i, name] for name in parts]
            texts = [f"{record['row']}: {record['length']:.2f} ({percent(record['share'])})" for record in records]
            rows.append([i, total["token"], *texts, f"{total['length']:.2f}"])
    caption = "Of each part: the row of its table, the row's length, and its share of the sum's length."
    yield rows_block(("place", "token", *parts, "sum"), rows, caption)


def _layer_sum(document: Document) -> Iterable[Block]:
    """A row per way to compute the layer by hand, and whether it gives what the module gives.

    A row that leaves nothing out must: where it does not, NOT stands before its formula. All others are controls, which
    should differ.
    """
    rows = [
        (
            record["computed"] if record["is_equal"] or record["left_out"] else f"NOT {record['computed']}",
            record["computed_in"],
            number(record["largest_difference"]),
            number(record["rounding"]),
            "yes" if record["is_equal"] else "no",
        )
        for record in document["layer_sum"]
    ]
    header = ("computed by hand", "in", "largest difference", "rounding allows", "the module's output")
    yield rows_block(header, rows, "What is left out and changes nothing adds nothing on this text.")


def _look_up(document: Document) -> Iterable[Block]:
    """A row per table: whether one-hot vectors times the table are what the look-up gives."""
    rows = [
        (
            record["parameter"],
            f"{record['num_tokens']} x {record['num_rows']:,}",
            f"{record['num_rows']:,} x {record['num_columns']}",
            "bit for bit" if record["largest_difference"] == 0 else "NOT equal",
            number(record["largest_difference"]),
        )
        for record in document["one_hot"]
    ]
    yield rows_block(("table", "one-hot vectors", "times its rows", "equal", "largest difference"), rows, "")


def _gradients(document: Document) -> Iterable[Block]:
    """Two tables: the gradient of every embedding parameter, then of single rows."""
    gradients = document["gradients"]
    rows = []
    for record in gradients["parameters"]:
        counts = [record[name] for name in ("num_rows", "num_used", "num_with_gradient")]
        counts = ["" if count is None else count for count in counts]
        norm = "frozen" if record["gradient_norm"] is None else number(record["gradient_norm"])
        rows.append([record["parameter"], "yes" if record["requires_grad"] else "no", *counts, norm])
    header = ("parameter", "requires grad", "rows", "used by the text", "with a gradient", "gradient norm")
    yield rows_block(header, rows, f"The scalar behind the gradient: {gradients['scalar']}.")
    rows = [
        [
            record["parameter"],
            str(record["row"]),
            record["token"],
            record["num_tokens"],
            number(record["gradient_norm"]),
            record["reason"],
        ]
        for record in gradients["rows"]
    ]
    header = ("parameter", "row", "token", "tokens", "gradient norm", "why")
    caption = f"Single rows; tokens of padding behind the text: {gradients['num_padding']}."
    yield rows_block(header, rows, caption)


def _segments(document: Document) -> Iterable[Block]:
    """The tokens of each token_type_id, and how much the vectors change when the ids do."""
    segments, tokens = document["segments"], document["sentence"]["tokens"]
    if segments["note"]:
        yield TextBlock(text=f"{segments['note'][0].upper()}{segments['note'][1:]}.")
    if (types := segments["token_type_ids"]) is None:
        yield TextBlock(text="The tokenizer gives no token_type_ids for this model.")
    else:
        tokens_by_type: dict[int, list[str]] = {type_id: [] for type_id in sorted(set(types))}
        for token, type_id in zip(tokens, types, strict=True):
            tokens_by_type[type_id].append(token)
        type_rows = [(str(type_id), shortened(members)) for type_id, members in tokens_by_type.items()]
        yield rows_block(("token_type_id", "tokens"), type_rows, "")
    differences: dict[str, dict[str, float | None]] = {}
    for record in segments["changes"]:
        differences.setdefault(record["change"], {})[record["stage"]] = record["relative_difference"]
    if differences:
        caption = "Change the ids and nothing else: by this share of their length the vectors change."
        rows = [(change, *map(percent, by_stage.values())) for change, by_stage in differences.items()]
        yield rows_block(("token_type_ids", *STAGES[1:]), rows, caption)


def _special_tokens(document: Document) -> Iterable[Block]:
    """How far [CLS] and [SEP] are from those of other texts at each stage, and the tokens of these texts."""
    special = document["special_tokens"]
    if not special["table"]:
        yield TextBlock(text="Not applicable: this tokenizer puts no such token around a text.")
    cells_by_pair: dict[tuple[str, str], dict[str, str]] = {}
    for record in special["table"]:
        cell = "equal" if record["is_equal"] else f"{percent(record['relative_difference'])} apart"
        cells_by_pair.setdefault((record["token"], record["other"]), {})[record["stage"]] = cell
    if cells_by_pair:
        rows = [(token, other, *by_stage.values()) for (token, other), by_stage in cells_by_pair.items()]
        yield rows_block(("token", "compared with", *STAGES), rows, "")
    if other_texts := special["others"]:
        rows = [(name, shortened(text.split(), 12)) for name, text in other_texts.items()]
        yield rows_block(("compared with", "its tokens"), rows, "")


def _order(document: Document) -> Iterable[Block]:
    """How far the output changes when tokens are shuffled: as the model is, then without its sources of position."""
    rows = []
    for i, record in enumerate(document["permutation"]["table"]):
        name = "the model as it is"
        if record["without"]:  # each line is without what the lines above it are without, too
            name = f"{'also ' if i > 1 else ''}without the {record['without']}"
        shows = "no" if record["is_equal"] else f"the order still shows ({number(record['relative_difference'])})"
        rows.append((name, number(record["relative_difference"]), shows))
    yield rows_block(("tokens in another order", "vectors change by", "order"), rows, "")


SECTIONS: Sequence[tuple[str, str, Callable[[Document], Iterable[Block]]]] = (
    ("What is the embedding layer made of?", "The embedding parameters beside all others; no head.", _parameters),
    (
        "Which rows does this text pick, and what does each add?",
        "One row from each table, added number by number. The shares of a token add up to 100 %; one below 0 points "
        "against the sum.",
        _tokens,
    ),
    (
        "What does the layer compute?",
        "The layer's output is computed by hand from these rows and held against the module's own, then without one "
        "part after the other.",
        _layer_sum,
    ),
    (
        "What is an embedding look-up (nn.Embedding)?",
        "A table. Picking rows is the same as multiplying one-hot vectors by it.",
        _look_up,
    ),
    (
        "Are these weights learnable?",
        "Measured by a backward pass on this text: what got a gradient can learn from it. Within a table only rows "
        "that the text uses can get one.",
        _gradients,
    ),
    (
        "How does the model know which sentence a word belongs to?",
        "Both sentences go through the model as one sequence. Each token_type_id picks a segment row, which is added "
        "to the word's; without segments there is the separator, and the order.",
        _segments,
    ),
    (
        "Are the first and the last token the same in every text?",
        "Before the encoder, a vector is made of its rows alone; after it, of its context too.",
        _special_tokens,
    ),
    (
        "Why are positions needed?",
        "Attention does not see order by itself. The tokens of this text are read in another order, and each is "
        "compared with itself: where nothing that holds the order is left, its vector is the same wherever it stands.",
        _order,
    ),
)
"""Question, what the tables below it show, and these: the order of the page."""


def plot_shares(document: Document) -> Chart | None:
    """Share of each token's sum that is its word, position and segment row; None where only one part is added."""
    parts = parts_of(document)
    records = [record for record in document["tokens"] if record["part"] in parts and record["share"] is not None]
    records = [record | {"percent": 100 * record["share"]} for record in records if record["index"] < MAX_TOKENS_DRAWN]
    if len(parts) < 2 or not records:
        return None
    table = pd.DataFrame(records).assign(place=lambda t: t["index"].astype(str) + " " + t["token"])
    picker = pick("part", parts)
    base = altair.Chart(data_of(table, ["place", "part", "row", "length", "percent"])).mark_point(filled=True, size=60)
    chart = base.encode(
        x=altair.X("percent:Q", title="share of the sum's length (%)"),
        y=altair.Y("place:N", sort=None, title=None, axis=altair.Axis(grid=True, ticks=False, domain=False)),
        color=colour("part", parts),
        shape=shape("part", parts),
        opacity=picker.opacity,
        tooltip=tips(place="token", part="part", row="its row", percent=("share (%)", ".3g"), length=("length", ".3g")),
    )
    return panels([chart.properties(width=480, height=18 * table["place"].nunique())], picker=picker)


def anatomy_page(document: Document, *, title: str | None = None, command: str = "") -> Page:
    """The eight questions with their answers and tables; first what each table adds to a token."""
    texts, tokens = document["sentence"]["texts"], document["sentence"]["tokens"]
    caption = f"Share of each token's vector that its rows add, before LayerNorm; the first {MAX_TOKENS_DRAWN} tokens."
    sections = [
        Section(id=f"question-{i}", title=question, lead=lead_of, blocks=tuple(blocks(document)))
        for i, (question, lead_of, blocks) in enumerate(SECTIONS, start=1)
    ]
    return Page(
        title=title or f"The embedding layer of {document['model']} ({document['family']})",
        question=" / ".join(" ".join(text.split()) for text in texts),
        lead=f"{len(tokens)} tokens: {shortened(tokens)}",
        tiles=tuple(
            Tile(title=f"{part} rows", value=percent(share), detail="of a token's vector, on average")
            for part, share in mean_shares(document).items()
        ),
        tiles_show="share",
        picture=picture("token_shares", plot_shares(document), caption),
        sections=tuple(sections),
        commands=command,
    )


def anatomy_tables(document: Document) -> dict[str, pd.DataFrame]:
    """The tables that lie beside the page, by name; empty ones are left out."""
    gradients = document["gradients"]
    tables = (
        {name: document[name] for name in ("parameters", "tokens", "layer_sum", "one_hot")}
        | {"gradients": gradients["parameters"], "gradient_rows": gradients["rows"]}
        | {"segment_changes": document["segments"]["changes"], "order": document["permutation"]["table"]}
    )
    tables |= {"special_tokens": document["special_tokens"]["table"]}
    return {name: pd.DataFrame(records) for name, records in tables.items() if records}
