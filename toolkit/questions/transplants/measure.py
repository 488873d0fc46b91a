"""What the drift of each embedding component is worth to the tuned model's scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.measures import Array
from toolkit.analysis.shapley import shapley_values
from toolkit.comparison.conditions import Condition, arrange
from toolkit.comparison.intervals import two_way_interval
from toolkit.comparison.measure import together
from toolkit.models.tuned import check_model
from toolkit.naming import Described
from toolkit.progress import say, shows_progress
from toolkit.questions.transplants.games import UNITS, Game, TransplantSettings, check_direction, play_run
from toolkit.questions.transplants.players import CHANGES, RANDOM, ROTATED, UNCHANGED, has_player
from toolkit.schema import columns_of, with_columns
from toolkit.snapshots.store import Run


def name_coalition(coalition: int, players: tuple[str, ...]) -> str:
    """``word_embeddings + LayerNorm``, ``none`` or ``all``."""
    if coalition in (0, 2 ** len(players) - 1):
        return "all" if coalition else "none"
    return " + ".join(name for i, name in enumerate(players) if has_player(coalition, i))


TOTAL = "all"
"""Component of the record of Σφ, which is v(all) - v(none)."""

TRANSPLANT = "transplant"
DIFFERENCE = {RANDOM: "difference", ROTATED: "rotated difference"}
"""Kind of random change to what the transplant minus it is called."""
NOT_ROTATED = "not applicable: one vector has no rows that share a direction"
NO_SHARE = "no share: the interval of the sum does not exclude 0"
NO_SHARE_OF_ONE = "no share: one seed"


FACTOR = {score: 100.0 if unit == "points" else 1.0 for score, unit in UNITS.items()}
"""Score to what its values, fractions or nats, are multiplied by to be in its unit."""


def shapley_records(games: Sequence[Game]) -> list[dict[str, Any]]:
    """The records of ``shapley``: per score the sum Σφ, then each component.

    Shares of the sum are given only where its interval, over several seeds, excludes 0.
    """
    records = []
    for score in games[0].values:
        values_by_game = [shapley_values(game.values[score]) for game in games]
        total = interval_record(np.stack([game.values[score][-1] - game.values[score][0] for game in games]), score)
        has_shares = len(games) > 1 and (total["low"] > 0 or total["high"] < 0)
        records.append({"score": score, "component": TOTAL, **total, "share": 1.0 if has_shares else np.nan})
        for i, component in enumerate(games[0].players):
            item_values = np.stack([values[i] for values in values_by_game])
            record = interval_record(item_values, score, _why_still(games, i))
            if not has_shares:
                record["reason"] = NO_SHARE if len(games) > 1 else NO_SHARE_OF_ONE
            share = record["value"] / total["value"] if has_shares else np.nan
            records.append({"score": score, "component": component, **record, "share": share})
    return records


def single_records(games: Sequence[Game]) -> list[dict[str, Any]]:
    """Per score and component, and for all together: the transplant, random changes of its size, their difference.

    Draws of one seed are averaged item by item before the interval, which covers seeds and items; each seed has draws
    of its own, so that it covers draws too. No records where no random changes were drawn.
    """
    records: list[dict[str, Any]] = []
    num_players = len(games[0].players)
    for score, random_values in games[0].perturbed[RANDOM].items():  # (players + 1, draws, items)
        if random_values.shape[1] == 0:  # with no draw to compare with, as of all scores, there is no table of singles
            return []
        for i, component in enumerate((*games[0].players, TOTAL)):
            coalition = 2**num_players - 1 if i == num_players else 1 << i
            stillness = "" if i == num_players else _why_still(games, i)
            record_of = partial(interval_record, score=score, stillness=stillness)
            key = {"score": score, "component": component}
            # (games, items): the score with the component tuned minus that with none.
            transplanted = np.stack([game.values[score][coalition] - game.values[score][0] for game in games])
            records.append(key | {"change": TRANSPLANT, **record_of(transplanted)})
            for kind in CHANGES:
                # (games, draws, items)
                draws = np.stack([game.perturbed[kind][score][i] - game.values[score][0] for game in games])
                value_of_draw = FACTOR[score] * draws.mean(axis=2)
                extremes = {"least": value_of_draw.min(), "greatest": value_of_draw.max()}
                mean_draw = draws.mean(axis=1)
                records.append(key | {"change": kind, **extremes, **record_of(mean_draw)})
                records.append(key | {"change": DIFFERENCE[kind], **record_of(transplanted - mean_draw)})
    return records


def coalition_records(games: Mapping[int, Game]) -> list[dict[str, Any]]:
    """The records of ``coalitions``: one per seed, score and coalition, with the mean over items."""
    return [
        {
            "seed": seed,
            "score": score,
            "coalition": name_coalition(coalition, game.players),
            "value": float(item_values.mean()) * FACTOR[score],
            "unit": UNITS[score],
        }
        for seed, game in games.items()
        for score, values in game.values.items()
        for coalition, item_values in enumerate(values)
    ]


def check_records(games: Mapping[int, Game]) -> list[dict[str, Any]]:
    """The records of ``checks``, one per seed: what the gauge check found, and what had to be assumed."""
    return [
        {
            "seed": seed,
            "gauge_difference": np.nan if game.gauge is None else game.gauge.difference,
            "control_difference": np.nan if game.gauge is None else game.gauge.control,
            "num_items": len(game.ids),
            "note": "; ".join(game.notes),
        }
        for seed, game in games.items()
    ]


def interval_record(differences: Array, score: str, stillness: str = "") -> dict[str, Any]:
    """Value and interval of (seeds, items) differences, by :func:`toolkit.comparison.intervals.two_way_interval`.

    What has not moved, and ``stillness`` says why, is known to be 0 and needs no interval: its ends are 0. NaN where a
    change could not be made (see ``Game.perturbed``).
    """
    num_seeds, num_items = differences.shape
    facts = {"unit": UNITS[score], "num_seeds": num_seeds, "num_items": num_items, "reason": "", "note": stillness}
    columns = ("value", "low", "high")
    if stillness:
        return dict.fromkeys(columns, 0.0) | facts
    if np.isnan(differences).any():
        return dict.fromkeys(columns, np.nan) | facts | {"reason": NOT_ROTATED}
    interval = two_way_interval(differences)
    values = (FACTOR[score] * value for value in (interval.estimate, interval.low, interval.high))
    return facts | dict(zip(columns, values, strict=True)) | {"note": interval.note}


def _why_still(games: Sequence[Game], player: int) -> str:
    """Why a value is exactly 0: this player moved in no game; empty where it did in one."""
    if any(has_player(game.moving, player) for game in games):
        return ""
    return " or ".join(dict.fromkeys(game.stillness[player] if game.stillness else UNCHANGED for game in games))


@dataclass(frozen=True, slots=True, repr=False)
class Transplants(Described):
    """The tables of :func:`measure_transplants`; a report writes each under its name."""

    shapley: pd.DataFrame
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
    settings: TransplantSettings | None = None,
    *,
    reverse: bool = False,
) -> Transplants:
    """What the drift of words, positions, segments, their common offset and LayerNorm is worth to a tuned model.

    Parameters
    ----------
    runs
        Finished runs with ``--save-model``, or the paths of their directories. Runs that differ in nothing but the seed
        are one condition.
    settings
        What to transplant and where to score it (:class:`toolkit.questions.transplants.games.TransplantSettings`); None
        takes the defaults.
    reverse
        Also put the tuned components into the body from before training, under a probe that is fitted again.

    Returns
    -------
    Transplants
        Its ``tables`` are DataFrames by name. Log-likelihood is in nats per item, accuracy, and R² of a regression, in
        points; intervals are over the seeds of a condition and the same items.

    Raises
    ------
    ValueError
        As :func:`toolkit.questions.transplants.games.play_run`, and where the runs of a condition have different items.

    Notes
    -----
    v(S) is the mean log-likelihood of the labels (accuracy beside it), or R², in the tuned body and head, with the
    components in S tuned and the rest from before training. Exact Shapley values over all 2^players coalitions add up
    to v(all) - v(none).
    """
    settings = settings or TransplantSettings()
    directions = ["forward", "reverse"] if reverse else [settings.direction]
    groups = arrange(runs)
    for run in (reported.run for group in groups for reported in group.runs):
        check_model(run)
        check_direction(run, directions[-1])
    conditions = [condition for group in groups for condition in group.conditions]
    tables = []
    for direction in directions:
        directed = replace(settings, direction=direction)
        for condition in conditions:
            games: dict[int, Game] = {}
            for reported in condition.runs:
                on_pass = partial(say, f"{reported.name} ({direction})")
                games[reported.config.seed] = play_run(reported.run, directed, on_pass)
            tables.append(tabulate(condition, games, directed))
    return join(tables)


def join(measured: Sequence[Transplants]) -> Transplants:
    """The tables of several measurements, one below the other."""
    return Transplants(**{name: together([part.tables[name] for part in measured]) for name in measured[0].tables})


def tabulate(condition: Condition, games: dict[int, Game], settings: TransplantSettings) -> Transplants:
    """The tables of one condition from the games of its seeds."""
    played_games = list(games.values())
    for game in played_games[1:]:
        if game.players != played_games[0].players or not np.array_equal(game.ids, played_games[0].ids):
            raise ValueError(
                f"{condition.label}: the seeds have different components or items; pass them one at a time"
            )
    first_run = condition.runs[0]
    key = {
        "model": first_run.model,
        "task": first_run.task,
        "condition": condition.label,
        "split": played_games[0].split,
        "direction": settings.direction,
        "coordinates": settings.coordinates,
    }
    records_by_table = {
        "shapley": shapley_records(played_games),
        "singles": single_records(played_games),
        "coalitions": coalition_records(games),
        "checks": check_records(games),
    }
    frames = {
        name: pd.DataFrame([key | record for record in records], columns=columns_of(f"measure_transplants.{name}"))
        for name, records in records_by_table.items()
    }
    return Transplants(**frames)
