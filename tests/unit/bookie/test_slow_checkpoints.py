"""Checkpoints that are slower than the adds that cause them."""

import asyncio

from rollbook.bookie.storage import Storage
from rollbook.proto.errors import BookieFailed, BookieReadOnly
from tests.simulation.kernel import Node
from tests.unit.bookie.test_storage import CONFIG, adds, entry, tell

PAYLOAD = bytes(8_000)


def test_adds_wait_for_slow_checkpoints() -> None:
    """Adds are not refused, since a writer would then leave the bookie."""

    async def story(storage: Storage, node: Node) -> None:
        checkpoint = storage.checkpoint
        waiting: list[float] = []

        async def slow_checkpoint() -> bool:
            await asyncio.sleep(1)
            return await checkpoint()

        storage.checkpoint = slow_checkpoint  # type: ignore[method-assign]  # It is slower than the adds.
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
        # About thirty files were checkpointed, one per second.
        assert node.clock.monotonic_ns() - began_ns > 20e9
        assert await storage.read(8, 29) == entry(8, 29, PAYLOAD)

    tell(story)


def test_failed_checkpoint_stops_the_storage_while_adds_wait() -> None:
    """The adds that wait are acknowledged, since the journal works; later ones are refused."""

    async def story(storage: Storage, node: Node) -> None:
        async def no_checkpoint() -> bool:
            await asyncio.sleep(100)
            raise BookieFailed("the catalog could not be written")

        storage.checkpoint = no_checkpoint  # type: ignore[method-assign]  # As after a failed sync.
        failed = asyncio.ensure_future(storage.failed())
        done: list[asyncio.Future[None]] = []

        def begin(ledger_id: int, entry_id: int) -> None:
            admission = storage.add(adds((ledger_id, entry_id), payload=PAYLOAD))
            assert admission.done
            done.append(admission.done)

        while not done or done[-1].done():
            begin(1, len(done))
            await asyncio.sleep(0.5)
        assert len(done) > CONFIG.waiting_files_max * CONFIG.journal_file_bytes // len(PAYLOAD) - 10
        for ledger_id in (2, 3, 4):
            begin(ledger_id, 0)
        await asyncio.sleep(10)
        assert not failed.done()
        assert not any(each.done() for each in done[-4:])
        async with asyncio.timeout(100):
            assert isinstance(await failed, BookieFailed)
        async with asyncio.timeout(1):
            await asyncio.gather(*done)
        assert await storage.read(4, 0) == entry(4, 0, PAYLOAD)
        assert storage.add(adds((1, len(done)))).refusals == (BookieReadOnly,)

    tell(story)
