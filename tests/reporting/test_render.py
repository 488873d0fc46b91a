"""A page says what it was given, each text as text; nothing in it points outside."""

import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from tests.refusals import check_refusals
from tests.reporting.pages import INJECTION, make_chart, make_page, make_words_section
from toolkit.reporting.cells import Column
from toolkit.reporting.page import ChartBlock, Page, Section, TableBlock, TextBlock
from toolkit.reporting.render_html import render_page


class Elements(HTMLParser):
    """Every start tag with its attributes, and the text outside scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.found and self.found[-1][0] not in ("script", "style"):
            self.text += data


@pytest.fixture
def elements():
    """What is on a page with one of everything."""
    return Elements(render_page(make_page(make_words_section())))


def test_every_part_is_on_the_page(elements):
    parts = ["Does it matter?", "undecided", "0.812", "Scores", "Words", "How to repeat it", "1,000"]
    parts += ["+2.0 (95\u00a0%: -1.0 to +5.0)", "undefined"]  # the NaN of the table
    assert [part for part in parts if part not in elements.text] == []


def test_a_line_ends_before_a_number_and_not_before_its_percent_sign_and_commands_are_copied_as_they_are():
    page = Page(title="1.3 % of 5 %", commands="report --title '5 % more'")
    text = Elements(render_page(page)).text
    assert "1.3\u00a0% of 5\u00a0%" in text
    assert "--title '5 % more'" in text


def test_smallest_page():
    elements = Elements(render_page(Page(title="Only a title")))
    assert "Only a title" in elements.text
    assert not {"words", "repeat"} & {attributes.get("id") for _, attributes in elements.found}


def test_hostile_texts_are_texts_everywhere():
    elements = Elements(render_page(make_page(make_words_section(), text=INJECTION)))
    scripts = [attributes for tag, attributes in elements.found if tag == "script"]
    assert len(scripts) == 5  # two of ours and three charts; the library is left out of tests
    assert elements.text.count(INJECTION) > 12
    assert not any(key.startswith("on") for _, attributes in elements.found for key in attributes)


def test_nothing_points_outside():
    html = render_page(make_page(make_words_section()))
    for tag, attributes in Elements(html).found:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
        for key in ("src", "href", "action", "data"):
            assert (attributes.get(key) or "#").startswith(("#", "data:"))
    # The library names schemas and pages of its own; the policy keeps any script from loading anything.
    outside = set(re.findall(r"https?://[^\s\"'<>]+", re.sub(r"<script\b.*?</script>", "", html, flags=re.DOTALL)))
    assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_only_our_scripts_may_run():
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', render_page(make_page()))
    assert policy
    assert "default-src &#39;none&#39;" in policy.group(1)
    assert policy.group(1).count("sha256-") == 2
    assert "unsafe-eval" not in policy.group(1)
    assert "script-src &#39;unsafe-inline" not in policy.group(1)


def test_invisible_characters_are_shown_and_surrogates_can_be_written():
    html = render_page(make_page(text="a\u202eb\ud800"))
    html.encode("utf-8")
    assert "aU+202EbU+D800" in html


def test_tables_have_names_and_row_headers_and_are_no_landmarks(elements):
    tables = [attributes for tag, attributes in elements.found if tag == "table"]
    assert len(tables) == 2  # one of the section, the words that moved most
    assert all(attributes.get("aria-label") for attributes in tables)
    assert sum(attributes.get("scope") == "row" for _, attributes in elements.found) == 6
    roles = {attributes.get("role") for _, attributes in elements.found}
    assert "region" not in roles  # so many would hide the real ones


def test_ids_are_unique_and_contents_lead_somewhere(elements):
    ids = [attributes["id"] for _, attributes in elements.found if attributes.get("id")]
    assert len(ids) == len(set(ids))
    links = [str(attributes["href"])[1:] for tag, attributes in elements.found if tag == "a"]
    assert set(links) <= set(ids)
    assert links.index("words") == links.index("scores") + 1


def page_of(*blocks, name="a"):
    return Page(title="", sections=(Section(id=name, title="", blocks=blocks),))


def test_mistakes_are_refused():
    figure = ChartBlock(name="x", chart=make_chart(), caption="", alt="")
    table = TableBlock(table=pd.DataFrame({"a": [1]}), caption="T", columns={"b": Column(label="b")})
    check_refusals(
        ("section id 'a b' must be", lambda: render_page(page_of(name="a b"))),
        ("section id 'theme' stands twice", lambda: render_page(page_of(name="theme"))),
        ("figure name 'x' stands twice", lambda: render_page(page_of(figure, figure))),
        ("the table 'T' has no column 'b'; it has a", lambda: render_page(page_of(table))),
    )


def test_tables_and_texts_may_be_empty():
    nothing = TableBlock(table=pd.DataFrame({"a": []}), caption="nothing")
    assert "nothing" in render_page(page_of(nothing, TextBlock(text="")))


def test_the_interface_has_no_em_dash():
    assert "\N{EM DASH}" not in render_page(make_page(make_words_section()))


def test_equal_pages_are_equal_texts():
    assert render_page(make_page(make_words_section())) == render_page(make_page(make_words_section()))
