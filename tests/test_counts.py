"""Numbers that count something: whole and large enough, or one line that says so."""

import numpy as np
import pytest

from tests.refusals import check_refused
from toolkit.naming import at_least


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_pass_as_plain_ints(value):
    assert type(at_least("k", value, 3)) is int
    assert at_least("k", value, 3) == 3


@pytest.mark.parametrize("value", [2, -1, 3.0, 3.5, float("nan"), "3", None])
def test_others_are_refused(value):
    check_refused(rf"^k must be a whole number of at least 3; got {value!r}$", at_least, "k", value, 3)
