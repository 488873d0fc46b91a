"""A run's own table gives a spreadsheet no formula, and is read as it was."""

from dataclasses import replace
from pathlib import Path

import pytest

import toolkit
from tests.formulas import check_no_formula
from tests.questions.test_shown_paths import SCORE, SPLIT
from tests.questions.test_shown_paths import places as places
from tests.training.test_resume import Cut, contents, cut_after
from tests.training.test_resume import at_every_epoch as at_every_epoch


@pytest.mark.parametrize("name", ["run", "recorded"])
def test_the_scores_of_a_run_hold_no_formula_and_are_read_as_they_were(name: str, places: dict[str, str]) -> None:
    check_no_formula((Path(places[name]) / "scores.csv").read_bytes().decode())
    scores = toolkit.open_run(places[name]).scores
    assert SPLIT in set(scores["split"])
    assert (SCORE in scores) == (name == "recorded")


def test_a_run_that_goes_on_reads_its_splits_as_they_were(
    places: dict[str, str], tmp_path: Path, at_every_epoch: None
) -> None:
    whole = toolkit.open_run(places["run"])
    config = replace(whole.config, output_dir=str(tmp_path))
    with cut_after(6), pytest.raises(Cut):
        toolkit.finetune(config)
    with cut_after(8):  # fewer are left
        assert contents(toolkit.finetune(config)) == contents(whole)
