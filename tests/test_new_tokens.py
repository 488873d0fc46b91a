"""Added tokens: new rows learn, and where they alone are trained all others stay as they were, bit for bit.

Complaints that these tests stand for: huggingface/transformers#35022 (train nothing but the rows of added tokens),
hiyouga/LlamaFactory#10563 (the same by a mask of gradients, which decay and momentum pass).
"""

import copy
import json
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from torch import nn

import toolkit
from tests.by_hand import begin, take_epoch
from tests.conftest import DECODERS, ENCODERS, FAMILY_CONFIGS, saved
from tests.refusals import check_refused
from tests.training.steppers import StepperOfGraphs
from toolkit import Run, finetune
from toolkit.analysis.strata import ADDED, ADDED_UNSEEN
from toolkit.comparison.cards import make_cards
from toolkit.comparison.evidence import Evidence, save_evidence
from toolkit.comparison.measure import exposure_of, measure
from toolkit.comparison.parameter_noise import ONLY_ADDED, drift_of, measure_beyond_noise
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.runs import read_reported
from toolkit.comparison.verdicts import Card
from toolkit.config import RunConfig
from toolkit.models.classifier import Loaded, load_classifier
from toolkit.models.new_tokens import HeldTable, add_tokens, hold_old_rows, with_new_tokens
from toolkit.models.regimes import list_components
from toolkit.models.tuned import load_tuned, load_untuned
from toolkit.reporting.page import ChartBlock, TableBlock, TextBlock
from toolkit.reporting.run_screen import print_result
from toolkit.reporting.sources import Computed, open_sources
from toolkit.reporting.topics import new_tokens
from toolkit.reporting.topics.first_screen import MOVED, answers_of, tiles_of
from toolkit.studies.plan import resolve, run_path
from toolkit.training.encoding import encode_task
from toolkit.training.step import Stepper

W = "word_embeddings"
TOKENS = ("blorp", "zwick", "grumf")
"""Two that texts use, and one that none does."""
OLD = ("excellent", "awful")
ONLY_WORDS = "position_embeddings,token_type_embeddings,LayerNorm.weight,LayerNorm.bias,encoder"
"""With this frozen, nothing but the word table and the head is trained."""


@pytest.fixture(scope="module")
def planted(tiny_config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunConfig]:
    """Words to the config of a task whose label these two words carry and nothing else; added tokens are TOKENS."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "new.txt").write_text("\n".join(TOKENS) + "\n")

    def config(words: tuple[str, str] = TOKENS[:2], **changes: Any) -> RunConfig:
        files = {name: folder / f"{words[0]}-{name}.tsv" for name in ("train", "validation")}
        for name, path in files.items():
            size = 64 if name == "train" else 32
            others = ("film", "doctor", "teacher", "story")
            lines = [f"the {others[i // 2 % 4]} was {words[i % 2]} .\t{'ab'[i % 2]}" for i in range(size)]
            path.write_text("text\tlabel\n" + "\n".join(lines) + "\n")
        own = {"add_tokens": str(folder / "new.txt"), "output_dir": str(folder / "runs"), "text_columns": ()}
        own |= {"train_file": str(files["train"]), "validation_file": str(files["validation"]), "test_file": ()}
        return replace(tiny_config, **(own | changes))

    return config


@pytest.fixture(scope="module")
def trained(planted: Callable[..., RunConfig]) -> Callable[..., Run]:
    """The same with ``reuse_finished``, trained."""
    return lambda *words, **changes: finetune(planted(*words, **changes), reuse_finished=True)


def ends(run: Run) -> tuple[np.ndarray, np.ndarray, slice]:
    """The word table before and after, and its added rows."""
    first = run.manifest["added_tokens"]["first_row"]
    before, after = (np.asarray(run.trajectory.snapshots[i].tensors[W]) for i in (0, -1))
    return before, after, slice(first, first + len(TOKENS))


def accuracy(run: Run) -> float:
    """Of validation at the end."""
    return float(run.scores.query("split == 'validation' and epoch == epoch.max()")["accuracy"].item())


LONG = {"epochs": 8, "learning_rate": 3e-2, "head_learning_rate": 1e-2, "freeze": ONLY_WORDS}


@pytest.mark.parametrize("train_rows", ["new", "all"])
def test_new_words_that_carry_the_label_learn_it(trained: Callable[..., Run], train_rows: str) -> None:
    """huggingface/transformers#35022: the rows of new tokens and a head, beside frozen layers, learn the task."""
    run = trained(train_rows=train_rows, **LONG)
    before, after, new = ends(run)
    assert accuracy(run) == 1
    assert (np.linalg.norm(after[new] - before[new], axis=1)[:2] > 0.1).all()
    assert np.array_equal(np.delete(before, new, 0), np.delete(after, new, 0)) == (train_rows == "new")


def test_frozen_new_words_learn_nothing_as_both_began_at_one_mean(trained: Callable[..., Run]) -> None:
    frozen = trained(freeze="backbone", epochs=8, head_learning_rate=1e-2)
    before, after, new = ends(frozen)
    assert accuracy(frozen) == 0.5
    assert np.array_equal(before, after)
    assert np.allclose(before[new], before[: new.start].astype(np.float64).mean(axis=0), atol=1e-7)


def test_old_words_that_carry_the_label_need_no_new_row(trained: Callable[..., Run]) -> None:
    """The control: with the same settings a label of old words is learned by their own rows, and not by new ones."""
    assert accuracy(trained(OLD, train_rows="all", **LONG)) == 1
    before, after, _ = ends(trained(OLD, train_rows="new", **LONG))
    assert np.array_equal(before, after)


@pytest.mark.parametrize("limit", [1e9, 1e-2])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(("optimizer", "kind"), [("adamw", Stepper), ("adamw", StepperOfGraphs), ("sgd", Stepper)])
def test_old_rows_stay_and_new_ones_go_where_an_independent_loop_takes_them(
    planted: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    optimizer: str,
    kind: type[Stepper],
    decay: float,
    limit: float,
) -> None:
    """hiyouga/LlamaFactory#10563: whatever optimizer, decay and clipping do, no old row changes by a bit."""
    rate = 1e-2 if optimizer == "adamw" else 1.0
    config = planted(
        train_rows="new",
        output_dir=str(tmp_path),
        dropout=0.0,
        epochs=1,
        weight_decay=decay,
        max_gradient_norm=limit,
        learning_rate=rate,
        optimizer=optimizer,
    )
    expected, factors = train_slowly(config)
    monkeypatch.setattr("toolkit.training.loop.Stepper", kind)
    run = finetune(config)
    before, after, new = ends(run)
    ((name, proof),) = run.manifest["frozen"]["parameters"].items()
    assert (name, proof["before"]) == ("backbone.embeddings.word_embeddings.old_rows", proof["after"])
    assert np.array_equal(np.delete(before, new, 0), np.delete(after, new, 0))
    assert np.array_equal(after[new][2], before[new][2])  # which no text used
    assert np.allclose(after[new], expected, rtol=1e-3, atol=1e-5)
    assert np.abs(after[new] - before[new])[:2].max(axis=1).min() > 10 * np.abs(after[new] - expected).max()
    assert np.allclose(run.optimizer_log.clipping_factors, factors, rtol=1e-4)
    assert (run.optimizer_log.clipping_factors < 1).all() == (limit < 1)


def train_slowly(config: RunConfig) -> tuple[np.ndarray, list[float]]:
    """The added rows after an epoch, and the clipping factors, of a loop that shares only model and batches with ours.

    All rows are one parameter; gradients of the old ones are set to 0 before anything sees them, and they are put back
    after each step.
    """
    loaded, data = begin(config)
    loaded = with_new_tokens(loaded, replace(config, train_rows="all"))
    data = encode_task(data.task, loaded, config.max_length)
    first = loaded.added["first_row"] if loaded.added else 0
    table, model = loaded.model.backbone.get_input_embeddings().weight, loaded.model.train()
    start = table.detach().clone()
    is_old = torch.ones(len(table), 1, dtype=torch.bool)
    is_old[first : first + len(TOKENS)] = False
    groups = [
        {
            "params": [p],
            "peak": config.head_learning_rate if name.startswith("head.") else config.learning_rate,
            "weight_decay": 0.0 if p.ndim < 2 or p is table else config.weight_decay,
        }
        for name, p in model.named_parameters()
    ]

    def put_back() -> None:
        with torch.no_grad():
            table.copy_(torch.where(is_old, start, table))

    clipping = take_epoch(model, groups, data, config, lambda: table.grad.masked_fill_(is_old, 0), put_back)
    return table[first : first + len(TOKENS)].detach().numpy(), clipping


ADAPTED = {"lora": ("query",), "lora_rank": 2, "learning_rate": 1e-2, "weight_decay": 0.1}


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_adapters_beside_added_rows_end_where_peft_takes_them(
    family: str, planted: Callable[..., RunConfig], tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """The oracle: peft's own LoRA and trainable_token_indices together, in a loop that shares model and batches."""
    peft = pytest.importorskip("peft", reason="the extra 'peft' is not installed")
    layer, table = ("query", "word_embeddings") if family == "bert" else ("c_attn", "wte")
    own = {"model": str(tiny_model(family)), "pooling": "last" if family in DECODERS else "mean"}
    own |= {"train_rows": "new", "dropout": 0.0, "epochs": 1, "output_dir": str(tmp_path), "save_model": True}
    config = planted(**own, **(ADAPTED | {"lora": (layer,)}))
    run = finetune(config)
    before, after, new = ends(run)
    proofs = run.manifest["frozen"]["parameters"]
    assert {proof["before"] == proof["after"] for proof in proofs.values()} == {True}
    assert any(name.endswith(".old_rows") for name in proofs)
    assert np.array_equal(np.delete(before, new, 0), np.delete(after, new, 0))
    assert (after[new] != before[new]).any(axis=1).tolist() == [True, True, False]
    loaded, data = begin(config)
    loaded = with_new_tokens(loaded, replace(config, train_rows="all", lora=None, lora_rank=8))
    data, model = encode_task(data.task, loaded, config.max_length), loaded.model.train()
    torch.manual_seed(config.seed)
    rows = {table: list(range(new.start, new.stop))}
    options = peft.LoraConfig(r=2, lora_alpha=8, target_modules=[layer], trainable_token_indices=rows)
    adapted = peft.get_peft_model(model.backbone, options)
    groups = [
        {"params": [p], "peak": rate, "weight_decay": 0.1 if p.ndim > 1 and "trainable_tokens" not in name else 0.0}
        for part, rate in ((adapted, config.learning_rate), (model.head, config.head_learning_rate))
        for name, p in part.named_parameters()
        if p.requires_grad
    ]
    take_epoch(model, groups, data, config)
    expected = adapted.merge_and_unload().state_dict()
    found = load_tuned(run).model.backbone.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)
    start = load_untuned(run).model.backbone.state_dict()
    moved = {name for name, tensor in start.items() if not torch.equal(tensor, found[name])}
    assert moved == {n for n in start if n.endswith((f"{layer}.weight", f"{table}.weight"))}
    assert not (run.path / "model" / "adapter").exists()


def test_adapters_beside_added_rows_are_a_condition_of_their_own(
    planted: Callable[..., RunConfig], trained: Callable[..., Run], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("peft", reason="the extra 'peft' is not installed")
    run, plain = trained(train_rows="new", **ADAPTED), trained(add_tokens=None, **ADAPTED)
    assert run_path(resolve(run.config)).name == run.path.name != plain.path.name
    assert run.manifest["regime"]["label"] == plain.manifest["regime"]["label"] == "lora"
    assert ("word_embeddings" in run.manifest["regime"]["frozen_components"], run.optimizer_log is None) == (False,) * 2
    evidence = save_evidence(measure([run, plain]), tmp_path / "evidence")
    conditions = {condition.label: condition for group in ReportData(evidence).groups for condition in group.conditions}
    assert {"LoRA r=2 on query, beside added rows", "LoRA r=2 on query"} == conditions.keys()
    assert not any(condition.adapts_embeddings for condition in conditions.values())
    alone = save_evidence(measure([run]), tmp_path / "alone")
    assert token_cards(alone)["old"].verdict == "equivalent"
    (tile,) = tiles_of(ReportData(alone))
    assert dict(tile.lines)["trained"] == "added rows, adapters and a new head"
    print_result(run, 1.0)
    assert "all but added rows, adapters and head" in " ".join(capsys.readouterr().out.split())


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.lists(st.integers(0, 26), min_size=1, max_size=12))
def test_a_held_table_looks_rows_up_wherever_the_held_ones_are(
    num_new: int, num_before: int, num_behind: int, ids: list[int]
) -> None:
    table = nn.Embedding(num_before + num_new + num_behind, 3)
    rows = range(num_before, num_before + num_new)
    held = HeldTable(table, rows)
    asked = torch.tensor([ids, ids[::-1]]) % len(table.weight)
    assert torch.equal(held(asked), table(asked))
    assert torch.equal(held.whole_table, table.weight)
    for each in (held, table):
        each(asked).square().sum().backward()
    assert torch.allclose(held.weight.grad, table.weight.grad[num_before : rows.stop])
    assert held.old_rows.grad is None


FAMILIES = [*FAMILY_CONFIGS, *ENCODERS, "llama", "gpt2", "gpt_neox"]


def grown(config: RunConfig, folder: Path) -> Loaded:
    """A checkpoint with added tokens and a head of two classes."""
    loaded = load_classifier(str(folder), pooling="mean", num_outputs=2, dropout=0.0)
    return with_new_tokens(loaded, replace(config, model=str(folder)))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_held_table_is_the_same_table_in_every_family(
    family: str, planted: Callable[..., RunConfig], tiny_model: Callable[[str], Path]
) -> None:
    whole, held = (grown(planted(train_rows=rows), tiny_model(family)) for rows in ("all", "new"))
    batch = whole.tokenizer([f"the film was {t} ." for t in TOKENS], return_tensors="pt", padding=True)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    outputs = []
    for loaded in (whole, held):
        loaded.model.eval()
        outputs.append(loaded.model(**inputs))
        outputs[-1].square().sum().backward()
        components = list_components(loaded.model, loaded.family)
        names = [name for own in components.values() for name in own]
        assert sorted(names) == sorted(name for name, _ in loaded.model.named_parameters())
    assert torch.equal(*outputs)
    table: HeldTable = held.model.backbone.get_input_embeddings()
    own = whole.model.backbone.get_input_embeddings().weight
    rows = range(held.added["first_row"], held.added["first_row"] + len(TOKENS))
    assert torch.equal(table.whole_table, own)
    assert torch.allclose(table.weight.grad, own.grad[rows.start : rows.stop], rtol=1e-4, atol=1e-7)
    assert table.weight.grad.any(dim=1).all()
    assert [name.endswith("old_rows") for name in components[W]].count(True) == 1


@pytest.mark.parametrize(
    ("family", "changes"),
    [("roberta", {}), ("albert", {}), ("gpt2", {"pooling": "last"}), ("bert", {"head_epochs": 1})],
)
def test_old_rows_stay_in_other_families_and_where_the_head_is_trained_first(
    family: str, changes: dict[str, Any], planted: Callable[..., RunConfig], tiny_model: Any, tmp_path: Path
) -> None:
    before, after, new = ends(
        finetune(
            planted(
                model=str(tiny_model(family)),
                train_rows="new",
                output_dir=str(tmp_path),
                weight_decay=0.1,
                epochs=1,
                **changes,
            )
        )
    )
    assert np.array_equal(np.delete(before, new, 0), np.delete(after, new, 0))
    assert (after[new] != before[new]).any(axis=1).tolist() == [True, True, False]


def test_a_table_that_is_more_than_a_table_is_refused(
    planted: Callable[..., RunConfig], tiny_model: Callable[[str], Path]
) -> None:
    check_refused(
        r"--train-rows new: the word table of .* is a \w*ScaledWordEmbedding, not",
        grown,
        planted(train_rows="new"),
        tiny_model("gemma3_text"),
    )
    loaded = grown(planted(), tiny_model("bert"))
    loaded.model.backbone.decoder = nn.Linear(16, 3, bias=False)
    loaded.model.backbone.decoder.weight = loaded.model.backbone.get_input_embeddings().weight
    check_refused(r"the word table of .* is tied to decoder.weight", hold_old_rows, loaded)


def test_random_rows_are_normal_by_the_seed_and_every_saved_part_names_them(trained: Callable[..., Run]) -> None:
    runs = [trained(train_rows="new", new_token_init="random", seed=seed, save_model=True) for seed in (0, 1)]
    starts = [ends(run)[0][ends(run)[2]] for run in runs]
    assert not np.allclose(*starts)
    assert 0.5 * 0.02 < starts[0].std() < 2 * 0.02  # initializer_range
    for run in runs:
        before, after, new = ends(run)
        assert run.vocabulary.tokens[new] == TOKENS
        assert run.vocabulary.added_rows == frozenset(range(new.start, new.stop))
        for loaded, table in ((load_untuned(run), before), (load_tuned(run), after)):
            assert np.array_equal(loaded.model.backbone.get_input_embeddings().weight.detach().numpy(), table)
            assert loaded.tokenizer.convert_tokens_to_ids(list(TOKENS)) == list(range(new.start, new.stop))


@pytest.mark.parametrize("init", ["mean", "random"])
def test_rows_that_the_tokenizer_lacked_are_filled_like_those_of_added_tokens(
    init: str, tiny_model: Callable[[str], Path]
) -> None:
    """And not by what the global generator draws: as often as they are made, they are the same."""
    found = []
    for seed in (1, 2):
        loaded = load_classifier(str(tiny_model("bert")), pooling="mean", num_outputs=2)
        size = loaded.model.backbone.get_input_embeddings().num_embeddings
        loaded.tokenizer.add_tokens([f"ghost{i}" for i in range(size - len(loaded.tokenizer) + 2)])
        torch.manual_seed(seed)
        loaded = add_tokens(loaded, TOKENS, init=init, seed=0)
        assert loaded.added["first_row"] == size + 2
        found.append(loaded.model.backbone.get_input_embeddings().weight.detach()[size:])
    assert torch.equal(*found)
    assert torch.equal(found[0][0], found[0][-1]) == (init == "mean")


@pytest.mark.filterwarnings("error")
def test_words_that_an_added_token_splits_are_named(tiny_model: Callable[..., Path]) -> None:
    def add(token: str) -> None:
        add_tokens(load_classifier(str(tiny_model("bert")), num_outputs=2, pooling="cls"), [token], init="mean", seed=0)

    with pytest.warns(UserWarning, match=r"^added tokens .*'excellent' are read in parts now$"):
        add("cellen")
    add("excellently")  # which holds an old word, and is held by none


def test_the_name_of_a_run_covers_what_the_file_holds_and_not_where_it_is(
    planted: Callable[..., RunConfig], trained: Callable[..., Run], tmp_path: Path
) -> None:
    known, names = trained().path.name, []
    for text in ("\n".join(TOKENS) + "\n", "\n".join(TOKENS[:2]) + "\n"):
        (tmp_path / "elsewhere.txt").write_text(text)
        moved = planted(add_tokens=str(tmp_path / "elsewhere.txt"), output_dir=str(tmp_path))
        names.append(finetune(moved, reuse_finished=True).path.name)
        assert run_path(resolve(moved)).name == names[-1]
    assert names[0] == known != names[1]


REFUSED: dict[str, tuple[str | bytes | dict[str, Any], str]] = {
    # What the file holds.
    "empty": ("", "is empty: --add-tokens names a text file"),
    "blank": ("a1\n  \nb1\n", r"line 2: a token must be more than white space"),
    "blank line at the end": ("a1\n\n", r"line 2: a token must be more than white space"),
    "spaces": ("a1\nb1 \n", r"line 2: 'b1 ' begins or ends with white space"),
    "twice": ("a1\nb1\na1\n", r"names 'a1' twice, in lines 1 and 3"),
    "known": ("a1\nfilm\nthe\n", r"already: 'film', 'the'; remove"),
    "known but for case": ("a1\nFilm\n", r"reads 'Film' as its token 'film' already"),
    "twice but for case": ("a1\nA1\n", r"does not give a row of its own to 'A?a?1'"),
    "latin": (b"caf\xe9\n", r"new\.txt cannot be read .*utf-8"),
    # Flags that cannot go together.
    "no file": ({"add_tokens": "nowhere.txt"}, "no file at nowhere.txt: --add-tokens"),
    "a folder": ({"add_tokens": "."}, r"no file at \.: --add-tokens"),
    "no tokens": ({"add_tokens": None, "train_rows": "new"}, "--train-rows new is about added tokens: pass --add-tok"),
    "no tokens to draw": ({"add_tokens": None, "new_token_init": "random"}, "--new-token-init random is about added"),
    "frozen words": (
        {"train_rows": "new", "freeze": "embeddings"},
        "rows of the word table, which --freeze embeddings",
    ),
    "frozen all": ({"train_rows": "new", "freeze": "backbone"}, "rows of the word table, which --freeze backbone"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_added_or_trained_is_one_clear_line(
    case: str, planted: Callable[..., RunConfig], tmp_path: Path
) -> None:
    changes, said = REFUSED[case]
    if not isinstance(changes, dict):
        (tmp_path / "new.txt").write_bytes(changes if isinstance(changes, bytes) else changes.encode())
        changes = {"add_tokens": str(tmp_path / "new.txt")}
    check_refused(said, lambda: finetune(planted(output_dir=str(tmp_path / "runs"), **changes)))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("train_rows", ["new", "all"])
def test_added_rows_are_counted_by_themselves(trained: Callable[..., Run], train_rows: str) -> None:
    run = trained(train_rows=train_rows)
    before, after, new = ends(run)
    rows = toolkit.measure_rows(run, W)
    strata = rows["stratum"].astype(str)
    assert strata[new].tolist() == [ADDED, ADDED, ADDED_UNSEEN]
    assert not strata.drop(range(new.start, new.stop)).isin([ADDED, ADDED_UNSEEN]).any()
    exposed = rows.drop(range(new.start, new.stop)).query("num_steps > 0")
    reported = read_reported(run, run.path.name)
    line = exposure_of(reported, rows.assign(stratum=strata)).iloc[0]
    num_unexposed = len(rows) - len(exposed) - len(TOKENS)
    expected = [len(exposed), num_unexposed, exposed["norm"].median()]
    assert line[["num_exposed", "num_unexposed", "median_exposed"]].tolist() == expected
    assert line["left_by_decay"] < 1e-9 or np.isnan(line["left_by_decay"])
    parts = drift_of(reported).set_index("parameter").loc[W]
    own = exposed.index.to_numpy()
    change, size = ((t[own].astype(np.float64) ** 2).sum() for t in (after - before, before))
    assert parts["exposed_relative_drift"] == pytest.approx(np.sqrt(change / size))
    noise = measure_beyond_noise(run).set_index("parameter").loc[W]
    assert noise["num_exposed_rows"] == len(exposed)
    assert (noise["reason"] == ONLY_ADDED) == (train_rows == "new")


def test_the_log_of_a_held_table_has_gradients_of_new_rows_alone(trained: Callable[..., Run]) -> None:
    run = trained(train_rows="new")
    table, new = run.trajectory.exposure.tables[W], ends(run)[2]
    assert np.array_equal(table.norms > 0, (table.rows >= new.start) & (table.rows < new.stop))
    with np.errstate(all="raise"):
        assert toolkit.decompose(run, W)["drift"].drop(range(new.start, new.stop)).eq(0).all()
        toolkit.explain(run, W)
        assert len(toolkit.sign_noise(run, W, num_replicates=5, num_coordinates=8))


def nearest_slowly(table: np.ndarray, row: int, words: list[int], tokens: tuple[str, ...]) -> str:
    units = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-300)
    cosines = units @ units[row]
    best = sorted(words, key=lambda i: -cosines[i])[:5]
    return ", ".join(f"{tokens[i]} {cosines[i]:.2f}" for i in best)


def ordinary(run: Run) -> list[int]:
    vocabulary = run.vocabulary
    left_out = vocabulary.special_rows | vocabulary.added_rows
    texts = enumerate(vocabulary.tokens)
    return [row for row, text in texts if row not in left_out and text and not text.startswith("[unused")]


def test_the_table_of_added_rows_is_what_a_plain_computation_gives(trained: Callable[..., Run]) -> None:
    run = trained(train_rows="new", new_token_init="random")
    found = toolkit.measure_added_rows(run)
    assert len(found) == len(run.trajectory) * len(TOKENS)
    words, new = ordinary(run), ends(run)[2]
    start = np.asarray(run.trajectory.snapshots[0].tensors[W], np.float64)
    for snapshot in run.trajectory:
        table = np.asarray(snapshot.tensors[W], np.float64)
        lengths = np.linalg.norm(table[words], axis=1)
        median, low, high = (np.quantile(lengths, share) for share in (0.5, 0.05, 0.95))
        own = found[found["epoch"] == snapshot.epoch].set_index("row")
        counts = toolkit.measure_rows(run, W, snapshot.epoch)
        for row, token in zip(range(new.start, new.stop), TOKENS, strict=True):
            expected = {
                "token": token,
                "norm": pytest.approx(np.linalg.norm(table[row] - start[row])),
                "times_old_length": pytest.approx(np.linalg.norm(table[row]) / median),
                "old_length_low": pytest.approx(low / median),
                "old_length_high": pytest.approx(high / median),
                "nearest_old": nearest_slowly(table, row, words, run.vocabulary.tokens),
                "num_steps": counts["num_steps"][row],
                "reason": "",
            }
            assert own.loc[row, [*expected]].to_dict() == expected


@pytest.mark.parametrize("train_rows", ["new", "all"])
def test_the_first_screen_says_that_added_rows_alone_moved(
    train_rows: str, trained: Callable[..., Run], tmp_path: Path
) -> None:
    data = ReportData(save_evidence(measure([trained(train_rows=train_rows)]), tmp_path))
    (tile,) = tiles_of(data)
    (answer,) = (answer for answer in answers_of(data) if answer.question == MOVED)
    is_held = train_rows == "new"
    assert dict(tile.lines)["words moved"].endswith("% (added rows only)" if is_held else "% of norm")
    assert dict(tile.lines)["positions moved"].endswith("% of norm")
    assert answer.text.count(" % (added rows only), positions by ") == is_held


def test_the_screen_says_that_old_rows_are_held(
    trained: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(trained(train_rows="new"), 1.0)
    said = " ".join(capsys.readouterr().out.split())
    assert "Frozen: old word rows (1 parameters), bit-identical" in said
    assert "word_embeddings │ added rows" in said


@pytest.mark.parametrize("rows", [[10**6], ["7"], 7, {"7": 7}])
def test_added_rows_that_are_none_are_one_clear_line(rows: Any, trained: Callable[..., Run], tmp_path: Path) -> None:
    folder = shutil.copytree(trained().path, tmp_path / "run")
    (folder / "manifest.json").unlink()  # which has the hash of the file
    vocabulary = json.loads((folder / "vocabulary.json").read_text())
    (folder / "vocabulary.json").write_text(json.dumps(vocabulary | {"added_rows": rows}))
    with pytest.raises(ValueError, match=r"vocabulary\.json is not a vocabulary of texts and rows"):
        _ = Run(folder).vocabulary


def test_a_model_without_added_tokens_has_no_such_lines(tiny_config: RunConfig, tmp_path: Path) -> None:
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), epochs=1))
    assert "added_rows" not in (run.path / "vocabulary.json").read_text()
    assert toolkit.measure_added_rows(run).empty


@pytest.mark.parametrize("spare", [0, 2, 5])
def test_a_grown_checkpoint_is_compared_row_by_row_and_its_new_rows_are_described(
    spare: int, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """With rows to spare in the first, which tokens of the second then take."""
    before, after = grow(tiny_model("bert"), tmp_path, spare)
    trajectory = toolkit.import_checkpoints([before, after]).trajectory
    tables = [load_file(place / "model.safetensors")["embeddings.word_embeddings.weight"] for place in (before, after)]
    kept = [np.asarray(snapshot.tensors[W]) for snapshot in trajectory]
    num_old = len(tables[0]) - spare
    # Rows to spare that no token takes are in the same place in both.
    rows = np.setdiff1d(np.arange(len(tables[0])), num_old + np.arange(len(TOKENS)))
    assert all(np.array_equal(own, table[rows]) for own, table in zip(kept, tables, strict=True))
    moved = toolkit.measure_rows(trajectory, W)
    assert np.allclose(moved["norm"], np.linalg.norm(kept[1] - kept[0], axis=1))
    assert not moved["stratum"].isin([ADDED, ADDED_UNSEEN]).any()
    found = toolkit.measure_added_rows(trajectory)
    assert list(zip(found["token"], found["row"], strict=True)) == [(t, num_old + i) for i, t in enumerate(TOKENS)]
    assert found[["num_steps", "num_tokens"]].isna().all(axis=None)
    for line in found.to_dict("records"):
        if (row := line["row"]) < len(tables[0]):
            start, moved = tables[0][row].astype(np.float64), float(np.linalg.norm(tables[1][row] - tables[0][row]))
            assert (line["norm"], line["relative"]) == pytest.approx((moved, moved / np.linalg.norm(start)))
            assert (line["reason"], moved > 0) == ("", line["token"] == "blorp")
        else:
            assert np.isnan([line["norm"], line["relative"]]).all()
            assert line["reason"] == "the first checkpoint has no row for it"
    opened = open_sources([before, after])
    text = new_tokens.section(Computed(opened).add(new_tokens.makers(opened))).blocks[0]
    assert f"where {min(spare, 3)} of them stand, and {min(spare, 1)} of these rows moved" in text.text


def test_checkpoints_whose_vocabularies_differ_otherwise_have_no_added_rows(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    before, after = grow(tiny_model("bert"), tmp_path)
    other = shutil.copytree(before, tmp_path / "other")
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text().replace('"film"', '"movix"'))
    for pair in ([after, before], [before, before], [before], [other, after]):
        assert toolkit.measure_added_rows(toolkit.import_checkpoints(pair).trajectory).empty


def grow(folder: Path, out: Path, spare: int = 0) -> tuple[Path, Path]:
    """A checkpoint with so many rows to spare, and what transformers makes of it, its old rows moved."""
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer) + spare)
    saved(model, tokenizer, out / "before")
    tokenizer.add_tokens(list(TOKENS))
    model.resize_token_embeddings(max(len(tokenizer), model.get_input_embeddings().num_embeddings))
    with torch.no_grad():
        model.get_input_embeddings().weight[[9, 10, 11, tokenizer.convert_tokens_to_ids("blorp")]] += 1
    return out / "before", saved(model, tokenizer, out / "after")


@pytest.mark.slow  # whole reports
def test_cards_say_that_new_rows_moved_and_whether_old_ones_did(trained: Callable[..., Run], tmp_path: Path) -> None:
    """huggingface/transformers#35022 and hiyouga/LlamaFactory#10563 as questions with an answer."""
    own = {"learning_rate": 1e-2}
    runs = [trained(train_rows=rows, seed=seed, **own) for rows in ("new", "all") for seed in range(3)]
    runs += [trained(freeze="embeddings", seed=seed, **own) for seed in range(3)]
    data = ReportData(save_evidence(measure(runs), tmp_path))
    made = make_cards(data)
    cards = {card.id: card for card in made if card.kind == "tokens"}
    assert {name.partition(" / ")[2]: card.verdict for name, card in cards.items()} == {
        "full fine-tuning, old word rows held / new": "supported",
        "full fine-tuning, old word rows held / old": "equivalent",
        "full fine-tuning / new": "supported",
        "full fine-tuning / old": "supported",
        "embeddings frozen / new": "equivalent",
        "embeddings frozen / old": "equivalent",
    }
    for card in cards.values():
        condition, kind = card.id.split(" / ")[1:]
        if condition == "embeddings frozen":
            assert (card.value, card.interval.low, card.interval.high, card.detectable_gap) == (0, 0, 0, 0)
            continue
        values = []
        for run in runs[0:3] if condition.endswith("held") else runs[3:6]:
            rows, new = toolkit.measure_rows(run, W), ends(run)[2]
            shares = rows["relative"]
            values.append(shares[new][:2].median() if kind == "new" else shares.drop(range(new.start, new.stop)).max())
        assert card.value == pytest.approx(np.mean(values))
        assert card.num_seeds == 3
        half = 4.302652729911275 * np.std(values, ddof=1) / np.sqrt(3)
        if np.std(values):
            assert card.interval.high == pytest.approx(np.mean(values) + half)
    section = new_tokens.cards_section(data, made)
    (claims,) = (block.table for block in section.blocks if isinstance(block, TableBlock))
    assert len(claims) == len(cards)
    asked = "Is this so: The row of the checkpoint that changed most moved under full fine-tuning, "
    assert any(question.startswith(asked) for question in claims["column_0"])


def token_cards(evidence: Evidence) -> dict[str, Card]:
    """The card on added rows, and that on old ones."""
    found = make_cards(ReportData(evidence))
    return {card.id.rpartition(" / ")[2]: card for card in found if card.kind == "tokens"}


@pytest.mark.parametrize(("times", "verdict"), [(3.0, "supported"), (1.0, "under-powered"), (1 / 3, "the other way")])
def test_new_rows_are_held_against_shuffled_labels_where_there_are_any(
    trained: Callable[..., Run], tmp_path: Path, times: float, verdict: str
) -> None:
    """With labels shuffled new rows "moved" too, in runs that learned nothing: planted, real labels move them more."""
    own = {"learning_rate": 1e-2, "epochs": 1}
    runs = [trained(seed=seed, shuffle_labels=is_shuffled, **own) for is_shuffled in (False, True) for seed in range(3)]
    evidence = save_evidence(measure(runs), tmp_path)
    strata = evidence.strata
    moved = {
        run.path.name: (1 + 0.05 * i) * (times if i < 3 else 1.0) * (1 + 0.1 * (i == 4)) for i, run in enumerate(runs)
    }
    is_new = (strata["stratum"] == ADDED) & (strata["statistic"] == "median")
    planted = strata.assign(value=strata["value"].where(~is_new, strata["run"].map(moved)))
    cards = [card for card in make_cards(ReportData(replace(evidence, strata=planted))) if card.kind == "tokens"]
    (beside,) = [card for card in cards if "further than with shuffled labels" in card.claim]
    assert beside.verdict == verdict
    real, shuffled = (np.log([moved[run.path.name] for run in part]) for part in (runs[:3], runs[3:]))
    assert beside.value == pytest.approx(100 * np.expm1((real - shuffled).mean()))
    said = {("shuffled" in card.id, card.reason.rpartition(": ")[2]) for card in cards if card.id.endswith("new")}
    assert (False, "whether real labels moved them further than shuffled ones stands beside it") in said
    assert (True, "to know that, repeat every seed with --shuffle-labels") in said
    assert "learn" not in "".join(card.claim for card in cards)
    assert {card.num_claims for card in cards if card.q == card.q} == {sum(card.q == card.q for card in cards)}


def test_added_rows_are_held_against_those_that_no_text_showed_where_there_are_any(
    trained: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "seen.txt").write_text("\n".join(TOKENS[:2]) + "\n")
    seen = trained(add_tokens=str(tmp_path / "seen.txt"), output_dir=str(tmp_path))
    nulls = [token_cards(save_evidence(measure([run]), tmp_path / run.path.name))["new"] for run in (trained(), seen)]
    assert [card.null.what for card in nulls] == ["the farthest added row that no text showed", "rows that stay"]


def test_that_old_rows_stayed_is_proven_by_their_hashes_alone(trained: Callable[..., Run], tmp_path: Path) -> None:
    evidence = save_evidence(measure([trained(train_rows="new")]), tmp_path)
    assert token_cards(evidence)["old"].verdict == "equivalent"
    assert "in each of these seeds" in token_cards(evidence)["old"].reason
    facts = copy.deepcopy(evidence.facts)
    (proofs,) = (own["manifest"]["frozen"]["parameters"] for own in facts.values())
    for missing in ("after", "before"):
        (proof,) = proofs.values()
        proof.pop(missing)
        assert token_cards(replace(evidence, facts=facts))["old"].verdict == "not judged"


def test_the_report_of_a_run_says_which_added_rows_left_their_start(trained: Callable[..., Run]) -> None:
    opened = open_sources([trained(train_rows="new").path], at_least=2)
    section = new_tokens.section(Computed(opened).add(new_tokens.makers(opened)))
    num_old = len(opened.trajectory.snapshots[0].tensors[W]) - len(TOKENS)
    text, _, table = section.blocks
    assert [type(block) for block in section.blocks] == [TextBlock, ChartBlock, TableBlock]
    said = "Of 3 added tokens 2 stood in the texts of training, and the rows of 2 of these left their start; of the "
    assert text.text == f"{said}other 1, 0 did. Of the {num_old:,} rows that were there 0 moved, not by a bit."
    assert table.table["token"].tolist() == list(TOKENS)
    assert {"nearest_before", "nearest_old", "drift_percent"} <= table.columns.keys()


def test_checkpoints_without_added_tokens_have_no_such_section(tiny_model: Callable[[str], Path]) -> None:
    opened = open_sources([tiny_model("bert"), tiny_model("bert")])
    assert (new_tokens.makers(opened), [*new_tokens.section(Computed(opened)).blocks]) == ({}, [])


def test_no_grown_table_is_copied(tmp_path: Path) -> None:
    """Of a decoder it has gigabytes: rows are read by blocks."""
    table = np.random.default_rng(0).standard_normal((40_000, 64), dtype=np.float32)
    for name, num in (("before", len(table) - 3), ("after", len(table))):
        (tmp_path / name).mkdir()
        words = {"embeddings.word_embeddings.weight": np.ascontiguousarray(table[:num])}
        save_file(words, tmp_path / name / "model.safetensors", {"format": "pt"})
        config = {"model_type": "bert", "vocab_size": num, "hidden_size": 64}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(num - 5))]
        (tmp_path / name / "vocab.txt").write_text("\n".join(tokens) + "\n")
    trajectory = toolkit.import_checkpoints([tmp_path / "before", tmp_path / "after"]).trajectory
    toolkit.measure_added_rows(trajectory)  # what is read once and kept
    tracemalloc.start()
    try:
        found = toolkit.measure_added_rows(trajectory)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(found["length"], np.linalg.norm(table[-3:].astype(np.float64), axis=1))
    median = np.median(np.linalg.norm(table[5:-3].astype(np.float64), axis=1))
    np.testing.assert_allclose(found["times_old_length"], found["length"] / median)
    assert peak < 0.75 * table.nbytes
