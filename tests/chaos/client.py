"""One client process of a chaos run. It is driven by lines, and records every response it gets.

    python -m tests.chaos.client ROLE METADATA-URL HISTORY-FILE FLAW-OR-MINUS

    writer     makes ledgers and fills them; most it closes, some it leaves. Says `ledger ID`,
               `left ID` for one that it will not close; on `finish` it makes no more, then `finished`
    recoverer  `recover ID`: until it is closed, then `closed ID`. `close all`: whatever metadata says
               is open, `open COUNT`; `all closed` when nothing is
    tailer     `tail ID`: follows it to its end
    auditor    `audit`: reads every ledger and every copy, says `progress DONE TOTAL`, then `audited`

All say `ready` once they know the cluster. What fails is tried again for as long as the process lives.
"""

import asyncio
import functools
import os
import random
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.core.copy_comparison import CopyState
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.open_client import connect
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.errors import NoSuchLedger, Outcome, RollbookError
from rollbook.proto.ids import EntryId
from tests.chaos.flaws import FLAWS
from tests.chaos.history import NOT_CLOSED, HistoryFile, is_as_written, payload_of

CONFIG: Final = ClientConfig(
    add_deadline_s=2.0, read_deadline_s=2.0
)  # Short time-outs: more happens in a given time.
_PAUSE_S: Final = 0.2  # Pause after a failure.
_UNCONFIRMED_MAX: Final = 64  # The most appends that can end unknown, plus one burst.
_BURST_MAX: Final = 12
_ENTRIES_MAX: Final = 1000
_LEFT_AT_MAX: Final = 300
_IN_FLIGHT_S: Final = 0.0003  # Long enough to send entries, too short to sync them.
_AT_ONCE_MAX: Final = 16
_AUDITS_AT_ONCE: Final = 4
_METADATA_AT_ONCE: Final = 64
_AUDIT_ATTEMPTS: Final = 40


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


class Client:
    """What all roles share: commands are taken in order, and work runs beside them."""

    config = CONFIG

    def __init__(self, ledgers: Ledgers, history: HistoryFile) -> None:
        self.ledgers = ledgers
        self.note = history.note
        self.chance = random.Random()  # Unseeded: the machine's timing is random anyway.
        self._turns = asyncio.Semaphore(_AT_ONCE_MAX)
        self._ends: dict[int, int] = {}  # Ends of ledgers that are closed in the metadata.
        self._under_way: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def obey(self, command: str) -> None:
        raise NotImplementedError

    def begin(self, what: str, ledger_id: int, work: Coroutine[Any, Any, None]) -> None:
        """Starts the work unless it is already running for this ledger."""
        key = what, ledger_id
        if key in self._under_way:
            work.close()
            return
        task = asyncio.create_task(self._in_turn(work))
        self._under_way[key] = task
        task.add_done_callback(lambda _: self._under_way.pop(key))

    async def _in_turn(self, work: Coroutine[Any, Any, None]) -> None:
        async with self._turns:
            await work

    async def surely(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Retries until the attempt succeeds or the ledger does not exist."""
        while True:
            try:
                await attempt()
            except NoSuchLedger:
                return
            except RollbookError:
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def all_ledgers(self) -> dict[int, int]:
        """All ledgers with their ends, read concurrently: there may be thousands."""
        ids = [int(ledger_id) async for ledger_id in self.ledgers.list()]
        unknown = [ledger_id for ledger_id in ids if ledger_id not in self._ends]
        for begin in range(0, len(unknown), _METADATA_AT_ONCE):
            await asyncio.gather(*map(self._learn_end, unknown[begin : begin + _METADATA_AT_ONCE]))
        return {ledger_id: self._ends.get(ledger_id, NOT_CLOSED) for ledger_id in ids}

    async def _learn_end(self, ledger_id: int) -> None:
        end = (await self.ledgers.metadata(ledger_id, fresh=True)).metadata.last_entry
        if end is not None:
            self._ends[ledger_id] = int(end)


# --- Writing ------------------------------------------------------------------------------------


class Ending(Enum):
    """How a writer ends a ledger: it closes it, or leaves it at one of the worst moments."""

    CLOSED = "closed"
    UNTOLD = "the last entries are confirmed, and no bookie knows"
    IN_FLIGHT = "the last entries are on their way"


class Writer(Client):
    quorums: tuple[tuple[int, int, int], ...] = (
        (3, 3, 2),
        (3, 2, 2),
        (4, 3, 2),
        (5, 3, 2),
        (3, 3, 3),
        (5, 5, 3),
    )

    def __init__(self, ledgers: Ledgers, history: HistoryFile) -> None:
        super().__init__(ledgers, history)
        self._is_finishing = False
        self._endings = deque((Ending.UNTOLD, Ending.IN_FLIGHT, Ending.CLOSED, Ending.CLOSED))
        self._told: list[tuple[str, int]] = []  # Outcomes that are not recorded yet.
        self._work = asyncio.create_task(self._write())

    async def obey(self, command: str) -> None:
        assert command == "finish"
        self._is_finishing = True
        await self._work
        say("finished")

    async def _write(self) -> None:
        while not self._is_finishing:
            ensemble, write, ack = self.chance.choice(self.quorums)
            try:
                writer = await self.ledgers.create(ensemble=ensemble, write=write, ack=ack)
            except RollbookError:
                await asyncio.sleep(_PAUSE_S)
                continue
            self.note("create", writer.ledger_id)
            say(f"ledger {writer.ledger_id}")
            if not await self._fill(writer):
                say(f"left {writer.ledger_id}")

    async def _fill(self, writer: LedgerWriter) -> bool:
        """Fills the ledger and returns whether it was closed."""
        ending = self._endings[0]
        self._endings.rotate(-1)
        count = self.chance.randrange(_ENTRIES_MAX if ending is Ending.CLOSED else _LEFT_AT_MAX)
        with suppress(RollbookError):
            while writer.last_appended < count and not self._is_finishing:
                if writer.failure is not None:
                    break
                if writer.last_appended - writer.last_add_confirmed < _UNCONFIRMED_MAX:
                    self._append(writer, self.chance.randint(1, _BURST_MAX))
                await asyncio.sleep(self.chance.uniform(0, 0.04))
        if ending is not Ending.CLOSED:
            await self._leave(writer, ending)
            return False
        self.note("closing", writer.ledger_id)
        try:
            await writer.close()
        except RollbookError:
            return False
        assert writer.metadata.last_entry is not None
        self.note("closed", writer.ledger_id, last=writer.metadata.last_entry)
        return True

    async def _leave(self, writer: LedgerWriter, ending: Ending) -> None:
        with suppress(RollbookError):
            self._append(writer, _BURST_MAX)
            if ending is Ending.UNTOLD:
                await writer.flush()
            else:
                await asyncio.sleep(_IN_FLIGHT_S)
        await writer.stop()
        await asyncio.sleep(0)  # Lets the callbacks of the futures run.

    def _append(self, writer: LedgerWriter, count: int) -> None:
        """Nothing is sent within this event-loop turn, so appends are recorded before."""
        first = writer.last_appended + 1
        try:
            for number in range(first, first + count):
                size = self.chance.choice((20, 100, 1000, 5000))
                future = writer.append(payload_of(writer.ledger_id, number, size))
                future.add_done_callback(functools.partial(self._on_told, writer, number))
        finally:
            if writer.last_appended >= first:
                self.note("append", writer.ledger_id, first, writer.last_appended)

    def _on_told(
        self, writer: LedgerWriter, number: int, future: "asyncio.Future[EntryId]"
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            kind = "acked" if future.result() == number else "misplaced"
        elif isinstance(error, RollbookError) and error.outcome is Outcome.NOT_APPLIED:
            kind = "refused"
        else:
            kind = "unsettled"
        self._told.append((kind, number))
        if len(self._told) == 1:
            asyncio.get_running_loop().call_soon(self._write_down, int(writer.ledger_id))

    def _write_down(self, ledger_id: int) -> None:
        """Records one line for each run of equal outcomes."""
        told, self._told = self._told, []
        begin = 0
        for index in range(1, len(told) + 1):
            kind, number = told[begin]
            if index == len(told) or told[index] != (kind, number + index - begin):
                self.note(kind, ledger_id, number, told[index - 1][1])
                begin = index


# --- Recovering ---------------------------------------------------------------------------------


class Recoverer(Client):
    async def obey(self, command: str) -> None:
        if command == "close all":
            await self.surely(self._close_all)
            say("all closed")
        else:
            ledger_id = int(command.removeprefix("recover "))
            self.begin("recover", ledger_id, self._recover_surely(ledger_id))

    async def _recover_surely(self, ledger_id: int) -> None:
        await self.surely(lambda: self._recover(ledger_id))
        say(f"closed {ledger_id}")

    async def _recover(self, ledger_id: int) -> None:
        self.note("closing", ledger_id)
        async with await self.ledgers.open_recover(ledger_id) as reader:
            self.note("closed", ledger_id, last=reader.last_add_confirmed)

    async def _close_all(self) -> None:
        while True:
            found = await self.all_ledgers()
            still_open = [each for each, end in found.items() if end == NOT_CLOSED]
            say(f"open {len(still_open)}")
            if not still_open:
                return
            turns = asyncio.Semaphore(_AT_ONCE_MAX)

            async def close(ledger_id: int, turns: asyncio.Semaphore = turns) -> None:
                async with turns:
                    await self.surely(lambda: self._recover(ledger_id))

            await asyncio.gather(*(close(each) for each in still_open))


# --- Reading ------------------------------------------------------------------------------------


class Tailer(Client):
    async def obey(self, command: str) -> None:
        ledger_id = int(command.removeprefix("tail "))
        self.begin("tail", ledger_id, self._tail_surely(ledger_id))

    async def _tail_surely(self, ledger_id: int) -> None:
        following = 0

        async def attempt() -> None:
            nonlocal following
            async with await self.ledgers.open_tailing(ledger_id) as reader:
                self.note("follow", ledger_id, following)
                async for news in reader.follow(EntryId(following)):
                    self.on_shown(ledger_id, news.entries)
                    following += len(news.entries)
                self.note("ended", ledger_id, last=reader.last_add_confirmed)

        await self.surely(attempt)

    def on_shown(self, ledger_id: int, entries: Any) -> None:
        note_shown(self.note, ledger_id, entries)


def note_shown(note: Callable[..., None], ledger_id: int, entries: Any) -> None:
    """Records entries as runs, as long as they are as written."""
    first = last = -1
    for entry in entries:
        number = int(entry.entry_id)
        is_right = is_as_written(ledger_id, number, bytes(entry.payload))
        if is_right and number == last + 1 and first >= 0:
            last = number
            continue
        if first >= 0:
            note("read", ledger_id, first, last)
        first = last = number if is_right else -1
        if not is_right:
            note("odd", ledger_id, number, number)
    if first >= 0:
        note("read", ledger_id, first, last)


class Auditor(Client):
    wrong: tuple[CopyState, ...] = (
        CopyState.BAD,
        CopyState.DIFFERENT,
        CopyState.UNKNOWN,
        CopyState.UNREACHABLE,
    )

    async def obey(self, command: str) -> None:
        assert command in ("audit", "read")
        await self.surely(functools.partial(self._audit, verifies=command == "audit"))
        say("audited")

    async def _audit(self, *, verifies: bool) -> None:
        found = await self.all_ledgers()
        for ledger_id, end in found.items():
            self.note("listed", ledger_id, last=end)
        done = 0
        turns = asyncio.Semaphore(_AUDITS_AT_ONCE)

        async def look_at(ledger_id: int) -> None:
            nonlocal done
            async with turns:
                await self._try(functools.partial(self._read, ledger_id))
                if verifies:
                    await self._try(functools.partial(self._verify, ledger_id))
            done += 1
            say(f"progress {done} {len(found)}")

        await asyncio.gather(*(look_at(each) for each, end in found.items() if end != NOT_CLOSED))

    async def _try(self, attempt: Callable[[], Awaitable[None]]) -> None:
        """Retries; a ledger that stays unreadable is missing from the history, which the checker reports."""
        for _ in range(_AUDIT_ATTEMPTS):
            try:
                await attempt()
            except RollbookError as error:
                say(f"unreadable {error}")
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def _read(self, ledger_id: int) -> None:
        async with await self.ledgers.open(ledger_id) as reader:
            self.note("follow", ledger_id, 0)
            stream = reader.read()
            while entries := await stream.next_run():
                note_shown(self.note, ledger_id, entries)
            self.note("ended", ledger_id, last=reader.last_add_confirmed)

    async def _verify(self, ledger_id: int) -> None:
        for _ in range(_AUDIT_ATTEMPTS):
            verdict = await self.ledgers.verify(ledger_id)
            if not verdict.copies[CopyState.UNREACHABLE]:
                break
            await asyncio.sleep(_PAUSE_S)  # A bookie exceeded the time-out, which proves nothing.
        wrong = sum(verdict.copies[state] for state in self.wrong)
        wrong += verdict.below_ack + verdict.lost + verdict.in_doubt
        if wrong:
            say(f"unsound {ledger_id} {verdict}")
        self.note("verified", ledger_id, wrong, verdict.entries - 1)


ROLES: Final[dict[str, type[Client]]] = {
    "writer": Writer,
    "recoverer": Recoverer,
    "tailer": Tailer,
    "auditor": Auditor,
}


async def _run(role: type[Client], url: str, history: HistoryFile) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            ledgers = await connect(url, role.config)
            break
        except RollbookError:  # The metadata store is unavailable for now.
            await asyncio.sleep(_PAUSE_S)
    try:
        client = role(ledgers, history)
        say("ready")
        pipe = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(pipe), sys.stdin)
        tasks: dict[asyncio.Task[None], None] = {}
        while line := await pipe.readline():
            task = asyncio.create_task(client.obey(line.decode().strip()))
            tasks[task] = None
            task.add_done_callback(tasks.pop)
    finally:
        await ledgers.close()


def main(roles: Mapping[str, type[Client]] = ROLES) -> None:
    role, url, path, flaw = sys.argv[1:]
    if flaw != "-":
        FLAWS[flaw]()
    asyncio.run(_run(roles[role], url, HistoryFile(Path(path))))


if __name__ == "__main__":
    main()
