"""Models that two processes share in: recorded whole, or refused in one line; one launch for all of them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toolkit
from tests.training.recorded_texts import TEXTS, count, encode, load, totals

SCRIPT = """
import sys, torch, toolkit
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
from tests.training.recorded_texts import TEXTS, encode, load

folder, out = sys.argv[1:]
torch.distributed.init_process_group("gloo")
rank, mesh = torch.distributed.get_rank(), init_device_mesh("cpu", (2,))

def shard(model):
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    return model

def share_table(model):
    parallelize_module(model.bert.embeddings, mesh, {"word_embeddings": RowwiseParallel(input_layouts=Replicate())})
    return model

def flat(model):
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))

for name, wrap in {"fsdp2": shard, "tensor parallel": share_table, "fsdp1": flat, "too early": shard}.items():
    model, tokenizer = load(folder)
    model.bert.encoder.requires_grad_(False)
    try:
        recording = toolkit.record(model, f"{out}/{name}") if name == "too early" else None
        wrapped = wrap(model)
        batch = encode(tokenizer, TEXTS)
        mine = batch if name == "tensor parallel" else {k: v[rank::2] for k, v in batch.items()}
        with torch.no_grad():
            wrapped(**mine)  # FSDP2 leaves the root's parameters gathered, in bf16
        recording = recording or toolkit.record(wrapped, f"{out}/{name}")
        recording.snapshot(epoch=0)
        optimizer = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=1e-3)
        wrapped.train()
        wrapped(**mine).logits[:, 0].sum().backward()
        optimizer.step()
        with torch.no_grad():
            wrapped(**mine)
        recording.snapshot(epoch=1)
        recording.finish()
        words = model.get_input_embeddings().weight
        if hasattr(model, "reshard"):
            model.reshard()
            words = model.get_input_embeddings().weight
        whole = words.full_tensor().detach()
        if rank == 0:
            torch.save(whole, f"{out}/{name}.pt")
    except ValueError as error:
        if rank == 0:
            print(f"{name}: {error}")
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def launched(tiny_model: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the runs, and what was printed."""
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "loop.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [str(folder / "loop.py"), str(tiny_model("bert")), str(folder)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, env=environment, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done.stdout


@pytest.mark.parametrize("way", ["fsdp2", "tensor parallel"])
def test_a_sharded_model_is_recorded_whole(way: str, launched: tuple[Path, str], tiny_model: Any) -> None:
    """Full fp32 tables, whatever a pass before the snapshot left gathered; frozen parameters proven."""
    run = toolkit.open_run(launched[0] / way)
    model, tokenizer = load(tiny_model("bert"))
    first, last = (snapshot.tensors["word_embeddings"] for snapshot in run.trajectory)
    assert np.array_equal(first, model.bert.embeddings.word_embeddings.weight.detach().numpy())
    assert np.array_equal(last, torch.load(launched[0] / f"{way}.pt").numpy())
    assert not np.array_equal(first, last)
    assert len(run.manifest["frozen"]["parameters"]) == len(list(model.bert.encoder.parameters()))
    if way == "fsdp2":
        assert run.manifest["problems"] == []
        assert totals(run, "word_embeddings") == dict(count(model, [encode(tokenizer, TEXTS)])["word_embeddings"])
    else:  # both processes were given the same rows
        assert run.trajectory.exposure is None
        assert run.manifest["problems"] == [
            "parameters are shared out otherwise than by FSDP2 over all processes (tensor parallel, say): which "
            "processes see the same batch is not known, nor is exposure"
        ]


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("fsdp1", "a process has but a flat part of it (FSDP1, DeepSpeed ZeRO-3): use FSDP2"),
        ("too early", "word_embeddings was replaced after record(), by fully_shard"),
    ],
)
def test_what_cannot_be_recorded_whole_is_refused(way: str, said: str, launched: tuple[Path, str]) -> None:
    (line,) = [line for line in launched[1].splitlines() if line.startswith(f"{way}: ")]
    assert said in line


def test_a_model_without_values_is_refused(tiny_model: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="word_embeddings is on the meta device"):
        toolkit.record(load(tiny_model("bert"))[0].to("meta"), tmp_path / "run")
