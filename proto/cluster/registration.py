"""Registers a live bookie: it has an ephemeral node under its id, in the folder of writable or of
read-only bookies.

A bookie registers when it is ready to serve, since clients connect as soon as they see the node.
While it changes folders it is in both: the new node is created before the old one is removed, so
that no watcher considers the bookie dead (RG1). A node of another session belongs to an earlier
process whose session has not expired yet, or to a second process with the same id, which must stop
(RG2). The earlier process is known to be dead if it held the very lock that we hold now. In this
case its node is removed at once.
"""

import asyncio
import math
from contextlib import suppress
from enum import Enum
from typing import Final

import structlog

from rollbook.proto.cluster.cluster_root import zookeeper_command
from rollbook.proto.cluster.uncertain_writes import (
    ATTEMPTS,
    create_surely,
    delete_surely,
    ensure_path,
    read_surely,
    set_surely,
)
from rollbook.proto.errors import (
    BadMetadata,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    NoSuchCluster,
    NoSuchNode,
    OutcomeUnknown,
    SessionExpired,
    Unavailable,
)
from rollbook.proto.formats.paths import AVAILABLE, READ_ONLY
from rollbook.proto.formats.service_info import (
    BookieServiceInfo,
    pack_service_info,
    unpack_service_info,
)
from rollbook.proto.ids import BookieId
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import NO_SESSION, CreateMode, MetadataStore, Node, SessionState, Watch
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

_TICK_S: Final = 2.0  # A store that can be reached may end a session this much too late.
_LOOK_AGAIN_S: Final = 0.5
_RETRY_PAUSE_S: Final = 0.5


class RegisteredMode(Enum):
    WRITABLE = AVAILABLE
    READ_ONLY = READ_ONLY


def id_taken(
    message: str,
    path: str,
    bookie_id: BookieId,
    node: Node,
    url: MetadataUrl | None,
    next_step: str,
) -> NodeExists:
    """Returns the error for an id that is registered at `path`. It describes the other process, as
    far as the node does.
    """
    if node.stat.owner == NO_SESSION:
        return NodeExists(
            f"{message}: the node belongs to no session, so it stays until it is removed",
            path=path,
            next_step=zookeeper_command(url, f"delete {path}"),
        )
    who = {"session": f"{node.stat.owner:#x}"}
    try:
        info = unpack_service_info(bookie_id, node.value)
    except BadMetadata:
        info = BookieServiceInfo()
    if info.address:
        who["address"] = str(info.address)
    return NodeExists(message, path=path, next_step=next_step, **who)


class BookieRegistration:
    def __init__(
        self,
        store: MetadataStore,
        root: str,
        bookie_id: BookieId,
        info: BookieServiceInfo,
        session_timeout_s: float,
        url: MetadataUrl | None = None,
    ) -> None:
        """`url` is only shown in the text of errors."""
        self._store = store
        self._root = root
        self._url = url
        self._bookie_id = bookie_id
        self._data = pack_service_info(info)
        self._patience_s = session_timeout_s + _TICK_S
        self._looks = max(1, math.ceil(self._patience_s / _LOOK_AGAIN_S))
        self._holder = info.holder
        self._standing: RegisteredMode | None = None  # The mode that was requested last.
        # The last known state. A session may be over before this process learns of it.
        self.is_registered = False
        self._logged: RegisteredMode | None = None  # The mode that was logged in the latest event.
        self.sessions_lost = 0
        self._turn = asyncio.Lock()

    def describe(self, info: BookieServiceInfo) -> None:
        """Sets the information that the next `register` publishes."""
        self._data = pack_service_info(info)

    async def await_others(self) -> None:
        """Returns when no other process is registered under this bookie's id.

        Raises `NodeExists` if another process remains registered.
        """
        for _ in range(ATTEMPTS):
            try:
                for each in RegisteredMode:
                    await self._await_departure(self._path(each))
            except SessionExpired:
                continue
            return
        raise MetadataUnavailable("sessions end too quickly", bookie=self._bookie_id)

    async def register(self, standing: RegisteredMode) -> None:
        """Registers the bookie. Returns when other processes can see it in this mode.

        Raises `NodeExists` if another process is registered under its id and remains so. After a
        cancelled call the bookie may be in the old folder, the new one, or both.
        """
        async with self._turn:
            self._standing = standing
            for _ in range(ATTEMPTS):
                try:
                    await self._establish(standing)
                except SessionExpired:
                    continue
                return
            raise MetadataUnavailable("sessions end too quickly", bookie=self._bookie_id)

    async def keep(self) -> None:
        """Registers the bookie again whenever its session was lost. Runs until it is cancelled.

        Raises `NodeExists` if another process has taken its id in the meantime: the bookie must
        stop.
        """
        has_news = asyncio.Event()
        hearing = [self._hear_session(has_news)]
        hearing += [self._hear_node(self._path(each), has_news) for each in RegisteredMode]
        tasks = [asyncio.get_running_loop().create_task(each) for each in hearing]
        for task in tasks:
            task.add_done_callback(lambda _: has_news.set())
        try:
            while True:
                await has_news.wait()
                has_news.clear()
                for task in tasks:
                    if task.done():
                        # If the watch has failed, it is better to crash than to miss changes silently.
                        task.result()
                await self._restore()
        finally:
            await stop_tasks(*tasks)

    async def _hear_session(self, has_news: asyncio.Event) -> None:
        async for event in self._store.session_events():
            if event.state is SessionState.CONNECTED:
                has_news.set()
            else:
                self.is_registered = False
                self.sessions_lost += event.state is SessionState.EXPIRED
                logger.warning(
                    "bookie_registration_in_doubt",
                    bookie=self._bookie_id,
                    session_state=event.state.value,
                )

    async def _hear_node(self, path: str, has_news: asyncio.Event) -> None:
        """Watches the node, since others may remove it, and another process may register in its place."""
        watch = await self._watch(path)
        try:
            async for _ in watch:
                has_news.set()
        finally:
            await watch.close()

    async def _watch(self, path: str) -> Watch:
        while True:
            try:
                return await self._store.watch(path)
            except (Unavailable, OutcomeUnknown, SessionExpired):
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def withdraw(self) -> None:
        """Removes the registration, for example when the bookie shuts down."""
        async with self._turn:
            self._standing = None
            self.is_registered = False
            for standing in RegisteredMode:
                await self._remove(standing)

    async def _restore(self) -> None:
        while True:
            try:
                async with self._turn:
                    if self._standing is not None:
                        await self._establish(self._standing)
                return
            except (Unavailable, OutcomeUnknown, SessionExpired) as error:
                logger.warning(
                    "bookie_not_registered", bookie=self._bookie_id, reason=error.code.reason
                )
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _establish(self, standing: RegisteredMode) -> None:
        """Registers the bookie, whatever the state was before. Afterwards this session has one
        node, in the right folder.
        """
        for each in RegisteredMode:
            await self._await_departure(self._path(each))
        path = self._path(standing)
        try:
            await self._enter(path)
        # A cluster that never had a read-only bookie may lack the folder for them.
        except NoSuchNode:
            try:
                await ensure_path(self._store, path.rpartition("/")[0], above=self._root)
                await self._enter(path)
            except NoSuchNode:
                raise NoSuchCluster(path=self._root) from None
        await self._correct(path)
        for each in RegisteredMode:
            if each is not standing:
                await self._remove(each)
        if not self.is_registered or self._logged is not standing:
            logger.info("bookie_registered", bookie=self._bookie_id, standing=standing.name)
        self.is_registered, self._logged = True, standing

    async def _enter(self, path: str) -> None:
        await create_surely(self._store, path, self._data, self._is_ours, CreateMode.EPHEMERAL)

    async def _await_departure(self, path: str) -> None:
        if not await self._is_strangers(path):
            return
        if await self._remove_dead(path):
            return
        logger.info("waiting_for_earlier_session", bookie=self._bookie_id, path=path)
        node = None
        watch = await self._store.watch(path)
        try:
            for _ in range(self._looks):
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._patience_s / self._looks):
                        while await self._is_strangers(path):
                            if await anext(watch, None) is None:
                                raise MetadataUnavailable(
                                    "the metadata store was closed", path=path
                                )
                # This counts as one look, however long this process or the store was stopped, since
                # a stopped store ends no sessions (MS3).
                node = await read_surely(self._store, path)
                if node is None or self._is_ours(node):
                    return
        finally:
            await watch.close()
        assert node is not None
        raise id_taken(
            "another process has been registered under this bookie id for "
            f"at least {self._patience_s:g} s; this one does not serve",
            path,
            self._bookie_id,
            node,
            self._url,
            "stop it, or give this bookie an id of its own; if it is dead, start again when "
            "its session is over",
        )

    async def _remove_dead(self, path: str) -> bool:
        """Removes the node if its process is known to be dead, and returns whether it was removed."""
        node = await read_surely(self._store, path)
        if node is None or self._is_ours(node) or not self._holder:
            return False
        try:
            if unpack_service_info(self._bookie_id, node.value).holder != self._holder:
                return False
            await delete_surely(self._store, path, node.stat.version)
        except (BadMetadata, NoSuchNode, MetadataConflict):
            return False
        logger.info("dead_registration_removed", bookie=self._bookie_id, path=path)
        return True

    async def _is_strangers(self, path: str) -> bool:
        node = await read_surely(self._store, path)
        return node is not None and not self._is_ours(node)

    async def _correct(self, path: str) -> None:
        """Updates the node, since an earlier call in this session may have written other endpoints."""
        node = await read_surely(self._store, path)
        if node is not None and self._is_ours(node) and node.value != self._data:
            await set_surely(self._store, path, self._data, node.stat.version)

    async def _remove(self, standing: RegisteredMode) -> None:
        path = self._path(standing)
        if not await self._is_strangers(path):
            try:
                await delete_surely(self._store, path, is_ours=self._is_ours)
            except (NoSuchNode, MetadataConflict):
                pass

    def _is_ours(self, node: Node) -> bool:
        session = self._store.session
        return session != NO_SESSION and node.stat.owner == session

    def _path(self, standing: RegisteredMode) -> str:
        return f"{self._root}/{standing.value}/{self._bookie_id}"
