"""Pages of the cluster: its health, bookies, ledgers, recovery, operations, events, callbacks, metadata."""

from collections.abc import Awaitable, Mapping
from typing import Any

from starlette.requests import Request

from rollbook.api.access.authenticator import CALLER
from rollbook.api.dashboard import callback_screens, cluster_screens, event_screens
from rollbook.api.dashboard.form_fields import ledger_id_of, number_in
from rollbook.api.dashboard.page_context import ShowPage, Visit
from rollbook.api.dashboard.page_dependencies import PageSources
from rollbook.api.dashboard.parts import Screen, with_query
from rollbook.api.rest.callback_routes import may_see_urls
from rollbook.api.rest.cluster_route_parameters import PAGE
from rollbook.api.rest.operation_routes import local_operation
from rollbook.proto.errors import InvalidRequest


class ClusterPages:
    """`pages` maps the path of each page, below `PREFIX`, to the function that shows the page."""

    def __init__(self, sources: PageSources) -> None:
        self._admin = sources.admin
        self._operations = sources.operations
        self._samples = sources.samples
        self.pages: Mapping[str, ShowPage] = {
            "": self._overview,
            "/bookies": self._bookies,
            "/bookie": self._bookie,
            "/ledgers": self._ledgers,
            "/ledgers/bad": self._bad_ledgers,
            "/ledgers/{ledger_id}": self._ledger,
            "/recovery": self._recovery,
            "/operations": self._list_operations,
            "/events": self._events_page,
            "/callbacks": self._list_callbacks,
            "/callback": self._callback,
            "/metadata": self._metadata,
        }

    async def _overview(self, _: Request, visit: Visit) -> Screen:
        health = await visit.ask("health", self._admin.health)
        recovery = await visit.ask("recovery", self._admin.recovery)
        return cluster_screens.overview(health, recovery, self._samples, visit.after)

    async def _bookies(self, request: Request, visit: Visit) -> Screen:
        after = request.query_params.get("after", "")
        rows = await visit.ask("bookies", self._admin.bookies)
        rest = [row for row in rows if row["id"] > after]
        last = rest[PAGE - 1]["id"] if len(rest) > PAGE else None
        return cluster_screens.bookies(rest[:PAGE], last)

    async def _bookie(self, request: Request, visit: Visit) -> Screen:
        name = request.query_params.get("id", "")
        row = await visit.ask(f"bookie {name}", lambda: self._admin.bookie(name))
        return cluster_screens.bookie(visit.framed(), row, CALLER.get().principal.grants)

    async def _ledgers(self, request: Request, visit: Visit) -> Screen:
        query = request.query_params
        asked = {
            name: query[name] for name in ("state", "bookie", "short", "after") if query.get(name)
        }
        after = number_in(asked.get("after", "-1"), "after", -1)
        if asked.get("short", "true") not in ("true", "false"):
            raise InvalidRequest("short has to be true or false")
        if asked.get("state", "") not in cluster_screens.STATES:
            states = ", ".join(filter(None, cluster_screens.STATES))
            raise InvalidRequest(
                f"{asked['state'][:40]!r} is not a state of a ledger", next_step=f"choose {states}"
            )

        def ask() -> Awaitable[Any]:
            return self._admin.ledgers(
                after,
                PAGE,
                state=asked.get("state"),
                bookie=asked.get("bookie"),
                short=asked["short"] == "true" if "short" in asked else None,
            )

        rows, next_after = await visit.ask(with_query("ledgers", **asked), ask)
        return cluster_screens.ledgers(rows, next_after, asked)

    async def _bad_ledgers(self, request: Request, visit: Visit) -> Screen:
        after = number_in(request.query_params.get("after", "-1"), "after", -1)
        rows, next_after = await visit.ask(
            f"bad {after}", lambda: self._admin.bad_ledgers(after, PAGE)
        )
        return cluster_screens.bad_ledgers(rows, next_after)

    async def _ledger(self, request: Request, visit: Visit) -> Screen:
        ledger_id = ledger_id_of(request)
        found = await visit.ask(f"ledger {ledger_id}", lambda: self._admin.ledger(ledger_id))
        return cluster_screens.ledger(visit.framed(), found, CALLER.get().principal.grants)

    async def _recovery(self, _: Request, visit: Visit) -> Screen:
        found = await visit.ask("recovery", self._admin.recovery)
        return cluster_screens.recovery(visit.framed(), found, CALLER.get().principal.grants)

    async def _list_operations(self, _: Request, visit: Visit) -> Screen:
        lasting, _rest = await visit.ask("operations", lambda: self._admin.operations("", PAGE))
        here = [local_operation(each) for each in self._operations.newest_first()]
        return cluster_screens.operations([*lasting, *here])

    async def _events_page(self, request: Request, visit: Visit) -> Screen:
        query = request.query_params
        names = ("kind", "bookie", "log", "after")
        asked = {name: query[name] for name in names if query.get(name)}
        if asked.get("kind", "test") not in (*event_screens.EVENT_KINDS, "test"):
            raise InvalidRequest(
                f"{asked['kind'][:40]!r} is not a kind of event",
                next_step=f"choose {', '.join(event_screens.EVENT_KINDS)}",
            )
        wanted = {name: value for name, value in asked.items() if name != "after"}
        rows, following = await visit.ask(
            with_query("events", **asked),
            lambda: self._admin.events(wanted, asked.get("after", ""), PAGE),
        )
        return event_screens.events(rows, following, asked)

    async def _list_callbacks(self, _: Request, visit: Visit) -> Screen:
        shows_urls = may_see_urls()  # Facts are cached separately for True and False.
        rows = await visit.ask(
            f"callbacks {shows_urls}",
            lambda: self._admin.callbacks.list(shows_urls=shows_urls),
        )
        return callback_screens.callbacks(visit.framed(), rows, CALLER.get().principal.grants)

    async def _callback(self, request: Request, visit: Visit) -> Screen:
        name, shows_urls = request.query_params.get("id", ""), may_see_urls()
        callbacks = self._admin.callbacks
        row = await visit.ask(
            f"callback {name} {shows_urls}",
            lambda: callbacks.read(name, shows_urls=shows_urls),
        )
        found = await visit.ask(f"deliveries {name}", lambda: callbacks.deliveries(name))
        return callback_screens.callback(visit.framed(), row, found, CALLER.get().principal.grants)

    async def _metadata(self, request: Request, visit: Visit) -> Screen:
        path = request.query_params.get("path", "/")
        after = request.query_params.get("after", "")
        found = await visit.ask(f"node {path}", lambda: self._admin.node(path))
        return cluster_screens.metadata(path, found, after)
