"""`rollbook log` and `rollbook explain` against a cluster of one bookie, as a user meets them."""

import re

import pytest

from tests.support import commands
from tests.unit.api.cli.shell import Shell


def test_lines_go_in_and_come_out(shell: Shell, server: str) -> None:
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


def test_records_are_written_as_it_is_said(shell: Shell) -> None:
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


def test_the_life_of_a_log(shell: Shell) -> None:
    made = shell.json("log", "create", "shop/orders", "--retention-age", "7d", "--label", "a=b")
    assert (made["log"], made["tail"]) == ("shop/orders", 0)
    assert shell.json("log", "create", "shop/orders", "--retention-age", "1w")["tail"] == 0
    shell.run("log", "create", "shop/orders", "--retention-age", "8d", code=4)
    assert "\n  try: rollbook apply " in shell.errors
    shell.run("log", "create", "shop/orders", "--retention-age", "none", code=4)
    kept = ("log", "create", "shop/kept", "--retention-age", "none", "--retention-bytes", "none")
    assert [shell.json(*kept)["created"] for _ in range(2)] == [True, False]
    config = shell.json("log", "show", "shop/kept")["config"]
    assert (config["retention_age_s"], config["retention_bytes"]) == (None, None)
    assert shell.run("log", "ls", "or", "--namespace", "shop", "-o", "raw") == "shop/orders\n"
    assert shell.json("log", "append", "shop/orders", "a", "b", "c")["next_offset"] == 3
    assert shell.run("log", "roll", "shop/orders", "-o", "raw") == "1\n"
    shell.run("log", "append", "shop/orders", "d")
    first, second = shell.json("log", "segments", "shop/orders")
    assert (first["next_offset"], second["base_offset"]) == (3, 3)

    planned = shell.json("log", "truncate", "shop/orders", "--before", -1, "--dry-run")
    assert (planned["done"], planned["segments"]) == (False, [0])
    shell.run("log", "truncate", "shop/orders", "--before", -1, code=2)
    assert "say --yes" in shell.errors
    assert shell.run("log", "read", "shop/orders", "-o", "raw") == "a\nb\nc\nd\n"
    assert shell.json("log", "truncate", "shop/orders", "--before", -1, "--yes")["new_head"] == 3
    shell.run("log", "read", "shop/orders", "--from", 0, code=3)
    assert "[TRUNCATED]" in shell.errors
    assert shell.run("log", "read", "shop/orders", "-o", "raw") == "d\n"

    facts = shell.json("log", "show", "shop/orders")
    assert (facts["head"], facts["tail"]) == (3, 4)
    assert (facts["config"]["retention_age_s"], facts["config"]["labels"]) == (604_800, {"a": "b"})
    kinds = shell.run("log", "journal", "shop/orders", "-o", "raw").split()
    assert {"log_created", "log_opened", "log_truncated"} <= set(kinds)

    shell.run("log", "seal", "shop/orders", code=2)
    assert shell.run("log", "seal", "shop/orders", "--yes", "-o", "raw") == "4\n"
    assert shell.run("log", "tail", "shop/orders", "-o", "raw") == "d\n"  # It ends by itself.
    shell.run("log", "append", "shop/orders", "e", code=4)
    assert "[SEALED]" in shell.errors
    shell.run("log", "rm", "shop/orders", code=2)
    shell.run("log", "rm", "shop/orders", "--yes")
    assert shell.run("log", "ls", "or", "--namespace", "shop", "-o", "raw") == ""
    shell.run("log", "rm", "shop/nobody", "--yes", code=3)
    assert "try: rollbook log ls --server" in shell.errors, "not to make it first"
    shell.run("log", "show", "shop/orders", code=3)


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


def test_what_to_type_next_can_be_typed(shell: Shell) -> None:
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


def test_a_log_explains_itself(shell: Shell) -> None:
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
