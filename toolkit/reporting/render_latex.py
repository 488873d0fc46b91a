"""Tables for a paper: a booktabs fragment each, to be \\input, and a document that shows them all."""

import re
import textwrap
import unicodedata
from collections.abc import Hashable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from toolkit.naming import lookup, refuse_first
from toolkit.reporting.cells import ABSENT, Column, is_number, listing, number, p_value, text_of
from toolkit.reporting.page import Shown, heading
from toolkit.schema import COLUMNS
from toolkit.schema import columns_of as schema_of

PACKAGES = ("booktabs", "tabularx", "graphicx")
"""What a document that inputs one of the tables must load; all are part of every TeX distribution's base."""

MOST_LINES = 40
"""A table of more lines does not fit on a page: it is continued in another."""

NARROW, LEAST, GAP, LETTERS = 12, 15, 3, 84
"""Letters of a heading, of a column whose texts wrap, of the space between two, and of a line of small type."""
SMALLER = 1.5
"""Times as many letters are in a line of the smallest type that is read with ease."""
WRAPPED = r">{\raggedright\arraybackslash}X"
"""What tabularx calls a column of texts that shares what the others leave of the line."""

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
    return "".join(_character(character) for character in str(value))


def _character(character: str) -> str:
    """One character in LaTeX: itself, its command, its letter with an accent, or U+XXXX."""
    if character in _SYMBOLS:
        return _SYMBOLS[character]
    if " " <= character <= "~":
        return character
    parts = unicodedata.normalize("NFD", character)
    if len(parts) == 2 and parts[0].isascii() and parts[0].isalpha() and parts[1] in _ACCENTS:
        return f"{_ACCENTS[parts[1]]}{{{parts[0]}}}"
    return f"U+{ord(character):04X}"


def cell(text: str) -> str:
    """A text as a cell, escaped; a number in mathematics, so that its minus is one."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return escape(text)
    exponent = f" \\times 10^{{{int(match['exponent'])}}}" if match["exponent"] else ""
    return f"${match['sign']}{match['digits'].replace(',', '{,}')}{exponent}$"


def booktabs(shown: Shown, label: str) -> str:
    """A ``table`` with a ``tabular``; several of them where it is long.

    Texts of a long line wrap, then the type is smaller, and what does not fit even so shrinks to the width of the text.
    """
    columns = [[row[place] for row in shown.rows] for place in range(len(shown.header))]
    longest_cells = [max(map(len, texts), default=0) for texts in columns]
    heads = [
        textwrap.wrap(name, max(width, NARROW), break_long_words=False) or [""]
        for name, width in zip(shown.header, longest_cells, strict=True)
    ]
    letters_by_column = [max(width, *map(len, head)) + GAP for width, head in zip(longest_cells, heads, strict=True)]
    kinds = ["r" if _is_numeric(shown, place) else "l" for place in range(len(columns))]
    if sum(letters_by_column) > LETTERS:
        kinds = [
            WRAPPED if kind == "l" and letters_needed > LEAST else kind
            for letters_needed, kind in zip(letters_by_column, kinds, strict=True)
        ]
    letters = sum(
        LEAST if kind == WRAPPED else letters_needed
        for letters_needed, kind in zip(letters_by_column, kinds, strict=True)
    )
    size = r"\small" if letters <= LETTERS else r"\scriptsize\setlength{\tabcolsep}{4pt}"
    begin, end = r"\begin{tabular}{%s}", r"\end{tabular}"
    if letters > SMALLER * LETTERS:
        kinds = ["l" if kind == WRAPPED else kind for kind in kinds]
        begin, end = r"\resizebox{\linewidth}{!}{%%" + "\n" + begin, end + "}"
    elif WRAPPED in kinds:
        begin, end = r"\begin{tabularx}{\linewidth}{%s}", r"\end{tabularx}"
    body_lines = [" & ".join(map(_in_column, row, kinds)) + r" \\" for row in shown.rows]
    head = " & ".join(map(_stacked, heads, kinds)) + r" \\"
    tables = [
        [
            r"\begin{table}",
            rf"\centering{size}",
            rf"\caption{{{escape(shown.caption)}{' (continued)' if start else ''}}}"
            + ("" if start else rf"\label{{tab:{label}}}"),
            begin % "".join(kinds),
            *(r"\toprule", head, r"\midrule", *body_lines[start : start + MOST_LINES], r"\bottomrule"),
            *(end, r"\end{table}"),
        ]
        for start in range(0, max(len(body_lines), 1), MOST_LINES)
    ]
    return "\n".join(line for table in tables for line in table) + "\n"


def _in_column(text: str, kind: str) -> str:
    """A cell; where its column wraps, names of files and settings may break too."""
    return re.sub(r"/|\\_", r"\g<0>\\allowbreak{}", cell(text)) if kind == WRAPPED else cell(text)


def _stacked(lines: Sequence[str], kind: str) -> str:
    """A heading, on lines of its own where it is wider than what stands below it."""
    is_stacked = len(lines) > 1 and kind != WRAPPED
    text = (r" \\ " if is_stacked else " ").join(map(escape, lines))
    return rf"\shortstack[{kind}]{{{text}}}" if is_stacked else text


def _is_numeric(table: Shown, place: int) -> bool:
    """Whether every filled cell of a column is a number, so that it stands to the right."""
    cells = [row[place] for row in table.rows if row[place]]
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


def export_table(
    table: pd.DataFrame | pd.Series,
    *,
    columns: Sequence[Hashable] | None = None,
    caption: str = "",
    label: str = "table",
) -> str:
    """A table in LaTeX, for a paper.

    Parameters
    ----------
    table
        Any table: of the toolkit, pivoted, with several levels of columns, or a Series. Its index stands in front where
        it has a name or is of texts. A column ``NAME_sd`` stands behind ± in the column NAME, where both are shown.
        What is undefined is —.
    columns
        Those to show, in this order, by their names in the table or in its index. None: all. Model, task and number of
        seeds then go into the caption where all lines have the same, and the table of :func:`toolkit.drift_table` has
        one line per condition.
    caption, label
        Above the table; LaTeX's label is ``tab:<label>`` and its packages are booktabs, tabularx and graphicx.

    Raises
    ------
    ValueError
        No table, one without lines, no column, or one that it has not.

    Examples
    --------
    >>> text = toolkit.export_table(toolkit.drift_table(runs), caption="Embedding drift", label="drift")
    >>> "toprule" in text
    True
    """
    if not isinstance(table, pd.DataFrame | pd.Series):
        raise ValueError(f"expected a DataFrame or a Series; got {type(table).__name__}: pass pandas.DataFrame of it")
    faults = {
        "the table has no lines: there is nothing to export": table.empty,
        f"a LaTeX label is of letters, digits, spaces and _:.+/-, not {label!r}": not re.fullmatch(
            r"[\w:.+/ -]*", label
        ),
    }
    refuse_first(faults)
    table = pd.DataFrame(table)
    is_drift = columns is None and set(schema_of("drift_table")) <= set(table)
    table = drift_by_condition(table) if is_drift else table
    if any(name is not None for name in table.index.names) or table.index.dtype.kind not in "iu":
        table = table.reset_index(names=[name or "" for name in table.index.names], allow_duplicates=True)
    keys = list(table)
    spreads = {place: keys.index(_spread(key)) for place, key in enumerate(keys) if _spread(key) in keys}
    if columns is None:
        shared_columns, caption_end = shared(
            table, [name for name in SHARED if name in keys and set(keys) - set(SHARED)]
        )
        places = [i for i, key in enumerate(keys) if key not in shared_columns]
    else:
        place_by_name, caption_end = {_name(key): keys.index(key) for key in keys}, ""
        wanted = [columns] if isinstance(columns, str) else columns
        places = [lookup(place_by_name, _name(key), "column") for key in wanted]
        refuse_first({"columns names none: pass those to show, or None for all": not places})
    spreads = {place: spread for place, spread in spreads.items() if place in places and spread in places}
    places = [place for place in places if place not in spreads.values()]
    constant, header = _headings([keys[place] for place in places])
    index_names = " by ".join(str(name) for name in table.columns.names if name is not None)
    unit = "".join(
        f", {text}" for text in (*constant, f"by {index_names}" * bool(index_names), PERCENT * is_drift) if text
    )
    parts = [
        _cell_texts(table.iloc[:, place], table.iloc[:, spreads[place]] if place in spreads else None)
        for place in places
    ]
    return booktabs(
        Shown(tuple(header), tuple(zip(*parts, strict=True)), f"{caption}{unit}{caption_end}".strip(", ")), label
    )


PERCENT = "in % of the norm before (0: not one bit changed)"


def drift_by_condition(table: pd.DataFrame) -> pd.DataFrame:
    """The table of :func:`toolkit.drift_table` with a line per condition; fully frozen conditions share a line.

    Groups of one model and task stay apart: the second's task has " (2)" after it, as its title has.
    """
    lead = ["model", "task", "num_seeds"]
    line_keys, in_order = [*lead[:2], "condition", "parameter"], table.sort_index() if table.index.is_unique else table
    repetition = in_order.groupby(line_keys, sort=False).cumcount()
    # From the second group's first repeated condition on, every line is its: also a condition that it alone has.
    group = repetition.groupby([in_order[name] for name in lead[:2]]).cummax()
    is_clear = not in_order.assign(group=group).duplicated([*line_keys, "group"]).any()
    table = table.assign(
        task=table["task"]
        + (group if is_clear else repetition).map(lambda number: f" ({number + 1})" if number else "")
    )
    is_still = table.groupby([*lead, "condition"], sort=False)["is_frozen"].transform("all")
    still = table[is_still].groupby(lead)["condition"].agg(lambda conditions: listing(list(conditions.unique())))
    names = [
        still[tuple(key)] if is_one else condition
        for is_one, condition, *key in zip(is_still, *(table[name] for name in ("condition", *lead)), strict=True)
    ]
    keys = ["model", "task", "condition", "num_seeds"]
    drift = table.assign(condition=names)[lambda drift: ~(is_still & drift.duplicated([*keys, "parameter"]))]
    wide = drift.pivot(index=keys, columns="parameter", values=["drift_percent", "drift_percent_sd"])
    wide = wide.loc[pd.MultiIndex.from_frame(drift[keys].drop_duplicates())]  # in the order in which they came
    columns = {
        name.replace(".", " ") + end: wide[f"drift_percent{end}", name]
        for end in ("", "_sd")
        for name in dict.fromkeys(drift["parameter"])
    }
    return pd.DataFrame(columns).reset_index()


def _spread(key: Any) -> Any:
    """The name that the column of a standard deviation would have."""
    return (_spread(key[0]), *key[1:]) if isinstance(key, tuple) else f"{key}_sd"


def _name(key: Any) -> str:
    """The name of a column as users write it: several levels in one text, 0.0 as 0."""
    if isinstance(key, tuple):
        return " ".join(filter(None, map(_name, key)))
    return f"{key:g}" if isinstance(key, float) else str(key)


def _headings(keys: Sequence[Any]) -> tuple[list[str], list[str]]:
    """The names that all columns of several levels have in common, and the heading of each without these."""
    levels = [[_name(part) for part in key] if isinstance(key, tuple) else [_name(key)] for key in keys]
    several = [names_of_key for names_of_key in levels if len(names_of_key) > 1 and all(names_of_key)]
    common = {
        (place, names_of_key[place])
        for names_of_key in several
        for place in range(len(names_of_key))
        if len({other_names[place] for other_names in several}) == 1
    }
    common = common if len(several) > 1 else set()

    def joined(parts: Iterable[str]) -> str:
        columns = [heading(part) for part in parts if part]
        return ", ".join(f"{column.label} ({column.unit})" if column.unit else column.label for column in columns)

    remaining = [
        [part for place, part in enumerate(names_of_key) if (place, part) not in common or names_of_key not in several]
        for names_of_key in levels
    ]
    return [joined([part]) for _, part in sorted(common)], list(map(joined, remaining))


def _cell_texts(column: pd.Series, spread: pd.Series | None) -> list[str]:
    """The cells of a column, each with its standard deviation where that is known and the value is not exactly 0."""
    key = column.name[0] if isinstance(column.name, tuple) else column.name
    look = heading(_name(key))
    return [
        _cell(value, look)
        + (f" ± {number(sd, 2)}" if isinstance(sd, Real) and sd == sd and value and value == value else "")
        for value, sd in zip(column, [None] * len(column) if spread is None else spread, strict=True)
    ]


def _cell(value: Any, column: Column) -> str:
    """A value as a cell: a number as its column says, — for what is missing, else its text."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ABSENT
    is_number = isinstance(value, Real | np.bool_)
    return (p_value if column.is_p else text_of)(value, column.digits) if is_number else str(value)


def shared(table: pd.DataFrame, names: Iterable[str]) -> tuple[list[str], str]:
    """The columns in which all of several lines have the same value, and what a caption says of them instead."""
    constant = [name for name in names if len(table) > 1 and table[name].nunique(dropna=False) == 1]
    facts = ", ".join(f"{COLUMNS[name].label}: {text_of(table[name].iloc[0])}" for name in constant)
    return constant, f" ({facts})" if facts else ""


SHARED = ("model", "task", "num_seeds")
