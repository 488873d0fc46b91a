"""The tables of a drift report in, its main findings out: plain sentences, each number taken from a table below."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from toolkit.analysis.causes.sign_noise import is_beyond_both
from toolkit.analysis.changes.changes import NOT_APPLICABLE
from toolkit.analysis.gauge.corpus import PROJECTED
from toolkit.analysis.rows.drift import WHOLE
from toolkit.analysis.rows.strata import BY_STEPS
from toolkit.families import TABLES
from toolkit.reporting import markdown
from toolkit.reporting.drift.tables import DriftTables, lines_of
from toolkit.reporting.markdown import number

FEWEST_ROWS = 10
"""A finding speaks of strata of which at least so many rows were sampled."""


def drift_findings(tables: DriftTables) -> list[str]:
    """The sentences that apply, in the order in which people ask."""
    makers = (_what, _unseen, _against_noise, _gauge, _functional, _seeds, _half)
    return [sentence for make in makers if (sentence := make(tables))]


def _what(tables: DriftTables) -> str:
    frame = tables.get("changes")
    if frame is None:
        return ""
    lines = [line for line in frame.to_dict("records") if line["kind"] != NOT_APPLICABLE]
    still = [line["parameter"] for line in lines if line["kind"] == "identical"]
    moved = [
        f"{markdown.escape(line['parameter'])} by {_size(tables, line)}"
        + ("" if line["kind"] == "general" else f" ({markdown.escape(line['kind'])})")
        for line in lines
        if line["kind"] != "identical"
    ]
    text = (
        f"Relative to their norm before, moved: {markdown.listing(moved)}."
        if moved
        else "No embedding parameter moved."
    )
    if still:
        text += f" Not one bit of {markdown.listing([markdown.escape(name) for name in still])} changed."
    return text


def _size(tables: DriftTables, line: Mapping[Any, Any]) -> str:
    """The relative drift, or where the parameter was 0 before the absolute one."""
    if not np.isnan(line["relative_drift"]):
        return f"{number(100 * line['relative_drift'])} %"
    where = {"parameter": line["parameter"], "stratum": WHOLE, "measure": "norm", "statistic": "value"}
    norms = lines_of(tables.get("drift"), epoch=tables.epoch, **where)["value"]
    return f"{number(float(norms.iloc[0]))} weight units (it was 0 before)"


def _unseen(tables: DriftTables) -> str:
    frame = lines_of(tables.get("causes"), parameter="word_embeddings", stratum="all rows")
    if frame.empty or not int(frame["num_weight_decay_alone"].iloc[0]):
        return ""
    line = frame.iloc[0]
    share = line["unexplained_share"]
    return (
        f"{number(int(line['num_weight_decay_alone']))} word rows moved by weight decay alone, although no batch "
        f"showed them: replaying the logged learning rates leaves {number(100 * share)} % of the drift of never-seen "
        "rows unexplained."
    )


def _against_noise(tables: DriftTables) -> str:
    frame = tables.get("sign_noise")
    if frame is None:
        return ""
    seen = frame[(frame["num_steps"] > 0) & frame["stratum"].astype(str).isin(BY_STEPS)]
    groups = {name: rows for name, rows in seen.groupby(seen["stratum"].astype(str)) if len(rows) >= FEWEST_ROWS}
    names = [name for name in BY_STEPS if name in groups]
    if not names:
        return ""
    medians = markdown.listing([f"{number(groups[n]['ratio'].median())} ({markdown.escape(n)})" for n in names])
    shares = [100 * is_beyond_both(groups[n]).mean() for n in names]
    beyond = markdown.listing([f"{number(share, 2)} %" for share in shares])
    return (
        "Words drifted, in the median, this many times as far as gradients of the same sizes at the same steps with "
        f"random signs would move them: {medians}. Beyond both that null and that of random directions lie {beyond} of "
        "the sampled words. Shuffled labels give such numbers too, so that they describe and show no learning: hold "
        "them against the same runs with --shuffle-labels (toolkit.compare_with_shuffled)."
    )


def _gauge(tables: DriftTables) -> str:
    frame = lines_of(tables.get("gauge"), epoch=tables.epoch)
    frame = frame[frame["parameter"].isin([*TABLES, "all tables"])] if len(frame) else frame
    if frame.empty or frame["note"].str.contains(PROJECTED, regex=False).any():
        return ""
    raw, after = (float((frame.loc[frame["quantity"] == q, "value"] ** 2).sum()) for q in ("raw_drift", "pi_drift"))
    if not raw > 0:
        return ""
    text = (
        f"LayerNorm takes away {number(100 * (1 - after / raw))} % of the squared drift of the tables (mean over "
        "tokens) before the encoder can see it"
    )
    share = frame.loc[frame["quantity"] == "gauge_share", "value"]
    if share.empty or np.isnan(share.iloc[0]):
        return text + "."
    return (
        f"{text}; of what is left, {number(100 * share.iloc[0])} % could be undone by moving offsets between tables "
        "(gauge share; tables that drift independently have some too), which no embedding output can show either."
    )


def _functional(tables: DriftTables) -> str:
    frame = lines_of(tables.get("functional"), epoch=tables.epoch)
    if frame.empty:
        return ""
    total = frame.loc[frame["quantity"] == "functional_drift", "value"].iloc[0]
    parts = frame[frame["quantity"] == "shapley"].sort_values("value", ascending=False)
    if not total > 0 or parts.empty:
        return ""
    shown = [
        f"{markdown.escape(c)} {number(100 * v / total)} %"
        for c, v in zip(parts["component"], parts["value"], strict=True)
    ]
    return (
        f"The output of the embedding layer changed by {number(100 * total)} % of its squared norm; "
        f"Shapley shares: {markdown.listing(shown)}."
    )


def _seeds(tables: DriftTables) -> str:
    frame = lines_of(tables.get("agreement"), parameter="word_embeddings", statistic="mean_cosine")
    # Rows that decay alone moves agree perfectly, and say nothing: only rows that gradients moved are counted.
    frame = frame[frame["stratum"].isin(BY_STEPS[1:]) & (frame["refusal"] == "")] if len(frame) else frame
    if frame.empty:
        return ""
    means, limit = frame.groupby("stratum")["value"].mean(), frame["null_q975"].max()
    shown = markdown.listing([f"{number(means[s])} ({markdown.escape(s)})" for s in BY_STEPS if s in means.index])
    num_pairs = len(frame[["run_a", "run_b"]].drop_duplicates())
    return (
        f"Between seeds the drift of a word that training showed has a mean cosine of {shown}, over {num_pairs} "
        f"pair{'s' * (num_pairs > 1)} of runs; with rows permuted within their stratum it stays below {number(limit)}. "
        "Runs that learned the same wrong labels agree too: --shuffle-labels --label-seed says by how much."
    )


def _half(tables: DriftTables) -> str:
    if not tables.opened.is_half:
        return ""
    return (
        "Some weights are stored in half precision, where small updates are rounded away: no drift is no verdict there."
    )
