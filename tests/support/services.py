"""Services of log servers, also of a product that is older than these tests.

`python -m tests regressions --before COMMIT` runs the tests with it, and what they are about has to fail there, not
what sets them up.
"""

import inspect
from typing import Final

from rollbook.logservice.log_ownership import LogServer
from rollbook.logservice.service import LogService
from rollbook.proto.ports import Clock

_PARAMETERS: Final = inspect.signature(LogService).parameters


def service_of(server: LogServer, clock: Clock, ask_peer: object) -> LogService:
    """Once servers had no clock of their own, and could not ask each other for tails."""
    how = {"ask_peer": ask_peer} if "ask_peer" in _PARAMETERS else {}
    return LogService(server, getattr(server, "clock", clock), **how)  # type: ignore[arg-type]  # Of another product's age.
