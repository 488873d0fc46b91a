"""Runs in, the Markdown tables of what was run out: runs, data, definitions of the measures, hashes, versions."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from toolkit.analysis.comparison.arms import Arm, Group, ReportedRun
from toolkit.analysis.rows.measures import MEASURES
from toolkit.reporting import markdown
from toolkit.reporting.markdown import number
from toolkit.snapshots import files
from toolkit.snapshots.store import MANIFEST


def runs_table(groups: Sequence[Group], failed: Iterable[str]) -> str:
    """One line per run: what was trained, how, and what it cost."""
    header = ["run", "model", "task", "regime", "seed", "epochs", "learning rate", "head learning rate", "batch size"]
    header += ["precision", "pooling", "head", "trainable parameters", "seconds", "state"]
    failed = set(failed)
    rows = [
        [*_run_cells(run, arm), "failed" if run.name in failed else "finished"]
        for group in groups
        for arm in group.arms
        for run in arm.runs
    ]
    return markdown.table(header, rows)


def _run_cells(run: ReportedRun, arm: Arm) -> list[object]:
    config, model = run.config, run.part("model")
    epochs = f"{config.epochs}" + (f" (at most {config.max_steps} steps)" if config.max_steps else "")
    rate = None if arm.is_feature_extraction else f"{config.learning_rate:g}"
    trainable, total = model.get("num_trainable"), model.get("num_parameters")
    seconds = [value for name, value in run.part("cost").items() if name.startswith("seconds_")]
    return [
        run.name,
        run.model,
        run.task,
        arm.label,
        str(config.seed),
        epochs,
        rate,
        f"{config.head_learning_rate:g}",
        config.batch_size,
        str(run.run.manifest.get("precision") or config.precision),
        str(model.get("pooling") or config.pooling),
        str(model.get("head") or "not recorded"),
        f"{trainable:,} of {total:,}" if trainable is not None and total is not None else "not recorded",
        number(float(sum(seconds))) if seconds else "not recorded",
    ]


def data_table(group: Group) -> str:
    """One line per split of the task: examples, truncated and empty texts, as the first run recorded them."""
    splits: dict[str, dict[str, Any]] = group.runs[0].part("task").get("splits") or {}
    keys = ("num_examples", "num_truncated", "num_empty_texts")
    rows = [[split, *(facts.get(key, "not recorded") for key in keys)] for split, facts in splits.items()]
    return markdown.table(["split", "examples", "truncated", "empty texts"], rows) if rows else "Not recorded."


def definitions_table() -> str:
    """One line per measure."""
    header = ["measure", "unit", "what it is", "source", "signed"]
    rows = [[name, m.unit, m.description, m.source, "yes" if m.is_signed else "no"] for name, m in MEASURES.items()]
    return markdown.table(header, rows)


def hashes_table(runs: Sequence[ReportedRun]) -> str:
    """One line per run: its digest (the end of its name), the sha256 of config and manifest, and the machine."""
    header = ["run", "config digest", "sha256 of config.json", "sha256 of manifest.json", "git commit", "devices"]
    header += ["processes", "precision"]
    rows: list[list[object]] = []
    for run in runs:
        manifest, path = run.run.manifest, run.run.path
        digest = path.name.rpartition("_")[2]
        devices = manifest.get("devices")
        rows.append(
            [
                run.name,
                digest if re.fullmatch(r"[0-9a-f]{8}", digest) else "not recorded",
                files.sha256_of_file(path / "config.json"),
                files.sha256_of_file(path / MANIFEST),
                str(manifest.get("git_commit") or "not recorded"),
                ", ".join(map(str, devices)) if isinstance(devices, list) else str(devices or "not recorded"),
                str(manifest.get("num_processes") or "not recorded"),
                str(manifest.get("precision") or run.config.precision),
            ]
        )
    return markdown.table(header, rows)


def versions_table(runs: Sequence[ReportedRun]) -> str:
    """One line per package; its versions, and by how many runs each was used where they differ."""
    names = dict.fromkeys(name for run in runs for name in run.part("versions"))
    rows = []
    for name in names:
        found = pd.Series([str(run.part("versions").get(name, "absent")) for run in runs]).value_counts(sort=False)
        shown = [str(version) if len(found) == 1 else f"{version} ({count} runs)" for version, count in found.items()]
        rows.append([name, ", ".join(shown)])
    return markdown.table(["package", "version"], rows) if rows else "Versions were not recorded."
