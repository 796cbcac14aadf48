"""Selects the server to ask: a log's owner if it is known, and otherwise one of the servers to try.

An owner is stored with its epoch of ownership, and reports of an older epoch are ignored. An owner is
forgotten when it cannot be reached, not after some time.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from rollbook.api.client.connect_errors import ConnectProblem, obstacle_of, plain_words
from rollbook.api.client.outage_diagnosis import Outages
from rollbook.api.client.relay_routes import RelayRoutes
from rollbook.logservice.ids import LogName
from rollbook.proto.errors import (
    ConnectionLost,
    NotOwner,
    OutcomeUnknown,
    RollbookError,
    ServerUnreachable,
)

_LOGS_MAX: Final = 100_000
_SERVERS_MAX: Final = 256
_NAMED_MAX: Final = 5
_WHY_MAX: Final = 200


class _CachedOwner(NamedTuple):
    address: str
    epoch: int


_NEXT_STEPS: Final = {
    ConnectProblem.NOT_BELIEVED: "pass authorities=, a PEM file with the signers of its certificate",
    ConnectProblem.NO_TLS: "connect to log://…, without +tls",
    ConnectProblem.HTTP: "connect to the gRPC port (7400 by default): this port is for HTTP",
    ConnectProblem.HUNG_UP: "if it speaks TLS, connect to log+tls://…, with certificate= if it asks for one",
    ConnectProblem.REFUSED: "check host and port; start one (rollbook dev, rollbook server log), or connect to one that runs",
    ConnectProblem.UNKNOWN_HOST: "check the host name, and that this machine can resolve it",
    ConnectProblem.SILENCE: "start one (rollbook dev, rollbook server log), or connect to one that runs",
}


class OwnerCache:
    def __init__(self, servers: Iterable[str]) -> None:
        self._given = tuple(dict.fromkeys(servers))
        self._servers = list(self._given)
        self._next = 0
        self._owners: dict[LogName, _CachedOwner] = {}
        self.outages: Final = Outages()
        self.routes: Final = RelayRoutes()

    @property
    def servers(self) -> tuple[str, ...]:
        """Returns all servers that may be asked."""
        return tuple(self._servers)

    def address_of(self, log: LogName | None) -> str:
        """Returns the owner's address, or that of a server that can name the owner."""
        if log is not None and (found := self._owners.get(log)):
            return found.address
        return self._servers[self._next]

    def learn(self, log: LogName, address: str, epoch: int) -> None:
        known = self._owners.get(log)
        if not address or (known and (epoch < known.epoch or known == (address, epoch))):
            return
        if known is None and len(self._owners) >= _LOGS_MAX:
            del self._owners[next(iter(self._owners))]
        self._owners[log] = _CachedOwner(address, epoch)
        self.meet(address)

    def meet(self, address: str) -> None:
        """Adds a server that may be asked."""
        if address not in self._servers and len(self._servers) < _SERVERS_MAX:
            self._servers.append(address)

    def meet_all(self, addresses: Iterable[str]) -> None:
        """Replaces the list of servers. Servers from the configuration are kept, since they may return."""
        asked = self._servers[self._next]
        known = dict.fromkeys((*self._given, *addresses))
        self._servers = list(known)[:_SERVERS_MAX]
        self._next = self._servers.index(asked) if asked in self._servers else 0

    def nobody_answers(self, last: RollbookError) -> ServerUnreachable:
        """Returns the error when no server responded; `last` is the error of the last attempt."""
        some = ", ".join(self._servers[:_NAMED_MAX])
        more = len(self._servers) - _NAMED_MAX
        why = plain_words(last.message.rpartition("last error: ")[2][:_WHY_MAX])
        return ServerUnreachable(
            f"no log server answers at {some}{f' and {more} more' if more > 0 else ''}: {why}",
            next_step=_NEXT_STEPS[obstacle_of(why)],
        )

    def on_error(self, log: LogName | None, address: str, error: RollbookError) -> bool:
        """Handles a failed call. Returns whether the server to ask next is known, so that a retry
        need not wait."""
        if isinstance(error, NotOwner) and log is not None:
            owner, epoch = error.ids.get("owner"), error.ids.get("owner_epoch", 0)
            self.routes.on_named(str(owner))
            if isinstance(owner, str) and isinstance(epoch, int) and owner != address:
                self._forget(log, address)
                self.learn(log, owner, epoch)
            return self.address_of(log) != address
        if isinstance(error, ServerUnreachable | OutcomeUnknown):
            if self.routes.on_error(address, error):
                return True
            if isinstance(error, ConnectionLost) and self.routes.entry_to(address):
                # The relay failed. If it responds again, the response will say whether the owner is
                # reachable.
                return False
            if log is not None:
                self._forget(log, address)
            if self._servers[self._next] == address:
                self._go_to_next()
        return False

    def _go_to_next(self) -> None:
        """Selects the next server. It skips unreachable servers, unless all are unreachable."""
        unreachable = self.routes.unreachable
        for step in range(1, len(self._servers) + 1):
            following = (self._next + step) % len(self._servers)
            if self._servers[following] not in unreachable:
                self._next = following
                return
        self._next = (self._next + 1) % len(self._servers)

    def _forget(self, log: LogName, address: str) -> None:
        if (known := self._owners.get(log)) and known.address == address:
            del self._owners[log]
