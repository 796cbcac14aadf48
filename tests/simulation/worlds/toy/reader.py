"""A reader at the tail: takes some bookie's word for how far the ledger is confirmed.

It believes any LAC that a member of the last ensemble tells it, as readers do. That is why a LAC
must never name an entry that could still vanish.
"""

import asyncio
import random
from typing import Final

from rollbook.proto.ids import FIRST_ENTRY, NO_ENTRY, EntryId
from rollbook.proto.quorum import Ensemble
from tests.simulation.history import History
from tests.simulation.worlds.toy.ledger import CLOSED, QUORUM, LedgerNode
from tests.simulation.worlds.toy.wire import HAVE, READ, Links

POLL_S: Final = 0.12
ASK_TIMEOUT_S: Final = 0.2


class Reader:
    def __init__(
        self, name: str, node: LedgerNode, links: Links, history: History, rng: random.Random
    ) -> None:
        self._name, self._node, self._links = name, node, links
        self._history, self._rng = history, rng

    async def follow(self) -> None:
        """Hands over one entry after the other, up to the end of the closed ledger."""
        next_entry = FIRST_ENTRY
        while True:
            ledger = await self._node.read()
            last = ledger.last if ledger.last is not None else await self._ask_lac(ledger.ensemble)
            while next_entry <= last:
                body = await self._read(ledger.ensemble_of(next_entry), next_entry)
                if body is None:
                    break  # Nobody who has it answers just now.
                self._history.deliver(self._name, next_entry, body)
                next_entry = EntryId(next_entry + 1)
            if ledger.state == CLOSED and next_entry > last:
                return
            await asyncio.sleep(POLL_S)

    async def _ask_lac(self, ensemble: Ensemble) -> int:
        question = (READ, NO_ENTRY, NO_ENTRY, 0)
        answers = await self._links.hear(
            (self._rng.choice(ensemble),), question, bool, ASK_TIMEOUT_S
        )
        return max((answer.lac for answer in answers.values()), default=NO_ENTRY)

    async def _read(self, ensemble: Ensemble, entry: EntryId) -> int | None:
        answers = await self._links.hear(
            QUORUM.write_set(entry, ensemble),
            (READ, entry, NO_ENTRY, 0),
            lambda answers: any(answer.kind == HAVE for answer in answers.values()),
            ASK_TIMEOUT_S,
        )
        return next((a.body for a in answers.values() if a.kind == HAVE), None)
