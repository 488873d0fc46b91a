"""The tables of a group in, the blocks of the sections on drift out: parameters, strata of rows, tokens."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.rows.drift import ALL_ROWS
from toolkit.comparison.arms import Arm
from toolkit.comparison.measure import RANKINGS
from toolkit.comparison.report_data import GroupTables, ordered_strata
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.reporting.cells import listing, mean_and_sd, span, stratum_text
from toolkit.reporting.page import Block, TextBlock, rows_block

HOWS = {
    "relative drift": "‖Δ‖ / ‖E⁰‖ of the whole parameter, mean ± standard deviation over seeds, in float64.",
    "re-initialised": "The same number for an independent re-initialisation of the same shape: a yardstick.",
    "left by weight decay (%)": "Of the squared drift of the unexposed words: what replaying the logged weight decay "
    "does not give.",
    "stratum": "Rows that moved for different reasons are never averaged; steps are optimizer steps of the whole run.",
    "median ‖Δ‖": "Median over the rows of the stratum, mean ± standard deviation over seeds.",
    "median relative": "Median of ‖Δ‖ / ‖E⁰‖ over rows; a row that was 0 has none and is counted.",
    "median angle (degrees)": "Angle between the row before and after training.",
    "median radial change": "Part of the change along the row itself: weight decay makes it negative.",
}
"""What the columns are, for whoever asks."""


def drift_block(tables: GroupTables) -> Block:
    """A line per parameter, a column per condition: relative drift at the last epoch, beside a re-initialisation."""
    arms = tables.group.arms
    rows: list[list[object]] = []
    for parameter in EMBEDDING_PARAMETERS:
        rows.append([parameter, *(_drift_of(tables, arm, parameter) for arm in arms)])
        if len(tables.drift):
            yardsticks = [_yardstick(tables, arm, parameter) for arm in arms if arm.has(parameter)]
            rows[-1].append(mean_and_sd(np.concatenate(yardsticks)) if yardsticks else None)
    header = ["parameter", *(arm.label for arm in arms), *(["re-initialised"] if len(tables.drift) else [])]
    hows = HOWS | {arm.label: HOWS["relative drift"] for arm in arms}
    return rows_block(header, rows, f"Relative drift of each parameter on {tables.group.title} at the last epoch", hows)


def _drift_of(tables: GroupTables, arm: Arm, parameter: str) -> str | None:
    if not arm.has(parameter):
        return None
    drift = tables.relative_drift(arm, parameter)
    if (drift == 0).all():
        return "0 (bit-identical)" if arm.is_proven_frozen(parameter) else "0"
    return mean_and_sd(drift)


def _yardstick(tables: GroupTables, arm: Arm, parameter: str) -> np.ndarray:
    lines = tables.whole(arm, parameter, statistic="reinitialised")
    values: np.ndarray = lines.groupby("run", sort=False)["value"].last().reindex(arm.names).to_numpy(np.float64)
    return values


def exposure_block(tables: GroupTables) -> Block:
    """A line per condition whose words moved: how far exposed and unexposed words did, and what decay leaves open."""
    rows: list[list[object]] = []
    known = {line["run"]: line for line in tables.exposed.to_dict("records")}
    for arm in tables.group.arms:
        line = known.get(arm.runs[0].name)
        if line is None or not has_moved_words(tables, arm):
            continue
        names = ("num_exposed", "median_exposed", "num_unexposed", "median_unexposed", "share_unmoved")
        cells: list[object] = [None if line[name] != line[name] else line[name] for name in names]
        cells[-1] = None if cells[-1] is None else 100 * line["share_unmoved"]
        if not line["is_recorded"]:
            cells = [None] * len(cells)
        rows.append([arm.label, *cells, _left_by_decay(line)])
    header = [
        "condition",
        "exposed words",
        "median ‖Δ‖",
        "unexposed words",
        "their median ‖Δ‖",
        "exactly as before (%)",
    ]
    header.append("left by weight decay (%)")
    caption = f"Words that training exposed and words that it did not, on {tables.group.title}, first seed"
    return rows_block(header, rows, caption, HOWS)


def has_moved_words(tables: GroupTables, arm: Arm) -> bool:
    """Whether any word row of the first seed of an arm moved."""
    own = tables.boxes[tables.boxes["run"] == arm.runs[0].name] if len(tables.boxes) else tables.boxes
    return bool(len(own)) and bool((own["num_moved"] > 0).any())


def _left_by_decay(line: dict[Any, Any]) -> object:
    """The share of the unexposed words' squared drift that replayed weight decay leaves; without a log None."""
    if not line["has_log"]:
        return None
    return "0, bit for bit" if line["left_by_decay"] == 0 else 100 * line["left_by_decay"]


def strata_block(tables: GroupTables, parameter: str) -> Block:
    """One line per stratum and arm of a table's rows at the last epoch, one in all for an arm where none moved."""
    assert parameter in TABLES
    if not any(arm.has(parameter) for arm in tables.group.arms):
        return TextBlock(text=f"Not applicable: this model has no {parameter}.")
    header = ["stratum", "condition", "rows", "median ‖Δ‖", "greatest ‖Δ‖", "median relative", "median angle (degrees)"]
    header += ["median radial change"]
    columns = [("norm", "median"), ("norm", "max"), *((m, "median") for m in ("relative", "angle_degrees", "radial"))]
    parts = [(arm, tables.of(arm, parameter)) for arm in tables.group.arms]
    found = ordered_strata(stratum for _, lines in parts for stratum in lines["stratum"])
    rows: list[list[object]] = []
    for stratum in (s for s in found if s != "whole parameter"):
        for arm, lines in parts:
            own = lines[lines["stratum"] == stratum]
            if len(own) and (stratum == ALL_ROWS or not _is_still(lines)):
                cells = [_statistic(own, *column) for column in columns]
                rows.append([stratum_text(stratum), arm.label, span(own["num_rows"]), *cells])
    return rows_block(header, rows, f"Rows of {parameter} on {tables.group.title} at the last epoch", HOWS)


def _is_still(lines: pd.DataFrame) -> bool:
    """Whether no row moved; then one line for all rows says everything."""
    return bool((lines.loc[(lines["measure"] == "norm") & (lines["statistic"] == "max"), "value"] == 0).all())


def _statistic(lines: pd.DataFrame, measure: str, statistic: str) -> str:
    own = lines[(lines["measure"] == measure) & (lines["statistic"] == statistic)]
    text = mean_and_sd(own["value"])
    undefined = own["num_undefined"].sum()
    if not undefined:
        return text
    return f"{text} ({undefined} of {own['num_rows'].sum()} rows{' undefined' if own['value'].notna().any() else ''})"


def still_arms(tables: GroupTables, parameter: str) -> str:
    """One sentence on the arms in which no row moved and of which a figure of rows shows nothing; empty without any."""
    arms = [arm for arm in tables.group.arms if arm.has(parameter)]
    still = [arm.label for arm in arms if tables.relative_drift(replace(arm, runs=arm.runs[:1]), parameter)[0] == 0]
    return f"No row moved under {listing(still)}." if still else ""


def token_blocks(tables: GroupTables) -> list[tuple[str, Block]]:
    """For each arm its name and the two rankings of the tokens that moved most, side by side, of its first seed."""
    return [(_token_title(arm), _token_block(tables, arm)) for arm in tables.group.arms]


def _token_title(arm: Arm) -> str:
    return f"{arm.label}, seed {arm.runs[0].config.seed}"


def _token_block(tables: GroupTables, arm: Arm) -> Block:
    if not arm.has("word_embeddings"):
        return TextBlock(text="Not applicable: this model has no word_embeddings.")
    own = tables.tokens[tables.tokens["run"] == arm.runs[0].name] if len(tables.tokens) else tables.tokens
    if own.empty:
        known = tables.exposed.loc[tables.exposed["run"] == arm.runs[0].name, "is_recorded"].astype(bool).any()
        text = "No row seen in training moved." if known else "Not applicable: exposure was not recorded."
        return TextBlock(text=text)
    sides = [own[own["ranking"] == ranking].to_dict("records") for ranking in RANKINGS]
    header = ["rank", "by ‖Δ‖: token", "‖Δ‖", "steps", "tokens", "by angle: token", "degrees", "steps", "tokens"]
    rows = []
    for i in range(max(len(side) for side in sides)):
        cells: list[object] = [i + 1]
        for ranking, side in zip(RANKINGS, sides, strict=True):
            cells += _token_cells(side[i], ranking) if i < len(side) else [""] * 4
        rows.append(cells)
    return rows_block(header, rows, f"Tokens that moved most: {_token_title(arm)}")


def _token_cells(line: dict[str, Any], ranking: str) -> list[object]:
    token = str(line["token"]) or f"(row {line['row']})"
    return [token, float(line[ranking]), int(line["num_steps"]), int(line["num_tokens"])]
