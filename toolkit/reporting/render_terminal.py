"""The blocks of a page as text in a terminal of 80 columns: nothing is cut, and charts are named where they are."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolkit.naming import visible
from toolkit.progress import open_console, show
from toolkit.reporting.cells import is_number
from toolkit.reporting.folder import write_page
from toolkit.reporting.page import (
    Block,
    ChartBlock,
    FoldBlock,
    NoteBlock,
    Page,
    Shown,
    TableBlock,
    TextBlock,
    part_lines,
    shown,
    shown_tiles,
)

MOST_LINES = 60
"""Lines of a table; the whole of a longer one is in the report's tables."""
WIDEST = 100
"""Columns of a paragraph in a terminal that has more."""
LONGEST_CELL = 48
"""Letters from which a cell is prose, which needs more room than a column of many."""


def print_page(page: Page, console: Console | None = None, *, has_charts: bool = True) -> None:
    """Show a page without its definitions as a terminal can.

    Tables fold where they are too wide, and become one paragraph a line where folding would break words. Every text is
    shown as it is, with invisible characters as U+XXXX. Charts are one line that names their file, and not without
    ``has_charts``: where no report is written.
    """
    console = console or open_console()
    _heading(console, page.title, 0)
    _texts(console, page.question, page.lead)
    if page.tiles:
        _table(console, shown_tiles(page))
    for answer in page.answers:
        asked = " ".join(part for part in (answer.question, answer.verdict and f"{answer.verdict}.") if part)
        _text(console, f"- {asked} {answer.text}".replace("-  ", "- "))
        for line in part_lines(answer):
            _text(console, f"· {line}")
    sections = [section for section in page.sections if section.id != "definitions"]
    folds = [FoldBlock(title=each.title, blocks=(TextBlock(text=each.lead), *each.blocks)) for each in sections]
    for block in (page.picture, *folds, TextBlock(text=page.footer)):
        if block:
            _block(console, block, 1, has_charts=has_charts)


def _block(console: Console, block: Block, level: int, *, has_charts: bool) -> None:
    if isinstance(block, TableBlock):
        _table(console, shown(block))
    elif isinstance(block, FoldBlock):
        _heading(console, block.title, level)
        for inner in block.blocks:
            _block(console, inner, level + 1, has_charts=has_charts)
    elif isinstance(block, ChartBlock):
        _texts(console, f"Chart in figures/{block.name}.png: {block.caption}" * has_charts)
    else:
        _texts(console, "Note: " * isinstance(block, NoteBlock) + block.text)


def _heading(console: Console, text: str, level: int) -> None:
    style = ("bold underline", "bold", "italic")[min(level, 2)]
    console.print(Text(visible(text), style=style, overflow="fold"), width=_width(console))


def _texts(console: Console, *texts: str) -> None:
    for part in (part for text in texts for part in re.split(r"\n\s*\n", text) if part.strip()):
        _text(console, part)
        console.print()


def _text(console: Console, text: str) -> None:
    console.print(Text(visible(text.strip()), overflow="fold"), width=_width(console))


def _width(console: Console) -> int:
    return min(console.width, WIDEST)


def _table(console: Console, cells: Shown) -> None:
    """A table, or a paragraph per line of it where a column would have to break its words."""
    header = [visible(name) for name in cells.header]
    rows = [[visible(cell) for cell in row] for row in cells.rows[:MOST_LINES]]
    columns = [[name, *own] for name, *own in zip(header, *rows, strict=True)]
    least = [max(len(word) for cell in column for word in [*cell.split(), ""]) for column in columns]
    is_prose = len(header) > 3 and max((len(cell) for row in rows for cell in row), default=0) > LONGEST_CELL
    if sum(least) + 2 * (len(least) - 1) <= console.width and not is_prose:
        _grid(console, header, rows, _widths(columns, least, console.width))
    else:
        _paragraphs(console, header, rows)
    if cells.caption:
        console.print(Text(visible(cells.caption), style="dim", overflow="fold"), width=_width(console))
    if len(rows) < len(cells.rows):
        console.print(Text(f"{len(cells.rows) - len(rows):,} more lines are in the report's tables.", style="dim"))
    console.print()


def _widths(columns: Sequence[Sequence[str]], least: Sequence[int], room: int) -> list[int]:
    """What each column wants, the widest ones narrowed until all fit; none below its longest word."""
    widths = [max(map(len, column)) for column in columns]
    while sum(widths) + 2 * (len(widths) - 1) > room:
        widths[max((w, i) for i, w in enumerate(widths) if w > least[i])[1]] -= 1
    return widths


def _grid(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for i, (name, width) in enumerate(zip(header, widths, strict=True)):
        filled = [row[i] for row in rows if row[i]]
        right = bool(filled) and all(map(is_number, filled))
        table.add_column(Text(name), width=width, overflow="fold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def _paragraphs(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for row in rows:
        facts = [f"{name}: {cell}" for name, cell in zip(header[1:], row[1:], strict=True) if cell]
        console.print(Text(row[0], style="italic", overflow="fold"))
        console.print(Text("; ".join(facts), overflow="fold"), width=_width(console))


def show_page(page: Page, out: Path | None, tables: Mapping[str, pd.DataFrame], *, is_result: bool = True) -> int:
    """Print a page, and write it beside its tables where a report is asked for; not ``is_result``: write it only."""
    if is_result:
        print_page(page, has_charts=out is not None)
    if out is not None:
        show(f"Report: {write_page(page, out, tables)}", is_result=is_result)
    return 0
