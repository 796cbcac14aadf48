"""Barriers: the answer to a barrier is a tail above every append that any server acknowledged before the
request (LS10).

This needs a quorum's acknowledgement of an entry that was sent after the request: if another server had
taken the log over before, the quorum would have refused the entry. Any append serves as this entry. If a
turn of the loop has no append, an entry without records is written for all waiting callers. Callers that
ask while that entry is in flight share the next one.
"""

from typing import Generic, TypeVar

Asker = TypeVar("Asker")


class Barriers(Generic[Asker]):
    def __init__(self) -> None:
        self._waiting: list[Asker] = []  # Callers that asked after the last entry was sent.
        self._is_under_way = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_asked(self) -> bool:
        return bool(self._waiting)

    @property
    def needs_entry(self) -> bool:
        """Return whether an entry must be written for barriers. The owner checks this at the end of a turn
        without an append.
        """
        return bool(self._waiting) and not self._is_under_way

    def on_asked(self, asker: Asker) -> None:
        self._waiting.append(asker)

    def on_sent(self, *, is_ours: bool = False) -> list[Asker]:
        """The callers that are answered when this entry is settled. `is_ours`: the entry was written for
        barriers alone.
        """
        self._is_under_way |= is_ours
        askers, self._waiting = self._waiting, []
        return askers

    def on_settled(self) -> None:
        """Take note that the entry that was written for barriers is settled."""
        self._is_under_way = False
