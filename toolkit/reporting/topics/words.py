"""How far each word's row moved, against how often training saw it, and its nearest words before and after."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from toolkit.analysis.word_rows import NUM_NAMED, WordRows, evenly, measure_words, seen_most
from toolkit.naming import visible
from toolkit.reporting.cells import Column
from toolkit.reporting.page import Block, ChartBlock, FoldBlock, Section, TableBlock, folds, rows_block
from toolkit.reporting.topics.words_chart import data_size, plot_words
from toolkit.snapshots.store import Source, trajectory_of

BUDGET_BYTES = 1_100_000
"""What the data of the chart may take of a page."""
NUM_TABLED = 20
HOW_NEIGHBOURS = (
    "The five words whose rows point most nearly the same way (greatest cosine), among all words of the vocabulary, "
    "seen in training or not, but not special tokens."
)
TABLED: Mapping[str, Column] = {
    "token": Column(label="word", how="As the model's vocabulary spells it; ## continues a word."),
    "num_steps": Column(label="steps", how="Optimizer steps whose batch held the word: only these gave it a gradient."),
    "norm": Column(label="drift", how="Norm of the change of its row over all of training, in weight units."),
    "angle_degrees": Column(label="angle", how="Between its row before and after training.", unit="degrees"),
    "before": Column(label="nearest before training", how=HOW_NEIGHBOURS),
    "after": Column(label="nearest after", how=HOW_NEIGHBOURS),
}


@dataclass(frozen=True)
class _Words:
    """What is drawn of one run."""

    run: str
    table: pd.DataFrame
    """What plot_words takes."""
    most_moved: pd.DataFrame
    """The last epoch of the words that moved most, drawn or not."""
    num_seen: int
    """Words that training saw, drawn or not; every word where that was not recorded."""
    num_drawn: int
    num_unseen: int
    num_unseen_drawn: int
    num_epochs: int
    """Epochs after training began, shown or not."""


def words_section(runs: Sequence[tuple[str, Source | WordRows]], *, budget_bytes: int = BUDGET_BYTES) -> Section | None:
    """The words of labelled runs, or of what was measured of them: chart, table and what is drawn; None without any.

    Every row that training used is drawn ([CLS] and other special tokens too, [PAD] never), or without recorded
    exposure every word, and beside them some words that training never saw. Neighbours are the five nearest by cosine,
    exactly, among all words of the vocabulary. A run whose words do not fit into its share of ``budget_bytes`` keeps
    those seen in the most steps.
    """
    drawn: list[_Words] = []
    refused: list[tuple[str, str]] = []
    left = budget_bytes
    for i, (label, source) in enumerate(runs):
        num_named = max(NUM_NAMED // len(runs), NUM_TABLED)
        words = source if isinstance(source, WordRows) else measure_words([trajectory_of(source)], num_named=num_named)
        if words.reason:
            refused.append((label, words.reason))
            continue
        made = _fitting(visible(label), words, left // (len(runs) - i))
        drawn, left = [*drawn, made], left - data_size(made.table)
    if not drawn:
        return None
    chart = plot_words(pd.concat([made.table for made in drawn], ignore_index=True))
    drawn_seen, all_seen = sum(each.num_drawn for each in drawn), sum(each.num_seen for each in drawn)
    drawn_rest, all_rest = sum(each.num_unseen_drawn for each in drawn), sum(each.num_unseen for each in drawn)
    caption = (
        "A mark is a word: to the right, training saw it in more optimizer steps, and only these gave its row a "
        "gradient; upwards, its row moved farther. Marks on the floor are exactly 0. Type part of a word, or click on "
        "a mark, to read its neighbours: the five words whose rows point most nearly the same way, with their cosines. "
        "Of several seeds the means are shown, and the neighbours of the first. "
        f"Drawn: {drawn_seen:,} of {all_seen:,} words seen in training and "
        f"{drawn_rest:,} of {all_rest:,} others, evenly spaced in the vocabulary."
    )
    alt = (
        "Scatter of words: in how many optimizer steps training saw each, against how far its row moved. "
        "The table below it names those that moved most."
    )
    picture = ChartBlock(name="words", chart=chart, caption=caption, alt=alt)
    tables = folds([each.run for each in drawn], [(_most_moved(each),) for each in drawn])
    moved = FoldBlock(title="Words that moved most", blocks=tables)
    return Section(id="words", title="Which words moved", blocks=(picture, moved, *_counts(drawn, refused)))


def _fitting(run: str, words: WordRows, budget_bytes: int) -> _Words:
    """The words of a run as they are drawn: all that are known, where they fit, else those seen in the most steps."""
    shown = {name: [_shown(text) for text in words.table[name]] for name in ("token", "before", "after")}
    whole = words.table.assign(run=run, **shown)
    last = whole[whole["epoch"] == whole["epoch"].max()].set_index("row", drop=False)
    seen = last["is_seen"].astype(bool)
    kept, sample = last.index[seen].to_numpy(), last.index[~seen].to_numpy()
    table = whole
    while (share := budget_bytes / data_size(table)) < 1 and len(kept) > 3:
        # Some bytes are no word's: a little less than the share fits.
        kept = seen_most(last, kept, max(int(0.95 * share * len(kept)), 3))
        sample = evenly(sample, int(0.95 * share * len(sample)))
        table = whole[whole["row"].isin([*kept, *sample])]
    most_moved = last[seen].sort_values("norm", ascending=False, kind="stable").head(NUM_TABLED)
    names = {name: [_without_cosines(text) for text in most_moved[name]] for name in ("before", "after")}
    return _Words(
        run=run,
        table=table,
        most_moved=most_moved.assign(**names),
        num_seen=words.num_seen,
        num_drawn=len(kept),
        num_unseen=words.num_unseen,
        num_unseen_drawn=len(sample),
        num_epochs=words.num_epochs,
    )


def _shown(text: str) -> str:
    return visible(text).replace("\n", "U+000A")


def _without_cosines(text: str) -> str:
    return re.sub(r" -?[0-9]\.[0-9]{2}(?=, |$)", "", text)


def _most_moved(words: _Words) -> TableBlock:
    table = words.most_moved
    shown = table.assign(
        num_steps=["not recorded" if pd.isna(count) else int(count) for count in table["num_steps"]],
    )
    caption = f"Words that moved most: {words.run}"
    return TableBlock(table=shown[list(TABLED)].reset_index(drop=True), caption=caption, columns=TABLED, num_shown=10)


def _counts(drawn: Sequence[_Words], refused: Sequence[tuple[str, str]]) -> tuple[Block, ...]:
    """How much of each run is drawn, and why nothing is of the others."""
    header = ("run", "seen in training: drawn", "of", "others: drawn", "of", "epochs: shown", "of", "why none")
    rows: list[Sequence[object]] = [
        (
            each.run,
            each.num_drawn,
            each.num_seen,
            each.num_unseen_drawn,
            each.num_unseen,
            each.table["epoch"].nunique(),
            each.num_epochs,
            "",
        )
        for each in drawn
    ]
    rows += [(run, 0, "", 0, "", 0, "", reason) for run, reason in refused]
    table = rows_block(header, rows, "The words of each run that are drawn")
    return (FoldBlock(title="What is drawn of each run", blocks=(table,)),)
