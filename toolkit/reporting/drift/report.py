"""What a user opened in, its drift on the terminal and a drift report as a folder out."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from toolkit.analysis.changes.changes import NOT_APPLICABLE, measure_changes
from toolkit.naming import shown_command
from toolkit.reporting import markdown
from toolkit.reporting.drift.figures import draw_report
from toolkit.reporting.drift.findings import drift_findings
from toolkit.reporting.drift.tables import DriftTables, collect
from toolkit.reporting.drift.text import sections
from toolkit.reporting.folder import check_out, report_folder, write_csvs
from toolkit.reporting.images import write_images
from toolkit.reporting.progress import reporting_progress
from toolkit.reporting.sources import Opened, open_sources
from toolkit.snapshots import files


def show_drift(places: Sequence[str | Path], out: str | Path | None = None, *, title: str | None = None) -> Path | None:
    """Print what kind of change each embedding parameter underwent; with ``out``, the report too, and its path.

    The arguments are those of :func:`write_drift_report`.
    """
    if out is not None:
        check_out(out)
    opened = open_sources(places, at_least=2)
    changes = measure_changes(opened.runs[0] if opened.is_run else opened.trajectory)
    _print_changes(opened, changes)
    return None if out is None else _write(opened, places, Path(out), title, {"changes": changes})


def write_drift_report(places: Sequence[str | Path], out: str | Path, *, title: str | None = None) -> Path:
    """Write report.md, figures/ (PNG, SVG, PDF) and tables/ (CSV) into ``out``; the path of report.md.

    ``places`` are checkpoints in order (what :func:`toolkit.import_checkpoints` takes, and ``minilm``), or one run
    directory followed by runs of other seeds. ValueError as :func:`open_sources`, and as
    :func:`toolkit.write_report` where no report can go to ``out``.
    """
    check_out(out)
    opened = open_sources(places, at_least=2)
    return _write(opened, places, Path(out), title, {})


def _print_changes(opened: Opened, changes: pd.DataFrame) -> None:
    console = Console()
    caption = "size: of the rows that moved so; relative drift: ‖Δ‖/‖E⁰‖ of the whole parameter"
    table = Table(title=escape(opened.title), caption=caption)
    table.add_column("parameter", no_wrap=True)
    for name in ("change", "size", "relative drift"):
        table.add_column(name, overflow="fold")
    for line in changes.to_dict("records"):
        if line["kind"] == NOT_APPLICABLE:
            table.add_row(line["parameter"], NOT_APPLICABLE, "", "")
            continue
        size = f"{line['size']:.3g} {line['unit']}".removesuffix(" 1") if line["size"] == line["size"] else ""
        relative = line["relative_drift"]
        is_still = line["kind"] == "identical" or relative == 0  # what stays 0 has no relative drift
        drift = "0 exactly" if is_still else "undefined" if relative != relative else f"{relative:.3g}"
        says_both = line["kind"] == "decay and training"  # in the detail, with the rows of each
        kind = line["detail"] if says_both else f"{line['kind']}: {line['detail']}"
        table.add_row(line["parameter"], escape(kind), escape(size), drift)
    console.print(table)
    for note in opened.notes:
        console.print(f"Note: {escape(note)}")


def _write(
    opened: Opened, places: Sequence[str | Path], out: Path, title: str | None, known: Mapping[str, pd.DataFrame]
) -> Path:
    with report_folder(out) as folder:
        with reporting_progress() as hear:
            tables = collect(opened, known, lambda name: hear(f"computing {name.replace('_', ' ')}"))
        drawn = draw_report(tables)
        text = _render(tables, drawn, markdown.code_block([shown_command("drift", places, out, title)]), title)
        write_csvs(folder / "tables", tables.frames)
        write_images(folder / "figures", drawn)
        files.write_text(folder / "report.md", text)
    return out / "report.md"


def _render(tables: DriftTables, drawn: Mapping[str, object], command: str, title: str | None) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1] / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("drift.md.j2").render(
        title=markdown.escape(title if title is not None else f"Embedding drift: {tables.opened.title}"),
        findings=drift_findings(tables),
        notes=[markdown.escape(note) for note in tables.opened.notes],
        commands=command,
        figures=set(drawn),
        sections=sections(tables),
    )
