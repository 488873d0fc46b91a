"""How far each word's row moved, against the steps that saw it: a chart to search, and a table of nearest words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.drift import top_words
from toolkit.analysis.strata import AT_INPUT, INFERRED, NOT_AT_INPUT
from toolkit.analysis.word_rows import NUM_NAMED, WordRows, evenly, measure_words, seen_most
from toolkit.naming import visible
from toolkit.reporting.cells import Column
from toolkit.reporting.charts import COLOURS, REFERENCE, UNDEFINED, Chart, altair, log_axis, tips
from toolkit.reporting.page import Block, ChartBlock, FoldBlock, Section, TableBlock, folds, rows_block, table_block
from toolkit.reporting.render_html import script_json
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened
from toolkit.reporting.topics.drift import has_undefined
from toolkit.snapshots.store import Source, trajectory_of

BUDGET_BYTES = 1_100_000
"""What the data of the chart may take of a page."""
NUM_TABLED = 20
"""Words of a run that the table of those that moved most names."""
WEIGHT_UNITS = "weight units"
HOW_NEIGHBOURS = (
    "The five words whose rows point most nearly the same way (greatest cosine), among all words of the vocabulary, "
    "seen in training or not, but not special tokens."
)
TABLED: Mapping[str, Column] = {
    "token": Column(label="word", how="As the model's vocabulary spells it; ## continues a word."),
    "num_steps": Column(
        label="steps",
        how="Optimizer steps whose batch held the word: only these gave it a gradient, unless its table is the output "
        "layer too.",
    ),
    "drift": Column(label="drift", how="How far its row moved over all of training."),
    "angle_degrees": Column(
        label="angle", how="Between its row at the first snapshot and at the last.", unit="degrees"
    ),
    "before": Column(label="nearest at first", how=HOW_NEIGHBOURS),
    "after": Column(label="nearest at last", how=HOW_NEIGHBOURS),
}


def words_section(runs: Sequence[tuple[str, Source | WordRows]], *, budget_bytes: int = BUDGET_BYTES) -> Section | None:
    """The words of labelled runs, or of what was measured of them: chart, table and what is drawn; None without any.

    Every row that training used is drawn ([CLS] and other special tokens too, [PAD] never), or without recorded
    exposure every word, and beside them some words that training never saw. Neighbours are the five nearest by cosine,
    exactly, among all words of the vocabulary. A run whose words do not fit into its share of ``budget_bytes`` keeps
    those seen in the most steps.
    """
    frames: list[pd.DataFrame] = []
    tables: dict[str, Block] = {}
    counts: list[list[Any]] = []
    refused: list[list[Any]] = []
    bytes_left = budget_bytes
    num_named = max(NUM_NAMED // max(len(runs), 1), NUM_TABLED)
    measured = [
        source if isinstance(source, WordRows) else measure_words([trajectory_of(source)], num_named=num_named)
        for _, source in runs
    ]
    if any(has_undefined(words.table) for words in measured):  # all on one axis
        measured = [replace(words, table=words.table.drop(columns="relative", errors="ignore")) for words in measured]
    for i, ((label, _), words) in enumerate(zip(runs, measured, strict=True)):
        if words.reason:
            refused.append([label, 0, "", 0, "", 0, "", words.reason])
            continue
        run = visible(label)
        table, seen_words, num_seen, num_others = _words_that_fit(run, words, bytes_left // (len(runs) - i))
        bytes_left -= data_size(table)
        frames.append(table)
        tables[run] = _most_moved(run, seen_words)
        nums_words = [num_seen, words.num_seen, num_others, words.num_unseen]
        counts.append([run, *nums_words, table["epoch"].nunique(), words.num_epochs, ""])
    if not frames:
        return None
    drawn_words = pd.concat(frames, ignore_index=True)
    kinds = {"input"} if _is_at_input(drawn_words).any() else _kinds(_axis_positions(drawn_words))
    _, *columns_of_words = list(zip(*counts, strict=True))[:5]  # as the header below names them
    drawn_seen, all_seen, drawn_others, all_others = map(sum, columns_of_words)
    which = " (those of the most steps or, where steps are not known, that moved farthest)"
    caption = (
        "A mark is a word: upwards, its row moved farther; marks on the floor moved less than the axis shows, or not. "
        f"{' '.join(text for kind, text in SIDEWAYS.items() if kind in kinds)} {COLOURED} Type part of a word to "
        "mark it, and point at a mark to read its neighbours: the five words whose rows point most nearly the same "
        "way, with their cosines. Of several seeds the means are shown, and the neighbours of the first. Drawn: "
        f"{drawn_seen:,} of {all_seen:,} words that training used or may have used"
        f"{which if drawn_seen < all_seen else ''}, and {drawn_others:,} of "
        f"{all_others:,} others, evenly spaced in the vocabulary; of these special tokens and [unused] ones are left "
        "out."
    )
    picture = ChartBlock(name="words", chart=words_chart(drawn_words), caption=caption, alt=ALT)
    moved = FoldBlock(
        title="Words that moved most", blocks=folds(list(tables), [(block,) for block in tables.values()])
    )
    header = ("run", "used, or maybe: drawn", "of", "others: drawn", "of", "epochs: shown", "of", "why none")
    counts_block = rows_block(header, [*counts, *refused], "The words of each run that are drawn")
    counts_fold = FoldBlock(title="What is drawn of each run", blocks=(counts_block,))
    return Section(id="words", title="Which words moved", blocks=(picture, moved, counts_fold))


SIDEWAYS = {
    "counted": "To the right, training saw it in more optimizer steps, and only these gave its row a gradient.",
    "input": "To the right stand words that the input used, to the left those that it did not: as the table is the "
    "output layer too, any step may have moved any of them. Within a group, right and left mean nothing.",
    "used": "Whether training used it is inferred from the weights: words that it used stand to the right of those "
    "that it did not. In how many optimizer steps is not known: within a group, right and left mean nothing.",
    "unknown": "Of words over “not recorded” it is not known whether training used them: there, right and left mean "
    "nothing.",
}
"""Kind of place on the axis of steps to what it says of its words."""
COLOURED = "Blue: training used it; grey: it did not, or that is not known; orange: searched."
ALT = (
    "Scatter of words: how far each row moved, against what is known of the optimizer steps that used it. The table "
    "below it names those that moved most."
)


def _words_that_fit(run: str, words: WordRows, budget_bytes: int) -> tuple[pd.DataFrame, pd.DataFrame, int, int]:
    """The words of a run to draw, those it used at its last epoch, and how many are drawn of these and of the others.

    All words that are known, where they fit into ``budget_bytes``, else those seen in the most steps.
    """
    visible_texts = {name: words.table[name].map(_visible) for name in ("token", "before", "after")}
    steps = words.table["num_steps"]
    # Steps are known of the others alone where two checkpoints told which words were used.
    is_inferred = words.table["is_seen"].astype(bool) & steps.isna() & steps.notna().any()
    # Nor of any word of a table that is the output layer too, of which the tokens of the input are known.
    at_input = np.where(words.table["num_tokens"].notna() & steps.isna(), AT_INPUT, "")
    stratum = np.where(is_inferred, INFERRED["exposed"], at_input)
    all_words = _with_drift(words.table).assign(run=run, stratum=stratum, **visible_texts)
    last = all_words[all_words["epoch"] == all_words["epoch"].max()].set_index("row", drop=False)
    is_seen = last["is_seen"].astype(bool)
    seen_rows = last.index[is_seen].to_numpy()
    other_rows = last.index[~is_seen].to_numpy()
    table = all_words
    while (share := budget_bytes / data_size(table)) < 1 and len(seen_rows) > 3:
        # Some bytes are no word's: a little less than the share fits.
        seen_rows = seen_most(last, seen_rows, max(int(0.95 * share * len(seen_rows)), 3))
        other_rows = evenly(other_rows, int(0.95 * share * len(other_rows)))
        table = all_words[all_words["row"].isin([*seen_rows, *other_rows])]
    return table, last[is_seen], len(seen_rows), len(other_rows)


def _most_moved(run: str, words: pd.DataFrame) -> TableBlock:
    """The table of the words that moved most, drawn or not, with their neighbours without the cosines."""
    furthest = words.sort_values("drift", ascending=False, kind="stable").head(NUM_TABLED)
    cosine = r" -?[0-9]\.[0-9]{2}(?=, |$)"  # behind each neighbour
    neighbours = {name: furthest[name].str.replace(cosine, "", regex=True) for name in ("before", "after")}
    text_by_stratum = {INFERRED["exposed"]: "unknown (inferred)", ANY_STEP: ANY_STEP}
    strata = furthest["stratum"].mask(_is_at_input(furthest), ANY_STEP)
    steps = [
        text_by_stratum.get(stratum, "not recorded") if pd.isna(count) else int(count)
        for count, stratum in zip(furthest["num_steps"], strata, strict=True)
    ]
    table = furthest.assign(num_steps=pd.Series(steps, furthest.index, dtype=object), **neighbours)[list(TABLED)]
    caption = f"Words that moved most: {run}"
    columns = {**TABLED, "drift": replace(TABLED["drift"], unit=unit_of(words))}
    return TableBlock(table=table.reset_index(drop=True), caption=caption, columns=columns, num_shown=10)


def unit_of(words: pd.DataFrame) -> str:
    """The unit of ``drift``: weight units where shares are missing, as in old evidence, or a word moved from 0."""
    return WEIGHT_UNITS if "relative" not in words or has_undefined(words) else "% of norm"


def _with_drift(words: pd.DataFrame) -> pd.DataFrame:
    """With ``drift``, how far each row moved, in :func:`unit_of`."""
    if "drift" in words:
        return words
    if unit_of(words) == WEIGHT_UNITS:
        return words.assign(drift=words["norm"])
    return words.assign(drift=(100 * words["relative"].astype(float)).mask(words["norm"] == 0, 0.0))


WIDTH, HEIGHT = 600, 280
"""Pixels of the scatter."""
MOST_LABELLED = 14
"""Words that are named in the scatter."""
LETTER_WIDTH, LINE_HEIGHT = 6, 12
"""Pixels that a letter and a line of a name take, about."""
UNKNOWN, NEVER, USED = STRIPS = 0.1, 0.4, 0.75
"""Where words stand on the axis of steps: of which nothing was recorded, that training never saw, and that it used in
steps that nobody counted."""
STRIP_ENDS = (0.2, 0.55, 1.0)
"""Where the strip of each ends; then come the steps."""
KINDS = ("unknown", "never", "used", "counted")
"""Kinds of place on the axis, in its order."""
ANY_STEP = "any (output layer)"
SEARCHED_COLOUR = COLOURS[1]
NO_NEIGHBOURS = "shown only for the words that moved most"
SAME_AS_BEFORE = "="
"""Stands for neighbours after training that are those before: most are, and texts are most of the data."""
_TEXTS = ("word", "before", "after")
"""Columns that stand in the data as one text each, a line per word: ``word_lines``, and so on."""


def words_chart(words: pd.DataFrame) -> Chart | None:
    """The chart of :func:`toolkit.plot_words` from its table; None where no word moved."""
    if "stratum" in words:
        words = words[words["stratum"].astype(str) != "[PAD]"]
    words = _with_drift(words)
    if not (words["drift"] > 0).any():
        return None
    slider_epochs = epochs_of_slider(words)
    runs = packed_words(words, slider_epochs)
    names = [run["run"] for run in runs]
    is_input = any("is_input" in run for run in runs)
    x, y, floor = _axes(words, np.concatenate([run["x"] for run in runs]), is_input=is_input)
    x_ends, y_ends = x.to_dict()["scale"]["domain"], y.to_dict()["scale"]["domain"]
    most_epochs = max(len(run["epochs"]) for run in runs)
    for run in runs:
        run["label"] = labels_of(run, x_ends, y_ends)
        # Vega draws nothing at all where one run lacks a list that another has.
        lacking = range(len(run["epochs"]), most_epochs)
        run |= {f"{name}{i}": [] for i in lacking for name in ("drift", "angle")}
    # A text is handed through as it is; Altair takes seconds to look at every number of a list.
    data = altair.InlineData(values=script_json(runs), format=altair.JsonDataFormat(type="json"))
    # The heading, as Vega's expressions: run and epoch, where there are several.
    headings = {"datum.run": len(names) > 1, "'epoch ' + format(datum.at_epoch, '~g')": "epoch" in words}
    heading = " + ', ' + ".join(expression for expression, is_shown in headings.items() if is_shown)
    chart = _scatter(x, y, _inputs(slider_epochs, names), heading)
    # Apart from the chart: with each transform a compound one is copied whole, which takes a second.
    transforms = _unpacking(slider_epochs, most_epochs, floor, has_runs=len(names) > 1)
    return chart.properties(data=data, transform=transforms.transform)


def _unpacking(slider_epochs: Sequence[float], most_epochs: int, floor: float, *, has_runs: bool) -> Chart:
    """A chart whose transforms make a record per word, of the run and epoch shown, from :func:`packed_words`.

    ``floor``: the least drift on the axis, where words stand that moved less. ``place`` is where in a run's own list
    of epochs the one is that the slider asks for.
    """
    first, step = slider_epochs[0], _step(slider_epochs)
    chart = altair.Chart().transform_filter("datum.run == shown_run") if has_runs else altair.Chart()
    return (
        chart.transform_calculate(place=f"datum.at[round((epoch - {first:g}) / {step:g})]" if step else "0")
        .transform_calculate(
            at_epoch="datum.epochs[datum.place]", **{name: f"split(datum.{name}_lines, '\\n')" for name in _TEXTS}
        )
        .transform_flatten(
            [*_TEXTS, "x", "num_tokens", "label"]
            + [f"{name}{i}" for i in range(most_epochs) for name in ("drift", "angle")]
        )
        .transform_calculate(drift="datum['drift' + datum.place]", angle="datum['angle' + datum.place]")
        .transform_calculate(
            y=f"max(datum.drift, {floor:g})",
            steps=f"datum.is_input ? '{ANY_STEP}' : "
            + _by_kind("'not recorded'", "'0'", "'unknown (inferred from the weights)'", "format(datum.x, ',')"),
            tokens="isValid(datum.num_tokens) ? format(datum.num_tokens, ',') : "
            f"datum.x > {STRIP_ENDS[1]} && datum.x < 1 ? 'unknown' : 'not recorded'",
            turned="isValid(datum.angle) ? format(datum.angle, '.3~r') + '°' : 'undefined'",
            nearest_before=f"datum.before || '{NO_NEIGHBOURS}'",
            nearest_after=f"datum.after == '{SAME_AS_BEFORE}' ? datum.before : datum.after || '{NO_NEIGHBOURS}'",
            is_searched="trim(search) != '' && indexof(lower(datum.word), lower(trim(search))) >= 0",
        )
    )


def _axes(words: pd.DataFrame, axis_positions: NDArray[np.float64], *, is_input: bool) -> tuple[Any, Any, float]:
    """Both axes, the same for every run and epoch, so that what is seen to move moved; and where the floor is.

    ``axis_positions``: of all words, on the axis of steps.
    """
    kinds = _kinds(axis_positions)
    strips = [strip for kind, strip in zip(KINDS, STRIPS, strict=False) if kind in kinds]
    most_steps = int(axis_positions.max()) if "counted" in kinds else 0
    if is_input and not most_steps:
        title = "use by the input, in any number of steps"
        never_text, used_text = "'not at the input'", "'at the input'"
    elif USED in strips and not most_steps:
        title = "inferred from the weights: the number of steps is not known"
        never_text, used_text = "'not used by training'", "['used by training', '(inferred)']"
    else:
        title = "optimizer steps that saw the word"
        never_text, used_text = "'never'", "'used'"
    label = _by_kind("'not recorded'", never_text, used_text, "format(datum.value, ',')", x="datum.value")
    left_end = 0.6 * strips[0] if strips else 0.85
    right_end = max(1.3 * most_steps, 2.0) if most_steps else strips[-1] / 0.6
    ticks = [digit * 10**power for power in range(len(str(most_steps))) for digit in (1, 2, 5)]
    axis = altair.Axis(
        values=[*strips, *(tick for tick in ticks if tick <= most_steps)],
        labelExpr=label,
        grid=False,
        labelOverlap="greedy",
    )
    scale = altair.Scale(type="log", domain=[left_end, right_end], nice=False)
    x = altair.X("x:Q", scale=scale, axis=axis, title=title)
    used_drift = words["drift"][words["num_steps"].fillna(1) > 0]
    # By decay alone rows move a hundred times less: where others moved, these do not set the axis.
    drift_axis = log_axis(used_drift if (used_drift > 0).any() else words["drift"])
    y_title = f"drift of the word's row ({unit_of(words)})"
    y = altair.Y("y:Q", scale=drift_axis.scale(), axis=drift_axis.axis(), title=y_title)
    return x, y, drift_axis.low


def _inputs(slider_epochs: Sequence[float], names: Sequence[str]) -> list[Any]:
    """The inputs of the chart: the word that is searched, the run and the epoch where there are several."""
    runs = altair.binding_select(options=list(names), name="Run ")
    box = altair.binding(
        input="search", name="Search a word ", placeholder="part of a word", autocomplete="off", debounce=120
    )
    inputs = [altair.param(name="shown_run", value=names[0], bind=runs)] if len(names) > 1 else []
    inputs.append(altair.param(name="search", value="", bind=box))
    if step := _step(slider_epochs):
        first, last = slider_epochs[0], slider_epochs[-1]
        slider = altair.binding_range(min=first, max=last, step=step, name="Epoch ", debounce=40)
        inputs.append(altair.param(name="epoch", value=last, bind=slider))
    return inputs


def _scatter(x: Any, y: Any, params: Sequence[Any], heading: str) -> Any:
    """The scatter of words with those that were searched marked, below a heading of run and epoch.

    ``params``: the inputs; ``heading``: an expression of Vega, '' for none.
    """
    tip_fields = tips(
        word="word",
        steps="steps that saw it",
        tokens="times seen",
        drift=("drift", ".3~g"),
        turned="angle",
        nearest_before="nearest before",
        nearest_after="nearest after",
    )
    base = altair.Chart().encode(x=x, y=y, tooltip=tip_fields)
    colour = altair.when(f"datum.x < {STRIP_ENDS[1]}").then(altair.value(REFERENCE)).otherwise(altair.value(COLOURS[0]))
    points = base.mark_point(filled=True, size=12, opacity=1).encode(color=colour)
    marked = base.mark_point(filled=True, size=50, opacity=1, color=SEARCHED_COLOUR).transform_filter(
        "datum.is_searched"
    )
    one_per_epoch = (
        altair.Chart().transform_aggregate(groupby=["run", "at_epoch"]).transform_calculate(text=heading or "''")
    )
    headings = one_per_epoch.mark_text(align="left", fontWeight="bold", limit=WIDTH).encode(
        x=altair.value(0), y=altair.value(-10), text=altair.Text("text:N")
    )
    labels = base.mark_text(align="left", dx=4, dy=-6, fontSize=10).transform_filter("datum.label")
    labels = labels.encode(text="label:N")
    # Names lie below the marks: a name is pointed at only where no mark is.
    return altair.layer(labels, points.add_params(*params), marked, headings, width=WIDTH, height=HEIGHT)


def labels_of(run: Mapping[str, Any], x_ends: Sequence[float], y_ends: Sequence[float]) -> list[str]:
    """The names of the words that moved furthest, where they do not lie on one another; '' for all others.

    ``run``: of :func:`packed_words`, the furthest first; ``x_ends``, ``y_ends``: of both axes, logarithmic.
    """
    words = run["word_lines"].split("\n")
    last_drifts = run[f"drift{len(run['epochs']) - 1}"]
    # In pixels: (left, right, top) of each name, by the place of its word.
    boxes: dict[int, tuple[float, float, float]] = {}
    for i, (word, axis_position, drift) in enumerate(zip(words, run["x"], last_drifts, strict=True)):
        if len(boxes) == MOST_LABELLED or not drift:  # all further ones did not move either
            break
        left = WIDTH * math.log(axis_position / x_ends[0]) / math.log(x_ends[1] / x_ends[0])
        top = HEIGHT * math.log(y_ends[1] / drift) / math.log(y_ends[1] / y_ends[0])
        right = left + LETTER_WIDTH * len(word)
        is_free = all(
            right < other_left or other_right < left or abs(top - other_top) > LINE_HEIGHT
            for other_left, other_right, other_top in boxes.values()
        )
        if right < WIDTH and is_free:
            boxes[i] = left, right, top
    return [word if i in boxes else "" for i, word in enumerate(words)]


def epochs_of_slider(words: pd.DataFrame) -> list[float]:
    """The epochs that the slider can ask for: at even steps from the first after training began to the last."""
    epochs = sorted({float(epoch) for epoch in words["epoch"]} - {0.0}) if "epoch" in words else []
    if len(epochs) < 2:
        return epochs or [0.0]
    gaps = [after - before for before, after in pairwise(epochs)]
    step = 1.0 if all(epoch == int(epoch) for epoch in epochs) else float(f"{min(gaps):.3g}")
    return [epochs[0] + i * step for i in range(round((epochs[-1] - epochs[0]) / step) + 1)]


def _step(slider_epochs: Sequence[float]) -> float:
    """Epochs from one place of the slider to the next; 0 where there is no other."""
    return slider_epochs[1] - slider_epochs[0] if len(slider_epochs) > 1 else 0.0


def packed_words(words: pd.DataFrame, slider_epochs: Sequence[float]) -> list[dict[str, Any]]:
    """A record of data per run with an array per column: a quarter of what a record per word takes."""
    words = _with_drift(words).assign(
        run=words["run"].astype(str) if "run" in words else "",
        epoch=words["epoch"].astype(float) if "epoch" in words else 0.0,
    )
    return [
        _packed_run(visible(str(run)), words_of_run, slider_epochs)
        for run, words_of_run in words.groupby("run", sort=False)
    ]


def _packed_run(run: str, words: pd.DataFrame, slider_epochs: Sequence[float]) -> dict[str, Any]:
    """The data of one run: an array per column, the words that moved most first, drift and angle per epoch.

    ``at`` has for each place of the slider the place of the last epoch of this run that is not after it.
    """
    words_by_epoch = {
        float(epoch): words_of_epoch.set_index("row")
        for epoch, words_of_epoch in words.groupby("epoch")
        if epoch or len(slider_epochs) == 1  # at epoch 0 nothing has moved
    }
    epochs = sorted(words_by_epoch)
    last = words_by_epoch[epochs[-1]].sort_values("drift", ascending=False, kind="stable")
    packed: dict[str, Any] = {
        "run": run,
        "epochs": epochs,
        "at": [max(int(np.searchsorted(epochs, epoch + 1e-6)) - 1, 0) for epoch in slider_epochs],
        "word_lines": "\n".join(shown_word(token, row) for row, token in last["token"].items()),
        "x": [
            int(axis_position)
            if axis_position >= 1
            else round(axis_position, 4 if axis_position < STRIP_ENDS[0] else 3)
            for axis_position in _axis_positions(last)
        ],
        "num_tokens": [None if pd.isna(count) else int(count) for count in last["num_tokens"]],
    }
    if _is_at_input(last).any():
        packed["is_input"] = True
    for i, epoch in enumerate(epochs):
        for name, column in (("drift", "drift"), ("angle", "angle_degrees")):
            packed[f"{name}{i}"] = [_rounded(value) for value in words_by_epoch[epoch].loc[last.index, column]]
    nearest_before = list(last["before"]) if "before" in last else [""] * len(last)
    nearest_after = list(last["after"]) if "after" in last else [""] * len(last)
    shorter_after = [
        SAME_AS_BEFORE if before and before == after else after
        for before, after in zip(nearest_before, nearest_after, strict=True)
    ]
    packed["before_lines"] = "\n".join(nearest_before).rstrip("\n")
    packed["after_lines"] = "\n".join(shorter_after).rstrip("\n")
    return packed


def _rounded(value: float) -> float | None:
    return float(f"{value:.3g}") if value == value else None


def shown_word(token: object, row: object) -> str:
    return _visible(str(token)) if token else f"row {row}"


def _visible(text: str) -> str:
    return visible(text).replace("\n", "U+000A")


def _axis_positions(words: pd.DataFrame) -> NDArray[np.float64]:
    """(words,) optimizer steps; where there are none, a place in a strip, spread so that words do not hide one another.

    Float64.
    """
    steps = pd.to_numeric(words["num_steps"]).to_numpy(np.float64, na_value=np.nan)
    strata = words["stratum"].astype(str) if "stratum" in words else pd.Series("", index=words.index)
    tokens = pd.to_numeric(words["num_tokens"]).to_numpy(np.float64, na_value=np.nan)
    without_steps = np.where(strata == INFERRED["exposed"], USED, UNKNOWN)
    without_steps = np.where(_is_at_input(words), np.where(tokens > 0, USED, NEVER), without_steps)
    strips = np.where(np.isnan(steps), without_steps, NEVER)
    spread = np.exp(np.random.default_rng(0).uniform(-0.18, 0.18, len(words)))
    return np.where(steps >= 1, np.floor(steps), strips * spread)


def _is_at_input(words: pd.DataFrame) -> "pd.Series[bool]":
    """Whether each word is of a tied table: the tokens of the input are known, and no steps."""
    is_tied = "stratum" in words and words["stratum"].isin([AT_INPUT, NOT_AT_INPUT]).any()
    return words["num_steps"].isna() & words["num_tokens"].notna() & is_tied


def _kinds(axis_positions: NDArray[np.float64]) -> set[str]:
    """Those of KINDS that stand at some places of the axis of steps."""
    return {KINDS[i] for i in np.digitize(axis_positions, STRIP_ENDS)}


def _by_kind(unknown: str, never: str, used: str, counted: str, x: str = "datum.x") -> str:
    """The expression that is one of four, by where on the axis of steps a place is."""
    at_unknown, at_never, at_used = (f"{x} < {end}" for end in STRIP_ENDS)
    return f"({at_unknown} ? {unknown} : {at_never} ? {never} : {at_used} ? {used} : {counted})"


def data_size(words: pd.DataFrame) -> int:
    """Bytes that the data of the chart take in a page."""
    return len(script_json(packed_words(words, epochs_of_slider(words))).encode())


NUM_ON_SCREEN = 10
"""Words that a terminal shows."""


def makers(opened: Opened) -> Makers:
    """The table of the words that moved most."""
    return {"most_moved": lambda: top_words(opened.source, NUM_TABLED)}


def on_screen(computed: Computed) -> Section:
    """The words that moved most, in a terminal."""
    words = computed.get("most_moved").head(NUM_ON_SCREEN)
    has_steps = len(words) > 0 and words["num_steps"].notna().any()
    names = ["token", "drift_percent", *(["num_steps"] if has_steps else [])]
    drift = Column(label="drift", unit="% of norm")
    words = words.astype({"drift_percent": object}).fillna({"drift_percent": UNDEFINED}) if len(words) else words
    table = table_block(words, names, "", token="word", drift_percent=drift)
    return Section(id="words", title="Which words moved most", blocks=(table,) if len(words) else ())


def section(computed: Computed) -> Section:
    """The section of words of what was opened, as a comparison shows them."""
    words = words_section([(computed.opened.title, computed.opened.trajectory)])
    return words or Section(id="words", title="Which words moved")


PART = DriftPart(section, makers, is_brief=lambda opened: True, on_screen=on_screen)
