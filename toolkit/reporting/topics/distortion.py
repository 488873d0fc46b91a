"""How far fine-tuning distorted the features: movement, alignment of the head, first gradients."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.intervals import seeds_interval
from toolkit.reporting.cells import UNDEFINED, estimate_text
from toolkit.reporting.charts import WIDTH, Chart, altair, colour, data_of, intervals, panels, pick, shape, tips
from toolkit.reporting.page import (
    Answers,
    Case,
    Page,
    Rows,
    Section,
    answer,
    folds,
    judged,
    picture,
    rows_block,
    texts_section,
    wide_rows,
)

PLACE = ["model", "task", "measure", "place"]
MEANS = [*PLACE, "is_out_of_distribution", "condition", "num_seeds", "num_undefined", "mean", "low", "high", "note"]
"""Columns of :func:`arm_means`."""
DIFFERENCES = [*PLACE, "is_out_of_distribution", "first", "second", "num_seeds", "difference", "low", "high", "note"]
"""Columns of :func:`arm_differences`: first minus second."""

TITLE = "How far features were distorted"
QUESTION = (
    "How far does fine-tuning move the features that the head reads, and does a head that starts right spare them?"
)
DISTANCE = "relative_feature_distance"
SAID = {
    DISTANCE: "distance of the features, in spreads of the features before",
    "head_alignment": "cosine of the head at the start and the best linear one",
    "gradient_norm": "norm of the first gradient",
}
"""What is drawn and compared between regimes; everything is in the tables."""
UNRELATED = 2**0.5
"""Distance of features that have the spread of those before and nothing to do with them."""
NO_PAIR = "There are no two regimes that moved the features in two seeds or more."
CAPTION = (
    "How far the features of each split's texts moved, in spreads of the features before (√2: nothing to do with "
    "those before): mean over seeds, line: 95 % interval."
)

DEFINITIONS = (
    "feature_distance: mean over texts of the distance of the pooled features before and after; "
    "relative_feature_distance: √(Σ‖f' - f‖² / Σ‖f - f̄‖²), √2 where the features after have nothing to do with those "
    "before; shared_share: the part of the squared movement that all texts share.",
    "head_alignment: cosine, under the covariance of the features before, of the head that training of the backbone "
    "began with and the best linear head; start_loss and ceiling_loss: their losses. With LP-FT the head that the head "
    "stage ended with.",
    "gradient_norm: Euclidean norm of the gradient of the mean loss at step 0, in eval mode.",
    "Interval: 95 % of the mean over new seeds, Student's t; texts stay the same. None is adjusted for how many there "
    "are. Differences are paired by seed.",
)
LIMITS = ("Not distinguishable is not equal, and no interval is adjusted for how many there are.",)


def distortion_page(
    means: pd.DataFrame,
    differences: pd.DataFrame,
    *,
    title: str | None = None,
    command: str = "",
    caveats: Sequence[str] = (),
) -> Page:
    """What :func:`arm_means` and :func:`arm_differences` say; ``caveats``: what the runs do not, in sentences."""
    tasks = [(f"{model} on {task}", own) for (model, task), own in means.groupby(["model", "task"], sort=False)]
    names = [name for name, _ in tasks]
    apart = [[rows_block(*apart_rows(own, differences), "First minus second, paired by seed.")] for _, own in tasks]
    every = [[rows_block(*mean_rows(own), "Mean over seeds (95 % interval).")] for _, own in tasks]
    return Page(
        title=title or TITLE,
        question=QUESTION,
        answers=answers(means, differences),
        picture=picture("feature_distance", plot_distortion(means), CAPTION),
        sections=(
            Section(id="differences", title="Which regimes differ?", blocks=folds(names, apart)),
            Section(id="means", title="All quantities", blocks=folds(names, every)),
            texts_section("limits", "What this cannot tell", [*caveats, *LIMITS]),
            texts_section("definitions", "Definitions", DEFINITIONS),
        ),
        commands=command,
    )


def answers(means: pd.DataFrame, differences: pd.DataFrame) -> Answers:
    """Whether features stay nearer than unrelated ones, and whether regimes differ, on the first split of each task."""
    far = means[means["measure"] == DISTANCE]
    far = far[far["place"] == far.groupby(["model", "task"])["place"].transform("first")]
    apart = _comparable(means, differences).merge(far[PLACE].drop_duplicates())
    moved = far[far["mean"] != 0].to_dict("records")
    return (
        answer("Are features nearer to those before than unrelated ones?", map(_near, moved), "No features moved."),
        answer("Does one regime move features farther than another?", map(_apart, apart.to_dict("records")), NO_PAIR),
    )


def _near(line: Mapping[Any, Any]) -> Case:
    text = f"{line['model']} on {line['task']}, {line['condition']}: "
    text += estimate_text(*(line[name] for name in ("mean", "low", "high")))
    text += f" spreads on {line['place']}; unrelated ones are at {UNRELATED:.3f}."
    return judged(text, UNRELATED - line["high"], UNRELATED - line["low"], line["note"])


def _apart(line: Mapping[Any, Any]) -> Case:
    text = f"{line['model']} on {line['task']}, {line['first']} minus {line['second']}: "
    text += f"{cell_text(line, 'difference')} spreads on {line['place']}; 0 means no difference."
    return judged(text, line["low"], line["high"], below="yes")


def arm_means(table: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds of every measure, place and condition with Student's t interval, columns MEANS."""
    lines = []
    for key, own in table.groupby([*PLACE, "condition"], sort=False):
        lines.append(_line(key, own) | _mean(own["value"].to_numpy(float), own["reason"]))
    return pd.DataFrame(lines, columns=MEANS)


def arm_differences(table: pd.DataFrame) -> pd.DataFrame:
    """First minus second of every two conditions, paired by seed, of every measure and place; columns DIFFERENCES."""
    lines = []
    for key, own in table.groupby(PLACE, sort=False):
        values = own.pivot(index="seed", columns="condition", values="value")[list(dict.fromkeys(own["condition"]))]
        for first, second in combinations(values, 2):
            found = _mean((values[first] - values[second]).dropna().to_numpy(float), own["reason"].iloc[:0])
            found["difference"] = found.pop("mean")
            lines.append(_line(key, own) | found | {"first": first, "second": second})
    return pd.DataFrame(lines, columns=DIFFERENCES)


def _line(key: Any, own: pd.DataFrame) -> dict[str, Any]:
    names = [*PLACE, "condition"][: len(key)]
    return dict(zip(names, key, strict=True)) | {"is_out_of_distribution": own["is_out_of_distribution"].iloc[0]}


def _mean(values: Any, reasons: "pd.Series") -> dict[str, Any]:
    defined = values[~np.isnan(values)]
    found = seeds_interval(defined)
    undefined = len(values) - len(defined)
    reason = next((each for each in reasons if each), "")
    ends = {"mean": found.estimate, "low": found.low, "high": found.high}
    return {"num_seeds": len(defined), "num_undefined": undefined, **ends, "note": reason if undefined else found.note}


def _comparable(means: pd.DataFrame, differences: pd.DataFrame) -> pd.DataFrame:
    """Differences of what is compared, with an interval; without what was frozen, which is bound to differ."""
    frozen = means[(means["mean"] == 0) & means["low"].isna()]
    still = pd.MultiIndex.from_frame(frozen[[*PLACE, "condition"]])
    own = differences[differences["measure"].isin(list(SAID)) & differences["low"].notna()]
    sides = [pd.MultiIndex.from_frame(own[[*PLACE, side]]) for side in ("first", "second")]
    return own[~(sides[0].isin(still) | sides[1].isin(still))]


def apart_rows(means: pd.DataFrame, differences: pd.DataFrame) -> Rows:
    """Header and rows of one task: the differences of what is compared, and whether they are distinguishable from 0."""
    known = _comparable(means, differences).merge(means[["model", "task"]].drop_duplicates())
    rows: list[list[object]] = [
        [
            SAID[line["measure"]],
            *(line[name] for name in ("place", "first", "second")),
            cell_text(line, "difference"),
            "yes" if line["low"] > 0 or line["high"] < 0 else "no",
            int(line["num_seeds"]),
        ]
        for line in known.to_dict("records")
    ]
    return ["measure", "place", "first", "second", "difference", "distinguishable?", "seeds"], rows


def mean_rows(means: pd.DataFrame) -> Rows:
    """Header and rows of one task: per quantity and place a row, per regime a column."""
    arms, rows = wide_rows(means, ["measure", "place"], "condition", cell_text)
    return ["measure", "place", *arms], rows


def cell_text(line: Any, column: str = "mean") -> str:
    """A mean, or a difference with its sign, and its interval; why there is none."""
    value, low, high = (float(line[name]) for name in (column, "low", "high"))
    if value != value:
        return f"{UNDEFINED} ({line['note']})" if line["note"] else UNDEFINED
    return estimate_text(value, low, high, is_signed=column == "difference")


def plot_distortion(means: pd.DataFrame) -> Chart | None:
    """A panel per task: how far the features of each split moved, a mark per regime; None where none moved.

    ``means`` is :func:`arm_means`'s table.
    """
    own = means[(means["measure"] == DISTANCE) & means["mean"].notna()]
    if not (own["mean"] > 0).any():
        return None
    arms, places = list(dict.fromkeys(own["condition"])), list(dict.fromkeys(own["place"]))
    picker = pick("condition", arms, "Regime")
    hue, marks = colour("condition", arms), shape("condition", arms)
    said = tips(place="split", condition="regime", mean=("distance", ".3f"), interval="95 % interval")
    x = altair.X("mean:Q", title="distance (spreads before)", scale=altair.Scale(zero=True))
    grouped = list(own.groupby(["model", "task"], sort=False))
    columns = min(len(grouped), 2)
    size = {"width": (WIDTH - 90 * columns) // columns, "height": len(places) * (13 * len(arms) + 6)}
    drawn = []
    for (model, task), lines in grouped:
        ends = zip(lines["low"], lines["high"], strict=True)
        shown = lines.assign(interval=["none" if low != low else f"{low:.3f} to {high:.3f}" for low, high in ends])
        base = altair.Chart(data_of(shown, ["place", "condition", "mean", "low", "high", "interval"])).encode(
            y=altair.Y("place:N", sort=places, title=None, axis=altair.Axis(domain=False, ticks=False)),
            yOffset=altair.YOffset("condition:N", scale=altair.Scale(domain=arms)),
            color=hue,
            opacity=picker.opacity,
            tooltip=said,
        )
        dots = base.mark_point(filled=True, size=36).encode(x=x, shape=marks)
        layers = [*intervals(base, x), dots]
        drawn.append(altair.layer(*layers, title=f"{model} on {task}", **size))
    return panels(drawn, columns, picker)
