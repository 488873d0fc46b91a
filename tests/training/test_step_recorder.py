from collections import Counter
from collections.abc import Callable
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


class Traced:
    """A stepper that tells of its steps when it is settled, and a resumer; all that happens is put down in order."""

    report: Callable[[StepLog], None]

    def __init__(self, step: int) -> None:
        self.step, self.events, self.unreported = step, list[Any](), list[int]()

    def take(self, indices: NDArray[np.int64], step: int) -> None:
        self.events.append(("take", step, indices.tolist()))
        self.unreported.append(step)

    def settle(self) -> None:
        for step in self.unreported:
            self.report(StepLog(step + 1, float(step), 0.0, 0.0))
        self.unreported.clear()
        self.events.append("settle")

    def restore(self, trainer: Any) -> dict[str, NDArray[Any]]:
        return {"losses": np.arange(self.step % 3, dtype=float)} if self.step else {}

    def after_step(self, step: int, trainer: Any, losses: list[float]) -> None:
        self.events.append(("after step", step, [*losses]))

    def after_epoch(self, step: int, trainer: Any, losses: list[float]) -> None:
        self.events.append(("after epoch", step, [*losses]))


def trace(step: int) -> list[Any]:
    """What happens in an epoch of three steps and two of a second one, a snapshot every two, behind ``step``."""
    data = _data([3, 5, 2, 7, 1, 4], seed=3)
    config, own = RunConfig(batch_size=2, epochs=3, max_steps=5, snapshot_steps=2), cast(Any, Traced(step))
    plan = Plan.of(config, data.splits["train"].lengths)
    told = lambda log, seconds: own.events.append(("step", log.step))  # noqa: E731
    for moment in run_epochs(plan, data, config, own, dict, told, own):
        own.events.append((moment.epoch, moment.step, moment.is_epoch_end, moment.train_loss))
    return own.events  # type: ignore[no-any-return]


def test_training_takes_every_batch_of_each_epoch_and_a_state_may_be_written_behind_each() -> None:
    """All steps are told before a moment comes; a state within an epoch has its losses so far, one behind it none."""
    lengths, config = np.array([3, 5, 2, 7, 1, 4]), RunConfig(batch_size=2)
    batches = [batch.tolist() for epoch in range(2) for batch in epoch_batches(lengths, config, epoch)]
    events, nan = trace(0), np.nan
    assert repr(events) == repr(
        [
            (0, 0, True, nan),
            *(("take", 0, batches[0]), ("after step", 1, [])),
            *(("take", 1, batches[1]), ("step", 1), ("step", 2), "settle", (2 / 3, 2, False, nan)),
            ("after step", 2, [0.0, 1.0]),
            *(("take", 2, batches[2]), ("step", 3), "settle", (1.0, 3, True, 1.0), ("after epoch", 3, [])),
            *(("take", 3, batches[3]), ("step", 4), "settle", (4 / 3, 4, False, nan)),
            ("after step", 4, [3.0]),
            *(("take", 4, batches[4]), ("step", 5), "settle", (5 / 3, 5, True, 3.5), ("after epoch", 5, [])),
        ]
    )
    # From a state it goes on with what came behind it.
    for step, name, losses in ((2, "after step", [0.0, 1.0]), (3, "after epoch", []), (5, "after epoch", [])):
        assert repr(trace(step)) == repr(events[events.index((name, step, losses)) + 1 :])
