"""The games of one arm's seeds in, what a report prints of them out, each number with its interval."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.analysis.gauge.shapley import shapley_values
from toolkit.analysis.rows.measures import Array
from toolkit.comparison.intervals import two_way_interval
from toolkit.probes.transplants.changes import CHANGES, RANDOM, ROTATED
from toolkit.probes.transplants.components import UNCHANGED
from toolkit.probes.transplants.game import UNITS, Game
from toolkit.probes.transplants.games import item_interactions, name_coalition

TOTAL = "all"
"""The line of Σφ, which is v(all) - v(none)."""

LEAD = ("model", "task", "condition", "split", "direction", "coordinates")
"""What the lines of one condition have in common."""

TRANSPLANT = "transplant"
DIFFERENCE = {RANDOM: "difference", ROTATED: "rotated difference"}
EXACTLY_0 = ": exactly 0"
"""Ends the note of what has not moved, behind the reason."""
NOT_ROTATED = "not applicable: one vector has no rows that share a direction"
NO_SHARE = "no share: the interval of the sum does not exclude 0"
NO_SHARE_OF_ONE = "no share: one seed"


def shapley_lines(games: Sequence[Game]) -> list[dict[str, Any]]:
    """Per score: Σφ first, then a line per component."""
    lines = []
    for score in UNITS:
        shares = [shapley_values(game.values[score]) for game in games]
        total = interval_line(np.stack([g.values[score][-1] - g.values[score][0] for g in games]), score)
        is_clear = len(games) > 1 and (total["low"] > 0 or total["high"] < 0)
        lines.append({"score": score, "component": TOTAL, **total, "share": 1.0 if is_clear else np.nan})
        for i, component in enumerate(games[0].players):
            line = interval_line(np.stack([own[i] for own in shares]), score, _stillness(games, i))
            if not is_clear:
                line["reason"] = NO_SHARE if len(games) > 1 else NO_SHARE_OF_ONE
            share = line["value"] / total["value"] if is_clear else np.nan
            lines.append({"score": score, "component": component, **line, "share": share})
    return lines


def interaction_lines(games: Sequence[Game]) -> list[dict[str, Any]]:
    """Per score and pair of components."""
    lines = []
    players = games[0].players
    for score in UNITS:
        found = [item_interactions(game.values[score]) for game in games]
        for row, (first, second) in enumerate(found[0][0]):
            still = _stillness(games, first, second)
            line = interval_line(np.stack([indices[row] for _, indices in found]), score, still)
            lines.append({"score": score, "first": players[first], "second": players[second], **line})
    return lines


def single_lines(games: Sequence[Game]) -> list[dict[str, Any]]:
    """Per score and component, and for all together: the transplant, random changes of its size, their difference.

    Draws of one seed are averaged item by item before the interval, which covers seeds and items; each seed has draws
    of its own, so that it covers draws too.
    """
    lines = []
    num_players = len(games[0].players)
    for score in UNITS if games[0].perturbed[RANDOM][next(iter(UNITS))].shape[1] else ():
        for i, component in enumerate((*games[0].players, TOTAL)):
            coalition = 2**num_players - 1 if i == num_players else 1 << i
            still = "" if i == num_players else _stillness(games, i)
            real = np.stack([g.values[score][coalition] - g.values[score][0] for g in games])
            rms = np.nan if i == num_players else float(np.mean([g.rms_changes[i] for g in games]))
            lead = {"score": score, "component": component, "rms_change": rms}
            lines.append(lead | {"change": TRANSPLANT, **interval_line(real, score, still)})
            for kind in CHANGES:
                draws = np.stack([g.perturbed[kind][score][i] - g.values[score][0] for g in games])
                means = _in_units(draws.mean(axis=2), score)
                ends = {"least": means.min(), "greatest": means.max()}
                mean = draws.mean(axis=1)
                lines.append(lead | {"change": kind, **ends, **interval_line(mean, score, still)})
                lines.append(lead | {"change": DIFFERENCE[kind], **interval_line(real - mean, score, still)})
    return lines


def coalition_lines(games: Mapping[int, Game]) -> list[dict[str, Any]]:
    """Seed to game: one line per seed, score and coalition, with the mean over items."""
    return [
        {
            "seed": seed,
            "score": score,
            "coalition": name_coalition(coalition, game.players),
            "num_tuned": coalition.bit_count(),
            "value": float(own.mean()) * (100 if unit == "points" else 1),
            "unit": unit,
        }
        for seed, game in games.items()
        for score, unit in UNITS.items()
        for coalition, own in enumerate(game.values[score])
    ]


def check_lines(games: Mapping[int, Game]) -> list[dict[str, Any]]:
    """Seed to game: what the gauge check found, and what had to be assumed."""
    return [
        {
            "seed": seed,
            "gauge_difference": np.nan if game.gauge is None else game.gauge.difference,
            "control_difference": np.nan if game.gauge is None else game.gauge.control,
            "num_draws": next(iter(game.perturbed[RANDOM].values())).shape[1],
            "num_passes": game.num_passes,
            "num_items": len(game.ids),
            "note": "; ".join(game.notes),
        }
        for seed, game in games.items()
    ]


def interval_line(table: Array, score: str, still: str = "") -> dict[str, Any]:
    """Value and interval of (seeds, items) differences, by :func:`toolkit.comparison.intervals.two_way_interval`.

    What has not moved, and ``still`` says why, is known to be 0 and needs no interval: its ends are 0.
    """
    num_seeds, num_items = table.shape
    counts = {"unit": UNITS[score], "num_seeds": num_seeds, "num_items": num_items, "reason": "", "note": still}
    if still:
        return {"value": 0.0, "low": 0.0, "high": 0.0, **counts}
    if np.isnan(table).any():
        return {**dict.fromkeys(("value", "low", "high"), np.nan), **counts, "reason": NOT_ROTATED}
    found = two_way_interval(table)
    value, low, high = _in_units(np.array([found.estimate, found.low, found.high]), score).tolist()
    return {**counts, "value": value, "low": low, "high": high, "note": found.note}


def _in_units(values: Array, score: str) -> Array:
    return 100 * values if UNITS[score] == "points" else values


def _stillness(games: Sequence[Game], *players: int) -> str:
    """The note of what is exactly 0 because one of some players moved in no game, with the reason; '' elsewhere."""
    still = [i for i in players if not any(game.moving >> i & 1 for game in games)]
    reasons = dict.fromkeys(game.stillness[i] if game.stillness else UNCHANGED for i in still for game in games)
    return f"{' or '.join(reasons)}{EXACTLY_0}" if still else ""
