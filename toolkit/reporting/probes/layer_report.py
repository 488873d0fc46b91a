"""The tables of layer drift in, their page out: report.md, a figure per group and the tables."""

from pathlib import Path

import pandas as pd

from toolkit.reporting import markdown
from toolkit.reporting.folder import report_folder, write_csvs, write_page
from toolkit.reporting.images import write_images
from toolkit.reporting.probes.layer_figures import BEFORE_AND_AFTER, CKA, RSA, SEED_AND_SEED, STANDARDISED, draw_layers
from toolkit.reporting.probes.layer_findings import Tables, layer_findings, with_interval

CAPTION = (
    "Similarity of every layer to what it was before training, and of the tuned models of two seeds to each other: "
    "mean over runs (or pairs of runs), band: 95 % interval of the mean. Layer emb. is what layer 1 reads. Scales "
    "differ between rows."
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
    "The embedded model minilm (all-MiniLM-L6-v2) is a BERT that was tuned on sentence pairs: what it shows is no "
    "claim about raw BERT, which needs a raw backbone beside it.",
    "The least similar layer is chosen by looking at all layers; its interval does not know that.",
    "That the states of a layer changed does not say that the layer's own weights did: it reads what lies below.",
    "Shuffled labels are no 'nothing learned': such a model memorises.",
)

Rows = tuple[list[str], list[list[object]]]


def write_layer_report(
    tables: Tables, out: str | Path, *, title: str | None = None, command: str | None = None
) -> Path:
    """Write report.md, figures/ and tables/ of ``measure_layers``'s tables into ``out``; the path of report.md.

    ``command`` is shown as what makes the report again. ValueError as :func:`check_out`.
    """
    with report_folder(out) as folder:
        write_csvs(folder / "tables", tables)
        groups = groups_of(tables)
        parts = [f"# {markdown.escape(title or 'How far each layer moved')}"]
        for place, (group, own) in enumerate(groups.items()):
            prefix = f"{place + 1}_" if len(groups) > 1 else ""
            images = draw_layers(own["means"])
            write_images(folder / "figures", images, prefix)
            parts += [
                f"## {markdown.escape(group)}: what was found",
                markdown.bullets([_counts(own["means"]), *layer_findings(own)]),
            ]
            names = [f"{prefix}{name}" for name in images]
            parts += markdown.figures(dict.fromkeys(names, CAPTION), names)
        parts += markdown.made_by(command)
        parts += ["## What this does not say", markdown.bullets(CAVEATS)]
        for group, own in groups.items():
            parts += [
                f"## {markdown.escape(group)}: similarity",
                "Mean (95 % interval).",
                markdown.table(*layer_rows(own)),
            ]
            if len(own["contrasts"]):
                said = "Debiased CKA of after with before, minus another one: below 0 the arm moved further."
                parts += [f"## {markdown.escape(group)}: differences", said, markdown.table(*contrast_rows(own))]
        parts += ["## Definitions", markdown.bullets(DEFINITIONS)]
        write_page(folder, parts)
    return Path(out) / "report.md"


def groups_of(tables: Tables) -> dict[str, dict[str, pd.DataFrame]]:
    """Group to its part of every table: no number is taken over groups."""
    titles = dict.fromkeys(map(str, tables["means"]["group"]))
    return {title: {name: table[table["group"] == title] for name, table in tables.items()} for title in titles}


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
