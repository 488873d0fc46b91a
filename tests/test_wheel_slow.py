"""The built wheel, installed into an empty environment, gives the package, the console script and its data files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def call(*command: object, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    call(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    call(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    assert "site-packages" in call(python, "-c", "import toolkit; print(toolkit.__file__)", cwd=tmp_path)
    assert "report" in call(python.with_name("embedding-drift"), "--help", cwd=tmp_path)
    code = (
        "import toolkit; c = toolkit.RunConfig(max_steps=2, max_train_examples=64); "
        "print(toolkit.write_report([toolkit.finetune(c)], 'report'))"
    )
    call(python, "-c", code, cwd=tmp_path)
    assert (tmp_path / "report" / "report.md").exists()
