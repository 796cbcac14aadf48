"""Decides which watch gets which event, and queues events for slow readers.

A plain watch reports its node and, as CHILDREN, the creation and deletion of its children. A
recursive watch reports its node and all nodes below it, never as CHILDREN. The node need not exist.

The number of waiting events is bounded, and equal events are merged: a repeated event moves to the
end, so that the last event about a path is the last thing that happened to it. If too many events
wait, one RESYNC replaces them, and also all later events until the reader takes it. The reader then
reads everything again, and sees all of these changes.
"""

from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

from rollbook.proto.metastore.core.request_checks import ROOT, parent_of
from rollbook.proto.ports import WatchEvent, WatchEventKind

EVENTS_WAITING_MAX: Final = 1024

W = TypeVar("W", bound=Hashable)


class WatchTable(Generic[W]):
    """The watches by path. `W` is the type of the caller's keys for watches."""

    def __init__(self) -> None:
        self._places: dict[W, tuple[str, bool]] = {}
        self._plain: dict[str, dict[W, None]] = {}
        self._recursive: dict[str, dict[W, None]] = {}

    def add(self, watch: W, path: str, *, recursive: bool) -> None:
        self.remove(watch)
        self._places[watch] = (path, recursive)
        self._table(recursive).setdefault(path, {})[watch] = None

    def remove(self, watch: W) -> None:
        """Removes a watch. An unknown watch has been removed already."""
        if (place := self._places.pop(watch, None)) is None:
            return
        path, recursive = place
        watchers = self._table(recursive)[path]
        del watchers[watch]
        if not watchers:
            del self._table(recursive)[path]

    def watching(self, event: WatchEvent) -> Iterator[W]:
        yield from self._plain.get(event.path, ())
        if event.kind is WatchEventKind.CHILDREN or not self._recursive:
            return
        path = event.path
        yield from self._recursive.get(path, ())
        while path != ROOT:
            path = parent_of(path)
            yield from self._recursive.get(path, ())

    def _table(self, recursive: bool) -> dict[str, dict[W, None]]:
        return self._recursive if recursive else self._plain


class EventQueue:
    """The events that the reader of one watch has not taken yet."""

    def __init__(self, path: str, waiting_max: int = EVENTS_WAITING_MAX) -> None:
        self._resync = WatchEvent(WatchEventKind.RESYNC, path)
        self._waiting_max = waiting_max
        # The waiting events in the order of their arrival.
        self._waiting: dict[WatchEvent, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, event: WatchEvent) -> None:
        if self._resync in self._waiting:
            return
        self._waiting.pop(event, None)
        if event.kind is WatchEventKind.RESYNC or len(self._waiting) >= self._waiting_max:
            self._waiting.clear()
            event = self._resync
        self._waiting[event] = None

    def take(self) -> WatchEvent | None:
        if not self._waiting:
            return None
        event = next(iter(self._waiting))
        del self._waiting[event]
        return event
