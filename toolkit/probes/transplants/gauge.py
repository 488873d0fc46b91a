"""The parameters before and after training and the tokens that are scored in, players that no offset confounds out."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from toolkit.analysis.gauge.centres import Centre, measure_centres, project
from toolkit.analysis.gauge.corpus import PROJECTED, ReferenceCorpus, reference_corpus
from toolkit.analysis.gauge.incidence import Labels, label_groups
from toolkit.analysis.rows.measures import Array
from toolkit.probes.transplants.components import (
    INSEPARABLE,
    NOTHING_FIXED,
    OFFSET,
    ONE_ROW,
    PLAYER,
    UNCHANGED,
    Components,
    Part,
    Player,
    Rows,
    all_inseparable,
    layer_norm_player,
    not_applicable,
)
from toolkit.snapshots.exposure import Design
from toolkit.snapshots.snapshot import Snapshot, Trajectory


def fixed_components(
    trajectory: Trajectory, before: Mapping[str, Array], after: Mapping[str, Array], scored: Design
) -> Components:
    """W', P', S', the common offset m, inseparable rows, and LayerNorm, in the gauge of the run's own tokens.

    After Π each table loses its mean over the run's tokens, and m is the sum of the means: for every token Πe_x = w'_i
    + p'_j + s'_k + m. Rows that stand with each other only, in the run's tokens and in those that are scored ([CLS] and
    position 0) are a player of their own, ``inseparable rows``: nothing can say which of the two moved. They are left
    out of the means, unlike in :func:`toolkit.measure_gauge`: else either the means would show [CLS] + k, P0 - k, or a
    frozen table would move with its partner's shift (ours). ``scored``: what stands together in the scored items.

    ValueError where a projection stands before LayerNorm.
    """
    corpus = reference_corpus(trajectory)
    if corpus.is_projected:
        raise ValueError(f"{PROJECTED}: transplant in raw coordinates (--coordinates raw)")
    groups = joint_groups(corpus, scored, {name: len(before[name]) for name in corpus.tables})
    main = _main_corpus(corpus, groups)
    ends = measure_centres([Snapshot(0, 0, before), Snapshot(1, 0, after)], main)
    used = used_rows(scored)
    own, tuned = (_fix(state, centre, groups, used) for state, centre in zip((before, after), ends, strict=True))
    players, apart = [], []
    for name, rows in used.items():
        is_main = groups[name][rows] == 0
        alone, others = (
            Part(name, rows[chosen], own[name][chosen], tuned[name][chosen], is_centred=True)
            for chosen in (is_main, ~is_main)
        )
        players.append(Player(PLAYER[name], (alone,), _stillness([name], before, after, alone, others)))
        apart += [others] if len(others.before) else []
    why = _stillness(used, before, after)
    players += [Player(INSEPARABLE, tuple(apart), why)] if apart else []
    last = list(used)[-1]
    offsets = [centre.offset[None] for centre in ends]
    players.append(Player(OFFSET, (Part(last, used[last], offsets[0], offsets[1], is_centred=True),), why))
    missing = [player for table, player in PLAYER.items() if table not in used]
    notes = (*not_applicable(missing), *([corpus.note] if corpus.note else []))
    return Components((*players, *layer_norm_player(before, after)), notes)


def _stillness(
    tables: Iterable[str],
    before: Mapping[str, Array],
    after: Mapping[str, Array],
    alone: Part | None = None,
    others: Part | None = None,
) -> str:
    """Why a player of these tables has not moved, if it has not: a table that moved may leave nothing of its own."""
    if all(np.array_equal(before[name], after[name]) for name in tables):
        return UNCHANGED
    if alone is None or others is None or len(alone.before) > 1:
        return NOTHING_FIXED
    return all_inseparable(len(alone.before)) if len(others.before) else ONE_ROW


def used_rows(scored: Design) -> dict[str, Rows]:
    """Table to the rows that any token uses, ascending."""
    columns = zip(scored.tables, scored.combinations.T, strict=True)
    return {name: np.unique(column).astype(np.intp) for name, column in columns}


def joint_groups(corpus: ReferenceCorpus, scored: Design, num_rows: Mapping[str, int]) -> dict[str, Labels]:
    """Table to (rows,) groups of the run's and the scored tokens together; 0, the main group, for all other rows.

    The scored tokens may join what the run never showed together. A group without the run's tokens has no mean of its
    own to be measured from and counts as main.
    """
    designs = [design for design in (corpus.design, scored) if design is not None]
    combinations = np.concatenate([design.combinations for design in designs]).astype(np.int32)
    counts = np.concatenate([design.counts for design in designs]).astype(np.int64)
    groups = label_groups(Design(scored.tables, combinations, counts), num_rows)
    first = scored.tables[0]
    largest = int(np.argmax(_tokens_of_groups(corpus, groups[first], first)))
    known = set(np.flatnonzero(_tokens_of_groups(corpus, groups[first], first)).tolist()) - {largest}
    return {
        name: np.where(np.isin(labels, list(known)) & (name in scored.tables[:2]), labels + 1, 0)
        for name, labels in groups.items()
    }


def _tokens_of_groups(corpus: ReferenceCorpus, labels: Labels, table: str) -> Array:
    used = labels >= 0
    return np.bincount(labels[used], corpus.frequencies[table][used]).astype(np.float64)


def _main_corpus(corpus: ReferenceCorpus, groups: Mapping[str, Labels]) -> ReferenceCorpus:
    """The corpus without the tokens of inseparable rows."""
    frequencies = {name: np.where(groups[name] == 0, values, 0.0) for name, values in corpus.frequencies.items()}
    if corpus.design is not None:
        first = corpus.tables[0]
        is_main = groups[first][corpus.design.combinations[:, 0]] == 0
        columns = zip(corpus.tables, corpus.design.combinations[is_main].T, strict=True)
        counts = corpus.design.counts[is_main]
        frequencies = {n: np.bincount(c, counts, len(frequencies[n])).astype(np.float64) for n, c in columns}
    shares = {name: values / values.sum() for name, values in frequencies.items()}
    labels = {name: np.where(values > 0, 0, -1) for name, values in shares.items()}
    return replace(corpus, frequencies=shares, groups=labels, design=None)


def _fix(
    state: Mapping[str, Array], centre: Centre, groups: Mapping[str, Labels], used: Mapping[str, Rows]
) -> dict[str, Array]:
    """Table to (used rows, hidden) W', P', S'. In each inseparable group the first table takes over the mean of the
    second's rows: a pair is one row then, and the other is 0.
    """
    fixed = {n: project(np.asarray(state[n][rows], np.float64)) - centre.means[n] for n, rows in used.items()}
    if len(used) == 1:
        return fixed
    first, second = list(used)[:2]
    labels = [groups[name][used[name]] for name in (first, second)]
    for group in np.unique(labels[1][labels[1] > 0]):
        shift = fixed[second][labels[1] == group].mean(axis=0)
        fixed[first][labels[0] == group] += shift
        fixed[second][labels[1] == group] -= shift
    return fixed
