"""Marks, locks, votes and settings below `underreplication`: exact bytes and invalid data."""

import pytest

from rollbook.proto.errors import BadMetadata
from rollbook.proto.formats import replication
from rollbook.proto.formats.replication import UnderreplicatedMark
from rollbook.proto.ids import LEDGER_ID_MAX, BookieId, LedgerId
from tests.golden import metadata as golden

B1, B2, B3 = (BookieId(f"127.0.0.1:{port}") for port in (3181, 3182, 3183))
MARK = UnderreplicatedMark((B1, B2), 1_700_000_000_000)


def test_mark_matches_bytes_of_java() -> None:
    assert replication.pack_mark(MARK) == golden.MARK
    assert replication.unpack_mark(golden.MARK) == MARK


def test_marking_again_appends_new_bookies() -> None:
    later = MARK.marked_ms + 5000 if MARK.marked_ms else 0
    assert MARK.with_missing([B3, B1, B3], later) == UnderreplicatedMark((B1, B2, B3), later)


def test_marking_known_bookies_changes_nothing() -> None:
    assert MARK.with_missing([B2, B1], 99) == MARK


def test_mark_without_time_is_read() -> None:
    assert replication.unpack_mark(b'replica: "b"\n') == UnderreplicatedMark((BookieId("b"),))
    assert replication.pack_mark(UnderreplicatedMark((BookieId("b"),))) == b'replica: "b"\n'


@pytest.mark.parametrize(("ledger_id", "path"), golden.MARK_PATHS.items())
def test_mark_paths(ledger_id: int, path: str) -> None:
    assert replication.mark_path(LedgerId(ledger_id)) == path
    assert replication.ledger_of_mark(path.rpartition("/")[2]) == ledger_id


@pytest.mark.parametrize(
    "name", ["", "urL", "urL123", "urL00000000012", "L0000000012", f"urL{LEDGER_ID_MAX + 1}"]
)
def test_other_names_are_not_marks(name: str) -> None:
    assert replication.ledger_of_mark(name) is None


def test_votes_and_locks_survive_round_trip() -> None:
    assert replication.pack_vote(B1) == golden.VOTE
    assert replication.unpack_vote(golden.VOTE) == B1
    assert replication.unpack_lock(replication.pack_lock("worker-3.example")) == "worker-3.example"
    assert replication.unpack_lock(b"") == ""


def test_vote_number_is_parsed_from_name() -> None:
    names = ["V_0000000010", "V_0000000009", "V_2147483647", "V_-2147483648", "W_1", "V_x"]
    assert list(map(replication.number_of_vote, names)) == [10, 9, 2**31 - 1, -(2**31), None, None]


def test_layout_of_marks_must_be_basic_1() -> None:
    assert replication.pack_replication_layout() == golden.REPLICATION_LAYOUT
    replication.check_replication_layout(golden.REPLICATION_LAYOUT)
    for other in (b'type: "BASIC" version: 2', b'type: "FANCY" version: 1', b"version: 1", b""):
        with pytest.raises(BadMetadata):
            replication.check_replication_layout(other)


def test_check_times_are_binary() -> None:
    assert replication.pack_checked_at(1_700_000_000_000) == golden.CHECKED_AT
    assert replication.unpack_checked_at(golden.CHECKED_AT) == 1_700_000_000_000
    assert replication.unpack_checked_at(b"") is None


def test_delay_is_decimal_seconds() -> None:
    assert replication.pack_seconds(30) == b"30"
    assert replication.unpack_seconds(b"30") == 30
    for other in (b"", b"-1", b"1.5", b" 1", b"9" * 11, "٣".encode()):
        with pytest.raises(BadMetadata):
            replication.unpack_seconds(other)


@pytest.mark.parametrize(
    "data", [b"replica: 1", b'replica: "a/b"', b'replica: "b', b"\x0a\x01b", b"ctime: 1 ctime: 2"]
)
def test_invalid_mark_is_refused(data: bytes) -> None:
    with pytest.raises(BadMetadata):
        replication.unpack_mark(data)


@pytest.mark.parametrize("data", [b"", b'bookieId: ""', b'bookieId: "read only"'])
def test_vote_without_bookie_id_is_refused(data: bytes) -> None:
    with pytest.raises(BadMetadata):
        replication.unpack_vote(data)
