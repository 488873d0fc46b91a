"""Adapters of peft, read without it, against what peft itself merges."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from tests.conftest import sizes_of
from tests.refusals import check_refusals, check_refused, refusal_of
from toolkit.models.checkpoints import find_checkpoint
from toolkit.models.regimes import locate_embeddings
from toolkit.snapshots.adapters import AdaptedTensors
from toolkit.snapshots.backbones import open_backbones
from toolkit.snapshots.importers import Imported, import_checkpoints

peft = pytest.importorskip("peft", reason="the extra 'peft' is not installed")
WORDS = {"bert": "word_embeddings", "llama": "embed_tokens", "gpt2": "wte"}
QUERY = {"bert": "query", "llama": "q_proj", "gpt2": "c_attn"}


def build(model_type: str, **changes: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **sizes_of(model_type, vocab_size=50, **changes))
    return (AutoModel if model_type == "bert" else AutoModelForCausalLM).from_config(config).eval()


def tune(adapted: torch.nn.Module) -> torch.nn.Module:
    """Random values in place of whatever an adapter trains."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    return adapted


def save(model: torch.nn.Module, config: Any, folder: Path, *, tuned: bool = True, **options: Any) -> torch.nn.Module:
    """BASE and ADAPTER in a folder; the adapted model."""
    model.save_pretrained(folder / "base")
    adapted = peft.get_peft_model(model, config)
    if tuned:
        tune(adapted)
    adapted.save_pretrained(folder / "adapter", **options)
    return adapted


def pair(folder: Path) -> Imported:
    return import_checkpoints([folder / "base", folder / "adapter"])


def merge(model_type: str, folder: Path) -> dict[str, np.ndarray]:
    """The oracle: the embedding parameters of what peft loads from the two folders, and merges."""
    kind = AutoModel if model_type == "bert" else AutoModelForCausalLM
    adapted = peft.PeftModel.from_pretrained(kind.from_pretrained(folder / "base"), folder / "adapter")
    return locate_embeddings(adapted.merge_and_unload()).values()


def said(imported: Imported) -> str:
    """What the adapter trains, from the one note that says so."""
    (note,) = [note for note in imported.notes if note.startswith("adapter is an adapter (")]
    return note.partition(" on top of base: ")[2]


def lora(model_type: str, *modules: str, **options: Any) -> Any:
    return peft.LoraConfig(r=4, lora_alpha=6, target_modules=[QUERY[model_type], *modules], **options)


WAYS: dict[str, Callable[[str], tuple[Any, str]]] = {
    "attention": lambda kind: (lora(kind), "the adapter trains no embedding parameter"),
    "LoRA": lambda kind: (lora(kind, WORDS[kind]), "LoRA of rank 4 on word_embeddings"),
    "rslora": lambda kind: (lora(kind, WORDS[kind], use_rslora=True), "LoRA of rank 4 on word_embeddings"),
    "patterns": lambda kind: (
        lora(kind, WORDS[kind], rank_pattern={WORDS[kind]: 2}, alpha_pattern={f"^.*{WORDS[kind]}": 5}),
        "LoRA of rank 2 on word_embeddings",
    ),
    "DoRA": lambda kind: (lora(kind, WORDS[kind], use_dora=True), "DoRA of rank 4 on word_embeddings"),
    "modules_to_save": lambda kind: (
        lora(kind, modules_to_save=[WORDS[kind]]),
        "the whole of word_embeddings (modules_to_save)",
    ),
    "trainable_token_indices": lambda kind: (
        lora(kind, trainable_token_indices={WORDS[kind]: [7, 3, 5]}),
        "3 rows of word_embeddings (trainable_token_indices)",
    ),
    "input rows": lambda kind: (
        lora(kind, trainable_token_indices=[9]),
        "1 row of word_embeddings (trainable_token_indices)",
    ),
    "TrainableTokens": lambda kind: (
        peft.TrainableTokensConfig(target_modules=[WORDS[kind]], token_indices=[1, 49]),
        "2 rows of word_embeddings (trainable_token_indices)",
    ),
    "IA3": lambda kind: (
        peft.IA3Config(target_modules=[QUERY[kind]], feedforward_modules=[]),
        "the adapter trains no embedding parameter",
    ),
}


@pytest.mark.parametrize("model_type", WORDS)
@pytest.mark.parametrize("way", WAYS)
def test_an_adapter_is_read_as_peft_merges_it(way: str, model_type: str, tmp_path: Path) -> None:
    """And said is what it trains, which unslothai/unsloth#769 and #9326 could not tell: maybe no embedding at all."""
    config, expected = WAYS[way](model_type)
    save(build(model_type, tie_word_embeddings=False), config, tmp_path)
    imported = pair(tmp_path)
    before, after = imported.trajectory
    assert said(imported) == expected
    wanted = merge(model_type, tmp_path)
    assert list(after.tensors) == list(wanted)
    for name, tensor in wanted.items():
        np.testing.assert_allclose(after.tensors[name], tensor, rtol=1e-5, atol=1e-6)
        is_trained = name == "word_embeddings" and "word_embeddings" in expected
        assert (after.tensors[name] != before.tensors[name]).any() == is_trained


@pytest.mark.parametrize("way", ["LoRA", "DoRA", "trainable_token_indices", "modules_to_save"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_adapter_in_half_precision_is_read_as_peft_merges_it(dtype: torch.dtype, way: str, tmp_path: Path) -> None:
    save(build("bert"), WAYS[way]("bert")[0], tmp_path)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    halved = {name: torch.from_numpy(tensor).to(dtype) for name, tensor in load_file(file).items()}
    safetensors.torch.save_file(halved, file)
    _, after = pair(tmp_path).trajectory
    for name, tensor in merge("bert", tmp_path).items():
        np.testing.assert_allclose(after.tensors[name], tensor, rtol=1e-5, atol=1e-6)


TIED: dict[str, Callable[[str], Any]] = {
    "attention": lambda kind: lora(kind),
    "LoRA of the output layer": lambda kind: lora(kind, "lm_head"),
    "LoRA of the words": lambda kind: lora(kind, WORDS[kind]),
    "LoRA of both": lambda kind: lora(kind, WORDS[kind], "lm_head"),
    "words": lambda kind: lora(kind, modules_to_save=[WORDS[kind]]),
    "the output layer": lambda kind: lora(kind, modules_to_save=["lm_head"]),
    "both": lambda kind: lora(kind, modules_to_save=[WORDS[kind], "lm_head"]),
    "rows": lambda kind: lora(kind, trainable_token_indices=[7, 8]),
}


def changes_when_merged(adapted: Any, ids: torch.Tensor, folder: Path) -> bool:
    """Whether the model says something else once the adapter is merged, saved and read again."""
    with torch.no_grad():
        before = adapted(input_ids=ids).logits
        adapted.merge_and_unload().save_pretrained(folder / "merged")
        after = AutoModelForCausalLM.from_pretrained(folder / "merged")(input_ids=ids).logits
    return not torch.allclose(before, after, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
@pytest.mark.parametrize("way", TIED)
def test_a_merge_that_would_change_the_model_is_foretold(way: str, model_type: str, tmp_path: Path) -> None:
    """huggingface/peft#2018 (LoRA of the output layer of a tied model is merged into its words), #2972 (of both) and
    huggingface/transformers#45127; the oracle merges, saves, and reads what that gives."""
    adapted = save(build(model_type, tie_word_embeddings=True), TIED[way](model_type), tmp_path)
    words = import_checkpoints([tmp_path / "base", tmp_path / "adapter"])
    is_changed = changes_when_merged(adapted, torch.arange(7, 17)[None], tmp_path)
    assert ("untie them before" in said(words)) == is_changed == way.startswith("LoRA")


@pytest.mark.parametrize("way", TIED)
def test_a_tied_vocabulary_that_grew_beside_an_adapter(way: str, tmp_path: Path) -> None:
    """huggingface/transformers#45127: words are added, both tables are trained, and what is merged is read again."""
    model = build("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path / "base")
    model.resize_token_embeddings(53)
    adapted = tune(peft.get_peft_model(model, TIED[way]("llama")))
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    for folder, num in (("base", 50), ("adapter", 53)):
        (tmp_path / folder / "vocab.txt").write_text("\n".join(f"word{i}" for i in range(num)))
    words = said(pair(tmp_path))
    assert ("untie them before" in words) == changes_when_merged(adapted, torch.arange(44, 53)[None], tmp_path)


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    save(build("bert"), WAYS["LoRA"]("bert")[0], tmp_path)
    check_refusals(
        ("is an adapter, not a model: merge it", lambda: find_checkpoint(str(tmp_path / "adapter")).read_config())
    )


@pytest.mark.parametrize("way", ["LoRA", "DoRA", "trainable_token_indices", "modules_to_save"])
def test_before_its_first_step_an_adapter_changes_nothing(way: str, tmp_path: Path) -> None:
    save(build("bert"), WAYS[way]("bert")[0], tmp_path, tuned=False)
    before, after = pair(tmp_path).trajectory
    for name, tensor in before.tensors.items():
        if way == "DoRA":  # whose norms are torch's, in another order of summation
            np.testing.assert_allclose(after.tensors[name], tensor, rtol=1e-6)
        else:
            np.testing.assert_array_equal(after.tensors[name], tensor)


@pytest.mark.parametrize("model_type", WORDS)
def test_the_drift_of_lora_has_its_rank_in_every_block_of_rows(model_type: str, tmp_path: Path) -> None:
    model = AutoModel.from_config(AutoConfig.for_model(model_type, **sizes_of(model_type, vocab_size=2500)))
    save(model, lora(model_type, WORDS[model_type]), tmp_path)
    before, after = (np.array(s.tensors["word_embeddings"]) for s in pair(tmp_path).trajectory)
    singular = np.linalg.svd((after - before).astype(np.float64), compute_uv=False)
    assert (singular[:4] > 1).all()
    assert (singular[4:] < 1e-4).all()
    merged = AutoModel.from_pretrained(tmp_path / "base")
    merged = peft.PeftModel.from_pretrained(merged, tmp_path / "adapter").merge_and_unload()
    np.testing.assert_allclose(
        after, locate_embeddings(merged).parameters["word_embeddings"].detach().numpy(), rtol=1e-5, atol=1e-6
    )


def test_importing_computes_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 256,000 rows of 4,096 it would be 4 GB; the tables that the adapter leaves alone stay mapped."""
    save(build("bert"), lora("bert", "word_embeddings"), tmp_path)

    def compute(*_: object) -> np.ndarray:
        raise AssertionError("computed")

    monkeypatch.setattr(AdaptedTensors, "_adapted", compute)
    after = pair(tmp_path).trajectory.snapshots[1].tensors
    assert isinstance(after["position_embeddings"], np.memmap)
    with pytest.raises(AssertionError, match="computed"):
        _ = after["word_embeddings"]


BESIDE = {
    "all tables": (
        lora("bert", modules_to_save=["word_embeddings", "position_embeddings", "token_type_embeddings"]),
        "the whole of word_embeddings, position_embeddings, token_type_embeddings (modules_to_save)",
    ),
    "LoRA of positions and LayerNorm saved": (
        lora("bert", "position_embeddings", modules_to_save=["embeddings.LayerNorm"]),
        "LoRA of rank 4 on position_embeddings; the whole of LayerNorm.weight, LayerNorm.bias (modules_to_save)",
    ),
    "LN tuning": (
        peft.LNTuningConfig(target_modules=["LayerNorm"]),
        "the whole of LayerNorm.weight, LayerNorm.bias (LN tuning)",
    ),
    "biases": (lora("bert", bias="all"), "the whole of LayerNorm.bias (bias)"),
}


@pytest.mark.parametrize("case", BESIDE)
def test_other_parameters_than_words(case: str, tmp_path: Path) -> None:
    config, expected = BESIDE[case]
    save(build("bert"), config, tmp_path)
    imported = pair(tmp_path)
    assert said(imported) == expected
    before, after = imported.trajectory
    for name, tensor in merge("bert", tmp_path).items():
        np.testing.assert_allclose(after.tensors[name], tensor, rtol=1e-5, atol=1e-6)
        assert (after.tensors[name] != before.tensors[name]).any() == (name in expected)


@pytest.mark.parametrize("model_type", ["bert", "llama"])
@pytest.mark.parametrize("way", ["attention", "LoRA", "trainable_token_indices", "modules_to_save"])
def test_a_vocabulary_that_was_resized(way: str, model_type: str, tmp_path: Path) -> None:
    """Three words more than the base: rows are matched by their tokens."""
    model = build(model_type, tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "base")
    model.resize_token_embeddings(53)
    adapted = tune(peft.get_peft_model(model, WAYS[way](model_type)[0]))
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    (tmp_path / "base" / "vocab.txt").write_text("\n".join(f"word{i}" for i in range(50)))
    check_refusals((r"put its tokenizer\.json or vocab\.txt beside its weights", lambda: pair(tmp_path)))
    (tmp_path / "adapter" / "vocab.txt").write_text("\n".join(f"word{i}" for i in range(53)))
    imported = pair(tmp_path)
    assert "word rows are compared by token: 50 in common" in " ".join(imported.notes)
    merged = locate_embeddings(adapted.merge_and_unload()).parameters["word_embeddings"]
    np.testing.assert_allclose(
        imported.trajectory.snapshots[1].tensors["word_embeddings"], merged[:50].detach().numpy(), rtol=1e-5, atol=1e-6
    )


def test_the_checkpoints_of_a_trainer_are_read_in_their_order(tmp_path: Path) -> None:
    model = build("bert")
    model.save_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(model, lora("bert", "word_embeddings"))
    for step in (9, 10):
        tune(adapted).save_pretrained(tmp_path / "out" / f"checkpoint-{step}")
    adapted.save_pretrained(tmp_path / "out")
    imported = import_checkpoints([tmp_path / "base", tmp_path / "out"])
    assert [snapshot.step for snapshot in imported.trajectory] == [0, 9, 10]
    assert "out: its checkpoint-* folders are compared, not the weights beside them" in " ".join(imported.notes)
    alone = import_checkpoints([tmp_path / "base", tmp_path / "out" / "adapter_model.safetensors"])
    first, last = imported.trajectory.snapshots[2], alone.trajectory.snapshots[1]
    np.testing.assert_array_equal(first.tensors["word_embeddings"], last.tensors["word_embeddings"])


def test_a_table_in_half_precision_under_an_adapter_in_fp32(tmp_path: Path) -> None:
    adapted = save(build("bert").to(torch.bfloat16), lora("bert", "word_embeddings"), tmp_path)
    imported = pair(tmp_path)
    delta = adapted.base_model.model.embeddings.word_embeddings.get_delta_weight("default").detach().numpy()
    before, after = (snapshot.tensors["word_embeddings"] for snapshot in imported.trajectory)
    np.testing.assert_allclose(after - before, delta, rtol=1e-4, atol=1e-6)
    assert imported.dtypes["word_embeddings"] == ("bfloat16", "float32")


def test_an_adapter_needs_its_base_first(tmp_path: Path) -> None:
    build("bert").save_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(AutoModel.from_pretrained(tmp_path / "base"), lora("bert"))
    adapted.save_pretrained(tmp_path / "adapter")
    line = f"adapter is an adapter, which changes its base ({tmp_path / 'base'}): pass the base first, then the adapter"
    assert (refusal_of(tmp_path / "adapter"), refusal_of(tmp_path / "adapter", tmp_path / "base")) == (line, line)
    check_refused(
        "adapter is an adapter, not a model: merge it", open_backbones, tmp_path / "base", tmp_path / "adapter"
    )


def test_a_wrapper_within_a_wrapper_is_refused(tmp_path: Path) -> None:
    """Of BERT's ``embeddings`` peft trains inner copies that no pass uses, saves these, and cannot load them."""
    adapted = save(build("bert"), lora("bert", modules_to_save=["embeddings"]), tmp_path)
    with suppress(TypeError):  # peft 0.18 fails in the pass
        adapted(input_ids=torch.tensor([[7, 8]])).last_hidden_state.pow(3).sum().backward()
    words = {name: p for name, p in adapted.named_parameters() if "word_embeddings" in name and p.requires_grad}
    assert [p.grad for p in words.values()] == [None]
    with pytest.raises(KeyError):
        merge("bert", tmp_path)
    line = refusal_of(tmp_path / "base", tmp_path / "adapter")
    assert "names embeddings.word_embeddings and embeddings around it: peft trains a copy of the inner one" in line


DAMAGE: dict[str, tuple[Callable[[dict[str, np.ndarray], dict[str, Any]], object], str]] = {
    "another base": (lambda t, s: t.update(A=np.ones((4, 60), np.float32)), "pass the base that it was trained on"),
    "half of LoRA": (lambda t, s: t.pop("B"), "together: merge it"),
    "NaN": (lambda t, s: t["A"].fill(np.nan), "holds NaN or infinity (200 of 200 values)"),
    "no alpha": (lambda t, s: s.pop("lora_alpha"), "gives no lora_alpha for embeddings.word_embeddings"),
    "a broken pattern": (lambda t, s: s.update(alpha_pattern={"(": 1}), "gives no lora_alpha"),
    "LoftQ": (lambda t, s: s.update(init_lora_weights="loftq"), "LoftQ"),
    "another method": (lambda t, s: s.update(peft_type="NEW"), "together: merge it"),
    "an unknown tensor": (lambda t, s: t.update({"A_new": t["A"]}), "a way to adapt a table that is not read here"),
    "rows and LoRA": (lambda t, s: t.update({"rows": np.ones((1, 16), np.float32)}), "A, B, rows together"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_what_is_damaged_or_unknown_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    save(build("bert"), lora("bert", "word_embeddings"), tmp_path)
    file, place = tmp_path / "adapter" / "adapter_model.safetensors", "base_model.model.embeddings.word_embeddings."
    names = {"A": "lora_embedding_A", "B": "lora_embedding_B", "rows": "token_adapter.trainable_tokens_delta"}
    tensors = load_file(file)
    short = {key: np.array(tensors[place + name]) for key, name in names.items() if place + name in tensors}
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    damage, line = DAMAGE[case]
    damage(short, settings)
    save_file({place + names.get(key, key): tensor for key, tensor in short.items()}, file)
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    assert line in refusal_of(tmp_path / "base", tmp_path / "adapter")


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([3, 50], "trains row 50"),
        ([3], "has the shape (2, 16), not (1, 16)"),
        ([3, -1], "does not list"),
        (None, "list"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: object, line: str, tmp_path: Path) -> None:
    save(build("bert"), peft.TrainableTokensConfig(target_modules=["word_embeddings"], token_indices=[3, 4]), tmp_path)
    path = tmp_path / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"token_indices": rows}))
    assert line in refusal_of(tmp_path / "base", tmp_path / "adapter")
    path.unlink()
    assert "without its adapter_config.json" in refusal_of(tmp_path / "base", tmp_path / "adapter")
