"""A program that is killed and restarted resumes where it was, without storing its position."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import rollbook
import rollbook.aio
from rollbook.proto import errors
from tests.regressions.defects import defect
from tests.support import log_processes
from tests.support.log_processes import LogProcesses

_RECORDS: Final = 60_000
_LIVES: Final = 5
_PROGRAM: Final = """
import sys, time
import rollbook
with rollbook.connect(sys.argv[1]) as client:
    log = client.open("loaded", create=True)
    with log.writer(producer="loader") as writer:
        assert (writer.last_offset or -1) == writer.resumed_at - 1
        print(writer.resumed_at, flush=True)
        for number in range(writer.resumed_at, int(sys.argv[2])):
            writer.submit(b"%d" % number)
            if number % 500 == 0:
                time.sleep(0.002)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogProcesses]:
    with log_processes.running(tmp_path_factory.mktemp("resumed")) as found:
        found.start_server("log-1")
        found.start_server("log-2")
        yield found


@defect(
    "writer-cannot-resume",
    "A program that was killed could not learn how far it had appended, unless it kept that in its records.",
)
def test_a_program_that_is_killed_five_times_appends_each_record_once(
    cluster: LogProcesses, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(_PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), cluster.url, str(_RECORDS)]
    lives: list[int] = []
    with rollbook.connect(cluster.url) as client:
        log = client.open("loaded", create=True)
        for life in range(_LIVES):
            program = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert program.stdout is not None
            lives.append(int(program.stdout.readline() or -1))
            assert lives[-1] >= 0, "the program has failed"
            wanted = (life + 1) * _RECORDS // (_LIVES + 2)
            for record in log.tail(max(log.tail_offset() - 1, 0)):
                if record.offset >= wanted:
                    break
            program.kill()
            assert program.wait() == -9  # The program was killed before it was done.
            program.stdout.close()
            if life == 2:  # The producer's state must move with the log to another owner.
                (place,) = client.lookup(["loaded"])
                is_first = place.address == cluster.servers["log-1"].address
                client.transfer("loaded", "log-2" if is_first else "log-1")
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert lives[0] == 0
        assert lives == sorted(set(lives)), lives
        assert [int(each.value) for each in log.read()] == [*range(_RECORDS)]


@defect(
    "older-copy-of-a-program-keeps-appending",
    "Two copies of one program could append under the same producer name without noticing each other.",
)
def test_an_older_copy_of_a_program_is_fenced(cluster: LogProcesses) -> None:
    """LS15: an epoch ends when the next one is granted."""
    with rollbook.connect(cluster.url) as client:
        log = client.open("fenced", create=True)
        older = log.writer(producer="till")
        older.submit(b"1").result()
        older.submit(b"2")
        older.flush()
        newer = log.writer(producer="till")
        assert (newer.resumed_at, newer.last_offset) == (2, 1)
        refused = older.submit(b"3")  # The newer writer has not appended anything yet.
        with pytest.raises(errors.ProducerFenced, match=r"another program has begun.*'till'"):
            refused.result()
        with pytest.raises(errors.ProducerFenced, match="another program has begun"):
            older.submit(b"4")
        older.close()  # Does not raise an error that was already raised.
        newer.submit(b"3").result()
        newer.close()
        again = log.writer(producer="till")
        assert (again.resumed_at, again.last_offset) == (3, 2)
        again.close()
        other = log.writer(producer="another")
        assert (other.resumed_at, other.last_offset) == (0, None)
        other.close()
        assert [each.value for each in log.read()] == [b"1", b"2", b"3"]
        with pytest.raises(errors.InvalidRequest, match="64 bytes"):
            log.writer(producer="")
        with log.writer() as unnamed, pytest.raises(errors.InvalidRequest, match="producer's name"):
            _ = unnamed.resumed_at


@defect(
    "shell-and-writer-number-records-separately",
    "A program did not learn what the shell had appended under the same producer name.",
)
def test_shell_and_writer_share_the_numbering_of_a_producer(cluster: LogProcesses) -> None:
    def append(text: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "rollbook.api.cli.main", "log", "append", "both"]
        command += ["--create", "--producer", "import", "--server", cluster.url]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, check=False, timeout=60
        )

    assert append("a\nb\n").returncode == 0
    with rollbook.connect(cluster.url) as client:
        with client.open("both").writer(producer="import") as writer:
            assert (writer.resumed_at, writer.last_offset) == (2, 1)
        refused = append("a\nb\nc\n")
        assert refused.returncode == 4
        assert "a program appends as producer 'import'" in refused.stderr
        assert "another name" in refused.stderr
        assert [each.value for each in client.open("both").read()] == [b"a", b"b"]


@defect(
    "writer-cannot-resume",
    "A program that was killed could not learn how far it had appended, unless it kept that in its records.",
)
def test_asyncio_writer_must_begin_before_it_takes_records(cluster: LogProcesses) -> None:
    async def run() -> None:
        async with rollbook.aio.connect(cluster.url) as client:
            log = await client.open("loop", create=True)
            async with log.writer(producer="p") as writer:
                assert (writer.resumed_at, writer.last_offset) == (0, None)
                await writer.send(b"a")
            late = log.writer(producer="p")
            with pytest.raises(errors.InvalidRequest, match="has to begin"):
                late.submit(b"x")
            await late.begin()
            assert late.resumed_at == 1
            await late.submit(b"b")
            await late.close()
            await log.seal()
            with pytest.raises(errors.LogSealed):
                async with log.writer(producer="p"):
                    pass
            assert [each.value async for each in log.read()] == [b"a", b"b"]

    asyncio.run(run())
