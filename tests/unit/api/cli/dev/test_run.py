"""`rollbook dev` and `rollbook server log` as people run them, with the Python client."""

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
from rollbook.proto.runtime.exit_status import EXIT_STORAGE_FAILED
from rollbook.proto.runtime.metastore import open_metadata_store
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
    """What it says of itself, by its first words."""
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


def test_what_was_appended_is_there_after_a_restart_however_it_was_ended(
    children: Family, tmp_path: Path
) -> None:
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
            assert second.wait(PATIENCE_S) == 4  # Two do not run on the same data.
        else:
            end(child)
            code = child.wait(PATIENCE_S)
            assert code == (0 if end is Child.terminate else -9)


def test_metadata_that_cannot_be_kept_is_told_as_any_other_error(
    children: Family, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """So is a full disk: which of its errors SQLite met makes no difference here."""
    child, said = start_dev(children, tmp_path / "data")
    (tmp_path / "data" / "metadata.db-wal").rename(tmp_path / "moved")
    with pytest.raises(RollbookError), rollbook.connect(said["logs"]) as client:
        client.open("orders", create=True)  # Or any other part has written before.
    assert child.wait(PATIENCE_S) == EXIT_STORAGE_FAILED
    told = capfd.readouterr().err
    assert f"error: {tmp_path}/data/metadata.db-wal was removed or replaced; " in told
    assert "\n  try: bring it back, and start this again\n" in told


def test_a_log_server_that_dies_is_replaced_by_another_one(
    children: Family, tmp_path: Path
) -> None:
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


def test_the_usual_port_is_taken_if_it_is_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = Address(*taken.getsockname())
        assert usual_or_free(address) == Address("127.0.0.1", 0)
    assert usual_or_free(address) == address


async def test_a_place_that_can_hold_no_data_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with raises_message(BadConfig) as found:
            async with local_cluster(str(tmp_path / place), 1, LogServerConfig(""), SMALL):
                pass
        assert "--data DIR" in found.value.next_step


@pytest.mark.parametrize("listen", ["0.0.0.0:7400", "example.org", "[::]:0"])
def test_dev_is_for_this_machine_alone(listen: str, tmp_path: Path) -> None:
    with raises_message(BadConfig):
        run_dev(1, str(tmp_path / "data"), listen, None, None, "error")
    with raises_message(BadConfig) as found:
        run_dev(1, str(tmp_path / "data"), "127.0.0.1:0", listen, None, "error")
    assert found.value.next_step.startswith("pass --rest 127.0.0.1:")
    assert not (tmp_path / "data").exists()


def test_a_directory_without_a_name_is_not_where_one_stands(
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
def test_a_server_that_nobody_could_find_does_not_start(config: LogServerConfig) -> None:
    with pytest.raises(BadConfig):
        addresses_of(config)


def test_a_server_goes_by_where_it_is_found_unless_it_has_a_name() -> None:
    config = LogServerConfig("zk://a", listen="0.0.0.0:7400", advertise="log-1")
    assert addresses_of(config)[1:] == (Address("log-1", 7400), "log-1:7400")
    config = LogServerConfig("zk://a", listen="127.0.0.1:0", server_name="one")
    assert addresses_of(config)[2] == "one"


def test_a_server_on_every_address_is_found_by_the_name_of_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_server, "name_of_this_host", lambda: "this-host")
    config = LogServerConfig("zk://a", listen=":7400")
    assert addresses_of(config) == (
        Address("0.0.0.0", 7400),
        Address("this-host", 7400),
        "this-host:7400",
    )


def test_http_on_a_port_alone_is_on_every_address() -> None:
    assert log_server.rest_address_of(LogServerConfig("zk://a", rest=":7480")).host == "0.0.0.0"


def test_a_server_that_others_cannot_reach_is_not_registered_for_them() -> None:
    with raises_message(BadConfig) as refused:
        addresses_of(LogServerConfig("zk://a", listen="127.0.0.1:7400", advertise="log-1"))
    assert refused.value.settings == ("listen", "advertise")
    config = LogServerConfig("zk://a", listen="127.0.0.1:7400", advertise="localhost")
    assert addresses_of(config)[1] == Address("localhost", 7400)


async def test_a_port_that_is_taken_while_a_bookie_starts_is_not_insisted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another `rollbook dev` that starts at the same time."""
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
