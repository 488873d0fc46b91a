"""Comparisons of planted answers: numbers by hand and from the array functions, every verdict, nulls and refusals."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.comparison.planted import plant
from tests.run_directories import rehash, write_run
from toolkit.comparison.arms import NO_SPLIT, OTHER_ITEMS, arrange
from toolkit.comparison.compare import (
    AT_CHANCE,
    ONE_CLASS,
    Settings,
    compare,
    estimate_from_items,
    estimate_from_seeds,
    judge_together,
)
from toolkit.comparison.intervals import (
    ITEMS_ONLY,
    Interval,
    benjamini_hochberg,
    p_value,
    seeds_interval,
    sign_flip,
    two_way_interval,
)
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
    """(arms, seeds, items) independent right answers with the given probabilities."""
    generator = np.random.default_rng(seed)
    return [generator.random((num_seeds, num_items)) < share for share in shares]


def runs_of(places, first, second, regimes=("none", "backbone")):
    both = zip(regimes, (first, second), strict=True)
    return [plant(place, right) for r, arm in both for place, right in zip(places[r], arm, strict=False)]


def one_line(table):
    (line,) = table.to_dict("records")
    return line


def test_numbers_are_those_of_the_array_functions(places):
    first, second = draw((0.85, 0.8), 300)
    line = one_line(compare(runs_of(places, first, second), num_draws=100))
    differences = first.astype(float) - second
    wide, narrow = (two_way_interval(differences, level) for level in (0.95, 0.90))
    assert line["difference_points"] == pytest.approx(100 * differences.mean())
    assert (line["low_points"], line["high_points"]) == pytest.approx((100 * wide.low, 100 * wide.high))
    assert (line["low90_points"], line["high90_points"]) == pytest.approx((100 * narrow.low, 100 * narrow.high))
    assert (line["first_mean"], line["second_mean"]) == pytest.approx((first.mean(), second.mean()))
    assert (line["num_seeds"], line["num_items"], line["df"]) == (5, 300, wide.df)
    assert line["sign_flip_p"] == sign_flip(differences.mean(axis=1))
    assert line["smallest_p"] == 0.0625
    assert (line["first"], line["second"], line["score"], line["split"]) == (FULL, PROBE, "accuracy", "validation")
    assert line["p"] == line["q"]
    assert line["note"] == ""


def test_p_is_the_level_at_which_the_interval_touches_zero(places):
    first, second = draw((0.85, 0.8), 300)
    line = one_line(compare(runs_of(places, first, second), num_draws=100))
    touching = two_way_interval(first.astype(float) - second, 1 - line["p"])
    assert touching.low == pytest.approx(0, abs=1e-12)


def test_noise_floor_is_the_mean_difference_between_two_seeds_of_one_arm(places):
    arms = draw((0.85, 0.6), 200)
    line = one_line(compare(runs_of(places, *arms), num_draws=100))
    means = [arm.mean(axis=1) for arm in arms]
    gaps = [abs(m[i] - m[j]) for m in means for i in range(NUM_SEEDS) for j in range(i)]
    assert line["noise_floor_points"] == pytest.approx(100 * np.mean(gaps))


def test_swapping_the_arms_mirrors_every_number(places):
    runs = runs_of(places, *draw((0.85, 0.8), 200))
    one, other = (one_line(compare(runs, pairs=[pair], num_draws=100)) for pair in ((FULL, PROBE), (PROBE, FULL)))
    assert other["difference_points"] == pytest.approx(-one["difference_points"])
    assert (other["low_points"], other["high_points"]) == pytest.approx((-one["high_points"], -one["low_points"]))
    for name in ("p", "sign_flip_p", "tost_p", "noise_floor_points", "detectable_gap_points", "verdict", "df"):
        assert other[name] == pytest.approx(one[name]) if isinstance(one[name], float) else other[name] == one[name]


def test_equivalent_is_said_even_of_a_difference_that_excludes_zero(places):
    (first,) = draw((0.9,), 2000)
    first[:, :8] = True
    second = first.copy()
    second[:, :8] = False  # wrong on the same eight items in every seed
    line = one_line(compare(runs_of(places, first, second), num_draws=100))
    assert line["difference_points"] == pytest.approx(0.4)
    assert line["low_points"] > 0
    assert line["is_equivalent"]
    assert line["tost_p"] < 0.05
    assert line["verdict"] == "equivalent"


def test_a_planted_difference_is_supported(places):
    line = one_line(compare(runs_of(places, *draw((0.85, 0.75), 1000)), num_draws=500))
    assert line["verdict"] == "supported"
    assert line["p"] < 0.01
    assert line["low_points"] > 0
    assert line["bootstrap_low_points"] > 0


def test_few_items_are_under_powered(places):
    line = one_line(compare(runs_of(places, *draw((0.8, 0.8), 40)), num_draws=100))
    assert line["detectable_gap_points"] > 1
    assert line["verdict"] == "under-powered"


def test_enough_power_without_a_difference_is_not_supported(places):
    """A difference of about two standard errors (df 4), with the margin at what such data could have shown."""
    for seed in range(200):
        first, second = draw((0.8, 0.8), 300, seed)
        if 0.1 < estimate_from_items(first.astype(float) - second, Settings(num_draws=0))["p"] < 0.15:
            break
    runs = runs_of(places, first, second)
    line = one_line(compare(runs, num_draws=100))
    assert 0.1 < line["p"] < 0.15
    line = one_line(compare(runs, num_draws=100, margin_points=line["detectable_gap_points"]))
    assert line["verdict"] == "not supported"
    assert not line["is_equivalent"]


def test_arms_that_do_not_differ_are_rarely_supported():
    rng = np.random.default_rng(0)
    settings, found = Settings(num_draws=100), []
    for _ in range(200):
        seed_effect = rng.normal(0, 0.02, (2, NUM_SEEDS, 1))
        first, second = rng.random((2, NUM_SEEDS, 200)) < 0.8 + seed_effect
        found.append(estimate_from_items(first.astype(float) - second, settings)["verdict"])
    assert found.count("supported") <= 16  # 8 %: 5 % and two standard errors


def test_identical_arms_are_equal_exactly(places):
    (right,) = draw((0.8,), 400)
    line = one_line(compare(runs_of(places, right, right), num_draws=100))
    assert line["difference_points"] == 0
    assert line["p"] == 1
    assert line["sign_flip_p"] == 1
    assert line["verdict"] == "equivalent"


@pytest.mark.parametrize(("shares", "verdict"), [((0.3, 0.3), "not measurable here"), ((0.3, 0.9), "supported")])
def test_arms_that_learned_nothing_are_not_called_equivalent(places, shares, verdict):
    table = compare(runs_of(places, *draw(shares, 400)), num_draws=100, margin_points=20.0)
    line = one_line(table)
    assert line["num_failed_first"] == NUM_SEEDS
    assert line["verdict"] == verdict
    assert not line["is_equivalent"]


def test_one_seed_gives_an_interval_over_items_and_no_test(places):
    runs = runs_of(places, *draw((0.95, 0.6), 500, num_seeds=1))
    line = one_line(compare(runs, num_draws=100))
    assert line["low_points"] > 0
    assert line["note"] == ITEMS_ONLY
    assert line["verdict"] == "not judged"
    assert line["reason"] == "one seed says nothing of others: at least 3 are needed"
    assert np.isnan([line[name] for name in ("p", "q", "tost_p", "noise_floor_points")]).all()
    assert not line["is_equivalent"]


def test_only_common_seeds_are_paired_and_all_failed_runs_counted(places):
    first, second = draw((0.9, 0.9), 100)
    second[4] = False
    runs = runs_of(places, first[:2], second)
    line = one_line(compare(runs, num_draws=100))
    assert line["num_seeds"] == 2
    assert line["first_mean"] == pytest.approx(first[:2].mean())
    assert (line["num_failed_first"], line["num_failed_second"]) == (0, 1)
    apart = one_line(compare([*runs_of(places, first[:2], []), plant(places["backbone"][4], second[3])]))
    assert (apart["num_seeds"], apart["reason"]) == (0, "not compared: no seed in common")
    assert np.isnan(apart["difference_points"])


def test_rows_of_another_file_are_other_items_though_numbers_and_labels_agree(make_run):
    def tested(regime, seed, sha256):
        return make_run(regime, seed, facts={"task": {"name": "toy", "data_sha256": {"ood": sha256}}})

    for of_first, of_second, is_refused in (("a", "a", False), ("a", "b", True), ("a", None, False)):
        runs = [tested("none", seed, of_first) for seed in (0, 1)]
        table = compare([*runs, *(tested("backbone", seed, of_second) for seed in (0, 1))], num_draws=100)
        refused = table["reason"] == OTHER_ITEMS
        assert set(refused[table["split"] == "ood"]) == {is_refused}
        assert not refused[table["split"] == "validation"].any()


def test_other_items_are_refused_and_seeds_with_their_own_items_are_not_crossed(places):
    first, second = draw((0.9, 0.8), 100)
    runs = runs_of(places, first, second)
    moved = [*runs[:5], *(plant(p, r, ids=np.arange(100) + 1) for p, r in zip(places["backbone"], second, strict=True))]
    line = one_line(compare(moved))
    assert line["reason"] == OTHER_ITEMS
    assert np.isnan(line["difference_points"])
    own = [
        plant(place, right, ids=np.arange(100) + 1000 * seed)
        for regime, arm in (("none", first), ("backbone", second))
        for seed, (place, right) in enumerate(zip(places[regime], arm, strict=True))
    ]
    line = one_line(compare(own))
    by_seed = (first.astype(float) - second).mean(axis=1)
    assert line["low_points"] == pytest.approx(100 * seeds_interval(by_seed, 0.95).low)
    assert line["note"].startswith("each seed has its own items")


def test_order_of_items_and_runs_changes_nothing(places):
    first, second = draw((0.9, 0.8), 100)
    runs = runs_of(places, first, second)
    shuffled = [*runs[::-1]]
    order = np.random.default_rng(1).permutation(100)
    labels = (np.arange(100) % 2)[order]
    shuffled[0] = plant(shuffled[0].path, second[4][order], ids=order, labels=labels)
    pd.testing.assert_frame_equal(compare(shuffled, num_draws=100), compare(runs, num_draws=100))


def test_scores_that_are_no_mean_over_items_have_an_interval_over_seeds(make_run):
    facts = {"task": {"name": "toy", "kind": "classification", "score": "matthews", "reported_split": "validation"}}
    runs = [make_run(r, s, right=x, facts=facts) for r, x in (("none", 0.9), ("backbone", 0.8)) for s in range(3)]
    table = compare(runs, num_draws=100)
    assert list(table.columns) == columns_of("compare")
    assert list(zip(table["split"], table["score"], table["is_headline"], strict=True)) == [
        ("validation", "matthews", True),
        ("validation", "accuracy", False),
        ("ood", "matthews", True),
        ("ood", "accuracy", False),
    ]
    scores = [run.scores.query("split == 'validation' and epoch == 3")["matthews"].item() for run in runs]
    d = np.subtract(scores[:3], scores[3:])
    line, beside = table.iloc[0], table.iloc[1]
    oracle = stats.ttest_1samp(d, 0)
    assert line["p"] == pytest.approx(oracle.pvalue)
    low, high = oracle.confidence_interval(0.95)
    assert (line["low_points"], line["high_points"]) == pytest.approx((100 * low, 100 * high))
    assert "no mean over items" in line["note"]
    assert beside["note"] == ""
    assert np.isnan(line["bootstrap_low_points"])
    for is_headline in (True, False):
        family = table[table["is_headline"] == is_headline]
        np.testing.assert_allclose(family["q"], benjamini_hochberg(family["p"].to_numpy()))


def test_runs_are_judged_by_the_score_that_is_asked_for(make_run):
    """The accuracy beside another headline is the same one as headline; a run without the score keeps its own."""
    facts = {"task": {"name": "toy", "kind": "classification", "score": "matthews", "reported_split": "validation"}}
    runs = [make_run(r, s, right=x, facts=facts) for r, x in (("none", 0.9), ("backbone", 0.8)) for s in range(3)]
    beside, asked = (compare(runs, num_draws=100, score=score) for score in (None, "accuracy"))
    beside = beside[beside["score"] == "accuracy"].reset_index(drop=True)
    pd.testing.assert_frame_equal(asked, beside.assign(is_headline=True))
    tuned = [make_run(r, s, right=x, is_regression=True) for r, x in (("none", 0.9), ("backbone", 0.7)) for s in (3, 4)]
    line = compare(tuned, score="spearman").iloc[0]
    own = [run.scores.query("split == 'validation' and epoch == 3")["spearman"].item() for run in tuned]
    assert line["score"] == "spearman"
    assert line["difference_points"] == pytest.approx(100 * np.mean(np.subtract(own[:2], own[2:])))
    mixed = [run.score for group in arrange([*runs, *tuned], score="spearman") for run in group.runs]
    assert sorted(mixed) == ["matthews"] * 6 + ["spearman"] * 4
    path = tuned[0].path  # a run in which it is undefined throughout takes no other score into the comparison
    pd.read_csv(path / "scores.csv").assign(spearman=np.nan).to_csv(path / "scores.csv", index=False)
    rehash(path, "scores.csv")
    tuned[0] = open_run(path)
    assert {run.score for group in arrange(tuned, score="spearman") for run in group.runs} == {"spearman"}
    for wrong in ("r3", "loss", "accuracy"):
        message = rf"no run can be judged by {wrong}: unknown score .*choose from: pearson, spearman$"
        with pytest.raises(ValueError, match=message):
            compare(tuned, score=wrong)


def test_regression_has_no_accuracy_and_no_chance(make_run):
    table = compare([make_run(r, s, is_regression=True) for r in ("none", "backbone") for s in (0, 1)])
    assert set(table["score"]) == {"pearson"}
    assert (table["num_failed_first"] == 0).all()
    assert table[["num_at_chance_first", "num_at_chance_second"]].isna().all(axis=None)


def pearsons(runs):
    return [run.scores.query("split == 'validation' and epoch == 3")["pearson"].item() for run in runs]


def test_a_collapsed_run_counts_against_its_arm(make_run):
    """Left out, two collapsed seeds of five would leave a difference of next to nothing that three seeds support.

    Until now they were left out, and ``num_seeds`` counted them: survivorship. One answer to every item has found no
    correlation, which is 0.
    """
    full = [make_run("none", s, is_regression=True) for s in range(5)]
    probe = [make_run("backbone", s, right=0.7, is_regression=True, is_constant=s > 2) for s in range(5)]
    line = compare([*full, *probe]).query("split == 'validation'").to_dict("records")[0]
    ours, theirs = np.array(pearsons(full)), np.array(pearsons(probe))
    assert np.isnan(theirs[3:]).all()
    counted = np.nan_to_num(theirs)
    oracle = stats.ttest_1samp(ours - counted, 0)
    assert line["difference_points"] == pytest.approx(100 * np.mean(ours - counted))
    assert line["p"] == pytest.approx(oracle.pvalue)
    assert (line["first_mean"], line["second_mean"]) == pytest.approx((ours.mean(), counted.mean()))
    assert line["difference_points"] == pytest.approx(100 * (line["first_mean"] - line["second_mean"]))
    assert (line["num_seeds"], line["num_failed_first"], line["num_failed_second"]) == (5, 0, 2)
    assert "2 of 10 runs give every item one answer" in line["note"]
    kept = seeds_interval(ours[:3] - theirs[:3], 0.95)
    names = ("num_seeds_not_failed", "difference_points_not_failed", "low_points_not_failed", "high_points_not_failed")
    expected = (3, 100 * kept.estimate, 100 * kept.low, 100 * kept.high)
    assert tuple(line[name] for name in names) == pytest.approx(expected)


def test_seeds_and_means_are_those_of_the_difference_where_a_score_is_undefined(make_run):
    arms = (("none", 0.9), ("backbone", 0.7))
    runs = [make_run(r, s, right=x, is_regression=True) for r, x in arms for s in range(4)]
    object.__setattr__(runs[1], "scores", runs[1].scores.assign(pearson=np.nan))  # answers differ: no reason is known
    line = compare(runs).query("split == 'validation'").to_dict("records")[0]
    ours, theirs = np.delete(pearsons(runs[:4]), 1), np.delete(pearsons(runs[4:]), 1)
    assert line["num_seeds"] == line["num_seeds_not_failed"] == 3
    assert (line["first_mean"], line["second_mean"]) == pytest.approx((ours.mean(), theirs.mean()))
    assert line["difference_points"] == pytest.approx(100 * (ours - theirs).mean())
    assert line["note"].endswith("undefined in 1 of 4 seeds")


@pytest.mark.parametrize("failed", [(), (2,), (0, 1, 2, 3)])
def test_the_difference_is_shown_with_and_without_failed_runs(places, failed):
    first, second = draw((0.85, 0.8), 300)
    second[list(failed)] = first[list(failed)] & (np.arange(300) % 3 == 0)  # a third right: the majority has half
    line = one_line(compare(runs_of(places, first, second), num_draws=0))
    names = ("difference_points", "low_points", "high_points")
    without = [line[f"{name}_not_failed"] for name in names]
    assert line["difference_points"] == pytest.approx(100 * (first.mean() - second.mean()))
    assert (line["num_failed_second"], line["num_seeds_not_failed"]) == (len(failed), NUM_SEEDS - len(failed))
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
    arms = zip(("none", "backbone"), draw((0.95, 0.5), 200), strict=True)
    runs = [plant(p, own, labels=np.zeros(200, int)) for r, arm in arms for p, own in zip(places[r], arm, strict=True)]
    line = one_line(compare(runs, num_draws=0))
    assert (line["verdict"], line["reason"], line["is_equivalent"]) == ("not measurable here", ONE_CLASS, False)
    assert line["low_points"] > 30
    assert "failed" not in line["note"]


def test_runs_at_chance_are_counted_beside_failed_ones_and_said(places):
    """Exactly 255 of 500 balanced items right: no run failed, and none is above the majority by more than chance."""
    first, second = (np.roll(np.tile(np.arange(500) < 255, (NUM_SEEDS, 1)), shift, axis=1) for shift in (0, 3))
    line = one_line(compare(runs_of(places, first, second), num_draws=0))
    assert (line["num_failed_first"], line["num_failed_second"]) == (0, 0)
    assert (line["num_at_chance_first"], line["num_at_chance_second"]) == (NUM_SEEDS, NUM_SEEDS)
    assert line["note"].endswith(AT_CHANCE)
    assert line["reason"].endswith(AT_CHANCE)
    (good,) = draw((0.9,), 500)
    line = one_line(compare(runs_of(places, good, second & False), num_draws=0))
    assert (line["num_at_chance_first"], line["num_at_chance_second"]) == (0, NUM_SEEDS)
    assert line["note"] == f"every run of {PROBE} failed"


def test_a_split_that_only_one_arm_has_is_not_compared(places):
    (right,) = draw((0.9,), 50)
    runs = runs_of(places, right[:2], right[:2])
    for run in runs[2:]:
        object.__setattr__(run, "predictions", run.predictions.assign(split="elsewhere"))
    line = one_line(compare(runs, num_draws=0))
    assert (line["reason"], line["num_items"], line["is_discovery"]) == (NO_SPLIT, 0, False)
    assert np.isnan(line["difference_points"])


def study_of_nulls(rng, num_lines):
    """Comparisons of arms that differ in nothing but their seeds: judged alone, and as :func:`compare` judges them."""
    settings, lines = Settings(num_draws=0, margin_points=1.5), []
    for _ in range(num_lines):
        first, second = rng.random((2, NUM_SEEDS, 400)) < 0.8 + rng.normal(0, 0.02, (2, NUM_SEEDS, 1))
        lines.append(estimate_from_items(first.astype(float) - second, settings))
    table = pd.DataFrame(lines).assign(is_headline=True)
    return table, judge_together(table, settings.alpha)


def test_of_studies_of_nulls_few_support_something_though_claims_alone_do():
    """q is what holds for the study as a whole. 40 studies of 30 comparisons.

    The t distribution is an approximation that is worst far out, where q looks: at 5 seeds with a standard deviation of
    2 points between them about 4 % of such studies have a discovery, at 3 points 10 % (300 studies each).
    """
    rng = np.random.default_rng(0)
    studies = [study_of_nulls(rng, 30) for _ in range(40)]
    alone, together = ([study[i]["verdict"] == "supported" for study in studies] for i in (0, 1))
    assert np.mean([one.any() for one in together]) <= 0.15
    assert np.mean([one.any() for one in alone]) > 0.4
    for (_, study), before, after in zip(studies, alone, together, strict=True):
        assert list(after) == list(before & study["is_discovery"])
        fell = study[before & ~after]
        assert (fell["verdict"] == "not supported").all()
        assert all(f"the q of 30 claims, {line.q:.3g}, is not below 0.05" in line.reason for line in fell.itertuples())


def test_discoveries_are_the_lines_with_a_small_q_whatever_their_p(places):
    arms = zip(("none", "backbone", "embeddings"), draw((0.86, 0.81, 0.85), 200), strict=True)
    runs = [plant(place, right) for regime, arm in arms for place, right in zip(places[regime], arm, strict=True)]
    table = compare(runs, num_draws=0)
    between = (table["p"].min() + table["q"].min()) / 2
    assert table["p"].min() < between < table["q"].min()
    assert not compare(runs, num_draws=0, alpha=between)["is_discovery"].any()
    assert list(table["is_discovery"]) == list(table["q"] < 0.05)
    above = 1.001 * table["q"].min()
    assert list(compare(runs, num_draws=0, alpha=above)["is_discovery"]) == list(table["q"] < above)


def test_no_draws_leave_the_bootstrap_out_and_nothing_else(places):
    runs = runs_of(places, *draw((0.9, 0.8), 100))
    with_draws, without = compare(runs, num_draws=100), compare(runs, num_draws=0)
    names = ["bootstrap_low_points", "bootstrap_high_points"]
    assert without[names].isna().all(axis=None)
    pd.testing.assert_frame_equal(without.drop(columns=names), with_draws.drop(columns=names))


def test_scores_that_no_run_could_have_are_left_out_and_counted():
    """As where the labels of a seed's items are all equal. What a run failed to have is 0 before it comes here."""
    settings = Settings()
    line = estimate_from_seeds(np.array([0.1, np.nan, 0.12, 0.09]), settings)
    assert line["difference_points"] == pytest.approx(10 + 1 / 3)
    assert line["note"].endswith("undefined in 1 of 4 seeds")
    nothing = estimate_from_seeds(np.array([np.nan, np.nan]), settings)
    assert np.isnan(nothing["difference_points"])
    assert (nothing["verdict"], nothing["reason"]) == ("not measurable here", "undefined in 2 of 2 seeds")
    assert np.isnan(estimate_from_seeds(np.array([0.1]), settings)["low_points"])


def test_default_pairs_set_full_fine_tuning_against_each_other_arm(places):
    (right,) = draw((0.9,), 50)
    runs = [plant(places[r][s], right[s]) for r in ("backbone", "embeddings", "none") for s in (0, 1)]
    pairs = [tuple(line) for line in compare(runs, num_draws=100)[["first", "second"]].to_numpy()]
    assert pairs == [(FULL, FIXED), (FULL, PROBE)]
    without = [tuple(line) for line in compare(runs[:4], num_draws=100)[["first", "second"]].to_numpy()]
    assert without == [(FIXED, PROBE)]


def test_a_single_arm_gives_no_line_and_all_columns(places):
    table = compare([plant(places["none"][0], [True, False, True])])
    assert table.empty
    assert list(table.columns) == columns_of("compare")


def test_labels_name_the_arms_and_pairs(places):
    (right,) = draw((0.9,), 50)
    runs = [plant(places[r][s], right[s]) for r in ("backbone", "embeddings", "none") for s in (0, 1)]
    words = {"none": "tuned", "embeddings": "fixed", "backbone": "probe"}
    labels = {run.path.name: words[run.config.freeze] for run in runs}
    table = compare(runs, labels=labels, pairs=[("fixed", "probe"), ("tuned", "probe")], num_draws=100)
    assert list(zip(table["first"], table["second"], strict=True)) == [("fixed", "probe"), ("tuned", "probe")]
    with pytest.raises(ValueError, match=r"unknown condition 'prob' \(did you mean 'probe'\?\)"):
        compare(runs, labels=labels, pairs=[("fixed", "prob")])


def test_arms_are_paired_within_their_size_and_by_their_base(make_run):
    runs = [
        make_run(r, s, config={"max_train_examples": size})
        for r in ("none", "backbone")
        for size in (50, 9)
        for s in (0, 1)
    ]
    assert len(arrange(runs)[0].arms) == 4
    table = compare(runs, num_draws=100, pairs=[(PROBE, FULL)]).query("split == 'validation'")
    sizes = [9, 50]
    assert list(table["first"]) == [f"{PROBE}, {size} training examples" for size in sizes]
    assert list(table["second"]) == [f"{FULL}, {size} training examples" for size in sizes]
    assert list(table["size"]) == sizes
    assert compare([make_run(r) for r in ("none", "backbone")], num_draws=0)["size"].isna().all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"margin_points": 0}, "margin_points must be above 0"),
        ({"margin_points": np.inf}, "margin_points must be above 0 and finite; got inf"),
        ({"level": 1}, "level must be between 0 and 1"),
        ({"alpha": 0}, "alpha must be between 0 and 1"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(values, message):
    with pytest.raises(ValueError, match=message):
        Settings(**values)


def test_p_of_an_interval():
    known = Interval(estimate=0.5, low=0, high=1, df=7, variance=0.04, level=0.95, note="")
    assert p_value(known) == pytest.approx(2 * stats.t.sf(2.5, 7))
    assert np.isnan(p_value(Interval(estimate=0.5, low=0.5, high=0.5, df=7, variance=0, level=0.95, note="")))


def test_a_q_at_alpha_is_no_discovery_and_a_claim_without_p_is_none_of_the_family():
    lines = {"p": [0.05, np.nan], "is_headline": True, "verdict": ["supported", "not judged"], "reason": "because"}
    table = judge_together(pd.DataFrame(lines), 0.05)
    assert list(table["is_discovery"]) == [False, False]
    assert list(table["verdict"]) == ["not supported", "not judged"]
    assert list(table["reason"]) == ["because; the q of this claim, 0.05, is not below 0.05", "because"]
