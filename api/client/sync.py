"""The client of named logs for programs without an event loop.

    import rollbook

    with rollbook.connect("log://127.0.0.1:7400") as client:
        log = client.open("orders", create=True)
        log.append(b"…")
        with log.writer() as writer:
            futures = [writer.submit(line) for line in lines]
        for record in log.read():
            print(record.offset, record.value)

This is a thin layer: one thread runs the loop of all clients, and each call waits for its result.
Calls may come from any thread.
"""

import asyncio
import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from datetime import datetime
from functools import partial
from time import monotonic
from types import FunctionType, TracebackType
from typing import Any, Self, TypeVar, overload

from rollbook.api.client import async_client as aio
from rollbook.api.client.caller_arguments import Start
from rollbook.api.client.config import LogClientConfig
from rollbook.api.client.cursor import REQUIRED, Cursor, D
from rollbook.api.client.fork_guard import BelongsToProcess, is_own_process, on_used
from rollbook.api.client.log import Log
from rollbook.api.client.producer_numbering import Producer, Resumed
from rollbook.api.client.reader import (
    Event,
    EventReader,
    RecordBatch,
    records_in,
    require_truncated,
    warn_of_skipped,
    warn_of_waiting,
)
from rollbook.api.client.record_field_encoding import Text, TextHeaders
from rollbook.api.client.sync_writer import SyncWriter
from rollbook.api.client.tails_watch import TailsWatch
from rollbook.api.client.unacked_appends_report import attach
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import Record
from rollbook.logservice.ids import LogName, Offset, ProducerRef, SegmentId
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import ClientClosed, ReaderStalled, RecordsUnacked, RollbookError
from rollbook.proto.runtime.loop_thread import ClosedByWith, LoopThread

F = TypeVar("F")


def connect(
    url: str | None = None,
    config: LogClientConfig = aio.DEFAULTS,
    *,
    token: str = "",
    token_file: str = "",
    authorities: str = "",
    certificate: str = "",
    key: str = "",
    tls_name: str = "",
    insecure: bool = False,
    wait_s: float = 0.0,
) -> "SyncClient":
    """Returns a client of the log servers at `url`, which is `log://host:port,host:port`, or the
    same without `log://`. One server is enough.

    With `log+tls://`, servers' certificates are checked against `authorities`, a PEM file, or
    against the authorities that the machine trusts. `certificate` and `key` are for servers that
    ask for a certificate. `tls_name` is the name in all servers' certificates, if it is not the
    name in the URL. Without a URL the client uses the cluster that the shell uses:
    `ROLLBOOK_SERVER` with `ROLLBOOK_TOKEN_FILE`, or the current context, or this machine.
    `token_file` is a file with the `token` in its first line. With `insecure`, the token may be
    sent unencrypted.

        with rollbook.connect("log://127.0.0.1:7400") as client:
            log = client.open("orders", create=True)

    The call asks the servers once, and raises an error at once if nothing listens
    (`ServerUnreachable`), a port speaks TLS, or the token is unknown (`Unauthorized`). With
    `wait_s`, servers that cannot be reached are tried again for this many seconds. Raises
    `BadConfig`. Close the client, or use `with`; a client that is still open when the interpreter
    exits is closed then.
    """
    on_used()
    thread = _shared_thread()
    client = thread.call(
        lambda: aio.connect(
            url,
            config,
            token=token,
            token_file=token_file,
            authorities=authorities,
            certificate=certificate,
            key=key,
            tls_name=tls_name,
            insecure=insecure,
            wait_s=wait_s,
        )
    )
    thread.run(client.__aenter__())  # Closes the client if it fails.
    _clients.add(client)
    return SyncClient(thread, client)


_clients: "weakref.WeakSet[aio.Client]" = (
    weakref.WeakSet()
)  # A writer with unsent records keeps its client alive.
_threads: list[LoopThread] = []
_making = threading.Lock()


def _shared_thread() -> LoopThread:
    """Returns the one thread that all clients of the process share until it ends. A process has one gRPC
    poller, which calls every loop that it has ever seen, even a closed one.
    """
    with _making:
        if not _threads:
            _threads.append(LoopThread("rollbook-client"))
        return _threads[-1]


@atexit.register
def _close_all() -> None:
    """Closes all clients at exit. Python prints errors that are raised here, but the exit code
    stays the same."""
    if not (_threads and _threads[-1].is_alive and is_own_process()):
        return

    async def close(clients: list[aio.Client]) -> list[BaseException | None]:
        return await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)

    failed = [each for each in _threads[-1].run(close(list(_clients))) if each is not None]
    if failed:
        raise (
            failed[0] if len(failed) == 1 else BaseExceptionGroup("clients were left open", failed)
        )


def with_docstrings_of(twin: type) -> Callable[[type[F]], type[F]]:
    """Copies docstrings from the asyncio class, so that `help` shows them."""

    def tell(face: type[F]) -> type[F]:
        for name, what in vars(face).items():
            if isinstance(what, FunctionType | property) and not what.__doc__:
                what.__doc__ = getattr(getattr(twin, name, None), "__doc__", None)
        return face

    return tell


@with_docstrings_of(aio.Client)
class SyncClient(BelongsToProcess):
    """`Client` for threads. Its statements about cancellation apply to KeyboardInterrupt here."""

    def __init__(self, thread: LoopThread, client: aio.Client) -> None:
        self._thread = thread
        self._client = client

    def open(self, name: str | LogName, create: LogConfig | bool = False) -> "SyncLog":
        return SyncLog(self._thread, self._thread.run(self._client.open(name, create)))

    def __repr__(self) -> str:
        return repr(self._client)

    def logs(self, namespace: str = "", prefix: str = "") -> Iterator[LogName]:
        names = self._client.logs(namespace, prefix)

        async def next_name() -> LogName | None:
            return await anext(names, None)

        while (name := self._thread.run(next_name())) is not None:
            yield name

    def tails(
        self,
        names: Sequence[str | LogName] = (),
        *,
        prefix: str | None = None,
        interval_ms: int = 20,
        heartbeat_ms: int = 5000,
    ) -> "SyncTailsWatch":
        make = partial(
            self._client.tails,
            names,
            prefix=prefix,
            interval_ms=interval_ms,
            heartbeat_ms=heartbeat_ms,
        )
        return SyncTailsWatch(self._thread, self._thread.call(make))

    def delete(
        self, name: str | LogName, *, etag: str = "", grace_s: float | None = None, uid: str = ""
    ) -> messages.DeleteLogAnswer:
        return self._thread.run(self._client.delete(name, etag=etag, grace_s=grace_s, uid=uid))

    def deleted(self, namespace: str = "", prefix: str = "") -> tuple[messages.DeletedLog, ...]:
        return self._thread.run(self._client.deleted(namespace, prefix))

    def undelete(
        self, name: str | LogName, *, uid: str = "", to: str | LogName | None = None
    ) -> LogName:
        return self._thread.run(self._client.undelete(name, uid=uid, to=to))

    def lookup(self, names: Sequence[str | LogName]) -> tuple[messages.LogOwner, ...]:
        return self._thread.run(self._client.lookup(names))

    def servers(self) -> tuple[messages.ServerView, ...]:
        return self._thread.run(self._client.servers())

    def transfer(self, name: str | LogName, to: str) -> messages.LogOwner:
        return self._thread.run(self._client.transfer(name, to))

    def drain(self, server: str, *, resume: bool = False) -> int:
        return self._thread.run(self._client.drain(server, resume=resume))

    def limits(self) -> messages.ServiceLimits:
        return self._thread.run(self._client.limits())

    def stats(self, address: str | None = None) -> messages.ServerStats:
        return self._thread.run(self._client.stats(address))

    def ask(
        self, request: Any, *, timeout_s: float | None = None, server: str | None = None
    ) -> Any:
        return self._thread.run(self._client.ask(request, timeout_s=timeout_s, server=server))

    def inside(self) -> tuple[LoopThread, aio.Client]:
        """Returns the client and its thread, for other layers like this one."""
        return self._thread, self._client

    def close(self, *, timeout_s: float | None = None) -> None:
        if self._thread.is_alive:
            self._thread.run(self._client.close(timeout_s=timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except RecordsUnacked as unacked:
            if error is None:
                raise
            attach(unacked, error)


@with_docstrings_of(Log)
class SyncLog(BelongsToProcess):
    """`Log` for threads."""

    def __init__(self, thread: LoopThread, log: Log) -> None:
        self._thread = thread
        self._log = log

    def inside(self) -> tuple[LoopThread, Log]:
        """Returns the log and its thread, like `SyncClient.inside`."""
        return self._thread, self._log

    def __repr__(self) -> str:
        return repr(self._log)

    @property
    def name(self) -> LogName:
        """The log's name, with its namespace."""
        return self._log.name

    @property
    def uid(self) -> str:
        """The log's uid; a log created later under this name has another one."""
        return self._log.uid

    @property
    def config(self) -> LogConfig:
        """The log's config when it was opened, or after the last update by this object."""
        return self._log.config

    # --- Appending ----------------------------------------------------------------------------

    def append(
        self,
        value: bytes,
        *,
        key: Text | None = None,
        headers: TextHeaders | None = None,
        event_time: datetime | None = None,
        event_time_us: int | None = None,
        idempotency_key: str | None = None,
        expect: int | None = None,
        epoch: int | None = None,
        must_be_empty: bool = False,
        timeout_s: float | None = None,
    ) -> messages.AppendAck:
        work = self._log.append(
            value,
            key=key,
            headers=headers,
            event_time=event_time,
            event_time_us=event_time_us,
            idempotency_key=idempotency_key,
            expect=expect,
            epoch=epoch,
            must_be_empty=must_be_empty,
            timeout_s=timeout_s,
        )
        return self._thread.run(work)

    def append_many(
        self,
        values: Sequence[bytes],
        *,
        keys: Sequence[Text | None] | None = None,
        headers: Sequence[TextHeaders | None] | None = None,
        event_times: Sequence[int | datetime | None] | None = None,
        producer: ProducerRef | None = None,
        idempotency_key: str | None = None,
        expect: int | None = None,
        epoch: int | None = None,
        must_be_empty: bool = False,
        timeout_s: float | None = None,
    ) -> messages.AppendAck:
        work = self._log.append_many(
            values,
            keys=keys,
            headers=headers,
            event_times=event_times,
            producer=producer,
            idempotency_key=idempotency_key,
            expect=expect,
            epoch=epoch,
            must_be_empty=must_be_empty,
            timeout_s=timeout_s,
        )
        return self._thread.run(work)

    def append_block(
        self,
        block: bytes,
        *,
        producer: ProducerRef | None = None,
        expect: int | None = None,
        epoch: int | None = None,
        must_be_empty: bool = False,
        timeout_s: float | None = None,
    ) -> messages.AppendAck:
        work = self._log.append_block(
            block,
            producer=producer,
            expect=expect,
            epoch=epoch,
            must_be_empty=must_be_empty,
            timeout_s=timeout_s,
        )
        return self._thread.run(work)

    def writer(self, *, epoch: int | None = None, producer: str | None = None) -> SyncWriter:
        """Returns a writer, which appends records in order, exactly once, and many at a time.
        `epoch` is that of an exclusive writer.

        `producer` is a name under which a program continues after a restart, however it ended. The
        log says how many records the producer has appended (`resumed_at`), and an older program
        that still uses the name gets `ProducerFenced`. No other program may use the name for this
        log.

            with log.writer(producer="loader") as writer:
                for line in lines[writer.resumed_at:]:
                    writer.submit(line)

        Raises `ClientClosed`, `InvalidRequest`, and, with a `producer`, the error because of which
        the log does not answer.
        """
        if producer is None:
            return self._log.sync_writer(self._thread, epoch=epoch)
        progress = self._thread.run(self._log.begin_producer(producer))
        return self._log.sync_writer(
            self._thread,
            epoch=epoch,
            producer=Producer(producer, progress.epoch),
            resumed=Resumed(producer, progress),
        )

    # --- Reading: leave an iteration early and its stream is hung up ----------------------------

    def read(self, start: Start = "earliest", end: int | None = None) -> Iterator[Record]:
        for batch in self.read_batches(start, end):
            yield from batch.records()

    def read_batches(
        self, start: Start = "earliest", end: int | None = None, *, anywhere: bool = False
    ) -> Iterator[RecordBatch]:
        if not anywhere:
            return self._batches(lambda: self._log.bounded_events(start, end))
        return self._batches_anywhere(start, end)

    def _batches_anywhere(self, start: Start, end: int | None) -> Iterator[RecordBatch]:
        for make in self._thread.run(self._log.readers_anywhere(start, end)):
            yield from self._batches(make)

    def tail(
        self,
        start: Start = "latest",
        *,
        skip_truncated: bool = False,
        timeout: float | None = None,
    ) -> "SyncTail":
        make = partial(self._log.events, start, skip_truncated=skip_truncated)
        return SyncTail(self._thread, self._thread.call(make), timeout)

    def tail_batches(
        self, start: Start = "latest", *, skip_truncated: bool = False
    ) -> Iterator[RecordBatch]:
        return self._batches(lambda: self._log.events(start, skip_truncated=skip_truncated))

    def events(
        self,
        start: Start = "latest",
        *,
        until: int | None = None,
        at_tail: messages.AtTail = messages.AtTail.FOLLOW,
        skip_truncated: bool = False,
    ) -> Iterator[Event]:
        return self._events(
            lambda: self._log.events(
                start, until=until, at_tail=at_tail, skip_truncated=skip_truncated
            )
        )

    def _batches(self, make: Callable[[], EventReader]) -> Iterator[RecordBatch]:
        for event in self._events(make):
            if isinstance(event, RecordBatch):
                yield event
            elif isinstance(event, messages.Gap):
                require_truncated(event)
                warn_of_skipped(event)

    def _events(self, make: Callable[[], EventReader]) -> Iterator[Event]:
        """Yields events, and fetches the next event while the caller uses the previous one."""
        reader = self._thread.call(make)
        ahead = self._thread.submit(reader.next())
        try:
            while (event := ahead.result()) is not None:
                ahead = self._thread.submit(reader.next())
                yield event
        finally:
            ahead.cancel()
            # The caller may be the garbage collector, which must not wait.
            self._thread.start(reader.aclose)

    # --- Where it begins and ends -------------------------------------------------------------

    def tail_offset(
        self, consistency: messages.Consistency | str = messages.Consistency.COMMITTED
    ) -> Offset:
        return self._thread.run(self._log.tail_offset(consistency))

    def head_offset(self) -> Offset:
        return self._thread.run(self._log.head_offset())

    def state_of_tail(
        self, consistency: messages.Consistency | str = messages.Consistency.COMMITTED
    ) -> messages.LogTail:
        return self._thread.run(self._log.state_of_tail(consistency))

    def find(self, position: Start | None = None, *, timestamp: datetime | None = None) -> Offset:
        return self._thread.run(self._log.find(position, timestamp=timestamp))

    # --- Truncation, seal, exclusive writers ----------------------------------------------------

    def truncate(
        self, before: Start, *, plan: bool = False, force_roll: bool = False
    ) -> messages.TruncateAnswer:
        return self._thread.run(self._log.truncate(before, plan=plan, force_roll=force_roll))

    def seal(self, *, expect: int | None = None, epoch: int | None = None) -> Offset:
        return self._thread.run(self._log.seal(expect=expect, epoch=epoch))

    def acquire_writer(
        self,
        holder: str,
        mode: messages.AcquireMode | str = messages.AcquireMode.FAIL,
        *,
        ttl_s: float = 0,
        timeout_s: float | None = None,
        attempt: str = "",
    ) -> messages.WriterGrant:
        work = self._log.acquire_writer(
            holder, mode, ttl_s=ttl_s, timeout_s=timeout_s, attempt=attempt
        )
        return self._thread.run(work)

    def renew_writer(self, epoch: int) -> messages.WriterGrant:
        return self._thread.run(self._log.renew_writer(epoch))

    def release_writer(self, epoch: int) -> None:
        self._thread.run(self._log.release_writer(epoch))

    # --- Cursors ------------------------------------------------------------------------------

    def cursor(self, name: str) -> "SyncCursor":
        return SyncCursor(self._thread, self._log.cursor(name))

    def cursors(self) -> tuple[messages.Cursor, ...]:
        return self._thread.run(self._log.cursors())

    # --- Administration -----------------------------------------------------------------------

    def state(self) -> messages.LogState:
        return self._thread.run(self._log.state())

    def update(self, *, etag: str = "", **changes: Any) -> messages.LogState:
        return self._thread.run(self._log.update(etag=etag, **changes))

    def roll(self) -> SegmentId:
        return self._thread.run(self._log.roll())

    def segments(self) -> list[messages.SegmentView]:
        return self._thread.run(self._log.segments())

    def journal(self, limit: int = 100) -> tuple[messages.JournalEvent, ...]:
        return self._thread.run(self._log.journal(limit))


class SyncTail(ClosedByWith):
    """Yields records as they arrive, by `for record in tail` or `tail.poll(timeout)`. Close the
    tail, or leave it to the garbage collector.

    While the log's server is unavailable, the tail waits, and logs the reason. If threads share a
    tail, each record is returned to only one of them.
    """

    def __init__(
        self, thread: LoopThread, reader: EventReader, timeout: float | None = None
    ) -> None:
        self._thread = thread
        self._reader = reader
        self._timeout = timeout
        # Records of the last batch that were not returned yet.
        self._records: Iterator[Record] = iter(())
        self._taking = threading.Lock()  # Held while a thread waits for the next batch.
        self._ahead: Future[Event | None] | None = None
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        """Whether the log is sealed and was read to its end, or the tail was closed."""
        return self._is_closed or (self._reader.is_over and self._ahead is None)

    def poll(self, timeout: float | None = None) -> Record | None:
        """Returns the next record; None if no record arrived within `timeout` seconds, or `is_over`.
        Raises `Truncated`, `DataLost`."""
        while (record := next(records := self._records, None)) is None:
            if not self._take(records, timeout):
                return None
        return record

    def __iter__(self) -> Iterator[Record]:
        """Yields records, until the log is sealed or no record has arrived for `timeout`."""
        while True:
            yield from (records := self._records)
            if not self._take(records, self._timeout):
                return

    def __next__(self) -> Record:
        if (record := self.poll(self._timeout)) is None:
            raise StopIteration
        return record

    def close(self) -> None:
        """Stops the server's stream, and ends a loop or a poll in another thread. Idempotent."""
        self._is_closed = True
        self._ahead, ahead = None, self._ahead
        if ahead is not None:
            ahead.cancel()
        deque(self._records, maxlen=0)  # Exhausts the iterator, so that a loop over it ends, too.
        self._thread.start(self._reader.aclose)

    def __del__(self) -> None:
        if is_own_process():
            self.close()

    def _take(self, used_up: Iterator[Record], timeout: float | None) -> bool:
        """Waits for the records after the used ones. Returns False if none arrived in that time, or
        there are no more."""
        due = None if timeout is None else monotonic() + timeout
        if not self._taking.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            return False
        try:
            if self._records is not used_up:
                return True  # Another thread has already taken the records.
            while (event := self._next_event(due)) is not None:
                if (records := records_in(event)) is not None:
                    self._records = records
                    return True
            return False
        finally:
            self._taking.release()

    def _next_event(self, due: float | None) -> Event | None:
        """Returns the next event; the one after it is fetched while the caller uses this one."""
        while not self.is_over:
            ahead = self._ahead or self._thread.submit(self._reader.next())
            self._ahead = ahead
            try:
                event = ahead.result(None if due is None else max(due - monotonic(), 0))
            except TimeoutError:
                return None
            except ReaderStalled as stalled:
                self._ahead = None
                warn_of_waiting(stalled)
                continue
            except (RollbookError, CancelledError):
                if self._is_closed:
                    return None
                self._ahead = None
                raise
            if self._is_closed:
                return None
            self._ahead = None
            if event is not None:
                self._ahead = self._thread.submit(self._reader.next())
            return event
        return None


@with_docstrings_of(TailsWatch)
class SyncTailsWatch(ClosedByWith):
    """`TailsWatch` for threads."""

    def __init__(self, thread: LoopThread, watch: TailsWatch) -> None:
        self._thread = thread
        self._watch = watch

    @property
    def known(self) -> Mapping[LogName, messages.TailOfLog]:
        """Returns a copy of the tails of all logs, as far as they are known."""
        return self._thread.call(lambda: dict(self._watch.known))

    @property
    def unreached(self) -> Mapping[str, RollbookError]:
        """The servers that cannot be reached, and the reasons."""
        return self._thread.call(lambda: dict(self._watch.unreached))

    @property
    def is_complete(self) -> bool:
        return self._thread.call(lambda: self._watch.is_complete)

    def ready(self, timeout_s: float | None = None) -> Mapping[LogName, messages.TailOfLog]:
        async def ready() -> Mapping[LogName, messages.TailOfLog]:
            return dict(await self._watch.ready(timeout_s))

        return self._thread.run(ready())

    def next(self, timeout_s: float | None = None) -> messages.Tails | None:
        return self._thread.run(self._watch.next(timeout_s))

    def __iter__(self) -> Iterator[messages.Tails]:
        with suppress(ClientClosed):
            while (news := self.next()) is not None:
                yield news

    def close(self) -> None:
        """Idempotent."""
        if self._thread.is_alive:
            self._thread.run(self._watch.aclose())


@with_docstrings_of(Cursor)
class SyncCursor:
    """`Cursor` for threads."""

    def __init__(self, thread: LoopThread, cursor: Cursor) -> None:
        self._thread = thread
        self._cursor = cursor

    def __repr__(self) -> str:
        return repr(self._cursor)

    @overload
    def get(self) -> messages.Cursor: ...
    @overload
    def get(self, default: D) -> messages.Cursor | D: ...
    def get(self, default: Any = REQUIRED) -> Any:
        return self._thread.run(self._cursor.get(default))

    def commit(
        self,
        offset: int,
        *,
        blob: bytes | None = None,
        protect: bool | None = None,
        version: int | None = None,
        may_rewind: bool = False,
    ) -> messages.Cursor:
        work = self._cursor.commit(
            offset, blob=blob, protect=protect, version=version, may_rewind=may_rewind
        )
        return self._thread.run(work)

    def mark(
        self, offset: int, blob: bytes = b"", *, version: int | None = None
    ) -> messages.Cursor:
        return self._thread.run(self._cursor.mark(offset, blob, version=version))

    def delete(self, *, version: int | None = None) -> None:
        self._thread.run(self._cursor.delete(version=version))
