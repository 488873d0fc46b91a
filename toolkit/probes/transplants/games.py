"""The value of every coalition for every item in, what each player and each pair of players is worth to it out."""

from itertools import combinations
from math import factorial

import numpy as np

from toolkit.analysis.rows.measures import Array


def item_shapley(values: Array) -> Array:
    """(2^n, items) values of the coalitions to (n, items) Shapley values (Shapley 1953), each item its own game.

    φ_i = Σ_S |S|!(n-|S|-1)!/n! [v(S and i) - v(S)] over the coalitions S without player i. Row c of ``values`` is that
    of the coalition whose bit i is set where player i takes part. Linear in v: the mean over items is the Shapley value
    of the mean. A player who changes nothing gets exactly 0. ValueError when the number of rows is no power of two.
    """
    num_players = _count_players(values)
    shares = np.zeros((num_players, values.shape[1]))
    for player in range(num_players):
        for rest in _without(num_players, (player,)):
            size = rest.bit_count()
            weight = factorial(size) * factorial(num_players - size - 1) / factorial(num_players)
            shares[player] += weight * (values[rest | 1 << player] - values[rest])
    return shares


def item_interactions(values: Array) -> tuple[list[tuple[int, int]], Array]:
    """The pairs of players, and their (pairs, items) Shapley interaction indices (Grabisch & Roubens 1999).

    I_ij = Σ_S |S|!(n-|S|-2)!/(n-1)! [v(S and i, j) - v(S and i) - v(S and j) + v(S)] over coalitions S with neither.
    Above 0 where two players do more together than apart; exactly 0 where one of them changes nothing. ValueError as of
    :func:`item_shapley`.
    """
    num_players = _count_players(values)
    pairs = list(combinations(range(num_players), 2))
    indices = np.zeros((len(pairs), values.shape[1]))
    for row, (first, second) in enumerate(pairs):
        one, other = 1 << first, 1 << second
        for rest in _without(num_players, (first, second)):
            size = rest.bit_count()
            weight = factorial(size) * factorial(num_players - size - 2) / factorial(num_players - 1)
            with_second = values[rest | one | other] - values[rest | other]
            indices[row] += weight * (with_second - (values[rest | one] - values[rest]))
    return pairs, indices


def name_coalition(coalition: int, players: tuple[str, ...]) -> str:
    """``word_embeddings + LayerNorm``, ``none`` or ``all``."""
    if coalition in (0, 2 ** len(players) - 1):
        return "all" if coalition else "none"
    return " + ".join(name for i, name in enumerate(players) if coalition >> i & 1)


def _count_players(values: Array) -> int:
    num_players = len(values).bit_length() - 1
    if values.ndim != 2 or len(values) != 2**num_players:
        raise ValueError(f"a game of n players has 2^n rows of values, one per coalition; got shape {values.shape}")
    return num_players


def _without(num_players: int, players: tuple[int, ...]) -> list[int]:
    """The coalitions in which none of some players takes part."""
    mask = sum(1 << player for player in players)
    return [coalition for coalition in range(2**num_players) if not coalition & mask]
