"""Drift joined with score in, what may be said of it out: what real labels add to it, and never a share of a table.

A share of the whole vocabulary compares how many words tasks have. A multiple of what random gradient signs would have
moved the same rows does not; alone it shows no learning, and it is compared at equal learning rates only.
"""

from collections.abc import Iterable

import pandas as pd

from toolkit.analysis.comparison.drift_cards import NO_CONTROL
from toolkit.analysis.comparison.label_cards import chosen_lines
from toolkit.reporting.comparison.selections import has_several_models, largest_size, task_names
from toolkit.reporting.markdown import listing, p_value


def drift_answer(joined: pd.DataFrame, association: pd.DataFrame, labels: pd.DataFrame | None = None) -> str:
    """How far the word embeddings moved, whether real labels made them, and whether that went with what moving gained.

    ``labels``: the table of :func:`toolkit.compare_with_shuffled`; None or empty where no labels were shuffled.
    """
    return " ".join(part for part in (moved_sentence(joined, labels), _associated(association)) if part)


def moved_sentence(joined: pd.DataFrame, labels: pd.DataFrame | None = None) -> str:
    """Of the first arm in which word rows moved: what real labels add to that, or what its size cannot tell."""
    table = joined[(joined["parameter"] == "word_embeddings") & ~joined["is_frozen"].astype(bool)]
    if table.empty:
        return "No word embeddings were trained in any run."
    known = table[table["times_noise"].notna()]
    if labels is not None and len(labels):
        words = chosen_lines(labels[labels["parameter"] == "word_embeddings"])
        return " ".join(label_sentence(own) for _, own in words.groupby(["group", "arm"], sort=False))
    if known.empty:
        return ""
    base = known["base"].iloc[0]
    own = largest_size(known[known["base"] == base])
    return (
        f"Under {base} the word rows that training showed moved {_amount(own)} times as far as random gradient signs "
        f"would move them. That describes and shows no learning: {NO_CONTROL}."
    )


def label_sentence(lines: pd.DataFrame) -> str:
    """Agreement of seeds under real and under shuffled labels first, then how much further words moved."""
    parts = []
    for line in lines.to_dict("records"):
        known = line["value"] == line["value"]
        span = f" ({line['low']:+.2f} to {line['high']:+.2f})" if line["low"] == line["low"] else ""
        if line["measure"] == "agreement" and known:
            text = f"two seeds move a word with a mean cosine of {line['real']:.2f} under real labels and "
            text += f"{line['shuffled']:.2f} under shuffled ones ({line['permutation']}): {line['value']:+.2f}{span}"
        elif known:
            span = span.replace(" to ", " % to ").replace(")", " %)")
            text = f"how far the median word moved, against shuffled labels ({line['permutation']}): "
            text += f"{line['value']:+.1f} %{span}"
        else:
            text = f"{line['measure'].replace('_', ' ')} is undefined"
        parts.append(f"{text}: {line['verdict']}")
    first = lines.iloc[0]
    return f"{first['group']}, {first['arm']}: {'; '.join(parts)}."


def _amount(own: pd.DataFrame) -> str:
    """The multiple of noise of each task with its learning rate: rates that differ make tasks incomparable."""
    means = own.groupby(task_names(own), sort=False)["times_noise"].mean()
    if len(means) == 1:
        return f"{means.iloc[0]:.2f} ({means.index[0]})"
    rates = own.groupby(task_names(own), sort=False)["learning_rate"].first()
    if rates.nunique() == 1:
        return f"{means.min():.2f} ({means.idxmin()}) to {means.max():.2f} ({means.idxmax()})"
    return listing([f"{means[name]:.2f} ({name}, at {rates[name]:g})" for name in means.index])


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
