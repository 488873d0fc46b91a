"""What help() says of the public functions: the columns that come back, and no name that its reader cannot look up."""

import inspect
import re
import sys

import pytest

import toolkit
from toolkit.schema import COLUMNS, TABLES


def help_of(name: str) -> str:
    return inspect.getdoc(getattr(toolkit, name)) or ""


@pytest.mark.parametrize("name", sorted({table.partition(".")[0] for table in TABLES} & set(toolkit.__all__)))
def test_help_ends_with_the_columns_of_every_table_in_order(name: str) -> None:
    text = re.sub(r"\s+", " ", help_of(name))
    for table, columns in TABLES.items():
        if table.partition(".")[0] == name:
            title = "Columns of " + table.partition(".")[2] if "." in table else "Columns"
            (listed,) = re.findall(rf" {re.escape(title)} -+ (.*?)(?= Columns of |$)", text)
            found = [
                listed.find(f"{column}: {COLUMNS[column].meaning}") for column in columns if not COLUMNS[column].unit
            ]
            assert -1 not in found
            assert found == sorted(found)


@pytest.mark.parametrize("name", toolkit.__all__)
def test_help_names_no_constant_that_toolkit_does_not_export(name: str) -> None:
    # First: to ask for a name loads its module.
    words = set(re.findall(r"\b[A-Z][A-Z_]+\b", help_of(name)))
    modules = [module for key, module in sys.modules.items() if key.startswith("toolkit.")]
    # A constant that is a text may be called what it says: CKA.
    constants = {key for module in modules for key, value in vars(module).items() if not isinstance(value, str)}
    assert not words & constants - set(toolkit.__all__)
