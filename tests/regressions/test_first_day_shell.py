"""Commands that users of other log services type on their first day."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.regressions.defects import defect
from tests.regressions.one_dev import Dev, running
from tests.support import commands


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running(tmp_path_factory.mktemp("dev")) as found:
        yield found


def shell(dev: Dev, *words: str, stdin: bytes = b"", code: int = 0) -> str:
    done = commands.run(*words, stdin=stdin, environment={"ROLLBOOK_SERVER": dev.url})
    assert done.returncode == code, done.stderr.decode()
    return (done.stderr if code else done.stdout).decode()


def found(dev: Dev, *words: str, stdin: bytes = b"") -> Any:
    return json.loads(shell(dev, *words, "-o", "json", stdin=stdin))


@defect(
    "shell-appends-bare-values-only",
    "`log append` had no key, no headers and no event time, and JSON could not be appended as it was read.",
)
def test_append_command_takes_keys_headers_and_event_times(dev: Dev) -> None:
    extras = ("--key", "k", "--header", "a=1", "--header", "b=2", "--event-time")
    shell(dev, "log", "append", "full", "v", "--create", *extras, "2026-01-31T10:00:00Z")
    shell(dev, "log", "append", "full", "--key", "lines", stdin=b"1\n2\n")
    shell(dev, "log", "append", "full", "--format", "nul", stdin=b"\xff\n\0")
    (first, *others) = read = found(dev, "log", "read", "full")
    assert first["key"] == "k"
    assert first["headers"] == {"a": "1", "b": "2"}
    assert first["event_time_us"] == 1769853600000000
    assert [each.get("key") for each in others] == ["lines", "lines", None]
    for form in ("ndjson", "json"):
        records = shell(dev, "log", "read", "full", "-o", form).encode()
        copy = f"full-{form}"
        shell(dev, "log", "append", copy, "--create", "--format", form, stdin=records)
        for each, same in zip(read, found(dev, "log", "read", copy), strict=True):
            assert {**each, "timestamp_us": 0} == {**same, "timestamp_us": 0}


@defect(
    "shell-cannot-append-an-input-once",
    "An import that was interrupted and started again appended its first records twice.",
)
def test_input_with_a_producer_name_is_appended_once(dev: Dev) -> None:
    lines = b"".join(b"%d\n" % number for number in range(1200))
    words = ("log", "append", "import", "--create", "--producer", "january")
    # The interrupted run.
    shell(dev, *words, stdin=b"".join(lines.splitlines(keepends=True)[:1000]))
    again = found(dev, *words, stdin=lines)
    assert (again["next_offset"], again["records"], again["were_there"]) == (1200, 1200, 1000)
    assert shell(dev, "log", "read", "import", "-o", "raw").encode() == lines


@defect("shell-expects-no-offset", "`log append` could not say which offset it expects.")
def test_append_command_checks_the_expected_offset(dev: Dev) -> None:
    words = ("log", "append", "expected", "--expect", "0")
    assert found(dev, *words, "a", "b", "--create")["next_offset"] == 2
    refused = shell(dev, *words, "c", code=4)
    assert "0 records are acknowledged; 1 were not appended" in refused
    assert found(dev, "log", "append", "expected", "--expect", "2", "c")["next_offset"] == 3


@defect("shell-sets-no-setting", "To change one setting of a log, a file had to be written.")
def test_log_set_changes_settings(dev: Dev) -> None:
    shell(dev, "log", "create", "tuned")
    words = ("retention_age=7d", "roll_entries=1000", "labels=team=checkout", "description=x y")
    assert found(dev, "log", "set", "tuned", *words, "--yes")["done"]
    config = found(dev, "log", "show", "tuned")["config"]
    assert (config["retention_age_s"], config["roll_entries"]) == (604800, 1000)
    assert (config["labels"], config["description"]) == ({"team": "checkout"}, "x y")
    assert found(dev, "log", "set", "tuned", "retention_age=7d")["changes"] == {}
    # It asks for confirmation.
    refused = shell(dev, "log", "set", "tuned", "retention_age=1d", code=2)
    assert "--yes" in refused
    assert "retention_age" in shell(dev, "log", "set", "tuned", "retention_agee=1d", code=2)
    shell(dev, "log", "set", "no-such-log", "retention_age=1d", code=3)


@defect(
    "shell-lacks-the-usual-words",
    "`log list`, `info`, `describe`, `delete`, `tail -n 20` and `rm --now` were no commands.",
)
def test_common_command_aliases_work(dev: Dev) -> None:
    shell(dev, "log", "append", "usual", "1", "2", "3", "--create")
    assert "default/usual" in shell(dev, "log", "list", "-o", "raw")
    for word in ("info", "describe"):
        assert found(dev, "log", word, "usual")["tail"] == 3
    tailed = shell(dev, "log", "tail", "usual", "-n", "2", "--limit", "2", "-o", "raw")
    assert tailed == "2\n3\n"
    shell(dev, "log", "delete", "usual", "--now", "--yes")
    assert "default/usual" not in shell(dev, "log", "list", "-o", "raw")


@defect(
    "cluster-needs-the-metadata-url",
    "`cluster info` and `cluster health` wanted the metadata URL, which programs' machines do not have.",
)
def test_cluster_info_and_health_work_through_a_log_server(dev: Dev) -> None:
    info = found(dev, "cluster", "info")
    assert (info["log_servers"], info["usable_bookies"]) == (1, 1)
    assert [each["address"] for each in info["servers"]] == [dev.url.removeprefix("log://")]
    health = found(dev, "cluster", "health")
    assert (health["health"], health["log_servers"]) == ("healthy", "1 of 1 reachable")
    assert "log server" in shell(dev, "cluster", "health")


@defect(
    "log-cannot-be-exported",
    "A log could not be exported to a file and imported once, with keys, headers and times, after an interruption.",
)
def test_a_log_is_exported_and_imported_once(dev: Dev, tmp_path: Path) -> None:
    file = tmp_path / "orders.rbx"
    words = ("log", "append", "exported", "--create", "--key", "k", "--header", "h=v")
    for _ in range(3):
        shell(dev, *words, "--event-time", "2026-01-31T10:00:00Z", stdin=b"1\n2\n3\n")
    shell(dev, "log", "truncate", "exported", "--before", "2", "--yes")
    assert found(dev, "log", "export", "exported", str(file))["next_offset"] == 9
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])  # As after an interrupted export.
    assert "has no end" in shell(dev, "log", "import", "imported", str(file), "--create", code=2)
    shell(dev, "log", "import", "imported", str(file), "--create", "--incomplete")
    shell(dev, "log", "export", "exported", str(file))
    assert file.read_bytes() == whole
    shell(dev, "log", "append", "exported", "late")
    shell(dev, "log", "export", "exported", str(file))
    for _ in range(2):
        assert found(dev, "log", "import", "imported", str(file))["next_offset"] == 8
    ours, theirs = (found(dev, "log", "read", each) for each in ("exported", "imported"))
    for each, same in zip(ours, theirs, strict=True):
        assert same["offset"] == each["offset"] - 2
        for own in ("offset", "timestamp_us"):
            del each[own], same[own]
        assert each == same
    shell(dev, "log", "append", "other", "x", "y", "--create")
    assert "another log" in shell(dev, "log", "export", "other", str(file), code=2)
    assert "OFFSET_MISMATCH" in shell(dev, "log", "import", "other", str(file), code=4)
    file.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    assert "is damaged" in shell(dev, "log", "import", "third", str(file), "--create", code=7)
    damaged = file.read_bytes()
    assert "is damaged" in shell(dev, "log", "export", "exported", str(file), code=7)
    assert file.read_bytes() == damaged  # A failed export does not change the file.
