"""The HTTP application of named logs without a server, and one valid request for each route."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI

from rollbook.api.access.authenticator import CALLER, anybody
from rollbook.api.access.authorized_service import AuthorizedService
from rollbook.api.rest.log_app import make_app
from rollbook.api.rest.owner_routing import OwnerRouting
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore
from tests.unit.api.rest.http_client import DEADLINE_S, Answer

LOG = "/v1/namespaces/ns/logs/log"
RAW = {"content-type": "application/octet-stream"}
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
SSE = {"accept": "text/event-stream"}
LINES = {"accept": "application/x-ndjson"}
EPOCH = {"log-writer-epoch": "1"}


@dataclass(frozen=True)
class Route:
    """A request, and the method of the service core that it calls."""

    core_name: str
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        kind = self.headers.get("accept", "").rpartition("/")[2]
        return f"{self.method} {self.path} {kind}".strip()


ROUTES = (
    Route("list_logs", "GET", "/v1/logs"),
    Route("list_logs", "GET", "/v1/namespaces/ns/logs?prefix=l&limit=10"),
    Route("ensure_log", "PUT", LOG),
    Route("get_log", "GET", LOG),
    Route("get_tail", "HEAD", LOG),
    Route("update_log", "PATCH", LOG, b'{"retention_age_s":60}', JSON),
    Route("delete_log", "DELETE", f"{LOG}?grace_ms=5"),
    Route("undelete_log", "POST", f"{LOG}:undelete", b'{"to":"other"}', JSON),
    Route("list_deleted_logs", "GET", "/v1/deleted-logs?namespace=ns&prefix=l&limit=10"),
    Route("append", "POST", f"{LOG}/records", b"x", RAW),
    Route("append", "POST", f"{LOG}/records", b'{"records":[{"data":"x"}]}', JSON),
    Route("append", "POST", f"{LOG}/records", b'{"data":"x"}\n', NDJSON),
    Route("read", "GET", f"{LOG}/records?from=-1"),
    Route("read_stream", "GET", f"{LOG}/records?at_tail=stop", headers=SSE),
    Route("read_stream", "GET", f"{LOG}/records?at_tail=stop", headers=LINES),
    Route("read", "GET", f"{LOG}/records/0"),
    Route("get_tail", "GET", f"{LOG}/tail?consistency=barrier"),
    Route("watch_tail", "GET", f"{LOG}/tail", headers=SSE),
    Route("watch_tails", "GET", "/v1/tails?prefix=ns/l&log=other"),
    Route("get_tail", "POST", f"{LOG}:barrier"),
    Route("find_offset", "GET", f"{LOG}/offsets?at=-1"),
    Route("truncate", "POST", f"{LOG}:truncate", b'{"before":0}', JSON),
    Route("seal", "POST", f"{LOG}:seal"),
    Route("roll_log", "POST", f"{LOG}:roll"),
    Route("transfer_log", "POST", f"{LOG}:transfer", b'{"to":"a"}', JSON),
    Route("acquire_writer", "POST", f"{LOG}/writer", b'{"holder":"me"}', JSON),
    Route("renew_writer", "PUT", f"{LOG}/writer", headers=EPOCH),
    Route("release_writer", "DELETE", f"{LOG}/writer", headers=EPOCH),
    Route("begin_producer", "POST", f"{LOG}/producers/p"),
    Route("list_cursors", "GET", f"{LOG}/cursors"),
    Route("get_cursor", "GET", f"{LOG}/cursors/c"),
    Route("commit_cursor", "PUT", f"{LOG}/cursors/c", b'{"offset":0}', JSON),
    Route("delete_cursor", "DELETE", f"{LOG}/cursors/c"),
    Route("list_segments", "GET", f"{LOG}/segments"),
    Route("get_journal", "GET", f"{LOG}/journal"),
    Route("lookup", "GET", "/v1/owners?log=ns/log&log=other"),
    Route("list_servers", "GET", "/v1/servers"),
    Route("get_server_stats", "GET", "/v1/stats"),
    Route("get_limits", "GET", "/v1/limits"),
    Route("get_outage", "GET", "/v1/outage"),
    Route("drain_server", "POST", "/v1/servers/a:drain"),
    Route("drain_server", "POST", "/v1/servers/a:resume"),
)


@dataclass
class Site:
    core: FakeCore
    app: FastAPI
    routing: OwnerRouting

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Returns the whole response."""
        async with self.open(method, path, body, **headers) as stream:
            parts = [part async for part in stream.parts()]
        return Answer(stream.status, stream.headers, b"".join(parts))

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, b"", **headers)

    @asynccontextmanager
    async def open(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> AsyncGenerator["Stream", None]:
        """Opens a streamed response; the client disconnects at the end."""
        stream = Stream(body)
        parts = urlsplit(path)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in names.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        CALLER.set(anybody())
        task = asyncio.ensure_future(self.app(scope, stream.receive, stream.send))
        task.add_done_callback(lambda _: stream.told.put_nowait(None))
        try:
            async with asyncio.timeout(DEADLINE_S):
                yield stream
        finally:
            stream.is_gone.set()
            async with asyncio.timeout(DEADLINE_S):
                await task


class Stream:
    def __init__(self, body: bytes) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.told: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.is_gone = asyncio.Event()
        self.may_send = asyncio.Event()
        self.may_send.set()
        self._body: bytes | None = body

    async def receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.may_send.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.told.put_nowait(message["body"])
            if not message.get("more_body", False):
                self.told.put_nowait(None)

    async def parts(self) -> AsyncGenerator[bytes, None]:
        while (part := await self.told.get()) is not None:
            if part:
                yield part


@dataclass(frozen=True)
class DocumentedRoute:
    """A route as OpenAPI documents it."""

    id: str
    method: str
    path: str
    described: Mapping[str, Any]

    def serves(self, route: Route) -> bool:
        pattern = re.sub(r"\{\w+\}", "[^/:]+", self.path)
        path = route.path.partition("?")[0]
        return route.method == self.method and re.fullmatch(pattern, path) is not None


def operations_of(app: FastAPI) -> list[DocumentedRoute]:
    """Returns all documented routes below `/v1`."""
    return [
        DocumentedRoute(described["operationId"], method.upper(), path, described)
        for path, by_method in app.openapi()["paths"].items()
        for method, described in by_method.items()
        if path.startswith("/v1/")
    ]


def site(url_of: Callable[[str], str] = lambda _: "") -> Site:
    core = FakeCore(FakeCluster())
    core.cluster.addresses["a"] = "127.0.0.1:7400"
    core.cluster.make("ns/log")
    routing = OwnerRouting(AuthorizedService(core), url_of)
    return Site(core, make_app(routing, lambda: True), routing)
