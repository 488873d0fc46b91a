"""Runs in, the evidence folder of a report out: all that its cards need, to be recomputed without the runs.

evidence/settings.json        how arms are labelled and compared
evidence/runs.json  runs.csv  config and facts of each run, and the sha256 of its manifest
evidence/predictions.parquet  the last epoch's answers to the labelled splits; no text
evidence/scores.csv           every epoch
evidence/drift.csv gauge.csv seeds.csv joined.csv
evidence/labels.csv           drift under real and under shuffled labels, where there are runs of both
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.comparison.arms import Group, Labels, arrange
from toolkit.comparison.estimates import Settings
from toolkit.comparison.evidence_runs import EvidenceRun, describe_runs
from toolkit.comparison.evidence_tables import all_answers, drift_of, gauge_of, led, runs_table, seeds_table
from toolkit.comparison.joined import join_groups
from toolkit.comparison.reported import ReportedRun
from toolkit.comparison.shuffled_labels import STATISTICS, label_statistics
from toolkit.snapshots import files
from toolkit.snapshots.store import MANIFEST, Run

FORMAT = 1
"""Version of the evidence folder; a reader refuses a higher one."""

FOLDER = "evidence"
PREDICTIONS = "predictions.parquet"
JSONS = ("settings.json", "runs.json")
TABLES = ("runs", "scores", "drift", "gauge", "seeds", "joined")
NAMED = ("run", "group", "model", "task", "arm", "base", "first", "second", "parameter", "split", "regime", "score")
SAID = ("refusal", "note", "drift_note", "gain_verdict")
LABELS = "labels.csv"
TEXTS = (*NAMED, "other", "measure", *SAID, "reported_split", "manifest_sha256", "frequencies")
"""Columns of the tables that are text, whatever they look like."""
NAMES = (*JSONS, PREDICTIONS, *(f"{name}.csv" for name in TABLES))


@dataclass(frozen=True)
class Evidence:
    """What a report's cards are computed from, read from ``folder``."""

    folder: Path
    settings: Mapping[str, Any]
    facts: Mapping[str, Mapping[str, Any]]
    """Run to its config, manifest and manifest_sha256."""
    predictions: pd.DataFrame
    runs: pd.DataFrame
    scores: pd.DataFrame
    drift: pd.DataFrame
    """`measure_beyond_noise` of each run."""
    gauge: pd.DataFrame
    """The gauge share of each run whose tables moved."""
    seeds: pd.DataFrame
    """Distance between the ends of two runs of one arm, per parameter."""
    joined: pd.DataFrame
    """`join_drift`."""
    labels: pd.DataFrame
    """`label_statistics`: no line where no condition was also run with shuffled labels."""
    hashes: Mapping[str, str]
    """File name to sha256."""

    @cached_property
    def opened(self) -> list[EvidenceRun]:
        """Its runs, to be compared like run directories."""
        return [EvidenceRun(Path("evidence-of") / name, self) for name in self.facts]

    @cached_property
    def by_run(self) -> dict[str, tuple[dict[Any, pd.DataFrame], pd.DataFrame]]:
        """Scores and predictions: run to its part, taken apart once and not searched for every run, and the whole."""
        tables = {"scores": self.scores, "predictions": self.predictions}
        return {name: (dict(iter(table.groupby("run", sort=False))), table) for name, table in tables.items()}

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Its runs arranged as the report's were."""
        return self.arrange(self.opened)

    def arrange(self, runs: Sequence[Run]) -> tuple[Group, ...]:
        """Some of its runs, from wherever they are read, under the names that the report gives arms and tasks."""
        return arrange(runs, self.settings["labels"], self.settings.get("tasks"))

    def inputs(self, names: Iterable[str], runs: Iterable[str]) -> dict[str, dict[str, str]]:
        """The sha256 of some evidence files and of the manifests of some runs."""
        hashes = {name: self.hashes[name] for name in names}
        return {"files": hashes, "runs": {name: str(self.facts[name]["manifest_sha256"]) for name in runs}}


def write_evidence(
    runs: Sequence[Run | str | Path],
    labels: Labels | None,
    folder: str | Path,
    *,
    pairs: Sequence[tuple[str, str]] | None = None,
    margin_points: float = 1.0,
    level: float = 0.95,
    alpha: float = 0.05,
    tasks: Labels | None = None,
) -> Evidence:
    """Write ``folder``/evidence and read it back; the options are those of :func:`toolkit.write_report`.

    Numbers are written in full, tables hold no text of any example, and no file names a folder of this machine.
    ValueError as of :func:`toolkit.compare`.
    """
    groups = arrange(runs, labels, tasks)
    members = [run for group in groups for run in group.runs]
    facts = describe_runs(members)
    for run in members:
        facts[run.name]["manifest_sha256"] = files.sha256_of_file(run.run.path / MANIFEST)
    settings = {
        "format": FORMAT,
        "labels": None if labels is None else _own_labels(labels, members),
        "tasks": None if tasks is None else _own_labels(tasks, members),
        "pairs": None if pairs is None else [list(pair) for pair in pairs],
        "margin_points": margin_points,
        "level": level,
        "alpha": alpha,
    }
    drift = led(members, drift_of)
    compared = Settings(margin_points=margin_points, level=level, alpha=alpha)
    tables = {
        "runs": runs_table(groups, facts),
        "scores": led(members, lambda run: run.run.scores),
        "drift": drift,
        "gauge": led(members, gauge_of),
        "seeds": seeds_table(groups),
        "joined": join_groups(groups, settings=compared, drift=drift),
    }
    if len(labelled := label_statistics(groups, drift)):
        tables["labels"] = labelled
    place = Path(folder) / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    for name, value in zip(JSONS, (settings, facts), strict=True):
        files.write_text(place / name, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    answers = all_answers(groups)
    files.write_with(place / PREDICTIONS, lambda path: answers.to_parquet(path, index=False, compression="zstd"))
    for name, table in tables.items():
        files.write_text(place / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
    return read_evidence(folder)


EARLIER_NAMES = r"none \(full fine-tuning\)|backbone \(feature extraction\)|embeddings \(frozen\)"
"""What conditions were called without labels in reports of earlier versions."""


def read_evidence(folder: str | Path) -> Evidence:
    """The evidence of a report folder; ValueError when a file is missing, cut short or of a newer format."""
    place = Path(folder) / FOLDER
    missing = [name for name in NAMES if not (place / name).is_file()]
    if missing:
        raise ValueError(f"{folder} is not a whole report: missing {', '.join(f'{FOLDER}/{name}' for name in missing)}")
    settings, facts = (_read(place / name, _read_json) for name in JSONS)
    if settings.get("format", FORMAT + 1) > FORMAT:
        raise ValueError(f"{place} has a newer format than {FORMAT}: update the toolkit")
    predictions = _read(place / PREDICTIONS, pd.read_parquet)
    tables = {name: _read(place / f"{name}.csv", read_table) for name in TABLES}
    has_labels = (place / LABELS).is_file()
    tables["labels"] = _read(place / LABELS, read_table) if has_labels else pd.DataFrame(columns=list(STATISTICS))
    arms = tables["runs"]["base"].where(tables["runs"]["base"] != "", tables["runs"]["arm"])
    if settings["labels"] is None and arms.str.contains(EARLIER_NAMES, regex=True).any():
        settings["labels"] = dict(zip(tables["runs"]["run"], arms, strict=True))  # its cards have the names of then
    if "learning_rate" not in tables["joined"]:  # of reports from before it was there
        tables["joined"]["learning_rate"] = [facts[run]["config"]["learning_rate"] for run in tables["joined"]["run"]]
    names = (*NAMES, LABELS) if has_labels else NAMES
    hashes = {f"{FOLDER}/{name}": files.sha256_of_file(place / name) for name in names}
    return Evidence(Path(folder), settings, facts, predictions, hashes=hashes, **tables)


def _own_labels(labels: Labels, members: Sequence[ReportedRun]) -> dict[str, str]:
    names = {run.run.path.resolve().name for run in members}
    return {name: label for name, label in labels.items() if name in names}


def _read(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except (ValueError, OSError) as error:  # pyarrow's errors are both of these
        raise ValueError(f"{FOLDER}/{path.name} cannot be read: {' '.join(str(error).split())[:200]}") from None


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read_table(path: Path) -> pd.DataFrame:
    """Numbers bit for bit; nothing but an empty cell is missing: a task may be called nan, and a label 12."""
    texts = dict.fromkeys(TEXTS, str)
    table: pd.DataFrame = pd.read_csv(path, dtype=texts, keep_default_na=False, na_values=[""])
    return table.fillna({name: "" for name in TEXTS if name in table})
