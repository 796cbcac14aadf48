"""Draws ids for new ledgers, from the same counters as BookKeeper's own clients.

A counter is the number that the store gives to a sequential node. It is stored with the parent and
never decreases, so no id is given out twice, even if the highest ledgers are deleted. The node
itself is not needed and is removed at once.

    idgen/ID-NNNNNNNNNN                     id = N, while N < 2^31 - 1
    idgen-long/HOB-HHHHHHHHHH/ID-NNNNNNNNNN id = H * 2^32 + N, from then on, with the highest H

If `idgen-long` exists, the short ids are used up. When the numbers below a `HOB` are used up, the
next `HOB` is created; all except the newest three are removed.

Callers that ask for an id while others are being drawn share the next draw, which takes two
transactions for all of them. If a draw fails, all callers without an id get the error at the
same time.

A drawn id is only a proposal. It is taken when the ledger's node is created.

A store that was restored from an older copy has the counters of that time. `skip` moves them to a
new `HOB`, past every id that may have been drawn since the copy. Ids that were drawn before the
copy are below this `HOB`, too.
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

# Only a counter's numbers below this are used, since beyond it the counter wraps.
_NUMBERS: Final = 2**31 - 1
_HIGH: Final = re.compile(rf"{HIGH_PREFIX}([0-9]{{10}})")
_HIGH_MAX: Final = 2**31 - 1  # Ids have 63 bits, so a node with a higher number is foreign.
_HIGH_KEPT: Final = 3
_AT_ONCE_MAX: Final = 256
# The maximum number of used nodes that wait to be removed. If there are more, the oldest stay until their session ends.
_USED_MAX: Final = 16 * 1024
# In units of 2^32 ids: no counter moves further between the time of a copy and its restoration.
# Higher ids were chosen by a client.
_HIGHS_WITHIN_REACH: Final = 16
# How far above the counter an id counts as drawn since the copy. Larger: more deleted ledgers whose
# ids users chose keep a bookie from starting. Smaller: fewer later ledgers reveal the copy.
_DRAWN_WITHIN_REACH: Final = 1 << 20


_Waiter = asyncio.Future[LedgerId | None]
"""A caller that waits for its id. The result None means that it is this caller's turn to draw."""


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
        self._is_long = False  # It never becomes False again.
        self._is_drawing = False
        # The callers for whom ids are drawn next, in order.
        self._waiting: deque[_Waiter] = deque()
        self._used: list[str] = []  # The nodes of drawn numbers that are still to be removed.

    async def draw(self) -> LedgerId:
        """Returns an id that no other call gets, in this process or another one."""
        if self._is_drawing:
            drawn = await self._wait()
            if drawn is not None:
                return drawn
        self._is_drawing = True
        try:
            drawn = await self._draw_for_all()
        finally:
            self._pass_on()
        await self._remove_used()  # Only the caller that drew does this; the others have continued.
        return drawn

    async def skip(self, above: int = 0) -> LedgerId:
        """Advances the counters, and returns the lowest id that can be drawn from now on.

        This id is higher than `above`, and higher than all ids that this cluster's counters can
        have given out before the store was restored from a copy (LI1). Raises `InvalidRequest` if
        there are no such ids, and `NoSuchCluster`.
        """
        try:
            await ensure_node(self._store, self._long)
        except NoSuchNode:
            raise NoSuchCluster(path=self._long.rpartition("/")[0]) from None
        highs = _high_numbers(await children_surely(self._store, self._long))
        high = max(above >> 32, *highs, 0) + 1
        if high > _HIGH_MAX:
            raise InvalidRequest(
                f"there are no ledger ids above {above}",
                next_step="name the highest id that was drawn",
            )
        await ensure_node(self._store, self._high_path(high))
        return LedgerId(high << 32)

    async def _wait(self) -> LedgerId | None:
        """Waits for an id. Returns None if it is this caller's turn to draw ids."""
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
        """Draws an id for this caller and for all callers that are waiting now. All of them get their
        ids in the same turn of the loop; with a lock, each would be woken by the previous one, a
        turn later.
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
        finally:  # If this caller is cancelled, the next caller draws.
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
                return  # The next caller that draws tries to remove these nodes again.
            finally:
                self._used += left
                del self._used[:-_USED_MAX]

    async def _remove_nodes(self, paths: list[str]) -> list[str]:
        """Removes nodes, and returns those that are left.

        Some may be gone already, with their session, or because the reply to their removal was
        lost. A missing node makes the whole transaction fail, so then the existing nodes are listed
        and removed.
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
                # The parent was an old counter, which was deleted together with all its nodes.
                continue
            there.update(f"{parent}/{name}" for name in names)
        return [path for path in paths if path in there]

    async def _draw(self, count: int) -> list[LedgerId]:
        """Draws at least one id and at most `count` ids."""
        # This is read each time, since another process may have called `skip`.
        if not self._is_long:
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
                continue  # After the list was read, the counter was removed as one of the oldest.
            if numbers:
                return [LedgerId(high << 32 | number) for number in numbers]
            await ensure_node(self._store, self._high_path(high + 1))
            await self._remove([*highs, high + 1][:-_HIGH_KEPT])

    async def _draw_numbers(self, counter: str, count: int, *, is_made: bool = False) -> list[int]:
        """Draws numbers, and returns none if the counter is used up. If a response was lost, its
        numbers are skipped.
        """
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
                # Another process has removed the counter, or is still drawing from it and removes it later.
                pass

    def _high_path(self, high: int) -> str:
        return f"{self._long}/{HIGH_PREFIX}{high:010d}"


def _hand_out(drawn: list[LedgerId], waiting: deque[_Waiter]) -> None:
    """Gives the ids to the callers in order. A cancelled caller gets no id."""
    for ledger_id in drawn:
        while waiting:
            waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(ledger_id)
                break


def _high_numbers(names: list[str]) -> list[int]:
    numbers = [int(match[1]) for match in map(_HIGH.fullmatch, names) if match]
    return sorted(number for number in numbers if number <= _HIGH_MAX)
