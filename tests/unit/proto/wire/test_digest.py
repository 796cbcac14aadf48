import pytest

from rollbook.proto.errors import DigestMismatch
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire.digest import DigestType, Entry, LedgerDigest
from tests.messages import raises_message
from tests.support.entries import pack_entry

E7, E6 = EntryId(7), EntryId(6)
LEDGER = LedgerId(2**40 + 3)
PAYLOADS = (b"", b"x", b"payload", bytes(range(256)) * 4, bytes(100_000))


def _digest(kind: DigestType, ledger_id: LedgerId = LEDGER) -> LedgerDigest:
    return LedgerDigest(kind, b"password", ledger_id)


@pytest.mark.parametrize("kind", DigestType)
@pytest.mark.parametrize("payload", PAYLOADS, ids=len)
def test_entries_survive_round_trip_in_any_buffer(kind: DigestType, payload: bytes) -> None:
    digest = _digest(kind)
    packed = pack_entry(digest, E7, E6, 1000, payload)
    entry = Entry(LEDGER, E7, E6, 1000, payload)
    assert digest.unpack_entry(packed, E7) == entry
    assert digest.unpack_entry(bytearray(packed), E7) == entry
    assert digest.unpack_entry(memoryview(b"abc" + packed + b"d")[3:-1], None) == entry


@pytest.mark.parametrize("kind", [kind for kind in DigestType if kind is not DigestType.DUMMY])
def test_every_flipped_bit_of_an_entry_is_detected(kind: DigestType) -> None:
    """W4."""
    digest = _digest(kind)
    packed = pack_entry(digest, E7, E6, 1000, b"payload")
    for bit in range(8 * len(packed)):
        flipped = bytearray(packed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DigestMismatch):
            digest.unpack_entry(bytes(flipped), None)


@pytest.mark.parametrize("kind", DigestType)
def test_every_truncated_entry_is_detected(kind: DigestType) -> None:
    digest = _digest(kind)
    packed = pack_entry(digest, E7, E6, 1000, b"")
    for size in range(len(packed)):
        with pytest.raises(DigestMismatch):
            digest.unpack_entry(packed[:size], None)


@pytest.mark.parametrize("kind", DigestType)
def test_entry_other_than_requested_is_refused(kind: DigestType) -> None:
    packed = pack_entry(_digest(kind), E7, E6, 1000, b"payload")
    with raises_message(DigestMismatch):
        _digest(kind).unpack_entry(packed, E6)
    with raises_message(DigestMismatch):
        _digest(kind, LedgerId(1)).unpack_entry(packed, E7)
    assert _digest(kind).unpack_entry(packed, None).entry_id == E7


@pytest.mark.parametrize("kind", DigestType)
def test_lac_packets_survive_round_trip_and_are_checked(kind: DigestType) -> None:
    digest = _digest(kind)
    for lac in (NO_ENTRY, E7, EntryId(2**63 - 1)):
        assert digest.unpack_lac(digest.pack_lac(lac)) == lac
    packet = digest.pack_lac(E7)
    for wrong in (b"", packet[:-1], packet + b"\0", _digest(kind, LedgerId(1)).pack_lac(E7)):
        with pytest.raises(DigestMismatch):
            digest.unpack_lac(wrong)


@pytest.mark.parametrize("kind", [kind for kind in DigestType if kind is not DigestType.DUMMY])
def test_every_flipped_bit_of_a_lac_packet_is_detected(kind: DigestType) -> None:
    digest = _digest(kind)
    packet = digest.pack_lac(E7)
    for bit in range(8 * len(packet)):
        flipped = bytearray(packet)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DigestMismatch):
            digest.unpack_lac(bytes(flipped))


def test_only_hmac_depends_on_the_password() -> None:
    for kind in DigestType:
        packed = pack_entry(_digest(kind), E7, E6, 1000, b"payload")
        other = LedgerDigest(kind, b"another", LEDGER)
        if kind is DigestType.HMAC:
            with pytest.raises(DigestMismatch):
                other.unpack_entry(packed, E7)
        else:
            assert other.unpack_entry(packed, E7).payload == b"payload"
