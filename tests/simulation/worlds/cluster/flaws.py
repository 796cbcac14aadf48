"""Ways to build repair, drains and elections wrongly, which fresh seeds must find.

Each is a patch of a real class: a rule of `recovery/DESIGN.md` that is left out.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rollbook.bookie.drain_watch import LifecycleWatch
from rollbook.ledger.lost_bookie_watch import LostBookieWatch
from rollbook.proto.cluster.bookie_lifecycle_nodes import StoredLifecycle
from rollbook.proto.cluster.bookie_watcher import BookieWatcher, LiveBookies
from rollbook.proto.cluster.election import Election
from rollbook.proto.cluster.ledger_nodes import LedgerNodes, StoredLedger
from rollbook.proto.cluster.underreplication_marks import MarkTree, StoredMark
from rollbook.proto.formats.ledger_metadata import pack_ledger_metadata
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.ports import Delete, Set, WatchEventKind
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.entry_list import EntryList
from rollbook.recovery import (
    drain_steward,
    heal_scheduler,
    ledger_checks,
    ledger_loss_healer,
    worker,
)
from rollbook.recovery.bookie_decommission import RemovalCheck
from rollbook.recovery.copier import Copied
from rollbook.recovery.core.auditor_rules import Losses
from rollbook.recovery.core.drain_steps import DrainFacts, Step, is_final
from rollbook.recovery.core.entries_to_restore import judge
from rollbook.recovery.core.entry_spans import WHOLE
from rollbook.recovery.core.ledger_checks import Requests
from rollbook.recovery.core.repair_failures import Failure, after_failure
from rollbook.recovery.core.repair_plan import Action, RepairOutcome, SlotRepair
from rollbook.recovery.drain_steward import Steward
from rollbook.recovery.heal_scheduler import HealScheduler
from rollbook.recovery.ledger_checks import Checks
from rollbook.recovery.ledger_index import LedgerIndex
from rollbook.recovery.ledger_loss_healer import LedgerLossHealer
from rollbook.recovery.ledger_repair import LedgerRepair, Repair
from rollbook.recovery.repair_failure_nodes import BadCopies
from rollbook.recovery.worker import Worker
from tests.simulation.worlds.cluster.scene import ClusterScene
from tests.support.planting import Patch


@dataclass(frozen=True, slots=True)
class ClusterMutant:
    name: str
    what: str
    seeds_max: int  # Within which it must be found.
    patches: tuple[Patch, ...]
    drill: str | None = None  # Cases are drawn from it alone.
    is_equivalent: bool = False

    def scene(
        self, rules: frozenset[str] | None = None
    ) -> ClusterScene:  # It has one set of rules.
        return ClusterScene(self.patches, self.drill)


# --- Repairs ------------------------------------------------------------------------------------


async def _copy_nothing(*_: Any) -> Copied:
    return Copied()


async def _check_nothing(*_: Any) -> list[Any]:
    return []


def _judge_kindly(self: LedgerRepair, copied: Copied) -> bool:
    return True


async def _swap_in_any_session(
    self: LedgerNodes, stored: StoredLedger, metadata: LedgerMetadata, *_: Any
) -> StoredLedger:
    return await self.update(stored, metadata)


async def _swap_over_others(
    self: LedgerNodes, stored: StoredLedger, metadata: LedgerMetadata, *_: Any
) -> StoredLedger:
    path = self.path(metadata.ledger_id)
    await self._store.transaction([Set(path, pack_ledger_metadata(metadata))])
    return StoredLedger(metadata, stored.version + 1, stored.created_ms)


async def _is_never_registered(*_: Any) -> bool:
    return False


_repair_slot = LedgerRepair._repair_slot


async def _believe_those_present(
    self: LedgerRepair, metadata: LedgerMetadata, repair: SlotRepair
) -> RepairOutcome:
    if repair.action is Action.RESTORE:
        return RepairOutcome.WHOLE
    return await _repair_slot(self, metadata, repair)


def _shift_stripes(self: SlotRepair, quorum: Quorum, window: range) -> list[EntryId]:
    slot = (self.slot + 1) % quorum.ensemble
    return [EntryId(each) for each in window if quorum.holds(slot, EntryId(each))]


def _grace_is_over(*_: Any) -> bool:
    return True


async def _close_blindly(self: LedgerRepair) -> None:
    stored = await self._nodes.read(self._lock.ledger_id, fresh=True)
    last = EntryId(stored.metadata.fragments[-1].first_entry - 1)
    closed = stored.metadata.with_recovery_started().with_recovery_closed(last, 0)
    await self._nodes.update(stored, closed)
    self.found.was_closed = True


def _grace_is_never_over(*_: Any) -> bool:
    return False


def _remember_waits(self: Worker, ledger_id: LedgerId, end: Any) -> float:
    """Since the first look at the ledger, whatever it was about."""
    now_ns = self._clock.monotonic_ns()
    since: dict[LedgerId, int] = self.__dict__.setdefault("_since_ns", {})
    return self._config.grace_s - (now_ns - since.setdefault(ledger_id, now_ns)) / 1e9


async def _take_all_for_draining(
    self: Worker, task: StoredMark | None
) -> dict[BookieId, StoredLifecycle]:
    missing = task.mark.missing if task else ()
    return {bookie: await self._lifecycles.read(bookie) for bookie in missing}


def _forget_the_lifecycle(
    self: Worker, draining: Mapping[BookieId, StoredLifecycle]
) -> dict[BookieId, None]:
    return dict.fromkeys(draining)


async def _unmark_whatever_it_says(self: MarkTree, stored: StoredMark, lock: Any) -> bool:
    await self._store.transaction([lock.check, Delete(self.path(stored.ledger_id))])
    return True


def _retry_at_once(*arguments: Any, **options: Any) -> Any:
    failure = after_failure(*arguments, **options)
    return replace(failure, next_try_ms=failure.failed_ms)


def _count_all_attempts(before: Failure | None, *arguments: Any, **options: Any) -> Failure:
    before = before and replace(before, drains=options["drains"])
    return after_failure(before, *arguments, **options)


def _is_final(failure: Failure, token: str) -> bool:
    return is_final(failure)


def _is_complete(self: Repair) -> bool:
    return not (self.losses or self.unavailable)


# --- Auditor, index, elections --------------------------------------------------------------------


def _lose_at_once(self: Losses) -> frozenset[BookieId]:
    return frozenset() if self.is_braked else frozenset(self.missing)


async def _look_at_what_is_known(self: BookieWatcher) -> LiveBookies:
    return self.current


def _count_all(self: Losses, interval_ns: int) -> int:
    return interval_ns


def _is_unbraked(self: Losses) -> bool:
    return False


_listen = LedgerIndex._listen


async def _pass_over_resync(self: LedgerIndex, watch: Any) -> None:
    class Filtered:
        def __aiter__(self) -> Any:
            return self._events()

        async def _events(self) -> Any:
            async for event in watch:
                if event.kind is not WatchEventKind.RESYNC:
                    yield event

    await _listen(self, Filtered())  # type: ignore[arg-type]  # All that it uses of a watch.


_read_one = LedgerIndex._read_one


async def _read_once(self: LedgerIndex, ledger_id: LedgerId) -> None:
    if self.row(ledger_id) is None:
        await _read_one(self, ledger_id)


async def _orphans_stay(*_: Any) -> bool:
    return False


async def _rest(*_: Any) -> None:
    await asyncio.Event().wait()


async def _pass(*_: Any) -> None:
    pass


# --- Checks and doubts ----------------------------------------------------------------------------

_look_twice = Checks._look_twice


async def _judge_those_who_answer(self: Checks, *arguments: Any) -> bool:
    await _look_twice(self, *arguments)
    return True


_list_entries = Checks._list


async def _silence_is_emptiness(self: Checks, bookie: BookieId, ledger_id: LedgerId) -> Any:
    listed = await _list_entries(self, bookie, ledger_id)
    return listed if isinstance(listed, EntryList) else EntryList(b"")


def _is_never_open(*_: Any) -> bool:
    return False


async def _look_once(self: Checks, ledger_id: LedgerId, state: Any, gate: Any, judge: Any) -> bool:
    metadata = await self._read(ledger_id, state)
    if metadata is None:
        return True
    found = await judge(metadata)
    if found.to_mark:
        await self._mark(ledger_id, found.to_mark, state, gate)
    return not found.silent


_add_bad = BadCopies.add


async def _name_late(self: BadCopies, *arguments: Any) -> None:
    async def add() -> None:
        await asyncio.sleep(_LATE_S)
        await _add_bad(self, *arguments)

    _named_late.append(asyncio.create_task(add()))


_LATE_S: Final = 0.5
_named_late: list[asyncio.Task[None]] = []


async def _nothing_is_bad(*_: Any) -> None:
    return None


async def _racks_do_not_matter(*_: Any) -> bool:
    return True


def _anybody_will_do(*_: Any) -> tuple[int, BookieId]:
    return 0, BookieId("b1")


def _is_due_once(self: HealScheduler, bookie: BookieId) -> bool:
    return bookie not in self._failures


_on_healing = HealScheduler._on_healing


def _tell_each_time(self: HealScheduler, bookie: BookieId, state: Any, healing: Any) -> None:
    state.lost = 0
    _on_healing(self, bookie, state, healing)


def _give_up(window: Any, wanted: Any, held: Any, said: Any, accepted: Any) -> Any:
    return judge(window, wanted, held, said, [WHOLE])


# --- Drains ---------------------------------------------------------------------------------------


async def _change_as_anybody(self: Steward, vote: Any, stored: Any, lifecycle: Any) -> None:
    await self._lifecycles.write(stored, lifecycle)


async def _is_not_writable(*_: Any) -> bool:
    return False


def _do_not_wait(facts: DrainFacts) -> Step:
    return Step.COPY if facts.named else Step.VERIFY


def _is_safe_if_drained(self: RemovalCheck) -> bool:
    return all(state is LifecycleState.DRAINED for state in self.states.values())


async def _whole_at_once(self: Steward) -> None:
    live = self._watcher.current
    for bookie in (*live.writable, *live.read_only):
        record = (await self._members.read(bookie)).record
        if record is not None and await self._whole.read(bookie) != record.incarnation:
            await self._whole.write(bookie, record.incarnation)


_BUDGET: Final = 40
CLUSTER_MUTANTS: Final = (
    ClusterMutant(
        "cluster-copies-in-words",
        "A slot changes hands, and nothing was copied (RP1).",
        _BUDGET,
        ((LedgerRepair, "_copy", _copy_nothing),),
        drill="loss",
    ),
    ClusterMutant(
        "cluster-trusts-the-target",
        "A target that was formatted after the copy is named all the same (RP3).",
        _BUDGET,
        ((LedgerRepair, "_checks_of", _check_nothing),),
        drill="fragile_target",
    ),
    ClusterMutant(
        "cluster-judges-kindly",
        "A slot changes hands though some of its entries could not be had (RP1).",
        _BUDGET,
        ((LedgerRepair, "_judge", _judge_kindly),),
        drill="no_sources",
    ),
    ClusterMutant(
        "cluster-swaps-without-its-lock",
        "A worker that lost its lock in its sleep swaps the slot (RP3, MK3).",
        _BUDGET,
        ((LedgerNodes, "swap", _swap_in_any_session),),
        drill="sleeping_worker",
    ),
    ClusterMutant(
        "cluster-swaps-over-others",
        "A swap is written over what somebody else changed meanwhile.",
        _BUDGET,
        ((LedgerNodes, "swap", _swap_over_others),),
        drill="closing_writer",
    ),
    ClusterMutant(
        "cluster-swaps-those-that-are-back",
        "A bookie that came back during the copy loses its slot (RP2).",
        _BUDGET,
        ((LedgerRepair, "_is_registered", _is_never_registered),),
        drill="late_return",
    ),
    ClusterMutant(
        "cluster-registered-is-whole",
        "A bookie that is registered is taken for whole (RP6).",
        _BUDGET,
        ((LedgerRepair, "_repair_slot", _believe_those_present),),
        drill="reborn",
    ),
    ClusterMutant(
        "cluster-wrong-stripe",
        "Of a striped ledger another slot's share is copied (RP1).",
        _BUDGET,
        ((SlotRepair, "share", _shift_stripes),),
        drill="loss",
    ),
    ClusterMutant(
        "cluster-no-grace",
        "A ledger is closed for a repair before its writer had time to leave (RP4).",
        _BUDGET,
        ((Worker, "_check_grace_over", _grace_is_over),),
        drill="loss",
    ),
    ClusterMutant(
        "cluster-closes-blindly",
        "A log's ledger is closed for a repair where metadata knows its entries to end (FR2).",
        _BUDGET,
        ((LedgerRepair, "_close", _close_blindly), (Worker, "_check_grace_over", _grace_is_over)),
        drill="owned_log",
    ),
    ClusterMutant(
        "cluster-endless-grace",
        "A ledger whose writer is dead is never closed.",
        _BUDGET,
        ((Worker, "_check_grace_over", _grace_is_never_over),),
        drill="dead_writer",
    ),
    ClusterMutant(
        "cluster-grace-of-old",
        "What a worker waited for a writer once counts for the next loss (RP4).",
        _BUDGET,
        ((Worker, "_grace_left_s", _remember_waits),),
        drill="two_losses",
    ),
    ClusterMutant(
        "cluster-tasks-are-drains",
        "A bookie that is only to be looked at is replaced as if it drained (RP2).",
        _BUDGET,
        (
            (Worker, "_draining", _take_all_for_draining),
            (Worker, "_checks", _forget_the_lifecycle),
        ),
        drill="reborn",
    ),
    ClusterMutant(
        "cluster-drains-go-on",
        "A drain that was called off during the copy takes the slot all the same (RP2).",
        _BUDGET,
        ((Worker, "_checks", _forget_the_lifecycle),),
        drill="called_off",
    ),
    ClusterMutant(
        "cluster-unmarks-early",
        "A mark goes while the writer is still waited for (RP6).",
        _BUDGET,
        ((Repair, "is_complete", property(_is_complete)),),
        drill="dead_writer",
    ),
    ClusterMutant(
        "cluster-retries-at-once",
        "What failed is tried again without a pause (RP5).",
        _BUDGET,
        ((worker, "after_failure", _retry_at_once),),
        drill="no_sources",
    ),
    ClusterMutant(
        "cluster-attempts-add-up",
        "A drain that is tried again fails after one attempt: those of the last time count (RP7, LC5).",
        _BUDGET,
        ((worker, "after_failure", _count_all_attempts),),
        drill="tried_again",
    ),
    ClusterMutant(
        "cluster-fails-by-the-last-drain",
        "A drain that is tried again fails by what ended the last one (RP7, LC5).",
        _BUDGET,
        ((drain_steward, "is_stuck", _is_final),),
        drill="tried_again",
    ),
    ClusterMutant(
        "cluster-writers-stay",
        "Idle writers keep their slots on lost bookies (WR11).",
        _BUDGET,
        ((LostBookieWatch, "look", _pass),),
        drill="loss",
    ),
    ClusterMutant(
        "cluster-no-delay",
        "A bookie that restarts is lost at once (AU1).",
        _BUDGET,
        ((Losses, "lost", _lose_at_once),),
        drill="restarts",
    ),
    ClusterMutant(
        "cluster-blind-time-counts",
        "What the auditor heard last is taken for a look, and time in which it saw nothing for absence (AU1).",
        _BUDGET,
        ((BookieWatcher, "look", _look_at_what_is_known), (Losses, "_counted_ns", _count_all)),
        drill="blind_auditor",
    ),
    ClusterMutant(
        "cluster-no-brake",
        "Ledgers are marked though most bookies are gone at once (AU2).",
        _BUDGET,
        ((Losses, "is_braked", property(_is_unbraked)),),
        drill="blackout",
    ),
    ClusterMutant(
        "cluster-resync-unheard",
        "The index goes on as if it had missed nothing (RI1).",
        _BUDGET,
        ((LedgerIndex, "_listen", _pass_over_resync),),
        drill="unheard",
    ),
    ClusterMutant(
        "cluster-index-of-old",
        "The index does not see that a ledger moved to another bookie (RI1).",
        _BUDGET,
        ((LedgerIndex, "_read_one", _read_once),),
        drill="two_losses",
    ),
    ClusterMutant(
        "cluster-orphan-votes",
        "Votes of no session block everybody (EL3).",
        _BUDGET,
        ((Election, "_remove_orphan", _orphans_stay),),
        drill="orphans",
    ),
    ClusterMutant(
        "cluster-incarnations-unseen",
        "A bookie that was formatted is called whole at once (LC6).",
        _BUDGET,
        ((Steward, "_look_at_incarnations", _whole_at_once),),
        drill="reborn",
    ),
    ClusterMutant(
        "cluster-stale-steward",
        "A steward that was replaced in its sleep changes a lifecycle (LC2, EL2).",
        _BUDGET,
        ((Steward, "_change", _change_as_anybody), (Election, "until_lost", _rest)),
        drill="stale_steward",
    ),
    ClusterMutant(
        "cluster-drained-while-writable",
        "A drain ends before the bookie obeys (LC4).",
        _BUDGET,
        ((drain_steward, "next_step", _do_not_wait), (Steward, "_is_writable", _is_not_writable)),
        drill="late_obedience",
    ),
    ClusterMutant(
        "cluster-safe-if-drained",
        "A drained bookie may go, though a ledger was made on it after the walk (RM1).",
        _BUDGET,
        ((RemovalCheck, "is_safe", property(_is_safe_if_drained)),),
        drill="late_creation",
    ),
    ClusterMutant(
        "cluster-completes-unheard",
        "A check is called completed though a registered bookie was not heard (AU5).",
        _BUDGET,
        ((Checks, "_look_twice", _judge_those_who_answer),),
        drill="unseen_loss",
    ),
    ClusterMutant(
        "cluster-silence-is-emptiness",
        "A bookie that does not answer is marked as if it had lost its entries.",
        _BUDGET,
        ((Checks, "_list", _silence_is_emptiness),),
        drill="unseen_loss",
    ),
    ClusterMutant(
        "cluster-checks-unasked-only",
        "Nobody makes the checks that a person asks for (AU8).",
        _BUDGET,
        ((Requests, "is_open", _is_never_open),),
        drill="unseen_loss",
    ),
    ClusterMutant(
        "cluster-doubts-stay",
        "No bookie is asked what it doubts (DH1).",
        _BUDGET,
        ((HealScheduler, "_look_at", _pass),),
        drill="doubts",
    ),
    ClusterMutant(
        "cluster-doubts-fence",
        "A ledger is closed to end a doubt, though its writer lives (DH3).",
        _BUDGET,
        ((LedgerLossHealer, "_may_close", _grace_is_over),),
        drill="doubts",
    ),
    ClusterMutant(
        "cluster-heals-hot",
        "A healing that left something is repeated without a pause (DH2).",
        _BUDGET,
        ((heal_scheduler, "after_failure", _retry_at_once),),
        drill="doubts",
    ),
    ClusterMutant(
        "cluster-heals-once",
        "A healing that left something is not repeated (DH2).",
        _BUDGET,
        ((HealScheduler, "_is_due", _is_due_once),),
        drill="doubts",
    ),
    ClusterMutant(
        "cluster-tells-losses-again",
        "Entries that have no copy are reported by each healing (DH4).",
        _BUDGET,
        ((HealScheduler, "_on_healing", _tell_each_time),),
        drill="last_copies",
    ),
    ClusterMutant(
        "cluster-gives-up",
        "A healing that nobody asked for ends the doubt about entries that have no copy (DH4, HL1).",
        _BUDGET,
        ((ledger_loss_healer, "judge", _give_up),),
        drill="last_copies",
    ),
    ClusterMutant(
        "cluster-looks-once",
        "A copy that is still on its way is marked as short (AU7).",
        _BUDGET,
        ((Checks, "_look_twice", _look_once),),
        drill="late_copies",
    ),
    ClusterMutant(
        "cluster-bad-copies-named-late",
        "A ledger is marked before its bad entries are named: the worker finds its lists whole (AU9).",
        _BUDGET,
        ((BadCopies, "add", _name_late),),
        drill="bad_copy",
    ),
    ClusterMutant(
        "cluster-lists-are-believed",
        "A bad entry is not written again because its bookie lists it (AU9).",
        _BUDGET,
        ((BadCopies, "read_stored", _nothing_is_bad),),
        drill="bad_copy",
    ),
    ClusterMutant(
        "cluster-racks-unseen",
        "Copies stay in one rack (AU10).",
        _BUDGET,
        ((Checks, "_look_at_racks", _racks_do_not_matter),),
        drill="racks",
    ),
    ClusterMutant(
        "cluster-marks-what-nobody-can-spread",
        "A ledger is marked for its racks though no bookie of another rack is there (AU10).",
        _BUDGET,
        ((ledger_checks, "pick_for_racks", _anybody_will_do),),
        drill="racks",
    ),
    ClusterMutant(
        "cluster-disobedient",
        "A bookie that runs does not hear that it is to drain (B15).",
        _BUDGET,
        ((LifecycleWatch, "follow", _rest),),
        drill="departure",
    ),
)
