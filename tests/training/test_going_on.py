"""A run that was cut short and goes on ends with the bits of one that was not, wherever it was cut."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import toolkit.pipeline
from toolkit import Run, finetune, verify_run
from toolkit.config import RunConfig
from toolkit.snapshots import files
from toolkit.snapshots.store import MANIFEST
from toolkit.snapshots.unfinished import INDEX, NUM_KEPT, read_state
from toolkit.training import going_on
from toolkit.training.going_on import Interrupted
from toolkit.training.optimizer import NonFiniteLossError

WAYS: dict[str, dict[str, Any]] = {
    "full fine-tuning": {},
    "embeddings frozen": {"freeze": "embeddings"},
    "part": {"freeze": "word_embeddings,layers.0", "snapshot_steps": "log"},
    "feature extraction": {"freeze": "backbone", "head_training": "epochs", "head": "mlp"},
    "early stopping": {"freeze": "backbone", "head_training": "early-stopping", "epochs": None},
    "LP-FT": {"head_epochs": 2},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.5},
    "new rows": {"add_tokens": "fil\nbori\n", "train_rows": "new", "new_token_init": "random"},
    "new rows by sgd": {"add_tokens": "fil\nbori\n", "train_rows": "new", "optimizer": "sgd", "learning_rate": 0.5},
    "LoRA": {"lora": ("word_embeddings", "value"), "lora_rank": 2, "learning_rate": 1e-2},
    "LoRA beside new rows": {"lora": ("value",), "lora_rank": 2, "add_tokens": "fil\nbori\n", "train_rows": "new"},
    "mixed layers": {"features": "mix", "gradient_accumulation_steps": 2},
    "bf16": {"precision": "bf16"},
    "few tokens a batch": {"batch_tokens": 200, "max_steps": 9},
    "masked tokens": {"objective": "mlm", "init": "random"},
    "words that are tagged": {"task": "roles", "max_length": 16, "max_train_examples": 40, "label_column": "label"}
    | {"train_file": None, "validation_file": None, "test_file": (), "text_columns": ()},
}
"""One run of each kind: of all that a step takes or leaves, and of the head's."""


class Cut(BaseException):
    """As a kill: nothing that catches exceptions catches it."""


@pytest.fixture
def at_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """States are written at every epoch, however short it is."""
    monkeypatch.setattr(going_on, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(going_on, "CREDIT_SECONDS", float("inf"))


@contextmanager
def at_every_step(act: Callable[[int], object]) -> Iterator[None]:
    """Something is done after every optimizer step of this process's runs, of which it hears the number."""
    own = toolkit.pipeline._Progress.on_step

    def on_step(self: Any, log: Any, seconds: float) -> None:
        own(self, log, seconds)
        act(log.step)

    with patch.object(toolkit.pipeline._Progress, "on_step", on_step):
        yield


def cut_after(num_steps: int) -> AbstractContextManager[None]:
    """Runs end after so many steps of their own, as if they were killed."""
    taken: list[int] = []

    def act(step: int) -> None:
        taken.append(step)
        if len(taken) == num_steps:
            raise Cut

    return at_every_step(act)


def contents(run: Run) -> dict[str, bytes]:
    """Every file but the manifest, which holds seconds, and the config, which holds the place."""
    return {name: (run.path / name).read_bytes() for name in run.manifest["files"] if name != "config.json"}


def facts(run: Run) -> dict[str, Any]:
    """What the manifest says but for seconds, memory and the place."""
    left_out = {"cost", "files", "sizes", "sha256", "git_commit", "floors", "linear_probe"}
    return {name: value for name, value in run.manifest.items() if name not in left_out}


def start_config(way: str, tiny_config: RunConfig, folder: Path) -> RunConfig:
    own = WAYS[way]
    if "add_tokens" in own:  # parts of words, which texts then hold
        folder.mkdir(exist_ok=True)
        (folder / "new.txt").write_text(own["add_tokens"])
        own = {**own, "add_tokens": str(folder / "new.txt")}
    return replace(replace(tiny_config, epochs=3, save_model=True, dropout=0.1, output_dir=str(folder)), **own)


FAST_WAYS = ("full fine-tuning", "part", "feature extraction", "LP-FT", "new rows", "LoRA", "masked tokens")
ALL_WAYS = [way if way in FAST_WAYS else pytest.param(way, marks=pytest.mark.slow) for way in WAYS]


@pytest.mark.parametrize("way", ALL_WAYS)
def test_cut_at_any_step_and_started_again_it_ends_with_the_same_bits(
    way: str, tiny_config: RunConfig, tmp_path: Path, at_every_epoch: None
) -> None:
    whole = finetune(start_config(way, tiny_config, tmp_path / "whole"))
    expected = contents(whole)
    config = start_config(way, tiny_config, tmp_path / "cut")
    for resume_steps in (None, 2):
        config = replace(config, resume_steps=resume_steps, overwrite=resume_steps is not None)
        run, starts = None, []
        while run is None:
            assert len(starts) < 40
            with cut_after(3 + 2 * len(starts)):
                try:
                    run = finetune(config)
                except Cut:
                    (place,) = [path.parent for path in (tmp_path / "cut").rglob("unfinished.json")]
                    state = read_state(place)
                    starts.append(0 if state is None else state.step)
        assert starts == sorted(starts)
        assert max(starts) > 0, "it never got anywhere"
        found = contents(run)
        assert found.keys() == expected.keys()
        assert [name for name in found if found[name] != expected[name]] == []
        assert facts(run) == facts(whole)
        assert ((run.path / INDEX).exists(), verify_run(run.path)) == (False, [])


@pytest.mark.parametrize("way", ["full fine-tuning", "feature extraction", "early stopping"])
def test_cut_behind_the_last_epoch_it_ends_with_the_same_bits(
    way: str, tiny_config: RunConfig, tmp_path: Path, at_every_epoch: None
) -> None:
    """Nothing is left to train, and no moment comes at which logs would be written again."""
    config = start_config(way, tiny_config, tmp_path / "cut")
    with patch.object(toolkit.pipeline, "measure_floors", side_effect=Cut), pytest.raises(Cut):
        finetune(config)
    assert contents(finetune(config)) == contents(finetune(start_config(way, tiny_config, tmp_path / "whole")))


def cut_run(config: RunConfig, num_steps: int) -> Path:
    with cut_after(num_steps), pytest.raises(Cut):
        finetune(config)
    (place,) = [path.parent for path in Path(config.output_dir).rglob("unfinished.json")]
    return place


@pytest.mark.parametrize("reason", ["asked for", "other threads or versions"])
def test_a_run_starts_anew(
    reason: str, tiny_config: RunConfig, tmp_path: Path, at_every_epoch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums in another order would give other bits: a run does not go on where they may be."""
    config = replace(tiny_config, epochs=3, output_dir=str(tmp_path))
    assert read_state(cut_run(config, 10)) is not None
    if reason == "asked for":
        config = replace(config, resume=False)
    else:
        own = going_on.identity_of
        monkeypatch.setattr(toolkit.pipeline, "identity_of", lambda *given: own(*given) | {"num_threads": 99})
    seen: list[int] = []
    with at_every_step(seen.append):
        finetune(config)
    assert seen[0] == 1


def test_a_torn_state_is_passed_over_for_the_one_before(
    tiny_config: RunConfig, tmp_path: Path, at_every_epoch: None
) -> None:
    """Each byte of a state counts: of its file, of the list of states and of the snapshots that it follows."""
    config = replace(tiny_config, epochs=4, output_dir=str(tmp_path / "whole"))
    expected = contents(finetune(config))
    place = cut_run(replace(config, output_dir=str(tmp_path / "cut"), resume_steps=1), 15)
    entries = json.loads((place / INDEX).read_text())["states"]
    assert len(entries) == NUM_KEPT == len(list((place / "resume").glob("*.safetensors")))
    newest, before = entries
    steps = [int(name.removeprefix("resume/step-").removesuffix(".safetensors")) for name in entries]
    assert read_state(place).step == steps[0] > steps[1]  # type: ignore[union-attr]
    content = bytearray((place / newest).read_bytes())
    for at in (0, 9, len(content) // 2, len(content) - 1):
        content[at] ^= 1
        (place / newest).write_bytes(content)
        assert read_state(place).step == steps[1]  # type: ignore[union-attr]
        content[at] ^= 1
    (place / newest).write_bytes(content[:-5])
    run = finetune(replace(config, output_dir=str(tmp_path / "cut")))
    assert contents(run) == expected
    assert before not in run.manifest["files"]


def test_a_changed_snapshot_is_not_gone_on_from(tiny_config: RunConfig, tmp_path: Path, at_every_epoch: None) -> None:
    place = cut_run(replace(tiny_config, epochs=3, output_dir=str(tmp_path)), 10)
    path = place / "snapshots" / "epoch-000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    assert read_state(place) is None


def test_a_run_that_diverged_keeps_no_state(tiny_config: RunConfig, tmp_path: Path, at_every_epoch: None) -> None:
    config = replace(tiny_config, epochs=3, learning_rate=1e30, resume_steps=1, output_dir=str(tmp_path))
    with pytest.raises(NonFiniteLossError):
        finetune(config)
    (place,) = [path.parent for path in tmp_path.rglob("unfinished.json")]
    assert not (place / "resume").exists()


def test_a_signal_ends_the_run_after_its_step_and_keeps_it(tiny_config: RunConfig, tmp_path: Path) -> None:
    config = replace(tiny_config, epochs=3, output_dir=str(tmp_path / "cut"))
    expected = contents(finetune(replace(config, output_dir=str(tmp_path / "whole"))))
    ends = at_every_step(lambda step: step == 7 and os.kill(os.getpid(), signal.SIGTERM))
    with ends, pytest.raises(Interrupted, match="step") as interrupted:
        finetune(config)
    (place,) = [path.parent for path in (tmp_path / "cut").rglob("unfinished.json")]
    state = read_state(place)
    assert str(interrupted.value) == f"step {state.step}"
    assert state.step == 7 or (torch.cuda.is_available() and state.step > 7)  # of a GPU one hears later
    assert np.isfinite(state.tensors["own.losses"]).all()
    assert contents(finetune(config)) == expected
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_state_is_of_its_step_whatever_is_trained_while_it_is_written(tiny_config: RunConfig, tmp_path: Path) -> None:
    """The third step is taken before the first byte of the state of the second is written."""
    states, own, is_trained = [], files._write_parts, threading.Event()

    def late(temporary: Path, *given: Any) -> str:
        if "resume" in temporary.parts:
            assert is_trained.wait(60)
        return own(temporary, *given)

    def act(step: int) -> None:
        if step == 3:
            is_trained.set()
            raise Cut

    for name, write in (("late", late), ("at once", own)):
        config = replace(tiny_config, resume_steps=2, dropout=0.1, output_dir=str(tmp_path / name))
        with patch.object(files, "_write_parts", write), at_every_step(act), pytest.raises(Cut):
            finetune(config)
        (place,) = [path.parent for path in (tmp_path / name).rglob("unfinished.json")]
        states.append(read_state(place))
    late_state, state = states
    assert late_state.step == state.step == 2
    assert late_state.tensors.keys() == state.tensors.keys()
    assert [n for n, values in state.tensors.items() if values.tobytes() != late_state.tensors[n].tobytes()] == []


def test_a_state_that_cannot_be_written_ends_the_run(tiny_config: RunConfig, tmp_path: Path) -> None:
    own, seen = files._write_parts, list[int]()

    def fail(temporary: Path, *given: Any) -> str:
        if "resume" in temporary.parts:
            raise OSError(28, "No space left on device")
        return own(temporary, *given)

    config = replace(tiny_config, epochs=3, resume_steps=2, output_dir=str(tmp_path))
    ends = at_every_step(lambda step: (seen.append(step), time.sleep(0.1)))
    with patch.object(files, "_write_parts", fail), ends, pytest.raises(OSError, match=r"No space left.*step-00000002"):
        finetune(config)
    assert seen[-1] <= 4  # where the next state would be written


@pytest.mark.slow  # an interpreter of its own
def test_killed_while_a_state_is_written_it_goes_on_from_the_one_before(tiny_config: RunConfig, tmp_path: Path) -> None:
    config = replace(tiny_config, epochs=3, output_dir=str(tmp_path / "cut"), resume_steps=3)
    whole = finetune(replace(config, output_dir=str(tmp_path / "whole")))
    # An interpreter of its own: a fork of a process with threads of torch and Arrow now and then ends in a fault.
    code = (
        "import os, signal, sys, toolkit.pipeline as p\n"
        "from toolkit.config import RunConfig\n"
        "from toolkit.snapshots import files\n"
        "own = files._write_parts\n"
        "def write_parts(temporary, *given):\n"
        "    is_next = 'step-00000009' in temporary.name\n"
        "    return [own(temporary, *given), is_next and os.kill(os.getpid(), signal.SIGKILL)][0]\n"
        "files._write_parts = write_parts\n"
        "p.finetune(RunConfig.from_json(sys.argv[1]))\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    killed = subprocess.run(
        [sys.executable, "-c", code, config.to_json()], capture_output=True, text=True, check=False, env=environment
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (place,) = [path.parent for path in (tmp_path / "cut").rglob("unfinished.json")]
    assert not (place / MANIFEST).exists()
    assert list(place.rglob(".step-00000009.*.tmp"))
    assert read_state(place).step == 6  # type: ignore[union-attr]
    assert contents(finetune(config)) == contents(whole)


TWICE = """
import atexit, os, signal, sys, time
import toolkit.pipeline as pipeline
from toolkit.cli import finetune_main
from toolkit.snapshots import files
from toolkit.snapshots.run_writer import RunWriter

SECOND = {
    "in the same step": (pipeline._Progress, "on_step"),
    "while the state is written": (files, "_write_parts"),
    "on the way out": (RunWriter, "release"),
}
steps = []

def press(*_):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.5)  # where another thread presses, the main one hears of it meanwhile

def before(owner, name, act):
    own = getattr(owner, name)
    def patched(*given, **options):
        act(*given)
        return own(*given, **options)
    setattr(owner, name, patched)

if sys.argv[1] in SECOND:
    before(*SECOND[sys.argv[1]], lambda *_: press() if 8 in steps else None)
else:
    atexit.register(press)
before(pipeline._Progress, "on_step", lambda self, log, seconds: (steps.append(log.step), log.step == 8 and press()))
finetune_main(["--config", sys.argv[2]])
"""


@pytest.mark.slow  # an interpreter each
@pytest.mark.parametrize(
    ("moment", "last_state", "code"),
    [
        ("in the same step", 6, 130),
        ("while the state is written", 6, 130),
        ("on the way out", 8, 130),
        ("as Python ends", 8, -signal.SIGINT),
    ],
)
def test_a_second_interrupt_ends_it_at_once_in_one_line_and_it_goes_on(
    moment: str, last_state: int, code: int, tiny_config: RunConfig, tmp_path: Path
) -> None:
    config = replace(tiny_config, epochs=3, output_dir=str(tmp_path / "cut"), resume_steps=3)
    (tmp_path / "config.json").write_text(config.to_json())
    words = [sys.executable, "-c", TWICE, moment, str(tmp_path / "config.json")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert ended.returncode == code, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("interrupted: the same command goes on")
    assert not {"Traceback", "ignored"} & set(re.findall(r"\w+", ended.stderr))
    (place,) = [path.parent for path in (tmp_path / "cut").rglob("unfinished.json")]
    assert read_state(place).step == last_state  # type: ignore[union-attr]
    assert contents(finetune(config)) == contents(finetune(replace(config, output_dir=str(tmp_path / "whole"))))
