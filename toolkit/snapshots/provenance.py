"""This machine and checkout in, the facts that a manifest keeps of them out; no paths, no host names."""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "numpy", "pandas",
            "scikit-learn", "scipy")  # fmt: skip


def read_versions() -> dict[str, str]:
    """Package name to version, Python and the toolkit among them; a package that is not installed is left out."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("embedding-drift-toolkit", *PACKAGES):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def read_git_commit() -> str | None:
    """The commit of the toolkit's checkout, with ``-dirty`` when it has changes; None when it is installed."""
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        describe = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(describe, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
