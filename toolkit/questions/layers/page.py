"""How much each layer changed: its states and its weights."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd

from toolkit.questions.layers import forgetting_page as forgetting
from toolkit.questions.layers import trend as trends
from toolkit.questions.layers.states import (
    BEFORE_AND_AFTER,
    CKA,
    OTHER_CONDITION,
    OWN_SEEDS,
    RSA,
    SEED_AND_SEED,
    STANDARDISED,
)
from toolkit.reporting.cells import (
    UNDEFINED,
    estimate_of,
    estimate_text,
    number,
    p_value,
    percent_text,
    spoken,
)
from toolkit.reporting.charts import Chart
from toolkit.reporting.curves import Panel, curve_panels
from toolkit.reporting.page import (
    Answers,
    Block,
    Case,
    FoldBlock,
    Page,
    Rows,
    Section,
    answer,
    chart_blocks,
    folds,
    judged,
    picture,
    rows_block,
    texts_section,
    wide_rows,
)
from toolkit.snapshots.tokenizer_files import EMBEDDED

Tables = Mapping[str, pd.DataFrame]

TITLE = "How much each layer changed: its states and its weights"
QUESTION = "Which layers changed most in what they compute (states), and which in what they hold (weights)?"
KINDS = {BEFORE_AND_AFTER: "after with before", SEED_AND_SEED: "two seeds with each other"}
SHOWN = {CKA: "debiased CKA", STANDARDISED: "debiased CKA,\nstandardised columns", RSA: "RSA"}
"""Measure to its name on an axis."""
EMBEDDINGS = {0: "emb."}

NO_STATES = "not known: states need runs made with --save-model"
APART = "not applicable: each text of a pair was encoded apart (--pair-encoding separate), so no sequence holds both"
NOT_COMPARED = "undefined: nothing could be compared"
STILL, ALIKE = "no layer changed visibly", "all layers changed alike"
FLAT = f"{trends.FLAT}: no layer is more than {100 * (trends.MARGIN - 1):.0f} % from the mean of the layers"

WEIGHTS_CAPTION = (
    "Relative drift of all weights of each layer: line, mean over runs, with its 95 % interval; dots, each run. emb.: "
    "the embedding parameters together. Vertical scales differ between panels."
)
STATES_CAPTION = (
    "Similarity of the states of every layer to those before training, and of the tuned models of two seeds to each "
    "other (dotted): mean over runs or pairs of runs, band: 95 % interval of the mean. 1: unchanged but for rotation "
    "and scale. emb.: what layer 1 reads. Vertical scales differ between rows."
)
WEIGHT_DEFINITIONS = (
    "Weights: relative drift is ‖Δ‖ / ‖W⁰‖ (Frobenius norms, float64) of the stored tensors after and before; of a "
    "layer √Σ‖Δ‖² / √Σ‖W⁰‖² over all of its weights, biases and LayerNorms. The angle is that of two tensors taken as "
    "vectors.",
    "Top to bottom: relative drift of the top third of the layers over that of the bottom third (geometric means), its "
    "95 % interval and p by Student's t over seeds, on these data, of the logarithms; q: Benjamini and Hochberg over "
    "the regimes.",
    "Verdict on weights: not judged below three seeds; flat where the 90 % interval of every layer's drift over the "
    "mean of the layers lies within a factor of 1.1; more at the bottom or the top where q < .05; else not decided.",
)
DEFINITIONS = (
    "A text is its mean token vector at a layer; two models are compared on the same texts.",
    "debiased CKA: HSIC₁(X,Y) / √(HSIC₁(X,X)·HSIC₁(Y,Y)) with linear kernels (Kornblith et al. 2019, arXiv 1905.00414; "
    "Song et al. 2012, JMLR 13; Nguyen et al. 2021, arXiv 2010.15327). 1: the same up to rotation and scale; 0 on "
    "average for unrelated vectors. One column whose variance is far above the rest decides it.",
    "standardised columns: the same after every column of each model got standard deviation 1 (ours).",
    "RSA: Spearman's correlation of the distances between texts before and after (Kriegeskorte et al. 2008).",
    "Interval: 95 % of the mean, everywhere, over new seeds and new texts at once: the two-way interval of seeds x "
    "groups of texts, of jackknife pseudo-values; of one seed (or of the one pair of two seeds), over new texts only. "
    "A difference takes the same texts and seeds of both sides. No interval is adjusted for how many there are.",
    "Two seeds: the mean similarity of the tuned models of all pairs of seeds of the regime; three seeds are three "
    "pairs. Two seeds differ by: how far the similarities to before of two seeds of one regime are apart, on average.",
)
EMBEDDED_MODEL = (
    "The embedded model minilm (all-MiniLM-L6-v2) is a BERT that was tuned on single sentences: what it shows is no "
    "claim about raw BERT, which needs a raw backbone beside it."
)
SIZE = (
    "Relative drift divides by a layer's norm, and AdamW's steps have a size of their own, whatever the gradient's: "
    "how far a layer's weights moved is no measure of how much it learned."
)
STATE_LIMITS = (
    "The least similar layer is chosen by looking at all layers; its interval does not know that.",
    "That the states of a layer changed does not say that the layer's own weights did: it reads what lies below. The "
    "tables on weights say how far these moved.",
    "Not distinguishable from each other is not the same as equal.",
)
MEMORISED = "Shuffled labels are no 'nothing learned': such a model memorises."
ONE_SEED = "One seed, or one seed in common, says nothing of a regime: its interval covers texts only."


def limits(tables: Tables, models: Collection[str]) -> list[str]:
    """What the numbers do not say, of what they are of."""
    means = tables.get("means", pd.DataFrame(columns=["is_shuffled", "num_seeds"]))
    said = {
        EMBEDDED_MODEL: EMBEDDED in models,
        SIZE: True,
        **dict.fromkeys(STATE_LIMITS, len(means) > 0),
        MEMORISED: means["is_shuffled"].any(),
        ONE_SEED: any((table["num_seeds"] == 1).any() for table in (means, tables.get("contrasts", means))),
    }
    return [text for text, applies in said.items() if applies]


def layers_page(tables: Tables, *, models: Collection[str], title: str | None = None, command: str = "") -> Page:
    """What ``measure_layers``'s tables say, and ``forgetting``, that of :func:`toolkit.measure_forgetting`.

    Tables of weights only (of two checkpoints) make a page without states. ``models``: the checkpoints that the numbers
    are of.
    """
    tables = {name: spoken(table, ("condition", "against")) for name, table in tables.items()}
    groups, forgotten = groups_of(tables), tables.get("forgetting")
    chart, states = plot_weight_drift(tables["weight_means"], tables["weight_drift"]), _states(groups)
    every = "Relative drift and, after the stroke, angle in degrees of every matrix: means over seeds."
    weights: list[list[Block]] = []
    for group, own in groups.items():
        matrices = rows_block(*matrix_rows(own), every)
        moved = rows_block(*weight_rows(own), "Relative drift of the weights: mean (95 % interval over seeds).")
        weights.append([moved, FoldBlock(title=f"{group}: every weight matrix", blocks=(matrices,))])
    sections = [
        Section(
            id="changed",
            title="Which layers changed most?",
            lead="States of a layer depend on all layers below it, weights are its own. Top to bottom: how far the top "
            "third of the layers moved, as a multiple of the bottom third.",
            blocks=(
                rows_block(*changed_rows(tables), "States that are least like before training, 95 % intervals."),
                rows_block(*moved_rows(tables), "Weights that moved most and least, 95 % intervals."),
            ),
        ),
        *states,
        Section(id="weights", title="How far did the weights move?", blocks=folds(list(groups), weights)),
        *([] if forgotten is None else [forgetting.section(forgotten)]),
        texts_section("limits", "What this cannot tell", limits(tables, models)),
        texts_section("definitions", "Definitions", [*WEIGHT_DEFINITIONS, *(DEFINITIONS if states else ())]),
    ]
    return Page(
        title=title or TITLE,
        question=QUESTION,
        answers=answers(tables, groups),
        picture=picture("weight_drift_by_layer", chart, WEIGHTS_CAPTION),
        sections=tuple(sections),
        commands=command,
    )


def answers(tables: Tables, groups: Mapping[str, Tables]) -> Answers:
    """Where the weights moved most, and whether the states changed more than two seeds differ; no shuffled labels."""
    weights = (_trend_case(line) for line in tables["weight_trends"].to_dict("records") if not line["is_shuffled"])
    states = (case for group, own in groups.items() if has_states(own) for case in _state_cases(group, own))
    return (
        answer("Did weights move more at the top or at the bottom?", weights, NOT_COMPARED),
        answer("Did states change more than two seeds differ?", states, _no_states(tables)),
    )


def _trend_case(trend: Mapping[str, Any]) -> Case:
    ratio = estimate_text(trend["top_to_bottom"], trend["low"], trend["high"])
    text = (
        f"{trend['group']}, {trend['condition']}: the top third moved {ratio} times as far as the bottom third; "
        f"1 means equally far. Seeds: {trend['num_seeds']}."
    )
    if trend["trend"] in (trends.NOT_JUDGED, trends.NOT_APPLICABLE):
        return judged(text, math.nan, math.nan, str(trend["reason"]))
    return str(trend["trend"]), f"{text} q: {p_value(trend['q'], 2)}."


def _state_cases(group: str, own: Tables) -> Iterator[Case]:
    """Each regime's last layer, beside two seeds with each other: the least similar one is chosen by looking."""
    every = _first_texts(own["means"][~own["means"]["is_shuffled"].astype(bool)])
    last = every[every["layer"] == every["layer"].max()]
    seeds = own["contrasts"][own["contrasts"]["comparison"] == OWN_SEEDS]
    place = ["condition", "texts", "layer", "measure"]
    for line in last.merge(seeds, how="left", on=place, suffixes=("_own", "")).to_dict("records"):
        similarity = estimate_text(line["value_own"], line["low_own"], line["high_own"])
        least = least_similar(every[every["condition"] == line["condition"]])
        text = (
            f"{group}, {line['condition']}: {layer_name(line['layer'])} is {similarity} like before on "
            f"{line['texts']}, two seeds {number(line['other_similarity'])}; difference {_gap(line)}. "
        )
        text += f"Least like before: {least}."
        note = f"{line['reason_own'] or line['note'] or line['reason']}"
        yield judged(text, -line["high"], -line["low"], note, num_seeds=line["num_seeds_own"])


def has_states(tables: Tables) -> bool:
    """Whether the tables of a group say anything of states."""
    return len(tables.get("means", ())) > 0


def groups_of(tables: Tables) -> dict[str, dict[str, pd.DataFrame]]:
    """Group to its part of every table: no number is taken over groups."""
    titles = dict.fromkeys(map(str, tables["weight_trends"]["group"]))
    return {
        title: {name: table[table["group"] == title] for name, table in tables.items() if "group" in table}
        for title in titles
    }


def changed_rows(tables: Tables) -> Rows:
    """Header and rows: per group and regime the layer whose states changed most, on its first texts."""
    header = ["model and task", "regime", "states changed most in", "similarity", "texts"]
    place = ["group", "condition"]
    rows: list[list[object]] = []
    means = tables.get("means", pd.DataFrame(columns=[*place, "comparison", "measure", "texts"]))
    known = dict(list(_first_texts(means).groupby(place)))
    for key in zip(*(tables["weight_trends"][name] for name in place), strict=True):
        if key in known:
            found = known[key]
            rows.append([*key, least_similar(found), estimate_of(_least(found)), found["texts"].iloc[0]])
        else:
            rows.append([*key, _no_states(tables), None, ""])
    return header, rows


def _no_states(tables: Tables) -> str:
    return APART if "means" in tables else NO_STATES


def _first_texts(means: pd.DataFrame) -> pd.DataFrame:
    """The similarity to before of each group and regime on its first texts."""
    own = means[(means["comparison"] == BEFORE_AND_AFTER) & (means["measure"] == CKA)]
    return own[own["texts"] == own.groupby(["group", "condition"])["texts"].transform("first")]


def moved_rows(tables: Tables) -> Rows:
    """Header and rows: per group and regime the weights that moved most and least, and the trend over the layers."""
    header = [
        "model and task",
        "regime",
        "weights moved most in",
        "relative drift",
        "least in",
        "relative drift",
        "top to bottom",
        "p",
        "q",
        "verdict",
    ]
    rows: list[list[object]] = []
    layers = tables["weight_means"][tables["weight_means"]["component"].str.startswith("layers.")]
    for trend in tables["weight_trends"].to_dict("records"):
        is_own = (layers["group"] == trend["group"]) & (layers["condition"] == trend["condition"])
        rows.append([str(trend["group"]), str(trend["condition"]), *_moved(layers[is_own], trend)])
    return header, rows


def least_similar(own: pd.DataFrame) -> str:
    """The layer with the least mean; that there is none, where all of them read alike with three decimals."""
    known = own["value"].dropna()
    if known.empty:
        return NOT_COMPARED
    least, most = round(known.min(), 3), round(known.max(), 3)
    if least == most:
        return STILL if least == 1 else ALIKE
    return layer_name(own.loc[known.idxmin(), "layer"])


def _least(own: pd.DataFrame) -> pd.Series:
    return own.loc[own["value"].idxmin()] if own["value"].notna().any() else own.iloc[0]


def _moved(own: pd.DataFrame, trend: Mapping[str, Any]) -> list[object]:
    ratio = estimate_text(trend["top_to_bottom"], trend["low"], trend["high"])
    verdict = FLAT if trend["trend"] == trends.FLAT else str(trend["trend"])
    verdict += f" ({trend['reason']})" if trend["reason"] and trend["reason"] == trend["reason"] else ""
    by_layer = own.set_index("layer")
    moved = by_layer[by_layer["relative_drift"] > 0]
    ends: list[object]
    if not pd.isna(trend["most_layer"]):
        most, least = int(trend["most_layer"]), int(trend["least_layer"])
        ends = [layer_name(most), _percent(by_layer.loc[most]), layer_name(least), _percent(by_layer.loc[least])]
    elif len(moved):
        farthest = moved["relative_drift"].idxmax()
        alone = " alone" if len(moved) == 1 else ""
        ends = [f"{layer_name(farthest)}{alone}", _percent(moved.loc[farthest]), "", None]
    else:
        is_known = len(own) > 0 and own["relative_drift"].notna().all()
        ends = ["no layer: their weights did not move" if is_known else NOT_COMPARED, None, "", None]
    return [*ends, ratio, p_value(trend["p"]), p_value(trend["q"]), verdict]


def layer_name(layer: Any) -> str:
    """``the embeddings`` for what layer 1 reads, ``layer 3``."""
    return "the embeddings" if layer == 0 else f"layer {int(layer)}"


def _percent(line: "Mapping[Any, Any] | pd.Series") -> str:
    return percent_text(line["relative_drift"], line["low"], line["high"])


def _states(groups: Mapping[str, Tables]) -> list[Section]:
    """What is known of states; nothing where no group has any."""
    shown: dict[str, list[Block]] = {}
    held: dict[str, list[Block]] = {}
    for place, (group, own) in enumerate(groups.items(), start=1):
        if not has_states(own):
            continue
        chart = plot_similarity(own["means"])
        charts = {} if chart is None else {"similarity_by_layer": chart}
        alt = "Similarity of the states of every layer to before training, per regime and texts."
        prefix = f"{place}_" if len(groups) > 1 else ""
        means = rows_block(*similarity_rows(own), "Similarity of states: mean (95 % interval).")
        counts = rows_block(*count_rows(own), "Texts and seeds behind these numbers.")
        pictures = chart_blocks(charts, "similarity_by_layer", STATES_CAPTION, alt, prefix)
        shown[group] = [*pictures, FoldBlock(title=f"{group}: every layer", blocks=(means, counts))]
        if len(own["contrasts"]):
            held[group] = _references(group, own)
    lead = (
        "Similarity to before training minus another one, debiased CKA: below 0 the states of the regime changed more. "
        "The other one is that of two seeds with each other, of shuffled labels to before, or of the first regime to "
        "before."
    )
    asked = {
        ("states", "How far did the states of each layer change?", ""): shown,
        ("references", "Is that more than two seeds, shuffled labels or another regime?", lead): held,
    }
    return [
        Section(id=id, title=title, lead=said, blocks=folds(list(own), list(own.values())))
        for (id, title, said), own in asked.items()
        if own
    ]


def _references(group: str, own: Tables) -> list[Block]:
    regimes = regime_rows(own)
    every = rows_block(*contrast_rows(own), "Difference of debiased CKA: mean (95 % interval).")
    return [
        rows_block(*reference_rows(own), "The least similar layer, held against seeds and shuffled labels."),
        *([rows_block(*regimes, "Each regime against the first one, over layers and texts.")] if regimes[1] else []),
        FoldBlock(title=f"{group}: every layer", blocks=(every,)),
    ]


def reference_rows(tables: Tables) -> Rows:
    """Header and rows of one group: the least similar layer per regime and texts beside what it is held against."""
    header = [
        "regime",
        "texts",
        "least similar",
        "similarity",
        "standardised columns",
        "most similar",
        "similarity",
        "held against",
        "other",
        "difference",
        "two seeds differ by",
        "seeds",
        "distinguishable?",
    ]
    means = tables["means"][tables["means"]["comparison"] == BEFORE_AND_AFTER]
    contrasts = tables["contrasts"][tables["contrasts"]["measure"] == CKA]
    rows: list[list[object]] = []
    for (condition, texts), every in means.groupby(["condition", "texts"], sort=False):
        own = every[every["measure"] == CKA]
        least = _least(own)
        most = own.loc[own["value"].idxmax()] if own["value"].notna().any() else least
        beside = every[(every["measure"] == STANDARDISED) & (every["layer"] == least["layer"])]
        lead = [
            condition,
            texts,
            least_similar(own),
            estimate_of(least),
            estimate_of(beside.iloc[0]) if len(beside) else None,
            layer_name(most["layer"]),
            estimate_of(most),
        ]
        here = contrasts[(contrasts["condition"] == condition) & (contrasts["texts"] == texts)]
        here = here[(here["layer"] == least["layer"]) & (here["comparison"] != OTHER_CONDITION)]
        for line in here.to_dict("records"):
            held = [str(line["against"]), f"{line['other_similarity']:.3f}", _gap(line), _floor(line)]
            rows.append([*lead, *held, int(line["num_seeds"]), told(line)])
    return header, rows


def told(line: Mapping[str, Any]) -> str:
    """What one contrast says: nothing without an interval or with one seed."""
    if pd.isna(line["low"]):
        return "undefined: no interval"
    if line["num_seeds"] == 1:
        return "not judged: one seed"
    if line["low"] <= 0 <= line["high"]:
        return "not distinguishable"
    side = "yes: changed more" if line["high"] < 0 else "yes: changed less"
    floor = line["between_seeds"]
    if pd.isna(floor):
        return side
    is_beyond = min(abs(line["low"]), abs(line["high"])) > floor
    return f"{side}, {'beyond' if is_beyond else 'not clearly beyond'} what two seeds differ by"


def regime_rows(tables: Tables) -> Rows:
    """Header and rows of one group: in how many layers and texts a regime is distinguishable from the first one."""
    header = [
        "regime",
        "against",
        "compared",
        "changed more",
        "changed less",
        "greatest difference",
        "where",
        "two seeds differ by",
        "least precise",
        "where",
        "seeds",
    ]
    table = tables["contrasts"]
    table = table[(table["measure"] == CKA) & (table["comparison"] == OTHER_CONDITION) & table["low"].notna()]
    rows: list[list[object]] = []
    for (condition, against), own in table.groupby(["condition", "against"], sort=False):
        greatest = own.loc[own["value"].abs().idxmax()]
        widest = own.loc[(own["high"] - own["low"]).idxmax()]
        seeds = int(own["num_seeds"].max())
        counts: list[object] = [int((own["high"] < 0).sum()), int((own["low"] > 0).sum())]
        counts = counts if seeds > 1 else ["not judged: one seed"] * 2
        ends = [_gap(greatest), _place(greatest), _floor(greatest), _gap(widest), _place(widest)]
        rows.append([condition, against, len(own), *counts, *ends, seeds])
    return header, rows


def _place(line: "pd.Series") -> str:
    return f"{layer_name(line['layer'])} on {line['texts']}"


_gap = partial(estimate_of, is_signed=True)


def _floor(line: "Mapping[Any, Any] | pd.Series") -> str | None:
    return None if pd.isna(line["between_seeds"]) else f"{line['between_seeds']:.3f}"


def count_rows(tables: Tables) -> Rows:
    """Header and rows of one group: how many seeds and texts stand behind the numbers."""
    means = tables["means"]
    counts = {"texts": means.groupby("texts", sort=False)["num_texts"].first()}
    counts["seeds"] = means.groupby("condition", sort=False)["num_seeds"].first()
    rows: list[list[object]] = [[what, of, int(n)] for what, own in counts.items() for of, n in own.items()]
    return ["what", "of", "number"], rows


def similarity_rows(tables: Tables) -> Rows:
    """Header and rows of one group: per regime, texts and layer every similarity to before, and between seeds."""
    columns = {
        f"{BEFORE_AND_AFTER} {CKA}": "debiased CKA",
        f"{BEFORE_AND_AFTER} {STANDARDISED}": "standardised columns",
        f"{BEFORE_AND_AFTER} {RSA}": "RSA",
        f"{SEED_AND_SEED} {CKA}": "two seeds, debiased CKA",
    }
    names = tables["means"]["comparison"] + " " + tables["means"]["measure"]
    return _by_layer(tables["means"].assign(column=names.map(columns)), estimate_of)


def contrast_rows(tables: Tables) -> Rows:
    """Header and rows of one group: per regime, texts and layer the differences of debiased CKA, a column for each."""
    table = tables["contrasts"][tables["contrasts"]["measure"] == CKA]
    return _by_layer(table.assign(column="minus " + table["against"]), _gap)


def _by_layer(table: pd.DataFrame, cell: Callable[[Mapping[Any, Any]], object]) -> Rows:
    shown = table.assign(layer=table["layer"].map(lambda layer: "embeddings" if layer == 0 else str(layer)))
    names, rows = wide_rows(shown.dropna(subset="column"), ["condition", "texts", "layer"], "column", cell)
    return ["regime", "texts", "layer", *names], rows


def weight_rows(tables: Tables) -> Rows:
    """Header and rows of one group: per regime and layer how far its weights moved, and what it was divided by."""
    header = ["regime", "layer", "relative drift", "median angle (°)", "‖W⁰‖", "‖Δ‖", "values", "note"]
    rows: list[list[object]] = []
    for line in tables["weight_means"].to_dict("records"):
        cells = [_percent(line), *(line[name] for name in ("median_angle_degrees", "norm_before", "norm_change"))]
        if line["norm_change"] != line["norm_change"]:  # not there, or not to be compared
            cells = [None] * len(cells)
        note = "bit-identical" if line["is_identical"] else "; ".join(filter(None, (line["reason"], line["note"])))
        rows.append([str(line["condition"]), component_name(line["component"]), *cells, int(line["num_values"]), note])
    return header, rows


def matrix_rows(tables: Tables) -> Rows:
    """Header and rows of one group: per regime and layer a column for each of its matrices."""
    drift = tables["weight_drift"]
    is_matrix = drift["component"].str.startswith("layers.") & drift["shape"].fillna("").str.contains("x")
    place = ["condition", "component", "part"]
    means = drift[is_matrix].groupby(place, sort=False)[["relative_drift", "angle_degrees"]]
    table = means.agg(lambda values: values.mean(skipna=False)).reset_index()
    table["component"] = table["component"].map(component_name)
    names, rows = wide_rows(table, place[:2], "part", _matrix)
    return ["regime", "layer", *names], rows


def _matrix(line: Mapping[Any, Any]) -> str:
    drift, angle = line["relative_drift"], line["angle_degrees"]
    return UNDEFINED if drift != drift else f"{number(100 * drift)} % / {number(angle, 2)}"


def component_name(name: str) -> str:
    """A component as the tables on states number the layers."""
    return str(int(name.removeprefix("layers.")) + 1) if name.startswith("layers.") else name.replace("_", " ")


def plot_weight_drift(weight_means: pd.DataFrame, weight_drift: pd.DataFrame) -> Chart | None:
    """A panel per group: relative drift of each layer in percent, a line per regime and a dot per run.

    The tables are ``weight_means`` and ``weight_drift`` of ``measure_layers``; None where no weights moved.
    """
    is_layer = weight_means["component"].str.startswith("layers.")
    shown = weight_means[is_layer | (weight_means["component"] == "embeddings")]
    shown = shown[shown["relative_drift"].notna() & shown["layer"].notna()]
    if not (shown["relative_drift"] > 0).any():
        return None
    scaled = {"mean": 100 * shown["relative_drift"], "low": 100 * shown["low"], "high": 100 * shown["high"]}
    # Not joined to the layers: most rows of the embeddings are words that training never showed.
    kind = shown["component"].eq("embeddings").map({True: "embeddings", False: "layer"})
    lines = shown.assign(series=shown["condition"], kind=kind, **scaled)
    dots = _by_run(weight_drift)
    groups, conditions = list(dict.fromkeys(lines["group"])), list(dict.fromkeys(lines["condition"]))
    panels = [
        Panel(
            title=str(group),
            curves=lines[lines["group"] == group],
            dots=dots[dots["group"] == group],
            y_title="relative drift of\nthe weights (%)",
            low=0.0,
        )
        for group in groups
    ]
    return curve_panels(
        panels, columns=min(len(groups), 3), series=conditions, layer_names=EMBEDDINGS, digits=".3g", height=150
    )


def _by_run(drift: pd.DataFrame) -> pd.DataFrame:
    """Relative drift of each layer in each run in percent, where a regime has several, a little beside the mean."""
    place = ["group", "condition", "seed", "layer"]
    is_layer = drift["component"].str.startswith("layers.") & (drift["num_values"] > 0)
    squares = drift[is_layer].assign(**{name: drift[name] ** 2 for name in ("norm_before", "norm_change")})
    sums = squares.groupby(place, sort=False)[["norm_before", "norm_change"]].sum(min_count=1).reset_index()
    several = sums.groupby(["group", "condition"])["seed"].transform("nunique") > 1
    conditions = {condition: i for i, condition in enumerate(dict.fromkeys(sums["condition"]))}
    return sums[several].assign(
        mean=100 * (sums["norm_change"] / sums["norm_before"]) ** 0.5,
        layer=sums["layer"].astype(float) + 0.12 * (1 + sums["condition"].map(conditions).fillna(0).astype(float)),
        series=sums["condition"],
        label="seed " + sums["seed"].astype(str),
    )


def plot_similarity(means: pd.DataFrame) -> Chart | None:
    """A row per measure, a column per texts: the similarity of every layer to before, and of seeds to each other.

    ``means`` is that table of ``measure_layers``, of one group; None where it is empty.
    """
    own = means[means["value"].notna()]
    lines = own.assign(mean=own["value"], series=own["condition"], kind=own["comparison"].map(KINDS))
    texts, conditions = list(dict.fromkeys(lines["texts"])), list(dict.fromkeys(lines["condition"]))
    measures = [measure for measure in SHOWN if (lines["measure"] == measure).any()]
    is_one = len(texts) == 1  # then the measures stand side by side
    panels = [
        Panel(
            title=(SHOWN[measure] if is_one else str(name)) if is_one or measure == CKA else "",
            curves=lines[(lines["measure"] == measure) & (lines["texts"] == name)],
            y_title="similarity" if is_one else SHOWN[measure],
        )
        for measure in measures
        for name in texts
    ]
    kinds = [kind for kind in KINDS.values() if (lines["kind"] == kind).any()]
    columns = max(len(measures if is_one else texts), 1)
    return curve_panels(
        panels, columns=columns, series=conditions, kinds=kinds, layer_names=EMBEDDINGS, is_shared=not is_one
    )
