"""Those who use the ledger client, each a process of its own: a writer, recoverers, readers, an operator.

They do what the case says and report the outcomes to the checker. One that lost its process begins
again as an owner of a log would: the writer recovers the ledger that it left and makes another one.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from rollbook.ledger.config import ClientConfig
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.reader import LedgerReader
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.cluster.cluster_root import open_cluster
from rollbook.proto.errors import (
    Missing,
    NoSuchLedger,
    Outcome,
    OutcomeUnknown,
    Overloaded,
    RollbookError,
    Unavailable,
)
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import LedgerState
from rollbook.proto.ports import MetadataStore
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import DigestType
from rollbook.recovery.config import HealConfig
from rollbook.recovery.possible_loss_healer import PossibleLossHealer
from rollbook.recovery.possible_losses_port import BookieDoubts
from tests.simulation.checkers.ledger import PAYLOAD_BYTES_MIN, LedgerChecker
from tests.simulation.history import NEVER, Append, History
from tests.simulation.kernel.world import Main, Node, World
from tests.simulation.schedule import Case, Step
from tests.simulation.worlds.ledger import plan, words
from tests.simulation.worlds.ledger.bookies import ROOT

T = TypeVar("T")

PASSWORD: Final = b"secret"
LOST: Final = "lost"
LEFTOVERS: Final = "leftovers"
SESSION_S: Final = 2.0
_PATIENCE_S: Final = 8.0  # Of a user that waits for something that must come, and then asks again.
_PAUSE_S: Final = 0.1
_PRESENT_S: Final = 0.001  # A step that was due so long ago was meant for an earlier life.
_TAIL_GIVEN_UP_AFTER: Final = 3

# Windows of a few entries, deadlines that faults outlast.
CONFIG: Final = ClientConfig(
    frame_bytes_max=64 * 1024,
    connect_timeout_s=0.3,
    reconnect_pause_s_max=0.2,
    silence_s_max=0.25,
    calls_max=20,
    call_bytes_max=32 * 1024,
    add_deadline_s=0.8,
    writer_window_bytes=12 * 1024,
    writer_window_entries=plan.WINDOW,
    read_deadline_s=0.6,
    read_window_bytes=8 * 1024,
    read_batch_bytes=4 * 1024,
    recovery_window_bytes=8 * 1024,
    recovery_patience_s=0.15,
)

_HEALING: Final = HealConfig(ledgers_at_once=2, window_bytes=4 * 1024)


@dataclass
class Sums:
    """What all of them share."""

    world: World
    history: History
    checker: LedgerChecker
    case: Case
    tell: Callable[[str], None]
    on_broken: Callable[[str, str], None]
    doubts_of: Callable[[str], BookieDoubts | None]  # Of a bookie, if it serves.
    ledgers: list[LedgerId] = field(default_factory=list)  # In the order of their making.
    appends: dict[tuple[LedgerId, int], Append] = field(default_factory=dict)
    writer: LedgerWriter | None = None  # The one that appends go to, in this life of its process.
    quorum: tuple[Quorum, DigestType] | None = None  # Of what was made last.
    one_more: asyncio.Event = field(default_factory=asyncio.Event)  # Set when peace has come.
    last_append: Append | None = None  # What was appended then.

    def newest(self, what: str) -> LedgerId | None:
        """Which ledger a step is about."""
        back = 2 if what.endswith("earlier") else 1
        return self.ledgers[-back] if len(self.ledgers) >= back else None

    def living_writer(self) -> LedgerWriter | None:
        """One that should be able to append."""
        writer = self.writer
        if writer is None or writer.failure is not None:
            return None
        if not self.world.node(words.WRITER).is_running:
            return None
        facts = self.checker.facts.ledger(writer.ledger_id)
        is_open = facts.metadata is not None and facts.metadata.state is LedgerState.OPEN
        return writer if is_open and not facts.is_doomed else None

    def unanswered(self) -> list[Append]:
        return [append for append in self.appends.values() if append.returned == NEVER]


class Users:
    def __init__(self, sums: Sums) -> None:
        self._sums = sums
        self._world = sums.world
        self._checker = sums.checker
        self._history = sums.history

    def mains(self) -> dict[str, Main]:
        return {
            words.WRITER: self.write,
            words.RECOVERERS[0]: self.recover,
            words.RECOVERERS[1]: self.recover,
            words.FOLLOWER: self.follow,
            words.READER: self.read,
            words.OPERATOR: self.operate,
        }

    # --- Clients ------------------------------------------------------------------------------

    @asynccontextmanager
    async def client(self, node: Node) -> AsyncIterator[Ledgers]:
        """Of the product, on the ports of the node; nothing of it is left behind."""
        while True:
            try:
                store = await node.metadata(session_timeout_s=SESSION_S, operation_timeout_s=1.0)
                break
            except RollbookError:
                await asyncio.sleep(_PAUSE_S)
        ledgers = await self._connected(node, store)
        try:
            yield ledgers
        finally:
            await ledgers.close()
            await store.close()
        assert node.process is not None
        if len(left := node.process.lane.tasks()) > 1:
            names = ", ".join(task.get_name() for task in left[1:])
            self._sums.on_broken(LEFTOVERS, f"{node.name} has closed its client, and left: {names}")

    async def _connected(self, node: Node, store: MetadataStore) -> Ledgers:
        config = self._config(node)
        while True:
            try:
                cluster = await open_cluster(store, ROOT)
                ledgers = Ledgers(
                    node.transport, store, cluster, node.clock, node.randomness, config
                )
                await ledgers.start()
                return ledgers
            except RollbookError:
                await asyncio.sleep(_PAUSE_S)

    def _config(self, _: Node) -> ClientConfig:
        case = self._sums.case
        return replace(
            CONFIG,
            protocol_version=plan.version_of(case),
            writer_window_entries=plan.window_of(case),
        )

    async def _steps(self, node: Node) -> AsyncIterator[Step]:
        """Its own, each when it is due; those of an earlier life are over."""
        began = self._world.now
        for step in self._sums.case.steps:
            at_s = step.at_us / 1e6
            if step.actor != node.name or at_s < began - _PRESENT_S:
                continue
            await asyncio.sleep(max(0.0, at_s - self._world.now))
            self._sums.tell(f"{node.name}: {step.what}")
            yield step

    # --- The writer ---------------------------------------------------------------------------

    async def write(self, node: Node) -> None:
        sums = self._sums
        sums.writer = None
        for append in sums.unanswered():
            self._history.on_unknown(append, "its process was killed")
        async with self.client(node) as ledgers:
            if sums.quorum is not None:  # It was here before.
                if (left := sums.newest("")) is not None:
                    await self.close_for_good(ledgers, left)
                try:
                    await self._create(ledgers, *sums.quorum)
                except RollbookError as error:
                    sums.tell(f"writer: {error!r}")
            async for step in self._steps(node):
                try:
                    await self._write_step(ledgers, step)
                except RollbookError as error:
                    sums.tell(f"writer: {error!r}")
            await sums.one_more.wait()
            if sums.writer is not None:
                sums.last_append = await self.append(sums.writer, PAYLOAD_BYTES_MIN)
            await asyncio.Event().wait()  # Until it is killed: answers may still come.

    async def _write_step(self, ledgers: Ledgers, step: Step) -> None:
        verb, *rest = step.what.split()
        writer = self._sums.writer
        if verb == words.CREATE:
            ensemble, write, ack = map(int, rest[:3])
            await self._create(ledgers, Quorum(ensemble, write, ack), DigestType[rest[3]])
        elif writer is None:
            return
        elif verb == words.APPEND:
            for _ in range(int(rest[0])):
                await self.append(writer, int(rest[1]))
        elif verb == words.CLOSE:
            await self._timed("close", writer.close())
            self._sums.writer = None
        else:
            await (writer.flush() if verb == words.FLUSH else writer.force())

    async def _create(self, ledgers: Ledgers, quorum: Quorum, digest: DigestType) -> None:
        sums = self._sums
        sums.quorum = (quorum, digest)
        if sums.writer is not None:
            try:
                await self._timed("close", sums.writer.close())
            except RollbookError as error:  # Somebody else closes it, or has deleted it.
                sums.tell(f"writer: {error!r}")
        sums.writer = None
        call = self._history.call("create")
        sums.writer = await ledgers.create(
            ensemble=quorum.ensemble,
            write=quorum.write,
            ack=quorum.ack,
            digest=digest,
            password=PASSWORD,
        )
        self._history.on_answered(call)
        sums.ledgers.append(sums.writer.ledger_id)
        sums.tell(f"ledger {sums.writer.ledger_id} is made")

    async def append(self, writer: LedgerWriter, size: int) -> Append | None:
        """Its outcome is heard later."""
        sums, checker, ledger_id = self._sums, self._checker, writer.ledger_id
        facts = checker.facts.ledger(ledger_id)
        number, is_late = len(facts.sizes), facts.is_gone
        payload = checker.on_written(ledger_id, max(size, PAYLOAD_BYTES_MIN))
        while True:
            try:
                future = writer.append(payload)
                break
            except Overloaded:
                await writer.ready(1, len(payload))
            except RollbookError as error:  # It was not taken.
                facts.sizes.pop()
                sums.tell(f"append {number} is not taken: {error!r}")
                return None
        append = self._history.append("writer", f"{ledger_id}:{number}")
        sums.appends[ledger_id, number] = append
        name = self._world.loop.lane().name

        def hear(future: asyncio.Future[EntryId]) -> None:
            if future.cancelled():
                self._history.on_unknown(append, "cancelled")
            elif (error := future.exception()) is None:
                entry_id = future.result()
                self._history.on_applied(append, entry_id)
                sums.tell(f"{name}: entry {entry_id} is confirmed")
                checker.on_confirmed(ledger_id, number, entry_id, is_late=is_late)
            else:
                sums.tell(f"{name}: append {number}: {error!r}")
                assert isinstance(error, RollbookError)
                if error.outcome is Outcome.NOT_APPLIED:
                    self._history.on_refused(append)
                    checker.on_refused(ledger_id, number)
                else:
                    self._history.on_unknown(append, type(error).__name__)

        future.add_done_callback(hear)
        return append

    # --- Recoverers ---------------------------------------------------------------------------

    async def recover(self, node: Node) -> None:
        async with self.client(node) as ledgers:
            async for step in self._steps(node):
                ledger_id = self._sums.newest(step.what)
                if ledger_id is not None:
                    await self.close_for_good(ledgers, ledger_id)
            await asyncio.Event().wait()

    async def close_for_good(self, ledgers: Ledgers, ledger_id: LedgerId) -> EntryId:
        """Tries until it is closed; returns its last entry."""
        while True:
            try:
                reader = await self._timed(
                    "recover", ledgers.open_recover(ledger_id, password=PASSWORD)
                )
            except NoSuchLedger:
                if not self._checker.facts.ledger(ledger_id).is_doomed:
                    self._sums.on_broken(LOST, f"nobody knows ledger {ledger_id} any more")
                return NO_ENTRY
            except RollbookError as error:
                self._sums.tell(f"recovery of ledger {ledger_id} fails: {error!r}")
                await asyncio.sleep(_PAUSE_S)
                continue
            last = reader.last_add_confirmed
            self._sums.tell(f"ledger {ledger_id} is closed at {last}")
            await reader.close()
            return last

    async def _timed(self, step: str, work: Awaitable[T]) -> T:
        call = self._history.call(step)
        try:
            return await work
        finally:
            self._history.on_answered(call)

    # --- Readers ------------------------------------------------------------------------------

    async def follow(self, node: Node) -> None:
        async with self.client(node) as ledgers:
            async for step in self._steps(node):
                ledger_id = self._sums.newest(step.what)
                if ledger_id is not None:
                    await self.follow_to_the_end(ledgers, ledger_id)
            await asyncio.Event().wait()

    async def follow_to_the_end(
        self, ledgers: Ledgers, ledger_id: LedgerId, on_entry: Callable[[int], None] | None = None
    ) -> None:
        """Of a ledger that somebody closes: all its entries, in order, and nothing else."""
        facts = self._checker.facts.ledger(ledger_id)
        expected = 0
        while True:
            try:
                async with await ledgers.open_tailing(ledger_id, password=PASSWORD) as reader:
                    async for entry in reader.tail(EntryId(expected)):
                        if entry.entry_id != expected:
                            text = (
                                f"a follower is given entry {entry.entry_id} after {expected - 1}"
                            )
                            self._sums.on_broken(LOST, f"ledger {ledger_id}: {text}")
                        self._checker.on_read(ledger_id, entry.entry_id, entry.payload)
                        expected = entry.entry_id + 1
                        if on_entry is not None:
                            on_entry(entry.entry_id)
            except RollbookError as error:
                self._sums.tell(f"following ledger {ledger_id} fails at {expected}: {error!r}")
                if facts.is_doomed:
                    return
                if isinstance(error, Missing):
                    self._sums.on_broken(LOST, f"ledger {ledger_id} entry {expected}: {error!r}")
                await asyncio.sleep(_PAUSE_S)
                continue
            metadata = facts.metadata
            if metadata is not None and metadata.last_entry != expected - 1:
                text = f"following ends at {expected - 1}, the ledger at {metadata.last_entry}"
                self._sums.on_broken(LOST, f"ledger {ledger_id}: {text}")
            return

    async def read(self, node: Node) -> None:
        async with self.client(node) as ledgers:
            async for step in self._steps(node):
                ledger_id = self._sums.newest(step.what)
                if ledger_id is not None:
                    await self._read_once(ledgers, ledger_id)
            await asyncio.Event().wait()

    async def _read_once(self, ledgers: Ledgers, ledger_id: LedgerId) -> None:
        try:
            async with await self._timed(
                "open", ledgers.open(ledger_id, password=PASSWORD)
            ) as reader:
                lac = await self._timed("LAC", reader.read_last_confirmed())
                self._checker.on_told(ledger_id, lac)
                await self._timed("read", self.read_all(reader, ledger_id, lac))
                async for entry in reader.read_unconfirmed(EntryId(0), EntryId(lac + 3)):
                    self._checker.on_read(
                        ledger_id, entry.entry_id, entry.payload, is_confirmed=False
                    )
        except RollbookError as error:
            self._sums.tell(f"reading ledger {ledger_id} fails: {error!r}")

    async def read_for_sure(self, ledgers: Ledgers, ledger_id: LedgerId, last: EntryId) -> None:
        """Tries until it has all of it."""
        while True:
            try:
                async with await ledgers.open(ledger_id, password=PASSWORD) as reader:
                    return await self.read_all(reader, ledger_id, last)
            except (Unavailable, OutcomeUnknown) as error:
                self._sums.tell(f"reading ledger {ledger_id} fails: {error!r}")
                await asyncio.sleep(_PAUSE_S)

    async def read_all(self, reader: LedgerReader, ledger_id: LedgerId, last: EntryId) -> None:
        """Raises what keeps it from that, but not that an entry is missing."""
        if last == NO_ENTRY:
            return
        expected = 0
        try:
            async for entry in reader.read(EntryId(0), last):
                if entry.entry_id != expected:
                    text = f"entry {entry.entry_id} is read for {expected}"
                    self._sums.on_broken(LOST, f"ledger {ledger_id}: {text}")
                self._checker.on_read(ledger_id, entry.entry_id, entry.payload)
                expected += 1
        except Missing as error:
            if not self._checker.facts.ledger(ledger_id).is_doomed:
                self._sums.on_broken(LOST, f"ledger {ledger_id} entry {expected}: {error!r}")
            raise
        if expected != last + 1:
            self._sums.on_broken(
                LOST, f"reading ledger {ledger_id} up to {last} ends at {expected}"
            )

    # --- The operator -------------------------------------------------------------------------

    async def operate(self, node: Node) -> None:
        async with self.client(node) as ledgers:
            async for step in self._steps(node):
                verb, *_ = step.what.split()
                ledger_id = self._sums.newest(step.what)
                if verb == words.DELETE and ledger_id is not None:
                    await self._delete(ledgers, ledger_id)
                elif verb == words.HEAL:
                    for name in list(self._checker.facts.destroyed):
                        await self.heal(ledgers, name, _PATIENCE_S)
            await asyncio.Event().wait()

    async def heal(self, ledgers: Ledgers, name: str, seconds: float) -> bool:
        """As `rollbook recovery heal --all` does it; whether nothing is left to do."""
        doubts = self._sums.doubts_of(name)
        if doubts is None:
            return False
        healer = PossibleLossHealer(ledgers, BookieId(name), doubts, _HEALING, includes_all=True)
        try:
            async with asyncio.timeout(seconds):
                healing = await self._timed("heal", healer.heal())
        except (RollbookError, TimeoutError) as error:
            self._sums.tell(f"healing {name} fails: {error!r}")
            return False
        done = ", ".join(f"{count} {outcome.value}" for outcome, count in healing.ledgers.items())
        self._sums.tell(f"{name} is healed, {healing.entries} entries: {done or 'nothing to do'}")
        for each in healing.remarkable:
            self._sums.tell(f"but: {each}")
        return healing.are_ledgers_whole and not healing.doubts_everything

    async def heal_for_sure(self, ledgers: Ledgers, name: str) -> None:
        """Tries until nothing is left to do: a bookie may still be read-only after its disk was full."""
        while not await self.heal(ledgers, name, _PATIENCE_S):
            await asyncio.sleep(_PAUSE_S)

    async def _delete(self, ledgers: Ledgers, ledger_id: LedgerId) -> None:
        self._checker.on_doomed(ledger_id)
        while True:
            try:
                await self._timed("delete", ledgers.delete(ledger_id, password=PASSWORD))
            except NoSuchLedger:
                return  # An earlier attempt did it, and its response was lost.
            except RollbookError as error:
                self._sums.tell(f"deleting ledger {ledger_id} fails: {error!r}")
                await asyncio.sleep(_PAUSE_S)
            else:
                self._checker.on_gone(ledger_id)
                self._sums.tell(f"ledger {ledger_id} is deleted")
                return
