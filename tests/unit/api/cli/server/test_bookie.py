"""`rollbook server bookie` as real processes, on both kinds of metadata store."""

import asyncio
import json
import os
import random
import re
import resource
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from rollbook.api.cli.main import exit_code, rollbook
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.cluster.ledger_ids import LedgerIds
from rollbook.proto.errors import ConnectionLost, NoSuchLedger, RollbookError
from rollbook.proto.formats.service_info import unpack_service_info
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import Address, MetadataStore
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.storage_failed_exit_code import EXIT_STORAGE_FAILED
from rollbook.proto.runtime.tls import TlsFiles
from rollbook.proto.wire.add_columns import AddReplies
from rollbook.proto.wire.messages import EntryRead, ReadReply
from tests.support import bookies, processes
from tests.support.bookie_client import BookieClient, connect
from tests.support.bookies import PATIENCE_S, RunningBookie
from tests.support.certificates import Authority
from tests.support.processes import Family

ID = BookieId("bk-1")
LONG_SESSION = {"ROLLBOOK_SESSION_TIMEOUT_S": "600"}  # Longer than any test: no session expires.
PAYLOAD = b"payload"
MIB = 1024 * 1024


@pytest.fixture
def children() -> Iterator[Family]:
    with processes.family() as family:
        yield family


@pytest.fixture(params=["sqlite", "zk"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The metadata URL of a new cluster."""
    if request.param == "sqlite":
        found = f"sqlite://{tmp_path}/metadata.db"
    else:
        tree = request.getfixturevalue("zookeeper")
        found = f"zk+hierarchical://{tree.server.address}{tree.chroot}/deep/root"
    make_cluster(found)
    return found


@pytest.fixture
def local_url(tmp_path: Path) -> str:
    found = f"sqlite://{tmp_path}/metadata.db"
    make_cluster(found)
    return found


def make_cluster(url: str) -> None:
    async def make() -> None:
        place = MetadataUrl.parse(url)
        async with await open_metadata_store(place, create=True) as store:
            await initialise(store, place.ledgers_root, random.SystemRandom())
            await LedgerIds(store, place.ledgers_root).skip()  # Ledgers here have no metadata.

    asyncio.run(make())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "rollbook.api.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@asynccontextmanager
async def looking(url: str) -> AsyncIterator[tuple[MetadataStore, str]]:
    """Open the store, served by a bookie or ZooKeeper; yields it and the ledgers root."""
    async with await open_metadata_store(url, visit=True) as store:
        yield store, "/" + url.partition("://")[2].partition("/")[2] if "zk" in url else "/ledgers"


async def is_registered(url: str, folder: str = "available") -> bool:
    async with looking(url) as (store, root):
        return await store.get(f"{root}/{folder}/{ID}") is not None


async def write_and_read(address: Address, ledger_id: int) -> None:
    async with await connect(address, version=3) as client:
        answered: asyncio.Future[AddReplies] = asyncio.get_running_loop().create_future()
        client.on_adds = answered.set_result
        client.send(client.ledger(ledger_id).pack(0, NO_ENTRY, PAYLOAD))
        async with asyncio.timeout(PATIENCE_S):
            assert (await answered).error is None
    await read(address, ledger_id)


async def read(address: Address, ledger_id: int) -> None:
    async with await connect(address, version=3) as client:
        reply = await client.call(EntryRead(LedgerId(ledger_id), EntryId(0)))
        assert isinstance(reply, ReadReply)
        assert reply.error is None
        assert reply.body is not None
        assert bytes(reply.body).endswith(PAYLOAD)


# --- Life -------------------------------------------------------------------------------------


async def test_bookie_unregisters_on_sigterm_and_keeps_entries(
    url: str, tmp_path: Path, children: Family
) -> None:
    """SIGTERM ends the session at once, however long its time-out is."""
    for life in range(2):
        bookie = bookies.start(children, tmp_path / "b", url, environment=LONG_SESSION)
        address = bookie.wait_ready()
        assert await is_registered(url)
        if not life:
            await write_and_read(address, 7)
        await read(address, 7)
        bookie.terminate()
        assert bookie.wait() == 0
        assert not await is_registered(url)


async def test_killed_bookie_restarts_before_its_session_expires(
    url: str, tmp_path: Path, children: Family
) -> None:
    """RG2: the lock on its directories proves that no other process has its id."""
    bookie = bookies.start(children, tmp_path / "b", url, environment=LONG_SESSION)
    await write_and_read(bookie.wait_ready(), 7)
    bookie.kill()
    assert await is_registered(url)  # Its session has not expired yet.
    bookie = bookies.start(children, tmp_path / "b", url, environment=LONG_SESSION)
    await read(bookie.wait_ready(), 7)
    bookie.terminate()
    assert bookie.wait() == 0
    assert not await is_registered(url)


async def test_bookie_registers_again_after_its_session_expired(
    url: str, tmp_path: Path, children: Family
) -> None:
    """The other bookie serves the embedded store while the first one is stopped."""
    host = bookies.start(children, tmp_path / "host", url, bookie_id="host")
    host.wait_ready()
    short = {"ROLLBOOK_SESSION_TIMEOUT_S": "1"}
    bookie = bookies.start(children, tmp_path / "b", url, environment=short)
    bookie.wait_ready()
    bookie.stop()
    async with asyncio.timeout(PATIENCE_S):
        while await is_registered(url):
            await asyncio.sleep(0.1)
    bookie.resume()
    async with asyncio.timeout(PATIENCE_S):
        while not await is_registered(url):
            await asyncio.sleep(0.1)
    assert bookie.is_running


async def test_several_bookies_live_on_one_host(
    local_url: str, tmp_path: Path, children: Family
) -> None:
    names = ["bk-1", "bk-2", "bk-3"]
    running = [
        bookies.start(children, tmp_path / name, local_url, bookie_id=name, ledger_dirs=2)
        for name in names
    ]
    for number, address in enumerate(bookies.serving(running)):
        await write_and_read(address, number)
    shown = run("cluster", "info", "--metadata", local_url, "-o", "json")
    found = json.loads(shown.stdout)["bookies"]
    assert [(each["id"], each["state"]) for each in found] == [(n, "writable") for n in names]
    for bookie in running:
        bookie.terminate()
    assert [bookie.wait() for bookie in running] == [0, 0, 0]


async def test_bookie_starts_from_a_bk_server_conf(
    zookeeper: object, tmp_path: Path, children: Family
) -> None:
    tree = zookeeper
    server, chroot = tree.server, tree.chroot  # type: ignore[attr-defined]  # See the fixture.
    root = f"{chroot}/x/ledgers"
    await asyncio.to_thread(make_cluster, f"zk://{server.address}{root}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "bk_server.conf"
    config.write_text(
        "\n".join(
            (
                "# A bookie as BookKeeper has it",
                f"bookiePort={port}",
                "advertisedAddress = 127.0.0.1",
                "allowLoopback: true",
                f"metadataServiceUri=zk+hierarchical://{server.address};{server.address}\\",
                f"    {root}",
                f"journalDirectories={tmp_path}/journal",
                f"ledgerDirectories={tmp_path}/ledgers1,{tmp_path}/ledgers2",
                "diskUsageThreshold=0.999",
                "ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
                "zkTimeout=10000",
                "forceReadOnlyBookie=true",
                "",
            )
        )
    )
    command = (sys.executable, "-m", "rollbook.api.cli.main", "server", "bookie")
    bookie = RunningBookie(children.start(*command, "--config", str(config)))
    assert bookie.wait_ready() == Address("127.0.0.1", port)
    async with looking(f"zk://{server.address}{root}") as (store, _):
        name = BookieId(f"127.0.0.1:{port}")
        node = await store.get(f"{root}/available/readonly/{name}")
        assert node
        assert unpack_service_info(name, node.value).address == bookie.address
        assert await store.get(f"{root}/cookies/{name}")
        assert await store.get(f"{root}/available/{name}") is None
    assert (tmp_path / "ledgers2" / "VERSION").exists()


async def test_journal_failure_ends_the_bookie_with_its_exit_code(
    local_url: str, tmp_path: Path, children: Family
) -> None:
    """B6."""
    bookie = bookies.start(children, tmp_path / "b", local_url)
    address = bookie.wait_ready()
    resource.prlimit(bookie.pid, resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
    async with await connect(address, version=3) as client:
        ledger = client.ledger(7)
        for entry_id in range(3):
            client.send(ledger.pack(entry_id, entry_id - 1, bytes(MIB)))
        with suppress(ConnectionLost):
            await client.drain()
        await client.lost
        assert bookie.wait() == EXIT_STORAGE_FAILED


async def test_mutual_tls_accepts_only_trusted_client_certificates(
    local_url: str, tmp_path: Path, children: Family
) -> None:
    """Clients with no certificate, or one of another authority, are refused."""
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = Authority.make(tmp_path / "ours"), Authority.make(tmp_path / "theirs")
    own = ours.issue("bookie", "IP:127.0.0.1")
    tls = (
        "--tls-listen",
        "127.0.0.1:0",
        "--tls-authorities",
        ours.certificate,
        "--tls-certificate",
        own.certificate,
        "--tls-key",
        own.key,
    )
    bookies.start(children, tmp_path / "b", local_url, *tls).wait_ready()
    async with looking(local_url) as (store, root):
        node = await store.get(f"{root}/available/bk-1")
    assert node
    address = unpack_service_info(BookieId("bk-1"), node.value).tls_address
    assert address
    known = ours.issue("client", "IP:127.0.0.1")
    assert await ask_behind_tls(address, ours, known) is NoSuchLedger
    for shown in (theirs.issue("client", "IP:127.0.0.1"), None):
        with pytest.raises((ConnectionLost, OSError)):
            await ask_behind_tls(address, ours, shown)


async def ask_behind_tls(
    address: Address, authority: Authority, shown: TlsFiles | None
) -> type[RollbookError] | None:
    """Read a missing ledger over TLS; returns the error of the reply."""
    context = ssl.create_default_context(cafile=authority.certificate)
    if shown:
        context.load_cert_chain(shown.certificate, shown.key)
    _, client = await asyncio.get_running_loop().create_connection(
        lambda: BookieClient(3), address.host, address.port, ssl=context
    )
    async with client:
        reply = await client.call(EntryRead(LedgerId(9), EntryId(0)))
    assert isinstance(reply, ReadReply)
    return reply.error


async def test_connections_are_limited_by_the_file_limit(
    local_url: str, tmp_path: Path, children: Family
) -> None:
    """Otherwise the store could not open its next file, and the bookie would have to exit."""
    command = [sys.executable, "-m", "rollbook.api.cli.main"]
    command += bookies.arguments(tmp_path / "b", local_url)
    shell = ("sh", "-c", 'ulimit -n 900 && exec "$@"', "sh")
    bookie = RunningBookie(children.start(*shell, *command))
    address = bookie.wait_ready()
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(socket.create_connection((address.host, address.port)))
        async with asyncio.timeout(PATIENCE_S):
            while bookie.open_files > 300:  # Surplus connections are closed.
                await asyncio.sleep(0.05)
    async with asyncio.timeout(PATIENCE_S):
        while bookie.open_files > 100:
            await asyncio.sleep(0.05)
    await write_and_read(address, 7)
    assert bookie.is_running


def refusal_of(*command: str) -> RollbookError:
    """Run a command in this process: starting a new one would take seconds."""
    with pytest.raises(RollbookError) as refused:
        rollbook(command, standalone_mode=False)
    return refused.value


# --- Refusals ---------------------------------------------------------------------------------


async def test_advice_to_a_wiped_bookie_works(
    local_url: str, tmp_path: Path, children: Family
) -> None:
    """B8."""
    folder = tmp_path / "b"
    bookie = bookies.start(children, folder, local_url)
    await write_and_read(bookie.wait_ready(), 7)
    bookie.terminate()
    assert bookie.wait() == 0
    shutil.rmtree(folder)
    refused = run(*bookies.arguments(folder, local_url))
    assert refused.returncode == 4
    assert "WRONG_BOOKIE" in refused.stderr
    assert not folder.exists()
    remedy = refused.stderr.partition("if they are permanently lost: ")[2].strip()
    words = shlex.split(remedy)
    doctor = run("bookie", "doctor", *words[3:])
    assert doctor.returncode == 8
    assert remedy in doctor.stdout
    assert run(*words[1:]).returncode == 2  # It asks for confirmation, but has no terminal.
    assert run(*words[1:], "--yes").returncode == 0
    assert run("bookie", "doctor", *words[3:]).returncode == 0
    bookies.start(children, folder, local_url).wait_ready()


async def test_second_process_on_the_same_directories_is_refused(
    local_url: str, tmp_path: Path, children: Family
) -> None:
    bookie = bookies.start(children, tmp_path / "b", local_url)
    bookie.wait_ready()
    second = run(*bookies.arguments(tmp_path / "b", local_url))
    assert (second.returncode, "DIRECTORY_IN_USE" in second.stderr) == (4, True)
    assert bookie.is_running


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--listen", "0.0.0.0:0", "--advertise", "h:1"], "--insecure"),
        (["--listen", "here:there"], "not host:port"),
        (["--tls-listen", "127.0.0.1:0"], "TLS needs tls_certificate"),
        (["--tls-key", "key.pem"], "TLS needs tls_certificate"),
        (["--journal-dir", "/tmp/another"], "one journal directory"),
        (["--bookie-id", "a/b"], "bookie id"),
        (["--metadata", "memory:"], "gone when this process ends"),
        (["--metadata", "nonsense"], "metadata URL"),
        (["--config", "/does/not/exist.toml"], "cannot read"),
    ],
)
def test_invalid_bookie_settings_are_refused(
    local_url: str, tmp_path: Path, flags: list[str], message: str
) -> None:
    refused = refusal_of(*bookies.arguments(tmp_path / "b", local_url), *flags)
    assert (exit_code(refused), message in str(refused)) == (2, True)
    assert not (tmp_path / "b").exists()


def test_port_in_use_is_named_in_the_error(local_url: str, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = refusal_of(*bookies.arguments(tmp_path / "b", local_url, listen=address))
    assert (exit_code(refused), address in str(refused)) == (2, True)
    assert not (tmp_path / "b").exists(), (
        "on another port the directories would be of another bookie"
    )


def test_failed_start_reports_its_reason_once(local_url: str, tmp_path: Path) -> None:
    """The last lines have the reason and the next step; the log before them has no errors."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        http = ("--http", f"127.0.0.1:{taken.getsockname()[1]}")
        refused = run(*bookies.arguments(tmp_path / "b", local_url), *http)
    *log, error, outcome, advice = refused.stderr.splitlines()
    assert outcome.startswith("  outcome: not applied")
    assert refused.returncode == 2
    assert refused.stderr.count("in use") == 1
    assert error == f"error: cannot listen on {http[1]}: Address already in use [BAD_CONFIG]"
    assert advice == "  try: stop the process that has this port, or choose another one"
    events = [json.loads(line) for line in log]
    assert {each["level"] for each in events} == {"info"}
    assert events[-1]["event"] == "bookie_stopped"


def test_bookie_without_a_cluster_is_refused(tmp_path: Path) -> None:
    refused = refusal_of(*bookies.arguments(tmp_path / "b", f"sqlite://{tmp_path}/none.db"))
    assert (exit_code(refused), "rollbook cluster init" in str(refused)) == (3, True)


# --- Settings ---------------------------------------------------------------------------------


async def test_flags_override_environment_which_overrides_file(
    local_url: str, tmp_path: Path, children: Family
) -> None:
    config = tmp_path / "bookie.toml"
    config.write_text(
        f"""
[bookie]
metadata = "{local_url}"
bookie_id = "of-the-file"
listen = "127.0.0.1:0"
read_only = true

[storage]
journal_dir = "{tmp_path}/j-of-the-file"
ledger_dirs = ["{tmp_path}/l1", "{tmp_path}/l2"]
cache_bytes = 1048576
"""
    )
    command = (sys.executable, "-m", "rollbook.api.cli.main", "server", "bookie")
    environment = {
        "ROLLBOOK_CONFIG": str(config),
        "ROLLBOOK_BOOKIE_ID": "of-the-environment",
        "ROLLBOOK_JOURNAL_DIR": f"{tmp_path}/j-of-the-environment",
    }
    child = children.start(*command, "--bookie-id", "of-the-flag", environment=environment)
    assert child.line(PATIENCE_S).startswith("ready: bookie of-the-flag on 127.0.0.1:")
    assert (tmp_path / "j-of-the-environment" / "VERSION").exists()
    assert not (tmp_path / "j-of-the-file").exists()
    assert (tmp_path / "l2" / "VERSION").exists()
    async with looking(local_url) as (store, _):
        assert await store.get("/ledgers/available/readonly/of-the-flag")


def test_an_unknown_key_is_refused(
    local_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "bookie.toml"
    config.write_text("[storage]\nchache_bytes = 1\n")
    command = bookies.arguments(tmp_path / "b", local_url)
    assert "chache_bytes" in str(refusal_of(*command, "--config", str(config)))
    monkeypatch.setenv("ROLLBOOK_STORAGE_CHACHE_BYTES", "1")
    assert "CHACHE_BYTES" in str(refusal_of(*command))


@pytest.mark.parametrize("command", ["server", "server bookie", "bookie init", "bookie doctor"])
def test_help_ends_in_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    rollbook([*command.split(), "--help"], standalone_mode=False)
    assert re.search(r"Examples:\n +rollbook", capsys.readouterr().out)
