"""Whole folders, read as the library that wrote them reads them, and what of a comparison was left out."""

import json
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from tests.conftest import build_tokenizer, sizes_of
from tests.questions.pages import page_of
from tests.refusals import check_refusals, refusal_of
from toolkit import measure_changes, measure_drift
from toolkit.analysis.added_rows import has_added
from toolkit.models.checkpoints import find_checkpoint
from toolkit.models.regimes import locate_embeddings
from toolkit.questions.drift_report import show_drift
from toolkit.reporting.render_markdown import render_markdown
from toolkit.snapshots.backbones import hash_weights, open_backbones, open_place
from toolkit.snapshots.files import WidenedRows, read_header, sha256_of_array
from toolkit.snapshots.importers import find_places, import_checkpoints
from toolkit.snapshots.run_writer import start_run
from toolkit.snapshots.weights import INDEX, SINGLE

WORDS = "embeddings.word_embeddings.weight"
SHARD = {"max_shard_size": "4KB"}
PT = {"format": "pt"}
Tensors = dict[str, np.ndarray]
TEXTS = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[unused1]", "the", "film", "was", "good", "bad")


def bert(seed: int = 0, kind: Any = AutoModelForSequenceClassification, **changes: Any) -> Any:
    torch.manual_seed(seed)
    return kind.from_config(AutoConfig.for_model("bert", **sizes_of("bert", **{"vocab_size": 10} | changes))).eval()


def tensors_of(model: Any) -> Tensors:
    return {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}


def loaded(folder: Path) -> Tensors:
    """The oracle: what transformers makes of a folder."""
    return tensors_of(AutoModel.from_pretrained(folder, dtype=torch.float32))


def encoder_of(folder: Path) -> Tensors:
    """The oracle: what sentence-transformers makes of one."""
    from sentence_transformers import SentenceTransformer

    return tensors_of(SentenceTransformer(str(folder), device="cpu")[0].auto_model)


def sharded(folder: Path) -> Tensors:
    bert().save_pretrained(folder, **SHARD)
    return loaded(folder)


def single_beside_shards(folder: Path) -> Tensors:
    """Somebody merged or tuned the shards into one file and left them there."""
    bert().save_pretrained(folder, **SHARD)
    changed = bert(1).state_dict()
    save_file({name: tensor.numpy() for name, tensor in changed.items()}, folder / "model.safetensors", PT)
    return loaded(folder)


def index_without_shards(folder: Path) -> Tensors:
    """``save_pretrained`` removes the shards of an earlier save, and not their index."""
    bert().save_pretrained(folder, **SHARD)
    bert(1).save_pretrained(folder)
    assert (folder / "model.safetensors.index.json").exists()
    return loaded(folder)


def shards_beside_their_index(*, is_listed: bool) -> Callable[[Path], Tensors]:
    """Another word table in the last shard too, which the loader takes: of an index only which shards there are."""

    def build(folder: Path) -> Tensors:
        sharded(folder)
        places = json.loads((folder / INDEX).read_text())["weight_map"]
        last = folder / max(places.values())
        save_file(load_file(last) | {f"bert.{WORDS}": np.ones((10, 16), np.float32)}, last, PT)
        kept = {name: shard for name, shard in places.items() if is_listed or "word_embeddings" not in name}
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": kept}))
        return loaded(folder)

    return build


def damaged_index(folder: Path) -> Tensors:
    bert().save_pretrained(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    return loaded(folder)


def of_type(dtype: torch.dtype) -> Callable[[Path], Tensors]:
    def build(folder: Path) -> Tensors:
        bert().to(dtype).save_pretrained(folder)
        return loaded(folder)

    return build


def prefixed(prefix: str) -> Callable[[Path], Tensors]:
    """What a wrapper's state_dict holds, which from_pretrained would not find: the model itself is the oracle."""

    def build(folder: Path) -> Tensors:
        model = bert(kind=AutoModel)
        model.save_pretrained(folder)
        save_file({prefix + name: t for name, t in tensors_of(model).items()}, folder / "model.safetensors")
        return tensors_of(model)

    return build


def sentence_transformer(folder: Path, inside: str = "", decoy: bool = False) -> Tensors:
    """As sentence-transformers saves one, or (``inside``) as it did; ``decoy``: other weights lie beside that."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

    plain = folder.with_name("plain")
    bert(kind=AutoModel).save_pretrained(plain)
    build_tokenizer().save_pretrained(plain)
    SentenceTransformer(modules=[Transformer(str(plain)), Pooling(16, "mean"), Dense(16, 8)], device="cpu").save(
        str(folder)
    )
    modules = json.loads((folder / "modules.json").read_text())
    if inside:
        (folder / inside).mkdir()
        for path in [path for path in folder.iterdir() if path.is_file() and "modules" not in path.name]:
            shutil.move(path, folder / inside / path.name)
        modules[0]["path"] = inside
        (folder / "modules.json").write_text(json.dumps(modules))
    if decoy:
        bert(1, AutoModel).save_pretrained(folder)
    return encoder_of(folder)


FOLDERS: dict[str, Callable[[Path], Tensors]] = {
    "single": of_type(torch.float32),
    "sharded": sharded,
    "single beside shards": single_beside_shards,
    "index without shards": index_without_shards,
    "damaged index": damaged_index,
    "in two shards": shards_beside_their_index(is_listed=True),
    "in a shard, and listed nowhere": shards_beside_their_index(is_listed=False),
    "fp16": of_type(torch.float16),
    "bf16": of_type(torch.bfloat16),
    **{prefix: prefixed(prefix) for prefix in ("module.", "_orig_mod.", "bert.", "module._orig_mod.bert.")},
    "sentence-transformers": sentence_transformer,
    "0_Transformer": lambda folder: sentence_transformer(folder, "0_Transformer"),
    "weights beside 0_Transformer": lambda folder: sentence_transformer(folder, "0_Transformer", decoy=True),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_every_tensor_is_the_one_that_the_library_loads(case: str, tmp_path: Path) -> None:
    """By all doors: every parameter of the backbone, the embedding parameters, and what a run keeps the hash of."""
    folder = tmp_path / "after"
    expected = FOLDERS[case](folder)
    found = open_backbones(folder, folder).after
    assert found.parameters.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found.values(name).astype(np.float32), tensor, strict=True)
    imported = import_checkpoints([folder])
    np.testing.assert_array_equal(np.asarray(imported.trajectory.at(0).tensors["word_embeddings"]), expected[WORDS])
    files = [path for path in folder.glob("model*.safetensors*") if path.name != "model.safetensors"]
    known = hash_weights(folder)
    for notes in (imported.notes, open_backbones(folder, folder).notes):
        said = [note for note in notes if note.startswith("after: model.safetensors is read, as its library does, and")]
        assert bool(said) == (case == "single beside shards")
    if (folder / "model.safetensors").exists():  # what is passed over is no part of what the weights are
        for path in files:
            path.unlink()
        assert hash_weights(folder) == known


def test_of_a_sentence_transformer_whose_encoder_is_a_pickle_no_other_module_is_opened(tmp_path: Path) -> None:
    sentence_transformer(tmp_path / "st", "0_Transformer")
    (tmp_path / "st" / "0_Transformer" / "model.safetensors").rename(tmp_path / "st/0_Transformer/pytorch_model.bin")
    assert "holds weights only as a pickle (pytorch_model.bin)" in refusal_of(tmp_path / "st")


@pytest.mark.parametrize("name", [WORDS, "encoder.layer.0.attention.self.query.weight"])
@pytest.mark.parametrize(("dtype", "shown"), [("int8", "I8"), ("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2")])
def test_numbers_that_need_a_scale_are_refused_by_every_door(name: str, dtype: str, shown: str, tmp_path: Path) -> None:
    """transformers takes them as they are: a model of other weights."""
    bert(kind=AutoModel).save_pretrained(tmp_path)
    tensors = load_tensors(tmp_path / SINGLE)
    tensors[name] = tensors[name].to(getattr(torch, dtype))
    save_tensors(tensors, tmp_path / SINGLE, PT)
    source, said = find_checkpoint(str(tmp_path)), f"as {shown}, .*: dequantise it and save it as float32 or"
    doors = [partial(open_backbones, tmp_path, tmp_path), lambda: source.read_backbone(source.read_config(), {})]
    doors += [partial(import_checkpoints, [tmp_path])] if name == WORDS else []
    check_refusals(*((said, door) for door in doors))


# Git LFS.

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 5\n"


@pytest.mark.parametrize(
    "file",
    ["model.safetensors", "config.json", "tokenizer.json", "vocab.txt", "trainer_state.json", "tokenizer_config.json"],
)
def test_a_git_lfs_pointer_is_named_whatever_it_stands_for(file: str, tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path / "x")
    build_tokenizer().save_pretrained(tmp_path / "x") if file.startswith("token") else None
    (tmp_path / "x" / file).write_text(LFS)
    said = f"{file} is a Git LFS pointer, not the file that it stands for: git lfs pull"
    assert refusal_of(tmp_path / "x").endswith(said)
    if not file.startswith("trainer"):
        check_refusals((said, lambda: find_checkpoint(str(tmp_path / "x"))))


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json", "a-shard.safetensors"])
def test_a_git_lfs_pointer_of_an_adapter_and_of_a_shard(file: str, tmp_path: Path) -> None:
    save_adapter(bert(kind=AutoModel), tmp_path)
    if file.startswith("a-shard"):
        (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
        index = {"weight_map": {WORDS: file}}
        (tmp_path / "adapter" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "adapter" / file).write_text(LFS)
    assert refusal_of(tmp_path / "base", tmp_path / "adapter").endswith(
        f"{file} is a Git LFS pointer, not the file that it stands for: git lfs pull"
    )


# The order of steps.


def stepped(folder: Path, step: int, named: bool) -> Path:
    """A checkpoint whose folder, or whose trainer_state.json, tells its step; its words are all of that number."""
    place = folder / (f"checkpoint-{step}" if named else f"after-{'abcdefghijklmnop'[-step]}")
    bert(kind=AutoModel).save_pretrained(place)
    tensors = load_file(place / "model.safetensors")
    save_file(tensors | {WORDS: np.full_like(tensors[WORDS], step)}, place / "model.safetensors")
    if not named:
        (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return place


@pytest.mark.parametrize("named", [True, False], ids=["checkpoint-N", "trainer_state.json"])
def test_checkpoints_in_the_order_of_a_shell_are_said_to_be(
    named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {step: stepped(tmp_path / "out", step, named) for step in (4, 8, 12)}
    by_name, names = sorted(made.values()), [path.name for path in made.values()]
    assert by_name != list(made.values())
    given, right = ", ".join(path.name for path in by_name), ", ".join(names)
    said = f"not in the order of their steps: {given}; by their steps it is {right}"
    imported = import_checkpoints(by_name)
    assert imported.problems == (said,) == imported.notes[:1]
    show_drift([str(path) for path in by_name])
    assert (" ".join(capsys.readouterr().out.split()).count(f"N{said[1:]}."), page_of(by_name).answers[0].text) == (
        1,
        f"N{said[1:]}.",
    )
    two = f"not in the order of their steps: {names[2]}, {names[0]}; by their steps it is {names[0]}, {names[2]}"
    assert two in open_backbones(made[12], made[4]).notes
    base = stepped(tmp_path / "elsewhere", 16, named)
    for places in ([base, *made.values()], [made[4], made[12]], [made[4], made[4]], [base, made[4]]):
        assert not import_checkpoints(places).problems


# Renamed rows, and what is called identical.


def named(folder: Path, texts: tuple[str, ...], **rows: float) -> Path:
    """A BERT whose rows have these texts; ``row_N`` adds to a row."""
    bert(kind=AutoModel, vocab_size=12).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[WORDS] = tensors[WORDS][: len(texts)]
    for row, value in rows.items():
        tensors[WORDS][int(row.removeprefix("row_"))] += value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "vocab.txt").write_text("\n".join(texts) + "\n")
    return folder


@pytest.mark.parametrize(
    ("row", "new"),
    [(4, "covid"), (6, "<extra_id_3>"), (8, "gut"), (3, "<unk>")],
    ids=["[unused1]", "<extra_id>", "a foreign word", "a special token"],
)
def test_a_renamed_row_is_compared_with_what_it_was(row: int, new: str, tmp_path: Path) -> None:
    """numpy is the oracle, of the whole table, row by row."""
    before = named(tmp_path / "before", TEXTS)
    after = named(
        tmp_path / "after", tuple(new if i == row else text for i, text in enumerate(TEXTS)), **{f"row_{row}": 1}
    )
    imported = import_checkpoints([before, after])
    old, new_table = (load_file(folder / "model.safetensors")[WORDS].astype(np.float64) for folder in (before, after))
    drift = measure_drift(imported, ("relative",))
    (whole,) = drift[
        (drift["parameter"] == "word_embeddings")
        & (drift["stratum"] == "whole parameter")
        & (drift["statistic"] == "value")
        & (drift["epoch"] == 1)
    ]["value"]
    np.testing.assert_allclose(whole, np.linalg.norm(new_table - old) / np.linalg.norm(old), rtol=1e-12)
    text = f"{TEXTS[row]} → {new}"
    assert imported.trajectory.vocabulary.tokens[row] == text
    share = np.linalg.norm(new_table[row] - old[row]) / np.linalg.norm(old[row])
    assert f"renamed: {text} (moved by {share:.3g} of its length)" in imported.notes
    said = "word rows are compared by their number, 1 of them renamed: 10 in common; rows left out: 0 of before, 0 of"
    assert f"{said} after" in imported.notes
    assert not imported.trajectory.in_part
    line = measure_changes(imported).iloc[0]
    assert (line["kind"], line["num_moved"], line["num_rows"]) == ("one row", 1, 10)
    # A stratum of added rows would have their neighbours searched in the whole table, which then is held in memory.
    assert not has_added(imported.trajectory)


def test_words_that_changed_places_are_matched_by_their_text_beside_renamed_ones(tmp_path: Path) -> None:
    swapped = list(TEXTS)
    swapped[7], swapped[8], swapped[4] = TEXTS[8], TEXTS[7], "covid"
    before, after = named(tmp_path / "before", TEXTS), named(tmp_path / "after", tuple(swapped))
    imported = import_checkpoints([before, after])
    old, new = (load_file(folder / "model.safetensors")[WORDS] for folder in (before, after))
    first, last = (snapshot.tensors["word_embeddings"] for snapshot in imported.trajectory)
    np.testing.assert_array_equal(first, old)
    np.testing.assert_array_equal(last, new[[0, 1, 2, 3, 4, 5, 6, 8, 7, 9]])
    of_others = tuple(f"word{i}" for i in range(6)) + TEXTS[6:]
    aside = import_checkpoints([before, named(tmp_path / "others", of_others)])  # most rows have another text
    assert aside.trajectory.in_part == {"word_embeddings": (4, 10)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_matched_rows_are_read_where_they_are_asked_for(dtype: torch.dtype, tmp_path: Path) -> None:
    """Of 256,000 rows of 4,096 a copy in fp32 would be 4 GB; torch is the oracle."""
    for folder, texts in (("a", TEXTS), ("b", TEXTS[::-1])):
        model = bert(kind=AutoModel).to(dtype)
        model.save_pretrained(tmp_path / folder)
        (tmp_path / folder / "vocab.txt").write_text("\n".join(texts) + "\n")
    first, last = import_checkpoints([tmp_path / "a", tmp_path / "b"]).trajectory
    whole = model.get_input_embeddings().weight.detach().float().numpy()
    for table, expected in ((first, whole), (last, whole[::-1])):
        table = table.tensors["word_embeddings"]
        assert isinstance(table[2:7], np.memmap if expected is whole and dtype == torch.float32 else WidenedRows)
        for rows in (slice(None), slice(2, 7), slice(9, None), np.array([5, 3, 5]), 7):
            np.testing.assert_array_equal(np.asarray(table[rows]), expected[rows], strict=True)
        np.testing.assert_array_equal(np.asarray(table[2:7][1:3]), expected[3:5])
        assert ((table.shape, table.size, len(table), table.ndim), sha256_of_array(table)) == (
            (expected.shape, expected.size, len(expected), 2),
            sha256_of_array(np.ascontiguousarray(expected)),
        )
    with pytest.raises(TypeError):
        _ = last.tensors["word_embeddings"] == whole


def without_segments(folder: Path) -> Path:
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t for n, t in tensors.items() if "token_type" not in n}, folder / "model.safetensors")
    return folder


def run_with_half_an_epoch(folder: Path) -> list[Path]:
    writer = start_run(folder, is_recorded=True)
    writer.write_recorded_config({})
    for i, epoch in enumerate((0, 0.5, 1)):
        writer.write_snapshot(epoch, i, {"word_embeddings": np.ones((3, 2), np.float32)}, is_epoch_end=epoch != 0.5)
    writer.finish({})
    return [folder, folder / "snapshots" / "epoch-001.safetensors"]


def weights_beside(folder: Path) -> list[Path]:
    for place in (folder / "checkpoint-1", folder / "checkpoint-2", folder):
        named(place, TEXTS)
    return [folder]


PARTS: dict[str, tuple[Callable[[Path], list[Path]], str]] = {
    "rows": (
        lambda at: [named(at / "a", TEXTS), named(at / "b", (*TEXTS[:9], "new", "words"))],
        "9 of 11 rows of word_embeddings",
    ),
    "a parameter": (
        lambda at: [named(at / "a", TEXTS), without_segments(named(at / "b", TEXTS))],
        "0 of 2 rows of token_type_embeddings",
    ),
    "snapshots": (lambda at: run_with_half_an_epoch(at / "run"), "3 of 4 snapshots"),
    "weights beside": (lambda at: weights_beside(at / "out"), "2 of 3 snapshots"),
}


@pytest.mark.parametrize("case", PARTS)
def test_identical_is_said_only_where_all_that_was_asked_for_was_compared(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, part = PARTS[case]
    places = make(tmp_path)
    kinds = dict(measure_changes(import_checkpoints(places))[["parameter", "kind"]].to_numpy())
    is_parameter = case == "a parameter"
    assert ("not compared" in kinds.values(), kinds["word_embeddings"] == "identical in what could be compared") == (
        is_parameter,
        not is_parameter,
    )
    assert ("identical" in kinds.values()) == (case in ("rows", "a parameter"))  # of what is whole, still
    show_drift([str(place) for place in places])
    page = page_of(places)
    assert f"Identical in what could be compared: {part}." in [answer.text for answer in page.answers]
    tiles = " ".join(f"{tile.value}: {tile.detail}" for tile in page.tiles)
    told = "not compared: some checkpoints lack it" if is_parameter else f"compared: {part}"
    assert told in tiles
    assert told.partition(":")[0] in " ".join(capsys.readouterr().out.split())
    assert "No embedding parameter moved" not in render_markdown(page)


def test_what_moved_is_said_of_the_rows_that_were_compared(tmp_path: Path) -> None:
    places = [named(tmp_path / "a", TEXTS), named(tmp_path / "b", (*TEXTS, "new"), row_5=1)]
    line = measure_changes(import_checkpoints(places)).iloc[0]
    assert line["kind"] == "one row"
    assert "; compared: 10 of 11 rows of word_embeddings" in line["detail"]


# Adapters.


def save_adapter(model: Any, folder: Path, *modules: str, **options: Any) -> Any:
    """BASE and a LoRA in a folder."""
    peft = pytest.importorskip("peft", reason="the extra 'peft' is not installed")
    model.save_pretrained(folder / "base")
    adapted = peft.get_peft_model(
        type(model).from_pretrained(folder / "base"),
        peft.LoraConfig(r=2, target_modules=[*modules] or ["query"], **options),
    )
    with torch.no_grad():
        for parameter in adapted.parameters():
            parameter.add_(parameter.requires_grad)
    adapted.save_pretrained(folder / "adapter")
    return adapted


OTHERS: dict[str, tuple[str, dict[str, Any], tuple[str, ...], str]] = {
    "another architecture": ("distilbert", {}, ("q_lin",), "attention.q_lin, which base has not"),
    "more layers": (
        "bert",
        {"num_hidden_layers": 4},
        ("query",),
        "encoder.layer.3.attention.self.query, which base has",
    ),
    "another table": ("llama", {}, ("embed_tokens",), "embed_tokens, which base has not"),
    "another width": ("bert", {"hidden_size": 32}, ("query",), "layer.0.attention.self.query of base is (16, 16)"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_an_adapter_of_another_base_is_refused_as_peft_refuses_it(case: str, tmp_path: Path) -> None:
    """peft is the oracle: it raises, but for layers that the base lacks, which it leaves out without a word."""
    peft = pytest.importorskip("peft", reason="the extra 'peft' is not installed")
    model_type, sizes, modules, line = OTHERS[case]
    other = AutoModel.from_config(AutoConfig.for_model(model_type, **sizes_of(model_type, vocab_size=10) | sizes))
    save_adapter(other, tmp_path, *modules)
    shutil.rmtree(tmp_path / "base")
    bert(kind=AutoModel).save_pretrained(tmp_path / "base")
    said = refusal_of(tmp_path / "base", tmp_path / "adapter")
    assert line in said
    assert said.endswith("pass the base that it was trained on")
    ends = pytest.raises((ValueError, RuntimeError)) if case != "more layers" else nullcontext()
    with ends:
        peft.PeftModel.from_pretrained(AutoModel.from_pretrained(tmp_path / "base"), tmp_path / "adapter")


@pytest.mark.parametrize("max_shard_size", ["4KB", "1GB"])
def test_a_base_is_held_against_an_adapter_under_any_class_and_name(max_shard_size: str, tmp_path: Path) -> None:
    """The adapter of a classifier, its head among what it saves, on the backbone alone; then the base is renamed."""
    save_adapter(bert(), tmp_path, "query", "dense", "word_embeddings", modules_to_save=["classifier"])
    shutil.rmtree(tmp_path / "base")
    bert(kind=AutoModel).save_pretrained(tmp_path / "base", max_shard_size=max_shard_size)
    assert not any(
        "says that its base is" in note for note in import_checkpoints([tmp_path / "base", tmp_path / "adapter"]).notes
    )
    (tmp_path / "base").rename(tmp_path / "renamed")
    said = "adapter, read on top of renamed, says that its base is base: it may not be the same model"
    assert said in import_checkpoints([tmp_path / "renamed", tmp_path / "adapter"]).notes


HOSTILE = {
    "lora_alpha": 10**400,
    "lora_alpha ": "1e400",
    "alpha_pattern": [1],
    "alpha_pattern ": {"(([a-z_]+\\.?)+)+!": 4},
    "alpha_pattern  ": {"(\\w|\\w\\w|.)*!": 4},
    "alpha_pattern   ": {".*" * 5000 + "!" * 5000: 4},
    "modules_to_save": 5,
    "modules_to_save ": True,
}


@pytest.mark.parametrize("field", HOSTILE)
def test_a_hostile_adapter_config_is_one_line_at_once(field: str, tmp_path: Path) -> None:
    save_adapter(bert(kind=AutoModel), tmp_path, "word_embeddings")
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field.strip(): HOSTILE[field]}))
    start = time.process_time()
    assert "adapter_config.json" in refusal_of(tmp_path / "base", tmp_path / "adapter")
    assert time.process_time() - start < 5


@pytest.mark.parametrize("row", [2**63, 2**64, -(2**70), True])
def test_hostile_rows_are_one_line(row: int, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="the extra 'peft' is not installed")
    bert(kind=AutoModel).save_pretrained(tmp_path / "base")
    config = peft.TrainableTokensConfig(target_modules=["word_embeddings"], token_indices=[3])
    peft.get_peft_model(bert(kind=AutoModel), config).save_pretrained(tmp_path / "adapter")
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"token_indices": [row]}))
    assert "does not list the trained rows" in refusal_of(tmp_path / "base", tmp_path / "adapter")


@pytest.mark.parametrize(
    "key",
    [
        "word_embeddings",
        "embeddings.word_embeddings",
        "^embeddings.word_embeddings",
        "^word_embeddings",
        "embeddings",
        r"embeddings\.word_.*",
        "word.embeddings",
        ".*",
    ],
)
def test_a_key_of_alpha_pattern_means_the_modules_that_peft_takes_it_for(key: str, tmp_path: Path) -> None:
    save_adapter(bert(kind=AutoModel), tmp_path, "word_embeddings", alpha_pattern={key: 5}, lora_alpha=3)
    peft = pytest.importorskip("peft", reason="the extra 'peft' is not installed")
    merged = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    expected = locate_embeddings(merged.merge_and_unload()).values()["word_embeddings"]
    after = import_checkpoints([tmp_path / "base", tmp_path / "adapter"]).trajectory.snapshots[1]
    np.testing.assert_allclose(after.tensors["word_embeddings"], expected, rtol=1e-5, atol=1e-6)


def test_a_hostile_config_is_one_line(tmp_path: Path) -> None:
    bert(kind=AutoModel).save_pretrained(tmp_path / "x")
    path = tmp_path / "x" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layer_norm_eps": 10**400}))
    assert "is not as its library writes it" in refusal_of(tmp_path / "x")


# Tokenizers.


def test_a_row_that_only_the_config_calls_padding_pads(tmp_path: Path) -> None:
    """A tokenizer.json alone, as of some ModernBERTs, with the padding under a name of its own."""
    from toolkit.models.classifier import load_classifier

    tokenizer = build_tokenizer()
    AutoModel.from_config(
        AutoConfig.for_model("modernbert", **sizes_of("modernbert", vocab_size=len(tokenizer)))
    ).save_pretrained(tmp_path / "x")
    (tmp_path / "x" / "tokenizer.json").write_text(tokenizer.backend_tokenizer.to_str().replace('"[PAD]"', '"<blank>"'))
    found = find_checkpoint(str(tmp_path / "x")).read_tokenizer()
    assert (
        (found.pad_token, found.pad_token_id),
        load_classifier(str(tmp_path / "x"), pooling="mean", num_outputs=2).tokenizer.pad_token_id,
        import_checkpoints([tmp_path / "x"]).trajectory.vocabulary.pad_row,
    ) == (("<blank>", 0), 0, 0)


def test_what_a_sentencepiece_model_alone_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    AutoModel.from_config(AutoConfig.for_model("albert", **sizes_of("albert"))).save_pretrained(tmp_path / "x")
    (tmp_path / "x" / "spiece.model").write_bytes(b"\x0a\x0e")
    for package in ("sentencepiece", "protobuf"):
        monkeypatch.setattr(f"transformers.utils.is_{package}_available", lambda: False)
    said = "is a sentencepiece model: pip install sentencepiece protobuf$"
    check_refusals((said, lambda: find_checkpoint(str(tmp_path / "x")).read_tokenizer()))


def test_parameters_stand_in_the_order_of_their_file(tiny_model: Callable[[str], Path]) -> None:
    (place,) = find_places(tiny_model("bert"))
    found = list(open_place(place, "a").tensors)
    stored = [name for name in read_header(tiny_model("bert") / SINGLE)[1] if name in found]
    embeddings = [name for name in found if name.startswith("embeddings.")]
    assert (found[: len(embeddings)], found[len(embeddings) :]) == (
        embeddings,
        [name for name in stored if name not in embeddings],
    )


def test_weights_that_are_passed_over_are_said(tmp_path: Path) -> None:
    """A stray file beside the model, and a second adapter, which peft keeps below the first: read is what they read."""
    base, tuned = tmp_path / "base", tmp_path / "adapter"
    adapted = save_adapter(bert(kind=AutoModel), tmp_path, "word_embeddings")
    adapted.add_adapter("second", adapted.peft_config["default"])
    adapted.save_pretrained(tuned)
    shutil.copy(base / SINGLE, base / "model_1.safetensors")
    notes = import_checkpoints([base, tuned]).notes
    said = [
        "base: model.safetensors is read, as its library does, and model_1.safetensors is not",
        "adapter: adapter_model.safetensors is read, as its library does, and second/adapter_model.safetensors is not",
    ]
    assert [note for note in notes if "is read, as" in note] == said
    assert said[0] in open_backbones(base, base).notes


@pytest.mark.parametrize("call", [import_checkpoints, lambda places: find_checkpoint(*places)])
def test_no_hub_is_asked_for_a_file(call: Callable[[list[str]], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.snapshots.importers.is_hub_reachable", lambda: pytest.fail("the hub is asked"))
    check_refusals(("no (file or )?folder at 'own/gone.safetensors'", lambda: call(["own/gone.safetensors"])))
