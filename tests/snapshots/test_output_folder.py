"""Output folders of a Trainer, as they are found: what is frozen is what the bits say, and nothing is made up."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import toolkit
from tests.refusals import check_refused, refused
from tests.trainer_outputs import train
from toolkit.comparison.conditions import arrange
from toolkit.reporting.sources import find_runs
from toolkit.snapshots.output_folder import OutputFolder


@pytest.fixture(scope="module")
def made(tiny_model, tmp_path_factory):
    return train(tiny_model("bert"), tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def change(path, *names, add=1.0):
    """Change some tensors of a checkpoint."""
    tensors = load_file(path / "model.safetensors")
    for name in names:
        tensors[name] = tensors[name] + np.float32(add)
    save_file(tensors, path / "model.safetensors")


def test_checkpoints_and_the_log_are_what_the_trainer_wrote(folder):
    run = toolkit.open_run(folder)
    assert isinstance(run, OutputFolder)
    assert [(s.epoch, s.step, s.name) for s in run.trajectory] == [(1, 0, "checkpoint-2"), (2, 2, "checkpoint-4")]
    assert run.drift().equals(toolkit.open_runs(str(folder))[0].trajectory.drift())
    assert (run.drift().drop("token_type_embeddings") > 0).all()
    state = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())
    logged = [line for line in state["log_history"] if "eval_dev_accuracy" in line]
    own = run.scores[run.scores["split"] == "dev"]
    assert list(own["accuracy"]) == [line["eval_dev_accuracy"] for line in logged]
    assert list(own["epoch"]) == [1, 2]
    assert set(run.scores["split"]) == {"dev", "other"}
    assert run.recorded["moved"] == sorted(run.recorded["moved"])  # in every process the same
    assert len(run.recorded["moved"]) == 9
    assert not [name for name in run.scores if "second" in name or "runtime" in name]
    assert run.recorded["arguments"]["highest_logged_rate"] == max(
        line.get("learning_rate", 0) for line in state["log_history"]
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"eval_loss": 1, "eval_runtime": 2, "eval_f1": 0.5}, {"validation": {"loss": 1, "f1": 0.5}}),
        ({"eval_loss": 1, "eval_dev_spearman": 0.5}, {"validation": {"loss": 1, "dev_spearman": 0.5}}),
        ({"eval_a_loss": 1, "eval_a_runtime": 1, "eval_a_steps_per_second": 3}, {"a": {"loss": 1}}),
        ({"loss": 1, "learning_rate": 0.1}, {}),
        ({"eval_note": "text", "eval_runtime": 1}, {}),
    ],
)  # fmt: skip
def test_scores_of_each_evaluation_set_are_told_by_the_time_it_took(folder, entry, expected):
    path = folder / "checkpoint-4" / "trainer_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"log_history": [{"epoch": 2.0, "step": 4, **entry}]}))
    found = toolkit.open_run(folder).scores
    lines = {
        line.pop("split"): {k: v for k, v in line.items() if v == v and k not in ("epoch", "step")}
        for line in found.to_dict("records")
    }
    assert lines == expected


WORDS, LAYER, HEAD = (
    "bert.embeddings.word_embeddings.weight",
    "bert.encoder.layer.1.output.dense.bias",
    "classifier.bias",
)


@pytest.mark.parametrize(
    ("changed", "label"),
    [
        ([HEAD], "feature extraction"),
        ([LAYER, HEAD], "embeddings,layers.0,layers.2,pooler (frozen)"),
        (
            [WORDS],
            "position_embeddings,token_type_embeddings,LayerNorm.weight,LayerNorm.bias,layers.0-2,pooler (frozen)",
        ),
        ([], "feature extraction"),
    ],
)
def test_what_is_frozen_is_what_is_the_same_in_every_checkpoint(folder, changed, label):
    for step in (4, 6):
        place = folder / f"checkpoint-{step}"
        shutil.rmtree(place, ignore_errors=True)
        state = json.loads((shutil.copytree(folder / "checkpoint-2", place) / "trainer_state.json").read_text())
        (place / "trainer_state.json").write_text(json.dumps(state | {"epoch": step / 2, "global_step": step}))
    change(folder / "checkpoint-4", *changed)  # and back again in the last
    (group,) = arrange([toolkit.open_run(folder)])
    assert [condition.label for condition in group.conditions] == [label]


@pytest.mark.parametrize("values", [np.float32(1), np.full(3, 1e-12)], ids=["a number", "less than fp32 tells"])
def test_whatever_a_layer_holds_is_compared_as_tables_are(folder, values):
    tensors = load_file(folder / "checkpoint-2" / "model.safetensors")
    for step in (2, 4):
        scaled = tensors | {"bert.encoder.layer.1.scale": np.asarray(1 + step * values)}
        save_file(scaled, folder / f"checkpoint-{step}" / "model.safetensors")
    assert toolkit.open_run(folder).recorded["moved"] == ["layers.1"]


def test_a_model_beside_the_checkpoints_is_the_last_only_where_it_is_known_to_be_later(folder):
    for name in ("config.json", "model.safetensors", "trainer_state.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / "checkpoint-2" / name, folder / name)
    assert toolkit.open_run(folder).recorded["notes"] == [
        "the model beside the checkpoints is that of checkpoint-2, not of the last one"
    ]
    change(folder, WORDS)
    run = toolkit.open_run(folder)
    assert len(run.trajectory) == 2
    assert run.recorded["notes"] == [
        "the model beside the checkpoints is none of these, and its step is not known: it is left out"
    ]
    (folder / "trainer_state.json").write_text(
        json.dumps(
            json.loads((folder / "checkpoint-4/trainer_state.json").read_text()) | {"global_step": 5, "epoch": 2.5}
        )
    )
    run = toolkit.open_run(folder)
    assert [(s.epoch, s.step) for s in run.trajectory] == [(1, 0), (2, 2), (2.5, 3)]
    assert run.recorded["notes"] == []


def test_under_an_adapter_embeddings_alone_are_compared(made, tiny_model, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification

    adapted = get_peft_model(
        AutoModelForSequenceClassification.from_pretrained(tiny_model("bert")), LoraConfig(target_modules=["query"])
    )
    for step in (2, 4):
        adapted.save_pretrained(tmp_path / "run" / f"checkpoint-{step}")
        shutil.copy(made / f"checkpoint-{step}" / "trainer_state.json", tmp_path / "run" / f"checkpoint-{step}")
    runs = toolkit.open_runs(tmp_path / "run", base=tiny_model("bert"))
    (group,) = arrange(runs)
    assert [condition.label for condition in group.conditions] == ["embeddings frozen"]
    assert "more than the embedding parameters could not be compared" in runs[0].recorded["notes"]
    assert runs[0].recorded["moved"] == []


def test_a_sentence_transformers_folder_is_read_where_its_model_is(folder):
    for path in folder.iterdir():
        inner = path / "0_Transformer"
        inner.mkdir()
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            (path / name).rename(inner / name)
        modules = [{"path": "0_Transformer", "type": "Transformer"}, {"path": "1_Pooling", "type": "Pooling"}]
        (path / "modules.json").write_text(json.dumps(modules))
    drift = toolkit.drift_table(toolkit.open_runs(folder))
    assert (drift["drift_percent"].dropna() > 0).all()
    assert set(drift["model"]) == {"BertForSequenceClassification"}


def test_what_is_no_run_is_refused_or_left_out_in_one_line(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_refused("no run fits 'nothing/\\*'", toolkit.open_runs, "nothing/*")
    check_refused("no run directory at missing", toolkit.open_runs, ["missing"])
    (tmp_path / "empty").mkdir()
    shutil.copytree(folder / "checkpoint-2", tmp_path / "model")
    assert [run.path.name for run in toolkit.open_runs("*")] == ["run"]
    check_refused("model is a model and no run", toolkit.open_run, "model")
    other = shutil.copytree(folder, tmp_path / "pickled") / "checkpoint-4" / "model.safetensors"
    other.rename(other.with_name("pytorch_model.bin"))
    line, model = find_runs([folder, tmp_path / "pickled", folder / "checkpoint-2"]).left_out
    assert model == "run/checkpoint-2 is left out: it is one checkpoint of a training: pass the folder that it lies in."
    assert line.startswith("pickled is left out: checkpoint-4 holds weights only as a pickle (pytorch_model.bin)")
    assert str(tmp_path) not in line
    (folder / "checkpoint-4" / "trainer_state.json").write_text(json.dumps({"global_step": 4, "epoch": 0.5}))
    with refused("checkpoint-4 is of epoch 0.5, checkpoint-2 of epoch 1: these are of two trainings"):
        toolkit.drift_table([folder])


@pytest.mark.parametrize("place", ["checkpoint-4", "."])
@pytest.mark.parametrize("entry", [{"global_step": "4"}, {"global_step": None}, {"epoch": [2]}, {"log_history": 3}])
def test_a_state_of_other_types_is_one_line(folder, place, entry):
    state = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())
    (folder / place / "trainer_state.json").write_text(json.dumps(state | entry))
    shutil.copy(folder / "checkpoint-4" / "model.safetensors", folder)
    with refused(rf"trainer_state\.json has a {next(iter(entry))} of another type"):
        _ = toolkit.open_run(folder).scores, toolkit.open_run(folder).trajectory


def test_one_checkpoint_proves_nothing_frozen(folder, tiny_model):
    """It is the same as itself: save_total_limit=1 would else have called every run feature extraction."""
    shutil.rmtree(folder / "checkpoint-2")
    with refused("run holds one checkpoint, checkpoint-4, which alone says nothing of change: pass base="):
        toolkit.drift_table(toolkit.open_runs([folder]))
    (condition,) = arrange(toolkit.open_runs([folder], base=tiny_model("bert")))[0].conditions
    assert condition.is_full


@pytest.fixture(scope="module")
def others(tiny_model, tmp_path_factory):
    """Two further seeds of the training of ``made``, the second without moving its embeddings."""
    place = tmp_path_factory.mktemp("others")
    return [
        train(tiny_model("bert"), place / f"{seed}", regime, seed) for seed, regime in ((1, "none"), (2, "embeddings"))
    ]


@pytest.mark.parametrize("of_another", ["checkpoint-2", "checkpoint-4"])
def test_checkpoints_of_two_trainings_are_no_trajectory(folder, others, tiny_model, of_another):
    """Steps and epochs ascend in both; the log of the later does not begin with that of the earlier."""
    shutil.rmtree(folder / of_another)
    shutil.copytree(others[0] / of_another, folder / of_another)
    for base in (None, tiny_model("bert")):
        check_refused("these are of two trainings", toolkit.open_runs, folder, base=base)


def test_a_log_that_was_not_kept_says_nothing(folder, tiny_model):
    """Of a Trainer that logged nothing, or whose state is gone."""
    for path in folder.glob("checkpoint-*/trainer_state.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"log_history": []}))
    assert toolkit.open_runs(folder, base=tiny_model("bert"))[0].doubts == []
    (folder / "checkpoint-2/trainer_state.json").unlink()
    assert toolkit.open_runs(folder, base=tiny_model("bert"))[0].doubts == []


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_checkpoint_of_the_training_itself_is_no_base(folder, tmp_path, is_moved):
    base = folder / "checkpoint-2"
    base = shutil.copytree(base, tmp_path / "elsewhere") if is_moved else base
    check_refused("is a checkpoint of this training", toolkit.open_runs, folder, base=base)


def test_a_checkpoint_amid_another_training_is_a_base_in_doubt(folder, others, tiny_model, tmp_path):
    base = shutil.copytree(tiny_model("bert"), tmp_path / "base")
    doubt = "the base base is of step 2 of 4 of another training"
    for name, doubts in (("checkpoint-2", [doubt]), ("checkpoint-4", [])):  # the second one is over
        shutil.copy(others[0] / name / "trainer_state.json", base)
        assert [found.partition(":")[0] for found in OutputFolder(folder, base=base).doubts] == doubts


def test_a_training_that_was_cut_short_is_told(folder, tiny_model):
    shutil.rmtree(folder / "checkpoint-4")
    with pytest.warns(UserWarning, match="of step 2 of 4: training was cut short"):
        (run,) = toolkit.open_runs(folder, base=tiny_model("bert"))
    assert run.doubts[0] in run.recorded["notes"]


def silenced(made, path, add):
    """A copy of a training that logged nothing, and whose head is another one by ``add``."""
    copy = shutil.copytree(made, path)
    for state in copy.glob("checkpoint-*/trainer_state.json"):
        state.write_text(json.dumps(json.loads(state.read_text()) | {"log_history": []}))
        change(state.parent, HEAD, add=add)
    return copy


def test_one_training_counts_once(made, others, tiny_model, tmp_path):
    """Copies, whole or cut, are no seeds; trainings that moved no embedding are, as are those that logged nothing."""
    whole, cut = (shutil.copytree(made, tmp_path / name) for name in ("whole", "cut"))
    shutil.rmtree(cut / "checkpoint-4")
    silent, other, same = (silenced(made, tmp_path / str(i), add) for i, add in enumerate((1.0, 2.0, 1.0)))
    base = tiny_model("bert")
    for one, another in ((whole, made), (cut, made), (silent, same)):
        runs = [OutputFolder(path, base=base) for path in (one, another)]
        check_refused("are of one training, which counts once", arrange, runs)
    assert len(arrange([OutputFolder(path, base=base) for path in (made, *others, silent, other)])) == 1


def test_what_is_passed_in_place_of_a_training_is_answered_with_what_to_pass(made, tmp_path):
    refusals = {
        "is a Trainer's output folder: nothing says what its files were": (toolkit.verify_run, made),
        "holds output folders of a Trainer, run: pass one of these": (toolkit.import_checkpoints, [made.parent]),
        "is one checkpoint of a training: pass the folder that it lies in": (toolkit.open_run, made / "checkpoint-2"),
    }
    for said, (function, place) in refusals.items():
        check_refused(said, function, place)
