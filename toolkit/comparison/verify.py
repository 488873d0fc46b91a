"""Whether a report is what its evidence gives, and its evidence what its runs give, where these are at hand."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.comparison.cards import make_cards
from toolkit.comparison.conditions import of_largest_size
from toolkit.comparison.evidence import (
    FOLDER,
    NAMES,
    PAGE,
    WRITTEN,
    Evidence,
    check_written,
    making,
    read_evidence,
    settled,
    written_files,
)
from toolkit.comparison.measure import (
    describe_runs,
    gauge_of,
    measure_first,
    seeds_table,
    strata_of,
    words_of_conditions,
)
from toolkit.comparison.parameter_noise import drift_of
from toolkit.comparison.runs import ReportedRun, judged_by, read_reported
from toolkit.comparison.shuffled_labels import label_statistics
from toolkit.comparison.verdicts import CARDS, DIGITS, load_cards
from toolkit.naming import first_few, refuse_first
from toolkit.progress import counted, shows_progress
from toolkit.snapshots import files
from toolkit.snapshots.output_folder import OutputFolder, with_base
from toolkit.snapshots.store import MANIFEST, Run, checkpoints_in, open_run, verify_run

PATHS = ("model", "train_file", "validation_file", "test_file", "ood_file", "add_tokens", "output_dir")
"""Fields of a config that evidence shows without the folders of a machine."""

MAX_NAMED = 3
"""Of the runs that are not at hand, so many are printed by name."""


@dataclass
class Verification:
    """The result of a check of a report."""

    differences: list[str] = field(default_factory=list)
    away: list[str] = field(default_factory=list)
    """The runs that are not at hand, which is no difference: they could not be measured again."""
    not_kept: list[str] = field(default_factory=list)
    """Files that are not there and need not be: they are made again from the evidence."""
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


@shows_progress("verifying")
def check_report(folder: str | Path, runs_root: str | Path | None = None) -> Verification:
    """:func:`verify_report`, and what it could not look at."""
    folder = Path(folder)
    neither = f"{folder} is neither a run directory nor a report: it has no {CARDS} and no {WRITTEN}"
    is_lost = runs_root is not None and not Path(runs_root).is_dir()
    refuse_first({neither: not is_report(folder), f"no folder of runs at {runs_root}": is_lost})
    verification = Verification()
    if has_cards(folder):
        _check_evidence(folder, runs_root, verification)
    differences, verification.not_kept = check_written(folder)
    verification.differences += [difference for difference in differences if difference not in verification.differences]
    return verification


def _check_evidence(folder: Path, runs_root: str | Path | None, verification: Verification) -> None:
    """Add the differences between cards and evidence, and between evidence and runs, to a verification."""
    try:
        written, hashes = load_cards(folder)
    except ValueError as error:
        verification.differences.append(str(error))
        return
    verification.num_cards = len(written)
    verification.differences += _check_hashes(folder, hashes)
    roots = [Path("runs"), folder.parent, folder.parent / "runs"] if runs_root is None else [Path(runs_root)]
    try:
        with making(folder):
            evidence = read_evidence(folder)
            recomputed = [card.to_dict() for card in make_cards(evidence)]
            # Where a file has changed, each card on it would differ in its hash: once is enough.
            verification.differences += _check_cards(written, recomputed, are_files_whole=not verification.differences)
            _check_runs(evidence, roots, verification)
    except ValueError as error:
        verification.differences.append(f"not all could be recomputed: {' '.join(str(error).split())[:300]}")


def describe(folder: Path, runs_root: Path | None) -> tuple[list[str], bool]:
    """The lines that are printed of a check, and whether it found a difference."""
    check = check_report(folder, runs_root)
    printed = list(check.differences)
    count = len(check.not_kept)
    absent_files = f"{count} {'file was' if count == 1 else 'files were'} not kept"
    if not has_cards(folder):
        number = len(written_files(folder)) - count
        summary = [] if printed else [f"{folder}: all {number} files are as the report wrote them; it has no cards"]
        return [*printed, *summary, *([absent_files] if count else [])], bool(printed)
    if not check.differences:
        printed.append(f"{folder}: all {check.num_cards} cards are what the evidence gives")
    measured = f"{check.num_runs} of {check.num_runs + len(check.away)} runs were at hand and measured again"
    if check.away:
        away = f"{len(check.away):,} not at hand (--runs FOLDER says where they are)"
        measured += f"; {away}: {first_few(check.away, MAX_NAMED)}"
    pronoun = "it" if count == 1 else "them"
    again = f"python -m toolkit report --from {shlex.quote(str(folder))} makes {pronoun} again"
    hint = [f"{absent_files}; {again}"] if count else []
    return [*printed, *hint, measured], bool(check.differences)


def _check_hashes(folder: Path, expected: Mapping[str, str]) -> list[str]:
    """The evidence files that are missing, have another hash than the cards name, or that no card knows."""
    expected_names = (*NAMES, PAGE)
    # What a report that was killed left of a file of its evidence is none of it.
    paths = [path for path in (folder / FOLDER).iterdir() if files.of_temporary(path.name) not in expected_names]
    present = {f"{FOLDER}/{path.name}": path for path in paths}
    differences = [f"missing: {name}" for name in expected if name not in present]
    for name, digest in expected.items():
        if name in present and files.sha256_of_file(present[name]) != digest:
            differences.append(f"changed: {name}")
    present.pop(f"{FOLDER}/{PAGE}", None)  # no card rests on it; files.json has its hash
    return differences + [f"not in {CARDS}: {name}" for name in sorted(present) if name not in expected]


def _check_cards(written: list[Any], recomputed: list[dict[str, Any]], *, are_files_whole: bool) -> list[str]:
    """Differing fields, card by card; where a file has changed, its hash on each card is not named again."""
    expected = {str(card["id"]): card for card in recomputed}
    ids = [str(card.get("id")) if isinstance(card, dict) else "no card" for card in written]
    differences = [f"card {name!r} is there twice" for name in dict.fromkeys(ids) if ids.count(name) > 1] + [
        f"card {name!r} is missing from {CARDS}" for name in expected if name not in ids
    ]
    for name, card in zip(ids, written, strict=True):
        if name not in expected:
            differences.append(f"card {name!r} does not follow from the evidence")
            continue
        current = expected[name]
        for key in (key for key in dict.fromkeys([*current, *card]) if are_files_whole or key != "inputs"):
            if json.dumps(card.get(key), sort_keys=True) != json.dumps(current.get(key), sort_keys=True):
                differences.append(
                    f"card {name!r}: {key} is written as {card.get(key)!r}, its evidence gives {current.get(key)!r}"
                )
    if not differences and ids != list(expected):
        differences.append(f"the cards of {CARDS} are in another order")
    return differences


def _check_runs(evidence: Evidence, roots: list[Path], verification: Verification) -> None:
    """Add the differences between the evidence and what the runs at hand give to a verification."""
    at_hand: dict[str, ReportedRun] = {}
    for name, facts in counted(evidence.facts.items(), "looking for runs"):
        run_at_hand = _find_run(name, facts, roots)
        if run_at_hand is None:
            verification.away.append(name)
            continue
        differences = [] if isinstance(run_at_hand, OutputFolder) else verify_run(run_at_hand.path)
        verification.differences += [f"run {name}: {difference}" for difference in differences]
        if not differences:
            at_hand[name] = read_reported(run_at_hand, name, (evidence.settings["tasks"] or {}).get(name))
    verification.num_runs = len(evidence.facts) - len(verification.away)
    # What a task has, all of its runs say, also those that are not at hand.
    judged = judged_by([at_hand.get(run.name, run) for run in evidence.reported], evidence.settings.get("score"))
    at_hand = {run.name: run for run in judged if run.name in at_hand}
    drift = {name: drift_of(run).assign(run=name) for name, run in at_hand.items()}
    largest_conditions = [condition for group in evidence.groups for condition in of_largest_size(group).conditions]
    for name, run in counted(at_hand.items(), "measuring runs again"):
        measured = {
            "predictions": run.predictions,
            "scores": run.scores,
            "drift": drift[name],
            "gauge": gauge_of(run),
        }
        # Strata are kept of the runs of the most examples, and single rows of the first of each condition.
        if any(name in condition.names for condition in largest_conditions):
            measured["strata"] = strata_of(run)
        if any(name == condition.names[0] for condition in largest_conditions):
            measured |= measure_first(run)
        parts = list(_other_facts(run, evidence))
        for table, expected in measured.items():
            in_evidence: pd.DataFrame = getattr(evidence, table)
            in_evidence = in_evidence[in_evidence["run"] == name] if "run" in in_evidence else in_evidence.iloc[:0]
            parts += [] if same_values(settled(expected), in_evidence) else [f"its part of {table}"]
        verification.differences += [f"run {name}: {part} is not what the run gives" for part in parts]
    if len(at_hand) == len(evidence.facts):  # with a run away they cannot be measured again
        verification.differences += _check_together(at_hand, evidence, drift)


def _find_run(name: str, facts: Mapping[str, Any], roots: Sequence[Path]) -> Run | None:
    """The run of this name that the evidence has ``facts`` of, at most two folders below some; None where none is."""
    digest = str(facts.get("manifest_sha256"))  # another run of that name is not it
    base = None if "since" in facts["config"] else facts["config"].get("model")
    for root in roots:
        for folder in (root, *sorted(root.glob("*/"))):
            if (run := _run_at(folder / name, base, digest)) is not None:
                return run
    return None


def _run_at(place: Path, base: str | None, digest: str) -> Run | None:
    """The run at a place whose manifest has this sha256; of an output folder what stands for it. Else None."""
    try:
        if (place / MANIFEST).is_file():
            return open_run(place) if files.sha256_of_file(place / MANIFEST) == digest else None
        runs = with_base([open_run(place)] if place.is_dir() and checkpoints_in(place) else [], base)
        return next((run for run in runs if run.sha256_of(MANIFEST) == digest), None)
    except ValueError:  # whatever lies there under that name, it is not the run
        return None


def _other_facts(run: ReportedRun, evidence: Evidence) -> Iterator[str]:
    """The facts of one run that its directory does not give."""
    facts, described = evidence.facts[run.name], describe_runs([run])[run.name]
    if any(facts["config"].get(key) != value for key, value in described["config"].items() if key not in PATHS):
        yield "its config"
    # The model's may be one of two so called.
    described["manifest"]["model"]["name"] = facts["manifest"].get("model", {}).get("name")
    if facts["manifest"] != described["manifest"]:
        yield "its manifest"


def _check_together(
    at_hand: Mapping[str, ReportedRun], evidence: Evidence, drift: Mapping[str, pd.DataFrame]
) -> Iterator[str]:
    """The differences in what takes several runs: distances between seeds, words over seeds, and measures by label."""
    groups = evidence.arrange(at_hand.values())
    word_counts, words = words_of_conditions([of_largest_size(group) for group in groups])
    measured = {"seeds": seeds_table(groups), "labels": label_statistics(groups, pd.concat(drift.values()))}
    for name, expected in (measured | {"word_counts": word_counts, "words": words}).items():
        known: pd.DataFrame = getattr(evidence, name)
        if (len(expected) or len(known)) and not same_values(settled(expected), known):
            yield f"{name} is not what the runs give"


def same_values(expected: pd.DataFrame, known: pd.DataFrame) -> bool:
    """Whether ``known`` has every column of ``expected`` with the same values, line by line, numbers to ten digits."""
    has_all = len(expected) == len(known) and all(name in known for name in expected)
    return has_all and all(
        [_as_written(value) for value in expected[name]] == [_as_written(value) for value in known[name]]
        for name in expected
    )


def _as_written(value: Any) -> str:
    """A value as text: missing is empty, a whole number is the same as an integer or a float."""
    if value is None or value is pd.NA or value != value or value == "":
        return ""
    is_number = isinstance(value, int | float) or hasattr(value, "dtype")
    return f"{float(value):.{DIGITS}g}" if is_number and not isinstance(value, bool | str) else str(value)
