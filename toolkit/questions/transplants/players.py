"""The players of a transplant: which embedding component each puts where."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from toolkit.analysis.drift import Indices
from toolkit.analysis.gauge import INSEPARABLE, LAYER_NORM, OFFSET, Centre, measure_centres, project
from toolkit.analysis.measures import Array
from toolkit.analysis.tokens_in_use import (
    PROJECTED,
    GroupLabels,
    ReferenceCorpus,
    label_groups,
    reference_corpus,
    why_no_gauge,
)
from toolkit.snapshots.logs import Design
from toolkit.snapshots.snapshot import Snapshot, Trajectory

LAYER_NORM_PARAMETERS = ("LayerNorm.weight", "LayerNorm.bias")
PLAYER = {"word_embeddings": "word", "position_embeddings": "position", "token_type_embeddings": "segment"}

UNCHANGED = "bit for bit what it was"
NOTHING_FIXED = "in fixed coordinates nothing of it moved"
ONE_ROW = "one row of it is in use, and what all rows share is the common offset (not applicable)"
"""Why a player that has not moved has not; :func:`all_inseparable` is the fourth reason."""

Placement = Mapping[str, tuple[Indices | None, Array]]
"""Parameter to the rows to write and their (rows, hidden) values; None and (hidden,) for a vector."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a player adds to some rows of one parameter. Parts of several players on one row add up."""

    parameter: str
    rows: Indices | None
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

    def place(self, coalition: int) -> dict[str, tuple[Indices | None, Array]]:
        """What every parameter holds when the players of a coalition are tuned and the rest from before."""
        added: dict[str, list[tuple[Indices | None, Array]]] = {}
        for i, player in enumerate(self.players):
            for part in player.parts:
                values = part.after if coalition >> i & 1 else part.before
                added.setdefault(part.parameter, []).append((part.rows, values))
        placed: dict[str, tuple[Indices | None, Array]] = {}
        for parameter, parts in added.items():
            rows = [row_ids for row_ids, _ in parts if row_ids is not None]
            if not rows:
                placed[parameter] = None, parts[0][1][0]
                continue
            all_rows = np.unique(np.concatenate(rows))
            total = np.zeros((len(all_rows), parts[0][1].shape[1]))
            for row_ids, (_, values) in zip(rows, parts, strict=True):
                total[np.searchsorted(all_rows, row_ids)] += values
            placed[parameter] = all_rows, total
        return placed


def all_components(
    players: Sequence[Player],
    before: Mapping[str, Array],
    after: Mapping[str, Array],
    used: Mapping[str, Indices],
    notes: Sequence[str] = (),
) -> Components:
    """``players`` and, where the model has a LayerNorm, its weight and bias as one more; with ``notes``.

    ``used``: table to its rows in use; only its keys are read here, and a note names the tables that it lacks.
    """
    parts = [
        Part(name, None, np.asarray(before[name], np.float64)[None], np.asarray(after[name], np.float64)[None])
        for name in LAYER_NORM_PARAMETERS
        if name in before
    ]
    missing_tables = ", ".join(player for table, player in PLAYER.items() if table not in used)
    table_notes = [f"not applicable, this model has no such table: {missing_tables}"] if missing_tables else []
    layer_norm = [Player(LAYER_NORM, tuple(parts))] if parts else []
    return Components((*players, *layer_norm), (*table_notes, *notes))


def raw_components(before: Mapping[str, Array], after: Mapping[str, Array], used: Mapping[str, Indices]) -> Components:
    """The parameters as they are: a player for each table and one for LayerNorm.

    ``used``: table to its rows that any token uses. Everybody together is the tuned model, bit for bit. The split among
    the tables depends on offsets that no output shows: see :func:`fixed_components`.
    """
    players = []
    for table, rows in used.items():
        untuned, tuned = (np.asarray(state[table][rows], np.float64) for state in (before, after))
        players.append(Player(PLAYER[table], (Part(table, rows, untuned, tuned),)))
    return all_components(players, before, after, used)


def all_inseparable(num_left: int) -> str:
    """Why a table of which at most one row stands apart from rows of another table has nothing of its own to move."""
    return f"all its rows in use{' but one' if num_left else ''} are inseparable (not applicable)"


RANDOM, ROTATED = "random", "rotated"
CHANGES = (RANDOM, ROTATED)
"""``random``: each row moved as far as it was, in a direction of its own. ``rotated``: all rows' moves turned by one
random rotation, which keeps what rows share: every length, every angle between two rows' moves, all singular values."""


def perturbed(components: Components, coalition: int, kind: str, generator: np.random.Generator) -> Components:
    """The components with a random change, of the size of its own, in place of each player's of a coalition."""
    rotations: dict[int, RandomRotation] = {}
    if kind == ROTATED:
        # One for all, but where rows are narrower than the LayerNorm after their projection (DeBERTa-v2).
        sizes = dict.fromkeys(part.before.shape[1] for player in components.players for part in player.parts)
        rotations = {size: RandomRotation(size, generator) for size in sizes}

    def changed(part: Part) -> Part:
        rotation = rotations.get(part.before.shape[1])
        return randomised(part, generator) if rotation is None else rotation.turned(part)

    players = [
        replace(player, parts=tuple(map(changed, player.parts))) if coalition >> i & 1 else player
        for i, player in enumerate(components.players)
    ]
    return replace(components, players=tuple(players))


def randomised(part: Part, generator: np.random.Generator) -> Part:
    """The part with each row moved from ``before`` as far as it was, in a direction drawn at random."""
    change = part.after - part.before
    drawn = generator.standard_normal(change.shape)
    if part.is_centred:
        drawn -= drawn.mean(axis=1, keepdims=True)
    lengths, target_lengths = (np.linalg.norm(rows, axis=1, keepdims=True) for rows in (drawn, change))
    return replace(part, after=part.before + drawn * (target_lengths / lengths))


class RandomRotation:
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
    return any((part.after != part.before).any(axis=1).sum() > 1 for player in players for part in player.parts)


def fixed_components(
    trajectory: Trajectory, before: Mapping[str, Array], after: Mapping[str, Array], scored: Design
) -> Components:
    """W', P', S', the common offset m, inseparable rows, and LayerNorm, in the gauge of the run's own tokens.

    After Π each table loses its mean over the run's tokens, and m is the sum of the means: for every token Πe_x = w'_i
    + p'_j + s'_k + m. Rows that stand with each other only, in the run's tokens and in those that are scored ([CLS] and
    position 0) are a player of their own, ``inseparable rows``: nothing can say which of the two moved. They are left
    out of the means, unlike in :func:`toolkit.measure_gauge`: else either the means would show [CLS] + k, P0 - k, or a
    frozen table would move with its partner's shift (ours). ``scored``: what stands together in the scored items.

    ValueError where a projection stands before LayerNorm, or none reads the sum of the tables' rows.
    """
    refusal = why_no_gauge(trajectory)
    corpus = None if refusal else reference_corpus(trajectory)
    if corpus is None or corpus.is_projected:
        raise ValueError(f"{refusal or PROJECTED}: transplant in raw coordinates (--coordinates raw)")
    groups = joint_groups(corpus, scored, {name: len(before[name]) for name in corpus.tables})
    centres = measure_centres([Snapshot(0, 0, before), Snapshot(1, 0, after)], _main_corpus(corpus, groups))
    used = used_rows(scored)
    untuned, tuned = (_fix(state, centre, groups, used) for state, centre in zip((before, after), centres, strict=True))
    players, inseparable = [], []
    for name, rows in used.items():
        is_main = groups[name][rows] == 0
        separable, joint = (
            Part(name, rows[is_chosen], untuned[name][is_chosen], tuned[name][is_chosen], is_centred=True)
            for is_chosen in (is_main, ~is_main)
        )
        players.append(Player(PLAYER[name], (separable,), _why_still([name], before, after, separable, joint)))
        inseparable += [joint] if len(joint.before) else []
    stillness = _why_still(used, before, after)
    players += [Player(INSEPARABLE, tuple(inseparable), stillness)] if inseparable else []
    # A token has one row of each table, so that an offset of all rows of one is in every sum once.
    last_table = list(used)[-1]
    offsets = [centre.offset[None] for centre in centres]
    players.append(
        Player(OFFSET, (Part(last_table, used[last_table], offsets[0], offsets[1], is_centred=True),), stillness)
    )
    return all_components(players, before, after, used, [corpus.note] if corpus.note else [])


def _why_still(
    tables: Iterable[str],
    before: Mapping[str, Array],
    after: Mapping[str, Array],
    separable: Part | None = None,
    joint: Part | None = None,
) -> str:
    """The reason to give should a player of these tables not have moved; whether it has is not looked at here."""
    if all(np.array_equal(before[name], after[name]) for name in tables):
        return UNCHANGED
    if separable is None or joint is None or len(separable.before) > 1:
        return NOTHING_FIXED
    return all_inseparable(len(separable.before)) if len(joint.before) else ONE_ROW


def used_rows(scored: Design) -> dict[str, Indices]:
    """Table to the rows that any token uses, ascending."""
    columns = zip(scored.tables, scored.combinations.T, strict=True)
    return {name: np.unique(column).astype(np.intp) for name, column in columns}


def joint_groups(corpus: ReferenceCorpus, scored: Design, num_rows: Mapping[str, int]) -> dict[str, GroupLabels]:
    """Table to (rows,) groups of the run's and the scored tokens together; 0, the main group, for all other rows.

    The scored tokens may join what training never saw together. A group without the run's tokens has no mean of its
    own to be measured from and counts as main.
    """
    designs = [design for design in (corpus.design, scored) if design is not None]
    combinations = np.concatenate([design.combinations for design in designs]).astype(np.int32)
    counts = np.concatenate([design.counts for design in designs]).astype(np.int64)
    groups, first_table = label_groups(Design(scored.tables, combinations, counts), num_rows), scored.tables[0]
    is_used = groups[first_table] >= 0
    num_tokens = np.bincount(groups[first_table][is_used], corpus.frequencies[first_table][is_used]).astype(np.float64)
    trained_groups = [group for group in np.flatnonzero(num_tokens).tolist() if group != int(np.argmax(num_tokens))]
    return {
        name: np.where(np.isin(labels, trained_groups) & (name in scored.tables[:2]), labels + 1, 0)
        for name, labels in groups.items()
    }


def _main_corpus(corpus: ReferenceCorpus, groups: Mapping[str, GroupLabels]) -> ReferenceCorpus:
    """The corpus without the tokens of inseparable rows."""
    frequencies = {name: np.where(groups[name] == 0, values, 0.0) for name, values in corpus.frequencies.items()}
    if corpus.design is not None:
        is_main = groups[corpus.tables[0]][corpus.design.combinations[:, 0]] == 0
        columns = zip(corpus.tables, corpus.design.combinations[is_main].T, strict=True)
        counts = corpus.design.counts[is_main]
        frequencies = {n: np.bincount(c, counts, len(frequencies[n])).astype(np.float64) for n, c in columns}
    shares = {name: values / values.sum() for name, values in frequencies.items()}
    labels = {name: np.where(values > 0, 0, -1) for name, values in shares.items()}
    return replace(corpus, frequencies=shares, groups=labels, design=None)


def _fix(
    state: Mapping[str, Array], centre: Centre, groups: Mapping[str, GroupLabels], used: Mapping[str, Indices]
) -> dict[str, Array]:
    """Table to (used rows, hidden) W', P', S'. In each inseparable group the first table takes over the mean of the
    second's rows: a pair is one row then, and the other is 0.
    """
    fixed = {
        table: project(np.asarray(state[table][rows], np.float64)) - centre.means[table] for table, rows in used.items()
    }
    if len(used) == 1:
        return fixed
    first, second = list(used)[:2]
    labels = [groups[name][used[name]] for name in (first, second)]
    for group in np.unique(labels[1][labels[1] > 0]):
        shift = fixed[second][labels[1] == group].mean(axis=0)
        fixed[first][labels[0] == group] += shift
        fixed[second][labels[1] == group] -= shift
    return fixed
