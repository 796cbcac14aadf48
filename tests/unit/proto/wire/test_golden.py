"""Every golden vector is written and read byte for byte.

Two are only read, because Java 4.18 writes their fields in another order.
"""

import itertools
from typing import Final

import google_crc32c
import pytest

from rollbook.proto.errors import (
    BookieReadOnly,
    InvalidRequest,
    LedgerFenced,
    NoSuchEntry,
    RollbookError,
)
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire import v2, v2_adds, v3, v3_adds
from rollbook.proto.wire.add_columns import AddPacker, AddReplies, Adds
from rollbook.proto.wire.digest import DigestType, Entry, LedgerDigest, ledger_key, mac_key
from rollbook.proto.wire.entry_list import EntryList, pack_entry_list, unpack_entry_list
from rollbook.proto.wire.frames import pack_frame
from rollbook.proto.wire.messages import (
    AUTH_DISABLED_PLUGIN,
    AuthReply,
    BatchRead,
    BatchReadReply,
    BookieInfoReply,
    BookieOperation,
    EntryRead,
    ForceLedger,
    ForceLedgerReply,
    GetBookieInfo,
    ListEntries,
    ReadLac,
    ReadLacReply,
    ReadReply,
    ReceivedReply,
    ReceivedRequest,
    Refusal,
    Reply,
    Request,
    StartTls,
    StartTlsReply,
    WriteLac,
)
from rollbook.proto.wire.reply_decoder import ReplyDecoder
from rollbook.proto.wire.request_decoder import RequestDecoder
from tests.golden.bookkeeper import ENTRIES, ENTRY_LISTS, KEYS, V2_FRAMES, V3_FRAMES
from tests.support.entries import pack_entry

PASSWORD: Final = b"testPasswd"
LEDGER: Final = LedgerId(1)
E0: Final = EntryId(0)
KEY: Final = KEYS["ledger key"]
HELLO: Final = ENTRIES["entry CRC32C"]
WORLD: Final = pack_entry(
    LedgerDigest(DigestType.CRC32C, PASSWORD, LEDGER), EntryId(1), E0, 10, b"world"
)
LAC_PACKET: Final = ENTRIES["LAC packet CRC32C"]


def _digest(kind: DigestType = DigestType.CRC32C, ledger_id: LedgerId = LEDGER) -> LedgerDigest:
    return LedgerDigest(kind, PASSWORD, ledger_id)


# --- Keys, entries, LAC packets ---------------------------------------------------------------


def test_keys_match_golden_values() -> None:
    assert ledger_key(b"") == KEYS["ledger key, empty password"]
    assert ledger_key(PASSWORD) == KEYS["ledger key"]
    assert mac_key(b"") == KEYS["mac key, empty password"]
    assert mac_key(PASSWORD) == KEYS["mac key"]
    assert google_crc32c.value(b"123456789") == int.from_bytes(KEYS["CRC32C of 123456789"])


@pytest.mark.parametrize("kind", DigestType)
def test_entry_and_lac_packet_match_golden_values(kind: DigestType) -> None:
    digest = _digest(kind)
    entry, packet = ENTRIES[f"entry {kind.name}"], ENTRIES[f"LAC packet {kind.name}"]
    assert pack_entry(digest, E0, NO_ENTRY, 5, b"hello") == entry
    assert digest.unpack_entry(entry, E0) == Entry(LEDGER, E0, NO_ENTRY, 5, b"hello")
    assert digest.pack_lac(E0) == packet
    assert digest.unpack_lac(packet) == E0


def test_entry_with_large_ids_and_empty_lac_packet_match() -> None:
    ledger_id, entry = LedgerId(0x123456789A), ENTRIES["entry CRC32C, large ids"]
    digest = _digest(ledger_id=ledger_id)
    assert pack_entry(digest, EntryId(7), EntryId(6), 1000, b"xxx") == entry
    unpacked = Entry(ledger_id, EntryId(7), EntryId(6), 1000, b"xxx")
    assert digest.unpack_entry(entry, EntryId(7)) == unpacked
    packet = ENTRIES["LAC packet CRC32C, LAC -1"]
    assert _digest().pack_lac(NO_ENTRY) == packet
    assert _digest().unpack_lac(packet) == NO_ENTRY


# --- Adds -------------------------------------------------------------------------------------


def _recovery_packer(version: int) -> AddPacker:
    if version == 2:
        return v2_adds.V2AddPacker(KEY, _digest(), is_recovery=True, is_high_priority=True)
    txn_ids = itertools.count(1)
    return v3_adds.V3AddPacker(KEY, _digest(), txn_ids, is_recovery=True, is_high_priority=True)


@pytest.mark.parametrize(
    ("packer", "frame"),
    [
        (v2_adds.V2AddPacker(KEY, _digest()), V2_FRAMES["ADD request"]),
        (_recovery_packer(2), V2_FRAMES["ADD request, RECOVERY_ADD + HIGH_PRIORITY"]),
        (v3_adds.V3AddPacker(KEY, _digest(), itertools.count(1)), V3_FRAMES["ADD request"]),
        (_recovery_packer(3), V3_FRAMES["ADD recovery, priority 100, 4.17 order"]),
    ],
)
def test_packed_add_matches_golden_frame(packer: AddPacker, frame: bytes) -> None:
    assert packer.pack(E0, NO_ENTRY, 5, b"hello") == frame


@pytest.mark.parametrize(
    ("frame", "is_recovery"),
    [
        (V2_FRAMES["ADD request"], False),
        (V2_FRAMES["ADD request, RECOVERY_ADD + HIGH_PRIORITY"], True),
        (V3_FRAMES["ADD request"], False),
        (V3_FRAMES["ADD recovery, priority 100, 4.17 order"], True),
        (V3_FRAMES["ADD recovery, priority 100, 4.18 order"], True),
    ],
)
def test_golden_add_is_decoded(frame: bytes, is_recovery: bool) -> None:
    (adds,) = RequestDecoder().feed(frame)
    assert isinstance(adds, Adds)
    assert adds.frames == frame
    (group,) = adds.groups
    assert (group.ledger_id, group.ledger_key) == (LEDGER, KEY)
    assert (group.is_recovery, group.is_high_priority) == (is_recovery, is_recovery)
    assert not group.is_sync_deferred
    assert ([*group.entry_ids], [*group.lacs]) == ([E0], [NO_ENTRY])
    assert adds.buffer[group.starts[0] : group.ends[0]] == HELLO


@pytest.mark.parametrize(
    ("request_name", "reply_name", "frames", "error"),
    [
        ("ADD request", "ADD response EOK", V2_FRAMES, None),
        ("ADD request", "ADD response EFENCED", V2_FRAMES, LedgerFenced),
        ("ADD request", "ADD response EOK", V3_FRAMES, None),
        ("ADD request", "ADD response EFENCED", V3_FRAMES, LedgerFenced),
        ("ADD request", "ADD response EREADONLY", V3_FRAMES, BookieReadOnly),
    ],
)
def test_reply_to_add_matches_golden_frame(
    request_name: str, reply_name: str, frames: dict[str, bytes], error: type[RollbookError] | None
) -> None:
    (adds,) = RequestDecoder().feed(frames[request_name])
    assert isinstance(adds, Adds)
    assert adds.groups[0].pack_replies(error) == frames[reply_name]
    assert ReplyDecoder().feed(frames[reply_name]) == [AddReplies(error, LEDGER, [E0])]


# --- All other requests -----------------------------------------------------------------------

V2_REQUESTS: Final[dict[str, Request]] = {
    "READ request, entry 0": EntryRead(LEDGER, E0),
    "READ request, entry -1, DO_FENCING": EntryRead(LEDGER, NO_ENTRY, KEY, fence=True),
    "BATCH_READ request": BatchRead(LEDGER, E0, 42, 10, 1048576),
}
V3_REQUESTS: Final[dict[str, tuple[int, Request]]] = {
    "READ request, entry 0": (2, EntryRead(LEDGER, E0)),
    "READ fence, entry -1, 4.17 order": (2, EntryRead(LEDGER, NO_ENTRY, KEY, fence=True)),
    "READ long poll": (
        3,
        EntryRead(LEDGER, NO_ENTRY, previous_lac=E0, timeout_ms=5000, piggyback=True),
    ),
    "READ_LAC request": (4, ReadLac(LEDGER)),
    "WRITE_LAC request": (5, WriteLac(LEDGER, E0, KEY, LAC_PACKET)),
    "FORCE_LEDGER request": (6, ForceLedger(LEDGER)),
    "GET_BOOKIE_INFO request": (7, GetBookieInfo(total_bytes=True, free_bytes=True)),
    "GET_LIST request": (8, ListEntries(LEDGER)),
    "START_TLS request": (1, StartTls()),
}


@pytest.mark.parametrize("name", V2_REQUESTS)
def test_v2_request_matches_golden_frame(name: str) -> None:
    request, frame = V2_REQUESTS[name], V2_FRAMES[name]
    assert v2.pack_request(request) == frame
    assert RequestDecoder().feed(frame) == [ReceivedRequest(request, False, v2.V2ReplyHeader(2))]


@pytest.mark.parametrize("name", V3_REQUESTS)
def test_v3_request_matches_golden_frame(name: str) -> None:
    (txn_id, request), frame = V3_REQUESTS[name], V3_FRAMES[name]
    assert v3.pack_request(txn_id, request) == frame
    (call,) = RequestDecoder().feed(frame)
    assert isinstance(call, ReceivedRequest)
    assert (call.request, call.is_high_priority) == (request, False)
    assert isinstance(call.origin, v3.V3ReplyHeader)
    assert (call.origin.version, call.origin.txn_id) == (3, txn_id)


def test_v3_fencing_read_in_field_order_of_java_4_18_is_decoded() -> None:
    (call,) = RequestDecoder().feed(V3_FRAMES["READ fence, entry -1, 4.18 order"])
    assert call == ReceivedRequest(
        EntryRead(LEDGER, NO_ENTRY, KEY, fence=True),
        False,
        v3.V3ReplyHeader(3, 2, BookieOperation.READ),
    )


# --- All other replies ------------------------------------------------------------------------

V2_REPLIES: Final[dict[str, Reply]] = {
    "READ response EOK, entry 0": ReadReply(None, LEDGER, E0, HELLO),
    "READ response EOK to the -1 request": ReadReply(None, LEDGER, NO_ENTRY, HELLO),
    "READ response ENOENTRY, entry 99": ReadReply(NoSuchEntry, LEDGER, EntryId(99)),
    "BATCH_READ response": BatchReadReply(None, LEDGER, E0, 42, (HELLO, WORLD)),
    "AUTH response, auth disabled": AuthReply(AUTH_DISABLED_PLUGIN, b""),
}
V3_REPLIES: Final[dict[str, tuple[int, BookieOperation, Reply]]] = {
    "READ response EOK, maxLAC 0": (
        2,
        BookieOperation.READ,
        ReadReply(None, LEDGER, E0, HELLO, last_add_confirmed=E0),
    ),
    "READ response ENOENTRY, entry 99": (
        2,
        BookieOperation.READ,
        ReadReply(NoSuchEntry, LEDGER, EntryId(99)),
    ),
    "READ_LAC response, both bodies": (
        4,
        BookieOperation.READ_LAC,
        ReadLacReply(None, LEDGER, LAC_PACKET, HELLO),
    ),
    "FORCE_LEDGER response": (6, BookieOperation.FORCE_LEDGER, ForceLedgerReply(None, LEDGER)),
    "GET_BOOKIE_INFO response": (
        7,
        BookieOperation.GET_BOOKIE_INFO,
        BookieInfoReply(None, total_bytes=1000000, free_bytes=400000),
    ),
    "START_TLS refused (EBADREQ)": (1, BookieOperation.START_TLS, StartTlsReply(InvalidRequest)),
    "START_TLS accepted": (1, BookieOperation.START_TLS, StartTlsReply(None)),
    "AUTH response, auth disabled": (1, BookieOperation.AUTH, AuthReply(AUTH_DISABLED_PLUGIN, b"")),
    "unsupported operation 12 response": (9, BookieOperation.BATCH_READ, Refusal(InvalidRequest)),
}


@pytest.mark.parametrize("name", V2_REPLIES)
def test_v2_reply_matches_golden_frame(name: str) -> None:
    reply, frame = V2_REPLIES[name], V2_FRAMES[name]
    assert v2.V2ReplyHeader(2).pack(reply) == frame
    assert ReplyDecoder().feed(frame) == [ReceivedReply(None, reply)]


@pytest.mark.parametrize("name", V3_REPLIES)
def test_v3_reply_matches_golden_frame(name: str) -> None:
    (txn_id, operation, reply), frame = V3_REPLIES[name], V3_FRAMES[name]
    assert v3.V3ReplyHeader(3, txn_id, operation).pack(reply) == frame
    assert ReplyDecoder().feed(frame) == [ReceivedReply(txn_id, reply)]


def test_every_golden_frame_has_a_test() -> None:
    adds = {name for name in (*V2_FRAMES, *V3_FRAMES) if name.startswith("ADD ")}
    assert set(V2_FRAMES) - adds == set(V2_REQUESTS) | set(V2_REPLIES)
    assert set(V3_FRAMES) - adds - {"READ fence, entry -1, 4.18 order"} == set(V3_REQUESTS) | set(
        V3_REPLIES
    )


# --- Entry lists ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "entry_ids"),
    [
        ("empty", []),
        ("entries 0..9", list(range(10))),
        ("entries 0,1,3,4,6,7,9,10,20", [0, 1, 3, 4, 6, 7, 9, 10, 20]),
    ],
)
def test_entry_list_matches_golden_bytes(name: str, entry_ids: list[EntryId]) -> None:
    entries = EntryList.of(entry_ids)
    assert pack_entry_list(entries) == ENTRY_LISTS[name]
    assert unpack_entry_list(ENTRY_LISTS[name]) == entries
    assert [entry_id for entry_id in map(EntryId, range(30)) if entry_id in entries] == entry_ids


def test_entry_list_with_a_period_matches_golden_bytes() -> None:
    entries = unpack_entry_list(ENTRY_LISTS["period 3"])
    assert [entry_id for entry_id in map(EntryId, range(30)) if entry_id in entries] == [
        0,
        1,
        3,
        4,
        6,
        7,
    ]
    assert list(entries.ranges()) == [(0, 1), (3, 4), (6, 7)]
    assert entries.count == 6
    assert pack_entry_list(entries) == ENTRY_LISTS["period 3"]


def test_pack_frame_prepends_length_to_body() -> None:
    frame = V3_FRAMES["READ_LAC request"]
    assert pack_frame(frame[4:]) == frame
