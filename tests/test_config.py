"""RunConfig: round trips, what the digest covers, and one clear line for every mistake."""

import hashlib
import json
import pickle
import shlex
from copy import deepcopy
from dataclasses import asdict, fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.refusals import check_refused
from toolkit.cli import parse_config
from toolkit.config import RunConfig, check_regime, digest, fields_that, run_name
from toolkit.naming import lookup

CHANGES = {
    "model": "other",
    "task": "order",
    "freeze": "embeddings",
    "pooling": "cls",
    "features": "last4-concat",
    "pair_encoding": "separate",
    "head": "mlp",
    "head_training": "early-stopping",
    "init": "random",
    "seed": 1,
    "epochs": 2,
    "max_steps": 5,
    "batch_size": 16,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-5,
    "embedding_learning_rate": 1e-6,
    "layer_decay": 0.9,
    "head_learning_rate": 1e-2,
    "weight_decay": 0.0,
    "warmup_fraction": 0.2,
    "max_gradient_norm": 2.0,
    "dropout": 0.0,
    "max_length": 64,
    "max_train_examples": 100,
    "head_epochs": 2,
    "selection_fraction": 0.2,
    "remove_near_duplicates": True,
    "shuffle_labels": True,
    "label_seed": 3,
    "optimizer": "sgd",
    "positions": "shuffled",
    "reinject_positions": True,
    "add_tokens": "new words.txt",
    "new_token_init": "random",
    "train_rows": "new",
    "lora": ("query", "value"),
    "lora_rank": 4,
    "lora_alpha": 16,
    "batch_tokens": 2048,
    "precision": "bf16",
    "snapshot_steps": "log",
    "train_file": "a.tsv",
    "validation_file": "b.tsv",
    "test_file": ("ood=c d.tsv", "x=y.tsv"),
    "ood_file": ("far=e f.tsv",),
    "task_name": "my reviews",
    "dataset": "owner/name",
    "dataset_config": "plain",
    "text_columns": ("a", "b"),
    "label_column": "y",
    "label_kind": "classes",
    "tsv_quotes": "strip",
    "cluster_column": "review",
    "objective": "mlm",
    "mlm_probability": 0.3,
    "output_dir": "elsewhere",
    "overwrite": True,
    "save_model": True,
    "log_with": "tensorboard",
    "resume": False,
    "resume_steps": 100,
    "ddp_timeout": 60,
    "deterministic": True,
}
"""One other value for every field; a field without one fails the first test."""

ADDED, LORA = {"add_tokens": "new words.txt"}, {"lora": ("all-linear",)}
NEEDED = {"label_seed": {"shuffle_labels": True}, "new_token_init": ADDED, "train_rows": ADDED, "lora_rank": LORA}
NEEDED |= {"mlm_probability": {"objective": "mlm"}, "lora_alpha": LORA}
"""What else a field's other value needs."""

FIRST = """
model task freeze pooling init seed epochs max_steps batch_size gradient_accumulation_steps learning_rate
head_learning_rate weight_decay warmup_fraction max_gradient_norm dropout max_length max_train_examples precision
snapshot_steps train_file validation_file test_file dataset dataset_config text_columns label_column output_dir
overwrite save_model log_with""".split()  # noqa: SIM905
"""The fields that there were first."""
PLACES = {"output_dir", "overwrite", "save_model", "task_name", "log_with", "resume", "resume_steps", "ddp_timeout"}
FILES = {"train_file", "validation_file", "test_file", "add_tokens"}
"""Fields that the digest of a run does not cover: where things go, and files, which it knows by their sha256."""

DIGEST_OF_THE_DEFAULTS = "13ba40cf"
"""As it was when there were no others."""


def base_and_changed(name: str) -> tuple[RunConfig, RunConfig]:
    base = replace(RunConfig(), **NEEDED.get(name, {}))
    return base, replace(base, **{name: CHANGES[name]})


def test_every_field_has_another_value_here() -> None:
    assert CHANGES.keys() == {field.name for field in fields(RunConfig)}


@pytest.mark.parametrize("name", CHANGES)
def test_config_json_and_command_line_give_the_config_back(name: str) -> None:
    _, config = base_and_changed(name)
    assert RunConfig.from_json(config.to_json()) == config
    parsed = parse_config(shlex.split(config.to_command())[3:])
    assert parsed == (RunConfig() if name in ("output_dir", "overwrite") else config)


@pytest.mark.parametrize("name", CHANGES)
def test_digest_covers_what_changes_the_numbers_and_nothing_else(name: str) -> None:
    base, config = base_and_changed(name)
    assert (digest(config, {}) != digest(base, {})) == (name not in PLACES | FILES)


def test_fields_that_came_later_leave_the_names_of_older_runs() -> None:
    own = asdict(RunConfig(epochs=3))
    old = {name: own[name] for name in FIRST if name not in PLACES | FILES}
    text = json.dumps({"fields": old, "data": {}}, sort_keys=True)
    assert digest(RunConfig(), {}) == hashlib.sha256(text.encode()).hexdigest()[:8] == DIGEST_OF_THE_DEFAULTS


def test_every_field_bears_on_numbers_time_or_place() -> None:
    """What a field bears on decides names, comparisons and dry runs: one that bears on nothing is forgotten there."""
    bears = {effect: {*fields_that(affect=effect)} for effect in ("numbers", "time", "place")}
    assert set.union(*bears.values()) == CHANGES.keys()
    assert (bears["place"], bears["numbers"] & PLACES) == (PLACES, set())


def test_what_a_split_is_said_to_be_names_another_run() -> None:
    """Else a run would be taken for finished whose manifest does not say that a split is out of distribution."""
    hashes = {"far": "0" * 64}
    plain, marked, moved = (
        digest(replace(RunConfig(), **changes), hashes)
        for changes in ({"test_file": ("far=a",)}, {"ood_file": ("far=a",)}, {"ood_file": ("far=elsewhere/a",)})
    )
    assert plain == digest(RunConfig(), hashes) != marked == moved


@pytest.mark.parametrize("text", ["none", "embeddings,layers.0-3", "encoder, pooler", "head", "projection,layers.11"])
def test_components_of_every_family_are_known(text: str) -> None:
    check_regime(RunConfig(freeze=text))


@pytest.mark.parametrize(("text", "meant"), [("embedings", "embeddings"), ("none,layrs.K", "layers.K")])
def test_a_component_of_no_family_is_refused(text: str, meant: str) -> None:
    said = rf"unknown regime or component '\w+(\.K)?' \(did you mean '{meant}'\?\)"
    check_refused(said, check_regime, RunConfig(freeze=text))


@pytest.mark.parametrize("changes", [{"epochs": 2}, {"max_steps": 5}])
def test_epochs_of_a_head_that_stops_by_itself_are_refused_before_anything_is_read(changes: dict[str, int]) -> None:
    config = RunConfig(freeze="backbone", **changes)
    check_refused("with a frozen backbone.*--head-training epochs.*early-stopping", check_regime, config)
    check_regime(replace(config, head_training="epochs"))
    check_refused("comes before training the backbone.*leave it out", check_regime, replace(config, head_epochs=2))
    check_regime(replace(config, freeze="none"))


@pytest.mark.parametrize(("name", "meant"), [("lr", "learning_rate"), ("batch", "batch_size"), ("frezze", "freeze")])
def test_a_field_that_there_is_not_names_the_one_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"^unknown field '{name}' \\(did you mean '{meant}'\\?\\)$"):
        RunConfig(**{name: 1})
    config = RunConfig(seed=3)
    assert pickle.loads(pickle.dumps(config)) == deepcopy(config) == replace(RunConfig(), seed=3) == config


def test_digest_covers_the_data() -> None:
    digests = {digest(RunConfig(), data) for data in ({}, {"train": "0"}, {"train": "1"}, {"validation": "0"})}
    assert len(digests) == 4


@given(st.text(min_size=1), st.text(min_size=1))
@example("0" * 300, "none")  # longer than any file name, which the system answers with an error
def test_run_names_are_safe_as_directory_names(model: str, freeze: str) -> None:
    name = run_name(replace(RunConfig(), model=model, freeze=freeze), {})
    assert not set(name) & set('/\\:*?"<>|\0\n ,')
    assert len(name) < 200


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "--epochs must be at least 1; got 0"),
        ({"epochs": 10**22}, "--epochs must be at most 1000000 .--max-steps ends earlier"),
        ({"head_epochs": 10**7}, "--head-epochs must be at most 1000000"),
        ({"train_file": ""}, "--train-file must be a name or path, or left out; got ''"),
        ({"output_dir": ""}, "--output-dir must be a name or path, or left out; got ''"),
        ({"learning_rate": 0.0}, "--learning-rate must be above 0"),
        ({"learning_rate": float("nan")}, "--learning-rate must be above 0"),
        ({"weight_decay": -1.0}, "--weight-decay must be at least 0"),
        ({"warmup_fraction": 1.5}, "--warmup-fraction must be between 0 and 1"),
        ({"dropout": 1.0}, "--dropout must be at least 0 and below 1"),
        ({"seed": -1}, "--seed must be between"),
        ({"label_seed": 1}, "--label-seed 1 goes with --shuffle-labels: pass both, or neither"),
        ({"shuffle_labels": True, "label_seed": -1}, "--label-seed must be between 0 and"),
        ({"optimizer": "adam"}, r"unknown optimizer 'adam' \(did you mean 'adamw'\?\); choose from: adamw, sgd"),
        ({"snapshot_steps": 0}, "--snapshot-steps must be at least 1, or log"),
        ({"text_columns": ("a", "b", "c")}, "--text-columns must be one or two columns"),
        ({"batch_size": 10, "gradient_accumulation_steps": 4}, "must be a multiple of"),
        ({"task_name": ""}, "--task-name must be a name of 1 to 48 characters"),
        ({"task_name": " x"}, "--task-name must be a name"),
        ({"task_name": "a/b"}, "--task-name must be .* without / and"),
        ({"task_name": "a\\b"}, "--task-name must be"),
        ({"task_name": "a\nb"}, "--task-name must be"),
        ({"task_name": "x" * 49}, "--task-name must be"),
        ({"pooling": "men"}, r"unknown pooling 'men' \(did you mean 'mean'\?\); choose from: mean, cls, pooler, last"),
        ({"epochs": "3"}, "epochs must be .*int.*; got '3'"),
        ({"epochs": True}, "epochs must be"),
        ({"snapshot_steps": "every"}, "snapshot_steps must be"),
        ({"epochs": np.float64(1.5)}, r"^epochs must be an integer or None; got 1\.5$"),
        ({"max_steps": np.bool_(True)}, "^max_steps must be an integer or None; got"),
        ({"snapshot_steps": 1.5}, "^snapshot_steps must be an integer or 'log' or None; got"),
        ({"text_columns": "text"}, "^text_columns must be a tuple, each part of it a text; got 'text'$"),
        ({"dropout": "0.1"}, "^dropout must be a number or None; got"),
        ({"lora": 8}, "^lora must be None or a tuple, each part of it a text; got 8$"),
    ],
)
def test_mistakes(changes: dict[str, object], message: str) -> None:
    check_refused(message, replace, RunConfig(), **changes)


def test_numbers_of_numpy_are_kept_as_pythons() -> None:
    given = {
        "batch_size": np.int64(8),
        "max_steps": np.int32(5),
        "weight_decay": np.float32(0.5),
        "dropout": np.int8(0),
    }
    config = RunConfig(**given, learning_rate=np.float64(0.1))
    assert config == RunConfig(batch_size=8, max_steps=5, weight_decay=0.5, dropout=0, learning_rate=0.1)
    assert {type(getattr(config, name)) for name in (*given, "learning_rate")} == {int, float}
    assert RunConfig.from_json(config.to_json()) == config
    assert type(RunConfig(weight_decay=1).weight_decay) is int  # as it was: the digest tells 1 from 1.0


def test_paths_are_kept_as_texts_and_lists_as_tuples() -> None:
    config = RunConfig(model=Path("models/mine"), text_columns=["a", "b"])  # type: ignore[arg-type]
    assert config == RunConfig(model=str(Path("models/mine")), text_columns=("a", "b"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold one JSON object"),
        ('{"modle": "x"}', r"unknown field 'modle' \(did you mean 'model'\?\)"),
        ('{"format": 99}', "newer format than 1: update the toolkit"),
        ('{"format": 0}', "older format than 1: make it again"),
        ('{"format": "2", "seed": 1}', "format '2', which is no integer"),
        ('{"seed": "1"}', r"^config\.json is not the config of a run \(seed must be an integer"),
    ],
)
def test_bad_config_files(text: str, message: str) -> None:
    check_refused(message, RunConfig.from_json, text)


def test_config_json_names_its_format() -> None:
    assert json.loads(RunConfig().to_json())["format"] == 1


def test_lookup_names_the_nearest_and_all() -> None:
    said = r"^unknown thing 'aple' \(did you mean 'apple'\?\); choose from: apple, pear$"
    check_refused(said, lookup, {"apple": 1, "pear": 2}, "aple", "thing")
    # Part of a name is nearer than a likeness.
    check_refused(r"did you mean 'green_pear'\?", lookup, {"peer": 1, "green_pear": 2}, "pear", "thing")
    assert lookup({"apple": 1}, "apple", "thing") == 1
