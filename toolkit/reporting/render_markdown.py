"""A page as Markdown: what index.html shows, in the order in which it shows it; every text is escaped."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence

from toolkit.reporting.cells import NOT_APPLICABLE, is_number, number
from toolkit.reporting.page import (
    Block,
    ChartBlock,
    CodeBlock,
    FoldBlock,
    NoteBlock,
    Page,
    TableBlock,
    TextBlock,
    part_lines,
    shown,
    shown_tiles,
)

MOST_LINES = 60
"""Lines of a table that the text shows; the whole of it is in tables/."""
MOST_FOLDED_LINES = 24
"""Lines of a table under a closed fold that the text shows."""
TOP_LEVEL = 3
"""Level of the headings right below a section's."""
MOST_FOLDS = 2
"""Tasks whose details stand in the text; of more than these they are in index.html and tables/."""


RELATIVE_PATHS = (
    "Paths are relative to the directory in which the report was made; files from elsewhere go by name only."
)

_SPECIAL = frozenset("\\`*_[]<>|~$&@")


def render_markdown(page: Page, tasks: Collection[str] = ()) -> str:
    """The text of report.md. Every text is escaped; long tables are cut, and say where the rest is.

    ``tasks``: titles of the folds that hold one task each; a section with many of them is shortened.
    """
    parts = [f"# {escape(page.title)}", *_escaped_paragraphs(page.question), *_escaped_paragraphs(page.lead)]
    tiles = shown_tiles(page) if page.tiles else None
    parts += [table(tiles.header, tiles.rows)] if tiles else []
    for answer in page.answers:
        question = f"{answer.question} {answer.verdict}." if answer.verdict else answer.question
        text = "  \n".join(map(escape, (*answer.text.split("\n"), *part_lines(answer))))
        parts.append(f"**{escape(question)}** {text}" if question else text)
    parts += _block_texts(page.picture, 2) if page.picture else []
    parts += ["## How to make this again", code_block(page.commands.splitlines())] if page.commands else []
    parts += [RELATIVE_PATHS]
    for section in page.sections:
        parts += [
            f"## {escape(section.title)}",
            *_escaped_paragraphs(section.lead),
            *_blocks_texts(section.blocks, tasks, TOP_LEVEL),
        ]
    parts += _escaped_paragraphs(page.footer)
    return "\n\n".join(part for part in parts if part) + "\n"


def _escaped_paragraphs(text: str) -> list[str]:
    """Paragraphs, each escaped as a whole."""
    return [escape(" ".join(part.split())) for part in text.split("\n\n") if part.strip()]


def _blocks_texts(blocks: Sequence[Block], tasks: Collection[str], level: int) -> list[str]:
    """The blocks in order; many folds of a task each are shortened, wherever they stand."""
    folds = [block for block in blocks if isinstance(block, FoldBlock) and block.title in tasks]
    if len(folds) > MOST_FOLDS:
        first_fold = next(i for i, block in enumerate(blocks) if block is folds[0])
        before = blocks[:first_fold]
        after = [block for block in blocks[first_fold:] if all(block is not fold for fold in folds)]
        return [*_blocks_texts(before, tasks, level), *_shortened(folds, level), *_blocks_texts(after, tasks, level)]
    blocks_by_columns: dict[tuple[str, ...], list[Block]] = {}
    for block in blocks:
        if columns := _columns_if_folded(block):
            blocks_by_columns.setdefault(columns, []).append(block)
    many_alike = [blocks_alike for blocks_alike in blocks_by_columns.values() if len(blocks_alike) > MOST_FOLDS]
    left_out = [block for _, *others in many_alike for block in others]  # a run each, say: the first is shown
    kept_blocks = [block for block in blocks if all(block is not omitted for omitted in left_out)]
    note = [f"{len(left_out)} more tables like the first are in index.html."] if left_out else []
    return [*(text for block in kept_blocks for text in _block_texts(block, level, tasks)), *note]


def _columns_if_folded(block: Block) -> tuple[str, ...]:
    """The columns of a closed fold that holds a table, no folds and no chart; nothing for other blocks."""
    if not isinstance(block, FoldBlock) or block.is_open:
        return ()
    if any(isinstance(inner, FoldBlock | ChartBlock) for inner in block.blocks):
        return ()
    tables = [inner for inner in block.blocks if isinstance(inner, TableBlock)]
    return tuple(map(str, tables[0].table.columns)) if tables else ()


def _shortened(folds: Sequence[FoldBlock], level: int) -> list[str]:
    """Of many tasks the first table of each, all in one where they have the same columns; and where the rest is."""
    note = f"The details of each of the {len(folds)} tasks are in index.html, and their tables in tables/."
    tables = {fold.title: [block for block in fold.blocks if isinstance(block, TableBlock)] for fold in folds}
    first_tables = {title: shown(blocks[0]) for title, blocks in tables.items() if blocks}
    headers = {cells.header for cells in first_tables.values()}
    rows = [(title, *row) for title, cells in first_tables.items() for row in cells.rows]
    if level != TOP_LEVEL or len(headers) != 1 or len(rows) > MOST_LINES:
        return [note]
    (header,) = headers
    return [table(["model and task", *header], rows), note]


def _block_texts(block: Block, level: int, tasks: Collection[str] = ()) -> list[str]:
    """The Markdown of one block; of a closed fold with a long table its charts alone, and where the table is."""
    if isinstance(block, TextBlock):
        return _escaped_paragraphs(block.text)
    if isinstance(block, NoteBlock):
        return [f"> {text}" for text in _escaped_paragraphs(block.text)]
    if isinstance(block, ChartBlock):
        path = f"figures/{block.name}"
        links = f"([SVG]({path}.svg), [PDF]({path}.pdf))"
        return [f"![{escape(block.alt)}]({path}.png)", f"*{escape(block.caption)}* {links}"]
    if isinstance(block, TableBlock):
        return _table_texts(block)
    if isinstance(block, CodeBlock):
        return [code_block(block.text.splitlines())]
    num_lines = max((len(inner.table) for inner in block.blocks if isinstance(inner, TableBlock)), default=0)
    # What is folded away on the page is not worth so many lines of text.
    if not block.is_open and num_lines > MOST_FOLDED_LINES:
        charts = [inner for inner in block.blocks if isinstance(inner, ChartBlock)]
        chart_texts = [text for chart in charts for text in _block_texts(chart, level)]
        return [*chart_texts, f"{escape(block.title)} ({num_lines} lines): in index.html and tables/."]
    heading = f"{'#' * min(level, 6)} {escape(block.title)}"
    return [heading, *_blocks_texts(block.blocks, tasks, level + 1)]


def _table_texts(block: TableBlock) -> list[str]:
    """The first MOST_LINES lines of a table, and how many more there are."""
    cells = shown(block)
    rows = cells.rows[:MOST_LINES]
    text = [table(cells.header, rows)]
    if len(rows) < len(cells.rows):
        text.append(f"{len(cells.rows) - len(rows):,} more lines are in index.html and tables/.")
    return text


def escape(value: object) -> str:
    """Text that no Markdown or HTML reader takes for markup; invisible characters become U+XXXX."""
    text = str(value)
    # An underscore inside a word is no markup, and parameter names stay readable in the source.
    within_words = {match.start() for match in re.finditer(r"(?<=[A-Za-z0-9])_(?=[A-Za-z0-9])", text)}
    return "".join(character if i in within_words else _escaped(character) for i, character in enumerate(text))


def _escaped(character: str) -> str:
    """One character as a Markdown reader takes it for text; an invisible one as U+XXXX."""
    if character in _SPECIAL:
        return f"&#{ord(character)};"
    if character != " " and unicodedata.category(character)[0] in "CZ":
        return f"U+{ord(character):04X}"
    return character


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose cells are escaped texts or numbers; one line that says so when there are no rows."""
    texts_of_rows = [[escape(cell) if isinstance(cell, str) else number(cell) for cell in row] for row in rows]
    if not texts_of_rows:
        return f"{NOT_APPLICABLE.capitalize()}: there is nothing to show."
    filled = [[texts[i] for texts in texts_of_rows if texts[i]] for i in range(len(header))]
    # Below the heading; a colon puts a column of numbers to the right.
    rule = ["---:" if texts and all(map(is_number, texts)) else "---" for texts in filled]
    lines = [[escape(name) for name in header], rule, *texts_of_rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code_block(lines: Iterable[str]) -> str:
    """A fenced block that no backtick inside can end."""
    text = "\n".join(lines)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}bash\n{text}\n{fence}"
