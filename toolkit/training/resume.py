"""When the state of a run is written, and how a run goes on from one to the same bits.

Whether a state is this run's, :func:`toolkit.snapshots.unfinished.find_state` has checked before."""

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from toolkit.snapshots.run_writer import RunWriter, read_versions
from toolkit.snapshots.unfinished import State
from toolkit.training.accelerators import is_of_a_lost_process
from toolkit.training.host_copies import HostCopies
from toolkit.training.step_recorder import Recorder

TIME_SHARE, CREDIT_SECONDS = 0.015, 1.0
"""Of a run's time what states may take, beside a second at first: short runs are cut short, too."""
WEIGHT_BESIDE_GPU = 0.15
"""What a second of writing beside training counts there, so that it goes on for a tenth of a run's time at most. On a
CPU it counts whole: training needs the cores that write."""
LEAST_SECONDS = 5.0
"""Of training before which the end of an epoch is not worth a state."""


class Interrupted(KeyboardInterrupt):
    """Somebody asked the run to end, and its state is written."""


class Trainer(Protocol):
    """What learns, one optimizer step after another."""

    def state(self) -> Mapping[str, torch.Tensor]:
        """Weights and moments of everything that learns, by names of its own."""

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take up what :meth:`state` gave, in a trainer of the same model and config."""


def identity_of(
    accelerator: Any, name: str, source_sha256: str | None, data_sha256: Mapping[str, str]
) -> dict[str, Any]:
    """What must be equal for a run to be resumed; the digest of its config is in its ``name``."""
    versions = read_versions()
    return {
        "config": name,
        "num_processes": accelerator.num_processes,
        "device": accelerator.device.type,
        "num_threads": torch.get_num_threads(),
        "versions": {package: versions.get(package) for package in ("torch", "transformers", "numpy")},
        "weights": source_sha256,
        "data": dict(data_sha256),
    }


class Resumer:
    """Writes states of a run as it trains, and takes up the one that it was started from; in every process."""

    def __init__(
        self,
        accelerator: Any,
        recorder: Recorder,
        writer: RunWriter | None,
        state: State | None,
        facts: Mapping[str, Any],
        every_steps: int | None = None,
        seconds: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """``facts``: of the whole run, kept in each state; ``seconds``: what its stages have taken so far."""
        self._accelerator, self._recorder, self._writer = accelerator, recorder, writer
        self._state, self._facts, self._every_steps, self._seconds = state, facts, every_steps, seconds
        self._started, self._waited, self._num_states = time.perf_counter(), 0.0, 0
        self._copies = HostCopies()
        self._is_asked = False

    @property
    def step(self) -> int:
        """Optimizer steps that are done when the run starts."""
        return 0 if self._state is None else self._state.step

    def restore(self, trainer: Trainer) -> dict[str, NDArray[Any]]:
        """Put trainer, recorder and random states where they were; what the caller had added, nothing for a new run."""
        if self._state is None:
            return {}
        tensors_by_owner: defaultdict[str, dict[str, NDArray[Any]]] = defaultdict(dict)
        for name, tensor in self._state.tensors.items():
            owner, _, tensor_name = name.partition(".")
            tensors_by_owner[owner][tensor_name] = tensor
        trainer.restore({name: torch.from_numpy(tensor) for name, tensor in tensors_by_owner["trainer"].items()})
        self._recorder.restore(tensors_by_owner["recorder"])
        process_index = self._accelerator.process_index
        torch.set_rng_state(torch.from_numpy(tensors_by_owner["random"]["cpu"][process_index]))
        if "cuda" in tensors_by_owner["random"]:
            torch.cuda.set_rng_state(
                torch.from_numpy(tensors_by_owner["random"]["cuda"][process_index]), self._accelerator.device
            )
        return tensors_by_owner["own"]

    def after_step(self, step: int, trainer: Trainer, **extra: Any) -> None:
        """Write the state if it is due within an epoch; ``extra``: what else the caller needs, as arrays.

        Interrupted where somebody has asked the run to end.
        """
        is_due = self._every_steps is not None and step % self._every_steps == 0
        self._write_if_wished(step, trainer, extra, is_due=is_due)

    def after_epoch(self, step: int, trainer: Trainer, **extra: Any) -> None:
        """:meth:`after_step` at the end of an epoch: it is due unless it would take too much of the run's time."""
        elapsed = time.perf_counter() - self._started
        self._write_if_wished(step, trainer, extra, is_due=elapsed >= LEAST_SECONDS and self._is_cheap(elapsed))

    def _is_cheap(self, elapsed: float) -> bool:
        """Whether one more state, as costly as the others, is within what the first ``elapsed`` seconds allow."""
        if self._writer is None:
            return False  # the main process decides
        weight = 1.0 if self._accelerator.device.type == "cpu" else WEIGHT_BESIDE_GPU
        spent = self._waited + weight * self._writer.states.seconds
        is_within = spent + spent / max(self._num_states, 1) <= CREDIT_SECONDS + TIME_SHARE * elapsed
        return is_within and not self._writer.states.is_busy

    def _write_if_wished(self, step: int, trainer: Trainer, extra: Mapping[str, Any], *, is_due: bool) -> None:
        """Write a state where one is due or asked for; end the run, as Interrupted, where somebody asked for that."""
        wish = 2 * self._is_asked + is_due  # 0: none; 1: a state; 2 or 3: a state, and the end of the run
        if self._accelerator.num_processes > 1:  # all processes write, or none
            wishes = self._accelerator.gather(torch.tensor([wish], device=self._accelerator.device))
            wish = int(wishes.max())
        if wish:
            self._write(step, trainer, extra)
        if self._writer is not None:
            self._writer.states.check()  # a full disk ends the run now
        if wish > 1:
            if self._writer is not None:
                self._writer.wait_for_state()
            raise Interrupted(f"step {step}")

    def _write(self, step: int, trainer: Trainer, extra: Mapping[str, Any]) -> None:
        """Write the state of a step: trainer, recorder, random numbers of all processes, and what the caller adds."""
        random = {"cpu": self._of_all(torch.get_rng_state())}
        if self._accelerator.device.type == "cuda":
            random["cuda"] = self._of_all(torch.cuda.get_rng_state(self._accelerator.device))
        if self._writer is None:
            return
        started = time.perf_counter()
        self._writer.wait_for_state()  # which is written from the copies that are made anew
        tensors: dict[str, NDArray[Any]] = {f"random.{name}": values for name, values in random.items()}
        tensors |= {f"trainer.{name}": values for name, values in self._copies.take(trainer.state()).items()}
        tensors |= {f"recorder.{name}": values for name, values in self._recorder.state().items()}
        tensors |= {f"own.{name}": np.array(values) for name, values in extra.items()}
        self._writer.write_state(step, tensors, {**self._facts, "seconds": dict(self._seconds())})
        self._waited += time.perf_counter() - started
        self._num_states += 1

    def _of_all(self, state: torch.Tensor) -> NDArray[np.uint8]:
        """(processes, bytes) the random states of all processes."""
        if self._accelerator.num_processes == 1:
            return state.numpy()[None]
        gathered: torch.Tensor = self._accelerator.gather(state.to(self._accelerator.device)[None])
        return gathered.cpu().numpy()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, Ctrl-C and TERM end the run after the step that it is at; a second Ctrl-C ends it at once.

        A process that the others have lost ends by itself from here on: the launcher's TERM, which follows the loss
        of any process, would end it before it has said so.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: Any) -> None:
            if self._is_asked and number == signal.SIGINT:
                if self._writer is not None:
                    self._writer.abandon_state()
                raise KeyboardInterrupt
            self._is_asked = True

        old_handlers = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        except RuntimeError as error:
            if is_of_a_lost_process(self._accelerator, error):
                old_handlers[signal.SIGTERM] = signal.SIG_IGN
            raise
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
