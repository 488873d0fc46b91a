"""How runs are sorted into groups and arms, and what is refused."""

import pytest

from toolkit.analysis.comparison.arms import arrange, canonical_name
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.naming import shown_path


def labels(groups):
    return [
        (group.title, [(arm.label, [run.config.seed for run in arm.runs]) for arm in group.arms]) for group in groups
    ]


def test_regimes_and_seeds_of_one_task_are_one_group(make_run):
    runs = [make_run(regime, seed) for seed in (1, 0) for regime in ("backbone", "position_embeddings", "none")]
    assert labels(arrange(runs)) == [
        (
            "tiny on toy",
            [
                ("none (full fine-tuning)", [0, 1]),
                ("position_embeddings (frozen)", [0, 1]),
                ("backbone (feature extraction)", [0, 1]),
            ],
        )
    ]


def test_settings_split_an_arm_and_are_named_only_where_they_differ(make_run):
    runs = [make_run(), make_run(config={"learning_rate": 0.5}), make_run("backbone", config={"pooling": "cls"})]
    (group,) = arrange(runs)
    assert {arm.label for arm in group.arms} == {
        "none (full fine-tuning), learning rate 5e-05",
        "none (full fine-tuning), learning rate 0.5",
        "backbone (feature extraction)",
    }


def test_other_models_and_tasks_are_other_groups(make_run):
    groups = arrange([make_run(), make_run(task="other"), make_run(model="small"), make_run("backbone")])
    assert [group.title for group in groups] == ["tiny on toy", "tiny on other", "small on toy"]
    assert [len(group.runs) for group in groups] == [2, 1, 1]


def test_files_are_known_by_their_hash(make_run):
    def of_file(place, sha, seed):
        config = {"train_file": f"/{place}/train.csv", "validation_file": f"/{place}/dev.csv"}
        task = {"name": "toy", "data_sha256": {"train": sha, "validation": "v"}}
        return make_run(seed=seed, config=config, facts={"task": task})

    assert len(arrange([of_file("here", "a", 0), of_file("there", "a", 1)])) == 1
    groups = arrange([of_file("here", "a", 0), of_file("there", "b", 1)])
    assert [group.title for group in groups] == ["tiny on toy", "tiny on toy (2)"]


def test_refusals_are_one_line(make_run):
    run = make_run()
    with pytest.raises(ValueError, match="no runs to report on"):
        arrange([])
    with pytest.raises(ValueError, match=r"^tiny_toy_freeze-none_seed-5_0123abcd is unfinished .*run it again"):
        arrange([run, make_run(seed=5, is_finished=False)])
    with pytest.raises(ValueError, match="is given twice"):
        arrange([run, str(run.path)])
    with pytest.raises(ValueError, match="is given twice"):
        arrange([run.path, run.path / ".." / run.path.name])
    with pytest.raises(ValueError, match="no run directory at"):
        arrange(["nowhere"])


def test_a_copy_of_a_run_is_a_duplicate(make_run, tmp_path):
    run = make_run()
    copy = tmp_path / "copy"
    run.path.rename(copy)
    with pytest.raises(ValueError, match="are the same run"):
        arrange([copy, make_run()])


def test_names_of_parameters():
    assert canonical_name("backbone.embeddings.word_embeddings.weight") == "word_embeddings"
    assert canonical_name("backbone.embeddings.tok_embeddings.weight") == "word_embeddings"
    assert canonical_name("backbone.encoder.layer.0.output.LayerNorm.weight").startswith("backbone.")
    assert [canonical_name(name) for name in EMBEDDING_PARAMETERS] == list(EMBEDDING_PARAMETERS)


def test_shown_paths_are_never_absolute(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert shown_path("runs/a") == shown_path(tmp_path / "here" / "runs" / "a") == "runs/a"
    assert shown_path(tmp_path / "elsewhere" / "a") == shown_path("../elsewhere/a") == "a"
    assert shown_path(".") == "."
