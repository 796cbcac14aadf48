"""Failures specific to the ZooKeeper store: its server, its thread, TLS and credentials."""

import asyncio
import logging
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import EXCEPTIONS, NodeExistsError, SessionExpiredError
from kazoo.protocol.serialization import SetData

from rollbook.proto.errors import (
    BadConfig,
    ConnectionLost,
    MetadataUnavailable,
    NodeExists,
    OutcomeUnknown,
    Unauthorized,
)
from rollbook.proto.metastore.url import MetadataUrl, ZooKeeperOptions
from rollbook.proto.ports import (
    Create,
    CreateMode,
    MetadataStore,
    SessionState,
    WatchEvent,
    WatchEventKind,
)
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.metastore.kazoo_link import _Handler
from rollbook.proto.runtime.metastore.zookeeper import ZooKeeperStore
from tests.contract.stores import hurried, next_event, until_state
from tests.support.cutting_proxy import ZOOKEEPER, CuttingProxy, Direction
from tests.support.zookeeper import (
    LocalZooKeeper,
    ZooKeeperServer,
    ZooKeeperTree,
    free_port,
    running_or_skipped,
)

SESSION_TIMEOUT_S = 10.0  # Long enough for a busy machine.
SOON_NOTICED_S = 2.0  # Session time-out of clients that must notice a silent server.
PATIENCE_S = 60.0
IMPATIENT_S = 1.0  # The time-out of operations that must time out.


def make(
    tree: ZooKeeperTree, address: str = "", session_timeout_s: float = SESSION_TIMEOUT_S
) -> ZooKeeperStore:
    return ZooKeeperStore(
        address or tree.server.address, chroot=tree.chroot, session_timeout_s=session_timeout_s
    )


def impatient(store: ZooKeeperStore) -> AbstractContextManager[None]:
    return hurried(store, IMPATIENT_S)


@pytest.fixture
async def store(zookeeper: ZooKeeperTree) -> AsyncIterator[ZooKeeperStore]:
    async with await make(zookeeper).open() as store:
        yield store


@pytest.fixture
def server(zookeeper_server: ZooKeeperServer) -> Iterator[LocalZooKeeper]:
    """A server that may fail; it serves again afterwards."""
    if not isinstance(zookeeper_server, LocalZooKeeper):
        pytest.skip("zk: this server must not fail; to enable: unset ROLLBOOK_TEST_ZK")
    yield zookeeper_server
    zookeeper_server.ensure_serving()


@pytest.fixture
def proxy(zookeeper: ZooKeeperTree) -> Iterator[CuttingProxy]:
    with CuttingProxy(zookeeper.server.address, ZOOKEEPER) as proxy:
        yield proxy


# --- A server that fails --------------------------------------------------------------------------


async def test_store_survives_a_server_restart(
    server: LocalZooKeeper, store: ZooKeeperStore
) -> None:
    """The session survives, too, if the server still knows it: a server that accepts connections
    before it has loaded its database reports every session as expired.
    """
    states = store.session_events()
    session = (await until_state(states, SessionState.CONNECTED)).session
    await store.create("/e", b"", CreateMode.EPHEMERAL)
    watch = await store.watch("/e")
    server.kill()
    await until_state(states, SessionState.SUSPENDED)
    with impatient(store), pytest.raises(MetadataUnavailable):
        await store.set("/e", b"never sent")
    await asyncio.to_thread(server.start)
    kept = (await until_state(states, SessionState.CONNECTED)).session == session
    assert await next_event(watch) == WatchEvent(WatchEventKind.RESYNC, "/e")
    node = await store.get("/e")
    if not kept:
        assert (
            node is None or node.stat.owner == session
        )  # The node is about to be deleted, or deleted.
        return
    assert node is not None
    assert (node.stat.owner, node.value) == (session, b"")
    await store.set("/e", b"seen")
    assert await next_event(watch) == WatchEvent(WatchEventKind.CHANGED, "/e")


async def test_hanging_server_suspends_the_session(
    server: LocalZooKeeper, zookeeper: ZooKeeperTree
) -> None:
    async with await make(zookeeper, session_timeout_s=SOON_NOTICED_S).open() as store:
        await store.create("/a")
        states = store.session_events()
        await until_state(states, SessionState.CONNECTED)
        server.pause()
        with pytest.raises(ConnectionLost):
            await store.set("/a", b"perhaps")
        await until_state(states, SessionState.SUSPENDED)
        with impatient(store), pytest.raises(MetadataUnavailable):
            await store.set("/a", b"never sent")
        server.resume()
        await until_state(states, SessionState.CONNECTED)
        node = await store.get("/a")
        assert node is not None
        assert node.value in (b"", b"perhaps")


async def test_requests_do_not_keep_a_dead_connection_alive(
    proxy: CuttingProxy, zookeeper: ZooKeeperTree
) -> None:
    """A busy client must learn of a loss as soon as an idle one."""
    async with await make(zookeeper, proxy.address, SOON_NOTICED_S).open() as store:
        states = store.session_events()
        await until_state(states, SessionState.CONNECTED)
        proxy.hold(Direction.TO_CLIENT)
        asking = asyncio.create_task(_ask_all_the_time(store))
        await until_state(states, SessionState.SUSPENDED)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        proxy.resume()


async def _ask_all_the_time(store: MetadataStore) -> None:
    under_way: list[asyncio.Task[None]] = []
    try:
        while True:
            under_way.append(asyncio.create_task(store.sync()))
            await asyncio.sleep(0.05)
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


# --- kazoo's thread -------------------------------------------------------------------------------


async def test_close_leaves_no_thread(server: LocalZooKeeper, zookeeper: ZooKeeperTree) -> None:
    before = threading.active_count()
    store = await make(zookeeper).open()
    hung = await make(zookeeper).open()
    assert threading.active_count() == before + 2
    await store.close()
    assert threading.active_count() == before + 1
    server.pause()
    with impatient(hung):
        await hung.close()
    assert threading.active_count() == before
    server.resume()


async def test_close_without_a_connection_is_fast(
    proxy: CuttingProxy, zookeeper: ZooKeeperTree
) -> None:
    before = threading.active_count()
    store = await make(zookeeper, proxy.address).open()
    states = store.session_events()
    proxy.pause()  # New connections are accepted but get no response.
    proxy.cut()
    await until_state(states, SessionState.SUSPENDED)
    async with asyncio.timeout(store._timeout_s / 2):
        await store.close()
    assert threading.active_count() == before


async def test_open_without_a_server_raises_and_leaves_no_thread(zookeeper: ZooKeeperTree) -> None:
    before = threading.active_count()
    store = make(zookeeper, "127.0.0.1:1")
    with impatient(store), pytest.raises(MetadataUnavailable, match=r":1 .* refused"):
        await store.open()
    assert threading.active_count() == before


async def test_a_new_session_follows_when_the_thread_dies(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo's thread ends on any exception that kazoo does not expect."""
    states = store.session_events()
    first = await until_state(states, SessionState.CONNECTED)
    watch = await store.watch("/a")
    connection = store._link._client._connection

    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("xids do not match")

    monkeypatch.setattr(connection, "_read_response", fail)
    with pytest.raises(ConnectionLost):
        await store.create("/a")
    assert (await until_state(states, SessionState.EXPIRED)).session == first.session
    second = await until_state(states, SessionState.CONNECTED)
    assert second.session not in (first.session, 0)
    while (await next_event(watch)).kind is not WatchEventKind.RESYNC:
        pass
    with pytest.raises(NodeExists):
        await store.create("/a")


async def test_unknown_error_code_fails_only_its_request(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session
    monkeypatch.delitem(EXCEPTIONS, NodeExistsError.code)
    await store.create("/a")
    with pytest.raises(OutcomeUnknown):
        await store.create("/a")
    with pytest.raises(OutcomeUnknown):
        await store.transaction([Create("/a")])
    assert await store.get("/a") is not None
    assert store.session == session


async def test_new_session_keeps_the_last_seen_transaction(store: ZooKeeperStore) -> None:
    """The client must not connect to a replica that lags behind it; kazoo itself would forget it."""
    await store.create("/a")
    client = store._link._client
    seen = client.last_zxid
    assert seen > 0
    client._reset()  # kazoo does this when a session has expired.
    assert client.last_zxid == seen


async def test_request_timed_out_before_sending_is_not_sent(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session outlasts two calls that time out."""
    await store.create("/a")
    held, released = threading.Event(), threading.Event()
    handler = store._link._handler
    select = handler.select

    def hold(*arguments: Any) -> object:
        held.set()
        released.wait()
        return select(*arguments)

    monkeypatch.setattr(handler, "select", hold)
    try:
        with impatient(store):
            nudged = await asyncio.gather(store.sync(), return_exceptions=True)
            # The thread is held before or after it sent the sync.
            assert await asyncio.to_thread(held.wait, PATIENCE_S), nudged
            with pytest.raises(MetadataUnavailable):
                await store.set("/a", b"never sent")
    finally:
        monkeypatch.undo()
        released.set()
    node = await store.get("/a")
    assert node is not None
    assert node.stat.version == 0


async def test_a_request_of_another_session_is_not_sent(
    zookeeper: ZooKeeperTree, store: ZooKeeperStore
) -> None:
    """The event loop may learn late that a session has expired; its requests must not be sent."""
    await store.create("/a")
    request = SetData(f"{zookeeper.chroot}/a", b"never sent", -1)
    reply = store._link.send(request, store.session + 1)
    with pytest.raises(SessionExpiredError):
        await reply.future
    node = await store.get("/a")
    assert node is not None
    assert node.stat.version == 0


async def test_thousand_concurrent_writes_are_applied_in_order(store: ZooKeeperStore) -> None:
    await store.create("/a")
    stats = await asyncio.gather(*(store.set("/a", b"") for _ in range(1000)))
    assert [stat.version for stat in stats] == list(range(1, 1001))


# --- Watches --------------------------------------------------------------------------------------


async def test_children_are_reported_by_servers_with_one_watch_per_path(
    store: ZooKeeperStore, zookeeper: ZooKeeperTree
) -> None:
    """Before 3.9, a recursive watch replaces a plain one, which reported changes of children."""
    plain, recursive = await store.watch("/a"), await store.watch("/a", recursive=True)
    store.on_change(1, f"{zookeeper.chroot}/a/x")  # The only event that such a server sends.
    assert await next_event(recursive) == WatchEvent(WatchEventKind.CREATED, "/a/x")
    assert await next_event(plain) == WatchEvent(WatchEventKind.CHILDREN, "/a")


async def test_server_watch_is_removed_with_its_last_reader(
    store: ZooKeeperStore, zookeeper: ZooKeeperTree
) -> None:
    path = f"{zookeeper.chroot}/a"
    one, other = await store.watch("/a"), await store.watch("/a")
    await one.close()
    assert path in zookeeper.server.ask("wchp")
    await other.close()
    assert path not in zookeeper.server.ask("wchp")


# --- TLS and credentials --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server certificate only for 127.0.0.1, and an unrelated authority."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("authority", "stranger"):
        _openssl(
            folder,
            f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name}"
            f" -keyout {name}.key -out {name}.pem",
        )
    _openssl(folder, "req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    _openssl(
        folder,
        "x509 -req -in csr -CA authority.pem -CAkey authority.key -CAcreateserial"
        " -days 2 -extfile names -out server.crt",
    )
    (folder / "server.pem").write_text(
        (folder / "server.key").read_text() + (folder / "server.crt").read_text()
    )
    return folder


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def tls_port(certificates: Path) -> Iterator[int]:
    """The port of a TLS server that requires client certificates of its authority."""
    port = free_port()
    config = (
        f"secureClientPort={port}",
        "secureClientPortAddress=127.0.0.1",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"ssl.keyStore.location={certificates}/server.pem",
        "ssl.keyStore.type=PEM",
        f"ssl.trustStore.location={certificates}/authority.pem",
        "ssl.trustStore.type=PEM",
        "ssl.clientAuth=need",
    )
    with running_or_skipped(config):
        yield port


async def test_requests_over_tls_succeed(certificates: Path, tls_port: int) -> None:
    async with await _open_tls(certificates, tls_port) as store:
        await store.create("/a")
        await asyncio.gather(*(store.get("/a") for _ in range(500)))


@pytest.mark.parametrize(
    ("host", "authority", "shows_certificate"),
    [
        ("127.0.0.1", "stranger", True),
        ("localhost", "authority", True),
        ("127.0.0.1", "authority", False),
    ],
)
async def test_tls_with_a_wrong_or_missing_certificate_is_refused(
    certificates: Path, tls_port: int, host: str, authority: str, shows_certificate: bool
) -> None:
    told, timeout_s = "it does not answer", IMPATIENT_S
    async with asyncio.timeout(PATIENCE_S):
        while told.endswith(
            "it does not answer"
        ):  # On a busy machine no attempt may have ended yet.
            with pytest.raises(MetadataUnavailable) as caught:
                await _open_tls(
                    certificates,
                    tls_port,
                    host=host,
                    authority=authority,
                    shows_certificate=shows_certificate,
                    operation_timeout_s=timeout_s,
                )
            told, timeout_s = caught.value.message, 2 * timeout_s
    assert re.search(r"(?i)certificate|ssl", told)


def test_select_reports_data_that_tls_has_decrypted(certificates: Path) -> None:
    """Two responses in one TLS record: the socket does not become readable for the second one."""
    ours, theirs = socket.socketpair()
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificates / "server.pem")
    client_context = ssl.create_default_context(cafile=certificates / "authority.pem")

    def serve() -> None:
        with server_context.wrap_socket(theirs, server_side=True) as server:
            server.sendall(b"12")
            read.wait()

    read = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    with client_context.wrap_socket(ours, server_hostname="127.0.0.1") as client:
        assert client.recv(1) == b"1"
        ready, _, _ = _Handler(read.set, None).select([client], [], [], 0.01)
        read.set()
        assert ready == [client]
    thread.join()


async def test_unusable_tls_files_are_a_bad_config(certificates: Path) -> None:
    with pytest.raises(BadConfig, match="TLS files"):
        await _open_tls(certificates, 1, authority="nobody")


async def _open_tls(
    certificates: Path,
    port: int,
    *,
    host: str = "127.0.0.1",
    authority: str = "authority",
    shows_certificate: bool = True,
    operation_timeout_s: float = 10.0,
) -> MetadataStore:
    url = f"zk://{host}:{port}/ledgers?ca={certificates}/{authority}.pem"
    if shows_certificate:
        url += f"&cert={certificates}/server.pem"
    return await open_metadata_store(url, operation_timeout_s=operation_timeout_s)


async def test_nodes_made_with_credentials_are_closed_to_other_clients(
    zookeeper: ZooKeeperTree,
    store: ZooKeeperStore,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    url = MetadataUrl.parse("zk://h/ledgers?auth=digest:me:sesame")
    own = ZooKeeperStore(zookeeper.server.address, url.options, chroot=zookeeper.chroot)
    async with await own.open():
        await own.create("/mine", b"1")
        await own.set("/mine", b"2")
        for asked in (store.get("/mine"), store.set("/mine", b""), store.create("/mine/a")):
            with pytest.raises(Unauthorized):
                await asked
        await own.delete("/mine")
    printed = capsys.readouterr()
    assert "sesame" not in caplog.text + printed.out + printed.err


async def test_refused_credentials_raise_unauthorized(zookeeper: ZooKeeperTree) -> None:
    before = threading.active_count()
    options = ZooKeeperOptions(auth=("unheard-of", "sesame"))
    with pytest.raises(Unauthorized, match=zookeeper.server.address):
        await ZooKeeperStore(zookeeper.server.address, options).open()
    assert threading.active_count() == before


async def test_sasl_without_its_package_names_the_package(zookeeper: ZooKeeperTree) -> None:
    with pytest.raises(BadConfig, match="pure-sasl"):
        ZooKeeperStore("h:1", ZooKeeperOptions(sasl=("DIGEST-MD5", "me", "sesame")))
