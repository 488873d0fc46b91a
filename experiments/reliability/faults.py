"""Question: what is lost when a disk is full, read-only or out of reach, a file vanishes, or memory runs out?

Hypothesis: nothing that is complete, and one line says what happened. A tiny run (that of crash.py) meets each fault at
its first call that writes, renames or removes a file, at the second, and so on: it ends with exit code 2 and one line,
or as if nothing had been; no manifest stands for what is not whole; and the same command ends, once the fault is gone,
with the bits of the run that was left alone. Then a finished run is analysed with 40 to
370 MB of memory to be had beside what is taken (with less Python may wait for ever for a thread that could not start).

    python experiments/reliability/faults.py --every 6
    python experiments/reliability/faults.py --every 40 --only "disk full"

Writes faults.json beside itself with --out: tries per fault and what became of them.
"""

import errno
import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import tyro
from crash import changes_a_file, contents, make_model

from toolkit import RunConfig, finetune
from toolkit.cli import guarded
from toolkit.cli import main as toolkit_main
from toolkit.naming import select
from toolkit.snapshots.store import verify_run
from toolkit.training import going_on


def limit_files(folder: Path) -> None:
    """No file grows any more, whatever writes it: of a full disk, what any language meets."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def remove_one(folder: Path) -> None:
    """One file of the run is gone, the one that was written first."""
    found = sorted((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_mtime_ns)
    for path in found[:1]:
        path.unlink()


def turn_back(folder: Path) -> None:
    """The clock stands an hour earlier."""
    now, now_ns = time.time, time.time_ns
    time.time, time.time_ns = (lambda: now() - 3600), (lambda: now_ns() - 3600 * 10**9)


MOST_SECONDS = 60
"""After which a command counts as hanging."""

FAULTS: dict[str, Callable[[Path], None] | int] = {
    "disk full": errno.ENOSPC,
    "no file grows": limit_files,
    "read-only": errno.EROFS,
    "permission lost": errno.EACCES,
    "a file vanishes": remove_one,
    "the clock goes back": turn_back,
}
"""What happens at a call: an error of it and of every later one, or something that is done once."""


def in_a_process(work: Callable[..., None], *arguments: Any) -> tuple[int | None, str]:
    """Exit code of what is done in a process of its own, with a pipe for what it says, and what it said.

    Ended after `MOST_SECONDS`.
    """
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as pipe:
        process = get_context("fork").Process(target=work, args=(pipe, *arguments))
        process.start()
    with os.fdopen(reader, "r", errors="replace") as stream:
        stopwatch = threading.Timer(MOST_SECONDS, process.kill)
        stopwatch.start()
        said = stream.read()
    process.join()
    stopwatch.cancel()
    return process.exitcode, said


def carry_out(pipe: Any, text: str, fault: str | None, call: int, calls: Any) -> None:
    """A run in this process, which meets a fault at a call; ends with the exit code of the command."""
    for stream in (1, 2):
        os.dup2(pipe.fileno(), stream)
    going_on.LEAST_SECONDS, going_on.CREDIT_SECONDS = 0.0, 1e9
    config, meets, is_inside = RunConfig.from_json(text), FAULTS.get(fault or ""), [False]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if is_inside[0] or not changes_a_file(event, arguments, config.output_dir):
            return
        calls.value += 1
        if meets is None or calls.value < call:
            return
        if isinstance(meets, int):
            raise OSError(meets, os.strerror(meets), str(arguments[0]))
        if calls.value == call:
            is_inside[0] = True
            meets(Path(config.output_dir))
            is_inside[0] = False

    def work() -> int:
        finetune(config)
        return 0

    sys.addaudithook(watch)
    os._exit(guarded(work))


def carried_out(text: str, fault: str | None = None, call: int = 0) -> tuple[int | None, str, int]:
    """Exit code, what was said, and how many calls there were of a run in a process of its own."""
    calls = get_context("fork").Value("i", 0)
    return *in_a_process(carry_out, text, fault, call, calls), calls.value


def outcome_of(config: RunConfig, expected: dict[str, bytes], fault: str, call: int) -> str:
    """What became of a run that met a fault, and of the same command when it was gone."""
    place = Path(config.output_dir)
    code, said, _ = carried_out(config.to_json(), fault, call)
    manifests = [*place.rglob("manifest.json")]
    lines = [line for line in said.splitlines() if "error: " in line]
    if "Traceback" in said or code not in (0, 2) or (code == 2 and len(lines) != 1):
        return f"fault: exit code {code}, {len(lines)} lines: {said[-600:]}"
    if any(verify_run(path.parent) for path in manifests) and fault != "a file vanishes":
        return "fault: a manifest of what is not whole"
    if code == 0 and not manifests:
        return "fault: exit code 0 without a run"
    if not manifests or any(verify_run(path.parent) for path in manifests):
        code_again, said, _ = carried_out(replace(config, overwrite=bool(manifests)).to_json())
        if code_again != 0:
            return f"fault: the same command ends with {code_again}: {said[-600:]}"
    if contents(place) != expected:
        return "fault: other bits"
    return "one line, then the same bits" if code else "unharmed"


def with_memory(run: Path, megabytes: int) -> str:
    """What becomes of `drift` where this much more memory can be had than the process has when it starts."""

    def work(pipe: Any) -> None:
        for stream in (1, 2):
            os.dup2(pipe.fileno(), stream)
        most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + megabytes * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        try:
            toolkit_main(["drift", str(run)])
        except SystemExit as stop:
            os._exit(int(stop.code or 0))

    code, said = in_a_process(work)
    lines = [line for line in said.splitlines() if "error: " in line]
    if code == 2 and len(lines) == 1 and "Traceback" not in said:
        return "one line"
    return "done" if code == 0 else f"fault: exit code {code}: {said[-600:]}"


def main(*, every: int = 1, only: tuple[str, ...] = (*FAULTS, "little memory"), out: Path | None = None) -> int:
    """Meet every fault, and count.

    Args:
        every: meet it at every Nth call
        only: some faults
        out: JSON file for the figures
    """
    chosen = select(dict.fromkeys((*FAULTS, "little memory")), only, "fault")
    figures: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        maker = get_context("fork").Process(target=make_model, args=(model,))  # a parent with threads cannot be forked
        maker.start()
        maker.join()
        config = RunConfig(
            model=str(model),
            save_model=True,
            output_dir=str(Path(folder) / "whole"),
            task="order",
            max_train_examples=200,
            precision="no",
            epochs=2,
        )
        code, said, num_calls = carried_out(config.to_json())
        if code:
            raise RuntimeError(said)
        expected = contents(Path(config.output_dir))
        for fault in [name for name in chosen if name in FAULTS]:
            found: Counter[str] = Counter()
            for call in range(1, num_calls + 1, every):
                place = Path(folder) / f"{fault} {call}"
                outcome = outcome_of(replace(config, output_dir=str(place)), expected, fault, call)
                found[outcome] += 1
                if outcome.startswith("fault"):
                    print(f"  {fault} at call {call}: {outcome}", flush=True)
            figures[fault] = dict(found)
            print(f"{fault:20} {figures[fault]}", flush=True)
        if "little memory" in chosen:
            (run,) = (path.parent for path in Path(config.output_dir).rglob("manifest.json"))
            figures["little memory"] = dict(Counter(with_memory(run, size) for size in range(40, 400, 30)))
            print(f"{'little memory':20} {figures['little memory']}", flush=True)
    if out:
        out.write_text(json.dumps(figures, indent=1) + "\n")
    return int(any(outcome.startswith("fault") for counts in figures.values() for outcome in counts))


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main, description=__doc__))
