"""`rollbook cluster servers`, `cluster drain` and `log transfer` against a cluster of one log server."""

import time

from tests.support.dev import PATIENCE_S
from tests.unit.api.cli.shell import Shell, append_numbers


def test_servers_are_listed_drained_and_get_logs_back(shell: Shell, server: str) -> None:
    append_numbers(server, "moved", 10)
    (row,) = shell.json("cluster", "servers")
    assert row["address"] == server
    assert shell.run("log", "transfer", "moved", row["server"], "-o", "raw").strip() == server
    shell.run("log", "transfer", "moved", "nobody", code=3)
    assert "try: rollbook cluster servers --server" in shell.errors
    try:
        left = shell.json("cluster", "drain", row["server"], "--wait", "--timeout", 60)
        assert left == {"server": row["server"], "draining": True, "logs": 0}
        assert shell.json("cluster", "servers")[0]["state"] == "draining"
    finally:
        shell.run("cluster", "drain", row["server"], "--resume")
    deadline = time.monotonic() + PATIENCE_S
    while shell.json("cluster", "servers")[0]["state"] != "serving":
        assert time.monotonic() < deadline
    assert shell.json("log", "verify", "moved", "--timeout", 60)["records"] == 10
