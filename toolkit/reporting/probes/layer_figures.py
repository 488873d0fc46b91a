"""The table of layer drift in, its figure out."""

from functools import partial
from typing import Any

import pandas as pd

from toolkit.reporting.images import WIDTH, Images, render
from toolkit.reporting.panels import line_style, plain, wrap

SEED_AND_SEED = "seed and seed"
"""What the probe calls a comparison of two tuned models of one arm; a test holds the two words together."""

TWO_COLUMNS = 48
"""Letters of the longest label with which the legend has two columns."""

SHOWN = ("debiased CKA", "RSA")
"""The measures that are drawn; the table has all."""


def draw_layers(table: pd.DataFrame) -> Images:
    """``similarity_by_layer``, as images; equal input, equal bytes."""
    return render({"similarity_by_layer": partial(similarity_by_layer, table)})


def similarity_by_layer(table: pd.DataFrame) -> Any:
    """Per domain of texts a column, per measure a row: every arm before against after, and its seeds against another.

    A line is the mean over runs, or over pairs of runs; its band goes from the least to the greatest.
    """
    from matplotlib.figure import Figure

    domains, arms = list(dict.fromkeys(table["texts"])), list(dict.fromkeys(table["arm"]))
    figure = Figure(figsize=(WIDTH, 2.1 * len(SHOWN) + 0.3 * len(arms) + 0.4), layout="constrained")
    grid = figure.subplots(len(SHOWN), len(domains), sharex=True, sharey="row", squeeze=False)
    handles: dict[str, Any] = {}
    for row, measure in enumerate(SHOWN):
        for column, domain in enumerate(domains):
            axes = grid[row, column]
            here = table[(table["measure"] == measure) & (table["texts"] == domain)]
            for place, arm in enumerate(arms):
                for is_reference in (False, True):
                    own = here[(here["arm"] == arm) & ((here["comparison"] == SEED_AND_SEED) == is_reference)]
                    if len(own):
                        handle = _curve(axes, own, place, is_reference)
                        handles[_label(arm, is_reference)] = handle
            axes.axhline(1, color="0.8", linewidth=0.6, zorder=0)
            if row == 0:
                axes.set_title(wrap(domain, 24))
            if column == 0:
                axes.set_ylabel(measure)
    layers = sorted(table["layer"].unique())
    for axes in grid[-1]:
        axes.set(xticks=layers, xticklabels=["emb." if layer == 0 else str(layer) for layer in layers], xlabel="layer")
    order = sorted(handles, key=lambda label: label.endswith("each other"))
    figure.legend(
        [handles[label] for label in order],
        [plain(label) for label in order],
        loc="outside lower center",
        ncols=2 if max(map(len, order)) <= TWO_COLUMNS else 1,
        frameon=False,
        handlelength=3.5,
    )
    return figure


def _label(arm: str, is_reference: bool) -> str:
    return f"{arm}: {'its seeds with each other' if is_reference else 'after with before'}"


def _curve(axes: Any, own: pd.DataFrame, place: int, is_reference: bool) -> Any:
    values = own.groupby("layer")["value"].agg(["mean", "min", "max"])
    style = line_style(place)
    if is_reference:
        style |= {"linestyle": ":", "markersize": 2.5, "linewidth": 0.9, "markerfacecolor": style["color"]}
    axes.fill_between(values.index, values["min"], values["max"], color=style["color"], alpha=0.12, linewidth=0)
    return axes.plot(values.index, values["mean"], **style)[0]
