"""Settings of this process: freed memory is kept for the next step, what is imported is not looked through again and
again, and whether the hub may be asked."""

import atexit
import ctypes
import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

KNOWN_SECONDS = 60
"""For which the hub's answer, or that there was none, is taken to hold: a command asks for several files."""


def is_hub_reachable() -> bool:
    """Whether the hub answers one request within HF_HUB_ETAG_TIMEOUT, through whatever proxy the hub's library takes.

    The library itself asks for each file that it has not kept, seven times and up to a minute each, of a hub that
    takes the connection and says nothing, and for half a minute of one that is down; no setting of it bounds that.
    """
    return not unreachable_hub()


def unreachable_hub() -> str:
    """What to say where :func:`is_hub_reachable` is False, with the setting that bears on it; else empty."""
    return (
        "the hub cannot be reached (HF_HUB_OFFLINE)" if _is_offline() else _ask(int(time.monotonic() // KNOWN_SECONDS))
    )


DOWN = (500, 502, 503, 504)
"""Answers after which the library that asks waits and asks again."""


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


@lru_cache(maxsize=1)
def _ask(period: int) -> str:
    """What was wrong with the hub's answer when it was asked in this period of KNOWN_SECONDS; empty where nothing."""
    from huggingface_hub import get_session
    from huggingface_hub.constants import ENDPOINT, HF_HUB_ETAG_TIMEOUT

    try:
        status = get_session().head(ENDPOINT, timeout=HF_HUB_ETAG_TIMEOUT, follow_redirects=False).status_code
    except Exception:  # whatever the library that asks raises: its versions use different ones
        return f"the hub cannot be reached within the {HF_HUB_ETAG_TIMEOUT} s of HF_HUB_ETAG_TIMEOUT"
    return f"the hub is down (it answers {status})" if status in DOWN else ""


MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2
"""glibc's names of what mallopt(3) sets."""


def keep_freed_memory() -> bool:
    """Have glibc's allocator keep what is freed, for this process; False where the C library is another.

    A page that is touched for the first time takes 2 microseconds on a virtual machine, and scoring touched 10,000 per
    1,000 sentences. The process never holds more than at its peak, and gives it back when it is asked again: what one
    run has left lies between what the next one needs, and 34 runs in one process had come to hold 5 GB.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt, trim = ctypes.CDLL(None).mallopt, ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return False  # musl
    trim(0)
    settings = {MMAP_THRESHOLD: 2**30, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}
    accepted = [mallopt(name, value) for name, value in settings.items()]
    return accepted == [1, 1, 1]


_stays = False
"""Whether what this process holds once its modules are imported stays until it ends."""


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """Inside, Python does not look for cycles that nobody uses: among the objects of modules that are imported it finds
    none, and looks through all of them many times, which is a sixth of the time that importing takes."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _stays:
            gc.freeze()
        if was_enabled:
            gc.enable()


@contextmanager
def as_command() -> Iterator[None]:
    """Inside, what is there after :func:`collecting_nothing` is not looked through any more, unless somebody else has
    frozen what there was; nor is anything when the process ends, which of torch and transformers takes a second."""
    global _stays
    atexit.register(gc.freeze)
    _stays = gc.get_freeze_count() == 0
    try:
        yield
    finally:
        if _stays:
            gc.unfreeze()
        _stays = False
