"""The cost of attacks to a real bookie process, and their effect on other clients."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rollbook.proto.ids import NO_ENTRY
from rollbook.proto.ports import Address
from rollbook.proto.wire.add_columns import AddReplies
from tests.hostile.attacks import Attack, Mob, all_have_ended, attacks
from tests.support import bookies, commands, processes
from tests.support.bookie_client import connect
from tests.support.bookies import RunningBookie

PATIENCE_S: Final = 120.0
_GOOD_CHUNK: Final = 10
_GOOD_PAUSE_S: Final = 0.01
_QUIET_S: Final = 0.2
_SETTLES_S: Final = 5.0
_LINGER_S: Final = 1.0  # Time for connections that stay open to have an effect.


@dataclass(frozen=True)
class Cost:
    """The cost of a number of connections together."""

    connections: int
    cpu_s: float
    grown_bytes: int  # The peak, over the memory before.
    ended: int  # Attacks that ended as required.

    @property
    def cpu_ms_each(self) -> float:
        return 1000 * self.cpu_s / self.connections

    @property
    def bytes_each(self) -> float:
        return self.grown_bytes / self.connections


@contextmanager
def bookie(folder: Path, settings: Mapping[str, str] = {}) -> Iterator[RunningBookie]:
    url = f"sqlite://{folder}/metadata.db"
    commands.run("cluster", "init", "--metadata", url).check_returncode()
    with processes.family() as children:
        found = bookies.start(children, folder, url, "--log-level", "error", environment=settings)
        found.wait_ready()
        asyncio.run(_warm_up(found.address))
        yield found


async def _warm_up(address: Address) -> None:
    """Run a client of each version, so that one-time allocations do not count as attack costs."""
    for version in (2, 3):
        good = Good(version)
        await good.begin(address)
        await good.work(40)
        await good.end()


def cost_of(found: RunningBookie, attack: Attack, count: int) -> Cost:
    before, cpu_s = found.resident_bytes, found.cpu_s
    found.forget_peak()
    with Mob(found.address) as mob:
        mob.add(attack, count)
        mob.run(all_have_ended, PATIENCE_S)
        _settle(found)
        ended = sum(member.has_ended for member in mob.members)
        grown = found.most_resident_bytes - before
    _settle(found)
    return Cost(count, found.cpu_s - cpu_s, max(0, grown), ended)


def _settle(found: RunningBookie) -> None:
    """Wait until the bookie uses no processor time, but at most `_SETTLES_S`."""
    deadline = time.monotonic() + _SETTLES_S
    last, now = -1.0, found.cpu_s
    while now != last and time.monotonic() < deadline:
        time.sleep(_QUIET_S)
        last, now = now, found.cpu_s


async def cost_of_all(found: RunningBookie, count: int) -> tuple[Cost, "Good"]:
    """Run attacks of all kinds at once; returns their cost and the good client that ran with them."""
    good = Good(2)
    await good.begin(found.address)
    before, cpu_s = found.resident_bytes, found.cpu_s
    found.forget_peak()
    kinds = attacks()
    with Mob(found.address) as mob:
        for at, attack in enumerate(kinds):
            mob.add(attack, len(range(at, count, len(kinds))))
        working = asyncio.create_task(good.work_until_told())
        since = time.monotonic()

        def is_over(mob: Mob) -> bool:
            return time.monotonic() > since + _LINGER_S and all_have_ended(mob)

        await asyncio.to_thread(mob.run, is_over, PATIENCE_S)
        ended = sum(member.has_ended for member in mob.members)
        good.is_told = True
        await working
        grown = found.most_resident_bytes - before
    await good.end()
    return Cost(count, found.cpu_s - cpu_s, max(0, grown), ended), good


class Good:
    """A well-behaved client that counts its adds and refusals."""

    def __init__(self, version: int) -> None:
        self.added = 0
        self.refused = 0
        self.latencies_s: list[float] = []
        self.is_told = False
        self._version = version
        self._answered = 0

    async def begin(self, address: Address) -> None:
        self._client = await connect(address, version=self._version)
        self._client.on_adds = self._on_adds
        self._writer = self._client.ledger(self._version)

    def _on_adds(self, replies: AddReplies) -> None:
        self._answered += len(replies.entry_ids)
        if replies.error is None:
            self.added += len(replies.entry_ids)
        else:
            self.refused += len(replies.entry_ids)

    async def work_until_told(self) -> None:
        while not self.is_told:
            await self.work(1)
            await asyncio.sleep(_GOOD_PAUSE_S)

    async def work(self, chunks: int) -> None:
        for _ in range(chunks):
            sent = self._answered + _GOOD_CHUNK
            began = time.perf_counter()
            self._client.send(
                b"".join(
                    self._writer.pack(entry_id, NO_ENTRY, bytes(100))
                    for entry_id in range(self._answered, sent)
                )
            )
            async with asyncio.timeout(PATIENCE_S):
                while self._answered < sent:
                    if self._client.lost.done():
                        raise ConnectionError(
                            "the bookie hung up on a client that did nothing wrong"
                        )
                    await asyncio.sleep(0.0005)
            self.latencies_s.append(time.perf_counter() - began)

    async def end(self) -> None:
        await self._client.close()
