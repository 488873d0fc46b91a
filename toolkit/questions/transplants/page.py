"""What the drift of each embedding component is worth to the tuned model."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from toolkit.questions.transplants.games import UNITS
from toolkit.questions.transplants.measure import DIFFERENCE, TOTAL, TRANSPLANT
from toolkit.questions.transplants.players import RANDOM, ROTATED
from toolkit.reporting.cells import estimate_of, number, spoken
from toolkit.reporting.charts import (
    COLOURS,
    REFERENCE,
    WIDTH,
    Chart,
    altair,
    around_zero,
    data_of,
    draw,
    intervals,
    panels,
    tips,
)
from toolkit.reporting.page import (
    Answers,
    Block,
    Case,
    ChartBlock,
    Page,
    Rows,
    Section,
    answer,
    folds,
    judged,
    rows_block,
    texts_section,
)

Tables = Mapping[str, pd.DataFrame]

PANEL = ["model", "task", "condition"]
KEY = [*PANEL, "direction", "coordinates"]
LIKELIHOOD, ACCURACY, R2 = UNITS
SUM = "sum: all - none"
AXES = {LIKELIHOOD: "log-likelihood per item (nats)", ACCURACY: "accuracy (points)", R2: "R² (points)"}
MARKS_OF_CHANGES = {
    TRANSPLANT: ("the tuned component, 95 % interval", "circle", COLOURS[0]),
    RANDOM: ("random changes of its size, row by row: mean, all draws", "square", REFERENCE),
    ROTATED: ("its own change in rotated directions: mean, all draws", "diamond", COLOURS[1]),
}
"""Kind of change of one component alone to what the legend says, its shape and its colour."""
QUESTION = "Which component's drift does the tuned model need, and would any change of its size do?"

WORTH = (
    "What the drift of each component is worth to the {} of the tuned model: exact Shapley values with 95 % intervals "
    "over seeds and items. Scales differ between panels."
)
CAPTIONS = {
    "shapley": WORTH.format("log-likelihood"),
    "shapley_accuracy": "The same for the accuracy.",
    "shapley_r2": WORTH.format("R²"),
    "random_changes": "Each tuned component alone in the embeddings from before, beside random changes of the same "
    "size, row by row and with all rows rotated alike: is it this drift, or any of its size?",
    "random_changes_r2": "The same by R².",
    "shapley_reverse": "The reverse: the tuned components in the body from before training, under a re-fitted probe.",
    "shapley_accuracy_reverse": "The same for the accuracy.",
    "random_changes_reverse": "The reverse: each tuned component alone beside random changes of the same size.",
}
CHECKED = (
    "Largest difference of any logit between the tuned model in the fixed gauge and as it is, and, as a control that "
    "no gauge allows, with the words multiplied by 1.1."
)
LIMITS = (
    "The body and the head were tuned together with these embeddings: v(S) asks what they are worth to this body, not "
    "what training without that drift would have reached. That is a run with the component frozen.",
    "Each interval is of one component; none is adjusted for how many there are.",
    "Log-likelihood is the first value because accuracy moves in whole items; both are on the scored items. Of a "
    "regression R² stands for both.",
)
RANDOM_LIMITS = (
    "Random changes row by row cancel out where many rows act together, as drift does not: a weak control. Rotated "
    "changes keep what the rows share and lose only where in the space it points. A component that is one vector has "
    "the first kind only. Neither keeps how a change lies to the main directions of the table.",
    "Where there are few random draws, their range is no interval, and not being distinguishable from them is no "
    "equality.",
)
ONE_SEED = "Of one seed an interval covers new items only, not new seeds: no share is given."
NOT_DRAWN = "No random changes were drawn (--num-draws)."
RAW = "In raw coordinates the split among the tables depends on offsets that no output shows."

DEFINITIONS = (
    "v(S): the mean over items of the log-likelihood of the label (or of being right, or of 1 minus the squared error "
    "over the variance of the targets, which is R²), in the body and under the head as tuned, with the components in S "
    "as tuned and the others as before training. v(none) is the tuned body on the embeddings from before.",
    "φ: the Shapley value (Shapley 1953), a component's mean gain over all orders in which they can be tuned; "
    "exact, over all 2^n coalitions. The φ add up to v(all) - v(none).",
    "fixed coordinates: for each token of the training run the sum of word, position and segment rows is taken apart "
    "into deviations W', P', S' from the tables' means and the sum m of the means (common offset), after removal of "
    "each row's own mean over coordinates, which LayerNorm removes anyway. Offsets between tables, which no output "
    "shows, thereby move nothing.",
    "inseparable rows: [CLS] and position 0 stand with each other only, so nothing can say which of them moved; they "
    "are one component and are left out of the means.",
    "interval: 95 %, over new seeds and new items at once (random-effects, Satterthwaite's degrees of freedom), of the "
    "items' own Shapley values.",
    "share: φ over the sum; given only where the interval of the sum, over several seeds, excludes 0.",
    "reverse: the tuned components in the body from before training, under a logistic regression on standardised "
    "pooled vectors that is fitted anew to each coalition's training items; v(none) is the model from before. Its "
    "penalty is chosen once per run, by cross-validated log loss on the features of none and of all together, so that "
    "no choice counts as a component's worth. Its training items are the same for every seed: the intervals do not "
    "cover another sample of them, and values of a few ten-thousandths may rest on it.",
    "random: the component from before with each row moved as far as training moved it, in a random direction (one "
    "vector for the offset, LayerNorm's weight and bias each).",
    "rotated: all rows' moves turned by one random rotation (uniform among all; of the embeddings, among those that "
    "keep rows' means over coordinates): each row's distance, the angle between any two moves and the singular values "
    "of the change are the real ones, its directions are not. All together are turned by the same one.",
)


def transplants_page(tables: Tables, *, title: str | None = None, command: str = "") -> Page:
    """What ``measure_transplants``'s tables say: shapley, singles, coalitions and checks."""
    tables = {name: spoken(table) for name, table in tables.items()}
    figures = _figures(tables)
    tasks = ", ".join(dict.fromkeys(map(str, tables["shapley"]["task"])))
    lead_figures = ("shapley", "shapley_r2", "shapley_reverse")
    picture = next((figures.pop(name) for name in lead_figures if name in figures), None)
    return Page(
        title=title if title is not None else f"What the drift is worth: {tasks}",
        question=QUESTION,
        answers=answers(tables),
        picture=picture,
        sections=tuple(_sections(tables, figures)),
        commands=command,
    )


def _sections(tables: Tables, figures: Mapping[str, ChartBlock]) -> Iterator[Section]:
    """The sections with something to show, from the tables and the figures that are not the page's picture."""
    cases = list(tables["shapley"].groupby(KEY, sort=False))
    caption = "Values of every component, 95 % intervals."
    names = [f"{name_of(key)}, {key[KEY.index('coordinates')]} coordinates" for key, _ in cases]
    details = [[rows_block(*shapley_rows(case_table), caption)] for _, case_table in cases]
    reverse = tuple(block for name, block in figures.items() if name.endswith("_reverse"))

    def blocks_of(*names: str) -> tuple[Block, ...]:
        return tuple(figures[name] for name in names if name in figures)

    alone_block = rows_block(*alone_rows(tables), "Each component alone against random changes of its size.")
    blocks: dict[tuple[str, str], tuple[Block, ...]] = {
        ("worth", "What is the drift worth, and which component's is it?"): (
            *folds(names, details),
            *blocks_of("shapley_accuracy", "shapley_r2"),
        ),
        ("random", "Is it this drift, or any of its size?"): (
            *blocks_of("random_changes", "random_changes_r2"),
            *((alone_block,) if len(tables["singles"]) else ()),
        ),
        ("reverse", "The reverse: tuned embeddings in the body from before"): reverse,
        ("gauge", "Does the gauge hold on these runs?"): (rows_block(*check_rows(tables), CHECKED),),
    }
    for (id, title), section_blocks in blocks.items():
        if section_blocks:
            yield Section(id=id, title=title, blocks=section_blocks)
    yield texts_section("limits", "What this cannot tell", caveats(tables))
    yield texts_section("definitions", "Definitions", DEFINITIONS)


def answers(tables: Tables) -> Answers:
    """Whether the score needs the drift, and whether any change of its size would do."""
    singles = _lines_in_points(tables["singles"])
    scores = set(tables["shapley"]["score"])
    score = "R²" if scores == {R2} else "accuracy"
    score += " (R² of regressions)" if scores > {R2} else ""
    worth_cases = (
        _worth_case(shapley, f"{name_of(key)}: ", _levels(tables["coalitions"], key))
        for key, shapley in tables["shapley"].groupby(KEY, sort=False)
    )
    size_cases = (
        _size_case(key, lines) for key, lines in singles[singles["component"] == TOTAL].groupby(KEY, sort=False)
    )
    return (
        answer(f"Does {score} need the drift of the embeddings?", worth_cases),
        answer("Is it this drift, more than any of its size?", size_cases, NOT_DRAWN),
    )


def _worth_case(shapley: pd.DataFrame, lead: str, levels: Sequence[object]) -> Case:
    """A case of the first answer: what all components together are worth, from no component tuned to all."""
    shapley = _lines_in_points(shapley).set_index("component")
    total = shapley.loc[TOTAL]
    before, tuned = (number(level) for level in levels)
    worth = f"{_signed(total, 2)} points, from {before} % with the old embeddings to {tuned} %"
    low, high = total["low"], total["high"]
    # Where nothing has moved, nothing is worth anything: that is known, whatever interval zeros have.
    if (shapley.drop(index=TOTAL)[["value", "low", "high"]] == 0).all(axis=None):
        low, high = 0.0, 0.0
    return judged(f"{lead}{worth}; 0 means no need.", low, high, total["note"], num_seeds=total["num_seeds"])


def _lines_in_points(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of accuracy or R²."""
    return table[table["score"].isin([ACCURACY, R2])]


def _lines_of_finest_score(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of log-likelihood, which does not move in whole items as accuracy does, or of R²."""
    return table[table["score"].isin([LIKELIHOOD, R2])]


def _size_case(key: Sequence[object], singles: pd.DataFrame) -> Case:
    """A case of the second answer. Rotated changes are the stronger control and judge, where there are any."""
    by_change = singles.set_index("change")
    minus_random = by_change.loc[DIFFERENCE[RANDOM]]
    minus_rotated = by_change.loc[DIFFERENCE[ROTATED]]
    text = (
        f"{name_of(key)}: the drift minus random changes of its size {_signed(minus_random, 2)} points, "
        f"minus its own in rotated directions {_signed(minus_rotated, 2)}; 0 means no more."
    )
    stronger = minus_random if pd.isna(minus_rotated["low"]) else minus_rotated
    return judged(
        text, stronger["low"], stronger["high"], stronger["note"] or stronger["reason"], num_seeds=stronger["num_seeds"]
    )


def _figures(tables: Tables) -> dict[str, ChartBlock]:
    """Name to chart, of those that have something to show; CAPTIONS has their names."""
    makers: dict[str, Any] = {}
    for direction, suffix in (("forward", ""), ("reverse", "_reverse")):
        directed = {name: table[table["direction"] == direction] for name, table in tables.items()}
        makers["shapley" + suffix] = partial(plot_shapley, directed["shapley"])
        makers["shapley_accuracy" + suffix] = partial(plot_shapley, directed["shapley"], ACCURACY)
        makers["random_changes" + suffix] = partial(plot_random_changes, directed["singles"])
    makers["shapley_r2"] = partial(plot_shapley, tables["shapley"], R2)  # a regression has no reverse
    makers["random_changes_r2"] = partial(plot_random_changes, tables["singles"], R2)
    return {
        name: ChartBlock(name=name, chart=chart, caption=CAPTIONS[name], alt=CAPTIONS[name])
        for name, chart in draw(makers).items()
    }


def name_of(key: Sequence[object]) -> str:
    """``minilm on sst2, full fine-tuning``; the reverse says so."""
    return f"{key[0]} on {key[1]}, {key[2]}" + (", reverse" if key[3] == "reverse" else "")


def _signed(record: "Mapping[str, Any] | pd.Series", digits: int = 4) -> str:
    """``+0.0123 (-0.001 to 0.02)``, in the unit of the record; ``0 exactly`` of what has not moved."""
    if record["value"] == record["low"] == record["high"] == 0:
        return "0 exactly"
    return estimate_of(record, digits, is_signed=True)


def _levels(coalitions: pd.DataFrame, key: Sequence[object]) -> list[object]:
    """v(none) and v(all) as accuracies or R², means over seeds."""
    lines = _lines_in_points(coalitions[(coalitions[KEY] == list(key)).all(axis=1)])
    means = lines.groupby("coalition")["value"].mean()
    return [means.get(name) for name in ("none", "all")]


def alone_rows(tables: Tables) -> Rows:
    """Header and rows: per case and component whether it does something else alone than random changes of its size.

    Where tasks have scores of different units, each cell names its own.
    """
    singles = _lines_of_finest_score(tables["singles"])
    units = list(dict.fromkeys(singles["unit"]))
    unit = ", ".join(units)
    header = [
        "case",
        "component",
        f"alone ({unit})",
        f"minus random ({unit})",
        "distinguishable?",
        f"minus rotated ({unit})",
        "distinguishable?",
    ]
    rows: list[list[object]] = []
    for (*key, name), lines in singles.groupby([*KEY, "component"], sort=False):
        record_of = {record["change"]: record for record in lines.to_dict("records")}
        suffix = f" {lines['unit'].iloc[0]}" if len(units) > 1 else ""
        cells: list[object] = []
        for difference in DIFFERENCE.values():
            record = record_of.get(difference, {"value": None})
            if pd.isna(record["value"]):
                cells += [None, None]
            else:
                is_distinguishable = record["low"] > 0 or record["high"] < 0
                cells += [_signed(record) + suffix, "yes" if is_distinguishable else "no"]
        rows.append([name_of(key), name, _signed(record_of[TRANSPLANT]) + suffix, *cells])
    return header, rows


def shapley_rows(lines: pd.DataFrame) -> Rows:
    """Header and rows of one case's components: both values with their 95 % intervals, and the share of the sum.

    Why there are no shares is the same for all of them, and stands at the sum.
    """
    tables_by_unit = {str(unit): table.set_index("component") for unit, table in lines.groupby("unit", sort=False)}
    finest = next(iter(tables_by_unit.values()))  # log-likelihood, or R² of a regression, which has no other
    rows: list[list[object]] = []
    for name in [*(component for component in finest.index if component != TOTAL), TOTAL]:
        record = finest.loc[name]
        cells = [_signed(table.loc[name], 2 if unit == "points" else 4) for unit, table in tables_by_unit.items()]
        share = "" if pd.isna(record["share"]) else f"{round(100 * record['share']) + 0}%"
        notes = finest["reason"].dropna().unique() if name == TOTAL else [record["note"]]
        note = "; ".join(str(text) for text in notes if not pd.isna(text))
        rows.append([SUM if name == TOTAL else str(name), *cells, share, note])
    return ["component", *(f"φ ({unit})" for unit in tables_by_unit), "share", "note"], rows


def check_rows(tables: Tables) -> Rows:
    """Header and rows: per run how far the gauge changes outputs, and what is to be known of it."""
    header = ["task", "regime", "seed", "direction", "items", "fixed against raw", "words x 1.1", "note"]
    facts = ["task", "condition", "seed", "direction", "num_items"]
    rows: list[list[object]] = []
    for record in tables["checks"].to_dict("records"):
        differences = [record["gauge_difference"], record["control_difference"]]
        cells = [None if pd.isna(difference) else difference for difference in differences]
        note = "" if pd.isna(record["note"]) else record["note"]
        rows.append([*(record.get(name) for name in facts), *cells, note])
    return header, rows


def caveats(tables: Tables) -> list[str]:
    """What the numbers do not say."""
    limits = (
        [*LIMITS, *(RANDOM_LIMITS if len(tables["singles"]) else ())]
        + ([ONE_SEED] if (tables["shapley"]["num_seeds"] == 1).any() else [])
        + ([RAW] if tables["shapley"]["coordinates"].eq("raw").any() else [])
    )
    notes = dict.fromkeys(note for note in tables["checks"]["note"].dropna() if note)
    return [*limits, *(f"Of some runs: {note}." for note in notes)]


def plot_shapley(shapley: pd.DataFrame, score: str = LIKELIHOOD) -> Chart | None:
    """A panel per task and regime: the Shapley value of each component with its interval, and their sum.

    ``shapley`` is that table of ``measure_transplants``, of one direction; ``score``: log-likelihood, accuracy or r2.
    """
    of_score = shapley[shapley["score"] == score]
    is_sum = of_score["component"] == TOTAL
    ordered = pd.concat([of_score[~is_sum], of_score[is_sum]])
    kind = ordered["component"].eq(TOTAL).map({True: "sum", False: "component"})
    return _forest(
        ordered.assign(label=ordered["component"].replace({TOTAL: SUM}), kind=kind),
        {"component": ("a component", "circle", COLOURS[0]), "sum": ("their sum", "diamond", COLOURS[1])},
        AXES[score],
    )


def plot_random_changes(singles: pd.DataFrame, score: str = LIKELIHOOD) -> Chart | None:
    """A panel per task and regime: each transplant alone beside random changes of its size.

    ``singles`` is that table of ``measure_transplants``, of one direction; ``score``: log-likelihood or r2. Random
    changes have the range of all draws.
    """
    defined = singles[
        (singles["score"] == score) & singles["change"].isin(list(MARKS_OF_CHANGES)) & singles["value"].notna()
    ]
    is_drawn = defined["change"] != TRANSPLANT
    bounds = {
        bound: defined[bound].where(~is_drawn, defined[extreme])
        for bound, extreme in (("low", "least"), ("high", "greatest"))
    }
    components = defined["component"].replace({TOTAL: "all together"})
    return _forest(
        defined.assign(label=components, kind=defined["change"], **bounds),
        MARKS_OF_CHANGES,
        f"change of {AXES[score]}",
        is_dodged=True,
    )


MAX_FOREST_WIDTH = 420
"""Pixels of a single panel, which is not wider than it needs to be."""
LETTER_WIDTH = 6.2
"""Pixels of a letter of a label, on average."""


def _forest(
    estimates: pd.DataFrame, kinds: Mapping[str, tuple[str, str, str]], title: str, *, is_dodged: bool = False
) -> Chart | None:
    """A panel per task and regime, a line per ``label``: estimates with their intervals; two panels side by side.

    ``kinds``: value of the column ``kind`` to what the legend says, its shape and its colour. ``is_dodged``: the kinds
    of one label stand below one another.
    """
    if not (estimates["value"].fillna(0) != 0).any():
        return None
    present = {kind: kinds[kind] for kind in kinds if (estimates["kind"] == kind).any()}
    legend_texts, shapes, colours = zip(*present.values(), strict=True)
    labels = list(dict.fromkeys(estimates["label"]))
    groups = list(estimates.groupby(PANEL, sort=False))
    num_columns = min(len(groups), 2)
    room = WIDTH - (LETTER_WIDTH * max(map(len, labels)) + 16)
    width = (room - 24 * (num_columns - 1)) / num_columns if num_columns > 1 else min(room, MAX_FOREST_WIDTH)
    size = {"width": width, "height": len(labels) * (13 * len(present) + 8 if is_dodged else 19)}
    hue = altair.Scale(domain=list(legend_texts), range=list(colours))
    marks = altair.Scale(domain=list(legend_texts), range=list(shapes))
    legend = altair.Legend(title=None, columns=1 if max(map(len, legend_texts)) > 30 else 3)
    shape = altair.Shape("what:N", scale=marks, legend=legend)
    # Beside the task, a panel's title names what is not the same in all panels.
    varying = [i for i, name in enumerate(PANEL) if name != "task" and len({key[i] for key, _ in groups}) > 1]
    dodge = altair.YOffset("what:N", scale=altair.Scale(domain=list(legend_texts))) if is_dodged else None
    charts = []
    for i, (key, panel_estimates) in enumerate(groups):
        bounds = zip(panel_estimates["low"], panel_estimates["high"], strict=True)
        data = panel_estimates.assign(
            what=panel_estimates["kind"].map({kind: legend_text for kind, (legend_text, *_) in present.items()}),
            interval=["none" if pd.isna(low) else f"{low:+.4g} to {high:+.4g}" for low, high in bounds],
        )
        is_first_column, is_last_row = i % num_columns == 0, i + num_columns >= len(groups)
        axis = altair.Axis(labels=is_first_column, domain=False, ticks=False, labelLimit=320)
        x = altair.X("value:Q", title=title if is_last_row else None, axis=altair.Axis(tickCount=4))
        base = altair.Chart(data_of(data, ["label", "what", "value", "low", "high", "interval"])).encode(
            y=altair.Y("label:N", sort=labels, title=None, scale=altair.Scale(domain=labels), axis=axis),
            color=altair.Color("what:N", scale=hue, legend=legend),
            tooltip=tips(label="component", what="what", value=(title, "+.4g"), interval="interval"),
            **({"yOffset": dodge} if is_dodged else {}),
        )
        dots = base.mark_point(filled=True, size=36, opacity=1).encode(x=x, shape=shape)
        notes = [f"seeds: {panel_estimates['num_seeds'].iloc[0]}", *(str(key[j]) for j in varying)]
        head = altair.Title(f"{key[PANEL.index('task')]}", subtitle=notes, limit=width)
        layers = [*around_zero(altair.Undefined, float("nan")), *intervals(base, x), dots]
        charts.append(altair.layer(*layers, title=head, **size))
    return panels(charts, num_columns)
