"""Decides where copies are placed: picks ensembles of new ledgers, and replacements for failed
bookies.

A candidate accepts new entries and publishes a usable address (a client that uses TLS needs a TLS
port). Bookies in quarantine are used only if there are not enough others. A bookie is never twice
in an ensemble: two copies on one bookie are one copy (WR9).

If racks are configured, an ensemble is picked slot by slot: any `write` slots in a row, which hold
the same entry, are in as many racks as possible. With too few racks an ensemble is picked anyway,
and `lacks_racks` reports it. A bookie without a configured rack counts as a rack of its own. Equal
candidates are picked at random, so that many clients spread their writes.
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from rollbook.ledger.core.bookie_quarantine import Health
from rollbook.proto.cluster.bookie_watcher import LiveBookies
from rollbook.proto.errors import NotEnoughBookies
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Randomness
from rollbook.proto.quorum import Ensemble, Quorum

_NO_MAP: Final[Mapping[BookieId, str]] = MappingProxyType({})
# The number of racks wanted for each write set: the failure of one rack must not take all copies.
_RACKS_WANTED: Final = 2


class Placement:
    def __init__(
        self,
        health: Health,
        randomness: Randomness,
        racks: Mapping[BookieId, str] = _NO_MAP,
        *,
        uses_tls: bool = False,
    ) -> None:
        self._health = health
        self._randomness = randomness
        self._racks = racks
        self._uses_tls = uses_tls

    def pick_ensemble(self, quorum: Quorum, live: LiveBookies, now_ns: int) -> Ensemble:
        """Picks the ensemble of a new ledger. Raises `NotEnoughBookies`."""
        healthy, resting = self._candidates(live, now_ns, excluded=())
        if len(healthy) + len(resting) < quorum.ensemble:
            raise self._too_few(len(healthy) + len(resting), len(live.read_only), quorum)
        # Healthy bookies matter more than racks, because a dead member leaves entries with one copy
        # too few.
        healthy += resting[: max(0, quorum.ensemble - len(healthy))]
        members: dict[int, BookieId] = {}
        for slot in range(quorum.ensemble):
            members[slot] = self._pick(quorum, members, slot, healthy)
        return tuple(members.values())

    def _too_few(self, usable: int, read_only: int, quorum: Quorum) -> NotEnoughBookies:
        behind_tls, start = (" behind TLS", " with --tls-listen") if self._uses_tls else ("", "")
        others = room = ""
        # Read-only bookies usually have full disks; without this text an operator would look for
        # dead bookies.
        if read_only:
            others = f", {read_only} are read-only"
            room = "free disk space on the read-only bookies, "
        return NotEnoughBookies(
            f"{usable} bookies accept new entries{behind_tls}{others}, "
            f"but the ensemble needs {quorum.ensemble}",
            next_step=f"{room}start bookies{start}, or create the log or ledger again with fewer copies",
        )

    def pick_replacements(
        self,
        quorum: Quorum,
        ensemble: Ensemble,
        slots: Iterable[int],
        live: LiveBookies,
        now_ns: int,
        *,
        excluded: Collection[BookieId] = (),
        is_urgent: bool = False,
    ) -> dict[int, BookieId]:
        """Picks bookies for as many of the slots as possible, in the order of the slots.

        With `is_urgent`, a bookie in quarantine is picked if there is no other.
        """
        wanted = list(slots)
        healthy, resting = self._candidates(live, now_ns, excluded={*ensemble, *excluded})
        if is_urgent:
            healthy += resting[: max(0, len(wanted) - len(healthy))]
        members = {s: bookie for s, bookie in enumerate(ensemble) if s not in wanted}
        picked: dict[int, BookieId] = {}
        for slot in wanted[: len(healthy)]:
            picked[slot] = members[slot] = self._pick(quorum, members, slot, healthy)
        return picked

    def usable(self, live: LiveBookies) -> list[BookieId]:
        """Returns the bookies that accept new entries and have a usable address."""
        return [
            bookie
            for bookie, info in live.writable.items()
            if info.address_for(tls=self._uses_tls) is not None
        ]

    def resting(self, live: LiveBookies, now_ns: int) -> list[BookieId]:
        """Returns those of the `usable` bookies that are in quarantine."""
        return [each for each in self.usable(live) if self._health.is_quarantined(each, now_ns)]

    def lacks_racks(self, quorum: Quorum, ensemble: Ensemble) -> bool:
        """Returns whether racks are configured and some entries would have all their copies in one
        rack."""
        return self.sets_in_one_rack(quorum, ensemble) > 0

    def sets_in_one_rack(self, quorum: Quorum, ensemble: Ensemble) -> int:
        """Returns how many write sets, one for each member, have all their copies in one rack."""
        if not self._racks or quorum.write < _RACKS_WANTED:
            return 0
        write_sets = (
            [ensemble[(first + copy) % len(ensemble)] for copy in range(quorum.write)]
            for first in range(len(ensemble))
        )
        return sum(len({self._rack(each) for each in held}) < _RACKS_WANTED for held in write_sets)

    def _candidates(
        self, live: LiveBookies, now_ns: int, excluded: Collection[BookieId]
    ) -> tuple[list[BookieId], list[BookieId]]:
        """Returns the candidates in random order, and separately those in quarantine, in the order
        in which they leave it."""
        found = [bookie for bookie in self.usable(live) if bookie not in excluded]
        self._randomness.shuffle(found)
        healthy = [each for each in found if not self._health.is_quarantined(each, now_ns)]
        resting = [each for each in found if self._health.is_quarantined(each, now_ns)]
        return healthy, sorted(resting, key=self._health.quarantined_until_ns)

    def _pick(
        self,
        quorum: Quorum,
        members: Mapping[int, BookieId],
        slot: int,
        candidates: list[BookieId],
    ) -> BookieId:
        """Removes and returns the candidate that shares its rack with the fewest neighbouring
        slots."""
        if not self._racks:
            return candidates.pop()
        nearby: dict[int, None] = {}
        for distance in range(1, quorum.write):
            nearby[(slot - distance) % quorum.ensemble] = None
            nearby[(slot + distance) % quorum.ensemble] = None
        racks = [self._rack(members[each]) for each in nearby if each in members]
        best = min(range(len(candidates)), key=lambda i: racks.count(self._rack(candidates[i])))
        return candidates.pop(best)

    def _rack(self, bookie: BookieId) -> str:
        return self._racks.get(bookie, bookie)
