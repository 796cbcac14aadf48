"""The actions of `rollbook bookie drain|undrain|mark-drained|safe-to-remove|remove`. They use only the
metadata.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import click

from rollbook.api.cli.cluster.actions import run_on_store
from rollbook.api.cli.confirm import ask_whether
from rollbook.api.cli.metadata_option import Metadata
from rollbook.api.cli.output import show_facts, show_rows
from rollbook.api.cli.progress_bars import bar
from rollbook.proto.cluster.bookie_lifecycle_nodes import StoredLifecycle
from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.formats.lifecycle import LifecycleState
from rollbook.proto.ids import BookieId, parse_bookie_id
from rollbook.proto.ports import MetadataStore
from rollbook.proto.runtime.clock import SystemClock
from rollbook.recovery.bookie_decommission import Departures, RemovalCheck

T = TypeVar("T")

_COLUMNS: Final = ("bookie", "state", "ledgers", "reason")
_DRAIN_FAILED: Final = 5
_POLL_S: Final = 0.5
_BAR: Final = 1000


def drain_bookies(
    metadata: Metadata, names: Sequence[str], wait: bool, force: bool, output: str
) -> int:
    """Drains bookies and returns the exit code."""
    bookies = _parse(names)

    async def work(departures: Departures) -> list[StoredLifecycle]:
        begun = await departures.drain(bookies, is_forced=force)
        return await _until_drained(departures, bookies, begun) if wait else begun

    found = _run(metadata, work)
    _show(found, output)
    is_failed = any(each.lifecycle.state is LifecycleState.DRAINING_FAILED for each in found)
    return _DRAIN_FAILED if is_failed else 0


async def _until_drained(
    departures: Departures, bookies: Sequence[BookieId], begun: list[StoredLifecycle]
) -> list[StoredLifecycle]:
    total = sum(each.lifecycle.ledgers for each in begun)
    with bar(f"draining {', '.join(bookies)}", _BAR if total else 0) as advance:
        shown = 0
        while True:
            found = list((await departures.status(bookies)).values())
            if all(each.lifecycle.state is not LifecycleState.DRAINING for each in found):
                return found
            verdict = await departures.judge(bookies)
            now = _BAR * max(0, total - sum(verdict.naming.values())) // max(1, total)
            advance(max(0, now - shown))
            shown = max(shown, now)
            await asyncio.sleep(_POLL_S)


def undrain_bookies(metadata: Metadata, names: Sequence[str], output: str) -> None:
    bookies = _parse(names)

    async def work(departures: Departures) -> list[StoredLifecycle]:
        return [await departures.undrain(bookie) for bookie in bookies]

    _show(_run(metadata, work), output)


def mark_bookies_drained(metadata: Metadata, names: Sequence[str], yes: bool, output: str) -> None:
    bookies = _parse(names)
    ask_whether(f"declare {', '.join(bookies)} drained, even if copies are left there", yes)

    async def work(departures: Departures) -> list[StoredLifecycle]:
        return [await departures.mark_drained(bookie) for bookie in bookies]

    _show(_run(metadata, work), output)


def is_removal_safe(metadata: Metadata, names: Sequence[str], output: str) -> bool:
    bookies = _parse(names)
    verdict = _run(metadata, lambda departures: departures.judge(bookies))
    show_facts(facts_of(verdict), output)
    return verdict.is_safe


def remove_bookies(
    metadata: Metadata, names: Sequence[str], given_up: int | None, yes: bool, output: str
) -> None:
    bookies = _parse(names)
    ask_whether(f"remove {', '.join(bookies)} from the cluster", yes)
    verdict = _run(
        metadata, lambda departures: departures.remove(bookies, ledgers_given_up=given_up)
    )
    if output != "table":
        show_facts({**facts_of(verdict), "removed": True}, output)
        return
    click.echo(
        f"{', '.join(bookies)} removed; `bookie format` and `bookie rejoin` can use a removed id again"
    )


def _run(metadata: Metadata, work: Callable[[Departures], Awaitable[T]]) -> T:
    async def on_store(store: MetadataStore, cluster: Cluster) -> T:
        return await work(Departures(store, cluster, SystemClock(), random.SystemRandom()))

    return run_on_store(metadata.url, on_store)


def _parse(names: Sequence[str]) -> list[BookieId]:
    return list(dict.fromkeys(parse_bookie_id(name) for name in names))


def _show(found: Sequence[StoredLifecycle], output: str) -> None:
    rows: list[dict[str, Any]] = [
        {
            "bookie": each.bookie,
            "state": each.lifecycle.state.value,
            "ledgers": each.lifecycle.ledgers,
            "reason": each.lifecycle.reason,
        }
        for each in found
    ]
    show_rows(_COLUMNS, rows, output)


def facts_of(verdict: RemovalCheck) -> dict[str, Any]:
    return {
        "safe_to_remove": verdict.is_safe,
        "bookies": [
            f"{bookie} ({state.value}, named by {verdict.naming[bookie]} ledgers)"
            for bookie, state in verdict.states.items()
        ],
        "ledgers_naming_them": verdict.damage.named,
        "below_ack_quorum_without_them": verdict.damage.below_ack,
        "without_a_copy_without_them": verdict.damage.without_copy,
        "ledgers_unreadable": verdict.unreadable,
        "taking_entries": list(verdict.writable),
    }
