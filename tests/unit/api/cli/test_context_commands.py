"""Contexts (named clusters), and the commands that use them."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.unit.api.cli.shell import Shell


@pytest.fixture
def contexts(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The contexts file, which does not exist yet; no other setting names a server."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("ROLLBOOK_SERVER")
    return tmp_path / "rollbook" / "contexts.toml"


@pytest.fixture
def here(shell: Shell, server: str, contexts: Path) -> str:
    """The current context, whose server is running."""
    shell.run("context", "add", "here", "--server", f"log://{server}")
    return "here"


@pytest.fixture
def away(shell: Shell, here: str) -> str:
    """Another context, whose server and token file do not exist."""
    shell.run("context", "add", "away", "--server", "log://127.0.0.1:1", "--token-file", "secret")
    return "away"


@pytest.fixture
def metadata(shell: Shell, tmp_path: Path) -> str:
    """URL of a cluster without bookies."""
    return f"sqlite:///{tmp_path}/metadata.db"


@pytest.fixture
def made(shell: Shell, metadata: str) -> Any:
    """The output of `cluster init` for that cluster."""
    return shell.json("cluster", "init", "--metadata", metadata)


@pytest.fixture
def there(shell: Shell, server: str, here: str, metadata: str, made: Any) -> str:
    """A context with metadata; the current one is `here`."""
    shell.run("context", "add", "there", "--server", f"log://{server}", "--metadata", metadata)
    return "there"


def listed(shell: Shell) -> Any:
    return shell.json("context", "ls")


def test_first_context_is_the_current_one(shell: Shell, here: str, away: str) -> None:
    assert [(each["name"], each["current"]) for each in listed(shell)] == [
        (here, True),
        (away, False),
    ]


def test_contexts_are_listed_as_names_or_with_all_columns(shell: Shell, away: str) -> None:
    assert shell.run("context", "ls", "-o", "name") == "here\naway\n"
    assert "TLS_AUTHORITIES" in shell.run("context", "ls", "-o", "wide").splitlines()[0]


def test_contexts_file_is_readable_by_its_owner_only(contexts: Path, here: str) -> None:
    assert stat.S_IMODE(contexts.stat().st_mode) == 0o600


def test_token_file_is_stored_as_an_absolute_path(shell: Shell, away: str) -> None:
    assert listed(shell)[1]["token_file"] == os.path.abspath("secret")


def test_name_of_a_context_may_have_any_letters(shell: Shell, contexts: Path) -> None:
    shell.run("context", "add", "büro\U0001f9fe", "--server", "log://127.0.0.1:1")
    assert [each["name"] for each in listed(shell)] == ["büro\U0001f9fe"]


def test_context_that_does_not_exist_is_refused(shell: Shell, here: str) -> None:
    shell.run("context", "use", "nowhere", code=2)
    shell.run("log", "ls", "--context", "nowhere", code=2)


def test_without_a_file_no_context_can_be_used(shell: Shell, contexts: Path) -> None:
    shell.run("context", "use", "here", code=2)


def test_commands_ask_the_server_of_the_current_context(shell: Shell, here: str) -> None:
    assert shell.json("cluster", "servers")


def test_typed_server_overrides_the_current_context(shell: Shell, server: str, away: str) -> None:
    """The context's token is not read: its file does not exist."""
    shell.run("context", "use", away)
    assert shell.json("cluster", "servers", "--server", server)


def test_missing_token_file_is_named(shell: Shell, away: str) -> None:
    shell.run("log", "ls", "--context", away, "--timeout", "0.5", code=2)
    assert "secret" in shell.errors


def test_unknown_flag_beside_a_context_is_refused(shell: Shell, away: str) -> None:
    shell.run("cursor", "set", "x", "y", "--no-such-flag", code=2)


def test_context_and_server_exclude_each_other(shell: Shell, server: str, here: str) -> None:
    shell.run("log", "ls", "--context", here, "--server", server, code=2)


def test_context_and_metadata_exclude_each_other(shell: Shell, there: str, metadata: str) -> None:
    shell.run("cluster", "info", "--context", there, "--metadata", metadata, code=2)
    assert "either --context or --metadata" in shell.errors


def test_context_without_metadata_has_no_ledgers(shell: Shell, away: str) -> None:
    shell.run("context", "use", away)
    shell.run("ledger", "ls", code=2)
    assert "the context away names no metadata [BAD_CONFIG]" in shell.errors


def test_metadata_of_a_context_names_its_cluster(shell: Shell, there: str, made: Any) -> None:
    info = shell.json("cluster", "info", "--context", there)
    assert info["instance_id"] == made["instance_id"]
    assert shell.run("ledger", "ls", "--context", there, "-o", "raw") == ""


def test_cluster_of_a_context_without_bookies_is_unavailable(shell: Shell, there: str) -> None:
    assert "unavailable" in shell.run("cluster", "health", "--context", there, code=5)


def test_next_step_names_the_context_that_was_typed(shell: Shell, there: str) -> None:
    shell.run("ledger", "show", 7, "--context", there, code=3)
    assert "try: rollbook ledger ls --context there\n" in shell.errors


def test_typed_context_comes_before_metadata_of_the_environment(
    shell: Shell, there: str, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_METADATA", "sqlite:///nowhere.db")
    info = shell.json("cluster", "info", "--context", there)
    assert info["instance_id"] == made["instance_id"]


def test_context_of_the_environment_comes_before_the_current_one(
    shell: Shell, there: str, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_CONTEXT", there)
    assert shell.json("cluster", "info")["instance_id"] == made["instance_id"]


def test_typed_metadata_comes_before_the_context_of_the_environment(
    shell: Shell, here: str, metadata: str, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_CONTEXT", here)
    info = shell.json("cluster", "info", "--metadata", metadata)
    assert info["instance_id"] == made["instance_id"]


def test_cluster_init_does_not_use_the_context(
    shell: Shell, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLBOOK_CONTEXT", there)
    shell.run("cluster", "init", code=2)


def test_used_context_names_the_cluster_of_commands(shell: Shell, there: str, made: Any) -> None:
    shell.run("context", "use", there)
    assert shell.json("cluster", "info")["instance_id"] == made["instance_id"]


def test_question_before_a_deletion_names_the_cluster(
    shell: Shell, there: str, metadata: str
) -> None:
    shell.run("context", "use", there)
    shell.run("ledger", "rm", 7, code=2)
    assert f"delete ledger 7 of {metadata}," in shell.errors


def test_server_of_the_environment_comes_before_the_current_context(
    shell: Shell, server: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context's metadata is not used, since the server may be of another cluster."""
    shell.run("context", "use", there)
    monkeypatch.setenv("ROLLBOOK_SERVER", server)
    assert shell.json("cluster", "info")["seen_by"] == server
    shell.run("ledger", "ls", code=2)
    assert "Missing option '--metadata'" in shell.errors


def test_removing_the_current_context_leaves_none_current(shell: Shell, away: str) -> None:
    shell.run("context", "use", away)
    shell.run("context", "rm", away)
    assert [(each["name"], each["current"]) for each in listed(shell)] == [("here", False)]


def test_context_with_an_http_server_is_refused(shell: Shell, contexts: Path) -> None:
    shell.run("context", "add", "nowhere", "--server", "http://127.0.0.1:1", code=2)
    assert "log://HOST:7400" in shell.errors


@pytest.mark.parametrize("url", ["nonsense://", "zk://u:hush@h/ledgers", "memory:"])
def test_refused_metadata_of_a_context_shows_no_password(
    shell: Shell, contexts: Path, url: str
) -> None:
    add = ("context", "add", "bad", "--server", "log://[::1]:1", "--metadata", url)
    shell.run(*add, code=2)
    assert "hush" not in shell.errors
    assert not contexts.exists()


@pytest.mark.parametrize("form", ["wide", "json", "ndjson"])
def test_password_of_metadata_is_kept_but_not_listed(
    shell: Shell, contexts: Path, form: str
) -> None:
    metadata = "zk://127.0.0.1:1/ledgers?auth=digest:u:hush"
    shell.run("context", "add", "far", "--server", "log://[::1]:1", "--metadata", metadata)
    assert "hush" in contexts.read_text()
    shown = shell.run("context", "ls", "-o", form)
    assert "zk://127.0.0.1:1/ledgers?" in shown
    assert "hush" not in shown


def test_damaged_contexts_file_is_an_error(shell: Shell, contexts: Path, here: str) -> None:
    contexts.write_text("nonsense")
    shell.run("context", "ls", code=2)
