"""What is encoded comes back: whole numbers exactly, sizes to four digits, undefined as undefined; text as text."""

import base64
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.reporting.page.pages import HOSTILE, make_words
from toolkit.reporting.page.encode import encode_run, script_json


def decode(array: dict) -> np.ndarray:
    """The reader's half, as page_words.js has it."""
    data = base64.b64decode(array["data"])
    if array["kind"] in ("uint16", "uint32"):
        return np.frombuffer(data, f"<{array['kind'][0]}{int(array['kind'][4:]) // 8}").astype(np.int64)
    codes = np.frombuffer(data, "<u2").astype(np.float64)
    span = array["high"] - array["low"]
    if array["kind"] == "even":
        values = array["low"] + codes / 65534 * span
    else:
        values = np.where(codes == 0, 0, np.exp(array["low"] + (codes - 1) / 65533 * span))
    return np.where(codes == 65535, np.nan, values)


def read(run) -> dict:
    return json.loads(encode_run(run))


def test_a_run_comes_back():
    run = make_words(80)
    data = read(run)
    for name in ("words", "rows", "num_steps", "num_tokens"):
        np.testing.assert_array_equal(decode(data["arrays"][name]), getattr(run, name))
    for name in ("before", "after"):
        np.testing.assert_array_equal(decode(data["arrays"][name]) - 1, getattr(run, name).ravel())
        cosines = getattr(run, f"{name}_similarity").ravel()
        np.testing.assert_allclose(decode(data["arrays"][f"{name}_similarity"]), cosines, atol=1e-5)
    for name in ("norm", "angle_degrees", "norm_before"):
        np.testing.assert_allclose(decode(data["arrays"][name]), getattr(run, name).ravel(), rtol=2e-4)
    assert decode(data["arrays"]["norm"])[0] == 0  # exactly: a word that did not move
    drawn, kept = run.maps[0], data["maps"][0]
    start, moves = decode(kept["start"]).reshape(-1, 2), decode(kept["moves"]).reshape(3, -1, 2)
    np.testing.assert_allclose(start, drawn.coordinates[0], atol=1e-4)
    np.testing.assert_allclose(moves, drawn.coordinates[1:] - drawn.coordinates[0], atol=1e-5)
    assert (moves[:, 0] == 0).all()  # exactly: on the map, too, it must not move


@given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 3), st.integers(1, 20)),
        elements=st.one_of(st.just(0.0), st.floats(1e-9, 1e3)),
    )
)
def test_sizes_keep_four_digits_and_zero_stays_zero(norm: np.ndarray):
    back = decode(read(make_words(norm.shape[1], norm.shape[0], norm=norm))["arrays"]["norm"]).reshape(norm.shape)
    np.testing.assert_allclose(back, norm, rtol=3e-4)
    assert ((back == 0) == (norm == 0)).all()


def test_undefined_and_unknown():
    run = make_words(9, num_steps=None, angle_degrees=np.full((3, 9), np.nan), before=np.full((9, 5), -1))
    data = read(run)
    assert data["arrays"]["num_steps"] is None
    assert np.isnan(decode(data["arrays"]["angle_degrees"])).all()
    assert (decode(data["arrays"]["before"]) == 0).all()


def test_rows_above_65535_are_kept():
    rows = np.array([0, 65_535, 65_536, 250_001])
    np.testing.assert_array_equal(decode(read(make_words(4, rows=rows))["arrays"]["rows"]), rows)


@given(st.text())
def test_no_text_can_end_a_script(text: str):
    shown = script_json([text, {"a": text}])
    assert not set(shown) & set("<>&\u2028\u2029")
    assert json.loads(shown) == [text, {"a": text}]


def test_hostile_texts_and_nan():
    for text in HOSTILE:
        assert json.loads(script_json(text)) == text
    assert json.loads(script_json([float("nan"), (float("inf"), 1.5)])) == [None, [None, 1.5]]
