"""The catalog: all durable facts of a store, except its entries and the facts that are still in its
journal.

It is a file of CHANGES records (`catalog_records.py`), written in two copies. A record is applied
whole or not at all, so facts that belong together change together. For example, one record adds an
entry log and the facts about its ledgers, and makes its journal file superfluous (B5).

A generation begins with all facts. The older generation stays in force until both copies of the new
one are durable. The replay start never goes back (B5).

A deleted ledger has no extents and no doubts, even if its changes are applied in another order: its
entries are dead, and a log with only dead entries is *empty*. The same holds for a dropped ledger
in logs that are older than the journal file with its DROP. If two logs hold the same entry, readers
get the copy in the *younger* log. The age of a log made from a journal file is that file's number;
the age of a compacted log is that of its youngest source.
"""

import struct
from array import array
from collections.abc import Collection, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from rollbook.bookie.core import catalog_records as records
from rollbook.bookie.core.catalog_records import Change, EntryLogInfo, ReplayStart, batches
from rollbook.bookie.core.entry_log_footer import EXTENT, Extent
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.core.journal_index import IntArray
from rollbook.bookie.core.possible_losses import PossibleLosses
from rollbook.proto.errors import TornRecord
from rollbook.proto.ids import LEDGER_ID_MAX, NO_ENTRY

_PER_RECORD: Final = 512  # The number of ledgers in each record of a new generation.
# Bytes of changes that are applied in one step; a step takes half a millisecond.
_STEP_BYTES: Final = 16 * 1024
_LEDGERS_PER_STEP: Final = 256
_SHARED_MAX: Final = 4096


class Use(NamedTuple):
    """The live part of a log."""

    ledgers: int
    entries: int
    entry_bytes: int


class LedgerInLog(NamedTuple):
    """The entries of one ledger in one log."""

    log: int
    first_entry: int
    last_entry: int
    entries: int
    entry_bytes: int
    last_add_confirmed: int


class Catalog:
    def __init__(self) -> None:
        self.facts: dict[int, LedgerFacts] = {}
        self.logs: dict[int, EntryLogInfo] = {}
        self.doubts = PossibleLosses()
        self.replay_start = ReplayStart(1, 1)
        self.opened = 0  # The number of the newest journal file that may have records.
        self.lost: dict[int, None] = {}  # Missing journal files that a replay would need.
        self.scrubbed = 0
        self.old_below = 0  # Ledgers with lower ids may have been fenced here and forgotten (B13).
        # The number of removed logs; if it has changed, a look-up of a log has to be repeated.
        self.removals = 0
        self.is_complete = False
        # A log that is being added or removed; readers see only some of its ledgers.
        self._changing: int | None = None
        # The fields of all `LedgerInLog` values of each ledger, one value after the other. Objects
        # would take ten times the memory, and a store has millions of them.
        self._held: dict[int, IntArray] = {}
        # The ledgers of each log; some may have been removed from it in the meantime.
        self._ledgers_of: dict[int, IntArray] = {}
        self._use: dict[int, IntArray] = {}  # The fields of `Use` for each log.
        # Interned: most ledgers have identical facts.
        self._shared: dict[LedgerFacts, LedgerFacts] = {}
        self._dropped: dict[int, int] = {}  # The journal file with the DROP of each dropped ledger.

    def held(self, ledger_id: int) -> Iterator[LedgerInLog]:
        """Returns the ledger's extents in each log, newest log first."""
        fields = self._held.get(ledger_id, ())
        for at in range(len(fields) - _HELD, -1, -_HELD):
            yield LedgerInLog(*fields[at : at + _HELD])

    def holding(self, ledger_id: int, entry_id: int) -> list[int]:
        """Returns the logs whose range includes the entry, newest first."""
        fields = self._held.get(ledger_id)
        if fields is None:
            return []
        return [
            fields[at]
            for at in range(len(fields) - _HELD, -1, -_HELD)
            if fields[at + 1] <= entry_id <= fields[at + 2]
        ]

    def next_extent(self, ledger_id: int, entry_id: int) -> int:
        """Returns the first entry of the next range after the entry, or a number above all ids if
        there is none."""
        fields = self._held.get(ledger_id, ())
        return min((first for first in fields[1::_HELD] if first > entry_id), default=2**63)

    @property
    def held_ledgers(self) -> Collection[int]:
        """The ledgers with entries in logs."""
        return self._held.keys()

    def held_in(self, number: int) -> Iterator[tuple[int, LedgerInLog]]:
        """Returns the ledgers that one log holds, each with its entries in that log."""
        for ledger_id in self._ledgers_of[number]:
            fields = self._held.get(ledger_id, ())
            for at in range(0, len(fields), _HELD):
                if fields[at] == number:
                    yield ledger_id, LedgerInLog(*fields[at : at + _HELD])
                    break

    @property
    def whole_logs(self) -> list[EntryLogInfo]:
        """All logs except one that is being added or removed, which would look sparse or empty."""
        return [log for log in self.logs.values() if log.number != self._changing]

    def use_of(self, number: int) -> Use:
        return Use(*self._use[number])

    def is_deleted(self, ledger_id: int) -> bool:
        facts = self.facts.get(ledger_id)
        return facts is not None and facts.deleted_ms is not None

    def last_add_confirmed(self, ledger_id: int) -> int:
        fields = self._held.get(ledger_id)
        return max(fields[5::_HELD]) if fields else NO_ENTRY

    @property
    def ledger_ids(self) -> Iterator[int]:
        yield from self.facts
        yield from (ledger_id for ledger_id in self._held if ledger_id not in self.facts)

    # --- Applying changes ---------------------------------------------------------------------

    def apply(self, body: bytes) -> None:
        """Applies the changes of one record. Raises `TornRecord` if the bytes were not packed here."""
        for _ in self.applying(body):
            pass

    def applying(self, body: bytes) -> Iterator[None]:
        """Applies a record like `apply`, but in steps. Readers may run between the steps; other
        changes have to wait."""
        try:
            at = step_end = 0
            while at < len(body):
                if at > step_end:
                    yield
                    step_end = at + _STEP_BYTES
                if body[at] == Change.UNLOG:
                    yield from self._removing(records.ID.unpack_from(body, at)[1])
                    at += records.ID.size
                else:
                    at += self._apply_one(body, at)
        except (struct.error, ValueError, KeyError) as error:
            raise TornRecord(f"the catalog cannot be read: {error}") from error
        finally:
            self._changing = None

    def _apply_one(self, body: bytes, at: int) -> int:
        """Applies one change; returns its size."""
        kind = Change(body[at])
        match kind:
            case Change.LEDGER:
                return self._apply_ledger(body, at)
            case Change.LOG:
                return self._apply_log(body, at)
            case Change.EXTENTS:
                return self._apply_extents(body, at)
            case Change.DOUBT:
                _, ledger_id, first, last = records.DOUBT.unpack_from(body, at)
                if not self.is_deleted(ledger_id):
                    self.doubts.add(ledger_id, first, last)
                return records.DOUBT.size
            case Change.TRUST:
                _, ledger_id, first, last = records.DOUBT.unpack_from(body, at)
                self.doubts.settle(ledger_id, first, last)
                return records.DOUBT.size
            case Change.REPLAY:
                _, journal, first_sequence = records.REPLAY_START.unpack_from(body, at)
                assert (journal, first_sequence) >= self.replay_start, (
                    "B5: the replay start went back"
                )
                self.replay_start = ReplayStart(journal, first_sequence)
                self.lost = {number: None for number in self.lost if number >= journal}
                return records.REPLAY_START.size
            case Change.DOUBT_ALL:
                self.doubts.add_everything()
                return records.KIND.size
            case Change.TRUST_ALL:
                self.doubts.remove_everything()
                return records.KIND.size
            case Change.OLD:
                self.old_below = max(self.old_below, records.OLD.unpack_from(body, at)[1])
                return records.OLD.size
            case Change.DROP:
                _, ledger_id, journal = records.DROP.unpack_from(body, at)
                self.facts[ledger_id] = self._intern(self.facts[ledger_id].with_drop(journal))
                self.drop(ledger_id, journal)
                return records.DROP.size
            case Change.COMPLETE:
                self.is_complete = True
                return records.KIND.size
        _, number = records.ID.unpack_from(body, at)
        match kind:
            case Change.FORGET:
                self.facts.pop(number, None)
                self._give_up(number)
            case Change.OPENED:
                self.opened = max(self.opened, number)
            case Change.LOST:
                self.lost[number] = None
            case Change.SCRUBBED:
                self.scrubbed = number
        return records.ID.size

    def _apply_ledger(self, body: bytes, start: int) -> int:
        ledger_id, facts, size = records.unpack_ledger(body, start)
        self.facts[ledger_id] = self._intern(facts)
        if facts.deleted_ms is not None:
            self._give_up(ledger_id)
        return size

    def _intern(self, facts: LedgerFacts) -> LedgerFacts:
        if facts.lac_packet is not None or facts.deleted_ms is not None:
            return facts
        if len(self._shared) >= _SHARED_MAX:
            self._shared.clear()
        return self._shared.setdefault(facts, facts)

    def _apply_log(self, body: bytes, start: int) -> int:
        _, number, *rest = records.LOG.unpack_from(body, start)
        self.logs[number] = EntryLogInfo(number, *rest)
        self._ledgers_of[number] = array("q")
        self._use[number] = array("q", Use(0, 0, 0))
        self._changing = number
        return records.LOG.size

    def _apply_extents(self, body: bytes, start: int) -> int:
        _, number, count = records.EXTENTS.unpack_from(body, start)
        at = start + records.EXTENTS.size
        end = at + count * EXTENT.size
        if end > len(body):
            raise ValueError("a log's extents are cut short")
        use, ledger_ids = self._use[number], self._ledgers_of[number]
        age = self.logs[number].age
        for ledger_id, *held, _, _ in EXTENT.iter_unpack(body[at:end]):
            if self.is_deleted(ledger_id) or age < self._dropped.get(ledger_id, 0):
                continue
            self._insert(ledger_id, array("q", (number, *held)))
            ledger_ids.append(ledger_id)
            use[0] += 1
            use[1] += held[2]
            use[2] += held[3]
        return int(end) - start

    def _insert(self, ledger_id: int, fields: IntArray) -> None:
        """Inserts the fields after the fields of older logs."""
        known = self._held.get(ledger_id)
        if known is None:
            self._held[ledger_id] = fields
            return
        at, age = len(known), self.logs[fields[0]].age
        while at and self.logs[known[at - _HELD]].age > age:
            at -= _HELD
        if at == len(known):
            known.extend(fields)
        else:
            known[at:at] = fields

    def _removing(self, number: int) -> Iterator[None]:
        if number not in self.logs:
            return
        self._changing = number
        for done, ledger_id in enumerate(self._ledgers_of[number], 1):
            if done % _LEDGERS_PER_STEP == 0:
                yield
            fields = self._held.get(ledger_id, ())
            kept = array("q")
            for at in range(0, len(fields), _HELD):
                if fields[at] != number:
                    kept.extend(fields[at : at + _HELD])
            if kept:
                self._held[ledger_id] = kept
            else:
                self._held.pop(ledger_id, None)
        del self.logs[number], self._ledgers_of[number], self._use[number]
        self.removals += 1

    def drop(self, ledger_id: int, journal: int) -> None:
        """Applies a DROP that is durable in this journal file, before the catalog has a record of
        it.

        A DROP ends no doubts, because later entries may be lost, too.
        """
        self._dropped[ledger_id] = journal
        kept = array("q")
        for held in reversed(list(self.held(ledger_id))):
            if self.logs[held.log].age < journal:
                self._disuse(held)
            else:
                kept.extend(held)
        if kept:
            self._held[ledger_id] = kept
        else:
            self._held.pop(ledger_id, None)

    def _give_up(self, ledger_id: int) -> None:
        """Counts the ledger's entries as dead, and ends its doubts."""
        for held in self.held(ledger_id):
            self._disuse(held)
        self._held.pop(ledger_id, None)
        self._dropped.pop(ledger_id, None)
        self.doubts.remove(ledger_id, NO_ENTRY, LEDGER_ID_MAX)

    def _disuse(self, held: LedgerInLog) -> None:
        use = self._use[held.log]
        use[0] -= 1
        use[1] -= held.entries
        use[2] -= held.entry_bytes

    # --- A new generation ---------------------------------------------------------------------

    def pack_all(self) -> Iterator[bytes]:
        """Yields the bodies of records that recreate this catalog when they are applied to an empty
        one.

        A change made between two of these bodies must be written between them.
        """
        # Logs that come later are written as changes.
        logs = sorted(self.logs.values(), key=attrgetter("age"))
        known = (
            records.pack_replay_start(self.replay_start)
            + records.pack_opened(self.opened)
            + records.pack_scrubbed(self.scrubbed)
        )
        yield known + records.pack_old(self.old_below)
        yield b"".join(
            [records.DOUBT_ALL] * self.doubts.everything + [*map(records.pack_lost, self.lost)]
        )
        for ids in batches(self.doubts.settled_ids, _PER_RECORD):
            still = [each for each in ids if self.doubts.is_settled(each)]
            yield b"".join([records.pack_trust(each, NO_ENTRY, LEDGER_ID_MAX) for each in still])
        for ids in batches(self.doubts.ledger_ids, _PER_RECORD):
            doubts = [(each, doubt) for each in ids for doubt in self.doubts.of(each)]
            yield b"".join([records.pack_doubt(ledger_id, *doubt) for ledger_id, doubt in doubts])
        for ids in batches(list(self.facts), _PER_RECORD):
            found = [(each, self.facts[each]) for each in ids if each in self.facts]
            yield b"".join([records.pack_ledger(*each) for each in found])
        for log in logs:
            held = self.held_in(log.number)
            parts = records.pack_log(log, (Extent(each, *of[1:], 0, 0) for each, of in held))
            while log.number in self.logs and (part := next(parts, None)):
                yield part
        yield records.COMPLETE


_HELD: Final = len(LedgerInLog._fields)
