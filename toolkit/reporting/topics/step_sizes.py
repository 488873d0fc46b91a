"""How large a step of the optimizer was beside the weights, and what of that step was lost to rounding."""

import pandas as pd

from toolkit.analysis.precision import measure_step_sizes
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.reporting.cells import number
from toolkit.reporting.charts import Chart, altair, colour, data_of, log_axis, panels, pick, shape, tips
from toolkit.reporting.page import Block, Section, TextBlock, picture, table_block
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened

ID, TITLE = "step-sizes", "How large was a step?"
LEAD = (
    "One optimizer step beside the weights that it changes, at every step whose number is a power of two: what is lost "
    "to rounding is of that one step, not of training. A parameter that loses every step stands still however long it "
    "is trained: raise its learning rate, or keep its weights in float32."
)
CAPTION = (
    "Norm of a step's update over norm of the weights, of the rows with a gradient at that step. Undefined, and so not "
    "drawn, where the weights are 0, as those of a LayerNorm bias can be at first."
)


def makers(opened: Opened) -> Makers:
    """The sizes of steps of a finished run."""
    if not opened.is_run or not opened.runs[0].is_finished:
        return {}
    return {"step_sizes": lambda: measure_step_sizes(opened.runs[0])}


def section(computed: Computed) -> Section:
    """The largest steps in one sentence, the chart, and what of the last step was lost."""
    sizes = computed.get("step_sizes")
    if sizes.empty:
        return Section(id=ID, title=TITLE)
    last = sizes[sizes["step"] == sizes["step"].max()]
    worst = last.loc[last["lost_to_rounding"].idxmax()]
    summary = (
        f"At step {worst['step']:,}, the last that was looked at, {number(100 * worst['lost_to_rounding'])} % of the "
        f"values of {worst['parameter']} with a gradient stayed as they were: no parameter lost more of that step to "
        "rounding. Other steps may have lost more or less."
    )
    blocks: list[Block] = [TextBlock(text=summary)]
    if chart := picture("step-sizes", plot_step_sizes(sizes), CAPTION):
        blocks.append(chart)
    caption = "The last step that was looked at; all of them are in tables/step_sizes.csv."
    return Section(id=ID, title=TITLE, lead=LEAD, blocks=(*blocks, table_block(last, list(sizes), caption)))


def plot_step_sizes(sizes: pd.DataFrame) -> Chart | None:
    """Update over weight at each step that was looked at, a line per parameter; from `toolkit.measure_step_sizes`.

    None where no step is above 0.
    """
    drawn_sizes = sizes[sizes["update_to_weight"] > 0]
    if drawn_sizes.empty:
        return None
    names = [name for name in EMBEDDING_PARAMETERS if name in set(drawn_sizes["parameter"])]
    picker = pick("parameter", names) if len(names) > 1 else None
    step_axis = log_axis(drawn_sizes["step"])
    size_axis = log_axis(drawn_sizes["update_to_weight"])
    base = altair.Chart(data_of(drawn_sizes), width=580, height=190).encode(
        x=altair.X(
            "step:Q", title="optimizer step", scale=step_axis.scale(), axis=step_axis.axis(format=",.0f", grid=False)
        ),
        y=altair.Y("update_to_weight:Q", title="update / weight", scale=size_axis.scale(), axis=size_axis.axis()),
        color=colour("parameter", names),
        **({"opacity": picker.opacity} if picker else {}),
    )
    tip_fields = tips(
        parameter="parameter",
        step=("step", ",.0f"),
        update_to_weight=("update / weight", ".3g"),
        lost_to_rounding=("share of this step lost to rounding", ".3g"),
    )
    points = base.mark_point().encode(shape=shape("parameter", names), tooltip=tip_fields)
    return panels([altair.layer(base.mark_line(), points)], 1, picker)


PART = DriftPart(section, makers)
