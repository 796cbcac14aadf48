"""Common mistakes: each is answered with one clear sentence, the outcome, a next step and an exit code.

Answers have no traceback and name no internals: a user of `rollbook` knows neither gRPC nor click.
"""

import json
import re
from pathlib import Path
from typing import Final

import pytest

from tests.messages import CLI
from tests.unit.api.cli.shell import Shell

_INNER: Final = re.compile(
    r"traceback|grpc|StatusCode|asyncio|protobuf|KeyError|<class", re.IGNORECASE
)
_TYPED: Final = "rollbook "  # Prefix of titles in the file of messages.
USAGE = WRONG = 2  # Found while parsing; found later.
MISSING, CONFLICT, AWAY = 3, 4, 5

# Typed command, exit code, reason. The sentences are in tests/messages/cli.txt.
MISTAKES: Final = (
    # --- Invalid words and options -------------------------------------------------------------
    ("lgo ls", USAGE, "USAGE"),
    ("log", USAGE, ""),
    ("log creat x", USAGE, "USAGE"),
    ("log create", USAGE, "USAGE"),
    ("log create a b", USAGE, "USAGE"),
    ("log read m --form 3", USAGE, "USAGE"),
    ("log read m --limit", USAGE, "USAGE"),
    ("log read m --limit 0", USAGE, "USAGE"),
    ("log read m --limit ten", USAGE, "USAGE"),
    ("log read m -o xml", USAGE, "USAGE"),
    ("log read m --to -1", USAGE, "USAGE"),
    ("log tail m -n -1", USAGE, "USAGE"),
    ("log tail m -n 3 --from 2", USAGE, "USAGE"),
    ("log rm m --now --grace 1d --yes", USAGE, "USAGE"),
    ("log read m -f %v --frame nul", USAGE, "USAGE"),
    ("log append m x --format csv", USAGE, "USAGE"),
    ("log append m x --header a=1 --header a=2", WRONG, "INVALID"),
    ("log append m x --expect -1", USAGE, "USAGE"),
    ("log truncate m", USAGE, "USAGE"),
    ("cursor set m c", USAGE, "USAGE"),
    ("log ls --timeout 0", USAGE, "USAGE"),
    # --- Names, positions, numbers, times ------------------------------------------------------
    ("log create Orders", WRONG, "INVALID"),
    ("log create a/b/c", WRONG, "INVALID"),
    ("log create x --retention-age week", WRONG, "INVALID"),
    ("log create x --retention-bytes many", WRONG, "INVALID"),
    ("log create x --label team", WRONG, "INVALID"),
    ("log create x --copies 2 --acks 3", WRONG, "INVALID"),
    ("log create x --copies 99", AWAY, "QUORUM_UNAVAILABLE"),
    ("log read m --from yesterday", WRONG, "INVALID"),
    ("log read m --from ts:noon", WRONG, "INVALID"),
    ("log read m --from ts:2026-01-31T10:00:00", WRONG, "INVALID"),
    ("log read m --from cursor:none", MISSING, "CURSOR_NOT_FOUND"),
    ("log read m --from 99", MISSING, "BEYOND_TAIL"),
    ("log read m -f %q", WRONG, "INVALID"),
    ("log append m x --header plain", WRONG, "INVALID"),
    ("log append m x --header =x", WRONG, "INVALID"),
    ("log append m x --header \u00e9=x", WRONG, "INVALID"),
    ("log append m x --event-time noon", WRONG, "INVALID"),
    ("log append m --format ndjson --key k", WRONG, "INVALID"),
    ("log append m x --producer PRODUCER65", WRONG, "INVALID"),
    # --- States --------------------------------------------------------------------------------
    ("log read none", MISSING, "LOG_NOT_FOUND"),
    ("log tail none", MISSING, "LOG_NOT_FOUND"),
    ("log append none x", MISSING, "LOG_NOT_FOUND"),
    ("log show none", MISSING, "LOG_NOT_FOUND"),
    ("log truncate none --before 1 --yes", MISSING, "LOG_NOT_FOUND"),
    ("log rm none --yes", MISSING, "LOG_NOT_FOUND"),
    ("log rm m", USAGE, "NOT_CONFIRMED"),
    ("log seal m", USAGE, "NOT_CONFIRMED"),
    ("log truncate m --before 1", USAGE, "NOT_CONFIRMED"),
    ("log append m x --expect 99", CONFLICT, "OFFSET_MISMATCH"),
    ("log append m x --holder me", WRONG, "INVALID"),
    ("log append exclusive x", WRONG, "WRITER_REQUIRED"),
    ("log append sealed x", CONFLICT, "SEALED"),
    ("log create m --copies 1 --acks 1 --exclusive", CONFLICT, "LOG_EXISTS"),
    ("log transfer m nowhere", MISSING, "SERVER_NOT_FOUND"),
    ("cursor show m none", MISSING, "CURSOR_NOT_FOUND"),
    ("cursor rm m none --yes", MISSING, "CURSOR_NOT_FOUND"),
    ("cursor set m there 0", CONFLICT, "CURSOR_AHEAD"),
    ("cursor set m there 99", MISSING, "BEYOND_TAIL"),
    ("cursor set m there 1 --version 99", CONFLICT, "CONFLICT"),
    ("log export none FOLDER/none.rbx", MISSING, "LOG_NOT_FOUND"),
    ("log export m FOLDER/broken.toml", WRONG, "INVALID"),
    ("log export m /dev/null", WRONG, "INVALID"),
    ("log import m FOLDER/none.rbx", WRONG, "INVALID"),
    ("log import m FOLDER/broken.toml", WRONG, "INVALID"),
    ("log import m FOLDER/empty", WRONG, "INVALID"),
    # --- Settings ------------------------------------------------------------------------------
    ("log set m", USAGE, "USAGE"),
    ("log set m retention_age", WRONG, "INVALID"),
    ("log set m retention=7d", WRONG, "BAD_CONFIG"),
    ("log set m retention_age=soon", WRONG, "INVALID"),
    ("log set m copies=three", WRONG, "BAD_CONFIG"),
    ("log set m exclusive=maybe", WRONG, "BAD_CONFIG"),
    ("log set m labels=team", WRONG, "INVALID"),
    ("log set m labels=a=1,a=2", WRONG, "INVALID"),
    ("log set m retention_age=1s", USAGE, "NOT_CONFIRMED"),
    ("log set none retention_age=7d", MISSING, "LOG_NOT_FOUND"),
    ("apply no-such-file.toml", WRONG, "BAD_CONFIG"),
    ("apply FOLDER/broken.toml", WRONG, "BAD_CONFIG"),
    # --- Servers, contexts, tokens -------------------------------------------------------------
    ("log ls --server log://127.0.0.1:1", AWAY, "SERVER_UNREACHABLE"),
    ("log ls --server http://127.0.0.1:7400", WRONG, "BAD_CONFIG"),
    ("log ls --server kafka://127.0.0.1", WRONG, "BAD_CONFIG"),
    ("log ls --server log://", WRONG, "BAD_CONFIG"),
    ("log ls --server log://127.0.0.1:port", WRONG, "BAD_CONFIG"),
    ("log ls --server log+tls://SERVER", AWAY, "SERVER_UNREACHABLE"),
    ("log ls --tls-authorities x.pem", WRONG, "BAD_CONFIG"),
    ("log ls --token-file FOLDER/none", WRONG, "BAD_CONFIG"),
    ("log ls --token-file FOLDER/empty", WRONG, "BAD_CONFIG"),
    ("log ls --context none", WRONG, "BAD_CONFIG"),
    ("context use none", WRONG, "BAD_CONFIG"),
    ("context rm none", WRONG, "BAD_CONFIG"),
    ("cluster init", USAGE, "USAGE"),
    ("cluster init --metadata nowhere", WRONG, "BAD_CONFIG"),
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


@pytest.mark.parametrize(("typed", "code", "reason"), MISTAKES, ids=[each[0] for each in MISTAKES])
def test_mistake_is_answered_with_error_and_outcome(
    prepared: Shell, server: str, folder: Path, typed: str, code: int, reason: str
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
    CLI.check(f"{_TYPED}{typed}", _comparable(text, server, folder))
    first, *others = text.splitlines()
    found = re.fullmatch(r"error: .+?(?: \[([A-Z_]+)\])?", first)
    assert found, text
    assert (found[1] or "") == reason
    assert others[0].startswith("  outcome: ")
    assert all(line.startswith("  try: ") for line in others[1:]), text
    assert len(others) <= 2, text
    if words[0] in ("log", "cursor") and code != USAGE:  # Programs get one line of JSON.
        prepared.run(*words, "-o", "json", code=code)
        problem = json.loads(prepared.errors)["error"]
        assert problem["reason"] == reason
        assert problem["outcome"] in ("not_applied", "unknown", "applied")
        assert bool(problem["next_step"]) == (len(others) == 2)


def _comparable(text: str, server: str, folder: Path) -> str:
    """The text without parts that differ between runs or are written by gRPC or `tomllib`."""
    text = text.replace(str(folder), "FOLDER").replace(server, "SERVER")
    text = re.sub(r"\bversion=\d{6,}", "version=VERSION", text)
    text = re.sub(r"UNKNOWN: .*(?= \[)", "GRPC'S OWN WORDS", text)
    return re.sub(r"(?<=is not TOML: ).*(?= \[)", "TOMLLIB'S OWN WORDS", text)


def test_messages_file_has_no_entry_without_a_mistake() -> None:
    CLI.check_titles(_TYPED, [f"{_TYPED}{typed}" for typed, _, _ in MISTAKES])


def test_there_are_enough_mistakes() -> None:
    assert len(MISTAKES) >= 80
