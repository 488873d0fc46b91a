"""The exponents of experiments/learning_rates.py: a planted power law comes back, between each two rates."""

import runpy
from pathlib import Path

import pandas as pd
import pytest

EXPERIMENT = runpy.run_path(str(Path(__file__).parents[2] / "experiments" / "learning_rates.py"))


def test_a_planted_power_law_has_its_exponent_between_any_two_rates():
    rates = (1e-5, 3e-5, 1e-3)
    lines = [
        {"task": "t", "rows": rows, "seed": seed, "rate": rate, "relative_drift": (1 + seed) * rate**b}
        for rows, b in (("words", 0.5), ("positions", 1.0))
        for seed in range(3)
        for rate in rates
    ]
    found = EXPERIMENT["exponents"](pd.DataFrame(lines))
    assert found.index.get_level_values("rate").unique().tolist() == list(rates[:-1]), "named by the lower rate"
    assert found["t", "words"].tolist() == pytest.approx([0.5, 0.5])
    assert found["t", "positions"].tolist() == pytest.approx([1.0, 1.0])


def test_where_the_law_breaks_only_the_exponents_after_it_differ():
    drifts = {1e-5: 1.0, 1e-4: 10.0, 1e-3: 10.0}
    lines = [{"task": "t", "rows": "r", "seed": 0, "rate": k, "relative_drift": v} for k, v in drifts.items()]
    assert EXPERIMENT["exponents"](pd.DataFrame(lines)).tolist() == pytest.approx([1.0, 0.0])
