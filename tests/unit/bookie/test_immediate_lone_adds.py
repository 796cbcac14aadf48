"""On a fast disk, a lone writer gets its response in the loop step that received its add."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from rollbook.bookie.core.control_records import Control, ControlOperation
from rollbook.bookie.journal import journal_path
from rollbook.bookie.storage import Storage
from rollbook.proto.errors import BookieFailed
from rollbook.proto.ports import Buffer
from tests.simulation.kernel import Node
from tests.simulation.kernel.disk import SimulatedFile
from tests.unit.bookie.test_storage import CONFIG, KEY, add, adds, entry, tell

ENOUGH = CONFIG.alone_after_chunks


class Client:
    def __init__(self, storage: Storage, ledger_id: int) -> None:
        self.heard: list[BookieFailed | None] = []
        self.meanwhile: Callable[[], object] | None = (
            None  # Called when the writer gets its response.
        )
        self.has_bug = False
        self._storage = storage
        self._ledger_id = ledger_id
        self._next_entry = 0

    def on_done(self, count: int, error: BookieFailed | None) -> None:
        self.heard += [error] * count
        if self.meanwhile:
            self.meanwhile()
        if self.has_bug:
            raise ValueError("a bug")

    def add(self, payload: bytes = b"payload") -> bool:
        """Whether the response came within this call."""
        ids = (self._ledger_id, self._next_entry)
        assert self._storage.add(adds(ids, payload=payload), self.on_done).refusals == (None,)
        self._next_entry += 1
        assert len(self.heard) < self._next_entry  # The callback never runs within `add`.
        self._storage.go_on()
        return len(self.heard) == self._next_entry

    async def until_heard(self) -> None:
        async with asyncio.timeout(1):
            while len(self.heard) < self._next_entry:
                await asyncio.sleep(0.001)


async def be_alone(storage: Storage, ledger_id: int = 7) -> Client:
    client = Client(storage, ledger_id)
    for _ in range(ENOUGH - 1):
        assert not client.add()
        await client.until_heard()
    return client


def test_lone_writer_is_answered_at_once_and_durably() -> None:
    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 1.0
        client = await be_alone(storage)
        number, before = storage.end_of_journal
        for entry_id in range(ENOUGH - 1, ENOUGH + 3):
            assert client.add()
            durable = node.disk.durable(journal_path(CONFIG.journal_dir, number))
            assert durable
            assert entry(7, entry_id) in durable
            assert await storage.read(7, entry_id) == entry(7, entry_id)
        assert storage.end_of_journal[1] == before + 4 * 512

    tell(story)


def test_loop_yields_after_a_lone_response_before_indexing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 1.0
        client = await be_alone(storage)
        heard: list[int] = []
        indexed: list[int] = []

        def let_others_run() -> None:
            heard.append(len(client.heard))
            indexed.append(storage.stats.entries_added)

        monkeypatch.setattr(node.clock, "let_others_run", let_others_run)
        for done in range(3):
            before = storage.stats.entries_added
            assert client.add()
            assert heard[done:] == [len(client.heard)]  # It yields once, after the response.
            assert indexed[done:] == [before]
            assert storage.stats.entries_added == before + 1
        storage.add(adds((7, 100), (7, 101)), client.on_done)
        storage.go_on()
        assert storage.stats.entries_added == before + 3  # Both adds are durable without a yield:
        assert len(heard) == 3  # a client that sends several adds at once does not wait for each.

    tell(story)


def test_lone_add_on_a_slow_disk_is_not_answered_at_once() -> None:
    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 0.0
        client = await be_alone(storage)
        assert not client.add()
        await client.until_heard()
        node.disk.quick_odds = 1.0
        assert client.add()
        node.disk.hang()
        assert not client.add()
        node.disk.unhang()
        await client.until_heard()

    tell(story)


def test_adds_of_several_clients_share_a_sync() -> None:
    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 1.0
        clients = [await be_alone(storage, ledger_id) for ledger_id in (7, 8)]
        for _ in range(ENOUGH):
            _, before = storage.end_of_journal
            are_answered = [client.add() for client in clients]
            assert not any(are_answered)
            for client in clients:
                await client.until_heard()
            assert storage.end_of_journal[1] == before + 512  # Both adds are in one write.

    tell(story)


def test_earlier_fence_is_written_before_a_lone_add() -> None:
    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 1.0
        client = await be_alone(storage)
        number, before = storage.end_of_journal
        fence = asyncio.ensure_future(storage.fence(8, KEY))
        await asyncio.sleep(0)
        assert storage.is_about_to_write
        assert not client.add()
        await fence
        await client.until_heard()
        written = node.disk.durable(journal_path(CONFIG.journal_dir, number)) or b""
        fence_at = written.index(Control(ControlOperation.FENCE, 8, KEY).pack())
        assert before < fence_at < written.index(entry(7, ENOUGH - 1))
        assert client.add()

    tell(story)


def test_idle_record_follows_an_immediate_write() -> None:
    """B3: an idle record states what is durable once adds stop."""

    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 1.0
        client = await be_alone(storage)
        await asyncio.sleep(10 * CONFIG.idle_after_ms / 1000)
        _, before = storage.end_of_journal
        assert client.add()
        _, behind = storage.end_of_journal
        assert behind == before + 512
        await asyncio.sleep(10 * CONFIG.idle_after_ms / 1000)
        assert storage.end_of_journal[1] == behind + 512

    tell(story)


def test_write_that_adds_zeros_is_not_immediate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stretch, synced = 8 * 1024, Counter[str]()
    write_and_sync = SimulatedFile.write_and_sync

    async def watched(self: SimulatedFile, position: int, buffers: Sequence[Buffer]) -> None:
        contents = b"".join(buffers)
        synced["with zeros"] += contents[512:] == bytes(stretch - position % stretch - 512)
        await write_and_sync(self, position, buffers)

    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 1.0
        client = await be_alone(storage)
        _, end = storage.end_of_journal
        synced.clear()
        for position in range(end, 3 * stretch, 512):
            assert client.add() == (position % stretch > 0)
            await client.until_heard()
        assert synced["with zeros"] == 2

    monkeypatch.setattr(SimulatedFile, "write_and_sync", watched)
    tell(story, config=replace(CONFIG, zeros_ahead_bytes=stretch))


def test_large_lone_add_is_synced_at_once() -> None:
    """A large add is synced at once although no zeros were written ahead of it."""

    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 1.0
        client = await be_alone(storage)
        assert [client.add(bytes(4000)) for _ in range(6)] == [True] * 6

    tell(story, config=replace(CONFIG, zeros_ahead_bytes=8 * 1024))


def test_lone_adds_continue_in_the_next_journal_file() -> None:
    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 1.0
        client = await be_alone(storage)
        first, _ = storage.end_of_journal
        for _ in range(CONFIG.journal_file_bytes // 512):
            if not client.add():
                await client.until_heard()
        assert storage.end_of_journal[0] == first + 1
        for entry_id in range(len(client.heard)):
            assert await storage.read(7, entry_id) == entry(7, entry_id)

    tell(story)


def test_failed_immediate_sync_stops_the_journal() -> None:
    """B6."""

    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 1.0
        client = await be_alone(storage)
        assert client.heard == [None] * (ENOUGH - 1)
        node.disk.fail_next_sync()
        assert not client.add()
        assert isinstance(await storage.failed(), OSError)
        assert isinstance(client.heard[-1], BookieFailed)
        assert storage.failure is not None
        assert not client.add()
        await client.until_heard()
        assert isinstance(client.heard[-1], BookieFailed)

    tell(story)


def test_failing_callback_does_not_keep_a_failed_journal_running() -> None:
    """B6: this holds even if the caller has a bug."""

    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 1.0
        client = await be_alone(storage)
        client.has_bug = True
        node.disk.fail_next_sync()
        client.add()
        async with asyncio.timeout(1):
            await storage.failed()
        assert isinstance(storage.failure, OSError)
        assert isinstance(client.heard[-1], BookieFailed)

    tell(story)


def test_add_within_a_failing_callback_does_not_hide_its_error() -> None:
    """B6: the add wakes the journal, which must still stop with the callback's error."""

    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 1.0
        client, another = await be_alone(storage), Client(storage, 8)
        client.meanwhile = another.add
        client.has_bug = True
        client.add()
        async with asyncio.timeout(1):
            assert isinstance(await storage.failed(), ValueError)
        assert isinstance(storage.failure, ValueError)
        await another.until_heard()
        assert isinstance(another.heard[-1], BookieFailed)

    tell(story)


def test_force_makes_a_waiting_add_durable() -> None:
    async def story(storage: Storage, node: Node) -> None:
        node.disk.quick_odds = 1.0
        client = await be_alone(storage)
        await add(storage, (9, 0), is_recovery=True)
        assert not client.add()  # Another client has added, so this writer is no longer alone.
        await storage.force()
        assert client.heard == [None] * ENOUGH

    tell(story)
