"""Tracks which records are in a state, and checks which one comes next.

A state is what its commands make of it: each record of the log, once, in the order of the log
(WK1). Only a record that readers see, or that was acked, is a record of the log. Its writers
follow one another: after a record of one epoch none of an older one comes (WK2). So a leader
knows, and a replica checks, that no other writer came in between.
"""

from rollbook.logservice.ids import FIRST_OFFSET, NO_WRITER_YET, Offset, WriterEpoch
from rollbook.proto.errors import BadFrame


class Replica:
    def __init__(self) -> None:
        self.applied: Offset = FIRST_OFFSET  # All below it is in the state.
        self.epoch: WriterEpoch = NO_WRITER_YET  # Under which the newest of it was written.

    def on_restored(self, applied: Offset, epoch: WriterEpoch) -> None:
        """Notes that the state has been restored from a snapshot."""
        self.applied, self.epoch = applied, epoch

    def on_block(self, base: Offset, end: Offset, epoch: WriterEpoch) -> int:
        """Returns how many records at the front of the block are in the state already.

        Raises `BadFrame` for a block that cannot be the next one.
        """
        if not base <= self.applied < end:
            raise BadFrame("records were left out, or sent twice", expected=self.applied, told=base)
        if epoch < self.epoch:
            raise BadFrame("a writer who was fenced wrote on", epoch=epoch, newest=self.epoch)
        self.epoch = epoch
        return self.applied - base

    def on_applied(self) -> None:
        self.applied = Offset(self.applied + 1)
