"""The `rollbook log writer` commands against a cluster of one bookie."""

import re

from tests.unit.api.cli.shell import Shell


def test_exclusive_writer_is_acquired_stolen_and_released(shell: Shell) -> None:
    shell.run("log", "create", "one-writer", "--exclusive")
    assert shell.json("log", "writer", "show", "one-writer")["holder"] == ""
    epoch = shell.run("log", "writer", "acquire", "one-writer", "--holder", "me", "-o", "raw")
    assert shell.run("log", "writer", "show", "one-writer", "-o", "raw") == epoch
    shell.run("log", "writer", "acquire", "one-writer", "--holder", "you", code=4)
    again = "rollbook log writer acquire one-writer --holder you --wait"
    assert re.search(rf"try: {again} --server \S+, or use --steal", shell.errors)
    steal = ("log", "writer", "acquire", "one-writer", "--holder", "you", "--steal")
    shell.run(*steal, code=2)
    taken = shell.json(*steal, "--yes", "--ttl", "1h", "--attempt", "5c1c9a1e")
    heard = (*steal[:-1], "--attempt", "5c1c9a1e")  # A retry of the same attempt fences nobody.
    assert shell.json(*heard)["writer_epoch"] == taken["writer_epoch"]
    assert taken["writer_epoch"] == int(epoch) + 1
    assert taken["ttl_s"] == 3600
    shell.run("log", "writer", "release", "one-writer", epoch.strip(), code=4)
    shell.run("log", "writer", "release", "one-writer", taken["writer_epoch"])
    assert shell.json("log", "writer", "show", "one-writer")["holder"] == ""
