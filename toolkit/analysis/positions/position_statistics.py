"""A position table in, one number out, for every statistic by which position tables are described and judged."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from toolkit.analysis.geometry.spectra import effective_rank
from toolkit.analysis.positions import decoding, invariance, resemblance
from toolkit.analysis.positions.line_match import line_match
from toolkit.analysis.positions.orbits import orbit_share
from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Refused
from toolkit.sinusoid import sinusoidal_table

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
    if lag >= len(table):
        raise Refused(f"lag {lag} needs more than {len(table)} rows")
    return float(np.diagonal(invariance.cosine_gram(table), lag).mean())


def _monotonicity(width: int, table: Array, _: int) -> float:
    return invariance.local_monotonicity(table, width)


def _explained(rank: int, table: Array, _: int) -> float:
    if table.shape[1] % 2:
        raise Refused("there is no sinusoid of an odd hidden size")
    return float(resemblance.explained_by(table, sinusoidal_table(*table.shape), [rank])[0])


def _median_order(table: Array, _: int) -> float:
    spectrum = resemblance.dct_spectrum(table)
    if np.isnan(spectrum).any():
        raise Refused("all rows are equal")
    return float(np.searchsorted(np.cumsum(spectrum), 0.5) + 1)


STATISTICS: Mapping[str, PositionStatistic] = {
    **{
        f"cosine_lag_{lag}": PositionStatistic(
            function=partial(_cosine_at, lag), unit="1", description=f"Mean cosine of rows {lag} apart, not centred."
        )
        for lag in (1, 2, 5, 10, 50)
    },
    "translation_invariance": PositionStatistic(
        function=lambda table, _: invariance.translation_invariance(table),
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
        function=lambda table, seed: decoding.decoding_error(table, seed=seed),
        unit="positions",
        description="Mean absolute error of ridge regression of the position, on rows held out; chance n / 4.",
    ),
    "order_error": PositionStatistic(
        function=lambda table, seed: decoding.order_error(table, seed=seed),
        unit="1",
        description="Error rate of telling which of two rows comes first, on positions held out; chance .5.",
    ),
    "effective_rank": PositionStatistic(
        function=lambda table, _: effective_rank(table), unit="1", description="Effective rank of the centred table."
    ),
    "median_dct_order": PositionStatistic(
        function=_median_order,
        unit="half periods",
        description="DCT-II order below which half of the centred power lies: low is smooth.",
    ),
    **{
        f"explained_by_sinusoid_{rank}": PositionStatistic(
            function=partial(_explained, rank),
            unit="1",
            description=f"Power in the sinusoid's top {rank} directions: high for any smooth curve, so no evidence.",
        )
        for rank in (10, 20, 50)
    },
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
