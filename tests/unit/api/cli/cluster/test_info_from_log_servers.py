"""The health of a cluster as a log server sees it."""

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from rollbook.api.cli.cluster.info_from_log_servers import verdict
from rollbook.logservice import messages
from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.quorum import Quorum
from rollbook.proto.runtime.metastore import open_metadata_store
from tests.support import bookies, commands, processes

_LIMITS: Final = messages.ServiceLimits(1, 1, 1, 1, 1, 1, 1)
_SERVING: Final[list[dict[str, Any]]] = [{"state": "serving"}]


@pytest.mark.parametrize(
    ("quorum", "usable", "said"),
    [
        (Quorum(3, 3, 2), 0, "unavailable"),
        (Quorum(3, 3, 2), 1, "unavailable"),
        (Quorum(3, 3, 2), 2, "degraded"),
        (Quorum(3, 3, 2), 3, "healthy"),
        (Quorum(1, 1, 1), 1, "healthy"),
        (None, 0, "unavailable"),
        (None, 1, "healthy"),
    ],
)
def test_health_depends_on_the_number_of_usable_bookies(
    quorum: Quorum | None, usable: int, said: str
) -> None:
    limits = replace(_LIMITS, usable_bookies=usable, quorum=quorum)
    assert verdict(_SERVING, messages.Outage(), 0, limits) == said


def test_server_reports_cluster_without_bookies_as_unavailable(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"

    async def make() -> None:
        async with await open_metadata_store(url, create=True) as store:
            await initialise(store, MetadataUrl.parse(url).ledgers_root, random.Random())

    asyncio.run(make())
    with processes.family() as children:
        server = children.start_module(
            "rollbook.api.cli.main",
            "server",
            "log",
            "--metadata",
            url,
            "--server-name",
            "a",
            "--listen",
            "127.0.0.1:0",
            "--log-level",
            "error",
        )
        where = f"log://{bookies.address_in(server.line())}"
        done = commands.run("cluster", "health", "--server", where, "-o", "json")
    assert done.returncode == 5, done.stderr.decode()
    found = json.loads(done.stdout)
    assert (found["health"], found["usable_bookies"]) == ("unavailable", 0)
    assert found["new_logs"].startswith("take no append: 2 bookies")
