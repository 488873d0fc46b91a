"""The page on transplants from tables alone: what it says, what it refuses to say, and its files."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from toolkit.reporting.probes.transplant_figures import draw_transplants
from toolkit.reporting.probes.transplant_findings import findings
from toolkit.reporting.probes.transplant_report import print_transplants, write_transplant_report

pytestmark = pytest.mark.usefixtures("drawn")

COMPONENTS = ("word", "position", "segment", "inseparable rows", "common offset", "LayerNorm")
KINDS = (
    ("transplant", 1.0),
    ("random", 0.1),
    ("difference", 0.9),
    ("rotated", 0.3),
    ("rotated difference", 0.1),
)
VALUES = {"log-likelihood": ("nats", 1), "accuracy": ("points", 100)}


def make_tables(tasks=("sst2",), num_seeds=3, direction="forward", gain=0.05, has_random=True):
    """Positions are worth ``gain``, segments exactly 0, the others little."""
    parts = {name: [] for name in ("shapley", "interactions", "singles", "coalitions", "checks")}
    for task in tasks:
        lead = {"model": "minilm", "task": task, "arm": "none", "split": "validation", "direction": direction}
        lead |= {"coordinates": "fixed"}
        counts = {"num_seeds": num_seeds, "num_items": 100, "note": ""}
        for value, (unit, factor) in VALUES.items():
            own = dict.fromkeys(COMPONENTS, 0.001) | {"position": gain, "segment": 0.0}
            own["all"] = sum(own.values())
            is_clear = own["all"] > 0.02 and num_seeds > 1
            for name, estimate in own.items():
                half = 0 if name == "segment" else 0.01
                ends = {"estimate": estimate, "low": estimate - half, "high": estimate + half}
                line = {k: factor * v for k, v in ends.items()} | {"unit": unit, "value": value, "component": name}
                share = estimate / own["all"] if is_clear else np.nan
                parts["shapley"].append(lead | line | counts | {"share": share})
                for kind, part in KINDS:
                    both = {"kind": kind, "least": np.nan, "greatest": np.nan, "rms_change": 0.1}
                    both |= {"least": -0.002, "greatest": 0.003} if kind in ("random", "rotated") else {}
                    shown = np.nan if name == "LayerNorm" and "rotated" in kind else part
                    scaled = {k: factor * shown * v for k, v in ends.items()}
                    parts["singles"].append(lead | line | scaled | both | counts)
            for i, first in enumerate(COMPONENTS):
                for second in COMPONENTS[i + 1 :]:
                    ends = {"estimate": -0.002, "low": -0.003, "high": -0.001, "unit": unit, "value": value}
                    parts["interactions"].append(lead | {"first": first, "second": second} | ends | counts)
            for seed in range(num_seeds):
                for name, mean in (("none", 0.8), ("all", 0.85)):
                    line = {"seed": seed, "value": value, "coalition": name, "mean": factor * mean, "unit": unit}
                    parts["coalitions"].append(lead | line | {"num_tuned": 0})
        for seed in range(num_seeds):
            check = {"seed": seed, "gauge_difference": 3e-6, "control_difference": 0.16, "num_passes": 70}
            check |= {"num_draws": 5 if direction == "forward" else 1}
            parts["checks"].append(lead | check | {"num_items": 100, "note": ""})
    tables = {name: pd.DataFrame(lines) for name, lines in parts.items()}
    return tables if has_random else tables | {"singles": tables["singles"].iloc[:0]}


def test_findings_name_the_sum_the_clear_components_and_what_did_not_move():
    text = "\n".join(findings(make_tables()))
    assert "+0.0540 nats" in text
    assert "from 80.0 to 85.0" in text
    assert "position +0.0500 nats (+0.0400 to +0.0600, 93% of the sum)" in text
    assert "exactly 0, because bit for bit what it was: segment" in text
    assert "alone, told apart from random changes of the same size: position (+0.0450 nats)" in text
    assert "; from its own change rotated: position (+0.0050 nats)" in text
    assert "word +" not in text


def test_a_component_that_is_0_for_another_reason_is_not_called_what_it_was():
    tables = make_tables()
    is_segment = tables["shapley"]["component"] == "segment"
    tables["shapley"].loc[is_segment, "note"] = (
        "one row of it is in use (not applicable): exactly 0; no share: one seed"
    )
    text = "\n".join(findings(tables))
    assert "exactly 0, because one row of it is in use (not applicable): segment." in text
    assert "bit for bit" not in text


def test_without_a_clear_sum_or_with_one_seed_no_share_is_said():
    for tables in (make_tables(gain=0.001), make_tables(num_seeds=1)):
        assert "of the sum" not in "\n".join(findings(tables))
    warning = "one seed, so that the intervals are over items alone"
    assert [warning in "\n".join(findings(make_tables(num_seeds=n))) for n in (1, 3)] == [True, False]
    assert "no component's own value" in "\n".join(findings(make_tables(gain=0.001)))


@pytest.mark.parametrize(("tasks", "has_random"), [(("sst2",), True), (("sst2", "nli"), False)])
def test_the_report_has_its_parts_and_every_figure_it_shows(tmp_path: Path, tasks, has_random) -> None:
    both = make_tables(tasks)
    other = make_tables(tasks, direction="reverse", has_random=has_random)
    tables = {name: pd.concat([both[name], other[name]], ignore_index=True) for name in both}
    path = write_transplant_report(tables, tmp_path / "out", command="python -m toolkit transplant runs/a")
    text = path.read_text()
    shown = re.findall(r"\]\((figures/[^)]+)\)", text)
    assert {Path(link).stem for link in shown} == {
        "shapley",
        "shapley_accuracy",
        "random_changes",
        "interactions",
        "shapley_reverse",
        "shapley_accuracy_reverse",
        "interactions_reverse",
        *(["random_changes_reverse"] if has_random else []),
    }
    assert all((tmp_path / "out" / link).is_file() for link in shown)
    for heading in ("What was found", "How to make this again", "The reverse", "What this does not say"):
        assert f"## {heading}" in text
    assert "0.16" in text  # the control of the gauge
    assert "| not applicable |" in text  # LayerNorm has no rows to rotate
    assert "5 forward and 1 reverse" in text
    for name in tables:
        assert len(pd.read_csv(tmp_path / "out" / "tables" / f"{name}.csv")) == len(tables[name])


def test_figures_without_random_changes_or_reverse_are_left_out_and_repeat_bit_for_bit():
    tables = make_tables(has_random=False)
    images = draw_transplants(tables)
    assert set(images) == {"shapley", "shapley_accuracy", "interactions"}
    assert images == draw_transplants(tables)


def test_the_terminal_shows_every_component(capsys: pytest.CaptureFixture[str]) -> None:
    print_transplants(make_tables())
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMPONENTS)


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match="pass another --out"):
        write_transplant_report(make_tables(), tmp_path / "out")
