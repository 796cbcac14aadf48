"""Streams of requests for the tests of the wire protocol, and the decoded requests as a flat list."""

import itertools
import random
from typing import Final, NamedTuple

from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire import v2, v2_adds, v3, v3_adds
from rollbook.proto.wire.add_columns import AddPacker, Adds
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from rollbook.proto.wire.messages import (
    Auth,
    BatchRead,
    EntryRead,
    ReadLac,
    ReceivedRequest,
    Request,
    StartTls,
)
from rollbook.proto.wire.request_decoder import Heard, Refused

PASSWORD: Final = b"secret"
KEY: Final = ledger_key(PASSWORD)
LEDGER: Final = LedgerId(7)


class HeardAdd(NamedTuple):
    ledger_id: LedgerId
    ledger_key: bytes
    is_recovery: bool
    is_high_priority: bool
    is_sync_deferred: bool
    entry_id: EntryId
    lac: EntryId
    body: bytes


def flatten(heard: list[Heard]) -> list[HeardAdd | ReceivedRequest | Refused]:
    """Splits groups of adds into single adds, in the order of their frames."""
    flat: list[HeardAdd | ReceivedRequest | Refused] = []
    for item in heard:
        if isinstance(item, Adds):
            flat += [add for _, add in sorted(_placed(item))]
        else:
            flat.append(item)
    return flat


def _placed(adds: Adds) -> list[tuple[int, HeardAdd]]:
    return [
        (
            start,
            HeardAdd(
                group.ledger_id,
                group.ledger_key,
                group.is_recovery,
                group.is_high_priority,
                group.is_sync_deferred,
                entry_id,
                lac,
                adds.buffer[start:end],
            ),
        )
        for group in adds.groups
        for entry_id, lac, start, end in zip(
            group.entry_ids, group.lacs, group.starts, group.ends, strict=True
        )
    ]


def packers(version: int, ledger_id: LedgerId = LEDGER, first_txn: int = 1) -> list[AddPacker]:
    """Packers for all kinds of adds to one ledger."""
    digest = LedgerDigest(DigestType.CRC32C, PASSWORD, ledger_id)
    flags = [(False, False), (True, False), (True, True), (False, True)]
    if version == 2:
        return [
            v2_adds.V2AddPacker(KEY, digest, is_recovery=recovery, is_high_priority=high)
            for recovery, high in flags
        ]
    txn_ids = itertools.count(first_txn)
    return [
        v3_adds.V3AddPacker(
            KEY,
            digest,
            txn_ids,
            is_recovery=recovery,
            is_high_priority=high,
            is_sync_deferred=deferred,
        )
        for recovery, high in flags
        for deferred in (False, True)
    ]


def random_frames(chance: random.Random, count: int) -> list[bytes]:
    """Frames of both protocols and all kinds, mostly adds, in runs as peers send them."""
    kinds = [
        (packers(version, LedgerId(ledger_id)), version)
        for ledger_id in (1, 127, 128, 2**40)
        for version in (2, 3)
    ]
    frames: list[bytes] = []
    while len(frames) < count:
        writers, version = chance.choice(kinds)
        entry_id = chance.choice((0, 100, 16_000, 2_097_000, 2**62))
        packer = chance.choice(writers)
        for _ in range(chance.choice((1, 1, 3, 30))):
            payload = chance.randbytes(chance.choice((0, 1, 90, 90, 90, 300)))
            frames.append(packer.pack(EntryId(entry_id), EntryId(entry_id - 1), 10, payload))
            entry_id += 1
        if chance.random() < 0.5:
            frames += [_any_request(chance, version) for _ in range(chance.choice((1, 4)))]
    return frames


def _any_request(chance: random.Random, version: int) -> bytes:
    ids = LedgerId(chance.choice((1, 200, 2**63 - 1))), EntryId(chance.choice((-1, 0, 500, 2**40)))
    request: Request = chance.choice(
        (
            EntryRead(*ids),
            EntryRead(*ids),
            EntryRead(*ids, KEY, fence=True),
            Auth("plugin", b"payload"),
        )
    )
    high = chance.random() < 0.2
    if version == 2:
        if chance.random() < 0.2:
            request = BatchRead(*ids, 3, 0, -1)
        return v2.pack_request(request, is_high_priority=high)
    if chance.random() < 0.4:
        request = chance.choice(
            (
                ReadLac(ids[0]),
                StartTls(),
                EntryRead(*ids, previous_lac=NO_ENTRY, piggyback=True, following_bytes_max=1000),
            )
        )
    return v3.pack_request(chance.choice((1, 1000, 2**64 - 1)), request, is_high_priority=high)
