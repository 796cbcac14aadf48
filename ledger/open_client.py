"""Opens `Ledgers` for a user's program by a URL, on the real machine.

    async with connect("zk://zk1,zk2,zk3/ledgers") as ledgers:
        …

This is the only module here that uses the real machine; the others use ports.
"""

import random
import ssl
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.logging_setup import log_as_a_library
from rollbook.proto.runtime.malloc_tuning import keep_pieces_of_messages
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.network import SocketTransport


def connect(
    metadata: str,
    config: ClientConfig = ClientConfig(),  # noqa: B008  # A frozen value.
    *,
    tls: ssl.SSLContext | None = None,
    visits: bool = False,
    open_timeout_s: float | None = None,
) -> "Connecting":
    """Opens `Ledgers`. Await the call and close the result, or use it with `async with`.

    `metadata` is `zk://host,host/ledgers` or `sqlite:///path`. `tls` is made by `client_context` of
    `rollbook.proto.runtime.tls`; with it bookies are used only over TLS. With `visits`, an embedded
    store is opened even without its server, for a short task. `open_timeout_s` is the time for
    ZooKeeper's first response, by default 10 s.

    Raises `NoSuchCluster`, `MetadataUnavailable`, `BadConfig`, `WrongCluster`. A cancelled call
    leaves nothing behind.
    """
    keep_pieces_of_messages()
    return Connecting(metadata, config, tls, visits, open_timeout_s)


class Connecting:
    def __init__(
        self,
        metadata: str,
        config: ClientConfig,
        tls: ssl.SSLContext | None,
        visits: bool,
        open_timeout_s: float | None,
    ) -> None:
        self._metadata = metadata
        self._config = replace(config, uses_tls=True) if tls else config
        self._tls = tls
        self._visits = visits
        self._open_timeout_s = open_timeout_s
        self._ledgers: Ledgers | None = None

    def __await__(self) -> Generator[Any, None, Ledgers]:
        return self._open().__await__()

    async def __aenter__(self) -> Ledgers:
        self._ledgers = await self._open()
        return self._ledgers

    async def __aexit__(self, *_: object) -> None:
        assert self._ledgers is not None
        await self._ledgers.close()

    async def _open(self) -> Ledgers:
        log_as_a_library()
        url = MetadataUrl.parse(self._metadata)
        clock, randomness = SystemClock(), random.Random(random.SystemRandom().getrandbits(128))
        store = await open_metadata_store(
            url,
            visit=self._visits,
            open_timeout_s=self._open_timeout_s,
            clock=clock,
            randomness=randomness,
        )
        try:
            cluster = await open_cluster(store, url.ledgers_root, url=url)
        except BaseException:
            await store.close()
            raise
        ledgers = Ledgers(
            SocketTransport(client_tls=self._tls),
            store,
            cluster,
            clock,
            randomness,
            self._config,
            owns_store=True,
        )
        return await ledgers.__aenter__()
