"""A page as one HTML file that needs nothing else: no server, no network, every text escaped."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from toolkit.naming import visible
from toolkit.reporting import chart_files, charts
from toolkit.reporting.cells import is_number
from toolkit.reporting.page import (
    Block,
    ChartBlock,
    CodeBlock,
    FoldBlock,
    NoteBlock,
    Page,
    TableBlock,
    TextBlock,
    charts_of,
    columns_of,
    shown,
)

SCRIPTS = ("page.js", "page_charts.js")


def render_page(page: Page) -> str:
    """The text of index.html. ValueError for ids or figure names that stand twice, or no SVG where one should be."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    _check_ids(page)
    folder = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: _unbroken(visible(value)) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["to_copy"] = lambda text: escape(visible(text))
    head = (folder / "page_head.js").read_text(encoding="utf-8")
    script = "\n".join((folder / name).read_text(encoding="utf-8") for name in SCRIPTS)
    has_charts = bool(charts_of(page))
    library = chart_library() if has_charts else ""
    return environment.get_template("page.html.j2").render(
        page=page,
        policy=_policy(head, script, *([library] if library else [])),
        css=Markup((folder / "page.css").read_text(encoding="utf-8")),  # our own file, as are the scripts
        head_script=Markup(head),
        script=Markup(script),
        library=Markup(library),
        picture=_view(page.picture) if page.picture else None,
        theme=Markup(script_json(dict(charts.CONFIG))) if has_charts else "",
        contents=[
            *((section.id, section.title) for section in page.sections),
            *([("repeat", "How to repeat it")] if page.commands else []),
        ],
        lead=_paragraphs(page.lead),
        footer=_paragraphs(page.footer),
        sections=[
            {
                "id": section.id,
                "title": section.title,
                "lead": _paragraphs(section.lead),
                "blocks": [_view(block) for block in section.blocks],
            }
            for section in page.sections
        ],
    )


def _unbroken(text: str) -> str:
    """A text in which no line ends between a number and its %."""
    return re.sub(r"(?<=\d) (?=%)", "\u00a0", text)


def _check_ids(page: Page) -> None:
    """ValueError for a section's id that no address can hold, and for an id or figure name that stands twice."""
    sections = [section.id for section in page.sections]
    for name in sections:
        if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9-]*", name):
            raise ValueError(f"section id {name!r} must be letters, digits and hyphens, and begin with a letter")
    ids_of_template = ["main", "repeat", "tip", "theme", "copy"]
    names_by_kind = {
        "section id": [*ids_of_template, *sections],
        "figure name": [block.name for block in charts_of(page)],
    }
    for kind, names in names_by_kind.items():
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"{kind} {repeated[0]!r} stands twice on the page, or is one of its own: choose another")


def _view(block: Block) -> dict[str, Any]:
    """What the template takes of a block."""
    if isinstance(block, TextBlock):
        return {"kind": "text", "paragraphs": _paragraphs(block.text)}
    if isinstance(block, NoteBlock):
        return {"kind": "note", "text": block.text, "is_warning": block.is_warning}
    if isinstance(block, ChartBlock):
        return _chart_view(block)
    if isinstance(block, CodeBlock):
        return {"kind": "code", "text": block.text}
    if isinstance(block, FoldBlock):
        inner = [_view(inner_block) for inner_block in block.blocks]
        return {"kind": "fold", "title": block.title, "is_open": block.is_open, "blocks": inner}
    return _table_view(block)


def _chart_view(block: ChartBlock) -> dict[str, Any]:
    """What the template takes of a chart: its picture, its specification, and whether it is wide."""
    from markupsafe import Markup

    name = re.sub(r"[^A-Za-z0-9_-]", "-", block.name)
    # The page has the theme once: of a chart's config only what it sets itself.
    config = {key: value for key, value in block.spec["config"].items() if charts.CONFIG.get(key) != value}
    if block.is_dense:
        picture = base64.b64encode(chart_files.image_of(block.spec, "png")).decode("ascii")
        picture_markup = Markup('<img src="data:image/png;base64,{}" alt="">').format(picture)
    else:
        svg = _NEEDLESS.sub("", chart_files.image_of(block.spec, "svg").decode())
        svg = _COORDINATES.sub(_rounded, svg)
        picture_markup = Markup(_OWN_IDS.sub(rf"\g<1>{name}-\g<2>", svg))
    width = re.search(r' width="([\d.]+)"', picture_markup)  # none where it is one of pixels
    return {
        "kind": "chart",
        "id": name,
        "still": picture_markup,
        "spec": Markup(script_json({**block.spec, "config": config})),
        "caption": block.caption,
        "alt": block.alt,
        "is_wide": width is None or float(width[1]) > MOST_WIDTH_BESIDE,
    }


MOST_WIDTH_BESIDE = 400
"""Pixels of a picture that has room beside the answers of the first screen: a wider one stands below, as it is."""
_NEEDLESS = re.compile(
    r' (?:font-family="[^"]*"|role="graphics-\w+"|aria-roledescription="[^"]*"|aria-hidden="true")'
    r'| pointer-events="none"| opacity="1"'
    r'|<path class="(?:back|fore)ground"[^>]* d="(?:M0,0h0v0h0Z)?"[^>]*/>'
)
"""What a picture inside a page has from the page, or what nobody sees."""
_COORDINATES = re.compile(r' (?:d|transform)="[^"]*"')


def _rounded(attribute: re.Match[str]) -> str:
    """The coordinates of a path or a transformation, to a tenth of a pixel."""
    return re.sub(r"\d+\.\d\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), attribute[0])


_OWN_IDS = re.compile(r"(id=\"|url\(#|href=\"#)((?:clip|gradient|shape)\w*)")
"""Ids inside a picture of a chart: every picture counts them from 0, and a page has many."""


@cache
def chart_library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that needs no network, out of vl-convert."""
    return start_library().result().replace("</script", "<\\/script")


@cache
def start_library() -> "Future[str]":
    """Begin to bundle the library: it takes two seconds of a core, and a report has other work meanwhile."""
    import vl_convert

    return ThreadPoolExecutor(1).submit(vl_convert.javascript_bundle)  # type: ignore[call-arg]  # its stub is stricter than it is


def _table_view(block: TableBlock) -> dict[str, Any]:
    """What the template takes of a table; ValueError for a column that the table lacks."""
    lacking = [name for name in block.columns if name not in block.table]
    if lacking:
        raise ValueError(
            f"the table {block.caption!r} has no column {lacking[0]!r}; it has {', '.join(map(str, block.table))}"
        )
    texts = shown(block)
    columns = [
        {
            "label": column.label,
            "unit": column.unit,
            "how": column.how,
            "kind": _column_kind(row[i] for row in texts.rows),
        }
        for i, column in enumerate(columns_of(block).values())
    ]
    return {
        "kind": "table",
        "id": "",
        "caption": block.caption,
        "columns": columns,
        "rows": texts.rows,
        "num_shown": block.num_shown,
    }


def _column_kind(cells: Iterable[str]) -> str:
    """The kind of a column, which says how wide it may become: numbers and short texts stay on one line.

    ``short`` is of at most 20 letters, ``long`` of more than 32, ``text`` between them.
    """
    filled = [cell for cell in cells if cell]
    if filled and all(map(is_number, filled)):
        return "number"
    longest = max(map(len, filled), default=0)
    return "short" if longest <= 20 else "long" if longest > 32 else "text"


def _paragraphs(text: str) -> Sequence[str]:
    """The paragraphs of a text, which empty lines separate."""
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def _policy(*scripts: str) -> str:
    """A content security policy under which only the page's own scripts run, and nothing is ever loaded."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii") for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; script-src {allowed}"


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element, whatever texts it holds; NaN is null."""
    text = json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _finite(value: Any) -> Any:
    """A value with None for every number that JSON does not have, through all nested values."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
