"""What fine-tuning forgot: the section on masked-LM loss."""

import pandas as pd

from toolkit.reporting.cells import ABSENT, estimate_text, number, spoken
from toolkit.reporting.page import Section, rows_block

LOSS = "masked-LM loss"
"""What the probe calls it; a test holds the words together."""
CAPTION = (
    "Loss in nats per masked token, and share of masked tokens that were guessed: means over texts, change with its "
    "95 % interval over texts. Each line is one run: one seed says nothing of another."
)
LEAD = (
    "The backbone before and after, under the masked-LM head of its pretraining. Tuned words: the tuned word table "
    "also scores the vocabulary, as in the tuned checkpoint; words before: that of the checkpoint does."
)


def section(table: pd.DataFrame) -> Section:
    """``measure_forgetting``'s table, one line per run, texts and decoder."""
    header = ["run", "regime", "texts", "decoder", "loss before", "after", "change", "guessed before", "after"]
    header += ["loss by frequency", "guessed by frequency"]
    rows: list[list[object]] = []
    for key, own in spoken(table, ("regime",)).groupby(["run", "regime", "texts", "decoder"], sort=False):
        if own["reason"].iloc[0]:
            rows.append([*key, own["reason"].iloc[0], *[ABSENT] * (len(header) - len(key) - 1)])
            continue
        loss, accuracy = (line for _, line in own.sort_values("measure", key=lambda names: names != LOSS).iterrows())
        change = estimate_text(loss["value"], loss["low"], loss["high"])
        guessed = [f"{number(100 * accuracy[name])} %" for name in ("value_before", "value_after")]
        ends = [number(loss["by_frequency"]), f"{number(100 * accuracy['by_frequency'])} %"]
        rows.append([*key, number(loss["value_before"]), number(loss["value_after"]), change, *guessed, *ends])
    return Section(id="forgotten", title="What was forgotten?", lead=LEAD, blocks=(rows_block(header, rows, CAPTION),))
