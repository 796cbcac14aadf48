"""CPU time of this process for the codec, per entry.

Chunks have 64 KiB, as from a socket, so that they end inside frames. "Decode" parses a chunk,
checks each ledger's key and fence like a bookie, and indexes the entries by ledger and entry id.
"Mixed" has 16 ledgers in turn; "any size" has payloads of 20 to 180 bytes.
"""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire import v2, v2_adds, v3, v3_adds
from rollbook.proto.wire.add_columns import AddGroup, AddPacker, AddReplies, Adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from rollbook.proto.wire.messages import (
    BookieOperation,
    EntryRead,
    ReadReply,
    ReceivedReply,
    ReceivedRequest,
)
from rollbook.proto.wire.reply_decoder import ReplyDecoder
from rollbook.proto.wire.request_decoder import RequestDecoder
from tests.bench import Figure, figure
from tests.support.entries import pack_entry

CHUNK_BYTES: Final = 64 * 1024
ENTRIES: Final = 20_000
FIRST_ENTRY: Final = 60_000  # Entry and transaction ids take three bytes in version 3.
PASSWORD: Final = b"password"
KEY: Final = ledger_key(PASSWORD)
PAYLOAD: Final = b"x" * 100


def figures(runs: int) -> list[Figure]:
    return [
        figure(name, "µs/entry", target, runs, measure) for name, target, measure in _measures()
    ]


def _measures() -> Iterator[tuple[str, float | None, Callable[[], float]]]:
    for version, target in ((2, 1.0), (3, 2.0)):
        yield f"V{version} adds of 100 B: decode, check, index", target, _decoding(version)
        yield f"V{version} adds, any size", None, _decoding(version, any_size=True)
        yield f"V{version} adds, mixed", None, _decoding(version, ledgers=16)
        yield (
            f"V{version} adds, mixed, any size",
            None,
            _decoding(version, ledgers=16, any_size=True),
        )
    for version in (2, 3):
        yield f"V{version} add for three bookies: build with CRC32C", 1.5, _building(version)
    for version in (2, 3):
        yield f"V{version} replies to adds: build", None, _answering(version)
        yield f"V{version} replies to adds: decode", None, _hearing(version)
    for version in (2, 3):
        yield f"V{version} reads: decode", None, _reading(version)
        yield f"V{version} read replies of 100 B: build", None, _finding(version)
        yield f"V{version} read replies: decode, verify CRC32C", None, _found(version)


# --- Adds -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Ledger:
    """The part of a bookie's ledger that an add uses."""

    key: bytes
    is_fenced: bool = False
    positions: dict[EntryId, int] = field(default_factory=dict)


def _packer(version: int, ledger_id: int, txn_ids: Iterator[int]) -> AddPacker:
    digest = LedgerDigest(DigestType.CRC32C, PASSWORD, LedgerId(ledger_id))
    if version == 2:
        return v2_adds.V2AddPacker(KEY, digest)
    return v3_adds.V3AddPacker(KEY, digest, txn_ids)


def _chunks(version: int, ledgers: int = 1, *, any_size: bool = False) -> list[bytes]:
    sizes, txn_ids = random.Random(1), itertools.count(FIRST_ENTRY)
    packers = [_packer(version, 1_000 + index, txn_ids) for index in range(ledgers)]
    frames = [
        packers[index % ledgers].pack(
            EntryId(FIRST_ENTRY + index // ledgers),
            EntryId(FIRST_ENTRY + index // ledgers - 1),
            index * 100,
            b"x" * sizes.randrange(20, 181) if any_size else PAYLOAD,
        )
        for index in range(ENTRIES)
    ]
    return _cut(b"".join(frames))


def _cut(stream: bytes) -> list[bytes]:
    return [stream[at : at + CHUNK_BYTES] for at in range(0, len(stream), CHUNK_BYTES)]


def _decoding(version: int, ledgers: int = 1, *, any_size: bool = False) -> Callable[[], float]:
    chunks = _chunks(version, ledgers, any_size=any_size)

    def measure() -> float:
        known: dict[LedgerId, _Ledger] = {}
        decoder, base, count = RequestDecoder(), 0, 0
        started = time.process_time()
        for chunk in chunks:
            for adds in decoder.feed(chunk):
                assert isinstance(adds, Adds)
                for group in adds.groups:
                    ledger = known.get(group.ledger_id)
                    if ledger is None:
                        ledger = known[group.ledger_id] = _Ledger(group.ledger_key)
                    assert ledger.key == group.ledger_key
                    assert not ledger.is_fenced
                    offset = base - adds.start
                    positions = [offset + start for start in group.starts]
                    ledger.positions.update(zip(group.entry_ids, positions, strict=True))
                    count += len(positions)
                base += adds.end - adds.start
        spent = time.process_time() - started
        assert count == ENTRIES
        return spent / ENTRIES * 1e6

    return measure


def _building(version: int) -> Callable[[], float]:
    pack = _packer(version, 1_000, itertools.count(FIRST_ENTRY)).pack

    def measure() -> float:
        started = time.process_time()
        for entry_id in range(FIRST_ENTRY, FIRST_ENTRY + ENTRIES):
            pack(EntryId(entry_id), EntryId(entry_id - 1), 100 * entry_id, PAYLOAD)
        return (time.process_time() - started) / ENTRIES * 1e6

    return measure


def _groups(version: int) -> list[AddGroup]:
    decoder = RequestDecoder()
    heard = [adds for chunk in _chunks(version) for adds in decoder.feed(chunk)]
    return [group for adds in heard if isinstance(adds, Adds) for group in adds.groups]


def _answering(version: int) -> Callable[[], float]:
    groups = _groups(version)

    def measure() -> float:
        started = time.process_time()
        for group in groups:
            group.pack_replies()
        return (time.process_time() - started) / ENTRIES * 1e6

    return measure


def _hearing(version: int) -> Callable[[], float]:
    chunks = _cut(b"".join(group.pack_replies() for group in _groups(version)))

    def measure() -> float:
        decoder, count = ReplyDecoder(), 0
        started = time.process_time()
        for chunk in chunks:
            for replies in decoder.feed(chunk):
                assert isinstance(replies, AddReplies)
                count += len(replies.entry_ids)
        spent = time.process_time() - started
        assert count == ENTRIES
        return spent / ENTRIES * 1e6

    return measure


# --- Reads ------------------------------------------------------------------------------------


def _reading(version: int) -> Callable[[], float]:
    requests = [
        EntryRead(LedgerId(1_000), EntryId(FIRST_ENTRY + index)) for index in range(ENTRIES)
    ]
    if version == 2:
        chunks = _cut(b"".join(map(v2.pack_request, requests)))
    else:
        chunks = _cut(b"".join(map(v3.pack_request, itertools.count(FIRST_ENTRY), requests)))

    def measure() -> float:
        decoder, count = RequestDecoder(), 0
        started = time.process_time()
        for chunk in chunks:
            for call in decoder.feed(chunk):
                assert isinstance(call, ReceivedRequest)
                count += 1
        spent = time.process_time() - started
        assert count == ENTRIES
        return spent / ENTRIES * 1e6

    return measure


def _finding(version: int) -> Callable[[], float]:
    origin = (
        v2.V2ReplyHeader(2)
        if version == 2
        else v3.V3ReplyHeader(3, FIRST_ENTRY, BookieOperation.READ)
    )
    body = pack_entry(
        LedgerDigest(DigestType.CRC32C, PASSWORD, LedgerId(1_000)),
        EntryId(FIRST_ENTRY),
        NO_ENTRY,
        100,
        PAYLOAD,
    )

    def measure() -> float:
        started = time.process_time()
        for _ in range(ENTRIES):
            origin.pack(ReadReply(None, LedgerId(1_000), EntryId(FIRST_ENTRY), body))
        return (time.process_time() - started) / ENTRIES * 1e6

    return measure


def _found(version: int) -> Callable[[], float]:
    digest = LedgerDigest(DigestType.CRC32C, PASSWORD, LedgerId(1_000))
    origin = (
        v2.V2ReplyHeader(2)
        if version == 2
        else v3.V3ReplyHeader(3, FIRST_ENTRY, BookieOperation.READ)
    )
    frames = []
    for entry_id in map(EntryId, range(FIRST_ENTRY, FIRST_ENTRY + ENTRIES)):
        body = pack_entry(digest, entry_id, NO_ENTRY, 100, PAYLOAD)
        frames.append(origin.pack(ReadReply(None, LedgerId(1_000), entry_id, body)))
    chunks = _cut(b"".join(frames))

    def measure() -> float:
        decoder, count = ReplyDecoder(), 0
        started = time.process_time()
        for chunk in chunks:
            for answer in decoder.feed(chunk):
                assert isinstance(answer, ReceivedReply)
                reply = answer.reply
                assert isinstance(reply, ReadReply)
                assert reply.body is not None
                digest.unpack_entry(reply.body, reply.entry_id)
                count += 1
        spent = time.process_time() - started
        assert count == ENTRIES
        return spent / ENTRIES * 1e6

    return measure
