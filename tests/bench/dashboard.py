"""Cost of open dashboard pages: appends beside fifty open overviews, and pages of large clusters.

Appends go through `rollbook dev`, in turns with and without open overviews. Pages come from a
dashboard in this process with a fake cluster, so that only the dashboard's own time is measured.
"""

import asyncio
import gzip
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from starlette.applications import Starlette

import rollbook
from rollbook.api.access.audit import AuditLog
from rollbook.api.access.management_rights import Managing
from rollbook.api.dashboard import parts
from rollbook.api.dashboard.app import Dashboard
from rollbook.api.dashboard.core.samples import Samples
from rollbook.api.dashboard.page_dependencies import PageSources
from rollbook.api.rest.operation_registry import RunningOperations
from tests.bench import Figure, judged
from tests.support.dev import running_dev
from tests.unit.api.dashboard.fake_logs import FakeLogs
from tests.unit.api.rest.fake_cluster import FakeCluster, a_bookie, a_ledger

_OPEN: Final = 50
_TURNS: Final = 3
_TURN_S: Final = 4.0
_P99_FACTOR: Final = 1.2
_BOOKIES_FACTOR: Final = 5.0
_PAGE_FACTOR: Final = 1.5
_PAGE_BYTES: Final = 150_000
_VENDORED_BYTES: Final = 50_000
_REPEATS: Final = 30
_LEDGERS: Final = 1_000_000
_VENDOR: Final = Path(parts.__file__).parent / "vendor"


def figures(runs: int) -> Iterator[Figure]:
    beside, alone = zip(*(_p99s_ms() for _ in range(runs)), strict=True)
    yield judged("p99 of appends with no page open", "ms", None, alone)
    yield judged("p99 of appends beside 50 open overviews", "ms", None, beside)
    factors = [with_pages / without for with_pages, without in zip(beside, alone, strict=True)]
    yield judged("the one over the other", "x", _P99_FACTOR, factors)
    few, many = (_page_of_bookies(count, runs) for count in (10, 1000))
    ratios = [large / small for large, small in zip(many, few, strict=True)]
    yield judged("CPU of a page of 1,000 bookies over one of 10", "x", _BOOKIES_FACTOR, ratios)
    first, late = (_page_of_ledgers(after, runs) for after in (-1, _LEDGERS - 101))
    ratios = [last / begin for last, begin in zip(late, first, strict=True)]
    yield judged("page 10,000 of ledgers over page 1", "x", _PAGE_FACTOR, ratios)
    yield judged("largest page", "bytes", _PAGE_BYTES, [_largest_page()])
    sizes = [len(gzip.compress(each.read_bytes())) for each in _VENDOR.glob("*.min.*")]
    yield judged("vendored files, gzipped", "bytes", _VENDORED_BYTES, [sum(sizes)])


def _p99s_ms() -> tuple[float, float]:
    """Returns p99 with open pages, and without."""
    beside: list[float] = []
    alone: list[float] = []
    with tempfile.TemporaryDirectory() as folder, running_dev(Path(folder) / "data", 3) as dev:
        place = next(line for line in dev.said.splitlines() if line.startswith("dashboard "))
        address = place.split()[1].removeprefix("http://")
        with rollbook.connect(f"log://{dev.address}") as client:
            log = client.open("bench", create=True)
            for _ in range(_TURNS):
                _append(log, alone)
                with ExitStack() as stack:
                    for _ in range(_OPEN):
                        stack.enter_context(closing(_open_overview(address)))
                    _append(log, beside)
    return tuple(1000 * quantiles(each, n=100)[98] for each in (beside, alone))  # type: ignore[return-value]  # Two.


def _append(log: Any, taken_s: list[float]) -> None:
    end = time.monotonic() + _TURN_S
    while (began := time.monotonic()) < end:
        log.append(b"x" * 100)
        taken_s.append(time.monotonic() - began)


def _open_overview(address: str) -> HTTPConnection:
    """Follows the overview like a browser; returns when the stream has begun."""
    connection = HTTPConnection(address, timeout=30)
    connection.request("GET", "/dashboard/live?page=/")
    answer = connection.getresponse()
    assert answer.status == 200
    answer.read(1)
    return connection


def _page_of_bookies(count: int, runs: int) -> Sequence[float]:
    cluster = FakeCluster(rows=[a_bookie(f"bk-{number:04}") for number in range(count)])
    return [_cpu_s(cluster, "/bookies") for _ in range(runs)]


def _page_of_ledgers(after: int, runs: int) -> Sequence[float]:
    return [_cpu_s(_ManyLedgers(), f"/ledgers?after={after}") for _ in range(runs)]


class _ManyLedgers(FakeCluster):
    async def ledgers(
        self, after: int, limit: int, **_: Any
    ) -> tuple[Sequence[dict[str, Any]], int | None]:
        rows = [a_ledger(number) for number in range(after + 1, after + 1 + limit)]
        return rows, rows[-1]["ledger_id"]


def _largest_page() -> float:
    cluster = FakeCluster(
        rows=[a_bookie(f"bookie-{number:04}.example.com:3181") for number in range(1000)],
        ledger_rows=[a_ledger(number) for number in range(1000)],
    )
    return max(len(_page(cluster, path)) for path in ("", "/bookies", "/ledgers", "/logs"))


def _cpu_s(cluster: FakeCluster, path: str) -> float:
    _page(cluster, path)
    began = time.process_time()
    for _ in range(_REPEATS):
        _page(cluster, path)
    return time.process_time() - began


def _page(cluster: FakeCluster, path: str) -> bytes:
    """Renders a page with the dashboard, without the HTTP server."""
    return asyncio.run(_rendered(cluster, path))


async def _rendered(cluster: FakeCluster, path: str) -> bytes:
    operations = RunningOperations()
    managing = Managing(AuditLog(lambda: 0))
    sources = PageSources(cluster, managing, operations, FakeLogs(), Samples())
    dashboard = Dashboard(sources, None, lambda: "drawn")
    app = Starlette(routes=dashboard.routes)
    found: list[bytes] = []
    name, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/dashboard{name}",
        "raw_path": f"/dashboard{name}".encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1:7500")],
        "server": ("127.0.0.1", 7500),
        "client": ("127.0.0.1", 1),
        "scheme": "http",
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        found.append(message.get("body", b""))
        assert message.get("status", 200) == 200

    await app(scope, receive, send)
    await dashboard.close()
    await operations.close()
    return b"".join(found)
