from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.refusals import check_refused
from toolkit.config import RunConfig
from toolkit.data.batches import EncodedSplit, EncodedTask
from toolkit.families import TABLES
from toolkit.snapshots.logs import Exposure
from toolkit.training.loop import Plan, run_epochs
from toolkit.training.optimizer import StepLog
from toolkit.training.recorder import BATCHES_AHEAD, Recorder
from toolkit.training.resume import Resumer

NUM_ROWS = dict(zip(TABLES, (12, 9, 2), strict=True))
OFFSET = 2
"""As RoBERTa counts positions."""


def _data(lengths: list[int], seed: int) -> EncodedTask:
    rng = np.random.default_rng(seed)
    split = EncodedSplit(
        ids=np.arange(len(lengths)),
        labels=np.zeros(len(lengths), np.int64),
        tokens=rng.integers(0, NUM_ROWS["word_embeddings"], sum(lengths), dtype=np.int32),
        segments=rng.integers(0, 2, sum(lengths), dtype=np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        num_truncated=0,
        num_empty_texts=0,
    )
    return EncodedTask(task=None, splits={"train": split}, pad_id=0, num_segments=2, position_offset=OFFSET)


def _record(data: EncodedTask, batches: list[NDArray[np.int64]], expected: list[NDArray[np.int64]]) -> Exposure:
    """Batches recorded, after it was said that ``expected`` come; a gradient's length tells its row and step."""
    recorder = Recorder({name: torch.zeros(rows, 1) for name, rows in NUM_ROWS.items()}, data)
    recorder.expect(expected)
    for step, batch in enumerate(batches):
        _record_batch(recorder, batch, step)
    assert recorder.num_examples == sum(map(len, batches))
    return recorder.exposure()


def _record_batch(recorder: Recorder, batch: NDArray[np.int64], step: int) -> None:
    used = recorder.rows_of(batch)
    norms = {name: (step + rows / 100).astype(np.float32) for name, (rows, _) in used.rows.items()}
    recorder.record_batch(batch, norms, used)


def _check_same(one: Exposure, other: Exposure) -> None:
    tensors, others = one.to_tensors(), other.to_tensors()
    assert tensors.keys() == others.keys()
    assert all(np.array_equal(tensors[name], others[name]) for name in tensors)


def _batches(num_examples: int, sizes: list[int], seed: int) -> list[NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return [rng.choice(num_examples, min(size, num_examples), replace=False) for size in sizes]


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=9),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    num_expected=st.integers(0, 6),
    num_recorded=st.integers(0, 6),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_what_is_recorded_is_what_the_batches_hold_however_many_were_expected(
    lengths: list[int], sizes: list[int], num_expected: int, num_recorded: int, seed: int
) -> None:
    data, batches = _data(lengths, seed), _batches(len(lengths), sizes, seed)

    expected, batches = batches[:num_expected], batches[:num_recorded]

    exposure = _record(data, batches, expected)

    split = data.splits["train"]
    together: Counter[tuple[int, ...]] = Counter()
    entries: dict[str, list[tuple[int, int, int, float]]] = {name: [] for name in TABLES}
    for step, batch in enumerate(batches):
        of_step: list[tuple[int, ...]] = []
        for example in batch:
            start, end = split.offsets[example : example + 2]
            positions = range(OFFSET, OFFSET + end - start)
            of_step += zip(split.tokens[start:end], positions, split.segments[start:end], strict=True)
        together.update(of_step)
        for name, rows in zip(TABLES, zip(*of_step, strict=True), strict=True):
            counted = sorted(Counter(rows).items())
            entries[name] += [(step, row, count, np.float32(step + row / 100)) for row, count in counted]
    for name, table in exposure.tables.items():
        steps = np.repeat(np.arange(len(batches)), np.diff(table.offsets))
        assert list(zip(steps, table.rows, table.counts, table.norms, strict=True)) == entries[name]
    assert dict(zip(map(tuple, exposure.design.combinations), exposure.design.counts, strict=True)) == together


def test_more_batches_than_are_looked_at_together() -> None:
    data = _data([3, 5, 2, 7, 1], seed=0)
    batches = _batches(5, [2, 3] * BATCHES_AHEAD, seed=0)

    ahead, one_by_one = _record(data, batches, batches), _record(data, batches, [])

    _check_same(ahead, one_by_one)


def test_asking_for_the_exposure_between_steps_changes_nothing() -> None:
    data, batches = _data([3, 5, 2, 7, 1], seed=1), _batches(5, [2, 3, 1, 2], seed=1)
    recorder = Recorder({name: torch.zeros(rows, 1) for name, rows in NUM_ROWS.items()}, data)

    recorder.expect(batches)
    for step, batch in enumerate(batches):
        _record_batch(recorder, batch, step)
        assert recorder.exposure().tables["word_embeddings"].num_steps == step + 1

    _check_same(recorder.exposure(), _record(data, batches, batches))


def test_another_batch_than_was_expected_is_refused() -> None:
    data = _data([3, 5, 2], seed=0)

    check_refused("recorded another batch than was expected", _record, data, [np.array([0, 1])], [np.array([0, 2])])


def test_what_is_expected_anew_takes_the_place_of_what_was() -> None:
    data = _data([3, 5, 2], seed=0)
    recorder = Recorder({name: torch.zeros(rows, 1) for name, rows in NUM_ROWS.items()}, data)

    recorder.expect([np.array([0]), np.array([1])])
    _record_batch(recorder, np.array([0]), 0)
    recorder.expect([np.array([2])])
    _record_batch(recorder, np.array([2]), 1)

    _check_same(recorder.exposure(), _record(data, [np.array([0]), np.array([2])], []))


def test_few_large_batches_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.training.recorder.TOKENS_AHEAD", 8)
    data, batches = _data([3, 5, 2, 7, 1], seed=2), [np.array([k]) for k in range(5)]
    taken: list[int] = []

    recorder = Recorder({name: torch.zeros(rows, 1) for name, rows in NUM_ROWS.items()}, data)
    recorder.expect(taken.append(k) or batch for k, batch in enumerate(batches))
    recorder.record_batch(batches[0])

    assert taken == [0, 1]  # 3 + 5 tokens
    _check_same(_record(data, batches, batches), _record(data, batches, []))


def test_training_says_which_batches_come() -> None:
    data, config = _data([3, 5, 2, 7, 1, 4], seed=3), RunConfig(batch_size=2, epochs=3, max_steps=5)
    told: list[list[list[int]]] = []
    taken: list[list[int]] = []
    unreported: list[StepLog] = []
    reported: list[int] = []

    class Spy(Recorder):
        def expect(self, batches: Iterable[NDArray[np.int64]], data: EncodedTask | None = None) -> None:
            told.append([batch.tolist() for batch in batches])

    class Taker:
        report: Callable[[StepLog], None]

        def take(self, indices: NDArray[np.int64], step: int) -> None:
            taken.append(indices.tolist())
            unreported.append(StepLog(step + 1, float(step), 0.0, 0.0))

        def settle(self) -> None:
            while unreported:
                self.report(unreported.pop(0))

    plan = Plan.of(config, data.splits["train"].lengths)
    recorder, stepper = Spy({}, data), cast(Any, Taker())
    anew = Resumer(SimpleNamespace(num_processes=1), recorder, None, None, {})
    moments = list(
        run_epochs(plan, data, config, recorder, stepper, dict, lambda log, seconds: reported.append(log.step), anew)
    )

    assert [len(batches) for batches in told] == [3, 2]
    assert taken == [batch for batches in told for batch in batches]
    assert reported == [1, 2, 3, 4, 5]  # all steps of an epoch before its end, whenever the stepper tells them
    assert [moment.train_loss for moment in moments[1:]] == [1.0, 3.5]
