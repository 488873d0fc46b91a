"""What no output can show, and whether it is the same space: gauge, neighbours, similarity, geometry, seeds."""

import pandas as pd

from toolkit.analysis.gauge import measure_gauge
from toolkit.analysis.neighbours import most_changed
from toolkit.analysis.tokens_in_use import measure_design
from toolkit.families import TABLES
from toolkit.questions.space.agreement import measure_agreement
from toolkit.questions.space.functional import functional_drift
from toolkit.questions.space.geometry import measure_geometry
from toolkit.questions.space.similarity import measure_similarity
from toolkit.questions.space.updates import measure_updates
from toolkit.reporting.cells import Column, number
from toolkit.reporting.charts import Chart, percent_bars
from toolkit.reporting.page import Answer, Block, ChartBlock, FoldBlock, NoteBlock, Section, TextBlock, table_block
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened, computed
from toolkit.reporting.topics.movement import named_rows

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
GAUGE_LEAD = (
    "Three things change no output of the embedding layer: what LayerNorm takes away, an offset moved from one table "
    "to another, and a common scale. The table takes them out one after the other: Π removes each row's mean over its "
    "coordinates; then means over the run's own tokens are taken out (gauge fixed), whose sum is the common offset; "
    "then the common scale. Tables that drift independently have some gauge share too."
)


def gauge_makers(opened: Opened) -> Makers:
    """What makes the tables on the gauge, the design and the functional drift."""
    source = opened.source
    return {
        "gauge": lambda: measure_gauge(source),
        "design": lambda: measure_design(source),
        "functional": lambda: functional_drift(source),
    }


def neighbours_makers(opened: Opened) -> Makers:
    """What makes the table of the words whose neighbours changed most."""
    return {
        "neighbours": lambda: most_changed(list(opened.runs) or opened.source, opened.trajectory.snapshots[-1].epoch)
    }


def space_makers(opened: Opened) -> Makers:
    """What makes the tables on similarity, geometry and updates, and of several runs on their agreement."""
    source, epoch = opened.source, opened.trajectory.snapshots[-1].epoch
    tables = [name for name in TABLES[:2] if name in opened.trajectory.parameters]
    makers = {
        "similarity": lambda: pd.concat([measure_similarity(source, name, epoch) for name in tables]),
        "geometry": lambda: measure_geometry(source, TABLES[0], (0, epoch), by_stratum=False),
        "updates": lambda: pd.concat([measure_updates(source, name, epoch) for name in tables]),
    }
    return makers | ({"agreement": lambda: _agreement(opened, tables, epoch)} if len(opened.runs) > 1 else {})


def _agreement(opened: Opened, tables: list[str], epoch: float) -> pd.DataFrame:
    frame = pd.concat([measure_agreement(opened.runs, name, epoch) for name in tables])
    name_by_folder = dict(zip((run.path.name for run in opened.runs), opened.names, strict=True))
    return frame.assign(first=frame["first"].replace(name_by_folder), second=frame["second"].replace(name_by_folder))


def functional_chart(functional: pd.DataFrame) -> Chart | None:
    """The Shapley split of the functional drift at the last snapshot; None where no output changed.

    ``functional`` is the table of :func:`toolkit.functional_drift`.
    """
    last_epoch = functional[functional["epoch"] == functional["epoch"].max()]
    shapley = last_epoch[last_epoch["measure"] == "shapley"]
    if shapley.empty or not last_epoch["value"].max() > NOTHING:
        return None
    return percent_bars(
        shapley.assign(percent=100 * shapley["value"]),
        "component",
        "percent",
        "share of the output's squared length (%)",
    )


def output_change(computed: Computed) -> Answer | None:
    """How far the output of the embedding layer changed."""
    drift = computed.get("functional", epoch=computed.epoch, measure="functional_drift")
    if drift.empty or not drift["value"].iloc[0] > NOTHING:
        return None
    text = (
        f"The output of the embedding layer changed by {number(100 * drift['value'].iloc[0])} % of its squared length."
    )
    return Answer(question="Does the model behind the embeddings see it?", verdict="yes", text=text, tone="apart")


def gauge_section(computed: Computed) -> Section:
    """Drift per table, raw and in the fixed gauge, the shares, and what the output shows."""
    blocks: list[Block] = []
    if len(gauge := computed.get("gauge", epoch=computed.epoch)):
        blocks += [_by_table(gauge), _shares(gauge), *_notes(gauge)]
    if len(functional := computed.get("functional", epoch=computed.epoch)):
        blocks += _functional(functional)
    lead = GAUGE_LEAD if blocks else ""
    return Section(id="gauge", title="What no output can show", lead=lead, blocks=tuple(blocks))


def _by_table(gauge: pd.DataFrame) -> Block:
    """The drift of each table: raw, after Π, in the fixed gauge, and without the common scale."""
    drift = gauge[gauge["measure"].isin(QUANTITIES) & (gauge["parameter"] != "all tables")]
    drift = drift.assign(value=drift["value"].mask(drift["value"].abs() < ROUNDING, 0.0))
    by_parameter = drift.pivot(index="parameter", columns="measure", values="value").reindex(columns=list(QUANTITIES))
    # The common offset has no raw drift: that is not applicable, and neither 0 nor undefined.
    is_absent = drift.assign(value=False).pivot(index="parameter", columns="measure", values="value").isna()
    by_parameter = by_parameter.astype(object).mask(
        is_absent.reindex(columns=by_parameter.columns, fill_value=True), None
    )
    table = by_parameter.loc[drift["parameter"].unique()].reset_index()
    labels = {name: Column(label=label) for name, label in QUANTITIES.items()}
    return table_block(table, table, "Root mean square over tokens, in weight units.", parameter="of", **labels)


def taken_away(gauge: pd.DataFrame) -> float:
    """Share of the tables' squared drift that LayerNorm takes away; NaN without drift or with a projection before it.

    What LayerNorm takes away of narrow rows is not what it would take away of the projected ones.
    """
    drift = gauge[gauge["parameter"].isin([*TABLES, "all tables"])]
    if drift.loc[drift["measure"] == "gauge_share", "value"].isna().any():
        return float("nan")
    raw, after = (
        float((drift.loc[drift["measure"] == measure, "value"] ** 2).sum()) for measure in ("raw_drift", "pi_drift")
    )
    return 1 - after / raw if raw > 0 else float("nan")


def _shares(gauge: pd.DataFrame) -> Block:
    """What is known of all tables together, first the share of their drift that LayerNorm takes away."""
    overall = gauge[gauge["parameter"] == "all tables"]
    rows: list[list[object]] = [["squared drift that LayerNorm takes away (%)", 100 * taken_away(gauge)]]
    for name, value in zip(overall["measure"], overall["value"], strict=True):
        is_count = name.startswith("num_") and value == value
        rows.append([name.replace("_", " "), int(value) if is_count else float(value)])
    table = pd.DataFrame(rows, columns=["measure", "value"], dtype=object)
    return table_block(table, table, "Over all tables.")


def _notes(frame: pd.DataFrame) -> list[Block]:
    return [NoteBlock(text=note) for note in sorted({str(note) for note in frame["note"] if note})]


def _functional(functional: pd.DataFrame) -> list[Block]:
    """How far the layer's output moved and what moved it: the chart, the table and the notes."""
    total = float(functional.loc[functional["measure"] == "functional_drift", "value"].iloc[0])
    value = 100 * functional["value"]
    table = functional[["component"]].assign(value=value, share=value / (total if total > 0 else float("nan")))
    block = table_block(
        table,
        table,
        f"How far the layer's output moved, and what moved it: {functional['sample'].iloc[0]}.",
        value=Column(label="functional drift", unit="%", how="E‖LN(e) - LN(e⁰)‖² / E‖LN(e⁰)‖² over tokens."),
        share=Column(label="share", unit="%", how="Shapley values: they add up to the whole."),
    )
    caption = "Shapley split of the functional drift: how much of the output's change is due to each component."
    alt = "; ".join(f"{c} {number(v)} %" for c, v in zip(table["component"], value, strict=True))
    chart = functional_chart(functional)
    picture = [ChartBlock(name="functional", chart=chart, caption=caption, alt=alt)] if chart else []
    return [*picture, block, *_notes(functional)]


NEIGHBOURS_LEAD = (
    "Of each word's ten nearest neighbours by cosine: how many it kept, beside how many it would keep if every row had "
    "moved as far in a random direction. The comparison is needed because words with close rivals lose neighbours "
    "whichever way they move."
)
NO_WORD = "No word lost more of its neighbours than if every row had moved as far in a random direction."


def neighbours_section(computed: Computed) -> Section:
    """The words whose neighbours changed most beyond chance, and how far the runs agree on them."""
    if "neighbours" not in computed.frames:
        return Section(id="neighbours", title="Neighbours")
    frame = computed.frames["neighbours"]
    blocks: tuple[Block, ...] = _neighbours(frame) if len(frame) else (TextBlock(text=NO_WORD),)
    return Section(id="neighbours", title="Neighbours", lead=NEIGHBOURS_LEAD, blocks=blocks)


def _neighbours(frame: pd.DataFrame) -> tuple[Block, ...]:
    """The words whose neighbours changed most beyond chance and, of several runs, how far these agree."""
    steps = frame["num_steps"].astype(float)
    shares = {name: 100 * frame[name] for name in ("overlap", "random_overlap", "percentile")}
    table = frame.assign(
        token=named_rows(frame),
        stratum=frame["stratum"].astype(str),
        # Counts of one run are whole, means over runs need not be.
        num_steps=steps.astype(int) if (steps % 1 == 0).all() else steps,
        num_runs=frame["num_runs"].astype(int),
        **shares,
    )
    names = ["token", "stratum", "num_steps", *shares, "num_runs"]
    block = table_block(
        table,
        [name for name in names if name not in ("stratum", "num_steps") or not steps.isna().all()],
        "Words whose neighbours changed most beyond chance, mean over the runs.",
        token="word",
        stratum="rows",
        overlap=Column(label="neighbours kept", unit="%"),
        random_overlap=Column(label="in a random direction", unit="%"),
        percentile=Column(label="percentile", how="Among words of like exposure."),
        num_runs="runs that list it",
    )
    if pd.isna(frame.iloc[0]["jaccard"]):
        return (block,)
    agreement = table_block(
        frame[["jaccard", "jaccard_random", "jaccard_permuted"]].head(1),
        ("jaccard", "jaccard_random", "jaccard_permuted"),
        f"How far runs agree on the {len(frame)} words: mean over pairs of runs.",
        jaccard="Jaccard index of two runs' lists",
        jaccard_random="when every row moves as far in a random direction",
        jaccard_permuted="when words of like exposure are permuted",
    )
    return (block, agreement)


SPACE_LEAD = (
    "Each number stands beside its null of the same shape. Snapshots of one run share their axes, so read the "
    "un-aligned drift first."
)
SEEDS = (
    "Rows that decay alone moves agree perfectly, and say nothing. Runs that learned the same wrong labels agree too: "
    "--shuffle-labels --label-seed says by how much."
)
NULL = {
    "value": Column(label="value", digits=5),
    "null": Column(label="null, mean"),
    "interval": Column(label="null, 2.5 to 97.5 %"),
}


def space_section(tables: Computed) -> Section:
    """What is left of each measure after its refusals, one fold a table."""
    makers = {
        "similarity": ("Similarity of the versions", _similarity),
        "geometry": ("Geometry of the word table", _geometry),
        "updates": ("The change itself: its spectrum and directions", _updates),
        "agreement": ("Agreement of seeds: do runs move the same row the same way?", _seeds),
    }
    frames = {name: computed(tables.get(name)) for name in makers}
    blocks = tuple(
        FoldBlock(title=makers[name][0], blocks=makers[name][1](frame)) for name, frame in frames.items() if len(frame)
    )
    return Section(id="space", title="Is it the same space?", lead=SPACE_LEAD if blocks else "", blocks=blocks)


def _with_texts(frame: pd.DataFrame) -> pd.DataFrame:
    """Measures in plain words, and the interval of the null."""
    intervals = [
        f"{number(low)} to {number(high)}" for low, high in zip(frame["null_low"], frame["null_high"], strict=True)
    ]
    return frame.assign(measure=frame["measure"].str.replace("_", " "), interval=intervals)


def _similarity(frame: pd.DataFrame) -> tuple[Block, ...]:
    table = _with_texts(frame)
    names = ("parameter", "measure", *NULL, "null_kind")
    return (table_block(table, names, "At the last snapshot.", null_kind="null", **NULL),)


def _geometry(frame: pd.DataFrame) -> tuple[Block, ...]:
    """Each statistic of the shape at the first and the last snapshot, beside a Gaussian table's."""
    grouped = frame.groupby(["measure", "variant"], sort=False)
    last_epoch = grouped.tail(1).set_index(["measure", "variant"])
    table = last_epoch.assign(
        after=last_epoch["value"], before=grouped.head(1).set_index(last_epoch.index.names)["value"]
    )
    table = table[grouped.size().reindex(table.index) > 1].reset_index()
    table["measure"] = table["measure"].str.replace("_", " ")
    labels = {"before": "before", "after": "after", "null": "Gaussian of the same shape"}
    columns = {name: Column(label=label, digits=4) for name, label in labels.items()}
    return (table_block(table, ("measure", "variant", *columns), "At the first and last snapshot.", **columns),)


def _updates(frame: pd.DataFrame) -> tuple[Block, ...]:
    """How concentrated the update is (its spectrum) and how far it lies along the table's main directions before.

    Each beside its null; what an alignment is by chance has a column of its own.
    """
    table = _with_texts(frame)
    table["measure"] += ["" if pd.isna(k) else f" {int(k)}" for k in frame["k"]]
    chance = [None if pd.isna(value) else value for value in frame["chance"]]
    table = table.assign(num_rows=frame["num_rows"].astype(int), chance=pd.Series(chance, frame.index, dtype=object))
    caption = "Spectrum of Δ over the rows that were touched, and its alignment with the main directions of E⁰."
    columns = NULL | {"value": Column(label="value")}
    return (table_block(table, ("parameter", "measure", *NULL, "chance", "num_rows"), caption, **columns),)


def _seeds(frame: pd.DataFrame) -> tuple[Block, ...]:
    """The cosines of updates between runs: mean, least and greatest, beside permuted rows."""
    grouped = frame.groupby(["parameter", "stratum", "measure"], sort=False)
    table = grouped.agg(
        mean=("value", "mean"), least=("value", "min"), greatest=("value", "max"), null=("null_high", "max")
    ).reset_index()
    block = table_block(
        table.assign(measure=table["measure"].str.replace("_", " ")),
        table,
        "Cosine of Δ between runs, beside rows permuted within their stratum.",
        stratum="rows",
        mean=Column(label="mean over pairs of runs"),
        least=Column(label="least"),
        greatest=Column(label="greatest"),
        null=Column(label="null, 97.5 %", how="Rows permuted within their stratum."),
    )
    return (TextBlock(text=SEEDS), block)


PARTS = {
    "gauge": DriftPart(gauge_section, gauge_makers, output_change),
    "neighbours": DriftPart(neighbours_section, neighbours_makers),
    "space": DriftPart(space_section, space_makers),
}
