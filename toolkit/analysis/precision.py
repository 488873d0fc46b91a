"""In which precision weights are stored, whatever the dtype of their file, and what optimizer steps lost to it.

A floating-point weight can only move in steps of one unit in its last place (ulp). An update below half of that is
rounded away, every time, however long training lasts.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from toolkit.analysis.measures import Array
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run, open_run


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format."""

    name: str
    bits: int
    """Significant bits, the hidden one included."""
    lowest: int
    """Exponent of the smallest subnormal number, 2^lowest."""
    largest: float

    def round(self, values: Array) -> Array:
        """(...,) float64 to the nearest values of the format, ties to even; beyond the largest: infinity."""
        exponents = np.maximum(np.frexp(values)[1] - self.bits, self.lowest)
        rounded = np.ldexp(np.rint(np.ldexp(values, -exponents)), exponents)
        return np.where(np.abs(rounded) > self.largest, np.copysign(np.inf, values), rounded)


FORMATS = {
    "fp32": Format("fp32", 24, -149, float(np.finfo(np.float32).max)),
    "bf16": Format("bf16", 8, -133, (2 - 2.0**-7) * 2.0**127),
    "fp16": Format("fp16", 11, -24, 65_504.0),
}
"""IEEE 754 binary32 and binary16, and bfloat16."""

HALF_FORMATS = ("bf16", "fp16")
"""The coarsest first: most bf16 weights are fp16 numbers too."""


TELLING_VALUES = 16
"""Values other than 0 and ±1 that must fit a half precision before they count as stored in it: each fits by chance
with a probability of about 2⁻¹³ (fp16, if in its range) or 2⁻¹⁶ (bf16)."""


class FormatFinder:
    """Finds the coarsest format that holds every value it is given: weights cast up to fp32 keep few bits."""

    def __init__(self) -> None:
        self.fits = list(HALF_FORMATS)
        """The half precisions that hold every value so far."""
        self._num_telling = 0

    def add(self, values: Array) -> None:
        """Look at a block of values."""
        if self.fits:
            self._num_telling += int(np.count_nonzero((values != 0) & (np.abs(values) != 1)))
            self.fits = [name for name in self.fits if np.array_equal(FORMATS[name].round(values), values)]

    @property
    def format(self) -> Format:
        """fp32 unless enough values say otherwise."""
        is_half = bool(self.fits) and self._num_telling >= TELLING_VALUES
        return FORMATS[self.fits[0] if is_half else "fp32"]


@with_columns
def measure_step_sizes(run: Run | str | Path) -> pd.DataFrame:
    """How large optimizer steps were, as the run noted it at each step whose number is a power of two.

    Of each trained embedding parameter: of its rows with a gradient at that step, 4,096 of them at most. What is lost
    to rounding is lost in that one step, not in training: the last line is of the last power of two. Runs that train no
    embeddings have no lines. ValueError for an unfinished run.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    noted = pd.DataFrame(opened.manifest.get("step_sizes") or {}, columns=columns_of("measure_step_sizes"))
    return noted.astype({"step": "int64", "update_to_weight": float, "lost_to_rounding": float})
