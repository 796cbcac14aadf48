"""Lifecycle of a bookie: exact bytes and invalid data."""

import json

import pytest

from rollbook.proto.errors import BadMetadata, UnsupportedVersion
from rollbook.proto.formats.lifecycle import (
    Lifecycle,
    LifecycleState,
    pack_lifecycle,
    unpack_lifecycle,
)

DRAINING = Lifecycle(LifecycleState.DRAINING, "4e0c", 1700, 12, True, "said so")
PACKED = (
    b'{"is_forced": true, "ledgers": 12, "reason": "said so", "since_ms": 1700, '
    b'"state": "draining", "token": "4e0c", "version": 1}'
)


def test_lifecycle_survives_round_trip() -> None:
    """BL2."""
    assert pack_lifecycle(DRAINING) == PACKED
    assert unpack_lifecycle(PACKED) == DRAINING
    for state in LifecycleState:
        assert unpack_lifecycle(pack_lifecycle(Lifecycle(state))) == Lifecycle(state)


def test_only_active_bookie_accepts_entries() -> None:
    """BL3, BL4, BL8, BL12, BL15: Active is the default."""
    assert [state for state in LifecycleState if Lifecycle(state).takes_entries] == [
        LifecycleState.ACTIVE
    ]
    assert Lifecycle().takes_entries


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "gone"),
        ("state", 1),
        ("state", []),
        ("token", "X"),
        ("token", 4),
        ("since_ms", -1),
        ("since_ms", 1.5),
        ("ledgers", True),
        ("ledgers", 2**63),
        ("is_forced", 1),
        ("reason", None),
    ],
)
def test_lifecycle_with_damaged_field_is_refused(field: str, value: object) -> None:
    fields = json.loads(PACKED) | {field: value}
    with pytest.raises(BadMetadata):
        unpack_lifecycle(json.dumps(fields).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"1", b"\xff", b"[" * 100_000])
def test_invalid_lifecycle_is_refused(data: bytes) -> None:
    with pytest.raises(BadMetadata):
        unpack_lifecycle(data)


def test_lifecycle_of_another_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersion):
        unpack_lifecycle(PACKED.replace(b'"version": 1', b'"version": 2'))
