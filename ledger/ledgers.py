"""The ledgers of one cluster. This class is for users; it works with any implementation of the
ports.

    create        picks bookies and writes the metadata, without a request to a bookie
    reserve       creates a ledger without a writer; the client that calls `claim` becomes its writer (LG2)
    open          reads the confirmed entries; the ledger may still have a writer
    open_recover  stops the writer, finds the ledger's end and closes it (`recovery.py`)
    open_tailing  follows the writer
    delete        fences the writer first, so that it does not continue without noticing (LG1)

A client that can read the metadata knows the passwords: they guard a ledger against mistakes, not
against attacks. If a caller passes a password, it has to be the right one.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Self

from rollbook.ledger.bookie_pool import Bookies
from rollbook.ledger.client_context import ClientContext
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.bookie_quarantine import Health
from rollbook.ledger.core.copy_comparison import LedgerVerification
from rollbook.ledger.core.placement import Placement
from rollbook.ledger.lost_bookie_watch import LostBookieWatch
from rollbook.ledger.quarantine_probe import pardon_those_that_answer
from rollbook.ledger.reader import LedgerReader
from rollbook.ledger.recovery import LedgerRecovery
from rollbook.ledger.verifier import Verifier
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.cluster.bookie_watcher import BookieWatcher, LiveBookies
from rollbook.proto.cluster.cluster_root import Cluster, ensure_layout, require_cluster
from rollbook.proto.cluster.cookies import CookieNodes
from rollbook.proto.cluster.ledger_nodes import LedgerNodes, LedgerWalk, StoredLedger
from rollbook.proto.errors import (
    BookieTimeout,
    BookieUnreachable,
    ConnectionLost,
    InvalidRequest,
    LedgerClosed,
    LedgerFenced,
    MetadataConflict,
    Unauthorized,
)
from rollbook.proto.ids import FIRST_ENTRY, BookieId, LedgerId, parse_ledger_id
from rollbook.proto.metadata import (
    Fragment,
    LedgerMetadata,
    LedgerState,
    draw_creation_token,
)
from rollbook.proto.ports import Clock, MetadataStore, Randomness, Transport
from rollbook.proto.quorum import Ensemble, Quorum
from rollbook.proto.tasks import to_its_end
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from rollbook.proto.wire.messages import BookieInfoReply, GetBookieInfo

# The key in the custom metadata of a ledger that is reserved, and not yet claimed.
UNCLAIMED: Final = "rollbook.unclaimed"
CLAIMED: Final = "rollbook.claimed"

_RACES_MAX: Final = 20
_HANDLES_MIN: Final = 64
_QUESTION_S: Final = 1.0  # How long a bookie in quarantine may take to respond.
_NOTHING: Final[Mapping[str, bytes]] = {}


class Ledgers:
    """Owns its connections and all objects that it has opened; it owns the metadata store only on
    request.

    Use it as a context manager, or call `start` and `close`. Use it from one event loop only.
    """

    def __init__(
        self,
        transport: Transport,
        store: MetadataStore,
        cluster: Cluster,
        clock: Clock,
        randomness: Randomness,
        config: ClientConfig,
        *,
        owns_store: bool = False,
    ) -> None:
        self.cluster = cluster
        self.config = config
        self.nodes: Final = LedgerNodes(store, cluster.root, cluster.layout)
        self._store = store
        self._owns_store = owns_store
        self._clock = clock
        self._randomness = randomness
        self._watcher = BookieWatcher(store, cluster.root)
        self._health = Health()
        self.bookies: Final = Bookies(
            transport, self._watcher, clock, randomness, config, self._health
        )
        self._placement = Placement(
            self._health, randomness, config.rack_of, uses_tls=config.uses_tls
        )
        self._context = ClientContext(
            self.nodes, self.bookies, self._placement, self._health, clock, randomness, config
        )
        self._recovery = LedgerRecovery(self._context)
        self._lost_bookie_watch = LostBookieWatch(
            self.live, self._open_writers, self.pardon_bookies, clock
        )
        self._handles: dict[LedgerWriter | LedgerReader, None] = {}
        self._look_at = _HANDLES_MIN  # The number of handles at which closed ones are dropped.
        self._has_layout = False
        self._is_closed = False

    async def start(self) -> None:
        """Waits until the list of bookies is known. Raises `MetadataUnavailable`, `ConnectionLost`,
        `SessionExpired`. Call `close` even if the call is cancelled."""
        await self._watcher.start()

    async def close(self) -> None:
        """Closes all that it has opened, and leaves no connection or task.

        Ledgers with an open writer stay open, for recovery to close: close their writers first. It
        waits for the third copies of last entries for a second at most. Idempotent. If the call is
        cancelled, it completes first.
        """
        self._is_closed = True
        await to_its_end(self._close())

    async def _close(self) -> None:
        """Closes every part, even if closing another one fails."""
        endings = [self._lost_bookie_watch.close]
        endings += [handle.stop for handle in self._handles if not handle.is_stopped]
        endings += [self.bookies.close, self._watcher.close]
        if self._owns_store:
            endings.append(self._store.close)
        self._handles.clear()
        failures: list[Exception] = []
        for end in endings:
            try:
                await end()
            except Exception as error:  # noqa: BLE001  # Raised below, when all have had their turn.
                failures.append(error)
        if failures:
            raise failures[0]

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def store(self) -> MetadataStore:
        """The metadata store, which also holds other data of the cluster, such as its logs."""
        return self._store

    # --- Ledgers ------------------------------------------------------------------------------

    async def create(
        self,
        *,
        ensemble: int = 3,
        write: int = 3,
        ack: int = 2,
        digest: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] = _NOTHING,
        ledger_id: int | None = None,
        is_urgent: bool = False,
    ) -> LedgerWriter:
        """Creates an empty, open ledger and returns its writer, which the caller closes at the end.

        Each entry is stored on `write` of the `ensemble` bookies, and is confirmed when `ack` of
        them have it on disk. `ledger_id` is for callers that choose ids themselves; if it is taken,
        the call raises `NodeExists`. With `is_urgent`, read-only bookies store entries, too, in
        their reserve: this is for the few bytes that are needed to make room.

        Raises `NotEnoughBookies`, `InvalidRequest`. After `ConnectionLost` or a cancellation there
        may be an empty ledger without a writer.
        """
        stored = await self._create(
            Quorum(ensemble, write, ack),
            digest,
            password,
            dict(custom),
            ledger_id,
            is_urgent=is_urgent,
        )
        return self._write(stored, digest, password, is_urgent=is_urgent)

    async def reserve(
        self,
        *,
        ensemble: int = 3,
        write: int = 3,
        ack: int = 2,
        digest: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] = _NOTHING,
        ledger_id: int | None = None,
    ) -> LedgerId:
        """Creates a ledger without a writer: this or another client may `claim` it at any time.

        Raises `NotEnoughBookies`, `InvalidRequest`. After `ConnectionLost` or a cancellation there
        may be a ledger that is never claimed.
        """
        unclaimed = {**custom, UNCLAIMED: b""}
        stored = await self._create(
            Quorum(ensemble, write, ack), digest, password, unclaimed, ledger_id
        )
        return stored.metadata.ledger_id

    async def claim(self, ledger_id: int, password: bytes | None = None) -> LedgerWriter:
        """Makes this client the only writer of a ledger that was reserved (LG2).

        Raises `LedgerFenced` if the ledger has or had a writer, or is being recovered, and also
        `LedgerClosed`, `NoSuchLedger`, `Unauthorized`. After `ConnectionLost` or a cancellation the
        ledger may be claimed, and then it will have no writer.
        """
        for _ in range(_RACES_MAX):
            stored = await self.metadata(ledger_id, fresh=True)
            metadata = stored.metadata
            key, kind = credentials(metadata, password, None)
            if metadata.is_closed:
                raise LedgerClosed(ledger_id=ledger_id)
            custom = dict(metadata.custom)
            if metadata.state is not LedgerState.OPEN or custom.pop(UNCLAIMED, None) is None:
                raise LedgerFenced(
                    "this ledger has a writer already, or had one",
                    ledger_id=ledger_id,
                    next_step="create another ledger; a ledger has only one writer in its life",
                )
            # Two claimants must write different values; otherwise each would mistake the value of
            # the other for its own.
            custom[CLAIMED] = b"%032x" % self._randomness.getrandbits(128)
            claimed = replace(metadata, custom=tuple(sorted(custom.items())))
            # After a conflict it tries again: another client was quicker, or a bookie was replaced.
            with suppress(MetadataConflict):
                return self._write(await self.nodes.update(stored, claimed), kind, key)
        raise MetadataConflict("the ledger's metadata keeps changing", ledger_id=ledger_id)

    async def open(
        self, ledger_id: int, password: bytes | None = None, *, digest: DigestType | None = None
    ) -> LedgerReader:
        """Opens a ledger to read the entries that are confirmed now. If there is a writer, it
        continues.

        Without a `password`, the one in the metadata is used. `digest` is needed only for a ledger
        that is so old that its metadata lacks it. Raises `NoSuchLedger`, `Unauthorized`,
        `InvalidRequest`, and `EntryUnavailable` if too few bookies respond to find out which
        entries are confirmed. A cancelled call leaves nothing behind.
        """
        return await self._open(await self.metadata(ledger_id), password, digest)

    async def open_recover(
        self, ledger_id: int, password: bytes | None = None, *, digest: DigestType | None = None
    ) -> LedgerReader:
        """Stops the writer permanently, finds out where the ledger ends and closes it there.

        The closed ledger has all confirmed entries, and perhaps some that were in flight. A ledger
        that is already closed is only opened. Raises `NoSuchLedger`, `Unauthorized`,
        `InvalidRequest`, and `RecoveryIncomplete` if too few bookies respond; a retry loses
        nothing. If the call is cancelled, the ledger may be in recovery, with its writer stopped
        and its bookies fenced, or it may be closed: call it again.
        """
        # Stale metadata does no harm here, because recovery's first step is a compare-and-set.
        stored = await self.metadata(ledger_id)
        key, kind = credentials(stored.metadata, password, digest)
        stored = await self._recovery.recover(stored, key, kind)
        return await self._open(stored, password, digest)

    async def open_tailing(
        self, ledger_id: int, password: bytes | None = None, *, digest: DigestType | None = None
    ) -> LedgerReader:
        """Opens a ledger like `open`, for a reader that follows the writer: see
        `LedgerReader.tail`. A cancelled call leaves nothing behind.
        """
        return await self._open(await self.metadata(ledger_id), password, digest)

    async def delete(
        self,
        ledger_id: int,
        password: bytes | None = None,
        *,
        digest: DigestType | None = None,
        is_forced: bool = False,
    ) -> None:
        """Deletes a ledger. If the ledger has a writer, it is stopped first (LG1); bookies free the
        space later.

        With `is_forced`, the ledger is deleted even if its writer could not be stopped: the writer
        continues for a while without effect. Raises `NoSuchLedger`, `RecoveryIncomplete`. If the
        call is cancelled, the ledger may be in recovery with its writer stopped, or it may be
        deleted: call it again; `NoSuchLedger` then says that it was deleted.
        """
        ledger_id = parse_ledger_id(ledger_id)
        for _ in range(_RACES_MAX):
            stored = await self.metadata(ledger_id, fresh=True)
            key, kind = credentials(stored.metadata, password, digest)
            if not is_forced:
                stored = await self._recovery.fence(stored, key, kind)
            # After a conflict it tries again: another client recovers or repairs the ledger.
            with suppress(MetadataConflict):
                await self.nodes.delete(ledger_id, stored.version)
                return
        raise MetadataConflict("the ledger's metadata keeps changing", ledger_id=ledger_id)

    def list(self, start: int = 0) -> LedgerWalk:
        """Returns all ledger ids from `start` on, in order, for `async for`. It raises rather than
        omit an id."""
        return self.nodes.ids(parse_ledger_id(start))

    async def metadata(self, ledger_id: int, *, fresh: bool = False) -> StoredLedger:
        """Returns the ledger's metadata; with `fresh`, not from a replica of the store that may be
        stale. Raises `NoSuchLedger`. A cancelled call leaves nothing behind."""
        return await self.nodes.read(parse_ledger_id(ledger_id), fresh=fresh)

    async def verify(
        self,
        ledger_id: int,
        password: bytes | None = None,
        *,
        digest: DigestType | None = None,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> LedgerVerification:
        """Reads every copy from every bookie that should have one. It repairs nothing.

        In an open ledger it checks the confirmed entries; copies of the last ones may still be in
        flight. It calls `on_progress` with the number of entries checked since the last call.
        Raises `NoSuchLedger`, `Unauthorized`, `InvalidRequest`, `EntryUnavailable`. A cancelled
        call leaves nothing behind.
        """
        async with await self.open(ledger_id, password, digest=digest) as reader:
            key, kind = credentials(reader.metadata, password, digest)
            entry_digest = LedgerDigest(kind, key, reader.ledger_id)
            verifier = Verifier(reader.metadata, entry_digest, self.bookies, self.config)
            return await verifier.verify(reader.last_add_confirmed, on_progress)

    async def require_cluster(self) -> None:
        """Checks that the metadata store still belongs to this cluster, and was not emptied.

        Only then is a missing ledger really missing. Raises `WrongCluster`, `NoSuchCluster`,
        `BadConfig`. A cancelled call leaves nothing behind.
        """
        await require_cluster(self._store, self.cluster)

    # --- Bookies ------------------------------------------------------------------------------

    def live(self) -> LiveBookies:
        """Returns the registered bookies as last reported."""
        return self.bookies.live()

    def count_usable(self, *, is_urgent: bool = False) -> int:
        """Returns how many bookies accept new ledgers, as last reported; some of them may be in
        quarantine. With `is_urgent`, read-only bookies count, too.
        """
        return len(self._placement.usable(self._live(is_urgent=is_urgent)))

    async def changed(self, live: LiveBookies) -> LiveBookies:
        """Waits until the registered bookies or their modes differ from `live`; returns the current
        ones. Raises `MetadataUnavailable` after the watch has ended. A cancelled call leaves
        nothing behind."""
        return await self._watcher.changed(live)

    async def known_bookies(self) -> tuple[BookieId, ...]:
        """Returns all bookies of the cluster, registered or not. Raises `MetadataUnavailable`,
        `ConnectionLost`, `SessionExpired`. A cancelled call leaves nothing behind.
        """
        return tuple(await CookieNodes(self._store, self.cluster.root).list())

    async def find_silent(self, deadline_s: float, count_max: int) -> Sequence[BookieId]:
        """Returns those of the first `count_max` registered bookies that do not respond within
        `deadline_s`. A cancelled call leaves nothing behind.
        """
        live = self.live()
        asked = [*live.writable, *live.read_only][:count_max]
        question = GetBookieInfo(total_bytes=False, free_bytes=False)
        calls = [self.bookies.call(each, question, deadline_s=deadline_s) for each in asked]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return [
            bookie
            for bookie, answer in zip(asked, answers, strict=True)
            if isinstance(answer, BookieUnreachable | ConnectionLost | BookieTimeout)
        ]

    async def space_of_bookies(
        self, deadline_s: float, count_max: int
    ) -> dict[BookieId, tuple[int, int]]:
        """Returns the free and total bytes of those of the first `count_max` registered bookies
        that respond within `deadline_s`. A cancelled call leaves nothing behind.
        """
        live = self.live()
        asked = [*live.writable, *live.read_only][:count_max]
        question = GetBookieInfo(total_bytes=True, free_bytes=True)
        calls = [self.bookies.call(each, question, deadline_s=deadline_s) for each in asked]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        return {
            bookie: (answer.free_bytes or 0, answer.total_bytes or 0)
            for bookie, answer in zip(asked, answers, strict=True)
            if isinstance(answer, BookieInfoReply) and answer.error is None
        }

    async def check_healthy_bookies(self, count: int) -> bool:
        """Returns whether at least `count` bookies accept new ledgers. A bookie in quarantine
        counts if it responds now. A cancelled call leaves nothing behind.
        """
        live = self.live()
        if len(self._placement.usable(live)) < count:
            return False
        await self.pardon_bookies()
        live, now_ns = self.live(), self._clock.monotonic_ns()
        resting = self._placement.resting(live, now_ns)
        return len(self._placement.usable(live)) - len(resting) >= count

    async def pardon_bookies(self) -> None:
        """Ends the quarantine of bookies that respond now. A cancelled call leaves nothing behind."""
        resting = self._placement.resting(self.live(), self._clock.monotonic_ns())
        await pardon_those_that_answer(
            resting, self.bookies, self._health, self._clock, question_s=_QUESTION_S
        )

    @property
    def knows_racks(self) -> bool:
        """Whether racks are configured in this client."""
        return bool(self.config.racks)

    def lacks_racks(self, quorum: Quorum, ensemble: Ensemble) -> bool:
        """Returns whether some entries would have all their copies in one rack."""
        return self._placement.lacks_racks(quorum, ensemble)

    def sets_in_one_rack(self, quorum: Quorum, ensemble: Ensemble) -> int:
        """Returns how many write sets have all their copies in one rack."""
        return self._placement.sets_in_one_rack(quorum, ensemble)

    def pick_replacement(
        self, quorum: Quorum, ensemble: Ensemble, slot: int, excluded: Collection[BookieId]
    ) -> BookieId | None:
        """Picks another bookie for one slot of an ensemble, by racks and health. Returns None if
        there is none."""
        now_ns = self._clock.monotonic_ns()
        return self._placement.pick_replacements(
            quorum, ensemble, (slot,), self.live(), now_ns, excluded=excluded, is_urgent=True
        ).get(slot)

    async def until_writable(self, count: int, deadline_s: float) -> None:
        """Waits until `count` bookies accept new ledgers. Raises `TimeoutError`. A cancelled call
        leaves nothing behind.
        """
        async with asyncio.timeout(deadline_s):
            while len(self._placement.usable(live := self.live())) < count:
                await self._watcher.changed(live)

    # ------------------------------------------------------------------------------------------

    async def _create(
        self,
        quorum: Quorum,
        digest: DigestType,
        password: bytes,
        custom: dict[str, bytes],
        ledger_id: int | None,
        *,
        is_urgent: bool = False,
    ) -> StoredLedger:
        self._make_sure_it_is_open()
        if not self._has_layout:
            await ensure_layout(self._store, self.cluster)
            self._has_layout = True
        live = self._live(is_urgent=is_urgent)
        placed = self._placement.pick_ensemble(quorum, live, self._clock.monotonic_ns())
        created_ms = self._clock.wall_us() // 1000
        token = draw_creation_token(self._randomness)

        def make(new_id: LedgerId) -> LedgerMetadata:
            return LedgerMetadata(
                new_id,
                quorum,
                (Fragment(FIRST_ENTRY, placed),),
                digest_type=digest,
                password=password,
                custom=tuple(sorted(custom.items())),
                created_ms=created_ms,
                creation_token=token,
            )

        if ledger_id is None:
            return await self.nodes.create_new(make)
        return await self.nodes.create(make(parse_ledger_id(ledger_id)))

    def _live(self, *, is_urgent: bool) -> LiveBookies:
        live = self.live()
        return LiveBookies({**live.writable, **live.read_only}) if is_urgent else live

    def _write(
        self, stored: StoredLedger, digest: DigestType, password: bytes, *, is_urgent: bool = False
    ) -> LedgerWriter:
        self._make_sure_it_is_open()
        writer = LedgerWriter(
            stored,
            LedgerDigest(digest, password, stored.metadata.ledger_id),
            password,
            self._context,
            is_urgent=is_urgent,
        )
        self._handles[writer] = None
        self._lost_bookie_watch.start()
        return writer

    async def _open(
        self, stored: StoredLedger, password: bytes | None, digest: DigestType | None
    ) -> LedgerReader:
        self._make_sure_it_is_open()
        key, kind = credentials(stored.metadata, password, digest)
        reader = LedgerReader(
            stored,
            LedgerDigest(kind, key, stored.metadata.ledger_id),
            nodes=self.nodes,
            bookies=self.bookies,
            health=self._health,
            clock=self._clock,
            randomness=self._randomness,
            config=self.config,
        )
        self._handles[reader] = None
        try:
            await reader.start()
        except BaseException:
            await reader.stop()
            raise
        return reader

    def _open_writers(self) -> Iterator[LedgerWriter]:
        for each in tuple(self._handles):
            if isinstance(each, LedgerWriter) and not each.is_stopped:
                yield each

    def _make_sure_it_is_open(self) -> None:
        """Raises if this client was closed. Forgets closed handles when half of all handles may be
        closed."""
        if self._is_closed:
            raise InvalidRequest("this client was closed")
        if len(self._handles) >= self._look_at:
            for each in [each for each in self._handles if each.is_stopped]:
                del self._handles[each]
            self._look_at = 2 * len(self._handles) + _HANDLES_MIN


def credentials(
    metadata: LedgerMetadata, password: bytes | None, digest: DigestType | None
) -> tuple[bytes, DigestType]:
    """Returns the key and the digest type. Raises `Unauthorized`, `InvalidRequest`."""
    known = metadata.password
    if password is None:
        password = known or b""
    elif known is not None and password != known:
        raise Unauthorized("the password is wrong", ledger_id=metadata.ledger_id)
    kind = metadata.digest_type or digest
    if kind is None:
        raise InvalidRequest(
            "the ledger is so old that its metadata does not name the digest of its entries",
            ledger_id=metadata.ledger_id,
            next_step="pass the digest: BookKeeper used CRC32 or HMAC",
        )
    if digest is not None and digest is not kind:
        raise InvalidRequest(
            f"the digest of the ledger's entries is {kind.name}, not {digest.name}",
            ledger_id=metadata.ledger_id,
        )
    return password, kind
