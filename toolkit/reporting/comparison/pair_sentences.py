"""Lines of a comparison in, plain sentences on them out: tasks by name, points, intervals, and what was not found."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from toolkit.analysis.comparison.verdicts import REFUSALS
from toolkit.reporting.cells import signed
from toolkit.reporting.comparison.selections import reach_points
from toolkit.reporting.markdown import listing, number

MOST_NAMED = 6
"""Tasks or splits that one clause names."""
FEW_SEEDS = "few seeds"
NOTHING_FOUND = ("under-powered", "not supported", "not judged", *REFUSALS)

Line = dict[str, Any]


def outcome(line: Line) -> str:
    """Above, below, equivalent, few seeds (a difference on these items), or the verdict that claims nothing."""
    if line["verdict"] == "not judged" and line["low_points"] * line["high_points"] > 0:
        return FEW_SEEDS
    if line["verdict"] != "supported":
        return str(line["verdict"])
    return "above" if line["difference_points"] > 0 else "below"


def by_outcome(table: pd.DataFrame) -> dict[str, list[Line]]:
    """Outcome to its lines, in the order in which one tells them."""
    order = ("above", "below", "equivalent", FEW_SEEDS, *NOTHING_FOUND)
    lines = [{str(name): value for name, value in line.items()} for line in table.to_dict("records")]
    found = {name: [line for line in lines if outcome(line) == name] for name in order}
    return {name: own for name, own in found.items() if own}


def counted(verdicts: pd.Series) -> str:
    """``9 supported; 3 equivalent; 1 not judged``: what claims something first."""
    counts = {name: int((verdicts == name).sum()) for name in ("supported", "equivalent", *NOTHING_FOUND)}
    return "; ".join(f"{count} {name}" for name, count in counts.items() if count)


def in_full(first: str, second: str, table: pd.DataFrame) -> str:
    """One sentence on a pair: every line of ``table`` (columns of compare, and ``name``) with its interval."""
    clauses: list[str] = []
    for kind, lines in by_outcome(table).items():
        pair = f"{first} and {second}" if not clauses else "the two"
        few = lines[:MOST_NAMED]
        more = f" and {len(lines) - len(few)} more" if len(lines) > len(few) else ""
        clauses.append(_CLAUSES[kind](few, first, second, pair, not clauses) + more)
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _ranked(lines: Sequence[Line], first: str, second: str, side: str, is_first: bool) -> str:
    parts = []
    for i, line in enumerate(lines):
        low, high = sorted((line["low_points"], line["high_points"]), key=abs)
        span = f"{'95 % ' if is_first and not i else ''}{_size(low)} to {_size(high)}"
        points = _size(line["difference_points"])
        other = f"{first} scores {points} points {side} {second}" if not i else points
        parts.append(f"on {line['name']} {other} ({span})")
    return listing(parts) if len(parts) < 3 else ", ".join(parts)


def _named(lines: Sequence[Line], is_first: bool, tail: Callable[[Line], str] = lambda _: "") -> str:
    parts = []
    is_said = not is_first and lines[0]["verdict"] != "equivalent"
    for line in lines:
        is_narrow = line["verdict"] == "equivalent"  # by the 90 % interval, which is the one to show then
        low, high = (line[f"{end}90_points" if is_narrow else f"{end}_points"] for end in ("low", "high"))
        span = "no interval"
        if low == low:
            span = f"{'' if is_said else f'{90 if is_narrow else 95} % '}{signed(low)} to {signed(high)}"
            is_said = True
        parts.append(f"{line['name']} ({signed(line['difference_points'])}, {span}{tail(line)})")
    return listing(parts)


def _gap(line: Line) -> str:
    """What could not have been found, said where nothing was."""
    gap = line["detectable_gap_points"]
    if gap >= reach_points(line["score"]):
        seeds = "one seed" if line["num_seeds"] == 1 else f"{line['num_seeds']} seeds"
        return f"; with {seeds} no gap at all could be found"
    return f"; a gap under {_size(gap)} could not be found" if gap == gap else ""


def _q(line: Line) -> str:
    """Why an interval beside 0 was not enough: q, over all claims of the report."""
    return f"; q = {number(line['q'], 2)}" if line["low_points"] * line["high_points"] > 0 else ""


def _seeds(lines: Sequence[Line]) -> str:
    """``one seed says`` or ``two seeds say``, of lines that are not judged."""
    return "two seeds say" if max(line["num_seeds"] for line in lines) > 1 else "one seed says"


_CLAUSES: dict[str, Callable[[Sequence[Line], str, str, str, bool], str]] = {
    "above": lambda lines, one, other, pair, is_first: _ranked(lines, one, other, "above", is_first),
    "below": lambda lines, one, other, pair, is_first: _ranked(lines, one, other, "below", is_first),
    "equivalent": lambda lines, one, other, pair, is_first: (
        f"on {_named(lines, is_first)} {pair} are equivalent within {number(lines[0]['margin_points'], 2)} points"
    ),
    FEW_SEEDS: lambda lines, one, other, pair, is_first: (
        f"on {_named(lines, is_first)} {pair} differ on these items, and {_seeds(lines)} nothing of others"
    ),
    "not judged": lambda lines, one, other, pair, is_first: (
        f"on {_named(lines, is_first, _gap)} {_seeds(lines)} nothing of {pair}"
    ),
    "under-powered": lambda lines, one, other, pair, is_first: (
        f"on {_named(lines, is_first, _gap)} these data cannot tell {pair} apart"
    ),
    "not supported": lambda lines, one, other, pair, is_first: (
        f"on {_named(lines, is_first, _q)} no difference between {pair} was found"
    ),
    **dict.fromkeys(
        REFUSALS,
        lambda lines, one, other, pair, is_first: (
            f"on {listing([str(line['name']) for line in lines])} nothing can be said of {pair} ({_why(lines)})"
        ),
    ),
}


def _why(lines: Iterable[Line]) -> str:
    return listing(list(dict.fromkeys(str(line["reason"]) for line in lines)))


def in_brief(second: str, table: pd.DataFrame) -> str:
    """``minus feature extraction +0.5 on polarity (equivalent), +34.1 on order and +46.6 on pair (supported)``."""
    groups: dict[str, list[Line]] = {}
    for own in by_outcome(table).values():
        for line in own:
            groups.setdefault(str(line["verdict"]), []).append(line)
    parts = []
    for verdict, lines in groups.items():
        few = lines[:MOST_NAMED]
        is_found = verdict == "supported"
        named = listing([_at(line) for line in few]) if is_found or len(few) < 2 else _ranged(few)
        more = f" and on {len(lines) - len(few)} more" if len(lines) > len(few) else ""
        parts.append(f"{named}{more} ({verdict})")
    return f"minus {second} {', '.join(parts)}"


def _at(line: Line) -> str:
    return f"{signed(line['difference_points'])} on {line['name']}"


def _ranged(lines: Sequence[Line]) -> str:
    """Differences of which none is claimed, as a range."""
    low, high = (signed(pick(line["difference_points"] for line in lines)) for pick in (min, max))
    return f"{low if low == high else f'{low} to {high}'} on {listing([str(line['name']) for line in lines])}"


def in_short(first: str, pairs: Sequence[tuple[str, pd.DataFrame]]) -> str:
    """``scores 4.6 to 24.3 points above feature extraction on all 3, within 1.5 points of ...``: no intervals."""
    phrases = [_phrase(second, table) for second, table in pairs]
    said = listing(phrases) if len(phrases) < 3 else f"{', '.join(phrases[:-1])}, and {phrases[-1]}"
    return f"{first} scores {said}"


def _phrase(second: str, table: pd.DataFrame) -> str:
    found, count = by_outcome(table), len(table)
    parts = []
    for side in ("above", "below"):
        if side in found:
            sizes = [abs(line["difference_points"]) for line in found[side]]
            low, high = _size(min(sizes)), _size(max(sizes))
            points = low if low == high else f"{low} to {high}"
            parts.append(f"{points} points {side} {{}}{_of(len(found[side]), count)}")
    if "equivalent" in found:
        margin = number(found["equivalent"][0]["margin_points"], 2)
        parts.append(f"within {margin} points of {{}}{_of(len(found['equivalent']), count)}")
    undecided = sum(len(own) for name, own in found.items() if name not in ("above", "below", "equivalent"))
    if not parts and len(few := found.get(FEW_SEEDS, [])) == count:
        sizes = sorted(line["difference_points"] for line in few)
        low, high = signed(sizes[0]), signed(sizes[-1])
        span = low if low == high else f"{low} to {high}"
        return f"{span} points against {second} on these items, in {_seeds(few).rpartition(' ')[0]}"
    if not parts:
        return f"neither above nor below {second} as far as these data tell"
    text = " and ".join(part.format("it" if i else second) for i, part in enumerate(parts))
    return f"{text} ({undecided} undecided)" if undecided else text


def _of(part: int, count: int) -> str:
    if count == 1:
        return ""
    return f" on all {count}" if part == count else f" on {part} of {count}"


def _size(points: float) -> str:
    """Without a sign, one decimal; two where one would read as 0."""
    return signed(abs(points)).removeprefix("+")
