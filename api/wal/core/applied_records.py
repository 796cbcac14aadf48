"""Tracks which records have been applied to a state, and checks that the next one follows them.

A state is the result of applying each record of the log once, in the order of the log (WK1). Only records that
readers see, or that were acked, are records of the log. After a record of one epoch there is no record of an
older epoch (WK2). A leader therefore knows that no other writer's record is between its own records. A replica
checks the epochs of the records that it applies.
"""

from rollbook.logservice.ids import FIRST_OFFSET, NO_WRITER_YET, Offset, WriterEpoch
from rollbook.proto.errors import BadFrame


class Replica:
    def __init__(self) -> None:
        self.applied: Offset = FIRST_OFFSET  # All records below this offset are in the state.
        self.epoch: WriterEpoch = NO_WRITER_YET  # The epoch of the newest record in the state.

    def on_restored(self, applied: Offset, epoch: WriterEpoch) -> None:
        """Records that the state was restored from a snapshot."""
        self.applied, self.epoch = applied, epoch

    def on_block(self, base: Offset, end: Offset, epoch: WriterEpoch) -> int:
        """Returns the number of records at the start of the block that are in the state already.

        Raises `BadFrame` for a block that cannot be the next one.
        """
        if not base <= self.applied < end:
            raise BadFrame("records were left out, or sent twice", expected=self.applied, told=base)
        if epoch < self.epoch:
            raise BadFrame("a fenced writer continued to write", epoch=epoch, newest=self.epoch)
        self.epoch = epoch
        return self.applied - base

    def on_applied(self) -> None:
        self.applied = Offset(self.applied + 1)
