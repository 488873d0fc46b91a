"""Shapley values: what each player of a game is worth."""

from math import factorial

import numpy as np

from toolkit.analysis.measures import Array


def shapley_values(values: Array) -> Array:
    """(2^n, ...) values of the coalitions to (n, ...) Shapley values (Shapley 1953, A value for n-person games).

    φ_i = Σ_S |S|!(n-|S|-1)!/n! [v(S and i) - v(S)] over the coalitions S without player i. The index of a coalition has
    bit i set where player i takes part, so ``values[0]`` is that of nobody. The φ add up to ``values[-1] - values[0]``;
    a player who changes nothing gets exactly 0. Further axes (items) are games of their own; φ is linear in v, so that
    its mean over items is that of the mean. ValueError when the number of coalitions is no power of two.
    """
    num_players = count_players(values)
    shares = np.zeros((num_players, *values.shape[1:]))
    for player in range(num_players):
        for coalition in coalitions_without(num_players, (player,)):
            size = coalition.bit_count()
            weight = factorial(size) * factorial(num_players - size - 1) / factorial(num_players)
            shares[player] += weight * (values[coalition | 1 << player] - values[coalition])
    return shares


def count_players(values: Array) -> int:
    """The players of a game with (2^n, ...) values; ValueError when their number is no power of two."""
    num_players = len(values).bit_length() - 1
    if len(values) != 2**num_players:
        raise ValueError(f"a game of n players has 2^n values, one per coalition; got an array of shape {values.shape}")
    return num_players


def coalitions_without(num_players: int, players: tuple[int, ...]) -> list[int]:
    """The coalitions in which none of some players takes part."""
    mask = sum(1 << player for player in players)
    return [coalition for coalition in range(2**num_players) if not coalition & mask]
