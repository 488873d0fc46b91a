"""A position table in, the waves that it is made of out, at whatever frequencies. Defined by this project.

A wave in quadrature, as sine and cosine are, goes round a circle in one plane of the hidden space: near its frequency
the table has one complex direction, whose real and imaginary parts are orthogonal and equally long. Smooth curves have
as many directions there as independent looks (three tapers give three), or one that is a line and no circle. A wave
keeps its plane when its frequency or strength drifts along the positions, so that no pure tone is asked for.
"""

import math
from functools import lru_cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array
from toolkit.analysis.similarity.refusal import Refused
from toolkit.schema import columns_of, with_columns

HALF_BANDWIDTH = 2
"""Of the tapers, in periods per window: looks at waves 2 x this far apart do not mix."""
NUM_TAPERS = 3
MIN_ROWS = 32
LEAST_SHARE = 0.02
"""A plane that holds less of the power than this ends the list of waves."""

Complex = NDArray[np.complex128]


def orbit_share(table: Array) -> float:
    """Share, 0 to 1, of the power of an (n, p) table that goes round in circles, one plane per frequency.

    Σ_ω S(ω)·κ(ω)·c(ω) / Σ_ω S(ω): S the power of the centred table, κ the share of the strongest of the directions
    that three orthogonal tapers (Thomson 1982) see, c = 1 - |aᵀa|² / ‖a‖⁴ of that direction a: 1 for a circle, 0 for a
    line. Frequencies below the tapers' bandwidth, trends, are left out. 1 for a few waves in quadrature, about .36 for
    unrelated rows (three equal directions give 1/3), 0 for one curve. A dense ladder of waves, such as the sinusoid's
    slow ones, blends: this asks for few waves and is no test for the sinusoid. NaN where all rows are equal; Refused
    for fewer than MIN_ROWS rows.
    """
    power, directions = _looks(table)
    if not power.sum() > 0:
        return math.nan
    strongest = np.square(np.abs(directions)).sum(axis=1)
    flat = np.abs(np.sum(directions**2, axis=1)) ** 2
    is_seen = strongest > 0
    circles = np.zeros(len(power))
    circles[is_seen] = strongest[is_seen] - flat[is_seen] / strongest[is_seen]
    return float(circles.sum() / power.sum())


@with_columns
def find_waves(table: Array, *, max_waves: int = 12) -> tuple[pd.DataFrame, list[Array]]:
    """The waves of an (n, p) table, strongest first, and for each the (n, 2) course of the rows in its plane.

    One plane after the other: that of the frequency with most power in what is left, which is then projected out.
    ``period`` is that of the net rotation; over the first and the last quarter, so that a drifting frequency shows.
    ``share`` is of the centred table's power, and ``spread`` (Σw)² / Σw² of the plane's squared weights: 2 for the
    sinusoid's waves. Description: any table has planes. The rotation of a plane is arbitrary.
    """
    rest = table - table.mean(axis=0)
    total = float(np.square(rest).sum())
    lines: list[tuple[float, ...]] = []
    courses: list[Array] = []
    while total > 0 and len(lines) < max_waves:
        power, directions = _looks(rest)
        direction = directions[int(np.argmax(power))]
        plane = np.linalg.svd(np.stack([direction.real, direction.imag]), full_matrices=False)[2]
        course = rest @ plane.T
        share = float(np.square(course).sum()) / total
        if share < LEAST_SHARE:
            break
        weights = np.square(plane).sum(axis=0)
        spread = 4 / float(np.square(weights).sum())  # the weights of a plane add up to 2
        lines.append((len(lines) + 1, *_periods(course), share, _roundness(course), spread))
        courses.append(course)
        rest = rest - course @ plane
    return pd.DataFrame(lines, columns=columns_of("find_waves")), courses


def _looks(table: Array) -> tuple[Array, Complex]:
    """(m,) power and (m, p) strongest complex direction, scaled to its power, at every Fourier frequency in range."""
    num_rows = len(table)
    if num_rows < MIN_ROWS or table.shape[1] < 2:
        raise Refused(f"waves need {MIN_ROWS} rows and 2 columns; got {num_rows} and {table.shape[1]}")
    centred = table - table.mean(axis=0)
    seen = np.stack([np.fft.rfft(centred * taper[:, None], axis=0) for taper in _tapers(num_rows)], axis=1)
    seen = seen[HALF_BANDWIDTH + 1 : num_rows // 2 - HALF_BANDWIDTH]
    # (m, 3, 3) instead of p x p: the strongest direction is a combination of the three looks.
    values, vectors = np.linalg.eigh(seen @ seen.conj().transpose(0, 2, 1))
    directions = np.einsum("mk,mkp->mp", vectors[:, :, -1].conj(), seen)
    return np.clip(values, 0, None).sum(axis=1), directions


@lru_cache(maxsize=8)
def _tapers(num_rows: int) -> Array:
    from scipy.signal.windows import dpss

    return np.asarray(dpss(num_rows, HALF_BANDWIDTH, NUM_TAPERS))


def _periods(course: Array) -> tuple[float, float, float]:
    """Rows per turn, from the net rotation over all rows, over the first and over the last quarter."""
    from scipy.linalg import sqrtm

    # Rounded first, since the angle of an ellipse does not grow evenly.
    spread = np.cov(course.T)
    rounded = course @ np.linalg.pinv(np.real(sqrtm(spread)))
    angles = np.unwrap(np.arctan2(rounded[:, 1], rounded[:, 0])) / (2 * math.pi)
    quarter = max(len(angles) // 4, 2)
    parts = (angles, angles[:quarter], angles[-quarter:])
    # Net rotation: the sum of absolute turns would count noise as turning, and make slow waves look fast.
    first, second, third = ((len(part) - 1) / max(abs(float(part[-1] - part[0])), 1e-12) for part in parts)
    return first, second, third


def _roundness(course: Array) -> float:
    small, large = np.linalg.eigvalsh(np.cov(course.T))
    return float(small / large) if large > 0 else math.nan
