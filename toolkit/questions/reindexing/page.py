"""Must stored vectors be made again after tuning: the advice, and the recall of the old index."""

from collections.abc import Mapping

import pandas as pd

from toolkit.questions.reindexing.measure import AS_IS, KEPT, LINEAR
from toolkit.reporting.cells import estimate_of, listing, number
from toolkit.reporting.charts import COLOURS, REFERENCE, Chart, altair, data_of, intervals, once, tips
from toolkit.reporting.page import Answer, NoteBlock, Page, Section, picture, rows_block, texts_section

Tables = Mapping[str, pd.DataFrame]

SHARES = (
    "Share of the {k} neighbours of texts that are kept, and recall of the old index: as it is, and mapped by a map "
    "that was fitted on other texts."
)
CAPTION = (
    "Share of the {num_neighbours} texts that the new model finds in its own index and also in the old one: as it is, "
    "and with each stored vector mapped by a map fitted on other texts. Bars: 95 % interval over {num_queries:,} "
    "queries; rules: the thresholds; hollow: the rows of the index dealt at random."
)
DEFINITIONS = (
    "Vector of a text: of an encoder the mean of the last layer's tokens (or the first or the last one), of a "
    "sentence-transformers folder what its encode() gives; compared by cosine.",
    "Neighbours kept: of each text's k nearest texts before, the share that are so after; by chance k / (n - 1).",
    "Recall: queries by the model after, searched among the stored vectors of the model before. Truth: what they find "
    "among the vectors that the model after gives the same texts, whose own recall is therefore 1. By chance k / n.",
    "Linear map: ridge with an intercept, its strength by leave-one-out error. Each text is mapped by a map that was "
    "fitted to four fifths of the texts, it not among them; with fewer than two texts for each number of a vector "
    "there is none.",
    "Null: the rows of the index are dealt to the texts at random. Intervals: 95 %, percentile bootstrap over queries, "
    "no end of it within an exact bound: under 100 queries that of a binomial share, else that of a kind of query that "
    "none of these is.",
    "Advice: keep the index where the interval of the recall as it is lies at or above its threshold; where it lies "
    "below, map the stored vectors where that of the linear map lies at or above its own, and else re-index; where a "
    "threshold lies inside the interval that decides, these queries cannot tell.",
)
LIMITS = [
    "Recall falls as an index grows, since near texts get nearer: it holds for this number of texts of this kind.",
    "Recall asks whether the old index finds what the new model would find, not whether that is what somebody needs.",
]


def reindex_page(tables: Tables, *, title: str | None = None, command: str = "") -> Page:
    """What ``measure_reindexing``'s tables say."""
    (verdict,) = tables["verdict"].to_dict("records")
    recall, k = tables["recall"], verdict["num_neighbours"]
    record_of = recall.set_index("measure").to_dict("index")
    estimates = [f"{name} {estimate_of(record_of[name])}" for name in (AS_IS, LINEAR)]
    summary = (
        f"Recall of {k} neighbours by {verdict['num_queries']:,} queries in the old index: {', '.join(estimates)}; by "
        f"chance {number(record_of[AS_IS]['chance'], 2)}. Of {verdict['num_texts']:,} texts' stored neighbours "
        f"{number(100 * record_of[KEPT]['value'])} % are kept. A vector: {verdict['pooling']}."
    )
    summary += "".join(f" {verdict[name].capitalize()}." for name in ("reason", "note") if verdict[name])
    rows = [
        [
            record["measure"],
            estimate_of(record),
            record["chance"],
            f"{number(record['null_low'])} to {number(record['null_high'])}",
        ]
        for record in recall.to_dict("records")
    ]
    shares = rows_block(["index", "share (95 % interval)", "chance", "null (95 %)"], rows, SHARES.format(k=k))
    # Measures with the same reason or note share a line.
    measures_of_text = recall.groupby(recall["reason"] + recall["note"], sort=False)["measure"].agg(listing)
    notes = [NoteBlock(text=f"{names}: {text}.") for text, names in measures_of_text.items() if text]
    return Page(
        title=title or f"Must I re-index? {verdict['first']} and {verdict['second']}",
        question="Do vectors stored before tuning still serve searches by the tuned model?",
        answers=(Answer(question="Must I re-index?", verdict=verdict["advice"], text=summary),),
        picture=picture("recall", plot_recall(tables), CAPTION.format(**verdict)),
        sections=(
            Section(id="recall", title="What does the old index still find?", blocks=(shares, *notes)),
            texts_section("limits", "What this cannot tell", LIMITS),
            texts_section("definitions", "Definitions", DEFINITIONS),
        ),
        commands=command,
    )


def plot_recall(tables: Tables) -> Chart:
    """Recall as it is, mapped and re-embedded (1), with intervals, nulls and the two thresholds."""
    recall, verdict = tables["recall"], tables["verdict"].iloc[0]
    drawn = recall.loc[
        (recall["measure"] != KEPT) & recall["value"].notna(), ["measure", "value", "low", "high", "null"]
    ]
    drawn = pd.concat(
        [drawn, pd.DataFrame({"measure": ["embedded again"], "value": 1.0, "low": 1.0, "high": 1.0})], ignore_index=True
    )
    y = altair.Y("measure:N", sort=None, title=None, axis=altair.Axis(domain=False, ticks=False))
    scale = altair.Scale(domain=[0, 1], nice=False, padding=4)
    x = altair.X("value:Q", title=f"recall of {verdict['num_neighbours']} neighbours", scale=scale)
    hover = tips(
        measure="index", value=("recall", ".3f"), low=("from", ".3f"), high=("to", ".3f"), null=("null", ".3f")
    )
    base = altair.Chart(data_of(drawn)).encode(y=y, tooltip=hover)
    rules = [
        once().mark_rule(color=REFERENCE, strokeDash=[3, 3]).encode(x=altair.datum(threshold, scale=scale))
        for threshold in dict.fromkeys((float(verdict["keep_at"]), float(verdict["map_at"])))
    ]
    nulls = base.transform_filter("isValid(datum.null)").mark_point(filled=False, color=REFERENCE, size=45)
    points = base.mark_point(filled=True, opacity=1, size=60, color=COLOURS[0]).encode(x=x)
    marks = [
        *rules,
        nulls.encode(x=altair.X("null:Q", scale=scale)),
        *intervals(base, x, color=altair.value(COLOURS[0])),
    ]
    return altair.layer(*marks, points, width=330, height=30 * len(drawn))
