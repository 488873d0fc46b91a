"""A study lists what it says: paired cells, equal budgets, and no tuning on what is reported."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.refusals import check_refusals, check_refused
from toolkit.studies.plan import choose, chosen_settings, is_at_edge
from toolkit.studies.study import Comparison, Study, load_study

CONDITIONS = {"full": {"freeze": "none"}, "features": {"freeze": "backbone"}}
GRID = {"full": ({"learning_rate": 1e-5}, {"learning_rate": 1e-4}), "features": ({"pooling": "cls"}, {})}


def make(**changes: Any) -> Study:
    values: dict[str, Any] = {
        "title": "t",
        "question": "q?",
        "conditions": CONDITIONS,
        "tasks": {"order": {"task": "order"}, "pair": {"task": "pair"}},
        "seeds": range(3),
        "comparisons": [Comparison("full", "features")],
        "grid": GRID,
        "common": {"epochs": 1, "learning_rate": 0.5},
    }
    return Study(**{**values, **changes})


def test_every_condition_meets_every_task_and_seed_once() -> None:
    cells = make().final_cells({("pair", "full"): 1})
    assert len({(c.task, c.condition, c.seed) for c in cells}) == len(cells) == 2 * 2 * 3
    by = {(c.task, c.condition, c.seed): c.config for c in cells}
    rates = {key: by[*key, 2].learning_rate for key in (("pair", "full"), ("order", "full"), ("order", "features"))}
    # The one chosen, the first setting where nothing was chosen, and what all runs share.
    assert list(rates.values()) == [1e-4, 1e-5, 0.5]
    assert {(config.seed == seed, config.selection_fraction) for (*_, seed), config in by.items()} == {(True, 0)}


def test_seeds_come_before_conditions_so_that_an_interrupted_study_holds_pairs() -> None:
    cells = make().final_cells({})
    assert [(c.seed, c.condition) for c in cells[:4]] == [(0, "full"), (0, "features"), (1, "full"), (1, "features")]


def test_tuning_runs_score_selection_alone_and_take_other_seeds() -> None:
    cells = make(sizes=(50, 100)).tuning_cells()
    told = [(c.config.selection_fraction, c.config.seed, c.config.max_train_examples) for c in cells]
    assert told == [(0.2, 1000, 100)] * (2 * 2 * 2)


def test_a_grid_may_be_another_one_on_each_task() -> None:
    tasks = list(make().tasks)
    own = {task: [{"head_learning_rate": 10.0**-k}, {"features": f"layers.{k}"}] for k, task in enumerate(tasks)}
    study = make(grid={"full": GRID["full"], "features": own})
    tried = {(c.task, c.setting): c.config for c in study.tuning_cells() if c.condition == "features"}
    for k, task in enumerate(tasks):
        assert (tried[task, 0].head_learning_rate, tried[task, 1].features) == (10.0**-k, f"layers.{k}")
    chosen = {(task, "features"): 1 for task in tasks}
    final = {(c.task, c.config.features) for c in study.final_cells(chosen) if c.condition == "features"}
    assert final == {(task, f"layers.{k}") for k, task in enumerate(tasks)}


def test_arms_is_another_name_for_conditions() -> None:
    assert make(arms=CONDITIONS, conditions={}) == make()


def test_tasks_may_have_budgets_of_their_own() -> None:
    ones, study = {condition: settings[:1] for condition, settings in GRID.items()}, make()
    first, *others = study.tasks
    grid = {condition: {first: GRID[condition]} | dict.fromkeys(others, ones[condition]) for condition in GRID}
    tried = [(cell.task, cell.condition) for cell in make(grid=grid).tuning_cells()]
    assert {task: [tried.count((task, condition)) for condition in GRID] for task in study.tasks} == {
        task: [len(study.tuning_seeds) * (2 if task == first else 1)] * 2 for task in study.tasks
    }


def test_sizes_multiply_the_final_runs() -> None:
    cells = make(sizes=(50, 100)).final_cells({})
    assert len(cells) == 2 * 2 * 3 * 2
    assert {(c.size, c.config.max_train_examples) for c in cells} == {(50, 50), (100, 100)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": {"full": GRID["full"], "features": GRID["features"][:1]}}, "equal budgets.*full: 2, features: 1"),
        ({"grid": {"full": GRID["full"]}}, "equal budgets.*features: 0"),
        ({"grid": {**GRID, "ful": ()}}, "unknown condition 'ful'.*full"),
        ({"grid": {**GRID, "full": {"polarty": GRID["full"]}}}, "unknown task 'polarty'"),
        (
            {"grid": {**GRID, "full": {"order": GRID["full"]}}},
            "on task '(?!order).*equal budgets.*full: 0, features: 2",
        ),
        ({"comparisons": [Comparison("full", "feature")]}, "unknown condition 'feature'.*features"),
        ({"comparisons": [Comparison("full", "full")]}, "compared with itself: full"),
        ({"comparisons": [Comparison("full", "features"), Comparison("features", "full")]}, "compared twice"),
        ({"margin_points": 0.0}, "margin_points must be above 0"),
        ({"margin_points": float("inf")}, "margin_points must be above 0 and finite; got inf"),
        ({"margin_points": "1"}, "margin_points must be above 0 and finite; got '1'"),
        ({"conditions": {**CONDITIONS, "full": "none"}}, r"conditions\['full'\] must be a dict of fields; got 'none'"),
        ({"conditions": {**CONDITIONS, "full": {"freez": "none"}}}, "unknown field 'freez'.*freeze"),
        (
            {"conditions": {**CONDITIONS, "full": {"freze": "none"}}},
            r"^condition 'full': unknown field 'freze' .*'freeze'\?\); [^,]*$",
        ),
        ({"tasks": {"pair": {"zzz": 1}}}, "^task 'pair': unknown field 'zzz'; finetune.py --help"),
        ({"common": {"epoch": 1}}, r"^common: unknown field 'epoch' \(did you mean 'epochs'"),
        ({"common": {"seed": 1}}, "seed is set by the study itself"),
        ({"common": {"max_train_examples": 9}, "sizes": (5,)}, "max_train_examples is set by the study"),
        ({"tuning_seeds": (2,)}, "tuning_seeds must be given and differ from seeds"),
        ({"tuning": {}}, "must set selection_fraction"),
        ({"common": {"selection_fraction": 0.5}}, "selection_fraction is for tuning alone"),
        ({"seeds": (1, 1)}, "seeds are given twice"),
        ({"sizes": (50, 100, 50)}, "sizes are given twice"),
        ({"seeds": ()}, "needs conditions, tasks and seeds"),
        ({"seeds": 3}, "seeds must be a list; got 3"),
        ({"sizes": "100"}, "sizes must be a list; got '100'"),
        ({"arms": CONDITIONS}, "arms is another name for conditions"),
        ({"conditions": ["full"]}, r"conditions must be a dict; got \['full'\]"),
        (
            {"comparisons": [("full", "features")]},
            r'comparisons must be Comparison\("first condition", "second condition"\); got \(',
        ),
        ({"common": {"epochs": 0}}, "--epochs must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(changes: dict[str, Any], message: str) -> None:
    check_refused(message, make, **changes)


def fake_run(score: float, split: str = "selection") -> Any:
    scores = pd.DataFrame({"epoch": [0.0, 1.0], "split": split, "num_examples": 20, "accuracy": [0.9, score]})
    return SimpleNamespace(
        path=Path("run"), scores=scores, manifest={"task": {"reported_split": split, "score": "accuracy"}}
    )


def test_the_best_setting_at_the_last_epoch_is_chosen_and_the_first_of_equals() -> None:
    study = make(tuning_seeds=(7, 8))
    wanted = {("order", "full"): (0.5, 0.75), ("pair", "full"): (0.75, 0.75)}
    table = choose(
        study,
        {c: fake_run(wanted.get((c.task, c.condition), (float("nan"), 0.1))[c.setting]) for c in study.tuning_cells()},
    )
    assert chosen_settings(table) == {
        ("order", "full"): 1,
        ("pair", "full"): 0,
        ("order", "features"): 1,
        ("pair", "features"): 1,
    }
    assert (table.groupby(["task", "condition"]).size() == 2).all()
    assert set(table["num_seeds"]) == {2}
    assert set(table["fields"]) == {"learning_rate 1e-05", "learning_rate 0.0001", "pooling cls", "as it is"}


@pytest.mark.parametrize(
    ("score", "macro_f1", "best"),
    [
        (None, (0.2, 0.3), 0),
        ("accuracy", (0.2, 0.3), 0),
        ("macro_f1", (0.2, 0.3), 1),
        ("r2", (0.2, 0.3), 0),  # which no run has
        ("macro_f1", (np.nan, 0.3), 1),  # and not the greater accuracy
    ],
)
def test_settings_are_chosen_by_the_score_that_the_study_names_and_undefined_is_the_worst(
    score: str | None, macro_f1: tuple[float, float], best: int
) -> None:
    def run(setting: int) -> Any:
        own = fake_run((0.9, 0.8)[setting])
        before = 0.5 + 0 * macro_f1[setting]  # undefined at every epoch or at none
        own.scores = own.scores.assign(macro_f1=[before, macro_f1[setting]], r2=np.nan)
        return own

    study = make(score=score)
    table = choose(study, {c: run(c.setting or 0) for c in study.tuning_cells()})
    assert set(chosen_settings(table).values()) == {best}
    assert set(table["score"]) == {score if score == "macro_f1" else "accuracy"}


@pytest.mark.parametrize("score", ["macro_f2", "loss", "perplexity", "", 3])
def test_a_score_that_no_run_can_be_judged_by_is_refused_at_once(score: Any) -> None:
    check_refused(rf"^unknown score '{score}'.*choose from: accuracy, macro_f1, .*, r2$", make, score=score)


def test_a_setting_that_diverged_is_the_worst() -> None:
    study = make()
    runs: dict[Any, Any] = {c: fake_run(0.1) if c.setting else None for c in study.tuning_cells()}
    table = choose(study, runs)
    assert set(chosen_settings(table).values()) == {1}
    assert table.loc[table["setting"] == 0, "fields"].str.contains("diverged").all()


EDGES = {
    "rises to the greatest": ([0.1, 0.2, 0.3], 2, True),
    "rises to the least": ([0.3, 0.2, 0.1], 0, True),
    "has a summit": ([0.1, 0.3, 0.2], 1, False),
    "levels off": ([0.3, 0.3, 0.3], 0, False),
    "levels off at the greatest": ([0.1, 0.3, 0.3], 2, False),
    "beside one that diverged": ([0.1, -np.inf, 0.3], 2, True),
    "all diverged": ([-np.inf] * 3, 0, False),
}


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_an_edge_is_where_the_score_still_rises(name: str, order: tuple[int, ...]) -> None:
    """Whatever the order of the grid: neighbours are neighbours in the field's values."""
    scores, chosen, expected = EDGES[name]
    rates = [{"learning_rate": rate} for rate in (1e-5, 1e-4, 1e-3)]
    shuffled = np.array([scores[i] for i in order])
    assert is_at_edge([rates[i] for i in order], shuffled, order.index(chosen)) is expected


def test_an_edge_of_a_grid_of_two_fields_is_in_one_of_them() -> None:
    """A neighbour differs in one field; a field of words has no edge, and nothing lies below 0."""
    grid = [{"learning_rate": rate, "epochs": epochs} for rate in (1, 2, 3) for epochs in (5, 10, 20)]
    diagonal = [{"learning_rate": 1, "epochs": 5}, {"learning_rate": 2, "epochs": 9}]
    words = [{"pooling": "cls", "save_model": False}, {"pooling": "mean", "save_model": True}]
    square = [{"learning_rate": rate, "epochs": epochs} for rate in (1, 2) for epochs in (5, 10)]
    decay = [{"weight_decay": value} for value in (0.0, 0.1, 0.2)]
    for fields, scores, chosen, expected in (
        # Both values lie inside, though another setting is better.
        (grid, [0.1, 0.2, 0.1, 0.3, 0.6, 0.5, 0.2, 0.4, 0.9], 4, False),
        (grid, [0.1, 0.2, 0.1, 0.3, 0.6, 0.5, 0.2, 0.4, 0.9], 8, True),
        (grid, [0.1, 0.2, 0.1, 0.3, 0.6, 1.0, 0.2, 1.0, 0.9], 8, False),
        (diagonal, [0.1, 0.2], 1, True),
        (words, [0.1, 0.2], 1, False),
        (square, [0.9, 0.5, 0.5, 0.9], 0, True),  # the equal one differs in both fields
        (decay, [0.3, 0.2, 0.1], 0, False),
        (decay, [0.1, 0.2, 0.3], 2, True),
        ([{"learning_rate": 1.0}], [0.5], 0, False),
    ):
        assert is_at_edge(fields, np.array(scores), chosen) is expected, (fields, chosen)


def test_the_tuning_table_says_what_was_chosen_at_an_edge() -> None:
    """A field that a setting leaves out has the condition's own value there: 0.5, the greatest of three."""
    rates = ({"learning_rate": 1e-5}, {"learning_rate": 1e-4}, {})
    study = make(grid={"full": rates, "features": rates})
    wanted = {"order": (0.1, 0.2, 0.3), "pair": (0.1, 0.3, 0.2)}
    table = choose(study, {c: fake_run(wanted[c.task][c.setting or 0]) for c in study.tuning_cells()})
    assert table["is_at_edge"].dtype == bool
    assert table.loc[table["is_at_edge"], ["task", "is_chosen"]].to_numpy().tolist() == [["order", True]] * 2


def test_a_choice_that_has_seen_another_split_or_lacks_a_run_is_refused() -> None:
    study = make()
    cells = study.tuning_cells()
    check_refusals(
        (
            r"scored \['validation'\]: tuning may see selection only",
            lambda: choose(study, {c: fake_run(0.5, "validation") for c in cells}),
        ),
        (
            "setting 1 has 0 of 1 tuning runs",
            lambda: choose(study, {c: fake_run(0.5) for c in cells if c.setting == 0}),
        ),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("STUDY = 3", "it defines a int"),
        ("x = 1", "it defines nothing"),
        ("import nowhere_at_all", "ModuleNotFoundError"),
        ("STUDY = (", "SyntaxError"),
        ("raise SystemExit(3)", r"study\.py cannot be run: SystemExit: 3"),
    ],
)
def test_a_file_that_is_no_study_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "study.py"
    path.write_text(text)
    check_refusals(
        (message, lambda: load_study(path)),
        ("no study file", lambda: load_study(tmp_path / "other.py")),
    )


def test_the_shipped_studies_load() -> None:
    for path in (Path(__file__).parents[2] / "experiments").glob("*.py"):
        if "STUDY = " in path.read_text():
            assert load_study(path).final_cells({})
