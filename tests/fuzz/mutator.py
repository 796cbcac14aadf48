"""Mutates valid bytes into hostile input, reproducibly: the same seed gives the same inputs.

Some mutations are blind, some know the encodings of lengths and numbers on our wires, and one knows
protobuf: it parses messages, changes, drops, doubles and swaps fields, and corrects every enclosing
length, so that a field is wrong and not its frame.
"""

import random
from collections.abc import Callable, Sequence
from typing import Final

INPUT_BYTES_MAX: Final = 8192  # Repeated mutations would grow without limit.

_NUMBERS: Final = sorted(
    {
        (2**bits + offset) % 2**64
        for bits in (0, 3, 6, 7, 8, 14, 15, 16, 21, 28, 31, 32, 35, 62, 63)
        for offset in (-2, -1, 0, 1)
    }
    | {(-number) % 2**64 for number in (1, 2, 0x1000, 0x8000)}
    | {5 * 1024 * 1024 - 4, 5 * 1024 * 1024 - 3, 404, 501, 507}
)
_WIDTHS: Final = (1, 2, 4, 8)

Mutation = Callable[[random.Random, bytearray, Sequence[bytes]], None]
Refit = Callable[[bytes], bytes]


class Mutator:
    """`refit`, if given, usually repairs the frame around a mutated input."""

    def __init__(
        self, chance: random.Random, corpus: Sequence[bytes], refit: Refit | None = None
    ) -> None:
        self._chance = chance
        self._corpus = corpus
        self._refit = refit

    def next(self) -> bytes:
        chance = self._chance
        data = bytearray(chance.choice(self._corpus))
        for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 6))):
            chance.choice(_MUTATIONS)(chance, data, self._corpus)
        del data[INPUT_BYTES_MAX:]
        if self._refit is not None and chance.random() < 0.7:
            return self._refit(bytes(data))
        return bytes(data)


# --- Blind ------------------------------------------------------------------------------------


def _flip_bit(chance: random.Random, data: bytearray, _corpus: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _set_byte(chance: random.Random, data: bytearray, _corpus: Sequence[bytes]) -> None:
    if data:
        data[chance.randrange(len(data))] = chance.choice((0, 1, 0x0A, 0x7F, 0x80, 0xFF))


def _insert(chance: random.Random, data: bytearray, _corpus: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = chance.randbytes(chance.choice((1, 2, 4, 8, 20)))


def _delete(chance: random.Random, data: bytearray, _corpus: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    del data[at : at + chance.choice((1, 1, 2, 4, 8, 20))]


def _truncate(chance: random.Random, data: bytearray, _corpus: Sequence[bytes]) -> None:
    del data[chance.randrange(len(data) + 1) :]


def _duplicate(chance: random.Random, data: bytearray, _corpus: Sequence[bytes]) -> None:
    start = chance.randrange(len(data) + 1)
    piece = data[start : start + chance.choice((1, 4, 24, 1000))]
    at = chance.randrange(len(data) + 1)
    data[at:at] = piece * chance.choice((1, 1, 2, 50))


def _splice(chance: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = chance.choice(corpus)
    data[chance.randrange(len(data) + 1) :] = other[chance.randrange(len(other) + 1) :]


def _append(chance: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    data += chance.choice(corpus)


# --- Numbers ----------------------------------------------------------------------------------


def _set_number(chance: random.Random, data: bytearray, _corpus: Sequence[bytes]) -> None:
    width = chance.choice(_WIDTHS)
    if len(data) >= width:
        at = chance.randrange(len(data) - width + 1)
        number = chance.choice(_NUMBERS) % 256**width
        data[at : at + width] = number.to_bytes(width)


def _nudge_number(chance: random.Random, data: bytearray, _corpus: Sequence[bytes]) -> None:
    """Changes a length or a count by a little."""
    width = chance.choice(_WIDTHS)
    if len(data) >= width:
        at = chance.randrange(len(data) - width + 1)
        number = int.from_bytes(data[at : at + width]) + chance.choice((-8, -4, -1, 1, 4, 8))
        data[at : at + width] = (number % 256**width).to_bytes(width)


def _set_varint(chance: random.Random, data: bytearray, _corpus: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    end = at
    while end < len(data) and data[end] & 0x80:
        end += 1
    data[at : end + 1] = _varint(chance, chance.choice(_NUMBERS))


def _varint(chance: random.Random, value: int) -> bytes:
    """Encodes a varint, sometimes in more bytes than needed, which protobuf allows."""
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    while chance.random() < 0.1 and len(packed) < 11:
        packed[-1] |= 0x80
        packed.append(0)
    return bytes(packed)


# --- Protobuf ---------------------------------------------------------------------------------


def _mutate_fields(chance: random.Random, data: bytearray, _corpus: Sequence[bytes]) -> None:
    """Mutates fields of the message in `data`, or of the body of one of its frames."""
    start = 4 if len(data) > 4 and data[4] == 0x0A else 0
    end = start + int.from_bytes(data[:4]) if start else len(data)
    mutated = _mutate_message(chance, bytes(data[start:end]))
    if mutated is not None:
        data[start:end] = mutated
        if start:
            data[:4] = len(mutated).to_bytes(4)


def _mutate_message(chance: random.Random, message: bytes) -> bytes | None:
    fields = _split(message)
    if not fields:
        return None
    at = chance.randrange(len(fields))
    tag, payload, is_delimited = fields[at]
    if is_delimited and chance.random() < 0.7:
        inner = _mutate_message(chance, payload)
        if inner is not None:
            fields[at] = tag, inner, True
            return _join(chance, fields)
    match chance.randrange(6):
        case 0:
            del fields[at]
        case 1:
            fields.insert(chance.randrange(len(fields) + 1), fields[at])
        case 2:
            chance.shuffle(fields)
        case 3:
            fields[at] = chance.choice(_NUMBERS) % 2**32, payload, is_delimited
        case 4 if is_delimited:
            cut = payload[: chance.randrange(len(payload) + 1)]
            fields[at] = tag, chance.choice((b"", cut, payload + b"\xff\x00")), True
        case _ if not is_delimited:
            fields[at] = tag, _varint(chance, chance.choice(_NUMBERS)), False
    return _join(chance, fields)


def _split(message: bytes) -> list[tuple[int, bytes, bool]] | None:
    """Tag, content and whether it has a length, for each field; None if it is not protobuf."""
    fields: list[tuple[int, bytes, bool]] = []
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        start = at
        if tag & 7 == 0:
            _, at = _read_varint(message, at)
            fields.append((tag, message[start:at], False))
        elif tag & 7 == 2:
            size, start = _read_varint(message, at)
            at = start + size
            fields.append((tag, message[start:at], True))
        else:
            return None
        if at > len(message):
            return None
    return fields


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            break
    return value, at


def _join(chance: random.Random, fields: list[tuple[int, bytes, bool]]) -> bytes:
    parts: list[bytes] = []
    for tag, payload, is_delimited in fields:
        parts.append(_varint(chance, tag))
        if is_delimited:
            parts.append(_varint(chance, len(payload)))
        parts.append(payload)
    return b"".join(parts)


_MUTATIONS: Final[tuple[Mutation, ...]] = (
    _flip_bit,
    _set_byte,
    _insert,
    _delete,
    _truncate,
    _duplicate,
    _splice,
    _append,
    _set_number,
    _nudge_number,
    _set_varint,
    _mutate_fields,
    _mutate_fields,
    _mutate_fields,
)
