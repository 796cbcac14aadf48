"""How a client numbers its batches, so that a log recognises what is sent again (LS6).

A log forgets a producer that has been silent for `dedupe_age_s`, or when too many others were used later.
Then it refuses whatever has not number 0 (`is_forgotten`), and the producer begins its next epoch:

    every earlier batch was acknowledged    what comes next has number 0 of the next epoch: nothing is
                                            appended twice, and nothing was refused by mistake
    an attempt may have been appended       nobody can tell any more whether it was: the caller hears that
                                            its outcome is unknown, and what comes after it is a new epoch
"""

import os
from typing import Final

from rollbook.logservice.ids import ProducerRef
from rollbook.proto.errors import ProducerGap, RollbookError

PRODUCER_ID_BYTES: Final = 16


def is_forgotten(error: RollbookError) -> bool:
    """Whether the log knows nothing of the producer, so that it takes batch 0 only."""
    return isinstance(error, ProducerGap) and error.ids.get("expected") == 0


class Producer:
    """One id, and the number of the next batch."""

    __slots__ = ("_epoch", "_id", "_seq")

    def __init__(self) -> None:
        self._id = os.urandom(PRODUCER_ID_BYTES)
        self._epoch = self._seq = 0

    @property
    def next_ref(self) -> ProducerRef:
        return ProducerRef(self._id, self._epoch, self._seq)

    def advance(self) -> None:
        """The next batch is another one."""
        self._seq += 1

    def begin_epoch(self) -> None:
        """Whatever bears an older epoch is refused as soon as the log has a batch of this one."""
        self._epoch, self._seq = self._epoch + 1, 0
