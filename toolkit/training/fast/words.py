"""A word table and the rows that training uses in, a small table of those rows to train in its place out."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

CACHED_ROWS = 256
"""Decayed step after step while they are in a core's cache."""


class CompactWords:
    """The rows of a word table that some training data use, as a parameter of their own.

    A row that no batch shows has no gradient: AdamW's moments of it stay 0 and its step is its decay alone. So only the
    used rows need gradients, moments and updates; the others are multiplied by the decay, exactly as AdamW does it.
    Between `install` and `settle` the module looks words up in the small table.
    """

    def __init__(self, module: nn.Embedding, rows: NDArray[np.int64]) -> None:
        """``rows``: distinct rows, which must hold every id that `module` is called with while installed."""
        self.module, self.table = module, module.weight
        self.rows = torch.from_numpy(np.unique(rows))
        is_other = torch.ones(len(self.table), dtype=torch.bool)
        is_other[self.rows] = False
        self.others = is_other.nonzero()[:, 0]
        self._place = torch.full((len(self.table),), -1)
        self._place[self.rows] = torch.arange(len(self.rows))
        self.parameter = nn.Parameter(self.table.detach()[self.rows])
        self._rest = self.table.detach()[self.others]
        self._decays: list[float] = []
        padding = module.padding_idx
        self._padding = None if padding is None or is_other[padding] else int(self._place[padding])

    def place_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where rows of the whole table are in the small one; -1 for those that are not."""
        places: NDArray[np.int64] = self._place.numpy()[rows]
        return places

    def install(self) -> None:
        """Look words up in the small table."""
        module: Any = self.module
        module.weight = self.parameter
        module.forward = self._look_up

    def _look_up(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(self._place[ids], self.parameter, self._padding)

    def decay(self, amount: float) -> None:
        """One AdamW step of the rows that are not in use; ``amount``: learning rate times weight decay.

        It is done at the next `settle`: nobody looks at these rows before.
        """
        if amount:
            self._decays.append(1 - amount)

    @torch.no_grad()
    def settle(self) -> None:
        """Write all rows back into the whole table and look words up there again."""
        module: Any = self.module
        for rows in torch.split(self._rest, CACHED_ROWS):
            for factor in self._decays:
                rows.mul_(factor)  # one by one, as AdamW rounds
        self._decays.clear()
        self.table[self.rows] = self.parameter.detach()
        self.table[self.others] = self._rest
        if "forward" in vars(module):
            del module.forward
        module.weight = self.table
