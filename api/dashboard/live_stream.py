"""The streams of open pages. A stream sends each change of its page while the page is open (DB5)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from rollbook.api.access.core.grants import Duty
from rollbook.api.access.management_rights import Managing
from rollbook.api.dashboard.core.live_page import PageState, event_for
from rollbook.api.dashboard.core.sessions import Session
from rollbook.api.dashboard.error_texts import error_text
from rollbook.api.dashboard.page_context import ShowPage, Visits
from rollbook.api.dashboard.parts import PREFIX, Screen
from rollbook.api.dashboard.responses import HEADERS
from rollbook.api.dashboard.shared_answers import SharedAnswers
from rollbook.api.dashboard.sign_in import SignedOut, SignIn
from rollbook.proto.errors import RollbookError

_EVENTS: Final = "text/event-stream"
_SIGNED_OUT: Final = b"event: signed-out\ndata: \n\n"
_ROUND_S: Final = 0.5  # The update interval. Longer: pages cost less, but show older facts.
_HEARTBEAT_ROUNDS: Final = 30
# The maximum number of events that are kept. Each is at most as large as a page.
_ROUNDS_MAX: Final = 50


class LiveStreams:
    """Serves the streams of `pages`. Open pages with the same URL, token, principal and contents share each event."""

    def __init__(
        self,
        pages: Mapping[str, ShowPage],
        sign_in: SignIn,
        visits: Visits,
        managing: Managing,
        now_ns: Callable[[], int],
    ) -> None:
        self._pages = pages
        self._sign_in = sign_in
        self._visits = visits
        self._managing = managing
        self._rounds = SharedAnswers(now_ns, _ROUND_S, _ROUNDS_MAX)
        self._is_closing = asyncio.Event()

    def on_act(self) -> None:
        """Records that a form changed something, so that the next round renders each page again."""
        self._rounds.on_act()

    def end(self) -> None:
        """Ends the streams of open pages."""
        self._is_closing.set()

    async def close(self) -> None:
        """Stops the background tasks. Call it after the server is closed."""
        await self._rounds.close()

    async def follow(self, request: Request) -> Response:
        """Streams the changes of a page while it is open (DB5)."""
        page = request.query_params.get("page", "")
        path, _, query = page.partition("?")
        path = path if path != "/" else ""
        show = self._pages.get(path)
        if show is None:
            return Response(status_code=404, headers=HEADERS)
        try:
            session = self._sign_in.enter(request, stays_idle=True)
        except SignedOut:
            return StreamingResponse(iter((_SIGNED_OUT,)), headers=HEADERS, media_type=_EVENTS)
        seen = PageState.parse(
            request.headers.get("last-event-id") or request.query_params.get("have", "")
        )
        there = {**request.scope, "path": f"{PREFIX}{path}", "query_string": query.encode()}
        events = self._events(request, Request(there), session, show, page, seen)
        response = StreamingResponse(events, headers=HEADERS, media_type=_EVENTS)
        return self._sign_in.with_cookie(request, response, session)

    async def _events(
        self,
        request: Request,
        there: Request,
        session: Session,
        show: ShowPage,
        page: str,
        seen: PageState,
    ) -> AsyncIterator[bytes]:
        silent = 0
        yield b":\n\n"
        while not self._is_closing.is_set():
            if not self._sign_in.readmit(request, session):
                yield _SIGNED_OUT
                return
            # Live parts are the same for all sessions with the same token.
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
        show: ShowPage,
        page: str,
        seen: PageState,
    ) -> tuple[PageState, bytes]:
        """Returns the page's current state, and the event that brings a page from the state `seen` to it."""
        visit = await self._visits.begin(there, session, page, after=seen.next_offset)
        try:
            self._managing.require(Duty.LOOK)
            screen = await show(there, visit)
        except RollbookError as error:
            # Only the banner changes. It says that the rest of the page is old.
            visit.banner = f"{error_text(error)} The data below is from the last successful update."
            parts = Screen("", ()).live_parts(visit.framed())
            now, event = event_for(PageState(seen.digests[:1]), parts, None)
            then = PageState((*now.digests, *seen.digests[1:]), seen.next_offset)
            return then, event.replace(f"id: {now}\n".encode(), f"id: {then}\n".encode(), 1)
        return event_for(seen, screen.live_parts(visit.framed()), screen.rows)
