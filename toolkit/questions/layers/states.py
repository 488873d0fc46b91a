"""Similarity of every layer's states to those before training, beside reference curves and the drift of weights."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.kernels import (
    MIN_ITEMS,
    Refused,
    cka_of_kernels,
    kernel,
    standardised,
)
from toolkit.analysis.measures import Array
from toolkit.comparison.conditions import Group, Labels, ReportedRun, arrange
from toolkit.comparison.intervals import is_constant, two_way_interval
from toolkit.data.batches import EncodedTask
from toolkit.data.splits import Split
from toolkit.models.classifier import Loaded
from toolkit.models.tuned import check_model, load_tuned, load_untuned
from toolkit.naming import at_least
from toolkit.progress import counted, shows_progress
from toolkit.questions.layers.trend import weight_tables, weights_of_conditions
from toolkit.questions.models import TEXTS, encode_texts, stream_states, task_of
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run, runs_of

Vectors = list[NDArray[np.float64]]
"""Per layer (texts, hidden): the encoder's input (0), then the output of layers 1 to L."""


def layer_vectors(loaded: Loaded, data: EncodedTask) -> Vectors:
    """The mean over each text's real tokens at every layer, in float64.

    The states of one batch at a time are held, and reduced before the next: memory grows with texts x layers x hidden.
    """
    means, batches = [], []
    for states in stream_states(loaded, data, data.splits[TEXTS]):
        means.append([mean.double().cpu().numpy() for mean in states.mean_of_tokens()])
        batches.append(states.indices)
    text_order = np.argsort(np.concatenate(batches))  # batches come by length
    return [np.concatenate(means_of_layer)[text_order] for means_of_layer in zip(*means, strict=True)]


ValueKey = tuple[str, int, str]
"""Domain of texts, layer and measure of one value."""

MAX_GROUPS = 30
"""Largest number of groups in which texts are left out (our choice)."""


@dataclass(frozen=True, eq=False)
class LayerSimilarity:
    """One value, its pseudo-value for every group of texts, and why there is none where it is NaN."""

    value: float
    pseudo: Array = field(default_factory=lambda: np.empty(0))
    """(groups,), with ``value`` as their mean; none for too few texts."""
    num_texts: int = 0
    reason: str = ""


def compare_layers(
    first: Mapping[str, Vectors], second: Mapping[str, Vectors], seed: int = 0
) -> dict[ValueKey, LayerSimilarity]:
    """Every measure of two models' vectors, (texts, hidden) per domain and layer; groups are drawn with ``seed``."""
    return {
        (name, layer, measure): compare(function, left, right, seed)
        for name in first
        for layer, (left, right) in enumerate(zip(first[name], second[name], strict=True))
        for measure, function in MEASURES.items()
    }


def compare(measure: "Measure", left: Array, right: Array, seed: int = 0) -> LayerSimilarity:
    """A measure of two (texts, hidden) versions with its pseudo-values h·θ - (h - 1)·θ without the group, h = n/m.

    Jackknife over groups of m of the n texts (Tukey 1958; groups of unequal size as Busing, Meijer & van der Leeden
    1999, doi:10.1023/A:1008800423698), re-centred at θ (ours). Below 20 texts there are none.
    """
    num_texts = len(left)
    try:
        if num_texts < 4:
            raise Refused(f"similarity needs at least 4 texts, there are {num_texts}")
        similarity_of = measure(left, right)
        value = similarity_of(np.ones(num_texts, bool))
        if math.isnan(value):
            raise Refused("undefined: all texts of a model are equally far from one another")
        if num_texts < MIN_ITEMS:
            return LayerSimilarity(value, num_texts=num_texts)
        groups = text_groups(num_texts, seed)
        inverse_shares = num_texts / np.bincount(groups)
        values_without = np.array([similarity_of(groups != group) for group in range(len(inverse_shares))])
    except Refused as refusal:
        return LayerSimilarity(math.nan, num_texts=num_texts, reason=str(refusal))
    pseudo = inverse_shares * value - (inverse_shares - 1) * values_without
    return LayerSimilarity(value, pseudo + value - pseudo.mean(), num_texts)


def text_groups(num_texts: int, seed: int = 0) -> NDArray[np.intp]:
    """(num_texts,) the group of every text: at most MAX_GROUPS, as equal as can be, the same for all models."""
    num_groups = num_texts // math.ceil(num_texts / MAX_GROUPS)
    return np.asarray(np.random.default_rng([*b"text groups", seed]).permutation(num_texts) % num_groups)


Measure = Callable[[Array, Array], Callable[[NDArray[np.bool_]], float]]
"""Two (texts, hidden) versions to the function of which texts are kept that gives their similarity."""


def _cka(left: Array, right: Array) -> Callable[[NDArray[np.bool_]], float]:
    """What gives debiased CKA of two versions over the texts that are kept."""
    # The texts that are left out need not be centred anew: HSIC₁ does it.
    before, after = kernel(left), kernel(right)
    return lambda is_kept: cka_of_kernels(before, after, is_kept.astype(np.float64))


def _standardised_cka(left: Array, right: Array) -> Callable[[NDArray[np.bool_]], float]:
    """The same, every column first scaled to the spread that it has over the kept texts."""

    def cka_of(is_kept: NDArray[np.bool_]) -> float:
        before, after = standardised(left[is_kept]), standardised(right[is_kept])
        if not (before.shape[1] and after.shape[1]):  # columns without a spread are left out
            raise Refused("undefined: all texts of a model are equal")
        return cka_of_kernels(kernel(before), kernel(after))

    return cka_of


CKA, STANDARDISED = "debiased CKA", "debiased CKA, standardised columns"
MEASURES: Mapping[str, Measure] = {CKA: _cka, STANDARDISED: _standardised_cka}

BEFORE_AND_AFTER = "before and after"
SEED_AND_SEED = "seed and seed"

OWN_SEEDS, SHUFFLED, OTHER_CONDITION = "its own seeds", "shuffled labels", "first condition"
"""What a condition is held against: the similarity of its own seeds to each other, or the similarity to before of a
condition with shuffled labels or of the group's first one."""

NO_SEED = "no seed in common"
SEED, PAIR = "seed", "pair of seeds"
"""What a row of a table of pseudo-values is."""
ONE_ROW = "one {}: the interval covers new texts, not new seeds"
NO_SPREAD = "equal for all texts and seeds: no spread to make an interval from"

Similarities = Mapping[ValueKey, LayerSimilarity]
"""All values of two models."""


@dataclass(frozen=True, eq=False)
class ConditionSimilarities:
    """The similarities of one condition: every seed to before training, and every pair of seeds to each other."""

    group: str
    condition: str
    is_shuffled: bool
    size: int | None
    """Training examples asked for: only conditions of one size are compared."""
    to_before: Mapping[int, Similarities]
    between: Mapping[tuple[int, int], Similarities]


def average(conditions: Sequence[ConditionSimilarities]) -> pd.DataFrame:
    """One line per condition, comparison and place: ``means`` of :func:`measure_layers`.

    ``low`` and ``high``: the 95 % interval of the mean over new seeds and new texts (of one seed or one pair, over new
    texts), see :func:`interval_of_tables`. NaN with the reason where any of the values is refused.
    """
    records = []
    for condition in conditions:
        key: dict[str, Any] = {
            "group": condition.group,
            "condition": condition.condition,
            "is_shuffled": condition.is_shuffled,
            "num_seeds": len(condition.to_before),
        }
        for value_key in next(iter(condition.to_before.values())):
            values = [similarities[value_key] for similarities in condition.to_before.values()]
            cells = _mean_cells(value_key, values, _pseudo_values(values), SEED)
            records.append(key | {"comparison": BEFORE_AND_AFTER} | cells)
        for value_key in next(iter(condition.between.values()), {}):
            pairs = {pair: similarities[value_key] for pair, similarities in condition.between.items()}
            table = pseudo_of_seeds(pairs, list(condition.to_before))
            cells = _mean_cells(value_key, list(pairs.values()), table, PAIR)
            records.append(key | {"comparison": SEED_AND_SEED} | cells)
    return pd.DataFrame(records, columns=columns_of("measure_layers.means"))


def _mean_cells(value_key: ValueKey, values: Sequence[LayerSimilarity], table: Array, row: str) -> dict[str, Any]:
    """The cells of one mean: of some values, with the interval over the pseudo-values in ``table``.

    ``row``: what a row of the table is, SEED or PAIR.
    """
    record: dict[str, Any] = dict(zip(("texts", "layer", "measure"), value_key, strict=True))
    reason = next((similarity.reason for similarity in values if similarity.reason), "")
    record |= {"value": float(np.mean([similarity.value for similarity in values])), "num_texts": values[0].num_texts}
    low, high, note = interval_of_tables(table, row) if not reason else (math.nan, math.nan, "")
    return record | {"low": low, "high": _at_most_1(high), "reason": reason, "note": note}


def _pseudo_values(values: Sequence[LayerSimilarity]) -> NDArray[np.float64]:
    """(values, groups of texts)."""
    return np.array([similarity.pseudo for similarity in values])


def _at_most_1(high: float) -> float:
    """No similarity is above 1, where Student's t, which is symmetric, may reach."""
    return high if math.isnan(high) else min(high, 1.0)


def contrast(conditions: Sequence[ConditionSimilarities]) -> pd.DataFrame:
    """``contrasts`` of :func:`measure_layers`: each condition's similarity to before less another similarity.

    The other one is that of its own seeds to each other, and that to before of each condition with shuffled labels and
    of the group's first condition; only conditions of one group and size are compared. Shuffled labels are held against
    their own seeds alone. Texts are paired, and so are seeds.

    ``value``: ``similarity`` minus ``other_similarity``; below 0 the condition moved further. ``between_seeds``: mean
    gap between the similarities to before of two seeds; NaN beside its own seeds, and with one seed each.
    """
    records: list[dict[str, Any]] = []
    for condition in conditions:
        records += _contrasts_with_own_seeds(condition)
        if condition.is_shuffled:
            continue
        comparable = [other for other in conditions if (other.group, other.size) == (condition.group, condition.size)]
        for other in comparable:
            if other.is_shuffled:
                records += _contrasts_with(condition, other, SHUFFLED)
        first_condition = next(other for other in comparable if not other.is_shuffled)
        if first_condition is not condition:
            records += _contrasts_with(condition, first_condition, OTHER_CONDITION)
    return pd.DataFrame(records, columns=columns_of("measure_layers.contrasts"))


def interval_of_tables(table: NDArray[np.float64], row: str = SEED) -> tuple[float, float, str]:
    """95 % interval of the mean of (seeds, groups of texts) pseudo-values, or of differences of such, and a note.

    ``row``: what a row of the table is, for the note where there is but one.

    :func:`toolkit.comparison.intervals.two_way_interval` with groups of texts as the items: Student's t over
    new seeds and new texts at once. (That pseudo-values may be treated as such is Tukey's idea for one sample; for two
    factors it is ours, and a test holds its coverage.)
    """
    if not table.size:
        return math.nan, math.nan, "too few texts for an interval"
    if is_constant(table, size=1.0):  # similarities are at most 1
        return math.nan, math.nan, NO_SPREAD
    interval = two_way_interval(table)
    return interval.low, interval.high, ONE_ROW.format(row) if len(table) == 1 else interval.note


def pseudo_of_seeds(between: Mapping[tuple[int, int], LayerSimilarity], seeds: Sequence[int]) -> NDArray[np.float64]:
    """(seeds, groups) pseudo-values of the mean over pairs of seeds: K·mean - (K - 1)·mean of the pairs without a seed.

    Of two seeds there is one pair: (1, groups), as without a second pair nothing says how pairs differ.
    """
    mean_of_pairs = np.mean([similarity.pseudo for similarity in between.values()], axis=0)
    if len(seeds) < 3:
        return np.asarray(mean_of_pairs[None])
    means_without_seed = [
        np.mean([similarity.pseudo for pair, similarity in between.items() if seed not in pair], axis=0)
        for seed in seeds
    ]
    return np.asarray(len(seeds) * mean_of_pairs - (len(seeds) - 1) * np.array(means_without_seed))


def _contrasts_with_own_seeds(condition: ConditionSimilarities) -> Iterator[dict[str, Any]]:
    """One record per value: a condition's similarity to before less that of its seeds to each other."""
    for value_key in next(iter(condition.between.values()), {}):
        values = [similarities[value_key] for similarities in condition.to_before.values()]
        pairs = {pair: similarities[value_key] for pair, similarities in condition.between.items()}
        record = _contrast(condition, "its seeds with each other", OWN_SEEDS, value_key, values, list(pairs.values()))
        if not record["reason"]:
            to_before = _pseudo_values(values)
            between = pseudo_of_seeds(pairs, list(condition.to_before))
            if len(between) == 1:  # two seeds make one pair, and nothing is left to pair seed by seed
                to_before = to_before.mean(axis=0, keepdims=True)
            record |= dict(zip(("low", "high", "note"), interval_of_tables(to_before - between, PAIR), strict=True))
        yield record


def _contrasts_with(
    condition: ConditionSimilarities, other_condition: ConditionSimilarities, kind: str
) -> Iterator[dict[str, Any]]:
    """One record per value: a condition's similarity to before less another's, over the seeds that both have.

    ``between_seeds`` is over all pairs of seeds of either condition.
    """
    seeds = [seed for seed in condition.to_before if seed in other_condition.to_before]
    for value_key in next(iter(condition.to_before.values())):
        values = [condition.to_before[seed][value_key] for seed in seeds]
        other_values = [other_condition.to_before[seed][value_key] for seed in seeds]
        record = _contrast(condition, other_condition.condition, kind, value_key, values, other_values)
        if not record["reason"]:
            table = _pseudo_values(values) - _pseudo_values(other_values)
            record |= dict(zip(("low", "high", "note"), interval_of_tables(table), strict=True))
        gaps = []
        for compared in (condition, other_condition):
            values_of_seeds = [similarities[value_key].value for similarities in compared.to_before.values()]
            gaps += [abs(first - second) for first, second in combinations(values_of_seeds, 2)]
        yield record | {"between_seeds": float(np.mean(gaps)) if gaps else math.nan}


def _contrast(
    condition: ConditionSimilarities,
    against: str,
    kind: str,
    value_key: ValueKey,
    values: Sequence[LayerSimilarity],
    other_values: Sequence[LayerSimilarity],
) -> dict[str, Any]:
    """The record of one value without its interval; where there is none, with the reason."""
    mean = _mean_value(values)
    other_mean = _mean_value(other_values)
    return {
        "group": condition.group,
        "condition": condition.condition,
        "comparison": kind,
        "against": against,
        **dict(zip(("texts", "layer", "measure"), value_key, strict=True)),
        "similarity": mean,
        "other_similarity": other_mean,
        "value": mean - other_mean,
        "num_seeds": len(values),
        "num_texts": values[0].num_texts if values else 0,
        "reason": next(
            (similarity.reason for similarity in (*values, *other_values) if similarity.reason),
            "" if values else NO_SEED,
        ),
        "note": "",
    }


def _mean_value(values: Sequence[LayerSimilarity]) -> float:
    return float(np.mean([similarity.value for similarity in values])) if values else math.nan


LEAST_TEXTS = 4
"""Of a domain: the debiased CKA divides by n - 3."""

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
) -> pd.DataFrame:
    """Similarity of every layer's states (sentence vectors) between two models, one pair of models per line.

    Parameters
    ----------
    runs
        Finished runs with ``--save-model``, or the paths of their directories.
    texts
        Name of a set of texts to its texts, singles or pairs as the task has them; None takes every scored split of the
        task, so that a task with out-of-distribution splits is compared on them too.
    max_texts
        Number of texts to draw from each set, the same for all models.
    seed
        Seed of every random draw.
    labels
        Name of a run's directory to the name of its condition.

    Returns
    -------
    pandas.DataFrame
        ``before and after`` compares each run's tuned model with what it started from; ``seed and seed`` the tuned
        models of two seeds of one condition, which is as much as training differs when nothing but chance does. A run
        with ``--shuffle-labels`` (``is_shuffled``) says what training moves when there is nothing to learn but the
        examples. Read a regime's curve beside both: :func:`measure_layers` does. ``first``
        and ``second``: a run by its seed, ``before`` for what it started from.

        Measures, over the mean token vector of each text: ``debiased CKA`` and, where one column can decide it,
        ``debiased CKA, standardised columns`` (:mod:`toolkit.questions.space.similarity_measures`). The interval is
        over new texts for these two models (:func:`toolkit.questions.layers.states.interval_of_tables`).

    Raises
    ------
    ValueError
        There are no runs, or one was made without ``--save-model``.

    Notes
    -----
    States inherit what changed in all layers below: that those of the top change most does not say that its weights
    did. How far the weights of each layer moved is :func:`toolkit.measure_weight_drift`.
    """
    return _pair_table(_conditions_of(_with_models(runs, max_texts, labels), texts, max_texts, seed))


@with_columns
@shows_progress("states and weights of every layer")
def measure_layers(
    runs: Sequence[Run | str | Path],
    texts: Texts | None = None,
    *,
    max_texts: int = 300,
    seed: int = 0,
    labels: Labels | None = None,
) -> dict[str, pd.DataFrame]:
    """What changed in each layer, its states and its weights: all tables of the report.

    Parameters
    ----------
    runs, texts, max_texts, seed, labels
        As of :func:`toolkit.measure_layer_drift`.

    Returns
    -------
    dict of pandas.DataFrame
        Of states: ``layer_drift`` (:func:`toolkit.measure_layer_drift`), ``means`` over seeds and ``contrasts``, paired
        differences of each condition from its own seeds, from shuffled labels and from the group's first condition,
        with intervals over seeds and texts. Of weights: ``weight_drift``, ``weight_means`` and ``weight_trends``
        (:mod:`toolkit.questions.layers.trend`). Runs with ``--pair-encoding separate`` are in the tables of weights
        only: an example has two sequences of states there.

    Raises
    ------
    ValueError
        As :func:`toolkit.measure_layer_drift`.
    """
    groups = _with_models(runs, max_texts, labels)
    groups_with_states = []
    for group in groups:
        joint = [condition for condition in group.conditions if condition.runs[0].run.config.pair_encoding == "joint"]
        if joint:
            groups_with_states.append(Group(group.title, tuple(joint)))
    conditions = _conditions_of(groups_with_states, texts, max_texts, seed)
    weights = weight_tables(weights_of_conditions(groups))
    return {
        "layer_drift": _pair_table(conditions),
        "means": average(conditions),
        "contrasts": contrast(conditions),
        **weights,
    }


def _with_models(runs: Sequence[Run | str | Path], max_texts: int, labels: Labels | None) -> tuple[Group, ...]:
    """The runs by group and condition; ValueError for too few texts, or one that did not keep its model."""
    at_least("max_texts", max_texts, LEAST_TEXTS)
    opened = runs_of(runs)
    for run in opened:
        check_model(run)
    return arrange(opened, labels)


def _pair_table(conditions: Sequence[ConditionSimilarities]) -> pd.DataFrame:
    """``layer_drift`` of :func:`measure_layers`: a line per pair of models and place, with an interval over texts."""
    records: list[tuple[object, ...]] = []
    for condition in conditions:
        key = (condition.group, condition.condition, condition.is_shuffled)
        pairs = [
            (BEFORE_AND_AFTER, "before", f"seed {seed}", similarities)
            for seed, similarities in condition.to_before.items()
        ] + [
            (SEED_AND_SEED, f"seed {first_seed}", f"seed {second_seed}", similarities)
            for (first_seed, second_seed), similarities in condition.between.items()
        ]
        for comparison, first, second, similarities in pairs:
            for value_key, similarity in similarities.items():
                low, high, _ = interval_of_tables(similarity.pseudo[None])  # a table of one row: one pair of models
                cells = (similarity.value, low, _at_most_1(high), similarity.num_texts, similarity.reason)
                records.append((*key, comparison, first, second, *value_key, *cells))
    return pd.DataFrame(records, columns=columns_of("measure_layer_drift"))


def _conditions_of(
    groups: Sequence[Group], texts: Texts | None, max_texts: int, seed: int
) -> list[ConditionSimilarities]:
    """The similarities of every condition. In memory: the models of one group, the vectors of one condition."""
    conditions = []
    for group in groups:
        chosen = choose_texts(group.runs[0].run, texts, max_texts, seed)

        def vectors_of(loaded: Loaded, run: Run, chosen: Mapping[str, Any] = chosen) -> dict[str, Vectors]:
            length = run.config.max_length
            return {
                name: layer_vectors(loaded, encode_texts(loaded, domain_texts, length))
                for name, domain_texts in chosen.items()
            }

        before: dict[object, Mapping[str, Vectors]] = {}
        for condition in group.conditions:
            after: dict[int, Mapping[str, Vectors]] = {}
            to_before, between = {}, {}
            for reported in counted(condition.runs, f"states under {condition.label}"):
                start = start_of(reported)
                run_seed = reported.config.seed
                if start not in before:
                    before[start] = vectors_of(load_untuned(reported.run), reported.run)
                after[run_seed] = vectors_of(load_tuned(reported.run), reported.run)
                to_before[run_seed] = compare_layers(before[start], after[run_seed], seed)
            for first, second in counted([*combinations(after, 2)], f"pairs of seeds under {condition.label}"):
                between[first, second] = compare_layers(after[first], after[second], seed)
            is_shuffled = condition.runs[0].run.config.shuffle_labels
            conditions.append(
                ConditionSimilarities(group.title, condition.label, is_shuffled, condition.size, to_before, between)
            )
    return conditions


def choose_texts(run: Run, texts: Texts | None, max_texts: int, seed: int) -> dict[str, list[tuple[str, ...]]]:
    """The texts of each domain, the same for every model; ValueError when a domain has too few to say anything."""
    if texts is None:
        splits: Mapping[str, Split] = task_of(run).splits
        texts = {name: split.texts for name, split in splits.items() if name != "train"}
    chosen = {}
    for name, domain_texts in texts.items():
        if len(domain_texts) < LEAST_TEXTS:
            raise ValueError(f"texts {name!r}: at least {LEAST_TEXTS} texts are needed; got {len(domain_texts)}")
        order = np.random.default_rng([*b"layer texts", seed]).permutation(len(domain_texts))[:max_texts]
        chosen[name] = [domain_texts[i] for i in np.sort(order)]
    return chosen


def start_of(reported: ReportedRun) -> tuple[object, ...]:
    """What distinguishes the models that runs of one group start from: equal for runs that start from the same."""
    config = reported.run.config
    added_tokens = reported.part("added_tokens")
    is_drawn = "random" in (config.init, added_tokens.get("init")) or config.positions == "shuffled"
    seed = config.seed if is_drawn else None
    settings = (config.init, config.positions, config.reinject_positions, config.max_length)
    return (*settings, added_tokens.get("sha256"), added_tokens.get("init"), seed)
