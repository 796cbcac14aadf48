"""A half-written access file changes no rights (AF1), and refusals name what is missing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from rollbook.api.access.core.access_file import digest_of
from rollbook.api.client.sync import SyncClient, connect
from rollbook.proto.errors import NoSuchLog, RollbookError, Unauthorized
from tests.regressions.defects import defect
from tests.support import bookies, commands, processes

_TOKEN: Final = "token-of-a-member-0123456789abcdef"
_GRANTS: Final = (
    f'[principals.member]\ntokens = [{{ sha256 = "{digest_of(_TOKEN)}" }}]\nread = ["*"]\n'
)
_DENIES: Final = 'deny = ["team/secret"]\n'
_SEEN: Final = (
    "A call while the access file was written in place was refused, or granted without its deny."
)


@dataclass(frozen=True)
class _Site:
    access: Path
    address: str
    client: SyncClient

    def error_of(self, log: str) -> type[RollbookError]:
        """There are no logs, so `NoSuchLog` means that access was granted."""
        with pytest.raises(RollbookError) as caught:
            self.client.open(log)
        return type(caught.value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Site]:
    folder = tmp_path_factory.mktemp("access")
    url, access = f"sqlite://{folder}/metadata.db", folder / "access.toml"
    access.write_text(_GRANTS + _DENIES)
    assert commands.run("cluster", "init", "--metadata", url).returncode == 0
    with processes.family() as children:
        child = children.start_module(
            "rollbook.api.cli.main",
            "server",
            "log",
            "--metadata",
            url,
            "--server-name",
            "log-1",
            "--listen",
            "127.0.0.1:0",
            "--log-level",
            "error",
            "--access-file",
            access,
        )
        address = bookies.address_in(child.line(60.0))
        with connect(f"log://{address}", token=_TOKEN) as client:
            yield _Site(access, str(address), client)


@defect("access-file-half-written", _SEEN)
def test_partly_written_file_without_end_mark_keeps_its_denials(site: _Site) -> None:
    """Must run first: a file that once had an end mark must always have one."""
    site.access.write_text(_GRANTS)
    assert site.error_of("team/secret") is Unauthorized
    assert site.error_of("team/other") is NoSuchLog


@pytest.fixture
def fresh(site: _Site) -> _Site:
    site.access.write_text(f"{_GRANTS}{_DENIES}# end\n")
    assert site.error_of("team/other") is NoSuchLog
    assert site.error_of("team/secret") is Unauthorized
    return site


@defect("access-file-empty-for-a-moment", _SEEN)
def test_empty_access_file_keeps_the_earlier_grants(fresh: _Site) -> None:
    fresh.access.write_text("")
    assert fresh.error_of("team/other") is NoSuchLog


@defect("access-file-half-written", _SEEN)
def test_half_written_access_file_keeps_its_denials(fresh: _Site) -> None:
    fresh.access.write_text(_GRANTS)
    assert fresh.error_of("team/secret") is Unauthorized
    assert fresh.error_of("team/other") is NoSuchLog


def _refusal(site: _Site, log: str, token: str, tmp_path: Path, *command: str) -> str:
    """The error that the shell prints for this token."""
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    shown = ("--token-file", str(file)) if token else ()
    server = ("--server", f"log://{site.address}", "--timeout", "5")
    done = commands.run("log", *command, log, *shown, *server)
    assert done.returncode == 6, done.stderr
    return done.stderr.decode()


@defect("wrong-token-answered-as-missing", "A wrong token was answered as if none had been shown.")
def test_wrong_and_missing_tokens_have_different_errors(fresh: _Site, tmp_path: Path) -> None:
    missing = _refusal(fresh, "team/other", "", tmp_path, "show")
    wrong = _refusal(fresh, "team/other", "some-other-token-0123456789", tmp_path, "show")
    assert "no token was shown" in missing
    assert "not known" in wrong
    assert "some-other-token" not in wrong


@defect("missing-right-without-its-name", "A refusal did not say which right was missing.")
def test_refusal_names_the_right_that_is_missing(fresh: _Site, tmp_path: Path) -> None:
    deleting = _refusal(fresh, "team/other", _TOKEN, tmp_path, "rm", "--yes")
    assert "right to admin" in deleting
    assert "member" in deleting
    reading = _refusal(fresh, "team/secret", _TOKEN, tmp_path, "read")
    assert "right to read" in reading or "read or append or admin" in reading
