"""Whatever text goes in, no markup comes out; numbers say what they are."""

import html
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.reporting import cells
from toolkit.reporting import render_markdown as markdown
from toolkit.reporting.page import Answer, Part, Report, shown, spoken, table_block
from toolkit.schema import COLUMNS, P_VALUES


@given(st.text())
def test_escaped_text_is_inert_and_one_line(text):
    escaped = markdown.escape(text)
    assert not re.search(r"[\\`*\[\]<>|~$@\n\r\x00-\x1f\x7f]", escaped)
    assert re.sub(r"&#\d+;", "", escaped).count("&") == 0
    assert not re.search(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", escaped)


@given(st.text(st.characters(categories=("L", "N", "P", "S"))))
def test_visible_text_survives(text):
    assert html.unescape(markdown.escape(text)) == text


def test_a_report_says_what_its_page_answers():
    parts = (Part(name="sst2", verdict="yes", text="2 points"), Part(name="trec", verdict="", text="none"))
    answers = (Answer(question="Does it?", verdict="yes", text="A lot.", parts=parts), Answer(text="A sentence."))
    assert list(map(spoken, answers)) == ["Does it? yes. A lot.\nsst2: yes, 2 points\ntrec: none", "A sentence."]
    assert repr(Report(Path("a/report.md"), answers)) == "Report(path: a/report.md, Does it?: yes)"


@given(st.lists(st.text(max_size=8), min_size=1, max_size=4))
def test_a_table_keeps_its_shape(cells):
    for line in markdown.table(["a"] * len(cells), [cells]).split("\n"):
        assert line.count("|") == len(cells) + 1


def test_no_backtick_ends_a_code_block():
    block = markdown.code_block(["echo '```'", "````"])
    fence = block.split("bash")[0]
    assert set(fence) == {"`"}
    assert block.count(fence) == 2


NAN = float("nan")


@pytest.mark.parametrize(
    ("written", "value", "text"),
    [
        (cells.number, None, "not applicable"),
        (cells.number, NAN, "undefined"),
        (cells.number, 0.0, "0"),
        (cells.number, 0, "0"),
        (cells.number, 1234567, "1,234,567"),
        (cells.number, np.int64(7), "7"),
        (cells.number, 0.12345, "0.123"),
        (cells.number, 12.345, "12.3"),
        (cells.number, 123.45, "123"),
        (cells.number, 1234.5, "1,234"),
        (cells.number, -0.5, "-0.500"),
        (cells.number, 1.234e-7, "1.23e-07"),
        (cells.number, float("inf"), "inf"),
        (cells.number, True, "yes"),
        (cells.mean_and_sd, [], "not applicable"),
        (cells.mean_and_sd, [0.5], "0.500"),
        (cells.mean_and_sd, [NAN], "undefined"),
        (cells.mean_and_sd, [NAN, NAN], "undefined (2 of 2)"),
        (cells.mean_and_sd, [1.0, 3.0, NAN], "2.00 ± 1.4 (1 undefined)"),
        (cells.mean_and_sd, [0.0, 0.0], "0"),
        (cells.p_value, 1.53e-47, "< 0.001"),
        (cells.p_value, 0.0314, "0.0314"),
        (cells.p_value, 1.0, "1.00"),
        (cells.p_value, NAN, "undefined"),
        (cells.listing, [], ""),
        (cells.listing, ["a"], "a"),
        (cells.listing, ["a", "b"], "a and b"),
        (cells.listing, ["a", "b", "c"], "a, b and c"),
    ],
)
def test_numbers_and_listings(written, value, text):
    assert written(value) == text


@pytest.mark.parametrize("name", sorted(P_VALUES))
def test_every_p_value_of_a_table_is_printed_as_one(name):
    """Also where its name does not end in p."""
    table = shown(table_block(pd.DataFrame({name: [1e-9]}), name, "p"))
    assert "< 0.001" in str(table)
    assert name in COLUMNS
