"""A bookie's admin interface without a bookie, for tests of its HTTP pages."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rollbook.api.rest.operation_registry import Facts
from rollbook.bookie.stats import Stats
from rollbook.proto.errors import BookieReadOnly, NoSuchLedger, Superseded

SUMMARY = {
    "ledger_id": 7,
    "entries": 10,
    "first_entry": 0,
    "last_entry": 9,
    "entry_bytes": 1_000,
    "last_add_confirmed": 8,
    "is_fenced": True,
    "is_deleted": False,
    "is_doubtful": False,
}


class FakeAdmin:
    def __init__(self) -> None:
        self.stats = Stats()
        self.failed_with: str | None = None
        self.not_ready: str | None = None
        self.is_read_only = False
        self.disk_is_full = False
        self.suspensions = {"is_major_gc_suspended": False, "is_minor_gc_suspended": False}
        self.scrub_is_suspended = False
        self.is_damaged = False
        self.done: list[str] = []
        self.may_finish = asyncio.Event()
        self.raises: Exception | None = None

    def status(self) -> Facts:
        return {
            "bookie_id": "bk-1",
            "address": "127.0.0.1:3181",
            "version": "1",
            "incarnation": "c0ffee",
            "instance_id": "i",
            "state": "writable",
            "uptime_s": 1.5,
            "ledgers": 1,
            "entries": 10,
            "doubtful_ledgers": 0,
            "doubts_everything": False,
            "entry_logs": 0,
            "entry_log_bytes": 0,
            "journal_files_waiting": 0,
            "journal_queue_bytes": 0,
            "connections": 0,
            "entries_added": 0,
            "latencies_ms": {},
            "refusals": {},
            "cache_hit_ratio": None,
        }

    def settings(self) -> Facts:
        return {"storage": {"journal_dir": "/journal"}}

    def shown_settings(self) -> Sequence[Mapping[str, str]]:
        return [
            {
                "section": "storage",
                "name": "journal_dir",
                "value": "/journal",
                "source": "--journal-dir",
            }
        ]

    def state(self) -> Facts:
        return {
            "running": self.failed_with is None,
            "read_only": self.is_read_only,
            "shutting_down": False,
            "available_for_high_priority_writes": True,
        }

    def failure(self) -> str | None:
        return self.failed_with

    def why_not_ready(self) -> str | None:
        return self.not_ready

    async def set_read_only(self, wanted: bool) -> None:
        if self.disk_is_full and not wanted:
            raise BookieReadOnly("the disk is full", next_step="Make room.")
        self.is_read_only = wanted

    async def space(self) -> Sequence[Facts]:
        disks = (("/journal", "journal", 5), ("/a", "ledger", 1), ("/b", "ledger", 1))
        return [
            {"path": path, "kind": kind, "free_bytes": free, "total_bytes": 100}
            for path, kind, free in disks
        ]

    async def ledger_space(self) -> Facts:
        return {"free_bytes": 1, "total_bytes": 100}

    async def check_sanity(self) -> Facts:
        return {"passed": self.failed_with is None, "read_only": self.is_read_only}

    def mark(self) -> Facts:
        return {
            "journal": 2,
            "first_sequence": 9,
            "active_journal": 3,
            "active_position": 1024,
        }

    async def files(self) -> Mapping[str, list[str]]:
        return {"journal": ["2.journal"], "entrylog": ["1.log"], "index": ["catalog-1.a"]}

    async def ledgers(self, after: int, limit: int) -> Sequence[Facts]:
        known = [{**SUMMARY, "ledger_id": each} for each in (7, 8, 9)]
        return [each for each in known if int(str(each["ledger_id"])) > after][:limit]

    async def ledger(self, ledger_id: int) -> Facts:
        if self.raises:
            raise self.raises
        if ledger_id != 7:
            raise NoSuchLedger(ledger_id=ledger_id)
        place = {"file": "1.log", "first_entry": 0, "last_entry": 9, "entries": 10}
        return {
            **SUMMARY,
            "has_key": True,
            "explicit_lac": None,
            "places": [{**place, "entry_bytes": 1_000}],
            "doubts": [{"first_entry": 3, "last_entry": 4}],
        }

    def garbage(self) -> Facts:
        return {
            "force_compacting": False,
            "major_compacting": False,
            "minor_compacting": False,
            "last_major_compaction_time": 0,
            "last_minor_compaction_time": 5,
            "major_compaction_counter": 0,
            "minor_compaction_counter": 1,
        }

    def garbage_state(self) -> Facts:
        return {"garbage": {"deleted": 3}, "compaction": {"failures": 0}}

    async def collect_garbage(self, *, force: bool) -> Facts:
        return await self._do("gc --force" if force else "gc", {"ledgers": 3})

    async def compact(self, *, major: bool) -> Facts:
        return await self._do("major" if major else "minor", {"logs": 1})

    async def _do(self, what: str, result: dict[str, Any]) -> Facts:
        self.done.append(what)
        await self.may_finish.wait()
        if self.raises:
            raise self.raises
        return result

    def suspended(self) -> Facts:
        return self.suspensions

    def suspend_compaction(self, *, major: bool, minor: bool) -> None:
        self._suspend(True, major, minor)

    def resume_compaction(self, *, major: bool, minor: bool) -> None:
        self._suspend(False, major, minor)

    def _suspend(self, wanted: bool, major: bool, minor: bool) -> None:
        if major:
            self.suspensions["is_major_gc_suspended"] = wanted
        if minor:
            self.suspensions["is_minor_gc_suspended"] = wanted

    def scrub_state(self) -> Facts:
        return {"runs": 2, "is_suspended": self.scrub_is_suspended}

    def suspend_scrub(self) -> None:
        self.scrub_is_suspended = True

    def resume_scrub(self) -> None:
        self.scrub_is_suspended = False

    def doubts(self, after: int, limit: int) -> Facts:
        whole = [{"first_entry": -1, "last_entry": 2**63 - 1}]
        found = [{"ledger_id": 7, "ranges": whole}] if after < 7 else []
        return {
            "bookie_id": "bk-1",
            "instance_id": "i",
            "stamp": "1-1",
            "everything": False,
            "ledgers": found,
            "next_after": 7 if len(found) == limit else None,
        }

    async def settle_doubts(
        self, stamp: str, ledger_id: int, ranges: Sequence[tuple[int, int]]
    ) -> None:
        if stamp != "1-1":
            raise Superseded("more came into doubt in the meantime", next_step="look again")
        self.done.append(f"settle {ledger_id} {list(ranges)}")

    async def settle_everything(self, stamp: str) -> None:
        self.done.append(f"settle everything {stamp}")

    async def verify_ledger(self, ledger_id: int) -> Facts:
        if ledger_id != 7:
            raise NoSuchLedger(ledger_id=ledger_id)
        damaged = [[3, 4]] if self.is_damaged else []
        return await self._do("verify", {"ledger_id": ledger_id, "damaged": damaged})

    async def scrub(self) -> Facts:
        return await self._do("scrub", {"bytes": 100})
