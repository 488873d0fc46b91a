"""How a user is told no: a ValueError of one line, and from a command line an exit code."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from toolkit import import_checkpoints


@contextmanager
def refused(said: str = ".", kind: type[ValueError] = ValueError) -> Iterator[pytest.ExceptionInfo[ValueError]]:
    """A block that ends in a refusal that says so."""
    with pytest.raises(kind, match=said) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def check_refused(said: str, call: Callable[..., object], *values: Any, **named: Any) -> None:
    """The call with these arguments ends in a refusal that says so."""
    with refused(said):
        call(*values, **named)


def check_refusals(*cases: tuple[str, Callable[[], object]], kind: type[ValueError] = ValueError) -> None:
    """Each call ends in a refusal that says so; cases: the regular expression of its line, and the call."""
    for said, call in cases:
        with refused(said, kind):
            call()


def refusal_of(*places: object) -> str:
    """The line with which checkpoints are refused."""
    with refused() as caught:
        import_checkpoints(places)
    return str(caught.value)


def leave(entry: Callable[[list[str]], object], words: list[str]) -> Any:
    """The exit code of an entry point."""
    with pytest.raises(SystemExit) as stop:
        entry(words)
    return stop.value.code
