"""Decides which bookies a writer gives up although it has nothing to send them (WR11).

A slot whose bookie is lost costs all later entries a copy. After a while repair closes a ledger
whose open end names a lost bookie, because it cannot tell whether the writer is alive. A live
writer therefore gives up such a slot itself, before repair closes its ledger.

    not registered for 15 s    lost: a restart takes less time, so it moves no ledger
    registered as draining     lost: it should give up all its slots
    in doubt about everything  lost: it takes no entries before it is healed, and that closes open ledgers
    formatted since            lost for older ledgers, because it refuses their writers (the bookie's B13)
    read-only                  not lost: it keeps its slots until it refuses an add
"""

from collections.abc import Collection, Iterable
from typing import Final

from rollbook.proto.cluster.bookie_watcher import LiveBookies
from rollbook.proto.ids import BookieId, LedgerId

_ABSENT_NS: Final = 15 * 1_000_000_000


class LostMembers:
    def __init__(self, absent_ns: int = _ABSENT_NS) -> None:
        self._absent_ns = absent_ns
        self._since_ns: dict[BookieId, int] = {}

    def on_look(
        self,
        members: Iterable[BookieId],
        registered: Collection[BookieId],
        now_ns: int,
    ) -> set[BookieId]:
        """Returns those of `members`, which have slots in open fragments, that are lost."""
        absent = [each for each in members if each not in registered]
        self._since_ns = {each: self._since_ns.get(each, now_ns) for each in absent}
        return {
            each
            for each, since_ns in self._since_ns.items()
            if now_ns - since_ns >= self._absent_ns
        }


def reason_to_leave(
    bookie: BookieId, ledger_id: LedgerId, live: LiveBookies, lost: Collection[BookieId]
) -> str | None:
    """Returns the reason why the writer of a ledger gives up this slot; None if it keeps the slot."""
    if bookie in lost:
        return "it is not registered"
    info = live.find(bookie)
    if info is not None and info.gives_up_slots:
        return "it gives up its seats"
    return "it was formatted since this ledger began" if live.refuses(bookie, ledger_id) else None
