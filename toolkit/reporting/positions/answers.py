"""The tables of the positions page in, its sentences out: each states a number and what it was held against."""

import math
from typing import Any

import numpy as np
import pandas as pd

from toolkit.reporting.markdown import listing, number
from toolkit.reporting.positions.tables import LEARNED, LEAST_TURNS, PositionTables


def answers(tables: PositionTables) -> list[str]:
    """Do the learned positions resemble sine and cosine? In sentences of plain text."""
    own, sinusoid = tables.verdicts["orbit_share"], tables.verdicts["line_match"]
    lines = [
        f"Does the table carry the waves of the sinusoid of its shape? Verdict: {sinusoid.answer}. Line match: "
        f"{_end(sinusoid.reason)}",
        "Is it made of a few waves in quadrature at frequencies of its own (the sinusoid has too many)? Verdict: "
        f"{own.answer}. Share of power on circles: {_end(own.reason)}",
    ]
    waves = tables.waves[tables.waves["is_wave"]].sort_values("period")
    if len(waves) and own.answer == "made of waves":
        lines += _on_waves(waves, tables)
    return [*lines, *_on_smoothness(tables.statistics), *_on_default_length(tables)]


def _on_waves(waves: pd.DataFrame, tables: PositionTables) -> list[str]:
    periods = [number(period) for period in waves["period"]]
    hidden = tables.rows[LEARNED].shape[1]
    many = ("One wave holds", "period") if len(waves) == 1 else (f"{len(waves)} waves hold", "periods")
    text = f"{many[0]} {waves['share'].sum():.0%} of the variance: {many[1]} {listing(periods)} positions"
    if len(waves) > 2:
        ratios = waves["period"].to_numpy()[1:] / waves["period"].to_numpy()[:-1]
        text += f", each {number(ratios.min(), 2)} to {number(ratios.max(), 2)} times the one before"
    columns = waves["num_columns"]
    slow = tables.waves[tables.waves["period"] * LEAST_TURNS > tables.num_positions]
    if len(slow):
        text += f"; {slow['share'].sum():.0%} more goes round less than twice, which is no wave by our count"
    return [
        f"{text}. The sinusoid of this width has {hidden // 2} waves.",
        f"Why nothing shows when columns are compared: each wave is spread over {number(columns.min(), 2)} to "
        f"{number(columns.max(), 3)} columns, each of the sinusoid's over 2, and every column mixes several waves. "
        "Compare planes, not columns.",
    ]


def _on_smoothness(statistics: pd.DataFrame) -> list[str]:
    lines = statistics[statistics["window"] == statistics["window"].iloc[0]].set_index("statistic")
    value = lines.loc["explained_by_sinusoid_20"]
    if math.isnan(value["value"]):
        return []
    return [
        "That the sinusoid's directions explain much of a table is no evidence that it resembles one: the top 20 "
        f"explain {value['value']:.0%} of this table, {value['sinusoid']:.0%} of the sinusoid itself and "
        f"{value['smooth']:.0%} of smooth random curves."
    ]


def _on_default_length(tables: PositionTables) -> list[str]:
    start = tables.default_length
    if start is None or start >= tables.num_positions:
        return []
    text = (
        f"Rows {start} to {tables.num_positions - 1} are not exercised by the model's default length of {start} tokens"
    )
    lines = tables.statistics[tables.statistics["statistic"] == "translation_invariance"]
    for line in lines.to_dict("records"):
        low, high = (int(edge) for edge in line["window"].split("-"))
        if low == start and high == tables.num_positions - 1:
            is_structured = line["value"] > 10 * max(line["gaussian"], line["shuffled"])
            text += f"; their translation invariance is {number(line['value'])} (shuffled {number(line['shuffled'])})"
            text += ": structured all the same, so inherited" if is_structured else ""
    return [text + "."]


def standing_out(tables: PositionTables) -> list[str]:
    """Which rows stand out from their neighbours, one sentence for norms and one for steps."""
    lines = []
    for quantity, name in (("norm", "norm"), ("step", "step to the next row")):
        found = tables.outliers[tables.outliers["quantity"] == quantity]
        strongest = found.reindex(found["score"].abs().sort_values(ascending=False).index)
        if found.empty:
            lines.append(f"No row stands out by its {name}.")
            continue
        shown = [_row(line) for line in strongest.head(6).to_dict("records")]
        more = f" and {len(found) - 6} more" if len(found) > 6 else ""
        lines.append(f"By their {name} stand out: {', '.join(shown)}{more}.")
    return lines


def _row(line: dict[str, Any]) -> str:
    return f"row {line['row']} ({number(line['value'])}, neighbours {number(line['neighbours'])})"


def caveats(tables: PositionTables) -> list[str]:
    """What the verdicts leave open."""
    lines = []
    if not np.isnan(tables.longest_wave):
        lines.append(
            f"The line match judges the sinusoid's waves of 6.28 to {number(tables.longest_wave)} positions a period; "
            f"in {tables.num_positions} rows its slower ones blend, and no line tells them from a smooth curve."
        )
    return [
        *lines,
        "'Made of waves' is a fact about the table's course along the positions, not about how the model uses it, and "
        "not about why training made it so.",
        "Curves that keep their phase over most of the rows count as waves; the list of waves is a description.",
    ]


def _end(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
