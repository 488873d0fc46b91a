"""The table of last scores in, the chart of what they cost out."""

from collections.abc import Iterable

import pandas as pd

from toolkit.comparison.summaries import check_table
from toolkit.reporting.charts import Chart, data_of, log_axis, look_of, ordered, padded, panels, pick, regimes_of, tips
from toolkit.reporting.comparison.selections import largest_size, task_names
from toolkit.reporting.topics.scores import LAST, title_of


def plot_cost(scores: pd.DataFrame, *, regimes: Iterable[str] | None = None) -> Chart | None:
    """The score on the reported split by the seconds that a run took: a panel per task, a mark per run.

    ``scores`` is :func:`toolkit.last_scores`' table; of several sizes the largest is shown. ``regimes``: their order,
    which gives the colours. None where fewer than two runs recorded seconds. ValueError for another table.
    """
    import altair

    check_table(scores, (*LAST, "run", "seconds"), "last_scores")
    table = largest_size(scores[scores["is_reported_split"].astype(bool) & (scores["seconds"] > 0)])
    table = table[table["value"].notna()]
    if len(table) < 2:
        return None
    table = table.assign(panel=task_names(table), regime=regimes_of(table))
    names = ordered(table["regime"], regimes)
    shown = [name for name in names if name in set(table["regime"])]
    picker = pick("regime", shown) if len(shown) > 1 else None
    look = look_of(names, shown, picker)
    tasks = list(dict.fromkeys(table["panel"]))
    columns = min(len(tasks), 3)
    parts = []
    for task in tasks:
        own = table[table["panel"] == task]
        score = str(own["score"].iloc[0])
        axis = log_axis(own["seconds"])
        scale = altair.Scale(type="log", domain=[axis.low, axis.high], nice=False)
        panel = (
            altair.Chart(data_of(own, ["regime", "run", "seed", "seconds", "value"]))
            .mark_point()
            .encode(
                x=altair.X("seconds:Q", scale=scale, title="seconds of a run", axis=axis.axis(grid=False)),
                y=altair.Y(
                    "value:Q",
                    scale=padded(own["value"]),
                    title=title_of(score),
                    axis=altair.Axis(tickCount=5, format="~g"),
                ),
                tooltip=tips(regime="regime", seed="seed", value=(score, ".4f"), seconds=("seconds", ",.4r")),
                **look["points"],
            )
            .properties(width=440 if columns == 1 else 570 // columns - 30, height=150)
        )
        parts.append(panel if len(tasks) == 1 else panel.properties(title=str(task)))
    return panels(parts, columns, picker)
