"""Rows, tables and figures in, the blocks of a report out, which report.md and index.html both show."""

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from toolkit.reporting.charts import Charts
from toolkit.reporting.page.model import Block, ChartBlock, Column, FoldBlock, TableBlock, TextBlock
from toolkit.schema import COLUMNS

NOTHING = "Not applicable: there is nothing to show."


def rows_block(
    header: Sequence[str], rows: Iterable[Sequence[object]], caption: str, hows: Mapping[str, str] | None = None
) -> Block:
    """A table of cells of any kind, two columns of which may have the same heading; a sentence without rows."""
    lines = [list(row) for row in rows]
    if not lines:
        return TextBlock(text=NOTHING)
    names = [f"column_{i}" for i in range(len(header))]
    columns = {
        name: Column(label=label, how=(hows or {}).get(label, "")) for name, label in zip(names, header, strict=True)
    }
    table = pd.DataFrame(lines, columns=names, dtype=object)
    return TableBlock(table=table, caption=caption, columns=columns)


def table_block(table: pd.DataFrame, names: Sequence[str], caption: str) -> Block:
    """Some columns of a table, labelled and explained as the schema has them; a sentence for an empty table."""
    if table.empty:
        return TextBlock(text=NOTHING)
    shown = [name for name in names if name in table and not _is_empty_note(table, name)]
    columns = {name: heading(name) for name in shown}
    return TableBlock(table=table[list(columns)].reset_index(drop=True), caption=caption, columns=columns)


def heading(name: str) -> Column:
    """How a column is shown wherever a table does not say otherwise."""
    column = COLUMNS.get(name)
    if column is None:
        return Column(label=name.replace("_", " "))
    return Column(label=column.label, how=column.meaning, digits=column.digits, unit=column.unit)


def _is_empty_note(table: pd.DataFrame, name: str) -> bool:
    return name in ("note", "reason") and not table[name].fillna("").astype(str).str.len().any()


def chart_blocks(
    charts: Charts, name: str, caption: str, alt: str, prefix: str = "", *, is_dense: bool = False
) -> tuple[Block, ...]:
    """A chart, if there is one."""
    if name not in charts:
        return ()
    return (ChartBlock(name=prefix + name, chart=charts[name], caption=caption, alt=alt, is_dense=is_dense),)


def folds(titles: Sequence[str], bodies: Sequence[Sequence[Block]], *, open_first: bool = True) -> tuple[Block, ...]:
    """The blocks of each group under its title; without titles where there is one group only."""
    if len(bodies) == 1:
        return tuple(bodies[0])
    return tuple(
        FoldBlock(title=title, blocks=tuple(blocks), is_open=open_first and not i)
        for i, (title, blocks) in enumerate(zip(titles, bodies, strict=True))
    )


def varying(table: pd.DataFrame) -> pd.DataFrame:
    """Without the number of training examples where all lines have the same."""
    name = "num_train_examples"
    return table.drop(columns=name) if table[name].nunique(dropna=False) <= 1 else table
