"""Planted bugs of the client that every chaos run must find.

Each changes the product's classes, and only in the client processes of a run. Both show whenever
a busy writer is stopped and its ledger recovered, which happens many times a minute; bugs that need a rare schedule are the simulator's to find.
"""

from collections.abc import Callable
from typing import Any, Final
from unittest import mock

from rollbook.ledger.core.tail_search import TailSearch
from rollbook.ledger.core.write_back import WriteBack
from rollbook.ledger.recovery import _Attempt
from rollbook.proto.errors import AppendUnsettled, Outcome


def ends_at_the_lac() -> None:
    """Recovery does not look for entries beyond the last add confirmed that the last entry names."""

    async def look_no_further(_attempt: Any, _search: TailSearch, _write_backs: WriteBack) -> None:
        pass

    mock.patch.object(_Attempt, "_find_and_write_back", look_no_further).start()


def calls_pending_refused() -> None:
    """A stopped writer reports that its pending appends are not in the ledger."""
    mock.patch.object(AppendUnsettled, "outcome", Outcome.NOT_APPLIED).start()


FLAWS: Final[dict[str, Callable[[], None]]] = {
    flaw.__name__: flaw for flaw in (ends_at_the_lac, calls_pending_refused)
}
