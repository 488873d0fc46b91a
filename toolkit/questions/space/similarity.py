"""Every matrix similarity of two versions of a parameter beside its null, or the reason why it is refused."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from toolkit.analysis.blocks import Scratch, iterate_blocks
from toolkit.analysis.drift import ALL_ROWS
from toolkit.analysis.kernels import Refused, Rows, check_rows, refuse_below
from toolkit.analysis.measures import summarise_null
from toolkit.analysis.strata import count_rows
from toolkit.naming import at_least, select
from toolkit.progress import shows_progress
from toolkit.questions.space.similarity_table import NULLS, SIMILARITIES, STREAMS, Similarity, TablePair, null_base
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Source, trajectory_of

__all__ = ["SIMILARITIES", "Similarity", "compare_rows", "measure_similarity"]

Similarities = Mapping[str, Similarity] | Iterable[str]  # a mapping such as SIMILARITIES, or names of its entries


@shows_progress("similarity to before")
@with_columns
def measure_similarity(
    source: Source,
    parameter: str = "word_embeddings",
    epoch: float | None = None,
    *,
    measures: Similarities = SIMILARITIES,
    reference_epoch: float = 0,
    num_null: int = 20,
    k: int = 10,
    seed: int = 0,
) -> pd.DataFrame:
    """Every similarity of a parameter before and after, beside its null, one per line.

    Parameters
    ----------
    measures
        Names of entries of SIMILARITIES, or a mapping of the same kind.
    k
        Number of nearest neighbours of each row.

    Returns
    -------
    pandas.DataFrame
        One line per measure. The null has the shape of the value. Outside its range a measure is refused:
        ``value`` is NaN, and ``reason`` says why.

    Raises
    ------
    ValueError
        An unknown parameter, epoch or measure.
    """
    trajectory = trajectory_of(source)
    count_rows(trajectory, parameter)  # a name the model lacks is refused before anything else
    snapshots = [trajectory.at(reference_epoch), trajectory.at_or_last(epoch)]
    for _ in iterate_blocks(snapshots, parameter, scratch=Scratch()):
        pass  # it refuses NaN and other shapes
    before, after = (np.atleast_2d(np.asarray(snapshot.tensors[parameter])) for snapshot in snapshots)
    similarities = compare_rows(before, after, measures, num_null=num_null, k=k, seed=seed)
    epoch = float(snapshots[1].epoch)
    return similarities.assign(epoch=epoch, parameter=parameter, stratum=ALL_ROWS)[columns_of("measure_similarity")]


@with_columns
def compare_rows(
    reference: Rows,
    current: Rows,
    measures: Similarities = SIMILARITIES,
    *,
    num_null: int = 20,
    k: int = 10,
    seed: int = 0,
) -> pd.DataFrame:
    """Every similarity of two versions of the same rows, beside its null, one per line.

    Parameters
    ----------
    reference, current
        (n, p) float32 or float64; they may come from two runs.
    measures
        Names of entries of SIMILARITIES, or a mapping of the same kind.
    num_null
        Number of draws of the null.
    k
        Number of nearest neighbours of each row.

    Returns
    -------
    pandas.DataFrame
        As of :func:`toolkit.measure_similarity`.
    """
    k, num_null = at_least("k", k, 1), at_least("num_null", num_null, 0)
    check_rows(reference, current, "a similarity")
    chosen = select(SIMILARITIES, measures, "similarity")
    pair = TablePair(reference, current, k, seed)
    base = null_base(pair)
    values = {name: _value(name, entry, pair) for name, entry in chosen.items()}
    kinds = {name: entry.null for name, entry in chosen.items() if not values[name][1]}
    # Before the draws, which share what it leaves in the pair.
    base_values = {name: values[name] if base is pair else _value(name, entry, base) for name, entry in chosen.items()}
    drawn = _draw_nulls(base, chosen, kinds, num_null, seed)
    records = []
    for name, entry in chosen.items():
        draws = [value for value in drawn.get(name, []) if not math.isnan(value)]
        record = {
            "measure": name,
            "value": values[name][0],
            "null_kind": entry.null,
            "value_of_null_rows": base_values[name][0],
            **dict(zip(("null", "null_sd", "null_low", "null_high"), summarise_null(draws), strict=True)),
            "num_rows": len(reference),
            "num_columns": reference.shape[1],
            "reason": values[name][1],
        }
        records.append(record)
    return pd.DataFrame(records, columns=columns_of("compare_rows"))


def _value(name: str, entry: Similarity, pair: TablePair) -> tuple[float, str]:
    """The value, or NaN and the reason."""
    try:
        refuse_below(len(pair.reference), entry.min_rows, name)
        return entry.function(pair), ""
    except Refused as reason:
        return math.nan, str(reason)


def _draw_nulls(
    base: TablePair, chosen: Mapping[str, Similarity], kinds: Mapping[str, str], num_null: int, seed: int
) -> dict[str, list[float]]:
    """The values of each measure over the draws of its null; each draw has its own random stream."""
    drawn: dict[str, list[float]] = {name: [] for name in kinds}
    for kind, make in NULLS.items():
        names = [name for name in kinds if kinds[name] == kind]
        for draw in range(num_null if names else 0):
            pair = make(base, np.random.default_rng([*b"similarity null", seed, STREAMS[kind], draw]))
            for name in names:
                drawn[name].append(_value(name, chosen[name], pair)[0])
    return drawn
