"""A run that was cut short and goes on ends with the bits of one that was not, wherever it was cut."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import torch

import toolkit.pipeline
from toolkit import Run, finetune, verify_run
from toolkit.config import RunConfig
from toolkit.snapshots import files
from toolkit.snapshots.store import EXPOSURE, SMALL_FILES
from toolkit.snapshots.unfinished import INDEX, NUM_KEPT, find_state
from toolkit.training import resume
from toolkit.training.optimizer import NonFiniteLossError
from toolkit.training.resume import Interrupted, Resumer

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
    monkeypatch.setattr(resume, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(resume, "CREDIT_SECONDS", float("inf"))


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
                    state = find_state(place)[0]
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
    assert find_state(place)[0].step == steps[0] > steps[1]  # type: ignore[union-attr]
    content = bytearray((place / newest).read_bytes())
    for at in (0, 9, len(content) // 2, len(content) - 1):
        content[at] ^= 1
        (place / newest).write_bytes(content)
        assert find_state(place)[0].step == steps[1]  # type: ignore[union-attr]
        content[at] ^= 1
    (place / newest).write_bytes(content[:-5])
    run = finetune(replace(config, output_dir=str(tmp_path / "cut")))
    assert contents(run) == expected
    assert before not in run.manifest["files"]


DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "of another run": lambda path, other: path.write_bytes(other.read_bytes()),
    "cut short": lambda path, _: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path, _: path.write_bytes(b""),
    "gone": lambda path, _: path.unlink(),
}


@pytest.fixture(scope="module")
def pair(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Run, Run]:
    """A config, its run, and the same of another seed."""
    config = replace(tiny_config, epochs=3, save_model=True, dropout=0.1)
    folders = (str(tmp_path_factory.mktemp(name)) for name in ("own", "other"))
    runs = [finetune(replace(config, output_dir=folder, seed=seed)) for seed, folder in enumerate(folders)]
    return config, runs[0], runs[1]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("num_steps", [10, None])
def test_only_what_was_hashed_is_taken_up(
    damage: str, num_steps: int | None, pair: tuple[RunConfig, Run, Run], tmp_path: Path, at_every_epoch: None
) -> None:
    """In the middle and, None, behind the last epoch, where no log or table would be written again."""
    config, whole, other, seen = replace(pair[0], output_dir=str(tmp_path)), *pair[1:], list[int]()
    with patch.object(toolkit.pipeline, "measure_floors", side_effect=Cut):
        place = cut_run(config, num_steps or 10**6)
    for name in (*SMALL_FILES, EXPOSURE):
        DAMAGE[damage](place / name, other.path / name)
    with at_every_step(seen.append):
        run = finetune(config)
    assert contents(run) == contents(whole)
    assert (len(seen) < 10, verify_run(run.path)) == (True, [])


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seed": 1}, "resume/step-00000008.safetensors is of another config"),
        ({"learning_rate": 1e-5}, "resume/step-00000008.safetensors is of another config"),
        ({"num_threads": 99}, "resume/step-00000008.safetensors is of another num_threads (99 there, 1 here)"),
        ({}, "snapshots/epoch-000.safetensors has changed or is gone"),
        ({"resume": False}, ""),
    ],
)
def test_a_state_that_does_not_fit_or_is_not_wanted_is_passed_over(
    other: dict[str, Any], said: str, pair: tuple[RunConfig, Run, Run], tmp_path: Path, at_every_epoch: None
) -> None:
    """The folder of another config lies where the run should; sums in another order would give other bits; and, of
    none that is other, one byte of a snapshot has changed."""
    config, whole, seen = replace(pair[0], output_dir=str(tmp_path)), pair[1], list[int]()
    fields = {name: value for name, value in other.items() if name != "num_threads"}
    with patch.object(torch, "get_num_threads", return_value=other.get("num_threads", torch.get_num_threads())):
        place = cut_run(replace(config, **fields), 10).rename(tmp_path / whole.path.name)
    content = bytearray((first := place / "snapshots" / "epoch-000.safetensors").read_bytes())
    first.write_bytes(content if other else content[:-1] + b"\x7f")
    with at_every_step(seen.append), warnings.catch_warnings(record=True, action="always") as heard:
        assert contents(finetune(replace(config, resume=bool(said)))) == contents(whole)
    has_said = [f"starts anew, as with --no-resume: {said}" in str(each.message) for each in heard]
    assert (seen[0], any(has_said)) == (1, bool(said))


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
    state = find_state(place)[0]
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
        states.append(find_state(place)[0])
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


@pytest.mark.parametrize(("device", "waited", "written"), [("cpu", 1.3, 0.0), ("cpu", 0.21, 0.31), ("cuda", 0.1, 1.7)])
def test_states_of_epochs_take_a_second_and_a_share_of_the_time(
    device: str, waited: float, written: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a loop by hand: one more, as costly as the others, must fit into 1 s and 1.5 % of the time so far. Writing
    beside a GPU's training counts .15."""
    clock, states = SimpleNamespace(now=0.0), SimpleNamespace(seconds=0.0, is_busy=False, check=lambda: None)
    monkeypatch.setattr(resume, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state())
    kept: list[int] = []

    def write(step: int, tensors: Any, facts: Any) -> None:
        clock.now, states.seconds = clock.now + waited, states.seconds + written
        kept.append(step)

    writer = cast(Any, SimpleNamespace(states=states, write_state=write, wait_for_state=lambda: None))
    nothing = cast(Any, SimpleNamespace(state=dict))
    accelerator = SimpleNamespace(device=torch.device(device), num_processes=1)
    resumer, expected, now = Resumer(accelerator, nothing, writer, None, {}), list[int](), 0.0
    for epoch in range(1, 401):
        clock.now, now, number = clock.now + 3, now + 3, len(expected)
        resumer.after_epoch(epoch, nothing)
        cost = (number + 1) * (waited + written * (1 if device == "cpu" else 0.15))
        if now >= 5 and (not number or cost <= 1 + 0.015 * now):
            expected.append(epoch)
            now += waited
    assert kept == expected
    assert 10 < len(kept) < 100
    clock.now, states.is_busy = 1e6, True
    resumer.after_epoch(401, nothing)
    assert kept == expected


@pytest.mark.parametrize("is_main", [True, False])
def test_a_second_interrupt_ends_it_at_once_and_gives_up_the_state_that_is_written(is_main: bool) -> None:
    """TERM asks once more, and no more; and what listened before listens again."""
    given_up: list[int] = []
    writer = cast(Any, SimpleNamespace(abandon_state=lambda: given_up.append(1)) if is_main else None)
    resumer = Resumer(SimpleNamespace(num_processes=1), cast(Any, None), writer, None, {})
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with resumer.listening():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        assert given_up == []
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert given_up == [1] * is_main
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


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
    assert find_state(place)[0].step == last_state  # type: ignore[union-attr]
    assert contents(finetune(config)) == contents(finetune(replace(config, output_dir=str(tmp_path / "whole"))))
