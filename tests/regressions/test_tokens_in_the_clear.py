"""Commands send no token in the clear to another machine, even if the metadata names it."""

import asyncio
import random
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.formats.service_info import describe_bookie, pack_service_info
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import Address
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.regressions.defects import defect
from tests.support import commands

_TOKEN: Final = "token-of-the-pages-0123456789"
_ELSEWHERE: Final = "0.0.0.0"  # Not a loopback address, but Linux connects it to this machine.
_ANSWER: Final = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class _Listener:
    """Listens at the address that the metadata names, and records what it receives."""

    def __init__(self) -> None:
        self.heard = b""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(60.0)
                self.heard += connection.recv(65536)
                connection.sendall(_ANSWER)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


@pytest.fixture
def listener() -> Iterator[_Listener]:
    found = _Listener()
    yield found
    found.close()


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{_TOKEN}\n")
    path.chmod(0o600)
    return str(path)


@asynccontextmanager
async def _cluster(folder: Path, listener: _Listener) -> AsyncIterator[str]:
    """The URL of a cluster whose metadata registers the listener as the admin pages of bk-1."""
    url = f"sqlite://{folder}/metadata.db"
    async with await open_metadata_store(url, create=True, serve=True) as store:
        root = MetadataUrl.parse(url).ledgers_root
        await initialise(store, root, random.SystemRandom())
        info = describe_bookie(Address("127.0.0.1", 1), http=Address(_ELSEWHERE, listener.port))
        await store.create(f"{root}/available/bk-1", pack_service_info(info))
        yield url


@defect(
    "token-of-bookie-pages-in-the-clear",
    "`rollbook bookie` and `recovery heal` sent their token in the clear to any address.",
)
async def test_heal_sends_no_token_to_an_address_that_metadata_names(
    tmp_path: Path, listener: _Listener, token_file: str
) -> None:
    async with _cluster(tmp_path, listener) as url:
        environment = {"ROLLBOOK_METADATA": url}
        heal = ("recovery", "heal", "bk-1", "--token-file", token_file)
        done = await asyncio.to_thread(commands.run, *heal, environment=environment)
        assert _TOKEN.encode() not in listener.heard
        assert done.returncode == 2
        assert b"in the clear" in done.stderr
        assert b"--insecure" in done.stderr
        await asyncio.to_thread(commands.run, *heal, "--insecure", environment=environment)
        assert _TOKEN.encode() in listener.heard


@defect(
    "token-of-bookie-pages-in-the-clear",
    "`rollbook bookie` and `recovery heal` sent their token in the clear to any address.",
)
def test_bookie_commands_send_no_token_to_another_machine(
    listener: _Listener, token_file: str
) -> None:
    info = ("bookie", "info", "--token-file", token_file, "--http")
    done = commands.run(*info, f"http://{_ELSEWHERE}:{listener.port}")
    assert _TOKEN.encode() not in listener.heard
    assert done.returncode == 2
    assert b"--insecure" in done.stderr
    commands.run(*info, f"http://127.0.0.1:{listener.port}")
    assert _TOKEN.encode() in listener.heard
