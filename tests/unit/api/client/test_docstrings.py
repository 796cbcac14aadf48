"""Docstrings of the public API: each member has one, and those of waits mention cancelling."""

import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Final

import pytest

from rollbook.api import wal
from rollbook.api.client import aio, sync, sync_writer
from rollbook.api.client.log import Log
from rollbook.api.rpc_methods import BY_REQUEST

_SYNC: Final = (
    sync.SyncClient,
    sync.SyncLog,
    sync.SyncCursor,
    sync.SyncTailsWatch,
    sync_writer.SyncWriter,
    sync_writer.SyncSubmission,
)
_AIO: Final = (
    aio.Client,
    aio.Log,
    aio.Cursor,
    aio.Writer,
    aio.Submission,
    aio.EventReader,
    aio.RecordBatch,
    aio.TailsWatch,
)
_WAL: Final = (wal.ExclusiveWriter, wal.StateMachine, wal.Term)
_WAL_AIO: Final = (wal.aio.ExclusiveWriter, wal.aio.StateMachine, wal.aio.Term)


def members(face: type) -> Iterator[tuple[str, Any]]:
    for name, what in vars(face).items():
        if not name.startswith("_") and isinstance(what, FunctionType | property):
            yield name, what


@pytest.mark.parametrize(
    "face", [*_SYNC, *_AIO, *_WAL, *_WAL_AIO], ids=lambda face: f"{face.__module__}.{face.__name__}"
)
def test_public_members_have_docstrings(face: type) -> None:
    found = dict(members(face))
    assert face.__doc__
    assert found
    assert not [name for name, what in found.items() if not what.__doc__]


@pytest.mark.parametrize("connect", [aio.connect, sync.connect])
def test_connect_has_a_docstring(connect: Callable[..., Any]) -> None:
    assert connect.__doc__


def test_arguments_of_connect_are_described_once() -> None:
    at_home, elsewhere = sync.connect.__doc__ or "", aio.connect.__doc__ or ""
    assert "`rollbook.connect`" in elsewhere
    assert "`token_file`" in at_home
    assert "`token_file`" not in elsewhere


def test_sync_and_async_append_share_a_docstring() -> None:
    assert sync.SyncLog.append.__doc__ == Log.append.__doc__


def test_docstrings_of_waits_mention_cancelling() -> None:
    """Read-only requests are exempt: the docstring of `Client` covers them."""
    changes = {word.__name__ for word, method in BY_REQUEST.items() if method.changes}
    assert {"Truncate", "CommitCursor", "EnsureLog"} <= changes
    asking = (aio.Client, aio.Log, aio.Cursor)
    waits = [
        (name, what)
        for face in _AIO
        for name, what in members(face)
        if inspect.iscoroutinefunction(what)
        and (face not in asking or set(what.__code__.co_names) & changes or name in _INDIRECT)
    ]
    assert len(waits) > 15
    assert not [name for name, what in waits if "ancelled" not in (what.__doc__ or "")]


_INDIRECT: Final = (
    "ask",
    "append",
    "append_block",
    "append_many",
    "mark",
    "close",
)  # These change something without naming a request class.
