"""From run directories to tables and the command, on tiny runs."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.exits import exit_code_of
from tests.questions.conftest import CHANGED, GetRun
from tests.refusals import check_refusals
from toolkit.pipeline import finetune
from toolkit.questions.transplants.games import TransplantSettings, play_run
from toolkit.questions.transplants.measure import measure_transplants
from toolkit.snapshots.store import Run


def test_seeds_are_one_condition_and_other_regimes_another(tuned_run: GetRun) -> None:
    runs = [tuned_run("pair", seed=seed) for seed in (0, 1)] + [tuned_run("pair", freeze="position_embeddings")]
    found = measure_transplants(runs, TransplantSettings(num_draws=1, max_examples=12))
    totals = found.shapley[(found.shapley["component"] == "all") & (found.shapley["score"] == "log-likelihood")]
    assert totals["num_seeds"].tolist() == [2, 1]
    assert (found.shapley["num_items"] == 12).all()
    frozen = found.shapley[(found.shapley["component"] == "position") & (found.shapley["num_seeds"] == 1)]
    assert (frozen["value"] == 0).all()
    coalitions = found.coalitions[found.coalitions["score"] == "log-likelihood"]
    ends = coalitions[coalitions["coalition"].isin(["all", "none"])].pivot_table(
        index=["condition", "seed"], columns="coalition", values="value", sort=False
    )
    gains = (ends["all"] - ends["none"]).groupby("condition", sort=False).mean()
    np.testing.assert_allclose(totals["value"], gains, atol=1e-12)
    assert (found.checks["gauge_difference"] <= 1e-5).all()


def test_reverse_is_measured_beside_forward(tuned_run: GetRun) -> None:
    run = tuned_run("single", freeze="position_embeddings,token_type_embeddings")
    found = measure_transplants([run], TransplantSettings(coordinates="raw", num_draws=2), reverse=True)
    directions = [table["direction"].unique().tolist() for table in (found.shapley, found.singles)]
    assert directions == [["forward", "reverse"]] * 2
    assert found.checks["direction"].tolist() == ["forward", "reverse"]
    drawn = found.singles[(found.singles["change"] == "rotated") & (found.singles["score"] == "log-likelihood")]
    assert drawn["value"].isna().tolist() == 2 * [False, False, False, True, False]  # LayerNorm has no rows


def test_a_run_without_its_model_is_refused_before_anything_is_scored(
    tuned_run: GetRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tuned_run("single")
    bare = finetune(replace(good.config, save_model=False, seed=5, output_dir=str(tmp_path)))
    monkeypatch.setattr("toolkit.questions.transplants.measure.play_run", lambda *_: pytest.fail("scored"))
    check_refusals(("--save-model", lambda: measure_transplants([good, bare])))


def test_the_command_prints_its_tables_and_writes_a_report(
    tuned_run: GetRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tuned_run("pair"), tmp_path / "report"
    flags = "--max-examples 10 --num-draws 1 --num-reverse-draws 0"
    assert exit_code_of("transplant", run.path, *flags.split(), "--out", out) == 0
    shown, text = " ".join(capsys.readouterr().out.split()), (out / "report.md").read_text()
    assert ("inseparable rows" in shown, f"Report: {out / 'report.md'}" in shown) == (True, True)
    assert ("python -m toolkit transplant" in text, flags in text, str(tmp_path) in text) == (True, True, False)
    assert all((out / link).is_file() for link in re.findall(r"\]\((figures/[^)]+)\)", text))


def test_data_that_have_changed_are_refused(changed_run: Run) -> None:
    check_refusals((CHANGED, lambda: play_run(changed_run)))


def test_a_run_that_learned_masked_tokens_is_refused(masked_run: Run) -> None:
    check_refusals(
        (r"by text, and polarity \(masked LM\) tells masked tokens", lambda: measure_transplants([masked_run]))
    )
