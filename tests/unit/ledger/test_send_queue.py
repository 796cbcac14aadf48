"""What a connection sends, and in which order."""

import random
import struct

import pytest

from rollbook.ledger.send_queue import CHUNK_BYTES_MAX, SendQueue, in_pieces


class Letter:
    def __init__(self, text: bytes) -> None:
        self.text = text

    def take(self, _now: float) -> bytes:
        return self.text


def chunks(outbox: SendQueue) -> list[bytes]:
    found = []
    while chunk := outbox.next_chunk(0.0):
        found.append(chunk)
    return found


def frame(size: int, mark: int) -> bytes:
    return struct.pack(">I", size) + bytes((mark % 256,)) * size


def test_small_messages_share_a_chunk_urgent_ones_first() -> None:
    outbox = SendQueue()
    for text in (b"a", b"b"):
        outbox.put(Letter(text), is_urgent=False)
    outbox.put(Letter(b"!"), is_urgent=True)
    assert not outbox.is_empty
    assert chunks(outbox) == [b"!ab"]
    assert outbox.is_empty


def test_partly_sent_message_is_finished_before_urgent_ones() -> None:
    outbox = SendQueue()
    large = bytes(CHUNK_BYTES_MAX) + b"end"
    outbox.put(Letter(large), is_urgent=False)
    assert outbox.next_chunk(0.0) == large[:CHUNK_BYTES_MAX]
    assert outbox.begun_bytes == 3
    outbox.put(Letter(b"!"), is_urgent=True)
    assert chunks(outbox) == [b"end!"]


def test_removed_and_empty_messages_are_skipped() -> None:
    outbox = SendQueue()
    gone, empty, kept = Letter(b"gone"), Letter(b""), Letter(b"kept")
    for each in (gone, empty, kept):
        outbox.put(each, is_urgent=False)
    outbox.remove(gone)
    outbox.remove(gone)
    assert list(outbox) == [empty, kept]
    assert chunks(outbox) == [b"kept"]
    outbox.put(kept, is_urgent=True)
    outbox.clear()
    assert outbox.is_empty


@pytest.mark.parametrize("seed", range(30))
def test_bytes_are_neither_lost_nor_mixed(seed: int) -> None:
    chance = random.Random(seed)
    frames = [
        frame(chance.choice((0, 10, 1000, 100_000, 300_000)), mark)
        for mark in range(chance.randrange(1, 60))
    ]
    whole = b"".join(frames)
    pieces = list(in_pieces(whole, len(frames)))
    assert b"".join(piece for piece, _ in pieces) == whole
    assert sum(count for _, count in pieces) == len(frames)
    rest = iter(frames)
    for piece, count in pieces:
        inside = [next(rest) for _ in range(count)]
        assert piece == b"".join(inside)
        assert len(piece) <= CHUNK_BYTES_MAX or count == 1
    outbox = SendQueue()
    for piece, _ in pieces:
        outbox.put(Letter(piece), is_urgent=False)
    sent = chunks(outbox)
    assert b"".join(sent) == whole
    assert all(len(chunk) <= CHUNK_BYTES_MAX for chunk in sent)
