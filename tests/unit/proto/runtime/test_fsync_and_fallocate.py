"""Durable bytes where the system lacks a call of Linux."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.proto.runtime import fsync_and_fallocate


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    found = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    yield found
    os.close(found)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is called in place of `fdatasync`, which is not there."""
    found: list[str] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", lambda _: found.append("fsync"))
    return found


def test_the_disk_is_made_to_write_its_own_cache_where_it_can(
    descriptor: int, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsync_and_fallocate, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", lambda _, command: calls.append(f"fcntl {command}"))
    fsync_and_fallocate.sync_data(descriptor)
    assert calls == ["fcntl 51"]


def test_what_the_file_system_refuses_is_synced_as_far_as_it_can(
    descriptor: int, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(fsync_and_fallocate, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    fsync_and_fallocate.sync_data(descriptor)
    monkeypatch.setattr(fsync_and_fallocate, "_FULL_SYNC", None)
    fsync_and_fallocate.sync_data(descriptor)
    assert calls == ["fsync", "fsync"]


@pytest.mark.parametrize(
    ("position", "length", "size"), [(0, 10, 10), (2, 2, 4), (4, 3_000_000, 3_000_004)]
)
def test_reserving_keeps_what_is_there(
    descriptor: int, position: int, length: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    os.pwrite(descriptor, b"kept", 0)
    fsync_and_fallocate.reserve(descriptor, position, length)
    assert os.pread(descriptor, size + 1, 0) == b"kept" + bytes(size - 4)
