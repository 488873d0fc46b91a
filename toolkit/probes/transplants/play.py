"""A run with its model in, the value of every coalition of tuned components out: one evaluation pass for each."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from toolkit.analysis.rows.measures import Array
from toolkit.data.batches import EncodedSplit, EncodedTask
from toolkit.data.tasks import Task
from toolkit.families import TABLES
from toolkit.lookup import lookup
from toolkit.models.tuned import load_tuned, load_untuned
from toolkit.probes.tasks import task_of
from toolkit.probes.transplants.body import Body, design_of, draw_items
from toolkit.probes.transplants.changes import CHANGES, RANDOM, can_rotate, perturbed
from toolkit.probes.transplants.components import Components, raw_components
from toolkit.probes.transplants.game import UNITS, Game, Settings, Values
from toolkit.probes.transplants.gauge import fixed_components, used_rows
from toolkit.probes.transplants.scorers import ForwardScorer, ReverseScorer, Scorer, check_gauge
from toolkit.snapshots.store import Run
from toolkit.training.encoding import encode_task

OnPass = Callable[[int, int], None]


def play_run(run: Run, settings: Settings | None = None, on_pass: OnPass = lambda done, total: None) -> Game:
    """Score every coalition of one run; v(S) with the components in S tuned, the rest from before training.

    Forward: in the tuned body under the tuned head. Reverse: in the body from before, under a logistic regression that
    is fitted to the coalition's own features of training items, with one penalty for all coalitions (see
    :class:`toolkit.probes.transplants.probe.Probe`). Coalitions that differ only in what has not moved are
    the same model, and one pass serves them. ValueError when the run kept no model, has no classes to score, or lacks
    what the settings ask for.
    """
    settings = settings or Settings()
    loaded = (load_tuned if settings.direction == "forward" else load_untuned)(run)
    tuned = loaded if settings.direction == "forward" else load_tuned(run)
    task = task_of(run)
    _check(run, task, settings)
    data = encode_task(task, loaded, run.config.max_length)
    name = settings.split or task.reported_split
    scored = draw_items(data.splits[name], settings.max_examples, settings.seed)
    splits = {name: scored}
    if settings.direction == "reverse":
        splits["train"] = draw_items(data.splits["train"], settings.max_probe_examples, settings.seed)
    after = Body(tuned, data).tensors()
    components = build_components(run, after, data, list(splits.values()), settings.coordinates)
    scorer = _scorer(Body(loaded, data, settings.dtype), replace(data, splits=splits), name, run, settings)
    total = _count_passes(components, settings)
    seeds = [settings.seed, run.config.seed]
    values, drawn = _play(scorer, components, settings.own_draws, seeds, lambda: on_pass(scorer.num_passes, total))
    gauge = None
    if settings.coordinates == "fixed" and isinstance(scorer, ForwardScorer):
        gauge = check_gauge(scorer, components, after)
    on_pass(total, total)
    return Game(
        components.names,
        components.moving,
        scored.ids,
        name,
        values,
        drawn,
        tuple(player.rms_change for player in components.players),
        gauge,
        scorer.num_passes,
        components.notes,
        tuple(player.stillness for player in components.players),
    )


def _scorer(body: Body, data: EncodedTask, split: str, run: Run, settings: Settings) -> ForwardScorer | ReverseScorer:
    if settings.direction == "forward":
        return ForwardScorer(body, data, split)
    return ReverseScorer(body, data, split, run.config.seed)


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
        own = "tags every word" if task.kind == "tokens" else "is a regression"
        raise ValueError(f"{run.path}: transplants are scored by the class of each text, and {task.name} {own}")
    split = lookup(task.splits, settings.split or task.reported_split, "split")
    if split.labels is None:
        raise ValueError(f"{run.path}: split {settings.split} has no labels to score against")
    if settings.direction == "reverse" and settings.split == "train":
        raise ValueError("--reverse fits its probe on train: score another split")


def _play(
    scorer: Scorer, components: Components, num_draws: int, seeds: list[int], on_pass: Callable[[], None]
) -> tuple[Values, dict[str, Values]]:
    """The values of all coalitions, and those of the random changes by kind."""
    num_players, moving = len(components.players), components.moving
    done = scorer.start(components)
    for coalition in range(2**num_players):
        if coalition & moving not in done:
            done[coalition & moving] = scorer.values(components.place(coalition & moving))
            on_pass()
    values = {name: np.stack([done[c & moving][name] for c in range(2**num_players)]) for name in UNITS}
    drawn: dict[str, Values] = {}
    for place, kind in enumerate(CHANGES):
        before = {name: np.repeat(own[None, :1], num_players + 1, axis=0) for name, own in values.items()}
        drawn[kind] = {name: np.repeat(array, num_draws, axis=1) for name, array in before.items()}
        generator = np.random.default_rng([*seeds, place])
        for line, coalition in _lines(components):
            for name in UNITS if not _applies(components, coalition, kind) else ():
                drawn[kind][name][line] = np.nan
            for draw in range(num_draws if _applies(components, coalition, kind) else 0):
                found = scorer.values(perturbed(components, coalition, kind, generator).place(coalition))
                on_pass()
                for name, array in found.items():
                    drawn[kind][name][line, draw] = array
    return values, drawn


def _lines(components: Components) -> list[tuple[int, int]]:
    """Lines of the random changes, each with its coalition: the players that moved, and last all of them."""
    moving = components.moving
    alone = [(i, 1 << i) for i in range(len(components.players)) if moving >> i & 1]
    return [*alone, (len(components.players), moving)] if moving else []


def _applies(components: Components, coalition: int, kind: str) -> bool:
    return kind == RANDOM or can_rotate([p for i, p in enumerate(components.players) if coalition >> i & 1])


def _count_passes(components: Components, settings: Settings) -> int:
    draws = sum(_applies(components, coalition, kind) for kind in CHANGES for _, coalition in _lines(components))
    check = 3 * (settings.coordinates == "fixed" and settings.direction == "forward")
    return int(2 ** components.moving.bit_count() + settings.own_draws * draws + check)
