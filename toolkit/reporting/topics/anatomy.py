"""A model's embedding layer taken apart on one sentence: eight questions, measured answers, and their tables."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.reporting.charts import Chart, colour, data_of, panels, pick, shape, tips
from toolkit.reporting.folder import publish, report_folder, write_csvs
from toolkit.reporting.page import Block, ChartBlock, Page, Section, TextBlock, Tile, rows_block, stated

Document = dict[str, Any]
"""What ``toolkit anatomy --json`` prints."""

EMBEDDING = ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm.weight", "LayerNorm.bias")
PARTS = ("word", "position", "segment")
STAGES = ("word row", "embedding output", "encoder output")
MOST_DRAWN = 60
"""Tokens of the chart; the table has all of them."""


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


def listed(words: Sequence[str]) -> str:
    """Names in a row."""
    return ", ".join(words)


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
        f"{percent(share)} of the {whole['num_values']:,} values (a head is not counted)."
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
            yield f"Padding (tokens behind the text: {found['num_padding']}) gave no row a gradient."
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
        yield "The tokenizer marks each token with its token_type_id."
    if segments["note"]:
        yield f"{segments['note'][0].upper()}{segments['note'][1:]}."
        if segments["num_rows"] < 2 and len(sentence["texts"]) > 1:
            yield "What is left to tell the two apart is the separator between them, and the order."
    else:
        yield f"Each id picks one of the {segments['num_rows']} segment rows, which is added to the word's."
    if not segments["changes"] and not segments["note"]:
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
        before += [f"not equal at the {', '.join(unlike)}"] if unlike else []
        behind = [other for other in others if state[token, other, "encoder output"]]
        after = f"equal at the {listed(behind)}" if behind else "never equal, for context came in"
        yield f"{token}: before the encoder {', '.join(before)}; after it {after}."
    yield f"Before the encoder, a vector is made of its {listed(parts)} rows alone."


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


def about_tokens(document: Document) -> Iterable[str]:
    shares = mean_shares(document)
    if len(parts_of(document)) == 1:
        yield f"One row per token, from the {parts_of(document)[0]} table; nothing is added to it."
        return
    yield f"One row from each table ({listed(parts_of(document))}), added number by number."
    if shares:
        means = [f"{part} rows {percent(share)}" for part, share in shares.items()]
        yield (
            f"Share of the sum's length, on average over the tokens: {listed(means)}. The shares of a token add up "
            "to 100 %; one below 0 points against the sum."
        )


def parts_of(document: Document) -> list[str]:
    """The parts of which the model adds up a token."""
    present = {line["part"] for line in document["tokens"]}
    return [part for part in PARTS if part in present]


def mean_shares(document: Document) -> dict[str, float]:
    """Part to its mean share of the sum's length over the tokens where it is defined."""
    values: dict[str, list[float]] = {part: [] for part in parts_of(document)}
    for line in document["tokens"]:
        if line["part"] in values and line["share"] is not None:
            values[line["part"]].append(line["share"])
    return {part: math.fsum(own) / len(own) for part, own in values.items() if own}


def _parameters(document: Document) -> Iterable[Block]:
    rows = []
    for line in document["parameters"]:
        if line["num_values"] is None:
            rows.append([line["parameter"], "not applicable", "", "", ""])
            continue
        sizes = [f"{n:,}" for n in (line["num_rows"], line["num_columns"]) if n is not None]
        size = " x ".join(sizes) or f"{line['number']} parameters"
        state = {True: "yes", False: "frozen", None: "in part"}[line["requires_grad"]]
        rows.append([line["parameter"], size, line["num_values"], f"{line['share']:.3%}".replace("%", " %"), state])
    yield rows_block(("parameter", "shape", "values", "share", "trainable"), rows, "")


def _tokens(document: Document) -> Iterable[Block]:
    parts = parts_of(document)
    cells: dict[int, dict[str, Any]] = {}
    for line in document["tokens"]:
        cells.setdefault(line["index"], {"token": line["token"]})[line["part"]] = line
    rows = [
        [i, cell["token"], *(_part(cell[part]) for part in parts), f"{cell['sum']['length']:.2f}"]
        for i, cell in cells.items()
    ]
    caption = "Of each part: the row of its table, the row's length, and its share of the sum's length."
    yield rows_block(("place", "token", *parts, "sum"), rows, caption)


def _part(line: Document) -> str:
    return f"{line['row']}: {line['length']:.2f} ({'undefined' if line['share'] is None else percent(line['share'])})"


def _layer_sum(document: Document) -> Iterable[Block]:
    rows = [(line["computed"], number(line["largest_difference"])) for line in document["layer_sum"][2:]]
    if rows:
        yield rows_block(("computed by hand", "largest difference"), rows, "")


def _gradients(document: Document) -> Iterable[Block]:
    rows = []
    for line in document["gradients"]["parameters"]:
        counts = ["" if line[key] is None else line[key] for key in ("num_rows", "num_used", "num_with_gradient")]
        norm = "frozen" if line["gradient_norm"] is None else number(line["gradient_norm"])
        rows.append([line["parameter"], "yes" if line["requires_grad"] else "no", *counts, norm])
    header = ("parameter", "requires grad", "rows", "used by the text", "with a gradient", "gradient norm")
    yield rows_block(header, rows, "")


def _segments(document: Document) -> Iterable[Block]:
    segments, tokens = document["segments"], document["sentence"]["tokens"]
    if (types := segments["token_type_ids"]) is not None:
        own = {kind: [t for t, k in zip(tokens, types, strict=True) if k == kind] for kind in sorted(set(types))}
        rows = [(str(kind), shortened(members)) for kind, members in own.items()]
        yield rows_block(("token_type_id", "tokens"), rows, "")
    changes: dict[str, dict[str, float | None]] = {}
    for line in segments["changes"]:
        changes.setdefault(line["change"], {})[line["stage"]] = line["relative_difference"]
    if changes:
        caption = "Change the ids and nothing else: by this share of their length the vectors change."
        lines = [(change, *map(percent, stages.values())) for change, stages in changes.items()]
        yield rows_block(("token_type_ids", *STAGES[1:]), lines, caption)


def _special_tokens(document: Document) -> Iterable[Block]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for line in document["special_tokens"]["table"]:
        state = "equal" if line["is_equal"] else f"{percent(line['relative_difference'])} apart"
        found.setdefault((line["token"], line["other"]), {})[line["stage"]] = state
    if found:
        yield rows_block(("token", "compared with", *STAGES), [(*k, *v.values()) for k, v in found.items()], "")
    if others := document["special_tokens"]["others"]:
        rows = [(name, shortened(text.split(), 12)) for name, text in others.items()]
        yield rows_block(("compared with", "its tokens"), rows, "")


def _order(document: Document) -> Iterable[Block]:
    rows = []
    for i, line in enumerate(document["permutation"]["table"]):
        name = f"{'also ' if i > 1 else ''}without the {line['without']}" if line["without"] else "the model as it is"
        rows.append((name, number(line["relative_difference"]), "no" if line["is_equivariant"] else "yes"))
    yield rows_block(("tokens in another order", "vectors change by", "order shows"), rows, "")


SECTIONS = (
    ("What is the embedding layer made of?", about_parameters, _parameters),
    ("Which rows does this text pick, and what does each add?", about_tokens, _tokens),
    ("What does the layer compute?", about_sum, _layer_sum),
    ("What is an embedding look-up (nn.Embedding)?", about_look_up, lambda document: ()),
    ("Are these weights learnable?", about_gradients, _gradients),
    ("How does the model know which sentence a word belongs to?", about_segments, _segments),
    ("Are the first and the last token the same in every text?", about_special_tokens, _special_tokens),
    ("Why are positions needed?", about_order, _order),
)
"""Question, answer, tables: the order of the page."""


def plot_shares(document: Document) -> Chart | None:
    """Share of each token's sum that is its word, position and segment row; None where only one part is added."""
    import altair

    parts = parts_of(document)
    lines = [line for line in document["tokens"] if line["part"] in parts and line["share"] is not None]
    lines = [line | {"percent": 100 * line["share"]} for line in lines if line["index"] < MOST_DRAWN]
    if len(parts) < 2 or not lines:
        return None
    table = pd.DataFrame(lines).assign(place=lambda t: t["index"].astype(str) + " " + t["token"])
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
    lead = [f"{len(tokens)} tokens: {shortened(tokens)}"]
    lead += [f"Not as in BERT: {difference}" for difference in document["differences"]]
    caption = f"Share of each token's vector that its rows add, before LayerNorm; the first {MOST_DRAWN} tokens."
    chart = plot_shares(document)
    sections = [
        Section(id=f"question-{i}", title=question, blocks=(_said(answer(document)), *blocks(document)))
        for i, (question, answer, blocks) in enumerate(SECTIONS, start=1)
    ]
    return Page(
        title=title or f"The embedding layer of {document['model']} ({document['family']})",
        question=" / ".join(" ".join(text.split()) for text in texts),
        lead="\n\n".join(lead),
        tiles=tuple(
            Tile(title=f"{part} rows", value=percent(share), detail="of a token's vector, on average")
            for part, share in mean_shares(document).items()
        ),
        tiles_show="share",
        answers=stated(line for about in (about_parameters, about_order) for line in list(about(document))[:1]),
        picture=ChartBlock(name="token_shares", chart=chart, caption=caption, alt=caption) if chart else None,
        sections=tuple(sections),
        commands=command,
    )


def _said(lines: Iterable[str]) -> TextBlock:
    return TextBlock(text="\n\n".join(lines))


def write_anatomy_report(
    document: Document, out: str | Path, *, title: str | None = None, command: str | None = None
) -> Path:
    """Write the page on what ``as_document`` says, its figures/ and tables/ into ``out``; the path of report.md.

    ``command`` is shown as what makes the report again. ValueError where no report can go to ``out``.
    """
    gradients = document["gradients"]
    tables = {name: document[name] for name in ("parameters", "tokens", "layer_sum", "one_hot")}
    tables |= {"gradients": gradients["parameters"], "gradient_rows": gradients["rows"]}
    tables |= {"segment_changes": document["segments"]["changes"], "order": document["permutation"]["table"]}
    tables |= {"special_tokens": document["special_tokens"]["table"]}
    with report_folder(out) as folder:
        publish(anatomy_page(document, title=title, command=command or ""), folder)
        write_csvs(folder / "tables", {name: pd.DataFrame(lines) for name, lines in tables.items() if lines})
    return Path(out) / "report.md"
