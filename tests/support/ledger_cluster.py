"""A small cluster of real bookies, to which ledger clients connect as usual.

In this process, on the caller's loop, for tests that inspect bookies or need no processes:

    async with LocalCluster(folder) as cluster:
        async with cluster.connect() as ledgers: …
        await cluster.stop("bk-2"); await cluster.start("bk-2")

As child processes on the embedded store, for benches and for tests that kill:

    with processes.family() as children:
        cluster = ProcessCluster(children, folder)
        async with connect(cluster.url) as ledgers: …
        cluster.bookies["bk-2"].kill(); cluster.start("bk-2")
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rollbook.bookie.bookie import Bookie, Settings
from rollbook.bookie.config import BookieConfig, ServerConfig, SpaceConfig, StorageConfig
from rollbook.bookie.identity import Identity
from rollbook.ledger.config import ClientConfig
from rollbook.ledger.open_client import Connecting, connect
from rollbook.proto.cluster.cluster_root import initialise, open_cluster
from rollbook.proto.ids import BookieId
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import Clock, Disk, MetadataStore, Randomness, Transport
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.proto.runtime.network import SocketTransport
from rollbook.proto.runtime.system_disk import SystemDisk
from rollbook.proto.runtime.tls import TlsFiles, server_context
from tests.support import bookies
from tests.support.processes import Family

MIB: Final = 1024 * 1024
NAMES: Final = ("bk-1", "bk-2", "bk-3")
PATIENCE_S: Final = 60.0
DEFAULT: Final = ClientConfig()
DEFAULT_SPACE: Final = SpaceConfig()


@dataclass
class _Machine:
    disk: Disk
    transport: Transport = field(default_factory=SocketTransport)
    clock: Clock = field(default_factory=SystemClock)
    randomness: Randomness = field(default_factory=random.Random)


class LocalCluster:
    """A cluster with metadata in memory: `url` is valid only in this process and on this loop."""

    def __init__(
        self,
        folder: Path,
        names: Iterable[str] = NAMES,
        tls: TlsFiles | None = None,
        space: SpaceConfig = DEFAULT_SPACE,
    ) -> None:
        """With `tls`, bookies also listen for TLS."""
        self._tls = tls
        self._space = space
        self.url = f"memory:{folder.name.replace('_', '-')}-{random.getrandbits(32):x}"
        self.bookies: dict[str, Bookie] = {}  # The running bookies.
        self._disks: list[SystemDisk] = []  # Each has ten threads.
        self._folder = folder
        self._names = tuple(names)
        self._store: MetadataStore

    async def __aenter__(self) -> Self:
        self._store = await open_metadata_store(self.url)
        root = MetadataUrl.parse(self.url).ledgers_root
        await initialise(self._store, root, random.Random())
        for name in self._names:
            await self.start(name)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for name in list(self.bookies):
            await self.stop(name)
        for disk in self._disks:
            disk.close()
        await self._store.close()

    async def start(self, name: str) -> Bookie:
        """Returns when the bookie serves and is registered."""
        settings = self._settings(name)
        tls = SocketTransport(server_tls=server_context(self._tls)) if self._tls else None
        store = await open_metadata_store(self.url)
        bookie = await Bookie.open(_Machine(self._disk()), store, settings, tls)
        await bookie.register()
        self.bookies[name] = bookie
        return bookie

    def _disk(self) -> SystemDisk:
        disk = SystemDisk()
        self._disks.append(disk)
        return disk

    def _settings(self, name: str) -> Settings:
        return Settings(
            BookieConfig(
                metadata=self.url,
                bookie_id=name,
                listen="127.0.0.1:0",
                session_timeout_s=4.0,
                tls_listen="127.0.0.1:0" if self._tls else "",
                tls_certificate=self._tls.certificate if self._tls else "",
            ),
            StorageConfig(
                str(self._folder / name / "journal"),
                (str(self._folder / name / "ledgers"),),
                journal_file_bytes=8 * MIB,
                idle_after_ms=20,
            ),
            ServerConfig(),
            self._space,
        )

    async def format(self, name: str) -> None:
        """Formats a stopped bookie like `rollbook bookie format`."""
        async with self._identity(name) as identity:
            await identity.format(PATIENCE_S)

    async def lose_journal(self, name: str) -> None:
        """Deletes the journal's files and writes them off like `rollbook bookie write-off`."""
        for path in (self._folder / name / "journal").glob("*.journal"):
            path.unlink()
        async with self._identity(name) as identity:
            await identity.write_off(SystemClock())

    @asynccontextmanager
    async def _identity(self, name: str) -> AsyncIterator[Identity]:
        store = await open_metadata_store(self.url)
        try:
            cluster = await open_cluster(store, MetadataUrl.parse(self.url).ledgers_root)
            storage = self._settings(name).storage
            yield Identity(self._disk(), storage, random.Random(), store, cluster, BookieId(name))
        finally:
            await store.close()

    async def stop(self, name: str) -> None:
        """Stops the bookie cleanly, which unregisters it first."""
        await self.bookies.pop(name).close()

    def connect(self, config: ClientConfig = DEFAULT) -> Connecting:
        return connect(self.url, config)


class ProcessCluster:
    """Three processes of `rollbook server bookie`; the first one serves the embedded store."""

    def __init__(
        self,
        children: Family,
        folder: Path,
        names: Iterable[str] = NAMES,
        environment: Mapping[str, str] = {},
    ) -> None:
        self.url = f"sqlite://{folder}/metadata.db"
        self.bookies: dict[str, bookies.RunningBookie] = {}
        self._children = children
        self._folder = folder
        self._environment = {"ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES": str(8 * MIB), **environment}
        asyncio.run(self._initialise())
        for name in names:
            self.start(name)

    async def _initialise(self) -> None:
        store = await open_metadata_store(self.url, create=True)
        try:
            await initialise(store, MetadataUrl.parse(self.url).ledgers_root, random.Random())
        finally:
            await store.close()

    def start(self, name: str) -> bookies.RunningBookie:
        """Returns when the bookie serves and is registered."""
        bookie = bookies.start(
            self._children,
            self._folder / name,
            self.url,
            "--log-level",
            "error",
            bookie_id=name,
            environment=self._environment,
        )
        bookie.wait_ready(PATIENCE_S)
        self.bookies[BookieId(name)] = bookie
        return bookie
