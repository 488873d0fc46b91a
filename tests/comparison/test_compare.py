"""Comparisons of planted answers: numbers by hand and from the array functions, every verdict, nulls and refusals."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.comparison.planted import agree, plant, write_cards
from tests.refusals import check_refusals, check_refused
from tests.run_directories import rehash, write_run
from toolkit.comparison.cards import CLUSTERED, TWO_WAY
from toolkit.comparison.compare import (
    AT_CHANCE,
    NO_MEAN,
    ONE_CLASS,
    SQUARE_COLUMNS,
    Settings,
    compare,
    compare_seeds,
    estimate_from_items,
    estimate_from_seeds,
    estimate_not_failed,
    judge_together,
)
from toolkit.comparison.conditions import NO_SPLIT, OTHER_ITEMS, arrange
from toolkit.comparison.influence import SCORES
from toolkit.comparison.intervals import (
    HELD,
    ITEMS_ONLY,
    ONE_SEED,
    Interval,
    by_cluster,
    held_near_0,
    mcnemar,
    mean_squares,
    p_value,
    seeds_interval,
    sign_flip,
    two_way_interval,
)
from toolkit.comparison.multiplicity import benjamini_hochberg, moderated_p
from toolkit.comparison.parameter_noise import drift_table
from toolkit.comparison.verdicts import CLAIMED
from toolkit.schema import columns_of
from toolkit.snapshots.store import open_run

FULL, PROBE, FIXED = "full fine-tuning", "feature extraction", "embeddings frozen"
NUM_SEEDS = 5


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Paths of five seeds of three regimes, made once: tests plant their own answers."""
    folder = tmp_path_factory.mktemp("runs")
    regimes = ("none", "embeddings", "backbone")
    return {r: [write_run(folder, r, seed, epochs=1).path for seed in range(NUM_SEEDS)] for r in regimes}


def draw(shares, num_items, seed=0, *, num_seeds=NUM_SEEDS):
    """(conditions, seeds, items) independent right answers with the given probabilities."""
    generator = np.random.default_rng(seed)
    return [generator.random((num_seeds, num_items)) < share for share in shares]


def runs_of(places, first, second, regimes=("none", "backbone")):
    both = zip(regimes, (first, second), strict=True)
    return [plant(place, right) for r, condition in both for place, right in zip(places[r], condition, strict=False)]


def one_line(table):
    (line,) = table.to_dict("records")
    return line


def line_of(places, first, second, **options):
    """The one line of a comparison of two conditions of planted answers."""
    return one_line(compare(runs_of(places, first, second), **options))


def test_numbers_are_those_of_the_array_functions(places):
    first, second = draw((0.85, 0.8), 300)
    line = line_of(places, first, second)
    differences = first.astype(float) - second
    wide, narrow = two_way_interval(differences), held_near_0(two_way_interval(differences, 0.90))
    agree(line, difference_points=100 * differences.mean(), first_mean=first.mean(), second_mean=second.mean())
    agree(line, low_points=100 * wide.low, high_points=100 * wide.high, num_seeds=5, num_items=300, df=wide.df)
    agree(line, low90_points=100 * narrow.low, high90_points=100 * narrow.high, q=line["p"], smallest_p=0.0625)
    agree(line, first=FULL, second=PROBE, score="accuracy", split="validation", note="")
    assert line["sign_flip_p"] == sign_flip(differences.mean(axis=1))
    squares = mean_squares(differences)
    agree(line, **{name: 1e4 * own for name, own in zip(SQUARE_COLUMNS, squares, strict=True)})
    agree(line, p=float(moderated_p([differences.mean()], [squares], 5, 300)[0]))


def test_noise_floor_is_the_mean_difference_between_two_seeds_of_one_condition(places):
    conditions = draw((0.85, 0.6), 200)
    means = [condition.mean(axis=1) for condition in conditions]
    gaps = [abs(m[i] - m[j]) for m in means for i in range(NUM_SEEDS) for j in range(i)]
    agree(line_of(places, *conditions), noise_floor_points=100 * np.mean(gaps))


def test_swapping_the_conditions_mirrors_every_number(places):
    runs = runs_of(places, *draw((0.85, 0.8), 200))
    one, other = (one_line(compare(runs, pairs=[pair])) for pair in ((FULL, PROBE), (PROBE, FULL)))
    mirrored = {"difference_points": "difference_points", "low_points": "high_points", "high_points": "low_points"}
    agree(other, **{name: -one[of] for name, of in mirrored.items()})
    names = ("p", "sign_flip_p", "noise_floor_points", "detectable_gap_points", "verdict", "df")
    agree(other, **{name: one[name] for name in names})


def test_equivalent_is_said_even_of_a_difference_that_excludes_zero(places):
    (first,) = draw((0.9,), 2000)
    first[:, :8] = True
    second = first.copy()
    second[:, :8] = False  # wrong on the same eight items in every seed
    line = line_of(places, first, second)
    agree(line, difference_points=0.4, verdict="equivalent")
    assert line["low_points"] > 0
    assert line["reason"].endswith("the same in these 5 seeds, which bounds nothing about other seeds")
    second[0, 0] = True
    assert "these 5 seeds" not in line_of(places, first, second)["reason"]


def test_a_planted_difference_is_supported(places):
    line = line_of(places, *draw((0.85, 0.75), 1000))
    assert line["verdict"] == "supported"
    assert line["p"] < 0.01
    assert line["low_points"] > 0


def test_few_items_are_under_powered(places):
    line = line_of(places, *draw((0.8, 0.8), 40))
    assert line["detectable_gap_points"] > 1
    assert line["verdict"] == "under-powered"


def test_enough_power_without_a_difference_is_not_supported(places):
    """A difference of about two standard errors (df 4), with the margin at what such data could have shown."""
    for seed in range(200):
        conditions = first, second = draw((0.8, 0.8), 300, seed)
        if 0.1 < estimate_from_items(first.astype(float) - second, Settings())["p"] < 0.15:
            break
    line = line_of(places, *conditions)
    line = line_of(places, *conditions, margin_points=line["detectable_gap_points"])
    agree(line, verdict="not supported")


def test_conditions_that_do_not_differ_are_rarely_supported():
    rng = np.random.default_rng(0)
    settings, found = Settings(), []
    for _ in range(200):
        seed_effect = rng.normal(0, 0.02, (2, NUM_SEEDS, 1))
        first, second = rng.random((2, NUM_SEEDS, 200)) < 0.8 + seed_effect
        found.append(estimate_from_items(first.astype(float) - second, settings)["verdict"])
    assert found.count("supported") <= 16  # 8 %: 5 % and two standard errors


def test_identical_conditions_are_equal_exactly(places):
    (right,) = draw((0.8,), 400)
    line = line_of(places, right, right)
    assert [line[name] for name in ("difference_points", "p", "sign_flip_p", "verdict")] == [0, 1, 1, "equivalent"]


@pytest.mark.parametrize(("shares", "verdict"), [((0.3, 0.3), "not measurable here"), ((0.3, 0.9), "supported")])
def test_conditions_that_learned_nothing_are_not_called_equivalent(places, shares, verdict):
    line = line_of(places, *draw(shares, 400), margin_points=20.0)
    agree(line, verdict=verdict)


def test_one_seed_gives_an_interval_over_items_and_no_test(places):
    line = line_of(places, *draw((0.95, 0.6), 500, num_seeds=1))
    assert line["low_points"] > 0
    reason = "one seed says nothing of others: at least 3 are needed"
    agree(line, note=ITEMS_ONLY, verdict="not judged", reason=reason)
    agree(line, **dict.fromkeys(("p", "q", "noise_floor_points"), np.nan))


def test_only_common_seeds_are_paired_and_all_failed_runs_counted(places):
    first, second = draw((0.9, 0.9), 100)
    second[4] = False
    line = line_of(places, first[:2], second)
    agree(line, num_seeds=2, first_mean=first[:2].mean())
    apart = one_line(compare([*runs_of(places, first[:2], []), plant(places["backbone"][4], second[3])]))
    agree(apart, num_seeds=0, reason="not compared: no seed in common", difference_points=np.nan)


@pytest.mark.parametrize(("second", "is_refused"), [("a", False), ("b", True), (None, False)])
def test_rows_of_another_file_are_other_items_though_numbers_and_labels_agree(make_run, second, is_refused):
    runs = [
        make_run(regime, seed, facts={"task": {"name": "toy", "data_sha256": {"ood": sha256}}})
        for regime, sha256 in (("none", "a"), ("backbone", second))
        for seed in (0, 1)
    ]
    table = compare(runs)
    refused = table["reason"] == OTHER_ITEMS
    assert set(refused[table["split"] == "ood"]) == {is_refused}
    assert not refused[table["split"] == "validation"].any()


def test_other_items_are_refused_and_seeds_with_their_own_items_are_not_crossed(places):
    first, second = draw((0.9, 0.8), 100)
    runs = runs_of(places, first, second)
    moved = [*runs[:5], *(plant(p, r, ids=np.arange(100) + 1) for p, r in zip(places["backbone"], second, strict=True))]
    agree(one_line(compare(moved)), reason=OTHER_ITEMS, difference_points=np.nan)
    own = [
        plant(place, right, ids=np.arange(100) + 1000 * seed)
        for regime, condition in (("none", first), ("backbone", second))
        for seed, (place, right) in enumerate(zip(places[regime], condition, strict=True))
    ]
    line = one_line(compare(own))
    agree(line, low_points=100 * seeds_interval((first.astype(float) - second).mean(axis=1), 0.95).low)
    assert line["note"].startswith("each seed has its own items")


def test_order_of_items_and_runs_changes_nothing(places):
    first, second = draw((0.9, 0.8), 100)
    runs = runs_of(places, first, second)
    shuffled = [*runs[::-1]]
    order = np.random.default_rng(1).permutation(100)
    shuffled[0] = plant(shuffled[0].path, second[4][order], ids=order, labels=(np.arange(100) % 2)[order])
    pd.testing.assert_frame_equal(compare(shuffled), compare(runs))


OF_NUMBERS = ("pearson", "spearman")
MATTHEWS = {"task": {"name": "toy", "kind": "classification", "score": "matthews", "reported_split": "validation"}}


@pytest.fixture
def matthews(make_run):
    """Three seeds of two conditions whose headline is no mean over items."""
    conditions = (("none", 0.9), ("backbone", 0.8))
    return [make_run(r, s, right=x, facts=MATTHEWS) for r, x in conditions for s in range(3)]


def test_scores_that_are_no_mean_over_items_have_an_interval_over_seeds(matthews):
    table = compare(matthews)
    kinds = [("matthews", True), ("accuracy", False)]
    assert list(zip(table["split"], table["score"], table["is_headline"], strict=True)) == [
        (split, *kind) for split in ("validation", "ood") for kind in kinds
    ]
    scores = last_scores(matthews, "matthews")
    line, beside = table.iloc[0], table.iloc[1]
    oracle = stats.ttest_1samp(np.subtract(scores[:3], scores[3:]), 0)
    low, high = oracle.confidence_interval(0.95)
    agree(line, p=oracle.pvalue, low_points=100 * low, high_points=100 * high)
    assert "no mean over items" in line["note"]
    assert beside["note"] == ""
    for is_headline in (True, False):
        family = table[table["is_headline"] == is_headline]
        np.testing.assert_allclose(family["q"], benjamini_hochberg(family["p"].to_numpy()))


def test_runs_are_judged_by_the_score_that_is_asked_for(make_run, matthews):
    """The accuracy beside another headline is the same one as headline; a run without the score keeps its own."""
    beside, asked = (compare(matthews, score=score) for score in (None, "accuracy"))
    beside = beside[beside["score"] == "accuracy"].reset_index(drop=True)
    pd.testing.assert_frame_equal(asked, beside.assign(is_headline=True))
    tuned = [make_run(r, s, right=x, is_regression=True) for r, x in (("none", 0.9), ("backbone", 0.7)) for s in (3, 4)]
    own = last_scores(tuned, "spearman")
    difference = 100 * np.mean(np.subtract(own[:2], own[2:]))
    agree(compare(tuned, score="spearman").iloc[0], score="spearman", difference_points=difference)
    mixed = [run.score for group in arrange([*matthews, *tuned], score="spearman") for run in group.runs]
    assert sorted(mixed) == ["matthews"] * 6 + ["spearman"] * 4
    path = tuned[0].path  # a run in which it is undefined throughout takes no other score into the comparison
    pd.read_csv(path / "scores.csv").assign(spearman=np.nan).to_csv(path / "scores.csv", index=False)
    rehash(path, "scores.csv")
    tuned[0] = open_run(path)
    assert {run.score for group in arrange(tuned, score="spearman") for run in group.runs} == {"spearman"}
    said = "no run can be judged by {}: unknown score .*choose from: pearson, spearman$"
    wrong = ("r3", "loss", "accuracy")
    check_refusals(*[(said.format(name), partial(compare, tuned, score=name)) for name in wrong])


def test_a_score_that_the_answers_give_has_an_interval_over_items_and_another_of_its_name_has_not(make_run):
    """Pearson's of these runs is their answers'; what is written down as Spearman's is Pearson's too, and no match."""
    conditions = (("none", 0.9), ("backbone", 0.7), ("embeddings", 0.9))
    runs = [make_run(r, s, right=x, is_regression=True) for r, x in conditions for s in range(3)]
    (same, line), (_, other) = (compare(runs, score=score).iloc[[0, 2]].to_dict("records") for score in OF_NUMBERS)
    answers = [run.predictions.query("split == 'validation' and epoch == 3") for run in runs[:6]]
    rows = [sum(SCORES["pearson"](*own[["label", "prediction"]].to_numpy(float).T)) for own in answers]
    found = two_way_interval(np.subtract(rows[:3], rows[3:]))
    agree(line, low_points=100 * found.low, high_points=100 * found.high, num_units=100, note="")
    assert pd.isna(other["num_units"])
    assert other["note"].startswith("no mean over items")
    agree(same, difference_points=0.0, low_points=np.nan)  # equal answers bound an accuracy, and no correlation


@pytest.mark.parametrize("score", ["macro_f1", "matthews"])
def test_one_answer_apart_bounds_every_score_of_right_and_wrong_answers_by_its_items(make_run, score):
    """One answer of one seed differs: an accuracy of 100 items is not the same within .6, nor is another score."""
    facts = {"task": MATTHEWS["task"] | {"score": score}}
    runs = [make_run(r, s, right=0.9, facts=facts) for r in ("none", "backbone") for s in range(3)]
    for name in ("predictions", "scores"):
        for one, other in zip(runs[:3], runs[3:], strict=True):
            object.__setattr__(other, name, getattr(one, name).copy())
    answers = runs[-1].predictions
    (row,) = answers.query("split == 'validation' and epoch == 3 and label == prediction").index[:1]
    answers.loc[row, "prediction"] = 1 - answers.loc[row, "label"]
    for run in runs:
        own = run.predictions.query("split == 'validation' and epoch == 3")[["label", "prediction"]].to_numpy(float).T
        at = run.scores.query("split == 'validation' and epoch == 3").index
        run.scores.loc[at, [score, "accuracy"]] = SCORES[score](*own)[0], (own[0] == own[1]).mean()
    alike, beside = compare(runs, margin_points=0.6).query("split == 'validation'").to_dict("records")
    agree(alike, num_units=100, note="")
    agree(beside, num_units=100)
    assert alike["high90_points"] >= 0.9 * beside["high90_points"]
    same = compare(runs[:2] + runs[3:5], margin_points=0.6).query("split == 'validation'").to_dict("records")[0]
    assert "no mean over items" not in same["note"]
    assert np.isnan(same["low_points"])
    assert np.isnan(estimate_not_failed(np.zeros((3, 100)), Settings(), is_accuracy=False)["low_points_not_failed"])
    of_two = estimate_not_failed(np.array([1.0, 2.0]), Settings(), is_accuracy=False)["low_points_not_failed"]
    assert of_two == pytest.approx(150 - 12.706205 * 50)  # Student's t of one degree of freedom


def test_regression_has_no_accuracy_and_no_chance(make_run):
    table = compare([make_run(r, s, is_regression=True) for r in ("none", "backbone") for s in (0, 1)])
    assert set(table["score"]) == {"pearson"}
    assert not table["note"].str.contains(AT_CHANCE).any()


def last_scores(runs, name):
    """What each run scored on validation in the end."""
    return [run.scores.query("split == 'validation' and epoch == 3")[name].item() for run in runs]


def test_a_collapsed_run_counts_against_its_condition(make_run):
    """Left out, two collapsed seeds of five would leave a difference of next to nothing that three seeds support.

    Until now they were left out, and ``num_seeds`` counted them: survivorship. One answer to every item has found no
    correlation, which is 0.
    """
    full = [make_run("none", s, is_regression=True) for s in range(5)]
    probe = [make_run("backbone", s, right=0.7, is_regression=True, is_constant=s > 2) for s in range(5)]
    line = compare([*full, *probe]).query("split == 'validation'").to_dict("records")[0]
    ours, theirs = (np.array(last_scores(runs, "pearson")) for runs in (full, probe))
    assert np.isnan(theirs[3:]).all()
    counted = np.nan_to_num(theirs)
    agree(line, first_mean=ours.mean(), second_mean=counted.mean(), num_units=100)
    agree(line, difference_points=100 * np.mean(ours - counted), num_seeds=5)
    assert "2 of 10 runs give every item one answer" in line["note"]
    agree(line, num_seeds_not_failed=3, difference_points_not_failed=100 * np.mean(ours[:3] - theirs[:3]))
    kept = compare([*full[:3], *probe[:3]]).query("split == 'validation'").iloc[0]
    agree(line, low_points_not_failed=kept["low_points"], high_points_not_failed=kept["high_points"])


def test_a_run_that_gives_one_answer_on_another_split_counts_there_and_is_left_out_of_what_did_not_fail(make_run):
    conditions = (("none", 0.9), ("backbone", 0.7))
    runs = [make_run(r, s, right=x, is_regression=True) for r, x in conditions for s in range(4)]
    for name, column, value in (("predictions", "prediction", 0.5), ("scores", "pearson", np.nan)):
        table = getattr(runs[-1], name)
        own = table[column].mask(table["split"] == "ood", value)
        object.__setattr__(runs[-1], name, table.assign(**{column: own}))
    line, kept = (compare(own).query("split == 'ood'").iloc[0] for own in (runs, [*runs[:3], *runs[4:7]]))
    agree(line, num_seeds=4, num_seeds_not_failed=3, low_points_not_failed=kept["low_points"])


def test_seeds_and_means_are_those_of_the_difference_where_a_score_is_undefined(make_run):
    conditions = (("none", 0.9), ("backbone", 0.7))
    runs = [make_run(r, s, right=x, is_regression=True) for r, x in conditions for s in range(4)]
    object.__setattr__(runs[1], "scores", runs[1].scores.assign(pearson=np.nan))  # answers differ: no reason is known
    line = compare(runs).query("split == 'validation'").to_dict("records")[0]
    ours, theirs = (np.delete(last_scores(own, "pearson"), 1) for own in (runs[:4], runs[4:]))
    agree(line, first_mean=ours.mean(), second_mean=theirs.mean(), difference_points=100 * (ours - theirs).mean())
    agree(line, num_seeds=3, num_seeds_not_failed=3)
    assert line["note"].endswith("undefined in 1 of 4 seeds")


@pytest.mark.parametrize("failed", [(), (2,), (0, 1, 2, 3)])
def test_the_difference_is_shown_with_and_without_failed_runs(places, failed):
    first, second = draw((0.85, 0.8), 300)
    second[list(failed)] = first[list(failed)] & (np.arange(300) % 3 == 0)  # a third right: the majority has half
    line = line_of(places, first, second)
    names = ("difference_points", "low_points", "high_points")
    without = [line[f"{name}_not_failed"] for name in names]
    agree(line, difference_points=100 * (first.mean() - second.mean()))
    agree(line, num_seeds_not_failed=NUM_SEEDS - len(failed))
    if not failed:
        assert without == [line[name] for name in names]
    elif len(failed) == 1:
        kept = two_way_interval(np.delete(first.astype(float) - second, failed, axis=0))
        assert without == pytest.approx([100 * kept.estimate, 100 * kept.low, 100 * kept.high])
        assert without[2] - without[1] < (line["high_points"] - line["low_points"]) / 2  # planted: it widens the whole
    else:
        assert np.isnan(without).all()  # one pair is left


def test_a_split_of_one_class_is_not_identifiable_whoever_is_right(places):
    """Where one answer is right throughout, an accuracy is no sign of learning, and the lack of it none of failure."""
    conditions = zip(("none", "backbone"), draw((0.95, 0.5), 200), strict=True)
    runs = [
        plant(p, own, labels=np.zeros(200, int))
        for r, condition in conditions
        for p, own in zip(places[r], condition, strict=True)
    ]
    line = one_line(compare(runs))
    assert (line["verdict"], line["reason"]) == ("not measurable here", ONE_CLASS)
    assert line["low_points"] > 30
    assert "failed" not in line["note"]


def test_runs_at_chance_are_counted_beside_failed_ones_and_said(places):
    """Exactly 255 of 500 balanced items right: no run failed, and none is above the majority by more than chance."""
    first, second = (np.roll(np.tile(np.arange(500) < 255, (NUM_SEEDS, 1)), shift, axis=1) for shift in (0, 3))
    line = line_of(places, first, second)
    assert line["note"].endswith(AT_CHANCE)
    assert line["reason"].endswith(AT_CHANCE)
    (good,) = draw((0.9,), 500)
    line = line_of(places, good, second & False)
    agree(line, note=f"every run of {PROBE} failed")


def test_a_split_that_only_one_condition_has_is_not_compared(places):
    (right,) = draw((0.9,), 50)
    runs = runs_of(places, right[:2], right[:2])
    for run in runs[2:]:
        object.__setattr__(run, "predictions", run.predictions.assign(split="elsewhere"))
    agree(one_line(compare(runs)), reason=NO_SPLIT, num_items=0, difference_points=np.nan)


def study_of_nulls(rng, num_lines):
    """Comparisons of conditions that differ in their seeds alone: judged alone, and as :func:`compare` judges them."""
    settings, lines = Settings(margin_points=1.5), []
    for _ in range(num_lines):
        first, second = rng.random((2, NUM_SEEDS, 400)) < 0.8 + rng.normal(0, 0.02, (2, NUM_SEEDS, 1))
        lines.append(estimate_from_items(first.astype(float) - second, settings))
    table = pd.DataFrame(lines).assign(is_headline=True, score="accuracy", num_seeds=NUM_SEEDS, num_units=400)
    return table, judge_together(table, settings.alpha)


def test_of_studies_of_nulls_few_support_something_though_claims_alone_do():
    """q is what holds for the study as a whole. 40 studies of 30 comparisons; test_multiplicity.py has many more."""
    rng = np.random.default_rng(0)
    studies = [study_of_nulls(rng, 30) for _ in range(40)]
    alone, together = ([study[i]["verdict"] == "supported" for study in studies] for i in (0, 1))
    assert np.mean([one.any() for one in together]) <= 0.1
    assert np.mean([one.any() for one in alone]) > 0.4
    for (_, study), before, after in zip(studies, alone, together, strict=True):
        assert list(after) == list(before & (study["q"] < 0.05))
        fell = study[before & ~after]
        assert (fell["verdict"] == "not supported").all()
        assert all(f"the q of 30 claims, {line.q:.3g}, is not below 0.05" in line.reason for line in fell.itertuples())


def test_claims_are_lines_with_a_small_q_whatever_their_p(places):
    conditions = zip(("none", "backbone", "embeddings"), draw((0.86, 0.81, 0.85), 200), strict=True)
    runs = [
        plant(place, right)
        for regime, condition in conditions
        for place, right in zip(places[regime], condition, strict=True)
    ]
    table = compare(runs)
    between = (table["p"].min() + table["q"].min()) / 2
    assert table["p"].min() < between < table["q"].min()
    assert not compare(runs, alpha=between)["verdict"].isin(CLAIMED).any()
    above = 1.001 * table["q"].min()
    claimed = compare(runs, alpha=above)["verdict"].isin(CLAIMED)
    assert claimed.any()
    assert (table.loc[claimed, "q"] < above).all()


@pytest.mark.parametrize("num_known", [0, 1, 6], ids=["nobody knows", "one run knows", "all know"])
def test_items_in_clusters_are_compared_as_clusters(places, num_known, tmp_path):
    """Each review gives five sentences, right or wrong alike: 40 reviews are no 200 items, in any test of them."""
    by_review, order, runs = draw((0.7, 0.6), 40, num_seeds=3), np.random.default_rng(0).permutation(200), []
    for regime, condition in zip(("none", "backbone"), by_review, strict=True):
        for place, right in zip(places[regime], condition, strict=False):
            ids = order if len(runs) == 5 else np.arange(200)
            clusters = ids // 5 if len(runs) >= 6 - num_known else None
            runs.append(plant(place, right[ids // 5], ids=ids, labels=ids % 2, clusters=clusters))
    units = np.repeat(by_review[0].astype(float) - by_review[1], 1 if num_known else 5, axis=1)
    line, found = one_line(compare(runs)), two_way_interval(units)
    agree(line, low_points=100 * found.low, high_points=100 * found.high, df=found.df, num_items=200)
    agree(line, difference_points=100 * units.mean(), num_units=units.shape[1])
    assert ("the cluster that items come in: 40 of them" in line["note"]) == (num_known > 0)
    last = [int((sign * units[-1] > 0).sum()) for sign in (1, -1)]
    assert compare_seeds(runs)["mcnemar_p"].iloc[-1] == mcnemar(*last)
    card = write_cards(runs, tmp_path)[0]  # of the evidence, which keeps the clusters
    assert (card.interval.low, card.estimator) == (line["low_points"], CLUSTERED if num_known else TWO_WAY)


def test_scores_that_no_run_could_have_are_left_out_and_counted():
    """As where the labels of a seed's items are all equal. What a run failed to have is 0 before it comes here."""
    settings = Settings()
    line = estimate_from_seeds(np.array([0.1, np.nan, 0.12, 0.09]), settings)
    agree(line, difference_points=10 + 1 / 3)
    assert line["note"].endswith("undefined in 1 of 4 seeds")
    nothing = estimate_from_seeds(np.array([np.nan, np.nan]), settings)
    agree(nothing, difference_points=np.nan, verdict="not measurable here", reason="undefined in 2 of 2 seeds")
    agree(estimate_from_seeds(np.array([0.1]), settings), low_points=np.nan)


def test_no_wording_decides_which_notes_of_an_interval_are_told(monkeypatch):
    monkeypatch.setattr("toolkit.comparison.intervals.SCORES_OVER_SEEDS", "other words")
    assert estimate_from_seeds(np.array([0.1, 0.12, 0.09]), Settings())["note"] == NO_MEAN
    assert ONE_SEED in estimate_from_seeds(np.array([0.1]), Settings())["note"]


@pytest.fixture
def six(places):
    """Two seeds of each of three conditions that are all alike."""
    (right,) = draw((0.9,), 50)
    return [plant(places[r][s], right[s]) for r in ("backbone", "embeddings", "none") for s in (0, 1)]


def pairs_of(table):
    return list(zip(table["first"], table["second"], strict=True))


def test_default_pairs_set_full_fine_tuning_against_each_other_condition(six):
    assert pairs_of(compare(six)) == [(FULL, FIXED), (FULL, PROBE)]
    assert pairs_of(compare(six[:4])) == [(FIXED, PROBE)]


def test_a_single_condition_gives_no_line_and_all_columns(places):
    with pytest.warns(UserWarning, match="nothing to compare.*two conditions.*; got full fine-tuning on"):
        table = compare([plant(places["none"][0], [True, False, True])])
    assert table.empty
    assert list(table.columns) == columns_of("compare")


def test_labels_name_the_conditions_and_pairs(six):
    words = {"none": "tuned", "embeddings": "fixed", "backbone": "probe"}
    labels = {run.path.name: words[run.config.freeze] for run in six}
    pairs = [("fixed", "probe"), ("tuned", "probe")]
    assert pairs_of(compare(six, labels=labels, pairs=pairs)) == pairs
    check_refused(
        r"unknown condition 'prob' \(did you mean 'probe'\?\)", compare, six, labels=labels, pairs=[("fixed", "prob")]
    )


def test_conditions_are_paired_within_their_size_and_by_their_base(make_run):
    runs = [
        make_run(r, s, config={"max_train_examples": size})
        for r in ("none", "backbone")
        for size in (50, 9)
        for s in (0, 1)
    ]
    assert len(arrange(runs)[0].conditions) == 4
    table = compare(runs, pairs=[(PROBE, FULL)]).query("split == 'validation'")
    assert pairs_of(table) == [
        tuple(f"{condition}, {size} training examples" for condition in (PROBE, FULL)) for size in (9, 50)
    ]
    assert list(table["size"]) == [9, 50]
    assert compare([make_run(r) for r in ("none", "backbone")])["size"].isna().all()


def test_settings_out_of_range_are_refused_in_one_line():
    check_refusals(
        ("margin_points must be above 0", lambda: Settings(margin_points=0)),
        ("margin_points must be above 0 and finite; got inf", lambda: Settings(margin_points=np.inf)),
        ("level must be between 0 and 1", lambda: Settings(level=1)),
        ("alpha must be between 0 and 1", lambda: Settings(alpha=0)),
        ("margin_points must be above 0 and finite; got '1'", lambda: Settings(margin_points="1")),
    )


@pytest.mark.parametrize("pairs", [[], (FULL, PROBE), [(FULL, FULL)], [(FULL, PROBE), (FULL,)], [(FULL, FIXED, PROBE)]])
def test_pairs_are_pairs_of_two_conditions(six, pairs):
    check_refused("pairs holds pairs of two labels", compare, six, pairs=pairs)


def test_a_pattern_stands_for_the_runs_that_fit_it(places):
    paths = sorted(path for of_regime in places.values() for path in of_regime)
    pattern = f"{paths[0].parent}/*"
    for runs in (pattern, [pattern]):
        assert compare(runs).equals(compare(paths))
    assert drift_table(pattern).equals(drift_table(paths))
    check_refused("no run fits", compare, "nowhere/*")


def test_p_of_an_interval():
    assert p_value(Interval(estimate=0.5, low=0, high=1, df=7, variance=0.04, level=0.95, note="")) == pytest.approx(
        2 * stats.t.sf(2.5, 7)
    )
    assert np.isnan(p_value(Interval(estimate=0.5, low=0.5, high=0.5, df=7, variance=0, level=0.95, note="")))


def test_a_q_at_alpha_is_no_discovery_and_a_claim_without_p_is_none_of_the_family():
    lines = {"p": [0.05, np.nan], "is_headline": True, "verdict": ["supported", "not judged"], "reason": "because"}
    lines |= dict.fromkeys(("score", *SQUARE_COLUMNS))
    table = judge_together(pd.DataFrame(lines), 0.05)
    assert table[["verdict", "reason"]].to_numpy().tolist() == [
        ["not supported", "because; the q of this claim, 0.05, is not below 0.05"],
        ["not judged", "because"],
    ]


def test_what_cancels_within_clusters_is_no_certainty_and_equal_seeds_are_told():
    """Sums over clusters of unequal sizes leave 1e-17: as good as equal, of which the exact bound is told."""
    rounding = 1e-17 * np.random.default_rng(0).normal(size=(3, 20))
    line, exact = (estimate_from_items(table, Settings()) for table in (rounding, np.zeros((3, 20))))
    assert exact["verdict"] == "under-powered"
    names = ("verdict", "reason", "low_points", "high90_points", "detectable_gap_points", "sign_flip_p")
    agree(line, **{name: exact[name] for name in names})
    turned = np.tile([0.1, -0.3, 0.2], 40).reshape(3, 40) + 0.01
    turned -= turned.mean(axis=1, keepdims=True) * (1 + 1e-13)
    assert "the same in these 3 seeds" in estimate_from_items(turned, Settings(margin_points=50))["reason"]
    assert estimate_from_items(turned, Settings())["sign_flip_p"] == 1


def test_a_cluster_makes_no_claim_bolder():
    """One of 200 items differs in one seed: as unsure whether two others share a cluster or none does."""
    items = np.zeros((3, 200))
    items[0, 7] = 1
    clusters = np.arange(200)
    clusters[100] = 101
    alone, together = (estimate_from_items(table, Settings(), items) for table in (items, by_cluster(items, clusters)))
    assert (alone["verdict"], together["verdict"]) == ("not supported", "not supported")
    assert together["high90_points"] == pytest.approx(alone["high90_points"], rel=0.02)


def test_the_exact_bound_is_named_where_it_decided_and_nowhere_else():
    few, many = np.zeros((5, 100)), np.random.default_rng(0).choice([0.0, 1.0], (5, 800), p=[0.9, 0.1])
    few[:2, 3] = 1
    notes = {
        (margin, own is few): HELD in estimate_from_items(own, Settings(margin_points=margin))["note"]
        for own in (few, many)
        for margin in (1.5, 5.0, 20.0)
    }
    assert {place for place, is_named in notes.items() if is_named} == {(1.5, True)}
