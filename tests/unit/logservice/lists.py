"""Ledger lists for tests, built as owners build them."""

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.ids import LogName, LogUid, Offset, SegmentId, ServerId, ServerInfo
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.ids import LedgerId

NAME = LogName("default", "orders")
UID = LogUid(b"0123456789abcdef")
ANNA = ServerInfo(ServerId("anna~1"), "anna:7400")
BERT = ServerInfo(ServerId("bert~1"), "bert:7400")
EMPTY = LedgerList(UID, LogConfig(), created_us=1)


def closed(listed: LedgerList, segment_id: int, next_offset: int, at_us: int = 0) -> LedgerList:
    return listed.with_closed(
        SegmentId(segment_id),
        next_offset=Offset(next_offset),
        last_timestamp_us=at_us,
        bytes=100 * next_offset,
    )


def rolled(*ends: int) -> LedgerList:
    """Closed segments with these ends, on ledgers 100, 101, …, then an open one."""
    listed = EMPTY.with_owner(ANNA)
    for index, end in enumerate(ends):
        listed = listed.with_successor(LedgerId(100 + index), "size", 1000 * index)
        listed = closed(listed, index, end, 1000 * index + 999)
    return listed.with_successor(LedgerId(100 + len(ends)), "size", 1000 * len(ends))
