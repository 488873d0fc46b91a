"""Recording models that peft adapts: snapshots against what it merges, exposure against a count by hand."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    Trainer,
    TrainingArguments,
)

import toolkit
from tests.conftest import sizes_of
from tests.refusals import check_refused, refused
from tests.training.recorded_texts import start, totals, update
from toolkit.analysis.adam import unexplained_by_decay
from toolkit.models.regimes import locate_embeddings
from toolkit.questions.drift_report import show_drift

peft = pytest.importorskip("peft", reason="the extra 'peft' is not installed")
NAMES = {"bert": ("query", "word_embeddings"), "llama": ("q_proj", "embed_tokens"), "gpt2": ("c_attn", "wte")}
SHARED = "the table that encoder and decoder share"
IDS = torch.tensor([[7, 8, 7, 9], [10, 11, 12, 8]])
WAYS: dict[str, tuple[bool, dict[str, Any]]] = {
    "attention": (False, {}),
    "modules_to_save": (False, {"modules_to_save": True}),
    "LoRA": (True, {}),
    "rslora": (True, {"use_rslora": True, "r": 3, "lora_alpha": 5}),
    "DoRA": (True, {"use_dora": True}),
    "DoRA and rslora": (True, {"use_dora": True, "use_rslora": True, "r": 3, "lora_alpha": 5}),
    "DoRA of attention": (False, {"use_dora": True}),
    "trainable_token_indices": (True, {"trainable_token_indices": [7, 8, 20]}),
}


def adapt(model_type: str, way: str) -> tuple[Any, dict[str, np.ndarray]]:
    """An adapted model, and its embedding parameters before."""
    torch.manual_seed(0)
    kind = AutoModelForSequenceClassification if model_type == "bert" else AutoModelForCausalLM
    config = AutoConfig.for_model(model_type, **sizes_of(model_type, vocab_size=40, tie_word_embeddings=False))
    model, (attention, words) = kind.from_config(config), NAMES[model_type]
    before = locate_embeddings(model).values()
    options = WAYS[way][1] | ({"modules_to_save": [words]} if way == "modules_to_save" else {})
    is_lora = WAYS[way][0] and "trainable_token_indices" not in options
    targets = [attention, words] if is_lora else [attention]
    return peft.get_peft_model(model, peft.LoraConfig(**{"r": 2, "target_modules": targets} | options)), before


def train(model: Any, path: Path, idle: Collection[int] = (), num_epochs: int = 2) -> toolkit.Run:
    """``idle``: the ids of parameters that the optimizer does not hold."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad and id(p) not in idle], lr=0.05)
    labels = torch.tensor([0, 1]) if hasattr(model.base_model.model, "classifier") else IDS
    recording = start(model, path)
    for epoch in range(1, num_epochs + 1):
        update(optimizer, model.train()(input_ids=IDS, labels=labels).loss)
        recording.snapshot(epoch=epoch)
    return recording.finish()


@pytest.mark.parametrize("model_type", NAMES)
@pytest.mark.parametrize("way", WAYS)
def test_snapshots_are_what_peft_merges(
    way: str, model_type: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    model, before = adapt(model_type, way)
    run = train(model, tmp_path / "run")
    said = [text for warning in recwarn if (text := str(warning.message)).startswith("run: ")]
    assert not [text for text in said if "frozen" in text or "exactly as before" in text]
    assert not toolkit.verify_run(run.path)
    model.save_pretrained(tmp_path / "adapter")
    after = locate_embeddings(model.merge_and_unload()).values()
    first, last = run.trajectory.snapshots[0].tensors, run.trajectory.snapshots[-1].tensors
    assert list(first) == list(last) == list(before)
    for name, tensor in before.items():
        # DoRA starts at the base's own lengths of columns: a factor of 1, but for the rounding of two sums.
        np.testing.assert_allclose(first[name], tensor, rtol=3e-7 if way.startswith("DoRA") else 0, atol=0)
        np.testing.assert_allclose(last[name], after[name], rtol=1e-6, atol=1e-7)
        is_trained = name == "word_embeddings" and "attention" not in way
        assert (last[name] != tensor).any() == is_trained
        assert (name in run.manifest["regime"]["frozen_components"]) != is_trained


@pytest.mark.parametrize("merged_first", [False, True])
@pytest.mark.parametrize("with_dora", [(True, False), (False, True), (True, True), (False, False)])
def test_several_adapters_are_merged_in_their_order(with_dora: tuple[bool, bool], merged_first: bool) -> None:
    model = adapt("bert", "attention")[0].unload()
    for number, use_dora in enumerate(with_dora):
        config = peft.LoraConfig(r=2, target_modules=["word_embeddings"], use_dora=use_dora)
        if number == 0:
            model = peft.get_peft_model(model, config, "0")
        else:
            model.add_adapter("1", config)
    model.base_model.set_adapter(["0", "1"])
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    if merged_first:
        model.merge_adapter()
    found = torch.from_numpy(locate_embeddings(model).values()["word_embeddings"])
    merged = model.merge_and_unload().bert.embeddings.word_embeddings.weight
    torch.testing.assert_close(found, merged.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("way", ["LoRA", "rslora", "DoRA"])
def test_rows_that_no_text_used_move_by_the_columns_lengths_alone(way: str, tmp_path: Path) -> None:
    """Each by its own values times what DoRA makes of each column: LoRA has no such factor, and they stay."""
    snapshots = train(adapt("bert", way)[0], tmp_path / "run").trajectory.snapshots
    first, last = (np.asarray(snapshots[i].tensors["word_embeddings"]) for i in (0, -1))
    unused = np.setdiff1d(np.arange(40), [0, *IDS.flatten().tolist()])
    factors = last[unused] / first[unused]
    np.testing.assert_allclose(factors, np.tile(factors[:1], (len(unused), 1)), rtol=1e-5)
    assert (factors == 1).all() == (way != "DoRA")


@pytest.mark.parametrize("model_type", NAMES)
@pytest.mark.parametrize("idle", ["frozen", "in no optimizer", ""])
def test_a_table_whose_adapter_does_not_train_is_named(
    idle: str, model_type: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """unslothai/unsloth#9326: the word table got an adapter that stayed as it was, and nothing said so."""
    model, _ = adapt(model_type, "LoRA")
    own = [p for name, p in model.named_parameters() if "lora_embedding" in name]
    for parameter in own:
        parameter.requires_grad_(idle != "frozen")
    train(model, tmp_path / "run", set(map(id, own)) if idle == "in no optimizer" else (), num_epochs=3)
    said = [text for w in recwarn if "exactly as before" in (text := str(w.message))]
    expected = "run: word_embeddings: has an adapter, but is exactly as before training: "
    assert [text.startswith(expected) for text in said] == [True] * bool(idle)


@pytest.mark.parametrize("tied", [False, True])
def test_rows_that_are_trained_beside_a_whole_output_layer(tied: bool, tmp_path: Path) -> None:
    """huggingface/peft#2653: what peft can pass through is read; where the tables are tied it cannot, and says so."""

    def build(**options: Any) -> Any:
        torch.manual_seed(0)
        config = AutoConfig.for_model("llama", **sizes_of("llama", vocab_size=40, tie_word_embeddings=tied))
        options |= {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [7, 8, 20]}}
        return peft.get_peft_model(AutoModelForCausalLM.from_config(config), peft.LoraConfig(r=2, **options))

    model = build(modules_to_save=["lm_head"])
    if tied:
        check_refused("TrainableTokensLayer wraps an unknown layer type", train, model, tmp_path / "run")
        assert not toolkit.open_run(tmp_path / "run").is_finished
        model = build()  # the way out: the output layer takes the trained rows of the table that it is
    first, *_, last = train(model, tmp_path / "run").trajectory.snapshots
    merged = model.merge_and_unload()
    words, output = (own().weight for own in (merged.get_input_embeddings, merged.get_output_embeddings))
    after = np.asarray(last.tensors["word_embeddings"])
    np.testing.assert_array_equal(after, words.detach().numpy())
    moved = (after != np.asarray(first.tensors["word_embeddings"])).any(axis=1)
    assert np.flatnonzero(moved).tolist() == [7, 8, 20]  # of which no text has the last: decay
    assert torch.equal(words, output) == tied


@pytest.mark.parametrize("model_type", NAMES)
@pytest.mark.parametrize("way", WAYS)
def test_exposure_counts_the_input_and_no_update_is_replayed(way: str, model_type: str, tmp_path: Path) -> None:
    is_adapted = WAYS[way][0]
    run = train(adapt(model_type, way)[0], tmp_path / "run")
    exposure, problems = run.trajectory.exposure, " ".join(run.manifest["problems"])
    counts = {row: 2 * int((row == IDS).sum()) for row in IDS.flatten().tolist()}
    assert exposure.input_only == (("word_embeddings",) if is_adapted else ())
    assert ("word_embeddings is changed by an adapter" in problems) == is_adapted
    if is_adapted:
        assert {row: int(n) for row, n in enumerate(exposure.input_tokens("word_embeddings", 40)) if n} == counts
        said = "trained by an adapter, not as a table: updates cannot be replayed"
        assert (said in problems, run.optimizer_log) == (True, None)
        check_refused(said, toolkit.sign_noise, run, "word_embeddings", num_replicates=2)
        show_drift([run.path], None)
        return
    if way == "modules_to_save" and model_type != "bert":
        del counts[9]  # with which a text ends: it answers for nothing
    assert totals(run, "word_embeddings") == counts
    assert run.manifest["problems"] == []
    if way == "modules_to_save":
        assert unexplained_by_decay(run.trajectory, run.optimizer_log) == 0


def test_copies_of_vectors_and_copies_within_copies_are_those_in_use(tmp_path: Path) -> None:
    """Of modules_to_save=["embeddings"] the tables that the model uses are never trained, whatever peft calls them."""
    for number, options in enumerate(({"modules_to_save": ["embeddings"]}, {"modules_to_save": ["LayerNorm"]})):
        model, before = adapt("bert", "attention")
        model = peft.get_peft_model(model.unload(), peft.LoraConfig(r=2, target_modules=["query"], **options))
        last = train(model, tmp_path / str(number)).trajectory.snapshots[-1].tensors
        moved = [name for name, tensor in before.items() if (last[name] != tensor).any()]
        assert moved == ["LayerNorm.weight", "LayerNorm.bias"]


@pytest.mark.parametrize(
    ("model_type", "config", "line"),
    [
        *(
            ("bert", peft.HiraConfig(r=2, target_modules=[table]), line)
            for table, line in (
                ("word_embeddings", "holds no backbone"),
                ("position_embeddings", "position_embeddings of PeftModel"),
            )
            if hasattr(peft, "HiraConfig")  # which the oldest peft has not
        ),
        ("t5", peft.LoraConfig(target_modules=["shared"]), SHARED),
        ("t5", peft.LoraConfig(target_modules=["shared"], use_dora=True), SHARED),
        ("t5", peft.LoraConfig(target_modules=["q"], modules_to_save=["shared"]), SHARED),
    ],
)
def test_what_cannot_be_read_live_is_refused(model_type: str, config: Any, line: str, tmp_path: Path) -> None:
    model = AutoModel.from_config(AutoConfig.for_model(model_type, **sizes_of(model_type, vocab_size=40)))
    with refused(line) as caught:
        toolkit.record(peft.get_peft_model(model, config), tmp_path / "run")
    assert ("python -m toolkit drift BASE ADAPTER" in str(caught.value)) == (model_type == "bert")


@pytest.mark.parametrize("way", ["attention", "LoRA"])
def test_the_callback_in_a_trainer_of_an_adapter(way: str, tmp_path: Path) -> None:
    model, before = adapt("bert", way)
    items = [{"input_ids": row.tolist(), "labels": i} for i, row in enumerate(IDS)]
    settings = TrainingArguments(
        str(tmp_path / "out"), num_train_epochs=1, report_to="none", use_cpu=True, save_strategy="no", disable_tqdm=True
    )
    callback = toolkit.EmbeddingSnapshotCallback(tmp_path / "run")
    Trainer(model, settings, train_dataset=items, callbacks=[callback]).train()
    last = toolkit.open_run(tmp_path / "run").trajectory.snapshots[-1].tensors
    assert (last["word_embeddings"] != before["word_embeddings"]).any() == (way == "LoRA")
