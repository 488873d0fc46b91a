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
from toolkit.training.resume import Resumer
from toolkit.training.step_recorder import Recorder

Features = Mapping[str, NDArray[np.float32]]
"""Split to (examples, width) pooled vectors, as :meth:`Classifier.pool` gives them."""
LinearMap = tuple[NDArray[np.float64], NDArray[np.float64]]
"""(outputs, inputs) weight and (outputs,) bias."""

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
LEAST_ERRORS = 3.0
"""Standard errors by which a trained head must be better than the convex one on the held-out examples to be kept: it
was stopped by them, and the convex one has not seen them."""
CHUNK_ROWS = 1024
"""Examples whose head inputs are made at a time, where all of them are not needed together."""

PROBE_CELLS, LEAST_COMPARED = 2_000_000, 1000
"""Numbers, examples times width, that the linear probe's choice is made on at most, or this many examples."""
PROBE_STRENGTHS = tuple(10.0**k for k in range(-4, 3))
PROBE_FOLDS = 5
PROBE_ITERATIONS = 300
UNSEEN = -20.0
"""Logit of a class that training does not hold, where those of the others sum to 0: never the likeliest, and its loss
is finite."""


def train_head_first(accelerator: Any, model: Classifier, data: EncodedTask, config: RunConfig) -> list[float]:
    """Train the head in place for ``config.head_epochs`` on cached features; the mean loss (nats) of each epoch.

    The first stage of LP-FT (Kumar et al. 2022, arXiv 2202.10054), with a warm-up and decay of its own. The backbone
    does not move and nothing is recorded: exposure and the optimizer log are those of the second stage.
    """
    tensors = _on_device(extract_features(accelerator, model, data, ("train",)), accelerator)
    head_config = replace(config, epochs=config.head_epochs, max_steps=None)
    epochs = [
        epoch_batches(data.splits["train"].lengths, head_config, epoch) for epoch in range(head_config.num_epochs)
    ]
    factors = learning_rate_factors(sum(map(len, epochs)), head_config.warmup_fraction)
    stepper = HeadStepper(model.head, tensors["train"], data, head_config, factors, None)
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
    resumer: Resumer,
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
    return run_epochs(plan, data, config, stepper, outputs, on_step, resumer)


def train_head_until_it_stops(
    accelerator: Any,
    model: Classifier,
    features: Features,
    data: EncodedTask,
    config: RunConfig,
    recorder: Recorder,
    on_step: OnStep,
    facts: dict[str, Any],
    resumer: Resumer,
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

    What is kept of a linear head is that one or the convex one of :func:`linear_probe`, as :func:`keep_the_better` has
    it; under ``mix`` both read the layers as training has learned to mix them, and only the linear map is exchanged. A
    head with hidden layers or an LSTM has no convex counterpart and stays as trained, and so does one of which there
    is no linear probe. No scored split has a say.

    ``recorder`` is given the steps that led to the trained head's best epoch and no later one, whichever head is kept;
    epoch and step of the second moment are theirs too. Its ``train_loss`` is of the head that is kept, of the convex
    one over all of train. ``facts``: what the manifest says of it is put here, and under ``probe`` the linear probe,
    where one was fitted. ValueError when nothing can be held out, NonFiniteLossError for what is not finite.
    """
    check_outputs(features, 0)
    tensors = _on_device(features, accelerator)
    split, head = data.splits["train"], model.head
    assert split.labels is not None
    held_out = hold_out(split.labels if data.task.kind == "classification" else None, len(split), config.seed)
    trained_on = np.setdiff1d(np.arange(len(split)), held_out)
    least_fall = LEAST_FALL * constant_loss(data.task.kind, split.labels[split.rows_of(held_out)])

    def outputs(step: int) -> dict[str, NDArray[np.float32]]:
        check_outputs(answers := _outputs(head, tensors, data), step)
        return answers

    def batches_of(epoch: int) -> list[NDArray[np.int64]]:
        return [trained_on[batch] for batch in epoch_batches(split.lengths[trained_on], config, epoch)]

    if not resumer.step:
        yield Moment(0, 0, True, float("nan"), partial(outputs, 0))
    steps_per_epoch = len(batches_of(0))
    # A small split has few steps in an epoch, so both limits are in steps too.
    patience = max(PATIENCE, math.ceil(PATIENCE_STEPS / steps_per_epoch))
    most_epochs = max(MOST_EPOCHS, math.ceil(MOST_STEPS / steps_per_epoch))
    num_warmup = np.ceil(config.warmup_fraction * steps_per_epoch)
    factors = np.minimum(1.0, np.arange(1, num_warmup + 2) / max(num_warmup, 1.0))
    logs: list[StepLog] = []
    losses: list[float] = []
    train_losses: list[float] = []
    ends: list[int] = []
    best, lowest = 0, float("inf")
    with standardised(head, tensors["train"], split.rows_of(trained_on)):
        stepper = HeadStepper(head, tensors["train"], data, config, factors, None)
        weights = {name: value.clone() for name, value in head.state_dict().items()}
        if restored := resumer.restore(stepper):
            logs = [StepLog(int(step), *fields) for step, *fields in restored["logs"].tolist()]
            losses, train_losses = restored["held_out"].tolist(), restored["losses"].tolist()
            ends, best, lowest = restored["ends"].tolist(), int(restored["best"]), float(restored["lowest"])
            weights = {name: torch.from_numpy(restored[f"best.{name}"]) for name in weights}
        while len(losses) < most_epochs and len(losses) - best < patience:
            first_step = len(logs)
            for batch in batches_of(len(losses)):
                started = time.perf_counter()
                logs.append(stepper.take(batch, len(logs)))
                on_step(logs[-1], time.perf_counter() - started)
            ends.append(len(logs))
            train_losses.append(float(np.mean([log.loss for log in logs[first_step:]])))
            losses.append(stepper.loss(held_out))
            if losses[-1] < lowest * (1 - MIN_FALL) and losses[-1] < lowest - least_fall:
                best, lowest = len(losses), losses[-1]
                weights = {name: value.clone() for name, value in head.state_dict().items()}
            extra = {f"best.{name}": value.cpu() for name, value in weights.items()}
            extra |= {"logs": [astuple(log) for log in logs], "held_out": losses, "losses": train_losses}
            resumer.after_epoch(len(logs), stepper, ends=ends, best=best, lowest=lowest, **extra)
        head.load_state_dict(weights)
    # What came after the best epoch led to no weights that are kept, and is not recorded.
    for epoch in range(best):
        batches = batches_of(epoch)
        for batch, log in zip(batches, logs[ends[epoch] - len(batches) : ends[epoch]], strict=True):
            recorder.record_batch(recorder.rows_of(data, batch))
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
        standardised_on=len(trained_on),
        chosen="trained",
        convex=None,
    )
    if config.head == "linear" and (probe := linear_probe(head, features, data, config.seed)) is not None:
        inputs = _inputs(head, features["train"])
        facts |= {"probe": probe} | keep_the_better(head, probe, inputs, data, trained_on, held_out)
    # The convex head is fitted to all of train, and so its loss is over all of it.
    final_loss = train_losses[best - 1] if facts["chosen"] == "trained" else stepper.loss(np.arange(len(split)))
    yield Moment(best, ends[best - 1], True, final_loss, partial(outputs, ends[best - 1]))


def keep_the_better(
    head: nn.Module,
    probe: "LinearProbe",
    inputs: NDArray[np.float32],
    data: EncodedTask,
    kept: NDArray[np.int64],
    held_out: NDArray[np.int64],
) -> dict[str, Any]:
    """Put the convex head in place of a trained linear one, unless the held-out examples tell that it is worse.

    They are compared on the share of wrong answers there (in regression on the squared error), the convex one fitted,
    at the strength of ``probe``, to the examples that the other was trained on, ``kept``. The trained one was stopped
    by those examples, so it is kept only if it is better by more than LEAST_ERRORS standard errors of the difference,
    over examples (of a token task too); else ``probe``, which is fitted to both parts. What the manifest says of the
    choice: ``chosen`` (``trained`` or ``convex``), ``held_out_loss`` and ``held_out_error`` of the trained head, and of
    the ``convex`` one the same, its ``strength``, ``is_standardised``, ``num_compared`` and the ``standard_error`` of
    the difference of both errors. ``inputs``: (rows, inputs) of train. Nothing, and the trained head stays, where all
    words with another tag are held out, so that the convex one cannot be fitted without them.
    """
    split = data.splits["train"]
    ((weight, bias),) = first_weights(head)
    labels, rows, trained_rows = split.labels, split.rows_of(held_out), split.rows_of(kept)
    assert labels is not None
    if data.task.kind != "regression" and len(np.unique(labels[trained_rows])) < 2:
        return {}
    trained_map = [p.detach().double().cpu().numpy() for p in (weight, bias)]
    strength, is_standardised = probe.choice["strength"], probe.choice["is_standardised"]
    convex_map = fit_linear(inputs[trained_rows], labels[trained_rows], strength, is_standardised, len(bias))

    def judge(matrix: NDArray[np.float64], offset: NDArray[np.float64]) -> tuple[dict[str, float], NDArray[np.float64]]:
        """Mean loss and error of a linear map on the held-out examples, and (rows,) the error of each row."""
        outputs = inputs[rows] @ matrix.T + offset
        losses = example_losses(data.task.kind, torch.from_numpy(outputs), torch.from_numpy(labels[rows])).numpy()
        errors = losses if data.task.kind == "regression" else 1.0 * (outputs.argmax(axis=1) != labels[rows])
        return {"held_out_loss": float(losses.mean()), "held_out_error": float(errors.mean())}, errors

    trained, trained_errors = judge(*trained_map)
    convex, convex_errors = judge(*convex_map)
    example_of_row = np.repeat(np.arange(len(held_out)), split.sizes_of(held_out))
    gains = np.bincount(example_of_row, convex_errors - trained_errors)  # of the trained head, by example
    standard_error = float(np.sqrt(np.square(gains).sum()))  # of their sum
    # The trained head was stopped by these very examples, so it has to be better by more than chance.
    is_convex = gains.sum() <= LEAST_ERRORS * standard_error
    if is_convex:
        weight.data, bias.data = (torch.from_numpy(values).to(weight) for values in probe.linear_map)
    convex_facts = {**convex, **probe.choice, "standard_error": standard_error / len(rows)}
    return {"chosen": "convex" if is_convex else "trained", **trained, "convex": convex_facts}


def hold_out(labels: NDArray[np.int64] | None, num_examples: int, seed: int) -> NDArray[np.int64]:
    """(held,) indices, in order, of a tenth of the examples, drawn with ``seed``.

    Of a few more: 20 (LEAST_HELD_OUT), or a third of them where that is less, and one at least.

    With ``labels``, (examples,), each class gives its share, rounded; a class of fewer than five gives none unless
    there is nothing else. ValueError for a single example.
    """
    if num_examples < 2:
        raise ValueError("early stopping holds out a part of train, which has 1 example: pass --head-training epochs")
    order = np.random.default_rng([*b"held out", seed]).permutation(num_examples)
    ranks = np.arange(num_examples) + 0.5
    # Of each drawn example its rank within its class, from 0 to 1: the least of all classes are held out.
    relative_ranks = ranks / num_examples
    if labels is not None:
        for label in np.unique(labels):
            members = np.flatnonzero(labels[order] == label)
            relative_ranks[members] = ranks[: len(members)] / len(members)
    num_held_out = max(1, round(HELD_OUT_SHARE * num_examples), min(LEAST_HELD_OUT, num_examples // 3))
    return np.sort(order[np.argsort(relative_ranks, kind="stable")[:num_held_out]])


@contextmanager
def standardised(head: nn.Module, features: torch.Tensor, rows: NDArray[np.int64]) -> Iterator[None]:
    """Inside, the first linear layer of ``head`` reads standardised inputs; the function of the head stays as it is.

    Mean and standard deviation of each coordinate are those over ``rows`` of ``features`` (examples, width), as the
    head mixes layers when the block is entered. The layer's weights change to answer as before, and back at the end,
    with what they learned in between.
    """
    inputs_now = _inputs(head, features.cpu().numpy()[rows])
    mean = torch.from_numpy(inputs_now.mean(axis=0, dtype=np.float64)).to(features.device)
    scale = torch.from_numpy(inputs_now.std(axis=0, dtype=np.float64)).to(features.device)
    with torch.no_grad():
        # A coordinate that varies by rounding only would be blown up; it says nothing, and stays as small as it is.
        scale = torch.where(scale > 1e-6 * (mean.abs() + scale.mean()), scale, torch.ones_like(scale))

        def change(*, is_back: bool) -> None:
            for layer_weight, layer_bias in first_weights(head):
                weight, bias = layer_weight.double(), layer_bias.double()
                new_weight = weight / scale if is_back else weight * scale
                layer_bias.copy_(bias - new_weight @ mean if is_back else bias + weight @ mean)
                layer_weight.copy_(new_weight)

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
            self.recorder.record_batch(self.recorder.rows_of(self.data, indices))
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
            chunks = [indices[start : start + CHUNK_ROWS] for start in range(0, len(indices), CHUNK_ROWS)]
            losses = [self._losses(chunk) for chunk in chunks]
        return float(torch.cat(losses).double().mean())


@torch.inference_mode()
def _outputs(head: nn.Module, tensors: Mapping[str, torch.Tensor], data: EncodedTask) -> dict[str, NDArray[np.float32]]:
    """(rows, outputs) of the head, in eval mode, for each scored split of which there are features."""
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
    """The linear head that cross-validation finds, and what it says of every split but ``train``."""

    linear_map: LinearMap
    """Of inputs as they are."""
    outputs: Mapping[str, NDArray[np.float32]]
    """Split to (examples, outputs)."""
    choice: Mapping[str, Any]
    """What the manifest says of it: ``strength``, the inverse of the penalty (C of the logistic regression, 1 / alpha
    of the ridge); ``is_standardised``: each coordinate was divided by its own standard deviation, and not all by one;
    ``num_compared``, the training examples that the choice was made on."""
    seconds: float
    """What the choice and the fit took."""


def linear_probe(head: nn.Module, features: Features, data: EncodedTask, seed: int) -> LinearProbe | None:
    """The best linear head on what the first linear layer of ``head`` reads; None where there is nothing to choose by.

    Multinomial logistic regression, or ridge in regression: a yardstick of what a linear head can reach. The penalty
    and whether each coordinate is standardised are chosen together by cross-validation within train, by accuracy and,
    where accuracy cannot tell, by log loss (:func:`choose_strength`; in regression by squared error): a head trained
    otherwise can score higher, so that it is no strict bound. Log loss alone asks for more penalty than accuracy does,
    which cost 2 points on questions of six classes read at the first token. Where coordinates are not
    standardised they are centred and share one scale, their root mean squared standard deviation, so that one grid of
    penalties serves features of every size. A coordinate whose standard deviation is at most 1e-6 of its mean's size
    varies by rounding only and is not standardised. Layers that are mixed are mixed as ``head`` has learned to.

    The choice is made on as many training examples as hold PROBE_CELLS numbers, drawn with ``seed``; the fit is to all.
    There are PROBE_FOLDS folds, or as many as the second most frequent class has examples, and a class that has fewer
    examples than there are folds is left out of the choice; None with fewer than two folds. A fit that L-BFGS has not
    finished after PROBE_ITERATIONS iterations counts as it is.
    """
    labels = data.splits["train"].labels
    assert labels is not None
    started = time.perf_counter()
    inputs = _inputs(head, features["train"])
    is_regression = data.task.kind == "regression"
    chosen = np.arange(len(inputs))
    limit = max(LEAST_COMPARED, PROBE_CELLS // inputs.shape[1])
    if len(chosen) > limit:
        chosen = np.sort(np.random.default_rng([*b"probe", seed]).permutation(len(inputs))[:limit])
    num_folds = min(PROBE_FOLDS, len(chosen))
    if not is_regression:
        counts = np.bincount(labels[chosen], minlength=2)
        # Two classes at least must have an example in every fold; rarer ones take no part in the choice.
        num_folds = min(num_folds, int(np.sort(counts)[-2]))
        chosen = chosen[counts[labels[chosen]] >= num_folds]
    if num_folds < 2:
        return None
    arguments = inputs[chosen], labels[chosen], num_folds, seed
    with quiet_fits() as num_threads:
        strength, is_standardised = (
            choose_ridge(*arguments) if is_regression else choose_strength(*arguments, num_threads)
        )
    weight, bias = fit_linear(inputs, labels, strength, is_standardised, data.task.num_outputs)
    scored_inputs = {name: _inputs(head, array) for name, array in features.items() if name != "train"}
    outputs = {name: (array @ weight.T + bias).astype(np.float32) for name, array in scored_inputs.items()}
    choice = {"strength": strength, "is_standardised": is_standardised, "num_compared": len(chosen)}
    return LinearProbe((weight, bias), outputs, choice, time.perf_counter() - started)


def fit_linear(
    inputs: NDArray[np.float32], labels: NDArray[Any], strength: float, is_standardised: bool, num_outputs: int
) -> LinearMap:
    """Weight and bias of a ridge regression (float64 labels) or a logistic regression (int64 classes), (rows,).

    They are for inputs as they are, (rows, inputs), however these were scaled for the fit.
    """
    center, scale = _scaling(inputs, is_standardised)
    scaled = (inputs - center) / scale
    with quiet_fits():
        if np.issubdtype(labels.dtype, np.floating):
            weight, bias = _ridge(scaled, labels, (strength,)), np.array([labels.mean()])
        else:
            weight, bias = linear_map(_logistic().set_params(C=strength).fit(scaled, labels), num_outputs)
    weight = weight / scale
    return weight, bias - weight @ center


@contextmanager
def quiet_fits() -> Iterator[int]:
    """Inside, an unfinished fit warns of nothing and fits take one thread; what it yields is how many there were."""
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
        chunks = [
            inputs_of(head, chunk.to(device)).cpu() for chunk in torch.split(torch.from_numpy(features), CHUNK_ROWS)
        ]
    return torch.cat(chunks).numpy()


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
        fit_inputs, held_inputs = (features[train] - center) / scale, (features[held_out] - center) / scale
        if fit_inputs.shape[1] > 2 * len(fit_inputs):
            eigenvalues, vectors = np.linalg.eigh(fit_inputs.astype(np.float64) @ fit_inputs.T)
            is_spanned = eigenvalues > eigenvalues[-1] * 1e-10  # and not 0 but for rounding
            lengths, vectors = np.sqrt(eigenvalues[is_spanned]), vectors[:, is_spanned]
            held_inputs = (held_inputs @ (fit_inputs.T @ (vectors / lengths))).astype(np.float32)
            fit_inputs = (vectors * lengths).astype(np.float32)
        yield fit_inputs, held_inputs


def choose_strength(
    features: NDArray[np.float32], labels: NDArray[np.int64], num_folds: int, seed: int, num_threads: int = 1
) -> tuple[float, bool]:
    """The C of PROBE_STRENGTHS, and whether to standardise, with the least log loss (nats) of those whose accuracy is
    within one standard error of the highest, over the examples that stratified folds hold out.

    The standard error is that of the paired difference: the rule of Breiman et al. 1984 (section 3.4.3), with log loss
    in place of the size of the model.

    Each fold fits the strengths in turn, each from where the one before ended, which takes a third of the iterations;
    folds run side by side in ``num_threads``. Strengths beyond two that had each a greater loss than the one before are
    not tried: there the fits take longest and lose most.
    """
    from joblib import Parallel, delayed
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedKFold

    cuts = list(StratifiedKFold(num_folds, shuffle=True, random_state=seed).split(features, labels))
    # Strength and whether standardised to which held-out examples are right, and the mean loss.
    results: dict[tuple[float, bool], tuple[NDArray[np.float64], float]] = {}
    for is_standardised in (True, False):
        scaled_folds = list(_folds(features, cuts, is_standardised))
        # Each strength starts where the one before ended, which takes a third of the iterations.
        fits = [_logistic().set_params(warm_start=True) for _ in cuts]

        def score_fold(
            fold: int, strength: float, scaled_folds: Any = scaled_folds, fits: Any = fits
        ) -> tuple[NDArray[np.bool_], float]:
            (train, held_out), (fit_inputs, held_inputs) = cuts[fold], scaled_folds[fold]
            shares = fits[fold].set_params(C=strength).fit(fit_inputs, labels[train]).predict_proba(held_inputs)
            is_right = fits[fold].classes_[shares.argmax(axis=1)] == labels[held_out]
            return is_right, log_loss(labels[held_out], shares, labels=fits[fold].classes_)

        means: list[float] = []
        for strength in PROBE_STRENGTHS:
            parallel = Parallel(n_jobs=num_threads, prefer="threads")
            are_right, losses = zip(
                *parallel(delayed(score_fold)(fold, strength) for fold in range(len(cuts))), strict=True
            )
            means.append(float(np.mean(losses)))
            results[strength, is_standardised] = np.concatenate(are_right).astype(np.float64), means[-1]
            # Beyond two strengths in turn that lost more, fits take longest and lose most.
            if len(means) > 2 and means[-1] > means[-2] > means[-3]:
                break
    best = max((is_right for is_right, _ in results.values()), key=np.mean)
    gaps = {choice: best - is_right for choice, (is_right, _) in results.items()}
    within_error = [choice for choice, gap in gaps.items() if gap.mean() <= gap.std() / len(gap) ** 0.5]
    return min(within_error, key=lambda choice: results[choice][1])


def choose_ridge(
    features: NDArray[np.float32], labels: NDArray[np.float64], num_folds: int, seed: int
) -> tuple[float, bool]:
    """As :func:`choose_strength`, for the ridge: the least squared error, its mean over folds."""
    from sklearn.model_selection import KFold

    cuts = list(KFold(num_folds, shuffle=True, random_state=seed).split(features))
    error_by_choice: dict[tuple[float, bool], float] = {}
    for is_standardised in (True, False):
        errors = []
        for (train, held_out), (fit_inputs, held_inputs) in zip(
            cuts, _folds(features, cuts, is_standardised), strict=True
        ):
            values = held_inputs @ _ridge(fit_inputs, labels[train], PROBE_STRENGTHS).T + labels[train].mean()
            errors.append(np.square(values - labels[held_out][:, None]).mean(axis=0))
        means = np.mean(errors, axis=0)
        error_by_choice |= {
            (strength, is_standardised): float(error) for strength, error in zip(PROBE_STRENGTHS, means, strict=True)
        }
    return min(error_by_choice, key=error_by_choice.__getitem__)


def _ridge(inputs: NDArray[np.float32], labels: NDArray[np.float64], strengths: Sequence[float]) -> NDArray[np.float64]:
    """(strengths, inputs) weights of centred inputs (examples, inputs) at each penalty 1 / strength.

    From one eigendecomposition, of the smaller of the two matrices of products; a direction that the inputs do not
    have gets no weight, however small the penalty.
    """
    examples, centred = inputs.astype(np.float64), labels - labels.mean()
    is_wide = examples.shape[1] > len(examples)
    eigenvalues, vectors = np.linalg.eigh(examples @ examples.T if is_wide else examples.T @ examples)
    is_spanned = eigenvalues > eigenvalues[-1] * 1e-10
    eigenvalues, vectors = eigenvalues[is_spanned], vectors[:, is_spanned]
    shares = [1 / (eigenvalues + 1 / strength) for strength in strengths]
    if is_wide:
        return np.stack([examples.T @ (vectors @ (share * (vectors.T @ centred))) for share in shares])
    products = vectors.T @ (examples.T @ centred)
    return np.stack([vectors @ (share * products) for share in shares])


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=PROBE_ITERATIONS)


def linear_map(fitted: Any, num_outputs: int) -> LinearMap:
    """Weight and bias of a fitted logistic regression, with a row for every class.

    The logits of an input sum to 0 over the classes that training holds; those of others are UNSEEN.
    """
    fitted_map = np.column_stack([fitted.coef_, fitted.intercept_]).astype(np.float64)
    full_map = np.zeros((num_outputs, fitted_map.shape[1]))
    full_map[:, -1] = UNSEEN
    # Of two classes scikit-learn gives the log-odds of the second.
    full_map[fitted.classes_] = (
        np.concatenate([-fitted_map / 2, fitted_map / 2]) if len(fitted_map) == 1 else fitted_map
    )
    return full_map[:, :-1], full_map[:, -1]
