"""Draws ids for new ledgers, from the same counters as BookKeeper's own clients.

A counter is the number that the store gives to a sequential node; it is stored with the parent
and never goes back, so an id is not given out twice even when the highest ledgers are deleted.
The node itself is of no use and is removed at once.

    idgen/ID-NNNNNNNNNN                     id = N, while N < 2^31 - 1
    idgen-long/HOB-HHHHHHHHHH/ID-NNNNNNNNNN id = H * 2^32 + N, from then on, with the highest H

If `idgen-long` exists the short ids are used up. When the numbers below one `HOB` are used up,
the next one is made; all but the newest three are removed.

Callers that ask for an id while others are being drawn share the next draw, which takes two
transactions for all of them. If a draw fails, all callers without an id get the error at the
same time.

A drawn id is only a proposal: it is taken once the ledger's node has been created.

A store that was restored from an older copy has the counters of that time. `skip` moves them past every id
that can have been drawn since: to a new `HOB`. Ids that were drawn before the copy stay below it.
"""

import asyncio
import re
from collections import deque
from typing import Final

from rollbook.proto.cluster.uncertain_writes import (
    ATTEMPTS,
    children_surely,
    delete_surely,
    ensure_node,
    read_surely,
)
from rollbook.proto.errors import (
    ConnectionLost,
    InvalidRequest,
    MetadataUnavailable,
    NodeNotEmpty,
    NoSuchCluster,
    NoSuchNode,
    RollbookError,
    SessionExpired,
)
from rollbook.proto.formats.paths import HIGH_PREFIX, ID_PREFIX, LONG_IDS, SHORT_IDS
from rollbook.proto.ids import LedgerId
from rollbook.proto.ports import Create, CreateMode, Delete, MetadataStore

_NUMBERS: Final = 2**31 - 1  # A counter's numbers below this are used; after it, it wraps.
_HIGH: Final = re.compile(rf"{HIGH_PREFIX}([0-9]{{10}})")
_HIGH_MAX: Final = 2**31 - 1  # Ids have 63 bits; a higher name is foreign.
_HIGH_KEPT: Final = 3
_AT_ONCE_MAX: Final = 256
# Used nodes that are still to be removed. If more wait, further ones stay until their session ends.
_USED_MAX: Final = 16 * 1024
# In units of 2^32 ids. No counter moves further between a copy of the store and its return; higher
# ids were chosen by a client.
_HIGHS_WITHIN_REACH: Final = 16
# Ids above the counter that count as drawn since the copy. Larger: more deleted ledgers with ids
# chosen by users keep a bookie from starting; smaller: fewer later ledgers reveal the copy.
_DRAWN_WITHIN_REACH: Final = 1 << 20


_Waiter = asyncio.Future[LedgerId | None]
"""A caller that waits for its id; None: it is its turn to draw."""


def is_ahead(ledger_id: int, position: int) -> bool:
    """Returns whether a counter at `position` will give out this id (LI1)."""
    highs = (ledger_id >> 32) - (position >> 32)
    drawn = ledger_id - max(position, ledger_id >> 32 << 32)
    return 0 <= highs <= _HIGHS_WITHIN_REACH and 0 <= drawn < _DRAWN_WITHIN_REACH


class LedgerIds:
    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._short = f"{root}/{SHORT_IDS}"
        self._long = f"{root}/{LONG_IDS}"
        self._is_long = False  # Once True, it stays True.
        self._is_drawing = False
        self._waiting: deque[_Waiter] = deque()  # The callers whose ids are drawn next, in order.
        self._used: list[str] = []  # Nodes of drawn numbers, still to be removed.

    async def draw(self) -> LedgerId:
        """Returns an id that no other call gets, here or elsewhere."""
        if self._is_drawing:
            drawn = await self._wait()
            if drawn is not None:
                return drawn
        self._is_drawing = True
        try:
            drawn = await self._draw_for_all()
        finally:
            self._pass_on()
        await self._remove_used()  # Done by the caller that drew, while the others continue.
        return drawn

    async def skip(self, above: int = 0) -> LedgerId:
        """Moves the counters on, and returns the lowest id that can be drawn from now on.

        That id is higher than `above` and than all that this cluster's counters can have given out
        before their store was restored from a copy (LI1). Raises `InvalidRequest` if there are no
        such ids, `NoSuchCluster`.
        """
        try:
            await ensure_node(self._store, self._long)
        except NoSuchNode:
            raise NoSuchCluster(path=self._long.rpartition("/")[0]) from None
        highs = _high_numbers(await children_surely(self._store, self._long))
        high = max(above >> 32, *highs, 0) + 1
        if high > _HIGH_MAX:
            raise InvalidRequest(
                f"no counter gives ids above {above}",
                next_step="name the highest id that was drawn",
            )
        await ensure_node(self._store, self._high_path(high))
        return LedgerId(high << 32)

    async def _wait(self) -> LedgerId | None:
        """Waits for an id; None: it is this caller's turn to draw ids."""
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled() and waiter.exception() is None and waiter.result() is None:
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._is_drawing = False

    async def _draw_for_all(self) -> LedgerId:
        """Draws an id for this caller first, then for all callers that wait by now.

        All of them get their ids in the same turn of the loop: with a lock, each would be woken by
        the previous one, a turn later.
        """
        own: _Waiter = asyncio.get_running_loop().create_future()
        together = deque([own, *self._waiting])
        self._waiting.clear()
        try:
            while together:
                _hand_out(await self._draw(min(len(together), _AT_ONCE_MAX)), together)
        except RollbookError as error:
            for waiter in together:
                if not waiter.done():
                    waiter.set_exception(error.copy())
            together.clear()
        finally:  # If this caller is cancelled, the next waiting one draws.
            self._waiting.extendleft(each for each in reversed(together) if each is not own)
        drawn = own.result()
        assert drawn is not None
        return drawn

    async def _remove_used(self) -> None:
        # Nodes that other callers add in the meantime are removed by those callers.
        for _ in range(0, len(self._used), _AT_ONCE_MAX):
            taken, self._used = self._used[:_AT_ONCE_MAX], self._used[_AT_ONCE_MAX:]
            left = taken
            try:
                left = await self._remove_nodes(taken)
            except RollbookError:
                return  # The next caller draws for all that remain.
            finally:
                self._used += left
                del self._used[:-_USED_MAX]

    async def _remove_nodes(self, paths: list[str]) -> list[str]:
        """Removes nodes, and returns those that are left.

        Some may be gone, with their session, or because the reply to their removal was lost. A
        missing node makes the whole transaction fail, so the existing ones are then listed.
        """
        for _ in range(ATTEMPTS):
            try:
                await self._store.transaction([Delete(path) for path in paths])
            except NoSuchNode:
                paths = await self._those_there(paths)
            else:
                paths = []
            if not paths:
                break
        return paths

    async def _those_there(self, paths: list[str]) -> list[str]:
        there: set[str] = set()
        for parent in dict.fromkeys(path.rpartition("/")[0] for path in paths):
            try:
                names = await self._store.children(parent)
            except NoSuchNode:
                # The parent was one of the oldest counters, which are deleted with all lower numbers.
                continue
            there.update(f"{parent}/{name}" for name in names)
        return [path for path in paths if path in there]

    async def _draw(self, count: int) -> list[LedgerId]:
        """Draws `count` ids or fewer, at least one."""
        if not self._is_long:  # Read each time: another process may have called `skip`.
            self._is_long = await read_surely(self._store, self._long, fresh=False) is not None
        if not self._is_long:
            numbers = await self._draw_numbers(self._short, count)
            if numbers:
                return [LedgerId(number) for number in numbers]
            await ensure_node(self._store, self._long)
            self._is_long = True
        return await self._draw_long(count)

    async def _draw_long(self, count: int) -> list[LedgerId]:
        while True:
            highs = _high_numbers(await children_surely(self._store, self._long))
            if not highs:
                await ensure_node(self._store, self._high_path(1))
                continue
            high = highs[-1]
            try:
                numbers = await self._draw_numbers(self._high_path(high), count, is_made=True)
            except NoSuchNode:
                continue  # The counter was removed as one of the oldest after the list was read.
            if numbers:
                return [LedgerId(high << 32 | number) for number in numbers]
            await ensure_node(self._store, self._high_path(high + 1))
            await self._remove([*highs, high + 1][:-_HIGH_KEPT])

    async def _draw_numbers(self, counter: str, count: int, *, is_made: bool = False) -> list[int]:
        """Draws numbers; none if the counter has run out. Numbers whose response was lost are skipped."""
        one = Create(f"{counter}/{ID_PREFIX}", mode=CreateMode.EPHEMERAL_SEQUENTIAL)
        for _ in range(ATTEMPTS):
            try:
                paths = [str(path) for path in await self._store.transaction([one] * count)]
            except (ConnectionLost, SessionExpired):
                continue
            except NoSuchNode:
                if is_made:
                    raise
                await self._make_counter(counter)
                continue
            self._used += paths
            numbers = [int(path.rpartition(ID_PREFIX)[2]) for path in paths]
            return [number for number in numbers if 0 <= number < _NUMBERS]
        raise MetadataUnavailable("no ledger id could be drawn", path=counter)

    async def _make_counter(self, counter: str) -> None:
        try:
            await ensure_node(self._store, counter)
        except NoSuchNode:
            raise NoSuchCluster(path=counter.rpartition("/")[0]) from None

    async def _remove(self, highs: list[int]) -> None:
        for high in highs:
            try:
                await delete_surely(self._store, self._high_path(high))
            except (NoSuchNode, NodeNotEmpty):
                # Another process has removed it or is still drawing from it: the next caller removes it.
                pass

    def _high_path(self, high: int) -> str:
        return f"{self._long}/{HIGH_PREFIX}{high:010d}"


def _hand_out(drawn: list[LedgerId], waiting: deque[_Waiter]) -> None:
    """Hands out ids in order; a cancelled caller gets none."""
    for ledger_id in drawn:
        while waiting:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(ledger_id)
                break


def _high_numbers(names: list[str]) -> list[int]:
    numbers = [int(match[1]) for match in map(_HIGH.fullmatch, names) if match]
    return sorted(number for number in numbers if number <= _HIGH_MAX)
