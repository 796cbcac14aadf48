"""A bookie that keeps any number of ledgers in memory and keeps a bookie's promises, no more.

It acknowledges at once, has no disk and forgets nothing when its process is killed. Its switches
inject faults.
"""

import asyncio
import struct
from collections.abc import Callable
from typing import Final

from rollbook.proto.errors import (
    BookieReadOnly,
    EntryStateUnknown,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    RollbookError,
)
from rollbook.proto.ids import NO_ENTRY, EntryId
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.messages import (
    BatchRead,
    BatchReadReply,
    BookieInfoReply,
    EntryRead,
    GetBookieInfo,
    ReadLac,
    ReadLacReply,
    ReadReply,
    ReceivedRequest,
    Reply,
    Request,
    WriteLac,
    WriteLacReply,
    refusal_of,
)
from tests.unit.ledger.scripted_bookie import Peer, ScriptedBookie

_LAC_AT: Final = struct.Struct(">q")


class _Shelf:
    def __init__(self) -> None:
        self.entries: dict[int, bytes] = {}
        self.is_fenced = False
        self.explicit_lac: bytes | None = None
        self.lac = -1

    def add(self, entry_id: int, body: bytes) -> None:
        self.entries[entry_id] = body
        self.lac = max(self.lac, _LAC_AT.unpack_from(body, 16)[0])


class MemoryBookie:
    def __init__(self, scripted: ScriptedBookie) -> None:
        self.shelves: dict[int, _Shelf] = {}
        self.is_hung = False  # It sends no responses.
        self.is_full = False  # It accepts only recovery adds and high-priority adds.
        self.writers_from = 0  # Writers of older ledgers are refused, as after a format.
        self.forgotten: dict[int, _Shelf] = {}  # The ledgers from before a format.
        self.delay_s = 0.0  # Delay of every response.
        self.loses: Callable[[str], bool] = lambda _: (
            False
        )  # Whether messages of the process with this name are lost.
        self.ignored: set[int] = (
            set()
        )  # Adds to these ledgers get no response, except recovery adds.
        self._parked: list[tuple[Peer, ReceivedRequest]] = []  # Long polls.
        scripted.on_call = self._on_call
        scripted.on_adds = self._on_adds
        self.scripted = scripted

    def format(self, next_ledger_id: int) -> None:
        """Drops all ledgers and refuses writers that it may have fenced before (B13)."""
        self.forgotten, self.shelves = self.shelves, {}
        self.writers_from = next_ledger_id

    def fence(self, ledger_id: int) -> None:
        self.shelves.setdefault(ledger_id, _Shelf()).is_fenced = True

    def _is_deaf(self, peer: Peer) -> bool:
        speaker: str = peer.transport.peer.process  # type: ignore[attr-defined]  # An Endpoint.
        return self.is_hung or self.loses(speaker)

    # --- Adds ---------------------------------------------------------------------------------

    def _on_adds(self, peer: Peer, adds: Adds) -> None:
        if self._is_deaf(peer):
            return
        for group in adds.groups:
            if group.ledger_id in self.ignored and not group.is_recovery:
                continue
            is_refused = self.is_full and not (group.is_recovery or group.is_high_priority)
            if is_refused or (group.ledger_id < self.writers_from and not group.is_recovery):
                self._send(peer, group.pack_replies(BookieReadOnly))
                continue
            shelf = self.shelves.setdefault(group.ledger_id, _Shelf())
            if shelf.is_fenced and not group.is_recovery:
                self._send(peer, group.pack_replies(LedgerFenced))
                continue
            for entry_id, start, end in zip(group.entry_ids, group.starts, group.ends, strict=True):
                shelf.add(entry_id, bytes(adds.buffer[start:end]))
            self._send(peer, group.pack_replies())
        self._wake()

    def _send(self, peer: Peer, data: bytes) -> None:
        if not self.delay_s:
            peer.send(data)
            return
        asyncio.get_running_loop().call_later(
            self.delay_s, lambda: None if peer.is_gone else peer.send(data)
        )

    # --- Calls --------------------------------------------------------------------------------

    def _on_call(self, peer: Peer, call: ReceivedRequest) -> None:
        if self._is_deaf(peer):
            return
        request = call.request
        if not self._has_to_wait(request):
            self._answer(peer, call)
            return
        assert isinstance(request, EntryRead)
        assert request.timeout_ms
        self._parked.append((peer, call))
        wait_s = request.timeout_ms / 1000
        asyncio.get_running_loop().call_later(wait_s, self._time_out, peer, call)

    def _has_to_wait(self, request: Request) -> bool:
        if not isinstance(request, EntryRead) or request.previous_lac is None:
            return False
        shelf = self.shelves.get(request.ledger_id)
        return shelf is not None and shelf.lac <= request.previous_lac

    def _wake(self) -> None:
        for peer, call in list(self._parked):
            if not self._has_to_wait(call.request):
                self._time_out(peer, call)

    def _time_out(self, peer: Peer, call: ReceivedRequest) -> None:
        if (peer, call) in self._parked:
            self._parked.remove((peer, call))
            if not self.is_hung and not peer.is_gone:
                self._answer(peer, call)

    def _answer(self, peer: Peer, call: ReceivedRequest) -> None:
        try:
            reply = self.answer(call.request)
        except RollbookError as error:
            reply = refusal_of(call.request, type(error))
        self._send(peer, call.answer(reply))

    def answer(self, request: Request) -> Reply:
        match request:
            case GetBookieInfo():
                return BookieInfoReply(None)
            case WriteLac():
                shelf = self.shelves.setdefault(request.ledger_id, _Shelf())
                shelf.explicit_lac = request.packet
                shelf.lac = max(shelf.lac, request.last_add_confirmed)
                self._wake()
                return WriteLacReply(None, request.ledger_id)
            case EntryRead() if request.fence:
                self.shelves.setdefault(request.ledger_id, _Shelf()).is_fenced = True
            case BatchRead() if request.fence:
                self.shelves.setdefault(request.ledger_id, _Shelf()).is_fenced = True
        assert isinstance(request, EntryRead | BatchRead | ReadLac), request
        shelf = self.shelves.get(request.ledger_id) or _Shelf()
        if request.ledger_id < self.writers_from and self._may_have_lost(shelf, request):
            raise EntryStateUnknown
        if isinstance(request, ReadLac):
            last = shelf.entries.get(max(shelf.entries, default=-1))
            if last is None and shelf.explicit_lac is None:
                raise NoSuchLedger
            return ReadLacReply(None, request.ledger_id, shelf.explicit_lac, last)
        if isinstance(request, BatchRead):
            return self._batch(shelf, request)
        if request.previous_lac is not None:
            following = EntryId(request.previous_lac + 1)
            body = shelf.entries.get(following) if following <= shelf.lac else None
            entry_id = NO_ENTRY if body is None else following
            return ReadReply(None, request.ledger_id, entry_id, body, EntryId(shelf.lac))
        entry_id = request.entry_id
        if entry_id == NO_ENTRY:
            entry_id = EntryId(max(shelf.entries, default=-1))
        return ReadReply(None, request.ledger_id, request.entry_id, self._read(shelf, entry_id))

    def _may_have_lost(self, shelf: _Shelf, request: EntryRead | BatchRead | ReadLac) -> bool:
        """Whether the requested entry may have been lost by the format."""
        if isinstance(request, ReadLac):
            return True
        if isinstance(request, BatchRead):
            return request.first_entry not in shelf.entries
        if request.previous_lac is not None:
            return request.previous_lac + 1 not in shelf.entries
        return (
            request.entry_id not in shelf.entries
        )  # Also true for NO_ENTRY, which requests the last entry.

    def _read(self, shelf: _Shelf, entry_id: int) -> bytes:
        if entry_id not in shelf.entries:
            raise NoSuchEntry if shelf.entries else NoSuchLedger
        return shelf.entries[entry_id]

    def _batch(self, shelf: _Shelf, request: BatchRead) -> Reply:
        bodies: list[bytes] = []
        room = request.bytes_max
        for entry_id in range(request.first_entry, request.first_entry + request.count_max):
            body = shelf.entries.get(entry_id)
            room -= len(body or b"")
            if body is None or (bodies and room < 0):
                break
            bodies.append(body)
        if not bodies:
            raise NoSuchEntry if shelf.entries else NoSuchLedger
        return BatchReadReply(
            None, request.ledger_id, request.first_entry, request.request_id, tuple(bodies)
        )
