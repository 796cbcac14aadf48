"""Export of a log and import into another cluster, with both commands killed several times."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import rollbook
from rollbook.api.cli.log.export_format import read_frames, read_head
from rollbook.api.client.log import Log
from rollbook.api.client.reader import EventReader
from rollbook.logservice.core.record_block import Record
from rollbook.proto.errors import ConnectionLost, MetadataUnavailable
from tests.regressions import lone_server
from tests.regressions.lone_server import Site
from tests.unit.api.cli.shell import Shell

_KILLS: Final = int(os.environ.get("ROLLBOOK_TEST_KILLS", "3"))  # Kills of each command.
_BATCHES: Final = 100
_RECORDS: Final = 25  # Records in a batch.
_DUE_S: Final = 60.0


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    folders = [tmp_path_factory.mktemp(name) for name in ("from", "to")]
    with (
        lone_server.running(folders[0], "--insecure") as source,
        lone_server.running(folders[1], "--insecure") as target,
    ):
        yield source, target


def content(record: Record) -> tuple[object, ...]:
    return (
        record.offset,
        record.value,
        record.key,
        dict(record.headers),
        record.event_time_us,
    )


def run_and_kill(command: list[str], progress: Callable[[], float]) -> None:
    """Kill the command `_KILLS` times at increasing progress, then run it to its end."""
    for kill in range(_KILLS):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        due, wanted = time.monotonic() + _DUE_S, (kill + 1) / (_KILLS + 2)
        while process.poll() is None and progress() < wanted and time.monotonic() < due:
            time.sleep(0.001)
        process.kill()
        assert process.wait() == -9, "the command ended before it was killed"
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DUE_S)
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(600)
def test_killed_export_and_import_copy_a_log_exactly(
    clusters: tuple[Site, Site], tmp_path: Path
) -> None:
    source, target = clusters
    chance, file = random.Random(7), tmp_path / "orders.export"
    with rollbook.connect(source.url) as client, rollbook.connect(target.url) as other:
        log = client.open("orders", create=True)
        for batch in range(_BATCHES):
            log.append_many(
                [chance.randbytes(4000) for _ in range(_RECORDS)],
                keys=[None if chance.random() < 0.5 else chance.randbytes(5)] * _RECORDS,
                headers=[{"batch": b"%d" % batch} if batch % 2 else None] * _RECORDS,
                event_times=[batch if batch % 3 else None] * _RECORDS,
            )
        shell = [sys.executable, "-m", "rollbook.api.cli.main", "log"]
        size = _BATCHES * _RECORDS * 4000
        run_and_kill(
            [*shell, "export", "orders", str(file), "--server", source.url],
            lambda: file.stat().st_size / size if file.exists() else 0.0,
        )
        copied = other.open("orders", create=True)
        run_and_kill(
            [*shell, "import", "orders", str(file), "--server", target.url],
            lambda: copied.tail_offset() / (_BATCHES * _RECORDS),
        )
        assert [*map(content, copied.read())] == [*map(content, log.read())]


def run_import(site: Site, log: str, file: Path) -> subprocess.CompletedProcess[str]:
    shell = [sys.executable, "-m", "rollbook.api.cli.main", "log"]
    command = [*shell, "import", log, str(file), "--server", site.url]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_DUE_S)


def test_repeated_import_reads_the_log_once(
    shell: Shell, clusters: tuple[Site, Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request for each block would be slow."""
    site, file = clusters[0], tmp_path / "blocks.export"
    server = ("--server", site.url)
    with rollbook.connect(site.url) as client:
        log = client.open("blocks", create=True)
        for block in range(20):
            log.append_many([b"%d of %d" % (record, block) for record in range(3)])
        log.truncate(4)
    shell.run("log", "export", "blocks", str(file), *server)
    shell.run("log", "import", "copied", str(file), "--create", *server)
    asked: list[tuple[object, ...]] = []
    read = Log.bounded_events

    def counted(log: Log, *bounds: Any) -> EventReader:
        asked.append(bounds)
        return read(log, *bounds)

    monkeypatch.setattr(Log, "bounded_events", counted)
    done = shell.json("log", "import", "copied", str(file), *server)
    assert (done["records"], done["were_there"], asked) == (0, 56, [(0, 56)])
    shell.run("log", "truncate", "copied", "--before", 30, "--yes", *server)
    shell.run("log", "import", "copied", str(file), *server)
    assert asked[1:] == [(30, 56)], "truncated records are not compared"


def test_import_into_a_log_with_other_records_is_refused(
    clusters: tuple[Site, Site], tmp_path: Path
) -> None:
    """All existing records are compared: the last block alone may be equal by chance."""
    site, file = clusters[0], tmp_path / "few.export"
    with rollbook.connect(site.url) as client:
        few, differs = (client.open(name, create=True) for name in ("few", "differs"))
        few.append_many([b"1", b"2", b"3"])
        few.append_many([b"4"])
        differs.append_many([b"1", b"x", b"3"])
        differs.append_many([b"4"])
        shell = [sys.executable, "-m", "rollbook.api.cli.main", "log"]
        export = [*shell, "export", "few", str(file), "--server", site.url]
        subprocess.run(export, capture_output=True, check=True, timeout=_DUE_S)
        refused = run_import(site, "differs", file)
        assert (refused.returncode, differs.tail_offset()) == (4, 4)
        assert "from offset 1 on" in refused.stderr
        assert run_import(site, "few", file).returncode == 0
        few.append_many([b"5"])
        refused = run_import(site, "few", file)
        assert (refused.returncode, few.tail_offset()) == (4, 5)
        assert "more records than the file: 5 instead of 4" in refused.stderr


_NOT_TWICE: Final = "records that are there already are not appended again"
_AGAIN: Final = f"import the file again, while nothing else appends: {_NOT_TWICE}"


def exported(shell: Shell, site: Site, log: str, folder: Path) -> Path:
    """The export of a new log with 3 blocks of 1000 records each."""
    file = folder / f"{log}.export"
    with rollbook.connect(site.url) as client:
        opened = client.open(log, create=True)
        for block in range(3):
            opened.append_many([b"%d" % block] * 1000)
    shell.run("log", "export", log, str(file), "--server", site.url)
    return file


def test_import_of_damaged_file_reports_appended_records(
    shell: Shell, clusters: tuple[Site, Site], tmp_path: Path
) -> None:
    site, cut = clusters[0], tmp_path / "cut"
    file, server = exported(shell, site, "whole", tmp_path), ("--server", site.url)
    with file.open("rb") as opened:
        read_head(opened)
        second = list(read_frames(opened))[1]
    data = bytearray(file.read_bytes())
    data[second.end + 50] ^= 0xFF  # In the third block.
    cut.write_bytes(data)
    shell.run("log", "import", "part", str(cut), "--create", *server, code=7)
    assert shell.errors.splitlines()[:3] == [
        f"error: the file is damaged at byte {second.end} [BLOCK_CORRUPT]",
        "  outcome: applied in part: the log was created; 2,000 records were appended, below offset 2000",
        f"  try: export the log again, to another file, and import that: {_NOT_TWICE}",
    ]
    shell.run("log", "import", "part", str(cut), *server, code=7)
    assert "outcome: not applied: nothing was changed" in shell.errors
    done = shell.json("log", "import", "part", str(file), *server)
    assert (done["were_there"], done["next_offset"]) == (2000, 3000)


def test_import_overtaken_by_an_append_reports_its_records(
    shell: Shell, clusters: tuple[Site, Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = clusters[0]
    file, server = exported(shell, site, "source", tmp_path), ("--server", site.url)
    append = Log.append_block

    async def overtaken(log: Log, block: bytes, **how: Any) -> Any:
        ack = await append(log, block, **how)
        if how["expect"] == 1000:
            await log.append(b"of another import")
        return ack

    monkeypatch.setattr(Log, "append_block", overtaken)
    command = ("log", "import", "twice", str(file), "--create", *server, "-o", "json")
    shell.run(*command, code=4)
    error = json.loads(shell.errors.splitlines()[-1])["error"]
    assert (error["reason"], error["outcome"]) == ("OFFSET_MISMATCH", "unknown")
    assert error["next_step"] == _AGAIN
    counts = [error["ids"][name] for name in ("created", "appended", "in_doubt", "next_offset")]
    assert counts == [True, 2000, 0, 2000]


def test_failed_import_reports_that_the_log_was_created(
    shell: Shell, clusters: tuple[Site, Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = clusters[0]
    file, server = exported(shell, site, "origin", tmp_path), ("--server", site.url)

    async def fail(*_: Any) -> int:
        raise MetadataUnavailable

    monkeypatch.setattr(Log, "head_offset", fail)
    shell.run("log", "import", "made", str(file), "--create", *server, code=5)
    assert "\n  outcome: applied in part: the log was created\n" in shell.errors
    shell.run("log", "import", "made", str(file), *server, code=5)
    assert "\n  outcome: not applied: nothing was changed\n" in shell.errors


def test_import_with_a_lost_response_reports_records_in_doubt(
    shell: Shell, clusters: tuple[Site, Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = clusters[0]
    file, server = exported(shell, site, "sent", tmp_path), ("--server", site.url)
    append = Log.append_block

    async def unanswered(log: Log, block: bytes, **how: Any) -> Any:
        if how["expect"] == 1000:
            raise ConnectionLost
        return await append(log, block, **how)

    monkeypatch.setattr(Log, "append_block", unanswered)
    shell.run("log", "import", "doubtful", str(file), "--create", *server, code=5)
    assert (
        "applied in part: the log was created; 1,000 records were appended, below offset 1000; "
        f"the next 1,000 may have been appended\n  try: {_AGAIN}\n"
    ) in shell.errors


def test_export_into_a_pipe_is_refused_with_the_reason(
    clusters: tuple[Site, Site], shell: Shell, tmp_path: Path
) -> None:
    site, pipe = clusters[0], tmp_path / "pipe"
    exported(shell, site, "piped", tmp_path)
    os.mkfifo(pipe)
    shell.run("log", "export", "piped", str(pipe), "--server", site.url, code=2)
    assert f"cannot write {pipe}: it is not a regular file, and" in shell.errors
