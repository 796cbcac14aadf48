"""The decoders of messages between clients and bookies.

For any bytes, each returns a value or raises `BadFrame` and uses little memory (W1). The hot paths
must decode the same as the path for unusual messages (W2), and stored adds the same as the frames
in which they arrived (W3). Entries with a wrong digest or wrong ids are refused (W4).
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from rollbook.bookie.core.entry_salvage import take_frames
from rollbook.proto.errors import BadFrame, DigestMismatch
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire import v2, v2_layout, v3
from rollbook.proto.wire.add_columns import AddReplies, Adds
from rollbook.proto.wire.digest import ENTRY_HEADER_BYTES, DigestType, Entry, LedgerDigest
from rollbook.proto.wire.entry_list import pack_entry_list, unpack_entry_list
from rollbook.proto.wire.frames import LENGTH_BYTES, V3_FIRST_BYTE, FrameDecoder, pack_frame
from rollbook.proto.wire.messages import (
    Add,
    AddReply,
    Auth,
    AuthReply,
    BatchRead,
    BookieInfoReply,
    BookieOperation,
    Failure,
    ForceLedgerReply,
    ListEntriesReply,
    ReadLac,
    ReadLacReply,
    ReadReply,
    ReceivedReply,
    ReceivedRequest,
    Refusal,
    Reply,
    Request,
    StartTlsReply,
    Unknown,
    WriteLacReply,
)
from rollbook.proto.wire.reply_decoder import ReplyDecoder
from rollbook.proto.wire.request_decoder import Refused, RequestDecoder
from tests.fuzz.targets import Target
from tests.golden.bookkeeper import ENTRIES, ENTRY_LISTS, V2_FRAMES, V3_FRAMES
from tests.support.entries import pack_entry
from tests.unit.proto.wire.streams import HeardAdd, flatten

FRAME_BYTES_MAX: Final = 64 * 1024  # Small, so that memory beyond it is noticed.
MEMORY_BYTES_MAX: Final = 8 * FRAME_BYTES_MAX
LEDGER: Final = LedgerId(1)


def targets() -> list[Target]:
    auth = Auth("plugin", b"payload")
    requests = {
        2: (*_with(V2_FRAMES, "request"), v2.pack_request(auth)),
        3: (
            *_with(V3_FRAMES, "request", "recovery", "fence", "poll"),
            v3.pack_request(1, auth),
        ),
    }
    replies = {2: _with(V2_FRAMES, "response"), 3: _with(V3_FRAMES, "response", "START_TLS")}
    both = [requests, replies]
    streams = [tuple(_streams(by_version[2] + by_version[3])) for by_version in both]
    adds = tuple(frame for frame in requests[2] + requests[3] if frame[5:6] in (b"\x01", b"\x06"))
    return [
        *(
            _framed(f"V{version} requests, hot and cold", hear_request_twice, requests[version])
            for version in (2, 3)
        ),
        *(
            _framed(f"V{version} replies, hot and cold", hear_reply_twice, replies[version])
            for version in (2, 3)
        ),
        _framed("requests", _hear_requests, streams[0], _pack_requests),
        _framed("replies", _hear_replies, streams[1], _pack_replies),
        _framed("stored adds", _hear_stored_adds, tuple(_streams(adds))),
        _framed("frames", _split_frames, streams[0], _pack_frames),
        *(_entry_target(kind) for kind in DigestType),
        *(_lac_target(kind) for kind in DigestType),
        Target(
            "entry lists",
            unpack_entry_list,
            (BadFrame,),
            tuple(ENTRY_LISTS.values()),
            pack_entry_list,
        ),
    ]


def _with(frames: dict[str, bytes], *words: str) -> tuple[bytes, ...]:
    return tuple(frame for name, frame in frames.items() if any(word in name for word in words))


def _streams(frames: tuple[bytes, ...]) -> Iterator[bytes]:
    """Each frame alone, and a few sequences of frames."""
    yield from frames
    for start in range(0, len(frames), 3):
        yield b"".join(frames[start : start + 4] * 2)


def _framed(
    name: str,
    decode: Callable[[bytes], Any],
    corpus: tuple[bytes, ...],
    encode: Callable[[Any], bytes] | None = None,
) -> Target:
    return Target(name, decode, (BadFrame,), corpus, encode, _fit_length, MEMORY_BYTES_MAX)


def _fit_length(data: bytes) -> bytes:
    """Sets the length, so that the data is one frame."""
    return pack_frame(data[LENGTH_BYTES:])


# --- Streams ----------------------------------------------------------------------------------


def _split_frames(stream: bytes) -> list[bytes]:
    return FrameDecoder(FRAME_BYTES_MAX).feed(stream)


def _pack_frames(bodies: list[bytes]) -> bytes:
    return b"".join(map(pack_frame, bodies))


def _hear_requests(stream: bytes) -> list[HeardAdd | tuple[Request, bool]]:
    """The decoded requests, without their origins, because old versions are not encoded again."""
    return [
        item if isinstance(item, HeardAdd) else (item.request, item.is_high_priority)
        for item in flatten(RequestDecoder(FRAME_BYTES_MAX).feed(stream))
        if not isinstance(item, Refused) and not _is_of_old_version(item)
    ]


def _is_of_old_version(item: HeardAdd | ReceivedRequest) -> bool:
    origin = item.origin if isinstance(item, ReceivedRequest) else None
    return isinstance(origin, v2.V2ReplyHeader) and origin.version < v2_layout.VERSION


def _pack_requests(heard: list[HeardAdd | tuple[Request, bool]]) -> bytes:
    frames: list[bytes] = []
    for item in heard:
        if isinstance(item, HeardAdd):
            add = Add(
                item.ledger_id,
                item.entry_id,
                item.ledger_key,
                item.body,
                item.is_recovery,
                item.is_sync_deferred,
            )
            frames.append(v3.pack_request(1, add, is_high_priority=item.is_high_priority))
        elif isinstance(item[0], BatchRead):
            frames.append(v2.pack_request(item[0], is_high_priority=item[1]))
        else:
            frames.append(v3.pack_request(1, item[0], is_high_priority=item[1]))
    return b"".join(frames)


def _hear_replies(stream: bytes) -> list[AddReply | ReceivedReply]:
    """Responses first, then adds sorted by their ids, because their order is not defined."""
    adds: list[AddReply] = []
    answers: list[ReceivedReply] = []
    for item in ReplyDecoder(FRAME_BYTES_MAX).feed(stream):
        if isinstance(item, AddReplies):
            adds += [AddReply(item.error, item.ledger_id, entry) for entry in item.entry_ids]
        else:
            answers.append(item)
    adds.sort(key=lambda add: (add.ledger_id, add.entry_id, str(add.error)))
    return [*answers, *adds]


def _pack_replies(heard: list[AddReply | ReceivedReply]) -> bytes:
    frames: list[bytes] = []
    for item in heard:
        if isinstance(item, AddReply):
            frames.append(v3.V3ReplyHeader(3, 1, BookieOperation.ADD).pack(item))
        elif item.txn_id is None:
            frames.append(v2.V2ReplyHeader(2).pack(item.reply))
        else:
            operation = _OPERATIONS[type(item.reply)]
            frames.append(v3.V3ReplyHeader(3, item.txn_id, operation).pack(item.reply))
    return b"".join(frames)


_OPERATIONS: Final[dict[type[Reply], BookieOperation]] = {
    ReadReply: BookieOperation.READ,
    AddReply: BookieOperation.ADD,
    AuthReply: BookieOperation.AUTH,
    WriteLacReply: BookieOperation.WRITE_LAC,
    ReadLacReply: BookieOperation.READ_LAC,
    ForceLedgerReply: BookieOperation.FORCE_LEDGER,
    BookieInfoReply: BookieOperation.GET_BOOKIE_INFO,
    ListEntriesReply: BookieOperation.LIST_ENTRIES,
    StartTlsReply: BookieOperation.START_TLS,
    Refusal: BookieOperation.BATCH_READ,
}


def _hear_stored_adds(frames: bytes) -> list[object]:
    """The adds as a bookie decodes them when it reads them from the journal."""
    stretches = [*take_frames(frames)]
    stored = b"".join(bytes(adds.frames) for adds in stretches)
    assert frames.startswith(stored)
    if stored != frames:
        raise BadFrame("stored adds hold something else")
    heard = RequestDecoder(len(frames) + 1).feed(frames)
    assert flatten(heard) == flatten([*stretches])
    for adds in stretches:
        assert adds.frames_of(adds.groups) == adds.frames
    return list(flatten(heard))


# --- Hot and cold -----------------------------------------------------------------------------

# The bytes after a frame must be decoded as if they came alone.
_NEXT_REQUEST: Final = v3.pack_request(9, ReadLac(LEDGER))
_NEXT_REPLY: Final = v3.V3ReplyHeader(3, 9, BookieOperation.READ_LAC).pack(
    ReadLacReply(None, LEDGER)
)


def hear_request_twice(stream: bytes) -> None:
    for body in FrameDecoder(FRAME_BYTES_MAX).feed(stream):
        frame = pack_frame(body)
        try:
            if body[0] == V3_FIRST_BYTE:
                cold = v3.unpack_request(body)
            else:
                cold = v2.unpack_request(frame, LENGTH_BYTES, len(frame))
        except BadFrame:
            _expect_bad_frame(RequestDecoder().feed, frame + _NEXT_REQUEST)
            continue
        hot, *rest = RequestDecoder().feed(frame + _NEXT_REQUEST)
        assert rest == RequestDecoder().feed(_NEXT_REQUEST)
        if isinstance(hot, Refused):
            sound = cold.origin.is_supported and not isinstance(cold.request, Unknown | Add)
            assert not sound, f"{cold} was refused"
        elif isinstance(hot, ReceivedRequest):
            assert hot == cold
        else:
            _compare_add(hot, cold)


def _compare_add(hot: Adds, cold: ReceivedRequest) -> None:
    add = cold.request
    assert isinstance(add, Add), f"{cold} was taken for an add"
    (heard,) = flatten([hot])
    assert heard == HeardAdd(
        add.ledger_id,
        add.ledger_key,
        add.is_recovery,
        cold.is_high_priority,
        add.is_sync_deferred,
        add.entry_id,
        EntryId(int.from_bytes(add.body[16:24], signed=True)),
        add.body,
    )
    assert int.from_bytes(add.body[:8]) == add.ledger_id
    assert int.from_bytes(add.body[8:16]) == add.entry_id
    reply, expected = hot.groups[0].pack_replies(), cold.answer(_added(add))
    if isinstance(cold.origin, v3.V3ReplyHeader):
        assert v3.unpack_reply(reply[LENGTH_BYTES:]) == v3.unpack_reply(expected[LENGTH_BYTES:])
    else:
        assert reply == expected


def _added(add: Add, error: Failure = None) -> AddReply:
    return AddReply(error, add.ledger_id, add.entry_id)


def hear_reply_twice(stream: bytes) -> None:
    for body in FrameDecoder(FRAME_BYTES_MAX).feed(stream):
        frame = pack_frame(body)
        try:
            if body[0] == V3_FIRST_BYTE:
                cold = v3.unpack_reply(body)
            else:
                cold = v2.unpack_reply(frame, LENGTH_BYTES, len(frame))
        except BadFrame:
            _expect_bad_frame(ReplyDecoder().feed, frame + _NEXT_REPLY)
            continue
        hot, *rest = ReplyDecoder().feed(frame + _NEXT_REPLY)
        assert rest == ReplyDecoder().feed(_NEXT_REPLY)
        if isinstance(cold.reply, AddReply):
            expected = cold.reply
            assert hot == AddReplies(expected.error, expected.ledger_id, [expected.entry_id])
        else:
            assert hot == cold


def _expect_bad_frame(feed: Callable[[bytes], object], frame: bytes) -> None:
    try:
        heard = feed(frame)
    except BadFrame:
        return
    raise AssertionError(f"{heard} was made of a bad frame")


# --- Entries ----------------------------------------------------------------------------------


def _entry_target(kind: DigestType) -> Target:
    digest = LedgerDigest(kind, b"testPasswd", LEDGER)
    entry = ENTRIES[f"entry {kind.name}"]

    def decode(data: bytes) -> Entry:
        return digest.unpack_entry(data, None)

    def encode(entry: Entry) -> bytes:
        _, entry_id, lac, ledger_length, payload = entry
        return pack_entry(digest, entry_id, lac, ledger_length, payload)

    def refit(data: bytes) -> bytes:
        header = data[:ENTRY_HEADER_BYTES]
        payload = data[ENTRY_HEADER_BYTES + kind.size :]
        return header + digest.digest(header, payload) + payload

    corpus = (entry, entry + bytes(range(256)))
    return Target(f"entries, {kind.name}", decode, (DigestMismatch,), corpus, encode, refit)


def _lac_target(kind: DigestType) -> Target:
    digest = LedgerDigest(kind, b"testPasswd", LEDGER)
    corpus = (ENTRIES[f"LAC packet {kind.name}"], digest.pack_lac(EntryId(2**62)))

    def refit(data: bytes) -> bytes:
        return data[:16] + digest.digest(data[:16], b"")

    name = f"LAC packets, {kind.name}"
    return Target(name, digest.unpack_lac, (DigestMismatch,), corpus, digest.pack_lac, refit)
