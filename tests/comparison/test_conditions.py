"""How runs are sorted into groups and conditions, and what is refused."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.refusals import check_refusals, check_refused
from toolkit.comparison.conditions import arrange, canonical_name, differences_beside_seed, differing_settings
from toolkit.comparison.runs import read_reported
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.naming import distinct, shown_path
from toolkit.reporting.topics.runs import runs_frame
from toolkit.snapshots.importers import import_checkpoints


def test_regimes_and_seeds_of_one_task_are_one_group(make_run):
    regimes = ("backbone", "position_embeddings", "none")
    (group,) = arrange([make_run(regime, seed) for seed in (1, 0) for regime in regimes])
    assert group.title == "tiny on toy"
    assert [(condition.label, [run.config.seed for run in condition.runs]) for condition in group.conditions] == [
        ("full fine-tuning", [0, 1]),
        ("position_embeddings (frozen)", [0, 1]),
        ("feature extraction", [0, 1]),
    ]


def test_settings_split_a_condition_and_are_named_only_where_they_differ(make_run):
    (group,) = arrange(
        [make_run(), make_run(config={"learning_rate": 0.5}), make_run("backbone", config={"pooling": "cls"})]
    )
    assert {condition.label for condition in group.conditions} == {
        "full fine-tuning, learning rate 5e-05",
        "full fine-tuning, learning rate 0.5",
        "feature extraction",
    }


def test_a_rate_of_parts_is_named_where_there_is_one_and_the_table_of_runs_has_it(make_run):
    cases = ({}, {"embedding_learning_rate": 1e-6}, {"embedding_learning_rate": 1e-6, "layer_decay": 0.5})
    groups = arrange([make_run(config=case) for case in cases])
    assert [condition.label for condition in groups[0].conditions] == [
        "full fine-tuning, embedding learning rate 1e-06, layer decay 0.5",
        "full fine-tuning, embedding learning rate 1e-06, layer decay 1.0",
        "full fine-tuning, layer decay 1.0",
    ]
    for run in groups[0].runs:
        object.__setattr__(run, "hashes", dict.fromkeys(("config.json", "manifest.json"), "0"))
    assert runs_frame(groups)["learning rate"].tolist() == [
        "5e-05 (embeddings 1e-06, times 0.5 per layer below the top)",
        "5e-05 (embeddings 1e-06)",
        "5e-05",
    ]


def named(make_run, task, seed, config):
    """A run of the task of this content, read from where ``config`` says."""
    return make_run(seed=seed, config=config, facts={"task": {"name": "toy", **task}})


def sizes_of(groups):
    """How many runs each condition of all groups has."""
    return [len(condition.runs) for group in groups for condition in group.conditions]


def test_runs_of_one_label_seed_are_one_condition_and_its_name_says_which_labels_it_learned(make_run):
    shuffled = {"shuffle_labels": True}
    cases = [{}, shuffled, shuffled | {"label_seed": 4}, shuffled | {"label_seed": 5}]
    (group,) = arrange([make_run(seed=seed, config=case) for case in cases for seed in (0, 1)])
    assert [(condition.label, len(condition.runs), condition.is_full) for condition in group.conditions] == [
        ("full fine-tuning", 2, True),
        ("full fine-tuning, shuffled labels (label seed 4)", 2, False),
        ("full fine-tuning, shuffled labels (label seed 5)", 2, False),
        ("full fine-tuning, shuffled labels (another permutation per seed)", 2, False),
    ]
    (alone,) = arrange([make_run(config=shuffled | {"label_seed": 4})])
    assert "label seed 4" in alone.conditions[0].label


def test_conditions_stand_in_the_order_of_their_numbers(make_run):
    (group,) = arrange([make_run(config={"learning_rate": rate}) for rate in (1e-4, 9e-6, 1e-5, 2e-5)])
    assert [condition.runs[0].config.learning_rate for condition in group.conditions] == [9e-6, 1e-5, 2e-5, 1e-4]


def test_other_models_and_tasks_are_other_groups(make_run):
    groups = arrange([make_run(), make_run(task="other"), make_run(model="small"), make_run("backbone")])
    assert [group.title for group in groups] == ["tiny on toy", "tiny on other", "small on toy"]
    assert [len(group.runs) for group in groups] == [2, 1, 1]


def test_files_are_known_by_their_hash(make_run):
    def of_file(place, sha, seed):
        config = {"train_file": f"/{place}/train.csv", "validation_file": f"/{place}/dev.csv"}
        return named(make_run, {"data_sha256": {"train": sha, "validation": "v"}}, seed, config)

    assert len(arrange([of_file("here", "a", 0), of_file("there", "a", 1)])) == 1
    groups = arrange([of_file("here", "a", 0), of_file("there", "b", 1)])
    assert [group.title for group in groups] == ["tiny on toy", "tiny on toy (2)"]


def test_datasets_of_the_hub_are_known_by_what_they_held(make_run):
    """What a name stands for can change; a run from before hashes were kept is one of the others."""
    known = {"train": "t", "validation_matched": "m"}
    cases = [known, known, {}, known | {"train": "u"}, known | {"validation_matched": "n"}]
    hub = {"dataset": "owner/name"}
    runs = [named(make_run, {"data_sha256": hashes}, seed, hub) for seed, hashes in enumerate(cases)]
    assert sizes_of(arrange(runs[:3])) == [3]
    assert [len(arrange([*runs[:2], other])) for other in runs[3:]] == [2, 2]


@pytest.mark.parametrize("known", ["weights_sha256", "revision"])
def test_weights_are_known_by_their_hash_and_the_hub_by_its_commit(make_run, known):
    own, other = ({"model": {known: letter}} for letter in "ab")
    assert sizes_of(arrange([make_run(facts=own), make_run(seed=1, facts=own)])) == [2]
    groups = arrange([make_run(facts=own), make_run(seed=1, facts=other)])
    assert [group.title for group in groups] == ["tiny on toy", "tiny on toy (2)"]


def test_weights_that_are_not_known_are_those_of_the_others(make_run):
    """Of a run from before they were kept, or one that started at random; two kinds of others leave it alone."""
    sha = [{"model": {"weights_sha256": letter}} for letter in "ab"]
    runs = [make_run(facts=sha[0]), make_run(seed=1), make_run(seed=2, config={"init": "random"}, facts=sha[1])]
    (group,) = arrange(runs)
    assert sizes_of([group]) == [2, 1]
    assert len(arrange([*runs, make_run(seed=3, facts=sha[1])])) == 3


def test_only_what_bears_on_embeddings_tells_seeds_apart(make_run):
    files = {"train_file": "t.csv", "validation_file": "v.csv"}
    task = {"name": "toy", "data_sha256": {"train": "t", "validation": "v"}}
    facts = {"task": task, "model": {"weights_sha256": "a"}}
    first = read_reported(make_run(config=files, facts=facts), "one")
    idle = {"snapshot_steps": 5, "gradient_accumulation_steps": 2, "test_file": ("ood=o.csv",)}
    cases = [
        ([], {"config": {name: f"elsewhere+{path}" for name, path in files.items()}, "facts": facts}),
        ([], {"config": files | idle, "facts": facts}),
        ([], {"config": files, "is_finished": False}),
        (["weights"], {"config": files, "facts": facts | {"model": {"weights_sha256": "b"}}}),
        (["task"], {"config": files, "facts": facts | {"task": task | {"name": "other"}}}),
        (["model"], {"config": files, "facts": facts, "model": "other"}),
    ]
    other = task | {"data_sha256": {"train": "other", "validation": "v"}}
    cases.append((["train_data"], {"config": files, "facts": facts | {"task": other}}))
    for seed, (expected, oddities) in enumerate(cases, 1):
        assert differences_beside_seed(first, read_reported(make_run(seed=seed, **oddities), "other")) == expected


def test_a_test_file_is_known_by_its_hash_too(make_run):
    def tested(seed, letter, **config):
        return named(make_run, {"data_sha256": {"t": letter * 64}}, seed, config)

    runs = [tested(0, "a", test_file=("t=a.csv",)), tested(1, "a", test_file=("t=./a.csv",))]
    (group,) = arrange([*runs, tested(2, "b", test_file=("t=a.csv",))])
    assert {condition.label: len(condition.runs) for condition in group.conditions} == {
        "full fine-tuning, test file t aaaaaaaa": 2,
        "full fine-tuning, test file t bbbbbbbb": 1,
    }
    marked = tested(3, "a", ood_file=("t=a.csv",))  # another name, the same numbers
    assert sizes_of(arrange([runs[0], marked])) == [2]


def test_starts_have_words_and_stand_in_their_order(make_run):
    starts = [{"init": "random"}, {"head_epochs": 1}, {}]
    runs = [make_run(config=start) for start in starts] + [make_run("embeddings", config={"head_epochs": 2})]
    (group,) = arrange([*runs, make_run("embeddings"), make_run("backbone"), make_run("backbone", config=starts[0])])
    assert [condition.label for condition in group.conditions] == [
        "full fine-tuning",
        "LP-FT: head first, 1 epoch",
        "embeddings frozen",
        "embeddings frozen, head first, 2 epochs",
        "feature extraction",
        "random init",
        "feature extraction, random init",
    ]
    assert [condition.is_full for condition in group.conditions] == [True, False, False, False, False, False, False]


def of_size(make_run, size, regime="none", seed=0, **more):
    facts = {"task": {"name": "toy", "splits": {"train": {"num_examples": size or 100}}}}
    return make_run(regime, seed, config={"max_train_examples": size, **more}, facts=facts)


def test_sizes_are_conditions_of_one_base_the_smallest_first(make_run):
    (group,) = arrange([of_size(make_run, size, regime) for regime in ("backbone", "none") for size in (None, 80, 9)])
    sizes = [(9, 9), (80, 80), (None, 100)]
    assert [(condition.base, condition.size, condition.num_train_examples) for condition in group.conditions] == [
        (base, *size) for base in ("full fine-tuning", "feature extraction") for size in sizes
    ]
    assert group.conditions[0].label == "full fine-tuning, 9 training examples"
    assert group.conditions[2].label == "full fine-tuning, all training examples"
    (alone,) = arrange([of_size(make_run, 80), of_size(make_run, 80, "backbone")])
    assert [condition.label for condition in alone.conditions] == ["full fine-tuning", "feature extraction"]


def test_labels_name_conditions_in_the_order_of_their_first_appearance(make_run):
    words = {"embeddings": "fixed", "backbone": "probe", "none": "tuned"}
    runs = [make_run(regime, seed) for regime, seed in (*((name, 0) for name in words), ("none", 1), ("backbone", 1))]
    (group,) = arrange(runs[::-1], {run.path.name: words[run.config.freeze] for run in runs})
    assert [
        (condition.label, condition.base, len(condition.runs), condition.is_full) for condition in group.conditions
    ] == [
        ("fixed", "fixed", 1, False),
        ("probe", "probe", 2, False),
        ("tuned", "tuned", 2, True),
    ]


def test_labelled_conditions_have_sizes_too(make_run):
    runs = [of_size(make_run, size, seed=seed) for size in (80, 9) for seed in (0, 1)]
    (group,) = arrange(runs, {run.path.name: "tuned" for run in runs})
    assert [(condition.label, condition.base) for condition in group.conditions] == [
        ("tuned, 9 training examples", "tuned"),
        ("tuned, 80 training examples", "tuned"),
    ]


def test_one_label_may_have_other_settings_in_other_groups_only(make_run):
    faster = {"learning_rate": 0.5}
    runs = [make_run(), make_run(task="other", config=faster), make_run(seed=1, config=faster), make_run("backbone", 1)]
    labels = dict.fromkeys((run.path.name for run in runs), "tuned")
    assert [[condition.label for condition in group.conditions] for group in arrange(runs[:2], labels)] == [
        ["tuned"],
        ["tuned"],
    ]
    rates = "both have the label 'tuned' and differ in learning rate 5e-05 and 0.5"
    check_refusals(
        (rates, lambda: arrange([runs[0], runs[2]], labels)),
        ("differ in freeze none and backbone", lambda: arrange([runs[0], runs[3]], labels)),
        ("no label for tiny_toy_freeze-none_seed-0_0123abcd", lambda: arrange(runs[:2], {"another": "tuned"})),
    )


@pytest.mark.parametrize(("num_right", "is_failed"), [(40, True), (60, True), (61, False), (90, False)])
def test_a_failed_run_is_no_better_than_the_majority_class(make_run, num_right, is_failed):
    """The labels of the reported split are 40 of class 1 and 60 of class 0."""
    run = make_run()
    table = run.predictions
    is_right = table.groupby(["epoch", "split"]).cumcount() < num_right
    object.__setattr__(run, "predictions", table.assign(prediction=table["label"].where(is_right, 1 - table["label"])))
    (condition,) = arrange([run])[0].conditions
    assert (condition.runs[0].is_failed, condition.num_failed) == (is_failed, is_failed)


def test_a_run_of_values_has_no_majority_class(make_run):
    assert not arrange([make_run(is_regression=True)])[0].runs[0].is_failed


def test_refusals_are_one_line(make_run):
    run, unfinished = make_run(), make_run(seed=5, is_finished=False)
    alone = r"expected a list of run directories; got .* alone: put it in a list"
    check_refusals(
        ("no runs to report on", lambda: arrange([])),
        (r"^tiny_toy_freeze-none_seed-5_0123abcd is unfinished .*run it again", lambda: arrange([run, unfinished])),
        ("is given twice", lambda: arrange([run, str(run.path)])),
        ("is given twice", lambda: arrange([run.path, run.path / ".." / run.path.name])),
        ("no run directory at", lambda: arrange(["nowhere"])),
        (alone, lambda: arrange(run)),
        (alone, lambda: arrange(run.path)),
        (alone, lambda: arrange(str(run.path))),
        (alone, lambda: arrange(import_checkpoints([run.path]))),
    )


def test_a_copy_of_a_run_is_a_duplicate(make_run, tmp_path):
    copy = make_run().path.rename(tmp_path / "copy")
    check_refused("are the same run", arrange, [copy, make_run()])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("backbone.embeddings.word_embeddings.weight", "word_embeddings"),
        ("backbone.embeddings.tok_embeddings.weight", "word_embeddings"),
        ("backbone.encoder.layer.0.output.LayerNorm.weight", "backbone.encoder.layer.0.output.LayerNorm.weight"),
        *((name, name) for name in EMBEDDING_PARAMETERS),
    ],
)
def test_names_of_parameters(name, expected):
    assert canonical_name(name) == expected


def test_shown_paths_are_never_absolute(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert shown_path("runs/a") == shown_path(tmp_path / "here" / "runs" / "a") == "runs/a"
    assert shown_path(tmp_path / "elsewhere" / "a") == shown_path("../elsewhere/a") == "a"
    assert shown_path(".") == "."


@pytest.mark.parametrize(
    ("own", "regime", "expected"),
    [
        ({"embedding_learning_rate": 1e-3}, "embeddings", []),  # where it is refused
        ({"embedding_learning_rate": 1e-3}, "backbone", []),
        ({"embedding_learning_rate": 1e-3}, "position_embeddings", ["embedding_learning_rate"]),
        ({"layer_decay": 0.9}, "backbone", []),
        ({"layer_decay": 0.9}, "embeddings", ["layer_decay"]),
        ({"learning_rate": 1e-3}, "embeddings", ["learning_rate"]),
    ],
)
def test_a_setting_of_what_one_condition_freezes_is_no_difference(read_run, own, regime, expected):
    """Nobody could make the conditions equal in it; where both train what it is of, it confounds."""
    first, second = arrange([read_run("none", 0, config=own), read_run(regime, 0)])[0].conditions
    assert differing_settings(first, second) == differing_settings(second, first) == expected


@given(st.lists(st.sampled_from(["a", "a (2)", "a (3)", "a (b)", "b"]), max_size=7))
@example(["a (3)", "a", "a"])
@example(["a (b)", "a"])
def test_titles_are_told_apart_and_stay_where_they_are_alone(names: list[str]) -> None:
    titles = distinct(names)
    assert len(set(titles)) == len(names)
    assert all(title.startswith(name) for title, name in zip(titles, names, strict=True))
    if len(set(names)) == len(names):
        assert titles == names
