"""Whose turn is over goes on working for a while: caches are flushed, files sorted, garbage collected.

In the next one's turn that would be paid by the wrong one, so that each turn waits until it is over.
"""

import os
import time
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/stat")
_BUSY_MAX: Final = 0.25  # Of one processor: servers and virtual machines that idle take some.
_LOOK_S: Final = 0.5
_PATIENCE_S: Final = 10.0


def until_still() -> None:
    """What was written is on the disk and the processors are idle; or it has been waited for long."""
    os.sync()
    give_up_at = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up_at:
        busy_s = _busy_s()
        time.sleep(_LOOK_S)
        if _busy_s() - busy_s < _BUSY_MAX * _LOOK_S:
            return


def _busy_s() -> float:
    """Of all processors since the machine started: all but `idle` and `iowait`."""
    spent = [int(each) for each in _STAT.read_text().splitlines()[0].split()[1:9]]
    return (sum(spent) - spent[3] - spent[4]) / os.sysconf("SC_CLK_TCK")
