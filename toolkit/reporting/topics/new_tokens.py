"""Tokens that were added: did their rows move, did the old ones stay?"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from toolkit.analysis.added_rows import BLOCK_ROWS, has_added, measure_added_rows
from toolkit.analysis.blocks import tables_of
from toolkit.analysis.neighbours import PARAMETER
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.verdicts import Card
from toolkit.reporting.charts import (
    COLOURS,
    REFERENCE,
    Chart,
    along,
    altair,
    colour,
    data_of,
    in_time,
    once,
    panels,
    pick,
    shape,
    tips,
)
from toolkit.reporting.page import Block, Section, TextBlock, folds, picture, table_block
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened
from toolkit.reporting.topics.caveats import claims_block
from toolkit.reporting.topics.movement import in_percent

ID, TITLE = "new-tokens", "Added tokens: did their rows move, did the old ones stay?"
LEAD = (
    "That a row left its start does not show that it learned anything: shuffled labels move it too. Runs with "
    "--shuffle-labels in the same report tell how much further real labels move it. Rows of added tokens are counted "
    "neither among the words that training exposed nor among the others."
)
MOST_COLOURED = len(COLOURS)
"""Tokens that have a colour each; more are coloured by whether training showed them."""
MOST_DRAWN = 60
"""Tokens that are drawn."""
CAPTION = (
    "The rows of added tokens at each snapshot. Left: their length in medians of the words that were there, whose 5 to "
    "95 % are the grey band, the median the dashed line. Right: how far each is from its start, {}."
)
SUMMARIES = {
    "seen": "Of {num:,} added tokens {seen:,} stood in the texts of training, and the rows of {seen_moved:,} of these "
    "left their start; of the other {rest:,}, {rest_moved:,} did.",
    "unknown": "Of {num:,} added tokens {moved:,} left their start; which training showed is not known.",
    "appended": "{num:,} tokens were added. The first checkpoint has a row to start from where {starts:,} of them "
    "stand, and {moved:,} of these rows moved.",
}
DISTANCE_UNITS = {"relative": "in lengths of the row at the start", "norm": "in weight units"}
"""What the distance from the start is counted in; relative where each row has a length to start from."""


def makers(opened: Opened) -> Makers:
    """The table of added rows, where there are any."""
    return {"added_rows": lambda: measure_added_rows(opened.source)} if has_added(opened.trajectory) else {}


def section(computed: Computed) -> Section:
    """How many added rows moved, then each of them at the last snapshot, with its neighbours before and after."""
    rows = computed.get("added_rows")
    if rows.empty:
        return Section(id=ID, title=TITLE)
    last = rows[rows["epoch"] == rows["epoch"].max()]
    tokens = pd.to_numeric(last["num_tokens"])  # known of a table whose steps are not: tied, or with an adapter
    has_moved = last["norm"] > 0
    is_seen = tokens > 0
    is_appended = computed.opened.trajectory.appended is not None
    counts = {
        "num": len(last),
        "starts": last["norm"].notna().sum(),
        "moved": has_moved.sum(),
        "seen": is_seen.sum(),
        "rest": (~is_seen).sum(),
        "seen_moved": (has_moved & is_seen).sum(),
        "rest_moved": (has_moved & ~is_seen).sum(),
    }
    known = "seen" if tokens.notna().any() else "appended" if is_appended else "unknown"
    summary = SUMMARIES[known].format(**counts)
    if not is_appended:
        first = rows[rows["epoch"] == rows["epoch"].min()].set_index("row")["nearest_old"]
        last = last.assign(nearest_before=last["row"].map(first))
        summary += _old_rows_sentence(computed, last)
    names = "token num_steps num_tokens drift_percent length times_old_length nearest_before nearest_old reason"
    shown_table = in_percent(last).assign(**{name: pd.to_numeric(last[name]) for name in ("num_steps", "num_tokens")})
    shown_table = shown_table.dropna(axis="columns", how="all").sort_values("row")
    caption = "The added tokens at the last snapshot; epochs before are in tables/added_rows.csv."
    labels = {"nearest_before": "nearest at first", "nearest_old": "nearest"}
    blocks: list[Block] = [TextBlock(text=summary)]
    chart_caption = CAPTION.format(DISTANCE_UNITS[_distance(rows)])
    if len(last) > MOST_DRAWN:
        chart_caption += (
            f" {MOST_DRAWN} of the {len(last):,} tokens are drawn, evenly from the most shown to the least."
        )
    if chart := picture("added-rows", added_rows_chart(rows), chart_caption):
        blocks.append(chart)
    return Section(id=ID, title=TITLE, lead=LEAD, blocks=(*blocks, table_block(shown_table, names, caption, **labels)))


def _old_rows_sentence(computed: Computed, last: pd.DataFrame) -> str:
    """How many of a run's rows that were there moved, in one sentence: bits, as 0 and -0 are not identical."""
    snapshots = computed.opened.trajectory.snapshots
    before, after = tables_of((snapshots[0], snapshots[-1]), PARAMETER)
    num_changed = 0
    for start in range(0, len(before), BLOCK_ROWS):
        bytes_before = np.ascontiguousarray(before[start : start + BLOCK_ROWS]).view(np.uint8)
        bytes_after = np.ascontiguousarray(after[start : start + BLOCK_ROWS]).view(np.uint8)
        num_changed += int((bytes_before != bytes_after).any(axis=1).sum())
    num_old = len(before) - len(last)
    num_moved = num_changed - int((last["norm"] > 0).sum())  # added rows are not meant
    return f" Of the {num_old:,} rows that were there {num_moved:,} moved{'' if num_moved else ', not by a bit'}."


def _distance(rows: pd.DataFrame) -> str:
    """Which distance from the start is drawn: relative, unless a row has no length to start from."""
    return "norm" if rows["relative"].isna().any() else "relative"


def added_rows_chart(rows: pd.DataFrame, *, has_lengths: bool = True) -> Chart | None:
    """The chart of :func:`toolkit.plot_added_rows` from its table, that of lengths first; None for one snapshot."""
    if rows["epoch"].nunique() < 2:
        return None
    steps = pd.to_numeric(rows["num_steps"]).astype(float)
    most_shown_first = steps.groupby(rows["row"]).max().sort_values(ascending=False, kind="stable").index
    num_tokens = len(most_shown_first)
    chosen = most_shown_first[np.unique(np.linspace(0, num_tokens - 1, MOST_DRAWN).astype(int))]
    are_coloured = num_tokens <= MOST_COLOURED
    is_shown = steps.groupby(rows["row"]).transform("max") > 0
    by_exposure = "added token" if steps.isna().any() else np.where(is_shown, "training showed it", "never shown")
    series = rows["token"] if are_coloured else pd.Series(by_exposure, rows.index)
    drawn_rows = rows.assign(series=series, run="", regime="", shown=steps)[rows["row"].isin(chosen)]
    drawn_rows, x = in_time(drawn_rows)
    names = list(dict.fromkeys(drawn_rows.sort_values("row")["series"]))
    picker = pick("series", names, "token") if len(names) > 1 else None
    columns = ["series", "row", "token", "time", "epoch", "shown", "times_old_length", "old_length_low"]
    base = altair.Chart(data_of(drawn_rows, [*columns, "old_length_high", _distance(rows)])).encode(
        x=x, color=colour("series", names), detail="row:N", **({"opacity": picker.opacity} if picker else {})
    )
    mark_look = {"shape": shape("series", names)} if are_coloured else {}
    line_look = {} if are_coloured else {"strokeWidth": 0.8}
    titles = {"times_old_length": ["length, in medians of", "the words that were there"]} if has_lengths else {}
    titles[_distance(rows)] = ["distance from its start,", DISTANCE_UNITS[_distance(rows)]]
    charts = []
    for name, title in titles.items():
        y = altair.Y(f"{name}:Q", title=title, scale=altair.Scale(zero=True))
        tip_fields = tips(
            token="token", epoch=("epoch", "~f"), shown=("steps", ",.0f"), **{name: (" ".join(title), ".3g")}
        )
        line = base.mark_line(**line_look).encode(y=y)
        layers = [line, base.mark_point(size=18).encode(y=y, tooltip=tip_fields, **mark_look)]
        if name == "times_old_length":
            old_lengths = drawn_rows.drop_duplicates("time")[["time", "old_length_low", "old_length_high"]]
            area = altair.Chart(data_of(old_lengths)).mark_area(color=REFERENCE, fillOpacity=0.16)
            band = area.encode(x=x, y=along(y, "old_length_low"), y2=altair.Y2("old_length_high:Q"))
            middle = once().mark_rule(color=REFERENCE, strokeDash=[6, 3]).encode(y=altair.datum(1))
            layers = [band, middle, *layers]
        charts.append(altair.layer(*layers, width=262, height=170))
    return panels(charts, 2, picker)


def cards_section(data: ReportData, cards: Sequence[Card]) -> Section | None:
    """The cards on added tokens; None where no run added any. How far rows moved by stratum stands with all words."""
    titles = list(dict.fromkeys(group.title for group in data.groups))
    cards_by_title = {
        title: [card for card in cards if card.kind == "tokens" and card.group == title] for title in titles
    }
    titles = [title for title in titles if cards_by_title[title]]
    if not titles:
        return None
    bodies = [[claims_block(cards_by_title[title], f"Added tokens on {title}")] for title in titles]
    return Section(id=ID, title=TITLE, lead=LEAD, blocks=folds(titles, bodies))


PART = DriftPart(section, makers, is_brief=lambda opened: True)
