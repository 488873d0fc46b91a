"""The tables of transplants in, the page on them out: report.md, figures, tables as CSV; or the terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.reporting import markdown
from toolkit.reporting.cells import interval
from toolkit.reporting.folder import report_folder, write_csvs, write_page
from toolkit.reporting.images import write_images
from toolkit.reporting.probes.transplant_definitions import DEFINITIONS
from toolkit.reporting.probes.transplant_figures import (
    ACCURACY,
    LIKELIHOOD,
    PANEL,
    RANDOM_CHANGES,
    TOTAL,
    draw_transplants,
)
from toolkit.reporting.probes.transplant_findings import caveats, findings, name_of, share_text

Tables = Mapping[str, pd.DataFrame]

CAPTIONS = {
    "shapley": "What the drift of each component is worth to the log-likelihood of the tuned model: exact "
    "Shapley values with 95 % intervals over seeds and items.",
    "shapley_accuracy": "The same for the accuracy.",
    "random_changes": "Each tuned component alone in the embeddings from before, beside random changes of the same "
    "size, row by row and with all rows rotated alike: is it this drift, or any of its size?",
    "interactions": "Shapley interaction index of every pair of components: above 0 they do more together than apart. "
    "The stars are of single intervals, not adjusted for their number.",
    "shapley_reverse": "The reverse: the tuned components in the body from before training, under a re-fitted probe.",
    "shapley_accuracy_reverse": "The same for the accuracy.",
    "random_changes_reverse": "The reverse: each tuned component alone beside random changes of the same size.",
    "interactions_reverse": "The reverse: Shapley interaction index of every pair of components; stars as above.",
}


def write_transplant_report(
    tables: Tables, out: str | Path, *, title: str | None = None, command: str | None = None
) -> Path:
    """Write report.md, figures/ and tables/ into ``out``; the path of report.md.

    ``tables``: shapley, interactions, singles, coalitions and checks, as of ``measure_transplants``. ``command`` is
    shown as what makes the report again. ValueError as :func:`check_out`.
    """
    with report_folder(out) as folder:
        drawn = draw_transplants(tables)
        write_csvs(folder / "tables", tables)
        write_images(folder / "figures", drawn)
        write_page(folder, _parts(tables, list(drawn), title, command))
    return Path(out) / "report.md"


def print_transplants(tables: Tables) -> None:
    """What was found, and the Shapley values of every arm, on the terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for line in findings(tables):
        console.print(f"- {escape(line)}", soft_wrap=True, highlight=False)
    for key, lines in tables["shapley"].groupby([*PANEL, "direction", "coordinates"], sort=False):
        header, rows = shapley_rows(lines, tables["singles"])
        # On 80 columns: the last columns are in the report.
        shown = Table(title=escape(f"{name_of(key)}, {key[3]}, {key[4]} coordinates"))
        for name in header[:5]:
            shown.add_column(escape(name), no_wrap=name == "component")
        for row in rows:
            shown.add_row(*(escape(str(cell)) for cell in row[:5]))
        console.print(shown)


Rows = tuple[list[str], list[list[object]]]


def shapley_rows(lines: pd.DataFrame, singles: pd.DataFrame) -> Rows:
    """Header and rows of one arm's components: both values with intervals, the share, and alone beside random."""
    header = ["component", "φ (nats)", "95 % interval", "φ (points)", "95 % interval", "share", "alone (nats)"]
    header += ["random (nats)", "draws", "rotated (nats)", "draws", "note"]
    alone = _alone(lines, singles)
    likelihood, accuracy = (lines[lines["value"] == name].set_index("component") for name in (LIKELIHOOD, ACCURACY))
    order = [name for name in likelihood.index if name != TOTAL] + [TOTAL]
    rows: list[list[object]] = []
    for name in order:
        one, other = likelihood.loc[name], accuracy.loc[name]
        share = "" if pd.isna(one["share"]) else share_text(one["share"])
        cells = [_signed(one["estimate"]), interval(one["low"], one["high"], 4)]
        cells += [_signed(other["estimate"], 2), interval(other["low"], other["high"])]
        rows.append(
            ["sum: all - none" if name == TOTAL else name, *cells, share, *alone.get(name, [""] * 5), one["note"]]
        )
    return header, rows


def _alone(lines: pd.DataFrame, singles: pd.DataFrame) -> dict[str, list[object]]:
    """Component to what it does alone, and for each kind of random change what that does, from least to greatest."""
    keys = [*PANEL, "direction", "coordinates"]
    own = singles[(singles[keys] == lines[keys].iloc[0]).all(axis=1) & (singles["value"] == LIKELIHOOD)]
    found: dict[str, list[object]] = {}
    for name, part in own.groupby("component", sort=False):
        by_kind = part.set_index("kind")
        found[str(name)] = [_signed(by_kind.loc["transplant", "estimate"])]
        for kind in RANDOM_CHANGES:
            if kind not in by_kind.index or pd.isna(by_kind.loc[kind, "estimate"]):
                found[str(name)] += ["not applicable", ""]
                continue
            drawn = by_kind.loc[kind]
            found[str(name)] += [_signed(drawn["estimate"]), interval(drawn["least"], drawn["greatest"], 4)]
    return found


def _signed(value: float, digits: int = 4) -> str:
    return markdown.UNDEFINED if pd.isna(value) else f"{value:+.{digits}f}" if value else "0"


def _parts(tables: Tables, drawn: Sequence[str], title: str | None, command: str | None) -> list[str]:
    tasks = ", ".join(dict.fromkeys(map(str, tables["shapley"]["task"])))
    parts = [f"# {markdown.escape(title if title is not None else f'What the drift is worth: {tasks}')}"]
    parts += ["## What was found", markdown.bullets(findings(tables)), *_figures(drawn, "shapley", "shapley_accuracy")]
    parts += markdown.made_by(command, markdown.RELATIVE_PATHS)
    parts += ["## Components", *_components(tables)]
    parts += ["## Is it this drift, or any of its size?", *_figures(drawn, "random_changes")]
    parts += ["## Pairs of components", *_figures(drawn, "interactions")]
    names = ("shapley_reverse", "shapley_accuracy_reverse", "random_changes_reverse", "interactions_reverse")
    if reverse := _figures(drawn, *names):
        parts += ["## The reverse: tuned embeddings in the body from before", *reverse]
    parts += ["## The gauge, checked on these runs", _checks(tables["checks"])]
    parts += ["## What this does not say", markdown.bullets(caveats(tables))]
    return [*parts, "## Definitions", markdown.bullets(DEFINITIONS)]


def _components(tables: Tables) -> list[str]:
    parts = []
    for key, lines in tables["shapley"].groupby([*PANEL, "direction", "coordinates"], sort=False):
        header, rows = shapley_rows(lines, tables["singles"])
        if not any(row[6] for row in rows):
            header, rows = _without_random(header), [_without_random(row) for row in rows]
        title = f"### {markdown.escape(name_of(key))}, {key[3]}, {key[4]} coordinates"
        parts += [title, markdown.table(header, rows)]
    return parts


def _without_random(cells: list[Any]) -> list[Any]:
    return cells[:6] + cells[11:]


def _checks(checks: pd.DataFrame) -> str:
    header = ["task", "arm", "seed", "direction", "passes", "items", "fixed against raw", "words x 1.1", "note"]
    names = ["task", "arm", "seed", "direction", "num_passes", "num_items", "gauge_difference", "control_difference"]
    said = (
        "Largest difference of any logit between the tuned model in the fixed gauge and as it is, and, as a control "
        "that no gauge allows, with the words multiplied by 1.1."
    )
    rows = [
        [None if name.endswith("difference") and pd.isna(line[name]) else line[name] for name in names] + [line["note"]]
        for line in checks.to_dict("records")
    ]
    return f"{said}\n\n{markdown.table(header, rows)}"


def _figures(drawn: Sequence[str], *names: str) -> list[str]:
    return markdown.figures(CAPTIONS, [name for name in names if name in drawn])
