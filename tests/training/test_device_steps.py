"""Steps that are looked at on a device and read behind it are the steps that are read at once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import toolkit
from tests.training.recorded_texts import TEXTS, encode, ended, inputs, load, start
from toolkit.training import graphs, passes
from toolkit.training.device_steps import look_at
from toolkit.training.step_recorder import NOT_FINITE, USED_ELSEWHERE, Recorder

WORDS = "word_embeddings"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES: dict[str, str] = {
    "plain": "bert",
    "positions after padding": "roberta",
    "no segments": "distilbert",
    "two passes a step": "bert",
    "a frozen table": "bert",
    "thawed later": "bert",
    "scaled gradients": "bert",
    "a penalty on the table": "bert",
    "NaN": "bert",
    "a tiny gradient elsewhere": "bert",
    "sparse": "bert",
}


def record_steps(case: str, tiny_model: Any, path: Path, num_steps: int = 8) -> toolkit.Run:
    """A loop over pairs of texts, with dropout, and what the case asks for."""
    model, tokenizer = load(tiny_model(CASES[case]))
    model.to(DEVICE)
    table: Any = model.base_model.embeddings.word_embeddings
    table.sparse = case == "sparse"
    model.base_model.embeddings.position_embeddings.requires_grad_(case not in ("a frozen table", "thawed later"))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-2)
    if case == "scaled gradients":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor([4.0, 0.0], device=DEVICE)  # as a GradScaler does
    recording = start(model.train(), path)
    for step in range(num_steps):
        if case == "thawed later" and step == 4:
            model.base_model.embeddings.position_embeddings.requires_grad_(True)
        for first in (step, step + 1)[: 1 + (case == "two passes a step")]:
            batch = encode(tokenizer, [TEXTS[first % 4], TEXTS[(first + 1) % 4]])
            given = {name: tensor.to(DEVICE) for name, tensor in inputs(model, batch).items()}
            model(**given, labels=torch.tensor([0, 1], device=DEVICE)).loss.backward()
        if step == 5 and case in ("a penalty on the table", "NaN", "a tiny gradient elsewhere"):
            table.weight.grad[-1, 0] = {"a penalty on the table": 1.0, "NaN": np.nan}.get(case, 1e-40)
        optimizer.step()
        optimizer.zero_grad()
    run: toolkit.Run = ended(recording, epoch=1)
    return run


def test_a_token_of_row_0_is_real_and_one_of_no_row_is_not() -> None:
    rows = torch.tensor([[0, 2, -1], [1, 0, -1]], dtype=torch.int32)
    gradient = torch.arange(12.0).reshape(4, 3)
    values, read = look_at(rows, {"words": gradient, "positions": None})
    seen = read(values.numpy())
    assert (seen["words"].rows.tolist(), seen["positions"].rows.tolist()) == ([0, 2], [1, 0])
    np.testing.assert_allclose(seen["words"].norms, gradient[[0, 2]].norm(dim=1))
    assert np.isnan(seen["positions"].norms).all()
    assert (seen["words"].elsewhere, seen["words"].largest) == (11.0, 11.0)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_read_later_a_loop_is_recorded_as_when_it_is_read_at_once(
    case: str, tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "is_read_later", lambda ids: False)
    at_once = record_steps(case, tiny_model, tmp_path / "at_once")
    monkeypatch.setattr(passes, "is_read_later", lambda ids: True)
    monkeypatch.setattr(graphs, "BLOCK", 3)  # two whole blocks, and one that is not
    later = record_steps(case, tiny_model, tmp_path / "later")
    assert later.manifest["problems"] == at_once.manifest["problems"]
    expected, exposure = at_once.trajectory.exposure, later.trajectory.exposure
    assert exposure.tables.keys() == expected.tables.keys()
    for name, table in exposure.tables.items():
        for part in ("offsets", "rows", "counts"):
            np.testing.assert_array_equal(getattr(table, part), getattr(expected.tables[name], part))
        np.testing.assert_allclose(table.norms, expected.tables[name].norms, rtol=1e-6 if DEVICE == "cpu" else 1e-4)
    np.testing.assert_array_equal(exposure.design.combinations, expected.design.combinations)
    np.testing.assert_array_equal(exposure.design.counts, expected.design.counts)
    if case in ("a penalty on the table", "a tiny gradient elsewhere", "NaN"):
        reason = NOT_FINITE if case == "NaN" else USED_ELSEWHERE
        assert f"{WORDS}: {reason}" in later.manifest["problems"]


def test_a_step_is_noted_when_its_block_comes_or_somebody_asks() -> None:
    table = torch.nn.Parameter(torch.ones(4, 2))
    table.grad = torch.zeros(4, 2)
    table.grad[1] = torch.tensor([3.0, 4.0])
    recorder, waiting = Recorder({WORDS: table}), []
    recorder._blocks = SimpleNamespace(  # type: ignore[assignment]
        add=lambda values, note: waiting.append((values.numpy(), note)),
        drain=lambda: [note(values) for values, note in waiting],
    )
    for _ in range(3):
        recorder.record_passes(torch.tensor([[1, -1, 1, 2]], dtype=torch.int32), 1)
        table.grad = table.grad * 2  # what comes later is not what is noted
    assert (recorder.num_steps, len(waiting)) == (3, 3)
    exposure = recorder.exposure()
    assert exposure is not None
    found = exposure.tables[WORDS]
    assert (found.rows.tolist(), found.counts.tolist()) == ([1, 1, 1], [2, 2, 2])  # row 2 has no gradient
    assert found.norms.tolist() == [5, 10, 20]


def test_of_sparse_gradients_all_steps_before_are_noted_first() -> None:
    table = torch.nn.Parameter(torch.ones(4, 2))
    recorder, waiting = Recorder({WORDS: table}), []
    recorder._blocks = SimpleNamespace(  # type: ignore[assignment]
        add=lambda values, note: waiting.append((values.numpy(), note)),
        drain=lambda: [note(values) for values, note in (waiting.pop() for _ in waiting[:])],
    )
    for size in (1.0, 2.0):
        table.grad = torch.zeros(4, 2).index_fill(0, torch.tensor([3]), size)
        table.grad = table.grad if size == 1.0 else table.grad.to_sparse()
        recorder.record_passes(torch.tensor([[3]], dtype=torch.int32), 1)
    exposure = recorder.exposure()
    assert exposure is not None
    assert exposure.tables[WORDS].norms.tolist() == pytest.approx([2**0.5, 8**0.5])


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_hook_of_a_steady_step_waits_for_the_gpu(tiny_model: Any, tmp_path: Path) -> None:
    """torch raises where something would; a step whose number is a power of two is looked at closely, and may."""
    model, tokenizer = load(tiny_model("bert"))
    model.cuda().train()
    batch = {name: tensor.cuda() for name, tensor in encode(tokenizer, TEXTS).items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    recording = start(model, tmp_path / "run")
    for step in range(1, 128):
        torch.cuda.set_sync_debug_mode("error" if step > 65 else "default")
        try:
            # Of an attention mask transformers asks whether it is full, which waits.
            model(input_ids=batch["input_ids"]).logits.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    run = ended(recording, epoch=1)
    assert run.manifest["problems"] == []
    assert run.trajectory.exposure.tables[WORDS].num_steps == 127
