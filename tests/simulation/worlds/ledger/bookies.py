"""The bookies of a run, each a whole one as `rollbook server bookie` runs it, and what they let be seen.

What the checker needs to know of them is taken where it leaves them: adds as the storage accepts them,
answers as they are handed to the connection, records as a sync has made them durable. Work in the
background that no ledger's safety rests on (scrub, compaction, garbage) has a world of its own and does
not happen here: that is what makes a run cheap.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final, TypeVar

from rollbook.bookie import bookie, catalog_files, socket_server
from rollbook.bookie.bookie import Bookie, Settings
from rollbook.bookie.config import BookieConfig, SpaceConfig
from rollbook.bookie.connection import Connection
from rollbook.bookie.core import identity as core_identity
from rollbook.bookie.core.record_format import (
    FILE_HEADER_BYTES,
    Purpose,
    RecordReader,
    unpack_file_header,
)
from rollbook.bookie.disk_maintenance import Space
from rollbook.bookie.identity import Identity
from rollbook.bookie.request_handlers import Answers
from rollbook.bookie.storage import Admission, Storage
from rollbook.ledger import bookie_pool
from rollbook.proto.cluster import cookies
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.cluster.registration import BookieRegistration, RegisteredMode
from rollbook.proto.errors import (
    BookieUnreachable,
    EntryStateUnknown,
    Missing,
    NodeExists,
    RollbookError,
)
from rollbook.proto.formats.cookie import pack_cookie, unpack_cookie
from rollbook.proto.formats.paths import AVAILABLE, READ_ONLY
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.ports import MetadataStore
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.messages import EntryRead, Reply, Request
from rollbook.recovery.core.entry_spans import EntrySpan
from rollbook.recovery.possible_losses_port import BookieDoubts, DoubtsPage
from tests.simulation.checkers.ledger import LedgerChecker
from tests.simulation.history import History
from tests.simulation.kernel.world import Main, Node, Process, World
from tests.simulation.worlds.whole_bookies import (
    NEVER_AT_START,
    SMALL_SERVER,
    SMALL_STORAGE,
)
from tests.support.healing import DirectDoubts
from tests.support.planting import Patch

T = TypeVar("T")

ROOT: Final = "/ledgers"
PORT: Final = 3181
START: Final = "start"
SESSION_S: Final = 2.0
_RESTART_S: Final = 0.2  # After a bookie has stopped by itself.
_NEVER: Final = 1e6
_ANSWER_S: Final = 2.0
_RUN_BYTES: Final = 64 * 1024

STORAGE: Final = replace(SMALL_STORAGE, idle_after_ms=200)


class Cluster:
    """The operator of the bookies: starts them, starts them again, formats what came back empty."""

    def __init__(
        self,
        world: World,
        history: History,
        checker: LedgerChecker,
        names: tuple[str, ...],
        *,
        disks_fill_up: bool,
        tell: Callable[[str], None],
        on_broken: Callable[[str, str], None],
        live: Callable[[Main, Node], Coroutine[Any, Any, None]],
    ) -> None:
        self._serving: dict[str, tuple[Process, Bookie]] = {}  # Whose process may be dead by now.
        self.names = names
        self.stay_down: tuple[str, ...] = ()
        self._world = world
        self._history = history
        self._checker = checker
        self._tell = tell
        self._break = on_broken
        self._live = live
        self._empty: dict[str, None] = {}
        self._space = SpaceConfig(
            disk_check_interval_s=0.2 if disks_fill_up else _NEVER,
            reserve_bytes=4096 if disks_fill_up else 0,
        )

    def start(self) -> None:
        for name in self.names:
            node = self._world.node(name)
            node.disk.on_synced = partial(self._on_synced, name)
            node.start(partial(self._live, self._keep))

    def _on_synced(self, name: str, durable: bytearray, start: int, end: int) -> None:
        for body in sound_records(durable, start, end):
            self._checker.on_durable(name, body)

    def start_all_again(self) -> None:
        """Those that run go on."""
        for name in self.names:
            self._start_again(self._world.node(name))

    async def reckon(self) -> None:
        """All lose power; what each has then, as the code that starts a bookie finds it.

        That code alone: to join the cluster again would cost more than all the rest of a start.
        """
        for name in self.names:
            self._world.node(name).power_cut()
        self._serving.clear()
        for name in self.names:
            if name not in self._empty:
                await self._world.node(name).start(partial(self._live, self._show)).result
        self._checker.check_copies()

    async def _show(self, node: Node) -> None:
        """Every copy that it has of what is closed."""
        try:
            storage = await Storage.open(node.disk, STORAGE, node.clock, node.randomness)
        except NEVER_AT_START as failure:
            self._break(START, f"{node.name} does not start: {failure!r}")
            return
        for ledger in self._checker.facts.ledgers.values():
            metadata = ledger.metadata
            if metadata is None or metadata.last_entry is None or ledger.is_doomed:
                continue
            ledger_id, at = metadata.ledger_id, 0
            while (count := metadata.last_entry + 1 - at) > 0:
                try:
                    for body in await storage.read_run(ledger_id, at, count, _RUN_BYTES):
                        entry_id = EntryId(int.from_bytes(body[8:16]))
                        self._checker.on_copy(ledger_id, entry_id, node.name)
                        at += 1
                except (Missing, EntryStateUnknown):
                    at += 1

    def wipe(self, node: Node) -> None:
        """The machine is off, and has another disk when it is started again."""
        node.power_cut()
        node.disk.wipe()
        self._empty[node.name] = None
        self._checker.on_wiped(node.name)

    def find(self, name: str) -> Bookie | None:
        """The one that serves."""
        process, bookie = self._serving.get(name, (None, None))
        return bookie if process is not None and process.is_alive else None

    def doubts_of(self, name: str) -> BookieDoubts | None:
        """Of one that serves."""
        process, bookie = self._serving.get(name, (None, None))
        if process is None or bookie is None or not process.is_alive:
            return None
        return _Doubts(self._world, process, bookie)

    def all_serve(self) -> bool:
        return all(self.find(name) for name in self.names if name not in self.stay_down)

    def all_registered(self) -> bool:
        tree = self._world.metadata.tree
        return self.all_serve() and all(
            any(tree.get(f"{ROOT}/{folder}/{name}") for folder in (AVAILABLE, READ_ONLY))
            for name in self.names
            if name not in self.stay_down
        )

    # --- One life of a bookie's process ---------------------------------------------------------

    async def _keep(self, node: Node) -> None:
        if node.name in self.stay_down:
            return  # Some fault's end has started it.
        starting = self._history.call("start")
        error: BaseException | None = None
        bookie: Bookie | None = None
        try:
            store = await node.metadata(session_timeout_s=SESSION_S, operation_timeout_s=1.0)
            if node.name in self._empty:
                await self._format(node, store)
            bookie = await Bookie.open(node, store, self._settings(node.name))
            self._history.on_answered(starting)
            self._tell(f"{node.name} serves")
            assert node.process is not None
            self._serving[node.name] = (node.process, bookie)
            error = await self._serve(bookie)
        except (RollbookError, OSError) as failure:
            error = failure
        if isinstance(error, NEVER_AT_START) and bookie is None:
            self._break(START, f"{node.name} does not start: {error!r}")
        self._tell(f"{node.name} stops: {error!r}")
        self._serving.pop(node.name, None)
        if bookie is not None:
            await bookie.close()
        self._world.at(self._world.now + _RESTART_S, self._start_again, node)

    async def _format(self, node: Node, store: MetadataStore) -> None:
        """As `rollbook bookie format` does it."""
        try:
            cluster = await open_cluster(store, ROOT)
            erased = Identity(
                node.disk, STORAGE, node.randomness, store, cluster, BookieId(node.name)
            )
            formatted = await erased.format(patience_s=2 * SESSION_S)
        except NodeExists:
            await store.close()
            raise
        self._tell(f"{node.name} is formatted, in doubt of {formatted.doubted} ledgers")
        self._checker.on_formatted(node.name)
        del self._empty[node.name]

    async def _serve(self, bookie: Bookie) -> BaseException:
        """Registers it, and returns what ends it."""
        await bookie.register()
        return await bookie.failed()

    def _start_again(self, node: Node) -> None:
        if not node.is_running and node.is_up and node.name not in self.stay_down:
            node.restart()

    def _settings(self, name: str) -> Settings:
        return Settings(
            BookieConfig(
                metadata=f"zk://metadata{ROOT}",
                bookie_id=name,
                listen=f"{name}:{PORT}",
                insecure=True,
                session_timeout_s=SESSION_S,
                drain_s=0.5,
            ),
            STORAGE,
            SMALL_SERVER,
            self._space,
        )


class _Doubts:
    """Asked for in the bookie's own process, as by its HTTP server."""

    def __init__(self, world: World, process: Process, bookie: Bookie) -> None:
        self._world = world
        self._process = process
        self._doubts = DirectDoubts(bookie)

    async def page(self, after: int, limit: int) -> DoubtsPage:
        return await self._ask(self._doubts.page(after, limit))

    async def settle(self, stamp: str, ledger_id: LedgerId, ranges: list[EntrySpan]) -> None:
        await self._ask(self._doubts.settle(stamp, ledger_id, ranges))

    async def settle_everything(self, stamp: str) -> None:
        await self._ask(self._doubts.settle_everything(stamp))

    async def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        context = self._process.lane.context.copy()
        answer = self._world.loop.create_task(question, context=context)
        # It may come when nobody waits any more.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await asyncio.shield(answer)
        except (TimeoutError, OSError):  # Its HTTP server would respond with 500 to a full disk.
            raise BookieUnreachable(bookie=BookieId(self._process.node.name)) from None


def watched(world: World, checker: LedgerChecker) -> list[Patch]:
    """So that the checker hears what bookies accept and say."""
    add, at_once, write_lac = Storage.add, Answers.at_once, Storage.write_lac
    count = Connection._count
    restore = BookieRegistration._restore

    async def restore_what_is_lost(self: BookieRegistration) -> None:
        """What is in place as it should be costs no questions."""
        standing, tree = self._standing, world.metadata.tree
        if standing is None:
            return
        nodes = {each: tree.get(self._path(each)) for each in RegisteredMode}
        ours = nodes.pop(standing)
        if ours is None or not self._is_ours(ours) or any(nodes.values()):
            await restore(self)
        else:
            self.is_registered = True

    def host() -> str:
        return world.loop.lane().host

    def judged_add(self: Storage, adds: Adds, *rest: Any, **more: Any) -> Admission:
        admission = add(self, adds, *rest, **more)
        for group, refusal in zip(adds.groups, admission.refusals, strict=True):
            if refusal is None:
                checker.on_accepted(
                    host(), group.ledger_id, group.entry_ids, mends=group.is_recovery
                )
        return admission

    def judged_at_once(self: Answers, request: Request, *rest: Any) -> Reply | None:
        reply = at_once(self, request, *rest)
        if reply is not None and type(request) is EntryRead:
            checker.on_answer(host(), "", world.now_ns, request, reply)
        return reply

    def judged_answer(self: Connection, asked: Any, reply: Reply) -> None:
        asker = self._transport.peer.process  # type: ignore[attr-defined]  # An Endpoint.
        waited_ns = self._shared.clock.monotonic_ns() - asked.heard_ns
        heard_ns = world.now_ns - waited_ns
        checker.on_answer(host(), asker, heard_ns, asked.call.request, reply)
        count(self, asked, reply)

    async def judged_lac(
        self: Storage, ledger_id: int, ledger_key: bytes, lac: int, packet: bytes
    ) -> None:
        await write_lac(self, ledger_id, ledger_key, lac, packet)
        checker.on_lac_written(host(), ledger_id, lac)

    return [
        (Storage, "add", judged_add),
        (Storage, "write_lac", judged_lac),
        (Answers, "at_once", judged_at_once),
        (Connection, "_count", judged_answer),
        (BookieRegistration, "_restore", restore_what_is_lost),
    ]


def sound_records(durable: bytearray, start: int, end: int) -> Iterator[bytes]:
    """The bodies of those between the two positions that a bookie would believe after a crash."""
    header = unpack_file_header(bytes(durable[:FILE_HEADER_BYTES]))
    if header is None or header.purpose is Purpose.LOG:
        return  # What is there was in a journal first; but a format writes fences into the catalog.
    reader = RecordReader(bytes(durable[start:end]), header.file_id, start)
    position = start
    while (record := reader.next_after(position, 0)) is not None:
        if reader.is_sound(record):  # However torn its tail is.
            yield reader.body(record)
        position = record.end


async def _rest(_: Space) -> None:
    await asyncio.Event().wait()


async def _pass(*_: Any) -> None:
    pass


async def _count_nothing(_: Identity) -> bool:
    return True


_pack_cookie, _unpack_cookie = cache(pack_cookie), cache(unpack_cookie)

# Small files in small steps, texts that are parsed once, no copies of directories to be detected, no
# work in the background on which no ledger's safety rests: most of what bookies would cost.
FRUGAL: Final[tuple[Patch, ...]] = (
    (catalog_files, "_STEP_BYTES", 4096),
    *((place, "pack_cookie", _pack_cookie) for place in (cookies, core_identity)),
    *((place, "unpack_cookie", _unpack_cookie) for place in (cookies, core_identity)),
    (socket_server, "CHUNK_BYTES_MAX", 32 * 1024),
    (bookie_pool, "RECEIVE_BYTES", 32 * 1024),
    (bookie, "ensure_layout", _pass),
    (Identity, "_require_fit", _pass),
    (Identity, "begin", _count_nothing),
    *((Space, work, _rest) for work in ("_collect", "_compact", "_scrub")),
)
