"""Measuring finished runs: all that a report keeps of them, each table once and in memory."""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from toolkit.analysis.adam import unexplained_by_decay
from toolkit.analysis.drift import measure_drift, measure_rows
from toolkit.analysis.gauge import measure_gauge
from toolkit.analysis.strata import ADDED, ADDED_UNSEEN
from toolkit.analysis.tokens_in_use import why_no_gauge
from toolkit.analysis.word_rows import WordRows, measure_words
from toolkit.comparison.compare import Settings
from toolkit.comparison.conditions import Condition, Group, Labels, arrange, of_largest_size
from toolkit.comparison.evidence import FORMAT, Evidence, settled
from toolkit.comparison.parameter_noise import distance_of_seeds, drift_of
from toolkit.comparison.runs import ReportedRun, answer_columns, canonical_name, with_paths
from toolkit.comparison.shuffled_labels import label_statistics
from toolkit.config import RunConfig
from toolkit.families import EMBEDDING_PARAMETERS, OLD_ROWS
from toolkit.naming import command_path, distinct, shorten, shown_path
from toolkit.progress import counted
from toolkit.snapshots.store import RECORDED, Run

OF_MODEL = ("revision", "weights_sha256", "pooling", "head", "tied", "num_parameters", "num_trainable")
OF_HEAD = ("mode", "chosen", "epochs", "num_held_out")
"""What is kept of how the head of a frozen backbone was trained, beside the strength of a convex one."""
PARTS: tuple[str, ...] = ("task", "head_stage", "floors", "linear_probe", "cost", "versions")
PARTS += ("added_tokens", "git_commit", "devices", "num_processes", "num_threads", "precision")
"""Sections of a manifest that are kept as they are; of model and frozen a part is."""
OF_RECORDING = ("problems", "begins_after_steps")
"""Those kept of a run of another loop, where there are any."""

FEW = 5
"""Moved rows of a stratum below which each is kept, and drawn, by itself."""
NUM_TOP_TOKENS = 20
RANKINGS = ("norm", "angle_degrees")
"""The measures by which the tokens that moved most are ranked."""
NUM_WORDS = 10_000
"""Words of all conditions together of which drift and neighbours are kept for the map: about what a page holds."""


def measure(
    runs: Sequence[Run | str | Path],
    labels: Labels | None = None,
    *,
    pairs: Sequence[tuple[str, str]] | None = None,
    margin_points: float = 1.0,
    level: float = 0.95,
    alpha: float = 0.05,
    score: str | None = None,
    tasks: Labels | None = None,
    tuning: pd.DataFrame | None = None,
    words: Mapping[str, Any] | None = None,
) -> Evidence:
    """All that a report needs of ``runs``; the options are those of :func:`toolkit.write_report`.

    ``words``: title, question, expected, command and left_out, as the report says them. Tables hold no text of any
    example, and nothing names a folder of this machine. ValueError as of :func:`toolkit.compare`.
    """
    Settings(margin_points=margin_points, level=level, alpha=alpha)  # refuses what is out of range, before the work
    groups = arrange(runs, labels, tasks, score)
    members = [run for group in groups for run in group.runs]
    largest_groups = [of_largest_size(group) for group in groups]
    first_runs = [condition.runs[0] for group in largest_groups for condition in group.conditions]
    settings = {
        "format": FORMAT,
        "labels": None if labels is None else _label_by_name(labels, members),
        "tasks": None if tasks is None else _label_by_name(tasks, members),
        "pairs": None if pairs is None else [list(pair) for pair in pairs],
        "margin_points": margin_points,
        "level": level,
        "alpha": alpha,
    } | ({} if score is None else {"score": score})
    page = _page_values(words or {}, tuning)
    facts = describe_runs(members)

    drift = led(counted(members, "measuring drift"), drift_of)
    tables_of_firsts = [measure_first(run) for run in counted(first_runs, "measuring rows")]
    word_counts, word_rows = words_of_conditions(largest_groups)
    tables = {
        "predictions": all_answers(groups),
        "runs": runs_table(groups, facts),
        "scores": led(members, lambda run: run.scores),
        "drift": drift,
        "gauge": led(counted(members, "measuring offsets"), gauge_of),
        "seeds": seeds_table(groups),
        "labels": label_statistics(groups, drift),
        "strata": led(counted([run for group in largest_groups for run in group.runs], "measuring strata"), strata_of),
        **{name: together([tables[name] for tables in tables_of_firsts]) for name in OF_FIRST},
        "word_counts": word_counts,
        "words": word_rows,
    }
    return Evidence(settings, facts, **{name: settled(table) for name, table in tables.items()}, page=page)


def _page_values(words: Mapping[str, Any], tuning: pd.DataFrame | None) -> dict[str, Any]:
    """What no card rests on, as page.json has it: ``words`` and ``tuning`` of :func:`measure`."""
    page = {name: words.get(name) for name in ("title", "question", "expected", "sources", "command")}
    page["sources"] = dict(page["sources"] or {})
    page["left_out"] = list(words.get("left_out", ()))
    page["tuning"] = None if tuning is None else {str(name): _plain_values(tuning[name]) for name in tuning}
    return page


def _plain_values(column: pd.Series) -> list[Any]:
    """The values of a column as JSON can hold them: None for each that is missing."""
    return [None if value != value or value is pd.NA else value for value in column.tolist()]


def _label_by_name(labels: Labels, members: Sequence[ReportedRun]) -> dict[str, str]:
    """Run name to label, in the order of the labels, which is that of conditions; labels name directories."""
    names_of_directory: dict[str, list[str]] = {}
    for run in members:
        names_of_directory.setdefault(run.directory_name, []).append(run.name)
    return {name: label for directory, label in labels.items() for name in names_of_directory.get(directory, ())}


def led(runs: Iterable[ReportedRun], make: Callable[[ReportedRun], pd.DataFrame]) -> pd.DataFrame:
    """One table of all runs, each part led by the run's name."""
    return together([_led_by_run(run, make(run)) for run in runs])


def _led_by_run(run: ReportedRun, table: pd.DataFrame) -> pd.DataFrame:
    """A table of one run with the run's name as its first column."""
    led_table = table.drop(columns="run", errors="ignore")
    led_table.insert(0, "run", run.name)
    return led_table


def together(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Some tables one below the other; empty ones are left out, as they would change the types of columns."""
    filled = [part for part in parts if len(part)] or list(parts[:1])
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()


def strata_of(run: ReportedRun) -> pd.DataFrame:
    """`measure_drift`: every snapshot, parameter, stratum of rows, measure and statistic."""
    return measure_drift(run.run.trajectory)


def gauge_of(run: ReportedRun) -> pd.DataFrame:
    """The share of the tables' drift that offsets between them explain, at the last epoch; no line where none moved.

    Nor where it is not applicable, as LayerNorm reads no sum of the tables' rows.
    """
    first, last = run.run.trajectory.snapshots[0], run.run.trajectory.snapshots[-1]
    tables = [name for name in run.parameters if not name.startswith("LayerNorm")]
    is_still = not any((first.tensors[name] != last.tensors[name]).any() for name in tables)
    if is_still or why_no_gauge(run.run.trajectory):
        return pd.DataFrame(columns=["gauge_share", "frequencies", "note"])
    records = measure_gauge(run.run, last.epoch)
    chosen = records[records["measure"] == "gauge_share"].rename(columns={"value": "gauge_share"})
    notes = ["; ".join(filter(None, texts)) for texts in zip(chosen["reason"], chosen["note"], strict=True)]
    return chosen.assign(note=notes)[["gauge_share", "frequencies", "note"]]


OF_FIRST = ("boxes", "dots", "exposed", "tokens", "positions")
"""Tables of single rows, which a report shows of the first seed of each condition."""


def measure_first(run: ReportedRun) -> dict[str, pd.DataFrame]:
    """OF_FIRST of one run, each led by its name; empty where the model has no such rows."""
    rows = dict.fromkeys(("word_embeddings", "position_embeddings"), pd.DataFrame())
    for name in (name for name in rows if name in run.parameters):
        measured = measure_rows(run.run.trajectory, name, run.last_epoch)
        rows[name] = measured.assign(stratum=measured["stratum"].astype(str))
    words, positions = rows.values()
    boxes, dots = boxes_of(words)
    tables = (boxes, dots, exposure_of(run, words), top_tokens(words), _with_positions(run, positions))
    return {name: _led_by_run(run, table) for name, table in zip(OF_FIRST, tables, strict=True)}


def _with_positions(run: ReportedRun, rows: pd.DataFrame) -> pd.DataFrame:
    """Position rows with the position of each (RoBERTa's first rows are no positions) and the longest real length."""
    if rows.empty:
        return rows
    trajectory = run.run.trajectory
    table = trajectory.exposure.tables.get("position_embeddings") if trajectory.exposure else None
    is_known = table is not None and len(table.rows) > 0
    longest = float(table.rows.max()) - trajectory.position_offset + 1 if is_known else np.nan  # type: ignore[union-attr]
    rows = rows.assign(position=rows["row"] - trajectory.position_offset, longest_length=longest)
    return rows[rows["position"] >= 0]


def boxes_of(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Per stratum of `measure_rows` its rows, those that moved, and quantiles of how far; and the few that moved.

    Quantiles (5, 25, 50, 75 and 95 %) are of the rows that moved, NaN for fewer than FEW: these are the second table.
    """
    boxes, dots = [], []
    for stratum, stratum_rows in rows.groupby("stratum", sort=False, observed=True) if len(rows) else ():
        values = stratum_rows["norm"].to_numpy(dtype=float)
        moved = values[values > 0]
        quantiles = np.percentile(moved, (5, 25, 50, 75, 95)) if len(moved) >= FEW else [np.nan] * 5
        box = {"stratum": str(stratum), "num_rows": len(values), "num_moved": len(moved)}
        boxes.append(box | dict(zip(("low", "q1", "median", "q3", "high"), map(float, quantiles), strict=True)))
        dots += [{"stratum": str(stratum), "norm": float(value)} for value in moved if len(moved) < FEW]
    columns = ["stratum", "num_rows", "num_moved", "low", "q1", "median", "q3", "high"]
    return pd.DataFrame(boxes, columns=columns), pd.DataFrame(dots, columns=["stratum", "norm"])


def exposure_of(run: ReportedRun, words: pd.DataFrame) -> pd.DataFrame:
    """How far exposed and unexposed words moved in a run, and what weight decay leaves unexplained; one record."""
    if words.empty:
        return pd.DataFrame()
    words = words[~words["stratum"].isin([ADDED, ADDED_UNSEEN])]
    steps = pd.to_numeric(words["num_steps"])
    exposed, unexposed = words.loc[steps > 0, "norm"], words.loc[steps == 0, "norm"]
    is_known = not steps.isna().all()
    log = run.run.optimizer_log if (words["norm"] > 0).any() else None
    if log is not None and not log.is_replayable:
        log = None  # what another optimizer's decay did is not known
    record = {
        "is_recorded": is_known,
        "num_exposed": len(exposed),
        "median_exposed": exposed.median(),
        "num_unexposed": len(unexposed),
        "median_unexposed": unexposed.median(),
        "share_unmoved": float((unexposed == 0).mean()) if len(unexposed) else np.nan,
        "has_log": log is not None,
        "left_by_decay": np.nan if log is None else unexplained_by_decay(run.run.trajectory, log),
    }
    return pd.DataFrame([record])


def top_tokens(words: pd.DataFrame) -> pd.DataFrame:
    """Per ranking the rows seen in training that moved most; rows that did not move are in no ranking."""
    if words.empty:
        return words
    parts = []
    seen = words[pd.to_numeric(words["num_steps"]).fillna(0) > 0]
    for ranking in RANKINGS:
        top = seen[seen[ranking] > 0].sort_values([ranking, "row"], ascending=[False, True]).head(NUM_TOP_TOKENS)
        top.insert(0, "ranking", ranking)
        top.insert(1, "rank", range(1, len(top) + 1))
        parts.append(top)
    return pd.concat(parts, ignore_index=True)


def words_of_conditions(groups: Sequence[Group]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Of each condition whose words moved: how many words there are, and their rows over its seeds."""
    conditions = [
        (group.title, condition) for group in groups for condition in group.conditions if has_moving_words(condition)
    ]
    share = NUM_WORDS // max(len(conditions), 1)
    counts, tables = [], []
    for title, condition in counted(conditions, "measuring words"):
        measured = measure_condition_words(condition, share)
        key = {"group": title, "condition": condition.label}
        numbers = {"num_seen": measured.num_seen, "num_unseen": measured.num_unseen, "num_epochs": measured.num_epochs}
        counts.append(key | numbers | {"reason": measured.reason})
        tables.append(measured.table.assign(**key))
    names = ["group", "condition", "num_seen", "num_unseen", "num_epochs", "reason"]
    return pd.DataFrame(counts, columns=names), together(tables)


def has_moving_words(condition: Condition) -> bool:
    """Whether any run of a condition moved a word row."""
    name = "word_embeddings"
    snapshots_of_runs = [run.run.trajectory.snapshots for run in condition.runs if name in run.parameters]
    return any((snapshots[0].tensors[name] != snapshots[-1].tensors[name]).any() for snapshots in snapshots_of_runs)


def measure_condition_words(condition: Condition, share: int) -> WordRows:
    """The words of one condition, of which about ``share`` are kept."""
    few = max(share // 4, 20)
    trajectories = [run.run.trajectory for run in condition.runs]
    return measure_words(trajectories, most_seen=max(share, 20), num_unseen=min(few, 1000), num_named=min(few, 1000))


def all_answers(groups: Sequence[Group]) -> pd.DataFrame:
    """The answers of every run, led by run, model, task, condition and seed."""
    parts = [
        run.predictions.assign(**run.lead() | {"condition": condition.label})
        for group in groups
        for condition in group.conditions
        for run in condition.runs
    ]
    parts = [part for part in parts if len(part)] or parts[:1]
    if len({str(part["id"].dtype) for part in parts}) > 1:  # tasks number their items, or name them
        parts = [part.assign(id=part["id"].astype(str)) for part in parts]
    table = pd.concat(parts, ignore_index=True)
    run_columns = ["run", "model", "task", "condition"]
    answers = table[[*run_columns, "seed", *answer_columns(table)]]
    return answers.astype(dict.fromkeys([*run_columns, "split"], str))


def runs_table(groups: Sequence[Group], facts: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """A record per run: its group and condition, what it is scored by, and the sha256 of its manifest."""
    records = []
    for group in groups:
        for condition in group.conditions:
            key: dict[str, Any] = {
                "group": group.title,
                "condition": condition.label,
                "base": condition.base,
                "num_train_examples": condition.num_train_examples,
            }
            for run in condition.runs:
                run_facts: dict[str, Any] = {
                    "regime": run.regime,
                    "score": run.score,
                    "reported_split": run.reported_split,
                    "last_epoch": run.last_epoch,
                    "manifest_sha256": facts[run.name]["manifest_sha256"],
                }
                records.append({"run": run.name, **key, "seed": run.seed, **run_facts})
    return pd.DataFrame(records)


def seeds_table(groups: Sequence[Group]) -> pd.DataFrame:
    """The distance of each run from the next seed of its condition: all pairs of 20 seeds would be read 190 times."""
    records = [
        {
            "group": group.title,
            "condition": condition.label,
            "parameter": name,
            "first": first_run.name,
            "second": second_run.name,
        }
        | {"distance": distance_of_seeds(first_run.run, second_run.run, name)}
        for group in groups
        for condition in group.conditions
        for first_run, second_run in pairwise(condition.runs)
        for name in first_run.parameters
        if name in second_run.parameters
    ]
    return pd.DataFrame(records, columns=["group", "condition", "parameter", "first", "second", "distance"])


def describe_runs(runs: Sequence[ReportedRun]) -> dict[str, dict[str, Any]]:
    """Run to its config and manifest as far as a report reads them, its hashes, and no path of anybody's machine."""
    originals = list(dict.fromkeys(run.checkpoint for run in runs))
    models = dict(zip(originals, distinct(shorten(model) for model in originals), strict=True))
    return {run.name: _describe(run, models[run.checkpoint]) for run in runs}


def _describe(run: ReportedRun, model: str) -> dict[str, Any]:
    """What evidence keeps of one run: config, parts of its manifest, hashes, command and score names; as plain JSON."""
    config: dict[str, Any] = {**run.recorded, RECORDED: True, "model": model}
    if not run.is_recorded:
        folder = run.config.output_dir
        place = folder if folder == RunConfig().output_dir else shown_path(folder)
        config = {**json.loads(run.config.to_json()), "model": model, "output_dir": place}
    parts = {name: run.manifest[name] for name in PARTS if run.manifest.get(name) is not None}
    model_facts = {name: value for name, value in run.part("model").items() if name in OF_MODEL}
    proofs = run.part("frozen").get("parameters") or {}
    # Of the encoder's parameters only those that contradict it: the others would be most of the file.
    kept_proofs = {
        name: proof
        for name, proof in proofs.items()
        if canonical_name(name) in EMBEDDING_PARAMETERS
        or name.endswith(f".{OLD_ROWS}")
        or proof.get("before") != proof.get("after")
    }
    # The losses that led to the head that was chosen would be most of the file.
    if head := run.part("head_training"):
        strength = (head.get("convex") or {}).get("strength")
        parts["head_training"] = {name: head.get(name) for name in OF_HEAD} | {"strength": strength}
    parts |= {
        "model": {"name": run.model, **model_facts},
        "regime": {"label": run.regime},
        "frozen": {"parameters": kept_proofs},
    }
    if run.is_recorded:
        parts["regime"]["frozen_components"] = run.part("regime").get("frozen_components", [])
        parts |= {name: run.manifest[name] for name in OF_RECORDING if run.manifest.get(name)}
    hashes = {f"{name}_sha256": run.run.sha256_of(f"{name}.json") for name in ("manifest", "config")}
    described: dict[str, Any] = {
        "config": config,
        "manifest": parts,
        **hashes,
        "command": command_of_run(run),
        "scores": list(map(str, run.scores)),
    }
    plain: dict[str, Any] = json.loads(json.dumps(described))
    return plain


def command_of_run(run: ReportedRun) -> str:
    """The command that repeats a run into the folder in which it lies, with no absolute path in it; none of another
    loop's."""
    if run.known_config is None:
        return ""
    command, folder = with_paths(run.known_config, command_path).to_command(), RunConfig().output_dir
    place = run.run.path.parent
    if run.run.path.is_dir() and place.resolve() != Path(folder).resolve():  # runs/ may be a link to another disk
        folder = command_path(place)
    if not Path("finetune.py").is_file():  # the installed package has the same entry point
        command = command.replace("finetune.py", "--module toolkit finetune", 1)
    return command if folder == RunConfig().output_dir else f"{command} --output-dir {shlex.quote(folder)}"
