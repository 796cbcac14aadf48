"""Rules for checks: their kinds, when a check is due, and what a bookie's answers mean for its copies.

| check     | looks at                                                                  | default | BookKeeper's node          |
|---|---|---|---|
| bookies   | all metadata: ledgers that name a lost bookie                             | a day   | none; a node of our own    |
| placement | racks of closed fragments, where racks are known                          | a day   | `placementpolicycheckctime`|
| copies    | entry lists of closed fragments' members, holes included                  | a day   | `replicascheckctime`       |
| ledgers   | bytes of the first and last entry of each member, and of a share of the rest | a week | `checkallledgersctime`   |

A copy is *short* if its bookie lists less than it should hold, or denies an entry. A copy is *bad* if its
bytes fail their digest, or if more members of the write set have other bytes. A check does not judge an
unregistered bookie, which becomes lost after the delay (AU1, AU6).

A ledger whose copies seem short or bad is looked at twice, since a writer's last copies may still be on their
way. Only findings of both looks are marked, see `confirmed_by` (AU7). If a bookie did not respond, or is
absent and not marked, the ledger counts as not judged and is checked again (AU5).
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import ceil
from typing import Final

from rollbook.ledger.core.copy_comparison import Copy, CopyState, compare_copies
from rollbook.proto.errors import BadMetadata, InvalidRequest, UnsupportedVersion
from rollbook.proto.formats.node_byte_checks import check_size
from rollbook.proto.ids import BookieId, EntryId, parse_bookie_id
from rollbook.proto.metadata import LedgerMetadata, LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.recovery.core.entry_spans import EntrySpan, covers, ranges_of
from rollbook.recovery.core.repair_plan import Action, SlotRepair

_VERSION: Final = 1
# The maximum number of bad ranges of one bookie. Further ranges are found once these are repaired.
_BAD_RANGES_MAX: Final = 1000


class CheckKind(Enum):
    BOOKIES = "bookies"
    PLACEMENT = "placement"
    COPIES = "copies"
    LEDGERS = "ledgers"


# --- Schedule ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Requests:
    """A person's requests for checks: each kind of check is made once for each request (AU8).

    A request is identified by its time. A request that was made before this auditor led counts as served if
    the check was completed later, although the two times come from the clocks of two machines. A request that
    arrives while this auditor leads is always served.
    """

    _first_ms: int | None = None
    _asked_ms: int | None = None
    _extra: dict[CheckKind, int] = field(default_factory=dict)
    _served: dict[CheckKind, tuple[int | None, int]] = field(default_factory=dict)
    _has_looked: bool = False

    def on_order(self, asked_ms: int | None) -> bool:
        """Take note of the latest request. Returns whether the request is new."""
        if not self._has_looked:
            self._has_looked, self._first_ms = True, asked_ms
        is_new = asked_ms != self._asked_ms
        self._asked_ms = asked_ms
        return is_new

    def add(self, kind: CheckKind) -> None:
        """Request one check."""
        self._extra[kind] = self._extra.get(kind, 0) + 1

    def is_open(self, kind: CheckKind, completed_ms: int | None) -> bool:
        asked_ms, extra = self.stamp(kind)
        served_ms, served_extra = self._served.get(kind, (None, 0))
        if extra != served_extra:
            return True
        if asked_ms is None or asked_ms == served_ms:
            return False
        return asked_ms != self._first_ms or completed_ms is None or completed_ms < asked_ms

    def stamp(self, kind: CheckKind) -> tuple[int | None, int]:
        """Return a stamp of the requests so far. Pass it to `on_served` when a check that begins now is
        completed.
        """
        return self._asked_ms, self._extra.get(kind, 0)

    def on_served(self, kind: CheckKind, stamp: tuple[int | None, int]) -> None:
        self._served[kind] = stamp


# --- Copies -----------------------------------------------------------------------------------


def closed_slots(metadata: LedgerMetadata) -> Iterator[SlotRepair]:
    """Yield the slots of closed fragments, whose shares are known completely. A ledger in recovery has no
    such slots (LM3).
    """
    if metadata.state is LedgerState.IN_RECOVERY:
        return
    for index, fragment in enumerate(metadata.fragments):
        last_entry = metadata.last_entry_of(index)
        if last_entry is not None and last_entry >= fragment.first_entry:
            for slot in range(len(fragment.ensemble)):
                yield SlotRepair(fragment, last_entry, slot, Action.RESTORE)


def pick_sample(
    quorum: Quorum, repair: SlotRepair, percent: float, start: float
) -> list[list[EntryId]]:
    """Pick the runs of the slot's share to read: the first and the last entry, and in between one run of this
    percentage. `fraction` selects where that run begins.
    """
    count = repair.last_entry - repair.first_entry + 1
    size = min(ceil(count * percent / 100), count)
    first = repair.first_entry + int(start * (count - size + 1))
    run = repair.share(quorum, range(first, first + size))
    end = repair.last_entry + 1
    # At either end of the fragment, this number of consecutive entries includes at least one entry of
    # the slot.
    near = quorum.ensemble - quorum.write + 1
    head = repair.share(quorum, range(repair.first_entry, min(repair.first_entry + near, end)))
    tail = repair.share(quorum, range(max(repair.first_entry, end - near), end))
    found = [run] if run else []
    found += [[each] for each in dict.fromkeys((*head[:1], *tail[-1:])) if each not in run]
    return found


@dataclass(slots=True)
class CopyReport:
    """The results of a check of one ledger's copies."""

    short: dict[BookieId, None] = field(default_factory=dict)
    bad: dict[BookieId, list[EntryId]] = field(default_factory=dict)
    # Bookies that have doubts about their own copies.
    unknown: dict[BookieId, None] = field(default_factory=dict)
    # Registered bookies that do not respond.
    silent: dict[BookieId, None] = field(default_factory=dict)
    # Unregistered bookies, which are not judged (AU6).
    away: dict[BookieId, None] = field(default_factory=dict)
    differing: list[EntryId] = field(
        default_factory=list
    )  # Entries whose valid copies differ without a majority for one of them.

    @property
    def to_mark(self) -> list[BookieId]:
        return sorted({**self.short, **dict.fromkeys(self.bad)})

    def on_copies(self, entry_id: EntryId, copies: Mapping[BookieId, Copy]) -> None:
        """Take note of the copies of one entry that its members returned."""
        by_place = dict(enumerate(copies.items()))
        states = compare_copies({place: copy for place, (_, copy) in by_place.items()})
        is_decided = CopyState.GOOD in states.values()
        if CopyState.DIFFERENT in states.values() and not is_decided:
            self.differing.append(entry_id)
        for place, (bookie, _) in by_place.items():
            match states[place]:
                case CopyState.MISSING:
                    self.short[bookie] = None
                case CopyState.BAD:
                    self.bad.setdefault(bookie, []).append(entry_id)
                case CopyState.DIFFERENT if is_decided:
                    self.bad.setdefault(bookie, []).append(entry_id)
                case CopyState.UNKNOWN:
                    self.unknown[bookie] = None
                case CopyState.UNREACHABLE:
                    self.silent[bookie] = None
                case _:
                    pass


@dataclass(frozen=True, slots=True)
class ConfirmedReport:
    """The findings on which two looks at the copies of one ledger agree."""

    to_mark: list[BookieId]
    bad: dict[BookieId, list[EntryId]]  # The bad entries of the marked bookies.
    # True if the second look judged each bookie that the first look found short or bad.
    is_judged: bool


def is_judged(first: CopyReport, marked: Collection[BookieId] | None) -> bool:
    """Return whether the first look judged every member. An absent member counts as judged if the ledger is
    marked for it, since the repair checks its copies. `marked` is None if the mark is unreadable; workers
    report such marks.
    """
    return not first.silent and (marked is None or first.away.keys() <= set(marked))


def confirmed_by(
    first: CopyReport, second: CopyReport, is_registered: Callable[[BookieId], bool]
) -> ConfirmedReport:
    """Decide after the second look which copies are marked: copies that both looks found short or bad (AU7),
    on bookies that are registered now (AU6).
    """
    suspects = first.to_mark
    present = {each for each in suspects if is_registered(each)}
    to_mark = [each for each in second.to_mark if each in present]
    return ConfirmedReport(
        to_mark,
        {each: second.bad[each] for each in to_mark if each in second.bad},
        is_judged=all(each in present and each not in second.silent for each in suspects),
    )


# --- Entries whose copies are bad -------------------------------------------------------------


BadRanges = Mapping[BookieId, tuple[EntrySpan, ...]]
"""Bad entries of each bookie. They are kept apart because a mark has no room for entries, and an entry list
shows such a copy as present.
"""


def merged_bad(
    known: BadRanges, found: Mapping[BookieId, Sequence[EntryId]]
) -> dict[BookieId, tuple[EntrySpan, ...]]:
    merged = dict(known)
    for bookie, entry_ids in found.items():
        before = merged.get(bookie, ())
        new = ranges_of(each for each in sorted(entry_ids) if not covers(before, each))
        merged[bookie] = tuple(sorted((*before, *new)))[:_BAD_RANGES_MAX]
    return merged


def pack_bad(bad: BadRanges) -> bytes:
    """Return the JSON of bad ranges, `{"bad": {"b1:3181": [[3, 5]]}, "version": 1}`; both ends are inclusive."""
    fields = {
        "version": _VERSION,
        "bad": {each: [list(part) for part in bad[each]] for each in bad},
    }
    return json.dumps(fields, sort_keys=True).encode("ascii")


def unpack_bad(data: bytes) -> dict[BookieId, tuple[EntrySpan, ...]]:
    """Return the bad ranges in these bytes. Raises `BadMetadata`, `UnsupportedVersion`."""
    check_size(data)
    try:
        fields = json.loads(data)
        if fields["version"] != _VERSION:
            raise UnsupportedVersion(f"bad copies in a format of version {fields['version']!r:.20}")
        bad = {
            parse_bookie_id(bookie): tuple(EntrySpan(first, last) for first, last in parts)
            for bookie, parts in fields["bad"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidRequest):
        raise BadMetadata(f"not a list of bad copies: {data[:80]!r}") from None
    numbers = [number for parts in bad.values() for part in parts for number in part]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise BadMetadata(f"not a list of bad copies: {data[:80]!r}")
    return bad
