"""Moves closed ledgers away from a bookie, and back to it.

Back as workers do it: under the ledger's lock, and what the bookie lists is not copied again. Or as
BookKeeper's command does it: without a lock, and all is copied. In both cases the bookie is named last.
"""

import asyncio
import random
from typing import Final

from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.underreplication_marks import Marks
from rollbook.proto.errors import RollbookError
from rollbook.proto.formats.layout import Layout
from rollbook.proto.ids import FIRST_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.ports import MetadataStore
from tests.simulation.checkers.bookie import BookieChecker
from tests.simulation.kernel.world import Node
from tests.simulation.worlds.bookie.client import Client

_AGAIN_S: Final = 0.2
# Between the last copy and the change of metadata, with and without a lock.
_PAUSES_S: Final = {True: (0.0, 0.5, 1.5), False: (0.1, 0.3, 0.6)}
_LAST_ENTRY: Final = EntryId(
    1000
)  # Of ledgers that were closed: nobody asks their entries to end there.


class Mover:
    def __init__(
        self,
        node: Node,
        client: Client,
        checker: BookieChecker,
        chance: random.Random,
        *,
        root: str,
        session_s: float,
        unlocked_s_max: float,
    ) -> None:
        """Copies that are made without a lock count if the bookie is named `unlocked_s_max` later or sooner."""
        self.gone: dict[tuple[str, int], None] = {}  # Ledgers that surely do not name the bookie.
        self._node = node
        self._client = client
        self._checker = checker
        self._chance = chance
        self._root = root
        self._session_s = session_s
        self._unlocked_s_max = unlocked_s_max
        self._promised: list[
            int
        ] = []  # Of a change of metadata of which nobody knows whether it was made.

    async def do(self, what: str) -> None:
        """Until it is done."""
        verb, bookie, ledger = what.split()
        self._promised = []
        while True:
            try:
                async with await self._node.metadata(session_timeout_s=self._session_s) as store:
                    if verb == "move":
                        await self._move_away(store, BookieId(bookie), int(ledger))
                        return
                    is_locked = verb == "back"
                    if await self._move_back(store, BookieId(bookie), int(ledger), is_locked):
                        return
            except RollbookError:
                pass
            await asyncio.sleep(_AGAIN_S)

    def _nodes(self, store: MetadataStore) -> LedgerNodes:
        return LedgerNodes(store, self._root, Layout.HIERARCHICAL)

    async def _move_away(self, store: MetadataStore, bookie: BookieId, ledger_id: int) -> None:
        stored = await self._nodes(store).read(LedgerId(ledger_id), fresh=True)
        metadata = stored.metadata
        if not metadata.is_closed:
            metadata = metadata.with_close(_LAST_ENTRY, 0)
        self._checker.on_unnamed(bookie, ledger_id)
        if metadata.names(bookie):
            metadata = metadata.with_replacement(FIRST_ENTRY, bookie, _elsewhere(bookie))
        await self._nodes(store).update(stored, metadata)
        self.gone[bookie, ledger_id] = None

    async def _move_back(
        self, store: MetadataStore, bookie: BookieId, ledger_id: int, is_locked: bool
    ) -> bool:
        nodes, marks = self._nodes(store), Marks(store, self._root)
        await marks.prepare()
        lock = await marks.take(LedgerId(ledger_id), "repairer") if is_locked else None
        if is_locked and lock is None:
            return False
        stored = await nodes.read(LedgerId(ledger_id), fresh=True)
        if stored.metadata.names(bookie):
            self._checker.on_named(bookie, ledger_id, self._promised)
            return True
        began_ns = self._node.clock.monotonic_ns()
        there = await self._client.restore(bookie, ledger_id, lists=is_locked)
        if there is None:
            return False
        await asyncio.sleep(self._chance.choice(_PAUSES_S[is_locked]))
        changed = stored.metadata.with_replacement(FIRST_ENTRY, _elsewhere(bookie), bookie)
        self.gone.pop((bookie, ledger_id), None)
        if lock:
            self._promised = there
            await nodes.swap(stored, changed, [lock.check], lock.session)
        else:
            await nodes.update(stored, changed)
            took_s = (self._node.clock.monotonic_ns() - began_ns) / 1e9
            there = there if took_s <= self._unlocked_s_max else []
        self._checker.on_named(bookie, ledger_id, there)
        return True


def _elsewhere(bookie: BookieId) -> BookieId:
    return BookieId(f"not-{bookie}")
