"""Export, audit and the table over archive and log, with a real server and without a JVM."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollbook.api.client.sync import SyncClient, SyncLog
from rollbook.api.spark import count_and_hash_scan, parquet_output
from rollbook.api.spark.archive_folder import Archive
from rollbook.api.spark.core.archive_manifests import Manifest
from rollbook.api.spark.core.audit_findings import compare
from rollbook.api.spark.core.options import SplitLimits
from rollbook.api.spark.failures import RollbookFailure
from rollbook.api.spark.pipelines.connection import Way
from rollbook.logservice.log_config import LogConfig
from rollbook.proto.errors import (
    ArchiveDamaged,
    ArchiveHeld,
    ArchiveUnwritable,
    BadConfig,
    LogReplaced,
    NoSuchArchive,
    NoSuchCursor,
    NoSuchLog,
    Unavailable,
)
from rollbook.proto.quorum import Quorum
from tests.regressions.lone_server import Site
from tests.spark.pipes import Pipes, hash_of, measured, xxhash64
from tests.spark.test_source_without_jvm import numbered, replace

SMALL = SplitLimits(records_max=400)


class Killed(BaseException):
    """Stands for a signal: no code catches it."""


@pytest.fixture
def log(client: SyncClient, name: str) -> SyncLog:
    return client.open(name, create=True)


@pytest.fixture
def pipes(site: Site, client: SyncClient, name: str, tmp_path: Path, log: SyncLog) -> Pipes:
    return Pipes(site, client, tmp_path / "archive", name)


def expected(first: int, last: int) -> list[tuple[int, bytes]]:
    return list(enumerate(numbered(first, last), first))


def files_in(archive: Archive) -> list[str]:
    found = (os.path.relpath(path, archive.path) for path in Path(archive.path).rglob("*.parquet"))
    return sorted(found)


def test_xxhash64_matches_spark() -> None:
    """Spark computed `SELECT xxhash64(1L, X'6869')`; two values are examples of the algorithm."""
    assert xxhash64(b"", 0) == 0xEF46DB3751D8E999
    assert xxhash64(b"Nobody inspects the spammish repetition", 0) == 0xFBCEA83C8A378BF1
    assert hash_of(1, b"hi") == 0x3434FAF5E1149F7E


def test_archive_has_all_records_and_columns_of_its_log(
    pipes: Pipes, log: SyncLog, name: str
) -> None:
    """SA1"""
    log.append_many(numbered(0, 1000), keys=[b"k", None] * 500)
    log.append(b"v1000", headers={"h": b"1"}, event_time_us=5)
    report = pipes.export(split=SMALL)
    assert report.logs[f"default/{name}"]["records"] == 1001
    chain = pipes.archive.chain(f"default/{name}")
    assert chain is not None
    assert (chain.first, chain.next, len(chain.files)) == (0, 1001, 3)
    assert files_in(pipes.archive) == sorted(file.path for file in chain.files)
    assert chain.files[0].path.startswith(f"log=default%2F{name}/date=")
    assert pipes.rows() == expected(0, 1001)
    last = pq.ParquetFile(os.path.join(pipes.archive.path, chain.files[-1].path)).read()
    row = last.to_pylist()[-1]
    assert (row["key"], row["headers"]) == (None, [{"key": "h", "value": b"1"}])
    assert row["event_time"].timestamp() == 5e-6
    cursor = log.cursor("archive").get()
    assert (cursor.offset, cursor.is_protected) == (1001, True)
    assert pipes.kinds() == []


def test_table_stays_complete_across_exports_and_truncations(pipes: Pipes, log: SyncLog) -> None:
    """SA3: also after archived records were truncated from the log."""
    at = 0
    for size in (500, 1, 250):
        log.append_many(numbered(at, at + size))
        at += size
        pipes.export()
        log.truncate(at - 1)
        log.append_many(numbered(at, at + 3))
        at += 3
        assert pipes.rows() == expected(0, at)
    assert pipes.rows(startingOffsets="700", endingOffsets="756") == expected(700, 756)
    assert pipes.rows(startingOffsets="3", endingOffsets="5") == expected(3, 5)
    assert pipes.kinds() == []


def test_export_in_steps_archives_all_logs(
    site: Site, client: SyncClient, name: str, tmp_path: Path
) -> None:
    for n in range(3):
        client.open(f"{name}/x{n}", create=True).append_many(numbered(0, 300))
    pipes = Pipes(site, client, tmp_path / "archive", f"{name}/*")
    report = pipes.export(step_bytes=2000)
    assert {row["records"] for row in report.logs.values()} == {300}
    assert report.logs[f"{name}/x1"]["files"] > 1
    assert pipes.kinds() == []


def calls_of_the_system(patch: pytest.MonkeyPatch, act: Callable[[int, str], None]) -> None:
    """Calls `act` with a number before each call that changes the file system."""
    count = 0

    def wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*arguments: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            act(count, name)
            return call(*arguments, **more)

        return inner

    for name in ("fsync", "rename", "link", "unlink", "makedirs"):
        patch.setattr(os, name, wrapped(name, getattr(os, name)))


def test_export_killed_at_any_call_loses_and_duplicates_nothing(
    pipes: Pipes, log: SyncLog, name: str
) -> None:
    """SA4, SA5"""
    at, kill_at = 0, 1
    while True:
        chain = pipes.archive.chain(f"default/{name}")
        if (chain.next if chain else 0) == at:
            log.append_many(numbered(at, at + 20))
            at += 20

        def kill(number: int, call: str, kill_at: int = kill_at) -> None:
            if number == kill_at:
                raise Killed(call)

        with pytest.MonkeyPatch.context() as patch:
            calls_of_the_system(patch, kill)
            try:
                pipes.export(split=SplitLimits(records_max=15))
            except Killed:
                kill_at += 1
            else:
                break
        chain = (
            pipes.archive.chain(f"default/{name}") if os.path.isdir(pipes.archive.path) else None
        )
        archived = chain.next if chain else 0
        try:
            assert log.cursor("archive").get().offset <= archived
        except NoSuchCursor:
            assert archived == 0
        if chain is not None:
            assert pipes.rows() == expected(0, at)
    assert kill_at > 15
    pipes.export()
    assert pipes.rows() == expected(0, at)
    chain = pipes.archive.chain(f"default/{name}")
    assert chain is not None
    assert files_in(pipes.archive) == sorted(file.path for file in chain.files)
    assert pipes.kinds() == []


def test_full_disk_fails_the_export_and_keeps_the_cursor(pipes: Pipes, log: SyncLog) -> None:
    """SA5"""
    log.append_many(numbered(0, 10))
    pipes.export()
    log.append_many(numbered(10, 5000))

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_output._Checked, "write", full)
        with pytest.raises(RollbookFailure, match=r"ARCHIVE_UNWRITABLE: .*No space left on device"):
            pipes.export()
    assert os.listdir(os.path.join(pipes.archive.path, "_steps")) == []
    for call in ("fsync", "rename", "link"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, call, full)
            with pytest.raises((ArchiveUnwritable, RollbookFailure), match="No space left"):
                pipes.export()
    assert log.cursor("archive").get().offset == 10
    assert pipes.rows() == expected(0, 5000)
    pipes.export()
    assert log.cursor("archive").get().offset == 5000
    assert pipes.kinds() == []


def test_task_that_runs_twice_is_archived_once(pipes: Pipes, log: SyncLog) -> None:
    """SA1: a speculative task runs twice, and so does a task whose result was lost."""
    log.append_many(numbered(0, 1000))
    pipes.times = 2
    pipes.export(split=SMALL)
    assert pipes.rows() == expected(0, 1000)
    assert len(files_in(pipes.archive)) == 3
    assert pipes.kinds() == []


def test_second_concurrent_export_is_refused(pipes: Pipes, log: SyncLog) -> None:
    log.append(b"a")
    with pipes.archive.held(), pytest.raises(ArchiveHeld, match="another export writes to"):
        pipes.export()


def test_cursor_of_another_archive_is_not_moved(
    pipes: Pipes, log: SyncLog, site: Site, client: SyncClient, name: str, tmp_path: Path
) -> None:
    log.append_many(numbered(0, 10))
    pipes.export()
    other = Pipes(site, client, tmp_path / "other", name)
    with pytest.raises(ArchiveHeld, match="belongs to another archive"):
        other.export()
    log.cursor("reader").commit(3)
    with pytest.raises(ArchiveHeld, match=r"cursor reader of .* belongs to another archive"):
        other.export(cursor="reader")
    assert log.cursor("reader").get().offset == 3
    other.export(cursor="second")
    assert other.rows() == expected(0, 10)


def test_replaced_log_is_not_added_to_the_old_archive(
    pipes: Pipes, log: SyncLog, client: SyncClient, name: str
) -> None:
    """SA2: the table does not continue with the new log."""
    log.append_many(numbered(0, 10))
    pipes.export()
    log.cursor("archive").delete()  # The cursor also protects the log from deletion.
    client.delete(name, grace_s=0)
    assert pipes.rows() == expected(0, 10)  # The archive alone has the rows.
    replace(client, name, *numbered(0, 50))
    with pytest.raises(LogReplaced):
        pipes.export()
    with pytest.raises(LogReplaced):
        pipes.rows()
    assert "replaced" in pipes.kinds()


def test_read_of_a_missing_archive_is_refused(pipes: Pipes, log: SyncLog) -> None:
    with pytest.raises(NoSuchArchive, match="there is no archive in"):
        pipes.rows()


def test_audit_finds_damaged_and_missing_files_and_manifests(
    pipes: Pipes, log: SyncLog, name: str
) -> None:
    """A flipped byte anywhere in a file, a missing file, a missing and a changed manifest."""
    log.append_many(numbered(0, 1000), keys=[b"k"] * 1000)
    pipes.export(split=SMALL)
    log.append_many(numbered(1000, 1010))
    pipes.export()
    paths = [os.path.join(pipes.archive.path, path) for path in files_in(pipes.archive)]
    whole = Path(paths[0]).read_bytes()
    for at in range(0, len(whole), max(len(whole) // 25, 1)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        Path(paths[0]).write_bytes(damaged)
        assert "file_changed" in pipes.kinds(offline=True), at
    Path(paths[0]).write_bytes(whole[:-1])
    assert "file_changed" in pipes.kinds()
    Path(paths[0]).unlink()
    assert pipes.kinds() == ["file_missing"]
    Path(paths[0]).write_bytes(whole)
    assert pipes.kinds() == []
    manifests = Path(pipes.archive.path, "_manifests", f"default%2F{name}")
    first, second = sorted(manifests.iterdir())
    kept = second.read_bytes()
    second.unlink()
    assert pipes.kinds() == []  # The log still has the records, as if not exported yet.
    second.write_bytes(kept)
    (manifests / "00000000000000000500.json").write_bytes(first.read_bytes())
    assert "manifests" in pipes.kinds()
    (manifests / "00000000000000000500.json").unlink()
    damaged = bytearray(kept)
    damaged[len(kept) // 2] ^= 1
    second.write_bytes(damaged)
    assert pipes.kinds() == ["manifests"]  # The audit checked everything else, too.
    damaged[0] ^= 1
    first.write_bytes(damaged)
    assert pipes.kinds(offline=True) == ["manifests"] * 2


def test_audit_reads_the_untruncated_part_of_a_file_in_the_log(
    pipes: Pipes, log: SyncLog, name: str
) -> None:
    log.append_many(numbered(0, 100))
    pipes.export()
    log.truncate(40)  # The new head is within the only file.
    report = pipes.audit()
    assert report.is_ok
    assert report.logs[f"default/{name}"]["records"] == 100 + 60
    assert report.logs[f"default/{name}"]["compared"] == 0


@pytest.mark.parametrize(
    ("heads", "found", "records"),
    [
        ([30, 60, 60], [], 100 + 100 + 40),
        ([30, 150], [], 100 + 100),
        ([9, 60, 70], ["unread"], 200),
    ],
)
def test_audit_continues_after_a_concurrent_truncation(
    pipes: Pipes,
    log: SyncLog,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    heads: list[int],
    found: list[str],
    records: int,
) -> None:
    """Truncation is not damage; the audit reads the remaining records again."""
    log.append_many(numbered(0, 100))
    pipes.export()
    log.append_many(numbered(100, 200))
    heads, last = list(heads), heads[-1]

    def truncated_first(*arguments: Any, **more: Any) -> Any:
        if heads and "folder" not in more:
            pipes.export()
            log.truncate(heads.pop(0))
        return measured(*arguments, **more)

    monkeypatch.setattr("tests.spark.pipes.measured", truncated_first)
    report = pipes.audit()
    row = report.logs[f"default/{name}"]
    assert [each.kind for each in report.findings] == found
    assert (row["truncated"], row["records"]) == (min(last, 100), records)


def test_audit_that_cannot_read_does_not_report_damaged_records(
    pipes: Pipes, log: SyncLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append_many(numbered(0, 10))
    pipes.export()

    def unreachable(*_: Any) -> Any:
        raise Unavailable("no server answers")

    monkeypatch.setattr("rollbook.api.spark.count_and_hash_scan.slices_of", unreachable)
    (found,) = pipes.audit().findings
    assert (found.kind, found.what) == ("unread", "UNAVAILABLE: no server answers")


def test_audit_rereads_manifests_after_a_concurrent_export(
    pipes: Pipes, log: SyncLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append_many(numbered(0, 10))
    pipes.export()
    log.append_many(numbered(10, 20))
    tails, calls = Way.tails, 0

    def late(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            pipes.export()
            log.truncate(15)
        return tails(*arguments)

    monkeypatch.setattr(Way, "tails", late)
    assert pipes.kinds() == []


def test_audit_reports_records_that_differ_from_the_log(
    pipes: Pipes, log: SyncLog, site: Site, client: SyncClient, name: str
) -> None:
    """The file matches its manifest but not the log."""
    log.append_many(numbered(0, 100))
    pipes.export()
    with pytest.MonkeyPatch.context() as patch:

        def other(log: str, start: int, end: int, one: Any, two: Any, where: str) -> Any:
            return compare(log, start, end, one, two._replace(xor=two.xor ^ 1), where)

        patch.setattr("rollbook.api.spark.pipelines.audit.compare", other)
        assert pipes.kinds() == ["differs"]


def test_audit_counts_records_in_files_and_in_the_log(
    site: Site, client: SyncClient, name: str, tmp_path: Path
) -> None:
    log = client.open(name, create=LogConfig(quorum=Quorum(1, 1, 1)))
    for n in range(0, 300, 100):
        log.append_many(numbered(n, n + 100))
        log.roll()
    pipes = Pipes(site, client, tmp_path / "archive", name)
    pipes.export()
    report = pipes.audit()
    assert report.is_ok
    assert report.logs[f"default/{name}"]["records"] == 600  # 300 in files and 300 in the log.


@pytest.mark.parametrize(
    ("offsets", "times", "fault"),
    [
        ([0, 1, 2, 3], [5, 5, 6, 7], ""),
        ([0, 1, 3, 4], [5, 5, 6, 7], "are not dense"),
        ([0, 1, 1, 2], [5, 5, 6, 7], "are not dense"),
        ([0, 2, 1, 3], [5, 5, 6, 7], "are not dense"),
        ([0, 1, 2, 3], [5, 7, 6, 7], "go back"),
    ],
)
def test_an_audit_finds_gaps_duplicates_and_disorder_in_a_file(
    tmp_path: Path, offsets: list[int], times: list[int], fault: str
) -> None:
    """The file is undamaged: its rows were wrong when it was written."""
    rows = pa.table(
        {
            "offset": pa.array(offsets, pa.int64()),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            "value": pa.array([b"v"] * len(offsets), pa.binary()),
        }
    )
    pq.write_table(rows, tmp_path / "file")
    piece = count_and_hash_scan.FilePiece("file", offsets[0])
    (found,) = measured({"endpoint": "log://none:1"}, [[(0, piece)]], root=str(tmp_path))
    assert found.records == 4
    assert [fault in each for each in found.facts["faults"]] == [True] * bool(fault)


def test_audit_without_matching_logs_is_refused(
    site: Site, client: SyncClient, name: str, tmp_path: Path, pipes: Pipes, log: SyncLog
) -> None:
    log.append(b"a")
    pipes.export()
    pipes.logs = ("nobody/*",)
    with pytest.raises(NoSuchLog, match="there is no log with prefix nobody/"):
        pipes.audit()


def test_failed_export_of_one_log_does_not_stop_the_rest(
    site: Site, client: SyncClient, name: str, tmp_path: Path
) -> None:
    logs = [f"{name}/{letter}" for letter in "abc"]
    for each in logs:
        client.open(each, create=True).append_many(numbered(0, 10))
    client.open(logs[1]).cursor("archive").commit(3)  # A reader's cursor.
    pipes = Pipes(site, client, tmp_path / "archive", f"{name}/*")
    with pytest.raises(ArchiveHeld, match=f"cursor archive of {logs[1]} belongs to another"):
        pipes.export()
    assert pipes.archive.logs() == [logs[0], logs[2]]
    client.open(logs[2]).append_many(numbered(10, 20))
    client.open(logs[0]).cursor("archive").delete()
    client.open(logs[0]).cursor("archive").commit(0)
    with pytest.raises(
        ArchiveHeld, match=f"also not exported: {logs[1]}; the report has the reasons"
    ):
        pipes.export()
    chain = pipes.archive.chain(logs[2])
    assert chain is not None
    assert chain.next == 20


def test_step_overtaken_by_another_export_is_dropped(pipes: Pipes, log: SyncLog, name: str) -> None:
    """SA4: a file lock may not hold between machines that share a file system."""
    log.append_many(numbered(0, 10))
    link = os.link

    def late(source: str, target: str) -> None:
        other = Manifest(f"default/{name}", log.uid, 0, 0, ())
        Path(target).write_bytes(other.pack())
        link(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", late)
        with pytest.raises(ArchiveHeld, match="another export has archived"):
            pipes.export()
    assert len(files_in(pipes.archive)) == 1
    assert pipes.archive.complete() == []
    assert files_in(pipes.archive) == []
    assert os.listdir(os.path.join(pipes.archive.path, "_steps")) == []


@pytest.mark.parametrize(("length", "fits"), [(241, True), (242, False)])
def test_log_with_a_long_name_is_exported_or_refused_at_once(
    site: Site, client: SyncClient, name: str, tmp_path: Path, length: int, fits: bool
) -> None:
    long = f"{name}-".ljust(length, "x")  # The folder name has `log=default%2F` before it.
    log = client.open(long, create=True)
    log.append_many(numbered(0, 10))
    pipes = Pipes(site, client, tmp_path / "archive", long)
    if fits:
        pipes.export()
        assert pipes.rows() == expected(0, 10)
        return
    with pytest.raises(BadConfig, match="256 bytes, more than the 255 that are possible"):
        pipes.export()
    with pytest.raises(NoSuchCursor):
        log.cursor("archive").get()


def test_step_with_missing_files_is_not_completed(pipes: Pipes, log: SyncLog, name: str) -> None:
    """SA4"""
    log.append_many(numbered(0, 10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            pipes.export()
    (path,) = Path(pipes.archive.path).rglob("*.parquet")
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(ArchiveDamaged, match="is missing, although a killed export"):
        pipes.export()
    assert pipes.archive.manifests(f"default/{name}") == []
    path.write_bytes(kept)
    pipes.export()
    assert pipes.rows() == expected(0, 10)
