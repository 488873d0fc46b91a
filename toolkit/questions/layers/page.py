"""How much each layer changed: its states and its weights."""

import math
from collections.abc import Collection, Iterator, Mapping
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
    SEED_AND_SEED,
    STANDARDISED,
)
from toolkit.reporting.cells import (
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
COMPARISON_NAMES = {BEFORE_AND_AFTER: "after with before", SEED_AND_SEED: "two seeds with each other"}
AXIS_TITLES = {CKA: "debiased CKA", STANDARDISED: "debiased CKA,\nstandardised columns"}
"""Measure to its name on an axis."""
LAYER_NAMES = {0: "emb."}
"""On the axes of charts; every other layer by its number."""

NO_STATES = "not known: states need runs made with --save-model"
APART = "not applicable: each text of a pair was encoded apart (--pair-encoding separate), so no sequence holds both"
NOT_COMPARED = "undefined: nothing could be compared"
NO_CHANGE, EQUAL_CHANGE = "no layer changed visibly", "all layers changed alike"
"""In place of the least similar layer."""
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
DRIFT_IS_NO_LEARNING = (
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
    """The sentences on what these tables, of these models, cannot tell."""
    means = tables.get("means", pd.DataFrame(columns=["is_shuffled", "num_seeds"]))
    applies_by_text = {
        EMBEDDED_MODEL: EMBEDDED in models,
        DRIFT_IS_NO_LEARNING: True,
        **dict.fromkeys(STATE_LIMITS, len(means) > 0),
        MEMORISED: means["is_shuffled"].any(),
        ONE_SEED: any((table["num_seeds"] == 1).any() for table in (means, tables.get("contrasts", means))),
    }
    return [text for text, applies in applies_by_text.items() if applies]


def layers_page(tables: Tables, *, models: Collection[str], title: str | None = None, command: str = "") -> Page:
    """What ``measure_layers``'s tables say, and ``forgetting``, that of :func:`toolkit.measure_forgetting`.

    Tables of weights only (of two checkpoints) make a page without states. ``models``: the checkpoints that the numbers
    are of.
    """
    tables = {name: spoken(table, ("condition", "against")) for name, table in tables.items()}
    groups = groups_of(tables)
    forgetting_table = tables.get("forgetting")
    drift_chart = plot_weight_drift(tables["weight_means"], tables["weight_drift"])
    state_sections = _state_sections(groups)
    caption = "Relative drift of the weights: mean (95 % interval over seeds)."
    weight_blocks = [[rows_block(*weight_rows(group_tables), caption)] for group_tables in groups.values()]
    sections = [
        Section(
            id="changed",
            title="Which layers changed most?",
            lead="States of a layer depend on all layers below it, weights are its own. Top to bottom: how far the top "
            "third of the layers moved, as a multiple of the bottom third.",
            blocks=(rows_block(*moved_rows(tables), "Weights that moved most and least, 95 % intervals."),),
        ),
        *state_sections,
        Section(id="weights", title="How far did the weights move?", blocks=folds(list(groups), weight_blocks)),
        *([] if forgetting_table is None else [forgetting.section(forgetting_table)]),
        texts_section("limits", "What this cannot tell", limits(tables, models)),
        texts_section("definitions", "Definitions", [*WEIGHT_DEFINITIONS, *(DEFINITIONS if state_sections else ())]),
    ]
    return Page(
        title=title or TITLE,
        question=QUESTION,
        answers=answers(tables, groups),
        picture=picture("weight_drift_by_layer", drift_chart, WEIGHTS_CAPTION),
        sections=tuple(sections),
        commands=command,
    )


def answers(tables: Tables, groups: Mapping[str, Tables]) -> Answers:
    """Where the weights moved most, and whether the states changed more than two seeds differ; no shuffled labels."""
    weights = (_trend_case(trend) for trend in tables["weight_trends"].to_dict("records") if not trend["is_shuffled"])
    states = (case for group, group_tables in groups.items() for case in _state_cases(group, group_tables, tables))
    return (
        answer("Did weights move more at the top or at the bottom?", weights, NOT_COMPARED),
        answer("Did states change more than two seeds differ?", states, _no_states(tables)),
    )


def _trend_case(trend: Mapping[str, Any]) -> Case:
    """How much farther one condition's top layers moved than its bottom ones, as a case of the first answer."""
    ratio = estimate_text(trend["top_to_bottom"], trend["low"], trend["high"])
    text = (
        f"{trend['group']}, {trend['condition']}: the top third moved {ratio} times as far as the bottom third; "
        f"1 means equally far. Seeds: {trend['num_seeds']}."
    )
    if trend["trend"] in (trends.NOT_JUDGED, trends.NOT_APPLICABLE):
        return judged(text, math.nan, math.nan, str(trend["reason"]))
    return str(trend["trend"]), f"{text} q: {p_value(trend['q'], 2)}."


def _state_cases(group: str, tables: Tables, all_tables: Tables) -> Iterator[Case]:
    """Each regime's last layer beside two seeds, as cases of the second answer; the least similar one is only named."""
    if has_states(all_tables):  # where the command asked for them
        measured = set(tables["means"]["condition"]) if has_states(tables) else ()
        for condition in dict.fromkeys(tables["weight_trends"]["condition"]):
            if condition not in measured:
                yield judged(f"{group}, {condition}: no states.", math.nan, math.nan, APART)
    if not has_states(tables):
        return
    similarities = _first_texts(tables["means"][~tables["means"]["is_shuffled"].astype(bool)])
    last_layer = similarities[similarities["layer"] == similarities["layer"].max()]
    seed_contrasts = tables["contrasts"][tables["contrasts"]["comparison"] == OWN_SEEDS]
    key_columns = ["condition", "texts", "layer", "measure"]
    # A column that both have is the similarity's with "_own", and the contrast's without.
    beside_seeds = last_layer.merge(seed_contrasts, how="left", on=key_columns, suffixes=("_own", ""))
    for record in beside_seeds.to_dict("records"):
        similarity = estimate_text(record["value_own"], record["low_own"], record["high_own"])
        least = least_similar(similarities[similarities["condition"] == record["condition"]])
        text = (
            f"{group}, {record['condition']}: {layer_name(record['layer'])} is {similarity} like before on "
            f"{record['texts']}, two seeds {number(record['other_similarity'])}; difference {_gap(record)}. "
            f"Least like before: {least}."
        )
        note = f"{record['reason_own'] or record['note'] or record['reason']}"
        yield judged(text, -record["high"], -record["low"], note, num_seeds=record["num_seeds_own"])


def has_states(tables: Tables) -> bool:
    """Whether the tables of a group say anything of states."""
    return len(tables.get("means", ())) > 0


def groups_of(tables: Tables) -> dict[str, dict[str, pd.DataFrame]]:
    """Each group's part of every table: no number is taken over groups."""
    titles = dict.fromkeys(map(str, tables["weight_trends"]["group"]))
    return {
        title: {name: table[table["group"] == title] for name, table in tables.items() if "group" in table}
        for title in titles
    }


def _no_states(tables: Tables) -> str:
    """Why no group has states."""
    return APART if "means" in tables else NO_STATES


def _first_texts(means: pd.DataFrame) -> pd.DataFrame:
    """The similarity to before of each group and regime on its first texts."""
    before = means[(means["comparison"] == BEFORE_AND_AFTER) & (means["measure"] == CKA)]
    return before[before["texts"] == before.groupby(["group", "condition"])["texts"].transform("first")]


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
        is_of_trend = (layers["group"] == trend["group"]) & (layers["condition"] == trend["condition"])
        rows.append([str(trend["group"]), str(trend["condition"]), *_moved_cells(layers[is_of_trend], trend)])
    return header, rows


def least_similar(means: pd.DataFrame) -> str:
    """The layer with the least mean; or that nothing was compared, or that all are alike to three decimals."""
    values = means["value"].dropna()
    if values.empty:
        return NOT_COMPARED
    least, most = round(values.min(), 3), round(values.max(), 3)
    if least == most:
        return NO_CHANGE if least == 1 else EQUAL_CHANGE
    return layer_name(means.loc[values.idxmin(), "layer"])


def _least_record(means: pd.DataFrame) -> pd.Series:
    """The line of the least mean; where none is defined, the first, with its reason."""
    return means.loc[means["value"].idxmin()] if means["value"].notna().any() else means.iloc[0]


def _moved_cells(layer_means: pd.DataFrame, trend: Mapping[str, Any]) -> list[object]:
    """One condition's cells: the layers that moved most and least, top to bottom with its p and q, and the verdict."""
    ratio = estimate_text(trend["top_to_bottom"], trend["low"], trend["high"])
    verdict = FLAT if trend["trend"] == trends.FLAT else str(trend["trend"])
    verdict += f" ({trend['reason']})" if trend["reason"] and not pd.isna(trend["reason"]) else ""
    means_by_layer = layer_means.set_index("layer")
    moved_layers = means_by_layer[means_by_layer["relative_drift"] > 0]
    cells: list[object]
    if not pd.isna(trend["most_layer"]):
        most, least = int(trend["most_layer"]), int(trend["least_layer"])
        most_cells = [layer_name(most), _percent(means_by_layer.loc[most])]
        cells = [*most_cells, layer_name(least), _percent(means_by_layer.loc[least])]
    elif len(moved_layers):
        farthest = moved_layers["relative_drift"].idxmax()
        suffix = " alone" if len(moved_layers) == 1 else ""
        cells = [f"{layer_name(farthest)}{suffix}", _percent(moved_layers.loc[farthest]), "", None]
    else:
        is_known = len(layer_means) > 0 and layer_means["relative_drift"].notna().all()
        cells = ["no layer: their weights did not move" if is_known else NOT_COMPARED, None, "", None]
    return [*cells, ratio, p_value(trend["p"]), p_value(trend["q"]), verdict]


def layer_name(layer: Any) -> str:
    """``the embeddings`` for what layer 1 reads, ``layer 3``."""
    return "the embeddings" if layer == 0 else f"layer {int(layer)}"


def _percent(record: "Mapping[Any, Any] | pd.Series") -> str:
    return percent_text(record["relative_drift"], record["low"], record["high"])


def _state_sections(groups: Mapping[str, Tables]) -> list[Section]:
    """A section on how far states changed and one on what that is held against; nothing where no group has states."""
    similarity_blocks: dict[str, list[Block]] = {}
    reference_blocks: dict[str, list[Block]] = {}
    for group_number, (group, group_tables) in enumerate(groups.items(), start=1):
        if not has_states(group_tables):
            continue
        chart = plot_similarity(group_tables["means"])
        charts = {} if chart is None else {"similarity_by_layer": chart}
        alt = "Similarity of the states of every layer to before training, per regime and texts."
        prefix = f"{group_number}_" if len(groups) > 1 else ""
        means = rows_block(*similarity_rows(group_tables), "Similarity of states: mean (95 % interval).")
        pictures = chart_blocks(charts, "similarity_by_layer", STATES_CAPTION, alt, prefix)
        similarity_blocks[group] = [*pictures, FoldBlock(title=f"{group}: every layer", blocks=(means,))]
        if len(group_tables["contrasts"]):
            reference_blocks[group] = _reference_blocks(group_tables)
    lead = (
        "Similarity to before training minus another one, debiased CKA: below 0 the states of the regime changed more. "
        "The other one is that of two seeds with each other, of shuffled labels to before, or of the first regime to "
        "before."
    )
    blocks_by_section = {
        ("states", "How far did the states of each layer change?", ""): similarity_blocks,
        ("references", "Is that more than two seeds, shuffled labels or another regime?", lead): reference_blocks,
    }
    return [
        Section(
            id=id, title=title, lead=section_lead, blocks=folds(list(blocks_by_group), list(blocks_by_group.values()))
        )
        for (id, title, section_lead), blocks_by_group in blocks_by_section.items()
        if blocks_by_group
    ]


def _reference_blocks(tables: Tables) -> list[Block]:
    """One group's least similar layers, and each regime against the first if there are several."""
    regimes = regime_rows(tables)
    return [
        rows_block(*reference_rows(tables), "The least similar layer, held against seeds and shuffled labels."),
        *([rows_block(*regimes, "Each regime against the first one, over layers and texts.")] if regimes[1] else []),
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
    for (condition, texts), every_measure in means.groupby(["condition", "texts"], sort=False):
        cka = every_measure[every_measure["measure"] == CKA]
        least = _least_record(cka)
        most = cka.loc[cka["value"].idxmax()] if cka["value"].notna().any() else least
        standardised = every_measure[
            (every_measure["measure"] == STANDARDISED) & (every_measure["layer"] == least["layer"])
        ]
        similarity_cells = [
            least_similar(cka),
            estimate_of(least),
            estimate_of(standardised.iloc[0]) if len(standardised) else None,
            layer_name(most["layer"]),
            estimate_of(most),
        ]
        references = contrasts[(contrasts["condition"] == condition) & (contrasts["texts"] == texts)]
        references = references[(references["layer"] == least["layer"]) & (references["comparison"] != OTHER_CONDITION)]
        for record in references.to_dict("records"):
            cells = [str(record["against"]), f"{record['other_similarity']:.3f}", _gap(record), _floor(record)]
            rows.append([condition, texts, *similarity_cells, *cells, int(record["num_seeds"]), verdict_of(record)])
    return header, rows


def verdict_of(line: Mapping[str, Any]) -> str:
    """The verdict of one contrast: ``undefined`` without an interval, ``not judged`` with one seed."""
    if pd.isna(line["low"]):
        return "undefined: no interval"
    if line["num_seeds"] == 1:
        return "not judged: one seed"
    if line["low"] <= 0 <= line["high"]:
        return "not distinguishable"
    verdict = "yes: changed more" if line["high"] < 0 else "yes: changed less"
    floor = line["between_seeds"]
    if pd.isna(floor):
        return verdict
    is_beyond = min(abs(line["low"]), abs(line["high"])) > floor
    return f"{verdict}, {'beyond' if is_beyond else 'not clearly beyond'} what two seeds differ by"


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
        "seeds",
    ]
    table = tables["contrasts"]
    table = table[(table["measure"] == CKA) & (table["comparison"] == OTHER_CONDITION) & table["low"].notna()]
    rows: list[list[object]] = []
    for (condition, against), contrasts in table.groupby(["condition", "against"], sort=False):
        greatest = contrasts.loc[contrasts["value"].abs().idxmax()]
        num_seeds = int(contrasts["num_seeds"].max())
        counts: list[object] = [int((contrasts["high"] < 0).sum()), int((contrasts["low"] > 0).sum())]
        counts = counts if num_seeds > 1 else ["not judged: one seed"] * 2
        cells = [_gap(greatest), f"{layer_name(greatest['layer'])} on {greatest['texts']}", _floor(greatest)]
        rows.append([condition, against, len(contrasts), *counts, *cells, num_seeds])
    return header, rows


_gap = partial(estimate_of, is_signed=True)


def _floor(record: "Mapping[Any, Any] | pd.Series") -> str | None:
    """What two seeds differ by."""
    return None if pd.isna(record["between_seeds"]) else f"{record['between_seeds']:.3f}"


def similarity_rows(tables: Tables) -> Rows:
    """Header and rows of one group: per regime, texts and layer every similarity to before, and between seeds."""
    columns = {
        f"{BEFORE_AND_AFTER} {CKA}": "debiased CKA",
        f"{BEFORE_AND_AFTER} {STANDARDISED}": "standardised columns",
        f"{SEED_AND_SEED} {CKA}": "two seeds, debiased CKA",
    }
    names = tables["means"]["comparison"] + " " + tables["means"]["measure"]
    labels = tables["means"]["layer"].map(lambda layer: "embeddings" if layer == 0 else str(layer))
    table = tables["means"].assign(column=names.map(columns), layer=labels).dropna(subset="column")
    names, rows = wide_rows(table, ["condition", "texts", "layer"], "column", estimate_of)
    return ["regime", "texts", "layer", *names], rows


def weight_rows(tables: Tables) -> Rows:
    """Header and rows of one group: how far the weights of each regime and layer moved, and by which norms that is."""
    header = ["regime", "layer", "relative drift", "median angle (°)", "‖W⁰‖", "‖Δ‖", "values", "note"]
    rows: list[list[object]] = []
    for record in tables["weight_means"].to_dict("records"):
        cells = [_percent(record), *(record[name] for name in ("median_angle_degrees", "norm_before", "norm_change"))]
        if pd.isna(record["norm_change"]):  # not there, or not to be compared
            cells = [None] * len(cells)
        notes = ["bit-identical"] if record["is_identical"] else filter(None, (record["reason"], record["note"]))
        key = [str(record["condition"]), component_name(record["component"])]
        rows.append([*key, *cells, int(record["num_values"]), "; ".join(notes)])
    return header, rows


def component_name(name: str) -> str:
    """A component as the tables on states number the layers."""
    return str(int(name.removeprefix("layers.")) + 1) if name.startswith("layers.") else name.replace("_", " ")


def plot_weight_drift(weight_means: pd.DataFrame, weight_drift: pd.DataFrame) -> Chart | None:
    """A panel per group: relative drift of each layer in percent, a line per regime and a dot per run.

    The tables are ``weight_means`` and ``weight_drift`` of ``measure_layers``; None where no weights moved.
    """
    is_layer = weight_means["component"].str.startswith("layers.")
    defined = weight_means[is_layer | (weight_means["component"] == "embeddings")]
    defined = defined[defined["relative_drift"].notna() & defined["layer"].notna()]
    if not (defined["relative_drift"] > 0).any():
        return None
    scaled = {"mean": 100 * defined["relative_drift"], "low": 100 * defined["low"], "high": 100 * defined["high"]}
    # A kind of their own, not joined to the layers: most rows of the embeddings are words that training never showed.
    kind = defined["component"].eq("embeddings").map({True: "embeddings", False: "layer"})
    drawn = defined.assign(series=defined["condition"], kind=kind, **scaled)
    dots = _by_run(weight_drift)
    groups = list(dict.fromkeys(drawn["group"]))
    conditions = list(dict.fromkeys(drawn["condition"]))
    panels = [
        Panel(
            title=str(group),
            curves=drawn[drawn["group"] == group],
            dots=dots[dots["group"] == group],
            y_title="relative drift of\nthe weights (%)",
            low=0.0,
        )
        for group in groups
    ]
    return curve_panels(
        panels, columns=min(len(groups), 3), series=conditions, layer_names=LAYER_NAMES, digits=".3g", height=150
    )


def _by_run(drift: pd.DataFrame) -> pd.DataFrame:
    """Relative drift (%) of each layer in each run, a little beside the mean, of regimes with several seeds."""
    key_columns = ["group", "condition", "seed", "layer"]
    is_layer = drift["component"].str.startswith("layers.") & (drift["num_values"] > 0)
    squares = drift[is_layer].assign(**{name: drift[name] ** 2 for name in ("norm_before", "norm_change")})
    sums = squares.groupby(key_columns, sort=False)[["norm_before", "norm_change"]].sum(min_count=1).reset_index()
    has_seeds = sums.groupby(["group", "condition"])["seed"].transform("nunique") > 1
    conditions = {condition: i for i, condition in enumerate(dict.fromkeys(sums["condition"]))}
    return sums[has_seeds].assign(
        mean=100 * (sums["norm_change"] / sums["norm_before"]) ** 0.5,
        layer=sums["layer"].astype(float) + 0.12 * (1 + sums["condition"].map(conditions).fillna(0).astype(float)),
        series=sums["condition"],
        label="seed " + sums["seed"].astype(str),
    )


def plot_similarity(means: pd.DataFrame) -> Chart | None:
    """The similarity of every layer to before, and of seeds to each other: panels of measures (down) by texts (across).

    Of one domain of texts the measures stand side by side. ``means``: that table of ``measure_layers``, of one group;
    None where it holds no similarity.
    """
    defined = means[means["value"].notna()]
    drawn = defined.assign(
        mean=defined["value"], series=defined["condition"], kind=defined["comparison"].map(COMPARISON_NAMES)
    )
    texts, conditions = list(dict.fromkeys(drawn["texts"])), list(dict.fromkeys(drawn["condition"]))
    measures = [measure for measure in AXIS_TITLES if (drawn["measure"] == measure).any()]
    is_single = len(texts) == 1
    panels = [
        Panel(
            title=(AXIS_TITLES[measure] if is_single else str(name)) if is_single or measure == CKA else "",
            curves=drawn[(drawn["measure"] == measure) & (drawn["texts"] == name)],
            y_title="similarity" if is_single else AXIS_TITLES[measure],
        )
        for measure in measures
        for name in texts
    ]
    kinds = [kind for kind in COMPARISON_NAMES.values() if (drawn["kind"] == kind).any()]
    columns = max(len(measures if is_single else texts), 1)
    return curve_panels(
        panels, columns=columns, series=conditions, kinds=kinds, layer_names=LAYER_NAMES, is_shared=not is_single
    )
