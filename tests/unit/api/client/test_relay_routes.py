"""When a client reaches a server through another one (a relay), and when that ends."""

from rollbook.api.client.relay_routes import RelayRoutes
from rollbook.proto.errors import ConnectionLost, QuorumTimeout, ServerUnreachable

ENTRY, OTHER, OWNER = "127.0.0.1:7400", "127.0.0.1:7401", "log-2.invalid:7400"
UNRESOLVED = ServerUnreachable(f"errors resolving {OWNER}: Domain name not found")
REFUSED = ServerUnreachable("failed to connect to all addresses: Connection refused")
NOT_BELIEVED = ServerUnreachable("failed to connect: peer name log-2 is not in peer certificate")


def routes_from(*answered: str) -> RelayRoutes:
    routes = RelayRoutes()
    for each in answered:
        routes.on_answered(each)
    return routes


def test_reachable_server_is_asked_directly() -> None:
    """RY3: without a failure nothing is relayed."""
    assert routes_from(ENTRY).entry_to(OWNER) == ""


def test_server_with_an_unresolved_name_is_reached_through_another() -> None:
    """RY3: at once, without a pause for the caller."""
    for error in (UNRESOLVED, NOT_BELIEVED):
        routes = routes_from(ENTRY)
        assert routes.on_error(OWNER, error)
        assert routes.entry_to(OWNER) == ENTRY
        assert routes.entry_to(ENTRY) == ""
        assert routes.unreachable == (OWNER,)


def test_nothing_is_relayed_while_no_server_has_answered() -> None:
    """RY3: the first server that responds becomes the entry."""
    routes = RelayRoutes()
    assert not routes.on_error(OWNER, UNRESOLVED)
    assert routes.entry_to(OWNER) == ""
    routes.on_answered(ENTRY)
    assert routes.entry_to(OWNER) == ENTRY


def test_refusing_server_is_relayed_only_after_another_server_names_it() -> None:
    """RY3: a stopped server refuses connections, and other servers take over its logs."""
    routes = routes_from(OWNER, ENTRY)
    assert not routes.on_error(OWNER, REFUSED)
    assert not routes.on_error(OWNER, REFUSED), "no other server has named it"
    routes.on_named(OWNER)
    assert routes.entry_to(OWNER) == "", (
        "it is tried directly once more: it may have been restarted"
    )
    assert routes.on_error(OWNER, REFUSED)
    assert routes.entry_to(OWNER) == ENTRY


def test_server_that_answered_and_hangs_is_not_relayed_at_first() -> None:
    """RY3: other servers take over its logs without another time-out for a relay."""
    routes = routes_from(OWNER, ENTRY)
    silence = ServerUnreachable("has not said within 2.5 s that it listens")
    assert not routes.on_error(OWNER, silence)
    assert routes.entry_to(OWNER) == ""
    routes.on_named(OWNER)
    assert routes.on_error(OWNER, silence)
    assert routes.entry_to(OWNER) == ENTRY


def test_direct_call_that_succeeds_ends_the_relay() -> None:
    """RY3: the client tries `unreachable` servers from time to time."""
    routes = routes_from(ENTRY)
    routes.on_error(OWNER, UNRESOLVED)
    routes.on_answered(OWNER)
    assert routes.entry_to(OWNER) == ""
    assert routes.unreachable == ()


def test_relay_ends_if_the_entry_cannot_reach_the_server() -> None:
    """RY3: the owner has failed, and the caller looks for another one."""
    routes = routes_from(ENTRY)
    routes.on_error(OWNER, UNRESOLVED)
    assert not routes.on_error(OWNER, ServerUnreachable("no such server", server=OWNER))
    assert routes.entry_to(OWNER) == ""
    assert routes.unreachable == ()


def test_failed_entry_is_replaced() -> None:
    """RY3: another server that has responded becomes the entry."""
    for error in (UNRESOLVED, QuorumTimeout("silence")):
        routes = routes_from(OTHER, ENTRY)
        routes.on_error(OWNER, UNRESOLVED)
        assert routes.entry_to(OWNER) == ENTRY
        assert routes.on_error(OWNER, error)
        assert routes.entry_to(OWNER) == OTHER


def test_broken_connection_changes_no_route() -> None:
    """RY3: the entry is asked again and reports whether it reaches the owner."""
    routes = routes_from(ENTRY)
    routes.on_error(OWNER, UNRESOLVED)
    assert not routes.on_error(OWNER, ConnectionLost("broke"))
    assert routes.entry_to(OWNER) == ENTRY


def test_silent_server_that_has_answered_before_is_not_relayed() -> None:
    """RY3: it is slow, while a server that never responded may be unreachable."""
    routes = routes_from(OWNER, ENTRY)
    assert not routes.on_error(OWNER, QuorumTimeout("silence"))
    assert routes.entry_to(OWNER) == ""
    assert routes.on_error("10.1.2.3:7400", QuorumTimeout("silence"))
    assert routes.entry_to("10.1.2.3:7400") == ENTRY


def test_number_of_remembered_servers_is_bounded() -> None:
    """RY3: servers choose which addresses they name, so the client must bound their number."""
    routes = RelayRoutes()
    for number in range(1000):
        routes.on_answered(f"a-{number}:1")
        routes.on_error(f"b-{number}.invalid:1", UNRESOLVED)
        routes.on_error(f"c-{number}:1", REFUSED)
    assert len(routes.unreachable) == 256
    assert routes.entry_to("b-0.invalid:1") == "a-999:1"
