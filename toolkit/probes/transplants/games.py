"""The value of every coalition for every item in, what each pair of players is worth to it out."""

from itertools import combinations
from math import factorial

import numpy as np

from toolkit.analysis.gauge.shapley import coalitions_without, count_players
from toolkit.analysis.rows.measures import Array


def item_interactions(values: Array) -> tuple[list[tuple[int, int]], Array]:
    """The pairs of players, and their (pairs, items) Shapley interaction indices (Grabisch & Roubens 1999).

    I_ij = Σ_S |S|!(n-|S|-2)!/(n-1)! [v(S and i, j) - v(S and i) - v(S and j) + v(S)] over coalitions S with neither.
    Above 0 where two players do more together than apart; exactly 0 where one of them changes nothing. ValueError as of
    :func:`toolkit.analysis.gauge.shapley.shapley_values`.
    """
    num_players = count_players(values)
    pairs = list(combinations(range(num_players), 2))
    indices = np.zeros((len(pairs), values.shape[1]))
    for row, (first, second) in enumerate(pairs):
        one, other = 1 << first, 1 << second
        for rest in coalitions_without(num_players, (first, second)):
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
