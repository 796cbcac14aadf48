"""Every byte of a store at rest, flipped once: what it answers then.

The store is small and has everything: entry logs of both kinds, a journal that is not checkpointed,
fences, explicit LACs, both copies of the catalog. It was closed, so that it knows what is durable.
With each flip it is opened, asked for everything, checkpointed and asked again:

- an entry comes back as it was written, or is UNKNOWN; never otherwise, and never ABSENT;
- what is not there is ABSENT: the flip did not touch it;
- fences hold, and an explicit LAC is the one that was written, or UNKNOWN;
- only entries of one record are UNKNOWN, and with a CRC as their digest only those of one ledger.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from rollbook.bookie.config import StorageConfig
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import EntryStateUnknown, NoSuchEntry, NoSuchLedger, RollbookError
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire import v2_adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from tests.simulation.kernel import Node, World
from tests.simulation.kernel.filesystem import FileSystem
from tests.support.crash_images import Promise, StepDisk, StoppedClock, small_and_quiet, step
from tests.tally import Tally

CONFIG: Final = StorageConfig("/s/journal", ("/s/ledgers",), journal_file_bytes=16 * 1024)
KINDS: Final = tuple(DigestType)
_FOLDERS: Final = ("/s/journal", "/s/ledgers")
_KEY: Final = ledger_key(b"secret")
_FENCED: Final = (3, 5, 30)
_PACKETS: Final = (4, 6)
_IN_ONE_RECORD_MAX: Final = 60


class StoreAtRest:
    def __init__(self, kind: DigestType) -> None:
        self.entries: dict[tuple[int, int], bytes] = {}
        self._kind = kind
        world = World(1)
        node = world.node("b1")

        async def scenario() -> None:
            await node.start(self._live).result

        world.run(scenario())
        self.system = node.disk.system

    async def _live(self, node: Node) -> None:
        await Storage.make(node.disk, CONFIG, node.randomness)
        storage = await Storage.open(node.disk, CONFIG, node.clock, node.randomness)
        storage.start()
        for entry_id in range(14):
            await self._add(storage, [(1, entry_id)], 1000)
        for entry_id in range(6):
            await self._add(storage, [(each, entry_id) for each in range(2, 12)], 180)
        await storage.fence(3, _KEY)
        await storage.write_lac(4, _KEY, 5, b"packet")
        await asyncio.sleep(1)  # Checkpoints.
        await self._add(storage, [(1, 14)], 500)
        await self._add(storage, [(20, 0), (21, 0), (20, 1)], 60)
        await storage.fence(5, _KEY)
        await storage.fence(30, _KEY)
        await storage.write_lac(6, _KEY, 5, b"packet")
        await storage.close()

    async def _add(self, storage: Storage, ids: list[tuple[int, int]], size: int) -> None:
        frames: list[bytes] = []
        for ledger_id, entry_id in ids:
            digest = LedgerDigest(self._kind, b"secret", LedgerId(ledger_id))
            entry = (EntryId(entry_id), NO_ENTRY, 0, bytes([ledger_id]) * size)
            frames.append(v2_adds.V2AddPacker(_KEY, digest).pack(*entry))
            self.entries[ledger_id, entry_id] = digest.pack_entry(*entry)
        found, _ = v2_adds.take_adds(b"".join(frames), 0, 2**30)
        assert found
        done = storage.add(found).done
        assert done
        await done

    # --- Damage -------------------------------------------------------------------------------

    def copy(self) -> FileSystem:
        return self.system.after_power_cut(lambda count: count - 1)

    def places(self) -> Iterator[tuple[str, int]]:
        """Of every byte but the zeros at the end of a file, which were never written."""
        for folder in _FOLDERS:
            for name in self.system.list_directory(folder):
                path = f"{folder}/{name}"
                number = self.system.find(path)
                assert number is not None
                for position in range(len(self.system.files[number].contents.rstrip(b"\0"))):
                    yield path, position

    def damaged(self, path: str, position: int, change: bytes) -> FileSystem:
        """With these bytes there, as far as the file goes."""
        system = self.copy()
        number = system.find(path)
        assert number is not None
        contents = system.files[number].contents
        end = min(position + len(change), len(contents))
        contents[position:end] = change[: end - position]
        return system

    def flipped(self, path: str, position: int, bits: int) -> FileSystem:
        number = self.system.find(path)
        assert number is not None
        byte = self.system.files[number].contents[position]
        return self.damaged(path, position, bytes([byte ^ bits]))

    # --- Questions ----------------------------------------------------------------------------

    def judge(self, system: FileSystem) -> list[tuple[int, int]]:
        """What is UNKNOWN, the same before and after checkpoints."""
        storage = open_at_rest(system)
        before = self.judge_answers(storage)
        while step(storage.checkpoint()):
            pass
        after = self.judge_answers(storage)
        if before != after:
            raise Promise(f"{before} were unknown, {after} after the checkpoint")
        for ledger_id in _FENCED:
            if not storage.is_fenced(ledger_id):
                raise Promise(f"ledger {ledger_id} has lost its fence")
        for ledger_id, entry_id in ((999, 0), (2, 100)):
            if self._answer(storage, ledger_id, entry_id) not in (NoSuchEntry, NoSuchLedger):
                raise Promise(f"ledger {ledger_id} entry {entry_id} is not plainly absent")
        return before

    def judge_answers(self, storage: Storage) -> list[tuple[int, int]]:
        unknown: list[tuple[int, int]] = []
        for (ledger_id, entry_id), body in self.entries.items():
            found = self._answer(storage, ledger_id, entry_id)
            if found is EntryStateUnknown:
                unknown.append((ledger_id, entry_id))
            elif found != body:
                raise Promise(f"ledger {ledger_id} entry {entry_id}: {found!r}")
        for ledger_id in _PACKETS:
            try:
                if storage.lac_packet(ledger_id) != b"packet":
                    raise Promise(f"ledger {ledger_id} has lost its explicit LAC")
            except EntryStateUnknown:
                unknown.append((ledger_id, NO_ENTRY))
        return unknown

    def _answer(
        self, storage: Storage, ledger_id: int, entry_id: int
    ) -> bytes | type[RollbookError]:
        try:
            return step(storage.read(ledger_id, entry_id))
        except (NoSuchLedger, NoSuchEntry, EntryStateUnknown) as error:
            return type(error)


def open_at_rest(system: FileSystem) -> Storage:
    return step(Storage.open(StepDisk(system), CONFIG, StoppedClock(), random.Random(1)))


@dataclass
class Flips(Tally):
    unknown_most: int = 0
    failures: list[str] = field(default_factory=list)


def run(
    kind: DigestType, stride: int, seed: int, report: Callable[[int, int], None] | None = None
) -> Flips:
    """Flips one bit of every `stride`-th byte, from the `seed`-th on; stride 1 is all of them."""
    with small_and_quiet():
        return _run(kind, seed % stride, stride, random.Random(seed), report)


def _run(
    kind: DigestType,
    first: int,
    stride: int,
    chance: random.Random,
    report: Callable[[int, int], None] | None,
) -> Flips:
    result = Flips("flips")
    store = StoreAtRest(kind)
    proves_itself = kind in (DigestType.CRC32C, DigestType.CRC32)
    places = list(store.places())[first::stride]
    for number, (path, position) in enumerate(places, 1):
        try:
            unknown = store.judge(store.flipped(path, position, 1 << chance.randrange(8)))
            ledgers = dict.fromkeys(ledger_id for ledger_id, _ in unknown)
            if len(unknown) > _IN_ONE_RECORD_MAX or (proves_itself and len(ledgers) > 1):
                raise Promise(f"{unknown} are unknown")
            result.unknown_most = max(result.unknown_most, len(unknown))
            result.passed += 1
        except (Promise, RollbookError, OSError, AssertionError) as error:
            result.failed += 1
            result.failures.append(f"{path} at {position}: {type(error).__name__}: {error}")
        if report:
            report(number, len(places))
    return result
