"""The decay replay against the optimizer itself, bit for bit, and the share of drift that it leaves over."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.adam_runs import optimize
from tests.refusals import check_refusals, check_refused, refused
from toolkit.analysis.adam import replay_decay, unexplained_by_decay, unexplained_share
from toolkit.families import EMBEDDING_PARAMETERS
from toolkit.snapshots.logs import OptimizerLog
from toolkit.snapshots.snapshot import Snapshot, Trajectory


def _log(rates, decay=0.01, is_fused=False, **changes):
    values = {
        "algorithm": "torch.optim.AdamW",
        "is_fused": is_fused,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": {"word_embeddings": decay, "LayerNorm.bias": 0.0},
        "learning_rates": np.array(rates, np.float64),
        "head_learning_rates": np.array(rates, np.float64),
        "clipping_factors": np.ones(len(rates)),
        "precision": "no",
    }
    return OptimizerLog(**(values | changes))


def _optimize(rows, log):
    """The rows after torch.optim.AdamW with zero gradients: the slow oracle."""
    return optimize(rows, np.zeros((len(log.learning_rates), *rows.shape), np.float32), log)[-1]


def _is_bit_identical(a, b):
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def _train(hidden, peak, decay, is_fused, steps=60):
    """A small real training run; rows before, rows after, the rows that were seen, and the log."""
    generator = torch.Generator().manual_seed(hidden)
    model = torch.nn.Embedding(40, hidden, padding_idx=0)
    with torch.no_grad():
        model.weight.copy_(torch.randn(40, hidden, generator=generator) * 0.04)
    before = model.weight.detach().numpy().copy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=decay, fused=is_fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 6, (steps - s) / (steps - 6)))
    rates, seen = [], set()
    for _ in range(steps):
        tokens = torch.cat([torch.randint(1, 25, (6,), generator=generator), torch.zeros(2, dtype=torch.long)])
        seen |= set(tokens.tolist()) - {0}
        optimizer.zero_grad()
        (model(tokens) - 1).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return before, model.weight.detach().numpy(), sorted(seen), _log(rates, decay, is_fused)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("hidden", [13, 384])
@pytest.mark.parametrize(("peak", "decay"), [(5e-5, 0.01), (6e-6, 0.01), (1e-2, 0.1)])
def test_replay_is_what_training_does_to_rows_it_never_saw(hidden, peak, decay, is_fused):
    before, after, seen, log = _train(hidden, peak, decay, is_fused)
    unseen = np.setdiff1d(np.arange(40), seen)
    assert {0, 25, 39} <= set(unseen.tolist())  # [PAD] is one of them
    replayed = replay_decay(before, log, "word_embeddings")
    assert _is_bit_identical(replayed[unseen], after[unseen])
    assert not _is_bit_identical(before[unseen], after[unseen])
    assert not (replayed[seen] == after[seen]).all(axis=1).any()
    assert unexplained_share(before[unseen], replayed[unseen], after[unseen]) == 0
    assert unexplained_share(before[seen], replayed[seen], after[seen]) > 0.5


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(1e-9, 1e-2), min_size=1, max_size=6),
    st.sampled_from((0.0, 1e-4, 0.01, 0.1, 1.0)),
    st.booleans(),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40),
)
def test_replay_against_the_optimizer(rates, decay, is_fused, values):
    rows = np.array([values], np.float32)  # zeros of both signs, subnormals and the largest floats among them
    log = _log(rates, decay, is_fused)
    assert _is_bit_identical(replay_decay(rows, log, "word_embeddings"), _optimize(rows, log))


@pytest.mark.parametrize("is_fused", [False, True])
def test_replay_against_the_optimizer_around_the_rounding_threshold(is_fused):
    rows = np.random.default_rng(0).normal(0, 0.04, (50, 33)).astype(np.float32)
    for rate in (2.0**-25 * (1 - 1e-6), 2.0**-25, 2.0**-25 * (1 + 1e-6), 2.0**-24, 1.5 * 2.0**-24):
        log = _log([rate] * 5, 1.0, is_fused)
        replayed = replay_decay(rows, log, "word_embeddings")
        assert _is_bit_identical(replayed, _optimize(rows, log))
        assert _is_bit_identical(replayed, rows) == (rate <= 2.0**-25)


def test_just_above_the_threshold_fp32_decays_too_much():
    rows = np.random.default_rng(0).normal(0, 0.04, (2000, 50)).astype(np.float32)
    replayed = replay_decay(rows, _log([3e-6] * 100), "word_embeddings").astype(np.float64)
    ratio = np.sum((rows - replayed) * rows) / np.sum(rows.astype(np.float64) ** 2) / (100 * 3e-8)
    assert ratio == pytest.approx(2.9, abs=0.1)  # SCIENCE.md section 1


def test_replay_stops_at_a_step_and_skips_what_had_no_learning_rate():
    rows = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    log = _log([1e-3, 2e-3, 3e-3])
    assert _is_bit_identical(replay_decay(rows, log, "word_embeddings", 2), _optimize(rows, _log([1e-3, 2e-3])))
    assert _is_bit_identical(replay_decay(rows, log, "word_embeddings", 0), rows)
    gap = _log([1e-3, np.nan, 3e-3])
    assert _is_bit_identical(replay_decay(rows, gap, "word_embeddings"), _optimize(rows, _log([1e-3, 3e-3])))
    for frozen, parameter in (
        (_log([np.nan] * 3), "word_embeddings"),
        (log, "position_embeddings"),
        (log, "LayerNorm.bias"),
    ):
        replayed = replay_decay(rows, frozen, parameter)
        assert (_is_bit_identical(replayed, rows), replayed is rows) == (True, False)


def test_replay_works_on_mapped_rows_of_any_size(tmp_path):
    rows = np.random.default_rng(0).normal(size=(700, 300)).astype(np.float32)  # more than one block of values
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    log = _log(np.linspace(1e-3, 1e-5, 20))
    replayed = replay_decay(mapped, log, "word_embeddings")
    assert _is_bit_identical(replayed, _optimize(rows, log))
    assert type(replayed) is np.ndarray
    assert replay_decay(rows[:0], log, "word_embeddings").shape == (0, 300)


def test_replay_refuses_what_it_cannot_replay():
    rows = np.ones((2, 2), np.float32)
    for other in ("torch.optim.SGD (momentum)", "somebody.CautiousAdamW"):
        with refused(rf"only torch.optim.AdamW, .* this run used {re.escape(other)}"):
            replay_decay(rows, replace(_log([1e-3]), algorithm=other), "word_embeddings")
    check_refused(r"did you mean 'word_embeddings'\?", replay_decay, rows, _log([1e-3]), "word_embedding")
    many = _log([1e-3], weight_decay=dict.fromkeys((*EMBEDDING_PARAMETERS, "encoder.layer.0.output.dense.bias"), 0.1))
    # The log has the learning rate of the embeddings; layers and head may have others.
    check_refusals(
        (
            f"choose from: {', '.join(EMBEDDING_PARAMETERS)}",
            lambda: replay_decay(rows, many, "encoder.layer.0.output.dense.bias"),
        ),
        ("the rows are float64", lambda: replay_decay(rows.astype(np.float64), _log([1e-3]), "word_embeddings")),
        (
            "last_step must be a whole number of at least 0; got -1",
            lambda: replay_decay(rows, _log([1e-3] * 4), "word_embeddings", last_step=-1),
        ),
        (
            "the optimizer log has 4 steps; asked for the first 99",
            lambda: replay_decay(rows, _log([1e-3] * 4), "word_embeddings", last_step=99),
        ),
    )


def test_unexplained_share():
    before = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    decayed = replay_decay(before, _log([1e-2] * 5), "word_embeddings")
    assert unexplained_share(before, decayed, decayed) == 0
    assert unexplained_share(before, before, decayed) == 1
    assert np.isnan(unexplained_share(before, decayed, before))
    planted = np.zeros_like(before)
    planted[3] = 0.5
    expected = np.sum(planted**2) / np.sum((decayed + planted - before).astype(np.float64) ** 2)
    assert unexplained_share(before, decayed, decayed + planted) == pytest.approx(expected, rel=1e-5)


def test_what_the_optimizer_did_after_the_last_snapshot_does_not_count(make_exposure):
    before = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    log = _log([1e-3] * 20)
    after = replay_decay(before, log, "word_embeddings", 10)
    snapshots = [Snapshot(0, 0, {"word_embeddings": before}), Snapshot(1, 10, {"word_embeddings": after})]
    exposure = make_exposure({"word_embeddings": [[]] * 19 + [list(range(6))]})
    assert unexplained_by_decay(Trajectory(snapshots, read_exposure=lambda: exposure), log) == 0
