"""The `rollbook log verify` command against a cluster of one bookie."""

from tests.unit.api.cli.shell import Shell, append_numbers


def test_log_verify_counts_all_records(shell: Shell, server: str) -> None:
    append_numbers(server, "sound", 5000)
    shell.run("log", "truncate", "sound", "--before", 100, "--yes")
    found = shell.json("log", "verify", "sound")
    assert (found["head"], found["tail"], found["records"]) == (100, 5000, 4900)
    assert found["bytes"] == sum(len(str(number)) for number in range(100, 5000))
    shell.run("log", "verify", "nowhere", code=3)
