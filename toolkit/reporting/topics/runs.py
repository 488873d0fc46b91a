"""What was run: runs, data, tuning, hashes and versions, and the definitions of measures."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.measures import MEASURES
from toolkit.comparison.conditions import Condition, Group, ReportedRun
from toolkit.comparison.report_data import ReportData, order_of
from toolkit.config import MLM, RunConfig
from toolkit.naming import shorten
from toolkit.reporting.cells import NOT_APPLICABLE, listing, number, span
from toolkit.reporting.charts import Charts, draw
from toolkit.reporting.page import Block, NoteBlock, Section, TextBlock, folds, rows_block, table_block
from toolkit.reporting.topics.caveats import edge_warning, unstable
from toolkit.reporting.topics.comparison import comparison_section, differences_chart
from toolkit.reporting.topics.drift_and_score import (
    cost_section,
    drift_and_score_chart,
    drift_and_score_section,
)
from toolkit.reporting.topics.scores import cost_chart, scores_chart, scores_section
from toolkit.schema import COLUMNS
from toolkit.snapshots.output_folder import WITHOUT_RECORD

LABELS = (
    "condition control parameter measure real_mean shuffled_mean value low high detectable_gap unit q verdict reason"
)


def study_charts(data: ReportData) -> Charts:
    """The charts of all groups together, those that there is something to draw of."""
    regimes = order_of(data.details)
    margin = float(pd.to_numeric(data.comparison["margin_points"]).max())
    return draw(
        {
            "differences": lambda: differences_chart(data.comparison),
            "scores_by_condition": lambda: scores_chart(data.scores, regimes=regimes),
            "cost_against_score": lambda: cost_chart(data.scores, regimes=regimes),
            # One task is one point, and no relation.
            "drift_against_gain": lambda: (
                drift_and_score_chart(data.joined, margin_points=margin) if len(data.groups) > 1 else None
            ),
        }
    )


def study_sections(data: ReportData) -> list[Section]:
    """The sections on scores, comparison, cost, drift and score, tuning: those with contents."""
    charts = study_charts(data)
    sections = (
        scores_section(data, charts),
        comparison_section(data, charts),
        cost_section(data, charts),
        labels_section(data),
        drift_and_score_section(data, charts),
        tuning_section(data),
    )
    return [section for section in sections if section is not None]


def labels_section(data: ReportData) -> Section | None:
    """What real labels add to drift; no section where no labels were shuffled."""
    if data.labels.empty:
        return None
    titles = list(dict.fromkeys(data.labels["group"]))
    caption = "Drift under real and under shuffled labels, and what real labels add (value), on "
    bodies = [
        [table_block(data.labels[data.labels["group"] == title], LABELS, f"{caption}{title}")] for title in titles
    ]
    lead = (
        "Runs on shuffled labels can only memorise. What they share with runs on real labels, a multiple of sign noise "
        "above 1 for one, is no sign of learning; what real labels add is. Seeds agree where they have the same "
        "targets, so that agreement is held against one permutation for all seeds."
    )
    return Section(id="shuffled-labels", title="Real against shuffled labels", lead=lead, blocks=folds(titles, bodies))


def tuning_section(data: ReportData) -> Section | None:
    """The section on what was tried for each condition, on which split it was chosen, and what was chosen."""
    if data.tuning is None:
        return None
    table = data.tuning
    if table.empty:
        return Section(
            id="tuning", title="Tuning", lead="Nothing was tuned: every condition was run with the settings given."
        )
    warnings = tuple(NoteBlock(text=text, is_warning=True) for text in (unstable(data), edge_warning(data)) if text)
    keys = [name for name in ("task", "condition") if name in table]
    nums_tried = table.groupby(keys, sort=False).size()
    lead = (
        f"Every condition had the same budget ({span(nums_tried)} settings per task), chosen by the score on the split "
        "selection, which was held out of the training data. No setting was chosen on the reported split."
    )
    tries_by_task = dict(list(table.groupby("task", sort=False))) if "task" in table else {"": table}
    bodies = [
        [table_block(tries, table, f"Settings tried on {task}".removesuffix(" on "))]
        for task, tries in tries_by_task.items()
    ]
    blocks = folds(list(map(str, tries_by_task)), bodies)
    return Section(id="tuning", title="Tuning", lead=lead, blocks=(*warnings, *blocks))


SETTINGS = (
    "epochs",
    "learning rate",
    "head learning rate",
    "batch size",
    "precision",
    "pooling",
    "features",
    "pair encoding",
    "head",
    "trainable parameters",
)
HASHES = (
    "config digest",
    "sha256 of config.json",
    "sha256 of manifest.json",
    "git commit",
    "devices",
    "processes",
)
UNKNOWN, NOT_KEPT, NOT_KNOWN = "not recorded", "not kept", "not known"


def runs_frame(groups: Sequence[Group]) -> pd.DataFrame:
    """A record per run: what was trained, how, at what cost, its hashes, and the command that repeats it."""
    return pd.DataFrame(
        [_run_record(run, condition) for group in groups for condition in group.conditions for run in condition.runs]
    )


def _run_record(run: ReportedRun, condition: Condition) -> dict[str, object]:
    """A run's record in tables/runs: what was trained and how, its cost and hashes, and the command that repeats it."""
    manifest, model = run.manifest, run.part("model")
    num_trainable, num_parameters = model.get("num_trainable"), model.get("num_parameters")
    are_counted = num_trainable is not None and num_parameters is not None
    devices = manifest.get("devices")
    digest = run.name.rpartition("_")[2]
    states = {True: "failed", False: "finished", None: "finished; whether it learned is not known"}
    is_folder = run.recorded.get("recorded_by") == WITHOUT_RECORD
    record: dict[str, object] = {
        "run": run.name,
        "model": run.model,
        "task": run.task,
        "condition": condition.label,
        "seed": NOT_KNOWN if run.seed is None else str(run.seed),
        **(_recorded_settings(run) if run.is_recorded else _config_settings(run, condition)),
        "head": str(model.get("head") or run.setting("head") or UNKNOWN),
        "trainable parameters": f"{num_trainable:,} of {num_parameters:,}" if are_counted else UNKNOWN,
        "seconds": number(run.seconds) if run.seconds == run.seconds else UNKNOWN,
        "state": states[run.is_failed],
        # The digest is the end of a run's name.
        "config digest": digest if re.fullmatch(r"[0-9a-f]{8}", digest) else UNKNOWN,
        # What stands for these files has a hash too, which is that of no file.
        "sha256 of config.json": NOT_KEPT if is_folder else run.hashes["config.json"],
        "sha256 of manifest.json": NOT_KEPT if is_folder else run.hashes["manifest.json"],
        "git commit": str(manifest.get("git_commit") or UNKNOWN),
        "devices": ", ".join(map(str, devices)) if isinstance(devices, list) else str(devices or UNKNOWN),
        "processes": str(manifest.get("num_processes") or UNKNOWN),
        "command": run.command,
    }
    record["precision"] = "fp32" if record["precision"] == "no" else record["precision"]  # as Accelerate calls it
    if run.hashes["config.json"] == NOT_KEPT:  # a report's evidence says little of the run, which may say more
        record = {name: NOT_KEPT if value == UNKNOWN else value for name, value in record.items()}
    return record


def _config_settings(run: ReportedRun, condition: Condition) -> dict[str, object]:
    """How a run of ours was trained."""
    config, manifest, model = run.config, run.manifest, run.part("model")
    epochs = f"{config.num_epochs}" + (f" (at most {config.max_steps} steps)" if config.max_steps else "")
    if config.head_training == "early-stopping":
        is_convex = run.part("head_training").get("chosen") == "convex"
        epochs = f"{NOT_APPLICABLE} (convex head)" if is_convex else f"{run.last_epoch:g} (early stopping)"
    batch = f"{config.batch_size} (at most {config.batch_tokens} tokens)" if config.batch_tokens else config.batch_size
    return {
        "epochs": epochs,
        "learning rate": NOT_APPLICABLE if condition.is_feature_extraction else _rates_text(config),
        "head learning rate": f"{config.head_rate:g}",
        "batch size": batch,
        "precision": str(manifest.get("precision") or config.precision),
        "pooling": NOT_APPLICABLE if config.objective == MLM else str(model.get("pooling") or config.pooling),
        "features": config.features,
        "pair encoding": config.pair_encoding,
    }


def _recorded_settings(run: ReportedRun) -> dict[str, object]:
    """The same of a run of another loop, as far as its Trainer's arguments tell."""
    arguments = run.recorded["arguments"]
    batch = arguments.get("per_device_train_batch_size", arguments.get("train_batch_size"))
    num_accumulated = arguments.get("gradient_accumulation_steps") or 1
    half_types = [name for name in ("bf16", "fp16") if arguments.get(name)]
    highest_logged = arguments.get("highest_logged_rate")  # of an output folder, whose log begins late
    logged_text = f"{highest_logged:g} or more (as logged)" if highest_logged else NOT_KNOWN
    return {
        "epochs": f"{run.last_epoch:g}",
        "learning rate": logged_text if np.isnan(run.learning_rate) else f"{run.learning_rate:g}",
        "head learning rate": NOT_KNOWN,
        "batch size": NOT_KNOWN if batch is None else f"{batch * num_accumulated} per device",
        "precision": half_types[0] if half_types else "no" if "bf16" in arguments else NOT_KNOWN,
        **dict.fromkeys(("pooling", "features", "pair encoding"), NOT_KNOWN),
    }


def _rates_text(config: RunConfig) -> str:
    """The backbone's peak learning rate, and those of its parts that have their own."""
    embedding_rate = config.embedding_learning_rate
    other_rates = [] if embedding_rate is None else [f"embeddings {embedding_rate:g}"]
    other_rates += [] if config.layer_decay == 1 else [f"times {config.layer_decay:g} per layer below the top"]
    return f"{config.learning_rate:g}" + (f" ({', '.join(other_rates)})" if other_rates else "")


def _runs_block(groups: Sequence[Group], names: Sequence[str], caption: str) -> Block:
    """A line per run with these columns of :func:`runs_frame`."""
    return rows_block(names, runs_frame(groups)[list(names)].to_numpy(dtype=object).tolist(), caption)


def conditions_block(groups: Sequence[Group]) -> Block:
    """A row per condition: its seeds and how it was trained, "varies" where its runs differ."""
    rows = []
    for key, runs in runs_frame(groups).groupby(["model", "task", "condition"], sort=False):
        settings = [runs[name].iloc[0] if runs[name].nunique() == 1 else "varies" for name in SETTINGS]
        seeds = listing([str(seed) for seed in runs["seed"]]) if len(runs) <= 3 else f"{len(runs)} seeds"
        rows.append([*key, seeds, *settings, int((runs["state"] == "failed").sum())])
    header = ["model", "task", "condition", "seeds", *SETTINGS, "failed"]
    return rows_block(header, rows, "What was run: one line per condition")


def data_block(group: Group) -> Block:
    """One line per split of the task, as the first run recorded it: examples, truncated and empty texts, what it was
    read from, and the sha256 of that."""
    run = group.runs[0]
    splits: dict[str, dict[str, Any]] = run.part("task").get("splits") or {}
    count_names = ("num_examples", "num_truncated", "num_empty_texts")
    rows = [
        [split, *(facts.get(name, UNKNOWN) for name in count_names), *_source_cells(run, split)]
        for split, facts in splits.items()
    ]
    if not rows:
        return TextBlock(text="Not recorded.")
    header = ["split", "examples", "truncated", "empty texts", "read from", "sha256"]
    return rows_block(header, rows, f"Splits of {group.title}, as the first run read them")


def _source_cells(run: ReportedRun, split: str) -> tuple[str, str]:
    """The source of a split, and the sha256 of that file or, of a dataset of the hub, of its texts and labels."""
    config = run.config
    read_split = "train" if split == "selection" else split  # which was held out of it
    named_files = [entry.partition("=") for entry in (*config.test_file, *config.ood_file)]  # NAME=PATH
    files = {"train": config.train_file, "validation": config.validation_file}
    files |= {name: path for name, _, path in named_files}
    if config.train_file:
        path = files.get(read_split)
        # With its folder, which as a rule is called as the data are; of an absolute path the name is all there is.
        source = "/".join(Path(path).parts[-2:]) if path else UNKNOWN
    elif config.dataset:
        source = " ".join(filter(None, [shorten(config.dataset), config.dataset_config]))
    else:
        source = config.task
        if read_split not in run.data_sha256:
            return source, NOT_APPLICABLE  # built in: the version of the toolkit says what it is
    return source, run.data_sha256.get(read_split, UNKNOWN)


def versions_block(runs: Sequence[ReportedRun]) -> Block:
    """A row per package: its version, or its versions with how many runs used each."""
    names = dict.fromkeys(name for run in runs for name in run.part("versions"))
    rows = []
    for name in names:
        counts = pd.Series([str(run.part("versions").get(name, "absent")) for run in runs]).value_counts(sort=False)
        texts = [str(version) if len(counts) == 1 else f"{version} ({count} runs)" for version, count in counts.items()]
        rows.append([name, ", ".join(texts)])
    return rows_block(["package", "version"], rows, "Versions")


MANY_RUNS = 12
"""With more runs than these the text has a line per condition, and tables/runs a line per run with its command."""

RUNS = (
    "Failed is a run that on the reported split is no better than always giving train's most frequent label, or gives "
    "every item one answer, or whose score is undefined. The backbone's learning "
    "rate is not applicable where the whole backbone is frozen."
)


def run_section(data: ReportData) -> Section:
    """The section on the runs: a row each, or per condition where they are many."""
    if len(data.runs) <= MANY_RUNS:
        names = ("run", "model", "task", "condition", "seed", *SETTINGS, "seconds", "state")
        blocks = [_runs_block(data.groups, names, "What was run: one line per run")]
    else:
        text = f"Each of the {len(data.runs)} runs, with its command, is in tables/runs.csv."
        blocks = [conditions_block(data.groups), TextBlock(text=text)]
    blocks += [NoteBlock(text=sentence) for sentence in data.left_out]
    return Section(id="runs", title="Runs", lead=RUNS, blocks=tuple(blocks))


def data_section(data: ReportData) -> Section:
    """The section on data: near-duplicates, then the splits of each task, a fold per group."""
    splits = folds([group.title for group in data.groups], [[data_block(group)] for group in data.groups])
    blocks: tuple[Block, ...] = (*_duplicates_blocks(data), *splits)
    return Section(id="data", title="Data", lead="Counted when each task was read.", blocks=blocks)


def _duplicates_blocks(data: ReportData) -> tuple[Block, ...]:
    """Near-duplicates per run and split, and by name the tasks in which nobody looked: 0 of them is not the same."""
    counts: dict[tuple[str, str], list[int]] = {}  # group and split to the number of each run that looked
    unsearched = []
    for group in data.groups:
        counts_of_runs = [run.part("task").get("num_near_duplicates") for run in group.runs]
        if all(count_by_split is None for count_by_split in counts_of_runs):
            unsearched.append(group.title)
        for count_by_split in counts_of_runs:
            for split, count in (count_by_split or {}).items():
                counts.setdefault((group.title, split), []).append(int(count))
    if not counts:
        return (
            TextBlock(
                text="Near-duplicates between training data and scored splits were not looked for "
                "(--remove-near-duplicates does)."
            ),
        )
    rows = [[title, split, span(numbers), len(numbers)] for (title, split), numbers in counts.items()]
    count_heading = "near-duplicates per run"
    block = rows_block(
        ["model and task", "split", count_heading, "runs"],
        rows,
        "Training examples removed because they nearly repeat a scored item",
        {count_heading: COLUMNS["num_near_duplicates"].meaning},
    )
    if not unsearched:
        return (block,)
    return (block, TextBlock(text=f"Near-duplicates were not looked for in {listing(unsearched)}."))


def definitions_section() -> Section:
    """The section that defines each measure of a row."""
    lead = (
        "Δ is the change of a row from the first snapshot, E⁰ the row there, in float64. A value that is not defined "
        "is printed as undefined and counted; what a model does not have is printed as not applicable."
    )
    header = ["measure", "unit", "what it is", "source", "signed"]
    rows = [
        [name, measure.unit, measure.description, measure.source, "yes" if measure.is_signed else "no"]
        for name, measure in MEASURES.items()
    ]
    return Section(
        id="definitions", title="Definitions", lead=lead, blocks=(rows_block(header, rows, "Measures of a row"),)
    )


def versions_section(data: ReportData) -> Section:
    """The section on versions, with the hashes of every run where there are few."""
    blocks: list[Block] = [versions_block(data.runs)] if any(run.part("versions") for run in data.runs) else []
    if len(data.runs) <= MANY_RUNS:
        blocks.insert(0, _runs_block(data.groups, ("run", *HASHES, "precision"), "Hashes and machines"))
    else:
        blocks.append(TextBlock(text="The hashes of every run are in tables/runs.csv."))
    return Section(id="versions", title="Versions and hashes", blocks=tuple(blocks))
