"""Requests of the load generator, built before the measurement, and the length of their responses.

A batch is a part of one connection's stream: complete frames, sent with as few system calls as
possible. Responses are counted by their length, which is known in advance, and decoded after the
measurement.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire import v2, v2_adds, v3_adds
from rollbook.proto.wire.add_columns import AddPacker, AddReplies, Adds
from rollbook.proto.wire.digest import ENTRY_HEADER_BYTES, DigestType, LedgerDigest, ledger_key
from rollbook.proto.wire.messages import BatchRead, BatchReadReply, EntryRead, ReadReply
from rollbook.proto.wire.reply_decoder import ReplyDecoder
from rollbook.proto.wire.request_decoder import RequestDecoder

PASSWORD: Final = b"password"
KEY: Final = ledger_key(PASSWORD)
DIGEST_BYTES: Final = 4  # CRC-32C.

_V2_ADD_HEAD_BYTES: Final = 28
_V2_READ_REPLY_HEAD_BYTES: Final = 28
_V2_BATCH_READ_REPLY_HEAD_BYTES: Final = 36
_ENTRY_SIZE_BYTES: Final = 4


class FrameBatch(NamedTuple):
    frames: bytes
    reply_bytes: int
    entries: int


def entry_bytes(payload_bytes: int) -> int:
    """The size of a stored entry."""
    return ENTRY_HEADER_BYTES + DIGEST_BYTES + payload_bytes


def digest_of(ledger_id: int) -> LedgerDigest:
    return LedgerDigest(DigestType.CRC32C, PASSWORD, LedgerId(ledger_id))


def add_batches(
    ledger_ids: Sequence[int],
    entries: int,
    payload_bytes: int,
    batch_bytes: int,
    *,
    version: int = 2,
    first_entry: int = 0,
    in_a_row: int = 1,
) -> list[FrameBatch]:
    """Batches with `entries` adds of one connection to its ledgers in turn, `in_a_row` to each."""
    packers = [_packer(version, ledger_id) for ledger_id in ledger_ids]
    payload = b"x" * payload_bytes
    batches: list[FrameBatch] = []
    frames: list[bytes] = []
    size = 0
    for number in range(entries):
        turn, at = divmod(number, len(packers) * in_a_row)
        at, within = divmod(at, in_a_row)
        entry_id = first_entry + turn * in_a_row + within
        frame = packers[at].pack(
            EntryId(entry_id), EntryId(entry_id - 1), entry_id * payload_bytes, payload
        )
        frames.append(frame)
        size += len(frame)
        if size >= batch_bytes or number == entries - 1:
            batches.append(_add_batch(b"".join(frames), len(frames)))
            frames, size = [], 0
    return batches


_txn_ids: Final[Iterator[int]] = itertools.count(60_000)  # Three bytes each in version 3.


def _packer(version: int, ledger_id: int) -> AddPacker:
    if version == 2:
        return v2_adds.V2AddPacker(KEY, digest_of(ledger_id))
    return v3_adds.V3AddPacker(KEY, digest_of(ledger_id), _txn_ids)


def _add_batch(frames: bytes, count: int) -> FrameBatch:
    heard = RequestDecoder().feed(frames)
    reply_bytes = sum(
        len(group.pack_replies())
        for adds in heard
        if isinstance(adds, Adds)
        for group in adds.groups
    )
    return FrameBatch(frames, reply_bytes, count)


def read_batches(
    ledger_id: int, entries: int, payload_bytes: int, batch_entries: int
) -> list[FrameBatch]:
    """Batches of single reads of version 2."""
    reply = _V2_READ_REPLY_HEAD_BYTES + entry_bytes(payload_bytes)
    return [
        FrameBatch(
            b"".join(
                v2.pack_request(EntryRead(LedgerId(ledger_id), EntryId(entry_id)))
                for entry_id in range(start, min(start + batch_entries, entries))
            ),
            reply * min(batch_entries, entries - start),
            min(batch_entries, entries - start),
        )
        for start in range(0, entries, batch_entries)
    ]


def batch_read_batches(
    ledger_id: int, entries: int, payload_bytes: int, batch_entries: int
) -> list[FrameBatch]:
    """Batches with one BATCH_READ each."""
    each = _ENTRY_SIZE_BYTES + entry_bytes(payload_bytes)
    return [
        FrameBatch(
            v2.pack_request(
                BatchRead(LedgerId(ledger_id), EntryId(start), start, batch_entries, 2**22)
            ),
            _V2_BATCH_READ_REPLY_HEAD_BYTES + each * min(batch_entries, entries - start),
            min(batch_entries, entries - start),
        )
        for start in range(0, entries, batch_entries)
    ]


def count_successes(replies: bytearray) -> int:
    """The number of entries that were added or found according to the responses of one connection."""
    found = 0
    for heard in ReplyDecoder().feed(bytes(replies)):
        if isinstance(heard, AddReplies):
            found += len(heard.entry_ids) if heard.error is None else 0
        elif isinstance(heard.reply, BatchReadReply):
            found += len(heard.reply.bodies)
        elif isinstance(heard.reply, ReadReply):
            found += heard.reply.error is None
    return found
