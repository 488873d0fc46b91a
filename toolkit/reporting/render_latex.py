"""Tables for a paper: a booktabs fragment each, to be \\input, and a document that shows them all."""

import re
import unicodedata
from collections.abc import Iterable, Mapping

import pandas as pd

from toolkit.reporting.cells import ABSENT, is_number, number, text_of
from toolkit.reporting.page import Shown, heading
from toolkit.schema import COLUMNS

PACKAGES = ("booktabs", "graphicx")
"""What a document that inputs one of the tables must load; all are part of every TeX distribution's base."""

MOST_LINES = 40
"""A table of more lines does not fit on a page: it is continued in another."""

_SYMBOLS: Mapping[str, str] = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "[": r"\lbrack{}",  # after \\ or a rule it would begin an optional argument, as a star would
    "*": r"\textasteriskcentered{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "\u00d7": r"$\times$",
    "→": r"$\rightarrow$",
    "\u2212": r"$-$",
    "Δ": r"$\Delta$",
    "\u03c1": r"$\rho$",
    "‖": r"$\Vert$",
    "²": r"$^2$",
    "⁰": r"$^0$",
    "°": r"$^\circ$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "\u2013": "--",
    "—": "---",
    "…": r"\ldots{}",
    "\u2019": "'",
    "\u00a0": "~",
}
_ACCENTS: Mapping[str, str] = {
    "\u0300": r"\`",
    "\u0301": r"\'",
    "\u0302": r"\^",
    "\u0303": r"\~",
    "\u0308": r"\"",
    "\u030c": r"\v",
    "\u0327": r"\c",
}
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<digits>\d[\d,]*\.?\d*)(?:e(?P<exponent>[+-]\d+))?")


def escape(value: object) -> str:
    """Text that LaTeX prints and never obeys; a character that no base font of pdflatex has becomes U+XXXX."""
    return "".join(_shown(character) for character in str(value))


def _shown(character: str) -> str:
    if character in _SYMBOLS:
        return _SYMBOLS[character]
    if " " <= character <= "~":
        return character
    parts = unicodedata.normalize("NFD", character)
    if len(parts) == 2 and parts[0].isascii() and parts[0].isalpha() and parts[1] in _ACCENTS:
        return f"{_ACCENTS[parts[1]]}{{{parts[0]}}}"
    return f"U+{ord(character):04X}"


def cell(text: str) -> str:
    """A cell as it is shown elsewhere, escaped; a number in mathematics, so that its minus is one."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return escape(text)
    exponent = f" \\times 10^{{{int(match['exponent'])}}}" if match["exponent"] else ""
    return f"${match['sign']}{match['digits'].replace(',', '{,}')}{exponent}$"


def booktabs(shown: Shown, label: str) -> str:
    """A ``table`` with a ``tabular`` that shrinks to the width of the text; several of them where it is long."""
    rows = [[cell(text) for text in row] for row in shown.rows]
    columns = "".join("r" if _is_numeric(shown, i) else "l" for i in range(len(shown.header)))
    parts = []
    for start in range(0, max(len(rows), 1), MOST_LINES):
        own = pd.DataFrame(rows[start : start + MOST_LINES], columns=range(len(shown.header)), dtype=object)
        names = [escape(name).replace("{", "{{").replace("}", "}}") for name in shown.header]  # pandas formats them
        tabular = own.to_latex(index=False, header=names, escape=False, column_format=columns)
        named = "" if start else rf"\label{{tab:{label}}}"
        caption = escape(shown.caption) + (" (continued)" if start else "")
        parts += [
            r"\begin{table}",
            r"\centering\small",
            rf"\caption{{{caption}}}{named}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            f"{tabular.rstrip()}}}",
            r"\end{table}",
        ]
    return "\n".join(parts) + "\n"


def _is_numeric(shown: Shown, place: int) -> bool:
    cells = [row[place] for row in shown.rows if row[place]]
    return bool(cells) and all(is_number(text) for text in cells)


def document(names: Iterable[str], title: str) -> str:
    """A document that inputs every ``<name>.tex`` beside it: ``pdflatex tables.tex`` shows how they look."""
    inputs = [rf"\input{{{name}}}" + "\n" + r"\clearpage" for name in names]
    lines = [
        r"\documentclass[10pt]{article}",
        r"\usepackage[margin=2cm]{geometry}",
        *(rf"\usepackage{{{package}}}" for package in PACKAGES),
        r"\begin{document}",
        rf"\section*{{{escape(title)}}}",
        *inputs,
        r"\end{document}",
    ]
    return "\n".join(lines) + "\n"


def export_table(table: pd.DataFrame, *, caption: str = "", label: str = "table") -> str:
    """A table of the toolkit in LaTeX, for a paper.

    Parameters
    ----------
    table
        Any table. A column ``NAME_sd`` stands behind ± in the column NAME; model, task and number of seeds go into the
        caption where all lines have the same. What is undefined is —.
    caption, label
        Above the table; LaTeX's label is ``tab:<label>`` and its packages are booktabs and graphicx.

    Raises
    ------
    ValueError
        A table without lines.

    Examples
    --------
    >>> text = toolkit.export_table(toolkit.drift_table(runs), caption="Embedding drift", label="drift")
    >>> "toprule" in text
    True
    """
    if table.empty:
        raise ValueError("the table has no lines: there is nothing to export")
    same, said = shared(table, [name for name in SHARED if name in table])
    names = [str(n) for n in table if n not in same and not (str(n).endswith("_sd") and str(n)[:-3] in table)]
    columns = {name: heading(name) for name in names}
    header = [f"{column.label} ({column.unit})" if column.unit else column.label for column in columns.values()]
    parts = [_texts(table, name, column.digits) for name, column in columns.items()]
    said = f"{caption}{said}".strip()
    return booktabs(Shown(tuple(header), tuple(zip(*parts, strict=True)), said), label)


def shared(table: pd.DataFrame, names: Iterable[str]) -> tuple[list[str], str]:
    """Those columns in which all of several lines have the same, and what a caption says of them instead."""
    same = [name for name in names if len(table) > 1 and table[name].nunique(dropna=False) == 1]
    said = ", ".join(f"{COLUMNS[name].label}: {text_of(table[name].iloc[0])}" for name in same)
    return same, f" ({said})" if said else ""


def _texts(table: pd.DataFrame, name: str, digits: int) -> list[str]:
    """The cells of a column, each with its standard deviation where that is known and the value is not exactly 0."""
    spread = table.get(f"{name}_sd", pd.Series(float("nan"), index=table.index))
    return [
        ABSENT
        if pd.isna(value)
        else text_of(value, digits) + (f" ± {number(sd, 2)}" if value != 0 and not pd.isna(sd) else "")
        for value, sd in zip(table[name], spread, strict=True)
    ]


SHARED = ("model", "task", "num_seeds")
