"""Who did what, and who was refused: events for whoever has to account for it.

`act_done`, `act_failed`   what changes more than records: logs, marks, writers, owners, servers
`access_refused`           nobody known, or without the right to it, or beyond a quota

Each names the principal, whence it came, the method and the log. Refusals cost a stranger nothing and
are told at a rate; what was left out is counted in the next one.
"""

from collections.abc import Callable
from typing import Any, Final

import structlog

from rollbook.api.access.core.quotas import Rate
from rollbook.proto.errors import RollbookError

logger = structlog.get_logger()

_REFUSALS_PER_S: Final = 20


class Audit:
    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._rate = Rate(_REFUSALS_PER_S)
        self._left_out = 0

    def refused(self, error: RollbookError, **who: Any) -> None:
        now_ns = self._now_ns()
        if self._rate.wait_ns(now_ns):
            self._left_out += 1
            return
        self._rate.take(1, now_ns)
        left_out, self._left_out = self._left_out, 0
        logger.warning("access_refused", reason=error.code.reason, left_out=left_out, **who)

    def done(self, **who: Any) -> None:
        logger.info("act_done", **who)

    def failed(self, error: RollbookError, **who: Any) -> None:
        logger.info("act_failed", reason=error.code.reason, outcome=error.outcome.value, **who)
