"""Every table of the API against the schema: its columns, what their cells hold, and no idle entry."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import toolkit
from tests.studies.tiny_studies import make_study
from toolkit.analysis.inferred_exposure import ancestral_rows_of, infer_from
from toolkit.analysis.measures import MEASURES
from toolkit.analysis.positions import cosine_by_lag, position_table, standing_out
from toolkit.analysis.resemblance import find_waves
from toolkit.analysis.similarity import compare_rows
from toolkit.comparison.arms import arrange
from toolkit.comparison.layer_trend import weight_tables, weights_of_arms
from toolkit.comparison.parameter_noise import measure_beyond_noise
from toolkit.comparison.shuffled_labels import label_statistics
from toolkit.config import RunConfig
from toolkit.pipeline import finetune
from toolkit.probes.flow import FlowSettings
from toolkit.probes.layer_drift import measure_layers
from toolkit.probes.transplant_games import TransplantSettings
from toolkit.reporting.topics.caveats import linear_probes
from toolkit.schema import COLUMNS, COUNT, FLAG, NUMBER, TABLES, TEXT, VALUES, Column, columns_of
from toolkit.snapshots.store import Run
from toolkit.studies.plan import choose

W = "word_embeddings"
FLOW = FlowSettings(num_positions=8, num_blocks=3, shift=4, num_texts=20, num_tokens=200)
ROOT = Path(toolkit.__file__).parent


def _of_one_run(run: Run) -> dict[str, pd.DataFrame]:
    positions = position_table(run)
    positions[5] *= 10  # stands out
    inferred = infer_from(run.trajectory)
    return {
        "infer_exposure.tables": inferred.tables,
        "infer_exposure.rows": inferred.rows,
        "find_ancestral_rows": ancestral_rows_of(run.trajectory),
        "measure_drift": toolkit.measure_drift(run),
        "measure_rows": toolkit.measure_rows(run, W),
        "measure_changes": toolkit.measure_changes(run),
        "decompose": toolkit.decompose(run, W),
        "explain": toolkit.explain(run, W),
        "sign_noise": toolkit.sign_noise(run, W, num_replicates=5, num_coordinates=8),
        "regress_drift": toolkit.regress_drift(run, W),
        "guard_precision": toolkit.guard_precision(run, 1),
        "measure_step_sizes": toolkit.measure_step_sizes(run),
        "measure_gauge": toolkit.measure_gauge(run),
        "measure_gauge_rows": toolkit.measure_gauge_rows(run, W),
        "measure_design": toolkit.measure_design(run),
        "functional_drift": toolkit.functional_drift(run),
        "measure_geometry": toolkit.measure_geometry(run, W, num_null=2),
        "measure_updates": toolkit.measure_updates(run, W, num_null=2),
        "measure_similarity": toolkit.measure_similarity(run, W, num_null=2),
        "compare_rows": compare_rows(positions, positions + 1, num_null=2),
        "neighbours": toolkit.neighbours(run, "film"),
        "measure_neighbours": toolkit.measure_neighbours(run),
        "measure_positions": toolkit.measure_positions(run, num_draws=5),
        "find_waves": find_waves(positions)[0],
        "cosine_by_lag": cosine_by_lag(positions),
        "standing_out": standing_out(positions),
        "measure_segments": toolkit.measure_segments(run),
        "measure_weight_drift": toolkit.measure_weight_drift(run),
        "measure_weight_drift.layer": toolkit.measure_weight_drift(run, by="layer"),
    }


def _of_runs(runs: list[Run]) -> dict[str, pd.DataFrame]:
    layers, flow = measure_layers(runs), toolkit.measure_flow(runs, settings=FLOW)
    transplants = toolkit.measure_transplants(runs, TransplantSettings(num_draws=2)).tables
    return {
        "measure_agreement": toolkit.measure_agreement(runs, W, num_null=3),
        "most_changed": toolkit.most_changed(runs),
        "compare_changed": toolkit.compare_changed(runs),
        "measure_layer_drift": toolkit.measure_layer_drift(runs),
        "measure_layers.means": layers["means"],
        "measure_layers.contrasts": layers["contrasts"],
        "measure_distortion": toolkit.measure_distortion(runs, num_gradient_examples=16),
        **{f"measure_flow.{name}": table for name, table in flow.items()},
        **{f"measure_transplants.{name}": table for name, table in transplants.items()},
    }


def _of_conditions(runs: list[Run], shuffled: list[Run], features: list[Run]) -> dict[str, pd.DataFrame]:
    """What compares conditions: ``runs``, the same on shuffled labels, and feature extraction."""
    groups = arrange([*runs, *shuffled])
    weights = weight_tables(weights_of_arms(groups))
    joined, beside = toolkit.join_drift(runs), [*runs, *features]
    summary = toolkit.summarise_scores(runs)
    sides = toolkit.side_by_side(summary[summary["is_reported_split"]])
    return {
        "compare": toolkit.compare(beside, num_draws=100),
        "compare_seeds": toolkit.compare_seeds(beside),
        "last_scores": toolkit.last_scores(runs),
        "summarise_scores": summary,
        "side_by_side": sides.rename(columns=lambda name: name.replace("validation_", "SPLIT_")),
        "summarise_floors": toolkit.summarise_floors(runs),
        "measure_cost": toolkit.measure_cost(beside),
        "relative_quality": toolkit.relative_quality(beside, "full fine-tuning"),
        "linear_probes": linear_probes(arrange(beside)),
        "measure_beyond_noise": measure_beyond_noise(runs[0]),
        "drift_table": toolkit.drift_table(runs),
        "join_drift": joined,
        "associate_drift": toolkit.associate_drift(joined),
        "label_statistics": label_statistics(groups),
        "compare_with_shuffled": toolkit.compare_with_shuffled(runs, shuffled),
        "average_weights": weights["weight_means"],
        "find_trends": weights["weight_trends"],
    }


def _of_a_study(config: RunConfig) -> dict[str, pd.DataFrame]:
    """What was tried and chosen, and data efficiency of the sizes of a study."""
    grid = {name: [{}] for name in ("full", "features")}
    study = make_study(replace(config, output_dir="runs"), grid=grid, sizes=(20, 30), seeds=(0,))
    tried, final = (
        {cell: finetune(replace(cell.config, output_dir=config.output_dir)) for cell in cells}
        for cells in (study.tuning_cells(), study.final_cells({}))
    )
    return {"choose": choose(study, tried), "data_efficiency": toolkit.data_efficiency(list(final.values()))}


def _of_a_sentence(model: Path) -> dict[str, pd.DataFrame]:
    found = toolkit.take_apart(toolkit.open_model(str(model)), "the film is good .", "the doctor saw a teacher .")
    named: dict[str, pd.DataFrame] = {}
    for name in (each for each in TABLES if each.startswith("take_apart.")):
        table: Any = found
        for part in name.split(".")[1:]:
            table = getattr(table, part)
        named[name] = table
    return named


@pytest.fixture(scope="module")
def tables(
    tiny_pairs: RunConfig,
    tiny_model: Callable[[str], Path],
    masked_lm: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, pd.DataFrame]:
    """Every table, of two runs that differ in their seed."""
    config = replace(tiny_pairs, save_model=True, output_dir=str(tmp_path_factory.mktemp("runs")), learning_rate=5e-3)
    runs = [finetune(replace(config, seed=seed)) for seed in (0, 1)]
    shuffled, features = (
        [finetune(replace(config, seed=seed, **changes)) for seed in (0, 1)]
        for changes in ({"shuffle_labels": True}, {"freeze": "backbone"})
    )
    compared = _of_conditions(runs, shuffled, features) | _of_a_study(config)
    stored = tiny_pairs.train_file
    pair = [str(tiny_model(name)) for name in ("bert", "roberta")]
    found = toolkit.measure_reindexing(*pair, stored, text_columns=tiny_pairs.text_columns, k=3, num_null=2)
    compared |= {f"measure_reindexing.{name}": table for name, table in found.items()}
    tokens = Path(config.output_dir) / "new.txt"
    tokens.write_text("zwick\n")
    grown = finetune(replace(config, add_tokens=str(tokens), max_steps=2))
    compared["measure_added_rows"] = toolkit.measure_added_rows(grown)
    headed = finetune(replace(config, model=str(masked_lm("bert")), max_steps=2))
    compared["measure_forgetting"] = toolkit.measure_forgetting([headed], max_texts=4)
    return _of_one_run(runs[0]) | _of_runs(runs) | compared | _of_a_sentence(tiny_model("bert"))


def holds(column: Column, values: pd.Series) -> bool:
    """Whether the cells of a column are of its kind."""
    known = values.dropna()
    if column.kind == TEXT:
        return all(isinstance(value, str) for value in known)
    if column.kind == VALUES:
        return all(isinstance(value, tuple) for value in known)
    if column.kind == FLAG:
        return all(isinstance(value, bool | np.bool_) for value in known)
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
    assert tables.keys() == TABLES.keys()
    functions = [getattr(toolkit, name) for name in toolkit.__all__]
    returning = {
        function.__name__
        for function in functions
        if inspect.isfunction(function)
        and function.__module__.startswith(("toolkit.analysis", "toolkit.probes", "toolkit.comparison"))
        and "DataFrame" in str(inspect.signature(function).return_annotation)
    }
    assert returning <= {name.partition(".")[0] for name in TABLES}


def test_every_column_is_one_of_some_table() -> None:
    listed = {column for columns in TABLES.values() for column in columns}
    assert listed <= COLUMNS.keys()
    sources = [
        path.read_text() for part in ("comparison", "reporting", "studies") for path in ROOT.glob(f"{part}/**/*.py")
    ]
    named = set(re.findall(r"\"(\w+)\"", "\n".join(sources)))
    made = {f"{name}_points" for name in ("detectable_gap", "noise_floor", "difference", "margin", "gain")}
    assert not [name for name in COLUMNS.keys() - listed if name not in named | made]


def test_a_meaning_is_a_sentence_and_a_unit_that_of_the_measure() -> None:
    assert not [column.name for column in COLUMNS.values() if not column.meaning.endswith((".", "?"))]
    assert {name: COLUMNS[name].unit for name in MEASURES} == {name: each.unit for name, each in MEASURES.items()}
    assert {column.kind for column in COLUMNS.values()} <= {TEXT, NUMBER, COUNT, FLAG, VALUES}


def test_an_epoch_means_the_same_and_has_the_same_default_everywhere() -> None:
    """``epoch``: one snapshot, by default the last; ``epochs``: several, by default all; ``reference_epoch``: 0."""
    expected = {"epoch": None, "epochs": None, "reference_epoch": 0}
    seen = set()
    for name in dir(toolkit):
        function = getattr(toolkit, name)
        if name.startswith("_") or isinstance(function, type) or not callable(function):
            continue
        parameters = inspect.signature(function).parameters
        assert not {"epoch", "epochs"} <= set(parameters), name
        for word in expected.keys() & parameters:
            seen.add(word)
            assert parameters[word].default == expected[word], (name, word)
            assert word != "reference_epoch" or parameters[word].kind is inspect.Parameter.KEYWORD_ONLY, name
    assert seen == set(expected)


def test_an_unknown_table_is_one_clear_line() -> None:
    with pytest.raises(ValueError, match="unknown table 'measure_drft' \\(did you mean 'measure_drift'\\?\\)"):
        columns_of("measure_drft")
