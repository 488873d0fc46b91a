"""The table of comparisons as a forest plot: each difference with the interval that decided, margin and verdict."""

import math
from typing import Any

import pandas as pd

from toolkit.comparison.summaries import check_table
from toolkit.reporting.charts import REFERENCE, Chart, data_of, panels, tips, wrap
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
SAID = {
    "supported": "the scores differ",
    "equivalent": "no difference beyond the margin",
    "not supported": "undecided",
    "under-powered": "undecided: too few data",
}
"""Verdict to what the legend says."""


def plot_differences(comparison: pd.DataFrame, *, width: int = 420) -> Chart | None:
    """A panel per pair, a line per task and split: the difference in points, the interval that decided, the margin.

    ``comparison`` is :func:`toolkit.compare`'s table. The interval is of 90 % for ``equivalent`` and else of 95 %,
    dotted where it is over items alone, from one seed; it ends where differences of this score end. ``width``: of a
    panel, in pixels, while there are few. None where nothing was compared. ValueError for another table.
    """
    import altair

    check_table(comparison, ("first", "second", "is_headline", "difference_points", "low_points"), "compare")
    table = largest_size(headline(comparison))
    table = table[table["difference_points"].notna()]
    if table.empty:
        return None
    shown = _lines(table)
    places = list(dict.fromkeys(shown["place"]))
    names_of = dict(zip(shown["pair"], zip(shown["one"], shown["other"], strict=True), strict=True))
    pairs = list(names_of)
    verdicts = [name for name in VERDICTS if name in set(shown["verdict"])]
    reach = max(map(reach_points, table["score"]))
    low, high = max(shown["low"].min(), -reach), min(shown["high"].max(), reach)
    margin = float(shown["margin"].max())
    ends = [low, high, 0.0] + ([] if math.isnan(margin) else [-1.3 * margin, 1.3 * margin])
    scale = altair.Scale(domain=[min(ends), max(ends)], nice=True, clamp=True)
    x = altair.X("difference:Q", scale=scale, title="difference (points)", axis=altair.Axis(tickCount=6))
    names = altair.Scale(domain=verdicts, range=[VERDICTS[name][0] for name in verdicts])
    shapes = altair.Scale(domain=verdicts, range=[VERDICTS[name][1] for name in verdicts])
    words = " : ".join(f"datum.label == '{name}' ? '{text}'" for name, text in SAID.items())
    legend = altair.Legend(title=None, labelExpr=f"{words} : datum.label")
    colour = altair.Color("verdict:N", scale=names, legend=legend)
    said = tips(
        pair="difference",
        place="task and split",
        difference=("points", "+.2f"),
        interval="interval",
        verdict="verdict",
        over="seeds",
    )
    once = altair.Chart(altair.Data(values=[{}]))
    behind = [once.mark_rule(color=REFERENCE).encode(x=altair.datum(0, scale=scale))]
    if not math.isnan(margin):
        band = once.mark_rect(color=REFERENCE, fillOpacity=0.16)
        behind = [band.encode(x=altair.datum(-margin, scale=scale), x2=altair.datum(margin)), *behind]
    columns = 2 if len(pairs) > 2 or (len(pairs) > 1 and len(places) > 6) else 1
    step = 24 if len(places) <= 8 else 17
    sizes = {"width": width if columns == 1 else 245, "height": max(step * len(places), 50)}
    parts = []
    for i, pair in enumerate(pairs):
        axis = altair.Axis(domain=False, ticks=False, labels=not i % columns, labelLimit=170)
        y = altair.Y("place:N", sort=places, scale=altair.Scale(domain=places), title=None, axis=axis)
        base = altair.Chart(data_of(shown[shown["pair"] == pair])).encode(y=y, tooltip=said)
        spans = base.mark_rule(strokeWidth=2.2).encode(
            x=altair.X("low:Q", scale=scale, title=x["title"], axis=x["axis"]), x2="high:Q", color=colour
        )
        front = [
            spans.transform_filter("datum.num_seeds > 1"),
            spans.transform_filter("datum.num_seeds == 1").mark_rule(strokeWidth=2.2, strokeDash=[2, 2]),
            base.mark_point(filled=True, size=75).encode(
                x=x, color=colour, shape=altair.Shape("verdict:N", scale=shapes, title="Verdict")
            ),
        ]
        panel = altair.layer(*behind, *front).properties(**sizes)
        first, second = names_of[pair]
        title = [*wrap(first, 38), *wrap(f"minus {second}", 38)] if columns > 1 else wrap(pair, 64)
        parts.append(panel if len(pairs) == 1 else panel.properties(title=title))
    return panels(parts, columns)


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
        one, other = (str(line.get(f"{side}_base") or line[side]) for side in ("first", "second"))
        lines.append(
            {
                "one": one,
                "other": other,
                "pair": f"{one} minus {other}",
                "place": f"{task}: {line['split']}" if has_many else str(line["split"]),
                "difference": line["difference_points"],
                "low": low,
                "high": high,
                "interval": f"{low:+.2f} to {high:+.2f} ({90 if is_equivalent else 95} %)" if low == low else "none",
                "margin": line["margin_points"],
                "verdict": str(line.get("verdict") or "not supported"),
                "num_seeds": int(line["num_seeds"]),
                "over": "one seed: items only" if line["num_seeds"] == 1 else f"{line['num_seeds']:.0f} seeds",
            }
        )
    return pd.DataFrame(lines)
