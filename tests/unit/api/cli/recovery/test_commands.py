"""The `rollbook recovery` commands against three bookie processes."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook.api.cli.recovery.heal_bookie import accepted_of, summary
from rollbook.ledger.open_client import connect
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.ids import BookieId, LedgerId
from rollbook.recovery.core.entry_spans import WHOLE, EntrySpan
from rollbook.recovery.ledger_loss_healer import HealingOutcome, LedgerHealing
from rollbook.recovery.possible_loss_healer import Healing
from tests.support import bookies, commands, processes

PATIENCE_S = 120.0
TOKEN = "0123456789abcdef-canary"
NAMES = ("bk-1", "bk-2", "bk-3")
HURT = "bk-2"


class Cluster:
    """Three bookie processes with admin pages; the first one serves the metadata."""

    def __init__(self, children: processes.Family, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite://{folder}/metadata.db"
        self.token_file = folder / "token"
        self.token_file.write_text(f"{TOKEN}\n")
        self.token_file.chmod(0o600)
        self._children = children
        self.rollbook("cluster", "init")
        self.running = {name: self.start(name) for name in NAMES}

    def start(self, name: str) -> bookies.RunningBookie:
        bookie = bookies.start(
            self._children,
            self.folder / name,
            self.url,
            "--log-level",
            "error",
            "--http",
            "127.0.0.1:0",
            "--http-token-file",
            str(self.token_file),
            bookie_id=name,
            environment={"ROLLBOOK_STORAGE_JOURNAL_FILE_BYTES": str(8 << 20)},
        )
        bookie.wait_ready()
        return bookie

    def format(self, name: str) -> None:
        self.running[name].terminate()
        assert self.running[name].wait() == 0
        place = bookies.arguments(self.folder / name, self.url, bookie_id=name)[2:]
        self.rollbook("bookie", "format", *place, "--yes")
        self.running[name] = self.start(name)

    def rollbook(self, *arguments: str, code: int = 0) -> str:
        environment = {"NO_COLOR": "1", "ROLLBOOK_METADATA": self.url}
        done = commands.run(*arguments, environment=environment, timeout_s=PATIENCE_S)
        self.errors = done.stderr.decode()
        assert "Traceback" not in self.errors, self.errors
        assert done.returncode == code, self.errors or done.stdout
        return done.stdout.decode()

    def heal(self, *arguments: str, code: int = 0) -> str:
        token = ("--token-file", str(self.token_file))
        return self.rollbook("recovery", "heal", HURT, *token, *arguments, code=code)

    def leave_open(self, count: int, *, write: int = 3, ack: int = 2) -> int:
        """Create a ledger whose writer has died; returns its id."""

        async def leave() -> int:
            async with connect(self.url) as ledgers:
                writer = await ledgers.create(ensemble=3, write=write, ack=ack)
                writer.append_many([b"%0100d" % number for number in range(count)])
                await writer.flush()
                await writer.stop()
                return writer.ledger_id

        return asyncio.run(leave())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with processes.family() as children:
        yield Cluster(children, tmp_path_factory.mktemp("cluster"))


def test_formatted_bookie_is_healed(cluster: Cluster) -> None:
    ledger_id = cluster.leave_open(500)
    cluster.format(HURT)
    rehearsal = cluster.heal("--dry-run")
    assert rehearsal == (
        "bk-2: 1 ledger to look after; at least 0 entries to bring back, 1 ledger to be closed "
        "first. Nothing was done.\n"
    )
    told: dict[str, Any] = json.loads(cluster.heal("-o", "json"))
    assert told["ledgers"]["healed"] == 1
    assert (told["closed"], told["remarkable"], told["doubts_everything"]) == (1, [], False)
    cluster.rollbook("ledger", "verify", str(ledger_id))
    assert cluster.heal() == "bk-2 is in no doubt about anything.\n"


def test_entries_without_a_copy_are_given_up_by_ledger_id(cluster: Cluster) -> None:
    ledger_id = cluster.leave_open(90, write=1, ack=1)
    cluster.format(HURT)
    table = cluster.heal(code=5)
    assert f"--accept-loss {ledger_id}" in table
    assert "bk-2: ENTRY_STATE_UNKNOWN" in table
    assert table.endswith(
        "bk-2 stays in doubt: 1 ledger cannot be healed now; 0 entries brought back.\n"
    )
    cluster.rollbook("ledger", "recover", str(ledger_id), code=5)
    told = json.loads(cluster.heal("--accept-loss", str(ledger_id), "-o", "json"))
    (row,) = told["remarkable"]
    assert row["ledger_id"] == ledger_id
    assert row["given_up"]
    assert cluster.heal() == "bk-2 is in no doubt about anything.\n"
    cluster.rollbook("ledger", "recover", str(ledger_id))


def test_heal_errors_have_an_exit_code_and_a_reason(cluster: Cluster) -> None:
    cluster.rollbook("recovery", "heal", "bk-9", code=5)
    assert "it is not registered" in cluster.errors
    cluster.rollbook("recovery", "heal", HURT, code=6)
    assert "UNAUTHORIZED" in cluster.errors
    cluster.heal("--accept-loss", "all", code=2)
    assert "write LEDGER or LEDGER:FIRST-LAST" in cluster.errors


def test_accepted_losses_are_parsed_by_ledger() -> None:
    assert accepted_of(()) == {}
    assert accepted_of(("7", "8:0-9", "8:20-20")) == {
        7: [WHOLE],
        8: [EntrySpan(0, 9), EntrySpan(20, 20)],
    }
    for text in ("", "x", "7:", "7:3", "7:9-3", "-1", "9999999999999999999"):
        with pytest.raises(InvalidRequest):
            accepted_of((text,))


def test_heal_summary_counts_healed_lost_and_waiting() -> None:
    healing = Healing(BookieId("bk-2"))
    healing.on_ledger(LedgerHealing(LedgerId(1), entries=1, has_been_closed=True))
    assert summary(healing, dry_run=False) == (
        "bk-2 is whole: 1 ledger healed, 1 entry brought back, 1 ledger closed for it."
    )
    healing.on_ledger(LedgerHealing(LedgerId(2), HealingOutcome.LOST, lost=[EntrySpan(0, 0)]))
    healing.on_ledger(LedgerHealing(LedgerId(3), HealingOutcome.WAITING))
    assert summary(healing, dry_run=False) == (
        "bk-2 stays in doubt: 1 ledger cannot be healed now and 1 ledger with entries that have no "
        "copy anywhere; 1 entry brought back."
    )
