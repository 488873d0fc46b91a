"""What must be read with a report: an under-trained head, the edge of a grid, failed runs and runs at chance."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import sem, t

from tests.comparison.planted import agree
from tests.reporting.conftest import with_tables
from tests.run_directories import rehash, write_manifest
from toolkit.comparison.conditions import Condition, Group
from toolkit.comparison.runs import read_reported
from toolkit.reporting.comparison_report import paper_tables, report_tables
from toolkit.reporting.page import NoteBlock, TableBlock, TextBlock
from toolkit.reporting.topics.caveats import (
    QUALITIES,
    below_floor,
    caveats,
    edge_warning,
    failures,
    linear_probes,
    unstable,
)
from toolkit.reporting.topics.first_screen import BEATEN, PROBED, answers_of
from toolkit.reporting.topics.runs import data_block, data_section, study_sections
from toolkit.reporting.topics.scores import scores_section
from toolkit.reporting.verdict_words import FEW_SEEDS
from toolkit.schema import COLUMNS
from toolkit.snapshots.store import open_run

MINILM = "tuned on single sentences"


def with_probe(read_run, points, num_seeds=2):
    """Full fine-tuning beside feature extraction, whose linear probe is ``points`` above what it reached."""
    runs = [read_run("none", seed, right=0.85) for seed in range(num_seeds)]
    for seed in range(num_seeds):
        reached = last_of(read_run("backbone", seed, right=0.7))
        probe = {"validation": {"accuracy": reached + points / 100, "loss": 0.3}, "ood": {"accuracy": None}}
        runs.append(read_run("backbone", seed, right=0.7, facts={"linear_probe": probe}))
    return runs


def test_a_head_ten_points_below_its_linear_probe_has_both_gaps(read_run, data_of):
    data = data_of(with_probe(read_run, 10.0))
    line = linear_probes(data.groups).iloc[0]
    expected = data.comparison.query("is_reported_split")["difference_points"].iloc[0]
    gaps = {"full_minus_reached_points": expected, "full_minus_linear_probe_points": expected - 10}
    agree(line, **gaps)
    assert "accuracy, of a regression by squared error" in COLUMNS["linear_probe"].meaning


@pytest.mark.parametrize("num_seeds", [2, 3])
def test_full_minus_probe_is_on_the_first_screen_with_its_interval_over_seeds(read_run, data_of, num_seeds):
    runs = with_probe(read_run, 10.0, num_seeds)
    (found,) = [each for each in answers_of(data_of(runs)) if each.question == PROBED]
    gaps = [100 * (last_of(one) - last_of(other)) - 10 for one, other in zip(runs, runs[num_seeds:], strict=False)]
    low, high = t.interval(0.95, num_seeds - 1, np.mean(gaps), sem(gaps))
    (part,) = found.parts
    size, interval = f"{np.mean(gaps):+.1f} points", f"95 %: {low:+.1f} to {high:+.1f}"
    # Of two seeds it is no answer.
    expected = (size, interval, "") if num_seeds > 2 else (FEW_SEEDS[2], size, "open")
    assert (part.name, part.verdict, part.text, part.tone) == ("toy, feature extraction", *expected)
    for others in (runs[:num_seeds], runs[num_seeds:]):
        assert PROBED not in [each.question for each in answers_of(data_of(others))]


@pytest.mark.usefixtures("undrawn")
def test_the_linear_probe_stands_beside_what_was_reached_for_every_task(read_run, data_of):
    data = data_of(with_probe(read_run, 10.0))
    (section,) = [each for each in study_sections(data) if each.id == "comparison"]
    (table,) = [block for block in section.blocks if isinstance(block, TableBlock) and "linear_probe" in block.table]
    assert list(table.table["full_minus_reached_points"]) == [
        f"{value:+.2f}" for value in linear_probes(data.groups)["full_minus_reached_points"]
    ]


def test_features_stand_beside_the_full_condition_that_is_most_like_them_and_every_condition_is_named(
    read_run, data_of
):
    runs = []
    for pooling, points in (("mean", 10.0), ("cls", 20.0)):
        config = {"pooling": pooling}
        for seed in range(2):
            reached = last_of(read_run("backbone", seed, right=0.7, config=config))
            facts = {"linear_probe": {"validation": {"accuracy": reached + points / 100}}}
            runs += [read_run("none", seed, right=0.85, config=config)]
            runs += [read_run("backbone", seed, right=0.7, config=config, facts=facts)]
    labels = {run.path.name: f"{run.config.freeze}-{run.config.pooling}" for run in reversed(runs)}
    found = linear_probes(data_of(runs, labels).groups).set_index("condition")
    assert dict(found["against"]) == {"backbone-mean": "none-mean", "backbone-cls": "none-cls"}


def tuning(*edges):
    lines = [
        {
            "task": task,
            "condition": condition,
            "setting": i,
            "num_seeds": 1,
            "is_chosen": i == 1,
            "is_at_edge": i == 1 and is_edge,
        }
        for task, condition, is_edge in edges
        for i in (0, 1)
    ]
    return pd.DataFrame(lines)


FEATURES = "feature extraction"


@pytest.mark.parametrize(
    ("edges", "text"),
    [
        (
            (("order", FEATURES, True),),
            "Chosen at the edge of a grid, which may do better: feature extraction on order.",
        ),
        ((("order", FEATURES, False), ("a", FEATURES, False)), ""),
        (
            (("order", FEATURES, True), ("a", FEATURES, True), ("a", "LP-FT", True)),
            "Chosen at the edge of a grid, which may do better: feature extraction on order and a; LP-FT on a.",
        ),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_settings_at_the_edge_of_their_grid_are_a_caveat(read_study, data_of, edges, text):
    data = with_tables(data_of(*read_study(num_seeds=1)), tuning=tuning(*edges))
    assert edge_warning(data) == text
    assert (text in caveats(data)) == bool(text)
    (section,) = [each for each in study_sections(data) if each.id == "tuning"]
    assert [b.text for b in section.blocks if isinstance(b, NoteBlock) and b.is_warning] == ([text] if text else [])
    assert "No setting was chosen on the reported split." in section.lead


def test_a_tuning_table_without_the_column_warns_of_nothing(read_study, data_of):
    table = tuning(("order", FEATURES, True)).drop(columns="is_at_edge")
    assert edge_warning(with_tables(data_of(*read_study(num_seeds=1)), tuning=table)) == ""
    assert edge_warning(data_of(*read_study(num_seeds=1))) == ""


FAILED, AT_CHANCE = QUALITIES.values()


@pytest.mark.parametrize("right", [0.2, 0.64, 0.9])
def test_failed_runs_and_those_at_chance_are_counted_by_condition(read_study, data_of, right):
    """The majority class has 60 of 100 items: about 64 right is above it, and not by more than chance."""
    data = data_of(*read_study(tasks=("a", "b"), num_seeds=2, right={FEATURES: right}))
    failed, at_chance = (sum(bool(getattr(run, name)) for run in data.runs) for name in ("is_failed", "is_at_chance"))
    assert (failed == 4, at_chance > 0) == (right < 0.3, right < 0.7)
    text = failures(data)
    assert text in caveats(data)
    for said, count in ((FAILED, failed), (AT_CHANCE, at_chance)):
        assert f"{said}: {count} of 12" + (f"; feature extraction {count} on a" if count else ".") in text
    assert failures(data_of(*read_study(num_seeds=1, right={FEATURES: 0.9}))) == ""


def test_minilm_has_its_caveat_and_others_do_not(read_run, data_of):
    assert MINILM in " ".join(caveats(data_of([read_run(model="minilm")])))
    assert MINILM not in " ".join(caveats(data_of([read_run()])))


def with_duplicates(read_run, task, counts):
    facts = {"name": task, "score": "accuracy", "reported_split": "validation"}
    return [
        read_run(seed=seed, task=task, facts={"task": facts | {"num_near_duplicates": count}})
        for seed, count in enumerate(counts)
    ]


def test_near_duplicates_are_a_range_over_runs_and_no_mean(read_run, data_of):
    runs = with_duplicates(read_run, "a", ({"ood": 0, "validation": 4}, {"ood": 1, "validation": 4}))
    table, missing, *_ = data_section(data_of([*runs, *with_duplicates(read_run, "b", (None,))])).blocks
    lines = [("tiny on a", "ood", "0 to 1", 2), ("tiny on a", "validation", "4", 2)]
    assert [tuple(row) for row in table.table.to_numpy()] == lines
    assert missing == TextBlock(text="Near-duplicates were not looked for in tiny on b.")
    alone = data_section(data_of(with_duplicates(read_run, "b", (None,)))).blocks[0]
    assert alone == TextBlock(
        text="Near-duplicates between training data and scored splits were not looked for "
        "(--remove-near-duplicates does)."
    )


@pytest.mark.parametrize(
    ("config", "hashes", "expected"),
    [
        (
            {
                "train_file": "/home/somebody/reviews/train.tsv",
                "validation_file": "../data/reviews/dev.csv",
                "test_file": ("far=other.jsonl",),
            },
            {"train": "a" * 64, "validation": "b" * 64, "far": "c" * 64},
            {
                "train": ["train.tsv", "a" * 64],
                "validation": ["reviews/dev.csv", "b" * 64],
                "far": ["other.jsonl", "c" * 64],
                "selection": ["train.tsv", "a" * 64],
            },
        ),
        (
            {"dataset": "owner/name", "dataset_config": "plain"},
            {"train": "a" * 64, "validation": "b" * 64},
            {
                "train": ["owner/name plain", "a" * 64],
                "validation": ["owner/name plain", "b" * 64],
                "far": ["owner/name plain", "not recorded"],
            },
        ),
        ({}, {}, {"train": ["toy", "not applicable"], "validation": ["toy", "not applicable"]}),
    ],
    ids=["files", "hub", "built in"],
)
def test_the_data_section_names_every_file_and_its_sha256(config, hashes, expected, make_run):
    run = make_run()
    manifest = json.loads((run.path / "manifest.json").read_text())
    manifest["task"] |= {"data_sha256": hashes, "splits": {name: {"num_examples": 5} for name in expected}}
    write_manifest(run.path, manifest)
    (run.path / "config.json").write_text(json.dumps(json.loads((run.path / "config.json").read_text()) | config))
    rehash(run.path, "config.json")
    block = data_block(Group("tiny on toy", (Condition("full", (read_reported(open_run(run.path), "a"),), "full"),)))
    assert [column.label for column in block.columns.values()][-2:] == ["read from", "sha256"]
    assert {row[0]: list(row[-2:]) for row in block.table.to_numpy().tolist()} == expected
    assert "somebody" not in block.table.to_csv()


def with_floor(read_run, points):
    """Feature extraction whose bag of words is ``points`` below what it reached, beside full fine-tuning far above."""
    runs = []
    for regime, right in (("none", 0.95), ("backbone", 0.7)):
        reached = [last_of(read_run(regime, seed, right=right)) for seed in range(2)]
        bag = np.mean(reached) - points / 100 if regime == "backbone" else 0.3
        floors = {"majority": {"validation": {"accuracy": 0.6}}, "bag_of_words": {"validation": {"accuracy": bag}}}
        runs += [read_run(regime, seed, right=right, facts={"floors": floors}) for seed in range(2)]
    return runs


def last_of(run):
    return run.scores.query("split == 'validation'")["accuracy"].iloc[-1]


def test_a_condition_below_a_bag_of_words_is_said_and_one_above_is_not(read_run, data_of):
    data = data_of(with_floor(read_run, -6.0))
    line = data.floors.query("split == 'validation' and condition.str.startswith('feature')").iloc[0]
    numbers = f"({line['mean']:.3f} for {line['mean'] + 0.06:.3f})"
    assert below_floor(data) == f"Below a bag of words: feature extraction on toy validation {numbers}."
    assert below_floor(data) in caveats(data)
    assert [each.text for each in answers_of(data) if each.question == BEATEN] == [below_floor(data)]
    others = (with_floor(read_run, 6.0), with_floor(read_run, 0.0), [read_run("none")])
    assert [below_floor(data_of(runs)) for runs in others] == [""] * 3


def test_floors_stand_among_the_scores_and_runs_without_have_no_such_table(read_run, data_of):
    data = data_of(with_floor(read_run, -6.0))
    assert len(report_tables(data, [])["floors"]) == len(data.floors) == 4
    lines = scores_section(data, {}).blocks[0].table
    assert list(lines.iloc[:, 0])[-2:] == ["majority class", "bag of words"]
    assert set(lines.iloc[-2:, 1]) == {max(lines.iloc[:-2, 1])}  # the seeds that a floor is a mean over
    assert "floors" not in report_tables(data_of([read_run("none"), read_run("backbone")]), [])


@pytest.mark.parametrize(
    ("score", "seeds", "over"),
    [("spearman", 2, "seeds"), ("spearman", 1, ""), ("pearson", 2, "seeds and items"), (None, 1, "items only")],
)
def test_captions_and_caveats_say_what_intervals_cover(read_run, data_of, score, seeds, over):
    """What these runs call Spearman's is not their answers': its interval is over seeds, of one seed there is none."""
    rights = {"none": 0.85, "backbone": 0.7}
    runs = [
        read_run(name, k, right=own, is_regression=score is not None)
        for name, own in rights.items()
        for k in range(seeds)
    ]
    data = data_of(runs, score=score)
    (section,) = [each for each in study_sections(data) if each.id == "comparison"]
    spans = f"with the interval that decided over {over};" if over else "without intervals;"
    assert f"on each split, {spans}" in section.blocks[0].caption
    printed = paper_tables(report_tables(data, []))["comparison"]
    assert (f"with intervals over {over}" in printed) == bool(over)
    one_seed = [text for text in caveats(data) if text.startswith("Every condition has one seed: ")]
    what = "intervals cover the items and say nothing of other seeds" if over else "nothing is said of other seeds"
    assert one_seed == ([f"Every condition has one seed: {what}."] if seeds == 1 else [])


@pytest.mark.parametrize(
    ("ids", "repeated", "said"),
    [
        ("review-{0}_{1}", 0, "toy validation (100 items, ids begin in 20 ways)"),
        ("item-{2}", 0, ""),  # a name that all share
        ("{2}", 5, "toy validation (100 items, 5 repeat a text)"),
        ("{2}", 4, ""),
    ],
)
def test_what_looks_like_clusters_that_nobody_named_is_said(make_run, data_of, ids, repeated, said):
    splits = {"validation": {"num_examples": 100, "num_repeated_texts": repeated}}
    run = make_run(facts={"task": {"name": "toy", "kind": "classification", "splits": splits}})
    table = run.predictions.query("split == 'validation'")
    table = table.assign(id=[ids.format(i // 5, i % 5, i) for i in table["id"]])
    object.__setattr__(run, "predictions", table)
    found = [text for text in caveats(data_of([run])) if text.startswith("Items may come in clusters")]
    assert bool(found) == bool(said)
    assert said in "".join(found)


def test_scored_items_that_were_trained_on_are_said_beside_the_scores(read_run, data_of):
    """The most of any run, which draw their training examples by their seeds; without any nothing is said."""
    runs = []
    for seed, count in enumerate((12, 30, 0)):
        splits = {"validation": {"num_examples": 100} | ({"num_in_train": count} if count else {})}
        facts = {"task": {"name": "toy", "kind": "classification", "splits": splits}}
        runs.append(read_run("none", seed, facts=facts))
    found = [text for text in caveats(data_of(runs)) if "word for word" in text]
    assert len(found) == 1
    assert "toy validation 30 of 100." in found[0]
    assert not [text for text in caveats(data_of(runs[2:])) if "word for word" in text]


def test_seeds_of_other_numbers_of_training_examples_are_said_to_be_apart(read_run, data_of):
    sizes = (200, 200, 100)
    runs = [read_run("none", seed, config={"max_train_examples": size}) for seed, size in enumerate(sizes)]
    (found,) = [text for text in caveats(data_of(runs)) if "no seeds of one another" in text]
    assert "full fine-tuning on toy (1 run of 100 and 2 runs of 200)" in found
    assert not [text for text in caveats(data_of(runs[:2])) if "no seeds of one another" in text]


@pytest.mark.parametrize(("regime", "after"), [("backbone", "b"), ("none", "b"), ("none", "a")])
def test_what_was_frozen_and_changed_all_the_same_is_said_first_of_all(read_run, data_of, regime, after):
    """By its hashes, or by snapshots that contradict hashes that say it did not."""
    parts = {"word_embeddings": {"before": "a", "after": after}}
    (first, *_) = caveats(data_of([read_run(regime, seed=3, facts={"frozen": {"parameters": parts}})]))
    assert first.startswith("WARNING: these parameters were frozen and have changed all the same: ")
    assert first.endswith(": word_embeddings.")


def test_frozen_runs_that_kept_their_word_are_warned_of_nothing(read_run, data_of):
    runs = [read_run(regime) for regime in ("none", "embeddings", "backbone")]
    assert not [text for text in caveats(data_of(runs)) if "WARNING" in text]


def tried(score):
    """What a setting that was chosen scored on ``selection``."""
    return tuning(("toy", FEATURES, False)).assign(mean_score=score, score="accuracy", num_items=9)


@pytest.mark.usefixtures("undrawn")
def test_a_setting_that_scored_far_more_when_it_was_chosen_is_called_unstable(read_study, data_of):
    runs, labels = read_study(num_seeds=2, right={FEATURES: 0.7})
    data = data_of(runs, labels)
    final = data.scores.query("condition == @FEATURES and is_reported_split")["value"].mean()
    above, below = (with_tables(data, tuning=tried(final + points / 100)) for points in (20.5, 19.5))
    text = unstable(above)
    assert text == (
        f"Chosen, and unstable: feature extraction on toy ({final + 0.205:.3f} when it was chosen, "
        f"{final:.3f} on validation, final runs: 2)."
    )
    assert text in caveats(above)
    (section,) = [each for each in study_sections(above) if each.id == "tuning"]
    assert text in [block.text for block in section.blocks if isinstance(block, NoteBlock)]
    assert "No setting was chosen on the reported split." in section.lead
    assert "`" not in section.lead
    assert unstable(below) == unstable(data) == ""
