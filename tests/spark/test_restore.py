"""Restore and the start of a mirror, with a real server and without a JVM."""

from pathlib import Path
from typing import Any

import pytest

from rollbook.api.client.sync import SyncClient
from rollbook.api.spark import exactly_once_append
from rollbook.api.spark.core import mirror_origin
from rollbook.api.spark.core.options import SplitLimits
from rollbook.api.spark.pipelines.job_report import Report
from rollbook.api.spark.pipelines.mirror import start_of
from rollbook.api.spark.pipelines.restore import restore
from rollbook.proto.errors import ArchiveDamaged, MirrorHeld, NoSuchArchive, NoSuchLog
from tests.regressions.lone_server import Site
from tests.spark.drive import forget_process
from tests.spark.pipes import Pipes
from tests.spark.test_source_without_jvm import numbered


@pytest.fixture
def pipes(site: Site, client: SyncClient, name: str, tmp_path: Path) -> Pipes:
    log = client.open(name, create=True)
    log.append_many(numbered(0, 99), keys=[b"k", None, None] * 33)
    log.append(b"v99", headers={"h": b"1"}, event_time_us=5)
    pipes = Pipes(site, client, tmp_path / "archive", name)
    pipes.export(split=SplitLimits(records_max=30))
    return pipes


def restored(pipes: Pipes, target: str) -> Report:
    report = Report("restore")
    log = f"default/{pipes.logs[0]}"
    restore(pipes.archive, pipes.way, log, f"default/{target}", report, lambda *_: None)
    return report


def test_killed_restores_write_each_record_once(
    pipes: Pipes, client: SyncClient, name: str
) -> None:
    """SK6: killed before, between and after blocks, and before a file is marked as complete."""
    target = client.open(f"{name}-again", create=True)
    for step in ("_append_block", "_on_whole"):
        for number in range(3):
            calls, act = 0, getattr(exactly_once_append.LogSink, step)

            def killed(*arguments: Any, at: int = number, act: Any = act) -> Any:
                nonlocal calls
                calls += 1
                if calls > at:
                    raise KeyboardInterrupt
                return act(*arguments)

            forget_process()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(exactly_once_append.LogSink, step, killed)
                try:
                    restored(pipes, f"{name}-again")
                except KeyboardInterrupt:
                    assert calls == number + 1
    forget_process()
    restored(pipes, f"{name}-again")
    found = list(target.read())
    assert [each.value for each in found] == numbered(0, 100)
    assert [each.key for each in found[:3]] == [b"k", None, None]
    assert (dict(found[-1].headers), found[-1].event_time_us) == ({"h": b"1"}, 5)


def test_later_restore_writes_only_new_records(pipes: Pipes, client: SyncClient, name: str) -> None:
    target = client.open(f"{name}-again", create=True)
    assert restored(pipes, f"{name}-again").logs[f"default/{name}-again"]["records"] == 100
    client.open(name).append_many(numbered(100, 120))
    pipes.export()
    forget_process()
    assert restored(pipes, f"{name}-again").logs[f"default/{name}-again"]["records"] == 20
    assert [each.value for each in target.read()] == numbered(0, 120)


def test_a_damaged_file_is_not_restored(pipes: Pipes, client: SyncClient, name: str) -> None:
    target = client.open(f"{name}-again", create=True)
    path = min(Path(pipes.archive.path).rglob("*.parquet"))
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        ArchiveDamaged, match="is damaged: its content has changed since it was written"
    ):
        restored(pipes, f"{name}-again")
    path.unlink()
    with pytest.raises(ArchiveDamaged, match="cannot be read"):
        restored(pipes, f"{name}-again")
    assert list(target.read()) == []


def test_restore_needs_an_existing_target_and_archive(pipes: Pipes, name: str) -> None:
    with pytest.raises(NoSuchLog):
        restored(pipes, f"{name}-nowhere")
    with pytest.raises(NoSuchArchive, match=f"nothing of default/other is in .*default/{name}"):
        restore(
            pipes.archive, pipes.way, "default/other", "default/x", Report("r"), lambda *_: None
        )


def test_mirror_starts_after_the_origin_of_its_last_record(
    pipes: Pipes, client: SyncClient, name: str
) -> None:
    """SA6"""
    source, copy = f"default/{name}", f"default/{name}-copy"
    log, target = client.open(name), client.open(copy, create=True)
    assert start_of(pipes.way, pipes.way, source, copy) == (log.uid, 0)
    said = {
        mirror_origin.LOG: mirror_origin.as_text(source, log.uid).encode(),
        mirror_origin.OFFSET: b"41",
    }
    target.append(b"v41", headers=said)
    assert start_of(pipes.way, pipes.way, source, copy) == (log.uid, 42)
    target.truncate(1)  # As by retention: no record has an origin any more.
    with pytest.raises(MirrorHeld, match=f"all 1 records of {copy} were truncated"):
        start_of(pipes.way, pipes.way, source, copy)
    for headers in ({}, said | {mirror_origin.LOG: mirror_origin.as_text(source, "gone").encode()}):
        target.append(b"other", headers=headers)
        with pytest.raises(MirrorHeld, match=f"do not come from {source}"):
            start_of(pipes.way, pipes.way, source, copy)
