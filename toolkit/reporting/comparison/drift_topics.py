"""The tables of every group in, the sections on what moved out: parameters, words, positions, segments, tokens."""

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from toolkit.comparison.report_data import GroupTables, order_of
from toolkit.families import TABLES
from toolkit.reporting.charts import Chart, Charts, draw
from toolkit.reporting.comparison.drift_sections import drift_block, still_arms, strata_block, token_blocks
from toolkit.reporting.comparison.score_sections import probe_block, training_block
from toolkit.reporting.page import Block, FoldBlock, Section, TextBlock, chart_blocks, folds
from toolkit.reporting.topics.drift import plot_drift, plot_position_drift, plot_word_boxes
from toolkit.reporting.topics.scores import plot_scores_over_epochs

Make = Callable[[GroupTables, Charts, str], Sequence[Block]]

FIRST_SEED = "Single rows are those of the first seed of each condition; the table's numbers are over all seeds."


def drift_topics(tables: Sequence[GroupTables], prefixes: Sequence[str], claims: Mapping[str, Block]) -> list[Section]:
    """One section per topic that there is something of, in it one fold per task.

    ``claims``: title of a group to its verdicts on drift; ``prefixes``: what the names of each group's charts begin
    with.
    """
    regimes = order_of(tables)
    charts = [group_charts(own, regimes) for own in tables]

    def drift(own: GroupTables, drawn: Charts, prefix: str) -> Sequence[Block]:
        claim = claims.get(own.group.title)
        return [*_drift(own, drawn, prefix), *((claim,) if claim else ())]

    topics: list[tuple[str, str, str, Make]] = [
        ("training", "Scores and drift over epochs", TRAINING, _training),
        ("drift", "Drift of each parameter", drift_lead(tables), drift),
        ("word-rows", "Word rows, seen and never seen", WORDS, _words),
        (
            "positions",
            "Positions",
            f"Positions beyond the longest training text get no gradient. {FIRST_SEED}",
            _positions,
        ),
        ("segments", "Segments", SEGMENTS, _segments),
        ("tokens", "Tokens that moved most", TOKENS, _tokens),
    ]
    if all(own.drift.empty for own in tables):  # the evidence of an earlier version kept nothing of single rows
        topics = topics[:2]
    titles = [own.group.title for own in tables]
    return [
        Section(
            id=name,
            title=title,
            lead=lead,
            blocks=folds(titles, [make(*each) for each in zip(tables, charts, prefixes, strict=True)]),
        )
        for name, title, lead, make in topics
    ]


def group_charts(tables: GroupTables, regimes: Sequence[str]) -> Charts:
    """The charts of one group, those that there is something to draw of; ``regimes``: the order of their colours."""
    rates = tables.baselines.groupby("split", sort=False)["majority_rate"].mean()
    score = tables.group.runs[0].score
    scores = tables.with_arms(tables.scores[tables.scores["split"].isin(rates.index)])
    majority = {str(split): float(rate) for split, rate in rates.items()} if score == "accuracy" else None
    return draw(
        {
            "scores_over_epochs": lambda: (
                plot_scores_over_epochs(scores, score, majority=majority, regimes=regimes) if score in scores else None
            ),
            "drift_over_epochs": lambda: _if_any(plot_drift, tables.with_arms(tables.drift), regimes),
            "word_drift_by_exposure": lambda: (
                None
                if tables.boxes.empty
                else plot_word_boxes(tables.with_arms(tables.boxes), tables.with_arms(tables.dots), regimes=regimes)
            ),
            "position_drift": lambda: _if_any(plot_position_drift, tables.with_arms(tables.positions), regimes),
        }
    )


def _if_any(plot: Callable[..., Chart | None], rows: pd.DataFrame, regimes: Sequence[str]) -> Chart | None:
    """A chart of rows that the model may not have."""
    return None if rows.empty else plot(rows, regimes=regimes)


TRAINING = (
    "Before training (epoch 0) and after every epoch. The linear probe is the score of the linear head that "
    "cross-validation finds within the training split on the same frozen features (logistic regression, strength "
    "chosen by log loss, or ridge regression, by squared error): a yardstick, no strict bound."
)
DRIFT = (
    "Drift is how far a parameter is from epoch 0. The yardstick is the same number for a re-initialisation of the "
    "parameter that has nothing to do with what it had learned{bias}. The verdicts on drift are about the "
    "rows that training showed, without the offset that they share, which is why their numbers differ "
    "from those of the whole parameter."
)
WORDS = (
    "A row that no batch showed has no gradient; only weight decay can move it. A row seen once goes on moving by "
    f"Adam's momentum. The strata count optimizer steps of the whole run. {FIRST_SEED}"
)
SEGMENTS = (
    "The gradient of a segment row is the sum of those of all its tokens, so its drift is a shared shift and no sign "
    "that segments were learned. With single sentences only row 0 is in use."
)
TOKENS = (
    "Among the word rows seen in training, at the last epoch; steps and tokens are the row's exposure. Adam moves a "
    "row by the count of the steps that showed it and hardly by the size of its gradient: a rare row carries little "
    "more than the gradient's sign, so these lists are no ranking of importance."
)


def drift_lead(tables: Sequence[GroupTables]) -> str:
    """What drift is; of LayerNorm.bias only where some model has one that was not 0 before."""
    yardsticks = [
        own.whole(arm, "LayerNorm.bias", statistic="reinitialised")["value"]
        for own in tables
        for arm in own.group.arms
        if len(own.drift)
    ]
    has_one = any(values.notna().any() for values in yardsticks)
    return DRIFT.format(bias="; LayerNorm.bias then becomes 0, which is relative 1" if has_one else "")


def _bars(tables: GroupTables) -> str:
    return "; bars span the seeds" if any(len(arm.runs) > 1 for arm in tables.group.arms) else ""


def _training(tables: GroupTables, charts: Charts, prefix: str) -> Sequence[Block]:
    title = tables.group.title
    caption = (
        f"Headline score of every labelled split of {title} at each epoch{_bars(tables)}. Dotted: the majority class."
    )
    blocks: list[Block] = [
        *chart_blocks(charts, "scores_over_epochs", caption, f"Scores over epochs on {title}", prefix)
    ]
    probe = probe_block(tables)
    if probe or len(tables.drift):
        blocks += [probe or TextBlock(text="Linear probe: not applicable, no run recorded one.")]
    return [*blocks, FoldBlock(title=f"Before and after training: {title}", blocks=(training_block(tables),))]


def _drift(tables: GroupTables, charts: Charts, prefix: str) -> Sequence[Block]:
    title = tables.group.title
    caption = (
        f"Relative drift ‖Δ‖ / ‖E⁰‖ of each whole parameter from epoch 0 on {title}, on a logarithmic axis"
        f"{_bars(tables)}. Marks on the floor are exactly 0. Dotted: a re-initialised parameter."
    )
    figure = chart_blocks(charts, "drift_over_epochs", caption, f"Drift over epochs on {title}", prefix)
    return [*figure, drift_block(tables)]


def _words(tables: GroupTables, charts: Charts, prefix: str) -> Sequence[Block]:
    title = tables.group.title
    caption = (
        f"Drift of the word rows on {title} at the last epoch by how often training showed them: quartiles (box) and 5 "
        "to 95 % (line) of the rows that moved; fewer than five rows are drawn one by one. At the right, how many "
        "rows there are and the share that is exactly 0. Only conditions under which rows moved are drawn."
    )
    figure = chart_blocks(charts, "word_drift_by_exposure", caption, f"Word drift by exposure on {title}", prefix)
    return [*figure, *_still(tables, TABLES[0]), strata_block(tables, TABLES[0])]


def _positions(tables: GroupTables, charts: Charts, prefix: str) -> Sequence[Block]:
    title = tables.group.title
    caption = (
        f"Drift of each position row on {title} at the last epoch. Lines on the floor are exactly 0. Dotted: the end "
        "of the longest training text."
    )
    figure = chart_blocks(charts, "position_drift", caption, f"Drift of position rows on {title}", prefix)
    return [*figure, *_still(tables, TABLES[1]), strata_block(tables, TABLES[1])]


def _segments(tables: GroupTables, charts: Charts, prefix: str) -> Sequence[Block]:
    return [strata_block(tables, TABLES[2])]


def _still(tables: GroupTables, parameter: str) -> tuple[Block, ...]:
    sentence = still_arms(tables, parameter)
    return (TextBlock(text=sentence),) if sentence else ()


def _tokens(tables: GroupTables, charts: Charts, prefix: str) -> Sequence[Block]:
    return [
        FoldBlock(title=name, blocks=(block,), is_open=not i) for i, (name, block) in enumerate(token_blocks(tables))
    ]
