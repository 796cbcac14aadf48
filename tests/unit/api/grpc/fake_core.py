"""An in-memory fake of the log service for tests of HTTP and gRPC: servers that share one set of logs.

It keeps only the rules that a client can observe: order, offsets, conditions, duplicates, owners. A test
injects errors with `failures` and hanging methods with `holds`.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rollbook.logservice import log_config, messages
from rollbook.logservice.core.record_block import CEILING, Block, check_block, stamped
from rollbook.logservice.ids import (
    FIRST_OFFSET,
    NO_WRITER_YET,
    LogName,
    Offset,
    OwnerEpoch,
    SegmentId,
    ServerId,
    WriterEpoch,
)
from rollbook.logservice.log_config import LogConfig
from rollbook.logservice.position_syntax import (
    AtCursor,
    AtOffset,
    BeforeTail,
    Earliest,
    Latest,
    Position,
)
from rollbook.proto.errors import (
    BeyondTail,
    EarlierFailed,
    Guarded,
    InvalidRequest,
    LogExists,
    LogSealed,
    MetadataConflict,
    NoSuchCursor,
    NoSuchLog,
    NoSuchServer,
    NotOwner,
    OffsetMismatch,
    ProducerFenced,
    ProducerGap,
    RollbookError,
    StaleEpoch,
    Truncated,
    WriterHeld,
)
from rollbook.proto.ids import EntryId, LedgerId

Ack = messages.AppendAck
_FIRST_OWNER = OwnerEpoch(1)


@dataclass
class FakeLog:
    name: LogName
    config: LogConfig
    etag: int = 1
    head: Offset = FIRST_OFFSET
    tail: Offset = FIRST_OFFSET
    is_sealed: bool = False
    owner_epoch: OwnerEpoch = _FIRST_OWNER
    writer_epoch: WriterEpoch = NO_WRITER_YET
    holder: str = ""
    attempt: str = ""
    ttl_ms: int = 0
    fence: Offset = FIRST_OFFSET
    blocks: list[bytes] = field(default_factory=list)
    segments: int = 1
    producers: dict[bytes, tuple[int, dict[int, Ack]]] = field(default_factory=dict)
    cursors: dict[str, messages.Cursor] = field(default_factory=dict)
    owner: str = ""  # The address of its server; empty: the server that is asked.
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def append(self, data: bytes, condition: messages.Condition | None) -> Ack:
        info = check_block(data, CEILING)
        producer = info.producer
        if producer:
            epoch, seen = self.producers.get(producer.id, (producer.epoch, {}))
            if producer.epoch < epoch:
                raise ProducerFenced(epoch=epoch)
            if producer.epoch > epoch:
                seen = {}
            if (found := seen.get(producer.seq)) is not None:
                return replace(found, is_duplicate=True)
            if producer.seq != len(seen):
                raise ProducerGap(expected=len(seen), got=producer.seq)
        self._check(condition)
        first, end = self.tail, Offset(self.tail + info.count)
        entry = EntryId(len(self.blocks))
        epochs = (self.owner_epoch, self.writer_epoch)
        self.blocks.append(
            stamped(
                data,
                base_offset=first,
                base_timestamp_us=1000 + entry,
                owner_epoch=epochs[0],
                writer_epoch=epochs[1],
            )
        )
        self.tail = end
        ack = Ack(first, end, 1000 + entry, False, *epochs, LedgerId(7), entry)
        if producer:
            self.producers[producer.id] = (producer.epoch, {**seen, producer.seq: ack})
        self.tell()
        return ack

    def _check(self, condition: messages.Condition | None) -> None:
        if self.is_sealed:
            raise LogSealed(tail=self.tail)
        if condition is None:
            return
        if condition.writer_epoch is not None and condition.writer_epoch != self.writer_epoch:
            raise self.stale()
        expected = 0 if condition.must_be_empty else condition.expected_offset
        if expected is not None and expected != self.tail:
            raise OffsetMismatch(expected=expected, tail=self.tail)

    def stale(self) -> StaleEpoch:
        return StaleEpoch(current_epoch=self.writer_epoch, fenced_at=self.fence)

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def offset_of(self, position: Position) -> Offset:
        match position:
            case Earliest():
                return self.head
            case Latest():
                return self.tail
            case AtOffset(offset):
                return offset
            case BeforeTail(records):
                return Offset(max(self.tail - records, self.head))
            case AtCursor(name):
                if name not in self.cursors:
                    raise NoSuchCursor(name=name)
                return self.cursors[name].offset
        raise InvalidRequest("the fake knows no time")

    def blocks_from(self, start: Offset, bytes_max: int) -> tuple[tuple[bytes, ...], Offset]:
        if start < self.head:
            raise Truncated(head=self.head)
        if start > self.tail:
            raise BeyondTail(tail=self.tail)
        found: list[bytes] = []
        end, size = start, 0
        for each in self.blocks[self._index(start) :]:
            if found and size + len(each) > bytes_max:
                break
            found.append(each)
            size += len(each)
            end = Block(each).next_offset
        return tuple(found), end

    def _index(self, offset: Offset) -> int:
        low, high = 0, len(self.blocks)
        while low < high:
            middle = (low + high) // 2
            if Block(self.blocks[middle]).next_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return low


class FakeCluster:
    def __init__(self) -> None:
        self.logs: dict[LogName, FakeLog] = {}
        self.deleted: dict[LogName, FakeLog] = {}
        self.addresses: dict[str, str] = {}  # By server name.
        self.default = LogConfig()  # The configuration of logs created without one.
        self.changed = asyncio.Event()  # Set when the tail of any log changes; tests call `tell`.

    @property
    def first(self) -> str:
        """The address of the server that serves logs without an owner."""
        return next(iter(self.addresses.values()), "")

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def log(self, name: LogName) -> FakeLog:
        if name not in self.logs:
            raise NoSuchLog(log=str(name))
        return self.logs[name]

    def make(self, name: str, config: LogConfig | None = None) -> FakeLog:
        key = LogName.parse(name)
        self.logs[key] = FakeLog(key, config or self.default)
        return self.logs[key]


class FakeStream:
    """Implements `messages.AppendStream`."""

    WINDOW = 256

    def __init__(self, core: "FakeCore") -> None:
        self._core = core
        self._logs: dict[int, tuple[LogName, bool]] = {}
        self._failed: dict[int, int] = {}
        self._results: deque[messages.AppendResult] = deque()
        self._refusals: list[messages.AppendResult] = []
        self._told = asyncio.Event()
        self.is_closed = False

    def submit(
        self, binds: Sequence[messages.Bind], appends: Sequence[messages.StreamAppend]
    ) -> None:
        for bind in binds:
            self._logs[bind.ref] = (bind.log, bind.is_ordered)
            self._failed.pop(bind.ref, None)
        for append in appends:
            if append.ref not in self._logs:
                raise InvalidRequest(f"ref {append.ref} was never bound")
            self._results.append(self._decide(append))
        self._told.set()

    def _decide(self, append: messages.StreamAppend) -> messages.AppendResult:
        name, is_ordered = self._logs[append.ref]
        try:
            if append.ref in self._failed:
                raise EarlierFailed(failed_number=self._failed[append.ref])
            self._core.fail("append_stream")
            ack = self._core.owned(name).append(append.block, append.condition)
        except RollbookError as error:
            if is_ordered:
                self._failed.setdefault(append.ref, append.number)
            return messages.AppendResult(append.number, error=error)
        return messages.AppendResult(append.number, ack=ack)

    async def ready(self) -> None:
        while len(self._results) > self.WINDOW:
            await asyncio.sleep(0.001)

    def tell(self, results: Sequence[messages.AppendResult]) -> None:
        self._refusals += results
        self._told.set()

    async def results(self) -> Sequence[messages.AppendResult]:
        while not (found := self._take()):
            self._told.clear()
            await self._core.pause(self._told)
        return found

    def _take(self) -> list[messages.AppendResult]:
        found, self._refusals = self._refusals, []
        if "append_stream" not in self._core.holds:
            found += self._results
            self._results.clear()
        return found

    async def close(self) -> None:
        self.is_closed = True


class FakeCore:
    """One server of the cluster."""

    def __init__(self, cluster: FakeCluster, server: str = "a") -> None:
        self.cluster = cluster
        self.server = server
        self.failures: dict[str, deque[BaseException]] = defaultdict(deque)  # By method, in order.
        self.holds: set[str] = set()  # Methods that do not answer.
        self.asked: list[Any] = []
        self.streams: list[FakeStream] = []
        self.events: Callable[[messages.ReadStream], AsyncIterator[messages.ReadEvent]] | None = (
            None
        )
        self.readers = 0
        self._released = asyncio.Event()

    @property
    def address(self) -> str:
        return self.cluster.addresses.get(self.server, "")

    def fail(self, method: str) -> None:
        if self.failures[method]:
            raise self.failures[method].popleft()

    def release(self) -> None:
        self.holds.clear()
        self._released.set()
        for stream in self.streams:
            stream._told.set()

    async def pause(self, event: asyncio.Event) -> None:
        await event.wait()

    def owned(self, name: LogName) -> FakeLog:
        log = self.cluster.log(name)
        if log.owner and log.owner != self.address:
            raise NotOwner(owner=log.owner, owner_epoch=log.owner_epoch)
        return log

    async def _asked(self, method: str, request: Any) -> None:
        self.asked.append(request)
        self.fail(method)
        while method in self.holds:
            await self._released.wait()

    # --- LogService ---------------------------------------------------------------------------

    async def append(self, request: messages.Append, due: float) -> Ack:
        await self._asked("append", request)
        return self.owned(request.log).append(request.block, request.condition)

    def open_append_stream(self) -> FakeStream:
        self.fail("open_append_stream")
        self.streams.append(FakeStream(self))
        return self.streams[-1]

    async def read(self, request: messages.Read, due: float) -> messages.ReadAnswer:
        await self._asked("read", request)
        log = self.cluster.log(request.log)
        start = log.offset_of(request.start)
        blocks, end = log.blocks_from(start, request.bytes_max)
        end = Offset(min(end, start + request.records_max))
        return messages.ReadAnswer(blocks, start, end, log.head, log.tail, log.is_sealed)

    async def read_stream(self, request: messages.ReadStream) -> AsyncIterator[messages.ReadEvent]:
        await self._asked("read_stream", request)
        self.readers += 1
        try:
            async for event in (self.events or self._follow)(request):
                self.fail("read_stream_later")
                yield event
        finally:
            self.readers -= 1

    async def _follow(self, request: messages.ReadStream) -> AsyncIterator[messages.ReadEvent]:
        log = self.cluster.log(request.log)
        position = log.offset_of(request.start)
        if position > log.tail:
            raise BeyondTail(offset=position, tail=log.tail)
        is_before = request.until_offset is not None and request.until_offset < position
        if is_before and not isinstance(request.start, Earliest):
            raise InvalidRequest("it would end before it begins")
        stop = request.until_offset
        if request.at_tail is not messages.AtTail.FOLLOW:
            stop = log.tail if stop is None else min(stop, log.tail)
            lag = log.tail - position
            yield messages.Progress(
                position, log.head, log.tail, lag, 0, 0, messages.WaitsFor.FETCHING
            )
        if position < log.head and request.on_truncated is messages.OnTruncated.SKIP:
            yield messages.Gap(messages.GapKind.TRUNCATED, position, log.head)
            position = log.head
        was_caught_up = False
        while True:
            changed = log.changed
            if stop is not None and position >= stop:
                yield messages.Stopped(position)
                return
            blocks, end = log.blocks_from(position, 1 << 18)
            if blocks:
                if stop is not None and stop < end:
                    end = stop
                    blocks = tuple(each for each in blocks if Block(each).base_offset < end)
                yield messages.Records(blocks, position, end)
                position, was_caught_up = end, False
            elif log.is_sealed:
                yield messages.Sealed(log.tail)
                return
            elif not was_caught_up:
                yield messages.CaughtUp(log.tail)
                was_caught_up = True
            else:
                try:
                    async with asyncio.timeout(request.heartbeat_ms / 1000):
                        await changed.wait()
                except TimeoutError:
                    yield messages.Progress(
                        position, log.head, log.tail, 0, 0, 0, messages.WaitsFor.NOTHING
                    )

    async def get_tail(self, request: messages.GetTail, due: float) -> messages.LogTail:
        await self._asked("get_tail", request)
        return self._tail(self.cluster.log(request.log))

    def _tail(self, log: FakeLog) -> messages.LogTail:
        time = 999 + len(log.blocks) if log.blocks else 0
        return messages.LogTail(
            log.head, log.tail, log.is_sealed, time, log.owner or self.address, log.owner_epoch
        )

    async def watch_tail(self, request: messages.WatchTail) -> AsyncIterator[messages.LogTail]:
        await self._asked("watch_tail", request)
        log = self.cluster.log(request.log)
        while True:
            changed = log.changed
            yield self._tail(log)
            await changed.wait()

    async def watch_tails(self, request: "messages.WatchTails") -> "AsyncIterator[messages.Tails]":
        """The logs that this server owns; the first server also has those without an owner."""
        await self._asked("watch_tails", request)
        # Imported here, with string annotations: regression tests run with versions that lack these.
        from rollbook.logservice.core.watched_tails import Scope

        scope, sent = Scope.of(request), dict[LogName, messages.TailOfLog]()
        while True:
            changed = self.cluster.changed
            self.fail("watch_tails_later")
            ours = {
                name: self._tail_of_log(log)
                for name, log in self.cluster.logs.items()
                if scope.covers(name) and (log.owner or self.cluster.first) == self.address
            }
            news = tuple(tail for name, tail in ours.items() if sent.get(name) != tail)
            gone = tuple(name for name in sent if name not in ours)
            sent = ours
            yield messages.Tails(news, gone, True, tuple(self.cluster.addresses.values()))
            await changed.wait()

    def _tail_of_log(self, log: FakeLog) -> messages.TailOfLog:
        tail = self._tail(log)
        return messages.TailOfLog(
            log.name,
            log.head,
            log.tail,
            log.is_sealed,
            tail.timestamp_us,
            f"uid of {log.name}",
            True,
            tail.owner,
            log.owner_epoch,
        )

    async def find_offset(self, request: messages.FindOffset, due: float) -> messages.FoundOffset:
        await self._asked("find_offset", request)
        log = self.cluster.log(request.log)
        offset = log.offset_of(request.position)
        return messages.FoundOffset(offset, log.head, max(log.tail, offset), request.uid)

    async def truncate(self, request: messages.Truncate, due: float) -> messages.TruncateAnswer:
        await self._asked("truncate", request)
        log = self.owned(request.log)
        old, new = log.head, Offset(max(log.offset_of(request.before), log.head))
        guards = tuple(c.name for c in log.cursors.values() if c.is_protected and c.offset < new)
        if guards and not request.dry_run:
            raise Guarded(guards=guards)
        if not request.dry_run:
            log.head = new
            log.tell()
        return messages.TruncateAnswer(old, new, new - old, (SegmentId(0),), 10, 20, guards)

    async def seal(self, request: messages.Seal, due: float) -> messages.SealAnswer:
        await self._asked("seal", request)
        log = self.owned(request.log)
        if request.block is not None and not log.is_sealed:
            log.append(request.block, request.condition)
        log.is_sealed = True
        log.tell()
        return messages.SealAnswer(log.tail)

    async def acquire_writer(
        self, request: messages.AcquireWriter, due: float
    ) -> messages.WriterGrant:
        await self._asked("acquire_writer", request)
        log = self.owned(request.log)
        is_his = log.holder in (request.holder, "")
        if request.attempt and request.attempt == log.attempt and is_his:
            if not log.holder:
                raise log.stale()
            return messages.WriterGrant(log.writer_epoch, log.fence, log.holder, log.ttl_ms)
        while log.holder and request.mode is not messages.AcquireMode.STEAL:
            if request.mode is messages.AcquireMode.FAIL:
                raise WriterHeld(holder=log.holder)
            await log.changed.wait()
        log.writer_epoch = WriterEpoch(log.writer_epoch + 1)
        log.holder, log.fence, log.attempt = request.holder, log.tail, request.attempt
        log.ttl_ms = request.ttl_ms
        return messages.WriterGrant(log.writer_epoch, log.tail, request.holder, request.ttl_ms)

    async def renew_writer(self, request: messages.RenewWriter, due: float) -> messages.WriterGrant:
        await self._asked("renew_writer", request)
        log = self.owned(request.log)
        if request.writer_epoch != log.writer_epoch:
            raise log.stale()
        return messages.WriterGrant(log.writer_epoch, log.tail, log.holder, 0)

    async def release_writer(self, request: messages.ReleaseWriter, due: float) -> messages.Done:
        await self._asked("release_writer", request)
        log = self.owned(request.log)
        if request.writer_epoch == log.writer_epoch:
            log.holder = ""
            log.tell()
        return messages.Done()

    async def begin_producer(
        self, request: messages.BeginProducer, due: float
    ) -> messages.ProducerProgress:
        await self._asked("begin_producer", request)
        log = self.owned(request.log)
        epoch, seen = log.producers.get(request.producer, (-1, {}))
        last = max((ack.next_offset for ack in seen.values()), default=0)
        log.producers[request.producer] = (epoch + 1, {})
        records = sum(ack.next_offset - ack.first_offset for ack in seen.values())
        offset = Offset(last - 1) if last else None
        return messages.ProducerProgress(epoch + 1, records, offset)

    # --- CursorService ------------------------------------------------------------------------

    async def get_cursor(self, request: messages.GetCursor, due: float) -> messages.Cursor:
        await self._asked("get_cursor", request)
        if found := self.cluster.log(request.log).cursors.get(request.name):
            return found
        raise NoSuchCursor(name=request.name)

    async def commit_cursor(self, request: messages.CommitCursor, due: float) -> messages.Cursor:
        await self._asked("commit_cursor", request)
        log = self.cluster.log(request.log)
        old = log.cursors.get(request.name)
        version = messages.NO_CURSOR if old is None else old.version
        if request.expected_version not in (None, version):
            raise MetadataConflict(version=version)
        log.cursors[request.name] = messages.Cursor(
            request.name,
            request.offset,
            version + 1,
            request.blob if request.blob is not None else (old.blob if old else b""),
            bool(old and old.is_protected)
            if request.is_protected is None
            else request.is_protected,
            5,
        )
        return log.cursors[request.name]

    async def list_cursors(self, request: messages.ListCursors, due: float) -> messages.Cursors:
        await self._asked("list_cursors", request)
        cursors = self.cluster.log(request.log).cursors
        names = sorted(name for name in cursors if name > request.start_after)
        page = names[: request.limit]
        more = page[-1] if len(page) < len(names) else ""
        return messages.Cursors(tuple(cursors[name] for name in page), more)

    async def delete_cursor(self, request: messages.DeleteCursor, due: float) -> messages.Done:
        await self._asked("delete_cursor", request)
        self.cluster.log(request.log).cursors.pop(request.name, None)
        return messages.Done()

    # --- LogAdmin -----------------------------------------------------------------------------

    async def ensure_log(self, request: messages.EnsureLog, due: float) -> messages.LogState:
        await self._asked("ensure_log", request)
        found = self.cluster.logs.get(request.log)
        default, config = self.cluster.default, request.config
        names = request.fields or log_config.CONFIG_FIELDS
        wanted = default if config is None else default.with_values(config, names)
        for each in names if found and config else ():
            if found and getattr(found.config, each) != getattr(wanted, each):
                raise LogExists(f"the log exists with another {each}", log=str(request.log))
        log = found or self.cluster.make(str(request.log), wanted)
        return self._state(log, was_created=found is None)

    async def get_log(self, request: messages.GetLog, due: float) -> messages.LogState:
        await self._asked("get_log", request)
        return self._state(self.cluster.log(request.log))

    async def update_log(self, request: messages.UpdateLog, due: float) -> messages.LogState:
        await self._asked("update_log", request)
        log = self.cluster.log(request.log)
        if request.etag not in ("", str(log.etag)):
            raise MetadataConflict(etag=str(log.etag))
        log.config = log.config.with_values(request.config, request.fields)
        log.etag += 1
        return self._state(log)

    def _state(self, log: FakeLog, *, was_created: bool = False) -> messages.LogState:
        return messages.LogState(
            log=log.name,
            config=log.config,
            etag=str(log.etag),
            was_created=was_created,
            head=log.head,
            tail=log.tail,
            is_sealed=log.is_sealed,
            owner_id=self.server,
            owner=log.owner or self.address,
            owner_epoch=log.owner_epoch,
            writer_epoch=log.writer_epoch,
            writer_holder=log.holder,
            bytes=sum(map(len, log.blocks)),
            records=log.tail - log.head,
            segments=log.segments,
        )

    async def list_logs(self, request: messages.ListLogs, due: float) -> messages.LogNames:
        await self._asked("list_logs", request)
        names = sorted(
            name
            for name in self.cluster.logs
            if request.namespace in ("", name.namespace)
            and name.name.startswith(request.prefix)
            and str(name) > request.start_after
        )
        page = tuple(names[: request.limit])
        return messages.LogNames(page, str(page[-1]) if len(names) > len(page) else "")

    async def delete_log(self, request: messages.DeleteLog, due: float) -> messages.DeleteLogAnswer:
        await self._asked("delete_log", request)
        self.cluster.log(request.log)
        self.cluster.deleted[request.log] = self.cluster.logs.pop(request.log)
        return messages.DeleteLogAnswer(request.grace_ms or 0)

    async def list_deleted_logs(
        self, request: messages.ListDeletedLogs, due: float
    ) -> messages.DeletedLogs:
        await self._asked("list_deleted_logs", request)
        found = [
            messages.DeletedLog(name, "7" * 32, 1, 2, 1, has_name=True)
            for name in self.cluster.deleted
        ]
        return messages.DeletedLogs(tuple(found), is_all=True)

    async def undelete_log(self, request: messages.UndeleteLog, due: float) -> messages.LogState:
        await self._asked("undelete_log", request)
        if request.log not in self.cluster.deleted:
            raise NoSuchLog(log=str(request.log))
        self.cluster.logs[request.to or request.log] = self.cluster.deleted.pop(request.log)
        return await self.get_log(messages.GetLog(request.to or request.log), due)

    async def roll_log(self, request: messages.RollLog, due: float) -> messages.RollLogAnswer:
        await self._asked("roll_log", request)
        log = self.owned(request.log)
        log.segments += 1
        return messages.RollLogAnswer(SegmentId(log.segments - 1))

    async def list_segments(self, request: messages.ListSegments, due: float) -> messages.Segments:
        await self._asked("list_segments", request)
        log = self.cluster.log(request.log)
        view = messages.SegmentView(
            SegmentId(0),
            LedgerId(7),
            messages.SegmentState.OPEN,
            Offset(0),
            None,
            5,
            0,
            0,
            0,
            f"{log.name} was made",
        )
        return messages.Segments((view,), None)

    async def get_journal(self, request: messages.GetJournal, due: float) -> messages.LogJournal:
        await self._asked("get_journal", request)
        self.cluster.log(request.log)
        event = messages.JournalEvent(
            5, "log_opened", "a~1", OwnerEpoch(1), "it was made", {"ledger_id": "7"}
        )
        return messages.LogJournal((event,))

    async def get_limits(self, request: messages.GetLimits, due: float) -> messages.ServiceLimits:
        await self._asked("get_limits", request)
        return messages.ServiceLimits(1 << 20, 4 << 20, 4 << 20, 10_000, 8 << 20, 8 << 20, 4096)

    # --- ClusterService -----------------------------------------------------------------------

    async def lookup(self, request: messages.Lookup, due: float) -> messages.LogOwners:
        await self._asked("lookup", request)
        found = [self.cluster.logs[name] for name in request.logs if name in self.cluster.logs]
        return messages.LogOwners(
            tuple(
                messages.LogOwner(log.name, log.owner or self.address, log.owner_epoch, True)
                for log in found
            )
        )

    async def list_servers(self, request: messages.ListServers, due: float) -> messages.Servers:
        await self._asked("list_servers", request)
        return messages.Servers(
            tuple(
                messages.ServerView(
                    ServerId(name),
                    address,
                    messages.ServerState.SERVING,
                    "0.1",
                    5,
                    len(self.cluster.logs),
                )
                for name, address in sorted(self.cluster.addresses.items())
            )
        )

    async def transfer_log(self, request: messages.TransferLog, due: float) -> messages.LogOwner:
        await self._asked("transfer_log", request)
        log = self.owned(request.log)
        if request.to not in self.cluster.addresses:
            raise NoSuchServer(server=request.to)
        log.owner = self.cluster.addresses[request.to]
        log.owner_epoch = OwnerEpoch(log.owner_epoch + 1)
        return messages.LogOwner(log.name, log.owner, log.owner_epoch, False)

    async def get_outage(self, request: messages.GetOutage, due: float) -> messages.Outage:
        await self._asked("get_outage", request)
        obstacle = messages.Obstacle(messages.ObstacleKind.BOOKIE, "bk-2", 5, "does not answer")
        return messages.Outage((obstacle,), "bookie bk-2 does not answer", "start bookie bk-2")

    def on_waiting(self) -> None:
        pass

    def explained(self, error: RollbookError) -> RollbookError:
        return error

    async def drain_server(self, request: messages.DrainServer, due: float) -> messages.DrainAnswer:
        await self._asked("drain_server", request)
        return messages.DrainAnswer(0 if request.resume else len(self.cluster.logs))

    async def get_server_stats(
        self, request: messages.GetServerStats, due: float
    ) -> messages.ServerStats:
        await self._asked("get_server_stats", request)
        return messages.ServerStats(ServerId(f"{self.server}~1"), {"appends_total": 3.0})


def conforms(core: FakeCore) -> messages.ServiceCore:
    """Lets the type checker compare the fake with the protocol."""
    return core
