"""The response to `/` and `/v1` of a log server: it names the server and links to its other pages. Browsers
get a page, programs JSON."""

from collections.abc import Callable
from html import escape
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse

from rollbook import __version__
from rollbook.api.rest.accept_header import preferred_type

LINKS: Final = {
    "index": "/v1",
    "openapi": "/openapi.json",
    "logs": "/v1/logs",
    "deleted_logs": "/v1/deleted-logs",
    "servers": "/v1/servers",
    "limits": "/v1/limits",
    "health": "/healthz",
    "ready": "/readyz",
}

_HTML: Final = "text/html"
_JSON: Final = "application/json"
_TYPES_IN: Final = {
    _HTML: (_HTML,),
    _JSON: (_JSON,),
    "*/*": (_JSON, _HTML),
    "application/*": (_JSON,),
    "text/*": (_HTML,),
}
_HEADERS: Final = {
    "vary": "Accept",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_PAGE: Final = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>Rollbook</title></head>
<body>
<h1>Rollbook{version}</h1>
<p>A log server: durable, replicated, append-only logs over HTTP and gRPC.</p>
<ul>
{links}</ul>
<p>docs/http.md in the repository shows how to append, read and follow with curl.</p>
</body>
</html>
"""


def add_index(
    app: FastAPI, dashboard: Callable[[], str] | None = None, *, asks_for_tokens: bool = False
) -> None:
    """`dashboard`: returns the URL to which browsers are redirected; empty: there is none yet. `asks_for_tokens`: the
    server requires tokens, so `/`, which needs none, hides the version.
    """

    @app.get("/v1", include_in_schema=False)
    async def index() -> dict[str, Any]:
        return {"name": "rollbook", "version": __version__, "links": LINKS}

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def root(request: Request) -> Response:
        url = dashboard() if dashboard is not None else ""
        version = "" if asks_for_tokens else __version__
        links = {**LINKS, "dashboard": url} if url else LINKS
        accept = ",".join(request.headers.getlist("accept"))
        if preferred_type(accept, _TYPES_IN, _JSON) != _HTML:
            facts = {"version": version} if version else {}
            return JSONResponse({"name": "rollbook", **facts, "links": links}, headers=_HEADERS)
        if url:
            return RedirectResponse(url, 303, headers=_HEADERS)
        return HTMLResponse(_page(version), headers=_HEADERS)


def _page(version: str) -> str:
    items = (f'<li><a href="{path}">{path}</a> {name}</li>\n' for name, path in LINKS.items())
    return _PAGE.format(
        version=f" {escape(version)}" if version else "",
        links="".join(items).replace("_", " "),
    )
