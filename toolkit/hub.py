"""A hub name in, a clear refusal out when the hub cannot be reached, before the libraries retry for half a minute."""

import os
import socket
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
