"""Every crash during changes of a bookie's identity: stamps in directories, nodes in the metadata.

The history of one id is a chain of *works*: a bookie is created, starts, loses its cookie and
rejoins, is wiped and formatted. A work begins where the one before it ended, or after a power cut
during a start. The power may be cut after each change of a directory or of the metadata; the images
of that moment are those that `cuts.py` describes, and the metadata, which is elsewhere, is
unchanged.

Then a bookie starts from each image. After a cut creation or start it must start without an
operator. After a cut rejoin or format it may only ask for the same command again. Every start uses
the incarnation that the metadata names, if any, and the store of that incarnation; after a format
it doubts the ledgers that the earlier one may have held. No copy of the directories from before
that start may start (B8).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, cast

from rollbook.bookie.config import StorageConfig
from rollbook.bookie.core.suggested_commands import FORMAT, REJOIN
from rollbook.bookie.identity import Identity
from rollbook.bookie.storage import Storage
from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.cluster.cookies import CookieNodes, MemberNodes
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.errors import EntryStateUnknown, RollbookError, WrongBookie
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata
from rollbook.proto.ports import MetadataStore
from rollbook.proto.quorum import Quorum
from tests.crash.images.cuts import SAMPLE, Crashes, after, images
from tests.crash.images.judge import Promise, answer
from tests.crash.images.step_disk import StepDisk, step
from tests.crash.images.step_metadata import Rows, StepMetadata
from tests.simulation.kernel.filesystem import FileSystem, Operation
from tests.support.clocks import StandingClock

ROOT: Final = "/ledgers"
BOOKIE: Final = BookieId("bk-1")
LEDGER: Final = LedgerId(7)  # An open ledger, stored on this bookie according to its metadata.
_METADATA: Final = "metadata"  # Marks a change of the metadata among the disk operations.
_WORKS: Final = (2, 3, 4)
_CUT_ODDS: Final = 0.4  # Odds that the next work begins after an interrupted start.
_COPY_ODDS: Final = 0.1
_AGAIN_ODDS: Final = 0.05
_AGAIN_SAMPLE: Final = 4


class World(NamedTuple):
    """The directories and the metadata at one moment."""

    system: FileSystem
    rows: Rows


class Started(NamedTuple):
    incarnation: str
    store_id: bytes
    doubts: bool  # Whether it doubts `LEDGER`.


@dataclass
class _Work:
    """The work of one process."""

    do: Callable[["_Machine"], Awaitable[Started | None]]
    remedy: str = ""  # The command that a start may require after an interruption.


class _Machine:
    """The machine of the bookie's processes; `steps` records every change."""

    def __init__(
        self, world: World, config: StorageConfig, cluster: Cluster, chance: random.Random
    ) -> None:
        self.disk = StepDisk(world.system.copy())
        self.steps: list[Operation] = self.disk.operations
        self.store = StepMetadata(world.rows, self._on_metadata)
        self._config = config
        self._chance = chance
        metadata = cast(MetadataStore, self.store)
        self.identity = Identity(self.disk, config, chance, metadata, cluster, BOOKIE)

    def _on_metadata(self) -> None:
        self.steps.append((_METADATA, self.store.rows))

    @property
    def world(self) -> World:
        return World(self.disk.system, self.store.rows)

    async def start(self) -> Started:
        """Starts as a bookie does, up to the point where its port would open."""
        locks = await self.identity.establish()
        storage = await Storage.open(
            self.disk, self._config, StandingClock(), self._chance, locks=locks
        )
        await self.identity.begin()
        doubts = answer(storage, LEDGER, 0) is EntryStateUnknown
        return Started(self.identity.incarnation, storage.store_id, doubts)

    async def rejoin(self) -> None:
        await self.identity.rejoin()

    async def format(self) -> None:
        await self.identity.format(0.0)


def crash_identity_everywhere(seed: int, *, sample: int = SAMPLE) -> Crashes:
    """Judges the images of all moments in the history of one id."""
    return _Crasher(seed, sample).crash_everywhere()


class _Crasher:
    def __init__(self, seed: int, sample: int) -> None:
        self._seed = seed
        self._sample = sample
        self._chance = random.Random(f"identity {seed}")
        self._config = StorageConfig(
            "/bookie/journal",
            ("/bookie/ledgers1", "/disk2/ledgers2")[: self._chance.choice((1, 2))],
            journal_file_bytes=16 * 1024,
        )
        store = StepMetadata()
        metadata = cast(MetadataStore, store)
        self._cluster = step(initialise(metadata, ROOT, self._chance))
        nodes = LedgerNodes(metadata, ROOT, self._cluster.layout)
        step(nodes.create(_open_ledger(self._chance)))
        self._now = World(FileSystem(), store.rows)
        self._lives: dict[str, Started] = {}
        self._result = Crashes(traces=1)

    def crash_everywhere(self) -> Crashes:
        works = [self._start]
        kinds = (self._start, self._rejoin, self._format)
        works += self._chance.choices(kinds, k=self._chance.choice(_WORKS))
        for number, next_work in enumerate(works):
            try:
                self._crash_during(next_work())
            except (Promise, RollbookError, OSError, AssertionError) as error:
                self._result.failures.append(
                    f"seed {self._seed} identity, work {number}: {type(error).__name__}: {error}"
                )
                break
        return self._result

    # --- Works --------------------------------------------------------------------------------

    def _start(self) -> _Work:
        return _Work(_Machine.start)

    def _rejoin(self) -> _Work:
        """An operator has removed the cookie, as with BookKeeper."""
        self._settle()
        store = StepMetadata(self._now.rows)
        step(CookieNodes(cast(MetadataStore, store), ROOT).delete(BOOKIE))
        self._now = World(self._now.system, store.rows)
        return _Work(_Machine.rejoin, REJOIN)

    def _format(self) -> _Work:
        self._settle()
        if self._chance.random() < 0.5:
            self._now = World(FileSystem(), self._now.rows)
        return _Work(_Machine.format, FORMAT)

    def _settle(self) -> None:
        """Starts once, since the previous work may have been interrupted."""
        machine = self._machine(self._now)
        self._require_known(step(machine.start()))
        self._now = machine.world

    def _machine(self, world: World) -> _Machine:
        return _Machine(world, self._config, self._cluster, self._chance)

    def _learn(self, started: Started, work: _Work) -> None:
        if started.incarnation not in self._lives and started.doubts != (work.remedy == FORMAT):
            raise Promise(f"a life begins with wrong doubts: {started}")
        self._require_known(started)

    def _require_known(self, started: Started) -> None:
        known = self._lives.setdefault(started.incarnation, started)
        if known != started:
            raise Promise(f"a life has another store than it had: {known}, {started}")

    # --- Crashes ------------------------------------------------------------------------------

    def _crash_during(self, work: _Work) -> None:
        machine, begun, chance = self._machine(self._now), self._now, self._chance
        asyncio.run(_run(work.do(machine)))
        # From here on, an incarnation begun by a format is known.
        self._learn(step(self._machine(machine.world).start()), work)
        for world in _moments(begun, machine.steps):
            self._result.moments += 1
            for image in images(world.system, chance, self._sample):
                self._judge(World(image, world.rows), work)
        self._now = machine.world
        if not work.remedy and chance.random() < _CUT_ODDS:
            world = _some_moment(begun, machine.steps, chance)
            self._now = World(world.system.after_power_cut(chance.randrange), world.rows)

    def _judge(self, world: World, work: _Work) -> None:
        chance = self._chance
        machine = self._machine(world)
        try:
            self._require_right(step(machine.start()), world)
        except WrongBookie as refusal:
            if not work.remedy or work.remedy not in refusal.next_step:
                raise
            machine = self._machine(world)
            asyncio.run(_run(work.do(machine)))  # Repeats the work.
            step(self._machine(machine.world).start())
        else:
            if chance.random() < _COPY_ODDS:
                self._require_refused(World(world.system, machine.store.rows))
            if chance.random() < _AGAIN_ODDS:
                self._crash_again(world, machine.steps, work)
        self._result.images += 1

    def _crash_again(self, begun: World, steps: list[Operation], work: _Work) -> None:
        world = _some_moment(begun, steps, self._chance)
        for image in images(world.system, self._chance, _AGAIN_SAMPLE):
            self._judge(World(image, world.rows), work)
            self._result.again += 1

    def _require_right(self, started: Started, world: World) -> None:
        named = self._named(world.rows)
        if named and started.incarnation != named:
            raise Promise(f"of the life {started.incarnation}, and the metadata names {named}")
        if named and named not in self._lives:
            raise Promise("a life that the metadata names, and nobody has begun")
        if started.incarnation not in self._lives and started.doubts:
            raise Promise("a new bookie doubts what it holds")
        self._require_known(started)

    def _require_refused(self, world: World) -> None:
        try:
            step(self._machine(world).start())
        except WrongBookie:
            return
        raise Promise("a copy of its directories from before the start passes for them")

    def _named(self, rows: Rows) -> str | None:
        nodes = MemberNodes(cast(MetadataStore, StepMetadata(rows)), self._cluster)
        record = step(nodes.read(BOOKIE)).record
        return record.incarnation if record else None


async def _run(work: Awaitable[Started | None]) -> None:
    """Runs on an event loop, since a format reads concurrently."""
    await work


def _moments(begun: World, steps: Sequence[Operation]) -> Iterator[World]:
    """The state before the first change, and after each change."""
    system, rows = begun.system.copy(), begun.rows
    yield World(system, rows)
    for operation in steps:
        if operation[0] == _METADATA:
            rows = operation[1]
        else:
            system = after(system, operation)
        yield World(system, rows)


def _some_moment(begun: World, steps: Sequence[Operation], chance: random.Random) -> World:
    count = chance.randint(0, len(steps))
    return next(islice(_moments(begun, steps), count, None))


def _open_ledger(chance: random.Random) -> LedgerMetadata:
    return LedgerMetadata(
        LEDGER,
        Quorum(1, 1, 1),
        (Fragment(EntryId(0), (BOOKIE,)),),
        created_ms=0,
        creation_token=chance.getrandbits(60),
    )
