"""The dashboard: pages of a cluster below `/dashboard`, rendered on the server. DESIGN.md lists the files.

Pages authenticate their visitors by a session cookie, while HTTP management accepts only tokens. After that,
pages set `CALLER`, check duties with `Managing` and call the same functions as the management routes.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from rollbook.api.access.authenticator import Authenticator
from rollbook.api.access.core.grants import Duty
from rollbook.api.dashboard.assets import asset_routes
from rollbook.api.dashboard.cluster_acts import ClusterActs
from rollbook.api.dashboard.cluster_pages import ClusterPages
from rollbook.api.dashboard.core.sessions import Sessions
from rollbook.api.dashboard.error_texts import error_text, error_title, problem_screen, sentence
from rollbook.api.dashboard.form_fields import DoAct, fields_of
from rollbook.api.dashboard.live_stream import LiveStreams
from rollbook.api.dashboard.log_acts import LogActs
from rollbook.api.dashboard.log_pages import LogPages
from rollbook.api.dashboard.page_context import ShowPage, Visit, Visits
from rollbook.api.dashboard.page_dependencies import PageSources
from rollbook.api.dashboard.parts import PREFIX, Screen, render, with_query
from rollbook.api.dashboard.responses import html, redirect, refused
from rollbook.api.dashboard.server_and_process_pages import ProcessPages
from rollbook.api.dashboard.shared_answers import SharedAnswers
from rollbook.api.dashboard.sign_in import SignedOut, SignIn
from rollbook.proto.errors import InvalidRequest, Missing, RollbookError

# Methods that pages refuse (POST: unless the page has a form).
_OTHER_METHODS: Final = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_NOTES_MAX: Final = 20  # The maximum number of notes that a session keeps for its next page.
_ANSWERS_MAX: Final = 200
# How long pages share an answer. Longer: less load on the cluster, but older facts.
_FRESH_S: Final = 2
_NAMED: Final = ("/log", "/server")  # Pages that have `name` in their URL in place of `id`.


class Dashboard:
    """`routes` are served in addition to the management routes. The server requires no token below `PREFIX`."""

    def __init__(
        self,
        sources: PageSources,
        authenticator: Authenticator | None,
        draw: Callable[[], str],
        *,
        is_behind_tls: bool = False,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`draw` returns a new text that cannot be guessed. `is_behind_tls`: browsers connect with TLS."""
        self._managing = sources.managing
        self._answers = SharedAnswers(now_ns, _FRESH_S, _ANSWERS_MAX)
        sessions = Sessions(now_ns, draw)
        self._sign_in = SignIn(authenticator, sessions, is_behind_tls=is_behind_tls)
        self._visits = Visits(sources.admin, self._answers, is_behind_tls=is_behind_tls)
        self._pages = {
            **ClusterPages(sources).pages,
            **LogPages(sources, draw).pages,
            **ProcessPages(sources).pages,
        }
        acts = {**ClusterActs(sources).acts, **LogActs(sources).acts}
        self._live = LiveStreams(self._pages, self._sign_in, self._visits, sources.managing, now_ns)
        self.routes = [
            Route("/", _lead_here),
            *(Route(f"{PREFIX}{path}", self._page(show)) for path, show in self._pages.items()),
            *(
                Route(f"{PREFIX}{path}", self._act(do), methods=["POST"])
                for path, do in acts.items()
            ),
            *self._sign_in.routes,
            Route(f"{PREFIX}/live", self._live.follow),
            *asset_routes(),
            Route(f"{PREFIX}/", _lead_here),
            Route(f"{PREFIX}/{{rest:path}}", self._page(_show_nothing)),
            *(
                Route(path, self._refuse_method, methods=_OTHER_METHODS)
                for path in (PREFIX, f"{PREFIX}/{{rest:path}}")
            ),
        ]

    def end_streams(self) -> None:
        """Ends the streams of open pages."""
        self._live.end()

    async def close(self) -> None:
        """Stops the background tasks. Call it after the server is closed."""
        await self._live.close()
        await self._answers.close()

    def _page(self, show: ShowPage) -> Callable[[Request], Awaitable[Response]]:
        """Serves a page together with the session's notes, which are shown once."""

        async def serve(request: Request) -> Response:
            try:
                session = self._sign_in.enter(request)
            except SignedOut:
                return self._sign_in.lead_there(request)
            notes = tuple(session.notes)
            session.notes.clear()
            visit = await self._visits.begin(request, session, self._followed(request), notes)
            status = 200
            try:
                self._managing.require(Duty.LOOK)
                screen = await show(request, visit)
            except RollbookError as error:
                status = type(error).code.http
                screen = problem_screen(
                    error_title(error), error_text(error), sentence(error.next_step)
                )
            response = html(render(visit.framed(), screen), status)
            return self._sign_in.with_cookie(request, response, session)

        return serve

    def _followed(self, request: Request) -> str:
        """The page's name in its stream's URL; empty: the page has no stream."""
        path = request.url.path.removeprefix(PREFIX)
        if path not in self._pages:
            return ""
        return f"{path or '/'}?{request.url.query}" if request.url.query else path or "/"

    def _act(self, do: DoAct) -> Callable[[Request], Awaitable[Response]]:
        """Handles a submitted form: makes the change with `do`, and redirects to a page that shows the outcome.
        `do` returns that page's path and the message."""

        async def serve(request: Request) -> Response:
            try:
                session = self._sign_in.enter(request)
            except SignedOut:
                return self._sign_in.lead_there(request)
            # Forms have no token, so the session's token is used.
            fields = {**await fields_of(request), "token": session.token}
            target = request.url.path.removeprefix(PREFIX)
            if "id" in fields:
                key = "name" if target in _NAMED else "id"
                target = with_query(target, **{key: fields["id"]})
            if not session.allows(fields.get("secret", "")):
                session.notes.append(("bad", "The form is not one of this session. Send it again."))
            else:
                try:
                    self._managing.require(Duty.LOOK)
                    target, note = await do(request, fields)
                    session.notes.append(("good", note))
                except RollbookError as error:
                    names = (fields.get("id", ""), fields.get("name", ""))
                    text = f"{error_text(error, *names)} {sentence(error.next_step, names)}"
                    session.notes.append(("bad", text.rstrip()))
            self._answers.on_act()
            self._live.on_act()
            del session.notes[:-_NOTES_MAX]
            return self._sign_in.with_cookie(request, redirect(f"{PREFIX}{target}"), session)

        return serve

    async def _refuse_method(self, request: Request) -> Response:
        scope = {**request.scope, "method": "POST"}
        takes_forms = any(
            route.endpoint != self._refuse_method and route.matches(scope)[0] is Match.FULL
            for route in self.routes
        )
        allowed = "GET, HEAD, POST" if takes_forms else "GET, HEAD"
        error = InvalidRequest(
            f"this page does not accept {request.method}", next_step="load it with GET"
        )
        response = refused(error, 405)
        response.headers["allow"] = allowed
        return response


async def _show_nothing(request: Request, _: Visit) -> Screen:
    raise Missing(f"There is no page {request.url.path}", next_step="choose one of the pages above")


async def _lead_here(_: Request) -> Response:
    return redirect(PREFIX)
