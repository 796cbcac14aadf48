"""In-memory bookies and metadata for tests of reading and recovery; a test can inject faults.

    stage(story)     story(scene): the story puts entries on bookies of its choice, then reads or
                     recovers a ledger over the real pool and wire protocol, in virtual time

A `Keeper` implements a bookie's promises without a disk. Its switches inject faults.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from rollbook.ledger.client_context import ClientContext
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.placement import Placement
from rollbook.ledger.reader import LedgerReader
from rollbook.ledger.recovery import LedgerRecovery
from rollbook.proto.cluster.ledger_nodes import LedgerNodes, StoredLedger
from rollbook.proto.errors import (
    EntryStateUnknown,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    RollbookError,
)
from rollbook.proto.formats.layout import Layout
from rollbook.proto.formats.service_info import BATCH_READ, describe_bookie
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.ports import Address, MetadataStore
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.digest import DigestType, Entry, LedgerDigest
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
from tests.support.entries import pack_entry
from tests.unit.ledger.scripted_bookie import PASSWORD, PORT, Peer, Scene, ScriptedBookie, play

L1: Final = LedgerId(1)
DIGEST: Final = LedgerDigest(DigestType.CRC32C, PASSWORD, L1)
ROOT: Final = "/ledgers"
PAYLOAD_BYTES: Final = 10
FAST: Final = ClientConfig(read_deadline_s=2.0, add_deadline_s=2.0, recovery_patience_s=0.5)


def payload_of(entry_id: int) -> bytes:
    return f"{entry_id:0{PAYLOAD_BYTES}d}".encode()


def body_of(entry_id: int, lac: int | None = None) -> bytes:
    known = entry_id - 1 if lac is None else lac
    length = PAYLOAD_BYTES * (entry_id + 1)
    return pack_entry(DIGEST, EntryId(entry_id), EntryId(known), length, payload_of(entry_id))


class Keeper:
    """One bookie's state of the ledger."""

    def __init__(self, scripted: ScriptedBookie) -> None:
        self.entries: dict[int, bytes] = {}
        self.is_fenced = False
        self.explicit_lac: bytes | None = None
        self.heard: list[Request] = []
        self.added: list[Entry] = []  # Write-backs of recovery.
        self._parked: list[tuple[Peer, ReceivedRequest]] = []  # Long polls.
        # Faults.
        self.is_hung = False
        self.is_old = False  # An old version, which closes the connection on a batch read.
        self.is_wiped = False  # It may have lost entries, so it answers ENTRY_STATE_UNKNOWN.
        self.refusals: dict[int, type[RollbookError]] = {}  # Errors of reads, by entry ID.
        self.add_error: type[RollbookError] | None = None
        self.delay_s = 0.0
        self.brings_following = (
            True  # Appends later entries to a poll's reply; BookKeeper does not.
        )
        self.damaged_following = -1  # This following entry is damaged.
        self.ignores: Callable[[Request], bool] = lambda _: False  # Drops these requests.
        scripted.on_call = self._on_call
        scripted.on_adds = self._on_adds
        self.scripted = scripted

    def put(self, entry_ids: Iterable[int], lac: int | None = None) -> None:
        """Store entries with `lac`, or with the LAC of a writer that awaits each append."""
        for entry_id in entry_ids:
            self.entries[entry_id] = body_of(entry_id, lac)
        self._wake_some()

    def _wake_some(self) -> None:
        for peer, call in list(self._parked):
            if not self._has_to_wait(call.request):
                self._wake(peer, call)

    @property
    def lac(self) -> int:
        lacs = [
            DIGEST.unpack_entry(body, None).last_add_confirmed for body in self.entries.values()
        ]
        if self.explicit_lac is not None:
            lacs.append(DIGEST.unpack_lac(self.explicit_lac))
        return max(lacs, default=-1)

    def _on_call(self, peer: Peer, call: ReceivedRequest) -> None:
        self.heard.append(call.request)
        if self.is_old and isinstance(call.request, BatchRead):
            peer.transport.abort()
            return
        if self.is_hung or self.ignores(call.request):
            return
        if not self._has_to_wait(call.request):
            self._answer(peer, call)
            return
        assert isinstance(call.request, EntryRead)
        assert call.request.timeout_ms
        self._parked.append((peer, call))
        wait_s = call.request.timeout_ms / 1000
        asyncio.get_running_loop().call_later(wait_s, self._wake, peer, call)

    def _has_to_wait(self, request: Request) -> bool:
        return (
            isinstance(request, EntryRead)
            and request.previous_lac is not None
            and bool(self.entries)
            and self.lac <= request.previous_lac
        )

    def _wake(self, peer: Peer, call: ReceivedRequest) -> None:
        if (peer, call) in self._parked:
            self._parked.remove((peer, call))
            if not self.is_hung and not peer.is_gone:
                self._answer(peer, call)

    def _next_behind(self, request: EntryRead) -> Reply:
        assert request.previous_lac is not None
        entry_id = EntryId(request.previous_lac + 1)
        if not self.entries:
            self._read(entry_id)
        lac = EntryId(self.lac)
        if lac >= entry_id and entry_id in self.entries:
            following = self._following(entry_id, request.following_bytes_max)
            return ReadReply(None, L1, entry_id, self._read(entry_id), lac, following=following)
        return ReadReply(None, L1, NO_ENTRY, None, lac)

    def _following(self, entry_id: int, bytes_max: int) -> tuple[bytes, ...]:
        found: list[bytes] = []
        room = bytes_max - len(self.entries[entry_id]) if self.brings_following else 0
        for each in range(entry_id + 1, self.lac + 1):
            body = self.entries.get(each)
            if body is None or len(body) > room:
                break
            found.append(body if each != self.damaged_following else bytes(len(body)))
            room -= len(body)
        return tuple(found)

    def _answer(self, peer: Peer, call: ReceivedRequest) -> None:
        try:
            reply = self.answer(call.request)
        except RollbookError as error:
            reply = refusal_of(call.request, type(error))
        frame = call.answer(reply)
        if not self.delay_s:
            peer.send(frame)
            return
        asyncio.get_running_loop().call_later(
            self.delay_s, lambda: None if peer.is_gone else peer.send(frame)
        )

    def answer(self, request: Request) -> Reply:
        match request:
            case EntryRead() if request.previous_lac is not None:
                return self._next_behind(request)
            case EntryRead():
                self.is_fenced |= request.fence
                entry_id = request.entry_id
                if entry_id == NO_ENTRY:
                    entry_id = EntryId(max(self.entries, default=-1))
                return ReadReply(None, L1, request.entry_id, self._read(entry_id))
            case BatchRead():
                self.is_fenced |= request.fence
                return self._batch(request)
            case ReadLac():
                last = self.entries.get(max(self.entries, default=-1))
                if self.is_wiped or (last is None and self.explicit_lac is None):
                    self._read(NO_ENTRY)
                return ReadLacReply(None, L1, self.explicit_lac, last)
            case WriteLac():
                self.explicit_lac = request.packet
                self._wake_some()
                return WriteLacReply(None, L1)
            case GetBookieInfo():
                return BookieInfoReply(None)
        raise AssertionError(request)

    def _read(self, entry_id: int) -> bytes:
        if error := self.refusals.get(entry_id):
            raise error
        if self.is_wiped:
            raise EntryStateUnknown
        if entry_id not in self.entries:
            raise NoSuchEntry if self.entries else NoSuchLedger
        return self.entries[entry_id]

    def _batch(self, request: BatchRead) -> Reply:
        bodies: list[bytes] = []
        room = request.bytes_max
        for entry_id in range(request.first_entry, request.first_entry + request.count_max):
            try:
                body = self._read(entry_id)
            except (NoSuchEntry, NoSuchLedger):
                if request.is_sparse and self.entries:
                    continue
                if not bodies:
                    raise
                break
            except RollbookError:
                if not bodies:
                    raise
                break
            room -= len(body)
            if bodies and room < 0:
                break
            bodies.append(body)
        if not bodies:
            raise NoSuchEntry
        return BatchReadReply(None, L1, request.first_entry, request.request_id, tuple(bodies))

    def _on_adds(self, peer: Peer, adds: Adds) -> None:
        if self.is_hung:
            return
        for group in adds.groups:
            if self.is_fenced and not group.is_recovery:
                peer.send(group.pack_replies(LedgerFenced))
                continue
            if self.add_error is not None:
                peer.send(group.pack_replies(self.add_error))
                continue
            for start, end in zip(group.starts, group.ends, strict=True):
                entry = DIGEST.unpack_entry(adds.buffer[start:end], None)
                self.added.append(entry)
                self.entries[entry.entry_id] = bytes(adds.buffer[start:end])
            peer.send(group.pack_replies())
        self._wake_some()


class Stage:
    """A ledger, its bookies, and its readers and recoveries."""

    def __init__(
        self, scene: Scene, store: MetadataStore, config: ClientConfig, bookies: Sequence[str]
    ) -> None:
        self.scene = scene
        self.store = store
        self.config = config
        self.nodes = LedgerNodes(store, ROOT, Layout.HIERARCHICAL)
        self.stored: StoredLedger
        node = scene.client_node
        self.placement = Placement(scene.health, node.randomness)
        context = ClientContext(
            self.nodes,
            scene.bookies,
            self.placement,
            scene.health,
            node.clock,
            node.randomness,
            config,
        )
        self.recovery = LedgerRecovery(context)
        self._keepers = {name: Keeper(scene.start(name)) for name in bookies}

    def __getitem__(self, name: str) -> Keeper:
        return self._keepers[name]

    def start(self, name: str) -> None:
        self._keepers[name] = Keeper(self.scene.start(name))

    def keepers(self, names: str) -> list[Keeper]:
        return [self[name] for name in names.split()]

    def announce_batches(self, *names: str) -> None:
        for name in names:
            self.scene.infos[BookieId(name)] = describe_bookie(
                Address(name, PORT), extensions=(BATCH_READ,)
            )

    async def meet(self, names: str) -> None:
        """Connect to each of them."""
        for name in names.split():
            await self.scene.bookies.call(
                BookieId(name), GetBookieInfo(total_bytes=True, free_bytes=True), deadline_s=1.0
            )

    async def create(self, quorum: Quorum, *fragments: tuple[int, str]) -> StoredLedger:
        metadata = LedgerMetadata(
            L1,
            quorum,
            tuple(
                Fragment(EntryId(first), tuple(map(BookieId, names.split())))
                for first, names in fragments
            ),
            digest_type=DigestType.CRC32C,
            password=PASSWORD,
            created_ms=1,
            creation_token=1,
        )
        self.stored = await self.nodes.create(metadata)
        return self.stored

    async def recover(self) -> LedgerMetadata:
        stored = await self.recovery.recover(self.stored, PASSWORD, DigestType.CRC32C)
        return stored.metadata

    async def open(self, stored: StoredLedger | None = None) -> LedgerReader:
        """Open a reader with the stored metadata; the caller closes it."""
        node = self.scene.client_node
        reader = LedgerReader(
            stored or await self.nodes.read(L1, fresh=True),
            DIGEST,
            nodes=self.nodes,
            bookies=self.scene.bookies,
            health=self.scene.health,
            clock=node.clock,
            randomness=node.randomness,
            config=self.config,
        )
        await reader.start()
        return reader

    async def close_at(self, last_entry: int) -> None:
        stored = await self.nodes.read(L1, fresh=True)
        length = PAYLOAD_BYTES * (last_entry + 1)
        closed = stored.metadata.with_close(EntryId(last_entry), length)
        await self.nodes.update(stored, closed)

    async def move(self, first_entry: int, names: str) -> None:
        """Start a new fragment, as a writer does."""
        stored = await self.nodes.read(L1, fresh=True)
        ensemble = tuple(map(BookieId, names.split()))
        moved = stored.metadata.with_writer_ensemble(EntryId(first_entry), ensemble)
        await self.nodes.update(stored, moved)

    async def read_metadata(self) -> LedgerMetadata:
        return (await self.nodes.read(L1, fresh=True)).metadata


Act = Callable[[Stage], Awaitable[None]]


def stage(
    act: Act,
    *,
    bookies: Sequence[str] = ("b0", "b1", "b2"),
    config: ClientConfig = FAST,
    seed: int = 1,
) -> None:
    async def story(scene: Scene) -> None:
        node = scene.client_node
        service = MemoryService(node.clock, node.randomness)
        store = await service.connect()
        await store.create(ROOT)
        await store.create(f"{ROOT}/idgen")
        try:
            await act(Stage(scene, store, config, bookies))
        finally:
            await store.close()
            await service.close()

    play(story, seed=seed, config=config, bookies=())
