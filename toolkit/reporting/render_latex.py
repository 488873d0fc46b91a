"""Tables for a paper: a booktabs fragment each, to be \\input, and a document that shows them all."""

import re
import textwrap
import unicodedata
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from toolkit.comparison.compare import compare_groups
from toolkit.comparison.conditions import arrange
from toolkit.comparison.parameter_noise import drift_table_of_groups
from toolkit.comparison.summaries import summarise_scores
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.naming import lookup, refuse_first
from toolkit.reporting.cells import ABSENT, Column, interval, is_number, number, p_value, points, text_of
from toolkit.reporting.page import Shown, heading
from toolkit.reporting.verdict_words import OPEN_VERDICTS
from toolkit.schema import COLUMNS
from toolkit.schema import columns_of as schema_of
from toolkit.snapshots.output_folder import open_runs
from toolkit.snapshots.store import Run

PACKAGES = ("booktabs", "tabularx", "graphicx")
"""What a document that inputs one of the tables must load; all are part of every TeX distribution's base."""

MOST_LINES = 40
"""A table of more lines does not fit on a page: it is continued in another."""

NARROWEST_HEADING = 12
"""Letters that a heading keeps on one line, however narrow its column."""
LEAST_WRAPPED_LETTERS = 15
"""Letters of a column whose texts wrap: what it is counted as, and below which it does not wrap."""
COLUMN_GAP = 3
"""Letters' room between two columns."""
Width = Literal["text", "column", "both columns"]
WIDTHS: Mapping[str, tuple[int, str]] = {
    "text": (84, "table"),
    "column": (42, "table"),
    "both columns": (84, "table*"),
}
"""What a table is laid out for, to the letters of small type in its line and the environment that it stands in."""
SMALLER_TYPE_GAIN = 1.5
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
    letter, *accents = list(unicodedata.normalize("NFD", character))
    if len(accents) == 1 and letter.isascii() and letter.isalpha() and accents[0] in _ACCENTS:
        return f"{_ACCENTS[accents[0]]}{{{letter}}}"
    return f"U+{ord(character):04X}"


def prose(text: str) -> str:
    """A text, escaped, with its numbers that have an exponent in mathematics."""
    return re.sub(r"(?<![\w.])\d[\d.]*e[+-]\d+", lambda match: cell(match[0]), escape(text))


def cell(text: str) -> str:
    """A text as a cell, escaped; a number in mathematics, so that its minus is one."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return prose(re.sub(r"(?<![\w.-])-(?=\d)", "\u2212", text))
    exponent = f" \\times 10^{{{int(match['exponent'])}}}" if match["exponent"] else ""
    return f"${match['sign']}{match['digits'].replace(',', '{,}')}{exponent}$"


def booktabs(shown: Shown, label: str, width: Width = "text") -> str:
    """A ``table`` with a ``tabular``; several of them where it is long.

    Texts of a long line wrap, then the type is smaller, and what does not fit even so shrinks to the width of the text.
    """
    columns = [[row[column] for row in shown.rows] for column in range(len(shown.header))]
    longest_cells = [max(map(len, texts), default=0) for texts in columns]
    headings = [
        textwrap.wrap(name, max(longest, NARROWEST_HEADING), break_long_words=False) or [""]
        for name, longest in zip(shown.header, longest_cells, strict=True)
    ]
    widths = [
        max(longest, *map(len, heading_lines)) + COLUMN_GAP
        for longest, heading_lines in zip(longest_cells, headings, strict=True)
    ]
    letters_per_line, environment = WIDTHS[width]
    column_types = ["r" if _is_numeric(texts) else "l" for texts in columns]
    column_types, size, begin, end = _layout(widths, column_types, letters_per_line)
    heading_line = " & ".join(map(_stacked, headings, column_types)) + r" \\"
    body_lines = [" & ".join(map(_in_column, row, column_types)) + r" \\" for row in shown.rows]
    lines = []
    for first_line in range(0, max(len(body_lines), 1), MOST_LINES):
        is_continued = first_line > 0
        label_text = "" if is_continued else rf"\label{{tab:{label}}}"
        lines += [
            rf"\begin{{{environment}}}",
            rf"\centering{size}",
            rf"\caption{{{escape(shown.caption)}{' (continued)' * is_continued}}}{label_text}",
            begin,
            r"\toprule",
            heading_line,
            r"\midrule",
            *body_lines[first_line : first_line + MOST_LINES],
            r"\bottomrule",
            end,
            rf"\end{{{environment}}}",
        ]
    return "\n".join(lines) + "\n"


def _layout(
    widths: Sequence[int], column_types: Sequence[str], letters_per_line: int
) -> tuple[list[str], str, str, str]:
    """Types of the columns, size of the type, and what begins and ends the tabular, so that its lines fit.

    ``widths``: letters of each column with its gap; ``column_types``: "r" or "l", of which "l" may become WRAPPED.
    """
    if sum(widths) > letters_per_line:
        column_types = [
            WRAPPED if column_type == "l" and width > LEAST_WRAPPED_LETTERS else column_type
            for width, column_type in zip(widths, column_types, strict=True)
        ]
    least_letters = sum(
        LEAST_WRAPPED_LETTERS if column_type == WRAPPED else width
        for width, column_type in zip(widths, column_types, strict=True)
    )
    size = r"\small" if least_letters <= letters_per_line else r"\scriptsize\setlength{\tabcolsep}{4pt}"
    if least_letters > SMALLER_TYPE_GAIN * letters_per_line:
        # Nothing wraps in a table that is shrunk as a whole. The % keeps its line's end from becoming a space.
        unwrapped_types = ["l" if column_type == WRAPPED else column_type for column_type in column_types]
        begin = "\\resizebox{\\linewidth}{!}{%\n" + rf"\begin{{tabular}}{{{''.join(unwrapped_types)}}}"
        return unwrapped_types, size, begin, r"\end{tabular}}"
    name, width = ("tabularx", r"{\linewidth}") if WRAPPED in column_types else ("tabular", "")
    begin = rf"\begin{{{name}}}{width}{{{''.join(column_types)}}}"
    return list(column_types), size, begin, rf"\end{{{name}}}"


def _in_column(text: str, column_type: str) -> str:
    """A cell; where its column wraps, names of files and settings may break too."""
    return re.sub(r"/|\\_", r"\g<0>\\allowbreak{}", cell(text)) if column_type == WRAPPED else cell(text)


def _stacked(lines: Sequence[str], column_type: str) -> str:
    """A heading, on lines of its own where it is wider than what stands below it."""
    is_stacked = len(lines) > 1 and column_type != WRAPPED
    text = (r" \\ " if is_stacked else " ").join(map(escape, lines))
    return rf"\shortstack[{column_type}]{{{text}}}" if is_stacked else text


def _is_numeric(texts: Sequence[str]) -> bool:
    """Whether every filled cell of a column is a number, so that it stands to the right."""
    cells = [text for text in texts if text]
    return bool(cells) and all(map(is_number, cells))


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
    table: pd.DataFrame | pd.Series | Run | str | Path | Sequence[Run | str | Path],
    *,
    columns: Sequence[Hashable] | None = None,
    caption: str = "",
    label: str = "table",
    decimals: int | None = None,
    width: Width = "text",
) -> str:
    """A table in LaTeX, for a paper.

    Parameters
    ----------
    table
        Any table: of the toolkit, pivoted, with several levels of columns, or a Series; or runs, of which it has a line
        per condition: the score that they are judged by on the split that they report, the difference to the first
        condition (this one minus that) with its interval and verdict, and drift in %. Its index stands in front where
        it has a name or is of texts. A column ``NAME_sd`` stands behind ± in the column NAME, where both are shown.
        What is undefined is —; ± and → may stand in texts, and LaTeX's commands are printed as they are written.
    columns
        Those to show, in this order, by their names in the table or in its index. None: all. Model, task and number of
        seeds then go into the caption where all lines have the same. The table of :func:`toolkit.drift_table` has one
        line per condition, also where parameters are named here, as ``["condition", "word_embeddings"]``; that of
        :func:`toolkit.compare` has ``pair``, ``difference`` and ``interval`` too.
    caption, label
        Above the table; LaTeX's label is ``tab:<label>`` and its packages are booktabs, tabularx and graphicx.
    decimals
        Of every number but whole ones and p values. None: three significant digits.
    width
        For which the table is laid out: ``text`` of a page of one column, a ``column`` of two, or ``both columns``
        (``table*``). What is wider even in small type is shrunk to it: name fewer columns.

    Raises
    ------
    ValueError
        No table, one without lines, no column, one that it has not, or another width.

    Examples
    --------
    >>> text = toolkit.export_table(toolkit.drift_table(runs), caption="Embedding drift", label="drift")
    >>> "toprule" in text
    True
    """
    places = [table] if isinstance(table, Run | str | Path) else table if isinstance(table, list | tuple) else ()
    are_runs = bool(places) and all(isinstance(place, Run | str | Path) for place in places)
    if are_runs:
        table = _table_of_runs(places)
    if not isinstance(table, pd.DataFrame | pd.Series):
        raise ValueError(f"expected a DataFrame or a Series; got {type(table).__name__}: pass pandas.DataFrame of it")
    faults = {
        "the table has no lines: there is nothing to export": table.empty,
        f"a LaTeX label is of letters, digits, spaces and _:.+/-, not {label!r}": (
            not isinstance(label, str) or not re.fullmatch(r"[\w:.+/ -]*", label)
        ),
        "columns names none: pass those to show, or None for all": columns is not None and not len(columns),
        f"caption must be a text; got {caption!r}": not isinstance(caption, str),
        f"decimals must be a whole number of at least 0, or None; got {decimals!r}": decimals is not None
        and not (isinstance(decimals, int) and decimals >= 0),
    }
    refuse_first(faults)
    lookup(WIDTHS, width, "width")
    names = None if columns is None else [_name(name) for name in ([columns] if isinstance(columns, str) else columns)]
    table, is_drift, usual_columns = _as_in_a_paper(pd.DataFrame(table), names)
    has_drift = is_drift or are_runs
    if any(name is not None for name in table.index.names) or table.index.dtype.kind not in "iu":
        table = table.reset_index(names=[name or "" for name in table.index.names], allow_duplicates=True)
    keys = list(table)
    caption_end = ""
    if names is None and not usual_columns:
        shared_columns, caption_end = shared(
            table, [name for name in SHARED if name in keys and set(keys) - set(SHARED)]
        )
        positions = [i for i, key in enumerate(keys) if key not in shared_columns]
    else:
        position_by_name = {_name(key): keys.index(key) for key in keys}
        positions = [lookup(position_by_name, name, "column") for name in names or usual_columns]
        if names is not None:
            _warn_of_lines_alike(table, positions)
    # Column to that of its standard deviation, which then has no column of its own.
    spreads = {i: keys.index(_spread(keys[i])) for i in positions if _spread(keys[i]) in keys}
    spreads = {i: spread for i, spread in spreads.items() if spread in positions or has_drift}
    positions = [i for i in positions if i not in spreads.values()]
    common_names, header = _headings([keys[i] for i in positions])
    index_names = " by ".join(str(name) for name in table.columns.names if name is not None)
    is_beside_scores = are_runs and any(keys[i] in EMBEDDING_PARAMETERS for i in positions)
    of_drift = PERCENT if is_drift else WITH_DRIFT if is_beside_scores else ""
    remarks = (*common_names, f"by {index_names}" * bool(index_names), of_drift)
    caption += "".join(f", {text}" for text in remarks if text)
    texts_of_columns = [
        _cell_texts(table.iloc[:, i], table.iloc[:, spreads[i]] if i in spreads else None, decimals) for i in positions
    ]
    rows = tuple(zip(*texts_of_columns, strict=True))
    caption = f"{caption}{caption_end}".strip(", ")
    return booktabs(Shown(tuple(header), rows, caption[:1].upper() + caption[1:]), label, width)


def _table_of_runs(runs: Sequence[Run | str | Path]) -> pd.DataFrame:
    """A line per condition of runs: score, difference to the first condition with its interval and verdict, and drift.

    Of several groups the task of each line is the title of its group.
    """
    opened = open_runs(runs)
    groups, tables = arrange(opened), []
    scores, compared = summarise_scores(opened), compare_groups(groups)
    scores, compared = (each[each["is_reported_split"] & each["is_headline"]] for each in (scores, compared))
    scores = scores.rename(columns={"sd": "mean_sd"})[["group", "condition", "score", "mean", "mean_sd"]]
    differences = pd.DataFrame(
        {
            "group": compared["group"],
            "first": compared["first"],
            "condition": compared["second"],
            "difference": (0 - compared["difference_points"]).map(points),  # no -0
            "interval": list(map(interval, 0 - compared["high_points"], 0 - compared["low_points"])),
            "verdict": [OPEN_VERDICTS.get(verdict, verdict) for verdict in compared["verdict"]],
        }
    )
    for group in groups:
        reference = group.conditions[0].label
        of_group = differences[(differences["group"] == group.title) & (differences["first"] == reference)]
        drift = drift_by_condition(drift_table_of_groups([group]))
        beside = scores[scores["group"] == group.title].merge(of_group.drop(columns=["group", "first"]), "left")
        parameters = list(drift.columns[4:])
        table = drift.merge(beside, "left")[[*drift.columns[:4], *beside.columns[2:], *parameters]]
        tables.append(table.assign(task=group.title if len(groups) > 1 else table["task"]))
    return pd.concat(tables, ignore_index=True)


def _as_in_a_paper(table: pd.DataFrame, names: Sequence[str] | None) -> tuple[pd.DataFrame, bool, Sequence[str]]:
    """A table as papers print it, whether it is of drift by condition now, and the columns that it has; () for all.

    ``names``: of the columns that are asked for.
    """
    if set(schema_of("drift_table")) <= set(table) and not set(names or ("",)) <= set(table):
        return drift_by_condition(table), True, ()
    if set(schema_of("compare")) <= set(table):
        from toolkit.reporting.topics.comparison import shown_comparison

        shown_table = shown_comparison(table, pd.DataFrame(columns=schema_of("compare_seeds")))
        telling = [name for name in ("group", "score") if table[name].nunique() > 1]
        return (
            shown_table.assign(verdict=table["verdict"].replace(OPEN_VERDICTS)),
            False,
            () if names else (*telling, "pair", "split", "difference", "interval", "verdict"),
        )
    return table, False, ()


def _warn_of_lines_alike(table: pd.DataFrame, positions: Sequence[int]) -> None:
    """A warning where no text among the columns at some positions tells lines apart that another one would."""
    cells = table.astype(str).set_axis(range(table.shape[1]), axis=1)
    texts = [i for i in cells if not is_numeric_dtype(table.iloc[:, i]) or table.columns[i] in ("seed", "epoch")]
    shown, hidden = ([i for i in texts if (i in positions) == is_shown] for is_shown in (True, False))
    counts = cells.groupby(shown or np.zeros(len(cells)))[hidden].nunique()
    if telling := [_name(table.columns[i]) for i in hidden if counts[i].max() > 1]:
        names = " or ".join(telling[:MOST_TELLING])
        warnings.warn(f"lines look alike that {names} would tell apart: add it to columns", stacklevel=3)


MOST_TELLING = 3
"""Columns that tell lines apart of which a warning names the first."""


PERCENT = "in % of the norm before (0: not one bit changed)"
WITH_DRIFT = f"with the drift of each parameter {PERCENT}"


def drift_by_condition(table: pd.DataFrame) -> pd.DataFrame:
    """The table of :func:`toolkit.drift_table` with a line per condition.

    Groups of one model and task stay apart: the second's task has " (2)" after it, as its title has.
    """
    drift = _with_numbered_tasks(table)
    keys = ["model", "task", "condition", "num_seeds"]
    wide = drift.pivot(index=keys, columns="parameter", values=["drift_percent", "drift_percent_sd"])
    wide = wide.loc[pd.MultiIndex.from_frame(drift[keys].drop_duplicates())]  # in the order in which they came
    columns = {
        name + suffix: wide[f"drift_percent{suffix}", name]
        for suffix in ("", "_sd")
        for name in dict.fromkeys(drift["parameter"])
    }
    return pd.DataFrame(columns).reset_index()


def _with_numbered_tasks(table: pd.DataFrame) -> pd.DataFrame:
    """The table of drift with " (2)" after the task of the second group of one model and task, and so on."""
    line_keys = ["model", "task", "condition", "parameter"]
    in_order = table.sort_index() if table.index.is_unique else table
    num_before = in_order.groupby(line_keys, sort=False).cumcount()
    # From the second group's first repeated condition on, every line is its: also a condition that it alone has.
    group = num_before.groupby([in_order["model"], in_order["task"]]).cummax()
    # Where the lines of groups come in turn, that gives one group a line twice: then each line goes by its own count.
    is_clear = not in_order.assign(group=group).duplicated([*line_keys, "group"]).any()
    suffixes = (group if is_clear else num_before).map(lambda number: f" ({number + 1})" if number else "")
    return table.assign(task=table["task"] + suffixes)


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
    names_of_keys = [[_name(part) for part in key] if isinstance(key, tuple) else [_name(key)] for key in keys]
    with_levels = [names for names in names_of_keys if len(names) > 1 and all(names)]
    common = set()  # (level, name)
    if len(with_levels) > 1:
        for names in with_levels:
            common |= {(i, name) for i, name in enumerate(names) if all(other[i] == name for other in with_levels)}

    def joined(names: Iterable[str]) -> str:
        columns = [heading(name.replace("LayerNorm.", "LayerNorm ")) for name in names if name]  # on two lines
        return ", ".join(f"{column.label} ({column.unit})" if column.unit else column.label for column in columns)

    remaining = [
        [name for i, name in enumerate(names) if (i, name) not in common or names not in with_levels]
        for names in names_of_keys
    ]
    return [joined([name]) for _, name in sorted(common)], list(map(joined, remaining))


def _cell_texts(column: pd.Series, spread: pd.Series | None, decimals: int | None) -> list[str]:
    """The cells of a column, each with its standard deviation where that is known and the value is not exactly 0."""
    key = column.name[0] if isinstance(column.name, tuple) else column.name
    shown_as = heading(_name(key))
    sds = [None] * len(column) if spread is None else spread
    return [
        _cell(value, shown_as, decimals)
        + (
            f" ± {number(sd, 2) if decimals is None else f'{sd:.{decimals}f}'}"
            if isinstance(sd, Real) and sd == sd and value and value == value
            else ""
        )
        for value, sd in zip(column, sds, strict=True)
    ]


def _cell(value: Any, column: Column, decimals: int | None) -> str:
    """A value as a cell: a number as its column says, or with so many ``decimals``, — for what is missing, else its
    text."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return ABSENT
    is_number = isinstance(value, Real | np.bool_)
    if decimals is not None and isinstance(value, float | np.floating) and not column.is_p:
        return f"{value:.{decimals}f}" if value else "0"
    return (p_value if column.is_p else text_of)(value, column.digits) if is_number else str(value)


def shared(table: pd.DataFrame, names: Iterable[str]) -> tuple[list[str], str]:
    """The columns in which all of several lines have the same value, and what a caption says of them instead."""
    constant = [name for name in names if len(table) > 1 and table[name].nunique(dropna=False) == 1]
    facts = ", ".join(f"{COLUMNS[name].label}: {text_of(table[name].iloc[0])}" for name in constant)
    return constant, f" ({facts})" if facts else ""


SHARED = ("model", "task", "num_seeds", "score")
