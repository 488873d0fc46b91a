"""What a frozen backbone needs once: cached features, the head that is trained on them, and the linear probe.

The backbone runs once, in eval mode: under ``model.train()`` a frozen backbone would still apply dropout.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from toolkit.config import RunConfig
from toolkit.data.batches import EncodedSplit, EncodedTask, epoch_batches
from toolkit.models.classifier import Classifier, in_eval_mode
from toolkit.models.heads import answer, constant_loss, entry_of, example_losses, first_weights, inputs_of
from toolkit.models.regimes import HEAD
from toolkit.training.accelerators import one_thread
from toolkit.training.evaluation import extract_features
from toolkit.training.going_on import GoingOn
from toolkit.training.loop import Moment, OnStep, Plan, run_epochs
from toolkit.training.optimizer import (
    StepLog,
    build_optimizer,
    check_finite,
    check_outputs,
    clipping_factor,
    group_parameters,
    learning_rate_factors,
    restore_state,
    state_of,
)
from toolkit.training.recorder import Recorder

Features = Mapping[str, NDArray[np.float32]]
"""Split to (examples, width) pooled vectors, as :meth:`Classifier.pool` gives them."""

HELD_OUT_SHARE = 0.1
"""Of train, on which early stopping watches the loss."""
LEAST_HELD_OUT = 20
"""Examples: of a small training split more than the share is held out, a third at most."""
PATIENCE, PATIENCE_STEPS = 10, 200
"""Epochs without a lower loss after which early stopping stops, and the steps that they must hold."""
MIN_FALL = 1e-3
"""Share of the lowest loss by which a loss must be below it to count as lower."""
LEAST_FALL = 1e-4
"""Least such fall, as a share of the loss of the best constant answer: a task that is solved ends its training."""
MOST_EPOCHS, MOST_STEPS = 200, 3000
"""Epochs and steps after which early stopping stops in any case, once both are reached."""
CHUNK_ROWS = 1024
"""Examples whose head inputs are made at a time, where all of them are not needed together."""

PROBE_CELLS, LEAST_COMPARED = 2_000_000, 1000
"""Numbers, examples times width, that the linear probe's choice is made on at most, or this many examples."""
PROBE_STRENGTHS = tuple(10.0**k for k in range(-4, 3))
PROBE_FOLDS = 5
PROBE_ITERATIONS = 300


def train_head_first(accelerator: Any, model: Classifier, data: EncodedTask, config: RunConfig) -> list[float]:
    """Train the head in place for ``config.head_epochs`` on cached features; the mean loss (nats) of each epoch.

    The first stage of LP-FT (Kumar et al. 2022, arXiv 2202.10054), with a warm-up and decay of its own. The backbone
    does not move and nothing is recorded: exposure and the optimizer log are those of the second stage.
    """
    tensors = _on_device(extract_features(accelerator, model, data, ("train",)), accelerator)
    own = replace(config, epochs=config.head_epochs, max_steps=None)
    epochs = [epoch_batches(data.splits["train"].lengths, own, epoch) for epoch in range(own.num_epochs)]
    factors = learning_rate_factors(sum(map(len, epochs)), own.warmup_fraction)
    stepper = HeadStepper(model.head, tensors["train"], data, own, factors, None)
    step = count()
    return [float(np.mean([stepper.take(batch, next(step)).loss for batch in batches])) for batches in epochs]


def train_head(
    accelerator: Any,
    model: Classifier,
    features: Features,
    data: EncodedTask,
    config: RunConfig,
    recorder: Recorder,
    on_step: OnStep,
    going_on: GoingOn,
) -> Iterator[Moment]:
    """Train the head on cached features in place; yields like :func:`toolkit.training.loop.train`.

    Batches, schedule and clipping are those of full fine-tuning. Every process trains the same head on the whole
    batch: it is too small to share out, and nothing needs to be sent. NonFiniteLossError, at once, for features that
    are not finite.
    """
    check_outputs(features, 0)
    tensors = _on_device(features, accelerator)
    plan = Plan.of(config, data.splits["train"].lengths)
    factors = learning_rate_factors(plan.num_steps, config.warmup_fraction)
    stepper = HeadStepper(model.head, tensors["train"], data, config, factors, recorder)
    outputs = partial(_outputs, model.head, tensors, data)
    return run_epochs(plan, data, config, recorder, stepper, outputs, on_step, going_on)


def train_head_until_it_stops(
    accelerator: Any,
    model: Classifier,
    features: Features,
    data: EncodedTask,
    config: RunConfig,
    recorder: Recorder,
    on_step: OnStep,
    facts: dict[str, Any],
    going_on: GoingOn,
) -> Iterator[Moment]:
    """Train the head in place until the loss on a held-out part of train has stopped falling; yield two moments.

    :func:`hold_out` says which part.

    They are epoch 0 and the epoch with the lowest loss, whose head is put back. The rate rises to
    ``config.head_learning_rate`` within the first epoch (in ``config.warmup_fraction`` of its steps) and stays there.
    What the first linear layer reads is standardised while it learns, by the mean and standard deviation of each
    coordinate over the examples that are trained on, so that one rate serves features of every size; both are folded
    into its weights afterwards, and the head that is kept reads features as they are. Training stops after PATIENCE
    epochs (and PATIENCE_STEPS) without a loss that is lower by MIN_FALL and LEAST_FALL, or after MOST_EPOCHS (and
    MOST_STEPS): a small split has few steps in an epoch.

    ``recorder`` is given the steps that led to the head that is kept and no later one. ``facts``: what the manifest
    says of it is put here. ValueError when nothing can be held out, NonFiniteLossError for what is not finite.
    """
    check_outputs(features, 0)
    tensors = _on_device(features, accelerator)
    split, head = data.splits["train"], model.head
    assert split.labels is not None
    held_out = hold_out(split.labels if data.task.kind == "classification" else None, len(split), config.seed)
    kept = np.setdiff1d(np.arange(len(split)), held_out)
    least_fall = LEAST_FALL * constant_loss(data.task.kind, split.labels[split.rows_of(held_out)])

    def outputs(step: int) -> dict[str, NDArray[np.float32]]:
        check_outputs(found := _outputs(head, tensors, data), step)
        return found

    def batches_of(epoch: int) -> list[NDArray[np.int64]]:
        return [kept[batch] for batch in epoch_batches(split.lengths[kept], config, epoch)]

    if not going_on.step:
        yield Moment(0, 0, True, float("nan"), partial(outputs, 0))
    per_epoch = len(batches_of(0))
    patience = max(PATIENCE, math.ceil(PATIENCE_STEPS / per_epoch))
    most_epochs = max(MOST_EPOCHS, math.ceil(MOST_STEPS / per_epoch))
    rising = np.ceil(config.warmup_fraction * per_epoch)
    factors = np.minimum(1.0, np.arange(1, rising + 2) / max(rising, 1.0))
    logs: list[StepLog] = []
    losses: list[float] = []
    train_losses: list[float] = []
    ends: list[int] = []
    best, lowest = 0, float("inf")
    with standardised(head, tensors["train"], split.rows_of(kept)):
        stepper = HeadStepper(head, tensors["train"], data, config, factors, None)
        weights = {name: value.clone() for name, value in head.state_dict().items()}
        if kept_of := going_on.restore(stepper):
            logs = [StepLog(int(step), *own) for step, *own in kept_of["logs"].tolist()]
            losses, train_losses = kept_of["held_out"].tolist(), kept_of["losses"].tolist()
            ends, best, lowest = kept_of["ends"].tolist(), int(kept_of["best"]), float(kept_of["lowest"])
            weights = {name: torch.from_numpy(kept_of[f"best.{name}"]) for name in weights}
        while len(losses) < most_epochs and len(losses) - best < patience:
            first = len(logs)
            for batch in batches_of(len(losses)):
                started = time.perf_counter()
                logs.append(stepper.take(batch, len(logs)))
                on_step(logs[-1], time.perf_counter() - started)
            ends.append(len(logs))
            train_losses.append(float(np.mean([log.loss for log in logs[first:]])))
            losses.append(stepper.loss(held_out))
            if losses[-1] < lowest * (1 - MIN_FALL) and losses[-1] < lowest - least_fall:
                best, lowest = len(losses), losses[-1]
                weights = {name: value.clone() for name, value in head.state_dict().items()}
            own = {f"best.{name}": value.cpu() for name, value in weights.items()}
            own |= {"logs": [astuple(log) for log in logs], "held_out": losses, "losses": train_losses}
            going_on.after_epoch(len(logs), stepper, ends=ends, best=best, lowest=lowest, **own)
        head.load_state_dict(weights)
    for epoch in range(best):
        recorder.expect(batches := batches_of(epoch))
        for batch, log in zip(batches, logs[ends[epoch] - len(batches) : ends[epoch]], strict=True):
            recorder.record_batch(batch)
            recorder.record_rates(
                float("nan"), log.learning_rate, clipping_factor(log.gradient_norm, config.max_gradient_norm)
            )
    facts.update(
        epochs=best,
        epochs_tried=len(losses),
        most_epochs=most_epochs,
        patience=patience,
        has_stopped=len(losses) - best >= patience,
        num_held_out=len(held_out),
        held_out_losses=losses,
        standardised_on=len(kept),
    )
    yield Moment(best, ends[best - 1], True, train_losses[best - 1], partial(outputs, ends[best - 1]))


def hold_out(labels: NDArray[np.int64] | None, num_examples: int, seed: int) -> NDArray[np.int64]:
    """(held,) indices, in order, of a tenth of the examples, drawn with ``seed``.

    Of a few more: 20 (LEAST_HELD_OUT), or a third of them where that is less, and one at least.

    With ``labels``, (examples,), each class gives its share, rounded; a class of fewer than five gives none unless
    there is nothing else. ValueError for a single example.
    """
    if num_examples < 2:
        raise ValueError("early stopping holds out a part of train, which has 1 example: pass --head-training epochs")
    order = np.random.default_rng([*b"held out", seed]).permutation(num_examples)
    place = np.arange(num_examples) + 0.5
    share = place / num_examples
    if labels is not None:
        for label in np.unique(labels):
            own = np.flatnonzero(labels[order] == label)
            share[own] = place[: len(own)] / len(own)
    wanted = max(1, round(HELD_OUT_SHARE * num_examples), min(LEAST_HELD_OUT, num_examples // 3))
    return np.sort(order[np.argsort(share, kind="stable")[:wanted]])


@contextmanager
def standardised(head: nn.Module, features: torch.Tensor, rows: NDArray[np.int64]) -> Iterator[None]:
    """Inside, the first linear layer of ``head`` reads standardised inputs; the function of the head stays as it is.

    Mean and standard deviation of each coordinate are those over ``rows`` of ``features`` (examples, width), as the
    head mixes layers when the block is entered. The layer's weights change to answer as before, and back at the end,
    with what they learned in between.
    """
    with torch.no_grad(), in_eval_mode(head):
        chunks = torch.split(torch.from_numpy(rows).to(features.device), CHUNK_ROWS)
        total = torch.stack([inputs_of(head, features[chunk]).double().sum(dim=0) for chunk in chunks]).sum(dim=0)
        mean = total / len(rows)
        squares = [(inputs_of(head, features[chunk]) - mean).square().sum(dim=0) for chunk in chunks]
        scale = (torch.stack(squares).sum(dim=0) / len(rows)).sqrt()
        # A coordinate that varies by rounding only would be blown up; it says nothing, and stays as small as it is.
        scale = torch.where(scale > 1e-6 * (mean.abs() + scale.mean()), scale, torch.ones_like(scale))

        def change(*, is_back: bool) -> None:
            for layer_weight, layer_bias in first_weights(head):
                weight, bias = layer_weight.double(), layer_bias.double()
                own = weight / scale if is_back else weight * scale
                layer_bias.copy_(bias - own @ mean if is_back else bias + weight @ mean)
                layer_weight.copy_(own)

        change(is_back=False)
    center, spread = mean.float(), scale.float()
    hook = entry_of(head).register_forward_pre_hook(lambda _, inputs: ((inputs[0] - center) / spread,))
    try:
        yield
    finally:
        hook.remove()
        with torch.no_grad():
            change(is_back=True)


class HeadStepper:
    """One optimizer step at a time of a head on cached features."""

    def __init__(
        self,
        head: nn.Module,
        features: torch.Tensor,
        data: EncodedTask,
        config: RunConfig,
        factors: NDArray[np.float64],
        recorder: Recorder | None,
    ) -> None:
        """``factors``: share of the peak learning rate at each step; the last one also at later steps."""
        self.split = data.splits["train"]
        labels = self.split.labels
        assert labels is not None
        self.head, self.features, self.config, self.recorder = head, features, config, recorder
        self.data = data
        self.report: Callable[[StepLog], None] = lambda log: None
        self.kind, self.labels = data.task.kind, torch.from_numpy(labels).to(features.device)
        self.factors = factors
        model = nn.ModuleDict({HEAD.rstrip("."): head})
        self.optimizer = build_optimizer(model, group_parameters(model, config), config, features.device)
        self.trained = dict(model.named_parameters())
        self.has_dropout = any(isinstance(module, nn.Dropout) and module.p for module in head.modules())

    def take(self, indices: NDArray[np.int64], step: int) -> StepLog:
        """One update on a batch; ``step`` counts from 0."""
        limit = self.config.max_gradient_norm
        rate = self.config.head_learning_rate * float(self.factors[min(step, len(self.factors) - 1)])
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.head.train()
        with self._own_randomness(step):
            loss = self._losses(indices).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.nn.utils.clip_grad_norm_(self.head.parameters(), limit))
        check_finite(norm, step)
        if self.recorder is not None:
            self.recorder.record_batch(indices)
            self.recorder.record_rates(float("nan"), rate, clipping_factor(norm, limit))
        self.optimizer.step()
        self.optimizer.zero_grad()
        log = StepLog(step + 1, float(loss.detach()), rate, norm)
        self.report(log)
        return log

    def settle(self) -> None:
        """No-op: each step reports at once, and the head is the model's."""

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and moments of the head."""
        return state_of(self.trained, self.optimizer)

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up what :meth:`state` gave."""
        restore_state(self.trained, self.optimizer, state)

    @contextmanager
    def _own_randomness(self, step: int) -> Iterator[None]:
        """Dropout's draws are a function of seed and step, since every process trains the same head."""
        if not self.has_dropout:
            yield
            return
        device = self.features.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(int(np.random.default_rng([*b"dropout", self.config.seed, step]).integers(2**63)))
            yield

    def _losses(self, indices: NDArray[np.int64]) -> torch.Tensor:
        """(rows,) loss of some examples, or of their words."""
        device = self.features.device
        rows = torch.from_numpy(self.split.rows_of(indices)).to(device)
        outputs = answer(self.head, self.features[rows], _sizes(self.split, indices))
        return example_losses(self.kind, outputs, self.labels[rows])

    @torch.no_grad()
    def loss(self, indices: NDArray[np.int64]) -> float:
        """Mean loss of some examples, without dropout."""
        with in_eval_mode(self.head):
            parts = [indices[start : start + CHUNK_ROWS] for start in range(0, len(indices), CHUNK_ROWS)]
            losses = [self._losses(part) for part in parts]
        return float(torch.cat(losses).double().mean())


@torch.inference_mode()
def _outputs(head: nn.Module, tensors: Mapping[str, torch.Tensor], data: EncodedTask) -> dict[str, NDArray[np.float32]]:
    splits = {name: data.splits[name] for name in tensors if name != "train"}
    with in_eval_mode(head):
        return {
            name: answer(head, tensors[name], _sizes(split, np.arange(len(split)))).cpu().numpy()
            for name, split in splits.items()
        }


def _sizes(split: EncodedSplit, indices: NDArray[np.int64]) -> torch.Tensor | None:
    """(examples,) words of some examples of a token task; None of any other."""
    return None if split.words is None else torch.from_numpy(split.sizes_of(indices))


def _on_device(features: Features, accelerator: Any) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array).to(accelerator.device) for name, array in features.items()}


@dataclass(frozen=True)
class LinearProbe:
    """What the linear head that cross-validation finds says of every split but ``train``."""

    outputs: Mapping[str, NDArray[np.float32]]
    """Split to (examples, outputs)."""
    strength: float
    """Inverse of the penalty: C of the logistic regression, 1 / alpha of the ridge."""
    is_standardised: bool
    """Whether each coordinate was divided by its own standard deviation, or all by one."""
    num_compared: int
    """Training examples that the choice was made on."""


def linear_probe(head: nn.Module, features: Features, data: EncodedTask, seed: int) -> LinearProbe | None:
    """The best linear head on what the first linear layer of ``head`` reads; None with one example of a class.

    Multinomial logistic regression, or ridge in regression: a yardstick of what a linear head can reach. The penalty
    and whether each coordinate is standardised are chosen together by cross-validation within train, by log loss (or
    squared error), so that a head trained otherwise can score higher: it is no strict bound. Where coordinates are not
    standardised they are centred and share one scale, their root mean squared standard deviation, so that one grid of
    penalties serves features of every size. A coordinate whose standard deviation is at most 1e-6 of its mean's size
    varies by rounding only and is not standardised. Layers that are mixed are mixed as ``head`` has learned to.

    The choice is made on as many training examples as hold PROBE_CELLS numbers, drawn with ``seed``; the fit is to all.
    A fit that L-BFGS has not finished after PROBE_ITERATIONS iterations counts as it is.
    """
    labels = data.splits["train"].labels
    assert labels is not None
    own = _inputs(head, features["train"])
    is_regression = data.task.kind == "regression"
    chosen = np.arange(len(own))
    limit = max(LEAST_COMPARED, PROBE_CELLS // own.shape[1])
    if len(chosen) > limit:
        chosen = np.sort(np.random.default_rng([*b"probe", seed]).permutation(len(own))[:limit])
    few = labels[chosen]
    num_folds = min(PROBE_FOLDS, len(few) if is_regression else int(np.bincount(few)[np.unique(few)].min()))
    if num_folds < 2:
        return None  # too few examples of a class to choose by
    others = {name: _inputs(head, array) for name, array in features.items() if name != "train"}
    with quiet_fits() as num_threads:
        given = own[chosen], few, num_folds, seed
        strength, is_standardised = choose_ridge(*given) if is_regression else choose_strength(*given, num_threads)
        center, scale = _scaling(own, is_standardised)
        inputs = (own - center) / scale
        if is_regression:
            weights = _ridge(inputs, labels, (strength,))[0]
            outputs = {
                name: (((array - center) / scale) @ weights + labels.mean())[:, None].astype(np.float32)
                for name, array in others.items()
            }
        else:
            fitted = _logistic().set_params(C=strength).fit(inputs, labels)
            outputs = {
                name: all_classes(fitted, (array - center) / scale, data.task.num_outputs)
                for name, array in others.items()
            }
    return LinearProbe(outputs, strength, is_standardised, len(few))


@contextmanager
def quiet_fits() -> Iterator[int]:
    """No warning of an unfinished fit, and one thread; what it gives is how many there were."""
    from sklearn.exceptions import ConvergenceWarning

    num_threads = torch.get_num_threads()
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield num_threads


@torch.inference_mode()
def _inputs(head: nn.Module, features: NDArray[np.float32]) -> NDArray[np.float32]:
    """(examples, inputs) fp32 what the first linear layer of ``head`` reads."""
    device = next(head.parameters()).device
    with in_eval_mode(head):
        parts = [inputs_of(head, part.to(device)).cpu() for part in torch.split(torch.from_numpy(features), CHUNK_ROWS)]
    return torch.cat(parts).numpy()


def _scaling(features: NDArray[np.float32], is_standardised: bool) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(width,) what to subtract and (width,) what to divide by."""
    center, spread = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)
    if not is_standardised:
        spread = np.full_like(spread, np.sqrt(np.square(spread).mean()))
    # A coordinate that varies by rounding only says nothing, and is not to be blown up.
    spread[spread <= 1e-6 * np.abs(center)] = 1.0
    spread[spread == 0] = 1.0
    return center.astype(np.float32), spread.astype(np.float32)


def _folds(
    features: NDArray[np.float32], cuts: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], is_standardised: bool
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Scaled features of the two parts of each cut, as the first part has them.

    With many more coordinates than examples both are turned into the space that the examples span, where a penalised
    fit is the same and takes less time.
    """
    for train, held_out in cuts:
        center, scale = _scaling(features[train], is_standardised)
        own, held = (features[train] - center) / scale, (features[held_out] - center) / scale
        if own.shape[1] > 2 * len(own):
            squares, vectors = np.linalg.eigh(own.astype(np.float64) @ own.T)
            is_real = squares > squares[-1] * 1e-10
            lengths, vectors = np.sqrt(squares[is_real]), vectors[:, is_real]
            held = (held @ (own.T @ (vectors / lengths))).astype(np.float32)
            own = (vectors * lengths).astype(np.float32)
        yield own, held


def choose_strength(
    features: NDArray[np.float32], labels: NDArray[np.int64], num_folds: int, seed: int, num_threads: int = 1
) -> tuple[float, bool]:
    """The C of PROBE_STRENGTHS, and whether to standardise, with the least log loss (nats), its mean over stratified
    folds.

    Each fold fits the strengths in turn, each from where the one before ended, which takes a third of the iterations;
    folds run side by side in ``num_threads``. Strengths beyond two that were each worse than the one before are not
    tried: there the fits take longest and lose most.
    """
    from joblib import Parallel, delayed
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedKFold

    cuts = list(StratifiedKFold(num_folds, shuffle=True, random_state=seed).split(features, labels))
    found: dict[tuple[float, bool], float] = {}
    for is_standardised in (True, False):
        parts = list(_folds(features, cuts, is_standardised))
        fits = [_logistic().set_params(warm_start=True) for _ in cuts]

        def loss(k: int, strength: float, parts: Any = parts, fits: Any = fits) -> float:
            (train, held_out), (own, held) = cuts[k], parts[k]
            shares = fits[k].set_params(C=strength).fit(own, labels[train]).predict_proba(held)
            return float(log_loss(labels[held_out], shares, labels=fits[k].classes_))

        means: list[float] = []
        for strength in PROBE_STRENGTHS:
            run = Parallel(n_jobs=num_threads, prefer="threads")
            means.append(float(np.mean(run(delayed(loss)(k, strength) for k in range(len(cuts))))))
            found[strength, is_standardised] = means[-1]
            if len(means) > 2 and means[-1] > means[-2] > means[-3]:
                break
    return min(found, key=found.__getitem__)


def choose_ridge(
    features: NDArray[np.float32], labels: NDArray[np.float64], num_folds: int, seed: int
) -> tuple[float, bool]:
    """As :func:`choose_strength`, for the ridge: the least squared error, its mean over folds."""
    from sklearn.model_selection import KFold

    cuts = list(KFold(num_folds, shuffle=True, random_state=seed).split(features))
    found: dict[tuple[float, bool], float] = {}
    for is_standardised in (True, False):
        errors = []
        for (train, held_out), (own, held) in zip(cuts, _folds(features, cuts, is_standardised), strict=True):
            values = held @ _ridge(own, labels[train], PROBE_STRENGTHS).T + labels[train].mean()
            errors.append(np.square(values - labels[held_out][:, None]).mean(axis=0))
        found |= {(s, is_standardised): float(e) for s, e in zip(PROBE_STRENGTHS, np.mean(errors, axis=0), strict=True)}
    return min(found, key=found.__getitem__)


def _ridge(inputs: NDArray[np.float32], labels: NDArray[np.float64], strengths: Sequence[float]) -> NDArray[np.float64]:
    """(strengths, inputs) weights of centred inputs (examples, inputs) at each penalty 1 / strength.

    From one eigendecomposition, of the smaller of the two matrices of products; a direction that the inputs do not
    have gets no weight, however small the penalty.
    """
    own, centred = inputs.astype(np.float64), labels - labels.mean()
    is_wide = own.shape[1] > len(own)
    squares, vectors = np.linalg.eigh(own @ own.T if is_wide else own.T @ own)
    is_real = squares > squares[-1] * 1e-10
    squares, vectors = squares[is_real], vectors[:, is_real]
    shares = [1 / (squares + 1 / strength) for strength in strengths]
    if is_wide:
        return np.stack([own.T @ (vectors @ (share * (vectors.T @ centred))) for share in shares])
    products = vectors.T @ (own.T @ centred)
    return np.stack([vectors @ (share * products) for share in shares])


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=PROBE_ITERATIONS)


def all_classes(fitted: Any, features: Any, num_outputs: int) -> NDArray[np.float32]:
    """Logits with a column for every class, also one that training does not hold; ``features`` may be sparse."""
    outputs = np.full((features.shape[0], num_outputs), -1e9, np.float32)
    logits = fitted.decision_function(features)
    # Of two classes scikit-learn gives the log-odds of the second.
    outputs[:, fitted.classes_] = np.stack([-logits / 2, logits / 2], axis=1) if logits.ndim == 1 else logits
    return outputs
