"""A model that processes may share in; where its parameters are whole, or one line that says why they are not, out."""

from collections.abc import Mapping
from typing import Any

from torch import nn

SHARED_BATCH = (
    "parameters are shared out otherwise than by FSDP2 over all processes (tensor parallel, say): which processes see "
    "the same batch is not known, nor is exposure"
)


def put_back_shards(model: nn.Module) -> None:
    """Undo what a forward pass of FSDP2 may leave: the root's parameters gathered, in the type that it computes in."""
    for module in model.modules():
        if callable(reshard := getattr(module, "reshard", None)):
            reshard()


def check_whole(parameters: Mapping[str, nn.Parameter]) -> None:
    """ValueError where this process has but a part of a parameter that cannot be gathered, or no values at all."""
    for name, parameter in parameters.items():
        if parameter.is_meta:
            raise ValueError(
                f"{name} is on the meta device and has no values yet: load the weights, then call record()"
            )
        if parameter.ndim != (1 if name.startswith("LayerNorm") else 2):
            raise ValueError(
                f"{name} has the shape {tuple(parameter.shape)} here: a process has but a flat part of it (FSDP1, "
                "DeepSpeed ZeRO-3): use FSDP2 (torch.distributed.fsdp.fully_shard; fsdp_version 2 in Accelerate and "
                "Trainer)"
            )


def check_same(backbone: nn.Module, names: Mapping[str, str], parameters: Mapping[str, nn.Parameter]) -> None:
    """ValueError where others stand in the places of the parameters that are recorded; ``names``: canonical to own.

    Not of DTensors: during a step FSDP2 itself puts others there.
    """
    for name, parameter in parameters.items():
        place, _, leaf = names[name].rpartition(".")
        is_same = getattr(backbone.get_submodule(place), leaf, None) is parameter
        if not is_same and not hasattr(parameter, "full_tensor"):
            raise ValueError(
                f"{name} was replaced after record(), by fully_shard, FSDP, accelerator.prepare or a wrapper of the "
                "table: call record() after that"
            )


def shares_batches(model: nn.Module, num_processes: int) -> bool:
    """Whether some processes may be given one batch: what is sharded is not FSDP2's alone."""
    is_fsdp = any(hasattr(module, "reshard") for module in model.modules())
    sharded: list[Any] = [p for p in model.parameters() if hasattr(p, "full_tensor")]
    return num_processes > 1 and any(
        not is_fsdp
        or p.device_mesh.size() != num_processes
        or sum(not placement.is_replicate() for placement in p.placements) > 1  # HSDP replicates in one of two
        for p in sharded
    )
