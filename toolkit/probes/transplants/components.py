"""The embedding parameters before and after training in, the players of a transplant out: what each puts where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array

LAYER_NORM = "LayerNorm"
LAYER_NORM_PARAMETERS = ("LayerNorm.weight", "LayerNorm.bias")
PLAYER = {"word_embeddings": "word", "position_embeddings": "position", "token_type_embeddings": "segment"}
INSEPARABLE = "inseparable rows"
OFFSET = "common offset"


UNCHANGED = "bit for bit what it was"
NOTHING_FIXED = "in fixed coordinates nothing of it moved"
ONE_ROW = "one row of it is in use, and what all rows share is the common offset (not applicable)"
"""Why a player that has not moved has not; :func:`all_inseparable` is the fourth reason."""

Rows = NDArray[np.intp]
Placement = Mapping[str, tuple[Rows | None, Array]]
"""Parameter to the rows to write and their (rows, hidden) values; None and (hidden,) for a vector."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a player adds to some rows of one parameter. Parts of several players on one row add up."""

    parameter: str
    rows: Rows | None
    """None for a vector."""
    before: Array
    """(rows, hidden) float64; (1, hidden) for a vector, and for what all rows have in common."""
    after: Array
    is_centred: bool = False
    """Whether the rows have mean 0 over their coordinates, because nothing sees that mean."""

    @property
    def has_moved(self) -> bool:
        return not np.array_equal(self.before, self.after)


@dataclass(frozen=True, slots=True)
class Player:
    """A component that is transplanted as a whole."""

    name: str
    parts: tuple[Part, ...]
    stillness: str = UNCHANGED
    """Why it has not moved; nothing where it has."""

    @property
    def has_moved(self) -> bool:
        """Whether any of its parts is not bit for bit what it was: if not, it is worth exactly 0."""
        return any(part.has_moved for part in self.parts)

    @property
    def rms_change(self) -> float:
        """Root mean square over its rows of how far each was moved (Euclidean), in weight units."""
        # Rows of 0 only give room to the partner that stands for both (see gauge.py).
        held = [part for part in self.parts if part.before.any() or part.after.any()]
        squares = [np.sum(np.square(part.after - part.before), axis=1) for part in held]
        return float(np.sqrt(np.mean(np.concatenate(squares)))) if squares else 0.0


@dataclass(frozen=True, slots=True)
class Components:
    """The players, and what had to be assumed or left out."""

    players: tuple[Player, ...]
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(player.name for player in self.players)

    @property
    def moving(self) -> int:
        """The coalition of the players that have moved: the others change no bit of any placement."""
        return sum(1 << i for i, player in enumerate(self.players) if player.has_moved)

    def place(self, coalition: int) -> dict[str, tuple[Rows | None, Array]]:
        """What every parameter holds when the players of a coalition are tuned and the rest from before."""
        placed: dict[str, tuple[Rows | None, Array]] = {}
        for parameter in dict.fromkeys(part.parameter for player in self.players for part in player.parts):
            chosen = [
                (part.rows, part.after if coalition >> i & 1 else part.before)
                for i, player in enumerate(self.players)
                for part in player.parts
                if part.parameter == parameter
            ]
            placed[parameter] = _add_up(chosen)
        return placed


def _add_up(parts: Sequence[tuple[Rows | None, Array]]) -> tuple[Rows | None, Array]:
    if parts[0][0] is None:
        return None, parts[0][1][0]
    rows = np.unique(np.concatenate([own for own, _ in parts if own is not None]))
    total = np.zeros((len(rows), parts[0][1].shape[1]))
    for own, values in parts:
        assert own is not None
        total[np.searchsorted(rows, own)] += values
    return rows, total


def layer_norm_player(before: Mapping[str, Array], after: Mapping[str, Array]) -> list[Player]:
    """Weight and bias jointly; no player where the model has neither."""
    parts = [
        Part(name, None, np.asarray(before[name], np.float64)[None], np.asarray(after[name], np.float64)[None])
        for name in LAYER_NORM_PARAMETERS
        if name in before
    ]
    return [Player(LAYER_NORM, tuple(parts))] if parts else []


def raw_components(before: Mapping[str, Array], after: Mapping[str, Array], used: Mapping[str, Rows]) -> Components:
    """The parameters as they are: a player for each table and one for LayerNorm.

    ``used``: table to its rows that any token uses. Everybody together is the tuned model, bit for bit. The split among
    the tables depends on offsets that no output shows: see :func:`toolkit.probes.transplants.gauge.fixed_components`.
    """
    players = []
    for table, rows in used.items():
        own, tuned = (np.asarray(state[table][rows], np.float64) for state in (before, after))
        players.append(Player(PLAYER[table], (Part(table, rows, own, tuned),)))
    missing = [player for table, player in PLAYER.items() if table not in used]
    return Components((*players, *layer_norm_player(before, after)), not_applicable(missing))


def all_inseparable(num_left: int) -> str:
    """Why a table of which at most one row stands apart from rows of another table has nothing of its own to move."""
    return f"all its rows in use{' but one' if num_left else ''} are inseparable (not applicable)"


def not_applicable(players: Sequence[str]) -> tuple[str, ...]:
    """A note for components that a model does not have."""
    return (f"not applicable, this model has no such table: {', '.join(players)}",) if players else ()
