"""What a report says, as plain data: a Page of Sections of blocks, which the four renderers show. All is plain text."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from toolkit.naming import Described
from toolkit.reporting.cells import Column as Column
from toolkit.reporting.cells import p_value, text_of
from toolkit.reporting.charts import Charts, spec_of
from toolkit.reporting.verdict_words import OPEN_VERDICTS, Tone
from toolkit.schema import COLUMNS, P_VALUES


@dataclass(frozen=True, kw_only=True)
class TextBlock:
    """One or more paragraphs, with an empty line between them."""

    text: str


@dataclass(frozen=True, kw_only=True)
class NoteBlock:
    """A caveat, set apart from the text."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True, kw_only=True)
class ChartBlock:
    """A chart: interactive on the page, a picture without JavaScript, on paper and in report.md."""

    name: str
    """Unique in the report; what the files in figures/ are called."""
    chart: Any
    """An Altair chart of any kind."""
    caption: str
    alt: str
    """What somebody who cannot see the chart should know of it."""
    is_dense: bool = False
    """Thousands of marks: the picture is then one of pixels, which is smaller."""

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The chart as Vega-Lite; made once, since Altair checks every part of it."""
        return spec_of(self.chart)


@dataclass(frozen=True, kw_only=True)
class TableBlock:
    """A table that a reader can sort."""

    table: pd.DataFrame
    caption: str
    columns: Mapping[str, Column] = field(default_factory=dict)
    """Column of the table to how it is shown: these columns, in this order. Empty: every column under its name."""
    num_shown: int = 30
    """Longer tables show this many lines and a button for the rest."""


@dataclass(frozen=True, kw_only=True)
class CodeBlock:
    """Commands that a reader copies."""

    text: str


@dataclass(frozen=True, kw_only=True)
class FoldBlock:
    """Blocks under a heading that opens and closes them: what only some readers want, or one task among many."""

    title: str
    blocks: "tuple[Block, ...]"
    is_open: bool = False


Block: TypeAlias = TextBlock | NoteBlock | ChartBlock | TableBlock | CodeBlock | FoldBlock


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page with an entry in its contents."""

    id: str
    """Part of the address: letters, digits and hyphens, unique on the page."""
    title: str
    lead: str = ""
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One thing that is compared, at a glance: on the first screen."""

    title: str
    value: str
    """The number that is read first, with its unit."""
    detail: str = ""
    """How sure it is: an interval, or ``1 seed``."""
    lines: tuple[tuple[str, str], ...] = ()
    """Further facts: name and value."""
    colour: str = ""
    """The colour that it has in the charts, ``#rrggbb``."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """The answer of one task to a question that is asked of several."""

    name: str
    verdict: str = ""
    text: str = ""
    tone: Tone = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A question of the report's readers, and the answer of its data."""

    text: str
    """The numbers, in one sentence or two."""
    question: str = ""
    verdict: str = ""
    """A word or a few that stand alone: same score, 2.0 points worse, cannot tell."""
    tone: Tone = ""
    parts: tuple[Part, ...] = ()
    """A line per task, where there are several."""


def spoken(answer: Answer) -> str:
    """An answer as it is read aloud: the question, its verdict and the numbers, then a line per task."""
    verdict = f"{answer.verdict}." if answer.verdict else ""
    sentence = " ".join(filter(None, (answer.question, verdict, answer.text)))
    return "\n".join((sentence, *part_lines(answer)))


def part_lines(answer: Answer) -> list[str]:
    """A line of text per task: its name, its verdict and its numbers."""
    return [f"{part.name}: {', '.join(filter(None, (part.verdict, part.text)))}" for part in answer.parts]


@dataclass(frozen=True, repr=False)
class Report(Described):
    """A report that was written, and what it answers."""

    path: Path
    """Of report.md, beside which index.html lies."""
    answers: tuple[Answer, ...]

    def facts(self) -> dict[str, str]:
        """Where it lies, and each question with its verdict."""
        return {"path": str(self.path)} | {each.question: each.verdict for each in self.answers if each.question}


def stated(texts: Iterable[str]) -> tuple[Answer, ...]:
    """Answers to what the title asks: sentences without a question of their own."""
    return tuple(Answer(text=text) for text in texts)


@dataclass(frozen=True, kw_only=True)
class Page:
    """The contents of index.html and report.md."""

    title: str
    question: str = ""
    lead: str = ""
    tiles: tuple[Tile, ...] = ()
    tiles_show: str = "score"
    """What the value of a tile is: heads the tiles where they are a table."""
    facts_show: str = "because"
    """What further facts are whose names differ from tile to tile: heads their one column there."""
    answers: tuple[Answer, ...] = ()
    """At most three or four, below the tiles."""
    picture: ChartBlock | None = None
    """The one picture of the first screen."""
    sections: tuple[Section, ...] = ()
    commands: str = ""
    """The commands that make the runs and this report."""
    footer: str = ""


@dataclass(frozen=True)
class Shown:
    """A table as it is read: a heading per column and plain texts."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str


def shown_tiles(page: Page) -> Shown:
    """The tiles of a page as a table, a row each; their facts are one column where their names differ."""
    facts_of_tiles = [dict(tile.lines) for tile in page.tiles]
    names = list(facts_of_tiles[0])
    if any(list(facts) != names for facts in facts_of_tiles):
        names = [page.facts_show]
        facts_of_tiles = [
            {page.facts_show: "; ".join(f"{name} {value}" for name, value in facts.items())} for facts in facts_of_tiles
        ]
    values = [f"{tile.value} ({tile.detail})" if tile.detail else tile.value for tile in page.tiles]
    rows = [
        (tile.title, value, *facts.values())
        for tile, value, facts in zip(page.tiles, values, facts_of_tiles, strict=True)
    ]
    return Shown(("", page.tiles_show, *names), tuple(rows), "")


def columns_of(block: TableBlock) -> Mapping[str, Column]:
    """The columns that a block shows, in order."""
    return block.columns or {str(name): Column(label=str(name).replace("_", " ")) for name in block.table.columns}


def shown(block: TableBlock) -> Shown:
    """A block's table as texts, with its numbers rounded as its columns say."""
    columns = columns_of(block)
    header = [f"{column.label} ({column.unit})" if column.unit else column.label for column in columns.values()]
    texts_of_columns: list[Sequence[str]] = [
        [(p_value if column.is_p else text_of)(value, column.digits) for value in block.table[name]]
        for name, column in columns.items()
    ]
    return Shown(tuple(header), tuple(zip(*texts_of_columns, strict=True)), block.caption)


Rows: TypeAlias = tuple[Sequence[str], list[list[object]]]
"""The header of a table, and its rows."""


def wide_rows(
    table: pd.DataFrame, keys: Sequence[str], column: str, cell: Callable[[Mapping[Any, Any]], object]
) -> Rows:
    """The distinct values of a column, and for each key a row: the key, then the cell of each value, None without."""
    names = list(map(str, table[column].unique()))
    rows: list[list[object]] = []
    for key, key_rows in table.groupby(list(keys), sort=False):
        records = {str(record[column]): record for record in key_rows.to_dict("records")}
        rows.append([*key, *(cell(records[name]) if name in records else None for name in names)])
    return names, rows


NOTHING = "Not applicable: there is nothing to show."


def rows_block(
    header: Sequence[str], rows: Iterable[Sequence[object]], caption: str, hows: Mapping[str, str] | None = None
) -> Block:
    """A table of cells of any kind, two columns of which may have the same heading; a sentence without rows."""
    cells = [list(row) for row in rows]
    if not cells:
        return TextBlock(text=NOTHING)
    names = [f"column_{i}" for i in range(len(header))]
    columns = {
        name: Column(label=label, how=(hows or {}).get(label, "")) for name, label in zip(names, header, strict=True)
    }
    return TableBlock(table=pd.DataFrame(cells, columns=names, dtype=object), caption=caption, columns=columns)


def table_block(table: pd.DataFrame, names: str | Iterable[str], caption: str, **overrides: str | Column) -> Block:
    """Some columns of a table, labelled and explained as the schema has them; a sentence for an empty table.

    ``names``: in order, as one text or as a list; what the table does not have is left out. ``overrides``: columns
    that are shown otherwise here, by another label or by another description altogether.
    """
    if table.empty:
        return TextBlock(text=NOTHING)
    names = names.split() if isinstance(names, str) else names
    columns = {name: heading(name, overrides.get(name)) for name in names if name in table}
    for name in ("note", "reason"):  # only where one of them says something
        if name in columns and not table[name].fillna("").astype(str).str.len().any():
            del columns[name]
    table = table[list(columns)].reset_index(drop=True)
    table = table.assign(verdict=table["verdict"].replace(OPEN_VERDICTS)) if "verdict" in columns else table
    return TableBlock(table=table, caption=caption, columns=columns)


def heading(name: str, override: str | Column | None = None) -> Column:
    """How a column is shown: by ``override`` where a table gives a label or a column of its own, else by the schema."""
    if isinstance(override, Column):
        return override
    column = COLUMNS.get(name)
    if column is None:
        return Column(label=override or name.replace("_", " "))
    unit = "" if column.unit == "1" else column.unit
    return Column(
        label=override or column.label, how=column.meaning, digits=column.digits, unit=unit, is_p=name in P_VALUES
    )


def texts_section(id: str, title: str, paragraphs: Iterable[str]) -> Section:
    """A section of paragraphs: limits, definitions; without any it has no blocks."""
    text = "\n\n".join(paragraphs)
    return Section(id=id, title=title, blocks=(TextBlock(text=text),) if text else ())


def chart_blocks(charts: Charts, name: str, caption: str, alt: str, prefix: str = "") -> tuple[Block, ...]:
    """A chart, if there is one."""
    return (ChartBlock(name=prefix + name, chart=charts[name], caption=caption, alt=alt),) if name in charts else ()


def picture(name: str, chart: Any, caption: str) -> ChartBlock | None:
    """A chart that its caption describes, where there is one."""
    return None if chart is None else ChartBlock(name=name, chart=chart, caption=caption, alt=caption)


def folds(titles: Sequence[str], bodies: Sequence[Sequence[Block]]) -> tuple[Block, ...]:
    """The blocks of each group under its title, the first open; without titles where there is one group only."""
    if len(bodies) == 1:
        return tuple(bodies[0])
    return tuple(
        FoldBlock(title=title, blocks=tuple(blocks), is_open=not i)
        for i, (title, blocks) in enumerate(zip(titles, bodies, strict=True))
    )


def varying(table: pd.DataFrame) -> pd.DataFrame:
    """The table without its numbers of training examples where these are all the same."""
    name = "num_train_examples"
    return table.drop(columns=name) if table[name].nunique(dropna=False) <= 1 else table


def charts_of(page: Page) -> list[ChartBlock]:
    """Every chart of a page, in the order in which it shows them."""
    first = (page.picture,) if page.picture else ()
    return list(charts_in((*first, *(block for section in page.sections for block in section.blocks))))


def charts_in(blocks: Collection[Block]) -> Iterator[ChartBlock]:
    """The charts among blocks, also those under folds."""
    for block in blocks:
        if isinstance(block, ChartBlock):
            yield block
        elif isinstance(block, FoldBlock):
            yield from charts_in(block.blocks)


Case: TypeAlias = tuple[str, str]
"""The verdict on one model and regime, and its numbers in a sentence."""
Answers: TypeAlias = tuple[Answer, ...]
NOT_JUDGED, NOT_DECIDED = "not judged", "not decided"
MOST_CASES = 3
"""Cases whose numbers an answer gives: the tables below have all of them."""


def judged(
    text: str, low: float, high: float, note: str = "", *, below: str = "no", num_seeds: int | None = None
) -> Case:
    """The verdict of an interval on a number above 0, or with ``below="yes"`` other than 0; ``note``: why none."""
    if low == high == 0:
        return "no", text
    if num_seeds == 1 or math.isnan(low) or math.isnan(high):
        return NOT_JUDGED, f"{text} Not judged: {'one seed' if num_seeds == 1 else note}."
    return "yes" if low > 0 else below if high < 0 else NOT_DECIDED, text


def answer(question: str, cases: Iterable[Case], otherwise: str = NOTHING) -> Answer:
    """An answer from the verdicts of several cases, with the numbers of the first; ``otherwise``: without cases."""
    known_cases = list(cases) or [(NOT_JUDGED, otherwise)]
    counts = Counter(verdict for verdict, _ in known_cases)
    verdict = ", ".join(f"{word} ({count})" for word, count in counts.items()) if len(counts) > 1 else known_cases[0][0]
    return Answer(question=question, verdict=verdict, text="\n".join(text for _, text in known_cases[:MOST_CASES]))
