"""How far each word's row moved, against how often training saw it, and its nearest words before and after."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.neighbours.nearest import nearest_neighbours
from toolkit.analysis.neighbours.word_search import PARAMETER, list_words, word_table
from toolkit.analysis.rows.blocks import iterate_blocks
from toolkit.analysis.rows.measures import MEASURES
from toolkit.analysis.rows.strata import table_exposure
from toolkit.reporting.blocks import folds, rows_block
from toolkit.reporting.charts import COLOURS, REFERENCE, Chart
from toolkit.reporting.page.encode import script_json, visible
from toolkit.reporting.page.model import Block, ChartBlock, Column, FoldBlock, Section, TableBlock
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Source, trajectory_of

BUDGET_BYTES = 1_500_000
"""What the data of the chart may take of a page."""
NUM_NEIGHBOURS = 5
NUM_NAMED = 1000
"""So many words, those that moved most, have their neighbours told."""
NUM_UNSEEN = 1000
"""So many words that training never saw are drawn."""
NUM_LISTED = 5
MOST_EPOCHS = 8
"""More epochs than these are thinned out evenly, the first and the last kept."""
MOST_MARKED = 200
"""Words that a search marks, the best matches first."""
WIDTH, HEIGHT, LABEL = 600, 330, 13
"""Pixels: of the scatter, and from one label to the next."""
NEVER, UNKNOWN = 0.4, 0.1
"""Where words stand on the axis of steps that were never seen, or of which that was not recorded."""
MARKED = COLOURS[1]
NUM_TABLED = 20
NO_DIRECTION = "undefined: the row is zero"
BLOCK_ROWS = 1024
HOW_NEIGHBOURS = (
    "The five words whose rows point most nearly the same way (greatest cosine), among all words of the vocabulary, "
    "seen in training or not, but not special tokens."
)
TABLED: Mapping[str, Column] = {
    "token": Column(label="word", how="As the model's vocabulary spells it; ## continues a word."),
    "num_steps": Column(label="steps", how="Optimizer steps whose batch held the word: only these gave it a gradient."),
    "norm": Column(label="drift", how="Norm of the change of its row over all of training.", unit="weight units"),
    "angle_degrees": Column(label="angle", how="Between its row before and after training.", unit="degrees"),
    "before": Column(label="nearest before training", how=HOW_NEIGHBOURS),
    "after": Column(label="nearest after", how=HOW_NEIGHBOURS),
}

_TEXTS = ("word", "before", "after")
"""Columns that stand in the data as one text each, a line per word."""

Rows = NDArray[np.int64]


def plot_words(words: pd.DataFrame) -> Chart | None:
    """How far each word's row moved against the steps that saw it; words can be searched, epoch and run be picked.

    Parameters
    ----------
    words
        A table of :func:`toolkit.measure_rows`, or what :func:`toolkit.write_rows` wrote: a line per word, or per word
        and epoch, with the columns ``row``, ``token``, ``num_steps``, ``num_tokens``, ``norm`` and ``angle_degrees``;
        [PAD] is left out. These may be there too: ``epoch``; ``run``, of which one is shown at a time; ``before`` and
        ``after``, the word's neighbours as texts. Every line is drawn: where they are too many, choose before.

    Returns
    -------
    An Altair chart; None where no word moved.

    Raises
    ------
    ValueError
        If a column is missing.
    """
    import altair

    needed = ("row", "token", "num_steps", "num_tokens", "norm", "angle_degrees")
    if lacking := [name for name in needed if name not in words]:
        raise ValueError(f"plot_words needs the columns of toolkit.measure_rows; the table has no {lacking[0]!r}")
    if "stratum" in words:
        words = words[words["stratum"].astype(str) != "[PAD]"]
    if not (words["norm"] > 0).any():
        return None
    places = _places(words)
    runs = _packed(words, places)
    names = [run["run"] for run in runs]
    axes = _Axes.of(words)
    clicked = altair.selection_point(name="clicked", fields=["word"], toggle=False, clear="dblclick")
    shown = _choice(names)
    views = [*([_legend(names, shown)] if len(names) > 1 else []), _scatter(axes, names, clicked), _list(axes)]
    # A text is handed through as it is; Altair takes seconds to look at every number of a list.
    data = altair.InlineData(values=script_json(runs), format=altair.JsonDataFormat(type="json"))
    chart = altair.vconcat(*views, data=data, spacing=14).add_params(*_inputs(places))
    chart = chart.transform_filter(shown) if len(names) > 1 else chart
    first, step = places[0], _step(places)
    most = max(len(run["epochs"]) for run in runs)
    wanted, word = "lower(trim(search))", "lower(datum.word)"
    return (
        chart.transform_calculate(place=f"datum.at[round((epoch - {first:g}) / {step:g})]" if step else "0")
        .transform_calculate(
            at_epoch="datum.epochs[datum.place]", **{name: f"split(datum.{name}, '\\n')" for name in _TEXTS}
        )
        .transform_flatten(
            [*_TEXTS, "x", "num_tokens"] + [f"{name}{i}" for i in range(most) for name in ("drift", "angle")]
        )
        .transform_calculate(drift="datum['drift' + datum.place]", angle="datum['angle' + datum.place]")
        .transform_calculate(
            y=f"max(datum.drift, {axes.low:g})",
            steps=f"datum.x >= 1 ? format(datum.x, ',') : datum.x > {2 * UNKNOWN} ? '0' : 'not recorded'",
            tokens="isValid(datum.num_tokens) ? format(datum.num_tokens, ',') : 'not recorded'",
            turned="isValid(datum.angle) ? format(datum.angle, '.3~r') + '°' : 'undefined'",
            nearest_before=f"datum.before || 'told of the {NUM_NAMED:,} that moved most'",
            nearest_after=f"datum.after || 'told of the {NUM_NAMED:,} that moved most'",
            match=f"{wanted} == '' ? 0 : {word} == {wanted} ? 1 : indexof({word}, {wanted}) == 0 ? 2 : "
            f"indexof({word}, {wanted}) > 0 ? 3 : 0",
        )
        .transform_calculate(
            # What stands first in the list: the word that was clicked, what was searched, else what moved most.
            order="clicked.word && clicked.word[0] == datum.word ? 0 : datum.match > 0 ? datum.match : "
            f"{wanted} == '' && !clicked.word ? 4 : 9"
        )
    )


@dataclass(frozen=True)
class _Axes:
    """Both axes: the same for every run and epoch, so that what is seen to move moved."""

    low: float
    """The floor, on which words stand that did not move."""
    high: float
    left: float
    right: float
    strips: tuple[float, ...]

    @classmethod
    def of(cls, words: pd.DataFrame) -> "_Axes":
        moved = words["norm"][words["norm"] > 0]
        steps = pd.to_numeric(words["num_steps"]).astype(float)
        strips = ((UNKNOWN,) if steps.isna().any() else ()) + ((NEVER,) if (steps == 0).any() else ())
        left = 0.6 * strips[0] if strips else 0.85
        right = max(1.3 * steps.max(), 2.0) if steps.notna().any() and steps.max() else 1.0
        low = 0.7 * float(moved.min())
        room = math.log(moved.max() / low) * NUM_LISTED * LABEL / (HEIGHT - NUM_LISTED * LABEL)
        return cls(float(f"{low:.2g}"), float(f"{1.2 * moved.max() * math.exp(room):.2g}"), left, right, strips)

    def x(self) -> Any:
        import altair

        powers = [10**i for i in range(round(math.log10(self.right)) + 1) if 10**i <= self.right]
        label = f"datum.value >= 1 ? format(datum.value, ',') : datum.value == {NEVER} ? 'never' : 'not recorded'"
        axis = altair.Axis(
            values=[*self.strips, *powers], labelExpr=label, grid=False, title="optimizer steps that saw the word"
        )
        return altair.X("x:Q", scale=self._scale(self.left, self.right), axis=axis)

    def y(self, field: str = "y") -> Any:
        import altair

        powers = [10.0**i for i in range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)]
        ticks = {"values": powers} if len(powers) > 1 else {"tickCount": 4}
        axis = altair.Axis(format="~g", **ticks, title="drift (norm of the change of the word's row)")
        return altair.Y(f"{field}:Q", scale=self._scale(self.low, self.high), axis=axis)

    def _scale(self, low: float, high: float) -> Any:
        import altair

        return altair.Scale(type="log", domain=[low, high], nice=False)

    def pixels_down(self, field: str) -> str:
        """The expression for a height, counted from the top."""
        return f"{HEIGHT} * log({self.high:g} / {field}) / {math.log(self.high / self.low):.6g}"

    def at_pixel(self, pixels: str) -> str:
        """The drift of a height, counted from the top."""
        return f"{self.high:g} * exp(-({pixels}) * {math.log(self.high / self.low) / HEIGHT:.6g})"

    @property
    def per_pixel(self) -> float:
        """What one pixel to the right multiplies steps by, as a logarithm."""
        return math.log(self.right / self.left) / WIDTH


def _inputs(places: Sequence[float]) -> list[Any]:
    import altair

    box = altair.binding(
        input="search", name="Search a word ", placeholder="part of a word", autocomplete="off", debounce=120
    )
    inputs = [altair.param(name="search", value="", bind=box)]
    if step := _step(places):
        slider = altair.binding_range(min=places[0], max=places[-1], step=step, name="Epoch ", debounce=40)
        inputs.append(altair.param(name="epoch", value=places[-1], bind=slider))
    return inputs


def _choice(names: Sequence[str]) -> Any:
    """One run of several, by the list or by a click on its name."""
    import altair

    return altair.selection_point(
        name="shown",
        fields=["run"],
        value=[{"run": names[0]}],
        bind=altair.binding_select(options=list(names), name="Run "),
        on="click",
        toggle=False,
        clear=False,
    )


def _legend(names: Sequence[str], shown: Any) -> Any:
    import altair

    line = altair.Chart(altair.Data(values=[{"run": name} for name in names])).encode(
        y=altair.Y("run:N", sort=list(names), axis=None)
    )
    opacity = altair.when(shown).then(altair.value(1)).otherwise(altair.value(0.25))
    dots = line.mark_point(filled=True, size=70, cursor="pointer").encode(
        color=_colour(names), x=altair.value(5), opacity=opacity
    )
    texts = line.mark_text(align="left", cursor="pointer", limit=WIDTH).encode(text="run:N", x=altair.value(16))
    return altair.layer(dots, texts.add_params(shown)).properties(width=WIDTH, height=18 * len(names))


def _colour(names: Sequence[str]) -> Any:
    import altair

    colours = [colour for colour in COLOURS if colour not in (MARKED, REFERENCE)]
    cycle = [colours[i % len(colours)] for i in range(len(names))]
    return altair.Color("run:N", scale=altair.Scale(domain=list(names), range=cycle), legend=None)


def _scatter(axes: _Axes, names: Sequence[str], clicked: Any) -> Any:
    """The words, those that were searched marked, and those of the list labelled."""
    import altair

    tips = [
        altair.Tooltip(field, title=title, format=form)
        for field, title, form in (
            ("word:N", "word", ""),
            ("steps:N", "steps that saw it", ""),
            ("tokens:N", "times seen", ""),
            ("drift:Q", "drift", ".3~g"),
            ("turned:N", "angle", ""),
            ("nearest_before:N", "nearest before", ""),
            ("nearest_after:N", "nearest after", ""),
        )
    ]
    x, y = axes.x(), axes.y()
    base = altair.Chart().encode(x=x, y=y, tooltip=tips)
    # An unseen word is grey in every run.
    colour = altair.when("datum.x < 1").then(altair.value(REFERENCE)).otherwise(_colour(names))
    points = (
        base.mark_point(filled=True, size=16, opacity=0.7, cursor="pointer").encode(color=colour).add_params(clicked)
    )
    marked = (
        base.mark_point(filled=True, size=30, opacity=1, color=MARKED, cursor="pointer")
        .transform_filter("datum.order < 4")
        .transform_window(best="row_number()", sort=_BEST)
        .transform_filter(f"datum.best <= {MOST_MARKED}")
    )
    # From the lowest up, each label is a line above the one before, or at its word; above all words there is room.
    upwards = altair.SortField("down", order="descending")
    labels = (
        _best(altair.Chart())
        .transform_calculate(down=axes.pixels_down("datum.y"))
        .transform_window(i="row_number()", sort=[upwards])
        .transform_calculate(free=f"datum.down + {LABEL} * datum.i")
        .transform_window(place="min(free)", frame=[None, 0], sort=[upwards])
        .transform_calculate(
            place=f"datum.place - {LABEL} * datum.i",
            is_right=f"log(datum.x / {axes.left:g}) > {0.75 * math.log(axes.right / axes.left):g}",
        )
        .transform_calculate(
            label_y=axes.at_pixel("datum.place"),
            label_x=f"datum.x * exp((datum.is_right ? -12 : 12) * {axes.per_pixel:.6g})",
        )
    )
    label_x, label_y = altair.X("label_x:Q", scale=x["scale"]), axes.y("label_y")
    lines = labels.mark_rule(color=MARKED, strokeWidth=1).encode(x=x, y=y, x2="label_x:Q", y2="label_y:Q")
    side = altair.ExprRef("datum.is_right ? 'right' : 'left'")
    shift = altair.ExprRef("datum.is_right ? -3 : 3")
    texts = labels.mark_text(align=side, dx=shift, fontWeight="bold", limit=150).encode(
        x=label_x, y=label_y, text="word:N"
    )
    return altair.layer(points, marked, lines, texts).properties(width=WIDTH, height=HEIGHT)


_BEST = [{"field": "order"}, {"field": "drift", "order": "descending"}]


def _best(chart: Any) -> Any:
    """The words of the list."""
    return (
        chart.transform_filter("datum.order < 9")
        .transform_window(best="row_number()", sort=_BEST)
        .transform_filter(f"datum.best <= {NUM_LISTED}")
    )


def _list(axes: _Axes) -> Any:
    """The neighbours of the word that was clicked, of those that were searched, or else of those that moved most."""
    import altair

    which = (
        "(trim(search) == '' ? (clicked.word ? 'the word that was clicked' : 'the words that moved most') : "
        "format(datum.found, ',') + ' of ' + format(datum.all, ',') + ' drawn words contain “' + trim(search) + '”')"
    )
    heading = (
        altair.Chart()
        .transform_calculate(is_found="datum.match > 0")
        .transform_aggregate(found="sum(is_found)", all="count()", groupby=["run", "at_epoch"])
        .transform_calculate(text=f"'Epoch ' + format(datum.at_epoch, '~g') + ', ' + {which}")
        .mark_text(align="left", fontWeight="bold", limit=WIDTH)
        .encode(x=altair.value(-40), y=altair.value(0), text="text:N")
    )
    line = _best(altair.Chart()).transform_calculate(
        moved="datum.steps + ' steps, drift ' + format(datum.drift, '.3~g') + ', ' + datum.turned"
    )
    parts = [heading]
    for field, x, shift, style in (
        ("word", -40, -7, {"fontWeight": "bold", "limit": 150}),
        ("moved", -40, 7, {"limit": 180}),
        ("before", 150, -7, {"limit": WIDTH - 210}),
        ("after", 150, 7, {"limit": WIDTH - 210}),
    ):
        text = line.mark_text(align="left", dy=shift, **style)
        shown = f"nearest_{field}" if field in ("before", "after") else field
        y = altair.Y("best:Q", scale=altair.Scale(domain=[NUM_LISTED + 0.5, 0.3]), axis=None)
        parts.append(text.encode(x=altair.value(x + (44 if x > 0 else 0)), y=y, text=f"{shown}:N"))
        if x > 0:
            parts.append(line.mark_text(align="left", dy=shift, text=field).encode(x=altair.value(x), y=y))
    return altair.layer(*parts).properties(width=WIDTH, height=NUM_LISTED * 38 + 10)


def _places(words: pd.DataFrame) -> list[float]:
    """The places of the slider: at even steps from the first epoch after training began to the last."""
    known = sorted({float(epoch) for epoch in words["epoch"]} - {0.0}) if "epoch" in words else []
    if len(known) < 2:
        return known or [0.0]
    gaps = [after - before for before, after in pairwise(known)]
    step = 1.0 if all(epoch == int(epoch) for epoch in known) else float(f"{min(gaps):.3g}")
    return [known[0] + i * step for i in range(round((known[-1] - known[0]) / step) + 1)]


def _step(places: Sequence[float]) -> float:
    return places[1] - places[0] if len(places) > 1 else 0.0


def _packed(words: pd.DataFrame, places: Sequence[float]) -> list[dict[str, Any]]:
    """One line of data per run with an array per column: a quarter of what a line per word takes."""
    words = words.assign(
        run=words["run"].astype(str) if "run" in words else "",
        epoch=words["epoch"].astype(float) if "epoch" in words else 0.0,
    )
    return [_packed_run(visible(str(run)), part, places) for run, part in words.groupby("run", sort=False)]


def _packed_run(run: str, words: pd.DataFrame, places: Sequence[float]) -> dict[str, Any]:
    at = {float(epoch): part.set_index("row") for epoch, part in words.groupby("epoch") if epoch or len(places) == 1}
    epochs = sorted(at)
    last = at[epochs[-1]].sort_values("norm", ascending=False, kind="stable")
    packed: dict[str, Any] = {
        "run": run,
        "epochs": epochs,
        "at": [max(int(np.searchsorted(epochs, place + 1e-6)) - 1, 0) for place in places],
        "word": "\n".join(_word(token, row) for row, token in last["token"].items()),
        "x": _steps(last["num_steps"]),
        "num_tokens": [None if pd.isna(count) else int(count) for count in last["num_tokens"]],
    }
    for i, epoch in enumerate(epochs):
        for name, column in (("drift", "norm"), ("angle", "angle_degrees")):
            packed[f"{name}{i}"] = [_rounded(value) for value in at[epoch].loc[last.index, column]]
    for name in ("before", "after"):
        texts = list(last[name]) if name in last else []
        packed[name] = "\n".join(texts).rstrip("\n")
    return packed


def _rounded(value: float) -> float | None:
    return float(f"{value:.3g}") if value == value else None


def _word(token: object, row: object) -> str:
    return visible(str(token)).replace("\n", "U+000A") if token else f"row {row}"


def _steps(counts: "pd.Series[Any]") -> list[float]:
    """Optimizer steps; where there are none, a place in its strip, spread so that words do not hide one another."""
    spread = np.random.default_rng(0).uniform(-0.18, 0.18, len(counts))
    return [
        round(UNKNOWN * math.exp(shift), 4) if pd.isna(count) else int(count) or round(NEVER * math.exp(shift), 3)
        for count, shift in zip(counts, spread, strict=True)
    ]


@dataclass(frozen=True)
class _Words:
    """What is drawn of one run."""

    run: str
    table: pd.DataFrame
    """What plot_words takes."""
    most_moved: pd.DataFrame
    """The last epoch of the words that moved most, drawn or not."""
    num_seen: int
    """Words that training saw, drawn or not; every word where that was not recorded."""
    num_drawn: int
    num_unseen: int
    num_unseen_drawn: int
    num_epochs: int
    """Epochs after training began, shown or not."""


def words_section(runs: Sequence[tuple[str, Source]], *, budget_bytes: int = BUDGET_BYTES) -> Section | None:
    """The words of labelled runs: the chart, those that moved most as a table, and what is drawn; None without any.

    Every row that training used is drawn ([CLS] and other special tokens too, [PAD] never), or without recorded
    exposure every word, and beside them some words that training never saw. Neighbours are the five nearest by cosine,
    exactly, among all words of the vocabulary. A run whose words do not fit into its share of ``budget_bytes`` keeps
    those seen in the most steps.
    """
    drawn: list[_Words] = []
    refused: list[tuple[str, str]] = []
    left = budget_bytes
    for i, (label, source) in enumerate(runs):
        trajectory = trajectory_of(source)
        if reason := _reason_against(trajectory):
            refused.append((label, reason))
            continue
        made = _fitting(label, trajectory, left // (len(runs) - i))
        drawn, left = [*drawn, made], left - _size(made.table)
    if not drawn:
        return None
    chart = plot_words(pd.concat([made.table for made in drawn], ignore_index=True))
    drawn_seen, all_seen = sum(each.num_drawn for each in drawn), sum(each.num_seen for each in drawn)
    drawn_rest, all_rest = sum(each.num_unseen_drawn for each in drawn), sum(each.num_unseen for each in drawn)
    caption = (
        "A mark is a word of the vocabulary. To the right: training saw it in more optimizer steps, and only these "
        "gave its row a gradient; the others stand at never, and at most weight decay moves them. Upwards: its row "
        "moved farther, in weight units; marks on the floor are exactly 0. Type part of a word, or click on a mark, to "
        "read its neighbours: the five words whose rows point most nearly the same way, with their cosines. Of several "
        f"runs of a regime the first seed's is shown. Drawn: {drawn_seen:,} of {all_seen:,} words seen in training and "
        f"{drawn_rest:,} of {all_rest:,} others, evenly spaced in the vocabulary."
    )
    alt = (
        "Scatter of words: in how many optimizer steps training saw each, against how far its row moved. "
        "The table below it names those that moved most."
    )
    picture = ChartBlock(name="words", chart=chart, caption=caption, alt=alt)
    tables = folds([each.run for each in drawn], [(_most_moved(each),) for each in drawn])
    return Section(id="words", title="Which words moved", blocks=(picture, *tables, *_counts(drawn, refused)))


def _reason_against(trajectory: Trajectory) -> str:
    if PARAMETER not in trajectory.parameters:
        return "its model has no word embeddings"
    tables = [word_table(snapshot) for snapshot in (trajectory.snapshots[0], trajectory.snapshots[-1])]
    if len(trajectory) < 2 or np.array_equal(tables[0], tables[1]):
        return "its word embeddings did not move"
    return "" if len(_seen(trajectory)) >= 3 else "training used fewer than three of its words"


def _seen(trajectory: Trajectory) -> Rows:
    """The rows that training used, [PAD] apart; every word where that was not recorded."""
    exposure = table_exposure(trajectory, PARAMETER)
    if exposure is None:
        return list_words(trajectory, trajectory.snapshots[-1], only_seen=False, include_unused=False)
    steps = exposure.step_counts(len(word_table(trajectory.snapshots[-1])))
    pad = trajectory.vocabulary.pad_row if trajectory.vocabulary else None
    return np.array([row for row in np.flatnonzero(steps) if row != pad], np.int64)


def _fitting(run: str, trajectory: Trajectory, budget_bytes: int) -> _Words:
    """The words of a run: all that training saw, where they fit, else those seen in the most steps."""
    ends, snapshots = _ends(trajectory), _thinned(trajectory)
    seen = _seen(trajectory)
    words = list_words(trajectory, snapshots[-1], only_seen=False, include_unused=False)
    unseen = np.setdiff1d(words, seen)
    kept, sample = seen, _evenly(unseen, NUM_UNSEEN)
    whole = _measured(run, trajectory, snapshots, np.union1d(kept, sample))
    near = _neighbours(whole, trajectory, (snapshots[0], snapshots[-1]), words)
    for name, lists in near.items():
        texts = {
            row: ", ".join(f"{word} {cosine:.2f}" for word, cosine in line) or NO_DIRECTION
            for row, line in lists.items()
        }
        whole[name] = whole["row"].map(texts).fillna("")
    table = whole
    while (share := budget_bytes / _size(table)) < 1 and len(kept) > 3:
        # Some bytes are no word's: a little less than the share fits.
        kept = _seen_most(whole, kept, max(int(0.95 * share * len(kept)), 3))
        sample = _evenly(sample, int(0.95 * share * len(sample)))
        table = whole[whole["row"].isin([*kept, *sample])]
    last = whole[(whole["epoch"] == snapshots[-1].epoch) & whole["row"].isin(seen)]
    most_moved = last.sort_values("norm", ascending=False, kind="stable").head(NUM_TABLED)
    for name, lists in near.items():
        most_moved[name] = [", ".join(word for word, _ in lists[row]) or NO_DIRECTION for row in most_moved["row"]]
    return _Words(
        run=run,
        table=table,
        most_moved=most_moved,
        num_seen=len(seen),
        num_drawn=len(kept),
        num_unseen=len(unseen),
        num_unseen_drawn=len(sample),
        num_epochs=len(ends) - 1,
    )


def _ends(trajectory: Trajectory) -> list[Snapshot]:
    """The ends of the epochs, and the last snapshot."""
    return [s for s in trajectory if s.is_epoch_end or s is trajectory.snapshots[-1]]


def _thinned(trajectory: Trajectory) -> list[Snapshot]:
    """At most MOST_EPOCHS of the ends of the epochs, the first and the last kept."""
    snapshots = _ends(trajectory)
    places = np.unique(np.linspace(0, len(snapshots) - 1, min(MOST_EPOCHS, len(snapshots))).round().astype(int))
    return [snapshots[i] for i in places]


def _evenly(rows: Rows, num: int) -> Rows:
    """At most ``num`` of the rows at even distances: vocabularies are in the order of frequency, or of the alphabet."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, num).round().astype(int))] if num < len(rows) else rows


def _seen_most(table: pd.DataFrame, rows: Rows, num: int) -> Rows:
    """The rows seen in the most steps; evenly spaced ones where that was not recorded."""
    steps = table.drop_duplicates("row").set_index("row")["num_steps"].loc[rows]
    if steps.isna().any():
        return _evenly(rows, num)
    return np.sort(steps.sort_values(ascending=False, kind="stable").index[:num].to_numpy())


def _measured(run: str, trajectory: Trajectory, snapshots: Sequence[Snapshot], rows: Rows) -> pd.DataFrame:
    """A line per row and epoch after the first: what toolkit.measure_rows says of it, exposure that of all training."""
    values = {name: np.empty((len(snapshots) - 1, len(rows))) for name in ("norm", "angle_degrees")}
    for block, tables in iterate_blocks(snapshots, PARAMETER, BLOCK_ROWS):
        part = slice(*np.searchsorted(rows, (block.start, block.stop)))
        of_block = rows[part] - block.start
        for name, filled in values.items():
            for epoch, table in enumerate(tables[1:]):
                filled[epoch, part] = MEASURES[name].function(tables[0][of_block], table[of_block])
    exposure = table_exposure(trajectory, PARAMETER)
    counts: dict[str, Any] = {"num_steps": pd.NA, "num_tokens": pd.NA}
    if exposure is not None:
        num_rows = len(word_table(snapshots[0]))
        counts = {
            "num_steps": exposure.step_counts(num_rows)[rows],
            "num_tokens": exposure.token_counts(num_rows)[rows],
        }
    tokens = trajectory.vocabulary.tokens if trajectory.vocabulary else None
    own = pd.DataFrame({"run": run, "row": rows, "token": [tokens[row] if tokens else "" for row in rows], **counts})
    own = own.astype({"num_steps": "Int64", "num_tokens": "Int64"})
    frames = [
        own.assign(epoch=float(snapshot.epoch), **{name: filled[i] for name, filled in values.items()})
        for i, snapshot in enumerate(snapshots[1:])
    ]
    return pd.concat(frames, ignore_index=True)


def _neighbours(
    table: pd.DataFrame, trajectory: Trajectory, pair: tuple[Snapshot, Snapshot], words: Rows
) -> dict[str, dict[int, list[tuple[str, float]]]]:
    """Neighbours before and after, nearest first, of the NUM_NAMED rows that moved most; none of a zero row."""
    last = table[table["epoch"] == table["epoch"].max()]
    named = np.sort(last.sort_values("norm", ascending=False, kind="stable")["row"].head(NUM_NAMED).to_numpy())
    tokens = trajectory.vocabulary.tokens if trajectory.vocabulary else None
    num = min(NUM_NEIGHBOURS, len(words) - 1)
    near = {}
    for name, snapshot in zip(("before", "after"), pair, strict=True):
        found = zip(named, *nearest_neighbours(word_table(snapshot), num, queries=named, candidates=words), strict=True)
        near[name] = {
            int(row): [
                (_word(tokens[other] if tokens else "", other), float(cosine))
                for other, cosine in zip(others, cosines, strict=True)
                if other >= 0
            ]
            for row, others, cosines in found
        }
    return near


def _size(table: pd.DataFrame) -> int:
    """Bytes that the words of a run take in the page."""
    return len(script_json(_packed(table, _places(table))).encode())


def _most_moved(words: _Words) -> TableBlock:
    table = words.most_moved
    shown = table.assign(
        token=[_word(token, row) for token, row in zip(table["token"], table["row"], strict=True)],
        num_steps=["not recorded" if pd.isna(count) else int(count) for count in table["num_steps"]],
    )
    caption = f"Words that moved most: {words.run}"
    return TableBlock(table=shown[list(TABLED)].reset_index(drop=True), caption=caption, columns=TABLED, num_shown=10)


def _counts(drawn: Sequence[_Words], refused: Sequence[tuple[str, str]]) -> tuple[Block, ...]:
    """How much of each run is drawn, and why nothing is of the others."""
    header = ("run", "seen in training: drawn", "of", "others: drawn", "of", "epochs: shown", "of", "why none")
    rows: list[Sequence[object]] = [
        (
            each.run,
            each.num_drawn,
            each.num_seen,
            each.num_unseen_drawn,
            each.num_unseen,
            each.table["epoch"].nunique(),
            each.num_epochs,
            "",
        )
        for each in drawn
    ]
    rows += [(run, 0, "", 0, "", 0, "", reason) for run, reason in refused]
    table = rows_block(header, rows, "The words of each run that are drawn")
    return (FoldBlock(title="What is drawn of each run", blocks=(table,)),)
