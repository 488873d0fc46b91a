"""The value of every coalition of tuned components: one evaluation pass for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.analysis.measures import Array
from toolkit.config import check_seed
from toolkit.data.batches import EncodedSplit, EncodedTask, evaluation_batches, gather_tokens
from toolkit.data.splits import Task
from toolkit.families import TABLES
from toolkit.models.classifier import Classifier, Loaded
from toolkit.models.tuned import load_tuned, load_untuned
from toolkit.naming import check_least, lookup
from toolkit.questions.models import ANSWERED, batch_on, task_of
from toolkit.questions.transplants.players import (
    CHANGES,
    RANDOM,
    Components,
    Placement,
    can_rotate,
    fixed_components,
    has_player,
    perturbed,
    raw_components,
    used_rows,
)
from toolkit.snapshots.logs import Design
from toolkit.snapshots.store import Run
from toolkit.training.accelerators import one_thread
from toolkit.training.encoding import encode_task
from toolkit.training.features import PROBE_FOLDS, PROBE_STRENGTHS

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Body:
    """A classifier in eval mode whose embedding parameters are written into, in place; all else stays as it is."""

    def __init__(self, loaded: Loaded, data: EncodedTask, dtype: str = "float32") -> None:
        """``dtype``: of weights and activations, a key of DTYPES."""
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype, self.data = DTYPES[dtype], data
        self.model: Classifier = loaded.model.to(device, self.dtype).eval()
        parameters = dict(self.model.backbone.named_parameters())
        self.parameters = {
            canonical: parameters[name]
            for canonical, name in loaded.family.embedding_parameters.items()
            if name in parameters
        }

    def tensors(self) -> dict[str, Array]:
        """A copy of the embedding parameters, by canonical name."""
        return {name: p.detach().cpu().numpy().copy() for name, p in self.parameters.items()}

    @torch.no_grad()
    def place(self, placement: Placement) -> None:
        """Write rows and vectors; all other rows stay as they are."""
        for name, (rows, values) in placement.items():
            parameter = self.parameters[name]
            written = ... if rows is None else torch.from_numpy(rows).to(parameter.device)
            parameter[written] = torch.from_numpy(np.ascontiguousarray(values)).to(parameter.device, parameter.dtype)

    def outputs(self, split: EncodedSplit) -> Array:
        """(items, outputs) float64 logits."""
        return self._run(split, self.model.head)

    def features(self, split: EncodedSplit) -> Array:
        """(items, hidden) float64 pooled vectors."""
        return self._run(split, lambda features: features)

    @torch.inference_mode()
    def _run(self, split: EncodedSplit, function: Callable[[torch.Tensor], torch.Tensor]) -> Array:
        """What a function makes of the pooled vectors of every item, in the dtype of the weights."""
        outputs, order = [], []
        for indices in evaluation_batches(split.lengths):
            batch = batch_on(self.model, split, indices, self.data)
            if self.dtype == torch.float32:
                features = self.model.features(batch)
            else:  # the classifier computes in fp32, whatever its weights are
                output: Any = self.model.backbone(**batch | self.model.asked)
                features = self.model.pool(output, batch["attention_mask"], dtype=self.dtype)
            outputs.append(function(features).double().cpu().numpy())
            order.append(indices)
        result: Array = np.concatenate(outputs)[np.argsort(np.concatenate(order))]
        return result


def draw_items(split: EncodedSplit, num_items: int | None, seed: int = 0) -> EncodedSplit:
    """``num_items`` items drawn at random, in their old order; all of them for None, or where there are no more."""
    if num_items is None or num_items >= len(split):
        return split
    chosen = np.sort(np.random.default_rng(seed).permutation(len(split))[:num_items])
    token_indices, _ = gather_tokens(split, chosen)
    lengths = np.diff(split.offsets)[split.sequences_of(chosen)]
    return replace(
        split,
        ids=split.ids[chosen],
        labels=None if split.labels is None else split.labels[chosen],
        tokens=split.tokens[token_indices],
        segments=split.segments[token_indices],
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )


def design_of(splits: list[EncodedSplit], data: EncodedTask, tables: tuple[str, ...]) -> Design:
    """Which rows of the tables stand together in the tokens of some splits."""
    token_rows = []
    for split in splits:
        _, positions = gather_tokens(split, np.arange(len(split)))
        rows_of_tables: list[NDArray[Any]] = [split.tokens, positions + data.position_offset, split.segments]
        columns = dict(zip(TABLES, rows_of_tables, strict=True))
        token_rows.append(np.stack([columns[name].astype(np.int32) for name in tables], axis=1))
    rows, counts = np.unique(np.concatenate(token_rows), axis=0, return_counts=True)
    return Design(tables, rows, counts.astype(np.int64))


COORDINATES = ("fixed", "raw")
DIRECTIONS = ("forward", "reverse")
UNITS = {"log-likelihood": "nats", "accuracy": "points", "r2": "points"}
"""Value to its unit; accuracy and R² in points, log-likelihood per item in nats."""

NUM_DRAWS = 5
NUM_REVERSE_DRAWS = 1
MAX_PROBE_EXAMPLES = 1000
Values = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class TransplantSettings:
    """What is transplanted and where it is scored."""

    split: str | None = None
    """None: the reported split of the task."""
    max_examples: int | None = None
    """Items scored, drawn with ``seed``, the same for every run; None for all."""
    coordinates: str = "fixed"
    direction: str = "forward"
    num_draws: int = NUM_DRAWS
    """Random changes of each kind beside each single transplant, and beside all together; one pass for each."""
    num_reverse_draws: int = NUM_REVERSE_DRAWS
    """The same in the reverse, where a pass is one over the training items too, with a probe to fit."""
    dtype: str = "float32"
    max_probe_examples: int = MAX_PROBE_EXAMPLES
    """Training items that the probe of the reverse is fitted on, drawn with ``seed``."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        lookup(dict.fromkeys(COORDINATES), self.coordinates, "coordinates")
        lookup(dict.fromkeys(DIRECTIONS), self.direction, "direction")
        lookup(DTYPES, self.dtype, "dtype")
        check_least({"max_examples": self.max_examples, "max_probe_examples": self.max_probe_examples}, 1)
        check_least({"num_draws": self.num_draws, "num_reverse_draws": self.num_reverse_draws}, 0)

    @property
    def num_draws_of_direction(self) -> int:
        """The number of draws in this direction."""
        return self.num_draws if self.direction == "forward" else self.num_reverse_draws


class GaugeCheck(NamedTuple):
    """Largest absolute difference of any logit between the fixed gauge and the raw parameters."""

    difference: float
    control: float
    """The same with the words multiplied by 1.1, which no gauge allows."""


@dataclass(frozen=True, slots=True)
class Game:
    """One run's transplants."""

    players: tuple[str, ...]
    moving: int
    """The coalition of the players that have moved."""
    ids: NDArray[np.int64]
    """(items,) of the scored items."""
    split: str
    values: Values
    """Name of a value to (2^players, items), the finest first; see
    :func:`toolkit.analysis.shapley.shapley_values`."""
    perturbed: Mapping[str, Values]
    """Kind of random change (``random``, ``rotated``, see players.py) to the name of a value to
    (players + 1, draws, items): each player alone replaced by a random change of its size, and last all of them
    together. NaN where a kind does not apply: a single vector that is rotated is a random one."""
    gauge: GaugeCheck | None
    """None in raw coordinates and in reverse."""
    num_passes: int
    notes: tuple[str, ...]
    stillness: tuple[str, ...] = ()
    """Per player why it has not moved, if it has not; without these, because it is bit for bit what it was."""


MAX_STEPS = 3000
TOLERANCE = 1e-10
"""Of the probe's fit: with scikit-learn's 1e-4 the logits of two fits to nearly equal features differ by some 1e-3, as
much as what is measured; to the end it takes milliseconds longer."""


ABSENT_CLASS = -1e9
"""Logit of a class that no training item has: a probability of 0, and a log-likelihood that stays finite."""


class Probe:
    """Multinomial logistic regression on standardised features, of one strength for every coalition of a run.

    A strength of each coalition's own would jump from one to the next and count as what the components are worth.
    """

    def __init__(self, labels: NDArray[np.int64], num_outputs: int, seed: int) -> None:
        """``labels``: (items,) classes of the training items; ``seed`` draws the folds."""
        self.labels, self.num_outputs, self.seed = labels, num_outputs, seed
        self.strength: float | None = None
        counts = np.bincount(labels)
        # Each fold has an item of every class.
        self.num_folds = min(PROBE_FOLDS, int(counts[counts > 0].min()))
        if self.num_folds < 2 or (counts > 0).sum() < 2:
            raise ValueError("too few training items of a class to fit a probe on: raise --max-probe-examples")

    def choose_strength(self, feature_sets: Sequence[Array]) -> None:
        """Take the inverse penalty of the least cross-validated log loss, on average over some (items, hidden)."""
        from sklearn.model_selection import StratifiedKFold, validation_curve

        folds = StratifiedKFold(self.num_folds, shuffle=True, random_state=self.seed)
        setting = {"param_name": "logisticregression__C", "param_range": list(PROBE_STRENGTHS)}
        with one_thread():
            scores = []  # (feature sets, strengths, folds)
            for features in feature_sets:
                _, scores_of_folds = validation_curve(
                    _pipeline(), features, self.labels, cv=folds, scoring="neg_log_loss", **setting
                )
                scores.append(scores_of_folds)
        mean_scores = np.mean(scores, axis=(0, 2))
        self.strength = PROBE_STRENGTHS[int(np.argmax(mean_scores))]

    def outputs(self, features: Array, scored: Array) -> Array:
        """Fit to (items, hidden) features; (scored items, classes) logits, ABSENT_CLASS of classes not trained on."""
        assert self.strength is not None
        with one_thread():
            fitted = _pipeline(self.strength).fit(features, self.labels)
        logits = fitted.decision_function(scored)
        outputs = np.full((len(scored), self.num_outputs), ABSENT_CLASS)
        # Of two classes scikit-learn gives the log-odds of the second.
        outputs[:, fitted.classes_] = np.stack([-logits / 2, logits / 2], axis=1) if logits.ndim == 1 else logits
        return outputs


def _pipeline(strength: float = 1.0) -> Any:
    """An unfitted probe: features are standardised, then read by a logistic regression."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, tol=TOLERANCE, max_iter=MAX_STEPS))


Scores = dict[str, Array]


class Scorer:
    """Places parameters, runs the body once and scores every item.

    Forward: in the tuned body under the tuned head. Reverse, with a ``probe``: in the body from before, under a
    logistic regression that is fitted to the placement's own features of the training items.
    """

    def __init__(self, body: Body, splits: Mapping[str, EncodedSplit], split: str, probe: Probe | None) -> None:
        self.body, self.splits, self.split, self.probe = body, splits, splits[split], probe
        self.num_passes = 0

    def start(self, components: Components) -> dict[int, Scores]:
        """Choose the probe's strength on the features with no and with all components tuned; their scores."""
        if self.probe is None:
            return {}
        features_of = {
            coalition: self._features(components.place(coalition))
            for coalition in dict.fromkeys((0, components.moving))  # one pass where nothing has moved
        }
        self.probe.choose_strength([train_features for train_features, _ in features_of.values()])
        return {coalition: self._score(self.probe.outputs(*features)) for coalition, features in features_of.items()}

    def values(self, placement: Placement) -> Scores:
        """Name of a value to (items,)."""
        if self.probe is None:
            return self._score(self.outputs(placement))
        return self._score(self.probe.outputs(*self._features(placement)))

    def outputs(self, placement: Placement) -> Array:
        """(items, outputs) logits of the body's own head."""
        self.body.place(placement)
        self.num_passes += 1
        return self.body.outputs(self.split)

    def _features(self, placement: Placement) -> tuple[Array, Array]:
        """(items, hidden) pooled vectors of the training and of the scored items."""
        self.body.place(placement)
        self.num_passes += 1
        return self.body.features(self.splits["train"]), self.body.features(self.split)

    def _score(self, outputs: Array) -> Scores:
        assert self.split.labels is not None
        return score_items(outputs, self.split.labels)


def score_items(outputs: Array, labels: NDArray[Any]) -> Scores:
    """(items, classes) logits and (items,) classes to the (items,) log-likelihood of the class (nats) and accuracy.

    Of floats, the targets of a regression, and (items, 1) outputs: each item's part of R², whose mean over the items
    is R²: 1 - its squared error over the variance of the targets.
    """
    from scipy.special import log_softmax

    if np.issubdtype(labels.dtype, np.floating):
        targets = labels.astype(np.float64)
        return {"r2": 1 - np.square(outputs[:, 0] - targets) / targets.var()}
    log_likelihoods = log_softmax(outputs, axis=1)[np.arange(len(labels)), labels]
    return {"log-likelihood": log_likelihoods, "accuracy": (outputs.argmax(axis=1) == labels).astype(np.float64)}


def check_direction(run: Run, direction: str) -> None:
    """ValueError for the reverse of a regression, from the manifest alone: before the first pass of any run."""
    task = run.manifest["task"]
    if direction == "reverse" and task["kind"] == "regression":
        raise ValueError(f"{run.path}: --reverse fits a probe of classes, and {task['name']} is a regression")


OnPass = Callable[[int, int], None]


def play_run(run: Run, settings: TransplantSettings | None = None, on_pass: OnPass = lambda done, total: None) -> Game:
    """Score every coalition of one run; v(S) with the components in S tuned, the rest from before training.

    Forward or reverse, see :class:`Scorer`. Coalitions that differ only in what has not moved are the same model, and
    one pass serves them. ValueError when the run kept no model, has nothing to score by text, or lacks what the
    settings ask for.
    """
    settings = settings or TransplantSettings()
    is_reverse = settings.direction == "reverse"
    tuned = load_tuned(run)
    loaded = load_untuned(run) if is_reverse else tuned
    task = task_of(run)
    split_name = _find_scored_split(run, task, settings)
    data = encode_task(task, loaded, run.config.max_length)
    splits = {split_name: draw_items(data.splits[split_name], settings.max_examples, settings.seed)}
    targets = splits[split_name].labels if task.kind == "regression" else None
    if targets is not None and (targets == targets[0]).all():
        raise ValueError(
            f"{run.path}: R² is undefined where all targets are equal, as on {split_name}: score more items"
        )
    probe = None
    if is_reverse:
        splits["train"] = draw_items(data.splits["train"], settings.max_probe_examples, settings.seed)
        assert splits["train"].labels is not None
        probe = Probe(splits["train"].labels, task.num_outputs, run.config.seed)
    after = Body(tuned, data).tensors()
    components = build_components(run, after, data, list(splits.values()), settings.coordinates)
    scorer = Scorer(Body(loaded, data, settings.dtype), splits, split_name, probe)
    has_gauge_check = settings.coordinates == "fixed" and not is_reverse
    num_passes = _count_passes(components, settings.num_draws_of_direction, has_gauge_check)
    seeds = [settings.seed, run.config.seed]
    values, perturbed_values = _play(
        scorer,
        components,
        settings.num_draws_of_direction,
        seeds,
        on_pass=lambda: on_pass(scorer.num_passes, num_passes),
    )
    gauge = _check_gauge(scorer, components, after) if has_gauge_check else None
    on_pass(num_passes, num_passes)
    return Game(
        players=components.names,
        moving=components.moving,
        ids=splits[split_name].ids,
        split=split_name,
        values=values,
        perturbed=perturbed_values,
        gauge=gauge,
        num_passes=scorer.num_passes,
        notes=components.notes,
        stillness=tuple(player.stillness for player in components.players),
    )


def _find_scored_split(run: Run, task: Task, settings: TransplantSettings) -> str:
    """The name of the split to score; ValueError where the task or this split cannot be scored in this direction."""
    if task.kind in ANSWERED:
        raise ValueError(f"{run.path}: transplants are scored by text, and {task.name} {ANSWERED[task.kind]}")
    check_direction(run, settings.direction)
    split_name = settings.split or task.reported_split
    if lookup(task.splits, split_name, "split").labels is None:
        raise ValueError(f"{run.path}: split {settings.split} has no labels to score against")
    if settings.direction == "reverse" and settings.split == "train":
        raise ValueError("--reverse fits its probe on train: score another split")
    return split_name


def _count_passes(components: Components, num_draws: int, has_gauge_check: bool) -> int:
    """How many passes a game takes: coalitions of what has moved, random changes, and three of the gauge check."""
    num_changes = sum(
        _applies(components, coalition, kind) for kind in CHANGES for _, coalition in _coalitions_to_change(components)
    )
    num_coalitions: int = 2 ** components.moving.bit_count()
    return num_coalitions + num_draws * num_changes + 3 * has_gauge_check


def _check_gauge(scorer: Scorer, components: Components, after: Mapping[str, Array]) -> GaugeCheck:
    """The tuned model in the fixed gauge against its raw parameters, ``after``; with a control that must differ."""
    all_tuned = components.place(2 ** len(components.players) - 1)
    raw = {
        parameter: (rows, after[parameter] if rows is None else after[parameter][rows])
        for parameter, (rows, _) in all_tuned.items()
    }
    rows, word_vectors = all_tuned["word_embeddings"]
    scaled = all_tuned | {"word_embeddings": (rows, 1.1 * word_vectors)}  # no offset, so the outputs must show it
    fixed_outputs = scorer.outputs(all_tuned)
    control_outputs = scorer.outputs(scaled)
    raw_outputs = scorer.outputs(raw)
    return GaugeCheck(
        difference=float(np.abs(fixed_outputs - raw_outputs).max()),
        control=float(np.abs(control_outputs - raw_outputs).max()),
    )


def build_components(
    run: Run, after: Mapping[str, Array], data: EncodedTask, splits: list[EncodedSplit], coordinates: str
) -> Components:
    """The players of a run: its first snapshot against its tuned parameters, on the tokens of some splits."""
    trajectory = run.trajectory
    before = {name: np.asarray(tensor) for name, tensor in trajectory.at(0).tensors.items()}
    last = trajectory.snapshots[-1].tensors
    if any(not np.array_equal(last[name], after[name]) for name in trajectory.parameters):
        raise ValueError(f"{run.path}: model/ differs from the last snapshot; repeat the run with --overwrite")
    design = design_of(splits, data, tuple(name for name in trajectory.parameters if name in TABLES))
    if coordinates == "raw":
        return raw_components(before, after, used_rows(design))
    if run.config.reinject_positions:
        raise ValueError(
            f"{run.path}: positions enter again before each layer, and offsets between the tables are not a gauge "
            "there: transplant in raw coordinates (--coordinates raw)"
        )
    return fixed_components(trajectory, before, after, design)


def _play(
    scorer: Scorer, components: Components, num_draws: int, seeds: list[int], on_pass: Callable[[], None]
) -> tuple[Values, dict[str, Values]]:
    """The values of all coalitions, and those of the random changes by kind: see :class:`Game` for both."""
    num_players = len(components.players)
    moving = components.moving
    scores_of = scorer.start(components)
    for coalition in range(2**num_players):
        if coalition & moving not in scores_of:
            scores_of[coalition & moving] = scorer.values(components.place(coalition & moving))
            on_pass()
    values = {
        score: np.stack([scores_of[coalition & moving][score] for coalition in range(2**num_players)])
        for score in scores_of[0]
    }
    perturbed_values: dict[str, Values] = {}
    for kind_number, kind in enumerate(CHANGES):
        # What is not drawn below, as of a player that has not moved, has the values of no player tuned.
        shape = (num_players + 1, num_draws, 1)
        values_of_kind = {score: np.tile(values_of_score[0], shape) for score, values_of_score in values.items()}
        # A stream for each kind: what one draws does not depend on the other.
        generator = np.random.default_rng([*seeds, kind_number])
        for row, coalition in _coalitions_to_change(components):
            for draw in range(num_draws):
                item_scores: Mapping[str, Array | float] = dict.fromkeys(values, np.nan)
                if _applies(components, coalition, kind):
                    item_scores = scorer.values(perturbed(components, coalition, kind, generator).place(coalition))
                    on_pass()
                for score, score_of_item in item_scores.items():
                    values_of_kind[score][row, draw] = score_of_item
        perturbed_values[kind] = values_of_kind
    return values, perturbed_values


def _coalitions_to_change(components: Components) -> list[tuple[int, int]]:
    """The coalitions that get random changes, each with its row in the tables: every player that moved, then all."""
    moving = components.moving
    single_players = [(i, 1 << i) for i in range(len(components.players)) if has_player(moving, i)]
    return [*single_players, (len(components.players), moving)] if moving else []


def _applies(components: Components, coalition: int, kind: str) -> bool:
    """Whether this kind of change can be drawn for a coalition: to rotate it, a table needs two rows that moved."""
    return kind == RANDOM or can_rotate(
        [player for i, player in enumerate(components.players) if has_player(coalition, i)]
    )
