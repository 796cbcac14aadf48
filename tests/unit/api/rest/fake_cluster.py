"""A fake of the cluster management that HTTP management and the dashboard call."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from rollbook.api.rest.callback_target import parse_target
from rollbook.proto.errors import (
    LifecycleConflict,
    MetadataUnavailable,
    Missing,
    NoSuchLedger,
    NoSuchNode,
    NotConfirmed,
    RollbookError,
)
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.recovery.core.event_derivation import EventFilter, EventKind, EventMemory

Facts = dict[str, Any]


def a_bookie(name: str, **more: Any) -> Facts:
    return {
        "id": name,
        "state": "writable",
        "address": "10.0.0.5:3181",
        "http": None,
        "incarnation": "5f0c",
        "lifecycle": "active",
        "lifecycle_since_ms": None,
        "reason": None,
        "ledgers_at_start": None,
        "ledgers_left": None,
        "allowed": ["draining"],
        **more,
    }


def a_ledger(ledger_id: int, **more: Any) -> Facts:
    return {
        "ledger_id": ledger_id,
        "state": "closed",
        "quorum": "3/3/2",
        "digest": "crc32c",
        "last_entry": 9,
        "length": 1000,
        "fragments": 1,
        "created": "2026-11-20T10:00:00Z",
        "version": 3,
        "has_password": False,
        "custom": {},
        **more,
    }


class FakeCallbacks:
    """Callbacks that deliver nothing."""

    def __init__(self, cluster: "FakeCluster") -> None:
        self._cluster = cluster
        self.rows: dict[str, Facts] = {}
        self._numbers = count()
        self.delivery: Facts = {
            "event": "test@1",
            "kind": "test",
            "attempt": 1,
            "at_ms": 5,
            "took_ms": 7,
            "status": 204,
            "problem": None,
            "outcome": "delivered",
        }
        self._add("https://hooks.example.com/5ec3e7-path", [], None, "boss")

    async def list(self, *, shows_urls: bool) -> Sequence[Facts]:
        self._cluster._ask()
        return [self._shown(each, shows_urls) for each in self.rows]

    async def read(self, callback_id: str, *, shows_urls: bool) -> Facts:
        self._cluster._ask()
        self._require(callback_id)
        return self._shown(callback_id, shows_urls)

    def _require(self, callback_id: str) -> None:
        if callback_id not in self.rows:
            raise Missing(f"there is no callback {callback_id}", next_step="ask for the list")

    def _shown(self, callback_id: str, shows_urls: bool) -> Facts:
        row = self.rows[callback_id]
        return row if shows_urls else row | {"url": f"{parse_target(row['url']).origin}/…"}

    async def create(
        self, url: str, kinds: Sequence[str], bookie: str | None, principal: str
    ) -> Facts:
        parse_target(url)
        self._cluster._act("create-callback", url)
        return self._add(url, kinds, bookie, principal) | {"secret": "5ec3e7-key"}

    def _add(self, url: str, kinds: Sequence[str], bookie: str | None, principal: str) -> Facts:
        row: Facts = {
            "id": f"{next(self._numbers):032x}",
            "url": url,
            "kinds": list(kinds),
            "bookie": bookie,
            "principal": principal,
            "created_ms": 1,
            "waiting": 0,
            "last": self.delivery,
        }
        self.rows[row["id"]] = row
        return row

    async def delete(self, callback_id: str) -> Facts:
        self._require(callback_id)
        self._cluster._act("delete-callback", callback_id)
        return self.rows.pop(callback_id)

    async def test(self, callback_id: str) -> Facts:
        self._require(callback_id)
        self._cluster._act("test-callback", callback_id)
        return self.delivery

    async def deliveries(self, callback_id: str) -> Facts:
        self._cluster._ask()
        self._require(callback_id)
        return {"deliveries": [self.delivery], "waiting": 0}


@dataclass
class FakeCluster:
    """`calls` lists the changes that were requested."""

    rows: list[Facts] = field(default_factory=lambda: [a_bookie("bk-1"), a_bookie("bk-2")])
    ledger_rows: list[Facts] = field(default_factory=lambda: [a_ledger(7)])
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)  # Counts some of the queries.
    begun: dict[str, Facts] = field(default_factory=dict)  # Long operations by ID.
    callbacks: FakeCallbacks = field(init=False)
    memory: EventMemory = field(default_factory=EventMemory)
    pages: dict[str, Any] = field(default_factory=dict)  # The pages of each bookie, by path.
    raises: RollbookError | None = None
    is_away: bool = False
    may_finish: asyncio.Event | None = None  # Lifecycle changes and judgements wait for this event.
    verdict: str = "healthy"
    nodes: dict[str, bytes] = field(
        default_factory=lambda: {"/": b"", "/plain": b'{"password": "seen", "rack": "r1"}'}
    )

    def __post_init__(self) -> None:
        self.callbacks = FakeCallbacks(self)

    def _ask(self) -> None:
        if self.is_away:
            raise MetadataUnavailable(next_step="check that the metadata store is running")

    def _act(self, *call: Any) -> None:
        self._ask()
        if self.raises:
            raise self.raises
        self.calls.append(call)

    async def cluster(self) -> Facts:
        return {
            "instance_id": "2f9f",
            "metadata": "zk://zk1/ledgers",
            "ledgers_root": "/ledgers",
            "own_root": "/rollbook",
            "layout": "hierarchical",
            "release": "1",
            "metadata_reachable": not self.is_away,
        }

    async def health(self) -> Facts:
        self.asked["health"] += 1
        self._ask()
        return {
            "health": self.verdict,
            "bookies": "2 of 2 writable",
            "log_servers": "none",
            "new_logs": "have all their copies",
            "degraded_logs": 0,
            "unopened_logs": 0,
            "lost_segments": 0,
            "members": [
                {"kind": "bookie", "id": each["id"], "state": "writable"} for each in self.rows
            ],
        }

    async def log_servers(self) -> Sequence[Facts]:
        self._ask()
        return [
            {
                "name": "log-1",
                "server_id": "log-1~0bad",
                "address": "127.0.0.1:7400",
                "http": "http://127.0.0.1:7480",
                "state": "serving",
                "release": "1",
                "started_us": 1_795_219_200_000_000,
                "logs_owned": 1,
                "logs_degraded": 0,
                "logs_unopened": 0,
            }
        ]

    async def node(self, path: str) -> Facts:
        self._ask()
        if path not in self.nodes:
            raise NoSuchNode(path=path)
        below = [name.removeprefix(path).strip("/") for name in self.nodes if name != path]
        children = sorted({name.partition("/")[0] for name in below if name} if path == "/" else ())
        return {"value": self.nodes[path], "version": 3, "children": children}

    async def bookies(self) -> Sequence[Facts]:
        self._ask()
        return self.rows

    async def bookie(self, name: str) -> Facts:
        self.asked["bookie"] += 1
        self._ask()
        for row in self.rows:
            if row["id"] == name:
                return row
        raise Missing(f"the cluster has no bookie {name}", bookie=name)

    async def set_lifecycle(
        self, name: str, state: LifecycleState, *, force: bool = False
    ) -> Facts:
        row = await self.bookie(name)
        if state.value not in row["allowed"]:
            raise LifecycleConflict("it cannot", state=row["lifecycle"], allowed=row["allowed"])
        if self.may_finish is not None:
            await self.may_finish.wait()
        self._act("lifecycle", name, state.value, force)
        row.update(lifecycle=state.value, allowed=["active"])
        return row

    async def judge_removal(self, names: Sequence[str]) -> Facts:
        self._ask()
        if self.may_finish is not None:
            await self.may_finish.wait()
        return {
            "safe_to_remove": False,
            "bookies": [f"{name} (active, named by 3 ledgers)" for name in names],
            "ledgers_naming_them": 3,
            "below_ack_quorum_without_them": 1,
            "without_a_copy_without_them": 0,
            "ledgers_unreadable": 0,
            "taking_entries": list(names),
        }

    async def remove(self, name: str, given_up: int | None) -> Facts:
        await self.bookie(name)
        if given_up != 1:
            raise NotConfirmed("3 ledgers name it; without it 1 falls below its ack quorum")
        self._act("remove", name, given_up)
        return await self.judge_removal([name])

    async def ledgers(
        self,
        after: int,
        limit: int,
        *,
        state: str | None = None,
        bookie: str | None = None,
        short: bool | None = None,
    ) -> tuple[Sequence[Facts], int | None]:
        self._ask()
        found = [row for row in self.ledger_rows if row["ledger_id"] > after]
        found = [row for row in found if state in (None, row["state"])]
        last = found[limit - 1]["ledger_id"] if len(found) > limit else None
        return found[:limit], last

    async def ledger_as_bookkeeper(self, ledger_id: int) -> Facts:
        await self.ledger(ledger_id)
        numbers = ("metadata_format_version", "ensemble_size", "write_quorum_size")
        more = ("ack_quorum_size", "length", "last_entry_id", "ctime", "ctoken")
        return dict.fromkeys((*numbers, *more), 3) | {
            "ledger_id": ledger_id,
            "state": "CLOSED",
            "digest_type": "CRC32C",
            "password": "",
            "custom_metadata": {},
            "closed": True,
            "all_ensembles": {"0": [{"id": "bk-1"}]},
        }

    async def ledger(self, ledger_id: int) -> Facts:
        self._ask()
        for row in self.ledger_rows:
            if row["ledger_id"] == ledger_id:
                places = {"first_entry": 0, "last_entry": 9, "ensemble": ["bk-1", "bk-2"]}
                return row | {
                    "fragments": [places | {"places": ["writable", "down"]}],
                    "short": True,
                    "missing": ["bk-2"],
                    "short_since_ms": 1_795_219_200_000,
                    "repair_problem": None,
                    "lost": [],
                }
        raise NoSuchLedger(ledger_id=ledger_id)

    async def bad_ledgers(self, after: int, limit: int) -> tuple[Sequence[Facts], int | None]:
        self._ask()
        row = {
            "ledger_id": 7,
            "kind": "bad copy",
            "said_by": "auditor",
            "bookies": "bk-2",
            "first_entry": 3,
            "last_entry": 4,
            "since_ms": None,
        }
        return [row] if after < 7 else [], None

    async def space(self) -> dict[str, tuple[int, int]]:
        self._ask()
        return {"bk-1": (999, 1_234_567), "bk-2": (1_000, 5 * 10**15)}

    async def entries(self, ledger_id: int, first: int, last: int | None) -> dict[int, bytes]:
        await self.ledger(ledger_id)
        self._act("entries", ledger_id, first, last)
        return {first: b"one\xff"}

    async def delete_ledger(self, ledger_id: int, *, force: bool) -> Facts:
        await self.ledger(ledger_id)
        self._act("delete", ledger_id, force)
        return {"ledger_id": ledger_id, "state": "deleted"}

    async def cookies(self) -> Sequence[Facts]:
        self._ask()
        return [await self.cookie("bk-1")]

    async def cookie(self, name: str) -> Facts:
        await self.bookie(name)
        return {"bookie": name, "text": "5\n", "version": 0}

    async def put_cookie(self, name: str, text: str, version: int | None) -> Facts:
        self._act("put cookie", name, text, version)
        return {"bookie": name, "text": text, "version": 1}

    async def delete_cookie(self, name: str) -> Facts:
        found = await self.cookie(name)
        self._act("delete cookie", name)
        return found

    async def generate_cookie(self, name: str, directories: Mapping[str, Sequence[str]]) -> Facts:
        return {"bookie": name, "text": f"5\n{sorted(directories)}", "version": None}

    async def ask_pages(
        self, name: str, method: str, path: str, body: Mapping[str, Any] | None
    ) -> Any:
        await self.bookie(name)
        self._act("pages", name, method, path, body)
        return self.pages.get(path, {"readOnly": True})

    async def operations(self, after: str, limit: int) -> tuple[Sequence[Facts], str | None]:
        self._ask()
        return list(reversed(self.begun.values())), None

    async def operation(self, operation_id: str) -> Facts:
        self._ask()
        if operation_id in self.begun:
            return self.begun[operation_id]
        raise Missing("there is no such operation", operation=operation_id)

    async def begin(
        self, kind: str, about: Mapping[str, Any], principal: str, key: str | None
    ) -> Facts:
        self._act(kind, dict(about), principal, key)
        operation_id = f"{len(self.begun):032x}"
        self.begun[operation_id] = {
            "id": operation_id,
            "kind": kind,
            "about": dict(about),
            "principal": principal,
            "state": "running",
            "created_ms": 1,
            "started_ms": 2,
            "ended_ms": None,
            "done": 1,
            "total": 2,
            "eta_s": 3,
            "cancel_asked": False,
            "result": None,
            "problem": None,
        }
        return self.begun[operation_id]

    async def cancel(self, operation_id: str) -> Facts:
        found = await self.operation(operation_id)
        self._act("cancel", operation_id)
        self.begun[operation_id] = {**found, "cancel_asked": True}
        return self.begun[operation_id]

    async def events(
        self, wanted: Mapping[str, str], after: str, limit: int
    ) -> tuple[list[Facts], str | None]:
        self._ask()
        which = EventFilter(
            EventKind(wanted["kind"]) if "kind" in wanted else None,
            wanted.get("bookie"),
            wanted.get("log"),
        )
        page = self.memory.page(which, after, limit)
        if page is None:
            raise Missing("this server does not know that event", next_step="ask without `after`")
        return [each.facts() for each in page[0]], page[1]

    async def recovery(self) -> Facts:
        self._ask()
        return {
            "autorecovery": "enabled",
            "auditor": "recovery-1",
            "steward": "recovery-1",
            "delay_s": 300,
            "bytes_per_s": "unlimited",
            "ledgers_marked": 1,
            "ledgers_to_drain": 0,
            "ledgers_locked": 0,
            "repairs_failed": 0,
            "ledgers_unrecoverable": 0,
            "bookies_missing": "",
            "bookies_leaving": "",
            "processes": [
                {"process": each, "part": "worker", "state": "running"}
                for each in ("recovery-1", "elsewhere")
            ],
            "tasks": [
                {
                    "ledger_id": 7,
                    "task": "repair",
                    "bookies": ["bk-2"],
                    "since": None,
                    "locked_by": None,
                    "attempts": 0,
                    "next_try": None,
                    "message": None,
                }
            ],
        }

    async def audit(self, *, anyway: bool) -> Facts:
        self._act("audit", anyway)
        return {"auditor": "recovery-1", "bookies_missing": "", "approved": anyway}

    async def set_switch(self, *, enabled: bool) -> None:
        self._act("switch", enabled)

    async def set_delay(self, seconds: int) -> Facts:
        self._act("delay", seconds)
        return {"delay_s": seconds}

    async def set_rate(self, bytes_per_s: int) -> Facts:
        self._act("rate", bytes_per_s)
        return {"bytes_per_s": bytes_per_s or "unlimited"}
