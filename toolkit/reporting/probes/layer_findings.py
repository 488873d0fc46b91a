"""The tables of layer drift in, what they say in sentences out, each number with its interval."""

from collections.abc import Mapping

import pandas as pd

from toolkit.reporting.probes.layer_figures import BEFORE_AND_AFTER, CKA, STANDARDISED

Tables = Mapping[str, pd.DataFrame]

OWN_SEEDS, SHUFFLED, OTHER_ARM = "its own seeds", "shuffled labels", "first arm"
"""What the probe calls its kinds of contrast; a test holds the words together."""


def layer_findings(tables: Tables) -> list[str]:
    """Per arm and texts: its least similar layer, held against its own seeds and against shuffled labels.

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
    if moved["mean"].min() > 1 - 1e-6:
        return f"{lead}: no layer moved."
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
