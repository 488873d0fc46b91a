"""Question: do the tests notice when a formula, a bound or a check of the toolkit is wrong?

mutants.json has one wrong line per entry: the file, its text before and after, and the tests that should fail. A fault
that an earlier table of planted faults named says so. Each is written into the tree, its tests are run until the first
one fails, and the file is put back. ``result`` is caught, survived or, where the tests took longer, time limit.

    python experiments/reliability/mutants.py            # hours on two cores; writes mutants.json beside itself
    python experiments/reliability/mutants.py "half an angle" "squared"
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = HERE / "mutants.json"
LIMIT = 120
"""Seconds of one mutant's tests."""


def judge(tests: list[str]) -> dict[str, str]:
    """What the tests say of the tree as it is."""
    options = ["-q", "-x", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider", "--tb=no"]
    command = [sys.executable, "-B", "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"result": "time limit", "by": ""}
    if done.returncode == 0:
        return {"result": "survived", "by": ""}
    first = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
    if first is None:
        raise SystemExit(f"pytest did not run: {done.stdout[-500:]}{done.stderr[-500:]}")
    return {"result": "caught", "by": first[1]}


def forget(path: Path) -> None:
    """Bytecode of another text: a change within a second that leaves the size alone would not be seen."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def try_out(mutant: dict[str, Any]) -> dict[str, str]:
    """Write one wrong line, run its tests, and put the file back; without ``old`` the file is a new one."""
    path, old = ROOT / mutant["file"], mutant["old"]
    before = None if old is None else path.read_text(encoding="utf-8")
    if (before is None) == path.exists() or (before is not None and before.count(old) != 1):
        raise SystemExit(f"{mutant['id']}: {mutant['file']} is not as it was when this mutant was written")
    try:
        path.write_text(mutant["new"] if before is None else before.replace(old, mutant["new"]), encoding="utf-8")
        forget(path)
        return judge(mutant["tests"])
    finally:
        path.unlink() if before is None else path.write_text(before, encoding="utf-8")
        forget(path)


def main(names: list[str]) -> None:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    if unknown := set(names) - {mutant["id"] for mutant in table}:
        raise SystemExit(f"no such mutant: {', '.join(sorted(unknown))}")
    for mutant in table:
        if not names or mutant["id"] in names:
            mutant |= try_out(mutant)
            print(f"{mutant['result']}: {mutant['id']} {mutant['by']}", flush=True)
            TABLE.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
