"""A run with its model in, the value of every coalition of tuned components out: one evaluation pass for each."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.rows.measures import Array
from toolkit.data.batches import EncodedSplit, EncodedTask
from toolkit.data.tasks import Task, load_task
from toolkit.families import TABLES
from toolkit.lookup import lookup
from toolkit.models.tuned import load_tuned, load_untuned
from toolkit.probes.transplants.body import Body, design_of, draw_items
from toolkit.probes.transplants.components import Components, Placement, raw_components
from toolkit.probes.transplants.game import UNITS, Game, GaugeCheck, Settings
from toolkit.probes.transplants.gauge import fixed_components, used_rows
from toolkit.snapshots.store import Run
from toolkit.training.encoding import encode_task

CONTROL_FACTOR = 1.1
"""What the words are multiplied by in the control of the gauge check: no offset, so the outputs must show it."""

OnPass = Callable[[int, int], None]


def play_run(run: Run, settings: Settings | None = None, on_pass: OnPass = lambda done, total: None) -> Game:
    """Score every coalition of one run; v(S) with the components in S tuned, the rest from before training.

    Forward: in the tuned body under the tuned head. Reverse: in the body from before, under a logistic regression that
    is fitted to the coalition's own features of training items. Coalitions that differ only in what has not moved are
    the same model, and one pass serves them. ValueError when the run kept no model, has no classes to score, or lacks
    what the settings ask for.
    """
    settings = settings or Settings()
    loaded = (load_tuned if settings.direction == "forward" else load_untuned)(run)
    tuned = loaded if settings.direction == "forward" else load_tuned(run)
    task = load_task(run.config)
    _check(run, task, settings)
    data = encode_task(task, loaded, run.config.max_length)
    name = settings.split or task.reported_split
    scored = draw_items(data.splits[name], settings.max_examples, settings.seed)
    splits = {name: scored}
    if settings.direction == "reverse":
        splits["train"] = draw_items(data.splits["train"], settings.max_probe_examples, settings.seed)
    after = Body(tuned, data).tensors()
    components = build_components(run, after, data, list(splits.values()), settings.coordinates)
    scorer = _Scorer(Body(loaded, data, settings.dtype), replace(data, splits=splits), name, run.config.seed, settings)
    return _play(scorer, components, run, after, settings, on_pass)


def build_components(
    run: Run, after: Mapping[str, Array], data: EncodedTask, splits: list[EncodedSplit], coordinates: str
) -> Components:
    """The players of a run: its first snapshot against its tuned parameters, on the tokens of some splits."""
    trajectory = run.trajectory
    before = {name: np.asarray(tensor) for name, tensor in trajectory.at(0).tensors.items()}
    last = trajectory.snapshots[-1].tensors
    if any(not np.array_equal(last[name], after[name]) for name in trajectory.parameters):
        raise ValueError(f"{run.path}: model/ is not what the last snapshot holds; repeat the run with --overwrite")
    design = design_of(splits, data, tuple(name for name in trajectory.parameters if name in TABLES))
    if coordinates == "raw":
        return raw_components(before, after, used_rows(design))
    if run.config.reinject_positions:
        raise ValueError(
            f"{run.path}: positions enter again before each layer, and offsets between the tables are no gauge there: "
            "transplant in raw coordinates (--coordinates raw)"
        )
    return fixed_components(trajectory, before, after, design)


def _check(run: Run, task: Task, settings: Settings) -> None:
    if task.kind != "classification":
        raise ValueError(f"{run.path}: transplants are scored by log-likelihood and accuracy, which need classes")
    split = lookup(task.splits, settings.split or task.reported_split, "split")
    if split.labels is None:
        raise ValueError(f"{run.path}: split {settings.split} has no labels to score against")
    if settings.direction == "reverse" and settings.split == "train":
        raise ValueError("--reverse fits its probe on train: score another split")


class _Scorer:
    """Places parameters, runs the body once and scores every item."""

    def __init__(self, body: Body, data: EncodedTask, split: str, seed: int, settings: Settings) -> None:
        self.body, self.data, self.split, self.seed, self.settings = body, data, split, seed, settings
        self.num_passes = 0

    def outputs(self, placement: Placement) -> Array:
        """(items, outputs) logits."""
        self.body.place(placement)
        self.num_passes += 1
        if self.settings.direction == "forward":
            return self.body.outputs(self.data.splits[self.split])
        from toolkit.training.features import convex_ceiling

        features = {name: self.body.features(split).astype(np.float32) for name, split in self.data.splits.items()}
        fitted = convex_ceiling(features, self.data, self.seed)
        if not fitted:
            raise ValueError("too few training items of a class to fit a probe on: raise --max-probe-examples")
        return fitted[self.split].astype(np.float64)

    def values(self, placement: Placement) -> dict[str, Array]:
        labels = self.data.splits[self.split].labels
        assert labels is not None
        return score_items(self.outputs(placement), labels)


def score_items(outputs: Array, labels: NDArray[np.int64]) -> dict[str, Array]:
    """(items, classes) logits and (items,) classes to the (items,) log-likelihood of the class (nats) and accuracy."""
    from scipy.special import log_softmax

    likelihoods = log_softmax(outputs, axis=1)[np.arange(len(labels)), labels]
    return {"log-likelihood": likelihoods, "accuracy": (outputs.argmax(axis=1) == labels).astype(np.float64)}


def _play(
    scorer: _Scorer, components: Components, run: Run, after: Mapping[str, Array], settings: Settings, on_pass: OnPass
) -> Game:
    num_players, moving = len(components.players), components.moving
    lines = [i for i in range(num_players) if moving >> i & 1] + [num_players]
    has_check = settings.coordinates == "fixed" and settings.direction == "forward"
    total = 2 ** moving.bit_count() + settings.num_draws * len(lines) * bool(moving) + 3 * has_check
    done: dict[int, dict[str, Array]] = {}
    for coalition in range(2**num_players):
        if coalition & moving not in done:
            done[coalition & moving] = scorer.values(components.place(coalition & moving))
            on_pass(scorer.num_passes, total)
    values = {name: np.stack([done[c & moving][name] for c in range(2**num_players)]) for name in UNITS}
    perturbed = {name: np.repeat(values[name][None, :1], num_players + 1, axis=0) for name in UNITS}
    perturbed = {name: np.repeat(array, settings.num_draws, axis=1) for name, array in perturbed.items()}
    generator = np.random.default_rng([settings.seed, run.config.seed])
    for line in lines if moving else []:
        coalition = moving if line == num_players else 1 << line
        for draw in range(settings.num_draws):
            found = scorer.values(components.perturbed(coalition, generator).place(coalition))
            on_pass(scorer.num_passes, total)
            for name, array in found.items():
                perturbed[name][line, draw] = array
    gauge = check_gauge(scorer, components, after) if has_check else None
    on_pass(total, total)
    return Game(
        components.names,
        moving,
        scorer.data.splits[scorer.split].ids,
        scorer.split,
        values,
        perturbed,
        tuple(player.rms_change for player in components.players),
        gauge,
        scorer.num_passes,
        components.notes,
    )


def check_gauge(scorer: _Scorer, components: Components, after: Mapping[str, Array]) -> GaugeCheck:
    """The tuned model in the fixed gauge against its raw parameters; the parameters are raw afterwards."""
    everyone = components.place(2 ** len(components.players) - 1)
    raw = {name: (rows, after[name] if rows is None else after[name][rows]) for name, (rows, _) in everyone.items()}
    rows, words = everyone["word_embeddings"]
    fixed = scorer.outputs(everyone)
    control = scorer.outputs({**everyone, "word_embeddings": (rows, CONTROL_FACTOR * words)})
    truth = scorer.outputs(raw)
    return GaugeCheck(float(np.abs(fixed - truth).max()), float(np.abs(control - truth).max()))
