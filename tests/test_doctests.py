"""The examples in the docstrings of public names, as a reader would type them beside some runs."""

import doctest
from pathlib import Path
from typing import Any

import pytest

import toolkit
from tests.run_directories import MakeRun

EXAMPLES = {
    name: found
    for name in dir(toolkit)
    for found in doctest.DocTestFinder(recurse=False).find(getattr(toolkit, name), name)
    if found.examples
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_shows(name: str, make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(regime, seed) for regime in ("none", "embeddings") for seed in range(3)]
    values: dict[str, Any] = {"toolkit": toolkit, "run": runs[0], "runs": runs, "Path": Path}
    EXAMPLES[name].globs = values
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.DocTestRunner(optionflags=options).run(EXAMPLES[name]).failed == 0, capsys.readouterr().out


def test_what_is_used_most_has_an_example() -> None:
    most_used = "Run RunConfig open_run open_runs top_words drift_table measure_drift measure_rows compare neighbours"
    others = {name for name in dir(toolkit) if name.startswith("plot_")} | {"summarise_scores", "methods_of"}
    assert not {*most_used.split(), *others, "export_table", "what_trains"} - set(EXAMPLES)
