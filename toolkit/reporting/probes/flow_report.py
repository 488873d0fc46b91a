"""The tables of a position flow in, its page out: report.md, figures, tables as CSV; or the terminal."""

from pathlib import Path

import pandas as pd

from toolkit.reporting import markdown
from toolkit.reporting.images import write_images
from toolkit.reporting.probes.flow_figures import draw_flow
from toolkit.reporting.probes.flow_findings import EXPECTATION, flow_findings, null_findings
from toolkit.reporting.probes.flow_tables import COUNTERFACTUALS, FACTORS, FlowGroup, Tables, groups_of
from toolkit.snapshots import files

CAPTIONS = {
    "where_position_goes": "Share of each layer's variance (ω²) that is position, content or segment, in the crossed "
    "design. Scales differ between columns. 'Σ': word + position + segment before LayerNorm; 'in': what layer 1 "
    "reads. Bands: least to greatest seed; of one model, its 95 % interval over blocks.",
    "decoding": "Bits of a token's position that a linear probe reads off its state, on texts that it was not fitted "
    "on, and what is left after its control task.",
    "counterfactuals": "How far the states move when the model reads other position rows; dotted: the distance of the "
    "states of two unrelated tokens, in the same unit.",
}

METHOD = (
    "Crossed design: blocks of consecutive tokens are rotated inside a frame of special tokens, so that every token "
    "stands at every position once, with the same neighbours but where the block closes; in pairs the middle frame "
    "halves the block, and every rotation is read with the segments as they are and exchanged. Special tokens are no "
    "cells. Position is therefore the place in the text, the distance to its edges included.",
    "ω² = (SS - df·MS_res) / (SS_tot + MS_res), SS traced over dimensions: chance is 0 and negative values are kept; "
    "omega_standardised is the same with all dimensions at equal variance. Intervals: bootstrap over blocks.",
    "Decoding: (entropy of the label - cross-entropy) / ln 2 of a multinomial logistic regression on held-out texts; "
    "the label is the position in bins. Control task (idea of Hewitt & Liang 2019): a random label for every word, the "
    "same in all texts. Intervals: bootstrap over texts.",
    "Counterfactuals: the position rows in use are shifted, permuted (none stays), replaced by a sinusoid of equal "
    "mean square norm, by their mean (order goes, the common offset stays), or by zero. Nothing is trained for them.",
)

Rows = tuple[list[str], list[list[object]]]


def write_flow_report(tables: Tables, out: str | Path, *, title: str | None = None, command: str | None = None) -> Path:
    """Write report.md, figures/ and tables/ of ``measure_flow``'s tables into ``out``; the path of report.md.

    ``command`` is shown as what makes the report again. ValueError when ``out`` is a file.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out.name} is a file where the report's folder should go: pass another --out")
    (out / "tables").mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        files.write_text(out / "tables" / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
    images = draw_flow(tables)
    write_images(out / "figures", images)
    groups = groups_of(tables)
    parts = [f"# {markdown.escape(title or 'Where position goes')}", EXPECTATION]
    for group in groups:
        parts += [f"## {markdown.escape(group.title)}: what was found", _list(flow_findings(group))]
    parts += [f"![{CAPTIONS[name]}](figures/{name}.png)\n\n*{CAPTIONS[name]}*" for name in images]
    if command:
        where = (
            "Paths are relative to the directory in which the report was made; files from elsewhere go by name only."
        )
        parts += ["## How to make this again", markdown.code_block([command]), where]
    for group in groups:
        parts += _numbers(group)
    parts += ["## How it was measured", _list(METHOD)]
    files.write_text(out / "report.md", "\n\n".join(parts) + "\n")
    return out / "report.md"


def print_flow(tables: Tables) -> None:
    """Findings, nulls and the ledger of each group, on the terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for group in groups_of(tables):
        console.print(f"[bold]{escape(group.title)}[/bold]")
        for line in [EXPECTATION, *flow_findings(group), *null_findings(group)]:
            console.print(f"- {escape(line)}", soft_wrap=True, highlight=False)
        header, rows = share_rows(group)
        shown = Table(title="Share of variance, ω² in %")
        for name in header:
            shown.add_column(escape(name))
        for row in rows:
            shown.add_row(*(escape(cell if isinstance(cell, str) else markdown.number(cell, 2)) for cell in row))
        console.print(shown)


def _numbers(group: FlowGroup) -> list[str]:
    title = markdown.escape(group.title)
    parts = [f"## {title}: references", _list(null_findings(group))]
    parts += [f"## {title}: share of variance, ω² in %", markdown.table(*share_rows(group))]
    parts += [f"## {title}: decoding position, in bits", markdown.table(*bit_rows(group))]
    parts += [f"## {title}: other positions", markdown.table(*output_rows(group))]
    return [*parts, f"## {title}: models", markdown.table(*model_rows(group))]


def share_rows(group: FlowGroup) -> Rows:
    """Header and rows: arm and layer with ω² of each factor in percent (mean over seeds) and what is left."""
    header = ["arm", "layer", *FACTORS, "position, equal dimensions", "left to interactions (η²)"]
    rows: list[list[object]] = []
    for arm in group.arms:
        columns = [group.over_seeds("ledger", arm, "omega_squared", factor=factor) for factor in FACTORS]
        columns.append(group.over_seeds("ledger", arm, "omega_standardised", factor="position"))
        columns.append(group.over_seeds("ledger", arm, "eta_squared", factor="residual"))
        for layer in group.layers:
            rows.append([group.labels[arm], _stage(layer), *(_cell(column, layer) for column in columns)])
    return header, rows


def _cell(values: pd.DataFrame, layer: int) -> object:
    return None if layer not in values.index else _least(100 * float(values["mean"][layer]))


def _least(percent: float) -> float:
    """Rounding is shown as 0."""
    return 0.0 if abs(percent) < 1e-9 else percent


def bit_rows(group: FlowGroup) -> Rows:
    """Header and rows: arm and layer with the bits, those of the control, their difference and the references."""
    columns = ("bits", "control_bits", "selective_bits", "low", "high", "word_bits", "shuffled_bits", "entropy_bits")
    header = ["arm", "layer", "bits", "control", "difference", "low", "high", "word alone", "shuffled", "entropy"]
    rows: list[list[object]] = []
    for arm in group.arms:
        means = {name: group.over_seeds("decoding", arm, name)["mean"] for name in columns}
        for layer in means["bits"].index:
            rows.append([group.labels[arm], _stage(int(layer)), *(float(means[name][layer]) for name in columns)])
    return header, rows


def output_rows(group: FlowGroup) -> Rows:
    """Header and rows: arm and counterfactual with the change of the last layer, logits, predictions and the score."""
    header = ["arm", "positions", "last layer", "logits", "predictions changed (%)", "score before", "change (points)"]
    rows: list[list[object]] = []
    for arm in dict.fromkeys(group.tables["models"]["arm"]):
        own = group.of("counterfactuals", arm)
        for name in COUNTERFACTUALS:
            lines = own[own["counterfactual"] == name]
            if lines.empty:
                continue
            state = lines[lines["quantity"] == "state"]
            last = state.loc[state["layer"] == state["layer"].max(), "value"].mean()
            logits, predictions, score = (lines[lines["quantity"] == q] for q in ("logits", "predictions", "score"))
            rows.append(
                [
                    arm,
                    name,
                    float(last),
                    _mean(logits["value"]),
                    _mean(100 * predictions["value"]),
                    _mean(score["reference"]),
                    _mean(100 * score["value"]),
                ]
            )
    return header, rows


def _mean(values: pd.Series) -> object:
    """None where there are none: not applicable."""
    return float(values.mean()) if len(values) else None


def model_rows(group: FlowGroup) -> Rows:
    """Header and rows: what was looked into, and with what."""
    header = ["arm", "model", "family", "positions", "contents", "segments", "sequences", "split", "body", "note"]
    columns = [
        "arm",
        "name",
        "family",
        "num_positions",
        "num_contents",
        "num_segments",
        "num_sequences",
        "split",
        "body",
    ]
    models = group.tables["models"]
    return header, [[*line] for line in models[[*columns, "note"]].to_numpy(dtype=object).tolist()]


def _stage(layer: int) -> str:
    return {-1: "sum", 0: "input"}.get(layer, str(layer))


def _list(lines: tuple[str, ...] | list[str]) -> str:
    return "\n".join(f"- {markdown.escape(line)}" for line in lines)
