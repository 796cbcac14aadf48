"""Decides which log servers this client reaches through another one (RY3): a pure rule.

The address of a log's owner may be useless to the client: its name cannot be resolved, no route
leads to it, or its certificate has another name. Then the client asks a server that has answered,
the entry, to relay its calls to the owner.

    cannot be reached    the server's calls are relayed at once, if there is an entry
    refuses connections, the server may have stopped: other servers are asked as usual, and take over its logs. Its
    or answered before   calls are relayed if it fails again after another server has named it as an owner
    relayed              calls are relayed until a direct call succeeds (`unreachable` lists the servers to try), or
                         until the entry reports that it cannot reach the server either
"""

from typing import Final

from rollbook.proto.errors import QuorumTimeout, RollbookError, ServerUnreachable

# The id, in errors that a relay reports, of the server that it could not reach.
SERVER_ID: Final = "server"
_SERVERS_MAX: Final = 256
_REFUSED: Final = "connection refused"


class RelayRoutes:
    def __init__(self) -> None:
        # The servers that answered a direct call, with the most recent one last.
        self._answered: dict[str, None] = {}
        self._unreachable: dict[str, None] = {}
        # The value says whether the server was named as an owner since.
        self._refused: dict[str, bool] = {}
        # Maps servers that are reached through a relay to this relay.
        self._entries: dict[str, str] = {}

    @property
    def unreachable(self) -> tuple[str, ...]:
        """The servers that a direct call did not reach."""
        return tuple(self._unreachable)

    def entry_to(self, server: str) -> str:
        """Returns the server to connect to instead of `server`; empty if that is `server` itself."""
        if server not in self._unreachable:
            return ""
        entry = self._entries.get(server, "")
        if entry not in self._answered:
            others = (each for each in reversed(self._answered) if each != server)
            entry = self._entries[server] = next(others, "")
        return entry

    def on_answered(self, server: str) -> None:
        """Notes that the server has answered a direct call."""
        if next(reversed(self._answered), "") == server:
            return
        self._answered.pop(server, None)
        self._answered[server] = None
        if len(self._answered) > _SERVERS_MAX:
            del self._answered[next(iter(self._answered))]
        self._refused.pop(server, None)
        self._forget(server)

    def on_named(self, server: str) -> None:
        """Notes that another server named this one as an owner."""
        if server in self._refused:
            self._refused[server] = True

    def on_error(self, server: str, error: RollbookError) -> bool:
        """Handles a failed call. Returns whether another route was found, so that a retry need not
        wait."""
        before = self.entry_to(server)
        is_unreached = isinstance(error, ServerUnreachable)
        if before and is_unreached and error.ids.get(SERVER_ID) == server:
            self._forget(server)
            return False
        is_silent = isinstance(error, QuorumTimeout)
        if before and is_unreached:
            self._on_unreached(before, error)
        elif before and is_silent:
            self._answered.pop(before, None)
        elif is_unreached or (is_silent and not before and server not in self._answered):
            self._on_unreached(server, error)
        return self.entry_to(server) not in ("", before)

    def _on_unreached(self, server: str, error: RollbookError) -> None:
        has_answered = server in self._answered
        self._answered.pop(server, None)
        may_have_stopped = has_answered or _REFUSED in error.message.lower()
        if may_have_stopped and not self._refused.pop(server, False):
            if len(self._refused) < _SERVERS_MAX:
                self._refused[server] = False
        elif len(self._unreachable) < _SERVERS_MAX:
            self._unreachable[server] = None

    def _forget(self, server: str) -> None:
        self._unreachable.pop(server, None)
        self._entries.pop(server, None)
