"""Copies of tensors hold what these were, whatever is made of them afterwards."""

from unittest.mock import Mock

import pytest
import torch

from toolkit.training import host_copies
from toolkit.training.host_copies import HostCopies

TENSORS = {
    "weights": torch.arange(30, dtype=torch.float32).reshape(5, 6),
    "turned": torch.arange(12, dtype=torch.float64).reshape(3, 4).T,
    "step": torch.tensor(7.0),
    "none": torch.empty(0, 3),
    "flags": torch.tensor([True, False, True]),
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_copies_stay_as_their_tensors_were(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    monkeypatch.setattr(host_copies, "PIECE_BYTES", 16)
    copies = HostCopies()
    for shift in (0, 1):
        live = {name: (tensor + shift).to(tensor.dtype).to(device) for name, tensor in TENSORS.items()}
        before = {name: tensor.cpu().clone().numpy() for name, tensor in live.items()}
        made = copies.take(live)
        for tensor in live.values():
            tensor.zero_()
        assert made.keys() == before.keys()
        for name, values in made.items():
            assert (values.dtype, values.shape) == (before[name].dtype, before[name].shape)
            assert values.tobytes() == before[name].tobytes()


def test_a_piece_is_emptied_before_it_is_filled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU fills at once here is there before anybody has waited for it."""
    monkeypatch.setattr(torch.cuda, "Event", Mock)
    copies, source, target = HostCopies(), torch.arange(10, dtype=torch.uint8), torch.zeros(10, dtype=torch.uint8)
    copies._pinned = [torch.zeros(3, dtype=torch.uint8) for _ in range(2)]
    copies._fetch(list(zip(source.split(3), target.split(3), strict=True)))
    assert target.tolist() == source.tolist()
