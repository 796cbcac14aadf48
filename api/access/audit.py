"""The audit: events that say who did what, and which callers were refused (G9).

`act_done`, `act_failed`   an act has ended. Acts change logs, protected cursors, writers, owners, servers, bookies
`act_begun`                an act continues in the background; `act_done` or `act_failed` reports its end later
`access_refused`           a caller was refused: it is unknown, lacks the right, or has exceeded a quota

Each event names the principal, its address, the method and the object. Callers can repeat refused
and failed acts at no cost, so these are logged at a bounded rate: each principal has one budget, and
all unknown callers share one. The next event reports how many events were left out. Acts that were
done, or may have been done, are always logged. The log level applies to these events only on a log server
without authentication, which cannot name a principal. No event contains a token, the digest of
a token, or a record (G6).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog

from rollbook.proto.errors import Outcome, OutcomeUnknown, RollbookError
from rollbook.proto.logging_rate_limit import EventBudget
from rollbook.proto.runtime.logging_setup import unfiltered_logger

_FRUITLESS_PER_S: Final = 20


class AuditLog:
    def __init__(self, now_ns: Callable[[], int], *, heeds_level: bool = False) -> None:
        self._now_ns = now_ns
        self._log = structlog.get_logger() if heeds_level else unfiltered_logger()
        # Budgets by the principal's name; all unknown callers share the budget of "".
        self._failed_acts: dict[str, EventBudget] = {}

    def refused(self, error: RollbookError, *, principal: str, **where: Any) -> None:
        failed = self._failed_acts_of(principal)
        if failed.take(1, self._now_ns()):
            reason, left_out = error.code.reason, failed.take_left_out()
            self._log.warning(
                "access_refused", reason=reason, left_out=left_out, principal=principal, **where
            )

    @contextmanager
    def act(
        self, *, principal: str, only_begins: bool = False, **where: Any
    ) -> Iterator[dict[str, Any]]:
        """Logs how the act that runs in this context ends. `only_begins`: the act continues after the context, so
        success is logged as `act_begun`.

        Fields that are added to the yielded dict are logged, too.
        """
        more: dict[str, Any] = {}
        try:
            yield more
        except BaseException as error:
            known = error if isinstance(error, RollbookError) else OutcomeUnknown()
            self.failed(known, principal=principal, **where)
            raise
        tell = self.begun if only_begins else self.done
        tell(principal=principal, **where, **more)

    def begun(self, **who: Any) -> None:
        self._log.info("act_begun", **who)

    def done(self, **who: Any) -> None:
        self._log.info("act_done", **who)

    def failed(self, error: RollbookError, *, principal: str, **where: Any) -> None:
        failed = self._failed_acts_of(principal)
        said: dict[str, Any] = {"reason": error.code.reason}
        if error.outcome is Outcome.NOT_APPLIED:
            if not failed.take(1, self._now_ns()):
                return
            said["left_out"] = failed.take_left_out()
        self._log.info(
            "act_failed", outcome=error.outcome.value, principal=principal, **said, **where
        )

    def _failed_acts_of(self, principal: str) -> EventBudget:
        return self._failed_acts.setdefault(principal, EventBudget(_FRUITLESS_PER_S, 1))
