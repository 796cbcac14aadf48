"""The promises of a store after a crash, and whether it keeps them.

- everything acknowledged is there: entries, fences, explicit LACs, deletions, drops, and entries
  that were added after a drop;
- nothing is there that was never requested, and nothing is UNKNOWN, since there was no rot.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from rollbook.bookie.storage import Storage
from rollbook.proto.errors import EntryStateUnknown, NoSuchEntry, NoSuchLedger, RollbookError
from rollbook.proto.ids import NO_ENTRY
from tests.crash.images.life import LEDGERS, Promises, lac_packet
from tests.crash.images.step_disk import step

_LAC: Final = struct.Struct(">q")
_LAC_AT: Final = 16  # Follows the ledger id and the entry id.
_NOBODYS_ENTRY: Final = 10**9


class Promise(AssertionError):
    """A promise that was broken."""


@dataclass
class LedgerDue:
    """The promises for one ledger, computed once for all images of one moment."""

    ledger_id: int
    entries: dict[int, tuple[bool, list[bytes]]] = field(default_factory=dict)
    """By ascending id: whether the entry must be there, and its possible contents."""
    must_be_gone: bool = False
    may_be_gone: bool = False
    must_be_fenced: bool = False
    may_be_fenced: bool = False
    lac_least: int = NO_ENTRY  # The least LAC of entries and packets.
    packets: list[bytes] = field(default_factory=list)  # Packets, one of which may be there.
    has_packet: bool = False  # Whether a packet must be there.


class Due:
    """The promises at each moment of a trace; cheap if the moments are in ascending order."""

    def __init__(self, promises: Promises) -> None:
        self._promises = promises
        self._times = promises.times()
        self._at = -1
        self._ledgers: list[LedgerDue] = []

    def at(self, now: int) -> list[LedgerDue]:
        at = bisect_right(self._times, now)
        if at != self._at:
            self._at, self._ledgers = at, [_ledger_due(self._promises, e, now) for e in LEDGERS]
        return self._ledgers


def _ledger_due(promises: Promises, ledger_id: int, now: int) -> LedgerDue:
    def by_now(when: dict[int, int]) -> bool:
        return when.get(ledger_id, now + 1) <= now

    due = LedgerDue(ledger_id)
    due.must_be_gone, due.may_be_gone = by_now(promises.delete_acked), by_now(promises.delete_sent)
    due.must_be_fenced = by_now(promises.fence_acked)
    due.may_be_fenced = by_now(promises.fence_sent) or due.may_be_gone
    # Adds up to `may_end` may have been dropped, and adds up to `must_end` must have been.
    may_end = _last_drop(promises.drop_sent, ledger_id, now)
    must_end = _last_drop(promises.drop_acked, ledger_id, now)
    for (each, entry_id), sent in sorted(promises.sent.items()):
        if each != ledger_id or not any(when <= now for when, _, _ in sent):
            continue
        bodies = [body for when, number, body in sent if when <= now and number > must_end]
        adds_acked = promises.acked.get((ledger_id, entry_id), ())
        is_acked = any(when <= now and number > may_end for when, number in adds_acked)
        due.entries[entry_id] = (is_acked and not due.may_be_gone, bodies)
        if is_acked:  # One of these bodies is there, perhaps not the one with the highest LAC.
            due.lac_least = max(min(map(_lac_of, bodies)), due.lac_least)
    acked = [lac for when, each, lac in promises.lac_acked if each == ledger_id and when <= now]
    least = max(acked, default=NO_ENTRY)
    due.has_packet, due.lac_least = bool(acked), max(least, due.lac_least)
    due.packets = [
        lac_packet(ledger_id, lac)
        for when, each, lac in promises.lac_sent
        if each == ledger_id and when <= now and lac >= least
    ]
    return due


def _last_drop(drops: list[tuple[int, int, int]], ledger_id: int, now: int) -> int:
    numbers = (number for when, number, each in drops if each == ledger_id and when <= now)
    return max(numbers, default=0)


def _lac_of(body: bytes) -> int:
    lac: int = _LAC.unpack_from(body, _LAC_AT)[0]
    return lac


Answer = bytes | type[RollbookError]


def judge(storage: Storage, ledgers: list[LedgerDue], *, singly: bool) -> None:
    """Reads everything, in runs as a recovery does, or each entry singly.

    Raises `Promise`.
    """
    for due in ledgers:
        _judge_ledger(storage, due, singly)


def _judge_ledger(storage: Storage, due: LedgerDue, singly: bool) -> None:
    ledger_id = due.ledger_id
    held: list[int] = []
    for entry_id, found in _answers(storage, ledger_id, list(due.entries), singly):
        must, bodies = due.entries[entry_id]
        if isinstance(found, bytes):
            if not bodies:
                raise Promise(f"ledger {ledger_id} entry {entry_id} was dropped and is back")
            if found not in bodies:
                raise Promise(f"ledger {ledger_id} entry {entry_id} was never written like this")
            if due.must_be_gone:
                raise Promise(f"ledger {ledger_id} was deleted and is back")
            held.append(entry_id)
        elif found is EntryStateUnknown:
            raise Promise(f"ledger {ledger_id} entry {entry_id} is unknown without damage")
        elif must:
            raise Promise(f"ledger {ledger_id} entry {entry_id} was acknowledged and is gone")
    is_fenced = storage.is_fenced(ledger_id)
    if due.must_be_fenced and not is_fenced:
        raise Promise(f"ledger {ledger_id} has lost its fence")
    if is_fenced and not due.may_be_fenced:
        raise Promise(f"ledger {ledger_id} is fenced by nobody")
    if isinstance(answer(storage, ledger_id, _NOBODYS_ENTRY), bytes):
        raise Promise(f"ledger {ledger_id} has an entry that nobody wrote")
    if not due.may_be_gone:
        _judge_tail(storage, due, held)


def _judge_tail(storage: Storage, due: LedgerDue, held: list[int]) -> None:
    ledger_id = due.ledger_id
    last = max(held, default=NO_ENTRY)
    try:
        found = step(storage.read_last(ledger_id))
    except (NoSuchLedger, NoSuchEntry):
        found = b""
    if found not in (due.entries[last][1] if held else [b""]):
        raise Promise(f"ledger {ledger_id} has another last entry than {last}")
    try:
        listed = step(storage.entry_ids(ledger_id))
    except NoSuchLedger:
        listed = []
    if listed != held:
        raise Promise(f"ledger {ledger_id} lists {listed} and has {held}")
    if storage.last_add_confirmed(ledger_id) < due.lac_least:
        raise Promise(f"the LAC of ledger {ledger_id} went back")
    packet = storage.lac_packet(ledger_id)
    if packet is None and due.has_packet:
        raise Promise(f"ledger {ledger_id} has lost an explicit LAC")
    if packet is not None and packet not in due.packets:
        raise Promise(f"ledger {ledger_id} has an explicit LAC that is old or nobody's")


def _answers(
    storage: Storage, ledger_id: int, entry_ids: list[int], singly: bool
) -> Iterator[tuple[int, Answer]]:
    """The results of reads of these ascending ids."""
    if singly:
        for entry_id in entry_ids:
            yield entry_id, answer(storage, ledger_id, entry_id)
        return
    at = 0
    while at < len(entry_ids):
        first = entry_ids[at]
        following = at + 1
        while following < len(entry_ids) and entry_ids[following] - first == following - at:
            following += 1
        try:
            found = step(storage.read_run(ledger_id, first, following - at, 1 << 30))
        except (NoSuchLedger, NoSuchEntry, EntryStateUnknown) as error:
            yield first, type(error)
            at += 1
            continue
        for body in found:
            yield entry_ids[at], bytes(body)
            at += 1


def answer(storage: Storage, ledger_id: int, entry_id: int) -> Answer:
    if (found := storage.peek(ledger_id, entry_id)) is not None:
        return found
    try:
        return step(storage.read(ledger_id, entry_id))
    except (NoSuchLedger, NoSuchEntry, EntryStateUnknown) as error:
        return type(error)
