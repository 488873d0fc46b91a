"""Which rows training exposed, as two checkpoints tell it."""

from dataclasses import dataclass

import pandas as pd

from toolkit.families import TABLES
from toolkit.questions.changes.inferred_exposure import EXPOSED, InferredExposure, describe_decay, infer_from
from toolkit.reporting.cells import Column, number
from toolkit.reporting.page import Answer, Block, FoldBlock, Section, TextBlock, table_block
from toolkit.reporting.sources import Computed, DriftPart, Makers, Opened
from toolkit.reporting.topics.movement import in_percent

NUM_WORDS = 20
LEAD = (
    "No log says which rows the texts used; the weights do. Weight decay does the same to every row that no text used, "
    "and a gradient does not. A row is exposed where a value of it is not where decay alone leaves it."
)
PRIVACY = (
    "These words stood in the texts that trained the model: whoever has both checkpoints can read them. With the "
    "embeddings frozen they do not show here."
)


@dataclass(frozen=True)
class Inferred(Opened):
    """Checkpoints whose exposure was not recorded, with what the first and the last of them tell of it."""

    told: InferredExposure | None = None


def read(opened: Opened) -> Opened:
    """The same with rows in strata by the exposure that two checkpoints tell; a run or a single one stays as it is."""
    if opened.is_run or len(opened.trajectory) < 2:
        return opened
    exposure = infer_from(opened.trajectory)
    return Inferred(**{**vars(opened), "trajectory": exposure.trajectory}, told=exposure)


def _exposure_of(opened: Opened) -> InferredExposure | None:
    return opened.told if isinstance(opened, Inferred) else None


def makers(opened: Opened) -> Makers:
    """The tables by name, and what computes each."""
    inferred = _exposure_of(opened)
    if inferred is None:
        return {}
    return {
        "inferred_exposure": lambda: inferred.tables,
        "inferred_rows": lambda: inferred.rows,
        "inferred_words": lambda: inferred.words,
    }


USED = "Which words did training use?"
MOVED = " On average these moved by {} % of their norm, the others by {} %."


def answer(computed: Computed) -> Answer | None:
    """How many words were exposed, how long the texts were, and how far these words and the others moved."""
    inferred, tables = _exposure_of(computed.opened), computed.get("inferred_exposure", parameter=TABLES[0], reason="")
    if inferred is None or tables.empty:
        return None
    record = tables.iloc[0]
    length = inferred.longest_text
    texts = f" Its longest text had {int(length):,} tokens." if length == length else ""
    of_words = inferred.rows[inferred.rows["parameter"] == TABLES[0]]
    means = (100 * of_words["relative"]).groupby(of_words["exposure"] == EXPOSED).mean()
    moves = MOVED.format(number(means[True]), number(means[False])) if means.notna().sum() == 2 else ""
    verdict = f"{int(record['num_exposed_rows']):,} of {int(record['num_rows']):,} words"
    text = f"Inferred from the weights, without a log.{texts}{moves}"
    return Answer(question=USED, verdict=verdict, text=text, tone="apart")


def section(computed: Computed) -> Section:
    """What each table tells, and the words."""
    tables, words = computed.get("inferred_exposure"), computed.get("inferred_words")
    if tables.empty:
        return Section(id="exposure", title="", blocks=())
    blocks: list[Block] = [_tables(tables)]
    if len(words):
        blocks.append(TextBlock(text=PRIVACY))
        caption = f"Of {len(words):,} exposed words, those that moved farthest."
        top = in_percent(words).nlargest(NUM_WORDS, "drift_percent")
        word_table = table_block(top, "token drift_percent", caption)
        blocks.append(FoldBlock(title="Words of the training texts", blocks=(word_table,)))
    return Section(id="exposure", title="Which rows training used", lead=LEAD, blocks=tuple(blocks))


def _tables(tables: pd.DataFrame) -> Block:
    """How many rows of each table were exposed, and the decay, or why that cannot be told."""
    described = tables.assign(
        decay=[describe_decay(record) if not record["reason"] else "" for _, record in tables.iterrows()]
    )
    return table_block(
        described,
        "parameter num_rows num_exposed_rows num_unexposed_rows num_untold_rows misfit_unexposed misfit_exposed decay "
        "reason note",
        "What the rows of each table tell.",
        num_rows="rows",
        num_exposed_rows="exposed",
        num_unexposed_rows="unexposed",
        num_untold_rows="cannot tell",
        misfit_unexposed="greatest misfit, others",
        misfit_exposed="least misfit, exposed",
        decay=Column(label="Σ lr·decay", how="-ln of what is left of unexposed rows; all that fp32 leaves open."),
        reason="why nothing can be told",
    )


PARTS = {"exposure": DriftPart(section, makers, answer, read=read, is_brief=lambda opened: True)}
