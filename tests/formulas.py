"""The text of a CSV file in, a failure for what a spreadsheet takes for a formula."""

import csv
import re
from io import StringIO


def check_no_formula(text: str) -> None:
    """No cell and no head begins as a formula does, unless it is a number, or a sign alone, nor do its parts where a
    spreadsheet splits at ``;``."""
    for line in csv.reader(StringIO(text, newline="")):
        for cell in (part for whole in line for part in (whole, *whole.split(";")[1:])):
            is_number = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", cell)
            assert is_number or len(cell) < 2 or cell[0] not in "=+-@\t\r", cell
