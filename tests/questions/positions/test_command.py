"""The command `positions`: what it refuses before anything is read."""

import pytest

from tests.refusals import refused
from toolkit.questions.positions.command import PositionsCommand


@pytest.mark.parametrize("length", [0, -5])
def test_the_default_length_of_positions_is_checked_before_anything_is_read(length):
    with refused(f"--default-length must be a whole number of at least 1; got {length}"):
        PositionsCommand("nowhere", default_length=length).run()
