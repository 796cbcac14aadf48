"""The ledger's metadata: a value, and how it is changed by compare-and-swap."""

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from rollbook.proto.errors import (
    ConnectionLost,
    LedgerFenced,
    MetadataConflict,
    MetadataUnavailable,
    NodeExists,
    SessionExpired,
)
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import MetadataStore
from rollbook.proto.quorum import Ensemble, Quorum

PATH: Final = "/ledger"
OPEN, IN_RECOVERY, CLOSED = "open", "in recovery", "closed"
QUORUM: Final = Quorum(ensemble=3, write=3, ack=2)
RETRY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Ledger:
    state: str
    fragments: tuple[tuple[int, Ensemble], ...]  # Each with its first entry, ascending.
    last: int | None = None  # Known exactly when closed.

    def __str__(self) -> str:
        where = "; ".join(
            f"from {first} on {' '.join(members)}" for first, members in self.fragments
        )
        return f"{self.state}, {where}" + ("" if self.last is None else f", last entry {self.last}")

    @property
    def ensemble(self) -> Ensemble:
        return self.fragments[-1][1]

    def ensemble_of(self, entry: int) -> Ensemble:
        return next(members for first, members in reversed(self.fragments) if first <= entry)

    def with_ensemble(self, first: int, ensemble: Ensemble) -> Self:
        """A last fragment in which nothing was confirmed gives way to the new one."""
        kept = self.fragments[:-1] if self.fragments[-1][0] == first else self.fragments
        return replace(self, fragments=(*kept, (first, ensemble)))

    def with_last(self, last: int) -> Self:
        return replace(self, state=CLOSED, last=last)

    def pack(self) -> bytes:
        fragments = [[first, list(ensemble)] for first, ensemble in self.fragments]
        return json.dumps([self.state, fragments, self.last]).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        state, fragments, last = json.loads(data)
        return cls(state, tuple((first, tuple(members)) for first, members in fragments), last)


class LedgerNode:
    """One client's view of the ledger in the metadata store: the value and the version it read."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._version = 0
        self.ledger: Ledger

    async def create(self, ledger: Ledger) -> None:
        while True:
            try:
                await self._store.create(PATH, ledger.pack())
            except NodeExists:
                pass  # Ours: nobody else creates it, so an earlier try got through.
            except _TRY_AGAIN:
                await asyncio.sleep(RETRY_S)
                continue
            self.ledger, self._version = ledger, 0
            return

    async def read(self) -> Ledger:
        while True:
            try:
                await self._store.sync()
                node = await self._store.get(PATH)
            except _TRY_AGAIN:
                node = None
            if node is not None:
                self.ledger, self._version = Ledger.unpack(node.value), node.stat.version
                return self.ledger
            await asyncio.sleep(RETRY_S)  # Not created yet, or not reachable.

    async def wait_until_closed(self) -> int:
        """Its last entry, when it is known."""
        while (last := (await self.read()).last) is None:
            await asyncio.sleep(RETRY_S)
        return last

    async def change(self, ledger: Ledger) -> None:
        """Raises `MetadataConflict` if it is not, or no longer, as it was last read.

        A write whose reply was lost was applied iff the version is the next one and the bytes
        are ours.
        """
        before, wanted = self._version, ledger.pack()
        while True:
            try:
                stat = await self._store.set(PATH, wanted, before)
            except MetadataConflict:
                await self.read()
            except _TRY_AGAIN:
                await asyncio.sleep(RETRY_S)
                await self.read()
                if self._version == before:
                    continue  # Not applied so far. Should it be later, the next try conflicts.
            else:
                self.ledger, self._version = ledger, stat.version
                return
            if self._version != before + 1 or self.ledger != ledger:
                raise MetadataConflict(path=PATH, expected=before, found=self._version)
            return

    async def change_while_open(self, ledger: Ledger) -> None:
        """The writer's way: it stops permanently when another client has touched the ledger."""
        try:
            await self.change(ledger)
        except MetadataConflict:
            raise LedgerFenced(path=PATH, state=self.ledger.state) from None


_TRY_AGAIN: Any = (ConnectionLost, MetadataUnavailable, SessionExpired)


def first_ledger(bookies: tuple[BookieId, ...]) -> Ledger:
    return Ledger(OPEN, ((0, bookies[: QUORUM.ensemble]),))
