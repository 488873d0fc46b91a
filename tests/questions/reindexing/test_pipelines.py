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

from tests.refusals import check_refused, refused
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

    def make(
        kinds: Any, *, moved: float = 0, seed: int = 0, length: int = 48, do_lower_case: bool = False, **options: Any
    ) -> str:
        own = tmp_path_factory.mktemp("made")
        shutil.copytree(tiny_model("bert"), own / "encoder")
        torch.manual_seed(1)
        wide = AutoConfig.from_pretrained(own / "encoder", initializer_range=0.2)  # texts lie apart
        AutoModel.from_config(wide).save_pretrained(own / "encoder")
        torch.manual_seed(seed)
        model = SentenceTransformer(
            modules=kinds(Transformer(str(own / "encoder"), max_seq_length=length)), device="cpu", **options
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += moved * parameter.std(correction=0) * torch.randn_like(parameter)
        model.save(str(own / "saved"))
        edited("sentence_bert_config.json", do_lower_case=do_lower_case)(own / "saved")
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
            "CNN": lambda: models.CNN(16, 16, [3]),
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


def of_words(first: Any) -> list[Any]:
    from sentence_transformers import models
    from sentence_transformers.models.tokenizer import WhitespaceTokenizer

    words = sorted(first.tokenizer.get_vocab())
    rows = np.random.default_rng(0).normal(size=(len(words), 16))
    tokenizer = WhitespaceTokenizer(words, do_lower_case=True)
    weights = models.WordWeights(words, {word: 1 + i % 3 for i, word in enumerate(words)})
    return [models.WordEmbeddings(tokenizer, rows), weights, models.LSTM(16, 8), models.Pooling(16, "mean")]


def of_layers(first: Any) -> list[Any]:
    from sentence_transformers import models

    first.model.config.output_hidden_states = True
    return [first, models.WeightedLayerPooling(16, 3, 1), models.Pooling(16, "mean")]


def counted(first: Any) -> list[Any]:
    from sentence_transformers import models

    words = sorted(word for word in first.tokenizer.get_vocab() if word.isalpha())
    return [models.BoW(words), models.Dense(len(words), 16)]


PROMPTS = {"prompts": {"passage": "the film was bad : ", "query": "is it ?"}, "default_prompt_name": "passage"}
FOLDERS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "first token": (modules("cls"), {}, "Transformer, Pooling (cls), of 48 tokens at most"),
    "mean": (modules("mean"), {}, "Transformer, Pooling (mean), of 48 tokens at most"),
    "max": (modules("max"), {}, "Transformer, Pooling (max), of 48 tokens at most"),
    "three poolings": (modules("cls+mean+max"), {}, "Transformer, Pooling (cls + mean + max), of 48 tokens at most"),
    "dense": (modules("mean", "Dense"), {}, "Transformer, Pooling (mean), Dense, of 48 tokens at most"),
    "prompts": (
        modules("mean", "Normalize"),
        PROMPTS,
        "Transformer, Pooling (mean), Normalize, of 48 tokens at most, after the prompt 'the film was bad : ', "
        "without the prompts query, which its encode() does not add",
    ),
    "layer norm": (modules("mean", "LayerNorm"), {}, "Transformer, Pooling (mean), LayerNorm, of 48 tokens at most"),
    "16 tokens": (modules("cls"), {"length": 16}, "Transformer, Pooling (cls), of 16 tokens at most"),
    "lower case": (modules("cls"), {"do_lower_case": True}, "Transformer, Pooling (cls), of 48 tokens at most"),
    "8 numbers": (
        modules("mean"),
        {"truncate_dim": 8, "similarity_fn_name": "dot"},
        "Transformer, Pooling (mean), of 48 tokens at most, cut to 8 numbers, by cosine, where the folder asks for dot",
    ),
    "convolution": (
        modules("CNN", "mean", "Dropout"),
        {},
        "Transformer, CNN, Pooling (mean), Dropout, of 48 tokens",
    ),
    "words": (of_words, {}, "WordEmbeddings, WordWeights, LSTM, Pooling (mean)"),
    "layers": (of_layers, {}, "Transformer, WeightedLayerPooling, Pooling (mean), of 48 tokens at most"),
    "counts": (counted, {}, "BoW, Dense"),
    "router": (routed, {}, "Router, by the route 'document' of encode(), queries too, of 48 tokens at most"),
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
    folders = [build(kinds, moved=moved, **options) for moved in (0, 0.1)]
    stored, asked = texts[:-12], texts[-12:]
    tables = measure_reindexing(*folders, stored, queries=asked, k=K, num_null=2)
    (verdict,) = tables["verdict"].to_dict("records")
    assert (verdict["num_texts"], verdict["num_queries"]) == (len(stored), len(asked))
    found = tables["recall"].set_index("measure").loc[AS_IS, "value"]
    assert found == pytest.approx(own_recall(*folders, stored, asked), abs=1e-12)
    assert 0.1 < found < 0.9
    assert verdict["pooling"].startswith(said)


def test_models_that_differ_in_their_dense_layer_alone_do_not_keep_the_index(build: Build, texts: list[str]) -> None:
    """The encoders are the same bit for bit: the index looked whole, and its recall is chance."""
    tables = measure_reindexing(*(build(modules("mean", "Dense"), seed=seed) for seed in (1, 2)), texts, k=K)
    line = tables["recall"].set_index("measure").loc[AS_IS]
    assert line["null_low"] <= line["value"] <= line["null_high"]
    assert tables["verdict"]["advice"].tolist() != [KEEP]


def test_texts_that_are_alike_once_cut_are_counted_once(build: Build, texts: list[str]) -> None:
    folder = build(modules("mean"), length=16)
    tables = measure_reindexing(folder, folder, [*texts, f"{texts[0]} the end"], k=K, num_null=2)
    (verdict,) = tables["verdict"].to_dict("records")
    assert verdict["num_texts"] + verdict["num_queries"] == len(texts)
    assert verdict["advice"] == KEEP


def test_the_command_says_how_vectors_were_made(
    build: Build, tiny_files: Callable[[str], dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = [build(modules(*names)) for names in (("cls", "Normalize"), ("max",))]
    file = Path(tiny_files("polarity")["train_file"])
    assert ReindexCommand(before=said[0], after=said[1], texts=file, k=K, out=tmp_path / "report").run() == 0
    for text in (" ".join(capsys.readouterr().out.split()), (tmp_path / "report" / "report.md").read_text()):
        assert "A vector: Transformer, Pooling (cls), Normalize, of 48 tokens at most (before) and Transformer" in text


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)


def vectors_both_ways(folder: str, texts: list[str], request: pytest.FixtureRequest) -> tuple[list[Any], list[str]]:
    """Of the texts by the library and without it, and how they are said to be made."""
    vectors, words = [], []
    for fixture in ("tmp_path", "without_library"):
        request.getfixturevalue(fixture)
        read, said, _ = probe.open_reader(folder, None)
        vectors.append(read([(text,) for text in texts]).vectors(np.arange(len(texts))))
        words.append(said)
    return vectors, words


@pytest.mark.parametrize("length", [16, 48])
@pytest.mark.parametrize("pooling", ["cls", "mean", "lasttoken"])
def test_without_the_library_its_plain_folders_are_read_the_same(
    pooling: str, length: int, build: Build, texts: list[str], request: pytest.FixtureRequest
) -> None:
    vectors, said = vectors_both_ways(build(modules(pooling, "Normalize"), length=length), texts, request)
    np.testing.assert_allclose(*(probe._unit_rows("", own) for own in vectors), atol=1e-6)
    assert said[0] == said[1]


def test_the_embedded_model_is_read_as_its_library_reads_it(texts: list[str], request: pytest.FixtureRequest) -> None:
    long = [" ".join(texts[i : i + 12]) for i in range(3)]
    vectors, said = vectors_both_ways("minilm", [*texts[:3], *long], request)
    np.testing.assert_allclose(*(probe._unit_rows("", own) for own in vectors), atol=1e-5)
    assert said == ["Transformer, Pooling (mean), Normalize, of 256 tokens at most"] * 2


def older(folder: Path) -> None:
    """As version 2 of the library wrote it: other names of the fields, the encoder in a folder of its own."""
    listed = json.loads((folder / "modules.json").read_text())
    shutil.copytree(folder, inner := folder / "0_Transformer", ignore=shutil.ignore_patterns("0_*", "1_*", "modules*"))
    names = ("Transformer", "Pooling")
    listed = [own | {"type": f"sentence_transformers.models.{name}"} for own, name in zip(listed, names, strict=True)]
    listed[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(listed))
    for path in (folder / "config.json", folder / "model.safetensors", folder / "tokenizer.json"):
        path.unlink()
    fields = {"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(fields))
    (inner / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": false}')


def test_a_folder_of_an_older_library_is_read_too(
    build: Build, texts: list[str], request: pytest.FixtureRequest
) -> None:
    folder = build(modules("cls"), length=48)
    older(Path(folder))
    vectors, said = vectors_both_ways(folder, texts, request)
    np.testing.assert_allclose(*vectors, atol=1e-5)
    assert said == ["Transformer, Pooling (cls), of 16 tokens at most"] * 2


@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        (modules("mean", "Dense"), {}),
        (modules("mean", "LayerNorm"), {}),
        (modules("max"), {}),
        (modules("cls+mean"), {}),
        (modules("mean"), PROMPTS),
        (modules("mean"), {"do_lower_case": True}),
        (modules("mean"), {"truncate_dim": 8}),
        (routed, {}),
    ],
)
def test_without_the_library_other_folders_are_refused(
    kinds: Any, options: Any, build: Build, texts: list[str], request: pytest.FixtureRequest
) -> None:
    folder = build(kinds, **options)
    request.getfixturevalue("without_library")
    with refused(r"\(.*\) are not rebuilt here: pip install sentence-transformers"):
        measure_reindexing(folder, folder, texts, k=K)


def edited(path: str, **fields: Any) -> Callable[[Path], None]:
    """What changes fields of a file of the folder."""

    def edit(folder: Path) -> None:
        if (folder / path).is_file():
            (folder / path).write_text(json.dumps(json.loads((folder / path).read_text()) | fields))

    return edit


def pickled(path: str) -> Callable[[Path], None]:
    """What puts a pickle in the place of a module's weights."""
    return lambda folder: (folder / path / "model.safetensors").rename(folder / path / "pytorch_model.bin") and None


def foreign(folder: Path, kind: str = "own.Pooling", path: str = "1_Pooling") -> None:
    """A module that is a class of a file in the folder, or lies elsewhere."""
    (folder / "own.py").write_text("raise SystemExit('it ran')")
    listed = json.loads((folder / "modules.json").read_text())
    listed[1] |= {"type": kind, "path": path}
    (folder / "modules.json").write_text(json.dumps(listed))


def without_a_layer(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    held = {name: own for name, own in load_file(folder / "model.safetensors").items() if "layer.1." not in name}
    save_file(held, folder / "model.safetensors", {"format": "pt"})


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "own code": (foreign, "asks for own.Pooling, which is no part of sentence-transformers: it is never run"),
    "own activation": (
        edited("2_Dense/config.json", activation_function="own.Tanh"),
        "asks for own.Tanh, which is no part of sentence-transformers",
    ),
    "a pickled Dense": (pickled("2_Dense"), r"weights only as a pickle \(2_Dense/pytorch_model.bin\)"),
    "a pickled encoder": (pickled("."), r"weights only as a pickle \(pytorch_model.bin\)"),
    "an index of pickles": (
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "0_Own/a.bin"}}'),
        r"weights only as a pickle \(0_Own/a.bin\)",
    ),
    "a config that names a pickle": (
        edited("config.json", transformers_weights="own.json"),
        r"weights only as a pickle \(own.json\)",
    ),
    "an adapter": (
        lambda folder: (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}'),
        "holds an adapter: ",
    ),
    "an encoder of its own": (edited("config.json", auto_map={"AutoModel": "own.M"}), "asks for own.M, which is no"),
    "half an encoder": (without_a_layer, "lacks tensors that its config asks for: encoder.layer.1"),
    "words, not a vector": (
        edited("config_sentence_transformers.json", model_type="SparseEncoder"),
        "is a SparseEncoder, which gives no one vector of a text",
    ),
    "a length that is a text": (
        edited("sentence_bert_config.json", max_seq_length="x"),
        "is not as sentence-transformers writes it",
    ),
    "no list": (
        lambda folder: (folder / "modules.json").write_text("[1]"),
        "does not list modules",
    ),
    "a module elsewhere": (
        lambda folder: foreign(folder, "sentence_transformers.models.Pooling", "../1_Pooling"),
        "does not list modules, each with its type and a path below it",
    ),
    "other weights": (
        lambda folder: shutil.copy(folder / "model.safetensors", folder / "2_Dense"),
        "cannot be read by sentence-transformers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("is_installed", [True, False])
def test_what_would_be_other_vectors_or_run_code_is_refused(
    name: str, is_installed: bool, build: Build, texts: list[str], request: pytest.FixtureRequest
) -> None:
    folder = build(modules("mean", "Dense"))
    plant, said = REFUSED[name]
    plant(Path(folder))
    if not is_installed:
        request.getfixturevalue("without_library")
        said = said if name not in ("other weights", "half an encoder") else "pip install sentence-transformers"
    check_refused(said, measure_reindexing, folder, folder, texts, k=K)


def test_texts_of_which_a_model_knows_no_word_are_refused(build: Build, texts: list[str]) -> None:
    folder = build(lambda first: counted(first)[:1])
    with refused("BEFORE gives 2 of 66 texts a vector of 0 or NaN, with no cosine: leave them out"):
        measure_reindexing(folder, build(modules("mean")), [*texts, "#", "##"], queries=texts[:9], k=K)


def test_a_folder_of_the_hub_is_read_whole_too(
    build: Build, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the cache, while offline; the working folder holds a list of modules of something else."""
    commit, cached = "a" * 40, tmp_path / "cache" / "models--me--made"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(commit)
    shutil.copytree(folder := build(modules("mean", "Dense")), cached / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "modules.json").write_text("[1]")
    readings = [probe.open_reader(name, None) for name in ("me/made", folder)]
    assert np.array_equal(*[read([(text,) for text in texts]).vectors(np.arange(9)) for read, *_ in readings])
    check_refused("cannot read the config of 'me/other'", probe.open_reader, "me/other", None)


def test_pairs_are_refused(build: Build, tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("a,b\n" + "the book,was good\n" * 9)
    with refused("makes a vector of one text: pass one text column"):
        measure_reindexing(*[build(modules("mean"))] * 2, tmp_path / "pairs.csv", text_columns=("a", "b"), k=K)


def test_a_pooling_that_is_asked_for_is_of_the_encoder_alone(build: Build, texts: list[str]) -> None:
    folder = build(modules("mean", "Dense"))
    with pytest.warns(UserWarning, match="its encoder alone is read, without Dense"):
        tables = measure_reindexing(folder, folder, texts, k=K, pooling="cls", num_null=2)
    assert tables["verdict"]["pooling"].tolist() == ["cls, of 48 tokens at most"]
