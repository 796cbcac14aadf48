"""Small writes zero the journal ahead of themselves; large writes do not, nor does a journal
without prezeroing."""

from hypothesis import given
from hypothesis import strategies as st

from rollbook.bookie.core.journal_prezeroing import ZerosAhead

KIB = 1024
STRETCH = 64 * KIB
SMALL = STRETCH // 8


def zeros(end: int = 1 * KIB, allocated: int = 1024 * KIB, stretch: int = STRETCH) -> ZerosAhead:
    return ZerosAhead(end, allocated, stretch)


def test_small_write_adds_zeros_up_to_the_end_of_its_stretch() -> None:
    taken = bytes(zeros().behind(1 * KIB, 2 * KIB))
    assert taken == bytes(STRETCH - 2 * KIB)


def test_adds_within_prezeroed_space_write_no_zeros() -> None:
    subject = zeros()
    subject.behind(1 * KIB, 2 * KIB)
    assert subject.takes_none(2 * KIB, 3 * KIB)
    assert not subject.behind(2 * KIB, 3 * KIB)
    assert not subject.behind(STRETCH - KIB, STRETCH)
    assert not subject.takes_none(STRETCH - KIB, STRETCH + 1)
    assert len(subject.behind(STRETCH - KIB, STRETCH + KIB)) == STRETCH - KIB


def test_large_write_adds_no_zeros_but_next_small_one_does() -> None:
    subject = zeros()
    end = KIB + SMALL + 512
    assert subject.takes_none(KIB, end)
    assert not subject.behind(KIB, end)
    assert len(subject.behind(end, end + SMALL)) == STRETCH - end - SMALL


def test_no_zeros_are_written_beyond_the_end_of_the_file() -> None:
    subject = zeros(allocated=STRETCH + 3 * KIB)
    assert len(subject.behind(STRETCH, STRETCH + KIB)) == 2 * KIB
    assert subject.takes_none(STRETCH, STRETCH + 3 * KIB)


def test_write_beyond_the_allocated_size_adds_no_zeros() -> None:
    assert not zeros(allocated=4 * KIB).behind(3 * KIB, 5 * KIB)


def test_prezeroing_can_be_switched_off() -> None:
    subject = zeros(stretch=0)
    assert subject.takes_none(KIB, 512 * KIB)
    assert not subject.behind(KIB, 2 * KIB)


@given(st.lists(st.integers(1, 3 * SMALL), min_size=1, max_size=60), st.integers(0, 2 * STRETCH))
def test_no_byte_is_zeroed_twice_or_before_the_write_end(sizes: list[int], stretch: int) -> None:
    subject, position, ahead_to = zeros(stretch=stretch), KIB, KIB
    for size in sizes:
        end = position + size
        takes_none = subject.takes_none(position, end)
        found = len(subject.behind(position, end))
        assert not (takes_none and found)
        assert found <= stretch
        if found:
            assert end > ahead_to
            ahead_to = end + found
            assert ahead_to <= 1024 * KIB
        assert subject.takes_none(position, end)
        position = end
