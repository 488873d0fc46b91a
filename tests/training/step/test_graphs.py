"""The lengths that batches are padded to, and results that come back many at a time, in order and none left out."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.step.test_stepper import NUM_STEPS, Training
from tests.training.step.test_stepper import _check_equal as check_equal
from tests.training.steppers import StepperOfGraphs
from toolkit import finetune, open_run
from toolkit.models.heads import example_losses
from toolkit.training.graphs import BLOCK, Blocks, padded_length
from toolkit.training.optimizer import NonFiniteLossError
from toolkit.training.step import Stepper

LENGTHS = st.integers(1, 100_000)


@given(LENGTHS)
def test_a_padded_length_is_no_less_a_multiple_of_8_and_little_more(length):
    padded = padded_length(length)
    assert padded >= length
    assert padded % 8 == 0
    assert padded < length + 8 if length <= 32 else padded <= 1.25 * length
    assert padded_length(padded) == padded


@given(LENGTHS, LENGTHS)
def test_a_longer_batch_is_padded_to_no_less(one, other):
    assert padded_length(min(one, other)) <= padded_length(max(one, other))


def test_padded_lengths_are_few():
    lengths = sorted({padded_length(length) for length in range(1, 129)})
    assert lengths == [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128]


def results_of(number):
    """That many results of unequal sizes, none of whose values is another's."""
    values = np.split(np.arange(2.0 * number, dtype=np.float32), np.cumsum([1 + k % 3 for k in range(number - 1)]))
    return [torch.from_numpy(part.copy()) for part in values]


def test_on_a_cpu_each_result_is_told_at_once():
    told, blocks = [], Blocks(torch.device("cpu"))
    for k, result in enumerate(results_of(5)):
        blocks.add(result, told.append)
        assert len(told) == k + 1
        assert np.array_equal(told[k], result)
    blocks.drain()
    assert len(told) == 5


@pytest.fixture
def events(monkeypatch):
    """Stands in for a GPU's events, and notes what is waited for: a copy's values are not to be read before."""
    happened, plain = [], torch.empty
    event = SimpleNamespace(record=lambda: happened.append("sent"), synchronize=lambda: happened.append("waited"))
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch, "empty", lambda *sizes, pin_memory, **options: plain(*sizes, **options))
    return happened


@pytest.mark.parametrize("number", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 5])
def test_on_a_gpu_results_are_told_in_order_while_the_next_are_computed_and_all_in_the_end(events, number):
    told, blocks, results = [], Blocks(torch.device("cuda")), results_of(number)
    for k, result in enumerate(results):
        blocks.add(result, lambda values, k=k: told.append((k, values.copy())) or events.append("told"))
        assert len(told) == max((k + 1) // BLOCK - 1, 0) * BLOCK  # the last block is on its way
    blocks.drain()
    assert [k for k, _ in told] == list(range(number))
    assert all(np.array_equal(values, result) for (_, values), result in zip(told, results, strict=True))
    num_blocks = -(-number // BLOCK)
    assert events.count("sent") == events.count("waited") == num_blocks
    assert events.index("sent") < events.index("waited") < events.index("told")
    blocks.drain()
    assert len(told) == number


class HeldBack(Blocks):
    """On a CPU results of three steps come back together, as those of many do on a GPU."""

    def __init__(self, device):
        super().__init__(device)
        self._size = 3


@pytest.mark.parametrize("changes", [{}, {"pair_encoding": "separate"}], ids=str)
def test_batches_of_pairs_filled_up_for_graphs_are_the_same_steps(tiny_pairs, changes):
    own = replace(tiny_pairs, dropout=0.0, weight_decay=0.1, batch_size=5, batch_tokens=300, **changes)
    filled, plain = Training(StepperOfGraphs, own), Training(Stepper, own)
    assert filled.stepper.num_replayed > 0
    check_equal(filled, plain, tolerance=2e-5)


@pytest.mark.parametrize("num_captured", [0, 3, 9])
@pytest.mark.parametrize("parts", [1, 2])
def test_where_a_step_cannot_be_captured_it_and_those_after_it_are_taken_without(tiny_config, parts, num_captured):
    class Failing(StepperOfGraphs):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.graphs.run = partial(run, self.graphs.run)

    def run(captured, *arguments):
        calls.append(None)
        if len(calls) > num_captured:
            raise RuntimeError("planted")
        return captured(*arguments)

    own, calls = replace(tiny_config, dropout=0.0, gradient_accumulation_steps=parts), []
    is_reached = num_captured < NUM_STEPS * parts
    with pytest.warns(UserWarning, match=r"graphs \(RuntimeError: planted\)") if is_reached else nullcontext():
        failing = Training(Failing, own)
    assert len(calls) == min(num_captured + 1, NUM_STEPS * parts)  # it is not tried again
    assert failing.stepper.num_replayed == min(num_captured // parts, NUM_STEPS)
    assert failing.stepper.num_steps == NUM_STEPS
    check_equal(failing, Training(Stepper, own), tolerance=2e-5)


def test_a_run_says_how_many_steps_were_replayed(tiny_config, tmp_path, monkeypatch):
    said = {"share_of_steps": 0.5, "reason": "planted"}
    monkeypatch.setattr(Stepper, "graph_facts", lambda self: said)
    assert finetune(replace(tiny_config, max_steps=1, output_dir=str(tmp_path))).manifest["cuda_graph"] == said


CHANGES = [{}, {"snapshot_steps": 2}, {"max_steps": 7}, {"resume_steps": 1}, {"gradient_accumulation_steps": 2}]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_run_whose_results_come_late_is_the_same_run(tiny_config, tmp_path, monkeypatch, changes):
    own = replace(tiny_config, dropout=0.1, **changes)
    runs = [finetune(replace(own, output_dir=str(tmp_path / "at-once")))]
    monkeypatch.setattr("toolkit.training.step.Blocks", HeldBack)
    runs.append(finetune(replace(own, output_dir=str(tmp_path / "late"))))
    files = [{name for name in run.manifest["files"] if name != "config.json"} for run in runs]
    assert files[0] == files[1]
    for name in files[0]:
        assert (runs[0].path / name).read_bytes() == (runs[1].path / name).read_bytes(), name
    assert runs[0].manifest["step_sizes"] == runs[1].manifest["step_sizes"]


@pytest.mark.parametrize("bad_step", [1, 2, 6, 7])
@pytest.mark.parametrize(("is_late", "resume_steps"), [(False, None), (True, None), (True, 1)])
def test_a_step_whose_loss_is_not_finite_is_named_and_nothing_is_saved_after_it(
    tiny_config, tmp_path, monkeypatch, bad_step, is_late, resume_steps
):
    if is_late:
        monkeypatch.setattr("toolkit.training.step.Blocks", HeldBack)
    calls = []

    def planted(kind, outputs, answers):
        calls.append(kind)  # the first of them only asks what a loss reaches
        return example_losses(kind, outputs, answers) * (float("nan") if len(calls) == bad_step + 1 else 1)

    monkeypatch.setattr("toolkit.training.step.example_losses", planted)
    own = replace(tiny_config, snapshot_steps=2, resume_steps=resume_steps, output_dir=str(tmp_path))
    with pytest.raises(NonFiniteLossError, match=f"not finite at step {bad_step}: training stopped"):
        finetune(own)
    (path,) = tmp_path.iterdir()
    left = open_run(path)
    assert (left.is_finished, left.has_diverged) == (False, True)
    assert [snapshot.step for snapshot in left.trajectory] == [step for step in (0, 2, 4, 6) if step < bad_step]
    assert all(np.isfinite(table).all() for snapshot in left.trajectory for table in snapshot.tensors.values())
    assert not Path(path, "resume").exists()
