"""The paragraphs on methods that a paper needs, from the evidence of a report alone."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from toolkit.comparison.compare import EQUIVALENCE_LEVEL
from toolkit.comparison.conditions import Group
from toolkit.comparison.evidence import check_evidence, making, read_evidence
from toolkit.comparison.report_data import ReportData
from toolkit.comparison.runs import ReportedRun
from toolkit.comparison.summaries import splits_of
from toolkit.comparison.verdicts import LEAST_SEEDS
from toolkit.reporting.cells import NOT_APPLICABLE, listing, span, spoken
from toolkit.reporting.render_latex import cell, escape
from toolkit.reporting.topics.caveats import covered, headline
from toolkit.reporting.topics.recordings import start_of
from toolkit.reporting.topics.runs import NOT_KEPT, NOT_KNOWN, SETTINGS, UNKNOWN, runs_frame

MOST_VALUES = 3
"""Values of a setting that are named with their conditions."""
MOST_NAMED, MOST_CONDITIONS = 8, 12
"""Seeds and conditions that are named; of more it is said how many there are."""
SCHEDULE = "learning_rate_schedule"
BESIDE = (
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
OF_TRAINERS = {"optimizer": "optim", "max_gradient_norm": "max_grad_norm"}
"""Fields that a Trainer's arguments have under another name."""

GROUP = (
    "{model} was fine-tuned on {tasks} under {conditions}, with {seeds}: {runs}{failed}. Settings: {settings}.{unknown}"
    " Scores at the last epoch: {scores}."
)
DRIFT = (
    "The embedding parameters were kept {when}. Their drift is the Frobenius norm of the change since {start}, in % of "
    "the norm that the parameter had there, in float64."
)
BEFORE, LATER = "before training and during it", "during training, and not before it"
"""When a run kept them that began before its first step, and one that did not."""
COMPARED = (
    "Conditions were compared ({count}), paired by {pairing}, and item by item where the answers are known. "
    "Intervals of {level} % are Student's t over {over}; over seeds and items both, their variance is that of a "
    "two-way random-effects table, with Satterthwaite's degrees of freedom.{family} A difference is "
    "claimed with at least {least} seeds, an interval without 0 and q < {alpha}; "
    "conditions count as equivalent where the {equal} % interval (two one-sided tests) lies within ±{margin}.{bound}"
)
FAMILY = (
    " The p values of such differences share what all of them say of the spread between seeds; q is the false "
    "discovery rate of Benjamini and Hochberg over {num_tests}."
)
EXACT = (
    " Where few items differ, the ends of that interval are those of Clopper and Pearson's exact bound, and of a score "
    "test after Tango, where these lie beyond Student's t."
)
WITHOUT_INTERVALS = (
    "Conditions were compared ({count}), paired by {pairing}, as differences of their means: too few seeds, or no "
    "answers to single items, left no interval, and no difference is claimed."
)
ALONE = "Conditions were not compared."
VERSIONS = "Software: {versions}. Hardware: {devices}."
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
    tiny was fine-tuned on toy (100 training examples) under full fine-tuning and embeddings frozen
    """
    check_evidence(folder)
    with making(folder):
        paragraphs = paragraphs_of(ReportData(read_evidence(folder)))
    if latex:
        numbers = r"(?<![\w.])\d[\d.]*e[+-]\d+"
        paragraphs = [re.sub(numbers, lambda match: cell(match[0]), escape(text)) for text in paragraphs]
    return "\n\n".join(paragraphs)


def paragraphs_of(data: ReportData) -> list[str]:
    """A paragraph for all groups that were made alike, then what holds of all of them."""
    headlines = headline(data.comparison)
    headlines = headlines[headlines["difference_points"].notna()]
    compared = ALONE if headlines.empty else WITHOUT_INTERVALS
    count = _count(len(headlines), "comparison")
    pairing = "seed" if all(run.seed is not None for run in data.runs) else "the order of their names"
    num_tests = int(headlines["p"].notna().sum())
    if headlines["low_points"].notna().any():
        compared = COMPARED.format(
            count=count,
            pairing=pairing,
            bound=EXACT if headlines["num_units"].notna().any() else "",
            level=f"{100 * data.settings.level:g}",
            over=covered(headlines),
            family=FAMILY.format(num_tests=_count(num_tests, "difference")) if num_tests else "",
            least=LEAST_SEEDS,
            alpha=f"{data.settings.alpha:g}",
            equal=f"{100 * EQUIVALENCE_LEVEL:g}",
            margin=_count(data.settings.margin_points, "point"),
        )
    # Groups whose runs were made alike share a paragraph.
    groups_by_making: dict[tuple[str, ...], list[Group]] = {}
    for group in data.groups:
        groups_by_making.setdefault(_making_of(group), []).append(group)
    packages = dict.fromkeys(name for run in data.runs for name in run.part("versions"))
    versions = [f"{name} {_known_values(run.part('versions').get(name) for run in data.runs)}" for name in packages]
    version = "".join(text.removeprefix(PACKAGE) for text in versions if text.startswith(PACKAGE))
    sources = [f" Data of {name}: {source}." for name, source in (data.evidence.page.get("sources") or {}).items()]
    software = VERSIONS.format(
        versions=listing(versions) or UNKNOWN,
        devices=_known_values(runs_frame(data.groups)["devices"].replace(NOT_KEPT, "")),
    )
    paragraphs = [_paragraph_of(made, groups) for made, groups in groups_by_making.items()]
    starts = dict.fromkeys(start_of(run) or "the first snapshot" for run in data.runs)
    begin_before = [not start_of(run) for run in data.runs]
    when = BEFORE if all(begin_before) else LATER if not any(begin_before) else f"{BEFORE}, or {LATER}"
    drift = DRIFT.format(when=when, start=" or ".join(starts))
    compared = compared.format(count=count, pairing=pairing)
    return [*paragraphs, f"{drift} {compared}", software + "".join(sources), CITED.format(own=version)]


def _known_values(values: Iterable[object]) -> str:
    """The values that are known, each once, as "a or b"; UNKNOWN without any."""
    return " or ".join(dict.fromkeys(str(value) for value in values if value)) or UNKNOWN


def _count(number: float, noun: str) -> str:
    """A number with its noun, in the plural where there is not one."""
    return f"{number:,g} {noun}{'' if number == 1 else 's'}"


def _making_of(group: Group) -> tuple[str, ...]:
    """How the runs of a group were made: model, conditions, seeds, settings, and the settings that are not known."""
    runs_table = spoken(runs_frame([group])).assign(
        **{name: [_setting_text(run, name) for run in group.runs] for name in BESIDE}
    )
    conditions = list(dict.fromkeys(runs_table["condition"]))
    seeds = [
        list(dict.fromkeys(seeds_of_condition))
        for _, seeds_of_condition in runs_table.groupby("condition", sort=False)["seed"]
    ]
    are_named = (
        all(seeds_of_condition == seeds[0] for seeds_of_condition in seeds)
        and len(seeds[0]) <= MOST_NAMED
        and NOT_KNOWN not in seeds[0]
    )
    known_settings, unknown_settings = [], []
    for name in (*SETTINGS, *BESIDE):
        applicable = runs_table[~runs_table[name].astype(str).str.startswith(NOT_APPLICABLE)].astype({name: str})
        by_value = applicable.groupby(name, sort=False)["condition"].unique()
        texts = [f"{value} ({listing(list(with_value))})" for value, with_value in by_value.items()]
        # One value under every condition needs no conditions beside it.
        if applicable["condition"].nunique() == len(conditions) and len(texts) == 1:
            texts = [str(by_value.index[0])]
        setting = name.replace("_", " ")
        if not by_value.index.isin([UNKNOWN, NOT_KEPT, NOT_KNOWN]).any():
            known_settings += (
                [f"{setting} {', '.join(texts) if len(texts) <= MOST_VALUES else listing(list(by_value.index))}"]
                if texts
                else []
            )
        else:
            unknown_settings.append(setting)
    return (
        group.runs[0].model,
        listing(conditions) if len(conditions) <= MOST_CONDITIONS else f"{len(conditions)} conditions",
        f"seeds {listing(seeds[0])}"
        if are_named
        else f"{span(runs_table.groupby('condition').size())} {'runs' if NOT_KNOWN in seeds[0] else 'seeds'} each",
        "; ".join(known_settings),
        f" Not known: {listing(unknown_settings)}." if unknown_settings else "",
    )


def _setting_text(run: ReportedRun, name: str) -> str:
    """A setting of a run as a text; of a run of another loop an argument of its training."""
    arguments = run.recorded.get("arguments", {})
    if name == SCHEDULE:
        return str(arguments.get("lr_scheduler_type", NOT_KNOWN)) if run.is_recorded else "linear"
    value = (
        arguments.get(name, arguments.get(OF_TRAINERS.get(name), NOT_KNOWN)) if run.is_recorded else run.setting(name)
    )
    return NOT_APPLICABLE if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _paragraph_of(making: tuple[str, ...], groups: Sequence[Group]) -> str:
    """The paragraph on groups whose runs were made alike."""
    runs = [run for group in groups for run in group.runs]
    num_failed = sum(bool(run.is_failed) for run in runs)
    tasks, scores = [], []
    for group in groups:
        first_run, sizes = (
            group.runs[0],
            [condition.num_train_examples for condition in group.conditions if condition.num_train_examples],
        )
        tasks.append(first_run.task + (f" ({span(sizes)} training examples)" if sizes else ""))
        splits = [f"{split} ({span([first_run.num_items(split)])} items)" for split in splits_of(group)]
        scores += [f"{first_run.score} of {first_run.task} on {listing(splits)}"] if splits else []
    model, conditions, seeds, settings, unknown = making
    return GROUP.format(
        model=model,
        tasks=listing(tasks),
        conditions=conditions,
        seeds=seeds,
        runs=_count(len(runs), "run"),
        failed=f", of which {num_failed} learned nothing that the reported split shows" if num_failed else "",
        settings=settings,
        unknown=unknown,
        scores="; ".join(scores) or UNKNOWN,
    )
