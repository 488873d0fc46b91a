"""What a page holds: plain data that the report fills and render.py turns into HTML. All text is plain text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pandas as pd

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
class FigureBlock:
    """A figure: an SVG file's bytes as matplotlib writes them."""

    name: str
    """Unique on the page; what the files in figures/ are called."""
    svg: bytes
    caption: str
    alt: str
    """What somebody who cannot see the figure should know of it."""


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
class FoldBlock:
    """Blocks under a line that opens and closes them: what only some readers want, or one task among many."""

    title: str
    blocks: "tuple[Block, ...]"
    is_open: bool = False


Block: TypeAlias = TextBlock | NoteBlock | FigureBlock | ChartBlock | TableBlock | FoldBlock


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page with an entry in its contents."""

    id: str
    """Part of the address: letters, digits and hyphens, unique on the page."""
    title: str
    lead: str = ""
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VerdictLine:
    """One claim and what became of it."""

    claim: str
    verdict: str
    """One of toolkit.analysis.comparison.verdicts.VERDICTS."""
    value: str
    """The estimate with its unit, as it is read."""
    interval: str = ""
    detail: str = ""
    """Why this verdict: estimator, seeds, items, null. Shown when the line is opened."""
    group: str = ""
    """What lines belong together: the task, for instance. Lines of one group must follow one another."""
    estimate: float = NAN
    """The same numbers for the small drawing, all in ``unit``; without finite ones there is no drawing."""
    low: float = NAN
    high: float = NAN
    margin: float = NAN
    null: float = 0.0
    """Where the upright line stands: what the claim is held against, 1 for a ratio."""
    unit: str = ""
    """Lines of one unit are drawn to one scale."""


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
class Page:
    """Everything that index.html and report.md say."""

    title: str
    question: str = ""
    lead: str = ""
    tiles: tuple[Tile, ...] = ()
    answers: tuple[str, ...] = ()
    """At most three sentences that answer the question, below the tiles."""
    picture: ChartBlock | None = None
    """The one picture of the first screen."""
    findings: tuple[str, ...] = ()
    verdicts: tuple[VerdictLine, ...] = ()
    verdicts_note: str = ""
    """How many cards are not among these lines, and where they are."""
    sections: tuple[Section, ...] = ()
    commands: str = ""
    """The commands that make the runs and this report."""
    footer: str = ""
