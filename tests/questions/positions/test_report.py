"""The positions page: complete, in agreement with the analysis, the same twice, and with sentences that follow data."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from safetensors.numpy import save_file

from tests.chart_data import values_of
from tests.refusals import check_refused
from tests.reporting.conftest import contents
from tests.snapshots.test_unnamed_files import PLANTED, check_planted
from tests.snapshots.test_unnamed_files import path as path
from toolkit.questions import drift_report
from toolkit.questions.positions import page as positions
from toolkit.questions.positions.command import PositionsCommand
from toolkit.questions.positions.measure import measure_positions
from toolkit.questions.positions.page import csv_tables, position_page
from toolkit.questions.positions.resemblance import few_waves, noisy_sinusoid
from toolkit.questions.positions.tables import collect_positions
from toolkit.reporting.cells import number
from toolkit.reporting.folder import write_page
from toolkit.reporting.render_terminal import show_page
from toolkit.reporting.sources import DriftPart
from toolkit.snapshots.snapshot import Snapshot, Trajectory

DRAWS = 5
FIGURES = {"resemblance", "cosine_gram", "cosine_by_lag", "dct_spectrum"}
TABLES = {"position_statistics", "waves", "cosine_by_lag", "dct_spectrum", "control_values"}


def trajectory(*tables, name=""):
    parameters = [{"position_embeddings": np.asarray(t, np.float32)} for t in tables]
    return Trajectory([Snapshot(i, i, p, name) for i, p in enumerate(parameters)])


def written(source, out, **options):
    """The report of a source, as the command writes it; the path of report.md."""
    tables = collect_positions(source, num_draws=DRAWS)
    return write_page(position_page(tables, **options), out, csv_tables(tables))


@pytest.fixture(scope="module")
def wavy():
    """A trained run of few waves, 256 x 96."""
    rng = np.random.default_rng(0)
    table = few_waves(256, 96, rng)
    return trajectory(table, table + 0.01 * rng.normal(size=table.shape))


@pytest.fixture(scope="module")
def collected(wavy):
    return collect_positions(wavy, default_length=128, num_draws=DRAWS)


@pytest.fixture(scope="module")
def report(wavy, tmp_path_factory, as_files):
    out = tmp_path_factory.mktemp("page") / "out"
    with as_files():
        path = written(wavy, out, title="A | page")
    assert path == out / "report.md"
    return out


def test_every_file_is_there_and_valid(report):
    names = {f"figures/{name}.{kind}" for name in FIGURES for kind in ("png", "svg", "pdf")}
    assert set(contents(report)) == {
        "report.md",
        "index.html",
        "files.json",
        *names,
        *(f"tables/{name}.csv" for name in TABLES),
    }
    for name in FIGURES:
        with Image.open(report / f"figures/{name}.png") as image:
            image.load()
            assert image.width > 800
        assert ElementTree.parse(report / f"figures/{name}.svg").getroot().tag.endswith("svg")
    text = (report / "report.md").read_text()
    assert text.startswith("# A &#124; page\n")
    assert all((report / link).is_file() for link in re.findall(r"\]\((figures/[^)]*)\)", text))


def test_sections_are_in_order(collected):
    page = position_page(collected)
    assert [section.id for section in page.sections] == ["waves-found", "rows", "untold", "definitions"]
    assert page.picture.name == "resemblance"


@pytest.mark.slow  # two whole reports
def test_the_same_input_gives_the_same_bytes(wavy, report, tmp_path, as_files):
    with as_files():
        written(wavy, tmp_path, title="A | page")
    assert contents(tmp_path) == contents(report)


def test_tables_agree_with_the_analysis(wavy, report):
    table = pd.read_csv(report / "tables/position_statistics.csv", keep_default_na=False, na_values=[""])
    expected = measure_positions(wavy, num_draws=DRAWS)
    assert table[table["window"] == "0-255"]["value"].to_numpy() == pytest.approx(
        expected["value"].to_numpy(), rel=1e-9, nan_ok=True
    )
    assert set(table["window"]) == {"0-255", "0-127", "128-255"}
    controls = pd.read_csv(report / "tables/control_values.csv")
    assert controls.groupby(["statistic", "control"]).size().eq(DRAWS).all()


def tile_of(tables, statistic):
    (tile,) = [tile for tile in positions.tiles(tables) if tile.title == positions.QUESTIONS[statistic]]
    return tile


def test_tiles_and_tables_follow_the_data(collected):
    worded = replace(collected, verdicts={k: replace(v, answer="other words") for k, v in collected.verdicts.items()})
    assert (tile_of(worded, "line_match").value, tile_of(worded, "orbit_share").value) == ("no", "yes")
    verdict = collected.verdicts["orbit_share"]
    facts = dict(tile_of(collected, "orbit_share").lines)
    assert float(facts[positions.AXIS_TITLES["orbit_share"]]) == pytest.approx(verdict.value, rel=0.01)
    assert float(facts["needed"]) == verdict.threshold
    assert float(facts["smooth curves, at most"]) == pytest.approx(verdict.negative.max(), rel=0.01)
    waves = positions.waves_table(collected)
    assert positions.tiles(collected)[-1].value == str(len(waves)) == str(int(collected.waves["is_wave"].sum()))
    assert dict(positions.tiles(collected)[-1].lines)["waves of the sinusoid"] == "48"
    assert waves["period"].is_monotonic_increasing
    assert "default length of 128 tokens does not exercise rows 128 to 255" in "\n".join(positions.answers(collected))
    assert any("slower ones blend" in line for line in positions.caveats(collected))


def test_charts_hold_the_tables_numbers(collected):
    drawn = positions.charts(collected)
    gram = values_of(drawn["cosine_gram"])
    rows = collected.rows["learned"][: positions.HEAT_MAP_ROWS]
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(gram[: positions.HEAT_MAP_ROWS**2], (rows @ rows.T).ravel(), atol=2e-3)
    lags = [line for line in values_of(drawn["cosine_by_lag"]) if line.get("table") == "learned"]
    own = collected.by_lag[collected.by_lag["table"] == "learned"].set_index("lag")["value"]
    assert {line["lag"]: line["value"] for line in lags} == pytest.approx(own.to_dict(), rel=1e-4, abs=1e-6)
    spectrum = [line for line in values_of(drawn["dct_spectrum"]) if line["table"] == "drift of the learned rows"]
    total = sum(line["share"] for line in spectrum)
    assert (len(spectrum), total) == (collected.num_positions - 1, pytest.approx(1, rel=0.01))
    bars = values_of(drawn["resemblance"])
    assert sum(bar.get("count", 0) for bar in bars) == len(positions.control_values(collected.verdicts))


def test_a_noisy_sinusoid_resembles():
    source = trajectory(noisy_sinusoid(256, 96, np.random.default_rng(1), snr=4.0), name="a <checkpoint>")
    tables = collect_positions(source, num_draws=DRAWS)
    assert tile_of(tables, "line_match").value == "yes"
    assert "default length" not in "\n".join(positions.answers(tables))


def test_small_and_odd_tables_have_a_page(tmp_path):
    source = trajectory(np.random.default_rng(2).normal(size=(20, 7)), name="a <checkpoint>")
    text = written(source, tmp_path).read_text()
    assert "Learned positions: a &#60;checkpoint&#62;" in text
    assert text.count("not identifiable") >= 2
    assert not (tmp_path / "figures/resemblance.png").exists()


def test_a_zero_row_has_no_cosines_and_no_figures_of_them():
    rows = np.random.default_rng(3).normal(size=(40, 6))
    rows[3] = 0
    tables = collect_positions(trajectory(rows), num_draws=DRAWS, is_brief=True)
    assert tables.by_lag.empty
    assert positions.charts(tables).keys().isdisjoint({"cosine_gram", "cosine_by_lag"})


def test_equal_rows_and_a_model_without_positions(tmp_path):
    equal, none = trajectory(np.ones((40, 6))), Trajectory([Snapshot(0, 0, {"word_embeddings": np.ones((3, 2))})])
    assert "all rows are equal" in written(equal, tmp_path / "equal").read_text()
    check_refused("no position_embeddings", collect_positions, none)


def test_printed(collected, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    show_page(position_page(collected), None, {})
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    told = ("made of waves", "invariance", *positions.waves_table(collected)["period"].map(number))
    assert [words for words in told if words not in printed] == []


def test_rows_that_nothing_trained_and_rows_that_tuning_exposed_are_told(tmp_path, capsys, monkeypatch):
    """30 rows as random weights left them; that of the others 21 were exposed is planted, as a question would read it
    off two checkpoints."""
    rng = np.random.default_rng(3)
    before = few_waves(80, 128, rng).astype(np.float32)
    before[50:] = rng.normal(0, 0.02, (30, 128))
    after = (before * np.float32(0.999)).astype(np.float32)
    after[:21] += rng.normal(0, 1e-3, (21, 128)).astype(np.float32)
    words = rng.normal(0, 0.02, (30, 128)).astype(np.float32)
    places = [tmp_path / "before.safetensors", tmp_path / "after.safetensors"]
    for place, table, other in zip(places, (before, after), (words, words * np.float32(0.999)), strict=True):
        tables = {"word_embeddings": other, "position_embeddings": table, "token_type_embeddings": other[:2]}
        own = {f"embeddings.{name}.weight": values for name, values in tables.items()}
        save_file(own | {"embeddings.LayerNorm.weight": other[0], "embeddings.LayerNorm.bias": other[1]}, place)

    def read(opened):
        inferred = {"position_embeddings": np.where(np.arange(80) < 21, "exposed", "unexposed")}
        is_pair = len(opened.trajectory) == 2
        return replace(opened, trajectory=replace(opened.trajectory, inferred=inferred)) if is_pair else opened

    monkeypatch.setattr(drift_report, "drift_parts", lambda: {"read": DriftPart(read=read)})
    for before, is_told in ((str(places[0]), True), (None, False)):
        assert PositionsCommand(str(places[1]), before=before).run() == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "Rows 50 to 79 look as random weights left them" in shown
        whole = "Training exposed positions 0 to 20; the rows from 21 on"
        assert shown.count("Training exposed") == shown.count(whole) == is_told


@pytest.mark.parametrize("name", PLANTED)
def test_a_file_that_was_planted_among_the_snapshots_is_refused(name, path):
    check_planted(lambda path: PositionsCommand(str(path)).run(), path, name)
