"""The operators' view of one bookie; it takes and returns plain values.

`api/rest/bookie_admin_server.py` shows these values over HTTP, under the same names.
"""

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from heapq import nsmallest
from typing import Final

from rollbook import __version__
from rollbook.bookie.bookie import Bookie, BookieState
from rollbook.bookie.compaction import CompactionStopped
from rollbook.bookie.ledger_reports import View, sorted_ids
from rollbook.bookie.stats import Stats
from rollbook.proto.errors import BookieFailed, BookieReadOnly, NoSuchLedger, Unavailable
from rollbook.proto.metastore.url import MetadataUrl
from rollbook.proto.ports import Clock, Disk
from rollbook.proto.shown_settings import shown_settings
from rollbook.proto.stats import Histogram

_SANITY_S: Final = 5.0
_LISTED_NS_MAX: Final = 60 * 1_000_000_000
# Ledgers that are summarised in one step; other tasks run before the next step.
_SUMMARIES: Final = 50
_QUANTILES: Final = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
_CATALOG: Final = "catalog-"


class Admin:
    def __init__(self, bookie: Bookie, disk: Disk, clock: Clock) -> None:
        self._bookie = bookie
        self._disk = disk
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self._listing = asyncio.Lock()
        self._listed = array("q")  # The ids of all ledgers at `_listed_ns`, ascending.
        self._listed_ns = -_LISTED_NS_MAX  # The time at which `_listed` was made.

    @property
    def stats(self) -> Stats:
        return self._bookie.stats

    # --- State --------------------------------------------------------------------------------

    def failure(self) -> str | None:
        error = self._bookie.storage.failure
        return f"the journal has stopped: {error}" if error else None

    def why_not_ready(self) -> str | None:
        state = self._bookie.state
        if state is not BookieState.SERVING:
            return f"the bookie is {state.value}"
        if not self.stats.registered():
            return "the bookie is not registered: its metadata store does not answer"
        return None

    def state(self) -> View:
        bookie = self._bookie
        is_closing = bookie.state is BookieState.CLOSING
        works = self.failure() is None
        return {
            "running": works and not is_closing,
            "read_only": self._is_read_only,
            "shutting_down": is_closing,
            "available_for_high_priority_writes": works and not is_closing,
        }

    @property
    def _is_read_only(self) -> bool:
        return self._bookie.is_read_only

    async def set_read_only(self, wanted: bool) -> None:
        await self._bookie.set_read_only(wanted)
        if self._is_read_only and not wanted:
            raise BookieReadOnly(
                f"it stays read-only for now: {self._bookie.space.standing.reason}",
                next_step="make room; it becomes writable again by itself",
            )

    def status(self) -> View:
        bookie, stats = self._bookie, self.stats
        failure, reason = self.failure(), self.why_not_ready()
        if failure:
            state = "failed"
        elif reason:
            state = (
                bookie.state.value if bookie.state is not BookieState.SERVING else "unregistered"
            )
        else:
            state = "read-only" if self._is_read_only else "writable"
        hits, misses = stats.cache_hits(), stats.cache_misses()
        return {
            "bookie_id": bookie.bookie_id,
            "address": str(bookie.advertised),
            "version": __version__,
            "incarnation": bookie.identity.incarnation,
            "instance_id": bookie.cluster.instance_id,
            "state": state,
            "why": failure or reason or bookie.space.standing.reason or None,
            "uptime_s": (self._clock.monotonic_ns() - self._started_ns) / 1e9,
            "ledgers": stats.ledgers(),
            "entries": stats.entries(),
            "doubtful_ledgers": stats.doubtful_ledgers(),
            "doubts_everything": bool(stats.doubts_everything()),
            "entry_logs": stats.entry_logs(),
            "entry_log_bytes": stats.entry_log_bytes(),
            "journal_files_waiting": stats.journal_files_waiting(),
            "journal_queue_bytes": stats.journal_queue_bytes(),
            "connections": stats.connections(),
            "entries_added": stats.entries_added,
            "latencies_ms": self._latencies(),
            "cache_hit_ratio": round(hits / (hits + misses), 3) if hits + misses else None,
            "refusals": dict(stats.refusals),
        }

    def _latencies(self) -> View:
        found = {"journal_sync": self.stats.journal_writes, **self.stats.requests}
        return {name: _quantiles(each) for name, each in found.items() if each.total}

    def settings(self) -> View:
        """Returns all settings, without the secrets in the URL. File names are not secret."""
        found = asdict(self._bookie.config)
        del found["sources"]
        url = found["bookie"]["metadata"]
        return {**found, "bookie": {**found["bookie"], "metadata": str(MetadataUrl.parse(url))}}

    def shown_settings(self) -> Sequence[Mapping[str, str]]:
        config = self._bookie.config
        sections = {
            each: getattr(config, each) for each in ("bookie", "storage", "server", "space")
        }
        return shown_settings(sections, config.sources)

    async def space(self) -> Sequence[View]:
        config = self._bookie.config.storage
        found = [
            ("journal", config.journal_dir),
            *(("ledger", each) for each in config.ledger_dirs),
        ]
        return [{"path": path, "kind": kind, **await self._space(path)} for kind, path in found]

    async def _space(self, path: str) -> dict[str, int]:
        space = await self._disk.space(path)
        return {"free_bytes": space.free_bytes, "total_bytes": space.total_bytes}

    async def ledger_space(self) -> View:
        return asdict(await self._bookie.storage.space())

    async def check_sanity(self) -> View:
        """Makes all earlier requests durable on the journal's disk."""
        try:
            async with asyncio.timeout(_SANITY_S):
                await self._bookie.storage.force()
        except (TimeoutError, BookieFailed):
            return {"passed": False, "read_only": self._is_read_only}
        return {"passed": self.failure() is None, "read_only": self._is_read_only}

    # --- Contents -----------------------------------------------------------------------------

    def mark(self) -> View:
        storage = self._bookie.storage
        start, (active, position) = storage.catalog.replay_start, storage.end_of_journal
        return {
            "journal": start.journal,
            "first_sequence": start.first_sequence,
            "active_journal": active,
            "active_position": position,
        }

    async def files(self) -> Mapping[str, Sequence[str]]:
        config = self._bookie.config.storage
        ledger_files = [
            name for each in config.ledger_dirs for name in await self._disk.list_directory(each)
        ]
        journal_files = await self._disk.list_directory(config.journal_dir)
        return {
            "journal": [name for name in journal_files if name.endswith(".journal")],
            "entrylog": [name for name in ledger_files if name.endswith(".log")],
            "index": [name for name in ledger_files if name.startswith(_CATALOG)],
        }

    async def ledgers(self, after: int, limit: int) -> Sequence[View]:
        """Lists all ledgers again for the first page, and for a page that is requested much later."""
        async with self._listing:
            age_ns = self._clock.monotonic_ns() - self._listed_ns
            if after < 0 or age_ns > _LISTED_NS_MAX:
                self._listed = await sorted_ids(self._bookie.storage.views().known_ids())
                self._listed_ns = self._clock.monotonic_ns()
            listed = self._listed
        start = bisect_right(listed, after)
        views, found = self._bookie.storage.views(), list[View]()
        for number, ledger_id in enumerate(listed[start : start + limit]):
            if number % _SUMMARIES == 0:
                await asyncio.sleep(0)  # Adds that wait on the loop run first.
                views = self._bookie.storage.views()
            found.append(views.summary(ledger_id))
        return found

    async def ledger(self, ledger_id: int) -> View:
        views = self._bookie.storage.views()
        if ledger_id not in views:
            raise NoSuchLedger(ledger_id=ledger_id)
        return views.details(ledger_id)

    # --- Doubts about entries -----------------------------------------------------------------

    def doubts(self, after: int, limit: int) -> View:
        """Returns the doubts about ledgers with ids above `after`, ascending."""
        doubts = self._bookie.storage.catalog.doubts
        ids = nsmallest(limit, (each for each in doubts.ledger_ids if each > after))
        return {
            "bookie_id": self._bookie.bookie_id,
            "instance_id": self._bookie.cluster.instance_id,
            "stamp": self._bookie.storage.doubts_stamp,
            "everything": doubts.everything,
            "ledgers": [
                {"ledger_id": each, "ranges": [part._asdict() for part in doubts.of(each)]}
                for each in ids
            ],
            "next_after": ids[-1] if len(ids) == limit else None,
        }

    async def settle_doubts(
        self, stamp: str, ledger_id: int, ranges: Sequence[tuple[int, int]]
    ) -> None:
        await self._bookie.storage.settle(stamp, ledger_id, ranges)

    async def settle_everything(self, stamp: str) -> None:
        await self._bookie.settle_everything(stamp)

    # --- Space --------------------------------------------------------------------------------

    def garbage(self) -> View:
        state, done = self._bookie.space.compactor.state, self.stats.compactions
        return {
            "force_compacting": self._bookie.space.garbage.state.is_running,
            "major_compacting": state.running == "major",
            "minor_compacting": state.running == "minor",
            "last_major_compaction_time": state.major_ended_ms,
            "last_minor_compaction_time": state.minor_ended_ms,
            "major_compaction_counter": done.get("major", 0),
            "minor_compaction_counter": done.get("minor", 0),
        }

    def garbage_state(self) -> View:
        space = self._bookie.space
        return {
            "garbage": asdict(space.garbage.state),
            **({"surplus": asdict(space.surplus.state)} if space.surplus else {}),
            "compaction": asdict(space.compactor.state),
        }

    async def collect_garbage(self, *, force: bool = False) -> View:
        """Deletes ledgers that are gone from metadata, and removes logs without live entries.
        With `force`, it does so even if very many ledgers are gone at once."""
        space = self._bookie.space
        state = await space.garbage.collect(force=force)
        shown = asdict(state)
        if space.surplus:
            found = await space.surplus.look()
            shown |= {
                name: getattr(found, name) for name in ("surplus", "surplus_bytes", "dropped")
            }
        await space.compactor.remove_empty()
        return shown

    async def compact(self, *, major: bool) -> View:
        """Raises `Unavailable` if compaction was stopped; logs that were rewritten before stay
        rewritten."""
        try:
            return asdict(await self._bookie.space.compactor.run(major=major))
        except CompactionStopped as why:
            raise Unavailable(str(why), next_step="rollbook bookie compact --resume") from None

    def suspended(self) -> View:
        state = self._bookie.space.compactor.state
        return {
            "is_major_gc_suspended": state.major_suspended,
            "is_minor_gc_suspended": state.minor_suspended,
        }

    def suspend_compaction(self, *, major: bool, minor: bool) -> None:
        self._bookie.space.compactor.suspend(major=major, minor=minor)

    def resume_compaction(self, *, major: bool, minor: bool) -> None:
        self._bookie.space.compactor.resume(major=major, minor=minor)

    def scrub_state(self) -> View:
        return asdict(self._bookie.space.scrubber.state)

    async def scrub(self) -> View:
        return asdict(await self._bookie.space.scrubber.scrub())

    def suspend_scrub(self) -> None:
        self._bookie.space.scrubber.suspend()

    def resume_scrub(self) -> None:
        self._bookie.space.scrubber.resume()

    async def verify_ledger(self, ledger_id: int) -> View:
        """Reads all entries of the ledger. Raises `NoSuchLedger`, `OSError`."""
        return asdict(await self._bookie.space.scrubber.verify(ledger_id))


def _quantiles(histogram: Histogram) -> dict[str, float]:
    found = {name: histogram.quantile(share) for name, share in _QUANTILES}
    return {name: round(value * 1_000, 3) for name, value in found.items() if value is not None}
