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
MOST_LETTERS_IN_CELL = 48
"""Letters above which a cell is prose, which needs more room than a column of many."""


def print_page(page: Page, console: Console | None = None, *, has_charts: bool = True) -> None:
    """Show a page without its definitions as a terminal can.

    Tables fold where they are too wide, and become one paragraph a line where folding would break words. Every text is
    shown as it is, with invisible characters as U+XXXX. Charts are one line that names their file, and not without
    ``has_charts``: where no report is written.
    """
    console = console or open_console()
    _print_heading(console, page.title, 0)
    _print_texts(console, page.question, page.lead)
    if page.tiles:
        _print_table(console, shown_tiles(page))
    for answer in page.answers:
        verdict = f"{answer.verdict}." if answer.verdict else ""
        lead_in = " ".join(filter(None, (answer.question, verdict)))
        _print_text(console, f"- {lead_in} {answer.text}".replace("-  ", "- "))
        for part_line in part_lines(answer):
            _print_text(console, f"· {part_line}")
    sections = [section for section in page.sections if section.id != "definitions"]
    folds = [
        FoldBlock(title=section.title, blocks=(TextBlock(text=section.lead), *section.blocks)) for section in sections
    ]
    for block in (page.picture, *folds, TextBlock(text=page.footer)):
        if block:
            _print_block(console, block, 1, has_charts=has_charts)


def _print_block(console: Console, block: Block, level: int, *, has_charts: bool) -> None:
    """Print one block, and those under its fold one level deeper."""
    if isinstance(block, TableBlock):
        _print_table(console, shown(block))
    elif isinstance(block, FoldBlock):
        _print_heading(console, block.title, level)
        for inner in block.blocks:
            _print_block(console, inner, level + 1, has_charts=has_charts)
    elif isinstance(block, ChartBlock):
        _print_texts(console, f"Chart in figures/{block.name}.png: {block.caption}" * has_charts)
    else:
        _print_texts(console, "Note: " * isinstance(block, NoteBlock) + block.text)


def _print_heading(console: Console, text: str, level: int) -> None:
    """Print a heading by its level: of the page, a section, or a fold."""
    style = ("bold underline", "bold", "italic")[min(level, 2)]
    console.print(Text(visible(text), style=style, overflow="fold"), width=_width(console))


def _print_texts(console: Console, *texts: str) -> None:
    """Print every paragraph of some texts, an empty line behind each."""
    for paragraph in (paragraph for text in texts for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()):
        _print_text(console, paragraph)
        console.print()


def _print_text(console: Console, text: str) -> None:
    console.print(Text(visible(text.strip()), overflow="fold"), width=_width(console))


def _width(console: Console) -> int:
    return min(console.width, WIDEST)


def _print_table(console: Console, cells: Shown) -> None:
    """Print a table, or a paragraph per row of it where a column would have to break its words."""
    header = [visible(name) for name in cells.header]
    rows = [[visible(cell) for cell in row] for row in cells.rows[:MOST_LINES]]
    columns = list(zip(header, *rows, strict=True))
    longest_words = [max(len(word) for cell in column for word in [*cell.split(), ""]) for column in columns]
    is_prose = len(header) > 3 and max((len(cell) for row in rows for cell in row), default=0) > MOST_LETTERS_IN_CELL
    # Cells may fold between words, and not within them.
    if sum(longest_words) + 2 * (len(longest_words) - 1) <= console.width and not is_prose:
        _print_grid(console, header, rows, _widths(columns, longest_words, console.width))
    else:
        _print_paragraphs(console, header, rows)
    if cells.caption:
        console.print(Text(visible(cells.caption), style="dim", overflow="fold"), width=_width(console))
    if len(rows) < len(cells.rows):
        console.print(Text(f"{len(cells.rows) - len(rows):,} more lines are in the report's tables.", style="dim"))
    console.print()


def _widths(columns: Sequence[Sequence[str]], least: Sequence[int], room: int) -> list[int]:
    """The widths of columns, the widest narrowed until all fit, none below its longest word.

    ``least``: the length of the longest word of each; ``room``: for all of them, with two between each and the next.
    """
    widths = [max(map(len, column)) for column in columns]
    while sum(widths) + 2 * (len(widths) - 1) > room:
        _, widest = max((width, i) for i, width in enumerate(widths) if width > least[i])
        widths[widest] -= 1
    return widths


def _print_grid(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    """Print a table in columns of these widths, those of numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    for i, (name, width) in enumerate(zip(header, widths, strict=True)):
        filled = [row[i] for row in rows if row[i]]
        is_numeric = bool(filled) and all(map(is_number, filled))
        table.add_column(Text(name), width=width, overflow="fold", justify="right" if is_numeric else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def _print_paragraphs(console: Console, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as a paragraph per line: its first cell, then every other with its heading."""
    for row in rows:
        facts = [f"{name}: {cell}" for name, cell in zip(header[1:], row[1:], strict=True) if cell]
        console.print(Text(row[0], style="italic", overflow="fold"))
        console.print(Text("; ".join(facts), overflow="fold"), width=_width(console))


def show_page(page: Page, out: Path | None, tables: Mapping[str, pd.DataFrame], *, is_result: bool = True) -> int:
    """Print a page, and write it with its tables where ``out`` names a folder; not ``is_result``: only write it."""
    if is_result:
        print_page(page, has_charts=out is not None)
    if out is not None:
        show(f"Report: {write_page(page, out, tables)}", is_result=is_result)
    return 0
