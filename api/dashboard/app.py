"""The dashboard: pages of a cluster, rendered here, below `/dashboard`. DESIGN.md has the map.

Its visitors are authenticated by a session's cookie; HTTP management accepts only tokens, so the pages
authenticate themselves, and set the same `CALLER` for the same `Managing`. Pages call what the routes of
management call.
"""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Match, Route

from rollbook.api.access.authenticator import CALLER, Authenticator, anybody
from rollbook.api.access.core.grants import Duty, Right
from rollbook.api.access.managing import Managing
from rollbook.api.dashboard import (
    event_screens,
    http_pages,
    log_screens,
    process_screens,
    screens,
)
from rollbook.api.dashboard.core.live import PageState, event_for
from rollbook.api.dashboard.core.markup import Child
from rollbook.api.dashboard.core.samples import Samples
from rollbook.api.dashboard.core.sessions import Session, Sessions
from rollbook.api.dashboard.core.values import Form
from rollbook.api.dashboard.log_servers import LogServers
from rollbook.api.dashboard.parts import PREFIX, PageFrame, Screen, render, with_query
from rollbook.api.dashboard.shared_answers import SharedAnswers
from rollbook.api.rest.cluster import (
    PAGE,
    BookieActs,
    ClusterAdmin,
    begin_recover,
    begin_verify,
    local_operation,
)
from rollbook.api.rest.cluster_events import CallbackActs, may_see_urls
from rollbook.api.rest.operations import Facts, Operation, RunningOperations
from rollbook.api.rest.settings_models import OwnProcess
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import (
    BookieFailed,
    EntryTooLarge,
    InvalidRequest,
    Missing,
    NotConfirmed,
    OutcomeUnknown,
    RollbookError,
    Unauthorized,
    Unavailable,
)
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import LEDGER_ID_MAX

_OTHER_METHODS: Final = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS")  # Than those that pages take.
SIGN_IN: Final = f"{PREFIX}/sign-in"
HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # Without an origin in its requests the server refuses a form as one of another site.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
_KEPT: Final = {**HEADERS, "cache-control": "max-age=3600"}
_ICON: Final = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8">'
    b'<path fill="#1a6e34" d="M1 1h6v1H1zM1 3h6v1H1zM1 5h4v1H1z"/></svg>'
)
_FILES: Final = (  # Those in `vendor/` are listed in `vendored.json` (DB6).
    "style.css",
    "live.js",
    "vendor/htmx.min.js",
    "vendor/hx-sse.min.js",
    "vendor/uPlot.iife.min.js",
    "vendor/uPlot.min.css",
)
_EVENTS: Final = "text/event-stream"
_SIGNED_OUT: Final = b"event: signed-out\ndata: \n\n"
_ROUND_S: Final = 0.5  # The update interval. Longer: pages are staler, and cost less.
_HEARTBEAT_ROUNDS: Final = 30
_FIELDS_MAX: Final = 20
_ANSWERS_MAX: Final = 200
_ROUNDS_MAX: Final = 50  # Events of a page's size.
_FRESH_S: Final = 2  # Longer: open pages cost the cluster less, and are staler.
_ONCE_CHARACTERS: Final = 48  # An idempotency key has 59 at most.
_NAMELESS: Final = OwnProcess("this server")
_NAMED: Final = ("/log", "/server")  # Pages of what has a name, not an id.
_ACTS_ON_LOG: Final = {
    "append": (Right.APPEND, "Append"),
    "truncate": (Right.ADMIN, "Truncate"),
    "seal": (Right.ADMIN, "Seal"),
    "roll": (Right.ADMIN, "RollLog"),
    "transfer": (Right.ADMIN, "TransferLog"),
}
_STATES: Final = {
    "drain": LifecycleState.DRAINING,
    "undrain": LifecycleState.ACTIVE,
    "drained": LifecycleState.DRAINED,
}


class PageAdmin(ClusterAdmin, Protocol):
    """More calls for pages, beside those of the routes."""

    async def log_servers(self) -> Sequence[Facts]:
        """Log servers, by name."""

    async def node(self, path: str) -> Facts:
        """A node of the metadata store, with its secrets. Raises `NoSuchNode`."""


class _SignedOut(Exception):
    """The browser is not signed in, or no longer."""


class Dashboard:
    """Pages whose `routes` are served beside management's; below `PREFIX` the server requires no token."""

    def __init__(
        self,
        admin: PageAdmin,
        managing: Managing,
        operations: RunningOperations,
        logs: LogServers,
        samples: Samples,
        authenticator: Authenticator | None,
        draw: Callable[[], str],
        own: OwnProcess = _NAMELESS,
        *,
        is_behind_tls: bool = False,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`draw`: a new text that cannot be guessed. `own`: the process that serves it. `is_behind_tls`: the
        browser speaks TLS."""
        self._admin = admin
        self._managing = managing
        self._operations = operations
        self._logs = logs
        self._samples = samples
        self._callback_acts = CallbackActs(admin, managing)
        self._acts = BookieActs(admin, managing, operations)
        self._authenticator = authenticator
        self._is_behind_tls = is_behind_tls
        self._now_ns = now_ns
        self._draw = draw
        self._own = own
        self._sessions = Sessions(now_ns, draw)
        self._answers = SharedAnswers(now_ns, _FRESH_S, _ANSWERS_MAX)
        self._rounds = SharedAnswers(now_ns, _ROUND_S, _ROUNDS_MAX)
        self._is_closing = asyncio.Event()
        pages = {
            "": self._overview,
            "/logs": self._list_logs,
            "/log": self._log,
            "/servers": self._servers,
            "/server": self._server,
            "/process": self._process,
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
        acts = {
            "/logs": self._act_on_logs,
            "/log": self._act_on_log,
            "/server": self._act_on_server,
            "/bookie": self._act_on_bookie,
            "/ledgers/{ledger_id}": self._act_on_ledger,
            "/recovery": self._act_on_recovery,
            "/callbacks": self._act_on_callbacks,
            "/callback": self._act_on_callback,
        }
        self._pages = pages
        post = ["POST"]
        self.routes = [
            Route("/", _lead_here),
            *(Route(f"{PREFIX}{path}", self._page(show)) for path, show in pages.items()),
            *(Route(f"{PREFIX}{path}", self._act(do), methods=post) for path, do in acts.items()),
            Route(SIGN_IN, self._show_sign_in),
            Route(SIGN_IN, self._sign_in, methods=post),
            Route(f"{PREFIX}/sign-out", self._sign_out, methods=post),
            Route(f"{PREFIX}/live", self._follow),
            *(Route(f"{PREFIX}/{os.path.basename(name)}", _sending(name)) for name in _FILES),
            Route(f"{PREFIX}/icon.svg", _send_icon),
            Route(f"{PREFIX}/", _lead_here),
            Route(f"{PREFIX}/{{rest:path}}", self._page(_show_nothing)),
            *(
                Route(path, self._refuse_method, methods=_OTHER_METHODS)
                for path in (PREFIX, f"{PREFIX}/{{rest:path}}")
            ),
        ]

    async def _refuse_method(self, request: Request) -> Response:
        scope = {**request.scope, "method": "POST"}
        takes_forms = any(
            route.endpoint != self._refuse_method and route.matches(scope)[0] is Match.FULL
            for route in self.routes
        )
        allowed = "GET, HEAD, POST" if takes_forms else "GET, HEAD"
        error = InvalidRequest(
            f"this page does not take {request.method}", next_step="load it with GET"
        )
        response = refused(error, 405)
        response.headers["allow"] = allowed
        return response

    # --- Who asks -----------------------------------------------------------------------------

    def _cookie_name(self, request: Request) -> str:
        """The name has the port, since ports share cookies; `__Host-` keeps other hosts from setting it."""
        port = (request.scope.get("server") or ("", 0))[1]
        return f"{'__Host-' if self._is_behind_tls else ''}rollbook-{port}"

    def _enter(self, request: Request, *, stays_idle: bool = False) -> Session:
        """Sets `CALLER` for the rest of this request. Raises `_SignedOut`."""
        cookie = request.cookies.get(self._cookie_name(request), "")
        session = self._sessions.find(cookie, stays_idle=stays_idle)
        if session is None and self._authenticator is None:
            session = self._sessions.begin("", None)
        if session is None or not self._is_admitted(request, session):
            raise _SignedOut
        return session

    def _is_admitted(self, request: Request, session: Session) -> bool:
        """Its token still means the same principal; then `CALLER` is set. Otherwise the session
        ends."""
        if self._authenticator is None:
            CALLER.set(anybody(_peer_of(request)))
            return True
        try:
            caller = self._authenticator.admit(f"Bearer {session.token}", peer=_peer_of(request))
        except Unauthorized:
            caller = None
        if caller is None or caller.principal != session.principal:
            self._sessions.end(session)
            return False
        CALLER.set(caller)
        return True

    def _with_cookie(self, request: Request, response: Response, session: Session) -> Response:
        name = self._cookie_name(request)
        if request.cookies.get(name) != session.id:
            path = "/" if self._is_behind_tls else PREFIX  # `__Host-` asks for all of it.
            more = "; Secure" if self._is_behind_tls else ""
            cookie = f"{name}={session.id}; Path={path}; HttpOnly; SameSite=Strict{more}"
            response.headers.append("set-cookie", cookie)
        return response

    # --- Every page ---------------------------------------------------------------------------

    def _page(
        self, show: "Callable[[Request, _Visit], Awaitable[Screen]]"
    ) -> Callable[[Request], Awaitable[Response]]:
        async def serve(request: Request) -> Response:
            try:
                session = self._enter(request)
            except _SignedOut:
                return self._to_sign_in(request)
            notes = tuple(session.notes)
            session.notes.clear()
            frame = await self._frame(request, session, notes, self._followed(request))
            visit = _Visit(session, frame)
            status = 200
            try:
                self._managing.require(Duty.LOOK)
                screen = await show(request, visit)
            except RollbookError as error:
                status = type(error).code.http
                screen = screens.problem(
                    _title_of(error), _text_of(error), _sentence(error.next_step)
                )
            response = _html(render(visit.framed(), screen), status)
            return self._with_cookie(request, response, session)

        return serve

    def _followed(self, request: Request) -> str:
        """The page as named by its stream; empty: it has none."""
        path = request.url.path.removeprefix(PREFIX)
        if path not in self._pages:
            return ""
        return f"{path or '/'}?{request.url.query}" if request.url.query else path or "/"

    async def _frame(
        self, request: Request, session: Session, notes: Sequence[tuple[str, str]], page: str
    ) -> PageFrame:
        cluster = await self._admin.cluster()
        scheme = "https" if self._is_behind_tls else "http"
        name = session.principal.name if session.principal else ""
        base = f"{scheme}://{request.headers.get('host', '')}"
        return PageFrame(base, cluster["metadata"], session.secret, name, notes, page=page)

    async def _ask(self, visit: "_Visit", key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The known facts: the present ones, or, while the store is unavailable, the last ones (DB3). Raises
        if nothing is."""
        answer = await self._answers.ask(key, ask)
        if answer.problem is not None:
            known = f"This is what was known {answer.age_s} s ago."
            visit.banner = f"{_text_of(answer.problem)} {known}"
        return answer.facts

    # --- Live ---------------------------------------------------------------------------------

    def end_streams(self) -> None:
        """Ends the streams of open pages."""
        self._is_closing.set()

    async def close(self) -> None:
        """Call it after the server is closed."""
        await self._rounds.close()
        await self._answers.close()

    async def _follow(self, request: Request) -> Response:
        """Streams the changes of a page while it is open (DB5)."""
        page = request.query_params.get("page", "")
        path, _, query = page.partition("?")
        path = path if path != "/" else ""
        show = self._pages.get(path)
        if show is None:
            return Response(status_code=404, headers=HEADERS)
        try:
            session = self._enter(request, stays_idle=True)
        except _SignedOut:
            return StreamingResponse(iter((_SIGNED_OUT,)), headers=HEADERS, media_type=_EVENTS)
        seen = PageState.parse(
            request.headers.get("last-event-id") or request.query_params.get("have", "")
        )
        there = {**request.scope, "path": f"{PREFIX}{path}", "query_string": query.encode()}
        events = self._events(request, Request(there), session, show, page, seen)
        response = StreamingResponse(events, headers=HEADERS, media_type=_EVENTS)
        return self._with_cookie(request, response, session)

    async def _events(
        self,
        request: Request,
        there: Request,
        session: Session,
        show: "Callable[[Request, _Visit], Awaitable[Screen]]",
        page: str,
        seen: PageState,
    ) -> AsyncIterator[bytes]:
        silent = 0
        yield b":\n\n"
        while not self._is_closing.is_set():
            if not self._sessions.holds(session) or not self._is_admitted(request, session):
                yield _SIGNED_OUT
                return
            # Nothing on a live part differs between sessions of one token.
            key = (page, session.token, session.principal, seen)
            render = partial(self._render_round, there, session, show, page, seen)
            seen, event = (await self._rounds.ask(key, render)).facts
            silent = 0 if event else silent + 1
            if event:
                yield event
            elif silent % _HEARTBEAT_ROUNDS == 0:
                yield b":\n\n"
            with suppress(TimeoutError):
                async with asyncio.timeout(_ROUND_S):
                    await self._is_closing.wait()

    async def _render_round(
        self,
        there: Request,
        session: Session,
        show: "Callable[[Request, _Visit], Awaitable[Screen]]",
        page: str,
        seen: PageState,
    ) -> tuple[PageState, bytes]:
        """The next state of a page that has `seen`, and the event that leads to it."""
        frame = await self._frame(there, session, (), page)
        visit = _Visit(session, frame, seen.next_offset)
        try:
            self._managing.require(Duty.LOOK)
            screen = await show(there, visit)
        except RollbookError as error:
            # The rest of the page stays as it is, and says that it is old.
            visit.banner = f"{_text_of(error)} What is below is as it was before."
            parts = Screen("", ()).live_parts(visit.framed())
            now, event = event_for(PageState(seen.digests[:1]), parts, None)
            then = PageState((*now.digests, *seen.digests[1:]), seen.next_offset)
            return then, event.replace(f"id: {now}\n".encode(), f"id: {then}\n".encode(), 1)
        return event_for(seen, screen.live_parts(visit.framed()), screen.rows)

    # --- Screens ------------------------------------------------------------------------------

    async def _overview(self, _: Request, visit: "_Visit") -> Screen:
        health = await self._ask(visit, "health", self._admin.health)
        recovery = await self._ask(visit, "recovery", self._admin.recovery)
        return screens.overview(health, recovery, self._samples, visit.after)

    async def _bookies(self, request: Request, visit: "_Visit") -> Screen:
        after = request.query_params.get("after", "")
        rows = await self._ask(visit, "bookies", self._admin.bookies)
        rest = [row for row in rows if row["id"] > after]
        last = rest[PAGE - 1]["id"] if len(rest) > PAGE else None
        return screens.bookies(rest[:PAGE], last)

    async def _bookie(self, request: Request, visit: "_Visit") -> Screen:
        name = request.query_params.get("id", "")
        row = await self._ask(visit, f"bookie {name}", lambda: self._admin.bookie(name))
        return screens.bookie(visit.framed(), row, CALLER.get().principal.grants)

    async def _ledgers(self, request: Request, visit: "_Visit") -> Screen:
        query = request.query_params
        asked = {
            name: query[name] for name in ("state", "bookie", "short", "after") if query.get(name)
        }
        after = _number(asked.get("after", "-1"), "after", -1)
        if asked.get("short", "true") not in ("true", "false"):
            raise InvalidRequest("short is true or false")
        if asked.get("state", "") not in screens.STATES:
            states = ", ".join(filter(None, screens.STATES))
            raise InvalidRequest(
                f"{asked['state'][:40]!r} is no state of a ledger", next_step=f"choose {states}"
            )

        def ask() -> Awaitable[Any]:
            return self._admin.ledgers(
                after,
                PAGE,
                state=asked.get("state"),
                bookie=asked.get("bookie"),
                short=asked["short"] == "true" if "short" in asked else None,
            )

        rows, next_after = await self._ask(visit, with_query("ledgers", **asked), ask)
        return screens.ledgers(rows, next_after, asked)

    async def _bad_ledgers(self, request: Request, visit: "_Visit") -> Screen:
        after = _number(request.query_params.get("after", "-1"), "after", -1)
        rows, next_after = await self._ask(
            visit, f"bad {after}", lambda: self._admin.bad_ledgers(after, PAGE)
        )
        return screens.bad_ledgers(rows, next_after)

    async def _ledger(self, request: Request, visit: "_Visit") -> Screen:
        ledger_id = _ledger_id_of(request)
        found = await self._ask(visit, f"ledger {ledger_id}", lambda: self._admin.ledger(ledger_id))
        return screens.ledger(visit.framed(), found, CALLER.get().principal.grants)

    async def _recovery(self, _: Request, visit: "_Visit") -> Screen:
        found = await self._ask(visit, "recovery", self._admin.recovery)
        return screens.recovery(visit.framed(), found, CALLER.get().principal.grants)

    async def _list_operations(self, _: Request, visit: "_Visit") -> Screen:
        lasting, _rest = await self._ask(
            visit, "operations", lambda: self._admin.operations("", PAGE)
        )
        here = [local_operation(each) for each in self._operations.newest_first()]
        return screens.operations([*lasting, *here])

    async def _events_page(self, request: Request, visit: "_Visit") -> Screen:
        query = request.query_params
        names = ("kind", "bookie", "log", "after")
        asked = {name: query[name] for name in names if query.get(name)}
        if asked.get("kind", "test") not in (*event_screens.EVENT_KINDS, "test"):
            raise InvalidRequest(
                f"{asked['kind'][:40]!r} is no kind of event",
                next_step=f"choose {', '.join(event_screens.EVENT_KINDS)}",
            )
        wanted = {name: value for name, value in asked.items() if name != "after"}
        rows, following = await self._ask(
            visit,
            with_query("events", **asked),
            lambda: self._admin.events(wanted, asked.get("after", ""), PAGE),
        )
        return event_screens.events(rows, following, asked)

    async def _list_callbacks(self, _: Request, visit: "_Visit") -> Screen:
        shows_urls = may_see_urls()  # Cached facts are shown to those who may see as much.
        rows = await self._ask(
            visit,
            f"callbacks {shows_urls}",
            lambda: self._admin.callbacks.list(shows_urls=shows_urls),
        )
        return event_screens.callbacks(visit.framed(), rows, CALLER.get().principal.grants)

    async def _callback(self, request: Request, visit: "_Visit") -> Screen:
        name, shows_urls = request.query_params.get("id", ""), may_see_urls()
        callbacks = self._admin.callbacks
        row = await self._ask(
            visit,
            f"callback {name} {shows_urls}",
            lambda: callbacks.read(name, shows_urls=shows_urls),
        )
        found = await self._ask(visit, f"deliveries {name}", lambda: callbacks.deliveries(name))
        return event_screens.callback(visit.framed(), row, found, CALLER.get().principal.grants)

    # --- Screens of logs ----------------------------------------------------------------------

    async def _list_logs(self, request: Request, visit: "_Visit") -> Screen:
        from rollbook.api.client.positions import listed

        query, token = request.query_params, visit.session.token
        asked = {name: query[name] for name in ("prefix", "after") if query.get(name)}
        prefix, after = asked.get("prefix", ""), asked.get("after", "")
        rows, following = await self._ask(
            visit,
            visit.own(with_query("logs", **asked)),
            lambda: self._logs.logs(token, prefix, after),
        )
        where = log_screens.of_logs(*await self._where(visit), *listed(prefix, ""), after)
        grants = CALLER.get().principal.grants
        return log_screens.logs(visit.framed(), rows, following, asked, where, grants)

    async def _log(self, request: Request, visit: "_Visit") -> Screen:
        query, token = request.query_params, visit.session.token
        names = ("name", "from", "format", "truncate")
        asked = {name: query[name] for name in names if query.get(name)}
        name, start = str(LogName.parse(asked.get("name", ""))), asked.get("from", "")
        grants = CALLER.get().principal.grants
        if not grants.may_steer_any(name):
            self._managing.require_on_log(Right.READ, name, "Read")
        if asked.get("format", Form.TEXT) not in list(Form):
            raise InvalidRequest(f"format is {', '.join(Form)}")
        found = await self._ask(
            visit, visit.own(f"log {name}"), lambda: self._logs.log(token, name)
        )
        is_news = visit.after is not None and not start
        records: Facts | None = None
        if not grants.may(Right.READ, name):
            is_news = False
        elif is_news:
            records = await self._logs.records(token, name, str(visit.after))
        else:
            records = await self._ask(
                visit,
                visit.own(f"records {name} {start}"),
                lambda: self._logs.records(token, name, start),
            )
        plan: Facts | str | None = None
        if before := asked.get("truncate", ""):
            try:
                self._managing.require_on_log(Right.ADMIN, name, "Truncate")
                plan = await self._logs.truncation(token, name, before)
            except RollbookError as error:
                plan = _text_of(error)
        rows = await self._ask(visit, "servers", self._admin.log_servers)
        others = [row["name"] for row in rows if row["server_id"] != found["owner_id"]]
        ensembles = await self._ensembles(visit, found["segments"]) if records else {}
        where = await self._where(visit)
        return log_screens.log(
            visit.framed(),
            found,
            records,
            asked,
            plan,
            ensembles,
            others,
            where,
            grants,
            self._draw(),
            is_news=is_news,
        )

    async def _ensembles(
        self, visit: "_Visit", segments: Sequence[Facts]
    ) -> Mapping[int, Sequence[str]]:
        """Each segment's bookies, as far as known: those of its last fragment."""
        found: dict[int, Sequence[str]] = {}
        for each in segments:
            ledger_id = each["ledger_id"]
            ask = partial(self._admin.ledger, ledger_id)
            try:
                ledger = await self._ask(visit, f"ledger {ledger_id}", ask)
            except RollbookError:
                continue  # Deleted in the meantime, or the store is unavailable.
            found[ledger_id] = ledger["fragments"][-1]["ensemble"] if ledger["fragments"] else ()
        return found

    async def _where(self, visit: "_Visit") -> tuple[str, str]:
        """The URLs of a log server and of its REST, for commands."""
        rows = await self._ask(visit, "servers", self._admin.log_servers)
        if not rows:
            return "log://127.0.0.1:7400", ""
        scheme = "log+tls" if self._logs.uses_tls else "log"
        return f"{scheme}://{rows[0]['address']}", rows[0]["http"]

    async def _servers(self, _: Request, visit: "_Visit") -> Screen:
        rows = await self._ask(visit, "servers", self._admin.log_servers)
        health = await self._ask(visit, "health", self._admin.health)
        return log_screens.servers(
            rows,
            {each["id"]: each["state"] for each in health["members"] if each["kind"] != "bookie"},
            process_screens.others(
                await self._ask(visit, "bookies", self._admin.bookies),
                (await self._ask(visit, "recovery", self._admin.recovery))["processes"],
                self._own.name,
            ),
        )

    async def _process(self, request: Request, visit: "_Visit") -> Screen:
        """The page of a process: bookies serve their own facts; of recovery servers only this one does."""
        kind, name = (request.query_params.get(each, "") for each in ("kind", "name"))
        counted: Mapping[str, Child] | str
        found: Sequence[Facts] | str
        if kind == "bookie":
            found = await self._shown(visit, name, "/api/v1/settings", http_pages.rows_of_settings)
            counted = await self._shown(
                visit, name, "/api/v1/bookie/status", process_screens.of_status
            )
        elif kind == "recovery" and name == self._own.name:
            found = self._own.settings
            text = (await self._own.metrics.page()).decode()
            counted = process_screens.of_exposition(text)
        elif kind == "recovery" and name in await self._recovery_servers(visit):
            found = counted = (
                "A recovery server shows them at its own address alone: open the dashboard there, if it has --http."
            )
        else:
            raise Missing("there is no such process", next_step="choose one on the screen Servers")
        return process_screens.process(visit.framed(), kind, name, found, counted)

    async def _recovery_servers(self, visit: "_Visit") -> set[str]:
        """Recovery servers that run a part. Only this process knows of one that serves just HTTP."""
        found = await self._ask(visit, "recovery", self._admin.recovery)
        return {str(each.get("process")) for each in found["processes"]}

    async def _shown(
        self, visit: "_Visit", bookie: str, page: str, read: Callable[[Any], Any]
    ) -> Any:
        """The contents of the bookie's own page; or why they are not known. Raises `Missing`: there is no
        such bookie."""
        row = await self._ask(visit, f"bookie {bookie}", lambda: self._admin.bookie(bookie))
        try:
            return read(
                await self._ask(
                    visit,
                    f"page {page} of {bookie}",
                    lambda: self._admin.ask_pages(bookie, "GET", page, None),
                )
            )
        except Missing:
            why = process_screens.without_pages(row["state"])
            return f"It shows no pages here: {why}."
        except BookieFailed:  # The response is not from a Rollbook bookie.
            return "Its own pages do not show this: it is a Java bookie, or of an earlier release."
        except (RollbookError, ValueError) as error:
            return _text_of(error) if isinstance(error, RollbookError) else _sentence(str(error))

    async def _server(self, request: Request, visit: "_Visit") -> Screen:
        name, token = request.query_params.get("name", ""), visit.session.token
        for row in await self._ask(visit, "servers", self._admin.log_servers):
            if row["name"] == name:
                break
        else:
            raise Missing(f"no log server {name[:80]} is registered")
        metrics: Mapping[str, float] | str
        try:
            metrics = await self._logs.server(token, row["address"])
        except RollbookError as error:
            metrics = _text_of(error)
        settings: Sequence[Facts] | str = "It serves no HTTP (--rest)."
        if url := row["http"]:
            try:
                settings = await self._logs.settings(token, url)
            except RollbookError as error:
                settings = _text_of(error)
        grants = CALLER.get().principal.grants
        return log_screens.server(visit.framed(), row, metrics, settings, grants)

    async def _metadata(self, request: Request, visit: "_Visit") -> Screen:
        path = request.query_params.get("path", "/")
        after = request.query_params.get("after", "")
        found = await self._ask(visit, f"node {path}", lambda: self._admin.node(path))
        return log_screens.metadata(path, found, after)

    # --- Acts ---------------------------------------------------------------------------------

    async def _act_on_logs(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        if fields.get("act") != "create":
            raise _no_act(fields.get("act", ""))
        name = fields.get("name", "").strip()
        log = str(LogName.parse(name))
        with self._managing.act_on_log(Right.ADMIN, log, "EnsureLog"):
            was_there = await self._logs.create(fields["token"], log)
        said = "is there already" if was_there else "is made"
        return with_query("/log", name=name), f"{name} {said}."

    async def _act_on_log(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        name, verb = fields.get("id", ""), fields.get("act", "")
        if verb not in _ACTS_ON_LOG:
            raise _no_act(verb)
        log = str(LogName.parse(name))
        right, method = _ACTS_ON_LOG[verb]
        self._managing.require_on_log(right, log, method)
        if verb in ("truncate", "seal"):
            _require_typed(fields, name)
        with self._managing.act_on_log(right, log, method):
            note = await self._do_on_log(verb, log, fields)
        return with_query("/log", name=name), note

    async def _do_on_log(self, verb: str, log: str, fields: Mapping[str, str]) -> str:
        token = fields["token"]
        if verb == "append":
            key = fields.get("key", "")
            value = fields.get("value", "").encode()
            once = _once_of(fields.get("once", ""), key, fields.get("value", ""))
            offset = await self._logs.append(token, log, value, key.encode() if key else None, once)
            return f"Appended at {offset}."
        if verb == "truncate":
            done = await self._logs.truncate(token, log, fields.get("before", ""))
            return f"The first record is {done['new_head']} now."
        if verb == "seal":
            return f"Sealed at {await self._logs.seal(token, log)}."
        if verb == "roll":
            return f"Segment {await self._logs.roll(token, log)} is written now."
        owner = await self._logs.transfer(token, log, fields.get("to", ""))
        return f"Its owner is {owner} now."

    async def _act_on_server(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        name, verb = fields.get("id", ""), fields.get("act", "")
        if verb not in ("drain", "resume"):
            raise _no_act(verb)
        with self._managing.act(Duty.OPERATE, "DrainServer", server=name, resume=verb == "resume"):
            left = await self._logs.drain(fields["token"], name, resume=verb == "resume")
        said = f"{name} has {left} logs to hand over." if verb == "drain" else f"{name} serves."
        return with_query("/server", name=name), said

    def _act(
        self, do: Callable[[Request, Mapping[str, str]], Awaitable[tuple[str, str]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Does it, and redirects to a page that says how it ended. `do` returns that page and the
        message."""

        async def serve(request: Request) -> Response:
            try:
                session = self._enter(request)
            except _SignedOut:
                return self._to_sign_in(request)
            # A form has no token: this one is the session's.
            fields = {**await _fields_of(request), "token": session.token}
            target = request.url.path.removeprefix(PREFIX)
            if "id" in fields:
                key = "name" if target in _NAMED else "id"
                target = with_query(target, **{key: fields["id"]})
            if not session.allows(fields.get("secret", "")):
                session.notes.append(("bad", "That form was not one of this session. Do it again."))
            else:
                try:
                    self._managing.require(Duty.LOOK)
                    target, note = await do(request, fields)
                    session.notes.append(("good", note))
                except RollbookError as error:
                    names = (fields.get("id", ""), fields.get("name", ""))
                    text = f"{_text_of(error, *names)} {_sentence(error.next_step, names)}"
                    session.notes.append(("bad", text.rstrip()))
            self._answers.on_act()
            self._rounds.on_act()
            del session.notes[:-_FIELDS_MAX]
            return self._with_cookie(request, _led(f"{PREFIX}{target}"), session)

        return serve

    async def _act_on_bookie(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        name, verb = fields.get("id", ""), fields.get("act", "")
        target = with_query("/bookie", id=name)
        if verb in _STATES:
            if verb == "drained":
                _require_typed(fields, name)
            done = await self._acts.set_lifecycle(name, _STATES[verb])
            return target, _ended(done, lambda found: f"{name} is {found['lifecycle']}.")
        if verb == "judge":
            done = await self._acts.judge([name])
            return target, _ended(done, lambda found: _judged(name, found))
        if verb == "remove":
            _require_typed(fields, name)
            given = fields.get("give_up", "").strip()
            give_up = _number(given, "the number of ledgers", 0) if given else None
            done = await self._acts.remove(name, give_up)
            return "/bookies", _ended(done, lambda _: f"{name} is removed.")
        raise _no_act(verb)

    async def _act_on_ledger(self, request: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        ledger_id, verb = _ledger_id_of(request), fields.get("act", "")
        if verb == "verify":
            await begin_verify(self._admin, self._managing, ledger_id)
        elif verb == "recover":
            _require_typed(fields, str(ledger_id))
            await begin_recover(self._admin, self._managing, ledger_id)
        else:
            raise _no_act(verb)
        return "/operations", f"Begun for ledger {ledger_id}."

    async def _act_on_recovery(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        verb, act, admin = fields.get("act", ""), self._managing.act, self._admin
        if verb == "audit":
            with act(Duty.OPERATE, "Audit", anyway=False):
                found = await admin.audit(anyway=False)
            return "/recovery", f"The auditor {found['auditor'] or '(none leads now)'} was asked."
        if verb in ("pause", "resume"):
            enabled = verb == "resume"
            with act(Duty.OPERATE, "SetRecoverySwitch", enabled=enabled):
                await admin.set_switch(enabled=enabled)
            return "/recovery", f"Repair is {'enabled' if enabled else 'paused'}."
        if verb == "delay":
            seconds = _number(fields.get("delay_s", ""), "the delay", 0, 2**31 - 1)
            with act(Duty.OPERATE, "SetLostBookieDelay", delay_s=seconds):
                await admin.set_delay(seconds)
            return "/recovery", f"The delay is {seconds} s."
        if verb == "rate":
            rate = _number(fields.get("bytes_per_s", ""), "the rate", 0, 10**17 - 1)
            with act(Duty.OPERATE, "SetRecoveryRate", bytes_per_s=rate):
                await admin.set_rate(rate)
            return "/recovery", f"The rate is {f'{rate} bytes/s' if rate else 'unlimited'}."
        raise _no_act(verb)

    async def _act_on_callbacks(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        if fields.get("act") != "create":
            raise _no_act(fields.get("act", ""))
        kinds = [
            kind
            for kind in event_screens.EVENT_KINDS
            if fields.get(f"{event_screens.KIND_FIELD}{kind}")
        ]
        url, bookie = fields.get("url", "").strip(), fields.get("bookie", "").strip()
        made = await self._callback_acts.create(url, kinds, bookie or None)
        name = event_screens.short_id(made["id"])
        said = f"Callback {name} is made. Its secret, shown only here: {made['secret']}"
        return with_query("/callback", id=made["id"]), said

    async def _act_on_callback(self, _: Request, fields: Mapping[str, str]) -> tuple[str, str]:
        name, verb = fields.get("id", ""), fields.get("act", "")
        if verb == "test":
            found = await self._callback_acts.test(name)
            said = f"The test is {found['outcome']}. {_sentence(found['problem'] or '')}"
            return with_query("/callback", id=name), said.rstrip()
        if verb == "delete":
            self._managing.require(Duty.REMOVE, "DeleteCallback")
            _require_typed(fields, event_screens.short_id(name))
            await self._callback_acts.delete(name)
            return "/callbacks", f"Callback {event_screens.short_id(name)} is deleted."
        raise _no_act(verb)

    # --- Signing in ---------------------------------------------------------------------------

    def _to_sign_in(self, request: Request) -> Response:
        if request.method != "GET":
            return _led(SIGN_IN)
        query = f"?{request.url.query}" if request.url.query else ""
        goes_on = f"{request.url.path.removeprefix(PREFIX)}{query}"
        return _led(f"{PREFIX}{with_query('/sign-in', next=goes_on)}")

    async def _show_sign_in(self, request: Request) -> Response:
        if self._authenticator is None:
            return _led(PREFIX)
        frame = PageFrame("", "", "", "", (), "")
        goes_on = request.query_params.get("next", "")
        return _html(render(frame, screens.sign_in(frame, goes_on)), 200)

    async def _sign_in(self, request: Request) -> Response:
        """Begins a session with a new id, whatever the browser sent."""
        if self._authenticator is None:
            return _led(PREFIX)
        fields = await _fields_of(request)
        token, goes_on = fields.get("token", "").strip(), fields.get("next", "")
        try:
            caller = self._authenticator.admit(f"Bearer {token}", peer=_peer_of(request))
        except Unauthorized as error:
            frame = PageFrame("", "", "", "", (("bad", _text_of(error)),), "")
            return _html(render(frame, screens.sign_in(frame, goes_on)), 401)
        old = self._sessions.find(request.cookies.get(self._cookie_name(request), ""))
        if old is not None:
            self._sessions.end(old)
        session = self._sessions.begin(token, caller.principal)
        path = goes_on if goes_on.startswith("/") or not goes_on else ""
        return self._with_cookie(request, _led(f"{PREFIX}{path}"), session)

    async def _sign_out(self, request: Request) -> Response:
        session = self._sessions.find(request.cookies.get(self._cookie_name(request), ""))
        fields = await _fields_of(request)
        if session is not None and session.allows(fields.get("secret", "")):
            self._sessions.end(session)
        return _led(SIGN_IN if self._authenticator else PREFIX)


class _Visit:
    """One request of a page."""

    def __init__(self, session: Session, frame: PageFrame, after: int | None = None) -> None:
        """`after`: the page has the records before this offset."""
        self.session = session
        self.after = after
        self.banner = ""
        self._frame = frame

    def own(self, key: str) -> Hashable:
        """The key of a cached response for this token alone, which has rights of its own."""
        return key, self.session.token

    def framed(self) -> PageFrame:
        known = self._frame
        return PageFrame(
            known.base,
            known.metadata,
            known.secret,
            known.principal,
            known.notes,
            self.banner,
            known.page,
        )


# ----------------------------------------------------------------------------------------------


def _html(body: bytes, status: int) -> Response:
    return Response(body, status, headers=HEADERS, media_type="text/html; charset=utf-8")


def refused(error: RollbookError, status: int) -> Response:
    """The page in response to a request that the server rejects."""
    if isinstance(error, EntryTooLarge) and "limit" in error.ids:
        limit = f"{error.ids['limit'] // 1024} KiB"
        screen = screens.problem(
            "The form is too large",
            f"A form takes {limit} after encoding, and nothing was changed.",
            "Go back and send less. `rollbook log append` takes more.",
        )
    else:
        screen = screens.problem(_title_of(error), _text_of(error), _sentence(error.next_step))
    return _html(render(PageFrame("", "", "", ""), screen), status)


def _led(path: str) -> Response:
    """Redirects to a page after a form, by GET."""
    return RedirectResponse(path, 303, headers=HEADERS)


def _sending(name: str) -> Callable[[Request], Awaitable[Response]]:
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
        content = file.read()
    kind = "text/css" if name.endswith(".css") else "text/javascript"

    async def send(_: Request) -> Response:
        return Response(content, media_type=kind, headers=_KEPT)

    return send


async def _send_icon(_: Request) -> Response:
    return Response(_ICON, media_type="image/svg+xml", headers=_KEPT)


async def _show_nothing(request: Request, _: "_Visit") -> Screen:
    raise Missing(f"There is no page {request.url.path}", next_step="choose one of those above")


async def _lead_here(_: Request) -> Response:
    return _led(PREFIX)


def _peer_of(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client else ""


async def _fields_of(request: Request) -> dict[str, str]:
    """The fields of a form, whose size the server has bounded."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        return {}
    text = (await request.body()).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ValueError:
        return {}


def _number(text: str, what: str, least: int, most: int = LEDGER_ID_MAX) -> int:
    digits = text.strip().removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= len(str(LEDGER_ID_MAX)):
        number = int(text)
        if least <= number <= most:
            return number
    raise InvalidRequest(f"{what} is a whole number from {least} to {most}, not {text[:40]!r}")


def _ledger_id_of(request: Request) -> int:
    return _number(str(request.path_params["ledger_id"]), "a ledger's id", 0)


def _require_typed(fields: Mapping[str, str], name: str) -> None:
    if fields.get("typed", "").strip() != name:
        raise NotConfirmed(f"type {name} to confirm it")


def _once_of(drawn: str, *said: str) -> str | None:
    """The idempotency key of a form: the same content sent again is the same append (DB9). None: no number."""
    if not drawn:
        return None
    return hashlib.sha256(json.dumps([drawn, *said]).encode()).hexdigest()[:_ONCE_CHARACTERS]


def _no_act(verb: str) -> InvalidRequest:
    return InvalidRequest(f"no form here does {verb[:40]!r}")


def _ended(operation: Operation, say: Callable[[Facts], str]) -> str:
    if operation.ended_ms is None:
        return f"It goes on as {operation.id}: the screen Operations shows how it ends."
    return say(operation.result or {})


def _judged(name: str, found: Mapping[str, Any]) -> str:
    if found["safe_to_remove"]:
        return f"{name} may go: no ledger names it and it takes no entries."
    taking = " It still takes entries." if found["taking_entries"] else ""
    return (
        f"{name} may not go yet: {found['ledgers_naming_them']} ledgers name it; without it "
        f"{found['below_ack_quorum_without_them']} fall below their ack quorum, and "
        f"{found['without_a_copy_without_them']} lose their last copy of an entry.{taking}"
    )


def _title_of(error: RollbookError) -> str:
    if isinstance(error, Unavailable | OutcomeUnknown):
        return "Nothing is known yet"
    return "Not allowed" if isinstance(error, Unauthorized) else "That cannot be shown"


def _text_of(error: RollbookError, *names: str) -> str:
    """`names`: further names to keep unchanged, like those in the error and the session."""
    text = error.message or (type(error).__doc__ or "").partition("\n")[0]
    caller = CALLER.get(None)
    known = (*names, *map(str, error.ids.values()), caller.principal.name if caller else "")
    return _sentence(text, known)


def _sentence(text: str, names: Sequence[str] = ()) -> str:
    """A sentence with a capital, unless it begins with an id or a name, and with a full stop."""
    first = text.partition(" ")[0].rstrip(",:;.")
    if first.isalpha() and first not in names:
        text = f"{text[:1].upper()}{text[1:]}"
    return f"{text}." if text and text[-1] not in ".!?\u2026" else text
