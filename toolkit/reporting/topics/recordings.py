"""What must be known of runs of other training loops before any number from them: problems, gaps, and what is open."""

import re
from collections.abc import Iterable, Mapping, Sequence

from toolkit.comparison.conditions import Group, ReportedRun
from toolkit.comparison.recorded import TASK_NOT_GIVEN
from toolkit.comparison.report_data import ReportData
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.naming import first_few
from toolkit.reporting.page import Answer

KNOW = "What is to know of these runs?"
MOST_NAMED = 3
"""Runs that a line names; of more it gives the number."""


def notes_answer(data: ReportData) -> tuple[Answer, ...]:
    """The notes on recordings as an answer of the first screen; nothing where there are none."""
    notes = [*notes_on(data.runs), *notes_on_groups(data.groups)]
    names = of_unknown_exposure(data)
    if names:
        notes.append(EXPOSURE.format(names=_named(names)))
    return (Answer(question=KNOW, verdict="", text="\n".join(notes)),) if notes else ()


EXPOSURE = (
    "Which words training used was not recorded of {names}, and a report takes it from logs alone: "
    "python -m toolkit drift BASE CHECKPOINT infers it, where the weights tell."
)


def of_unknown_exposure(data: ReportData) -> list[str]:
    """The recordings whose words moved and that do not say which of them training used; of first seeds alone."""
    exposed, drift = data.evidence.exposed, data.evidence.drift
    recordings = {run.name for run in data.runs if run.is_recorded}
    if exposed.empty or not recordings:
        return []
    moved = drift.loc[drift["has_moved"].astype(bool) & (drift["parameter"] == TABLES[0]), "run"]
    unknown = exposed.loc[~exposed["is_recorded"].astype(bool), "run"]
    return [name for name in unknown if name in recordings.intersection(moved)]


def notes_on(runs: Iterable[ReportedRun]) -> list[str]:
    """A note for each distinct problem or gap of single runs, with the names of the runs."""
    runs_by_note: dict[str, list[str]] = {}
    for run in runs:
        notes = [str(problem) for problem in run.manifest.get("problems") or ()]
        if start := start_of(run):
            notes.append(f"drift is since {start}, and not since before training")
        proofs = run.part("frozen").get("parameters") or {}
        if changed := [name for name, proof in proofs.items() if proof.get("before") != proof.get("after")]:
            notes.append(f"frozen, but changed: {first_few(changed, MOST_NAMED)}")
        for note in (*notes, *run.recorded.get("notes", ())):
            runs_by_note.setdefault(note, []).append(run.name)
    return [f"{_named(names)}: {note.rstrip('.')}." for note, names in runs_by_note.items()]


def start_of(run: ReportedRun) -> str:
    """What the drift of a run is since, where that is later than before training; empty where it is not."""
    step = run.manifest.get("begins_after_steps")
    if step:
        return f"step {step}, where its recording began"
    kept = run.recorded.get("since")
    return f"{kept}, the first one kept" if kept else ""


def notes_on_several(runs: Sequence[ReportedRun]) -> list[str]:
    """Notes on seeds and tasks that were not given, by which runs would be told apart."""
    names = [run.name for run in runs if run.seed is None]
    notes = [SEEDS.format(names=_named(names))] if names else []
    num_unnamed = sum(run.task == TASK_NOT_GIVEN for run in runs)
    return [*notes, TASKS.format(num=num_unnamed)] if num_unnamed > 1 else notes


SEEDS = "Seeds not given ({names}): runs that differ in nothing else are taken as replicates."
TASKS = "What {num} runs were trained on is not given (task=): those of a model are taken together; data may differ."


def notes_on_groups(groups: Sequence[Group]) -> list[str]:
    """The notes of :func:`notes_on_several`, on predictions and scores not given, and on what a name calls frozen."""
    runs = [run for group in groups for run in group.runs]
    recorded = [run for run in runs if run.is_recorded]
    names_by_sentence = {
        "No predictions of {names}: intervals of their scores are over seeds alone, and whether they learned is not "
        "known (keep_predictions of a recording and keeping_predictions of the callback keep them).": [
            run.name for run in runs if run.splits and not run.answers
        ],
        "No scores of {names}: what needs them is left out.": [run.name for run in recorded if not run.splits],
        "In {num} of {of} runs what the name calls frozen moved: {names}.": [
            run.name for run in recorded if calls_frozen_what_moved(run)
        ],
    }
    notes = [
        sentence.format(names=_named(names), num=len(names), of=len(recorded))
        for sentence, names in names_by_sentence.items()
        if names
    ]
    return [*notes_on_several(runs), *notes]


FREEZING = re.compile(r"froz|freez|feature.?extract")
NO_FREEZING = re.compile(r"(un|not|no|non|never).?(froz|freez)|(froz|freez)e?n?.?(none|nothing|false)")
PARAMETERS_OF_WORDS: Mapping[str, tuple[str, ...]] = {
    "words?": ("word_embeddings",),
    "positions?": ("position_embeddings",),
    "emb[a-z]*": EMBEDDING_PARAMETERS,
}
"""In a name that says frozen: the pattern of a whole word, and the parameters that it is about."""
WHOLE_MODEL = re.compile(r"backbone|encoder|body|feature.?extract")


def calls_frozen_what_moved(run: ReportedRun) -> bool:
    """Whether the name of a recording's folder, or its condition, calls frozen what is not bit-identical.

    The name is the user's own: a word for frozen with a part of the model, or alone, where nothing at all was frozen.
    """
    name = f"{run.directory_name} {run.condition or ''}".lower()
    moved = run.recorded.get("moved") or ()
    if not FREEZING.search(name) or NO_FREEZING.search(name):
        return False
    called_frozen = {
        parameter
        for word, parameters in PARAMETERS_OF_WORDS.items()
        if re.search(rf"(?<![a-z]){word}(?![a-z])", name)
        for parameter in parameters
    }
    if called_frozen:
        return not called_frozen.isdisjoint(moved)
    return bool(moved) and (WHOLE_MODEL.search(name) is not None or run.regime == "none")


def _named(names: Sequence[str]) -> str:
    """The names, or of many their number."""
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{names[0]} and {len(names) - 1} more"
