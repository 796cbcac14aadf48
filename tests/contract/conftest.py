import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore.embedded_owner import StoreOwner
from tests.contract.stores import MemorySite, OwnerSite, Site, SocketSite
from tests.contract.zookeeper_site import ZooKeeperSite
from tests.support.zookeeper import zookeeper, zookeeper_server

__all__ = ["zookeeper", "zookeeper_server"]


@pytest.fixture(params=["memory", "sqlite-owner", "sqlite-socket", "zk"])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    """Each test runs against each store."""
    async with contextlib.AsyncExitStack() as resources:
        own: Site
        match request.param:
            case "memory":
                own = MemorySite()
            case "sqlite-owner":
                own = OwnerSite(await resources.enter_async_context(owning(str(tmp_path / "m.db"))))
            case "sqlite-socket":
                path = str(tmp_path / "m.db")
                await resources.enter_async_context(owning(path))
                own = SocketSite(path)
            case _:
                own = ZooKeeperSite(request.getfixturevalue("zookeeper"))
        resources.push_async_callback(own.close)
        yield own


@contextlib.asynccontextmanager
async def owning(path: str) -> AsyncIterator[StoreOwner]:
    owner = await StoreOwner.take(path, SystemClock(), random.Random(0), create=True)
    assert owner is not None
    try:
        yield owner
    finally:
        await owner.close()
