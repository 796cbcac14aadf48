"""A cache with a limit in bytes, which drops the least recently used values first."""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class ByteCache(Generic[K]):
    def __init__(self, bytes_max: int) -> None:
        self.hits = 0
        self.misses = 0
        self.bytes = 0
        self._bytes_max = bytes_max
        self._values: dict[K, bytes] = {}  # The values, in the order of their last use.

    def get(self, key: K) -> bytes | None:
        value = self._values.pop(key, None)
        if value is None:
            self.misses += 1
            return None
        self.hits += 1
        self._values[key] = value
        return value

    def peek(self, key: K) -> bytes | None:
        """Returns the value, but does not count this as a use."""
        return self._values.get(key)

    def put(self, key: K, value: bytes) -> None:
        self.drop(key)
        if len(value) > self._bytes_max:
            return
        self._values[key] = value
        self.bytes += len(value)
        while self.bytes > self._bytes_max:
            oldest = next(iter(self._values))
            self.bytes -= len(self._values.pop(oldest))

    def drop(self, key: K) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self.bytes -= len(value)
