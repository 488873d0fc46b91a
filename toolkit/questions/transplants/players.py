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
        terms: dict[str, list[tuple[Indices | None, Array]]] = {}
        for i, player in enumerate(self.players):
            for part in player.parts:
                values = part.after if has_player(coalition, i) else part.before
                terms.setdefault(part.parameter, []).append((part.rows, values))
        return {parameter: _add_terms(parameter_terms) for parameter, parameter_terms in terms.items()}


def has_player(coalition: int, i: int) -> bool:
    """Whether player ``i`` is in a coalition, a number of which each bit is a player."""
    return bool(coalition >> i & 1)


def _add_terms(terms: Sequence[tuple[Indices | None, Array]]) -> tuple[Indices | None, Array]:
    """What one parameter holds, an entry of a Placement, from what each player's part puts into rows of it."""
    rows_of_terms = [rows for rows, _ in terms if rows is not None]
    if not rows_of_terms:  # a vector is the only part of its parameter
        _, vector = terms[0]
        return None, vector[0]
    all_rows = np.unique(np.concatenate(rows_of_terms))
    values_of_terms = [values for _, values in terms]
    width = values_of_terms[0].shape[1]
    sums = np.zeros((len(all_rows), width))
    for rows, values in zip(rows_of_terms, values_of_terms, strict=True):
        sums[np.searchsorted(all_rows, rows)] += values
    return all_rows, sums


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
        untuned = np.asarray(before[table][rows], np.float64)
        tuned = np.asarray(after[table][rows], np.float64)
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
        widths = dict.fromkeys(part.before.shape[1] for player in components.players for part in player.parts)
        rotations = {width: RandomRotation(width, generator) for width in widths}

    def changed(part: Part) -> Part:
        rotation = rotations.get(part.before.shape[1])
        return randomised(part, generator) if rotation is None else rotation.turned(part)

    players = [
        replace(player, parts=tuple(map(changed, player.parts))) if has_player(coalition, i) else player
        for i, player in enumerate(components.players)
    ]
    return replace(components, players=tuple(players))


def randomised(part: Part, generator: np.random.Generator) -> Part:
    """The part with each row moved from ``before`` as far as it was, in a direction drawn at random."""
    change = part.after - part.before
    directions = generator.standard_normal(change.shape)
    if part.is_centred:
        directions -= directions.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    target_lengths = np.linalg.norm(change, axis=1, keepdims=True)
    return replace(part, after=part.before + directions * (target_lengths / lengths))


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
    players, inseparable_parts = [], []
    for name, rows in used.items():
        is_main = groups[name][rows] == 0
        separable_part, inseparable_part = (
            Part(name, rows[mask], untuned[name][mask], tuned[name][mask], is_centred=True)
            for mask in (is_main, ~is_main)
        )
        players.append(
            Player(PLAYER[name], (separable_part,), _why_still([name], before, after, separable_part, inseparable_part))
        )
        inseparable_parts += [inseparable_part] if len(inseparable_part.before) else []
    stillness = _why_still(used, before, after)
    if inseparable_parts:
        players.append(Player(INSEPARABLE, tuple(inseparable_parts), stillness))
    # A token has one row of each table, so that an offset of all rows of one is in every sum once.
    last_table = list(used)[-1]
    offset_before, offset_after = (centre.offset[None] for centre in centres)
    offset = Part(last_table, used[last_table], offset_before, offset_after, is_centred=True)
    players.append(Player(OFFSET, (offset,), stillness))
    return all_components(players, before, after, used, [corpus.note] if corpus.note else [])


def _why_still(
    tables: Iterable[str],
    before: Mapping[str, Array],
    after: Mapping[str, Array],
    separable: Part | None = None,
    inseparable: Part | None = None,
) -> str:
    """The reason to give should a player of these tables not have moved; whether it has is not looked at here."""
    if all(np.array_equal(before[name], after[name]) for name in tables):
        return UNCHANGED
    if separable is None or inseparable is None or len(separable.before) > 1:
        return NOTHING_FIXED
    return all_inseparable(len(separable.before)) if len(inseparable.before) else ONE_ROW


def used_rows(scored: Design) -> dict[str, Indices]:
    """Table to the rows that any token uses, ascending."""
    rows_of_tables = zip(scored.tables, scored.combinations.T, strict=True)
    return {name: np.unique(rows).astype(np.intp) for name, rows in rows_of_tables}


def joint_groups(corpus: ReferenceCorpus, scored: Design, num_rows: Mapping[str, int]) -> dict[str, GroupLabels]:
    """Table to (rows,) groups of the run's and the scored tokens together; 0, the main group, for all other rows.

    The scored tokens may join what training never saw together. A group without the run's tokens has no mean of its
    own to be measured from and counts as main.
    """
    designs = [design for design in (corpus.design, scored) if design is not None]
    combinations = np.concatenate([design.combinations for design in designs]).astype(np.int32)
    counts = np.concatenate([design.counts for design in designs]).astype(np.int64)
    groups = label_groups(Design(scored.tables, combinations, counts), num_rows)
    # Each token has one row of the first table, so that its rows' frequencies count the tokens of a group.
    first_table = scored.tables[0]
    is_used = groups[first_table] >= 0
    num_tokens = np.bincount(groups[first_table][is_used], corpus.frequencies[first_table][is_used]).astype(np.float64)
    main_group = int(np.argmax(num_tokens))
    trained_groups = [group for group in np.flatnonzero(num_tokens).tolist() if group != main_group]
    return {
        name: np.where(np.isin(labels, trained_groups) & (name in scored.tables[:2]), labels + 1, 0)
        for name, labels in groups.items()
    }


def _main_corpus(corpus: ReferenceCorpus, groups: Mapping[str, GroupLabels]) -> ReferenceCorpus:
    """The corpus without the tokens of inseparable rows."""
    frequencies = {name: np.where(groups[name] == 0, values, 0.0) for name, values in corpus.frequencies.items()}
    if corpus.design is not None:
        is_main = groups[corpus.tables[0]][corpus.design.combinations[:, 0]] == 0
        rows_of_tables = zip(corpus.tables, corpus.design.combinations[is_main].T, strict=True)
        counts = corpus.design.counts[is_main]
        frequencies = {
            name: np.bincount(rows, counts, len(frequencies[name])).astype(np.float64) for name, rows in rows_of_tables
        }
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
    first_groups = groups[first][used[first]]
    second_groups = groups[second][used[second]]
    for group in np.unique(second_groups[second_groups > 0]):  # 0 is the main group
        shift = fixed[second][second_groups == group].mean(axis=0)
        fixed[first][first_groups == group] += shift
        fixed[second][second_groups == group] -= shift
    return fixed
