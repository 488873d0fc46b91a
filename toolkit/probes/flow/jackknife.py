"""An estimate with each unit left out in turn in, one value per unit out, whose mean is the estimate.

Units are what was sampled: blocks of the crossed design, or texts. The values (Tukey's pseudo-values, re-centred on the
estimate) stand for the units as right-or-wrong stands for the items of an accuracy: seeds x units of them go into
:func:`toolkit.comparison.intervals.two_way_interval`, differences of two models on the same units are paired.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Units = tuple[float, ...]
"""One value per unit: what tables hold, so that they can be compared and joined."""
LEVEL = 0.95
LEAST_UNITS = 3
"""With two, leaving one out leaves nothing to compare it with."""


def leave_one_out(num_units: int) -> Array:
    """(units + 1, units) weights: every unit once in the first row, then each left out in turn."""
    return np.vstack([np.ones(num_units), 1 - np.eye(num_units)])


def unit_values(estimates: ArrayLike) -> Units:
    """Values (units,) from estimates (units + 1,) under :func:`leave_one_out`: θ + (n - 1)·(mean θ₋ - θ₋ᵢ).

    Of a mean over units they are the units themselves; their Student's t interval is the jackknife's. Empty, which is
    to say that no interval can be had, for fewer than three units or an estimate that is not finite.
    """
    values = np.asarray(estimates, np.float64)
    if len(values) <= LEAST_UNITS or not np.isfinite(values).all():
        return ()
    left_out = values[1:]
    return tuple((values[0] + (len(left_out) - 1) * (left_out.mean() - left_out)).tolist())


def bounds(units: Units, *, is_share: bool = False) -> dict[str, object]:
    """``low``, ``high`` and ``unit_values`` of one model: Student's t over its units, not over new seeds.

    NaN without units, or where all are equal, which leaves no spread; of right-or-wrong units (``is_share``) equal ones
    have the exact bound of :func:`~toolkit.comparison.intervals.two_way_interval`.
    """
    from toolkit.comparison.intervals import two_way_interval

    if not units or (np.ptp(units) == 0 and not is_share):
        return {"low": np.nan, "high": np.nan, "unit_values": units}
    interval = two_way_interval([units], LEVEL)
    return {"low": interval.low, "high": interval.high, "unit_values": units}
