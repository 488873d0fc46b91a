"""Small trajectories with everything that strata tell apart, built in memory."""

from collections.abc import Callable

import numpy as np
import pytest

from toolkit.families import TABLES
from toolkit.snapshots.logs import Exposure, TableExposure
from toolkit.snapshots.snapshot import Snapshot, Trajectory, Vocabulary

TOKENS = ("[PAD]", "[unused1]", "[CLS]", "[SEP]", "the", "film", "was", "good", "bad", "[unused]", "", "")
SHAPES = {
    "word_embeddings": (12, 6),
    "position_embeddings": (9, 6),
    "token_type_embeddings": (2, 6),
    "LayerNorm.weight": (6,),
    "LayerNorm.bias": (6,),
}


def _exposure(steps: dict[str, list[list[int]]]) -> Exposure:
    """Per table, the rows (with repeats: tokens) that each step used."""

    def step(rows: list[int]) -> TableExposure:
        distinct, counts = np.unique(np.array(rows, np.int32), return_counts=True)
        return TableExposure.of_step(distinct, counts.astype(np.int32), np.ones(len(distinct), np.float32))

    return Exposure({name: TableExposure.join([step(rows) for rows in table]) for name, table in steps.items()})


@pytest.fixture(scope="session")
def make_exposure() -> Callable[[dict[str, list[list[int]]]], Exposure]:
    return _exposure


@pytest.fixture(scope="session")
def make_trajectory() -> Callable[..., Trajectory]:
    """Three epochs of two steps each and one snapshot in the middle of the second; every row but row 11 drifts."""

    def make(seed: int = 0, exposure: Exposure | None = None, **changes: object) -> Trajectory:
        rng = np.random.default_rng([1, seed])
        tensors = {name: rng.normal(0.1, 0.4, shape).astype(np.float32) for name, shape in SHAPES.items()}
        tensors["word_embeddings"][5] = 0  # a zero reference row: its relative drift is undefined
        snapshots = []
        for epoch, step in ((0, 0), (1, 2), (1.5, 3), (2, 4), (3, 6)):
            snapshots.append(Snapshot(epoch, step, tensors))
            noise = {name: rng.normal(0, 0.05, shape).astype(np.float32) for name, shape in SHAPES.items()}
            noise["word_embeddings"][11] = 0
            tensors = {name: tensor + noise[name] for name, tensor in tensors.items()}
        if exposure is None:
            words = [[2, 4, 4, 5, 3], [2, 4, 6, 3], [2, 4, 3], [2, 4, 7, 3], [2, 4, 3], [2, 4, 6, 3]]
            positions = [list(range(length)) for length in (5, 4, 3, 4, 3, 4)]
            exposure = _exposure(dict(zip(TABLES, (words, positions, [[0] * 4] * 6), strict=True)))
        arguments = {"vocabulary": Vocabulary(TOKENS, frozenset({0, 2, 3}), 0), "read_exposure": lambda: exposure}
        return Trajectory(snapshots, **(arguments | changes))

    return make
