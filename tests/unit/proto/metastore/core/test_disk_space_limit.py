"""Which operations a metadata store accepts on a nearly full disk."""

import pytest

from rollbook.proto.errors import MetadataFull
from rollbook.proto.metastore.core.disk_space_limit import FULL_BYTES, ROOMY_BYTES, FreeSpace
from rollbook.proto.ports import Check, Create, CreateMode, Delete, Node, NodeStat, Op, Set
from tests.messages import raises_message

STAT = NodeStat(0, 0, 0, 0, 0, 0, 0)


def get(path: str) -> Node | None:
    return Node(b"x" * 1000, STAT) if path == "/a" else None


def test_full_state_changes_at_two_thresholds() -> None:
    """MS8."""
    room = FreeSpace()
    said = [room.on_free(free) for free in (ROOMY_BYTES, FULL_BYTES, FULL_BYTES - 1)]
    assert said == [False, False, True]
    said = [room.on_free(free) for free in (FULL_BYTES, ROOMY_BYTES - 1, ROOMY_BYTES)]
    assert said == [False, False, True]
    assert not room.is_full


@pytest.mark.parametrize(
    ("op", "is_taken"),
    [
        (Create("/b"), False),
        (Create("/b/c-", mode=CreateMode.PERSISTENT_SEQUENTIAL), False),
        (Create("/b", mode=CreateMode.EPHEMERAL), True),  # A bookie registers again.
        (Create("/b/ID-", mode=CreateMode.EPHEMERAL_SEQUENTIAL), True),
        (Set("/a", b"x" * 1256), True),  # A ledger is closed.
        (Set("/a", b"x" * 1257), False),
        (Set("/none", b"x" * 9999), True),  # Refused for another reason, later.
        (Delete("/a"), True),
        (Check("/a"), True),
    ],
    ids=repr,
)
def test_growing_operations_are_refused_only_on_a_full_disk(op: Op, is_taken: bool) -> None:
    """MS8."""
    room = FreeSpace()
    room.check([op], get)
    room.on_free(0)
    if is_taken:
        room.check([op], get)
    else:
        with raises_message(MetadataFull):
            room.check([Check("/a"), op], get)
