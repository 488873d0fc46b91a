"""Verdict lines in, the coordinates of their small drawings out: estimate, interval and margin on one scale."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.reporting.page.model import VerdictLine

WIDTH, PAD = 180.0, 8.0
_MOST_MEDIANS = 3.0
"""A scale reaches to this many times the median line, so that one very long line does not make the others dots."""


def draw_intervals(lines: Sequence[VerdictLine]) -> list[Mapping[str, Any] | None]:
    """For each line the coordinates in a box of 180 by 22; None for a line without a finite interval."""
    scales = {unit: _scale([line for line in lines if line.unit == unit]) for unit in {line.unit for line in lines}}
    return [_draw(line, scales[line.unit]) if _is_drawn(line) else None for line in lines]


def scale_text(lines: Sequence[VerdictLine]) -> str:
    """What the drawings reach from and to, where all lines have one unit; else nothing."""
    drawn = [line for line in lines if _is_drawn(line)]
    if not drawn or len({line.unit for line in drawn}) > 1:
        return ""
    low, high = _scale(drawn)
    return f"{low:.3g} to {high:.3g} {drawn[0].unit}".strip()


def _is_drawn(line: VerdictLine) -> bool:
    return math.isfinite(line.low) and math.isfinite(line.high)


def _scale(lines: Sequence[VerdictLine]) -> tuple[float, float]:
    drawn = [line for line in lines if _is_drawn(line)]
    if not drawn:
        return -1.0, 1.0
    reach = sorted(max(abs(line.low), abs(line.high), abs(line.null) + _margin(line)) for line in drawn)
    high = min(reach[-1], _MOST_MEDIANS * reach[len(reach) // 2]) or 1.0
    if drawn[0].unit == "points":  # what no score can differ by gets an arrow, unless a correlation did
        high = min(high, max(100.0, *(abs(line.estimate) for line in drawn)))
    is_signed = any(min(line.low, line.null - _margin(line)) < 0 for line in drawn)
    return (-high if is_signed else 0.0), high


def _margin(line: VerdictLine) -> float:
    return line.margin if math.isfinite(line.margin) else 0.0


def _draw(line: VerdictLine, scale: tuple[float, float]) -> Mapping[str, Any]:
    low, high = scale

    def at(value: float) -> float:
        return round(PAD + (WIDTH - 2 * PAD) * (min(max(value, low), high) - low) / (high - low), 1)

    margin = _margin(line)
    is_dotted = low <= line.estimate <= high
    arrows = [(at(low) - 4, -1)] if line.low < low else []
    arrows += [(at(high) + 4, 1)] if line.high > high else []
    return {
        "null": at(line.null),
        "band": (at(line.null - margin), round(at(line.null + margin) - at(line.null - margin), 1)) if margin else None,
        "low": at(line.low),
        "high": at(line.high),
        "dot": at(line.estimate) if is_dotted else None,
        "arrows": arrows,
    }
