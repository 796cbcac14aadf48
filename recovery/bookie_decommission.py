"""Carries out a person's decisions about bookies that leave: drain, undrain, mark as drained, check for
removal, remove.

All decisions are written to metadata, so the bookie and the steward may be down. The bookie follows its
lifecycle (`bookie/drain_watch.py`), and the steward carries drains out (`drain_steward.py`). Each answer about
ledgers comes from a complete fresh walk (`bookie_ledger_scan.py`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from rollbook.proto.cluster.bookie_lifecycle_nodes import LifecycleNodes, StoredLifecycle
from rollbook.proto.cluster.bookie_watcher import BookieWatcher, LiveBookies
from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.cluster.cookies import MemberNodes
from rollbook.proto.cluster.ledger_nodes import LedgerNodes
from rollbook.proto.cluster.uncertain_writes import read_surely, transact_surely
from rollbook.proto.errors import (
    DrainBlocked,
    InvalidRequest,
    LifecycleConflict,
    NotConfirmed,
)
from rollbook.proto.formats.lifecycle import Lifecycle, LifecycleState
from rollbook.proto.formats.paths import COOKIES
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.ports import Clock, Delete, MetadataStore, Op, Randomness
from rollbook.recovery.bookie_ledger_scan import take_census
from rollbook.recovery.core.bookie_drain_states import cancel, drain, has_room, mark_drained, retry
from rollbook.recovery.core.removal_damage import Damage

_TOKEN_BITS: Final = 128
_LEDGERS_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class RemovalCheck:
    """The verdict on whether some bookies may all be removed together."""

    bookies: tuple[BookieId, ...]
    states: dict[BookieId, LifecycleState]
    naming: dict[BookieId, int]  # For each bookie, the number of ledgers that name it.
    damage: Damage
    unreadable: int  # Ledgers with unreadable metadata, which may name any bookie.
    writable: tuple[BookieId, ...]  # Bookies that should be removed, but still accept entries.
    running: tuple[BookieId, ...]  # Bookies that should be removed, but are registered.

    @property
    def is_safe(self) -> bool:
        return not (self.damage.named or self.unreadable or self.writable)


class Departures:
    def __init__(
        self, store: MetadataStore, cluster: Cluster, clock: Clock, randomness: Randomness
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._randomness = randomness
        self._nodes = LedgerNodes(store, cluster.root, cluster.layout)
        self._lifecycles = LifecycleNodes(store, cluster)
        self._members = MemberNodes(store, cluster)

    async def drain(
        self, bookies: Sequence[BookieId], *, is_forced: bool = False
    ) -> list[StoredLifecycle]:
        """Begin to drain all of these bookies, or none of them. A bookie whose drain failed is drained again.

        Raises `DrainBlocked` with the ledgers for which no other bookie could take a slot (LC3),
        `LifecycleConflict`, `InvalidRequest` for a bookie that the cluster does not know.
        """
        found = [await self._known(bookie) for bookie in bookies]
        naming = await self.check(bookies, is_forced=is_forced)
        changes = [
            self._change(each, ledgers=naming[each.bookie], is_forced=is_forced) for each in found
        ]
        return [
            await self._lifecycles.write(each, change)
            for each, change in zip(found, changes, strict=True)
        ]

    async def check(
        self, bookies: Sequence[BookieId], *, is_forced: bool = False
    ) -> dict[BookieId, int]:
        """Return the number of ledgers that name each bookie, if all of them can be drained. Changes
        nothing. Raises `DrainBlocked`, `LifecycleConflict`, `InvalidRequest`.
        """
        for bookie in bookies:
            await self._known(bookie)
        live, leaving = await self._live(), await self._leaving()
        leaving |= set(bookies)
        targets = [bookie for bookie in live.writable if bookie not in leaving]
        without_room = 0
        first: list[LedgerId] = []

        def look(metadata: LedgerMetadata) -> None:
            nonlocal without_room
            if has_room(metadata, leaving, targets):
                return
            without_room += 1
            if len(first) < _LEDGERS_NAMED:
                first.append(metadata.ledger_id)

        census = await take_census(self._nodes, bookies, look)
        if without_room and not is_forced:
            raise DrainBlocked(
                f"{without_room} ledgers have no other bookie that could take the place of "
                f"{', '.join(bookies)}",
                ledgers=without_room,
                first_ledgers=first,
                next_step="start more bookies first, or use --force to copy what can be copied",
            ).with_http_step(
                "start more bookies first, or use force=true to copy what can be copied"
            )
        return census.naming

    def _change(self, found: StoredLifecycle, *, ledgers: int, is_forced: bool) -> Lifecycle:
        token, now_ms = self._token(), self._now_ms()
        if found.lifecycle.state is LifecycleState.DRAINING_FAILED:
            return retry(found.lifecycle, token, now_ms, ledgers=ledgers)
        return drain(found.lifecycle, token, now_ms, ledgers=ledgers, is_forced=is_forced)

    async def undrain(self, bookie: BookieId) -> StoredLifecycle:
        """Make a bookie Active again. Copies that were made are kept. Raises `LifecycleConflict`,
        `InvalidRequest`.
        """
        found = await self._known(bookie)
        return await self._lifecycles.write(
            found, cancel(found.lifecycle, self._token(), self._now_ms())
        )

    async def mark_drained(self, bookie: BookieId) -> StoredLifecycle:
        """Mark a bookie as drained after a failed drain: a person has repaired its remaining ledgers, or
        gives them up. Raises `LifecycleConflict`, `InvalidRequest`.
        """
        found = await self._known(bookie)
        return await self._lifecycles.write(
            found, mark_drained(found.lifecycle, self._token(), self._now_ms())
        )

    async def status(self, bookies: Collection[BookieId]) -> dict[BookieId, StoredLifecycle]:
        return {bookie: await self._lifecycles.read(bookie) for bookie in bookies}

    async def judge(self, bookies: Sequence[BookieId]) -> RemovalCheck:
        """Return whether the present metadata permits removing all of these bookies together (RM1).
        Unregistered bookies count as removed, too.
        """
        stored = [await self._known(bookie) for bookie in bookies]
        live = await self._live()
        registered = {*live.writable, *live.read_only}
        damage = Damage()
        census = await take_census(
            self._nodes,
            bookies,
            lambda metadata: damage.on_ledger(metadata, bookies, registered),
        )
        return RemovalCheck(
            tuple(bookies),
            {each.bookie: each.lifecycle.state for each in stored},
            census.naming,
            damage,
            len(census.unreadable),
            tuple(bookie for bookie in bookies if bookie in live.writable),
            tuple(bookie for bookie in bookies if bookie in registered),
        )

    async def remove(
        self, bookies: Sequence[BookieId], *, ledgers_given_up: int | None = None
    ) -> RemovalCheck:
        """Remove the cookies and lifecycles of these bookies, unless ledgers still name them.

        `ledgers_given_up` is the number of ledgers that would fall below their ack quorum, as it was shown to
        the caller. If the number is right, the bookies are removed although ledgers name them. Raises
        `NotConfirmed`, and `InvalidRequest` while one of the bookies runs, since without its lifecycle it
        would be Active again.
        """
        verdict = await self.judge(bookies)
        if verdict.running:
            raise InvalidRequest(
                f"{', '.join(verdict.running)} still runs",
                next_step="stop it first; to move its copies before that: rollbook bookie drain",
            ).with_http_step(
                "stop it first; to move its copies before that: POST /api/v1/bookies:drain"
            )
        damage = verdict.damage
        if verdict.unreadable and ledgers_given_up is None:
            raise NotConfirmed(
                f"{verdict.unreadable} ledgers have metadata that cannot be read: they may name "
                f"{', '.join(bookies)}",
                next_step="examine them first: rollbook recovery status",
            ).with_http_step("examine them first: GET /api/v1/recovery")
        if damage.named and ledgers_given_up != damage.below_ack:
            raise NotConfirmed(
                f"{damage.named} ledgers name {', '.join(bookies)}; without them {damage.below_ack} "
                f"fall below their ack quorum, {damage.without_copy} lose their last copy of an entry",
                next_step=f"drain them first: rollbook bookie drain; or confirm the number: "
                f"--give-up {damage.below_ack}",
            ).with_http_step(
                "drain them first: POST /api/v1/bookies:drain; or confirm the number: "
                f"give_up={damage.below_ack}"
            )
        for bookie in bookies:
            await self._remove(bookie)
        return verdict

    async def _remove(self, bookie: BookieId) -> None:
        member = await self._members.read(bookie)
        found = await self._lifecycles.read(bookie)
        ops: list[Op] = []
        cookie_path = f"{self._cluster.path(COOKIES)}/{bookie}"
        if member.cookie_node is not None:
            ops.append(Delete(cookie_path, member.cookie_node.stat.version))
        if found.version is not None:
            ops.append(Delete(self._lifecycles.path(bookie), found.version))
        if not ops:
            return

        async def was_made() -> bool:
            return await read_surely(self._store, ops[0].path) is None

        await transact_surely(self._store, ops, was_made)

    async def require_unused(self, bookie: BookieId) -> None:
        """Check that the bookie is not running, and that no ledger names it. Raises `LifecycleConflict`."""
        live = await self._live()
        if bookie in (*live.writable, *live.read_only):
            raise LifecycleConflict(
                f"bookie {bookie} is registered", bookie=bookie, next_step="stop it first"
            )
        census = await take_census(self._nodes, [bookie])
        named = census.naming[bookie] + len(census.unreadable)
        if named:
            raise LifecycleConflict(
                f"{named} ledgers name bookie {bookie}, or cannot be read",
                bookie=bookie,
                ledgers=named,
                next_step="drain it first: PUT /api/v1/bookies/{id}/lifecycle",
            )

    # ------------------------------------------------------------------------------------------

    async def require_named(self, bookies: Sequence[BookieId]) -> None:
        """Check that each bookie has a cookie, or is named by a ledger or by unreadable metadata. Raises
        `InvalidRequest`.
        """
        without = [each for each in bookies if (await self._members.read(each)).cookie_node is None]
        if not without:
            return
        census = await take_census(self._nodes, without)
        for bookie in without:
            if not census.naming[bookie] and not census.unreadable:
                raise _unknown(bookie)

    async def _known(self, bookie: BookieId) -> StoredLifecycle:
        member = await self._members.read(bookie)
        if member.cookie_node is None:
            raise _unknown(bookie)
        return await self._lifecycles.read(bookie)

    async def _live(self) -> LiveBookies:
        watcher = BookieWatcher(self._store, self._cluster.root)
        await watcher.start()
        try:
            return watcher.current
        finally:
            await watcher.close()

    async def _leaving(self) -> set[BookieId]:
        return {
            each.bookie
            for each in await self._lifecycles.list()
            if not each.lifecycle.takes_entries
        }

    def _token(self) -> str:
        return f"{self._randomness.getrandbits(_TOKEN_BITS):032x}"

    def _now_ms(self) -> int:
        return self._clock.wall_us() // 1000


def _unknown(bookie: BookieId) -> InvalidRequest:
    return InvalidRequest(
        f"the cluster has no bookie {bookie}",
        bookie=bookie,
        next_step="rollbook cluster info lists the bookies",
    ).with_http_step("GET /api/v1/bookies lists the bookies")
