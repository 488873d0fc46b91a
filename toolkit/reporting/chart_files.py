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
        # A pixel is .75 points, and what is drawn keeps its coordinates: the first two sides are those of the picture.
        in_points = re.sub(
            r'(width|height)="([0-9.]+)"', lambda side: f'{side[1]}="{0.75 * float(side[2]):g}"', svg, count=2
        )
        return in_order(bytes(vl_convert.svg_to_pdf(in_points)))
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
    # A definition costs bytes too: it pays where hundreds of marks share it.
    names = {shape: f"shape{index}" for index, (shape, count) in enumerate(counts.items()) if count > 200}
    if not names:
        return svg

    def reference_to(mark: re.Match[str]) -> str:
        x, y, shape = mark.groups()
        if shape not in names:
            return mark[0]
        return f'<use href="#{names[shape]}" x="{float(x):.1f}" y="{float(y):.1f}"/>'

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
    ending = re.search(rb"startxref\s+(\d+)\s+%%EOF\s*$", pdf)
    if ending is None or not pdf[int(ending[1]) :].startswith(b"xref"):
        return pdf
    table_offset = int(ending[1])
    table, _, trailer = pdf[table_offset : ending.start()].partition(b"trailer")
    # A line of the table, of ten digits and a kind, says where the object of its number begins.
    lines = enumerate(re.findall(rb"^\d{10} \d{5} [nf]", table, re.MULTILINE))
    offsets = {number: int(line[:10]) for number, line in lines if line.endswith(b"n")}
    # An object ends where the next one in the file begins.
    in_file = sorted(offsets.values())
    end_of = dict(zip(in_file, [*in_file[1:], table_offset], strict=True))
    bodies = {number: pdf[offset : end_of[offset]].partition(b"obj")[2] for number, offset in offsets.items()}
    objects = {number: _sorted_resources(body) for number, body in bodies.items()}
    new_numbers = _new_numbers(trailer, {number: dictionary for number, (dictionary, _) in objects.items()})

    def renamed(text: bytes) -> bytes:
        return _REFERENCE.sub(lambda reference: b"%d 0 R" % new_numbers[int(reference[1])], text)

    written = pdf[: in_file[0]]
    rows = [b"0000000000 65535 f\r\n"]  # of object 0, which every table begins with
    for number, new_number in new_numbers.items():
        dictionary, stream = objects[number]
        rows.append(b"%010d 00000 n\r\n" % len(written))
        written += b"%d 0 obj" % new_number + renamed(dictionary) + stream
    num_rows = b"%d" % len(rows)
    trailer = renamed(re.sub(rb"/Size \d+", b"/Size " + num_rows, trailer))
    end = b"trailer%sstartxref\n%d\n%%%%EOF" % (trailer, len(written))
    return written + b"xref\n0 " + num_rows + b"\n" + b"".join(rows) + end


def _new_numbers(trailer: bytes, dictionaries: Mapping[int, bytes]) -> dict[int, int]:
    """Number of each object to the new one: from the trailer on, depth first, so that equal pages have equal ones."""
    new_numbers: dict[int, int] = {}
    waiting = [int(number) for number in _REFERENCE.findall(trailer)][::-1]  # the next one last
    while waiting:
        number = waiting.pop()
        if number not in new_numbers:
            new_numbers[number] = len(new_numbers) + 1
            waiting += [int(reference) for reference in _REFERENCE.findall(dictionaries[number])][::-1]
    return new_numbers


def _sorted_resources(body: bytes) -> tuple[bytes, bytes]:
    """The dictionary of an object, its resources sorted by name, and its stream, which refers to them by name."""
    dictionary, keyword, stream = body.partition(b"stream\n")
    ordered = _RESOURCES.sub(lambda match: b"".join(sorted(match[0].splitlines(keepends=True))), dictionary)
    return ordered, keyword + stream


def write_charts(folder: Path, charts: Mapping[str, Chart]) -> None:
    """Write every chart as ``<name>.<kind>``."""
    folder.mkdir(parents=True, exist_ok=True)
    specs = {name: chart if isinstance(chart, dict) else spec_of(chart) for name, chart in charts.items()}

    def write(name: str) -> None:
        for kind in KINDS:
            files.write_bytes(folder / f"{name}.{kind}", image_of(specs[name], kind))

    with ThreadPoolExecutor(2) as pool:  # vl-convert lays one chart out while another one becomes pixels
        list(pool.map(write, specs))
