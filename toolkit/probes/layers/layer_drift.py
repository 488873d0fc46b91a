"""Similarity of every layer's states to those before training, with reference curves; drift of weights beside it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from toolkit.comparison.arms import Group, Labels, ReportedRun, arrange
from toolkit.comparison.layer_trend import weight_tables, weights_of_arms
from toolkit.counts import at_least
from toolkit.data.tasks import Split
from toolkit.models.classifier import Loaded
from toolkit.models.tuned import check_model, load_tuned, load_untuned
from toolkit.probes.layers.means import (
    BEFORE_AND_AFTER,
    SEED_AND_SEED,
    ArmSimilarities,
    average,
    contrast,
    interval_of_tables,
)
from toolkit.probes.layers.similarities import Place, Similarity, compare_layers
from toolkit.probes.layers.vectors import Vectors, layer_vectors
from toolkit.probes.tasks import task_of
from toolkit.probes.texts import encode_texts
from toolkit.progress import say, shows_progress
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run, runs_of

FEWEST_TEXTS = 4
"""The debiased CKA divides by n - 3."""

Texts = Mapping[str, Sequence[tuple[str, ...]]]
"""Name of a domain to its texts, singles or pairs as the task has them."""


@shows_progress("states of every layer")
@with_columns
def measure_layer_drift(
    runs: Sequence[Run | str | Path],
    texts: Texts | None = None,
    *,
    max_texts: int = 300,
    seed: int = 0,
    labels: Labels | None = None,
    on_progress: Callable[[str], None] = say,
) -> pd.DataFrame:
    """Similarity of every layer's states (sentence vectors), one pair of models per line.

    States inherit what changed in all layers below: that those of the top change most does not say that its weights
    did. How far the weights of each layer moved is :func:`toolkit.measure_weight_drift`.

    ``before and after`` compares each run's tuned model with what it started from; ``seed and seed`` the tuned models
    of two seeds of one condition, which is as much as training differs when nothing but chance does. A run with
    ``--shuffle-labels`` (``is_shuffled``) says what training moves when there is nothing to learn but the examples.
    Read a regime's curve beside both: :func:`measure_layers` does.

    Measures, over the mean token vector of each text: ``debiased CKA`` and, where one column can decide it, ``debiased
    CKA, standardised columns`` (:mod:`toolkit.analysis.similarity.cka`), and ``RSA`` (Spearman's, of Euclidean
    distances). ``low`` and ``high``: 95 % over new texts for these two models
    (:func:`toolkit.probes.layers.means.interval_of_tables`). ``first`` and ``second``: a run by its seed, ``before``
    for what it started from.

    ``texts``: None takes every scored split of the task, so that a task with out-of-distribution splits is compared on
    them too. At most ``max_texts`` of each, drawn with ``seed``, the same for all models. ``labels``: name of a run's
    directory to the name of its condition. ValueError for no runs, or one that was made without ``--save-model``.
    """
    groups = _groups(runs, max_texts, labels)
    return _table(_measure_states(groups, texts, max_texts, seed, on_progress))


@with_columns
def measure_layers(
    runs: Sequence[Run | str | Path],
    texts: Texts | None = None,
    *,
    max_texts: int = 300,
    seed: int = 0,
    labels: Labels | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> dict[str, pd.DataFrame]:
    """What changed in each layer, its states and its weights: all tables of the report.

    Of states: ``layer_drift`` (:func:`measure_layer_drift`, also for the arguments), ``means`` over seeds and
    ``contrasts``, paired differences of each condition from its own seeds, from shuffled labels and from the group's
    first condition, with intervals over seeds and texts. Of weights: ``weight_drift``, ``weight_means`` and
    ``weight_trends`` (:mod:`toolkit.comparison.layer_trend`). Runs with ``--pair-encoding separate`` are in the tables
    of weights only: an example has two sequences of states there.
    """
    groups = _groups(runs, max_texts, labels)
    arms = _measure_states(_joint(groups), texts, max_texts, seed, on_progress)
    weights = weight_tables(weights_of_arms(groups, on_progress))
    renamed = {name: table.rename(columns={"arm": "condition"}) for name, table in weights.items()}
    return {"layer_drift": _table(arms), "means": average(arms), "contrasts": contrast(arms), **renamed}


def _groups(runs: Sequence[Run | str | Path], max_texts: int, labels: Labels | None) -> tuple[Group, ...]:
    """The runs in groups and arms; ValueError for too few texts, or one that did not keep its model."""
    at_least("max_texts", max_texts, FEWEST_TEXTS)
    opened = runs_of(runs)
    for run in opened:
        check_model(run)
    return arrange(opened, labels)


def _measure_states(
    groups: Sequence[Group], texts: Texts | None, max_texts: int, seed: int, on_progress: Callable[[str], None]
) -> list[ArmSimilarities]:
    return [arm for group in groups for arm in _arms_of(group, texts, max_texts, seed, on_progress)]


def _table(arms: Sequence[ArmSimilarities]) -> pd.DataFrame:
    return pd.DataFrame([line for arm in arms for line in _lines_of(arm)], columns=columns_of("measure_layer_drift"))


def _joint(groups: Sequence[Group]) -> list[Group]:
    """The groups with those arms alone that have one sequence, and so states, for each example."""
    kept = [
        (group.title, tuple(arm for arm in group.arms if arm.runs[0].run.config.pair_encoding == "joint"))
        for group in groups
    ]
    return [Group(title, arms) for title, arms in kept if arms]


def _arms_of(
    group: Group, texts: Texts | None, max_texts: int, seed: int, on_progress: Callable[[str], None]
) -> Iterator[ArmSimilarities]:
    chosen = _choose(group.runs[0].run, texts, max_texts, seed)
    before: dict[object, Mapping[str, Vectors]] = {}
    for arm in group.arms:
        after: dict[int, Mapping[str, Vectors]] = {}
        to_before, between = {}, {}
        for item in arm.runs:
            on_progress(f"states of {item.name}")
            start, own = _start_of(item), item.config.seed
            if start not in before:
                before[start] = _read(load_untuned(item.run), chosen, item)
            after[own] = _read(load_tuned(item.run), chosen, item)
            to_before[own] = compare_layers(before[start], after[own], seed)
        for first, second in combinations(after, 2):
            on_progress(f"{arm.label}: seeds {first} and {second}")
            between[first, second] = compare_layers(after[first], after[second], seed)
        is_shuffled = arm.runs[0].run.config.shuffle_labels
        yield ArmSimilarities(group.title, arm.label, is_shuffled, arm.size, to_before, between)


def _lines_of(arm: ArmSimilarities) -> Iterator[tuple[object, ...]]:
    for own, found in arm.to_before.items():
        for place, one in found.items():
            yield (*_facts(arm, BEFORE_AND_AFTER), "before", f"seed {own}", *_values(place, one))
    for (first, second), found in arm.between.items():
        for place, one in found.items():
            yield (*_facts(arm, SEED_AND_SEED), f"seed {first}", f"seed {second}", *_values(place, one))


def _facts(arm: ArmSimilarities, comparison: str) -> tuple[object, ...]:
    return (arm.group, arm.arm, arm.is_shuffled, comparison)


def _values(place: Place, one: Similarity) -> tuple[object, ...]:
    low, high, _ = interval_of_tables(one.pseudo[None])
    return (*place, one.value, low, min(high, 1.0) if high == high else high, one.num_texts, one.reason)


def _choose(run: Run, texts: Texts | None, max_texts: int, seed: int) -> dict[str, list[tuple[str, ...]]]:
    """The texts of each domain, the same for every model; ValueError when a domain has too few to say anything."""
    if texts is None:
        splits: Mapping[str, Split] = task_of(run).splits
        texts = {name: split.texts for name, split in splits.items() if name != "train"}
    chosen = {}
    for name, own in texts.items():
        if len(own) < FEWEST_TEXTS:
            raise ValueError(f"texts {name!r}: similarity needs at least {FEWEST_TEXTS} texts; got {len(own)}")
        order = np.random.default_rng([*b"layer texts", seed]).permutation(len(own))[:max_texts]
        chosen[name] = [own[i] for i in np.sort(order)]
    return chosen


def _read(loaded: Loaded, chosen: Mapping[str, Sequence[tuple[str, ...]]], item: ReportedRun) -> dict[str, Vectors]:
    length = item.run.config.max_length
    return {name: layer_vectors(loaded, encode_texts(loaded, own, length)) for name, own in chosen.items()}


def _start_of(item: ReportedRun) -> tuple[object, ...]:
    """What tells apart the models that runs of one group start from: equal for runs that start from the same."""
    config = item.run.config
    is_drawn = config.init == "random" or config.positions == "shuffled"
    drawn = config.seed if is_drawn else None
    return (config.init, config.positions, config.reinject_positions, config.max_length, drawn)
