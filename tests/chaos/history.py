"""The responses that clients got, recorded at once: a file for each life of each client.

    KIND LEDGER FIRST LAST NANOSECONDS

one line each, in one write, so that SIGKILL loses nothing of it. The clock is the machine's monotonic
one, which all of its processes share. Numbers that a kind has no use for are -1.

    create       LEDGER is ours to write
    append       entries FIRST to LAST were handed over; each carries its own number
    acked, refused, unsettled   their outcome: confirmed; never in the ledger; unknown
    misplaced    confirmed under other ids
    closing      by the writer, or by a recovery that begins
    closed       the response: LEDGER ends at LAST
    follow       a reader begins at FIRST
    read         it was shown FIRST to LAST, one after the other, as they were written
    odd          it was shown FIRST, and that is not what was written
    ended        the response: LAST is the last
    listed       metadata says that LEDGER is closed at LAST; NOT_CLOSED: it is open
    verified     every copy of LEDGER up to LAST was looked at, and FIRST of them are not as they must be
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

NOTHING: Final = -1
NOT_CLOSED: Final = -2


class Event(NamedTuple):
    who: str  # The name and number of a client process.
    kind: str
    ledger_id: int
    first: int
    last: int
    at_ns: int


class HistoryFile:
    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        self._file = os.open(path, flags, 0o600)

    def note(self, kind: str, ledger_id: int, first: int = NOTHING, last: int = NOTHING) -> None:
        line = f"{kind} {ledger_id} {first} {last} {time.monotonic_ns()}\n"
        os.write(self._file, line.encode())


def read_history(folder: Path) -> Iterator[Event]:
    """The events of all files, file by file, each in the order of its events."""
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # An incomplete line was cut off by a kill.
                kind, *numbers = line.split()
                yield Event(path.name, kind, *map(int, numbers))


def payload_of(ledger_id: int, number: int, size: int) -> bytes:
    """Payloads of all entries differ, and so do all parts of a long payload."""
    mark = b"%d/%d;" % (ledger_id, number)
    return (mark * (size // len(mark) + 1))[: max(size, len(mark))]


def is_as_written(ledger_id: int, number: int, payload: bytes) -> bool:
    return payload == payload_of(ledger_id, number, len(payload))
