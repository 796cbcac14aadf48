"""Hostile connections to a real bookie process: what each sends, and how it must end.

An attack sends some bytes at once, then others one at a time. It ends when the bookie closes the
connection or responds, or lasts as long as its client likes.
"""

import random
import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rollbook.proto.ids import NO_ENTRY, EntryId, LedgerId
from rollbook.proto.ports import Address
from rollbook.proto.wire import v2, v2_layout, v3
from rollbook.proto.wire.digest import DigestType, LedgerDigest, ledger_key
from rollbook.proto.wire.frames import FRAME_BYTES_MAX
from rollbook.proto.wire.messages import BatchRead, EntryRead
from rollbook.proto.wire.v2_adds import V2AddPacker
from rollbook.proto.wire.v3_adds import V3AddPacker

_length: Final = struct.Struct(">I").pack
_LEDGER: Final = LedgerId(666)
_KEY: Final = ledger_key(b"evil")
_CONNECT_S: Final = 30.0
_SLOW_STEP_S: Final = 1.0
_LARGE_BYTES: Final = 500_000
_FIELDS: Final = 160_000


class End(Enum):
    HUNG_UP = "hung up on"  # The bookie closed the connection.
    ANSWERED = "answered"
    EITHER = "answered, hung up on, or let be"


@dataclass(frozen=True)
class Attack:
    name: str
    first: bytes  # Sent at once, as far as the bookie reads it.
    end: End
    drip: bytes = b""  # Sent after `first`, a byte a second, repeatedly.
    leaves: bool = False  # The client shuts its side down right after `first`.
    resets: bool = False  # The client resets the connection right after `first`.
    answer: bytes = b""  # Start of the response, if one arrives before the end.


def attacks() -> list[Attack]:
    """One attack of each kind. Random bytes are the same in every run."""
    chance = random.Random(666)
    digest = LedgerDigest(DigestType.CRC32C, b"evil", _LEDGER)
    add_v2 = V2AddPacker(_KEY, digest).pack(EntryId(0), EntryId(NO_ENTRY), 0, bytes(1000))
    add_v3 = V3AddPacker(_KEY, digest, iter(range(1, 99))).pack(
        EntryId(0), EntryId(NO_ENTRY), 0, bytes(1000)
    )
    unknown_v2 = _length(24) + _length(v2_layout.pack_header(2, 77)) + bytes(20)
    unknown_v3 = _frame(b"\x0a\x06\x08\x03\x10\x4d\x18\x01")  # Operation 77.
    no_body = _frame(b"\x0a\x06\x08\x03\x10\x02\x18\x01")  # An ADD without its add request.
    many_fields = _frame(b"\x0a\x06\x08\x03\x10\x02\x18\x01" + b"\xa2\x1f\x00" * _FIELDS)
    nested = _frame(b"\x0a\x06\x08\x03\x10\x02\x18\x01" + _nested(20_000))
    reads = b"".join(v2.pack_request(EntryRead(_LEDGER, EntryId(each))) for each in range(200))
    batches = b"".join(
        v2.pack_request(BatchRead(_LEDGER, EntryId(0), each, 10**6, 2**31 - 1))
        for each in range(50)
    )
    polls = b"".join(
        v3.pack_request(
            each,
            EntryRead(
                _LEDGER, NO_ENTRY, previous_lac=EntryId(99), timeout_ms=10**9, piggyback=True
            ),
        )
        for each in range(50)
    )
    return [
        Attack("garbage", chance.randbytes(64 * 1024), End.HUNG_UP),
        Attack("garbage behind a true length", _frame(b"\x0a" + chance.randbytes(900)), End.HUNG_UP),
        Attack("a length of 2 GiB", _length(2**31 - 1) + bytes(60_000), End.HUNG_UP),
        Attack("a length below zero", _length(2**32 - 1) + bytes(60_000), End.HUNG_UP),
        Attack("a length just too large", _length(FRAME_BYTES_MAX + 1) + bytes(9), End.HUNG_UP),
        Attack("a length of zero", _length(0) * 1_000, End.HUNG_UP),
        Attack("HTTP", b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n", End.HUNG_UP),
        Attack("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), End.HUNG_UP),
        Attack("an unknown operation, version 2", unknown_v2, End.EITHER),
        Attack("an unknown operation, version 3", unknown_v3, End.EITHER),
        Attack("an add without its add", no_body, End.ANSWERED),
        Attack("an old version", _length(24) + bytes(24), End.EITHER),
        Attack("a message of 160,000 fields", many_fields, End.EITHER),
        Attack("a message 20,000 deep", nested, End.EITHER),
        Attack("half an add, and gone", add_v2[:500], End.HUNG_UP, leaves=True),
        Attack("half an add, and reset", add_v3[:500], End.HUNG_UP, resets=True),
        Attack("half an add, and silence, version 2", add_v2[:500], End.HUNG_UP),
        Attack("half an add, and silence, version 3", add_v3[:500], End.HUNG_UP),
        unfinished(_LARGE_BYTES),
        unfinished(_LARGE_BYTES, leaves=True),
        Attack("one byte a second", add_v3[:1], End.HUNG_UP, drip=add_v3[1:200]),
        Attack("an add of 5 MiB at one byte a second", _length(FRAME_BYTES_MAX - 4), End.HUNG_UP,
               drip=add_v3[4:200]),
        Attack("nothing at all", b"", End.EITHER),
        Attack("reads, answers unread", reads, End.EITHER),
        Attack("batch reads of 2 GiB", batches, End.EITHER),
        Attack("long polls for weeks", polls, End.EITHER),
    ]  # fmt: skip


def unfinished(payload_bytes: int, *, leaves: bool = False) -> Attack:
    """All but the last byte of an add."""
    digest = LedgerDigest(DigestType.CRC32C, b"evil", _LEDGER)
    frame = V2AddPacker(_KEY, digest).pack(EntryId(1), EntryId(NO_ENTRY), 0, bytes(payload_bytes))
    name = "most of a large add, and " + ("gone" if leaves else "silence")
    return Attack(name, frame[:-1], End.HUNG_UP, leaves=leaves)


def _frame(body: bytes) -> bytes:
    return _length(len(body)) + body


def _nested(depth: int) -> bytes:
    """Nested groups of unknown fields."""
    return b"\xa3\x1f" * depth + b"\xa4\x1f" * depth


class Mob:
    """Any number of attackers, driven by one thread. They read only the start of responses."""

    def __init__(self, address: Address) -> None:
        self._address = address.host, address.port
        self._selector = selectors.DefaultSelector()
        self._stack = ExitStack()
        self._members: list[_Member] = []

    def add(
        self,
        attack: Attack,
        count: int,
        tls: ssl.SSLContext | None = None,
        address: Address | None = None,
    ) -> None:
        """`tls`: for a handshake before the attack. `address`: another one than the mob's."""
        host, port = (address.host, address.port) if address else self._address
        for _ in range(count):
            connection = socket.create_connection((host, port), _CONNECT_S)
            if tls:
                connection = tls.wrap_socket(connection, server_hostname=host)
            connection.setblocking(False)
            self._stack.callback(connection.close)
            member = _Member(connection, attack)
            self._members.append(member)
            self._selector.register(
                connection, selectors.EVENT_READ | selectors.EVENT_WRITE, member
            )

    def run(self, is_enough: Callable[["Mob"], bool], timeout_s: float) -> bool:
        """Run until `is_enough` is true; returns False if that takes longer than `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not is_enough(self):
            if time.monotonic() > deadline:
                return False
            self._turn()
        return True

    def _turn(self) -> None:
        now = time.monotonic()
        for member in self._members:
            member.drip(now)
        if not self._selector.get_map():
            time.sleep(0.01)
            return
        for key, events in self._selector.select(0.05):
            member = key.data
            if events & selectors.EVENT_WRITE:
                member.send()
            if events & selectors.EVENT_READ:
                member.receive()
            if member.is_over:
                self._selector.unregister(member.connection)
            else:
                wanted = selectors.EVENT_READ if not member.is_done_reading else 0
                wanted |= selectors.EVENT_WRITE if member.rest else 0
                if wanted:
                    self._selector.modify(member.connection, wanted, member)
                else:
                    self._selector.unregister(member.connection)

    @property
    def members(self) -> Sequence["_Member"]:
        return self._members

    def close(self) -> None:
        self._selector.close()
        self._stack.close()

    def __enter__(self) -> "Mob":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_READ_MAX: Final = 1024  # An attacker reads no more of its responses.
_RECORD_BYTES_MAX: Final = 16 * 1024  # A TLS record: selectors do not report the rest of one.
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class _Member:
    def __init__(self, connection: socket.socket, attack: Attack) -> None:
        self.connection = connection
        self.attack = attack
        self.rest = memoryview(attack.first)
        self.heard = b""  # The part of the responses that was read.
        self.is_hung_up = False
        self.has_left = False
        self._drip_at = time.monotonic() + _SLOW_STEP_S
        self._dripped = 0

    @property
    def is_over(self) -> bool:
        return self.is_hung_up or self.has_left

    @property
    def is_done_reading(self) -> bool:
        return len(self.heard) >= _READ_MAX

    @property
    def has_ended(self) -> bool:
        """Whether the attack has ended as its `End` requires."""
        match self.attack.end:
            case End.HUNG_UP:
                return self.is_hung_up or self.has_left
            case End.ANSWERED:
                return bool(self.heard)
            case End.EITHER:
                return not self.rest or self.is_hung_up

    def send(self) -> None:
        try:
            if self.rest:
                self.rest = self.rest[self.connection.send(self.rest) :]
        except _NOT_NOW:
            return
        except OSError:
            self.receive()  # The earlier responses are still to be read.
            self.is_hung_up = True
            return
        if not self.rest and self.attack.resets:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
            self.has_left = True
        elif not self.rest and self.attack.leaves:
            # The plain socket's method: after that of `ssl`, received data stay encrypted.
            socket.socket.shutdown(self.connection, socket.SHUT_WR)

    def receive(self) -> None:
        try:
            found = self.connection.recv(_RECORD_BYTES_MAX)
        except _NOT_NOW:
            return
        except OSError:
            found = b""
        self.heard += found
        self.is_hung_up |= not found

    def drip(self, now: float) -> None:
        if not self.attack.drip or self.is_over or now < self._drip_at:
            return
        self._drip_at = now + _SLOW_STEP_S
        at = self._dripped % len(self.attack.drip)
        try:
            self.connection.send(self.attack.drip[at : at + 1])
        except _NOT_NOW:
            return
        except OSError:
            self.is_hung_up = True
        self._dripped += 1


def all_have_ended(mob: Mob) -> bool:
    return all(member.has_ended for member in mob.members)


def keep_coming(
    address: Address, attack: Attack, seconds: float, count: int, tls: ssl.SSLContext | None = None
) -> None:
    """Open `count` connections each second, and close them after a second."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        with Mob(address) as mob:
            mob.add(attack, count, tls)
            mob.run(_never, 1.0)


def _never(_: Mob) -> bool:
    return False
