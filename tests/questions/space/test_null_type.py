"""Nulls of large float32 tables, whose products are float32: as good as float64's, or not used."""

import numpy as np
import pytest

from toolkit.questions.space import cross_products
from toolkit.questions.space.cross_products import cross_products_of
from toolkit.questions.space.similarity import compare_rows
from toolkit.questions.space.similarity_table import SIMILARITIES


def _versions(*, mean: float = 2.0, size: float = 1e-3) -> tuple[np.ndarray, np.ndarray]:
    """1,500 rows of 24 columns whose scales differ tenfold and whose mean is not 0, and what they drifted to."""
    rng = np.random.default_rng(5)
    x = mean + rng.normal(size=(1500, 24)) * np.geomspace(0.3, 3, 24)
    return x.astype(np.float32), (x + size * rng.normal(size=x.shape)).astype(np.float32)


@pytest.mark.parametrize("null", ["permuted rows", "isotropic drift"])
@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0])
def test_nulls_in_float32_are_those_of_float64(monkeypatch, null, size):
    x, y = _versions(size=size)
    names = [name for name, entry in SIMILARITIES.items() if entry.sample == "rows"]
    double = compare_rows(x, y, names, null=null, num_null=5).set_index("measure")
    monkeypatch.setattr(cross_products, "SHORT_VALUES", 0)
    assert cross_products_of(x, y).null_type is np.float32
    short = compare_rows(x, y, names, null=null, num_null=5).set_index("measure")
    assert double["value"].equals(short["value"])  # no value of the tables themselves is computed so
    assert not double["null"].equals(short["null"])
    for column in ("null", "null_low", "null_high"):
        # Far within the draws' own spread, or to the digits of float32 where they have none.
        difference, spread = (double[column] - short[column]).abs(), double["null_sd"]
        assert (difference < np.maximum(2e-3 * spread, 1e-6 * double[column].abs())).all(), column


def _collinear(x):
    x[:, 1] = x[:, 0] + 1e-5 * x[:, 1]


def _constant(x):
    x[:, 3] = 0.5


def _far(x):
    x[:, 2] += 3e3


def _huge(x):
    x *= 1e18


def _tiny(x):
    x *= 1e-18


@pytest.mark.parametrize("spoil", [_collinear, _constant, _far, _huge, _tiny])
@pytest.mark.parametrize("side", [0, 1])
def test_tables_on_which_rounding_would_show_stay_in_float64(monkeypatch, spoil, side):
    monkeypatch.setattr(cross_products, "SHORT_VALUES", 0)
    versions = _versions()
    assert cross_products_of(*versions).null_type is np.float32
    spoil(versions[side])
    assert cross_products_of(*versions).null_type is np.float64


def test_small_tables_and_those_of_float64_stay_in_float64(monkeypatch):
    x, y = _versions()
    assert cross_products_of(x, y).null_type is np.float64
    monkeypatch.setattr(cross_products, "SHORT_VALUES", x.size)
    assert cross_products_of(x, y).null_type is np.float32
    assert cross_products_of(x, y.astype(np.float64)).null_type is np.float64
    assert cross_products_of(x.astype(np.float64), y).null_type is np.float64
