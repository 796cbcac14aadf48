"""Determines a cluster's health for `rollbook cluster health` from the members in the metadata and whether
they can be reached.

healthy       enough bookies are writable for all copies of a new log, and every member can be reached
degraded      the cluster works, but needs attention: a member is down, read-only, draining or unreachable, or its
              clock is wrong; or logs are written with fewer copies than configured, cannot be opened by the
              server that should own them, or lack segments whose ledgers were deleted
unavailable   a new log cannot take appends, because fewer bookies are writable than its ack quorum needs, or
              because no registered log server can be reached
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from rollbook.api.cli.cluster.actions import list_bookies, run_on_store
from rollbook.logservice.core.clock_agreement import odd_clocks
from rollbook.logservice.core.server_record import ServerRecord, unpack_server_record
from rollbook.logservice.log_config import DEFAULT_QUORUM
from rollbook.logservice.membership import FOLDER
from rollbook.proto.addresses import parse_address
from rollbook.proto.cluster.cluster_root import Cluster
from rollbook.proto.errors import NoSuchNode
from rollbook.proto.ports import MetadataStore

_REACH_S: Final = 2.0
# The state of a server that owns no logs because its clock is wrong.
WRONG_CLOCK: Final = "wrong clock"
_GOOD: Final = ("writable", "serving")
CODES: Final = {"healthy": 0, "degraded": 8, "unavailable": 5}


def look_at_health(url: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the verdict and a row for each member."""

    found = run_on_store(url, find_members)
    return judge(found), found


async def find_members(store: MetadataStore, cluster: Cluster) -> list[dict[str, Any]]:
    """Returns a row for each bookie and log server, after trying to reach each of them."""
    bookies = [{"kind": "bookie", **each} for each in await list_bookies(store, cluster)]
    servers = await _log_servers(store, cluster.own_root)
    found = [*bookies, *servers]
    reached = await asyncio.gather(*(check_reachable(each["address"]) for each in found))
    for each, is_there in zip(found, reached, strict=True):
        if not is_there and each["state"] != "down":
            each["state"] = "unreachable"
    return found


def judge(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    bookies = [each for each in found if each["kind"] == "bookie"]
    servers = [each for each in found if each["kind"] == "log server"]
    writable = sum(each["state"] == "writable" for each in bookies)
    serving = sum(each["state"] in ("serving", "draining") for each in servers)
    degraded = sum(each.get("logs_degraded", 0) for each in servers)
    unopened = sum(each.get("logs_unopened", 0) for each in servers)
    lost = sum(each.get("segments_lost", 0) for each in servers)
    # The records of log servers have the configured quorum of new logs. Without log servers, `DEFAULT_QUORUM`
    # applies.
    acks = max((each.get("acks", 0) for each in servers), default=0) or DEFAULT_QUORUM.ack
    ensemble = max((each.get("ensemble", 0) for each in servers), default=0)
    ensemble = ensemble or DEFAULT_QUORUM.ensemble
    verdict = "healthy"
    is_short = degraded or unopened or lost or writable < ensemble
    if is_short or not all(each["state"] in _GOOD for each in found):
        verdict = "degraded"
    if writable < acks or (servers and not serving):
        verdict = "unavailable"
    return {
        "health": verdict,
        "bookies": f"{writable} of {len(bookies)} writable",
        "log_servers": f"{serving} of {len(servers)} reachable" if servers else "none",
        "new_logs": new_logs_with(writable, acks, ensemble),
        "degraded_logs": degraded,
        "unopened_logs": unopened,
        "lost_segments": lost,
    }


def new_logs_with(writable: int, acks: int, ensemble: int) -> str:
    if writable < acks:
        return f"take no append: {acks} bookies must be writable, and {ensemble} for all copies"
    if writable < ensemble:
        return f"are written to {writable} bookies instead of {ensemble}"
    return "have all their copies"


async def server_records(store: MetadataStore, own_root: str) -> list[ServerRecord]:
    """Returns the registered log servers by name. A server that was killed and started again is registered
    twice until its old session ends. Of the registrations with the same name or the same address, the latest
    counts.
    """
    folder = f"{own_root}/{FOLDER}"
    try:
        names = await store.children(folder)
    except NoSuchNode:
        return []
    nodes = [node for name in names if (node := await store.get(f"{folder}/{name}")) is not None]
    nodes.sort(key=lambda node: node.stat.created_txn)
    lives = [unpack_server_record(node.value) for node in nodes]
    by_name = {record.name: record for record in lives}
    by_address = {record.info.address: record for record in lives if by_name[record.name] is record}
    return sorted(by_address.values(), key=lambda record: record.name)


async def _log_servers(store: MetadataStore, own_root: str) -> list[dict[str, Any]]:
    records = await server_records(store, own_root)
    apart_us = {
        record.name: record.clock_apart_us
        for record in records
        if record.clock_apart_us is not None
    }
    odd = odd_clocks(apart_us)
    return [
        {
            "kind": "log server",
            "id": record.name,
            "state": WRONG_CLOCK if record.name in odd else _state_of(record),
            "address": record.info.address,
            "logs_degraded": record.logs_degraded,
            "logs_unopened": record.logs_unopened,
            "segments_lost": record.segments_lost,
            "ensemble": record.quorum.ensemble if record.quorum else 0,
            "acks": record.quorum.ack if record.quorum else 0,
        }
        for record in records
    ]


def _state_of(record: ServerRecord) -> str:
    return "draining" if record.is_draining else "serving"


async def check_reachable(address: str | None) -> bool:
    """Returns whether the port is open, without checking which program listens there."""
    if not address:
        return False
    place = parse_address(address, "the address")
    try:
        async with asyncio.timeout(_REACH_S):
            _, writer = await asyncio.open_connection(place.host, place.port)
    except OSError:  # `TimeoutError` is an `OSError`.
        return False
    writer.close()
    return True
