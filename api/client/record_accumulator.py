"""Gathers a writer's records until they are sent: in full batches, and in one that is being filled.

It uses no event loop and no locks. Callers that share it between threads take a lock for each call.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.core.retries_and_outcomes import again
from rollbook.api.client.producer_batch import Batch
from rollbook.api.client.record_field_encoding import Text, TextHeaders, as_bytes, headers_as_bytes
from rollbook.logservice.core.record_block import Headers, check_event_time, check_header_name
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import (
    ClientClosed,
    EntryTooLarge,
    InvalidRequest,
    Outcome,
    Overloaded,
    RollbookError,
)

_OFFSET_BYTES: Final = 4  # The block's overhead for each value.
_BLOCK_BYTES: Final = 1024  # An upper bound on a block's header and directory.
_EXTRA_BYTES: Final = 64  # An upper bound on the bytes of a record's other fields.


@dataclass(slots=True)
class Tally:
    """Counts the outcomes of a writer's records, batch by batch."""

    acked: int = 0
    in_doubt: int = 0  # Records that may have been appended.
    not_appended: int = 0
    next_offset: int | None = None  # The offset after the last acknowledged record.

    @property
    def unacked(self) -> int:
        return self.in_doubt + self.not_appended

    def count(self, batch: Batch) -> None:
        if batch.ack is not None:
            self.acked += batch.records
            self.next_offset = batch.ack.next_offset
        elif batch.error is not None and batch.error.outcome is Outcome.NOT_APPLIED:
            self.not_appended += batch.records
        else:
            self.in_doubt += batch.records

    def __str__(self) -> str:
        """The number of records that were not acknowledged."""
        return (
            f"{self.unacked} of the submitted records are not acknowledged "
            f"({self.in_doubt} may have been appended, {self.not_appended} were not)"
        )


class RecordAccumulator:
    def __init__(self, config: LogClientConfig, log: LogConfig, clock: Callable[[], float]) -> None:
        """`clock` returns the loop's time."""
        body_bytes_max = log.batch_bytes_max - _BLOCK_BYTES
        self._records_max = min(config.batch_records_max, log.batch_records_max)
        self._bytes_max = min(config.batch_bytes_max, body_bytes_max)
        self._record_bytes_max = min(log.record_bytes_max, body_bytes_max)
        self._window_bytes = config.window_bytes
        self._window_batches = config.window_batches
        self._timeout_s = config.timeout_s
        self._clock = clock
        self._room = 0  # The bytes that still fit into the open batch.
        # Batches in order, with their sizes within the window.
        self._unsettled: dict[Batch, int] = {}
        self._unsettled_bytes = 0
        self._full: deque[Batch] = deque()
        self._open: Batch | None = None
        self._values: list[bytes] = []  # The values of the open batch.
        self._takes_records = True
        self._is_begun = True
        self._failed: list[Batch] = []  # Failed batches: at most a window of them.
        self.newest: Batch  # The newest record's batch; unset before the first.
        self.failure: RollbookError | None = None  # Its outcome is that of all sent records.
        self.is_noticed = False  # Whether the caller has seen the failure.
        self.tally = Tally()  # Counts of settled records.

    @property
    def has_room(self) -> bool:
        """Whether a record of any size fits into the window. The window is exceeded by one batch at
        most."""
        return (
            self._unsettled_bytes < self._window_bytes
            and len(self._unsettled) < self._window_batches
        )

    @property
    def last(self) -> Batch | None:
        """Returns the newest unsettled batch: once it is settled, all earlier ones are settled,
        too."""
        return next(reversed(self._unsettled), None)

    @property
    def pending(self) -> int:
        """The number of records with unknown outcomes."""
        return sum(batch.records for batch in self._unsettled)

    @property
    def hides_losses(self) -> bool:
        """Whether records failed and the caller has seen no error of this writer."""
        return not (self.is_noticed or any(batch.is_noticed for batch in self._failed)) and bool(
            self._failed
        )

    def add(
        self,
        value: bytes,
        key: Text | None,
        headers: TextHeaders | None,
        event_time_us: int | None,
    ) -> int:
        """Adds a record, and returns its index in `newest`; at index 0, `newest` is a new batch.

        Raises `EntryTooLarge`, and `Overloaded` if the window is full.
        """
        values = self._values
        index = len(values)
        size = len(value)
        room = self._room - size - _OFFSET_BYTES
        if (  # One condition covers all rare cases, so that most records need only one test.
            room < 0
            or index >= self._records_max
            or size > self._record_bytes_max
            or type(value) is not bytes
            or key is not None
            or headers
            or event_time_us is not None
        ):
            return self._add_with_care(value, key, headers, event_time_us)
        self._room = room
        values.append(value)
        return index

    def _add_with_care(
        self,
        value: bytes,
        key: Text | None,
        headers: TextHeaders | None,
        event_time_us: int | None,
    ) -> int:
        """Adds any record, whether the open batch has room for it or not."""
        value = self._checked(value)
        size = len(value)
        has_extras = key is not None or headers or event_time_us is not None
        if has_extras:
            if event_time_us is not None:
                check_event_time(event_time_us)
            plain_key: bytes | None = as_bytes(key)
            plain_headers = headers_as_bytes(headers) if headers else None
            size += _extra_bytes(plain_key, plain_headers)
            if size > self._bytes_max:
                raise EntryTooLarge(
                    f"a record of {size} bytes with its key and headers", limit=self._bytes_max
                )
        batch, room = self._open, self._room - size - _OFFSET_BYTES
        if room < 0 or batch is None or len(self._values) >= self._records_max:
            batch = self._begin()
            room = self._bytes_max - size - _OFFSET_BYTES
        self._room = room
        index = len(self._values)
        self._values.append(value)
        if has_extras:
            batch.add_extras(index, plain_key, plain_headers, event_time_us)
        return index

    def take(self, *, only_full: bool) -> Batch | None:
        """Returns the oldest batch, to which no record is added any more."""
        if not self._full and not only_full:
            self._shut()
        return self._full.popleft() if self._full else None

    def settle(self, batch: Batch) -> None:
        self._unsettled_bytes -= self._unsettled.pop(batch)
        self.tally.count(batch)
        if batch.error is not None:
            self._failed.append(batch)

    def refuse_more(self) -> None:
        """Refuses later records with `ClientClosed`; earlier ones are still sent."""
        self._shut()
        self._takes_records = False

    def wait_for_begin(self) -> None:
        """Refuses records until `on_begun` is called."""
        self._is_begun = False

    def on_begun(self) -> None:
        self._is_begun = True

    def stop(self, error: RollbookError) -> list[Batch]:
        """Accepts no more records, and returns the batches that were never sent."""
        self._shut()
        self.failure = error
        never_sent = list(self._full)
        self._full.clear()
        return never_sent

    def _begin(self) -> Batch:
        if (failure := self.failure) is not None:
            self.is_noticed = True
            raise again(failure, Outcome.NOT_APPLIED)
        if not self._takes_records:
            raise ClientClosed("the writer was closed")
        if not self._is_begun:
            raise InvalidRequest(
                "a writer with a producer's name has to begin before it takes records",
                next_step="use `async with`, or `await writer.begin()`",
            )
        if not self.has_room:
            raise Overloaded("the writer's window is full", next_step="wait for `ready()`")
        self._shut()
        batch = self._open = self.newest = Batch(self._clock() + self._timeout_s)
        self._values = batch.values
        self._unsettled[batch] = 0
        return batch

    def _shut(self) -> None:
        if (batch := self._open) is not None:
            size = self._unsettled[batch] = self._bytes_max - self._room
            self._unsettled_bytes += size
            self._full.append(batch)
        self._open = None
        self._values = []
        self._room = 0

    def _checked(self, value: object) -> bytes:
        if isinstance(value, bytearray | memoryview):
            value = bytes(value)
        if not isinstance(value, bytes):
            raise InvalidRequest(
                f"a record is bytes, not {type(value).__name__}", next_step="encode it first"
            )
        if len(value) > self._record_bytes_max:
            raise EntryTooLarge(
                f"a record of {len(value)} bytes", limit=self._record_bytes_max, got=len(value)
            )
        return value


def _extra_bytes(key: bytes | None, headers: Headers | None) -> int:
    """Returns the bytes of key and headers. Refuses invalid ones here, because later they would
    fail their batch."""
    for name in headers or ():
        check_header_name(name)
    for each in (key or b"", *(headers or {}).values()):
        if not isinstance(each, bytes):
            raise InvalidRequest(f"a key or header is bytes, not {type(each).__name__}")
    named = sum(len(name) + len(value) + _EXTRA_BYTES for name, value in (headers or {}).items())
    return len(key or b"") + named + _EXTRA_BYTES
