"""A group of arms in, its tables out as DataFrames: drift, scores, baselines, rows by exposure, positions, tokens.

Drift and scores are of every run; single rows are of the first seed of each arm, which is where a report shows them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from toolkit.analysis.rows.drift import measure_drift
from toolkit.analysis.rows.rows import measure_rows
from toolkit.analysis.rows.strata import POSITION_STRATA, WORD_STRATA
from toolkit.comparison.arms import Arm, Group, ReportedRun

LEAD = ("run", "model", "task", "regime", "seed")
"""Leading columns of every table of several runs."""

STRATA = tuple(dict.fromkeys((*WORD_STRATA, *POSITION_STRATA)))
"""Strata in the order of every table; segments follow in the order of their rows."""

NUM_TOP_TOKENS = 20
RANKINGS = ("norm", "angle_degrees")
"""The measures by which the tokens that moved most are ranked."""


@dataclass(frozen=True)
class GroupTables:
    """Everything a report says of one group, in numbers."""

    group: Group
    drift: pd.DataFrame
    """`measure_drift` of every run."""
    scores: pd.DataFrame
    baselines: pd.DataFrame
    """One row per run and labelled split: examples, majority-class rate, right answers at the last epoch, is_failed."""
    words: pd.DataFrame
    """`measure_rows` of the word rows at the last epoch, of each arm's first seed; empty when the model has none."""
    positions: pd.DataFrame
    """The same of the position rows, with `position`."""
    tokens: pd.DataFrame

    def whole(self, arm: Arm, parameter: str, measure: str = "relative", statistic: str = "value") -> pd.DataFrame:
        """Lines of the whole parameter in every run and snapshot of an arm after epoch 0."""
        lines = self.drift[
            self.drift["run"].isin(arm.names)
            & (self.drift["parameter"] == parameter)
            & (self.drift["stratum"] == "whole parameter")
            & (self.drift["measure"] == measure)
            & (self.drift["statistic"] == statistic)
        ]
        return lines[lines["epoch"] > 0]

    def of(self, arm: Arm, parameter: str) -> pd.DataFrame:
        """Lines of one parameter in every run of an arm at its last epoch, by stratum, measure and statistic."""
        lines = self.drift[self.drift["run"].isin(arm.names) & (self.drift["parameter"] == parameter)]
        return at_last_epoch(lines)

    def with_arms(self, table: pd.DataFrame) -> pd.DataFrame:
        """One of these tables with ``arm``, by which charts tell its lines apart."""
        if table.empty:
            return table
        return table.assign(arm=table["run"].map({name: _base(arm) for arm in self.group.arms for name in arm.names}))

    @staticmethod
    def has_moved_rows(rows: pd.DataFrame, arm: Arm) -> bool:
        """Whether any row of an arm (of ``words`` or ``positions``) is not exactly as before."""
        return not rows.empty and bool((rows.loc[rows["run"].isin(arm.names), "norm"] > 0).any())


def _base(arm: Arm) -> str:
    return arm.base or arm.label


def order_of(tables: Iterable[GroupTables]) -> list[str]:
    """The arms of a report, each once: their order gives their colours, in every chart the same."""
    return list(dict.fromkeys(_base(arm) for own in tables for arm in own.group.arms))


def collect(group: Group) -> GroupTables:
    """Compute every table of a group."""
    firsts = [arm.runs[0] for arm in group.arms]
    words = _every(firsts, lambda run: _rows(run, "word_embeddings"))
    return GroupTables(
        group=group,
        drift=_every(group.runs, lambda run: measure_drift(run.run.trajectory)),
        scores=_every(group.runs, lambda run: run.run.scores),
        baselines=_every(group.runs, baselines_of),
        words=words,
        positions=_every(firsts, _positions),
        tokens=top_tokens(words),
    )


def at_last_epoch(table: pd.DataFrame) -> pd.DataFrame:
    """The lines of each run's last epoch."""
    return table[table["epoch"] == table.groupby("run")["epoch"].transform("max")]


def _every(runs: Iterable[ReportedRun], make: Callable[[ReportedRun], pd.DataFrame]) -> pd.DataFrame:
    """One table of several runs, each run's part led by its name, model, task, regime and seed."""
    parts = [led(run, make(run)) for run in runs]
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else parts[0]


def led(run: ReportedRun, table: pd.DataFrame) -> pd.DataFrame:
    """A run's table with the leading columns."""
    table = table.copy()
    for place, (name, value) in enumerate(run.lead().items()):
        table.insert(place, name, value)
    return table


def _rows(run: ReportedRun, parameter: str) -> pd.DataFrame:
    if parameter not in run.run.trajectory.parameters:
        return pd.DataFrame()
    rows: pd.DataFrame = measure_rows(run.run.trajectory, parameter, run.last_epoch)
    return rows.assign(stratum=rows["stratum"].astype(str))


def _positions(run: ReportedRun) -> pd.DataFrame:
    """Position rows with the position of each (RoBERTa's first rows are no positions) and the longest real length."""
    rows = _rows(run, "position_embeddings")
    if rows.empty:
        return rows
    offset = run.run.trajectory.position_offset
    rows = rows.assign(position=rows["row"] - offset, longest_length=_longest_length(run, offset))
    return rows[rows["position"] >= 0]


def _longest_length(run: ReportedRun, offset: int) -> float:
    """Tokens of the longest text that the run trained on; NaN without exposure."""
    exposure = run.run.trajectory.exposure
    table = exposure.tables.get("position_embeddings") if exposure else None
    return float(table.rows.max()) - offset + 1 if table is not None and len(table.rows) else np.nan


def baselines_of(run: ReportedRun) -> pd.DataFrame:
    """Per labelled split: its examples, and for classes the majority rate and the right answers at the last epoch."""
    lines = []
    for split, last in run.answers.items():
        line = {"split": split, "num_examples": len(last), "majority_rate": np.nan, "num_right": np.nan}
        if not run.is_regression:
            majority = int(last["label"].value_counts().max())
            right = int((last["label"] == last["prediction"]).sum())
            line |= {
                "majority_rate": majority / len(last),
                "num_right": right,
                "is_failed": right <= majority < len(last),
            }
        lines.append({"is_failed": False} | line)
    columns = ["split", "num_examples", "majority_rate", "num_right", "is_failed"]
    return pd.DataFrame(lines, columns=columns)


def top_tokens(words: pd.DataFrame) -> pd.DataFrame:
    """Per run and ranking the rows seen in training that moved most; rows that did not move are in no ranking."""
    if words.empty:
        return words
    parts = []
    seen = words[pd.to_numeric(words["num_steps"]).fillna(0) > 0]
    for _, rows in seen.groupby("run", sort=False):
        for ranking in RANKINGS:
            moved = rows[rows[ranking] > 0].sort_values([ranking, "row"], ascending=[False, True])
            top = moved.head(NUM_TOP_TOKENS)
            top.insert(len(LEAD), "ranking", ranking)
            top.insert(len(LEAD) + 1, "rank", range(1, len(top) + 1))
            parts.append(top)
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=[*LEAD, "ranking", "rank"])


def strata_table(drift: pd.DataFrame) -> pd.DataFrame:
    """Row strata at each run's last epoch: one line per stratum, one column per measure and statistic."""
    lines = at_last_epoch(drift)
    lines = lines[(lines["stratum"] != "whole parameter") & ~lines["parameter"].str.startswith("LayerNorm")]
    lines = lines.assign(column=lines["measure"] + "_" + lines["statistic"])
    index = [*LEAD, "epoch", "parameter", "stratum"]
    wide = lines.set_index([*index, "column"])["value"].unstack("column")
    counts = lines.groupby(index, sort=False).agg(
        num_rows=("num_rows", "first"), num_undefined=("num_undefined", "max")
    )
    columns = list(dict.fromkeys(lines["column"]))
    return counts.join(wide[columns]).reset_index()


def ordered_strata(found: Iterable[str]) -> list[str]:
    """Strata that were found, in the order of every table."""
    distinct = list(dict.fromkeys(found))
    return [s for s in STRATA if s in distinct] + [s for s in distinct if s not in STRATA]
