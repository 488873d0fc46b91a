"""Statistics of a position table, each beside the same statistic of four reference tables.

The references have the table's own window and hidden size: the sinusoid, iid Gaussian rows, smooth random curves, and
the table itself with its rows shuffled. Rows before the first position (RoBERTa's padding rows) are left out.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

import numpy as np
import pandas as pd

from toolkit.analysis.blocks import iterate_blocks
from toolkit.analysis.kernels import Refused
from toolkit.analysis.measures import Array
from toolkit.analysis.spectra import effective_rank
from toolkit.analysis.strata import UNKNOWN, rows_by_stratum
from toolkit.progress import counted
from toolkit.questions.positions import resemblance
from toolkit.questions.positions.resemblance import NUM_DRAWS, line_match, orbit_share, smooth_curves
from toolkit.schema import columns_of, with_columns
from toolkit.sinusoid import sinusoidal_table
from toolkit.snapshots.store import Source, trajectory_of

NUM_FOLDS = 5
NUM_PAIRS = 20_000
PENALTIES = np.geomspace(1e-9, 1e5, 29)
"""Ridge penalties to choose from, for standardised columns; plain least squares is degenerate where rows ≈ columns."""


def predict_positions(table: Array, *, seed: int = 0) -> Array:
    """(n,) the position of each row as predicted from rows of the other folds: standardised ridge regression.

    Five folds of positions, shuffled by ``seed``; the penalty is chosen within the training rows by leave-one-out.
    Contiguous folds would ask for extrapolation, which fails even for the sinusoid.
    Refused for fewer than 10 rows.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.model_selection import KFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(table) < 2 * NUM_FOLDS:
        raise Refused(f"decoding needs {2 * NUM_FOLDS} rows; got {len(table)}")
    folds = KFold(NUM_FOLDS, shuffle=True, random_state=seed)
    model = make_pipeline(StandardScaler(), RidgeCV(alphas=PENALTIES))
    return np.asarray(cross_val_predict(model, table, np.arange(len(table), dtype=np.float64), cv=folds))


def decoding_error(table: Array, *, seed: int = 0) -> float:
    """Mean absolute error, in positions, of :func:`predict_positions`; n / 4 where always the middle is predicted."""
    predicted = predict_positions(table, seed=seed)
    return float(np.abs(predicted - np.arange(len(table))).mean())


def order_error(table: Array, *, num_pairs: int = NUM_PAIRS, seed: int = 0) -> float:
    """Error rate of a logistic regression that tells which of two rows comes first; .5 is chance.

    A pair is represented by the difference of its rows, earlier minus later with the sign flipped at random (so that
    both answers are equally frequent and no intercept is needed). Four fifths of the positions, drawn by ``seed``, give
    ``num_pairs`` training pairs drawn with replacement; the test pairs are all pairs among the other positions: no
    position is in both. Refused for fewer than 10 rows.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if len(table) < 2 * NUM_FOLDS:
        raise Refused(f"the order of pairs needs {2 * NUM_FOLDS} rows; got {len(table)}")
    rng = np.random.default_rng([seed, len(table)])
    positions = rng.permutation(len(table))
    num_test = len(table) // NUM_FOLDS
    test, train = positions[:num_test], positions[num_test:]
    first = rng.integers(len(train), size=num_pairs)
    second = (first + rng.integers(1, len(train), size=num_pairs)) % len(train)  # never the row itself
    # Differences have mean 0 by symmetry: scaling only keeps them antisymmetric. A penalty 100 times the default, with
    # which noise converges in a fraction of the steps; the error rates are no worse (measured on the references).
    classifier = LogisticRegression(C=0.01, fit_intercept=False, max_iter=2000)
    model = make_pipeline(StandardScaler(with_mean=False), classifier)
    model.fit(table[train[first]] - table[train[second]], train[first] < train[second])
    left, right = np.triu_indices(num_test, 1)
    return float(np.mean(model.predict(table[test[left]] - table[test[right]]) != (test[left] < test[right])))


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
    records = []
    for lag in range(1, len(gram)):
        diagonal = np.diagonal(gram, lag)
        records.append((lag, diagonal.mean(), *np.quantile(diagonal, (0.05, 0.95))))
    return pd.DataFrame(records, columns=columns_of("cosine_by_lag"))


VERDICTS: Mapping[str, Callable[..., resemblance.Verdict]] = {
    "line_match": resemblance.judge_resemblance,
    "orbit_share": resemblance.judge_waves,
}
"""The statistics whose notes carry a verdict, and who gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionStatistic:
    """One number of a position table."""

    function: Callable[[Array, int], float]
    """(n, p) float64 and a seed to a value; Refused where it would mean nothing for this table."""
    unit: str
    description: str
    """One plain sentence."""


def _cosine_at(lag: int, table: Array, _: int) -> float:
    """Mean cosine of rows ``lag`` apart."""
    if lag >= len(table):
        raise Refused(f"lag {lag} needs more than {len(table)} rows")
    return float(np.diagonal(cosine_gram(table), lag).mean())


def _monotonicity(width: int, table: Array, _: int) -> float:
    return local_monotonicity(table, width)


def _explained(table: Array, _: int) -> float:
    """Share of the power in the 20 first directions of the sinusoid."""
    if table.shape[1] % 2:
        raise Refused("there is no sinusoid of an odd hidden size")
    return resemblance.explained_by(table, sinusoidal_table(*table.shape), 20)


STATISTICS: Mapping[str, PositionStatistic] = {
    **{
        f"cosine_lag_{lag}": PositionStatistic(
            function=partial(_cosine_at, lag), unit="1", description=f"Mean cosine of rows {lag} apart, not centred."
        )
        for lag in (1, 2, 5, 10, 50)
    },
    "translation_invariance": PositionStatistic(
        function=lambda table, _: translation_invariance(table),
        unit="1",
        description="Share of the cosines' variance that the distance of two rows explains; 1 for the sinusoid.",
    ),
    **{
        f"local_monotonicity_{width}": PositionStatistic(
            function=partial(_monotonicity, width),
            unit="1",
            description=f"Share of steps away from a row, up to {width} rows, at which the cosine falls; chance .5.",
        )
        for width in (8, 32)
    },
    "decoding_error": PositionStatistic(
        function=lambda table, seed: decoding_error(table, seed=seed),
        unit="positions",
        description="Mean absolute error of ridge regression of the position, on rows held out; chance n / 4.",
    ),
    "order_error": PositionStatistic(
        function=lambda table, seed: order_error(table, seed=seed),
        unit="1",
        description="Error rate of telling which of two rows comes first, on positions held out; chance .5.",
    ),
    "effective_rank": PositionStatistic(
        function=lambda table, _: effective_rank(table), unit="1", description="Effective rank of the centred table."
    ),
    "explained_by_sinusoid_20": PositionStatistic(
        function=_explained,
        unit="1",
        description="Power in the sinusoid's top 20 directions: high for any smooth curve, so no evidence.",
    ),
    "line_match": PositionStatistic(
        function=lambda table, _: line_match(table).score,
        unit="1",
        description="Match of the spectrum's lines with the sinusoid's waves, over that with other combs; null 0 ± 1.",
    ),
    "orbit_share": PositionStatistic(
        function=lambda table, _: orbit_share(table),
        unit="1",
        description="Share of the power that goes round circles, one plane per frequency; few waves in quadrature: 1.",
    ),
}
"""Every statistic, in the order of every table."""

PARAMETER = "position_embeddings"
Window = tuple[int, int]

REFERENCES = ("sinusoid", "gaussian", "smooth", "shuffled")
"""Reference tables; ``smooth``: squared-exponential Gaussian processes of length 20 rows."""


@with_columns
def measure_positions(
    source: Source,
    epoch: float | None = None,
    window: Window | None = None,
    seed: int = 0,
    *,
    num_draws: int = NUM_DRAWS,
) -> pd.DataFrame:
    """What the position table looks like: its statistics beside those of reference tables.

    Parameters
    ----------
    window
        (start, stop) of the positions; None takes those of :func:`num_described`.
    num_draws
        Number of tables of each control.

    Returns
    -------
    pandas.DataFrame
        One line per statistic: ``value`` is the table's, the references are tables of the same window. Where a value is
        refused it is NaN, and ``reason`` says why. The notes of ``line_match`` (does it carry the sinusoid's waves?)
        and ``orbit_share`` (is it made of waves at all?) are verdicts with their grounds.

    Raises
    ------
    ValueError
        The model has no position table, or no such window.
    """
    snapshot = trajectory_of(source).at_or_last(epoch)
    table = position_table(source, snapshot.epoch, window)
    start, stop = window or (0, num_described(source, snapshot.epoch))
    table = table if window else table[:stop]
    shuffled = table[np.random.default_rng([*b"shuffle", seed]).permutation(len(table))]
    values_by_reference = _reference_values(*table.shape, seed)
    records = []
    for name, statistic in counted(STATISTICS.items(), f"statistics of positions {start} to {stop - 1}"):
        value, reason = _value(statistic, table, seed)
        note = ""
        if name in VERDICTS:
            verdict = VERDICTS[name](table, num_draws=num_draws, seed=seed)
            note = f"{verdict.answer}: {verdict.reason}"
        value_of_shuffled, _ = _value(statistic, shuffled, seed)
        # In the order of REFERENCES, of which the shuffled table is last, and the only one that depends on the model.
        reference_values = [*(values_by_reference[kind][name] for kind in REFERENCES[:-1]), value_of_shuffled]
        key = (float(snapshot.epoch), f"{start}-{stop - 1}")
        records.append((*key, name, value, *reference_values, statistic.unit, len(table), reason, note))
    return pd.DataFrame(records, columns=columns_of("measure_positions"))


def measure_position_windows(
    source: Source, epoch: float | None = None, seed: int = 0, *, num_draws: int = NUM_DRAWS
) -> pd.DataFrame:
    """:func:`measure_positions` of all trained positions and of each of :func:`position_windows`, in one table."""
    windows = position_windows(num_described(source, epoch), num_exposed(source))
    return pd.concat(
        [measure_positions(source, epoch, window, seed, num_draws=num_draws) for window in windows], ignore_index=True
    )


def position_windows(num_positions: int, num_exposed: int | None = None) -> list[Window]:
    """All positions; then those that training exposed and the rest; then 0-127, 128-255, 256-511 and so on, doubling.

    Windows of fewer than three positions are left out; a cut that leaves a single window adds none.
    """
    sets_of_cuts = [[num_exposed or 0], [128 * 2**k for k in range(32)]]
    windows = [(0, num_positions)]
    for cuts in sets_of_cuts:
        edges = [0, *(cut for cut in cuts if 0 < cut < num_positions), num_positions]
        pieces = [(low, high) for low, high in pairwise(edges) if high - low >= 3]
        windows += [piece for piece in pieces if piece not in windows] if len(pieces) > 1 else []
    return windows


LEAST_HIDDEN = 100
"""Columns below which chance is too wide to call a row untrained."""
LEAST_ROWS = 16
"""Rows that a tail must have to be judged, and that must be left without it."""
MAX_DEVIATIONS = 5.0
"""Standard deviations that chance is given: 6 x 10^-7 of Gaussian rows lie beyond."""


def num_described(source: Source, epoch: float | None = None) -> int:
    """Leading rows that statistics are of: without the tail of :func:`num_trained`, but with all that was exposed."""
    return max(num_trained(position_table(source, epoch)), num_exposed(source) or 0)


def num_trained(table: Array) -> int:
    """Leading rows of (positions, hidden) before a tail that looks as random weights left it; all where there is none.

    It is the longest tail of at least 16 rows in which the cosine of neighbours, N(0, 1/hidden) between random
    directions, and each norm, whose spread is 1/√(2 hidden) of itself in Gaussian rows, stay within five standard
    deviations, as do that spread and the mean square of all cosines, 1/hidden. Weight decay, which scales all rows
    alike, changes none of this. None is seen where under 16 rows would be left (a table may be random on purpose) or
    in under 100 columns. Ours.
    """
    num_rows, hidden = map(int, table.shape)
    norms = np.linalg.norm(table, axis=1)
    if hidden < LEAST_HIDDEN or num_rows < 2 * LEAST_ROWS or not norms[-LEAST_ROWS:].all():
        return num_rows
    typical_norm = float(np.median(norms[-LEAST_ROWS:]))
    # What chance allows in rows of random directions; the typical norm is itself the median of a few.
    norm_bound = MAX_DEVIATIONS / math.sqrt(2 * hidden) * (1 + 1 / math.sqrt(LEAST_ROWS))
    cosine_bound = MAX_DEVIATIONS / math.sqrt(hidden)
    has_usual_norm = np.abs(norms / typical_norm - 1) <= norm_bound
    directions = table / np.where(norms, norms, 1)[:, None]
    neighbour_cosines = (directions[:-1] * directions[1:]).sum(axis=1)
    is_unrelated = np.r_[True, np.abs(neighbour_cosines) <= cosine_bound]
    unusual_rows = np.flatnonzero(~(has_usual_norm & is_unrelated))
    start = int(unusual_rows[-1]) + 1 if len(unusual_rows) else 0
    num_tail = num_rows - start
    if start < LEAST_ROWS or num_tail < LEAST_ROWS:
        return num_rows
    tail = directions[start:]
    num_pairs = num_tail * (num_tail - 1) / 2
    # Of all cosines, without a row's with itself.
    mean_square = (float(((tail.T @ tail) ** 2).sum()) - num_tail) / (2 * num_pairs)
    spread = float(norms[start:].std() / typical_norm) * math.sqrt(2 * hidden)
    has_usual_spread = spread <= 1 + MAX_DEVIATIONS / math.sqrt(2 * num_tail)
    has_usual_cosines = abs(mean_square * hidden - 1) <= MAX_DEVIATIONS * math.sqrt(2 / num_pairs)
    return start if has_usual_spread and has_usual_cosines else num_rows


def num_exposed(source: Source) -> int | None:
    """Positions up to the last that training exposed, by its log or by two checkpoints; None: unknown, all or none."""
    trajectory = trajectory_of(source)
    rows = rows_by_stratum(trajectory, PARAMETER)
    if UNKNOWN in rows:
        return None
    beyond = rows.get("positions beyond longest", np.empty(0, np.intp))
    return (int(beyond[0]) - trajectory.position_offset if len(beyond) else 0) or None


def position_table(source: Source, epoch: float | None = None, window: Window | None = None) -> Array:
    """(positions, hidden) float64 rows of the position table, from the first position on; ValueError without one."""
    trajectory = trajectory_of(source)
    snapshot = trajectory.at_or_last(epoch)
    if PARAMETER not in snapshot.tensors:
        raise ValueError(f"this model has no {PARAMETER}: there is nothing to measure")
    blocks = [rows for _, (rows,) in iterate_blocks([snapshot], PARAMETER)]
    table = np.concatenate(blocks)[trajectory.position_offset :]
    start, stop = window or (0, len(table))
    if not 0 <= start < stop <= len(table):
        raise ValueError(f"window {start} to {stop} does not lie within the {len(table)} positions of this model")
    return table[start:stop]


def _value(statistic: PositionStatistic, table: Array, seed: int) -> tuple[float, str]:
    """A statistic's value and no reason, or NaN and why it was refused."""
    try:
        return statistic.function(table, seed), ""
    except Refused as refusal:
        return math.nan, str(refusal)


@lru_cache(maxsize=16)
def _reference_values(num_rows: int, hidden: int, seed: int) -> dict[str, dict[str, float]]:
    """Every statistic of the references that depend on shape and seed only."""
    rng = np.random.default_rng([*b"positions", seed])
    tables: dict[str, Array] = {} if hidden % 2 else {"sinusoid": sinusoidal_table(num_rows, hidden)}
    tables["gaussian"] = rng.normal(size=(num_rows, hidden))
    tables["smooth"] = smooth_curves(num_rows, hidden, rng, "squared_exponential", 20.0)
    return {
        kind: {
            name: _value(statistic, tables[kind], seed)[0] if kind in tables else math.nan
            for name, statistic in STATISTICS.items()
        }
        for kind in REFERENCES[:3]
    }
