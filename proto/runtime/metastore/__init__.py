"""Opens the metadata store that a URL names (`rollbook.proto.metastore.url`)."""

import asyncio
import random
from typing import TYPE_CHECKING, Final

from rollbook.proto.metastore.memory import MemoryService
from rollbook.proto.metastore.service_client import (
    OPERATION_TIMEOUT_S,
    SESSION_TIMEOUT_S,
    StoreClient,
)
from rollbook.proto.metastore.url import Backend, MetadataUrl
from rollbook.proto.ports import Clock, MetadataStore, Randomness
from rollbook.proto.runtime.clock import SystemClock

if TYPE_CHECKING:
    from rollbook.proto.runtime.metastore.embedded_owner import Fatal

COMMAND_TIMEOUT_S: Final = 4.0  # A command waits this long for ZooKeeper's first response.
NOBODY_TIMEOUT_S: Final = 2.0  # A client waits this long for an owner; a new owner needs much less.


async def open_metadata_store(
    url: MetadataUrl | str,
    *,
    create: bool = False,
    serve: bool = False,
    visit: bool = False,
    session_timeout_s: float = SESSION_TIMEOUT_S,
    operation_timeout_s: float = OPERATION_TIMEOUT_S,
    open_timeout_s: float | None = None,
    on_fatal: "Fatal | None" = None,
    clock: Clock | None = None,
    randomness: Randomness | None = None,
) -> MetadataStore:
    """Opens a store. Opens the store. Returns once it has a session, or raises the reason why it has none.

    `open_timeout_s` limits the wait for ZooKeeper's first response; by default it is the time-out
    of operations. The other parameters are for the embedded store. With `serve`, this process may
    own the file and serve others, now or when its owner dies. `visit` is for short commands: if the
    file has no owner, this process uses it alone, until it closes the store. With neither, it
    raises `MetadataUnavailable` if no owner serves within `NOBODY_TIMEOUT_S`. With `create`, and
    `serve` or `visit`, a missing file is created; otherwise it raises `NoSuchCluster`. `on_fatal`
    is called if the owned file cannot be written; by default it ends this process.
    """
    clock, randomness = clock or SystemClock(), randomness or random.SystemRandom()
    if isinstance(url, str):
        url = MetadataUrl.parse(url)
    match url.backend:
        case Backend.ZOOKEEPER:
            from rollbook.proto.runtime.metastore.zookeeper import ZooKeeperStore

            return await ZooKeeperStore(
                url.place,
                url.options,
                session_timeout_s=session_timeout_s,
                operation_timeout_s=operation_timeout_s,
            ).open(open_timeout_s)
        case Backend.SQLITE:
            # This is imported here, since Windows lacks these file locks, but runs clients of log
            # servers and of ZooKeeper.
            from rollbook.proto.runtime.metastore.embedded_connector import EmbeddedConnector, Role
            from rollbook.proto.runtime.metastore.embedded_owner import end_process

            role = Role.SERVER if serve else Role.VISITOR if visit or create else Role.CLIENT
            connector = EmbeddedConnector(
                url.place, clock, randomness, role, create=create, on_fatal=on_fatal or end_process
            )
            patience_s = NOBODY_TIMEOUT_S if role is Role.CLIENT else operation_timeout_s
            return await StoreClient(
                connector,
                randomness,
                session_timeout_s=session_timeout_s,
                operation_timeout_s=operation_timeout_s,
            ).open(min(patience_s, operation_timeout_s))
        case Backend.MEMORY:
            return await _memory_service(url.place, clock, randomness).connect(
                session_timeout_s=session_timeout_s, operation_timeout_s=operation_timeout_s
            )


# A store in memory lives as long as its event loop, and all callers on that loop share it.
_MEMORY: Final[dict[str, tuple[asyncio.AbstractEventLoop, MemoryService]]] = {}


def _memory_service(name: str, clock: Clock, randomness: Randomness) -> MemoryService:
    loop = asyncio.get_running_loop()
    owner, service = _MEMORY.get(name, (None, None))
    if service is None or owner is not loop:
        service = MemoryService(clock, randomness)
        _MEMORY[name] = (loop, service)
    return service
