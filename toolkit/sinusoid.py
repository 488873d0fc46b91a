"""The sinusoidal position table."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BASE = 10_000.0
"""Ratio of the slowest wave's length to the fastest's, to the power (hidden - 2) / hidden; as published."""


def sinusoidal_table(num_rows: int, hidden: int, *, base: float = BASE) -> Array:
    """(num_rows, hidden) float64 sinusoidal table: sin(i·ω_k) and cos(i·ω_k) for every wave k and row i.

    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.5, sin and cos in turn. Another order of the columns would
    change nothing that is measured here. ValueError for an odd or empty hidden size.
    """
    if num_rows < 1 or hidden < 2 or hidden % 2:
        raise ValueError(f"a sinusoidal table needs rows and an even hidden size; got {num_rows} x {hidden}")
    angles = np.arange(num_rows)[:, None] * wave_frequencies(hidden, base)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(num_rows, hidden)


def wave_frequencies(hidden: int, base: float = BASE) -> Array:
    """(hidden // 2,) ω_k = base^(-2k / hidden) in radians per row, from 1 down: a geometric ladder."""
    return np.asarray(base ** (-2 * np.arange(hidden // 2) / hidden))
