"""A whole bookie, which reaches the outside only through ports. A real process and the simulator
run the same code.

    open       checks the identity, replays the storage, answers on its port, starts background work;
               a start on a full disk is counted later, when there is room
    register   lets others see the bookie, never before its port answers (B9)
    failed     returns the error after which the bookie must stop: the journal failed, or the id was lost
    close      unregisters first, then sends clients their last answers, then closes the storage

A journal that has failed acknowledges nothing (B6), so a bookie that has failed need not stop at
once.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol, cast

import structlog

from rollbook.bookie.config import BookieConfig, ServerConfig, SpaceConfig, StorageConfig
from rollbook.bookie.core.suggested_commands import RESTORED
from rollbook.bookie.disk_maintenance import Space
from rollbook.bookie.drain_watch import LifecycleWatch
from rollbook.bookie.identity import Identity
from rollbook.bookie.registration_loop import RegistrationLoop
from rollbook.bookie.socket_server import BookieServer
from rollbook.bookie.stats import Stats
from rollbook.bookie.storage import Storage
from rollbook.proto.addresses import EVERY_ADDRESS, is_wildcard, parse_address
from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes
from rollbook.proto.cluster.cluster_root import Cluster, ensure_layout, open_cluster
from rollbook.proto.cluster.ledger_ids import LedgerIds, is_ahead
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.registration import BookieRegistration, RegisteredMode
from rollbook.proto.errors import (
    BadConfig,
    OlderMetadata,
    OutcomeUnknown,
    RollbookError,
    SessionExpired,
    Unavailable,
)
from rollbook.proto.formats.service_info import (
    BATCH_READ,
    DOUBTING,
    DRAINING,
    IDENTITY,
    WRITERS_FROM,
    BookieServiceInfo,
    describe_bookie,
)
from rollbook.proto.ids import BookieId, LedgerId, parse_bookie_id
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import (
    NO_SESSION,
    Address,
    Clock,
    Disk,
    Listener,
    MetadataStore,
    Randomness,
    SessionId,
    Transport,
)
from rollbook.proto.tasks import first_failure, first_of, stop_tasks

logger = structlog.get_logger()

DEFAULT_PORT: Final = 3181
_END_SESSION_S: Final = 3.0
_LOOK_S: Final = 0.5
_COUNT_AGAIN_S: Final = 1.0
_CALM_S: Final = 5.0


class Machine(Protocol):
    """The ports through which a bookie uses the machine."""

    @property
    def disk(self) -> Disk: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def randomness(self) -> Randomness: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, by section."""

    bookie: BookieConfig
    storage: StorageConfig
    server: ServerConfig = field(default_factory=ServerConfig)
    space: SpaceConfig = field(default_factory=SpaceConfig)
    # The place where each value that is not a default was set, by `section.name`.
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)


class BookieState(Enum):
    STARTING = "starting"
    SERVING = "serving"
    CLOSING = "closing"


def addresses_of(config: BookieConfig) -> tuple[Address, Address, BookieId]:
    """Returns the address to listen on, the advertised address and the bookie id. Raises
    `BadConfig`."""
    listen = parse_address(
        config.listen, "listen", default_host=EVERY_ADDRESS, default_port=DEFAULT_PORT
    )
    advertised = listen
    if config.advertise:
        advertised = parse_address(config.advertise, "advertise", default_port=listen.port)
    named = "advertise" if config.advertise else "listen"
    if is_wildcard(advertised.host):
        raise BadConfig(
            f"no client can connect to {advertised}",
            settings=(named,),
            next_step="pass --advertise HOST:PORT",
        )
    if not advertised.port and not config.bookie_id:
        raise BadConfig(
            "a bookie whose port changes needs an id of its own",
            settings=("advertise",) if listen.port else ("listen",),
            next_step="pass --bookie-id ID",
        )
    with BadConfig.about("bookie_id" if config.bookie_id else named):
        return listen, advertised, parse_bookie_id(config.bookie_id or str(advertised))


def tls_address_of(config: BookieConfig) -> Address | None:
    """Returns the bookie's address with TLS. Raises `BadConfig`."""
    if not config.tls_listen:
        return None
    found = parse_address(config.tls_listen, "tls_listen", default_host=EVERY_ADDRESS)
    if is_wildcard(found.host) and not config.advertise:
        raise BadConfig(
            f"no client can connect to {found}",
            settings=("tls_listen",),
            next_step="pass --advertise HOST",
        )
    return found


class _HangUp(asyncio.Protocol):
    """Closes connections that arrive before the bookie can answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


class Bookie:
    def __init__(
        self, machine: Machine, store: MetadataStore, settings: Settings, cluster: Cluster
    ) -> None:
        listen, advertised, bookie_id = addresses_of(settings.bookie)
        self.bookie_id = bookie_id
        self.config = settings
        self.cluster = cluster
        self.stats = Stats()
        self.state = BookieState.STARTING
        self.identity = Identity(
            machine.disk, settings.storage, machine.randomness, store, cluster, bookie_id
        )
        self.storage: Storage
        self.server: BookieServer
        self.space: Space
        self.membership: RegistrationLoop | None = None  # None until the bookie registers.
        self.leaving = LifecycleWatch(LifecycleNodes(store, cluster), bookie_id)
        self._machine = machine
        self._store = store
        self._listen = listen
        self._tls_listen = tls_address_of(settings.bookie)
        self._advertised = advertised
        self._listener: Listener
        self._tls_listener: Listener | None = None
        self._holder = ""
        self._http: Address | None = None  # The address of the admin pages.
        self._tasks: list[asyncio.Task[None]] = []  # Background tasks; `leave` stops them.
        # Callbacks that end queries to the metadata store.
        self._leavers: list[Callable[[], None]] = []
        # Callbacks that close everything that was opened, in order of opening.
        self._closers: list[Callable[[], Awaitable[None]]] = []

    @classmethod
    async def open(
        cls,
        machine: Machine,
        store: MetadataStore,
        settings: Settings,
        tls: Transport | None = None,
    ) -> "Bookie":
        """Opens the bookie; when this returns, its ports answer. Closing the bookie closes the
        store, and so does an error here.

        `tls` is the transport that listens at `tls_listen`.

        Raises `OSError`, or one of `WrongBookie`, `WrongCluster`, `NoSuchCluster`, `DataLost`,
        `DirectoryInUse`, `BadConfig`, `OlderMetadata`, each with its next step.
        """
        try:
            url = MetadataUrl.parse(settings.bookie.metadata)
            cluster = await open_cluster(store, url.ledgers_root, url=url)
            await ensure_layout(store, cluster)
            bookie = cls(machine, store, settings, cluster)
        except BaseException:
            await store.close()
            raise
        try:
            await bookie._open(tls)
        except BaseException:
            await bookie.close()
            raise
        return bookie

    async def _open(self, tls: Transport | None) -> None:
        machine, settings = self._machine, self.config
        locks = await self.identity.establish(self._require_place)
        self._holder = locks[0].token
        self.storage = await Storage.open(
            machine.disk,
            settings.storage,
            machine.clock,
            machine.randomness,
            locks=locks,
            stats=self.stats,
        )
        self.storage.start()
        self._closers.append(self.storage.close)
        self.space = Space(
            machine.disk,
            machine.clock,
            machine.randomness,
            self.storage,
            settings.storage,
            settings.space,
            self._store,
            self.cluster,
            self.bookie_id,
            settings.bookie.session_timeout_s,
        )
        self._leavers.append(self.space.garbage.end)
        if self.space.surplus:
            self._leavers.append(self.space.surplus.end)
        self.space.set_read_only(settings.bookie.read_only)
        await self.leaving.look()
        self.space.set_leaving(self.leaving.reason)
        await self.space.open()
        # Without this, a copy of a running bookie could take over its id.
        await self._registration().await_others()
        await self._require_current_metadata()
        # On a full disk a bookie still responds but promises nothing: a copy could be mistaken for
        # it (B8).
        self.storage.may_promise = await self.identity.begin()
        self.server = BookieServer(
            self.storage,
            settings.server,
            machine.transport,
            machine.clock,
            self.stats,
            identity=self.bookie_id.encode(),
        )
        self._closers.append(lambda: self.server.drain(settings.bookie.drain_s))
        self._listener = await self.server.listen(self._listen)
        self._closers.append(self.space.close)
        self.space.start()
        if not self.storage.may_promise:
            self._begin(self._count_start())
        if tls and self._tls_listen:
            self._tls_listener = await self.server.listen(self._tls_listen, tls)

    async def _require_current_metadata(self) -> None:
        """Raises `OlderMetadata` if the store was restored from a copy that knows less than this
        bookie (B14)."""
        nodes = LedgerNodes(self._store, self.cluster.root, self.cluster.layout)
        known = await self.storage.ledger_ids()
        if not known:
            return
        position = await LedgerIds(self._store, self.cluster.root).draw()
        ahead = [each for each in known if is_ahead(each, position)]
        unnamed = [each for each in ahead if not await nodes.exists(LedgerId(each))]
        if unnamed:
            url = shlex.quote(self.config.bookie.metadata)
            raise OlderMetadata(
                f"this bookie has ledgers that the metadata store has not given out yet ({len(unnamed)}, up to "
                f"{unnamed[-1]}; the next id there is {position}): the store was restored from an older copy",
                bookie=self.bookie_id,
                next_step="restore the newest copy; if this is the newest one, later data is lost: "
                f"{RESTORED} --metadata {url} --above {unnamed[-1]}",
            )

    async def _require_place(self) -> None:
        """Raises `BadConfig` if the bookie cannot listen on its addresses. The bookie's id usually
        contains these addresses."""
        # Listens on both addresses at the same time, so that it fails if they are equal.
        async with AsyncExitStack() as closing:
            for address in filter(None, (self._listen, self._tls_listen)):
                listener = await self._machine.transport.listen(_HangUp, address)
                closing.push_async_callback(listener.close)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts background work; if the work fails, the bookie has failed."""
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _count_start(self) -> None:
        while not self.storage.may_promise:
            await asyncio.sleep(_COUNT_AGAIN_S)
            # The metadata store failed: the loop tries again.
            with suppress(Unavailable, OutcomeUnknown, SessionExpired):
                self.storage.may_promise = await self.identity.begin()
        logger.info("start_counted", bookie=self.bookie_id)

    @property
    def address(self) -> Address:
        """Returns the address that the bookie listens on, with the real port."""
        return self._listener.address

    @property
    def advertised(self) -> Address:
        return Address(self._advertised.host, self._advertised.port or self.address.port)

    @property
    def tls_address(self) -> Address | None:
        """The bookie's advertised address with TLS."""
        if self._tls_listener is None:
            return None
        is_advertised = self.config.bookie.advertise
        host = (self._advertised if is_advertised else self._tls_listener.address).host
        return Address(host, self._tls_listener.address.port)

    async def register(self, http: Address | None = None) -> None:
        """Waits until others can see the bookie. Before that it waits, without a limit, until an
        earlier session of its id has ended.

        Raises `NodeExists` if another process keeps the id. If the bookie fails first, raises the
        error that `failed` returns.
        """
        if http and is_wildcard(http.host):
            http = Address(self._advertised.host, http.port)
        self._http = http
        await self._unless_failed(self._obey_lifecycle())
        registration = self._registration(self.advertised)
        self.stats.registered = lambda: registration.is_registered
        self.stats.sessions_lost = lambda: registration.sessions_lost
        self.membership = RegistrationLoop(registration, self._standing)
        await self._unless_failed(self.membership.join())
        self._begin(self._follow_standing())
        self._begin(self.leaving.follow(self._on_leaving))
        self._begin(self._follow_sessions(self._store.session))
        self.state = BookieState.SERVING

    def _info(self, advertised: Address) -> BookieServiceInfo:
        old_below = self.storage.catalog.old_below
        return describe_bookie(
            advertised,
            incarnation=self.identity.incarnation,
            holder=self._holder,
            extensions=(BATCH_READ, IDENTITY),
            http=self._http,
            tls=self.tls_address,
            properties={
                **({DRAINING: "true"} if self.leaving else {}),
                **({DOUBTING: "true"} if self.storage.catalog.doubts.everything else {}),
                **({WRITERS_FROM: str(old_below)} if old_below else {}),
            },
        )

    async def _obey_lifecycle(self) -> None:
        """Reads the lifecycle state and obeys it before others see the bookie (B15)."""
        while True:
            try:
                await self.leaving.look()
                break
            except (Unavailable, OutcomeUnknown, SessionExpired):
                await asyncio.sleep(_LOOK_S)
        self.space.set_leaving(self.leaving.reason)

    def _on_leaving(self) -> None:
        """Stops accepting entries at once; others see the new state a moment later (B15)."""
        assert self.membership
        self.space.set_leaving(self.leaving.reason)
        self.membership.describe(self._info(self.advertised))
        self.membership.want(self._standing)

    def _registration(self, advertised: Address | None = None) -> BookieRegistration:
        info = self._info(advertised or self._advertised)
        return BookieRegistration(
            self._store,
            self.cluster.root,
            self.bookie_id,
            info,
            self.config.bookie.session_timeout_s,
            self.cluster.url,
        )

    async def _unless_failed(self, work: Coroutine[Any, Any, None]) -> None:
        async def fail() -> None:
            raise await self.failed()

        await first_of(work, fail())

    @property
    def is_read_only(self) -> bool:
        return self.storage.is_read_only

    async def set_read_only(self, wanted: bool) -> None:
        """Sets an operator's read-only mode. A lack of space makes the bookie read-only, too.
        Others see the new mode a moment later."""
        self.space.set_read_only(wanted)
        if self.membership:
            self.membership.want(self._standing)

    async def _follow_standing(self) -> None:
        """Registers as writable only after a time without changes, because each change makes
        clients choose bookies again."""
        assert self.membership
        writable_s = 0.0
        while True:
            await asyncio.sleep(_LOOK_S)
            writable_s = 0.0 if self.is_read_only else writable_s + _LOOK_S
            if not 0.0 < writable_s < _CALM_S:
                self.membership.want(self._standing)

    async def _follow_sessions(self, session: SessionId) -> None:
        """Checks the metadata store in each new session, because the bookie's session ends when the
        store is restored from a copy. Raises `OlderMetadata`."""
        async for _ in self._store.session_events():
            while self._store.session not in (session, NO_SESSION):
                found = self._store.session
                try:
                    await self._require_current_metadata()
                except (Unavailable, OutcomeUnknown, SessionExpired):
                    await asyncio.sleep(_LOOK_S)
                else:
                    session = found

    @property
    def _standing(self) -> RegisteredMode:
        return RegisteredMode.READ_ONLY if self.is_read_only else RegisteredMode.WRITABLE

    async def settle_everything(self, stamp: str) -> None:
        """Ends the doubt about everything. Raises `Superseded` if more entries came into doubt, and
        `OSError`, `BookieFailed`, `MetadataUnavailable`, `ConnectionLost`, `SessionExpired`."""
        # Ledgers that may have been fenced here and were not checked all have lower ids (B13).
        old_below = await LedgerIds(self._store, self.cluster.root).draw()
        await self.storage.settle_everything(stamp, old_below)
        if self.membership:
            self.membership.describe(self._info(self.advertised))

    async def failed(self) -> BaseException:
        """Returns the error after which the bookie cannot go on; the process then has to end."""
        parts = (self.storage, self.space, *([self.membership] if self.membership else ()))
        return await first_of(*(part.failed() for part in parts), first_failure(self._tasks))

    async def leave(self) -> None:
        """Deregisters at once (B9) but still serves clients."""
        if self.state is BookieState.CLOSING:
            return
        self.state = BookieState.CLOSING
        for leave in self._leavers:
            leave()
        await stop_tasks(*self._tasks)
        if self.membership:
            await self.membership.close()
        try:
            async with asyncio.timeout(_END_SESSION_S):
                await self._store.close()  # The registration ends with the session.
        except (TimeoutError, RollbookError):
            logger.warning("metadata_session_left_to_expire", bookie=self.bookie_id)

    async def close(self) -> None:
        """Closes the bookie within a few seconds; no acknowledged entry depends on it."""
        try:
            await self.leave()
        finally:
            while self._closers:
                await self._closers.pop()()
