"""Numbers a client's batches, so that a log recognises repeated ones (LS6).

A log forgets a producer that has been silent for `dedupe_age_s`, or when too many others were
used later. Then it refuses every number but 0, and the producer begins its next epoch:

    every earlier batch was acknowledged    the next batch has number 0 of the next epoch: nothing is
                                            appended twice, and nothing was refused by mistake
    an attempt may have been appended       nobody can find out whether it was: the caller gets an unknown
                                            outcome, and later batches begin a new epoch

If the log has forgotten the producer, a repeated batch 0 is new to it, and would be appended twice.
Therefore a batch 0 with an unknown outcome is repeated only while the log surely remembers it
(`may_repeat`).

A **named** producer keeps its id when its program restarts. The log assigns its epoch, and says how
many records it has appended (LS15). If the log no longer knows the producer, or a newer epoch has
begun, the writer ends, because a name must not be continued without asking the log.
"""

import os
from typing import Final

from rollbook.api.client.core.retries_and_outcomes import is_forgotten
from rollbook.logservice.ids import Offset, ProducerRef
from rollbook.logservice.messages import ProducerProgress
from rollbook.proto.errors import InvalidRequest, ProducerFenced, RollbookError

PRODUCER_ID_BYTES: Final = 16


class Producer:
    """A producer's id, and the number of its next batch."""

    __slots__ = ("_epoch", "_id", "_seq", "name")

    def __init__(self, name: str = "", epoch: int = 0) -> None:
        """`name` is that of a named producer, whose epoch the log has assigned."""
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
        """Begins a new epoch. Once the log has a batch of the new epoch, it refuses batches of
        older epochs."""
        self._epoch, self._seq = self._epoch + 1, 0

    def explained(self, error: RollbookError) -> RollbookError:
        """Adds to the error that ends the writer what the caller of a named producer can do about
        it."""
        if self.name and isinstance(error, ProducerFenced):
            error.message = f"another program has begun to append as producer {self.name!r}"
            error.next_step = "end this program; only the newest program with this name may append"
        elif self.name and is_forgotten(error):
            error.message = f"the log does not know producer {self.name!r} any more"
            error.next_step = "compare the newest records with what was appended, then open a writer with a new name"
        return error


class Resumed:
    """The point from which a named producer continues; the log reported it when the epoch began."""

    __slots__ = ("_name", "_progress")

    def __init__(self, name: str, progress: ProducerProgress | None) -> None:
        """`progress` is None for a writer without a name."""
        self._name, self._progress = name, progress

    @property
    def at(self) -> int:
        """Returns how many records the producer has appended. Raises `InvalidRequest` if that is
        not known."""
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
        """Returns the offset of the producer's last record. Raises `InvalidRequest`."""
        return self._known.last_offset

    @property
    def _known(self) -> ProducerProgress:
        if self._progress is None:
            raise InvalidRequest(
                "only a writer with a producer's name knows where to continue",
                next_step='open it with writer(producer="name"), and enter it with `async with`',
            )
        return self._progress


NOT_RESUMED: Final = Resumed("", None)
