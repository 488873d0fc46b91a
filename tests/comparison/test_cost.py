"""Costs are means of what manifests hold, in their units, and ratios are to full fine-tuning of the same size."""

import numpy as np
import pytest

from tests.comparison.planted import agree
from toolkit.comparison.summaries import RATIOS, SEVERAL_FULL, measure_cost

FULL, PROBE = "full fine-tuning", "feature extraction"


def spent(seconds, *, trainable=1000, mib=512, speed=50.0, **stages):
    cost = {"seconds_training": seconds, **stages, "peak_memory_bytes": mib * 2**20, "examples_per_second": speed}
    return {"cost": cost, "model": {"name": "tiny", "num_parameters": 2000, "num_trainable": trainable}}


def test_costs_and_ratios(make_run):
    runs = [make_run(seed=seed, right=0.9, facts=spent(100 + 20 * seed)) for seed in (0, 1)]
    runs.append(make_run("backbone", facts=spent(1, trainable=10, mib=256, speed=500, seconds_features=10)))
    runs.append(make_run(config={"head_epochs": 2}, facts=spent(110, seconds_head_stage=11)))
    table = measure_cost(runs).set_index("condition")
    scores = [run.scores.query("split == 'validation' and epoch == 3")["accuracy"].item() for run in runs[:2]]
    full = {"seconds": 110, "seconds_ratio": 1}
    agree(table.loc[FULL], **full, score_mean=np.mean(scores))
    probe = {"seconds": 11, "peak_memory_mib": 256, "examples_per_second": 500}
    agree(table.loc[PROBE], **probe, seconds_ratio=0.1, num_trainable_ratio=0.01)
    agree(table.loc["LP-FT: head first, 2 epochs"], seconds=121, seconds_ratio=1.1)
    assert (table["note"] == "").all()


def test_what_was_not_recorded_is_undefined_and_not_free(make_run):
    table = measure_cost([make_run(facts={"cost": {}, "model": {}}), make_run("backbone", facts=spent(5))])
    full, probe = table.iloc[0], table.iloc[1]
    assert full[["seconds", "num_trainable", "peak_memory_mib", "examples_per_second"]].isna().all()
    assert probe[[f"{name}_ratio" for name in ("seconds", "num_trainable")]].isna().all()
    assert probe["seconds"] == 5


def test_without_full_fine_tuning_of_the_size_there_is_no_ratio(make_run):
    runs = [make_run(facts=spent(10), config={"max_train_examples": 9})] + [
        make_run("backbone", facts=spent(5), config={"max_train_examples": size}) for size in (9, 80)
    ]
    table = measure_cost(runs)
    assert list(table["seconds_ratio"].round(3)) == pytest.approx([1, 0.5, np.nan], nan_ok=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("devices", "cuda"), ("num_processes", 2), ("num_threads", 4), ("precision", "bf16")],
)
def test_everything_that_a_run_was_made_with_is_said(make_run, name, value):
    same = {"devices": "cpu", "num_processes": 1, "num_threads": 1, "precision": "no"}
    runs = [make_run(facts=spent(10) | same), make_run("backbone", facts=spent(5) | same | {name: value})]
    table = measure_cost(runs).set_index("condition")
    assert f"{name} {value}" in table.loc[PROBE, "devices"]
    assert f"{name} {same[name]}" in table.loc[FULL, "devices"]
    assert table["note"].str.contains("not comparable").all()
    assert (measure_cost([runs[0], make_run("backbone", facts=spent(5) | same)])["note"] == "").all()


def test_of_several_full_fine_tunings_none_is_the_measure_of_the_others(make_run):
    runs = [make_run(facts=spent(10 * rate), config={"learning_rate": rate}) for rate in (1.0, 2.0)]
    table = measure_cost([*runs, make_run("backbone", facts=spent(5))])
    assert table[[f"{name}_ratio" for name in RATIOS]].isna().all(axis=None)
    assert set(table["reason"]) == {SEVERAL_FULL.format(2)}
