"""Settings of this process: freed memory is kept for the next step, and whether the hub may be asked."""

import ctypes
import os
import socket
import sys
from urllib.parse import urlparse
from urllib.request import getproxies


def is_hub_reachable() -> bool:
    """Whether the hub's host name resolves, or a proxy stands in for it; no request is made."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    if getproxies():
        return True
    host = urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname or ""
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2
"""glibc's names of what mallopt(3) sets."""


def keep_freed_memory() -> bool:
    """Have glibc's allocator keep what is freed, for this process; False where the C library is another.

    A page that is touched for the first time takes 2 microseconds on a virtual machine, and scoring touched 10,000 per
    1,000 sentences. The process never holds more than at its peak, and does not give it back before it ends.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False  # musl
    settings = {MMAP_THRESHOLD: 2**30, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}
    accepted = [mallopt(name, value) for name, value in settings.items()]
    return accepted == [1, 1, 1]
