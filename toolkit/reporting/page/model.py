"""What a page holds: plain data that the report fills and render.py turns into HTML. All text is plain text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import pandas as pd

from toolkit.reporting.charts import spec_of

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Column:
    """How one column of a table is shown."""

    label: str
    how: str = ""
    """What the number is and how it was computed: shown on hover, on keyboard focus and on tap."""
    digits: int = 3
    """Significant digits of a number; whole numbers are shown in full, texts as they are."""
    unit: str = ""
    """Stands beside the label."""


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
    """Blocks under a line that opens and closes them: what only some readers want, or one task among many."""

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


def facts_of(tiles: Sequence[Tile]) -> tuple[list[str], list[list[str]]]:
    """Further facts as columns of a table: their names, then those of each tile; one column where the names differ."""
    names = [[name for name, _ in tile.lines] for tile in tiles]
    if all(each == names[0] for each in names):
        return names[0], [[value for _, value in tile.lines] for tile in tiles]
    return ["because"], [["; ".join(f"{name} {value}" for name, value in tile.lines)] for tile in tiles]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A question that the report is read for, and what its data say to it."""

    text: str
    """The numbers, in one sentence or two."""
    question: str = ""
    verdict: str = ""
    """A word or a few: yes, no, undecided."""


def stated(texts: Iterable[str]) -> tuple[Answer, ...]:
    """Answers to what the title asks: sentences without a question of their own."""
    return tuple(Answer(text=text) for text in texts)


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything that index.html and report.md say."""

    title: str
    question: str = ""
    lead: str = ""
    tiles: tuple[Tile, ...] = ()
    tiles_show: str = "score"
    """What the value of a tile is: heads the tiles where they are a table."""
    answers: tuple[Answer, ...] = ()
    """At most three or four, below the tiles."""
    picture: ChartBlock | None = None
    """The one picture of the first screen."""
    sections: tuple[Section, ...] = ()
    commands: str = ""
    """The commands that make the runs and this report."""
    footer: str = ""
