"""What help() says of the public functions: the columns that come back, and no name that its reader cannot look up."""

import inspect
import re
import sys

import pytest

import toolkit
from toolkit.probes.flow.counterfactuals import COUNTERFACTUAL_COLUMNS
from toolkit.probes.flow.decoding import DECODING_COLUMNS
from toolkit.probes.flow.flow import PLACE_COLUMNS
from toolkit.probes.flow.ledger import LEDGER_COLUMNS

RETURN_COLUMNS = (
    "compare",
    "compare_seeds",
    "functional_drift",
    "measure_agreement",
    "measure_changes",
    "measure_design",
    "measure_distortion",
    "measure_drift",
    "measure_gauge",
    "measure_geometry",
    "measure_layer_drift",
    "measure_positions",
    "measure_segments",
    "measure_similarity",
    "measure_updates",
    "relative_quality",
)
"""Functions whose table has the COLUMNS of their module, in two cases with some more."""
MORE = {"compare_seeds": ["group", "q"], "measure_similarity": ["parameter", "epoch", "reference_epoch", "rows"]}


def help_of(name: str) -> str:
    return inspect.getdoc(getattr(toolkit, name)) or ""


@pytest.mark.parametrize("name", RETURN_COLUMNS)
def test_help_lists_the_columns_in_order(name: str) -> None:
    found = re.search(r"^Columns: (.*?)\.$", help_of(name), re.S | re.M)
    assert found
    listed = found[1].replace("\n", " ").split(", ")
    more = MORE.get(name, [])
    module = sys.modules[getattr(toolkit, name).__module__]
    columns = module.SEED_COLUMNS if name == "compare_seeds" else module.COLUMNS
    assert [column for column in listed if column not in more] == list(columns)
    assert [column for column in listed if column in more] == more


def test_help_lists_the_columns_of_every_table_of_flow() -> None:
    text = re.sub(r"\s+", " ", help_of("measure_flow"))
    *places, last = PLACE_COLUMNS
    assert f"columns {', '.join(places)} and {last}" in text
    tables = {"ledger": LEDGER_COLUMNS, "decoding": DECODING_COLUMNS, "counterfactuals": COUNTERFACTUAL_COLUMNS}
    for name, columns in tables.items():
        assert f"``{name}``: {', '.join(columns)}." in text


@pytest.mark.parametrize("name", toolkit.__all__)
def test_help_names_no_constant_that_toolkit_does_not_export(name: str) -> None:
    # First: to ask for a name loads its module.
    words = set(re.findall(r"\b[A-Z][A-Z_]+\b", help_of(name)))
    modules = [module for key, module in sys.modules.items() if key.startswith("toolkit.")]
    # A constant that is a text may be called what it says: CKA.
    constants = {key for module in modules for key, value in vars(module).items() if not isinstance(value, str)}
    assert not words & constants - set(toolkit.__all__)
