"""What no output can show: drift that LayerNorm takes away or that another table undoes, and what is left of it."""

import numpy as np
import pandas as pd

from toolkit.analysis.functional import functional_drift
from toolkit.analysis.gauge import measure_gauge
from toolkit.analysis.tokens_in_use import PROJECTED, measure_design
from toolkit.families import TABLES
from toolkit.reporting.cells import Column, number
from toolkit.reporting.charts import Chart, bars
from toolkit.reporting.page import Block, ChartBlock, NoteBlock, Section, TableBlock
from toolkit.reporting.sources import Computed, Makers, Opened, lines_of, source_of

NOTHING = 1e-20
"""A functional drift below this is what rounding leaves of 0."""
ROUNDING = 1e-14
"""A drift below this is what rounding leaves of an exact 0."""
QUANTITIES = {
    "raw_drift": "raw",
    "pi_drift": "after Π",
    "gauge_fixed_drift": "gauge fixed",
    "scaled_drift": "and without common scale",
}
LEAD = (
    "Three things change no output of the embedding layer: what LayerNorm takes away, an offset moved from one table "
    "to another, and a common scale. The table takes them out one after the other: Π removes each row's mean over its "
    "coordinates; then means over the run's own tokens are taken out (gauge fixed), whose sum is the common offset; "
    "then the common scale. Tables that drift independently have some gauge share too."
)


def makers(opened: Opened) -> Makers:
    source = source_of(opened)
    return {
        "gauge": lambda: measure_gauge(source),
        "design": lambda: measure_design(source),
        "functional": lambda: functional_drift(source),
    }


def functional_chart(functional: pd.DataFrame) -> Chart | None:
    """The Shapley split of the functional drift at the last snapshot; None where no output changed.

    ``functional`` is the table of :func:`toolkit.functional_drift`.
    """
    own = functional[functional["epoch"] == functional["epoch"].max()]
    parts = own[own["measure"] == "shapley"]
    if parts.empty or not own["value"].max() > NOTHING:
        return None
    table = pd.DataFrame({"component": parts["component"], "percent": 100 * parts["value"]})
    return bars(table, "component", "percent", "share of the output's squared length (%)", unit=" %")


def output_change(computed: Computed) -> str:
    """How far the output of the embedding layer changed, in one sentence."""
    own = computed.get("functional", epoch=computed.epoch, measure="functional_drift")
    if own.empty or not own["value"].iloc[0] > NOTHING:
        return ""
    return f"The output of the embedding layer changed by {number(100 * own['value'].iloc[0])} % of its squared length."


def section(computed: Computed) -> Section:
    """Drift per table, raw and in the fixed gauge, the shares, and what the output shows."""
    blocks: list[Block] = []
    gauge = computed.get("gauge", epoch=computed.epoch)
    if len(gauge):
        blocks += [_by_table(gauge), _shares(gauge), *_notes(gauge)]
    functional = computed.get("functional", epoch=computed.epoch)
    if len(functional):
        blocks += _functional(functional)
    return Section(id="gauge", title="What no output can show", lead=LEAD if blocks else "", blocks=tuple(blocks))


def _by_table(gauge: pd.DataFrame) -> Block:
    own = gauge[gauge["measure"].isin(QUANTITIES)]
    names = [name for name in dict.fromkeys(gauge["parameter"]) if name != "all tables"]
    rows = []
    for name in names:
        values = lines_of(own, parameter=name).set_index("measure")["value"]
        # The common offset has no raw drift: that is not applicable, and neither 0 nor undefined.
        found = {q: float(values[q]) if q in values.index else None for q in QUANTITIES}
        rows.append([name, *(0.0 if v is not None and abs(v) < ROUNDING else v for v in found.values())])
    columns = {"parameter": Column(label="of")} | {q: Column(label=label) for q, label in QUANTITIES.items()}
    table = pd.DataFrame(rows, columns=list(columns), dtype=object)
    return TableBlock(table=table, caption="Root mean square over tokens, in weight units.", columns=columns)


def taken_away(gauge: pd.DataFrame) -> float:
    """Share of the tables' squared drift that LayerNorm takes away; NaN without drift or with a projection before it.

    What LayerNorm takes away of narrow rows is not what it would take away of the projected ones.
    """
    own = gauge[gauge["parameter"].isin([*TABLES, "all tables"])]
    if (own["reason"] + own["note"]).str.contains(PROJECTED, regex=False).any():
        return float("nan")
    raw, after = (float((own.loc[own["measure"] == q, "value"] ** 2).sum()) for q in ("raw_drift", "pi_drift"))
    return 1 - after / raw if raw > 0 else float("nan")


def _shares(gauge: pd.DataFrame) -> Block:
    own = gauge[gauge["parameter"] == "all tables"]
    lines: list[list[object]] = [["squared drift that LayerNorm takes away (%)", 100 * taken_away(gauge)]]
    for name, value in zip(own["measure"], own["value"], strict=True):
        is_count = name.startswith("num_") and value == value
        lines.append([name.replace("_", " "), int(value) if is_count else float(value)])
    table = pd.DataFrame(lines, columns=["measure", "value"], dtype=object)
    return TableBlock(table=table, caption="Over all tables.", columns={n: Column(label=n) for n in table})


def _notes(frame: pd.DataFrame) -> list[Block]:
    return [NoteBlock(text=note) for note in sorted({str(note) for note in frame["note"] if note})]


def _functional(own: pd.DataFrame) -> list[Block]:
    total = float(own.loc[own["measure"] == "functional_drift", "value"].iloc[0])
    table = pd.DataFrame(
        {
            "component": own["component"],
            "value": 100 * own["value"],
            "share": 100 * own["value"] / (total if total > 0 else np.nan),
        }
    )
    columns = {
        "component": Column(label="component"),
        "value": Column(label="functional drift", unit="%", how="E‖LN(e) - LN(e⁰)‖² / E‖LN(e⁰)‖² over tokens."),
        "share": Column(label="share", unit="%", how="Shapley values: they add up to the whole."),
    }
    facts = own.iloc[0]
    caption = f"How far the layer's output moved, and what moved it: {facts['sample']}; eps {facts['eps']:g}."
    chart = functional_chart(own)
    name = "Shapley split of the functional drift: how much of the output's change is due to each component."
    alt = "; ".join(f"{c} {number(v)} %" for c, v in zip(table["component"], table["value"], strict=True))
    blocks: list[Block] = [ChartBlock(name="functional", chart=chart, caption=name, alt=alt)] if chart else []
    return [*blocks, TableBlock(table=table, caption=caption, columns=columns), *_notes(own)]
