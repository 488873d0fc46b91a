"""Findings say plainly what was found: tasks by name with their numbers, built-in ones and other data apart."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.analysis.comparison.drift_cards import NO_CONTROL
from toolkit.analysis.comparison.estimates import NO_MEAN
from toolkit.analysis.comparison.shuffled_labels import ONE, PER_SEED
from toolkit.analysis.comparison.verdicts import REFUSALS, VERDICTS
from toolkit.reporting.cells import signed
from toolkit.reporting.comparison.drift_answers import drift_answer
from toolkit.reporting.comparison.pair_sentences import counted, in_brief, in_full, in_short
from toolkit.reporting.comparison.selections import is_from_elsewhere, largest_size
from toolkit.reporting.comparison.study_findings import MOST, report_findings, score_findings

CARRIER = {"name": "order", "score": "accuracy", "reported_split": "validation", "carrier": "Word order."}


def line(name="sst2", difference=4.6, low=3.1, high=6.1, verdict="supported", q=0.001, split="validation", **more):
    return {
        "name": name,
        "group": f"minilm on {name}",
        "model": "minilm",
        "task": name,
        "split": split,
        "is_reported_split": split == "validation",
        "first_base": "full fine-tuning",
        "second_base": "feature extraction",
        "num_train_examples": 2000,
        "score": "accuracy",
        "is_headline": True,
        "num_seeds": 5,
        "difference_points": difference,
        "low_points": low,
        "high_points": high,
        "low90_points": difference - 0.8 * (difference - low),
        "high90_points": difference + 0.8 * (high - difference),
        "verdict": verdict,
        "reason": "every run failed",
        "q": q,
        "detectable_gap_points": 2.2,
        "margin_points": 1.5,
    } | more


FROZEN = {"second_base": "embeddings frozen"}
EQUAL = line(difference=-0.14, low=-0.68, high=0.41, verdict="equivalent", **FROZEN)


def sentence(*lines):
    return in_full("full fine-tuning", "feature extraction", pd.DataFrame(lines))


def test_a_supported_difference_is_said_with_task_points_and_interval():
    assert sentence(line(), line("trec", 7.92, 5.88, 9.96)) == (
        "On sst2 full fine-tuning scores 4.6 points above feature extraction (95 % 3.1 to 6.1) and on trec 7.9 "
        "(5.9 to 10.0)."
    )


def test_a_difference_below_keeps_its_size_and_says_below():
    text = sentence(line(difference=-4.6, low=-6.1, high=-3.1))
    assert text == "On sst2 full fine-tuning scores 4.6 points below feature extraction (95 % 3.1 to 6.1)."


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("equivalent", "are equivalent within 1.5 points"),
        ("under-powered", "a gap under 2.2 could not be found) these data cannot tell"),
        ("not supported", "no difference between full fine-tuning and feature extraction was found"),
        *(
            (name, "nothing can be said of full fine-tuning and feature extraction (every run failed)")
            for name in REFUSALS
        ),
    ],
)
def test_what_was_not_found_is_said_too(verdict, said):
    text = sentence(line(difference=0.2, low=-1.6, high=2.0, verdict=verdict))
    assert said in text
    assert "scores" not in text  # nobody is above anybody
    if verdict not in REFUSALS:
        deciding = "90 % -1.2 to +1.6" if verdict == "equivalent" else "95 % -1.6 to +2.0"
        assert f"+0.2, {deciding}" in text


@pytest.mark.parametrize(
    ("score", "gap", "said"),
    [
        ("accuracy", 100.0, "with 5 seeds no gap at all could be found"),
        ("accuracy", 99.0, "a gap under 99.0 could not be found"),
        ("pearson", 144.6, "a gap under 144.6 could not be found"),
        ("pearson", 200.0, "with 5 seeds no gap at all could be found"),
    ],
)
def test_a_gap_that_no_score_can_have_is_not_named(score, gap, said):
    unsure = line(low=-90, high=95, verdict="under-powered", score=score, detectable_gap_points=gap)
    assert f"; {said})" in sentence(unsure)


def test_a_difference_that_does_not_stand_among_all_of_them_shows_its_q_and_is_not_supported():
    assert "q =" not in sentence(line(q=0.049))
    fallen = line(q=0.057, verdict="not supported")
    assert "(+4.6, 95 % +3.1 to +6.1; q = 0.057) no difference between" in sentence(fallen)
    assert "(not supported)" in in_brief("x", pd.DataFrame([fallen]))
    assert "q =" not in sentence(line(difference=0.2, low=-1.6, high=2.0, verdict="not supported", q=0.7))


F1 = {"score": "f1", "note": NO_MEAN}
NO_INTERVAL = dict.fromkeys(("low", "high", "low90_points", "high90_points"), np.nan) | {"verdict": "not judged"}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line()], "accuracy on validation, 5 seeds; every interval is over seeds and items."),
        ([line(num_seeds=1)], "accuracy on validation, 1 seed; every interval is over items only."),
        ([line(**F1)], "f1 on validation, 5 seeds; every interval is over seeds."),
        ([line(), line("roles", **F1)], "5 seeds; every interval is over seeds and items (accuracy) or seeds (f1)."),
        ([line(**F1, num_seeds=1, **NO_INTERVAL)], "f1 on validation, 1 seed; no interval."),
    ],
)
def test_intervals_are_over_items_only_where_the_score_is_a_mean_over_them(lines, said):
    found = score_findings(pd.DataFrame(lines), set())
    assert found[0].endswith(said)
    assert not any("undefined" in text for text in found)


def test_where_there_is_no_interval_the_sentence_says_so():
    one = line(difference=0.3, num_seeds=1, detectable_gap_points=np.nan, **F1, **NO_INTERVAL)
    few = line("trec", difference=0.3, low=-1, high=1.6, num_seeds=1, verdict="not judged")
    assert sentence(one, few).startswith("On sst2 (+0.3, no interval) and trec (+0.3, 95 % -1.0 to +1.6; a gap under ")


def test_verdicts_are_counted_from_what_claims_something_on():
    verdicts = pd.Series(["not recorded", "not judged", "equivalent", *["supported"] * 3])
    assert counted(verdicts) == "3 supported; 1 equivalent; 1 not judged; 1 not recorded"
    assert counted(pd.Series(VERDICTS)).count("1 ") == len(VERDICTS)


@given(st.lists(st.sampled_from(VERDICTS), min_size=1, max_size=6), st.integers(0, 1000))
def test_every_task_is_named_once_in_every_form(verdicts, seed):
    values = np.random.default_rng(seed).uniform(0.5, 20, len(verdicts))
    lines = [line(f"task{i}", v, v / 2, 2 * v, kind) for i, (v, kind) in enumerate(zip(values, verdicts, strict=True))]
    table = pd.DataFrame(lines)
    names = [f"task{i}" for i in range(len(lines))]
    for text in (in_full("a", "b", table), in_brief("b", table)):
        assert sorted(re.findall(r"task\d", text)) == names
    short = in_short("a", [("b", table)])
    count, total = verdicts.count("supported"), len(verdicts)
    if 0 < count < total:
        assert f"above b on {count} of {total}" in short
    elif count == total > 1:
        assert f"above b on all {total}" in short
    else:
        assert ("above b" in short) == (count == total)
    undecided = sum(kind not in ("supported", "equivalent") for kind in verdicts)
    assert (f"({undecided} undecided)" in short) == (0 < undecided < total)


@given(st.floats(-100, 100))
def test_a_number_is_printed_as_zero_only_if_it_nearly_is(value):
    shown = signed(value)
    assert float(shown) == pytest.approx(value, abs=0.0501 if abs(value) >= 0.05 else 0.00501)
    assert (shown == "0.0") == (abs(value) < 0.005 or float(f"{value:.2f}") == 0)
    assert shown == "0.0" or shown[0] == ("+" if value > 0 else "-")


def test_nothing_is_said_in_short_of_pairs_of_which_nothing_can_be_said():
    refused = line(verdict="not identifiable")
    (only,) = score_findings(pd.DataFrame([refused]), set())
    assert only.startswith("On sst2 nothing can be said of full fine-tuning and feature extraction (every run failed)")
    found = score_findings(pd.DataFrame([refused, EQUAL]), set())
    assert found[0].startswith("In short, on sst2 full fine-tuning scores within 1.5 points of embeddings frozen.")


def test_the_answer_comes_first_and_real_data_controlled_tasks_and_other_data_stay_apart():
    lines = [line(), line("trec", 8, 6, 10), line("order", 34.1, 31, 37), line("order", 42, 40, 44, split="ood")]
    lines += [line(split="cr", difference=6.9, low=5.6, high=8.2), line("trec", 7.0, 5, 9, split="test"), EQUAL]
    found = score_findings(pd.DataFrame(lines), {"minilm on order"})
    assert found[0] == (
        "In short, on 2 real tasks full fine-tuning scores 4.6 to 8.0 points above feature extraction on all 2 and "
        "within 1.5 points of embeddings frozen. Scores: accuracy on validation, 5 seeds; every interval is over seeds "
        "and items."
    )
    assert [text[:30] for text in found[1:]] == [
        "On sst2 full fine-tuning score",
        "On sst2 (-0.1, 90 % -0.6 to +0",
        "On the controlled (built-in) t",
        "Out of distribution, in points",
        "Out of distribution on the con",
    ]
    assert found[3].endswith(
        "task order, in points: full fine-tuning minus feature extraction +34.1 on order (supported)."
    )
    assert found[4].endswith("full fine-tuning minus feature extraction +6.9 on cr (supported).")
    assert found[5].startswith("Out of distribution on the controlled task order, in points: ")
    assert found[5].endswith("+42.0 on ood (supported).")
    assert "order" not in " ".join(found[:3])
    assert "7.0" not in " ".join(found)  # a test of the same data repeats the reported split


def test_without_real_data_the_controlled_tasks_are_the_answer():
    found = score_findings(pd.DataFrame([line("order"), line("pair")]), {"minilm on order", "minilm on pair"})
    assert found[0].startswith("In short, on 2 controlled tasks full fine-tuning scores 4.6 points above")
    assert len(found) == 2


def test_several_models_are_not_called_tasks():
    models = [{"model": f"m{i}", "name": "order", "group": f"m{i} on order"} for i in range(3)]
    lines = [line("order", split=split) | model for split in ("validation", "ood") for model in models]
    controlled = {model["group"] for model in models}
    answer, *_, elsewhere = score_findings(pd.DataFrame(lines), controlled)
    assert answer.startswith("In short, on 3 controlled pairs of model and task full fine-tuning scores ")
    assert elsewhere.startswith("Out of distribution on the controlled task order (ood), in points: ")
    table = pd.concat(joined({f"m{i} on a": [1.1]}).assign(model=f"m{i}", arm="full") for i in range(2))
    note = {"spearman": np.nan, "note": "refused: 1 task", "base": "full", "parameter": "word_embeddings"}
    text = drift_answer(table, pd.DataFrame([note | {"model": f"m{i}"} for i in range(2)]))
    assert "moved 1.10 (m0 on a) to 1.10 (m0 on a) times" in text
    assert text.endswith("Does drift of word_embeddings predict gain across the tasks of m0? Refused: 1 task.")


def test_a_pair_that_no_data_tell_apart_is_no_finding_of_a_difference():
    found = score_findings(pd.DataFrame([line(verdict="under-powered", difference=1.0, low=-1, high=3)]), set())
    assert "neither above nor below feature extraction as far as these data tell" in found[0]


def test_a_difference_in_one_seed_is_told_as_one():
    alone = line(verdict="not judged", difference=25.0, low=14.3, high=35.7, num_seeds=1)
    text = sentence(alone)
    assert "sst2 (+25.0, 95 % +14.3 to +35.7) full fine-tuning and feature extraction differ on these items" in text
    assert "one seed says nothing of others" in text
    assert (
        "+25.0 points against feature extraction on these items, in one seed"
        in score_findings(pd.DataFrame([alone]), set())[0]
    )


def test_a_difference_in_two_seeds_and_none_in_one_are_told_as_such():
    two = line(verdict="not judged", difference=25.0, low=14.3, high=35.7, num_seeds=2)
    assert sentence(two).endswith("differ on these items, and two seeds say nothing of others.")
    assert "on these items, in two seeds" in score_findings(pd.DataFrame([two]), set())[0]
    none = line(verdict="not judged", difference=0.2, low=-1.6, high=2.0, num_seeds=1)
    assert "one seed says nothing of full fine-tuning and feature extraction" in sentence(none)


def test_findings_keep_to_the_greatest_size_by_what_was_asked_for():
    lines = [line(size=1900, difference=1.0), line(size=2000), line("trec", size=None), line("trec", size=500)]
    table = largest_size(pd.DataFrame(lines))
    assert list(table.index) == [1, 2]  # 1,900 and 2,000 are two sizes; all examples are more than 500


@pytest.mark.parametrize(
    ("split", "elsewhere"),
    [("validation", 0), ("test", 0), ("dev", 0), ("selection", 0), ("cr", 1), ("ood", 1), ("validation_mismatched", 1)],
)
def test_the_name_of_a_split_tells_where_it_is_from(split, elsewhere):
    assert is_from_elsewhere(split) == bool(elsewhere)


def test_findings_of_one_task_are_those_of_its_comparison(read_study, data_of):
    data = data_of(*read_study(num_seeds=3))
    found = report_findings(data)
    assert found[0].startswith("In short, on toy full fine-tuning scores ")
    assert " points above feature extraction. Scores: " in found[0]
    row = data.comparison[(data.comparison["second"] == "feature extraction") & data.comparison["is_reported_split"]]
    points, low, high = (signed(row[f"{name}_points"].iloc[0])[1:] for name in ("difference", "low", "high"))
    assert f"On toy full fine-tuning scores {points} points above feature extraction (95 % {low} to {high})." in found
    assert any("the embedding parameters had moved" in text for text in found)
    assert len(found) <= MOST + 1


def test_findings_of_many_tasks_name_each_of_them(read_study, data_of):
    runs, labels = [], {}
    for task, right in (("a", 0.4), ("b", 0.3), ("order", 0.5)):
        facts = {"facts": {"task": CARRIER}} if task == "order" else {}
        more = read_study(tasks=(task,), num_seeds=3, right={"feature extraction": right}, **facts)
        runs, labels = [*runs, *more[0]], labels | more[1]
    found = report_findings(data_of(runs, labels))
    assert "on 2 real tasks full fine-tuning scores " in found[0]
    assert " points above feature extraction on all 2. Scores: " in found[0]
    (pair,) = [text for text in found[1:] if " points above feature extraction" in text]
    assert pair.startswith("On a full")
    assert " on b " in pair
    assert "order" not in pair
    assert any(text.startswith("On the controlled (built-in) task order, in points:") for text in found)
    assert any("at least 6 are needed" in text for text in found)
    assert len(found) <= MOST + 2


def joined(values):
    lines = [
        {"parameter": "word_embeddings", "is_frozen": False, "times_noise": value, "base": "full", "group": group}
        | {"model": "m", "num_train_examples": 10, "learning_rate": 5e-5}
        for group, own in values.items()
        for value in own
    ]
    return pd.DataFrame(lines)


def test_multiples_of_noise_describe_and_are_no_finding():
    text = drift_answer(joined({"m on a": [1.0, 1.2], "m on b": [1.3, np.nan]}), pd.DataFrame())
    assert text == (
        "Under full the word rows that training showed moved 1.10 (a) to 1.30 (b) times as far as random gradient "
        f"signs would move them. That describes and shows no learning: {NO_CONTROL}."
    )
    # Ten times the vocabulary is no drift: the share of the whole table is not read at all.
    assert drift_answer(joined({"m on a": [1.1]}).assign(relative_drift=0.5), pd.DataFrame()).count("1.10 (a)") == 1
    assert drift_answer(joined({"m on a": [np.nan]}), pd.DataFrame()) == ""
    assert "No word embeddings were trained" in drift_answer(
        joined({"m on a": [1.0]}).assign(is_frozen=True), pd.DataFrame()
    )


def test_tasks_of_unlike_learning_rates_are_not_ranked_by_their_multiples():
    """The multiple falls as the rate rises: the least and the greatest of tasks would be those of their rates."""
    table = joined({"m on a": [1.1], "m on b": [1.02], "m on c": [1.3]})
    table.loc[1, "learning_rate"] = 3e-4
    text = drift_answer(table, pd.DataFrame())
    assert "moved 1.10 (a, at 5e-05), 1.02 (b, at 0.0003) and 1.30 (c, at 5e-05) times as far" in text


def test_with_shuffled_labels_beside_it_what_real_ones_add_comes_first():
    line = {"group": "m on a", "arm": "full", "control": "shuffled", "parameter": "word_embeddings"}
    agreement = line | {"measure": "agreement", "real": 0.31, "shuffled": 0.12, "value": 0.19, "low": 0.1, "high": 0.28}
    agreement |= {"permutation": ONE, "verdict": "supported"}
    per_seed = agreement | {"permutation": PER_SEED, "shuffled": 0.0, "value": 0.31, "verdict": "not identifiable"}
    further = line | {"measure": "median_drift", "real": 1.0, "shuffled": 1.0, "value": 1.25, "low": -2.0, "high": 4.5}
    further |= {"permutation": PER_SEED, "verdict": "under-powered"}
    noise = further | {"measure": "times_noise", "value": 9.9}
    text = drift_answer(joined({"m on a": [1.1]}), pd.DataFrame(), pd.DataFrame([per_seed, agreement, noise, further]))
    assert text == (
        "m on a, full: two seeds move a word with a mean cosine of 0.31 under real labels and 0.12 under shuffled "
        "ones (one for all seeds): +0.19 (+0.10 to +0.28): supported; how far the median word moved, against shuffled "
        "labels (another per seed): +1.2 % (-2.00 % to +4.50 %): under-powered."
    )


def test_a_refused_association_gives_its_reason():
    line = {"spearman": np.nan, "note": "refused: every gain is within the margin", "base": "full"}
    table = pd.DataFrame([line | {"parameter": name} for name in ("LayerNorm.bias", "word_embeddings")])
    text = drift_answer(joined({"m on a": [1.0]}), table)
    assert text.endswith(
        "Does drift of word_embeddings predict gain across tasks? Refused: every gain is within the margin."
    )
