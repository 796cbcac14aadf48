"""What nobody in a run can know, and a judge must: who wrote what, what is durable where.

A payload begins with a mark, the ledger's id and its own number in it, so that an entry is found in
whatever bytes reach a disk; before it lie digest and header, which say under which id, and with which
LAC, it was stored. What a sync has made durable stays so until somebody destroys the disk: later cuts
of power, torn tails and failed syncs take nothing of it.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rollbook.bookie.core.catalog_records import pack_ledger
from rollbook.bookie.core.control_records import Control, ControlOperation
from rollbook.bookie.core.fencing import LedgerFacts as FactsOnDisk
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.quorum import Slots
from rollbook.proto.wire.digest import ENTRY_HEADER_BYTES, DigestType, LedgerDigest, ledger_key

NEVER: Final = 1 << 62
MARK: Final = b"\xfeentry\xfe:"
_NUMBERS: Final = struct.Struct(">qq")
_HEADER: Final = struct.Struct(">qqq")
PAYLOAD_BYTES_MIN: Final = len(MARK) + _NUMBERS.size

OnBroken = Callable[[str, str], None]
"""Gets the rule's name, and how it was broken."""


def payload_of(ledger_id: int, number: int, size: int) -> bytes:
    """The n-th that is written to a ledger; no two are alike."""
    marked = MARK + _NUMBERS.pack(ledger_id, number)
    return marked + b"." * (size - len(marked))


@dataclass(slots=True)
class LedgerFacts:
    """One ledger, as all that happened to it has made it."""

    ledger_id: int
    metadata: LedgerMetadata | None = None  # As committed last; None: not made yet, or deleted.
    version: int = -1
    writer: str = ""  # The process that made it.
    sizes: list[int] = field(default_factory=list)  # Of the payloads, in the order of writing.
    confirmed: int = NO_ENTRY  # What was acknowledged to its writer.
    told: int = NO_ENTRY  # What a reader that keeps to the LAC returned.
    refused: int = NEVER  # The lowest that was refused to its writer.
    is_doomed: bool = False  # Somebody deletes it.
    is_gone: bool = False  # And its caller knows that this is done.
    clean: int = NO_ENTRY  # Up to here every entry had its copies when one last looked.
    digest: LedgerDigest | None = None
    fences: tuple[bytes, ...] = ()  # As one looks on a disk.

    def payload(self, number: int) -> bytes | None:
        if not 0 <= number < len(self.sizes):
            return None
        return payload_of(self.ledger_id, number, self.sizes[number])

    def name(self, entry_id: int) -> str:
        return f"ledger {self.ledger_id} entry {entry_id}"


@dataclass(slots=True)
class BookieFacts:
    """What one bookie keeps of one ledger, and what it has said of it."""

    durable: dict[int, int] = field(default_factory=dict)  # Entries; since when, in ns.
    lost: dict[int, None] = field(default_factory=dict)  # With a disk, and it has to know that.
    gone: dict[int, None] = field(default_factory=dict)  # With a disk, and not brought back yet.
    lac: int = NO_ENTRY  # The highest that it may hand out.
    has_fence: bool = False  # Durably.
    fence_was_answered: bool = False
    denied: dict[int, None] = field(default_factory=dict)  # Under a fence,
    denied_beyond: int | None = None  # and all after this one.
    mended: dict[int, None] = field(default_factory=dict)  # Accepted from a recovery,
    mended_first: dict[int, None] = field(default_factory=dict)  # before any copy was durable.

    def on_durable(self, entry_id: int, now_ns: int) -> None:
        self.gone.pop(entry_id, None)
        if entry_id not in self.durable:
            self.durable[entry_id] = now_ns
            if entry_id in self.mended:
                self.mended_first[entry_id] = None

    def on_wiped(self) -> None:
        self.lost.update(dict.fromkeys(self.durable))
        self.gone.update(dict.fromkeys(self.durable))
        self.durable.clear()
        self.mended_first.clear()
        self.lac, self.has_fence = NO_ENTRY, False

    def has_had(self, entry_id: int, heard_ns: int, *, is_fenced: bool) -> bool:
        """Whether it may not deny it to who was heard then.

        A bookie learns of a sync a little after the disk has ended it. So what an add brings in the
        course of a question may be shown or not; but a fence comes behind all ordinary adds.
        """
        if entry_id not in self.durable:
            return False
        may_come_late = not is_fenced or entry_id in self.mended_first
        return self.durable[entry_id] < heard_ns or not may_come_late

    def has_denied(self, entry_id: int) -> bool:
        is_beyond = self.denied_beyond is not None and entry_id > self.denied_beyond
        return is_beyond or entry_id in self.denied


class Facts:
    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerFacts] = {}
        self.destroyed: dict[str, None] = {}  # Bookies whose disk we took away.
        self.damaged: dict[str, None] = {}  # And those of which we spoilt a part.
        self.spoilt: dict[tuple[str, int], None] = {}  # Of which ledgers one was given bad bytes.
        self.repairers: tuple[str, ...] = ()  # Nodes that may repair closed fragments.
        self._kept: dict[tuple[str, int], BookieFacts] = {}

    def ledger(self, ledger_id: int) -> LedgerFacts:
        found = self.ledgers.get(ledger_id)
        if found is None:
            found = self.ledgers[ledger_id] = LedgerFacts(ledger_id)
        return found

    def kept(self, bookie: str, ledger_id: int) -> BookieFacts:
        found = self._kept.get((bookie, ledger_id))
        if found is None:
            found = self._kept[bookie, ledger_id] = BookieFacts()
        return found

    def keepers(self, ledger_id: int) -> Iterator[tuple[str, BookieFacts]]:
        for (bookie, of), facts in list(self._kept.items()):
            if of == ledger_id:
                yield bookie, facts

    # --- Copies -------------------------------------------------------------------------------

    def copies(self, ledger: LedgerFacts, entry_id: int) -> int:
        """Durable ones on the bookies that metadata names for the entry now."""
        return self._count(ledger, entry_id, lambda bookie: self._has(bookie, ledger, entry_id))

    def excused(self, ledger: LedgerFacts, entry_id: int) -> int:
        """Bookies of its write set that may lack it because of us."""
        return self._count(ledger, entry_id, lambda bookie: self.lacks(bookie, ledger, entry_id))

    def lacks(self, bookie: str, ledger: LedgerFacts, entry_id: int) -> bool:
        """Because of us."""
        if bookie in self.destroyed:
            return True
        return bool(self.repairers) and entry_id in self.kept(bookie, ledger.ledger_id).gone

    def _count(self, ledger: LedgerFacts, entry_id: int, counts: Callable[[str], bool]) -> int:
        metadata = ledger.metadata
        assert metadata is not None
        ensemble = metadata.fragment_of(EntryId(entry_id)).ensemble
        return sum(map(counts, metadata.quorum.write_set(EntryId(entry_id), ensemble)))

    def _has(self, bookie: str, ledger: LedgerFacts, entry_id: int) -> bool:
        return bookie not in self.destroyed and (
            entry_id in self.kept(bookie, ledger.ledger_id).durable
        )

    def forgive_nothing(self, bookie: str) -> None:
        """What went with its disk excuses nobody: it was not to hold anything."""
        for (name, _), kept in self._kept.items():
            if name == bookie:
                kept.gone.clear()

    def are_repairers(self, processes: Sequence[str]) -> bool:
        return bool(processes) and all(
            each.partition("#")[0] in self.repairers for each in processes
        )

    def slots_that(self, ensemble: tuple[BookieId, ...], holds: Callable[[str], bool]) -> Slots:
        return sum(1 << slot for slot, bookie in enumerate(ensemble) if holds(bookie))


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry as it was found on a disk."""

    ledger_id: int
    number: int  # Which payload it carries,
    header: tuple[int, int, int]  # and under which ledger, entry and LAC it lies there.


def entries_in(data: bytes, digest_of: Callable[[int], DigestType | None]) -> Iterator[Stored]:
    """All that begin and end their header in these bytes; others were found before."""
    at = data.find(MARK)
    while at >= 0:
        start = at + len(MARK)
        if start + _NUMBERS.size <= len(data):
            ledger_id, number = _NUMBERS.unpack_from(data, start)
            kind = digest_of(ledger_id)
            before = at - ENTRY_HEADER_BYTES - (kind.size if kind else 0)
            if kind and before >= 0:
                yield Stored(ledger_id, number, _HEADER.unpack_from(data, before))
        at = data.find(MARK, start)


def fences_on_disk(ledger_id: int, password: bytes) -> tuple[bytes, ...]:
    """How a fence looks in a journal, and in the catalog that a bookie in doubt of a ledger begins with."""
    return (
        Control(ControlOperation.FENCE, ledger_id, ledger_key(password)).pack(),
        pack_ledger(ledger_id, FactsOnDisk(is_fenced=True)),
    )
