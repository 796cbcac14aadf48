import itertools
import random
import struct
import tracemalloc

import pytest

from rollbook.proto.errors import (
    BadFrame,
    BookieFailed,
    EntryStateUnknown,
    InvalidRequest,
    LedgerFenced,
    NoSuchEntry,
    NoSuchLedger,
    RollbookError,
    Unauthorized,
    every_error,
)
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire import v2, v3, v3_adds
from rollbook.proto.wire.add_columns import AddReplies
from rollbook.proto.wire.entry_batches import LARGE_BYTES, pack_bodies
from rollbook.proto.wire.entry_list import EntryList
from rollbook.proto.wire.frames import FRAME_BYTES_MAX, pack_frame
from rollbook.proto.wire.messages import (
    Add,
    AddReply,
    Auth,
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
    ListEntriesReply,
    PackedBatch,
    ReadLac,
    ReadLacReply,
    ReadReply,
    ReceivedReply,
    ReceivedRequest,
    Refusal,
    Reply,
    ReplyHeader,
    Request,
    StartTls,
    StartTlsReply,
    Unknown,
    WriteLac,
    WriteLacReply,
    refusal_of,
)
from rollbook.proto.wire.reply_decoder import ReplyDecoder
from rollbook.proto.wire.request_decoder import RequestDecoder
from rollbook.proto.wire.schema import bookkeeper_protocol_pb2 as pb
from tests.unit.proto.wire.streams import KEY

LEDGER, E5 = LedgerId(7), EntryId(5)
ENTRIES = EntryList.of([EntryId(0), EntryId(1), EntryId(9)])

V3_REPLIES: list[tuple[BookieOperation, Reply]] = [
    (BookieOperation.READ, ReadReply(None, LEDGER, E5, b"body")),
    (BookieOperation.READ, ReadReply(None, LEDGER, E5, b"", EntryId(4), 1_700_000_000_000)),
    (BookieOperation.READ, ReadReply(None, LEDGER, NO_ENTRY, None, NO_ENTRY)),
    (BookieOperation.READ, ReadReply(None, LEDGER, E5, b"", E5, None, (bytes(32), bytes(40)))),
    (BookieOperation.READ, ReadReply(EntryStateUnknown, LEDGER, E5, None, EntryId(3))),
    (BookieOperation.AUTH, AuthReply("plugin", b"\x00\xff")),
    (BookieOperation.WRITE_LAC, WriteLacReply(None, LEDGER)),
    (BookieOperation.WRITE_LAC, WriteLacReply(Unauthorized, LEDGER)),
    (BookieOperation.READ_LAC, ReadLacReply(None, LEDGER, None, b"entry")),
    (BookieOperation.READ_LAC, ReadLacReply(NoSuchEntry, LEDGER)),
    (BookieOperation.FORCE_LEDGER, ForceLedgerReply(BookieFailed, LEDGER)),
    (BookieOperation.GET_BOOKIE_INFO, BookieInfoReply(None, free_bytes=2**63 - 1)),
    (BookieOperation.LIST_ENTRIES, ListEntriesReply(None, LEDGER, ENTRIES)),
    (BookieOperation.LIST_ENTRIES, ListEntriesReply(NoSuchLedger, LEDGER)),
    (BookieOperation.START_TLS, StartTlsReply(None)),
    (BookieOperation.READ, Refusal(Unauthorized)),
]
V2_REPLIES: list[Reply] = [
    ReadReply(None, LEDGER, E5, b"body"),
    ReadReply(None, LEDGER, NO_ENTRY, b""),
    ReadReply(NoSuchEntry, LEDGER, E5),
    BatchReadReply(None, LEDGER, E5, 42),
    BatchReadReply(None, LEDGER, E5, -42, (bytes(32), b"entry".ljust(33))),
    BatchReadReply(NoSuchEntry, LEDGER, E5, 42),
    AuthReply("plugin", b"\x00\xff"),
]


@pytest.mark.parametrize(("operation", "reply"), V3_REPLIES)
@pytest.mark.parametrize("txn_id", [0, 1, 127, 128, 2**63, 2**64 - 1])
def test_v3_replies_survive_round_trip(
    txn_id: int, operation: BookieOperation, reply: Reply
) -> None:
    frame = v3.V3ReplyHeader(3, txn_id, operation).pack(reply)
    assert ReplyDecoder().feed(frame) == [ReceivedReply(txn_id, reply)]
    assert v3.unpack_reply(frame[4:]) == ReceivedReply(txn_id, reply)


@pytest.mark.parametrize("reply", V2_REPLIES)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_v2_replies_survive_round_trip(version: int, reply: Reply) -> None:
    frame = v2.V2ReplyHeader(version).pack(reply)
    assert ReplyDecoder().feed(frame) == [ReceivedReply(None, reply)]
    assert v2.unpack_reply(frame, 4, len(frame)) == ReceivedReply(None, reply)


def test_replies_are_decoded_however_the_stream_is_cut() -> None:
    frames = [v2.V2ReplyHeader(2).pack(reply) for reply in V2_REPLIES]
    frames += [v3.V3ReplyHeader(3, 300, operation).pack(reply) for operation, reply in V3_REPLIES]
    frames += [v2.V2ReplyHeader(2).pack(AddReply(None, LEDGER, E5))]
    frames += [
        v3.V3ReplyHeader(3, 300, BookieOperation.ADD).pack(AddReply(LedgerFenced, LEDGER, E5))
    ]
    for seed in range(20):
        chance = random.Random(seed)
        mixed = chance.choices(frames, k=40)
        stream = b"".join(mixed)
        cuts = sorted(chance.randrange(len(stream)) for _ in range(20))
        expected = [item for frame in mixed for item in ReplyDecoder().feed(frame)]
        for pieces in ([0, len(stream)], [0, *cuts, len(stream)]):
            decoder = ReplyDecoder()
            heard = [
                item for a, b in itertools.pairwise(pieces) for item in decoder.feed(stream[a:b])
            ]
            assert _flatten(heard) == _flatten(expected)


def _flatten(heard: list[AddReplies | ReceivedReply]) -> list[object]:
    """Splits adds into single adds, sorted because their order within a chunk is not fixed."""
    adds = [
        (item.ledger_id, entry_id, str(item.error))
        for item in heard
        if isinstance(item, AddReplies)
        for entry_id in item.entry_ids
    ]
    return [*(item for item in heard if isinstance(item, ReceivedReply)), *sorted(adds)]


@pytest.mark.parametrize("seed", range(20))
def test_v3_add_replies_are_decoded_like_protobuf(seed: int) -> None:
    chance = random.Random(seed)
    expected: list[tuple[int, int, type[RollbookError] | None]] = []
    stream = b""
    for _ in range(100):
        response = pb.Response()
        response.header.version = pb.VERSION_THREE
        response.header.operation = pb.ADD_ENTRY
        response.header.txnId = chance.getrandbits(chance.randrange(1, 65))
        if chance.random() < 0.1:
            response.header.priority = chance.choice((0, 1, 100, 2**32 - 1))
        response.status = chance.choice((pb.EOK, pb.EOK, pb.EOK, pb.EFENCED, pb.EIO))
        add = response.addResponse
        add.status = chance.choice((response.status, pb.EREADONLY))
        add.ledgerId = chance.choice((1, 200, 2**62, -1))
        add.entryId = chance.choice((-1, 0, 127, 128, 16_383, 16_384, 2**40, 2**63 - 1))
        stream += pack_frame(response.SerializeToString())
        error = v3.failure_of(response.status) or v3.failure_of(add.status)
        expected.append((add.ledgerId, add.entryId, error))
    heard = [
        (replies.ledger_id, entry_id, replies.error)
        for replies in ReplyDecoder().feed(stream)
        if isinstance(replies, AddReplies)
        for entry_id in replies.entry_ids
    ]
    assert sorted(heard, key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("seed", range(60))
def test_similar_v3_add_replies_are_decoded_as_protobuf_decodes_them(seed: int) -> None:
    """W2: replies are decoded by columns, except one that differs in a byte or in its ids."""
    chance = random.Random(seed)
    txn_id = chance.choice((1, 100, 16_300, 2**40, 2**63 - 20, 2**64 - 200))
    entry_id = chance.choice((0, 100, 16_300, 2**21 - 20, 2**40, 2**62))
    ledger_id = chance.choice((1, 2**40))
    frames: list[bytes] = []
    for row in range(chance.randrange(9, 200)):
        reply = AddReply(None, LedgerId(ledger_id), EntryId(entry_id + row))
        frames.append(v3.V3ReplyHeader(3, txn_id + row, BookieOperation.ADD).pack(reply))
        if chance.random() < 0.1:
            entry_id += chance.choice((-40, 1, 300))
            entry_id = max(entry_id, 0)
    odd = chance.randrange(len(frames))
    if seed % 3:
        at, value = chance.randrange(4, len(frames[odd])), chance.randrange(256)
        changed = frames[odd][:at] + bytes([value]) + frames[odd][at + 1 :]
        try:
            ReplyDecoder().feed(changed)
        except BadFrame:
            frames = frames[:odd]
        else:
            frames[odd] = changed
    one_by_one = [item for frame in frames for item in ReplyDecoder().feed(frame)]
    assert _flatten(ReplyDecoder().feed(b"".join(frames))) == _flatten(one_by_one)


def test_replies_to_a_run_of_adds_are_a_range() -> None:
    """W2: even where transaction ids grow by a byte."""
    answers = b"".join(
        v3.V3ReplyHeader(3, 2**14 - 50 + row, BookieOperation.ADD).pack(
            AddReply(None, LEDGER, EntryId(1_000 + row))
        )
        for row in range(200)
    )
    (replies,) = ReplyDecoder().feed(answers)
    assert isinstance(replies, AddReplies)
    assert replies.entry_ids == range(1_000, 1_200)


def test_replies_to_alternating_ledgers_are_not_decoded_as_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replies to one ledger recur at a fixed distance, so looking for runs would be wasted work."""
    monkeypatch.delattr(v3_adds, "_take_replies_alike")
    answers = [
        v3.V3ReplyHeader(3, 20_000 + row, BookieOperation.ADD).pack(
            AddReply(None, LedgerId(300 + row % 2), EntryId(20_000 + row // 2))
        )
        for row in range(100)
    ]
    heard = ReplyDecoder().feed(b"".join(answers))
    assert heard == [
        AddReplies(None, LedgerId(ledger_id), [*range(20_000, 20_050)]) for ledger_id in (300, 301)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_v3_read_replies_are_decoded_like_protobuf(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        response = pb.Response()
        response.header.version = pb.VERSION_THREE
        response.header.operation = pb.READ_ENTRY
        response.header.txnId = chance.getrandbits(chance.randrange(1, 65))
        response.status = chance.choice((pb.EOK, pb.EOK, pb.ENOENTRY))
        read = response.readResponse
        read.status = response.status
        read.ledgerId = chance.getrandbits(chance.randrange(1, 64))
        read.entryId = chance.getrandbits(chance.randrange(1, 64)) - 1
        if chance.random() < 0.8:
            read.body = chance.randbytes(chance.choice((0, 10, 200)))
        if chance.random() < 0.5:
            read.maxLAC = chance.choice((-1, 0, 1000))
        if chance.random() < 0.5:
            read.lacUpdateTimestamp = chance.choice((-1, 0, 1_700_000_000_000))
        frame = pack_frame(response.SerializeToString())
        assert ReplyDecoder().feed(frame * 2) == [v3.unpack_reply(frame[4:])] * 2


@pytest.mark.parametrize(
    "request_",
    [
        EntryRead(LEDGER, E5),
        EntryRead(LEDGER, E5, KEY, fence=True),
        Add(LEDGER, E5, KEY, b""),
        Auth("plugin", b""),
        WriteLac(LEDGER, E5, KEY, b"packet"),
        ReadLac(LEDGER),
        ForceLedger(LEDGER),
        GetBookieInfo(total_bytes=True, free_bytes=False),
        ListEntries(LEDGER),
        BatchRead(LEDGER, E5, 42, 2, 3, KEY, fence=True),
        BatchRead(LEDGER, E5, 42, 0, -1, is_sparse=True),
        StartTls(),
    ],
)
def test_refusal_of_each_v3_request_is_decoded(request_: Request) -> None:
    frame = v3.pack_request(77, request_, is_high_priority=True)
    (call,) = [v3.unpack_request(frame[4:])]
    assert call.request == request_
    assert call.is_high_priority
    refusal = refusal_of(request_, LedgerFenced)
    (heard,) = ReplyDecoder().feed(call.refuse(LedgerFenced))
    if isinstance(refusal, AddReply):
        assert heard == AddReplies(LedgerFenced, LEDGER, [E5])
    else:
        assert heard == ReceivedReply(77, refusal)


@pytest.mark.parametrize(
    "request_",
    [
        EntryRead(LEDGER, E5, KEY, fence=True),
        BatchRead(LEDGER, E5, 1, 2, 3, KEY, fence=True),
        BatchRead(LEDGER, E5, 1, 2, 3, is_sparse=True),
    ],
)
def test_refusal_of_v2_requests_is_decoded(request_: Request) -> None:
    (call,) = RequestDecoder().feed(v2.pack_request(request_, is_high_priority=True))
    assert isinstance(call, ReceivedRequest)
    assert call == ReceivedRequest(request_, True, v2.V2ReplyHeader(2))
    answer = ReceivedReply(None, refusal_of(request_, LedgerFenced))
    assert ReplyDecoder().feed(call.refuse(LedgerFenced)) == [answer]


@pytest.mark.parametrize(
    "origin", [v2.V2ReplyHeader(2), v3.V3ReplyHeader(3, 7, BookieOperation.BATCH_READ)]
)
def test_batch_read_reply_survives_round_trip(origin: ReplyHeader) -> None:
    bodies = (bytes(range(40)), bytes(32))
    for reply in (
        BatchReadReply(None, LEDGER, E5, 42, bodies),
        BatchReadReply(None, LEDGER, E5, 1),
    ):
        (answer,) = ReplyDecoder().feed(origin.pack(reply))
        assert isinstance(answer, ReceivedReply)
        assert answer.reply == reply


@pytest.mark.parametrize(
    "origin", [v2.V2ReplyHeader(2), v3.V3ReplyHeader(3, 7, BookieOperation.BATCH_READ)]
)
def test_packed_batch_equals_batch_however_it_is_cut(origin: ReplyHeader) -> None:
    bodies = bytes(range(40)), bytes(32), bytes(LARGE_BYTES)
    packed = b"".join(pack_bodies(bodies))
    frame = origin.pack(BatchReadReply(None, LEDGER, E5, 42, bodies))
    for pieces in ((packed,), (packed[:3], packed[3:50], packed[50:])):
        batch = PackedBatch(LEDGER, E5, 42, pieces)
        assert origin.pack(batch) == frame
        parts = origin.pack_in_pieces(batch)
        assert b"".join(parts) == frame
        assert parts[-1] is pieces[-1]


@pytest.mark.parametrize(
    "origin", [v2.V2ReplyHeader(2), v3.V3ReplyHeader(3, 7, BookieOperation.READ)]
)
@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES - 1, LARGE_BYTES])
def test_entry_packed_in_pieces_equals_entry_packed_whole(origin: ReplyHeader, size: int) -> None:
    reply = ReadReply(None, LEDGER, E5, bytes(size), EntryId(4))
    parts = origin.pack_in_pieces(reply)
    assert b"".join(parts) == origin.pack(reply)
    assert any(part is reply.body for part in parts) == (size == LARGE_BYTES)


def test_refused_batch_read_names_its_request() -> None:
    refusal = refusal_of(BatchRead(LEDGER, E5, 42, 2, 3), LedgerFenced)
    assert refusal == BatchReadReply(LedgerFenced, LEDGER, E5, 42)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_authentication_is_answered_in_version_2(version: int) -> None:
    assert v2.V2ReplyHeader(version).pack(AuthReply("plugin", b""))[4:8] == b"\x02\x03\x00\x00"


def test_refused_v3_authentication_is_decoded_as_refusal() -> None:
    body = bytes.fromhex("0a06080310051801 10f603 b20605 0a017012 00".replace(" ", ""))
    assert ReplyDecoder().feed(pack_frame(body)) == [ReceivedReply(1, Refusal(Unauthorized))]


def test_v2_authentication_cannot_be_refused() -> None:
    (call,) = RequestDecoder().feed(v2.pack_request(Auth("plugin", b"")))
    assert isinstance(call, ReceivedRequest)
    assert call.refuse(Unauthorized) == b""


def test_requests_without_encoding_in_a_protocol_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        v2.pack_request(ReadLac(LEDGER))
    with pytest.raises(InvalidRequest):
        v3.pack_request(1, Unknown())


def test_every_error_with_a_code_survives_round_trip() -> None:
    for error in every_error():
        if error.code.v2 is not None:
            frame = v2.V2ReplyHeader(2).pack(ReadReply(error, LEDGER, E5))
            (answer,) = ReplyDecoder().feed(frame)
            assert isinstance(answer, ReceivedReply)
            assert isinstance(answer.reply, ReadReply)
            assert answer.reply.error is not None
            assert answer.reply.error.code.v2 == error.code.v2
        if error.code.v3 is not None:
            frame = v3.V3ReplyHeader(3, 1, BookieOperation.READ).pack(ReadReply(error, LEDGER, E5))
            (answer,) = ReplyDecoder().feed(frame)
            assert isinstance(answer, ReceivedReply)
            assert isinstance(answer.reply, ReadReply)
            assert answer.reply.error is not None
            assert answer.reply.error.code.v3 == error.code.v3


def test_unknown_code_is_decoded_as_bookie_failed() -> None:
    frame = pack_frame(struct.pack(">Iiqq", 0x02010000, 4711, 7, 5))
    assert ReplyDecoder().feed(frame) == [AddReplies(BookieFailed, LEDGER, [E5])]


@pytest.mark.parametrize(
    "body",
    [
        b"\x02\x01\x00\x00" + bytes(19),
        b"\x02\x02\x00\x00" + bytes(19),
        b"\x02\x07\x00\x00" + bytes(27),
        b"\x02\x07\x00\x00"
        + bytes(28)
        + b"\x00\x00\x00\x29"
        + bytes(40),  # An entry longer than its reply.
        b"\x02\x07\x00\x00" + bytes(28) + b"\x00\x00\x00\x1f" + bytes(31),  # An incomplete header.
        b"\x02\x07\x00\x00" + bytes(28) + b"\xff\xff\xff\xff" + bytes(40),
        b"\x02\x05\x00\x00" + bytes(20),
        bytes.fromhex("0a0608031002180110e707aa060608001007"),  # Status 999.
        bytes.fromhex("0a0608031002180110e707aa0607 08e70710071805"),
        bytes.fromhex("0a0608031002180110 00aa0607 08e70710071805"),
        b"\x02",
        b"\x0a\x06\x08\x03\x10\x01\x18\x01\x10\x00",  # EOK without a body.
        b"\x0a\x06\x08\x03\x10\x01\x18\x01",  # No status.
        # EOK without a list.
        b"\x0a\x06\x08\x03\x10\x0b\x18\x01\x10\x00\xe2\x06\x04\x08\x00\x10\x07",
    ],
)
def test_invalid_reply_is_a_bad_frame(body: bytes) -> None:
    with pytest.raises(BadFrame):
        ReplyDecoder().feed(pack_frame(body))


def test_outer_status_takes_precedence_over_inner_status() -> None:
    def frame(outer: int, inner: int) -> bytes:
        response = pb.Response()
        response.header.version = pb.VERSION_THREE
        response.header.operation = pb.WRITE_LAC
        response.header.txnId = 1
        response.status = pb.StatusCode.ValueType(outer)
        response.writeLacResponse.status = pb.StatusCode.ValueType(inner)
        response.writeLacResponse.ledgerId = 7
        return pack_frame(response.SerializeToString())

    for outer, inner, error in (
        (pb.EFENCED, pb.EIO, LedgerFenced),
        (pb.EFENCED, pb.EOK, LedgerFenced),
        (pb.EOK, pb.EIO, BookieFailed),
        (pb.EOK, pb.EOK, None),
    ):
        (answer,) = ReplyDecoder().feed(frame(outer, inner))
        assert answer == ReceivedReply(1, WriteLacReply(error, LEDGER))


def test_frame_limit_applies_to_replies() -> None:
    frame = v3.V3ReplyHeader(3, 1, BookieOperation.READ).pack(
        ReadReply(None, LEDGER, E5, bytes(1000))
    )
    assert len(ReplyDecoder(len(frame)).feed(frame)) == 1
    with pytest.raises(BadFrame):
        ReplyDecoder(len(frame) - 1).feed(frame)
    v2_frame = v2.V2ReplyHeader(2).pack(ReadReply(None, LEDGER, E5, bytes(1000)))
    with pytest.raises(BadFrame):
        ReplyDecoder(len(v2_frame) - 1).feed(v2_frame)
    with pytest.raises(BadFrame):
        ReplyDecoder().feed(struct.pack(">I", FRAME_BYTES_MAX - 3))


@pytest.mark.parametrize("size", [0, 1, 32])
def test_batch_of_tiny_entries_needs_limited_memory(size: int) -> None:
    """W1: one object for every four bytes of a frame would need fifty times the frame's memory."""
    limit = 256 * 1024
    entry = struct.pack(">i", size) + bytes(size)
    head = struct.pack(">Iiqqq", 0x02070000, 0, 7, 5, 42)
    frame = pack_frame(head + entry * ((limit - 36) // len(entry)))
    tracemalloc.start()
    try:
        if size < 32:
            with pytest.raises(BadFrame):
                ReplyDecoder(limit).feed(frame)
        else:
            assert len(ReplyDecoder(limit).feed(frame)) == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * limit
