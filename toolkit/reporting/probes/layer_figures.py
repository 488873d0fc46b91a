"""The mean similarities of layers in, their figure out."""

from functools import partial
from typing import Any

import pandas as pd

from toolkit.reporting.images import WIDTH, Images, render
from toolkit.reporting.panels import line_style, plain, wrap

BEFORE_AND_AFTER, SEED_AND_SEED = "before and after", "seed and seed"
"""What the probe calls its two comparisons; a test holds the words together."""
CKA, STANDARDISED, RSA = "debiased CKA", "debiased CKA, standardised columns", "RSA"

TWO_COLUMNS = 48
"""Letters of the longest label with which the legend has two columns."""

SHOWN = {CKA: "debiased CKA", STANDARDISED: "debiased CKA,\nstandardised columns", RSA: "RSA"}
"""Measure to its name on an axis."""


def draw_layers(means: pd.DataFrame) -> Images:
    """``similarity_by_layer`` of one group's ``means``, as images; equal input, equal bytes."""
    return render({"similarity_by_layer": partial(similarity_by_layer, means)})


def similarity_by_layer(means: pd.DataFrame) -> Any:
    """Per domain of texts a column, per measure a row: every arm before against after, and its seeds with each other.

    A line is the mean over runs, or over pairs of runs; its band is the 95 % interval of the mean.
    """
    from matplotlib.figure import Figure

    domains, arms = list(dict.fromkeys(means["texts"])), list(dict.fromkeys(means["arm"]))
    measures = [measure for measure in SHOWN if (means["measure"] == measure).any()]
    figure = Figure(figsize=(WIDTH, 1.9 * len(measures) + 0.3 * len(arms) + 0.4), layout="constrained")
    grid = figure.subplots(len(measures), len(domains), sharex=True, sharey="row", squeeze=False)
    handles: dict[str, Any] = {}
    for row, measure in enumerate(measures):
        for column, domain in enumerate(domains):
            here = means[(means["measure"] == measure) & (means["texts"] == domain)]
            handles |= _draw_arms(grid[row, column], here, arms)
            if row == 0:
                grid[row, column].set_title(wrap(domain, 24))
        grid[row, 0].set_ylabel(SHOWN[measure])
        _limit(grid[row, 0], means[means["measure"] == measure])
    layers = sorted(means["layer"].unique())
    for axes in grid[-1]:
        axes.set(xticks=layers, xticklabels=["emb." if layer == 0 else str(layer) for layer in layers], xlabel="layer")
    _legend(figure, handles)
    return figure


def _draw_arms(axes: Any, here: pd.DataFrame, arms: list[str]) -> dict[str, Any]:
    """Every arm's curves; label to the handle of each."""
    handles: dict[str, Any] = {}
    for place, arm in enumerate(arms):
        for is_reference in (False, True):
            own = here[(here["arm"] == arm) & ((here["comparison"] == SEED_AND_SEED) == is_reference)]
            if len(own):
                handles[_label(arm, is_reference)] = _curve(axes, own.set_index("layer"), place, is_reference)
    axes.axhline(1, color="0.8", linewidth=0.6, zorder=0)
    return handles


def _label(arm: str, is_reference: bool) -> str:
    return f"{arm}: {'its seeds with each other' if is_reference else 'after with before'}"


def _curve(axes: Any, own: pd.DataFrame, place: int, is_reference: bool) -> Any:
    style = line_style(place)
    if is_reference:
        style |= {"linestyle": ":", "markersize": 2.5, "linewidth": 0.9, "markerfacecolor": style["color"]}
    low, high = (own[side].fillna(own["mean"]) for side in ("low", "high"))
    axes.fill_between(own.index, low, high, color=style["color"], alpha=0.12, linewidth=0)
    return axes.plot(own.index, own["mean"], **style)[0]


def _limit(axes: Any, own: pd.DataFrame) -> None:
    """Room for every mean and, as far as it is no more than half of theirs again, for the bands."""
    least = float(own["mean"].min())
    if least == least:
        room = 0.5 * max(1 - least, 0.02)
        axes.set_ylim(max(float(own["low"].min(skipna=True)), least - room) - 0.02, 1.02)


def _legend(figure: Any, handles: dict[str, Any]) -> None:
    order = sorted(handles, key=lambda label: label.endswith("each other"))
    figure.legend(
        [handles[label] for label in order],
        [plain(label) for label in order],
        loc="outside lower center",
        ncols=2 if max(map(len, order)) <= TWO_COLUMNS else 1,
        frameon=False,
        handlelength=3.5,
    )
