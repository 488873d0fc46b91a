"""The page in a real Chromium, from a file: it works, it is fast, it asks for nothing, and what is text stays text."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.reporting.page.pages import INJECTION, make_data, make_page, make_words, texts
from toolkit.reporting.page.model import Page, Section, TableBlock, WordsData
from toolkit.reporting.page.render import render_page

pytestmark = pytest.mark.usefixtures("drawn")

pytest.importorskip("playwright", reason="pip install playwright, and a Chromium")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LIGHT, DARK = "rgb(250, 248, 244)", "rgb(19, 22, 27)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium: the system's, or the one that Playwright has installed."""
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except Error as error:
            pytest.skip(f"no Chromium to be started: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One page with everything, hostile texts included, which no test changes."""
    return write(make_page(make_data(), words_after="scores", text=INJECTION), tmp_path_factory.mktemp("page"))


@pytest.fixture
def visit(browser: Any, index: Path) -> Iterator[Callable[..., Any]]:
    """``visit(path, **context)``: the open page. Afterwards: no error, and no request but for the file itself."""
    pages: list[Any] = []
    troubles: list[str] = []

    def open_page(path: Path = index, *, has_words: bool = True, **context: Any) -> Any:
        page = browser.new_context(**context).new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: troubles.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        if has_words:
            page.wait_for_selector("html.has-words", state="attached")
        pages.append(page)
        return page

    yield open_page
    injected = [page.evaluate("window.injected") for page in pages]
    for page in pages:
        page.context.close()
    assert troubles == []
    assert injected == [None] * len(pages)


def write(page: Page, folder: Path) -> Path:
    path = folder / "index.html"
    path.write_text(render_page(page), encoding="utf-8")
    return path


def pixels(page: Any) -> str:
    return str(page.evaluate("document.getElementById('map').toDataURL()"))


def set_epoch(page: Any, epoch: int) -> None:
    page.locator("#epoch").fill(str(epoch))


def test_hostile_texts_are_shown_as_texts(visit: Callable[..., Any]):
    page = visit()
    assert page.locator("h1").inner_text() == INJECTION
    assert page.locator("main").inner_text().count(INJECTION) > 8
    page.fill("#word-search", "<script>")
    assert page.locator("#word-table tbody th").first.inner_text() == INJECTION


def test_an_injected_handler_or_script_would_not_run(visit: Callable[..., Any], browser: Any, index: Path):
    page = browser.new_page()
    page.goto(index.as_uri())
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.injected = 1\">')")
    page.wait_for_timeout(100)
    assert page.evaluate("window.injected") is None  # the page's policy, not only its escaping
    page.close()


def test_search_finds_a_word_and_marks_it_on_the_map(visit: Callable[..., Any]):
    page = visit()
    before = pixels(page)
    page.fill("#word-search", "GOOD")
    assert page.locator("#word-count").inner_text() == "1 of 60 words"
    assert page.locator("#word-table tbody tr").count() == 1
    assert page.locator("#word-card h3").inner_text() == "good"
    assert pixels(page) != before
    page.fill("#word-search", "word1")
    assert page.locator("#word-count").inner_text() == "10 of 60 words"  # word10 to word19
    page.fill("#word-search", "no such word")
    assert page.locator(".pager span").inner_text() == "No word matches."


def test_slider_moves_the_map(visit: Callable[..., Any]):
    page = visit()
    place = "[...window.words.map.now.map((axis) => axis[{}])]"
    set_epoch(page, 0)
    first, moving, still = pixels(page), page.evaluate(place.format(2)), page.evaluate(place.format(0))
    assert page.locator("#epoch-name").inner_text() == "0, before training"
    page.locator("#epoch").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#epoch-name").inner_text() == "1"
    assert pixels(page) != first
    assert page.evaluate(place.format(2)) != moving
    assert page.evaluate(place.format(0)) == pytest.approx(still)  # a word that did not move stays


def test_enlarged_drift_is_drawn_enlarged(visit: Callable[..., Any]):
    page = visit()
    set_epoch(page, 3)
    page.evaluate(
        "window.moveOf = (i, m = window.words.map) => Math.hypot(...m.from(i).map((at, k) => m.now[k][i] - at))"
    )
    move = "window.moveOf(2) / window.words.map.unit"
    page.locator("#map-scale label").nth(0).click()
    plain = page.evaluate(move)
    page.locator("#map-scale label").nth(2).click()
    assert page.evaluate(move) == pytest.approx(50 * plain, rel=1e-3)
    assert "50 times enlarged" in page.locator("#map-text").inner_text()


def test_playing_ends_at_the_last_epoch(visit: Callable[..., Any]):
    page = visit()
    set_epoch(page, 0)
    page.click("#map-play")
    assert page.locator("#map-play").get_attribute("aria-label") == "Pause"
    page.wait_for_selector("#map-play[aria-label='Play the epochs']", timeout=10_000)
    assert page.locator("#epoch").input_value() == "3"


def test_map_can_be_clicked_hovered_zoomed_and_read(visit: Callable[..., Any]):
    page = visit()
    set_epoch(page, 0)
    page.locator("#map").scroll_into_view_if_needed()
    x, y = page.evaluate("[...window.words.map.now.map((axis) => axis[5])]")
    page.locator("#map").hover(position={"x": x, "y": y})
    assert "moved by" in page.locator("#map-tip").inner_text()
    page.locator("#map").click(position={"x": x, "y": y})
    assert page.locator("#word-card h3").inner_text() == page.locator("#map-tip").inner_text().split(":")[0]
    before = page.evaluate("window.words.map.view.zoom")
    page.focus("#map")
    page.keyboard.press("+")
    assert page.evaluate("window.words.map.view.zoom") > before
    set_epoch(page, 2)
    page.locator(".quiet-fold summary").click()
    assert page.locator("#map-list li").first.inner_text().startswith("better: drift 0.500 at epoch 2")


def test_run_and_axes_can_be_chosen(visit: Callable[..., Any]):
    page = visit()
    before = pixels(page)
    page.locator("#map-axes label").nth(1).click()
    assert pixels(page) != before
    page.select_option("#run-choice", index=1)
    assert page.locator("#run-choice option").nth(1).inner_text() == f"LP-FT {INJECTION}"
    assert page.locator("#word-card h3").inner_text() == "better"


def test_words_are_sorted_and_paged(visit: Callable[..., Any]):
    page = visit()

    def column(number: int) -> list[str]:
        return [str(cell) for cell in page.locator(f"#word-table tbody tr > :nth-child({number})").all_inner_texts()]

    assert column(1)[0] == "better"  # farthest first
    steps = page.locator("#word-table .sort").nth(1)
    steps.click()
    assert page.locator("#word-table th").nth(1).get_attribute("aria-sort") == "descending"
    values = [int(cell.replace(",", "")) for cell in column(2)]
    assert values == sorted(values, reverse=True)
    steps.click()
    assert int(column(2)[0].replace(",", "")) == make_words(60).num_steps.min()  # type: ignore[union-attr]
    page.locator("[data-page='1']").click()
    assert page.locator(".pager span").inner_text() == "Page 2 of 3"
    assert len(column(1)) == 25


def test_a_table_is_sorted_undefined_last(visit: Callable[..., Any]):
    page = visit()
    table = page.locator("#scores figure.table").first
    assert table.locator("tbody tr:visible").count() == 2
    table.locator(".sort").nth(1).click()
    assert table.locator("tbody tr:visible td:nth-child(2)").all_inner_texts() == ["0.500", "0.250"]
    table.locator(".sort").nth(1).click()
    table.locator(".show-all").click()
    assert table.locator("tbody tr:visible td:nth-child(2)").all_inner_texts() == ["0.250", "0.500", "undefined"]


def test_how_is_shown_on_hover_focus_and_tap(visit: Callable[..., Any]):
    page = visit(has_touch=True)
    tip, head = page.locator("#tip"), page.locator("#scores th").nth(1)
    head.locator(".sort").hover()
    assert tip.inner_text() == f"How: {INJECTION}"
    page.mouse.move(1, 1)
    assert tip.is_hidden()
    head.locator(".sort").focus()
    assert tip.is_visible()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    head.locator(".info").tap()
    assert tip.is_visible()
    assert INJECTION in str(head.locator(".sort").get_attribute("aria-description"))


def test_verdicts_can_be_filtered_and_opened(visit: Callable[..., Any]):
    page = visit()
    lines = page.locator(".verdicts .line:visible")
    assert lines.count() == 3
    page.locator(".chip").first.click()
    assert lines.count() == 1
    assert lines.locator(".badge").inner_text() == "supported"
    lines.locator("summary").click()
    assert lines.locator("details p").is_visible()
    page.locator(".chip").first.click()
    page.locator(".group-button").first.click()
    assert lines.count() == 1


def test_light_and_dark(visit: Callable[..., Any]):
    background = "getComputedStyle(document.body).backgroundColor"
    page = visit(color_scheme="dark")
    assert page.evaluate(background) == DARK
    dark = pixels(page)
    page.click("#theme")
    assert page.evaluate(background) == LIGHT
    assert pixels(page) != dark
    assert visit(color_scheme="light").evaluate(background) == LIGHT


def test_print_is_light_with_everything_open_and_leaves_the_page_as_it_was(visit: Callable[..., Any]):
    page = visit(color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.locator("details.fold:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.locator("details.fold[open]").count() == 0


def test_phone_width_does_not_scroll_sideways(visit: Callable[..., Any]):
    page = visit(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    for fold in page.locator("details").all():
        fold.evaluate("fold => { fold.open = true; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("#contents-list").is_hidden()
    page.tap("#contents-button")
    page.locator("#contents-list a", has_text="Words").tap()
    assert page.locator("#contents-list").is_hidden()
    assert page.evaluate("location.hash") == "#words"
    page.locator("#word-table .word-button").first.tap()
    assert page.locator("#word-card h3").inner_text() == "better"


def test_everything_is_reached_by_tab(visit: Callable[..., Any]):
    page = visit()
    reached = []
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    expected = ["skip", "theme", "chip", "sort", "word-search", "map", "map-play", "epoch", "word-button"]
    places = [reached.index(name) for name in expected]
    assert places == sorted(places)
    assert places[0] == 0
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_every_explanation_is_reached_by_keyboard(visit: Callable[..., Any]):
    page = visit()
    for info in page.locator(".info").all():
        if info.get_attribute("tabindex") == "-1":  # the heading beside it says the same when it has the focus
            assert info.get_attribute("data-tip") == info.evaluate(
                "info => info.parentElement.querySelector('.sort').dataset.tip"
            )
        else:
            assert info.get_attribute("aria-description")


def test_the_keyboard_does_not_lose_its_place(visit: Callable[..., Any]):
    page = visit()
    focused = "document.activeElement.tagName + document.activeElement.textContent"
    neighbour = page.locator("#word-card .pairs button").first
    name = neighbour.inner_text()
    neighbour.press("Enter")  # the button is gone with the card of the word before
    assert page.evaluate(focused) == f"H3{name}"
    for _ in range(2):
        page.locator("[data-page='1']").press("Enter")
    assert page.evaluate(focused) == "BUTTONPrevious"  # there is no page after the last


def test_the_map_leaves_the_browser_its_keys(visit: Callable[..., Any]):
    page = visit()
    page.focus("#map")
    view = page.evaluate("window.words.map.view")
    for key in ("Control+=", "Control+0", "Alt+ArrowLeft"):
        page.evaluate(
            "addEventListener('keydown', (event) => { window.taken = event.defaultPrevented; }, { once: true })"
        )
        page.keyboard.press(key)
        assert page.evaluate("[window.taken, window.words.map.view]") == [False, view]


def test_an_explanation_can_be_pointed_at_and_stays_while_its_heading_has_the_focus(visit: Callable[..., Any]):
    page = visit(reduced_motion="reduce")
    tip, sort = page.locator("#tip"), page.locator("#scores .sort").nth(1)
    sort.scroll_into_view_if_needed()
    page.wait_for_timeout(200)  # scrolling hides what is not of the focus
    sort.hover()
    box, to = sort.bounding_box(), tip.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, to["y"] + to["height"] / 2, steps=20)
    assert tip.is_visible()
    page.mouse.move(1, 1)
    assert tip.is_hidden()
    sort.focus()
    place = tip.bounding_box()["y"]
    page.evaluate("scrollBy({ top: 40, behavior: 'instant' })")
    page.wait_for_timeout(100)
    assert tip.is_visible()
    assert tip.bounding_box()["y"] == pytest.approx(place - 40, abs=1)


def test_headings_are_large_enough_to_be_hit(visit: Callable[..., Any]):
    page = visit(viewport={"width": 360, "height": 740})
    page.evaluate("document.querySelector('#scores .sort').textContent = 'p'")
    sizes = [sort.bounding_box() for sort in page.locator(".sort").all()]
    assert min(min(size["width"], size["height"]) for size in sizes) >= 24  # WCAG 2.2, 2.5.8


def test_print_shows_every_line_of_a_table_and_every_verdict(visit: Callable[..., Any], tmp_path: Path):
    long = Section(
        id="long", title="", blocks=(TableBlock(table=pd.DataFrame({"sha256": 2 * ["f" * 400]}), caption=""),)
    )
    page = visit(write(replace(make_page(), sections=(*make_page().sections, long)), tmp_path), has_words=False)
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 with margins
    page.locator(".group-button").first.click()
    shown = page.locator("#scores tbody tr:visible, .verdicts .line:visible")
    assert shown.count() == 3
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown.count() == 6
    assert page.locator("text=The first rule that holds.").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 718


def test_on_a_phone_without_javascript_nothing_covers_the_page(visit: Callable[..., Any]):
    page = visit(has_words=False, java_script_enabled=False, viewport={"width": 360, "height": 740})
    assert page.locator("#contents-button").is_hidden()  # it would do nothing
    page.mouse.wheel(0, 3000)
    page.wait_for_timeout(300)
    assert page.locator(".contents").bounding_box()["y"] < -700
    assert page.locator("header noscript p").is_visible()
    page.locator("details", has_text="How to read the verdicts").locator("summary").click()
    assert page.locator("text=The first rule that holds.").is_visible()
    height = page.locator("#scores thead").bounding_box()["height"]
    page.locator("#scores .sort").nth(1).hover()
    assert page.locator("#scores thead").bounding_box()["height"] > height  # its explanation is below it


def test_without_javascript_the_report_can_be_read(visit: Callable[..., Any]):
    page = visit(has_words=False, java_script_enabled=False)
    assert page.locator("#scores tbody tr:visible").count() == 3
    assert page.locator(".drawing svg").is_visible()
    assert page.locator("#words noscript").count() == 1
    assert page.locator("#words-app").is_hidden()


def test_bert_base_is_painted_at_once(visit: Callable[..., Any], tmp_path: Path):
    words = WordsData(vocabularies=(texts(30_522),), runs=(make_words(30_522),))
    path = write(replace(make_page(), words=words), tmp_path)
    last_paints = []
    for _ in range(3):  # the best of three, since other processes may have the processor
        page = visit(path)
        paints = page.evaluate("performance.getEntriesByType('paint').map((entry) => entry.startTime)")
        assert len(paints) == 2
        last_paints.append(max(paints))
        if last_paints[-1] < 1500:
            break
    assert min(last_paints) < 1500
    assert page.locator("#word-count").inner_text() == "30,522 words"
    page.fill("#word-search", "word30521")
    assert page.locator("#word-card h3").inner_text() == "word30521"
