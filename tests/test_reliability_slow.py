"""The experiments on reliability, small: what they try holds, and each finds a weakness that is planted."""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "reliability"

pytestmark = pytest.mark.slow


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}


def run(script: str, *flags: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), *flags], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        spec = importlib.util.spec_from_file_location("fuzz", FOLDER / "fuzz.py")
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "fuzz", module)
        spec.loader.exec_module(module)
    return module


def test_no_broken_input_ends_in_a_traceback(tmp_path: Path) -> None:
    run("fuzz.py", "--inputs", "175", "--seed", "0", "--out", str(tmp_path / "fuzz.json"))
    found = json.loads((tmp_path / "fuzz.json").read_text())
    assert all(sum(counts.values()) == 25 for counts in found.values())
    assert all(counts["refused"] > 8 for counts in found.values()), "mutations that break nothing try nothing"


def test_runs_that_are_killed_end_with_the_same_bits() -> None:
    run("crash.py", "--kills", "10", "--calls", "0")
    run("crash.py", "--kills", "0", "--calls", "20", "--every", "10", "--only", "head first")


def test_runs_that_meet_faults_end_in_one_line_and_go_on() -> None:
    run("faults.py", "--every", "45", "--only", "disk full", "read-only", "a file vanishes", "killed, a file spoilt")
    run("faults.py", "--every", "30", "--only", "power cut")


def test_the_fuzzer_finds_planted_weaknesses(fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicError(BaseException):
        pass

    def fail(error: BaseException) -> None:
        raise error

    def warn() -> str:
        warnings.warn("other numbers", stacklevel=1)
        return "other"

    monkeypatch.setattr(fuzz, "MOST_SECONDS", 1)
    for read, sound, expected in (
        (lambda: "sound", "sound", "read"),
        (lambda: "other", None, "read"),
        (lambda: "other", "sound", "fault: other numbers without a word"),
        (warn, "sound", "warned"),
        (lambda: fail(ValueError("line 3: no label")), "sound", "refused"),
        (lambda: fail(ValueError("")), "sound", "fault: refused without a word"),
        (lambda: fail(KeyError("x")), "sound", "fault: KeyError"),
        (lambda: fail(PanicError("unwrap")), "sound", "fault: PanicError"),
        (lambda: time.sleep(3), None, "fault: over 1 s"),
    ):
        assert fuzz.outcome_of(read, sound).startswith(expected)


@pytest.mark.parametrize("suffix", [".json", ".csv", ".safetensors"])
def test_mutations_are_many_and_repeat_by_seed(fuzz: ModuleType, suffix: str) -> None:
    import random

    from safetensors.numpy import save

    content = {".json": b'{"a": [1, 2], "b": {"c": null}}', ".csv": b"text,label\na,1\nb,0\n"}
    own = content.get(suffix) or save({"a": fuzz.pd.Series([1.0, 2.0]).to_numpy()})
    found = [[fuzz.mutated(own, random.Random(seed), suffix) for seed in range(200)] for _ in range(2)]
    assert found[0] == found[1]
    assert len(set(found[0])) > 120


def test_every_planted_violation_of_a_promise_is_caught() -> None:
    """The two suites run the same tests on the tree as it is."""
    run("mutants.py", "--table", "promises", "--jobs", "2", "--no-save", "--no-tests-as-it-is")


def test_each_promise_of_the_readme_has_violations_and_names_what_tries_them() -> None:
    section = (ROOT / "README.md").read_text().partition("\n## What it promises\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (.+\.) \| (.+) \|$", section, re.M))
    planted = json.loads((FOLDER / "promises.json").read_text())
    counts = Counter(mutant["promise"] for mutant in planted)
    assert {promise for promise, count in counts.items() if count > 1} == counts.keys() == rows.keys()
    for mutant in planted:
        tried = rows[mutant["promise"]]
        if "command" in mutant:
            assert f"`{shlex.join(['python', *mutant['command']])}`" in tried
        for word in [word for word in mutant.get("tests", ()) if word.startswith("tests/")]:
            assert word.startswith(tuple(re.findall(r"tests/[\w/.]+", tried))), mutant


SEEN = "import pathlib, sys; sys.exit('# planted' in pathlib.Path('Makefile').read_text())"
MUTANTS = [
    {"id": name, "file": "Makefile", "old": "clean:\n", "new": "# planted\nclean:\n", "command": ["-c", code], **more}
    for name, code, more in (
        ("seen", SEEN, {}),
        ("survives", "", {}),
        ("survives as expected", "", {"expected": "survived"}),
        ("without end", "import time; time.sleep(999)", {}),
        ("fails without it", "raise SystemExit(1)", {}),
        ("of a text that is gone", SEEN, {"old": "no such text"}),
    )
]
SAID = {
    "seen": "{'caught': 1}",
    "survives": "not as expected: survived: survives",
    "survives as expected": "{'survived': 1}",
    "without end": "not as expected: time limit: without end",
    "fails without it": "not as expected: fails anyway: fails without it",
    "of a text that is gone": "the text is gone of 1: of a text that is gone",
}


@pytest.mark.parametrize("name", SAID)
def test_a_mutant_that_no_test_sees_fails(name: str, tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    table.write_text(json.dumps(MUTANTS))
    is_expected = name in ("seen", "survives as expected")
    assert SAID[name] in run("mutants.py", name, "--table", str(table), "--limit", "3", code=int(not is_expected))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_mutant_that_is_ended_leaves_the_tree_as_it_was(number: int, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text(json.dumps(MUTANTS))
    (copies := tmp_path / "copies").mkdir()
    before = (ROOT / "Makefile").read_bytes()
    process = subprocess.Popen(
        [sys.executable, str(FOLDER / "mutants.py"), "without end", "--table", str(tmp_path / "table.json")],
        env=ENVIRONMENT | {"TMPDIR": str(copies)},
        start_new_session=True,
    )
    while not any("# planted" in path.read_text() for path in copies.glob("*/*/Makefile")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    process.wait(30)
    assert (ROOT / "Makefile").read_bytes() == before
    assert number == signal.SIGKILL or not [*copies.iterdir()]
