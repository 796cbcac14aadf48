"""Decodes the body of a chunked request (RFC 9112 §7.1).

h11 makes an event of each chunk, which takes 20 µs: twenty bodies with chunks of one byte delayed all
other clients by a tenth of a second. `Chunks` decodes all chunks of a received slice at once, in less than a
microsecond per chunk. The framing of a body is bounded, too:

    small chunks   at most `SMALL_CHUNKS_MAX` in a body; how the bytes are split on arrival does not matter
    a size         at most 16 digits, and `_SIZE_BYTES_MAX` bytes with its extensions, which are ignored
    trailers       at most `TRAILERS_MAX` lines, of 16 KiB together; each line must be a header
"""

import re
from typing import Final

CHUNK_BYTES_MIN: Final = 32  # Smaller chunks are counted. A short line of JSON has as many bytes.
SMALL_CHUNKS_MAX: Final = 1024  # The most chunks of a body that may be below `CHUNK_BYTES_MIN`.
TRAILERS_MAX: Final = 100
_TRAILERS_BYTES_MAX: Final = 16 * 1024
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,16})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_SIZE_BYTES_MAX: Final = 256
_SMALL: Final = b"|".join(
    rb"%b\r\n.{%d}\r\n" % (digits, size)
    for size in range(1, CHUNK_BYTES_MIN)
    # Both cases are listed: `(?i)` would be five times slower.
    for digits in sorted({b"%x" % size, b"%X" % size})
)
_SMALL_ONE: Final = re.compile(b"(?s:%s)" % _SMALL)
_SMALL_ONES: Final = re.compile(b"(?s:%s)+" % _SMALL)
_END_OF_TRAILERS: Final = re.compile(rb"\n\r?\n")


class BadChunks(Exception):
    """Raised for an invalid chunked body; its text is the reason."""


class Chunks:
    """Decodes one chunked body."""

    def __init__(self) -> None:
        self.is_over = False
        self.rest = b""  # The bytes after the body, once it is over.
        self.trailers: list[bytes] = []  # The lines of the trailers, once the body is over.
        self._held = b""  # Bytes of an incomplete chunk size, or of incomplete trailers.
        self._missing = 0  # Missing bytes of the current chunk.
        self._small = 0
        self._is_in_trailers = self._is_in_chunk = False

    def take(self, data: bytes) -> bytes:
        """Returns the part of the body in `data`. Raises `BadChunks`."""
        assert not self.is_over
        data, self._held = self._held + data, b""
        found: list[bytes] = []
        at = 0
        while at < len(data) and not self._is_in_trailers:
            if self._missing:
                part = data[at : at + self._missing]
                found.append(part)
                self._missing -= len(part)
                at += len(part)
                continue
            begin = at
            if self._is_in_chunk:  # A chunk's data are followed by an end of line.
                if not b"\r\n".startswith(data[at : at + 2]):
                    raise BadChunks("a chunk is longer than its size")
                begin += 2
            if small := _SMALL_ONES.match(data, begin):
                found += self._small_ones(small)
                at, self._is_in_chunk = small.end(), False
                continue
            size = _SIZE.match(data, begin)
            if size is None or size.end() - begin > _SIZE_BYTES_MAX:
                self._hold_size(data[at:], begin - at)
                break
            at = size.end()
            self._begin(int(size[1], 16))
        if self._is_in_trailers:
            self._take_trailers(data[at:])
        return b"".join(found)

    def _small_ones(self, sent: re.Match[bytes]) -> list[bytes]:
        """Decodes complete small chunks, the usual case. A regular expression in C splits them, so that they are
        counted before they are decoded.
        """
        chunks = _SMALL_ONE.findall(sent[0])
        self._count_small(len(chunks))
        return [chunk[chunk.index(b"\n") + 1 : -2] for chunk in chunks]

    def _begin(self, size: int) -> None:
        self._missing, self._is_in_chunk, self._is_in_trailers = size, True, not size
        if 0 < size < CHUNK_BYTES_MIN:
            self._count_small(1)

    def _count_small(self, more: int) -> None:
        self._small += more
        if self._small > SMALL_CHUNKS_MAX:
            raise BadChunks(
                f"a body may have at most {SMALL_CHUNKS_MAX} chunks below {CHUNK_BYTES_MIN} B"
            )

    def _hold_size(self, data: bytes, begin: int) -> None:
        """Keeps an incomplete chunk size; `begin`: where the size would be."""
        if data.find(b"\n", begin) >= 0 or len(data) - begin > _SIZE_BYTES_MAX:
            raise BadChunks("the size of a chunk cannot be read")
        self._held = data

    def _take_trailers(self, data: bytes) -> None:
        data = b"\n" + data  # The newline lets an empty list of trailers end in a blank line, too.
        end = _END_OF_TRAILERS.search(data)
        lines = data[1 : end.start() if end else len(data)]
        if lines.count(b"\n") >= TRAILERS_MAX or len(lines) > _TRAILERS_BYTES_MAX:
            raise BadChunks(f"a body may have {TRAILERS_MAX} headers after it, of 16 KiB in total")
        if end is None:
            self._held = data[1:]
            return
        self.is_over, self.rest = True, data[end.end() :]
        self.trailers = [line.removesuffix(b"\r") for line in lines.split(b"\n")] if lines else []
        if not all(b":" in line for line in self.trailers):
            raise BadChunks("a trailer of the body is not a header")
