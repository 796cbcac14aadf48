import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.logservice.ids import (
    OFFSET_MAX,
    TIMESTAMP_US_MAX,
    CursorName,
    LogName,
    Offset,
    ProducerRef,
    parse_cursor_name,
    parse_offset,
)
from rollbook.logservice.position_syntax import (
    Ago,
    AtCursor,
    AtOffset,
    AtTime,
    BeforeTail,
    Earliest,
    Latest,
    Position,
    parse_position,
)
from rollbook.proto.errors import InvalidRequest

NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,254}", fullmatch=True)

POSITIONS: st.SearchStrategy[Position] = st.one_of(
    st.just(Earliest()),
    st.just(Latest()),
    st.integers(0, OFFSET_MAX).map(lambda n: AtOffset(Offset(n))),
    st.integers(1, OFFSET_MAX).map(BeforeTail),
    st.integers(0, TIMESTAMP_US_MAX).map(AtTime),
    st.integers(0, 10**14).map(lambda ms: Ago(ms * 1000)),
    NAMES.map(lambda name: AtCursor(CursorName(name))),
)


@given(POSITIONS)
def test_position_survives_a_round_trip(position: Position) -> None:
    assert parse_position(str(position)) == position


@given(NAMES, NAMES)
def test_log_name_survives_a_round_trip(namespace: str, name: str) -> None:
    assert LogName.parse(str(LogName(namespace, name))) == LogName(namespace, name)


def test_name_without_namespace_is_in_the_default_one() -> None:
    assert LogName.parse("orders") == LogName("default", "orders")


def test_positions_are_parsed_from_text() -> None:
    assert parse_position("0") == AtOffset(Offset(0))
    assert parse_position("-10") == BeforeTail(10)
    assert parse_position("ago:1h30m") == Ago(5_400_000_000)
    assert parse_position("ago:250ms") == Ago(250_000)
    half_past_ten = AtTime(1_763_634_600_000_000)
    assert parse_position("ts:2025-11-20T10:30:00Z") == half_past_ten
    assert parse_position("ts:2025-11-20T11:30:00+01:00") == half_past_ten
    assert parse_position("ts:1815-12-10T00:00:00Z") == AtTime(0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-",
        "-0",
        "+1",
        "1.5",
        "1e3",
        "0x10",
        "\uff11",
        "1 ",
        "first",
        "EARLIEST",
        "9223372036854775808",
        "-9223372036854775808",
        "9" * 400,
        "ts",
        "ts:",
        "ts:yesterday",
        "ts:2025-11-20T10:00:00",
        "ts:0001-01-01T00:00:00+25:00",
        "ago:",
        "ago:15",
        "ago:m",
        "ago:15m ",
        "ago:-1m",
        "ago:1y",
        "ago:999999999999999w",
        "ago:" + "1s" * 200,
        "cursor:",
        "cursor:A",
        "cursor:a/b",
        "cursor:" + "a" * 256,
        "txid:7",
        "mark:x",
    ],
)
def test_invalid_position_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_position(text)


@pytest.mark.parametrize(
    "text", ["", "/", "a/", "/a", "a/b/c", ".a", "a/..", "-a", "A", "a b", "ä", "a\n", "a" * 256]
)
def test_invalid_log_name_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest):
        LogName.parse(text)


def test_out_of_range_offsets_and_producer_refs_are_rejected() -> None:
    for offset in (-1, 2**63):
        with pytest.raises(InvalidRequest):
            parse_offset(offset)
    with pytest.raises(InvalidRequest):
        parse_cursor_name("")
    for refused in (
        (b"", 0, 0),
        (b"x" * 65, 0, 0),
        (b"x", 2**32, 0),
        (b"x", 0, 2**63),
        (b"x", 0, -1),
    ):
        with pytest.raises(InvalidRequest):
            ProducerRef(*refused)
    ProducerRef(b"x" * 64, 2**32 - 1, 2**63 - 1)
