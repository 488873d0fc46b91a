"""The import rules of the design hold, and a planted violation of each is caught."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on a copy of the package."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "toolkit", tmp_path / "toolkit", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


VIOLATIONS = {
    "analysis imports training": ("analysis/measures.py", "import toolkit.training.loop", "Layers"),
    "snapshots import data": ("snapshots/store.py", "from toolkit.data import tasks", "Layers"),
    "families import config": ("families.py", "import toolkit.config", "Layers"),
    "analysis reaches transformers": ("analysis/strata.py", "import transformers", "never needs a model"),
    "tables draw": ("reporting/tables.py", "import matplotlib", "figure files draw"),
    "a module outside the layers": ("helpers.py", "", "Layers"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_planted_violation_is_caught(name: str, copy: Path) -> None:
    file, line, contract = VIOLATIONS[name]
    path = copy / "toolkit" / file
    path.write_text((path.read_text() if path.exists() else '"""Planted."""\n') + f"\n{line}\n")
    done = lint(copy)
    assert done.returncode != 0
    assert contract in done.stdout


def test_the_package_itself_passes(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout
