"""The shares of a position flow in, the published expectation judged by them out."""

import numpy as np
import pandas as pd

from toolkit.analysis.comparison.intervals import Interval
from toolkit.reporting.markdown import listing, number
from toolkit.reporting.probes.flow_tables import PRETRAINED, RANDOM, FlowGroup, stage_text

EXPECTATION = "Published expectation: position dominates the lower layers and gives way to content."
RULES = (
    "'Dominates the lower layers' looks at the lower half of the stages (the sum, the input and layers up to half of "
    "their number): supported where position's interval lies above content's at each of them, in part where at some.",
    "'Gives way' looks at the change from position's largest share to the last layer, of position and of content, each "
    "with the interval of its change on the same blocks: supported where the first falls and the second rises. "
    "The largest share is chosen by looking, so that without any change the first would seem to fall in 10 to 16 of "
    "100 models: read a small fall with that in mind.",
    "'Told apart': the 95 % interval of the difference on the same blocks excludes 0; one interval per stage, none "
    "corrected for their number. What is not told apart may still differ.",
)
ROUNDING = 1e-9
"""A share of the variance below this is what rounding leaves of 0."""
OTHERS = {"segment": "segments", "residual": "interactions"}


def expectation_findings(group: FlowGroup) -> list[str]:
    """Does position dominate, and give way? For each arm; then each arm beside the pretrained model."""
    lines = []
    for arm in group.arms:
        if arm != RANDOM and _is_rounding(group, arm):
            lines.append(
                f"{group.labels[arm]}: position has no share of the variance beyond rounding at any stage: there is "
                "nothing that could dominate or give way."
            )
        elif arm != RANDOM:
            lines += [*_on_dominance(group, arm), *_on_giving_way(group, arm)]
    return [*lines, *_on_regimes(group)]


def percent(share: float) -> str:
    """A share with its unit."""
    return "0 % up to rounding" if 0 < abs(share) < ROUNDING else f"{number(100 * share)} %"


def span(low: float, high: float) -> str:
    """An interval of shares in percent, in brackets; empty where there is none."""
    return "" if np.isnan(low) else f" ({number(100 * low)} to {number(100 * high)} %)"


def _is_rounding(group: FlowGroup, arm: str) -> bool:
    """Whether position has no share at any stage, as in a model without position rows."""
    means = _shares(group, arm)[0]["mean"]
    return len(means) > 0 and bool((means.abs() < ROUNDING).all())


def _shares(group: FlowGroup, arm: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """ω² of position and of content by layer."""
    position, content = (
        group.over_seeds("ledger", arm, "omega_squared", factor=factor) for factor in ("position", "content")
    )
    return position, content.reindex(position.index)


def _on_dominance(group: FlowGroup, arm: str) -> list[str]:
    position, content = _shares(group, arm)
    lower = [int(layer) for layer in position.index if layer <= max(group.layers) // 2]
    if not lower:
        return []
    above = [layer for layer in lower if position["low"][layer] > content["high"][layer]]
    verdict = "Supported, at each of the lower stages" if above else "Not supported, at none of the lower stages"
    if above and len(above) < len(lower):
        verdict = f"In part, at {listing([stage_text(layer) for layer in above])} only"
    peak = int(position["mean"][lower].idxmax())
    return [
        f"{group.labels[arm]}: does position dominate the lower layers (up to {stage_text(lower[-1])})? {verdict}: its "
        f"largest share there is {percent(position['mean'][peak])}{span(*position.loc[peak, ['low', 'high']])} at "
        f"{stage_text(peak)}, where content has {percent(content['mean'][peak])}"
        f"{span(*content.loc[peak, ['low', 'high']])}."
    ]


def _on_giving_way(group: FlowGroup, arm: str) -> list[str]:
    position, content = _shares(group, arm)
    if len(position) < 2:
        return []
    last, peak = int(position.index[-1]), int(position["mean"].idxmax())
    start = f"{group.labels[arm]}: does position give way to content?"
    if peak == last:
        return [f"{start} Not supported: its share is largest in the last layer, {percent(position['mean'][last])}."]
    changes = {
        factor: group.change(arm, factor, last, since=peak)
        for factor in ("position", "content", *OTHERS)
        if len(group.lines("ledger", arm, "eta_squared", factor=factor, layer=peak))
    }
    falls, rises = changes["position"].high < 0, changes["content"].low > 0
    verdict = "Supported" if falls and rises else "Not supported"
    if falls and not rises:
        others = [f"{OTHERS[name]} rise by {_points(changes[name])}" for name in OTHERS if _is_above(changes, name)]
        content_does = "falls as well" if changes["content"].high < 0 else "is not seen to rise"
        verdict = (
            f"Half of it, position falls and content {content_does} "
            f"({listing(others) if others else 'nor does anything else'})"
        )
    parts = [
        f"{name} goes from {percent(shares['mean'][peak])} to {percent(shares['mean'][last])}, by "
        f"{_points(changes[name])}"
        for name, shares in (("position", position), ("content", content))
    ]
    return [f"{start} {verdict}: from {stage_text(peak)} to the last layer {'; '.join(parts)}."]


def _is_above(changes: dict[str, Interval], name: str) -> bool:
    return name in changes and changes[name].low > 0


def _points(change: Interval) -> str:
    between = "" if np.isnan(change.low) else f" ({100 * change.low:+.2f} to {100 * change.high:+.2f})"
    return f"{100 * change.estimate:+.2f} points{between}"


def _on_regimes(group: FlowGroup) -> list[str]:
    """Each arm beside the pretrained model, stage by stage, on the same blocks."""
    lines = []
    for arm in group.arms:
        drift = {} if arm in (PRETRAINED, RANDOM) or PRETRAINED not in group.arms else group.drift(arm)
        if not drift or (_is_rounding(group, PRETRAINED) and _is_rounding(group, arm)):
            continue  # without a share in either, which is said of each, nothing moves
        apart = [layer for layer, change in drift.items() if change.low > 0 or change.high < 0]
        equal = [layer for layer, change in drift.items() if change.estimate == 0 and np.isnan(change.low)]
        rest = [layer for layer in drift if layer not in apart and layer not in equal]
        most = max(drift, key=lambda layer: abs(drift[layer].estimate))
        before, after = (_shares(group, each)[0]["mean"][most] for each in (PRETRAINED, arm))
        seeds = group.num_models(arm)
        parts = [
            f"{word} at {listing([stage_text(layer) for layer in layers])}"
            for word, layers in (("told apart", apart), ("not told apart", rest), ("exactly equal", equal))
            if layers
        ]
        lines.append(
            f"{group.labels[arm]} against pretrained, "
            f"{f'{seeds} seeds' if seeds > 1 else 'one model (its interval covers texts, not seeds)'}: position moves "
            f"most at {stage_text(most)}, from {percent(before)} to {percent(after)}, by {_points(drift[most])}; "
            f"{'; '.join(parts)}."
        )
    return lines
