"""The tables of a drift report in, its main findings out: plain sentences, each number taken from a table below."""

import numpy as np

from toolkit.analysis.changes import NOT_APPLICABLE
from toolkit.analysis.strata import BY_STEPS
from toolkit.reporting import markdown
from toolkit.reporting.drift_tables import DriftTables, lines_of
from toolkit.reporting.markdown import number

NEAR_NOISE = 2.0
"""Below this median ratio of drift to its null a report warns that length says little (ours)."""


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
        f"{markdown.escape(line['parameter'])} by {number(100 * line['relative_drift'])} %"
        + ("" if line["kind"] == "general" else f" ({markdown.escape(line['kind'])})")
        for line in lines
        if line["kind"] != "identical"
    ]
    text = (
        f"Of their norm before, these moved: {markdown.listing(moved)}." if moved else "No embedding parameter moved."
    )
    if still:
        text += f" Not one bit of {markdown.listing([markdown.escape(name) for name in still])} changed."
    return text


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
    seen = frame[frame["num_steps"] > 0]
    seen = seen[seen["stratum"].astype(str).isin(BY_STEPS)]
    medians = seen.groupby(seen["stratum"].astype(str))["ratio"].median()
    if medians.empty:
        return ""
    names = [name for name in BY_STEPS if name in medians.index]
    shown = markdown.listing([f"{number(medians[name])} ({markdown.escape(name)})" for name in names])
    if medians.max() >= NEAR_NOISE:
        return (
            f"Median ratio of a word's drift to that of the same steps and gradient sizes with random signs: {shown}."
        )
    return (
        "The same steps and gradient sizes with random signs would have moved words about as far as this: median ratio "
        f"of the drift to that null {shown}. The length of a drift alone is then weak evidence of learning; its "
        "direction (update spectrum, agreement of seeds) says more."
    )


def _gauge(tables: DriftTables) -> str:
    frame = lines_of(tables.get("gauge"), epoch=tables.epoch, quantity="gauge_share")
    if frame.empty or np.isnan(frame["value"].iloc[0]):
        return ""
    share = number(100 * frame["value"].iloc[0])
    return (
        f"{share} % of the squared drift of the tables is an offset moved between them (gauge share): no output of "
        "the model could show it."
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
        f"What the encoder receives (the embedding output) changed by {number(100 * total)} % of its squared norm; "
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
        f"pair{'s' * (num_pairs > 1)} of runs; with rows permuted within their stratum it stays below {number(limit)}."
    )


def _half(tables: DriftTables) -> str:
    if not tables.opened.is_half:
        return ""
    return (
        "Some weights are stored in half precision, where small updates are rounded away: no drift is no verdict there."
    )
