"""`rollbook dev` and `rollbook server log` as processes, used with the Python client."""

import asyncio
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollbook
from rollbook.api.cli.dev import local_cluster as local_cluster_module
from rollbook.api.cli.dev.local_cluster import SMALL, local_cluster, usual_or_free
from rollbook.api.cli.dev.run import run_all, run_dev
from rollbook.api.cli.server import log as log_server
from rollbook.api.cli.server.log import addresses_of
from rollbook.logservice.config import LogServerConfig
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.errors import BadConfig, RollbookError
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import Address
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.storage_failed_exit_code import EXIT_STORAGE_FAILED
from tests.messages import raises_message
from tests.support import bookies, processes
from tests.support.processes import Child, Family

PATIENCE_S = 60.0
MAIN = "rollbook.api.cli.main"


@pytest.fixture
def children() -> Iterator[Family]:
    with processes.family() as family:
        yield family


def lines_until_ready(child: Child) -> dict[str, str]:
    """The start-up lines by their first words."""
    said: dict[str, str] = {}
    while "ready:" not in said:
        first, _, rest = child.line(PATIENCE_S).partition(" ")
        said[first] = rest.strip()
    return said


def start_dev(children: Family, folder: Path, *more: str) -> tuple[Child, dict[str, str]]:
    child = children.start_module(
        MAIN, "dev", "--data", folder, "--listen", "127.0.0.1:0", "--bookies", "1", *more
    )
    return child, lines_until_ready(child)


def test_dev_keeps_records_after_terminate_and_kill(children: Family, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    expected: list[bytes] = []
    for end in (Child.terminate, Child.kill, None):
        child, said = start_dev(children, folder)
        assert said["metadata"] == f"sqlite://{folder}/metadata.db"
        with rollbook.connect(said["logs"]) as client:
            log = client.open("orders", create=True)
            assert [record.value for record in log.read(0, len(expected))] == expected
            for number in range(3):
                value = b"%d" % (len(expected))
                assert log.append(value).first_offset == len(expected), number
                expected.append(value)
        if end is None:
            second = children.start_module(MAIN, "dev", "--data", folder, "--bookies", "1")
            assert second.wait(PATIENCE_S) == 4  # A second one on the same data is refused.
        else:
            end(child)
            code = child.wait(PATIENCE_S)
            assert code == (0 if end is Child.terminate else -9)


def test_dev_exits_with_an_error_if_its_metadata_is_removed(
    children: Family, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A full disk is reported in the same way, whichever error SQLite returns."""
    child, said = start_dev(children, tmp_path / "data")
    (tmp_path / "data" / "metadata.db-wal").rename(tmp_path / "moved")
    with pytest.raises(RollbookError), rollbook.connect(said["logs"]) as client:
        client.open("orders", create=True)  # Unless another component failed to write before.
    assert child.wait(PATIENCE_S) == EXIT_STORAGE_FAILED
    told = capfd.readouterr().err
    assert f"error: {tmp_path}/data/metadata.db-wal was removed or replaced; " in told
    assert "\n  try: bring it back, and start this again\n" in told


def test_log_of_killed_server_is_taken_over_by_another(children: Family, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"

    async def make() -> None:
        async with await open_metadata_store(url, create=True) as store:
            await initialise(store, MetadataUrl.parse(url).ledgers_root, random.Random())

    asyncio.run(make())
    bookie = bookies.start(children, tmp_path / "bk-1", url, "--log-level", "error")
    bookie.wait_ready(PATIENCE_S)
    command = (
        "server",
        "log",
        "--metadata",
        url,
        "--listen",
        "127.0.0.1:0",
        "--log-level",
        "error",
    )
    quorum = {f"ROLLBOOK_LOG_SERVICE_{name}": "1" for name in ("ENSEMBLE", "WRITE", "ACK")}
    servers: dict[str, Child] = {}
    for name in ("a", "b"):
        child = children.start_module(MAIN, *command, "--server-name", name, environment=quorum)
        said = lines_until_ready(child)["ready:"]
        assert said.startswith(f"log server {name}~")
        servers[said.rpartition(" ")[2]] = child
    with rollbook.connect("log://" + ",".join(servers)) as client:
        log = client.open("orders", create=True)
        log.append(b"0")
        (owner,) = client.lookup(["orders"])
        victim = servers[owner.address]
        victim.kill()
        assert log.append(b"1").first_offset == 1
        assert [record.value for record in log.read(0, 2)] == [b"0", b"1"]


def test_default_port_is_used_if_it_is_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address(*taken.getsockname())
        assert usual_or_free(address) == Address("127.0.0.1", 0)
    assert usual_or_free(address) == address


async def test_unusable_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with raises_message(BadConfig) as found:
            async with local_cluster(str(tmp_path / place), 1, LogServerConfig(""), SMALL):
                pass
        assert "--data DIR" in found.value.next_step


@pytest.mark.parametrize("listen", ["0.0.0.0:7400", "example.org", "[::]:0"])
def test_dev_listens_on_loopback_only(listen: str, tmp_path: Path) -> None:
    with raises_message(BadConfig):
        run_dev(1, str(tmp_path / "data"), listen, None, None, "error")
    with raises_message(BadConfig) as found:
        run_dev(1, str(tmp_path / "data"), "127.0.0.1:0", listen, None, "error")
    assert found.value.next_step.startswith("pass --rest 127.0.0.1:")
    assert not (tmp_path / "data").exists()


def test_empty_data_directory_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises_message(BadConfig):
        run_dev(1, "", "127.0.0.1:0", None, None, "error")
    with raises_message(BadConfig):
        run_all(1, "", LogServerConfig("", listen="127.0.0.1:0"), "", "error")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "config",
    [
        LogServerConfig("zk://a", listen=":7400", advertise="0.0.0.0"),
        LogServerConfig("zk://a", listen="127.0.0.1:0"),
        LogServerConfig("zk://a", listen="nonsense:port"),
        LogServerConfig("zk://a", server_name="a~b"),
    ],
)
def test_config_without_a_usable_address_or_name_is_refused(config: LogServerConfig) -> None:
    with pytest.raises(BadConfig):
        addresses_of(config)


def test_server_name_defaults_to_its_advertised_address() -> None:
    config = LogServerConfig("zk://a", listen="0.0.0.0:7400", advertise="log-1")
    assert addresses_of(config)[1:] == (Address("log-1", 7400), "log-1:7400")
    config = LogServerConfig("zk://a", listen="127.0.0.1:0", server_name="one")
    assert addresses_of(config)[2] == "one"


def test_server_on_all_addresses_advertises_its_host_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_server, "name_of_this_host", lambda: "this-host")
    config = LogServerConfig("zk://a", listen=":7400")
    assert addresses_of(config) == (
        Address("0.0.0.0", 7400),
        Address("this-host", 7400),
        "this-host:7400",
    )


def test_rest_port_without_a_host_binds_all_addresses() -> None:
    assert log_server.rest_address_of(LogServerConfig("zk://a", rest=":7480")).host == "0.0.0.0"


def test_advertised_host_with_loopback_listen_is_refused() -> None:
    with raises_message(BadConfig) as refused:
        addresses_of(LogServerConfig("zk://a", listen="127.0.0.1:7400", advertise="log-1"))
    assert refused.value.settings == ("listen", "advertise")
    config = LogServerConfig("zk://a", listen="127.0.0.1:7400", advertise="localhost")
    assert addresses_of(config)[1] == Address("localhost", 7400)


async def test_bookie_port_taken_during_start_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another `rollbook dev` that starts at the same time may take the port."""
    find, found = local_cluster_module.usual_or_free, list[Address]()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(local_cluster_module, "DEFAULT_PORT", taken.getsockname()[1])

        def find_and_lose(usual: Address) -> Address:
            found.append(usual if not found else find(usual))
            taken.listen()
            return found[-1]

        monkeypatch.setattr(local_cluster_module, "usual_or_free", find_and_lose)
        server = LogServerConfig("", listen="127.0.0.1:0")
        async with local_cluster(str(tmp_path), 1, server, SMALL) as cluster:
            assert cluster.bookies["bk-1"].address.port not in (0, found[0].port)
