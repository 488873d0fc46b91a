"""Functions that draw in, the bytes of their images out: one style for all figures, and equal bytes for equal input."""

import io
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.snapshots import files

STYLE: Mapping[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "toolkit",
    "pdf.fonttype": 42,  # text stays text: publishers refuse Type 3 fonts
}
WIDTH = 7.2
"""Inches: the text width of a paper in one column."""
COLUMN = 3.5
"""Inches: one column of a paper in two columns."""

METADATA: Mapping[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}
"""Format to what would make equal figures differ in their bytes."""

KINDS = tuple(METADATA)
Images = dict[str, dict[str, bytes]]
"""Name of a figure to format to bytes."""


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of the toolkit, whatever matplotlibrc the user has; the backend stays untouched."""
    import matplotlib

    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"}
    with matplotlib.rc_context(defaults | dict(STYLE)):
        yield


def image_of(figure: Any, kind: str) -> bytes:
    """The bytes of a matplotlib figure in one of KINDS."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=200, metadata=METADATA[kind])
    figure.set_layout_engine("none")  # what the first kind was laid out to holds for the next
    return buffer.getvalue()


def render(drawings: Mapping[str, Callable[[], Any]], kinds: Collection[str] = KINDS) -> Images:
    """Draw each figure once and save it in each format; one that is None does not apply and is left out."""
    with styled():
        drawn = {name: make() for name, make in drawings.items()}
        return {name: {kind: image_of(figure, kind) for kind in kinds} for name, figure in drawn.items() if figure}


def write_images(folder: Path, images: Images, prefix: str = "") -> None:
    """Write every image as ``<prefix><name>.<format>``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, kinds in images.items():
        for kind, image in kinds.items():
            files.write_bytes(folder / f"{prefix}{name}.{kind}", image)
