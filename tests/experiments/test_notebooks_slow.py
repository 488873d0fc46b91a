"""The notebooks run from their first cell to their last, on less data than they show."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "experiments" / "notebooks").glob("*.ipynb"))
SMALLER = {"160)": "32)", "200)": "24)"}
"""Examples that a notebook takes, to those that a test needs."""


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    code = "\n".join("".join(cell["source"]) for cell in cells)
    assert all(shown in code for shown in SMALLER)
    for shown, tried in SMALLER.items():
        code = code.replace(shown, tried)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "\\begin{tabular}" in done.stdout
    assert all(cell["outputs"] for cell in cells[1:])  # what a reader on the web sees
