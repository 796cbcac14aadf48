"""Watches the nodes from which the cluster's events are derived, and remembers the events of this process
(the rules are in `core/event_derivation.py`).

    watch of each folder ──► paths that changed ──► their nodes are read ──► `tracks`: the states of each thing

Every recovery server does this by itself, so each of them can answer requests. After RESYNC, everything that
a watch may have missed is read again, and every two minutes all nodes are. Only the first thousand ledgers of
each kind are read.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Never

import structlog

from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.cluster.uncertain_writes import children_surely, read_surely
from rollbook.proto.cluster.underreplication_marks import Marks, MarkTree
from rollbook.proto.errors import (
    BadMetadata,
    InvalidRequest,
    MetadataUnavailable,
    NoSuchNode,
    UnsupportedVersion,
)
from rollbook.proto.formats.lifecycle import unpack_lifecycle
from rollbook.proto.formats.paths import AVAILABLE, LIFECYCLE
from rollbook.proto.formats.replication import DISABLED, ROOT, number_of_vote, unpack_vote
from rollbook.proto.ids import LedgerId, parse_bookie_id
from rollbook.proto.ports import Clock, MetadataStore, Node, WatchEventKind
from rollbook.proto.tasks import TaskGroup
from rollbook.recovery.core.event_derivation import (
    Event,
    EventFilter,
    EventMemory,
    ObservedState,
    Sight,
    Thing,
    Tracks,
    derive,
    first_fingerprints,
)
from rollbook.recovery.core.ledger_checks import unpack_bad
from rollbook.recovery.core.operations import is_operation_id, unpack_operation
from rollbook.recovery.core.repair_failures import unpack_failure
from rollbook.recovery.metastore_outage_retries import until_done
from rollbook.recovery.operation_nodes import OPERATIONS
from rollbook.recovery.repair_failure_nodes import BAD, FAILURES

logger = structlog.get_logger()

LogOf = Callable[[LedgerId], Awaitable[str | None]]

LEDGERS_MAX: Final = 1_000
_LOOK_AGAIN_S: Final = 120.0
_OVERDUE_LOOK_S: Final = 30.0
# The pause before changed nodes are read, so that nodes that change together are read together.
_GATHER_S: Final = 0.05
_READS_AT_ONCE: Final = 32
_UNREADABLE: Final = (BadMetadata, UnsupportedVersion, InvalidRequest)


class _WatchedFolder:
    """One watched folder: the states of its nodes, by path."""

    def __init__(
        self,
        folder: str,
        paths: Callable[[], AsyncIterator[str]],
        sight_of: Callable[[str, Node], Sight | None],
    ) -> None:
        self.folder = folder
        self.paths = paths
        self.sight_of = sight_of
        self.sights: dict[str, Sight] = {}
        # The paths of nodes that may have changed. None: all nodes.
        self.changed: dict[str, None] | None = None

    def on_event(self, path: str) -> None:
        if self.changed is not None:
            self.changed[path] = None


class ClusterEventLog:
    """The events that this process has seen. The owner calls `run` once; all other methods may be called at
    any time.
    """

    def __init__(
        self,
        store: MetadataStore,
        cluster: Cluster,
        clock: Clock,
        log_of: LogOf,
        *,
        overdue_s: int = 0,
    ) -> None:
        """Watch the cluster. `log_of` returns the log that a ledger is a segment of. If `overdue_s` is 0, no
        ledger is reported as overdue.
        """
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._log_of = log_of
        self._overdue_s = overdue_s
        self._marks = Marks(store, cluster.root)
        self._bad = MarkTree(store, f"{cluster.own_root}/{BAD}")
        self._failures = MarkTree(store, f"{cluster.own_root}/{FAILURES}")
        top = f"{cluster.root}/{ROOT}"
        available, votes = f"{cluster.root}/{AVAILABLE}", f"{self._marks.election_folder}"
        lifecycles = f"{cluster.own_root}/{LIFECYCLE}"
        operations = f"{cluster.own_root}/{OPERATIONS}"
        switch = f"{top}/{DISABLED}"
        self._parts = [
            _WatchedFolder(available, lambda: self._registrations(available), self._registration),
            _WatchedFolder(lifecycles, lambda: self._children(lifecycles), self._lifecycle),
            _WatchedFolder(operations, lambda: self._children(operations), self._operation),
            _WatchedFolder(votes, lambda: self._children(votes), self._vote),
            _WatchedFolder(switch, lambda: _only(switch), self._switch),
            _WatchedFolder(self._bad.folder, lambda: self._first(self._bad), self._bad_copies),
            _WatchedFolder(
                self._failures.folder, lambda: self._first(self._failures), self._lost_entries
            ),
        ]
        self._overdue: dict[str, Sight] = {}
        # For each ledger, the sight that was read, and the same sight with its log.
        self._with_log: dict[str, tuple[Sight, Sight]] = {}
        self._news = asyncio.Event()
        self._changed = asyncio.Event()
        # The known fingerprints, or None until everything was read once.
        self._known: dict[str, str] | None = None
        self._memory = EventMemory()
        self._tracks = Tracks()
        self._looks = self._wanted_looks = 0

    # --- Questions ----------------------------------------------------------------------------

    async def page(
        self, wanted: EventFilter, after: str, limit: int
    ) -> tuple[list[Event], str | None] | None:
        """Return a page of events, the newest first. `after` is the last event of the previous page. Returns
        None if this process does not know that event.
        """
        return self._memory.page(wanted, after, limit)

    @property
    def tracks(self) -> Mapping[str, Sequence[ObservedState]] | None:
        """Return the states that were seen, by subject, or None until everything was read once."""
        return None if self._known is None else self._tracks.states

    async def known(self) -> Mapping[str, Sequence[ObservedState]]:
        """Return `tracks`, after waiting until everything was read once."""
        while (tracks := self.tracks) is None:
            await self.changed()
        return tracks

    async def changed(self) -> None:
        """Return at the next change of an observed thing."""
        changed = self._changed
        await changed.wait()

    async def refresh(self) -> None:
        """Return when everything has been read again since this call."""
        self._wanted_looks += 1
        wanted = self._wanted_looks
        self._look_at_all()
        self._news.set()
        while self._looks < wanted:
            changed = self._changed
            await changed.wait()

    def _look_at_all(self) -> None:
        for part in self._parts:
            part.changed = None

    # --- Updates ------------------------------------------------------------------------------

    async def run(self) -> Never:
        """Watch until cancelled; wait while the metadata store is unavailable."""
        while True:
            await until_done("events", self._follow)

    async def _follow(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            watches = []
            for part in self._parts:
                watch = await self._store.watch(part.folder, recursive=True)
                stack.push_async_callback(watch.close)
                part.changed = None  # There was no watch before, so every node may have changed.
                watches.append(watch)

            async def listen(index: int) -> None:
                """Note the paths of events without waiting for anything else."""
                part = self._parts[index]
                async for event in watches[index]:
                    if event.kind is WatchEventKind.RESYNC:
                        part.changed = None
                    else:
                        part.on_event(event.path)
                    self._news.set()
                raise MetadataUnavailable("the metadata store was closed")

            failure: BaseException | None = None
            try:
                async with TaskGroup() as group:
                    for index in range(len(watches)):
                        group.create_task(listen(index))
                    group.create_task(self._keep())
            except BaseExceptionGroup as errors:
                failure = errors.exceptions[0]
            if failure is not None:
                raise failure

    async def _keep(self) -> Never:
        loop = asyncio.get_running_loop()
        look_again_at = loop.time() + _LOOK_AGAIN_S
        overdue_at = loop.time()
        while True:
            self._news.clear()
            wanted = self._wanted_looks
            if loop.time() >= look_again_at:
                look_again_at = loop.time() + _LOOK_AGAIN_S
                self._look_at_all()
            for part in self._parts:
                await self._read(part)
            if self._overdue_s and loop.time() >= overdue_at:
                overdue_at = loop.time() + _OVERDUE_LOOK_S
                await self._look_for_overdue()
            await self._publish(wanted)
            due_at = min(look_again_at, overdue_at) if self._overdue_s else look_again_at
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(due_at - loop.time(), 0)):
                    await self._news.wait()
            await asyncio.sleep(_GATHER_S)

    async def _read(self, part: _WatchedFolder) -> None:
        changed, part.changed = part.changed, {}
        if changed == {}:
            return
        try:
            if changed is not None:
                paths = list(changed)
                kept = {path: each for path, each in part.sights.items() if path not in changed}
            else:
                await self._store.sync()
                paths, kept = [path async for path in part.paths()], {}
            found = await self._read_nodes(part, paths)
        except BaseException:
            part.changed = None
            raise
        part.sights = kept | found

    async def _read_nodes(self, part: _WatchedFolder, paths: list[str]) -> dict[str, Sight]:
        found: dict[str, Sight] = {}
        for start in range(0, len(paths), _READS_AT_ONCE):
            chunk = paths[start : start + _READS_AT_ONCE]
            reads = (read_surely(self._store, path, fresh=False) for path in chunk)
            for path, node in zip(chunk, await asyncio.gather(*reads), strict=True):
                sight = self._seen_at(part, path, node) if node is not None else None
                if sight is not None:
                    found[path] = sight
        return found

    def _seen_at(self, part: _WatchedFolder, path: str, node: Node) -> Sight | None:
        try:
            return part.sight_of(path, node)
        except _UNREADABLE as error:
            logger.warning("event_source_unreadable", path=path, reason=error.message)
            return part.sights.get(path)

    async def _publish(self, looks: int) -> None:
        """Publish the states that were read. `looks` is the number of `refresh` calls that were made before
        the reading.
        """
        seen = await self._with_logs({each.subject: each for each in self._merged()})
        now_ms = self._clock.wall_us() // 1000
        is_new = self._tracks.on_look(seen, now_ms)
        if not is_new and looks == self._looks and self._known is not None:
            return
        tracks = self._tracks.states
        if self._known is None:
            self._known = first_fingerprints(tracks)
        events, self._known = derive(self._known, tracks, now_ms)
        self._memory.add(events)
        self._looks = looks
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _merged(self) -> list[Sight]:
        """Return the sights of all things. If a bookie is just changing folders, only the later of its two
        registrations is used. Only the leading one of all votes is used.
        """
        registrations, *others = self._parts
        by_bookie: dict[str, Sight] = {}
        for each in sorted(registrations.sights.values(), key=lambda each: each.life):
            by_bookie[each.name] = each
        found = list(by_bookie.values())
        for part in others:
            sights = sorted(part.sights.values(), key=lambda each: each.node)
            if part.sight_of == self._vote:
                # The names of votes end in ten digits, and the lowest number leads.
                sights = sights[:1]
            found += sights[:LEDGERS_MAX] if part.sight_of in self._of_ledgers else sights
        return [*found, *self._overdue.values()]

    @property
    def _of_ledgers(self) -> tuple[Callable[[str, Node], Sight | None], ...]:
        return self._bad_copies, self._lost_entries

    async def _with_logs(self, seen: dict[str, Sight]) -> dict[str, Sight]:
        """Return the sights of ledgers with the logs of these ledgers. Each log is looked up once."""
        known, self._with_log = self._with_log, {}
        for subject, each in seen.items():
            if each.ledger_id is None:
                continue
            before = known.get(subject)
            if before is None or before[0] is not each:
                log = await self._log_of(LedgerId(each.ledger_id))
                before = each, replace(each, log=log)
            self._with_log[subject] = before
            seen[subject] = before[1]
        return seen

    # --- Reading folders ----------------------------------------------------------------------

    async def _children(self, folder: str) -> AsyncIterator[str]:
        try:
            names = await children_surely(self._store, folder)
        except NoSuchNode:
            return
        for name in names:
            yield f"{folder}/{name}"

    async def _registrations(self, folder: str) -> AsyncIterator[str]:
        async for path in self._children(folder):
            yield path
        async for path in self._children(f"{folder}/readonly"):
            yield path

    async def _first(self, tree: MarkTree) -> AsyncIterator[str]:
        count = 0
        async for ledger_id in tree.ids():
            yield tree.path(ledger_id)
            count += 1
            if count == LEDGERS_MAX:
                return

    # --- Reading one node ---------------------------------------------------------------------

    def _sight(self, thing: Thing, name: str, path: str, node: Node) -> Sight:
        own, root = f"{self._cluster.own_root}/", f"{self._cluster.root}/"
        short = path.removeprefix(own if path.startswith(own) else root)
        stat = node.stat
        return Sight(thing, name, short, stat.created_txn, stat.version, stat.modified_ms)

    def _registration(self, path: str, node: Node) -> Sight | None:
        name = path.rpartition("/")[2]
        if path.count("/") - self._cluster.root.count("/") not in (2, 3) or name == "readonly":
            return None
        bookie = parse_bookie_id(name)
        found = self._sight(Thing.REGISTRATION, bookie, path, node)
        stat = node.stat
        return replace(
            found, state=f"{stat.owner:x}", bookies=(bookie,), at_ms=stat.created_ms, version=0
        )

    def _lifecycle(self, path: str, node: Node) -> Sight | None:
        if path == self._parts[1].folder:
            return None
        bookie = parse_bookie_id(path.rpartition("/")[2])
        lifecycle = unpack_lifecycle(node.value)
        return replace(
            self._sight(Thing.LIFECYCLE, bookie, path, node),
            state=lifecycle.state.value,
            since_ms=lifecycle.since_ms,
            bookies=(bookie,),
            text=lifecycle.reason,
        )

    def _operation(self, path: str, node: Node) -> Sight | None:
        name = path.rpartition("/")[2]
        if not is_operation_id(name):
            return None
        operation = unpack_operation(node.value)
        about = operation.about
        bookies, ledger_id = about.get("bookies"), about.get("ledger_id")
        return replace(
            self._sight(Thing.OPERATION, name, path, node),
            at_ms=operation.ended_ms or operation.started_ms or operation.created_ms,
            state=operation.state.value,
            started_ms=operation.started_ms,
            bookies=tuple(map(str, bookies)) if isinstance(bookies, list) else (),
            ledger_id=ledger_id if type(ledger_id) is int else None,
            text=operation.kind,
            version=0,  # The progress of an operation is not an event.
        )

    def _vote(self, path: str, node: Node) -> Sight | None:
        if number_of_vote(path.rpartition("/")[2]) is None:
            return None
        found = self._sight(Thing.AUDITOR, "", path, node)
        return replace(found, text=str(unpack_vote(node.value)), at_ms=node.stat.created_ms)

    def _switch(self, path: str, node: Node) -> Sight | None:
        return replace(self._sight(Thing.SWITCH, "", path, node), at_ms=node.stat.created_ms)

    def _bad_copies(self, path: str, node: Node) -> Sight | None:
        ledger_id = self._bad.ledger_of(path)
        if ledger_id is None:
            return None
        bad = unpack_bad(node.value)
        ranges = [f"{first}-{last} on {bookie}" for bookie in bad for first, last in bad[bookie]]
        return replace(
            self._sight(Thing.BAD_COPIES, str(ledger_id), path, node),
            bookies=tuple(map(str, bad)),
            ledger_id=ledger_id,
            text=f"Ledger {ledger_id} has bad copies: {', '.join(ranges)}.",
        )

    def _lost_entries(self, path: str, node: Node) -> Sight | None:
        ledger_id = self._failures.ledger_of(path)
        if ledger_id is None:
            return None
        losses = unpack_failure(node.value).losses
        if not losses:
            return None
        holders = dict.fromkeys(str(holder) for loss in losses for holder in loss.holders)
        ranges = ", ".join(f"{loss.first_entry}-{loss.last_entry}" for loss in losses)
        return replace(
            self._sight(Thing.LOST_ENTRIES, str(ledger_id), path, node),
            bookies=tuple(holders),
            ledger_id=ledger_id,
            version=0,  # Each attempt writes the node again, which is not an event.
            text=f"Ledger {ledger_id} has entries without a copy: {ranges}.",
        )

    async def _look_for_overdue(self) -> None:
        found: dict[str, Sight] = {}
        count, now_ms = 0, self._clock.wall_us() // 1000
        async for ledger_id in self._marks.ids():
            path = self._marks.path(ledger_id)
            node = await read_surely(self._store, path, fresh=False)
            try:
                stored = await self._marks.read(ledger_id)
            except BadMetadata:
                continue
            if node is not None and stored is not None:
                since_ms = stored.mark.marked_ms
                if since_ms is not None and now_ms - since_ms >= self._overdue_s * 1000:
                    found[path] = replace(
                        self._sight(Thing.OVERDUE, str(ledger_id), path, node),
                        bookies=tuple(map(str, stored.mark.missing)),
                        ledger_id=ledger_id,
                        at_ms=since_ms + self._overdue_s * 1000,
                        version=0,
                    )
            count += 1
            if count == LEDGERS_MAX:
                break
        self._overdue = found


async def _only(path: str) -> AsyncIterator[str]:
    yield path
