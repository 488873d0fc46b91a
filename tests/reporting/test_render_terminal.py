"""Pages on a terminal of 80 columns: every text is there, and nothing that a terminal obeys."""

import io
import re
from collections import Counter

import pandas as pd
import pytest
from rich.console import Console

from toolkit.reporting.cells import Column
from toolkit.reporting.page import FoldBlock, NoteBlock, Page, Section, TableBlock, TextBlock, Tile, stated
from toolkit.reporting.render_terminal import MOST_LINES, print_page


def printed(page, width=80):
    console = Console(file=io.StringIO(), width=width)
    print_page(page if isinstance(page, Page) else Page(title="", sections=(page,)), console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines()), default=0) <= width
    return text


def words_of(text):
    """Without the places where lines were broken."""
    return re.sub(r"\s+", "", text)


def table(num_columns, cell="a rather long text of words", num_rows=3):
    columns = {f"c{i}": Column(label=f"column {i}", unit="points" if i == 1 else "") for i in range(num_columns)}
    frame = pd.DataFrame({name: [f"{cell} {name} {row}" for row in range(num_rows)] for name in columns})
    return TableBlock(table=frame, caption="What it is.", columns=columns)


@pytest.mark.parametrize("num_columns", [1, 3, 6, 14])
@pytest.mark.parametrize("cell", ["short", "a rather long text of words " * 3, "oneverylongword" * 9])
def test_no_letter_is_cut_however_wide_the_table(num_columns, cell):
    block = table(num_columns, cell)
    text = told(block)
    assert "…" not in text
    for letters in ("".join(map(str, block.table.to_numpy().ravel())), "What it is."):
        assert Counter(words_of(letters)) <= Counter(text)


def test_cells_of_a_table_that_is_too_wide_stand_whole_one_line_each():
    block = table(14)
    lines = words_of(told(block))
    values = [str(value) for value in block.table.to_numpy().ravel()]
    assert [value for value in values if words_of(value) not in lines] == []
    assert words_of("column 1 (points): a rather") in lines


def told(*blocks):
    """A section of these blocks on the terminal."""
    return printed(Section(id="a", title="t", blocks=blocks))


def test_numbers_are_shown_with_their_units_and_as_elsewhere():
    columns = {"name": Column(label="name"), "value": Column(label="size", unit="weight units")}
    frame = pd.DataFrame({"name": ["a", "b", "c"], "value": [0.0123456, 0.0, float("nan")]})
    text = told(TableBlock(table=frame, caption="", columns=columns))
    assert words_of("size (weight units)") in words_of(text)
    assert re.search(r"a +0\.0123\n.*b +0\n.*c +undefined\n", text, re.S)


def test_a_long_table_says_how_many_lines_are_left_out():
    text = printed(Section(id="a", title="t", blocks=(table(1, num_rows=MOST_LINES + 7),)))
    assert "7 more lines" in text
    assert f"c0 {MOST_LINES}" not in text


def test_a_page_shows_its_tiles_answers_folds_and_notes_in_order():
    tiles = (
        Tile(title="words", value="2 %", lines=(("why", "decay"),)),
        Tile(title="rows", value="0 exactly", lines=(("how", "frozen"),)),
    )
    fold = FoldBlock(title="A fold", blocks=(TextBlock(text="inside"), NoteBlock(text="mind this")))
    sections = (Section(id="s", title="S", blocks=(fold,)),)
    text = printed(
        Page(title="A page", tiles=tiles, tiles_show="drift", answers=stated(["An answer."]), sections=sections)
    )
    parts = ("A page", "drift", "2 %", "why decay", "how frozen", "An answer.", "A fold", "inside", "mind this")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize("hostile", ["[bold]x[/bold]", "\x1b[31mred", "a\u202eb", "[/]"])
def test_texts_are_never_obeyed(hostile):
    block = TableBlock(
        table=pd.DataFrame({hostile: [hostile]}), caption=hostile, columns={hostile: Column(label=hostile)}
    )
    section = Section(id="s", title=hostile, lead=hostile, blocks=(block,))
    text = printed(Page(title=hostile, answers=stated([hostile]), sections=(section,)))
    assert not re.search("\x1b|\u202e", text)
    assert text.count(hostile.replace("\x1b", "U+001B").replace("\u202e", "U+202E")) == 7


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_table_that_just_fits_is_whole(over):
    words = [letter * width for letter, width in zip("abcd", (20 + over, 18, 18, 18), strict=True)]
    text = printed(
        Section(id="t", title="t", blocks=(TableBlock(table=pd.DataFrame([words], columns=list("pqrs")), caption=""),))
    )
    assert all(word in text for word in words)


def test_no_column_is_cut_where_words_leave_just_enough_room():
    """Rich gives every column its share of what is missing, and then widens some again: the last one was cut."""
    names = ["regime", "texts", "layer", "debiased CKA", "standardised columns", "RSA", "two seeds, debiased CKA"]
    frame = pd.DataFrame(
        [["full fine-tuning", "validation", "embeddings", *["1.000 (1.000 to 1.000)"] * 4]] * 2, columns=names
    )
    text = printed(Section(id="a", title="t", blocks=(TableBlock(table=frame, caption=""),)))
    assert all(word in text for name in names for word in name.split())
    assert text.count("to") == 8
