"""Stores the logs of a cluster in its metadata store: lists, cursors, guards.

    <own root>/logs/<namespace>/<hh>/<log>   the ledger list; `hh`: which of 256 folders, by the name
        marks                                floor and guards, from the first guard or truncation on
        cursors/<name>                       one for each cursor
    <own root>/deleted-logs/<uid>            a deleted log whose name another log has; or, for a log that was restored
                                             under another name, the new name, since the ledgers name the old one
    <own root>/log-servers-witness           `Witness`: the times when log servers were present

A namespace is created with its first log. The folders keep the children of each node few, so that a million logs
can be listed even in a store that returns all children of a node in one packet.

Each write carries a random token. After a lost response, the writer reads the token to find out
whether its write was made (LL7). If the list was overwritten since, the token may be gone: then the writer
gets `MetadataConflict`, and the list shows what happened.

The version of a list is the version of its node. A ledger can be listed only by a change from exactly the version
that its metadata names (LL8): `replace` requires that version when a ledger is new.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from rollbook.logservice.core.age_without_downtime import Witness
from rollbook.logservice.core.cursors import (
    CURSOR_VERSION_BITS,
    CURSORS_MAX,
    CursorCounts,
    check_expected,
    committed,
    creator_of,
    one_more_in_all_logs,
    pack_counts,
    pack_cursor,
    unpack_counts,
    unpack_cursor,
)
from rollbook.logservice.core.ledger_list import LedgerList, ListedLogState, LogEvent, draw_log_uid
from rollbook.logservice.core.log_incarnations import check_life, text_of
from rollbook.logservice.core.log_node_format import (
    TOKEN_BYTES,
    Displaced,
    pack_displaced,
    pack_log_node,
    unpack_displaced,
    unpack_log_node,
)
from rollbook.logservice.core.truncation_guards import TruncationGuards, pack_guards, unpack_guards
from rollbook.logservice.ids import OFFSET_MAX, CursorName, LogName, LogUid, Offset, parse_name
from rollbook.logservice.log_config import CONFIG_FIELDS, ConfigValues, LogConfig
from rollbook.logservice.messages import CommitCursor, CommitCursorBy, Cursor, DeleteCursor
from rollbook.proto.cluster.cluster_root import Cluster, ensure_own_root
from rollbook.proto.cluster.uncertain_writes import (
    children_surely,
    create_surely,
    delete_surely,
    ensure_node,
    read_surely,
    set_surely,
    transact_surely,
)
from rollbook.proto.errors import (
    InvalidRequest,
    LogExists,
    MetadataConflict,
    NodeExists,
    NodeNotEmpty,
    NoSuchCursor,
    NoSuchLog,
    NoSuchNode,
)
from rollbook.proto.ports import (
    Check,
    Clock,
    Create,
    Delete,
    MetadataStore,
    Node,
    Op,
    Randomness,
    Set,
    Watch,
)

LOGS: Final = "logs"
DELETED_LOGS: Final = "deleted-logs"
WITNESS: Final = "log-servers-witness"
GUARDS: Final = "marks"
CURSORS: Final = "cursors"
# The folder with a node for each principal, which has the number of its cursors in all logs.
CURSOR_TOTALS: Final = "cursor-totals"
_FOLDERS: Final = 256
# The number of folders whose names are read together. Larger: lists are quicker, but block the
# store for longer at a time.
_FOLDERS_AT_ONCE: Final = 32
# The parts of a list's path below the root, split at slashes: an empty text, namespace, folder, log.
_LIST_DEPTH: Final = 4
_RACES_MAX: Final = 20
_PAUSE_S: Final = 0.005  # The pause before a retry; doubled each time, with a random part.


@dataclass(frozen=True, slots=True)
class StoredLog:
    name: LogName
    list: LedgerList
    version: int  # The version that a change of this list must name.
    is_displaced: bool = False  # True: the log is deleted, and another log has its name.


@dataclass(frozen=True, slots=True)
class StoredGuards:
    guards: TruncationGuards
    version: int | None  # None: there is no node yet.


class LogMetadataStore:
    """The logs in the metadata store. Call `start` first."""

    def __init__(
        self, store: MetadataStore, cluster: Cluster, clock: Clock, randomness: Randomness
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._randomness = randomness
        self.root: Final = f"{cluster.own_root}/{LOGS}"
        self._displaced: Final = f"{cluster.own_root}/{DELETED_LOGS}"
        self._totals: Final = f"{cluster.own_root}/{CURSOR_TOTALS}"
        self._witness_path: Final = f"{cluster.own_root}/{WITNESS}"

    async def start(self) -> None:
        await ensure_own_root(self._store, self._cluster)
        await ensure_node(self._store, self.root)
        await ensure_node(self._store, self._displaced)

    def path(self, name: LogName) -> str:
        return f"{self.root}/{name.namespace}/{_folder(name.name)}/{name.name}"

    # --- Lists --------------------------------------------------------------------------------

    async def ensure(
        self,
        name: LogName,
        config: ConfigValues | None,
        default: LogConfig = LogConfig(),  # noqa: B008  # A frozen value.
        fields: Sequence[str] = CONFIG_FIELDS,
        *,
        before_displaced: Callable[[StoredLog], Awaitable[None]] | None = None,
    ) -> tuple[StoredLog, bool]:
        """Return the log, and whether this call created it. If a deleted log still has the name, the new log
        takes the name over (LL10).

        With `config` None any existing log is accepted. Only the `fields` of `config` count; a new log has
        the values of `default` for all other fields. `before_displaced` is called before a deleted log loses its
        name. Raises `LogExists` if the log has another configuration, `BadConfig`, `InvalidRequest` for an
        unknown field.
        """
        wanted = default if config is None else default.with_values(config, fields)
        for _ in range(_RACES_MAX):
            try:
                stored = await self.read(name)
            except NoSuchLog:
                try:
                    return await self.create(name, wanted), True
                except LogExists:
                    continue  # Another client has created it; check its configuration.
            if stored.list.state is ListedLogState.DELETED:
                if before_displaced is not None:
                    await before_displaced(stored)
                try:
                    return await self._displace(stored, self._new_list(wanted), ()), True
                except (MetadataConflict, NoSuchLog):
                    continue
            if config is not None:
                _require_equal(name, stored.list.config, wanted, fields)
            return stored, False
        raise MetadataConflict("the log is created and deleted again and again", log=str(name))

    async def create(self, name: LogName, config: LogConfig) -> StoredLog:
        """Create a log. Raises `LogExists` if it exists with any configuration."""
        listed = self._new_list(config)
        path, value = self.path(name), pack_log_node(listed, self._draw_token())
        for _ in range(_RACES_MAX):
            try:
                await create_surely(self._store, path, value, lambda node: node.value == value)
            except NoSuchNode:
                folder = path.rpartition("/")[0]
                await self._ensure_folders(folder.rpartition("/")[0], folder)
            except NodeExists:
                raise LogExists(log=str(name)) from None
            else:
                return StoredLog(name, listed, 0)
        raise MetadataConflict("the log's folder is removed again and again", log=str(name))

    def _new_list(self, config: LogConfig) -> LedgerList:
        now_us = self._clock.wall_us()
        return LedgerList(
            draw_log_uid(self._randomness),
            config,
            created_us=now_us,
            events=(LogEvent("log_created", now_us),),
        )

    async def read(self, name: LogName, *, fresh: bool = True) -> StoredLog:
        """The log's list. With `fresh`, it is not read from a stale replica of the store. Raises
        `NoSuchLog`.
        """
        node = await read_surely(self._store, self.path(name), fresh=fresh)
        if node is None:
            raise NoSuchLog(log=str(name))
        return StoredLog(name, unpack_log_node(node.value)[0], node.stat.version)

    async def read_living(self, name: LogName) -> StoredLog:
        """The list of a log that is not deleted. Raises `NoSuchLog`, `LogDeleted`."""
        stored = await self.read(name)
        stored.list.require_living(name)
        return stored

    async def watch(self, name: LogName) -> Watch:
        """Return a watch that reports every later change of the list."""
        return await self._store.watch(self.path(name))

    async def watch_all(self) -> Watch:
        """Return a watch that reports every later change of any list, and of nodes below it. `log_of`
        returns the log that an event is about.
        """
        return await self._store.watch(self.root, recursive=True)

    def log_of(self, path: str) -> LogName | None:
        """The log whose list is at this node, or None if this is not the node of a list."""
        parts = path.removeprefix(self.root).split("/")
        if len(parts) != _LIST_DEPTH:
            return None
        with suppress(InvalidRequest):
            return LogName(parts[1], parts[3])
        return None

    async def replace(
        self, stored: StoredLog, listed: LedgerList, *, made_for: int | None = None
    ) -> StoredLog:
        """Change `stored` to `listed`, if the list has not changed since it was read.

        `made_for` is the version that the metadata of a new ledger names (LL8). Raises `MetadataConflict`,
        `NoSuchLog`. After `ConnectionLost` the change may have been made.
        """
        return await self._replace(stored, listed, (), made_for)

    async def bump(self, stored: StoredLog) -> StoredLog:
        """Give the list a new version without a change, so that a ledger made for an older version cannot
        be listed any longer.
        """
        return await self._write(stored, stored.list, ())

    async def replace_guarded(
        self, stored: StoredLog, listed: LedgerList, *, found: StoredGuards
    ) -> StoredLog:
        """Make a change that truncates or deletes the log, and raise the floor of its guards, in one step (LL6).
        `found`: the guards as they were read. No guard can be made in a deleted log.

        Raises `MetadataConflict`, `NoSuchLog`, and `Guarded` if a guard prevents the change. After
        `ConnectionLost` the change may have been made.
        """
        is_deleted = listed.state is ListedLogState.DELETED
        raised = found.guards.with_floor(OFFSET_MAX if is_deleted else listed.head)
        op = self._op_of_guards(stored.name, found, raised)
        return await self._replace(stored, listed, (op,), None)

    async def _replace(
        self, stored: StoredLog, listed: LedgerList, more: Sequence[Op], made_for: int | None
    ) -> StoredLog:
        known = {segment.ledger_id for segment in stored.list.segments}
        if any(segment.ledger_id not in known for segment in listed.segments):
            assert made_for is not None, "a list with a new ledger needs `made_for`"
            if made_for != stored.version:
                raise MetadataConflict(
                    "the new ledger was made for another version of the list",
                    log=str(stored.name),
                    made_for=made_for,
                    version=stored.version,
                )
        if listed == stored.list and not more:
            return stored
        return await self._write(stored, listed, more)

    async def _write(self, stored: StoredLog, listed: LedgerList, more: Sequence[Op]) -> StoredLog:
        assert listed.uid == stored.list.uid
        path, token = self._path_of(stored), self._draw_token()
        value = (
            pack_displaced(Displaced(stored.name, listed), token)
            if stored.is_displaced
            else pack_log_node(listed, token)
        )
        ops = (Set(path, value, stored.version), *more)

        async def was_made() -> bool:
            node = await read_surely(self._store, path)
            return node is not None and node.value == value

        try:
            await transact_surely(self._store, ops, was_made)
        except NoSuchNode as error:
            if error.ids.get("op"):
                raise MetadataConflict("the marks have changed", log=str(stored.name)) from None
            raise NoSuchLog(log=str(stored.name)) from None
        except NodeExists:  # Another client made the first guard.
            raise MetadataConflict("the marks have changed", log=str(stored.name)) from None
        return replace(stored, list=listed, version=stored.version + 1)

    async def change(
        self, name: LogName, make: Callable[[LedgerList], LedgerList], *, attempts: int = _RACES_MAX
    ) -> StoredLog:
        """Read, change and write the list. This is repeated if another change was made in between. Raises
        `NoSuchLog`, `MetadataConflict` if every attempt met another change, and any error of `make`.
        """
        for attempt in range(attempts):
            stored = await self.read(name)
            wanted = make(stored.list)
            try:
                return await self.replace(stored, wanted)
            except MetadataConflict:
                await self._pause(attempt)
        raise MetadataConflict("the list changes again and again", log=str(name))

    async def change_stored(
        self, stored: StoredLog, make: Callable[[LedgerList], LedgerList]
    ) -> StoredLog:
        """Change the list of exactly this log, as `change` does, even if the log is displaced. Raises
        `NoSuchLog` if the log is gone.
        """
        for attempt in range(_RACES_MAX):
            try:
                return await self.replace(stored, make(stored.list))
            except MetadataConflict:
                await self._pause(attempt)
            found = (
                await self.read_displaced(stored.list.uid)
                if stored.is_displaced
                else await self.read(stored.name)
            )
            if found is None or found.list.uid != stored.list.uid:
                raise NoSuchLog(log=str(stored.name))
            stored = found
        raise MetadataConflict("the list changes again and again", log=str(stored.name))

    # --- Deleted logs -------------------------------------------------------------------------

    async def displaced(self) -> list[LogUid]:
        """The uids of deleted logs whose names other logs have, and of logs that were restored under another
        name.
        """
        names = await self._children(self._displaced)
        return [LogUid(bytes.fromhex(name)) for name in names]

    async def read_displaced(self, uid: LogUid) -> StoredLog | None:
        """The log with one of the uids that `displaced` returns, or None if the log is gone."""
        node = await read_surely(self._store, self._displaced_path(uid))
        if node is None:
            return None
        found, _ = unpack_displaced(node.value)
        if found.list is not None:
            return StoredLog(found.log, found.list, node.stat.version, is_displaced=True)
        with suppress(NoSuchLog):
            stored = await self.read(found.log)
            if stored.list.uid == uid:
                return stored
        return None

    async def undelete(
        self, name: LogName, uid: str, to: LogName | None, event: LogEvent
    ) -> StoredLog:
        """Restore a log that was deleted as `name`. The log gets the name `to`, or its old name if `to` is None.

        `uid` may be empty if only one log was deleted under the name. Raises `NoSuchLog`, `LogExists` if the
        name is taken, `LogDeleted` if the log's records are being deleted, `InvalidRequest`.
        """
        for attempt in range(_RACES_MAX):
            stored = await self._find_deleted(name, uid)
            target = to or name
            listed = stored.list.with_undeleted().with_event(event)
            try:
                if not stored.is_displaced and target == name:
                    return await self._undelete_in_place(stored, listed)
                return await self._come_back(stored, listed, target)
            except (MetadataConflict, NodeExists):
                await self._pause(attempt)
        raise MetadataConflict("the log is deleted and undeleted again and again", log=str(name))

    async def deleted_as(self, name: LogName) -> list[StoredLog]:
        """Logs that were deleted under this name, and are still kept."""
        found = [each for each in await self.all_displaced() if each.name == name]
        with suppress(NoSuchLog):
            stored = await self.read(name)
            if stored.list.state is ListedLogState.DELETED:
                found.append(stored)
        return found

    async def all_displaced(self) -> list[StoredLog]:
        """Deleted logs whose names other logs have taken."""
        uids, found = await self.displaced(), list[StoredLog | None]()
        for start in range(0, len(uids), _FOLDERS_AT_ONCE):
            part = uids[start : start + _FOLDERS_AT_ONCE]
            found += await asyncio.gather(*map(self.read_displaced, part))
        return [each for each in found if each is not None and each.is_displaced]

    async def _find_deleted(self, name: LogName, uid: str) -> StoredLog:
        found = [
            each
            for each in await self.deleted_as(name)
            if uid in ("", text_of(each.list.uid)) and not each.list.is_condemned
        ]
        if not found:
            raise NoSuchLog(
                f"no deleted log {name} is kept" + (f" with uid {uid}" if uid else ""),
                next_step="`rollbook log ls --deleted` lists the deleted logs that are kept",
            )
        if len(found) > 1:
            raise InvalidRequest(
                f"{len(found)} logs were deleted as {name}",
                next_step="pass the uid of one of them: "
                + ", ".join(text_of(each.list.uid) for each in found[:4]),
            )
        return found[0]

    async def _undelete_in_place(self, stored: StoredLog, listed: LedgerList) -> StoredLog:
        guards = await self.read_guards(stored.name)
        lowered = replace(guards.guards, floor=listed.head)
        more = () if guards.version is None else (self._op_of_guards(stored.name, guards, lowered),)
        return await self._replace(stored, listed, more, None)

    async def _come_back(self, stored: StoredLog, listed: LedgerList, target: LogName) -> StoredLog:
        """Move a displaced log to the target name. A deleted log that has this name is displaced in turn."""
        if not stored.is_displaced:
            raise InvalidRequest(
                f"the name {stored.name} is not taken, so the log can be restored only under this name",
                next_step=f"rollbook log undelete {stored.name}",
            )
        path = self._displaced_path(listed.uid)
        moved = pack_displaced(Displaced(target, None), self._draw_token())
        ops = (Set(path, moved, stored.version),)
        try:
            there = await self.read(target)
        except NoSuchLog:
            return await self._place(target, listed, ops)
        if there.list.state is not ListedLogState.DELETED:
            raise LogExists(
                f"another log is called {target}",
                next_step="choose a name with --as",
                log=str(target),
            )
        return await self._displace(there, listed, ops)

    async def _place(self, name: LogName, listed: LedgerList, more: Sequence[Op]) -> StoredLog:
        """Create the node of a list. Raises `NodeExists`, `MetadataConflict`."""
        path = self.path(name)
        folder = path.rpartition("/")[0]
        await self._ensure_folders(folder.rpartition("/")[0], folder)
        await self._transact_list(path, listed, more, lambda value: Create(path, value))
        return StoredLog(name, listed, 0)

    async def _displace(
        self, stored: StoredLog, listed: LedgerList, more: Sequence[Op]
    ) -> StoredLog:
        """Give the name of the deleted log `stored` to `listed`. The deleted log is kept under its uid,
        without cursors (LL10).

        The node is kept, so that its version continues: no ledger that was made for the old log can be
        listed in the new log (LL8). Raises `MetadataConflict`, `NoSuchLog`.
        """
        assert stored.list.state is ListedLogState.DELETED
        path, own = self.path(stored.name), self._displaced_path(stored.list.uid)
        await self._uncount(stored.name)
        await self._remove_below(path)
        node = await read_surely(self._store, own)
        kept = pack_displaced(Displaced(stored.name, stored.list), self._draw_token())
        keep = Create(own, kept) if node is None else Set(own, kept, node.stat.version)
        try:
            await self._transact_list(
                path, listed, (keep, *more), lambda value: Set(path, value, stored.version)
            )
        except NodeExists:
            raise MetadataConflict(
                "the log has been displaced since it was read", log=str(stored.name)
            ) from None
        except NoSuchNode:
            raise NoSuchLog(log=str(stored.name)) from None
        return StoredLog(stored.name, listed, stored.version + 1)

    async def _transact_list(
        self, path: str, listed: LedgerList, more: Sequence[Op], make: Callable[[bytes], Op]
    ) -> None:
        value = pack_log_node(listed, self._draw_token())

        async def was_made() -> bool:
            node = await read_surely(self._store, path)
            return node is not None and node.value == value

        await transact_surely(self._store, (make(value), *more), was_made)

    def _path_of(self, stored: StoredLog) -> str:
        if stored.is_displaced:
            return self._displaced_path(stored.list.uid)
        return self.path(stored.name)

    def _displaced_path(self, uid: LogUid) -> str:
        return f"{self._displaced}/{uid.hex()}"

    async def remove(self, stored: StoredLog) -> None:
        """Remove the node of a deleted log whose ledgers are gone, with its cursors and guards.

        Raises `MetadataConflict` if the log still has ledgers, or its list has changed.
        """
        listed = stored.list
        if listed.state is not ListedLogState.DELETED or listed.segments or listed.discarded:
            raise MetadataConflict("the log still has ledgers", log=str(stored.name))
        path = self._path_of(stored)
        for attempt in range(_RACES_MAX):
            if not stored.is_displaced:
                await self._uncount(stored.name)
                await self._remove_below(path)
            try:
                await delete_surely(self._store, path, stored.version)
                if not stored.is_displaced:
                    with suppress(NoSuchNode):  # Only a restored log has this node.
                        await delete_surely(self._store, self._displaced_path(listed.uid))
                return
            except NodeNotEmpty:  # A cursor has been committed since.
                await self._pause(attempt)
            except NoSuchNode:
                raise NoSuchLog(log=str(stored.name)) from None
        raise MetadataConflict(
            "the log's cursors are created again and again", log=str(stored.name)
        )

    async def store_time_us(self) -> int:
        """The metadata store's time. Raises `MetadataUnavailable`, `ConnectionLost`, `SessionExpired`."""
        return (await self._store.set(self.root, b"")).modified_ms * 1000

    async def read_witness(self) -> Witness | None:
        """The times when log servers were present, or None if no server has reported yet."""
        node = await read_surely(self._store, self._witness_path)
        return None if node is None else Witness.unpack(node.value)

    async def beat(self, now_us: int) -> None:
        """Report that a log server is present. If two servers report at the same time, one report may be
        lost; the other one is enough.

        Raises `MetadataUnavailable`, `ConnectionLost`, `SessionExpired`.
        """
        path = self._witness_path
        node = await read_surely(self._store, path)
        with suppress(MetadataConflict, NodeExists):
            if node is None:
                value = Witness(now_us).pack()
                await create_surely(self._store, path, value, lambda node: node.value == value)
                return
            before = Witness.unpack(node.value)
            after = before.on_beat(now_us)
            if after is not before:
                await set_surely(self._store, path, after.pack(), node.stat.version)

    # --- Names --------------------------------------------------------------------------------

    async def namespaces(self) -> list[str]:
        try:
            return await children_surely(self._store, self.root)
        except NoSuchNode:
            return []

    async def names(
        self, namespace: str, prefix: str = "", start_after: str = "", limit: int | None = None
    ) -> list[LogName]:
        """Names in order. Deleted logs are included while they keep their ledgers."""
        parse_name(namespace, "the namespace")
        place = f"{self.root}/{namespace}"
        found: list[str] = []
        folders = await self._children(place)
        for start in range(0, len(folders), _FOLDERS_AT_ONCE):
            part = folders[start : start + _FOLDERS_AT_ONCE]
            for names in await asyncio.gather(
                *(self._children(f"{place}/{each}") for each in part)
            ):
                found += [each for each in names if each.startswith(prefix) and each > start_after]
        return [LogName(namespace, name) for name in sorted(found)[:limit]]

    async def all_names(self) -> AsyncIterator[LogName]:
        """All logs' names in all namespaces, folder by folder."""
        for namespace in await self.namespaces():
            place = f"{self.root}/{namespace}"
            for folder in await self._children(place):
                for name in await self._children(f"{place}/{folder}"):
                    yield LogName(namespace, name)

    # --- Cursors and guards -------------------------------------------------------------------

    async def read_cursor(self, log: LogName, name: CursorName, uid: str = "") -> Cursor:
        """Read a cursor. Raises `NoSuchCursor`, `NoSuchLog`, `LogReplaced` if the log has another `uid`."""
        cursor, _ = await self._find_cursor(log, name)
        if cursor is None or (uid and not cursor.uid):
            check_life(log, text_of((await self.read(log)).list.uid), uid)
        if cursor is None:
            raise NoSuchCursor(log=str(log), cursor=name)
        if cursor.uid:
            check_life(log, cursor.uid, uid)
        return cursor

    async def first_cursors(
        self, log: LogName, at_most: int, start_after: str = "", uid: str = ""
    ) -> tuple[list[Cursor], int]:
        """The first cursors by name, and the number of further ones. Raises `NoSuchLog`, `LogReplaced` if
        the log has another `uid`.
        """
        check_life(log, text_of((await self.read(log)).list.uid), uid)
        found: list[Cursor] = []
        children = sorted(await self._children(f"{self.path(log)}/{CURSORS}"))
        names = [name for name in children if name > start_after]
        for name in names[:at_most]:
            cursor, _ = await self._find_cursor(log, CursorName(name))
            if cursor is not None:
                found.append(cursor)
        return found, len(names) - len(names[:at_most])

    async def commit_cursor(self, request: CommitCursor, tail: Offset | None = None) -> Cursor:
        """Make or move a cursor. `tail`: the tail of the log, if it is known.

        Raises `MetadataConflict` unless the cursor has the version that the caller expects, `Truncated` for a
        guard below the head, `InvalidRequest`, `NoSuchLog`, `LogDeleted`.
        """
        log = request.log
        for attempt in range(_RACES_MAX):
            found, node = await self._find_cursor(log, request.name)
            uid = "" if found is None else found.uid
            stored = None if uid else await self.read(log)
            if stored is not None:
                uid = text_of(stored.list.uid)
            check_life(log, uid, request.uid)
            version = self._randomness.getrandbits(CURSOR_VERSION_BITS)
            cursor = committed(request, found, version, self._clock.wall_us(), tail, uid)
            guards = await self.read_guards(log)
            wanted = guards.guards
            if cursor.is_protected or node is None:
                (stored or await self.read(log)).list.require_living(log)
            if cursor.is_protected:
                wanted = wanted.with_guard(request.name, cursor.offset)
            elif found is not None and found.is_protected:
                wanted = wanted.without_guard(request.name)
            principal = request.principal if isinstance(request, CommitCursorBy) else ""
            if node is not None:
                principal = creator_of(node.value)
            ops: list[Op] = [self._op_of_cursor(cursor, log, node, principal)]
            # A new cursor is created only if the log has not been replaced since it was read.
            if node is None and stored is not None:
                ops.append(Check(self.path(log), stored.version))
                if (count := await self._op_of_counts(log, principal)) is not None:
                    ops.append(count)
                if principal:
                    ops.append(await self._op_of_total(principal))
            if wanted != guards.guards:
                ops.append(self._op_of_guards(log, guards, wanted))
            if await self._commit(log, request.name, ops, version):
                return cursor
            await self._pause(attempt)
        raise MetadataConflict("the cursor is moved again and again", cursor=request.name)

    async def delete_cursor(self, request: DeleteCursor) -> None:
        """Delete a cursor. Raises `NoSuchCursor`, `NoSuchLog`, and `MetadataConflict` as `commit_cursor`
        does.
        """
        log, path = request.log, self._cursor_path(request.log, request.name)
        for attempt in range(_RACES_MAX):
            found, node = await self._find_cursor(log, request.name)
            if found is None or (request.uid and not found.uid):
                check_life(log, text_of((await self.read(log)).list.uid), request.uid)
            if found is None or node is None:
                raise NoSuchCursor(log=str(log), cursor=request.name)
            if found.uid:
                check_life(log, found.uid, request.uid)
            check_expected(found, request.expected_version)
            ops: list[Op] = [Delete(path, node.stat.version)]
            principal = creator_of(node.value)
            uncount = await self._op_of_counts(log, principal, is_gone=True)
            if uncount is not None:
                ops.append(uncount)
            if principal:
                ops.append(await self._op_of_total(principal, gone=1))
            if found.is_protected:
                guards = await self.read_guards(log)
                ops.append(
                    self._op_of_guards(log, guards, guards.guards.without_guard(request.name))
                )
            if await self._commit(log, request.name, ops, None):
                return
            await self._pause(attempt)
        raise MetadataConflict("the cursor is moved again and again", cursor=request.name)

    async def read_guards(self, log: LogName) -> StoredGuards:
        """The log's guards. They are empty if none was ever stored, or if there is no log."""
        node = await read_surely(self._store, f"{self.path(log)}/{GUARDS}")
        if node is None:
            return StoredGuards(TruncationGuards(), None)
        return StoredGuards(unpack_guards(node.value)[0], node.stat.version)

    async def _commit(
        self, log: LogName, name: CursorName, ops: Sequence[Op], version: int | None
    ) -> bool:
        """Make the change. Returns False if another writer has changed something: then the caller reads and
        decides again.
        """
        path = self._cursor_path(log, name)

        async def was_made() -> bool:
            node = await read_surely(self._store, path)
            if node is None:
                return version is None
            return version is not None and unpack_cursor(name, node.value).version == version

        try:
            await transact_surely(self._store, ops, was_made)
        except (MetadataConflict, NodeExists):
            return False
        except NoSuchNode:
            (await self.read(log)).list.require_living(log)
            await self._ensure_folders(f"{self.path(log)}/{CURSORS}", self._totals)
            return False
        return True

    async def _find_cursor(
        self, log: LogName, name: CursorName
    ) -> tuple[Cursor | None, Node | None]:
        node = await read_surely(self._store, self._cursor_path(log, name))
        return (None if node is None else unpack_cursor(name, node.value)), node

    async def _op_of_counts(
        self, log: LogName, principal: str, *, is_gone: bool = False
    ) -> Op | None:
        """The write that adds or subtracts one cursor in the count of the log. None if the log has no
        folder of cursors yet. Raises `InvalidRequest` (CB1).
        """
        path = f"{self.path(log)}/{CURSORS}"
        node = await read_surely(self._store, path)
        if node is None:
            return None
        counts = unpack_counts(node.value) if node.value else CursorCounts()
        if not node.value or counts.total >= CURSORS_MAX:
            counts = counts.recounted(len(await self._children(path)))
        change = counts.with_one_less if is_gone else counts.with_one_more
        return Set(path, pack_counts(change(principal), self._draw_token()), node.stat.version)

    async def _op_of_total(self, principal: str, gone: int = 0) -> Op:
        """The write that adds or subtracts cursors in the principal's total. Raises `InvalidRequest` (CB1)."""
        path = f"{self._totals}/{principal}"
        node = await read_surely(self._store, path)
        total = 0 if node is None else unpack_counts(node.value).total
        wanted = max(total - gone, 0) if gone else one_more_in_all_logs(principal, total)
        value = pack_counts(CursorCounts(((principal, wanted),)), self._draw_token())
        return Create(path, value) if node is None else Set(path, value, node.stat.version)

    async def _uncount(self, log: LogName) -> None:
        """Subtract the cursors of a removed log from its principals' totals. Repeated calls subtract them
        only once.

        Raises `MetadataConflict`.
        """
        path = f"{self.path(log)}/{CURSORS}"
        node = await read_surely(self._store, path)
        counts = unpack_counts(node.value) if node is not None and node.value else CursorCounts()
        named = [(principal, count) for principal, count in counts.by_principal if principal]
        if node is None or not named:
            return
        value = pack_counts(CursorCounts(), self._draw_token())
        ops: list[Op] = [Set(path, value, node.stat.version)]
        ops += [await self._op_of_total(principal, count) for principal, count in named]

        async def was_made() -> bool:
            found = await read_surely(self._store, path)
            return found is not None and found.value == value

        try:
            await transact_surely(self._store, ops, was_made)
        except (NodeExists, NoSuchNode):
            raise MetadataConflict("the log's cursors have changed", log=str(log)) from None

    def _op_of_cursor(self, cursor: Cursor, log: LogName, node: Node | None, principal: str) -> Op:
        path, value = self._cursor_path(log, cursor.name), pack_cursor(cursor, principal)
        return Create(path, value) if node is None else Set(path, value, node.stat.version)

    def _op_of_guards(self, log: LogName, found: StoredGuards, wanted: TruncationGuards) -> Op:
        path = f"{self.path(log)}/{GUARDS}"
        if found.version is None:
            return Create(path, pack_guards(wanted, self._draw_token()))
        if wanted == found.guards:
            return Check(path, found.version)
        return Set(path, pack_guards(wanted, self._draw_token()), found.version)

    def _cursor_path(self, log: LogName, name: CursorName) -> str:
        return f"{self.path(log)}/{CURSORS}/{name}"

    # ------------------------------------------------------------------------------------------

    async def _children(self, path: str) -> list[str]:
        try:
            return await children_surely(self._store, path)
        except NoSuchNode:
            return []

    async def _ensure_folders(self, *paths: str) -> None:
        for path in paths:
            try:
                await ensure_node(self._store, path)
            except NoSuchNode:
                return  # The parent has been removed; the caller retries.

    async def _remove_below(self, path: str) -> None:
        for name in await self._children(path):
            await self._remove_below(f"{path}/{name}")
            try:
                await delete_surely(self._store, f"{path}/{name}")
            except (NoSuchNode, NodeNotEmpty):
                pass  # Another process has removed the node, or has added one below it.

    async def _pause(self, attempt: int) -> None:
        await asyncio.sleep(_PAUSE_S * 2 ** min(attempt, 6) * (0.5 + self._randomness.random()))

    def _draw_token(self) -> bytes:
        return self._randomness.randbytes(TOKEN_BYTES)


def _require_equal(name: LogName, has: LogConfig, wanted: LogConfig, fields: Sequence[str]) -> None:
    for field in fields:
        if getattr(has, field) != getattr(wanted, field):
            raise LogExists(f"the log exists with another {field}", log=str(name), setting=field)


def _folder(name: str) -> str:
    return f"{zlib.crc32(name.encode()) % _FOLDERS:02x}"
