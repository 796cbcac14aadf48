"""The ZooKeeper store under contract: each client has its own proxy, each site its own tree."""

import contextlib

from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.metastore.zookeeper import ZooKeeperStore
from tests.contract.stores import Site
from tests.support.cutting_proxy import ZOOKEEPER, CuttingProxy
from tests.support.zookeeper import ZooKeeperTree


class ZooKeeperSite(Site):
    def __init__(self, tree: ZooKeeperTree) -> None:
        super().__init__()
        self._tree = tree
        self._open_proxies = contextlib.ExitStack()
        self._proxies: dict[MetadataStore, CuttingProxy] = {}

    async def _open(self, session_timeout_s: float, operation_timeout_s: float) -> MetadataStore:
        proxy = CuttingProxy(self._tree.server.address, ZOOKEEPER)
        self._open_proxies.enter_context(proxy)
        client = ZooKeeperStore(
            proxy.address,
            chroot=self._tree.chroot,
            session_timeout_s=session_timeout_s,
            operation_timeout_s=operation_timeout_s,
        )
        self._proxies[client] = proxy
        return await client.open()

    async def close(self) -> None:
        await super().close()
        self._open_proxies.close()

    async def cut(self, client: MetadataStore) -> None:
        self._proxies[client].cut()

    async def suspend(self, client: MetadataStore) -> None:
        self._proxies[client].refuse()
        self._proxies[client].cut()

    async def resume(self, client: MetadataStore) -> None:
        self._proxies[client].accept()

    async def lose_next_request(self, client: MetadataStore) -> None:
        self._proxies[client].lose_request()

    async def lose_next_answer(self, client: MetadataStore) -> None:
        self._proxies[client].lose_reply()
