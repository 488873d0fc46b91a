"""Runs with their models in, how similar each layer is to what it was before training out, with reference curves."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from toolkit.analysis.comparison.arms import Group, Labels, ReportedRun, arrange
from toolkit.analysis.similarity.refusal import Refused
from toolkit.analysis.similarity.resampled import resampled_cka
from toolkit.analysis.similarity.rsa import item_distances, rsa_interval, rsa_of_distances
from toolkit.data.tasks import Split, load_task
from toolkit.models.classifier import Loaded
from toolkit.models.tuned import load_tuned, load_untuned
from toolkit.probes.layers.vectors import Vectors, layer_vectors
from toolkit.probes.texts import encode_texts
from toolkit.snapshots.store import Run

BEFORE_AND_AFTER = "before and after"
SEED_AND_SEED = "seed and seed"

COLUMNS = (
    "group",
    "arm",
    "is_shuffled",
    "comparison",
    "first",
    "second",
    "texts",
    "layer",
    "measure",
    "value",
    "low",
    "high",
    "num_texts",
    "refusal",
)
"""Columns of :func:`measure_layer_drift`. layer: 0 is what the first layer reads. first and second: the two models, a
run by its seed, ``before`` for what it started from."""

Texts = Mapping[str, Sequence[tuple[str, ...]]]
"""Name of a domain to its texts, singles or pairs as the task has them."""


def measure_layer_drift(
    runs: Sequence[Run],
    texts: Texts | None = None,
    *,
    max_texts: int = 300,
    seed: int = 0,
    labels: Labels | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> "pd.DataFrame":
    """Similarity of every layer's sentence vectors, one value per line, columns COLUMNS.

    ``before and after`` compares each run's tuned model with what it started from; ``seed and seed`` the tuned models
    of two seeds of one arm, which is as much as training differs when nothing but chance does. A run with
    ``--shuffle-labels`` (``is_shuffled``) says what training moves when there is nothing to learn but the examples.
    Read a regime's curve beside both.

    Measures, over the mean token vector of each text: ``debiased CKA`` and, where one column can decide it, ``debiased
    CKA, standardised columns`` (:mod:`toolkit.analysis.similarity.cka`), and ``RSA`` (Spearman's, of Euclidean
    distances). ``low`` and ``high``: 95 % over resampled texts. ``refusal``: why a value is NaN.

    ``texts``: None takes every scored split of the task, so that a task with out-of-distribution splits is compared on
    them too. At most ``max_texts`` of each, drawn with ``seed``, the same for all models. ``labels``: name of a run's
    directory to the name of its arm. ValueError for no runs, or one that was made without ``--save-model``.
    """
    lines: list[tuple[object, ...]] = []
    for group in arrange(runs, labels):
        lines += _lines_of(group, texts, max_texts, seed, on_progress)
    return pd.DataFrame(lines, columns=list(COLUMNS))


def _lines_of(
    group: Group, texts: Texts | None, max_texts: int, seed: int, on_progress: Callable[[str], None]
) -> Iterator[tuple[object, ...]]:
    chosen = _choose(group.runs[0].run, texts, max_texts, seed)
    before: dict[object, Mapping[str, Vectors]] = {}
    for arm in group.arms:
        after: dict[str, Mapping[str, Vectors]] = {}
        facts = (group.title, arm.label, arm.runs[0].run.config.shuffle_labels)
        for item in arm.runs:
            on_progress(f"states of {item.name}")
            start = _start_of(item)
            if start not in before:
                before[start] = _read(load_untuned(item.run), chosen, item)
            after[_name(item)] = _read(load_tuned(item.run), chosen, item)
            for line in compare_layers(before[start], after[_name(item)], seed):
                yield (*facts, BEFORE_AND_AFTER, "before", _name(item), *line)
        for first, second in combinations(after, 2):
            on_progress(f"{arm.label}: {first} and {second}")
            for line in compare_layers(after[first], after[second], seed):
                yield (*facts, SEED_AND_SEED, first, second, *line)


def compare_layers(
    first: Mapping[str, Vectors], second: Mapping[str, Vectors], seed: int = 0
) -> Iterator[tuple[object, ...]]:
    """Domain, layer, measure, value, low, high, num_texts, refusal of two models' vectors of the same texts."""
    for name in first:
        for layer, (left, right) in enumerate(zip(first[name], second[name], strict=True)):
            for measure, function in MEASURES.items():
                try:
                    values, refusal = function(left, right, seed), ""
                except Refused as reason:
                    values, refusal = (math.nan, math.nan, math.nan), str(reason)
                yield (name, layer, measure, *values, len(left), refusal)


def _cka(left: np.ndarray, right: np.ndarray, seed: int) -> tuple[float, float, float]:
    return resampled_cka(left, right, seed=seed)


def _standardised_cka(left: np.ndarray, right: np.ndarray, seed: int) -> tuple[float, float, float]:
    return resampled_cka(left, right, is_standardised=True, seed=seed)


def _rsa(left: np.ndarray, right: np.ndarray, seed: int) -> tuple[float, float, float]:
    before, after = item_distances(left), item_distances(right)
    return (rsa_of_distances(before, after), *rsa_interval(before, after, seed=seed))


MEASURES: Mapping[str, Callable[[np.ndarray, np.ndarray, int], tuple[float, float, float]]] = {
    "debiased CKA": _cka,
    "debiased CKA, standardised columns": _standardised_cka,
    "RSA": _rsa,
}
"""Measure to the function of two (texts, hidden) versions and a seed that gives its value and interval."""


def _choose(run: Run, texts: Texts | None, max_texts: int, seed: int) -> dict[str, list[tuple[str, ...]]]:
    """The texts of each domain, the same for every model; ValueError when a domain has too few to say anything."""
    if texts is None:
        splits: Mapping[str, Split] = load_task(run.config).splits
        texts = {name: split.texts for name, split in splits.items() if name != "train"}
    chosen = {}
    for name, own in texts.items():
        if len(own) < 4:
            raise ValueError(f"texts {name!r}: similarity needs at least 4 texts; got {len(own)}")
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


def _name(item: ReportedRun) -> str:
    return f"seed {item.config.seed}"
