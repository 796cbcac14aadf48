"""Calls the admin pages of a bookie in this process, without a network. The pages check the rights of the caller
as for a request over HTTP.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from rollbook.api.access.audit import AuditLog
from rollbook.api.cli.bookie_admin_client import answer_of
from rollbook.api.rest.bookie_admin_server import BookieAdmin, make_app
from rollbook.api.rest.operation_registry import RunningOperations
from rollbook.proto.ids import BookieId


class InProcessPages:
    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        """Calls a page and returns its response. Raises the bookie's errors."""
        status, media_type = 0, ""
        answer = bytearray()

        async def receive() -> dict[str, Any]:
            data = b"" if body is None else json.dumps(body).encode()
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status, media_type
            if message["type"] == "http.response.start":
                status = message["status"]
                media_type = dict(message["headers"]).get(b"content-type", b"").decode()
            else:
                answer.extend(message.get("body", b""))

        await self._app(_scope(method, path), receive, send)
        return answer_of(status, media_type, bytes(answer))


def _scope(method: str, path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
    }


@asynccontextmanager
async def local_pages(
    admins: Mapping[str, BookieAdmin], audit: AuditLog
) -> AsyncIterator[Mapping[BookieId, InProcessPages]]:
    """Yields the admin pages of each bookie."""
    operations = {name: RunningOperations() for name in admins}
    try:
        yield {
            BookieId(name): InProcessPages(make_app(admin, operations[name], audit))
            for name, admin in admins.items()
        }
    finally:
        for each in operations.values():
            await each.close()
