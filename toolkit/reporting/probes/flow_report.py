"""The tables of a position flow in, its page out: report.md, figures, tables as CSV; or the terminal."""

from pathlib import Path

from toolkit.reporting import markdown
from toolkit.reporting.folder import report_folder, write_csvs, write_page
from toolkit.reporting.images import write_images
from toolkit.reporting.probes.flow_expectations import EXPECTATION, RULES
from toolkit.reporting.probes.flow_figures import draw_flow
from toolkit.reporting.probes.flow_findings import flow_findings, null_findings
from toolkit.reporting.probes.flow_rows import bit_rows, model_rows, output_rows, share_rows
from toolkit.reporting.probes.flow_tables import FlowGroup, Tables, groups_of, intervals_of

CAPTIONS = {
    "where_position_goes": "Share of each layer's variance (ω²) that is position, content or segment, in the crossed "
    "design. Scales differ between columns. 'Σ': word + position + segment before LayerNorm; 'in': what layer 1 "
    "reads. Bands: 95 % interval of the mean over seeds and blocks; of one model, over blocks.",
    "decoding": "Bits of a token's position that a linear probe reads off its state, on texts that it was not fitted "
    "on; beyond what the word alone tells; and what is left after its control task, a lower bound. Bands: 95 % "
    "interval of the mean over seeds and texts; of one model, over texts.",
    "counterfactuals": "How far the states move when the model reads other position rows; dotted: the distance of the "
    "states of two unrelated tokens, in the same unit. Bands as above.",
}

METHOD = (
    "Crossed design: blocks of consecutive tokens are rotated inside a frame of special tokens, so that every token "
    "stands at every position once, with the same neighbours but where the block closes; in pairs the middle frame "
    "halves the block, and every rotation is read with the segments as they are and exchanged. Special tokens are no "
    "cells. Position is therefore the place in the text, the distance to its edges included.",
    "ω² = (SS - df·MS_err) / (SS_tot + MS_err), SS traced over dimensions: chance is 0 and negative values are kept. "
    "MS_err of position and of segment is their interaction with the blocks, so that what they do to single texts is "
    "not counted as theirs; of content it is the residual. omega_standardised is the same with all dimensions at equal "
    "variance.",
    "Intervals: 95 %, of the mean over seeds and units. Units are blocks (ω²) or texts (the rest); each has one value, "
    "of a mean its own, of anything else the jackknife's; seeds x units of them have the two-way interval by Student's "
    "t. Of one model it covers units, not seeds. Differences are taken on the same units first.",
    *RULES,
    "Decoding: (entropy of the label - cross-entropy) / ln 2 of a multinomial logistic regression on held-out texts; "
    "the label is the position in bins. Control task (idea of Hewitt & Liang 2019): a random label for every word, the "
    "same in all texts, the mean of several draws, whose spread is in the interval. Its difference is a lower bound: "
    "it takes off all that words tell of random labels, more than they tell of position.",
    "Counterfactuals: the position rows in use are shifted, permuted (none stays), replaced by a sinusoid of equal "
    "mean square norm, by their mean (order goes, the common offset stays), or by zero. Nothing is trained for them.",
)


def write_flow_report(tables: Tables, out: str | Path, *, title: str | None = None, command: str | None = None) -> Path:
    """Write report.md, figures/ and tables/ of ``measure_flow``'s tables into ``out``; the path of report.md.

    tables/ holds a CSV per table, without the values per block or text, and intervals.csv, which is made from these.

    ``command`` is shown as what makes the report again. ValueError as :func:`check_out`.
    """
    with report_folder(out) as folder:
        kept = {name: table[[c for c in table if not str(c).endswith("_values")]] for name, table in tables.items()}
        write_csvs(folder / "tables", kept | {"intervals": intervals_of(tables)})
        images = draw_flow(tables)
        write_images(folder / "figures", images)
        groups = groups_of(tables)
        parts = [f"# {markdown.escape(title or 'Where position goes')}", EXPECTATION]
        for group in groups:
            parts += [f"## {markdown.escape(group.title)}: what was found", markdown.bullets(flow_findings(group))]
        parts += markdown.figures(CAPTIONS, images) + markdown.made_by(command, markdown.RELATIVE_PATHS)
        for group in groups:
            parts += _numbers(group)
        parts += ["## How it was measured", markdown.bullets(METHOD)]
        write_page(folder, parts)
    return Path(out) / "report.md"


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
    parts = [f"## {title}: references", markdown.bullets(null_findings(group))]
    parts += [f"## {title}: share of variance, ω² in %", markdown.table(*share_rows(group))]
    parts += [f"## {title}: decoding position, in bits", markdown.table(*bit_rows(group))]
    parts += [f"## {title}: other positions", markdown.table(*output_rows(group))]
    return [*parts, f"## {title}: models", markdown.table(*model_rows(group))]
