"""Runs in, the tables of their transplants out: what the drift of each embedding component is worth to the scores."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from toolkit.comparison.arms import Arm, arrange
from toolkit.models.tuned import check_model
from toolkit.naming import Described
from toolkit.probes.transplants import summary
from toolkit.probes.transplants.game import Game, Settings
from toolkit.probes.transplants.play import play_run
from toolkit.progress import say, shows_progress
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run

OnProgress = Callable[[str, int, int], None]
"""Called with the run's name, the passes done and those to do."""


@dataclass(frozen=True, slots=True, repr=False)
class Transplants(Described):
    """The tables of :func:`measure_transplants`; a report writes each under its name."""

    shapley: pd.DataFrame
    interactions: pd.DataFrame
    singles: pd.DataFrame
    coalitions: pd.DataFrame
    checks: pd.DataFrame

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Name of a file to its table."""
        return {name: getattr(self, name) for name in self.__slots__}

    def facts(self) -> dict[str, str]:
        """Each table's number of lines."""
        return {name: f"table of {len(table):,} lines" for name, table in self.tables.items()}


@shows_progress("transplants")
@with_columns
def measure_transplants(
    runs: Sequence[Run | str | Path],
    settings: Settings | None = None,
    *,
    reverse: bool = False,
    on_progress: OnProgress = lambda name, done, total: say(f"{name}: {done} of {total}"),
) -> Transplants:
    """What the drift of words, positions, segments, their common offset and LayerNorm is worth to a tuned model.

    Returns Transplants, whose ``tables`` are DataFrames by name; log-likelihood in nats per item, accuracy in points.
    v(S) is the mean log-likelihood of the labels (accuracy beside it) in the tuned body and head, with the components
    in S tuned and the rest from before training. Exact Shapley values over all 2^players coalitions add up to v(all) -
    v(none). Runs that differ in their seed only are one arm: its intervals are over seeds and the same items. With
    ``reverse`` also the tuned components in the body from before, under a re-fitted probe. ValueError as of
    :func:`toolkit.probes.transplants.game.play_run`, and where the runs of an arm have different items.
    """
    settings = settings or Settings()
    directions = ["forward", "reverse"] if reverse else [settings.direction]
    groups = arrange(runs)
    for run in (item.run for group in groups for item in group.runs):
        check_model(run)
    parts = []
    for direction in directions:
        own = replace(settings, direction=direction)
        parts += [_of_arm(arm, own, on_progress) for group in groups for arm in group.arms]
    return join(parts)


def join(parts: Sequence[Transplants]) -> Transplants:
    """The tables of several measurements, one below the other."""
    names = list(parts[0].tables)
    joined = {}
    for name in names:
        tables = [part.tables[name] for part in parts]
        filled = [table for table in tables if len(table)]
        joined[name] = pd.concat(filled, ignore_index=True) if filled else tables[0]
    return Transplants(**joined)


def _of_arm(arm: Arm, settings: Settings, on_progress: OnProgress) -> Transplants:
    games: dict[int, Game] = {}
    for item in arm.runs:

        def hear(done: int, total: int, name: str = f"{item.name} ({settings.direction})") -> None:
            on_progress(name, done, total)

        games[item.config.seed] = play_run(item.run, settings, hear)
    return tabulate(arm, games, settings)


def tabulate(arm: Arm, games: dict[int, Game], settings: Settings) -> Transplants:
    """The tables of one arm from the games of its seeds."""
    played = list(games.values())
    for game in played[1:]:
        if game.players != played[0].players or not np.array_equal(game.ids, played[0].ids):
            raise ValueError(f"{arm.label}: the seeds have different components or items; pass them one at a time")
    first = arm.runs[0]
    values = (first.model, first.task, arm.label, played[0].split, settings.direction, settings.coordinates)
    lead = dict(zip(summary.LEAD, values, strict=True))
    lines = {
        "shapley": summary.shapley_lines(played),
        "interactions": summary.interaction_lines(played),
        "singles": summary.single_lines(played),
        "coalitions": summary.coalition_lines(games),
        "checks": summary.check_lines(games),
    }
    frames = {
        name: pd.DataFrame([lead | line for line in own], columns=columns_of(f"measure_transplants.{name}"))
        for name, own in lines.items()
    }
    return Transplants(**frames)
