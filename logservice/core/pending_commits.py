"""Appends that were decided but are not certain yet, in the order of the decisions (LS1, LS4).

    entries   are settled once their ledger has confirmed them and every ledger before it is closed
    answers   depend on earlier appends ("the tail is 17", "that was a duplicate"). They are settled together
              with the entry that was the newest when they were decided

An owner writes at most two ledgers at a time: while the first is being closed, the second takes the new
entries. Everything that the second confirms waits: if the first ended at another entry than its writer
expects, the second would not count at all. So a place consists of the number of a ledger and an entry in
it, and everything up to `_settled` is settled.
"""

from collections import deque
from collections.abc import Collection
from typing import Final, Generic, TypeVar

from rollbook.proto.ids import NO_ENTRY, EntryId

Item = TypeVar("Item")
Place = tuple[int, EntryId]
"""The ledger, counted from 0 for this owner, and an entry in it."""


class PendingCommits(Generic[Item]):
    def __init__(self) -> None:
        self._waiting: deque[tuple[Place, Item]] = deque()
        self._newest: Place = (0, NO_ENTRY)  # The latest entry that was appended.
        self._settled: Place = (0, NO_ENTRY)
        # The last entry confirmed in the second ledger while the first is being closed.
        self._confirmed_behind = NO_ENTRY

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_certain(self) -> bool:
        """Whether everything that was appended is settled, so that a response may be sent immediately."""
        return self._settled >= self._newest

    @property
    def is_closing(self) -> bool:
        """Whether new entries go to a second ledger while the first is being closed."""
        return self._newest[0] > self._settled[0]

    def on_appended(self, entry_id: EntryId, item: Item) -> None:
        """Take note of an entry that was appended to the newest ledger."""
        assert entry_id > self._newest[1], "LS4: an entry was appended out of order"
        self._newest = (self._newest[0], entry_id)
        self._waiting.append((self._newest, item))

    def on_answered(self, item: Item) -> Collection[Item]:
        """Take note of an answer that depends on all earlier appends. The answer is returned immediately if
        all of them are settled.
        """
        if self.is_certain:
            return (item,)
        self._waiting.append((self._newest, item))
        return _NOTHING

    def on_successor(self) -> int:
        """Direct later appends to another ledger; returns its number."""
        assert not self.is_closing, "LS3: a third ledger, with two that are not closed"
        self._newest = (self._newest[0] + 1, NO_ENTRY)
        self._confirmed_behind = NO_ENTRY
        return self._newest[0]

    def on_confirmed(self, ledger: int, last_entry: EntryId) -> Collection[Item]:
        """Take note of confirmed entries; returns what they settle, in the order of the decisions."""
        if ledger == self._settled[0]:
            self._settled = max(self._settled, (ledger, last_entry))
            return self._take()
        if ledger > self._settled[0]:
            self._confirmed_behind = max(self._confirmed_behind, last_entry)
        return _NOTHING

    def on_closed(self) -> Collection[Item]:
        """Take note that the first of two ledgers was closed, at exactly the entry that was appended
        to it last.
        """
        assert self.is_closing, "LS1: a ledger was closed before it had a successor"
        self._settled = (self._settled[0] + 1, self._confirmed_behind)
        return self._take()

    def give_up(self) -> list[Item]:
        """Remove and return all that is not settled: this server will never know the outcome."""
        items = [item for _, item in self._waiting]
        self._waiting.clear()
        return items

    def _take(self) -> list[Item]:
        waiting, settled, items = self._waiting, self._settled, list[Item]()
        while waiting and waiting[0][0] <= settled:
            items.append(waiting.popleft()[1])
        return items


_NOTHING: Final[tuple[()]] = ()
