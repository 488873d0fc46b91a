"""What moved: charts, and the sections on parameters, words, positions, segments and tokens of each group."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.drift import ALL_ROWS, after_start
from toolkit.comparison.conditions import Condition, Group
from toolkit.comparison.measure import boxes_of
from toolkit.comparison.report_data import GroupTables, order_of, ordered_strata
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.reporting.cells import listing, mean_and_sd, span, stratum_text
from toolkit.reporting.charts import (
    REFERENCE,
    UNDEFINED,
    Chart,
    Charts,
    LogAxis,
    along,
    altair,
    data_of,
    draw,
    in_time,
    log_axis,
    once,
    outline,
    over_seeds,
    panels,
    percent_bars,
    picked,
    regimes_of,
    thickness,
    tips,
)
from toolkit.reporting.page import Block, Section, TextBlock, chart_blocks, folds, rows_block
from toolkit.reporting.topics.scores import epochs_chart

PANEL_HEIGHT = 130
"""Pixels of one panel of several."""
LONE_PANEL_HEIGHT = 190
MOST_NAMED_CHECKPOINTS = 6
"""Checkpoints after the first that are named on the axis; more have numbers."""
MOVED_BY = "moved by, in % of its norm"
MOVED_UNITS = "moved by, in weight units"
BOXES_WIDTH = 390
"""Pixels of the chart of word rows, without the numbers beside it."""


def drift_chart(
    drift: pd.DataFrame, *, regimes: Iterable[str] | None = None, names: Mapping[float, str] | None = None
) -> Chart | None:
    """Drift of each whole embedding parameter after each epoch, in % of its norm, from measure_drift's table.

    One chart with a line per parameter; where something moved under several regimes a panel per parameter, with a line
    per regime and, dotted, the same number for a re-initialised parameter. Regimes under which nothing moved are not
    drawn; None where nothing moved. ``names``: epoch to the name of its checkpoint.
    """
    whole_drift = whole_parameters_drift(drift)
    moved_regimes = whole_drift.loc[whole_drift["norm"] > 0, "regime"].unique()
    if not len(moved_regimes):
        return None
    whole_drift = whole_drift[whole_drift["regime"].isin(moved_regimes)]
    parameters = [name for name in EMBEDDING_PARAMETERS if name in set(whole_drift["parameter"])]
    is_one_panel = len(moved_regimes) == 1
    if is_one_panel and whole_drift["epoch"].nunique() == 1:
        means = over_seeds(whole_drift, ["parameter"], "percent").set_index("parameter")
        return percent_bars(means.reindex(parameters).reset_index(), "parameter", "mean", MOVED_BY)
    if is_one_panel:
        # The series are the parameters, each of which would have a re-initialised line of its own.
        whole_drift = whole_drift.assign(regime=whole_drift["parameter"], reinitialised=np.nan)
        series, picker, look = picked(parameters, parameters, label="parameter")
        titles, columns = [""], 1
        width, height = 560, LONE_PANEL_HEIGHT
    else:
        series, picker, look = picked(whole_drift["regime"], regimes)
        titles, columns = parameters, min(len(parameters), 3)
        width, height = (625 - 24 * (columns - 1)) // columns, PANEL_HEIGHT
    whole_drift, time = in_time(whole_drift)
    if names and len(names) <= MOST_NAMED_CHECKPOINTS + 1:
        whole_drift = whole_drift.assign(time=whole_drift["epoch"].map(names))
        time = altair.X("time:N", sort=None, title="checkpoint", axis=altair.Axis(labelAngle=0, labelLimit=150))
    series_with_zeros = [name for name in series if (whole_drift.loc[whole_drift["regime"] == name, "norm"] == 0).any()]
    above_yardstick = 2.2 * whole_drift["reinitialised"].max()  # room for its name
    axis = log_axis([*whole_drift["percent"], above_yardstick], len(series_with_zeros), height)
    drift_of_panels = (
        [whole_drift] if is_one_panel else [whole_drift[whole_drift["parameter"] == name] for name in parameters]
    )
    charts = [
        _panel(
            drift_of_panel,
            axis,
            series_with_zeros,
            time,
            look,
            series,
            is_first=not i % columns,
            width=width,
            height=height,
        )
        for i, drift_of_panel in enumerate(drift_of_panels)
    ]
    return panels(charts, columns, picker, titles)


def whole_parameters_drift(drift: pd.DataFrame) -> pd.DataFrame:
    """A record per run, parameter and epoch after its first, of the drift of whole parameters.

    Columns regime, run, parameter, epoch; norm (‖Δ‖), relative (‖Δ‖ / ‖E⁰‖), percent (100 times that, 0 where nothing
    moved) and reinitialised (percent, of a re-initialised parameter).
    """
    whole = after_start(drift[drift["stratum"] == "whole parameter"])
    whole = whole.assign(regime=regimes_of(whole), run=whole.get("run", ""))
    keys = ["regime", "run", "parameter", "epoch"]
    columns = {
        name: whole[(whole["measure"] == measure) & (whole["statistic"] == statistic)].set_index(keys)["value"]
        for name, measure, statistic in (
            ("norm", "norm", "value"),
            ("relative", "relative", "value"),
            ("reinitialised", "relative", "reinitialised"),
        )
    }
    table = pd.DataFrame(columns).reindex(columns["relative"].index).reset_index()
    table["rank"] = table["parameter"].map(EMBEDDING_PARAMETERS.index)
    table = table.sort_values(["epoch", "rank"], kind="stable").drop(columns="rank").reset_index(drop=True)
    percent = (100 * table["relative"]).mask(table["norm"] == 0, 0.0)
    return table.assign(percent=percent, reinitialised=100 * table["reinitialised"])


def _panel(
    drift: pd.DataFrame,
    axis: LogAxis,
    series_with_zeros: Sequence[str],
    time: Any,
    look: dict[str, Any],
    series: Sequence[str],
    *,
    is_first: bool,
    **properties: Any,
) -> Chart:
    """One panel of the drift chart: a line per series, exact zeros on the floor, dotted a re-initialised one."""
    by = ["regime", "epoch", "time"]
    marks = over_seeds(drift, by, "percent")
    is_zero = marks["high"] == 0
    floors = marks["regime"].map(dict(zip(series_with_zeros, axis.floors, strict=True)))
    # What is exactly 0 has no place on a logarithmic axis: it stands on the floor of its series.
    marks = marks.assign(place=marks["mean"].mask(is_zero, floors), is_zero=is_zero)
    marks["spread"] = marks["spread"].mask(is_zero, "exactly 0")
    title: str | list[str] | None = None
    if is_first:
        is_low = properties["height"] < LONE_PANEL_HEIGHT  # a low panel has its title in two lines
        title = MOVED_BY.split(" in ", 1) if is_low else MOVED_BY
    y = altair.Y("place:Q", scale=axis.scale(), axis=axis.axis(labels=is_first), title=title)
    tip_fields = tips(regime="line", epoch=("epoch", "~g"), mean=(MOVED_BY, ".4g"), spread="over seeds")
    base = altair.Chart().encode(x=time, tooltip=tip_fields)
    layers = [axis.band(labels=is_first)] if series_with_zeros else []
    yardsticks = drift["reinitialised"].dropna().round(2).drop_duplicates()
    if len(yardsticks):
        layers += _yardstick_layers(yardsticks, y)
    moved = base.transform_filter("!datum.is_zero")
    several = moved.transform_filter("datum.num_seeds > 1 && datum.low > 0")
    layers += [
        moved.mark_line().encode(y=y, strokeWidth=thickness("regime", series), **look["bars"]),
        several.mark_rule().encode(y=along(y, "low"), y2=altair.Y2("high:Q"), **look["bars"]),
        base.mark_point().encode(y=y, **look["points"]),
    ]
    undefined = drift[(drift["norm"] > 0) & drift["percent"].isna()]
    if len(undefined):
        names = ", ".join(dict.fromkeys(undefined["regime"]))
        undefined_text = once().mark_text(text=[names, UNDEFINED], fontSize=10)
        layers.append(undefined_text.encode(x=altair.value(100), y=altair.value(properties["height"] / 3)))
    return altair.layer(*layers, data=data_of(marks), **properties)


def _yardstick_layers(percents: "pd.Series[float]", y: Any) -> list[Chart]:
    """A dotted line where each re-initialised parameter would be, and its name."""
    level = altair.Chart(data_of(pd.DataFrame({"place": percents}))).encode(y=y)
    line = level.mark_rule(color=REFERENCE, strokeDash=[2, 2])
    label = level.mark_text(align="right", baseline="bottom", dx=-2, dy=-1, fontSize=10, text="re-initialised")
    return [
        line.encode(tooltip=tips(place=("re-initialised (%)", ".4g"))),
        label.encode(x=altair.value("width")),
    ]


def word_drift_chart(rows: pd.DataFrame, *, regimes: Iterable[str] | None = None) -> Chart | None:
    """The chart of :func:`toolkit.plot_word_drift` from its table; None where no row moved."""
    sizes, title = sizes_of(rows)
    rows = rows.assign(norm=sizes, regime=regimes_of(rows))
    boxes, dots = _boxes_and_dots(rows)
    moved_regimes = set(boxes.loc[boxes["num_moved"] > 0, "regime"])
    if not moved_regimes:
        return None
    boxes = boxes[boxes["regime"].isin(moved_regimes)]
    strata = list(map(stratum_text, ordered_strata(boxes["stratum"].astype(str))))
    boxes = _with_texts(boxes.assign(stratum=boxes["stratum"].astype(str).map(stratum_text)))
    dots = dots.assign(stratum=dots["stratum"].astype(str).map(stratum_text))
    axis = log_axis([boxes["low"].min(), boxes["high"].max(), *dots["norm"]])
    x = altair.X("low:Q", scale=axis.scale(), axis=axis.axis(), title=title)
    y = altair.Y("stratum:N", sort=strata, title=None, axis=altair.Axis(domain=False, ticks=False))
    drawn_regimes, picker, look = picked(boxes["regime"], regimes)
    offset = altair.YOffset("regime:N", sort=drawn_regimes, scale=altair.Scale(domain=drawn_regimes))
    tip_fields = tips(
        regime="regime",
        stratum="rows",
        num_rows=("number of rows", ","),
        median=(f"median: {title}", ".3g"),
        quartiles="middle half",
        range="5 to 95 %",
        zeros="exactly 0",
    )
    base = altair.Chart().encode(y=y, yOffset=offset, tooltip=tip_fields)
    box_height = 10 if len(drawn_regimes) < 4 else 6
    hue = outline(look["bars"]["color"])
    box = base.mark_bar(height=box_height, fillOpacity=0.35, strokeWidth=1)
    layers = [
        base.mark_rule(strokeWidth=1.6).encode(x=x, x2=altair.X2("high:Q"), **look["bars"]),
        box.encode(x=along(x, "q1"), x2=altair.X2("q3:Q"), stroke=hue, **look["bars"]),
        base.mark_tick(thickness=2.5, size=box_height + 3).encode(x=along(x, "median"), **look["bars"]),
    ]
    layers += [*_number_column(base, "rows", "rows", 55), *_number_column(base, "zeros", "exactly 0", 120)]
    if len(dots):
        points = altair.Chart(data_of(dots)).mark_point(size=22).encode(y=y, yOffset=offset, **look["points"])
        layers.append(points.encode(x=along(x, "norm"), tooltip=tips(norm=(title, ".3g"), stratum="rows")))
    stratum_height = max((box_height + 4) * len(drawn_regimes) + 4, 20)
    chart = altair.layer(*layers, data=data_of(boxes), width=BOXES_WIDTH, height=stratum_height * len(strata))
    return panels([chart], picker=picker)


def _number_column(base: Chart, column: str, title: str, pixels: int) -> list[Chart]:
    """The texts of a column beside the boxes, ``pixels`` to the right of these, and their heading."""
    right_end = altair.value("width")  # whichever a user gives it
    texts = base.mark_text(align="right", dx=pixels, fontSize=10)
    heading = once().mark_text(align="right", baseline="bottom", dx=pixels, fontSize=10, text=title)
    return [
        texts.encode(x=right_end, text=altair.Text(f"{column}:N")),
        heading.encode(x=right_end, y=altair.value(-3)),
    ]


def _boxes_and_dots(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of :func:`boxes_of` of each regime, one below the other: quartiles, and rows drawn one by one."""
    tables = {regime: boxes_of(rows_of_regime) for regime, rows_of_regime in rows.groupby("regime", sort=False)}
    boxes = pd.concat([table.assign(condition=regime) for regime, (table, _) in tables.items()], ignore_index=True)
    dots = pd.concat([table.assign(condition=regime) for regime, (_, table) in tables.items()], ignore_index=True)
    if dots.empty:
        dots = pd.DataFrame(columns=["condition", "stratum", "norm"])
    return boxes.assign(regime=regimes_of(boxes)), dots.assign(regime=regimes_of(dots))


def _with_texts(boxes: pd.DataFrame) -> pd.DataFrame:
    """The boxes with the texts that are read of them."""
    records = boxes.to_dict("records")
    return boxes[["regime", "stratum", "num_rows", "low", "q1", "median", "q3", "high"]].assign(
        zeros=[_share(record["num_rows"] - record["num_moved"], record["num_rows"]) for record in records],
        rows=[f"{record['num_rows']:,}" for record in records],
        quartiles=[_span(record["q1"], record["q3"]) for record in records],
        range=[_span(record["low"], record["high"]) for record in records],
    )


def _span(low: float, high: float) -> str | None:
    return f"{low:.3g} to {high:.3g}" if low == low else None


def _share(part: int, total: int) -> str:
    """A percentage that reads 0 or 100 only when it is exactly that."""
    percent = 100 * part / total
    if 0 < percent < 0.1 or 99.9 < percent < 100:
        return "<0.1 %" if percent < 50 else ">99.9 %"
    return f"{percent:.0f} %" if percent in (0, 100) else f"{percent:.1f} %"


def position_chart(rows: pd.DataFrame, *, regimes: Iterable[str] | None = None, is_zoomed: bool = True) -> Chart | None:
    """The chart of :func:`toolkit.plot_position_drift` from its table; None where no row moved.

    ``is_zoomed``: where most positions lie beyond the longest text, a first panel shows those that do not.
    """
    if rows.empty or not (rows["norm"] > 0).any():
        return None
    percent, title = sizes_of(rows)
    rows = rows.assign(regime=regimes_of(rows), position=rows.get("position", rows["row"]), percent=percent)
    series, picker, look = picked(rows["regime"], regimes)
    series_with_zeros = [name for name in series if (rows.loc[rows["regime"] == name, "norm"] == 0).any()]
    axis = log_axis(rows["percent"], len(series_with_zeros), PANEL_HEIGHT + 20)
    used = rows.loc[pd.to_numeric(rows["num_steps"]).fillna(0) > 0, "position"]
    longest = int(used.max()) + 1 if len(used) else None  # tokens of the longest text; None: not known
    last = int(rows["position"].max())
    ends = [longest * 1.25, last] if is_zoomed and longest and longest * 2 < last else [last]
    moved = rows.loc[rows["percent"] > 0, ["regime", "position", "percent"]]
    still = _stretches(rows, dict(zip(series_with_zeros, axis.floors, strict=True)))
    charts = []
    for i, end in enumerate(ends):
        scale = altair.Scale(domain=[0, end], nice=False, padding=4)
        x = altair.X("position:Q", scale=scale, title="position", axis=altair.Axis(grid=False, tickCount=5))
        y = altair.Y(
            "percent:Q",
            scale=axis.scale(),
            title=None if i else title,
            axis=axis.axis(labels=not i),
        )
        base = altair.Chart().encode(
            x=x, y=y, tooltip=tips(regime="regime", position=("position", "d"), percent=(title, ".3g"))
        )
        layers = [axis.band(labels=not i)] if series_with_zeros else []
        if longest:
            rule = once().mark_rule(color=REFERENCE, strokeDash=[2, 2])
            layers.append(rule.encode(x=altair.datum(longest - 0.5, scale=scale)))
        stride = 1 if end < 200 else 16  # shapes tell regimes apart, and hovering needs something to hit
        marked = base.transform_filter(f"datum.position % {stride} == 0")
        layers += [
            base.mark_line(strokeWidth=1.4).encode(**look["bars"]),
            marked.mark_point(size=14, filled=True).encode(**look["points"]),
        ]
        if len(still):
            flat = still[still["first"] <= end].assign(last=still["last"].clip(upper=end))
            bar = altair.Chart(data_of(flat)).mark_rule(strokeWidth=4, strokeCap="round")
            tip_fields = tips(regime="regime", stretch="positions that are exactly 0")
            on_floor = {"x": along(x, "first"), "x2": altair.X2("last:Q"), "y": along(y, "place")}
            layers.append(bar.encode(tooltip=tip_fields, **on_floor, **look["bars"]))
        size = {"width": 590 if len(ends) == 1 else 295, "height": PANEL_HEIGHT + 20}
        charts.append(altair.layer(*layers, data=data_of(moved[moved["position"] <= end]), **size))
    return panels(charts, 2, picker)


def sizes_of(rows: pd.DataFrame) -> "tuple[pd.Series[float], str]":
    """How far each row moved, in % where that is defined of all, and what an axis calls it."""
    if "relative" not in rows or has_undefined(rows):
        return rows["norm"], MOVED_UNITS
    return (100 * rows["relative"].astype(float)).mask(rows["norm"] == 0, 0.0), MOVED_BY


def has_undefined(rows: pd.DataFrame) -> bool:
    """Whether a row moved that was 0 before: its size in % is undefined, and rows are compared in weight units."""
    return "relative" in rows and bool((rows["norm"] > 0)[rows["relative"].isna()].any())


def _stretches(rows: pd.DataFrame, floors: dict[str, float]) -> pd.DataFrame:
    """Neighbouring positions of a regime that are exactly 0 as one record: first, last, and where they are drawn.

    ``floors``: regime to the height (``place``) at which its zeros stand.
    """
    stretches = []
    for regime, still_rows in rows[rows["norm"] == 0].groupby("regime", sort=False):
        positions = np.sort(still_rows["position"].to_numpy())
        starts = np.flatnonzero(np.diff(positions) > 1) + 1
        for neighbours in np.split(positions, starts):
            first, last = int(neighbours[0]), int(neighbours[-1])
            stretch = {"regime": regime, "first": first, "last": last, "place": floors[str(regime)]}
            stretches.append(stretch | {"stretch": f"{first} to {last}"})
    return pd.DataFrame(stretches, columns=["regime", "first", "last", "place", "stretch"])


COLUMN_MEANINGS = {
    "relative drift": "100 · ‖Δ‖ / ‖E⁰‖ of the whole parameter, mean ± standard deviation over seeds, in float64.",
    "re-initialised": "The same number for an independent re-initialisation of the same shape: a yardstick.",
    "left by weight decay (%)": "Of the squared drift of the unexposed words: what replaying the logged weight decay "
    "does not give.",
    "stratum": "Rows that moved for different reasons are never averaged; steps are optimizer steps of the whole run.",
    "median drift (%)": "Median over the rows of the stratum of 100 · ‖Δ‖ / ‖E⁰‖, mean ± standard deviation over "
    "seeds; a row that was 0 has none and is counted.",
    "median angle (degrees)": "Angle between the row at the first snapshot and at the last.",
}
"""What the columns are, for whoever asks."""


def drift_block(tables: GroupTables) -> Block:
    """A line per parameter, a column per condition: relative drift at the last epoch, beside a re-initialisation."""
    conditions = tables.group.conditions
    has_yardstick = len(tables.drift) > 0
    rows: list[list[object]] = []
    for parameter in EMBEDDING_PARAMETERS:
        cells: list[object] = [_drift_cell(tables, condition, parameter) for condition in conditions]
        if has_yardstick:
            yardsticks = [
                _yardstick(tables, condition, parameter) for condition in conditions if condition.has(parameter)
            ]
            cells.append(mean_and_sd(100 * np.concatenate(yardsticks)) if yardsticks else None)
        rows.append([parameter, *cells])
    labels = [condition.label for condition in conditions]
    header = ["parameter", *labels, *(["re-initialised"] if has_yardstick else [])]
    hows = COLUMN_MEANINGS | dict.fromkeys(labels, COLUMN_MEANINGS["relative drift"])
    caption = f"Drift of each parameter on {tables.group.title} at the last epoch, in % of its norm"
    return rows_block(header, rows, caption, hows)


def _drift_cell(tables: GroupTables, condition: Condition, parameter: str) -> str | None:
    """The drift of a parameter in per cent over the seeds of a condition; None where the model has none."""
    if not condition.has(parameter):
        return None
    drift = tables.relative_drift(condition, parameter)
    if (drift != 0).any():
        return mean_and_sd(100 * drift)
    # Only hashes before and after prove that not one bit changed.
    return "0 (bit-identical)" if condition.is_proven_frozen(parameter) else "0"


def _yardstick(tables: GroupTables, condition: Condition, parameter: str) -> np.ndarray:
    """(runs,) the relative drift of a re-initialised parameter in each run of a condition."""
    drift = tables.whole(condition, parameter, statistic="reinitialised")
    values: np.ndarray = drift.groupby("run", sort=False)["value"].last().reindex(condition.names).to_numpy(np.float64)
    return values


def exposure_block(tables: GroupTables) -> Block:
    """A row per condition whose words moved: exposed and unexposed words, and what decay leaves unexplained."""
    rows: list[list[object]] = []
    record_by_run = {record["run"]: record for record in tables.exposed.to_dict("records")}
    for condition in tables.group.conditions:
        record = record_by_run.get(condition.runs[0].name)
        if record is None or not has_moved_words(tables, condition):
            continue
        numbers = (record["num_exposed"], record["num_unexposed"], 100 * record["share_unmoved"])
        cells = [value if record["is_recorded"] and value == value else None for value in numbers]
        # The share of the unexposed words' squared drift that replayed weight decay leaves.
        share_left = record["left_by_decay"] if record["has_log"] else None
        left_cell = "0, bit for bit" if share_left == 0 else None if share_left is None else 100 * share_left
        rows.append([condition.label, *cells, left_cell])
    header = [
        "condition",
        "exposed words",
        "unexposed words",
        "exactly as before (%)",
        "left by weight decay (%)",
    ]
    caption = f"Words that training exposed and words that it did not, on {tables.group.title}, first seed"
    return rows_block(header, rows, caption, COLUMN_MEANINGS)


def has_moved_words(tables: GroupTables, condition: Condition) -> bool:
    """Whether any word row of the first seed of a condition moved."""
    boxes = tables.boxes[tables.boxes["run"] == condition.runs[0].name] if len(tables.boxes) else tables.boxes
    return bool(len(boxes)) and bool((boxes["num_moved"] > 0).any())


def strata_block(tables: GroupTables, parameter: str) -> Block:
    """A row per stratum and condition of a table at the last epoch; one in all for a condition where none moved."""
    if not any(condition.has(parameter) for condition in tables.group.conditions):
        return TextBlock(text=f"Not applicable: this model has no {parameter}.")
    header = ["stratum", "condition", "rows", "median drift (%)", "greatest (%)", "median angle (degrees)"]
    statistics = [(condition, _by_statistic(tables.of(condition, parameter))) for condition in tables.group.conditions]
    strata = ordered_strata(stratum for _, by_key in statistics for stratum, _, _ in by_key)
    rows: list[list[object]] = []
    for stratum in (name for name in strata if name != "whole parameter"):
        for condition, by_key in statistics:
            median_drift = by_key.get((stratum, "relative", "median"))
            # Where no row of a condition moved, one line says everything.
            has_moved = any((by_key[key]["value"] > 0).any() for key in by_key if key[1:] == ("norm", "max"))
            if median_drift is None or (stratum != ALL_ROWS and not has_moved):
                continue
            cells = [
                _statistic(median_drift, 100),
                _statistic(by_key[stratum, "relative", "max"], 100),
                _statistic(by_key[stratum, "angle_degrees", "median"], 1),
            ]
            rows.append([stratum_text(stratum), condition.label, span(median_drift["num_rows"]), *cells])
    caption = f"Rows of {parameter} on {tables.group.title} at the last epoch"
    return rows_block(header, rows, caption, COLUMN_MEANINGS)


def _by_statistic(drift: pd.DataFrame) -> dict[tuple[str, str, str], pd.DataFrame]:
    """Stratum, measure and statistic to the records of each run."""
    keys = ["stratum", "measure", "statistic"]
    return {
        (str(stratum), measure, statistic): key_drift
        for (stratum, measure, statistic), key_drift in drift.groupby(keys, sort=False, observed=True)
    }


def _statistic(by_run: pd.DataFrame, factor: float) -> str:
    """Mean ± standard deviation of a statistic over runs, and how many rows have it undefined."""
    text = mean_and_sd(factor * by_run["value"])
    num_undefined = by_run["num_undefined"].sum()
    return f"{text} (undefined rows: {num_undefined} of {by_run['num_rows'].sum()})" if num_undefined else text


FIRST_SEED = "Single rows are those of the first seed of each condition; the table's numbers are over all seeds."


def drift_topics(tables: Sequence[GroupTables], prefixes: Sequence[str], claims: Mapping[str, Block]) -> list[Section]:
    """One section per topic that there is something of, in it one fold per task.

    ``claims``: title of a group to its verdicts on drift; ``prefixes``: what the names of each group's charts begin
    with.
    """
    regimes = order_of(tables)
    charts_of_groups = [group_charts(group_tables, regimes) for group_tables in tables]
    titles = [group_tables.group.title for group_tables in tables]
    has_rows = any(len(group_tables.drift) for group_tables in tables)
    sections = []
    for topic in TOPICS:
        if topic.is_of_rows and not has_rows:  # nothing of single rows was kept
            continue
        bodies = []
        for group_tables, charts, prefix in zip(tables, charts_of_groups, prefixes, strict=True):
            claim = claims.get(group_tables.group.title) if topic.id == "drift" else None
            bodies.append(
                [*_figure(topic, group_tables.group, charts, prefix), *topic.blocks(group_tables)]
                + ([claim] if claim else [])
            )
        lead = topic.lead
        if topic.id == "word-rows":
            lead = f"{words_lead(topic.lead, [group_tables.group for group_tables in tables])} {FIRST_SEED}"
        sections.append(Section(id=topic.id, title=topic.title, lead=lead, blocks=folds(titles, bodies)))
    return sections


def _figure(topic: "Topic", group: Group, charts: Charts, prefix: str) -> tuple[Block, ...]:
    """The chart of a topic for one group; nothing where there is none."""
    has_seeds = any(len(condition.runs) > 1 for condition in group.conditions)
    caption = topic.caption.format(title=group.title, bars="; bars span the seeds" * has_seeds)
    alt = f"{topic.chart.replace('_', ' ').capitalize()} on {group.title}"
    return chart_blocks(charts, topic.chart, caption, alt, prefix)


def group_charts(tables: GroupTables, regimes: Sequence[str]) -> Charts:
    """The charts of one group, those that there is something to draw of; ``regimes``: the order of their colours."""
    rates = tables.baselines.groupby("split", sort=False)["majority_rate"].mean()
    score = tables.group.runs[0].score
    scores = tables.with_conditions(tables.scores[tables.scores["split"].isin(rates.index)])
    majority = {str(split): float(rate) for split, rate in rates.items()} if score == "accuracy" else None

    def over_epochs() -> Chart | None:
        return epochs_chart(scores, score, majority=majority, regimes=regimes) if score in scores else None

    def chart_of(plot: Callable[..., Chart | None], table: pd.DataFrame) -> Chart | None:
        return None if table.empty else plot(table, regimes=regimes)

    return draw(
        {
            "scores_over_epochs": over_epochs,
            "drift_over_epochs": lambda: chart_of(drift_chart, tables.with_conditions(tables.drift)),
            "position_drift": lambda: chart_of(position_chart, tables.with_conditions(tables.positions)),
        }
    )


TRAINING = (
    "At every snapshot that was scored; epoch 0 is before training. The linear probe is the score of the head that "
    "cross-validation finds within the training split on the same frozen features (logistic regression, strength "
    "chosen by log loss, or ridge regression, by squared error): a yardstick, no strict bound."
)
DRIFT = (
    "Drift is how far a parameter is from the first snapshot. The yardstick is the same number for a re-initialised "
    "parameter that has nothing to do with what it had learned; LayerNorm.bias, where it was not 0, then becomes 0, "
    "which is 100 %. The verdicts on drift are about the rows that training showed, without the offset that they "
    "share, which is why their numbers differ from those of the whole parameter."
)
EXPOSED = (
    "A row that no batch held has no gradient, so that only weight decay can move it: where replaying the logged decay "
    "leaves nothing, decay is the whole cause."
)
WORDS = (
    "A row that no batch showed has no gradient; only weight decay can move it. A row seen once goes on moving by "
    "Adam's momentum. The strata count optimizer steps of the whole run."
)
TIED = (
    "Where the word table is the output layer too, as under masked-LM training, each of its rows may get a gradient in "
    "every step, those of unused and special words among them: its strata go by what the input used, with the words "
    "that stood there at random, which tells nothing of what moved a row. Frozen embeddings freeze the output layer's "
    "weight with them."
)
ADAPTED = (
    "Rows of a table with an adapter move otherwise: under LoRA one that no text used stays as it was, whatever decay "
    "does, and one that a text used moves at every later step, as all rows share a factor; under DoRA every row moves, "
    "by what it makes of each column's length."
)
SEGMENTS = (
    "The gradient of a segment row is the sum of those of all its tokens, so its drift is a shared shift and no sign "
    "that segments were learned. With single sentences only row 0 is in use."
)


def words_lead(lead: str, groups: Sequence[Group]) -> str:
    """The lead of a section on word rows: ``lead``, unless all tables are tied, and a note where any is."""
    are_tied = [condition.is_tied for group in groups for condition in group.conditions]
    sentences = [] if all(are_tied) else [lead]
    sentences += [TIED] if any(are_tied) else []
    return " ".join(sentences)


def _rows_of(parameter: str, tables: GroupTables) -> list[Block]:
    """A note on the conditions in which no row moved, of which the chart shows nothing, then the strata."""
    conditions = [condition for condition in tables.group.conditions if condition.has(parameter)]
    first_seeds = {condition.label: replace(condition, runs=condition.runs[:1]) for condition in conditions}
    still = [label for label, first in first_seeds.items() if (tables.relative_drift(first, parameter) == 0).all()]
    note = [TextBlock(text=f"No row moved under {listing(still)}.")] if still else []
    return [*note, strata_block(tables, parameter)]


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A section with a part for each model and task: a chart, if there is one, and blocks."""

    id: str
    title: str
    lead: str
    chart: str = ""
    caption: str = ""
    is_of_rows: bool = True
    """Whether it needs the drift of single rows, which not every report kept."""
    blocks: Callable[[GroupTables], list[Block]]


TOPICS = (
    Topic(
        id="training",
        title="Scores and drift over epochs",
        lead=TRAINING,
        chart="scores_over_epochs",
        caption="Headline score of each labelled split of {title} at every epoch{bars}. Dotted: the majority of train.",
        is_of_rows=False,
        blocks=lambda tables: [],
    ),
    Topic(
        id="drift",
        title="Drift of each parameter",
        lead=DRIFT,
        chart="drift_over_epochs",
        caption="Drift of each whole parameter at every epoch on {title}: the length of its change, in % of its length "
        "before, on a logarithmic axis{bars}. Where there is a floor, marks on it are exactly 0; conditions under "
        "which nothing moved are not drawn. Dotted, where several moved: a re-initialised parameter.",
        is_of_rows=False,
        blocks=lambda tables: [drift_block(tables)],
    ),
    Topic(
        id="word-rows",
        title="Word rows, seen and never seen",
        lead=WORDS,
        blocks=partial(_rows_of, TABLES[0]),
    ),
    Topic(
        id="positions",
        title="Positions",
        lead=f"Positions beyond the longest training text get no gradient. {FIRST_SEED}",
        chart="position_drift",
        caption="Drift of each position row on {title} at the last epoch, in % of its norm. Where there is a "
        "floor, lines on it are exactly 0. Dotted: the end of the longest training text.",
        blocks=partial(_rows_of, TABLES[1]),
    ),
    Topic(id="segments", title="Segments", lead=SEGMENTS, blocks=lambda tables: [strata_block(tables, TABLES[2])]),
)
