"""What help() says of the public functions: the columns that come back, and no name that its reader cannot look up."""

import inspect
import re
import sys
from dataclasses import fields

import pytest

import toolkit
from toolkit.cli import main
from toolkit.questions import load_questions
from toolkit.schema import COLUMNS, TABLES

load_questions()  # whose tables the schema has from now on


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
    modules = [module for key, module in sys.modules.items() if key.startswith("toolkit.") and "__main__" not in key]
    # A constant that is a text may be called what it says: CKA.
    constants = {key for module in modules for key, value in vars(module).items() if not isinstance(value, str)}
    assert not set(re.findall(r"\b[A-Z][A-Z_]+\b", help_of(name))) & constants - set(toolkit.__all__)


def parameters_of(name: str) -> dict[str, str]:
    """Parameter to what help() says of it, of a public function that lists its parameters."""
    found = re.search(r"^Parameters\n-+\n(.*?)(?=\n\n\w+\n---|\Z)", help_of(name), re.S | re.M)
    blocks = re.findall(r"^(\S[^\n]*)\n((?: {4}[^\n]*\n?|\n)+)", found[1] + "\n", re.M) if found else []
    return {each: " ".join(text.split()) for names, text in blocks for each in names.split(", ")}


def test_help_says_of_every_field_of_a_config_what_its_flag_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # wider ones stand side by side
    with pytest.raises(SystemExit):
        main(["finetune", "--help"])
    flags = " ".join(re.sub("[^!-~]", " ", capsys.readouterr().out).split())
    said = parameters_of("RunConfig")
    assert list(said) == [each.name for each in fields(toolkit.RunConfig)]
    for each in fields(toolkit.RunConfig):
        text, default = said[each.name].split(" Default: ")
        assert (text in flags, default) == (True, f"{each.default!r}."), each.name


FUNCTIONS = [name for name in toolkit.__all__ if inspect.isfunction(getattr(toolkit, name))]
# What writes a report takes what the command takes, and says so.
UNLISTED = re.compile(r"toolkit\.(comparison|reporting)\..*|.*report")
LISTING = [name for name in FUNCTIONS if not UNLISTED.fullmatch(getattr(toolkit, name).__module__)]


@pytest.mark.parametrize("name", LISTING)
def test_help_says_what_every_parameter_is_where_there_are_more_than_two(name: str) -> None:
    own = list(inspect.signature(getattr(toolkit, name)).parameters)
    assert list(parameters_of(name)) == own or (len(own) <= 2 and not parameters_of(name))


@pytest.mark.parametrize("parameter", ["source", "parameter", "reference_epoch", "log", "seed", "num_null", "labels"])
def test_a_parameter_is_described_by_the_same_words_everywhere(parameter: str) -> None:
    # replay_decay takes an optimizer log and no source: its parameter need not be an embedding parameter.
    names = [name for name in LISTING if name != "replay_decay"]
    found = [parameters_of(name).get(parameter) for name in names]
    # None at all where the questions that take it are gone.
    assert len({re.split(r"[.;] |\.$", text)[0] for text in found if text is not None}) <= 1
