"""States with a planted cause in, the ledger's sums over them out; a reading of the three-way design by hand."""

import itertools

import numpy as np

from toolkit.questions.flow.ledger import CrossedSums


def cells(num_positions: int, num_contents: int, num_segments: int = 1) -> np.ndarray:
    """(N, 3) every cell once: position, content, segment, in random order."""
    every = list(itertools.product(range(num_positions), range(num_contents), range(num_segments)))
    return np.random.default_rng(1).permutation(np.array(every))


def summed(states: np.ndarray, levels: np.ndarray, shape: tuple[int, int, int], num_units: int = 2) -> CrossedSums:
    """The states added in uneven batches; ``num_units`` blocks."""
    sums = CrossedSums(*shape, num_units=num_units)
    for start in range(0, len(levels), 37):
        part = slice(start, start + 37)
        sums.add(states[part], *levels[part].T)
    return sums


def blocked(
    rng: np.random.Generator,
    num_blocks: int,
    position: np.ndarray,
    *,
    by_block: float = 0.5,
    noise: float = 0.3,
    by_sequence: float = 0.0,
) -> CrossedSums:
    """Blocks of T tokens read at T positions: contents of uneven size, position rows (T, hidden) that all blocks
    share, position rows of each block's own, noise per cell, and a vector that the tokens of one rotation share.
    """
    size, hidden = position.shape
    sums = CrossedSums(size, num_blocks * size, 1, num_units=num_blocks)
    place = np.tile(np.arange(size), size)
    rotation = np.repeat(np.arange(size), size)
    token = (place + rotation) % size
    states = []
    for _ in range(num_blocks):
        contents = rng.normal(size=(size, hidden)) * rng.lognormal(0, 0.5)
        own = by_block * rng.normal(size=(size, hidden))
        shared = by_sequence * rng.normal(size=(size, hidden))
        cause = contents[token] + position[place] + own[place] + shared[rotation]
        states.append(cause + noise * rng.normal(size=cause.shape))
    places = np.tile(place, num_blocks)
    content = np.repeat(np.arange(num_blocks) * size, size * size) + np.tile(token, num_blocks)
    sums.add(np.concatenate(states), places, content, 0 * places)
    return sums
