"""Drift beside score: the numbers are those of the run directories, and only like is set against like."""

import numpy as np
import pandas as pd
import pytest

from tests.comparison.conftest import write_logged_run
from tests.comparison.planted import agree
from tests.run_directories import NUM_WORDS, write_run
from toolkit.analysis.drift import measure_drift
from toolkit.comparison.compare import compare
from toolkit.comparison.conditions import OTHER_ITEMS
from toolkit.comparison.drift_and_score import NOT_TRAINED, join_drift
from toolkit.comparison.parameter_noise import NO_SIZES, measure_beyond_noise
from toolkit.families import EMBEDDING_PARAMETERS


def last_accuracy(run, split="validation"):
    return run.scores.query("split == @split and epoch == 3")["accuracy"].item()


@pytest.fixture
def runs(make_run):
    return [make_run(r, seed, right=right) for r, right in (("none", 0.9), ("embeddings", 0.8)) for seed in (0, 1)]


def test_one_line_per_run_and_parameter_with_the_drift_of_its_shown_rows(runs):
    table = join_drift(runs)
    assert list(table["parameter"]) == list(EMBEDDING_PARAMETERS) * 4
    for run in runs:
        whole = measure_drift(run, ("relative",)).query("epoch == 3 and stratum == 'whole parameter'")
        oracle = whole[whole["statistic"] == "value"].set_index("parameter")["value"]
        own = table[table["run"] == run.path.name].set_index("parameter")
        np.testing.assert_allclose(own["relative_drift"], oracle[own.index], rtol=1e-12)
        shown = measure_beyond_noise(run).set_index("parameter").loc[own.index, ["offset_free_drift", "reason"]]
        pd.testing.assert_frame_equal(own[["offset_free_drift", "reason"]], shown, check_exact=True)
    assert (table["epoch"] == 3).all()


def test_multiples_of_noise_stand_where_they_are_trusted(tmp_path):
    """Of single sentences the tables of words and positions; LayerNorm and the one segment row say why not."""
    table = join_drift([write_logged_run(tmp_path, "none", 0)]).set_index("parameter")
    assert list(table.index[table["times_noise"].notna()]) == ["word_embeddings", "position_embeddings"]
    assert list(table.index[table["reason"] == ""]) == ["word_embeddings", "position_embeddings"]
    assert table.loc["LayerNorm.bias", "reason"] == NO_SIZES
    without = join_drift([write_run(tmp_path, "none", 1)])
    assert without["times_noise"].isna().all()
    assert without["reason"].str.contains("no optimizer.json").any()


@pytest.mark.parametrize(("margin", "verdict"), [(1.0, "supported"), (50.0, "equivalent")])
def test_the_verdict_on_the_gain_is_that_of_the_comparison(make_run, margin, verdict):
    conditions = (("none", 0.9), ("embeddings", 0.8))
    runs = [make_run(regime, seed, right=right) for regime, right in conditions for seed in range(3)]
    table = join_drift(runs, margin_points=margin)
    told = set(table.loc[table["gain_points"].notna(), "gain_verdict"])
    assert told == set(compare(runs, margin_points=margin).query("split == 'validation'")["verdict"])
    assert set(table.loc[table["gain_points"].isna(), "gain_verdict"]) == {""}
    assert verdict in told or margin == 1


def test_gain_is_the_score_minus_that_with_frozen_embeddings_of_the_same_seed(runs):
    table = gain_of(runs)
    for tuned, frozen in zip(runs[:2], runs[2:], strict=True):
        gain = 100 * (last_accuracy(tuned) - last_accuracy(frozen))
        agree(table.loc[tuned.path.name], gain_points=gain, gain_reason="", note="", is_frozen=False)
        agree(table.loc[frozen.path.name], gain_points=np.nan, gain_reason=NOT_TRAINED)


def test_frozen_parameters_did_not_move(runs):
    frozen = join_drift(runs).query("is_frozen")
    assert set(frozen["run"]) == {run.path.name for run in runs[2:]}
    assert (frozen["relative_drift"] == 0).all()
    assert frozen["times_noise"].isna().all()


def gain_of(runs, **options):
    return join_drift(runs, **options).drop_duplicates("run").set_index("run")


def test_only_like_is_set_against_like(make_run):
    full = make_run()
    starts = ({"init": "random"}, {"head_epochs": 1}, {"max_train_examples": 9})
    for unlike in ([], *([make_run("embeddings", config=start)] for start in starts)):
        line = gain_of([full, *unlike]).loc[full.path.name]
        assert line["gain_reason"].startswith("no runs with frozen embeddings")
        assert np.isnan(line["gain_points"])
    other_seed = gain_of([full, make_run("embeddings", 1)]).loc[full.path.name]
    assert other_seed["gain_reason"] == "no run of this seed under embeddings frozen"
    faster = gain_of([full, make_run("embeddings", config={"learning_rate": 0.5})]).loc[full.path.name]
    agree(faster, gain_reason="", note="differs from embeddings frozen also in learning rate")
    assert not np.isnan(faster["gain_points"])
    other = make_run("embeddings")
    object.__setattr__(other, "predictions", other.predictions.assign(id=other.predictions["id"] + 1))
    agree(gain_of([full, other]).loc[full.path.name], gain_points=np.nan, gain_reason=OTHER_ITEMS)


def test_of_several_frozen_conditions_the_one_with_the_same_settings_counts(make_run):
    rate = {"learning_rate": 0.5}
    runs = [make_run(right=0.9, config=rate), make_run("embeddings", right=0.5)]
    near = make_run("embeddings", right=0.8, config=rate)
    gain = 100 * (last_accuracy(runs[0]) - last_accuracy(near))
    agree(gain_of([*runs, near]).loc[runs[0].path.name], note="", gain_points=gain)


def test_rows_that_training_showed_are_counted(make_run):
    table = join_drift([make_run()]).set_index("parameter")
    assert table.loc["word_embeddings", "num_exposed_rows"] == 42 < NUM_WORDS  # [CLS], [SEP] and the rows 5 to 44


def test_a_model_without_segments_has_no_line_for_them(make_run):
    table = join_drift([make_run(lacking=("token_type_embeddings",))])
    assert list(table["parameter"]) == [name for name in EMBEDDING_PARAMETERS if name != "token_type_embeddings"]
