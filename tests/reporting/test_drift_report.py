"""The drift report: every number in it is one of its CSV tables, and what cannot be computed says why."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

import toolkit
from toolkit.analysis.comparison.written import written_files
from toolkit.cli import main
from toolkit.config import RunConfig
from toolkit.reporting.drift import figures as drift_figures
from toolkit.reporting.drift.tables import DriftTables
from toolkit.reporting.drift.text import neighbours
from toolkit.reporting.sources import open_sources

AsFiles = Callable[[], AbstractContextManager[None]]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tiny_pairs: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> list[toolkit.Run]:
    """Two seeds of full fine-tuning, and one run with frozen embeddings."""
    folder = str(tmp_path_factory.mktemp("runs"))
    full = [toolkit.finetune(replace(tiny_pairs, seed=seed, output_dir=folder)) for seed in (0, 1)]
    return [*full, toolkit.finetune(replace(tiny_pairs, freeze="embeddings", output_dir=folder))]


@pytest.fixture(scope="module")
def report(runs: list[toolkit.Run], tmp_path_factory: pytest.TempPathFactory, as_files: AsFiles) -> Path:
    out = tmp_path_factory.mktemp("report")
    with as_files():
        return toolkit.write_drift_report([run.path for run in runs[:2]], out).parent


def test_the_report_is_whole(report: Path) -> None:
    text = (report / "report.md").read_text()
    names = {path.stem for path in (report / "tables").iterdir()}
    assert {"changes", "drift", "causes", "sign_noise", "gauge", "functional", "agreement", "neighbours"} <= names
    for link in re.findall(r"\((figures/[^)]+)\)", text):
        assert (report / link).exists(), link
    figures = re.findall(r"!\[(.*)\]\(figures/.*\n\n\*(.*)\* \(\[SVG\]", text)
    assert figures
    assert all(alt == caption for alt, caption in figures)  # the name of a file says nothing of a picture
    assert "nan" not in text.lower()
    assert str(Path.home()) not in text
    assert "/tmp" not in text
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert heads[:3] == ["Main findings", "How to make this again", "What changed"]


def test_numbers_of_the_text_are_those_of_the_analysis(report: Path, runs: list[toolkit.Run]) -> None:
    text = (report / "report.md").read_text()
    changes = toolkit.measure_changes(runs[0])
    for line in changes.to_dict("records"):
        assert f"{line['parameter']} by " in text
    stored = pd.read_csv(report / "tables" / "changes.csv")
    np.testing.assert_allclose(stored["relative_drift"], changes["relative_drift"])
    causes = pd.read_csv(report / "tables" / "causes.csv")
    words = causes[(causes["parameter"] == "word_embeddings") & (causes["stratum"] == "all rows")].iloc[0]
    assert f"{words['num_weight_decay_alone']:,} word rows moved by weight decay alone" in text
    assert words["num_unexplained"] == 0


def test_reports_are_reproducible(report: Path, runs: list[toolkit.Run], tmp_path: Path, as_files: AsFiles) -> None:
    with as_files():
        again = toolkit.write_drift_report([run.path for run in runs[:2]], tmp_path / "again").parent
    lists = [written_files(folder) for folder in (report, again)]
    assert lists[0].keys() == lists[1].keys()
    assert {name for name in lists[0] if lists[0][name] != lists[1][name]} == {"report.md"}, "it names its own folder"
    for path in sorted(report / name for name in lists[0].keys() - {"report.md"}):
        assert path.read_bytes() == (again / path.relative_to(report)).read_bytes(), path.name


def test_frozen_embeddings_say_that_they_are_still(runs: list[toolkit.Run], tmp_path: Path) -> None:
    text = toolkit.write_drift_report([runs[2].path], tmp_path / "out").read_text()
    assert "No embedding parameter moved" in text
    assert "Not applicable: the parameter word&#95;embeddings" in text or "frozen" in text
    assert "weight decay alone, although" not in text


def test_two_checkpoints_without_a_run(
    tiny_model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tiny_model("bert")
    after = tmp_path / "after"
    after.mkdir()
    tensors = load_file(before / "model.safetensors")
    (name,) = (n for n in tensors if n.endswith("position_embeddings.weight"))
    tensors[name] = tensors[name][::-1].copy()
    save_file(tensors, after / "model.safetensors")
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (after / file).write_bytes((before / file).read_bytes())
    with pytest.raises(SystemExit) as stop:
        main(["drift", str(before), str(after), "--out", str(tmp_path / "out")])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "permuted rows" in shown
    text = (tmp_path / "out" / "report.md").read_text()
    assert "position_embeddings by" in text
    assert "(permuted rows)" in text
    assert "Not applicable: it needs a run directory." in text
    assert (tmp_path / "out" / "figures" / "parameters.pdf").exists()


@pytest.mark.parametrize(
    ("places", "said"),
    [([], "no checkpoints"), (["minilm"], "drift needs at least 2"), (["/nowhere/at/all", "minilm"], "no file or")],
)
def test_mistakes_are_one_line(places: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["drift", *places])
    assert stop.value.code == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_the_example_of_a_paper(runs: list[toolkit.Run], tmp_path: Path) -> None:
    """One table and one figure, through ``import toolkit`` alone, in under 40 lines."""
    script = ROOT / "experiments" / "paper_example.py"
    source = script.read_text()
    assert len(source.splitlines()) < 40
    imports = set(re.findall(r"^(?:import|from) (\S+)", source, re.MULTILINE))
    assert imports - set(sys.stdlib_module_names) == {"toolkit"}
    command = [sys.executable, str(script), str(runs[0].path), str(tmp_path / "paper")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT), "PATH": ""}, timeout=120
    )
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "paper" / "table.tex").read_text()
    assert table.startswith(r"\begin{tabular}")
    assert (tmp_path / "paper" / "figure.pdf").read_bytes().startswith(b"%PDF")


def test_the_example_of_a_paper_says_how_it_is_called() -> None:
    command = [sys.executable, str(ROOT / "experiments" / "paper_example.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (1, "usage: python experiments/paper_example.py RUN OUT\n")


def test_the_example_of_a_paper_needs_a_run_that_moved(runs: list[toolkit.Run], tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "experiments" / "paper_example.py"), "PLACE", str(tmp_path / "paper")]
    frozen = runs[2].path
    for place in (frozen, tmp_path / "nowhere"):
        command[2] = str(place)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT)})
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1, done.stderr


def test_drawings(runs: list[toolkit.Run], tmp_path: Path) -> None:
    from PIL import Image

    for name in ("parameters", "exposure"):
        path = toolkit.draw(name, runs[0], tmp_path / f"{name}.png")
        pixels = np.asarray(Image.open(path).convert("L"))
        assert pixels.min() < 60
        assert pixels.mean() > 200
    with pytest.raises(ValueError, match="unknown figure 'exposre'"):
        toolkit.draw("exposre", runs[0], tmp_path / "x.png")
    with pytest.raises(ValueError, match="unknown suffix"):
        toolkit.draw("exposure", runs[0], tmp_path / "x.docx")


def test_runs_that_are_no_seeds_of_one_regime_are_refused(runs: list[toolkit.Run], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no other seed of .*: it differs in freeze"):
        toolkit.write_drift_report([runs[0].path, runs[2].path], tmp_path / "out")
    config = replace(runs[0].config, output_dir=str(tmp_path), overwrite=True, max_steps=1)
    other = toolkit.finetune(replace(config, seed=7, learning_rate=0.5))
    with pytest.raises(ValueError, match="it differs in max steps and learning rate; give runs of one model"):
        toolkit.write_drift_report([runs[0].path, other.path], tmp_path / "out")
    shutil.copytree(runs[0].path, tmp_path / "copy")
    with pytest.raises(ValueError, match="and copy have the same seed, 0: give runs of different seeds"):
        toolkit.write_drift_report([runs[0].path, tmp_path / "copy"], tmp_path / "out")
    with pytest.raises(ValueError, match="no row of word_embeddings that training showed has moved"):
        toolkit.draw("exposure", runs[2], tmp_path / "x.png")


def test_a_run_among_checkpoints_stands_for_all_of_its_snapshots_and_that_is_said(runs: list[toolkit.Run]) -> None:
    """Epoch 0 of a run is the checkpoint that it started from: last of all, it would read as no drift."""
    opened = open_sources([runs[0].path, runs[0].config.model])
    assert len(opened.trajectory) == len(runs[0].trajectory) + 1
    (said,) = [note for note in opened.notes if note.startswith("A run directory stands for all of its snapshots")]
    assert said.endswith(f"{opened.trajectory.snapshots[0].name} with {opened.trajectory.snapshots[-1].name}.")


def test_a_snapshot_that_changed_after_the_run_is_refused(runs: list[toolkit.Run], tmp_path: Path) -> None:
    shutil.copytree(runs[0].path, tmp_path / "run")
    path = tmp_path / "run" / "snapshots" / "epoch-001.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 64
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=r"is not as its manifest says \(changed: snapshots/epoch-001\.safetensors\)"):
        open_sources([tmp_path / "run"])


def test_findings_follow_the_change(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """One number added to every coordinate of a row is what LayerNorm takes away; what was 0 before has no share."""
    folder = tiny_model("bert")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        tensors = load_file(folder / "model.safetensors")
        for key in tensors:
            if key.endswith("word_embeddings.weight") and name == "b":
                tensors[key][9] += 0.1
            if key.endswith("embeddings.LayerNorm.bias"):
                tensors[key][:] = 0.25 * (name == "b")
        save_file(tensors, tmp_path / name / "model.safetensors")
        for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            (tmp_path / name / file).write_bytes((folder / file).read_bytes())
    text = toolkit.write_drift_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out").read_text()
    assert re.search(r"LayerNorm takes away 100(\.0)? % of the squared drift", text)
    assert "LayerNorm.bias by 1.00 weight units (it was 0 before)" in text  # 0.25 in each of 16 entries


def test_no_finding_of_layer_norm_where_a_projection_stands_before_it(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """What DeBERTa-v2's LayerNorm takes away of narrow rows is not what it would take away of the rows themselves."""
    folder, moved = tiny_model("deberta-v2"), tmp_path / "moved"
    shutil.copytree(folder, moved)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor * np.float32(1.1) for name, tensor in tensors.items()}, moved / "model.safetensors")
    text = toolkit.write_drift_report([folder, moved], tmp_path / "out").read_text()
    findings, _, rest = text.partition("## What changed")
    assert "LayerNorm takes away" not in findings
    assert "the sums are projected before LayerNorm" in rest


def test_an_empty_list_of_words_is_said_as_what_it_is(runs: list[toolkit.Run]) -> None:
    opened = open_sources([runs[2].path])
    tables = DriftTables(opened, {"neighbours": toolkit.most_changed(runs[2], 2)})
    assert neighbours(tables).startswith("No word lost more of its neighbours than if every row had moved as far")


def test_segments_that_a_model_lacks_are_not_applicable(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    for family, said in (
        ("roberta", "not applicable: the model has one segment row"),
        ("distilbert", "Not applicable"),
    ):
        places = [tiny_model(family), tiny_model(family)]
        text = toolkit.write_drift_report(places, tmp_path / family).read_text()
        assert said in text[text.index("## Segments") :]


def test_imported_checkpoints_are_a_source(tiny_model: Callable[[str], Path]) -> None:
    imported = toolkit.import_checkpoints([tiny_model("bert"), tiny_model("bert")])
    drift = toolkit.measure_drift(imported, ("norm",))
    assert (drift["value"].dropna() >= 0).all()
    assert len(repr(imported)) < 2000
    with pytest.raises(ValueError, match="expected a run, its path, a trajectory or imported checkpoints; got list"):
        toolkit.measure_drift([1, 2])
    with pytest.raises(ValueError, match="an epoch is a number"):
        toolkit.measure_rows(imported, "word_embeddings", "1")


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_default_length_is_named(text: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "bert")
    (folder / "sentence_bert_config.json").write_text(text)
    with pytest.raises(ValueError, match=r"sentence_bert_config\.json .*: restore it or make it again$"):
        open_sources([folder])


def test_an_unfinished_run_says_so(runs: list[toolkit.Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = tmp_path / "left"
    shutil.copytree(runs[0].path, left)
    (left / "manifest.json").unlink()
    with pytest.raises(SystemExit):
        main(["drift", str(left)])
    printed = " ".join(capsys.readouterr().out.split())
    assert "unfinished, so that nothing says whether its files are whole" in printed
    assert "nan" not in printed
    for path in list((left / "snapshots").iterdir())[1:]:
        path.unlink()
    with pytest.raises(SystemExit):
        main(["drift", str(left)])
    assert "so finish the run, with the same command" in capsys.readouterr().err


@pytest.mark.parametrize("most", [8, 60, 500, 625, 1875, 6000, 40_000])
def test_the_steps_under_the_figure_of_exposure_do_not_touch(runs, monkeypatch, most):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    steps = np.unique(np.geomspace(3, most, 300).astype(int))
    table = pd.DataFrame(
        {"row": np.arange(len(steps)), "num_steps": steps, "norm": np.linspace(0.01, 0.02, len(steps))}
    )
    monkeypatch.setattr(drift_figures, "measure_rows", lambda *_: table)
    figure = drift_figures.draw_exposure(runs[0])
    FigureCanvasAgg(figure).draw()
    low, high = figure.axes[0].get_xlim()
    ticks = [tick for tick in figure.axes[0].xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [tick.label1.get_window_extent() for tick in ticks if tick.label1.get_text()]
    assert all(left.x1 + 4 < right.x0 for left, right in pairwise(boxes))
    assert len(boxes) >= 2 or most < 10
