"""The tables of a group in, the Markdown table of each section of the report out."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.reporting import markdown
from toolkit.reporting.arms import Arm, differing_settings
from toolkit.reporting.comparison import last_score
from toolkit.reporting.markdown import NOT_APPLICABLE, mean_and_sd
from toolkit.reporting.tables import RANKINGS, GroupTables, ordered_strata

SCORES = ("accuracy", "macro_f1", "matthews", "pearson", "spearman", "loss")


def scores_table(tables: GroupTables) -> str:
    """Rows: score of a split; columns: arms, each as before training → at the last epoch, and which runs failed."""
    arms, baselines = tables.group.arms, tables.baselines
    header = ["split", "score", "examples", "majority class", *(arm.label for arm in arms)]
    rows = []
    for split in ordered_splits(tables):
        own = baselines[baselines["split"] == split]
        for score in (name for name in SCORES if name in tables.scores):
            rate = mean_and_sd(own["majority_rate"].unique()) if score == "accuracy" else NOT_APPLICABLE
            cells = [_score_cell(arm, split, score, own) for arm in arms]
            rows.append([split, score, _span(own["num_examples"]), _applicable(rate), *cells])
    return markdown.table(header, rows)


def ordered_splits(tables: GroupTables) -> list[str]:
    """Labelled splits, the reported one first."""
    reported = {run.reported_split for run in tables.group.runs}
    return sorted(dict.fromkeys(tables.baselines["split"]), key=lambda split: split not in reported)


def _applicable(text: str) -> str:
    return NOT_APPLICABLE if text.startswith(markdown.UNDEFINED) else text


def _score_cell(arm: Arm, split: str, score: str, baselines: pd.DataFrame) -> str:
    first = mean_and_sd(last_score(run, split, score, at="first") for run in arm.runs)
    last = mean_and_sd(last_score(run, split, score) for run in arm.runs)
    failed = int(baselines.loc[baselines["run"].isin(arm.names), "is_failed"].sum())
    flag = f" (failed: {failed} of {len(arm.runs)})" if failed and score == "accuracy" else ""
    return f"{first} → {last}{flag}"


def ceiling_table(tables: GroupTables) -> str | None:
    """The best that any linear head could do on the frozen features, beside what was reached; None without one."""
    rows, labelled = [], set(tables.baselines["split"])
    for arm in tables.group.arms:
        ceilings: list[dict[str, dict[str, float]]] = [
            run.run.manifest["convex_ceiling"] for run in arm.runs if run.run.manifest.get("convex_ceiling")
        ]
        names = dict.fromkeys((split, score) for each in ceilings for split in each for score in each[split])
        for split, score in ((s, k) for s, k in names if s in labelled and k in SCORES and k != "loss"):
            values = _floats(each[split][score] for each in ceilings if score in each.get(split, {}))
            reached = mean_and_sd(last_score(run, split, score) for run in arm.runs)
            rows.append([arm.label, split, score, mean_and_sd(values), reached])
    return markdown.table(["regime", "split", "score", "convex ceiling", "reached"], rows) if rows else None


def _floats(values: Iterable[float | None]) -> list[float]:
    return [np.nan if value is None else float(value) for value in values]


def comparison_table(tables: GroupTables) -> str:
    """One line per split, pair and seed, and one for the mean over seeds."""
    table = tables.comparison
    score = tables.group.runs[0].score
    header = ["split", "full fine-tuning minus", "seed", "items", f"difference in {score} (points)"]
    header += ["only the first right", "only the other right", "difference in accuracy (points)", "McNemar p", "note"]
    rows: list[list[object]] = []
    for (split, _, second), lines in table.groupby(["split", "first", "second"], sort=False):
        for line in lines.itertuples():
            counts = [_count(line.num_only_first_right), _count(line.num_only_second_right)]
            p = NOT_APPLICABLE if pd.isna(line.mcnemar_p) else markdown.p_value(line.mcnemar_p)
            points = [_points([line.difference_points]), *counts, _points([line.accuracy_difference_points])]
            rows.append([split, second, str(line.seed), _count(line.num_items), *points, p, line.note])
        usable = lines[lines["note"] == ""]
        if len(usable) > 1:
            means = [_points(usable["difference_points"]), "", "", _points(usable["accuracy_difference_points"])]
            rows.append([split, second, f"mean of {len(usable)}", "", *means, "", ""])
    return markdown.table(header, rows)


def other_differences(tables: GroupTables) -> list[str]:
    """One sentence per compared pair whose settings differ in more than the regime."""
    arms = tables.group.arms
    pairs = [(a, b, differing_settings(a, b)) for a in arms if a.is_full for b in arms if not b.is_full]
    return [
        f"{markdown.escape(a.label)} and {markdown.escape(b.label)} differ, besides the regime, in "
        f"{markdown.listing([name.replace('_', ' ') for name in names])}."
        for a, b, names in pairs
        if names
    ]


def _count(value: Any) -> str:
    return NOT_APPLICABLE if pd.isna(value) else f"{int(value):,}"


def _points(values: Iterable[Any]) -> str:
    numbers = pd.to_numeric(pd.Series(list(values)))
    if numbers.isna().all():
        return NOT_APPLICABLE
    spread = f" ± {numbers.std(ddof=1):.2f}" if len(numbers) > 1 else ""
    return f"{numbers.mean():+.2f}{spread}"


def drift_table(tables: GroupTables) -> str:
    """One line per parameter and arm: the whole parameter's drift at the last epoch beside its re-initialisation."""
    header = [
        "parameter",
        "regime",
        "relative drift",
        "re-initialised (yardstick)",
        "share of the yardstick (%)",
        "‖Δ‖",
    ]
    rows: list[list[object]] = []
    for parameter in EMBEDDING_PARAMETERS:
        for arm in tables.group.arms:
            if not arm.has(parameter):
                rows.append([parameter, arm.label, None, None, None, None])
                continue
            relative, yardstick = (_last(tables, arm, parameter, "relative", s) for s in ("value", "reinitialised"))
            norm = _last(tables, arm, parameter, "norm", "value")
            proven = " (bit-identical)" if arm.is_proven_frozen(parameter) and (norm == 0).all() else ""
            share = mean_and_sd(100 * relative / yardstick)
            cells = [mean_and_sd(relative) + proven, mean_and_sd(yardstick), share, mean_and_sd(norm)]
            rows.append([parameter, arm.label, *cells])
    return markdown.table(header, rows)


def _last(tables: GroupTables, arm: Arm, parameter: str, measure: str, statistic: str) -> np.ndarray:
    lines = tables.whole(arm, parameter, measure, statistic)
    values: np.ndarray = lines.groupby("run", sort=False)["value"].last().reindex(arm.names).to_numpy(np.float64)
    return values


def strata_table(tables: GroupTables, parameter: str) -> str:
    """One line per stratum and arm of a table's rows at the last epoch; statistics are means over seeds."""
    assert parameter in TABLES
    if not any(arm.has(parameter) for arm in tables.group.arms):
        return f"Not applicable: this model has no {parameter}."
    header = ["stratum", "regime", "rows", "median ‖Δ‖", "greatest ‖Δ‖", "median relative", "median angle (degrees)"]
    header += ["median radial change"]
    columns = [("norm", "median"), ("norm", "max"), *((m, "median") for m in ("relative", "angle_degrees", "radial"))]
    parts = [(arm, tables.of(arm, parameter)) for arm in tables.group.arms]
    found = ordered_strata(stratum for _, lines in parts for stratum in lines["stratum"])
    rows: list[list[object]] = []
    for stratum in (s for s in found if s != "whole parameter"):
        for arm, lines in parts:
            own = lines[lines["stratum"] == stratum]
            if len(own):
                cells = [_statistic(own, *column) for column in columns]
                rows.append([stratum, arm.label, _span(own["num_rows"]), *cells])
    return markdown.table(header, rows)


def _statistic(lines: pd.DataFrame, measure: str, statistic: str) -> str:
    own = lines[(lines["measure"] == measure) & (lines["statistic"] == statistic)]
    text = mean_and_sd(own["value"])
    undefined = own["num_undefined"].sum()
    return text if not undefined else f"{text} ({undefined} of {own['num_rows'].sum()} rows undefined)"


def _span(values: pd.Series) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def token_tables(tables: GroupTables) -> list[tuple[str, str]]:
    """For each arm its name and the two rankings of the tokens that moved most, side by side, of its first seed."""
    return [(_token_title(arm), _token_table(tables, arm)) for arm in tables.group.arms]


def _token_title(arm: Arm) -> str:
    return markdown.escape(f"{arm.label}, seed {arm.runs[0].config.seed}")


def _token_table(tables: GroupTables, arm: Arm) -> str:
    if not arm.has("word_embeddings"):
        return "Not applicable: this model has no word_embeddings."
    own = tables.tokens[tables.tokens["run"] == arm.runs[0].name]
    if own.empty:
        words = tables.words[tables.words["run"] == arm.runs[0].name]
        known = pd.to_numeric(words["num_steps"]).notna().any()
        return "No row seen in training moved." if known else "Not applicable: exposure was not recorded."
    sides = [own[own["ranking"] == ranking].to_dict("records") for ranking in RANKINGS]
    header = ["rank", "by ‖Δ‖: token", "‖Δ‖", "steps", "tokens", "by angle: token", "degrees", "steps", "tokens"]
    rows = []
    for i in range(max(len(side) for side in sides)):
        cells: list[object] = [i + 1]
        for ranking, side in zip(RANKINGS, sides, strict=True):
            cells += _token_cells(side[i], ranking) if i < len(side) else [""] * 4
        rows.append(cells)
    return markdown.table(header, rows)


def _token_cells(line: dict[str, Any], ranking: str) -> list[object]:
    token = str(line["token"]) or f"(row {line['row']})"
    return [token, float(line[ranking]), int(line["num_steps"]), int(line["num_tokens"])]
