"""Tables of all groups in, the lines that a figure or a sentence is about out, and the names of tasks and arms."""

import numpy as np
import pandas as pd

from toolkit.comparison.estimates import NO_MEAN, OTHER_ITEMS_PER_SEED
from toolkit.comparison.reported import CORRELATIONS
from toolkit.reporting.cells import listing


def headline(comparison: pd.DataFrame) -> pd.DataFrame:
    """The lines of a comparison that are about the headline score: accuracy may stand beside another one."""
    return comparison[comparison["is_headline"].astype(bool)]


def largest_size(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of the most training examples of each group, where its runs differ in it.

    By ``size``, what the runs were asked for (none is all of them), where the table has it.
    """
    if "size" in table:
        asked = pd.to_numeric(table["size"]).astype("Float64").fillna(np.inf).astype(float)
        return table[asked == asked.groupby(table["group"], sort=False).transform("max")]
    sizes = pd.to_numeric(table["num_train_examples"]).astype(float)
    greatest = sizes.groupby(table["group"], sort=False).transform("max")
    # Near-duplicates are removed per seed, so that arms of one size may differ by a few examples.
    return table[sizes.isna() | (sizes > 0.9 * greatest)]


def covered(comparison: pd.DataFrame) -> str:
    """What the intervals of these lines are over: ``seeds and items``, ``seeds (f1)``; '' where there are none.

    A score that is no mean over items, or one whose items differ between seeds, has an interval over seeds.
    """
    scores: dict[str, list[str]] = {}
    for line in comparison[comparison["low_points"].notna()].to_dict("records"):
        is_over_seeds = str(line.get("note", "")).startswith((NO_MEAN, OTHER_ITEMS_PER_SEED))
        over = "seeds" if is_over_seeds else "seeds and items" if line["num_seeds"] > 1 else "items only"
        scores.setdefault(over, []).append(str(line["score"]))
    if len(scores) < 2:
        return "".join(scores)
    return " or ".join(f"{over} ({listing(list(dict.fromkeys(own)))})" for over, own in scores.items())


def reach_points(score: str) -> float:
    """The greatest difference that two values of a score can have, in points: correlations may be below 0."""
    return 200.0 if score in CORRELATIONS else 100.0


def task_names(table: pd.DataFrame) -> pd.Series:
    """What to call the task of each line: with the model where there are several."""
    names = table["group"].astype(str)
    if table["model"].nunique() != 1:
        return names
    return names.str.removeprefix(f"{table['model'].iloc[0]} on ")


def has_several_models(table: pd.DataFrame) -> bool:
    return "model" in table and bool(table["model"].nunique() > 1)


def counted_tasks(table: pd.DataFrame, count: int, kind: str = "") -> str:
    """``3 real tasks``; where the lines are of several models, ``9 controlled pairs of model and task``."""
    ending = "" if count == 1 else "s"
    noun = f"pair{ending} of model and task" if has_several_models(table) else f"task{ending}"
    return f"{count} {kind}{noun}"


def arm_names(table: pd.DataFrame) -> list[str]:
    return [str(arm) for arm in dict.fromkeys(table["base"])]
