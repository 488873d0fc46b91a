"""The tables of a position flow in, its sentences out: each a number and what it was held against."""

from collections.abc import Sequence

import numpy as np

from toolkit.analysis.comparison.intervals import Interval
from toolkit.reporting.markdown import listing, number
from toolkit.reporting.probes.flow_expectations import ROUNDING, expectation_findings, percent
from toolkit.reporting.probes.flow_intervals import estimate
from toolkit.reporting.probes.flow_tables import COUNTERFACTUALS, RANDOM, FlowGroup, stage_text

IN_POINTS = ("accuracy", "macro_f1", "f1")
"""Scores that are shares: a hundredth is a point."""


def flow_findings(group: FlowGroup) -> list[str]:
    """Sentences in plain text; negative findings too."""
    return [*expectation_findings(group), *_on_segments(group), *_on_bits(group), *_on_counterfactuals(group)]


def null_findings(group: FlowGroup) -> list[str]:
    """What the references read: the sum before LayerNorm, shuffled states and labels, random weights."""
    ledger, bits = group.tables["ledger"], group.tables["decoding"]
    residual = ledger[(ledger["factor"] == "residual") & (ledger["layer"] == -1)]["eta_squared"].abs().max()
    omega = ledger["shuffled_omega"].abs().max()
    position = ledger[(ledger["factor"] == "position") & ledger["shuffled_eta"].notna()]
    by_block = ledger.loc[ledger["factor"] == "position", "by_block_eta"]
    lines = [
        f"Before LayerNorm the crossed design leaves {number(residual, 2)} of the variance unexplained (rounding): "
        "embeddings add up.",
        "What position does to single texts and not to all (block x position, the error term) is at most "
        f"{percent(by_block.max())} of the variance.",
        f"Shuffled states: |ω²| is at most {number(omega, 2)} for any factor and layer (chance 0); η² of position is "
        f"{number(position['shuffled_eta'].mean(), 2)} on average (chance {number(position['eta_chance'].mean(), 2)}).",
        f"Shuffled labels decode to {number(bits['shuffled_bits'].min(), 2)} to "
        f"{number(bits['shuffled_bits'].max(), 2)} bits (chance 0, or a little below). The control task, a random "
        f"label for every word, has {number(bits['control_entropy_bits'].mean())} bits of entropy (the position "
        f"{number(bits['entropy_bits'].mean())}) and decodes to "
        f"{number(bits['control_bits'].min(), 2)} to {number(bits['control_bits'].max(), 2)} bits: words come back in "
        "held-out texts, and their states tell them.",
    ]
    if RANDOM in group.arms:
        own = group.over_seeds("ledger", RANDOM, "omega_squared", factor="position")["mean"]
        if (own.abs() >= ROUNDING).any():
            lines.append(
                f"Random weights of the same shape: ω² of position is {number(own.iloc[0], 2)} in the first stage and "
                f"{number(own.iloc[-1], 2)} in the last layer: what no training explains."
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
                f"Segments, {group.labels[arm]}: {percent(own[peak])} at {stage_text(peak)}, {percent(own.iloc[-1])} "
                "in the last layer."
            )
    return found


def _on_bits(group: FlowGroup) -> list[str]:
    lines = []
    word = group.tables["decoding"]["word_bits"].mean()
    whole = group.tables["decoding"]["entropy_bits"].mean()
    for arm in group.arms:
        bits, beyond, words = (
            group.over_seeds("decoding", arm, name) for name in ("bits", "selective_bits", "beyond_word_bits")
        )
        last = max(bits.index)
        spans = [_span(*values.loc[last, ["low", "high"]]) for values in (bits, words, beyond)]
        lines.append(
            f"Decoding, {group.labels[arm]}: {number(bits['mean'][0])} of {number(whole)} bits at the input, "
            f"{number(bits['mean'][last])}{spans[0]} in the last layer; beyond what the "
            f"word alone tells ({number(word)}) {number(words['mean'][last])}{spans[1]}; "
            f"beyond the control task, a lower bound, {number(beyond['mean'][0])} and {number(beyond['mean'][last])}"
            f"{spans[2]}."
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
        changes = {
            name: estimate(lines_of, "value")
            for name in COUNTERFACTUALS
            if len(lines_of := own[own["counterfactual"] == name])
        }
        unit = str(own["unit"].iloc[0])
        apart = [name for name, change in changes.items() if change.low > 0 or change.high < 0]
        seeds = group.num_models(str(arm))
        lines.append(
            f"Other positions, {arm}: change of {unit}{' in points' if unit in IN_POINTS else ''}: "
            f"{listing(_changes(changes, unit))}; told apart from 0: {listing(apart) if apart else 'none'} "
            f"({seeds} {'seeds' if seeds > 1 else 'seed'}, {int(own['num_texts'].max())} texts)."
        )
    return lines


def _changes(changes: dict[str, Interval], unit: str) -> Sequence[str]:
    factor, digits = (100, 1) if unit in IN_POINTS else (1, 3)
    return [
        f"{name} {factor * change.estimate:+.{digits}f}"
        + (
            ""
            if np.isnan(change.low)
            else f" ({factor * change.low:+.{digits}f} to {factor * change.high:+.{digits}f})"
        )
        for name, change in changes.items()
    ]


def _span(low: float, high: float) -> str:
    return "" if np.isnan(low) else f" ({number(low)} to {number(high)})"
