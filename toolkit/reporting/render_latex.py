"""Tables in, LaTeX out: one booktabs fragment each, to be \\input in a paper, and a document that shows them all."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from toolkit.reporting.cells import is_number
from toolkit.reporting.page import Shown

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


def table(shown: Shown, label: str) -> str:
    """A ``table`` with a ``tabular`` that shrinks to the width of the text; several of them where it is long."""
    header = " & ".join(escape(name) for name in shown.header) + r" \\"
    lines = [" & ".join(cell(text) for text in row) + r" \\" for row in shown.rows]
    columns = "".join("r" if _is_numeric(shown, i) else "l" for i in range(len(shown.header)))
    parts = []
    for start in range(0, max(len(lines), 1), MOST_LINES):
        name = rf"\label{{tab:{label}}}" if start == 0 else ""
        caption = escape(shown.caption) + (" (continued)" if start else "")
        parts += _table(columns, header, lines[start : start + MOST_LINES], rf"\caption{{{caption}}}{name}")
    return "\n".join(parts) + "\n"


def _is_numeric(shown: Shown, place: int) -> bool:
    cells = [row[place] for row in shown.rows if row[place]]
    return bool(cells) and all(is_number(text) for text in cells)


def _table(columns: str, header: str, lines: Sequence[str], caption: str) -> list[str]:
    return [
        r"\begin{table}",
        r"\centering\small",
        caption,
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        header,
        r"\midrule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]


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
