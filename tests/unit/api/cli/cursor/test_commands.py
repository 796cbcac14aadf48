"""The `rollbook cursor` commands against a cluster of one bookie."""

import re

from tests.unit.api.cli.shell import Shell, append_numbers


def test_cursors_are_moved_and_protect_from_truncation(shell: Shell, server: str) -> None:
    append_numbers(server, "read-by-name", 100)
    assert shell.run("cursor", "set", "read-by-name", "billing", 40, "-o", "raw") == "40\n"
    shell.run("cursor", "set", "read-by-name", "audit", "-10", "--protect")
    rows = shell.json("cursor", "ls", "read-by-name")
    assert [(each["name"], each["lag"], each["is_protected"]) for each in rows] == [
        ("audit", 10, True),
        ("billing", 60, False),
    ]
    version = rows[1]["version"]
    shell.run("cursor", "set", "read-by-name", "billing", 50, "--version", version + 7, code=4)
    back = ("cursor", "set", "read-by-name", "billing", 30, "--no-protect", "--version", version)
    shell.run(*back, code=4)
    assert "[CURSOR_AHEAD]" in shell.errors
    (typed,) = re.findall(r"try: rollbook (.*)", shell.errors)
    again = f"cursor set read-by-name billing 30 --rewind --no-protect --version {version} "
    assert typed.startswith(again), "the suggested command keeps the conditions"
    shell.run(*typed.split())
    version = shell.json("cursor", "show", "read-by-name", "billing")["version"]
    shell.run("cursor", "set", "read-by-name", "billing", 30, "--version", version)
    found = shell.json("log", "read", "read-by-name", "--from", "cursor:billing", "--limit", 1)
    assert found[0]["offset"] == 30
    truncate = ("log", "truncate", "read-by-name", "--before", "latest", "--yes")
    shell.run(*truncate, code=4)
    shell.run("cursor", "rm", "read-by-name", "audit", code=2)  # There is no terminal to ask on.
    assert (
        "[NOT_CONFIRMED]\n  outcome: not applied: nothing was changed\n  try: pass --yes"
        in shell.errors
    )
    shell.run("cursor", "rm", "read-by-name", "audit", "--yes")
    shell.run(*truncate)
    shell.run("cursor", "show", "read-by-name", "audit", code=3)
    assert "try: rollbook cursor ls read-by-name --server" in shell.errors
    assert shell.run("cursor", "show", "read-by-name", "billing", "-o", "raw") == "30\n"
