"""Of what kind the change of each embedding parameter is."""

import pandas as pd

from toolkit.questions.changes.finders import SHARE
from toolkit.questions.changes.measure import KINDS, measure_changes
from toolkit.reporting.cells import Column
from toolkit.reporting.page import Block, Section, table_block
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened


def makers(opened: Opened) -> Makers:
    source = opened.source
    return {"changes": lambda: measure_changes(source)}


def section(computed: Computed) -> Section:
    """Of what kind each parameter's change is."""
    changes = computed.get("changes")
    return Section(id="kinds", title="Of what kind each change is", blocks=(_kinds(changes),) if len(changes) else ())


KIND_HOW = "The first that holds: " + "; ".join(f"{name}: {text}" for name, text in KINDS.items()) + "."


def _kinds(changes: pd.DataFrame) -> Block:
    """The kind and size of each parameter's change, of those that the model has."""
    present = changes[changes["num_rows"] > 0]
    table = present.assign(
        moved=[
            f"{int(num_moved):,} of {int(num_rows):,}"
            for num_moved, num_rows in zip(present["num_moved"], present["num_rows"], strict=True)
        ],
        value=present["value"].where(present["unit"] != SHARE, 100 * present["value"]),
        unit=present["unit"].replace(SHARE, "% of norm"),
        detail=["; ".join(filter(None, texts)) for texts in zip(present["detail"], present["note"], strict=True)],
    )
    return table_block(
        table,
        "parameter kind moved value unit detail",
        "The kind of each parameter's change: the first that holds, from identical to general.",
        kind=Column(label="kind of change", how=KIND_HOW),
        moved=Column(label="rows moved", how="Of a LayerNorm vector: entries."),
        value=Column(label="size", how="Of the rows that moved so."),
        detail=Column(label="detail", how="Σ lr·decay is what weight decay comes to over all steps."),
    )


# What moved a run's rows its log tells, which is quicker than fitting every kind of change.
PARTS = {"kinds": DriftPart(section, makers, is_brief=lambda opened: not opened.is_run)}
