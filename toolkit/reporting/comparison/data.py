"""Run directories in, everything that a report says of them out, computed once: both its texts only show it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from toolkit.comparison.arms import Arm, Group, ReportedRun
from toolkit.comparison.associations import associate_drift
from toolkit.comparison.compare import compare_groups
from toolkit.comparison.cost import cost_of_groups
from toolkit.comparison.efficiency import efficiency_of_groups
from toolkit.comparison.estimates import Settings
from toolkit.comparison.floors import floors_of_groups
from toolkit.comparison.joined import join_groups
from toolkit.comparison.seeds import compare_seeds_of_groups
from toolkit.comparison.shuffled_labels import contrast, label_statistics
from toolkit.comparison.summaries import last_scores_of_groups, side_by_side, summarise_groups
from toolkit.reporting.comparison.find import Sources as Sources
from toolkit.reporting.comparison.find import find_runs as find_runs
from toolkit.reporting.comparison.tables import GroupTables, collect

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ReportData:
    """All numbers of a report."""

    groups: tuple[Group, ...]
    left_out: tuple[str, ...]
    scores: pd.DataFrame
    """The headline score of every run on every labelled split at its last epoch: ``toolkit.last_scores``."""
    comparison: pd.DataFrame
    """``toolkit.compare``, with the labels of the arms without their size as first_base and second_base."""
    seeds: pd.DataFrame
    """``toolkit.compare_seeds``."""
    summary: pd.DataFrame
    sides: pd.DataFrame
    cost: pd.DataFrame
    efficiency: pd.DataFrame
    joined: pd.DataFrame
    association: pd.DataFrame
    labels: pd.DataFrame
    """``toolkit.compare_with_shuffled`` of every arm that was also run with shuffled labels."""
    floors: pd.DataFrame
    """``toolkit.summarise_floors``."""
    duplicates: pd.DataFrame
    """Near-duplicates of scored items among the training examples: one line per task, split and number of them."""
    tuning: pd.DataFrame | None
    details: tuple[GroupTables, ...]
    """Drift, scores over epochs and rows of each group."""

    @property
    def runs(self) -> tuple[ReportedRun, ...]:
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def arms(self) -> tuple[Arm, ...]:
        return tuple(arm for group in self.groups for arm in group.arms)

    @property
    def num_seeds(self) -> int:
        """The most seeds of any arm."""
        return max(len(arm.runs) for arm in self.arms)


def gather(
    groups: Sequence[Group],
    *,
    pairs: Sequence[tuple[str, str]] | None = None,
    margin_points: float = 1.0,
    tuning: pd.DataFrame | None = None,
    left_out: Sequence[str] = (),
    joined: pd.DataFrame | None = None,
    labels: pd.DataFrame | None = None,
    on_progress: Progress = lambda _: None,
) -> ReportData:
    """Compute every table of a report; ``on_progress`` hears what is being computed, ``joined`` and ``labels``
    are known already."""
    settings = Settings(margin_points=margin_points)
    on_progress("comparing scores")
    comparison = compare_groups(groups, pairs, settings)
    summary = summarise_groups(groups)
    joined = join_groups(groups, settings=settings) if joined is None else joined
    details = []
    for group in groups:
        on_progress(f"measuring drift: {group.title}")
        details.append(collect(of_largest_size(group)))
    return ReportData(
        groups=tuple(groups),
        left_out=tuple(left_out),
        scores=last_scores_of_groups(groups),
        comparison=_with_bases(comparison, groups),
        seeds=compare_seeds_of_groups(groups, pairs),
        summary=summary,
        sides=side_by_side(summary),
        cost=cost_of_groups(groups),
        efficiency=efficiency_of_groups(groups, pairs, settings, comparison=comparison),
        joined=joined,
        association=associate_drift(joined),
        labels=contrast(groups, label_statistics(groups)) if labels is None else labels,
        floors=floors_of_groups(groups),
        duplicates=near_duplicates(groups),
        tuning=tuning,
        details=tuple(details),
    )


def of_largest_size(group: Group) -> Group:
    """The arms of the most training examples: drift is shown of these, data efficiency of all."""
    greatest = max((arm.size or float("inf")) for arm in group.arms)
    return Group(group.title, tuple(arm for arm in group.arms if (arm.size or float("inf")) == greatest))


def _with_bases(comparison: pd.DataFrame, groups: Sequence[Group]) -> pd.DataFrame:
    bases = {arm.label: arm.base or arm.label for group in groups for arm in group.arms}
    return comparison.assign(
        first_base=[bases.get(str(label), str(label)) for label in comparison["first"]],
        second_base=[bases.get(str(label), str(label)) for label in comparison["second"]],
    )


def near_duplicates(groups: Sequence[Group]) -> pd.DataFrame:
    """Training examples that nearly repeat a scored item, removed and counted per split; empty where none were sought.

    The count is the mean over runs: sizes and seeds draw other training examples.
    """
    lines = [
        (group.title, run.model, run.task, split, float(count))
        for group in groups
        for run in group.runs
        for split, count in (run.part("task").get("num_near_duplicates") or {}).items()
    ]
    keys = ["group", "model", "task", "split"]
    counts = pd.DataFrame(lines, columns=[*keys, "num_near_duplicates"]).groupby(keys, sort=False)[
        "num_near_duplicates"
    ]
    return counts.agg(num_near_duplicates="mean", num_runs="size").reset_index()
