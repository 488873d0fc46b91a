"""Where rows stood and what their exposures were in, how far Adam moved them after their last exposure out: or bounds.

After the last gradient, at step L, both moments fade at known rates, so all that is unknown of a coordinate is m/√v at
L. It follows from a snapshot at L; from the whole movement, if L was its only exposure; or from the movement after a
later snapshot. Failing these, Cauchy-Schwarz bounds it whatever the gradients were. The identifications are ours.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.causes.adam import AdamSteps
from toolkit.analysis.causes.row_steps import RowSteps
from toolkit.analysis.rows.measures import Array, norm

Ints = NDArray[np.int64]

BASES = {
    "exact": "a snapshot lies at the last exposure, the row was not exposed since the reference, or SGD keeps none",
    "one exposure": "the share of its only exposure's movement that came after it is known, whatever the gradient",
    "extrapolated": "from the movement after the next snapshot; eps and rounding leave under 10 % between the bounds",
    "bounds": "only bounds are known",
    "none": "no exposure, or the parameter was frozen: no momentum",
    "exposure unknown": "exposure was not recorded",
}
"""How the momentum of a row is known (column ``momentum_basis``)."""

LARGEST_GAP = 1.1
"""Upper bound over lower bound, to which an extrapolation counts as known."""


@dataclass(frozen=True, slots=True)
class Tails:
    """What follows a step without further gradients, per step L of a run (index 0 unused); see AdamSteps.tails."""

    first: Array
    rest: Array
    """Movement after step L per m/√v at L, where eps is small beside √v."""
    first_below_eps: Array
    rest_below_eps: Array
    """The same per m/eps, where eps is large; what really happens lies between the two profiles."""
    betas: tuple[float, float]

    @classmethod
    def of(cls, steps: AdamSteps) -> "Tails":
        return cls(*steps.tails(), *steps.tails(is_below_eps=True), steps.betas)

    def one_exposure(self, last: Ints) -> tuple[Array, Array]:
        """(n,) least and largest share of the movement by an only exposure at step ``last`` that came after it.

        The larger |g| is beside eps, the slower the tail fades: the shares of the two limits enclose every other.
        """
        low = self.rest_below_eps[last] / (self.first_below_eps[last] + self.rest_below_eps[last])
        return low, self.rest[last] / (self.first[last] + self.rest[last])

    def extrapolation(self, last: Ints, anchor: Ints) -> tuple[Array, Array]:
        """(n,) least and largest factor from the movement after step ``anchor`` to all of it after step ``last``."""
        beta1, beta2 = self.betas
        gap = (anchor - last).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            low = self.rest[last] / ((beta1 / np.sqrt(beta2)) ** gap * self.rest[anchor])
            return low, self.rest_below_eps[last] / (beta1**gap * self.rest_below_eps[anchor])

    def ceiling(self, history: RowSteps, hidden: int) -> Array:
        """(n,) bound on ‖movement after the last exposure‖ for rows with those exposures, whatever their gradients.

        By Cauchy-Schwarz over the exposures s ≤ L, in each coordinate, |Σ(1-β1)β1ᴸ⁻ˢ g_s| ≤ K·√(Σ(1-β2)β2ᴸ⁻ˢ g_s²) with
        K² = (1-β1)²/(1-β2)·Σ(β1²/β2)ᴸ⁻ˢ; eps only lowers it.
        """
        beta1, beta2 = self.betas
        owners = np.repeat(np.arange(len(history)), history.counts)
        ages = history.last[owners] - 1 - history.steps
        sums = np.bincount(owners, (beta1**2 / beta2) ** ages, len(history))
        largest = (1 - beta1) / np.sqrt(1 - beta2) * np.sqrt(sums)
        return np.where(history.counts > 0, np.sqrt(hidden) * largest * self.rest[history.last], np.nan)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the momentum of rows; arrays (n,) but ``vectors`` (n, hidden), NaN where only bounds are."""

    vectors: Array
    low: Array
    high: Array
    basis: NDArray[np.object_]


def identify(
    tails: Tails, history: RowSteps, reference_step: int, anchor: Ints, update: Array, since: Array, rounding: Array
) -> Known:
    """The movement by Adam of (n,) rows after their last exposure, as (n, hidden) vectors and bounds on the norms.

    ``anchor``: (n,) step of the first snapshot at or after the last exposure. ``update``: (n, hidden) movement by Adam
    since the reference; ``since``: since the anchor, and ``rounding`` (n,) a bound on its error. Bounds are of norms.
    """
    count, last = history.counts, history.last
    low, high = np.full(len(count), np.nan), np.full(len(count), np.nan)
    known = Known(np.full(update.shape, np.nan), low, high, np.full(len(count), "none", dtype=object))
    is_old = (count > 0) & (last <= reference_step)
    is_at = (last > reference_step) & (anchor == last)
    is_one = (last > reference_step) & ~is_at & (count == 1)
    is_many = (last > reference_step) & ~is_at & ~is_one
    for chosen, vectors in ((is_old, update), (is_at, since)):
        _set(known, chosen, "exact", vectors[chosen], *[norm(np.zeros_like(update), vectors)[chosen]] * 2)
    low, high = tails.one_exposure(last[is_one])
    length = norm(np.zeros_like(update[is_one]), update[is_one])
    _set(known, is_one, "one exposure", high[:, None] * update[is_one], low * length, high * length)
    ceiling = tails.ceiling(history, update.shape[1])[is_many]
    low, high = tails.extrapolation(last[is_many], anchor[is_many])
    length = norm(np.zeros_like(since[is_many]), since[is_many])
    factor, spread = low, rounding[is_many]
    is_clear = np.isfinite(high) & (length > spread)
    with np.errstate(invalid="ignore"):
        low = np.where(is_clear, low * (length - spread), 0.0)
        high = np.fmin(ceiling, np.where(np.isfinite(high), high * (length + spread), np.inf))
        # Above its ceiling only by rounding: the movement after the anchor is then the better bound.
        high = np.maximum(high, low)
        is_near = is_clear & (high <= LARGEST_GAP * low)
        vectors = np.where(is_near[:, None], factor[:, None] * since[is_many], np.nan)
    _set(known, is_many, np.where(is_near, "extrapolated", "bounds"), vectors, low, high)
    return known


def without_momentum(history: RowSteps, hidden: int) -> Known:
    """Of (n,) rows under an optimizer that keeps no momentum: none, exactly."""
    zero = np.zeros(len(history))
    basis = np.where(history.counts > 0, "exact", "none").astype(object)
    return Known(np.zeros((len(history), hidden)), zero, zero, basis)


def _set(known: Known, chosen: NDArray[np.bool_], basis: object, vectors: Array, low: Array, high: Array) -> None:
    known.vectors[chosen], known.low[chosen], known.high[chosen], known.basis[chosen] = vectors, low, high, basis
