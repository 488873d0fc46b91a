"""Values in, how finely their format holds them out: roundings, spacing, the coarsest format that holds them all."""

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.causes.precision import FORMATS, HALF_FORMATS, Format
from toolkit.analysis.rows.measures import Array

ROUNDINGS = 4
"""Roundings in a row that an exact kind may leave behind: one for the stored result, some for how it was computed."""

TELLING_VALUES = 16
"""Values other than 0 and ±1 that must fit a half precision before they count as stored in it: each fits by chance
with a probability of about 2⁻¹³ (fp16, if in its range) or 2⁻¹⁶ (bf16)."""


def unit_roundoff(form: Format) -> float:
    """The largest relative error of rounding to nearest, half a unit in the last place."""
    return float(2.0**-form.bits)


def roundoff(form: Format, values: Array) -> Array:
    """(...,) float64: the largest absolute error of rounding each value to a format."""
    return np.asarray(np.maximum(unit_roundoff(form) * np.abs(values), 2.0 ** (form.lowest - 1)))


def spacing_exponents(form: Format, values: Array) -> NDArray[np.int64]:
    """(...,) the exponent of the spacing (unit in the last place) of a format at each value."""
    exponents = np.frexp(values)[1].astype(np.int64) - form.bits
    return np.where(values == 0, form.lowest, np.maximum(exponents, form.lowest))


class FormatFinder:
    """Finds the coarsest format that holds every value it is shown: weights cast up to fp32 keep few bits."""

    def __init__(self) -> None:
        self._fits = list(HALF_FORMATS)
        self._num_telling = 0

    def add(self, values: Array) -> None:
        """Look at a block of values."""
        if self._fits:
            self._num_telling += int(np.count_nonzero((values != 0) & (np.abs(values) != 1)))
            self._fits = [name for name in self._fits if np.array_equal(FORMATS[name].round(values), values)]

    @property
    def found(self) -> Format:
        """fp32 unless enough values say otherwise."""
        is_half = bool(self._fits) and self._num_telling >= TELLING_VALUES
        return FORMATS[self._fits[0] if is_half else "fp32"]
