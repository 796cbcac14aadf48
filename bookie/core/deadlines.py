"""Who has to be done by when, if all have equally long: in the order of starting."""

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    def __init__(self, allowed_ns: int) -> None:
        self._allowed_ns = allowed_ns
        self._ends_ns: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._ends_ns)

    def start(self, who: T, now_ns: int) -> None:
        """Anew, if it has one already."""
        self._ends_ns.pop(who, None)
        self._ends_ns[who] = now_ns + self._allowed_ns

    def stop(self, who: T) -> None:
        self._ends_ns.pop(who, None)

    def take_late(self, now_ns: int) -> list[T]:
        late: list[T] = []
        for who, end_ns in self._ends_ns.items():
            if end_ns > now_ns:
                break
            late.append(who)
        for who in late:
            del self._ends_ns[who]
        return late

    def __iter__(self) -> Iterator[T]:
        """Who has been waited for longest comes first."""
        return iter(self._ends_ns)
