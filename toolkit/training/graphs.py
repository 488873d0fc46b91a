"""What keeps a GPU from waiting: work replayed from CUDA graphs, and results that are read back many at a time."""

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Inputs = dict[str, torch.Tensor]
BLOCK = 64
"""Results that come back from a GPU together."""
STEPS_PER_OCTAVE, LEAST_MULTIPLE = 4, 8
"""Of the lengths that batches are padded to on a GPU."""


def padded_length(length: int) -> int:
    """The least length that batches are padded to and that is no less than ``length``: 8, 16, 24, 32, 40 ... 64, 80 ...

    Four for each doubling from 32 on: few shapes, each of which costs a capture once, and an eighth of padding at the
    mean.
    """
    multiple = max(LEAST_MULTIPLE, (1 << max((length - 1).bit_length() - 1, 0)) // STEPS_PER_OCTAVE)
    return -(-length // multiple) * multiple


def quick_attention(device: torch.device) -> AbstractContextManager[Any]:
    """On a GPU torch's attention without cuDNN's, which plans for each new shape for longer than it ever saves."""
    if device.type != "cuda":
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(kernels)


def to_device(inputs: Mapping[str, torch.Tensor], device: torch.device) -> Inputs:
    """Tensors of the host on a device, without waiting for a GPU."""
    if device.type != "cuda":
        return {name: tensor.to(device) for name, tensor in inputs.items()}
    return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in inputs.items()}


class Captured(NamedTuple):
    """Work as one CUDA graph, the memory that it reads, and that which it writes."""

    graph: Any
    inputs: Inputs
    output: torch.Tensor | None


class Graphs:
    """Work on inputs of a few shapes as CUDA graphs, captured when a shape first comes, in one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._captured = device, dict[Hashable, Captured]()

    def run(
        self,
        key: Hashable,
        inputs: Mapping[str, torch.Tensor],
        work: Callable[[Inputs], torch.Tensor | None],
        warm_up: Callable[[Inputs], None],
    ) -> torch.Tensor | None:
        """What ``work`` makes of ``inputs`` (of the host), in memory of its own.

        ``key``: equal where the same work is done on inputs of the same shapes. ``warm_up`` does what allocates on a
        first call, and changes nothing. RuntimeError where the work cannot be captured.
        """
        if key not in self._captured:
            self._capture(key, to_device(inputs, self._device), work, warm_up)
        graph, static, output = self._captured[key]
        for name, tensor in inputs.items():
            static[name].copy_(tensor.pin_memory(), non_blocking=True)
        graph.replay()
        return None if output is None else output.clone()

    def _capture(
        self,
        key: Hashable,
        static: Inputs,
        work: Callable[[Inputs], torch.Tensor | None],
        warm_up: Callable[[Inputs], None],
    ) -> None:
        """Capture the work on inputs of one shape; the first time after a warm-up in a stream of its own."""
        if not self._captured:
            current, side_stream = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side_stream.wait_stream(current)
            with torch.cuda.stream(side_stream), torch.random.fork_rng(devices=[self._device]):
                warm_up(static)
            current.wait_stream(side_stream)
        pool = next((captured.graph.pool() for captured in self._captured.values()), None)
        graph: Any = torch.cuda.CUDAGraph()
        # Threads that write files may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            output = work(static)
        self._captured[key] = Captured(graph, static, output)


Tell = Callable[[NDArray[np.float32]], None]
"""Is given the values of one result."""


class Blocks:
    """Results that are read back when there are ``size`` of them, while the next ones are computed."""

    def __init__(self, device: torch.device) -> None:
        """On a device that is no GPU each is read at once."""
        self._is_waiting = device.type == "cuda"
        self._size = BLOCK if self._is_waiting else 1
        self._results: list[tuple[torch.Tensor, Tell]] = []
        self._coming: deque[tuple[Any, torch.Tensor, list[tuple[int, Tell]]]] = deque()

    def add(self, result: torch.Tensor, tell: Tell) -> None:
        """Have ``tell`` be given a result (values,) fp32 later on, after those of all earlier ones."""
        self._results.append((result, tell))
        if len(self._results) == self._size:
            self._send()
            while len(self._coming) > self._is_waiting:
                self._receive()

    def drain(self) -> None:
        """Tell all that has been added."""
        self._send()
        while self._coming:
            self._receive()

    def _send(self) -> None:
        """Start copying what was added to the host, all of it as one tensor."""
        if not self._results:
            return
        results, tells = zip(*self._results, strict=True)
        self._results = []
        event = None
        joined = torch.cat(results)
        host = torch.empty(joined.shape, dtype=joined.dtype, pin_memory=self._is_waiting)
        host.copy_(joined, non_blocking=True)
        if self._is_waiting:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._coming.append((event, host, list(zip(map(len, results), tells, strict=True))))

    def _receive(self) -> None:
        """Wait for the oldest copy, and give each result in it to its ``tell``."""
        event, host, tells = self._coming.popleft()
        if event is not None:
            event.synchronize()
        values, start = host.numpy(), 0
        for size, tell in tells:
            tell(values[start : start + size])
            start += size
