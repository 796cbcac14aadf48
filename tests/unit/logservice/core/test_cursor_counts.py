"""CB1: cursors are bounded per log, and per principal in a log."""

import pytest

from rollbook.logservice.core import cursors
from rollbook.logservice.core.cursors import CursorCounts, pack_counts, unpack_counts
from rollbook.proto.errors import BadMetadata, InvalidRequest
from tests.messages import raises_message


def test_cursors_are_bounded_per_principal_and_per_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "CURSORS_MAX", 5)
    monkeypatch.setattr(cursors, "CURSORS_OF_PRINCIPAL_MAX", 2)
    counts = CursorCounts().with_one_more("a").with_one_more("a")
    with raises_message(InvalidRequest):
        counts.with_one_more("a")
    counts = (
        counts.with_one_more("").with_one_more("").with_one_more("")
    )  # Anonymous cursors have no bound of their own.
    with raises_message(InvalidRequest):
        counts.with_one_more("b")
    assert counts.with_one_less("a").with_one_more("b").total == 5
    assert CursorCounts().with_one_less("a") == CursorCounts()


def test_cursors_of_earlier_releases_are_counted_as_anonymous() -> None:
    counts = CursorCounts().with_one_more("a").with_one_more("")
    assert counts.recounted(5).by_principal == (("", 4), ("a", 1))
    assert counts.recounted(1).by_principal == (("a", 1),)
    assert counts.recounted(0).total == 1  # Until cursors of the principal are deleted.


def test_counts_survive_a_round_trip() -> None:
    counts = CursorCounts().with_one_more("a").with_one_more("b").with_one_more("")
    assert unpack_counts(pack_counts(counts, b"t" * 8)) == counts
    with pytest.raises(BadMetadata):
        unpack_counts(b"nonsense")
