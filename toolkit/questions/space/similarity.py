"""Every matrix similarity of two versions of a parameter beside its null, or the reason why it is refused."""

import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pandas as pd

from toolkit.analysis.blocks import Scratch, iterate_blocks
from toolkit.analysis.drift import ALL_ROWS
from toolkit.analysis.kernels import Refused, Rows, check_rows, refuse_below
from toolkit.analysis.measures import summarise_null
from toolkit.analysis.strata import count_rows
from toolkit.naming import at_least, lookup, select
from toolkit.progress import shows_progress
from toolkit.questions.space.similarity_table import (
    ITEMS,
    NULLS,
    QUERIES,
    SIMILARITIES,
    Similarity,
    TablePair,
    null_base,
)
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Source, trajectory_of

__all__ = ["SIMILARITIES", "Similarity", "compare_rows", "measure_similarity"]

MAX_WORKERS = 4
"""Draws of a null at a time: each holds a version of up to MAX_NULL_ROWS rows in float64."""

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
    null: str | None = None,
    num_null: int = 20,
    k: int = 10,
    seed: int = 0,
) -> pd.DataFrame:
    """Every similarity of a parameter before and after, beside its null, one per line.

    Parameters
    ----------
    measures
        Names of entries of SIMILARITIES, or a mapping of the same kind.
    null
        Name of the null for all measures; None takes the one that each measure names.
    k
        Number of nearest neighbours of each row.

    Returns
    -------
    pandas.DataFrame
        One line per measure and side. The null has the shape of the value. Outside its range a measure is refused:
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
    similarities = compare_rows(before, after, measures, null=null, num_null=num_null, k=k, seed=seed)
    moment = {"epoch": float(snapshots[1].epoch), "reference_epoch": float(reference_epoch)}
    return similarities.assign(**moment, parameter=parameter, stratum=ALL_ROWS)[columns_of("measure_similarity")]


@with_columns
def compare_rows(
    reference: Rows,
    current: Rows,
    measures: Similarities = SIMILARITIES,
    *,
    null: str | None = None,
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
    null
        Name of the null for all measures; None takes the one that each measure names.
    num_null
        Number of draws of the null. They are evaluated in several threads.
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
    if null is not None:
        lookup(NULLS, null, "null")
    pair = TablePair(reference, current, k, seed)
    base = null_base(pair)
    values = {name: _value(name, entry, pair) for name, entry in chosen.items()}
    kinds = {name: null or entry.null for name, entry in chosen.items() if not values[name][1]}
    # Before the draws, which share what it leaves in the pair.
    base_values = {name: values[name] if base is pair else _value(name, entry, base) for name, entry in chosen.items()}
    drawn = _draw_nulls(base, chosen, kinds, num_null, seed)
    records = []
    for name, entry in chosen.items():
        draws = [value for value in drawn.get(name, []) if not math.isnan(value)]
        low, high = (math.nan, math.nan) if values[name][1] or entry.interval is None else entry.interval(pair)
        record = {
            "measure": name,
            "side": entry.direction,
            "value": values[name][0],
            "low": low,
            "high": high,
            "null_kind": null or entry.null,
            "value_of_null_rows": base_values[name][0],
            **dict(zip(("null", "null_sd", "null_low", "null_high"), summarise_null(draws), strict=True)),
            "num_null": len(draws),
            "num_null_rows": len(base.reference),
            "num_rows": len(reference),
            "num_used": {ITEMS: len(pair.items), QUERIES: len(pair.queries)}.get(entry.sample, len(reference)),
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
    """The values of each measure over the draws of its null; each draw has its own random stream.

    Draws are evaluated side by side, some at a time, since a draw holds a version of the whole table.
    """
    from threadpoolctl import threadpool_limits

    names = {kind: [name for name in kinds if kinds[name] == kind] for kind in NULLS}
    draws = [(index, kind, draw) for index, kind in enumerate(NULLS) if names[kind] for draw in range(num_null)]

    def evaluate(index: int, kind: str, draw: int) -> dict[str, float]:
        pair = NULLS[kind](base, np.random.default_rng([*b"similarity null", seed, index, draw]))
        return {name: _value(name, chosen[name], pair)[0] for name in names[kind]}

    if not draws:
        return {name: [] for name in kinds}
    num_threads = count_threads()
    num_workers = min(num_threads, MAX_WORKERS, len(draws))
    limit = partial(threadpool_limits, num_threads // num_workers, user_api="blas")
    # Some libraries keep a limit of their own for each thread that calls them.
    with limit(), ThreadPoolExecutor(num_workers, initializer=limit) as pool:
        drawn = list(pool.map(evaluate, *zip(*draws, strict=True)))
    return {name: [values[name] for values in drawn if name in values] for name in kinds}


def count_threads() -> int:
    """Threads that matrix products may use: what the user, or the machine, allows."""
    from threadpoolctl import threadpool_info

    return max((info["num_threads"] or 1 for info in threadpool_info() if info["user_api"] == "blas"), default=1)
