"""Tables of one trajectory in, the figures of its drift report out; also ``toolkit.draw`` for a figure of a paper."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.causes.sign_noise import sign_noise
from toolkit.analysis.rows.drift import measure_drift
from toolkit.analysis.rows.measures import MEASURES
from toolkit.analysis.rows.rows import measure_rows
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.lookup import lookup
from toolkit.reporting.drift.tables import DriftTables
from toolkit.reporting.images import COLUMN, KINDS, Images, image_of, render, styled
from toolkit.reporting.panels import REFERENCE, line_style, set_log
from toolkit.snapshots import files
from toolkit.snapshots.ownership import check_new
from toolkit.snapshots.store import Source, trajectory_of

NOTHING = 1e-20
"""A functional drift below this is what rounding leaves of 0."""
FEWEST_IN_BIN = 5
ROWS_IN_BIN = 30
"""Rows per bin of exposure for which a figure draws the null."""


def draw_parameters(source: Source) -> Any:
    """Relative drift of each whole embedding parameter at every snapshot, as a Figure; None when nothing moved."""
    from matplotlib.ticker import LogLocator

    drift = measure_drift(source, ("norm", "relative"))
    lines = drift[(drift["stratum"] == "whole parameter") & (drift["statistic"] == "value") & (drift["epoch"] > 0)]
    norms, whole = (lines[lines["measure"] == measure] for measure in ("norm", "relative"))
    figure, axes = _figure(2.6)
    for i, name in enumerate(EMBEDDING_PARAMETERS):
        lines = whole[(whole["parameter"] == name) & (whole["value"] > 0)]
        if len(lines):
            axes.plot(lines["epoch"], 100 * lines["value"], label=name, **line_style(i))
    for name, values in whole.groupby("parameter", sort=False)["value"]:
        if (norms.loc[norms["parameter"] == name, "value"] == 0).all():
            axes.plot([], [], " ", label=f"{name}: exactly 0")
        elif values.isna().all():
            axes.plot([], [], " ", label=f"{name}: was 0 before")
    axes.set(xlabel="epoch", ylabel="relative drift ‖Δ‖ / ‖E⁰‖ (%)", yscale="log")
    _x_ticks(axes, source, whole["epoch"])
    if not (whole["value"] > 0).any():
        return None
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    figure.legend(fontsize=6, frameon=False, loc="outside upper center", ncols=2)
    return figure


def draw_exposure(source: Source, parameter: str = "word_embeddings", *, with_null: bool = False) -> Any:
    """‖Δ‖ of every row of a table at the last snapshot against the optimizer steps that showed it.

    ``with_null``: also the median of :func:`toolkit.sign_noise`, what the same steps with random signs would have done,
    over rows drawn evenly on the axis of steps; it needs a run. ValueError without exposure.
    """
    trajectory = trajectory_of(source)
    from matplotlib.ticker import LogLocator

    epoch = trajectory.snapshots[-1].epoch
    rows = measure_rows(trajectory, parameter, epoch, ("norm",))
    if rows["num_steps"].isna().all():
        raise ValueError(f"the exposure of {parameter} was not recorded: there is nothing to draw its drift against")
    figure, axes = _figure(2.8)
    seen = rows[(rows["num_steps"] > 0) & (rows["norm"] > 0)]
    unseen = rows[(rows["num_steps"] == 0) & (rows["norm"] > 0)]
    if seen.empty:
        raise ValueError(f"no row of {parameter} that training showed has moved: there is nothing to draw")
    steps = seen["num_steps"].to_numpy(float)
    axes.plot(steps, seen["norm"], ".", color="0.6", markersize=1.5, rasterized=True, label=f"a row (n={len(seen):,})")
    centres, medians = _by_exposure(seen["num_steps"], seen["norm"])
    axes.plot(centres, medians, color="#D55E00", marker="o", markersize=3, linewidth=1.2, label="median")
    if with_null and len(seen):
        drawn = seen.groupby(_bins(seen["num_steps"])).sample(frac=1, random_state=0)
        drawn = drawn.groupby(_bins(drawn["num_steps"])).head(ROWS_IN_BIN)
        null = sign_noise(source, parameter, epoch, drawn["row"].to_numpy(), num_coordinates=0)
        centres, medians = _by_exposure(null["num_steps"], null["null_median"])
        axes.plot(centres, medians, color="#0072B2", linestyle="--", label="same steps, random signs: median")
    if len(unseen):
        label = f"median of {len(unseen):,} rows never seen"
        axes.axhline(unseen["norm"].median(), **(REFERENCE | {"label": label}))
    axes.set(xlabel="optimizer steps that showed the row", ylabel=f"‖Δ‖ ({MEASURES['norm'].unit})", xscale="log")
    set_log(axes.yaxis, pd.concat([seen["norm"], unseen["norm"]]))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if steps.max() < 200 * steps.min() else (1,)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    figure.legend(fontsize=6, frameon=False, loc="outside upper center", ncols=2)
    return figure


def draw_functional(frame: pd.DataFrame) -> Any:
    """The Shapley split of the functional drift at the last snapshot of a table of :func:`functional_drift`."""
    frame = frame[frame["epoch"] == frame["epoch"].max()]
    parts = frame[(frame["quantity"] == "shapley")].iloc[::-1]
    figure, axes = _figure(0.6 + 0.28 * len(parts))
    axes.barh(parts["component"], 100 * parts["value"], color="0.75", edgecolor="black", linewidth=0.8, height=0.6)
    for place, value in enumerate(parts["value"]):
        text = "exactly 0" if value == 0 else f"{100 * value:.2g}"
        axes.annotate(text, (max(100 * value, 0), place), xytext=(3, 0), textcoords="offset points", va="center")
    axes.axvline(0, color="black", linewidth=0.6)
    axes.margins(x=0.25)
    axes.set(xlabel="share of E‖LN(e⁰)‖² (%)")
    return figure


DRAWINGS: Mapping[str, Callable[..., Any]] = {"parameters": draw_parameters, "exposure": draw_exposure}
"""Figures of one run or trajectory, by name."""


def draw_report(tables: DriftTables) -> Images:
    """Every figure of a drift report that applies: name to format to the bytes of the image."""
    opened = tables.opened
    figures: dict[str, Callable[[], Any]] = {"parameters": lambda: draw_parameters(opened.trajectory)}
    noise = tables.get("sign_noise")
    if noise is not None and ((noise["num_steps"] > 0) & (noise["drift"] > 0)).any():
        figures["exposure"] = lambda: draw_exposure(opened.runs[0], with_null=True)
    functional = tables.get("functional")
    if functional is not None and functional["value"].max() > NOTHING:
        figures["functional"] = lambda: draw_functional(functional)
    return render(figures)


def draw(name: str, source: Source, path: str | Path, *, overwrite: bool = False, **options: Any) -> Path:
    """Draw the figure ``parameters`` or ``exposure`` and save it to ``path``, which is returned.

    The suffix (.pdf, .svg, .png) is the format. Unlike ``savefig``, it replaces no file unless ``overwrite`` says so,
    and writes to no link.

    ValueError for an unknown name or suffix, for a file that is there already, and where nothing moved or exposure was
    not recorded.
    """
    path = Path(path)
    drawing = lookup(DRAWINGS, name, "figure")
    kind = path.suffix.removeprefix(".").lower()
    lookup({known: known for known in KINDS}, kind, "suffix of a figure")
    check_new(path, overwrite=overwrite)
    with styled():
        figure = drawing(source, **options)
        if figure is None:
            raise ValueError(f"the figure {name!r} does not apply: nothing moved")
        files.write_bytes(path, image_of(figure, kind), may_replace=overwrite)
    return path


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _bins(steps: pd.Series) -> Any:
    """Bins of half an octave of optimizer steps."""
    return np.floor(2 * np.log2(np.maximum(steps.to_numpy(float), 1)))


def _by_exposure(steps: pd.Series, values: pd.Series) -> tuple[Any, Any]:
    """The median of the values in each bin, and the bins' geometric centres; bins of too few rows show no trend."""
    bins = pd.Series(_bins(steps))
    sizes = bins.map(bins.value_counts()).to_numpy()
    kept = sizes >= min(FEWEST_IN_BIN, sizes.max(initial=0))
    logarithms = pd.Series(np.log(steps.to_numpy(float)))[kept].groupby(bins[kept]).mean()
    return np.exp(logarithms.to_numpy()), pd.Series(values.to_numpy())[kept].groupby(bins[kept]).median().to_numpy()


def _x_ticks(axes: Any, source: Source, epochs: pd.Series) -> None:
    """Checkpoints by their names where they have any, epochs by their numbers else."""
    names = {snapshot.epoch: snapshot.name for snapshot in trajectory_of(source)}
    found = sorted(epochs.unique())
    if any(names[epoch] for epoch in found) and len(found) <= 6:
        axes.set_xticks(found, [names[epoch] for epoch in found])
        axes.set_xlabel("checkpoint")
    else:
        axes.locator_params(axis="x", integer=len(found) > 2, nbins=6)
