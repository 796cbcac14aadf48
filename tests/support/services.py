"""Creates services of log servers, also with a product that is older than these tests.

`python -m tests regressions --before COMMIT` runs the tests with an older product, where the
defects must fail, and not the set-up.
"""

import inspect
from typing import Final

from rollbook.logservice.log_ownership import LogServer
from rollbook.logservice.service import LogService
from rollbook.proto.ports import Clock

_PARAMETERS: Final = inspect.signature(LogService).parameters


def service_of(server: LogServer, clock: Clock, ask_peer: object) -> LogService:
    """Older servers have no clock and cannot ask each other for tails."""
    how = {"ask_peer": ask_peer} if "ask_peer" in _PARAMETERS else {}
    return LogService(server, getattr(server, "clock", clock), **how)  # type: ignore[arg-type]  # May be older.
