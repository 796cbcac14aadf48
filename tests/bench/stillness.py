"""Stops the processes of all sides except the measured one, which then has the machine to itself.

Idle servers use CPU: JVMs have timers, replicas poll each other, files are compacted. Stopped
(SIGSTOP) they use none. The sessions of a resumed server have expired, so it must recover and warm
up before it is measured.
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
        """The pids of its running servers and clients; sides may share processes."""

    def ailment(self) -> str | None:
        """Why it does not work again after it was stopped; None if it works and is warmed up."""


class NotBack(Exception):
    """A side did not recover after it was stopped; the message names it."""


def lie_down(side: Sleeper) -> None:
    """Stops all its processes until it is `awake`."""
    _signal(side, signal.SIGSTOP)


@contextmanager
def awake(side: Sleeper) -> Iterator[None]:
    """Resumes the side for its turn, while the others are stopped. Raises `NotBack`."""
    _signal(side, signal.SIGCONT)
    try:
        _come_back(side)
        until_still()
        yield
    finally:
        lie_down(side)


def until_still() -> None:
    """Waits until written data is on disk and the processors are idle, up to a limit."""
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
    """Busy seconds of all processors since the machine started: all except `idle` and `iowait`."""
    spent = [int(each) for each in _STAT.read_text().splitlines()[0].split()[1:9]]
    return (sum(spent) - spent[3] - spent[4]) / os.sysconf("SC_CLK_TCK")
