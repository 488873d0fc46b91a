"""States with a planted cause in, the ledger's sums over them out; a reading of the three-way design by hand."""

import itertools

import numpy as np

from toolkit.probes.flow.sums import CrossedSums


def cells(num_positions: int, num_contents: int, num_segments: int = 1) -> np.ndarray:
    """(N, 3) every cell once: position, content, segment, in random order."""
    every = list(itertools.product(range(num_positions), range(num_contents), range(num_segments)))
    return np.random.default_rng(1).permutation(np.array(every))


def summed(states: np.ndarray, levels: np.ndarray, shape: tuple[int, int, int], num_units: int = 1) -> CrossedSums:
    """The states added in uneven batches."""
    sums = CrossedSums(*shape, num_units=num_units)
    for start in range(0, len(levels), 37):
        part = slice(start, start + 37)
        sums.add(states[part], *levels[part].T)
    return sums
