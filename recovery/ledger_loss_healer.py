"""Restores the entries of one ledger on one bookie (the rules are in `core/entries_to_restore.py` and
`core/possible_losses_in_open_ledgers.py`).

    not in metadata, read twice    no client relies on it: settled
    not closed                     recovery closes it first, so that its writer stops and its end is known
    closed                         window by window, entries are read elsewhere, written back and settled

Entries that the bookie lists are not written again: the bookie itself answers UNKNOWN for a damaged entry. If
it doubts entries that it lists, they are read from it first.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import structlog

from rollbook.ledger.concurrent_calls import error_of
from rollbook.ledger.core.copy_comparison import Copy, CopyState
from rollbook.ledger.ledgers import UNCLAIMED, Ledgers, credentials
from rollbook.ledger.verifier import Verifier
from rollbook.proto.cluster.ledger_nodes import StoredLedger
from rollbook.proto.errors import (
    BadMetadata,
    ConnectionLost,
    EntryStateUnknown,
    MetadataConflict,
    Missing,
    NoSuchLedger,
    RecoveryIncomplete,
    UnsupportedVersion,
)
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import ENTRY_ID_MAX, Fragment, LedgerMetadata
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import LedgerDigest, ledger_key
from rollbook.proto.wire.entry_list import EntryList
from rollbook.proto.wire.messages import EntryRead, ListEntries, Reply
from rollbook.recovery.copier import Copier, listed_in
from rollbook.recovery.copy_limits import ByteBudget, Throttle
from rollbook.recovery.core.entries_to_restore import expected, judge, stretches
from rollbook.recovery.core.entry_spans import WHOLE, EntrySpan, covers, intersection, ranges_of
from rollbook.recovery.core.possible_losses_in_open_ledgers import (
    NO_SPARED_WRITERS,
    OpenLedgerAction,
    OpenLedgerDecision,
    OpenLedgerDoubts,
    Writers,
    as_if_closed,
    rest_to_give_up,
)

logger = structlog.get_logger()

_WINDOW_ENTRIES_MAX: Final = 10_000
_HAS_WRITER: Final = "it is open, and may have a writer: it is healed once it is closed"
_ENTRY_OVERHEAD_BYTES: Final = 64


class HealingOutcome(Enum):
    HEALED = "healed"
    GONE = "gone"  # The ledger was deleted.
    PLANNED = "planned"  # Nothing was done, since this was a rehearsal.
    WAITING = "waiting"  # Some copies are unavailable for now, so entries stay in doubt.
    LOST = "lost"  # Some entries have no copy anywhere, so they stay in doubt.


@dataclass(slots=True)
class LedgerHealing:
    """The result of healing one ledger."""

    ledger_id: LedgerId
    outcome: HealingOutcome = HealingOutcome.HEALED
    # True if the ledger was closed for the healing, or would be in a rehearsal.
    has_been_closed: bool = False
    entries: int = 0  # Entries that were restored, or would be in a rehearsal.
    entry_bytes: int = 0
    waiting: list[EntrySpan] = field(default_factory=list)
    lost: list[EntrySpan] = field(default_factory=list)
    given_up: list[EntrySpan] = field(default_factory=list)
    reason: str = ""  # The reason why the healing waits.
    next_step: str = ""

    def begin(self) -> None:
        """Reset the result for another attempt, but keep what failed attempts have counted."""
        self.outcome, self.reason, self.next_step = HealingOutcome.HEALED, "", ""
        self.waiting, self.lost = [], []


@dataclass(frozen=True, slots=True)
class Task:
    """One ledger to heal, and the doubts about it."""

    ledger_id: LedgerId
    doubted: tuple[EntrySpan, ...]  # The entries that the bookie names as doubted.
    is_wholly_doubted: bool  # True: the bookie doubts the ledger because it doubts everything.
    includes_all: bool  # True: heal all entries, even those that are not in doubt.
    accepted: Sequence[EntrySpan]  # Entries that may be given up.

    @property
    def ranges(self) -> tuple[EntrySpan, ...]:
        return (WHOLE,) if self.is_wholly_doubted or self.includes_all else self.doubted


@dataclass(frozen=True, slots=True)
class _Means:
    """The objects that read and copy entries of one ledger."""

    copier: Copier
    verifier: Verifier


@dataclass(frozen=True, slots=True)
class HealingLimits:
    """The limits of one healing, which all its ledgers share."""

    budget: ByteBudget
    throttle: Throttle
    window_bytes: int


Settle = Callable[[Sequence[EntrySpan]], Awaitable[None]]


class LedgerLossHealer:
    def __init__(
        self,
        ledgers: Ledgers,
        bookie: BookieId,
        task: Task,
        *,
        found: LedgerHealing,
        settle: Settle,
        limits: HealingLimits,
        is_rehearsal: bool,
        writers: Writers = NO_SPARED_WRITERS,
    ) -> None:
        """Create a healer of one ledger. The healer calls `settle` with ranges that the bookie need not doubt
        any longer.
        """
        self.found = found
        self._ledgers = ledgers
        self._bookies = ledgers.bookies
        self._bookie = bookie
        self._task = task
        self._tell_settled = settle
        self._limits = limits
        self._is_rehearsal = is_rehearsal
        self._writers = writers
        # Ranges of entries that are not needed, and that were not reported yet.
        self._not_needed: list[EntrySpan] = []

    async def heal(self) -> None:
        """Heal the ledger. Raises the error that prevents the healing; a retry loses nothing."""
        self.found.begin()
        try:
            stored = await self._find()
        except (BadMetadata, UnsupportedVersion):
            if WHOLE not in self._task.accepted:
                raise
            await self._settle([WHOLE])
            self.found.given_up.append(WHOLE)
            return
        if stored is None:
            self.found.outcome = HealingOutcome.GONE
            await self._settle([WHOLE])
        elif stored.metadata.names(self._bookie):
            await self._heal(stored.metadata)
        else:  # The ledger does not name the bookie, so the bookie's copies are not used, if it has any.
            await self._settle([WHOLE])
        if self._is_rehearsal and self.found.outcome is HealingOutcome.HEALED:
            self.found.outcome = HealingOutcome.PLANNED

    async def _find(self) -> StoredLedger | None:
        """Return the ledger, or None if it was certainly deleted. If the store belongs to another cluster, a
        missing ledger proves nothing (HL5).
        """
        for _ in range(2):
            await self._ledgers.require_cluster()
            try:
                return await self._ledgers.metadata(self._task.ledger_id, fresh=True)
            except NoSuchLedger:
                pass
        await self._ledgers.require_cluster()
        return None

    async def _heal(self, metadata: LedgerMetadata) -> None:
        needs_fence = self._task.is_wholly_doubted
        if not metadata.is_closed:
            decision = await self._decide(metadata)
            match decision.action:
                case OpenLedgerAction.LEAVE:
                    return
                case OpenLedgerAction.SETTLE_ALL:
                    await self._settle([WHOLE])
                    return
                case OpenLedgerAction.WAIT:
                    self.found.outcome, self.found.reason = HealingOutcome.WAITING, _HAS_WRITER
                    return
                case OpenLedgerAction.HEAL_BESIDE_WRITER:
                    assert decision.healable is not None
                    metadata, needs_fence = decision.healable, False
                case OpenLedgerAction.CLOSE:
                    if not self._is_rehearsal:
                        metadata = await self._close(metadata)
                    self.found.has_been_closed = True
                    if self._is_rehearsal:
                        return
        password, kind = credentials(metadata, None, None)
        digest = LedgerDigest(kind, password, metadata.ledger_id)
        if needs_fence and not self._is_rehearsal:
            await self._fence(ledger_key(password))
        listed = await self._list()
        copier = Copier(
            self._bookies,
            self._ledgers.config,
            digest,
            ledger_key(password),
            mean_entry_bytes=_mean_entry_bytes(metadata),
            budget=self._limits.budget,
            throttle=self._limits.throttle,
        )
        verifier = Verifier(metadata, digest, self._bookies, self._ledgers.config)
        await self._heal_closed(metadata, listed, _Means(copier, verifier))
        await self._require_unmoved(metadata)

    async def _decide(self, metadata: LedgerMetadata) -> OpenLedgerDecision:
        task = self._task
        confirmed = await self._without_closing(metadata)
        doubts = OpenLedgerDoubts(
            metadata,
            self._bookie,
            is_doubted=bool(task.doubted) or task.is_wholly_doubted,
            is_wholly_doubted=task.is_wholly_doubted,
            is_unclaimed=UNCLAIMED in dict(metadata.custom),
            refuses_writer=self._ledgers.live().refuses(self._bookie, metadata.ledger_id),
        )
        return doubts.decide(confirmed, self._writers)

    async def _require_unmoved(self, metadata: LedgerMetadata) -> None:
        """Check that the ledger's members are still the bookies that were asked. Raises `NoSuchLedger`, or
        `MetadataConflict` if copies were moved.
        """
        found = await self._ledgers.metadata(metadata.ledger_id, fresh=True)
        if found.metadata.fragments[: len(metadata.fragments)] != metadata.fragments:
            raise MetadataConflict("its copies were moved", ledger_id=metadata.ledger_id)

    # --- The end of the ledger ----------------------------------------------------------------

    async def _without_closing(self, metadata: LedgerMetadata) -> LedgerMetadata | None:
        """Return metadata with which the doubts can be settled without stopping the writer, or None if not all
        doubts are about confirmed entries.
        """
        task, last = self._task, EntryId(ENTRY_ID_MAX - 1)
        if task.is_wholly_doubted or as_if_closed(metadata, last, task.doubted) is None:
            return None
        async with await self._ledgers.open(metadata.ledger_id) as reader:
            return as_if_closed(reader.metadata, reader.last_add_confirmed, task.doubted)

    async def _close(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Close the ledger by recovery. An accepted loss is used only if recovery fails without it."""
        ledger_id = metadata.ledger_id
        try:
            return await self._recover(ledger_id)
        except RecoveryIncomplete as error:
            stored = await self._ledgers.metadata(ledger_id, fresh=True)
            if stored.metadata.is_closed:
                return stored.metadata
            doubted, accepted = self._task.ranges, self._task.accepted
            unread_rest = rest_to_give_up(stored.metadata, doubted, accepted)
            if self._task.is_wholly_doubted and WHOLE not in accepted:
                unread_rest = []
            if not unread_rest:
                error.next_step = (
                    f"repair these bookies; if they are permanently lost: --accept-loss {ledger_id}"
                )
                raise
            logger.warning("ledger_tail_given_up", ledger_id=ledger_id, reason=error.message)
            self.found.reason = error.message
            await self._tell_settled([WHOLE] if self._task.is_wholly_doubted else unread_rest)
        closed = await self._recover(ledger_id)
        assert closed.last_entry is not None
        self.found.given_up += intersection(
            unread_rest, [EntrySpan(closed.last_entry + 1, ENTRY_ID_MAX)]
        )
        return closed

    async def _recover(self, ledger_id: LedgerId) -> LedgerMetadata:
        async with await self._ledgers.open_recover(ledger_id) as reader:
            return reader.metadata

    async def _fence(self, key: bytes) -> None:
        """Fence the ledger on the bookie, which may have lost its fences with its entries. The fence of a
        closed ledger stops a writer that does not know yet that the ledger is closed (HL3).
        """
        request = EntryRead(self._task.ledger_id, NO_ENTRY, key, fence=True)
        error = error_of(await self._call(request))
        if error is not None and not issubclass(error, Missing | EntryStateUnknown):
            raise error("the bookie cannot fence it", ledger_id=self._task.ledger_id)

    async def _call(self, request: EntryRead | ListEntries) -> Reply:
        """Send a request to the bookie. If the connection is lost, the request is sent again, since the
        connection may be from before the bookie's last start. Sending these requests twice does no harm.
        """
        try:
            return await self._call_once(request)
        except ConnectionLost:
            return await self._call_once(request)

    async def _call_once(self, request: EntryRead | ListEntries) -> Reply:
        return await self._bookies.call(
            self._bookie,
            request,
            deadline_s=self._ledgers.config.read_deadline_s,
            is_high_priority=True,
        )

    # --- Closed ledgers -----------------------------------------------------------------------

    async def _heal_closed(
        self, metadata: LedgerMetadata, listed: EntryList, means: "_Means"
    ) -> None:
        pieces = list(stretches(metadata, self._bookie, self._task.ranges))
        # Unneeded entries are reported with the first window, since each report costs the bookie syncs.
        self._not_needed = [
            EntrySpan(first, last) for first, last, where in pieces if where is None
        ]
        for first, last, fragment in pieces:
            if fragment is None:
                continue
            step = _window_entries(metadata, self._limits.window_bytes)
            for start in range(first, last + 1, step):
                window = range(start, min(start + step, last + 1))
                goes_on = await self._heal_window(metadata, fragment, window, listed, means)
                if not goes_on and window.stop <= last:
                    self.found.waiting.append(EntrySpan(window.stop, last))
                    break
        await self._settle([])
        if self.found.waiting:
            self.found.outcome = HealingOutcome.WAITING
        elif self.found.lost:
            self.found.outcome = HealingOutcome.LOST

    async def _heal_window(
        self,
        metadata: LedgerMetadata,
        fragment: Fragment,
        window: range,
        listed: EntryList,
        means: "_Means",
    ) -> bool:
        """Heal a window. Returns False if no member responded, so that further windows would fail, too."""
        wanted = expected(metadata.quorum, fragment, self._bookie, window)
        held = dict.fromkeys(each for each in wanted if each in listed)
        if doubtful := [each for each in held if covers(self._task.doubted, each)]:
            found = await means.verifier.read_share(self._bookie, doubtful)
            for entry_id in doubtful:
                if not isinstance(found[entry_id], int):
                    del held[entry_id]
        missing = [each for each in wanted if each not in held]
        if self._is_rehearsal:
            self.found.entries += len(missing)
            return True
        said: Mapping[EntryId, Mapping[BookieId, Copy]] = {}
        if missing:
            said = await self._bring_back(metadata.quorum, fragment, missing, held, means.copier)
        judgement = judge(window, wanted, held, said, self._task.accepted)
        self.found.lost += ranges_of(judgement.lost)
        self.found.given_up += ranges_of(judgement.given_up)
        self.found.waiting += ranges_of(judgement.waiting)
        if judgement.waiting and not self.found.reason:
            self.found.reason = next(iter(judgement.waiting.values()))
        await self._settle(judgement.settled)
        return not missing or len(judgement.waiting) < len(missing)

    async def _bring_back(
        self,
        quorum: Quorum,
        fragment: Fragment,
        missing: Sequence[EntryId],
        held: dict[EntryId, None],
        copier: Copier,
    ) -> Mapping[EntryId, Mapping[BookieId, CopyState]]:
        """Restore missing entries and add them to `held`. Returns all bookies' answers about entries that no
        bookie returned. Raises if this bookie does not accept the entries.
        """

        def others(entry_id: EntryId) -> list[BookieId]:
            members = quorum.write_set(entry_id, fragment.ensemble)
            return [member for member in members if member != self._bookie]

        copied = await copier.copy(self._bookie, missing, others, is_urgent=True)
        held.update((each, None) for each in missing if each not in copied.missing)
        self.found.entries += copied.entries
        self.found.entry_bytes += copied.entry_bytes
        return copied.missing

    async def _list(self) -> EntryList:
        """Return the bookie's entries. The list is empty if the bookie cannot list them: then existing
        entries may be written again.
        """
        reply = await self._call(ListEntries(self._task.ledger_id))
        return listed_in(reply, self._task.ledger_id)

    async def _settle(self, ranges: Sequence[EntrySpan]) -> None:
        """Report those entries of these ranges that the bookie doubts by name."""
        settled = intersection(self._task.doubted, [*ranges, *self._not_needed])
        self._not_needed = []
        if settled and not self._is_rehearsal:
            await self._tell_settled(settled)


def _window_entries(metadata: LedgerMetadata, window_bytes: int) -> int:
    mean = _mean_entry_bytes(metadata) + _ENTRY_OVERHEAD_BYTES
    return max(1, min(_WINDOW_ENTRIES_MAX, window_bytes // mean))


def _mean_entry_bytes(metadata: LedgerMetadata) -> int:
    assert metadata.last_entry is not None
    assert metadata.length is not None
    return metadata.length // (metadata.last_entry + 1) if metadata.last_entry >= 0 else 0
