"""The tables of the positions page in, its figures out."""

import math
from functools import partial
from typing import Any

import numpy as np

from toolkit.reporting.images import WIDTH, Images, render
from toolkit.reporting.panels import COLOURS, REFERENCE, plain
from toolkit.reporting.positions.tables import LEARNED, PositionTables

LINES: dict[str, dict[str, Any]] = {
    LEARNED: {"color": COLOURS[0], "linestyle": "-", "marker": "o"},
    "sinusoid": {"color": COLOURS[1], "linestyle": "--", "marker": "s"},
    "smooth": {"color": COLOURS[2], "linestyle": "-.", "marker": "^"},
    "shuffled": {"color": COLOURS[3], "linestyle": ":", "marker": "D"},
    "drift": {"color": COLOURS[4], "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
}
"""How each table is drawn, in every figure; told apart by line and marker without colour."""

NAMES = {
    LEARNED: "learned",
    "sinusoid": "sinusoid",
    "smooth": "smooth random curves",
    "shuffled": "learned, rows shuffled",
    "drift": "drift of the learned rows",
}
SHOWN_WAVES = 6


def draw_positions(tables: PositionTables) -> Images:
    """Every figure that applies, by name, as images; equal input, equal bytes."""
    figures = {
        "waves": waves,
        "resemblance": resemblance,
        "cosine_gram": cosine_gram,
        "cosine_by_lag": cosine_by_lag,
        "norms_and_steps": norms_and_steps,
        "dct_spectrum": dct_spectrum,
    }
    return render({name: partial(make, tables) for name, make in figures.items()})


def _new(height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def _style(name: str, num_points: int) -> dict[str, Any]:
    every = max(num_points // 12, 1)
    offset = list(LINES).index(name) * every // len(LINES)  # so that markers of lines that coincide stay apart
    thin = {"linewidth": 1.1, "markersize": 3.5, "markerfacecolor": "white", "markeredgewidth": 0.8}
    return LINES[name] | thin | {"markevery": (offset, every), "label": NAMES[name]}


def _legend(figure: Any, axes: Any, columns: int = 4) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.5)


def waves(tables: PositionTables) -> Any:
    """Each wave of the learned table along the positions, and round its circle."""
    found = tables.waves[tables.waves["is_wave"]].head(SHOWN_WAVES).sort_values("period")
    if found.empty:
        return None
    figure = _new(1.05 * len(found) + 0.7)
    grid = figure.add_gridspec(len(found), 2, width_ratios=(5, 1))
    for place, line in enumerate(found.to_dict("records")):
        course = tables.courses[int(line["wave"]) - 1]
        rows = np.arange(min(len(course), max(math.ceil(8 * line["period"]), 24)))
        along, circle = figure.add_subplot(grid[place, 0]), figure.add_subplot(grid[place, 1])
        for column, name in enumerate((LEARNED, "sinusoid")):
            style = _style(name, len(rows)) | {"label": ("first coordinate", "second coordinate")[column]}
            along.plot(rows, course[rows, column], **style)
        title = f"wave {place + 1}: period {line['period']:.3g} positions, {line['share']:.0%} of the variance"
        along.set(title=title, xlim=(0, len(rows) - 1))
        circle.plot(course[rows, 0], course[rows, 1], color="0.6", linewidth=0.6)
        circle.scatter(course[rows, 0], course[rows, 1], s=3, color="black", linewidths=0)
        reach = 1.1 * float(np.quantile(np.abs(course), 0.995))
        along.set(ylim=(-reach, reach))
        circle.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
    along.set(xlabel="position")
    circle.set(xlabel="its plane")
    figure.supylabel("coordinate in the wave's plane (weight units)", fontsize=8)
    _legend(figure, along)
    return figure


def resemblance(tables: PositionTables) -> Any:
    """Each verdict's statistic beside its control distributions and its threshold."""
    titles = {"line_match": "Does it carry the sinusoid's waves?", "orbit_share": "Is it made of waves?"}
    shown = {name: verdict for name, verdict in tables.verdicts.items() if len(verdict.negative)}
    if not shown:
        return None
    labels = {"line_match": "line match (standard deviations)", "orbit_share": "share of power on circles"}
    figure = _new(3.0)
    for axes, (name, verdict) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
        values = np.concatenate([verdict.negative, verdict.positive, [verdict.value]])
        bins = np.linspace(values.min(), values.max(), 41)
        for label, drawn, colour, hatch in (
            ("smooth random curves (null)", verdict.negative, "white", "////"),
            ("the waves in noise (positive control)", verdict.positive, "0.55", ""),
        ):
            axes.hist(drawn, bins=bins, label=label, facecolor=colour, hatch=hatch, edgecolor="black", linewidth=0.6)
        axes.axvline(verdict.threshold, **REFERENCE, label="threshold")
        axes.axvline(verdict.value, color=COLOURS[1], linewidth=2, label="this table")
        axes.set(title=f"{titles[name]}\n{plain(verdict.answer)}", xlabel=labels[name], ylabel="tables")
    _legend(figure, axes, columns=2)
    return figure


def cosine_gram(tables: PositionTables) -> Any:
    """Cosines between all rows: learned, sinusoid, shuffled."""
    names = [name for name in (LEARNED, "sinusoid", "shuffled") if name in tables.rows]
    if tables.by_lag.empty:
        return None
    figure = _new(2.7)
    grams = {}
    for name in names:
        rows = tables.rows[name] / np.linalg.norm(tables.rows[name], axis=1, keepdims=True)
        grams[name] = rows @ rows.T
    low = min(float(gram.min()) for gram in grams.values())
    all_axes = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, (name, gram) in zip(all_axes, grams.items(), strict=True):
        # A map whose lightness rises all the way: it reads in grey too.
        image = axes.imshow(gram, cmap="cividis", vmin=low, vmax=1, interpolation="nearest", rasterized=True)
        axes.set(title=NAMES[name], xlabel="position", ylabel="position" if name == names[0] else "")
    figure.colorbar(image, ax=list(all_axes), label="cosine", shrink=0.85)
    return figure


def cosine_by_lag(tables: PositionTables) -> Any:
    """Mean cosine of two rows by their distance, near and over all lags."""
    if tables.by_lag.empty:
        return None
    figure = _new(2.9)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, last in zip(panels, (min(60, tables.num_positions - 1), tables.num_positions - 1), strict=True):
        for name in tables.rows:
            lines = tables.by_lag[(tables.by_lag["table"] == name) & (tables.by_lag["lag"] <= last)]
            axes.plot(lines["lag"], lines["mean"], **_style(name, len(lines)))
            if name == LEARNED:
                axes.fill_between(lines["lag"], lines["low"], lines["high"], color="0.85", linewidth=0)
        axes.set(xlabel="lag (positions)", xlim=(0, last))
    panels[0].set(ylabel="mean cosine of rows")
    _legend(figure, panels[0])
    return figure


def norms_and_steps(tables: PositionTables) -> Any:
    """Norm of every row and length of every step, with the rows that stand out."""
    figure = _new(3.6)
    panels = figure.subplots(2, 1, sharex=True)
    labels = {"norm": "norm ‖P‖\n(weight units)", "step": "step to the next row\n(weight units)"}
    for axes, (quantity, label) in zip(panels, labels.items(), strict=True):
        axes.plot(tables.lengths["position"], tables.lengths[quantity], color="black", linewidth=0.7)
        found = tables.outliers[tables.outliers["quantity"] == quantity]
        axes.plot(found["row"], found["value"], "o", color=COLOURS[1], markersize=4, markerfacecolor="white")
        _name_rows(axes, found["row"].to_numpy(), found["value"].to_numpy())
        # No logarithm where rows are equal and every step is 0.
        axes.set(yscale="log" if (tables.lengths[quantity].dropna() > 0).all() else "linear", ylabel=label)
        axes.margins(x=0.06, y=0.3)
        if tables.default_length is not None and tables.default_length < tables.num_positions:
            axes.axvline(tables.default_length - 0.5, **REFERENCE)
    line = "; dotted: the model's default length" if tables.default_length is not None else ""
    panels[1].set(xlabel=f"position (circles: rows that stand out from their neighbours{line})")
    return figure


def _name_rows(axes: Any, rows: Any, values: Any) -> None:
    """One name for each run of neighbouring rows, at its greatest value."""
    runs = np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) > 3) + 1) if len(rows) else []
    for run in runs[:12]:
        top = run[np.argmax(values[run])]
        text = f"{rows[run[0]]}" if len(run) == 1 else f"{rows[run[0]]} to {rows[run[-1]]}"
        offset = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "fontsize": 6.5}
        axes.annotate(text, (rows[top], values[top]), **offset)


def dct_spectrum(tables: PositionTables) -> Any:
    """Share of the power by DCT-II order."""
    figure = _new(3.0)
    axes = figure.subplots()
    for name, lines in tables.spectra.groupby("table", sort=False):
        if lines["share"].notna().all():
            style = _style(str(name), len(lines)) | {"marker": "", "linewidth": 0.9}
            axes.plot(lines["order"], lines["share"].clip(lower=1e-7), **style)
    axes.set(xscale="log", yscale="log", ylim=(1e-7, None), xlim=(1, tables.num_positions - 1))
    axes.set(xlabel="DCT-II order (half periods in the window)", ylabel="share of the centred power")
    _legend(figure, axes, columns=3)
    return figure
