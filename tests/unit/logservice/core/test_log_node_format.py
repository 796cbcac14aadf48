from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.logservice.core.ledger_list import EVENTS_MAX, LedgerList, LogEvent
from rollbook.logservice.core.log_node_format import pack_log_node, unpack_log_node
from rollbook.logservice.ids import Offset, OwnerEpoch, SegmentId, ServerId, ServerInfo
from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.logservice.schema import log_node_pb2 as schema
from rollbook.proto.errors import BadMetadata, InvalidRequest, UnsupportedVersion
from rollbook.proto.ids import LedgerId
from rollbook.proto.quorum import Quorum
from tests.unit.logservice.lists import ANNA, EMPTY, closed, rolled

TOKEN = b"t" * 16

CONFIGS = st.builds(
    LogConfig,
    quorum=st.sampled_from([Quorum(3, 3, 2), Quorum(5, 3, 2), Quorum(1, 1, 1)]),
    roll_bytes=st.integers(1 << 16, 1 << 40),
    retention_age_s=st.none() | st.integers(1, 10**6),
    retention_bytes=st.none() | st.integers(0, 1 << 50),
    writer_mode=st.sampled_from(WriterMode),
    labels=st.dictionaries(st.sampled_from(["a", "ä", "team"]), st.just("x")).map(
        lambda labels: tuple(labels.items())
    ),
    description=st.text(max_size=20),
)
STEPS = st.sampled_from(["own", "roll", "close", "discard", "head", "event", "release", "collect"])


@st.composite
def lists(draw: st.DrawFn) -> LedgerList:
    """Lists after random changes."""
    listed = replace(EMPTY, config=draw(CONFIGS))
    ledger_id, offset, at_us = 0, 0, 0
    for step in draw(st.lists(STEPS, max_size=25)):
        ledger_id += draw(st.integers(1, 2**31))
        at_us += draw(st.integers(0, 2**40))
        unclosed = listed.unclosed
        if step == "own":
            server = ServerId(f"s{ledger_id}")
            listed = listed.with_owner(ServerInfo(server, f"{draw(st.text(max_size=5))}:1"))
        elif step == "release":
            listed = listed.with_released()
        elif step == "roll" and len(unclosed) < 2:
            listed = listed.with_successor(
                LedgerId(ledger_id), "size", at_us, degraded_to=draw(st.integers(0, 5))
            )
        elif step == "close" and unclosed:
            offset += draw(st.integers(0, 2**40))
            listed = closed(listed, unclosed[0].segment_id, offset, at_us)
        elif step == "discard" and len(unclosed) == 1 and len(listed.segments) > 1:
            listed = listed.with_discarded(listed.segments[-1].segment_id)
        elif step == "head":
            listed = listed.with_head(Offset(draw(st.integers(0, offset))), Offset(offset))
        elif step == "event":
            listed = listed.with_event(
                LogEvent(
                    "log_opened", at_us, OwnerEpoch(3), ServerId("anna"), draw(st.text(max_size=9))
                )
            )
        elif step == "collect":
            listed = listed.without_discarded(listed.discarded[:1])
    return listed


@given(lists(), st.binary(min_size=16, max_size=16))
def test_list_survives_a_round_trip(listed: LedgerList, token: bytes) -> None:
    """Random changes break no rule of the list, either."""
    assert unpack_log_node(pack_log_node(listed, token)) == (listed, token)


def test_sealed_and_deleted_lists_survive_a_round_trip() -> None:
    sealed = closed(rolled(10), 1, 20).with_sealed(Offset(20))
    for listed in (sealed, sealed.with_deleted(7), sealed.with_deleted(7).with_ledgers_condemned()):
        assert unpack_log_node(pack_log_node(listed, TOKEN)) == (listed, TOKEN)


def test_only_lists_that_old_releases_would_damage_have_version_2() -> None:
    plain = schema.LogNode.FromString(pack_log_node(rolled(10), TOKEN))
    full = replace(rolled(10), config=LogConfig(degraded_segments=False))
    packed = pack_log_node(full, TOKEN)
    assert (plain.format_version, schema.LogNode.FromString(packed).format_version) == (1, 2)
    assert unpack_log_node(packed) == (full, TOKEN)


def test_a_segment_takes_64_bytes_at_most() -> None:
    """Measured on a log that has grown for years in a large cluster."""
    listed = replace(EMPTY, owner_epoch=OwnerEpoch(100_000), owner=ANNA)
    at_us, offset = 1_900_000_000_000_000, 2**50
    listed = replace(listed, next_segment_id=SegmentId(10**6))
    sizes = []
    for index in range(20):
        sizes.append(len(pack_log_node(listed, TOKEN)))
        at_us += 3_600_000_000
        offset += 2**35
        listed = listed.with_successor(LedgerId(2**40 + 7 * index), "requested", at_us)
        listed = listed.with_closed(
            listed.segments[-1].segment_id,
            next_offset=Offset(offset),
            last_timestamp_us=at_us + 3_599_000_000,
            bytes=2**38,
        )
    assert (sizes[-1] - sizes[1]) / 18 <= 64


def test_list_too_large_for_a_node_is_refused_before_sending() -> None:
    segments = rolled(*range(1000, 1001)).segments
    many = tuple(
        replace(
            segments[0],
            segment_id=SegmentId(index),
            ledger_id=LedgerId(index),
            base_offset=Offset(index * 10),
            next_offset=Offset(index * 10 + 10),
        )
        for index in range(40_000)
    )
    listed = replace(EMPTY, segments=many, next_segment_id=SegmentId(40_000))
    with pytest.raises(InvalidRequest):
        pack_log_node(listed, TOKEN)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises((BadMetadata, UnsupportedVersion)):
        unpack_log_node(data)


@given(lists(), st.data())
def test_damaged_bytes_are_read_or_refused(listed: LedgerList, data: st.DataObject) -> None:
    packed = bytearray(pack_log_node(listed, TOKEN))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        unpack_log_node(bytes(packed))
    except (BadMetadata, UnsupportedVersion):
        pass


def _message() -> schema.LogNode:
    return schema.LogNode.FromString(pack_log_node(rolled(10, 20, 30), TOKEN))


def test_stored_list_that_breaks_a_rule_is_rejected() -> None:
    lies = [_message() for _ in range(9)]
    lies[0].segments[0].is_closed = False
    lies[1].segments[1].ledger_id = lies[1].segments[0].ledger_id
    lies[2].segments[1].records = -11
    lies[3].head = 10**6 * -1
    lies[4].next_segment_id = 1
    lies[5].uid = b"short"
    lies[6].config.ack = 9
    lies[7].base_offset = 2**63 - 5
    lies[8].state = schema.SEALED
    for lie in lies:
        with pytest.raises(BadMetadata):
            unpack_log_node(lie.SerializeToString())


def test_list_of_a_newer_format_is_rejected() -> None:
    newer = [_message(), _message()]
    newer[0].format_version = 3
    newer[1].state = 9  # type: ignore[assignment]  # A state of a future release.
    for message in newer:
        with pytest.raises(UnsupportedVersion):
            unpack_log_node(message.SerializeToString())
    unversioned = _message()
    unversioned.ClearField("format_version")
    with pytest.raises(BadMetadata):
        unpack_log_node(unversioned.SerializeToString())


def test_only_the_last_events_are_kept() -> None:
    listed = EMPTY
    for number in range(EVENTS_MAX + 10):
        listed = listed.with_event(LogEvent("log_opened", number, reason="x" * 10_000))
    assert [event.at_us for event in listed.events] == list(range(10, EVENTS_MAX + 10))
    assert len(pack_log_node(listed, TOKEN)) < 20_000
