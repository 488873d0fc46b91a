"""LoRA as a regime: what peft makes of the same weights, what stays to the bit, and what no log of it can tell."""

import importlib.util
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModel

import toolkit
from tests.by_hand import begin, logits, take_epoch
from tests.conftest import DECODERS, ENCODERS, FAMILY_CONFIGS
from tests.planted_weights import altered
from tests.refusals import check_refused
from tests.test_new_tokens import accuracy as last_accuracy
from toolkit import Run, finetune
from toolkit.comparison.cards import make_cards
from toolkit.comparison.conditions import arrange, differing_settings, pair_conditions
from toolkit.comparison.evidence import save_evidence
from toolkit.comparison.measure import measure
from toolkit.comparison.parameter_noise import measure_beyond_noise
from toolkit.comparison.report_data import ReportData
from toolkit.config import RunConfig
from toolkit.families import LORA
from toolkit.models.checkpoints import Source
from toolkit.models.classifier import Loaded, load_classifier
from toolkit.models.lora import find_targets, merged_state, put_adapters, save_adapter
from toolkit.models.regimes import HEAD, adapter_regime, apply_regime, list_components, locate_embeddings
from toolkit.models.tuned import load_tuned
from toolkit.questions.models import open_model
from toolkit.reporting import run_screen
from toolkit.reporting.charts import regimes_of
from toolkit.reporting.comparison_report import make_page
from toolkit.reporting.page import TextBlock
from toolkit.reporting.sources import Computed, open_sources
from toolkit.reporting.topics import causes, movement
from toolkit.reporting.topics.drift import ADAPTED
from toolkit.reporting.topics.drift_and_score import drift_and_score_section
from toolkit.reporting.topics.first_screen import tiles_of
from toolkit.reporting.topics.runs import runs_frame
from toolkit.studies.plan import resolve, run_path
from toolkit.training.weights import is_halved

peft = pytest.importorskip("peft", reason="the extra 'peft' is not installed")

W = "word_embeddings"
ATTENTION = {
    "bert": ("query", "value"),
    "distilbert": ("q_lin", "v_lin"),
    "llama": ("q_proj", "v_proj"),
    "gpt2": ("c_attn",),
}
RANK = 2
Train = Callable[..., Run]


@pytest.fixture(scope="module")
def trained(
    tiny_config: RunConfig, tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Train:
    """A family and changes to a run of it, which is trained once."""
    common = {"output_dir": str(tmp_path_factory.mktemp("lora")), "learning_rate": 1e-2, "weight_decay": 0.1}

    def train(family: str = "bert", **changes: Any) -> Run:
        own = {"model": str(tiny_model(family)), "pooling": "last" if family in DECODERS else "mean"}
        own |= common | {"save_model": True, "lora_rank": RANK if changes.get("lora") else 8}
        return finetune(replace(tiny_config, **(own | changes)), reuse_finished=True)

    return train


def ends(run: Run, parameter: str = W) -> tuple[np.ndarray, np.ndarray]:
    before, after = (np.asarray(run.trajectory.snapshots[i].tensors[parameter]) for i in (0, -1))
    return before, after


def merged_by_peft(run: Run) -> dict[str, np.ndarray]:
    """The oracle: all weights of the base under the saved adapter, as peft loads and merges them."""
    base = AutoModel.from_pretrained(run.config.model)
    model = peft.PeftModel.from_pretrained(base, run.path / "model" / "adapter").merge_and_unload()
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("family", ATTENTION)
@pytest.mark.parametrize("words", [(), (W,)], ids=["attention", "words too"])
def test_what_is_saved_is_what_peft_merges_and_all_else_stays(
    trained: Train, family: str, words: tuple[str, ...]
) -> None:
    run = trained(family, lora=(*ATTENTION[family], *words))
    oracle, saved = merged_by_peft(run), load_file(run.path / "model" / "model.safetensors")
    start, loaded = load_file(Path(run.config.model) / "model.safetensors"), load_tuned(run)
    targets = {*ATTENTION[family], *(loaded.family.embedding_parameters[name].split(".")[-2] for name in words)}
    for name, tensor in saved.items():
        np.testing.assert_allclose(tensor, oracle[name], rtol=1e-5, atol=1e-7)
        is_target = name.endswith(".weight") and name.split(".")[-2] in targets
        assert (tensor != start[name]).any() == is_target, name
        if is_target:
            assert np.linalg.matrix_rank(tensor.astype(np.float64) - start[name], tol=1e-5) == RANK
    # Snapshots, the saved model, and what `drift BASE ADAPTER` reads are one table.
    last = run.trajectory.snapshots[-1].tensors
    read = toolkit.import_checkpoints([run.config.model, run.path / "model" / "adapter"]).trajectory.snapshots[-1]
    for name, tensor in locate_embeddings(loaded.model).values().items():
        assert np.array_equal(tensor, last[name])
        np.testing.assert_allclose(read.tensors[name], last[name], rtol=1e-5, atol=1e-7)
        assert np.array_equal(*ends(run, name)) == (name not in words)
    parameters = {*run.trajectory.parameters}
    assert {*run.manifest["regime"]["frozen_components"]} & parameters == parameters - {*words}
    proofs = run.manifest["frozen"]["parameters"].values()
    assert [proof["before"] == proof["after"] for proof in proofs] == [True] * len(saved)
    assert run.manifest["model"]["num_trainable"] == sum(
        p.numel() for n, p in adapted(run).model.named_parameters() if "lora_" in n or n.startswith(HEAD)
    )
    # And the saved model answers as the run did.
    answers = np.stack(run.predictions.query("epoch == 2 and split == 'validation'")["scores"])
    np.testing.assert_allclose(logits(loaded, run), answers, rtol=1e-4, atol=1e-5)


def adapted(run: Run) -> Loaded:
    """The classifier that a run started from, with its adapters."""
    loaded, _ = begin(run.config)
    put_adapters(loaded, run.config)
    return loaded


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_row_moves_once_it_is_seen_and_from_then_on(trained: Train, family: str, optimizer: str) -> None:
    """Factor A has a column for each word, 0 at first, B is shared: a row that no text used is still there to the bit,
    whatever decay does, and one that a text used moves at every later step too, as B does."""
    rate = 1e-2 if optimizer == "adamw" else 0.5
    run = trained(family, lora=(W,), snapshot_steps=1, optimizer=optimizer, learning_rate=rate, warmup_fraction=0.0)
    table, snapshots = run.trajectory.exposure.tables[W], run.trajectory.snapshots
    tables = [np.asarray(snapshot.tensors[W]) for snapshot in snapshots]
    assert [snapshot.step for snapshot in snapshots] == list(range(9))
    num_late = 0
    for step in range(1, 9):
        seen = table.step_counts(len(tables[0]), step) > 0
        assert np.array_equal((tables[step] != tables[0]).any(axis=1), seen)
        is_used = table.step_counts(len(seen), step) > table.step_counts(len(seen), step - 1)
        num_late += int((seen & ~is_used).sum())
        assert np.array_equal((tables[step] != tables[step - 1]).any(axis=1), seen)
        assert np.linalg.matrix_rank(tables[step].astype(np.float64) - tables[0], tol=1e-5) <= RANK
    assert num_late > 20  # rows that moved at a step that did not use them
    assert 0 < seen.sum() < len(seen)
    assert (toolkit.measure_rows(run, W).set_index("stratum")["norm"].loc["seen in 0 steps"] == 0).all()


REPLAYS: dict[str, Callable[[Run], Any]] = {
    "sign_noise": lambda run: toolkit.sign_noise(run, W, num_replicates=2),
    "decompose": lambda run: toolkit.decompose(run, W),
    "explain": lambda run: toolkit.explain(run, W),
}


@pytest.mark.parametrize("name", REPLAYS)
def test_what_rests_on_the_updates_of_a_row_is_refused(trained: Train, name: str) -> None:
    run = trained(lora=(W, "query"))
    assert (run.optimizer_log, toolkit.verify_run(run.path)) == (None, [])
    check_refused(f"{W}: trained by an adapter, not as a table: updates cannot be replayed", REPLAYS[name], run)
    assert np.isnan(run.trajectory.exposure.tables[W].norms).all()


def test_beside_a_table_that_is_no_target_the_log_is_kept_and_says_frozen(trained: Train) -> None:
    run = trained(lora=("query", "value"))
    assert run.manifest["problems"] == []
    assert not {*run.optimizer_log.weight_decay} & {*run.trajectory.parameters}
    rows = np.asarray(ends(run)[0])
    assert np.array_equal(toolkit.replay_decay(rows, run.optimizer_log, W), rows)
    assert measure_beyond_noise(run)["reason"].eq("did not move").all()
    check_refused("word_embeddings was frozen in this run", toolkit.sign_noise, run, W, num_replicates=2)


def test_an_independent_loop_over_a_peft_model_ends_with_the_same_table(trained: Train) -> None:
    run = trained(lora=(W, "query"), lora_alpha=6, dropout=0.0, epochs=1)
    config, (loaded, data) = run.config, begin(run.config)
    model = loaded.model.train()
    torch.manual_seed(config.seed)
    own = peft.get_peft_model(model.backbone, peft.LoraConfig(r=RANK, lora_alpha=6, target_modules=["query", W]))
    groups = [
        {"params": [p], "peak": rate, "weight_decay": config.weight_decay if p.ndim > 1 else 0.0}
        for part, rate in ((own, config.learning_rate), (model.head, config.head_learning_rate))
        for p in part.parameters()
        if p.requires_grad
    ]
    take_epoch(model, groups, data, config)
    table = own.merge_and_unload().get_input_embeddings().weight.detach().numpy()
    before, after = ends(run)
    np.testing.assert_allclose(after, table, rtol=1e-4, atol=1e-6)
    assert np.abs(after - before).max() > 1e3 * np.abs(after - table).max()


def test_it_learns_what_random_features_do_not_tell(trained: Train) -> None:
    """The positive control, and beside it the same head on the features that the adapters start from."""
    long = {"train_file": None, "validation_file": None, "test_file": (), "text_columns": (), "task": "polarity"}
    long |= {"max_train_examples": 400, "epochs": 4, "head_learning_rate": 1e-2, "dropout": 0.0, "save_model": False}
    assert last_accuracy(trained(lora=("all-linear", W), lora_rank=8, **long)) > 0.9
    assert last_accuracy(trained(freeze="backbone", **long)) < 0.7


def test_adapters_start_by_the_seed_and_change_nothing_at_first(trained: Train) -> None:
    runs = [trained(lora=(W, "query"), seed=seed) for seed in (0, 1)]
    for seed, run in enumerate(runs):
        first = [each.predictions.query("epoch == 0")["scores"].to_list() for each in (run, trained(seed=seed))]
        assert np.array_equal(*map(np.stack, first))
    one, same, other = (adapted(run).model.backbone.state_dict() for run in (runs[0], runs[0], runs[1]))
    drawn = [name for name in one if "lora_" in name and one[name].any()]
    assert len(drawn) == 4  # of three layers A, and B of the table
    assert all(torch.equal(one[name], same[name]) and not torch.equal(one[name], other[name]) for name in drawn)


FAMILIES = [*FAMILY_CONFIGS, *ENCODERS, *DECODERS]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_linear_layer_is_what_peft_takes_and_belongs_to_its_component(
    family: str, tiny_model: Callable[[str], Path]
) -> None:
    loaded = load_classifier(str(tiny_model(family)), pooling="mean", num_outputs=2)
    other = load_classifier(str(tiny_model(family)), pooling="mean", num_outputs=2).model.backbone
    theirs = peft.get_peft_model(other, peft.LoraConfig(target_modules="all-linear"))
    unused = {"contact_head.regression"} if family == "esm" else set()
    assert {*find_targets(loaded, ["all-linear"])} == {*theirs.targeted_module_names} - unused
    before = list_components(loaded.model, loaded.family)
    state = {name: tensor.clone() for name, tensor in loaded.model.backbone.state_dict().items()}
    put_adapters(loaded, RunConfig(lora=("all-linear",)))
    components = list_components(loaded.model, loaded.family)
    names = [name for own in components.values() for name in own]
    assert sorted(names) == sorted(dict(loaded.model.named_parameters()))
    assert components.keys() == before.keys()
    apply_regime(loaded.model, adapter_regime(components), loaded.family)
    trained = {name for name, p in loaded.model.named_parameters() if p.requires_grad}
    assert trained == {name for name in names if "lora_" in name or name.startswith(HEAD)}
    merged = merged_state(loaded.model.backbone)
    assert merged.keys() == state.keys()
    assert all(torch.equal(merged[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gemma3_text"])
def test_the_word_table_of_every_family_takes_an_adapter(family: str, tiny_model: Callable[[str], Path]) -> None:
    loaded = load_classifier(str(tiny_model(family)), pooling="mean", num_outputs=2)
    place = loaded.family.embedding_parameters[W].removesuffix(".weight")
    assert find_targets(loaded, [W]) == find_targets(loaded, [place]) == [place]
    put_adapters(loaded, RunConfig(lora=(W,)))
    assert W not in adapter_regime(list_components(loaded.model, loaded.family)).frozen


def test_half_precision_is_left_to_autocast(trained: Train) -> None:
    """Factors of half precision would not be those that peft trains."""
    loaded = adapted(trained(lora=("query", "value")))
    assert not is_halved(loaded.model)
    assert is_halved(load_classifier(loaded.source.name, pooling="mean", num_outputs=2).model)


def test_a_row_that_gets_nothing_keeps_its_bits_those_of_minus_0_too(trained: Train, tmp_path: Path) -> None:
    run = trained(lora=(W,))
    name = "embeddings.word_embeddings.weight"
    base = altered(Path(run.config.model), tmp_path / "base", lambda weights: weights[name][-1, :3].fill(-0.0))
    read = toolkit.import_checkpoints([base, run.path / "model" / "adapter"]).trajectory.snapshots[-1].tensors[W]
    loaded = load_classifier(str(base), pooling="mean", num_outputs=2)
    put_adapters(loaded, run.config)
    assert np.signbit([read[-1, :3], merged_state(loaded.model.backbone)[name].numpy()[-1, :3]]).all()


def test_positions_and_segments_take_adapters_too(trained: Train, tiny_files: Callable[[str], dict[str, Any]]) -> None:
    own: dict[str, Any] = {
        **tiny_files("pair"),
        "lora": ("position_embeddings", "token_type_embeddings"),
        "positions": "sinusoidal",
    }
    run = trained(**own, reinject_positions=True)
    assert run.manifest["positions"]["table"] == "sinusoidal"
    num_used = int(run.trajectory.exposure.tables["position_embeddings"].rows.max()) + 1
    for name, num_moved in (("position_embeddings", num_used), ("token_type_embeddings", 2), (W, 0)):
        before, after = ends(run, name)
        assert np.array_equal((before != after).any(axis=1), np.arange(len(before)) < num_moved), name
    assert run.manifest["problems"][0].startswith("position_embeddings, token_type_embeddings: trained by an adapter")


@pytest.mark.parametrize("start", [{"init": "random"}, {"positions": "sinusoidal"}], ids=["weights", "positions"])
def test_adapters_of_other_weights_than_the_checkpoint_are_only_merged(trained: Train, start: dict[str, Any]) -> None:
    """peft would put them on the checkpoint, which is another model than what was trained."""
    model = trained(lora=("query", W), **start).path / "model"
    assert [(model / name).exists() for name in ("model.safetensors", "adapter")] == [True, False]


def test_an_adapter_names_its_base_as_peft_finds_it(trained: Train, tmp_path: Path) -> None:
    run = trained(lora=("query",))
    assert peft.PeftConfig.from_pretrained(run.path / "model" / "adapter").base_model_name_or_path == run.config.model
    source = Source("owner/name@main", "owner/name", "0123abc", is_hub=True)
    save_adapter(replace(adapted(run), source=source), run.config, tmp_path / "adapter")
    written = peft.PeftConfig.from_pretrained(tmp_path / "adapter")
    assert (written.base_model_name_or_path, written.revision) == ("owner/name", "0123abc")


SPELLINGS = [
    ("bert", ("query", "value"), ("value", "query", "value")),
    ("bert", ("query", W), ("embeddings.word_embeddings", "query")),
    ("gpt2", ("c_attn", W), ("wte", "c_attn")),
]


@pytest.mark.parametrize(("family", "lora", "other"), SPELLINGS)
def test_two_spellings_of_targets_and_of_a_table_are_one_run(
    trained: Train, family: str, lora: tuple[str, ...], other: tuple[str, ...]
) -> None:
    known = trained(family, lora=lora)
    assert known.config.lora == lora
    assert f"_lora-{'-'.join(lora).replace('_', '-')}_seed-0_" in known.path.name
    assert run_path(resolve(replace(known.config, lora=other))) == known.path
    assert trained(family, lora=(*other, lora[-1])).path == known.path
    assert run_path(resolve(replace(known.config, lora=other[-1:]))) != known.path


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nowhere": ({"lora": ()}, "--lora must be the names of modules, such as query value"),
    "unknown": (
        {"lora": ("querry",)},
        r"--lora: unknown module 'querry' \(did you mean 'query'\?\); choose from",
    ),
    "empty": ({"lora": ("",)}, "--lora: unknown module ''"),
    "comma": ({"lora": ("query,value",)}, "--lora: unknown module 'query,value'"),
    "head": ({"lora": ("classifier",)}, "--lora: unknown module 'classifier'"),
    "norm": ({"lora": ("query", "LayerNorm")}, "--lora LayerNorm: embeddings.LayerNorm is a LayerNorm, which takes no"),
    "block": ({"lora": ("attention",)}, "encoder.layer.0.attention is a BertAttention, which takes no adapter"),
    "rank 0": ({"lora": ("query",), "lora_rank": 0}, "--lora-rank must be at least 1; got 0"),
    "alpha": ({"lora": ("query",), "lora_alpha": -1}, "--lora-alpha must be at least 1; got -1"),
    "rank alone": ({"lora_rank": 4}, "--lora-rank 4 is about adapters: pass --lora TARGETS too"),
    "alpha alone": ({"lora_alpha": 4}, "--lora-alpha 4 is about adapters"),
    "freeze": ({"lora": ("query",), "freeze": "embeddings"}, "freezes all else: leave --freeze embeddings out"),
    "tokens": ({"lora": ("query",), "add_tokens": "a.txt"}, "--add-tokens beside it needs --train-rows new"),
    "head first": ({"lora": ("query",), "head_epochs": 1}, "leave --head-epochs 1 out"),
    "rate of frozen": ({"lora": ("query",), "embedding_learning_rate": 1e-3}, "all embeddings are frozen"),
    "decay of frozen": ({"lora": (W,), "layer_decay": 0.9}, "all layers are frozen"),
    "stopping": ({"lora": (W,), "head_training": "early-stopping"}, "trains the head alone"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_one_clear_line(case: str, tiny_config: RunConfig, tmp_path: Path) -> None:
    changes, said = REFUSED[case]
    check_refused(said, lambda: finetune(replace(tiny_config, output_dir=str(tmp_path / "runs"), **changes)))
    assert not (tmp_path / "runs").exists()


def test_tables_that_are_more_than_tables_are_refused(tiny_model: Callable[[str], Path]) -> None:
    for family, word in (("gemma3_text", W), ("deberta-v2", "rel_embeddings")):
        loaded = load_classifier(str(tiny_model(family)), pooling="mean", num_outputs=2)
        check_refused(f"--lora {word}: .*, which takes no adapter here", find_targets, loaded, [word])


def test_without_peft_the_extra_is_named(tiny_config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    own = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "peft" else own(name, *rest))
    check_refused(
        r"^--lora needs peft: pip install 'embedding-drift-toolkit\[peft\]'$",
        finetune,
        replace(tiny_config, lora=("query",)),
    )


def test_it_is_a_condition_of_its_own(trained: Train) -> None:
    runs = [trained(seed=seed, **own) for seed in (0, 1) for own in ({}, {"lora": ("query", "value")}, {"lora": (W,)})]
    (group,) = arrange([*runs, trained(freeze="backbone"), trained(lora=("query", "value"), lora_alpha=4)])
    labels = [condition.label for condition in group.conditions]
    lora = "LoRA r=2 on query, value, lora alpha"
    assert labels == ["full fine-tuning", f"{lora} 4", f"{lora} 8", "LoRA r=2 on word_embeddings", "feature extraction"]
    attention, words = group.conditions[2:4]
    assert "all but the head and LoRA r=2 on word_embeddings" in " ".join(repr(words.runs[0].run).split())
    assert replace(attention.runs[0], manifest={}).regime == attention.runs[0].regime == "lora"
    assert [condition.is_full for condition in group.conditions] == [True, False, False, False, False]
    assert [pair.first.label for pair in pair_conditions(group)] == ["full fine-tuning"] * 4
    pairs = pair_conditions(group, [("full fine-tuning", attention.label), (attention.label, "feature extraction")])
    assert [pair.seeds for pair in pairs] == [[0, 1], [0]]
    assert [differing_settings(pair.first, pair.second) for pair in pairs] == [[], []]
    assert differing_settings(*group.conditions[1:3]) == ["lora_alpha"]
    assert (attention.is_proven_frozen(W), words.is_proven_frozen(W)) == (True, False)


def test_what_drift_bought_is_told_by_the_same_adapters_but_those_of_tables(trained: Train) -> None:
    both, attention, words = ("query", "value", W), ("query", "value"), (W,)
    own: list[dict[str, Any]] = [{}, {"freeze": "embeddings"}, {"freeze": "backbone"}]
    own += [{"lora": each} for each in (both, attention, words)] + [{"lora": both, "lora_alpha": 4}]
    own += [{"lora": ("query", "embeddings.word_embeddings")}]
    runs = [trained(**each) for each in own]
    scores = [100 * last_accuracy(run) for run in runs]
    joined = toolkit.join_drift(runs).query(f"parameter == '{W}'").set_index("run")
    lines = [joined.loc[run.path.name] for run in runs]
    for one, partner, note in ((0, 1, ""), (3, 4, ""), (5, 2, ""), (6, 4, "lora alpha")):
        assert lines[one]["gain_points"] == pytest.approx(scores[one] - scores[partner])
        assert lines[one]["note"].partition(" also in ")[2] == note
    assert [lines[i]["gain_reason"] for i in (1, 2, 4)] == ["no embedding parameter was trained"] * 3
    assert lines[7]["gain_reason"].startswith("no runs with frozen embeddings")
    alone = toolkit.join_drift([runs[i] for i in (0, 1, 3)]).set_index("run").loc[runs[3].path.name]
    assert alone["gain_points"].isna().all()


def test_the_report_says_what_was_trained_and_what_no_log_tells(trained: Train, tmp_path: Path) -> None:
    runs = [trained(seed=0, **own) for own in ({}, {"lora": ("query", "value")}, {"lora": (W,)})]
    data = ReportData(save_evidence(measure(runs), tmp_path))
    tiles = {tile.title: dict(tile.lines) for tile in tiles_of(data)}
    still, moved = tiles["LoRA r=2 on query, value"], tiles["LoRA r=2 on word_embeddings"]
    still.pop("failed", None)  # so short a training may learn nothing
    assert still == {"trained": "adapters and a new head", "embeddings moved": "0, bit-identical"}
    assert (moved["words moved"][-9:], moved["positions moved"]) == ("% of norm", "0, bit-identical")
    (card,) = (card for card in make_cards(data) if card.id.startswith("drift: ") and "LoRA" in card.id)
    assert (card.verdict, W in card.id) == ("not applicable", True)
    assert "trained by an adapter, not as a table" in card.reason
    assert runs_frame(data.groups)["trainable parameters"].nunique() == 3
    section = drift_and_score_section(data, {})
    (beside,) = (block.text for block in section.blocks if isinstance(block, TextBlock) and "noise" in block.text)
    assert re.search(rf"{W} under LoRA r=2 on {W}: .*trained by an adapter", beside)


@pytest.mark.slow  # whole reports
@pytest.mark.parametrize("words", [(), (W,)], ids=["attention", "words too"])
def test_what_moves_the_rows_of_adapted_tables_is_said_where_there_are_any(
    trained: Train, tmp_path: Path, words: tuple[str, ...]
) -> None:
    runs = [trained(), trained(lora=("query", "value", *words))]
    data = ReportData(save_evidence(measure(runs), tmp_path / "evidence"))
    leads = {section.id: section.lead for section in make_page(data, make_cards(data)).sections}
    assert (ADAPTED in leads["why"]) == bool(words)
    for run, is_adapted in zip(runs, (False, bool(words)), strict=True):
        opened = open_sources([run.path])
        tables = movement.rows_makers(opened) | {"causes": causes.makers(opened)["causes"]}
        lead = movement.rows_section(Computed(opened).add(tables)).lead
        assert (ADAPTED in lead) == is_adapted


def test_a_regime_of_adapters_is_called_so_in_charts() -> None:
    assert regimes_of(pd.DataFrame({"regime": ["none", LORA, "layers.0"]})).tolist() == [
        "full fine-tuning",
        "LoRA",
        "layers.0 frozen",
    ]


@pytest.mark.parametrize("words", [(), (W,)], ids=["attention", "words too"])
def test_a_tuned_model_knows_which_parameters_moved(trained: Train, words: tuple[str, ...]) -> None:
    run = trained(lora=("query", "value", *words))
    loaded, start = open_model(str(run.path)), load_file(Path(run.config.model) / "model.safetensors")
    for name, p in loaded.model.backbone.named_parameters():
        assert p.requires_grad == (p.detach().numpy() != start[name]).any(), name


def test_the_screen_counts_adapters_by_themselves(
    tiny_config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Mock(wraps=run_screen)
    run = finetune(replace(tiny_config, lora=(W, "query"), output_dir=str(tmp_path), max_steps=1), screen=screen)
    title, _, table = screen.print_components.call_args.args
    assert "LoRA r=8 on query, word_embeddings, precision no" in title
    trained = table[table["will_move"] == "yes"]
    layers = [(f"layers.{k}", "is one") for k in range(3)]
    assert [*zip(trained["component"], trained["adapter"], strict=True)] == [(W, "is one"), *layers, ("head", "")]
    said = " ".join(capsys.readouterr().out.split())
    assert f"Frozen: all but adapters and head ({len(run.manifest['frozen']['parameters'])} parameters)" in said


@pytest.mark.slow
def test_attention_alone_learns_word_order_and_moves_no_embedding(tmp_path: Path) -> None:
    """The positive control with a pretrained model: the same head on its frozen features stays near chance."""
    config = RunConfig(
        task="order", output_dir=str(tmp_path), precision="no", max_train_examples=500, epochs=2, batch_size=8
    )
    run = finetune(replace(config, lora=("query", "value"), learning_rate=3e-3))
    assert last_accuracy(run) > 0.95
    assert all(np.array_equal(*ends(run, name)) for name in run.trajectory.parameters)
    assert last_accuracy(finetune(replace(config, freeze="backbone", head_training="epochs"))) < 0.6
