"""The table of comparisons as a forest plot: each difference with the interval that decided, margin and verdict."""

import math
from typing import Any

import pandas as pd

from toolkit.reporting.charts import REFERENCE, Chart, data_of
from toolkit.reporting.comparison.selections import headline, largest_size, reach_points, task_names

VERDICTS = {
    "supported": ("#D55E00", "circle"),
    "equivalent": ("#009E73", "diamond"),
    "not supported": ("#0072B2", "square"),
    "under-powered": ("#767B84", "triangle-up"),
    "not judged": ("#767B84", "cross"),
    "not measurable here": ("#767B84", "triangle-down"),
}
"""A verdict is told by its shape as well as by its colour."""


def plot_differences(comparison: pd.DataFrame, *, width: int = 420) -> Chart | None:
    """A panel per pair, a line per task and split: the difference in points, the interval that decided, the margin.

    ``comparison`` is :func:`toolkit.compare`'s table; None where nothing in it was compared.
    """
    import altair

    table = largest_size(headline(comparison))
    table = table[table["difference_points"].notna()]
    if table.empty:
        return None
    shown = _lines(table)
    places = list(dict.fromkeys(shown["place"]))
    pairs = list(dict.fromkeys(shown["pair"]))
    verdicts = [name for name in VERDICTS if name in set(shown["verdict"])]
    reach = max(map(reach_points, table["score"]))
    low, high = max(shown["low"].min(), -reach), min(shown["high"].max(), reach)
    margin = float(shown["margin"].max())
    ends = [low, high, 0.0] + ([] if math.isnan(margin) else [-1.3 * margin, 1.3 * margin])
    scale = altair.Scale(domain=[min(ends), max(ends)], nice=True, clamp=True)
    x = altair.X("difference:Q", scale=scale, title="difference (points)")
    y = altair.Y("place:N", sort=places, title=None, axis=altair.Axis(domain=False, ticks=False))
    names = altair.Scale(domain=verdicts, range=[VERDICTS[name][0] for name in verdicts])
    shapes = altair.Scale(domain=verdicts, range=[VERDICTS[name][1] for name in verdicts])
    colour = altair.Color("verdict:N", scale=names, title="Verdict")
    tips = [
        altair.Tooltip(f"{name}:N" if kind == "N" else f"{name}:Q", title=title, format="" if kind == "N" else "+.2f")
        for name, title, kind in (
            ("pair", "difference", "N"),
            ("place", "task and split", "N"),
            ("difference", "points", "Q"),
            ("interval", "interval", "N"),
            ("verdict", "verdict", "N"),
            ("over", "seeds", "N"),
        )
    ]
    once = altair.Chart(altair.Data(values=[{}]))
    behind = [once.mark_rule(color=REFERENCE).encode(x=altair.datum(0, scale=scale))]
    if not math.isnan(margin):
        band = once.mark_rect(color=REFERENCE, opacity=0.16)
        behind = [band.encode(x=altair.datum(-margin, scale=scale), x2=altair.datum(margin)), *behind]
    panels = []
    for pair in pairs:
        base = altair.Chart(data_of(shown[shown["pair"] == pair])).encode(y=y, tooltip=tips)
        front = [
            base.mark_rule(strokeWidth=2.2).encode(
                x=altair.X("low:Q", scale=scale, title=x["title"]), x2="high:Q", color=colour
            ),
            base.mark_point(filled=True, size=75, opacity=1).encode(
                x=x, color=colour, shape=altair.Shape("verdict:N", scale=shapes, title="Verdict")
            ),
        ]
        panel = altair.layer(*behind, *front).properties(width=width, height=max(24 * len(places), 60))
        panels.append(panel if len(pairs) == 1 else panel.properties(title=pair))
    return panels[0] if len(panels) == 1 else altair.vconcat(*panels).resolve_legend(color="shared", shape="shared")


def _lines(table: pd.DataFrame) -> pd.DataFrame:
    """What is drawn of each comparison: with the interval of its verdict, 90 % for equivalent and else 95 %."""
    lines: list[dict[str, Any]] = []
    tasks = task_names(table)
    has_many = tasks.nunique() > 1
    for task, line in zip(tasks, table.to_dict("records"), strict=True):
        is_equivalent = line.get("verdict") == "equivalent"
        low, high = (
            (line["low90_points"], line["high90_points"])
            if is_equivalent
            else (line["low_points"], line["high_points"])
        )
        lines.append(
            {
                "pair": f"{line['first_base']} minus {line['second_base']}",
                "place": f"{task}: {line['split']}" if has_many else str(line["split"]),
                "difference": line["difference_points"],
                "low": low,
                "high": high,
                "interval": f"{low:+.2f} to {high:+.2f} ({90 if is_equivalent else 95} %)" if low == low else "none",
                "margin": line["margin_points"],
                "verdict": str(line.get("verdict") or "not supported"),
                "over": "one seed: items only" if line["num_seeds"] == 1 else f"{line['num_seeds']:.0f} seeds",
            }
        )
    return pd.DataFrame(lines)
