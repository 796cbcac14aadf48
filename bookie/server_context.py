"""The state that all connections of one server share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rollbook.bookie.config import ServerConfig
from rollbook.bookie.core.connection_memory import Pool
from rollbook.bookie.core.deadline_queue import Deadlines
from rollbook.bookie.long_polls import LongPolls
from rollbook.bookie.loop_budget import LoopBudget, StepQueue
from rollbook.bookie.request_handlers import Answers
from rollbook.bookie.request_lanes import Lane
from rollbook.bookie.stats import Stats
from rollbook.bookie.storage import Storage
from rollbook.proto.ports import Clock
from rollbook.proto.wire.messages import (
    BatchRead,
    EntryRead,
    ForceLedger,
    GetBookieInfo,
    ListEntries,
    ReadLac,
    Request,
    WriteLac,
)

if TYPE_CHECKING:  # `connection` imports this module.
    from rollbook.bookie.connection import Connection

_KINDS: Final[dict[type[Request], str]] = {
    BatchRead: "batch_read",
    WriteLac: "write_lac",
    ReadLac: "read_lac",
    ForceLedger: "force",
    ListEntries: "list_entries",
    GetBookieInfo: "info",
}


def kind_of(request: Request) -> str:
    """Returns the name under which the request is counted."""
    if isinstance(request, EntryRead):
        if request.fence:
            return "fence"
        return "read" if request.previous_lac is None else "long_poll"
    return _KINDS.get(type(request), "other")


@dataclass(slots=True)
class ServerContext:
    """The state that all connections of one server share."""

    storage: Storage
    config: ServerConfig
    clock: Clock
    stats: Stats
    answers: Answers
    polls: LongPolls
    pool: Pool
    loop_budget: LoopBudget
    ordinary: Lane
    urgent: Lane
    writers: StepQueue  # Connections that write a response in several turns.
    hurried: StepQueue  # Connections whose acks wait for the end of such a response.
    # The buffer into which all connections receive; each connection empties it at once.
    buffer: memoryview
    unfinished: "Deadlines[Connection]"  # Connections with a partial request.
    # Connections that have a partial request and no memory for the rest of it.
    kept_waiting: "Deadlines[Connection]"
    clogged: "Deadlines[Connection]"  # Connections whose client does not read its responses.
    connections: "dict[Connection, None]"
    on_gone: Callable[[], None]
    look_after: Callable[[], None]  # Called when a deadline is running or the pool has news.
