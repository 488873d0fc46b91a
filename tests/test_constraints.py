"""What is released is one version; what it asks for is pinned, and what installs it for minutes says so."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()[1:]]
PINNED = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in PINS}


@pytest.mark.parametrize(
    "line", sorted({line for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines})
)
def test_a_dependency_is_pinned_within_its_range(line: str) -> None:
    requirement = Requirement(line)
    assert requirement.specifier.contains(PINNED[canonicalize_name(requirement.name)])


def test_a_package_is_pinned_once_and_exactly() -> None:
    assert len(PINNED) == len(PINS)
    assert all([clause.operator for clause in pin.specifier] == ["=="] for pin in PINS)


def test_whoever_develops_has_every_extra() -> None:
    assert {line for lines in EXTRAS.values() for line in lines} <= set(EXTRAS["dev"])


def test_a_release_has_one_version_and_one_date() -> None:
    cited = dict(re.findall(r"^(version|date-released): (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M))
    heading = re.search(r"^## (\S+), (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert (PROJECT["version"], cited["version"], cited["date-released"]) == (heading[1], *heading.groups())


def test_what_make_does_for_minutes_it_says_first() -> None:
    recipes = re.findall(r"^(\S+):.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    long = {
        name: lines
        for name, lines in recipes
        if re.search("pip install|call install|/mypy|pdoc |study|gallery.py", lines)
    }
    assert len(long) > 5
    assert [name for name, lines in long.items() if "minute" not in lines.partition("\n")[0]] == []
