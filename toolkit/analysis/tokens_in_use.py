"""How often a run used each row, and which rows it used together."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.measures import Array
from toolkit.analysis.strata import count_rows, input_tokens, table_exposure
from toolkit.families import TABLES
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.logs import Design
from toolkit.snapshots.snapshot import Trajectory
from toolkit.snapshots.store import Source, trajectory_of

GroupLabels = NDArray[np.intp]


def label_groups(design: Design, num_rows: Mapping[str, int]) -> dict[str, GroupLabels]:
    """Per table (rows,): the group of each row, 0 the one with most tokens, -1 never used.

    Groups are the connected components of the first two tables' rows; the rows of a third table are all in group 0.
    Between two groups nothing is shared but the third table, so each can be shifted against the others unseen:
    [CLS] with position 0 is such a group.
    """
    groups = {name: np.full(num_rows[name], -1) for name in design.tables}
    for name, column in zip(design.tables, design.combinations.T, strict=True):
        groups[name][column] = 0
    if len(design.tables) == 1:
        return groups
    first, second = design.tables[:2]
    labels = _components(design, num_rows[first], num_rows[second])
    tokens = np.bincount(labels[design.combinations[:, 0]], design.counts, labels.max() + 1)
    # The group of each component: by its number of tokens, the most first; -1 of one that no token uses.
    group_of = np.full(len(tokens), -1)
    group_of[np.argsort(-tokens, kind="stable")] = np.arange(len(tokens))
    group_of[tokens == 0] = -1
    groups[first] = group_of[labels[: num_rows[first]]]
    groups[second] = group_of[labels[num_rows[first] :]]
    return groups


def count_offsets(groups: Mapping[str, GroupLabels]) -> int:
    """The null directions that groups alone prove, which no sum of rows shows.

    Each group's first-table rows up and second-table rows down, and the first table up and the third down. All there
    are when every pair of groups and third rows occurred together.
    """
    num_groups = 1 + max(int(labels.max()) for labels in groups.values())
    # One table has no other to be shifted against.
    return 0 if len(groups) == 1 else num_groups + (len(groups) == 3)


def count_null_directions(design: Design, num_rows: Mapping[str, int]) -> int:
    """How many directions the combinations leave free (ours): used rows - rank of the incidence matrix of them.

    With three tables: along a spanning forest of the first two tables' graph each row is an integer function of the
    third table's offsets s; what an edge outside the forest asks of s is an integer equation.
    """
    groups = label_groups(design, num_rows)
    if len(design.tables) < 3:
        return count_offsets(groups)
    first, second, _ = design.tables
    used_third, third_of = np.unique(design.combinations[:, 2], return_inverse=True)
    potentials = _potentials(design, num_rows[first], num_rows[second], third_of, len(used_third))
    of_first_rows = potentials[design.combinations[:, 0]]
    of_second_rows = potentials[num_rows[first] + design.combinations[:, 1]]
    equations = of_first_rows + of_second_rows + np.eye(len(used_third), dtype=np.int64)[third_of]
    num_groups = int(groups[first].max()) + 1
    return num_groups + len(used_third) - int(np.linalg.matrix_rank(np.unique(equations, axis=0)))


def _components(design: Design, num_first: int, num_second: int) -> GroupLabels:
    """(num_first + num_second,) connected component of every row of the first two tables, used or not."""
    from scipy.sparse.csgraph import connected_components

    graph = _graph(design.combinations[:, 0], num_first + design.combinations[:, 1], num_first + num_second)
    return np.asarray(connected_components(graph, directed=False)[1], np.intp)


def _graph(left: NDArray[np.integer[Any]], right: NDArray[np.integer[Any]], size: int) -> Any:
    """Sparse adjacency of the nodes: first-table rows, then second-table rows."""
    from scipy.sparse import coo_array

    return coo_array((np.ones(len(left), np.int32), (left, right)), shape=(size, size)).tocsr()


def _potentials(
    design: Design, num_first: int, num_second: int, third_of: GroupLabels, num_third: int
) -> NDArray[np.int64]:
    """(first + second rows, third rows) integers X so that x_i + x_j + s_k = 0 along a spanning forest for x = X s.

    ``third_of``: (combinations,) which of the ``num_third`` rows of the third table each has.
    """
    from scipy.sparse.csgraph import breadth_first_order

    root = num_first + num_second
    left, right = design.combinations[:, 0].astype(np.int64), num_first + design.combinations[:, 1].astype(np.int64)
    # One node more, joined to one node of each component, makes one tree of the forest.
    _, starts = np.unique(_components(design, num_first, num_second), return_index=True)
    graph = _graph(np.r_[left, np.full(len(starts), root)], np.r_[right, starts], root + 1)
    order, parents = breadth_first_order(graph, root, directed=False)
    edges, combination = np.unique(left * root + right, return_index=True)  # any combination may stand for its edge
    potentials = np.zeros((root + 1, num_third), np.int64)
    for node in order[1:].tolist():
        if (parent := int(parents[node])) != root:
            edge = np.searchsorted(edges, min(node, parent) * root + max(node, parent))
            potentials[node] = -potentials[parent]
            potentials[node, third_of[combination[edge]]] -= 1
    return potentials[:root]


PROJECTED = "the sums are projected before LayerNorm, and no snapshot holds the projection: Π is no gauge here"

NO_NORM = "not applicable: no LayerNorm follows the embeddings of this model"
DIFFERENT_WIDTHS = "not applicable: the tables differ in width, so that no sum of their rows is what LayerNorm reads"

FIRST_TOKENS = ("[CLS]", "<s>")
"""Special tokens that stand at the first position of every text, and nowhere else."""


@dataclass(frozen=True, slots=True)
class ReferenceCorpus:
    """The tokens that a gauge is fixed with: those of the whole run, so that it is the same at every epoch."""

    frequencies: Mapping[str, Array]
    """Table to (rows,) float64: share of the tokens that used each row; adds up to 1."""
    groups: Mapping[str, GroupLabels]
    """Table to (rows,): see :func:`label_groups`; group 0 unless rows are inseparable."""
    design: Design | None
    frequency_source: str
    """``run's tokens`` or ``uniform``."""
    note: str
    """What had to be assumed; empty when exposure and design were recorded."""
    is_projected: bool = False
    """Whether the sums are projected to another width before LayerNorm (DeBERTa with a small embedding size)."""

    @property
    def tables(self) -> tuple[str, ...]:
        return tuple(self.frequencies)

    @property
    def num_groups(self) -> int:
        return 1 + max(int(labels.max()) for labels in self.groups.values())

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Groups of one row of the first and one of the second table, without the main group."""
        if len(self.tables) == 1:
            return []
        first_labels, second_labels = (self.groups[name] for name in self.tables[:2])
        rows_of_groups = [
            (np.flatnonzero(first_labels == group), np.flatnonzero(second_labels == group))
            for group in range(1, self.num_groups)
        ]
        return [(int(first[0]), int(second[0])) for first, second in rows_of_groups if len(first) == len(second) == 1]

    @property
    def num_null_directions(self) -> int:
        """Directions that no sum of rows shows; without a design those that are certain."""
        if self.design is None:
            return count_offsets(self.groups)
        return count_null_directions(self.design, {name: len(values) for name, values in self.frequencies.items()})


def why_no_gauge(trajectory: Trajectory) -> str:
    """Why LayerNorm reads no sum of the tables' rows, as a clause; empty where it does."""
    if trajectory.layer_norm_eps is None:
        return NO_NORM
    tensors = trajectory.snapshots[0].tensors
    return (
        DIFFERENT_WIDTHS
        if len({tensors[name].shape[-1] for name in trajectory.parameters if name in TABLES}) > 1
        else ""
    )


SEES_WORDS = (
    "is the output layer too, whose softmax is blind to one offset of all words alone: an offset of a word or a pair "
    "of rows, which the input does not show, shows there"
)


def reference_corpus(trajectory: Trajectory) -> ReferenceCorpus:
    """The run's own tokens; uniform frequencies, and a note, without exposure.

    ValueError when the model has no embedding table or the recorded design lacks one, and for a model whose tables
    LayerNorm does not read as one sum.
    """
    tables = [name for name in trajectory.parameters if name in TABLES]
    if not tables:
        raise ValueError(f"a gauge needs embedding tables; this run has only {', '.join(trajectory.parameters)}")
    if why := why_no_gauge(trajectory):
        raise ValueError(why)
    counts = {name: _token_counts(trajectory, name) for name in tables}
    is_recorded = all(values is not None for values in counts.values())
    design = _design(trajectory, tables)
    if is_recorded:
        frequencies = {name: values / values.sum() for name, values in counts.items() if values is not None}
    else:
        frequencies = {name: _uniform(trajectory, name) for name in tables}
    notes = [] if is_recorded else ["uniform frequencies: no exposure was recorded"]
    if tied := [name for name in tables if input_tokens(trajectory, name) is not None]:
        notes.append(f"{', '.join(tied)} {SEES_WORDS}")
    if design is not None:
        sizes = {name: len(values) for name, values in frequencies.items()}
        groups = label_groups(design, sizes)
        if num_more := count_null_directions(design, sizes) - count_offsets(groups):
            notes.append(f"{num_more} more null directions than groups explain: the fixed gauge leaves them free")
    else:
        groups = {name: np.where(values > 0, 0, -1) for name, values in frequencies.items()}
        notes.append("tables taken as independent: no design was recorded")
        if pair := _first_pair(trajectory, counts):
            notes.append("the first token and its position taken as inseparable, as the vocabulary tells")
            words, positions = tables[:2]
            first_word, first_position = pair
            groups[words][first_word] = groups[positions][first_position] = 1
            if not is_recorded:  # both rows of a pair are used by the same tokens
                share = frequencies[positions][first_position]
                frequencies[words] *= (1 - share) / (1 - frequencies[words][first_word])
                frequencies[words][first_word] = share
    source = "run's tokens" if is_recorded else "uniform"
    widths = {trajectory.snapshots[0].tensors[name].shape[-1] for name in trajectory.parameters}
    return ReferenceCorpus(frequencies, groups, design, source, "; ".join(notes), len(widths) > 1)


def draw_combinations(
    corpus: ReferenceCorpus, max_combinations: int, seed: int
) -> tuple[NDArray[np.int64], Array, str]:
    """(n, tables) rows that stand together, (n,) their shares, and how they were got.

    All of the design when it has no more than ``max_combinations``; else as many tokens drawn from it with
    replacement. Without a design each table is drawn on its own from its frequencies, within the same group.
    """
    generator = np.random.default_rng(seed)
    if corpus.design is not None:
        rows, counts = corpus.design.combinations.astype(np.int64), corpus.design.counts
        if len(rows) <= max_combinations:
            return rows, counts / counts.sum(), "all combinations of the run"
        counts = generator.multinomial(max_combinations, counts / counts.sum())
        description = f"{max_combinations:,} tokens drawn from {len(rows):,} combinations with seed {seed}"
        return rows[counts > 0], counts[counts > 0] / max_combinations, description
    first_table, *later_tables = corpus.tables
    columns = [
        generator.choice(len(corpus.frequencies[first_table]), max_combinations, p=corpus.frequencies[first_table])
    ]
    for name in later_tables:
        column = np.empty(max_combinations, np.int64)
        # The first two tables are drawn within a group, as [CLS] stands with position 0 alone; a third has one group.
        group_of_token = (
            corpus.groups[first_table][columns[0]] if name == corpus.tables[1] else np.zeros(max_combinations, int)
        )
        for group in np.unique(group_of_token):
            shares = np.where(corpus.groups[name] == group, corpus.frequencies[name], 0)
            tokens = np.flatnonzero(group_of_token == group)
            column[tokens] = generator.choice(len(shares), len(tokens), p=shares / shares.sum())
        columns.append(column)
    rows, drawn = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
    return rows, drawn / max_combinations, f"tables drawn independently, {max_combinations:,} tokens with seed {seed}"


def _token_counts(trajectory: Trajectory, table: str) -> NDArray[np.int64] | None:
    """(rows,) tokens that used each row of a table; None where that is unknown, or no token did."""
    if (at_input := input_tokens(trajectory, table)) is not None:
        return at_input
    exposure = table_exposure(trajectory, table)
    counts = None if exposure is None else exposure.token_counts(count_rows(trajectory, table))
    return counts if counts is not None and counts.any() else None


def _design(trajectory: Trajectory, tables: list[str]) -> Design | None:
    """The recorded design with its columns in the order of the tables."""
    design = trajectory.exposure.design if trajectory.exposure else None
    if design is None or not len(design.counts):
        return None
    if missing := [name for name in tables if name not in design.tables]:
        raise ValueError(f"the design of this run lacks {', '.join(missing)}: it has {', '.join(design.tables)}")
    columns = [design.tables.index(name) for name in tables]
    return Design(tuple(tables), design.combinations[:, columns], design.counts)


def _uniform(trajectory: Trajectory, table: str) -> Array:
    """Equal frequencies of all rows that a real token can use: not of [PAD], nor of RoBERTa's padding positions."""
    shares = np.ones(count_rows(trajectory, table))
    if table == "position_embeddings":
        shares[: trajectory.position_offset] = 0
    if table == "word_embeddings" and trajectory.vocabulary and trajectory.vocabulary.pad_row is not None:
        shares[trajectory.vocabulary.pad_row] = 0
    return np.asarray(shares / shares.sum())


def _first_pair(trajectory: Trajectory, counts: Mapping[str, NDArray[np.int64] | None]) -> tuple[int, int] | None:
    """The rows of the first token and the first position, if the vocabulary names one and their counts agree."""
    vocabulary, first_position = trajectory.vocabulary, trajectory.position_offset
    if vocabulary is None or tuple(counts)[:2] != TABLES[:2]:
        return None
    rows = [row for row in vocabulary.special_rows if vocabulary.tokens[row] in FIRST_TOKENS]
    if len(rows) != 1:
        return None
    (first_word,) = rows
    word_counts, position_counts = (counts[name] for name in TABLES[:2])
    if word_counts is not None and position_counts is not None:
        num_tokens = word_counts[first_word]
        is_alone = num_tokens == word_counts.sum()
        if num_tokens == 0 or num_tokens != position_counts[first_position] or is_alone:
            return None
    return first_word, first_position


UNKNOWN_DESIGN = "no design was recorded: not known"


@with_columns
def measure_design(source: Source) -> pd.DataFrame:
    """How many directions the run's tokens leave free, one quantity per line.

    ``num_tokens``, ``num_combinations`` (distinct), ``num_used_rows`` over all tables, ``rank`` of their incidence
    matrix (exact, from a graph: ours), ``rank_deficiency`` (used rows - rank), ``rank_deficiency_crossed`` (what is
    left where everything occurred with everything: the least there can be) and ``num_inseparable_groups`` (rows that no
    token shared with the rest, such as [CLS] and position 0). Without a recorded design the rank is not known: NaN.
    """
    corpus = reference_corpus(trajectory_of(source))
    design = corpus.design
    num_used = sum(int(np.count_nonzero(values)) for values in corpus.frequencies.values())
    values = dict.fromkeys(("num_tokens", "num_combinations", "num_used_rows", "rank", "rank_deficiency"), math.nan)
    reasons = dict.fromkeys(values, "" if design else UNKNOWN_DESIGN)
    if design:
        deficiency = corpus.num_null_directions
        quantities = (int(design.counts.sum()), len(design.counts), num_used, num_used - deficiency, deficiency)
        values = dict(zip(values, map(float, quantities), strict=True))
    elif corpus.frequency_source != "uniform":
        values["num_used_rows"], reasons["num_used_rows"] = num_used, ""
    values["rank_deficiency_crossed"] = len(corpus.tables) - 1
    values["num_inseparable_groups"] = corpus.num_groups - 1
    notes = {"num_inseparable_groups": corpus.note}
    records = [(name, float(value), reasons.get(name, ""), notes.get(name, "")) for name, value in values.items()]
    return pd.DataFrame(records, columns=columns_of("measure_design"))
