"""Of what kind the change of each embedding parameter is."""

import math

import pandas as pd

from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.questions.changes.measure import IN_PART, KINDS, NOT_APPLICABLE, NOT_COMPARED, measure_changes
from toolkit.reporting.cells import Column, number
from toolkit.reporting.charts import COLOURS
from toolkit.reporting.page import Block, Section, Tile, table_block
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened


def makers(opened: Opened) -> Makers:
    source = opened.source
    return {"changes": lambda: measure_changes(source)}


def tiles(computed: Computed) -> tuple[Tile, ...]:
    """One per embedding parameter that the model has: how far, and of what kind."""
    found, changes = [], computed.get("changes")
    for line in changes[changes["kind"] != NOT_APPLICABLE].to_dict("records"):
        name, relative = str(line["parameter"]), float(line["relative_drift"])
        size = "undefined: was 0" if math.isnan(relative) else f"{number(100 * relative)} %"
        said = {"noise": "like random noise", IN_PART: line["detail"], NOT_COMPARED: line["detail"]}
        value = NOT_COMPARED if line["kind"] == NOT_COMPARED else size if line["num_moved"] else "0 exactly"
        found.append(
            Tile(
                title=name.replace("_", " "),
                value=value,
                detail=str(said.get(line["kind"], line["kind"])),
                colour=COLOURS[EMBEDDING_PARAMETERS.index(name)],
            )
        )
    return tuple(found)


def section(computed: Computed) -> Section:
    """What changed, parameter by parameter."""
    changes = computed.get("changes")
    return Section(id="changes", title="What changed", blocks=(_kinds(changes),) if len(changes) else ())


KIND_HOW = "The first that holds: " + "; ".join(f"{name}: {text}" for name, text in KINDS.items()) + "."


def _kinds(changes: pd.DataFrame) -> Block:
    own = changes[changes["num_rows"] > 0]
    table = own.assign(
        moved=[f"{int(n):,} of {int(rows):,}" for n, rows in zip(own["num_moved"], own["num_rows"], strict=True)],
        unit=own["unit"].replace("1", ""),
        detail=["; ".join(filter(None, texts)) for texts in zip(own["detail"], own["note"], strict=True)],
        farthest=own["farthest"].astype(str),
    )
    names = ["parameter", "kind", "moved", "value", "unit", "detail", "farthest"]
    return table_block(
        table.drop(columns=[] if table["unit"].any() else "unit"),
        names,
        "The kind of each parameter's change: the first that holds, from identical to general.",
        kind=Column(label="kind of change", how=KIND_HOW),
        moved=Column(label="rows moved", how="Of a LayerNorm vector: entries."),
        value=Column(label="size", how="Of the rows that moved so; relative to their length where no unit is named."),
        farthest="farthest by relative drift",
        detail=Column(label="detail", how="Σ lr·decay is what weight decay comes to over all steps."),
    )


PART = DriftPart(makers, (section,), tiles=tiles, is_brief=True)
