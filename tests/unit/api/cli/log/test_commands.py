"""The `rollbook log` and `rollbook explain` commands against a cluster of one bookie."""

import re

import pytest

from tests.support import commands
from tests.unit.api.cli.shell import Shell


def test_appended_lines_are_read_back(shell: Shell, server: str) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(20_000))
    words = ("log", "append", "lines", "--create", "-o", "raw")
    done = commands.run(*words, stdin=lines, environment={"ROLLBOOK_SERVER": server})
    assert done.stdout == b"20000\n"
    assert shell.run("log", "read", "lines", "-o", "raw").encode() == lines
    assert (
        shell.run("log", "read", "lines", "--from", "-2", "-o", "raw") == "line 19998\nline 19999\n"
    )
    assert shell.run("log", "tail", "lines", "--limit", 1, "--from", 7, "-o", "raw") == "line 7\n"
    found = shell.json("log", "read", "lines", "--from", "19998", "--to", "19999")
    assert [(each["offset"], each["value"]) for each in found] == [(19998, "line 19998")]
    assert shell.json("log", "read", "lines", "--from", "latest") == []


def test_records_are_written_in_the_given_format(shell: Shell) -> None:
    shell.run("log", "append", "dressed", "a", "b", "--create")
    assert shell.run("log", "read", "dressed", "-f", r"%o:%v;") == "0:a;1:b;"
    tailed = shell.run("log", "tail", "dressed", "--from", 0, "--limit", 1, "-f", r"%s\t%v\n")
    assert tailed == "1\ta\n"
    for both in (("-o", "raw"), ("--frame", "nul")):
        shell.run("log", "read", "dressed", "-f", "%v", *both, code=2)
    shell.run("log", "read", "dressed", "-f", "%nothing", code=2)
    assert "use %o %t" in shell.errors


@pytest.mark.parametrize("frame", ["nul", "len32", "whole"])
def test_frames_keep_bytes(shell: Shell, server: str, frame: str) -> None:
    values = [b"a\nb", b"\xff\xfe"] if frame != "whole" else [b"a\nb\0\xff"]
    data = {
        "nul": b"a\nb\0\xff\xfe\0",
        "len32": b"\0\0\0\x03a\nb\0\0\0\x02\xff\xfe",
        "whole": values[0],
    }[frame]
    for words, given in (["append", "--create"], data), (["read", "-o", "raw"], b""):
        done = commands.run(
            "log",
            *words,
            f"frame-{frame}",
            "--frame",
            frame,
            stdin=given,
            environment={"ROLLBOOK_SERVER": server},
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == data
    assert len(shell.json("log", "read", f"frame-{frame}")) == len(values)


def test_log_is_created_once_with_equal_settings(shell: Shell) -> None:
    made = shell.json("log", "create", "shop/made", "--retention-age", "7d", "--label", "a=b")
    assert (made["log"], made["tail"]) == ("shop/made", 0)
    assert shell.json("log", "create", "shop/made", "--retention-age", "1w")["tail"] == 0
    config = shell.json("log", "show", "shop/made")["config"]
    assert (config["retention_age_s"], config["labels"]) == (604_800, {"a": "b"})


@pytest.mark.parametrize("age", ["8d", "none"])
def test_create_with_other_settings_is_refused(shell: Shell, age: str) -> None:
    shell.run("log", "create", f"shop/other-{age}", "--retention-age", "7d")
    shell.run("log", "create", f"shop/other-{age}", "--retention-age", age, code=4)
    assert "\n  try: rollbook apply " in shell.errors


def test_log_without_limits_keeps_everything(shell: Shell) -> None:
    kept = ("log", "create", "shop/kept", "--retention-age", "none", "--retention-bytes", "none")
    assert [shell.json(*kept)["created"] for _ in range(2)] == [True, False]
    config = shell.json("log", "show", "shop/kept")["config"]
    assert (config["retention_age_s"], config["retention_bytes"]) == (None, None)


def test_logs_of_a_namespace_are_listed_by_prefix(shell: Shell) -> None:
    for log in ("market/orders", "market/stock", "orders"):
        shell.run("log", "create", log)
    assert shell.run("log", "ls", "or", "--namespace", "market", "-o", "raw") == "market/orders\n"


@pytest.fixture
def rolled(shell: Shell, request: pytest.FixtureRequest) -> str:
    """A new log for each test: a, b, c in its first segment and d in its second."""
    log = f"shop/{request.function.__name__.replace('_', '-')}"
    assert shell.json("log", "append", log, "a", "b", "c", "--create")["next_offset"] == 3
    assert shell.run("log", "roll", log, "-o", "raw") == "1\n"
    shell.run("log", "append", log, "d")
    return log


def test_roll_begins_a_segment_at_the_tail(shell: Shell, rolled: str) -> None:
    first, second = shell.json("log", "segments", rolled)
    assert (first["next_offset"], second["base_offset"]) == (3, 3)


def test_dry_run_of_truncate_names_segments_and_keeps_them(shell: Shell, rolled: str) -> None:
    planned = shell.json("log", "truncate", rolled, "--before", -1, "--dry-run")
    assert (planned["done"], planned["segments"]) == (False, [0])
    assert shell.run("log", "read", rolled, "-o", "raw") == "a\nb\nc\nd\n"


def test_truncate_needs_a_yes(shell: Shell, rolled: str) -> None:
    shell.run("log", "truncate", rolled, "--before", -1, code=2)
    assert "pass --yes" in shell.errors
    assert shell.run("log", "read", rolled, "-o", "raw") == "a\nb\nc\nd\n"


def test_truncated_log_begins_at_its_new_head(shell: Shell, rolled: str) -> None:
    assert shell.json("log", "truncate", rolled, "--before", -1, "--yes")["new_head"] == 3
    assert shell.run("log", "read", rolled, "-o", "raw") == "d\n"
    facts = shell.json("log", "show", rolled)
    assert (facts["head"], facts["tail"]) == (3, 4)


def test_read_of_truncated_offset_is_an_error(shell: Shell, rolled: str) -> None:
    shell.run("log", "truncate", rolled, "--before", -1, "--yes")
    shell.run("log", "read", rolled, "--from", 0, code=3)
    assert "[TRUNCATED]" in shell.errors


def test_journal_of_a_log_has_its_events(shell: Shell, rolled: str) -> None:
    shell.run("log", "truncate", rolled, "--before", -1, "--yes")
    kinds = shell.run("log", "journal", rolled, "-o", "raw").split()
    assert {"log_created", "log_opened", "log_truncated"} <= set(kinds)


def test_seal_needs_a_yes(shell: Shell, rolled: str) -> None:
    shell.run("log", "seal", rolled, code=2)
    shell.run("log", "append", rolled, "e")


def test_sealed_log_takes_no_append_and_ends_its_tail(shell: Shell, rolled: str) -> None:
    assert shell.run("log", "seal", rolled, "--yes", "-o", "raw") == "4\n"
    assert shell.run("log", "tail", rolled, "--from", 3, "-o", "raw") == "d\n"
    shell.run("log", "append", rolled, "e", code=4)
    assert "[SEALED]" in shell.errors


def test_deletion_of_a_log_needs_a_yes(shell: Shell, rolled: str) -> None:
    shell.run("log", "rm", rolled, code=2)
    assert shell.json("log", "show", rolled)["tail"] == 4


def test_deleted_log_is_neither_listed_nor_shown(shell: Shell, rolled: str) -> None:
    shell.run("log", "rm", rolled, "--yes")
    name = rolled.removeprefix("shop/")
    assert shell.run("log", "ls", name, "--namespace", "shop", "-o", "raw") == ""
    shell.run("log", "show", rolled, code=3)


def test_deletion_of_unknown_log_suggests_listing_logs(shell: Shell) -> None:
    """Advice to create the log first would make no sense."""
    shell.run("log", "rm", "shop/nobody", "--yes", code=3)
    assert "try: rollbook log ls --server" in shell.errors


def test_an_exclusive_log_has_one_writer(shell: Shell) -> None:
    shell.run("log", "create", "wal", "--exclusive")
    shell.run("log", "append", "wal", "a", code=2)
    assert "--holder" in shell.errors
    shell.run("log", "append", "wal", "a", "--holder", "me")
    shell.run("log", "append", "wal", "b", "--holder", "another", code=4)
    assert "--steal" in shell.errors
    shell.run("log", "append", "wal", "b", "--holder", "another", "--steal")
    shown = shell.json("log", "show", "wal")
    assert (shown["tail"], shown["writer_epoch"], shown["writer_holder"]) == (2, 2, "another")


def test_suggested_command_creates_the_missing_log(shell: Shell) -> None:
    shell.run("log", "read", "nobody", code=3)
    (command,) = re.findall(r"try: rollbook (.*)", shell.errors)
    shell.run(*command.split())
    assert shell.json("log", "read", "nobody") == []
    shell.run("log", "read", "nobody", "--from", "soon", code=2)
    assert "is not a position" in shell.errors
    shell.run("log", "create", "Nobody", code=2)
    shell.run("log", "create", "x", "--retention-bytes", "many", code=2)
    shell.run("log", "ls", "--server", "127.0.0.1:1", "--timeout", "0.3", code=5)
    assert "try: start one with `rollbook dev`" in shell.errors
    shell.run("log", "ls", "--server", "http://127.0.0.1:1", code=2)


def test_explain_shows_facts_segments_and_events(shell: Shell) -> None:
    shell.run("log", "create", "told", "--retention-age", "7d", "--exclusive")
    shell.run("log", "append", "told", "a", "b", "--holder", "me")
    shell.run("log", "roll", "told")
    told = shell.json("explain", "told")
    assert told["owner"].startswith("log-1")
    assert (told["head"], told["tail"], told["writer"]) == (0, 2, "me, in writer epoch 1")
    assert "604800 s" in told["retention"]
    assert re.search(r"at \d+ bytes or \d+ entries, or at \d{4}-", told["next_roll"])
    assert [each["state"] for each in told["segments"]] == ["closed", "open"]
    assert "log_opened" in {each["kind"] for each in told["events"]}
    lines = shell.run("explain", "told").splitlines()
    assert lines[0].split() == ["log", "default/told"]
    assert "segments" in lines
    shell.run("log", "seal", "told", "--yes")
    sealed = shell.json("explain", "told")
    assert (sealed["state"].partition(":")[0], sealed["next_roll"]) == ("sealed", "never")
    shell.run("explain", "untold", code=3)
