"""A chunked body is decoded, however it is framed and split into reads."""

import random

import pytest

from rollbook.api.rest.chunked_body import (
    CHUNK_BYTES_MIN,
    SMALL_CHUNKS_MAX,
    TRAILERS_MAX,
    BadChunks,
    Chunks,
)


def framed(chance: random.Random, size: int) -> bytes:
    digits = chance.choice(("%x", "%X", "0%x", "000%X")) % size
    extension = chance.choice(("", "", ";", "; a=b", " ;a", "\t"))
    return f"{digits}{extension}\r\n".encode()


def parts_of(chance: random.Random, data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        end = at + chance.choice((1, 1, 2, 3, 50, 1000))
        found.append(data[at:end])
        at = end
    return found


@pytest.mark.parametrize("seed", range(200))
def test_chunked_body_is_decoded_from_any_split(seed: int) -> None:
    chance = random.Random(seed)
    body = sent = b""
    for _ in range(chance.randrange(20)):
        chunk = chance.choice((b"x", b"\r\n", b"0\r\n\r\n", chance.randbytes(300)))
        body += chunk
        sent += framed(chance, len(chunk)) + chunk + b"\r\n"
    trailers = [b"a: %d" % number for number in range(chance.choice((0, 0, 1, 3)))]
    sent += framed(chance, 0) + b"".join(line + b"\r\n" for line in trailers) + b"\r\n"
    rest = chance.choice((b"", b"GET / HTTP/1.1\r\n"))
    chunks, found = Chunks(), b""
    parts = parts_of(chance, sent + rest)
    while parts and not chunks.is_over:
        found += chunks.take(parts.pop(0))
    assert chunks.is_over
    assert (found, chunks.trailers) == (body, trailers)
    assert chunks.rest + b"".join(parts) == rest


def take(chunks: Chunks, sent: bytes, *, at_once: bool) -> None:
    for part in [sent] if at_once else [bytes((each,)) for each in sent]:
        chunks.take(part)


def test_partial_chunk_is_returned_at_once() -> None:
    chunks = Chunks()
    assert [chunks.take(part) for part in (b"64\r\nxx", b"yy", b"z" * 96, b"\r\n")] == [
        b"xx",
        b"yy",
        b"z" * 96,
        b"",
    ]
    assert not chunks.is_over


@pytest.mark.parametrize("at_once", [True, False])
def test_too_many_small_chunks_are_refused(at_once: bool) -> None:
    small = b"1f\r\n" + b"x" * (CHUNK_BYTES_MIN - 1) + b"\r\n"
    enough = b"20\r\n" + b"x" * CHUNK_BYTES_MIN + b"\r\n"
    chunks = Chunks()
    sent = enough * SMALL_CHUNKS_MAX + small * SMALL_CHUNKS_MAX
    take(chunks, sent, at_once=at_once)
    chunks.take(enough)
    with pytest.raises(BadChunks, match="1024 chunks below 32 B"):
        chunks.take(small)


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n",
        b"x\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b" 1\r\n",
        b"1_0\r\n",
        b"1\n",
        b"1\rx\r\n",
        b"1\r\nxx",
        b"1\r\nx\n",
        b"1\r\nx\r\r",
        b"\n1\r\n",
        b"1" * 17 + b"\r\n",
        b"1;" + b"x" * 300,
        b"1;" + b"x" * 300 + b"\r\n",
        b"1;\x00\r\n",
        b"0\r\nno header\r\n\r\n",
        b"0\r\na: b\r\nc\r\n\r\n",
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_malformed_chunk_is_refused(sent: bytes, at_once: bool) -> None:
    chunks = Chunks()
    with pytest.raises(BadChunks):
        take(chunks, sent, at_once=at_once)


@pytest.mark.parametrize("at_once", [True, False])
def test_trailers_beyond_the_limit_are_refused(at_once: bool) -> None:
    lines = b"0\r\n" + b"a: b\r\n" * TRAILERS_MAX
    enough = Chunks()
    enough.take(lines + b"\r\n")
    assert enough.trailers == [b"a: b"] * TRAILERS_MAX
    chunks, sent = Chunks(), lines + b"c: d\r\n"
    with pytest.raises(BadChunks, match="100 headers"):
        take(chunks, sent, at_once=at_once)
    with pytest.raises(BadChunks, match="16 KiB"):
        Chunks().take(b"0\r\na: " + b"x" * 17_000)
