"""Management of the cluster for HTTP and the dashboard, with the same functions that the shell commands call.
Cookies, ledgers, operations and callbacks are in files of their own. The deadlines of all calls are in
`store_calls.py`.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from rollbook import __version__
from rollbook.api.cli.bookie.decommission_actions import facts_of
from rollbook.api.cli.bookie_admin_client import AdminClient
from rollbook.api.cli.cluster.actions import list_bookies
from rollbook.api.cli.cluster.health import find_members, judge, server_records
from rollbook.api.cli.recovery.status import read_status, read_tasks
from rollbook.api.cli.recovery.switches import ask_for_audit, delay_of, rate_of, turn_switch
from rollbook.api.management.callback_registrations import ClusterCallbacks
from rollbook.api.management.cookies import CookieManagement
from rollbook.api.management.ledgers import LedgerManagement
from rollbook.api.management.long_running_operations import OperationManagement, bookie_ids_of
from rollbook.api.management.store_calls import StoreCalls, StoreWatch
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes, StoredLifecycle
from rollbook.proto.errors import (
    BookieFailed,
    ConnectionLost,
    Missing,
    NoSuchNode,
    RollbookError,
)
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.ids import BookieId, parse_bookie_id
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.bookie_decommission import Departures
from rollbook.recovery.callback_nodes import CallbackNodes
from rollbook.recovery.cluster_event_log import ClusterEventLog
from rollbook.recovery.core.bookie_drain_states import allowed_from
from rollbook.recovery.core.event_derivation import EventFilter, EventKind
from rollbook.recovery.process_status_nodes import PresenceNodes

Facts = dict[str, Any]

_TASKS_MAX: Final = 100
_SPACE_S: Final = 5.0
_SPACE_BOOKIES_MAX: Final = 1000
# Concurrent requests to bookies; a bookie that hangs blocks a thread for _PAGES_S.
_PAGES_AT_ONCE: Final = 8
_PAGES_S: Final = 5.0
_PAGES_BYTES_MAX: Final = 1024 * 1024


class LocalPages(Protocol):
    """The admin pages of a bookie in this process."""

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any: ...


PagesOf = Callable[[BookieId], AdminClient | LocalPages | None]


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
        """`metadata` is the URL of the metadata store without its secrets, for display. `pages_of` returns a
        client for a bookie's admin pages, or None if they are not available. `callback_hosts` are the hosts to
        which callbacks may be sent.
        """
        self._pages_of = pages_of
        self._events = events
        self._pages_at_once = asyncio.Semaphore(_PAGES_AT_ONCE)
        self._ledgers = ledgers
        self._store = ledgers.store
        self._cluster = ledgers.cluster
        self._watch = watch
        self._calls = calls = StoreCalls(watch)
        self._metadata = metadata
        self._lifecycles = LifecycleNodes(self._store, self._cluster)
        self._clock = SystemClock()
        self._departures = Departures(
            self._store, self._cluster, self._clock, random.SystemRandom()
        )
        cookies = CookieManagement(ledgers, calls, self._departures)
        self.cookies, self.cookie = cookies.list_all, cookies.read
        self.put_cookie, self.delete_cookie = cookies.put, cookies.delete
        self.generate_cookie = cookies.generate
        of_ledgers = LedgerManagement(ledgers, calls)
        self.ledgers, self.bad_ledgers = of_ledgers.list_page, of_ledgers.list_bad
        self.ledger = of_ledgers.describe
        self.ledger_as_bookkeeper = of_ledgers.describe_as_bookkeeper
        self.entries, self.delete_ledger = of_ledgers.entries, of_ledgers.delete
        operations = OperationManagement(ledgers, calls, self._departures, self._clock)
        self.operations, self.operation = operations.list_page, operations.read
        self.begin, self.cancel = operations.begin, operations.cancel
        self.callbacks = ClusterCallbacks(
            CallbackNodes(self._store, self._cluster),
            events,
            self._clock,
            callback_hosts,
            calls.look,
            lambda work: calls.act(work, "send GET /api/v1/callbacks to list the callbacks"),
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
        members = await self._calls.look(find_members(self._store, self._cluster))
        return judge(members) | {"members": members}

    async def log_servers(self) -> list[Facts]:
        """Returns the registered log servers, by name. `http` is the URL of the REST API, or empty if the
        server has none.
        """
        return await self._calls.look(self._log_servers())

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
        """Returns a node of the metadata store and the names of its children. The value may contain secrets. Raises
        `NoSuchNode`.
        """
        return await self._calls.look(self._node(path))

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
        """Returns all bookies, by id."""
        return await self._calls.look(self._bookies())

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
        """Raises `LifecycleConflict` with the allowed states, `NotEnoughBookies`, `Missing`."""
        bookie = parse_bookie_id(name)

        async def change() -> StoredLifecycle:
            _row_of(await self._bookies(), bookie)
            if state is LifecycleState.DRAINING:
                return (await self._departures.drain([bookie], is_forced=force))[0]
            if state is LifecycleState.ACTIVE:
                return await self._departures.undrain(bookie)
            return await self._departures.mark_drained(bookie)

        await self._calls.walk(
            change(), f"send GET /api/v1/bookies/{bookie}/lifecycle to see its present state"
        )
        return await self.bookie(name)

    async def judge_removal(self, names: Sequence[str]) -> Facts:
        return facts_of(await self._calls.look(self._departures.judge(bookie_ids_of(names)), None))

    async def remove(self, name: str, given_up: int | None) -> Facts:
        """Raises `NotConfirmed`, `InvalidRequest`, `Missing`."""
        bookie = parse_bookie_id(name)

        async def remove() -> Facts:
            _row_of(await self._bookies(), bookie)
            return facts_of(await self._departures.remove([bookie], ledgers_given_up=given_up))

        return await self._calls.walk(
            remove(), "send GET /api/v1/bookies to see whether it still exists"
        )

    # --- A bookie's admin pages ---------------------------------------------------------------

    async def ask_pages(
        self, name: str, method: str, path: str, body: Mapping[str, Any] | None
    ) -> Any:
        """Returns the bookie's response. The request is sent only to the address that the bookie registered.

        Raises the bookie's own errors, `Missing` if its admin pages are not available, and `BookieUnreachable`.
        """
        bookie = parse_bookie_id(name)
        _row_of(await self.bookies(), bookie)
        client = self._pages_of(bookie) if self._pages_of else None
        if client is None:
            raise Missing(
                f"the admin pages of bookie {bookie} are not available at present",
                bookie=bookie,
                next_step="start the bookie with --http, and the recovery server with bookie_token_file in its "
                "[recovery] settings",
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
            said = f"bookie {bookie} did not respond within {_PAGES_S:g} s"
            raise ConnectionLost(said, bookie=bookie) from error

    # --- Space --------------------------------------------------------------------------------

    async def space(self) -> dict[str, tuple[int, int]]:
        """Asks the first thousand bookies, and returns the free and total bytes of each one that responds."""
        self._calls.require_store()
        found = await self._ledgers.space_of_bookies(_SPACE_S, _SPACE_BOOKIES_MAX)
        return {str(bookie): space for bookie, space in sorted(found.items())}

    # --- Recovery -----------------------------------------------------------------------------

    async def recovery(self) -> Facts:
        """Returns the facts that `rollbook recovery status` shows, the first tasks, and the repair rate."""
        return await self._calls.look(self._recovery())

    async def _recovery(self) -> Facts:
        found = await read_status(self._store, self._cluster)
        rate = await rate_of(self._store, self._cluster)
        return found | rate | {"tasks": await self._tasks()}

    async def _tasks(self) -> list[Facts]:
        return await read_tasks(self._store, self._cluster, limit=_TASKS_MAX)

    async def audit(self, *, anyway: bool) -> Facts:
        return await self._calls.act(ask_for_audit(self._store, self._cluster, anyway=anyway))

    async def set_switch(self, *, enabled: bool) -> None:
        await self._calls.act(turn_switch(self._store, self._cluster, enables=enabled))

    async def set_delay(self, seconds: int) -> Facts:
        return await self._calls.act(delay_of(self._store, self._cluster, seconds))

    async def set_rate(self, bytes_per_s: int) -> Facts:
        """Sets the repair rate; 0 means unlimited."""
        return await self._calls.act(rate_of(self._store, self._cluster, bytes_per_s))

    # --- Events -------------------------------------------------------------------------------

    async def events(
        self, wanted: Mapping[str, str], after: str, limit: int
    ) -> tuple[list[Facts], str | None]:
        """Returns the events that this server saw. Raises `Missing` if the server does not know `after`."""
        self._calls.require_store()  # Without the store, the latest events would be missing.
        kind = wanted.get("kind")
        which = EventFilter(
            EventKind(kind) if kind else None, wanted.get("bookie"), wanted.get("log")
        )
        page = await self._events.page(which, after, limit)
        if page is None:
            raise Missing(
                "this server does not know the event in `after`",
                after=after[:200],
                next_step="send the request without `after`: a server keeps the last 10,000 events that it saw",
            )
        found, next_after = page
        return [each.facts() for each in found], next_after


def _row_of(rows: Sequence[Facts], bookie: BookieId) -> Facts:
    for row in rows:
        if row["id"] == bookie:
            return row
    raise Missing(
        f"the cluster has no bookie {bookie}",
        bookie=bookie,
        next_step="send GET /api/v1/bookies to list the bookies",
    )
