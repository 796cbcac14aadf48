"""Reads the `/metrics` of all members in the metadata for a bundle.

A log server is sent the token of the selected servers only if they list it, because the metadata may belong to
another cluster. The token is never sent in the clear over a network, unless `--insecure` is given. A bookie gets
no token, because its pages for probes do not need one. Redirects are not followed.
"""

import asyncio
import http.client
import io
import ssl
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from rollbook.api.cli.cluster.actions import run_on_store
from rollbook.api.cli.cluster.health import server_records
from rollbook.api.cli.log.connection import LogAccess
from rollbook.proto.client_credential_safety import may_show_token, require_certificate_of
from rollbook.proto.cluster.bookie_watcher import BookieWatcher
from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.errors import RollbookError, ServerUnreachable, Unavailable
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.system_error_text import describe_error
from rollbook.proto.runtime.tls import trusting_context

_PATIENCE_S: Final = 5.0  # The time limit of one scrape, from the first to the last byte.
_BYTES_MAX: Final = 4 << 20
# The limit of a response, with room for headers and chunk sizes.
_ANSWER_BYTES_MAX: Final = _BYTES_MAX + (1 << 20)
_AT_ONCE: Final = 8
_SERVERS_MAX: Final = 100
_CHUNK: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    name: str  # The name of the server and of its file in the bundle.
    url: str  # Empty if the server was configured without pages.
    # A log server's id, because names are not unique across clusters. Empty for a bookie.
    server_id: str = ""

    @property
    def wants(self) -> str:
        """Returns the flag that makes the server serve pages."""
        return "--rest" if self.server_id else "--http"


def places_of(url: str) -> list[ScrapeTarget]:
    async def look(store: MetadataStore, cluster: Cluster) -> list[ScrapeTarget]:
        watcher = BookieWatcher(store, cluster.root)
        await watcher.start()
        await watcher.close()
        live = {**watcher.current.writable, **watcher.current.read_only}
        pages = {name: info.http_address for name, info in live.items()}
        found = [
            ScrapeTarget(f"bookie-{_as_file(name)}", f"http://{address}" if address else "")
            for name, address in sorted(pages.items())
        ]
        servers = await server_records(store, cluster.own_root)
        return found + [
            ScrapeTarget(f"log-server-{_as_file(each.name)}", each.http, each.info.server_id)
            for each in servers
        ]

    return run_on_store(url, look)


def _as_file(name: str) -> str:
    return name.replace("/", "_")


async def gather(
    places: Sequence[ScrapeTarget],
    access: LogAccess,
    known: Collection[str],
    keep: Callable[[str, bytes], None],
) -> dict[str, RollbookError]:
    """Passes each page to `keep` as soon as it has arrived, so that at most `_AT_ONCE` pages are in memory.
    Returns, by server name, why a page is missing or incomplete. `known` has the ids of the log servers that
    may get the token.
    """
    places = [each for each in places if each.url]
    free = asyncio.Semaphore(_AT_ONCE)
    missing: dict[str, RollbookError] = {
        each.name: Unavailable("there are more servers than a bundle has metrics of")
        for each in places[_SERVERS_MAX:]
    }

    async def ask(place: ScrapeTarget) -> None:
        async with free:
            try:
                text = await _fetch(place, access, place.server_id in known)
            except RollbookError as error:
                missing[place.name] = error
                return
            keep(place.name, text[:_BYTES_MAX])
        if len(text) > _BYTES_MAX:
            missing[place.name] = Unavailable(f"only the first {_BYTES_MAX} bytes were kept")

    await asyncio.gather(*map(ask, places[:_SERVERS_MAX]))
    return missing


async def _fetch(place: ScrapeTarget, access: LogAccess, is_known: bool) -> bytes:
    """Raises `RollbookError`."""
    try:
        # Limits the time for the whole page, even if every line arrives slowly.
        async with asyncio.timeout(_PATIENCE_S):
            return await _page(place, access, is_known)
    except TimeoutError as error:
        raise ServerUnreachable(f"{place.url} takes longer than {_PATIENCE_S:g} s") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServerUnreachable(
            f"no server answers at {place.url}: {describe_error(error)}"
        ) from error


async def _page(place: ScrapeTarget, access: LogAccess, is_known: bool) -> bytes:
    parts = urlsplit(place.url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    wire = _Wire()
    connection = http.client.HTTPConnection(host, parts.port or (443 if is_tls else 80))
    connection.sock = wire  # `wire` has the socket methods that HTTPConnection uses.
    shown = _headers(place, access) if is_known else {}
    connection.request("GET", "/metrics", headers={"connection": "close", **shown})
    tls = _tls(access) if is_tls else None
    reader, writer = await asyncio.open_connection(host, connection.port, ssl=tls)
    try:
        writer.write(wire.said)
        while len(wire.answer) < _ANSWER_BYTES_MAX and (chunk := await reader.read(_CHUNK)):
            wire.answer += chunk
    finally:
        writer.transport.abort()
    with connection.getresponse() as answer:
        if answer.status != http.client.OK:
            raise Unavailable(f"{place.url}/metrics answers {answer.status}")
        text = b""
        while len(text) <= _BYTES_MAX and (chunk := answer.read1(_CHUNK)):
            text += chunk
        return text


class _Wire:
    """A socket for HTTPConnection over an asyncio stream, so that any wait can be cancelled."""

    def __init__(self) -> None:
        self.said = b""
        self.answer = bytearray()

    def sendall(self, data: bytes) -> None:
        self.said += data

    def makefile(self, _: str) -> io.BytesIO:
        return io.BytesIO(self.answer)

    def close(self) -> None:
        pass


def _tls(access: LogAccess) -> ssl.SSLContext:
    require_certificate_of(access.tls_key, access.tls_certificate, "--tls-certificate")
    context = trusting_context(access.tls_authorities)
    if access.tls_certificate:
        context.load_cert_chain(access.tls_certificate, access.tls_key)
    return context


def _headers(place: ScrapeTarget, access: LogAccess) -> dict[str, str]:
    token = access.token()
    parts = urlsplit(place.url)
    is_safe = may_show_token(
        parts.hostname or "", uses_tls=parts.scheme == "https", insecure=access.insecure
    )
    return {"authorization": f"Bearer {token}"} if token and is_safe else {}
