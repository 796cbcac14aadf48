"""One request for a page: its visitor, the frame around the screen, and the screen's requests to the cluster."""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from rollbook.api.dashboard.core.sessions import Session
from rollbook.api.dashboard.error_texts import error_text
from rollbook.api.dashboard.page_dependencies import PageAdmin
from rollbook.api.dashboard.parts import PageFrame, Screen
from rollbook.api.dashboard.shared_answers import SharedAnswers


class Visit:
    """One request for a page, or one rendering of a page for its stream."""

    def __init__(
        self,
        session: Session,
        frame: PageFrame,
        answers: SharedAnswers,
        after: int | None = None,
    ) -> None:
        """`after`: the page already shows the records before this offset."""
        self.session = session
        self.after = after
        self.banner = ""
        self._frame = frame
        self._answers = answers

    def own(self, key: str) -> Hashable:
        """The key of an answer that is cached only for the visitor's token, since tokens differ in their rights."""
        return key, self.session.token

    async def ask(self, key: Hashable, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Returns the current facts or, while the store is unavailable, the last known facts (DB3). If no
        facts are known, raises the error of `ask`."""
        answer = await self._answers.ask(key, ask)
        if answer.problem is not None:
            known = f"These facts were last known {answer.age_s} s ago."
            self.banner = f"{error_text(answer.problem)} {known}"
        return answer.facts

    def framed(self) -> PageFrame:
        """The frame, with the banner of this visit."""
        return replace(self._frame, banner=self.banner)


ShowPage = Callable[[Request, Visit], Awaitable[Screen]]


class Visits:
    """Begins a visit for each request for a page, and for each rendering of a stream."""

    def __init__(self, admin: PageAdmin, answers: SharedAnswers, *, is_behind_tls: bool) -> None:
        self._admin = admin
        self._answers = answers
        self._scheme = "https" if is_behind_tls else "http"

    async def begin(
        self,
        request: Request,
        session: Session,
        page: str,
        notes: Sequence[tuple[str, str]] = (),
        after: int | None = None,
    ) -> Visit:
        """`page`: the page's name in its stream's URL; empty: the page has no stream. `after`: the page
        already shows the records before this offset."""
        cluster = await self._admin.cluster()
        name = session.principal.name if session.principal else ""
        base = f"{self._scheme}://{request.headers.get('host', '')}"
        frame = PageFrame(base, cluster["metadata"], session.secret, name, notes, page=page)
        return Visit(session, frame, self._answers, after)
