"""The responses that clients got, recorded at once: a file for each life of each client, a JSON object a line.

Each is one write, so that SIGKILL loses nothing of it. `at` is the machine's monotonic clock, which all of
its processes share; `who` is the file's name. Records are named `STREAM/NUMBER`, and carry that name.

    append       stream, first, count, expect (or none)    handed over
    acked        stream, first, offsets, epoch (or none)
    again        stream, first, offsets                     sent once more, with the same producer
    refused      stream, first, count                       it will never be in the log
    unknown      stream, first, count
    asked        then `tail`: tail                          a linearizable question for the length
    begin                                                   a reader, at no offset in particular
    read         offset, names                              shown, one after the other
    odd          offset                                     shown, and as nobody wrote it
    gap          start, end                                 these are truncated
    sealed       tail                                       the log ends there
    truncate     before                                     asked for
    owner        epoch, server, at_us, reason               as the log's own journal has it
    audited      offset, tail                               read from there to there
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND


class Event(NamedTuple):
    who: str  # The name and number of a client process.
    kind: str
    log: str
    at_ns: int
    told: dict[str, Any]


class HistoryFile:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, _FLAGS, 0o600)

    def note(self, kind: str, log: str, **told: Any) -> None:
        line = json.dumps({"kind": kind, "log": log, "at": time.monotonic_ns(), **told})
        os.write(self._file, f"{line}\n".encode())


def read_history(folder: Path) -> Iterator[Event]:
    """The events of all files, file by file, each in the order of its events."""
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # An incomplete line was cut off by a kill.
                told = json.loads(line)
                yield Event(path.name, told.pop("kind"), told.pop("log"), told.pop("at"), told)


def payload_of(name: str, size: int) -> bytes:
    """The name, then bytes that only this record has."""
    mark = name.encode() + b";"
    return (mark * (size // len(mark) + 1))[: max(size, len(mark))]


def name_in(payload: bytes) -> str | None:
    """The record's name; None if no client wrote this payload."""
    name = payload.partition(b";")[0].decode(errors="replace")
    return name if payload == payload_of(name, len(payload)) else None
