"""One client process of a chaos run of logs. It is driven by lines, and records every response it gets.

    python -m tests.chaos.logs.client ROLE LOG-URL HISTORY-FILE

    writer     appends without end, exactly once, to each free log; and batches that it sends again and
               again, hanging up on answers. On `finish` it settles what it has begun, then `finished`
    racer      appends where it believes the end to be, to each raced log, and asks for ends. `finish`
    tailer     follows all logs from their beginning; on `finish` it waits for their seals, then `finished`
    steward    truncates, rolls, and moves logs from server to server. `finish`
    auditor    seals each log, reads all of it, and its journal; says `finished` by itself

All say `ready` first. What fails is tried again for as long as the process lives.
"""

import asyncio
import os
import random
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rollbook import aio
from rollbook.logservice import messages
from rollbook.logservice.core.record_block import pack_block
from rollbook.logservice.ids import LogName, ProducerRef
from rollbook.proto.errors import LogSealed, Outcome, RollbookError
from tests.chaos.logs.history import HistoryFile, name_in, payload_of

FREE: Final = ("free-1", "free-2", "free-3")
RACED: Final = ("raced-1", "raced-2")
WHOLE: Final = (FREE[2], RACED[1])  # Never truncated.
LOGS: Final = (*FREE, *RACED)

_PAUSE_S: Final = 0.1
_UNSETTLED_MAX: Final = 200
_BURST_MAX: Final = 10
_STREAM_MAX: Final = 2000  # The most records of one writer; then a new writer begins.
_SIZES: Final = (20, 100, 1000)
_KEPT: Final = 300  # The fewest records that truncation leaves.


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


class Client:
    def __init__(self, client: aio.Client, history: HistoryFile, life: str) -> None:
        self.client = client
        self.note = history.note
        self.life = life
        self.chance = random.Random()
        self.is_finishing = False
        self._streams = 0
        self.jobs = [asyncio.create_task(job) for job in self.work()]

    def work(self) -> list[Coroutine[Any, Any, None]]:
        raise NotImplementedError

    async def finish(self) -> None:
        self.is_finishing = True
        await asyncio.gather(*self.jobs)
        say("finished")

    def new_stream(self) -> str:
        self._streams += 1
        return f"{self.life}.{self._streams}"

    def payloads(self, stream: str, first: int, count: int) -> list[bytes]:
        size = self.chance.choice(_SIZES)
        return [payload_of(f"{stream}/{first + index}", size) for index in range(count)]

    async def open(self, name: str) -> aio.Log:
        while True:
            try:
                return await self.client.open(name, create=True)
            except RollbookError:
                await asyncio.sleep(_PAUSE_S)

    def note_failure(self, log: str, stream: str, first: int, count: int, error: Any) -> None:
        kind = "refused" if error.outcome is Outcome.NOT_APPLIED else "unknown"
        self.note(kind, log, stream=stream, first=first, count=count, why=error.code.reason)


# --- Writing ------------------------------------------------------------------------------------


class Writer(Client):
    def work(self) -> list[Coroutine[Any, Any, None]]:
        return [*map(self._write, FREE), *map(self._repeat, FREE)]

    async def _write(self, name: str) -> None:
        log = await self.open(name)
        while not self.is_finishing:
            stream = Stream(log.writer(), self, name)
            while stream.goes_on and not self.is_finishing:
                stream.submit(self.chance.randint(1, _BURST_MAX))
                await asyncio.sleep(self.chance.uniform(0, 0.06))
            await stream.close()

    async def _repeat(self, name: str) -> None:
        """Sends batches with its own producer until they are acked, and then once more."""
        await self.open(name)
        while not self.is_finishing:
            stream, producer = self.new_stream(), os.urandom(16)
            first = 0
            for seq in range(100):
                if self.is_finishing:
                    break
                count = self.chance.randint(1, _BURST_MAX)
                block = bytes(
                    pack_block(
                        self.payloads(stream, first, count), producer=ProducerRef(producer, 0, seq)
                    )
                )
                self.note("append", name, stream=stream, first=first, count=count)
                for kind in ("acked", "again"):
                    ack = await self._send(name, block)
                    offsets = list(range(ack.first_offset, ack.next_offset))
                    epoch = None if ack.is_duplicate else ack.owner_epoch
                    self.note(kind, name, stream=stream, first=first, offsets=offsets, epoch=epoch)
                first += count
                await asyncio.sleep(self.chance.uniform(0, 0.2))

    async def _send(self, name: str, block: bytes) -> messages.AppendAck:
        """Retries without a time limit."""
        request = messages.Append(LogName.parse(name), block)
        while True:
            try:
                async with asyncio.timeout(self.chance.choice((0.003, 0.01, 30))):
                    ack: messages.AppendAck = await self.client.ask(request)
                    return ack
            except (RollbookError, TimeoutError):
                await asyncio.sleep(self.chance.uniform(0, _PAUSE_S))


class Stream:
    """The appends of one exactly-once writer, and their outcomes."""

    def __init__(self, writer: aio.Writer, owner: Client, log: str) -> None:
        self._writer = writer
        self._owner = owner
        self._log = log
        self._name = owner.new_stream()
        self._submitted = self._unsettled = 0
        self._is_failed = False
        self._bursts: dict[asyncio.Task[None], None] = {}

    @property
    def goes_on(self) -> bool:
        return self._submitted < _STREAM_MAX and not self._is_failed

    def submit(self, count: int) -> None:
        """Nothing is sent within this event-loop turn, so appends are recorded before."""
        if self._unsettled + count > _UNSETTLED_MAX:
            return
        first = self._submitted
        self._owner.note("append", self._log, stream=self._name, first=first, count=count)
        payloads = self._owner.payloads(self._name, first, count)
        submissions: list[aio.Submission] = []
        with suppress(
            RollbookError
        ):  # The writer has ended; the remaining records are not in the log, for certain.
            submissions.extend(map(self._writer.submit, payloads))
        refused = count - len(submissions)
        if refused:
            self._is_failed = True
            told = {"first": first + len(submissions), "count": refused, "why": "ENDED"}
            self._owner.note("refused", self._log, stream=self._name, **told)
        self._submitted += count
        self._unsettled += count
        task = asyncio.create_task(self._settle(first, submissions))
        self._bursts[task] = None
        task.add_done_callback(self._bursts.pop)

    async def _settle(self, first: int, submissions: list[aio.Submission]) -> None:
        offsets: list[int] = []
        failures: list[tuple[int, RollbookError]] = []
        for number, submission in enumerate(submissions, first):
            try:
                offsets.append(await submission)
            except RollbookError as error:
                failures.append((number, error))
        self._unsettled -= len(submissions)
        if offsets:
            told = {"first": first, "offsets": offsets, "epoch": None}
            self._owner.note("acked", self._log, stream=self._name, **told)
        for number, failure in failures:
            self._is_failed = True
            self._owner.note_failure(self._log, self._name, number, 1, failure)

    async def close(self) -> None:
        with suppress(RollbookError):
            await self._writer.close()
        await asyncio.gather(*self._bursts)


class Racer(Client):
    def work(self) -> list[Coroutine[Any, Any, None]]:
        return [*map(self._race, RACED), *map(self._ask, LOGS)]

    async def _race(self, name: str) -> None:
        log, stream = await self.open(name), self.new_stream()
        number = expect = 0
        while not self.is_finishing:
            count = self.chance.randint(1, 3)
            self.note("append", name, stream=stream, first=number, count=count, expect=expect)
            try:
                ack = await log.append_many(self.payloads(stream, number, count), expect=expect)
            except RollbookError as error:
                self.note_failure(name, stream, number, count, error)
                expect = await self._tail_of(log, expect)
            else:
                offsets = list(range(ack.first_offset, ack.next_offset))
                epoch = None if ack.is_duplicate else ack.owner_epoch
                self.note("acked", name, stream=stream, first=number, offsets=offsets, epoch=epoch)
                expect = ack.next_offset
            number += count
            await asyncio.sleep(self.chance.uniform(0, 0.05))

    async def _tail_of(self, log: aio.Log, default: int) -> int:
        try:
            return await log.tail_offset()
        except RollbookError:
            await asyncio.sleep(_PAUSE_S)
            return default

    async def _ask(self, name: str) -> None:
        log = await self.open(name)
        while not self.is_finishing:
            self.note("asked", name)
            with suppress(RollbookError):
                self.note("tail", name, tail=await log.tail_offset("barrier"))
            await asyncio.sleep(self.chance.uniform(0, 0.5))


class Steward(Client):
    def work(self) -> list[Coroutine[Any, Any, None]]:
        return [self._truncate(), self._move()]

    async def _truncate(self) -> None:
        logs = [await self.open(name) for name in LOGS if name not in WHOLE]
        while not self.is_finishing:
            log = self.chance.choice(logs)
            with suppress(RollbookError):
                tail = await log.tail_offset()
                before = max(0, tail - _KEPT - self.chance.randrange(_KEPT))
                self.note("truncate", log.name.name, before=before)
                await log.truncate(before, force_roll=self.chance.random() < 0.3)
            await asyncio.sleep(self.chance.uniform(0.2, 1))

    async def _move(self) -> None:
        logs = [await self.open(name) for name in LOGS]
        while not self.is_finishing:
            log = self.chance.choice(logs)
            with suppress(RollbookError):
                if self.chance.random() < 0.6:
                    await log.roll()
                else:
                    server = self.chance.choice(await self.client.servers())
                    await self.client.transfer(str(log.name), server.server_id)
            await asyncio.sleep(self.chance.uniform(0, 1))


# --- Reading ------------------------------------------------------------------------------------


class Reader(Client):
    async def follow(self, name: str) -> None:
        """Reads the log from its beginning to its seal."""
        log = await self.open(name)
        self.note("begin", name)
        position: int | None = None
        while True:
            reader = log.events("earliest" if position is None else position, skip_truncated=True)
            try:
                async for event in reader:
                    position = self.hear(name, event, position)
                    if isinstance(event, messages.Sealed):
                        return
            except RollbookError:
                await asyncio.sleep(_PAUSE_S)
            finally:
                await reader.aclose()

    def hear(self, name: str, event: Any, position: int | None) -> int | None:
        match event:
            case aio.RecordBatch():
                names = [name_in(value) for value in event.values()]
                if None in names:
                    self.note("odd", name, offset=event.base_offset + names.index(None))
                self.note("read", name, offset=event.base_offset, names=names)
                return event.next_offset
            case messages.Gap():
                self.note("gap", name, start=event.start, end=event.end, why=event.kind.value)
                return event.end
            case messages.Sealed():
                self.note("sealed", name, tail=event.tail)
        return position


class Tailer(Reader):
    def work(self) -> list[Coroutine[Any, Any, None]]:
        return [*map(self.follow, LOGS)]


class Auditor(Reader):
    def work(self) -> list[Coroutine[Any, Any, None]]:
        return [*map(self._audit, LOGS)]

    async def _audit(self, name: str) -> None:
        log = await self.open(name)
        while True:
            try:
                tail = await log.seal()
                break
            except LogSealed:
                tail = await log.tail_offset()
                break
            except RollbookError:
                await asyncio.sleep(_PAUSE_S)
        self.note("sealed", name, tail=tail)
        while True:
            try:
                head = await log.head_offset()
                self.note("begin", name)
                async for batch in log.read_batches(head, tail):
                    self.hear(name, batch, None)
                for event in await log.journal(10_000):
                    if event.kind == "log_opened":
                        told = {"server": event.server, "at_us": event.time_us}
                        reason = event.reason
                        self.note("owner", name, epoch=event.owner_epoch, reason=reason, **told)
                break
            except RollbookError:
                await asyncio.sleep(_PAUSE_S)
        self.note("audited", name, offset=head, tail=tail)


# --- The process --------------------------------------------------------------------------------

ROLES: Final = {role.__name__.lower(): role for role in (Writer, Racer, Steward, Tailer, Auditor)}


async def live(role: str, url: str, path: Path) -> None:
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def hear() -> None:
        for line in os.read(0, 1 << 16).decode().split():
            lines.put_nowait(line)

    loop.add_reader(0, hear)
    async with aio.connect(url, wait_s=60) as client:
        actor = ROLES[role](client, HistoryFile(path), path.name)
        say("ready")
        if isinstance(actor, Auditor):
            await actor.finish()
        assert await lines.get() == "finish"
        await actor.finish()
        await asyncio.Event().wait()  # Waits to be killed.


if __name__ == "__main__":
    asyncio.run(live(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
