"""A real bookie process, read and operated over HTTP and by the command line while it takes adds."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rollbook.proto.errors import BookieReadOnly, LedgerFenced, RollbookError
from rollbook.proto.ids import EntryId, LedgerId
from rollbook.proto.ports import Address
from rollbook.proto.wire.add_columns import AddReplies
from rollbook.proto.wire.messages import EntryRead
from tests.support import bookies, processes
from tests.support.bookie_client import KEY, BookieClient, connect
from tests.unit.api.cli.bookie.test_inspection import shown
from tests.unit.api.rest.http_client import DEADLINE_S, Answer, Client

API = "/api/v1/bookie"
TOKEN = "0123456789abcdef-canary"
LEDGERS, ENTRIES = 5, 400
ADDED = LEDGERS * ENTRIES
_ROLLBOOK = (sys.executable, "-m", "rollbook.api.cli.main")
_READY = re.compile(r"ready: bookie bk-1 \(http on (\S+):(\d+)\) on (\S+):(\d+)")


class Process:
    """A process `rollbook server bookie --http` with its log in a file."""

    def __init__(self, folder: Path, children: processes.Family) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.token_file = folder / "token"
        self.token_file.write_text(f"{TOKEN}\n")
        self.token_file.chmod(0o600)
        self._url = f"sqlite://{folder}/metadata.db"
        self._children = children
        self._child: processes.Child
        init = [*_ROLLBOOK, "cluster", "init", "--metadata", self._url]
        subprocess.run(init, check=True, capture_output=True)
        bookies.give_out_ids(self._url)

    async def start(self) -> None:
        line = await self.start_with(
            "--http", "127.0.0.1:0", "--http-token-file", str(self.token_file)
        )
        ready = _READY.match(line)
        assert ready, line
        self.http, self.address = Address(ready[1], int(ready[2])), Address(ready[3], int(ready[4]))
        self.client = Client(self.http, {"authorization": f"Bearer {TOKEN}"})

    async def start_with(self, *flags: str) -> str:
        """Returns its ready line."""
        self._child = self._children.start(
            "sh",
            "-c",
            'exec "$@" 2>> "$0"',
            str(self.log),
            *_ROLLBOOK,
            *bookies.arguments(self.folder, self._url),
            *flags,
            environment={"ROLLBOOK_SPACE_RESERVE_BYTES": "0"},
        )
        return await asyncio.to_thread(self._child.line, bookies.PATIENCE_S)

    def maps(self) -> str:
        """Returns the memory map, which names the loaded libraries."""
        return Path(f"/proc/{self._child.pid}/maps").read_text()

    async def stop(self) -> int:
        self._child.terminate()
        return await asyncio.to_thread(self._child.wait, DEADLINE_S)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    async def run(self, *arguments: str) -> Any:
        """Runs a command of `rollbook bookie` and returns its output."""
        where = ("--http", str(self.http), "--token-file", str(self.token_file))
        return await asyncio.to_thread(shown, *arguments, *where)

    async def samples(self) -> dict[str, float]:
        answer = await self.client.get("/metrics")
        families = text_string_to_metric_families(answer.body.decode())
        return {
            f"{each.name}{each.labels or ''}": each.value
            for family in families
            for each in family.samples
        }


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[Process]:
    with processes.family() as children:
        process = Process(tmp_path, children)
        await process.start()
        yield process


async def write(client: BookieClient) -> None:
    """Writes ledgers 1 to `LEDGERS`, each with `ENTRIES` entries of 1 KB."""
    left, done = ADDED, asyncio.Event()

    def on_adds(replies: AddReplies) -> None:
        nonlocal left
        assert replies.error is None
        left -= len(replies.entry_ids)
        if not left:
            done.set()

    client.on_adds = on_adds
    writers = [client.ledger(number) for number in range(1, LEDGERS + 1)]
    for entry_id in range(ENTRIES):
        client.send(b"".join(each.pack(entry_id, entry_id - 1, bytes(1_000)) for each in writers))
        await client.drain()
    async with asyncio.timeout(DEADLINE_S):
        await done.wait()


async def ended(client: Client, started: Answer) -> dict[str, Any]:
    async with asyncio.timeout(2 * DEADLINE_S):
        while True:
            operation: dict[str, Any] = (await client.get(started.headers["location"])).json
            if operation["state"] != "running":
                return operation
            await asyncio.sleep(0.05)


async def refusal_of(client: BookieClient, add: bytes) -> type[RollbookError] | None:
    """Returns the error of an add, or None if it succeeded."""
    replies: asyncio.Queue[AddReplies] = asyncio.Queue()
    client.on_adds = replies.put_nowait
    client.send(add)
    async with asyncio.timeout(DEADLINE_S):
        return (await replies.get()).error


@dataclass(frozen=True)
class Worked:
    """A bookie that took all entries and one read, fenced ledger 1 and refused an add to it."""

    bookie: Process
    late_add: type[RollbookError] | None  # The error of the add to the fenced ledger.
    samples: dict[str, float]  # Its metrics after that.


async def work(bookie: Process) -> Worked:
    await bookie.start()
    async with await connect(bookie.address) as client:
        await write(client)
        await client.call(EntryRead(LedgerId(2), EntryId(7)))
        await client.call(EntryRead(LedgerId(1), EntryId(0), KEY, fence=True))
        late = client.ledger(1).pack(ENTRIES, ENTRIES - 1, b"late")
        return Worked(bookie, await refusal_of(client, late), await bookie.samples())


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    """Shared by the tests that do not change its ledgers."""
    with processes.family() as children:
        yield asyncio.run(work(Process(tmp_path_factory.mktemp("bookie"), children)))


def test_late_add_to_a_fenced_ledger_is_refused(worked: Worked) -> None:
    assert worked.late_add is LedgerFenced


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("entries_added_total", ADDED),
        ("request_seconds_count{'request': 'add'}", ADDED),
        ("request_seconds_count{'request': 'fence'}", 1),
        ("request_seconds_count{'request': 'read'}", 1),
        ("refusals_total{'reason': 'LEDGER_FENCED'}", 1),
        ("journal_write_entries_sum", ADDED),
        ("ledgers", LEDGERS),
        ("entries", ADDED),
        ("connections", 1),
        ("registered", 1),
    ],
)
def test_metrics_count_requests_exactly(worked: Worked, name: str, count: int) -> None:
    assert worked.samples[f"rollbook_bookie_{name}"] == count


@pytest.mark.parametrize(
    ("name", "above"),
    [
        ("rollbook_bookie_entry_added_bytes_total", ADDED * 1_000),
        ("rollbook_bookie_received_bytes_total", ADDED * 1_000),
        ("rollbook_bookie_sent_bytes_total", 0),
        ("rollbook_bookie_journal_sync_seconds_count", 1),
        ("rollbook_bookie_disk_free_bytes{'directory': 'LEDGERS1'}", 0),
        ("process_resident_memory_bytes", 1_000_000),
    ],
)
def test_bytes_syncs_and_memory_are_measured(worked: Worked, name: str, above: int) -> None:
    assert worked.samples[name.replace("LEDGERS1", f"{worked.bookie.folder}/ledgers1")] > above


async def test_every_documented_page_is_served(worked: Worked) -> None:
    http = worked.bookie.client
    document = (await http.get("/openapi.json")).json
    values = {"ledger_id": "1", "operation_id": "scrub-1"}
    assert (await ended(http, await http.put(f"{API}/scrub")))["state"] == "done"
    for path, operations in document["paths"].items():
        if "get" in operations:
            answer = await http.get(re.sub(r"\{(\w+)\}", lambda found: values[found[1]], path))
            assert answer.status == 200, (path, answer.body)


async def test_info_shows_the_state_and_what_was_added(worked: Worked) -> None:
    status = await worked.bookie.run("info")
    assert (status["state"], status["entries_added"], status["ledgers"]) == (
        "writable",
        ADDED,
        LEDGERS,
    )


async def test_ledgers_are_listed_with_the_fenced_one(worked: Worked) -> None:
    ledgers = await worked.bookie.run("ledgers")
    assert [each["ledger_id"] for each in ledgers] == list(range(1, LEDGERS + 1))
    assert {each["entries"] for each in ledgers} == {ENTRIES}
    assert [each["is_fenced"] for each in ledgers] == [True, False, False, False, False]


async def test_ledger_is_shown_and_verified(worked: Worked) -> None:
    assert (await worked.bookie.run("ledger", "1"))["last_entry"] == ENTRIES - 1
    assert (await worked.bookie.run("ledger", "3", "--verify"))["damaged"] == []


@pytest.mark.parametrize("command", [("gc",), ("compact", "--minor")])
async def test_command_returns_when_its_work_is_done(
    worked: Worked, command: tuple[str, ...]
) -> None:
    assert (await worked.bookie.run(*command))["state"] == "done"


async def test_journal_mark_is_after_all_entries(worked: Worked) -> None:
    assert (await worked.bookie.run("mark"))["active_position"] > ADDED * 1_000


async def test_read_only_bookie_refuses_adds_until_it_is_writable(bookie: Process) -> None:
    async with await connect(bookie.address) as client:
        add = client.ledger(9).pack(0, -1, b"x")
        assert await bookie.run("readonly", "on") == {"readOnly": True}
        assert await refusal_of(client, add) is BookieReadOnly
        assert await bookie.run("readonly", "off") == {"readOnly": False}
        assert await refusal_of(client, add) is None
    samples = await bookie.samples()
    assert samples["rollbook_bookie_refusals_total{'reason': 'BOOKIE_READ_ONLY'}"] == 1


async def test_read_only_bookie_is_ready_and_says_why(worked: Worked) -> None:
    bookie = worked.bookie
    assert await bookie.run("readonly", "on") == {"readOnly": True}
    try:
        assert (await bookie.client.get("/ready")).status == 200
        status = (await bookie.client.get(f"{API}/status")).json
        assert (status["state"], status["why"]) == ("read-only", "an operator made it read-only")
    finally:
        await bookie.run("readonly", "off")


async def test_log_has_the_lifecycle_events_and_no_secrets(bookie: Process) -> None:
    """The bookie also stops in order while connections are open."""
    assert "pydantic_core" in bookie.maps()
    async with await connect(bookie.address) as client:
        await client.call(EntryRead(LedgerId(7), EntryId(0), KEY, fence=True))
    assert (await bookie.client.get(f"{API}/status", authorization="Bearer wrong")).status == 401
    await bookie.run("scrub")
    held = [await asyncio.open_connection(bookie.http.host, bookie.http.port) for _ in range(3)]
    held[1][1].write(b"GET /metrics HTTP/1.1\r\nhost: x\r\n")
    assert await bookie.stop() == 0
    for _, writer in held:
        writer.close()
    events = bookie.events()
    names = [event["event"] for event in events]
    life = ("bookie_started", "bookie_made", "bookie_registered", "bookie_ready", "ledger_fenced")
    told = [name for name in names if name in (*life, "operation_ended", "bookie_stopped")]
    assert told == [*life, "operation_ended", "bookie_stopped"]
    fenced = next(event for event in events if event["event"] == "ledger_fenced")
    assert (fenced["ledger_id"], fenced["level"]) == (7, "info")
    assert "error" not in {event["level"] for event in events}
    assert TOKEN not in bookie.log.read_text()
    assert KEY.hex() not in bookie.log.read_text()

    # A bookie without pages does not load their libraries.
    assert "http" not in await bookie.start_with()
    assert "pydantic_core" not in bookie.maps()
