"""The numbers of a report in, its tables/ out: CSV and Parquet of everything, LaTeX of what a paper prints."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from toolkit.comparison.card import Card
from toolkit.comparison.drift_table import drift_table_of_groups
from toolkit.comparison.report_data import ReportData, strata_table
from toolkit.reporting import render_latex as latex
from toolkit.reporting.cells import interval, text_of
from toolkit.reporting.comparison.provenance import runs_frame
from toolkit.reporting.comparison.selections import covered
from toolkit.reporting.comparison.study_sections import DIFFERENCE, SUMMARY, TESTS, shown_comparison
from toolkit.reporting.comparison.worth_sections import COST
from toolkit.reporting.page import Block, TableBlock, shown, table_block
from toolkit.reporting.render_latex import export_table
from toolkit.reporting.topics.claims import verdicts_frame
from toolkit.snapshots import files

COMPACT = "Drift of the embedding parameters from before training, means ± standard deviations over seeds"
MOST_CSV_LINES = 20_000
"""Longer tables are Parquet only: as text they would be megabytes that nobody reads."""

PAPER: Mapping[str, tuple[str, ...]] = {
    "comparison": ("group", *DIFFERENCE[:-1]),
    "tests": ("group", *TESTS),
    "summary": ("group", *SUMMARY),
    "cost": ("group", *COST),
    "efficiency": (
        "group",
        "split",
        "base",
        "num_train_examples",
        "score",
        "num_seeds",
        "mean",
        "sd",
        "difference_points",
    ),
    "association": ("model", "base", "parameter", "num_tasks", "spearman", "p", "q", "note"),
    "tuning": (),
    "verdicts": ("question", "answer", "value", "interval"),
}
"""Tables that are also written as LaTeX, with the columns that fit on a page; all columns where none are named."""

CAPTIONS: Mapping[str, str] = {
    "comparison": "Differences between arms on the same items, paired by seed",
    "tests": "Tests of the differences between arms",
    "summary": "Scores at the last epoch over seeds",
    "cost": "Cost beside score, means over seeds",
    "efficiency": "Scores by number of training examples",
    "association": "Rank correlation over tasks of drift, as a multiple of its noise, with what it gained",
    "tuning": "Settings tried, with the score on the split held out of train, and those chosen",
    "verdicts": "Questions and answers",
}


def report_tables(data: ReportData, cards: Sequence[Card]) -> dict[str, pd.DataFrame]:
    """File name to table, all groups together."""
    parts = {
        "verdicts": verdicts_frame(cards),
        "comparison": data.comparison,
        "comparison_by_seed": data.seeds,
        "summary": data.summary,
        "side_by_side": data.sides,
        "cost": data.cost,
        "efficiency": data.efficiency,
        "drift_and_score": data.joined,
        "association": data.association,
        "shuffled_labels": data.labels,
        "floors": data.floors,
        "near_duplicates": data.duplicates,
        "tuning": data.tuning if data.tuning is not None else pd.DataFrame(),
        "runs": runs_frame(data.groups),
        "last_scores": data.scores,
        "scores": _joined([each.scores for each in data.details]),
        "baselines": _joined([each.baselines for each in data.details]),
        "drift": _joined([each.drift for each in data.details]),
        "drift_compact": drift_table_of_groups([each.group for each in data.details], data.evidence.drift),
        "strata": _joined([strata_table(each.drift) for each in data.details]),
        "positions": _joined([each.positions for each in data.details]),
        "tokens": _joined([each.tokens for each in data.details]),
    }
    return {name: table for name, table in parts.items() if len(table)}


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else frames[0]


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame], title: str) -> None:
    """Write every table as Parquet, as CSV unless it is very long, and as LaTeX where PAPER has it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        if len(table) <= MOST_CSV_LINES:
            files.write_text(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
        files.write_with(folder / f"{name}.parquet", partial(_write_parquet, table))
    printed = paper_tables(tables)
    if "drift_compact" in tables:
        compact = partial(export_table, tables["drift_compact"], caption=COMPACT, label="drift-compact")
        printed["drift_compact"] = compact("latex")
        files.write_text(folder / "drift_compact.md", compact("markdown"))
        files.write_text(folder / "drift_compact.html", compact("html"))
    for name, text in printed.items():
        files.write_text(folder / f"{name}.tex", text)
    files.write_text(folder / "tables.tex", latex.document(printed, title))


def _write_parquet(table: pd.DataFrame, path: Path) -> None:
    # One type per column: Parquet has no column of numbers and words, as a tuning table may have.
    mixed = [c for c in table if table[c].dtype == object and table[c].map(type).nunique() > 1]
    table.astype(dict.fromkeys(mixed, str)).to_parquet(path, index=False, compression="zstd")


def paper_tables(tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Name to LaTeX of the tables that a paper prints."""
    sources = {**tables, **({"tests": tables["comparison"]} if "comparison" in tables else {})}
    printed = {}
    for name, columns in PAPER.items():
        if name not in sources:
            continue
        table = _with_texts(name, sources)
        over = covered(table) if name == "comparison" else ""
        caption = CAPTIONS[name] + (f", with intervals over {over}" if over else "")
        block = _paper_block(table, columns or [str(c) for c in table.columns], caption)
        if isinstance(block, TableBlock):
            printed[name] = latex.table(shown(block), name.replace("_", "-"))
    return printed


SHARED = ("group", "score", "num_seeds", "num_train_examples", "margin_points")
"""Columns that go into the caption where all lines have the same value: a page is narrow."""


def _paper_block(table: pd.DataFrame, columns: Sequence[str], caption: str) -> Block:
    own = [name for name in SHARED if name in columns and name in table and table[name].nunique(dropna=False) == 1]
    block = table_block(table, columns, caption)
    if len(table) < 2 or not own or not isinstance(block, TableBlock):
        return block
    said = [f"{block.columns[name].label} {text_of(table[name].iloc[0])}" for name in own]
    kept = {name: column for name, column in block.columns.items() if name not in own}
    return TableBlock(table=block.table, caption=f"{caption} ({', '.join(said)})", columns=kept)


def _with_texts(name: str, sources: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A table with the columns that are read rather than computed with: pairs and intervals."""
    table = sources[name]
    if name in ("comparison", "tests"):
        return shown_comparison(table, sources["comparison_by_seed"])
    if name == "verdicts":
        spans = [interval(low, high) for low, high in zip(table["low"], table["high"], strict=True)]
        return table.assign(interval=spans, value=[text_of(value) for value in table["value"]])
    return table
