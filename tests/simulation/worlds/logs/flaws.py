"""Ways to build the log service wrongly, which fresh seeds must find: one at least for each of its rules.

Each is a patch of a real class, by the tag of the rule that it breaks (`logservice/DESIGN.md`).
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from rollbook.api.client.core.retries_and_outcomes import is_forgotten
from rollbook.logservice import (
    append_stream,
    log_deletion,
    log_takeover,
    membership,
    owner,
    reader,
    segment_ledgers,
    truncation,
)
from rollbook.logservice import log_sweeper as log_retention
from rollbook.logservice.append_path import AppendPath
from rollbook.logservice.clock_skew import ServerClock
from rollbook.logservice.core import ledger_list, retention, segment_traversal
from rollbook.logservice.core.age_without_downtime import LivedTime, Witness
from rollbook.logservice.core.ledger_list import LedgerList, ListedLogState, LogEvent, Segment
from rollbook.logservice.core.log_end_source import listed_end
from rollbook.logservice.core.pending_commits import PendingCommits
from rollbook.logservice.core.producers import Producers
from rollbook.logservice.core.replayed_state import LogMemory
from rollbook.logservice.core.segment_traversal import Trail
from rollbook.logservice.core.sequencer import Sequencer
from rollbook.logservice.core.takeover_backoff import TakeoverPatience
from rollbook.logservice.core.truncation_guards import TruncationGuards
from rollbook.logservice.ids import Offset, OwnerEpoch, SegmentId
from rollbook.logservice.log_metadata import LogMetadataStore
from rollbook.logservice.log_ownership import LogServer
from rollbook.logservice.log_sweeper import Sweeper
from rollbook.logservice.messages import DeleteLogAnswer, Moving, WriterGrant
from rollbook.logservice.offset_lookup import find_tail, read_block
from rollbook.logservice.orphan_ledgers import OrphanRepair
from rollbook.logservice.read_requests import LogReads
from rollbook.logservice.reader import LogReader
from rollbook.logservice.segment_roll import SegmentRoll
from rollbook.logservice.service import LogService
from rollbook.logservice.stall_detector import StallDetector
from rollbook.logservice.tail_lookup import TailLookup
from rollbook.logservice.writer_epochs import WriterEpochs
from rollbook.proto.errors import LogSealed, MetadataConflict, OwnerChanging, RollbookError
from rollbook.proto.ids import NO_ENTRY, EntryId
from tests.simulation.worlds.logs import users
from tests.simulation.worlds.logs.scene import LogsScene
from tests.support.planting import Patch


@dataclass(frozen=True, slots=True)
class LogMutant:
    name: str
    what: str
    seeds_max: int  # Within which it must be found.
    patches: tuple[Patch, ...]
    drill: str | None = None  # All its cases have it.
    is_equivalent: bool = False

    def scene(self, rules: frozenset[str] | None = None) -> LogsScene:  # It has one set of rules.
        return LogsScene(self.patches, self.drill)


# --- What is certain (LS1, LS4, LS9, LS10) --------------------------------------------------------


def _settle_any_ledger(self: PendingCommits[Any], ledger: int, last_entry: Any) -> Any:
    self._settled = max(self._settled, (ledger, last_entry))
    return self._take()


def _tell_at_once(self: AppendPath, waiter: Any, result: object) -> None:
    self._tell((waiter, result, None))


def _barrier_at_once(self: AppendPath, waiter: Any, result: object) -> None:
    self._tell((waiter, result, None))


_on_written = AppendPath._on_written


def _answer_when_sent(
    self: AppendPath, entry_id: Any, item: Any, *, is_barrier: bool = False
) -> None:
    _on_written(self, entry_id, (None, None, None), is_barrier=is_barrier)
    if is_barrier:
        self._barriers.on_settled()
    self._settle([item])


_end = AppendPath.end


def _end_with_a_no(self: AppendPath, why: str, loss: Any) -> None:
    _end(self, why, OwnerChanging)  # type: ignore[arg-type]  # That is the flaw.


def _never_stalls(self: StallDetector) -> int:
    return 0


@property  # type: ignore[misc]  # It takes the place of one.
def _no_slot_is_vacant(_self: SegmentRoll) -> dict[str, str]:
    return {}


async def _stay_as_it_is(self: SegmentRoll) -> None:
    pass


# --- Order and memory (LS5, LS6, LS7, LS8) --------------------------------------------------------

_decide = Sequencer.decide


def _sealed_first(self: Sequencer, info: Any, condition: Any, wall_us: int) -> Any:
    if self.memory.is_sealed:
        raise LogSealed(tail=self.memory.tail)
    return _decide(self, info, condition, wall_us)


def _condition_first(self: Sequencer, info: Any, condition: Any, wall_us: int) -> Any:
    return _decide(self, replace(info, producer=None), condition, wall_us)


def _pack_no_producers(self: Producers) -> bytes:
    return bytes(4)


def _take_any_epoch(self: Sequencer, epoch: Any) -> None:
    pass


def _time_of_the_wall(self: Sequencer, wall_us: int) -> int:
    return min(wall_us, 2**53)


_replay = LogMemory.replay


def _forget_writers(self: LogMemory, block: Any, ledger_id: Any, entry_id: Any) -> None:
    epoch, holder, fence = self.writer_epoch, self.holder, self.fence_offset
    attempt = self.attempt
    _replay(self, block, ledger_id, entry_id)
    if block.is_control:
        self.writer_epoch, self.holder, self.fence_offset = epoch, holder, fence
        self.attempt = attempt


def _knows_nobody(self: Sequencer, holder: str, attempt: str) -> bool:
    return False


async def _grant_at_once(
    self: WriterEpochs, holder: str, mode: Any, ttl_ms: int, attempt: str = ""
) -> WriterGrant:
    append_path, now_ns = self._append_path, self._clock.monotonic_ns()
    append_path.use()
    acquired = append_path.sequencer.acquire(holder, mode, ttl_ms, now_ns, attempt)
    append_path.say(acquired)
    append_path.sequencer.on_acquired(acquired, now_ns)
    return WriterGrant(acquired.epoch, append_path.memory.tail, holder, ttl_ms)


# --- SegmentRoll and takeover (LS1, LS2, LS3) ------------------------------------------------------


def _keep_whatever_has_entries(ended: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    count = 0
    while count < len(ended) and ended[count].last_entry != NO_ENTRY:
        count += 1
    return ended[:count], ended[count:]


def _discard_the_unclosed_successor(
    ended: Sequence[Any],
) -> tuple[Sequence[Any], Sequence[Any]]:
    kept = ended[:1] if ended and ended[0].last_entry != NO_ENTRY else ended[:0]
    return kept, ended[len(kept) :]


async def _close_nothing(self: SegmentRoll, segment: Any) -> None:
    pass


def _follows_anything(first: Any, end: Any) -> bool:
    return True


_list_replace = LogMetadataStore.replace


async def _list_for_any_version(
    self: LogMetadataStore, stored: Any, listed: LedgerList, *, made_for: int | None = None
) -> Any:
    """A late owner reads the list again and lists its ledger all the same."""
    while True:
        try:
            return await _list_replace(
                self, stored, listed, made_for=None if made_for is None else stored.version
            )
        except MetadataConflict:
            if made_for is None:
                raise
            newer = await self.read(stored.name)
            new = [each for each in listed.segments if not stored.list.lists(each.ledger_id)]
            if newer.list.unclosed[:-1] or newer.list.owner_epoch != listed.owner_epoch or not new:
                raise
            stored = newer
            listed = newer.list.with_successor(new[0].ledger_id, new[0].reason, 0)


def _same_epoch(self: LedgerList, server: Any) -> LedgerList:
    return replace(self, owner=server, owner_epoch=OwnerEpoch(max(self.owner_epoch, 1)))


_find_flaw = ledger_list.find_flaw


def _any_number_unclosed(listed: LedgerList) -> str:
    flaw = _find_flaw(listed)
    return "" if "unclosed (LL1)" in flaw else flaw


def _successor_of_the_unclosed(
    self: LedgerList, ledger_id: Any, reason: str, first_timestamp_us: int
) -> LedgerList:
    segment = Segment(
        self.next_segment_id,
        ledger_id,
        self.owner_epoch,
        reason,
        first_timestamp_us=max(first_timestamp_us, self.segments[-1].first_timestamp_us),
        base_offset=self.tail,
    )
    next_id = SegmentId(self.next_segment_id + 1)
    return replace(self, segments=(*self.segments, segment), next_segment_id=next_id)


_with_successor = LedgerList.with_successor


def _with_any_successor(self: LedgerList, *arguments: Any) -> LedgerList:
    make = _successor_of_the_unclosed if len(self.unclosed) == 2 else _with_successor
    return make(self, *arguments)


def _roll_whenever_due(self: SegmentRoll) -> None:
    append_path = self._append_path
    if append_path.writing is None or append_path.memory.is_sealed or not append_path.takes_more:
        return
    if reason := append_path.writing.reason_to_roll(self._loop.time()):
        self.rolling = None
        self.start(reason)


def _no_rest(self: TakeoverPatience, name: Any, now_ns: int) -> int:
    return 0


# --- Truncation, retention, deletion, marks (LL3, LL4, LL6, RT1, OR1) ----------------------------

_truncate = truncation.truncate


async def _truncate_what_is_sent(nodes: Any, stored: Any, before: Any, **facts: Any) -> Any:
    """As far as the owner has given offsets, certain or not."""
    return await _truncate(nodes, stored, before, **{**facts, "confirmed": Offset(2**60)})


async def _truncate_at_once(self: owner.Owner, before: Any, **options: Any) -> Any:
    """Waits for nothing, and takes the new segment for begun."""

    async def attempt(stored: Any) -> Any:
        return await _truncate(
            self._context.nodes,
            stored,
            before,
            confirmed=self.tail,
            is_begun=True,
            event=LogEvent("log_truncated", self._context.clock.wall_us()),
        )

    return await self._list_store.attempt(attempt, until_known=False)


_with_head = LedgerList.with_head


def _go_back(self: LedgerList, head: Offset, confirmed: Offset, *, is_begun: bool = False) -> Any:
    base = self.segments[0].base_offset if self.segments else None
    listed = _with_head(self, head, confirmed, is_begun=is_begun)
    return listed if base is None or head < base else replace(listed, head=head)


async def _never_by_age_alone(self: OrphanRepair, ledger_id: Any, belonging: Any) -> bool:
    stored = await self._nodes.read(belonging.name)
    return not stored.list.lists(ledger_id)


def _everything_is_old(segment: Any, config: Any, now_us: int, rest_bytes: int) -> bool:
    return config.retention_age_s is not None or config.retention_bytes is not None


async def _believe_the_clock(self: Sweeper) -> bool:
    return True


def _wall_time(self: ServerClock) -> int:
    return self._clock.wall_us()


_ANY_CLOCK: Final[tuple[Patch, ...]] = (
    (ServerClock, "wall_us", _wall_time),
    (ServerClock, "is_odd", property(lambda _: False)),
    (membership, "odd_clocks", lambda _: frozenset()),
)


_ANY_TIME: Final[tuple[Patch, ...]] = (
    (LivedTime, "age_us", lambda _, since_us, now_us: now_us - since_us),
    (Witness, "is_close", lambda *_: True),
)


def _never_a_new_epoch(error: Any, *, is_unknown: bool) -> bool:
    return False


def _always_a_new_epoch(error: Any, *, is_unknown: bool) -> bool:
    return is_forgotten(error)


def _no_grace(listed: LedgerList, now_us: int) -> bool:
    return listed.state is ListedLogState.DELETED


async def _tell_nobody(self: LogService, request: Any, due: float) -> Any:
    """The list says that the log is deleted; its owner goes on."""
    listed = await self._ends.list_of(request.log)
    grace_us = listed.config.delete_grace_s * 1_000_000
    event = LogEvent("log_deleted", self._clock.wall_us())
    free_at_us = self._clock.wall_us() + grace_us
    stored = await log_deletion.delete_log(self._nodes, request.log, free_at_us, event)
    return DeleteLogAnswer(stored.list.free_at_us)


async def _read_barrier_from_memory(self: owner.Owner) -> Offset:
    return self.tail


_owner_of = LogServer.owner_of
_new_bound_log = append_stream._BoundLog.__init__


async def _owner_of_the_name(
    self: LogServer, name: Any, due: float, *, uid: str = "", heeds_preference: bool = True
) -> Any:
    return await _owner_of(self, name, due, heeds_preference=heeds_preference)


def _bound_log_of_the_name(self: Any, bind: Any) -> None:
    _new_bound_log(self, replace(bind, uid=""))


async def _any_life(self: LogReads, log: Any, uid: str, wanted: str) -> None:
    pass


def _owner_here(self: LogServer, name: Any, uid: str = "") -> Any:
    owner = self._owners.get(name)
    return owner if owner is not None and owner.failure is None else None


def _is_the_one(log: Any, uid: str, wanted: str) -> None:
    pass


_with_discarded = LedgerList.with_discarded


def _never_condemned(self: LedgerList) -> bool:
    return False


def _forget_the_discarded(self: LedgerList, segment_id: Any) -> LedgerList:
    return replace(_with_discarded(self, segment_id), discarded=self.discarded)


def _nothing_below(self: TruncationGuards, head: Offset) -> tuple[()]:
    return ()


def _guard_anywhere(self: TruncationGuards, name: Any, offset: Offset) -> TruncationGuards:
    return self._with({**dict(self.offsets), name: offset})


_pick = Trail.pick


def _read_below_the_head(self: Trail, listed: LedgerList) -> Any:
    first = listed.segments[0].base_offset if listed.segments else None
    return _pick(self, replace(listed, head=listed.head if first is None else first))


async def _tail_of_bookies(self: TailLookup, log: Any) -> Any:
    """At its owner what that knows; elsewhere what bookies do, and nobody says that there may be more."""
    owner = await self._server.find_proven(log)
    if owner is not None:
        return self.tail_at(owner)
    listed, info, is_owner = await self._server.whom_to_ask(log)
    tail, timestamp_us = await find_tail(listed, self._ledgers)
    address = info.address if info is not None and is_owner else ""
    return replace(listed_end(listed, tail, address), timestamp_us=timestamp_us)


_confirmed_in = LogReader._confirmed_in


def _nothing_at_the_owner(self: LogReader, ledger: Any) -> EntryId:
    return NO_ENTRY if self._find_owner() is not None else _confirmed_in(self, ledger)


def _first_unclosed(self: SegmentRoll) -> tuple[Any, EntryId] | None:
    """The ledger before a roll as long as there was no other roll."""
    return next(iter(self.confirmed.items()), None)


_roll = SegmentRoll._roll


async def _roll_and_keep(self: SegmentRoll, reason: str, bookies_min: int) -> SegmentId:
    """The segment that was closed still counts as one that may be unclosed."""
    old = self._append_path.writing
    assert old is not None
    segment_id = await _roll(self, reason, bookies_min)
    self._unclosed.insert(0, old)
    return segment_id


async def _move_from_where_it_was(self: LogReader) -> bool:
    """Where to go on is noted before all that is looked up, and the step that is under way tells more."""
    offset = self._trail.next_offset
    with suppress(RollbookError, TimeoutError):
        async with asyncio.timeout(1.0):
            listed = (await self._read_list()).list
            if not listed.unclosed:
                return True
            address = await self._revive()
            if address and (listed.owner is None or listed.owner.address != address):
                self._end = Moving(address, offset)
            ledger = self._ledger
            if ledger is not None and ledger.last_add_confirmed >= self._trail.next_entry:
                block = await read_block(ledger, ledger.last_add_confirmed)
                self._progress.on_tail(block.next_offset)
    return False


_BUDGET: Final = 250  # Ten times the mean of the slowest, at least.

LOG_MUTANTS: Final = (
    LogMutant(
        "logs-acks-before-close",
        "A segment's records are acked before the one before it is closed (LS1).",
        _BUDGET,
        ((PendingCommits, "on_confirmed", _settle_any_ledger),),
    ),
    LogMutant(
        "logs-keeps-what-does-not-follow",
        "A successor counts wherever its predecessor has ended (LS2).",
        _BUDGET,
        ((log_takeover, "judge", _keep_whatever_has_entries),),
        drill="stuck_roll",
    ),
    LogMutant(
        "logs-drops-the-successor",
        "A takeover discards the second unclosed ledger, whatever was acked in it (LS2).",
        300,
        ((log_takeover, "judge", _discard_the_unclosed_successor),),
        drill="death_in_a_roll",
    ),
    LogMutant(
        "logs-fences-the-last-one-only",
        "A takeover ends the last ledger and leaves the one before it as it is (LS3).",
        _BUDGET,
        ((log_takeover, "to_end", lambda listed: listed.segments[-1:]),),
    ),
    LogMutant(
        "logs-closes-in-the-list-only",
        "A roll says that a ledger is closed, and does not close it (LS2).",
        _BUDGET,
        ((SegmentRoll, "_close_ledger", _close_nothing),),
    ),
    LogMutant(
        "logs-lists-for-any-version",
        "A ledger is listed from a later version of the list than it was made for (LS3).",
        _BUDGET,
        ((LogMetadataStore, "replace", _list_for_any_version),),
    ),
    LogMutant(
        "logs-one-owner-epoch",
        "A new owner has the epoch of the one before (LL5).",
        _BUDGET,
        ((LedgerList, "with_owner", _same_epoch),),
    ),
    LogMutant(
        "logs-answers-at-once",
        "A duplicate is answered before the first one is confirmed (LS4).",
        _BUDGET,
        ((AppendPath, "answer", _tell_at_once),),
        drill="stuck_roll",
    ),
    LogMutant(
        "logs-barrier-from-memory",
        "A barrier is answered from memory, by whoever takes himself for the owner (LS10).",
        _BUDGET,
        ((AppendPath, "_ask", _barrier_at_once),),
        drill="two_owners",
    ),
    LogMutant(
        "logs-acks-what-was-sent",
        "Appends are acked, and shown to readers, before they are confirmed (LS4).",
        _BUDGET,
        ((AppendPath, "_on_written", _answer_when_sent),),
    ),
    LogMutant(
        "logs-says-no-when-lost",
        "An owner that was fenced says that what is pending was not appended (LS4).",
        _BUDGET,
        ((AppendPath, "end", _end_with_a_no),),
        drill="two_owners",
    ),
    LogMutant(
        "logs-never-stalls",
        "Whoever stood still goes on and acks (LS9).",
        _BUDGET,
        ((StallDetector, "stalls", _never_stalls),),
        drill="frozen_owner",
    ),
    LogMutant(
        "logs-sealed-comes-first",
        "The retry of what was appended hears that the log is sealed (LS6).",
        _BUDGET,
        ((Sequencer, "decide", _sealed_first),),
        drill="sealing",
    ),
    LogMutant(
        "logs-no-dedupe",
        "A batch that is sent again is appended again (LS6).",
        _BUDGET,
        ((Sequencer, "decide", _condition_first),),
    ),
    LogMutant(
        "logs-producers-forgotten",
        "Snapshots do not hold what producers have sent (LS5).",
        _BUDGET,
        ((Producers, "pack", _pack_no_producers),),
    ),
    LogMutant(
        "logs-any-epoch-writes",
        "A fenced writer goes on (LS8).",
        _BUDGET,
        ((Sequencer, "check_epoch", _take_any_epoch),),
        drill="rivals",
    ),
    LogMutant(
        "logs-writers-forgotten",
        "A new owner does not know of the writer epochs behind the last snapshot (LS8).",
        _BUDGET,
        ((LogMemory, "replay", _forget_writers),),
        drill="rivals",
    ),
    LogMutant(
        "logs-attempts-forgotten",
        "Who heard no answer and asks again is somebody else (LS8).",
        _BUDGET,
        ((Sequencer, "was_asked_by", _knows_nobody),),
        drill="rivals",
    ),
    LogMutant(
        "logs-grants-at-once",
        "A writer epoch is granted before what came under older ones is settled (LS8).",
        _BUDGET,
        ((WriterEpochs, "acquire", _grant_at_once),),
        drill="rivals",
    ),
    LogMutant(
        "logs-time-goes-back",
        "Blocks bear the time of the server's wall clock (LS7).",
        _BUDGET,
        ((Sequencer, "time", _time_of_the_wall),),
        drill="clocks",
    ),
    LogMutant(
        "logs-readers-believe-lists",
        "A reader goes on in whatever is listed behind what it has read (RL2).",
        _BUDGET,
        ((segment_traversal, "continues", _follows_anything),),
        drill="stuck_roll",
    ),
    LogMutant(
        "logs-reads-below-the-head",
        "A reader is told what was truncated.",
        _BUDGET,
        ((Trail, "pick", _read_below_the_head),),
        drill="truncation",
    ),
    LogMutant(
        "logs-discarded-and-forgotten",
        "A ledger that is discarded is in no list any more (LL3).",
        _BUDGET,
        ((LedgerList, "with_discarded", _forget_the_discarded),),
        drill="stuck_roll",
    ),
    LogMutant(
        "logs-undeletes-what-is-freed",
        "A deleted log comes back while its ledgers are deleted (LL10).",
        _BUDGET,
        ((LedgerList, "is_condemned", property(_never_condemned)),),
        drill="undeletion",
    ),
    LogMutant(
        "logs-passes-marks",
        "Truncation does not look at protected cursors (LL6).",
        _BUDGET,
        ((TruncationGuards, "below", _nothing_below),),
        drill="truncation",
    ),
    LogMutant(
        "logs-marks-what-is-gone",
        "A mark is made below the head (LL6).",
        _BUDGET,
        ((TruncationGuards, "with_guard", _guard_anywhere),),
        drill="truncation",
    ),
    LogMutant(
        "logs-rolls-twice",
        "A segment is listed while two before it are unclosed (LS3, LL1).",
        _BUDGET,
        (
            (ledger_list, "find_flaw", _any_number_unclosed),
            (LedgerList, "with_successor", _with_any_successor),
            (SegmentRoll, "roll_if_due", _roll_whenever_due),
        ),
        drill="two_rolls",
    ),
    LogMutant(
        "logs-truncates-the-memory",
        "All before a segment goes that has not begun: the newest snapshot with it (LS5, LL4).",
        _BUDGET,
        ((owner.Owner, "truncate", _truncate_at_once),),
        drill="late_memory",
    ),
    LogMutant(
        "logs-truncates-beyond-the-tail",
        "A log starts behind what is confirmed (LL4).",
        _BUDGET,
        ((owner, "truncate", _truncate_what_is_sent),),
        drill="late_memory",
    ),
    LogMutant(
        "logs-head-goes-back",
        "A truncation that comes late brings the head back (LL4).",
        _BUDGET,
        ((LedgerList, "with_head", _go_back),),
        drill="truncation",
    ),
    LogMutant(
        "logs-takes-again-at-once",
        "A log is taken as often as the address that its owner tells refuses connections (SV2).",
        _BUDGET,
        ((TakeoverPatience, "wait_ns", _no_rest),),
        drill="wrong_address",
    ),
    LogMutant(
        "logs-deletes-what-may-be-listed",
        "A ledger that is not listed now is a leftover (OR1).",
        _BUDGET,
        ((OrphanRepair, "_never_will_be_listed", _never_by_age_alone),),
        drill="late_listing",
    ),
    LogMutant(
        "logs-expires-too-soon",
        "Closed segments expire, whatever their age and size.",
        _BUDGET,
        ((retention, "_is_expired", _everything_is_old),),
        drill="expiry",
    ),
    LogMutant(
        "logs-believes-its-clock",
        "What has expired goes by the clock of a server that disagrees with all others (RT1).",
        _BUDGET,
        (*_ANY_CLOCK, *_ANY_TIME, (Sweeper, "_clock_is_right", _believe_the_clock)),
        drill="wrong_clock",
    ),
    LogMutant(
        "logs-owned-by-any-clock",
        "A server owns logs whatever its clock says, and stamps records by it (CK1, CK2).",
        _BUDGET,
        _ANY_CLOCK,
        drill="wrong_clock",
    ),
    LogMutant(
        "logs-forget-by-the-clock",
        "A producer is forgotten when the next owner's clock is ahead (LT1).",
        _BUDGET,
        (*_ANY_CLOCK, *_ANY_TIME),
        drill="fast_clock",
    ),
    LogMutant(
        "logs-refuse-forgotten-producers",
        "A producer that its log has forgotten goes on with its numbers, and is refused for ever (LS6).",
        _BUDGET,
        ((users, "begins_epoch", _never_a_new_epoch),),
        drill="forgotten",
    ),
    LogMutant(
        "logs-forget-what-is-in-doubt",
        "A producer that its log has forgotten sends what is in doubt as a new epoch (LS6).",
        _BUDGET,
        ((users, "begins_epoch", _always_a_new_epoch), (users, "may_repeat", lambda *_: True)),
        drill="forgotten",
    ),
    LogMutant(
        "logs-frees-at-once",
        "A deleted log is freed before its grace is over.",
        _BUDGET,
        ((log_retention, "is_free", _no_grace), (log_deletion, "is_free", _no_grace)),
        drill="deletion",
    ),
    LogMutant(
        "logs-wants-a-full-ensemble",
        "A segment is made with a full ensemble or not at all (LS13).",
        _BUDGET,
        ((segment_ledgers, "degraded_quorum", lambda _wanted, _usable: None),),
        drill="few_bookies",
    ),
    LogMutant(
        "logs-stays-degraded",
        "A degraded segment is not rolled when there are bookies again (LS13).",
        _BUDGET,
        ((SegmentRoll, "_widen", _stay_as_it_is),),
        drill="few_bookies",
    ),
    LogMutant(
        "logs-keeps-a-vacant-seat",
        "A segment whose bookie refuses its writer is written on (LS16).",
        _BUDGET,
        ((SegmentRoll, "vacant_slots", _no_slot_is_vacant),),
        drill="formatted",
    ),
    LogMutant(
        "logs-read-barrier-from-memory",
        "A barrier that writes nothing does not read the list either (LS14).",
        _BUDGET,
        ((owner.Owner, "read_barrier", _read_barrier_from_memory),),
        drill="two_owners",
    ),
    LogMutant(
        "logs-appends-by-name",
        "What is appended to a deleted log goes into the one that has its name (LL9).",
        _BUDGET,
        (
            (LogServer, "owner_of", _owner_of_the_name),
            (append_stream._BoundLog, "__init__", _bound_log_of_the_name),
        ),
        drill="replacement",
    ),
    LogMutant(
        "logs-reads-by-name",
        "Who reads a deleted log goes on in the one that has its name (LL9).",
        _BUDGET,
        (
            (LogReads, "require_life", _any_life),
            (LogServer, "find", _owner_here),
            (reader, "check_life", _is_the_one),
        ),
        drill="replacement",
    ),
    LogMutant(
        "logs-asks-no-owner",
        "A server that does not own a log says that a read is complete, and has not asked the owner (RL6).",
        _BUDGET,
        ((TailLookup, "certain_tail", _tail_of_bookies),),
        drill="elsewhere",
    ),
    LogMutant(
        "logs-owner-reads-as-bookies-tell",
        "An owner reads from its memory and what bookies tell, not as far as it has confirmed (RL6).",
        _BUDGET,
        ((LogReader, "_confirmed_in", _nothing_at_the_owner),),
        drill="elsewhere",
    ),
    LogMutant(
        "logs-names-the-ledger-before-the-roll",
        "An owner that has rolled names the ledger before it to servers that ask for its tail (RL6).",
        _BUDGET,
        (
            (SegmentRoll, "_roll", _roll_and_keep),
            (SegmentRoll, "last_confirmed", property(_first_unclosed)),
        ),
        drill="elsewhere",
    ),
    LogMutant(
        "logs-moves-and-tells-more",
        "A reader that is to go on elsewhere tells records, and then an offset from before them (RL5).",
        _BUDGET,
        ((LogReader, "_look_around", _move_from_where_it_was),),
        drill="orphaned_followers",
    ),
    LogMutant(
        "logs-acks-when-deleted",
        "The owner of a log that is deleted does not hear of it (LS12).",
        _BUDGET,
        ((LogService, "delete_log", _tell_nobody),),
        drill="deletion",
    ),
)
