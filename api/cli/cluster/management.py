"""The cluster as HTTP management and the dashboard see it: by the functions that the shell's commands call.

Each question has a deadline, unless it reads all ledgers. While the metadata store is out of reach nothing is sent to it, and calls fail at
once. A change that was sent and not answered has an unknown outcome, as in the shell.
"""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, Never, Protocol, TypeVar

from rollbook import __version__
from rollbook.api.cli.bookie.lifecycle_actions import facts_of
from rollbook.api.cli.bookie_admin_client import AdminClient
from rollbook.api.cli.cluster.actions import list_bookies
from rollbook.api.cli.cluster.callbacks import ClusterCallbacks
from rollbook.api.cli.cluster.health import find_members, judge, server_records
from rollbook.api.cli.ledger.actions import (
    facts_as_bookkeeper,
    facts_of_ledger,
    fragments_of,
    in_pieces,
)
from rollbook.api.cli.ledger.of_log import (
    HTTP_INSTEAD_OF_RECOVERY,
    HTTP_INSTEAD_OF_REMOVAL,
    require_no_part,
)
from rollbook.api.cli.recovery.bookie import require_absent
from rollbook.api.cli.recovery.status import (
    ask_for_audit,
    delay_of,
    rate_of,
    read_status,
    read_tasks,
    turn_switch,
)
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.cookies import CookieNodes, VersionedCookie
from rollbook.proto.cluster.ledger_nodes import StoredLedger
from rollbook.proto.cluster.lifecycle_nodes import LifecycleNodes, StoredLifecycle
from rollbook.proto.cluster.marks import Marks
from rollbook.proto.cluster.uncertain_writes import read_surely
from rollbook.proto.errors import (
    BadMetadata,
    BookieFailed,
    ConnectionLost,
    InvalidRequest,
    MetadataUnavailable,
    Missing,
    NoSuchLedger,
    NoSuchNode,
    OutcomeUnknown,
    RecoveryIncomplete,
    RollbookError,
    SessionExpired,
    UnsupportedVersion,
)
from rollbook.proto.formats.cookie import Cookie, pack_cookie, unpack_cookie
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.formats.paths import COOKIES
from rollbook.proto.ids import BookieId, EntryId, LedgerId, parse_bookie_id
from rollbook.proto.ports import MetadataStore, SessionState
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.bookie_removal import Departures
from rollbook.recovery.callbacks import CallbackNodes
from rollbook.recovery.core.event_derivation import EventFilter, EventKind
from rollbook.recovery.core.lifecycle import allowed_from
from rollbook.recovery.core.operations import LastingOperation, id_of_key
from rollbook.recovery.events import ClusterEventLog
from rollbook.recovery.operations import OperationNodes
from rollbook.recovery.process_status import PresenceNodes
from rollbook.recovery.tasks import BadCopies, Failures

T = TypeVar("T")
Facts = dict[str, Any]

_LOOK_S: Final = 10.0
_ACT_S: Final = 20.0  # Less than the 30 s of an HTTP exchange.
_READS: Final = 64  # Metadata reads at a time.
# Ledgers that are read for one page; a rare state takes several pages.
_LOOKED_AT_MAX: Final = 4096
_TASKS_MAX: Final = 100
_SPACE_S: Final = 5.0
_SPACE_BOOKIES_MAX: Final = 1000
_ENTRIES_MAX: Final = 1000
_ENTRY_BYTES_MAX: Final = 4 * 1024 * 1024
_PAGES_AT_ONCE: Final = 8  # A bookie that hangs holds a thread for as long as _PAGES_S.
_PAGES_S: Final = 5.0
_PAGES_BYTES_MAX: Final = 1024 * 1024


class LocalPages(Protocol):
    """The admin pages of a bookie in this process."""

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any: ...


PagesOf = Callable[[BookieId], AdminClient | LocalPages | None]


class StoreWatch:
    """Whether the metadata store can be reached now. `run` it in a task."""

    def __init__(self, store: MetadataStore) -> None:
        self.is_connected = True
        self._store = store

    async def run(self) -> Never:
        async for event in self._store.session_events():
            self.is_connected = event.state is SessionState.CONNECTED
        raise AssertionError("they end with the store alone")


class ClusterManagement:
    def __init__(
        self,
        ledgers: Ledgers,
        events: ClusterEventLog,
        watch: StoreWatch,
        metadata: str,
        pages_of: PagesOf | None = None,
        callback_hosts: Sequence[str] = (),
    ) -> None:
        """`metadata`: its URL, for people, without secrets. `pages_of`: how a bookie's own pages are asked.
        `callback_hosts`: where callbacks may be sent.
        """
        self._pages_of = pages_of
        self._events = events
        self._pages_at_once = asyncio.Semaphore(_PAGES_AT_ONCE)
        self._ledgers = ledgers
        self._store = ledgers.store
        self._cluster = ledgers.cluster
        self._watch = watch
        self._metadata = metadata
        self._marks = Marks(self._store, self._cluster.root)
        self._failures = Failures(self._store, self._cluster)
        self._bad = BadCopies(self._store, self._cluster)
        self._lifecycles = LifecycleNodes(self._store, self._cluster)
        self._clock = SystemClock()
        self._departures = Departures(
            self._store, self._cluster, self._clock, random.SystemRandom()
        )
        self._operations = OperationNodes(self._store, self._cluster)
        self._cookies = CookieNodes(self._store, self._cluster.root)
        self.callbacks = ClusterCallbacks(
            CallbackNodes(self._store, self._cluster),
            events,
            self._clock,
            callback_hosts,
            self._look,
            lambda work: self._act(work, "ask GET /api/v1/callbacks which there are"),
        )

    # --- The cluster --------------------------------------------------------------------------

    async def cluster(self) -> Facts:
        return {
            "instance_id": self._cluster.instance_id,
            "metadata": self._metadata,
            "ledgers_root": self._cluster.root,
            "own_root": self._cluster.own_root,
            "layout": self._cluster.layout.value,
            "release": __version__,
            "metadata_reachable": self._watch.is_connected,
        }

    async def health(self) -> Facts:
        members = await self._look(find_members(self._store, self._cluster))
        return judge(members) | {"members": members}

    async def log_servers(self) -> list[Facts]:
        """Registered log servers, by name. `http`: the URL of the REST API; empty: it has none."""
        return await self._look(self._log_servers())

    async def _log_servers(self) -> list[Facts]:
        return [
            {
                "name": each.name,
                "server_id": each.info.server_id,
                "address": each.info.address,
                "http": each.http,
                "state": "draining" if each.is_draining else "serving",
                "release": each.release,
                "started_us": each.started_us,
                "logs_owned": each.logs_owned,
                "logs_degraded": each.logs_degraded,
                "logs_unopened": each.logs_unopened,
            }
            for each in await server_records(self._store, self._cluster.own_root)
        ]

    async def node(self, path: str) -> Facts:
        """A node of the metadata store with its secrets, and its children's names. Raises `NoSuchNode`."""
        return await self._look(self._node(path))

    async def _node(self, path: str) -> Facts:
        node = await self._store.get(path)
        if node is None:
            raise NoSuchNode(path=path)
        return {
            "value": node.value,
            "version": node.stat.version,
            "children": await self._store.children(path),
        }

    # --- Bookies ------------------------------------------------------------------------------

    async def bookies(self) -> list[Facts]:
        """All bookies, by id."""
        return await self._look(self._bookies())

    async def _bookies(self) -> list[Facts]:
        rows = await list_bookies(self._store, self._cluster)
        known = {each.bookie: each for each in await self._lifecycles.list()}
        left = await PresenceNodes(self._store, self._cluster).drains()
        return [
            row | self._lifecycle_facts(BookieId(row["id"]), known, left)
            for row in sorted(rows, key=lambda row: str(row["id"]))
        ]

    def _lifecycle_facts(
        self,
        bookie: BookieId,
        known: dict[BookieId, StoredLifecycle],
        left: dict[str, int],
    ) -> Facts:
        stored = known.get(bookie)
        found = stored.lifecycle if stored else Lifecycle()
        info = self._ledgers.live().find(bookie)
        return {
            "lifecycle": found.state.value,
            "lifecycle_since_ms": found.since_ms or None,
            "reason": found.reason or None,
            "ledgers_at_start": found.ledgers if not found.takes_entries else None,
            "ledgers_left": left.get(bookie),
            "allowed": [each.value for each in allowed_from(found.state)],
            "http": str(info.http_address) if info and info.http_address else None,
        }

    async def bookie(self, name: str) -> Facts:
        """Raises `Missing`."""
        bookie = parse_bookie_id(name)
        return _row_of(await self.bookies(), bookie)

    async def set_lifecycle(
        self, name: str, state: LifecycleState, *, force: bool = False
    ) -> Facts:
        """Raises `LifecycleConflict` with the states that are allowed, `NotEnoughBookies`, `Missing`."""
        bookie = parse_bookie_id(name)

        async def change() -> StoredLifecycle:
            _row_of(await self._bookies(), bookie)
            if state is LifecycleState.DRAINING:
                return (await self._departures.drain([bookie], is_forced=force))[0]
            if state is LifecycleState.ACTIVE:
                return await self._departures.undrain(bookie)
            return await self._departures.mark_drained(bookie)

        await self._walk(change(), f"ask GET /api/v1/bookies/{bookie}/lifecycle what it is now")
        return await self.bookie(name)

    async def judge_removal(self, names: Sequence[str]) -> Facts:
        return facts_of(await self._look(self._departures.judge(_parsed(names)), None))

    async def remove(self, name: str, given_up: int | None) -> Facts:
        """Raises `NotConfirmed`, `InvalidRequest`, `Missing`."""
        bookie = parse_bookie_id(name)

        async def remove() -> Facts:
            _row_of(await self._bookies(), bookie)
            return facts_of(await self._departures.remove([bookie], ledgers_given_up=given_up))

        return await self._walk(remove(), "ask GET /api/v1/bookies whether it is still there")

    # --- Cookies ------------------------------------------------------------------------------

    async def cookies(self) -> list[Facts]:
        """Cookies by bookie."""
        return await self._look(self._list_cookies())

    async def _list_cookies(self) -> list[Facts]:
        found = []
        for bookie in sorted(await self._cookies.list()):
            with suppress(Missing):
                found.append(await self._cookie(bookie))
        return found

    async def cookie(self, name: str) -> Facts:
        """Raises `Missing`."""
        return await self._look(self._cookie(parse_bookie_id(name)))

    async def _cookie(self, bookie: BookieId) -> Facts:
        node = await read_surely(self._store, f"{self._cluster.path(COOKIES)}/{bookie}")
        if node is None:
            raise Missing(
                f"bookie {bookie} has no cookie",
                bookie=bookie,
                next_step="ask GET /api/v1/cookies: it lists those that there are",
            )
        text = node.value.decode("utf-8", "backslashreplace")
        return {"bookie": str(bookie), "text": text, "version": node.stat.version}

    async def put_cookie(self, name: str, text: str, version: int | None) -> Facts:
        """From exactly that version; None: there is none yet. Raises `LifecycleConflict` while the bookie is in
        use."""
        bookie = parse_bookie_id(name)
        try:
            cookie = unpack_cookie(text.encode())
        except (BadMetadata, UnicodeEncodeError) as error:
            raise InvalidRequest(f"that is no cookie: {error}"[:200]) from None
        if cookie.bookie_id != bookie:
            raise InvalidRequest(f"it is the cookie of {cookie.bookie_id}", bookie=bookie)

        async def put() -> Facts:
            await self._departures.require_unused(bookie)
            if version is None:
                await self._cookies.create(cookie)
            else:
                await self._cookies.update(VersionedCookie(cookie, version), cookie)
            return await self._cookie(bookie)

        return await self._walk(put(), f"ask GET /api/v1/cookies/{bookie} what it is now")

    async def delete_cookie(self, name: str) -> Facts:
        """Raises `LifecycleConflict` while the bookie is in use, `Missing`."""
        bookie = parse_bookie_id(name)

        async def delete() -> Facts:
            found = await self._cookie(bookie)
            await self._departures.require_unused(bookie)
            await self._cookies.delete(bookie, found["version"])
            return found

        return await self._walk(delete(), f"ask GET /api/v1/cookies/{bookie} whether it is there")

    async def generate_cookie(self, name: str, directories: Mapping[str, Sequence[str]]) -> Facts:
        """The cookie that this bookie would write; nothing is stored."""
        cookie = Cookie(
            parse_bookie_id(name),
            journal_dirs=tuple(directories["journal_dirs"]),
            ledger_dirs=tuple(directories["ledger_dirs"]),
            index_dirs=tuple(directories["index_dirs"]),
            instance_id=self._cluster.instance_id,
        )
        try:
            text = pack_cookie(cookie).decode()
        except (UnicodeError, ValueError) as error:
            raise InvalidRequest(f"no cookie can have these directories: {error}"[:200]) from None
        return {"bookie": name, "text": text, "version": None}

    # --- A bookie's own pages -----------------------------------------------------------------

    async def ask_pages(
        self, name: str, method: str, path: str, body: Mapping[str, Any] | None
    ) -> Any:
        """The bookie's response at the address that it registered, and at no other.

        Raises its errors, `Missing` if it has no pages, `BookieUnreachable`.
        """
        bookie = parse_bookie_id(name)
        _row_of(await self.bookies(), bookie)
        client = self._pages_of(bookie) if self._pages_of else None
        if client is None:
            raise Missing(
                f"bookie {bookie} shows no pages of its own now",
                bookie=bookie,
                next_step="start it with --http, and the recovery server with bookie_token_file in its [recovery] settings",
            )
        said = None if body is None else dict(body)
        if not isinstance(client, AdminClient):
            return await self._ask_locally(bookie, client, method, path, said)
        client = replace(client, timeout_s=_PAGES_S, answer_bytes_max=_PAGES_BYTES_MAX)
        async with self._pages_at_once:
            try:
                if method == "GET":
                    return await asyncio.to_thread(client.get, path)
                return await asyncio.to_thread(client.put, path, said)
            except RollbookError as error:
                if type(error) is not RollbookError:
                    raise
                raise BookieFailed(f"bookie {bookie}: {error.message}", bookie=bookie) from error

    async def _ask_locally(
        self, bookie: BookieId, pages: LocalPages, method: str, path: str, body: Facts | None
    ) -> Any:
        try:
            async with asyncio.timeout(_PAGES_S):
                return await pages.ask(method, path, body)
        except TimeoutError as error:
            said = f"bookie {bookie} has not answered for {_PAGES_S:g} s"
            raise ConnectionLost(said, bookie=bookie) from error

    # --- Ledgers ------------------------------------------------------------------------------

    async def ledgers(
        self,
        after: int,
        limit: int,
        *,
        state: str | None = None,
        bookie: str | None = None,
        short: bool | None = None,
    ) -> tuple[list[Facts], int | None]:
        """Rows with ids above `after`, and the `after` of the next page; None: there is none.

        A page may have fewer rows than `limit`, even none, and a next one: the number of ledgers that are read
        for a page is bounded (MG3). `short`: a ledger that is marked, since it lacks copies.
        """
        return await self._look(self._page(after, limit, state, bookie, short))

    async def _page(
        self, after: int, limit: int, state: str | None, bookie: str | None, short: bool | None
    ) -> tuple[list[Facts], int | None]:
        wanted = None if bookie is None else parse_bookie_id(bookie)
        rows: list[Facts] = []
        looked_at = 0
        ids = self._marked(after) if short else self._ledgers.list(after + 1)
        async for piece in in_pieces(ids, _READS, None):
            found = await asyncio.gather(*map(self._read, piece))
            for ledger_id, stored in zip(piece, found, strict=True):
                if stored is None or (wanted and not stored.metadata.names(wanted)):
                    continue
                if state is not None and stored.metadata.state.value != state:
                    continue
                if short is False and await self._marks.read(ledger_id) is not None:
                    continue
                rows.append(facts_of_ledger(stored))
                if len(rows) == limit:
                    return rows, ledger_id
            looked_at += len(piece)
            if looked_at >= _LOOKED_AT_MAX:
                return rows, piece[-1]
        return rows, None

    async def _marked(self, after: int) -> AsyncIterator[LedgerId]:
        async for ledger_id in self._marks.ids():
            if ledger_id > after:
                yield ledger_id

    async def _read(self, ledger_id: LedgerId) -> StoredLedger | None:
        try:
            return await self._ledgers.metadata(ledger_id)
        except (NoSuchLedger, BadMetadata):
            return None  # Deleted in the meantime; `recovery` counts unreadable ones.

    async def ledger(self, ledger_id: int) -> Facts:
        """The ledger with its fragments, its mark, and why its last repair failed. Raises `NoSuchLedger`."""
        return await self._look(self._ledger(ledger_id))

    async def _ledger(self, ledger_id: int) -> Facts:
        stored = await self._ledgers.metadata(ledger_id, fresh=True)
        mark = await self._marks.read(LedgerId(ledger_id))
        try:
            failure = await self._failures.read(LedgerId(ledger_id))
        except (BadMetadata, UnsupportedVersion):
            failure = None
        states = {row["id"]: row["state"] for row in await list_bookies(self._store, self._cluster)}
        return facts_of_ledger(stored) | {
            "fragments": [
                each | {"places": [states.get(name, "unknown") for name in each["ensemble"]]}
                for each in fragments_of(stored.metadata)
            ],
            "short": mark is not None,
            "missing": list(mark.mark.missing) if mark else [],
            "short_since_ms": mark.mark.marked_ms if mark else None,
            "repair_problem": failure.message if failure else None,
            "lost": [
                f"{loss.first_entry}-{loss.last_entry}"
                for loss in (failure.losses if failure else ())
            ],
        }

    async def ledger_as_bookkeeper(self, ledger_id: int) -> Facts:
        """Raises `NoSuchLedger`."""
        return facts_as_bookkeeper(await self._look(self._ledgers.metadata(ledger_id, fresh=True)))

    async def bad_ledgers(self, after: int, limit: int) -> tuple[list[Facts], int | None]:
        """Entries that a check found bad, and entries that a repair found lost."""
        return await self._look(self._bad_page(after, limit))

    async def _bad_page(self, after: int, limit: int) -> tuple[list[Facts], int | None]:
        rows: list[Facts] = []
        ids = [each async for each in _first_above(self._bad.ids(), after, limit + 1)]
        failed = [each async for each in _first_above(self._failures.ids(), after, limit + 1)]
        found = sorted({*ids, *failed})
        for ledger_id in found[:limit]:
            mark = await self._marks.read(ledger_id)
            since_ms = mark.mark.marked_ms if mark else None
            bad = await self._bad.read_stored(ledger_id)
            for bookie, ranges in (bad[0] if bad else {}).items():
                rows += (
                    _bad_row(ledger_id, "bad copy", "auditor", bookie, first, last, since_ms)
                    for first, last in ranges
                )
            try:
                failure = await self._failures.read(ledger_id)
            except (BadMetadata, UnsupportedVersion):
                continue
            for loss in failure.losses if failure else ():
                holders = ", ".join(loss.holders)
                failed_ms = failure.failed_ms if failure else None
                rows.append(
                    _bad_row(
                        ledger_id,
                        "no copy",
                        "worker",
                        holders,
                        loss.first_entry,
                        loss.last_entry,
                        failed_ms,
                    )
                )
        return rows, found[limit - 1] if len(found) > limit else None

    async def space(self) -> dict[str, tuple[int, int]]:
        """Free and total bytes of each bookie that responds, among the first thousand."""
        self._require_store()
        found = await self._ledgers.space_of_bookies(_SPACE_S, _SPACE_BOOKIES_MAX)
        return {str(bookie): space for bookie, space in sorted(found.items())}

    async def entries(self, ledger_id: int, first: int, last: int | None) -> dict[int, bytes]:
        """Confirmed entries from `first` to `last`, up to 4 MiB. Raises `NoSuchLedger`, `EntryUnavailable`."""
        return await self._look(self._read_entries(ledger_id, first, last), _ACT_S)

    async def _read_entries(self, ledger_id: int, first: int, last: int | None) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        size = 0
        async with await self._ledgers.open(ledger_id) as reader:
            end = (
                reader.last_add_confirmed if last is None else min(last, reader.last_add_confirmed)
            )
            for entry_id in range(first, min(end, first + _ENTRIES_MAX - 1) + 1):
                (entry,) = await reader.read_few(EntryId(entry_id), EntryId(entry_id))
                size += len(entry.payload)
                if found and size > _ENTRY_BYTES_MAX:
                    break
                found[entry_id] = bytes(entry.payload)
        return found

    async def delete_ledger(self, ledger_id: int, *, force: bool) -> Facts:
        """Stops the writer, deletes the ledger. Raises `NoSuchLedger`, `PartOfLog`, `RecoveryIncomplete`."""

        async def delete() -> Facts:
            await require_no_part(
                self._ledgers,
                [ledger_id],
                instead=HTTP_INSTEAD_OF_REMOVAL,
                may_insist=False,
            )
            try:
                await self._ledgers.delete(ledger_id, None, is_forced=force)
            except RecoveryIncomplete as error:
                error.next_step = (
                    "send it with force=true to delete it though its writer may go on for a while"
                )
                raise
            return {"ledger_id": ledger_id, "state": "deleted"}

        return await self._walk(
            delete(), f"ask GET /api/v1/ledgers/{ledger_id}: 404 once it is gone"
        )

    # --- Recovery -----------------------------------------------------------------------------

    async def recovery(self) -> Facts:
        """The facts of `rollbook recovery status`, the first tasks, and the rate."""
        return await self._look(self._recovery())

    async def _recovery(self) -> Facts:
        found = await read_status(self._store, self._cluster)
        rate = await rate_of(self._store, self._cluster)
        return found | rate | {"tasks": await self._tasks()}

    async def _tasks(self) -> list[Facts]:
        return await read_tasks(self._store, self._cluster, limit=_TASKS_MAX)

    async def audit(self, *, anyway: bool) -> Facts:
        return await self._act(ask_for_audit(self._store, self._cluster, anyway=anyway))

    async def set_switch(self, *, enabled: bool) -> None:
        await self._act(turn_switch(self._store, self._cluster, enables=enabled))

    async def set_delay(self, seconds: int) -> Facts:
        return await self._act(delay_of(self._store, self._cluster, seconds))

    async def set_rate(self, bytes_per_s: int) -> Facts:
        """Sets the repair rate; 0: unlimited."""
        return await self._act(rate_of(self._store, self._cluster, bytes_per_s))

    # --- Operations ---------------------------------------------------------------------------

    async def operations(self, after: str, limit: int) -> tuple[list[Facts], str | None]:
        """Operations in metadata, newest first. `after`: the last one of the previous page."""
        found = [each.operation for each in await self._look(self._operations.list())]
        ids = [each.id for each in found]
        begins = ids.index(after) + 1 if after in ids else 0
        page = found[begins : begins + limit]
        rest = page[-1].id if len(found) > begins + limit else None
        return [self._operation_facts(each) for each in page], rest

    async def operation(self, operation_id: str) -> Facts:
        """Raises `Missing`."""
        found = await self._look(self._operations.read(operation_id))
        if found is None:
            raise _no_operation(operation_id)
        return self._operation_facts(found.operation)

    async def begin(
        self, kind: str, about: Mapping[str, Any], principal: str, key: str | None
    ) -> Facts:
        """Begins an operation. Raises `DuplicateDiffers` (by `key`), `DrainBlocked`, `InvalidRequest`, `PartOfLog`."""
        about = await self._checked(
            kind, dict(about), is_new=await self._find_begun(principal, key) is None
        )
        operation_id = id_of_key(principal, key) if key else secrets.token_hex(16)
        now_ms = self._clock.wall_us() // 1000
        wanted = LastingOperation(operation_id, kind, about, principal, now_ms)
        find_out = f"ask GET /api/v1/operations/{operation_id} whether it was begun"
        try:
            begun = await self._act(self._operations.create(wanted, now_ms), find_out)
        except OutcomeUnknown as error:
            error.ids = {**error.ids, "operation": f"/api/v1/operations/{operation_id}"}
            raise
        return self._operation_facts(begun)

    async def _find_begun(self, principal: str, key: str | None) -> Any:
        """The operation that the caller began under this key."""
        return await self._look(self._operations.read(id_of_key(principal, key))) if key else None

    async def _checked(self, kind: str, about: Facts, *, is_new: bool) -> Facts:
        """Refuses an impossible request at once, and not in the operation."""
        if "ledger_id" in about and is_new:
            await self._look(self._ledgers.metadata(about["ledger_id"], fresh=True))
        if kind == "recover" and is_new:
            ids = [about["ledger_id"]]
            await self._look(
                require_no_part(
                    self._ledgers, ids, instead=HTTP_INSTEAD_OF_RECOVERY, may_insist=False
                )
            )
        if "bookies" not in about:
            return about
        bookies = _parsed(about["bookies"])
        about = about | {"bookies": [str(each) for each in bookies]}
        if "to" in about:
            targets = _parsed(about["to"])
            about["to"] = [str(each) for each in targets]
            if clash := set(bookies).intersection(targets):
                raise InvalidRequest(
                    f"`to` names {', '.join(sorted(clash))}, which is to be emptied"
                )
        if not is_new:
            return about
        if kind == "drain":
            drain = self._departures.check(bookies, is_forced=about["force"])
            await self._walk(drain, "nothing was begun: send it again")
        else:
            with _steps_for_http():
                require_absent(self._ledgers, bookies)
            work = self._departures.require_named(bookies)
            await self._walk(work, "nothing was begun: send it again")
        return about

    async def cancel(self, operation_id: str) -> Facts:
        """Cancels an operation; a running one stops soon after. Raises `Missing`, `OperationEnded`."""
        now_ms = self._clock.wall_us() // 1000
        if await self._look(self._operations.read(operation_id)) is None:
            raise _no_operation(operation_id)
        change = self._operations.change(operation_id, lambda each: each.cancel_asked(now_ms))
        find_out = f"ask GET /api/v1/operations/{operation_id} for its state"
        return self._operation_facts(await self._act(change, find_out))

    def _operation_facts(self, operation: LastingOperation) -> Facts:
        shown = (
            "id",
            "kind",
            "principal",
            "created_ms",
            "started_ms",
            "ended_ms",
            "done",
            "total",
            "result",
            "problem",
        )
        return {name: getattr(operation, name) for name in shown} | {
            "about": dict(operation.about),
            "state": operation.state.value,
            "cancel_asked": operation.is_cancel_asked,
            "eta_s": operation.eta_s(self._clock.wall_us() // 1000),
        }

    # --- Events -------------------------------------------------------------------------------

    async def events(
        self, wanted: Mapping[str, str], after: str, limit: int
    ) -> tuple[list[Facts], str | None]:
        """Events as this server saw them. Raises `Missing` if it does not know `after`."""
        self._require_store()  # Without the store, later events would be missing.
        kind = wanted.get("kind")
        which = EventFilter(
            EventKind(kind) if kind else None, wanted.get("bookie"), wanted.get("log")
        )
        page = await self._events.page(which, after, limit)
        if page is None:
            raise Missing(
                "this server does not know the event that the page was to begin after",
                after=after[:200],
                next_step="ask without `after`: a server keeps the last 10,000 events that it saw",
            )
        found, next_after = page
        return [each.facts() for each in found], next_after

    # --- Deadlines ----------------------------------------------------------------------------

    def _require_store(self) -> None:
        if not self._watch.is_connected:
            raise MetadataUnavailable(next_step="check that the metadata store runs")

    async def _look(
        self, question: Coroutine[Any, Any, T], deadline_s: float | None = _LOOK_S
    ) -> T:
        """Raises `MetadataUnavailable` for whatever keeps the store from answering: to ask again does no harm."""
        # Closes a coroutine that is not awaited because the store is unavailable.
        with closing(question):
            self._require_store()
            try:
                async with asyncio.timeout(deadline_s):
                    with _steps_for_http():
                        return await question
            except (TimeoutError, ConnectionLost, SessionExpired) as error:
                raise MetadataUnavailable(
                    "the metadata store does not answer",
                    next_step="check that the metadata store runs",
                ) from error

    async def _walk(self, change: Coroutine[Any, Any, T], find_out: str) -> T:
        """Makes a change that reads all ledgers first, without a deadline."""
        return await self._act(change, find_out, None)

    async def _act(
        self,
        change: Coroutine[Any, Any, T],
        find_out: str = "ask GET /api/v1/recovery what is in force",
        deadline_s: float | None = _ACT_S,
    ) -> T:
        with closing(change):
            self._require_store()
            try:
                async with asyncio.timeout(deadline_s):
                    with _steps_for_http():
                        return await change
            except TimeoutError as error:
                raise OutcomeUnknown(
                    f"nothing was heard of it for {_ACT_S:g} s", next_step=find_out
                ) from error
            except OutcomeUnknown as error:
                error.next_step = error.next_step or find_out
                raise


@contextmanager
def _steps_for_http() -> Iterator[None]:
    """Makes errors recommend HTTP requests instead of shell commands."""
    try:
        yield
    except RollbookError as error:
        error.next_step = error.http_step or error.next_step
        raise


def _parsed(names: Sequence[str]) -> list[BookieId]:
    return list(dict.fromkeys(parse_bookie_id(name) for name in names))


def _row_of(rows: Sequence[Facts], bookie: BookieId) -> Facts:
    for row in rows:
        if row["id"] == bookie:
            return row
    raise Missing(
        f"the cluster knows no bookie {bookie}",
        bookie=bookie,
        next_step="ask GET /api/v1/bookies: it lists the bookies",
    )


def _no_operation(operation_id: str) -> Missing:
    return Missing(
        "there is no such operation",
        operation=operation_id,
        next_step="ask GET /api/v1/operations: it lists those of seven days",
    )


def _bad_row(
    ledger_id: int,
    kind: str,
    said_by: str,
    bookies: str,
    first_entry: int,
    last_entry: int,
    since_ms: int | None,
) -> Facts:
    return {
        "ledger_id": ledger_id,
        "kind": kind,
        "said_by": said_by,
        "bookies": bookies,
        "first_entry": first_entry,
        "last_entry": last_entry,
        "since_ms": since_ms,
    }


async def _first_above(
    ids: AsyncIterator[LedgerId], after: int, count: int
) -> AsyncIterator[LedgerId]:
    async for ledger_id in ids:
        if ledger_id > after:
            yield ledger_id
            count -= 1
            if not count:
                return
