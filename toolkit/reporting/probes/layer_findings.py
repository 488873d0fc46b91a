"""What the tables on layers say in sentences: of states or of weights, and each number with its interval."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from toolkit.reporting.markdown import number
from toolkit.reporting.probes.layer_figures import BEFORE_AND_AFTER, CKA, STANDARDISED

Tables = Mapping[str, pd.DataFrame]

OWN_SEEDS, SHUFFLED, OTHER_ARM = "its own seeds", "shuffled labels", "first arm"
"""What the probe calls its kinds of contrast; a test holds the words together."""


def layer_findings(tables: Tables) -> list[str]:
    """Of states: per arm and texts the least similar layer, held against its own seeds and against shuffled labels.

    Then in which layers each arm is told apart from the first one. ``tables``: means and contrasts of one group.
    """
    means, contrasts = (table[table["measure"] == CKA] for table in (tables["means"], tables["contrasts"]))
    standardised = tables["means"][tables["means"]["measure"] == STANDARDISED]
    lines = []
    for (arm, texts), own in means.groupby(["arm", "texts"], sort=False):
        here = (contrasts["arm"] == arm) & (contrasts["texts"] == texts)
        beside = standardised[(standardised["arm"] == arm) & (standardised["texts"] == texts)]
        lines.append(_of_texts(f"{arm}, texts {texts}", own, contrasts[here], beside))
    others = contrasts[contrasts["kind"] == OTHER_ARM]
    for (arm, against), own in others.groupby(["arm", "against"], sort=False):
        lines.append(_against_first(str(arm), str(against), own))
    return [line for line in lines if line] or ["Nothing could be compared."]


def main_findings(tables: Tables) -> list[str]:
    """Per arm in which layer the states changed most, in which the weights moved most, and whether that is a trend.

    ``tables`` of one group. Why there are no states is said: of two checkpoints there is no table ``means``, and of
    texts that are encoded apart no line in it.
    """
    means, trends = tables["weight_means"], tables["weight_trends"]
    layers = means[means["component"].str.startswith("layers.")]
    lines = []
    for trend in trends.to_dict("records"):
        own = layers[layers["arm"] == trend["arm"]].set_index("layer")
        states = _most_changed_states(tables["means"], trend["arm"]) if "means" in tables else NO_STATES
        parts = [f"{trend['arm']}: {states}", _most_moved_weights(own, trend)]
        lines.append("; ".join(parts) + "." + _of_trend(trend))
    return lines


NO_STATES = "how the states change is not known of two checkpoints (it needs runs made with --save-model)"
APART = (
    "of the states nothing is said, because each text of a pair was encoded apart (--pair-encoding separate), so that "
    "an example has no one sequence of them"
)


def has_states(tables: Tables) -> bool:
    """Whether the tables of a group say anything of states."""
    return len(tables.get("means", ())) > 0


def _most_changed_states(means: pd.DataFrame, arm: str) -> str:
    """In which layer the states of an arm are least like before, of the first texts."""
    own = means[(means["arm"] == arm) & (means["comparison"] == BEFORE_AND_AFTER) & (means["measure"] == CKA)]
    if own.empty:
        return APART
    own = own[own["texts"] == own["texts"].iloc[0]].set_index("layer")
    if not own["mean"].notna().any():
        return "of the states nothing could be compared"
    if alike := _alike(own["mean"]):
        return alike
    most = int(own["mean"].idxmin())
    where = f"on {own['texts'].iloc[0]}, similarity {_shown(own.loc[most])}"
    inherited = "" if most == 0 else "; they inherit all layers below"
    return f"the states change most in {layer_name(most)} ({where}{inherited})"


def _alike(means: pd.Series) -> str:
    """What is said where all layers print as equally similar to before, so that none is the most changed; else ''."""
    least, most = (_decimal(value, is_signed=False) for value in (means.min(), means.max()))
    if least != most:
        return ""
    how = "no layer changed visibly" if least == "1.000" else "all layers changed alike"
    return f"the states of {how} (similarity {least})"


def _most_moved_weights(own: pd.DataFrame, trend: "Mapping[str, Any]") -> str:
    if own.empty or pd.isna(trend["most"]):
        moved = list(own.index[own["relative_drift"] > 0])
        if len(moved) == 1:
            return f"of the weights only those of {layer_name(moved[0])} moved, by {percent(own.loc[moved[0]])}"
        if moved or own.empty:
            return f"of the weights nothing can be said ({trend['note']})"
        return "the weights of no layer moved"
    most, least = int(trend["most"]), int(trend["least"])
    text = f"the weights moved most in {layer_name(most)}, by {percent(own.loc[most])} of their norm"
    return f"{text}, least in {layer_name(least)}, by {percent(own.loc[least])}"


def _of_trend(trend: "Mapping[str, Any]") -> str:
    """Whether the drift of weights depends on how high a layer stands, as far as the seeds can say."""
    verdict, note = trend["verdict"], trend["note"]
    if trend["top_to_bottom"] != trend["top_to_bottom"]:
        return ""
    shown = [number(trend[name], 3) for name in ("top_to_bottom", "low", "high")]
    ratio = shown[0] if trend["low"] != trend["low"] else f"{shown[0]} ({shown[1]} to {shown[2]})"
    text = (
        f" The top third of the layers moved {ratio} times as far as the bottom third: {VERDICTS.get(verdict, verdict)}"
    )
    return f"{text} ({note})." if note else f"{text}."


VERDICTS = {"flat": "flat, no layer is more than 10 % from the mean of the layers"}
"""What a verdict says beyond its name; a test holds the margin to that of the analysis."""


def percent(line: "pd.Series") -> str:
    """``1.93 % (1.90 to 1.96 %)`` of one mean relative drift; the value alone where there is no interval."""
    value, low, high = (number(100 * line[name]) for name in ("relative_drift", "low", "high"))
    return f"{value} %" if line["low"] != line["low"] else f"{value} % ({low} to {high} %)"


def with_interval(value: float, low: float, high: float, *, is_signed: bool = False) -> str:
    """``0.267 (0.226 to 0.305)``; the value alone where there is no interval."""
    shown = [_decimal(number, is_signed) for number in (value, low, high)]
    return shown[0] if low != low or high != high else f"{shown[0]} ({shown[1]} to {shown[2]})"


def _decimal(value: float, is_signed: bool) -> str:
    if value != value:
        return "undefined"
    rounded = round(value, 3) + 0.0  # no -0.000
    return f"{rounded:+.3f}" if is_signed else f"{rounded:.3f}"


def layer_name(layer: int) -> str:
    """``the embeddings`` for what layer 1 reads, ``layer 3``."""
    return "the embeddings" if layer == 0 else f"layer {layer}"


def _of_texts(lead: str, means: pd.DataFrame, contrasts: pd.DataFrame, standardised: pd.DataFrame) -> str:
    moved, beside = (
        table[table["comparison"] == BEFORE_AND_AFTER].set_index("layer") for table in (means, standardised)
    )
    if not moved["mean"].notna().any():
        return ""
    if alike := _alike(moved["mean"]):
        return f"{lead}: {alike}."
    most, least = int(moved["mean"].idxmin()), int(moved["mean"].idxmax())
    text = f"{lead}: least similar to before is {layer_name(most)}, {_shown(moved.loc[most])}"
    if most in beside.index:
        text += f", with standardised columns {_shown(beside.loc[most])}"
    text += f"; most similar {layer_name(least)}, {moved.loc[least, 'mean']:.3f}."
    at_most = contrasts[contrasts["layer"] == most]
    sentences = [_held_against(line) for line in at_most.to_dict("records") if line["kind"] != OTHER_ARM]
    return " ".join([text, *sentences])


def _shown(line: "pd.Series") -> str:
    return with_interval(line["mean"], line["low"], line["high"])


def _held_against(line: "Mapping[str, object]") -> str:
    """One contrast of the least similar layer in words."""
    own = line["kind"] == OWN_SEEDS
    other = f"{'Its seeds with each other' if own else 'Under ' + str(line['against'])} {line['other']:.3f}"
    low, high, floor = (float(line[name]) for name in ("low", "high", "between_seeds"))  # type: ignore[arg-type]
    if low != low:
        return f"{other}: a difference of {_gap(line)}, without interval."
    if line["num_seeds"] == 1:
        return f"{other}: a difference of {_gap(line)} over texts; one seed, so it says nothing of the arm."
    if low <= 0 <= high:
        return f"{other}: not told apart from that, {_gap(line)}."
    text = f"{other}: it is {'further' if high < 0 else 'less far'} from before than that, {_gap(line)}"
    if floor == floor:
        beyond = "beyond" if min(abs(low), abs(high)) > floor else "not clearly beyond"
        text += f", {beyond} the {floor:.3f} by which two seeds of one arm differ in this"
    return text + "."


def _against_first(arm: str, against: str, own: pd.DataFrame) -> str:
    """In how many layers and texts an arm is told apart from the first one; that it is not is no proof of equality."""
    known = own[own["low"].notna()]
    if known.empty:
        return ""
    if known["num_seeds"].max() == 1:
        greatest = known.loc[known["difference"].abs().idxmax()]
        text = f"{arm} against {against}: the greatest difference is {_gap(greatest)}, {_place(greatest)}"
        return f"{text}; one seed in common, so it says nothing of the arms."
    apart = known[(known["low"] > 0) | (known["high"] < 0)]
    further = f"{(apart['high'] < 0).sum()} further from before, {(apart['low'] > 0).sum()} less far"
    text = f"{arm} against {against}: told apart in {len(apart)} of {len(known)} layers and texts ({further})"
    greatest, widest = (
        known.loc[column.idxmax()] for column in (known["difference"].abs(), known["high"] - known["low"])
    )
    text += f"; the greatest difference is {_gap(greatest)}, {_place(greatest)}"
    if greatest["between_seeds"] == greatest["between_seeds"]:
        text += f", where two seeds of one arm differ by {greatest['between_seeds']:.3f}"
    if len(apart) < len(known):
        text += f"; the least precise {_gap(widest)}, {_place(widest)}: not told apart is not the same as equal"
    return text + "."


def _place(line: "pd.Series") -> str:
    return f"{layer_name(int(line['layer']))} on {line['texts']}"


def _gap(line: "Mapping[str, object] | pd.Series") -> str:
    return with_interval(line["difference"], line["low"], line["high"], is_signed=True)  # type: ignore[arg-type]
