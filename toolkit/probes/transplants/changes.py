"""Components in, the same with random changes of their size out: each row on its own, or all rows turned alike."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.probes.transplants.components import Components, Part, Player

RANDOM, ROTATED = "random", "rotated"
CHANGES = (RANDOM, ROTATED)
"""``random``: each row moved as far as it was, in a direction of its own. ``rotated``: all rows' moves turned by one
random rotation, which keeps what rows share: every length, every angle between two rows' moves, all singular values."""


def perturbed(components: Components, coalition: int, kind: str, generator: np.random.Generator) -> Components:
    """The components with a random change, of the size of its own, in place of each player's of a coalition."""
    chosen = [coalition >> i & 1 for i in range(len(components.players))]
    if kind == RANDOM:
        players = [
            replace(player, parts=tuple(randomised(part, generator) for part in player.parts)) if own else player
            for player, own in zip(components.players, chosen, strict=True)
        ]
    else:
        sizes = dict.fromkeys(part.before.shape[1] for player in components.players for part in player.parts)
        # One for all, but where rows are narrower than the LayerNorm after their projection (DeBERTa-v2).
        rotations = {size: Rotation(size, generator) for size in sizes}
        players = [
            replace(player, parts=tuple(rotations[part.before.shape[1]].turned(part) for part in player.parts))
            if own
            else player
            for player, own in zip(components.players, chosen, strict=True)
        ]
    return replace(components, players=tuple(players))


def randomised(part: Part, generator: np.random.Generator) -> Part:
    """The part with each row moved from ``before`` as far as it was, in a direction drawn at random."""
    change = part.after - part.before
    drawn = generator.standard_normal(change.shape)
    if part.is_centred:
        drawn -= drawn.mean(axis=1, keepdims=True)
    lengths, wanted = (np.linalg.norm(rows, axis=1, keepdims=True) for rows in (drawn, change))
    return replace(part, after=part.before + drawn * (wanted / lengths))


class Rotation:
    """One orthogonal matrix, uniform (Haar) among all, for every part: also angles between components are kept.

    Of parts whose rows have mean 0 over their coordinates, it turns what is left of the space: they stay so.
    """

    def __init__(self, size: int, generator: np.random.Generator) -> None:
        """``size``: coordinates of a row."""
        from scipy.linalg import helmert
        from scipy.stats import ortho_group

        frame = helmert(size)  # (size - 1, size), orthonormal rows of mean 0
        turn = ortho_group.rvs(size - 1, random_state=generator)
        self.centred: Array = frame.T @ turn @ frame
        self.whole: Array = ortho_group.rvs(size, random_state=generator)

    def turned(self, part: Part) -> Part:
        """The part with its rows' moves turned."""
        matrix = self.centred if part.is_centred else self.whole
        return replace(part, after=part.before + (part.after - part.before) @ matrix)


def can_rotate(players: Sequence[Player]) -> bool:
    """Whether any table has two rows that moved: one vector that is turned is a vector of its length at random."""
    return any(_num_moved(part) > 1 for player in players for part in player.parts)


def _num_moved(part: Part) -> int:
    return int((part.after != part.before).any(axis=1).sum())
