"""A method in, an attribute that is computed when it is first asked for out."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class LazyProperty(Generic[T]):
    """``functools.cached_property`` without its lock.

    Before Python 3.12 that lock is one for all instances, so threads with a pair of tables each would wait for one
    another. Two threads that ask the same instance at once may both compute.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value: T = self._function(instance)
        vars(instance)[self._name] = value  # found before this descriptor from now on
        return value
