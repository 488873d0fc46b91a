"""A position table in, how it repeats itself along the positions out: Gram, cosine by lag, norms and steps.

Tables are (n, p) float64. Translation invariance and local monotonicity are defined by this project; both depend on the
number of rows, so only equal windows are compared.
"""

import numpy as np
import pandas as pd

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Refused
from toolkit.schema import columns_of, with_columns

OUTLIER_SCORE = 6.0
"""Robust standard deviations from which a row stands out: 4 x 10^-9 of all rows if they were Gaussian."""

NEIGHBOURS = 31
"""Rows of the running median that a row is held against: a slow trend along the positions is no outlier."""


def cosine_gram(table: Array) -> Array:
    """(n, n) cosines between all rows, not centred; Refused where a row is 0 and has no direction."""
    lengths = np.linalg.norm(table, axis=1)
    if not lengths.all():
        zeros = np.flatnonzero(lengths == 0)
        raise Refused(f"row {zeros[0]} is 0 and has no cosine ({len(zeros)} such rows): choose a window without it")
    directions = table / lengths[:, None]
    return np.asarray(directions @ directions.T)


def translation_invariance(table: Array) -> float:
    """1 - variance within the diagonals / variance of all cosines, over the full Gram without its main diagonal.

    1: the cosine of two rows depends on their distance only. About (diagonals / pairs) for unrelated rows. With the
    main diagonal, which is 1 for any table, unrelated rows would score high. Refused for fewer than 3 rows.
    """
    if len(table) < 3:
        raise Refused(f"translation invariance needs 3 rows; got {len(table)}")
    gram = cosine_gram(table)
    # The Gram is symmetric: the upper half holds every diagonal once, with the same share of the variance.
    diagonals = [np.diagonal(gram, lag) for lag in range(1, len(gram))]
    pairs = np.concatenate(diagonals)
    total = float(np.square(pairs - pairs.mean()).sum())
    within = sum(float(np.square(diagonal - diagonal.mean()).sum()) for diagonal in diagonals)
    return 1 - within / total if total > len(pairs) * 1e-24 else float("nan")


def local_monotonicity(table: Array, width: int) -> float:
    """Share of steps away from a row, at lags 1 to ``width`` on both sides, at which the cosine falls.

    1: the nearer, the more alike, within ``width`` rows; .5 for unrelated rows. NaN where all cosines are equal, as
    those of equal rows: none is nearer than another. Refused unless 2 <= width < n.
    """
    if not 2 <= width < len(table):
        raise Refused(f"the width must lie between 2 and {len(table) - 1} for {len(table)} rows; got {width}")
    gram = cosine_gram(table)
    if np.ptp(gram[np.triu_indices(len(gram), 1)]) <= 1e-12:  # rounding, as in translation_invariance
        return float("nan")
    falls = [np.diagonal(gram, lag)[: len(gram) - lag - 1] > np.diagonal(gram, lag + 1) for lag in range(1, width)]
    # Seen from the later row of a pair, the other side: row i against i - lag and i - lag - 1.
    falls += [np.diagonal(gram, lag)[1:] > np.diagonal(gram, lag + 1) for lag in range(1, width)]
    return float(np.concatenate(falls).mean())


@with_columns
def cosine_by_lag(table: Array) -> pd.DataFrame:
    """Mean cosine of two rows by their distance; ``low`` and ``high``: 5 and 95 % quantile over the pairs."""
    gram = cosine_gram(table)
    lines = []
    for lag in range(1, len(gram)):
        diagonal = np.diagonal(gram, lag)
        lines.append((lag, diagonal.mean(), *np.quantile(diagonal, (0.05, 0.95)), len(diagonal)))
    return pd.DataFrame(lines, columns=columns_of("cosine_by_lag"))


def norms_and_steps(table: Array) -> tuple[Array, Array]:
    """(n,) norm of every row and (n - 1,) ‖P_{i+1} - P_i‖ from every row to the next, in weight units."""
    return np.linalg.norm(table, axis=1), np.linalg.norm(np.diff(table, axis=0), axis=1)


@with_columns
def standing_out(table: Array, *, least: float = OUTLIER_SCORE) -> pd.DataFrame:
    """Rows whose norm, and steps whose length, lies far from that of their neighbours.

    ``row`` is a step's first row. A robust standard deviation is 1.4826 times the median absolute deviation of all from
    the running median of NEIGHBOURS rows; rows beyond ``least`` of them have a line. The rule is ours; it knows no row
    by number.
    """
    parts = []
    for measure, values in zip(("norm", "step"), norms_and_steps(table), strict=True):
        neighbours = running_median(values)
        deviations = values - neighbours
        # Below a billionth of a typical value deviations are rounding, as between the sinusoid's equal steps.
        spread = max(1.4826 * float(np.median(np.abs(deviations))), 1e-9 * float(np.median(values)))
        scores = deviations / spread if spread > 0 else np.zeros(len(values))
        rows = np.flatnonzero(np.abs(scores) > least)
        columns = {"row": rows, "value": values[rows], "neighbours": neighbours[rows], "deviations": scores[rows]}
        parts.append(pd.DataFrame({"measure": measure, **columns}))
    return pd.concat(parts, ignore_index=True)


def running_median(values: Array, width: int = NEIGHBOURS) -> Array:
    """(n,) median of the ``width`` nearest values, of which a value is one; at the ends the window stays whole."""
    width = min(width, len(values))
    starts = np.clip(np.arange(len(values)) - width // 2, 0, len(values) - width)
    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    return np.asarray(np.median(windows, axis=1)[starts])
