"""Repairs, drains and elections, judged commit by commit; what ledgers promise is judged by `ledger`.

- **swapped in** (RP1): a bookie that gets a slot has every entry of the slot's share, durably, when
  metadata names it; so no repair lowers the number of copies of any entry.
- **swapped out** (RP2): a bookie that loses a slot by a repair is marked or drained, or it is looked at, lacks entries of
  the slot's share and is read-only; a marked one that takes entries keeps it.
- **hasty** (AU1): a bookie is marked only when it was not registered for the whole delay, and the auditor that marks it
  was elected and awake for that time, or somebody asked for an audit, or it is there and lacks entries (AU6), in a
  fragment that ended before the first of two looks (AU7).
- **braked** (AU2): nothing is marked while more than half of the bookies are gone.
- **hot** (RP5, DH2): what failed is not tried again before its time, unless a drain began since it began, and no bookie is
  healed again before its time.
- **reported twice** (DH4): that a bookie lost entries is reported once, by each process that heals it.
- **unlocked** (MK2, MK3): who swaps a slot or removes a mark holds the ledger's lock.
- **unmarked** (RP6): a mark goes only when each bookie that it names has all of what it is to hold of the
  fragments that were closed when the lock was taken.
- **fenced** (RP4, WR11): no repair closes a ledger whose writer lives, was not hindered by any fault for the
  grace period, and had another bookie to go to.
- **lifecycle** (LC1): only changes that the state machine has, each by who may make it.
- **stale** (LC2, EL2): who changes a lifecycle as steward has a vote at that moment.
- **given up** (RP7, LC5): a drain fails only when, since it began, each ledger that names the bookie was found to have lost
  entries, or failed three times for want of a bookie to copy to.
- **drained** (LC4, RI2): a bookie becomes Drained only if it takes no entries, and every ledger that names it began
  to after the walk.
- **unsafe** (RM1, RI2): a bookie of which safe-to-remove said yes is named by no ledger that named it before
  the question.
- **not whole** (LC6): a bookie that is called whole has all of what it is to hold of the ledgers that were
  closed when it lost its disk.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from rollbook.proto.errors import BadMetadata, NotEnoughBookies
from rollbook.proto.formats.lifecycle import LifecycleState, unpack_lifecycle
from rollbook.proto.formats.paths import AVAILABLE, LIFECYCLE, READ_ONLY, own_root
from rollbook.proto.formats.replication import (
    DISABLED,
    ELECTION,
    LOCKS,
    LOST_BOOKIE_DELAY,
    MARKS,
    ROOT,
    ledger_of_mark,
    unpack_mark,
)
from rollbook.proto.formats.service_info import unpack_service_info
from rollbook.proto.ids import BookieId, EntryId
from rollbook.proto.metadata import LedgerMetadata, LedgerState
from rollbook.proto.metastore.core.tree import NodeRow
from rollbook.proto.ports import SessionId
from rollbook.recovery.core.repair_failures import Failure, unpack_failure
from rollbook.recovery.drain_task_nodes import DRAIN, STEWARD
from rollbook.recovery.known_incarnations import WHOLE
from rollbook.recovery.ledger_checks import SECOND_LOOK_S
from rollbook.recovery.repair_failure_nodes import FAILURES
from tests.simulation.checkers.ledger.facts import Facts, LedgerFacts, OnBroken
from tests.simulation.checkers.ledger.metadata import repaired_slot

SWAPPED_IN: Final = "swapped in"
SWAPPED_OUT: Final = "swapped out"
UNLOCKED: Final = "unlocked"
UNMARKED: Final = "unmarked"
FENCED: Final = "fenced"
LIFECYCLES: Final = "lifecycle"
STALE: Final = "stale"
DRAINED: Final = "drained"
UNSAFE: Final = "unsafe"
NOT_WHOLE: Final = "not whole"
HASTY: Final = "hasty"
BRAKED: Final = "braked"
HOT: Final = "hot"
GIVEN_UP: Final = "given up"
REPORTED_TWICE: Final = "reported twice"

_STATES = LifecycleState
_BY_STEWARD: Final = (
    (_STATES.DRAINING, _STATES.DRAINED),
    (_STATES.DRAINING, _STATES.DRAINING_FAILED),
    (_STATES.DRAINED, _STATES.DRAINING),
)
_BY_PERSON: Final = (
    (_STATES.ACTIVE, _STATES.DRAINING),
    (_STATES.DRAINING_FAILED, _STATES.DRAINING),
    (_STATES.DRAINING_FAILED, _STATES.DRAINED),
    *((state, _STATES.ACTIVE) for state in _STATES if state is not _STATES.ACTIVE),
)

_TRIES: Final = 3  # After which no bookie will come by itself.
SETTLED_S: Final = 1.0  # A bookie may come back writable before it hears that it drains.
LONG_LOOK_S: Final = 2.0  # A check that waits for a silent bookie marks what was copied meanwhile.
HEARD_S: Final = (
    0.15  # What was asked before it by a process that no fault hinders is made by then.
)
UNHEARD_S: Final = 2.5  # What was asked before it, in a session that lives, is not made so late.

Authors = Sequence[str]
"""Processes that have asked for a change."""


@dataclass(slots=True)
class _Lock:
    holder: str
    taken_s: float
    closed: dict[int, int]  # Fragments whose end was known then: first entry, last entry.


@dataclass(slots=True)
class Tallies:
    """What a run was about."""

    marks: int = 0
    swaps: int = 0
    unmarks: int = 0
    closed: int = 0  # For a repair.
    drained: int = 0
    whole: int = 0


@dataclass(frozen=True, slots=True)
class HeldLedger:
    """That a process has open for writing."""

    node: str
    # By itself: no quorum in time, or a member that was formatted, and so refuses as if it were fenced.
    has_stopped: Callable[[], bool]


class ClusterChecker:
    def __init__(
        self,
        facts: Facts,
        root: str,
        on_broken: OnBroken,
        now: Callable[[], float],
        opener_of: Callable[[SessionId], str],
        was_free: Callable[[str, float], bool],
        slept_s: Callable[[str, float, float], float],
        grace_s: float,
        delay_s: float,
        pause_s: float,
    ) -> None:
        """`was_free`: whether no fault has hindered the node since then; `slept_s`: how long it did in between."""
        own = own_root(root)
        self._facts = facts
        self._break = on_broken
        self._now = now
        self._opener_of = opener_of
        self._was_free = was_free
        self._slept_s = slept_s
        self._grace_s = grace_s
        self._delay_s = delay_s
        self._pause_s = pause_s
        self._delay_path = f"{root}/{ROOT}/{LOST_BOOKIE_DELAY}"
        self._switch_path = f"{root}/{ROOT}/{DISABLED}"
        self._is_off = False  # Somebody has switched recovery off.
        self._asked_s = -1.0  # When somebody wrote the delay last.
        self._missed: dict[str, float] = {}  # Those that are not, and since when.
        self._was_away_s: dict[str, float] = {}  # For how long it was away before it came back.
        self._back_s: dict[str, float] = {}  # When it came back.
        self._dark_s: float | None = None  # Since when more than half are gone.
        self._marks_folder = f"{root}/{ROOT}/{MARKS}/"
        self._locks_folder = f"{root}/{ROOT}/{LOCKS}/"
        self._drain_folder = f"{own}/{DRAIN}/"
        self._failures_folder = f"{own}/{FAILURES}/"
        self._lifecycles_folder = f"{own}/{LIFECYCLE}/"
        self._election_folder = f"{root}/{ROOT}/{ELECTION}/"
        self._votes_folder = f"{own}/{STEWARD}/"
        self._whole_folder = f"{own}/{WHOLE}/"
        self._available = f"{root}/{AVAILABLE}/"
        self._read_only = f"{root}/{READ_ONLY}/"
        # Ledgers of a log server: entries are known by marks that its blocks do not have, so its records are judged by
        # who reads them, and here what metadata says.
        self.of_logs: dict[int, None] = {}
        self.tallies = Tallies()
        self.marks: dict[int, tuple[BookieId, ...]] = {}
        self.drains: dict[int, tuple[BookieId, ...]] = {}
        self.failures: dict[int, float] = {}  # Ledgers, and when each failed last.
        self._failures: dict[int, Failure] = {}  # The latest of each ledger.
        self._tries: list[tuple[float, int, Failure]] = []  # When which ledger failed, and how.
        self._began_s: dict[str, float] = {}  # When each bookie's latest drain did.
        self.without_target: dict[int, None] = {}  # Those of them for which bookies lack.
        self.locks: dict[int, _Lock] = {}
        self.lifecycles: dict[str, LifecycleState] = {}
        self.writable: dict[str, float] = {}  # Registered so, and since when.
        self.read_only: dict[str, float] = {}
        self._left_read_only: dict[str, float] = {}  # When each was that for the last time.
        self.writers: dict[int, HeldLedger] = {}
        self._votes: dict[str, str] = {}  # Of stewards, and whose they are.
        self._audit_votes: dict[str, str] = {}
        self._reigns: dict[str, tuple[float, float]] = {}  # Of auditors, the latest of each.
        self.auditor = ""  # The process that leads.
        self._census_s: dict[str, float] = {}  # When the process began its latest walk.
        self._named_s: dict[tuple[int, str], float] = {}  # Since when a ledger names a bookie.
        self._writers_from: dict[str, int] = {}  # Writers of ledgers with lower ids are refused.
        self._wiped_s: dict[str, float] = {}
        self._unformatted: dict[str, None] = {}  # Wiped, and not back yet.
        self._forgotten: dict[str, dict[int, None]] = {}  # Closed ledgers that a format forgets,
        self._doubted: dict[str, dict[int, None]] = {}  # and those that it doubts.
        self._whole: dict[str, bytes] = {}
        self.racks: dict[str, str] = {}  # Of bookies, if recovery servers know them.
        self._checks_asked_s = -1.0
        self._has_unseen_loss = False
        self._ended_s: dict[tuple[int, int], float] = {}  # Since when a fragment's end is known.
        self._unmarked_s: dict[tuple[int, BookieId], float] = {}  # When a mark of both went last.
        self._healing_failed_s: dict[tuple[int, str], float] = {}  # By healer and bookie.
        self._losses_told: dict[tuple[str, str], tuple[int, float]] = {}  # By process and bookie.
        self._scarce_s: dict[int, float] = {}  # When a ledger's writer last had nowhere to go.
        self._scarce_now: set[int] = (
            set()
        )  # Ledgers whose writers had nowhere to go at the last look.

    # --- What is done to bookies --------------------------------------------------------------

    def on_wiped(self, bookie: str) -> None:
        """Its disk is another one, empty."""
        self._wiped_s[bookie] = self._now()
        self._unformatted[bookie] = None
        forgotten = self._forgotten.setdefault(bookie, {})
        doubted = self._doubted.setdefault(bookie, {})
        for ledger in self._facts.ledgers.values():
            metadata = ledger.metadata
            if metadata is not None and metadata.names(BookieId(bookie)):
                (forgotten if metadata.is_closed else doubted)[ledger.ledger_id] = None

    def on_formatted(self, bookie: str) -> None:
        """It begins again, in doubt of ledgers that are not closed and name it."""
        self._unformatted.pop(bookie, None)
        doubted = self._doubted.setdefault(bookie, {})
        for ledger in self._facts.ledgers.values():
            metadata = ledger.metadata
            if metadata and not metadata.is_closed and metadata.names(BookieId(bookie)):
                doubted[ledger.ledger_id] = None

    def on_spoiled(self, bookie: str, ledger_id: int, entry_id: int) -> None:
        """It has bytes that fail their digest, and lists them: no copy until they are written again (AU9)."""
        kept = self._facts.kept(bookie, ledger_id)
        kept.durable.pop(entry_id, None)
        kept.gone[entry_id] = None
        self._facts.spoilt[bookie, ledger_id] = None
        self._forgotten.setdefault(bookie, {})[ledger_id] = None

    @property
    def has_wiped(self) -> bool:
        return bool(self._wiped_s)

    def is_being_healed(self, bookie: str) -> bool:
        """Whether it has not got back yet what went with an earlier disk."""
        return any(self._facts.kept(bookie, ledger_id).gone for ledger_id in self._facts.ledgers)

    def may_lose(self, bookie: str, lost: Sequence[str]) -> bool:
        """Whether every entry that counts has a copy elsewhere, and every open ledger can be recovered without it."""
        facts = self._facts
        for ledger in facts.ledgers.values():
            metadata = ledger.metadata
            if metadata is None or ledger.is_doomed:
                continue
            last = max(ledger.confirmed, ledger.told, metadata.last_entry or 0)
            last = min(last, len(ledger.sizes) - 1)
            for entry_id in map(EntryId, range(last + 1)):
                ensemble = metadata.fragment_of(entry_id).ensemble
                copies = (
                    each
                    for each in metadata.quorum.write_set(entry_id, ensemble)
                    if each != bookie and each not in facts.damaged
                )
                if not any(entry_id in self._durable(each, ledger) for each in copies):
                    return False
            if not metadata.is_closed:
                members = metadata.fragments[-1].ensemble
                if any(each != bookie and self._is_bad(each, ledger, lost) for each in members):
                    return False  # Its writer may choose this bookie before the loss is seen.
                if bookie in members and any(each in self.writable for each in self._unformatted):
                    return False  # Or that one, which is still registered, and then lack both.
                # With an ack quorum of 1 no recovery is certain without the bookie.
                if bookie in members and metadata.quorum.ack == 1:
                    return False
        return True

    def _is_bad(self, bookie: str, ledger: LedgerFacts, lost: Sequence[str]) -> bool:
        """Whether the bookie can never say for certain what it had of the ledger."""
        is_doubtful = ledger.ledger_id in self._doubted.get(bookie, {})
        return is_doubtful or bookie in lost or bookie in self._unformatted

    def _durable(self, bookie: str, ledger: LedgerFacts) -> dict[int, int]:
        return self._facts.kept(bookie, ledger.ledger_id).durable

    # --- Checks and healings --------------------------------------------------------------------

    @property
    def needs_checks(self) -> bool:
        """At the end: only they find what was done."""
        return bool(self._facts.spoilt or self.racks or self._has_unseen_loss)

    def on_loss_unseen(self) -> None:
        """A bookie was formatted, and nobody knows which one it was before."""
        self._has_unseen_loss = True

    def on_checks_asked(self) -> None:
        self._checks_asked_s = self._now()

    def on_checks_ordered(self) -> None:
        """The order is written: who carries it out has to find what was lost until now."""
        self._has_unseen_loss = False

    def on_healing(self, healer: int, bookie: str) -> None:
        failed_s = self._healing_failed_s.pop((healer, bookie), -inf)
        is_another = self._back_s.get(bookie, -inf) >= failed_s  # It may not be the same any more.
        if not is_another and self._now() - failed_s < self._pause_s:
            self._break(HOT, f"{bookie} is healed again at once")

    def on_healing_failed(self, healer: int, bookie: str) -> None:
        self._healing_failed_s[healer, bookie] = self._now()

    def on_loss_told(self, process: str, bookie: str, ledgers: int) -> None:
        told, at_s = self._losses_told.get((process, bookie), (0, -inf))
        self._losses_told[process, bookie] = ledgers, self._now()
        if told == ledgers and self._back_s.get(bookie, -inf) < at_s:
            self._break(REPORTED_TWICE, f"{process} reports again what {bookie} has lost")

    def is_given_up_of(self, bookie: str, doubted: Iterable[int]) -> bool:
        """Whether the bookie doubts just those ledgers that have lost their last copies with it (DH4)."""
        given_up = [
            ledger.ledger_id
            for ledger in self._facts.ledgers.values()
            if ledger.is_doomed and self._facts.kept(bookie, ledger.ledger_id).gone
        ]
        return sorted(doubted) == sorted(given_up)

    def _badly_placed(self) -> list[int]:
        """Ledgers that ended before checks were asked for, with all copies of a fragment in one rack for no reason."""
        placed = []
        for (ledger_id, first_entry), ended_s in self._ended_s.items():
            metadata = self._facts.ledger(ledger_id).metadata
            if metadata is None or not ended_s < self._checks_asked_s:
                continue
            ensemble = metadata.fragment_of(EntryId(first_entry)).ensemble
            racks = dict.fromkeys(self.racks[each] for each in ensemble)
            others = [each for each in self.writable if self.racks[each] not in racks]
            if len(racks) == 1 and others and metadata.quorum.write > 1:
                placed.append(ledger_id)
        return placed

    # --- What is asked and answered ------------------------------------------------------------

    def on_census(self, process: str) -> None:
        self._census_s[process] = self._now()

    def on_safe(self, bookies: Sequence[str], asked_s: float) -> None:
        """The answer to safe-to-remove was yes."""
        for bookie in bookies:
            if older := self._naming(bookie, before_s=asked_s):
                self._break(UNSAFE, f"{bookie} may go, and ledgers {older} name it")

    def _naming(self, bookie: str, before_s: float) -> list[int]:
        return [
            ledger_id
            for (ledger_id, named), since_s in self._named_s.items()
            if named == bookie and since_s < before_s
        ]

    # --- Ledgers --------------------------------------------------------------------------------

    def on_ledger(self, ledger: LedgerFacts, before: LedgerMetadata | None, by: Authors) -> None:
        """Its metadata was `before`."""
        now = ledger.metadata
        self._note_names(ledger.ledger_id, now)
        for index, fragment in enumerate(now.fragments if now else ()):
            if now and now.last_entry_of(index) is not None:
                key = ledger.ledger_id, int(fragment.first_entry)
                self._ended_s.setdefault(key, self._now())
        if now is None or before is None:
            return
        is_repair = self._facts.are_repairers(by)
        repaired = repaired_slot(before, now)
        if is_repair and repaired is not None:
            self._on_swapped(ledger, before, repaired, by)
        elif is_repair and before.state is LedgerState.OPEN:
            self._on_fenced(ledger, before, by)

    def _note_names(self, ledger_id: int, now: LedgerMetadata | None) -> None:
        members = [str(each) for f in now.fragments for each in f.ensemble] if now else []
        for of, bookie in [key for key in self._named_s if key[0] == ledger_id]:
            if bookie not in members:
                del self._named_s[of, bookie]
        for bookie in members:
            self._named_s.setdefault((ledger_id, bookie), self._now())
        self._look_for_scarcity(ledger_id)
        self._look_for_darkness()

    def _on_swapped(
        self, ledger: LedgerFacts, before: LedgerMetadata, repaired: tuple[int, int], by: Authors
    ) -> None:
        self.tallies.swaps += 1
        now, (index, slot) = ledger.metadata, repaired
        assert now is not None
        fragment, last = now.fragments[index], now.last_entry_of(index)
        assert last is not None
        old, new = before.fragments[index].ensemble[slot], fragment.ensemble[slot]
        where = f"ledger {ledger.ledger_id}, fragment {fragment.first_entry}: {old} by {new}"
        share = [
            entry_id
            for entry_id in map(EntryId, range(fragment.first_entry, last + 1))
            if now.quorum.holds(slot, entry_id)
        ]
        lacking = [each for each in share if each not in self._durable(new, ledger)]
        if (
            lacking and not ledger.is_doomed and new not in self._unformatted
        ):  # Nobody knows yet that its disk is gone.
            self._break(SWAPPED_IN, f"{where}, which lacks {lacking}")
        is_marked = old in self.marks.get(ledger.ledger_id, ())
        is_drained = (
            old in self.drains.get(ledger.ledger_id, ())
            and self.lifecycles.get(old) is LifecycleState.DRAINING
        )
        unheard_s = UNHEARD_S
        if all(self._was_free(each.partition("#")[0], self._now() - UNHEARD_S) for each in by):
            unheard_s = HEARD_S
        # It refuses a copy for lack of room; the swap that this leads to may come when it has room again.
        heard_s = self._now() - unheard_s
        was_read_only = self._left_read_only.get(old, -UNHEARD_S) >= heard_s
        has_room = old not in self.read_only and not was_read_only and self._was_free(old, heard_s)
        is_looked_at = old in self.drains.get(ledger.ledger_id, ())
        lacks_some = any(each not in self._durable(old, ledger) for each in share)
        is_full = is_looked_at and lacks_some and not has_room
        is_spread = self.marks.get(ledger.ledger_id) == () and self._is_spread(before, now, index)
        if not (is_marked or is_drained or is_full or is_spread):
            self._break(SWAPPED_OUT, f"{where}, and nobody wants it to go")
        since_s = self.writable.get(old, self._now())
        stays = has_room or not lacks_some
        if is_marked and not is_drained and stays and since_s < heard_s:
            self._break(SWAPPED_OUT, f"{where}, which is registered")
        self._check_lock(ledger.ledger_id, by, where)

    def _is_spread(self, before: LedgerMetadata, now: LedgerMetadata, index: int) -> bool:
        """Whether fewer write sets are in one rack than before (AU10)."""
        quorum = now.quorum
        counts = [
            sum(
                len(
                    {
                        self.racks.get(ensemble[(first + copy) % len(ensemble)])
                        for copy in range(quorum.write)
                    }
                )
                == 1
                for first in range(len(ensemble))
            )
            for ensemble in (each.fragments[index].ensemble for each in (before, now))
        ]
        return counts[1] < counts[0]

    def _check_lock(self, ledger_id: int, by: Authors, what: str) -> None:
        lock = self.locks.get(ledger_id)
        if lock is None or lock.holder not in by:
            holder = f"{lock.holder} has" if lock else "nobody has"
            self._break(UNLOCKED, f"{what}: by {', '.join(by)}, and {holder} the lock")

    def _on_fenced(self, ledger: LedgerFacts, before: LedgerMetadata, by: Authors) -> None:
        self.tallies.closed += 1
        held, since_s = self.writers.get(ledger.ledger_id), self._now() - self._grace_s
        if held is None or held.has_stopped() or not self._was_free(held.node, since_s):
            return
        if self._scarce_s.get(ledger.ledger_id, -1.0) < since_s:
            ensemble = ", ".join(before.fragments[-1].ensemble)
            what = f"ledger {ledger.ledger_id} on {ensemble}, which {held.node} writes"
            self._break(FENCED, f"{what}, is closed by {', '.join(by)}")

    def _look_for_scarcity(self, ledger_id: int) -> None:
        metadata = self._facts.ledger(ledger_id).metadata
        if metadata is None or metadata.is_closed:
            return
        members = metadata.fragments[-1].ensemble
        takes = [
            each for each in self.writable if self._writers_from.get(each, 0) <= ledger_id
        ]  # Who was formatted since refuses its writer (WR11).
        spare = [each for each in takes if each not in members]
        lost = [each for each in members if each not in takes]
        is_scarce = len(spare) < max(1, len(lost))
        if is_scarce or ledger_id in self._scarce_now:  # What was scarce was so until now.
            self._scarce_s[ledger_id] = self._now()
        (self._scarce_now.add if is_scarce else self._scarce_now.discard)(ledger_id)

    # --- All other nodes ------------------------------------------------------------------------

    def on_row(self, path: str, row: NodeRow | None, by: Callable[[], Authors]) -> None:
        """After the ledgers of the same commit."""
        if path.startswith(self._marks_folder):
            self._on_mark(path, row, by)
        elif path.startswith(self._locks_folder):
            self._on_lock(path, row)
        elif path.startswith(self._drain_folder):
            self._put(self.drains, path, row)
        elif path.startswith(self._failures_folder):
            self._on_failure(path, row)
        elif path.startswith(self._lifecycles_folder):
            self._on_lifecycle(path.rpartition("/")[2], row, by())
        elif path.startswith(self._votes_folder):
            self._on_vote(path, row)
        elif path.startswith(self._election_folder):
            self._on_audit_vote(path, row)
        elif path.startswith(self._whole_folder):
            self._on_whole(path.rpartition("/")[2], row)
        elif path.startswith(self._available):
            self._on_registration(path, row)
        elif path == self._switch_path:
            self._is_off = row is not None
        elif path == self._delay_path:
            self._asked_s = self._now()

    def _on_mark(self, path: str, row: NodeRow | None, by: Callable[[], Authors]) -> None:
        ledger_id = ledger_of_mark(path.rpartition("/")[2])
        if ledger_id is None:
            return
        before = self.marks.get(ledger_id)
        self._put(self.marks, path, row)
        if row is None and before is not None:
            self.tallies.unmarks += 1
            self._unmarked_s |= {(ledger_id, bookie): self._now() for bookie in before}
            self._on_unmarked(ledger_id, before, by())
        elif row is not None:
            self.tallies.marks += 1
            new = [each for each in self.marks.get(ledger_id, ()) if each not in (before or ())]
            self._on_marked(ledger_id, new, by())

    def _on_marked(self, ledger_id: int, bookies: Sequence[BookieId], by: Authors) -> None:
        now = self._now()
        for bookie in bookies:
            missed_s = self._missed.get(bookie, now)
            is_asked = self._asked_s > missed_s or now - self._asked_s < UNHEARD_S
            if is_asked:
                continue
            ledger = self._facts.ledger(ledger_id)
            unmarked_s = self._unmarked_s.get((ledger_id, bookie), -LONG_LOOK_S)
            was_lacking = self._lacked_at_first(ledger, bookie) or now - unmarked_s < LONG_LOOK_S
            if bookie not in self._missed and was_lacking:
                continue  # A check has found that (AU7).
            # One that is back, unheard, was away for long enough before.
            seen_s = self._was_away_s.get(bookie, 0.0)
            if bookie in self._missed:
                seen_s = self._seen_missing_s(bookie, by)
            if seen_s < self._delay_s:
                what = f"ledger {ledger_id} is marked by {', '.join(by)}"
                self._break(HASTY, f"{what}, who saw {bookie} missing for {seen_s:.2f} s only")
        if self._dark_s is not None and now - self._dark_s > self._delay_s:
            self._break(BRAKED, f"ledger {ledger_id} is marked for {', '.join(bookies)}")

    def _lacked_at_first(self, ledger: LedgerFacts, bookie: str) -> bool:
        """Whether the bookie lacks what it should have had when a check looked for the first time."""
        if ledger.metadata is None:
            return False
        if ledger.is_doomed:
            return True  # Nobody knows.
        first_s = self._now() - SECOND_LOOK_S + HEARD_S
        ended = {
            int(fragment.first_entry): int(last)
            for index, fragment in enumerate(ledger.metadata.fragments)
            if (last := ledger.metadata.last_entry_of(index)) is not None
            and self._ended_s[ledger.ledger_id, int(fragment.first_entry)] < first_s
        }
        return bool(self._lacking(ledger, bookie, ended))

    def _seen_missing_s(self, bookie: str, by: Authors) -> float:
        """For how long one of them led as auditor and was awake while the bookie is missing; short naps do not matter."""
        now, seen = self._now(), [0.0]
        for process in by:
            node = process.partition("#")[0]
            began_s, ended_s = self._reigns.get(process, (now, now))
            began_s, ended_s = max(began_s, self._missed[bookie]), min(ended_s, now)
            slept_s = self._slept_s(node, began_s, ended_s)
            seen_s = ended_s - began_s - max(0.0, slept_s - self._delay_s / 2)
            back_s = self._back_s.get(bookie, now)
            if not self._was_free(node, back_s):  # It has not heard that it was back in between.
                seen_s += self._was_away_s.get(bookie, 0.0) + self._delay_s / 4
            seen.append(seen_s)
        return max(seen)

    def _put(self, marks: dict[int, tuple[BookieId, ...]], path: str, row: NodeRow | None) -> None:
        ledger_id = ledger_of_mark(path.rpartition("/")[2])
        if ledger_id is None:
            return
        if row is None:
            marks.pop(ledger_id, None)
            return
        try:
            marks[ledger_id] = unpack_mark(row.value).missing
        except BadMetadata:
            marks[ledger_id] = ()

    def _on_unmarked(self, ledger_id: int, bookies: Sequence[BookieId], by: Authors) -> None:
        ledger, lock = self._facts.ledger(ledger_id), self.locks.get(ledger_id)
        self._check_lock(ledger_id, by, f"the mark of ledger {ledger_id} goes")
        if ledger.metadata is None or lock is None:
            return
        for bookie in bookies:
            if self._wiped_s.get(bookie, -1.0) >= lock.taken_s:
                continue
            if lacking := self._lacking(ledger, bookie, lock.closed):
                what = f"the mark of ledger {ledger_id} goes, and {bookie} lacks {lacking}"
                self._break(UNMARKED, what)

    def _lacking(
        self, ledger: LedgerFacts, bookie: str, closed: dict[int, int] | None = None
    ) -> list[int]:
        """What the bookie is to hold and does not: of those fragments, or of all whose end is known."""
        metadata, lacking = ledger.metadata, list[int]()
        assert metadata is not None
        if ledger.is_doomed:
            return []
        kept = self._facts.kept(bookie, ledger.ledger_id)
        for index, fragment in enumerate(metadata.fragments):
            last = metadata.last_entry_of(index)
            if last is None or bookie not in fragment.ensemble:
                continue
            if closed is not None and closed.get(fragment.first_entry) != last:
                continue
            slot = fragment.ensemble.index(BookieId(bookie))
            for entry_id in map(EntryId, range(fragment.first_entry, last + 1)):
                is_there = entry_id in kept.durable
                if metadata.quorum.holds(slot, entry_id) and not is_there:
                    lacking.append(entry_id)
        return lacking

    def _on_lock(self, path: str, row: NodeRow | None) -> None:
        ledger_id = ledger_of_mark(path.rpartition("/")[2])
        if ledger_id is None:
            return
        if row is None:
            self.locks.pop(ledger_id, None)
            return
        metadata = self._facts.ledger(ledger_id).metadata
        closed = {
            int(fragment.first_entry): int(last)
            for index, fragment in enumerate(metadata.fragments if metadata else ())
            if metadata and (last := metadata.last_entry_of(index)) is not None
        }
        self.locks[ledger_id] = _Lock(self._opener_of(row.owner), self._now(), closed)

    def _on_failure(self, path: str, row: NodeRow | None) -> None:
        ledger_id = ledger_of_mark(path.rpartition("/")[2])
        if ledger_id is not None and row is None:
            self.failures.pop(ledger_id, None)
            self.without_target.pop(ledger_id, None)
        elif ledger_id is not None and row is not None:
            failure = unpack_failure(row.value)
            if failure.code == NotEnoughBookies.code.reason and failure.in_a_row >= _TRIES:
                self.without_target[ledger_id] = None
            before = self._failures.get(ledger_id)
            failed_s = self.failures.get(ledger_id, -inf)
            self._tries.append((self._now(), ledger_id, failure))
            self._failures[ledger_id] = failure
            self.failures[ledger_id] = self._now()
            has_news = before is not None and not before.counts_for(failure.drains)
            # From failure to failure: it may take long until the first one is written.
            apart_s = self._now() - failed_s
            if before is not None:
                apart_s = max(apart_s, (failure.failed_ms - before.failed_ms) / 1000)
            if not has_news and apart_s < self._pause_s:
                self._break(HOT, f"ledger {ledger_id} is tried again at once")

    def _on_vote(self, path: str, row: NodeRow | None) -> None:
        if row is None:
            self._votes.pop(path, None)
        else:
            self._votes[path] = self._opener_of(row.owner)

    def _on_audit_vote(self, path: str, row: NodeRow | None) -> None:
        if row is None:
            self._audit_votes.pop(path, None)
        else:
            self._audit_votes[path] = self._opener_of(row.owner)
        before = self.auditor
        self.auditor = self._audit_votes[min(self._audit_votes)] if self._audit_votes else ""
        if before != self.auditor:
            if before in self._reigns:
                self._reigns[before] = (self._reigns[before][0], self._now())
            self._reigns[self.auditor] = (self._now(), inf)

    def _on_lifecycle(self, bookie: str, row: NodeRow | None, by: Authors) -> None:
        before = self.lifecycles.get(bookie, LifecycleState.ACTIVE)
        if row is None:
            self.lifecycles.pop(bookie, None)
            return
        now = self.lifecycles[bookie] = unpack_lifecycle(row.value).state
        step = f"{bookie} goes from {before.value} to {now.value}, by {', '.join(by)}"
        is_steward = self._facts.are_repairers(by)
        if (before, now) not in (_BY_STEWARD if is_steward else _BY_PERSON):
            self._break(LIFECYCLES, step)
        if now is LifecycleState.DRAINING:
            self._began_s[bookie] = self._now()
        if not is_steward:
            return
        if not any(each in self._votes.values() for each in by):
            self._break(STALE, f"{step}, who has no vote")
        if now is LifecycleState.DRAINING_FAILED:
            ids = self._naming(bookie, before_s=self._began_s[bookie])
            if hopeful := [each for each in ids if not self._is_hopeless(each, bookie)]:
                self._break(GIVEN_UP, f"{step}, and ledgers {hopeful} may still be copied")
        if now is LifecycleState.DRAINED:
            self.tallies.drained += 1
            if self._now() - self.writable.get(bookie, self._now()) > SETTLED_S:
                self._break(DRAINED, f"{step}, and it takes entries")
            began_s = min(self._census_s.get(each, self._now()) for each in by)
            if older := self._naming(bookie, before_s=began_s):
                self._break(DRAINED, f"{step}, and ledgers {older} name it")

    def _is_hopeless(self, ledger_id: int, bookie: str) -> bool:
        began_s = self._began_s[bookie]
        tries = [
            failure for at_s, of, failure in self._tries if of == ledger_id and at_s >= began_s
        ]
        code = NotEnoughBookies.code.reason
        without_target = [failure for failure in tries if failure.code == code]
        return len(without_target) >= _TRIES or any(each.losses for each in tries)

    def _on_whole(self, bookie: str, row: NodeRow | None) -> None:
        before = self._whole.get(bookie)
        if row is None:
            self._whole.pop(bookie, None)
            return
        self._whole[bookie] = row.value
        if before is None or before == row.value:
            return
        self.tallies.whole += 1
        if bookie in self._unformatted:
            return  # That life has ended since, and the next one has another incarnation.
        for ledger_id in self._forgotten.get(bookie, {}):
            ledger = self._facts.ledger(ledger_id)
            if ledger.metadata is not None and (lacking := self._lacking(ledger, bookie)):
                what = f"{bookie} is called whole, and lacks {lacking} of ledger {ledger_id}"
                self._break(NOT_WHOLE, what)

    def _on_registration(self, path: str, row: NodeRow | None) -> None:
        bookie = path.rpartition("/")[2]
        if f"{path}/" == self._read_only:
            return  # The folder itself.
        folder = self.read_only if path.startswith(self._read_only) else self.writable
        if row is None:
            folder.pop(bookie, None)
            if folder is self.read_only:
                self._left_read_only[bookie] = self._now()
        else:
            folder.setdefault(bookie, self._now())
            info = unpack_service_info(BookieId(bookie), row.value)
            self._writers_from[bookie] = info.writers_from
        self._look_who_is_there(bookie)
        for ledger_id in list(self._facts.ledgers):
            self._look_for_scarcity(ledger_id)

    def _look_who_is_there(self, bookie: str) -> None:
        is_there = bookie in self.writable or bookie in self.read_only
        if not is_there:
            self._missed.setdefault(bookie, self._now())
        elif bookie in self._missed:
            self._was_away_s[bookie] = self._now() - self._missed.pop(bookie)
            self._back_s[bookie] = self._now()
        self._look_for_darkness()

    def _look_for_darkness(self) -> None:
        """Of the bookies that hold ledgers or serve: one that gave up its last slot counts no more (AU2)."""
        named = dict.fromkeys(name for _, name in self._named_s)
        gone = [each for each in named if each in self._missed]
        population = len({**named, **self.writable, **self.read_only})
        if 2 * len(gone) <= population:
            self._dark_s = None
        elif self._dark_s is None:
            self._dark_s = self._now()

    # --- At the end -----------------------------------------------------------------------------

    def unfinished(self, lost: Sequence[str]) -> str | None:
        """What there is left to repair; `lost` never come back."""
        if self._is_off:
            return "recovery is switched off"
        for what, found in (
            ("marks", self.marks),
            ("drain tasks", self.drains),
            ("failures", self.failures),
            ("locks", self.locks),
        ):
            if ids := [each for each in found if not self._is_given_up(each)]:
                return f"there are {what} of ledgers {ids}"
        if self.racks and (ids := self._badly_placed()):
            return f"copies of ledgers {ids} are in one rack"
        for ledger in self._facts.ledgers.values():
            metadata = ledger.metadata
            if metadata is None or self._is_given_up(ledger.ledger_id):
                continue
            for fragment in metadata.fragments:
                if gone := [str(each) for each in fragment.ensemble if each in lost]:
                    return f"ledger {ledger.ledger_id} names {', '.join(gone)}"
            if gone := self._gone(ledger):
                return f"ledger {ledger.ledger_id} has not got back {gone}"
        moving = [LifecycleState.DRAINING, LifecycleState.DRAINING_FAILED]
        if leaving := [each for each, state in self.lifecycles.items() if state in moving]:
            return f"{', '.join(leaving)} are still drained"
        for bookie, state in self.lifecycles.items():
            if state is LifecycleState.DRAINED and (ids := self._naming(bookie, self._now())):
                return f"{bookie} is drained, and ledgers {ids} name it"
        return None

    def _is_given_up(self, ledger_id: int) -> bool:
        return self._facts.ledger(ledger_id).is_doomed and ledger_id not in self.of_logs

    def _gone(self, ledger: LedgerFacts) -> list[str]:
        """Copies of entries that were closed over, which went with a disk and have not come back."""
        metadata = ledger.metadata
        assert metadata is not None
        if not metadata.is_closed:
            return []
        return [
            f"{entry_id} at {bookie}"
            for index, fragment in enumerate(metadata.fragments)
            for slot, bookie in enumerate(fragment.ensemble)
            for entry_id in self._facts.kept(bookie, ledger.ledger_id).gone
            if ledger.ledger_id in self._forgotten.get(bookie, {})
            and metadata.quorum.holds(slot, EntryId(entry_id))
            and fragment.first_entry <= entry_id <= _end_of(metadata, index)
        ]


def _end_of(metadata: LedgerMetadata, index: int) -> int:
    last = metadata.last_entry_of(index)
    return -1 if last is None else last
