"""Clients that work on one bookie, in both protocols, and report everything to the judge.

Each lane has one ledger at a time, which it fills, reads, fences, completes as a recovery does, and
leaves or deletes; then it takes a new one. The judge handles requests in flight when the bookie
dies.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from rollbook.proto.errors import BookieFailed, ConnectionLost
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.ports import Address
from rollbook.proto.wire.add_columns import AddReplies
from rollbook.proto.wire.messages import (
    BatchRead,
    BatchReadReply,
    EntryRead,
    ForceLedger,
    ForceLedgerReply,
    ListEntries,
    ListEntriesReply,
    ReadLac,
    ReadLacReply,
    ReadReply,
    WriteLac,
    WriteLacReply,
)
from tests.crash.bookie_judge import Judge, payload_of
from tests.support.bookie_client import CALL_TIMEOUT_S, KEY, BookieClient, LedgerWriter, connect

_LANES: Final = 6
_WINDOW: Final = 150  # Maximum number of adds in flight per lane.
_CHUNK_MAX: Final = 24
_LEDGER_ENTRIES: Final = 1500  # After about this many entries the lane takes another ledger.
_READS_AT_ONCE: Final = 200
_DEFERRED_EVERY: Final = (
    5  # One in this many lanes, from the fourth on, defers the sync of some adds.
)
_READS_OF_THE_LAST: Final = 5
_OLD_LEDGERS: Final = 4  # Old ledgers that are checked after each crash, besides those in use.

Delete = Callable[[int], Awaitable[None]]


class Load:
    """For each life of the bookie: `begin`, then `crash` or `rest`, then `begin` again."""

    def __init__(self, judge: Judge, seed: int, delete: Delete | None = None) -> None:
        self.judge = judge
        self._chance = random.Random(seed)
        self._ledger_ids = itertools.count(1)
        self._delete = delete
        self._clients: list[BookieClient] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._lanes: list[Lane] = []
        self._is_resting = False

    async def begin(self, address: Address) -> None:
        self._is_resting = False
        self._clients = [await connect(address, version=version) for version in (2, 3)]
        for client in self._clients:
            client.on_adds = self._on_adds
        if not self._lanes:
            self._lanes = [
                Lane(self.judge, self._chance, number, self._ledger_ids, self._delete)
                for number in range(_LANES)
            ]
        await self._look_back()
        self._tasks = [
            asyncio.create_task(self._work(lane, self._clients[number % len(self._clients)]))
            for number, lane in enumerate(self._lanes)
        ]

    async def _work(self, lane: "Lane", client: BookieClient) -> None:
        try:
            lane.take(client)
            while not self._is_resting:
                await lane.step()
        except ConnectionLost:
            pass

    def _on_adds(self, replies: AddReplies) -> None:
        for entry_id in replies.entry_ids:
            self.judge.on_add_reply(replies.ledger_id, entry_id, replies.error)
        for lane in self._lanes:
            if lane.ledger_id == replies.ledger_id:
                lane.on_answered(replies.entry_ids)

    async def crash(self) -> None:
        """The bookie is dead: reads the responses that it still sent."""
        for client in self._clients:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await client.lost
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await asyncio.gather(*self._tasks)
        for lane in self._lanes:
            lane.on_crash()
        self.judge.on_crash()

    async def rest(self) -> None:
        """Each lane completes its requests; the connections stay open."""
        self._is_resting = True
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await asyncio.gather(*self._tasks)
            while self.judge.in_flight:
                await asyncio.sleep(0.01)

    async def end(self) -> None:
        for client in self._clients:
            client.abort()
            await client.lost

    async def promise_some(self) -> None:
        """Fences one ledger and deletes one, which the lanes do only sometimes."""
        client = self._clients[1]
        await fence(self.judge, client, next(self._ledger_ids), 0)
        ledger_id = await self.recover_one()
        if self._delete:
            self.judge.ask_deletion(ledger_id)
            await self._delete(ledger_id)
            self.judge.on_deleted(ledger_id)

    async def recover_one(self) -> int:
        """Fences a ledger and adds to it as a recovery does, even on a full disk."""
        ledger_id, client = next(self._ledger_ids), self._clients[1]
        await fence(self.judge, client, ledger_id, 0)
        writer = client.ledger(ledger_id, self.judge.of(ledger_id).digest.kind)
        entry_id = next(
            each for each in itertools.count() if len(payload_of(ledger_id, each)) <= 16
        )
        payload = payload_of(ledger_id, entry_id)
        self.judge.on_sent(ledger_id, entry_id, NO_ENTRY, is_recovery=True)
        frame = writer.pack(entry_id, NO_ENTRY, payload, is_recovery=True, is_high_priority=True)
        client.send(frame)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while entry_id in self.judge.of(ledger_id).in_flight:
                await asyncio.sleep(0.001)
        if entry_id not in self.judge.of(ledger_id).promised:
            self.judge.violations.append("no ledger can be recovered")
        return ledger_id

    async def check(self) -> None:
        """Raises the error of a failed lane, or `ConnectionLost` if the bookie closed a connection."""
        for task in self._tasks:
            if task.done():
                await task
        if any(client.lost.done() for client in self._clients):
            raise ConnectionLost("the bookie hung up on a client at work")

    # --- Looking back -------------------------------------------------------------------------

    async def _look_back(self) -> None:
        """After a crash: reads recent entries of current ledgers, and some older ones."""
        judge, chance = self.judge, self._chance
        recent = [lane.ledger_id for lane in self._lanes if lane.ledger_id]
        older = [ledger_id for ledger_id in judge.ledgers if ledger_id not in recent]
        for ledger_id in (*recent, *chance.sample(older, min(_OLD_LEDGERS, len(older)))):
            ledger = judge.of(ledger_id)
            entry_ids = sorted(ledger.promised | ledger.perhaps)
            doubtful = sorted(ledger.perhaps)
            picked = [
                *entry_ids[-40:],
                *doubtful,
                *chance.sample(entry_ids, min(10, len(entry_ids))),
            ]
            await self._read_all(ledger_id, list(dict.fromkeys(picked)))
            await self._try_fence(ledger_id)

    async def read_back_everything(self) -> None:
        for ledger_id, ledger in self.judge.ledgers.items():
            known = ledger.promised | ledger.perhaps | ledger.denied
            beyond = max(known, default=NO_ENTRY) + 1
            await self._read_all(ledger_id, [*sorted(known), beyond])
            await self._try_fence(ledger_id)
            client = self._clients[1]
            asked = frozenset(ledger.promised)
            listed = await client.call(ListEntries(LedgerId(ledger_id)))
            assert isinstance(listed, ListEntriesReply)
            self.judge.on_list(ledger_id, asked, listed.error, listed.entries)
            await read_lac(self.judge, client, ledger_id)

    async def _read_all(self, ledger_id: int, entry_ids: list[int]) -> None:
        client = self._chance.choice(self._clients)
        for start in range(0, len(entry_ids), _READS_AT_ONCE):
            some = entry_ids[start : start + _READS_AT_ONCE]
            await asyncio.gather(*(read(self.judge, client, ledger_id, each) for each in some))

    async def _try_fence(self, ledger_id: int) -> None:
        """Tests a fence or deletion by an add that must be refused."""
        ledger = self.judge.of(ledger_id)
        if not (ledger.is_fenced or ledger.is_deleted):
            return
        client = self._clients[0]
        entry_id = max(ledger.promised | ledger.perhaps | ledger.denied, default=NO_ENTRY) + 1
        writer = client.ledger(ledger_id, ledger.digest.kind)
        self.judge.on_sent(ledger_id, entry_id, ledger.lac_ceiling)
        client.send(writer.pack(entry_id, ledger.lac_ceiling, payload_of(ledger_id, entry_id)))
        # Responses have no order, so wait for the response to this add.
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while entry_id in ledger.in_flight and not client.lost.done():
                await asyncio.sleep(0.001)


class Lane:
    def __init__(
        self,
        judge: Judge,
        chance: random.Random,
        number: int,
        ledger_ids: "itertools.count[int]",
        delete: Delete | None,
    ) -> None:
        self.ledger_id = 0
        self._judge = judge
        self._chance = chance
        self._ledger_ids = ledger_ids
        self._delete = delete
        self._may_defer = number % _DEFERRED_EVERY == 3
        self._client: BookieClient
        self._writer: LedgerWriter
        self._next = 0
        self._outstanding: dict[int, None] = {}
        self._answered = asyncio.Event()

    def take(self, client: BookieClient) -> None:
        self._client = client
        if not self.ledger_id:
            self._begin_ledger()
        self._writer = client.ledger(self.ledger_id, self._judge.of(self.ledger_id).digest.kind)

    def _begin_ledger(self) -> None:
        self.ledger_id, self._next = next(self._ledger_ids), 0
        self._outstanding.clear()

    def on_answered(self, entry_ids: Sequence[EntryId]) -> None:
        for entry_id in entry_ids:
            self._outstanding.pop(entry_id, None)
        self._answered.set()

    def on_crash(self) -> None:
        self._outstanding.clear()
        self._answered.set()

    async def step(self) -> None:
        chance = self._chance
        await self._client.drain()
        if len(self._outstanding) > _WINDOW:
            await self._wait_for_answers(_WINDOW // 2)
        what = chance.random()
        if what < 0.80 or self._next == 0:
            self._add(self._pick_new())
        elif what < 0.83:
            self._add(self._pick_old())
        elif what < 0.90:
            await self._read_some()
        elif what < 0.93:
            await self._batch_read()
        elif what < 0.96 and self._client.version == 3:
            await self._write_lac()
        elif what < 0.97 and self._client.version == 3:
            await read_lac(self._judge, self._client, self.ledger_id)
        elif what < 0.98 and self._client.version == 3 and self._may_defer:
            await self._force()
        elif what < 0.985:
            await self._fence_one_never_seen()
        if self._next > _LEDGER_ENTRIES * chance.uniform(0.1, 2):
            await self._end_ledger()
        await asyncio.sleep(0 if chance.random() < 0.7 else 0.002)

    async def _wait_for_answers(self, left: int) -> None:
        while len(self._outstanding) > left:
            self._answered.clear()
            waiting = asyncio.ensure_future(self._answered.wait())
            await asyncio.wait(
                (waiting, self._client.lost),
                timeout=CALL_TIMEOUT_S,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._client.lost.done():
                waiting.cancel()
                raise ConnectionLost
            if not waiting.done():
                waiting.cancel()
                raise TimeoutError(f"adds of ledger {self.ledger_id} are not answered")

    # --- Adds ---------------------------------------------------------------------------------

    def _pick_new(self) -> list[int]:
        if self._chance.random() < 0.02:
            self._next += self._chance.randint(1, 3)  # Other bookies hold the skipped entries.
        first = self._next
        self._next += self._chance.choice((1, 1, 2, 5, _CHUNK_MAX))
        return list(range(first, self._next))

    def _pick_old(self) -> list[int]:
        """Entries that are added again, as by a recovery."""
        count = self._chance.randint(1, 3)
        picked = dict.fromkeys(self._chance.randrange(self._next) for _ in range(count))
        return [entry_id for entry_id in picked if entry_id not in self._outstanding]

    def _add(self, entry_ids: list[int], *, is_recovery: bool = False) -> None:
        ledger = self._judge.of(self.ledger_id)
        is_deferred = (
            self._may_defer
            and self._client.version == 3
            and not is_recovery
            and self._chance.random() < 0.3
        )
        lac = max(NO_ENTRY, min(self._next - _CHUNK_MAX, ledger.lac_floor + 1), ledger.lac_floor)
        frames: list[bytes] = []
        for entry_id in entry_ids:
            self._judge.on_sent(
                self.ledger_id,
                entry_id,
                lac,
                is_recovery=is_recovery,
                is_sync_deferred=is_deferred,
            )
            self._outstanding[entry_id] = None
            payload = payload_of(self.ledger_id, entry_id)
            frames.append(
                self._writer.pack(
                    entry_id,
                    lac,
                    payload,
                    is_recovery=is_recovery,
                    is_high_priority=is_recovery,
                    is_sync_deferred=is_deferred,
                )
            )
        self._client.send(b"".join(frames))

    async def _force(self) -> None:
        asked = self._judge.ask_force(self.ledger_id)
        reply = await self._client.call(ForceLedger(LedgerId(self.ledger_id)))
        assert isinstance(reply, ForceLedgerReply)
        if reply.error is None:
            self._judge.on_forced(self.ledger_id, asked)

    # --- Reads --------------------------------------------------------------------------------

    async def _read_some(self) -> None:
        picked = [self._chance.randrange(self._next + 3) for _ in range(_READS_OF_THE_LAST)]
        await asyncio.gather(
            *(read(self._judge, self._client, self.ledger_id, each) for each in picked)
        )

    async def _batch_read(self) -> None:
        if self._client.version == 3:
            return  # Only version 2 has this request.
        first = self._chance.randrange(self._next)
        questions = [self._judge.ask(self.ledger_id, first + at) for at in range(20)]
        request = BatchRead(
            LedgerId(self.ledger_id),
            EntryId(first),
            request_id=self._chance.randrange(1 << 30),
            count_max=len(questions),
            bytes_max=1 << 20,
        )
        reply = await self._client.call(request)
        assert isinstance(reply, BatchReadReply)
        if reply.error is not None:
            self._judge.on_read(self.ledger_id, first, questions[0], reply.error, None)
        for at, body in enumerate(reply.bodies):
            self._judge.on_read(self.ledger_id, first + at, questions[at], None, body)

    # --- Fences, explicit LACs, deletions -------------------------------------------------------

    async def _write_lac(self) -> None:
        ledger = self._judge.of(self.ledger_id)
        lac = EntryId(ledger.lac_floor)
        if lac < 0:
            return
        self._judge.ask_explicit_lac(self.ledger_id, lac)
        packet = ledger.digest.pack_lac(lac)
        reply = await self._client.call(WriteLac(LedgerId(self.ledger_id), lac, KEY, packet))
        assert isinstance(reply, WriteLacReply)
        if reply.error is None:
            self._judge.on_explicit_lac(self.ledger_id, lac)

    async def _fence_one_never_seen(self) -> None:
        await fence(self._judge, self._client, next(self._ledger_ids), NO_ENTRY + 1)

    async def _end_ledger(self) -> None:
        """As in a recovery, fences, reads and adds missing entries; then leaves or deletes the ledger."""
        judge, chance = self._judge, self._chance
        if chance.random() < 0.5:
            await self._wait_for_answers(0)
        await fence(judge, self._client, self.ledger_id, max(0, self._next - 5))
        for entry_id in range(max(0, self._next - 10), self._next + 3):
            await read(judge, self._client, self.ledger_id, entry_id)
        self._add(self._pick_new())  # These adds have to be refused.
        missing = sorted(judge.of(self.ledger_id).denied)[:5]
        self._add([e for e in missing if e not in self._outstanding], is_recovery=True)
        await self._wait_for_answers(0)
        if self._delete and chance.random() < 0.3:
            judge.ask_deletion(self.ledger_id)
            await self._delete(self.ledger_id)
            judge.on_deleted(self.ledger_id)
        self._begin_ledger()
        self.take(self._client)


async def read(judge: Judge, client: BookieClient, ledger_id: int, entry_id: int) -> None:
    question = judge.ask(ledger_id, entry_id)
    reply = await client.call(EntryRead(LedgerId(ledger_id), EntryId(entry_id)))
    assert isinstance(reply, ReadReply)
    judge.on_read(ledger_id, entry_id, question, reply.error, reply.body, reply.last_add_confirmed)


async def fence(judge: Judge, client: BookieClient, ledger_id: int, entry_id: int) -> None:
    judge.ask_fence(ledger_id)
    question = replace(judge.ask(ledger_id, entry_id), is_behind_fence=True)
    request = EntryRead(LedgerId(ledger_id), EntryId(entry_id), KEY, fence=True)
    reply = await client.call(request, is_high_priority=True)
    assert isinstance(reply, ReadReply)
    if reply.error is not BookieFailed:
        judge.on_fenced(ledger_id)
    judge.on_read(ledger_id, entry_id, question, reply.error, reply.body)


async def read_lac(judge: Judge, client: BookieClient, ledger_id: int) -> None:
    floor = judge.of(ledger_id).explicit_lac_floor
    reply = await client.call(ReadLac(LedgerId(ledger_id)))
    assert isinstance(reply, ReadLacReply)
    judge.on_lac_packet(ledger_id, floor, reply.packet)
