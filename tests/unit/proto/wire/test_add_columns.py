import itertools
import random

import pytest

from rollbook.proto.errors import EntryTooLarge
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire import v2_adds, v3, v3_adds
from rollbook.proto.wire.add_columns import ENTRY_BYTES_SLACK, AddPacker, Adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from rollbook.proto.wire.frames import FRAME_BYTES_MAX, pack_frame
from rollbook.proto.wire.messages import Add, BookieOperation, ReadReply
from rollbook.proto.wire.reply_decoder import ReplyDecoder
from rollbook.proto.wire.request_decoder import RequestDecoder
from rollbook.proto.wire.v3_adds import V3AddPacker
from rollbook.proto.wire.varint import pack_varint
from tests.support.entries import pack_entry
from tests.unit.proto.wire.streams import KEY, LEDGER, PASSWORD, packers


@pytest.mark.parametrize("seed", range(20))
def test_v3_adds_match_bytes_of_protobuf(seed: int) -> None:
    chance = random.Random(seed)
    flags = {
        "is_recovery": chance.random() < 0.5,
        "is_high_priority": chance.random() < 0.5,
        "is_sync_deferred": chance.random() < 0.5,
    }
    ledger_id = LedgerId(chance.getrandbits(chance.randrange(1, 64)))
    digest = LedgerDigest(DigestType.CRC32, PASSWORD, ledger_id)
    txn_ids = [chance.getrandbits(chance.randrange(1, 65)) for _ in range(50)]
    packer = V3AddPacker(KEY, digest, iter(txn_ids), **flags)
    for txn_id in txn_ids:
        entry_id = EntryId(chance.getrandbits(chance.randrange(1, 64)))
        payload = chance.randbytes(chance.choice((0, 50, 87, 88, 300, 16_340, 16_350, 70_000)))
        body = pack_entry(digest, entry_id, EntryId(3), 44, payload)
        add = Add(ledger_id, entry_id, KEY, body, flags["is_recovery"], flags["is_sync_deferred"])
        expected = v3.pack_request(txn_id, add, is_high_priority=flags["is_high_priority"])
        assert packer.pack(entry_id, EntryId(3), 44, payload) == expected


def test_writers_sharing_a_counter_use_unique_txn_ids() -> None:
    """All writers of a client share a counter, so transaction ids differ on each connection."""
    txn_ids = itertools.count(1)
    writers = [
        V3AddPacker(KEY, LedgerDigest(DigestType.DUMMY, b"", LedgerId(ledger_id)), txn_ids)
        for ledger_id in (1, 2)
    ]
    frames = [writer.pack(EntryId(0), EntryId(-1), 0, b"") for writer in writers * 3]
    heard = [v3.unpack_request(frame[4:]).origin for frame in frames]
    assert [origin.txn_id for origin in heard if isinstance(origin, v3.V3ReplyHeader)] == [
        *range(1, 7)
    ]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", range(4))
def test_flags_of_adds_survive_round_trip(version: int, kind: int) -> None:
    packer = packers(version)[kind]
    (adds,) = RequestDecoder().feed(packer.pack(EntryId(0), EntryId(-1), 0, b""))
    assert isinstance(adds, Adds)
    (group,) = adds.groups
    recovery, high = [(False, False), (True, False), (True, True), (False, True)][
        kind if version == 2 else kind // 2
    ]
    assert (group.is_recovery, group.is_high_priority) == (recovery, high)
    assert group.is_sync_deferred == (version == 3 and kind % 2 == 1)


def _packer(version: int, kind: DigestType, frame_bytes_max: int) -> AddPacker:
    digest = LedgerDigest(kind, PASSWORD, LEDGER)
    if version == 2:
        return v2_adds.V2AddPacker(KEY, digest, frame_bytes_max=frame_bytes_max)
    return V3AddPacker(KEY, digest, itertools.count(2**63), frame_bytes_max=frame_bytes_max)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", DigestType)
def test_largest_entry_fits_into_add_and_read_reply(version: int, kind: DigestType) -> None:
    limit = 100_000
    packer = _packer(version, kind, limit)
    payload = bytes(packer.payload_bytes_max)
    assert len(payload) == limit - ENTRY_BYTES_SLACK - 32 - kind.size
    (adds,) = RequestDecoder(limit).feed(packer.pack(EntryId(2**62), EntryId(0), 1, payload))
    assert isinstance(adds, Adds)
    body = adds.buffer[adds.groups[0].starts[0] : adds.groups[0].ends[0]]
    big = 2**63 - 1
    reply = ReadReply(None, LedgerId(big), EntryId(big), body, EntryId(big), big)
    assert (
        len(ReplyDecoder(limit).feed(v3.V3ReplyHeader(3, big, BookieOperation.READ).pack(reply)))
        == 1
    )
    with pytest.raises(EntryTooLarge):
        packer.pack(EntryId(0), EntryId(-1), 0, payload + b"x")


def test_default_payload_limit_follows_frame_limit() -> None:
    packer = v2_adds.V2AddPacker(KEY, LedgerDigest(DigestType.CRC32C, PASSWORD, LEDGER))
    assert packer.payload_bytes_max == FRAME_BYTES_MAX - ENTRY_BYTES_SLACK - 36


# --- Batches of adds ------------------------------------------------------------------------------

_SIZES = {"alike": [90] * 100, "empty": [0] * 40, "few": [90] * 5, "mixed": [90, 0, 300] * 30}


@pytest.mark.parametrize("sizes", _SIZES.values(), ids=_SIZES)
@pytest.mark.parametrize("kind", list(DigestType))
@pytest.mark.parametrize("version", [2, 3])
def test_adds_packed_together_equal_adds_packed_singly(
    version: int, kind: DigestType, sizes: list[int]
) -> None:
    """With ids whose varints keep their length and ids whose varints grow."""
    chance = random.Random(len(sizes))
    digest = LedgerDigest(kind, PASSWORD, LEDGER)
    for flags in ({}, {"is_high_priority": True}, {"is_recovery": True}):
        for first_txn, first_entry in ((1, 1), (100, 70_000), (70_000, 100), (16_350, 16_350)):
            one_by_one, together = (
                V3AddPacker(KEY, digest, itertools.count(first_txn), **flags)
                if version == 3
                else v2_adds.V2AddPacker(KEY, digest, **flags)
                for _ in range(2)
            )
            payloads = [chance.randbytes(size) for size in sizes]
            lengths = [*itertools.accumulate(sizes, initial=2**33)][1:]
            expected = [
                one_by_one.pack(EntryId(entry_id), EntryId(50), length, payload)
                for entry_id, length, payload in zip(
                    itertools.count(first_entry), lengths, payloads, strict=False
                )
            ]
            found = together.pack_all(EntryId(first_entry), EntryId(50), lengths, payloads)
            assert [_but_for_its_number(frame) for frame in found] == [
                _but_for_its_number(frame) for frame in expected
            ]


def _but_for_its_number(frame: bytes) -> tuple[object, ...]:
    """Without the transaction id, because ids may be skipped."""
    (adds,) = RequestDecoder().feed(frame)
    assert isinstance(adds, Adds)
    (group,) = adds.groups
    ids = group.ledger_id, *group.entry_ids, *group.lacs
    flags = group.is_recovery, group.is_high_priority, group.ledger_key
    return (*ids, *flags, adds.buffer[group.starts[0] : group.ends[0]])


def test_txn_ids_of_adds_packed_together_are_unique_and_ascend() -> None:
    txn_ids = itertools.count(60)
    packer = V3AddPacker(KEY, LedgerDigest(DigestType.DUMMY, b"", LEDGER), txn_ids)
    frames = [
        frame
        for first in range(0, 300, 50)
        for frame in packer.pack_all(EntryId(first), EntryId(-1), range(1, 51), [b"x"] * 50)
    ]
    heard = [v3.unpack_request(frame[4:]).origin for frame in frames]
    numbers = [origin.txn_id for origin in heard if isinstance(origin, v3.V3ReplyHeader)]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 300


@pytest.mark.parametrize("version", [2, 3])
def test_too_large_entries_in_a_batch_are_refused(version: int) -> None:
    packer = packers(version)[0]
    payload = bytes(packer.payload_bytes_max + 1)
    with pytest.raises(EntryTooLarge):
        packer.pack_all(EntryId(0), EntryId(-1), range(40), [payload] * 40)


@pytest.mark.parametrize("size", [1, 100, 20_000])
def test_unknown_fields_of_adds_are_not_cached(size: int) -> None:
    """They may be as long as a frame, and a hostile peer can send different ones each time."""
    body = pack_entry(
        LedgerDigest(DigestType.CRC32C, PASSWORD, LEDGER), EntryId(0), EntryId(-1), 7, b"payload"
    )
    add = b"\x08\x07\x10\x00\x1a\x14" + KEY + b"\x22" + pack_varint(len(body)) + body
    usual = _request_of(add)
    RequestDecoder().feed(usual)
    remembered = v3_adds._unpack_writer.cache_info().currsize
    for filler in range(10):
        unknown = b"\x9a\x06" + pack_varint(size) + bytes([filler]) * size  # Field 99.
        (adds,) = RequestDecoder().feed(_request_of(add + unknown))
        assert isinstance(adds, Adds)
        assert adds.frames == usual
    assert v3_adds._unpack_writer.cache_info().currsize == remembered


def _request_of(add: bytes) -> bytes:
    header = b"\x0a\x06\x08\x03\x10\x02\x18\x01"
    return pack_frame(header + b"\xaa\x06" + pack_varint(len(add)) + add)
