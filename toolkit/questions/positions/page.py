"""Learned positions: whether they resemble sine and cosine, and what they are made of."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from toolkit.analysis.measures import Array
from toolkit.questions.positions.measure import STATISTICS
from toolkit.questions.positions.resemblance import NOT_IDENTIFIABLE, Verdict
from toolkit.questions.positions.tables import LEARNED, LEAST_TURNS, PositionTables
from toolkit.reporting.cells import Column, number
from toolkit.reporting.charts import (
    COLOURS,
    REFERENCE,
    Chart,
    Charts,
    along,
    altair,
    colour,
    dash,
    data_of,
    draw,
    outline,
    pick,
    tips,
)
from toolkit.reporting.page import (
    Block,
    ChartBlock,
    FoldBlock,
    NoteBlock,
    Page,
    Section,
    Tile,
    rows_block,
    stated,
    table_block,
)

TABLE_NAMES = {
    LEARNED: "learned",
    "sinusoid": "sinusoid",
    "smooth": "smooth random curves",
    "shuffled": "learned, rows shuffled",
    "drift": "drift of the learned rows",
}
MAX_PERIODS_SHOWN = 6
HEAT_MAP_ROWS, CELL_PIXELS = 56, 3
"""Of a heat map of cosines: positions, and pixels of each: whole ones, between which no seams show."""
NEAR_LAGS = 60
"""Of the left panel: the waves; the right one has all of them."""
LEAST_POWER = 1e-7
"""Shares of power below this are rounding, and stand on the floor."""
QUESTIONS = {"line_match": "Does it resemble sine and cosine?", "orbit_share": "Is it made of a few waves of its own?"}
AXIS_TITLES = {"line_match": "line match (SDs)", "orbit_share": "share of power on circles"}


def tiles(tables: PositionTables) -> tuple[Tile, ...]:
    """The verdicts and what they rest on, the waves, and the rows that the model does not use by default."""
    verdict_tiles = [_verdict_tile(name, verdict) for name, verdict in tables.verdicts.items()]
    waves = waves_table(tables)
    periods = ", ".join(map(number, waves["period"].head(MAX_PERIODS_SHOWN)))
    periods += ", ..." if len(waves) > MAX_PERIODS_SHOWN else ""
    facts = (
        ("periods (positions)", periods or "none"),
        ("waves of the sinusoid", str(tables.rows[LEARNED].shape[1] // 2)),
    )
    detail = f"{number(waves['share'].sum(), 2)} % of the variance" if len(waves) else ""
    return (*verdict_tiles, Tile(title="How many waves?", value=str(len(waves)), detail=detail, lines=facts))


def _verdict_tile(name: str, verdict: Verdict) -> Tile:
    """The tile that answers one verdict: yes, no or not identifiable."""
    if not len(verdict.negative) or verdict.answer == NOT_IDENTIFIABLE:
        return Tile(title=QUESTIONS[name], value=NOT_IDENTIFIABLE, lines=(("because", verdict.reason),))
    facts = (
        (AXIS_TITLES[name], number(verdict.value)),
        ("needed", number(verdict.threshold)),
        ("smooth curves, at most", number(verdict.negative.max())),
        ("with such waves, at least", number(verdict.positive.min())),
    )
    return Tile(
        title=QUESTIONS[name],
        value="yes" if verdict.value >= verdict.threshold else "no",
        detail=verdict.answer,
        lines=facts,
    )


def answers(tables: PositionTables) -> tuple[str, ...]:
    """What a reader would misread otherwise."""
    warnings = [
        "That the sinusoid's directions explain much of a table is no evidence: they explain much of smooth random "
        "curves too (explained by sinusoid 20, in the table of statistics)."
    ]
    if tables.waves["is_wave"].any() and tables.verdicts["orbit_share"].answer == "made of waves":
        warnings.insert(0, "Compare planes, not columns: a wave of the sinusoid has 2 columns, a learned one many.")
    if tables.num_untrained:
        num_rows = tables.num_positions + tables.num_untrained
        warnings.append(
            f"Rows {tables.num_positions} to {num_rows - 1} look as random weights left them (unrelated to each other, "
            "norms as alike as chance makes them), so that nothing trained them: they are left out."
        )
    if tables.num_exposed is not None and tables.num_exposed < tables.num_positions:
        warnings.append(
            f"Training exposed positions 0 to {tables.num_exposed - 1}; the rows from {tables.num_exposed} on are as "
            "training found them, but for weight decay. Each part is a window of its own."
        )
    length = tables.default_length
    if length is not None and length < tables.num_positions:
        warnings.append(
            f"The model's default length of {length} tokens does not exercise rows {length} to "
            f"{tables.num_positions - 1}: their statistics are a window of their own."
        )
    return tuple(warnings)


def _percent(share: float) -> str:
    """Two digits, without the sign."""
    return number(100 * share, 2)


def charts(tables: PositionTables) -> Charts:
    """Every chart that applies, by the name of its file."""
    return draw(
        {
            "resemblance": lambda: controls_chart(control_values(tables.verdicts), tables.verdicts),
            "cosine_gram": lambda: None if tables.by_lag.empty else gram_chart(tables.rows),
            "cosine_by_lag": lambda: by_lag_chart(tables.by_lag),
            "dct_spectrum": lambda: spectrum_chart(tables.spectra),
        }
    )


def control_values(verdicts: Mapping[str, Verdict]) -> pd.DataFrame:
    """Every value of the controls of each verdict: statistic, control, value."""
    return pd.concat(
        [
            pd.DataFrame({"statistic": name, "control": control, "value": values})
            for name, verdict in verdicts.items()
            for control, values in (("positive", verdict.positive), ("negative", verdict.negative))
        ],
        ignore_index=True,
    )


def controls_chart(values: pd.DataFrame, verdicts: Mapping[str, Verdict]) -> Chart | None:
    """Each verdict's statistic beside its control distributions and its threshold; None where both are refused."""
    labels = {"negative": "smooth random curves (null)", "positive": "the waves in noise (positive control)"}
    rules = {"threshold": REFERENCE, "this table": COLOURS[1]}
    kinds = dict(zip(labels.values(), (COLOURS[4], COLOURS[0]), strict=True)) | rules
    scale = altair.Scale(domain=list(kinds), range=list(kinds.values()))
    legend = altair.Color("kind:N", scale=scale, legend=altair.Legend(title=None, columns=2))
    panels = []
    for name, verdict in verdicts.items():
        control_rows = values[values["statistic"] == name]
        if control_rows.empty:
            continue
        extent = [*control_rows["value"], verdict.value, verdict.threshold]
        edges = np.linspace(min(extent), max(extent), 41)
        binned = [
            pd.DataFrame(
                {"kind": labels[control], "low": edges[:-1], "high": edges[1:], "count": np.histogram(drawn, edges)[0]}
            )
            for control, drawn in control_rows.groupby("control")["value"]
        ]
        heights = pd.concat(binned)
        bars = altair.Chart(data_of(heights[heights["count"] > 0])).mark_rect(fillOpacity=0.75, strokeWidth=0.8)
        bars = bars.encode(
            x=altair.X("low:Q", title=AXIS_TITLES[name], axis=altair.Axis(grid=False)),
            x2=altair.X2("high:Q"),
            y=altair.Y("count:Q", title="control tables"),
            y2=altair.datum(0),
            color=legend,
            stroke=outline(legend),
            tooltip=tips(kind="kind", count=("tables", "d")),
        )
        patterns = altair.Scale(domain=list(rules), range=[[4, 3], [1, 0]])
        rule_data = pd.DataFrame({"kind": list(rules), "value": [verdict.threshold, verdict.value]})
        marks = altair.Chart(data_of(rule_data)).mark_rule(strokeWidth=2.2)
        marks = marks.encode(
            x=altair.X("value:Q"),
            color=legend,
            strokeDash=altair.StrokeDash("kind:N", scale=patterns, legend=None),
            tooltip=tips(kind="kind", value=(AXIS_TITLES[name], ".3g")),
        )
        title = altair.TitleParams(QUESTIONS[name], subtitle=verdict.answer)
        panels.append(altair.layer(bars, marks, width=270, height=170, title=title))
    return altair.hconcat(*panels) if panels else None


def _with_full_names(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """A table with its tables under their full names, and these in their order."""
    present = [name for name in TABLE_NAMES if name in set(table["table"])]
    return table.assign(table=table["table"].map(TABLE_NAMES)), [TABLE_NAMES[name] for name in present]


def by_lag_chart(by_lag: pd.DataFrame) -> Chart | None:
    """Mean cosine of two rows by their distance, near and over all lags; None where a row is 0."""
    if by_lag.empty:
        return None
    table, names = _with_full_names(by_lag)
    picker = pick("table", names)
    y_scale = altair.Scale(domain=[min(float(by_lag["low"].min()), 0.0), 1.0], nice=True)
    last_lag = int(by_lag["lag"].max())
    hover = tips(table="table", lag=("distance (positions)", "d"), value=("mean cosine", ".3f"))
    panels: list[Chart] = []
    for longest in dict.fromkeys((min(NEAR_LAGS, last_lag), last_lag)):
        x_scale = altair.Scale(domain=[0, longest], nice=False)
        x = altair.X("lag:Q", scale=x_scale, title="distance (positions)", axis=altair.Axis(grid=False))
        y = altair.Y("value:Q", scale=y_scale, title="mean cosine of two rows" if not panels else None)
        curves = altair.Chart().mark_line(strokeWidth=1.5)
        curves = curves.encode(x=x, y=y, opacity=picker.opacity, tooltip=hover, **_series(names))
        curves = curves if panels else curves.add_params(*picker.params)
        learned = altair.Chart().transform_filter(altair.datum.table == TABLE_NAMES[LEARNED])
        band = learned.mark_area(color=COLOURS[0], opacity=0.3).encode(x=x, y=along(y, "low"), y2=altair.Y2("high:Q"))
        is_near = altair.datum.lag <= longest
        panels.append(altair.layer(band, curves).transform_filter(is_near).properties(width=285, height=200))
    return altair.hconcat(*panels, data=data_of(table, ["table", "lag", "value", "low", "high"]))


def _series(names: list[str]) -> dict[str, object]:
    """The colour and dash by which a chart tells its tables apart."""
    return {"color": colour("table", names), "strokeDash": dash("table", names)}


def gram_chart(rows: Mapping[str, Array]) -> Chart:
    """Cosines between the first rows of each table: every position beside every other."""
    grams = {name: _gram(rows[name]) for name in (LEARNED, "sinusoid", "shuffled") if name in rows}
    low = min(float(gram.min()) for gram in grams.values())
    # Viridis' lightness rises all the way: it reads in grey too.
    cosine_colour = altair.Color(
        "data:Q",
        scale=altair.Scale(domain=[low, 1.0], scheme="viridis"),
        legend=altair.Legend(title="cosine", orient="right", gradientLength=150, format=".1f"),
    )
    panels: list[Chart] = []
    for name, gram in grams.items():
        size = len(gram)
        # Numbers only, and their places computed: the page is a tenth of what records of three values would make it.
        data = altair.Data(values=tuple(float(f"{value:.3g}") for value in gram.ravel()))  # no list: charts.data_of
        axis = altair.Axis(values=[i for i in (0, 16, 32, 48) if i < size], labelAngle=0)
        panels.append(
            altair.Chart(data)
            .transform_window(place="row_number()")
            .transform_calculate(row=f"floor((datum.place - 1) / {size})", column=f"(datum.place - 1) % {size}")
            .mark_rect()
            .encode(
                x=altair.X("column:O", title="position", axis=axis),
                y=altair.Y("row:O", title="position" if not panels else None, axis=axis),
                color=cosine_colour,
                tooltip=tips(row="position", column="and position", data=("cosine", ".3f")),
            )
            .properties(width=CELL_PIXELS * size, height=CELL_PIXELS * size, title=TABLE_NAMES[name])
        )
    return altair.hconcat(*panels, spacing=14).resolve_scale(color="shared")


def _gram(rows: Array) -> Array:
    """Cosines between the first rows."""
    unit_rows = rows[:HEAT_MAP_ROWS] / np.linalg.norm(rows[:HEAT_MAP_ROWS], axis=1, keepdims=True)
    return np.asarray(unit_rows @ unit_rows.T)


def spectrum_chart(spectra: pd.DataFrame) -> Chart | None:
    """Share of the power by DCT-II order; None where every table's rows are equal."""
    table, names = _with_full_names(spectra.dropna(subset="share"))
    if table.empty:
        return None
    table = table.assign(share=table["share"].clip(lower=LEAST_POWER))
    picker = pick("table", names)
    wide = altair.Scale(type="log", domain=[1, max(int(table["order"].max()), 2)], nice=False)
    tall = altair.Scale(type="log", domain=[LEAST_POWER, 1], nice=False)
    orders = altair.Axis(grid=False, format=",.0f")
    shares = altair.Axis(values=[10.0**power for power in range(-7, 1)], format=".0e")
    chart = altair.Chart(data_of(table, ["table", "order", "share"])).mark_line(strokeWidth=1.2)
    chart = chart.encode(
        x=altair.X("order:Q", scale=wide, title="order (half periods in all rows)", axis=orders),
        y=altair.Y("share:Q", scale=tall, title="share of the centred power", axis=shares),
        opacity=picker.opacity,
        tooltip=tips(table="table", order=("half periods", "d"), share=("share of power", ".2e")),
        **_series(names),
    )
    return chart.add_params(*picker.params).properties(width=580, height=230)


CAPTIONS = {
    "resemblance": "The two statistics that carry a verdict: this table between tables that have the waves, in noise, "
    "and smooth random curves, which have none.",
    "cosine_gram": f"Cosine between all pairs of the first {HEAT_MAP_ROWS} rows: stripes are waves, one diagonal is "
    "none.",
    "cosine_by_lag": "Mean cosine of two rows by their distance, near and over all rows; the band is 5 to 95 % of the "
    "learned pairs.",
    "dct_spectrum": "Spectrum along the positions (DCT-II, centred): peaks are waves; what is below 1e-7 is on the "
    "floor.",
}


def chart_block(drawn: Charts, name: str) -> tuple[ChartBlock, ...]:
    """A chart with its caption, where it applies."""
    if name not in drawn:
        return ()
    caption = CAPTIONS[name]
    return (ChartBlock(name=name, chart=drawn[name], caption=caption, alt=caption, is_dense=name == "cosine_gram"),)


def sections(tables: PositionTables, drawn: Charts) -> tuple[Section, ...]:
    """Everything below the first screen, in the order in which one asks."""

    def blocks_of(*names: str) -> tuple[Block, ...]:
        return tuple(block for name in names for block in chart_block(drawn, name))

    definitions = [(name.replace("_", " "), statistic.description) for name, statistic in STATISTICS.items()]
    statistics = FoldBlock(title="The statistics", blocks=(rows_block(("statistic", "what it is"), definitions, ""),))
    blocks: dict[tuple[str, str], tuple[Block, ...]] = {
        ("waves-found", "Waves"): (*_waves(tables), *blocks_of("dct_spectrum")),
        ("rows", "What the rows are like"): (*blocks_of("cosine_gram", "cosine_by_lag"), *_windows(tables)),
        ("untold", "What these data cannot tell"): tuple(NoteBlock(text=text) for text in caveats(tables)),
        ("definitions", "Definitions"): (statistics,),
    }
    return tuple(
        Section(id=id, title=title, blocks=section_blocks)
        for (id, title), section_blocks in blocks.items()
        if section_blocks
    )


def waves_table(tables: PositionTables) -> pd.DataFrame:
    """The waves, fastest first, with their share in %."""
    waves = tables.waves[tables.waves["is_wave"]].sort_values("period").reset_index(drop=True)
    return waves.assign(share=100 * waves["share"])


def _waves(tables: PositionTables) -> tuple[Block, ...]:
    """The table of the learned table's waves; nothing where it has none."""
    table = waves_table(tables)
    if table.empty:
        return ()
    slow = tables.waves.loc[tables.waves["period"] * LEAST_TURNS > tables.num_positions, "share"].sum()
    slow_note = f"{_percent(slow)} % more goes round less than twice, which is no wave by our count."
    block = table_block(
        table,
        "period share roundness spread",
        f"Waves of the learned table; {slow_note}",
        period=Column(label="period", unit="positions"),
        share=Column(label="share of variance", unit="%"),
        spread="columns",
    )
    return (block,)


def _windows(tables: PositionTables) -> tuple[Block, ...]:
    """A fold per window of positions: its statistics beside those of the references, with their notes."""
    blocks: list[Block] = []
    for i, (window, statistics) in enumerate(tables.statistics.groupby("window", sort=False)):
        statistics = statistics.assign(measure=statistics["measure"].str.replace("_", " "))
        texts = [(record["measure"], record["note"] or record["reason"]) for record in statistics.to_dict("records")]
        notes = [NoteBlock(text=f"{name}: {text}") for name, text in texts if text]
        names = "measure value sinusoid gaussian smooth shuffled unit"
        block = table_block(
            statistics, names, f"Positions {window}.", measure="statistic", value="learned", gaussian="Gaussian"
        )
        blocks.append(FoldBlock(title=f"Positions {window}: statistics", blocks=(block, *notes), is_open=not i))
    return tuple(blocks)


def caveats(tables: PositionTables) -> list[str]:
    """What the verdicts leave open."""
    limits = []
    if not np.isnan(tables.longest_wave):
        limits.append(
            f"The line match judges the sinusoid's waves of 6.28 to {number(tables.longest_wave)} positions a period; "
            f"in {tables.num_positions} rows its slower ones blend, and no line tells them from a smooth curve."
        )
    return [
        *limits,
        "'Made of waves' is a fact about the table's course along the positions, not about how the model uses it, and "
        "not about why training made it so.",
        "Curves that keep their phase over most of the rows count as waves; the list of waves is a description.",
    ]


def position_page(tables: PositionTables, *, title: str | None = None, command: str = "") -> Page:
    """The page of the computed tables: first the verdicts, then what they rest on."""
    drawn, name = charts(tables), tables.snapshot.name or f"epoch {tables.snapshot.epoch:g}"
    first_chart = next((chart for chart in ("resemblance", "cosine_by_lag") if chart in drawn), "")
    return Page(
        title=title if title is not None else f"Learned positions: {name}",
        question="Does the learned position table resemble sine and cosine?",
        tiles=tiles(tables),
        tiles_show="answer",
        answers=stated(answers(tables)),
        picture=next(iter(chart_block(drawn, first_chart)), None),
        sections=sections(tables, {name: chart for name, chart in drawn.items() if name != first_chart}),
        commands=command,
    )


def csv_tables(tables: PositionTables) -> dict[str, pd.DataFrame]:
    """File name to table."""
    return {
        "position_statistics": tables.statistics,
        "waves": tables.waves,
        "cosine_by_lag": tables.by_lag,
        "dct_spectrum": tables.spectra,
        "control_values": control_values(tables.verdicts),
    }
