"""Signals in, KeyboardInterrupt out: every polite request to stop ends a study in the same way."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def interruptible(*, hang_up: bool = True) -> Iterator[None]:
    """Within this block SIGTERM and SIGHUP (a closed terminal) raise KeyboardInterrupt, as Ctrl-C does.

    ``hang_up=False`` leaves SIGHUP as it is. A signal that is ignored stays ignored, as nohup wants it. Outside the
    main thread nothing changes: Python delivers signals there only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGTERM, *((signal.SIGHUP,) if hang_up else ())):
        handler = signal.getsignal(number)
        if handler is not signal.SIG_IGN:
            before[number] = handler
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
