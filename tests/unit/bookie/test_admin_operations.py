"""The admin pages of one bookie, shown from fixed parts."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollbook.bookie.admin_operations import Admin
from rollbook.bookie.bookie import Bookie, BookieState, Settings
from rollbook.bookie.compaction import CompactionState, CompactionStopped
from rollbook.bookie.config import BookieConfig, StorageConfig
from rollbook.bookie.core.catalog import Catalog
from rollbook.bookie.core.fencing import LedgerFacts
from rollbook.bookie.ledger_reports import LedgerViews
from rollbook.bookie.stats import Stats
from rollbook.proto.errors import BookieReadOnly, Unavailable
from rollbook.proto.ports import Clock, Disk
from tests.support.clocks import StandingClock

SECRET = "digest:me:canary"


class StandingBookie:
    """The parts of a bookie that `Admin` reads."""

    def __init__(self) -> None:
        url = f"zk://zk1,zk2/ledgers?auth={SECRET}"
        self.config = Settings(BookieConfig(url), StorageConfig("/journal", ("/ledgers",)))
        self.stats = Stats()
        self.stats.registered = lambda: True
        self.state = BookieState.SERVING
        self.is_read_only = self.disk_is_full = False
        self.catalog = Catalog()
        self.storage = SimpleNamespace(failure=None, views=self._views, catalog=self.catalog)
        self.space = SimpleNamespace(standing=SimpleNamespace(reason=""))
        self.bookie_id, self.advertised = "bk-1", "127.0.0.1:3181"
        self.identity = SimpleNamespace(incarnation="c0ffee")
        self.cluster = SimpleNamespace(instance_id="i")

    def _views(self) -> LedgerViews:
        return LedgerViews(self.catalog, (), (), lambda _: LedgerFacts())

    async def set_read_only(self, wanted: bool) -> None:
        self.is_read_only = wanted or self.disk_is_full


@pytest.fixture
def bookie() -> StandingBookie:
    return StandingBookie()


@pytest.fixture
def clock() -> StandingClock:
    return StandingClock(1_000)


@pytest.fixture
def admin(bookie: StandingBookie, clock: StandingClock) -> Admin:
    return Admin(cast(Bookie, bookie), cast(Disk, None), cast(Clock, clock))


def test_settings_are_shown_without_secrets(admin: Admin) -> None:
    settings = admin.settings()
    assert set(settings) == {"bookie", "storage", "server", "space"}
    assert settings["storage"]["ledger_dirs"] == ("/ledgers",)
    assert settings["bookie"]["metadata"].startswith("zk://zk1")
    assert "canary" not in str(settings)


def test_status_reports_state_and_reason(admin: Admin, bookie: StandingBookie) -> None:
    def seen() -> tuple[Any, ...]:
        status, state = admin.status(), admin.state()
        return status["state"], status["why"], admin.why_not_ready() is None, state["running"]

    assert seen() == ("writable", None, True, True)
    bookie.is_read_only, bookie.space.standing.reason = True, "disk full: /ledgers"
    assert seen() == ("read-only", "disk full: /ledgers", True, True)
    bookie.stats.registered = lambda: False
    state, why, is_ready, runs = seen()
    assert (state, is_ready, runs) == ("unregistered", False, True)
    assert "metadata store" in why
    bookie.state = BookieState.STARTING
    assert seen() == ("starting", "the bookie is starting", False, True)
    bookie.state = BookieState.CLOSING
    assert seen() == ("closing", "the bookie is closing", False, False)
    assert admin.state()["shutting_down"]
    bookie.storage.failure = OSError("no more")
    state, why, _, runs = seen()
    assert (state, why, runs) == ("failed", "the journal has stopped: no more", False)


async def test_full_disk_keeps_bookie_read_only_despite_operator(
    admin: Admin, bookie: StandingBookie
) -> None:
    await admin.set_read_only(True)
    assert admin.state()["read_only"]
    await admin.set_read_only(False)
    bookie.disk_is_full, bookie.space.standing.reason = True, "disk full: /ledgers"
    with pytest.raises(BookieReadOnly, match="disk full"):
        await admin.set_read_only(False)


async def test_stopped_compaction_is_reported_as_unavailable(
    admin: Admin, bookie: StandingBookie
) -> None:
    """The result depends on what ended it, not on what is suspended by then."""
    is_given_up = False

    async def run(*, major: bool) -> CompactionState:
        if is_given_up:
            raise CompactionStopped("compaction is suspended")
        return CompactionState("", major, major, 0, 0, 0, 0, 0, 0, 0)

    bookie.space.compactor = SimpleNamespace(run=run)
    for major in (False, True):
        assert (await admin.compact(major=major))["running"] == ""
    is_given_up = True
    with pytest.raises(Unavailable, match="suspended") as refused:
        await admin.compact(major=True)
    assert refused.value.next_step == "rollbook bookie compact --resume"


async def test_ledger_pages_share_one_snapshot(
    admin: Admin, bookie: StandingBookie, clock: StandingClock
) -> None:
    """A walk through the pages meets each ledger once. The list is read again for a first page, and
    after a minute."""

    async def ids(after: int) -> list[int]:
        return [each["ledger_id"] for each in await admin.ledgers(after, 2)]

    bookie.catalog.facts.update(dict.fromkeys((5, 1, 3), LedgerFacts()))
    assert await ids(-1) == [1, 3]
    bookie.catalog.facts[4] = LedgerFacts()
    assert await ids(3) == [5]
    assert await ids(-1) == [1, 3]
    assert await ids(3) == [4, 5]
    bookie.catalog.facts[6] = LedgerFacts()
    assert await ids(5) == []
    clock.now_ns += 61 * 10**9
    assert await ids(5) == [6]


def test_latencies_are_reported_in_milliseconds(admin: Admin, bookie: StandingBookie) -> None:
    assert admin.status()["latencies_ms"] == {}
    bookie.stats.requests["add"].observe(1_000_000, times=1_000)
    bookie.stats.cache_hits, bookie.stats.cache_misses = lambda: 3, lambda: 1
    status = admin.status()
    assert set(status["latencies_ms"]) == {"add"}
    assert 0.5 < status["latencies_ms"]["add"]["p50"] <= status["latencies_ms"]["add"]["p999"] <= 1
    assert status["cache_hit_ratio"] == 0.75
