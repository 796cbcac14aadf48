import pytest

from rollbook.proto.metastore.core.watches import EventQueue, WatchTable
from rollbook.proto.ports import WatchEvent, WatchEventKind


def told(kind: WatchEventKind, path: str) -> WatchEvent:
    return WatchEvent(kind, path)


CREATED, CHANGED, CHILDREN = WatchEventKind.CREATED, WatchEventKind.CHANGED, WatchEventKind.CHILDREN


@pytest.mark.parametrize(
    ("event", "watches"),
    [
        (told(CHANGED, "/a"), ["plain /a", "all /a", "all /"]),
        (told(CHILDREN, "/a"), ["plain /a"]),
        (told(CREATED, "/a/b"), ["all /a", "all /"]),
        (told(CREATED, "/ab"), ["all /"]),
        (told(CHANGED, "/"), ["plain /", "all /"]),
        (told(CHILDREN, "/"), ["plain /"]),
    ],
)
def test_event_reaches_matching_watches(event: WatchEvent, watches: list[str]) -> None:
    table: WatchTable[str] = WatchTable()
    for path in ("/a", "/"):
        table.add(f"plain {path}", path, recursive=False)
        table.add(f"all {path}", path, recursive=True)
    assert list(table.watching(event)) == watches


def test_removed_watch_gets_no_event() -> None:
    table: WatchTable[int] = WatchTable()
    table.add(1, "/a", recursive=False)
    table.add(2, "/a", recursive=False)
    table.remove(1)
    table.remove(1)
    assert list(table.watching(told(CHANGED, "/a"))) == [2]
    table.remove(2)
    assert list(table.watching(told(CHANGED, "/a"))) == []


def test_watch_added_again_is_replaced() -> None:
    table: WatchTable[int] = WatchTable()
    table.add(1, "/a", recursive=False)
    table.add(1, "/a", recursive=True)
    assert list(table.watching(told(CHANGED, "/a"))) == [1]
    assert list(table.watching(told(CHILDREN, "/a"))) == []


def drained(queue: EventQueue) -> list[WatchEvent]:
    found = []
    while (event := queue.take()) is not None:
        found.append(event)
    return found


def test_equal_events_merge_into_the_last() -> None:
    queue = EventQueue("/a")
    for kind in (CREATED, WatchEventKind.DELETED, CHANGED, CREATED):
        queue.offer(told(kind, "/a"))
    expected = [WatchEventKind.DELETED, CHANGED, CREATED]
    assert drained(queue) == [told(kind, "/a") for kind in expected]


def test_too_many_events_become_one_resync() -> None:
    queue = EventQueue("/a", waiting_max=3)
    for number in range(3):
        queue.offer(told(CHANGED, f"/a/{number}"))
    queue.offer(told(CHANGED, "/a/0"))  # Merges with an equal event, so there is room.
    assert len(queue) == 3
    queue.offer(told(CHANGED, "/a/3"))
    queue.offer(told(CHANGED, "/a/4"))  # The RESYNC covers this event, too.
    assert drained(queue) == [told(WatchEventKind.RESYNC, "/a")]
    queue.offer(told(CHANGED, "/a/5"))
    assert drained(queue) == [told(CHANGED, "/a/5")]


def test_resync_replaces_waiting_events() -> None:
    queue = EventQueue("/a")
    queue.offer(told(CHANGED, "/a"))
    queue.offer(told(WatchEventKind.RESYNC, "/a"))
    assert drained(queue) == [told(WatchEventKind.RESYNC, "/a")]
