"""Lines of one arm's models, each with its values per block or text, in; their mean with its interval out.

One definition for every number on the page: the values are a table of seeds x units, and its mean has the interval of
:func:`toolkit.analysis.comparison.intervals.two_way_interval`, over new seeds and new units; of one model over new
units only. A difference is taken between the same units first: it is paired.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.comparison.intervals import Interval, is_constant, seeds_interval, t_quantile, two_way_interval

Array = NDArray[np.float64]
LEVEL = 0.95
VALUES = {
    "omega_squared": "unit_values",
    "eta_squared": "unit_values",
    "value": "unit_values",
    "bits": "bit_values",
    "selective_bits": "selective_values",
    "beyond_word_bits": "beyond_word_values",
}
"""Column to the one with its values per block or text."""
SHARES = ("predictions", "score")
"""Quantities whose units are right or wrong, for which equal values have an exact bound."""
NO_UNITS = "no interval: no values per block or text"
EQUAL = "the same in every block or text and seed: no spread to make an interval from"


def estimate(lines: pd.DataFrame, column: str, against: pd.DataFrame | None = None) -> Interval:
    """Mean of ``column`` over an arm's models, or of its difference from ``against``, with its 95 % interval.

    ``lines``: one line per model, for one layer, factor or quantity; ``against``: as many lines, or one for all.
    Without values per unit the interval is over seeds only; the spread of the control draws is added to that of
    ``selective_bits``. NaN with a note where there is none.
    """
    table, other = units_of(lines, column), None if against is None else units_of(against, column)
    value = float(lines[column].mean()) - (0.0 if against is None else float(against[column].mean()))
    if table is None or (against is not None and (other is None or other.shape[1] != table.shape[1])):
        interval = seeds_interval(lines[column]) if against is None and len(lines) > 1 else None
        return interval or Interval(value, np.nan, np.nan, np.nan, np.nan, LEVEL, NO_UNITS)
    table = table if other is None else table - other
    is_share = "quantity" in lines and lines["quantity"].iloc[0] in SHARES
    if is_constant(table) and not is_share:
        return Interval(float(table[0, 0]), np.nan, np.nan, np.nan, np.nan, LEVEL, EQUAL)
    interval = two_way_interval(table, LEVEL)
    return _with_draws(interval, lines["control_draws"]) if column == "selective_bits" else interval


def units_of(lines: pd.DataFrame, column: str) -> Array | None:
    """(models, units) values of a column; None where a model has none."""
    name = VALUES.get(column)
    values = [] if name not in lines else list(lines[name])
    lengths = {len(each) if isinstance(each, tuple) else 0 for each in values}
    return np.array(values, np.float64) if len(lengths) == 1 and lengths != {0} else None


def summary(lines: pd.DataFrame, column: str) -> dict[str, float]:
    """``mean``, ``low`` and ``high`` of :func:`estimate`."""
    interval = estimate(lines, column)
    return {"mean": interval.estimate, "low": interval.low, "high": interval.high}


def record(interval: Interval, lines: pd.DataFrame, column: str) -> dict[str, object]:
    """An interval as a line of a table, with the numbers of models and units."""
    units = units_of(lines, column)
    return {
        "mean": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "df": interval.df,
        "num_models": len(lines),
        "num_units": None if units is None else units.shape[1],
        "note": interval.note,
    }


def _with_draws(interval: Interval, draws: pd.Series) -> Interval:
    """The interval with the variance of a mean over control draws added, df by Satterthwaite's formula; ours."""
    of_draws = np.array(list(draws), np.float64).mean(axis=0)
    if len(of_draws) < 2:
        return interval
    added = float(of_draws.var(ddof=1)) / len(of_draws)
    total = interval.variance + added
    df = total**2 / (interval.variance**2 / interval.df + added**2 / (len(of_draws) - 1))
    half = t_quantile((1 + LEVEL) / 2, df) * total**0.5
    low, high = interval.estimate - half, interval.estimate + half
    return replace(interval, low=low, high=high, df=df, variance=total)
