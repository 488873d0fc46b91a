"""The gallery shows every report: its title, question, answers and command, pictures where there is a browser."""

import html
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments import gallery
from tests.reporting.test_browser import browser as browser
from tests.reporting.test_browser import visit as visit

pytestmark = pytest.mark.slow

FIRST_ANSWERS = {
    "pooling": ("Did the embeddings move?", "yes"),  # keeps its evidence
    "positions_minilm": ("Does it resemble sine and cosine?", "no (does not resemble)"),  # answers in a table
    "sst2_drift": ("", "Relative to their norm before, moved: word_embeddings by 1.33 %"),  # sentences
    "weight_drift": ("Did weights move more at the top or at the bottom?", "more at the top (4), flat (1)"),
}
"""Report to a question that it answers, and the answer."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    for name in FIRST_ANSWERS:
        shutil.copytree(gallery.REPORTS / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def index(reports: Path, browser: Any) -> Path:
    gallery.main(reports / "gallery", reports)
    return reports / "gallery" / "index.html"


def check_texts(text: str, reports: Path) -> None:
    """Of every report the title, the question, the first answer and the command."""
    for name, answer in FIRST_ANSWERS.items():
        title, _, rest = (reports / name / "report.md").read_text(encoding="utf-8").partition("\n")
        assert title.removeprefix("# ") in text
        assert all(part in text for part in answer)
        command = next(
            line for line in rest.splitlines() if line.endswith(f"--out reports/{name}") or "--title" in line
        )
        assert command in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_shows_every_report_in_either_theme_and_axe_finds_no_violation(
    visit: Callable[..., Any], reports: Path, scheme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    page = visit(has_words=False, color_scheme=scheme)
    check_texts(page.locator("main").inner_text(), reports)
    shown = page.locator("img:visible")
    assert shown.evaluate_all("all => all.map((each) => each.className)") == [scheme, "both", "both"]
    assert all(shown.evaluate_all("all => all.map((each) => each.complete && each.naturalWidth > 0)"))
    sources = page.locator("img").evaluate_all("all => all.map((each) => each.src)")
    assert len(set(sources)) == len(sources) == 4  # each theme is drawn in its own colours
    assert axe.Axe().run(page).response["violations"] == []


def test_without_a_browser_it_tells_the_answers_in_full(
    reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "BROWSERS", ())
    gallery.main(tmp_path / "gallery", reports)
    text = html.unescape((tmp_path / "gallery" / "index.html").read_text(encoding="utf-8"))
    check_texts(text, reports)
    assert 'class="light"' not in text
    assert "words by 0.71 to 1.3 %" in text
