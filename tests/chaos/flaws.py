"""Ways to build the client wrongly which any run of chaos must find, or it proves nothing.

Each changes the product's classes in the client processes of a run, never anything else. Both show
themselves whenever a busy writer is stopped and its ledger recovered, which happens many times a minute;
bugs that need a rare schedule are the simulator's to find.
"""

from collections.abc import Callable
from typing import Any, Final
from unittest import mock

from rollbook.ledger.core.tail_search import TailSearch
from rollbook.ledger.core.write_back import WriteBack
from rollbook.ledger.recovery import _Attempt
from rollbook.proto.errors import AppendUnsettled, Outcome


def ends_at_the_lac() -> None:
    """Recovery does not look for what was confirmed after the last entry had named it."""

    async def look_no_further(_attempt: Any, _search: TailSearch, _write_backs: WriteBack) -> None:
        pass

    mock.patch.object(_Attempt, "_find_and_write_back", look_no_further).start()


def calls_pending_refused() -> None:
    """A writer that is stopped says that what was on its way is not in the ledger."""
    mock.patch.object(AppendUnsettled, "outcome", Outcome.NOT_APPLIED).start()


FLAWS: Final[dict[str, Callable[[], None]]] = {
    flaw.__name__: flaw for flaw in (ends_at_the_lac, calls_pending_refused)
}
