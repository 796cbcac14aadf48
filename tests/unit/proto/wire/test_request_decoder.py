import itertools
import random
import struct
import tracemalloc
from collections.abc import Iterator

import pytest

from rollbook.bookie.core.entry_salvage import take_frames
from rollbook.proto.errors import (
    BadFrame,
    InvalidRequest,
    NoSuchLedger,
    RollbookError,
    UnsupportedVersion,
)
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire import v2, v3
from rollbook.proto.wire.add_columns import AddReplies, Adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest
from rollbook.proto.wire.frames import FRAME_BYTES_MAX, pack_frame
from rollbook.proto.wire.messages import (
    Add,
    BatchRead,
    BatchReadReply,
    BookieInfoReply,
    EntryRead,
    ForceLedger,
    ForceLedgerReply,
    GetBookieInfo,
    ListEntries,
    ListEntriesReply,
    ReadLac,
    ReadLacReply,
    ReadReply,
    ReceivedReply,
    ReceivedRequest,
    Refusal,
    Reply,
    Request,
    WriteLac,
    WriteLacReply,
)
from rollbook.proto.wire.reply_decoder import ReplyDecoder
from rollbook.proto.wire.request_decoder import Heard, Refused, RequestDecoder
from rollbook.proto.wire.schema import bookkeeper_protocol_pb2 as pb
from tests.support.entries import pack_entry
from tests.unit.proto.wire.streams import KEY, LEDGER, PASSWORD, flatten, packers, random_frames

E0, E1 = EntryId(0), EntryId(1)
DIGEST = LedgerDigest(DigestType.CRC32C, PASSWORD, LEDGER)
LOGGING_CONTEXT = b"\xc2\x0c\x06\x0a\x01k\x12\x01v"


def _add(version: int, entry_id: int = 0, kind: int = 0, payload: bytes = b"hello") -> bytes:
    return packers(version)[kind].pack(EntryId(entry_id), EntryId(entry_id - 1), 5, payload)


def _heard_in(chunks: Iterator[bytes] | list[bytes]) -> list[Heard]:
    decoder = RequestDecoder()
    return [heard for chunk in chunks for heard in decoder.feed(chunk)]


# --- Chunks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_requests_are_decoded_however_the_stream_is_cut(seed: int) -> None:
    """W2."""
    chance = random.Random(seed)
    frames = random_frames(chance, 120)
    one_by_one = flatten(_heard_in(frames))
    assert len(one_by_one) == len(frames)
    stream = b"".join(frames)
    assert flatten(_heard_in([stream])) == one_by_one
    cuts = sorted(chance.randrange(len(stream)) for _ in range(60))
    pieces = [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]
    assert flatten(_heard_in(pieces)) == one_by_one


@pytest.mark.parametrize("first_entry", [3, 126, 300, 20_000])
def test_changed_add_within_a_run_is_decoded_like_a_single_add(first_entry: int) -> None:
    """W2: whichever byte differs, and in whichever way."""
    frames = [_add(3, first_entry + index) for index in range(6)]
    for at in range(4, len(frames[4])):
        for flip in (0x01, 0x02, 0x40, 0x80, 0xFF):
            odd = bytearray(frames[4])
            odd[at] ^= flip
            apart = [*frames[:4], bytes(odd), frames[5]]
            assert _meaning([b"".join(apart)]) == _meaning(apart), (at, flip)


def _meaning(chunks: list[bytes]) -> list[object]:
    """Returns the decoded requests, or a marker if a frame is invalid."""
    decoder, heard = RequestDecoder(), list[Heard]()
    try:
        for chunk in chunks:
            heard += decoder.feed(chunk)
    except BadFrame:
        return ["no frame"]
    return [*flatten(heard)]


def test_stream_of_single_bytes_is_decoded() -> None:
    frames = random_frames(random.Random(1), 40)
    stream = b"".join(frames)
    assert flatten(_heard_in([bytes([byte]) for byte in stream])) == flatten(_heard_in(frames))


@pytest.mark.parametrize("version", [2, 3])
def test_adds_to_alternating_ledgers_form_two_groups(version: int) -> None:
    a, b = packers(version, LedgerId(1))[0], packers(version, LedgerId(2))[0]
    stream = b"".join(
        packer.pack(EntryId(index), EntryId(index - 1), 0, b"x" * index)
        for index in range(200)
        for packer in (a, b)
    )
    (adds,) = _heard_in([stream])
    assert isinstance(adds, Adds)
    assert adds.frames == stream
    assert adds.count == 400
    for group, ledger_id in zip(adds.groups, (1, 2), strict=True):
        assert group.ledger_id == ledger_id
        assert group.entry_ids == list(range(200))
        assert group.lacs == list(range(-1, 199))
        assert group.last_add_confirmed == 198
        digest = LedgerDigest(DigestType.CRC32C, PASSWORD, LedgerId(ledger_id))
        for entry_id, start, end in zip(group.entry_ids, group.starts, group.ends, strict=True):
            entry = digest.unpack_entry(stream[start:end], entry_id)
            assert entry.payload == b"x" * entry_id


@pytest.mark.parametrize("version", [2, 3])
def test_fencing_read_keeps_its_place_between_adds(version: int) -> None:
    read = EntryRead(LEDGER, NO_ENTRY, KEY, fence=True)
    fence = v2.pack_request(read) if version == 2 else v3.pack_request(9, read)
    before, call, behind = _heard_in([_add(version, 0) + fence + _add(version, 1)])
    assert isinstance(before, Adds)
    assert isinstance(call, ReceivedRequest)
    assert isinstance(behind, Adds)
    assert [*before.groups[0].entry_ids, *behind.groups[0].entry_ids] == [E0, E1]
    assert call.request == read


def test_protocols_may_alternate_between_frames() -> None:
    stream = _add(2, 0) + _add(3, 1) + _add(2, 2)
    heard = _heard_in([stream])
    assert [adds.groups[0].entry_ids for adds in heard if isinstance(adds, Adds)] == [[0], [1], [2]]


# --- Groups of adds in a bookie ---------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_stored_frames_are_decoded_again(seed: int) -> None:
    """W3."""
    heard = _heard_in([b"".join(random_frames(random.Random(seed), 100))])
    for adds in heard:
        if isinstance(adds, Adds):
            (again,) = take_frames(bytes(adds.frames))
            assert flatten([again]) == flatten([adds])
            assert (again.start, again.end) == (0, len(adds.frames))


def test_unusual_add_of_usual_length_is_not_decoded_as_stored() -> None:
    usual = v3.pack_request(1, Add(LEDGER, E0, KEY, pack_entry(DIGEST, E0, NO_ENTRY, 0, b"")))
    unusual = usual.replace(b"\x08\x07\x10\x00", b"\x10\x00\x08\x07")
    assert unusual != usual
    assert [*take_frames(unusual)] == []


def test_decoding_of_stored_frames_ends_at_first_other_frame() -> None:
    read, add = v2.pack_request(EntryRead(LEDGER, E0)), _add(2)
    for behind in (b"", read, add[:-1], b"\0\0", _unusual_add()):
        assert [*take_frames(behind)] == []
        assert [bytes(adds.frames) for adds in take_frames(add + behind)] == [add]


@pytest.mark.parametrize("version", [2, 3])
def test_frames_of_selected_groups(version: int) -> None:
    """Refused adds must not reach the journal."""
    ledgers = [packers(version, LedgerId(ledger_id))[0] for ledger_id in (1, 2, 3)]
    frames = [
        ledgers[index % 3].pack(EntryId(index), NO_ENTRY, 0, b"x" * index) for index in range(300)
    ]
    (_, adds) = _heard_in([v2.pack_request(EntryRead(LEDGER, E0)) + b"".join(frames)])
    assert isinstance(adds, Adds)
    kept = adds.frames_of([adds.groups[2], adds.groups[0]])
    assert kept == b"".join(frame for index, frame in enumerate(frames) if index % 3 != 1)
    assert adds.frames_of([]) == b""
    assert adds.frames_of(adds.groups) == adds.frames


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("error", [None, NoSuchLedger, InvalidRequest])
def test_replies_to_a_group_are_decoded(version: int, error: type[RollbookError] | None) -> None:
    first = 120  # Entry and transaction ids grow by a byte within the run.
    packer = packers(version, first_txn=first)[0]
    stream = b"".join(packer.pack(EntryId(first + i), NO_ENTRY, 0, b"") for i in range(20))
    (adds,) = _heard_in([stream])
    assert isinstance(adds, Adds)
    replies = adds.groups[0].pack_replies(error)
    heard = ReplyDecoder().feed(replies)
    assert {(r.error, r.ledger_id) for r in heard if isinstance(r, AddReplies)} == {(error, LEDGER)}
    assert [e for r in heard if isinstance(r, AddReplies) for e in r.entry_ids] == list(
        range(first, first + 20)
    )
    if version == 3:
        assert [r.header.txnId for r in _responses(replies)] == list(range(first, first + 20))


def _responses(stream: bytes) -> Iterator[pb.Response]:
    while stream:
        (size,) = struct.unpack_from(">I", stream)
        yield pb.Response.FromString(stream[4 : 4 + size])
        stream = stream[4 + size :]


# --- Adds in unusual encodings ----------------------------------------------------------------


def _unusual_add() -> bytes:
    """An add with its fields in reverse order, one of them in two bytes too many, and unknown
    fields.
    """
    body = pack_entry(DIGEST, E1, E0, 10, b"world")
    own = b"".join(
        (
            b"\xf2\x07\x03abc",  # Field 126, unknown.
            b"\x22" + bytes([len(body)]) + body,
            b"\x1a\x14" + KEY,
            b"\x10\x81\x80\x00",  # Entry 1 in three bytes.
            b"\x08\x07",
        )
    )
    header = b"\x18\x05" + b"\x10\x02" + b"\x08\x03"
    return pack_frame(
        b"\x0a"
        + bytes([len(header)])
        + header
        + LOGGING_CONTEXT
        + b"\xaa\x06"
        + bytes([len(own)])
        + own
    )


def test_add_in_unusual_encoding_is_decoded_and_normalised() -> None:
    stream = _add(3, 0) + _unusual_add() + _add(3, 2)
    heard = _heard_in([stream])
    assert [
        add.entry_id for add in flatten(heard) if not isinstance(add, ReceivedRequest | Refused)
    ] == [
        0,
        1,
        2,
    ]
    unusual = heard[1]
    assert isinstance(unusual, Adds)
    expected = v3.pack_request(5, Add(LEDGER, E1, KEY, pack_entry(DIGEST, E1, E0, 10, b"world")))
    assert unusual.frames == expected  # Frames are stored in the usual encoding.
    (response,) = _responses(unusual.groups[0].pack_replies())
    assert (response.header.txnId, response.addResponse.entryId) == (5, 1)


@pytest.mark.parametrize("seed", range(30))
def test_v3_adds_are_decoded_like_protobuf(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        request = pb.Request()
        request.header.version = pb.VERSION_THREE
        request.header.operation = pb.ADD_ENTRY
        request.header.txnId = chance.getrandbits(chance.randrange(1, 65))
        if chance.random() < 0.4:
            request.header.priority = chance.choice((0, 1, 100, 200, 2**32 - 1))
        add = request.addRequest
        add.ledgerId = chance.getrandbits(chance.randrange(1, 64))
        add.entryId = chance.getrandbits(chance.randrange(1, 64))
        add.masterKey = chance.randbytes(20)
        digest = LedgerDigest(DigestType.HMAC, PASSWORD, LedgerId(add.ledgerId))
        payload = chance.randbytes(chance.randrange(300))
        add.body = pack_entry(digest, EntryId(add.entryId), NO_ENTRY, 5, payload)
        if chance.random() < 0.4:
            add.writeFlags = chance.choice((0, 1, 2, 3, -1))
        if chance.random() < 0.4:
            add.flag = pb.AddRequest.RECOVERY_ADD
        context = LOGGING_CONTEXT if chance.random() < 0.2 else b""
        (adds,) = _heard_in([pack_frame(request.SerializeToString() + context)])
        assert isinstance(adds, Adds)
        (heard,) = flatten([adds])
        assert not isinstance(heard, ReceivedRequest | Refused)
        assert heard.ledger_id == add.ledgerId
        assert heard.entry_id == add.entryId
        assert heard.ledger_key == add.masterKey
        assert heard.body == add.body
        assert heard.is_recovery == add.HasField("flag")
        assert heard.is_sync_deferred == bool(add.writeFlags & 1)
        assert heard.is_high_priority == (request.header.priority > 0)
        (response,) = _responses(adds.groups[0].pack_replies(NoSuchLedger))
        assert response.header.version == pb.VERSION_THREE
        assert response.header.operation == pb.ADD_ENTRY
        assert response.header.txnId == request.header.txnId
        assert response.status == response.addResponse.status == pb.ENOLEDGER
        assert response.addResponse.ledgerId == add.ledgerId
        assert response.addResponse.entryId == add.entryId


# --- Refusals ---------------------------------------------------------------------------------


def _v2_add_with(header: int, body: bytes) -> bytes:
    return pack_frame(struct.pack(">I20s", header, KEY) + body)


@pytest.mark.parametrize("ids", [(-1, 0), (7, -1), (7, -0x1000), (-1, -1)])
def test_adds_with_negative_ids_are_refused(ids: tuple[int, int]) -> None:
    body = struct.pack(">qqqq", *ids, -1, 0)
    heard = _heard_in([_add(2) + _v2_add_with(0x02010000, body) + _add(2, 1)])
    assert heard[1] == Refused(
        pack_frame(struct.pack(">Iiqq", 0x02010000, InvalidRequest.code.v2, *ids))
    )
    assert isinstance(heard[2], Adds)
    add = Add(LedgerId(ids[0]), EntryId(ids[1]), KEY, body)
    (refused,) = _heard_in([v3.pack_request(1, add)])
    assert isinstance(refused, Refused)
    assert ReplyDecoder().feed(refused.reply) == [
        AddReplies(InvalidRequest, add.ledger_id, [add.entry_id])
    ]


@pytest.mark.parametrize(
    "add",
    [
        Add(LEDGER, E1, KEY, pack_entry(DIGEST, E0, NO_ENTRY, 0, b"")),
        Add(LedgerId(8), E0, KEY, pack_entry(DIGEST, E0, NO_ENTRY, 0, b"")),
        Add(LEDGER, E0, KEY, pack_entry(DIGEST, E0, NO_ENTRY, 0, b"")[:31]),
        Add(LEDGER, E0, KEY, b""),
        Add(LEDGER, E0, KEY[:-1], pack_entry(DIGEST, E0, NO_ENTRY, 0, b"")),
        Add(LEDGER, E0, b"", pack_entry(DIGEST, E0, NO_ENTRY, 0, b"")),
    ],
)
def test_v3_add_that_contradicts_its_entry_is_refused(add: Add) -> None:
    heard = _heard_in([_add(3) + v3.pack_request(3, add) + _add(3, 1)])
    assert [type(item) for item in heard] == [Adds, Refused, Adds]
    (response,) = _responses(heard[1].reply if isinstance(heard[1], Refused) else b"")
    assert response.header.txnId == 3
    assert response.status == response.addResponse.status == pb.EBADREQ
    assert (response.addResponse.ledgerId, response.addResponse.entryId) == (
        add.ledger_id,
        add.entry_id,
    )


@pytest.mark.parametrize("entry_ledger", [8, -1])
def test_v3_add_with_entry_of_another_ledger_is_refused_in_a_run(
    entry_ledger: int,
) -> None:
    usual = _add(3, 1)
    body = pack_entry(DIGEST, E1, E0, 5, b"hello")[:16]
    other = usual.replace(body, struct.pack(">qq", entry_ledger, 1))
    assert other != usual
    heard = _heard_in([_add(3, 0) + other + _add(3, 2)])
    assert [type(item) for item in heard] == [Adds, Refused, Adds]


@pytest.mark.parametrize("version", [3, 4, 9, 11, 255])
def test_unknown_v2_versions_are_refused_in_their_version(version: int) -> None:
    ids = struct.pack(">qq", 7, 0)
    requests = {
        1: struct.pack(">20s", KEY) + ids + bytes(16),
        2: ids,
        7: ids + struct.pack(">qiq", 42, 1, 1),
    }
    for operation, rest in requests.items():
        header = struct.pack(">BBH", version, operation, 1)
        (refused,) = _heard_in([pack_frame(header + rest)])
        assert isinstance(refused, Refused)
        code, *_ = struct.unpack_from(">i", refused.reply, 8)
        assert code == UnsupportedVersion.code.v2
        assert refused.reply[4:6] == bytes([version, operation])
        assert refused.reply[12:28] == ids
    auth = v3.pack_auth_message("plugin", b"payload")
    for operation in (0, 3, 4, 5, 6, 8):
        frame = pack_frame(struct.pack(">BBH", version, operation, 0) + auth)
        with pytest.raises(BadFrame):
            RequestDecoder().feed(frame)


@pytest.mark.parametrize("version", [0, 1])
def test_old_v2_versions_are_answered_in_their_version(version: int) -> None:
    def header(operation: int) -> int:
        return operation if version == 0 else version << 24 | operation << 16

    body = pack_entry(DIGEST, E0, NO_ENTRY, 5, b"hello")
    (adds,) = _heard_in([_v2_add_with(header(1), body)])
    assert isinstance(adds, Adds)
    assert adds.groups[0].pack_replies()[4:8] == struct.pack(">I", header(1))
    (call,) = _heard_in([pack_frame(struct.pack(">Iqq", header(2), 7, 0))])
    assert isinstance(call, ReceivedRequest)
    assert call.request == EntryRead(LEDGER, E0)
    answer = call.answer(ReadReply(None, LEDGER, E0, body))
    assert answer[4:8] == struct.pack(">I", header(2))


def test_fencing_read_of_old_v2_version_has_no_key() -> None:
    frame = pack_frame(struct.pack(">Iqq", 0x01020001, 7, -1))
    (call,) = _heard_in([frame])
    assert isinstance(call, ReceivedRequest)
    assert call.request == EntryRead(LEDGER, NO_ENTRY, None, fence=True)


@pytest.mark.parametrize("version", [1, 2])
def test_old_version_in_v3_header_is_refused_in_both_statuses(version: int) -> None:
    request = pb.Request()
    request.header.version = pb.ProtocolVersion.ValueType(version)
    request.header.operation = pb.READ_LAC
    request.header.txnId = 11
    request.readLacRequest.ledgerId = 7
    (refused,) = _heard_in([pack_frame(request.SerializeToString())])
    assert isinstance(refused, Refused)
    (response,) = _responses(refused.reply)
    assert response.status == response.readLacResponse.status == pb.EBADVERSION
    assert ReplyDecoder().feed(refused.reply) == [
        ReceivedReply(11, ReadLacReply(UnsupportedVersion, LEDGER))
    ]


@pytest.mark.parametrize("operation", [3, 4, 12, 1, 2, 5, 6, 7, 8, 9, 10, 11])
def test_v3_operation_without_body_is_refused(operation: int) -> None:
    header = bytes([8, 3, 16, operation, 24, 9])
    (refused,) = _heard_in([pack_frame(b"\x0a\x06" + header)])
    assert isinstance(refused, Refused)
    assert refused.reply == bytes.fromhex("0000000b0a06") + header + bytes.fromhex("109403")
    (answer,) = ReplyDecoder().feed(refused.reply)
    assert isinstance(answer, ReceivedReply)
    assert answer.txn_id == 9
    assert operation == 9 or answer.reply == Refusal(InvalidRequest)


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\x00",
        b"\x0a\x04\x08\x03\x10\x02",  # No transaction id.
        b"\x0a\x06\x08\x03\x10\x0d\x18\x01",  # Operation 13.
        b"\x0a\x06\x08\x04\x10\x01\x18\x01",  # Version 4.
        b"\x0a\x06\x08\x03\x10\x02\x18\x01\xaa\x06\x02\x08\x01",  # An add with only a ledger.
        b"\x0a\x06\x08\x03\x10\x05\x18\x01\xb2\x06\x06\x0a\x01\xff\x12\x01p",  # Invalid UTF-8.
        b"\x0a\x06\x08\x03\x10\x07\x18\x01" + b"\xfb\x01" * 5000,  # Nested groups.
        b"\x02",
        b"\x02\x01\x00\x00",
        b"\x02\x01\x00\x00" + bytes(51),  # An add of 31 bytes.
        b"\x02\x02\x00\x00" + bytes(15),
        b"\x02\x02\x00\x01" + bytes(35),  # A fencing read with an incomplete key.
        b"\x02\x07\x00\x00" + bytes(35),
        b"\x02\x04\x00\x00" + bytes(16),
        b"\x02\x03\x00\x00\x0a\x01a",
        b"\x00\x01\x00\x01" + bytes(60),  # Version 0 has no flags.
    ],
)
def test_invalid_message_is_a_bad_frame(body: bytes) -> None:
    with pytest.raises(BadFrame):
        RequestDecoder().feed(_add(2) + pack_frame(body) + _add(2))


def test_bytes_after_last_field_of_v2_request_are_ignored() -> None:
    frame = pack_frame(struct.pack(">Iqq", 0x02020000, 7, 0) + KEY)
    assert _heard_in([frame]) == [
        ReceivedRequest(EntryRead(LEDGER, E0), False, v2.V2ReplyHeader(2))
    ]


# --- Limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_frame_limit_includes_the_length_field(version: int) -> None:
    frame = _add(version, payload=bytes(1000))
    assert len(flatten(RequestDecoder(len(frame)).feed(frame))) == 1
    for decoder in (RequestDecoder(len(frame) - 1), RequestDecoder(100)):
        with pytest.raises(BadFrame):
            decoder.feed(frame)


@pytest.mark.parametrize("size", [0, FRAME_BYTES_MAX - 3, 2**31, 2**32 - 1])
def test_invalid_length_is_refused_before_its_frame_arrives(size: int) -> None:
    with pytest.raises(BadFrame):
        RequestDecoder().feed(struct.pack(">I", size))


def test_frame_in_small_pieces_needs_little_more_memory() -> None:
    """W1."""
    limit = 1024 * 1024
    frame = struct.pack(">I", limit - 4) + b"\x02\x01\x00\x00" + bytes(limit - 8)
    pieces = [frame[at : at + 50] for at in range(0, len(frame), 50)]
    decoder = RequestDecoder(limit)
    tracemalloc.start()
    try:
        for piece in pieces[:-1]:
            decoder.feed(piece)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.2 * limit
    assert peak < 2.5 * limit  # A growing buffer briefly exists twice.
    with_all = decoder.feed(pieces[-1])
    assert len(with_all) == 1


def test_v3_schema_has_no_repeated_fields() -> None:
    """W1: decoded logging contexts of three bytes each needed twenty times the memory of their
    frame.
    """
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        assert [field.name for field in message.fields if field.is_repeated] == []


REFUSALS: list[tuple[Request, Reply]] = [
    (EntryRead(LEDGER, E1), ReadReply(NoSuchLedger, LEDGER, E1)),
    (EntryRead(LEDGER, NO_ENTRY, KEY, fence=True), ReadReply(NoSuchLedger, LEDGER, NO_ENTRY)),
    (BatchRead(LEDGER, E1, 7, 2, 99), BatchReadReply(NoSuchLedger, LEDGER, E1, 7)),
    (WriteLac(LEDGER, E1, KEY, b"packet"), WriteLacReply(NoSuchLedger, LEDGER)),
    (ReadLac(LEDGER), ReadLacReply(NoSuchLedger, LEDGER)),
    (ForceLedger(LEDGER), ForceLedgerReply(NoSuchLedger, LEDGER)),
    (ListEntries(LEDGER), ListEntriesReply(NoSuchLedger, LEDGER)),
    (GetBookieInfo(total_bytes=True, free_bytes=True), BookieInfoReply(NoSuchLedger)),
]


@pytest.mark.parametrize(
    ("version", "asked", "reply"),
    [(3, *each) for each in REFUSALS] + [(2, *each) for each in REFUSALS[:3]],
    ids=lambda each: str(each) if isinstance(each, int) else type(each).__name__,
)
def test_refusal_names_the_ids_of_its_request(version: int, asked: Request, reply: Reply) -> None:
    """CN1: in version 3 also the transaction. Version 2 has only reads."""
    (call,) = _heard_in([v2.pack_request(asked) if version == 2 else v3.pack_request(5, asked)])
    assert isinstance(call, ReceivedRequest)
    txn_id = 5 if version == 3 else None
    assert ReplyDecoder().feed(call.refuse(NoSuchLedger)) == [ReceivedReply(txn_id, reply)]
