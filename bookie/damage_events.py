"""Logs which ledgers lost entries to damage, so that an operator who searches the logs for a
ledger's id finds its losses."""

from collections.abc import Sequence
from itertools import islice

import structlog

from rollbook.proto.logging_rate_limit import EventBudget
from rollbook.proto.ports import Clock

logger = structlog.get_logger()


class DamageEvents:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._budget = EventBudget()

    def log(self, doubts: Sequence[tuple[int, int, int]]) -> None:
        """Each of the `doubts` has ledger, first and last entry of a new range. There is one event
        for each ledger."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for ledger_id, first_entry, last_entry in doubts:
            ranges.setdefault(ledger_id, []).append((first_entry, last_entry))
        granted = self._budget.take(len(ranges), self._clock.monotonic_ns())
        for ledger_id, found in islice(ranges.items(), granted):
            logger.warning(
                "ledger_damaged",
                ledger_id=ledger_id,
                first_entry=min(first for first, _ in found),
                last_entry=max(last for _, last in found),
                ranges=len(found),
            )
