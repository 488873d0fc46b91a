"""A position table in, verdicts out: does it carry the sinusoid's waves, is it made of waves of its own?

Principal directions and slow waves of *any* smooth curve look like sine and cosine, so that shares explained by the
sinusoid's directions are description only. Each verdict rests on a statistic (:mod:`line_match`, :mod:`orbits`) and
on its controls at the same shape: tables that have the waves, in noise, and smooth random curves, which have not.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from toolkit.analysis.positions.line_match import line_match
from toolkit.analysis.positions.orbits import orbit_share
from toolkit.analysis.positions.position_controls import SNR, WAVES_SNR, draw_sinusoids, draw_smooth, draw_waves
from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Refused
from toolkit.counts import at_least

LINE_THRESHOLD = 5.0
"""Score of :func:`line_match` from which a table carries the sinusoid's waves; set on controls, before any
model was looked at."""
ORBIT_THRESHOLD = 0.7
"""Value of :func:`orbit_share` from which a table is made of waves. Set between the controls, but after the embedded
model's value (.95) had been seen: for that model it is a description that its controls bear out, for others a test."""
LARGEST_ERROR_RATE = 0.05
"""Above this rate of wrong answers on either control the verdict is *not identifiable*."""
NUM_DRAWS = 100

NOT_IDENTIFIABLE = "not identifiable"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer on one table, and everything that it rests on."""

    answer: str
    """As asked, or ``not identifiable``."""
    reason: str
    """The numbers behind it, or why there is no answer."""
    value: float
    """Of the statistic; NaN where it is undefined."""
    threshold: float
    positive: Array
    """(draws,) values of the positive control; empty where the statistic is refused at this shape."""
    negative: Array
    """(draws,) values of the negative control: the null."""

    @property
    def missed(self) -> float:
        """Share of the positive control below the threshold."""
        return float(np.mean(self.positive < self.threshold)) if len(self.positive) else float("nan")

    @property
    def false_alarms(self) -> float:
        """Share of the negative control that reaches the threshold."""
        return float(np.mean(self.negative >= self.threshold)) if len(self.negative) else float("nan")


def judge_resemblance(table: Array, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> Verdict:
    """``resembles`` where an (n, p) table carries the waves of the sinusoid of its shape, else ``does not resemble``.

    The score is invariant under rotations, and nearly so under other linear maps: "resembles" means the same
    frequencies, not the same coordinates. It says nothing on waves slower than ``line_match(table).longest_wave``: in
    these rows they blend. *Not identifiable*: too few rows, all rows equal, or a control fails at this shape.
    """
    controls = f"sinusoids in noise (SNR {SNR:g})"
    return _judge(
        table,
        _line_score,
        LINE_THRESHOLD,
        ("resembles", "does not resemble"),
        controls,
        draw_sinusoids,
        num_draws,
        seed,
    )


def judge_waves(table: Array, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> Verdict:
    """``made of waves`` where an (n, p) table goes round circles, at whatever frequencies, else ``not made of waves``.

    *Not identifiable* as in :func:`judge_resemblance`. A dense ladder of waves, as the sinusoid's, blends and is not
    recognised here: that is what :func:`judge_resemblance` asks.
    """
    controls = f"five waves in noise (SNR {WAVES_SNR:g})"
    return _judge(
        table,
        orbit_share,
        ORBIT_THRESHOLD,
        ("made of waves", "not made of waves"),
        controls,
        draw_waves,
        num_draws,
        seed,
    )


Statistic = Callable[[Array], float]
Draw = Callable[[int, int, int, int], Iterator[Array]]


def _line_score(table: Array) -> float:
    return line_match(table).score


def _judge(
    table: Array,
    statistic: Statistic,
    threshold: float,
    answers: tuple[str, str],
    controls: str,
    draw: Draw,
    num_draws: int,
    seed: int,
) -> Verdict:
    at_least("num_draws", num_draws, 1)
    none = np.empty(0)
    undecided = Verdict(NOT_IDENTIFIABLE, "all rows are equal", float("nan"), threshold, none, none)
    try:
        value = statistic(table)
    except Refused as refusal:
        return replace(undecided, reason=str(refusal))
    if np.isnan(value):
        return undecided
    num_rows, hidden = table.shape
    values = (_control_values(statistic, each, num_rows, hidden, num_draws, seed) for each in (draw, draw_smooth))
    found = Verdict(NOT_IDENTIFIABLE, "", value, threshold, *values)
    if max(found.missed, found.false_alarms) > LARGEST_ERROR_RATE:
        reason = f"at {num_rows} x {hidden} it misses {found.missed:.0%} of {controls} and is deceived by "
        return replace(found, reason=f"{reason}{found.false_alarms:.0%} of smooth curves")
    place = "at least" if value >= threshold else "below"
    reason = f"{value:.3g}, {place} {threshold:g}; smooth curves reach at most {found.negative.max():.3g}"
    reason += f", {controls} at least {found.positive.min():.3g}"
    return replace(found, answer=answers[0] if value >= threshold else answers[1], reason=reason)


@lru_cache(maxsize=16)
def _control_values(statistic: Statistic, draw: Draw, num_rows: int, hidden: int, num_draws: int, seed: int) -> Array:
    """(draws,) values of a statistic over a control, of one shape; read-only, as they are kept and handed out."""
    values = np.array([statistic(table) for table in draw(num_rows, hidden, num_draws, seed)])
    values.setflags(write=False)
    return values


def explained_by(table: Array, reference: Array, ranks: Sequence[int]) -> Array:
    """(ranks,) share of the centred table's power in the top-r principal directions of the centred reference.

    Description only: r / (n - 1) for unrelated rows, but near 1 for any smooth curve. The directions are the left
    singular vectors, (n, r): curves along the positions. Refused for different numbers of rows, a rank outside
    1 to n - 1, or a table whose rows are all equal.
    """
    if len(table) != len(reference) or not all(1 <= rank < len(table) for rank in ranks):
        raise Refused(
            f"ranks must lie between 1 and {len(table) - 1}, and both tables have the same rows; got ranks "
            f"{list(ranks)} and {len(table)} and {len(reference)} rows"
        )
    centred = table - table.mean(axis=0)
    total = float(np.square(centred).sum())
    if total == 0:
        raise Refused("all rows of the table are equal: there is nothing to explain")
    directions = np.linalg.svd(reference - reference.mean(axis=0), full_matrices=False)[0]
    powers = np.square(directions.T @ centred).sum(axis=1)
    return np.array([powers[:rank].sum() / total for rank in ranks])


def dct_spectrum(table: Array) -> Array:
    """(n - 1,) share of the centred table's power at DCT-II orders 1 to n - 1 (order k: k half periods in n rows).

    Orthonormal, so that the shares add up to 1 (scipy.fft.dct); NaN where all rows are equal.
    """
    from scipy.fft import dct

    power = np.square(dct(table - table.mean(axis=0), type=2, norm="ortho", axis=0)).sum(axis=1)[1:]
    has_spread = bool(np.ptp(table, axis=0).any())  # a centred constant may be rounding instead of 0
    return np.asarray(power / (power.sum() if has_spread else np.nan))
