"""Checks of every step, the optimizer's parameter groups, and the learning rate of every step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from toolkit.config import RunConfig
from toolkit.families import EMBEDDING_PARAMETERS, ModelFamily, family_of, held_name
from toolkit.models.regimes import BACKBONE, HEAD, list_components


@dataclass(frozen=True, slots=True)
class StepLog:
    """What one optimizer step did."""

    step: int
    loss: float
    learning_rate: float
    gradient_norm: float


class NonFiniteLossError(RuntimeError):
    """Training diverged; what is on disk is kept."""


def check_finite(norm: float, step: int) -> None:
    """NonFiniteLossError when the gradient norm of the step (counted from 0) is not finite.

    The norm, unlike a process's loss, is the same on every process, so that all stop together.
    """
    if not np.isfinite(norm):
        raise NonFiniteLossError(
            f"the loss or its gradient is not finite at step {step + 1}: training stopped, what is on disk is kept; "
            "lower the learning rate or pass --precision no"
        )


def check_outputs(outputs: Mapping[str, NDArray[np.float32]], step: int) -> None:
    """NonFiniteLossError when a split's outputs (examples, width) after a number of steps are not finite.

    The last step has no next one whose gradient would show it, and the greatest of NaNs is a class like any other.
    """
    for split, values in outputs.items():
        if not np.isfinite(values).all():
            when = f"at step {step}" if step else "before training"
            remedy = "lower the learning rate" if step else "use another checkpoint"
            raise NonFiniteLossError(
                f"the model's outputs for {split} are not finite {when}: training stopped, what is on disk is kept; "
                f"{remedy} or pass --precision no"
            )


def clipping_factor(norm: float, limit: float) -> float:
    """By what ``torch.nn.utils.clip_grad_norm_`` multiplies gradients of this norm."""
    return min(1.0, limit / (norm + 1e-6))


BETAS = (0.9, 0.999)
EPS = 1e-8
DECAY = "decoupled_decay"
"""Key of SGD's groups: under ``weight_decay`` torch.optim.SGD would add the decay to the gradient."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that share a learning rate and a weight decay."""

    names: tuple[str, ...]
    is_head: bool
    rate: float
    """Peak learning rate."""
    weight_decay: float


def group_parameters(model: nn.Module, config: RunConfig) -> list[ParameterGroup]:
    """The trainable parameters of a classifier: backbone and head, by learning rate, each with and without decay.

    LayerNorm and biases, which are the vectors, are not decayed (the habit since BERT), nor are added rows that are
    trained alone: one that no text uses stays as it began, as the old rows do. Every trainable parameter is in exactly
    one group; frozen ones are in none.
    """
    parameters = dict(model.named_parameters())
    rates = _rates_of_parts(model, config)
    # Sorted by this key: the backbone before the head, high rates before low ones, decayed before others.
    groups: dict[tuple[bool, float, bool], list[str]] = {}
    for name, parameter in parameters.items():
        if parameter.requires_grad:
            is_head = name.startswith(HEAD)
            rate = config.head_rate if is_head else rates.get(name, config.learning_rate)
            is_decayed = parameter.ndim > 1 and held_name(name) not in parameters
            groups.setdefault((is_head, -rate, not is_decayed), []).append(name)
    return [
        ParameterGroup(tuple(names), is_head, -negative_rate, 0.0 if is_undecayed else config.weight_decay)
        for (is_head, negative_rate, is_undecayed), names in sorted(groups.items())
    ]


def _rates_of_parts(model: nn.Module, config: RunConfig) -> dict[str, float]:
    """Backbone parameter to its own peak rate, of those that have one.

    ``layer_decay`` to the power of the layers above it (Sun et al. 2019, arXiv 1905.05583): none above
    the top layer, the pooler and what all layers share, all above the embeddings.
    """
    backbone: Any = getattr(model, "backbone", None)  # a head that is trained alone has none
    if backbone is None or (config.layer_decay == 1 and config.embedding_learning_rate is None):
        return {}
    family = family_of(backbone.config.model_type)
    components = list_components(model, family)
    layers = [leaf for leaf in components if leaf.startswith("layers.")]
    above = {leaf: len(layers) - 1 - int(leaf.removeprefix("layers.")) for leaf in layers}
    above |= dict.fromkeys((*EMBEDDING_PARAMETERS, "projection"), len(layers))
    rates = {
        name: config.learning_rate * config.layer_decay ** above.get(leaf, 0)
        for leaf in components
        for name in components[leaf]
    }
    if (rate_of_embeddings := config.embedding_learning_rate) is not None:
        rates |= {name: rate_of_embeddings for leaf in EMBEDDING_PARAMETERS for name in components.get(leaf, ())}
    return rates


def embedding_rate(model: nn.Module, groups: list[ParameterGroup]) -> float:
    """Peak learning rate of the embedding parameters, which all have one; NaN where the backbone is frozen.

    Where they alone are frozen, the highest of the backbone.
    """
    backbone_groups = [group for group in groups if not group.is_head]
    if len({group.rate for group in backbone_groups}) > 1:
        backbone: Any = model.backbone
        names = {BACKBONE + name for name in family_of(backbone.config.model_type).embedding_parameters.values()}
        backbone_groups = [group for group in backbone_groups if names & {*group.names}] or backbone_groups
    return backbone_groups[0].rate if backbone_groups else math.nan


def build_optimizer(
    model: nn.Module,
    groups: list[ParameterGroup],
    config: RunConfig,
    device: torch.device,
    *,
    is_captured: bool = False,
) -> torch.optim.Optimizer:
    """The config's optimizer over ``groups``, at the peak learning rates; AdamW fused as :func:`is_fused` says.

    ``is_captured``: AdamW is what a CUDA graph can hold, fused, and its decay is the caller's.

    ``sgd`` is torch.optim.SGD without momentum. Each step first multiplies weights by 1 - lr·decay, as AdamW does, and
    then takes lr times the gradient: without momentum the same as adding decay·w to the gradient (Loshchilov & Hutter
    2019, arXiv 1711.05101), but a product of its own rounds alike on every machine, so that it can be replayed exactly.
    """
    parameters = dict(model.named_parameters())
    is_sgd = config.optimizer == "sgd"
    options: list[dict[str, Any]] = [
        {
            "params": [parameters[name] for name in group.names],
            "lr": group.rate,
            DECAY if is_sgd else "weight_decay": 0.0 if is_captured and not is_sgd else group.weight_decay,
        }
        for group in groups
    ]
    if not is_sgd:
        kernel = {"fused": True, "capturable": True} if is_captured else {"fused": is_fused(device)}
        return torch.optim.AdamW(options, betas=BETAS, eps=EPS, **kernel)
    optimizer = torch.optim.SGD(options, lr=config.learning_rate)
    optimizer.register_step_pre_hook(_decay)
    return optimizer


@torch.no_grad()
def _decay(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Decay all weights that have a gradient, by the learning rate of the step that begins."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and group[DECAY]:
                parameter.mul_(1 - group["lr"] * group[DECAY])


def is_fused(device: torch.device) -> bool:
    """Whether the update runs in torch's fused kernel: on a CPU, where it is faster and decays as the plain one does.

    By its source the CUDA kernel rounds the decay otherwise, and a replayed decay would not be exact.
    """
    return device.type == "cpu"


def learning_rate_factors(num_steps: int, warmup_fraction: float) -> NDArray[np.float64]:
    """(num_steps,) share of the peak learning rate at each step: linear warm-up, then linear decay.

    With w = ceil(warmup_fraction * num_steps) warm-up steps, step s counted from 0 has (s + 1) / w while s < w, and
    (num_steps - s) / (num_steps - w) after. Unlike transformers' schedule the first step is not wasted at 0.
    """
    num_warmup = math.ceil(warmup_fraction * num_steps)
    step = np.arange(num_steps, dtype=np.float64)
    rise = (step + 1) / max(num_warmup, 1)
    fall = (num_steps - step) / max(num_steps - num_warmup, 1)
    return np.where(step < num_warmup, rise, np.minimum(fall, 1.0))


def decay_by_name(groups: list[ParameterGroup], family: ModelFamily) -> dict[str, float]:
    """Trainable parameter to its weight decay; embedding parameters under their canonical names."""
    canonical = {BACKBONE + name: key for key, name in family.embedding_parameters.items()}
    return {canonical.get(name, name): group.weight_decay for group in groups for name in group.names}


def state_of(parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Weights, and what the optimizer keeps of each, by name."""
    weights = {f"weight.{name}": parameter.detach() for name, parameter in parameters.items()}
    states = optimizer.state_dict()["state"]
    moments = {f"moment.{i}.{key}": value for i, state in states.items() for key, value in state.items()}
    return weights | {name: value for name, value in moments.items() if isinstance(value, torch.Tensor)}


@torch.no_grad()
def restore_state(
    parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, state: Mapping[str, torch.Tensor]
) -> None:
    """Put back what :func:`state_of` gave."""
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in state.items():
        kind, _, own_name = name.partition(".")
        if kind == "weight":
            parameters[own_name].copy_(tensor)
        else:
            index, _, key = own_name.partition(".")
            moments.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
