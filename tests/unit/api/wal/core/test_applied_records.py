"""Which records a replica has applied, and which record is next."""

from rollbook.api.wal.core.applied_records import Replica
from rollbook.logservice.ids import Offset, WriterEpoch
from rollbook.proto.errors import BadFrame
from tests.messages import raises_message


def at(applied: int, epoch: int) -> Replica:
    replica = Replica()
    replica.on_restored(Offset(applied), WriterEpoch(epoch))
    return replica


def block(replica: Replica, base: int, end: int, epoch: int) -> int:
    return replica.on_block(Offset(base), Offset(end), WriterEpoch(epoch))


def test_each_record_is_applied_once_and_in_order() -> None:
    """WK1"""
    replica = Replica()
    assert block(replica, 0, 3, 1) == 0
    for _ in range(3):
        replica.on_applied()
    assert replica.applied == 3
    with raises_message(BadFrame):
        block(replica, 4, 5, 1)
    with raises_message(BadFrame):
        block(replica, 1, 3, 1)


def test_a_snapshot_may_end_within_a_block() -> None:
    """WK1: records that the snapshot includes are not applied again."""
    assert block(at(5, 1), 3, 9, 1) == 2


def test_block_of_a_fenced_writer_is_refused() -> None:
    """WK2"""
    replica = at(5, 3)
    with raises_message(BadFrame):
        block(replica, 5, 6, 2)
    assert block(replica, 5, 6, 4) == 0
    assert replica.epoch == 4
