"""A table and how its columns are shown in, the texts of its cells out: the same in Markdown, LaTeX and HTML."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from toolkit.reporting.markdown import NOT_APPLICABLE, UNDEFINED, number
from toolkit.reporting.page.model import Column, TableBlock

_NUMERIC = re.compile(rf"([+-]?\d[\d,.]*(e[+-]\d+)?( .*)?|{NOT_APPLICABLE}|{UNDEFINED}( .*)?)")


@dataclass(frozen=True)
class Shown:
    """A table as it is read: a heading per column and plain texts."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str


def is_number(text: str) -> bool:
    """Whether a cell stands to the right: a number, an interval, or the words for one that there is not."""
    return bool(_NUMERIC.fullmatch(text))


def columns_of(block: TableBlock) -> Mapping[str, Column]:
    """The columns that a block shows, in order."""
    return block.columns or {str(name): Column(label=str(name).replace("_", " ")) for name in block.table.columns}


def shown(block: TableBlock) -> Shown:
    """Every line of a block's table, with its numbers rounded as its columns say."""
    columns = columns_of(block)
    header = [f"{column.label} ({column.unit})" if column.unit else column.label for column in columns.values()]
    parts: list[Sequence[str]] = [
        [text_of(value, column.digits) for value in block.table[name]] for name, column in columns.items()
    ]
    return Shown(tuple(header), tuple(zip(*parts, strict=True)), block.caption)


def text_of(value: object, digits: int = 3) -> str:
    """One value: texts as they are, numbers by :func:`toolkit.reporting.markdown.number`, pandas' NA as undefined."""
    if isinstance(value, str):
        return value
    if value is pd.NA or value is pd.NaT:
        return UNDEFINED
    return number(value, digits)


def interval(low: float, high: float, digits: int = 2) -> str:
    """An interval in points with fixed decimals, ``-0.31 to +1.20``; a missing one is undefined."""
    if math.isnan(low) or math.isnan(high):
        return UNDEFINED
    return f"{low:+.{digits}f} to {high:+.{digits}f}"


def points(value: float, digits: int = 2) -> str:
    """A signed difference in points with as many decimals as its interval has."""
    return UNDEFINED if math.isnan(value) else f"{value:+.{digits}f}"


def signed(value: float) -> str:
    """A difference in points as a sentence says it: one decimal, and two where one would hide that it is not 0."""
    if math.isnan(value):
        return UNDEFINED
    digits = 1 if abs(value) >= 0.05 else 2
    text = f"{value:+.{digits}f}"
    return text if text.strip("+-0.") else "0.0"


def mean_text(mean: float, sd: float) -> str:
    """Mean ± standard deviation; without the latter for one seed."""
    return number(mean) + (f" ± {number(sd, 2)}" if sd == sd else "")


def estimate_text(value: float, low: float, high: float, digits: int = 3, *, is_signed: bool = False) -> str:
    """``0.267 (0.226 to 0.305)`` with fixed decimals; the value alone where there is no interval."""
    shown = [_decimal(number, digits, is_signed) for number in (value, low, high)]
    return shown[0] if math.isnan(low) or math.isnan(high) else f"{shown[0]} ({shown[1]} to {shown[2]})"


def _decimal(value: float, digits: int, is_signed: bool) -> str:
    if math.isnan(value):
        return UNDEFINED
    rounded = round(value, digits) + 0.0  # no -0.000
    return f"{rounded:+.{digits}f}" if is_signed and value != 0 else f"{rounded:.{digits}f}"


def percent_text(value: float, low: float, high: float) -> str:
    """A share as ``1.93 % (1.90 to 1.96 %)``; the value alone where there is no interval."""
    shown = [number(100 * each) for each in (value, low, high)]
    if math.isnan(value):
        return UNDEFINED
    return f"{shown[0]} %" if math.isnan(low) else f"{shown[0]} % ({shown[1]} to {shown[2]} %)"


_REGIMES = {
    r"^none \(full fine-tuning\)": "full fine-tuning",
    r"^backbone \(feature extraction\)": "feature extraction",
    r"^embeddings \(frozen\)": "embeddings frozen",
}


def spoken(table: pd.DataFrame, columns: Sequence[str] = ("arm", "condition")) -> pd.DataFrame:
    """The same table with the regimes in those columns by the names that papers give them; other labels stay."""
    own = [name for name in columns if name in table]
    return table.assign(**{name: table[name].replace(_REGIMES, regex=True) for name in own}) if own else table
