"""What the drift of each embedding component is worth to the tuned model."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from toolkit.questions.transplants.games import UNITS
from toolkit.questions.transplants.measure import TOTAL
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
ALONE = {
    "transplant": ("the tuned component, 95 % interval", "circle", COLOURS[0]),
    "random": ("random changes of its size, row by row: mean, all draws", "square", REFERENCE),
    "rotated": ("its own change in rotated directions: mean, all draws", "diamond", COLOURS[1]),
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
    "interactions": "Shapley interaction index of every pair of components, 95 % intervals, not adjusted for their "
    "number: above 0 they do more together than apart.",
    "interactions_r2": "The same by R².",
    "shapley_reverse": "The reverse: the tuned components in the body from before training, under a re-fitted probe.",
    "shapley_accuracy_reverse": "The same for the accuracy.",
    "random_changes_reverse": "The reverse: each tuned component alone beside random changes of the same size.",
    "interactions_reverse": "The reverse: Shapley interaction index of every pair of components.",
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
    "interaction: the Shapley interaction index of a pair (Grabisch and Roubens 1999).",
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
    """What ``measure_transplants``'s tables say: shapley, interactions, singles, coalitions and checks."""
    tables = {name: spoken(table) for name, table in tables.items()}
    figures = _figures(tables)
    cases = list(tables["shapley"].groupby(KEY, sort=False))
    caption = "Values of every component, 95 % intervals."
    details = [[rows_block(*shapley_rows(lines), caption)] for _, lines in cases]
    names = [f"{name_of(key)}, {key[4]} coordinates" for key, _ in cases]
    tasks = ", ".join(dict.fromkeys(map(str, tables["shapley"]["task"])))
    heads = ("shapley", "shapley_r2", "shapley_reverse")
    picture = next((figures.pop(name) for name in heads if name in figures), None)
    reverse = tuple(block for name, block in figures.items() if name.endswith("_reverse"))

    def shown(*names: str) -> tuple[Block, ...]:
        return tuple(figures[name] for name in names if name in figures)

    alone = rows_block(*alone_rows(tables), "Each component alone against random changes of its size.")
    worth = rows_block(*worth_rows(tables), "All components together.")
    blocks: dict[tuple[str, str], tuple[Block, ...]] = {
        ("worth", "What is the drift worth?"): (worth, *shown("shapley_accuracy", "shapley_r2")),
        ("components", "Which component is it?"): folds(names, details),
        ("random", "Is it this drift, or any of its size?"): (
            *shown("random_changes", "random_changes_r2"),
            *((alone,) if len(tables["singles"]) else ()),
        ),
        ("pairs", "Do components need each other?"): shown("interactions", "interactions_r2"),
        ("reverse", "The reverse: tuned embeddings in the body from before"): reverse,
        ("gauge", "Does the gauge hold on these runs?"): (rows_block(*check_rows(tables), CHECKED),),
    }
    return Page(
        title=title if title is not None else f"What the drift is worth: {tasks}",
        question=QUESTION,
        answers=answers(tables),
        picture=picture,
        sections=(
            *(Section(id=id, title=title, blocks=own) for (id, title), own in blocks.items() if own),
            texts_section("limits", "What this cannot tell", caveats(tables)),
            texts_section("definitions", "Definitions", DEFINITIONS),
        ),
        commands=command,
    )


def answers(tables: Tables) -> Answers:
    """Whether the score needs the drift, and whether any change of its size would do."""
    cases, singles = tables["shapley"].groupby(KEY, sort=False), tables["singles"]
    alone = singles[(singles["component"] == TOTAL) & singles["score"].isin([ACCURACY, R2])].groupby(KEY, sort=False)
    score = "R²" if set(tables["shapley"]["score"]) == {R2} else "accuracy"
    score += " (R² of regressions)" if set(tables["shapley"]["score"]) > {R2} else ""
    needed = (_needed(own, f"{name_of(key)}: ", _levels(tables["coalitions"], key)) for key, own in cases)
    return (
        answer(f"Does {score} need the drift of the embeddings?", needed),
        answer("Is it this drift, more than any of its size?", (_beyond_size(*case) for case in alone), NOT_DRAWN),
    )


def _needed(own: pd.DataFrame, lead: str, levels: Sequence[object]) -> Case:
    own = _headline(own)
    line, ends = own.loc[TOTAL], own[["value", "low", "high"]]
    before, tuned = (number(level) for level in levels)
    text = f"{lead}{_nats(line, 2)} points, from {before} % with the old embeddings to {tuned} %; "
    low, high = (0.0, 0.0) if (ends.drop(index=TOTAL) == 0).all(axis=None) else (line["low"], line["high"])
    return judged(f"{text}0 means no need.", low, high, line["note"], num_seeds=line["num_seeds"])


def _headline(lines: pd.DataFrame) -> pd.DataFrame:
    """Of one case, accuracy or R², by component."""
    return lines[lines["score"].isin([ACCURACY, R2])].set_index("component")


def _finest(lines: pd.DataFrame) -> pd.DataFrame:
    """Of some cases, log-likelihood or R²."""
    return lines[lines["score"].isin([LIKELIHOOD, R2])]


def _beyond_size(key: Sequence[object], own: pd.DataFrame) -> Case:
    """Held against rotated changes, the stronger control, where there are any."""
    plain, rotated = (own.set_index("change").loc[name] for name in ("difference", "rotated difference"))
    text = (
        f"{name_of(key)}: the drift minus random changes of its size {_nats(plain, 2)} points, minus its own in "
        f"rotated directions {_nats(rotated, 2)}; 0 means no more."
    )
    held = plain if pd.isna(rotated["low"]) else rotated
    return judged(text, held["low"], held["high"], held["note"] or held["reason"], num_seeds=held["num_seeds"])


def _figures(tables: Tables) -> dict[str, ChartBlock]:
    """The charts that there is something to draw of, in the order of CAPTIONS."""
    makers: dict[str, Any] = {}
    for direction, suffix in (("forward", ""), ("reverse", "_reverse")):
        own = {name: table[table["direction"] == direction] for name, table in tables.items()}
        makers["shapley" + suffix] = partial(plot_shapley, own["shapley"])
        makers["shapley_accuracy" + suffix] = partial(plot_shapley, own["shapley"], ACCURACY)
        makers["random_changes" + suffix] = partial(plot_random_changes, own["singles"])
        makers["interactions" + suffix] = partial(plot_interactions, own["interactions"])
    makers["shapley_r2"] = partial(plot_shapley, tables["shapley"], R2)  # a regression has no reverse
    makers["random_changes_r2"] = partial(plot_random_changes, tables["singles"], R2)
    makers["interactions_r2"] = partial(plot_interactions, tables["interactions"], R2)
    return {
        name: ChartBlock(name=name, chart=chart, caption=CAPTIONS[name], alt=CAPTIONS[name])
        for name, chart in draw(makers).items()
    }


def name_of(key: Sequence[object]) -> str:
    """``minilm on sst2, full fine-tuning``; the reverse says so."""
    return f"{key[0]} on {key[1]}, {key[2]}" + (", reverse" if key[3] == "reverse" else "")


def _is_clear(lines: pd.DataFrame) -> "pd.Series":
    return (lines["low"] > 0) | (lines["high"] < 0)


def _nats(line: "Mapping[str, Any] | pd.Series", digits: int = 4) -> str:
    if line["value"] == line["low"] == line["high"] == 0:
        return "0 exactly"
    return estimate_of(line, digits, is_signed=True)


def worth_rows(tables: Tables) -> Rows:
    """Header and rows: per case what all components together are worth, and the components that are clear or 0."""
    scores = set(tables["shapley"]["score"])
    score = " or ".join(name for own, name in ((ACCURACY, "accuracy"), (R2, "R²")) if own in scores)
    header = [
        "case",
        "nats per item",
        f"{score} (points)",
        f"{score}: none",
        "all",
        "distinguishable from 0",
        "exactly 0",
        "because",
        "seeds",
        "items",
    ]
    rows: list[list[object]] = []
    for key, own in tables["shapley"].groupby(KEY, sort=False):
        finest, headline = _finest(own).set_index("component"), _headline(own)
        total, parts = finest.loc[TOTAL], finest.drop(index=TOTAL)
        clear = parts[_is_clear(parts)].sort_values("value", key=abs, ascending=False)
        still = parts[(parts["value"] == 0) & (parts["low"] == 0) & (parts["high"] == 0)]
        nats = "not applicable" if total["unit"] == "points" else _nats(total)
        cells: list[object] = (
            [nats, _nats(headline.loc[TOTAL], 2), *_levels(tables["coalitions"], key)]
            + [", ".join(map(str, found)) or "none" for found in (clear.index, still.index)]
            + ["; ".join(dict.fromkeys(map(str, still["note"])))]
        )
        rows.append([name_of(key), *cells, int(total["num_seeds"]), int(total["num_items"])])
    return header, rows


def _levels(coalitions: pd.DataFrame, key: Sequence[object]) -> list[object]:
    """v(none) and v(all) as accuracies or R², means over seeds."""
    own = coalitions[(coalitions[KEY] == list(key)).all(axis=1) & coalitions["score"].isin([ACCURACY, R2])]
    means = own.groupby("coalition")["value"].mean()
    return [means.get(name) for name in ("none", "all")]


def alone_rows(tables: Tables) -> Rows:
    """Header and rows: per case the components that do something else alone than random changes of their size."""
    singles = _finest(tables["singles"])
    units = list(dict.fromkeys(singles["unit"]))
    several, unit = len(units) > 1, ", ".join(units)
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
    for (*key, name), part in singles.groupby([*KEY, "component"], sort=False):
        lines = {line["change"]: line for line in part.to_dict("records")}
        own = f" {part['unit'].iloc[0]}" if several else ""
        cells: list[object] = []
        for kind in ("difference", "rotated difference"):
            line = lines.get(kind, {"value": None})
            is_known = not pd.isna(line["value"])
            cells += (
                [_nats(line) + own, "yes" if line["low"] > 0 or line["high"] < 0 else "no"] if is_known else [None] * 2
            )
        rows.append([name_of(key), name, _nats(lines["transplant"]) + own, *cells])
    return header, rows


def shapley_rows(lines: pd.DataFrame) -> Rows:
    """Header and rows of one case's components: both values with their 95 % intervals, and the share of the sum.

    Why there are no shares is the same for all of them, and stands at the sum.
    """
    scores = {str(unit): own.set_index("component") for unit, own in lines.groupby("unit", sort=False)}
    finest = next(iter(scores.values()))
    rows: list[list[object]] = []
    for name in [*(each for each in finest.index if each != TOTAL), TOTAL]:
        one = finest.loc[name]
        cells = [_nats(own.loc[name], 2 if unit == "points" else 4) for unit, own in scores.items()]
        share = "" if pd.isna(one["share"]) else f"{round(100 * one['share']) + 0}%"
        notes = finest["reason"].dropna().unique() if name == TOTAL else [one["note"]]
        note = "; ".join(str(each) for each in notes if not pd.isna(each))
        rows.append([SUM if name == TOTAL else str(name), *cells, share, note])
    return ["component", *(f"φ ({unit})" for unit in scores), "share", "note"], rows


def check_rows(tables: Tables) -> Rows:
    """Header and rows: per run how far the gauge changes outputs, what it cost, and what is to be known of it."""
    header = ["task", "regime", "seed", "direction", "passes", "random draws", "items", "fixed against raw"]
    names = ["task", "condition", "seed", "direction", "num_passes", "num_draws", "num_items"]
    rows: list[list[object]] = []
    for line in tables["checks"].to_dict("records"):
        ends = [line[name] for name in ("gauge_difference", "control_difference")]
        shown = [None if pd.isna(end) else end for end in ends]
        rows.append([*(line.get(name) for name in names), *shown, "" if pd.isna(line["note"]) else line["note"]])
    return [*header, "words x 1.1", "note"], rows


def caveats(tables: Tables) -> list[str]:
    """What the numbers do not say."""
    lines = (
        [*LIMITS, *(RANDOM_LIMITS if len(tables["singles"]) else ())]
        + ([ONE_SEED] if (tables["shapley"]["num_seeds"] == 1).any() else [])
        + ([RAW] if tables["shapley"]["coordinates"].eq("raw").any() else [])
    )
    notes = dict.fromkeys(note for note in tables["checks"]["note"].dropna() if note)
    return [*lines, *(f"Of some runs: {note}." for note in notes)]


def plot_shapley(shapley: pd.DataFrame, score: str = LIKELIHOOD) -> Chart | None:
    """A panel per task and regime: the Shapley value of each component with its interval, and their sum.

    ``shapley`` is that table of ``measure_transplants``, of one direction; ``score``: log-likelihood, accuracy or r2.
    """
    own = shapley[shapley["score"] == score]
    is_sum = own["component"] == TOTAL
    lines = pd.concat([own[~is_sum], own[is_sum]])
    kind = lines["component"].eq(TOTAL).map({True: "sum", False: "component"})
    return _forest(
        lines.assign(place=lines["component"].replace({TOTAL: SUM}), kind=kind),
        {"component": ("a component", "circle", COLOURS[0]), "sum": ("their sum", "diamond", COLOURS[1])},
        AXES[score],
    )


def plot_random_changes(singles: pd.DataFrame, score: str = LIKELIHOOD) -> Chart | None:
    """A panel per task and regime: each transplant alone beside random changes of its size.

    ``singles`` is that table of ``measure_transplants``, of one direction; ``score``: log-likelihood or r2. Random
    changes have the range of all draws.
    """
    own = singles[(singles["score"] == score) & singles["change"].isin(list(ALONE)) & singles["value"].notna()]
    is_drawn = own["change"] != "transplant"
    ends = {side: own[side].where(~is_drawn, own[end]) for side, end in (("low", "least"), ("high", "greatest"))}
    place = own["component"].replace({TOTAL: "all together"})
    return _forest(
        own.assign(place=place, kind=own["change"], **ends), ALONE, f"change of {AXES[score]}", is_apart=True
    )


def plot_interactions(interactions: pd.DataFrame, score: str = LIKELIHOOD) -> Chart | None:
    """A panel per task and regime: the interaction of every pair of components; below 0, they do the same thing.

    ``interactions`` is that table of ``measure_transplants``, of one direction; ``score``: log-likelihood or r2.
    """
    own = interactions[interactions["score"] == score]
    lines = own.assign(place=own["first"] + " x " + own["second"])
    lines["kind"] = _is_clear(lines).map({True: "clear", False: "open"})
    kinds = {
        "clear": ("interval excludes 0", "diamond", COLOURS[1]),
        "open": ("interval holds 0", "circle", COLOURS[0]),
    }
    return _forest(lines, kinds, AXES[score])


def _forest(
    lines: pd.DataFrame, kinds: Mapping[str, tuple[str, str, str]], title: str, *, is_apart: bool = False
) -> Chart | None:
    """A panel per task and regime, a line per place: estimates with their intervals; two panels beside each other.

    ``is_apart``: the kinds of one place stand below one another.
    """
    if not (lines["value"].fillna(0) != 0).any():
        return None
    shown = {kind: kinds[kind] for kind in kinds if (lines["kind"] == kind).any()}
    labels, shapes, colours = zip(*shown.values(), strict=True)
    places = list(dict.fromkeys(lines["place"]))
    longest = 6.2 * max(map(len, places)) + 16
    groups = list(lines.groupby(PANEL, sort=False))
    columns = min(len(groups), 2)
    width = (WIDTH - longest - 24 * (columns - 1)) / columns if columns > 1 else min(WIDTH - longest, 420)
    size = {"width": width, "height": len(places) * (13 * len(shown) + 8 if is_apart else 19)}
    hue, marks = (altair.Scale(domain=list(labels), range=list(values)) for values in (colours, shapes))
    legend = altair.Legend(title=None, columns=1 if max(map(len, labels)) > 30 else 3)
    shape = altair.Shape("what:N", scale=marks, legend=legend)
    others = [i for i, name in enumerate(PANEL) if name != "task" and len({key[i] for key, _ in groups}) > 1]
    shift = {"yOffset": altair.YOffset("what:N", scale=altair.Scale(domain=list(labels)))} if is_apart else {}
    drawn = []
    for i, (key, own) in enumerate(groups):
        ends = zip(own["low"], own["high"], strict=True)
        data = own.assign(
            what=own["kind"].map({kind: label for kind, (label, *_) in shown.items()}),
            interval=["none" if pd.isna(low) else f"{low:+.4g} to {high:+.4g}" for low, high in ends],
        )
        axis = altair.Axis(labels=i % columns == 0, domain=False, ticks=False, labelLimit=320)
        x = altair.X("value:Q", title=title if i + columns >= len(groups) else None, axis=altair.Axis(tickCount=4))
        base = altair.Chart(data_of(data, ["place", "what", "value", "low", "high", "interval"])).encode(
            y=altair.Y("place:N", sort=places, title=None, scale=altair.Scale(domain=places), axis=axis),
            color=altair.Color("what:N", scale=hue, legend=legend),
            tooltip=tips(place="component", what="what", value=(title, "+.4g"), interval="interval"),
            **shift,
        )
        dots = base.mark_point(filled=True, size=36, opacity=1).encode(x=x, shape=shape)
        said = [f"seeds: {own['num_seeds'].iloc[0]}", *(str(key[j]) for j in others)]
        head = altair.Title(f"{key[PANEL.index('task')]}", subtitle=said, limit=width)
        layers = [*around_zero(altair.Undefined, float("nan")), *intervals(base, x), dots]
        drawn.append(altair.layer(*layers, title=head, **size))
    return panels(drawn, columns)
