"""PDF files in one order: vl-convert numbers the parts of a file as a hash table has them, otherwise in each call."""

import re

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
    order: dict[int, int] = {}
    waiting = [int(number) for number in _REFERENCE.findall(trailer)][::-1]
    while waiting:
        number = waiting.pop()
        if number not in order:
            order[number] = len(order) + 1
            waiting += [int(found) for found in _REFERENCE.findall(parts[number][0])][::-1]

    def renamed(text: bytes) -> bytes:
        return _REFERENCE.sub(lambda found: b"%d 0 R" % order[int(found[1])], text)

    made = pdf[: min(places.values())]
    rows = [b"0000000000 65535 f\r\n"]
    for number, new in order.items():
        rows.append(b"%010d 00000 n\r\n" % len(made))
        made += b"%d 0 obj" % new + renamed(parts[number][0]) + parts[number][1]
    count = b"%d" % len(rows)
    trailer = renamed(re.sub(rb"/Size \d+", b"/Size " + count, trailer))
    return b"%sxref\n0 %s\n%strailer%sstartxref\n%d\n%%%%EOF" % (made, count, b"".join(rows), trailer, len(made))


def _sorted_resources(body: bytes) -> tuple[bytes, bytes]:
    """What an object says of itself, its resources by their names, and its stream, which refers to them by these."""
    head, stream, rest = body.partition(b"stream\n")
    return _RESOURCES.sub(lambda found: b"".join(sorted(found[0].splitlines(keepends=True))), head), stream + rest
