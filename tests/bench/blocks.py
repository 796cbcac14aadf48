"""CPU time of this process for blocks of records, per record.

Batches have 1,000 records of 100 random bytes unless noted otherwise, and 10,000 where the cost of
a record is measured and not that of a block. "Check" is what a log server does with a client's
block: it verifies the CRC of the block and all its fields. With a single record it is the cost of
the block itself, which round-robin appends to many logs pay.
"""

import random
import time
from collections.abc import Callable, Iterator
from typing import Final

from rollbook.logservice.core.record_block import (
    CEILING,
    Block,
    Codec,
    check_block,
    pack_block,
    stamped,
)
from rollbook.logservice.ids import ProducerRef
from tests.bench import Figure, figure

RECORDS: Final = 1000
RECORD_BYTES: Final = 100
_RECORDS_TIMED: Final = 200_000
_SINGLES_TIMED: Final = 4_000
PRODUCER: Final = ProducerRef(b"producer-0123456", 1, 2)


def figures(runs: int) -> Iterator[Figure]:
    for name, unit, target, records, work in _measures():
        yield figure(name, unit, target, runs, _timed(work, records, unit))


def _measures() -> Iterator[tuple[str, str, float | None, int, Callable[[], object]]]:
    randomness = random.Random(1)
    values = [randomness.randbytes(RECORD_BYTES) for _ in range(RECORDS)]
    keys = [randomness.randbytes(8) for _ in range(RECORDS)]
    headers = [{"type": b"order"} for _ in range(RECORDS)]
    text = [b"%08d the quick brown fox jumps over the lazy dog " % n * 2 for n in range(RECORDS)]
    plain = _as_stored(pack_block(values, producer=PRODUCER))
    full = _as_stored(pack_block(values, keys=keys, headers=headers, producer=PRODUCER))
    packed = _as_stored(pack_block(text, codec=Codec.ZSTD, producer=PRODUCER))
    large = _as_stored(pack_block(values * 10, producer=PRODUCER))
    single = _as_stored(pack_block(values[:1], producer=PRODUCER))
    yield (
        "pack",
        "µs/record",
        0.2,
        RECORDS,
        lambda: pack_block(values, producer=PRODUCER),
    )
    yield "check", "ns/record", None, RECORDS, lambda: check_block(plain, CEILING)
    yield (
        "check, batches of 10,000",
        "ns/record",
        10,
        10 * RECORDS,
        lambda: check_block(large, CEILING),
    )
    yield "stamp", "ns/record", None, RECORDS, lambda: _as_stored(plain)
    yield "read as values", "records/s", 5e6, RECORDS, lambda: Block(plain).values()
    yield "read as records", "records/s", 1.5e6, RECORDS, lambda: Block(plain).records()
    yield (
        "pack, with keys and headers",
        "µs/record",
        None,
        RECORDS,
        lambda: pack_block(values, keys=keys, headers=headers, producer=PRODUCER),
    )
    yield (
        "check, with keys and headers",
        "ns/record",
        None,
        RECORDS,
        lambda: check_block(full, CEILING),
    )
    yield (
        "read as records, with keys and headers",
        "records/s",
        None,
        RECORDS,
        lambda: Block(full).records(),
    )
    yield (
        "pack, text with zstd",
        "µs/record",
        None,
        RECORDS,
        lambda: pack_block(text, codec=Codec.ZSTD, producer=PRODUCER),
    )
    yield "check, text with zstd", "ns/record", None, RECORDS, lambda: check_block(packed, CEILING)
    yield "pack one record", "µs/record", None, 1, lambda: pack_block(values[:1], producer=PRODUCER)
    yield "check one record", "µs/record", None, 1, lambda: check_block(single, CEILING)
    yield "stamp one record", "µs/record", None, 1, lambda: _as_stored(single)


def _as_stored(block: bytes) -> bytes:
    return stamped(block, base_offset=2**40, base_timestamp_us=2**50, owner_epoch=3, writer_epoch=4)


def _timed(work: Callable[[], object], records: int, unit: str) -> Callable[[], float]:
    rounds = max(_RECORDS_TIMED // records, 20) if records > 1 else _SINGLES_TIMED

    def measure() -> float:
        work()
        start = time.process_time()
        for _ in range(rounds):
            work()
        seconds = (time.process_time() - start) / rounds / records
        return 1 / seconds if unit == "records/s" else seconds * (1e9 if unit[0] == "n" else 1e6)

    return measure
