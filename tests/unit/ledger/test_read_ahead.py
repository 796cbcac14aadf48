"""How much an entry stream reads ahead."""

import asyncio

from rollbook.ledger.read_ahead import EntryStream
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.wire.digest import Entry

KIB = 1024
MIB = 1024 * KIB
ENTRY_BYTES = 64 * KIB


class Ledger:
    """A ledger without end that records requested sizes."""

    def __init__(self, each_bytes: int = ENTRY_BYTES) -> None:
        self.each_bytes = each_bytes
        self.asked: list[int] = []  # Bytes of each run.

    async def read_run(self, first_entry: EntryId, count: int, bytes_max: int) -> list[Entry]:
        count, payload = min(count, max(1, bytes_max // self.each_bytes)), bytes(self.each_bytes)
        self.asked.append(count * self.each_bytes)
        ids = range(first_entry, first_entry + count)
        return [Entry(LedgerId(1), EntryId(e), EntryId(e - 1), 0, payload) for e in ids]

    def stream(self, *, entry_bytes: int) -> EntryStream:
        return EntryStream(
            EntryId(0),
            EntryId(10**9),
            self.read_run,
            end_of_run=lambda _: 10**10,
            has_batches=lambda _: True,
            entry_bytes=entry_bytes,
            batch_bytes=MIB,
            window_bytes=4 * MIB,
            tasks={},
            require_open=lambda: None,
        )


async def test_read_ahead_starts_small() -> None:
    """RD5: for right and wrong guesses of the entry size."""
    for each_bytes in (ENTRY_BYTES, MIB, 4 * MIB):
        for entry_bytes in (KIB, ENTRY_BYTES, MIB):
            ledger = Ledger(each_bytes)
            async with ledger.stream(entry_bytes=entry_bytes) as stream:
                taken = 0
                for _ in range(24):
                    taken += each_bytes * len(await stream.next_run())
                    for _ in range(20):
                        await asyncio.sleep(0)
                    assert sum(ledger.asked) - taken <= min(taken // 4, 4 * MIB)
                    assert max(ledger.asked) <= max(256 * KIB, each_bytes, taken // 8)


async def test_read_ahead_grows_to_the_whole_window() -> None:
    ledger = Ledger()
    async with ledger.stream(entry_bytes=ENTRY_BYTES) as stream:
        taken = 0
        while taken < 16 * MIB:
            entries = await stream.next_run()
            assert entries[0].entry_id == taken // ENTRY_BYTES
            taken += ENTRY_BYTES * len(entries)
        for _ in range(20):
            await asyncio.sleep(0)
        assert 3 * MIB < sum(ledger.asked) - taken <= 4 * MIB
