"""The p values of a family of tests in, q values out: the false discovery rate at which each would be called."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def benjamini_hochberg(p: ArrayLike) -> NDArray[np.float64]:
    """q values of Benjamini & Hochberg 1995, float64 in the shape of ``p``.

    A NaN p is no test: it stays NaN and does not count in the size of the family. ValueError: a p outside [0, 1].
    """
    from scipy.stats import false_discovery_control

    values = np.asarray(p, dtype=np.float64)
    tested = ~np.isnan(values)
    if ((values[tested] < 0) | (values[tested] > 1)).any():
        raise ValueError(f"p values lie in [0, 1]; got {values[tested].min():g} to {values[tested].max():g}")
    result = np.full(values.shape, np.nan)
    if tested.any():
        result[tested] = false_discovery_control(values[tested], method="bh")
    return result
