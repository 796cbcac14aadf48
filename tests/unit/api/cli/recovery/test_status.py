"""`rollbook recovery status` and related commands, on an embedded store that is served."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollbook.api.cli.metadata_option import Metadata
from rollbook.api.cli.recovery.switches import rate
from rollbook.proto.cluster.cluster_root import Cluster, initialise
from rollbook.proto.cluster.cookies import CookieNodes
from rollbook.proto.cluster.election import Election
from rollbook.proto.cluster.uncertain_writes import put_surely
from rollbook.proto.cluster.underreplication_marks import Checked, Marks
from rollbook.proto.errors import InvalidRequest
from rollbook.proto.formats.cookie import Cookie
from rollbook.proto.ids import BookieId, EntryId, LedgerId
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.metastore import open_metadata_store
from rollbook.recovery.core.repair_failures import LostEntries, after_failure
from rollbook.recovery.drain_task_nodes import DrainTasks
from rollbook.recovery.process_status_nodes import PresenceNodes, ProcessStatus
from rollbook.recovery.recovery_orders import AuditOrders, RateOrder
from rollbook.recovery.repair_failure_nodes import Failures
from tests.support import commands

B1, B2 = BookieId("b1:3181"), BookieId("b2:3181")


@dataclass
class Site:
    url: str
    store: MetadataStore
    cluster: Cluster
    marks: Marks

    async def run(self, *words: str, code: int = 0) -> str:
        environment = {"NO_COLOR": "1", "ROLLBOOK_METADATA": self.url}
        done = await asyncio.to_thread(commands.run, "recovery", *words, environment=environment)
        assert done.returncode == code, done.stderr.decode()
        return done.stdout.decode()

    async def json(self, *words: str) -> Any:
        return json.loads(await self.run(*words, "-o", "json"))


@asynccontextmanager
async def site_in(folder: Path) -> AsyncIterator[Site]:
    url = f"sqlite://{folder}/metadata.db"
    async with await open_metadata_store(url, serve=True, create=True) as store:
        cluster = await initialise(store, "/ledgers", random.Random(1))
        marks = Marks(store, cluster.root)
        await marks.prepare()
        yield Site(url, store, cluster, marks)


async def test_recovery_is_paused_and_resumed(tmp_path: Path) -> None:
    """AR10, AR11."""
    async with site_in(tmp_path) as site:
        assert (await site.json("status"))["autorecovery"] == "enabled"
        await site.run("pause")
        assert not await site.marks.is_enabled()
        assert (await site.json("status"))["autorecovery"] == "paused"
        await site.run("resume")
        assert await site.marks.is_enabled()


async def test_the_delay_is_shown_and_set(tmp_path: Path) -> None:
    async with site_in(tmp_path) as site:
        assert await site.json("delay") == {"delay_s": 300}
        assert await site.marks.delay() is None, "showing the delay changes nothing"
        assert await site.run("delay", "60", "-o", "raw") == "60\n"
        assert await site.marks.delay() == (60, 0)


async def test_copy_rate_is_shown_and_set(tmp_path: Path) -> None:
    """AR21: the rate applies to all running workers."""
    async with site_in(tmp_path) as site:
        order = RateOrder(site.store, site.cluster)
        assert await site.json("rate") == {"bytes_per_s": 64 * 1024 * 1024}
        assert await order.read() is None, "showing the rate changes nothing"
        assert await site.run("rate", "1000", "-o", "raw") == "1000\n"
        assert await order.read() == 1000
        for word in ("unlimited", "0"):
            assert await site.json("rate", word) == {"bytes_per_s": "unlimited"}
            assert await order.read() == 0
        await put_surely(site.store, order.path, b"much")
        assert await order.read() is None
        for word in ("1k", "9" * 20, "fast"):
            with pytest.raises(InvalidRequest, match=word):
                rate(Metadata("sqlite:///m", ""), word, "json")


async def test_audit_is_requested_and_losses_approved(tmp_path: Path) -> None:
    """`--anyway` approves the loss of the bookies that are missing now, by name."""
    async with site_in(tmp_path) as site:
        for bookie in (B1, B2):
            await CookieNodes(site.store, "/ledgers").create(Cookie(bookie, ("/j",), ("/d",)))
        asked = await site.json("audit")
        assert asked == {"auditor": None, "bookies_missing": f"{B1}, {B2}", "approved": False}
        assert await site.marks.delay() == (300, 0)
        order = await AuditOrders(site.store, site.cluster).read()
        assert order.approved == frozenset()
        assert order.checks_asked_ms is not None, "all checks are requested"
        await site.run("audit", "--anyway")
        assert await site.marks.delay() == (300, 1)
        assert (await AuditOrders(site.store, site.cluster).read()).approved == {B1, B2}


async def test_pending_repairs_and_drains_are_listed(tmp_path: Path) -> None:
    """BL22, BL32: each ledger is listed with its bookies and the result of its last repair."""
    async with site_in(tmp_path) as site:
        drains, failures = (
            DrainTasks(site.store, site.cluster),
            Failures(site.store, site.cluster),
        )
        await drains.prepare()
        await failures.prepare()
        await site.marks.mark(LedgerId(7), [B1, B2], 1_700_000_000_000)
        await site.marks.mark(LedgerId(8), [B1], 1_700_000_000_000)
        await drains.mark(LedgerId(9), [B2], 1_700_000_000_000)
        loss = LostEntries(EntryId(3), EntryId(5), (B1, B2))
        failure = after_failure(None, 1_700_000_000_000, "DATA_LOST", "no good copy", [loss])
        await failures.write(LedgerId(7), failure)
        assert await site.marks.take(LedgerId(8), "worker-1") is not None
        await site.store.set(site.marks.path(LedgerId(8)), b"\xff")

        rows = await site.json("ls")
        assert [row["ledger_id"] for row in rows] == [7, 8, 9]
        assert rows[0] == {
            "ledger_id": 7,
            "task": "repair",
            "bookies": [B1, B2],
            "since": "2023-11-14T22:13:20Z",
            "locked_by": None,
            "attempts": 1,
            "next_try": "never",
            "code": "DATA_LOST",
            "message": "no good copy",
            "lost": ["3-5"],
        }
        assert "not the text" in rows[1]["message"], "this mark cannot be read"
        assert rows[1]["locked_by"] == "worker-1"
        assert (rows[2]["task"], rows[2]["bookies"]) == ("drain", [B2])
        assert [row["ledger_id"] for row in await site.json("ls", "--failed")] == [7]
        assert await site.run("ls", "-o", "raw", "--limit", "2") == "7\n8\n"
        assert "b1:3181, b2:3181" in await site.run("ls")

        found = await site.json("status")
        assert (found["ledgers_marked"], found["ledgers_to_drain"]) == (2, 1)
        assert (found["repairs_failed"], found["ledgers_unrecoverable"]) == (1, 1)
        assert found["ledgers_locked"] == 1


async def test_status_shows_auditor_and_processes(tmp_path: Path) -> None:
    """AR13: the auditor is read from BookKeeper's election, so a Java auditor is shown, too."""
    async with site_in(tmp_path) as site:
        assert await site.json("auditor") == {"auditor": None, "steward": None}
        folder = site.marks.election_folder
        await Election(site.store, folder, B1, above=site.cluster.root).lead()
        assert await site.json("auditor") == {"auditor": B1, "steward": None}
        await site.marks.set_checked_at(Checked.ALL_LEDGERS, 1_700_000_000_000)
        nodes = PresenceNodes(site.store, site.cluster)
        await nodes.prepare()
        parts = {"worker": {"state": "failed", "restarts": 2, "last_error": "broken"}}
        audit = {
            "is_braked": True,
            "missing": [B2],
            "checks": {"copies": {"is_running": True, "ledgers": 7, "marked": 2}},
        }
        drains = {"doubts": {B1: {"is_running": False, "attempts": 3, "last_error": "away"}}}
        await nodes.write(ProcessStatus("recovery-1", "0.1", 1, parts, audit, drains))
        found = await site.json("status")
        assert (found["auditor"], found["audit_braked"]) == (B1, True)
        assert found["bookies_missing"] == B2
        assert found["checked_ledgers"] == "2023-11-14T22:13:20Z"
        assert [(each["check"], each["ledgers"]) for each in found["checks"]] == [("copies", 7)]
        (doubting,) = found["bookies_in_doubt"]
        assert (doubting["bookie"], doubting["attempts"]) == (B1, 3)
        assert found["processes"] == [
            {"process": "recovery-1", "part": "worker", **parts["worker"]}
        ]
        shown = await site.run("status")
        assert "recovery-1" in shown
        assert "broken" in shown
