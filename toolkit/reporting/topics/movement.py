"""How far the embedding parameters and their rows moved, snapshot by snapshot."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.drift import WHOLE, measure_drift, measure_segments
from toolkit.analysis.strata import AT_INPUT, NOT_AT_INPUT
from toolkit.comparison.parameter_noise import measure_moved
from toolkit.comparison.report_data import ordered_strata
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.reporting.cells import Column, number, stratum_text
from toolkit.reporting.charts import (
    COLOURS,
    UNDEFINED,
    Chart,
    altair,
    data_of,
    over_seeds,
    panels,
    picked,
    tips,
)
from toolkit.reporting.page import (
    Answer,
    Block,
    ChartBlock,
    FoldBlock,
    Section,
    TableBlock,
    TextBlock,
    Tile,
    heading,
    picture,
    table_block,
)
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened, records_of
from toolkit.reporting.topics.drift import ADAPTED, MOVED_BY, TIED, drift_chart, whole_parameters_drift
from toolkit.reporting.topics.first_screen import MOVED, ROW_NAMES, WORDS, moved_answer
from toolkit.snapshots.store import Source, trajectory_of

MOST_EPOCHS = 8
"""Columns of the table over time: the first, the last, and some between."""


def head_makers(opened: Opened) -> Makers:
    """The table behind the first screen, in one pass over the first snapshot and the last."""
    return {"moved": lambda: measure_moved(opened.source)}


def makers(opened: Opened) -> Makers:
    """The table of drift at every snapshot."""
    return {"drift": lambda: measure_drift(opened.source)}


def rows_makers(opened: Opened) -> Makers:
    return {**makers(opened), "segments": lambda: measure_segments(opened.source)}


def names_of_snapshots(source: Source) -> dict[float, str]:
    """Epoch of a snapshot to the name of its checkpoint; empty where the snapshots have none."""
    names = {float(snapshot.epoch): snapshot.name for snapshot in trajectory_of(source)}
    return names if any(names.values()) else {}


def change_chart(drift: pd.DataFrame, names: Mapping[float, str] | None = None) -> Chart | None:
    """The chart of :func:`toolkit.plot_change` from its table; None where nothing moved.

    ``names``: epoch of a snapshot to what it is called.
    """
    chart = drift_chart(drift, names=names)
    whole_drift = whole_parameters_drift(drift)
    return chart if chart is None or whole_drift["regime"].nunique() < 2 else _by_condition(whole_drift)


def _by_condition(whole_drift: pd.DataFrame) -> Chart:
    """A bar per parameter and condition, the mean over its seeds at their last snapshots."""
    last_epochs = whole_drift.groupby("regime")["epoch"].transform("max")
    last = whole_drift[whole_drift["epoch"] == last_epochs].dropna(subset="norm")
    regimes, picker, look = picked(last["regime"], None)
    means = over_seeds(last, ["regime", "parameter"], "percent")
    label_axis = altair.Axis(domain=False, ticks=False)
    undefined = last.loc[last["percent"].isna(), ["regime", "parameter"]].drop_duplicates()
    bar_positions = {
        "y": altair.Y("parameter:N", sort=list(EMBEDDING_PARAMETERS), title=None, axis=label_axis),
        "yOffset": altair.YOffset("regime:N", sort=regimes, scale=altair.Scale(domain=regimes)),
    }
    bars = altair.Chart(data_of(means)).mark_bar()
    bars = bars.encode(
        **bar_positions,
        x=altair.X("mean:Q", title=MOVED_BY, axis=altair.Axis(tickCount=5, format="~f")),
        tooltip=tips(regime="regime", parameter="parameter", mean=(MOVED_BY, ".3g")),
        **look["bars"],
    )
    undefined_texts = altair.Chart(data_of(undefined)).mark_text(align="left", dx=5, fontSize=10, text=UNDEFINED)
    layers = [bars, *([undefined_texts.encode(**bar_positions, x=altair.value(0))] if len(undefined) else [])]
    height = len(EMBEDDING_PARAMETERS) * (14 * len(regimes) + 8)
    return panels([altair.layer(*layers, width=440, height=height)], picker=picker)


def tiles(computed: Computed) -> tuple[Tile, ...]:
    """A tile per embedding parameter: how far it moved, and how far its exposed rows did."""
    trajectory = computed.opened.trajectory
    tiles_of_parameters = []
    for record in computed.get("moved").to_dict("records"):
        name = str(record["parameter"])
        compared_part = "" if record["has_moved"] else trajectory.compared(name, "snapshots")
        detail = f"compared: {compared_part}" if compared_part else ""
        seen_drift = _seen_drift_text(record)
        facts = ((SEEN_ROWS, seen_drift),) if seen_drift else ()
        tiles_of_parameters.append(_tile(name, _drift_text(record), detail, facts))
    lacking = [
        name for name in EMBEDDING_PARAMETERS if name in trajectory.in_part and name not in trajectory.parameters
    ]
    return (*tiles_of_parameters, *(_tile(name, "not compared", "some checkpoints lack it") for name in lacking))


SEEN_ROWS = "those seen in training"


def _tile(name: str, value: str, detail: str, facts: tuple[tuple[str, str], ...] = ()) -> Tile:
    """The tile of one parameter, in the colour that it has in the charts."""
    colour = COLOURS[EMBEDDING_PARAMETERS.index(name)]
    return Tile(title=name.replace("_", " "), value=value, detail=detail, lines=facts, colour=colour)


def _drift_text(record: Mapping[Any, Any], prefix: str = "") -> str:
    """The relative drift of a record in per cent; ``prefix``: ``exposed_`` for the exposed rows alone."""
    share = record[f"{prefix}relative_drift"]
    size = "undefined: was 0" if share != share else f"{number(100 * share)} %"
    return size if record["has_moved"] else "0 exactly"


def _moved_by(record: Mapping[Any, Any]) -> str:
    """How far a parameter moved, as it stands in a sentence: by so many per cent, from 0, or not at all."""
    is_from_0 = record["has_moved"] and record["relative_drift"] != record["relative_drift"]
    return "from 0" if is_from_0 else f"by {_drift_text(record)}" if record["has_moved"] else "not at all"


def _seen_drift_text(record: Mapping[Any, Any]) -> str:
    """How far the exposed rows moved; empty where nothing moved, or exposure is not known."""
    is_known = record["exposed_relative_drift"] == record["exposed_relative_drift"]
    return _drift_text(record, "exposed_") if is_known and record["has_moved"] else ""


def answer(computed: Computed) -> Answer | None:
    """Whether the embeddings moved, in the words of a comparison's first screen."""
    moved = computed.get("moved")
    if moved.empty:
        return None
    if not moved["has_moved"].any():
        return Answer(question=MOVED, verdict="no", text=none_moved(computed.opened), tone="same")
    records = {str(record["parameter"]): record for record in moved.to_dict("records")}
    movements = {ROW_NAMES.get(name, name): _moved_by(record) for name, record in records.items()}
    words_record = records.get(WORDS, {"has_moved": False})
    if words_record["has_moved"] and (seen_drift := _seen_drift_text(words_record)):
        movements[ROW_NAMES[WORDS]] += f" ({SEEN_ROWS}: {seen_drift})"
    has_noise = words_record["has_moved"] and not words_record["reason"]
    times_noise = words_record["times_noise"] if has_noise else math.nan
    return moved_answer("", movements, [times_noise] if times_noise == times_noise else [])


def none_moved(opened: Opened) -> str:
    """A sentence that nothing moved, and what was compared."""
    part = opened.trajectory.compared(*EMBEDDING_PARAMETERS, "snapshots")
    return f"Identical in what could be compared: {part}." if part else "No embedding parameter moved."


def first_picture(computed: Computed) -> ChartBlock | None:
    """The picture of the first screen, where drift was measured at every snapshot."""
    drift = computed.get("drift")
    names = names_of_snapshots(computed.opened.source)
    chart = drift_chart(drift, names=names) if len(drift) else None
    return picture("change", chart, PICTURED)


PICTURED = (
    "Drift of each whole parameter at every epoch: the length of its change, in % of its length before. Where there "
    "is a floor, marks on it are exactly 0."
)


def changes_section(computed: Computed) -> Section:
    """How far each parameter moved, at every snapshot."""
    blocks = (_over_epochs_block(computed),) if len(computed.get("drift")) else ()
    return Section(id="changes", title="How far each parameter moved", blocks=blocks)


def _over_epochs_block(computed: Computed) -> Block:
    """The drift of each whole parameter at up to MOST_EPOCHS snapshots, and of a re-initialised one."""
    drift, names = computed.frames["drift"], names_of_snapshots(computed.opened.source)
    whole_drift = whole_parameters_drift(drift)
    epochs = list(dict.fromkeys(whole_drift["epoch"]))
    evenly_spaced = np.linspace(0, len(epochs) - 1, min(len(epochs), MOST_EPOCHS)).round().astype(int)
    shown_epochs = [epochs[i] for i in np.unique(evenly_spaced)]
    wide = whole_drift.pivot(index="parameter", columns="epoch", values="percent")
    wide = wide.loc[whole_drift["parameter"].unique(), shown_epochs]
    null = records_of(drift, stratum=WHOLE, measure="relative", statistic="reinitialised").groupby("parameter")["value"]
    columns = {"parameter": heading("parameter")} | {
        f"at_{i}": Column(label=names.get(epoch) or f"epoch {epoch:g}", unit="%") for i, epoch in enumerate(wide)
    }
    columns["reinitialised"] = Column(
        label="re-initialised", unit="%", how="What independent new values of the same spread would read: a yardstick."
    )
    table = wide.assign(reinitialised=100 * null.first()).reset_index().set_axis(list(columns), axis=1)
    caption = "Drift of each whole parameter, in % of its norm; undefined where it was 0 before and is not now."
    return TableBlock(table=table, caption=caption, columns=columns)


ROWS_LEAD = (
    "Rows that moved for different reasons are not averaged together, but stand by the optimizer steps that showed "
    "them (their exposure), where these were recorded."
)
STRATA = ("parameter", "stratum", "num_rows", "norm", "greatest", "relative", "angle_degrees", "radial")


def strata_table(computed: Computed) -> pd.DataFrame:
    """A record per table and stratum at the last snapshot: the columns STRATA."""
    drift = computed.get("drift", epoch=computed.epoch)
    drift = drift[(drift["stratum"] != WHOLE) & drift["parameter"].isin(TABLES)] if len(drift) else drift
    if drift.empty:
        return pd.DataFrame(columns=list(STRATA))
    statistics = drift[drift["statistic"].isin(["median", "max"])]
    statistics = statistics.assign(
        name=statistics["measure"].where(statistics["statistic"] == "median", "greatest of " + statistics["measure"])
    )
    wide = statistics.pivot(index=["parameter", "stratum", "num_rows"], columns="name", values="value").reset_index()
    wide = wide.rename(columns={"greatest of norm": "greatest"})
    rank_of_stratum = {name: rank for rank, name in enumerate(ordered_strata(wide["stratum"]))}
    ranks = {"table_rank": wide["parameter"].map(TABLES.index), "stratum_rank": wide["stratum"].map(rank_of_stratum)}
    in_order = wide.assign(**ranks).sort_values(list(ranks))
    return in_order[[name for name in STRATA if name in in_order]].reset_index(drop=True)


def rows_section(computed: Computed) -> Section:
    """Every table by exposure, then the segments."""
    blocks: list[Block] = []
    strata = strata_table(computed)
    for name in TABLES:
        strata_of_table = strata[strata["parameter"] == name]
        if len(strata_of_table):
            title = f"{name}: its rows by exposure"
            blocks.append(FoldBlock(title=title, blocks=(_strata_block(strata_of_table),), is_open=name == TABLES[0]))
    segments = computed.get("segments", epoch=computed.epoch)
    if len(segments):
        blocks.append(FoldBlock(title="Segment rows", blocks=segments_blocks(records_of(segments, reason=""))))
    is_adapted = any(run.adapted for run in computed.opened.runs)
    is_tied = strata["stratum"].isin([AT_INPUT, NOT_AT_INPUT]).any()
    lead = ROWS_LEAD + (f" {TIED}" if is_tied else f" {ADAPTED}" if is_adapted else "")
    return Section(id="rows", title="Which rows moved", lead=lead if blocks else "", blocks=tuple(blocks))


def in_percent(rows: pd.DataFrame) -> pd.DataFrame:
    """A table with ``drift_percent`` beside its relative drift."""
    return rows.assign(drift_percent=100 * rows["relative"].astype(float))


def _strata_block(strata: pd.DataFrame) -> Block:
    """The median drift and angle of the rows of each stratum of one table."""
    return table_block(
        in_percent(strata.assign(stratum=strata["stratum"].astype(str).map(stratum_text))),
        "stratum num_rows drift_percent angle_degrees",
        "At the last snapshot, medians over rows; more measures are in tables/drift.csv.",
        stratum="rows",
        num_rows="number",
        drift_percent=Column(label="drift", unit="% of norm"),
        angle_degrees="angle",
    )


def named_rows(rows: pd.DataFrame) -> pd.Series:
    """The word of each row, or its number where it has none."""
    words = rows["token"].astype(str)
    return words.where(words != "", "row " + rows["row"].astype(str))


def segments_blocks(segments: pd.DataFrame) -> tuple[Block, ...]:
    """Norm, cosine and drift of the segment rows, from the table of :func:`toolkit.measure_segments` at one epoch."""
    is_relative = segments["measure"] == "relative_drift"
    table = segments.assign(
        measure=segments["measure"].str.replace("_", " "),
        value=segments["value"].where(~is_relative, 100 * segments["value"]),
        unit=segments["unit"].where(~is_relative, "% of norm"),
    )[segments["measure"] != "drift"]
    names = ("parameter", "measure", "value", "unit", "reason", "note")
    block = table_block(table, names, "At the last snapshot.")
    if (segments["measure"] == "cosine").any():
        return (block,)
    return (block, TextBlock(text="Cosine, difference and mean are not applicable: the model has one segment row."))


HEAD = DriftPart(makers=head_makers, answer=answer, tiles=tiles)
PARTS = {"changes": DriftPart(changes_section, makers), "rows": DriftPart(rows_section, rows_makers)}
