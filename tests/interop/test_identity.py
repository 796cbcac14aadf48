"""Our bookie takes the same id from a configuration file as the Java bookie that it replaces."""

import asyncio
import itertools
import subprocess
from functools import partial
from pathlib import Path

from rollbook.api.cli.server.bookie_settings import load_settings
from rollbook.bookie.bookie import addresses_of
from rollbook.proto.cluster.cookies import CookieNodes
from rollbook.proto.errors import BadConfig
from rollbook.proto.ids import BookieId
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.interop import toolchain
from tests.interop.cluster import Cluster
from tests.interop.puppet import Client, JavaError, Shape
from tests.support.zookeeper import free_port

_ON_FOUR = Shape(4, 4, 4)
_CHOICES = (
    ("", "bookieId=by-name"),
    ("", "advertisedAddress=localhost", "advertisedAddress= 10.0.0.7 "),
    ("", "listeningInterface=lo", "listeningInterface=eth0", "listeningInterface=default"),
    ("", "useHostNameAsBookieID=true", "useHostNameAsBookieID=true\nuseShortHostName=true"),
)


def _java(*paths: Path) -> list[str]:
    """Ids from the class that Java's bookie uses; empty if it does not start from a file."""
    # Apache's script starts a bookie with this option.
    command = toolchain.PROJECT.command("Ids", *paths, options=["-Djava.net.preferIPv4Stack=true"])
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def _ours(path: Path) -> str:
    try:
        return addresses_of(load_settings(str(path)).bookie)[2]
    except BadConfig:
        return ""


def test_each_config_gives_the_same_id_as_in_java(java: None, tmp_path: Path) -> None:
    """The files are all combinations of the settings that decide the id."""
    expected: dict[str, str] = {}
    paths: list[Path] = []
    for number, lines in enumerate(itertools.product(*_CHOICES)):
        path = tmp_path / f"{number}.conf"
        settings = "bookiePort=4181\nallowLoopback=true\nmetadataServiceUri=zk://a/ledgers\n"
        settings += "journalDirectories=/j\nledgerDirectories=/l\n"
        path.write_text(settings + "\n".join(lines))
        paths.append(path)
    for path, theirs in zip(paths, _java(*paths), strict=True):
        expected[path.read_text()] = theirs
    assert {path.read_text(): _ours(path) for path in paths} == expected
    assert any(found.startswith("localhost:") for found in expected.values())


def test_java_config_with_one_directory_starts_our_bookie(
    cluster: Cluster, v3: Client, tmp_path: Path
) -> None:
    directory = tmp_path / "bk"
    config = tmp_path / "bk_server.conf"
    config.write_text(
        f"bookiePort={free_port()}\nlisteningInterface=lo\nallowLoopback=true\n"
        "useHostNameAsBookieID=true\nuseShortHostName=true\n"
        f"metadataServiceUri={cluster.metadata}\nzkTimeout=4000\n"
        f"journalDirectories={directory}\nledgerDirectories={directory}\n"
        "diskUsageThreshold=0.99\ndiskUsageWarnThreshold=0.98\n"
    )
    (bookie_id,) = _java(config)
    bookie = cluster.start_from(config, bookie_id)
    try:
        cluster.wait_until(partial(_can_create, v3), "Java's client knows the fourth bookie")
        writer = v3.create(_ON_FOUR)
        writer.append([b"on all four"])
        assert v3.entries_on(bookie_id, writer.ledger_id, 0) == [0]
        assert {each.name for each in directory.iterdir()} == {"journal", "ledgers"}
    finally:  # Other tests count the bookies of the cluster.
        bookie.terminate()
        assert bookie.wait(60.0) == 0
        asyncio.run(_forget(cluster.metadata, bookie_id))


def _can_create(client: Client) -> bool:
    try:
        client.create(_ON_FOUR).close()
    except JavaError as error:
        if "NotEnoughBookies" not in error.name:
            raise
        return False
    return True


async def _forget(metadata: str, bookie_id: str) -> None:
    """Delete the cookie, since other tests count the cluster's bookies."""
    store = await open_metadata_store(metadata)
    try:
        root = MetadataUrl.parse(metadata).ledgers_root
        await CookieNodes(store, root).delete(BookieId(bookie_id))
    finally:
        await store.close()
