from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from toolkit.config import RunConfig
from toolkit.data.batches import EncodedSplit, EncodedTask, epoch_batches
from toolkit.families import TABLES
from toolkit.snapshots.logs import Exposure
from toolkit.training.loop import Plan, run_epochs
from toolkit.training.optimizer import StepLog
from toolkit.training.resume import Resumer
from toolkit.training.step_recorder import Recorder

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


def _record(data: EncodedTask, batches: list[NDArray[np.int64]]) -> Exposure:
    """Batches recorded; a gradient's length tells its row and step."""
    recorder = Recorder({name: torch.zeros(rows, 1) for name, rows in NUM_ROWS.items()})
    for step, batch in enumerate(batches):
        _record_batch(recorder, data, batch, step)
    assert recorder.num_examples == sum(map(len, batches))
    return recorder.exposure()


def _record_batch(recorder: Recorder, data: EncodedTask, batch: NDArray[np.int64], step: int) -> None:
    used = recorder.rows_of(data, batch)
    norms = {name: (step + rows / 100).astype(np.float32) for name, (rows, _) in used.rows.items()}
    recorder.record_batch(used, norms)


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
    num_recorded=st.integers(0, 6),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_what_is_recorded_is_what_the_batches_hold(
    lengths: list[int], sizes: list[int], num_recorded: int, seed: int
) -> None:
    data, batches = _data(lengths, seed), _batches(len(lengths), sizes, seed)[:num_recorded]

    exposure = _record(data, batches)

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


def test_asking_for_the_exposure_between_steps_changes_nothing() -> None:
    data, batches = _data([3, 5, 2, 7, 1], seed=1), _batches(5, [2, 3, 1, 2], seed=1)
    recorder = Recorder({name: torch.zeros(rows, 1) for name, rows in NUM_ROWS.items()})

    for step, batch in enumerate(batches):
        _record_batch(recorder, data, batch, step)
        assert recorder.exposure().tables["word_embeddings"].num_steps == step + 1

    _check_same(recorder.exposure(), _record(data, batches))


def test_training_takes_every_batch_of_each_epoch() -> None:
    data, config = _data([3, 5, 2, 7, 1, 4], seed=3), RunConfig(batch_size=2, epochs=3, max_steps=5)
    taken: list[list[int]] = []
    unreported: list[StepLog] = []
    reported: list[int] = []

    class Taker:
        report: Callable[[StepLog], None]

        def take(self, indices: NDArray[np.int64], step: int) -> None:
            taken.append(indices.tolist())
            unreported.append(StepLog(step + 1, float(step), 0.0, 0.0))

        def settle(self) -> None:
            while unreported:
                self.report(unreported.pop(0))

    plan = Plan.of(config, data.splits["train"].lengths)
    stepper, anew = cast(Any, Taker()), Resumer(SimpleNamespace(num_processes=1), Recorder({}), None, None, {})
    moments = list(run_epochs(plan, data, config, stepper, dict, lambda log, _: reported.append(log.step), anew))

    lengths = data.splits["train"].lengths
    batches = [batch.tolist() for epoch in range(2) for batch in epoch_batches(lengths, config, epoch)]
    assert taken == batches[:5]
    assert reported == [1, 2, 3, 4, 5]  # all steps of an epoch before its end, whenever the stepper tells them
    assert [moment.train_loss for moment in moments[1:]] == [1.0, 3.5]
