"""The precision guard against torch's own rounding."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.adam_runs import WORDS, make_log
from tests.refusals import check_refusals, check_refused
from toolkit.analysis.precision import (
    FORMATS,
    guard_precision,
    movable_share,
    stored_precision,
)
from toolkit.snapshots.snapshot import Snapshot, Trajectory

TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_rounding_is_that_of_torch(name, values):
    """float32 inputs: their rounding to a coarser format is exact, ties and subnormals included."""
    expected = torch.tensor(values, dtype=torch.float32).to(TORCH[name]).double().numpy()
    assert np.array_equal(FORMATS[name].round(np.array(values, np.float64)), expected)


def test_in_bf16_only_weights_below_two_to_the_minus_seven_can_move():
    """SCIENCE.md, section 1: learning rate 2e-5."""
    below, above = np.nextafter(2.0**-7, [0, 1])
    assert movable_share(np.array([below, -below, 1e-4]), 2e-5, "bf16") == pytest.approx(1 / 3)  # they round to 2⁻⁷
    assert movable_share(np.array([2.0**-7 - 2.0**-15, 1e-9, 0.0]), 2e-5, "bf16") == 1
    assert movable_share(np.array([2.0**-7 + 2.0**-14, above, 0.1, -3.0]), 2e-5, "bf16") == 0
    table = np.random.default_rng(0).normal(0, 0.04, (3000, 100))
    assert movable_share(table, 2e-5, "bf16") == pytest.approx(math.erf(2.0**-7 / 0.04 / math.sqrt(2)), abs=0.003)
    assert movable_share(table, 2e-5, "bf16") == pytest.approx(0.15, abs=0.01)
    assert movable_share(table, 2e-5, "fp32") == 1
    assert math.isnan(movable_share(table[:0], 1e-3))


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_movable_share_is_what_torch_moves(name):
    weights = torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.04
    stored = weights.to(TORCH[name])
    for rate in (1e-6, 2e-5, 3e-4, 2.0**-12):
        exact = stored.float()  # float32 holds the sum of these to far more digits than either format
        moved = [((exact + sign * rate).to(TORCH[name]) != stored) for sign in (1, -1)]
        assert movable_share(weights.numpy(), rate, name) == pytest.approx((moved[0] & moved[1]).double().mean().item())


def test_movable_share_refuses():
    check_refusals(
        (r"unknown dtype 'bf15' \(did you mean 'bf16'\?\)", lambda: movable_share(np.ones(3), 1e-3, "bf15")),
        ("must be above 0, not 0", lambda: movable_share(np.ones(3), 0, "bf16")),
        ("values that fp16 cannot hold", lambda: movable_share(np.array([70_000.0]), 1e-3, "fp16")),
    )


def test_stored_precision_sees_through_the_dtype():
    weights = torch.randn(3000, generator=torch.Generator().manual_seed(1)) * 0.04
    for name in ("bf16", "fp16"):
        assert stored_precision(weights.to(TORCH[name]).float().numpy()) == name
    assert stored_precision(weights.numpy()) == "fp32"
    many = np.zeros(200_000, np.float32)
    many[-1] = 0.1
    assert stored_precision(many) == "fp32"  # one value decides, wherever it stands


def _trajectory(before, after):
    return Trajectory([Snapshot(0, 0, {WORDS: before}), Snapshot(1, 10, {WORDS: after})])


def _verdict(before, after, **options):
    return guard_precision(_trajectory(before, after), 1, **options).iloc[0]


def test_no_drift_is_never_a_verdict_on_half_precision_weights():
    weights = torch.randn(50, 40, generator=torch.Generator().manual_seed(2)) * 0.04
    full, half = weights.numpy(), weights.bfloat16().float().numpy()
    log = make_log([2e-5] * 10)
    line = _verdict(half, half, log=log)
    share = line["movable_bf16"]
    assert line["finding"] == f"not identifiable: bf16 weights, of which one update can change {100 * share:.3g} %"
    assert (0.1 < share < 0.2, line["precision"]) == (True, "bf16")
    assert _verdict(full, full, log=log)["finding"] == "did not move"
    assert _verdict(half, half)["finding"].endswith("can change an unknown share")
    assert math.isnan(_verdict(half, half)["movable_bf16"])
    assert _verdict(half, half, learning_rate=2e-5)["movable_bf16"] == share


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [("half", "half", "bf16"), ("full", "half", "fp32"), ("half", "full", "fp32"), ("ones", "half", "bf16")],
)
def test_weights_have_the_precision_that_holds_both_snapshots(before, after, expected):
    full = torch.randn(50, 40, generator=torch.Generator().manual_seed(2)) * 0.04
    tables = {"full": full.numpy(), "half": full.bfloat16().float().numpy(), "ones": np.ones((50, 40), np.float32)}
    assert _verdict(tables[before], tables[after])["precision"] == expected


def test_moved_and_frozen():
    weights = np.random.default_rng(0).normal(0, 0.04, (50, 40)).astype(np.float32)
    changed = weights.copy()
    changed[:10] += 0.01
    line = _verdict(weights, changed, log=make_log([2e-5] * 10))
    assert (line["finding"], line["moved_share"], line["learning_rate"]) == ("moved", 0.2, 2e-5)
    frozen = _verdict(weights, weights, log=make_log([2e-5] * 10, weight_decay={}))
    assert frozen["finding"] == "frozen"
    assert np.isnan([frozen["learning_rate"], frozen["movable_fp32"]]).all()
    assert _verdict(weights, weights, log=make_log([np.nan] * 10))["finding"] == "frozen"


def test_a_trained_parameter_is_not_called_frozen_before_its_first_step():
    weights = np.random.default_rng(0).normal(0, 0.04, (50, 40)).astype(np.float32)
    log = make_log([np.nan] * 10 + [2e-5] * 10)  # the first ten steps without a rate, as far as the snapshot goes
    line = _verdict(weights, weights, log=log)
    assert (line["finding"], math.isnan(line["learning_rate"])) == ("did not move", True)
    check_refused(
        "epoch 0 is not after the reference, epoch 0", guard_precision, _trajectory(weights, weights), 0, log=log
    )
