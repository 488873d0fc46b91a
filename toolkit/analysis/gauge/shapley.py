"""The value of every coalition in, each player's Shapley value out: exact, for a handful of players."""

from math import factorial

import numpy as np

from toolkit.analysis.rows.measures import Array


def shapley_values(values: Array) -> Array:
    """(2^n,) values of the coalitions to the (n,) Shapley values (Shapley 1953, A value for n-person games).

    φ_i = Σ_S |S|!(n-|S|-1)!/n! [v(S and i) - v(S)] over the coalitions S without player i.
    The index of a coalition has bit i set where player i takes part, so ``values[0]`` is that of nobody. The φ add up
    to ``values[-1] - values[0]``. ValueError when the number of values is no power of two.
    """
    values = np.asarray(values, np.float64)
    num_players = len(values).bit_length() - 1
    if values.ndim != 1 or len(values) != 2**num_players:
        raise ValueError(f"a game of n players has 2^n values, one per coalition; got an array of shape {values.shape}")
    coalitions = np.arange(len(values))
    sizes = np.array([int(coalition).bit_count() for coalition in coalitions])
    weights = np.array([factorial(k) * factorial(num_players - k - 1) for k in range(num_players)])
    weights = weights / factorial(num_players)
    without = [coalitions[(coalitions >> player) & 1 == 0] for player in range(num_players)]
    gains = [values[rest | 1 << player] - values[rest] for player, rest in enumerate(without)]
    return np.array([weights[sizes[rest]] @ gain for rest, gain in zip(without, gains, strict=True)])
