"""The tables of a drift report in, the Markdown of a whole table's structure out: gauge, similarity, geometry."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from toolkit.reporting import markdown
from toolkit.reporting.drift.tables import DriftTables, lines_of
from toolkit.reporting.markdown import number


def gauge(tables: DriftTables) -> str:
    """Drift per table at the last snapshot, raw and in the fixed gauge; then the shares."""
    frame = lines_of(tables.frames["gauge"], epoch=tables.epoch)
    quantities = ("raw_drift", "pi_drift", "gauge_fixed_drift", "scaled_drift")
    parts = [name for name in dict.fromkeys(frame["parameter"]) if name != "all tables"]
    rows = [[name, *(_value(frame, name, quantity) for quantity in quantities)] for name in parts]
    header = ["root mean square over tokens", "raw", "after Π", "gauge fixed", "and common scale divided out"]
    shares = frame[frame["parameter"] == "all tables"]
    notes = sorted({note for note in frame["note"] if note})
    listed = [[line["quantity"].replace("_", " "), _count(line)] for line in shares.to_dict("records")]
    text = markdown.table(header, rows) + "\n\n" + markdown.table(["over all tables", "value"], listed)
    return "\n\n".join([text, *(markdown.escape(_sentence(note)) for note in notes)])


def _value(frame: pd.DataFrame, parameter: str, quantity: str) -> float | None:
    values = lines_of(frame, parameter=parameter, quantity=quantity)["value"]
    if values.empty:
        return None
    value = float(values.iloc[0])
    return 0.0 if abs(value) < 1e-14 else value  # what rounding leaves of an exact 0


def _count(line: Mapping[Any, Any]) -> object:
    """A value, whole where it is a count."""
    value = line["value"]
    return int(value) if line["quantity"].startswith("num_") and value == value else value


def functional(tables: DriftTables) -> str:
    """Functional drift and its Shapley split at the last snapshot."""
    frame = lines_of(tables.frames["functional"], epoch=tables.epoch)
    total = float(frame.loc[frame["quantity"] == "functional_drift", "value"].iloc[0])
    rows: list[list[object]] = []
    for line in frame.to_dict("records"):
        share = 100 * line["value"] / total if total > 0 else float("nan")
        rows.append([line["component"], line["value"], share])
    facts = frame.iloc[0]
    said = f"Over {facts['sample']}; eps {facts['eps']:g}."
    notes = sorted({note for note in frame["note"] if note})
    text = markdown.table(["component", "functional drift", "share (%)"], rows)
    return "\n\n".join([text, markdown.escape(" ".join([said, *map(_sentence, notes)]))])


def similarity(tables: DriftTables) -> str:
    """Every measure beside its null, and why a measure was refused."""
    header = ["parameter", "measure", "value", "null, mean", "null, 2.5 to 97.5 %", "null", "refused because"]
    rows: list[list[object]] = []
    for line in tables.frames["similarity"].to_dict("records"):
        if line["refusal"]:
            rows.append([line["parameter"], _name(line), "refused", "", "", "", line["refusal"]])
            continue
        interval = f"{number(line['null_q025'])} to {number(line['null_q975'])}"
        value = number(line["value"], 5)
        rows.append([line["parameter"], _name(line), value, line["null_mean"], interval, line["null"], ""])
    return markdown.table(header, rows)


def _name(line: Mapping[Any, Any]) -> str:
    direction = f", {line['direction']}" if line["direction"] else ""
    return str(line["measure"]).replace("_", " ") + direction


def geometry(tables: DriftTables) -> str:
    """Each statistic of the word table before and after, beside that of a Gaussian of the same shape."""
    frame = tables.frames["geometry"]
    header = ["statistic", "variant", "before", "after", "Gaussian of the same shape", "refused because"]
    rows: list[list[object]] = []
    for (statistic, variant), own in frame.groupby(["statistic", "variant"], sort=False):
        before, after = own.iloc[0], own.iloc[-1]
        if after["refusal"]:
            rows.append([statistic.replace("_", " "), variant, "refused", "refused", "", after["refusal"]])
        else:
            cells = [number(value, 4) for value in (before["value"], after["value"], after["null_mean"])]
            rows.append([statistic.replace("_", " "), variant, *cells, ""])
    return markdown.table(header, rows)


def updates(tables: DriftTables) -> str:
    """Spectrum and alignment of Δ beside what rows of the same norms would give."""
    header = ["parameter", "statistic", "value", "null, mean", "null, 2.5 to 97.5 %", "chance", "rows"]
    rows: list[list[object]] = []
    for line in tables.frames["updates"].to_dict("records"):
        k = "" if pd.isna(line["k"]) else f" {int(line['k'])}"
        name = f"{line['statistic'].replace('_', ' ')}{k}"
        if line["refusal"]:
            rows.append([line["parameter"], name, f"refused: {line['refusal']}", "", "", "", int(line["num_rows"])])
            continue
        interval = f"{number(line['null_q025'])} to {number(line['null_q975'])}"
        chance = "" if pd.isna(line["chance"]) else number(line["chance"])
        cells = [line["value"], line["null_mean"], interval, chance, int(line["num_rows"])]
        rows.append([line["parameter"], name, *cells])
    return markdown.table(header, rows)


def agreement(tables: DriftTables) -> str:
    """Cosine of Δ between seeds, mean over pairs of runs, with the greatest upper limit of the nulls."""
    frame = tables.frames["agreement"]
    frame = frame[frame["refusal"] == ""] if (frame["refusal"] == "").any() else frame
    header = ["parameter", "stratum", "statistic", "mean over pairs of runs", "least", "greatest", "null, 97.5 %"]
    rows: list[list[object]] = []
    for (parameter, stratum, statistic), own in frame.groupby(["parameter", "stratum", "statistic"], sort=False):
        cells = [own["value"].mean(), own["value"].min(), own["value"].max(), own["null_q975"].max()]
        rows.append([parameter, stratum, statistic.replace("_", " "), *cells])
    return markdown.table(header, rows)


def _sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."
