"""Ledger metadata: exact bytes of its three versions, random round trips, and invalid data."""

import random
from dataclasses import replace

import pytest

from rollbook.proto.errors import BadMetadata
from rollbook.proto.formats.ledger_metadata import pack_ledger_metadata, unpack_ledger_metadata
from rollbook.proto.formats.node_byte_checks import METADATA_BYTES_MAX
from rollbook.proto.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from rollbook.proto.metadata import Fragment, LedgerMetadata, LedgerState
from rollbook.proto.quorum import Quorum
from rollbook.proto.wire.digest import DigestType
from tests.golden import metadata as golden

LEDGER = LedgerId(7)
B1, B2, B3, B4 = (BookieId(f"127.0.0.1:{port}") for port in (3181, 3182, 3183, 3184))
FIRST, SECOND = Fragment(EntryId(0), (B1, B2, B3)), Fragment(EntryId(5), (B4, B2, B3))

OPEN_V3 = LedgerMetadata(
    LEDGER,
    Quorum(3, 2, 2),
    (FIRST,),
    digest_type=DigestType.CRC32C,
    password=b"testPasswd",
    custom=(("application", b"pydl"),),
    creation_token=1234567890123456789,
)
CLOSED_V3 = LedgerMetadata(
    LEDGER,
    Quorum(3, 2, 2),
    (FIRST, SECOND),
    LedgerState.CLOSED,
    last_entry=EntryId(9),
    length=1000,
    digest_type=DigestType.CRC32C,
    password=b"",
    created_ms=1_700_000_000_000,
    creation_token=0,
)
OPEN_V2 = replace(OPEN_V3, format_version=2, creation_token=None)
OPEN_V1 = LedgerMetadata(LEDGER, Quorum(3, 2, 2), (FIRST,), format_version=1)
VECTORS = [
    (OPEN_V3, golden.OPEN_V3),
    (replace(OPEN_V3.with_recovery_started(), creation_token=0), golden.IN_RECOVERY_V3),
    (CLOSED_V3, golden.CLOSED_V3),
    (OPEN_V2, golden.OPEN_V2),
    (OPEN_V1, golden.OPEN_V1),
    (OPEN_V1.with_recovery_started(), golden.IN_RECOVERY_V1),
    (
        replace(OPEN_V1, fragments=(FIRST, SECOND)).with_close(EntryId(9), 1000),
        golden.CLOSED_V1,
    ),
]


@pytest.mark.parametrize(("metadata", "data"), VECTORS)
def test_metadata_matches_bytes_of_java(metadata: LedgerMetadata, data: bytes) -> None:
    assert pack_ledger_metadata(metadata) == data
    assert unpack_ledger_metadata(LEDGER, data) == metadata


def test_update_keeps_format_version() -> None:
    for data in (golden.OPEN_V1, golden.OPEN_V2, golden.OPEN_V3):
        updated = unpack_ledger_metadata(LEDGER, data).with_recovery_started()
        header = data.partition(b"\n")[0]
        assert pack_ledger_metadata(updated).startswith(header)


def test_version_2_drops_creation_token() -> None:
    assert pack_ledger_metadata(replace(OPEN_V2, creation_token=5)) == golden.OPEN_V2


def test_bytes_after_version_3_are_ignored() -> None:
    assert unpack_ledger_metadata(LEDGER, golden.OPEN_V3 + b"anything") == OPEN_V3


def test_missing_ack_quorum_defaults_to_write_quorum() -> None:
    data = golden.OPEN_V2.replace(b"ackQuorumSize: 2\n", b"")
    assert unpack_ledger_metadata(LEDGER, data) == OPEN_V2


def test_password_without_digest_type_means_crc32() -> None:
    data = golden.OPEN_V2.replace(b"digestType: CRC32C\n", b"")
    assert unpack_ledger_metadata(LEDGER, data).digest_type is DigestType.CRC32


def test_metadata_without_password_and_digest_is_kept() -> None:
    data = golden.OPEN_V2.replace(b"digestType: CRC32C\n", b"")
    data = data.replace(b'password: "testPasswd"\n', b"")
    metadata = unpack_ledger_metadata(LEDGER, data)
    assert (metadata.digest_type, metadata.password) == (None, None)
    assert pack_ledger_metadata(metadata) == data


def test_last_entry_and_length_of_open_ledger_are_ignored() -> None:
    data = golden.OPEN_V2.replace(b"lastEntryId: -1", b"lastEntryId: 77")
    assert unpack_ledger_metadata(LEDGER, data.replace(b"length: 0", b"length: 9")) == OPEN_V2


def test_last_of_two_values_for_a_key_wins() -> None:
    twice = golden.OPEN_V2 + b'customMetadata { key: "application" value: "other" }'
    assert unpack_ledger_metadata(LEDGER, twice).custom == (("application", b"other"),)


def test_the_password_is_not_shown() -> None:
    assert "testPasswd" not in repr(OPEN_V3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        golden.OPEN_V3[:-1],
        golden.OPEN_V3[:31],
        b"BookieMetadataFormatVersion\t3\n",
        b"BookieMetadataFormatVersion\t3\n\xff\xff\xff\xff\xff\xff",
        b"BookieMetadataFormatVersion\t4\n",
        b"BookieMetadataFormatVersion\t00000000003\n",
        b"BookieMetadataFormatVersion 3\n",
        golden.OPEN_V3.replace(b"\x28\x01", b"\x28\x04"),  # An unknown state.
        golden.OPEN_V3.replace(b"\x38\x03", b"\x38\x05"),  # An unknown digest type.
        golden.OPEN_V3.replace(b"\x48\x02", b"\x48\x00"),  # An ack quorum of 0.
        golden.OPEN_V3.replace(b"\x48\x02", b"\x48\x03"),  # More acks than writes.
        # One bookie fewer than the ensemble size.
        golden.OPEN_V3.replace(b"\x10\x03", b"\x10\x04"),
        golden.OPEN_V3.replace(b"127.0.0.1:3181", b"127.0.0.1/3181"),
        golden.OPEN_V3.replace(b"127.0.0.1:3181", b"127.0.0.1:318\xff"),
        golden.OPEN_V3.replace(b"application", b"applicatio\xff"),
        golden.CLOSED_V3.replace(b"\x10\x05\x38", b"\x10\x00\x38"),  # Two fragments at entry 0.
        golden.CLOSED_V3.replace(b"\x20\x09", b""),
        golden.OPEN_V2.replace(b"firstEntryId: 0", b"firstEntryId: 1"),
        golden.OPEN_V2.replace(b"state: OPEN", b"state: AJAR"),
        golden.OPEN_V2.replace(b"state: OPEN", b"state: CLOSED").replace(b"-1", b"-2"),
        golden.OPEN_V2.replace(b"state: OPEN", b"state: CLOSED").replace(
            b"length: 0", b"length: -1"
        ),
        golden.OPEN_V2.replace(b"length: 0\n", b""),
        golden.OPEN_V2.replace(b"application", b"applicatio\xff"),
        golden.OPEN_V2 + b"surprise: 1",
        golden.OPEN_V2.partition(b"segment")[0],
        golden.OPEN_V1.rpartition(b"0\t")[0],
        golden.OPEN_V1.replace(b"\n2\n", b"\ntwo\n"),
        golden.OPEN_V1.replace(b"\n2\n", "\n٢\n".encode()),
        golden.OPEN_V1.replace(b"\n2\n", b"\n" + b"2" * 5000 + b"\n"),
        golden.CLOSED_V1.replace(b"9\tCLOSED", b"-9\tCLOSED"),
        golden.CLOSED_V1.replace(b"9\tCLOSED", b"9\tAJAR"),
        b"BookieMetadataFormatVersion\t1\n2\n3",
        b"BookieMetadataFormatVersion\t1\n\xff",
        golden.OPEN_V2 + b"\n" * METADATA_BYTES_MAX,
        golden.OPEN_V2.replace(b"testPasswd", rb"\1" * 200_001),
    ],
)
def test_invalid_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(BadMetadata):
        unpack_ledger_metadata(LEDGER, data)


# --- Random ledgers ---------------------------------------------------------------------------


def some_text(chance: random.Random) -> str:
    return "".join(
        chance.choice("ab\t\n\0\"'\\ü本\U0001f4d6\x7f") for _ in range(chance.randrange(6))
    )


def any_ledger(chance: random.Random) -> LedgerMetadata:
    version = chance.choice((1, 2, 3))
    ensemble = chance.randint(1, 5)
    write = chance.randint(1, ensemble)
    ack = write if version == 1 else chance.randint(1, write)
    starts = {
        0,
        *(chance.randrange(2 ** chance.randint(1, 63)) for _ in range(chance.randrange(5))),
    }
    bookies = [BookieId(f"bookie-{chance.randrange(99)}:3181") for _ in range(ensemble)]
    state = chance.choice(list(LedgerState))
    is_closed = state is LedgerState.CLOSED
    metadata = LedgerMetadata(
        LEDGER,
        Quorum(ensemble, write, ack),
        tuple(Fragment(EntryId(start), tuple(bookies)) for start in sorted(starts)),
        state,
        EntryId(chance.choice((NO_ENTRY, 0, chance.getrandbits(63)))) if is_closed else None,
        chance.choice((0, 300, chance.getrandbits(63))) if is_closed else None,
        format_version=version,
    )
    if version == 1:
        return metadata
    has_key = chance.random() < 0.8
    keys = {some_text(chance) for _ in range(chance.randrange(4))}
    return replace(
        metadata,
        digest_type=chance.choice(list(DigestType)) if has_key else None,
        password=chance.randbytes(chance.randrange(40)) if has_key else None,
        custom=tuple((key, chance.randbytes(chance.randrange(9))) for key in sorted(keys)),
        created_ms=chance.choice((None, chance.getrandbits(63))),
        creation_token=chance.choice((None, chance.getrandbits(63))) if version == 3 else None,
    )


@pytest.mark.parametrize("seed", range(300))
def test_any_ledger_survives_the_round_trip(seed: int) -> None:
    metadata = any_ledger(random.Random(seed))
    assert unpack_ledger_metadata(LEDGER, pack_ledger_metadata(metadata)) == metadata
