"""Combinations of rows that were added up in one place in, what their sums cannot tell apart out: exact, no tolerance.

A null direction gives each used row a number so that the numbers of every combination add up to 0: moving the rows
along it changes no sum. With two tables they are the connected components of the graph that joins rows which occurred
together. A third table adds the offsets of its rows that the cycles of this graph leave free. All of it is integers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array
from toolkit.snapshots.exposure import Design

Labels = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class NullSpace:
    """A basis of the directions that no sum shows."""

    directions: Mapping[str, Array]
    """Table to (rows, null directions) float64, 0 in rows that were never used."""

    @property
    def num_directions(self) -> int:
        return int(next(iter(self.directions.values())).shape[1])


def label_groups(design: Design, num_rows: Mapping[str, int]) -> dict[str, Labels]:
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
    of_combination = labels[design.combinations[:, 0]]
    tokens = np.bincount(of_combination, design.counts, labels.max() + 1)
    rank = np.full(len(tokens), -1)
    rank[np.argsort(-tokens, kind="stable")] = np.arange(len(tokens))
    rank[tokens == 0] = -1
    groups[first], groups[second] = rank[labels[: num_rows[first]]], rank[labels[num_rows[first] :]]
    return groups


def offset_directions(groups: Mapping[str, Labels]) -> NullSpace:
    """The directions that groups alone prove: each group's first-table rows up and second-table rows down, and the
    first table up and the third down. All there are when every pair of groups and third rows occurred together.
    """
    names = tuple(groups)
    labels = np.arange(max(int(of_rows.max()) for of_rows in groups.values()) + 1)
    # One table has no other to be shifted against.
    columns = [(groups[name][:, None] == labels) * sign for name, sign in zip(names[:2], (1.0, -1.0), strict=False)]
    columns = columns if len(names) > 1 else [np.empty((len(groups[names[0]]), 0))]
    directions = dict(zip(names, columns, strict=False))
    if len(names) == 3:
        used = {name: (of_rows >= 0).astype(np.float64)[:, None] for name, of_rows in groups.items()}
        third = {names[0]: used[names[0]], names[1]: 0 * used[names[1]], names[2]: -used[names[2]]}
        directions[names[2]] = np.zeros((len(groups[names[2]]), len(labels)))
        directions = {name: np.hstack([directions[name], third[name]]) for name in names}
    return NullSpace(directions)


def null_space(design: Design, num_rows: Mapping[str, int]) -> NullSpace:
    """Every direction that the combinations leave free (ours): used rows - rank of the incidence matrix of them.

    With three tables: along a spanning forest of the first two tables' graph each row is an integer function of the
    third table's offsets s; what an edge outside the forest asks of s is an integer equation, solved in fractions.
    """
    groups = label_groups(design, num_rows)
    known = offset_directions(groups)
    if len(design.tables) < 3:
        return known
    first, second, third = design.tables
    used_third, places = np.unique(design.combinations[:, 2], return_inverse=True)
    potentials = _potentials(design, num_rows[first], num_rows[second], places.reshape(-1), len(used_third))
    ends = potentials[design.combinations[:, 0]], potentials[num_rows[first] + design.combinations[:, 1]]
    equations = ends[0] + ends[1] + np.eye(len(used_third), dtype=np.int64)[places.reshape(-1)]
    solutions = _solve(np.unique(equations, axis=0))
    of_third = np.zeros((num_rows[third], solutions.shape[1]))
    of_third[used_third] = solutions
    num_groups = int(groups[first].max()) + 1
    new = {first: potentials[: num_rows[first]] @ solutions, second: potentials[num_rows[first] :] @ solutions}
    new[third] = of_third
    return NullSpace({name: np.hstack([known.directions[name][:, :num_groups], new[name]]) for name in design.tables})


def _components(design: Design, num_first: int, num_second: int) -> Labels:
    """(num_first + num_second,) connected component of every row of the first two tables, used or not."""
    from scipy.sparse.csgraph import connected_components

    size = num_first + num_second
    graph = _graph(design.combinations[:, 0], num_first + design.combinations[:, 1], size)
    return np.asarray(connected_components(graph, directed=False)[1], np.intp)


def _graph(left: NDArray[np.integer[Any]], right: NDArray[np.integer[Any]], size: int) -> Any:
    """Sparse adjacency of the nodes: first-table rows, then second-table rows."""
    from scipy.sparse import coo_array

    return coo_array((np.ones(len(left), np.int32), (left, right)), shape=(size, size)).tocsr()


def _potentials(design: Design, num_first: int, num_second: int, places: Labels, num_third: int) -> NDArray[np.int64]:
    """(first + second rows, third rows) integers X so that x_i + x_j + s_k = 0 along a spanning forest for x = X s."""
    from scipy.sparse.csgraph import breadth_first_order

    root = num_first + num_second
    left, right = design.combinations[:, 0].astype(np.int64), num_first + design.combinations[:, 1].astype(np.int64)
    # One node more, joined to one node of each component, makes one tree of the forest.
    starts = np.unique(_components(design, num_first, num_second), return_index=True)[1]
    graph = _graph(np.r_[left, np.full(len(starts), root)], np.r_[right, starts], root + 1)
    order, before = breadth_first_order(graph, root, directed=False)
    edges, combination = np.unique(left * root + right, return_index=True)  # any combination may stand for its edge
    potentials = np.zeros((root + 1, num_third), np.int64)
    for node in order[1:].tolist():
        if (parent := int(before[node])) != root:
            edge = np.searchsorted(edges, min(node, parent) * root + max(node, parent))
            potentials[node] = -potentials[parent]
            potentials[node, places[combination[edge]]] -= 1
    return potentials[:root]


def _solve(equations: NDArray[np.int64]) -> Array:
    """(n, solutions) basis of the s with ``equations @ s == 0``, by Gauss-Jordan elimination in fractions."""
    num_columns = equations.shape[1]
    pivots: dict[int, list[Fraction]] = {}
    for equation in equations.tolist():
        row = [Fraction(value) for value in equation]
        for column, pivot in pivots.items():
            row = [a - row[column] * b for a, b in zip(row, pivot, strict=True)]
        lead = next((column for column, value in enumerate(row) if value), None)
        if lead is None:
            continue
        row = [value / row[lead] for value in row]
        for column, pivot in pivots.items():
            pivots[column] = [a - pivot[lead] * b for a, b in zip(pivot, row, strict=True)]
        pivots[lead] = row
    free = [column for column in range(num_columns) if column not in pivots]
    solutions = np.zeros((num_columns, len(free)))
    for index, column in enumerate(free):
        solutions[column, index] = 1
        for lead, pivot in pivots.items():
            solutions[lead, index] = float(-pivot[column])
    return solutions
