"""Floors beside the scores of conditions: from run directories and from evidence alike, and of no run that has none."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from tests.comparison.planted import agree, sign_again, write_cards, write_evidence
from toolkit.comparison.summaries import summarise_floors
from toolkit.comparison.verify import check_report


def planted(bag, majority=0.5):
    """A manifest section with one bag of words on validation, and none of ood."""
    return {
        "floors": {
            "majority": {"validation": {"accuracy": majority}},
            "bag_of_words": {"validation": {"accuracy": bag}},
        }
    }


def test_means_are_over_the_runs_that_recorded_floors(read_run):
    runs = [read_run("backbone", seed, right=0.7, facts=planted(0.6 + seed / 10)) for seed in range(2)]
    without = read_run("backbone", 2, right=0.7)
    table = summarise_floors([*runs, without, read_run("none", 0)])
    assert list(table["condition"].unique()) == ["feature extraction"]
    lines = table.set_index("split")
    reached = np.mean([run.scores.query("split == 'validation'")["accuracy"].iloc[-1] for run in runs])
    own = {"mean": reached, "majority": 0.5, "bag_of_words": 0.65, "reason": ""}
    agree(lines.loc["validation"], **own, num_seeds=2, above_bag_of_words_points=100 * (reached - 0.65))
    agree(lines.loc["ood"], bag_of_words=np.nan, reason="majority: not recorded; bag of words: not recorded")
    assert summarise_floors([without]).empty


def test_evidence_keeps_floors_and_an_edited_one_is_found(logged):
    runs = logged(1, facts=planted(0.6))
    live, kept = summarise_floors(runs), summarise_floors(write_evidence(runs, None, "out").groups)
    assert len(live) == 6
    pd.testing.assert_frame_equal(live, kept, check_exact=True)
    folder = Path("reports/mine")
    write_cards(runs, folder)
    sign_again(folder)
    assert check_report(folder).differences == []
    path = folder / "evidence" / "runs.json"
    facts = json.loads(path.read_text())
    next(iter(facts.values()))["manifest"]["floors"]["bag_of_words"]["validation"]["accuracy"] = 0.1
    path.write_text(json.dumps(facts))
    found = check_report(folder).differences
    assert any("evidence/runs.json" in line for line in found)
    assert any("its manifest is not what the run gives" in line for line in found)
