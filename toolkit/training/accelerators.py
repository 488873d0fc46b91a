"""The Accelerator of a run: precision, threads and trackers, and what every run starts with."""

import importlib.util
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch

from toolkit.config import KEEP_THREADS, RunConfig
from toolkit.memory import keep_freed_memory
from toolkit.snapshots.run_writer import RunWriter, start_run
from toolkit.snapshots.unfinished import State


def start_together(path: Path, *, is_main: bool, **options: Any) -> tuple[RunWriter | None, State | None]:
    """:func:`start_run` on the main process, None on the others; what it raises is raised on all of them.

    Beside it, on all processes, the state from which the run goes on. Every process calls this: one that did not hear
    of the error would wait for the main process.
    """
    writer = None
    outcome: list[Exception | State | None] = [None]  # one entry, which the main process gives to all
    if is_main:
        try:
            writer = start_run(path, **options)
            outcome = [writer.resumed]
        except (ValueError, OSError) as error:
            outcome = [error]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(outcome)
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return writer, outcome[0]


def one_thread() -> AbstractContextManager[Any]:
    """A block in which scikit-learn computes in one thread: several would wait for each other at small matrices."""
    block: AbstractContextManager[Any] = _pools().limit(limits=1)
    return block


@cache
def _pools() -> Any:
    """The thread pools of this process: ``threadpool_limits`` looks for them among all libraries at every call, which
    takes longer than a small fit."""
    import sklearn.linear_model  # noqa: F401 (loads the libraries that fits compute with)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


SHARDED = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism config",
}
"""What `accelerate launch` sets for an engine that shares one model out between processes."""


def resolve_precision(wanted: str) -> str:
    """``auto`` becomes bf16 where the launch or the hardware (by its bf16 matrix products) says so, else no (fp32).

    ValueError when the launch says fp16 or fp8.
    """
    if wanted != "auto":
        return wanted
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launched not in ("no", "bf16"):
        raise ValueError(
            f"accelerate launch asks for {launched}, which is not supported: pass --precision bf16 or --precision no"
        )
    return "bf16" if launched == "bf16" or has_bf16() else "no"


def has_bf16() -> bool:
    """Whether the GPU, or without one the CPU (AVX512-BF16, AMX), has bf16 matrix products."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if torch.backends.mps.is_available():
        return False
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()  # older releases do not say
    return bool(capabilities.get("avx512_bf16"))


def build_accelerator(config: RunConfig) -> Any:
    """The Accelerator of a run.

    ValueError where a batch cannot be shared out, the tracker is not installed, or an engine shards the model.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import GradientAccumulationPlugin, InitProcessGroupKwargs, ProjectConfiguration

    # Before Accelerate looks: without a GPU it would take DDP instead and say nothing.
    for variable, engine in SHARDED.items():
        if os.environ.get(variable, "false").lower() == "true":
            raise ValueError(
                f"finetune does not run under {engine}: each process trains a whole copy of the model; launch without "
                "it, or train in a loop of your own under toolkit.record, which takes FSDP2"
            )
    if config.log_with and importlib.util.find_spec(config.log_with) is None:
        raise ValueError(f"--log-with {config.log_with} needs the package: pip install {config.log_with}")
    # Accelerate keeps one state per process and refuses another precision: each run of a session starts afresh.
    AcceleratorState._reset_state()
    logging_dir = str(Path(config.output_dir) / "trackers")
    accelerator = Accelerator(
        # Without this, processes that torchrun starts on a machine without a GPU do not find each other.
        cpu=not torch.accelerator.is_available(),
        mixed_precision=resolve_precision(config.precision),
        # A data loader that somebody else left at its end, such as a Trainer's, is not to end our batches early.
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=config.gradient_accumulation_steps, sync_with_dataloader=False
        ),
        log_with=config.log_with,
        # How long processes wait for each other.
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=config.ddp_timeout))],
        project_config=ProjectConfiguration(project_dir=logging_dir, logging_dir=logging_dir),
    )
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != accelerator.num_processes:
        raise ValueError(f"{world_size} processes were launched, but Accelerate sees {accelerator.num_processes}")
    num_parts = accelerator.num_processes * config.gradient_accumulation_steps
    if config.batch_size % num_parts:
        raise ValueError(
            f"--batch-size {config.batch_size} counts all processes and must be a multiple of {num_parts} "
            f"({accelerator.num_processes} processes x {config.gradient_accumulation_steps} accumulation steps)"
        )
    use_all_cores(accelerator)
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    return accelerator


@contextmanager
def as_configured(accelerator: Any, config: RunConfig) -> Iterator[None]:
    """Inside, torch is as deterministic as asked for, and a process that the others have lost is a ConnectionError."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it torch refuses cuBLAS
        torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if not is_of_a_lost_process(accelerator, error):
            raise
        raise ConnectionError(
            f"one of the {accelerator.num_processes} processes of this run has ended or does not answer any more: the "
            "same command goes on from the last state"
        ) from error
    finally:
        torch.use_deterministic_algorithms(was_deterministic)


def is_of_a_lost_process(accelerator: Any, error: RuntimeError) -> bool:
    """Whether an error comes of waiting for another process of this run, which has ended or does not answer."""
    is_of_distributed = isinstance(error, torch.distributed.DistError) or "gloo" in str(error)  # which has no class
    return bool(accelerator.num_processes > 1 and is_of_distributed)


def use_all_cores(accelerator: Any) -> None:
    """Give a single CPU process all cores: ``accelerate launch`` without a config file sets OMP_NUM_THREADS=1.

    Left alone in a study, which shares the cores out, when the user chose another number, runs several processes or
    has a GPU; ``taskset`` limits the cores.
    """
    if KEEP_THREADS in os.environ:
        return
    is_launched = "ACCELERATE_MIXED_PRECISION" in os.environ and os.environ.get("OMP_NUM_THREADS") == "1"
    if is_launched and accelerator.num_processes == 1 and accelerator.device.type == "cpu":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        torch.set_num_threads(cores or 1)


def is_fast(accelerator: Any) -> bool:
    """Whether a run is one process on a CPU, which shares its batches out between threads."""
    from accelerate.utils import DistributedType

    return bool(accelerator.distributed_type == DistributedType.NO and accelerator.device.type == "cpu")


def describe_devices(accelerator: Any) -> dict[str, Any]:
    """What the run ran on, for the manifest."""
    is_cuda = accelerator.device.type == "cuda"
    return {
        "devices": torch.cuda.get_device_name() if is_cuda else accelerator.device.type,
        "num_processes": accelerator.num_processes,
        "num_threads": torch.get_num_threads(),
        "precision": accelerator.mixed_precision,
    }


def peak_memory_bytes(accelerator: Any) -> int:
    """Peak memory of this process: allocated on the GPU where there is one, else resident."""
    if accelerator.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
