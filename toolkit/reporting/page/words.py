"""Runs in, what the page shows of their words out: drift by epoch, neighbours before and after, and maps."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.analysis.neighbours.nearest import nearest_neighbours
from toolkit.analysis.neighbours.word_search import PARAMETER, list_words, word_table
from toolkit.analysis.rows.strata import table_exposure
from toolkit.reporting.page.encode import encode_run, script_json
from toolkit.reporting.page.model import WordsData, WordsRun
from toolkit.reporting.page.word_maps import measure_words
from toolkit.snapshots.files import sha256_of_array
from toolkit.snapshots.snapshot import Snapshot, Trajectory
from toolkit.snapshots.store import Run

BUDGET_BYTES = 5_500_000
"""What the words may take of a page: with figures and tables it then stays below 8 MB."""
NUM_NEIGHBOURS = 5
MOST_EPOCHS = 8
"""More epochs than these are thinned out evenly, the first and the last kept."""

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]
_Cache = dict[tuple[object, ...], tuple[Rows, Floats]]


@dataclass(frozen=True)
class _Found:
    """A run whose words are still rows of the word table."""

    run: WordsRun
    tokens: tuple[str, ...]
    """The text of every row."""


def collect_words(runs: Sequence[tuple[str, Run]], *, budget_bytes: int = BUDGET_BYTES) -> WordsData | None:
    """The words of labelled runs, as many as fit; None where there is none to show.

    A run shows every row that training used ([CLS] and other special tokens too), or without recorded exposure every
    word. Neighbours are the five nearest by cosine, exactly, among all words of the table, seen or not, but not special
    tokens or free rows: what looking a word up in any other tool gives. When the first run alone is too large, its
    words seen in the most steps are kept; later runs that do not fit are named in ``left_out``.
    """
    found: list[_Found] = []
    left_out: list[str] = []
    cache: _Cache = {}
    left = budget_bytes
    for label, run in runs:
        reason = _reason_against(run.trajectory)
        if not reason:
            made = _collect(label, run.trajectory, cache)
            size = _size(made)
            if size > left and not found:
                made, size = _fit(made, left / size, left)
            reason = "" if size <= left else "its words would make the page larger than it should be"
            if not reason:
                found, left = [*found, made], left - size
        if reason:
            left_out.append(f"{label}: {reason}")
    vocabularies, shown = _share_vocabularies(found)
    return WordsData(vocabularies=vocabularies, runs=shown, left_out=tuple(left_out)) if shown else None


def visible(text: str) -> str:
    """A text with invisible characters (control, format, lone surrogates) as U+XXXX."""
    return "".join(f"U+{ord(c):04X}" if unicodedata.category(c)[0] == "C" and c != "\n" else c for c in text)


def _reason_against(trajectory: Trajectory) -> str:
    if PARAMETER not in trajectory.parameters:
        return "its model has no word embeddings"
    tables = [word_table(snapshot) for snapshot in (trajectory.snapshots[0], trajectory.snapshots[-1])]
    if len(trajectory) < 2 or np.array_equal(tables[0], tables[1]):
        return "its word embeddings did not move"
    return "" if len(_shown_rows(trajectory)) >= 3 else "training used fewer than three of its words"


def _shown_rows(trajectory: Trajectory) -> Rows:
    """The rows that training used, [PAD] apart; every word where that was not recorded."""
    exposure = table_exposure(trajectory, PARAMETER)
    if exposure is None:
        return list_words(trajectory, trajectory.snapshots[-1], only_seen=False, include_unused=False)
    steps = exposure.step_counts(len(word_table(trajectory.snapshots[-1])))
    pad = trajectory.vocabulary.pad_row if trajectory.vocabulary else None
    return np.array([row for row in np.flatnonzero(steps) if row != pad], np.int64)


def _collect(label: str, trajectory: Trajectory, cache: _Cache) -> _Found:
    snapshots, note = _thinned(trajectory)
    rows = _shown_rows(trajectory)
    tables = [word_table(snapshot) for snapshot in snapshots]
    exposure = table_exposure(trajectory, PARAMETER)
    counts: list[Rows | None] = [None, None]
    if exposure is not None:
        last = snapshots[-1].step
        counts = [count(len(tables[0]), last)[rows] for count in (exposure.step_counts, exposure.token_counts)]
    words = list_words(trajectory, snapshots[-1], only_seen=False, include_unused=False)
    before, after = (_neighbours(snapshot, rows, words, cache) for snapshot in (snapshots[0], snapshots[-1]))
    run = WordsRun(
        label=label,
        vocabulary=0,
        epochs=tuple(float(snapshot.epoch) for snapshot in snapshots),
        words=rows,
        rows=rows,
        num_steps=counts[0],
        num_tokens=counts[1],
        before=before[0],
        before_similarity=before[1],
        after=after[0],
        after_similarity=after[1],
        note=note,
        **measure_words(tables, rows, np.intersect1d(rows, words)),
    )
    tokens = trajectory.vocabulary.tokens if trajectory.vocabulary else ()
    return _Found(run, tokens)


def _thinned(trajectory: Trajectory) -> tuple[list[Snapshot], str]:
    """The ends of the epochs (and the last snapshot), at most MOST_EPOCHS of them."""
    snapshots = [s for s in trajectory if s.is_epoch_end or s is trajectory.snapshots[-1]]
    if len(snapshots) <= MOST_EPOCHS:
        return snapshots, ""
    places = np.unique(np.linspace(0, len(snapshots) - 1, MOST_EPOCHS).round().astype(int))
    return [snapshots[i] for i in places], f"{len(places)} of {len(snapshots)} epochs are shown."


def _neighbours(snapshot: Snapshot, rows: Rows, words: Rows, cache: _Cache) -> tuple[Rows, Floats]:
    """(n, k) rows and cosines; the table before training is the same in many runs, and is searched once."""
    table = word_table(snapshot)
    k = min(NUM_NEIGHBOURS, len(words) - 1)
    key = (sha256_of_array(table), rows.tobytes(), words.tobytes())
    if key not in cache:
        cache[key] = nearest_neighbours(table, k, queries=rows, candidates=words)
    return cache[key]


def _size(found: _Found) -> int:
    """Bytes that a run takes in the page, with the texts of its words counted as its own."""
    used = _used(found.run)
    return len(encode_run(found.run)) + sum(len(script_json(_text(found.tokens, row)).encode()) + 1 for row in used)


def _fit(found: _Found, share: float, budget: int) -> tuple[_Found, int]:
    """The words seen in the most steps, so many that they fit."""
    run, num = found.run, len(found.run.words)
    order = np.arange(num) if run.num_steps is None else np.argsort(-run.num_steps, kind="stable")
    kept, size = found, budget + 1
    while size > budget and share * num >= 3:
        keep = np.sort(order[: int(share * num)])
        which = "first of the table" if run.num_steps is None else "seen in the most steps"
        note = f"{len(keep):,} of {num:,} words are shown, those {which}: all would make the page too large. {run.note}"
        kept = replace(found, run=_subset(run, keep, note.strip()))
        size, share = _size(kept), 0.9 * share
    return kept, size


def _subset(run: WordsRun, keep: Rows, note: str) -> WordsRun:
    first = ["words", "rows", "num_steps", "num_tokens", "norm_before", "before", "after"]
    first += ["before_similarity", "after_similarity"]
    parts: dict[str, Any] = {k: None if (v := getattr(run, k)) is None else v[keep] for k in first}
    parts |= {name: getattr(run, name)[:, keep] for name in ("norm", "angle_degrees")}
    parts["maps"] = tuple(replace(drawn, coordinates=drawn.coordinates[:, keep]) for drawn in run.maps)
    return replace(run, **parts, note=note)


def _used(run: WordsRun) -> Rows:
    used = np.unique(np.concatenate([run.words, run.before.ravel(), run.after.ravel()]))
    return used[used >= 0]


def _text(tokens: Sequence[str], row: int) -> str:
    return visible(tokens[row]) if tokens and tokens[row] else f"row {row}"


def _share_vocabularies(found: Sequence[_Found]) -> tuple[tuple[tuple[str, ...], ...], tuple[WordsRun, ...]]:
    """The texts that the runs of one model need, once, and the runs with places in them instead of rows."""
    models = list(dict.fromkeys(each.tokens for each in found))
    used = [
        np.unique(np.concatenate([_used(each.run) for each in found if each.tokens == tokens])) for tokens in models
    ]
    shown = []
    for each in found:
        vocabulary = models.index(each.tokens)
        run, rows = each.run, used[vocabulary]
        placed: dict[str, Any] = {
            name: np.where(values < 0, -1, np.searchsorted(rows, values))
            for name, values in (("words", run.words), ("before", run.before), ("after", run.after))
        }
        shown.append(replace(run, vocabulary=vocabulary, **placed))
    texts = tuple(tuple(_text(tokens, int(row)) for row in rows) for tokens, rows in zip(models, used, strict=True))
    return texts, tuple(shown)
