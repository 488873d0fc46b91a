"""The runs of a group in, blocks on their scores out: over epochs, the convex ceiling, and what differs in a pair."""

from collections.abc import Iterable

import numpy as np

from toolkit.analysis.comparison.arms import Arm, differing_settings
from toolkit.analysis.comparison.pairs import pair_arms
from toolkit.analysis.comparison.reported import last_score
from toolkit.reporting.blocks import rows_block
from toolkit.reporting.markdown import listing, mean_and_sd, span
from toolkit.reporting.page.model import Block
from toolkit.reporting.report_data import ReportData
from toolkit.reporting.tables import GroupTables

SCORES = ("accuracy", "macro_f1", "matthews", "pearson", "spearman", "loss")


def training_block(tables: GroupTables) -> Block:
    """Rows: score of a split; columns: arms, each as before training → at the last epoch."""
    arms, baselines = tables.group.arms, tables.baselines
    header = ["split", "score", "examples", *(arm.label for arm in arms)]
    rows = []
    for split in ordered_splits(tables):
        own = baselines[baselines["split"] == split]
        for score in (name for name in SCORES if name in tables.scores):
            cells = [_before_and_after(arm, split, score) for arm in arms]
            rows.append([split, score, span(own["num_examples"]), *cells])
    return rows_block(header, rows, f"Every score of {tables.group.title}, before training → at the last epoch")


def _before_and_after(arm: Arm, split: str, score: str) -> str:
    values = (mean_and_sd(last_score(run, split, score, at=at) for run in arm.runs) for at in ("first", "last"))
    return " → ".join(values)


def ordered_splits(tables: GroupTables) -> list[str]:
    """Labelled splits, the reported one first."""
    reported = {run.reported_split for run in tables.group.runs}
    return sorted(dict.fromkeys(tables.baselines["split"]), key=lambda split: split not in reported)


def ceiling_block(tables: GroupTables) -> Block | None:
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
    if not rows:
        return None
    caption = f"Convex ceiling of {tables.group.title}: the best linear head on the same features"
    return rows_block(["arm", "split", "score", "convex ceiling", "reached"], rows, caption)


def _floats(values: Iterable[float | None]) -> list[float]:
    return [np.nan if value is None else float(value) for value in values]


def pair_caveats(data: ReportData) -> list[str]:
    """Sentences on pairs that differ in more than the regime, and on seeds that one side of a pair lacks."""
    differing: dict[tuple[str, str, str], list[str]] = {}
    for group in data.groups:
        compared = data.seeds.loc[data.seeds["group"] == group.title, ["first", "second"]].drop_duplicates()
        for pair in pair_arms(group, [(str(a), str(b)) for a, b in compared.to_numpy()]):
            names = [name.replace("_", " ") for name in differing_settings(pair.first, pair.second)]
            key = (pair.first.base or pair.first.label, pair.second.base or pair.second.label, listing(names))
            if names:
                differing.setdefault(key, []).append(group.title)
    sentences = [
        f"{first} and {second} differ, besides the regime, in {names}{_where(titles, len(data.groups))}."
        for (first, second, names), titles in differing.items()
    ]
    unpaired = data.seeds[data.seeds["split"] == ""]
    return sentences + [
        f"Seed {line.seed} of {line.first} and {line.second} is not compared: {line.note}."
        for line in unpaired.itertuples()
    ]


def _where(titles: list[str], num_groups: int) -> str:
    distinct = list(dict.fromkeys(titles))
    return f" ({listing(distinct)})" if len(distinct) < num_groups else ""
