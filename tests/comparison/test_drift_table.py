"""The drift table of a paper, held to plain numpy over the stored tensors."""

import math

import numpy as np
import pandas as pd

import toolkit
from toolkit.comparison.parameter_noise import VALUES

TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")


def regime_of(run):
    return run.path.name.split("_freeze-")[1].split("_")[0]


def by_hand(run, parameter):
    """Relative drift in % of the whole parameter, of its exposed rows and of the others."""
    first, last = (np.atleast_2d(np.asarray(run.trajectory.snapshots[i].tensors[parameter], float)) for i in (0, -1))

    def percent(rows):
        size = np.linalg.norm(first[rows])
        return 100 * np.linalg.norm(last[rows] - first[rows]) / size if len(rows) and size else math.nan

    every = np.arange(len(first))
    if parameter not in TABLES:
        return percent(every), math.nan, math.nan
    exposed = np.unique(run.trajectory.exposure.tables[parameter].rows)
    return percent(every), percent(exposed), percent(np.setdiff1d(every, exposed))


def test_every_number_is_that_of_the_snapshots(read_logged):
    runs = read_logged(3)
    table = toolkit.drift_table(runs, {r.path.name: regime_of(r) for r in runs})
    assert len(table) == 3 * 5
    for line in table.to_dict("records"):
        own = [run for run in runs if regime_of(run) == line["condition"]]
        values = np.array([by_hand(run, line["parameter"]) for run in own])
        for i, name in enumerate(VALUES[:3]):
            np.testing.assert_allclose(line[name], values[:, i].mean(), rtol=1e-12)
            np.testing.assert_allclose(line[f"{name}_sd"], values[:, i].std(ddof=1), rtol=1e-9, atol=1e-15)
        assert line["num_seeds"] == 3
        assert line["is_frozen"] == (line["condition"] != "none")
        assert (line["drift_percent"] == 0) == line["is_frozen"]


def test_the_noise_is_that_of_the_evidence(read_logged):
    runs = read_logged(3)
    means = toolkit.join_drift(runs).groupby(["condition", "parameter"])["times_noise"].mean()
    table = toolkit.drift_table(runs).set_index(["condition", "parameter"])["times_noise"]
    assert table.notna().any()
    pd.testing.assert_series_equal(table.sort_index(), means.sort_index(), check_names=False)


def test_one_seed_has_no_spread_and_one_run_is_enough(read_logged):
    table = toolkit.drift_table(read_logged(1)[0])
    assert list(table["num_seeds"]) == [1] * 5
    assert table[[f"{name}_sd" for name in VALUES]].isna().all(axis=None)
    assert (table["drift_percent"] > 0).all()


def test_without_exposure_nothing_is_said_of_exposed_rows(read_run):
    table = toolkit.drift_table(read_run("none", 0, has_exposure=False))
    assert table[["exposed_percent", "unexposed_percent"]].isna().all(axis=None)
    assert table["drift_percent"].notna().all()
