from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.ledger.core.bookie_quarantine import Health
from rollbook.ledger.core.placement import Placement
from rollbook.proto.cluster.bookie_watcher import LiveBookies
from rollbook.proto.errors import NotEnoughBookies
from rollbook.proto.formats.service_info import BookieServiceInfo, describe_bookie
from rollbook.proto.ids import BookieId
from rollbook.proto.ports import Address
from rollbook.proto.quorum import Quorum
from tests.messages import raises_message

Q332 = Quorum(ensemble=3, write=3, ack=2)


def names(*indexes: int) -> tuple[BookieId, ...]:
    return tuple(BookieId(f"b{index}") for index in indexes)


def live(writable: int, read_only: int = 0) -> LiveBookies:
    infos = [describe_bookie(Address("h", 1))] * (writable + read_only)
    everyone = dict(zip(names(*range(writable + read_only)), infos, strict=True))
    return LiveBookies(
        {each: everyone[each] for each in names(*range(writable))},
        {each: everyone[each] for each in names(*range(writable, writable + read_only))},
    )


def placement(health: Health | None = None, racks: str = "", seed: int = 1) -> Placement:
    """`racks` has one letter for each of b0, b1 …"""
    of = {BookieId(f"b{index}"): rack for index, rack in enumerate(racks)}
    return Placement(health or Health(), Random(seed), of)


def test_read_only_bookies_are_not_picked() -> None:
    ensemble = placement().pick_ensemble(Q332, live(3, read_only=5), 0)
    assert sorted(ensemble) == sorted(names(0, 1, 2))
    with raises_message(NotEnoughBookies):
        placement().pick_ensemble(Q332, live(2), 0)


def test_error_for_too_few_bookies_mentions_read_only_ones() -> None:
    """With full disks, starting more bookies would be the wrong advice."""
    with raises_message(NotEnoughBookies):
        placement().pick_ensemble(Q332, live(2, read_only=5), 0)


def test_tls_placement_picks_only_bookies_with_a_tls_port() -> None:
    """A bookie without one is unreachable, and an append would wait for its deadline."""
    picker = Placement(Health(), Random(1), uses_tls=True)
    one = Quorum(ensemble=1, write=1, ack=1)
    mixed = LiveBookies(
        {
            each: describe_bookie(Address(each, 1), tls=Address(each, 2) if each == "b3" else None)
            for each in names(*range(6))
        }
    )
    for _ in range(20):
        assert picker.pick_ensemble(one, mixed, 0) == names(3)
    with raises_message(NotEnoughBookies) as refused:
        picker.pick_ensemble(Q332, mixed, 0)
    assert "--tls-listen" in refused.value.next_step
    assert not picker.pick_replacements(one, names(3), [0], mixed, 0, is_urgent=True)
    assert picker.pick_replacements(one, names(5), [0], mixed, 0) == {0: BookieId("b3")}
    assert picker.usable(mixed) == [*names(3)]


def test_bookie_without_address_is_not_picked() -> None:
    """A bookie whose registration cannot be read is alive at an unknown address."""
    one = Quorum(ensemble=1, write=1, ack=1)
    known = live(2)
    mixed = LiveBookies({**known.writable, BookieId("b9"): BookieServiceInfo()})
    for _ in range(20):
        assert placement().pick_ensemble(one, mixed, 0) in (names(0), names(1))
    with raises_message(NotEnoughBookies):
        placement().pick_ensemble(Q332, mixed, 0)
    assert not placement().pick_replacements(
        one, names(0), [0], mixed, 0, excluded=names(1), is_urgent=True
    )
    assert placement().usable(mixed) == [*names(0, 1)]


def test_quarantined_bookies_are_picked_only_when_needed() -> None:
    health = Health()
    health.on_failure(BookieId("b1"), 0)
    health.on_failure(BookieId("b3"), 5)
    for seed in range(20):
        assert sorted(placement(health, seed=seed).pick_ensemble(Q332, live(5), 9)) == sorted(
            names(0, 2, 4)
        )
        # Picks the one whose quarantine ends first.
        assert sorted(placement(health, seed=seed).pick_ensemble(Q332, live(4), 9)) == sorted(
            names(0, 1, 2)
        )


def test_ensembles_are_spread_randomly() -> None:
    picked = placement()
    seen = {picked.pick_ensemble(Q332, live(6), 0) for _ in range(200)}
    assert len(seen) > 60


@given(
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)).map(sorted),
    racks=st.text("ABC", min_size=6, max_size=9),
    seed=st.integers(0, 1000),
)
def test_bookies_are_unique_within_an_ensemble(sizes: list[int], racks: str, seed: int) -> None:
    """WR9."""
    write, size = sizes
    quorum = Quorum(size, write, 1)
    picker = placement(racks=racks, seed=seed)
    ensemble = picker.pick_ensemble(quorum, live(len(racks)), 0)
    assert len(set(ensemble)) == size
    slots = Random(seed).sample(range(size), Random(seed).randint(1, size))
    picks = picker.pick_replacements(quorum, ensemble, slots, live(len(racks)), 0)
    assert len(picks) == min(len(slots), len(racks) - size)
    assert list(picks) == slots[: len(picks)]
    assert len({*ensemble, *picks.values()}) == size + len(picks)


@pytest.mark.parametrize("racks", ["AABBCC", "AAAAABC", "AAABBB"])
def test_write_set_spans_more_than_one_rack(racks: str) -> None:
    for seed in range(30):
        picker = placement(racks=racks, seed=seed)
        ensemble = picker.pick_ensemble(Q332, live(len(racks)), 0)
        assert not picker.lacks_racks(Q332, ensemble)
        rack_of = {f"b{index}": rack for index, rack in enumerate(racks)}
        if len(set(racks)) == 3:
            assert {rack_of[each] for each in ensemble} == set("ABC")


def test_replacement_is_picked_from_an_unused_rack() -> None:
    for seed in range(30):
        picks = placement(racks="ABABA", seed=seed).pick_replacements(
            Quorum(2, 2, 1), names(0, 1), [1], live(5), 0
        )
        assert picks[1] == BookieId("b3")


def test_single_rack_is_reported_and_still_used() -> None:
    picker = placement(racks="AAA")
    assert picker.lacks_racks(Q332, picker.pick_ensemble(Q332, live(3), 0))
    assert not placement().lacks_racks(Q332, names(0, 1, 2)), "no racks are known"
    assert not picker.lacks_racks(Quorum(3, 1, 1), names(0, 1, 2)), "one copy is in one rack"


def test_unmapped_bookie_counts_as_its_own_rack() -> None:
    assert not placement(racks="AA").lacks_racks(Q332, names(0, 1, 7))


def test_replacements_are_partial_when_bookies_are_short() -> None:
    health = Health()
    health.on_failure(BookieId("b4"), 0)
    picker = placement(health)
    assert picker.pick_replacements(Q332, names(0, 1, 2), [2, 0], live(4), 1) == {2: BookieId("b3")}
    assert picker.pick_replacements(Q332, names(0, 1, 2), [2, 0], live(5), 1) == {2: BookieId("b3")}
    urgent = picker.pick_replacements(Q332, names(0, 1, 2), [2, 0], live(5), 1, is_urgent=True)
    assert sorted(urgent.values()) == list(names(3, 4))
    assert not picker.pick_replacements(Q332, names(0, 1, 2), [2], live(5), 1, excluded=names(3))
