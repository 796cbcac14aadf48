"""The rules of a term. A term is one period of leadership, from the grant of a writer epoch until it ends
permanently.

    granted ──► replay up to the fence ──► serving ──► over
                                              │ proposed: waits
                                              │ acked: applied, answered

- A term serves once the state contains all records of older epochs, which are the records below the fence (WK3).
- A proposal is applied when it is acked, and not before. A proposal is the next record of the log, since no
  other writer has this epoch; if it is not, the term ends.
- A term that is over accepts and applies no more commands; all waiting calls fail (WK4).
- A fenced leader can find out the outcomes of its proposals. The waiting proposals that are in the log are
  the first ones, in their order, and no other record that is not applied yet has this epoch. No proposal is at or
  above the next writer's fence. A replay up to that fence therefore shows for each proposal either that it was
  appended, and with which result, or that it never will be (WK5).
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from rollbook.logservice.ids import Offset, WriterEpoch
from rollbook.proto.errors import BadFrame, LogSealed, RollbookError, StaleEpoch

W = TypeVar("W")


class TermRules(Generic[W]):
    """The state of one term. `W` is the type of waiters for the result of a command."""

    def __init__(self, epoch: WriterEpoch, fence: Offset) -> None:
        self.epoch = epoch
        self.fence = fence
        self.over: RollbookError | None = None
        self._waiting: deque[W] = deque()  # The waiters, in the order of their proposals.

    @property
    def oldest(self) -> W | None:
        return self._waiting[0] if self._waiting else None

    def may_serve(self, applied: Offset) -> bool:
        return self.over is None and applied >= self.fence

    def on_proposed(self, waiter: W) -> None:
        assert self.over is None
        self._waiting.append(waiter)

    def on_acked(self, offset: Offset, applied: Offset) -> W:
        """Returns the waiter whose command is applied now. Raises `BadFrame` if another record came in
        between.
        """
        assert self.over is None
        if offset != applied:
            raise BadFrame(
                "another writer appended with our writer epoch", expected=applied, told=offset
            )
        return self._waiting.popleft()

    def on_over(self, error: RollbookError) -> None:
        if self.over is None:
            self.over = error

    def settled_below(self) -> Offset | None:
        """Returns the end of the term's records: a proposal that is not in the log below this offset never will be.
        Returns None if the end is not known.
        """
        match self.over:
            case StaleEpoch(ids={"current_epoch": int(epoch), "fenced_at": int(fence)}):
                return Offset(fence) if epoch > self.epoch else None
            case LogSealed(ids={"tail": int(tail)}):
                return Offset(tail)
        return None

    def on_replayed(self, epoch: WriterEpoch) -> W | None:
        """Returns the waiter for a record that was read back after the term's end, or None if it has none."""
        assert self.over is not None
        return self._waiting.popleft() if epoch == self.epoch and self._waiting else None

    def take_rest(self) -> Iterable[W]:
        rest, self._waiting = self._waiting, deque()
        return rest
