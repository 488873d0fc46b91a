"""The page on layers, their states and their weights: report.md, figures and tables."""

from pathlib import Path

import pandas as pd

from toolkit.reporting import markdown
from toolkit.reporting.folder import report_folder, write_csvs, write_page
from toolkit.reporting.images import write_images
from toolkit.reporting.probes.layer_figures import (
    BEFORE_AND_AFTER,
    CKA,
    RSA,
    SEED_AND_SEED,
    STANDARDISED,
    draw_layers,
    draw_weights,
)
from toolkit.reporting.probes.layer_findings import (
    Tables,
    has_states,
    layer_findings,
    main_findings,
    percent,
    with_interval,
)

TITLE = "How much each layer changed: its states and its weights"

CAPTION = (
    "Similarity of every layer to what it was before training, and of the tuned models of two seeds to each other: "
    "mean over runs (or pairs of runs), band: 95 % interval of the mean. Layer emb. is what layer 1 reads. Scales "
    "differ between rows."
)
WEIGHTS_CAPTION = (
    "Drift of the weights of every layer: ‖Δ‖ / ‖W⁰‖ of all its weights together, the mean over runs (line) and each "
    "run (dots). Layer emb. is the embedding parameters together. Scales differ between panels."
)
WEIGHT_DEFINITIONS = (
    "Weights: relative drift is ‖Δ‖ / ‖W⁰‖ (Frobenius norms, float64) of the stored tensors after and before; of a "
    "layer √Σ‖Δ‖² / √Σ‖W⁰‖² over all of its weights, biases and LayerNorms. The angle is that of two tensors taken as "
    "vectors.",
    "Top to bottom: relative drift of the top third of the layers over that of the bottom third (geometric means), its "
    "95 % interval and p by Student's t over seeds of the logarithms; q: Benjamini and Hochberg over the arms.",
    "Verdict on weights: not judged below three seeds; flat where the 90 % interval of every layer's drift over the "
    "mean of the layers lies within a factor of 1.1; more at the bottom or the top where q < .05; else not decided.",
    "Relative drift divides by a layer's norm, and AdamW's steps have a size of their own, whatever the gradient's: "
    "how far a layer's weights moved is no measure of how much it learned.",
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
    "Two seeds: the mean similarity of the tuned models of all pairs of seeds of the arm; three seeds are three pairs.",
)
CAVEATS = (
    "The embedded model minilm (all-MiniLM-L6-v2) is a BERT that was tuned on single sentences: what it shows is no "
    "claim about raw BERT, which needs a raw backbone beside it.",
    "The least similar layer is chosen by looking at all layers; its interval does not know that.",
    "That the states of a layer changed does not say that the layer's own weights did: it reads what lies below. The "
    "tables on weights say how far these moved.",
    "Shuffled labels are no 'nothing learned': such a model memorises.",
)

Rows = tuple[list[str], list[list[object]]]


def write_layer_report(
    tables: Tables, out: str | Path, *, title: str | None = None, command: str | None = None
) -> Path:
    """Write report.md, figures/ and tables/ of ``measure_layers``'s tables into ``out``; the path of report.md.

    Tables of weights only (of two checkpoints) make a report without states. ``command`` is shown as what makes the
    report again. ValueError as :func:`check_out`.
    """
    with report_folder(out) as folder:
        write_csvs(folder / "tables", tables)
        groups, weights = groups_of(tables), draw_weights(tables)
        write_images(folder / "figures", weights)
        parts = [f"# {markdown.escape(title or TITLE)}", "## What changed, and what moved"]
        parts += [
            markdown.bullets(
                _lead(group, line, len(groups)) for group, own in groups.items() for line in main_findings(own)
            )
        ]
        parts += markdown.figures(dict.fromkeys(weights, WEIGHTS_CAPTION), weights)
        for place, (group, own) in enumerate(groups.items()):
            parts += _states_found(folder, group, own, f"{place + 1}_" if len(groups) > 1 else "")
        parts += markdown.made_by(command)
        is_of_states = has_states(tables)
        parts += ["## What this does not say", markdown.bullets(CAVEATS if is_of_states else CAVEATS[:1])]
        for group, own in groups.items():
            title = markdown.escape(group)
            parts += [
                f"## {title}: weights",
                "Relative drift: mean (95 % interval over seeds).",
                markdown.table(*weight_rows(own)),
            ]
            parts += [
                f"## {title}: weight matrices",
                "Relative drift and, after the stroke, angle in degrees of every matrix: means over seeds.",
                markdown.table(*matrix_rows(own)),
            ]
            if not has_states(own):
                continue
            parts += [f"## {title}: similarity", "Of states: mean (95 % interval).", markdown.table(*layer_rows(own))]
            if len(own["contrasts"]):
                said = (
                    "Debiased CKA of after with before, minus another one: below 0 the states of the arm changed more."
                )
                parts += [f"## {title}: differences", said, markdown.table(*contrast_rows(own))]
        parts += ["## Definitions", markdown.bullets([*WEIGHT_DEFINITIONS, *(DEFINITIONS if is_of_states else ())])]
        write_page(folder, parts)
    return Path(out) / "report.md"


def _states_found(folder: Path, group: str, own: dict[str, pd.DataFrame], prefix: str) -> list[str]:
    """The findings on the states of one group, with their figure, which is written."""
    if not has_states(own):
        return []
    images = draw_layers(own["means"])
    write_images(folder / "figures", images, prefix)
    names = [f"{prefix}{name}" for name in images]
    return [
        f"## {markdown.escape(group)}: what was found of the states",
        markdown.bullets([_counts(own["means"]), *layer_findings(own)]),
        *markdown.figures(dict.fromkeys(names, CAPTION), names),
    ]


def groups_of(tables: Tables) -> dict[str, dict[str, pd.DataFrame]]:
    """Group to its part of every table: no number is taken over groups."""
    titles = dict.fromkeys(map(str, tables["weight_trends"]["group"]))
    return {title: {name: table[table["group"] == title] for name, table in tables.items()} for title in titles}


def weight_rows(tables: Tables) -> Rows:
    """Header and rows of one group: per arm and layer how far its weights moved, and what it was divided by."""
    header = ["arm", "layer", "relative drift", "median angle (°)", "‖W⁰‖", "‖Δ‖", "values", "note"]
    rows: list[list[object]] = []
    for line in tables["weight_means"].to_dict("records"):
        is_known = line["relative_drift"] == line["relative_drift"]
        drift: object = percent(pd.Series(line)) if is_known else markdown.UNDEFINED
        note = "bit-identical" if line["is_identical"] else line["note"]
        cells = [drift, *(line[name] for name in ("median_angle_degrees", "norm_before", "norm_change"))]
        if line["norm_change"] != line["norm_change"]:  # not there, or not to be compared
            cells = [None] * len(cells)
        rows.append([str(line["arm"]), _component(line["component"]), *cells, int(line["num_values"]), note])
    return header, rows


def matrix_rows(tables: Tables) -> Rows:
    """Header and rows of one group: per arm and layer a column for each of its matrices."""
    drift = tables["weight_drift"]
    is_matrix = drift["component"].str.startswith("layers.") & drift["shape"].fillna("").str.contains("x")
    means = (
        drift[is_matrix]
        .groupby(["arm", "component", "part"], sort=False)[["relative_drift", "angle_degrees"]]
        .agg(lambda values: values.mean(skipna=False))
    )
    parts = list(dict.fromkeys(means.index.get_level_values("part")))
    rows: list[list[object]] = []
    for arm, component in dict.fromkeys((arm, component) for arm, component, _ in means.index):
        own = means.loc[arm, component]
        rows.append([arm, _component(component), *(_matrix(own.loc[p]) if p in own.index else None for p in parts)])
    return ["arm", "layer", *parts], rows


def _matrix(line: "pd.Series") -> str:
    drift, angle = line["relative_drift"], line["angle_degrees"]
    return markdown.UNDEFINED if drift != drift else f"{markdown.number(100 * drift)} % / {markdown.number(angle, 2)}"


def _component(name: str) -> str:
    """A component as the tables on states number the layers."""
    return str(int(name.removeprefix("layers.")) + 1) if name.startswith("layers.") else name.replace("_", " ")


def layer_rows(tables: Tables) -> Rows:
    """Header and rows of one group: per arm, texts and layer every mean similarity to before, and between seeds."""
    header = ["arm", "texts", "layer", "debiased CKA", "standardised columns", "RSA", "two seeds, debiased CKA"]
    columns = [(BEFORE_AND_AFTER, CKA), (BEFORE_AND_AFTER, STANDARDISED), (BEFORE_AND_AFTER, RSA), (SEED_AND_SEED, CKA)]
    rows: list[list[object]] = []
    for (arm, texts, layer), own in tables["means"].groupby(["arm", "texts", "layer"], sort=False):
        cells = own.set_index(["comparison", "measure"])
        shown = [_cell(cells.loc[key], "mean") if key in cells.index else None for key in columns]
        rows.append([str(arm), str(texts), _place(layer), *shown])
    return header, rows


def contrast_rows(tables: Tables) -> Rows:
    """Header and rows of one group: per arm, texts and layer the differences of debiased CKA, one column for each."""
    table = tables["contrasts"][tables["contrasts"]["measure"] == CKA]
    against = list(dict.fromkeys(table["against"]))
    rows: list[list[object]] = []
    for (arm, texts, layer), own in table.groupby(["arm", "texts", "layer"], sort=False):
        cells = own.set_index("against")
        shown = [
            _cell(cells.loc[name], "difference", is_signed=True) if name in cells.index else None for name in against
        ]
        rows.append([str(arm), str(texts), _place(layer), *shown])
    return ["arm", "texts", "layer", *(f"minus {name}" for name in against)], rows


def _lead(group: str, line: str, num_groups: int) -> str:
    return f"{group}, {line}" if num_groups > 1 else line


def _cell(line: "pd.Series", column: str, *, is_signed: bool = False) -> str:
    return with_interval(line[column], line["low"], line["high"], is_signed=is_signed)


def _place(layer: object) -> str:
    return "embeddings" if layer == 0 else str(layer)


def _counts(means: pd.DataFrame) -> str:
    """How many seeds and texts stand behind the numbers."""
    texts = means.groupby("texts", sort=False)["num_texts"].first()
    seeds = means.groupby("arm", sort=False)["num_seeds"].first()
    shown = ", ".join(f"{count:,} of {name}" for name, count in texts.items())
    return f"Texts: {shown}. Seeds: {', '.join(f'{count} of {arm}' for arm, count in seeds.items())}."
