"""How far the embedding parameters and their rows moved, snapshot by snapshot."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from toolkit.analysis.drift import WHOLE, after_start, measure_drift, measure_rows, measure_segments
from toolkit.analysis.strata import AT_INPUT, NOT_AT_INPUT
from toolkit.comparison.report_data import ordered_strata
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.reporting.cells import Column, number
from toolkit.reporting.charts import (
    Chart,
    altair,
    colour,
    dash,
    data_of,
    log_axis,
    percent_bars,
    pick,
    shape,
    themed,
    tips,
)
from toolkit.reporting.page import (
    Block,
    ChartBlock,
    FoldBlock,
    Section,
    TableBlock,
    TextBlock,
    heading,
    picture,
    table_block,
)
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened, lines_of
from toolkit.reporting.topics.drift import ADAPTED, TIED
from toolkit.snapshots.logs import BY_ADAPTER
from toolkit.snapshots.store import Source, trajectory_of

HEIGHT = 180
MOST_EPOCHS = 8
"""Columns of the table over time: the first, the last, and some between."""
NUM_WORDS = 100


def makers(opened: Opened) -> Makers:
    source = opened.source
    return {
        "drift": lambda: measure_drift(source),
        "most_moved": lambda: most_moved(source),
        "segments": lambda: measure_segments(source),
    }


def plot_change(source: Source) -> Chart:
    """The relative drift of each whole embedding parameter at every snapshot, as an Altair chart.

    ``source`` is a run, its path, a trajectory or imported checkpoints. A bar per parameter where there are two
    snapshots, lines over time where there are more. ValueError where nothing moved.

    Examples
    --------
    >>> chart = toolkit.plot_change(run)
    >>> chart.save("drift.svg")
    >>> Path("drift.svg").exists()
    True
    """
    chart = change_chart(measure_drift(source, ("norm", "relative")), names_of_snapshots(source))
    if chart is None:
        raise ValueError("nothing moved: there is no change to plot")
    return themed(chart)


def names_of_snapshots(source: Source) -> dict[float, str]:
    """Epoch of a snapshot to the name of its checkpoint; empty where the snapshots have none."""
    found = {float(snapshot.epoch): snapshot.name for snapshot in trajectory_of(source)}
    return found if any(found.values()) else {}


def change_chart(drift: pd.DataFrame, names: Mapping[float, str] | None = None) -> Chart | None:
    """The chart of :func:`plot_change` from the table of :func:`toolkit.measure_drift`; None where nothing moved."""
    lines = whole_lines(drift)
    if not (lines["percent"] > 0).any():
        return None
    if lines["epoch"].nunique() == 1:
        return percent_bars(lines[lines["percent"].notna()], "parameter", "percent", "relative drift (%)")
    return _over_time(lines[lines["percent"].notna()], names or {})


def whole_lines(drift: pd.DataFrame) -> pd.DataFrame:
    """Relative drift of whole parameters after the first snapshot: epoch, parameter, percent; what stayed 0 is 0."""
    own = after_start(drift[(drift["stratum"] == WHOLE) & (drift["statistic"] == "value")])
    wide = own.pivot(index=["epoch", "parameter"], columns="measure", values="value").reset_index()
    wide["percent"] = np.where(wide["norm"] == 0, 0.0, 100 * wide["relative"])
    wide["place"] = wide["parameter"].map({name: i for i, name in enumerate(EMBEDDING_PARAMETERS)})
    return wide.sort_values(["epoch", "place"])[["epoch", "parameter", "percent"]].reset_index(drop=True)


def _over_time(lines: pd.DataFrame, names: Mapping[float, str]) -> Chart:
    series = [name for name in EMBEDDING_PARAMETERS if name in set(lines["parameter"])]
    shown = lines.assign(when=[names.get(epoch, "") for epoch in lines["epoch"]] if names else lines["epoch"])
    epochs = sorted(lines["epoch"].unique())
    ticks = epochs if len(epochs) <= 10 else altair.Undefined
    axis = altair.Axis(values=ticks, format="~f", grid=False)
    x = altair.X("epoch:Q", title="epoch", scale=altair.Scale(zero=False, nice=False, padding=14), axis=axis)
    if names and len(epochs) <= 6:
        x = altair.X("when:N", sort=None, title="checkpoint", axis=altair.Axis(labelAngle=0, labelLimit=150))
    picker = pick("parameter", series)
    tall = log_axis(lines["percent"])
    base = altair.Chart(data_of(shown)).encode(
        x=x,
        color=colour("parameter", series, symbolStrokeWidth=0),
        opacity=picker.opacity,
        tooltip=tips(
            parameter="parameter",
            when="checkpoint" if names else "epoch",
            percent=("relative drift (%)", ".3g"),
        ),
    )
    y = altair.Y("percent:Q", scale=tall.scale(), axis=tall.axis(), title="relative drift (%)")
    moved = base.transform_filter("datum.percent > 0")
    marks = {"filled": True, "opacity": 1, "size": 55}
    shapes = shape("parameter", series, symbolStrokeWidth=0)
    layers = [
        moved.mark_line().encode(y=y, strokeDash=dash("parameter", series)),
        moved.mark_point(**marks).encode(y=y, shape=shapes),
    ]
    if (lines["percent"] == 0).any():
        still = base.transform_filter("datum.percent == 0")
        layers.append(still.mark_point(**marks).encode(y=altair.value(HEIGHT), shape=shapes))
    layers[-1] = layers[-1].add_params(*picker.params)
    return altair.layer(*layers, width=560, height=HEIGHT)


def farthest(computed: Computed) -> str:
    """The parameter that moved most, beside what its re-initialisation would read, in one sentence."""
    drift = computed.get("drift")
    if drift.empty:
        return ""
    last = lines_of(whole_lines(drift), epoch=computed.epoch)
    if not (last["percent"] > 0).any():
        return none_moved(computed.opened) if not last["percent"].isna().any() else ""
    line = last.loc[last["percent"].idxmax()]
    where = {"parameter": line["parameter"], "stratum": WHOLE, "measure": "relative", "statistic": "reinitialised"}
    null = 100 * float(computed.get("drift", **where)["value"].iloc[0])
    return (
        f"{line['parameter']} changed most: by {number(line['percent'])} % of its length (independent new values: "
        f"{number(null)} %)."
    )


def none_moved(opened: Opened) -> str:
    """That nothing moved, of what was compared."""
    part = opened.trajectory.compared(*EMBEDDING_PARAMETERS, "snapshots")
    return f"Identical in what could be compared: {part}." if part else "No embedding parameter moved."


def first_picture(computed: Computed) -> ChartBlock | None:
    """The picture of the first screen."""
    drift = computed.frames["drift"]
    caption = (
        "Relative drift of each whole parameter: the length of its change, in % of its length before. Marks on the "
        "floor are exactly 0."
    )
    return picture("change", change_chart(drift, names_of_snapshots(computed.opened.source)), caption)


def changes_section(computed: Computed) -> Section:
    """How far each parameter moved, at every snapshot."""
    blocks = (_over_epochs(computed),) if len(computed.get("drift")) else ()
    return Section(id="changes", title="What changed", blocks=blocks)


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
    caption = "Relative drift ‖Δ‖ / ‖E⁰‖ of each whole parameter; undefined where it was 0 before and is not now."
    return TableBlock(table=table, caption=caption, columns=columns)


ROWS_LEAD = (
    "Rows that moved for different reasons are not averaged together, but stand by the optimizer steps that showed "
    "them (their exposure), where these were recorded. {how}"
)
BY_STEPS = (
    "Adam moves a row by the count of those steps and hardly by the size of its gradient, so the list of words is no "
    "ranking of importance."
)
STRATA = ("parameter", "stratum", "num_rows", "norm", "greatest", "relative", "angle_degrees", "radial")


def most_moved(source: Source) -> pd.DataFrame:
    """The word rows that are farthest from the first snapshot, farthest first; ValueError where no word moved.

    The columns are those of :func:`toolkit.measure_rows` with ``norm``, ``relative`` and ``angle_degrees``.
    """
    epoch = trajectory_of(source).snapshots[-1].epoch
    rows = measure_rows(source, TABLES[0], epoch, ("norm", "relative", "angle_degrees"))
    moved = rows[rows["norm"] > 0]
    if moved.empty:
        raise ValueError("no row of word_embeddings moved")
    return moved.sort_values(["norm", "row"], ascending=[False, True]).head(NUM_WORDS).reset_index(drop=True)


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
    """The words that moved most, then every table by exposure, then the segments."""
    blocks: list[Block] = []
    words = computed.get("most_moved")
    if len(words):
        names = ["token", "stratum", "num_steps", "num_tokens", "norm", "relative", "angle_degrees"]
        if words["num_steps"].isna().all():
            names = [names[0], *names[4:]]
        table = words.assign(token=named_rows(words), stratum=words["stratum"].astype(str))
        caption = f"The {len(words)} words that moved most, from the first snapshot to the last."
        own = {"norm": "‖Δ‖", "relative": "relative drift", "angle_degrees": "angle"}
        blocks.append(table_block(table, names, caption, token="word", stratum="rows", **own))
    strata = strata_table(computed)
    for name in TABLES:
        if len(own_strata := strata[strata["parameter"] == name]):
            title = f"{name}: its rows by exposure"
            blocks.append(FoldBlock(title=title, blocks=(_strata(own_strata),), is_open=name == TABLES[0]))
    if len(segments := computed.get("segments", epoch=computed.epoch)):
        blocks.append(FoldBlock(title="Segment rows", blocks=segments_blocks(lines_of(segments, reason=""))))
    is_adapted = any(BY_ADAPTER in why for why in computed.missing.values())
    is_tied = strata["stratum"].isin([AT_INPUT, NOT_AT_INPUT]).any()
    how = TIED if is_tied else ADAPTED if is_adapted else BY_STEPS
    lead = ROWS_LEAD.format(how=how) if blocks else ""
    return Section(id="rows", title="Which words and rows moved", lead=lead, blocks=tuple(blocks))


def _strata(strata: pd.DataFrame) -> Block:
    return table_block(
        strata,
        STRATA[1:],
        "At the last snapshot.",
        stratum="rows",
        num_rows="number",
        norm="median ‖Δ‖",
        greatest=Column(label="greatest ‖Δ‖", unit="weight units"),
        relative="median relative drift",
        angle_degrees="median angle",
        radial="median radial change",
    )


def named_rows(rows: pd.DataFrame) -> pd.Series:
    """The word of each row, and its number where it has none."""
    words = rows["token"].astype(str)
    return words.where(words != "", "row " + rows["row"].astype(str))


def segments_blocks(own: pd.DataFrame) -> tuple[Block, ...]:
    """Norm, cosine and drift of the segment rows, from the table of :func:`toolkit.measure_segments` at one epoch."""
    table = own.assign(measure=own["measure"].str.replace("_", " "))
    names = ("parameter", "measure", "value", "unit", "reason", "note")
    shown = table_block(table, names, "At the last snapshot.")
    if (own["measure"] == "cosine").any():
        return (shown,)
    return (shown, TextBlock(text="Cosine, difference and mean are not applicable: the model has one segment row."))


PART = DriftPart(makers, (changes_section,))
ROWS = DriftPart(sections=(rows_section,))
