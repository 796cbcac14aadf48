"""One connection to a bookie with protocol version 2 or 3, for tests: not a ledger client.

    async with await connect(address, version=3) as client:
        ledger = client.ledger(7)
        client.on_adds = lambda replies: …          # AddReplies: error, ledger, entry ids
        client.send(ledger.pack(0, NO_ENTRY, b"payload"))
        reply = await client.call(Read(LedgerId(7), EntryId(0)))

Adds are sent as bytes, any number at once, and `on_adds` gets their responses in columns.
Everything else is a call with one response. Nothing is retried or checked.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

from rollbook.proto.errors import ConnectionLost
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.ports import Address
from rollbook.proto.runtime.network import SocketTransport
from rollbook.proto.wire import v2, v2_layout, v3
from rollbook.proto.wire.add_columns import AddPacker, AddReplies
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from rollbook.proto.wire.messages import (
    BatchRead,
    BatchReadReply,
    EntryRead,
    ReadReply,
    ReceivedReply,
    Reply,
    Request,
)
from rollbook.proto.wire.reply_decoder import ReplyDecoder
from rollbook.proto.wire.v2_adds import V2AddPacker
from rollbook.proto.wire.v3_adds import V3AddPacker

PASSWORD: Final = b"secret"
KEY: Final = ledger_key(PASSWORD)
_CONNECT_TIMEOUT_S: Final = 30.0
CALL_TIMEOUT_S: Final = 60.0  # For a response that must come, on a busy machine.

_Key = tuple[object, ...]


class LedgerWriter:
    """Packs the adds of one ledger for the protocol version of one connection."""

    def __init__(
        self,
        ledger_id: int,
        version: int,
        txn_ids: Iterator[int],
        kind: DigestType,
        password: bytes,
    ) -> None:
        self.digest = LedgerDigest(kind, password, LedgerId(ledger_id))
        self._version = version
        self._key = ledger_key(password)
        self._txn_ids = txn_ids
        self._packers: dict[tuple[bool, bool, bool], AddPacker] = {}

    def pack(
        self,
        entry_id: int,
        last_add_confirmed: int,
        payload: bytes,
        *,
        is_recovery: bool = False,
        is_high_priority: bool = False,
        is_sync_deferred: bool = False,
    ) -> bytes:
        dress = (is_recovery, is_high_priority, is_sync_deferred)
        packer = self._packers.get(dress)
        if packer is None:
            packer = self._packers[dress] = self._make_packer(*dress)
        return packer.pack(EntryId(entry_id), EntryId(last_add_confirmed), 0, payload)

    def _make_packer(
        self, is_recovery: bool, is_high_priority: bool, is_sync_deferred: bool
    ) -> AddPacker:
        if self._version == v2_layout.VERSION:
            assert not is_sync_deferred, "version 2 has no word for it"
            return V2AddPacker(
                self._key,
                self.digest,
                is_recovery=is_recovery,
                is_high_priority=is_high_priority,
            )
        return V3AddPacker(
            self._key,
            self.digest,
            self._txn_ids,
            is_recovery=is_recovery,
            is_high_priority=is_high_priority,
            is_sync_deferred=is_sync_deferred,
        )


class BookieClient(asyncio.Protocol):
    def __init__(self, version: int) -> None:
        self.version = version
        self.on_adds: Callable[[AddReplies], None] = lambda _replies: None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport  # Set by connection_made().
        self._decoder = ReplyDecoder()
        self._txn_ids = itertools.count(1)
        self._waiting: dict[_Key, deque[asyncio.Future[Reply]]] = {}
        self._may_write = asyncio.Event()

    # --- For tests ----------------------------------------------------------------------------

    def ledger(
        self,
        ledger_id: int,
        kind: DigestType = DigestType.CRC32C,
        password: bytes = PASSWORD,
    ) -> LedgerWriter:
        return LedgerWriter(ledger_id, self.version, self._txn_ids, kind, password)

    def send(self, frames: bytes) -> None:
        """Sends whole frames or any bytes; `on_adds` gets the responses to adds."""
        if not self._transport.is_closing():  # Otherwise it is too late to send.
            self._transport.write(frames)

    async def drain(self) -> None:
        """Waits until the socket accepts more. Raises `ConnectionLost`."""
        if not self._may_write.is_set():
            waiting = asyncio.ensure_future(self._may_write.wait())
            try:
                await asyncio.wait((waiting, self.lost), return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        if self.lost.done():
            raise ConnectionLost

    async def call(
        self,
        request: Request,
        *,
        is_high_priority: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Reply:
        """Raises `ConnectionLost`, `TimeoutError`."""
        async with asyncio.timeout(timeout_s):
            return await self.ask(request, is_high_priority=is_high_priority)

    def ask(self, request: Request, *, is_high_priority: bool = False) -> asyncio.Future[Reply]:
        """Like `call`, for many at once."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self._transport.is_closing():
            reply.set_exception(ConnectionLost())
            return reply
        if self.version == v2_layout.VERSION:
            key = _key_of_request(request)
            frame = v2.pack_request(request, is_high_priority=is_high_priority)
        else:
            txn_id = next(self._txn_ids)
            key = (txn_id,)
            frame = v3.pack_request(txn_id, request, is_high_priority=is_high_priority)
        self._waiting.setdefault(key, deque()).append(reply)
        self._transport.write(frame)
        return reply

    def pause(self) -> None:
        """Stops reading from the socket, like a slow reader."""
        self._transport.pause_reading()

    def resume(self) -> None:
        self._transport.resume_reading()

    def abort(self) -> None:
        self._transport.abort()

    async def close(self) -> None:
        self._transport.close()
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            await self.lost

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.abort()
        await self.lost

    # --- For the loop -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        for heard in self._decoder.feed(data):
            if isinstance(heard, AddReplies):
                self.on_adds(heard)
            else:
                self._on_answer(heard)

    def _on_answer(self, answer: ReceivedReply) -> None:
        key = (answer.txn_id,) if answer.txn_id is not None else _key_of_reply(answer.reply)
        futures = self._waiting[key]
        future = futures.popleft()
        if not futures:
            del self._waiting[key]
        if not future.done():  # Otherwise the caller was cancelled.
            future.set_result(answer.reply)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        for futures in self._waiting.values():
            for future in futures:
                if not future.done():
                    future.set_exception(ConnectionLost())
                    future.exception()  # Marks the exception as retrieved.
        self._waiting.clear()
        self.lost.set_result(None)


def _key_of_request(request: Request) -> _Key:
    """In version 2 the ids identify a request; requests with equal ids are answered in order."""
    match request:
        case EntryRead(ledger_id, entry_id):
            return ("read", ledger_id, entry_id)
        case BatchRead():
            return ("batch", request.request_id)
        case _:
            return ("auth",)


def _key_of_reply(reply: Reply) -> _Key:
    match reply:
        case ReadReply(_, ledger_id, entry_id):
            return ("read", ledger_id, entry_id)
        case BatchReadReply():
            return ("batch", reply.request_id)
        case _:
            return ("auth",)


async def connect(
    address: Address, *, version: int = 3, timeout_s: float = _CONNECT_TIMEOUT_S
) -> BookieClient:
    """Raises `Unavailable`."""
    _, client = await SocketTransport().connect(lambda: BookieClient(version), address, timeout_s)
    assert isinstance(client, BookieClient)
    return client
