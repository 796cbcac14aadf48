"""No live owner is fenced (RP4, WR11): many idle logs, one bookie killed and one drained.

    python -m tests.chaos.cluster.idle LOGS

Five bookies, one recovery server and one log server, as processes. Each log has one record and an open segment.
When neither the lost nor the draining bookie is in a ledger any more, recovery has closed no ledger, every segment
is still open, and each log takes an append from the owner that it had.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from rollbook.api.client import aio
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from rollbook.proto.cluster.cluster_root import Cluster, initialise, open_cluster
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.recovery.bookie_decommission import Departures
from tests.support import bookies
from tests.support.processes import Family, family

BOOKIES: Final = tuple(BookieId(f"bk-{number}") for number in range(1, 6))
LOST, LEAVING = BOOKIES[1], BOOKIES[3]
PATIENCE_S: Final = 600.0
_AT_ONCE: Final = 32
_QUIET: Final = ("--log-level", "error")
_ENVIRONMENT: Final = {
    "ROLLBOOK_BOOKIE_SESSION_TIMEOUT_S": "2",
    "ROLLBOOK_AUDIT_LOST_BOOKIE_DELAY_S": "1",
    "ROLLBOOK_STEWARD_LOOK_AGAIN_S": "1",
}


class Idle:
    def __init__(self, children: Family, folder: Path, url: str) -> None:
        self.url = url
        self._recovery_log = folder / "recovery"
        self._bookies = {
            name: bookies.start(
                children, folder / name, url, *_QUIET, bookie_id=name, environment=_ENVIRONMENT
            )
            for name in BOOKIES
        }
        bookies.serving(tuple(self._bookies.values()))
        module = (sys.executable, "-m", "rollbook.api.cli.main")
        to_file = ("sh", "-c", 'exec "$@" 2>>"$0"', self._recovery_log)
        recovery = children.start(
            *to_file,
            *module,
            "server",
            "recovery",
            "--metadata",
            url,
            environment=_ENVIRONMENT,
        )
        recovery.line(bookies.PATIENCE_S)
        server = children.start(
            *module,
            "server",
            "log",
            "--metadata",
            url,
            "--listen",
            "127.0.0.1:0",
            *_QUIET,
            "--server-name",
            "log-1",
        )
        self.address = f"log://{bookies.address_in(server.line(bookies.PATIENCE_S))}"

    def lose(self) -> None:
        self._bookies[LOST].kill()

    def closed(self) -> int:
        """Ledgers closed by recovery, according to its log."""
        return self._recovery_log.read_text().count("ledger_closed_for_repair")


async def _ledgers(store: MetadataStore, cluster: Cluster) -> list[LedgerMetadata]:
    nodes = LedgerNodes(store, cluster.root, cluster.layout)
    ids = [ledger_id async for ledger_id in nodes.ids()]
    return [stored.metadata for stored in await _each(nodes.read, ids)]


async def _each(do: Callable[[Any], Awaitable[Any]], things: Iterable[Any]) -> list[Any]:
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(thing: Any) -> Any:
        async with turns:
            return await do(thing)

    return list(await asyncio.gather(*map(one, things)))


async def _epoch(client: aio.Client, log: LogName) -> int:
    tail = await client.ask(messages.GetTail(log, messages.Consistency.CACHED))
    return int(tail.owner_epoch)


async def _append(client: aio.Client, log: LogName) -> None:
    await (await client.open(str(log), create=True)).append(b"x")


async def run(idle: Idle, store: MetadataStore, logs: int, say: Callable[[str], None]) -> list[str]:
    """Runs the scenario and returns the failures."""
    cluster = await open_cluster(store, MetadataUrl.parse(idle.url).ledgers_root)
    departures = Departures(store, cluster, SystemClock(), random.SystemRandom())
    names = [LogName("idle", f"log-{number:05d}") for number in range(logs)]
    began_s = time.monotonic()
    async with aio.connect(idle.address) as client:
        await _each(partial(_append, client), names)
        epochs = await _each(partial(_epoch, client), names)
        before = await _ledgers(store, cluster)
        struck = sum(each.names(LOST) or each.names(LEAVING) for each in before)
        say(
            f"{logs} logs, {struck} of {len(before)} ledgers struck: {time.monotonic() - began_s:.1f} s"
        )
        began_s = time.monotonic()
        idle.lose()
        await departures.drain([LEAVING])
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await _ledgers(store, cluster)
                state = (await departures.status([LEAVING]))[LEAVING].lifecycle.state
                if state is LifecycleState.DRAINED and not any(each.names(LOST) for each in found):
                    break
                await asyncio.sleep(1.0)
        say(f"no ledger names {LOST} or {LEAVING}: {time.monotonic() - began_s:.1f} s")
        closed = sum(each.is_closed for each in found) - sum(each.is_closed for each in before)
        await _each(partial(_append, client), names)
        after = await _each(partial(_epoch, client), names)
    moved = sum(one != other for one, other in zip(epochs, after, strict=True))
    wrong = {
        "ledgers that recovery closed": idle.closed(),
        "ledgers that are closed": closed,
        "logs that have another owner epoch": moved,
    }
    return [f"{count} {what}" for what, count in wrong.items() if count]


async def main(logs: int) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="rollbook-idle-") as name, family() as children:
        url = f"sqlite://{name}/metadata.db"
        async with await open_metadata_store(url, serve=True, create=True) as store:
            await initialise(store, MetadataUrl.parse(url).ledgers_root, random.SystemRandom())
            idle = await asyncio.to_thread(Idle, children, Path(name), url)
            return await run(idle, store, logs, print)


if __name__ == "__main__":
    violations = asyncio.run(main(int(sys.argv[1])))
    print("\n".join(f"BROKEN: {each}" for each in violations) or "nobody alive was fenced")
    sys.exit(bool(violations))
