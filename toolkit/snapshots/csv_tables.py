"""Tables as CSV, written in this one place: labels, tokens, splits and names are the data's, and none starts a formula.

Such a text, in a cell or a head, or in one behind a ``;``, gets a ' in front, as spreadsheets write one, and one more
where it has some: :func:`unquoted` takes it off again.
"""

import csv
import re
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

NUMBER = r"[+-]?((\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|inf|nan)"
"""In one way only: digits that could be shared out between two parts would take the square of their number."""


FORMULA = r"(?='*[=+\-@\t\r].)"
"""Before what a spreadsheet takes for a formula, which may start a program; behind a quotation mark it is a text."""
BARE = re.compile(rf"\A(?!{NUMBER}\Z){FORMULA}|(?<=;)(?!{NUMBER}(;|\Z)){FORMULA}", re.DOTALL)
"""Before each: at the beginning, and behind a ``;``, at which a spreadsheet splits lines in many countries."""


QUOTED = re.compile(rf"(\A|(?<=;))'{FORMULA}", re.DOTALL)


def csv_of(table: "pd.DataFrame", **options: Any) -> str:
    """A table as CSV; the options are those of ``DataFrame.to_csv``."""
    write = partial(_with_texts(table, partial(BARE.sub, "'")).to_csv, index=False, lineterminator="\n", **options)
    # A carriage return ends a line for whoever reads it, but not for Python's csv, which puts no quotes around it.
    return write(quoting=csv.QUOTE_NONNUMERIC) if "\r" in (text := str(write())) else text


def unquoted(table: "pd.DataFrame") -> "pd.DataFrame":
    """A table that :func:`csv_of` wrote, as it was before."""
    return _with_texts(table, partial(QUOTED.sub, ""))


def _with_texts(table: "pd.DataFrame", change: Any) -> "pd.DataFrame":
    """A table with its heads and texts changed."""
    import pandas as pd

    changed = table.rename(columns={name: change(name) for name in table if isinstance(name, str)})
    for name in [name for name in changed if not pd.api.types.is_numeric_dtype(changed[name])]:
        # Each text once: a table names a few runs and measures in many lines.
        cells = {cell: change(cell) for cell in changed[name].unique() if isinstance(cell, str)}
        if any(cell != text for cell, text in cells.items()):
            changed[name] = [cells.get(cell, cell) if isinstance(cell, str) else cell for cell in changed[name]]
    return changed
