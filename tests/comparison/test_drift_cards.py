"""Cards on drift: noise is never called drift, what it explains is equivalent to it, gaps in records are said."""

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.comparison.conftest import write_logged_run
from tests.comparison.planted import write_cards, write_evidence
from toolkit.comparison.cards import (
    CONTROLS,
    DESCRIBED,
    MARGIN,
    NO_CONTROL,
    association_cards,
    drift_cards,
    judge_association,
    judge_drift,
    make_cards,
    over_seeds,
    p_beyond,
    spearman_interval,
)
from toolkit.comparison.drift_and_score import associate_drift
from toolkit.comparison.intervals import Interval
from toolkit.comparison.multiplicity import benjamini_hochberg
from toolkit.comparison.parameter_noise import SHARED
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.shuffled_labels import ONE, PER_SEED
from toolkit.comparison.verdicts import VERDICTS, Null, Verdict
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.schema import COLUMNS


def of_kind(cards, kind):
    return [card for card in cards if card.kind == kind]


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    """Three runs of full fine-tuning and one with its embeddings frozen."""
    folder = tmp_path_factory.mktemp("drift")
    cases = [*(("none", seed) for seed in range(3)), ("embeddings", 0)]
    return write_evidence([write_logged_run(folder / "runs", *case, epochs=1) for case in cases], None, folder / "out")


def words_card(cards):
    """The card on the drift of word embeddings."""
    return next(card for card in of_kind(cards, "drift") if "word" in card.id)


def with_words(evidence, **columns):
    """The numbers of a report whose runs of full fine-tuning drifted so, in their word embeddings."""
    drift = evidence.drift.copy()
    own = (drift["parameter"] == "word_embeddings") & drift["has_moved"].astype(bool)
    for name, values in columns.items():
        drift.loc[own, name] = values
    return ReportData(replace(evidence, drift=drift))


@pytest.fixture
def logged_cards(tmp_path, monkeypatch):
    """A function: how many seeds, and the noise of their steps, to the cards of full fine-tuning."""
    monkeypatch.chdir(tmp_path)
    return lambda seeds, rate=1e-5: write_cards(
        [write_logged_run(tmp_path / "runs", "none", seed, rate) for seed in range(seeds)], "out"
    )


@pytest.mark.parametrize(("rate", "expected"), [(1e-5, "lies above 1"), (1e-2, "lies below 1 and the null")])
def test_drift_above_noise_and_below_it_is_described(logged_cards, rate, expected):
    """However far above noise a multiple is, it alone is no sign of learning."""
    cards = {card.id.rsplit(" / ")[-1]: card for card in of_kind(logged_cards(4, rate), "drift")}
    assert {name: card.verdict for name, card in cards.items()} == {
        "word_embeddings": DESCRIBED,
        "position_embeddings": DESCRIBED,
        "token_type_embeddings": "not identifiable",  # single sentences show one row
        "LayerNorm.weight": "not recorded",
        "LayerNorm.bias": "not recorded",
    }
    assert list(cards) == list(EMBEDDING_PARAMETERS)
    for name in ("LayerNorm.weight", "LayerNorm.bias"):
        assert "sizes of its gradients were not recorded" in cards[name].reason
        assert "a gap in the records of the run, not a quantity that no data could tell" in cards[name].reason
    assert "only the sum of the tables is visible" in cards["token_type_embeddings"].reason
    words = cards["word_embeddings"]
    assert re.fullmatch(rf"the interval .*{expected}.*{re.escape(NO_CONTROL)}", words.reason)
    assert (words.value > 1) == (rate == 1e-5)
    assert words.noise_floor == pytest.approx(math.sqrt(2) * words.value, rel=0.1)
    assert "gradients were not recorded" not in words.reason
    assert (words.margin, words.equivalence.level) == (MARGIN, 0.9)
    assert words.interval.low < words.equivalence.low < words.value < words.equivalence.high < words.interval.high
    assert "Rows are taken as independent: gradients that rows share lower the ratio" in words.source


def test_each_control_is_named_with_what_it_is_for():
    """Distance is judged against a permutation per seed only, agreement against one permutation (label_cards.py)."""
    assert {measure: order[0] for measure, order in CONTROLS.items()} == {"agreement": ONE, "median_drift": PER_SEED}
    assert "with --shuffle-labels (another permutation per seed), the control for how far rows move" in NO_CONTROL
    assert "--label-seed 0 (one permutation for all), the control for whether seeds agree" in NO_CONTROL


def test_what_shuffled_labels_gave_elsewhere_is_said_as_that():
    """On order the multiple under real labels is higher: it is no fact about every task."""
    assert "give the same multiple" not in NO_CONTROL
    assert "on SST-2 and TREC, though not on the built-in task order (reports/shuffled_labels)" in NO_CONTROL
    assert "reads the same" not in COLUMNS["times_noise"].meaning


def test_one_seed_supports_no_drift(logged_cards):
    words = words_card(logged_cards(1))
    assert (words.verdict, words.reason) == ("not judged", "one seed says nothing of others: at least 3 are needed")
    assert (words.value > 1, words.is_discovery) == (True, None)


def test_two_seeds_support_no_drift_and_no_equivalence_to_noise(logged_cards):
    """One degree of freedom: two seeds that agree by chance have a narrow interval anywhere."""
    cards = logged_cards(2)
    found = {card.verdict for card in cards if card.kind in ("drift", "score")}
    assert found <= {"not judged", "not recorded", "not identifiable"}
    words = words_card(cards)
    assert words.interval.low < words.value < words.interval.high
    assert words.reason == "two seeds leave one degree of freedom: at least 3 are needed"


@pytest.mark.parametrize(
    ("mean", "sd", "reason"),
    [
        (1.03, 0.002, "lies within 1 ± 0.05 times its noise"),
        (1.0, 0.002, "lies within"),
        (1.1, 0.01, "times its noise lies above 1 and the null 0.995 to 1"),
        (1.02, 0.1, "the smallest detectable excess is"),
        (1.048, 0.012, "lies above"),
        (0.33, 0.1, "lies below 1 and the null 0.995 to 1"),
        (0.94, 0.01, "lies below 1"),
        (0.96, 0.0145, "does not lie above 1 and the null"),
    ],
)
def test_drift_just_above_its_noise_is_described_as_equivalent_to_it(evidence, mean, sd, reason):
    """1.03 lay above the null's 1.005 in every run and was called supported: the choice of the null moves more."""
    times, ones = mean + sd * np.array([-1.0, 0.0, 1.0]), np.ones(3)
    null = {"null": ones, "null_low": 0.995 * ones, "null_high": 1.005 * ones}
    card = words_card(drift_cards(with_words(evidence, times_noise=times, offset_free_drift=times, **null)))
    assert (card.verdict, card.value) == (DESCRIBED, pytest.approx(mean))
    assert reason in card.reason
    assert card.null.low == pytest.approx(0.995)
    assert "lies within" not in reason or ("and excludes 1" in card.reason) == (mean != 1)


@pytest.mark.parametrize("mean", [1.0, 1.02, 1.05, 1.1, 2.0])
def test_the_q_of_drift_is_that_of_all_its_claims_and_decides(evidence, mean):
    """p is the one that the interval inverts: as an interval ends at the greater of 1 and the null, p is .05."""
    cards = list(drift_cards(with_words(evidence, times_noise=mean + 0.012 * np.array([-1.0, 0.0, 1.0]))))
    p = [p_beyond(interval_again(card), card.null) for card in cards]
    assert [math.isnan(one) for one in p] == [math.isnan(card.null.high) for card in cards]
    np.testing.assert_allclose([card.q for card in cards], benjamini_hochberg(p))
    for card, one in zip(cards, p, strict=True):
        if not math.isnan(one):
            assert (one < 0.05) == (card.interval.low > max(1, card.null.high))
            assert card.is_discovery == (card.q < 0.05)
            assert (card.verdict == "supported") <= (card.q < 0.05)


def test_many_claims_on_noise_take_support_from_one_that_is_barely_above(evidence):
    """Planted: twenty conditions' worth of noise, and one claim whose own interval lies just above the null."""
    wide, narrow = (over_seeds(np.array([1.05, 1.06, 1.08]), level) for level in (0.95, 0.9))
    null = Null("noise", 0.99, 1.01)
    p = p_beyond(wide, null)
    assert 0.02 < p < 0.05
    assert judge_drift(None, wide, narrow, null, 0.01, 3, p, 1).name == "supported"
    q = float(benjamini_hochberg([p, *np.linspace(0.1, 1, 20)])[0])
    beside = judge_drift(None, wide, narrow, null, 0.01, 3, q, 21)
    assert beside.name == "not supported"
    assert f"the q of 21 claims, {q:.3g}, is not below 0.05" in beside.reason


def interval_again(card):
    """A card's interval as it was made, from its ends: t with two degrees of freedom."""
    half = (card.interval.high - card.interval.low) / 2
    variance = (half / 4.302652729911275) ** 2  # t at .975 with 2 degrees of freedom
    return Interval(card.value, card.interval.low, card.interval.high, 2.0, variance, 0.95)


def test_drift_without_any_noise_to_hold_it_against_is_not_measurable(evidence):
    card = words_card(drift_cards(with_words(evidence, times_noise=np.nan, null=0.0)))
    assert card.verdict == "not measurable here"


def test_every_verdict_on_drift_is_that_of_the_rules_on_its_excess_over_one():
    """Far from noise in either direction, and in between: the order of the rules is kept for any interval."""
    rng, null, seen = np.random.default_rng(0), Null("noise", 0.99, 1.01), set()
    for _ in range(300):
        times = rng.uniform(0.8, 1.3) + rng.uniform(0, 0.08) * rng.normal(size=5)
        wide, narrow = (over_seeds(times, level) for level in (0.95, 0.9))
        found = judge_drift(None, wide, narrow, null, 0.01, 5).name
        seen.add(found)
        is_equivalent = narrow.low > 0.95 and narrow.high < 1.05
        assert (found == "equivalent") == is_equivalent
        assert is_equivalent or (found == "supported") == (wide.low > 1.01)
        assert is_equivalent or (found == "the other way") == (wide.high < 0.99)
        assert judge_drift(Verdict("not identifiable", SHARED), wide, narrow, null, 0.01, 5).name == "not identifiable"
    assert seen == {"equivalent", "supported", "the other way", "not supported"} < set(VERDICTS)


def test_common_offsets_are_never_identifiable_and_what_is_frozen_has_no_card(evidence):
    cards = make_cards(evidence)
    (offset,) = of_kind(cards, "offset")
    assert offset.verdict == "not identifiable"
    assert 0 <= offset.value <= 1
    assert all("full fine-tuning" in card.id for card in [offset, *of_kind(cards, "drift")])


def joined_of(num_tasks, noise=0.0, seeds=2, seed=0, verdict="supported"):
    """Tasks on which drift and gain rise together, up to ``noise``."""
    rng = np.random.default_rng(seed)
    gains = [task + noise * rng.normal() for task in range(num_tasks)]
    runs = [(task, run) for task in range(num_tasks) for run in range(seeds)]
    tasks = np.array([task for task, _ in runs])
    own = {
        "task": [f"t{task}" for task in tasks],
        "group": [f"tiny on t{task}" for task in tasks],
        "run": [f"r{task}-{run}" for task, run in runs],
        "seed": [run for _, run in runs],
        "times_noise": 1 + 0.01 * tasks,
        "relative_drift": 1 / (1 + tasks),
        "gain_points": np.array(gains)[tasks],
    }
    same = {"model": "tiny", "condition": "full", "base": "full", "size": 10, "learning_rate": 5e-5, "epoch": 3.0}
    return pd.DataFrame(own).assign(**same, is_frozen=False, parameter="word_embeddings", gain_verdict=verdict)


def association(evidence, joined, **own):
    data = ReportData(replace(evidence, facts={name: {"manifest_sha256": "0"} for name in joined["run"]}))
    data.__dict__.update(joined=joined, **own)
    return next(iter(association_cards(data)))


def test_association_is_refused_under_six_tasks_and_found_when_planted(evidence):
    five, twelve = association(evidence, joined_of(5)), association(evidence, joined_of(12))
    assert (five.verdict, five.num_items) == ("not applicable", 5)
    assert "at least 6" in five.reason
    worded = associate_drift(joined_of(5)).assign(reason="other words")
    assert association(evidence, joined_of(5), association=worded).verdict == "not applicable"
    assert (twelve.verdict, twelve.num_items, twelve.num_seeds) == ("supported", 12, 24)
    assert (twelve.reason.startswith("the permutation p of"), twelve.is_discovery) == (True, True)
    equal = association(evidence, joined_of(12, verdict="equivalent"))
    assert equal.verdict == "not measurable here"
    assert "every gain is within the margin" in equal.reason
    assert (math.isnan(equal.value), equal.is_discovery) == (True, None)


def test_associations_of_noise_are_supported_at_the_level_of_their_test(evidence):
    """Six tasks: the interval is none of the permutation test, and was narrower than it in more than one in twenty."""
    cards = [association(evidence, joined_of(6, noise=1e4, seeds=1, seed=seed)) for seed in range(150)]
    assert np.mean([card.verdict == "supported" for card in cards]) <= 0.08
    assert {card.verdict for card in cards} == {"supported", "not supported"}


@pytest.mark.parametrize(("p", "expected"), [(0.049, "supported"), (0.05, "not supported"), (0.9, "not supported")])
def test_an_association_is_judged_by_its_permutation_p(p, expected):
    assert judge_association("", p, 0.05).name == expected
    assert judge_association("", p, 0.01).name == "not supported"
    assert judge_association("refused: why", p, 0.05) == judge_association("refused: why", math.nan, 0.05)
    assert judge_association("", math.nan, 0.05).name == "not measurable here"
    assert judge_association("", p, 0.05, 0.06, 7).name == "not supported"
    assert judge_association("", 0.01, 0.05, 0.04, 7).name == "supported"


def test_more_runs_are_no_more_points(evidence):
    few, many = (association(evidence, joined_of(7, 3.0, seeds)) for seeds in (1, 9))
    assert few.num_items == many.num_items == 7
    assert few.interval == many.interval


def test_the_interval_of_a_rank_correlation_covers():
    """Bivariate normal with a Spearman correlation of .48, twelve points: about 95 % of intervals hold it."""
    from scipy.stats import spearmanr

    rng, rho = np.random.default_rng(0), 0.5
    true = 6 / np.pi * np.arcsin(rho / 2)
    hits = []
    for _ in range(400):
        x, y = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], 12).T
        low, high = spearman_interval(float(spearmanr(x, y).statistic), 12, 0.95)
        hits.append(low <= true <= high)
    assert 0.92 <= np.mean(hits) <= 0.98
    assert all(math.isnan(end) for end in (*spearman_interval(0.5, 3, 0.95), *spearman_interval(math.nan, 9, 0.95)))
    low, high = spearman_interval(1.0, 6, 0.95)
    assert low < high < 1
