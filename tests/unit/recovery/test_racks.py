"""Which slot is moved to a bookie in another rack (AU10)."""

from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.proto.ids import BookieId
from rollbook.proto.quorum import Quorum
from rollbook.recovery.ledger_repair import pick_for_racks
from tests.unit.ledger.core.test_placement import live, names, placement


def ledgers_with(racks: str) -> Any:
    picker = placement(racks=racks)
    return SimpleNamespace(
        sets_in_one_rack=picker.sets_in_one_rack,
        pick_replacement=lambda quorum, ensemble, slot, excluded: picker.pick_replacements(
            quorum, ensemble, (slot,), live(len(racks)), 0, excluded=excluded, is_urgent=True
        ).get(slot),
    )


@pytest.mark.parametrize(
    ("quorum", "racks", "swaps"),
    [
        (Quorum(3, 3, 2), "AAAB", 1),
        (Quorum(2, 2, 2), "AAB", 1),
        (Quorum(3, 2, 2), "AAAB", 1),  # At most two of three write sets can be spread.
        (Quorum(5, 2, 2), "AAAAABBB", 2),
        (Quorum(3, 3, 2), "AAAA", 0),
        (Quorum(3, 3, 2), "ABAB", 0),
    ],
)
def test_each_rack_swap_leaves_fewer_sets_in_one_rack(
    quorum: Quorum, racks: str, swaps: int
) -> None:
    ledgers, ensemble, made = ledgers_with(racks), names(*range(quorum.ensemble)), 0
    left = ledgers.sets_in_one_rack(quorum, ensemble)
    while found := pick_for_racks(ledgers, quorum, ensemble):
        slot, target = found
        ensemble = (*ensemble[:slot], target, *ensemble[slot + 1 :])
        before, left = left, ledgers.sets_in_one_rack(quorum, ensemble)
        assert left < before
        made += 1
    assert made == swaps
    assert len(dict.fromkeys(ensemble)) == quorum.ensemble
    assert (BookieId("b3") in ensemble) >= (racks == "AAAB")
