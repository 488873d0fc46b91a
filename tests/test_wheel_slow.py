"""The source archive and its wheel, in an empty environment without a clone: commands, Python and a notebook work."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
TEXTS = {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "constraints.txt"}
"""What the source archive holds beside the package and what its build writes: no test, no report."""


def call(*command: object, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_what_is_released_works_in_an_empty_environment(tmp_path: Path) -> None:
    call(sys.executable, "-m", "build", "--outdir", tmp_path, ROOT, cwd=tmp_path)  # the wheel is of what the sdist has
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    assert source.stat().st_size < 3_000_000  # no report, no weights
    with tarfile.open(source) as archive:
        top = {Path(name).parts[1] for name in archive.getnames() if "/" in name}
    assert top == TEXTS | {"toolkit", "pyproject.toml", "setup.cfg", "PKG-INFO", "embedding_drift_toolkit.egg-info"}
    call(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    # Not compiled: that would take a third of the time, of modules that nobody here imports.
    pip = ("-m", "pip", "install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt")
    call(python, *pip, wheel, cwd=tmp_path)
    assert "site-packages" in call(python, "-c", "import toolkit; print(toolkit.__file__)", cwd=tmp_path)
    command = python.with_name("embedding-drift")
    call(command, "finetune", "--max-steps", 2, "--max-train-examples", 64, cwd=tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    assert "report/index.html" in call(command, "report", run, "--out", "report", cwd=tmp_path)
    assert "LayerNorm" in call(command, "drift", run, cwd=tmp_path)
    notebook = json.loads((ROOT / "experiments/notebooks/own_trainer.ipynb").read_text())
    cells = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code = "\n".join("".join(cell) for cell in cells[:2])  # before the training
    assert "num_rows: 160" in call(python, "-c", f"{code}\nprint(train)", cwd=tmp_path)
