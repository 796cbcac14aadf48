"""Ledgers and everything that touches them, judged by what goes in and out and by what disks hold.

Facts come in as they happen: commits of the metadata store, syncs of the bookies' disks, answers as
they leave the bookies, what users of the client get. Nothing is known of the client's inside, so a
rule holds for every writer and recovery. `copies.py`, `metadata.py` and `answers.py` have the rules, each
under the name by which a run fails, with the invariants that it checks.
"""

from collections.abc import Callable, Sequence
from typing import Final

from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from rollbook.proto.wire.messages import Reply, Request
from tests.simulation.checkers.ledger import answers, copies, metadata
from tests.simulation.checkers.ledger.facts import (
    PAYLOAD_BYTES_MIN,
    Facts,
    LedgerFacts,
    OnBroken,
    fences_on_disk,
    payload_of,
)

RULES: Final = (
    copies.TRUNCATED,
    copies.READABLE,
    copies.COPIES,
    copies.ORDER,
    copies.CLEAN_LAC,
    copies.DURABLE_ACK,
    copies.VANISHED,
    copies.REFUSED,
    copies.DELETED,
    metadata.FRAGMENTS,
    metadata.VERSIONS,
    metadata.LENGTH,
    metadata.FROZEN,
    metadata.ABSENCE,
    answers.FENCE,
    answers.BYTES,
    answers.UNJUDGED,
)

__all__ = ["PAYLOAD_BYTES_MIN", "RULES", "LedgerChecker", "LedgerFacts", "payload_of"]


class LedgerChecker:
    def __init__(self, on_broken: OnBroken, now_ns: Callable[[], int]) -> None:
        self.facts = Facts()
        self._copies = copies.CopyRules(self.facts, on_broken, now_ns)
        self._metadata = metadata.MetadataRules(self.facts, on_broken)
        self._answers = answers.AnswerRules(self.facts, self._metadata, on_broken)
        # Counted, so that a run can show that it was about something.
        self.heard = dict.fromkeys(("confirmed", "denied", "changes", "answers", "read"), 0)

    # --- Writers and readers --------------------------------------------------------------------

    def on_written(self, ledger_id: int, size: int) -> bytes:
        """A writer is about to append: this is its payload."""
        ledger = self.facts.ledger(ledger_id)
        ledger.sizes.append(size)
        return payload_of(ledger_id, len(ledger.sizes) - 1, size)

    def on_confirmed(self, ledger_id: int, number: int, entry_id: int, *, is_late: bool) -> None:
        """`is_late`: written after the ledger was reported deleted."""
        self.heard["confirmed"] += 1
        self._copies.on_confirmed(ledger_id, number, entry_id)
        if is_late:
            self._copies.on_late_confirmed(ledger_id, number)

    def on_refused(self, ledger_id: int, number: int) -> None:
        self._copies.on_refused(ledger_id, number)

    def on_read(
        self, ledger_id: int, entry_id: int, payload: bytes, *, is_confirmed: bool = True
    ) -> None:
        """`is_confirmed`: by a reader that keeps to the LAC."""
        self.heard["read"] += 1
        self._copies.on_read(ledger_id, entry_id, payload)
        if is_confirmed:
            self._copies.on_told(ledger_id, entry_id)

    def on_told(self, ledger_id: int, lac: int) -> None:
        self._copies.on_told(ledger_id, lac)

    def on_doomed(self, ledger_id: int) -> None:
        self.facts.ledger(ledger_id).is_doomed = True

    def on_gone(self, ledger_id: int) -> None:
        self.facts.ledger(ledger_id).is_gone = True

    # --- Metadata -------------------------------------------------------------------------------

    def on_committed(
        self,
        ledger_id: int,
        now: LedgerMetadata | None,
        version: int,
        authors: Sequence[tuple[str, int | None]],
    ) -> None:
        ledger = self.facts.ledger(ledger_id)
        before, version_before = ledger.metadata, ledger.version
        ledger.metadata, ledger.version = now, version
        if now is not None and ledger.digest is None:
            assert now.password is not None
            kind = now.digest_type or DigestType.DUMMY
            ledger.digest = LedgerDigest(kind, now.password, LedgerId(ledger_id))
            ledger.fences = fences_on_disk(ledger_id, now.password)
        self.heard["changes"] += 1
        self._metadata.on_changed(ledger, before, version_before, authors)
        self._copies.on_changed(ledger)

    # --- Bookies --------------------------------------------------------------------------------

    def on_durable(self, bookie: str, data: bytes) -> None:
        for ledger_id, entry_id in self._copies.on_durable(bookie, data):
            self._answers.on_durable(bookie, ledger_id, entry_id)

    def on_lac_written(self, bookie: str, ledger_id: int, lac: int) -> None:
        self._copies.on_lac_written(bookie, ledger_id, lac)

    def on_accepted(
        self, bookie: str, ledger_id: int, entries: Sequence[EntryId], *, mends: bool
    ) -> None:
        self._answers.on_accepted(bookie, ledger_id, entries, mends)

    def on_answer(
        self, bookie: str, asker: str, heard_ns: int, request: Request, reply: Reply
    ) -> None:
        """Now, to what it was asked at `heard_ns`."""
        self.heard["answers"] += 1
        self._answers.on_answer(answers.Asked(bookie, asker, heard_ns), request, reply)

    def on_wiped(self, bookie: str) -> None:
        self._copies.on_wiped(bookie)

    def on_formatted(self, bookie: str) -> None:
        self._copies.on_formatted(bookie)

    def on_healed(self, bookie: str) -> None:
        """It has all of every closed ledger again, as the healing reported."""
        self._copies.on_healed(bookie)

    # --- At the end -----------------------------------------------------------------------------

    def on_copy(self, ledger_id: int, entry_id: int, bookie: str) -> None:
        self._copies.on_copy(ledger_id, entry_id, bookie)

    def check_copies(self) -> None:
        self._copies.check_copies()
