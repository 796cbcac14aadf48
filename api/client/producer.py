"""How a client numbers its batches, so that a log recognises repeated ones (LS6).

A log forgets a producer that has been silent for `dedupe_age_s`, or when too many others were
used later. Then it refuses every other number than 0, and the producer begins its next epoch:

    every earlier batch was acknowledged    what comes next has number 0 of the next epoch: nothing is
                                            appended twice, and nothing was refused by mistake
    an attempt may have been appended       it can no longer be known whether it was: the caller learns that
                                            its outcome is unknown, and what comes after it is a new epoch

To a log that has forgotten the producer a batch 0 that is repeated is new, and would be appended twice. So
one whose outcome is unknown is repeated only for as long as the log surely remembers (`may_repeat`).

A **named** producer keeps its id over restarts of its program. The log assigns its epoch, and says how far
it has come (LS15). If the log no longer knows it, or a newer epoch has begun, its writer ends: a name must
not be continued without asking the log.
"""

import os
from typing import Final

from rollbook.api.client.core.retry_rules import is_forgotten
from rollbook.logservice.ids import Offset, ProducerRef
from rollbook.logservice.messages import ProducerProgress
from rollbook.proto.errors import InvalidRequest, ProducerFenced, RollbookError

PRODUCER_ID_BYTES: Final = 16


class Producer:
    """A producer's id, and the number of its next batch."""

    __slots__ = ("_epoch", "_id", "_seq", "name")

    def __init__(self, name: str = "", epoch: int = 0) -> None:
        """`name`: that of a named producer, whose epoch the log has assigned."""
        self.name: Final = name
        self._id: Final = name.encode() or os.urandom(PRODUCER_ID_BYTES)
        self._epoch, self._seq = epoch, 0

    @property
    def next_ref(self) -> ProducerRef:
        return ProducerRef(self._id, self._epoch, self._seq)

    def advance(self) -> None:
        """Moves to the number of the next batch."""
        self._seq += 1

    def begin_epoch(self) -> None:
        """Begins a new epoch. Once the log has a batch of it, it refuses batches of older epochs."""
        self._epoch, self._seq = self._epoch + 1, 0

    def explained(self, error: RollbookError) -> RollbookError:
        """The error that ends the writer, with what a caller of a named producer can do about
        it."""
        if self.name and isinstance(error, ProducerFenced):
            error.message = f"another program has begun to append as producer {self.name!r}"
            error.next_step = "end this program; only the newest one of a name may append"
        elif self.name and is_forgotten(error):
            error.message = f"the log does not know producer {self.name!r} any more"
            error.next_step = "compare the newest records with what was appended, then open a writer with a new name"
        return error


class Resumed:
    """Where a named producer continues, as reported by the log when the epoch began."""

    __slots__ = ("_name", "_progress")

    def __init__(self, name: str, progress: ProducerProgress | None) -> None:
        """`progress`: None for a writer without a name."""
        self._name, self._progress = name, progress

    @property
    def at(self) -> int:
        """The number of records that the producer has appended. Raises `InvalidRequest` if it is not known."""
        records = self._known.records
        if records is None:
            raise InvalidRequest(
                f"the log does not know how many records producer {self._name!r} has appended: "
                "a server of an earlier release had the log",
                next_step="read the record at `last_offset`",
            )
        return records

    @property
    def last_offset(self) -> Offset | None:
        """The offset of the producer's last record. Raises `InvalidRequest`."""
        return self._known.last_offset

    @property
    def _known(self) -> ProducerProgress:
        if self._progress is None:
            raise InvalidRequest(
                "only a writer with a producer's name knows where it goes on",
                next_step='open it with writer(producer="name"), and enter it with `async with`',
            )
        return self._progress


NOT_RESUMED: Final = Resumed("", None)
