"""The small drawings are to one scale, with 0 and the margin where they belong."""

from dataclasses import replace

import pytest

from toolkit.reporting.page.forest import PAD, WIDTH, draw_intervals, scale_text
from toolkit.reporting.page.model import VerdictLine

LINE = VerdictLine(claim="", verdict="supported", value="", estimate=1, low=-1, high=3, margin=2, unit="points")


def test_positions():
    drawn = draw_intervals([LINE])[0]
    assert drawn is not None
    inner = WIDTH - 2 * PAD
    assert drawn["null"] == WIDTH / 2
    assert drawn["high"] == WIDTH - PAD
    assert drawn["low"] == pytest.approx(PAD + inner / 3, abs=0.1)
    assert drawn["dot"] == pytest.approx(PAD + inner * 4 / 6, abs=0.1)
    assert drawn["band"] == (pytest.approx(PAD + inner / 6, abs=0.1), pytest.approx(inner * 4 / 6, abs=0.1))
    assert drawn["arrows"] == []
    assert scale_text([LINE]) == "-3 to 3 points"


def test_one_scale_per_unit_and_long_lines_get_arrows():
    lines = [
        LINE,
        LINE,
        LINE,
        replace(LINE, estimate=50, high=90),
        replace(LINE, unit="1", high=0.5, low=0.1, margin=0.2),
    ]
    drawn = draw_intervals(lines)
    assert drawn[0] == drawn[1]
    assert drawn[3] is not None
    assert [direction for _, direction in drawn[3]["arrows"]] == [1]
    assert drawn[3]["dot"] is None
    assert drawn[4] is not None
    assert drawn[4]["high"] == WIDTH - PAD
    assert scale_text(lines) == ""


def test_no_scale_of_points_passes_100():
    wide = replace(LINE, low=-130, high=140)
    assert scale_text([wide]) == "-100 to 100 points"
    (drawn,) = draw_intervals([wide])
    assert drawn is not None
    assert [direction for _, direction in drawn["arrows"]] == [-1, 1]
    assert scale_text([replace(wide, unit="%")]) == "-140 to 140 %"
    assert scale_text([replace(wide, estimate=120)]) == "-120 to 120 points"  # of correlations


def test_quantities_that_have_no_sign_begin_at_zero():
    drawn = draw_intervals([replace(LINE, low=1, margin=float("nan"))])[0]
    assert drawn is not None
    assert drawn["null"] == PAD
    assert drawn["band"] is None


def test_a_ratio_is_held_against_one():
    drawn = draw_intervals([replace(LINE, low=1, high=2, null=1, margin=float("nan"))])[0]
    assert drawn is not None
    assert drawn["null"] == drawn["low"] == WIDTH / 2


def test_without_an_interval_there_is_no_drawing():
    nothing = replace(LINE, low=float("nan"), high=float("nan"))
    assert draw_intervals([nothing, LINE])[0] is None
    assert scale_text([nothing]) == ""
    assert scale_text([]) == ""
    zero = replace(LINE, estimate=0, low=0, high=0, margin=float("nan"))
    assert draw_intervals([zero])[0] is not None
