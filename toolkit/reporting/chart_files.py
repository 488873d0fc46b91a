"""The files that a chart becomes: PNG, SVG and PDF of one specification, offline, equal for equal."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from toolkit.reporting.charts import Chart, spec_of
from toolkit.snapshots import files

KINDS = ("png", "svg", "pdf")
SCALE = 2.0
"""Pixels of a PNG file for one of the chart."""


def image_of(chart: Chart, kind: str) -> bytes:
    """The bytes of a chart or of its specification as one of KINDS: offline, without a browser, equal for equal."""
    import vl_convert

    svg = _svg_of(json.dumps(_without_inputs(chart if isinstance(chart, dict) else spec_of(chart))))
    if kind == "png":
        return bytes(vl_convert.svg_to_png(svg, scale=SCALE))
    if kind == "pdf":
        # A pixel is .75 points, and what is drawn keeps its coordinates.
        smaller = re.sub(
            r'(width|height)="([0-9.]+)"', lambda side: f'{side[1]}="{0.75 * float(side[2]):g}"', svg, count=2
        )
        return in_order(bytes(vl_convert.svg_to_pdf(smaller)))
    return svg.encode()


@lru_cache(maxsize=64)
def _svg_of(spec: str) -> str:
    """The SVG of a specification; kept, as laying a chart out takes most of the time and every kind starts from it."""
    import vl_convert

    return _with_shared_shapes(str(vl_convert.vegalite_to_svg(spec)))


_MARK = re.compile(
    r'<path(?: aria-hidden="true")? transform="translate\(([-\d.]+),([-\d.]+)\)" (d="[^"]*"(?: [-\w]+="[^"]*")*)/>'
)


def _with_shared_shapes(svg: str) -> str:
    """The SVG with each shape that stands at hundreds of places written once: a fifth of the bytes of a scatter."""
    counts = Counter(match[3] for match in _MARK.finditer(svg))
    names = {shape: f"shape{index}" for index, (shape, count) in enumerate(counts.items()) if count > 200}
    if not names:
        return svg

    def reference_to(match: re.Match[str]) -> str:
        if match[3] not in names:
            return match[0]
        return f'<use href="#{names[match[3]]}" x="{float(match[1]):.1f}" y="{float(match[2]):.1f}"/>'

    shapes = "".join(f'<path id="{name}" {shape}/>' for shape, name in names.items())
    start = svg.index(">") + 1
    return f"{svg[:start]}<defs>{shapes}</defs>{_MARK.sub(reference_to, svg[start:])}"


def _without_inputs(spec: dict[str, Any]) -> dict[str, Any]:
    """The specification without lists and sliders, which nobody can use on paper."""
    return spec | {
        "params": [
            {key: value for key, value in param.items() if key != "bind" or value == "legend"}
            for param in spec.get("params", [])
        ]
    }


_REFERENCE = re.compile(rb"(\d+) 0 R")
_RESOURCES = re.compile(rb"(?:^ +/[A-Za-z]+\d+ \d+ 0 R\n){2,}", re.MULTILINE)


def in_order(pdf: bytes) -> bytes:
    """The same file with its objects numbered in the order in which the page reaches them.

    Files of more than plain objects behind a plain table of their places (as other writers make them) stay as they are.
    """
    start = re.search(rb"startxref\s+(\d+)\s+%%EOF\s*$", pdf)
    if start is None or not pdf[int(start[1]) :].startswith(b"xref"):
        return pdf
    table, _, trailer = pdf[int(start[1]) : start.start()].partition(b"trailer")
    places = {
        number: int(line[:10])
        for number, line in enumerate(re.findall(rb"^\d{10} \d{5} [nf]", table, re.MULTILINE))
        if line.endswith(b"n")
    }
    ends = dict(zip(sorted(places.values()), [*sorted(places.values())[1:], int(start[1])], strict=True))
    bodies = {number: pdf[place : ends[place]].partition(b"obj")[2] for number, place in places.items()}
    parts = {number: _sorted_resources(body) for number, body in bodies.items()}
    # From the trailer on, depth first: equal pages then have equal numbers.
    order: dict[int, int] = {}
    waiting = [int(number) for number in _REFERENCE.findall(trailer)][::-1]
    while waiting:
        number = waiting.pop()
        if number not in order:
            order[number] = len(order) + 1
            waiting += [int(reference) for reference in _REFERENCE.findall(parts[number][0])][::-1]

    def renamed(text: bytes) -> bytes:
        return _REFERENCE.sub(lambda reference: b"%d 0 R" % order[int(reference[1])], text)

    written = pdf[: min(places.values())]
    rows = [b"0000000000 65535 f\r\n"]
    for number, new_number in order.items():
        rows.append(b"%010d 00000 n\r\n" % len(written))
        written += b"%d 0 obj" % new_number + renamed(parts[number][0]) + parts[number][1]
    count = b"%d" % len(rows)
    trailer = renamed(re.sub(rb"/Size \d+", b"/Size " + count, trailer))
    return b"%sxref\n0 %s\n%strailer%sstartxref\n%d\n%%%%EOF" % (written, count, b"".join(rows), trailer, len(written))


def _sorted_resources(body: bytes) -> tuple[bytes, bytes]:
    """The dictionary of an object, its resources sorted by name, and its stream, which refers to them by name."""
    head, stream, rest = body.partition(b"stream\n")
    return _RESOURCES.sub(
        lambda resources: b"".join(sorted(resources[0].splitlines(keepends=True))), head
    ), stream + rest


def write_charts(folder: Path, charts: Mapping[str, Chart]) -> None:
    """Write every chart as ``<name>.<kind>``."""
    folder.mkdir(parents=True, exist_ok=True)
    specs = {name: chart if isinstance(chart, dict) else spec_of(chart) for name, chart in charts.items()}

    def write(name: str) -> None:
        for kind in KINDS:
            files.write_bytes(folder / f"{name}.{kind}", image_of(specs[name], kind))

    with ThreadPoolExecutor(2) as pool:  # vl-convert lays one chart out while another one becomes pixels
        list(pool.map(write, specs))
