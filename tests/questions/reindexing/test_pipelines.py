"""A sentence-transformers folder is searched by the vectors that its own library makes, or it is refused."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.refusals import refused
from toolkit.questions.reindexing import measure as probe
from toolkit.questions.reindexing.command import ReindexCommand
from toolkit.questions.reindexing.measure import AS_IS, KEEP, measure_reindexing

K = 3
Build = Callable[..., str]


@pytest.fixture(scope="module")
def build(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A function: what the modules are, the encoder's seed and how far each number moved since to a saved folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Transformer
    from transformers import AutoConfig, AutoModel

    def make(kinds: Any, *, moved: float = 0, seed: int = 0, length: int = 48, **options: Any) -> str:
        own = tmp_path_factory.mktemp("made")
        shutil.copytree(tiny_model("bert"), own / "encoder")
        torch.manual_seed(1)
        AutoModel.from_config(AutoConfig.from_pretrained(own / "encoder")).save_pretrained(own / "encoder")
        torch.manual_seed(seed)
        first = Transformer(str(own / "encoder"), max_seq_length=length)
        model = SentenceTransformer(modules=kinds(first), device="cpu", **options)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += moved * parameter.std(correction=0) * torch.randn_like(parameter)
        model.save(str(own / "saved"))
        return str(own / "saved")

    return make


@pytest.fixture(scope="module")
def texts(tiny_files: Callable[[str], dict[str, Any]]) -> list[str]:
    """Of 20 to 40 tokens, no two with the same beginning."""
    lines = Path(tiny_files("polarity")["train_file"]).read_text().splitlines()[1:]
    once = list(dict.fromkeys(line.split("\t")[0] for line in lines))
    return [" ".join((once[i], once[(i + 1) % len(once)], once[(i + 5) % len(once)])) for i in range(len(once))]


def modules(*names: str, **settings: Any) -> Any:
    """What makes these modules after an encoder: a pooling by its modes, a Dense of 16 to 8, others by their name."""
    from sentence_transformers import models

    def make(first: Any) -> list[Any]:
        ways = {
            "Dense": lambda: models.Dense(16, 8),
            "LayerNorm": lambda: scaled(models.LayerNorm(16)),
            "Normalize": models.Normalize,
            "Dropout": models.Dropout,
            "CNN": lambda: models.CNN(16, 4),
            "LSTM": lambda: models.LSTM(16, 8),
            "mean of 32": lambda: models.Pooling(16, "mean"),
        }
        return [first, *(ways[n]() if n in ways else models.Pooling(16, tuple(n.split("+"))) for n in names)]

    return make


def scaled(layer: Any) -> Any:
    """A LayerNorm whose numbers are not those that it begins with."""
    torch.nn.init.normal_(layer.norm.weight)
    torch.nn.init.normal_(layer.norm.bias)
    return layer


def routed(first: Any) -> list[Any]:
    from sentence_transformers import models

    return [models.Router({"query": [models.Dense(16, 8)], "document": [first, models.Pooling(16, "cls")]}, "document")]


def static(first: Any) -> list[Any]:
    from sentence_transformers.models import StaticEmbedding

    return [StaticEmbedding(first.tokenizer, embedding_dim=16)]


PROMPTS = {"prompts": {"passage": "the film was bad : ", "query": "is it ?"}, "default_prompt_name": "passage"}
FOLDERS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "first token": (modules("cls"), {}, "Transformer > Pooling (cls), of 48 tokens at most"),
    "mean": (modules("mean"), {}, "Transformer > Pooling (mean), of 48 tokens at most"),
    "max": (modules("max"), {}, "Transformer > Pooling (max), of 48 tokens at most"),
    "three poolings": (modules("cls+mean+max"), {}, "Transformer > Pooling (cls + mean + max), of 48 tokens at most"),
    "dense": (modules("mean", "Dense"), {}, "Transformer > Pooling (mean) > Dense, of 48 tokens at most"),
    "prompts": (
        modules("mean", "Normalize"),
        PROMPTS,
        "Transformer > Pooling (mean) > Normalize, of 48 tokens at most, after the prompt 'the film was bad : ', "
        "without the prompts query, which its encode() does not add",
    ),
    "layer norm": (modules("mean", "LayerNorm"), {}, "Transformer > Pooling (mean) > LayerNorm, of 48 tokens at most"),
    "16 tokens": (modules("cls"), {"length": 16}, "Transformer > Pooling (cls), of 16 tokens at most"),
    "8 numbers": (
        modules("mean"),
        {"truncate_dim": 8, "similarity_fn_name": "dot"},
        "Transformer > Pooling (mean), of 48 tokens at most, cut to 8 numbers, by cosine, where the folder asks for dot",
    ),
    "layers between": (modules("CNN", "LSTM", "Dropout", "mean"), {}, "Transformer > CNN > LSTM > Dropout > Pooling"),
    "router": (routed, {}, "Router, of 48 tokens at most"),
    "no encoder": (static, {}, "StaticEmbedding"),
}


def own_recall(before: str, after: str, stored: list[str], asked: list[str]) -> float:
    """By encode() and numpy alone."""
    from sentence_transformers import SentenceTransformer

    models = [SentenceTransformer(name, device="cpu") for name in (before, after)]
    old, new, searched = (
        model.encode(own).astype(float)
        for model, own in zip((*models, models[1]), (stored, stored, asked), strict=True)
    )
    found = []
    for rows in (new, old):
        cosines = searched @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T
        found.append(np.argsort(-cosines, axis=1, kind="stable")[:, :K])
    return float(np.mean([len(set(one) & set(other)) / K for one, other in zip(*found, strict=True)]))


@pytest.mark.parametrize("name", FOLDERS)
def test_recall_is_that_of_the_librarys_own_vectors(name: str, build: Build, texts: list[str]) -> None:
    kinds, options, said = FOLDERS[name]
    folders = [build(kinds, moved=moved, **options) for moved in (0, 0.5)]
    stored, asked = texts[:-12], texts[-12:]
    tables = measure_reindexing(*folders, stored, queries=asked, k=K, num_null=2)
    (verdict,) = tables["verdict"].to_dict("records")
    assert (verdict["num_texts"], verdict["num_queries"]) == (len(stored), len(asked))
    found = tables["recall"].set_index("measure").loc[AS_IS, "value"]
    assert found == pytest.approx(own_recall(*folders, stored, asked), abs=1e-12)
    assert 0.2 < found < 0.9
    assert verdict["pooling"].startswith(said)
