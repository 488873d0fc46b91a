"""What moved: the sections on parameters, words, positions, segments and tokens of each group."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest

import numpy as np
import pandas as pd

from toolkit.analysis.drift import ALL_ROWS
from toolkit.comparison.arms import Arm
from toolkit.comparison.measure import RANKINGS
from toolkit.comparison.report_data import GroupTables, order_of, ordered_strata
from toolkit.families import EMBEDDING_PARAMETERS, TABLES
from toolkit.reporting.cells import listing, mean_and_sd, span, stratum_text
from toolkit.reporting.charts import Chart, Charts, draw
from toolkit.reporting.page import Block, FoldBlock, Section, TextBlock, chart_blocks, folds, rows_block
from toolkit.reporting.topics.drift import plot_drift, plot_position_drift, plot_word_boxes
from toolkit.reporting.topics.scores import plot_scores_over_epochs, probe_block, training_block

HOWS = {
    "relative drift": "‖Δ‖ / ‖E⁰‖ of the whole parameter, mean ± standard deviation over seeds, in float64.",
    "re-initialised": "The same number for an independent re-initialisation of the same shape: a yardstick.",
    "left by weight decay (%)": "Of the squared drift of the unexposed words: what replaying the logged weight decay "
    "does not give.",
    "stratum": "Rows that moved for different reasons are never averaged; steps are optimizer steps of the whole run.",
    "median ‖Δ‖": "Median over the rows of the stratum, mean ± standard deviation over seeds.",
    "median relative": "Median of ‖Δ‖ / ‖E⁰‖ over rows; a row that was 0 has none and is counted.",
    "median angle (degrees)": "Angle between the row before and after training.",
    "median radial change": "Part of the change along the row itself: weight decay makes it negative.",
}
"""What the columns are, for whoever asks."""


def drift_block(tables: GroupTables) -> Block:
    """A line per parameter, a column per condition: relative drift at the last epoch, beside a re-initialisation."""
    arms = tables.group.arms
    rows: list[list[object]] = []
    for parameter in EMBEDDING_PARAMETERS:
        cells: list[str | None] = []
        for arm in arms:
            drift = tables.relative_drift(arm, parameter) if arm.has(parameter) else None
            if drift is None or (drift != 0).any():
                cells.append(None if drift is None else mean_and_sd(drift))
            else:
                cells.append("0 (bit-identical)" if arm.is_proven_frozen(parameter) else "0")
        rows.append([parameter, *cells])
        if len(tables.drift):
            yardsticks = [_yardstick(tables, arm, parameter) for arm in arms if arm.has(parameter)]
            rows[-1].append(mean_and_sd(np.concatenate(yardsticks)) if yardsticks else None)
    header = ["parameter", *(arm.label for arm in arms), *(["re-initialised"] if len(tables.drift) else [])]
    hows = HOWS | {arm.label: HOWS["relative drift"] for arm in arms}
    return rows_block(header, rows, f"Relative drift of each parameter on {tables.group.title} at the last epoch", hows)


def _yardstick(tables: GroupTables, arm: Arm, parameter: str) -> np.ndarray:
    lines = tables.whole(arm, parameter, statistic="reinitialised")
    values: np.ndarray = lines.groupby("run", sort=False)["value"].last().reindex(arm.names).to_numpy(np.float64)
    return values


def exposure_block(tables: GroupTables) -> Block:
    """A line per condition whose words moved: how far exposed and unexposed words did, and what decay leaves open."""
    rows: list[list[object]] = []
    known = {line["run"]: line for line in tables.exposed.to_dict("records")}
    for arm in tables.group.arms:
        line = known.get(arm.runs[0].name)
        if line is None or not has_moved_words(tables, arm):
            continue
        line["percent_unmoved"] = 100 * line["share_unmoved"]
        names = ("num_exposed", "median_exposed", "num_unexposed", "median_unexposed", "percent_unmoved")
        cells = [line[name] if line["is_recorded"] and line[name] == line[name] else None for name in names]
        # The share of the unexposed words' squared drift that replayed weight decay leaves.
        left = line["left_by_decay"] if line["has_log"] else None
        rows.append([arm.label, *cells, "0, bit for bit" if left == 0 else None if left is None else 100 * left])
    header = ["condition", "exposed words", "median ‖Δ‖", "unexposed words", "their median ‖Δ‖"]
    header += ["exactly as before (%)", "left by weight decay (%)"]
    caption = f"Words that training exposed and words that it did not, on {tables.group.title}, first seed"
    return rows_block(header, rows, caption, HOWS)


def has_moved_words(tables: GroupTables, arm: Arm) -> bool:
    """Whether any word row of the first seed of an arm moved."""
    own = tables.boxes[tables.boxes["run"] == arm.runs[0].name] if len(tables.boxes) else tables.boxes
    return bool(len(own)) and bool((own["num_moved"] > 0).any())


def strata_block(tables: GroupTables, parameter: str) -> Block:
    """One line per stratum and arm of a table's rows at the last epoch, one in all for an arm where none moved."""
    if not any(arm.has(parameter) for arm in tables.group.arms):
        return TextBlock(text=f"Not applicable: this model has no {parameter}.")
    header = ["stratum", "condition", "rows", "median ‖Δ‖", "greatest ‖Δ‖", "median relative", "median angle (degrees)"]
    header += ["median radial change"]
    columns = [("norm", "median"), ("norm", "max"), *((m, "median") for m in ("relative", "angle_degrees", "radial"))]
    parts = [(arm, tables.of(arm, parameter)) for arm in tables.group.arms]
    found = ordered_strata(stratum for _, lines in parts for stratum in lines["stratum"])
    rows: list[list[object]] = []
    for stratum in (s for s in found if s != "whole parameter"):
        for arm, lines in parts:
            own = lines[lines["stratum"] == stratum]
            if len(own) and (stratum == ALL_ROWS or not _is_still(lines)):
                cells = [_statistic(own, *column) for column in columns]
                rows.append([stratum_text(stratum), arm.label, span(own["num_rows"]), *cells])
    return rows_block(header, rows, f"Rows of {parameter} on {tables.group.title} at the last epoch", HOWS)


def _is_still(lines: pd.DataFrame) -> bool:
    """Whether no row moved; then one line for all rows says everything."""
    return not lines.query("measure == 'norm' and statistic == 'max'")["value"].any()


def _statistic(lines: pd.DataFrame, measure: str, statistic: str) -> str:
    own = lines[(lines["measure"] == measure) & (lines["statistic"] == statistic)]
    text = mean_and_sd(own["value"])
    undefined = own["num_undefined"].sum()
    if not undefined:
        return text
    return f"{text} ({undefined} of {own['num_rows'].sum()} rows{' undefined' if own['value'].notna().any() else ''})"


def _tokens(tables: GroupTables) -> list[Block]:
    """For each arm the two rankings of the tokens that moved most, side by side, of its first seed."""
    arms = [(f"{arm.label}, seed {arm.runs[0].config.seed}", arm) for arm in tables.group.arms]
    return [
        FoldBlock(title=title, blocks=(_tokens_of(tables, arm, title),), is_open=not i)
        for i, (title, arm) in enumerate(arms)
    ]


def _tokens_of(tables: GroupTables, arm: Arm, title: str) -> Block:
    if not arm.has("word_embeddings"):
        return TextBlock(text="Not applicable: this model has no word_embeddings.")
    own = tables.tokens[tables.tokens["run"] == arm.runs[0].name] if len(tables.tokens) else tables.tokens
    if own.empty:
        known = tables.exposed.loc[tables.exposed["run"] == arm.runs[0].name, "is_recorded"].astype(bool).any()
        text = "No row seen in training moved." if known else "Not applicable: exposure was not recorded."
        return TextBlock(text=text)
    sides = []
    for ranking in RANKINGS:
        lines = own[own["ranking"] == ranking].to_dict("records")
        names = [str(line["token"]) or f"(row {line['row']})" for line in lines]
        numbers = [[line[ranking], int(line["num_steps"]), int(line["num_tokens"])] for line in lines]
        sides.append([[name, *cells] for name, cells in zip(names, numbers, strict=True)])
    header = ["rank", "by ‖Δ‖: token", "‖Δ‖", "steps", "tokens", "by angle: token", "degrees", "steps", "tokens"]
    pairs = zip_longest(*sides, fillvalue=[""] * 4)
    rows = [[i, *one, *other] for i, (one, other) in enumerate(pairs, start=1)]
    return rows_block(header, rows, f"Tokens that moved most: {title}")


FIRST_SEED = "Single rows are those of the first seed of each condition; the table's numbers are over all seeds."


def drift_topics(tables: Sequence[GroupTables], prefixes: Sequence[str], claims: Mapping[str, Block]) -> list[Section]:
    """One section per topic that there is something of, in it one fold per task.

    ``claims``: title of a group to its verdicts on drift; ``prefixes``: what the names of each group's charts begin
    with.
    """
    regimes = order_of(tables)
    drawn = [group_charts(own, regimes) for own in tables]
    titles = [own.group.title for own in tables]
    topics = list(TOPICS)
    if all(own.drift.empty for own in tables):  # the evidence of an earlier version kept nothing of single rows
        topics = topics[:2]
    sections = []
    for topic in topics:
        bodies: list[list[Block]] = []
        for own, charts, prefix in zip(tables, drawn, prefixes, strict=True):
            title, bars = own.group.title, "; bars span the seeds" * any(len(arm.runs) > 1 for arm in own.group.arms)
            caption = topic.caption.format(title=title, bars=bars)
            alt = f"{topic.chart.replace('_', ' ').capitalize()} on {title}"
            figure = chart_blocks(charts, topic.chart, caption, alt, prefix)
            claim = [claims[title]] if topic.id == "drift" and title in claims else []
            bodies.append([*figure, *topic.blocks(own), *claim])
        lead = drift_lead(tables) if topic.id == "drift" else topic.lead
        sections.append(Section(id=topic.id, title=topic.title, lead=lead, blocks=folds(titles, bodies)))
    return sections


def group_charts(tables: GroupTables, regimes: Sequence[str]) -> Charts:
    """The charts of one group, those that there is something to draw of; ``regimes``: the order of their colours."""
    rates = tables.baselines.groupby("split", sort=False)["majority_rate"].mean()
    score = tables.group.runs[0].score
    scores = tables.with_arms(tables.scores[tables.scores["split"].isin(rates.index)])
    majority = {str(split): float(rate) for split, rate in rates.items()} if score == "accuracy" else None
    boxes, dots = tables.with_arms(tables.boxes), tables.with_arms(tables.dots)

    def over_epochs() -> Chart | None:
        return plot_scores_over_epochs(scores, score, majority=majority, regimes=regimes) if score in scores else None

    def of(plot: Callable[..., Chart | None], rows: pd.DataFrame, *others: pd.DataFrame) -> Chart | None:
        return None if rows.empty else plot(rows, *others, regimes=regimes)

    return draw(
        {
            "scores_over_epochs": over_epochs,
            "drift_over_epochs": lambda: of(plot_drift, tables.with_arms(tables.drift)),
            "word_drift_by_exposure": lambda: of(plot_word_boxes, boxes, dots),
            "position_drift": lambda: of(plot_position_drift, tables.with_arms(tables.positions)),
        }
    )


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


def _training(tables: GroupTables) -> list[Block]:
    probe = probe_block(tables)
    if not probe and len(tables.drift):
        probe = TextBlock(text="Linear probe: not applicable, no run recorded one.")
    title = f"Before and after training: {tables.group.title}"
    return [*([probe] if probe else []), FoldBlock(title=title, blocks=(training_block(tables),))]


def _rows_of(parameter: str, tables: GroupTables) -> list[Block]:
    """The arms in which no row moved, of which the chart shows nothing, then the strata."""
    arms = [arm for arm in tables.group.arms if arm.has(parameter)]
    still = [arm.label for arm in arms if tables.relative_drift(replace(arm, runs=arm.runs[:1]), parameter)[0] == 0]
    said = [TextBlock(text=f"No row moved under {listing(still)}.")] if still else []
    return [*said, strata_block(tables, parameter)]


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A section with a part for each model and task: a chart, if there is one, and blocks."""

    id: str
    title: str
    lead: str
    chart: str = ""
    caption: str = ""
    blocks: Callable[[GroupTables], list[Block]]


TOPICS = (
    Topic(
        id="training",
        title="Scores and drift over epochs",
        lead=TRAINING,
        chart="scores_over_epochs",
        caption="Headline score of every labelled split of {title} at each epoch{bars}. Dotted: the majority class.",
        blocks=_training,
    ),
    Topic(
        id="drift",
        title="Drift of each parameter",
        lead=DRIFT,
        chart="drift_over_epochs",
        caption="Relative drift ‖Δ‖ / ‖E⁰‖ of each whole parameter from epoch 0 on {title}, on a logarithmic axis"
        "{bars}. Marks on the floor are exactly 0. Dotted: a re-initialised parameter.",
        blocks=lambda tables: [drift_block(tables)],
    ),
    Topic(
        id="word-rows",
        title="Word rows, seen and never seen",
        lead=WORDS,
        chart="word_drift_by_exposure",
        caption="Drift of the word rows on {title} at the last epoch by how often training showed them: quartiles "
        "(box) and 5 to 95 % (line) of the rows that moved; fewer than five rows are drawn one by one. At the right, "
        "how many rows there are and the share that is exactly 0. Only conditions under which rows moved are drawn.",
        blocks=partial(_rows_of, TABLES[0]),
    ),
    Topic(
        id="positions",
        title="Positions",
        lead=f"Positions beyond the longest training text get no gradient. {FIRST_SEED}",
        chart="position_drift",
        caption="Drift of each position row on {title} at the last epoch. Lines on the floor are exactly 0. Dotted: "
        "the end of the longest training text.",
        blocks=partial(_rows_of, TABLES[1]),
    ),
    Topic(id="segments", title="Segments", lead=SEGMENTS, blocks=lambda tables: [strata_block(tables, TABLES[2])]),
    Topic(id="tokens", title="Tokens that moved most", lead=TOKENS, blocks=_tokens),
)
