"""What fine-tuning forgot: the section on masked-LM loss."""

import pandas as pd

from toolkit.reporting.cells import NOT_APPLICABLE, estimate_text, number
from toolkit.reporting.page import Section, rows_block

LOSS = "masked-LM loss"
TUNED, UNTUNED = "tuned words", "words before"
"""What the probe calls them; a test holds the words together."""
NAMES = {"none": "full fine-tuning", "embeddings": "embeddings frozen", "backbone": "feature extraction"}
CAPTION = (
    "Masked-LM loss in nats per masked token, and share of masked tokens that were guessed: means over texts and "
    "seeds. In brackets: the least and the greatest seed; of one seed, its 95 % interval over texts."
)
LEAD = (
    "The backbone before and after, under the masked-LM head of its pretraining. Tuned words: the tuned word table "
    "also scores the vocabulary, as in the tuned checkpoint; words before: that of the checkpoint does."
)


def section(table: pd.DataFrame) -> Section:
    """``measure_forgetting``'s table, one line per model, task, regime and texts."""
    header = ["model and task", "regime", "texts", "seeds", "loss before", f"change, {TUNED}", f"change, {UNTUNED}"]
    header += ["guessed before", "after", "by frequency"]
    names = [NAMES.get(regime, f"{regime} frozen") for regime in table["regime"]]
    table = table.assign(regime=names, group=table["model"] + " on " + table["task"])
    rows: list[list[object]] = []
    for key, own in table.groupby(["group", "regime", "texts"], sort=False):
        known = own[own["reason"] == ""]
        if known.empty:
            reasons = "; ".join(own["reason"].unique())
            rows.append([*key, len(own), *[NOT_APPLICABLE] * 5, reasons])
            continue
        loss, guessed = known[known["measure"] == LOSS], known[known["measure"] != LOSS]
        shown = guessed[guessed["decoder"] == (TUNED if (guessed["decoder"] == TUNED).any() else UNTUNED)]
        numbers: list[object] = [loss["run"].nunique(), number(loss["value_before"].mean())]
        numbers += [_change(loss[loss["decoder"] == decoder]) for decoder in (TUNED, UNTUNED)]
        numbers += [f"{number(100 * shown[name].mean())} %" for name in ("value_before", "value_after")]
        by_frequency = f"{number(loss['by_frequency'].mean())}, {number(100 * shown['by_frequency'].mean())} %"
        rows.append([*key, *numbers, by_frequency])
    return Section(id="forgotten", title="What was forgotten?", lead=LEAD, blocks=(rows_block(header, rows, CAPTION),))


def _change(lines: pd.DataFrame) -> str:
    if lines.empty:
        return NOT_APPLICABLE
    ends = lines[["low", "high"]].iloc[0] if len(lines) == 1 else (lines["value"].min(), lines["value"].max())
    return estimate_text(lines["value"].mean(), *ends, is_signed=True)
