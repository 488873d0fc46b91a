"""A report that nobody touched passes; each planted fault is found, and a run that is away is named, not blamed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.comparison.conftest import CONDITIONS, write_logged_run
from tests.comparison.planted import sign_again, write_cards
from tests.refusals import check_refused
from toolkit.cli import main
from toolkit.comparison.cards import make_cards
from toolkit.comparison.evidence import WRITTEN, read_evidence
from toolkit.comparison.verdicts import save_cards
from toolkit.comparison.verify import check_report, verify_report
from toolkit.reporting.comparison_report import report_from
from toolkit.snapshots import files

OUT = Path("reports/mine")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One report and its runs, copied for each test."""
    folder = tmp_path_factory.mktemp("made")
    runs = [
        write_logged_run(folder / "runs", regime, seed, right=right, epochs=2 if regime == "none" else 1)
        for regime, right in CONDITIONS
        for seed in range(2)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_cards(runs, OUT)
        sign_again(OUT)
    return folder


@pytest.fixture
def report(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return OUT


def edit_cards(report, change):
    path = report / "cards.json"
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    sign_again(report)


def flip(report, column="prediction"):
    path = report / "evidence/predictions.parquet"
    table = pd.read_parquet(path)
    table.loc[3, column] = 1 - table.loc[3, column]
    table.to_parquet(path, index=False, compression="zstd")


def test_an_untouched_report_passes_with_and_without_its_runs(report):
    found = check_report(report)
    assert (found.differences, found.away, found.num_runs) == ([], [], 6)
    shutil.rmtree("runs")
    away = check_report(report)
    assert away.differences == verify_report(report) == []
    assert len(away.away) == 6
    assert all(name.startswith("tiny_toy_freeze-") for name in away.away)


@pytest.fixture
def verify(capsys):
    """The command: its words to its exit status, the lines that it prints and what it says of errors."""

    def run(*words):
        with pytest.raises(SystemExit) as stop:
            main(["verify", *map(str, words)])
        shown = capsys.readouterr()
        return stop.value.code, shown.out.splitlines(), shown.err

    return run


def test_runs_are_looked_for_where_they_are_said_to_be(report):
    Path("runs").rename("elsewhere")
    assert check_report(report).num_runs == 0
    assert check_report(report, "elsewhere").num_runs == 6
    Path("deep").mkdir()
    Path("elsewhere").rename("deep/elsewhere")
    assert check_report(report, "deep").num_runs == 6
    check_refused("no folder of runs at gone", check_report, report, "gone")


@pytest.mark.parametrize("is_mended", [False, True], ids=["as it is", "with its hash mended"])
def test_a_flipped_prediction_is_found_without_the_runs(report, is_mended):
    flip(report)
    if is_mended:
        sign_again(report)
    lines = verify_report(report, "reports")
    assert ("changed: evidence/predictions.parquet" in lines) != is_mended
    assert any(": value is written as" in line for line in lines)
    assert any(": inputs is written as" in line for line in lines) or not is_mended


def test_evidence_forged_throughout_is_found_by_the_runs_at_hand(report):
    flip(report)
    evidence = read_evidence(report)
    (report / "cards.json").unlink()
    save_cards(make_cards(evidence), report, evidence.hashes)
    sign_again(report)
    assert verify_report(report, "reports") == []  # nothing but the runs can tell
    (line,) = verify_report(report)
    assert line.endswith("its part of predictions is not what the run gives")


@pytest.mark.parametrize(
    ("name", "column", "what"),
    [
        ("drift.csv", "offset_free_drift", "its part of drift"),
        ("gauge.csv", "gauge_share", "its part of gauge"),
        ("scores.csv", "macro_f1", "its part of scores"),
        ("seeds.csv", "distance", "seeds is not"),
        ("strata.parquet", "value", "its part of strata"),
        ("boxes.csv", "median", "its part of boxes"),
        ("dots.csv", "norm", "its part of dots"),
        ("exposed.csv", "median_exposed", "its part of exposed"),
        ("tokens.parquet", "norm", "its part of tokens"),
        ("positions.parquet", "norm", "its part of positions"),
        ("words.parquet", "angle_degrees", "words is not"),
        ("word_counts.csv", "num_seen", "word_counts is not"),
    ],
)
def test_each_forged_table_is_found_by_the_runs_at_hand(report, name, column, what):
    path = report / "evidence" / name
    is_csv = path.suffix == ".csv"
    table = pd.read_csv(path) if is_csv else pd.read_parquet(path)
    table[column] = table[column].astype(float)
    table.loc[table[column].replace(0, np.nan).first_valid_index(), column] *= 1.01
    table.to_csv(path, index=False) if is_csv else table.to_parquet(path, index=False)
    sign_again(report)
    assert any(what in line for line in verify_report(report))


@pytest.mark.parametrize(
    ("key", "value"),
    [("value", 12.5), ("verdict", "supported"), ("claim", "all is well"), ("num_seeds", 99), ("q", 0.001)],
)
def test_an_edited_card_is_found(report, key, value):
    edit_cards(report, lambda values: values["cards"][0].update({key: value}))
    (line,) = verify_report(report, "reports")
    assert f": {key} is written as {value!r}, its evidence gives" in line


def test_the_last_digit_that_is_written_counts(report):
    value = json.loads((report / "cards.json").read_text())["cards"][0]["interval"]["high"]
    edit_cards(report, lambda values: values["cards"][0]["interval"].update(high=float(f"{value:.9g}") * (1 + 1e-9)))
    assert len(verify_report(report, "reports")) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda cards: cards.pop(), "is missing from cards.json"),
        (lambda cards: cards.append({**cards[0], "id": "new"}), "does not follow"),
        (lambda cards: cards.append(cards[0]), "is there twice"),
        (lambda cards: cards.reverse(), "in another order"),
        (lambda cards: cards[0].update({"format": 3}), "format"),
        (lambda cards: cards.append("text"), ""),
        (lambda cards: cards[0].update(q=0.001, is_discovery=True), "q is written as 0.001"),
    ],
)
def test_cards_that_are_gone_added_doubled_moved_or_edited_are_found(report, change, said):
    edit_cards(report, lambda values: change(values["cards"]))
    assert [line for line in verify_report(report, "reports") if said in line]


def test_cards_that_name_no_evidence_are_found(report):
    edit_cards(report, lambda values: values.pop("evidence"))
    assert verify_report(report, "reports")


def test_missing_truncated_and_added_files_are_found(report):
    path = report / "evidence/predictions.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-40])
    lines = verify_report(report)
    assert "changed: evidence/predictions.parquet" in lines
    assert "cannot be read" in lines[-1]
    path.unlink()
    assert "missing: evidence/predictions.parquet" in verify_report(report)
    path.write_bytes(content)
    (report / "evidence/more.csv").write_text("a\n1\n")
    assert verify_report(report) == ["not in cards.json: evidence/more.csv"]
    (report / "cards.json").write_text("{")
    assert "is not JSON" in verify_report(report)[0]
    (report / "cards.json").unlink()
    assert "has no cards.json" in verify_report(report)[0]


@pytest.mark.parametrize("content", ["[]", "{}", "nonsense", '{"a": {"config": 3}}'])
@pytest.mark.parametrize("name", ["settings.json", "runs.json", "drift.csv", "runs.csv", "words.parquet"])
def test_nonsense_in_a_file_is_a_difference_and_no_crash(report, name, content):
    (report / "evidence" / name).write_text(content)
    assert f"changed: evidence/{name}" in verify_report(report)


def test_a_damaged_run_is_blamed_and_another_run_of_its_name_is_not(report):
    run = next(Path("runs").glob("*none_seed-0*"))
    (run / "scores.csv").write_text("epoch,split\n")
    assert verify_report(report) == [f"run {run.name}: changed: scores.csv"]
    (run / "manifest.json").write_text("{}")
    found = check_report(report)
    assert (found.differences, found.away) == ([], [run.name])


def test_the_command_verifies_runs_and_reports(report, verify):
    code, out, _ = verify(report)
    assert code == 0
    assert "cards are what the evidence gives" in "\n".join(out)
    assert "6 of 6 runs were at hand" in "\n".join(out)
    run = next(Path("runs").iterdir())
    assert verify(run)[0] == 0
    edit_cards(report, lambda values: values["cards"][0].update(verdict="supported"))
    code, out, _ = verify(report, "--runs", "reports")
    assert code == 1
    assert "verdict is written as 'supported'" in "\n".join(out)
    assert out[-1].startswith(
        "0 of 6 runs were at hand and measured again; 6 not at hand (--runs FOLDER says where they are): tiny_"
    )
    assert out[-1].endswith(" and 3 more")
    assert out[-1].count("tiny_toy_freeze-") == 3
    assert not [line for line in out if line.startswith("not at hand")]
    for folder in ("runs", "nope"):
        code, _, error = verify(run, "--runs", folder)
        assert (code, error.count("\n")) == (2, 1)
        assert "--runs says where a report's runs are" in error


def test_the_command_verifies_several_places_and_names_each(report, verify):
    """One that cannot be verified does not keep the others from it."""
    first, second, third, *_ = sorted(Path("runs").iterdir())
    whole = [f"{place}: every file is as the manifest says" for place in (first, second)]
    assert verify(first, second)[:2] == (0, whole)
    (first / "stray").write_text("")
    (third / "manifest.json").unlink()
    code, out, _ = verify(first, second, report)
    assert (code, out[:2]) == (1, [f"{first}: not in the manifest: stray", whole[1]])
    assert all(line.startswith(f"{report}: ") for line in out[2:])
    code, out, error = verify("gone", third, first, second)
    assert (code, len(out), error.count("\n")) == (2, 2, 1)
    assert "no run directory and no report at gone; " in error
    assert f"{third} is unfinished" in error


def list_files(report, *names):
    """As write_report does: files.json names what the report wrote."""
    for name in names:
        (report / name).parent.mkdir(exist_ok=True)
        (report / name).write_text(f"of {name}")
    sign_again(report)


def test_a_page_table_or_figure_that_is_changed_or_gone_is_found(report, verify):
    list_files(report, "report.md", "index.html", "tables/a.csv", "figures/x.png")
    (report / "notes.txt").write_text("somebody's own")
    assert verify_report(report, "reports") == []
    (report / "report.md").write_text("edited ![](figures/x.png)")
    (report / "figures/x.png").unlink()
    code, out, _ = verify(report, "--runs", "reports")
    assert (code, out[:2]) == (1, ["missing: figures/x.png", "changed: report.md"])
    assert len(out) == 3, "and the runs that are not at hand; not that all holds"


def test_a_changed_evidence_file_is_named_once_and_nothing_is_made_from_it(report):
    list_files(report, "report.md")
    with (report / "evidence/runs.csv").open("a") as file:
        file.write("\n")
    assert verify_report(report, "reports").count("changed: evidence/runs.csv") == 1
    check_refused("changed: evidence/runs.csv", report_from, report, "again")


EDITS = {
    "gone": (lambda path: path.unlink(), "files.json is missing"),
    "no list": (lambda path: path.write_text("{"), "files.json is not as it was written"),
    "edited": (
        lambda path: path.write_text(
            path.read_text().replace(
                files.sha256_of_file(path.with_name("cards.json")), files.sha256_of_file(path.with_name("report.md"))
            )
        ),
        "files.json is not as it was written",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_list_of_files_that_is_gone_or_edited_is_a_difference(report, edit):
    list_files(report, "report.md")
    change, said = EDITS[edit]
    change(report / WRITTEN)
    (line,) = verify_report(report, "reports")
    assert line.startswith(said)


def test_what_is_neither_a_run_nor_a_report_is_told_apart(tmp_path, verify):
    (tmp_path / "a.md").write_text("")
    (tmp_path / "empty").mkdir()
    neither = "is neither a run directory nor a report"
    check_refused(neither, verify_report, tmp_path / "empty")
    for name, said in (("a.md", "is a file, not a folder"), ("empty", neither), ("gone", "no run directory")):
        code, _, error = verify(tmp_path / name)
        assert (code, error.count("\n")) == (2, 1)
        assert said in error
        assert name in error


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("cards.json", 99, "cards.json has a newer format than 1: update the toolkit"),
        ("evidence/settings.json", 3, "evidence has an older format than 4: make it again, or read it as it was made"),
        ("files.json", 1, "files.json has an older format than 2: make it again, or read it as it was made"),
    ],
)
def test_a_file_of_another_format_is_one_line(report, name, version, said, verify):
    list_files(report, "report.md")
    path = report / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": version}))
    code, out, error = verify(report)
    assert code
    assert sum(line.endswith(said) for line in [*out, *error.splitlines()]) == 1


def test_a_file_with_tmp_in_its_name_is_no_evidence_of_the_report(report):
    (report / "evidence" / ".drift.csv.12.tmp").write_text("half")  # what a report that was killed leaves
    names = sorted(("drift.tmp.csv", ".tmp", ".drift.csv.12.tmp.csv", ".mine.csv.12.tmp"))
    for name in names:
        (report / "evidence" / name).write_text("a\n1\n")
    assert verify_report(report) == [f"not in cards.json: evidence/{name}" for name in names]
