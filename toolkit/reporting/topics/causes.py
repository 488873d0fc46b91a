"""Why rows moved: weight decay and gradients, drift against exposure, and what gradients of random signs would do."""

from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.causes import explain
from toolkit.analysis.drift import measure_rows
from toolkit.analysis.nulls import is_beyond_both, sign_noise
from toolkit.analysis.strata import why_unknown
from toolkit.comparison.report_data import ordered_strata
from toolkit.config import MLM
from toolkit.families import TABLES
from toolkit.reporting.cells import UNDEFINED, Column, number
from toolkit.reporting.charts import COLOURS, REFERENCE, Chart, along, altair, data_of, log_axis, outline, tips
from toolkit.reporting.page import Answer, Block, ChartBlock, Section, table_block
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened
from toolkit.reporting.topics.drift import MOVED_BY
from toolkit.reporting.topics.movement import in_percent
from toolkit.schema import columns_of
from toolkit.snapshots.store import Run, Source, trajectory_of

ROW = "a row"
MEDIAN = "median of the rows"
NULL = "same steps, random signs: median, 95 %"
UNSEEN = "median of the rows never seen"
SERIES_COLOURS = {ROW: REFERENCE, MEDIAN: COLOURS[1], NULL: COLOURS[0], UNSEEN: COLOURS[2]}
FEWEST_IN_BIN = 5
ROWS_IN_BIN = 30
"""Rows per bin of exposure for which the null is computed."""
DRAWN_IN_BIN = 150
"""Rows per bin of exposure that are drawn."""
HEIGHT = 300


def makers(opened: Opened) -> Makers:
    """The tables of exposure, causes and sign noise of a run; none of checkpoints."""
    if not opened.is_run:
        return {}
    source, epoch = opened.source, opened.trajectory.snapshots[-1].epoch
    tables = [name for name in TABLES if name in opened.trajectory.parameters]
    return {
        "exposure": lambda: measure_exposure(source, with_null=True),
        "causes": lambda: pd.concat(
            # Each parameter has strata of its own.
            [explain(source, name, epoch).assign(parameter=name).astype({"stratum": str}) for name in tables],
            ignore_index=True,
        )[["parameter", *columns_of("explain")]],
        "sign_noise": lambda: sign_noise(source, TABLES[0], epoch),
    }


class NothingToPlot(ValueError):
    """A run of which there is nothing to draw, and why."""


def measure_exposure(source: Source, parameter: str = TABLES[0], *, with_null: bool = False) -> pd.DataFrame:
    """The table of the exposure chart at the last snapshot.

    Parameters
    ----------
    source
        A run, its path or a trajectory with recorded exposure.
    parameter
        One of the three tables.
    with_null
        Also the null of :func:`toolkit.sign_noise`, over rows drawn evenly on the axis of steps; it needs a run.

    Returns
    -------
    pandas.DataFrame
        ``series``: a sampled row, a median over a bin of half an octave of steps, the null's median in such a bin, or
        the median of the rows never seen; ``row`` and ``token`` (of a row); ``num_steps``, in a bin the geometric mean;
        ``drift_percent`` (‖Δ‖ in % of ‖E⁰‖) with ``low`` and ``high``, the 2.5 and 97.5 % of the null; ``num_rows``
        behind it.

    Raises
    ------
    NothingToPlot
        Where exposure was not recorded, or no row that training showed has moved, or all that did were 0 before.
    """
    trajectory = trajectory_of(source)
    epoch = trajectory.snapshots[-1].epoch
    rows = in_percent(measure_rows(trajectory, parameter, epoch, ("norm", "relative")))
    if rows["num_steps"].isna().all():
        raise NothingToPlot(f"{why_unknown(trajectory, parameter)}: there is nothing to plot its drift against")
    seen = rows[(rows["num_steps"] > 0) & (rows["drift_percent"] > 0)]
    unseen = rows[(rows["num_steps"] == 0) & (rows["drift_percent"] > 0)]
    if seen.empty:
        is_from_0 = ((rows["num_steps"] > 0) & (rows["norm"] > 0)).any()  # moved, and has no drift in %
        raise NothingToPlot(
            f"every row of {parameter} that training showed and that moved was 0 before: its drift in % is {UNDEFINED}"
            if is_from_0
            else f"no row of {parameter} that training showed has moved: there is nothing to plot"
        )
    shuffled = seen.groupby(_bins(seen["num_steps"])).sample(frac=1, random_state=0)
    shuffled = shuffled.assign(rank_in_bin=shuffled.groupby(_bins(shuffled["num_steps"])).cumcount())
    points = shuffled[shuffled["rank_in_bin"] < DRAWN_IN_BIN].sort_values("row")
    tables = [
        points[["row", "token", "num_steps", "drift_percent"]].assign(series=ROW, num_rows=1),
        _medians_by_exposure(seen, ["drift_percent"]).assign(series=MEDIAN),
    ]
    if with_null:
        sampled_rows = shuffled.loc[shuffled["rank_in_bin"] < ROWS_IN_BIN, "row"].to_numpy()
        null = sign_noise(source, parameter, epoch, sampled_rows, num_coordinates=0)
        null = null.rename(columns={"null_median": "drift_percent", "null_low": "low", "null_high": "high"})
        values = ["drift_percent", "low", "high"]
        scale = (seen["drift_percent"] / seen["norm"]).set_axis(seen["row"])  # 100 / ‖E⁰‖
        null[values] = null[values].mul(scale.loc[null["row"]].to_numpy(), axis=0)
        tables.append(_medians_by_exposure(null, values).assign(series=NULL))
    if len(unseen):
        # Two points make a level line across the chart.
        ends = [float(seen["num_steps"].min()), float(seen["num_steps"].max())]
        level = unseen["drift_percent"].median()
        tables.append(
            pd.DataFrame({"series": UNSEEN, "num_steps": ends, "drift_percent": level, "num_rows": len(unseen)})
        )
    return pd.concat(tables, ignore_index=True).reindex(
        columns=["series", "row", "token", "num_steps", "drift_percent", "low", "high", "num_rows"]
    )


def _bins(steps: pd.Series) -> Any:
    """Bins of half an octave of optimizer steps."""
    return np.floor(2 * np.log2(np.maximum(steps.to_numpy(float), 1)))


def _medians_by_exposure(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Medians in each bin at the bins' geometric centres; bins of too few rows show no trend and are left out."""
    grouped = rows.assign(log_steps=np.log(rows["num_steps"].to_numpy(float))).groupby(_bins(rows["num_steps"]))
    table = grouped[names].median().assign(num_steps=np.exp(grouped["log_steps"].mean()), num_rows=grouped.size())
    return table[table["num_rows"] >= min(FEWEST_IN_BIN, table["num_rows"].max())].reset_index(drop=True)


def exposure_chart(exposure: pd.DataFrame) -> Chart:
    """The table of :func:`measure_exposure` on two logarithmic axes."""
    present = [name for name in SERIES_COLOURS if name in set(exposure["series"])]
    drift_axis = log_axis(pd.concat([exposure["drift_percent"], exposure["low"], exposure["high"]]))
    steps_axis = log_axis(exposure["num_steps"])
    colours = altair.Color(
        "series:N",
        scale=altair.Scale(domain=present, range=[SERIES_COLOURS[name] for name in present]),
        legend=altair.Legend(title=None, columns=2, symbolOpacity=1),
    )
    x = altair.X(
        "num_steps:Q",
        scale=steps_axis.scale(),
        title="optimizer steps that showed the row",
        axis=steps_axis.axis(format=",.0f", grid=False),
    )
    y = altair.Y("drift_percent:Q", scale=drift_axis.scale(), title=MOVED_BY, axis=drift_axis.axis())
    shared_tips = {"num_steps": ("steps", ",.0f"), "drift_percent": (MOVED_BY, ".3g"), "num_rows": ("rows", ",")}

    def layer(name: str, *columns: str) -> Any:
        """A chart of one series, without its mark."""
        series_points = exposure.loc[
            exposure["series"] == name, ["series", "num_steps", "drift_percent", "num_rows", *columns]
        ]
        tip_fields = ({"token": "word"} if "token" in columns else {}) | shared_tips
        return altair.Chart(data_of(series_points)).encode(x=x, y=y, color=colours, tooltip=tips(**tip_fields))

    layers = [layer(ROW, "token").mark_circle(size=11, opacity=1)]
    if NULL in present:
        band = layer(NULL, "low", "high").encode(y=along(y, "low"), y2=altair.Y2("high:Q"))
        layers += [
            band.mark_area(fillOpacity=0.28, strokeWidth=0.8).encode(stroke=outline(colours)),
            layer(NULL).mark_line(strokeDash=[6, 3]),
        ]
    if UNSEEN in present:
        layers.append(layer(UNSEEN).mark_line(strokeDash=[2, 2]))
    layers.append(layer(MEDIAN).mark_line(point={"filled": True, "size": 38}))
    return altair.layer(*layers, width=580, height=HEIGHT)


UNSEEN_MOVED = "What moved the words that training never showed?"


def answer(computed: Computed) -> Answer | None:
    """Whether weight decay alone moved the words that training never showed; None where it moved none."""
    causes = computed.get("causes", parameter=TABLES[0], stratum="all rows")
    if causes.empty or not int(causes["num_weight_decay_alone"].iloc[0]):
        return None
    record = causes.iloc[0]
    text = (
        f"Weight decay alone moved {number(int(record['num_weight_decay_alone']))} word rows that no batch showed "
        f"({number(100 * record['unexplained_share'])} % of their drift is unexplained)."
    )
    if record["unexplained_share"] > 0:
        return Answer(question=UNSEEN_MOVED, verdict="not weight decay alone", text=text, tone="open")
    return Answer(question=UNSEEN_MOVED, verdict="weight decay alone", text=text, tone="same")


CAPTION = (
    "How far words moved against the steps that showed them: rows drawn evenly along the axis, medians of all. Rows "
    "never seen moved by decay alone."
)
LEAD = (
    "Weight decay is replayed step by step in fp32; what it does not account for is what Adam's updates did. The null "
    "of the chart and of its table takes each row's own steps and gradient sizes, with random signs, through the same "
    "optimizer: 1 is what gradients that agree on nothing do. A second null lets the coordinates' sizes vary too. "
    "Of rows seen in few steps, claim only what lies beyond both"
)
CONTROL = ", and hold it against the same runs with --shuffle-labels (toolkit.compare_with_shuffled)"
"""Of runs of ours that learn labels."""


def section(computed: Computed) -> Section:
    """Drift against exposure, the causes, and the null by stratum."""
    blocks: list[Block] = []
    exposure = computed.get("exposure")
    if len(exposure):
        chart = exposure_chart(exposure)
        blocks.append(ChartBlock(name="exposure", chart=chart, caption=CAPTION, alt=CAPTION, is_dense=True))
    if len(computed.get("causes")):
        blocks.append(_causes_block(computed.frames["causes"]))
    noise = computed.get("sign_noise")
    if len(noise) and (noise["num_steps"] > 0).any():
        blocks.append(_noise_block(noise[noise["num_steps"] > 0]))
    lead = LEAD + (CONTROL if any(map(could_have_control, computed.opened.runs)) else "") + "."
    return Section(id="why", title="Why they moved", lead=lead if blocks else "", blocks=tuple(blocks))


def could_have_control(run: Run) -> bool:
    """Whether a run learned labels, and those of its data: the same run on shuffled ones would be its control."""
    return not run.is_recorded and run.config.objective != MLM and not run.config.shuffle_labels


def _causes_block(causes: pd.DataFrame) -> Block:
    """How many rows of each table and stratum moved for which reason."""
    unknown = "num_exposure_unknown " * bool(causes["num_exposure_unknown"].any())
    return table_block(
        causes,
        "parameter stratum num_rows num_weight_decay_alone num_momentum_after_its_last_exposure num_gradient "
        f"num_unexplained {unknown}update_share unexplained_share",
        "How many rows of each kind moved for which reason.",
        stratum="rows",
        num_rows="number",
        num_weight_decay_alone="decay alone",
        num_momentum_after_its_last_exposure="momentum only",
        num_exposure_unknown="updates, steps unknown",
        update_share="share of Adam's update",
        unexplained_share="never-seen drift unexplained",
    )


def _noise_block(noise: pd.DataFrame) -> Block:
    """The drift of sampled words beside that of random gradient signs, by stratum."""
    noise = noise.assign(stratum=noise["stratum"].astype(str), beyond=is_beyond_both(noise))
    grouped = noise.groupby("stratum")
    ends = grouped["ratio"].quantile([0.05, 0.95]).unstack()
    table = grouped[["ratio", "direction_ratio"]].median()
    table = table.assign(
        num_rows=grouped.size(),
        beyond=grouped["beyond"].sum().astype(int),
        spread=[f"{number(low)} to {number(high)}" for low, high in ends.to_numpy()],
    )
    return table_block(
        table.loc[ordered_strata(noise["stratum"])].reset_index(),
        "stratum num_rows ratio spread beyond direction_ratio",
        "Words' drift beside that of random gradient signs.",
        stratum="words",
        num_rows="sampled",
        ratio=Column(label="times its noise", how="Median over words of drift divided by the null's median."),
        spread="5 to 95 % of the words",
        beyond=Column(label="beyond both nulls", how="Words beyond the 97.5 % of both nulls."),
        direction_ratio=Column(label="times random directions", how="The same beside the second null."),
    )


PART = DriftPart(section, makers, answer)
