"""What a paper says of its methods: every number of it is the evidence's, and another one where the evidence has it."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

import toolkit
from tests.refusals import check_refused
from tests.reporting.conftest import contents
from tests.reporting.test_latex import compile_document, needs_tex
from toolkit.cli import main
from toolkit.comparison.evidence import read_evidence
from toolkit.comparison.measure import measure
from toolkit.comparison.report_data import ReportData
from toolkit.reporting import render_latex as latex
from toolkit.reporting.comparison_report import write_report
from toolkit.reporting.methods import paragraphs_of

pytestmark = pytest.mark.usefixtures("undrawn")
VERSIONS = {"versions": {"torch": "2.99.1", "embedding-drift-toolkit": "7.8.9"}, "devices": "abacus", "precision": "no"}


def numbers(text: str) -> set[str]:
    """Every number, without the commas in it; of floats as ``g`` prints them."""
    found = re.findall(r"\d+(?:\.\d+)*(?:e[+-]?\d+)?", text.replace(",", ""))
    return {*found, *(f"{float(each):g}" for each in found if each.count(".") < 2)}


@pytest.fixture
def report(study):
    runs, labels = study(tasks=("toy", "a_b&c%"), num_seeds=3, facts=VERSIONS)
    return write_report(runs, "out", labels=labels, margin_points=2.5).path.parent


def test_every_number_is_the_evidence_s(report):
    before, text = contents(report), toolkit.methods_of(report)
    assert contents(report) == before
    evidence = read_evidence(report)
    headlines = ReportData(evidence).comparison.query("is_headline")
    sizes = evidence.predictions.groupby(["run", "split"]).size()
    counts = {len(evidence.facts), len(headlines), int(headlines["p"].notna().sum()), *sizes, 3, 90, 0}
    level = f"{100 * evidence.settings['level']:g}"
    known = numbers(json.dumps([evidence.facts, evidence.settings], default=dict)) | {level, *map(str, counts)}
    assert not numbers(re.sub("float64|Apache-2.0|Smyth 2004", "", text)) - known
    for expected in (
        "tiny was trained on toy (100 training examples) and a_b&c% (100 training examples) under full fine-tuning, "
        "embeddings frozen and feature extraction, with seeds 0, 1 and 2: 18 runs",
        f"Conditions were compared ({len(headlines)} comparisons), paired by seed",
        "Intervals of 95 % (Student's t) cover seeds and items",
        "learning rate 5e-05 (full fine-tuning and embeddings frozen)",
        "lies within ±2.5 points",
        "learning rate schedule linear",
        "torch 2.99.1",
        "Hardware: abacus.",
        "Embedding drift toolkit 7.8.9",
    ):
        assert expected in text


CHANGES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"seed": 77}, {}, "seeds 77"),
    ({"learning_rate": 0.123}, {}, "learning rate 0.123"),
    ({"batch_size": 48}, {}, "batch size 48"),
    ({"weight_decay": 0.321}, {}, "weight decay 0.321"),
    ({}, {"margin_points": 4.5}, "±4.5 points"),
    ({}, {"level": 0.9}, "Intervals of 90 %"),
    ({}, {"alpha": 0.011}, "q < 0.011"),
]


@pytest.mark.parametrize(("config", "settings", "expected"), CHANGES)
def test_other_evidence_gives_another_text(config, settings, expected, read_run):
    evidence = measure([read_run(regime, 0) for regime in ("none", "embeddings")])
    facts = {name: {**own, "config": {**own["config"], **config}} for name, own in evidence.facts.items()}
    other = replace(evidence, facts=facts, settings={**evidence.settings, **settings})
    texts = ["\n".join(paragraphs_of(ReportData(each))) for each in (evidence, other)]
    assert [expected in text for text in texts] == [False, True]


@pytest.mark.parametrize(
    ("num_rates", "rates", "conditions"),
    [
        (2, "learning rate 1e-05 (full fine-tuning, learning rate 1e-05), 2e-05 (full", "under full fine-tuning, lea"),
        (
            5,
            "learning rate 1e-05, 2e-05, 3e-05, 4e-05 and 5e-05",
            "rate 4e-05 and full fine-tuning, learning rate 5e-05",
        ),
        (13, "learning rate 1e-05, 2e-05, ", "under 13 conditions"),
    ],
)
def test_the_setting_that_a_study_varies_is_said_and_so_are_its_conditions(num_rates, rates, conditions, read_run):
    runs = [read_run("none", 0, config={"learning_rate": round(n * 1e-5, 6)}) for n in range(num_rates, 0, -1)]
    text = "\n".join(paragraphs_of(ReportData(measure(runs))))
    assert [said for said in (rates, conditions) if said not in text] == []


def test_how_a_head_that_stopped_by_itself_was_made_is_said(read_run):
    runs = [read_run("none", 0), *(read_run("backbone", seed) for seed in range(3))]
    evidence = measure(runs)
    heads = [
        {"mode": "early-stopping", "chosen": "convex", "epochs": 113, "num_held_out": 31, "strength": 0.25},
        {"mode": "early-stopping", "chosen": "trained", "epochs": 47, "num_held_out": 31, "strength": 8.0},
        {"mode": "early-stopping", "chosen": "trained", "epochs": 59, "num_held_out": 31, "strength": None},
    ]
    facts = dict(evidence.facts)
    for run, head in zip(runs[1:], heads, strict=True):
        name = run.path.name
        facts[name] = {**facts[name], "manifest": {**facts[name]["manifest"], "head_training": head}}
    text = "\n".join(paragraphs_of(ReportData(replace(evidence, facts=facts))))
    for said in (
        "Of feature extraction the backbone was frozen",
        "in 1 of 3 runs a linear one without these settings of training",
        "(inverse strengths: 0.25)",
        "in 2 of 3 runs trained until the loss on 31 examples held out of train stopped falling",
        "(epochs: 47 to 59)",
    ):
        assert said in text
    assert "backbone was frozen" not in "\n".join(paragraphs_of(ReportData(measure(runs[:1]))))


def test_what_is_not_known_is_said_to_be(read_run):
    evidence = measure([read_run("none", 0)])
    facts = {name: {**own, "manifest": {}} for name, own in evidence.facts.items()}
    text = "\n".join(paragraphs_of(ReportData(replace(evidence, facts=facts))))
    for said in ("Conditions were not compared.", "Software: not recorded. Hardware: not recorded.", "toolkit ("):
        assert said in text


@needs_tex
def test_as_latex_it_compiles(report, tmp_path, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["report", "--methods", str(report), "--latex"])
    text = capsys.readouterr().out
    assert r"a\_b\&c\%" in text
    assert r"$5 \times 10^{-5}$" in text
    (tmp_path / "methods.tex").write_text(text)
    (tmp_path / "all.tex").write_text(latex.document(["methods"], "Methods"))
    done = compile_document(tmp_path, "all.tex")
    assert done.returncode == 0, done.stdout[-2000:].decode(errors="replace")


@pytest.mark.parametrize("take", [toolkit.open_run, toolkit.open_runs, lambda place: write_report([place], "again")])
def test_a_report_in_the_place_of_a_run_is_told_from_one(take, report):
    check_refused("a report and no run: report --from", take, report)


def test_of_what_is_no_report_it_says_so_in_one_line(tmp_path, capsys, read_run):
    check_refused("no report at", toolkit.methods_of, tmp_path / "none")
    check_refused("is a run and no report: `report", toolkit.methods_of, read_run("none", 0).path)
    for words in (["--methods", "x", "--out", "y"], ["--latex"]):
        with pytest.raises(SystemExit, match="2"):
            main(["report", *words])
        assert "--latex goes with --methods FOLDER" in capsys.readouterr().err


def test_of_tests_that_no_seed_allowed_nothing_is_said(read_run):
    runs = [read_run(regime, 0) for regime in ("none", "embeddings")]
    text = " ".join(paragraphs_of(ReportData(measure(runs))))
    assert ("Intervals of 95 %" in text, "Benjamini" in text) == (True, False)
