"""The runs of a report in, its sections on what was run out: runs, data, definitions, versions and hashes."""

from collections.abc import Sequence

from toolkit.comparison.report_data import ReportData
from toolkit.reporting.cells import listing
from toolkit.reporting.comparison.provenance import (
    arms_block,
    data_block,
    definitions_block,
    hashes_block,
    runs_block,
    versions_block,
)
from toolkit.reporting.page import Block, NoteBlock, Section, TextBlock, folds, rows_block
from toolkit.schema import COLUMNS

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
    """Counts per run and split, and by name the tasks in which nobody looked: 0 found is not the same."""
    counts: dict[tuple[str, str], list[int]] = {}
    missed = []
    for group in data.groups:
        found = [run.part("task").get("num_near_duplicates") for run in group.runs]
        for each in found:
            for split, count in (each or {}).items():
                counts.setdefault((group.title, split), []).append(int(count))
        missed += [group.title] if all(each is None for each in found) else []
    if not counts:
        return (TextBlock(text="Near-duplicates between training data and scored splits were not looked for."),)
    rows = [[title, split, per_run(own), len(own)] for (title, split), own in counts.items()]
    header = ["model and task", "split", "near-duplicates per run", "runs"]
    hows = {header[2]: COLUMNS["num_near_duplicates"].meaning}
    block = rows_block(header, rows, "Training examples removed because they nearly repeat a scored item", hows)
    return (block, TextBlock(text=f"Near-duplicates were not looked for in {listing(missed)}.")) if missed else (block,)


def per_run(counts: Sequence[int]) -> str:
    """A count that every run has, or its range over the runs."""
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def definitions_section() -> Section:
    """The measures of a row."""
    lead = (
        "Δ is the change of a row from epoch 0, E⁰ the row at epoch 0, in float64. A value that is not defined is "
        "printed as undefined and counted; what a model does not have is printed as not applicable."
    )
    return Section(id="definitions", title="Definitions", lead=lead, blocks=(definitions_block(),))


def versions_section(data: ReportData) -> Section:
    """Versions, and the hashes of every run where there are few."""
    blocks: list[Block] = [versions_block(data.runs)] if data.is_whole else []
    if len(data.runs) <= MANY_RUNS:
        blocks.insert(0, hashes_block(data.groups))
    else:
        blocks.append(TextBlock(text="The hashes of every run are in tables/runs.csv."))
    return Section(id="versions", title="Versions and hashes", blocks=tuple(blocks))
