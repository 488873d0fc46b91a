"""Models that two processes share in: recorded whole, or refused in one line; two processes for all of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

import toolkit
from tests.refusals import check_refused
from tests.training.recorded_texts import TEXTS, count, encode, ended, load, totals
from tests.training.two_processes import in_two_processes


def shard(model: Any, mesh: Any) -> Any:
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    return model


def share_table(model: Any, mesh: Any) -> Any:
    parallelize_module(model.bert.embeddings, mesh, {"word_embeddings": RowwiseParallel(input_layouts=Replicate())})
    return model


def flat(model: Any, mesh: Any) -> Any:
    return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))


WAYS = {"fsdp2": shard, "tensor parallel": share_table, "fsdp1": flat, "too early": shard}


def train(folder: Path, out: Path) -> None:
    """Record a step of a model that is shared in each of the ways; what is refused is written into ``said``."""
    rank, mesh = torch.distributed.get_rank(), init_device_mesh("cpu", (2,))
    for name, wrap in WAYS.items():
        model, tokenizer = load(folder)
        model.bert.encoder.requires_grad_(False)
        try:
            recording = toolkit.record(model, out / name) if name == "too early" else None
            wrapped = wrap(model, mesh)
            batch = encode(tokenizer, TEXTS)
            mine = batch if name == "tensor parallel" else {k: v[rank::2] for k, v in batch.items()}
            with torch.no_grad():
                wrapped(**mine)  # FSDP2 leaves the root's parameters gathered, in bf16
            recording = recording or toolkit.record(wrapped, out / name)
            recording.snapshot(epoch=0)
            optimizer = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=1e-3)
            wrapped.train()
            wrapped(**mine).logits[:, 0].sum().backward()
            optimizer.step()
            with torch.no_grad():
                wrapped(**mine)
            ended(recording, epoch=1)
            words = model.get_input_embeddings().weight
            if hasattr(model, "reshard"):
                model.reshard()
                words = model.get_input_embeddings().weight
            whole = words.full_tensor().detach()
            if rank == 0:
                torch.save(whole, out / f"{name}.pt")
        except ValueError as error:
            if rank == 0:
                with (out / "said").open("a") as file:
                    file.write(f"{name}: {error}\n")


@pytest.fixture(scope="module")
def shared(tiny_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs, of the tables as they were, and of what was said."""
    folder = tmp_path_factory.mktemp("sharded")
    in_two_processes(train, folder / "meeting", tiny_model("bert"), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fsdp2", "tensor parallel"])
def test_a_sharded_model_is_recorded_whole(way: str, shared: Path, tiny_model: Any) -> None:
    """Full fp32 tables, whatever a pass before the snapshot left gathered; frozen parameters proven."""
    run = toolkit.open_run(shared / way)
    model, tokenizer = load(tiny_model("bert"))
    first, last = (snapshot.tensors["word_embeddings"] for snapshot in run.trajectory)
    assert np.array_equal(first, model.bert.embeddings.word_embeddings.weight.detach().numpy())
    assert np.array_equal(last, torch.load(shared / f"{way}.pt").numpy())
    assert not np.array_equal(first, last)
    assert len(run.manifest["frozen"]["parameters"]) == len(list(model.bert.encoder.parameters()))
    if way == "fsdp2":
        assert (run.manifest["problems"], run.manifest["num_processes"]) == ([], 2)
        assert totals(run, "word_embeddings") == dict(count(model, [encode(tokenizer, TEXTS)])["word_embeddings"])
    else:  # both processes were given the same rows
        assert run.trajectory.exposure is None
        assert run.manifest["problems"] == [
            "parameters are shared out otherwise than by FSDP2 over all processes (tensor parallel, say): which "
            "processes see the same batch is not known, nor is exposure"
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("fsdp1", "this process holds only a flat part of it (FSDP1, DeepSpeed ZeRO-3): use FSDP2"),
        ("too early", "word_embeddings was replaced after record(), by fully_shard"),
    ],
)
def test_what_cannot_be_recorded_whole_is_refused(way: str, said: str, shared: Path) -> None:
    (line,) = [line for line in (shared / "said").read_text().splitlines() if line.startswith(f"{way}: ")]
    assert said in line


def test_a_model_without_values_is_refused(tiny_model: Any, tmp_path: Path) -> None:
    check_refused(
        "word_embeddings is on the meta device",
        toolkit.record,
        load(tiny_model("bert"))[0].to("meta"),
        tmp_path / "run",
    )
