"""Finished runs in, a report folder out: report.md, figures as PNG and SVG, tables as CSV."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from toolkit.analysis.comparison.arms import Group, arrange
from toolkit.families import TABLES
from toolkit.naming import shown_path
from toolkit.reporting import drift_sections, markdown, provenance, score_sections
from toolkit.reporting.figures import draw
from toolkit.reporting.findings import failed_runs, findings
from toolkit.reporting.images import write_images
from toolkit.reporting.tables import GroupTables, collect, strata_table
from toolkit.snapshots import files
from toolkit.snapshots.store import Run


def write_report(runs: Sequence[Run | str | Path], out: str | Path, *, title: str | None = None) -> Path:
    """Compare runs and write report.md, figures/ and tables/ into ``out``; the path of report.md.

    Runs of one model and task are compared with each other; other models and tasks get sections of their own. Other
    files in ``out`` stay. ValueError for no runs, an unfinished one, or the same one twice.
    """
    groups = arrange(runs)
    out = Path(out)
    _check_out(out, groups)
    tables = [collect(group) for group in groups]
    names = _file_names(groups)
    drawn = [draw(each) for each in tables]
    text = _render(tables, names, drawn, _commands(runs, groups, out, title), title)
    (out / "tables").mkdir(parents=True, exist_ok=True)
    for name, table in csv_tables(tables).items():
        files.write_text(out / "tables" / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
    for prefix, figures in zip(names, drawn, strict=True):
        write_images(out / "figures", figures, prefix)
    files.write_text(out / "report.md", text)
    return out / "report.md"


def _check_out(out: Path, groups: Sequence[Group]) -> None:
    if out.exists() and not out.is_dir():
        raise ValueError(f"{shown_path(out)} is a file where the report's folder should go: pass another --out")
    for run in (run for group in groups for run in group.runs):
        if out.resolve().is_relative_to(run.run.path.resolve()):
            raise ValueError(f"the report would lie inside the run {run.name}: pass another --out")


def _file_names(groups: Sequence[Group]) -> list[str]:
    """What the file names of each group's figures begin with: nothing for one group, else its number and title."""
    if len(groups) == 1:
        return [""]
    slugs = (re.sub(r"[^a-z0-9]+", "-", group.title.lower()).strip("-")[:60] for group in groups)
    return [f"{i}-{slug}_" for i, slug in enumerate(slugs, start=1)]


def csv_tables(tables: Sequence[GroupTables]) -> dict[str, pd.DataFrame]:
    """File name to table, all groups together."""
    parts = {
        "drift": [each.drift for each in tables],
        "scores": [each.scores for each in tables],
        "baselines": [each.baselines for each in tables],
        "comparison": [each.comparison for each in tables],
        "strata": [strata_table(each.drift) for each in tables],
        "positions": [each.positions for each in tables],
        "tokens": [each.tokens for each in tables],
    }
    return {name: _joined(frames) for name, frames in parts.items()}


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else frames[0]


def _commands(runs: Sequence[Run | str | Path], groups: Sequence[Group], out: Path, title: str | None) -> str:
    """The commands that make the runs and the report, with no absolute path in them."""
    made = [run.config.to_command() for group in groups for run in group.runs]
    paths = [shown_path(run.path if isinstance(run, Run) else run) for run in runs]
    words = ["python", "-m", "toolkit", "report", *paths, "--out", shown_path(out)]
    words += ["--title", title] if title is not None else []
    return markdown.code_block([*made, markdown.shell_words(words)])


def _render(
    tables: Sequence[GroupTables],
    names: Sequence[str],
    drawn: Sequence[Mapping[str, object]],
    commands: str,
    title: str | None,
) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = FileSystemLoader(Path(__file__).with_name("templates"))
    # No autoescaping: it is for HTML; every text is escaped for Markdown where its cell or sentence is made.
    environment = Environment(
        loader=templates, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    groups = [each.group for each in tables]
    all_runs = [run for group in groups for run in group.runs]
    default = "Embedding drift: " + ", ".join(group.title for group in groups)
    return environment.get_template("report.md.j2").render(
        title=markdown.escape(title if title is not None else default),
        num_runs="One run is reported" if len(all_runs) == 1 else f"{len(all_runs)} runs are compared",
        groups=[_group(each, prefix, figures) for each, prefix, figures in zip(tables, names, drawn, strict=True)],
        commands=commands,
        runs=provenance.runs_table(groups, [name for each in tables for name in failed_runs(each)]),
        definitions=provenance.definitions_table(),
        hashes=provenance.hashes_table(all_runs),
        versions=provenance.versions_table(all_runs),
    )


def _group(tables: GroupTables, prefix: str, figures: Mapping[str, object]) -> dict[str, Any]:
    """What the template shows of one group, every text escaped."""
    usable = tables.comparison[tables.comparison["note"] == ""]
    names = ("scores_over_epochs", "drift_over_epochs", "word_drift_by_exposure", "position_drift")
    has_seeds = any(len(arm.runs) > 1 for arm in tables.group.arms)
    words, positions, segments = (drift_sections.strata_table(tables, name) for name in TABLES)
    return {
        "title": markdown.escape(tables.group.title),
        "findings": findings(tables),
        "figures": {name: f"figures/{prefix}{name}" if name in figures else "" for name in names},
        "seeds": ", mean ± standard deviation over seeds" if has_seeds else "",
        "scores": score_sections.scores_table(tables),
        "data": provenance.data_table(tables.group),
        "ceiling": score_sections.ceiling_table(tables),
        "comparison": score_sections.comparison_table(tables) if len(tables.comparison) else "",
        "num_paired_seeds": usable["seed"].nunique(),
        "caveats": score_sections.caveats(tables),
        "drift": drift_sections.drift_table(tables),
        "words": words,
        "still_words": drift_sections.still_arms(tables, tables.words),
        "positions": positions,
        "still_positions": drift_sections.still_arms(tables, tables.positions),
        "segments": segments,
        "tokens": drift_sections.token_tables(tables),
    }
