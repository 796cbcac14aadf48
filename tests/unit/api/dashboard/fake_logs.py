"""A fake of the log client that the pages use. It checks tokens as log servers do."""

from dataclasses import dataclass, field
from typing import Any

from rollbook.api.client.caller_arguments import producer_of_key
from rollbook.api.dashboard.viewer_log_client import LogServers
from rollbook.logservice.position_syntax import AtOffset, parse_position
from rollbook.proto.errors import NoSuchLog, ServerUnreachable, Unauthorized

Facts = dict[str, Any]


def a_record(offset: int, value: bytes = b"one", **more: Any) -> Facts:
    return {
        "offset": offset,
        "timestamp_us": 1_795_219_200_000_000,
        "key": b"k",
        "headers": {"h": b"v"},
        "value": value,
        "bytes": len(value),
        **more,
    }


@dataclass
class FakeLogs(LogServers):
    """`calls` lists the requested changes with the token of each."""

    rows: dict[str, list[Facts]] = field(default_factory=lambda: {"default/orders": [a_record(0)]})
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    refused: tuple[str, ...] = ()  # Tokens without rights on logs.
    appended: dict[str | None, int] = field(default_factory=dict)  # Offsets by idempotency key.
    setting: dict[str, str] = field(
        default_factory=lambda: {
            "section": "log_server",
            "name": "drain_s",
            "value": "10.0",
            "source": "default",
        }
    )
    is_away: bool = False
    asked: int = 0

    def __post_init__(self) -> None:
        async def none() -> list[str]:
            return []

        super().__init__(none)

    def _ask(self, token: str, name: str = "") -> None:
        self.asked += 1
        if self.is_away:
            raise ServerUnreachable("no log server answers")
        if token in self.refused:
            raise Unauthorized("this token may not read it")
        if name and name not in self.rows:
            raise NoSuchLog(log=name)

    async def settings(self, token: str, url: str) -> list[dict[str, str]]:
        self._ask(token)
        return [dict(self.setting)]

    async def logs(self, token: str, prefix: str, after: str) -> tuple[list[Facts], str]:
        self._ask(token)
        return [self._facts(name) for name in self.rows], ""

    def _facts(self, name: str) -> Facts:
        return {
            "log": name,
            "problem": "",
            "head": 0,
            "tail": len(self.rows[name]),
            "is_sealed": False,
            "owner_id": "log-1~0bad",
            "owner": "127.0.0.1:7400",
            "owner_epoch": 1,
            "writer_epoch": 0,
            "writer_holder": "",
            "bytes": 9,
            "records": len(self.rows[name]),
            "roll_due_us": 0,
            "uid": "0",
            "etag": "0",
            "segment_count": 1,
            "config": {"labels": ["a=b"], "quorum": "3/3/2"},
        }

    async def log(self, token: str, name: str) -> Facts:
        self._ask(token, name)
        began_us = 1_795_219_200_000_000
        segment = {
            "segment_id": 0,
            "ledger_id": 7,
            "state": "open",
            "base_offset": 0,
            "next_offset": None,
            "began_us": began_us,
            "last_us": began_us + 1,
            "bytes": 9,
            "records": 1,
            "reason": "it had no owner",
        }
        cursor = {"name": "c", "offset": 0, "lag": 1, "is_protected": True, "updated_us": 0}
        return self._facts(name) | {
            "last_us": began_us,
            "segments": [segment],
            "cursors": [cursor],
        }

    async def records(self, token: str, name: str, start: str) -> Facts:
        self._ask(token, name)
        rows = self.rows[name]
        position = parse_position(start) if start else None
        first = position.offset if isinstance(position, AtOffset) else max(len(rows) - 50, 0)
        some = rows[first : first + 50]
        return {
            "rows": some,
            "first": first,
            "next": first + len(some),
            "head": 0,
            "tail": len(rows),
        }

    async def truncation(self, token: str, name: str, before: str) -> Facts:
        self._ask(token, name)
        return {
            "old_head": 0,
            "new_head": int(before),
            "records": int(before),
            "freed_bytes": 5,
            "kept_bytes": 4,
            "segments": [],
            "guards": ["c"],
        }

    async def server(self, token: str, address: str) -> dict[str, float]:
        self._ask(token)
        return {"rollbook_log_readers": 2.0}

    def _act(self, token: str, *call: Any) -> None:
        self._ask(token)
        self.calls.append((token, *call))

    async def create(self, token: str, name: str) -> bool:
        self._act(token, "create", name)
        self.rows.setdefault(name, [])
        return False

    async def append(
        self, token: str, name: str, value: bytes, key: bytes | None, once: str | None
    ) -> int:
        if once in self.appended:
            return self.appended[once]
        if once is not None:
            producer_of_key(once)  # Raises for an invalid key, as the client does.
            self.appended[once] = len(self.rows[name])
        self._act(token, "append", name, value, key)
        self.rows[name].append(a_record(len(self.rows[name]), value))
        return len(self.rows[name]) - 1

    async def truncate(self, token: str, name: str, before: str) -> Facts:
        self._act(token, "truncate", name, before)
        return await self.truncation(token, name, before)

    async def seal(self, token: str, name: str) -> int:
        self._act(token, "seal", name)
        return len(self.rows[name])

    async def roll(self, token: str, name: str) -> int:
        self._act(token, "roll", name)
        return 1

    async def transfer(self, token: str, name: str, server: str) -> str:
        self._act(token, "transfer", name, server)
        return server

    async def drain(self, token: str, server: str, *, resume: bool) -> int:
        self._act(token, "drain", server, resume)
        return 3
