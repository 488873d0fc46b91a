"""A small table of the rows in use trains as the whole table would, bit for bit."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from toolkit.training.weights import CompactWords

ROWS, WIDTH, PADDING = 50, 12, 3
USED = np.array([0, 3, 7, 8, 20, 49])


def _table(padding: int | None = PADDING) -> nn.Embedding:
    torch.manual_seed(0)
    table = nn.Embedding(ROWS, WIDTH, padding_idx=padding)
    nn.init.normal_(table.weight)
    return table


def _batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.from_numpy(USED)[torch.randint(len(USED), (4, 5), generator=generator)] for _ in range(7)]


def _train(table: nn.Embedding, parameter: nn.Parameter, decay: float, words: CompactWords | None) -> None:
    optimizer = torch.optim.AdamW([parameter], lr=1e-2, weight_decay=decay, fused=True)
    goal = torch.linspace(-1, 1, WIDTH)
    for k, ids in enumerate(_batches()):
        optimizer.param_groups[0]["lr"] = rate = 1e-2 / (k + 1)
        functional.mse_loss(table(ids), goal.expand(4, 5, WIDTH)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if words is not None:
            words.decay(rate * decay)


@pytest.mark.parametrize("decay", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("padding", [PADDING, None])
def test_the_whole_table_after_training_is_bit_for_bit_that_of_the_dense_optimizer(decay, padding):
    dense, compact = _table(padding), _table(padding)
    before, whole = compact.weight.detach().clone(), compact.weight
    _train(dense, dense.weight, decay, None)
    words = CompactWords(compact, USED)
    words.install()
    _train(compact, words.parameter, decay, words)
    assert torch.equal(compact.weight, words.parameter)
    words.settle()
    assert compact.weight is whole
    assert torch.equal(compact.weight, dense.weight)
    others = np.setdiff1d(np.arange(ROWS), USED)
    assert torch.equal(compact.weight[others], before[others]) == (decay == 0)
    assert torch.equal(compact(torch.arange(ROWS)), compact.weight)


def test_training_goes_on_after_a_settle_as_if_there_had_been_none():
    tables = [_table(), _table()]
    for table, is_settled in zip(tables, (False, True), strict=True):
        words = CompactWords(table, USED)
        for _ in range(2):
            words.install()
            _train(table, words.parameter, 0.1, words)
            if is_settled:
                words.settle()
        words.settle()
    assert torch.equal(tables[0].weight, tables[1].weight)


def test_places():
    words = CompactWords(_table(), USED)
    assert words.place_of(np.array([49, 0, 1])).tolist() == [5, 0, -1]
    assert words.others.tolist() == np.setdiff1d(np.arange(ROWS), USED).tolist()


def test_a_row_that_was_not_announced_is_an_error_and_not_another_row():
    table = _table()
    CompactWords(table, USED).install()
    with pytest.raises(IndexError):
        table(torch.tensor([1]))
