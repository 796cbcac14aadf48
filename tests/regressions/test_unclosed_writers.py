"""PC1: submitted records are appended, or the program learns how many are not."""

import sys
import threading
from collections.abc import Iterator

import pytest

import rollbook
from rollbook.logservice.log_config import WriterMode
from rollbook.proto.errors import LogSealed
from rollbook.proto.quorum import Quorum
from tests.regressions.defects import defect
from tests.regressions.one_dev import Dev, running
from tests.support import processes

_RECORDS = 500


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running(tmp_path_factory.mktemp("dev")) as found:
        yield found


_LEFT_OPEN = {
    "with": """
import sys, rollbook
with rollbook.connect(sys.argv[1]) as client:
    writer = client.open(sys.argv[2], create=True).writer()
    for _ in range(500):
        writer.submit(b"x")
""",
    "at exit": """
import sys, rollbook
client = rollbook.connect(sys.argv[1])
writer = client.open(sys.argv[2], create=True).writer()
for _ in range(500):
    writer.submit(b"x")
""",
    "async with": """
import asyncio, sys, rollbook
async def main():
    async with rollbook.aio.connect(sys.argv[1]) as client:
        writer = (await client.open(sys.argv[2], create=True)).writer()
        for _ in range(500):
            writer.submit(b"x")
asyncio.run(main())
""",
    "async at exit": """
import asyncio, sys, rollbook
async def main():
    client = rollbook.aio.connect(sys.argv[1])
    writer = (await client.open(sys.argv[2], create=True)).writer()
    for _ in range(500):
        writer.submit(b"x")
asyncio.run(main())
""",
}


@defect(
    "open-writer-loses-records",
    "A program that did not close its writer exited with 0 and lost its records.",
)
@pytest.mark.parametrize("way", list(_LEFT_OPEN))
def test_records_of_an_open_writer_are_appended_at_exit(dev: Dev, way: str) -> None:
    log = f"left-open-{way.replace(' ', '-')}"
    done = dev.program(_LEFT_OPEN[way], log)
    assert (done.returncode, dev.tail_of(log)) == (0, _RECORDS), done.stderr


_IN_DOUBT = """
import os, signal, sys, rollbook
server = int(sys.argv[3]) if len(sys.argv) > 3 else 0
config = rollbook.LogClientConfig(timeout_s=1, attempt_s=0.5)
with rollbook.connect(sys.argv[1], config) as client:
    writer = client.open(sys.argv[2], create=True).writer()
    writer.submit(b"first").result(30)
    print("submit", flush=True)
    input()
    for _ in range(500):
        writer.submit(b"x")
"""


@defect(
    "open-writer-loses-records",
    "A program that did not close its writer exited with 0 and lost its records.",
)
def test_client_close_reports_number_of_records_in_doubt(dev: Dev) -> None:
    with processes.family() as children:
        stderr = ("sh", "-c", 'exec "$@" 2>&1', "sh")
        program = children.start(*stderr, sys.executable, "-c", _IN_DOUBT, dev.url, "in-doubt")
        assert program.line() == "submit"
        dev.child.stop()
        try:
            program.say("")
            assert program.wait() == 1
        finally:
            dev.child.resume()
        assert f"{_RECORDS} of the submitted records" in program.last_lines()[-1]


_COLLECTED = """
import asyncio, gc, sys, rollbook
async def main():
    client = rollbook.aio.connect(sys.argv[1])
    writer = (await client.open(sys.argv[2], create=True)).writer()
    for _ in range(500):
        writer.submit(b"x")
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
gc.collect()
"""


@defect(
    "collected-writer-is-silent",
    "A writer was collected with records pending, and nothing said so.",
)
def test_collected_writer_warns_of_its_pending_records(dev: Dev) -> None:
    done = dev.program(_COLLECTED, "collected")
    assert "ResourceWarning: a writer of default/collected was not closed" in done.stderr
    assert f"{_RECORDS} records" in done.stderr


@defect(
    "close-hides-a-failed-writer",
    "Closing a writer that had failed did not report the records that it lost.",
)
def test_closing_a_writer_that_has_failed_raises(dev: Dev) -> None:
    with rollbook.connect(dev.url) as client:
        log = client.open("sealed", create=True)
        writer = log.writer()
        log.seal()
        submission = writer.submit(b"x")
        is_done = threading.Event()
        submission.add_done_callback(lambda _: is_done.set())
        assert is_done.wait(30)
        with pytest.raises(LogSealed) as caught:
            writer.close()
        assert caught.value.ids["not_appended"] == 1
        writer.close()  # The error is raised only once.


@defect(
    "exclusive-writer-drops-what-waits",
    "Records that waited for room as an exclusive writer ended were not appended.",
)
def test_exclusive_writer_appends_waiting_records_on_exit(dev: Dev) -> None:
    config = rollbook.LogClientConfig(batch_bytes_max=1024, window_bytes=4096)
    with rollbook.connect(dev.url, config) as client:
        log = client.open(
            "wal",
            create=rollbook.LogConfig(writer_mode=WriterMode.EXCLUSIVE, quorum=Quorum(1, 1, 1)),
        )
        with rollbook.wal.ExclusiveWriter(log, "me") as writer:
            for _ in range(200):
                writer.submit(bytes(500))
        assert log.tail_offset() == 200
