"""The paragraphs on methods that a paper needs, from the evidence of a report alone."""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.comparison.compare import EQUIVALENCE_LEVEL
from toolkit.comparison.conditions import Group
from toolkit.comparison.evidence import check_evidence, making, read_evidence
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.runs import ReportedRun
from toolkit.comparison.summaries import splits_of
from toolkit.comparison.verdicts import LEAST_SEEDS
from toolkit.reporting.cells import NOT_APPLICABLE, listing, span, spoken
from toolkit.reporting.render_latex import prose
from toolkit.reporting.topics.caveats import covered, headline
from toolkit.reporting.topics.recordings import start_of
from toolkit.reporting.topics.runs import NOT_KEPT, NOT_KNOWN, SETTINGS, UNKNOWN, runs_frame
from toolkit.snapshots.tokenizer_files import EMBEDDED

MOST_VALUES = 3
"""Values of a setting that are named with their conditions."""
MOST_NAMED_SEEDS, MOST_NAMED_CONDITIONS = 8, 12
"""Of more it is said how many there are."""
SCHEDULE = "learning_rate_schedule"
CONFIG_FIELDS = (
    "optimizer",
    SCHEDULE,
    "weight_decay",
    "warmup_fraction",
    "max_gradient_norm",
    "max_length",
    "max_steps",
    "dropout",
)
"""Fields of a config that a paper names beside SETTINGS."""
TRAINER_ARGUMENTS = {"optimizer": "optim", "max_gradient_norm": "max_grad_norm"}
"""Field of a config to what a Trainer's arguments call it, where that is another name."""

GROUP = (
    "{model} was trained on {tasks} under {conditions}, with {seeds}: {runs}{failed}. Settings: {settings}.{heads}"
    "{unknown} Scores at the last epoch: {scores}."
)
HEADS = " Of {conditions} the backbone was frozen, and the head on its features was {heads}."
CONVEX = (
    "in {num} of {of} runs a linear one without these settings of training, with an L2 penalty by cross-validation "
    "within train (inverse strengths: {strengths})"
)
TRAINED = (
    "in {num} of {of} runs trained until the loss on {num_held_out} examples held out of train stopped falling, and "
    "kept as it was where that was least (epochs: {epochs})"
)
DRIFT = (
    "The embedding parameters were kept {when}. Their drift is the Frobenius norm of the change since {start}, in % of "
    "the norm that the parameter had there, in float64."
)
KEPT_BEFORE, KEPT_LATER = "before training and during it", "during training, and not before it"
"""When a run kept them that began before its first step, and one that did not."""
COMPARED = (
    "Conditions were compared ({count}), paired by {pairing}, and item by item where the answers are known. "
    "Intervals of {level} % (Student's t) cover {over}: for seeds and items together the variance is that of a two-way "
    "random-effects model, with Satterthwaite's degrees of freedom.{family} A difference is "
    "claimed with at least {least} seeds, an interval without 0 and q < {alpha}; "
    "conditions count as equivalent where the {equal} % interval (two one-sided tests) lies within ±{margin}.{bound}"
)
FAMILY = (
    " For p values the variance between seeds is moderated over all of these differences (empirical Bayes, as after "
    "Smyth 2004); q is the false discovery rate of Benjamini and Hochberg over {num_tests}."
)
EXACT = (
    " Where few items differ, the {equal} % interval reaches to the exact bound of Clopper and Pearson and to that of "
    "a score test after Tango, where these lie beyond it."
)
WITHOUT_INTERVALS = (
    "Conditions were compared ({count}), paired by {pairing}, as differences of their means: too few seeds, or no "
    "answers to single items, left no interval, and no difference is claimed."
)
ALONE = "Conditions were not compared."
VERSIONS = "Software: {versions}. Hardware: {devices}."
PUBLISHED = {EMBEDDED: f"{EMBEDDED} (sentence-transformers/all-MiniLM-L6-v2)"}
"""Name of a model here to that under which it is published."""
PACKAGE = "embedding-drift-toolkit"
CITED = "Analysed with the Embedding drift toolkit{own} (the embedding drift toolkit authors, Apache-2.0)."


def methods_of(folder: str | Path, *, latex: bool = False) -> str:
    """The paragraphs on methods of a paper, from the evidence of a report alone: to be read and then changed.

    Model, data, conditions, seeds, settings, items, tests with their corrections, versions and citation; what the
    evidence does not hold is said to be unknown. ``latex``: escaped, for a document. ValueError where ``folder`` is no
    report with evidence, or that is not as it was written.

    Examples
    --------
    >>> report = toolkit.write_report(runs, "my_report")
    >>> print(toolkit.methods_of("my_report").split(", with")[0])
    tiny was trained on toy (100 training examples) under full fine-tuning and embeddings frozen
    """
    check_evidence(folder)
    with making(folder):
        paragraphs = paragraphs_of(ReportData(read_evidence(folder)))
    if latex:
        paragraphs = list(map(prose, paragraphs))
    return "\n\n".join(paragraphs)


def paragraphs_of(data: ReportData) -> list[str]:
    """A paragraph for all groups that were made alike, then what holds of all of them."""
    # Groups whose runs were made alike share a paragraph.
    groups_by_making: dict[Making, list[Group]] = {}
    for group in data.groups:
        groups_by_making.setdefault(_making_of(group), []).append(group)
    paragraphs = [_paragraph_of(making, groups) for making, groups in groups_by_making.items()]
    packages = dict.fromkeys(name for run in data.runs for name in run.part("versions"))
    versions = [f"{name} {_known_values(run.part('versions').get(name) for run in data.runs)}" for name in packages]
    version = "".join(text.removeprefix(PACKAGE) for text in versions if text.startswith(PACKAGE))
    sources = [f" Data of {name}: {source}." for name, source in (data.evidence.page.get("sources") or {}).items()]
    software = VERSIONS.format(
        versions=listing(versions) or UNKNOWN,
        devices=_known_values(runs_frame(data.groups)["devices"].replace(NOT_KEPT, "")),
    )
    starts = dict.fromkeys(start_of(run) or "the first snapshot" for run in data.runs)
    begin_before = [not start_of(run) for run in data.runs]
    when = (
        KEPT_BEFORE if all(begin_before) else KEPT_LATER if not any(begin_before) else f"{KEPT_BEFORE}, or {KEPT_LATER}"
    )
    drift = DRIFT.format(when=when, start=" or ".join(starts))
    return [*paragraphs, f"{drift} {_compared_text(data)}", software + "".join(sources), CITED.format(own=version)]


def _compared_text(data: ReportData) -> str:
    """How conditions were compared: over what the intervals are, by which rules a difference is claimed."""
    headlines = headline(data.comparison)
    headlines = headlines[headlines["difference_points"].notna()]
    if headlines.empty:
        return ALONE
    count = _count(len(headlines), "comparison")
    pairing = "seed" if all(run.seed is not None for run in data.runs) else "the order of their names"
    if headlines["low_points"].isna().all():
        return WITHOUT_INTERVALS.format(count=count, pairing=pairing)
    num_tests = int(headlines["p"].notna().sum())
    return COMPARED.format(
        count=count,
        pairing=pairing,
        bound=EXACT.format(equal=f"{100 * EQUIVALENCE_LEVEL:g}") if headlines["num_units"].notna().any() else "",
        level=f"{100 * data.settings.level:g}",
        over=covered(headlines),
        family=FAMILY.format(num_tests=_count(num_tests, "difference")) if num_tests else "",
        least=LEAST_SEEDS,
        alpha=f"{data.settings.alpha:g}",
        equal=f"{100 * EQUIVALENCE_LEVEL:g}",
        margin=_count(data.settings.margin_points, "point"),
    )


def _known_values(values: Iterable[object]) -> str:
    """The values that are known, each once, as "a or b"; UNKNOWN without any."""
    return " or ".join(dict.fromkeys(str(value) for value in values if value)) or UNKNOWN


def _count(number: float, noun: str) -> str:
    """A number with its noun, in the plural where there is not one."""
    return f"{number:,g} {noun}{'' if number == 1 else 's'}"


Making = tuple[tuple[str, str], ...]
"""How runs were made: fields of GROUP and their texts, in a form that groups with the same ones can be found by."""


def _making_of(group: Group) -> Making:
    """How the runs of a group were made: model, conditions, seeds, settings, and the settings that are not known."""
    config_fields = {name: [_setting_text(run, name) for run in group.runs] for name in CONFIG_FIELDS}
    runs_table = spoken(runs_frame([group])).assign(**config_fields)
    conditions = list(dict.fromkeys(runs_table["condition"]))
    known_settings, unknown_settings = [], []
    for name in (*SETTINGS, *CONFIG_FIELDS):
        applicable = runs_table[~runs_table[name].astype(str).str.startswith(NOT_APPLICABLE)].astype({name: str})
        conditions_by_value = applicable.groupby(name, sort=False)["condition"].unique()
        setting = name.replace("_", " ")
        if conditions_by_value.index.isin([UNKNOWN, NOT_KEPT, NOT_KNOWN]).any():
            unknown_settings.append(setting)
        elif len(conditions_by_value):
            # One value under every condition needs no conditions beside it.
            is_general = len(conditions_by_value) == 1 and applicable["condition"].nunique() == len(conditions)
            known_settings.append(f"{setting} {_values_text(conditions_by_value, is_general=is_general)}")
    are_few = len(conditions) <= MOST_NAMED_CONDITIONS
    return (
        ("model", _model_text(group.runs[0])),
        ("conditions", listing(conditions) if are_few else f"{len(conditions)} conditions"),
        ("seeds", _seeds_text(runs_table)),
        ("settings", "; ".join(known_settings)),
        ("heads", _heads_text(group)),
        ("unknown", f" Not known: {listing(unknown_settings)}." if unknown_settings else ""),
    )


def _model_text(run: ReportedRun) -> str:
    """A model by the name that it is published under, and at which commit of the hub, where either is known."""
    commit = run.part("model").get("revision")
    return f"{PUBLISHED.get(run.model, run.model)}{f' (commit {commit})' if commit else ''}"


def _heads_text(group: Group) -> str:
    """How the heads were made that stopped by themselves; nothing without any."""
    heads_by_condition: dict[str, list[Any]] = {}
    for condition in group.conditions:
        for head in (run.part("head_training") for run in condition.runs):
            if head.get("mode") == "early-stopping":
                heads_by_condition.setdefault(condition.label, []).append(head)
    heads = list(chain.from_iterable(heads_by_condition.values()))
    convex_heads = [head for head in heads if head.get("chosen") == "convex"]
    trained_heads = [head for head in heads if head not in convex_heads]
    texts = []
    if convex_heads:
        strengths = sorted({head["strength"] for head in convex_heads})
        inverses = listing([f"{strength:g}" for strength in strengths])
        texts.append(CONVEX.format(num=len(convex_heads), of=len(heads), strengths=inverses))
    if trained_heads:
        num_held_out, epochs = (span(head[name] for head in trained_heads) for name in ("num_held_out", "epochs"))
        texts.append(TRAINED.format(num=len(trained_heads), of=len(heads), num_held_out=num_held_out, epochs=epochs))
    return HEADS.format(conditions=listing(list(heads_by_condition)), heads=", ".join(texts)) if heads else ""


def _values_text(conditions_by_value: pd.Series, *, is_general: bool) -> str:
    """The values of a setting, each with the conditions that have it; without these where it is general, or many."""
    if is_general:
        return str(conditions_by_value.index[0])
    if len(conditions_by_value) > MOST_VALUES:
        return listing(list(conditions_by_value.index))
    return ", ".join(f"{value} ({listing(list(conditions))})" for value, conditions in conditions_by_value.items())


def _seeds_text(runs_table: pd.DataFrame) -> str:
    """The seeds of the conditions by name, where all have the same few; else how many each has."""
    seeds_by_condition = runs_table.groupby("condition", sort=False)["seed"].unique().map(list)
    first_seeds = seeds_by_condition.iloc[0]
    are_known = NOT_KNOWN not in first_seeds
    are_few = len(first_seeds) <= MOST_NAMED_SEEDS
    if are_known and are_few and all(seeds == first_seeds for seeds in seeds_by_condition):
        return f"seeds {listing(first_seeds)}"
    return f"{span(runs_table.groupby('condition').size())} {'seeds' if are_known else 'runs'} each"


def _setting_text(run: ReportedRun, name: str) -> str:
    """A setting of a run as a text; of a run of another loop an argument of its training."""
    arguments = run.recorded.get("arguments", {})
    if name == SCHEDULE:
        return str(arguments.get("lr_scheduler_type", NOT_KNOWN)) if run.is_recorded else "linear"
    value = (
        arguments.get(name, arguments.get(TRAINER_ARGUMENTS.get(name), NOT_KNOWN))
        if run.is_recorded
        else run.setting(name)
    )
    return NOT_APPLICABLE if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _paragraph_of(making: Making, groups: Sequence[Group]) -> str:
    """The paragraph on groups whose runs were made alike."""
    runs = [run for group in groups for run in group.runs]
    num_failed = sum(bool(run.is_failed) for run in runs)
    tasks, scores = [], []
    for group in groups:
        first_run = group.runs[0]
        sizes = [condition.num_train_examples for condition in group.conditions if condition.num_train_examples]
        facts = [Path(file).name for file in [first_run.setting("train_file")] if file]
        facts += [f"{span(sizes)} training examples"] if sizes else []
        tasks.append(first_run.task + (f" ({', '.join(facts)})" if facts else ""))
        splits = [f"{split} ({span([first_run.num_items(split)])} items)" for split in splits_of(group)]
        scores += [f"{first_run.score} of {first_run.task} on {listing(splits)}"] if splits else []
    return GROUP.format(
        **dict(making),
        tasks=listing(tasks),
        runs=_count(len(runs), "run"),
        failed=f", of which {num_failed} learned nothing that the reported split shows" if num_failed else "",
        scores="; ".join(scores) or UNKNOWN,
    )
