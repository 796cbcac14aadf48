"""Runs `rollbook …` with a stopwatch at each step of an add.

    python -m tests.bench.load.timed REPORT_FILE server bookie …

On SIGUSR1 it writes the measurements since the last one as JSON: CPU seconds of each step, and the
longest time that one callback blocked the event loop. A step runs once per chunk or write, so the
stopwatches cost almost nothing. The time of a nested step is not counted for the outer one.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from asyncio import selector_events
from collections.abc import Callable
from typing import Any, Final

_spent_s: Final[dict[str, float]] = {}
_within_s: Final = [0.0]  # Spent in watched steps within the running ones, outermost first.
_blocked_s_max: Final = [0.0]


def _watch(owner: Any, name: str, step: str) -> None:
    """Measures a step that runs in the event loop's thread."""
    inner: Callable[..., Any] = getattr(owner, name)
    _spent_s[step] = 0.0

    def timed(*arguments: Any, **keywords: Any) -> Any:
        _within_s.append(0.0)
        began = time.thread_time()
        try:
            return inner(*arguments, **keywords)
        finally:
            took = time.thread_time() - began
            _spent_s[step] += took - _within_s.pop()
            _within_s[-1] += took

    setattr(owner, name, timed)


def _watch_anywhere(owner: Any, name: str, step: str) -> None:
    """Measures a step of any thread that calls no other measured step.

    Small writes run in the loop's thread, within other steps.
    """
    inner: Callable[..., Any] = getattr(owner, name)
    _spent_s[step] = 0.0

    def timed(*arguments: Any, **keywords: Any) -> Any:
        began = time.thread_time()
        try:
            return inner(*arguments, **keywords)
        finally:
            took = time.thread_time() - began
            _spent_s[step] += took
            if threading.current_thread() is threading.main_thread():
                _within_s[-1] += took

    setattr(owner, name, timed)


def _watch_longest(owner: Any, name: str) -> None:
    inner: Callable[..., Any] = getattr(owner, name)

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*arguments)
        finally:
            _blocked_s_max[0] = max(_blocked_s_max[0], time.perf_counter() - began)

    setattr(owner, name, timed)


def _watch_everything() -> None:
    from rollbook.bookie.connection import Connection
    from rollbook.bookie.core.record_packer import RecordPacker
    from rollbook.bookie.storage import Storage
    from rollbook.proto.runtime import system_disk
    from rollbook.proto.wire.request_decoder import RequestDecoder

    transport = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]  # A private class.
    _watch(transport, "_read_ready__get_buffer", "receive from sockets")
    _watch(Connection, "buffer_updated", "connections")
    _watch(RequestDecoder, "feed", "parse chunks")
    _watch(Storage, "add", "judge adds, queue them")
    _watch(RecordPacker, "pack", "make records, checksums")
    _watch_anywhere(system_disk, "_write_fully", "write to files")
    _watch_anywhere(os, "fdatasync", "sync files")
    _watch(Storage, "_on_written", "index what is durable")
    _watch(Connection, "_on_added", "make replies")
    _watch(transport, "write", "send to sockets")
    _watch_longest(asyncio.Handle, "_run")


def _report_to(path: str) -> None:
    report = {"spent_s": _spent_s, "loop_blocked_s_max": _blocked_s_max[0]}
    with open(path + ".new", "w", encoding="ascii") as file:
        json.dump(report, file)
    os.rename(path + ".new", path)
    _spent_s.update(dict.fromkeys(_spent_s, 0.0))
    _blocked_s_max[0] = 0.0


def main() -> None:
    from rollbook.api.cli.main import main as rollbook

    path = sys.argv.pop(1)
    _watch_everything()
    signal.signal(signal.SIGUSR1, lambda *_: _report_to(path))
    rollbook()


if __name__ == "__main__":
    main()
