"""The evidence of a report: facts and tables of its runs, from which all that it says follows.

evidence/settings.json        how conditions are labelled and compared
evidence/page.json            what no card rests on: title, question, expectation, command, what was tuned
evidence/runs.json            config and facts of each run, and the sha256 of its config and manifest
evidence/predictions.parquet  the last epoch's answers to the labelled splits; no text
evidence/runs.csv scores.csv drift.csv gauge.csv seeds.csv
evidence/labels.csv           drift under real and under shuffled labels
evidence/strata.parquet       drift at every epoch by stratum of rows
evidence/boxes.csv dots.csv exposed.csv tokens.parquet positions.parquet   single rows, of each condition's first seed
evidence/word_counts.csv words.parquet   the words' map, means over the seeds of each condition
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.conditions import Group, arrange_reported
from toolkit.comparison.runs import ReportedRun
from toolkit.comparison.verdicts import CARDS, load_cards
from toolkit.config import RunConfig
from toolkit.naming import OtherFormatError, check_format, meant_by, parse_object, read_json, reading, refuse_first
from toolkit.snapshots import files
from toolkit.snapshots.csv_tables import csv_of, unquoted
from toolkit.snapshots.ownership import FORMAT as LIST_FORMAT
from toolkit.snapshots.ownership import WRITTEN as WRITTEN
from toolkit.snapshots.ownership import is_sealed
from toolkit.snapshots.store import MANIFEST, RECORDED, checkpoints_in

MADE_AGAIN = (".svg", ".pdf", ".tex", ".parquet")
"""Endings of what is made again from the evidence, and may be left out of what is kept."""
LARGE_BYTES = 50_000
"""So may a CSV file of more bytes."""


def written_files(out: Path) -> dict[str, str]:
    """The files that a report wrote into a folder, with their sha256; empty without a list of them as it was written.

    ValueError for a files.json of another format.
    """
    return dict(_read_files_json(out).get("files", {}))


def _read_files_json(out: Path) -> dict[str, Any]:
    """The values of a report's files.json; empty where it is missing, cannot be read, or was changed."""
    try:
        raw = (out / WRITTEN).read_bytes()
        values = parse_object(raw, out / WRITTEN, {"format": int, "files": dict}, version=LIST_FORMAT)
    except OtherFormatError:
        raise
    except (OSError, ValueError):
        return {}
    return values if is_sealed(raw, values) else {}


def check_written(out: Path) -> tuple[list[str], list[str]]:
    """A message per file that is missing or changed, and the names of missing files that need not be kept.

    One line alone where files.json is gone, or not as it was written: its own sha256 says so. Who edits a page and
    makes that sha256 anew with the page's is found by making the report again, and by nothing here. What is made again
    from the evidence need not be kept: the page, charts but the pictures that report.md shows, LaTeX, Parquet and large
    CSV files of tables.
    """
    expected = written_files(out)
    if not expected:
        state = "not as it was written" if (out / WRITTEN).exists() else "missing"
        return [f"{WRITTEN} is {state}: what else the report wrote is not known"], []
    missing = [name for name in expected if not (out / name).is_file()]
    changed = [
        file_name
        for file_name in expected
        if file_name not in missing and files.sha256_of_file(out / file_name) != expected[file_name]
    ]
    spare = spare_files(out, missing)
    differences = [f"missing: {name}" for name in missing if name not in spare]
    return [*differences, *(f"changed: {name}" for name in changed)], spare


def large_tables(out: Path, names: Iterable[str]) -> list[str]:
    """The CSV files of tables/ that are too large to be kept."""
    tables = [name for name in names if name.startswith("tables/") and name.endswith(".csv")]
    return sorted(name for name in tables if (out / name).stat().st_size > LARGE_BYTES)


def spare_files(out: Path, names: Iterable[str]) -> list[str]:
    """Those of the names whose files need not be kept."""
    page, large = out / "report.md", _read_files_json(out).get("large", [])
    page_text = page.read_text(encoding="utf-8") if page.is_file() else ""

    def is_spare(name: str) -> bool:
        is_not_shown = (
            name.startswith("figures/") and name.endswith(".png") and bool(page_text) and f"({name})" not in page_text
        )
        return is_not_shown or name == "index.html" or name.endswith(MADE_AGAIN) or name in large

    return [name for name in names if is_spare(name) and not name.startswith("evidence/")]


FORMAT = 4
"""Version of the evidence folder; a reader refuses any other."""

FOLDER = "evidence"
PREDICTIONS = "predictions.parquet"
JSONS = ("settings.json", "runs.json")
TEXTS: tuple[str, ...] = ("run", "group", "model", "task", "condition", "base", "first", "second", "parameter", "split")
TEXTS += ("regime", "score", "reason", "note", "gain_verdict", "gain_reason", "measure", "reported_split", "stratum")
TEXTS += ("manifest_sha256", "frequencies", "reason_kind", "statistic", "token", "before", "after", "ranking")
"""Columns of the tables that are text, whatever they look like."""
NAMES: tuple[str, ...] = (*JSONS, PREDICTIONS, "runs.csv", "scores.csv", "drift.csv", "gauge.csv", "seeds.csv")
NAMES += ("labels.csv", "strata.parquet", "boxes.csv", "dots.csv", "exposed.csv", "tokens.parquet")
NAMES += ("positions.parquet", "word_counts.csv", "words.parquet")
"""The files whose hashes the cards name; beside them lies PAGE."""
PAGE = "page.json"


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that a report is made from; the table of what was not kept is empty, without columns."""

    settings: Mapping[str, Any]
    facts: Mapping[str, Mapping[str, Any]]
    """Run to its config, manifest, manifest_sha256 and config_sha256."""
    predictions: pd.DataFrame
    runs: pd.DataFrame
    scores: pd.DataFrame
    drift: pd.DataFrame
    """`measure_beyond_noise` of each run."""
    gauge: pd.DataFrame
    """The gauge share of each run whose tables moved."""
    seeds: pd.DataFrame
    """Distance between the ends of two runs of one condition, per parameter."""
    labels: pd.DataFrame
    """`label_statistics`: no line where no condition was also run with shuffled labels."""
    strata: pd.DataFrame
    """`measure_drift` of each run of the most training examples."""
    boxes: pd.DataFrame
    """How far word rows moved by stratum: `boxes_of` each condition's first seed, as the four tables below."""
    dots: pd.DataFrame
    exposed: pd.DataFrame
    tokens: pd.DataFrame
    positions: pd.DataFrame
    word_counts: pd.DataFrame
    words: pd.DataFrame
    """`measure_words` of each condition whose words moved."""
    page: Mapping[str, Any]
    """title, question, expected, command, left_out and not_kept (sentences) and tuning (column to values), where they
    are known."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """File name to sha256; empty until it is saved."""
    folder: Path | None = None
    """The report that it was read from."""

    @cached_property
    def reported(self) -> tuple[ReportedRun, ...]:
        """Its runs, as comparisons see them."""
        parts = {
            name: dict(iter(table.groupby("run", sort=False)))
            for name, table in (("scores", self.scores), ("predictions", self.predictions))
        }
        parameters = self.drift.groupby("run", sort=False)["parameter"].agg(tuple)
        last_epochs = dict(zip(self.runs["run"], self.runs["last_epoch"], strict=True))
        reported_runs = []
        for name, facts in self.facts.items():
            config_values = facts["config"]
            is_recorded = bool(config_values.get(RECORDED))
            config = None if is_recorded else RunConfig.from_json(json.dumps(config_values), f"the config of {name}")
            scores, answers = (
                by_run.get(name, getattr(self, kind).iloc[:0]).drop(columns="run").reset_index(drop=True)
                for kind, by_run in parts.items()
            )
            # Beside a token task's runs those of others have a column of nothing.
            has_words = "word" not in answers or not answers["word"].isna().all()
            reported_runs.append(
                ReportedRun(
                    name,
                    config,
                    facts["manifest"],
                    scores[facts["scores"]],
                    answers if has_words else answers.drop(columns="word"),
                    (self.settings["tasks"] or {}).get(name),
                    known_ends=(parameters.get(name, ()), float(last_epochs[name])),
                    hashes={f"{key}.json": facts[f"{key}_sha256"] for key in ("manifest", "config")},
                    command=facts["command"],
                    recorded={
                        field_name: value for field_name, value in config_values.items() if field_name != RECORDED
                    }
                    if is_recorded
                    else {},
                )
            )
        return tuple(reported_runs)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Its runs arranged as the report's were."""
        return self.arrange(self.reported)

    def arrange(self, runs: Iterable[ReportedRun]) -> tuple[Group, ...]:
        """Runs of the report, from wherever they are read, grouped under the labels that it gives conditions."""
        return arrange_reported(list(runs), self.settings["labels"])

    @property
    def tuning(self) -> pd.DataFrame | None:
        """What a study tried and chose; None outside of studies."""
        columns = self.page.get("tuning")
        table = None if columns is None else pd.DataFrame(columns)
        return None if table is None else table.where(table.notna(), np.nan)

    def inputs(self, names: Iterable[str], runs: Iterable[str]) -> dict[str, dict[str, str]]:
        """The sha256 of some evidence files and of the manifests of some runs."""
        hashes = {name: self.hashes[name] for name in names}
        return {"files": hashes, "runs": {name: str(self.facts[name]["manifest_sha256"]) for name in runs}}


def save_evidence(evidence: Evidence, folder: str | Path) -> Evidence:
    """Write ``folder``/evidence; the same evidence with its hashes. What was read from a report is copied as it is."""
    place = Path(folder) / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    # Its hashes were taken from these very bytes.
    if evidence.folder is not None:
        for source in (evidence.folder / name for name in (*evidence.hashes, f"{FOLDER}/{PAGE}")):
            if source.is_file():
                files.write_bytes(place / source.name, source.read_bytes())
        return evidence
    entries = [
        [json.dumps(part, ensure_ascii=False) for part in name_and_facts] for name_and_facts in evidence.facts.items()
    ]
    runs_text = ",\n".join(f"{name}: {facts}" for name, facts in entries)
    settings, page = (json.dumps(values, indent=1, ensure_ascii=False) for values in (evidence.settings, evidence.page))
    for name, text in zip((*JSONS, PAGE), (settings, f"{{\n{runs_text}\n}}", page), strict=True):
        files.write_text(place / name, f"{text}\n")
    for name in NAMES[len(JSONS) :]:
        stem, _, kind = name.partition(".")
        table: pd.DataFrame = getattr(evidence, stem)
        if kind == "csv":
            files.write_text(place / name, csv_of(table))
        else:
            files.write_with(place / name, partial(_write_parquet, table))
    return replace(evidence, hashes={f"{FOLDER}/{name}": files.sha256_of_file(place / name) for name in NAMES})


def _write_parquet(table: pd.DataFrame, path: Path) -> None:
    """Write a table as Parquet, packed for size."""
    # Bytes of like weight beside each other: a third less for floats that are no round numbers.
    floats = [str(name) for name in table if pd.api.types.is_float_dtype(table[name])]
    other_columns = [str(name) for name in table if name not in floats]
    packed: dict[str, Any] = {"compression": "zstd", "compression_level": 19}
    table.to_parquet(path, index=False, use_dictionary=other_columns, use_byte_stream_split=floats, **packed)


def read_evidence(folder: str | Path) -> Evidence:
    """The evidence of a report folder; ValueError when a file is missing, cut short or of another format."""
    place = Path(folder) / FOLDER
    _check_files_exist(folder, JSONS)
    settings, facts = (_read_file(place / name) for name in JSONS)
    check_format(settings.get("format"), FORMAT, place)
    _check_files_exist(folder, (*NAMES, PAGE))
    tables = {name.partition(".")[0]: _read_file(place / name) for name in NAMES[len(JSONS) :]}
    hashes = {f"{FOLDER}/{name}": files.sha256_of_file(place / name) for name in NAMES}
    return Evidence(settings, facts, **tables, page=_read_file(place / PAGE), hashes=hashes, folder=Path(folder))


def making(folder: str | Path) -> AbstractContextManager[None]:
    """The one guard around what is made of a report's evidence: whatever is wrong in it becomes a ValueError.

    Its tables and facts are no stranger's, and their hashes say whether they are as they were written; but hashes can
    be made anew.
    """
    return reading(f"the evidence of {folder}", "is not as a report writes it", ValueError)


def check_evidence(folder: str | Path) -> None:
    """ValueError where a report's evidence is not what its cards were made from."""
    if not (Path(folder) / CARDS).is_file():
        return
    changed = [
        name
        for name, digest in load_cards(folder)[1].items()
        if not (path := Path(folder) / name).is_file() or files.sha256_of_file(path) != digest  # /dev/zero is no file
    ]
    if changed:
        raise ValueError(f"{folder} is not as it was written (changed: {', '.join(changed)}): restore it")


def _check_files_exist(folder: str | Path, names: Iterable[str]) -> None:
    """ValueError where files of the evidence are missing: no report, one without evidence, or a part of one."""
    place, page = Path(folder) / FOLDER, Path(folder) / "report.md"
    missing = [f"{FOLDER}/{name}" for name in names if not (place / name).is_file()]
    faults = {
        f"no report at {folder}{meant_by(folder)}": not Path(folder).is_dir(),
        f"{folder} is a run and no report: `report {folder} --out FOLDER` makes one, and FOLDER is what to pass": (
            (Path(folder) / MANIFEST).is_file() or checkpoints_in(Path(folder))
        ),
        f"{folder} keeps no evidence to make its pages from: read {page}, which has its command": (
            page.is_file() and not place.is_dir()
        ),
        f"{folder} is not a whole report: missing {', '.join(missing)}": missing,
    }
    refuse_first(faults)


def _read_file(path: Path) -> Any:
    """The JSON or table of one evidence file; ValueError, with its name, where it cannot be read."""
    with reading(f"{FOLDER}/{path.name}"):
        return read_json(path) if path.suffix == ".json" else read_table(path)


def read_table(path: Path) -> pd.DataFrame:
    """Numbers bit for bit; nothing but an empty cell is missing: a task may be called nan, and a label 12."""
    if path.suffix == ".parquet":
        return settled(pd.read_parquet(path, partitioning=None))
    if not path.read_bytes().strip():
        return pd.DataFrame()
    return settled(unquoted(pd.read_csv(path, dtype=dict.fromkeys(TEXTS, str), keep_default_na=False, na_values=[""])))


def settled(table: pd.DataFrame) -> pd.DataFrame:
    """A table as it is read back: texts without missing ones, numbers as int64 or float64, lines numbered from 0."""
    return pd.DataFrame(
        {name: _settled_column(table[name], str(name)) for name in table}, columns=table.columns
    ).reset_index(drop=True)


def _settled_column(column: pd.Series, name: str) -> pd.Series:
    """A column as it is read back: texts without missing ones, whole numbers as int64, other numbers as float64."""
    if name in TEXTS:
        if column.dtype == "str":
            return column.fillna("") if column.hasnans else column
        return column.astype(object).where(column.notna(), "").astype(str)
    if column.isna().all():
        return column.astype(object).where(column.notna(), np.nan).astype(float)
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return column
    is_whole = pd.api.types.is_integer_dtype(column) and column.notna().all()
    return column.astype("int64" if is_whole else "float64")
