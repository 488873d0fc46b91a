"""The tables of a position flow in, its figures out."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from toolkit.reporting.images import WIDTH, Images, render
from toolkit.reporting.panels import REFERENCE, line_style, plain, wrap
from toolkit.reporting.probes.flow_tables import (
    COUNTERFACTUALS,
    FACTORS,
    RANDOM,
    FlowGroup,
    Tables,
    groups_of,
    stage_tick,
)

PAGE = 2.15
"""Inches: the height of one row of panels."""


def draw_flow(tables: Tables) -> Images:
    """Every figure that applies, by name, as images; equal input, equal bytes."""
    groups = groups_of(tables)
    return render(
        {
            "where_position_goes": partial(where_position_goes, groups),
            "decoding": partial(decoding, groups),
            "counterfactuals": partial(counterfactuals, groups),
        }
    )


def where_position_goes(groups: Sequence[FlowGroup]) -> Any:
    """ω² of each factor by layer: a row per group of texts, a column per factor, a line per arm."""
    figure, grid = _grid(groups, FACTORS)
    styles = _styles(groups)
    for row, group in enumerate(groups):
        for column, factor in enumerate(FACTORS):
            axes = grid[row, column]
            drawn = [
                _curve(axes, group, arm, styles[arm], "ledger", "omega_squared", factor=factor) for arm in group.arms
            ]
            if not any(drawn):
                _not_applicable(axes, group, factor)
                continue
            axes.axhline(0, **REFERENCE)
            axes.set(title=f"{factor}, {plain(group.title)}", ylabel="ω² (share of variance)" if column == 0 else "")
            _ticks(axes, group, is_last=row == len(groups) - 1)
    _legend(figure, groups, "shuffled states: 0")
    return figure


def decoding(groups: Sequence[FlowGroup]) -> Any:
    """Bits of position that a linear probe reads, those beyond words, and those beyond its control task."""
    columns = {"bits": "bits read", "beyond_word_bits": "beyond the word", "selective_bits": "beyond the control"}
    figure, grid = _grid(groups, columns)
    styles = _styles(groups)
    for row, group in enumerate(groups):
        lines = group.tables["decoding"]
        for column, (name, title) in enumerate(columns.items()):
            axes = grid[row, column]
            for arm in group.arms:
                _curve(axes, group, arm, styles[arm], "decoding", name)
            axes.axhline(0, **REFERENCE)
            if name == "bits":
                axes.set(ylim=(None, 1.12 * lines["entropy_bits"].max()))
                for height, text in (
                    (lines["entropy_bits"].max(), "all of it"),
                    (lines["word_bits"].max(), "word alone"),
                ):
                    axes.axhline(height, **REFERENCE)
                    axes.annotate(
                        text,
                        (1, height),
                        xycoords=("axes fraction", "data"),
                        ha="right",
                        va="bottom",
                        xytext=(-2, 1),
                        textcoords="offset points",
                        fontsize=6.5,
                        color="0.35",
                    )
            axes.set(title=f"{title}, {plain(group.title)}", ylabel="bits" if column == 0 else "")
            _ticks(axes, group, is_last=row == len(groups) - 1)
    _legend(figure, groups, "shuffled labels: 0")
    return figure


def counterfactuals(groups: Sequence[FlowGroup]) -> Any:
    """How far every layer moves under each counterfactual: a row per group, a column per counterfactual."""
    if all(group.tables["counterfactuals"]["value"].isna().all() for group in groups):
        return None
    figure, grid = _grid(groups, COUNTERFACTUALS, sharey=True)
    styles = _styles(groups)
    for row, group in enumerate(groups):
        for column, name in enumerate(COUNTERFACTUALS):
            axes = grid[row, column]
            where = {"counterfactual": name, "quantity": "state"}
            for arm in group.arms:
                _curve(axes, group, arm, styles[arm], "counterfactuals", "value", **where)
            unrelated = group.over_seeds("counterfactuals", group.arms[0], "reference", **where)["mean"]
            axes.plot(unrelated.index, unrelated, **REFERENCE)
            axes.set(title=f"{name}\n{plain(group.title)}", ylim=(0, None))
            if column == 0:
                axes.set(ylabel="relative change of states")
            _ticks(axes, group, is_last=row == len(groups) - 1)
    _legend(figure, groups, f"unrelated tokens ({groups[0].arms[0]})")
    return figure


def _grid(groups: Sequence[FlowGroup], columns: Any, *, sharey: bool = False) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, PAGE * len(groups) + 0.6), layout="constrained")
    return figure, figure.subplots(len(groups), len(columns), squeeze=False, sharey="row" if sharey else False)


def _styles(groups: Sequence[FlowGroup]) -> dict[str, dict[str, Any]]:
    """One style per arm, the same in all groups; the random weights in grey."""
    arms = list(dict.fromkeys(arm for group in groups for arm in group.arms if arm != RANDOM))
    styles = {arm: line_style(i) for i, arm in enumerate(arms)}
    return styles | {RANDOM: line_style(len(arms)) | {"color": "0.55", "marker": "x"}}


def _curve(
    axes: Any, group: FlowGroup, arm: str, style: dict[str, Any], table: str, column: str, **where: object
) -> bool:
    """Mean over an arm's models, band its interval where there is one. Whether there is any value."""
    values = group.over_seeds(table, arm, column, **where)
    if values.empty:
        return False
    axes.fill_between(values.index, values["low"], values["high"], color=style["color"], alpha=0.15, linewidth=0)
    axes.plot(values.index, values["mean"], **style)
    return True


def _not_applicable(axes: Any, group: FlowGroup, factor: str) -> None:
    notes = group.tables["ledger"].loc[group.tables["ledger"]["factor"] == factor, "note"].dropna()
    text = next((str(note) for note in notes if note), "not applicable")
    axes.text(0.5, 0.5, wrap(text, 24), transform=axes.transAxes, ha="center", va="center", color="0.35")
    axes.set(xticks=[], yticks=[], title=f"{factor}, {plain(group.title)}")


def _ticks(axes: Any, group: FlowGroup, *, is_last: bool) -> None:
    every = max(1, len(group.layers) // 8)
    shown = [layer for i, layer in enumerate(group.layers) if layer <= 0 or i % every == 0]
    axes.set_xticks(shown, [stage_tick(layer) for layer in shown], fontsize=6.5)
    if is_last:
        axes.set_xlabel("layer")


def _legend(figure: Any, groups: Sequence[FlowGroup], reference: str) -> None:
    from matplotlib.lines import Line2D

    styles = _styles(groups)
    names = {arm: group.labels[arm] for group in groups for arm in group.arms}
    counts = {arm: max(g.num_models(arm) for g in groups if arm in g.arms) for arm in names}
    labels = [
        plain(names[arm] + (f" [{counts[arm]} seeds]" if counts[arm] > 1 else "")) for arm in styles if arm in names
    ]
    handles = [Line2D([], [], **styles[arm]) for arm in styles if arm in names]
    figure.legend(
        [*handles, Line2D([], [], **REFERENCE)],
        [*labels, reference],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        handlelength=3,
    )
