"""Watches which bookies live, which of them accept new entries, and where they listen.

The watcher reads the two folders of registrations whenever something changes there and when the
store reports that events may have been missed. It also reads them regularly, since a watch can be
lost in unforeseen ways. A bookie in both folders is changing from one to the other, and counts as
read-only.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import structlog

from rollbook.proto.cluster.uncertain_writes import children_surely, read_surely
from rollbook.proto.errors import (
    BadMetadata,
    InvalidRequest,
    MetadataUnavailable,
    NoSuchNode,
    OutcomeUnknown,
    SessionExpired,
    Unavailable,
)
from rollbook.proto.formats.paths import AVAILABLE, READ_ONLY
from rollbook.proto.formats.service_info import BookieServiceInfo, unpack_service_info
from rollbook.proto.ids import BookieId, LedgerId, parse_bookie_id
from rollbook.proto.ports import MetadataStore, Watch, WatchEvent, WatchEventKind
from rollbook.proto.tasks import stop_tasks

logger = structlog.get_logger()

LOOK_AGAIN_S: Final = 60.0
_GATHER_S: Final = 0.02
_RETRY_PAUSE_S: Final = 0.5

Bookies = Mapping[BookieId, BookieServiceInfo]


def _nobody() -> Bookies:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LiveBookies:
    """The live bookies by id, in the order of their ids."""

    writable: Bookies = field(default_factory=_nobody)
    read_only: Bookies = field(default_factory=_nobody)
    _writers_from: Mapping[BookieId, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        every = (*self.writable.items(), *self.read_only.items())
        limits = {bookie: info.writers_from for bookie, info in every}
        limits = {bookie: lowest for bookie, lowest in limits.items() if lowest}
        object.__setattr__(self, "_writers_from", MappingProxyType(limits))

    def find(self, bookie_id: BookieId) -> BookieServiceInfo | None:
        return self.writable.get(bookie_id) or self.read_only.get(bookie_id)

    def refuses(self, bookie_id: BookieId, ledger_id: LedgerId) -> bool:
        """Returns whether the bookie refuses entries from this ledger's writer, because the ledger
        is older than the bookie's present life.
        """
        return ledger_id < self._writers_from.get(bookie_id, 0)

    def refusing(self, ledger_id: LedgerId) -> list[BookieId]:
        """Returns the bookies that refuse entries from this ledger's writer."""
        return [bookie for bookie, lowest in self._writers_from.items() if ledger_id < lowest]


class BookieWatcher:
    def __init__(
        self, store: MetadataStore, root: str, *, look_again_s: float = LOOK_AGAIN_S
    ) -> None:
        self._store = store
        self._root = root
        self._look_again_s = look_again_s
        self._infos: dict[str, BookieServiceInfo] = {}  # The last known registrations, by path.
        self._current = LiveBookies()
        self._changed = asyncio.Event()
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the watcher. Returns once `current` shows the state of the store."""
        watch = await self._store.watch(f"{self._root}/{AVAILABLE}", recursive=True)
        try:
            await self._look(None)
        except BaseException:
            await watch.close()
            raise
        self._task = asyncio.get_running_loop().create_task(self._run(watch))
        self._task.add_done_callback(lambda _: self._changed.set())

    @property
    def current(self) -> LiveBookies:
        """The last known state. It does not change while the store cannot be reached."""
        return self._current

    async def changed(self, known: LiveBookies) -> LiveBookies:
        """Returns the current state once it differs from `known`. States in between are skipped.

        Raises `MetadataUnavailable` if the watcher has ended.
        """
        while self._current is known:
            if self._task is None or self._task.done():
                raise MetadataUnavailable("the watcher of the bookies has ended")
            await self._changed.wait()
        return self._current

    async def look(self) -> LiveBookies:
        """Reads the store's present state into `current`, and returns it. Raises `Unavailable`,
        `OutcomeUnknown`, `SessionExpired`."""
        await self._look({})
        return self._current

    async def close(self) -> None:
        await stop_tasks(self._task)

    async def _run(self, watch: Watch) -> None:
        try:
            while True:
                await self._look_patiently(await self._wait(watch))
        except _StreamEnded:
            pass
        except Exception:
            logger.exception("bookie_watcher_failed")
            raise
        finally:
            await watch.close()

    async def _wait(self, watch: Watch) -> dict[str, None] | None:
        """Waits for a change. Returns the paths of the changed nodes, or None if any node may have changed."""
        dirty: dict[str, None] = {}
        try:
            async with asyncio.timeout(self._look_again_s):
                event = await _next_event(watch)
            # Many bookies may come or go at once, so more changes are awaited here.
            async with asyncio.timeout(_GATHER_S):
                while event.kind is not WatchEventKind.RESYNC:
                    dirty[event.path] = None
                    event = await _next_event(watch)
                dirty.clear()
        except TimeoutError:
            pass
        return dirty or None

    async def _look_patiently(self, dirty: dict[str, None] | None) -> None:
        while True:
            try:
                return await self._look(dirty)
            except (Unavailable, OutcomeUnknown, SessionExpired) as error:
                logger.warning("bookies_not_read", reason=error.code.reason)
                dirty = None
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _look(self, dirty: dict[str, None] | None) -> None:
        # Only one read runs at a time, so that no old state replaces a newer one.
        async with self._looking:
            await self._read_folders(dirty)

    async def _read_folders(self, dirty: dict[str, None] | None) -> None:
        """Lists the writable bookies before and after the read-only ones. So a bookie that changes
        folders, in either direction, is seen in at least one of them (RG1).
        """
        before = await self._list(AVAILABLE)
        read_only = await self._list(READ_ONLY)
        writable = sorted({*before, *await self._list(AVAILABLE)} - set(read_only))
        infos: dict[str, BookieServiceInfo] = {}
        found = LiveBookies(
            await self._read_infos(AVAILABLE, writable, dirty, infos),
            await self._read_infos(READ_ONLY, read_only, dirty, infos),
        )
        self._infos = infos
        if found != self._current:
            logger.info(
                "bookies_changed", writable=len(found.writable), read_only=len(found.read_only)
            )
            self._current = found
            self._changed.set()
            self._changed = asyncio.Event()

    async def _list(self, folder: str) -> list[BookieId]:
        try:
            names = await children_surely(self._store, f"{self._root}/{folder}")
        except NoSuchNode:
            return []  # The folder does not exist, so no bookie was ever in it.
        return [bookie_id for name in names if (bookie_id := _as_bookie_id(name)) is not None]

    async def _read_infos(
        self,
        folder: str,
        bookies: list[BookieId],
        dirty: dict[str, None] | None,
        infos: dict[str, BookieServiceInfo],
    ) -> Bookies:
        found: dict[BookieId, BookieServiceInfo] = {}
        for bookie_id in bookies:
            path = f"{self._root}/{folder}/{bookie_id}"
            info = self._infos.get(path)
            if info is None or dirty is None or path in dirty:
                info = await self._read_info(bookie_id, path) or self._current.find(bookie_id)
            if info is not None:  # None: the bookie left before its node was read.
                found[bookie_id] = infos[path] = info
        return MappingProxyType(found)

    async def _read_info(self, bookie_id: BookieId, path: str) -> BookieServiceInfo | None:
        node = await read_surely(self._store, path, fresh=False)
        if node is None:
            return None  # The bookie left or changed folders, and another event will follow.
        try:
            return unpack_service_info(bookie_id, node.value)
        except BadMetadata as error:
            logger.warning("bookie_info_unreadable", bookie=bookie_id, reason=error.message)
            return BookieServiceInfo()  # The bookie lives, but its address is not known.


class _StreamEnded(Exception):
    """Raised when the store was closed."""


async def _next_event(watch: Watch) -> WatchEvent:
    try:
        return await anext(watch)
    except StopAsyncIteration:
        raise _StreamEnded from None


def _as_bookie_id(name: str) -> BookieId | None:
    try:
        return parse_bookie_id(name)
    except InvalidRequest:
        return None  # The name is that of the folder of read-only bookies, or of a foreign node.
