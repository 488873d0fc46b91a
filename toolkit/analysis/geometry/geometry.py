"""A run and a parameter in, a table of the shape of its rows out: anisotropy, ranks, rogue dimensions, with nulls."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.geometry.cloud import Cloud
from toolkit.analysis.geometry.geometry_table import GeometryStatistic, select_statistics
from toolkit.analysis.rows.blocks import Scratch, file_of, iterate_blocks, tables_of
from toolkit.analysis.rows.drift import ALL_ROWS
from toolkit.analysis.rows.measures import Array
from toolkit.analysis.rows.strata import assign_strata, count_rows
from toolkit.analysis.similarity.refusal import Refused
from toolkit.counts import at_least
from toolkit.families import TABLES
from toolkit.lookup import unknown
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

SELECTED = "selected rows"
MIN_ROWS = 10
"""Groups of fewer rows are refused: about their mean, two rows have cosine -1 whatever they are (the limit is ours)."""

BLOCK_ROWS = 1024
"""Rows at a time: each block updates a (hidden, hidden) matrix, which small blocks would do more often than needed."""

MAX_KEPT = 2**25
"""Values of a null table that are kept between readings: 256 MB, and BERT's words are fewer."""

Indices = NDArray[np.intp]


@with_columns
def measure_geometry(
    source: Source,
    parameter: str = "word_embeddings",
    epoch: float | None = None,
    *,
    rows: str | Sequence[int] | Indices | None = None,
    by_stratum: bool = True,
    statistics: Mapping[str, GeometryStatistic] | Iterable[str] | None = None,
    num_null: int = 3,
    seed: int = 0,
) -> "pd.DataFrame":
    """The geometry of a table's rows at an epoch (default: every end of an epoch), one value per line.

    Groups: ``all rows`` and, unless ``by_stratum`` is off, every stratum that has rows; with ``rows``, only those (row
    indices, or the name of a stratum). ``null`` and ``null_sd`` are over ``num_null`` independent Gaussian tables
    of the same shape; the SD of so few is rough, and 0 draws leave both NaN. A value that would say nothing is NaN and
    ``reason`` says why. ``num_undefined`` counts the rows that the statistic had to leave out (length 0). Streams:
    nothing larger than a block of rows, a (hidden, hidden) matrix and one null table of at most 2²⁵ values is kept.
    """
    trajectory, chosen = trajectory_of(source), select_statistics(statistics)
    at_least("num_null", num_null, 0)
    groups = group_rows(trajectory, parameter, rows, by_stratum)
    snapshots = [s for s in trajectory if s.is_epoch_end] if epoch is None else [trajectory.at(epoch)]
    tables_of([trajectory.snapshots[0], *snapshots], parameter)  # the groups are rows of the first
    known: dict[str | int, list[tuple[object, ...]]] = {}
    lines: list[tuple[object, ...]] = []
    for index, snapshot in enumerate(snapshots):
        # A frozen parameter is one file for all epochs: what was computed from that file holds for all of them.
        key = file_of(snapshot, parameter) or index
        if key not in known:
            known[key] = [
                (parameter, stratum, *line)
                for stratum, indices in groups.items()
                for line in _group_lines(snapshot, parameter, indices, chosen, num_null, seed)
            ]
        lines += [(float(snapshot.epoch), *line) for line in known[key]]
    return pd.DataFrame(lines, columns=columns_of("measure_geometry"))


def group_rows(
    trajectory: Trajectory, parameter: str, rows: str | Sequence[int] | Indices | None, by_stratum: bool
) -> dict[str, Indices]:
    """Name to row indices of each group; ValueError for a LayerNorm vector and for rows that the table lacks."""
    num_rows = count_rows(trajectory, parameter)
    if parameter not in TABLES:
        tables = ", ".join(name for name in TABLES if name in trajectory.parameters)
        raise ValueError(f"{parameter} is one vector, and its geometry would need rows; choose from: {tables}")
    if rows is not None and not isinstance(rows, str):
        chosen = np.unique(np.asarray(rows, dtype=np.intp))
        if len(chosen) == 0 or chosen[0] < 0 or chosen[-1] >= num_rows:
            raise ValueError(f"rows must be indices from 0 to {num_rows - 1} of {parameter}, and at least one")
        return {SELECTED: chosen}
    if rows is None and not by_stratum:
        return {ALL_ROWS: np.arange(num_rows)}
    strata = assign_strata(trajectory, parameter)
    groups = {name: np.flatnonzero(strata == name) for name in strata.categories}
    groups = {name: indices for name, indices in groups.items() if len(indices)}
    if isinstance(rows, str):
        if rows not in groups:
            raise ValueError(unknown(rows, f"stratum of {parameter} in this run", tuple(groups)))
        return {rows: groups[rows]}
    return {ALL_ROWS: np.arange(num_rows)} | groups


def read_rows(snapshots: Sequence[Snapshot], parameter: str, rows: Indices) -> Iterator[tuple[slice, list[Array]]]:
    """Like iterate_blocks, but only the given rows, BLOCK_ROWS at a time; the slice counts within ``rows``.

    The blocks hold until the next ones are asked for.
    """
    tables = tables_of(snapshots, parameter)
    scratch = Scratch()
    for start in range(0, len(rows), BLOCK_ROWS):
        part = slice(start, min(start + BLOCK_ROWS, len(rows)))
        of_part = [replace(s, tensors={parameter: t[rows[part]]}) for s, t in zip(snapshots, tables, strict=True)]
        for _, blocks in iterate_blocks(of_part, parameter, BLOCK_ROWS, scratch=scratch):
            yield part, blocks


def _group_lines(
    snapshot: Snapshot,
    parameter: str,
    rows: Indices,
    chosen: tuple[GeometryStatistic, ...],
    num_null: int,
    seed: int,
) -> Iterator[tuple[object, ...]]:
    """The lines of one group, from the statistic on."""
    nothing = math.nan, math.nan
    if len(rows) < MIN_ROWS:
        reason = f"{len(rows)} row(s), fewer than {MIN_ROWS}"
        for statistic in chosen:
            yield from ((statistic.name, v, math.nan, *nothing, len(rows), 0, reason) for v in statistic.variants)
        return
    raw = Cloud(lambda: (block for _, (block,) in read_rows([snapshot], parameter, rows)), centre=False)
    clouds = {"raw": raw, "centred": raw.recentred()}
    nulls = measure_null(len(rows), raw.hidden, chosen, num_null, seed)
    for statistic in chosen:
        for variant in statistic.variants:
            value, reason = _value(statistic, clouds[variant])
            null = nothing if reason else nulls[statistic.name, variant]
            num_undefined = clouds[variant].num_without_direction if statistic.uses_directions else 0
            yield statistic.name, variant, value, *null, len(rows), num_undefined, reason


def _value(statistic: GeometryStatistic, cloud: Cloud) -> tuple[float, str]:
    try:
        return statistic.function(cloud), ""
    except Refused as refusal:
        return math.nan, str(refusal)


@lru_cache(maxsize=256)
def measure_null(
    num_rows: int, hidden: int, chosen: tuple[GeometryStatistic, ...], num_null: int, seed: int
) -> dict[tuple[str, str], tuple[float, float]]:
    """(statistic, variant) to its mean and SD over standard normal tables of one shape; kept for each shape."""
    values: dict[tuple[str, str], list[float]] = {(s.name, v): [] for s in chosen for v in s.variants}
    for draw in range(num_null):
        for has_mean in {s.has_common_mean_null for s in chosen}:
            raw = Cloud(_gaussian(num_rows, hidden, has_mean, (seed, draw)), centre=False)
            clouds = {"raw": raw, "centred": raw.recentred()}
            for statistic in (s for s in chosen if s.has_common_mean_null is has_mean):
                for variant in statistic.variants:
                    values[statistic.name, variant].append(_value(statistic, clouds[variant])[0])
            del raw, clouds  # or two null tables would be kept while the next is drawn
    return {
        key: (
            float(np.mean(drawn)) if drawn else math.nan,
            float(np.std(drawn, ddof=1)) if len(drawn) > 1 else math.nan,
        )
        for key, drawn in values.items()
    }


def _gaussian(num_rows: int, hidden: int, has_mean: bool, seed: tuple[int, int]) -> Callable[[], Iterator[Array]]:
    """A reader of one table of independent standard normal values, the same at every reading.

    A table that is too large to be kept is drawn again every time.
    """

    def draw() -> Iterator[Array]:
        generator = np.random.default_rng([*b"geometry", *seed])
        mean = generator.normal(size=hidden) if has_mean else 0.0
        for start in range(0, num_rows, BLOCK_ROWS):
            yield mean + generator.normal(size=(min(BLOCK_ROWS, num_rows - start), hidden))

    kept = list(draw()) if num_rows * hidden <= MAX_KEPT else None
    return draw if kept is None else lambda: iter(kept)
