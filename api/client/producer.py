"""How a client numbers its batches, so that a log recognises what is sent again (LS6).

A log forgets a producer that has been silent for `dedupe_age_s`, or when too many others were used later.
Then it refuses whatever has not number 0 (`is_forgotten`), and the producer begins its next epoch:

    every earlier batch was acknowledged    what comes next has number 0 of the next epoch: nothing is
                                            appended twice, and nothing was refused by mistake
    an attempt may have been appended       nobody can tell any more whether it was: the caller hears that
                                            its outcome is unknown, and what comes after it is a new epoch

To a log that has forgotten the producer a batch 0 that is repeated is new, and would be appended twice. So
one that is in doubt is repeated only for as long as the log surely remembers (`may_repeat`).
"""

import os
from typing import Final

from rollbook.logservice.ids import ProducerRef
from rollbook.proto.errors import ProducerGap, RollbookError

PRODUCER_ID_BYTES: Final = 16


def is_forgotten(error: RollbookError) -> bool:
    """Whether the log knows nothing of the producer, so that it takes batch 0 only."""
    return isinstance(error, ProducerGap) and error.ids.get("expected") == 0


def begins_epoch(error: RollbookError, *, is_in_doubt: bool) -> bool:
    """What to do about a refusal. `is_in_doubt`: an attempt of the old epoch may have been appended."""
    return is_forgotten(error) and not is_in_doubt


def may_repeat(seq: int, first_sent_s: float, now_s: float, memory_s: float) -> bool:
    """Whether an attempt in doubt is still recognised. Half the log's memory is left for the way there."""
    return seq > 0 or now_s - first_sent_s < memory_s / 2


class Producer:
    """One id, and the number of the next batch."""

    __slots__ = ("_epoch", "_id", "_seq")

    def __init__(self) -> None:
        self._id: Final = os.urandom(PRODUCER_ID_BYTES)
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
