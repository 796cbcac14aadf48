"""The synchronous client, with a cluster of real bookies."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rollbook.ledger import sync
from rollbook.ledger.config import ClientConfig
from rollbook.proto.errors import ClientClosed, NoSuchLedger, Unauthorized
from rollbook.proto.runtime.loop_thread import LoopThread
from tests.support import processes
from tests.support.ledger_cluster import ProcessCluster

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with processes.family() as children:
        yield ProcessCluster(children, tmp_path_factory.mktemp("cluster")).url


def test_ledger_lifecycle_from_create_to_delete(url: str) -> None:
    with sync.connect(url) as ledgers:
        with ledgers.create(password=b"secret", custom={"a": b"b"}) as writer:
            assert writer.append(b"first") == 0
            assert writer.append_many(b"%d" % n for n in range(3000)) == list(range(1, 3001))
            writer.flush()
            with ledgers.open_tailing(writer.ledger_id) as tailer:
                following = tailer.tail(2999)
                assert [next(following).payload, next(following).payload] == [b"2998", b"2999"]
        assert list(ledgers.list()) == [writer.ledger_id]
        assert ledgers.metadata(writer.ledger_id).last_entry == 3000
        with pytest.raises(Unauthorized):
            ledgers.open(writer.ledger_id, b"wrong")
        with ledgers.open(writer.ledger_id, b"secret") as reader:
            assert reader.is_closed
            assert [entry.payload for entry in reader.read(0, 1)] == [b"first", b"0"]
            assert sum(1 for _ in reader.read()) == 3001
            for entry in reader.read():
                if entry.entry_id == 10:
                    break  # The iterator is dropped early.
        ledgers.delete(writer.ledger_id)
        with pytest.raises(NoSuchLedger):
            ledgers.open(writer.ledger_id)


def test_recovery_keeps_entries_of_an_unclosed_writer(url: str) -> None:
    with sync.connect(url) as ledgers:
        writer = ledgers.create()
        writer.append_many([b"x"] * 10)
    with sync.connect(url) as ledgers, ledgers.open_recover(writer.ledger_id) as reader:
        assert reader.last_add_confirmed == 9


def test_append_many_is_split_to_fit_the_window(url: str) -> None:
    small = replace(ClientConfig(), writer_window_entries=7, writer_window_bytes=4096)
    with sync.connect(url, small) as ledgers, ledgers.create() as writer:
        assert writer.append_many([bytes(600)] * 100) == list(range(100))


def test_threads_may_share_a_client(url: str) -> None:
    with sync.connect(url) as ledgers, ledgers.create() as writer:
        ids: list[int] = []

        def append() -> None:
            ids.extend(writer.append(b"x") for _ in range(20))

        threads = [threading.Thread(target=append) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(ids) == list(range(80))


def test_closing_the_client_leaves_no_threads(url: str) -> None:
    before = threading.active_count()
    ledgers = sync.connect(url)
    ledgers.create().append(b"x")
    ledgers.close()
    ledgers.close()
    assert threading.active_count() <= before


def test_iterators_may_be_dropped_after_the_client_closes(url: str) -> None:
    with sync.connect(url) as ledgers, ledgers.create() as writer:
        writer.append(b"x")
        reader = ledgers.open(writer.ledger_id)
        reading, tailing = reader.read_unconfirmed(0, 0), reader.tail()
        assert next(reading) == next(tailing)
    del reading, tailing
    gc.collect()
    with pytest.raises(ClientClosed):
        reader.read_last_confirmed()


def test_closing_a_loop_thread_cancels_its_tasks() -> None:
    thread = LoopThread("test")
    ended = threading.Event()
    left: list[asyncio.Task[None]] = []

    async def last() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async def leave_something() -> None:
        left.append(asyncio.create_task(last()))
        await asyncio.sleep(0)

    thread.run(leave_something())
    thread.close()
    assert ended.is_set()
    assert not thread.is_alive
