"""A frozen backbone in, cached features, the trained head's moments and the convex ceiling out.

The backbone runs once, in eval mode: under ``model.train()`` a frozen backbone would still apply dropout.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from toolkit.config import RunConfig
from toolkit.data.batches import EncodedTask, epoch_batches
from toolkit.models.classifier import Classifier
from toolkit.models.regimes import HEAD
from toolkit.training.evaluation import extract_features
from toolkit.training.loop import Moment, OnStep, Plan, run_epochs
from toolkit.training.losses import StepLog, check_finite, check_outputs, clipping_factor, example_losses
from toolkit.training.optimizer import build_optimizer, group_parameters, learning_rate_factors
from toolkit.training.recorder import Recorder

Features = Mapping[str, NDArray[np.float32]]
"""Split to (examples, hidden) pooled vectors."""

CEILING_STRENGTHS = tuple(10.0**k for k in range(-4, 3))
CEILING_FOLDS = 5
CEILING_ITERATIONS = 300


def train_head_first(accelerator: Any, model: Classifier, data: EncodedTask, config: RunConfig) -> list[float]:
    """Train the head in place for ``config.head_epochs`` on cached features; the mean loss (nats) of each epoch.

    The first stage of LP-FT (Kumar et al. 2022, arXiv 2202.10054), with a warm-up and decay of its own. The backbone
    does not move and nothing is recorded: exposure and the optimizer log are those of the second stage.
    """
    tensors = {
        name: torch.from_numpy(array).to(accelerator.device)
        for name, array in extract_features(accelerator, model, data, ("train",)).items()
    }
    own = replace(config, epochs=config.head_epochs, max_steps=None)
    epochs = [epoch_batches(data.splits["train"].lengths, own, epoch) for epoch in range(own.epochs)]
    stepper = HeadStepper(model.head, tensors["train"], data, own, sum(map(len, epochs)), None)
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
) -> Iterator[Moment]:
    """Train the head on cached features in place; yields like :func:`toolkit.training.loop.train`.

    Batches, schedule and clipping are those of full fine-tuning. Every process trains the same head on the whole
    batch: it is too small to share out, and nothing needs to be sent. NonFiniteLossError, at once, for features that
    are not finite.
    """
    check_outputs(features, 0)
    tensors = {name: torch.from_numpy(array).to(accelerator.device) for name, array in features.items()}
    plan = Plan.of(config, data.splits["train"].lengths)
    stepper = HeadStepper(model.head, tensors["train"], data, config, plan.num_steps, recorder)
    return run_epochs(plan, data, config, recorder, stepper.take, lambda: _outputs(model.head, tensors), on_step)


class HeadStepper:
    """One optimizer step at a time of a head on cached features."""

    def __init__(
        self,
        head: nn.Module,
        features: torch.Tensor,
        data: EncodedTask,
        config: RunConfig,
        num_steps: int,
        recorder: Recorder | None,
    ) -> None:
        labels = data.splits["train"].labels
        assert labels is not None
        self.head, self.features, self.config, self.recorder = head, features, config, recorder
        self.kind, self.labels = data.task.kind, torch.from_numpy(labels).to(features.device)
        self.factors = learning_rate_factors(num_steps, config.warmup_fraction)
        model = nn.ModuleDict({HEAD.rstrip("."): head})
        self.optimizer = build_optimizer(model, group_parameters(model, config.weight_decay), config, features.device)

    def take(self, indices: NDArray[np.int64], step: int) -> StepLog:
        """One update on a batch; ``step`` counts from 0."""
        limit, rate = self.config.max_gradient_norm, self.config.head_learning_rate * float(self.factors[step])
        rows = torch.from_numpy(indices).to(self.features.device)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = example_losses(self.kind, self.head(self.features[rows]), self.labels[rows]).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.nn.utils.clip_grad_norm_(self.head.parameters(), limit))
        check_finite(norm, step)
        if self.recorder is not None:
            self.recorder.record_step(indices)
            self.recorder.record_rates(float("nan"), rate, clipping_factor(norm, limit))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return StepLog(step + 1, float(loss.detach()), rate, norm)


@torch.inference_mode()
def _outputs(head: nn.Module, tensors: Mapping[str, torch.Tensor]) -> dict[str, NDArray[np.float32]]:
    return {name: head(tensor).cpu().numpy() for name, tensor in tensors.items() if name != "train"}


def convex_ceiling(features: Features, data: EncodedTask, seed: int) -> dict[str, NDArray[np.float32]]:
    """Outputs (examples, outputs) of the linear head that cross-validation finds, on every split but ``train``.

    Multinomial logistic regression, or ridge in regression, on standardised features, its strength chosen by
    cross-validation within train: a yardstick of what a linear head can reach. Its strength is chosen by log
    loss (or squared error), so that a head trained otherwise can score higher: it is no strict bound.
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import GridSearchCV, KFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    labels, others = data.splits["train"].labels, {name: own for name, own in features.items() if name != "train"}
    assert labels is not None
    is_regression = data.task.kind == "regression"
    folds = min(CEILING_FOLDS, len(labels) if is_regression else int(np.bincount(labels)[np.unique(labels)].min()))
    if folds < 2:
        return {}  # too few examples of a class to choose a strength by
    with threadpool_limits(1):  # several threads would wait for each other at matrices this small
        if is_regression:
            grid = {"ridge__alpha": [1 / strength for strength in CEILING_STRENGTHS]}
            cv = KFold(folds, shuffle=True, random_state=seed)
            search = GridSearchCV(
                make_pipeline(StandardScaler(), Ridge()), grid, cv=cv, scoring="neg_mean_squared_error"
            )
            fitted = search.fit(features["train"], labels)
            return {name: fitted.predict(own)[:, None].astype(np.float32) for name, own in others.items()}
        strength = choose_strength(features["train"], labels, folds, seed)
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=CEILING_ITERATIONS))
        fitted = pipeline.fit(features["train"], labels)
    return {name: _all_classes(fitted, own, data.task.num_outputs) for name, own in others.items()}


def choose_strength(features: NDArray[np.float32], labels: NDArray[np.int64], folds: int, seed: int) -> float:
    """The C of CEILING_STRENGTHS with the least log loss (nats), its mean over ``folds`` stratified folds.

    Each fold fits the strengths in turn, each from where the one before ended, which takes a third of the iterations;
    folds run side by side.
    """
    from joblib import Parallel, delayed
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedKFold
    from sklearn.preprocessing import StandardScaler

    def losses(train: NDArray[np.int64], held_out: NDArray[np.int64]) -> list[float]:
        scaler, found = StandardScaler().fit(features[train]), []
        fitted = LogisticRegression(max_iter=CEILING_ITERATIONS, warm_start=True)
        own, held = (scaler.transform(features[part]) for part in (train, held_out))
        for strength in CEILING_STRENGTHS:
            shares = fitted.set_params(C=strength).fit(own, labels[train]).predict_proba(held)
            found.append(float(log_loss(labels[held_out], shares, labels=fitted.classes_)))
        return found

    cv = StratifiedKFold(folds, shuffle=True, random_state=seed).split(features, labels)
    table = Parallel(n_jobs=torch.get_num_threads(), prefer="threads")(delayed(losses)(*parts) for parts in cv)
    return CEILING_STRENGTHS[int(np.mean(table, axis=0).argmin())]


def _all_classes(fitted: Any, features: NDArray[np.float32], num_outputs: int) -> NDArray[np.float32]:
    """Logits with a column for every class, also one that training does not hold."""
    outputs = np.full((len(features), num_outputs), -1e9, np.float32)
    logits = fitted.decision_function(features)
    # Of two classes scikit-learn gives the log-odds of the second.
    outputs[:, fitted.classes_] = np.stack([-logits / 2, logits / 2], axis=1) if logits.ndim == 1 else logits
    return outputs
