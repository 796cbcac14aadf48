"""`sync_data` and `reserve` on systems without the calls of Linux."""

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
    """Records calls made in place of `fdatasync`, which is removed."""
    found: list[str] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", lambda _: found.append("fsync"))
    return found


def test_full_sync_is_used_where_it_exists(
    descriptor: int, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsync_and_fallocate, "_FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", lambda _, command: calls.append(f"fcntl {command}"))
    fsync_and_fallocate.sync_data(descriptor)
    assert calls == ["fcntl 51"]


def test_fsync_is_used_where_full_sync_fails_or_is_missing(
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
def test_reserve_keeps_existing_bytes(
    descriptor: int, position: int, length: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    os.pwrite(descriptor, b"kept", 0)
    fsync_and_fallocate.reserve(descriptor, position, length)
    assert os.pread(descriptor, size + 1, 0) == b"kept" + bytes(size - 4)
