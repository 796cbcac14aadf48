"""Ledgers for programs without an event loop.

    from rollbook.ledger import sync

    with sync.connect("zk://zk1,zk2,zk3/ledgers") as ledgers:
        with ledgers.create() as writer:
            writer.append(b"…")
            writer.append_many(lines)
        with ledgers.open(writer.ledger_id) as reader:
            for entry in reader.read():
                print(entry.entry_id, entry.payload)

This is a thin layer over the asyncio classes: a thread of its own runs the loop, and each call
waits for its result. Calls may come from any thread. For thousands of appends a second, use
`append_many` or asyncio.
"""

import asyncio
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.follower import News
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.open_client import connect as connect_async
from rollbook.ledger.read_ahead import EntryStream
from rollbook.ledger.reader import LedgerReader
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.cluster.ledger_nodes import LedgerWalk
from rollbook.proto.ids import FIRST_ENTRY, EntryId, LedgerId
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.runtime.loop_thread import ClosedByWith, LoopThread
from rollbook.proto.wire.digest import DigestType, Entry

_PIECE: Final = 500  # Payloads or ids that are passed between threads at a time.
_PIECE_BYTES: Final = 1024 * 1024


def connect(
    metadata: str,
    config: ClientConfig = ClientConfig(),  # noqa: B008  # A frozen value.
    *,
    tls: ssl.SSLContext | None = None,
) -> "SyncLedgers":
    """Opens `Ledgers` like `rollbook.ledger.connect`. The caller calls `close`, or uses `with`."""
    thread = LoopThread("rollbook-ledger")
    try:

        async def open_ledgers() -> Ledgers:
            return await connect_async(metadata, config, tls=tls)

        return SyncLedgers(thread, thread.run(open_ledgers()))
    except BaseException:
        thread.close()
        raise


class SyncLedgers(ClosedByWith):
    """The methods of `Ledgers`, as calls that wait for their results."""

    def __init__(self, thread: LoopThread, ledgers: Ledgers) -> None:
        self._thread = thread
        self._ledgers = ledgers

    def create(
        self,
        *,
        ensemble: int = 3,
        write: int = 3,
        ack: int = 2,
        digest: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        ledger_id: int | None = None,
    ) -> "SyncLedgerWriter":
        work = self._ledgers.create(
            ensemble=ensemble,
            write=write,
            ack=ack,
            digest=digest,
            password=password,
            custom=custom or {},
            ledger_id=ledger_id,
        )
        return SyncLedgerWriter(self._thread, self._thread.run(work), self._ledgers.config)

    def open(
        self, ledger_id: int, password: bytes | None = None, *, digest: DigestType | None = None
    ) -> "SyncReader":
        work = self._ledgers.open(ledger_id, password, digest=digest)
        return SyncReader(self._thread, self._thread.run(work))

    def open_recover(
        self, ledger_id: int, password: bytes | None = None, *, digest: DigestType | None = None
    ) -> "SyncReader":
        work = self._ledgers.open_recover(ledger_id, password, digest=digest)
        return SyncReader(self._thread, self._thread.run(work))

    def open_tailing(
        self, ledger_id: int, password: bytes | None = None, *, digest: DigestType | None = None
    ) -> "SyncReader":
        work = self._ledgers.open_tailing(ledger_id, password, digest=digest)
        return SyncReader(self._thread, self._thread.run(work))

    def delete(
        self, ledger_id: int, password: bytes | None = None, *, is_forced: bool = False
    ) -> None:
        self._thread.run(self._ledgers.delete(ledger_id, password, is_forced=is_forced))

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return self._thread.run(self._ledgers.metadata(ledger_id)).metadata

    def list(self, start: int = 0) -> Iterator[LedgerId]:
        walk = self._ledgers.list(start)
        while ids := self._thread.run(_some_ids(walk)):
            yield from ids

    def close(self) -> None:
        """Closes all that it has opened. It waits for third copies for a second at most.
        Idempotent."""
        if self._thread.is_alive:
            self._thread.run(self._ledgers.close())
            self._thread.close()


class SyncLedgerWriter(ClosedByWith):
    """The methods of `LedgerWriter`, as calls that wait for their results. `append` waits until its
    entry is confirmed."""

    def __init__(self, thread: LoopThread, writer: LedgerWriter, config: ClientConfig) -> None:
        self._thread = thread
        self._writer = writer
        self._piece_max = min(_PIECE, config.writer_window_entries)
        self._piece_bytes_max = min(_PIECE_BYTES, config.writer_window_bytes // 2)

    @property
    def ledger_id(self) -> LedgerId:
        return self._writer.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._writer.last_add_confirmed

    def append(self, payload: bytes) -> EntryId:
        return EntryId(self.append_many((payload,))[0])

    def append_many(self, payloads: Iterable[bytes]) -> list[int]:
        """Appends any number of payloads, and returns the ids of the entries when all are
        confirmed. It takes payloads from the iterable when there is room for them.

        After an error some payloads may have been appended; `last_add_confirmed` shows which of
        them certainly were.
        """
        ids: list[int] = []
        for piece in _pieces(payloads, self._piece_max, self._piece_bytes_max):
            ids += self._thread.run(self._append(piece))
        self._thread.run(self._writer.flush())
        return ids

    async def _append(self, piece: list[bytes]) -> range:
        """Appends a piece without waiting for its confirmation, so that the next piece need not
        wait."""
        await self._writer.ready(len(piece), sum(map(len, piece)))
        first = self._writer.last_appended + 1
        self._writer.append_many(piece).add_done_callback(_look)
        return range(first, first + len(piece))

    def flush(self) -> None:
        self._thread.run(self._writer.flush())

    def force(self) -> None:
        self._thread.run(self._writer.force())

    def close(self) -> None:
        self._thread.run(self._writer.close())


class SyncReader(ClosedByWith):
    """The methods of `LedgerReader`, as calls that wait for their results. If you leave an
    iteration early, its read-ahead is dropped."""

    def __init__(self, thread: LoopThread, reader: LedgerReader) -> None:
        self._thread = thread
        self._reader = reader

    @property
    def ledger_id(self) -> LedgerId:
        return self._reader.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._reader.metadata

    @property
    def is_closed(self) -> bool:
        return self._reader.is_closed

    @property
    def last_add_confirmed(self) -> EntryId:
        return self._reader.last_add_confirmed

    def read_last_confirmed(self) -> EntryId:
        return self._thread.run(self._reader.read_last_confirmed())

    def read(
        self, first_entry: int = FIRST_ENTRY, last_entry: int | None = None
    ) -> Iterator[Entry]:
        last = None if last_entry is None else EntryId(last_entry)
        make = self._reader.read
        return self._iterate(self._thread.call(lambda: make(EntryId(first_entry), last)))

    def read_unconfirmed(self, first_entry: int, last_entry: int) -> Iterator[Entry]:
        make = self._reader.read_unconfirmed
        return self._iterate(
            self._thread.call(lambda: make(EntryId(first_entry), EntryId(last_entry)))
        )

    def _iterate(self, stream: EntryStream) -> Iterator[Entry]:
        try:
            while entries := self._thread.run(stream.next_run()):
                yield from entries
        finally:
            # The result is not awaited, because the garbage collector may be running this.
            self._thread.start(stream.aclose)

    def tail(self, start: int = FIRST_ENTRY) -> Iterator[Entry]:
        for news in self.follow(start):
            yield from news.entries

    def follow(self, start: int = FIRST_ENTRY) -> Iterator[News]:
        follower = self._thread.call(lambda: self._reader.follow(EntryId(start)))

        async def next_news() -> News | None:
            return await anext(follower, None)

        try:
            while (news := self._thread.run(next_news())) is not None:
                yield news
        finally:
            self._thread.start(follower.aclose)

    def close(self) -> None:
        self._thread.run(self._reader.close())


async def _some_ids(walk: LedgerWalk) -> list[LedgerId]:
    ids: list[LedgerId] = []
    while len(ids) < _PIECE and (ledger_id := await anext(walk, None)) is not None:
        ids.append(ledger_id)
    return ids


def _pieces(payloads: Iterable[bytes], count_max: int, bytes_max: int) -> Iterator[list[bytes]]:
    piece: list[bytes] = []
    size = 0
    for payload in payloads:
        if piece and (len(piece) >= count_max or size + len(payload) > bytes_max):
            yield piece
            piece, size = [], 0
        piece.append(payload)
        size += len(payload)
    if piece:
        yield piece


def _look(future: "asyncio.Future[range]") -> None:
    """Marks the exception as seen: `flush` reports failures."""
    if not future.cancelled():
        future.exception()
