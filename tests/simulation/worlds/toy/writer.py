"""The writer: sends entries, confirms them in order, replaces bookies that fail.

Confirming is held while an ensemble change is under way. The fragment that is being published
starts at LAC + 1; an entry confirmed meanwhile could rest on acks of bookies that metadata is about
to forget.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from rollbook.proto.errors import LedgerFenced
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId
from rollbook.proto.quorum import Ensemble
from tests.simulation.history import Append, History
from tests.simulation.worlds.toy.ledger import QUORUM, Ledger, LedgerNode, first_ledger
from tests.simulation.worlds.toy.wire import ADD, FENCED, Links, Message

ADD_TIMEOUT_S: Final = 0.25
RESEND_S: Final = 0.04
PAUSE_S: Final = 0.05


@dataclass(slots=True)
class Pending:
    body: int
    operation: Append
    copies: int = 0  # Bits of the ensemble's slots.


class Writer:
    def __init__(
        self,
        bookies: tuple[BookieId, ...],
        node: LedgerNode,
        links: Links,
        history: History,
        rng: random.Random,
        on_confirmed: Callable[[int, int, Ensemble], None],
    ) -> None:
        self.lac: int = NO_ENTRY
        self._bookies, self._node, self._links = bookies, node, links
        self._history, self._rng, self._on_confirmed = history, rng, on_confirmed
        self._ensemble: Ensemble = ()
        self._pending: dict[EntryId, Pending] = {}  # In order of entry.
        self._next = 0
        self._failed: dict[BookieId, None] = {}
        self._change: asyncio.Task[None] | None = None
        self._stopped = ""  # Why.
        self._search: asyncio.Task[None] | None = None  # For what became of the last entries.
        self._settled = asyncio.Event()  # Nothing is pending.

    async def open(self, ensemble: Ensemble) -> None:
        await self._node.create(first_ledger(ensemble))
        self._ensemble = self._node.ledger.ensemble

    def append(self, body: int) -> None:
        operation = self._history.append("writer", body)
        if self._stopped:
            self._history.on_refused(operation)
            return
        entry = EntryId(self._next)
        self._next += 1
        self._pending[entry] = Pending(body, operation)
        self._settled.clear()
        for slot in QUORUM.write_slots(entry):
            self._send(entry, slot)
        asyncio.get_running_loop().call_later(ADD_TIMEOUT_S, self._on_deadline, entry)

    async def close(self) -> None:
        """Settles what is pending first. Does nothing if the ledger is no longer ours."""
        if self._pending:
            await self._settled.wait()
        if not self._stopped:
            closed = self._node.ledger.with_last(self.lac)
            try:
                await self._node.change_while_open(closed)
            except LedgerFenced:
                pass
            self._stop("closed")

    # --- Adds ---------------------------------------------------------------------------------

    def _send(self, entry: EntryId, slot: int) -> None:
        bookie = self._ensemble[slot]
        on_answer = partial(self._on_answer, entry, bookie)
        self._links.ask(bookie, ADD, entry, self.lac, self._pending[entry].body, on_answer)

    def _on_answer(self, entry: EntryId, bookie: BookieId, answer: Message | None) -> None:
        if self._stopped:
            return
        if answer is None:  # The line broke. Within its time-out an add is sent again.
            asyncio.get_running_loop().call_later(RESEND_S, self._resend, entry, bookie)
        elif answer.kind == FENCED:
            self._stop("fenced")
        elif entry in self._pending and bookie in self._ensemble:
            self._pending[entry].copies |= 1 << self._ensemble.index(bookie)
            self._confirm()

    def _resend(self, entry: EntryId, bookie: BookieId) -> None:
        if not self._stopped and entry in self._pending and bookie in self._ensemble:
            slot = self._ensemble.index(bookie)
            if not self._pending[entry].copies >> slot & 1:
                self._send(entry, slot)

    def _on_deadline(self, entry: EntryId) -> None:
        if self._stopped or entry not in self._pending:
            return
        for slot, bookie in enumerate(self._ensemble):
            if not self._pending[entry].copies >> slot & 1:
                self._on_failed(bookie)
        asyncio.get_running_loop().call_later(ADD_TIMEOUT_S, self._on_deadline, entry)

    def _confirm(self) -> None:
        if self._stopped or self._is_held():
            return
        while self._pending:
            entry = next(iter(self._pending))
            pending = self._pending[entry]
            if not QUORUM.is_acked(entry, pending.copies):
                return
            del self._pending[entry]
            self.lac = entry
            self._on_confirmed(entry, pending.body, self._ensemble)
            self._history.on_applied(pending.operation, entry)
        self._settled.set()

    def _is_held(self) -> bool:
        return self._change is not None

    # --- Ensemble changes ---------------------------------------------------------------------

    def _on_failed(self, bookie: BookieId) -> None:
        if bookie in self._ensemble:
            self._failed[bookie] = None
            if self._change is None:
                self._change = asyncio.ensure_future(self._change_ensemble())

    async def _change_ensemble(self) -> None:
        """One at a time; failures that come meanwhile are folded into the next turn."""
        while not self._stopped and any(bookie in self._failed for bookie in self._ensemble):
            ensemble = self._pick_ensemble()
            try:
                changed = self._node.ledger.with_ensemble(self.lac + 1, ensemble)
                await self._publish(changed)
            except LedgerFenced:
                self._stop("fenced")
                return
            replaced = [s for s in range(len(ensemble)) if ensemble[s] != self._ensemble[s]]
            self._ensemble, self._failed = ensemble, {}
            for entry, pending in self._pending.items():
                for slot in replaced:
                    self._disown(pending, slot)
                    self._send(entry, slot)
            await asyncio.sleep(PAUSE_S)  # The new ones may have failed as well.
        self._change = None
        self._confirm()

    async def _publish(self, changed: Ledger) -> None:
        await self._node.change_while_open(changed)

    def _disown(self, pending: Pending, slot: int) -> None:
        """A copy on a bookie that left the ensemble protects nobody."""
        pending.copies &= ~(1 << slot)

    def _pick_ensemble(self) -> Ensemble:
        """Each failed bookie gives way to another as long as there are others."""
        spare = [bookie for bookie in self._bookies if bookie not in self._ensemble]
        self._rng.shuffle(spare)
        return tuple(
            spare.pop() if bookie in self._failed and spare else bookie for bookie in self._ensemble
        )

    def _stop(self, why: str) -> None:
        """Stop permanently. The recovery that fenced us decides what becomes of the entries in flight."""
        if not self._stopped:
            self._stopped = why
            self._search = asyncio.ensure_future(self._find_out())

    async def _find_out(self) -> None:
        """What the closed ledger holds was appended, what it does not hold never will be."""
        last = await self._node.wait_until_closed() if self._pending else NO_ENTRY
        for entry, pending in self._pending.items():
            if entry <= last:
                self._history.on_applied(pending.operation, entry)
            else:
                self._history.on_refused(pending.operation)
        self._pending = {}
        self._settled.set()
