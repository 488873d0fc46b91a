"""The runs of a report in, its sections on what was run out: runs, data, definitions, versions and hashes."""

from toolkit.reporting.blocks import folds, table_block
from toolkit.reporting.page.model import Block, NoteBlock, Section, TextBlock
from toolkit.reporting.provenance import (
    arms_block,
    data_block,
    definitions_block,
    hashes_block,
    runs_block,
    versions_block,
)
from toolkit.reporting.report_data import ReportData

MANY_RUNS = 12
"""With more runs than these the text has a line per arm, and tables/runs a line per run with its command."""

RUNS = (
    "Failed is a run whose accuracy on the reported split is the majority class's or less. The backbone's learning "
    "rate is not applicable where the whole backbone is frozen."
)


def run_section(data: ReportData) -> Section:
    """What was run."""
    blocks: list[Block] = [arms_block(data.groups)]
    if len(data.runs) <= MANY_RUNS:
        blocks = [runs_block(data.groups)]
    else:
        blocks.append(TextBlock(text=f"Each of the {len(data.runs)} runs, with its command, is in tables/runs.csv."))
    blocks += [NoteBlock(text=sentence) for sentence in data.left_out]
    return Section(id="runs", title="Runs", lead=RUNS, blocks=tuple(blocks))


def data_section(data: ReportData) -> Section:
    """Splits and near-duplicates."""
    titles = [group.title for group in data.groups]
    splits = folds(titles, [[data_block(group)] for group in data.groups])
    blocks: tuple[Block, ...] = (*_duplicates(data), *splits)
    return Section(id="data", title="Data", lead="Counted when each task was read.", blocks=blocks)


def _duplicates(data: ReportData) -> tuple[Block, ...]:
    if data.duplicates.empty:
        text = "Near-duplicates between training data and scored splits were not removed in these runs."
        return (TextBlock(text=text),)
    names = ["group", "split", "num_near_duplicates", "num_runs"]
    return (table_block(data.duplicates, names, "Training examples removed because they nearly repeat a scored item"),)


def definitions_section() -> Section:
    """The measures of a row."""
    lead = (
        "Δ is the change of a row from epoch 0, E⁰ the row at epoch 0, in float64. A value that is not defined is "
        "printed as undefined and counted; what a model does not have is printed as not applicable."
    )
    return Section(id="definitions", title="Definitions", lead=lead, blocks=(definitions_block(),))


def versions_section(data: ReportData) -> Section:
    """Versions, and the hashes of every run where there are few."""
    blocks: list[Block] = [versions_block(data.runs)]
    if len(data.runs) <= MANY_RUNS:
        blocks.insert(0, hashes_block(data.groups))
    else:
        blocks.append(TextBlock(text="The hashes of every run are in tables/runs.csv."))
    return Section(id="versions", title="Versions and hashes", blocks=tuple(blocks))
