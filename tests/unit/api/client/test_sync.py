"""The synchronous client, against a server with an event loop of its own."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import rollbook
from rollbook.api.client.reader import RecordBatch
from rollbook.api.client.sync import SyncClient, SyncLog
from rollbook.api.grpc.config import GrpcConfig
from rollbook.api.grpc.server import GrpcServer
from rollbook.logservice import messages
from rollbook.proto.errors import (
    ClientClosed,
    EntryTooLarge,
    InvalidRequest,
    LogSealed,
    NoSuchLog,
    OffsetMismatch,
    Outcome,
    Overloaded,
)
from rollbook.proto.ports import Address
from rollbook.proto.runtime.loop_thread import LoopThread
from tests.messages import raises_message
from tests.unit.api.client.conftest import PATIENT
from tests.unit.api.grpc.fake_core import FakeCluster, FakeCore


@pytest.fixture
def core() -> FakeCore:
    return FakeCore(FakeCluster())


@pytest.fixture
def server_thread() -> Iterator[LoopThread]:
    thread = LoopThread("test-server")
    yield thread
    thread.close()


@pytest.fixture
def url(core: FakeCore, server_thread: LoopThread) -> Iterator[str]:
    server = server_thread.run(GrpcServer.start(core, GrpcConfig(Address("127.0.0.1", 0))))
    core.cluster.addresses["a"] = str(server.address)
    yield f"log://{server.address}"
    server_thread.run(server.close(0))


@pytest.fixture
def client(url: str) -> Iterator[SyncClient]:
    with rollbook.connect(url, PATIENT) as found:
        yield found


def test_sync_client_appends_reads_and_lists(client: SyncClient) -> None:
    log = client.open("orders", create=True)
    assert log.append(b"first").first_offset == 0
    with log.writer() as writer:
        futures = [writer.submit(b"%d" % index) for index in range(5000)]
        assert futures[-1].result(30) == 5000
        assert all(future.done() for future in futures)
    assert [record.offset for record in log.read()] == list(range(5001))
    assert [len(batch) for batch in log.read_batches(4999)] == [2]
    assert [str(name) for name in client.logs()] == ["default/orders"]


def test_submits_of_many_threads_get_distinct_offsets(client: SyncClient) -> None:
    log = client.open("orders", create=True)
    offsets: list[int] = []
    with log.writer() as writer:

        def work() -> None:
            futures = [writer.submit(b"x") for _ in range(2000)]
            offsets.extend(future.result(30) for future in futures)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(offsets) == list(range(8000))


def test_done_callbacks_are_called_once_each(client: SyncClient) -> None:
    log = client.open("orders", create=True)
    called: list[int] = []
    with log.writer() as writer:
        future = writer.submit(b"x")
        future.add_done_callback(lambda done: called.append(done.result()))
        writer.flush()
        future.add_done_callback(lambda done: called.append(done.result()))
    assert called == [0, 0]


def test_full_window_blocks_submit_and_refuses_try_submit(
    core: FakeCore, url: str, server_thread: LoopThread
) -> None:
    config = rollbook.LogClientConfig(batch_bytes_max=1024, window_bytes=4096)
    with rollbook.connect(url, config) as client:
        log = client.open("orders", create=True)
        core.holds.add("append_stream")
        writer = log.writer()
        taken = 0
        with suppress(Overloaded):
            while taken < 100:
                writer.try_submit(bytes(500))
                taken += 1
        assert 8 <= taken <= 12
        blocked = threading.Thread(target=writer.submit, args=(bytes(500),))
        blocked.start()
        assert blocked.is_alive()
        server_thread.call(core.release)
        blocked.join(30)
        assert not blocked.is_alive()
        writer.close()
        with pytest.raises(ClientClosed):
            writer.submit(b"late")


def test_a_tail_ends_when_the_log_is_sealed(client: SyncClient) -> None:
    log = client.open("orders", create=True)
    log.append(b"a")
    seen: list[bytes] = []
    follower = threading.Thread(
        target=lambda: seen.extend(record.value for record in log.tail("earliest"))
    )
    follower.start()
    log.append(b"b")
    log.seal()
    follower.join(30)
    assert seen == [b"a", b"b"]


def test_a_tail_closed_by_another_thread_ends(client: SyncClient) -> None:
    log = client.open("orders", create=True)
    for wait in (lambda tail: tail.poll(), lambda tail: next(iter(tail), None)):
        with ThreadPoolExecutor(1) as threads, log.tail() as tail:
            waits = threads.submit(wait, tail)
            with suppress(TimeoutError):
                waits.exception(
                    0.05
                )  # The thread probably waits now; the result is the same if not.
            tail.close()
            assert tail.is_over
            assert waits.result(30) is None
        assert tail.poll() is None


def test_loop_that_closes_its_tail_ends(client: SyncClient) -> None:
    log = client.open("orders", create=True)
    log.append_many([b"a", b"b", b"c"])
    seen = []
    tail = log.tail("earliest")
    for record in tail:
        seen.append(record.value)
        tail.close()
    assert seen == [b"a"]


def test_leaving_an_iteration_closes_its_stream(client: SyncClient, core: FakeCore) -> None:
    log = client.open("orders", create=True)
    log.append(b"a")
    for event in log.events("earliest"):
        if isinstance(event, messages.CaughtUp):
            break
        assert isinstance(event, RecordBatch)
    gone = threading.Event()
    for _ in range(3000):
        if not core.readers:
            break
        gone.wait(0.01)
    assert not core.readers


def test_sync_client_raises_the_errors_of_the_service(client: SyncClient) -> None:
    with pytest.raises(NoSuchLog):
        client.open("nowhere")
    log = client.open("orders", create=True)
    with pytest.raises(OffsetMismatch) as caught:
        log.append(b"a", expect=5)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    with log.writer() as writer:
        with pytest.raises(EntryTooLarge):
            writer.submit(bytes(2 << 20))
        with raises_message(InvalidRequest):
            writer.submit("text")  # type: ignore[arg-type]  # An untyped program may.
        assert writer.submit(bytearray(b"ok")).result(30) == 0  # type: ignore[arg-type]  # Accepted.
    cursor = log.cursor("c")
    assert cursor.mark(0, b"blob").blob == b"blob"
    assert cursor.get().is_protected
    cursor.delete()
    log.seal()
    with pytest.raises(LogSealed):
        log.append(b"late")


def test_sync_clients_share_one_loop_thread(url: str) -> None:
    """gRPC's poller logs errors about closed event loops that it has used."""
    for _ in range(3):
        with rollbook.connect(url) as one, rollbook.connect(url) as other:
            assert one.limits() == other.limits()
    with pytest.raises(ClientClosed):
        one.limits()
    clients = [thread for thread in threading.enumerate() if thread.name == "rollbook-client"]
    assert len(clients) == 1


def test_failing_callbacks_are_logged_and_break_no_append(
    client: SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure in a callback must not end the stream that all appends of the client share."""
    log, other = client.open("orders", create=True), client.open("payments", create=True)

    def fail(_: object) -> None:
        raise KeyError

    def call_back(_: object) -> None:
        other.append(b"from within")

    with log.writer() as writer:
        submission = writer.submit(b"x")
        submission.add_done_callback(fail)
        submission.add_done_callback(call_back)
        assert submission.result(30) == 0
        writer.flush()
        assert other.append(b"y").first_offset == 0
    told = [each.exc_info[1] for each in caplog.records if each.exc_info]
    assert [type(each) for each in told] == [KeyError, RuntimeError]
    assert "own thread" in str(told[1])


_NUMBERS = ({"epoch": -1}, {"epoch": 2**64}, {"epoch": 1.5}, {"epoch": "1"}, {"expect": 1.5})


@pytest.mark.parametrize("numbers", _NUMBERS, ids=str)
def test_invalid_number_fails_only_its_own_call(
    client: SyncClient, numbers: dict[str, Any]
) -> None:
    log = client.open("orders", create=True)
    with pytest.raises(InvalidRequest):
        log.append(b"x", **numbers)
    assert log.append(b"y").first_offset == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, log: log.journal(-1),
        lambda client, log: log.renew_writer(-1),
        lambda client, log: log.acquire_writer("me", ttl_s=float("inf")),
        lambda client, log: client.delete("orders", grace_s=-1),
        lambda client, log: client.ask("x"),
        lambda client, log: log.append(b"x", timeout_s=0),
        lambda client, log: log.append(b"x", event_time_us=1.5),
        lambda client, log: log.append_many([b"x"] * 3, event_times=[1, 1.5, 3]),
        lambda client, log: log.read(1.5).__next__(),
    ],
)
def test_invalid_arguments_are_refused(
    client: SyncClient, ask: Callable[[SyncClient, SyncLog], object]
) -> None:
    log = client.open("orders", create=True)
    with pytest.raises(InvalidRequest):
        ask(client, log)
    assert log.append(b"y").first_offset == 0


def test_closed_client_refuses_reads_and_writes(url: str) -> None:
    with rollbook.connect(url, PATIENT) as client:
        log = client.open("orders", create=True)
        log.append(b"x")
        told = list[type]()
        is_there = threading.Event()

        def follow() -> None:
            try:
                for _ in log.tail("earliest"):
                    is_there.set()
            except ClientClosed as error:
                told.append(type(error))

        follower = threading.Thread(target=follow)
        follower.start()
        assert is_there.wait(30)
    follower.join(30)
    assert told == [ClientClosed]
    for late in (log.writer, lambda: next(log.read()), lambda: next(log.tail(0))):
        with pytest.raises(ClientClosed):
            late()


_FORK = """
import os, signal, sys
import rollbook
from rollbook.proto.errors import ClientClosed

def told(work):
    try:
        return f"no error: {work()!r}"
    except ClientClosed as error:
        return "refused"

client = rollbook.connect(sys.argv[1])
log = client.open("orders", create=True)
writer = log.writer()
submission = writer.submit(b"before")
submission.result(30)
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    print([told(work) for work in (
        lambda: rollbook.connect(sys.argv[1]),
        lambda: log.append(b"x"),
        lambda: writer.submit(b"x").result(),
        lambda: next(log.read()),
        lambda: client.open("orders"),
    )], flush=True)
    os._exit(0)
_, status = os.waitpid(pid, 0)
print(status, log.append(b"after").first_offset)
"""


def test_client_is_refused_in_a_forked_process(url: str) -> None:
    """gRPC would hang or end the forked process."""
    found = subprocess.run(
        [sys.executable, "-c", _FORK, url], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.splitlines() == [str(["refused"] * 5), "0 1"]
