"""Common mistakes of operators, as a table: a bookie that cannot start ends with an error, a next step and an exit code,
and starts once the cause is removed.

Other tests cover ZooKeeper being down (`test_server_startup`), a certificate for another name (`test_peer_credentials`),
a full disk (`unit/bookie/test_identity`, `deploy --of systemd`) and wrong chart values (`architecture/test_chart`).
"""

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import google_crc32c
import pytest

from tests.support import bookies, commands, processes
from tests.support.processes import Family
from tests.unit.api.cli.server.test_bookie import make_cluster


@dataclass
class Case:
    """A bookie with a mistake in its settings, files or surroundings."""

    folder: Path
    url: str
    children: Family
    stack: ExitStack
    bookie_id: str = "bk-1"
    listen: str = "127.0.0.1:0"
    flags: list[str] = field(default_factory=list)
    left_out: str = ""  # This flag is omitted, with its value.
    environment: dict[str, str] = field(default_factory=dict)
    mend: Callable[[], None] = lambda: None

    @property
    def command(self) -> list[str]:
        words = bookies.arguments(
            self.folder, self.url, bookie_id=self.bookie_id, listen=self.listen
        )
        if self.left_out:
            position = words.index(self.left_out)
            del words[position : position + 2]
        return [*words, "--startup-s", "0", *self.flags]

    def run_once(self) -> None:
        """Start a bookie on these directories and stop it normally."""
        bookie = bookies.start(self.children, self.folder, self.url, bookie_id=self.bookie_id)
        bookie.wait_ready()
        bookie.terminate()
        assert bookie.wait() == 0


def _misspelt(case: Case) -> None:
    case.environment["ROLLBOOK_STORAGE_CHACHE_BYTES"] = "1"
    case.mend = case.environment.clear


def _no_metadata(case: Case) -> None:
    case.left_out = "--metadata"
    case.mend = lambda: setattr(case, "left_out", "")


def _unwritable(case: Case) -> None:
    """Not even root may write to this folder."""
    writable, case.folder = case.folder, Path("/sys/rollbook")
    case.mend = lambda: setattr(case, "folder", writable)


def _volume_of_another(case: Case) -> None:
    case.run_once()
    case.bookie_id = "bk-2"
    case.mend = lambda: setattr(case, "bookie_id", "bk-1")


def _id_of_another(case: Case) -> None:
    """Another bookie with this id keeps running."""
    other = bookies.start(case.children, case.folder / "other", case.url)
    other.wait_ready()

    def mend() -> None:
        assert other.is_running
        case.bookie_id = "bk-2"

    case.mend = mend


def _no_token(case: Case) -> None:
    token = case.folder.parent / "token"
    case.flags = ["--http", "127.0.0.1:0", "--http-token-file", str(token)]

    def mend() -> None:
        token.touch(0o600)
        token.write_text("0123456789abcdef0123456789abcdef\n")

    case.mend = mend


def _no_cluster(case: Case) -> None:
    case.url = f"sqlite://{case.folder.parent}/another.db"
    case.mend = lambda: make_cluster(case.url)


def _port_taken(case: Case) -> None:
    taken = case.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    case.listen = f"127.0.0.1:{taken.getsockname()[1]}"
    case.mend = taken.close


def _newer_files(case: Case) -> None:
    case.run_once()
    before = {path: path.read_bytes() for path in case.folder.rglob("VERSION")}
    assert len(before) == 2
    for path, data in before.items():
        text = data.partition(b"# rollbook crc32c")[0].replace(b"stamp 1\n", b"stamp 2\n")
        path.write_bytes(text + b"# rollbook crc32c %08x\n" % google_crc32c.value(text))

    def mend() -> None:
        for path, data in before.items():
            path.write_bytes(data)

    case.mend = mend


# Name of the mistake: what makes it, exit code, error name, part of the next step.
CASES: Final = {
    "a misspelt setting": (_misspelt, 2, "BAD_CONFIG", "known: alone_after_chunks, cache_bytes"),
    "no metadata URL": (_no_metadata, 2, "BAD_CONFIG", "set --metadata or ROLLBOOK_METADATA"),
    "an unwritable volume": (_unwritable, 6, "E(PERM|ACCES)", "the user who owns that"),
    "the volume of another bookie": (_volume_of_another, 4, "WRONG_BOOKIE", "--bookie-id bk-1"),
    "the id of a bookie that runs": (_id_of_another, 4, "WRONG_BOOKIE", "mount its disks"),
    "a token that cannot be read": (_no_token, 2, "BAD_CONFIG", "openssl rand -hex 32"),
    "no cluster": (_no_cluster, 3, "CLUSTER_NOT_FOUND", "rollbook cluster init --metadata"),
    "a port that is taken": (_port_taken, 2, "BAD_CONFIG", "stop the process that has this port"),
    "files of a later release": (_newer_files, 2, "UNSUPPORTED_VERSION", "run the release"),
}


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    url = f"sqlite://{tmp_path}/metadata.db"
    make_cluster(url)
    with ExitStack() as stack, processes.family() as children:
        yield Case(tmp_path / "b", url, children, stack)


@pytest.mark.parametrize("name", CASES)
def test_failed_start_is_explained_and_can_be_fixed(case: Case, name: str) -> None:
    spoil, code, error_name, next_step = CASES[name]
    spoil(case)
    done = commands.run(*case.command, environment={"NO_COLOR": "1", **case.environment})
    said = done.stderr.decode()
    assert done.returncode == code, said
    assert "Traceback" not in said
    *_, error, outcome, advice = said.splitlines()
    assert re.fullmatch(rf"error: .+ \[{error_name}\]", error), said
    assert outcome.startswith("  outcome: "), said
    assert re.match(rf"  try: .*{re.escape(next_step)}", advice), said

    case.mend()
    started = bookies.start(
        case.children,
        case.folder,
        case.url,
        *case.flags,
        bookie_id=case.bookie_id,
        listen=case.listen,
    )
    started.wait_ready()
