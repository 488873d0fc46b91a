"""Drift of the embedding output itself, and the share of it that each component accounts for."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.blocks import iterate_blocks
from toolkit.analysis.gauge import INSEPARABLE, LAYER_NORM, OFFSET, Centre, measure_centres, project
from toolkit.analysis.measures import Array
from toolkit.analysis.shapley import shapley_values
from toolkit.analysis.tokens_in_use import PROJECTED, ReferenceCorpus, draw_combinations, reference_corpus
from toolkit.naming import at_least
from toolkit.progress import shows_progress
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.snapshot import Epochs, Snapshot
from toolkit.snapshots.store import Source, trajectory_of

WHOLE = "embedding output"
NO_OUTPUT = "undefined: the embedding output of the reference is 0 for every token, and nothing can be a share of it"
FLAT = 1e-12
"""A sum of rows whose columns differ by less than this share of it does not vary: rounding leaves as much."""
BLOCK = 256
"""Combinations at a time: what is computed from a block stays in the cache."""


def normalise(rows: Array, eps: float) -> Array:
    """LayerNorm of (n, hidden) rows before weight and bias (Ba et al. 2016, arXiv 1607.06450), eps as in torch."""
    centred = project(rows)
    return np.asarray(centred / np.sqrt(np.mean(np.square(centred), axis=1, keepdims=True) + eps))


@shows_progress("functional drift")
@with_columns
def functional_drift(
    source: Source,
    epochs: Epochs = None,
    *,
    reference_epoch: float = 0,
    max_combinations: int = 10_000,
    seed: int = 0,
) -> pd.DataFrame:
    """How far the embedding layer's output moved over the run's own tokens, split by component.

    Parameters
    ----------
    max_combinations
        Combinations of rows to evaluate; more than these are sampled, and ``sample`` says how.

    Returns
    -------
    pandas.DataFrame
        ``functional_drift`` of the ``embedding output`` is E_x‖LN(eᵗ_x) - LN(e⁰_x)‖² / E_x‖LN(e⁰_x)‖², a share of the
        squared norm before. All is NaN where the output before is 0.

        ``shapley`` of each component is its share of that drift; the values add up to it and can be negative. The
        components are W', P', S' in the fixed gauge (by the tables' names), m (``common offset``), weight and bias
        together (``LayerNorm``) and ``inseparable rows`` ([CLS] and position 0), of which nothing can say whether the
        word or the position moved. A component that the model lacks has no line.

        A common scale of all tables changes no output but does move each component: ``note`` warns where it could
        matter to the split. A model with a projection before LayerNorm has one line, NaN.

    Notes
    -----
    v(S) is the functional drift when the components in S are from the epoch and the rest from the reference; Shapley
    values as of Shapley 1953. The split into these components is ours.
    """
    trajectory = trajectory_of(source)
    corpus = reference_corpus(trajectory)
    eps = trajectory.layer_norm_eps
    assert eps is not None
    at_least("max_combinations", max_combinations, 1)
    rows, shares, sample = draw_combinations(corpus, max_combinations, seed)
    chosen = trajectory.chosen(epochs)
    if corpus.is_projected:
        cells = (WHOLE, "functional_drift", math.nan, sample, PROJECTED, "")
        records = [(float(s.epoch), s.step, *cells) for s in chosen]
        return pd.DataFrame(records, columns=columns_of("functional_drift"))
    reference, *centres = measure_centres([trajectory.at(reference_epoch), *chosen], corpus)
    before = _State.load(trajectory.at(reference_epoch), reference, corpus, rows)
    records = []
    for snapshot, centre in zip(chosen, centres, strict=True):
        drift, players, coalitions = play(before, _State.load(snapshot, centre, corpus, rows), shares, eps)
        scale = centre.scale_since(reference)
        reason = NO_OUTPUT if math.isnan(drift) else ""
        warning = "a common scale of the tables, which no output shows, weighs in the split"
        is_small = drift > 0 and (scale - 1) ** 2 > 0.01 * drift
        note = "; ".join(filter(None, (warning if is_small else "", corpus.note)))
        facts = (sample, reason, note)
        moment = (float(snapshot.epoch), snapshot.step)
        records.append((*moment, WHOLE, "functional_drift", drift, *facts))
        split = shapley_values(coalitions).tolist()
        records += [(*moment, name, "shapley", value, *facts) for name, value in zip(players, split, strict=True)]
    return pd.DataFrame(records, columns=columns_of("functional_drift"))


@dataclass(frozen=True, slots=True)
class _State:
    """One snapshot, ready to be taken apart: the rows that the combinations use."""

    rows: Mapping[str, Array]
    """Table to those of its rows that any combination has, (rows, hidden) float64."""
    indices: Mapping[str, NDArray[np.intp]]
    """Table to (combinations,): which of these rows each combination has."""
    labels: Mapping[str, NDArray[np.intp]]
    """Table to (combinations,): the group of that row; above 0 of inseparable ones."""
    centre: Centre
    weight: Array
    bias: Array
    has_layer_norm: bool

    @classmethod
    def load(
        cls, snapshot: Snapshot, centre: Centre, corpus: ReferenceCorpus, combinations: NDArray[np.int64]
    ) -> "_State":
        """One snapshot as the combinations, (n, tables) rows, use it."""
        rows, indices, labels = {}, {}, {}
        for name, column in zip(corpus.tables, combinations.T, strict=True):
            distinct, indices[name] = np.unique(column, return_inverse=True)
            rows[name] = np.asarray(snapshot.tensors[name][distinct], np.float64)
            labels[name] = corpus.groups[name][column]
        hidden = len(centre.offset)
        weight, bias = (
            next(iterate_blocks([snapshot], name))[1][0][0] if name in snapshot.tensors else None
            for name in (f"{LAYER_NORM}.weight", f"{LAYER_NORM}.bias")
        )
        return cls(
            rows,
            indices,
            labels,
            centre,
            np.ones(hidden) if weight is None else weight,
            np.zeros(hidden) if bias is None else bias,
            weight is not None or bias is not None,
        )

    @property
    def has_inseparable(self) -> bool:
        """Whether any combination is of inseparable rows."""
        return any(bool((labels > 0).any()) for labels in self.labels.values())

    @property
    def players(self) -> tuple[str, ...]:
        """The components of a sum: the tables, inseparable rows if there are any, the common offset."""
        return (*self.rows, *([INSEPARABLE] if self.has_inseparable else []), OFFSET)

    def sums(self, block: slice) -> Array:
        """(n, hidden) e_x as the model adds it up."""
        return np.asarray(sum(self.rows[name][indices[block]] for name, indices in self.indices.items()))

    def parts(self, block: slice) -> list[Array]:
        """(n, hidden) or (hidden,) of each of the players; they add up to Πe_x."""
        terms = []
        num_combinations = len(next(iter(self.indices.values()))[block])
        inseparable = np.zeros((num_combinations, len(self.centre.offset)))
        for name, indices in self.indices.items():
            labels = self.labels[name][block]
            term = self.centre.fix(name, project(self.rows[name][indices[block]]), labels)
            inseparable[labels > 0] += term[labels > 0]
            term[labels > 0] = 0
            terms.append(term)
        return [*terms, *([inseparable] if self.has_inseparable else []), self.centre.offset]


def play(before: _State, after: _State, shares: Array, eps: float) -> tuple[float, tuple[str, ...], Array]:
    """The functional drift (of the rows as they are), the players, and (2^players,) v(S) as of shapley_values.

    Every coalition of the components of two states, in blocks of combinations; shares: (combinations,).
    """
    players = (*before.players, *([LAYER_NORM] if before.has_layer_norm else []))
    values, drift, output_size = np.zeros(2 ** len(players)), 0.0, 0.0
    has_output = bool(before.bias.any())
    for start in range(0, len(shares), BLOCK):
        block = slice(start, start + BLOCK)
        sums = before.sums(block)
        has_output = has_output or bool(np.any(_squares(project(sums)) > FLAT**2 * _squares(sums)))
        output_before = normalise(sums, eps) * before.weight + before.bias
        output_after = normalise(after.sums(block), eps) * after.weight + after.bias
        output_size += float(shares[block] @ _squares(output_before))
        drift += float(shares[block] @ _squares(output_after - output_before))
        terms = before.parts(block)
        changes = [term_after - term for term, term_after in zip(terms, after.parts(block), strict=True)]
        norms = [(before.weight, before.bias)]
        if before.has_layer_norm:
            norms.append((after.weight, after.bias))
        base_output = None
        for coalition, total in _coalitions(sum(terms[:-1], start=terms[-1]), changes):
            directions = normalise(total, eps)
            base_output = directions * before.weight + before.bias if base_output is None else base_output
            for has_norm, (weight, bias) in enumerate(norms):
                index = coalition | has_norm << len(changes)
                values[index] += shares[block] @ _squares(directions * weight + bias - base_output)
    output_size = (
        output_size if has_output and output_size > 0 else math.nan
    )  # what rounding leaves of no output is none
    return drift / output_size, players, values / output_size


def _coalitions(total: Array, changes: list[Array], first: int = 0, coalition: int = 0) -> Iterator[tuple[int, Array]]:
    """Every coalition of the changes and the sum with them, none first; each sum is one addition from another, and
    a change of exactly 0 leaves it exactly the same.
    """
    if first == len(changes):
        yield coalition, total
        return
    yield from _coalitions(total, changes, first + 1, coalition)
    yield from _coalitions(total + changes[first], changes, first + 1, coalition | 1 << first)


def _squares(rows: Array) -> Array:
    """(n,) squared lengths of (n, hidden) rows."""
    return np.asarray(np.einsum("ij,ij->i", rows, rows))
