"""The notebooks run from their first cell to their last, in one folder and on less data than they show."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "experiments" / "notebooks").glob("*.ipynb"))
SMALLER = {
    "160)": "32)",
    "200)": "24)",
    '"max_train_examples": 320': '"max_train_examples": 48',
    "=320,": "=48, epochs=1,",
}
"""Examples (and epochs) that a notebook takes, to those that a test needs."""
MADE = {
    "own_trainer": r"\\begin\{tabularx?\}",
    "paper": r"(?s)\\begin\{tabularx?\}.*verdict: .*drift\.pdf",
    "three_regimes": r"regimes_report/index\.html",
    "two_checkpoints": r"(\d+) words inferred, \1 in the log of the training, \1 in both",
}
"""Notebook to what it prints, or to a file that it leaves."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all: a run that a notebook has made is taken by the next."""
    return tmp_path_factory.mktemp("notebooks")


def code_cells(path):
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, folder):
    code = "\n".join("".join(cell["source"]) for cell in code_cells(path))
    assert any(shown in code for shown in SMALLER)
    for shown, tried in SMALLER.items():
        code = code.replace(shown, tried)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    files = [found.relative_to(folder).as_posix() for found in folder.rglob("*.*")]
    assert re.search(MADE[path.stem], "\n".join([done.stdout, *sorted(files)]))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_reader_on_the_web_sees_what_every_cell_shows(path):
    assert path.stat().st_size < 200_000
    for cell in code_cells(path):
        last = ast.parse("".join(cell["source"])).body[-1]
        assert cell["outputs"] or not isinstance(last, ast.Expr), "".join(cell["source"])
        assert not re.search(r"/(home|root|tmp|work|usr)/|site-packages|Error|Traceback", json.dumps(cell["outputs"]))
