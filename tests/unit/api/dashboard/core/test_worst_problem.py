"""The health sentence names the worst problem."""

from typing import Any

import pytest

from rollbook.api.dashboard.core.worst_problem import sentence_of

HEALTH: dict[str, Any] = {
    "health": "healthy",
    "bookies": "3 of 3 writable",
    "log_servers": "1 of 1 reachable",
    "new_logs": "have all their copies",
    "degraded_logs": 0,
    "unopened_logs": 0,
    "lost_segments": 0,
    "members": [{"kind": "bookie", "id": "bk-1", "state": "writable"}],
}
RECOVERY: dict[str, Any] = {
    "ledgers_unrecoverable": 0,
    "ledgers_marked": 0,
    "autorecovery": "enabled",
    "auditor": "recovery-1",
    "bookies_leaving": "",
}
DOWN = [{"kind": "bookie", "id": f"bk-{number}", "state": "down"} for number in range(5)]


@pytest.mark.parametrize(
    ("health", "recovery", "level", "text", "link"),
    [
        ({}, {}, "good", "3 of 3 writable", "/bookies"),
        ({}, {"ledgers_unrecoverable": 1}, "bad", "1 ledger has entries without", "/ledgers/bad"),
        ({"health": "unavailable"}, {}, "bad", "New logs", "/bookies"),
        ({"members": DOWN[:1]}, {}, "warning", "Bookie bk-0 is down.", "/bookies"),
        ({"members": DOWN}, {}, "warning", "and 2 more", "/bookies"),
        ({}, {"ledgers_marked": 7}, "warning", "7 ledgers have fewer", "/ledgers?short=true"),
        ({}, {"autorecovery": "paused"}, "warning", "paused", "/recovery"),
        ({}, {"auditor": None}, "warning", "No recovery server", "/recovery"),
        ({"lost_segments": 2}, {}, "bad", "2 segments", "/ledgers"),
        ({"degraded_logs": 3}, {}, "warning", "3 logs", "/bookies"),
        ({"unopened_logs": 2, "degraded_logs": 3}, {}, "bad", "2 logs", "/servers"),
        ({"health": "degraded"}, {}, "warning", "New logs", "/bookies"),
        (
            {"health": "degraded", "members": [{**DOWN[0], "state": "draining"}]},
            {},
            "warning",
            "Bookie bk-0 is draining.",
            "/bookies",
        ),
        ({}, {"bookies_leaving": "bk-2 (draining)"}, "good", "bk-2 (draining)", "/bookies"),
        ({"members": DOWN}, {"ledgers_unrecoverable": 2}, "bad", "2 ledgers", "/ledgers/bad"),
    ],
)
def test_worst_problem_is_shown(
    health: dict[str, Any], recovery: dict[str, Any], level: str, text: str, link: str
) -> None:
    found = sentence_of(HEALTH | health, RECOVERY | recovery)
    assert (found.level, found.link) == (level, link)
    assert text in found.text
