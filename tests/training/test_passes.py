"""Which forward passes count, and which of their tokens: the watch alone, beside what a batch holds."""

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.training.recorded_texts import TEXTS, encode, ended, load, start, totals
from toolkit.families import TABLES
from toolkit.models.regimes import locate_embeddings
from toolkit.training.passes import IN_REPLICAS, PassWatch, _tensors_of
from toolkit.training.record import _tied_parameters, shares_batches

WORDS, _, SEGMENTS = TABLES


@pytest.fixture
def watched(tiny_model: Any) -> tuple[Any, Any, PassWatch]:
    """A tiny BERT in training, its tokenizer, and the watch of its passes."""
    model, tokenizer = load(tiny_model("bert"))
    return model.train(), tokenizer, PassWatch(model, locate_embeddings(model))


def rows_of(watch: PassWatch, name: str) -> list[int]:
    return sorted(int(row) for rows in watch.take() for row in rows[name])


def test_a_token_that_the_mask_hides_is_not_counted_though_it_is_no_padding(
    watched: tuple[Any, Any, PassWatch],
) -> None:
    model, tokenizer, watch = watched
    batch = encode(tokenizer, TEXTS[:1])
    batch["attention_mask"][0, 2] = 0
    model(**batch).logits.sum().backward()
    assert rows_of(watch, WORDS) == sorted(
        batch["input_ids"][0, [0, 1, *range(3, batch["input_ids"].shape[1])]].tolist()
    )
    assert not watch.has_passes  # the next step learns from others


def test_a_mask_of_another_shape_leaves_padding_to_the_table(watched: tuple[Any, Any, PassWatch]) -> None:
    model, tokenizer, watch = watched
    batch = encode(tokenizer, TEXTS[:2])
    real = batch["input_ids"][batch["input_ids"] != 0]
    batch["attention_mask"] = (
        batch["attention_mask"][:, None, None, :].bool().expand(-1, 1, batch["input_ids"].shape[1], -1)
    )
    model(**batch).logits.sum().backward()
    assert rows_of(watch, WORDS) == sorted(real.tolist())


def test_the_segments_that_are_given_are_counted(watched: tuple[Any, Any, PassWatch]) -> None:
    model, tokenizer, watch = watched
    batch = encode(tokenizer, TEXTS[1:2])
    batch["token_type_ids"][0, 1:] = 1
    model(**batch).logits.sum().backward()
    assert rows_of(watch, SEGMENTS) == [0] + [1] * (batch["input_ids"].shape[1] - 1)


def test_the_very_first_pass_over_frozen_tables_counts(tiny_model: Any) -> None:
    model, tokenizer = load(tiny_model("bert"))
    locate_embeddings(model).backbone.embeddings.requires_grad_(False)
    watch = PassWatch(model.train(), locate_embeddings(model))
    batch = encode(tokenizer, TEXTS[:1])
    model(**batch).logits.sum().backward()
    assert rows_of(watch, WORDS) == sorted(batch["input_ids"][0].tolist())


def test_replicas_that_somebody_makes_later_are_told(watched: tuple[Any, Any, PassWatch]) -> None:
    """As nn.DataParallel does around a part of a recorded model, for each GPU in each pass."""
    model, tokenizer, watch = watched
    model.bert.embeddings._replicate_for_data_parallel()(encode(tokenizer, TEXTS)["input_ids"])
    assert (watch.problem, watch.take()) == (IN_REPLICAS, [])


def test_tensors_are_found_in_whatever_a_model_returns() -> None:
    @dataclass
    class Output:
        loss: torch.Tensor
        states: list[torch.Tensor]
        name: str = ""

    tensors = [torch.full((1,), float(i)) for i in range(4)]
    output = {"a": Output(tensors[0], tensors[1:3]), "b": (tensors[3], None)}
    assert [float(tensor) for tensor in _tensors_of(output)] == [0, 1, 2, 3]


def test_passes_that_were_dropped_are_of_no_step(tiny_model: Any, tmp_path: Path) -> None:
    model, tokenizer = load(tiny_model("bert"))
    recording = start(model.train(), tmp_path / "run")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    dropped, learned = (encode(tokenizer, [text]) for text in TEXTS[:2])
    model(**dropped).logits.sum().backward()
    for parameter in locate_embeddings(model).parameters.values():
        parameter.grad = None  # the head's gradient is left, so that nothing else says that the pass teaches nothing
    recording.drop_passes()
    model(**learned).logits.sum().backward()
    optimizer.step()
    counts = totals(ended(recording, epoch=1), WORDS)
    assert counts == {int(row): 1 for row in learned["input_ids"][0]}


def test_only_a_table_that_another_module_uses_is_tied(tiny_model: Any) -> None:
    model, _ = load(tiny_model("bert"))
    embeddings = locate_embeddings(model)
    assert _tied_parameters(model, embeddings) == []
    table = embeddings.parameters[WORDS]
    model.classifier.weight = table
    assert _tied_parameters(model, embeddings) == [WORDS]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_table_that_was_replaced_after_the_last_snapshot_is_told_in_the_end(tiny_model: Any, tmp_path: Path) -> None:
    model, tokenizer = load(tiny_model("bert"))
    recording = start(model.train(), tmp_path / "run")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    model(**encode(tokenizer, TEXTS)).logits.sum().backward()
    optimizer.step()
    recording.snapshot(epoch=1)
    old: Any = locate_embeddings(model).backbone.embeddings
    old.word_embeddings = torch.nn.Embedding(*old.word_embeddings.weight.shape)
    assert "was replaced while it was recorded" in " ".join(recording.finish().manifest["problems"])


@pytest.mark.parametrize(
    ("num_processes", "num_sharded", "mesh_size", "has_fsdp", "is_shared"),
    [
        (1, 2, 1, True, False),
        (4, 1, 4, True, False),  # FSDP2: each process has a batch of its own
        (4, 2, 4, True, True),  # in two dimensions: tensor parallelism beside it
        (4, 1, 2, True, True),
        (4, 1, 4, False, True),
    ],
)
def test_processes_share_a_batch_but_under_fsdp_alone(
    num_processes: int, num_sharded: int, mesh_size: int, has_fsdp: bool, is_shared: bool
) -> None:
    placements = [
        SimpleNamespace(is_replicate=lambda is_kept=is_kept: is_kept) for is_kept in [False] * num_sharded + [True]
    ]
    parameter = SimpleNamespace(
        full_tensor=None, placements=placements, device_mesh=SimpleNamespace(size=lambda: mesh_size)
    )
    module = SimpleNamespace(**({"reshard": None} if has_fsdp else {}))
    model: Any = SimpleNamespace(modules=lambda: [module], parameters=lambda: [parameter])
    assert shares_batches(model, num_processes) is is_shared
