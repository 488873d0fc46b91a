"""The games of one arm's seeds in, what a report prints of them out, each number with its interval."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.gauge.shapley import shapley_values
from toolkit.analysis.rows.measures import Array
from toolkit.comparison.intervals import two_way_interval
from toolkit.probes.transplants.changes import CHANGES, RANDOM, ROTATED
from toolkit.probes.transplants.components import UNCHANGED
from toolkit.probes.transplants.game import UNITS, Game
from toolkit.probes.transplants.games import item_interactions, name_coalition

TOTAL = "all"
"""The line of Σφ, which is v(all) - v(none)."""

LEAD = ("model", "task", "arm", "split", "direction", "coordinates")
"""Leading columns of every table."""

INTERVAL = ("estimate", "low", "high", "unit", "num_seeds", "num_items", "note")
COLUMNS = (*LEAD, "value", "component", *INTERVAL[:4], "share", *INTERVAL[4:])
"""Columns of the Shapley values; ``share`` is NaN unless the interval of Σφ, over several seeds, excludes 0."""

INTERACTION_COLUMNS = (*LEAD, "value", "first", "second", *INTERVAL)
SINGLE_COLUMNS = (*LEAD, "value", "component", "kind", *INTERVAL[:4], "least", "greatest", "rms_change", *INTERVAL[4:])
"""``kind``: ``transplant``, v(i) - v(none); ``random`` and ``rotated``, the same of random changes of its size (see
:mod:`.changes`), with the ``least`` and the ``greatest`` draw of any seed; ``difference`` and ``rotated difference``,
transplant - those. ``rms_change``: weight units, mean over seeds; NaN for ``all``."""

COALITION_COLUMNS = (*LEAD, "seed", "value", "coalition", "num_tuned", "mean", "unit")
CHECK_COLUMNS = (
    *LEAD,
    "seed",
    "gauge_difference",
    "control_difference",
    "num_draws",
    "num_passes",
    "num_items",
    "note",
)

TRANSPLANT = "transplant"
DIFFERENCE = {RANDOM: "difference", ROTATED: "rotated difference"}
EXACTLY_0 = ": exactly 0"
"""Ends the note of what has not moved, behind the reason."""
NOT_ROTATED = "not applicable: one vector has no rows that share a direction"
NO_SHARE = "no share: the interval of the sum does not exclude 0"
NO_SHARE_OF_ONE = "no share: one seed"


def shapley_lines(games: Sequence[Game]) -> list[dict[str, Any]]:
    """Per value: Σφ first, then a line per component."""
    lines = []
    for value in UNITS:
        shares = [shapley_values(game.values[value]) for game in games]
        total = interval_line(np.stack([g.values[value][-1] - g.values[value][0] for g in games]), value)
        is_clear = len(games) > 1 and (total["low"] > 0 or total["high"] < 0)
        lines.append({"value": value, "component": TOTAL, **total, "share": 1.0 if is_clear else np.nan})
        for i, component in enumerate(games[0].players):
            line = interval_line(np.stack([own[i] for own in shares]), value, _stillness(games, i))
            refusal = "" if is_clear else NO_SHARE if len(games) > 1 else NO_SHARE_OF_ONE
            line["note"] = "; ".join(filter(None, (line["note"], refusal)))
            share = line["estimate"] / total["estimate"] if is_clear else np.nan
            lines.append({"value": value, "component": component, **line, "share": share})
    return lines


def interaction_lines(games: Sequence[Game]) -> list[dict[str, Any]]:
    """Per value and pair of components."""
    lines = []
    players = games[0].players
    for value in UNITS:
        found = [item_interactions(game.values[value]) for game in games]
        for row, (first, second) in enumerate(found[0][0]):
            still = _stillness(games, first, second)
            line = interval_line(np.stack([indices[row] for _, indices in found]), value, still)
            lines.append({"value": value, "first": players[first], "second": players[second], **line})
    return lines


def single_lines(games: Sequence[Game]) -> list[dict[str, Any]]:
    """Per value and component, and for all together: the transplant, random changes of its size, their difference.

    Draws of one seed are averaged item by item before the interval, which covers seeds and items; each seed has draws
    of its own, so that it covers draws too.
    """
    lines = []
    num_players = len(games[0].players)
    for value in UNITS if games[0].perturbed[RANDOM][next(iter(UNITS))].shape[1] else ():
        for i, component in enumerate((*games[0].players, TOTAL)):
            coalition = 2**num_players - 1 if i == num_players else 1 << i
            still = "" if i == num_players else _stillness(games, i)
            real = np.stack([g.values[value][coalition] - g.values[value][0] for g in games])
            rms = np.nan if i == num_players else float(np.mean([g.rms_changes[i] for g in games]))
            lead = {"value": value, "component": component, "rms_change": rms}
            lines.append(lead | {"kind": TRANSPLANT, **interval_line(real, value, still)})
            for kind in CHANGES:
                draws = np.stack([g.perturbed[kind][value][i] - g.values[value][0] for g in games])
                means = _in_units(draws.mean(axis=2), value)
                ends = {"least": means.min(), "greatest": means.max()}
                mean = draws.mean(axis=1)
                lines.append(lead | {"kind": kind, **ends, **interval_line(mean, value, still)})
                lines.append(lead | {"kind": DIFFERENCE[kind], **interval_line(real - mean, value, still)})
    return lines


def coalition_lines(games: Mapping[int, Game]) -> list[dict[str, Any]]:
    """Seed to game: one line per seed, value and coalition, with the mean over items."""
    return [
        {
            "seed": seed,
            "value": value,
            "coalition": name_coalition(coalition, game.players),
            "num_tuned": coalition.bit_count(),
            "mean": float(own.mean()) * (100 if unit == "points" else 1),
            "unit": unit,
        }
        for seed, game in games.items()
        for value, unit in UNITS.items()
        for coalition, own in enumerate(game.values[value])
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


def interval_line(table: Array, value: str, still: str = "") -> dict[str, Any]:
    """INTERVAL of (seeds, items) differences, by :func:`toolkit.comparison.intervals.two_way_interval`.

    What has not moved, and ``still`` says why, is known to be 0 and needs no interval: its ends are 0.
    """
    num_seeds, num_items = table.shape
    counts = {"unit": UNITS[value], "num_seeds": num_seeds, "num_items": num_items}
    if still:
        return {"estimate": 0.0, "low": 0.0, "high": 0.0, **counts, "note": still}
    if np.isnan(table).any():
        return {**dict.fromkeys(INTERVAL[:3], np.nan), **counts, "note": NOT_ROTATED}
    found = two_way_interval(table)
    ends = _in_units(np.array([found.estimate, found.low, found.high]), value).tolist()
    return {**dict(zip(INTERVAL[:3], ends, strict=True)), **counts, "note": found.note}


def frame(lines: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    """Lines as a table with all of the columns, also without lines."""
    return pd.DataFrame(list(lines), columns=list(columns))


def _in_units(values: Array, value: str) -> Array:
    return 100 * values if UNITS[value] == "points" else values


def _stillness(games: Sequence[Game], *players: int) -> str:
    """The note of what is exactly 0 because one of some players moved in no game, with the reason; '' elsewhere."""
    still = [i for i in players if not any(game.moving >> i & 1 for game in games)]
    reasons = dict.fromkeys(game.stillness[i] if game.stillness else UNCHANGED for i in still for game in games)
    return f"{' or '.join(reasons)}{EXACTLY_0}" if still else ""
