"""Verdict lines in, what the template shows of them out: groups, signs, drawings and counts."""

import re
from collections.abc import Sequence
from typing import Any

from toolkit.reporting.page.forest import draw_intervals
from toolkit.reporting.page.model import VerdictLine

ICONS = {
    "supported": "M2 6.5l2.7 2.8L10 3",
    "equivalent": "M2 4.6c1.5-1.6 2.7-1.2 4 0s2.5 1.6 4 0M2 8.4c1.5-1.6 2.7-1.2 4 0s2.5 1.6 4 0",
    "not supported": "M3 3l6 6M9 3l-6 6",
    "under-powered": "M2 10V8M6 10V5.5M10 10V2.5",
    "not judged": "M4 2.5v7M8 2.5v7",
    "not identifiable": "M4 4.2a2 2 0 1 1 2.6 1.9c-.5.2-.6.5-.6 1.1M6 9.8v.1",
    "not measurable here": "M2.5 9.5l7-7M6 2.2a3.8 3.8 0 1 1 0 7.6 3.8 3.8 0 0 1 0-7.6",
    "not recorded": "M3 2.5h6v7H3z",
    "not applicable": "M2.5 6h7",
}
"""Verdict to the path of its sign, in a box of 12 by 12; a word stands beside it always."""
VERDICT_RULES = (
    "Not applicable: the claim has no meaning here. Not recorded: what it needs was not kept. Not measurable here: a "
    "measure that these data do not allow. Not identifiable: no data could tell. Not judged: under three seeds, or "
    "drift beside sign noise, which is described because it alone does not show that anything was learned. Equivalent: "
    "the 90 % interval lies within the margin, even if it excludes 0. Supported: the interval excludes 0 and the null, "
    "and q is below the report's level. Under-powered: the smallest detectable gap is above the margin. Not supported: "
    "none of these."
)
VERDICT_HOW = (
    f"The first rule that holds. {VERDICT_RULES} Of many claims some have an interval beside 0 by chance: q bounds "
    "the share of those among the claims of one kind that have no greater q."
)
DRAWING_HOW = (
    "Dot: estimate. Line: the interval that decided, 90 % for equivalent, else 95 %. Upright: what it is held against "
    "(0, for a ratio 1). Shaded: the margin within which a difference would not matter. An arrow: the line goes on."
)
_MOST_OPEN = 40
"""With more verdicts than this only the first group of them starts open."""


def group_verdicts(verdicts: Sequence[VerdictLine]) -> list[dict[str, Any]]:
    """Lines that follow one another under one title, each with its drawing."""
    drawings = draw_intervals(verdicts)
    groups: list[dict[str, Any]] = []
    for line, drawing in zip(verdicts, drawings, strict=True):
        if not groups or groups[-1]["title"] != line.group:
            is_open = not groups or len(verdicts) <= _MOST_OPEN or not line.group
            groups.append({"title": line.group, "lines": [], "is_open": is_open})
        groups[-1]["lines"].append(
            {
                "claim": line.claim,
                "verdict": _verdict(line.verdict),
                "value": line.value,
                "interval": line.interval,
                "detail": line.detail,
                "drawing": drawing,
            }
        )
    return groups


def _verdict(name: str) -> dict[str, str]:
    slug = re.sub(r"[^a-z]+", "-", name.lower()).strip("-")
    return {"name": name, "slug": slug, "icon": ICONS.get(name, "M6 6v.1")}


def count_verdicts(verdicts: Sequence[VerdictLine]) -> list[tuple[dict[str, str], int]]:
    """Each verdict that occurs, and how often; others than the known ones come last."""
    names = [line.verdict for line in verdicts]
    order = [*(name for name in ICONS if name in names), *dict.fromkeys(name for name in names if name not in ICONS)]
    return [(_verdict(name), names.count(name)) for name in order]
