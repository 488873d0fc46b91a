"""Which rows moved: the words that moved most, and the rows of each table by how often training showed them."""

import pandas as pd

from toolkit.analysis.drift import WHOLE, measure_rows, measure_segments
from toolkit.comparison.report_data import ordered_strata
from toolkit.families import TABLES
from toolkit.reporting.cells import Column
from toolkit.reporting.page import Block, FoldBlock, Section, TableBlock, TextBlock
from toolkit.reporting.sources import Computed, Makers, Opened, lines_of, source_of
from toolkit.snapshots.store import Source, trajectory_of

NUM_WORDS = 100
WORDS = {
    "token": Column(label="word"),
    "stratum": Column(label="rows", how="By the optimizer steps of the whole run that showed the word."),
    "num_steps": Column(label="steps", how="Optimizer steps that showed the word."),
    "num_tokens": Column(label="tokens", how="How often the word stood in those steps' texts."),
    "norm": Column(label="‖Δ‖", unit="weight units", how="Length of the row's change."),
    "relative": Column(label="relative drift", how="‖Δ‖ / ‖E⁰‖ of the row."),
    "angle_degrees": Column(label="angle", unit="degrees", how="Between the row before and after."),
}
STRATA = {
    "parameter": Column(label="parameter"),
    "stratum": Column(label="rows"),
    "num_rows": Column(label="number"),
    "norm": Column(label="median ‖Δ‖", unit="weight units"),
    "greatest": Column(label="greatest ‖Δ‖", unit="weight units"),
    "relative": Column(label="median relative drift", how="‖Δ‖ / ‖E⁰‖ of a row."),
    "angle_degrees": Column(label="median angle", unit="degrees"),
    "radial": Column(label="median radial change", unit="weight units", how="Growth of the row's length."),
}
LEAD = (
    "Rows that moved for different reasons are not averaged together, but stand by the optimizer steps that showed "
    "them (their exposure), where these were recorded. Adam moves a row by the count of those steps and hardly by the "
    "size of its gradient, so the list of words is no ranking of importance."
)


def makers(opened: Opened) -> Makers:
    source = source_of(opened)
    return {"most_moved": lambda: most_moved(source), "segments": lambda: measure_segments(source)}


def most_moved(source: Source, num: int = NUM_WORDS) -> pd.DataFrame:
    """The word rows that are farthest from the first snapshot, farthest first; ValueError where no word moved.

    The columns are those of :func:`toolkit.measure_rows` with ``norm``, ``relative`` and ``angle_degrees``.
    """
    epoch = trajectory_of(source).snapshots[-1].epoch
    rows = measure_rows(source, TABLES[0], epoch, ("norm", "relative", "angle_degrees"))
    moved = rows[rows["norm"] > 0]
    if moved.empty:
        raise ValueError("no row of word_embeddings moved")
    return moved.sort_values(["norm", "row"], ascending=[False, True]).head(num).reset_index(drop=True)


def strata_table(computed: Computed) -> pd.DataFrame:
    """One line per table and stratum at the last snapshot: the columns STRATA, and ``num_undefined``."""
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


def section(computed: Computed) -> Section:
    """The words that moved most, then every table by exposure, then the segments."""
    blocks: list[Block] = []
    words = computed.get("most_moved")
    if len(words):
        is_known = bool(words["num_steps"].notna().any())
        shown = {name: column for name, column in WORDS.items() if is_known or not name.startswith(("num_", "stratum"))}
        named = words.assign(
            token=words["token"].where(words["token"].astype(str) != "", "row " + words["row"].astype(str)),
            stratum=words["stratum"].astype(str),
        )
        caption = f"The {len(words)} words that moved most, from the first snapshot to the last."
        blocks.append(TableBlock(table=named[list(shown)], caption=caption, columns=shown, num_shown=15))
    strata = strata_table(computed)
    for name in TABLES:
        own = strata[strata["parameter"] == name].drop(columns="parameter")
        if len(own):
            columns = {key: column for key, column in STRATA.items() if key in own}
            title = f"{name}: its rows by exposure"
            block = TableBlock(table=own, caption="At the last snapshot.", columns=columns)
            blocks.append(FoldBlock(title=title, blocks=(block,), is_open=name == TABLES[0]))
    blocks += _segments(computed)
    return Section(id="rows", title="Which words and rows moved", lead=LEAD if blocks else "", blocks=tuple(blocks))


def _segments(computed: Computed) -> list[Block]:
    own = computed.get("segments", epoch=computed.epoch)
    return [FoldBlock(title="Segment rows", blocks=segments_blocks(lines_of(own, reason="")))] if len(own) else []


def segments_blocks(own: pd.DataFrame) -> tuple[Block, ...]:
    """Norm, cosine and drift of the segment rows, from the table of :func:`toolkit.measure_segments` at one epoch."""
    table = own.assign(measure=own["measure"].str.replace("_", " "))
    names = ["parameter", "measure", "value", "unit", "reason", "note"]
    is_said = {name: name not in ("reason", "note") or own[name].astype(bool).any() for name in names}
    columns = {name: Column(label=name) for name in names if is_said[name]}
    shown = TableBlock(table=table[list(columns)], caption="At the last snapshot.", columns=columns)
    if (own["measure"] == "cosine").any():
        return (shown,)
    return (shown, TextBlock(text="Cosine, difference and mean are not applicable: the model has one segment row."))
