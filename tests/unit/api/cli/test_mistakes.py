"""Mistakes of a first day: each is answered with one clear sentence, the outcome, a next step and an exit code.

No traceback, and nothing of the inner parts: a user of `rollbook` knows neither gRPC nor click.
"""

import json
import re
from pathlib import Path
from typing import Final

import pytest

from tests.unit.api.cli.shell import Shell

_INNER: Final = re.compile(
    r"traceback|grpc|StatusCode|asyncio|protobuf|KeyError|<class", re.IGNORECASE
)
USAGE = WRONG = 2  # Found by the command line; by what it calls.
MISSING, CONFLICT, AWAY = 3, 4, 5

# What is typed · the exit code · what the sentence says · what the next step says.
MISTAKES: Final = (
    # --- Words that are none -------------------------------------------------------------------
    ("lgo ls", USAGE, "lgo", "--help"),
    ("log", USAGE, "", ""),
    ("log creat x", USAGE, "creat", "--help"),
    ("log create", USAGE, "LOG", "log create --help"),
    ("log create a b", USAGE, "extra argument", "log create --help"),
    ("log read m --form 3", USAGE, "--form", "log read --help"),
    ("log read m --limit", USAGE, "--limit", "log read --help"),
    ("log read m --limit 0", USAGE, "0 is no whole number from 1 on", "log read --help"),
    ("log read m --limit ten", USAGE, "ten is no whole number", "log read --help"),
    ("log read m -o xml", USAGE, "xml", "log read --help"),
    ("log read m --to -1", USAGE, "-1", "log read --help"),
    ("log tail m -n -1", USAGE, "-1", "log tail --help"),
    ("log tail m -n 3 --from 2", USAGE, "leave out --from", "log tail --help"),
    ("log rm m --now --grace 1d --yes", USAGE, "leave out one of them", "log rm --help"),
    ("log read m -f %v --frame nul", USAGE, "leave out --frame", "log read --help"),
    ("log append m x --format csv", USAGE, "csv", "log append --help"),
    ("log append m x --header a=1 --header a=2", WRONG, "--header names 'a' twice", "leave out one"),
    ("log append m x --expect -1", USAGE, "-1", "log append --help"),
    ("log truncate m", USAGE, "--before", "log truncate --help"),
    ("cursor set m c", USAGE, "POSITION", "cursor set --help"),
    ("log ls --timeout 0", USAGE, "0 is no number", "log ls --help"),
    # --- Names, positions, numbers, times ------------------------------------------------------
    ("log create Orders", WRONG, "'Orders' is not 1 to 255 characters of `a-z 0-9", ""),
    ("log create a/b/c", WRONG, "b/c", ""),
    ("log create x --retention-age week", WRONG, "'week' is no length of time; write 15m", ""),
    ("log create x --retention-bytes many", WRONG, "'many' is no number of bytes; write", ""),
    ("log create x --label team", WRONG, "'team', which is no NAME=VALUE", ""),
    ("log create x --copies 2 --acks 3", WRONG, "ack", ""),
    ("log create x --copies 99", AWAY, "99 copies on 99 bookies are wanted", "start more bookies"),
    ("log read m --from yesterday", WRONG, "'yesterday' is no position", "ago:15m"),
    ("log read m --from ts:noon", WRONG, "'noon' is no time", ""),
    ("log read m --from ts:2026-01-31T10:00:00", WRONG, "zone", ""),
    ("log read m --from cursor:none", MISSING, "none", "rollbook cursor ls m"),
    ("log read m --from 99", MISSING, "99", "rollbook log show m"),
    ("log read m -f %q", WRONG, "%q says nothing", "use %o"),
    ("log append m x --header plain", WRONG, "'plain', which is no NAME=VALUE", "--header source=shop"),
    ("log append m x --header =x", WRONG, "'=x', which is no NAME=VALUE", "--header source=shop"),
    ("log append m x --header \u00e9=x", WRONG, "printable ASCII", ""),
    ("log append m x --event-time noon", WRONG, "'noon' is no time", ""),
    ("log append m --format ndjson --key k", WRONG, "each record of ndjson says its own key", "leave out --key"),
    ("log append m x --producer PRODUCER65", WRONG, "a producer id has 1 to 64 bytes", ""),
    # --- States --------------------------------------------------------------------------------
    ("log read none", MISSING, "none", "rollbook log create none"),
    ("log tail none", MISSING, "none", "rollbook log create none"),
    ("log append none x", MISSING, "none", "rollbook log create none"),
    ("log show none", MISSING, "none", "rollbook log create none"),
    ("log truncate none --before 1 --yes", MISSING, "none", "rollbook log create none"),
    ("log rm none --yes", MISSING, "none", "rollbook log ls"),
    ("log rm m", USAGE, "delete m, with all records", "--yes"),
    ("log seal m", USAGE, "nothing is ever appended again", "--yes"),
    ("log truncate m --before 1", USAGE, "truncate m before offset 1", "--yes"),
    ("log append m x --expect 99", CONFLICT, "expected", ""),
    ("log append m x --holder me", WRONG, "is not exclusive", "--exclusive"),
    ("log append exclusive x", WRONG, "is exclusive", "--holder NAME"),
    ("log append sealed x", CONFLICT, "takes no more records", ""),
    ("log create m --copies 1 --acks 1 --exclusive", CONFLICT, "another writer_mode", "rollbook apply FILE"),
    ("log transfer m nowhere", MISSING, "nowhere", "rollbook cluster servers"),
    ("cursor show m none", MISSING, "none", "rollbook cursor ls m"),
    ("cursor rm m none --yes", MISSING, "none", "rollbook cursor ls m"),
    ("cursor set m there 0", CONFLICT, "", "--rewind"),
    ("cursor set m there 99", MISSING, "beyond the tail", "rollbook log show m"),
    ("cursor set m there 1 --version 99", CONFLICT, "", ""),
    ("log export none FOLDER/none.rbx", MISSING, "none", "rollbook log create none"),
    ("log export m FOLDER/broken.toml", WRONG, "no file that `rollbook log export` has written", "name another file"),
    ("log import m FOLDER/none.rbx", WRONG, "cannot read", "rollbook log export --help"),
    ("log import m FOLDER/broken.toml", WRONG, "no file that `rollbook log export` has written", "name another file"),
    ("log import m FOLDER/empty", WRONG, "holds no records", "rollbook log export --help"),
    # --- Settings ------------------------------------------------------------------------------
    ("log set m", USAGE, "KEY=VALUE", "log set --help"),
    ("log set m retention_age", WRONG, "'retention_age' is no KEY=VALUE", "retention_age=7d"),
    ("log set m retention=7d", WRONG, "there is no setting 'retention'", "retention_"),
    ("log set m retention_age=soon", WRONG, "'soon' is no length of time", ""),
    ("log set m copies=three", WRONG, "copies is a number from 1 on", "write copies = 3"),
    ("log set m exclusive=maybe", WRONG, "exclusive is true or false", ""),
    ("log set m labels=team", WRONG, "'team' is no NAME=VALUE", "labels=team=checkout"),
    ("log set m labels=a=1,a=2", WRONG, "'labels=a=1,a=2' names a label twice", "leave out one"),
    ("log set m retention_age=1s", USAGE, "delete records sooner", "--yes"),
    ("log set none retention_age=7d", MISSING, "none", "rollbook log create none"),
    ("apply no-such-file.toml", WRONG, "no-such-file.toml", ""),
    ("apply FOLDER/broken.toml", WRONG, "broken.toml", ""),
    # --- Servers, contexts, tokens -------------------------------------------------------------
    ("log ls --server log://127.0.0.1:1", AWAY, "no log server answers at 127.0.0.1:1", "rollbook dev"),
    ("log ls --server http://127.0.0.1:7400", WRONG, "is an address of HTTP", "write log://HOST:7400"),
    ("log ls --server kafka://127.0.0.1", WRONG, "is no address of log servers", "log://127.0.0.1:7400"),
    ("log ls --server log://", WRONG, "names no server", "log://host:port"),
    ("log ls --server log://127.0.0.1:port", WRONG, "port", ""),
    ("log ls --server log+tls://SERVER", AWAY, "no log server answers", "--server log://"),
    ("log ls --tls-authorities x.pem", WRONG, "would not be used", "log+tls://"),
    ("log ls --token-file FOLDER/none", WRONG, "cannot read the token", ""),
    ("log ls --token-file FOLDER/empty", WRONG, "is empty", "rollbook access token"),
    ("log ls --context none", WRONG, "there is no context none", "rollbook context ls"),
    ("context use none", WRONG, "there is no context none", "rollbook context ls"),
    ("context rm none", WRONG, "there is no context none", "rollbook context ls"),
    ("cluster init", USAGE, "--metadata", "cluster init --help"),
    ("cluster init --metadata nowhere", WRONG, "nowhere", ""),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "empty").write_text("")
    (folder / "broken.toml").write_text("[logs.x\n")
    return folder


@pytest.fixture
def prepared(shell: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    if not (folder / "made").exists():
        shell.run("log", "append", "m", "1", "2", "3", "--create")
        shell.run("log", "create", "exclusive", "--exclusive")
        shell.run("log", "create", "sealed")
        shell.run("log", "seal", "sealed", "--yes")
        shell.run("cursor", "set", "m", "there", 1)
        (folder / "made").write_text("")
    return shell


@pytest.mark.parametrize(
    ("typed", "code", "said", "step"), MISTAKES, ids=[each[0] for each in MISTAKES]
)
def test_a_mistake_is_answered(
    prepared: Shell, server: str, folder: Path, typed: str, code: int, said: str, step: str
) -> None:
    words = (
        typed.replace("FOLDER", str(folder))
        .replace("SERVER", server)
        .replace("PRODUCER65", "p" * 65)
        .split()
    )
    prepared.run(*words, code=code)
    text = prepared.errors
    assert not _INNER.search(text), text
    if typed == "log":  # A group alone shows its help.
        assert "Usage:" in text
        return
    first, *others = text.splitlines()
    assert re.match(r"error: .+( \[[A-Z_]+\])?$", first), text
    assert said in first, text
    assert any(re.match(r"  outcome: .+", line) for line in others), text
    assert step in text.partition("\n")[2], text
    assert len(others) <= 2, text
    if words[0] in ("log", "cursor") and code != USAGE:  # For programs it is one line of JSON.
        prepared.run(*words, "-o", "json", code=code)
        problem = json.loads(prepared.errors)["error"]
        assert problem["outcome"] in ("not_applied", "unknown", "applied")
        assert step in problem["next_step"]


def test_there_are_enough_mistakes() -> None:
    assert len(MISTAKES) >= 80
