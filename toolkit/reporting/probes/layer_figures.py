"""The figures on layers: similarity of their states to before, and drift of their weights."""

from collections.abc import Mapping
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


def draw_weights(tables: Mapping[str, pd.DataFrame]) -> Images:
    """``weight_drift_by_layer`` of all groups, as images; none where no weights could be compared."""
    is_layer = tables["weight_means"]["component"].str.startswith("layers.")
    is_known = tables["weight_means"]["relative_drift"].notna()
    if not (is_layer & is_known).any():
        return {}
    return render({"weight_drift_by_layer": partial(weight_drift_by_layer, tables)})


def weight_drift_by_layer(tables: Mapping[str, pd.DataFrame]) -> Any:
    """A panel per group: relative drift of all weights of each layer, a small dot per run and a line through the means.

    The embeddings stand at the left, unconnected: most of their rows are words that training never showed.
    """
    from matplotlib.figure import Figure

    means = tables["weight_means"]
    groups, arms = list(dict.fromkeys(means["group"])), list(dict.fromkeys(means["arm"]))
    columns = min(len(groups), 3)
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(WIDTH, 2.1 * rows + 0.2 * len(arms) + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    handles: dict[str, Any] = {}
    for axes, group in zip(grid, groups, strict=False):
        for place, arm in enumerate(arms):
            own, single = (
                table[(table["group"] == group) & (table["arm"] == arm)] for table in (means, _runs_by_layer(tables))
            )
            if own["relative_drift"].notna().any():
                handles[arm] = _draw_weights(axes, own, single, place)
        axes.set_title(wrap(group, 30))
        axes.set_ylim(bottom=0)
        layers = sorted({0, *means.loc[means["group"] == group, "layer"].dropna().astype(int)})
        axes.set(xticks=layers, xticklabels=["emb." if layer == 0 else str(layer) for layer in layers], xlabel="layer")
    for axes in grid[len(groups) :]:
        axes.set_visible(False)
    for axes in grid[::columns]:
        axes.set_ylabel("relative drift of\nthe weights (%)")
    if len(arms) > 1:
        _legend(figure, handles)
    return figure


def _draw_weights(axes: Any, own: pd.DataFrame, single: pd.DataFrame, place: int) -> Any:
    style = line_style(place)
    is_layer = own["component"].str.startswith("layers.")
    line = axes.plot(own["layer"][is_layer].astype(int), 100 * own["relative_drift"][is_layer], **style)[0]
    embeddings = own[own["component"] == "embeddings"]
    axes.plot([0] * len(embeddings), 100 * embeddings["relative_drift"], **style | {"linestyle": "none"})
    if len(single):
        axes.plot(
            single["layer"].astype(int) + 0.12 * (1 + place),
            100 * single["relative_drift"],
            linestyle="none",
            marker=".",
            markersize=3.5,
            color=style["color"],
        )
    return line


def _runs_by_layer(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Relative drift of each layer in each run, where an arm has several."""
    drift = tables["weight_drift"]
    place = ["group", "arm", "seed", "layer"]
    is_layer = drift["component"].str.startswith("layers.") & (drift["num_values"] > 0)
    squares = drift[is_layer].assign(**{name: drift[name] ** 2 for name in ("norm_before", "norm_change")})
    sums = squares.groupby(place, sort=False)[["norm_before", "norm_change"]].sum(min_count=1).reset_index()
    several = sums.groupby(["group", "arm"])["seed"].transform("nunique") > 1
    return sums[several].assign(relative_drift=(sums["norm_change"] / sums["norm_before"]) ** 0.5)


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
