"""Checkpoints as others save them: read exactly, matched by name and token, or refused with one clear line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from tests.conftest import COMMON, DECODERS, ENCODERS, FAMILY_CONFIGS, OTHERS, SEQ2SEQ, sizes_of
from tests.refusals import check_refusals, check_refused, refusal_of
from tests.run_directories import MakeRun
from tests.snapshots.test_store import write_run
from toolkit.families import EMBEDDING_PARAMETERS, GAMMA_BETA, family_of
from toolkit.models.checkpoints import find_checkpoint
from toolkit.snapshots import importers as places_module
from toolkit.snapshots.importers import Imported, align_words, import_checkpoints
from toolkit.snapshots.run_writer import start_run
from toolkit.snapshots.snapshot import Vocabulary

BERT = family_of("bert").embedding_parameters
TOKENS = ("[PAD]", "[CLS]", "the", "film", "was", "good", "<b>", "ü")
SHAPES = {"word_embeddings": (8, 4), "position_embeddings": (6, 4), "token_type_embeddings": (2, 4)}


def tensors_of(seed: int = 0, prefix: str = "", **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """A BERT's five embedding parameters by their names in a file, and a layer."""
    rng = np.random.default_rng(seed)
    sizes = SHAPES | {"LayerNorm.weight": (4,), "LayerNorm.bias": (4,)} | shapes
    made = {prefix + BERT[name]: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    return made | {f"{prefix}encoder.layer.0.attention.self.query.weight": np.ones((4, 4), np.float32)}


def write(
    folder: Path, tensors: dict[str, np.ndarray], tokens: tuple[str, ...] | None = TOKENS, **config: object
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    if tokens is not None:
        (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return folder


def snapshot_of(*places: object) -> dict[str, np.ndarray]:
    return dict(import_checkpoints(places).trajectory.snapshots[0].tensors)


# What transformers saves.


@pytest.mark.parametrize("model_type", [*FAMILY_CONFIGS, *ENCODERS, *DECODERS])
def test_every_family_against_the_live_model(model_type: str, tiny_model: Callable[[str], Path]) -> None:
    """The oracle knows the model: what the loaded backbone holds, and read_vocabulary() of the loaded tokenizer."""
    from transformers import AutoTokenizer

    from toolkit.models.classifier import load_classifier
    from toolkit.models.regimes import locate_embeddings
    from toolkit.snapshots.snapshot import read_vocabulary

    folder = tiny_model(model_type)
    imported = import_checkpoints([folder])
    expected = locate_embeddings(AutoModel.from_pretrained(folder)).values()
    (snapshot,) = imported.trajectory.snapshots
    assert (list(snapshot.tensors), {type(tensor) for tensor in snapshot.tensors.values()}) == (
        [name for name in EMBEDDING_PARAMETERS if name in expected],
        {np.memmap},
    )
    np.testing.assert_equal(dict(snapshot.tensors), dict(expected))
    assert imported.trajectory.vocabulary == read_vocabulary(
        AutoTokenizer.from_pretrained(folder), len(expected["word_embeddings"])
    )
    loaded = load_classifier(str(folder), pooling="mean", num_outputs=2)
    assert (imported.trajectory.position_offset, (imported.families, snapshot.name)) == (
        loaded.position_offset,
        ((family_of(model_type).name,), folder.name),
    )


@pytest.mark.parametrize("model_type", [*FAMILY_CONFIGS, *ENCODERS, *DECODERS])
def test_heads_prefixes_shards_and_missing_configs(
    model_type: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    folder = tiny_model(model_type)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="10KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 2
    prefixed = {f"module.0.auto_model.{name}": t for name, t in load_file(folder / "model.safetensors").items()}
    save_file(prefixed, tmp_path / "prefixed.safetensors")
    model.save_pretrained(tmp_path / "bare")
    (tmp_path / "bare" / "config.json").unlink()
    expected = snapshot_of(folder)
    # Only the shards that hold embeddings are needed.
    index = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())["weight_map"]
    endings = tuple(family_of(model_type).embedding_parameters.values())
    needed = {shard for name, shard in index.items() if name.endswith(endings)}
    for name in set(index.values()) - needed:
        (tmp_path / "sharded" / name).unlink()
    for place in (tmp_path / "sharded", tmp_path / "prefixed.safetensors", tmp_path / "bare"):
        imported = import_checkpoints([folder, place])
        assert family_of(model_type).name in imported.families
        for snapshot in imported.trajectory:
            np.testing.assert_equal(dict(snapshot.tensors), expected)


def test_names_tell_families_apart_without_a_config(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    found = {}
    for model_type in [*FAMILY_CONFIGS, *OTHERS]:
        path = shutil.copy(tiny_model(model_type) / "model.safetensors", tmp_path / f"{model_type}.safetensors")
        found[model_type] = import_checkpoints([path]).families
    told_apart = ("distilbert", "albert", "deberta-v2", "modernbert", *OTHERS)
    expected = {model_type: (family_of(model_type).name,) for model_type in told_apart}
    assert found == found | expected | dict.fromkeys(("bert", "roberta"), ("BERT", "RoBERTa"))
    assert refusal_of(tmp_path / "bert.safetensors", tmp_path / "albert.safetensors") == (
        "bert is BERT or RoBERTa, albert is ALBERT: compare checkpoints of one architecture"
    )
    assert "position rows are counted from 0" in import_checkpoints([tmp_path / "bert.safetensors"]).notes[0]


def save_pair(model_type: str, folder: Path, **config: object) -> tuple[Path, Path]:
    """Two whole language models, of which one row differs: row 7 of the word table."""
    import transformers

    kind = transformers.AutoModelForSeq2SeqLM if model_type in SEQ2SEQ else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    model = kind.from_config(AutoConfig.for_model(model_type, **sizes_of(model_type, vocab_size=40) | config))
    model.save_pretrained(folder / "before")
    with torch.no_grad():
        model.get_input_embeddings().weight[7] *= 1.5
    model.save_pretrained(folder / "after")
    return folder / "before", folder / "after"


@pytest.mark.parametrize("model_type", [*DECODERS, *SEQ2SEQ])
def test_a_tied_output_layer_is_one_quantity_with_the_words(model_type: str, tmp_path: Path) -> None:
    before, after = save_pair(model_type, tmp_path, tie_word_embeddings=True)
    imported = import_checkpoints([before, after])
    assert changed_rows(imported) == [7]
    assert (
        "the output layer of before and after is tied to word_embeddings: they are one quantity, and any row may have "
        "moved as an output"
    ) in imported.notes
    AutoModel.from_pretrained(before).save_pretrained(tmp_path / "base")  # of which nothing is known
    assert not any("output layer" in note for note in import_checkpoints([tmp_path / "base"]).notes)


def changed_rows(imported: Imported) -> list[int]:
    old, new = (snapshot.tensors["word_embeddings"] for snapshot in imported.trajectory)
    return np.flatnonzero((old != new).any(axis=1)).tolist()


@pytest.mark.parametrize("model_type", DECODERS)
def test_an_output_layer_of_its_own_is_named(model_type: str, tmp_path: Path) -> None:
    before, after = save_pair(model_type, tmp_path, tie_word_embeddings=False)
    imported = import_checkpoints([before, after])
    assert changed_rows(imported) == [7]
    assert imported.trajectory.layer_norm_eps is None
    output = "embed_out.weight" if model_type == "gpt_neox" else "lm_head.weight"
    what = "is a table of its own and not among the embedding parameters: what of it moved is not told here"
    assert f"{output} of before and after {what}" in imported.notes
    AutoModel.from_pretrained(before).save_pretrained(tmp_path / "base")
    assert f"{output} of after {what}" in import_checkpoints([tmp_path / "base", after]).notes


def test_tables_of_different_width_have_no_gauge(tiny_model: Callable[[str], Path]) -> None:
    """MobileBERT projects the rows of three words before it adds the others."""
    from toolkit import measure_gauge

    imported = import_checkpoints([tiny_model("mobilebert")] * 2)
    assert {name: t.shape[-1] for name, t in imported.trajectory.snapshots[0].tensors.items()} == {
        name: 8 if name == "word_embeddings" else 16 for name in EMBEDDING_PARAMETERS
    }
    check_refusals(("not applicable: the tables differ in width", lambda: measure_gauge(imported.trajectory)))


@pytest.mark.parametrize("model_type", DECODERS)
def test_tables_that_a_config_ties_and_that_drifted_apart(model_type: str, tmp_path: Path) -> None:
    """The head alone was trained, in row 3 and in a fourth of the values of row 5; then the config says otherwise."""
    _, after = save_pair(model_type, tmp_path, tie_word_embeddings=False)
    tensors, path = load_file(after / "model.safetensors"), after / "model.safetensors"
    output = "embed_out.weight" if model_type == "gpt_neox" else "lm_head.weight"
    words = next(name for name in tensors if name.endswith(("embed_tokens.weight", "wte.weight", "embed_in.weight")))
    config = json.loads((after / "config.json").read_text())

    def notes(is_tied: bool, head: np.ndarray) -> str:
        (after / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": is_tied}))
        save_file(tensors | {output: head}, path)
        return "\n".join(import_checkpoints([after]).notes)

    equal, apart = np.array(tensors[words]), np.array(tensors[words])
    apart[3] += 1
    apart[5, :4] += 1
    assert f"{output} of after differs from word_embeddings in 2 rows, although" in notes(True, apart)
    assert "in 7 rows, although" in notes(True, np.concatenate([apart, apart[:5]]))
    assert "although" not in notes(False, apart) + notes(False, equal) + notes(True, equal)
    assert "is a table of its own" in notes(False, equal)
    assert "the output layer of after is tied to word_embeddings" in notes(True, equal)


def save_older(model_type: str, folder: Path) -> tuple[Path, Path]:
    """Two checkpoints; the first has masks of GPT-2 and GPT-NeoX, and T5's word table under each of its names."""
    beside = {
        "gpt2": {"transformer.h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32)},
        "gpt_neox": {
            "gpt_neox.layers.0.attention.bias": np.ones((1, 1, 4, 4), bool),
            "gpt_neox.layers.1.attention.rotary_emb.inv_freq": np.ones(4, np.float32),
        },
        "t5": {},
    }[model_type]
    before, after = save_pair(model_type, folder)
    tensors = load_file(before / "model.safetensors")
    if model_type == "t5":
        beside = {f"{side}.embed_tokens.weight": tensors["shared.weight"] for side in ("encoder", "decoder")}
    save_file(tensors | beside, before / "model.safetensors")
    return before, after


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_neox", "t5"])
def test_what_older_checkpoints_hold_beside_their_weights(model_type: str, tmp_path: Path) -> None:
    before, after = save_older(model_type, tmp_path)
    for place in (before, Path(shutil.copy(before / "model.safetensors", tmp_path / "alone.safetensors"))):
        imported = import_checkpoints([place, after])
        assert (imported.families, changed_rows(imported)) == ((family_of(model_type).name,), [7])


def test_trainer_folders(tmp_path: Path) -> None:
    base = write(tmp_path / "base", tensors_of())
    for step in (1000, 500, 90):
        write(tmp_path / "out" / f"checkpoint-{step}", tensors_of(step, "bert."), tokens=None)
    imported = import_checkpoints([base, tmp_path / "out"])
    expected = [("base", 0, 0), ("checkpoint-90", 1, 90), ("checkpoint-500", 2, 500), ("checkpoint-1000", 3, 1000)]
    assert [(s.name, s.epoch, s.step) for s in imported.trajectory] == expected
    assert imported.notes[0] == (
        "checkpoint-90 has no vocabulary file: taken to be that of base, which has as many word rows"
    )
    by_pattern = import_checkpoints([str(base), str(tmp_path / "out" / "checkpoint-*")])
    assert [s.name for s in by_pattern.trajectory] == [name for name, _, _ in expected]
    one = import_checkpoints([tmp_path / "out" / "checkpoint-500"]).trajectory.snapshots[0]
    assert (one.step, one.epoch) == (500, 0)
    write(tmp_path / "out", tensors_of(3))
    assert any("not the weights beside them" in note for note in import_checkpoints([tmp_path / "out"]).notes)
    shutil.copytree(base, tmp_path / "renamed")
    (tmp_path / "renamed" / "trainer_state.json").write_text('{"global_step": 77}')
    assert import_checkpoints([tmp_path / "renamed"]).trajectory.snapshots[0].step == 77


def test_a_sentence_transformers_folder_without_a_list_of_modules(tmp_path: Path) -> None:
    write(tmp_path / "st" / "0_Transformer", tensors_of())
    imported = import_checkpoints([tmp_path / "st"])
    assert (imported.trajectory.snapshots[0].name, imported.trajectory.vocabulary.tokens) == ("st", TOKENS)
    check_refused("no config.json: pass .*st/0_Transformer$", find_checkpoint(str(tmp_path / "st")).read_config)


@pytest.mark.parametrize("is_finished", [True, False], ids=["finished", "cut short"])
@pytest.mark.parametrize(
    ("epochs", "kept"),
    [
        ([0, 0.625], ["epoch-000", "step-00000005"]),  # max_steps
        ([0, 1, 1.5], ["epoch-000", "epoch-001", "step-00000010"]),  # num_train_epochs 1.5, or stopped early
        ([0, 0.5, 1, 1.25, 1.5], ["epoch-000", "epoch-001", "step-00000020"]),
        ([0, 0.4, 1.4, 2.2], ["epoch-000", "step-00000015"]),  # a stream, whose passes have no length
        ([1, 2, 2.5], ["epoch-001", "epoch-002", "step-00000010"]),  # which went on from a checkpoint
        ([0.5, 0.75, 1], ["step-00000000", "epoch-001"]),
        ([0, 1, 2], ["epoch-000", "epoch-001", "epoch-002"]),
    ],
)
def test_the_ends_of_a_run_are_among_its_states(
    epochs: list[float], kept: list[str], is_finished: bool, tmp_path: Path
) -> None:
    writer = start_run(tmp_path / "run", is_recorded=True)
    writer.write_recorded_config({})
    for i, epoch in enumerate(epochs):
        writer.write_snapshot(
            epoch, 5 * i, {"word_embeddings": np.full((3, 2), i, np.float32)}, is_epoch_end=float(epoch).is_integer()
        )
    writer.finish({}) if is_finished else writer.release()
    imported = import_checkpoints([tmp_path / "run"])
    assert [snapshot.name for snapshot in imported.trajectory] == [f"run/{name}" for name in kept]
    values = [snapshot.tensors["word_embeddings"][0, 0] for snapshot in imported.trajectory]
    assert [values[0], values[-1]] == [0, len(epochs) - 1]
    num_left_out = len(epochs) - len(kept)
    said = f"run: snapshots between two epochs are left out ({num_left_out}): the files of snapshots/ can be passed"
    assert (said in imported.notes) == (num_left_out > 0)


def test_our_own_runs_and_their_files(tmp_path: Path) -> None:
    write_run(tmp_path / "run", position_offset=2).finish({})
    imported = import_checkpoints([tmp_path / "run"])
    assert (
        [(s.name, s.step) for s in imported.trajectory],
        (imported.trajectory.position_offset, imported.trajectory.vocabulary.tokens[1]),
    ) == ([(f"run/epoch-00{i}", 10 * i) for i in range(4)], (2, "a"))
    again = import_checkpoints([tmp_path / "run" / "snapshots" / f"epoch-00{i}.safetensors" for i in (3, 1)])
    assert [s.name for s in again.trajectory] == ["run/epoch-003", "run/epoch-001"]
    said = (
        "not in the order of their steps: run/epoch-003, run/epoch-001; by their steps it is run/epoch-001, run/epoch-"
    )
    assert [problem.startswith(said) for problem in again.problems] == [True]
    np.testing.assert_array_equal(
        again.trajectory.at(0).tensors["word_embeddings"] + 1, again.trajectory.at(1).tensors["word_embeddings"]
    )
    # The tensor that its file does not hold is read from the one that does.
    assert "position_embeddings" in again.trajectory.at(0).tensors


def test_the_embedded_model_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = write(tmp_path / "somewhere", tensors_of())
    monkeypatch.setattr(places_module, "find_embedded", lambda name: folder if name == "minilm" else None)
    assert import_checkpoints(["minilm"]).trajectory.snapshots[0].name == "minilm"


# Names, prefixes, types.


@settings(max_examples=30, deadline=None)
@given(
    prefix=st.lists(st.sampled_from(["bert", "model", "0", "auto_model", "module", "embeddings"]), max_size=3),
    is_old=st.booleans(),
    lacks=st.sets(st.sampled_from(EMBEDDING_PARAMETERS[1:])),
)
def test_any_prefix_and_the_old_names(
    prefix: list[str], is_old: bool, lacks: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lead = "".join(f"{part}." for part in prefix)
    tensors = {name: t for name, t in tensors_of(1, lead).items() if name not in {lead + BERT[gone] for gone in lacks}}
    if is_old:
        for old, new in GAMMA_BETA.items():
            tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    # Endings that are no whole dotted part are other tensors.
    tensors[f"{lead}head.x{BERT['word_embeddings']}"] = np.ones((3, 4), np.float32)
    path = tmp_path_factory.mktemp("p") / "x.safetensors"
    save_file(tensors, path)
    kept = [name for name in EMBEDDING_PARAMETERS if name not in lacks]
    np.testing.assert_equal(snapshot_of(path), {name: tensors_of(1)[BERT[name]] for name in kept})


@pytest.mark.parametrize("model_type", ["bert", "roberta", "modernbert"])
def test_tied_weights_that_are_written_once_are_found_under_either_name(model_type: str, tmp_path: Path) -> None:
    """safetensors keeps the first name of the alphabet: RoBERTa's and ModernBERT's output layer, not the word table."""
    config = AutoConfig.for_model(model_type, **COMMON | {"vocab_size": 9} | FAMILY_CONFIGS[model_type])
    model = AutoModelForMaskedLM.from_config(config)
    safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    config.save_pretrained(tmp_path)
    np.testing.assert_array_equal(
        snapshot_of(tmp_path)["word_embeddings"], model.get_input_embeddings().weight.detach().numpy()
    )


@pytest.mark.parametrize("wrapper", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_what_wraps_a_module_is_not_part_of_a_name(wrapper: str, tmp_path: Path) -> None:
    """The embedding module or the word table compiled or wrapped alone, as such a model's state dict has them."""
    for place in ("embeddings.", "embeddings.word_embeddings."):
        tensors = {f"module.bert.{k.replace(place, f'{place}{wrapper}.')}": v for k, v in tensors_of(1).items()}
        found = snapshot_of(write(tmp_path / place.replace(".", "-"), tensors))
        assert list(found) == list(EMBEDDING_PARAMETERS)
        np.testing.assert_array_equal(found["word_embeddings"], tensors_of(1)[BERT["word_embeddings"]])
    both = tensors_of(0, "bert.") | tensors_of(1, f"bert.{wrapper}.")
    assert f"several prefixes: 'bert.', 'bert.{wrapper}.'" in refusal_of(write(tmp_path / "both", both))


@pytest.mark.parametrize("inside", ["base_layer.", "original_module.", "parametrizations.weight.original."])
@pytest.mark.parametrize("parameter", ["word_embeddings", "LayerNorm.bias"])
def test_a_parameter_that_an_adapter_wraps_is_not_taken_for_absent(parameter: str, inside: str, tmp_path: Path) -> None:
    module, _, leaf = BERT[parameter].rpartition(".")
    tensors = tensors_of(0, "base_model.model.bert.")
    wrapped = f"base_model.model.bert.{module}.{inside}{leaf}"
    tensors[wrapped] = tensors.pop(f"base_model.model.bert.{BERT[parameter]}")
    assert f"holds {parameter} as {wrapped}: merge the adapter" in refusal_of(write(tmp_path / "a", tensors))
    alone = {"base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight": np.ones((2, 4), np.float32)}
    assert "merge the adapter" in refusal_of(write(tmp_path / "b", alone))


def test_two_towers_are_refused_by_their_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "towers.safetensors"
    save_file(tensors_of(0, "query.bert.") | tensors_of(1, "passage.bert."), path)
    assert "several prefixes: 'passage.bert.', 'query.bert.'" in refusal_of(path)
    save_file(tensors_of() | {"embeddings.LayerNorm.gamma": np.ones(4, np.float32)}, path)
    assert "LayerNorm.weight twice" in refusal_of(path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types_are_converted_and_named(dtype: str, tmp_path: Path) -> None:
    """torch's own conversion is the oracle, subnormals and the largest values included."""
    import torch
    from safetensors.torch import save_file as save_torch

    wanted = getattr(torch, dtype)
    tensors = {name: torch.from_numpy(tensor).to(wanted) for name, tensor in tensors_of().items()}
    tensors[BERT["word_embeddings"]] = torch.tensor([[1e-40, -3e-6, 6e4, 0.0]] * 8, dtype=torch.float64).to(wanted)
    save_torch(tensors, tmp_path / "x.safetensors")
    imported = import_checkpoints([tmp_path / "x.safetensors"])
    assert imported.dtypes["LayerNorm.bias"] == (dtype,)
    for name, tensor in imported.trajectory.at(0).tensors.items():
        np.testing.assert_array_equal(tensor, tensors[BERT[name]].to(torch.float32).numpy(), strict=True)
    said = "no drift is no verdict" if dtype != "float64" else "after rounding to float32"
    assert any(said in note for note in imported.notes)


# Vocabularies.


def trained_tokenizers() -> dict[str, object]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    texts = ["the film was good", "the nurse saw the dog", "good dogs see films"]
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made = {}
    for name, model, trainer in (
        ("bpe", models.BPE(unk_token="<unk>"), trainers.BpeTrainer(vocab_size=60, special_tokens=special)),
        (
            "wordpiece",
            models.WordPiece(unk_token="<unk>"),
            trainers.WordPieceTrainer(vocab_size=60, special_tokens=special),
        ),
        (
            "unigram",
            models.Unigram(),
            trainers.UnigramTrainer(vocab_size=40, special_tokens=special, unk_token="<unk>", show_progress=False),
        ),
    ):
        made[name] = Tokenizer(model)
        made[name].pre_tokenizer = pre_tokenizers.Whitespace()
        made[name].train_from_iterator(texts, trainer)
    return made


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
@pytest.mark.parametrize("extra_rows", [7, 0, -3])
def test_vocabularies_against_transformers(kind: str, extra_rows: int, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from toolkit.snapshots.snapshot import read_vocabulary

    names = {
        "bos_token": "<s>",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained_tokenizers()[kind], **names)
    tokenizer.add_tokens(["newword"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<extra>"]})
    rows = len(tokenizer) + extra_rows
    tokenizer.save_pretrained(tmp_path / "x")
    write(tmp_path / "x", tensors_of(word_embeddings=(rows, 4)), tokens=None)
    expected = read_vocabulary(AutoTokenizer.from_pretrained(tmp_path / "x"), rows)
    assert import_checkpoints([tmp_path / "x"]).trajectory.vocabulary == expected
    assert "newword" in expected.tokens or extra_rows < 0


def test_older_vocabulary_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", tensors_of(word_embeddings=(10, 4)))
    assert import_checkpoints([folder]).trajectory.vocabulary == Vocabulary((*TOKENS, "", ""), frozenset({0, 1}), 0)
    (folder / "vocab.txt").unlink()
    for name, values in {
        "vocab.json": {"<s>": 0, "<pad>": 1, "Ġthe": 2},
        "added_tokens.json": {"<new>": 4},
        "special_tokens_map.json": {"pad_token": {"content": "<pad>"}, "bos_token": "<s>"},
    }.items():
        (folder / name).write_text(json.dumps(values))
    assert import_checkpoints([folder]).trajectory.vocabulary == Vocabulary(
        ("<s>", "<pad>", "Ġthe", "", "<new>", *[""] * 5), frozenset({0, 1}), 1
    )
    for name in ("vocab.json", "added_tokens.json"):
        (folder / name).unlink()
    (folder / "spiece.model").write_bytes(b"\x0a\x0e")
    imported = import_checkpoints([folder, folder])
    said = ("no vocabulary files: word rows are compared by their number",)
    assert (imported.trajectory.vocabulary, imported.notes) == (None, said)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_words_of_different_vocabularies_are_compared_by_token(data: st.DataObject) -> None:
    """Tables whose rows are functions of their token agree row for row after alignment, whatever the vocabularies."""
    tokens = st.lists(st.sampled_from("abcdefgh") | st.just(""), min_size=1, max_size=9)
    vocabularies = [
        Vocabulary(tuple(v), frozenset(data.draw(st.sets(st.integers(0, len(v) - 1)))), 0)
        for v in data.draw(st.lists(tokens, min_size=2, max_size=3))
    ]
    names = [f"m{i}" for i in range(len(vocabularies))]
    sizes = [len(v.tokens) for v in vocabularies]
    once = [{t for t in v.tokens if t and v.tokens.count(t) == 1} for v in vocabularies]
    if all(v.tokens == vocabularies[0].tokens for v in vocabularies):
        assert set(align_words(names, sizes, vocabularies).rows) == {None}
        return
    # Of tables of one size, most of whose named rows agree, a row is also one where no text of it stands elsewhere.
    rows = list(zip(*(v.tokens for v in vocabularies), strict=False))
    agreeing = [len(set(texts)) == 1 for texts in rows if any(texts)]
    is_by_place = len(set(sizes)) == 1 and 2 * sum(agreeing) > len(agreeing)
    stay = {r for r, texts in enumerate(rows) if is_by_place and len(set(texts)) == 1}
    for r in set(range(len(rows))) - stay if is_by_place else ():
        others = {text for v in vocabularies for k, text in enumerate(v.tokens) if k != r}
        stay |= {r} if all(rows[r]) and not set(rows[r]) & others else set()
    by_token = set.intersection(*once)
    if not by_token and not stay:
        check_refusals(("share no token", lambda: align_words(names, sizes, vocabularies)))
        return
    aligned = align_words(names, sizes, vocabularies)
    every = [np.arange(size)[rows] for size, rows in zip(sizes, aligned.rows, strict=True)]
    matched = {tuple(int(row) for row in place) for place in zip(*every, strict=True)}
    expected = {tuple(v.tokens.index(t) for v in vocabularies) for t in by_token} | {(r,) * len(sizes) for r in stay}
    assert (matched, len(every[0])) == (expected, len(expected))
    first = vocabularies[0]
    assert set(aligned.renamed) == {r for r in stay if len(set(rows[r])) > 1}
    for i, place in enumerate(zip(*every, strict=True)):
        texts = dict.fromkeys(v.tokens[row] for v, row in zip(vocabularies, place, strict=True))
        assert aligned.vocabulary.tokens[i] == " → ".join(texts)
        assert (i in aligned.vocabulary.special_rows) == (place[0] in first.special_rows)
    assert f"{len(every[0])} in common" in aligned.notes[-1]


def test_added_tokens_and_padded_tables(tmp_path: Path) -> None:
    before = tensors_of()
    words = before[BERT["word_embeddings"]]
    more = {**before, BERT["word_embeddings"]: np.vstack([words, np.ones((4, 4), np.float32)])}
    a, b = write(tmp_path / "a", before), write(tmp_path / "b", more, (*TOKENS, "new"))
    imported = import_checkpoints([a, b])
    assert imported.notes == ("word rows are compared by token: 8 in common; rows left out: 0 of a, 4 of b",)
    for snapshot in imported.trajectory:
        np.testing.assert_array_equal(snapshot.tensors["word_embeddings"], words)
        assert isinstance(snapshot.tensors["word_embeddings"], np.memmap)  # the first rows: no copy
    swapped = write(tmp_path / "c", {**before, BERT["word_embeddings"]: words[::-1].copy()}, TOKENS[::-1])
    first, second = import_checkpoints([a, swapped]).trajectory
    np.testing.assert_array_equal(second.tensors["word_embeddings"], first.tensors["word_embeddings"])
    (b / "vocab.txt").unlink()
    assert "the word tables differ in size (a 8, b 12 rows) and b has no vocabulary file" in refusal_of(a, b)


# Refusals.


@pytest.mark.parametrize(
    ("name", "shape"),
    [("word_embeddings", (8, 6)), ("position_embeddings", (7, 4)), ("token_type_embeddings", (1, 4))],
)
def test_other_shapes_are_named(name: str, shape: tuple[int, int], tmp_path: Path) -> None:
    changed = {name: shape}
    if shape[1] != 4:
        changed = {n: (s[0], 6) for n, s in SHAPES.items()} | {"LayerNorm.weight": (6,), "LayerNorm.bias": (6,)}
    a, b = write(tmp_path / "a", tensors_of()), write(tmp_path / "b", tensors_of(**changed))
    assert f"{name} has the shape {SHAPES[name]} in a but {shape} in b" in refusal_of(a, b)
    assert "differ in hidden size" in refusal_of(write(tmp_path / "c", tensors_of(position_embeddings=(6, 3))))


def test_a_parameter_that_one_checkpoint_lacks_is_left_out_with_a_note(tmp_path: Path) -> None:
    less = {name: t for name, t in tensors_of().items() if "token_type" not in name}
    a, b = write(tmp_path / "a", tensors_of()), write(tmp_path / "b", less)
    imported = import_checkpoints([a, b])
    assert "token_type_embeddings is missing from b and left out" in imported.notes
    for there in (imported.trajectory.parameters, imported.trajectory.at(0).tensors):
        assert "token_type_embeddings" not in there
    with pytest.raises(KeyError):
        imported.trajectory.at(0).tensors["token_type_embeddings"]
    # What no checkpoint has is no gap, but the word table, which every model has.
    assert import_checkpoints([b]).notes == ()
    wordless = write(tmp_path / "c", {n: t for n, t in tensors_of().items() if "word" not in n})
    assert import_checkpoints([wordless]).notes == ("word_embeddings is missing from c and left out",)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["word_embeddings", "LayerNorm.bias"])
def test_nan_is_refused(value: float, name: str, tmp_path: Path) -> None:
    tensors = tensors_of()
    tensors[BERT[name]].reshape(-1)[2] = value
    size = tensors[BERT[name]].size
    said = refusal_of(write(tmp_path / "bad", tensors))
    assert f"bad: {name} holds NaN or infinity (1 of {size} values)" in said
    where = f"in row 0 ('{TOKENS[0]}'): leave it out" if name == "word_embeddings" else "in entry 2: leave it out"
    assert said.endswith(where)


def test_torn_files_and_wrong_headers(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", tensors_of())
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for cut in (0, 5, 50, 300, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert "is not a whole safetensors file" in refusal_of(folder)
    # Headers that claim more rows than there are values, though no offset lies beyond the file, or that are lists.
    name = BERT["word_embeddings"]
    for entry in ({"dtype": "F32", "shape": [8000, 4], "data_offsets": [0, 128]}, ["F32", [8, 4], [0, 128]]):
        header = json.dumps({name: entry}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(128))
        assert "is not a whole safetensors file" in refusal_of(folder)
    decoders = ('{"added_tokens_decoder": {"x": {"content": "a"}}}', '{"added_tokens_decoder": [1]}', "[]")
    for i, (name, text) in enumerate(
        (
            ("config.json", "{"),
            ("config.json", "[]"),
            ("vocab.txt", "\udcff"),
            ("tokenizer.json", '{"model": 3}'),
            *(("tokenizer_config.json", text) for text in decoders),
        )
    ):
        folder = write(tmp_path / f"damaged-{i}", tensors_of())
        (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
        assert name in refusal_of(folder)


@pytest.mark.parametrize("place", ["../{}/model.safetensors", "{}/model.safetensors"])
def test_an_index_does_not_reach_outside_its_folder(place: str, tmp_path: Path) -> None:
    other = write(tmp_path / "other", tensors_of())
    folder = write(tmp_path / "x", tensors_of())
    (folder / "model.safetensors").unlink()
    name = place.format(other.name if place.startswith("..") else other)
    index = {"weight_map": dict.fromkeys(tensors_of(), name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert name.rpartition("/")[2] in refusal_of(folder)


def test_indexes_that_lie(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", tensors_of())
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = folder / "model.safetensors.index.json"
    shards = dict.fromkeys(tensors_of(), "model-00001-of-00002.safetensors")
    index.write_text(json.dumps({"weight_map": shards}))
    assert len(snapshot_of(folder)) == 5
    lost = {BERT["LayerNorm.bias"]: "model-00002-of-00002.safetensors"}
    index.write_text(json.dumps({"weight_map": shards | lost}))
    assert "x lacks the shard model-00002-of-00002.safetensors" in refusal_of(folder)
    save_file({"other": np.ones(1)}, folder / "model-00002-of-00002.safetensors")
    assert len(snapshot_of(folder)) == 5  # the first holds it, as from_pretrained finds
    save_file({"other": np.ones(1)}, folder / "model-00001-of-00002.safetensors")
    assert "which it does not" in refusal_of(folder)
    for text in ('{"weight_map": 3}', "[]", "{}"):
        index.write_text(text)
        assert "names no shards" in refusal_of(folder)


def test_places_that_hold_nothing_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "is_hub_reachable", lambda: False)
    for name in (
        "pickled/pytorch_model.bin",
        "trainer/pytorch_model_fsdp_0/__0_0.distcp",
        "trainer/optimizer.bin",
        "deepspeed/global_step5/x.pt",
        "routed/query_0_Transformer/model.safetensors",
        "routed/document_0_Transformer/adapter_model.safetensors",
        "variant/model.safetensors.index.fp16.json",
        "variant/model.fp16-00001-of-00002.safetensors",
        "variant/model.fp16-00002-of-00002.safetensors",
        "text.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    for name in ("empty", "several"):
        (tmp_path / name).mkdir()
    for name in ("a", "b"):
        save_file(tensors_of(), tmp_path / "several" / f"{name}.safetensors")
    quantised = tensors_of() | {BERT["word_embeddings"]: np.ones((8, 4), np.int8)}
    adapter = tmp_path / "adapter_model.safetensors"
    save_file({"base_model.lora_A.weight": np.ones((2, 2), np.float32)}, adapter)
    cases = {
        tmp_path / "empty": "is empty",
        tmp_path / "pickled": "save_pretrained",
        tmp_path / "pickled" / "pytorch_model.bin": "is a pickle",
        tmp_path / "trainer": "holds a torch.distributed.checkpoint in pytorch_model_fsdp_0 (.distcp): put it together",
        tmp_path
        / "trainer"
        / "pytorch_model_fsdp_0": "torch.distributed.checkpoint (.distcp): put it together with `acc",
        tmp_path / "deepspeed": "is a checkpoint of DeepSpeed",
        tmp_path / "routed": "in document_0_Transformer, query_0_Transformer: pass one of these folders",
        tmp_path / "variant": "give model.safetensors.index.fp16.json the name model.safetensors.index.json",
        tmp_path / "text.txt": "is not a safetensors file",
        tmp_path / "several": "pass one of a.safetensors, b.safetensors",
        adapter: "holds adapter_model.safetensors without its adapter_config.json: put that beside it",
        tmp_path / "gone": "no file or folder",
        f"{tmp_path}/gone-*": "no folder matches",
        "no-owner/no-model": "not in the local cache of the hub, and the hub cannot be reached",
        "no-model@v1": "the hub cannot be reached",
        write(tmp_path / "opt", tensors_of(), model_type="opt"): "unsupported architecture 'opt'",
        write(tmp_path / "quantised", quantised): "as I8, which is not a floating-point weight",
    }
    for place, line in cases.items():
        assert line in refusal_of(place)
    assert "nothing to open" in refusal_of()
    check_refused("query_0_Transformer: pass one of these", find_checkpoint(str(tmp_path / "routed")).read_config)


@pytest.mark.parametrize("layer", ["h.0.attn.q_proj.weight", "h.0.attn.attention.q_proj.weight"])
def test_a_decoder_whose_table_alone_has_gpt2s_name_is_not_taken_for_one(layer: str, tmp_path: Path) -> None:
    """GPT-J and GPT-Neo, in files that do not say what they are."""
    tensors = {f"transformer.{name}": np.ones((8, 4), np.float32) for name in ("wte.weight", layer)}
    folder = write(tmp_path / "x", tensors)
    (folder / "config.json").unlink()
    assert "no embedding tables by the names of any supported family" in refusal_of(folder)


def test_names_are_short_distinct_and_never_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a" / "checkpoint-5", tensors_of())
    write(tmp_path / "b" / "checkpoint-5", tensors_of())
    monkeypatch.chdir(tmp_path / "a")
    places = ["checkpoint-5", tmp_path / "b", tmp_path / "b" / "checkpoint-5" / "model.safetensors"]
    names = [s.name for s in import_checkpoints(places).trajectory]
    assert names == ["a/checkpoint-5", "b/checkpoint-5", "b/checkpoint-5 (2)"]
    monkeypatch.chdir(tmp_path / "a" / "checkpoint-5")
    assert [s.name for s in import_checkpoints(["."]).trajectory] == ["checkpoint-5"]


def test_an_open_run_is_taken_as_its_path(read_run: MakeRun) -> None:
    run = read_run()
    for places in (run, [run], [run.path]):
        assert [one.name for one in import_checkpoints(places).trajectory] == [
            one.name for one in import_checkpoints([str(run.path)]).trajectory
        ]
