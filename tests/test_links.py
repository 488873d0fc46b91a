"""Links of the texts that people read first lead to files, and to headings, that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXTS = [*ROOT.glob("*.md"), *ROOT.glob("reports/*.md"), *ROOT.glob("experiments/**/*.md")]


def anchors_of(path: Path) -> set[str]:
    """What the headings of a text are called in a link, as GitHub makes it."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", path.read_text(encoding="utf-8"))
    for place, anchor in links:
        target = path.parent / place if place else path
        assert target.exists(), place
        assert not anchor or target.suffix != ".md" or anchor in anchors_of(target), f"{place}#{anchor}"
