"""Reads and changes logs for the pages, with the viewer's own token, so that the viewer's rights apply (DB4).

There is one client for each token. If there are more than 16 clients, the least recently used client is closed.
Calls have a deadline.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from http.client import HTTPException
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from rollbook.api.dashboard.http_fetch import fetch
from rollbook.api.dashboard.server_and_process_screens import settings_of
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName, Offset, SegmentId
from rollbook.logservice.log_config import LogConfig, WriterMode
from rollbook.logservice.position_syntax import AtOffset, BeforeTail, parse_position
from rollbook.proto.errors import QuorumTimeout, ServerUnreachable
from rollbook.proto.quorum import Quorum

if TYPE_CHECKING:
    from rollbook.api.client.async_client import Client
    from rollbook.logservice.core.record_block import Record

Facts = dict[str, Any]

RECORDS_SHOWN: Final = 50
SEGMENTS_SHOWN: Final = 20
LOGS_SHOWN: Final = 100
_VALUE_BYTES: Final = 1000  # The maximum number of bytes shown of a record's key, and of its value.
# A page stops reading when the values of its records have more bytes than this.
_BYTES_READ_MAX: Final = 16 * 1024 * 1024
_CLIENTS_MAX: Final = 16
_TIMEOUT_S: Final = 5.0
_CONNECT_S: Final = 2.0
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class LogTls:
    """How to connect to log servers. Without TLS, a token is sent only to servers on this machine."""

    uses_tls: bool = False
    authorities: str = ""  # A file with CA certificates; empty: the CAs that this machine trusts.
    name: str = ""  # The name in the servers' certificates; empty: each server's host name.


IN_THE_CLEAR: Final = LogTls()


class LogServers:
    def __init__(
        self, addresses: Callable[[], Awaitable[Sequence[str]]], tls: LogTls = IN_THE_CLEAR
    ) -> None:
        """`addresses` returns the addresses of the registered servers."""
        self._addresses = addresses
        self._tls = tls
        # By token; the most recently used client is the last.
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def uses_tls(self) -> bool:
        return self._tls.uses_tls

    async def close(self) -> None:
        clients, self._clients = list(self._clients.values()), OrderedDict()
        await asyncio.gather(*(each.close(timeout_s=0) for each in clients), *self._closing)

    async def _client(self, token: str) -> "Client":
        """Raises `ServerUnreachable`, `BadConfig`."""
        if (found := self._clients.get(token)) is None:
            addresses = await self._addresses()
            if not addresses:
                raise ServerUnreachable(
                    "no log server is registered", next_step="start one: rollbook server log"
                )
            # gRPC takes a while to load, and many users never look at a log.
            await asyncio.to_thread(import_module, "rollbook.api.client.async_client")
            if (found := self._clients.get(token)) is None:
                found = self._clients[token] = self._connected(addresses, token)
        self._clients.move_to_end(token)
        while len(self._clients) > _CLIENTS_MAX:
            self._let_go(next(iter(self._clients)))
        return found

    def _connected(self, addresses: Sequence[str], token: str) -> "Client":
        from rollbook.api.client.async_client import connect
        from rollbook.api.client.config import LogClientConfig

        url = f"log{'+tls' if self._tls.uses_tls else ''}://{','.join(addresses)}"
        config = LogClientConfig(timeout_s=_TIMEOUT_S, connect_s=_CONNECT_S, attempt_s=_CONNECT_S)
        return connect(
            url, config, token=token, authorities=self._tls.authorities, tls_name=self._tls.name
        )

    def _let_go(self, token: str) -> None:
        client = self._clients.pop(token, None)
        if client is not None:
            task = asyncio.create_task(client.close(timeout_s=0))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _use(self, token: str, work: "Callable[[Client], Awaitable[Any]]") -> Any:
        client = await self._client(token)
        try:
            async with asyncio.timeout(_TIMEOUT_S + 1):
                return await work(client)
        except ServerUnreachable:
            # The client's servers may have left the cluster. The next client uses the servers that are registered then.
            self._let_go(token)
            raise
        except TimeoutError:
            raise QuorumTimeout("the log server did not answer in time") from None

    # --- Looking ------------------------------------------------------------------------------

    async def logs(self, token: str, prefix: str, after: str) -> tuple[list[Facts], str]:
        """Rows of logs, and the `after` of the next page; empty: no next page. Raises `InvalidRequest`."""

        async def look(client: "Client") -> tuple[list[Facts], str]:
            from rollbook.api.client.caller_arguments import listed

            namespace, start = listed(prefix, "")
            asked = messages.ListLogs(namespace, start, after, LOGS_SHOWN)
            page: messages.LogNames = await client.ask(asked)
            rows: list[Facts] = []
            for first in range(0, len(page.logs), _AT_ONCE):
                some = page.logs[first : first + _AT_ONCE]
                asks = (client.ask(messages.GetLog(name)) for name in some)
                states = await asyncio.gather(*asks, return_exceptions=True)
                rows += map(_row, some, states)
            return rows, page.next_page

        rows: tuple[list[Facts], str] = await self._use(token, look)
        return rows

    async def log(self, token: str, name: str) -> Facts:
        """The facts about the log, without its records. Raises `NoSuchLog`, `Unauthorized`."""

        async def look(client: "Client") -> Facts:
            log = LogName.parse(name)
            state: messages.LogState = await client.ask(messages.GetLog(log))
            found: tuple[messages.LogTail, messages.Cursors, list[Facts]] = await asyncio.gather(
                client.ask(messages.GetTail(log)),
                client.ask(messages.ListCursors(log, limit=LOGS_SHOWN)),
                _last_segments(client, log),
            )
            tail, cursors, segments = found
            return _facts(state) | {
                "head": tail.head,
                "tail": tail.tail,
                "is_sealed": tail.is_sealed,
                "owner": tail.owner,
                "last_us": tail.timestamp_us,
                "cursors": [
                    {
                        "name": each.name,
                        "offset": each.offset,
                        "lag": max(tail.tail - each.offset, 0),
                        "is_protected": each.is_protected,
                        "updated_us": each.updated_us,
                    }
                    for each in cursors.cursors
                ],
                "segments": segments,
            }

        facts: Facts = await self._use(token, look)
        return facts

    async def records(self, token: str, name: str, start: str) -> Facts:
        """A page of records, oldest first. Empty `start`: the newest records. Raises `InvalidRequest`, `BeyondTail`."""

        position = parse_position(start) if start else BeforeTail(Offset(RECORDS_SHOWN))

        async def look(client: "Client") -> Facts:
            log = await client.open(name)
            tail = await log.state_of_tail()
            match position:
                case AtOffset(offset, "") if offset <= tail.tail:
                    first = offset
                case BeforeTail() if not start:
                    first = Offset(max(tail.tail - RECORDS_SHOWN, 0))
                case _:
                    first = await log.find(position)
            first = min(max(first, tail.head), tail.tail)
            last = min(first + RECORDS_SHOWN, tail.tail)
            rows: list[Facts] = []
            left = _BYTES_READ_MAX
            if first < last:
                async for record in log.read(first, last):
                    rows.append(_record(record))
                    left -= len(record.value)
                    if left < 0:
                        break
            following = rows[-1]["offset"] + 1 if rows else last
            return {
                "rows": rows,
                "first": first,
                "next": following,
                "head": tail.head,
                "tail": tail.tail,
            }

        found: Facts = await self._use(token, look)
        return found

    async def truncation(self, token: str, name: str, before: str) -> Facts:
        """Returns the plan of a truncation; nothing is truncated. Raises `Guarded`, `BeyondTail`, `InvalidRequest`."""
        return await self._truncate(token, name, before, is_plan=True)

    async def settings(self, token: str, url: str) -> list[dict[str, str]]:
        """The settings of the server with the REST API at `url`. Raises `ServerUnreachable`."""
        tls = self._tls
        try:
            text = await asyncio.to_thread(
                fetch, url, "/v1/settings", token, tls.authorities, tls.name
            )
            return settings_of(text)
        except (OSError, HTTPException, ValueError) as error:
            raise ServerUnreachable(f"the server's settings are not known: {error}") from error

    async def server(self, token: str, address: str) -> dict[str, float]:
        """The server's metrics."""

        async def look(client: "Client") -> dict[str, float]:
            return dict((await client.stats(address)).stats)

        found: dict[str, float] = await self._use(token, look)
        return found

    # --- Acting -------------------------------------------------------------------------------

    async def create(self, token: str, name: str) -> bool:
        """Creates the log; returns whether it existed before."""

        async def make(client: "Client") -> bool:
            state: messages.LogState = await client.ask(messages.EnsureLog(LogName.parse(name)))
            return not state.was_created

        was_there: bool = await self._use(token, make)
        return was_there

    async def append(
        self, token: str, name: str, value: bytes, key: bytes | None, once: str | None
    ) -> int:
        """Appends a record; returns its offset. A repeat with the same `once` returns the same offset."""

        async def append(client: "Client") -> int:
            log = await client.open(name)
            return (await log.append(value, key=key, idempotency_key=once)).first_offset

        offset: int = await self._use(token, append)
        return offset

    async def truncate(self, token: str, name: str, before: str) -> Facts:
        return await self._truncate(token, name, before, is_plan=False)

    async def _truncate(self, token: str, name: str, before: str, *, is_plan: bool) -> Facts:
        async def truncate(client: "Client") -> Facts:
            answer = await (await client.open(name)).truncate(before, plan=is_plan)
            names = ("old_head", "new_head", "records", "freed_bytes", "kept_bytes")
            return {each: getattr(answer, each) for each in names} | {
                "segments": list(answer.segments),
                "guards": list(answer.guards),
            }

        facts: Facts = await self._use(token, truncate)
        return facts

    async def seal(self, token: str, name: str) -> int:
        """Seals the log and returns its final tail."""

        async def seal(client: "Client") -> int:
            return await (await client.open(name)).seal()

        tail: int = await self._use(token, seal)
        return tail

    async def roll(self, token: str, name: str) -> int:
        """Rolls the log and returns the new segment."""

        async def roll(client: "Client") -> int:
            return await (await client.open(name)).roll()

        segment: int = await self._use(token, roll)
        return segment

    async def transfer(self, token: str, name: str, server: str) -> str:
        """Transfers the log and returns the new owner's address."""

        async def transfer(client: "Client") -> str:
            return (await client.transfer(name, server)).address

        owner: str = await self._use(token, transfer)
        return owner

    async def drain(self, token: str, server: str, *, resume: bool) -> int:
        """Drains or resumes the server. Returns the number of logs that it still has to hand over."""

        async def drain(client: "Client") -> int:
            return await client.drain(server, resume=resume)

        left: int = await self._use(token, drain)
        return left


async def _last_segments(client: "Client", log: LogName) -> list[Facts]:
    found: list[messages.SegmentView] = []
    start: SegmentId | None = SegmentId(0)
    while start is not None:
        page: messages.Segments = await client.ask(messages.ListSegments(log, start))
        found = [*found, *page.segments][-SEGMENTS_SHOWN:]
        start = page.next_segment
    return [
        {
            "segment_id": each.segment_id,
            "ledger_id": each.ledger_id,
            "state": each.state.value,
            "base_offset": each.base_offset,
            "next_offset": each.next_offset,
            "began_us": each.began_us or each.first_timestamp_us,
            "last_us": each.last_timestamp_us,
            "bytes": each.bytes,
            "records": each.records,
            "reason": each.reason,
        }
        for each in found
    ]


def _row(name: LogName, state: Any) -> Facts:
    """`state`: the log's state, or an error if the log was deleted or this token may not read it."""
    if isinstance(state, BaseException):
        if not isinstance(state, Exception):
            raise state
        return {"log": str(name), "problem": getattr(state, "message", "") or type(state).__name__}
    return _facts(state)


def _facts(state: messages.LogState) -> Facts:
    names = ("head", "tail", "is_sealed", "owner_id", "owner", "owner_epoch", "writer_epoch")
    more = ("writer_holder", "bytes", "records", "roll_due_us", "uid", "etag")
    return {
        "log": str(state.log),
        "problem": "",
        **{each: getattr(state, each) for each in (*names, *more)},
        "segment_count": state.segments,
        "config": {
            each.name: _shown(getattr(state.config, each.name)) for each in fields(LogConfig)
        },
    }


def _shown(value: Any) -> Any:
    if isinstance(value, Quorum):
        return f"{value.ensemble}/{value.write}/{value.ack}"
    if isinstance(value, WriterMode):
        return value.value
    return [f"{name}={text}" for name, text in value] if isinstance(value, tuple) else value


def _record(record: "Record") -> Facts:
    return {
        "offset": record.offset,
        "timestamp_us": record.timestamp_us,
        "key": None if record.key is None else record.key[:_VALUE_BYTES],
        "headers": {
            name[:100]: value[:100] for name, value in list(dict(record.headers or {}).items())[:20]
        },
        "value": record.value[:_VALUE_BYTES],
        "bytes": len(record.value),
    }
