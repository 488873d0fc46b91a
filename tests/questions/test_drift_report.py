"""The drift report: every number in it is one of its CSV tables, and what cannot be computed says why."""

import io
import json
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import toolkit
from tests.chart_data import values_of
from tests.exits import exit_code_of
from tests.planted_weights import altered
from tests.questions.pages import page_of
from tests.refusals import check_refusals, check_refused, refused
from tests.run_directories import MakeRun
from tests.training.recorded_texts import TEXTS, load
from toolkit.comparison.evidence import written_files
from toolkit.questions.drift_report import drift_parts, makers_of, open_places, show_drift
from toolkit.reporting import render_markdown as markdown
from toolkit.reporting.charts import UNDEFINED, log_ticks, spec_of
from toolkit.reporting.page import Page
from toolkit.reporting.render_html import render_page
from toolkit.reporting.render_terminal import print_page
from toolkit.reporting.sources import Computed, open_sources
from toolkit.reporting.topics import causes, first_screen, movement, words
from toolkit.reporting.topics.drift import MOVED_UNITS
from toolkit.reporting.topics.step_sizes import plot_step_sizes

AsFiles = Callable[[], AbstractContextManager[None]]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report(runs: list[toolkit.Run], tmp_path_factory: pytest.TempPathFactory, as_files: AsFiles) -> Path:
    out = tmp_path_factory.mktemp("report")
    with as_files():
        return show_drift([run.path for run in runs[:2]], out).parent


def text_of(report: Path) -> str:
    return (report / "report.md").read_text()


def test_the_report_is_whole(report: Path, runs: list[toolkit.Run]) -> None:
    text = text_of(report)
    opened = open_places([run.path for run in runs[:2]])
    assert {*makers_of([movement.HEAD, *drift_parts().values()], opened)} == {
        path.stem for path in (report / "tables").glob("*.csv")
    }
    links = re.findall(r"\((figures/[^)]+)\)", text)
    assert {Path(link).stem for link in links} >= {"change", "exposure"}
    assert min((report / link).stat().st_size for link in links) > 1000
    assert {path.name for path in (report / "figures").iterdir()} == {Path(link).name for link in links}
    for shown in (text, (report / "index.html").read_text().partition("<script")[0]):
        assert "nan" not in re.findall(r"[a-z]+", shown.lower())
        assert (str(Path.home()) in shown, "/tmp" in shown) == (False, False)
    assert "python -m toolkit drift" in text


def test_the_page_begins_with_questions_and_answers_as_a_comparison_does(report: Path) -> None:
    """In its words and its tones."""
    text, page = text_of(report).partition("\n## ")[0], (report / "index.html").read_text()
    asked = [*re.findall(r"^\*\*([^*]+\?)", text, re.MULTILINE)]
    assert (asked[0], asked[-1]) == (first_screen.MOVED, first_screen.OPEN)
    assert "**Did the embeddings move? yes.** In % of their norm: words by " in text
    assert "over that of random steps of equal size" in text
    for tone, verdict in (("apart", "yes"), ("same", "weight decay alone")):
        assert f'<b class="{tone}">{verdict}</b>' in page


def test_numbers_of_the_page_are_those_of_the_analysis(report: Path, runs: list[toolkit.Run]) -> None:
    np.testing.assert_allclose(
        pd.read_csv(report / "tables" / "drift.csv")["value"], toolkit.measure_drift(runs[0])["value"]
    )
    causes = pd.read_csv(report / "tables" / "causes.csv")
    words = causes[(causes["parameter"] == "word_embeddings") & (causes["stratum"] == "all rows")].iloc[0]
    assert f"Weight decay alone moved {words['num_weight_decay_alone']:,} word rows" in text_of(report)
    assert words["num_unexplained"] == 0
    moved = pd.read_csv(report / "tables" / "most_moved.csv", keep_default_na=False)
    np.testing.assert_allclose(moved["drift_percent"], toolkit.top_words(runs[0], 20)["drift_percent"])
    assert markdown.escape(moved["token"][0]) in text_of(report)


@pytest.mark.slow  # whole reports
def test_reports_are_reproducible(report: Path, runs: list[toolkit.Run], tmp_path: Path, as_files: AsFiles) -> None:
    with as_files():
        again = show_drift([run.path for run in runs[:2]], tmp_path / "again").parent
    lists = [written_files(folder) for folder in (report, again)]
    assert lists[0].keys() == lists[1].keys()
    # Which holds the hash of each file; these two name the command.
    assert {name for name in lists[0] if lists[0][name] != lists[1][name]} == {"report.md", "index.html"}


def test_frozen_embeddings_are_0_exactly(runs: list[toolkit.Run], tmp_path: Path) -> None:
    out = show_drift([runs[2].path], tmp_path / "out").parent
    text = text_of(out)
    assert not list(out.glob("figures/*"))
    assert text.count("**Did the embeddings move? no.** No embedding parameter moved.") == 1
    assert "Weight decay alone" not in text


def turn_positions(tensors: dict[str, np.ndarray]) -> None:
    (name,) = (n for n in tensors if n.endswith("position_embeddings.weight"))
    tensors[name] = tensors[name][::-1].copy()


@pytest.mark.slow  # whole reports
def test_two_checkpoints_without_a_run(
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    before = tiny_model("bert")
    after = altered(before, tmp_path / "after", turn_positions)
    assert exit_code_of("drift", before, after, "--out", tmp_path / "out") == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[:-1])) <= 80
    assert "they need a run directory" in text_of(tmp_path / "out")
    assert all((tmp_path / "out" / name).exists() for name in ("figures/change.pdf", "index.html"))


@pytest.mark.parametrize(
    ("places", "said"),
    [([], "nothing to open"), (["minilm"], "drift needs at least 2"), (["/nowhere/at/all", "minilm"], "no file or")],
)
def test_mistakes_are_one_line(places: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("drift", *places) == 2
    errors = capsys.readouterr().err
    assert (said in errors, errors.count("\n")) == (True, 1)


def marks_of(chart: Any) -> list[dict[str, Any]]:
    """What the chart of drift draws, without its axes and grounds."""
    return [line for line in values_of(chart) if "regime" in line]


def test_the_chart_of_change_holds_the_tables_numbers(runs: list[toolkit.Run]) -> None:
    drift = toolkit.measure_drift(runs[0], ("norm", "relative"))
    whole = drift[(drift["stratum"] == "whole parameter") & (drift["statistic"] == "value") & (drift["epoch"] > 0)]
    expected = whole[whole["measure"] == "relative"].set_index(["epoch", "parameter"])["value"].dropna()
    drawn = {(line["epoch"], line["regime"]): line["mean"] for line in marks_of(toolkit.plot_change(runs[0]))}
    assert drawn == pytest.approx((100 * expected).to_dict(), rel=1e-4)


def test_what_stayed_0_stands_on_the_floor_and_what_is_undefined_is_not_drawn(read_run: MakeRun) -> None:
    still = toolkit.plot_change(read_run("position_embeddings", zero=("position_embeddings",)))
    own = [line for line in marks_of(still) if line["regime"] == "position_embeddings"]
    assert {(line["mean"], line["is_zero"]) for line in own} == {(0, True)}
    undefined = toolkit.plot_change(read_run("none", zero=("LayerNorm.bias",)))
    assert "LayerNorm.bias" not in {line["regime"] for line in marks_of(undefined)}


def test_what_began_at_0_and_moved_has_moved(read_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    """Its size in % is undefined: it is drawn in weight units, or that is said."""
    run = read_run("none", zero=("word_embeddings",))
    moved = toolkit.measure_rows(run, "word_embeddings", measures=("norm", "relative")).query("norm > 0")
    (drawn,) = json.loads("".join(spec_of(toolkit.plot_words(run))["datasets"].values()))
    assert sorted(filter(None, drawn["drift0"])) == pytest.approx(sorted(moved["norm"]), rel=6e-3)
    assert list(toolkit.top_words(run)["row"]) == list(moved.nlargest(10, "norm")["row"])
    assert (show_drift([run.path]), capsys.readouterr().out.count(UNDEFINED)) == (None, 10)
    check_refused("every row of word_embeddings that training showed and that moved was", causes.measure_exposure, run)
    rows = toolkit.measure_rows(run, "position_embeddings", measures=("norm", "relative"))
    rows.loc[0, "relative"] = np.nan  # one of many
    chart, norms = toolkit.plot_position_drift(rows), [*rows["norm"][rows["norm"] > 0]]
    assert MOVED_UNITS in str(spec_of(chart))
    assert [line["percent"] for line in marks_of(chart) if "position" in line] == pytest.approx(norms, rel=1e-4)


def test_in_bars_what_moved_from_0_says_so(read_run: MakeRun) -> None:
    runs = [read_run(regime, epochs=1, zero=("LayerNorm.bias",)) for regime in ("none", "position_embeddings")]
    for source in (runs[0], runs, read_run("none", zero=("LayerNorm.bias",))):  # the last over time
        assert UNDEFINED in str(spec_of(toolkit.plot_change(source)))


def test_no_line_of_the_chart_hides_another(runs: list[toolkit.Run]) -> None:
    """Equal drifts of two parameters lie on one another: each line is thinner than what it may cover."""
    (line,) = [layer for layer in spec_of(toolkit.plot_change(runs[0]))["layer"] if layer["mark"]["type"] == "line"]
    look = line["encoding"]["strokeWidth"]
    widths = [look["value"], *(each["value"] for each in look["condition"])]
    assert len(set(widths)) == len(runs[0].trajectory.parameters) == 5


def test_the_chart_of_exposure_holds_the_rows_numbers(runs: list[toolkit.Run]) -> None:
    rows = toolkit.measure_rows(runs[0], "word_embeddings", 2, ("relative",)).rename(
        columns={"relative": "drift_percent"}
    )
    rows["drift_percent"] *= 100
    seen = rows[(rows["num_steps"] > 0) & (rows["drift_percent"] > 0)]
    exposure = causes.measure_exposure(runs[0], with_null=True)
    drawn = exposure[exposure["series"] == causes.ROW].set_index("row")
    assert 0 < len(drawn) <= len(seen)
    np.testing.assert_array_equal(drawn["drift_percent"], seen.set_index("row")["drift_percent"].loc[drawn.index])
    assert (exposure.loc[exposure["series"] == causes.MEDIAN, "num_rows"].sum()) <= len(seen)
    null = exposure[exposure["series"] == causes.NULL]
    assert len(null)
    assert null["drift_percent"].between(null["low"], null["high"]).all()
    unseen = rows[(rows["num_steps"] == 0) & (rows["drift_percent"] > 0)]
    assert set(exposure.loc[exposure["series"] == causes.UNSEEN, "drift_percent"]) == {unseen["drift_percent"].median()}
    points = [
        line for line in values_of(toolkit.plot_exposure(runs[0], with_null=True)) if line["series"] == causes.ROW
    ]
    assert sorted(line["drift_percent"] for line in points) == pytest.approx(sorted(drawn["drift_percent"]), rel=1e-4)
    assert {line["series"] for line in values_of(toolkit.plot_exposure(runs[0]))}.isdisjoint({causes.NULL})


def test_pictures_of_charts_are_pictures(runs: list[toolkit.Run], tmp_path: Path, as_files: AsFiles) -> None:
    from PIL import Image

    for name, chart in {"a": toolkit.plot_change(runs[0]), "b": toolkit.plot_exposure(runs[0])}.items():
        chart.save(tmp_path / f"{name}.png")
        pixels = np.asarray(Image.open(tmp_path / f"{name}.png").convert("L"))
        assert pixels.min() < 90 < 200 < pixels.mean()


def test_runs_that_are_no_seeds_of_one_regime_are_refused(runs: list[toolkit.Run], tmp_path: Path) -> None:
    with refused(r"is no other seed of .*: it differs in freeze"):
        show_drift([runs[0].path, runs[2].path], tmp_path / "out")
    config = replace(runs[0].config, output_dir=str(tmp_path), overwrite=True, max_steps=1)
    other = toolkit.finetune(replace(config, seed=7, learning_rate=0.5))
    with refused("it differs in max steps and learning rate; give runs of one model"):
        show_drift([runs[0].path, other.path], tmp_path / "out")
    shutil.copytree(runs[0].path, tmp_path / "copy")
    said = "and copy have the same seed, 0: give runs of different seeds"
    check_refused(said, show_drift, [runs[0].path, tmp_path / "copy"], tmp_path / "out")


def test_a_run_among_checkpoints_stands_for_all_of_its_snapshots_and_that_is_said(runs: list[toolkit.Run]) -> None:
    """Epoch 0 of a run is the checkpoint that it started from: last of all, it would read as no drift."""
    opened = open_sources([runs[0].path, runs[0].config.model])
    assert len(opened.trajectory) == len(runs[0].trajectory) + 1
    (said,) = [note for note in opened.notes if note.startswith("A run directory stands for all of its snapshots")]
    assert said.endswith(f"{opened.trajectory.snapshots[0].name} with {opened.trajectory.snapshots[-1].name}.")


def test_what_is_refused_stands_once_at_the_end_with_its_reason(report: Path, runs: list[toolkit.Run]) -> None:
    planted = pd.DataFrame({"parameter": ["word_embeddings"], "reason": ["it was planted"]})
    assert markdown.render_markdown(page_of([runs[0].path], planted=planted)).count("| it was planted |") == 1
    stored = {path.stem: pd.read_csv(path, keep_default_na=False) for path in (report / "tables").glob("*.csv")}
    said = [table for table in stored.values() if "reason" in table]
    last = [table[table["epoch"] == table["epoch"].max()] if "step" in table else table for table in said]
    reasons = {reason for table in last for reason in table["reason"] if reason}
    before, _, after = text_of(report).partition("## What these data cannot tell")
    for reason in reasons:
        assert markdown.escape(reason) not in before
        assert after.count(f"| {markdown.escape(reason)} |") >= 1


def test_the_control_of_causes_is_named_where_it_can_be_run(report: Path) -> None:
    """Of a run of ours that learns labels; a recorded one, and a masked-LM run, have their own tests."""
    assert text_of(report).count("the same runs with --shuffle-labels") == 1


def test_the_parameter_that_loses_most_to_rounding_is_named(runs: list[toolkit.Run]) -> None:
    """Of the last step that was looked at; where nothing is noted, nothing is said."""
    sizes = toolkit.measure_step_sizes(runs[0])
    at_end = (sizes["step"] == sizes["step"].max()) & (sizes["parameter"] == "position_embeddings")
    sizes["lost_to_rounding"] = np.where(at_end, 0.375, np.where(sizes["step"] == 1, 0.9, 0.25))
    text = markdown.render_markdown(page_of([runs[0].path], step_sizes=sizes))
    assert "37.5 % of the values of position_embeddings with a gradient stayed" in text
    assert "| share of this step lost to rounding |" in text, "it is of one step, not of training"
    assert plot_step_sizes(sizes[:0]) is None
    for known in ({"step_sizes": sizes[:0]}, {}):
        assert "How large was a step?" not in markdown.render_markdown(page_of([runs[0].path], **known))


def test_hostile_names_stay_texts(runs: list[toolkit.Run]) -> None:
    computed = Computed(open_sources([runs[0].path]))
    named = toolkit.top_words(runs[0], 2).assign(token=["<script>alert(1)</script>", "[bold]\x1b[31m"])
    computed.frames["most_moved"] = named
    section = words.on_screen(computed)
    assert "<script>alert" not in render_page(Page(title="x", sections=(section,)))
    console = Console(file=io.StringIO(), width=80)
    print_page(Page(title="x", sections=(section,)), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("\x1b" in shown, "[bold]" in shown) == (False, True)


def test_segments_that_a_model_lacks_are_not_applicable(tiny_model: Callable[[str], Path]) -> None:
    for family, said in (
        ("roberta", "not applicable: the model has one segment row"),
        ("distilbert", "| segments | "),
    ):
        assert said in markdown.render_markdown(page_of([tiny_model(family), tiny_model(family)]))


def test_imported_checkpoints_are_a_source(tiny_model: Callable[[str], Path]) -> None:
    imported = toolkit.import_checkpoints([tiny_model("bert"), tiny_model("bert")])
    assert (toolkit.measure_drift(imported, ("norm",))["value"].dropna() >= 0).all()
    assert len(repr(imported)) < 2000
    check_refusals(
        (
            "expected a run, its path, a trajectory or imported checkpoints; got list",
            lambda: toolkit.measure_drift([1, 2]),
        ),
        ("an epoch is a number", lambda: toolkit.measure_rows(imported, "word_embeddings", "1")),
    )


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_default_length_is_named(text: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "bert")
    (folder / "sentence_bert_config.json").write_text(text)
    check_refused(r"sentence_bert_config\.json .*: restore it or make it again$", open_sources, [folder])


def test_an_unfinished_run_says_so(runs: list[toolkit.Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = shutil.copytree(runs[0].path, tmp_path / "left")
    (left / "manifest.json").unlink()
    assert exit_code_of("drift", left) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "unfinished, so that nothing says whether its files are whole" in printed
    assert "nan" not in printed
    for path in list((left / "snapshots").iterdir())[1:]:
        path.unlink()
    assert exit_code_of("drift", left) == 2
    assert "so finish the run, with the same command" in capsys.readouterr().err


@pytest.mark.parametrize("most", [8, 60, 500, 625, 1875, 6000, 40_000])
def test_a_logarithmic_axis_has_some_marks_and_not_too_many(most: float) -> None:
    ends = 3.0 / 1.6, 1.6 * most
    ticks = log_ticks(*ends)
    assert 2 <= len(ticks) <= 9
    assert all(ends[0] <= tick <= ends[1] for tick in ticks)
    assert all(later / earlier >= 1.99 for earlier, later in pairwise(ticks))


@pytest.mark.slow  # whole reports
def test_anybodys_trainer_run_gets_the_same_page_with_its_words(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    from transformers import Trainer, TrainingArguments

    model, tokenizer = load(tiny_model("bert"))
    examples = [{**tokenizer(text), "labels": i % 2} for i, text in enumerate(TEXTS)]
    settings = TrainingArguments(str(tmp_path / "out"), report_to="none", use_cpu=True, save_strategy="no", seed=3)
    callbacks = [toolkit.EmbeddingSnapshotCallback(tmp_path / "run")]
    Trainer(model, settings, train_dataset=examples, processing_class=tokenizer, callbacks=callbacks).train()
    out = show_drift([tmp_path / "run"], tmp_path / "report").parent
    moved = pd.read_csv(out / "tables" / "most_moved.csv", keep_default_na=False)
    shown = {token for text in TEXTS for token in tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])}
    assert set(moved["token"][: len(shown)]) == shown
    assert all(f"| {markdown.escape(token)} |" in text_of(out) for token in shown)
    assert (out / "figures" / "exposure.png").exists()
    assert ("How large was a step?" in text_of(out), "--shuffle-labels" in text_of(out)) == (True, False)


def test_without_any_question_the_summary_still_says_how_far(
    runs: list[toolkit.Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("toolkit.questions.drift_report.load_questions", lambda: ())
    show_drift([runs[0].path])
    said = capsys.readouterr().out
    assert all(name.replace("_", " ") in said for name in runs[0].trajectory.parameters)


def test_without_a_page_no_more_is_computed_than_is_shown(
    runs: list[toolkit.Run], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A summary takes seconds: it fits no kinds of change, and looks at no epoch between the first and the last."""
    made: list[set[str]] = []
    whole = Computed.add
    monkeypatch.setattr(Computed, "add", lambda *given: (made.append({*whole(*given).frames}), given[0])[1])
    show_drift([runs[0].path])
    assert made == [{"moved", "most_moved"}]
    said = capsys.readouterr().out
    assert all(f"\n{token} " in said for token in toolkit.top_words(runs[0], 10)["token"])


def test_only_the_sections_that_are_named_are_made(
    runs: list[toolkit.Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert exit_code_of("drift", runs[0].path, "--only", "why, words", "--out", out) == 0
    assert {path.stem for path in (out / "tables").glob("*.csv")} == {
        *("moved", "most_moved", "exposure", "causes", "sign_noise")
    }
    titles = re.findall("^## (.+)$", text_of(out), re.MULTILINE)
    assert {"Which words moved", "Why they moved"} < {*titles}
    assert {"Which rows moved", "Is it the same space?", "Neighbours"}.isdisjoint(titles)
    assert "--only why,words" in text_of(out)
    capsys.readouterr()
    assert exit_code_of("drift", runs[0].path, "--only", "why") == 0
    said = capsys.readouterr()
    assert ("Why they moved" in said.out, "--only why" in said.err) == (True, False)
    assert [exit_code_of("drift", runs[0].path, "--only", name) for name in (",", "wrods")] == [2, 2]
    said = capsys.readouterr().err
    assert "unknown section 'wrods' (did you mean 'words'?)" in said
    assert all(name in said for name in (*drift_parts(), "--only names sections"))


def test_a_section_that_is_empty_says_why(
    runs: list[toolkit.Run], tiny_model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_drift([runs[0].path], only=["exposure", "new-tokens", "words"])
    said = capsys.readouterr().out
    there = [text in said for text in ("exposure: it is of", "tokens: no token was added", "words: ", " because ")]
    assert there == [True, True, False, False]
    show_drift([tiny_model("bert")] * 2, only=["why"])
    said, ending = capsys.readouterr()
    assert ("why: it needs a run" in said, first_screen.OPEN_OF_DATA in said, "--only" in ending) == (True, True, False)
