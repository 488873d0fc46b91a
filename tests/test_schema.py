"""Every table of the API against the schema: its columns, what their cells hold, and no idle entry."""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import toolkit
from tests.questions.examples import Inputs, W, examples
from tests.refusals import check_refused
from tests.studies.tiny_studies import make_study
from toolkit.analysis.measures import MEASURES
from toolkit.comparison.conditions import arrange
from toolkit.comparison.parameter_noise import measure_beyond_noise
from toolkit.comparison.shuffled_labels import label_statistics
from toolkit.config import RunConfig
from toolkit.pipeline import finetune
from toolkit.questions import load_questions
from toolkit.reporting.topics.caveats import linear_probes
from toolkit.schema import COLUMNS, COUNT, FLAG, NUMBER, TABLES, TEXT, VALUES, Column, columns_of
from toolkit.snapshots.store import Run
from toolkit.studies.plan import choose

ROOT = Path(toolkit.__file__).parent
QUESTIONS = load_questions()  # whose tables the schema has from now on


def _of_runs(runs: list[Run]) -> dict[str, pd.DataFrame]:
    run = runs[0]
    return {
        "measure_drift": toolkit.measure_drift(run),
        "top_words": toolkit.top_words(run),
        "measure_rows": toolkit.measure_rows(run, W),
        "decompose": toolkit.decompose(run, W),
        "explain": toolkit.explain(run, W),
        "sign_noise": toolkit.sign_noise(run, W, num_replicates=5, num_coordinates=8),
        "measure_step_sizes": toolkit.measure_step_sizes(run),
        "measure_gauge": toolkit.measure_gauge(run),
        "measure_design": toolkit.measure_design(run),
        "neighbours": toolkit.neighbours(run, "film"),
        "measure_segments": toolkit.measure_segments(run),
        "most_changed": toolkit.most_changed(runs),
    }


def _of_conditions(runs: list[Run], shuffled: list[Run], features: list[Run]) -> dict[str, pd.DataFrame]:
    """What compares conditions: ``runs``, the same on shuffled labels, and feature extraction."""
    joined, beside = toolkit.join_drift(runs), [*runs, *features]
    summary = toolkit.summarise_scores(runs)
    return {
        "compare": toolkit.compare(beside),
        "compare_seeds": toolkit.compare_seeds(beside),
        "last_scores": toolkit.last_scores(runs),
        "summarise_scores": summary,
        "summarise_floors": toolkit.summarise_floors(runs),
        "measure_cost": toolkit.measure_cost(beside),
        "linear_probes": linear_probes(arrange(beside)),
        "measure_beyond_noise": measure_beyond_noise(runs[0]),
        "drift_table": toolkit.drift_table(runs),
        "join_drift": joined,
        "associate_drift": toolkit.associate_drift(joined),
        "label_statistics": label_statistics(arrange([*runs, *shuffled])),
        "compare_with_shuffled": toolkit.compare_with_shuffled(runs, shuffled),
    }


def _of_a_study(config: RunConfig) -> dict[str, pd.DataFrame]:
    """What was tried and chosen."""
    grid = {name: [{}] for name in ("full", "features")}
    study = make_study(replace(config, output_dir="runs"), grid=grid, seeds=(0,))
    cells = study.tuning_cells()
    tried = {cell: finetune(replace(cell.config, output_dir=config.output_dir)) for cell in cells}
    return {"choose": choose(study, tried)}


@pytest.fixture(scope="module")
def tables(
    tiny_pairs: RunConfig,
    tiny_model: Callable[[str], Path],
    masked_lm: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, pd.DataFrame]:
    """Every table, of the core and of each question, of two runs that differ in their seed."""
    config = replace(tiny_pairs, save_model=True, output_dir=str(tmp_path_factory.mktemp("runs")), learning_rate=5e-3)
    runs, shuffled, features = (
        [finetune(replace(config, seed=seed, **changes)) for seed in (0, 1)]
        for changes in ({}, {"shuffle_labels": True}, {"freeze": "backbone"})
    )
    tokens = Path(config.output_dir) / "new.txt"
    tokens.write_text("zwick\n")
    grown = finetune(replace(config, add_tokens=str(tokens), max_steps=2))
    made = _of_runs(runs) | _of_conditions(runs, shuffled, features) | _of_a_study(config)
    made["measure_added_rows"] = toolkit.measure_added_rows(grown)
    made["what_trains"] = toolkit.what_trains(model := torch.nn.Linear(2, 2), torch.optim.AdamW(model.parameters()))
    inputs = Inputs(config, runs, shuffled, tiny_model, masked_lm)
    for make in examples("tables"):
        made |= make(inputs)
    return made


def holds(column: Column, values: pd.Series) -> bool:
    """Whether the cells of a column are of its kind."""
    known, types = values.dropna(), {TEXT: str, VALUES: tuple, FLAG: bool | np.bool_}
    if column.kind in types:
        return all(isinstance(value, types[column.kind]) for value in known)
    is_number = pd.api.types.is_numeric_dtype(values.infer_objects()) and not pd.api.types.is_bool_dtype(values)
    # Counts that are missing on some lines may be floats, and a float may happen to be whole on every line.
    return is_number and (column.kind == NUMBER or bool((known == known.round()).all()))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_its_columns_in_order_and_they_hold_what_they_say(
    name: str, tables: dict[str, pd.DataFrame]
) -> None:
    table = tables[name]
    assert len(table)
    assert list(table.columns) == columns_of(name)
    assert not [column for column in table if not holds(COLUMNS[column], table[column])]


def test_every_table_that_comes_back_has_a_schema(tables: dict[str, pd.DataFrame]) -> None:
    assert tables.keys() == TABLES.keys(), "tests/questions/NAME/examples.py makes the tables of a question"
    functions = [getattr(toolkit, name) for name in toolkit.__all__]
    returning = {
        function.__name__
        for function in functions
        if inspect.isfunction(function)
        and function.__module__.startswith(("toolkit.analysis", "toolkit.comparison", "toolkit.questions"))
        and "DataFrame" in str(inspect.signature(function).return_annotation)
    }
    assert returning <= {name.partition(".")[0] for name in TABLES}


def _idle(columns: set[str], tables: Iterable[str], *globs: str) -> set[str]:
    """Columns that are in none of the tables, and that no source of toolkit/ names."""
    sources = "\n".join(path.read_text() for each in globs for path in ROOT.glob(each))
    return columns - {name for table in tables for name in TABLES[table]} - set(re.findall(r"\"(\w+)\"", sources))


def test_every_column_is_one_of_some_table() -> None:
    """Of the core's or the question's own, so that a question that is deleted leaves none idle; what two questions
    have in common, and the core has not, stands in both."""
    assert {column for columns in TABLES.values() for column in columns} <= COLUMNS.keys()
    core = COLUMNS.keys() - set(chain(*(question.columns for question in QUESTIONS)))
    core -= {f"{name}_points" for name in ("detectable_gap", "noise_floor", "difference", "margin", "gain")}
    of_core = TABLES.keys() - set(chain(*(question.tables for question in QUESTIONS)))
    assert not _idle(core, of_core, *(f"{part}/**/*.py" for part in ("comparison", "reporting", "studies")))
    for question in QUESTIONS:
        assert not _idle(set(question.columns), question.tables, f"questions/{question.name}/*.py"), question.name


def test_a_meaning_is_a_sentence_and_a_unit_that_of_the_measure() -> None:
    assert not [column.name for column in COLUMNS.values() if not column.meaning.endswith((".", "?"))]
    assert {name: COLUMNS[name].unit for name in MEASURES} == {name: each.unit for name, each in MEASURES.items()}
    assert {column.kind for column in COLUMNS.values()} <= {TEXT, NUMBER, COUNT, FLAG, VALUES}


def test_an_epoch_means_the_same_and_has_the_same_default_everywhere() -> None:
    """``epoch``: one snapshot, by default the last; ``epochs``: several, by default all; ``reference_epoch``: 0."""
    functions = [each for each in (getattr(toolkit, name) for name in dir(toolkit)) if inspect.isfunction(each)]
    taken = [(function.__name__, inspect.signature(function).parameters) for function in functions]
    assert not [name for name, parameters in taken if {"epoch", "epochs"} <= parameters.keys()]
    defaults = {"epoch": None, "epochs": None, "reference_epoch": 0}
    found = [(name, each) for name, parameters in taken for each in parameters.values() if each.name in defaults]
    assert {each.name for _, each in found} == defaults.keys()
    assert not [(name, each.name) for name, each in found if each.default != defaults[each.name]]
    kinds = {name: each.kind for name, each in found if each.name == "reference_epoch"}
    assert set(kinds.values()) == {inspect.Parameter.KEYWORD_ONLY}, kinds


def test_an_unknown_table_is_one_clear_line() -> None:
    check_refused("unknown table 'measure_drft' \\(did you mean 'measure_drift'\\?\\)", columns_of, "measure_drft")
