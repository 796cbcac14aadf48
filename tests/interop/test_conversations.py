"""The same conversation with a bookie of each make: their responses agree.

Each step is answered before the next is sent, so that the result does not depend on timing. Steps include
requests that the Java client never sends: with another writer's key, without a key, for missing entries.
`agree` has the responses that differ on purpose.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from rollbook.proto.errors import BookieFailed, NoSuchEntry
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.ports import Buffer
from rollbook.proto.wire.add_columns import AddReplies
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from rollbook.proto.wire.messages import (
    Auth,
    BatchRead,
    BatchReadReply,
    BookieInfoReply,
    EntryRead,
    ForceLedger,
    GetBookieInfo,
    ListEntries,
    ReadLac,
    ReadLacReply,
    ReadReply,
    Reply,
    Request,
    StartTls,
    WriteLac,
)
from tests.interop.cluster import Cluster
from tests.support import bookie_client
from tests.support.bookie_client import BookieClient

STEPS = 150
ENTRIES = 6  # Few, so that steps concern the same entries.
PASSWORDS = (b"ours", b"ours", b"ours", b"theirs")
SIZES = (0, 1, 100, 5000)


@dataclass(frozen=True)
class Write:
    """An add."""

    ledger_id: LedgerId
    entry_id: EntryId
    lac: EntryId
    payload: bytes
    password: bytes
    is_recovery: bool
    is_high_priority: bool
    is_sync_deferred: bool


Step = Request | Write
Heard = Reply | AddReplies


class Speaker:
    def __init__(self, client: BookieClient) -> None:
        self._client = client

    async def say(self, step: Step) -> Heard:
        if not isinstance(step, Write):
            return await self._client.call(step)
        answer: asyncio.Future[AddReplies] = asyncio.get_running_loop().create_future()
        self._client.on_adds = answer.set_result
        ledger = self._client.ledger(step.ledger_id, password=step.password)
        self._client.send(
            ledger.pack(
                step.entry_id,
                step.lac,
                step.payload,
                is_recovery=step.is_recovery,
                is_high_priority=step.is_high_priority,
                is_sync_deferred=step.is_sync_deferred,
            )
        )
        async with asyncio.timeout(bookie_client.CALL_TIMEOUT_S):
            return await answer


def conversation(version: int, chance: random.Random) -> Iterator[Step]:
    ledgers = [LedgerId(chance.randrange(1 << 40, 1 << 50)) for _ in range(3)]
    for _ in range(STEPS):
        ledger_id = chance.choice(ledgers)
        entry_id = EntryId(chance.randrange(ENTRIES))
        password = chance.choice(PASSWORDS)
        key = ledger_key(password)
        fence = chance.random() < 0.1
        kinds = ["write", "write", "write", "read", "read", "auth"]
        kinds += (
            ["batch", "batch"]
            if version == 2
            else ["poll", "poll", "write_lac", "read_lac", "force", "list", "info", "tls"]
        )
        match chance.choice(kinds):
            case "write":
                yield Write(
                    ledger_id,
                    entry_id,
                    EntryId(chance.randrange(-1, entry_id + 1)),
                    bytes(SIZES[(ledger_id + entry_id) % len(SIZES)]),
                    password,
                    is_recovery=chance.random() < 0.3,
                    is_high_priority=chance.random() < 0.3,
                    is_sync_deferred=version == 3 and chance.random() < 0.2,
                )
            case "read":
                entry_id = chance.choice((entry_id, NO_ENTRY))
                shown = key if fence else None
                if version == 3:  # There the key is optional.
                    shown = chance.choice((key, key, None))
                yield EntryRead(ledger_id, entry_id, shown, fence)
            case "batch":
                yield BatchRead(
                    ledger_id,
                    entry_id,
                    chance.randrange(1 << 40),
                    chance.randrange(-1, ENTRIES),
                    chance.choice((0, 100, 5200, 1 << 20)),
                    key if fence else None,
                    fence,
                )
            case "poll":
                yield EntryRead(
                    ledger_id,
                    NO_ENTRY,
                    previous_lac=EntryId(chance.randrange(-1, ENTRIES)),
                    timeout_ms=chance.choice((None, 0, 20)),
                    piggyback=True,
                )
            case "write_lac":
                digest = LedgerDigest(DigestType.CRC32C, password, ledger_id)
                yield WriteLac(ledger_id, entry_id, key, digest.pack_lac(entry_id))
            case "read_lac":
                yield ReadLac(ledger_id)
            case "force":
                yield ForceLedger(ledger_id)
            case "list":
                yield ListEntries(ledger_id)
            case "info":
                yield GetBookieInfo(chance.random() < 0.5, chance.random() < 0.5)
            case "tls":
                yield StartTls()
            case "auth":
                yield Auth("SomePlugin", b"payload")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("version", [2, 3])
async def test_both_makes_answer_alike(mixed: Cluster, version: int, seed: int) -> None:
    ours, _, theirs = (bookie.address for bookie in mixed.bookies)
    async with (
        await bookie_client.connect(ours, version=version) as to_us,
        await bookie_client.connect(theirs, version=version) as to_them,
    ):
        us, them = Speaker(to_us), Speaker(to_them)
        for step in conversation(version, random.Random(seed)):
            our_answer, their_answer = await us.say(step), await them.say(step)
            assert agree(our_answer, their_answer), f"{step}: {our_answer}, not {their_answer}"


def agree(ours: Heard, theirs: Heard) -> bool:
    """Whether the responses are equal, apart from intended and allowed differences."""
    match ours, theirs:
        case ReadLacReply(error=None, packet=bytes(packet)), ReadLacReply(packet=bytes(last)):
            # We return the highest LAC ever stored, not the last, and do not fail without an entry.
            return (
                packet >= last
                and theirs.error is (None if ours.last_entry else BookieFailed)
                and plain(ours.last_entry) == plain(theirs.last_entry)
            )
        case ReadReply(None, _, -1, None, -1), ReadReply(error=error) if error is NoSuchEntry:
            return True  # A poll of a ledger without entries has no news.
        case BatchReadReply(), BatchReadReply():
            # Java assumes that all entries have the first one's size, and may stop early.
            bodies = [plain(body) for body in ours.bodies]
            fewer = [plain(body) for body in theirs.bodies]
            return (
                (not bodies or bool(fewer))
                and bodies[: len(fewer)] == fewer
                and replace(ours, bodies=()) == replace(theirs, bodies=())
            )
        case BookieInfoReply(), BookieInfoReply():
            return [ours.error, ours.total_bytes is None, ours.free_bytes is None] == [
                theirs.error,
                theirs.total_bytes is None,
                theirs.free_bytes is None,
            ]
        case ReadReply(), ReadReply():
            return _untimed(ours) == _untimed(theirs)
        case ReadLacReply(), ReadLacReply():
            return replace(ours, last_entry=plain(ours.last_entry)) == replace(
                theirs, last_entry=plain(theirs.last_entry)
            )
    return ours == theirs


def plain(body: Buffer | None) -> bytes | None:
    """The body without LAC and digest, which differ between copies of an entry written twice."""
    whole = None if body is None else bytes(body)
    return whole and whole[:16] + whole[24:32] + whole[36:]


def _untimed(reply: ReadReply) -> ReadReply:
    return reply._replace(body=plain(reply.body), lac_updated_ms=None)
