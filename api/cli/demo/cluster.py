"""The cluster of `rollbook demo`: three bookies and two log servers, each in a separate process.

They share one directory with the embedded metadata store, which one of the processes serves, the bookies' files,
and the output of each process (`NAME.log`).
"""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import click

from rollbook.proto.cluster.cluster_root import initialise
from rollbook.proto.errors import RollbookError
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.runtime.metastore import open_metadata_store

BOOKIES: Final = ("bk-1", "bk-2", "bk-3")
LOG_SERVERS: Final = ("log-1", "log-2")
_SMALL: Final = {  # Limits that suit five processes on a laptop with little to store.
    "ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES": str(32 << 20),
    "ROLLBOOK_STORAGE_QUEUED_BYTES_MAX": str(16 << 20),
    "ROLLBOOK_STORAGE_INDEX_BYTES_MAX": str(16 << 20),
    "ROLLBOOK_STORAGE_CACHE_BYTES": str(32 << 20),
    "ROLLBOOK_LOG_SERVICE_TAIL_MEMORY_BYTES": str(64 << 20),
}
_HOST: Final = "127.0.0.1"
_READY_S_MAX: Final = 60.0
_LAST_WORDS: Final = 5


class DemoCluster:
    """The cluster's processes by name, and their addresses."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.url = f"sqlite://{folder}/metadata.db"
        self.addresses: dict[str, str] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self) -> None:
        """Starts all processes, and returns once they are serving."""
        url = MetadataUrl.parse(self.url)
        async with await open_metadata_store(url, create=True) as store:
            await initialise(store, url.ledgers_root, random.SystemRandom())
        # The processes start at the same time, because none of them would start faster alone.
        await asyncio.gather(*map(self.start_bookie, BOOKIES), *map(self._start_log, LOG_SERVERS))

    async def start_bookie(self, name: str) -> None:
        home = os.path.join(self.folder, name)
        await self._start(
            name,
            "server",
            "bookie",
            "--bookie-id",
            name,
            "--journal-dir",
            f"{home}/journal",
            "--ledger-dir",
            f"{home}/ledgers",
        )

    async def _start_log(self, name: str) -> None:
        await self._start(name, "server", "log", "--server-name", name)

    async def _start(self, name: str, *command: str) -> None:
        common = ("--metadata", self.url, "--listen", f"{_HOST}:0", "--log-level", "warning")
        with open(self._log_of(name), "ab") as log:  # noqa: ASYNC230  # Nothing else runs yet, so it may block.
            self._processes[name] = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "rollbook.api.cli.demo.child_main",
                *command,
                *common,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=_environment(),
            )
        assert process.stdout is not None
        async with asyncio.timeout(_READY_S_MAX):
            line = (await process.stdout.readline()).decode()
        if not line.startswith("ready: "):
            raise RollbookError(f"{name} did not start")
        self.addresses[name] = line.rpartition(" on ")[2].strip()

    async def kill(self, name: str) -> None:
        """Kills a process with SIGKILL, and waits until it has ended."""
        self._processes[name].kill()
        await self._processes[name].wait()

    def last_words(self) -> Iterator[str]:
        """Returns the last output of each process, to show why the demo failed."""
        for name in self._processes:
            with open(self._log_of(name), encoding="utf-8", errors="replace") as log:
                yield from (f"{name}: {line.rstrip()}" for line in list(log)[-_LAST_WORDS:])

    async def close(self) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
        for process in self._processes.values():
            await process.wait()

    def _log_of(self, name: str) -> str:
        return os.path.join(self.folder, f"{name}.log")


def _environment() -> Mapping[str, str]:
    """Returns the environment without the user's variables for other Rollbook servers."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ROLLBOOK_")}
    return {**ours, **_SMALL}


@asynccontextmanager
async def demo_cluster(folder: str) -> AsyncIterator[DemoCluster]:
    cluster = DemoCluster(folder)
    try:
        await cluster.start()
        yield cluster
    except Exception:
        for line in cluster.last_words():
            click.echo(line, err=True)
        raise
    finally:
        await cluster.close()
