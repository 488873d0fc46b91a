"""Drift joined with score in, what may be said of it across tasks out: in multiples of its noise, never of a table.

A share of the whole vocabulary compares how many words tasks have; what random gradient signs of the same steps would
have moved the same rows is the yardstick that tasks share.
"""

from collections.abc import Iterable, Sequence

import pandas as pd

from toolkit.analysis.comparison.card import Card
from toolkit.reporting.comparison.selections import counted_tasks, has_several_models, largest_size, task_names
from toolkit.reporting.markdown import listing, p_value


def drift_answer(joined: pd.DataFrame, association: pd.DataFrame, cards: Sequence[Card] = ()) -> str:
    """How far the word embeddings moved, over tasks, and whether that went with what moving gained.

    ``cards``: those of the report; with them it is said on how many tasks the drift is told apart from noise.
    """
    return " ".join(part for part in (_moved(joined, cards), _associated(association)) if part)


def _moved(joined: pd.DataFrame, cards: Sequence[Card]) -> str:
    """The first arm in which the drift of the shown word rows can be held against its noise."""
    table = joined[(joined["parameter"] == "word_embeddings") & ~joined["is_frozen"].astype(bool)]
    if table.empty:
        return "No word embeddings were trained in any run."
    known = table[table["times_noise"].notna()]
    if known.empty:
        return ""
    base = known["base"].iloc[0]
    own = largest_size(known[known["base"] == base])
    text = (
        f"Under {base} the word rows that training showed moved {_amount(own)} times as far as random gradient signs "
        f"would move them{_told_apart(own, cards)}."
    )
    others = joined[(joined["parameter"] == "position_embeddings") & (joined["base"] == base)]
    others = others[~others["is_frozen"].astype(bool) & others["times_noise"].notna()]
    if not cards or others.empty:
        return text
    others = largest_size(others)
    return f"{text} Position rows: {_amount(others)} times{_told_apart(others, cards)}."


def _amount(own: pd.DataFrame) -> str:
    """The least and the greatest multiple of noise over tasks, with the task of each."""
    means = own.groupby(task_names(own), sort=False)["times_noise"].mean()
    least, most = (f"{means[name]:.2f} ({name})" for name in (means.idxmin(), means.idxmax()))
    return least if len(means) == 1 else f"{least} to {most}"


def _told_apart(own: pd.DataFrame, cards: Sequence[Card]) -> str:
    """On how many tasks the cards call this drift supported, and what they say of the others; '' without cards."""
    verdicts = {card.id: card.verdict for card in cards if card.kind == "drift"}
    arms = own.assign(name=task_names(own)).drop_duplicates("group").to_dict("records")
    found: dict[str, list[str]] = {}
    for line in arms:
        verdict = verdicts.get(f"drift: {line['group']} / {line['arm']} / {line['parameter']}") if verdicts else None
        if verdict is not None:
            found.setdefault(verdict, []).append(str(line["name"]))
    if not found:
        return ""
    count, total = len(found.pop("supported", [])), len(arms)
    said = {"equivalent": "equivalent to noise"}
    rest = "; ".join(f"{said.get(verdict, verdict)} on {listing(names)}" for verdict, names in found.items())
    return f", told apart from noise on {count} of {counted_tasks(own, total)}" + (f" ({rest})" if rest else "")


def _associated(table: pd.DataFrame) -> str:
    """Drift against gain over tasks, or why nothing is said of it."""
    if table.empty:
        return ""
    defined = table[table["spearman"].notna()]
    if defined.empty:
        own = table[table["parameter"] == "word_embeddings"]
        line = (own if len(own) else table).iloc[0]
        tasks = f"the tasks of {line['model']}" if has_several_models(table) else "tasks"
        return f"Does drift of {line['parameter']} predict gain across {tasks}? {str(line['note']).capitalize()}."
    words = defined[defined["parameter"] == "word_embeddings"]
    line = (words if len(words) else defined).iloc[0]
    whose_tasks = f" of {line['model']}" if has_several_models(table) else ""
    return (
        f"Across {int(line['num_tasks'])} tasks{whose_tasks}, drift of {line['parameter']} and gain under "
        f"{line['base']} have a rank correlation of {line['spearman']:+.2f} (permutation {p_value(line['p'])})."
    )


def whose(pairs: Iterable[tuple[str, str]]) -> str:
    """``word_embeddings and position_embeddings under full``, of pairs of a parameter and where it was trained."""
    parameters: dict[str, list[str]] = {}
    for parameter, where in pairs:
        parameters.setdefault(where, []).append(parameter)
    places: dict[tuple[str, ...], list[str]] = {}
    for where, names in parameters.items():
        places.setdefault(tuple(dict.fromkeys(names)), []).append(where)
    return "; ".join(f"{listing(list(names))} under {listing(own)}" for names, own in places.items())
