"""`rollbook cluster health` of a running and a killed cluster, and how it derives its verdict."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollbook.api.cli.cluster.health import judge
from rollbook.api.cli.cluster.info_from_log_servers import verdict
from rollbook.logservice.log_config import DEFAULT_QUORUM
from rollbook.logservice.messages import Obstacle, ObstacleKind, Outage, ServiceLimits
from tests.support import commands
from tests.support.dev import running_dev


def look(folder: Path) -> tuple[int, dict[str, Any]]:
    command = ("cluster", "health", "--metadata", f"sqlite://{folder}/metadata.db", "-o", "json")
    done = commands.run(*command)
    assert not done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_running_cluster_is_healthy_and_killed_one_unavailable(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running_dev(folder, bookies=1) as dev:
        code, found = look(folder)
        assert (code, found["health"]) == (0, "healthy")
        bookie, server = found["members"]
        assert (bookie["id"], bookie["state"]) == ("bk-1", "writable")
        assert (server["id"], server["state"]) == ("log-1", "serving")
        assert server["address"] == dev.address
    code, found = look(folder)  # Members of the killed cluster may still be registered.
    assert (code, found["health"]) == (5, "unavailable")
    assert found["members"][0]["state"] in ("unreachable", "down")


def member(kind: str, state: str) -> dict[str, Any]:
    return {"kind": kind, "id": "x", "state": state, "address": "h:1"}


@pytest.mark.parametrize(
    ("bookies", "servers", "health"),
    [
        (["writable"] * 3, [], "healthy"),
        (["writable"] * 3, ["serving"], "healthy"),
        (["writable"] * 2, ["serving"], "degraded"),
        (["writable", "writable", "read-only"], ["serving"], "degraded"),
        (["writable", "writable", "down"], [], "degraded"),
        (["writable"] * 3, ["serving", "unreachable"], "degraded"),
        (["writable"] * 3, ["draining"], "degraded"),
        (["writable"] * 3, ["unreachable"], "unavailable"),
        (["writable"], ["serving"], "unavailable"),
        (["writable", "down", "down"], [], "unavailable"),
        (["read-only", "down"], ["serving"], "unavailable"),
        ([], [], "unavailable"),
    ],
)
def test_health_follows_from_member_states(
    bookies: list[str], servers: list[str], health: str
) -> None:
    found = [member("bookie", each) for each in bookies]
    found += [member("log server", each) for each in servers]
    assert judge(found)["health"] == health


def test_health_depends_on_the_servers_default_ensemble() -> None:
    bookies = [member("bookie", "writable")]
    one = member("log server", "serving") | {"ensemble": 1, "acks": 1}
    assert judge([*bookies, one])["health"] == "healthy"
    two = member("log server", "serving") | {"ensemble": 2, "acks": 1}
    found = judge([*bookies, one, two])
    assert (found["health"], found["new_logs"]) == (
        "degraded",
        "are written to 1 bookies instead of 2",
    )


def test_logs_with_too_few_copies_are_counted() -> None:
    bookies = [member("bookie", "writable")] * 3
    server = member("log server", "serving") | {"logs_degraded": 4}
    found = judge([*bookies, server])
    assert (found["health"], found["degraded_logs"]) == ("degraded", 4)


def test_logs_that_cannot_be_opened_are_counted() -> None:
    bookies = [member("bookie", "writable")] * 3
    found = judge([*bookies, member("log server", "serving") | {"logs_unopened": 2}])
    assert (found["health"], found["unopened_logs"]) == ("degraded", 2)


def test_lost_segments_are_counted() -> None:
    """LO1."""
    bookies = [member("bookie", "writable")] * 3
    found = judge([*bookies, member("log server", "serving") | {"segments_lost": 2}])
    assert (found["health"], found["lost_segments"]) == ("degraded", 2)


def seen(state: str) -> dict[str, Any]:
    return {"kind": "log server", "id": "x", "state": state, "address": "h:1"}


@pytest.mark.parametrize(
    ("servers", "away", "degraded", "health"),
    [
        (["serving", "serving"], [], 0, "healthy"),
        (["serving", "unreachable"], [], 0, "degraded"),
        (["serving", "draining"], [], 0, "degraded"),
        (["serving"], [], 1, "degraded"),
        (["serving"], [ObstacleKind.BOOKIE], 0, "degraded"),
        (["serving"], [ObstacleKind.METADATA], 0, "unavailable"),
        (["unreachable"], [], 0, "unavailable"),
    ],
)
def test_server_verdict_follows_from_states_and_outages(
    servers: list[str], away: list[ObstacleKind], degraded: int, health: str
) -> None:
    outage = Outage(tuple(Obstacle(kind, "x", 1, "does not answer") for kind in away))
    limits = ServiceLimits(1, 1, 1, 1, 1, 1, 1, usable_bookies=3, quorum=DEFAULT_QUORUM)
    assert verdict(list(map(seen, servers)), outage, degraded, limits) == health
