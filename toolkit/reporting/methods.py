"""The paragraphs on methods that a paper needs, from the evidence of a report alone."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

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
from toolkit.reporting.topics.runs import NOT_KEPT, NOT_KNOWN, SETTINGS, UNKNOWN, runs_frame

MOST_VALUES = 3
"""Values of a setting that are named with their conditions."""
MOST_NAMED, MOST_CONDITIONS = 8, 12
"""Seeds (and values of a setting) and conditions that are named; of more numbers the range, else how many there are."""
BESIDE = ("optimizer", "weight_decay", "warmup_fraction", "max_length", "max_steps", "dropout")
"""Fields of a config that a paper names beside SETTINGS."""

GROUP = (
    "{model} was fine-tuned on {tasks} under {conditions}, with {seeds}: {runs}{failed}. Settings: {settings}.{unknown}"
    " Scores at the last epoch: {scores}."
)
DRIFT = (
    "The embedding parameters were kept before training and during it. Their drift is the Frobenius norm of the change "
    "since the first snapshot, in % of the norm that the parameter had there, in float64."
)
COMPARED = (
    "Between conditions {count} were made, paired by {pairing}, and item by item where the answers are known. "
    "Intervals of {level} % are Student's t over {over}; over seeds and items both, their variance is that of a "
    "two-way random-effects table, with Satterthwaite's degrees of freedom. The p values of such differences share "
    "what all of them say of the spread between seeds; q is the false discovery rate of Benjamini and Hochberg over "
    "{family}. A difference is claimed with at least {least} seeds, an interval without 0 and q < {alpha}; "
    "conditions count as equivalent where the {equal} % interval (two one-sided tests) lies within ±{margin}."
)
ALONE = "Conditions were not compared."
VERSIONS = "Software: {versions}. Hardware: {devices}."
PACKAGE = "embedding-drift-toolkit"
CITED = "Analysed with the Embedding drift toolkit{own} (the embedding drift toolkit authors, Apache-2.0)."


def methods_of(folder: str | Path, *, latex: bool = False) -> str:
    """What a paper says of its methods, from the evidence of a report alone: paragraphs to be read and then changed.

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
        paragraphs = [re.sub(numbers, lambda found: cell(found[0]), escape(text)) for text in paragraphs]
    return "\n\n".join(paragraphs)


def paragraphs_of(data: ReportData) -> list[str]:
    """A paragraph for all groups that were made alike, then what holds of all of them."""
    lines, compared = headline(data.comparison), ALONE
    if lines["low_points"].notna().any():
        compared = COMPARED.format(
            count=_count(len(lines), "comparison"),
            pairing="seed" if all(run.seed is not None for run in data.runs) else "the order of their names",
            level=f"{100 * data.settings.level:g}",
            over=covered(lines),
            family=_count(int(lines["p"].notna().sum()), "difference"),
            least=LEAST_SEEDS,
            alpha=f"{data.settings.alpha:g}",
            equal=f"{100 * EQUIVALENCE_LEVEL:g}",
            margin=_count(data.settings.margin_points, "point"),
        )
    alike: dict[tuple[str, ...], list[Group]] = {}
    for group in data.groups:
        alike.setdefault(_made(group), []).append(group)
    packages = dict.fromkeys(name for run in data.runs for name in run.part("versions"))
    versions = [f"{name} {_said(run.part('versions').get(name) for run in data.runs)}" for name in packages]
    own = "".join(text.removeprefix(PACKAGE) for text in versions if text.startswith(PACKAGE))
    sources = [f" Data of {name}: {source}." for name, source in (data.evidence.page.get("sources") or {}).items()]
    software = VERSIONS.format(
        versions=listing(versions) or UNKNOWN, devices=_said(runs_frame(data.groups)["devices"].replace(NOT_KEPT, ""))
    )
    told = [_of_groups(made, groups) for made, groups in alike.items()]
    return [*told, f"{DRIFT} {compared}", software + "".join(sources), CITED.format(own=own)]


def _said(values: Iterable[object]) -> str:
    """Those that are known, each once."""
    return " or ".join(dict.fromkeys(str(value) for value in values if value)) or UNKNOWN


def _count(num: float, noun: str) -> str:
    return f"{num:,g} {noun}{'' if num == 1 else 's'}"


def _made(group: Group) -> tuple[str, ...]:
    """How the runs of a group were made: model, conditions, seeds, settings, and what is not known of these."""
    frame = spoken(runs_frame([group])).assign(**{name: [_field(run, name) for run in group.runs] for name in BESIDE})
    conditions = list(dict.fromkeys(frame["condition"]))
    seeds = [list(dict.fromkeys(own)) for _, own in frame.groupby("condition", sort=False)["seed"]]
    are_named = all(own == seeds[0] for own in seeds) and len(seeds[0]) <= MOST_NAMED and NOT_KNOWN not in seeds[0]
    said, unknown = [], []
    for name in (*SETTINGS, *BESIDE):
        own = frame[~frame[name].astype(str).str.startswith(NOT_APPLICABLE)].astype({name: str})
        values = own.groupby(name, sort=False)["condition"].unique()
        each = [f"{value} ({listing(list(of))})" for value, of in values.items()]
        if own["condition"].nunique() == len(conditions) and len(each) == 1:
            each = [str(values.index[0])]
        words = name.replace("_", " ")
        if not values.index.isin([UNKNOWN, NOT_KEPT, NOT_KNOWN]).any():
            said += [f"{words} {', '.join(each) if len(each) <= MOST_VALUES else _several(values)}"] if each else []
        else:
            unknown.append(words)
    return (
        group.runs[0].model,
        listing(conditions) if len(conditions) <= MOST_CONDITIONS else f"{len(conditions)} conditions",
        f"seeds {listing(seeds[0])}" if are_named else f"{span(map(len, seeds))} seeds each",
        "; ".join(said),
        f" Not known: {listing(unknown)}." if unknown else "",
    )


def _several(values: pd.Series) -> str:
    """Values of a setting, which lead a table, in order where all are numbers; of many these from least to greatest."""
    numbers = pd.to_numeric(values.index.str.replace(",", ""), errors="coerce")
    names = list(values.index if numbers.hasnans else values.index[numbers.argsort()])
    many = f"one of {len(names)} values" if numbers.hasnans else f"from {names[0]} to {names[-1]}"
    return listing(names) if len(names) <= MOST_NAMED else many


def _field(run: ReportedRun, name: str) -> str:
    value = run.recorded["arguments"].get(name, NOT_KNOWN) if run.is_recorded else run.setting(name)
    return NOT_APPLICABLE if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _of_groups(made: tuple[str, ...], groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    num_failed = sum(run.is_failed for run in runs)
    tasks, scores = [], []
    for group in groups:
        first, sizes = (
            group.runs[0],
            [condition.num_train_examples for condition in group.conditions if condition.num_train_examples],
        )
        tasks.append(first.task + (f" ({span(sizes)} training examples)" if sizes else ""))
        splits = [f"{split} ({span([first.num_items(split)])} items)" for split in splits_of(group)]
        scores += [f"{first.score} of {first.task} on {listing(splits)}"] if splits else []
    model, conditions, seeds, settings, unknown = made
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
