"""A number that an argument should be in, the same as a plain int out, or one line that says what is needed."""

import operator
from typing import Any


def at_least(name: str, value: Any, minimum: int) -> int:
    """``value`` as an int; ValueError with the argument's ``name`` unless it is whole (numpy's too) and large enough.

    A float is refused even where it is whole: what divided two counts is seldom a count.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if number < minimum:
        raise ValueError(f"{name} must be a whole number of at least {minimum}; got {value!r}")
    return number
