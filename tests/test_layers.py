"""The import rules of the design hold, and each of them catches what breaks it.

The violations are made from the contracts themselves, and planted in modules that are there: a rule that is added is
tried, and a module that moves takes its violation along.
"""

import pkgutil
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatch
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import pytest

from toolkit.questions import QUESTIONS

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


def pairs_of(contract: dict[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(importer, imported): pairs of modules that an independence contract keeps apart, and those that it lets pass."""
    (pattern,) = contract["modules"]
    folder = ROOT / pattern.removesuffix(".*").replace(".", "/")
    names = [module.name for module in pkgutil.iter_modules([str(folder)], pattern.removesuffix("*"))]
    pairs, exempt = list(permutations(names, 2)), [each.split(" -> ") for each in contract["ignore_imports"]]
    passing = [pair for pair in pairs if any(all(map(fnmatch, pair, patterns)) for patterns in exempt)]
    return [pair for pair in pairs if pair not in passing], passing


def violations_of(contract: dict[str, Any]) -> list[tuple[str, str]]:
    """(importer, imported): every pair of modules that a contract must keep apart."""
    if contract["type"] == "forbidden":
        return [(own, other) for own in contract["source_modules"] for other in contract["forbidden_modules"]]
    if contract["type"] == "independence":
        return pairs_of(contract)[0]
    assert contract["type"] == "layers"
    layers = [[f"toolkit.{name.strip()}" for name in layer.split("|")] for layer in contract["layers"]]
    upward = [(own, other) for above, below in combinations(layers, 2) for own in below for other in above]
    return upward + [pair for layer in layers for pair in permutations(layer, 2)]


def module_of(folder: Path, name: str, contract: dict[str, Any]) -> tuple[str, Path]:
    """A module of a package (or the module itself) that is there and that the contract has no exception for."""
    path = folder / name.replace(".", "/")
    excepted = {pair.split(" -> ")[0] for pair in contract.get("ignore_imports", ())}
    files = sorted(path.rglob("*.py"), reverse=True) if path.is_dir() else [path.with_suffix(".py")]
    modules = {".".join(file.relative_to(folder).with_suffix("").parts): file for file in files if file.is_file()}
    return next(pair for pair in modules.items() if pair[0] not in excepted and pair[1].stem != "__init__")


def plant(folder: Path, violations: Iterable[tuple[str, str]], contract: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Write each violation into a module that is there; (importer, imported, module -> module inside them)."""
    planted = []
    for own, other in violations:
        module, file = module_of(folder, own, contract)
        imported = module_of(folder, other, {})[0] if other.startswith("toolkit.") else other
        file.write_text(f"{file.read_text()}\nimport {imported}\n")
        planted.append((own, other, f"{module} -> {imported}"))
    return planted


def test_the_package_itself_passes_and_may_import_what_a_rule_exempts(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout
    assert "No matches" not in done.stdout + done.stderr  # an exception for a module that moved is none
    (contract,) = (each for each in CONTRACTS if each["type"] == "independence")
    plant(copy, pairs_of(contract)[1], contract)
    done = lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract["name"])
def test_every_rule_catches_its_violation(contract: dict[str, Any], copy: Path) -> None:
    violations = violations_of(contract)
    assert violations
    planted = plant(copy, violations, contract)
    done = lint(copy)
    assert done.returncode != 0
    assert f"{contract['name']} BROKEN" in done.stdout
    _, _, details = done.stdout.partition(f"\n{contract['name']}\n")
    for own, other, modules in planted:
        _, said, rest = details.partition(f"{own} is not allowed to import {other}:\n")
        assert said, f"nothing is said of {own} that imports {other}"
        assert f"{modules} " in rest.partition(" is not allowed to import ")[0]


def test_a_module_outside_the_layers_is_caught(copy: Path) -> None:
    (copy / "toolkit" / "helpers.py").write_text('"""Planted."""\n')
    done = lint(copy)
    assert done.returncode != 0
    assert "toolkit.helpers" in done.stdout


def test_there_are_rules_for_what_the_design_says() -> None:
    """So that a contract that is deleted, or that loses one of its halves, is missed."""
    halves = ("toolkit.analysis", "toolkit.snapshots", "toolkit.families", "toolkit.reporting")
    assert {pair for contract in CONTRACTS for pair in violations_of(contract)} >= {
        *product(halves, ("transformers", "accelerate", "datasets")),
        *permutations(("toolkit.training", "toolkit.analysis"), 2),
        *product(("toolkit.analysis", "toolkit.comparison", "toolkit.reporting"), ("toolkit.questions",)),
        *permutations((f"toolkit.questions.{name}" for name in QUESTIONS), 2),
        *product(("toolkit",), ("altair", "vl_convert")),
        ("toolkit.analysis", "toolkit.reporting"),
        ("toolkit.pipeline", "toolkit.studies"),
        ("toolkit.snapshots", "toolkit.data"),
        ("toolkit.families", "toolkit.config"),
    }
