"""Real labels against shuffled ones: what was planted is found, what labels did not do is not, and only like is held
against like."""

import math
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest

import toolkit
from tests.comparison.conftest import write_logged_run
from tests.comparison.planted import agree
from tests.conftest import leave_undrawn
from tests.refusals import check_refusals
from toolkit.comparison import shuffled_labels
from toolkit.comparison.cards import HAS_CONTROL, NO_CONTROL
from toolkit.comparison.conditions import arrange
from toolkit.comparison.evidence import read_evidence
from toolkit.comparison.parameter_noise import changes_of_shown, drift_of
from toolkit.comparison.runs import read_reported
from toolkit.comparison.shuffled_labels import (
    MEASURES,
    ONE,
    ONE_DRAW,
    OTHER_TARGETS,
    PER_SEED,
    contrast,
    difference,
    label_statistics,
    over_pairs,
)
from toolkit.comparison.verify import _check_together
from toolkit.config import RunConfig
from toolkit.data.builtin import BUILTIN_TASKS
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.snapshots.store import open_run

RATE = 1e-5
SEEDS = range(3)
ENOUGH = range(5)
"""So many that q over all claims of a comparison does not hide what is planted."""
DECIDED = {"equivalent", "supported", "under-powered", "not supported"}
"""Verdicts that rest on a number."""


def runs_of(folder, learned, seeds=SEEDS, rate=RATE, learning_rate=5e-5, **labels):
    """Runs that move by noise and by what ``learned(seed)`` names."""
    config = {"learning_rate": learning_rate, **labels}
    return [write_logged_run(folder, "none", s, rate, epochs=1, config=config, learned=learned(s)) for s in seeds]


def shuffled(folder, learned, **options):
    return runs_of(folder, learned, shuffle_labels=True, **options)


def line_of(table, measure, parameter="word_embeddings", permutation=ONE):
    where = (table["measure"] == measure) & (table["parameter"] == parameter) & (table["permutation"] == permutation)
    (line,) = table[where].to_dict("records")
    return line


@pytest.fixture(scope="module", autouse=True)
def _few_draws():
    """No test asks for the share of rows beyond both nulls, whose simulation would be most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shuffled_labels, "NUM_REPLICATES", 10)
        patch.setattr(shuffled_labels, "NUM_COORDINATES", 16)
        yield


@pytest.fixture(scope="module")
def planted_in_five(tmp_path_factory):
    """Real labels move rows further and alike; one permutation moves them alike, and one per seed each in its way."""
    folder = tmp_path_factory.mktemp("planted")
    real = runs_of(folder, lambda seed: (2.0, 1), ENOUGH)
    one = shuffled(folder, lambda seed: (0.5, 2), seeds=ENOUGH, label_seed=7)
    per_seed = shuffled(folder, lambda seed: (0.5, 10 + seed), seeds=ENOUGH)
    return real, one, per_seed


@pytest.fixture(scope="module")
def planted(planted_in_five):
    """Three seeds of each condition."""
    return tuple(runs[: len(SEEDS)] for runs in planted_in_five)


@pytest.fixture(scope="module")
def compared(planted):
    """What the three seeds give."""
    real, one, per_seed = planted
    return toolkit.compare_with_shuffled(real, [*one, *per_seed])


def test_what_real_labels_add_is_supported(planted_in_five):
    real, one, per_seed = planted_in_five
    table = toolkit.compare_with_shuffled(real, [*one, *per_seed])
    assert set(table["permutation"]) == {ONE, PER_SEED}
    assert set(table["measure"]) == set(MEASURES)
    agree(line_of(table, "agreement"), verdict="supported")
    for parameter in ("word_embeddings", "position_embeddings"):
        drift, agreement = line_of(table, "median_drift", parameter, PER_SEED), line_of(table, "agreement", parameter)
        agree(drift, verdict="supported", is_paired=True, num_seeds=5, num_seeds_shuffled=5)
        assert drift["value"] == pytest.approx(100 * (math.sqrt(5 / 1.25) - 1), rel=0.4)  # √(1 + 2²) and √(1 + .5²)
        assert agreement["real_mean"] == pytest.approx(4 / 5, abs=0.1)
        assert agreement["shuffled_mean"] == pytest.approx(0.25 / 1.25, abs=0.15)
        assert line_of(table, "agreement", parameter, PER_SEED)["shuffled_mean"] == pytest.approx(0, abs=0.15)
    agree(line_of(table, "times_noise", permutation=PER_SEED), verdict="supported")
    check_undecided(line_of(table, "median_drift"), ONE_DRAW)
    assert (table["q"].dropna() >= table["p"].dropna()).all()


@pytest.mark.slow  # many studies
@pytest.mark.parametrize("size", [0.0, 1.5])
def test_labels_that_carry_nothing_are_not_distinguishable_from_shuffled_ones(tmp_path, size):
    """With a size both conditions move far beyond sign noise, and their seeds agree, each on its own targets."""
    found = []
    for case in range(4):
        seeds = range(3 * case, 3 * case + 3)  # paired by seed, runs would have the very same noise
        real = runs_of(tmp_path, lambda seed, case=case: (size, case), seeds=seeds)
        others = [seed + 50 for seed in seeds]
        one = shuffled(tmp_path, lambda seed, case=case: (size, 9 + case), seeds=others, label_seed=7)
        per_seed = shuffled(tmp_path, lambda seed: (size, 99 + seed), seeds=others)
        table = toolkit.compare_with_shuffled(real, [*one, *per_seed])
        found += [
            line_of(table, measure, parameter, permutation)["verdict"]
            for measure, permutation in (("agreement", ONE), ("median_drift", PER_SEED), ("times_noise", PER_SEED))
            for parameter in ("word_embeddings", "position_embeddings")
        ]
        assert line_of(table, "times_noise")["real_mean"] > 2  # beyond noise, of which it says nothing
        assert (line_of(table, "agreement")["real_mean"] > 0.5) == (size > 0)
    assert found.count("supported") <= 2, found  # of 24 at 2.5 %, of which those of one pair of conditions go together


def check_undecided(line, reason):
    """A line has no verdict that rests on a number, for this reason."""
    assert line["verdict"] not in DECIDED
    assert line["reason"] == reason


def test_agreement_with_other_targets_per_seed_has_no_verdict(compared):
    """Seeds that learned other targets disagree for that alone: what any targets make would pass for learning."""
    line = line_of(compared, "agreement", permutation=PER_SEED)
    check_undecided(line, OTHER_TARGETS)
    assert math.isnan(line["p"])


def test_seeds_that_drew_other_examples_have_no_common_targets(planted, monkeypatch):
    """Under --max-train-examples one permutation is no common target: two seeds would hardly share an example."""
    real, one, _ = planted
    known = line_of(toolkit.compare_with_shuffled(real, one), "agreement")
    assert known["verdict"] == "supported"
    seen = iter(range(100))
    monkeypatch.setattr(shuffled_labels, "_tokens_seen", lambda run: next(seen))
    line = line_of(toolkit.compare_with_shuffled(real, one), "agreement")
    check_undecided(line, shuffled_labels.OTHER_EXAMPLES)
    assert line["value"] == known["value"]  # described all the same


def test_only_like_is_held_against_like(planted, tmp_path):
    real, one, _ = planted
    faster = shuffled(tmp_path, lambda seed: (0.5, 2), learning_rate=3e-4, label_seed=7)
    unshuffled = runs_of(tmp_path, lambda s: (0.0, 0), seeds=[9])
    two = [*real, *runs_of(tmp_path, lambda s: (0.0, 0), learning_rate=3e-4)]
    other = [write_logged_run(tmp_path, "none", 0, task="other", epochs=1, config={"shuffle_labels": True})]
    cases = [
        (r"differs from full fine-tuning in learning rate beside the labels", real, faster),
        ("learned real labels: pass it with the others of these", real, [*one, *unshuffled]),
        ("learned shuffled labels", [*real, *one[:1]], one[1:]),
        ("no runs with shuffled labels", real, []),
        ("of 2 conditions", two, one),
        ("one model and task", real, other),
    ]
    check_refusals(*((said, partial(toolkit.compare_with_shuffled, *runs)) for said, *runs in cases))


def test_a_control_at_another_rate_is_no_control_in_a_report(planted, tmp_path):
    """Of all runs together those of one rate are held against each other; a condition without a control has no line."""
    real, one, _ = planted
    groups = arrange([*real, *one, *runs_of(tmp_path, lambda seed: (2.0, 1), learning_rate=3e-4)])
    assert set(contrast(groups, label_statistics(groups))["condition"]) == {"full fine-tuning, learning rate 5e-05"}


def test_measures_are_what_numpy_makes_of_the_snapshots(planted, compared):
    """Oracle: agreement, median drift and their differences from the saved tensors alone."""
    drift, agreement = {}, {}
    for name, runs in zip(("real", "shuffled", "per seed"), planted, strict=True):
        parts = []
        for run in runs:
            first, *_, last = (np.float64(each.tensors["word_embeddings"]) for each in run.trajectory.snapshots)
            change = (last - first)[np.unique(run.trajectory.exposure.tables["word_embeddings"].rows)]
            parts.append(change - change.mean(axis=0))
        drift[name] = [np.log(np.median([np.sqrt(row @ row) for row in part])) for part in parts]
        agreement[name] = [
            np.mean([a @ b / math.sqrt((a @ a) * (b @ b)) for a, b in zip(one_part, other, strict=True)])
            for one_part, other in combinations(parts, 2)
        ]
    added = np.subtract(drift["real"], drift["per seed"])
    half = 4.302652729911275 * added.std(ddof=1) * math.sqrt(1 + 1 / 3)  # Student's t, 2 degrees of freedom
    value, low = (100 * math.expm1(each) for each in (added.mean(), added.mean() - half))
    agree(line_of(compared, "median_drift", permutation=PER_SEED), value=value, low=low)
    apart = np.subtract(agreement["real"], agreement["shuffled"])  # leaving out one of three seeds leaves one pair
    half = 4.302652729911275 * math.sqrt(2 / 3 * ((apart - apart.mean()) ** 2).sum())
    means = {"real_mean": np.mean(agreement["real"]), "shuffled_mean": np.mean(agreement["shuffled"])}
    agree(line_of(compared, "agreement"), **means, value=apart.mean(), high=apart.mean() + half)


def test_one_permutation_cancels_no_offset_that_all_rows_share(tmp_path):
    """A common offset makes every row of two seeds point alike; it belongs to no table and is left out."""
    one, other = runs_of(tmp_path, lambda seed: (0.0, 0), seeds=(0, 1))
    found = [changes_of_shown(run.trajectory, "word_embeddings") for run in (one, other)]
    plain = found[0].agreement(found[1])
    for each in found:
        each.change[:] += 1.0
    assert found[0].agreement(found[1]) == pytest.approx(plain, abs=1e-9)
    assert abs(plain) < 0.3


def test_frozen_parameters_and_single_rows_say_why(compared):
    segments = compared[compared["parameter"] == "token_type_embeddings"]
    assert not set(segments["verdict"]) & DECIDED
    assert all("only the sum of the tables is visible" in reason for reason in segments["reason"])
    assert "not recorded" in line_of(compared, "times_noise", "LayerNorm.weight")["reason"]
    assert set(compared["parameter"]) == set(EMBEDDING_PARAMETERS)


def test_too_few_seeds_support_nothing(planted):
    real, one, _ = planted
    two = line_of(toolkit.compare_with_shuffled(real[:2], one[:2]), "agreement")
    assert math.isnan(two["low"])
    assert two["verdict"] != "supported"
    single = toolkit.compare_with_shuffled(real[:1], one[:1])
    assert not {"supported", "equivalent"} & set(single["verdict"])
    assert single["p"].isna().all()


def test_other_seeds_are_compared_unpaired(planted, compared):
    real, one, _ = planted
    line = line_of(toolkit.compare_with_shuffled(real, one[:2]), "median_drift")
    agree(line, is_paired=False, num_seeds=3, num_seeds_shuffled=2)
    assert line["value"] == pytest.approx(line_of(compared, "median_drift")["value"], rel=0.2)


@pytest.mark.parametrize("num_seeds", [3, 5])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_intervals_over_pairs_of_seeds_cover(num_seeds, share):
    """Pairs that share a seed are not independent: the jackknife covers where the seeds, the pairs or both vary."""
    rng, covered = np.random.default_rng(0), []
    for _ in range(400):
        seeds = math.sqrt(share) * rng.normal(size=num_seeds)
        values = {
            (i, j): seeds[i] + seeds[j] + math.sqrt(1 - share) * rng.normal()
            for i, j in combinations(range(num_seeds), 2)
        }
        found = difference(values, {key: rng.normal() for key in values}, 0.95)
        covered.append(found.low <= 0 <= found.high)
    assert np.mean(covered) > 0.93


@pytest.mark.parametrize("share", [0.2, 0.7, 1.0])
@pytest.mark.parametrize("is_paired", [True, False])
def test_a_permutation_in_the_place_of_real_labels_is_seldom_called_real(share, is_paired):
    """All seeds share the deviation of the one labelling that they learned: an interval over seeds alone misses it."""
    rng, above, plain = np.random.default_rng(1), [], []
    for _ in range(2000):
        labelling = math.sqrt(share) * rng.normal()
        real = {(seed,): labelling + math.sqrt(1 - share) * rng.normal() for seed in range(3)}
        shuffled = {(seed + 9 * (not is_paired),): rng.normal() for seed in range(3)}
        above.append(difference(real, shuffled, 0.95, PER_SEED).low > 0)
        plain.append(difference(real, shuffled, 0.95).low > 0)
    assert np.mean(above) < 0.04
    assert np.mean(plain) > 0.05 or share < 0.7


def test_the_jackknife_is_exact_where_only_seeds_vary():
    estimate, variance, df = over_pairs({(i, j): float(i**2 + j**2) for i, j in combinations(range(4), 2)})
    own = np.array([0.0, 1, 4, 9])
    assert (estimate, df) == (pytest.approx(2 * own.mean()), 3)
    assert variance == pytest.approx(4 * own.var(ddof=1) / 4)


def test_welch_is_scipys():
    from scipy.stats import ttest_ind

    rng = np.random.default_rng(0)
    one, two = rng.normal(1, 1, 4), rng.normal(0, 3, 6)
    found = difference({(i,): x for i, x in enumerate(one)}, {(i + 9,): x for i, x in enumerate(two)}, 0.95)
    expected = ttest_ind(one, two, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@pytest.fixture(scope="module")
def report(planted, tmp_path_factory):
    """A report of the planted runs beside those of another rate, which have no control."""
    folder = tmp_path_factory.mktemp("report")
    runs = [run for part in planted for run in part] + runs_of(
        folder / "runs", lambda seed: (2.0, 1), learning_rate=3e-4
    )
    with pytest.MonkeyPatch.context() as patch:
        leave_undrawn(patch)
        toolkit.write_report(runs, folder / "out")
    return folder / "out", runs


def cards_of(folder):
    return {card.id: card for card in toolkit.make_cards(folder)}


@pytest.mark.slow  # whole reports
def test_the_cards_of_a_report_are_those_of_its_table(report, compared):
    out, _ = report
    cards = cards_of(out)
    full = "full fine-tuning, learning rate 5e-05"
    own = [card for card in cards.values() if card.kind == "labels"]
    assert {card.id.split(" / ")[1] for card in own} == {full}
    for measure, permutation in (("agreement", ONE), ("median_drift", PER_SEED)):
        card = cards[f"labels: tiny on toy / {full} / word_embeddings / {measure}"]
        line = line_of(compared, measure, permutation=permutation)
        agree(line, value=card.value, low=card.interval.low, verdict=card.verdict, reason=card.reason)
        assert "shuffled labels" in card.claim
        assert "label seed 7" in card.null.what or permutation == PER_SEED
    words = [card for card in cards.values() if card.kind == "drift" and card.id.endswith("/ word_embeddings")]
    assert not {card.verdict for card in words} & DECIDED
    reasons = {card.id.split(" / ")[1]: card.reason for card in words}
    assert reasons[full].endswith(HAS_CONTROL)  # and nothing of what shuffled labels gave elsewhere
    assert "SST-2" not in reasons[full]
    assert reasons["full fine-tuning, learning rate 0.0003"].endswith(NO_CONTROL)


def test_the_page_says_what_real_labels_add(report):
    out, _ = report
    table = (out / "report.md").read_text().split("Real against shuffled labels")[1]
    words = next(line for line in table.splitlines() if "embeddings | agreement |" in line)
    assert "| supported |" in words
    assert "label seed 7" in words
    assert (out / "tables" / "shuffled_labels.csv").is_file()


def test_verify_measures_the_labels_again(report):
    out, runs = report
    evidence = read_evidence(out)
    at_hand = {name: read_reported(open_run(run.path), name) for run in runs for name in [run.path.name]}
    drift = {name: drift_of(run).assign(run=name) for name, run in at_hand.items()}
    assert not list(_check_together(at_hand, evidence, drift))
    changed = evidence.labels.assign(value=evidence.labels["value"] * 1.01)
    found = list(_check_together(at_hand, replace(evidence, labels=changed), drift))
    assert found == ["labels is not what the runs give"]


@pytest.mark.usefixtures("undrawn")
def test_without_shuffled_labels_a_report_says_what_the_ratio_cannot_tell(planted, tmp_path):
    out = tmp_path / "out"
    text = toolkit.write_report(planted[0], out).path.read_text()
    assert "By itself this does not show that anything was learned" in text
    assert "--shuffle-labels --label-seed 0" in text
    assert "Real against shuffled labels" not in text
    assert read_evidence(out).labels.empty
    assert "supported" not in {card.verdict for card in cards_of(out).values() if card.kind == "drift"}


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    """A function: labels in a file, and settings, to three runs of a tiny BERT trained on them."""
    folder, built_in = tmp_path_factory.mktemp("trained"), BUILTIN_TASKS["polarity"].build()
    sizes = {"epochs": 3, "batch_size": 16, "precision": "no", "learning_rate": 3e-3, "max_length": 40}

    def write(name, labels, split):
        rows = [f"{texts[0]}\t{label}" for texts, label in zip(built_in[split].texts, labels, strict=False)]
        (folder / name).write_text("\n".join(["text\tlabel", *rows]) + "\n")
        return str(folder / name)

    def train(labels, **changes):
        fields = {
            "train_file": write("train.tsv", labels, "train"),
            "output_dir": str(folder / "runs"),
            "validation_file": write("validation.tsv", list(built_in["validation"].labels)[:24], "validation"),
        }
        config = RunConfig(model=str(tiny_model("bert")), **sizes, **fields)
        return [toolkit.finetune(replace(config, seed=seed, **changes)) for seed in SEEDS]

    return train


@pytest.mark.slow  # eighteen runs
def test_a_model_that_learned_something_is_told_from_one_that_learned_nothing(trained):
    """Real labels of `polarity` move words further, and more alike, than a permutation of them; labels that are written
    into the file in random order do not."""
    real = [int(label) for label in BUILTIN_TASKS["polarity"].build()["train"].labels[:256]]
    nothing = np.random.default_rng(5).permutation(real)
    learned, empty = (
        toolkit.compare_with_shuffled(
            trained(labels), trained(labels, shuffle_labels=True) + trained(labels, shuffle_labels=True, label_seed=0)
        )
        for labels in (real, nothing)
    )
    drift = line_of(learned, "median_drift", permutation=PER_SEED)
    assert drift["low"] > 0, "the rule of support but for q, for which three seeds of a tiny model are too few"
    assert line_of(learned, "agreement")["value"] > 0.05
    found = [line_of(empty, measure, permutation=PER_SEED) for measure in ("median_drift", "times_noise")]
    found.append(line_of(empty, "agreement"))
    assert "supported" not in {line["verdict"] for line in found}
    assert found[1]["real_mean"] > 1.05  # far above its noise all the same
    assert found[2]["value"] < 0.05
