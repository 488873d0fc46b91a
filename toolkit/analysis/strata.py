"""Strata of rows: rows of one parameter that moved for the same reason.

A mean over a whole vocabulary mixes rows that training moved with rows that only weight decay moved.
Strata rest on the exposure of the whole run, so a row is in the same stratum at every epoch.
"""

import re
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.blocks import tables_of
from toolkit.naming import NOT_MEASURABLE, NOT_RECORDED, Refusal, lookup
from toolkit.snapshots.logs import TableExposure
from toolkit.snapshots.snapshot import Trajectory

StratumNames = NDArray[np.object_]
Steps = NDArray[np.int64]

UNKNOWN = "exposure unknown"
"""Stratum of rows whose exposure was not recorded, where it decides."""

BY_STEPS = ("seen in 0 steps", "seen in 1 step", "seen in 2-9 steps", "seen in 10-99 steps", "seen in >=100 steps")
INFERRED = {"exposed": "exposed (inferred)", "unexposed": "unexposed (inferred)", "cannot tell": UNKNOWN}
"""Where exposure was not recorded, but two checkpoints told it (:func:`toolkit.infer_exposure`)."""
ADDED, ADDED_UNSEEN = "added", "added, never seen"
"""Rows of tokens that a run added to its checkpoint; those that it never showed, where its exposure is known."""
IS_OUTPUT_TOO = "is the output layer too, by which each of its rows may get a gradient at any step"
AT_INPUT, NOT_AT_INPUT = "used at the input", "not used at the input"
"""Of a word table that is the output layer too, whose every row may get a gradient at each step."""
WORD_STRATA = ("[PAD]", "other special", "[unused]", *BY_STEPS, *list(INFERRED.values())[:2], AT_INPUT, NOT_AT_INPUT)
WORD_STRATA += (ADDED, ADDED_UNSEEN, UNKNOWN)
POSITION_STRATA = (
    "padding rows",
    "position 0",
    "positions 1-127",
    "positions 128 to longest",
    "positions beyond longest",
    UNKNOWN,
)
VECTOR_STRATA = ("all",)

UNUSED = re.compile(r"\[unused\d+\]|madeupword\d+")
"""Texts of rows that vocabularies keep free: BERT's and ModernBERT's, and RoBERTa's."""


def assign_strata(trajectory: Trajectory, parameter: str) -> "pd.Categorical":
    """The stratum of each row, ordered, with all category names of that parameter; a LayerNorm vector is one row."""
    num_rows = count_rows(trajectory, parameter)
    exposure, inferred = table_exposure(trajectory, parameter), (trajectory.inferred or {}).get(parameter)
    steps = None if exposure is None else exposure.step_counts(num_rows)
    if steps is None and inferred is not None and parameter != "word_embeddings" and "cannot tell" not in inferred:
        steps = (inferred == "exposed").astype(np.int64)
    categories: tuple[str, ...] = VECTOR_STRATA
    strata = np.full(num_rows, "all", dtype=object)
    if parameter == "word_embeddings":
        inferred_strata = None if inferred is None else np.array([INFERRED[name] for name in inferred], dtype=object)
        if (at_input := input_tokens(trajectory, parameter)) is not None:
            inferred_strata = np.where(at_input > 0, AT_INPUT, NOT_AT_INPUT).astype(object)
        categories, strata = WORD_STRATA, _word_strata(trajectory, num_rows, steps, inferred_strata)
    elif parameter == "position_embeddings":
        categories, strata = POSITION_STRATA, _position_strata(trajectory.position_offset, num_rows, steps)
    elif parameter == "token_type_embeddings":
        categories = (*_segments(num_rows), "unused segment", UNKNOWN)
        strata = _segment_strata(num_rows, steps)
    return pd.Categorical(strata, categories=categories, ordered=True)


def rows_by_stratum(trajectory: Trajectory, parameter: str) -> dict[str, NDArray[np.intp]]:
    """The rows of each stratum that has any, in the order of the strata."""
    strata = assign_strata(trajectory, parameter)
    groups = {name: np.flatnonzero(strata == name) for name in strata.categories}
    return {name: rows for name, rows in groups.items() if len(rows)}


def describe_rows(trajectory: Trajectory, parameter: str) -> dict[str, Any]:
    """The columns that say what each row is: row, token ("" without a vocabulary) and stratum."""
    strata = assign_strata(trajectory, parameter)
    vocabulary = trajectory.vocabulary if parameter == "word_embeddings" else None
    tokens = np.array(vocabulary.tokens if vocabulary else [""] * len(strata), dtype=object)
    return {"row": np.arange(len(strata)), "token": tokens, "stratum": strata}


def count_exposure(trajectory: Trajectory, parameter: str, last_step: int | None = None) -> dict[str, Any]:
    """The columns num_steps and num_tokens of every row up to a step: nullable integers, NA where it is unknown.

    Of rows that are inferred to be unexposed both are 0. Of a table that is the output layer too the tokens are those
    of the input, and the steps NA.
    """
    num_rows, table = count_rows(trajectory, parameter), table_exposure(trajectory, parameter)
    if (at_input := input_tokens(trajectory, parameter)) is not None:
        is_whole_run = last_step is None or last_step >= trajectory.snapshots[-1].step
        tokens = pd.array(at_input, dtype="Int64") if is_whole_run else pd.array([pd.NA] * num_rows, dtype="Int64")
        return {"num_steps": pd.array([pd.NA] * num_rows, dtype="Int64"), "num_tokens": tokens}
    if table is None:
        inferred = (trajectory.inferred or {}).get(parameter, np.full(num_rows, "cannot tell"))
        unknown_or_0 = pd.array(np.zeros(num_rows), dtype="Int64")
        unknown_or_0[inferred != "unexposed"] = pd.NA
        return dict.fromkeys(("num_steps", "num_tokens"), unknown_or_0)
    counts = {
        "num_steps": table.step_counts(num_rows, last_step),
        "num_tokens": table.token_counts(num_rows, last_step),
    }
    return {name: pd.array(column, dtype="Int64") for name, column in counts.items()}


def count_rows(trajectory: Trajectory, parameter: str) -> int:
    """Rows of a table, 1 for a LayerNorm vector; ValueError when the trajectory has no such parameter, or no rows."""
    lookup(dict.fromkeys(trajectory.parameters), parameter, "embedding parameter of this run")
    return len(tables_of(trajectory.snapshots[:1], parameter)[0])


def table_exposure(trajectory: Trajectory, parameter: str) -> TableExposure | None:
    """The exposure of a table, None when it was not recorded; ValueError when it names rows that the table lacks."""
    exposure = trajectory.exposure
    table = exposure.tables.get(parameter) if exposure else None
    num_rows = count_rows(trajectory, parameter)
    if table is not None and table.rows.size and int(table.rows.max()) >= num_rows:
        raise ValueError(f"the exposure of {parameter} names row {table.rows.max()}, but the table has {num_rows} rows")
    return table


def input_tokens(trajectory: Trajectory, parameter: str) -> Steps | None:
    """(rows,) tokens of the input, of a table that is the output layer too; None of another, or where unknown."""
    exposure = trajectory.exposure
    return exposure.input_tokens(parameter, count_rows(trajectory, parameter)) if exposure else None


def why_unknown(trajectory: Trajectory, parameter: str) -> Refusal:
    """Why the exposure of a table is not known, where :func:`table_exposure` is None."""
    if input_tokens(trajectory, parameter) is not None:
        return Refusal(f"{parameter} {IS_OUTPUT_TOO}", NOT_MEASURABLE)
    return Refusal(f"the exposure of {parameter} was not recorded", NOT_RECORDED)


def _word_strata(
    trajectory: Trajectory, num_rows: int, steps: Steps | None, inferred: StratumNames | None
) -> StratumNames:
    """(rows,) strata of word rows: by steps where exposure is known, else as inferred; special and added ones apart."""
    strata: StratumNames = np.full(num_rows, UNKNOWN, dtype=object) if inferred is None else inferred
    if steps is not None:
        strata = np.array(BY_STEPS, dtype=object)[np.digitize(steps, (1, 2, 10, 100))]
    vocabulary = trajectory.vocabulary
    if vocabulary is None:
        return strata
    if len(vocabulary.tokens) != num_rows:
        raise ValueError(f"the vocabulary has {len(vocabulary.tokens)} tokens, word_embeddings has {num_rows} rows")
    # The last assignment wins: what a token is comes before how often it was seen, [PAD] before other special tokens.
    strata[[row for row, text in enumerate(vocabulary.tokens) if not text or UNUSED.fullmatch(text)]] = "[unused]"
    strata[sorted(vocabulary.special_rows)] = "other special"
    if vocabulary.pad_row is not None:
        strata[vocabulary.pad_row] = "[PAD]"
    for row in vocabulary.added_rows:
        strata[row] = ADDED_UNSEEN if steps is not None and not steps[row] else ADDED
    return strata


def is_added(trajectory: Trajectory, parameter: str) -> NDArray[np.bool_]:
    """(rows,) whether each row is that of a token that the run added, which began as no trained row does."""
    rows = trajectory.vocabulary.added_rows if trajectory.vocabulary and parameter == "word_embeddings" else ()
    is_added_row = np.zeros(count_rows(trajectory, parameter), bool)
    is_added_row[list(rows)] = True
    return is_added_row


def _position_strata(offset: int, num_rows: int, steps: Steps | None) -> StratumNames:
    """(rows,) strata of position rows: padding, first, up to the longest text in two parts, and beyond it."""
    positions = np.arange(num_rows) - offset
    if steps is None:
        # Every text has a first position; which others it reached is what was not recorded.
        first_conditions: list[Any] = [positions < 0, positions == 0]
        return np.select(first_conditions, ["padding rows", "position 0"], UNKNOWN).astype(object)
    last_used = np.max(positions[steps > 0], initial=-1)
    conditions: list[Any] = [positions < 0, positions > last_used, positions == 0, positions < 128]
    names = ["padding rows", "positions beyond longest", "position 0", "positions 1-127"]
    return np.select(conditions, names, "positions 128 to longest").astype(object)


def _segments(num_rows: int) -> tuple[str, ...]:
    return tuple(f"segment {row}" for row in range(num_rows))


def _segment_strata(num_rows: int, steps: Steps | None) -> StratumNames:
    """(rows,) strata of segment rows: each that was used is one of its own."""
    if steps is None:
        return np.full(num_rows, UNKNOWN, dtype=object)
    return np.where(steps > 0, _segments(num_rows), "unused segment").astype(object)
