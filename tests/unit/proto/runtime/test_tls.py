"""TLS over real sockets. The certificates are valid for a hundred years and are for tests only:
`server-a` and `client-a` are signed by `authority-a`, the others by `authority-b`.
"""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from rollbook.proto.errors import BadConfig, Unavailable
from rollbook.proto.ports import Address
from rollbook.proto.runtime.network import SocketTransport
from rollbook.proto.runtime.tls import (
    TLS_OF_BOOKIES,
    ClientTls,
    TlsFiles,
    client_context,
    server_context,
)

GOLDEN: Final = Path(__file__).parents[3] / "golden" / "tls"
PATIENCE_S: Final = 60.0


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Asker(asyncio.Protocol):
    def __init__(self) -> None:
        self.heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self.heard.done():
            self.heard.set_result(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.heard.done():
            self.heard.set_result(b"")


def golden(name: str) -> str:
    return str(GOLDEN / f"{name}.pem")


@asynccontextmanager
async def served(files: TlsFiles, *oldest: ssl.TLSVersion) -> AsyncIterator[Address]:
    network = SocketTransport(server_tls=server_context(files, *oldest))
    listener = await network.listen(Echo, Address("127.0.0.1", 0))
    yield listener.address
    await listener.close()


async def is_served(
    address: Address, authority: str, client: str = "", *, max_version: ssl.TLSVersion | None = None
) -> bool:
    """Whether a client with this authority and certificate gets an echo."""
    certificate = golden(client) if client else ""
    context = client_context(golden(authority), certificate=certificate)
    if max_version:
        context.maximum_version = max_version
    network = SocketTransport(client_tls=context)
    try:
        transport, asker = await network.connect(Asker, address, timeout_s=PATIENCE_S)
    except Unavailable:
        return False
    assert isinstance(asker, Asker)
    transport.write(b"ping")
    heard = await asyncio.wait_for(asker.heard, PATIENCE_S)
    transport.abort()
    return heard == b"ping"


async def test_client_accepts_only_servers_of_its_authority() -> None:
    async with served(TlsFiles(golden("server-a"))) as address:
        assert await is_served(address, "authority-a")
        assert not await is_served(address, "authority-b")


async def test_server_with_authorities_accepts_only_their_clients() -> None:
    files = TlsFiles(golden("server-a"), authorities=golden("authority-a"))
    async with served(files) as address:
        assert await is_served(address, "authority-a", "client-a")
        assert not await is_served(address, "authority-a", "client-b")
        assert not await is_served(address, "authority-a")


async def test_old_tls_versions_are_accepted_by_bookies_only() -> None:
    """Clients of bookies may be as old as Java 8."""
    files, old = TlsFiles(golden("server-a")), ssl.TLSVersion.TLSv1_2
    async with served(files) as address:
        assert not await is_served(address, "authority-a", max_version=old)
        assert await is_served(address, "authority-a")
    async with served(files, TLS_OF_BOOKIES) as address:
        assert await is_served(address, "authority-a", max_version=old)
        assert await is_served(address, "authority-a")
    assert server_context(files, TLS_OF_BOOKIES).minimum_version is old


async def test_client_without_tls_gets_no_echo() -> None:
    async with served(TlsFiles(golden("server-a"))) as address:
        network = SocketTransport()
        transport, asker = await network.connect(Asker, address, timeout_s=PATIENCE_S)
        assert isinstance(asker, Asker)
        transport.write(b"ping" * 25)
        await asyncio.wait_for(asker.heard, PATIENCE_S)
        assert b"ping" not in asker.heard.result()
        transport.abort()


async def test_renewed_files_apply_to_the_next_connection(tmp_path: Path) -> None:
    """Both certificate and authorities; an older TLS session does not admit a client of the old
    authority, either.
    """
    certificate, authorities = tmp_path / "server.pem", tmp_path / "authorities.pem"

    def put(source: str, target: Path) -> None:
        fresh = tmp_path / "fresh"
        shutil.copy(golden(source), fresh)
        fresh.rename(target)

    put("server-a", certificate)
    put("authority-a", authorities)
    files = TlsFiles(str(certificate), authorities=str(authorities))
    async with served(files) as address:
        assert await is_served(address, "authority-a", "client-a")
        put("server-b", certificate)
        assert await is_served(address, "authority-b", "client-a")
        assert not await is_served(address, "authority-a", "client-a")
        put("authority-b", authorities)
        assert await is_served(address, "authority-b", "client-b")
        assert not await is_served(address, "authority-b", "client-a")


async def test_incomplete_or_missing_files_keep_the_old_certificate(tmp_path: Path) -> None:
    certificate = tmp_path / "server.pem"
    shutil.copy(golden("server-a"), certificate)
    async with served(TlsFiles(str(certificate))) as address:
        certificate.write_bytes(Path(golden("server-b")).read_bytes()[:300])
        assert await is_served(address, "authority-a")
        certificate.unlink()
        assert await is_served(address, "authority-a")
        shutil.copy(golden("server-b"), certificate)
        assert await is_served(address, "authority-b")


def test_unusable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="missing"):
        server_context(TlsFiles(str(tmp_path / "missing")))
    with pytest.raises(BadConfig, match="authority-a"):
        server_context(TlsFiles(golden("authority-a")))  # It has no key.
    with pytest.raises(BadConfig, match="missing"):
        client_context(str(tmp_path / "missing"))


async def test_long_lived_client_reloads_its_files(tmp_path: Path) -> None:
    """An incomplete file keeps the old authorities."""
    authorities = tmp_path / "authorities.pem"
    shutil.copy(golden("authority-b"), authorities)
    network = SocketTransport(client_tls=ClientTls(str(authorities)))

    async def is_believed() -> bool:
        try:
            transport, _ = await network.connect(Asker, address, timeout_s=PATIENCE_S)
        except Unavailable:
            return False
        transport.abort()
        return True

    async with served(TlsFiles(golden("server-a"))) as address:
        assert not await is_believed()
        authorities.write_bytes(Path(golden("authority-a")).read_bytes())
        assert await is_believed()
        authorities.write_bytes(Path(golden("authority-b")).read_bytes()[:200])
        assert await is_believed()
        with pytest.raises(BadConfig, match=r"authorities\.pem"):
            ClientTls(str(authorities))
