"""Runs in, what was run out: runs and arms, data, definitions of the measures, hashes, versions."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.analysis.rows.measures import MEASURES
from toolkit.comparison.arms import Arm, Group, ReportedRun
from toolkit.comparison.evidence import NOT_KEPT
from toolkit.naming import shorten
from toolkit.reporting.cells import NOT_APPLICABLE, listing, number
from toolkit.reporting.page import Block, TextBlock, rows_block

RUN_COLUMNS: tuple[str, ...] = (
    "run",
    "model",
    "task",
    "arm",
    "seed",
    "epochs",
    "learning rate",
    "head learning rate",
    "batch size",
)
RUN_COLUMNS += ("precision", "pooling", "features", "pair encoding", "head", "trainable parameters", "seconds", "state")


def runs_frame(groups: Sequence[Group]) -> pd.DataFrame:
    """One line per run: what was trained, how, what it cost, its hashes, and the command that repeats it."""
    lines = [_line(run, arm) for group in groups for arm in group.arms for run in arm.runs]
    return pd.DataFrame(lines)


def _line(run: ReportedRun, arm: Arm) -> dict[str, object]:
    line = dict(zip(RUN_COLUMNS, [*_run_cells(run, arm), "failed" if run.is_failed else "finished"], strict=True))
    line |= _hash_cells(run) | {"command": run.command}
    if run.hashes["config.json"] == NOT_KEPT:  # by evidence of an earlier version, which says nothing of the run
        line = {name: NOT_KEPT if value == "not recorded" else value for name, value in line.items()}
    return line


def runs_block(groups: Sequence[Group]) -> Block:
    """One line per run."""
    lines = runs_frame(groups)[list(RUN_COLUMNS)]
    return rows_block(list(RUN_COLUMNS), lines.to_numpy(dtype=object).tolist(), "What was run: one line per run")


def arms_block(groups: Sequence[Group]) -> Block:
    """One line per arm: its seeds and how it was trained, where all its runs agree."""
    lines = runs_frame(groups)
    rows = []
    for (model, task, arm), own in lines.groupby(["model", "task", "arm"], sort=False):
        shared = [_agreed(own[name]) for name in RUN_COLUMNS[5:15]]
        seeds = listing([str(seed) for seed in own["seed"]]) if len(own) <= 3 else f"{len(own)} seeds"
        rows.append([model, task, arm, seeds, *shared, int((own["state"] == "failed").sum())])
    header = ["model", "task", "arm", "seeds", *RUN_COLUMNS[5:15], "failed"]
    return rows_block(header, rows, "What was run: one line per arm")


def _agreed(values: pd.Series) -> object:
    found = list(dict.fromkeys(values))
    return found[0] if len(found) == 1 else "varies"


def _run_cells(run: ReportedRun, arm: Arm) -> list[object]:
    config, model = run.config, run.part("model")
    epochs = f"{config.num_epochs}" + (f" (at most {config.max_steps} steps)" if config.max_steps else "")
    if config.head_training == "early-stopping":
        epochs = f"{run.last_epoch:g} (early stopping)"
    rate = NOT_APPLICABLE if arm.is_feature_extraction else f"{config.learning_rate:g}"
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
        f"{config.batch_size} (at most {config.batch_tokens} tokens)" if config.batch_tokens else config.batch_size,
        str(run.manifest.get("precision") or config.precision),
        str(model.get("pooling") or config.pooling),
        config.features,
        config.pair_encoding,
        str(model.get("head") or "not recorded"),
        f"{trainable:,} of {total:,}" if trainable is not None and total is not None else "not recorded",
        number(float(sum(seconds))) if seconds else "not recorded",
    ]


def _hash_cells(run: ReportedRun) -> dict[str, object]:
    """The run's digest (the end of its name), the sha256 of config and manifest, and the machine."""
    manifest, digest = run.manifest, run.name.rpartition("_")[2]
    devices = manifest.get("devices")
    return {
        "config digest": digest if re.fullmatch(r"[0-9a-f]{8}", digest) else "not recorded",
        "sha256 of config.json": run.hashes["config.json"],
        "sha256 of manifest.json": run.hashes["manifest.json"],
        "git commit": str(manifest.get("git_commit") or "not recorded"),
        "devices": ", ".join(map(str, devices)) if isinstance(devices, list) else str(devices or "not recorded"),
        "processes": str(manifest.get("num_processes") or "not recorded"),
    }


def data_block(group: Group) -> Block:
    """One line per split of the task, as the first run recorded it: examples, truncated and empty texts, what it was
    read from, and the sha256 of that."""
    run = group.runs[0]
    splits: dict[str, dict[str, Any]] = run.part("task").get("splits") or {}
    keys = ("num_examples", "num_truncated", "num_empty_texts")
    rows = [
        [name, *(facts.get(k, "not recorded") for k in keys), *_source_cells(run, name)]
        for name, facts in splits.items()
    ]
    if not rows:
        return TextBlock(text="Not recorded.")
    header = ["split", "examples", "truncated", "empty texts", "read from", "sha256"]
    return rows_block(header, rows, f"Splits of {group.title}, as the first run read them")


def _source_cells(run: ReportedRun, split: str) -> tuple[str, str]:
    """What a split was read from, and the sha256 of that file or, of a dataset of the hub, of its texts and labels."""
    config = run.config
    role = "train" if split == "selection" else split  # held out of it
    files = {"train": config.train_file, "validation": config.validation_file}
    files |= {name: path for name, _, path in (entry.partition("=") for entry in (*config.test_file, *config.ood_file))}
    if config.train_file:
        path = files.get(role)
        # With its folder, which as a rule is called as the data are; of an absolute path the name is all there is.
        source = "/".join(Path(path).parts[-2:]) if path else "not recorded"
    elif config.dataset:
        source = " ".join(filter(None, [shorten(config.dataset), config.dataset_config]))
    else:
        source = config.task
        if role not in run.data_sha256:
            return source, NOT_APPLICABLE  # built in: the version of the toolkit says what it is
    return source, run.data_sha256.get(role, "not recorded")


def definitions_block() -> Block:
    """One line per measure."""
    header = ["measure", "unit", "what it is", "source", "signed"]
    rows = [[name, m.unit, m.description, m.source, "yes" if m.is_signed else "no"] for name, m in MEASURES.items()]
    return rows_block(header, rows, "Measures of a row")


def hashes_block(groups: Sequence[Group]) -> Block:
    """One line per run."""
    lines = runs_frame(groups)
    names = ["run", "config digest", "sha256 of config.json", "sha256 of manifest.json", "git commit", "devices"]
    names += ["processes", "precision"]
    return rows_block(names, lines[names].to_numpy(dtype=object).tolist(), "Hashes and machines")


def versions_block(runs: Sequence[ReportedRun]) -> Block:
    """One line per package; its versions, and by how many runs each was used where they differ."""
    names = dict.fromkeys(name for run in runs for name in run.part("versions"))
    rows = []
    for name in names:
        found = pd.Series([str(run.part("versions").get(name, "absent")) for run in runs]).value_counts(sort=False)
        shown = [str(version) if len(found) == 1 else f"{version} ({count} runs)" for version, count in found.items()]
        rows.append([name, ", ".join(shown)])
    return (
        rows_block(["package", "version"], rows, "Versions") if rows else TextBlock(text="Versions were not recorded.")
    )
