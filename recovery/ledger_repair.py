"""Repairs one ledger under its lock: copies missing entries, then changes the metadata to name the bookies
that got the copies.

    read the metadata ─► core/repair_plan.py ─► first step: finish a recovery, move an unclaimed slot, wait for the writer
          ▲                   │
          │                   └─► slot by slot: is it still lost? ─► pick a target ─► copy ─► swap in one transaction
          └───── again, until nothing is short

A slot gets a new bookie only when its whole share is durable on this bookie (RP1), and only if its old bookie
is draining, or is marked and still lost at the swap (RP2). The swap's transaction checks the lock, the
lifecycle of a draining bookie, and that the target has not changed since the copy began (RP3). A ledger is
closed for a repair only after the grace period for its writer (RP4).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import structlog

from rollbook.ledger.core.copy_comparison import CopyState
from rollbook.ledger.ledgers import UNCLAIMED, Ledgers, credentials
from rollbook.ledger.verifier import Verifier
from rollbook.proto.cluster.cookies import MemberNodes
from rollbook.proto.cluster.ledger_nodes import LedgerNodes, StoredLedger
from rollbook.proto.cluster.uncertain_writes import read_surely
from rollbook.proto.cluster.underreplication_marks import Lock
from rollbook.proto.errors import (
    BookieReadOnly,
    MetadataConflict,
    NoSuchNode,
    NotEnoughBookies,
    RollbookError,
)
from rollbook.proto.formats.paths import AVAILABLE, COOKIES, OWN_BOOKIES, READ_ONLY
from rollbook.proto.ids import FIRST_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.ports import Check, MetadataStore
from rollbook.proto.quorum import Ensemble, Quorum
from rollbook.proto.wire.digest import LedgerDigest, ledger_key
from rollbook.proto.wire.entry_list import EntryList
from rollbook.proto.wire.messages import ListEntries
from rollbook.recovery.copier import ENTRIES_AT_ONCE, Copied, Copier, listed_in
from rollbook.recovery.copy_limits import ByteBudget, Throttle
from rollbook.recovery.core.entry_spans import EntrySpan, ranges_of
from rollbook.recovery.core.ledger_checks import BadRanges
from rollbook.recovery.core.repair_failures import LostEntries, judge_missing
from rollbook.recovery.core.repair_plan import (
    Action,
    BookiePresence,
    FirstStep,
    RepairOutcome,
    RepairPlan,
    RepairStep,
    RestoreResult,
    SlotRepair,
    lacking,
    plan_repair,
    repair_step,
    sources_of,
    windows,
)

logger = structlog.get_logger()

_ROUNDS_MAX: Final = 20  # The maximum number of attempts if the ledger changes concurrently.
_TARGETS_MAX: Final = 3  # The maximum number of targets that are tried for one slot.


class OpenEnd(NamedTuple):
    """The fragment that the writer appends to, and its members that the writer should replace."""

    first_entry: EntryId
    bookies: tuple[BookieId, ...]


@dataclass(slots=True)
class Repair:
    """The result of one run of `LedgerRepair`."""

    ledger_id: LedgerId
    entries: int = 0
    entry_bytes: int = 0
    slots: int = 0  # Slots that were restored or moved.
    was_closed: bool = False  # True: the ledger was closed for the repair.
    # The open end whose bookies the writer has to leave within its grace period. Such a wait is not a
    # failure.
    awaited: OpenEnd | None = None
    losses: list[LostEntries] = field(default_factory=list)
    # Entries that are unavailable now, and the answer of each bookie that should have them.
    unavailable: str = ""

    @property
    def is_complete(self) -> bool:
        return not (self.awaited or self.losses or self.unavailable)


@dataclass(frozen=True, slots=True)
class RepairOrder:
    """The defects of a ledger, and the bookies on which its copies should be made."""

    in_question: Collection[BookieId] = ()
    # Bookies that should lose their slots, each with a check that must hold at the swap.
    draining: Mapping[BookieId, Check | None] = field(default_factory=dict)
    # Bookies whose missing entries are restored. They keep their slots even while they are away.
    looked_at: Collection[BookieId] = ()
    # Bookies that are used before any other, if they accept entries and are not members already.
    targets: Sequence[BookieId] = ()
    checks_placement: bool = False  # True: fragments whose copies share a rack are repaired, too.
    # Entries that are written again although their bookie lists them.
    bad: BadRanges = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RepairLimits:
    """The limits that the repairs of one process share."""

    budget: ByteBudget
    throttle: Throttle
    entries_at_once: int = ENTRIES_AT_ONCE


class LedgerRepair:
    def __init__(
        self,
        ledgers: Ledgers,
        store: MetadataStore,
        lock: Lock,
        order: RepairOrder,
        limits: RepairLimits,
        *,
        is_grace_over: Callable[[OpenEnd], bool],
        local_bookie: BookieId | None = None,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Repair one ledger. `local_bookie` is preferred to all other bookies except the targets of the
        order.
        """
        self.found = Repair(lock.ledger_id)
        self._ledgers = ledgers
        self._store = store
        # The ledger nodes in the store whose session holds the lock.
        self._nodes = LedgerNodes(store, ledgers.cluster.root, ledgers.cluster.layout)
        self._members = MemberNodes(store, ledgers.cluster)
        self._lock = lock
        self._in_question = order.in_question
        self._draining = dict(order.draining)
        self._looked_at = dict.fromkeys(order.looked_at)
        self._is_grace_over = is_grace_over
        self._preferred: tuple[BookieId, ...] = (
            *order.targets,
            *((local_bookie,) if local_bookie else ()),
        )
        self._limits = limits
        self._checks_placement = order.checks_placement
        self._bad = order.bad
        self._on_progress = on_progress

    async def run(self) -> Repair:
        """Return when no copy is missing, or when the missing copies cannot be made now: see `Repair`. Raises
        the error that stops the repair; a retry loses nothing. Raises `NoSuchLedger` if the ledger was
        deleted. After a cancelled call, there may be copies that no metadata names.
        """
        for _ in range(_ROUNDS_MAX):
            stored = await self._nodes.read(self._lock.ledger_id, fresh=True)
            plan = self._plan(stored.metadata)
            self.found.awaited = None
            if plan.first_step is FirstStep.AWAIT_WRITER:
                open_end = _open_end(stored.metadata, plan)
                if not self._is_grace_over(open_end):
                    self.found.awaited = open_end
            if self.found.awaited is not None:
                pass  # Closed fragments can be repaired while the writer has its grace period.
            elif plan.first_step in (FirstStep.RECOVER, FirstStep.AWAIT_WRITER):
                await self._close()
                continue
            elif plan.first_step is FirstStep.MOVE_SLOT:
                await self._move_slots(stored, plan)
                continue
            self.found.losses, self.found.unavailable = [], ""
            if await self._repair_slots(stored.metadata, plan):
                continue
            # No copy is missing, so copies can be moved to other racks.
            is_to_spread = self._checks_placement and self.found.is_complete
            if not is_to_spread or not await self._spread(stored.metadata):
                return self.found
        raise MetadataConflict("the ledger keeps changing", ledger_id=self._lock.ledger_id)

    # --- Before the copies --------------------------------------------------------------------

    def _plan(self, metadata: LedgerMetadata) -> RepairPlan:
        is_unclaimed = UNCLAIMED in dict(metadata.custom)
        return plan_repair(
            metadata,
            self._in_question,
            self._draining,
            self._presence,
            is_unclaimed=is_unclaimed,
            looked_at=self._looked_at,
        )

    def _presence(self, bookie: BookieId) -> BookiePresence:
        live = self._ledgers.live()
        if bookie in live.writable:
            return BookiePresence.WRITABLE
        return BookiePresence.READ_ONLY if bookie in live.read_only else BookiePresence.LOST

    async def _close(self) -> None:
        """Close the ledger: its writer is dead, or a recovery has begun (RP4)."""
        async with await self._ledgers.open_recover(self._lock.ledger_id):
            self.found.was_closed = True
        logger.info("ledger_closed_for_repair", ledger_id=self._lock.ledger_id)

    async def _move_slots(self, stored: StoredLedger, plan: RepairPlan) -> None:
        """Move slots of a ledger that no writer has claimed, and which therefore has no entries. A concurrent
        claim is safe, since it is made by compare-and-swap.
        """
        ensemble = list(stored.metadata.fragments[-1].ensemble)
        for slot in plan.open_slots:
            members = tuple(ensemble)
            ensemble[slot] = self._pick_target(stored.metadata, members, slot, excluded=())
        moved = stored.metadata.with_writer_ensemble(FIRST_ENTRY, tuple(ensemble))
        try:
            await self._nodes.swap(stored, moved, [self._lock.check], self._lock.session)
        except MetadataConflict:
            return  # A writer has claimed the ledger just now.
        self.found.slots += len(plan.open_slots)

    # --- Slots --------------------------------------------------------------------------------

    async def _repair_slots(self, metadata: LedgerMetadata, plan: RepairPlan) -> bool:
        """Repair all slots. Returns False if each slot is whole or lacks only unavailable entries, and True
        if the ledger has to be planned again.
        """
        outcomes = {await self._repair_slot(metadata, repair) for repair in plan.repairs}
        return RepairOutcome.CHANGED in outcomes

    async def _repair_slot(self, metadata: LedgerMetadata, repair: SlotRepair) -> RepairOutcome:
        step = partial(repair_step, repair.action, is_draining=repair.bookie in self._draining)
        following = step()
        if following is RepairStep.RESTORE:
            following = step(restored=await self._restore(metadata, repair))
        elif following is RepairStep.LOOK_UP:
            following = step(is_registered=await self._is_registered(repair.bookie))
        if isinstance(following, RepairOutcome):
            return following
        may_be_present = following is RepairStep.REPLACE_PRESENT
        return await self._replace(metadata, repair, may_be_present=may_be_present)

    async def _restore(self, metadata: LedgerMetadata, repair: SlotRepair) -> RestoreResult:
        try:
            copied = await self._copy(metadata, repair, repair.bookie)
        except BookieReadOnly:
            return RestoreResult.NO_ROOM
        if not self._judge(copied):
            return RestoreResult.INCOMPLETE
        self.found.slots += copied.entries > 0
        return RestoreResult.COMPLETE

    async def _spread(self, metadata: LedgerMetadata) -> bool:
        """Move one slot of one closed fragment to another rack. Returns False if no fragment can be spread
        over more racks, or if no copy was made.

        Raises `NotEnoughBookies` if all copies of a fragment are in one rack, and no bookie of another rack
        can take a slot.
        """
        quorum = metadata.quorum
        for index, fragment in enumerate(metadata.fragments):
            last_entry = metadata.last_entry_of(index)
            if last_entry is None or not self._ledgers.lacks_racks(quorum, fragment.ensemble):
                continue
            found = pick_for_racks(self._ledgers, quorum, fragment.ensemble, self._draining)
            if found is None:  # A bookie that has just come back may be in quarantine (AU10).
                await self._ledgers.pardon_bookies()
                found = pick_for_racks(self._ledgers, quorum, fragment.ensemble, self._draining)
            if found is None:
                if self._ledgers.sets_in_one_rack(quorum, fragment.ensemble) < quorum.ensemble:
                    continue
                raise NotEnoughBookies(
                    "no bookie of another rack can take a seat", ledger_id=metadata.ledger_id
                )
            slot, target = found
            repair = SlotRepair(fragment, last_entry, slot, Action.REPLACE)
            checks = await self._checks_of(target)
            if not self._judge(await self._copy(metadata, repair, target)):
                return False
            await self._swap(repair, target, checks, may_be_present=True)
            return True
        return False

    async def _replace(
        self, metadata: LedgerMetadata, repair: SlotRepair, *, may_be_present: bool
    ) -> RepairOutcome:
        excluded: list[BookieId] = []
        while True:
            target = self._pick_target(metadata, repair.fragment.ensemble, repair.slot, excluded)
            checks = await self._checks_of(target)
            try:
                copied = await self._copy(metadata, repair, target)
            except RollbookError as error:
                excluded.append(target)
                if len(excluded) >= _TARGETS_MAX:
                    raise
                logger.info(
                    "repair_target_refused",
                    ledger_id=self._lock.ledger_id,
                    bookie=target,
                    reason=error.message or str(error),
                )
                continue
            if not self._judge(copied):
                return RepairOutcome.STUCK
            await self._swap(repair, target, checks, may_be_present=may_be_present)
            return RepairOutcome.CHANGED

    async def _swap(
        self, repair: SlotRepair, target: BookieId, checks: Sequence[Check], *, may_be_present: bool
    ) -> None:
        """Swap the bookie of a slot for the target. If that is not possible now, the next plan decides. Since
        writers change the same node, the swap is repeated on each new version while the slot still needs it.
        """
        if is_leaving := self._draining.get(repair.bookie):
            checks = [*checks, is_leaving]
        for _ in range(_ROUNDS_MAX):
            stored = await self._nodes.read(self._lock.ledger_id, fresh=True)
            try:
                changed = stored.metadata.with_replacement(
                    repair.first_entry, repair.bookie, target
                )
            except MetadataConflict:
                return  # Another client has changed the slot.
            if not may_be_present and await self._is_registered(repair.bookie):
                return  # The old bookie is back (RP2).
            try:
                await self._nodes.swap(
                    stored, changed, [self._lock.check, *checks], self._lock.session
                )
            except MetadataConflict as conflict:
                if conflict.ids.get("op") == 1 + len(checks):
                    continue  # Another client changed the ledger's node.
                self._on_unchecked(repair, checks, conflict)
                return
            except NoSuchNode as missing:
                if missing.ids.get("op") == 0:
                    raise  # The lock is gone.
                self._on_unchecked(repair, checks, missing)
                return
            self.found.slots += 1
            logger.info(
                "ledger_seat_replaced",
                ledger_id=self._lock.ledger_id,
                first_entry=repair.first_entry,
                bookie=repair.bookie,
                successor=target,
            )
            return

    def _on_unchecked(
        self, repair: SlotRepair, checks: Sequence[Check], error: RollbookError
    ) -> None:
        """Handle a failed check: the target has changed since the copy (RP3), or the bookie no longer
        drains (RP2).
        """
        if error.ids.get("op") == len(checks) and self._draining.get(repair.bookie) is checks[-1]:
            del self._draining[repair.bookie]
            self._looked_at[repair.bookie] = None

    async def _copy(self, metadata: LedgerMetadata, repair: SlotRepair, target: BookieId) -> Copied:
        password, kind = credentials(metadata, None, None)
        digest = LedgerDigest(kind, password, metadata.ledger_id)
        listed = await self._list(target)
        copier = Copier(
            self._ledgers.bookies,
            self._ledgers.config,
            digest,
            ledger_key(password),
            mean_entry_bytes=mean_entry_bytes(metadata),
            budget=self._limits.budget,
            throttle=self._limits.throttle,
            entries_at_once=self._limits.entries_at_once,
        )
        quorum = metadata.quorum
        verifier = Verifier(metadata, digest, self._ledgers.bookies, self._ledgers.config)
        bad: Sequence[EntrySpan]
        if target == repair.bookie:
            bad = self._bad.get(target, ())
        else:
            bad = await self._bad_on_target(metadata, repair, target, listed, verifier)

        def sources(entry_id: EntryId) -> list[BookieId]:
            members = sources_of(quorum, repair, entry_id, self._presence)
            return [member for member in members if member != target]

        copied = await copier.copy(
            target,
            lacking(quorum, repair, listed, bad),
            sources,
            on_progress=self._on_progress,
        )
        if (
            target == repair.bookie and copied.missing
        ):  # The target is a holder, and may answer UNKNOWN for entries that it lacks.
            held = await verifier.read_share(target, sorted(copied.missing))
            for entry_id, copy in held.items():
                if isinstance(copy, CopyState):
                    copied.missing[entry_id][target] = copy
                else:
                    del copied.missing[entry_id]
        self.found.entries += copied.entries
        self.found.entry_bytes += copied.entry_bytes
        return copied

    async def _bad_on_target(
        self,
        metadata: LedgerMetadata,
        repair: SlotRepair,
        target: BookieId,
        listed: EntryList,
        verifier: Verifier,
    ) -> list[EntrySpan]:
        """Return the entries of the share that a new member lists, but for which it does not return the bytes
        that were written. The bookie may have them from an earlier slot in the ledger, and checks of bytes skip
        bookies without a slot, so these entries are read before they count as copies (RP1).
        """
        bad: list[EntrySpan] = []
        if not listed.packed:  # The list is usually empty, since the bookie never had a slot.
            return bad
        for window in windows(repair):
            held = [each for each in repair.share(metadata.quorum, window) if each in listed]
            if held:
                await self._limits.throttle.pay(len(held) * mean_entry_bytes(metadata))
                copies = await verifier.read_share(target, held)
                bad += ranges_of(each for each in held if isinstance(copies[each], CopyState))
        return bad

    def _judge(self, copied: Copied) -> bool:
        """Record lost and unavailable entries. Returns whether all entries were copied."""
        missing = judge_missing(copied.missing)
        self.found.losses += missing.losses
        if missing.unavailable:
            self.found.unavailable = missing.unavailable
        return not copied.missing

    # --- Bookies ------------------------------------------------------------------------------

    def _pick_target(
        self,
        metadata: LedgerMetadata,
        ensemble: tuple[BookieId, ...],
        slot: int,
        excluded: Collection[BookieId],
    ) -> BookieId:
        for bookie in self._preferred:
            is_free = bookie not in ensemble and bookie not in excluded
            if is_free and bookie not in self._draining and bookie in self._ledgers.live().writable:
                return bookie
        excluded = {*excluded, *self._draining}
        picked = self._ledgers.pick_replacement(metadata.quorum, ensemble, slot, excluded)
        if picked is None:
            raise NotEnoughBookies(
                f"no bookie can take the place of {ensemble[slot]}",
                ledger_id=metadata.ledger_id,
                next_step="start another bookie, or make room on those that are read-only",
            )
        return picked

    async def _checks_of(self, target: BookieId) -> list[Check]:
        """Return checks for a transaction, which fail if the target has changed (RP3)."""
        cluster, member = self._ledgers.cluster, await self._members.read(target)
        nodes = (
            (cluster.path(COOKIES), member.cookie_node),
            (f"{cluster.own_root}/{OWN_BOOKIES}", member.record_node),
        )
        return [
            Check(f"{folder}/{target}", node.stat.version)
            for folder, node in nodes
            if node is not None
        ]

    async def _is_registered(self, bookie: BookieId) -> bool:
        """Return whether the bookie is registered in the store at this moment."""
        root = self._ledgers.cluster.root
        for folder in (AVAILABLE, READ_ONLY):
            if await read_surely(self._store, f"{root}/{folder}/{bookie}") is not None:
                return True
        return False

    async def _list(self, bookie: BookieId) -> EntryList:
        """Return the bookie's entries. The list is empty if the bookie cannot list them: then all entries are
        written.
        """
        reply = await self._ledgers.bookies.call(
            bookie,
            ListEntries(self._lock.ledger_id),
            deadline_s=self._ledgers.config.read_deadline_s,
        )
        return listed_in(reply, self._lock.ledger_id)


def _open_end(metadata: LedgerMetadata, plan: RepairPlan) -> OpenEnd:
    fragment = metadata.fragments[-1]
    return OpenEnd(fragment.first_entry, tuple(fragment.ensemble[slot] for slot in plan.open_slots))


def pick_for_racks(
    ledgers: Ledgers, quorum: Quorum, ensemble: Ensemble, excluded: Collection[BookieId] = ()
) -> tuple[int, BookieId] | None:
    """Pick a slot and a new bookie for it, so that more entries have copies in several racks. Returns None if
    no swap achieves that.

    Each swap leaves fewer write sets in one rack, so the number of swaps of a ledger is at most its number
    of members. Three members in two racks, with two copies of each entry, always have one write set in one
    rack.
    """
    least, best = ledgers.sets_in_one_rack(quorum, ensemble), None
    for slot in range(len(ensemble)):
        target = ledgers.pick_replacement(quorum, ensemble, slot, excluded)
        if target is None:
            return None
        spread = (*ensemble[:slot], target, *ensemble[slot + 1 :])
        left = ledgers.sets_in_one_rack(quorum, spread)
        if left < least:
            least, best = left, (slot, target)
    return best


# The guessed mean size for open ledgers, whose length is not in metadata.
_MEAN_BYTES_GUESSED: Final = 1024


def mean_entry_bytes(metadata: LedgerMetadata) -> int:
    if not metadata.length or not metadata.last_entry:
        return metadata.length or _MEAN_BYTES_GUESSED
    return metadata.length // (metadata.last_entry + 1)
