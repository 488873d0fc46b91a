"""The import rules of the design hold, and each of them catches what breaks it.

The violations are made from the contracts themselves, and planted in modules that are there: a rule that is added is
tried, and a module that moves takes its violation along.
"""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on a copy of the package."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    # Wide: a name that is broken over two lines is not found.
    environment = {"PATH": "", "COLUMNS": "1000"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "toolkit", tmp_path / "toolkit", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def violations_of(contract: dict[str, Any]) -> list[tuple[str, str]]:
    """(importer, imported): every pair of modules that a contract must keep apart."""
    if contract["type"] == "forbidden":
        return [(own, other) for own in contract["source_modules"] for other in contract["forbidden_modules"]]
    assert contract["type"] == "layers"
    layers = [[f"toolkit.{name.strip()}" for name in layer.split("|")] for layer in contract["layers"]]
    upward = [(own, other) for above, below in combinations(layers, 2) for own in below for other in above]
    return upward + [pair for layer in layers for pair in permutations(layer, 2)]


def module_of(folder: Path, name: str, contract: dict[str, Any]) -> tuple[str, Path]:
    """A module of a package (or the module itself) that is there and that the contract has no exception for."""
    path = folder / name.replace(".", "/")
    excepted = {pair.split(" -> ")[0] for pair in contract.get("ignore_imports", ())}
    files = sorted(path.rglob("*.py"), reverse=True) if path.is_dir() else [path.with_suffix(".py")]
    for file in files:
        module = ".".join(file.relative_to(folder).with_suffix("").parts)
        if module not in excepted and file.stem not in ("__init__", "__main__"):
            assert file.is_file(), f"{file} is not there: nothing was planted in it"
            return module, file
    raise AssertionError(f"{name} holds no module")


def plant(folder: Path, violations: Iterable[tuple[str, str]], contract: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Write each violation into a module that is there; (importer, imported, importing module)."""
    planted = []
    for own, other in violations:
        module, file = module_of(folder, own, contract)
        file.write_text(f"{file.read_text()}\nimport {other}\n")
        planted.append((own, other, module))
    return planted


def test_the_package_itself_passes(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout
    assert "No matches" not in done.stdout + done.stderr  # an exception for a module that moved is none


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract["name"])
def test_every_rule_catches_its_violation(contract: dict[str, Any], copy: Path) -> None:
    violations = violations_of(contract)
    assert violations
    planted = plant(copy, violations, contract)
    done = lint(copy)
    assert done.returncode != 0
    assert f"{contract['name']} BROKEN" in done.stdout
    _, _, details = done.stdout.partition(f"\n{contract['name']}\n")
    for own, other, module in planted:
        _, said, rest = details.partition(f"{own} is not allowed to import {other}:\n")
        assert said, f"nothing is said of {own} that imports {other}"
        assert f"{module} -> {other} " in rest.partition(" is not allowed to import ")[0]


def test_a_module_outside_the_layers_is_caught(copy: Path) -> None:
    (copy / "toolkit" / "helpers.py").write_text('"""Planted."""\n')
    done = lint(copy)
    assert done.returncode != 0
    assert "toolkit.helpers" in done.stdout


def test_there_are_rules_for_what_the_design_says() -> None:
    """So that a contract that is deleted, or that loses one of its halves, is missed."""
    pairs = {pair for contract in CONTRACTS for pair in violations_of(contract)}
    halves = ("toolkit.analysis", "toolkit.snapshots", "toolkit.families", "toolkit.reporting")
    heavy = ("transformers", "accelerate", "datasets")
    siblings = permutations(("toolkit.training", "toolkit.analysis"), 2)
    upward = [("toolkit.analysis", "toolkit.reporting"), ("toolkit.pipeline", "toolkit.studies")]
    upward += [("toolkit.snapshots", "toolkit.data"), ("toolkit.families", "toolkit.config")]
    drawing = [("toolkit", name) for name in ("altair", "vl_convert")]
    assert pairs >= {*((half, name) for half in halves for name in heavy), *siblings, *upward, *drawing}
