"""Every table that follows from the evidence of a report, each computed once, when it is first asked for."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from toolkit.analysis.drift import after_start
from toolkit.analysis.strata import POSITION_STRATA, WORD_STRATA
from toolkit.analysis.word_rows import WordRows
from toolkit.comparison.compare import Settings, compare_groups, compare_seeds, lines_of_pairs
from toolkit.comparison.conditions import Condition, Group, Pairs, ReportedRun, of_largest_size
from toolkit.comparison.drift_and_score import associate_drift, join_groups
from toolkit.comparison.evidence import Evidence
from toolkit.comparison.shuffled_labels import contrast
from toolkit.comparison.summaries import (
    last_scores,
    measure_cost,
    summarise_floors,
    summarise_scores,
)
from toolkit.progress import say

LEAD = ("run", "model", "task", "regime", "seed")
"""Leading columns of every table of several runs."""

STRATA = tuple(dict.fromkeys((*WORD_STRATA, *POSITION_STRATA)))
"""Strata in the order of every table; segments follow in the order of their rows."""


@dataclass(frozen=True, eq=False)
class GroupTables:
    """All tables on the embeddings of one group.

    Each table is led by LEAD. ``moved`` is `measure_beyond_noise` of every run; ``drift`` `measure_drift`; the tables
    of single rows are of the first seed of each condition. Empty is what was not kept.
    """

    group: Group
    moved: pd.DataFrame
    drift: pd.DataFrame
    scores: pd.DataFrame
    baselines: pd.DataFrame
    """One row per run and labelled split: examples, majority-class rate, right answers at the last epoch, is_failed."""
    boxes: pd.DataFrame
    """How far word rows moved: per stratum the number of rows and of those that moved, and quantiles of these."""
    dots: pd.DataFrame
    """The moved rows of the strata that have few of them."""
    exposed: pd.DataFrame
    """One line per condition: words that training exposed and did not, and what weight decay leaves of the latter."""
    positions: pd.DataFrame
    """`measure_rows` of the position rows at the last epoch, with `position`."""
    tokens: pd.DataFrame

    def relative_drift(self, condition: Condition, parameter: str, of: str = "") -> NDArray[np.float64]:
        """(runs,) relative drift of a whole parameter at the last epoch; exactly 0 where it did not move.

        ``of``: ``exposed_`` takes the rows alone that training exposed, NaN where it is not known which they are.
        """
        drifts = self._relative_drifts[of]
        return np.array([drifts.get((name, parameter), np.nan) for name in condition.names], np.float64)

    @cached_property
    def _relative_drifts(self) -> dict[str, dict[tuple[str, str], float]]:
        """Of the whole parameter ("") and of its exposed rows: run and parameter to relative drift at the end."""
        moved, drifts = self.moved, {}
        for of in ("", "exposed_"):
            values = moved[f"{of}relative_drift"].astype(float).where(moved["has_moved"].astype(bool), 0.0)
            drifts[of] = dict(zip(zip(moved["run"], moved["parameter"], strict=True), values, strict=True))
        return drifts

    def whole(self, condition: Condition, parameter: str, statistic: str = "value") -> pd.DataFrame:
        """Relative drift of a whole parameter in every run of a condition, at each snapshot after the first."""
        if self.drift.empty:
            return self.drift
        drift = self._relative
        is_chosen = (drift["parameter"] == parameter) & (drift["statistic"] == statistic)
        return drift[is_chosen & drift["run"].isin(condition.names)]

    @cached_property
    def _relative(self) -> pd.DataFrame:
        """Relative drift of whole parameters, of every run and snapshot after the first."""
        drift = after_start(self.drift)
        return drift[(drift["stratum"] == "whole parameter") & (drift["measure"] == "relative")]

    def of(self, condition: Condition, parameter: str) -> pd.DataFrame:
        """All statistics of one parameter in every run of a condition at its last epoch."""
        return at_last_epoch(
            self.drift[self.drift["run"].isin(condition.names) & (self.drift["parameter"] == parameter)]
        )

    def with_conditions(self, table: pd.DataFrame) -> pd.DataFrame:
        """One of these tables with ``condition``, by which charts tell its series apart."""
        bases = {name: condition.base for condition in self.group.conditions for name in condition.names}
        return table if table.empty else table.assign(condition=table["run"].map(bases))


def order_of(tables: Iterable[GroupTables]) -> list[str]:
    """The conditions of a report, each once, in the order that gives them the same colours in every chart."""
    return list(dict.fromkeys(condition.base for group_tables in tables for condition in group_tables.group.conditions))


class ReportData:
    """All numbers of a report, from its evidence alone.

    Parameters
    ----------
    evidence
        What was measured, or read.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        options = {name: float(evidence.settings[name]) for name in ("margin_points", "level", "alpha")}
        self.settings = Settings(**options)
        pairs = evidence.settings["pairs"]
        self.pairs: Pairs | None = None if pairs is None else [(first, second) for first, second in pairs]
        self.lines_of = lines_of_pairs(self.settings)

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.evidence.groups

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was named and is left out of the report, one sentence each."""
        return tuple(self.evidence.page.get("left_out", ()))

    @cached_property
    def tuning(self) -> pd.DataFrame | None:
        return self.evidence.tuning

    @property
    def runs(self) -> tuple[ReportedRun, ...]:
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return tuple(condition for group in self.groups for condition in group.conditions)

    @property
    def num_seeds(self) -> int:
        """The most seeds of any condition."""
        return max(len(condition.runs) for condition in self.conditions)

    @cached_property
    def comparison(self) -> pd.DataFrame:
        """``toolkit.compare``, with first_base and second_base, the labels without the number of training examples."""
        say("comparing scores")
        table = compare_groups(self.groups, self.pairs, self.settings, lines_of=self.lines_of)
        bases = {condition.label: condition.base for group in self.groups for condition in group.conditions}
        base_columns = {
            f"{side}_base": [bases.get(str(label), str(label)) for label in table[side]] for side in ("first", "second")
        }
        return table.assign(**base_columns)

    @cached_property
    def joined(self) -> pd.DataFrame:
        """``toolkit.join_drift``."""
        return join_groups(self.groups, drift=self.evidence.drift, lines_of=self.lines_of)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The headline score of every run on every labelled split at its last epoch: ``toolkit.last_scores``."""
        return last_scores(self.groups)

    @cached_property
    def seeds(self) -> pd.DataFrame:
        """``toolkit.compare_seeds``."""
        return compare_seeds(self.groups, pairs=self.pairs)

    @cached_property
    def summary(self) -> pd.DataFrame:
        return summarise_scores(self.groups)

    @cached_property
    def cost(self) -> pd.DataFrame:
        return measure_cost(self.groups)

    @cached_property
    def association(self) -> pd.DataFrame:
        return associate_drift(self.joined)

    @cached_property
    def labels(self) -> pd.DataFrame:
        """``toolkit.compare_with_shuffled`` of every condition that was also run with shuffled labels."""
        settings = self.settings
        return contrast(self.groups, self.evidence.labels, level=settings.level, alpha=settings.alpha)

    @cached_property
    def floors(self) -> pd.DataFrame:
        """``toolkit.summarise_floors``."""
        return summarise_floors(self.groups)

    @cached_property
    def duplicates(self) -> pd.DataFrame:
        """Near-duplicates of scored items among the training examples, removed: the mean count over runs per split.

        One line per task and split; empty where none were sought. Sizes and seeds draw other training examples.
        """
        records = [
            (group.title, run.model, run.task, split, float(count))
            for group in self.groups
            for run in group.runs
            for split, count in (run.part("task").get("num_near_duplicates") or {}).items()
        ]
        keys, name = ["group", "model", "task", "split"], "num_near_duplicates"
        counts = pd.DataFrame(records, columns=[*keys, name]).groupby(keys, sort=False)[name]
        return counts.agg(num_near_duplicates="mean", num_runs="size").reset_index()

    @cached_property
    def details(self) -> tuple[GroupTables, ...]:
        """Drift, scores over epochs and rows of each group, of the most training examples."""
        return tuple(self._collect(of_largest_size(group)) for group in self.groups)

    def _collect(self, group: Group) -> GroupTables:
        """The tables of one group, each led by LEAD."""
        evidence, leads = self.evidence, {run.name: run.lead() for run in group.runs}

        def group_part(table: pd.DataFrame) -> pd.DataFrame:
            if not len(table.columns):
                return table
            part = table[table["run"].isin(leads)].reset_index(drop=True)
            lead_columns = {name: [leads[run][name] for run in part["run"]] for name in LEAD}
            return pd.concat([pd.DataFrame(lead_columns, index=part.index), part.drop(columns="run")], axis=1)

        score_table = group_part(evidence.scores)
        return GroupTables(
            group=group,
            moved=group_part(evidence.drift),
            drift=group_part(evidence.strata),
            scores=score_table.dropna(axis="columns", how="all") if len(score_table) else score_table,
            baselines=_baselines(group),
            **{
                name: group_part(getattr(evidence, name))
                for name in ("boxes", "dots", "exposed", "positions", "tokens")
            },
        )

    @property
    def words(self) -> list[tuple[str, WordRows]]:
        """The words of each condition whose word rows moved, under its label, with the group's if there are several."""
        counts, rows = self.evidence.word_counts, self.evidence.words
        words_of_conditions = []
        for record in counts.to_dict("records"):
            label = record["condition"] if len(self.groups) == 1 else f"{record['group']}: {record['condition']}"
            if record["reason"]:
                table = pd.DataFrame()
            else:
                table = rows[(rows["group"] == record["group"]) & (rows["condition"] == record["condition"])]
                count_types = dict.fromkeys(("num_steps", "num_tokens"), "Int64")
                table = table.drop(columns=["group", "condition"]).astype(count_types).reset_index(drop=True)
            numbers = {name: int(record[name]) for name in ("num_seen", "num_unseen", "num_epochs")}
            words_of_conditions.append((str(label), WordRows(table, **numbers, reason=str(record["reason"]))))
        return words_of_conditions


def at_last_epoch(table: pd.DataFrame) -> pd.DataFrame:
    """The records of each run's last epoch."""
    return table[table["epoch"] == table.groupby("run")["epoch"].transform("max")]


def _baselines(group: Group) -> pd.DataFrame:
    """Per run and labelled split its examples, and for classes the majority rate and the right answers at the end."""
    records = []
    for run in group.runs:
        for split in run.splits:
            record = run.lead() | {"split": split, "num_examples": run.num_items(split)}
            record |= {"majority_rate": np.nan, "num_right": np.nan, "is_failed": None}
            if split in run.answers and not run.is_regression:
                record |= {"majority_rate": run.majority_rate(split), "num_right": run.counts_of_right(split)[0]}
                record |= {"is_failed": run.shows_nothing_learned(split)}
            records.append(record)
    columns = [*LEAD, "split", "num_examples", "majority_rate", "num_right", "is_failed"]
    return pd.DataFrame(records, columns=columns).astype({"is_failed": "boolean"})


def strata_table(drift: pd.DataFrame) -> pd.DataFrame:
    """Row strata at each run's last epoch: one line per stratum, one column per measure and statistic."""
    if drift.empty:
        return drift
    strata = at_last_epoch(drift)
    strata = strata[(strata["stratum"] != "whole parameter") & ~strata["parameter"].str.startswith("LayerNorm")]
    strata = strata.assign(column=strata["measure"] + "_" + strata["statistic"])
    index = [*LEAD, "epoch", "parameter", "stratum"]
    wide = strata.set_index([*index, "column"])["value"].unstack("column")
    counts = strata.groupby(index, sort=False).agg(
        num_rows=("num_rows", "first"), num_undefined=("num_undefined", "max")
    )
    return counts.join(wide[list(dict.fromkeys(strata["column"]))]).reset_index()


def ordered_strata(found: Iterable[str]) -> list[str]:
    """Strata that were found, in the order of every table."""
    distinct = list(dict.fromkeys(found))
    return [stratum for stratum in STRATA if stratum in distinct] + [
        stratum for stratum in distinct if stratum not in STRATA
    ]
