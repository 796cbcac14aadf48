"""One leadership: from the grant of a writer epoch to its end, after which it never leads again.

    granted ──► replay up to the fence ──► serving ──► over
                                              │ proposed: waits
                                              │ acked: applied, answered

- It serves when all that was written under older epochs is in the state: what lies below the fence (WK3).
- A proposal is applied when it is acked, and not before; it is the very next
  record of the log, since no other writer has this epoch. Anything else is the end of the term.
- A term that is over takes and applies nothing more; all waiting calls fail (WK4).
- A fenced leader need not say "unknown". Of the waiting proposals, a front part is in the log, in
  its order, and no other record has this epoch; nothing is placed after the next writer's fence.
  So a replay up to there shows for each whether it was appended, with its result, or never will
  be (WK5).
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from rollbook.logservice.ids import Offset, WriterEpoch
from rollbook.proto.errors import BadFrame, LogSealed, RollbookError, StaleEpoch

W = TypeVar("W")


class TermRules(Generic[W]):
    """`W`: the type of waiters for the result of a command."""

    def __init__(self, epoch: WriterEpoch, fence: Offset) -> None:
        self.epoch = epoch
        self.fence = fence
        self.over: RollbookError | None = None
        self._waiting: deque[W] = deque()  # Waiters in the order of their proposals.

    @property
    def oldest(self) -> W | None:
        return self._waiting[0] if self._waiting else None

    def may_serve(self, applied: Offset) -> bool:
        return self.over is None and applied >= self.fence

    def on_proposed(self, waiter: W) -> None:
        assert self.over is None
        self._waiting.append(waiter)

    def on_acked(self, offset: Offset, applied: Offset) -> W:
        """The proposer of the command to be applied now. Raises `BadFrame` if another record was
        in between."""
        assert self.over is None
        if offset != applied:
            raise BadFrame("somebody wrote under our epoch", expected=applied, told=offset)
        return self._waiting.popleft()

    def on_over(self, error: RollbookError) -> None:
        if self.over is None:
            self.over = error

    def settled_below(self) -> Offset | None:
        """The offset below which a command that is not there never will be. None: it is not known."""
        match self.over:
            case StaleEpoch(ids={"current_epoch": int(epoch), "fenced_at": int(fence)}):
                return Offset(fence) if epoch > self.epoch else None
            case LogSealed(ids={"tail": int(tail)}):
                return Offset(tail)
        return None

    def on_replayed(self, epoch: WriterEpoch) -> W | None:
        """Returns the proposer of a record that was read back after the term's end."""
        assert self.over is not None
        return self._waiting.popleft() if epoch == self.epoch and self._waiting else None

    def take_rest(self) -> Iterable[W]:
        rest, self._waiting = self._waiting, deque()
        return rest
