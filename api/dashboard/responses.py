"""Responses to a browser: pages with their headers, redirects, and the page for a rejected request."""

from typing import Final

from starlette.responses import RedirectResponse, Response

from rollbook.api.dashboard.error_texts import error_text, error_title, problem_screen, sentence
from rollbook.api.dashboard.parts import PageFrame, render
from rollbook.proto.errors import EntryTooLarge, RollbookError

HEADERS: Final = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # Makes browsers send the page's origin with a form. With `no-referrer` they would send
    # `Origin: null`, and the server would refuse the form as cross-site.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}


def html(body: bytes, status: int) -> Response:
    return Response(body, status, headers=HEADERS, media_type="text/html; charset=utf-8")


def refused(error: RollbookError, status: int) -> Response:
    """The page for a request that the server rejects."""
    if isinstance(error, EntryTooLarge) and "limit" in error.ids:
        limit = f"{error.ids['limit'] // 1024} KiB"
        screen = problem_screen(
            "The form is too large",
            f"A form takes {limit} after encoding, and nothing was changed.",
            "Go back and send less. `rollbook log append` takes more.",
        )
    else:
        screen = problem_screen(error_title(error), error_text(error), sentence(error.next_step))
    return html(render(PageFrame("", "", "", ""), screen), status)


def redirect(path: str) -> Response:
    """Redirects to the page that follows a form; the browser loads that page with GET."""
    return RedirectResponse(path, 303, headers=HEADERS)
