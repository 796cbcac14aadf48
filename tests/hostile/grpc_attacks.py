"""Hostile connections to a log server's gRPC port: hand-made HTTP/2 frames that no client library sends.

Bad requests that a client library can send are refused with a status (`test_attacks_on_tls_ports.py`).

`python -m tests.hostile.grpc_attacks HOST PORT NAME SECONDS COUNT AUTHORITY CERTIFICATE KEY` sends COUNT attacks of a kind
each second, without a certificate if CERTIFICATE is empty. It is a separate process, so that the attackers' own cost is
not counted as an effect on other clients.
"""

import gzip
import random
import struct
import sys
from typing import Final

from rollbook.api.grpc.protobuf_conversion import pack
from rollbook.api.rpc_methods import METHODS, READ_STREAM
from rollbook.logservice import messages
from rollbook.logservice.position_syntax import Earliest
from rollbook.proto.ports import Address
from rollbook.proto.runtime.tls import client_context
from tests.hostile.attacks import Attack, End, keep_coming
from tests.hostile.guarded import LONG_LOG

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW, _CONTINUATION = 0, 1, 3, 4, 6, 8, 9
_END_STREAM: Final = 0x1
_ACK: Final = 0x1
_END_HEADERS: Final = 0x4
_FRAME_BYTES_MAX: Final = 16 * 1024
_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LIMITS: Final = "/rollbook.v1.LogAdmin/GetLimits"
_PATHS: Final = (
    "",
    "/",
    "//",
    "*",
    "rollbook.v1.LogAdmin/GetLimits",
    "/rollbook.v1.LogAdmin/",
    "/ä/日本",
    "/rollbook.v1.LogAdmin/../LogAdmin/GetLimits",
    "/rollbook.v1.LogAdmin%2FGetLimits",
    "/rollbook.v1.LogAdmin/GetLimits\0",
    "/" + "x" * 10_000,
    "/a" * 5_000,
)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


_SETTLED: Final = _HELLO + _frame(_SETTINGS, 0, 0) + _frame(_SETTINGS, _ACK, 0)
"""A client that has sent this is a peer, whose connection is not closed for silence."""


def grpc_attacks() -> list[Attack]:
    """One attack of each kind. Random bytes are the same in every run."""
    chance = random.Random(666)
    large = b"".join(_text(f"h{number}", "x" * 500) for number in range(2000))
    # A field of 3,500 B enters the table and is then named by one byte, 12,000 times: 42 MB.
    bomb = b"\x40" + _string(b"h") + _string(b"x" * 3500) + b"\xbe" * 12_000
    settings = _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, 65_535) * 100)
    zipped = gzip.compress(bytes(64 * 1024 * 1024))
    long = pack(messages.ReadStream(LONG_LOG, Earliest())).SerializeToString()
    small = _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, 0))  # A window of zero bytes.
    return [
        Attack("noise", chance.randbytes(64 * 1024), End.HUNG_UP),
        Attack("HTTP/1.1", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", End.HUNG_UP),
        Attack("noise behind a hello", _SETTLED + chance.randbytes(64 * 1024), End.EITHER),
        Attack("a frame of 16 MiB", _SETTLED + b"\xff\xff\xff" + bytes(60_000), End.HUNG_UP),
        Attack("no settings first", _HELLO + _call(1, _LIMITS), End.HUNG_UP),
        Attack("an even stream", _SETTLED + _call(2, _LIMITS), End.EITHER),
        Attack("a window beyond its bounds", _SETTLED + _frame(_WINDOW, 0, 0, b"\x7f" + b"\xff" * 3),
               End.EITHER),
        Attack("headers that do not end", _SETTLED + _frame(_HEADERS, 0, 1, b"\x00")
               + _frame(_CONTINUATION, 0, 1, bytes(100)) * 5_000, End.EITHER),
        Attack("a megabyte of headers", _SETTLED + _headers(1, _fields(_LIMITS) + large), End.EITHER),
        Attack("a field named 12,000 times", _SETTLED + _headers(1, _fields(_LIMITS) + bomb),
               End.EITHER),
        Attack("an index of nothing", _SETTLED + _headers(1, b"\xff" * 100), End.HUNG_UP),
        Attack("5,000 pings", _SETTLED + pings(5_000), End.EITHER),
        Attack("200 times 100 settings", _SETTLED + settings * 200, End.EITHER),
        Attack("10,000 empty frames", _SETTLED + _call(1, _LIMITS)
               + _frame(_DATA, 0, 1) * 10_000, End.EITHER),
        Attack("paths that are none", _SETTLED + b"".join(
               _call(2 * n + 1, path) for n, path in enumerate(_PATHS)), End.EITHER),
        Attack("100 calls without a message", _SETTLED + b"".join(
               _call(2 * n + 1, method.path)
               for n, method in zip(range(100), METHODS * 100, strict=False)), End.EITHER),
        Attack("a message of 4 GiB", _SETTLED + _call(1, _LIMITS)
               + _data(1, b"\x00" + b"\xff" * 4 + bytes(30_000)), End.EITHER),
        Attack("half a message", _SETTLED + _call(1, _LIMITS)
               + _data(1, struct.pack(">BI", 0, 1000) + bytes(500)), End.EITHER),
        Attack("64 MiB of zeros, zipped", _SETTLED + _call(1, _LIMITS, "gzip")
               + _data(1, struct.pack(">BI", 1, len(zipped)) + zipped, last=True), End.EITHER),
        Attack("a long log, into no window", _SETTLED + small + _call(1, READ_STREAM.path)
               + _data(1, struct.pack(">BI", 0, len(long)) + long, last=True), End.EITHER),
    ]  # fmt: skip


def slow_grpc_attacks() -> list[Attack]:
    """The server closes each of these connections after a while."""
    return [
        Attack("nothing at all", b"", End.HUNG_UP),
        Attack("half a hello", _HELLO[:10], End.HUNG_UP),
        Attack("a hello at one byte a second", _HELLO[:1], End.HUNG_UP, drip=_HELLO[1:]),
        Attack("settings that are not answered", _HELLO + _frame(_SETTINGS, 0, 0), End.HUNG_UP),
    ]


def taken_back(calls: int) -> Attack:
    """Calls cancelled so quickly that no limit on concurrent calls is reached."""
    frames = (
        _call(number, _LIMITS) + _frame(_RESET, 0, number, bytes(4))
        for number in range(1, 2 * calls, 2)
    )
    return Attack(f"{calls:,} calls, each taken back", _SETTLED + b"".join(frames), End.EITHER)


def pings(count: int) -> bytes:
    return _frame(_PING, 0, 0, bytes(8)) * count


def lasting_grpc_attacks() -> list[Attack]:
    """Attacks that can be kept up for any length of time."""
    return [*grpc_attacks(), *slow_grpc_attacks(), taken_back(100)]


OF_GRPC_ITSELF: Final = frozenset({"headers that do not end"})
"""Attacks that gRPC's core reads whole, on the thread that reads for all connections, before our code runs. None of its
options limits them, and per byte nothing costs it more.
"""

IDLE: Final = Attack("idle", _SETTLED, End.EITHER)


def _call(stream: int, path: str, encoding: str = "identity") -> bytes:
    return _headers(stream, _fields(path) + _text("grpc-encoding", encoding))


def _fields(path: str) -> bytes:
    return b"".join(
        _text(name, value)
        for name, value in (
            (":method", "POST"),
            (":scheme", "https"),
            (":path", path),
            (":authority", "x"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        )
    )


def _text(name: str, value: str) -> bytes:
    """A literal header field that does not enter the table."""
    return b"\x00" + _string(name.encode()) + _string(value.encode())


def _string(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)]) + text
    rest, length = len(text) - 127, bytearray([127])
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes([*length, rest]) + text


def _headers(stream: int, block: bytes) -> bytes:
    first, *rest = _pieces(block)
    frames = [_frame(_HEADERS, 0 if rest else _END_HEADERS, stream, first)]
    for number, piece in enumerate(rest, 1):
        is_last = number == len(rest)
        frames.append(_frame(_CONTINUATION, _END_HEADERS if is_last else 0, stream, piece))
    return b"".join(frames)


def _data(stream: int, message: bytes, *, last: bool = False) -> bytes:
    frames = [_frame(_DATA, 0, stream, piece) for piece in _pieces(message)]
    return b"".join([*frames, _frame(_DATA, _END_STREAM, stream)] if last else frames)


def _pieces(data: bytes) -> list[bytes]:
    return [data[at : at + _FRAME_BYTES_MAX] for at in range(0, len(data), _FRAME_BYTES_MAX)]


def main() -> None:
    host, port, name, seconds, count, authority, certificate, key = sys.argv[1:]
    (attack,) = (each for each in lasting_grpc_attacks() if each.name == name)
    tls = client_context(authority, certificate=certificate, key=key)
    tls.set_alpn_protocols(["h2"])
    keep_coming(Address(host, int(port)), attack, float(seconds), int(count), tls)


if __name__ == "__main__":
    main()
