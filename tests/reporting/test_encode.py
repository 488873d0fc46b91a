"""JSON that ends no script, whatever is in it; undefined is null; what cannot be seen is shown."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.reporting.pages import HOSTILE
from toolkit.naming import visible
from toolkit.reporting.render_html import script_json


@given(st.text())
def test_no_text_can_end_a_script(text: str):
    shown = script_json([text, {"a": text}])
    assert not set(shown) & set("<>&\u2028\u2029")
    assert json.loads(shown) == [text, {"a": text}]


def test_hostile_texts_and_nan():
    for text in HOSTILE:
        assert json.loads(script_json(text)) == text
    assert json.loads(script_json([float("nan"), (float("inf"), 1.5)])) == [None, [None, 1.5]]


def test_invisible_characters_are_shown():
    assert visible("a\u202eb\x00\ud800\u2028") == "aU+202EbU+0000U+D800U+2028"
    assert visible("naïve 词 🙂") == "naïve 词 🙂"
