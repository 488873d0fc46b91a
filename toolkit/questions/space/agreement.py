"""Agreement of seeds: do two runs move the same rows in the same directions, beside rows that are permuted."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from toolkit.analysis.blocks import iterate_blocks
from toolkit.analysis.drift import ALL_ROWS, Indices
from toolkit.analysis.measures import Array, summarise_null
from toolkit.analysis.neighbours import name_of
from toolkit.analysis.strata import assign_strata, count_rows
from toolkit.naming import at_least
from toolkit.questions.space.geometry import BLOCK_ROWS, MIN_ROWS, read_changes
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Trajectory
from toolkit.snapshots.store import Source, trajectory_of

DIFFERENT_STRATA = "different strata"
"""Name of the group of rows that two runs have in different ones."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two updates of the same rows of one stratum, in order and with the rows of one of them permuted."""

    num_rows: int
    num_defined: int
    """Rows that moved in both runs; only they are permuted."""
    products: Array
    """(1 + permutations,) Σ⟨Δ_i, other Δ_π(i)⟩, the rows in order first."""
    cosines: Array
    """(1 + permutations,) Σ of the cosines."""
    squares: Array
    """(2,) ‖Δ‖² of the stratum in each run."""

    def __add__(self, other: "Agreement") -> "Agreement":
        """Both strata together, each permuted within itself."""
        return Agreement(
            self.num_rows + other.num_rows,
            self.num_defined + other.num_defined,
            self.products + other.products,
            self.cosines + other.cosines,
            self.squares + other.squares,
        )


@with_columns
def measure_agreement(
    sources: Sequence[Source],
    parameter: str = "word_embeddings",
    epoch: float | None = None,
    *,
    reference_epoch: float = 0,
    num_null: int = 100,
    seed: int = 0,
) -> pd.DataFrame:
    """Whether runs moved the same rows in the same directions: the agreement of Δ between each two runs.

    Parameters
    ----------
    epoch
        Epoch of the snapshots, of every run; None is the last one of the first.

    Returns
    -------
    pandas.DataFrame
        Per pair of runs and stratum, and for ``all rows``: ``mean_cosine``, the mean over the rows of the cosine
        between the row's Δ in the two runs (rows that did not move in both have none and are counted in
        ``num_undefined``), and ``whole_cosine``, of the two Δ as one vector each, where rows that moved far count more.
        A row that the two runs have in different strata (each draws its own batches) is in stratum ``different
        strata``.

    Raises
    ------
    ValueError
        Fewer than two runs, or runs that did not start from the same parameter and vocabulary.

    Notes
    -----
    Definitions and null are ours. Null: the second run's rows permuted within the stratum; of ``all rows``, within each
    stratum.
    """
    if not isinstance(sources, list | tuple):
        raise ValueError(f"agreement is between runs: pass a list of at least 2, not a {type(sources).__name__}")
    if len(sources) < 2:
        raise ValueError(f"agreement is between runs: at least 2 are needed, got {len(sources)}")
    at_least("num_null", num_null, 0)
    trajectories = [trajectory_of(source) for source in sources]
    names = [name_of(source, index) for index, source in enumerate(sources)]
    _check_comparable(trajectories, names, parameter, reference_epoch)
    epoch = float(trajectories[0].snapshots[-1].epoch) if epoch is None else epoch
    records: list[tuple[object, ...]] = []
    named_trajectories = zip(names, trajectories, strict=True)
    for (first_name, first), (second_name, second) in combinations(named_trajectories, 2):
        agreement_by_stratum: dict[str, Agreement] = {}
        for stratum_number, (stratum, rows) in enumerate(common_strata(first, second, parameter).items()):
            update, other_update = (
                _read_update(trajectory, reference_epoch, epoch, parameter, rows) for trajectory in (first, second)
            )
            agreement_by_stratum[stratum] = compare_updates(update, other_update, num_null, (seed, stratum_number))
        first_agreement, *other_agreements = agreement_by_stratum.values()
        of_all_rows = {ALL_ROWS: sum(other_agreements, start=first_agreement)}
        for stratum, agreement in (of_all_rows | agreement_by_stratum).items():
            key = (first_name, second_name, epoch, parameter, stratum)
            records += [(*key, *record) for record in _agreement_records(agreement)]
    return pd.DataFrame(records, columns=columns_of("measure_agreement"))


def _read_update(trajectory: Trajectory, reference_epoch: float, epoch: float, parameter: str, rows: Indices) -> Array:
    """(rows, hidden) Δ of some rows of a run, in float64."""
    blocks = read_changes(trajectory.at(reference_epoch), trajectory.at(epoch), parameter, rows)
    return np.concatenate(list(blocks))


def common_strata(first: Trajectory, second: Trajectory, parameter: str) -> dict[str, Indices]:
    """The rows of each stratum that has any, and last those that the two runs have in different ones.

    With these among them, rows that one run never saw would be mixed with rows that the other did see.
    """
    strata, other_strata = assign_strata(first, parameter), assign_strata(second, parameter)
    is_same = np.asarray(strata) == np.asarray(other_strata)
    groups = {name: np.flatnonzero(is_same & np.asarray(strata == name)) for name in strata.categories}
    groups[DIFFERENT_STRATA] = np.flatnonzero(~is_same)
    return {name: rows for name, rows in groups.items() if len(rows)}


def compare_updates(update: Array, other: Array, num_null: int, seed: Sequence[int] = (0,)) -> Agreement:
    """Two updates Δ of the same rows, (n, hidden) float64 each, beside ``num_null`` permutations of the second's rows.

    The permutations depend on ``seed`` and on how many rows moved in both, not on the values.
    """
    squares = np.array([np.vdot(update, update), np.vdot(other, other)])
    lengths, other_lengths = (np.sqrt(np.vecdot(rows, rows)) for rows in (update, other))
    defined = np.flatnonzero((lengths > 0) & (other_lengths > 0))
    generator = np.random.default_rng([*b"agreement", *seed])
    products, cosines = np.zeros(1 + num_null), np.zeros(1 + num_null)
    for draw in range(1 + num_null):  # the rows in order first
        order = defined if draw == 0 else generator.permutation(defined)
        # Blocks, because a permuted copy of a whole word table would leave the cache and the memory of a laptop.
        for start in range(0, len(defined), BLOCK_ROWS):
            block, permuted = defined[start : start + BLOCK_ROWS], order[start : start + BLOCK_ROWS]
            dots = np.vecdot(update[block], other[permuted])
            products[draw] += dots.sum()
            cosines[draw] += np.sum(dots / (lengths[block] * other_lengths[permuted]))
    return Agreement(len(update), len(defined), products, cosines, squares)


def _agreement_records(agreement: Agreement) -> Iterator[tuple[object, ...]]:
    """The records of one stratum of two runs, from the measure on."""
    num_rows, num_defined = agreement.num_rows, agreement.num_defined
    product_of_lengths = math.sqrt(float(np.prod(agreement.squares)))
    # The value with the rows in order, then those of the permutations; and the rows that have none.
    values_of_measures = {
        "mean_cosine": (agreement.cosines / num_defined if num_defined else None, num_rows - num_defined),
        "whole_cosine": (agreement.products / product_of_lengths, 0) if product_of_lengths > 0 else (None, num_rows),
    }
    for measure, (values, num_undefined) in values_of_measures.items():
        value, reason = math.nan, "no row moved in both runs"
        null: tuple[float, ...] = (math.nan,) * 4
        if values is not None:
            value, reason = float(values[0]), ""
            if num_defined < MIN_ROWS:
                reason = f"no null: {num_defined} row(s) to permute, fewer than {MIN_ROWS}"
            elif len(values) > 2:
                mean, deviation, *quantiles = summarise_null(values[1:])
                null = (mean, *quantiles, deviation)
        yield measure, value, *null, num_rows, num_undefined, reason


def _check_comparable(
    trajectories: Sequence[Trajectory], names: Sequence[str], parameter: str, reference_epoch: float
) -> None:
    """ValueError unless the runs have one shape, one vocabulary and one table before training."""
    first = trajectories[0]
    shape = first.at(reference_epoch).tensors[parameter].shape if count_rows(first, parameter) else ()
    for trajectory, name in zip(trajectories[1:], names[1:], strict=True):
        count_rows(trajectory, parameter)
        other_shape = trajectory.at(reference_epoch).tensors[parameter].shape
        if other_shape != shape:
            raise ValueError(
                f"{parameter} is {shape} in {names[0]} and {other_shape} in {name}: choose runs of one model"
            )
        are_known = first.vocabulary is not None and trajectory.vocabulary is not None
        if are_known and first.vocabulary != trajectory.vocabulary:
            raise ValueError(f"{names[0]} and {name} have different vocabularies: choose runs of one model")
        blocks = iterate_blocks([first.at(reference_epoch), trajectory.at(reference_epoch)], parameter)
        if not all(np.array_equal(before, other_before) for _, (before, other_before) in blocks):
            raise ValueError(
                f"{parameter} differs between {names[0]} and {name} at epoch {reference_epoch:g}, before training: "
                "agreement needs runs from the same checkpoint"
            )
