"""Drift joined with score in, what may be said of it across tasks out: in multiples of its noise, never of a table.

A share of the whole vocabulary compares how many words tasks have; what random gradient signs of the same steps would
have moved the same rows is the yardstick that tasks share.
"""

import pandas as pd

from toolkit.reporting.markdown import p_value
from toolkit.reporting.selections import largest_size, task_names


def drift_answer(joined: pd.DataFrame, association: pd.DataFrame) -> str:
    """How far the word embeddings moved, over tasks, and whether that went with what moving gained."""
    return " ".join(part for part in (_moved(joined), _associated(association)) if part)


def _moved(joined: pd.DataFrame) -> str:
    """The first arm in which the drift of the shown word rows can be held against its noise."""
    table = joined[(joined["parameter"] == "word_embeddings") & ~joined["is_frozen"].astype(bool)]
    if table.empty:
        return "No word embeddings were trained in any run."
    known = table[table["times_noise"].notna()]
    if known.empty:
        return ""
    base = known["base"].iloc[0]
    own = largest_size(known[known["base"] == base])
    means = own.groupby(task_names(own), sort=False)["times_noise"].mean()
    least, most = (f"{means[name]:.2f} ({name})" for name in (means.idxmin(), means.idxmax()))
    amount = least if len(means) == 1 else f"{least} to {most}"
    return (
        f"Under {base} the word rows that training showed moved {amount} times as far as random gradient signs would "
        f"move them."
    )


def _associated(table: pd.DataFrame) -> str:
    """Drift against gain over tasks, or why nothing is said of it."""
    if table.empty:
        return ""
    defined = table[table["spearman"].notna()]
    if defined.empty:
        return f"Does drift predict gain across tasks? {str(table['note'].iloc[0]).capitalize()}."
    words = defined[defined["parameter"] == "word_embeddings"]
    line = (words if len(words) else defined).iloc[0]
    return (
        f"Across {int(line['num_tasks'])} tasks, drift of {line['parameter']} and gain under {line['base']} have a "
        f"rank correlation of {line['spearman']:+.2f} (permutation {p_value(line['p'])})."
    )
