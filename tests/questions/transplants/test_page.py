"""The page on transplants from tables alone: what it says, what it refuses to say, and its files."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.chart_data import values_of
from tests.questions.headings import lines
from toolkit.questions.transplants.measure import NO_SHARE, TOTAL
from toolkit.questions.transplants.page import (
    NOT_DRAWN,
    ONE_SEED,
    SUM,
    alone_rows,
    caveats,
    plot_random_changes,
    plot_shapley,
    shapley_rows,
    transplants_page,
)
from toolkit.reporting.charts import spec_of
from toolkit.reporting.folder import write_page
from toolkit.reporting.render_markdown import render_markdown

COMPONENTS = ("word", "position", "segment", "inseparable rows", "common offset", "LayerNorm")
KINDS = (
    ("transplant", 1.0),
    ("random", 0.1),
    ("difference", 0.9),
    ("rotated", 0.3),
    ("rotated difference", 0.1),
)
LEVELS = "from 80.0 % with the old embeddings to 85.0 %"
VALUES = {"log-likelihood": ("nats", 1), "accuracy": ("points", 100)}
OF_REGRESSION = {"r2": ("points", 100)}


def make_tables(tasks=("sst2",), num_seeds=3, direction="forward", gain=0.05, has_random=True, values=VALUES):
    """Positions are worth ``gain``, segments exactly 0, the others little."""
    parts = {name: [] for name in ("shapley", "singles", "coalitions", "checks")}
    for task in tasks:
        lead = {
            "model": "minilm",
            "task": task,
            "condition": "none",
            "split": "validation",
            "direction": direction,
            "coordinates": "fixed",
        }
        counts = {"num_seeds": num_seeds, "num_items": 100, "reason": "", "note": ""}
        for score, (unit, factor) in values.items():
            own = dict.fromkeys(COMPONENTS, 0.001) | {"position": gain, "segment": 0.0}
            own["all"] = sum(own.values())
            is_clear = own["all"] > 0.02 and num_seeds > 1
            for name, estimate in own.items():
                half = 0 if name == "segment" else 0.01
                ends = {"value": estimate, "low": estimate - half, "high": estimate + half}
                line = {k: factor * v for k, v in ends.items()} | {"unit": unit, "score": score, "component": name}
                share = estimate / own["all"] if is_clear else np.nan
                note = "bit for bit what it was" if name == "segment" else ""
                parts["shapley"].append(lead | line | counts | {"share": share, "note": note})
                for kind, part in KINDS:
                    both = {"change": kind, "least": np.nan, "greatest": np.nan} | (
                        {"least": -0.002, "greatest": 0.003} if kind in ("random", "rotated") else {}
                    )
                    shown = np.nan if name == "LayerNorm" and "rotated" in kind else part
                    scaled = {k: factor * shown * v for k, v in ends.items()}
                    parts["singles"].append(lead | line | scaled | both | counts)
            for seed in range(num_seeds):
                for name, mean in (("none", 0.8), ("all", 0.85)):
                    line = {"seed": seed, "score": score, "coalition": name, "value": factor * mean, "unit": unit}
                    parts["coalitions"].append(lead | line)
        for seed in range(num_seeds):
            check = {
                "seed": seed,
                "gauge_difference": 3e-6,
                "control_difference": 0.16,
            }
            parts["checks"].append(lead | check | {"num_items": 100, "note": ""})
    tables = {name: pd.DataFrame(lines) for name, lines in parts.items()}
    return tables if has_random else tables | {"singles": tables["singles"].iloc[:0]}


def component(tables, name):
    return next(line for line in lines(shapley_rows(tables["shapley"])) if line["component"] == name)


def test_the_sum_and_each_component_are_named():
    tables = make_tables()
    line = component(tables, SUM)
    assert (line["φ (nats)"], line["φ (points)"]) == ("+0.0540 (+0.0440 to +0.0640)", "+5.40 (+4.40 to +6.40)")
    segment = component(tables, "segment")
    assert (segment["φ (nats)"], segment["note"]) == ("0 exactly", "bit for bit what it was")
    position = component(tables, "position")
    assert (position["φ (nats)"], position["share"]) == ("+0.0500 (+0.0400 to +0.0600)", "93%")
    header, rows = alone_rows(tables)
    alone = {row[1]: row[2:] for row in rows}
    assert alone["position"][1:] == ["+0.0450 (+0.0360 to +0.0540)", "yes", "+0.0050 (+0.0040 to +0.0060)", "yes"]
    assert (header[0], alone["word"][2]) == ("case", "no")
    assert alone["LayerNorm"][3:] == [None, None]  # it has no rows to rotate


def test_of_a_regression_r2_stands_for_both_values():
    """Alone, and on one page with a classification: no number of nats is shown that there is not."""
    alone, other = make_tables(["yields"], values=OF_REGRESSION), make_tables()
    assert component(alone, SUM)["φ (points)"] == "+5.40 (+4.40 to +6.40)"
    assert list(component(alone, "position")) == ["component", "φ (points)", "share", "note"]
    assert alone_rows(alone)[0][2] == "alone (points)"
    both = {name: pd.concat([table, other[name]]) for name, table in alone.items()}
    for tables, asked in ((alone, "Does R² need"), (both, "Does accuracy (R² of regressions) need")):
        page = transplants_page(tables)
        assert page.answers[0].question.startswith(asked)
        text = render_markdown(page)
        assert ("from 80.0 % with the old embeddings" in text, "random_changes_r2" in text) == (True, True)
        assert ("log-likelihood per item" in str(spec_of(page.picture.chart))) == (tables is both)


def test_without_a_clear_sum_or_with_one_seed_no_share_is_said():
    for tables in (make_tables(gain=0.001), make_tables(num_seeds=1)):
        lines = tables["shapley"].assign(reason=NO_SHARE)
        lines.loc[lines["component"] == TOTAL, "reason"] = np.nan
        rows = shapley_rows(lines)[1]
        assert {row[3] for row in rows} == {""}
        assert [str(row[4]).count("no share") for row in rows] == [0] * (len(rows) - 1) + [1], "said once, at the sum"
    assert [ONE_SEED in caveats(make_tables(num_seeds=n)) for n in (1, 3)] == [True, False]


@pytest.mark.parametrize(("tasks", "has_random"), [(("sst2",), True), (("sst2", "nli"), False)])
def test_the_report_has_its_parts_and_every_figure_it_shows(tmp_path: Path, tasks, has_random) -> None:
    both = make_tables(tasks)
    other = make_tables(tasks, direction="reverse", has_random=has_random)
    tables = {name: pd.concat([both[name], other[name]], ignore_index=True) for name in both}
    text = write_page(
        transplants_page(tables, command="python -m toolkit transplant runs/a"), tmp_path / "out", tables
    ).read_text()
    assert (tmp_path / "out" / "index.html").is_file()
    shown = re.findall(r"\]\((figures/[^)]+png)\)", text)
    assert {Path(link).stem for link in shown} == {
        "shapley",
        "shapley_accuracy",
        "random_changes",
        "shapley_reverse",
        "shapley_accuracy_reverse",
        *(["random_changes_reverse"] if has_random else []),
    }
    assert all((tmp_path / "out" / link).is_file() for link in shown)
    # The control of the gauge is .16, and LayerNorm has no rows to rotate.
    told = ("0.16", "| not applicable |", "| forward | 100 |", "| reverse | 100 |")
    assert [words for words in told if words not in text] == []
    sizes = {name: len(pd.read_csv(tmp_path / "out" / "tables" / f"{name}.csv")) for name in tables}
    assert sizes == {name: len(table) for name, table in tables.items()}


def test_charts_draw_the_numbers_of_the_tables_and_nothing_else():
    tables = make_tables(has_random=False)
    assert plot_random_changes(tables["singles"]) is None
    chart = plot_shapley(tables["shapley"])
    drawn = {v["label"]: v for v in values_of(chart) if "value" in v}
    likelihood = tables["shapley"].query("score == 'log-likelihood'").set_index("component")
    assert set(drawn) == {*COMPONENTS, SUM}
    for name, mark in drawn.items():
        line = likelihood.loc["all" if name == SUM else name]
        assert [mark[k] for k in ("value", "low", "high")] == pytest.approx(list(line[["value", "low", "high"]]))
    assert chart.to_dict() == plot_shapley(tables["shapley"]).to_dict()
    assert plot_shapley(tables["shapley"].assign(value=0.0, low=0.0, high=0.0)) is None


def test_random_changes_are_drawn_with_the_range_of_their_draws():
    drawn = [v for v in values_of(plot_random_changes(make_tables()["singles"])) if v.get("label") == "position"]
    assert drawn[0]["value"] == 0.05
    assert [(mark["low"], mark["high"]) for mark in drawn] == [(0.04, 0.06), *[(-0.002, 0.003)] * 2]


def said(tables):
    return [(each.verdict, each.text) for each in transplants_page(tables).answers]


def test_the_first_screen_says_what_the_drift_is_worth_in_points():
    for gain, verdict in ((0.05, "yes"), (-0.05, "no"), (0.001, "not decided")):
        needed, beyond = said(make_tables(gain=gain))
        total = 100 * (gain + 4 * 0.001)  # of six components one is 0
        ends = f"{total:+.2f} ({total - 1:+.2f} to {total + 1:+.2f}) points"
        assert needed == (verdict, f"minilm on sst2, none: {ends}, {LEVELS}; 0 means no need.")
        tenth = f"{total / 10:+.2f} ({total / 10 - 0.1:+.2f} to {total / 10 + 0.1:+.2f})"
        assert beyond[0] == verdict
        assert f"minus its own in rotated directions {tenth}; 0 means no more." in beyond[1]


def test_the_first_screen_judges_neither_one_seed_nor_what_is_not_there():
    for verdict, text in said(make_tables(num_seeds=1)):
        assert (verdict, text.endswith("Not judged: one seed.")) == ("not judged", True)
    assert said(make_tables(has_random=False))[1] == ("not judged", NOT_DRAWN)
    tables, ends = make_tables(), ("value", "low", "high")
    tables["singles"] = tables["singles"].assign(**dict.fromkeys(ends, np.nan), reason="no row to rotate")
    verdict, text = said(tables)[1]
    assert (verdict, text.endswith("Not judged: no row to rotate.")) == ("not judged", True)
    shapley = tables["shapley"]
    tables["shapley"] = shapley.assign(
        **{name: shapley[name].where(shapley["component"] == TOTAL, 0.0) for name in ends}
    )
    assert [verdict for verdict, _ in said(tables)] == ["no", "not judged"]  # frozen embeddings


def test_several_cases_are_counted_by_their_verdict():
    tables = [make_tables((task,), gain=gain) for task, gain in (("a", 0.05), ("b", 0.05), ("c", 0.001), ("d", -0.05))]
    verdict, text = said({name: pd.concat([own[name] for own in tables]) for name in tables[0]})[0]
    assert verdict == "yes (2), not decided (1), no (1)"
    assert [f"minilm on {task}" in text for task in "abcd"] == [True, True, True, False]
