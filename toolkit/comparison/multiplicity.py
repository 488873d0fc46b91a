"""q of many claims (:func:`benjamini_hochberg`), and the p values of many paired differences that it is made of.

These p values share what all of the differences say of seeds (:func:`moderated_p`).

With three seeds a claim alone hardly knows how much seeds differ: where they happen to agree, Satterthwaite's degrees
of freedom are large and its p far too small, and of 30 true nulls one is "supported" in far more than 5 % of reports;
K - 1 degrees of freedom hold the level and find next to nothing. The claims of a report know it together: limma's
moderated variances (Smyth 2004) use that, but take one inverse chi-squared distribution for the variances of all
claims, and overshoot where claims of steady seeds stand beside claims of shaky ones. Here that distribution has no
shape: it is weights on a grid. `experiments/benchmarks/levels.py` prints level and power of all four.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEAST_SD, GREATEST_SD, NUM_SDS = 0.0005, 1.0, 40
"""The standard deviations between seeds that a difference may have, evenly by their logarithm: shares of the score, .05
to 100 points, and further where seeds were further apart."""
PSEUDO_CLAIMS = 3.0
"""Weight of claims that nobody made, spread evenly over the grid: without them a few claims are taken for all that
could be. As few whole ones as all cells of levels.py hold with."""
NUM_ROUNDS = 30
"""Of expectation-maximisation; 100 rounds change no level or power of levels.py by more than its error."""


def moderated_p(
    estimates: ArrayLike, squares: ArrayLike, num_seeds: ArrayLike, num_items: ArrayLike
) -> NDArray[np.float64]:
    """Two-sided p value of each of several paired differences, float64 in the shape of ``estimates``.

    Moderated, a word of limma's: how much seeds differ is learned from all claims at once, not from each one alone.

    Parameters
    ----------
    estimates
        (..., claims) mean differences, as shares of the score; leading dimensions are reports of their own.
    squares
        (..., claims, 3) mean squares between seeds, between items and of the residual
        (:func:`~toolkit.comparison.intervals.mean_squares`).
    num_seeds, num_items
        (claims,) K and N of each, at least 2; or one number.

    Given the standard deviation s between a claim's seeds, MS_seed has the expectation e = N·s² + MS_res, and a χ²
    distribution of K - 1 degrees of freedom about it; the difference has the variance (e + max(MS_item - MS_res,
    0))/(KN), and p(s) is that of Student's t with N - 1 degrees of freedom. The weights w(s) that make the claims'
    MS_seed most likely are found by expectation-maximisation (the maximum likelihood of a mixing distribution: Laird
    1978), with PSEUDO_CLAIMS beside the claims. p = Σ_s p(s)·w(s)·L(s)/Σ_s w(s)·L(s), L the likelihood of the claim's
    own MS_seed, and w without its own part (partially Bayes p values: Ignatiadis & Sen 2023; the pseudo-claims and what
    is left out are ours).

    Example
    -------
    >>> float(moderated_p([0.0], [[0.2, 0.2, 0.1]], 3, 200)[0])
    1.0
    """
    from scipy.special import stdtr

    gaps = np.abs(np.asarray(estimates, np.float64))
    if not gaps.size:
        return gaps
    between, item, residual = (np.asarray(squares, np.float64)[..., [i]] for i in range(3))
    items = np.broadcast_to(np.asarray(num_items, np.float64), gaps.shape)[..., None]
    seeds = np.broadcast_to(np.asarray(num_seeds, np.float64), gaps.shape)[..., None]
    furthest = 3 * float(np.sqrt((between / items).max()))
    sds = np.geomspace(LEAST_SD, max(GREATEST_SD, furthest), NUM_SDS)
    expected = items * sds**2 + residual
    log_likelihoods = -(seeds - 1) / 2 * (np.log(expected) + between / expected)
    likelihood = np.exp(log_likelihoods - log_likelihoods.max(axis=-1, keepdims=True))
    weights = np.full(NUM_SDS, 1 / NUM_SDS)
    # Expectation: the share of each s in every claim; maximisation: weights as these add up, with the pseudo-claims.
    for _ in range(NUM_ROUNDS):
        shares = weights * likelihood
        shares /= shares.sum(axis=-1, keepdims=True)
        counts = shares.sum(axis=-2, keepdims=True) + PSEUDO_CLAIMS / NUM_SDS
        weights = counts / counts.sum(axis=-1, keepdims=True)
    # The weights of a claim are those that the other claims give: without its own part no claim vouches for itself.
    posterior = (counts - shares) * likelihood
    posterior /= posterior.sum(axis=-1, keepdims=True)
    standard_errors = np.sqrt((expected + np.maximum(item - residual, 0)) / (seeds * items))
    p_values: NDArray[np.float64] = (posterior * 2 * stdtr(items - 1, -gaps[..., None] / standard_errors)).sum(axis=-1)
    return np.minimum(p_values, 1.0)


def benjamini_hochberg(p: ArrayLike) -> NDArray[np.float64]:
    """q values of Benjamini & Hochberg 1995, float64 in the shape of ``p``.

    A NaN p is no test: it stays NaN and does not count in the size of the family.
    """
    from scipy.stats import false_discovery_control

    values = np.asarray(p, dtype=np.float64)
    tested = ~np.isnan(values)
    result = np.full(values.shape, np.nan)
    if tested.any():
        result[tested] = false_discovery_control(values[tested], method="bh")
    return result
