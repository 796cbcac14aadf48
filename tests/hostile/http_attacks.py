"""Hostile connections to a log server's HTTP port: what each sends, and how it must end.

`python -m tests.hostile.http_attacks HOST PORT NAME SECONDS COUNT` sends COUNT attacks of a kind each
second. It is a separate process, so that the attackers' own cost is not counted as an effect on
other clients.
"""

import random
import sys
from typing import Final

from rollbook.proto.ports import Address
from tests.hostile.attacks import Attack, End, keep_coming

LOG: Final = "/v1/namespaces/bench/logs/hostile"
LONG_LOG: Final = "/v1/namespaces/bench/logs/long"  # Holds more than fits into unread buffers.
_HOST: Final = b"host: 127.0.0.1\r\n"
_OK: Final = b"HTTP/1.1 200"
_WRONG: Final = b"HTTP/1.1 400"
_NOWHERE: Final = b"HTTP/1.1 404"
_NO_NAME: Final = b"HTTP/1.1 421"
_TOO_LARGE: Final = b"HTTP/1.1 413"
_PATHS: Final = (
    "/v1/namespaces/bench%2Flogs/logs/x",
    "/v1/../etc/passwd",
    "/v1/namespaces/%C3%A4/logs",
    "/%",
)


def http_attacks() -> list[Attack]:
    """One attack of each kind. Random bytes are the same in every run."""
    chance = random.Random(666)
    asks = b"GET /healthz HTTP/1.1\r\n" + _HOST
    headers = b"".join(b"h%d: x\r\n" % number for number in range(2000))
    deep = b'{"records":[{"json":' + b"[" * 100_000
    follow = _get(f"{LONG_LOG}/records?from=0", b"accept: text/event-stream\r\n")
    large = _get(f"{LONG_LOG}/records?from=0&max_bytes=5000000")
    return [
        Attack("noise", chance.randbytes(64 * 1024), End.HUNG_UP, answer=_WRONG),
        Attack("TLS", b"\x16\x03\x01\x02\x00\x01\x00" + bytes(500), End.HUNG_UP, answer=_WRONG),
        Attack("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", End.HUNG_UP, answer=_NO_NAME),
        Attack("2,000 headers", asks + headers + b"\r\n", End.HUNG_UP, answer=_WRONG),
        Attack("a header of 1 MiB", asks + b"x: " + b"x" * 2**20, End.HUNG_UP, answer=_WRONG),
        Attack("a path of 100,000", b"GET /" + b"x" * 100_000, End.HUNG_UP, answer=_WRONG),
        Attack("7,000 fields", _get("/healthz?" + "a&" * 7000), End.HUNG_UP, answer=_WRONG),
        *(Attack(f"the path {each}", _get(each), End.ANSWERED, answer=_NOWHERE) for each in _PATHS),
        Attack("two lengths", _post(b"content-length: 1\r\ncontent-length: 2\r\n"), End.HUNG_UP,
               answer=_WRONG),
        Attack("a body of a petabyte", _post(b"content-length: %d\r\n" % 10**15), End.HUNG_UP,
               answer=_TOO_LARGE),
        Attack("chunks of a byte", _post(b"transfer-encoding: chunked\r\n", b"1\r\nx\r\n" * 40_000),
               End.HUNG_UP, answer=_WRONG),
        Attack("65,000 trailers", _post(b"transfer-encoding: chunked\r\n",
               b"1\r\nx\r\n0\r\n" + b"a:\r\n" * 65_000 + b"\r\n"), End.HUNG_UP, answer=_WRONG),
        Attack("JSON 100,000 deep", _post(b"content-type: application/json\r\n"
               b"content-length: %d\r\n" % len(deep), deep), End.ANSWERED, answer=_WRONG),
        Attack("half a body, and gone", _post(b"content-length: 99\r\n", b"half"), End.HUNG_UP,
               leaves=True),
        Attack("half a body, and reset", _post(b"content-length: 99\r\n", b"half"), End.HUNG_UP,
               resets=True),
        Attack("a head at one byte a second", asks[:1], End.EITHER, drip=asks[1:]),
        Attack("a body at one byte a second", _post(b"content-length: 5000\r\n"), End.EITHER,
               drip=b"x"),
        Attack("20 requests at once", _get("/healthz") * 20, End.ANSWERED, answer=_OK),
        Attack("a follower that takes nothing", follow, End.ANSWERED, answer=_OK),
        Attack("a large answer, unread", large, End.ANSWERED, answer=_OK),
        Attack("nothing at all", b"", End.EITHER),
    ]  # fmt: skip


def _get(path: str, more: bytes = b"") -> bytes:
    return b"GET %s HTTP/1.1\r\n%s%s\r\n" % (path.encode(), _HOST, more)


def _post(headers: bytes, body: bytes = b"") -> bytes:
    kind = b"" if b"content-type" in headers else b"content-type: application/octet-stream\r\n"
    first = b"POST %s/records HTTP/1.1\r\n" % LOG.encode()
    return first + _HOST + kind + headers + b"\r\n" + body


def main() -> None:
    host, port, name, seconds, count = sys.argv[1:]
    (attack,) = (each for each in http_attacks() if each.name == name)
    keep_coming(Address(host, int(port)), attack, float(seconds), int(count))


if __name__ == "__main__":
    main()
