"""Recovery repairs bad copies and heals bookies in doubt without an operator.

Uses real processes.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollbook.ledger.open_client import connect
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.wire.digest import DigestType, Entry, LedgerDigest, ledger_key
from rollbook.recovery.recovery_adds import Restorer
from tests.regressions.defects import defect
from tests.support import bookies, processes
from tests.support.ledger_cluster import ProcessCluster
from tests.support.processes import Family

PATIENCE_S = 60.0
HURT = BookieId("bk-9")  # A fourth bookie, added to the three of a `ProcessCluster`.
MAIN = (sys.executable, "-m", "rollbook.api.cli.main")
QUICK = {
    "ROLLBOOK_AUDIT_LEDGERS_CHECK_PERCENT": "100",
    "ROLLBOOK_HEAL_GRACE_S": "0",
    "ROLLBOOK_HEAL_LOOK_AGAIN_S": "0.2",
}


@dataclass
class Site:
    children: Family
    folder: Path
    url: str
    token_file: Path
    hurt: bookies.RunningBookie
    has_recovery: bool = False

    def start_recovery(self) -> None:
        if self.has_recovery:
            return
        flags = ("--metadata", self.url, "--bookie-token-file", str(self.token_file))
        server = self.children.start(*MAIN, "server", "recovery", *flags, environment=QUICK)
        assert "auditor and worker" in server.line(PATIENCE_S)
        self.has_recovery = True

    def start_hurt(self) -> None:
        self.hurt = _start_hurt(self.children, self.folder, self.url, self.token_file)

    def run(self, *words: str) -> str:
        command = [*MAIN, *words, "--metadata", self.url]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> Any:
        return json.loads(self.run("recovery", "status", "-o", "json"))


def _start_hurt(
    children: Family, folder: Path, url: str, token_file: Path
) -> bookies.RunningBookie:
    bookie = bookies.start(
        children,
        folder / HURT,
        url,
        "--log-level",
        "error",
        "--http",
        "127.0.0.1:0",
        "--http-token-file",
        str(token_file),
        bookie_id=HURT,
    )
    bookie.wait_ready(PATIENCE_S)
    return bookie


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("by-itself")
    token_file = folder / "token"
    token_file.write_text("a-token-of-the-admin-pages\n")
    token_file.chmod(0o600)
    with processes.family() as children:
        url = ProcessCluster(children, folder).url
        hurt = _start_hurt(children, folder, url, token_file)
        yield Site(children, folder, url, token_file, hurt)


async def write_on_hurt(url: str, count: int) -> LedgerId:
    async with connect(url) as ledgers:
        await ledgers.until_writable(4, PATIENCE_S)
        while True:
            async with await ledgers.create(ensemble=2, write=2, ack=2) as writer:
                if writer.metadata.names(HURT):
                    writer.append_many([b"%0100d" % number for number in range(count)])
                    await writer.flush()
                    return writer.ledger_id


async def spoil(url: str, ledger_id: LedgerId, entry_id: int) -> None:
    """Writes bytes to the bookie that fail the writer's digest, which the bookie cannot check."""
    async with connect(url) as ledgers:
        wrong = LedgerDigest(DigestType.CRC32, b"", ledger_id)
        restorer = Restorer(HURT, wrong, ledger_key(b""), ledgers.bookies, ledgers.config)
        await restorer.put([Entry(ledger_id, EntryId(entry_id), EntryId(0), 100, b"x" * 100)], 0)
        await restorer.flush()
        restorer.close()
        assert not (await ledgers.verify(ledger_id)).is_sound


async def until_sound(url: str, ledger_id: LedgerId) -> None:
    async with asyncio.timeout(PATIENCE_S), connect(url) as ledgers:
        while not (await ledgers.verify(ledger_id)).is_sound:
            await asyncio.sleep(0.1)


async def until_trusted(url: str) -> None:
    """Waits until writers may use the bookie again."""
    async with asyncio.timeout(PATIENCE_S), connect(url) as ledgers:
        while HURT not in ledgers.live().writable:
            await asyncio.sleep(0.1)


@defect(
    "bad-copies-were-never-found", "A copy with bad bytes was not repaired until somebody read it."
)
def test_copy_with_bad_bytes_is_found_and_rewritten(site: Site) -> None:
    site.start_recovery()
    ledger_id = asyncio.run(write_on_hurt(site.url, 40))
    asyncio.run(spoil(site.url, ledger_id, 17))
    site.run("recovery", "audit")
    asyncio.run(until_sound(site.url, ledger_id))
    while not all(site.status()[f"checked_{kind}"] for kind in ("bookies", "copies", "ledgers")):
        pass


@defect(
    "bookies-in-doubt-waited-for-a-person",
    "A bookie that had lost its journal answered UNKNOWN until somebody ran recovery heal.",
)
def test_bookie_that_lost_its_journal_is_healed_automatically(site: Site) -> None:
    site.start_recovery()
    ledger_id = asyncio.run(write_on_hurt(site.url, 40))
    site.hurt.kill()
    for path in (site.folder / HURT / "journal").glob("*.journal"):
        path.unlink()
    home = site.folder / HURT
    directories = ("--journal-dir", str(home / "journal"), "--ledger-dir", str(home / "ledgers1"))
    site.run("bookie", "write-off", "--bookie-id", HURT, "--yes", *directories)
    site.start_hurt()
    asyncio.run(until_trusted(site.url))
    asyncio.run(until_sound(site.url, ledger_id))
