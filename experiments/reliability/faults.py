"""Question: what is lost when a disk is full, read-only or out of reach, a file vanishes, or memory runs out?

Hypothesis: nothing that is complete, and one line says what happened. A tiny run (that of crash.py) meets each fault at
its first call that writes, renames or removes a file, at the second, and so on: it ends with exit code 2 and one line,
or as if nothing had been; no manifest stands for what is not whole; and the same command ends, once the fault is gone,
with the bits of the run that was left alone. So it is of what stands when the command starts: little memory, a user who
is not root, no /dev/shm, and of ten pairs of commands that are started together. Then a finished run is analysed with
40 to 370 MB of memory to be had beside what is taken (with less Python may wait for ever for a thread that could not
start), and the power is cut (power_cut.py).

    python experiments/reliability/faults.py --every 6
    python experiments/reliability/faults.py --every 2 --only "power cut"

Writes faults.json beside itself with --out: tries per fault and what became of them.
"""

import ctypes
import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import tyro
from crash import changes_a_file, contents, make_model
from power_cut import POWER_CUT, power_cuts

import toolkit
from toolkit import RunConfig, finetune
from toolkit.cli import guarded
from toolkit.cli import main as toolkit_main
from toolkit.naming import select
from toolkit.snapshots.ownership import JOURNAL, MANIFEST
from toolkit.snapshots.store import verify_run
from toolkit.training import resume


def limit_memory(folder: Path, megabytes: int) -> None:
    """So much more memory can be had than the process has."""
    most = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def import_with_memory(folder: Path) -> None:
    """The command starts in an interpreter of its own, which cannot load torch."""
    resource.setrlimit(resource.RLIMIT_AS, (400 * 2**20, 400 * 2**20))
    os.execv(sys.executable, [sys.executable, str(Path(toolkit.__file__).parents[1] / "finetune.py")])


def become_another(folder: Path, mode: int) -> None:
    """A user who is not root works in a folder with such rights."""
    folder.mkdir(mode=mode)
    folder.chmod(mode)
    os.setuid(65534)


def lose_shared_memory(folder: Path) -> None:
    """/dev/shm is empty, and nothing can be written there."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "no mount namespace of its own")
    for words in ("--make-rprivate /", "-t tmpfs -o ro,size=4k none /dev/shm"):
        subprocess.run(["mount", *words.split()], check=True)


def limit_files(folder: Path) -> None:
    """No file grows any more, whatever writes it: of a full disk, what any language meets."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


CHOICE = random.Random()
"""Of a file, and of what becomes of it."""


def remove_one(folder: Path) -> None:
    """One file of the run is gone, any but the lists without which nothing says whose the others are."""
    found = [path for path in folder.glob("*/**/*") if path.is_file() and path.name not in (MANIFEST, JOURNAL)]
    for path in CHOICE.sample(sorted(found), min(len(found), 1)):
        path.unlink()


def spoil_and_die(folder: Path) -> None:
    """One such file is gone, empty, cut short or changed, and the process is killed."""
    before = {path: path.read_bytes() for path in folder.glob("*/**/*") if path.is_file()}
    remove_one(folder)
    for path, content in before.items():
        if not path.exists() and (kind := CHOICE.randrange(4)):
            place = CHOICE.randrange(len(content) + 1)
            path.write_bytes([b"", content[:place], content[:place] + b"7" + content[place + 1 :]][kind - 1])
    os.kill(os.getpid(), signal.SIGKILL)


def turn_back(folder: Path) -> None:
    """The clock stands an hour earlier."""
    now, now_ns = time.time, time.time_ns
    time.time, time.time_ns = (lambda: now() - 3600), (lambda: now_ns() - 3600 * 10**9)


CLONE_NEWNS = 0x20000
MOST_SECONDS = 60
"""After which a command counts as hanging."""

KILLED = "killed, a file spoilt"
FAULTS: dict[str, Callable[[Path], None] | int] = {
    "disk full": errno.ENOSPC,
    "no file grows": limit_files,
    "read-only": errno.EROFS,
    "permission lost": errno.EACCES,
    "a file vanishes": remove_one,
    KILLED: spoil_and_die,
    "the clock goes back": turn_back,
}
"""What happens at a call: an error of it and of every later one, or something that is done once."""
MEMORY: dict[str, Callable[[Path], None]] = {
    "no memory to import": import_with_memory,
    **{f"{size} MB of memory": partial(limit_memory, megabytes=size) for size in (1, 24, 96, 200, 400)},
}
AT_START = MEMORY | {
    "another user": partial(become_another, mode=0o777),
    "another user, who may not write": partial(become_another, mode=0o755),
    "no /dev/shm": lose_shared_memory,
}
"""What is so when the command starts."""
DEATHS = dict.fromkeys(MEMORY, (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGKILL)) | {KILLED: (-signal.SIGKILL,)}
"""Fault to the signals by which it may end a process: some allocators have no other way, and where Python waits for a
thread that could not start, it is we who end it."""


TOGETHER = "two at once"
ALL = (*FAULTS, *AT_START, TOGETHER, "little memory", POWER_CUT)


def in_processes(number: int, work: Callable[..., None], *arguments: Any) -> list[tuple[int | None, str]]:
    """Exit code of what is done in some processes of their own at a time, each with a pipe for what it says, and what
    it said.

    Ended after `MOST_SECONDS`.
    """
    started, ended = [], []
    for _ in range(number):
        reader, writer = os.pipe()
        with os.fdopen(writer, "wb") as pipe:
            process = get_context("fork").Process(target=work, args=(pipe, *arguments))
            process.start()
        started.append((process, reader))
    for process, reader in started:
        with os.fdopen(reader, "r", errors="replace") as stream:
            stopwatch = threading.Timer(MOST_SECONDS, process.kill)
            stopwatch.start()
            said = stream.read()
        process.join()
        stopwatch.cancel()
        ended.append((process.exitcode, said))
    return ended


def carry_out(pipe: Any, text: str, fault: str | None, call: int, calls: Any) -> None:
    """A run in this process, which meets a fault at a call; ends with the exit code of the command."""
    for stream in (1, 2):
        os.dup2(pipe.fileno(), stream)
    resume.LEAST_SECONDS, resume.CREDIT_SECONDS = 0.0, 1e9
    config, meets, is_inside = RunConfig.from_json(text), FAULTS.get(fault or ""), [False]

    CHOICE.seed(call)
    if fault in AT_START:
        AT_START[fault](Path(config.output_dir))

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
    return *in_processes(1, carry_out, text, fault, call, calls)[0], calls.value


def outcome_of(config: RunConfig, expected: dict[str, bytes], fault: str, call: int) -> str:
    """What became of a run that met a fault, and of the same command when it was gone."""
    place = Path(config.output_dir)
    code, said, _ = carried_out(config.to_json(), fault, call)
    manifests = [*place.rglob("manifest.json")]
    lines = [line for line in said.splitlines() if "error: " in line]
    if "Traceback" in said or code not in (0, 2, *DEATHS.get(fault, ())) or (code == 2 and len(lines) != 1):
        return f"fault: exit code {code}, {len(lines)} lines: {said[-600:]}"
    if any(verify_run(path.parent) for path in manifests) and fault not in ("a file vanishes", KILLED):
        return "fault: a manifest of what is not whole"
    if code == 0 and not manifests:
        return "fault: exit code 0 without a run"
    if not manifests or any(verify_run(path.parent) for path in manifests):
        code_again, said, _ = carried_out(replace(config, overwrite=bool(manifests)).to_json())
        if code_again != 0:
            return f"fault: the same command ends with {code_again}: {said[-600:]}"
    if contents(place) != expected:
        return "fault: other bits"
    ends = {0: "unharmed", 2: "one line, then the same bits"}
    return ends.get(code or 0, f"ended by signal {-(code or 0)}, then the same bits")


def at_once(config: RunConfig, expected: dict[str, bytes]) -> str:
    """What becomes of two commands that are started together with one config."""
    place = Path(config.output_dir)
    ends = in_processes(2, carry_out, config.to_json(), None, 0, get_context("fork").Value("i", 0))
    lines = [line for _, said in ends for line in said.splitlines() if "error: " in line]
    (run,) = place.iterdir()
    if sorted(code or 0 for code, _ in ends) != [0, 2 * len(lines)] or verify_run(run) or contents(place) != expected:
        return f"fault: {ends}"
    return "one ends, one says in a line why not" if lines else "one after the other"


def with_memory(run: Path, megabytes: int) -> str:
    """What becomes of `drift` where this much more memory can be had than the process has when it starts."""

    def work(pipe: Any) -> None:
        for stream in (1, 2):
            os.dup2(pipe.fileno(), stream)
        limit_memory(run, megabytes)
        try:
            toolkit_main(["drift", str(run)])
        except SystemExit as stop:
            os._exit(int(stop.code or 0))

    ((code, said),) = in_processes(1, work)
    lines = [line for line in said.splitlines() if "error: " in line]
    if code == 2 and len(lines) == 1 and "Traceback" not in said:
        return "one line"
    return "done" if code == 0 else f"fault: exit code {code}: {said[-600:]}"


def main(*, every: int = 1, only: tuple[str, ...] = ALL, out: Path | None = None) -> int:
    """Meet every fault, and count.

    Args:
        every: meet it at every Nth call
        only: some faults
        out: JSON file for the figures, which keeps those of others
    """
    chosen = select(dict.fromkeys(ALL), only, "fault")
    figures: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        model = Path(folder) / "model"
        maker = get_context("fork").Process(target=make_model, args=(model,))  # a parent with threads cannot be forked
        maker.start()
        maker.join()
        for path in model.iterdir():
            path.chmod(0o644)
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
        for fault in [name for name in chosen if name in FAULTS or name in AT_START]:
            found: Counter[str] = Counter()
            for call in range(1, num_calls + 1, every) if fault in FAULTS else (0,):
                place = Path(folder) / f"{fault} {call}"
                outcome = outcome_of(replace(config, output_dir=str(place)), expected, fault, call)
                found[outcome] += 1
                if outcome.startswith("fault"):
                    print(f"  {fault} at call {call}: {outcome}", flush=True)
            figures[fault] = dict(found)
            print(f"{fault:20} {figures[fault]}", flush=True)
        if TOGETHER in chosen:
            places = [replace(config, output_dir=str(Path(folder) / f"two {n // 2}")) for n in range(10)]
            figures[TOGETHER] = dict(
                Counter(at_once(replace(two, overwrite=n % 2 > 0), expected) for n, two in enumerate(places))
            )
            print(f"{TOGETHER:20} {figures[TOGETHER]}", flush=True)
        if "little memory" in chosen:
            (run,) = (path.parent for path in Path(config.output_dir).rglob("manifest.json"))
            figures["little memory"] = dict(Counter(with_memory(run, size) for size in range(40, 400, 30)))
            print(f"{'little memory':20} {figures['little memory']}", flush=True)
        if POWER_CUT in chosen:  # the last: it trains in this process, and who has threads must not be forked
            resume.LEAST_SECONDS, resume.CREDIT_SECONDS = 0.0, 1e9
            figures |= power_cuts(config, Path(folder) / "power", every)
    if out:
        known = json.loads(out.read_text()) if out.exists() else {}
        out.write_text(json.dumps(known | figures, indent=1) + "\n")
    return int(any(outcome.startswith("fault") for counts in figures.values() for outcome in counts))


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main, description=__doc__))
