"""Why rows moved: weight decay and gradients, drift against exposure, and what gradients of random signs would do."""

from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.causes import explain
from toolkit.analysis.drift import measure_rows
from toolkit.analysis.nulls import is_beyond_both, regress_drift, sign_noise
from toolkit.analysis.strata import BY_STEPS, why_unknown
from toolkit.comparison.report_data import ordered_strata
from toolkit.config import MLM
from toolkit.families import TABLES
from toolkit.reporting.cells import Column, number
from toolkit.reporting.charts import COLOURS, REFERENCE, Chart, along, altair, data_of, log_axis, outline, themed, tips
from toolkit.reporting.page import Block, ChartBlock, FoldBlock, Section, TextBlock, table_block
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened
from toolkit.schema import columns_of
from toolkit.snapshots.store import Source, trajectory_of

ROW = "a row"
MEDIAN = "median of the rows"
NULL = "same steps, random signs: median, 95 %"
UNSEEN = "median of the rows never seen"
SERIES = {ROW: REFERENCE, MEDIAN: COLOURS[1], NULL: COLOURS[0], UNSEEN: COLOURS[2]}
FEWEST_IN_BIN = 5
ROWS_IN_BIN = 30
"""Rows per bin of exposure for which the null is computed."""
DRAWN_IN_BIN = 150
"""Rows per bin of exposure that are drawn."""
FEWEST_ROWS = 10
"""A sentence speaks of words of which at least so many were sampled."""
HEIGHT = 300


def makers(opened: Opened) -> Makers:
    if not opened.is_run:
        return {}
    source, epoch = opened.source, opened.trajectory.snapshots[-1].epoch
    tables = [name for name in TABLES if name in opened.trajectory.parameters]
    return {
        "exposure": lambda: measure_exposure(source, with_null=True),
        # Each parameter has strata of its own.
        "causes": lambda: pd.concat(
            # Each parameter has strata of its own.
            [explain(source, name, epoch).assign(parameter=name).astype({"stratum": str}) for name in tables],
            ignore_index=True,
        )[["parameter", *columns_of("explain")]],
        "sign_noise": lambda: sign_noise(source, TABLES[0], epoch),
        "regression": lambda: regress_drift(source, TABLES[0], epoch=epoch),
    }


def plot_exposure(source: Source, parameter: str = TABLES[0], *, with_null: bool = False) -> Chart:
    """How far each row moved against the optimizer steps that showed it, as an Altair chart.

    Its numbers are those of :func:`measure_exposure`, whose arguments and errors are the same.
    """
    return themed(exposure_chart(measure_exposure(source, parameter, with_null=with_null)))


def measure_exposure(source: Source, parameter: str = TABLES[0], *, with_null: bool = False) -> pd.DataFrame:
    """What the chart of exposure shows at the last snapshot.

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
        ``norm`` (‖Δ‖, weight units) with ``low`` and ``high``, the 2.5 and 97.5 % of the null; ``num_rows`` behind it.

    Raises
    ------
    ValueError
        Where exposure was not recorded, or no row that training showed has moved.
    """
    trajectory = trajectory_of(source)
    epoch = trajectory.snapshots[-1].epoch
    rows = measure_rows(trajectory, parameter, epoch, ("norm",))
    if rows["num_steps"].isna().all():
        raise ValueError(f"{why_unknown(trajectory, parameter)}: there is nothing to plot its drift against")
    seen = rows[(rows["num_steps"] > 0) & (rows["norm"] > 0)]
    unseen = rows[(rows["num_steps"] == 0) & (rows["norm"] > 0)]
    if seen.empty:
        raise ValueError(f"no row of {parameter} that training showed has moved: there is nothing to plot")
    shuffled = seen.groupby(_bins(seen["num_steps"])).sample(frac=1, random_state=0)
    shuffled = shuffled.assign(place=shuffled.groupby(_bins(shuffled["num_steps"])).cumcount())
    points = shuffled[shuffled["place"] < DRAWN_IN_BIN].sort_values("row")
    parts = [
        points[["row", "token", "num_steps", "norm"]].assign(series=ROW, num_rows=1),
        _by_exposure(seen, ["norm"]).assign(series=MEDIAN),
    ]
    if with_null:
        drawn = shuffled.loc[shuffled["place"] < ROWS_IN_BIN, "row"].to_numpy()
        null = sign_noise(source, parameter, epoch, drawn, num_coordinates=0)
        null = null.rename(columns={"null_median": "norm", "null_low": "low", "null_high": "high"})
        parts.append(_by_exposure(null.drop(columns="drift"), ["norm", "low", "high"]).assign(series=NULL))
    if len(unseen):
        steps = [float(seen["num_steps"].min()), float(seen["num_steps"].max())]
        parts.append(
            pd.DataFrame(
                {"series": UNSEEN, "num_steps": steps, "norm": unseen["norm"].median(), "num_rows": len(unseen)}
            )
        )
    return pd.concat(parts, ignore_index=True).reindex(
        columns=["series", "row", "token", "num_steps", "norm", "low", "high", "num_rows"]
    )


def _bins(steps: pd.Series) -> Any:
    """Bins of half an octave of optimizer steps."""
    return np.floor(2 * np.log2(np.maximum(steps.to_numpy(float), 1)))


def _by_exposure(rows: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Medians in each bin at the bins' geometric centres; bins of too few rows show no trend and are left out."""
    grouped = rows.assign(steps=np.log(rows["num_steps"].to_numpy(float))).groupby(_bins(rows["num_steps"]))
    table = grouped[names].median().assign(num_steps=np.exp(grouped["steps"].mean()), num_rows=grouped.size())
    return table[table["num_rows"] >= min(FEWEST_IN_BIN, table["num_rows"].max())].reset_index(drop=True)


def exposure_chart(exposure: pd.DataFrame) -> Chart:
    """The table of :func:`measure_exposure` on two logarithmic axes."""
    present = [name for name in SERIES if name in set(exposure["series"])]
    tall = log_axis(pd.concat([exposure["norm"], exposure["low"], exposure["high"]]))
    wide = log_axis(exposure["num_steps"])
    colours = altair.Color(
        "series:N",
        scale=altair.Scale(domain=present, range=[SERIES[name] for name in present]),
        legend=altair.Legend(title=None, columns=2, symbolOpacity=1),
    )
    steps = wide.axis(format=",.0f", grid=False)
    x = altair.X("num_steps:Q", scale=wide.scale(), title="optimizer steps that showed the row", axis=steps)
    y = altair.Y("norm:Q", scale=tall.scale(), title="length of the change (weight units)", axis=tall.axis())
    said = {"num_steps": ("steps", ",.0f"), "norm": ("change (weight units)", ".3g"), "num_rows": ("rows", ",")}

    def layer(name: str, *columns: str) -> Any:
        own = exposure.loc[exposure["series"] == name, ["series", "num_steps", "norm", "num_rows", *columns]]
        told = ({"token": "word"} if "token" in columns else {}) | said
        return altair.Chart(data_of(own)).encode(x=x, y=y, color=colours, tooltip=tips(**told))

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


def against_noise(computed: Computed) -> str:
    """How far words seen in training moved beside the same steps with random signs, in one sentence."""
    frame = computed.get("sign_noise")
    seen = frame[(frame["num_steps"] > 0) & frame["stratum"].astype(str).isin(BY_STEPS)] if len(frame) else frame
    seen = seen[seen["drift"] > 0] if len(seen) else seen
    if len(seen) < FEWEST_ROWS:
        return ""
    return (
        f"Words seen in training moved {number(seen['ratio'].median())} times as far as the same steps with random "
        f"gradient signs would move them (median of {len(seen):,}; shuffled labels give such numbers too: no sign of "
        "learning)."
    )


def unseen_decay(computed: Computed) -> str:
    """What moved the words that training never showed, in one sentence."""
    own = computed.get("causes", parameter=TABLES[0], stratum="all rows")
    if own.empty or not int(own["num_weight_decay_alone"].iloc[0]):
        return ""
    line = own.iloc[0]
    return (
        f"Weight decay alone moved {number(int(line['num_weight_decay_alone']))} word rows that no batch showed "
        f"({number(100 * line['unexplained_share'])} % of their drift is unexplained)."
    )


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
    """Drift against exposure, the causes, the null by stratum, and the regression."""
    blocks: list[Block] = []
    if len(exposure := computed.get("exposure")):
        chart = exposure_chart(exposure)
        blocks.append(ChartBlock(name="exposure", chart=chart, caption=CAPTION, alt=CAPTION, is_dense=True))
    if len(computed.get("causes")):
        blocks.append(_causes(computed.frames["causes"]))
    noise = computed.get("sign_noise")
    if len(noise) and (noise["num_steps"] > 0).any():
        blocks.append(_noise(noise[noise["num_steps"] > 0]))
    if len(computed.get("regression")):
        blocks.append(FoldBlock(title="Drift by exposure and length, as slopes", blocks=_regression(computed)))
    run = computed.opened.runs[0] if computed.opened.runs else None
    has_control = run is not None and not run.is_recorded and run.config.objective != MLM
    lead = LEAD + (CONTROL if has_control else "") + "."
    return Section(id="why", title="Why they moved", lead=lead if blocks else "", blocks=tuple(blocks))


def _causes(causes: pd.DataFrame) -> Block:
    unknown = "num_exposure_unknown " * bool(causes["num_exposure_unknown"].any())
    return table_block(
        causes,
        "parameter stratum num_rows num_weight_decay_alone num_momentum_after_its_last_exposure num_gradient "
        f"num_unexplained {unknown}squared_drift update_share unexplained_share",
        "How many rows of each kind moved for which reason.",
        stratum="rows",
        num_rows="number",
        num_weight_decay_alone="decay alone",
        num_momentum_after_its_last_exposure="momentum only",
        num_exposure_unknown="updates, steps unknown",
        squared_drift="Σ‖Δ‖²",
        update_share="share of Adam's update",
        unexplained_share="never-seen drift unexplained",
    )


def _noise(frame: pd.DataFrame) -> Block:
    frame = frame.assign(stratum=frame["stratum"].astype(str), beyond=is_beyond_both(frame))
    grouped = frame.groupby("stratum")
    ends = grouped["ratio"].quantile([0.05, 0.95]).unstack()
    table = grouped[["drift", "null_median", "ratio", "direction_ratio"]].median()
    table = table.assign(
        num_rows=grouped.size(),
        beyond=grouped["beyond"].sum().astype(int),
        spread=[f"{number(low)} to {number(high)}" for low, high in ends.to_numpy()],
    )
    return table_block(
        table.loc[ordered_strata(frame["stratum"])].reset_index(),
        "stratum num_rows drift null_median ratio spread beyond direction_ratio",
        "Words' drift beside that of random gradient signs.",
        stratum="words",
        num_rows="sampled",
        drift="median ‖Δ‖",
        null_median=Column(label="median of the null", unit="weight units"),
        ratio=Column(label="times its noise", how="Median over words of drift divided by the null's median."),
        spread="5 to 95 % of the words",
        beyond=Column(label="beyond both nulls", how="Words beyond the 97.5 % of both nulls."),
        direction_ratio=Column(label="times random directions", how="The same beside the second null."),
    )


def _regression(computed: Computed) -> tuple[Block, ...]:
    frame = computed.frames["regression"]
    terms = {"constant": "constant", "log_num_steps": "log steps", "log_norm": "log ‖E⁰‖"}
    ends = zip(frame["low"], frame["high"], strict=True)
    table = frame.assign(
        outcome="log ‖Δ‖, " + frame["outcome"],
        term=frame["term"].replace(terms),
        interval=[f"{number(low)} to {number(high)}" for low, high in ends],
        num_rows=frame["num_rows"].astype(int),
    )
    said = (
        "Regression of log drift on log exposure and log length before, beside the same for the null. A slope below "
        "1 is no finding: drift per occurrence falls with frequency by construction. What differs comes from the data."
    )
    names = ("outcome", "term", "value", "interval", "num_rows")
    caption = "Coefficients of the rows' drift and of its null."
    return TextBlock(text=said), table_block(
        table, names, caption, value="coefficient", interval=Column(label="95 % interval")
    )


PART = DriftPart(makers, (section,))
