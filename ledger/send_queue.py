"""Queues the frames of one connection: two queues, and the rest of a frame that is partly sent.

Frames of high priority are sent before all other frames that are not partly sent. The queue returns
chunks of a bounded size: it joins small frames and cuts large ones.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, Protocol

from rollbook.proto.wire.frames import LENGTH_BYTES, length_at

CHUNK_BYTES_MAX: Final = 256 * 1024


class FrameSource(Protocol):
    """A source of whole frames."""

    def take(self, now: float) -> bytes:
        """Returns the frames to send at the loop's time `now`; empty if they are no longer wanted."""


class SendQueue:
    def __init__(self) -> None:
        self._urgent: deque[FrameSource] = deque()
        self._ordinary: deque[FrameSource] = deque()
        self._rest: bytes | memoryview = b""

    @property
    def is_empty(self) -> bool:
        return not (self._ordinary or self._urgent or self._rest)

    @property
    def begun_bytes(self) -> int:
        """The unsent bytes of a large frame that is partly sent."""
        return len(self._rest)

    def put(self, waiting: FrameSource, is_urgent: bool) -> None:
        (self._urgent if is_urgent else self._ordinary).append(waiting)

    def next_chunk(self, now: float) -> bytes:
        """Returns the next bytes to send; empty if there are none."""
        pieces: list[bytes | memoryview] = []
        room = CHUNK_BYTES_MAX
        while room:
            piece: bytes | memoryview
            if self._rest:
                piece, self._rest = self._rest, b""
            elif queue := self._urgent or self._ordinary:
                piece = queue.popleft().take(now)
            else:
                break
            if len(piece) > room:
                whole = memoryview(piece)
                piece, self._rest = whole[:room], whole[room:]
            pieces.append(piece)
            room -= len(piece)
        return b"".join(pieces)

    def __iter__(self) -> Iterator[FrameSource]:
        yield from self._urgent
        yield from self._ordinary

    def remove(self, waiting: FrameSource) -> None:
        """Removes a source if it is still queued."""
        for queue in (self._urgent, self._ordinary):
            if waiting in queue:
                queue.remove(waiting)

    def clear(self) -> None:
        self._urgent.clear()
        self._ordinary.clear()
        self._rest = b""


def in_pieces(frames: bytes, count: int) -> Iterator[tuple[bytes, int]]:
    """Cuts between frames, so that urgent ones can be sent in between. Yields each piece with its
    number of frames."""
    if len(frames) > CHUNK_BYTES_MAX:
        start = position = passed = 0
        while position < len(frames):
            end = position + LENGTH_BYTES + length_at(frames, position)[0]
            if end - start > CHUNK_BYTES_MAX and passed:
                yield frames[start:position], passed
                count -= passed
                start, passed = position, 0
            position, passed = end, passed + 1
        frames = frames[start:]
    yield frames, count
