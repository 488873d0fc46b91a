"""The table of feature distortion in, its page out: report.md and the tables."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.comparison.intervals import seeds_interval
from toolkit.reporting import markdown
from toolkit.reporting.cells import interval
from toolkit.reporting.folder import report_folder, write_csvs, write_page

PLACE = ["model", "task", "quantity", "place"]
MEANS = [*PLACE, "is_out_of_distribution", "arm", "num_seeds", "num_undefined", "mean", "low", "high", "note"]
"""Columns of :func:`arm_means`."""
DIFFERENCES = [*PLACE, "is_out_of_distribution", "first", "second", "num_seeds", "difference", "low", "high", "note"]
"""Columns of :func:`arm_differences`: first minus second."""

SAID = {
    "relative_feature_distance": "features move by (in spreads of the features before)",
    "head_alignment": "the head at the start is aligned with the best linear one by",
    "gradient_norm": "the norm of the first gradient is",
}
"""What is put into words; everything is in the tables."""

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


def write_distortion_report(
    table: pd.DataFrame,
    out: str | Path,
    *,
    title: str | None = None,
    command: str | None = None,
    caveats: Sequence[str] = (),
) -> Path:
    """Write report.md and tables/ of ``measure_distortion``'s table with a column ``arm``; the path of report.md.

    ``caveats``: what the runs do not say, in sentences. ``command`` is shown as what makes the report again. ValueError
    as :func:`check_out`.
    """
    with report_folder(out) as folder:
        means, differences = arm_means(table), arm_differences(table)
        write_csvs(folder / "tables", {"distortion": table, "means": means, "differences": differences})
        parts = [f"# {markdown.escape(title or 'How far features were distorted')}", "## What was found"]
        parts.append(markdown.bullets(distortion_findings(means, differences)))
        parts += markdown.made_by(command)
        parts += ["## What this does not say", markdown.bullets(caveats)] if caveats else []
        for (model, task), own in means.groupby(["model", "task"], sort=False):
            parts += [f"## {markdown.escape(f'{model} on {task}')}", "Mean over seeds (95 % interval)."]
            parts.append(markdown.table(*mean_rows(own)))
        parts += ["## Definitions", markdown.bullets(DEFINITIONS)]
        write_page(folder, parts)
    return Path(out) / "report.md"


def arm_means(table: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds of every quantity, place and arm with Student's t interval, columns MEANS; undefined counted."""
    lines = []
    for key, own in table.groupby([*PLACE, "arm"], sort=False):
        lines.append(_line(key, own) | _mean(own["value"].to_numpy(float), own["note"]))
    return pd.DataFrame(lines, columns=MEANS)


def arm_differences(table: pd.DataFrame) -> pd.DataFrame:
    """First minus second of every two arms, paired by seed, of every quantity and place; columns DIFFERENCES."""
    lines = []
    for key, own in table.groupby(PLACE, sort=False):
        values = own.pivot(index="seed", columns="arm", values="value")[list(dict.fromkeys(own["arm"]))]
        for first, second in combinations(values, 2):
            found = _mean((values[first] - values[second]).dropna().to_numpy(float), own["note"].iloc[:0])
            found["difference"] = found.pop("mean")
            lines.append(_line(key, own) | found | {"first": first, "second": second})
    return pd.DataFrame(lines, columns=DIFFERENCES)


def _line(key: Any, own: pd.DataFrame) -> dict[str, Any]:
    names = [*PLACE, "arm"][: len(key)]
    return dict(zip(names, key, strict=True)) | {"is_out_of_distribution": own["is_out_of_distribution"].iloc[0]}


def _mean(values: Any, notes: "pd.Series") -> dict[str, Any]:
    defined = values[~np.isnan(values)]
    found = seeds_interval(defined)
    undefined = len(values) - len(defined)
    reason = next((note for note in notes if note), "")
    ends = {"mean": found.estimate, "low": found.low, "high": found.high}
    return {"num_seeds": len(defined), "num_undefined": undefined, **ends, "note": reason if undefined else found.note}


def mean_rows(means: pd.DataFrame) -> tuple[list[str], list[list[object]]]:
    """Header and rows of one task: per quantity and place a row, per arm a column."""
    arms = list(dict.fromkeys(means["arm"]))
    rows: list[list[object]] = []
    for (quantity, place), own in means.groupby(["quantity", "place"], sort=False):
        cells = own.set_index("arm")
        rows.append([quantity, place, *(_cell(cells.loc[arm]) if arm in cells.index else None for arm in arms)])
    return ["quantity", "place", *arms], rows


def distortion_findings(means: pd.DataFrame, differences: pd.DataFrame) -> list[str]:
    """Per quantity in SAID, task and place: every arm's mean, and which of those that moved are told apart."""
    lines = []
    for quantity, words in SAID.items():
        for (model, task, place), own in means[means["quantity"] == quantity].groupby(
            ["model", "task", "place"], sort=False
        ):
            shown = [f"{line['arm']} {_cell(line)}" for _, line in own.iterrows() if line["num_seeds"]]
            if len(shown) < 2:
                continue
            here = (differences[PLACE] == [model, task, quantity, place]).all(axis=1)
            still = own.loc[
                (own["mean"] == 0) & own["low"].isna(), "arm"
            ]  # what was frozen differs as a matter of course
            here &= ~(differences["first"].isin(still) | differences["second"].isin(still))
            lines.append(f"{model} on {task}, {place}: {words} {markdown.listing(shown)}{_apart(differences[here])}.")
    return lines or ["Nothing could be compared."]


def _apart(differences: pd.DataFrame) -> str:
    known = differences[differences["low"].notna()]
    parts = []
    for words, own in (
        ("told apart", known[(known["low"] > 0) | (known["high"] < 0)]),
        ("not told apart", known[(known["low"] <= 0) & (known["high"] >= 0)]),
    ):
        pairs = [f"{line['first']} minus {line['second']} {_cell(line, 'difference')}" for _, line in own.iterrows()]
        parts += [f"{words}: {', '.join(pairs)}"] if pairs else []
    return "; " + "; ".join(parts) if parts else ""


def _cell(line: "pd.Series", column: str = "mean") -> str:
    value, ends = line[column], interval(line["low"], line["high"], 3)
    if value != value:
        return f"{markdown.UNDEFINED} ({line['note']})" if line["note"] else markdown.UNDEFINED
    shown = f"{value:+.3f}" if column == "difference" else f"{value:.3f}"
    if ends == markdown.UNDEFINED:
        return shown
    return f"{shown} ({ends if column == 'difference' else ends.replace('+', '')})"
