"""The table of layer drift in, its page out: report.md, a figure and the table."""

from pathlib import Path

import pandas as pd

from toolkit.reporting import markdown
from toolkit.reporting.images import write_images
from toolkit.reporting.probes.layer_figures import SEED_AND_SEED, draw_layers
from toolkit.snapshots import files

CAPTION = (
    "Similarity of every layer to what it was before training, and of the tuned models of two seeds to each other: "
    "mean over runs (or pairs of runs), band from the least to the greatest. Layer emb. is what the first layer reads."
)

Rows = tuple[list[str], list[list[object]]]


def write_layer_report(
    table: pd.DataFrame, out: str | Path, *, title: str | None = None, command: str | None = None
) -> Path:
    """Write report.md, figures/ and tables/layer_drift.csv of ``measure_layer_drift``'s table; the path of report.md.

    ValueError when ``out`` is a file.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out.name} is a file where the report's folder should go: pass another --out")
    (out / "tables").mkdir(parents=True, exist_ok=True)
    files.write_text(out / "tables" / "layer_drift.csv", table.to_csv(index=False, lineterminator="\n"))
    parts = [f"# {markdown.escape(title or 'How far each layer moved')}", "## What was found"]
    parts.append("\n".join(f"- {markdown.escape(line)}" for line in layer_findings(table)))
    for place, (group, own) in enumerate(table.groupby("group", sort=False)):
        prefix = f"{place + 1}_" if table["group"].nunique() > 1 else ""
        images = draw_layers(own)
        write_images(out / "figures", images, prefix)
        parts.append(f"## {markdown.escape(group)}")
        parts += [f"![{CAPTION}](figures/{prefix}{name}.png)\n\n*{CAPTION}*" for name in images]
        parts.append(markdown.table(*layer_rows(own)))
    parts += ["## How to make this again", markdown.code_block([command])] if command else []
    files.write_text(out / "report.md", "\n\n".join(parts) + "\n")
    return out / "report.md"


def layer_rows(table: pd.DataFrame) -> Rows:
    """Header and rows: per arm, texts and layer the debiased CKA before and after, and between seeds."""
    header = ["arm", "texts", "layer", "debiased CKA, before and after", "95 % over texts", "seed and seed", "RSA"]
    rows: list[list[object]] = []
    for (arm, texts, layer), own in table.groupby(["arm", "texts", "layer"], sort=False):
        of_runs = own[own["comparison"] != SEED_AND_SEED]
        cka, rsa = (of_runs[of_runs["measure"] == name] for name in ("debiased CKA", "RSA"))
        pairs = own[(own["comparison"] == SEED_AND_SEED) & (own["measure"] == "debiased CKA")]
        interval = f"{markdown.number(cka['low'].min())} to {markdown.number(cka['high'].max())}"
        between: object = float(pairs["value"].mean()) if len(pairs) else None
        place: object = "embeddings" if layer == 0 else str(layer)
        rows.append([arm, texts, place, float(cka["value"].mean()), interval, between, float(rsa["value"].mean())])
    return header, rows


def layer_findings(table: pd.DataFrame) -> list[str]:
    """Sentences: where each arm moved most, and whether that is more than between two seeds or by shuffled labels."""
    cka = table[table["measure"] == "debiased CKA"]
    lines = []
    for (group, arm, texts), own in cka.groupby(["group", "arm", "texts"], sort=False):
        moved = own[own["comparison"] != SEED_AND_SEED].groupby("layer")["value"].mean()
        between = own[own["comparison"] == SEED_AND_SEED].groupby("layer")["value"].mean()
        if not moved.notna().any():
            continue
        least, most = int(moved.idxmax()), int(moved.idxmin())
        if moved.min() > 1 - 1e-6:
            lines.append(f"{group}, {arm}, texts {texts}: no layer moved.")
            continue
        text = (
            f"{group}, {arm}, texts {texts}: the least similar layer to before is {_layer(most)} "
            f"({moved[most]:.3f}), the most similar {_layer(least)} ({moved[least]:.3f})"
        )
        if most in between:
            word = "further from before than" if moved[most] < between[most] else "no further from before than"
            text += f"; there it is {word} two seeds are from each other ({between[most]:.3f})"
        lines.append(text + ".")
    return lines or ["Nothing could be compared."]


def _layer(layer: int) -> str:
    return "the embeddings" if layer == 0 else f"layer {layer}"
