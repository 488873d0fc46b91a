"""Planted right answers in, runs whose predictions and scores hold just these out; and runs in, their cards out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.comparison.cards import make_cards
from toolkit.comparison.evidence import FOLDER, JOINED, LABELS, NEWER, PAGE, Evidence, read_evidence, save_evidence
from toolkit.comparison.measure import PARTS_OF_1, measure
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.verdicts import save_cards
from toolkit.snapshots import files
from toolkit.snapshots.store import Run, open_run


def plant(path: Path, right: Any, *, ids: Any = None, labels: Any = None) -> Run:
    """The run at ``path``, as if it had answered ``right`` (bool per item) at its last epoch."""
    right = np.asarray(right, bool)
    labels = np.arange(len(right)) % 2 if labels is None else np.asarray(labels)
    frame = {"id": np.arange(len(right)) if ids is None else ids, "label": labels}
    table = pd.DataFrame(frame | {"prediction": np.where(right, labels, 1 - labels)})
    run = open_run(path)
    object.__setattr__(run, "predictions", table.assign(epoch=3.0, split="validation"))
    line = {"epoch": 3.0, "split": "validation", "accuracy": right.mean()}
    object.__setattr__(run, "scores", pd.DataFrame([line]))
    return run


def write_evidence(runs: Any, labels: Any, folder: Any, **options: Any) -> Evidence:
    """Measure runs and write ``folder``/evidence."""
    return save_evidence(measure(runs, labels, **options), folder)


def _gone(path: Path) -> Path:
    path.unlink()
    return path


EARLIER = {
    "drift": {"offset_free_drift": "drift", "reason": "refusal"},
    "labels": {"second": "other", "reason": "refusal"},
    "word_counts": {"reason": "refusal"},
    "joined": {"offset_free_drift": "drift", "reason": "drift_note", "value_before": "first_score"}
    | {"value": "last_score"},
}
"""Table to today's names of columns and those of formats 1 and 2, where ``condition`` was ``arm`` in all of them."""


def as_format_2(folder: Path) -> Evidence:
    """Let ``folder``/evidence call its columns what earlier versions called them."""
    place = Path(folder) / FOLDER
    for path in (*place.glob("*.csv"), *place.glob("*.parquet")):
        names = {"condition": "arm"} | EARLIER.get(path.stem, {})
        if path.suffix == ".parquet":
            table = pd.read_parquet(path).rename(columns=names)
            _gone(path)
            table.to_parquet(path, index=False)
        else:
            header, _, lines = path.read_text().partition("\n")
            header = ",".join(names.get(name, name) for name in header.split(","))
            files.write_text(_gone(path), f"{header}\n{lines}")
    page, settings = (json.loads((place / name).read_text()) for name in (PAGE, "settings.json"))
    if tuning := page["tuning"]:
        page["tuning"] = {{"condition": "arm"}.get(name, name): values for name, values in tuning.items()}
    files.write_text(_gone(place / PAGE), json.dumps(page))
    files.write_text(_gone(place / "settings.json"), json.dumps(settings | {"format": 2}))
    return read_evidence(folder)


def as_format_1(folder: Path) -> Evidence:
    """Let ``folder``/evidence be what earlier versions wrote: joined.csv, and nothing that only a page shows."""
    place, data = Path(folder) / FOLDER, ReportData(read_evidence(folder), num_draws=0)
    joined = data.joined.assign(note=data.joined["gain_reason"] + data.joined["note"]).drop(columns="gain_reason")
    files.write_text(place / JOINED, joined.to_csv(index=False, lineterminator="\n"))
    as_format_2(folder)
    for name in (PAGE, *NEWER, *([] if len(data.evidence.labels) else [LABELS])):
        (place / name).unlink()
    settings = json.loads((place / "settings.json").read_text())
    kept = ("labels", "tasks", "pairs", "margin_points", "level", "alpha")
    settings = {"format": 1} | {name: settings[name] for name in kept}
    files.write_text(
        _gone(place / "settings.json"), json.dumps({"format": 1} | {name: settings[name] for name in kept})
    )
    facts = json.loads((place / "runs.json").read_text())
    for own in facts.values():
        own["config"]["output_dir"] = ""
        own["manifest"] = {name: part for name, part in own["manifest"].items() if name in (*PARTS_OF_1, "regime")}
        for name in ("scores", "config_sha256", "command"):
            del own[name]
    files.write_text(_gone(place / "runs.json"), json.dumps(facts))
    return read_evidence(folder)


def write_cards(runs, folder, **options):
    """Write ``folder``/evidence and ``folder``/cards.json, as a report does; the cards."""
    evidence = write_evidence(runs, None, folder, **options)
    cards = make_cards(evidence)
    save_cards(cards, folder, evidence.hashes)
    return cards
