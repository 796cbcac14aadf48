"""Each turn has the machine to itself: all processes of the others sleep, at a stop, until theirs begins.

Servers that only rest go on working: virtual machines tick, replicas ask each other for news, files are sorted.
Asleep (SIGSTOP) they take nothing. A woken server has outslept its sessions, so that it has to find itself again,
and to work for a moment, before anything counts.
"""

import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

_STAT: Final = Path("/proc/stat")
_BUSY_MAX: Final = 0.25  # Of one processor: servers and virtual machines that idle take some.
_LOOK_S: Final = 0.5
_PATIENCE_S: Final = 10.0
_BACK_S: Final = 60.0
_PAUSE_S: Final = 0.2


class Sleeper(Protocol):
    @property
    def name(self) -> str: ...

    def pids(self) -> Collection[int]:
        """Of all its processes that run, servers and clients; others may share some of them."""

    def ailment(self) -> str | None:
        """What keeps it from working as before it slept; None if it has worked, and warmed up by it."""


class NotBack(Exception):
    """A side did not recover from its sleep; the text names it."""


def lie_down(side: Sleeper) -> None:
    """All its processes stand still, until it is `awake`."""
    _signal(side, signal.SIGSTOP)


@contextmanager
def awake(side: Sleeper) -> Iterator[None]:
    """Its turn, while all others sleep. Raises `NotBack`."""
    _signal(side, signal.SIGCONT)
    try:
        _come_back(side)
        until_still()
        yield
    finally:
        lie_down(side)


def until_still() -> None:
    """What was written is on the disk and the processors are idle; or it has been waited for long."""
    os.sync()
    give_up_at = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up_at:
        busy_s = _busy_s()
        time.sleep(_LOOK_S)
        if _busy_s() - busy_s < _BUSY_MAX * _LOOK_S:
            return


def _come_back(side: Sleeper) -> None:
    since = time.monotonic()
    while (ailment := side.ailment()) is not None:
        if time.monotonic() - since > _BACK_S:
            raise NotBack(
                f"{side.name} does not work {_BACK_S:.0f} s after its sleep: {ailment}; "
                "no figure of this part counts, run it again"
            )
        time.sleep(_PAUSE_S)
    print(f"{side.name}: back after {time.monotonic() - since:.1f} s", file=sys.stderr, flush=True)


def _signal(side: Sleeper, number: signal.Signals) -> None:
    for pid in side.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _busy_s() -> float:
    """Of all processors since the machine started: all but `idle` and `iowait`."""
    spent = [int(each) for each in _STAT.read_text().splitlines()[0].split()[1:9]]
    return (sum(spent) - spent[3] - spent[4]) / os.sysconf("SC_CLK_TCK")
