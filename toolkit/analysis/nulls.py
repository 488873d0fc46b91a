"""The sign-noise null: how far rows drift when the signs of their gradients are random.

The null keeps of each row what the run recorded - the steps that exposed it, the size of its gradient at each of them,
the learning rates, clipping and decay - and tosses a coin for the sign of every coordinate at every step. A row that
drifted no farther than that need not have learnt anything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.adam import AdamSteps, Ints, RowSteps, gradient_weights, replay_decay, resolve_log, row_steps
from toolkit.analysis.measures import Array, lengths, norm
from toolkit.analysis.strata import count_rows, describe_rows, rows_by_stratum
from toolkit.naming import at_least
from toolkit.schema import with_columns
from toolkit.snapshots.logs import OptimizerLog
from toolkit.snapshots.snapshot import Trajectory
from toolkit.snapshots.store import Source, trajectory_of

CHUNK_VALUES = 2**17
"""Coordinates times steps simulated at a time: 1 MiB an array, so that the chain of them stays near the cache."""


@dataclass(frozen=True, slots=True)
class DirectionNull:
    """The drift of rows on random directions; arrays (rows,), weight units."""

    mean: Array
    deviation: Array
    """Of one row's drift, with the uncertainty of ``mean`` from the simulation in it."""


def random_directions(
    steps: AdamSteps,
    history: RowSteps,
    decay: Array,
    rows: NDArray[np.int64],
    *,
    num_coordinates: int,
    seed: int,
) -> DirectionNull:
    """Drift of (n,) rows with (n, hidden) replayed ``decay`` and gradients of recorded norm in a random direction.

    Each coordinate's gradient is Gaussian with the recorded norm as its root mean square over the row, anew at each
    exposure, so coordinates are independent copies and ``num_coordinates`` of them, drawn per row from its number and
    ``seed``, give the mean m₂ and variance of x², the squared movement. With decay d and p coordinates ‖d + x‖² has
    mean ‖d‖² + p·m₂ and variance p·var(x²) + 4‖d‖²m₂, and ‖d + x‖ follows to second order (delta method; ours).
    Rows of no exposure have their decay and no deviation.
    """
    hidden = decay.shape[1]
    fixed = np.einsum("ij,ij->i", decay, decay)
    mean, deviation = np.sqrt(fixed), np.zeros(len(history))
    for i in np.flatnonzero(history.counts > 0):
        row_history = history.take(np.array([i]))
        movements = _movement_sizes(steps, row_history, hidden, num_coordinates, [*b"directions", seed, int(rows[i])])
        second, fourth = np.mean(movements**2), np.mean(movements**4)
        square = fixed[i] + hidden * second
        variance = hidden * (fourth - second**2) + 4 * fixed[i] * second
        of_simulation = hidden**2 * (fourth - second**2) / num_coordinates
        if np.isnan(square):  # gradients of unknown size, under SGD
            mean[i] = deviation[i] = np.nan
        elif square > 0:
            mean[i] = np.sqrt(square) * (1 - variance / (8 * square**2))
            deviation[i] = np.sqrt((variance + of_simulation) / (4 * square))
    return DirectionNull(mean, deviation)


def _movement_sizes(steps: AdamSteps, history: RowSteps, hidden: int, num_coordinates: int, seed: list[int]) -> Array:
    """(coordinates,) how far gradients move simulated coordinates of one row, without sign.

    At each exposure of the row a coordinate's gradient is Gaussian, its standard deviation the recorded norm, clipped,
    over √hidden.
    """
    rng = np.random.default_rng(seed)
    deviations = steps.sizes(history, hidden)[0, history.steps]
    first_step = int(history.steps[0])  # nothing moves before: leaving those steps out saves a third of the work
    later_steps = steps.since(first_step)
    exposed = history.steps - first_step
    chunk_size = max(1, CHUNK_VALUES // later_steps.num_steps)
    chunks = []
    for num_done in range(0, num_coordinates, chunk_size):
        gradients = rng.standard_normal((min(chunk_size, num_coordinates - num_done), len(exposed))) * deviations
        sizes = np.zeros((len(gradients), later_steps.num_steps))
        # How far a gradient moves depends on sizes alone (second moments square them); its sign gives the direction.
        sizes[:, exposed] = np.abs(gradients)
        chunks.append(np.copysign(gradient_weights(later_steps, sizes)[:, exposed], gradients).sum(axis=1))
    return np.asarray(np.abs(np.concatenate(chunks)))


SAMPLED_ROWS = 100
"""Rows drawn from each stratum where the caller names none."""
GROUP_ROWS, GROUP_VALUES, CHUNK_STEPS = 1_024, 2**21, 4_096
"""Rows, rows times steps, and exposures handled at a time: neither a large table nor a long run fills the memory."""
SMALLEST_VARIATION = 0.01
"""A z-score is NaN where the null's standard deviation is below this share of its mean: at one exposure all random
signs give one drift, and z says nothing."""


@with_columns
def sign_noise(
    source: Source,
    parameter: str,
    epoch: float | None = None,
    rows: Sequence[int] | Ints | None = None,
    *,
    log: OptimizerLog | None = None,
    num_replicates: int = 500,
    num_coordinates: int = 512,
    seed: int = 0,
) -> pd.DataFrame:
    """The drift of rows beside that of replays in which every gradient has random signs.

    Parameters
    ----------
    rows
        Indices of rows; None draws at most 100 from each stratum.
    num_replicates
        Number of replays.
    num_coordinates
        Number of simulated coordinates behind the null of the directions (the columns ``direction_...``); 0 leaves it
        NaN.

    Returns
    -------
    pandas.DataFrame
        One line per row; its numbers do not depend on which others are asked for. ``z`` is NaN where null_sd < 0.01
        null. ``has_norms`` is False where norms are missing: then every gradient has the same size, far above eps;
        under SGD, whose steps are as large as its gradients, the null is then NaN. An unexposed row has the replayed
        decay as its null, without spread.

    Raises
    ------
    ValueError
        The parameter was frozen, exposure or optimizer log are missing, or a learning rate is NaN.

    Notes
    -----
    Each recorded norm, times the clipping factor, is spread equally over the coordinates, each coordinate of each step
    gets a sign of its own, and the recursion of AdamW, or of SGD without momentum, follows in closed form
    (toolkit.analysis.adam). Tests hold it to torch.optim.AdamW within fp32 rounding, which moves a weight by at most
    1.5 units in its last place per step, and SGD's to its expectation, E‖Δ‖² = Σ(lr_t·‖g_t‖)² without decay. Decay is
    the replayed one, to the bit.

    **Of rows exposed in few steps, claim what holds against both nulls**: their drift depends on how gradient sizes
    vary, and one null fixes them where the other lets them vary.
    """
    trajectory, log = trajectory_of(source), resolve_log(source, log)
    at_least("num_replicates", num_replicates, 2)  # a null of one value has no spread; its quantiles want hundreds
    at_least("num_coordinates", num_coordinates, 0)
    count_rows(trajectory, parameter)  # a name the model lacks is refused before anything else
    first, last = trajectory.at(0), trajectory.at_or_last(epoch)
    steps = AdamSteps.of(log, parameter, last.step)
    chosen = _choose(trajectory, parameter, rows, seed)
    history = row_steps(trajectory, parameter, last.step).take(chosen)
    before, after = (np.atleast_2d(np.asarray(snapshot.tensors[parameter]))[chosen] for snapshot in (first, last))
    drift = norm(before.astype(np.float64), after.astype(np.float64))
    decay = np.subtract(replay_decay(before, log, parameter, last.step), before, dtype=np.float64)
    null = np.empty((len(chosen), num_replicates))
    for members in _groups(history):
        group = history.take(members)
        weights = group.at_exposures(gradient_weights(steps, steps.sizes(group, before.shape[1])))
        null[members] = _simulate(weights, decay[members], num_replicates, seed)
    table = _table(trajectory, parameter, chosen, history, drift, null)
    if num_coordinates == 0:
        return table.assign(direction_mean=np.nan, direction_sd=np.nan, direction_ratio=np.nan)
    directions = random_directions(steps, history, decay, chosen, num_coordinates=num_coordinates, seed=seed)
    ratio = drift / np.where(directions.mean > 0, directions.mean, np.nan)
    return table.assign(direction_mean=directions.mean, direction_sd=directions.deviation, direction_ratio=ratio)


def is_beyond_both(rows: pd.DataFrame) -> pd.Series:
    """Which rows of a table of :func:`sign_noise` drifted further than both nulls explain: 97.5 % of random signs, and
    mean + 1.96 SD of random directions."""
    further = rows["drift"] > rows["direction_mean"] + 1.96 * rows["direction_sd"]
    return further & (rows["drift"] > rows["null_high"])


def expected_squares(steps: AdamSteps, history: RowSteps, hidden: int) -> Array:
    """(n,) E‖movement by Adam‖² of each row under sign noise, exactly: hidden·Σ_s weight_s², no replicate needed."""
    squares = np.zeros(len(history))
    for members in _groups(history):
        group = history.take(members)
        weights = gradient_weights(steps, steps.sizes(group, hidden))
        squares[members] = hidden * np.square(group.at_exposures(weights)).sum(axis=1, dtype=np.float64)
    return squares


def _groups(history: RowSteps) -> Iterator[NDArray[np.intp]]:
    """Indices of rows with about as many exposures (the most at most twice the fewest), in pieces of bounded size."""
    octaves = np.ceil(np.log2(np.maximum(history.counts, 0.5)))
    max_rows = int(np.clip(GROUP_VALUES // max(history.num_steps, 1), 1, GROUP_ROWS))
    for octave in np.unique(octaves):
        members = np.flatnonzero(octaves == octave)
        yield from (members[start : start + max_rows] for start in range(0, len(members), max_rows))


def _simulate(weights: NDArray[np.float32], decay: Array, num_replicates: int, seed: int) -> Array:
    """(n, replicates) ‖decay + Adam's movement‖ on random signs; weights (n, exposures), decay (n, hidden)."""
    null = np.empty((len(weights), num_replicates))
    for replicate in range(num_replicates):
        movement = decay.copy()
        rng = np.random.default_rng([*b"signs", seed, replicate])
        for start in range(0, weights.shape[1], CHUNK_STEPS):
            chunk = weights[:, start : start + CHUNK_STEPS]
            movement -= chunk @ _signs(rng, chunk.shape[1], decay.shape[1])
        null[:, replicate] = lengths(movement)
    return null


def _signs(rng: np.random.Generator, num_steps: int, hidden: int) -> NDArray[np.float32]:
    """(steps, hidden) of -1 and 1; the first steps are the same however many are drawn."""
    random_words = rng.integers(0, 2**64, size=(num_steps, -(-hidden // 64)), dtype=np.uint64)
    return np.unpackbits(random_words.view(np.uint8), axis=1)[:, :hidden].astype(np.float32) * 2 - 1


def _choose(trajectory: Trajectory, parameter: str, rows: Sequence[int] | Ints | None, seed: int) -> Ints:
    """The rows asked for, checked; by default at most SAMPLED_ROWS of each stratum, ascending."""
    num_rows = count_rows(trajectory, parameter)
    if rows is not None:
        if not np.size(rows):
            raise ValueError("no rows were given: pass row numbers, or leave rows out for some of each stratum")
        if not np.issubdtype(np.asarray(rows).dtype, np.integer):
            raise ValueError("rows are row numbers: take them from the column row of toolkit.measure_rows")
        chosen = np.asarray(rows, dtype=np.int64).reshape(-1)
        if chosen.min() < 0 or chosen.max() >= num_rows:
            raise ValueError(f"{parameter} has rows 0 to {num_rows - 1}; asked for {chosen.min()} to {chosen.max()}")
        return chosen
    rng = np.random.default_rng([*b"rows", seed])
    strata = rows_by_stratum(trajectory, parameter)
    return np.sort(np.concatenate([rng.permutation(stratum_rows)[:SAMPLED_ROWS] for stratum_rows in strata.values()]))


def _table(
    trajectory: Trajectory, parameter: str, rows: Ints, history: RowSteps, drift: Array, null: Array
) -> pd.DataFrame:
    """The drift of each row beside mean, quantiles and spread of its null, (n, replicates)."""
    mean, deviation = null.mean(axis=1), null.std(axis=1, ddof=1)
    mean = np.clip(mean, null.min(axis=1), null.max(axis=1))  # a null of one value: not beside it by rounding
    low, median, high = np.quantile(null, (0.025, 0.5, 0.975), axis=1)
    has_spread = (deviation >= SMALLEST_VARIATION * mean) & (deviation > 0)
    return pd.DataFrame(
        {
            **{name: column[rows] for name, column in describe_rows(trajectory, parameter).items()},
            "num_steps": history.counts,
            "drift": drift,
            "null": mean,
            "null_low": low,
            "null_high": high,
            "null_sd": deviation,
            "null_median": median,
            "ratio": drift / np.where(mean > 0, mean, np.nan),
            "z": (drift - mean) / np.where(has_spread, deviation, np.nan),
            "has_norms": history.has_norms,
        }
    )
