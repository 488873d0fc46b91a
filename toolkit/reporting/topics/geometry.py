"""Whether it is the same space: similarity, geometry of the words, spectrum of the change, agreement of seeds."""

from collections.abc import Mapping

import pandas as pd

from toolkit.analysis.geometry import measure_geometry
from toolkit.analysis.similarity import measure_similarity
from toolkit.analysis.updates import measure_agreement, measure_updates
from toolkit.families import TABLES
from toolkit.reporting.cells import Column, number
from toolkit.reporting.page import Block, FoldBlock, Section, TableBlock, TextBlock
from toolkit.reporting.sources import Computed, Makers, Opened, computed, source_of

NULL = {
    "value": Column(label="value", digits=5),
    "null": Column(label="null, mean"),
    "interval": Column(label="null, 2.5 to 97.5 %"),
}
LEAD = (
    "Each number stands beside its null of the same shape. Snapshots of one run share their axes, so read the "
    "un-aligned drift first."
)

SEEDS = (
    "Rows that decay alone moves agree perfectly, and say nothing. Runs that learned the same wrong labels agree too: "
    "--shuffle-labels --label-seed says by how much."
)


def makers(opened: Opened) -> Makers:
    source, epoch = source_of(opened), opened.trajectory.snapshots[-1].epoch
    tables = [name for name in TABLES[:2] if name in opened.trajectory.parameters]
    made = {
        "similarity": lambda: pd.concat([measure_similarity(source, name, epoch) for name in tables]),
        "geometry": lambda: measure_geometry(source, TABLES[0], (0, epoch), by_stratum=False),
        "updates": lambda: pd.concat([measure_updates(source, name, epoch) for name in tables]),
    }
    return made | ({"agreement": lambda: _agreement(opened, tables, epoch)} if len(opened.runs) > 1 else {})


def _agreement(opened: Opened, tables: list[str], epoch: float) -> pd.DataFrame:
    frame = pd.concat([measure_agreement(opened.runs, name, epoch) for name in tables])
    shown = dict(zip((run.path.name for run in opened.runs), opened.names, strict=True))
    return frame.assign(first=frame["first"].replace(shown), second=frame["second"].replace(shown))


def section(tables: Computed) -> Section:
    """What is left of each measure after its refusals, one fold a table."""
    folds: Mapping[str, Block | None] = {
        "Similarity of the versions": _similarity(computed(tables.get("similarity"))),
        "Geometry of the word table": _geometry(computed(tables.get("geometry"))),
        "The change itself: its spectrum and directions": _updates(computed(tables.get("updates"))),
        "Agreement of seeds: do runs move the same row the same way?": _seeds(computed(tables.get("agreement"))),
    }
    said: tuple[Block, ...] = (TextBlock(text=SEEDS),)
    blocks = tuple(
        FoldBlock(title=title, blocks=(*(said if "seeds" in title else ()), block))
        for title, block in folds.items()
        if block
    )
    return Section(id="space", title="Is it the same space?", lead=LEAD if blocks else "", blocks=blocks)


def _intervals(frame: pd.DataFrame) -> list[str]:
    pairs = zip(frame["null_low"], frame["null_high"], strict=True)
    return [f"{number(low)} to {number(high)}" for low, high in pairs]


def _similarity(frame: pd.DataFrame) -> Block | None:
    if frame.empty:
        return None
    names = frame["measure"].str.replace("_", " ") + frame["side"].map(lambda d: f", {d}" if d else "")
    table = frame.assign(measure=names, interval=_intervals(frame))
    columns = {"parameter": Column(label="parameter"), "measure": Column(label="measure"), **NULL}
    columns["null_kind"] = Column(label="null")
    return TableBlock(table=table[list(columns)], caption="At the last snapshot.", columns=columns)


def _geometry(frame: pd.DataFrame) -> Block | None:
    lines = [
        [str(name).replace("_", " "), variant, own.iloc[0]["value"], own.iloc[-1]["value"], own.iloc[-1]["null"]]
        for (name, variant), own in (frame.groupby(["measure", "variant"], sort=False) if len(frame) else ())
        if len(own) > 1
    ]
    columns = {
        "measure": Column(label="measure"),
        "variant": Column(label="variant"),
        "before": Column(label="before", digits=4),
        "after": Column(label="after", digits=4),
        "gaussian": Column(label="Gaussian of the same shape", digits=4),
    }
    table = pd.DataFrame(lines, columns=list(columns))
    return TableBlock(table=table, caption="At the first and last snapshot.", columns=columns) if lines else None


def _updates(frame: pd.DataFrame) -> Block | None:
    if frame.empty:
        return None
    places = ["" if pd.isna(k) else f" {int(k)}" for k in frame["k"]]
    table = frame.assign(
        measure=frame["measure"].str.replace("_", " ") + places,
        interval=_intervals(frame),
        num_rows=frame["num_rows"].astype(int),
        chance=[None if pd.isna(value) else value for value in frame["chance"]],
    ).astype({"chance": object})
    columns = {"parameter": Column(label="parameter"), "measure": Column(label="measure"), **NULL}
    columns |= {"value": Column(label="value"), "chance": Column(label="chance"), "num_rows": Column(label="rows")}
    caption = "Spectrum of Δ over the rows that were touched, and its alignment with the main directions of E⁰."
    return TableBlock(table=table[list(columns)], caption=caption, columns=columns)


def _seeds(frame: pd.DataFrame) -> Block | None:
    if frame.empty:
        return None
    grouped = frame.groupby(["parameter", "stratum", "measure"], sort=False)
    table = grouped.agg(
        mean=("value", "mean"), least=("value", "min"), greatest=("value", "max"), null=("null_high", "max")
    ).reset_index()
    table["measure"] = table["measure"].str.replace("_", " ")
    columns = {
        "parameter": Column(label="parameter"),
        "stratum": Column(label="rows"),
        "measure": Column(label="measure"),
        "mean": Column(label="mean over pairs of runs"),
        "least": Column(label="least"),
        "greatest": Column(label="greatest"),
        "null": Column(label="null, 97.5 %", how="Rows permuted within their stratum."),
    }
    caption = "Cosine of Δ between runs, beside rows permuted within their stratum."
    return TableBlock(table=table, caption=caption, columns=columns)
