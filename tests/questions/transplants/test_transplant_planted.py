"""The check of planted causes says apart whether it is sensitive and, by its control, whether it is specific."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from toolkit.questions.transplants.measure import Transplants

SCRIPT = Path(__file__).parents[3] / "experiments" / "transplants.py"
COMPONENTS = ("word", "position", "segment")


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("transplants_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def found(script, values: dict[str, tuple[float, float, float]]) -> Transplants:
    """Additive games of three seeds, with the given estimate and interval of each component."""
    total = sum(estimate for estimate, _, _ in values.values())
    lines = [{"component": "all", "value": total, "low": total, "high": total, "share": 1.0}] + [
        {"component": name, "value": e, "low": low, "high": high, "share": e / total}
        for name, (e, low, high) in values.items()
    ]
    shapley = pd.DataFrame(lines).assign(score="log-likelihood", num_seeds=3)
    worths = np.array([values[name][0] for name in COMPONENTS])
    coalitions = pd.DataFrame(
        [
            {"seed": seed, "score": "log-likelihood", "value": sum(worths[i] for i in range(3) if s >> i & 1)}
            for seed in range(3)
            for s in range(8)
        ]
    )
    empty = pd.DataFrame()
    return Transplants(shapley, empty, coalitions, empty)


def test_a_control_that_is_worth_something_is_said_though_the_cause_is_recovered(script) -> None:
    case = script.Case("polarity", "encoder", "word", ("segment",), "position")
    loud = {"word": (0.38, 0.32, 0.44), "position": (0.17, 0.13, 0.20), "segment": (0.0, 0.0, 0.0)}
    quiet = loud | {"position": (0.02, -0.03, 0.07)}
    for values, is_quiet in ((loud, False), (quiet, True)):
        table = script.recovered(case, found(script, values)).set_index("component")
        assert list(table["role"]) == ["cause", "control", "frozen"]
        assert (list(table["came_out"]), list(table["num_seeds_so"].fillna(-1))) == ([True, is_quiet, True], [3, -1, 3])


def test_every_cause_has_a_control_in_its_runs_and_where_the_cause_is_frozen(script) -> None:
    carries = {"order": "position", "polarity": "word"}
    for task, cause in carries.items():
        own = [case for case in script.CASES if case.task == task]
        (other,) = set(carries.values()) - {cause}
        assert {case.largest for case in own} == {cause, ""}
        assert {case.control for case in own} == {other, ""}
        (frozen,) = [case for case in own if not case.largest]
        assert f"{cause}_embeddings" in frozen.freeze
        assert cause in frozen.still
        assert frozen.control == other
