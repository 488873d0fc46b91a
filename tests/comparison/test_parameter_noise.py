"""A table that noise moved lies inside its null, a planted direction far outside; a shared offset never counts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.adam_runs import (
    WORDS,
    constant,
    gaussian,
    make_log,
    plant,
    random_exposure,
    signs,
    warm_up_and_decay,
)
from toolkit.analysis.nulls import sign_noise
from toolkit.comparison.intervals import seeds_interval
from toolkit.comparison.parameter_noise import (
    NO_SIZES,
    distance_of_seeds,
    exposed_rows,
    measure_beyond_noise,
    offset_free,
)
from toolkit.naming import NOT_IDENTIFIABLE, NOT_MEASURABLE, NOT_RECORDED
from toolkit.snapshots.logs import Exposure
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Run

EXPOSED = random_exposure(60, 40, 0.2)
EXPOSED[:, 30:] = False


def line_of(planted, trajectory=None):
    return measure_beyond_noise(trajectory or planted.trajectory, log=planted.log).iloc[0]


def test_random_signs_stay_inside_the_null_at_about_its_level():
    lines = [line_of(plant(signs(), EXPOSED, seed=seed)) for seed in range(40)]
    inside = [line["null_low"] <= line["offset_free_drift"] <= line["null_high"] for line in lines]
    assert np.mean(inside) > 0.9  # the bound on the variance is not sharp: rather too wide than too narrow
    assert np.mean([line["offset_free_drift"] / line["null"] for line in lines]) == pytest.approx(1, abs=0.01)


def test_the_null_is_that_of_many_replays():
    """Oracle: each row's replicates of sign_noise, which toss coins, with no offset taken out of a single row."""
    planted = plant(signs(), EXPOSED)
    rows = exposed_rows(planted.trajectory, WORDS)
    replayed = sign_noise(planted.trajectory, WORDS, 1, rows, log=planted.log, num_replicates=400, num_coordinates=0)
    square = float((replayed["null"] ** 2 + replayed["null_sd"] ** 2).sum())
    before = planted.path[0][rows].astype(float)
    # Decay is a hundredth of the whole here, and moves in a common direction no more than the rows do.
    assert line_of(planted)["null"] == pytest.approx(
        np.sqrt(square * (1 - 1 / len(rows)) / (before**2).sum()), rel=0.005
    )


def ended(planted, change):
    """The planted trajectory whose last word table is what ``change`` makes of the first and the last."""
    first, last = planted.trajectory.snapshots
    tensor = change(first.tensors[WORDS], np.array(last.tensors[WORDS], np.float64)).astype(np.float32)
    return Trajectory(
        [first, Snapshot(1, last.step, {WORDS: tensor})], read_exposure=lambda: planted.trajectory.exposure
    )


@pytest.mark.parametrize(("direction", "least"), [(constant, 2.0), (gaussian, 0.8)])
def test_a_planted_direction_is_found_and_random_directions_are_not(direction, least):
    lines = [line_of(plant(direction(), EXPOSED, seed=seed)) for seed in range(5)]
    ratios = [line["offset_free_drift"] / line["null_high"] for line in lines]
    assert min(ratios) > least
    assert direction is not gaussian or max(ratios) < 1


def test_an_offset_that_all_shown_rows_share_changes_nothing():
    planted = plant(signs(), EXPOSED)
    is_shown = np.isin(np.arange(40), exposed_rows(planted.trajectory, WORDS))
    shifted = ended(planted, lambda first, last: last + 0.5 * is_shown[:, None])
    plain, moved = line_of(planted), line_of(planted, shifted)
    assert moved["offset_free_drift"] == pytest.approx(plain["offset_free_drift"], rel=1e-4)
    assert moved["null"] == plain["null"]
    assert moved["relative_drift"] > 5 * plain["relative_drift"]


def test_rows_that_training_never_showed_do_not_count():
    planted = plant(signs(), EXPOSED)
    line = line_of(planted, ended(planted, lambda first, last: last + 3 * (np.arange(40) >= 35)[:, None]))
    assert line["num_exposed_rows"] == len(np.flatnonzero(EXPOSED.any(axis=0))) < line["num_rows"] == 40
    assert line["offset_free_drift"] == line_of(planted)["offset_free_drift"]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.integers(1, 5), st.integers(0, 1000), st.floats(-5, 5))
def test_offset_free_drift_is_the_least_over_all_offsets(num_rows, hidden, seed, size):
    rng = np.random.default_rng(seed)
    before, after = rng.normal(size=(2, num_rows, hidden))
    least = offset_free(before, after, is_table=True)
    assert least <= offset_free(before, after + size * rng.normal(size=hidden), is_table=False) + 1e-12
    assert offset_free(before, after + size, is_table=True) == pytest.approx(least)
    assert offset_free(before, after, is_table=False) >= least


def test_one_shown_row_is_refused_as_a_matter_of_gauge():
    exposed = np.zeros((10, 4), bool)
    exposed[:, 1] = True
    line = line_of(plant(constant(), exposed))
    assert line["has_moved"]
    assert "only the sum of the tables is visible" in line["reason"]
    assert line["reason_kind"] == NOT_IDENTIFIABLE
    assert np.isnan(line[["offset_free_drift", "null", "null_low", "null_high"]].astype(float)).all()


def test_what_is_frozen_or_not_logged_is_refused_with_its_reason(make_run):
    frozen, moved = make_run("embeddings"), make_run("none")
    assert set(measure_beyond_noise(frozen)["reason"]) == {"did not move"}
    assert set(measure_beyond_noise(frozen)["relative_drift"]) == {0.0}
    found = measure_beyond_noise(moved).set_index("parameter")
    reasons, kinds = found["reason"], found["reason_kind"]
    assert (kinds["word_embeddings"], kinds["token_type_embeddings"]) == (NOT_RECORDED, NOT_IDENTIFIABLE)
    assert reasons["word_embeddings"].startswith(f"{moved.path.name} has no optimizer.json")
    assert "only the sum" in reasons["token_type_embeddings"]
    unknown = measure_beyond_noise(make_run("none", 1, has_exposure=False)).set_index("parameter")
    assert unknown.loc["word_embeddings", "reason"] == "the exposure of word_embeddings was not recorded"
    assert unknown.loc["word_embeddings", "reason_kind"] == NOT_RECORDED


def test_a_log_that_cannot_be_replayed_is_a_reason_and_no_crash():
    table = measure_beyond_noise(plant(signs(), EXPOSED).trajectory, log=make_log(np.full(60, np.nan)))
    assert "NaN" in table["reason"].iloc[0]
    assert table["reason_kind"].iloc[0] == NOT_MEASURABLE
    assert not np.isnan(table["offset_free_drift"].iloc[0])


@pytest.mark.parametrize(
    ("cut", "kind"),
    [
        (lambda planted: {"log": make_log(planted.log.learning_rates[:3])}, NOT_RECORDED),
        (lambda planted: {"log": replace(planted.log, algorithm="mine")}, NOT_MEASURABLE),
        (lambda planted: {"kept": slice(4)}, NOT_RECORDED),
        (lambda planted: {"log": None}, NOT_MEASURABLE),
    ],
)
def test_only_what_was_not_kept_is_not_recorded(cut, kind):
    planted = plant(signs(), EXPOSED)
    given = {"log": planted.log, "kept": slice(None)} | cut(planted)
    tables = planted.trajectory.exposure.tables
    cut_short = {name: replace(own, offsets=own.offsets[given["kept"]]) for name, own in tables.items()}
    trajectory = replace(planted.trajectory, read_exposure=lambda: Exposure(cut_short))
    (line,) = measure_beyond_noise(trajectory, log=given["log"]).to_dict("records")
    assert line["reason_kind"] == kind
    assert line["reason"]


def test_sizes_that_were_not_recorded_are_a_gap_in_the_records_and_not_a_matter_of_gauge():
    assert line_of(plant(signs(), EXPOSED))["reason"] == ""
    line = line_of(plant(signs(), EXPOSED, has_norms=False))
    assert (line["reason"], line["reason_kind"]) == (NO_SIZES, NOT_RECORDED)
    assert "a gap in the records" in NO_SIZES
    assert line["times_noise"] == line["offset_free_drift"] / line["null"]  # described all the same


def in_common(rng, step, rows):
    """Coin tosses of each step and column that all rows of the step share, as rows of one batch share gradients."""
    return np.tile(rng.choice([-1.0, 1.0], 32), (len(rows), 1))


@pytest.mark.parametrize("share", [0.05, 0.2, 0.6])
def test_noise_that_rows_share_lies_below_the_null_and_is_never_beyond_it(share):
    """The null takes rows as independent; their common offset takes away what they share, so that it errs low."""
    exposed = random_exposure(60, 40, share)
    lines = [line_of(plant(in_common, exposed, seed=seed)) for seed in range(30)]
    times = np.array([line["times_noise"] for line in lines])
    assert times.mean() < 1
    starts = range(0, 30, 5)
    supported = [seeds_interval(times[i : i + 5]).low > lines[i]["null_high"] / lines[i]["null"] for i in starts]
    assert not any(supported)
    assert share != 0.6 or times.max() < 0.95  # rows that are nearly always shown together move nearly as one


@pytest.mark.parametrize("direction", [signs, constant])
def test_ten_times_as_many_words_tie_when_each_shown_row_drifts_as_far(direction):
    """Coverage of the vocabulary is a matter of the data: only a mean over all rows tells the two tasks apart."""
    few, many = np.zeros((60, 440), bool), np.zeros((60, 440), bool)
    few[:, :40] = np.random.default_rng(0).random((60, 40)) < 0.2
    many[:, :400] = np.tile(few[:, :40], 10)
    one, other = (line_of(plant(direction(), exposed, hidden=32, sigma=0)) for exposed in (few, many))
    assert (one["num_exposed_rows"], other["num_exposed_rows"]) == (40, 400)
    assert other["times_noise"] == pytest.approx(one["times_noise"], rel=0.03)
    assert other["offset_free_drift"] == pytest.approx(one["offset_free_drift"], rel=0.06)
    assert other["relative_drift"] > 2.5 * one["relative_drift"]


def test_the_learning_rate_is_no_difference_in_multiples_of_noise():
    slow, fast = (
        line_of(plant(constant(), EXPOSED, log=make_log(warm_up_and_decay(60, peak), decay=0.0)))
        for peak in (5e-5, 1.5e-4)
    )
    assert fast["offset_free_drift"] == pytest.approx(3 * slow["offset_free_drift"], rel=1e-3)
    assert fast["times_noise"] == pytest.approx(slow["times_noise"], rel=1e-3)


def test_seeds_are_as_far_apart_as_their_own_noise(read_run):
    """Noise without memory: the ends of two seeds lie √2 of one seed's drift apart."""
    runs = one, other = [read_run("none", seed) for seed in (0, 1)]
    drift = [measure_beyond_noise(run).set_index("parameter").loc[WORDS, "offset_free_drift"] for run in runs]
    assert distance_of_seeds(one, other, WORDS) == pytest.approx(np.hypot(*drift), rel=0.1)
    assert distance_of_seeds(one, one, WORDS) == 0
    assert distance_of_seeds(one, other, WORDS) == distance_of_seeds(other, one, WORDS)
    assert np.isnan(distance_of_seeds(one, other, "token_type_embeddings"))


def test_seeds_of_other_starts_have_no_distance(read_run):
    one, other = read_run("none", 0), read_run("none", 1)
    start, *later = other.trajectory.snapshots
    changed = Snapshot(0, 0, {**start.tensors, WORDS: np.array(start.tensors[WORDS]) + 1})
    fresh = Run(other.path)
    fresh.__dict__["trajectory"] = Trajectory([changed, *later], read_exposure=lambda: one.trajectory.exposure)
    assert np.isnan(distance_of_seeds(one, fresh, WORDS))
