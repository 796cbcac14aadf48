"""The bookie's response to every operation, in every situation, in both protocols.

The table below is the specification, with BookKeeper's names of codes. A cell is the response to
one request; version 2 has the same response unless noted otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pytest

from rollbook.proto.errors import RollbookError, Unavailable
from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.wire import v2, v2_layout, v3
from rollbook.proto.wire.add_columns import AddReplies
from rollbook.proto.wire.digest import ledger_key
from rollbook.proto.wire.frames import pack_frame
from rollbook.proto.wire.messages import (
    Add,
    Auth,
    AuthReply,
    BatchRead,
    EntryRead,
    ForceLedger,
    GetBookieInfo,
    ListEntries,
    ReadLac,
    ReceivedReply,
    Request,
    StartTls,
    WriteLac,
)
from rollbook.proto.wire.reply_decoder import ReplyDecoder
from tests.support.bookie_client import KEY
from tests.unit.bookie.serving import STORAGE, Scene, add_entries, digest_of, entry, tell

# BookKeeper's names, with their numbers in version 2 and version 3.
CODES: Final = {
    "EOK": (0, 0),
    "ENOLEDGER": (1, 402),
    "ENOENTRY": (2, 403),
    "EBADREQ": (100, 404),
    "EIO": (101, 501),
    "EUA": (102, 502),
    "EBADVERSION": (103, 503),
    "EFENCED": (104, 504),
    "EREADONLY": (105, 505),
    "ETOOMANYREQUESTS": (106, 506),
    "EUNKNOWNLEDGERSTATE": (101, 507),  # Version 2 has no such code.
}
CLOSED: Final = "closed"


ENTRY: Final = EntryId(1)


@dataclass(frozen=True)
class Case:
    """The arguments of a request in a situation; each operation has its own ledger."""

    ledger_id: LedgerId
    entry_id: EntryId = ENTRY
    key: bytes = KEY


def _lac(case: Case) -> WriteLac:
    packet = digest_of(case.ledger_id).pack_lac(EntryId(1))
    return WriteLac(case.ledger_id, EntryId(1), case.key, packet)


OPERATIONS: Final[dict[str, Callable[[Case], Request]]] = {
    "read": lambda c: EntryRead(c.ledger_id, c.entry_id),
    "read last": lambda c: EntryRead(c.ledger_id, NO_ENTRY),
    "fence": lambda c: EntryRead(c.ledger_id, c.entry_id, c.key, fence=True),
    "batch": lambda c: BatchRead(c.ledger_id, c.entry_id, 5, 2, 10_000),
    "batch fence": lambda c: BatchRead(c.ledger_id, c.entry_id, 5, 2, 10_000, c.key, fence=True),
    "add": lambda c: Add(c.ledger_id, c.entry_id, c.key, entry(c.ledger_id, c.entry_id)),
    "recovery add": lambda c: Add(
        c.ledger_id, c.entry_id, c.key, entry(c.ledger_id, c.entry_id), is_recovery=True
    ),
    "urgent add": lambda c: Add(c.ledger_id, c.entry_id, c.key, entry(c.ledger_id, c.entry_id)),
    "long poll": lambda c: EntryRead(
        c.ledger_id,
        NO_ENTRY,
        previous_lac=EntryId(c.entry_id - 1),
        timeout_ms=100,
        piggyback=True,
    ),
    "write lac": _lac,
    "read lac": lambda c: ReadLac(c.ledger_id),
    "force": lambda c: ForceLedger(c.ledger_id),
    "list": lambda c: ListEntries(c.ledger_id),
    "info": lambda c: GetBookieInfo(total_bytes=True, free_bytes=True),
    "auth": lambda c: Auth("sasl", b"secret"),
    "start tls": lambda c: StartTls(),
}
SITUATIONS: Final = (
    "sound",
    "no such ledger",
    "no such entry",
    "no entries",
    "in doubt",
    "fenced",
    "deleted",
    "other key",
    "short key",
    "negative ledger",
    "negative entry",
    "read-only",
    "queue full",
    "journal fails",
    "bad version",
)
USUAL: Final = dict.fromkeys(SITUATIONS, "EOK") | {"bad version": "EBADVERSION"}

TABLE: dict[str, dict[str, str]] = {
    "read": {
        "no such ledger": "ENOLEDGER",
        "no such entry": "ENOENTRY",
        "no entries": "ENOENTRY",
        "in doubt": "EUNKNOWNLEDGERSTATE",
        "negative ledger": "ENOLEDGER",
        "negative entry": "ENOENTRY",
        "deleted": "ENOLEDGER",
    },
    "read last": {
        "no such ledger": "ENOLEDGER",
        "no such entry": "EOK",
        "no entries": "ENOENTRY",
        "in doubt": "EUNKNOWNLEDGERSTATE",
        "negative ledger": "ENOLEDGER",
        "negative entry": "EOK",
        "deleted": "ENOLEDGER",
    },
    "fence": {
        "no such ledger": "ENOENTRY",  # The fence creates the ledger.
        "no such entry": "ENOENTRY",
        "no entries": "ENOENTRY",
        "in doubt": "EUNKNOWNLEDGERSTATE",
        "other key": "EUA",
        "short key": "EUA",
        "negative ledger": "EBADREQ",
        "negative entry": "ENOENTRY",
        "deleted": "ENOLEDGER",
        "journal fails": "EIO",
    },
    "add": {
        "no such ledger": "EOK",
        "no such entry": "EOK",
        "no entries": "EFENCED",
        "in doubt": "EFENCED",
        "other key": "EUA",
        "short key": "EBADREQ",
        "negative ledger": "EBADREQ",
        "negative entry": "EBADREQ",
        "fenced": "EFENCED",
        "deleted": "EFENCED",
        "read-only": "EREADONLY",
        "queue full": "ETOOMANYREQUESTS",
        "journal fails": "EIO",
    },
    "long poll": {
        "no such ledger": "ENOLEDGER",
        "no such entry": "EOK",  # The long poll times out and returns only the LAC.
        "no entries": "EOK",
        "in doubt": "EOK",  # Its LAC may be too low, which is harmless.
        "negative ledger": "ENOLEDGER",
        "negative entry": "EOK",
        "deleted": "ENOLEDGER",
    },
    "write lac": {
        "no such ledger": "EOK",
        "no such entry": "EOK",
        "no entries": "EOK",
        "in doubt": "EOK",
        "other key": "EUA",
        "short key": "EUA",
        "negative ledger": "EBADREQ",
        "negative entry": "EOK",
        "deleted": "ENOLEDGER",
        "read-only": "EREADONLY",
        "journal fails": "EIO",
    },
    "read lac": {
        "no such ledger": "ENOENTRY",
        "no such entry": "EOK",
        "no entries": "ENOENTRY",
        "in doubt": "EUNKNOWNLEDGERSTATE",
        "negative ledger": "ENOENTRY",
        "negative entry": "EOK",
        "deleted": "ENOENTRY",
    },
    "force": {},  # No add waits for a sync, so no sync can fail.
    "list": {
        "no such ledger": "ENOLEDGER",
        "no such entry": "EOK",
        "no entries": "EOK",
        "in doubt": "EUNKNOWNLEDGERSTATE",
        "negative ledger": "ENOLEDGER",
        "negative entry": "EOK",
        "deleted": "ENOLEDGER",
    },
    "info": {},
    "auth": {},
}
TABLE = {operation: USUAL | row for operation, row in TABLE.items()}
TABLE["batch"] = TABLE["read"]
TABLE["batch fence"] = TABLE["fence"]
TABLE["recovery add"] = TABLE["add"] | dict.fromkeys(
    ("no entries", "in doubt", "fenced", "queue full"), "EOK"
)
TABLE["urgent add"] = TABLE["add"] | dict.fromkeys(("read-only", "queue full"), "EOK")
TABLE["start tls"] = dict.fromkeys(SITUATIONS, "EBADREQ") | {"bad version": "EBADVERSION"}


def operations(version: int) -> list[str]:
    if version == v2_layout.VERSION:
        return [
            "read",
            "read last",
            "fence",
            "batch",
            "batch fence",
            "add",
            "recovery add",
            "urgent add",
            "auth",
        ]
    return list(OPERATIONS)


def case_of(situation: str, at: int) -> Case:
    sound = LedgerId(100 + at)
    match situation:
        case "no such ledger":
            return Case(LedgerId(200 + at))
        case "no entries":
            return Case(LedgerId(300 + at))
        case "in doubt":
            return Case(LedgerId(400 + at))
        case "negative ledger":
            return Case(LedgerId(-5))
        case "no such entry":
            return Case(sound, entry_id=EntryId(50))
        case "negative entry":
            return Case(sound, entry_id=EntryId(-5))
        case "other key":
            return Case(sound, key=ledger_key(b"other"))
        case "short key":
            return Case(sound, key=b"short")
    return Case(sound)


async def arrange(scene: Scene, situation: str) -> None:
    storage = scene.storage
    for at in range(len(OPERATIONS)):
        # Adds entries one by one, since the queue may have no room for two.
        for entry_id in range(4):
            await add_entries(storage, 100 + at, [entry_id], is_recovery=True)
        await storage.fence(300 + at, KEY)
        if situation == "fenced":
            await storage.fence(100 + at, KEY)
        if situation == "deleted":
            await storage.delete(100 + at)
    await storage.distrust([400 + at for at in range(len(OPERATIONS))])
    if situation == "read-only":
        storage.refuses_adds = True
    if situation == "journal fails":
        scene.node.disk.sync_error_odds = 1.0


def pack(version: int, operation: str, case: Case) -> bytes | None:
    """Returns None if the protocol has no such request."""
    request = OPERATIONS[operation](case)
    is_urgent = operation == "urgent add"
    if version == v2_layout.VERSION:
        if len(case.key) != len(KEY):
            return None
        if isinstance(request, Add):
            flags = (
                v2_layout.RECOVERY_ADD * request.is_recovery | v2_layout.HIGH_PRIORITY * is_urgent
            )
            head = v2_layout.WORD.pack(
                v2_layout.pack_header(v2_layout.VERSION, v2_layout.ADD, flags)
            )
            return pack_frame(head + request.ledger_key + request.body)
        return v2.pack_request(request, is_high_priority=is_urgent)
    return v3.pack_request(1, request, is_high_priority=is_urgent)


def spoil_version(version: int, frame: bytes) -> bytes:
    at, other = (4, 9) if version == v2_layout.VERSION else (7, 2)
    return frame[:at] + bytes([other]) + frame[at + 1 :]


async def ask(scene: Scene, version: int, frame: bytes) -> str:
    """Sends a request; returns the name of the response's code."""
    try:
        raw = await scene.raw()
    except Unavailable:
        return CLOSED
    raw.send(frame)
    heard: list[ReceivedReply | AddReplies] = []
    decoder = ReplyDecoder()

    def is_answered() -> bool:
        data, raw.received = raw.received, b""
        heard.extend(decoder.feed(data))
        return bool(heard) or raw.is_closed

    await raw.until(is_answered)
    raw.transport.abort()
    if not heard:
        return CLOSED
    (answer,) = heard
    reply = answer if isinstance(answer, AddReplies) else answer.reply
    error = None if isinstance(reply, AuthReply) else reply.error
    return name_of(error, version)


def name_of(error: type[RollbookError] | None, version: int) -> str:
    code = 0 if error is None else error.code.v2 if version == v2_layout.VERSION else error.code.v3
    return next(name for name, codes in CODES.items() if codes[version - 2] == code)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("version", [2, 3])
def test_every_operation_in_every_situation(version: int, situation: str) -> None:
    said: dict[str, str] = {}

    async def story(scene: Scene, asked: Sequence[str]) -> None:
        await arrange(scene, situation)
        for at, operation in enumerate(asked):
            frame = pack(version, operation, case_of(situation, at))
            if frame is not None:
                if situation == "bad version":
                    frame = spoil_version(version, frame)
                said[operation] = await ask(scene, version, frame)

    config = replace(STORAGE, queued_bytes_max=60 if situation == "queue full" else 1024 * 1024)
    if situation != "journal fails":
        tell(partial(story, asked=operations(version)), storage_config=config)
    else:
        for operation in operations(version):  # The bookie ends after its first failed sync.
            tell(partial(story, asked=[operation]), may_fail=True)
    assert said == {operation: expectation(version, operation, situation) for operation in said}
    assert len(said) == len(operations(version)) or situation == "short key"


def expectation(version: int, operation: str, situation: str) -> str:
    name = TABLE[operation][situation]
    if version == v2_layout.VERSION and operation == "auth" and situation == "bad version":
        return CLOSED  # This response has no error code.
    return "EIO" if version == v2_layout.VERSION and name == "EUNKNOWNLEDGERSTATE" else name
