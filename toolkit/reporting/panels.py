"""How figures that are still drawn with matplotlib look: colours, lines, names and logarithmic axes."""

import textwrap
from typing import Any

import pandas as pd

# Okabe & Ito 2008, the colours that stay apart for colour-blind readers; their yellow is too pale for lines on white.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))

REFERENCE: dict[str, Any] = {"color": "0.45", "linewidth": 0.9, "linestyle": (0, (1, 1.5))}
"""How a line that is no run's is drawn."""


def line_style(index: int) -> dict[str, Any]:
    style = {"color": COLOURS[index % 7], "marker": MARKERS[index % 8], "linestyle": LINES[index % 6]}
    return {**style, "linewidth": 1.2, "markersize": 4, "markerfacecolor": "white", "markeredgewidth": 1}


def wrap(text: str, width: int) -> str:
    """Text in lines of at most ``width`` letters, none of which matplotlib takes for a formula."""
    if len(text) > width and " (" in text:  # what is in brackets stays together
        before, after = text.split(" (", 1)
        return plain("\n".join([textwrap.fill(before, width), textwrap.fill(f"({after}", width)]))
    return plain(textwrap.fill(text, width))


def plain(text: str) -> str:
    """Text that matplotlib does not take for a formula."""
    return text.replace("$", r"\$")


def set_log(axis: Any, values: pd.Series) -> None:
    """A logarithmic axis that holds every value above 0, the same in all panels."""
    positive = values[values > 0]
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    low, high = (positive.min() / 1.6, positive.max() * 1.6) if len(positive) else (0.1, 10)
    axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})
