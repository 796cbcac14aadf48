"""The outputs `name`, `raw` and `wide` of commands that list."""

import re

from tests.unit.api.cli.shell import Shell, append_numbers


def test_log_lists_have_name_raw_and_wide_outputs(shell: Shell, server: str) -> None:
    append_numbers(server, "listed", 3)
    shell.run("cursor", "set", "listed", "billing", 1)
    assert shell.run("cursor", "ls", "listed", "-o", "name") == "billing\n"
    assert "BLOB_BYTES" in shell.run("cursor", "ls", "listed", "-o", "wide").splitlines()[0]
    assert shell.run("log", "ls", "listed", "-o", "name") == "default/listed\n"
    assert shell.run("log", "ls", "listed").splitlines() == ["LOG", "default/listed"]
    head, row = shell.run("log", "ls", "listed", "-o", "wide").splitlines()
    assert {"TAIL", "OWNER", "RECORDS", "WRITER_HOLDER"} <= set(head.split())
    assert row.split()[2] == "3"
    ledgers = shell.run("log", "segments", "listed", "-o", "name")
    assert ledgers == shell.run("log", "segments", "listed", "-o", "raw")
    head, row = shell.run("log", "segments", "listed", "-o", "wide").splitlines()
    assert head.endswith("LAST_RECORD")
    assert re.search(r"  \d{4}-\d\d-\d\dT[\d:.]+Z$", row)
    names = shell.run("cluster", "servers", "-o", "name")
    assert names == shell.run("cluster", "servers", "-o", "raw")
