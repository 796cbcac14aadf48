"""The record of a bookie in our own tree."""

import json

import pytest

from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.proto.formats.bookie_incarnation import (
    BookieRecord,
    pack_bookie_record,
    unpack_bookie_record,
)

RECORD = BookieRecord("4e" * 16, 17, "9b" * 8)
FIELDS = json.loads(pack_bookie_record(RECORD))


def test_record_survives_round_trip() -> None:
    assert unpack_bookie_record(pack_bookie_record(RECORD)) == RECORD
    assert FIELDS == {
        "incarnation": "4e" * 16,
        "start": 17,
        "starter": "9b" * 8,
        "version": 1,
    }


def test_old_record_without_starts_has_start_0() -> None:
    old = {key: FIELDS[key] for key in ("incarnation", "version")}
    assert unpack_bookie_record(json.dumps(old).encode()) == BookieRecord("4e" * 16)


@pytest.mark.parametrize(
    "change",
    [
        *({"incarnation": value} for value in (None, 1, "", "4E" * 16, "4e" * 17)),
        *({"start": value} for value in (None, True, -1, 1.0, "1", 10**12 + 1)),
        *({"starter": value} for value in (None, 7, "x", "9b" * 17)),
    ],
)
def test_record_with_damaged_field_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadMetadata):
        unpack_bookie_record(json.dumps(FIELDS | change).encode())


def test_record_must_be_one_complete_object() -> None:
    for data in (b"", b"[]", b"7", b"{}", b"{", pack_bookie_record(RECORD)[:-1]):
        with pytest.raises(BadMetadata):
            unpack_bookie_record(data)


def test_record_of_later_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersion):
        unpack_bookie_record(json.dumps(FIELDS | {"version": 2}).encode())
