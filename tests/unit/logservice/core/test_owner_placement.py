"""Servers agree on a log's owner without messages; few logs move when a server joins or leaves."""

from collections import Counter

from rollbook.logservice.core.owner_placement import (
    SHARDS,
    Suggestions,
    life_of,
    server_name,
    shard_of,
)
from rollbook.logservice.ids import LogName

LOGS = [LogName("default", f"log-{number}") for number in range(3000)]


def test_suggestions_do_not_depend_on_the_order_of_servers() -> None:
    """SV1."""
    one, other = Suggestions(["b", "a", "c"]), Suggestions(["c", "b", "a"])
    assert [one.server_for(log) for log in LOGS] == [other.server_for(log) for log in LOGS]


def test_suggestions_are_stable_across_releases() -> None:
    """Servers of different versions share a cluster."""
    assert [shard_of(log) for log in LOGS[:4]] == [2673, 2898, 2894, 2475]
    assert Suggestions(["a", "b", "c"]).ranked(17) == ("c", "a", "b")


def test_servers_get_equal_shares() -> None:
    suggestions = Suggestions([f"server-{number}" for number in range(5)])
    shares = Counter(suggestions.ranked(shard)[0] for shard in range(SHARDS))
    assert len(shares) == 5
    assert all(0.85 < 5 * share / SHARDS < 1.15 for share in shares.values())


def test_only_the_shards_of_a_leaving_server_move() -> None:
    before, after = Suggestions(["a", "b", "c"]), Suggestions(["a", "c"])
    for log in LOGS:
        was = before.server_for(log)
        assert after.server_for(log) == (was if was != "b" else before.server_for(log, {"b"}))


def test_no_server_is_suggested_without_candidates() -> None:
    assert Suggestions([]).server_for(LOGS[0]) is None
    assert Suggestions(["a"]).server_for(LOGS[0], without=("a",)) is None


def test_server_name_does_not_depend_on_the_process() -> None:
    assert server_name(life_of("log-1:7400", "0badcafe")) == "log-1:7400"
