"""A report folder in, every difference between it and what its evidence gives out; runs at hand are measured again."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.comparison.card import CARDS, DIGITS, load_cards
from toolkit.comparison.cards import make_cards, settings_of
from toolkit.comparison.evidence import FOLDER, NAMES, Evidence, read_evidence
from toolkit.comparison.evidence_runs import PARTS
from toolkit.comparison.evidence_tables import answers_of, drift_of, gauge_of
from toolkit.comparison.joined import join_groups
from toolkit.comparison.parameter_noise import distance_of_seeds
from toolkit.comparison.reported import ReportedRun
from toolkit.comparison.shuffled_labels import label_statistics
from toolkit.comparison.written import WRITTEN, check_written, written_files
from toolkit.snapshots import files
from toolkit.snapshots.store import MANIFEST, open_run
from toolkit.snapshots.verify import verify_run

BROKEN = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What evidence that somebody edited can raise on the way to a card."""

PATHS = ("model", "train_file", "validation_file", "test_file", "ood_file", "output_dir")
"""Fields of a config that evidence shows without the folders of a machine."""

RULES = ("version", "claim", "verdict", "reason", "q", "is_discovery", "source")
"""Fields of a card that another version of its estimator gives from the same numbers."""

AWAY = "not at hand: "
NAMED = 3
"""Of the runs that are not at hand, so many are printed by name."""


@dataclass
class Verification:
    """What a check of a report found."""

    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is no difference: runs that could not be measured again."""
    num_cards: int = 0
    num_runs: int = 0
    """Runs that were at hand."""


def verify_report(folder: str | Path, runs_root: str | Path | None = None) -> list[str]:
    """The differences between a report's cards and its evidence, and between that and its runs; none when all holds.

    Hashes of the evidence files and of whatever else the report wrote (files.json, where it has one; a report without
    cards has nothing else), every card recomputed and compared as it is written, and for each run that is at hand
    (below ``runs_root``; default: ./runs, beside the report and in runs/ beside it) its hashes and its evidence
    measured again. ValueError when ``folder`` is no report.
    """
    return check_report(folder, runs_root).differences


def is_report(folder: Path) -> bool:
    """Whether a folder was written as a report, or is what is left of one."""
    return has_cards(folder) or bool(written_files(folder))


def has_cards(folder: Path) -> bool:
    """Whether a report has cards, or what is left of them; one of drift, positions, layers has none."""
    return (folder / CARDS).is_file() or (folder / FOLDER).is_dir() or CARDS in written_files(folder)


def check_report(folder: str | Path, runs_root: str | Path | None = None) -> Verification:
    """:func:`verify_report` with its notes: the runs that are not at hand."""
    folder = Path(folder)
    if not is_report(folder):
        raise ValueError(f"{folder} is neither a run directory nor a report: it has no {CARDS} and no {WRITTEN}")
    if runs_root is not None and not Path(runs_root).is_dir():
        raise ValueError(f"no folder of runs at {runs_root}")
    found = Verification()
    if has_cards(folder):
        _check_evidence(folder, runs_root, found)
    found.differences += [line for line in check_written(folder) if line not in found.differences]
    return found


def _check_evidence(folder: Path, runs_root: str | Path | None, found: Verification) -> None:
    """Cards against evidence, and evidence against runs."""
    try:
        written, hashes = load_cards(folder)
    except ValueError as error:
        found.differences.append(str(error))
        return
    found.num_cards = len(written)
    found.differences += _check_hashes(folder, hashes)
    try:
        evidence = read_evidence(folder)
        recomputed = [card.to_dict() for card in make_cards(evidence)]
    except BROKEN as error:
        found.differences.append(f"the cards cannot be recomputed: {' '.join(str(error).split())[:300]}")
        return
    found.differences += _check_cards(written, recomputed, are_files_whole=not found.differences)
    _check_runs(evidence, _roots(folder, runs_root), found)


def describe(folder: Path, runs_root: Path | None) -> tuple[list[str], bool]:
    """What is printed of a check, and whether it found a difference."""
    found = check_report(folder, runs_root)
    lines = list(found.differences)
    if not has_cards(folder):
        number = len(written_files(folder))
        whole = [] if lines else [f"{folder}: all {number} files are as the report wrote them; it has no cards"]
        return [*lines, *whole], bool(lines)
    if not found.differences:
        lines.append(f"{folder}: all {found.num_cards} cards are what the evidence gives")
    measured = f"{found.num_runs} of {found.num_runs + len(found.notes)} runs were at hand and measured again"
    if found.notes:
        names = [note.removeprefix(AWAY) for note in found.notes]
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        measured += f"; {len(names):,} not at hand: {', '.join(names[:NAMED])}{more}"
    return [*lines, measured], bool(found.differences)


def _check_hashes(folder: Path, expected: Mapping[str, str]) -> list[str]:
    present = {f"{FOLDER}/{path.name}": path for path in (folder / FOLDER).iterdir() if not _is_left(path)}
    lines = [f"missing: {name}" for name in expected if name not in present]
    for name, digest in expected.items():
        if name in present and files.sha256_of_file(present[name]) != digest:
            lines.append(f"changed: {name}")
    return lines + [f"not in {CARDS}: {name}" for name in sorted(present) if name not in expected]


def _is_left(path: Path) -> bool:
    """Whether a file is what a report that was killed left of a file of its evidence."""
    return files.of_temporary(path.name) in NAMES


def _check_cards(written: list[Any], recomputed: list[dict[str, Any]], *, are_files_whole: bool) -> list[str]:
    """Differing fields, card by card; where a file has changed, its hash on each card is not named again.

    Of a card that an older version of its estimator made, RULES may differ: one line says so of all such cards.
    """
    expected = {str(card["id"]): card for card in recomputed}
    ids = [str(card.get("id")) if isinstance(card, dict) else "no card" for card in written]
    lines = [f"card {name!r} is there twice" for name in dict.fromkeys(ids) if ids.count(name) > 1]
    lines += [f"card {name!r} is missing from {CARDS}" for name in expected if name not in ids]
    older: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for name, card in zip(ids, written, strict=True):
        if name not in expected:
            lines.append(f"card {name!r} does not follow from the evidence")
            continue
        is_older = _is_older(card, expected[name])
        older += [(card, expected[name])] if is_older else []
        for key in [*expected[name], *(k for k in card if k not in expected[name])]:
            was, now = card.get(key), expected[name].get(key)
            if json.dumps(was, sort_keys=True) != json.dumps(now, sort_keys=True) and (
                (key != "inputs" or are_files_whole) and not (is_older and key in RULES)
            ):
                lines.append(f"card {name!r}: {key} is written as {was!r}, its evidence gives {now!r}")
    if not lines and ids != list(expected):
        lines.append(f"the cards of {CARDS} are in another order")
    return [*([_older(older, len(written))] if older else []), *lines]


def _is_older(written: dict[str, Any], recomputed: dict[str, Any]) -> bool:
    version = written.get("version")
    return type(version) is int and version < recomputed["version"]


def _older(cards: Sequence[tuple[dict[str, Any], dict[str, Any]]], num_cards: int) -> str:
    """One line on cards that older rules made, each written and recomputed."""
    versions = dict.fromkeys(f"{now['kind']} {was['version']}, now {now['version']}" for was, now in cards)
    changed = sum(was.get("verdict") != now["verdict"] for was, now in cards)
    said = f"{len(cards)} of {num_cards} cards were made by older rules ({'; '.join(versions)})"
    return (
        f"{said}, by which {changed} verdict{' reads' if changed == 1 else 's read'} otherwise: make the report again"
    )


def _roots(folder: Path, runs_root: str | Path | None) -> list[Path]:
    return [Path(runs_root)] if runs_root is not None else [Path("runs"), folder.parent, folder.parent / "runs"]


def _check_runs(evidence: Evidence, roots: list[Path], found: Verification) -> None:
    at_hand: dict[str, ReportedRun] = {}
    for name, facts in evidence.facts.items():
        path = _find(name, str(facts.get("manifest_sha256")), roots)
        if path is None:
            found.notes.append(f"{AWAY}{name}")
            continue
        differences = [f"run {name}: {line}" for line in verify_run(path)]
        found.differences += differences
        if not differences:
            at_hand[name] = ReportedRun(open_run(path), name)
    found.num_runs = len(evidence.facts) - len(found.notes)
    drift = {name: drift_of(run).assign(run=name) for name, run in at_hand.items()}
    for name, run in at_hand.items():
        parts = _differing(run, evidence, drift[name])
        found.differences += [f"run {name}: {what} is not what the run gives" for what in parts]
    found.differences += _check_together(at_hand, evidence, drift)


def _find(name: str, digest: str, roots: Iterable[Path]) -> Path | None:
    """The run directory of a name and a manifest, at most two folders down; another run of that name is not it."""
    for root in roots:
        for path in (root / name, *(child / name for child in sorted(root.glob("*/")))):
            if (path / MANIFEST).is_file() and files.sha256_of_file(path / MANIFEST) == digest:
                return path
    return None


def _differing(run: ReportedRun, evidence: Evidence, drift: pd.DataFrame) -> Iterator[str]:
    """The parts of the evidence of one run that its directory does not give."""
    facts, config = evidence.facts[run.name], json.loads(run.run.config.to_json())
    if any(facts["config"].get(k) != v for k, v in config.items() if k not in PATHS):
        yield "its config"
    kept = [k for k in PARTS if k not in ("model", "regime")]
    if any(facts["manifest"].get(k) != run.run.manifest.get(k) for k in kept):
        yield "its manifest"
    made = {"predictions": answers_of(run), "scores": run.run.scores, "drift": drift, "gauge": gauge_of(run)}
    for name, expected in made.items():
        table: pd.DataFrame = getattr(evidence, name)
        if not same_values(expected, table[table["run"] == run.name]):
            yield f"its part of {name}"


def _check_together(
    at_hand: Mapping[str, ReportedRun], evidence: Evidence, drift: Mapping[str, pd.DataFrame]
) -> Iterator[str]:
    """What takes several runs: distances between seeds, and drift joined with score where every run is at hand."""
    for line in evidence.seeds.itertuples():
        if line.first in at_hand and line.second in at_hand:
            again = distance_of_seeds(at_hand[line.first].run, at_hand[line.second].run, str(line.parameter))
            if _as_written(again) != _as_written(line.distance):
                yield f"runs {line.first} and {line.second}: their distance in {line.parameter} is another"
    if len(at_hand) == len(evidence.facts) and len(evidence.labels):
        made = label_statistics(evidence.arrange([run.run for run in at_hand.values()]), pd.concat(drift.values()))
        if not same_values(made, evidence.labels):
            yield "labels.csv is not what the runs give"
    if len(at_hand) == len(evidence.facts):
        groups = evidence.arrange([run.run for run in at_hand.values()])
        again = join_groups(groups, settings=settings_of(evidence), drift=pd.concat(drift.values()))
        if not same_values(*(table.sort_values(["run", "parameter"]) for table in (again, evidence.joined))):
            yield "joined.csv is not what the runs give"


def same_values(expected: pd.DataFrame, known: pd.DataFrame) -> bool:
    """Whether ``known`` has every column of ``expected`` with the same values, line by line, numbers to ten digits."""
    if len(expected) != len(known) or any(name not in known for name in expected):
        return False
    return all(
        [_as_written(value) for value in expected[name]] == [_as_written(value) for value in known[name]]
        for name in expected
    )


def _as_written(value: Any) -> str:
    """A value as text: missing is empty, a whole number is the same as an integer or a float."""
    if value is None or value is pd.NA or value != value or value == "":
        return ""
    is_number = isinstance(value, int | float) or hasattr(value, "dtype")
    return f"{float(value):.{DIGITS}g}" if is_number and not isinstance(value, bool | str) else str(value)
