"""The tables of transplants in, what they say in sentences out, each with its numbers."""

from collections.abc import Mapping, Sequence

import pandas as pd

from toolkit.reporting.cells import interval
from toolkit.reporting.markdown import listing
from toolkit.reporting.probes.transplant_figures import ACCURACY, LIKELIHOOD, PANEL, TOTAL

Tables = Mapping[str, pd.DataFrame]

KEY = [*PANEL, "direction", "coordinates"]
COMPARED = {"difference": "random changes of the same size", "rotated difference": "its own change rotated"}
"""Kind of difference from a random change to what is said of it."""


def name_of(key: Sequence[object]) -> str:
    """``minilm on sst2, full fine-tuning``."""
    return f"{key[0]} on {key[1]}, {key[2]}"


def findings(tables: Tables) -> list[str]:
    """Per arm and direction: what all components are worth, and each of them, and random changes beside it."""
    lines = []
    for key, own in tables["shapley"].groupby(KEY, sort=False):
        lines += _of_arm(key, own, tables)
    return lines


def _of_arm(key: Sequence[object], own: pd.DataFrame, tables: Tables) -> list[str]:
    values = {value: part.set_index("component") for value, part in own.groupby("value", sort=False)}
    likelihood, accuracy = values[LIKELIHOOD], values[ACCURACY]
    total, right = likelihood.loc[TOTAL], accuracy.loc[TOTAL]
    lead = name_of(key) + (", reverse" if key[3] == "reverse" else "")
    seeds = f"{total['num_seeds']} seed{'s' if total['num_seeds'] > 1 else ''} x {total['num_items']:,} items"
    ends = _levels(tables["coalitions"], key)
    lines = [
        f"{lead} ({seeds}): {_what(key)} {total['estimate']:+.4f} nats per item "
        f"({interval(total['low'], total['high'], 4)}) and {right['estimate']:+.2f} points of accuracy "
        f"({interval(right['low'], right['high'])}){ends}."
    ]
    if total["num_seeds"] == 1:
        lines.append(f"{lead}: one seed, so that the intervals are over items alone and say nothing of other seeds.")
    parts = likelihood.drop(index=TOTAL)
    clear = parts[(parts["low"] > 0) | (parts["high"] < 0)].sort_values("estimate", key=abs, ascending=False)
    if clear.empty:
        lines.append(f"{lead}: no component's own value is told apart from 0.")
    else:
        shown = [_component(str(name), line) for name, line in clear.iterrows()]
        lines.append(f"{lead}: told apart from 0 {'is' if len(shown) == 1 else 'are'} {listing(shown)}.")
    still: dict[str, list[str]] = {}
    for name, line in parts.iterrows():
        if line["estimate"] == line["low"] == line["high"] == 0:
            still.setdefault(_why_still(line["note"]), []).append(str(name))
    lines += [f"{lead}: exactly 0, because {why}: {listing(names)}." for why, names in still.items()]
    return lines + _random(lead, key, tables["singles"])


def _why_still(note: str) -> str:
    """The reason in the note of a component that is exactly 0."""
    why, is_given, _ = note.partition(": exactly 0")
    return why if is_given else "bit for bit what it was"


def _what(key: Sequence[object]) -> str:
    if key[3] == "reverse":
        return "in the body from before, under a re-fitted probe, the tuned embeddings are worth"
    return "to the tuned body and head, the drift of the embeddings is worth"


def _component(name: str, line: "pd.Series") -> str:
    share = "" if pd.isna(line["share"]) else f", {share_text(line['share'])} of the sum"
    return f"{name} {line['estimate']:+.4f} nats ({interval(line['low'], line['high'], 4)}{share})"


def share_text(share: float) -> str:
    """Whole percent, without a sign on 0."""
    return f"{round(100 * share) + 0}%"


def _levels(coalitions: pd.DataFrame, key: Sequence[object]) -> str:
    """v(none) and v(all) as accuracies, means over seeds."""
    own = coalitions[(coalitions[KEY] == list(key)).all(axis=1) & (coalitions["value"] == ACCURACY)]
    means = own[own["coalition"].isin(["none", "all"])].groupby("coalition")["mean"].mean()
    return f", from {means['none']:.1f} to {means['all']:.1f}" if len(means) == 2 else ""


def _random(lead: str, key: Sequence[object], singles: pd.DataFrame) -> list[str]:
    """Components whose drift, alone, does something else than random changes of its size."""
    own = singles[(singles[KEY] == list(key)).all(axis=1) & (singles["value"] == LIKELIHOOD)]
    said = []
    for kind, what in COMPARED.items():
        lines = own[own["kind"] == kind].set_index("component")
        clear = lines[(lines["low"] > 0) | (lines["high"] < 0)]
        if len(lines):
            shown = [f"{name} ({line['estimate']:+.4f} nats)" for name, line in clear.iterrows()]
            said.append(f"{what}: {listing(shown) if shown else 'none'}")
    return [f"{lead}: alone, told apart from {'; from '.join(said)}."] if said else []


def caveats(tables: Tables) -> list[str]:
    """What the numbers do not say."""
    lines = [
        "The body and the head were tuned together with these embeddings: v(S) asks what they are worth to this body, "
        "not what training without that drift would have reached. That is a run with the component frozen.",
        "Each interval is of one component; none is adjusted for how many there are.",
        "Log-likelihood is the first value because accuracy moves in whole items; both are on the scored items.",
    ]
    lines += _of_random(tables)
    if (tables["shapley"]["num_seeds"] == 1).any():
        lines.append("Of one seed an interval covers new items only, not new seeds: no share is given.")
    if tables["shapley"]["coordinates"].eq("raw").any():
        lines.append("In raw coordinates the split among the tables depends on offsets that no output shows.")
    notes = dict.fromkeys(note for note in tables["checks"]["note"] if note)
    return [*lines, *(f"Of some runs: {note}." for note in notes)]


def _of_random(tables: Tables) -> list[str]:
    """What random changes control for, and how many of each there were."""
    if tables["singles"].empty:
        return []
    drawn = tables["checks"].groupby("direction", sort=False)["num_draws"].max()
    counts = listing([f"{count} {direction}" for direction, count in drawn.items()])
    return [
        "Random changes row by row cancel out where many rows act together, as drift does not: a weak control. Rotated "
        "changes keep what the rows share and lose only where in the space it points. A component that is one vector "
        "has the first kind only. Neither keeps how a change lies to the main directions of the table.",
        f"Random changes of each kind beside each transplant, in each seed: {counts}; where there are few, their range "
        "is no interval, and not being told apart from them is no equality.",
    ]
