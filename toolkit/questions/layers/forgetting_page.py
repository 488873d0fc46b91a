"""What fine-tuning forgot: the section on masked-LM loss."""

import pandas as pd

from toolkit.questions.layers.forgetting import LOSS, TUNED, UNTUNED
from toolkit.reporting.cells import NOT_APPLICABLE, estimate_text, number
from toolkit.reporting.page import Section, rows_block

CAPTION = (
    "Masked-LM loss in nats per masked token, and share of masked tokens that were guessed: means over texts and "
    "seeds. In brackets: the least and the greatest seed; of one seed, its 95 % interval over texts. Guesses are those "
    "of the tuned words, where there are two decoders. By frequency: by knowing only how often each word is masked."
)
LEAD = (
    "The backbone before and after, under the masked-LM head of its pretraining. Tuned words: the tuned word table "
    "also scores the vocabulary, as in the tuned checkpoint; words before: that of the checkpoint does."
)


def section(table: pd.DataFrame) -> Section:
    """``measure_forgetting``'s table, one line per condition and texts; a note where one could not be measured."""
    header = [
        "model and task",
        "regime",
        "texts",
        "seeds",
        "loss before",
        f"change, {TUNED}",
        f"change, {UNTUNED}",
        "guessed before",
        "guessed after",
        "loss by frequency",
        "guessed by frequency",
        "note",
    ]
    rows: list[list[object]] = []
    for key, records in table.groupby(["group", "condition", "texts"], sort=False):
        loss, guesses = records[records["measure"] == LOSS], records[records["measure"] != LOSS]
        start = [*key, loss["run"].nunique()]
        if records["value"].isna().all():
            rows.append([*start, *[NOT_APPLICABLE] * 7, "; ".join(records["reason"].unique())])
            continue
        changes = [_change(loss[loss["decoder"] == decoder]) for decoder in (TUNED, UNTUNED)]
        # Of two decoders that of the tuned words comes last.
        guesses = guesses[guesses["decoder"] == guesses["decoder"].iloc[-1]]
        before, after, by_frequency = (
            f"{number(100 * guesses[name].mean())} %" for name in ("value_before", "value_after", "by_frequency")
        )
        loss_before, loss_by_frequency = (number(loss[name].mean()) for name in ("value_before", "by_frequency"))
        rows.append([*start, loss_before, *changes, before, after, loss_by_frequency, by_frequency, ""])
    if not any(note for *_, note in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return Section(id="forgotten", title="What was forgotten?", lead=LEAD, blocks=(rows_block(header, rows, CAPTION),))


def _change(runs: pd.DataFrame) -> str:
    """Mean change of the loss over runs: of one run with its interval, of several with their range."""
    if runs.empty:
        return NOT_APPLICABLE
    bounds = runs[["low", "high"]].iloc[0] if len(runs) == 1 else (runs["value"].min(), runs["value"].max())
    return estimate_text(runs["value"].mean(), *bounds, is_signed=True)
