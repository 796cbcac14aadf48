"""Decides which server may take a log, and when.

    the log's list names                    a server that is asked for the log
    --------------------------------------  ---------------------------------------------------------------
    nobody                                  opens it, if it is the suggested server
    this server, but the log is not open    opens it again, even if another server is suggested
    this server, which takes no logs        releases it, then acts as if the list named nobody
    a server whose session is over          opens it, if it is the suggested server
    a server that is alive, and accepts     does not open it: `NotOwner` with that server's address
      connections or does not respond
    a server that is alive, but refuses     opens it, if it is suggested when that server is left out;
      connections for half a second           `OwnerChanging` if the log was taken that way lately

A server takes no logs while it is drained, or while its clock is not trusted. The suggested server is the one
that the list prefers, or the first choice by the log's name (`owner_placement.py`), among the servers that
are alive and take logs. A suggested server that refuses connections is skipped. A server that is not
suggested responds `NotOwner` with the suggested server's address.

These rules only avoid needless take-overs. Two servers that both believe that they own a log fence each other, and
the log's ledger list decides (SV1). `peer_failure_detector.py` decides when a server counts as refusing connections,
`takeover_backoff.py` for how long a log is left alone; `segments_kept_at_takeover.py` decides which segments a new owner
keeps.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.core.owner_placement import Suggestions, server_name
from rollbook.logservice.ids import LogName, ServerId, ServerInfo
from rollbook.proto.errors import NotOwner, OwnerChanging

RETRY_MS: Final = 100

IsAlive = Callable[[ServerId], bool]


@dataclass(frozen=True, slots=True)
class Claim:
    """Why a server may open a log."""

    reason: str
    is_rude: bool = False  # Other servers still believe that the owner is alive.
    releases: bool = False  # This server must be removed from the list first.
    needs_suggestion: bool = True  # The log is opened by the suggested server only.
    passed_over: tuple[str, ...] = ()  # Names of servers that must not be suggested.


def claim_by_list(
    owner: ServerInfo | None, server_id: ServerId, is_alive: IsAlive, *, takes_logs: bool
) -> Claim | None:
    """The claim of server `server_id` on a log whose list names `owner`. None: that owner is alive, so a connection
    has to be tried (`claim_on_living`).
    """
    if owner is None:
        return Claim("it had no owner")
    if owner.server_id == server_id:
        if takes_logs:
            return Claim("this server has lost it", needs_suggestion=False)
        return Claim("it was lost", releases=True)
    if not is_alive(owner.server_id):
        return Claim(f"its owner {owner.server_id} is gone")
    return None


def claim_on_living(listed: LedgerList, *, refuses: bool, wait_ns: int) -> Claim:
    """The claim on a log whose owner is alive. `refuses`: the owner refuses connections. `wait_ns`: how long the
    log must still be left alone.

    Raises `NotOwner` if the owner does not refuse connections, `OwnerChanging` while the log is left alone.
    """
    owner = listed.owner
    assert owner is not None
    if not refuses:
        raise NotOwner(owner=owner.address, owner_epoch=listed.owner_epoch)
    if wait_ns:
        raise OwnerChanging(
            "its owner refuses connections, but the log was taken from such an owner recently",
            # At most 1 s: the owner's lease may end before the wait, or the owner may be reachable again.
            retry_after_ms=min(wait_ns // 1_000_000, 10 * RETRY_MS),
        )
    return Claim(
        f"its owner {owner.server_id} refuses connections",
        is_rude=True,
        passed_over=(server_name(owner.server_id),),
    )


def suggested_server(
    name: LogName, preferred: str, suggestions: Suggestions, passed_over: Collection[str] = ()
) -> str | None:
    """The name of the server that should have the log; None if no server takes logs."""
    if preferred and preferred in suggestions.names and preferred not in passed_over:
        return preferred
    return suggestions.server_for(name, passed_over)


def has_no_owner(
    listed: LedgerList,
    server_id: ServerId,
    is_alive: IsAlive,
    *,
    is_opening: bool,
    seen: LedgerList | None,
) -> bool:
    """Return whether no owner uses this list, as far as server `server_id` knows. That server does not own the log.

    `is_opening`: that server is opening the log. `seen`: the list with which the opening began; None: no
    list was read yet.
    """
    owner = listed.owner
    if owner is None:
        return True
    if owner.server_id != server_id:
        return not is_alive(owner.server_id)
    if not is_opening:
        return True  # The list names this server, which has lost the log.
    # The opening itself may have listed a newer epoch.
    return seen is not None and listed.owner_epoch <= seen.owner_epoch


def released_by(listed: LedgerList, server_id: ServerId) -> LedgerList:
    """The list without an owner, if server `server_id` is the owner; otherwise unchanged."""
    is_owner = listed.owner is not None and listed.owner.server_id == server_id
    return listed.with_released() if is_owner else listed
