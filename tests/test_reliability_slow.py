"""The experiments on reliability, small: what they try holds, and each finds a weakness that is planted."""

import importlib.util
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "reliability"

pytestmark = pytest.mark.slow


def run(script: str, *flags: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), *flags], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


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
    run("fuzz.py", "--inputs", "480", "--seed", "0", "--out", str(tmp_path / "fuzz.json"))
    found = json.loads((tmp_path / "fuzz.json").read_text())
    assert all(sum(counts.values()) == 80 for counts in found.values())
    assert all(counts["refused"] > 20 for counts in found.values()), "mutations that break nothing try nothing"


def test_runs_that_are_killed_end_with_the_same_bits() -> None:
    run("crash.py", "--kills", "10", "--calls", "0")


def test_kills_at_some_calls_are_counted_beside_what_was_counted_before(tmp_path: Path) -> None:
    out = tmp_path / "crash.json"
    out.write_text(json.dumps({"head first": {"random: runs": 7, "calls: runs": 1}, "full fine-tuning": {}}))
    flags = ("--kills", "0", "--calls", "20", "--every", "10", "--only", "head first", "--out", str(out))
    run("crash.py", *flags)
    found = json.loads(out.read_text())
    assert found["full fine-tuning"] == {}
    assert found["head first"].pop("calls: steps saved") >= 0
    assert found["head first"] == {"random: runs": 7, "calls: runs": 2, "calls: kills": 2, "calls: same bits": 2}


def test_runs_that_meet_faults_end_in_one_line_and_go_on() -> None:
    run("faults.py", "--every", "45", "--only", "disk full", "read-only", "a file vanishes")


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
