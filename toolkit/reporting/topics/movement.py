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
from toolkit.reporting.cells import Column, number
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
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened, lines_of
from toolkit.reporting.topics.drift import ADAPTED, MOVED_BY, TIED, drift_chart, whole_lines
from toolkit.reporting.topics.first_screen import MOVED, SHORT, WORDS, moved_answer
from toolkit.snapshots.store import Source, trajectory_of

MOST_EPOCHS = 8
"""Columns of the table over time: the first, the last, and some between."""


def head_makers(opened: Opened) -> Makers:
    """What the first screen says of every parameter, in one pass over the first snapshot and the last."""
    return {"moved": lambda: measure_moved(opened.source)}


def makers(opened: Opened) -> Makers:
    return {"drift": lambda: measure_drift(opened.source)}


def rows_makers(opened: Opened) -> Makers:
    return {**makers(opened), "segments": lambda: measure_segments(opened.source)}


def names_of_snapshots(source: Source) -> dict[float, str]:
    """Epoch of a snapshot to the name of its checkpoint; empty where the snapshots have none."""
    found = {float(snapshot.epoch): snapshot.name for snapshot in trajectory_of(source)}
    return found if any(found.values()) else {}


def change_chart(drift: pd.DataFrame, names: Mapping[float, str] | None = None) -> Chart | None:
    """The chart of :func:`toolkit.plot_change` from its table; None where nothing moved.

    ``names``: epoch of a snapshot to what it is called.
    """
    chart = drift_chart(drift, names=names)
    lines = whole_lines(drift)
    return chart if chart is None or lines["regime"].nunique() < 2 else _by_condition(lines)


def _by_condition(lines: pd.DataFrame) -> Chart:
    """A bar per parameter and condition, the mean over its seeds at their last snapshots."""
    last = lines[lines["epoch"] == lines.groupby("regime")["epoch"].transform("max")].dropna(subset="norm")
    shown, picker, look = picked(last["regime"], None)
    means = over_seeds(last, ["regime", "parameter"], "percent")
    bare = altair.Axis(domain=False, ticks=False)
    undefined = last.loc[last["percent"].isna(), ["regime", "parameter"]].drop_duplicates()
    places = {
        "y": altair.Y("parameter:N", sort=list(EMBEDDING_PARAMETERS), title=None, axis=bare),
        "yOffset": altair.YOffset("regime:N", sort=shown, scale=altair.Scale(domain=shown)),
    }
    bars = altair.Chart(data_of(means)).mark_bar()
    bars = bars.encode(
        **places,
        x=altair.X("mean:Q", title=MOVED_BY, axis=altair.Axis(tickCount=5, format="~f")),
        tooltip=tips(regime="regime", parameter="parameter", mean=(MOVED_BY, ".3g")),
        **look["bars"],
    )
    said = altair.Chart(data_of(undefined)).mark_text(align="left", dx=5, fontSize=10, text=UNDEFINED)
    layers = [bars, said.encode(**places, x=altair.value(0))]
    return panels(
        [altair.layer(*layers[: 1 + len(undefined)], width=440, height=5 * (14 * len(shown) + 8))], picker=picker
    )


def tiles(computed: Computed) -> tuple[Tile, ...]:
    """One per embedding parameter: how far it moved, and how far those of its rows that training showed."""
    trajectory = computed.opened.trajectory
    found = []
    for line in computed.get("moved").to_dict("records"):
        name, seen = str(line["parameter"]), _seen(line)
        part = "" if line["has_moved"] else trajectory.compared(name, "snapshots")
        found.append(_tile(name, _percent(line), part and f"compared: {part}", ((SEEN, seen),) if seen else ()))
    others = [name for name in EMBEDDING_PARAMETERS if name in trajectory.in_part and name not in trajectory.parameters]
    return (*found, *(_tile(name, "not compared", "some checkpoints lack it") for name in others))


SEEN = "those seen in training"


def _tile(name: str, value: str, detail: str, lines: tuple[tuple[str, str], ...] = ()) -> Tile:
    colour = COLOURS[EMBEDDING_PARAMETERS.index(name)]
    return Tile(title=name.replace("_", " "), value=value, detail=detail, lines=lines, colour=colour)


def _percent(line: Mapping[Any, Any], of: str = "") -> str:
    share = line[f"{of}relative_drift"]
    size = "undefined: was 0" if share != share else f"{number(100 * share)} %"
    return size if line["has_moved"] else "0 exactly"


def _moved_by(line: Mapping[Any, Any]) -> str:
    is_from_0 = line["has_moved"] and line["relative_drift"] != line["relative_drift"]
    return "from 0" if is_from_0 else f"by {_percent(line)}" if line["has_moved"] else "not at all"


def _seen(line: Mapping[Any, Any]) -> str:
    """How far the rows moved that training showed; empty where nothing moved, or which they are is not known."""
    is_known = line["exposed_relative_drift"] == line["exposed_relative_drift"]
    return _percent(line, "exposed_") if is_known and line["has_moved"] else ""


def answer(computed: Computed) -> Answer | None:
    """Whether the embeddings moved, in the words of a comparison's first screen."""
    moved = computed.get("moved")
    if moved.empty:
        return None
    if not moved["has_moved"].any():
        return Answer(question=MOVED, verdict="no", text=none_moved(computed.opened), tone="same")
    lines = {str(line["parameter"]): line for line in moved.to_dict("records")}
    found = {SHORT.get(name, name): _moved_by(line) for name, line in lines.items()}
    words = lines.get(WORDS, {"has_moved": False})
    if words["has_moved"] and (seen := _seen(words)):
        found[SHORT[WORDS]] += f" ({SEEN}: {seen})"
    times = words["times_noise"] if words["has_moved"] and not words["reason"] else math.nan
    return moved_answer("", found, [times] if times == times else [])


def none_moved(opened: Opened) -> str:
    """That nothing moved, of what was compared."""
    part = opened.trajectory.compared(*EMBEDDING_PARAMETERS, "snapshots")
    return f"Identical in what could be compared: {part}." if part else "No embedding parameter moved."


def first_picture(computed: Computed) -> ChartBlock | None:
    """The picture of the first screen, where drift was measured at every snapshot."""
    drift = computed.get("drift")
    names = names_of_snapshots(computed.opened.source)
    chart = drift_chart(drift, names=names) if len(drift) else None
    return picture("change", chart, PICTURED)


PICTURED = (
    "Drift of each whole parameter at every epoch: the length of its change, in % of its length before. Marks on the "
    "floor are exactly 0."
)


def changes_section(computed: Computed) -> Section:
    """How far each parameter moved, at every snapshot."""
    blocks = (_over_epochs(computed),) if len(computed.get("drift")) else ()
    return Section(id="changes", title="How far each parameter moved", blocks=blocks)


def _over_epochs(computed: Computed) -> Block:
    drift, names = computed.frames["drift"], names_of_snapshots(computed.opened.source)
    lines = whole_lines(drift)
    epochs = list(dict.fromkeys(lines["epoch"]))
    kept = np.unique(np.linspace(0, len(epochs) - 1, min(len(epochs), MOST_EPOCHS)).round().astype(int))
    wide = lines.pivot(index="parameter", columns="epoch", values="percent")
    wide = wide.loc[lines["parameter"].unique(), [epochs[place] for place in kept]]
    null = lines_of(drift, stratum=WHOLE, measure="relative", statistic="reinitialised").groupby("parameter")["value"]
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
    """One line per table and stratum at the last snapshot: the columns STRATA."""
    drift = computed.get("drift", epoch=computed.epoch)
    drift = drift[(drift["stratum"] != WHOLE) & drift["parameter"].isin(TABLES)] if len(drift) else drift
    if drift.empty:
        return pd.DataFrame(columns=list(STRATA))
    own = drift[drift["statistic"].isin(["median", "max"])]
    own = own.assign(name=own["measure"].where(own["statistic"] == "median", "greatest of " + own["measure"]))
    wide = own.pivot(index=["parameter", "stratum", "num_rows"], columns="name", values="value").reset_index()
    wide = wide.rename(columns={"greatest of norm": "greatest"})
    place = {name: i for i, name in enumerate(ordered_strata(wide["stratum"]))}
    order = wide.assign(a=wide["parameter"].map(TABLES.index), b=wide["stratum"].map(place)).sort_values(["a", "b"])
    return order[[name for name in STRATA if name in order]].reset_index(drop=True)


def rows_section(computed: Computed) -> Section:
    """Every table by exposure, then the segments."""
    blocks: list[Block] = []
    strata = strata_table(computed)
    for name in TABLES:
        if len(own_strata := strata[strata["parameter"] == name]):
            title = f"{name}: its rows by exposure"
            blocks.append(FoldBlock(title=title, blocks=(_strata(own_strata),), is_open=name == TABLES[0]))
    if len(segments := computed.get("segments", epoch=computed.epoch)):
        blocks.append(FoldBlock(title="Segment rows", blocks=segments_blocks(lines_of(segments, reason=""))))
    is_adapted = any(run.adapted for run in computed.opened.runs)
    is_tied = strata["stratum"].isin([AT_INPUT, NOT_AT_INPUT]).any()
    lead = " ".join([ROWS_LEAD, *([TIED] if is_tied else [ADAPTED] if is_adapted else [])])
    return Section(id="rows", title="Which rows moved", lead=lead if blocks else "", blocks=tuple(blocks))


def in_percent(rows: pd.DataFrame) -> pd.DataFrame:
    """A table with ``drift_percent`` beside its relative drift."""
    return rows.assign(drift_percent=100 * rows["relative"].astype(float))


def _strata(strata: pd.DataFrame) -> Block:
    return table_block(
        in_percent(strata),
        "stratum num_rows drift_percent angle_degrees",
        "At the last snapshot, medians over rows; more measures are in tables/drift.csv.",
        stratum="rows",
        num_rows="number",
        drift_percent=Column(label="drift", unit="% of norm"),
        angle_degrees="angle",
    )


def named_rows(rows: pd.DataFrame) -> pd.Series:
    """The word of each row, and its number where it has none."""
    words = rows["token"].astype(str)
    return words.where(words != "", "row " + rows["row"].astype(str))


def segments_blocks(own: pd.DataFrame) -> tuple[Block, ...]:
    """Norm, cosine and drift of the segment rows, from the table of :func:`toolkit.measure_segments` at one epoch."""
    is_relative = own["measure"] == "relative_drift"
    table = own.assign(
        measure=own["measure"].str.replace("_", " "),
        value=own["value"].where(~is_relative, 100 * own["value"]),
        unit=own["unit"].where(~is_relative, "% of norm"),
    )[own["measure"] != "drift"]
    names = ("parameter", "measure", "value", "unit", "reason", "note")
    shown = table_block(table, names, "At the last snapshot.")
    if (own["measure"] == "cosine").any():
        return (shown,)
    return (shown, TextBlock(text="Cosine, difference and mean are not applicable: the model has one segment row."))


HEAD = DriftPart(makers=head_makers, answer=answer, tiles=tiles)
PARTS = {"changes": DriftPart(changes_section, makers), "rows": DriftPart(rows_section, rows_makers)}
