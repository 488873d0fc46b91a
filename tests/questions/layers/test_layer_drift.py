"""Layer drift on tiny runs: what cannot have moved has not, what was planted is found, where it was planted."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.questions.conftest import CHANGED
from tests.refusals import check_refusals
from toolkit.config import RunConfig
from toolkit.pipeline import finetune
from toolkit.questions.layers.command import LayersCommand
from toolkit.questions.layers.forgetting import measure_forgetting
from toolkit.questions.layers.page import APART, answers, groups_of, moved_rows
from toolkit.questions.layers.states import (
    BEFORE_AND_AFTER,
    MEASURES,
    OWN_SEEDS,
    SEED_AND_SEED,
    SHUFFLED,
    compare_layers,
    measure_layer_drift,
    measure_layers,
)
from toolkit.questions.layers.weights import measure_weight_drift
from toolkit.questions.models import open_model
from toolkit.snapshots.store import Run

FREEZES = ("none", "embeddings,layers.0-1")
TEXTS = [
    (f"{start} {noun} was {word}",)
    for start in ("the", "a")
    for noun in ("film", "story", "doctor", "book")
    for word in ("good", "bad", "fine")
]


def test_frozen_layers_do_not_move_and_those_above_do(train: Callable[..., Run]) -> None:
    table = measure_layer_drift([train(freeze="embeddings,layers.0", learning_rate=0.05)])
    assert (set(table.texts), set(table.comparison)) == ({"validation", "ood"}, {BEFORE_AND_AFTER})
    assert set(table.layer) == {0, 1, 2, 3}
    for measure in MEASURES:
        values = table[table.measure == measure].set_index(["texts", "layer"]).value
        for name in ("validation", "ood"):
            assert (values[name, 0], values[name, 1]) == pytest.approx((1, 1), abs=1e-6)
            assert values[name, 3] < 0.9


def test_seeds_are_compared_within_a_condition(train: Callable[..., Run]) -> None:
    runs = [train(seed=seed) for seed in (0, 1)] + [train(shuffle_labels=True)]
    tables = measure_layers(runs, {"own": [("the film was good",), ("bad",), ("a doctor",), ("good good",)]})
    table = tables["layer_drift"]
    assert set(zip(table.texts, table.num_texts, strict=True)) == {("own", 4)}
    pairs = table[table.comparison == SEED_AND_SEED]
    assert set(zip(pairs["first"], pairs["second"], strict=True)) == {("seed 0", "seed 1")}
    assert not pairs.is_shuffled.any()
    assert (table[table.is_shuffled].condition.nunique(), table[~table.is_shuffled].condition.nunique()) == (1, 1)
    assert table.low.isna().all()  # four texts give a value and no interval
    contrasts = tables["contrasts"]
    assert (set(contrasts.comparison), set(contrasts.num_texts)) == ({OWN_SEEDS, SHUFFLED}, {4})
    assert contrasts["value"].notna().all()


def test_a_regime_is_held_against_the_first_one(train: Callable[..., Run]) -> None:
    """Positive and negative control: freezing two layers shows in their layers, freezing them twice shows nowhere."""
    runs = [train(seed=seed, learning_rate=0.02, freeze=freeze) for freeze in FREEZES for seed in (0, 1)]
    tables = measure_layers(runs, {"validation": TEXTS}, labels={run.path.name: run.config.freeze for run in runs})
    own = tables["contrasts"].query("comparison == 'first condition' and measure == 'debiased CKA'").set_index("layer")
    assert set(own.against) == {"none"}
    assert (own["value"][[0, 1, 2]] > 0).all()  # frozen: more similar to before
    assert (own.low[[0, 1]] > 0).all()
    assert (own.num_seeds == 2).all()
    for name, comparison in (("contrasts", OWN_SEEDS), ("means", SEED_AND_SEED)):
        between = tables[name][tables[name].comparison == comparison]
        assert "one pair of seeds: the interval covers new texts, not new seeds" in set(between.note)
        assert not between.note.str.startswith("one seed:").any()
    means = tables["means"].query("measure == 'debiased CKA'").set_index(["condition", "comparison", "layer"])
    full = means.sort_index().loc["none", BEFORE_AND_AFTER]
    assert own.other_similarity.to_numpy() == pytest.approx(full["value"].to_numpy())
    assert (full.low <= full["value"]).all()
    assert (full.high <= 1).all()


def test_random_starts_are_each_their_own(train: Callable[..., Run]) -> None:
    runs = [train(seed=seed, init="random", freeze="backbone") for seed in (0, 1)]
    table = measure_layer_drift(runs).set_index(["comparison", "measure"]).value
    assert table[BEFORE_AND_AFTER, "debiased CKA"].to_numpy() == pytest.approx(1, abs=1e-6)  # frozen
    assert table[SEED_AND_SEED, "debiased CKA"].max() < 0.99


def test_a_layer_that_was_replaced_is_the_one_that_differs() -> None:
    rng = np.random.default_rng(0)
    first = {"texts": [rng.normal(size=(40, 6)) for _ in range(4)]}
    second = {"texts": [layer.copy() for layer in first["texts"]]}
    second["texts"][2] = rng.normal(size=(40, 6))
    for (name, layer, measure), one in compare_layers(first, second).items():
        assert (name, one.num_texts, one.reason) == ("texts", 40, "")
        if layer == 2:
            assert abs(one.value) < 0.35, measure
        else:
            assert (one.value, one.pseudo) == pytest.approx((1, 1))


def test_texts_are_reduced_to_what_was_asked(train: Callable[..., Run]) -> None:
    assert set(measure_layer_drift([str(train().path)], max_texts=10).num_texts) == {10}
    whole = "max_texts must be a whole number of at least 4; got "
    check_refusals(
        ("expected a list of run directories", lambda: measure_layer_drift(train().path)),
        ("at least 4 texts", lambda: measure_layer_drift([train()], {"few": [("good",)]})),
        *((f"{whole}{few}", partial(measure_layer_drift, [train()], max_texts=few)) for few in (-1, 0, 2, 10.0)),
    )


def test_a_run_without_its_model_is_named(tiny_config: RunConfig, tmp_path: Path) -> None:
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), max_steps=1))
    check_refusals(("--save-model", lambda: measure_layer_drift([run])))


def test_every_position_table_has_its_own_before(train: Callable[..., Run]) -> None:
    runs = [train(freeze="backbone"), train(freeze="backbone", positions="zero")] + [
        train(freeze="backbone", positions="shuffled", seed=seed) for seed in (0, 1)
    ]
    table = measure_layer_drift(runs)
    before_and_after = table[(table.comparison == BEFORE_AND_AFTER) & (table.measure == "debiased CKA")].value
    assert before_and_after.to_numpy() == pytest.approx(1, abs=1e-6)  # nothing was trained but the head


def test_the_command_keeps_two_tasks_apart(
    train: Callable[..., Run],
    tiny_files: Callable[[str], dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = (train(), train(**tiny_files("order")))
    assert LayersCommand(places=tuple(str(run.path) for run in runs), out=tmp_path / "report", max_texts=20).run() == 0
    assert "--max-texts 20" in (tmp_path / "report" / "report.md").read_text(), "what repeats it has all its flags"
    shown = capsys.readouterr().out
    assert (shown.count("Similarity of states: mean"), shown.count("Relative drift of the weights: mean")) == (2, 2)
    assert (tmp_path / "report" / "report.md").read_text().count("similarity_by_layer.png") == 2
    assert {path.name[:2] for path in (tmp_path / "report" / "figures").iterdir()} == {"1_", "2_", "we"}


def test_weights_stand_beside_states(train: Callable[..., Run]) -> None:
    """Freezing all but the lowest layer: the states of all layers change, and the weights of one."""
    run = train(freeze="embeddings,layers.1-2", learning_rate=0.05)
    tables = measure_layers([run], {"validation": TEXTS})
    states = tables["means"].query("measure == 'debiased CKA' and comparison == @BEFORE_AND_AFTER").set_index("layer")
    assert (states["value"][[1, 2, 3]] < 0.99).all()
    weights = tables["weight_means"].set_index("component")
    assert weights.relative_drift["layers.0"] > 0
    assert weights.is_identical[["embeddings", "layers.1", "layers.2"]].all()
    own = measure_weight_drift(run, by="layer").set_index("component")
    assert weights.relative_drift["layers.0"] == own.relative_drift["layers.0"]
    (line,) = moved_rows(tables)[1]
    assert "layer 1 alone" in line


def test_a_random_start_has_states_and_no_weights(train: Callable[..., Run]) -> None:
    tables = measure_layers([train(), train(init="random")], {"validation": TEXTS})
    reasons = tables["weight_trends"].set_index("condition").reason
    assert reasons["random init"].startswith("started from random weights")
    assert (tables["weight_means"].condition.nunique(), tables["means"].condition.nunique()) == (1, 2)


def test_texts_that_are_encoded_apart_have_weights_and_no_states(
    train: Callable[..., Run], tiny_files: Callable[[str], dict[str, Any]], tmp_path: Path, capsys
) -> None:
    joint, apart = (train(**tiny_files("pair"), pair_encoding=kind) for kind in ("joint", "separate"))
    assert LayersCommand(places=(str(apart.path),), out=tmp_path / "report").run() == 0
    shown = " ".join(capsys.readouterr().out.split())
    for said in ("Relative drift of the weights: mean", "(--pair-encoding separate)"):
        assert said in shown
    assert "Similarity of states" not in shown
    assert "debiased CKA" not in (tmp_path / "report" / "report.md").read_text()
    tables = measure_layers([joint, apart], max_texts=8)
    assert (tables["means"].condition.nunique(), tables["weight_means"].condition.nunique()) == (1, 2)
    assert answers(tables, groups_of(tables))[1].text.count(APART) == 1


def test_the_command_compares_two_checkpoints_without_a_run(
    train: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(freeze="layers.0")
    start, tuned = str(run.config.model), str(run.path / "model")
    assert LayersCommand(places=(start, tuned), out=tmp_path / "report").run() == 0
    shown = " ".join(capsys.readouterr().out.split())
    for said in ("Relative drift of the weights: mean", "runs made with --save-model"):
        assert said in shown
    assert "Similarity of states" not in shown
    page = (tmp_path / "report" / "report.md").read_text()
    assert ("weight_drift_by_layer.png" in page, "minilm" in page) == (True, False)
    means = pd.read_csv(tmp_path / "report" / "tables" / "weight_means.csv").set_index("component")
    assert means.is_identical["layers.0"]
    own = measure_weight_drift(run, by="layer").set_index("component")
    assert means.relative_drift["layers.1"] == pytest.approx(own.relative_drift["layers.1"], rel=1e-12)
    check_refusals(
        ("is not a run directory", lambda: LayersCommand(places=(start,)).run()),
        ("is not a run directory", lambda: LayersCommand(places=(start, tuned, str(run.path))).run()),
        ("nothing to compare", lambda: LayersCommand(places=()).run()),
        ("--texts: states need runs", lambda: LayersCommand(places=(start, tuned), texts=("a=b",)).run()),
    )


def test_the_embedded_model_is_named_as_such_where_it_takes_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert LayersCommand(places=("minilm", "minilm")).run() == 0
    assert "The embedded model minilm (all-MiniLM-L6-v2)" in capsys.readouterr().out


def test_modules_beside_the_encoder_are_named(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Of two models that differ in a Dense layer alone no layer moved, which is no answer about that one."""
    shutil.copytree(tiny_model("bert"), tmp_path / "made")
    listed = [{"type": f"sentence_transformers.models.{name}", "path": ""} for name in ("Transformer", "Dense")]
    (tmp_path / "made" / "modules.json").write_text(json.dumps(listed))
    for read in (LayersCommand(places=(str(tmp_path / "made"),) * 2).run, lambda: open_model(str(tmp_path / "made"))):
        with pytest.warns(UserWarning, match="its encoder alone is read, without Dense"):
            read()


def test_a_run_is_held_against_its_own_start_whatever_tokens_others_add(
    train: Callable[..., Run], tmp_path: Path
) -> None:
    """Rows drawn for another's new tokens are in another's start: words of theirs are unknown in one without them."""
    (tmp_path / "tokens.txt").write_text("zwick\n")
    texts = {"own": [(f"{text} zwick",) for (text,) in TEXTS]}
    added = {"add_tokens": str(tmp_path / "tokens.txt"), "new_token_init": "random"}
    runs = [train(), train(**added), train(**added, seed=1)]
    found = [measure_layer_drift(own, texts).query("comparison == @BEFORE_AND_AFTER") for own in (runs, *zip(runs))]
    together, *alone = (table["value"].to_numpy() for table in found)
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-9)


def test_data_that_have_changed_are_refused(changed_run: Run) -> None:
    check_refusals((CHANGED, lambda: measure_layer_drift([changed_run])))


def test_of_a_run_that_learned_masked_tokens_states_are_compared_and_its_head_is_not(masked_run: Run) -> None:
    assert measure_forgetting([masked_run])["reason"].str.startswith("the run trained the masked-LM head too").all()
    assert (measure_layer_drift([masked_run])["value"].notna()).any()
