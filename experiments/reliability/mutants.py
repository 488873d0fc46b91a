"""Question: do the tests notice when a formula, a bound or a check of the toolkit is wrong, or a promise is broken?

A table has one wrong line per entry: the file, its text before and after, and what should fail then: ``tests``, words
of pytest, or ``command``, words of Python. mutants.json has faults of the code; promises.json those that break a
promise of the README, each with the command that it names there, or a part of it. An entry that is expected to survive
says so in ``expected``, and why.

Each mutant is written into a copy of the tree, so that however this ends nothing has to be put back, and is tried in a
process that is forked from one that has imported the libraries. ``result`` is caught, survived, time limit or no test
ran; or fails anyway, where what caught it also fails on the tree as it is. Where any result is another than expected,
or a text is gone, the exit code is not 0. ``seconds`` are of the processor.

    python experiments/reliability/mutants.py --table promises     # two minutes on two cores
    python experiments/reliability/mutants.py                      # an hour; writes results into mutants.json
    python experiments/reliability/mutants.py "half an angle" "squared"
"""

import ctypes
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import tyro

# As tests/conftest.py has it, before torch is imported: children are forked and cannot set it any more.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COPIED = (
    *("toolkit", "tests", "experiments", "reports", ".ci", "finetune.py", "pyproject.toml", "constraints.txt"),
    *("Makefile", "README.md", "LICENSE", "CITATION.cff"),
)
LIBRARIES = (
    *("torch", "torch.utils.data", "torch._dynamo", "transformers", "transformers.models.auto.modeling_auto"),
    *("transformers.trainer", "transformers.models.bert.modeling_bert", "accelerate", "datasets", "huggingface_hub"),
    *(
        "sklearn.linear_model",
        "sklearn.model_selection",
        "sklearn.feature_extraction.text",
        "pandas",
        "pyarrow.parquet",
    ),
    *(
        "scipy.stats",
        "scipy.optimize",
        "scipy.sparse.linalg",
        "statsmodels.api",
        "altair",
        "vl_convert",
        "jinja2",
        "rich",
    ),
    *("seqeval.metrics", "hypothesis", "hypothesis.extra.numpy"),
)
"""Imported once, before children are forked: that takes longer than to try most mutants."""
OPTIONS = ("-q", "-x", "--tb=no", "-m", "not slow", "--hypothesis-seed=0", "-p", "no:cacheprovider", "-p", "no:xdist")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.M)
PR_SET_PDEATHSIG = 1
"""prctl(2): a process ends with its parent, whatever ended that."""
ASKED: list[int] = []
"""Signals that have asked this to end; what a handler raises while a process is forked would be lost."""
Mutant = dict[str, Any]


def fits(mutant: Mutant) -> bool:
    """Whether a mutant's text is where it was when it was written; without ``old`` the file is a new one."""
    path, old = ROOT / mutant["file"], mutant["old"]
    is_once = path.is_file() and path.read_text(encoding="utf-8").count(str(old)) == 1
    return is_once if old is not None else not path.exists()


def copied(place: Path) -> Path:
    """A copy of the tree."""
    for name in COPIED:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, place / name)
    return place


class Trial:
    """A mutant in a copy of the tree, or the copy as it is, and the process that tries it."""

    def __init__(self, mutant: Mutant, tree: Path) -> None:
        self.mutant, self.tree, self.log = mutant, tree, tree.with_suffix(".log")
        self.path = tree / mutant.get("file", COPIED[-1])
        self.before = self.path.read_bytes() if self.path.exists() else None
        if "file" in mutant:
            text = mutant["new"] if self.before is None else self.before.decode().replace(mutant["old"], mutant["new"])
            self._write(text.encode())
        self.log.write_text("")
        self.started = time.perf_counter()
        self.pid = os.fork() or self._carry_out()
        with suppress(OSError):
            os.setpgid(self.pid, self.pid)  # here and there: whichever is first

    def _write(self, content: bytes | None) -> None:
        """Put the file's content in place, without bytecode of another, which a change within a second might leave."""
        self.path.unlink() if content is None else self.path.write_bytes(content)
        for compiled in (self.path.parent / "__pycache__").glob(f"{self.path.stem}.*.pyc"):
            compiled.unlink()

    def _carry_out(self) -> Any:
        """In the child."""
        code: int = 70
        try:
            os.setpgid(0, 0)
            with suppress(AttributeError):  # of Linux alone
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, path in enumerate([Path(os.devnull), self.log, self.log]):
                os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), number)
            os.chdir(self.tree)
            os.environ["PYTHONPATH"] = str(self.tree)
            if "command" in self.mutant:
                os.execv(sys.executable, [sys.executable, *self.mutant["command"]])
            sys.path.insert(0, str(self.tree))
            import pytest

            code = pytest.main([*OPTIONS, f"--basetemp={self.tree}.made", *self.mutant["tests"]])
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def is_over(self, limit: float) -> bool:
        """Whether its process has ended, or is ended now because it has had its time; then the copy is as it was, and
        ``mutant`` has what became of it."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if not pid and time.perf_counter() - self.started < limit:
            return False
        code = os.waitstatus_to_exitcode(status) if pid else None
        said = self.log.read_text(errors="replace")
        self.failed = FAILED.findall(said) if "tests" in self.mutant else said.strip().splitlines()[-1:] or [""]
        result = "caught" if self.failed else "no test ran"
        result = "time limit" if code is None else result if code else "survived"
        by = (self.failed or said.strip().splitlines()[-1:] or [""])[0] if code else ""
        self.mutant |= {"result": result, "by": by, "seconds": round(usage.ru_utime + usage.ru_stime, 1)}
        self.end()
        return True

    def end(self) -> None:
        """End what still runs, and put the copy back."""
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._write(self.before)
        shutil.rmtree(f"{self.tree}.made", ignore_errors=True)


def try_all(mutants: list[Mutant], trees: list[Path], limit: float) -> list[Trial]:
    """Each mutant's trial, in the order in which they end; one at a time in each copy."""
    waiting, running, over = mutants[::-1], list[Trial](), list[Trial]()
    free = list(trees)
    try:
        while (waiting or running) and not ASKED:
            while waiting and free:
                running.append(Trial(waiting.pop(), free.pop()))
            for trial in [trial for trial in running if trial.is_over(limit)]:
                running.remove(trial)
                over.append(trial)
                free.append(trial.tree)
                print(*(trial.mutant[key] for key in ("result", "seconds", "id", "by")), sep="  ", flush=True)
            time.sleep(0.02)
    finally:
        for trial in running:
            trial.end()
    if ASKED:
        raise SystemExit(128 + ASKED[0])
    return over


def try_as_it_is(mutants: list[Mutant], trees: list[Path], limit: float, with_tests: bool) -> None:
    """On the tree as it is, run what caught mutants: what fails there too has caught none."""
    caught = [mutant for mutant in mutants if mutant["result"] == "caught" and (with_tests or "command" in mutant)]
    tests = sorted({mutant["by"] for mutant in caught if "tests" in mutant})
    shares = [tests[job :: len(trees)] for job in range(len(trees))]
    parts: list[Mutant] = [{"tests": [*share, "--maxfail=1000", "-m", ""]} for share in shares if share]
    commands = {tuple(mutant["command"]) for mutant in caught if "command" in mutant}
    parts += [{"command": list(command)} for command in sorted(commands)]
    for trial in try_all([{"id": "the tree as it is", **part} for part in parts], trees, limit):
        for mutant in caught if trial.mutant["result"] != "survived" else ():
            is_same = mutant.get("command") == trial.mutant.get("command", ()) or mutant["by"] in trial.failed
            mutant["result"] = "fails anyway" if is_same else mutant["result"]


def main(
    only: tyro.conf.Positional[tuple[str, ...]] = (),
    table: str = "mutants",
    jobs: int = 2,
    limit: float = 120,
    save: bool = True,
    tests_as_it_is: bool = True,
) -> int:
    """Try mutants, and write what became of them into their table.

    Args:
        only: ids of mutants; all where none is named
        table: a file, or the name of one beside this script
        jobs: how many are tried at a time
        limit: seconds of one
        save: whether results are written into the table
        tests_as_it_is: whether tests that caught something are also run on the tree as it is; not where the suite does
    """
    path = Path(table) if Path(table).is_file() else HERE / f"{table.removesuffix('.json')}.json"
    mutants: list[Mutant] = json.loads(path.read_text(encoding="utf-8"))
    if unknown := {*only} - {mutant["id"] for mutant in mutants}:
        raise SystemExit(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in mutants if not only or mutant["id"] in only]
    if gone := [mutant["id"] for mutant in chosen if not fits(mutant)]:
        raise SystemExit(f"the text is gone of {len(gone)}: {'; '.join(gone)}")
    for name in LIBRARIES if any("tests" in mutant for mutant in chosen) else ():
        importlib.import_module(name)
    for asking in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asking, lambda number, _: ASKED.append(number))
    started = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            trees = [copied(Path(folder) / str(job)) for job in range(jobs)]
            try_all(chosen, trees, limit)
            try_as_it_is(chosen, trees, 10 * limit, tests_as_it_is)
    finally:
        if save:
            path.write_text(json.dumps(mutants, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    others = [mutant for mutant in chosen if mutant["result"] != mutant.get("expected", "caught")]
    print(dict(Counter(mutant["result"] for mutant in chosen)), f"{time.perf_counter() - started:.0f} s")
    print(
        *(f"not as expected: {mutant['result']}: {mutant['id']}" for mutant in others),
        sep="\n",
        end="\n" * bool(others),
    )
    return int(bool(others))


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main, description=__doc__))
