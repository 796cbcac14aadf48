"""Identifies visitors by session cookies, and signs them in and out (DB2)."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rollbook.api.access.authenticator import CALLER, Authenticator, anybody
from rollbook.api.dashboard.core.markup import element
from rollbook.api.dashboard.core.sessions import Session, Sessions
from rollbook.api.dashboard.error_texts import error_text
from rollbook.api.dashboard.form_fields import fields_of
from rollbook.api.dashboard.parts import PREFIX, Field, PageFrame, Screen, form, render, with_query
from rollbook.api.dashboard.responses import html, redirect
from rollbook.proto.errors import Unauthorized

SIGN_IN: Final = f"{PREFIX}/sign-in"


class SignedOut(Exception):
    """The browser is not signed in, or its session has ended."""


class SignIn:
    """Identifies visitors by their session cookie. A token signs a visitor in."""

    def __init__(
        self, authenticator: Authenticator | None, sessions: Sessions, *, is_behind_tls: bool
    ) -> None:
        """`authenticator`: None admits everybody. `is_behind_tls`: browsers connect with TLS."""
        self._authenticator = authenticator
        self._sessions = sessions
        self._is_behind_tls = is_behind_tls
        self.routes = [
            Route(SIGN_IN, self._show),
            Route(SIGN_IN, self._begin, methods=["POST"]),
            Route(f"{PREFIX}/sign-out", self._end, methods=["POST"]),
        ]

    def enter(self, request: Request, *, stays_idle: bool = False) -> Session:
        """Returns the request's session, and sets `CALLER` for the rest of the request. Raises `SignedOut`."""
        cookie = request.cookies.get(self._cookie_name(request), "")
        session = self._sessions.find(cookie, stays_idle=stays_idle)
        if session is None and self._authenticator is None:
            session = self._sessions.begin("", None)
        if session is None or not self._admit(request, session):
            raise SignedOut
        return session

    def _admit(self, request: Request, session: Session) -> bool:
        """Sets `CALLER` if the session's token still belongs to the same principal; otherwise ends the
        session."""
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

    def readmit(self, request: Request, session: Session) -> bool:
        """Returns whether the session is valid; if so, sets `CALLER`. Ends the session if its principal has changed."""
        return self._sessions.holds(session) and self._admit(request, session)

    def with_cookie(self, request: Request, response: Response, session: Session) -> Response:
        name = self._cookie_name(request)
        if request.cookies.get(name) != session.id:
            path = "/" if self._is_behind_tls else PREFIX  # `__Host-` requires the path `/`.
            more = "; Secure" if self._is_behind_tls else ""
            cookie = f"{name}={session.id}; Path={path}; HttpOnly; SameSite=Strict{more}"
            response.headers.append("set-cookie", cookie)
        return response

    def lead_there(self, request: Request) -> Response:
        """Redirects to the sign-in form, which then leads back to the requested page."""
        if request.method != "GET":
            return redirect(SIGN_IN)
        query = f"?{request.url.query}" if request.url.query else ""
        goes_on = f"{request.url.path.removeprefix(PREFIX)}{query}"
        return redirect(f"{PREFIX}{with_query('/sign-in', next=goes_on)}")

    def _cookie_name(self, request: Request) -> str:
        """The cookie's name. It includes the port, since the ports of a host share cookies. The prefix `__Host-`
        prevents other hosts from setting the cookie."""
        port = (request.scope.get("server") or ("", 0))[1]
        return f"{'__Host-' if self._is_behind_tls else ''}rollbook-{port}"

    async def _show(self, request: Request) -> Response:
        if self._authenticator is None:
            return redirect(PREFIX)
        frame = PageFrame("", "", "", "", (), "")
        goes_on = request.query_params.get("next", "")
        return html(render(frame, _sign_in_screen(frame, goes_on)), 200)

    async def _begin(self, request: Request) -> Response:
        """Begins a session with a new id, even if the browser sent an id."""
        if self._authenticator is None:
            return redirect(PREFIX)
        fields = await fields_of(request)
        token, goes_on = fields.get("token", "").strip(), fields.get("next", "")
        try:
            caller = self._authenticator.admit(f"Bearer {token}", peer=_peer_of(request))
        except Unauthorized as error:
            frame = PageFrame("", "", "", "", (("bad", error_text(error)),), "")
            return html(render(frame, _sign_in_screen(frame, goes_on)), 401)
        old = self._sessions.find(request.cookies.get(self._cookie_name(request), ""))
        if old is not None:
            self._sessions.end(old)
        session = self._sessions.begin(token, caller.principal)
        path = goes_on if goes_on.startswith("/") or not goes_on else ""
        return self.with_cookie(request, redirect(f"{PREFIX}{path}"), session)

    async def _end(self, request: Request) -> Response:
        session = self._sessions.find(request.cookies.get(self._cookie_name(request), ""))
        fields = await fields_of(request)
        if session is not None and session.allows(fields.get("secret", "")):
            self._sessions.end(session)
        return redirect(SIGN_IN if self._authenticator else PREFIX)


def _sign_in_screen(frame: PageFrame, goes_on: str) -> Screen:
    token = Field("token", "Token", "password", more={"autocomplete": "off", "required": True})
    says = element("p", "Show the token that ", element("code", "rollbook access add"), " printed.")
    return Screen(
        "Sign in", [form(frame, "/sign-in", [says], "Sign in", {"next": goes_on}, [token])]
    )


def _peer_of(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client else ""
