"""Planned configs in, processes out that keep the machine as busy as a study's other runs will while one is timed.

Runs that share cores, caches and memory slow one another down, by a factor that depends on the machine. So a run is
timed as it will run: beside as many others as there are workers, less itself.

Run as a module, ``python -m toolkit.studies.neighbours CONFIG...``: works until its standard input is closed, which is
also what happens when its parent dies.
"""

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import toolkit
from toolkit.config import RunConfig
from toolkit.studies.jobs import SHARED_THREADS

READY = b"ready\n"
"""What a neighbour prints once it is at work."""
STOP_SECONDS = 10.0


@contextmanager
def neighbours(configs: Sequence[RunConfig], number: int, threads: int) -> Iterator[None]:
    """While this is open, ``number`` processes of ``threads`` threads each do the work of runs of ``configs``.

    Returns when all are at work. ValueError, with its last line, for one that ends by itself.
    """
    if not number:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="neighbours-") as folder:
        places = [Path(folder, f"{index}.json") for index in range(len(configs))]
        for place, config in zip(places, configs, strict=True):
            place.write_text(config.to_json(), encoding="utf-8")
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for index in range(number):
                with Path(folder, f"{index}.log").open("wb") as log:
                    processes.append(_start([*places[index:], *places[:index]], threads, log.fileno()))
            for index, process in enumerate(processes):
                assert process.stdout is not None
                if process.stdout.readline() != READY:
                    lines = Path(folder, f"{index}.log").read_text(errors="replace").strip().splitlines()
                    raise ValueError(f"a trial run beside the timed one failed: {(lines or ['no output'])[-1]}")
            yield
        finally:
            for process in processes:
                end(process)


def _start(places: Sequence[Path], threads: int, log: int) -> subprocess.Popen[bytes]:
    """``places``: config files, of which the first is worked on first."""
    paths = [str(Path(toolkit.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    own = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *map(str, places)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=os.environ | own | SHARED_THREADS,
        start_new_session=True,  # Ctrl-C reaches the parent alone, which ends its neighbours
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a neighbour to end, and kill it if it does not."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def work(configs: Sequence[RunConfig]) -> Iterator[Mapping[str, float]]:
    """Time each kind of run in turn, for ever: the same steps of training and scoring that a calibration times."""
    from dataclasses import asdict

    from toolkit.studies.rates import measure_rates
    from toolkit.studies.samples import Models, Sample, take_sample

    models, samples = Models(), dict[RunConfig, Sample]()
    for config in cycle(configs):
        if config not in samples:
            samples[config] = take_sample(config, models)
        own = samples[config]
        yield asdict(measure_rates(config, models.of(config, own.data.task), own))


def main(paths: Sequence[str]) -> None:
    """Work until standard input closes."""
    import torch

    ready = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print, the parent reads one word
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1").split(",")[0]))
    configs = [RunConfig.from_json(Path(path).read_text(encoding="utf-8"), path) for path in paths]
    is_ready = False
    for _ in work(configs):
        if not is_ready:
            os.write(ready, READY)
            is_ready = True
        if select.select([sys.stdin], [], [], 0)[0]:
            return


if __name__ == "__main__":
    main(sys.argv[1:])
