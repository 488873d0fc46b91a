"""A study's cells in, those that train on different data out: beyond the whole of train, sizes are one and the same."""

from collections.abc import Sequence
from functools import lru_cache

from toolkit.config import RunConfig
from toolkit.studies.study import Cell

SOURCE = (
    "task", "train_file", "validation_file", "test_file", "ood_file", "dataset", "dataset_config", "text_columns",
    "label_column", "label_kind", "task_name",
)  # fmt: skip
"""Fields that say which examples there are."""


def without_repeats(cells: Sequence[Cell]) -> list[Cell]:
    """The cells without those whose size is more than train has, where a smaller one has all of train already.

    Reads the data of a study with sizes, and of no other. ValueError where they cannot be read.
    """
    whole: dict[tuple[object, ...], int] = {}
    for cell in cells:
        if cell.size is not None and cell.size >= num_train(cell.config):
            whole[_kind(cell)] = min(cell.size, whole.get(_kind(cell), cell.size))
    return [cell for cell in cells if cell.size is None or cell.size <= whole.get(_kind(cell), cell.size)]


def notes_on(cells: Sequence[Cell]) -> list[str]:
    """One sentence per task and size that is more than train has: what is trained instead."""
    kept = set(without_repeats(cells))
    notes = {}
    for cell in cells:
        if cell.size is not None and cell.size > (number := num_train(cell.config)):
            known = min(c.size for c in kept if _kind(c) == _kind(cell) and (c.size or 0) >= number)  # type: ignore[type-var]
            lead = f"{cell.task} has {number:,} training examples: size {cell.size:,}"
            same = "is all of them" if cell in kept else f"would repeat size {known:,} and is left out"
            notes[cell.task, cell.size] = f"{lead} {same}."
    return list(notes.values())


def _kind(cell: Cell) -> tuple[object, ...]:
    """What two cells must share for a size to be all that tells them apart."""
    return (cell.stage, cell.task, cell.arm, cell.seed, cell.setting)


def num_train(config: RunConfig) -> int:
    """Examples of train before any are drawn, held out or removed; the data are read once."""
    return _num_train(RunConfig(**{name: getattr(config, name) for name in SOURCE}))


@lru_cache
def _num_train(config: RunConfig) -> int:
    from toolkit.data.tasks import load_task

    return len(load_task(config).splits["train"])
