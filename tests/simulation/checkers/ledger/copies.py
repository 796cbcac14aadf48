"""Where entries lie, judged at each sync, each confirmation and each change of metadata.

- **truncated** (FR2, FR3, WR4): no writer gets an acknowledgement for an entry after the end of a closed ledger, before or after.
- **readable** (WR2): what was acknowledged to a writer is on a bookie that metadata names for it, at any instant.
- **copies** (FR5, HL1): of a closed ledger every entry is on `ack` bookies that metadata names for it; and on
  one of these whose lost disk was made good in any case.
- **order** (WR1, RD3): entry i carries the i-th payload that was written, wherever it turns up.
- **clean LAC** (FR4, RD1): a LAC that a named bookie may hand out names entries that have `ack` copies there.
- **durable ack** (WR1): what is acknowledged to a writer has `ack` copies that no power cut can take away.
- **vanished** (RD1): what a reader was shown as confirmed is in the ledger when it is closed.
- **refused**: what was refused to a writer is not in it when it is closed.
- **deleted** (LG1): nothing that is written after a deletion was reported done is confirmed.

Copies that went with a disk which we destroyed are excused, except by **readable**.
"""

from collections.abc import Callable
from typing import Final

from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId
from rollbook.proto.wire.digest import DigestType
from tests.simulation.checkers.ledger.facts import (
    BookieFacts,
    Facts,
    LedgerFacts,
    OnBroken,
    Stored,
    entries_in,
)

TRUNCATED: Final = "truncated"
READABLE: Final = "readable"
COPIES: Final = "copies"
ORDER: Final = "order"
CLEAN_LAC: Final = "clean LAC"
DURABLE_ACK: Final = "durable ack"
VANISHED: Final = "vanished"
DELETED: Final = "deleted"
REFUSED: Final = "refused"


class CopyRules:
    def __init__(self, facts: Facts, on_broken: OnBroken, now_ns: Callable[[], int]) -> None:
        self._facts = facts
        self._break = on_broken
        self._now_ns = now_ns
        self._healed: dict[str, None] = {}
        self._shown: dict[tuple[int, int], dict[str, None]] = {}

    # --- Disks --------------------------------------------------------------------------------

    def on_durable(self, bookie: str, data: bytes) -> list[tuple[int, int]]:
        """A sync of one of its files has ended well, and this is a sound record of it.

        Returns the entries that are new there.
        """
        facts = self._facts
        found = [self._on_stored(bookie, stored) for stored in entries_in(data, self._digest_of)]
        for ledger in facts.ledgers.values():
            kept = facts.kept(bookie, ledger.ledger_id)
            if not kept.has_fence:
                kept.has_fence = any(fence in data for fence in ledger.fences)
        return found

    def _digest_of(self, ledger_id: int) -> DigestType | None:
        ledger = self._facts.ledgers.get(ledger_id)
        return ledger.digest.kind if ledger and ledger.digest else None

    def _on_stored(self, bookie: str, stored: Stored) -> tuple[int, int]:
        ledger = self._facts.ledger(stored.ledger_id)
        kept = self._facts.kept(bookie, stored.ledger_id)
        stored_ledger_id, entry_id, lac = stored.header
        if (stored_ledger_id, entry_id) != (stored.ledger_id, stored.number):
            where = f"entry {entry_id} of ledger {stored_ledger_id}"
            self._break(ORDER, f"{bookie} has {ledger.name(stored.number)} as {where}")
        kept.on_durable(entry_id, self._now_ns())
        if lac > kept.lac:
            kept.lac = lac
            self._check_lac(ledger, bookie, kept)
        return stored.ledger_id, entry_id

    def on_lac_written(self, bookie: str, ledger_id: int, lac: int) -> None:
        """An explicit one is durable there."""
        kept = self._facts.kept(bookie, ledger_id)
        if lac > kept.lac:
            kept.lac = lac
            self._check_lac(self._facts.ledger(ledger_id), bookie, kept)

    def on_wiped(self, bookie: str) -> None:
        """Its disk is another one, empty."""
        facts = self._facts
        facts.destroyed[bookie] = None
        for ledger in list(facts.ledgers.values()):
            facts.kept(bookie, ledger.ledger_id).on_wiped()
            self._check_readable(ledger)

    def on_formatted(self, bookie: str) -> None:
        """It begins again, in doubt of ledgers that are not closed and name it, and of no others."""
        facts = self._facts
        for ledger in list(facts.ledgers.values()):
            kept, metadata = facts.kept(bookie, ledger.ledger_id), ledger.metadata
            if metadata is None or metadata.is_closed or not metadata.names(BookieId(bookie)):
                kept.lost.clear()
                kept.denied.clear()
                kept.denied_beyond = None
                kept.fence_was_answered = False

    def on_healed(self, bookie: str) -> None:
        self._facts.destroyed.pop(bookie, None)
        self._healed[bookie] = None

    # --- What writers and readers get -----------------------------------------------------------

    def on_confirmed(self, ledger_id: int, number: int, entry_id: int) -> None:
        """A writer learns the entry id of its n-th payload, permanently."""
        ledger = self._facts.ledger(ledger_id)
        if entry_id != number:
            self._break(ORDER, f"{ledger.name(number)} is confirmed as entry {entry_id}")
        ledger.confirmed = max(ledger.confirmed, entry_id)
        metadata = ledger.metadata
        if metadata is None:
            if not ledger.is_doomed:
                self._break(DURABLE_ACK, f"{ledger.name(entry_id)} is confirmed, of no ledger")
            return
        if metadata.last_entry is not None and entry_id > metadata.last_entry:
            text = (
                f"{ledger.name(entry_id)} is confirmed, and it is closed at {metadata.last_entry}"
            )
            self._break(TRUNCATED, text)
        self._check(ledger, entry_id, metadata.quorum.ack, DURABLE_ACK, "confirmed")

    def on_refused(self, ledger_id: int, number: int) -> None:
        """A writer learns that its n-th payload is not in the ledger and never will be."""
        ledger = self._facts.ledger(ledger_id)
        ledger.refused = min(ledger.refused, number)
        self._check_refused(ledger)

    def _check_refused(self, ledger: LedgerFacts) -> None:
        metadata = ledger.metadata
        if metadata is None or metadata.last_entry is None:
            return
        if ledger.refused <= metadata.last_entry:
            what = f"{ledger.name(ledger.refused)} was refused"
            self._break(REFUSED, f"{what}, and the ledger is closed at {metadata.last_entry}")

    def on_told(self, ledger_id: int, entry_id: int) -> None:
        """A reader that keeps to the LAC is shown the entry, or a LAC that covers it."""
        ledger = self._facts.ledger(ledger_id)
        ledger.told = max(ledger.told, entry_id)
        self._check_vanished(ledger)
        if ledger.metadata is not None and entry_id >= 0 and not ledger.is_doomed:
            what = "shown to a reader as confirmed"
            self._check(ledger, entry_id, ledger.metadata.quorum.ack, CLEAN_LAC, what)

    def on_read(self, ledger_id: int, entry_id: int, payload: bytes) -> None:
        ledger = self._facts.ledger(ledger_id)
        if payload != ledger.payload(entry_id):
            self._break(ORDER, f"{ledger.name(entry_id)} is read as nobody wrote it")

    def on_late_confirmed(self, ledger_id: int, number: int) -> None:
        """It was sent after a deletion of its ledger had been reported done."""
        name = self._facts.ledger(ledger_id).name(number)
        self._break(DELETED, f"{name} was written after the deletion, and is confirmed")

    # --- At the end -----------------------------------------------------------------------------

    def on_copy(self, ledger_id: int, entry_id: int, bookie: str) -> None:
        """After everything was restarted: the bookie has shown it."""
        self._shown.setdefault((ledger_id, entry_id), {})[bookie] = None

    def check_copies(self) -> None:
        """Everything that is closed over has been asked for, everywhere."""
        facts = self._facts
        for ledger in facts.ledgers.values():
            metadata = ledger.metadata
            if metadata is None or metadata.last_entry is None or ledger.is_doomed:
                continue
            for entry_id in map(EntryId, range(metadata.last_entry + 1)):
                ensemble = metadata.fragment_of(entry_id).ensemble
                shown = self._shown.get((ledger.ledger_id, entry_id), {})
                write_set = metadata.quorum.write_set(entry_id, ensemble)
                able = [
                    each
                    for each in write_set
                    if each in shown or each in facts.damaged or facts.lacks(each, ledger, entry_id)
                ]
                is_whole = all(each in able for each in write_set if each in self._healed)
                if len(able) < metadata.quorum.ack or not is_whole:
                    where = f"is shown by {', '.join(shown) or 'nobody'} of {', '.join(ensemble)}"
                    self._break(COPIES, f"{ledger.name(entry_id)} {where}")

    # --- Metadata -------------------------------------------------------------------------------

    def on_changed(self, ledger: LedgerFacts) -> None:
        """Its metadata is another one."""
        metadata = ledger.metadata
        if metadata is None or ledger.is_doomed:
            return
        ledger.clean = NO_ENTRY
        self._check_readable(ledger)
        for bookie, kept in self._facts.keepers(ledger.ledger_id):
            self._check_lac(ledger, bookie, kept)
        if metadata.last_entry is None:
            return
        if ledger.confirmed > metadata.last_entry:
            what = f"{ledger.name(ledger.confirmed)} was confirmed"
            self._break(TRUNCATED, f"{what}, and it closes at {metadata.last_entry}")
        self._check_vanished(ledger)
        self._check_refused(ledger)
        for entry_id in range(metadata.last_entry + 1):
            self._check(ledger, entry_id, metadata.quorum.ack, COPIES, "closed over")

    def _check_readable(self, ledger: LedgerFacts) -> None:
        if ledger.metadata is None or ledger.is_doomed:
            return
        for entry_id in range(ledger.confirmed + 1):
            if not self._facts.copies(ledger, entry_id):
                self._break(READABLE, f"{ledger.name(entry_id)} is confirmed, and is nowhere")

    def _check_vanished(self, ledger: LedgerFacts) -> None:
        metadata = ledger.metadata
        if metadata is None or metadata.last_entry is None or ledger.is_doomed:
            return
        if ledger.told > metadata.last_entry:
            what = f"{ledger.name(ledger.told)} was shown to a reader"
            self._break(VANISHED, f"{what}, and it is closed at {metadata.last_entry}")

    def _check_lac(self, ledger: LedgerFacts, bookie: str, kept: BookieFacts) -> None:
        metadata = ledger.metadata
        if metadata is None or ledger.is_doomed or not metadata.names(BookieId(bookie)):
            return
        for entry_id in range(ledger.clean + 1, kept.lac + 1):
            what = f"named by the LAC {kept.lac} of {bookie}"
            self._check(ledger, entry_id, metadata.quorum.ack, CLEAN_LAC, what)
        ledger.clean = max(ledger.clean, kept.lac)

    def _check(self, ledger: LedgerFacts, entry_id: int, ack: int, rule: str, what: str) -> None:
        facts = self._facts
        copies = facts.copies(ledger, entry_id)
        if copies < ack and copies + facts.excused(ledger, entry_id) < ack:
            assert ledger.metadata is not None
            ensemble = ledger.metadata.fragment_of(EntryId(entry_id)).ensemble
            where = f"has {copies} copies on {', '.join(ensemble)}"
            self._break(rule, f"{ledger.name(entry_id)} is {what} and {where}")
