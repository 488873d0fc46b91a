"""The tables of a position flow in, its sentences out: the published expectation judged by what was measured."""

import pandas as pd

from toolkit.reporting.markdown import listing, number
from toolkit.reporting.probes.flow_tables import COUNTERFACTUALS, PRETRAINED, RANDOM, FlowGroup

EXPECTATION = "Published expectation: position dominates the lower layers and gives way to content."


def flow_findings(group: FlowGroup) -> list[str]:
    """Sentences in plain text, each a number and what it was held against; negative findings too."""
    lines = []
    for arm in group.arms:
        if arm != RANDOM:
            lines += [*_on_dominance(group, arm), *_on_giving_way(group, arm)]
    return [*lines, *_on_regimes(group), *_on_segments(group), *_on_bits(group), *_on_counterfactuals(group)]


def null_findings(group: FlowGroup) -> list[str]:
    """What the references read: the sum before LayerNorm, shuffled states and labels, random weights."""
    ledger, bits = group.tables["ledger"], group.tables["decoding"]
    residual = ledger[(ledger["factor"] == "residual") & (ledger["layer"] == -1)]["eta_squared"].abs().max()
    omega = ledger["shuffled_omega"].abs().max()
    position = ledger[(ledger["factor"] == "position") & ledger["shuffled_eta"].notna()]
    lines = [
        f"Before LayerNorm the crossed design leaves {number(residual, 2)} of the variance unexplained (rounding): "
        "embeddings add up.",
        f"Shuffled states: |ω²| is at most {number(omega, 2)} for any factor and layer (chance 0); η² of position is "
        f"{number(position['shuffled_eta'].mean(), 2)} on average (chance {number(position['eta_chance'].mean(), 2)}).",
        f"Shuffled labels decode to {number(bits['shuffled_bits'].min(), 2)} to "
        f"{number(bits['shuffled_bits'].max(), 2)} bits (chance 0, or a little below). The control task, a random "
        "label for every word, decodes to "
        f"{number(bits['control_bits'].min(), 2)} to {number(bits['control_bits'].max(), 2)} bits: words come back in "
        "held-out texts, and their states tell them.",
    ]
    if RANDOM in group.arms:
        own = group.over_seeds("ledger", RANDOM, "omega_squared", factor="position")["mean"]
        if len(own):
            lines.append(
                f"Random weights of the same shape: ω² of position is {number(own.iloc[0], 2)} in the first stage and "
                f"{number(own.iloc[-1], 2)} in the last layer: what no training explains."
            )
    return lines


def _shares(group: FlowGroup, arm: str) -> pd.DataFrame:
    """By layer: mean, low and high of ω² of position, and the mean of content; low and high over models or draws."""
    position = group.over_seeds("ledger", arm, "omega_squared", factor="position")
    low = group.over_seeds("ledger", arm, "low", factor="position")["min"]
    high = group.over_seeds("ledger", arm, "high", factor="position")["max"]
    content = group.over_seeds("ledger", arm, "omega_squared", factor="content")["mean"]
    return pd.DataFrame({"position": position["mean"], "low": low, "high": high, "content": content}).dropna(
        subset=["position"]
    )


def _on_dominance(group: FlowGroup, arm: str) -> list[str]:
    shares = _shares(group, arm)
    if shares.empty:
        return []
    above = [_stage(layer) for layer in shares.index if shares["low"][layer] > shares["content"][layer]]
    peak = int(shares["position"].idxmax())
    text = (
        f"its largest share is {_percent(shares['position'][peak])} at {_stage(peak)}, where content has "
        f"{_percent(shares['content'][peak])}"
    )
    verdict = f"supported: it has more than content at {listing(above)}; " if above else "not supported: "
    return [f"{group.labels[arm]}: does position dominate the lower layers? {verdict.capitalize()}{text}."]


def _on_giving_way(group: FlowGroup, arm: str) -> list[str]:
    shares = _shares(group, arm)
    if len(shares) < 2:
        return []
    last, peak = int(shares.index[-1]), int(shares["position"].idxmax())
    falls = peak < last and shares["high"][last] < shares["low"][peak]
    content_low = group.over_seeds("ledger", arm, "low", factor="content")["min"]
    content_high = group.over_seeds("ledger", arm, "high", factor="content")["max"]
    rises = content_low[last] > content_high[peak]  # a rise within the interval is none
    verdict = "supported" if falls and rises else "not supported"
    if falls and not rises:
        verdict = "half of it: position falls, but content does not take over (interactions do)"
    return [
        f"{group.labels[arm]}: does position give way to content? {verdict.capitalize()}: from {_stage(peak)} to the "
        f"last layer position goes from {_percent(shares['position'][peak])} ({_range(shares, peak)}) to "
        f"{_percent(shares['position'][last])} ({_range(shares, last)}), content from "
        f"{_percent(shares['content'][peak])} to {_percent(shares['content'][last])}."
    ]


def _on_regimes(group: FlowGroup) -> list[str]:
    """Each arm's last layer and input beside the pretrained model's."""
    if PRETRAINED not in group.arms:
        return []
    before = _shares(group, PRETRAINED)
    lines = []
    for arm in group.arms:
        shares = _shares(group, arm)
        if arm in (PRETRAINED, RANDOM) or shares.empty or before.empty:
            continue
        apart = [
            _stage(layer)
            for layer in shares.index.intersection(before.index)
            if shares["low"][layer] > before["high"][layer] or shares["high"][layer] < before["low"][layer]
        ]
        change = (shares["position"] - before["position"]).dropna()
        most = int(change.abs().idxmax())
        where = f"their intervals part at {listing(apart)}" if apart else "their intervals overlap at every stage"
        seeds = (
            f", {group.num_models(arm)} seeds"
            if group.num_models(arm) > 1
            else ", one model (its interval covers contents, not seeds)"
        )
        lines.append(
            f"{group.labels[arm]} against pretrained{seeds}: position moves most at {_stage(most)}, from "
            f"{_percent(before['position'][most])} to {_percent(shares['position'][most])}; {where}."
        )
    return lines


def _on_segments(group: FlowGroup) -> list[str]:
    lines = group.tables["ledger"]
    lines = lines[lines["factor"] == "segment"]
    if lines["omega_squared"].isna().all():
        notes = [str(note) for note in lines["note"].dropna() if note]
        return [f"Segments: {notes[0] if notes else 'not applicable'}."]
    found = []
    for arm in group.arms:
        own = group.over_seeds("ledger", arm, "omega_squared", factor="segment")["mean"]
        if len(own) and arm != RANDOM:
            peak = int(own.idxmax())
            found.append(
                f"Segments, {group.labels[arm]}: {_percent(own[peak])} at {_stage(peak)}, {_percent(own.iloc[-1])} in "
                "the last layer."
            )
    return found


def _on_bits(group: FlowGroup) -> list[str]:
    lines = []
    word = group.tables["decoding"]["word_bits"].mean()
    whole = group.tables["decoding"]["entropy_bits"].mean()
    for arm in group.arms:
        bits = group.over_seeds("decoding", arm, "bits")["mean"]
        beyond = group.over_seeds("decoding", arm, "selective_bits")["mean"]
        own = group.of("decoding", arm)
        last = own[own["layer"] == own["layer"].max()]
        lines.append(
            f"Decoding, {group.labels[arm]}: {number(bits[0])} of {number(whole)} bits at the input, "
            f"{number(bits.iloc[-1])} in the last layer (the word alone tells {number(word)}); beyond the control task "
            f"{number(beyond[0])} and {number(beyond.iloc[-1])} ({number(last['low'].min(), 2)} to "
            f"{number(last['high'].max(), 2)})."
        )
    return lines


def _on_counterfactuals(group: FlowGroup) -> list[str]:
    """What happens to the score of runs that have a head."""
    lines = []
    table = group.tables["counterfactuals"]
    if table["value"].isna().all():
        return ["Counterfactual positions: not applicable, the model has no position table."]
    scores = table[table["quantity"] == "score"]
    for arm in dict.fromkeys(scores["arm"]):
        own = scores[scores["arm"] == arm]
        parts = []
        for name in COUNTERFACTUALS:
            value = own[own["counterfactual"] == name]
            if len(value):
                crosses = value["low"].min() <= 0 <= value["high"].max()
                parts.append(f"{name} {100 * value['value'].mean():+.1f}{' (interval holds 0)' if crosses else ''}")
        unit = own["unit"].iloc[0]
        lines.append(f"Other positions, {arm}: change of {unit} in points: {listing(parts)}.")
    return lines


def _range(shares: pd.DataFrame, layer: int) -> str:
    return f"{_percent(shares['low'][layer])} to {_percent(shares['high'][layer])}"


def _percent(share: float) -> str:
    return f"{number(100 * share)} %"


def _stage(layer: int) -> str:
    return {-1: "the sum before LayerNorm", 0: "the input"}.get(layer, f"layer {layer}")
