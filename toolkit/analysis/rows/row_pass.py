"""Blocks of two versions of a table in, the chosen measures of all its rows out: each block is read once for all.

Every entry of MEASURES follows from eight sums over the coordinates of a row. Computing these in memory that all blocks
share, and the measures afterwards, takes a fraction of the time of calling one measure after the other, each of which
starts from the two rows. The functions in ``measures.py`` stay the definition, and a test holds every value to them:
cosine distance and angle to a few units of 2⁻⁵², because they are computed from the tangential part and not from the
chord (which has no more digits than that, while the tangential part keeps all of them), the others to the last bit.
"""

from collections.abc import Callable, Mapping

import numpy as np

from toolkit.analysis.rows.blocks import Scratch
from toolkit.analysis.rows.measures import MEASURES, Array, Measure, dots, or_nan

Sums = Mapping[str, Array]

BASIC = ("change", "reference")


class RowPass:
    """Filled block by block, in any order; then the measures of ``num_rows`` rows.

    A measure that is no entry of MEASURES, or has the name of one and another function, is called for every block.
    """

    def __init__(self, measures: Mapping[str, Measure], num_rows: int) -> None:
        self.scratch = Scratch()
        """Memory of the pass, for ``iterate_blocks`` to read into."""
        self._measures = measures
        self._called = {name: np.full(num_rows, np.nan) for name, m in measures.items() if not _is_known(m)}
        formulas = [FORMULAS[measure.name] for name, measure in measures.items() if name not in self._called]
        needed = {*BASIC, *(name for needs, _ in formulas for name in needs)}
        self._sums: dict[str, Array] = {name: np.full(num_rows, np.nan) for name in SUMS if name in needed}

    def add(self, rows: slice, reference: Array, current: Array) -> Array:
        """Take in the reference and current values of some rows, each (rows, hidden) float64; returns ‖Δ‖ of each."""
        for name, values in self._called.items():
            values[rows] = self._measures[name].function(reference, current)
        sums = {name: values[rows] for name, values in self._sums.items()}
        delta = np.subtract(current, reference, out=self.scratch.array("delta", reference.shape))
        sums["change"][:] = dots(delta, delta)
        sums["reference"][:] = dots(reference, reference)
        if "current" in sums:
            sums["current"][:] = dots(current, current)
        if "radial" in sums:
            sums["radial"][:] = dots(delta, reference)
        if "inner" in sums:
            sums["inner"][:] = dots(current, reference)
        if "tangential" in sums:
            self._add_tangential(sums, delta, reference, current)
        if "max_abs" in sums or "l1" in sums:
            magnitudes = np.abs(delta, out=delta)
            if "max_abs" in sums:
                sums["max_abs"][:] = magnitudes.max(axis=1, initial=0.0)
            if "l1" in sums:
                sums["l1"][:] = magnitudes.sum(axis=1)
        return np.sqrt(sums["change"])

    def _add_tangential(self, sums: Sums, delta: Array, reference: Array, current: Array) -> None:
        shorter, products = delta, sums["radial"]
        if not (is_nearer := sums["change"] <= sums["current"]).all():
            shorter = np.where(is_nearer[:, None], delta, current)
            products = np.where(is_nearer, products, sums["inner"])
        share = products / or_nan(sums["reference"])
        along = np.multiply(share[:, None], reference, out=self.scratch.array("along", reference.shape))
        across = np.subtract(shorter, along, out=along)
        sums["tangential"][:] = dots(across, across)

    def values(self) -> dict[str, Array]:
        """The measures of all rows, (rows,) float64 each, in the order in which they were chosen."""
        known = {name: FORMULAS[self._measures[name].name][1] for name in self._measures if name not in self._called}
        return {n: known[n](self._sums) if n in known else self._called[n] for n in self._measures}

    def squares(self) -> Array:
        """(2,) Σ Δ² and Σ E⁰² over all rows and coordinates."""
        return np.array([self._sums[name].sum() for name in BASIC])


def _is_known(measure: Measure) -> bool:
    return measure.name in FORMULAS and measure.function is MEASURES[measure.name].function


def _norm(sums: Sums) -> Array:
    return np.sqrt(sums["change"])


def _reference_norm(sums: Sums) -> Array:
    return or_nan(np.sqrt(sums["reference"]))


def _angle(sums: Sums) -> Array:
    """Of the right triangle whose legs are Eᵗ along E⁰ and Eᵗ across it, in radians."""
    angles = np.arctan2(np.sqrt(sums["tangential"]), sums["inner"] / _reference_norm(sums))
    return np.where(sums["current"] > 0, angles, np.nan)


SUMS = ("change", "reference", "current", "radial", "inner", "tangential", "max_abs", "l1")
"""‖Δ‖², ‖E⁰‖², ‖Eᵗ‖², ⟨Δ, E⁰⟩, ⟨Eᵗ, E⁰⟩, squared norm of the part of Δ across E⁰, max|Δ|, Σ|Δ|."""

_ACROSS = ("current", "radial", "inner", "tangential")

FORMULAS: Mapping[str, tuple[tuple[str, ...], Callable[[Sums], Array]]] = {
    "norm": ((), _norm),
    "relative": ((), lambda sums: _norm(sums) / _reference_norm(sums)),
    "cosine_distance": (_ACROSS, lambda sums: 2 * np.sin(_angle(sums) / 2) ** 2),
    "angle_degrees": (_ACROSS, lambda sums: np.degrees(_angle(sums))),
    "radial": (("radial",), lambda sums: sums["radial"] / _reference_norm(sums)),
    "tangential": (_ACROSS, lambda sums: np.sqrt(sums["tangential"])),
    "max_abs": (("max_abs",), lambda sums: sums["max_abs"]),
    "l1": (("l1",), lambda sums: sums["l1"]),
}
"""Entry of MEASURES to the sums it needs beside those of BASIC, and how it follows from them."""
