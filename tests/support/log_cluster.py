"""Log servers over a small cluster of real bookies, all in this process and on the caller's loop.

async with LogCluster(folder) as cluster:
    a = await cluster.start_server("a")
    service = a.service                     # Called directly, without gRPC.
    await a.stop()                          # Stops cleanly: its logs are handed over.
    await a.kill()                          # Its port refuses from now on, without notice.
"""

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from rollbook.api.rpc_methods import BY_REQUEST
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import Ledgers
from rollbook.logservice.config import LogServiceConfig
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.logservice.log_ownership import LogServer
from rollbook.logservice.service import LogService
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.errors import ServerUnreachable
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import Address, Listener, MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.network import SocketTransport
from tests.support.ledger_cluster import LocalCluster
from tests.support.services import service_of

# Long, because a busy machine may delay renewals for seconds. No test here waits for a lease to
# expire.
QUICK: Final = LogServiceConfig(lease_s=30.0, rebalance_after_s=0.3, heartbeat_s=1.0)
PATIENCE_S: Final = 30.0


class RunningServer:
    """A running log server, from start to stop or kill."""

    def __init__(
        self,
        service: LogService,
        ledgers: Ledgers,
        lease: MetadataStore,
        listener: Listener,
    ) -> None:
        self.service = service
        self.server = service.server
        self.ledgers = ledgers
        self.lease = lease
        self.is_gone = False  # If true, it does not answer other servers.
        self._listener = listener

    @property
    def address(self) -> str:
        return str(self._listener.address)

    async def stop(self) -> None:
        await self.server.close()
        await self.forget()

    async def deafen(self) -> None:
        """Makes its port refuse, like that of a dead process or of a wrongly registered address."""
        self.is_gone = True
        await self._listener.close()

    async def forget(self) -> None:
        """Releases its resources."""
        self.is_gone = True
        await self._listener.close()
        await self.lease.close()
        await self.ledgers.close()


class LogCluster:
    def __init__(self, folder: Path, config: LogServiceConfig = QUICK) -> None:
        self.bookies = LocalCluster(folder)
        self.servers: dict[str, RunningServer] = {}
        self._config = config

    async def __aenter__(self) -> Self:
        await self.bookies.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for running in self.servers.values():
            await running.stop()
        await self.bookies.__aexit__(kind, error, traceback)

    async def _ask_peer(self, asked: Any, address: str, due: float) -> Any:
        for running in self.servers.values():
            if running.address == address and not running.is_gone:
                method = BY_REQUEST[type(asked)].core_name
                return await getattr(running.service, method)(asked, due)
        raise ServerUnreachable(server=address)

    async def start_server(self, name: str, **changes: float) -> RunningServer:
        """Returns when it is registered and knows the other servers, which may not know it yet."""
        config = replace(self._config, **changes)  # type: ignore[arg-type]  # All are numbers.
        clock, randomness, transport = SystemClock(), random.Random(), SocketTransport()
        url = self.bookies.url
        store = await open_metadata_store(url)
        lease = await open_metadata_store(url, session_timeout_s=config.lease_s)
        cluster = await open_cluster(store, MetadataUrl.parse(url).ledgers_root)
        ledgers = Ledgers(
            transport, store, cluster, clock, randomness, ClientConfig(), owns_store=True
        )
        await ledgers.start()
        nodes = LogMetadataStore(store, cluster, clock, randomness)
        await nodes.start()
        listener = await transport.listen(asyncio.Protocol, Address("127.0.0.1", 0))
        server = LogServer(
            name,
            "test",
            ledgers=ledgers,
            nodes=nodes,
            lease=lease,
            transport=transport,
            clock=clock,
            randomness=randomness,
            config=config,
        )
        service = service_of(server, clock, self._ask_peer)
        await server.start(str(listener.address))
        self.servers[name] = RunningServer(service, ledgers, lease, listener)
        return self.servers[name]
