"""torch.compile around a recorded model: the same rows, norms and rates as of its twin that is not compiled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toolkit
from tests.training.recorded_texts import TEXTS, encode, load, start, update


def record_two_steps(model: Any, call: Any, batch: dict[str, torch.Tensor], path: Path) -> toolkit.Run:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    recording = start(model, path)
    for step in (1, 2):
        update(optimizer, call(**batch).logits[:, 0].sum())
        recording.snapshot(epoch=step)
    return recording.finish()


@pytest.mark.slow  # torch.compile takes seconds
@pytest.mark.parametrize("way", ["function", "method", "compiled before"])
def test_a_compiled_model_is_recorded_as_any_other(way: str, tiny_model: Any, tmp_path: Path) -> None:
    """Code that was compiled before the hooks came would not call them, and what stood in it would go uncounted."""
    torch.compiler.reset()
    runs = {}
    for name in ("plain", "compiled"):
        model, tokenizer = load(tiny_model("bert"))
        batch, call = encode(tokenizer, TEXTS), model
        model.train().bert.embeddings.dropout.p = 0.0
        del model.bert.encoder.layer[1:]  # hooks are at the embeddings, and each block takes seconds to trace
        if name == "compiled" and way == "method":
            model.compile(backend="eager")
        elif name == "compiled":
            call = torch.compile(model, backend="eager")
        if way == "compiled before":
            call(**batch)
        torch.manual_seed(1)
        runs[name] = record_two_steps(model, call, batch, tmp_path / name)
    plain, compiled = runs.values()
    assert compiled.manifest["problems"] == []
    assert repr(compiled.optimizer_log) == repr(plain.optimizer_log)
    expected = plain.trajectory.exposure.to_tensors()
    for name, tensor in compiled.trajectory.exposure.to_tensors().items():
        np.testing.assert_allclose(tensor, expected[name], rtol=1e-5, atol=1e-8, err_msg=name)
    for one, other in zip(plain.trajectory, compiled.trajectory, strict=True):
        for name, tensor in one.tensors.items():
            np.testing.assert_allclose(tensor, other.tensors[name], atol=1e-5, err_msg=name)


def test_a_graph_that_may_not_be_left_says_what_to_do(tiny_model: Any, tmp_path: Path) -> None:
    model, tokenizer = load(tiny_model("bert"))
    compiled = torch.compile(model.train(), backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="compile without fullgraph=True"):
        record_two_steps(model, compiled, encode(tokenizer, TEXTS), tmp_path / "run")
