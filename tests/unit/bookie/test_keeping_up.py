"""Checkpoints that are slower than the adds which make them due."""

import asyncio

from rollbook.bookie.storage import Storage
from rollbook.proto.errors import BookieFailed
from tests.simulation.kernel import Node
from tests.unit.bookie.test_storage import CONFIG, add, adds, entry, tell

PAYLOAD = bytes(8_000)


def test_adds_wait_for_slow_checkpoints() -> None:
    """And are not refused: a writer takes that for a reason to leave."""

    async def story(storage: Storage, node: Node) -> None:
        checkpoint = storage.checkpoint
        waiting: list[float] = []

        async def slow_checkpoint() -> bool:
            await asyncio.sleep(1)
            return await checkpoint()

        storage.checkpoint = slow_checkpoint  # type: ignore[method-assign]  # Slower than any adds.
        began_ns = node.clock.monotonic_ns()
        for turn in range(30):
            admissions = [storage.add(adds((1 + n, turn), payload=PAYLOAD)) for n in range(8)]
            assert not any(any(each.refusals) for each in admissions)
            assert not storage.is_read_only
            for each in admissions:
                assert each.done
                await each.done
            waiting.append(storage.stats.journal_files_waiting())
        assert max(waiting) == CONFIG.waiting_files_max
        assert node.clock.monotonic_ns() - began_ns > 20e9  # About thirty files, one a second.
        assert await storage.read(8, 29) == entry(8, 29, PAYLOAD)

    tell(story)


def test_failed_checkpoint_stops_the_storage_while_adds_wait() -> None:
    async def story(storage: Storage, node: Node) -> None:
        async def no_checkpoint() -> bool:
            await asyncio.sleep(100)
            raise BookieFailed("the catalog could not be written")

        storage.checkpoint = no_checkpoint  # type: ignore[method-assign]  # As after a failed sync.
        failed = asyncio.ensure_future(storage.failed())
        turn = 0
        while not failed.done():
            async with asyncio.timeout(1000):
                await add(storage, (1, turn), payload=PAYLOAD)
            turn += 1
        assert isinstance(failed.result(), BookieFailed)
        assert turn > CONFIG.waiting_files_max * CONFIG.journal_file_bytes // len(PAYLOAD) - 10

    tell(story)
