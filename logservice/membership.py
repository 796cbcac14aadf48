"""Registers this log server, and watches the other ones. Each server has one ephemeral node, in its own session.

The session expires after 3 s of silence by default. Other servers suggest owners of logs only among servers
that have a session. A session does not prove that its server is alive: if a server refuses connections, the
others do not wait until its session expires. When it has expired, other servers may own the server's logs
already. A server that learns that its session has expired opens its logs again before it confirms anything.

    <own root>/log-servers/<server id>    `core/server_record.py`
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import structlog

from rollbook.logservice.core.clock_agreement import odd_clocks
from rollbook.logservice.core.owner_placement import Suggestions, server_name
from rollbook.logservice.core.server_record import (
    ServerRecord,
    pack_server_record,
    unpack_server_record,
)
from rollbook.logservice.ids import ServerId
from rollbook.proto.cluster.uncertain_writes import (
    children_surely,
    create_surely,
    delete_surely,
    ensure_path,
    read_surely,
    set_surely,
)
from rollbook.proto.errors import (
    BadMetadata,
    MetadataConflict,
    NoSuchNode,
    OutcomeUnknown,
    SessionExpired,
    Unavailable,
    UnsupportedVersion,
)
from rollbook.proto.ports import (
    NO_SESSION,
    CreateMode,
    MetadataStore,
    Node,
    SessionState,
    WatchEventKind,
)
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

FOLDER: Final = "log-servers"
_LOOK_AGAIN_S: Final = 30.0
_RETRY_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class _Life:
    record: ServerRecord
    registered_txn: int  # Increases from one registration to the next.


class ServerMembership:
    def __init__(
        self,
        store: MetadataStore,
        own_root: str,
        *,
        on_session_lost: Callable[[], None],
        on_store: Callable[[bool], None],
    ) -> None:
        """The session of `store` is the lease. `on_store` gets False when the store stops responding, and
        True when it responds again.
        """
        self._on_store = on_store
        self.generation = 0  # Counts the changes of the set of servers that can be suggested.
        self._store = store
        self._own_root = own_root
        self._folder = f"{own_root}/{FOLDER}"
        self._on_session_lost = on_session_lost
        self._record: ServerRecord | None = None  # The record that other servers should see.
        self._published: ServerRecord | None = (
            None  # The record that other servers see, if that is certain.
        )
        # The last record that this server may have written: other servers may see it already.
        self._maybe_seen: ServerRecord | None = None
        self._lives: dict[ServerId, _Life] = {}
        self._servers: dict[str, ServerRecord] = {}
        self._suggestions = Suggestions(())
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._telling = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, record: ServerRecord) -> None:
        """Register this server. Returns when other servers can see this server, and it knows them."""
        self._record = record
        await ensure_path(self._store, self._folder, above=self._own_root)
        await self._enter()
        await self._look(None)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._watch()), loop.create_task(self._hear_session())]

    async def close(self) -> None:
        """Remove this server's registration. Idempotent."""
        record, self._record = self._record, None
        await stop_tasks(*self._tasks)
        self._tasks.clear()
        if record is None:
            return
        ours = record.info.server_id
        self._on_lives({key: each for key, each in self._lives.items() if key != ours})
        try:
            await delete_surely(self._store, self._path(record), is_ours=self._is_ours)
        except (NoSuchNode, MetadataConflict, Unavailable, OutcomeUnknown, SessionExpired):
            pass  # The store removes the node when the session ends, which is soon.

    # --- Who lives --------------------------------------------------------------------------

    def is_alive(self, server_id: ServerId) -> bool:
        """Return whether this life of a server is the one that was registered last, as far as this server
        knows. An earlier life is not alive, even if its node still exists.
        """
        record = self._servers.get(server_name(server_id))
        return record is not None and record.info.server_id == server_id

    def find(self, name: str) -> ServerRecord | None:
        """The record of a server by its name, or by the id of its present life."""
        record = self._servers.get(server_name(ServerId(name)))
        return record if record and name in (record.name, record.info.server_id) else None

    @property
    def is_draining(self) -> bool:
        return self._record is not None and self._record.is_draining

    @property
    def servers(self) -> list[ServerRecord]:
        """The record of each server's newest life, sorted by name."""
        return [self._servers[name] for name in sorted(self._servers)]

    def takes_logs(self, record: ServerRecord) -> bool:
        """Return whether the server may be suggested."""
        return record.name in self._suggestions.names

    @property
    def clock_published_us(self) -> int | None:
        """How far this server's clock is ahead of the metadata store's, as other servers see it."""
        return self._record.clock_apart_us if self._record is not None else None

    @property
    def clocks_apart_us(self) -> dict[str, int]:
        """How far each server's clock is ahead of the metadata store's, by server name. Servers that have not
        reported this are left out.
        """
        return _clocks_apart_us(self._servers)

    @property
    def suggestions(self) -> Suggestions:
        """Suggests owners among the servers that take logs."""
        return self._suggestions

    async def changed(self, generation: int, wait_s: float) -> None:
        """Wait until the suggestions differ from those of `generation`, at most `wait_s`."""
        if self.generation == generation:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    # --- This server ------------------------------------------------------------------------

    async def tell(
        self,
        *,
        is_draining: bool | None = None,
        logs_owned: int | None = None,
        logs_degraded: int | None = None,
        logs_unopened: int | None = None,
        segments_lost: int | None = None,
        clock_apart_us: int | None = None,
    ) -> None:
        """Change this server's record, which other servers see. Raises `MetadataUnavailable` if nothing has
        changed, and `OutcomeUnknown` if others may see the change already. In the second case, and if this is
        cancelled, others see the change after the next write at the latest.
        """
        async with self._telling:
            if self._record is None:
                return
            before = record = self._record
            if is_draining is not None:
                record = replace(record, is_draining=is_draining)
            if logs_owned is not None:
                record = replace(record, logs_owned=logs_owned)
            if logs_degraded is not None:
                record = replace(record, logs_degraded=logs_degraded)
            if logs_unopened is not None:
                record = replace(record, logs_unopened=logs_unopened)
            if segments_lost is not None:
                record = replace(record, segments_lost=segments_lost)
            if clock_apart_us is not None:
                record = replace(record, clock_apart_us=clock_apart_us)
            if record == self._published:
                return
            self._record = record
            try:
                await self._enter()
            except Unavailable as error:
                if self._maybe_seen is record:
                    raise OutcomeUnknown(
                        f"other servers may see the change already: {error.message}"
                    ) from error
                if self._record is record:  # A closed server has no record.
                    self._record = before
                raise
            life = self._lives.get(record.info.server_id)
            if life is not None:
                changed = replace(life, record=record)
                self._on_lives({**self._lives, record.info.server_id: changed})

    async def _enter(self) -> None:
        """Make sure that this server's node belongs to the present session, and holds the present record."""
        async with self._turn:
            self._published = None
            while (record := self._record) is not None:
                path, data = self._path(record), pack_server_record(record)
                try:
                    await create_surely(
                        self._store, path, data, lambda _: True, CreateMode.EPHEMERAL
                    )
                    self._maybe_seen = record
                    node = await read_surely(self._store, path)
                    if node is None:
                        continue
                    if not self._is_ours(node):  # The node is from this server's previous session.
                        await delete_surely(self._store, path, node.stat.version)
                        continue
                    if node.value != data:
                        await set_surely(self._store, path, data, node.stat.version)
                except (SessionExpired, NoSuchNode, MetadataConflict):
                    await asyncio.sleep(_RETRY_PAUSE_S)
                    continue
                self._published = record
                return

    def _path(self, record: ServerRecord) -> str:
        return f"{self._folder}/{record.info.server_id}"

    def _is_ours(self, node: Node) -> bool:
        session = self._store.session
        return session != NO_SESSION and node.stat.owner == session

    async def _hear_session(self) -> None:
        async for event in self._store.session_events():
            self._on_store(event.state is not SessionState.SUSPENDED)
            if event.state is SessionState.EXPIRED:
                logger.warning("log_server_session_lost")
                self._on_session_lost()
            elif event.state is SessionState.CONNECTED:
                await self._enter_patiently()

    async def _enter_patiently(self) -> None:
        while True:
            try:
                return await self._enter()
            except (Unavailable, OutcomeUnknown) as error:
                logger.warning("log_server_not_registered", reason=error.code.reason)
                await asyncio.sleep(_RETRY_PAUSE_S)

    # --- The others -------------------------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                watch = await self._store.watch(self._folder, recursive=True)
                try:
                    await self._look(None)
                    while True:
                        dirty: str | None = None
                        try:
                            async with asyncio.timeout(_LOOK_AGAIN_S):
                                event = await anext(watch)
                            dirty = None if event.kind is WatchEventKind.RESYNC else event.path
                        except TimeoutError:
                            pass
                        except StopAsyncIteration:
                            return
                        await self._look(dirty)
                finally:
                    await watch.close()
            except (Unavailable, OutcomeUnknown, SessionExpired) as error:
                logger.warning("log_servers_not_read", reason=error.code.reason)
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _look(self, dirty: str | None) -> None:
        """Read the records of new servers, and the record at the path `dirty`. With None, read all records."""
        try:
            names = await children_surely(self._store, self._folder)
        except NoSuchNode:
            names = []
        lives: dict[ServerId, _Life] = {}
        for server_id in map(ServerId, names):
            path = f"{self._folder}/{server_id}"
            life = self._lives.get(server_id)
            if life is None or dirty is None or dirty == path:
                life = await self._read(path) or life
            if life is not None:
                lives[server_id] = life
        self._on_lives(lives)

    async def _read(self, path: str) -> "_Life | None":
        node = await read_surely(self._store, path, fresh=False)
        if node is None:
            return None
        try:
            return _Life(unpack_server_record(node.value), node.stat.created_txn)
        except (BadMetadata, UnsupportedVersion) as error:
            logger.warning("log_server_unreadable", path=path, reason=error.message)
            return None

    def _on_lives(self, lives: dict[ServerId, "_Life"]) -> None:
        """Apply the registered lives. If two lives have the same server name, only the one that was registered
        last counts.
        """
        self._lives = lives
        in_order = sorted(lives.values(), key=lambda each: each.registered_txn)
        self._servers = servers = {each.record.name: each.record for each in in_order}
        odd = odd_clocks(_clocks_apart_us(servers))
        taking = tuple(
            name for name in sorted(servers) if name not in odd and not servers[name].is_draining
        )
        if taking != self._suggestions.names:
            logger.info("log_servers_changed", servers=taking)
            self._suggestions = Suggestions(taking)
            self.generation += 1
            self._changed.set()
            self._changed = asyncio.Event()


def _clocks_apart_us(servers: Mapping[str, ServerRecord]) -> dict[str, int]:
    return {
        name: each.clock_apart_us
        for name, each in servers.items()
        if each.clock_apart_us is not None
    }
