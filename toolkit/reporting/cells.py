"""Values and names in the words that every text of a report uses: numbers, intervals, cells of a table."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

NOT_APPLICABLE = "not applicable"
UNDEFINED = "undefined"
ABSENT = "—"
"""What a table of a paper shows for both: it has no room for words."""

_NUMERIC = re.compile(rf"((< )?[+-]?\d[\d,.]*(e[+-]\d+)?( .*)?|{NOT_APPLICABLE}|{UNDEFINED}( .*)?|{ABSENT})")


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
    is_p: bool = False
    """Whether its numbers are p or q values, shown by :func:`p_value`."""


def number(value: object, digits: int = 3) -> str:
    """A number with ``digits`` significant digits; whole ones in full, NaN as undefined, None as not applicable."""
    if value is None:
        return NOT_APPLICABLE
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    value = float(value)  # type: ignore[arg-type]
    if math.isnan(value):
        return UNDEFINED
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    magnitude = math.floor(math.log10(abs(value)))
    if -4 <= magnitude < digits:
        return f"{value:.{max(digits - 1 - magnitude, 0)}f}"
    return f"{value:,.0f}" if digits <= magnitude < 7 else f"{value:.{digits - 1}e}"


def mean_and_sd(values: Iterable[float]) -> str:
    """Mean ± sample standard deviation over seeds; the value alone for one seed; undefined ones are counted."""
    values_of_seeds = np.array(list(values), dtype=np.float64)
    defined = values_of_seeds[~np.isnan(values_of_seeds)]
    num_seeds, num_undefined = len(values_of_seeds), len(values_of_seeds) - len(defined)
    if not num_seeds:
        return NOT_APPLICABLE
    if not len(defined):
        return f"{UNDEFINED} ({num_seeds} of {num_seeds})" if num_seeds > 1 else UNDEFINED
    mean = defined.mean()
    text = number(mean)
    if len(defined) > 1 and defined.any():  # 0 in every seed is plain 0
        sd = defined.std(ddof=1)
        text += f" ± {number(sd if sd > 1e-12 * abs(mean) else 0.0, 2)}"  # less is rounding
    return text + (f" ({num_undefined} undefined)" if num_undefined else "")


def span(counts: Iterable[float]) -> str:
    """A count, or the least and the greatest of several; NaN are left out, and of none it is "not known"."""
    known = [count for count in counts if count == count]
    if not known:
        return "not known"
    least, greatest = int(min(known)), int(max(known))
    return f"{least:,}" if least == greatest else f"{least:,} to {greatest:,}"


POSITIONS = {
    "positions 1-127": "positions 1 to 127, as far as texts reach",
    "positions 128 to longest": "positions 128 to the end of the longest text",
    "positions beyond longest": "positions beyond the longest text",
}
"""Strata whose names leave open which texts they go by."""


def stratum_text(stratum: str) -> str:
    """A stratum as one reads it aloud: ``seen in 2 to 9 steps``, ``positions 1 to 127, as far as texts reach``."""
    if stratum in POSITIONS:
        return POSITIONS[stratum]
    return re.sub(r"(\d)-(\d)", r"\1 to \2", re.sub(r">=(\d+)", r"\1 or more", stratum))


def p_value(value: object, digits: int = 3) -> str:
    """A p or q value as a text; below .001 its digits mean nothing and are not shown."""
    return "< 0.001" if isinstance(value, float) and value < 0.001 else text_of(value, digits)


def listing(names: Sequence[str]) -> str:
    """Names as one reads them aloud: a, b and c."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def is_number(text: str) -> bool:
    """Whether a cell stands to the right: a number, an interval, or the words for one that there is not."""
    return bool(_NUMERIC.fullmatch(text))


def text_of(value: object, digits: int = 3) -> str:
    """One value: texts as they are, numbers by :func:`number`, pandas' NA as undefined."""
    if isinstance(value, str):
        return value
    return UNDEFINED if value is pd.NA or value is pd.NaT else number(value, digits)


def interval(low: float, high: float) -> str:
    """An interval in points with fixed decimals, ``-0.31 to +1.20``; a missing one is undefined."""
    return UNDEFINED if math.isnan(low) or math.isnan(high) else f"{low:+.2f} to {high:+.2f}"


def points(value: float) -> str:
    """A signed difference in points with as many decimals as its interval has."""
    return UNDEFINED if math.isnan(value) else f"{value:+.2f}"


def mean_text(mean: float, sd: float) -> str:
    """Mean ± standard deviation; without the latter for one seed."""
    return number(mean) + (f" ± {number(sd, 2)}" if sd == sd else "")


def estimate_text(value: float, low: float, high: float, digits: int = 3, *, is_signed: bool = False) -> str:
    """``0.267 (0.226 to 0.305)`` with fixed decimals; the value alone where there is no interval."""
    text = _decimal(value, digits, is_signed)
    if math.isnan(low) or math.isnan(high):
        return text
    return f"{text} ({_decimal(low, digits, is_signed)} to {_decimal(high, digits, is_signed)})"


def estimate_of(record: "Mapping[Any, Any] | pd.Series", digits: int = 3, *, is_signed: bool = False) -> str:
    """The value of a record with its interval, as :func:`estimate_text` writes them."""
    return estimate_text(record["value"], record["low"], record["high"], digits, is_signed=is_signed)


def _decimal(value: float, digits: int, is_signed: bool) -> str:
    """A number with fixed decimals, signed if asked for; an undefined one says so."""
    if math.isnan(value):
        return UNDEFINED
    rounded = round(value, digits) + 0.0  # no -0.000
    return f"{rounded:+.{digits}f}" if is_signed and value != 0 else f"{rounded:.{digits}f}"


def percent_text(value: float, low: float, high: float) -> str:
    """A share as ``1.93 % (1.90 to 1.96 %)``; the value alone where there is no interval."""
    if math.isnan(value):
        return UNDEFINED
    text = f"{number(100 * value)} %"
    return text if math.isnan(low) else f"{text} ({number(100 * low)} to {number(100 * high)} %)"


_REGIMES = {
    r"^none \(full fine-tuning\)": "full fine-tuning",
    r"^backbone \(feature extraction\)": "feature extraction",
    r"^embeddings \(frozen\)": "embeddings frozen",
}


def spoken(table: pd.DataFrame, columns: Sequence[str] = ("condition",)) -> pd.DataFrame:
    """The same table with the regimes in those columns by the names that papers give them; other labels stay."""
    present = [name for name in columns if name in table]
    return table.assign(**{name: table[name].replace(_REGIMES, regex=True) for name in present}) if present else table
