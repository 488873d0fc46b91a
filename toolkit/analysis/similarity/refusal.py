"""Two versions of the same rows in, nothing out: or the reason why a similarity would mean nothing for them."""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.floating]
"""(n, p) float32 or float64; arithmetic is float64 whatever is given."""


class Refused(ValueError):
    """A similarity was asked for outside the range in which it means anything. Bad input is a plain ValueError."""


def check_rows(reference: Rows, current: Rows, what: str) -> None:
    """ValueError unless both are (n, p) of one shape; Refused when n is 0."""
    if reference.ndim != 2 or reference.shape != current.shape:
        raise ValueError(
            f"{what} compares two versions of the same rows, (n, p) both; the shapes are {reference.shape} and "
            f"{current.shape}: choose the same rows of both"
        )
    refuse_below(len(reference), 1, what)


def refuse_below(num_rows: int, min_rows: int, what: str) -> None:
    """Refused when there are fewer than ``min_rows`` rows."""
    if num_rows < min_rows:
        raise Refused(f"{what} needs at least {min_rows} rows, there are {num_rows}")
