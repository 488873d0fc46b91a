"""The main findings are right in every case: frozen, unmoved, something missing, one regime only, a contradiction."""

import re

import numpy as np
import pytest

from tests.analysis.comparison.planted import plant
from toolkit.analysis.comparison.arms import arrange
from toolkit.analysis.rows.drift import measure_drift
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.reporting.comparison.findings import findings
from toolkit.reporting.comparison.tables import collect


def found(*runs):
    (group,) = arrange(runs)
    return findings(collect(group))


def test_three_regimes(read_run):
    sentences = found(
        *(read_run(regime, right=right) for regime, right in (("none", 0.9), ("embeddings", 0.8), ("backbone", 0.7)))
    )
    assert len(sentences) == 3
    assert sentences[0].startswith(
        "Under none (full fine-tuning), seed 0, the embedding parameters had moved by epoch 3"
    )
    assert "under embeddings (frozen), all 5 embedding parameters;" in sentences[1]
    assert "under backbone (feature extraction), all 5 embedding parameters and 1 other." in sentences[1]
    assert "the 42 word rows seen in training moved by" in sentences[2]
    assert "the 18 never seen" in sentences[2]


def test_the_amounts_are_those_of_measure_drift(read_run):
    run = read_run()
    drift = measure_drift(run.trajectory)
    last = drift[(drift["epoch"] == 3) & (drift["stratum"] == "whole parameter") & (drift["measure"] == "relative")]
    values = last[last["statistic"] == "value"].set_index("parameter")["value"]
    text = found(run)[0]
    for name in EMBEDDING_PARAMETERS:
        shown = float(re.search(rf"{re.escape(name)} ([\d.]+) %", text)[1])
        assert shown == pytest.approx(100 * values[name], rel=0.01)


def test_feature_extraction_alone(read_run):
    sentences = found(read_run("backbone"))
    assert len(sentences) == 3
    assert sentences[0].startswith("No embedding parameter moved in any run: at epoch 3 every value is exactly")
    assert "moved by" not in " ".join(sentences)
    assert sentences[2].startswith("Accuracy on validation, before training and after: backbone")


def test_one_frozen_parameter_is_exactly_0(read_run):
    sentences = found(read_run("position_embeddings"))
    assert "position_embeddings exactly 0," in sentences[0]
    assert sentences[1].endswith("under position_embeddings (frozen), position_embeddings.")


def test_frozen_without_proof_claims_no_proof(read_run):
    sentences = found(read_run("backbone", facts={"frozen": None}))
    assert "bit-identical" not in " ".join(sentences)


def test_contradictions_are_said_first_of_all(read_run):
    changed = {"word_embeddings": {"before": "a", "after": "b"}}
    for regime in ("backbone", "none"):
        text = " ".join(found(read_run(regime, facts={"frozen": {"parameters": changed}})))
        assert "WARNING: these parameters were frozen and have changed all the same" in text
    claimed = {"word_embeddings": {"before": "a", "after": "a"}}
    assert "WARNING" in " ".join(found(read_run("none", seed=3, facts={"frozen": {"parameters": claimed}})))


def test_what_is_missing_is_said(read_run):
    text = " ".join(
        found(read_run(lacking=("token_type_embeddings",)), read_run(seed=1, lacking=("token_type_embeddings",)))
    )
    assert "Not applicable, because the model has none: token_type_embeddings." in text
    assert "token_type_embeddings 0" not in text
    assert "mean of 2 seeds" in text
    assert "was not recorded, so drift cannot be split" in " ".join(found(read_run(seed=7, has_exposure=False)))


def test_failed_runs_are_counted(read_run):
    runs = [read_run("none", 0, right=0.9), read_run("none", 1, right=0.3)]
    (group,) = arrange(runs)
    tables = collect(group)
    assert [run.name for run in group.runs if run.is_failed] == [runs[1].path.name]
    assert not any("failed" in s for s in findings(tables))  # the caveats of a report count them, once


def test_majority_is_counted_from_the_labels(read_run):
    (group,) = arrange([read_run(right=1.0)])
    line = collect(group).baselines.set_index("split").loc["validation"]
    assert (line["num_examples"], line["majority_rate"], line["num_right"]) == (100, 0.6, 100)
    assert not line["is_failed"]


def test_on_a_split_of_one_class_nobody_has_failed(read_run):
    (group,) = arrange([plant(read_run().path, np.arange(50) < 40, labels=np.zeros(50, int))])
    tables = collect(group)
    assert not tables.baselines["is_failed"].any()
    assert not group.runs[0].is_failed


def test_undefined_is_not_zero(read_run):
    run = read_run()
    (group,) = arrange([run])
    tables = collect(group)
    pad = tables.words[tables.words["stratum"] == "[PAD]"]
    assert np.isnan(pad["relative"]).all()
