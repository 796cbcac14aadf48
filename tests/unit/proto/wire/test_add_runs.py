"""W2: runs of adds of one shape, and their responses, are decoded like single adds."""

import random
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import pytest

from rollbook.proto.errors import LedgerFenced
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire import frame_columns, v2_adds, v3, v3_adds
from rollbook.proto.wire.add_columns import Adds
from rollbook.proto.wire.digest import ENTRY_HEADER_BYTES
from rollbook.proto.wire.messages import AddReply, BookieOperation
from rollbook.proto.wire.request_decoder import RequestDecoder
from tests.unit.proto.wire.streams import HeardAdd, flatten, packers

T = TypeVar("T")

ROWS = 72
CRC32C_BYTES = 4
# In the middle of a run. An error there must not be accepted, and must affect nothing else.
AT = 36
FIRST_IDS = [0, 100, 16_350, 2**21 - 40, 2**62]  # Varints grow within all runs but the last.


def _stream(
    first: int, first_txn: int = 1, kind: int = 0, payload: bytes = b"payload", version: int = 3
) -> list[bytes]:
    packer = packers(version, LedgerId(300), first_txn)[kind]
    return [
        packer.pack(EntryId(entry_id), EntryId(entry_id // 3), entry_id, payload)
        for entry_id in range(first, first + ROWS)
    ]


def _hear(frames: list[bytes]) -> tuple[list[object], list[bytes]]:
    """Returns the requests and their replies, which are packed by group."""
    heard = RequestDecoder().feed(b"".join(frames))
    groups = [group for item in heard if isinstance(item, Adds) for group in item.groups]
    replies = b"".join(group.pack_replies(LedgerFenced) for group in groups)
    return list(flatten(heard)), sorted(_split(replies))


def _hear_each(frames: list[bytes]) -> tuple[list[object], list[bytes]]:
    found = [_hear([frame]) for frame in frames]
    heard = [each for one, _ in found for each in one]
    return heard, sorted(reply for _, replies in found for reply in replies)


@pytest.mark.parametrize("first", FIRST_IDS)
@pytest.mark.parametrize("first_txn", [1, 100, 16_370, 2**63 - 30, 2**64 - ROWS])
def test_run_is_decoded_and_answered_like_single_adds(first: int, first_txn: int) -> None:
    for kind in range(8):
        frames = _stream(first, first_txn, kind)
        assert _hear(frames) == _hear_each(frames)


@pytest.mark.parametrize("first", [*FIRST_IDS, 2**16 - 40, 2**63 - ROWS])
def test_v2_run_is_decoded_and_answered_like_single_adds(first: int) -> None:
    for kind in range(4):
        frames = _stream(first, kind=kind, version=2)
        assert _hear(frames) == _hear_each(frames)


@pytest.mark.parametrize("version", [2, 3])
def test_whole_run_is_decoded_into_ranges(version: int) -> None:
    (adds,) = RequestDecoder().feed(b"".join(_stream(1_000, version=version)))
    assert isinstance(adds, Adds)
    (group,) = adds.groups
    assert group.entry_ids == range(1_000, 1_000 + ROWS)
    assert isinstance(group.starts, range)


# In version 3 with fields after the entry.
@pytest.mark.parametrize(("version", "kind"), [(2, 1), (3, 3)])
@pytest.mark.parametrize("wrong_by", [0x01, 0x80])
def test_run_with_one_wrong_byte_is_read_as_single_adds(
    wrong_by: int, version: int, kind: int
) -> None:
    frames = _stream(16_350, 16_370, kind, version=version)
    sound = frames[AT]
    for place in range(4, len(sound)):
        frames[AT] = sound[:place] + bytes((sound[place] ^ wrong_by,)) + sound[place + 1 :]
        _assert_heard_as_each(frames)


def test_run_ends_at_the_last_entry_id() -> None:
    first = 2**63 - ROWS
    packer = packers(2, LedgerId(300))[0]
    behind = packer.pack(EntryId(-(2**63)), EntryId(0), 2**63 - 1, b"payload")
    _assert_heard_as_each([*_stream(first, version=2), behind])


def test_longer_varint_in_a_run_is_decoded_like_a_single_add() -> None:
    """Read as one byte, the varint would agree with the entry."""
    frames = _stream(3)[:4]
    varint_at = frames[3].index(b"\x08\xac\x02\x10") + 4
    lying = bytearray(frames[3])
    assert lying[varint_at] == lying[varint_at + 40] == 6
    lying[varint_at] = lying[varint_at + 40] = 0x86
    _assert_heard_as_each([*frames[:3], bytes(lying)])


def _assert_heard_as_each(frames: list[bytes]) -> None:
    try:
        expected = _hear_each(frames)
    except Exception as error:  # noqa: BLE001  The run must raise the same error.
        with pytest.raises(type(error)):
            _hear(frames)
    else:
        assert _hear(frames) == expected


def test_varint_must_match_its_entry() -> None:
    """The varint has the right length, but its value differs by a multiple of what the length can
    hold.
    """
    frames = _stream(2**14 - AT, 1)
    short = packers(3, LedgerId(300), AT + 1)[0].pack(EntryId(0), EntryId(0), 0, b"payload")
    assert _hear(frames) == _hear_each(frames)
    varint_at = short.index(b"\x08\xac\x02\x10") + 4
    lying = frames[AT - 1][:varint_at] + b"\x80\x00" + frames[AT - 1][varint_at + 2 :]
    frames[AT] = lying[:-47] + frames[AT][-47:]  # Entry 16,384 with a varint of 0 in two bytes.
    heard, _ = _hear(frames)
    assert heard == _hear_each(frames)[0]
    assert sum(isinstance(each, HeardAdd) for each in heard) == ROWS - 1


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_alternating_runs_of_writers_are_decoded_like_single_adds(seed: int, version: int) -> None:
    chance = random.Random(seed)
    txn_ids = chance.randrange(1, 20_000)
    ledgers = [packers(version, LedgerId(ledger_id), txn_ids)[0] for ledger_id in (1, 300, 2**40)]
    next_ids = [chance.choice(FIRST_IDS) for _ in ledgers]
    frames: list[bytes] = []
    for _ in range(6):
        index = chance.randrange(len(ledgers))
        payload = bytes(chance.choice((0, 40, 300)))
        for _ in range(chance.choice((1, 3, 31, 32, 70))):
            next_ids[index] += 1 + (chance.random() < 0.02)
            entry_id = EntryId(next_ids[index])
            frames.append(ledgers[index].pack(entry_id, EntryId(entry_id - 1), 9, payload))
    assert _hear(frames) == _hear_each(frames)


def _split(replies: bytes) -> list[bytes]:
    found: list[bytes] = []
    while replies:
        end = 4 + int.from_bytes(replies[:4], "big")
        found.append(replies[:end])
        replies = replies[end:]
    return found


# --- Cost of hostile frames -----------------------------------------------------------------------


class Compared:
    """Counts the rows in which columns were compared."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        self._monkeypatch = monkeypatch

    def counts(self, module: ModuleType, count: Callable[..., T]) -> None:
        def count_on(buffer: bytes, position: int, size: int, rows: int, *more: object) -> T:
            self.rows += rows
            return count(buffer, position, size, rows, *more)

        self._monkeypatch.setattr(module, count.__name__, count_on)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("turns", [1, 2, 33, 129])
@pytest.mark.parametrize("is_refused", [True, False])
def test_cost_of_decoding_adds_is_linear(
    version: int, turns: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adds are equal except for what is compared last, so each one seems to start a long run."""
    compared = Compared(monkeypatch)
    for module in (v2_adds, v3_adds):
        for count in (frame_columns.count_same, frame_columns.count_int64s_on):
            compared.counts(module, count)
    packer = packers(version, LedgerId(300), 20_000)[0]
    other = (-1 if is_refused else 301).to_bytes(8, signed=True)
    frames: list[bytes] = []
    for index in range(2_000):
        frame = packer.pack(EntryId(20_000 + index), EntryId(0), 9, b"")
        if index // turns % 2:
            ledger_at = len(frame) - ENTRY_HEADER_BYTES - CRC32C_BYTES
            frame = frame[:ledger_at] + other + frame[ledger_at + 8 :]
        frames.append(frame)
    RequestDecoder().feed(b"".join(frames))
    assert compared.rows <= 100 * len(frames)


@pytest.mark.parametrize("turns", [1, 2, 9, 33, 129])
def test_cost_of_decoding_replies_is_linear(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry ids increase while ledgers alternate."""
    compared = Compared(monkeypatch)
    for count in (frame_columns.count_varints_on, frame_columns.varint_columns):
        compared.counts(v3_adds, count)
    ledgers = LedgerId(300), LedgerId(301)
    origin = v3.V3ReplyHeader(3, 9, BookieOperation.ADD)
    replies = [
        origin.pack(AddReply(None, ledgers[index // turns % 2], EntryId(20_000 + index)))
        for index in range(2_000)
    ]
    heard, end = v3_adds.take_add_replies(b"".join(replies), 0)
    assert end == sum(map(len, replies))
    assert [each.ledger_id for each in heard] == [*ledgers]
    assert sorted(entry_id for each in heard for entry_id in each.entry_ids) == [
        *range(20_000, 22_000)
    ]
    assert compared.rows <= 100 * len(replies)
