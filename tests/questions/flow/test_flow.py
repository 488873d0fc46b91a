"""Checkpoints and runs in, tables out: conditions, seeds, references, the command, one line for what cannot be."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.exits import exit_code_of
from tests.models.test_remote_code import Plant
from tests.models.test_remote_code import marker as marker
from tests.models.test_remote_code import plant as plant
from tests.questions.conftest import CHANGED
from tests.refusals import check_refusals
from toolkit.config import RunConfig
from toolkit.models.tuned import load_untuned
from toolkit.pipeline import finetune
from toolkit.questions.flow.command import FlowCommand
from toolkit.questions.flow.measure import (
    PRETRAINED,
    RANDOM,
    FlowSettings,
    _fingerprint,
    _loader,
    measure_flow,
    open_subjects,
)
from toolkit.snapshots.store import Run

SMALL = FlowSettings(num_positions=8, num_blocks=3, shift=4, num_texts=12, num_tokens=200)
TinyModel = Callable[[str], Path]


@pytest.fixture(scope="module")
def runs(tiny_pairs: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds of full fine-tuning and one of feature extraction, on pairs."""
    out = str(tmp_path_factory.mktemp("flow"))
    conditions = [("none", 0), ("none", 1), ("backbone", 0)]
    configs = [replace(tiny_pairs, freeze=f, seed=s, output_dir=out, save_model=True, epochs=1) for f, s in conditions]
    return [finetune(config).path for config in configs]


@pytest.fixture(scope="module")
def tables(runs: list[Path]):
    """Of all texts, so that a score before is that of the run."""
    return measure_flow(runs, settings=replace(SMALL, num_texts=1000))


@pytest.mark.slow  # whole tables
def test_every_model_stands_in_every_table(tables) -> None:
    models = tables["models"]
    assert list(models["condition"]) == [
        PRETRAINED,
        "full fine-tuning",
        "full fine-tuning",
        "feature extraction",
        RANDOM,
    ]
    assert all({*tables[name]["run"]} == {*models["run"]} for name in ("ledger", "decoding", "counterfactuals"))
    assert [*zip(models["num_segments"], models["seed"].fillna(-1), strict=True)] == [(2, s) for s in (-1, 0, 1, 0, -1)]


def test_feature_extraction_has_the_pretrained_body_and_its_own_head(tables) -> None:
    body = tables["models"].set_index("condition")["body"]
    assert (body["feature extraction"], body["full fine-tuning"].nunique()) == (body[PRETRAINED], 2)
    ledger = tables["ledger"]
    own = [
        ledger[ledger.condition == condition].omega_squared.to_numpy()
        for condition in (PRETRAINED, "feature extraction")
    ]
    assert own[0].tobytes() == own[1].tobytes()
    with_score = set(tables["counterfactuals"].query("measure == 'score'")["condition"])
    assert with_score == {"full fine-tuning", "feature extraction"}


def test_equal_weights_in_another_forward_pass_are_another_body(tiny_pairs: RunConfig, tmp_path: Path) -> None:
    run = finetune(
        replace(tiny_pairs, freeze="backbone", reinject_positions=True, output_dir=str(tmp_path), max_steps=1)
    )
    again, plain = load_untuned(run), replace(load_untuned(run), positions=None)
    assert _fingerprint(again) == _fingerprint(load_untuned(run)) != _fingerprint(plain)
    plain.model.backbone.config.layer_norm_eps *= 10
    assert _fingerprint(plain) != _fingerprint(replace(again, positions=None))
    ledger = measure_flow([run.path], settings=SMALL)["ledger"].set_index("condition").omega_squared
    own = ledger[[condition for condition in ledger.index.unique() if condition.startswith("feature extraction")]]
    assert (own.to_numpy() != ledger[PRETRAINED].to_numpy()).any()


def test_the_score_before_is_that_of_the_run(tables, runs: list[Path]) -> None:
    from toolkit.snapshots.store import open_run

    outputs = tables["counterfactuals"]
    own = outputs[(outputs.measure == "score") & (outputs.run == runs[0].name)]
    scores = open_run(runs[0]).scores
    last = scores[(scores.epoch == scores.epoch.max()) & (scores.split == "validation")].accuracy.iloc[0]
    assert own.reference.iloc[0] == pytest.approx(last)


def test_the_command_and_python_have_the_same_defaults() -> None:
    command = FlowCommand(("minilm",))
    flags = {name: getattr(command, name) for name in ("shift", "num_texts", "seed")}
    assert FlowSettings(num_positions=command.positions, num_blocks=command.blocks, **flags) == FlowSettings()


def test_a_checkpoint_on_texts_of_a_file(tiny_model: TinyModel, tiny_files) -> None:
    path = Path(tiny_files("pair")["train_file"])
    tables = measure_flow([tiny_model("bert")], texts=path, text_columns=("text", "other"), settings=SMALL)
    assert (list(tables["models"]["condition"])[-1], set(tables["ledger"]["group"])) == (RANDOM, {path.stem})
    assert (tables["counterfactuals"]["measure"] == "state").all()


@pytest.mark.slow  # whole reports
def test_the_command_writes_the_report(tiny_model: TinyModel, tiny_files, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "toolkit.questions.flow.measure.FlowSettings", partial(FlowSettings, num_tokens=SMALL.num_tokens)
    )
    flags = ["--positions", "8", "--blocks", "3", "--shift", "4", "--num-texts", "12", "--task", "pair"]
    assert exit_code_of("flow", tiny_model("bert"), *flags, "--out", tmp_path / "out") == 0
    assert "Does position dominate, and then give way?" in capsys.readouterr().out
    text = (tmp_path / "out" / "report.md").read_text()
    assert "--positions 8 --blocks 3 --shift 4 --num-texts 12" in text.replace("\\", "")
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-folder/x/y"], "no folder at"),
        (["{bert}", "--texts", "nowhere.tsv"], "no file at"),
        (["{bert}", "--positions", "0"], "--positions must be at least 1"),
        (["{bert}", "--seed", "-1"], "--seed must be between 0"),
        (["{bert}", "--positions", "47"], "more than the 48 positions"),
        (["{bert}", "--positions", "99999999999"], "more than the 48 positions"),
        (["{bert}", "--texts", "{empty}", "--text-columns", "a", "b"], "the text is empty"),
    ],
)
def test_bad_input_is_one_line(words, message, tiny_model: TinyModel, tmp_path, capsys) -> None:
    empty = tmp_path / "pairs.tsv"
    empty.write_text("a\tb\n \t\nx\ty\n")
    words = [word.format(bert=tiny_model("bert"), empty=empty) for word in words]
    assert exit_code_of("flow", *words) == 2
    assert re.match(f"error: .*{message}", capsys.readouterr().err.strip().splitlines()[-1])


def test_the_code_of_a_checkpoint_is_not_asked_for(plant: Plant) -> None:
    check_refusals(
        (r"its own code \(auto_map\) is never run", lambda: measure_flow([plant("planted")], settings=SMALL))
    )


def test_a_run_without_its_model_says_what_to_do(tiny_config: RunConfig, tmp_path) -> None:
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), max_steps=1))
    in_no_list = r"expected a list of run directories; got .* alone: put it in a list"
    check_refusals(
        *((in_no_list, partial(measure_flow, alone)) for alone in (run, run.path, "minilm")),
        *(("--save-model", partial(measure_flow, [place], settings=SMALL)) for place in (run, run.path)),
        ("holds no model", lambda: open_subjects([run.path])),  # before any model is looked at
    )


def test_feature_extraction_that_kept_no_model_is_the_body_from_before(tiny_config: RunConfig, tmp_path) -> None:
    run = finetune(replace(tiny_config, output_dir=str(tmp_path), max_steps=1, freeze="backbone"))
    open_subjects([run.path])
    loaded = _loader(run)()
    assert all(
        torch.equal(now, before)
        for now, before in zip(
            loaded.model.backbone.parameters(), load_untuned(run).model.backbone.parameters(), strict=True
        )
    )


def test_a_run_that_tags_words_is_refused_at_once_and_its_body_is_not(tiny_config: RunConfig, tmp_path, monkeypatch):
    own = {"train_file": None, "validation_file": None, "test_file": (), "text_columns": (), "task": "roles"}
    run = finetune(
        replace(tiny_config, **own, output_dir=str(tmp_path), max_train_examples=16, max_steps=1, save_model=True)
    )
    body = measure_flow([run.path / "model"], texts=Path(tiny_config.train_file), settings=SMALL)
    assert set(body["counterfactuals"]["measure"]) == {"state"}
    monkeypatch.setattr("toolkit.questions.flow.measure.task_of", lambda _: pytest.fail("its data were read"))
    said = r"this run tags words: look at its body instead, .*model .*--texts"
    check_refusals((said, lambda: measure_flow([run], settings=SMALL)))


def test_checkpoints_of_one_name_are_two_models(tiny_model: TinyModel, tmp_path: Path) -> None:
    """Folders elsewhere are shown by their last part, which two of them may share."""
    for name, kind in (("a", "bert"), ("b", "electra")):
        shutil.copytree(tiny_model(kind), tmp_path / name / "model")
    models = measure_flow([tmp_path / "a" / "model", tmp_path / "b" / "model"], settings=SMALL)["models"]
    assert list(models["condition"]) == ["model", "model (2)", RANDOM]
    assert models[["run", "family"]][:2].to_numpy().tolist() == [["model", "BERT"], ["model (2)", "ELECTRA"]]


def test_data_that_have_changed_are_refused(changed_run: Run) -> None:
    check_refusals((CHANGED, lambda: open_subjects([changed_run.path])))


def test_a_run_that_learned_masked_tokens_is_refused(masked_run: Run) -> None:
    check_refusals(("and this run tells masked tokens", lambda: measure_flow([masked_run])))
