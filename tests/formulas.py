"""The text of a CSV file in, a failure for what a spreadsheet takes for a formula."""

import csv
import re
from io import StringIO


def check_no_formula(text: str) -> None:
    """No cell and no head begins as a formula does, unless it is a number, or a sign alone."""
    for line in csv.reader(StringIO(text, newline="")):
        for cell in line:
            is_number = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", cell)
            assert is_number or len(cell) < 2 or cell[0] not in "=+-@\t\r", cell
