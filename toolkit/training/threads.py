"""One thread for what is too small to share out."""

from contextlib import AbstractContextManager
from functools import cache
from typing import Any


def one_thread() -> AbstractContextManager[Any]:
    """A block in which scikit-learn computes in one thread: several would wait for each other at small matrices."""
    block: AbstractContextManager[Any] = _pools().limit(limits=1)
    return block


@cache
def _pools() -> Any:
    """The thread pools of this process: ``threadpool_limits`` looks for them among all libraries at every call, which
    takes longer than a small fit."""
    import sklearn.linear_model  # noqa: F401 (loads the libraries that fits compute with)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
