"""The files that pages load: style, scripts and the icon. They are read once, at start."""

import os
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rollbook.api.dashboard.parts import PREFIX
from rollbook.api.dashboard.responses import HEADERS

_KEPT: Final = {**HEADERS, "cache-control": "max-age=3600"}
_ICON: Final = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8">'
    b'<path fill="#1a6e34" d="M1 1h6v1H1zM1 3h6v1H1zM1 5h4v1H1z"/></svg>'
)
_FILES: Final = (  # Files in `vendor/` are listed in `vendored.json` (DB6).
    "style.css",
    "live.js",
    "vendor/htmx.min.js",
    "vendor/hx-sse.min.js",
    "vendor/uPlot.iife.min.js",
    "vendor/uPlot.min.css",
)


def asset_routes() -> list[Route]:
    """The routes of the files, below `PREFIX`."""
    return [
        *(Route(f"{PREFIX}/{os.path.basename(name)}", _sending(name)) for name in _FILES),
        Route(f"{PREFIX}/icon.svg", _send_icon),
    ]


def _sending(name: str) -> Callable[[Request], Awaitable[Response]]:
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:
        content = file.read()
    kind = "text/css" if name.endswith(".css") else "text/javascript"

    async def send(_: Request) -> Response:
        return Response(content, media_type=kind, headers=_KEPT)

    return send


async def _send_icon(_: Request) -> Response:
    return Response(_ICON, media_type="image/svg+xml", headers=_KEPT)
