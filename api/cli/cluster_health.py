"""What `rollbook cluster health` finds: who is registered in the metadata, and who can be reached.

healthy       bookies are writable, whoever is registered can be reached, none is missing
degraded      it works, and somebody should look: one is down, read-only, draining, unreachable
unavailable   no bookie takes entries, or every log server that is registered is out of reach
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from rollbook.api.cli.cluster_work import list_bookies, run_on_store
from rollbook.logservice.core.server_record import ServerRecord, unpack_server_record
from rollbook.logservice.membership import FOLDER
from rollbook.proto.addresses import parse_address
from rollbook.proto.cluster.cluster import Cluster
from rollbook.proto.errors import NoSuchNode
from rollbook.proto.ports import MetadataStore

_REACH_S: Final = 2.0
_GOOD: Final = ("writable", "serving")
CODES: Final = {"healthy": 0, "degraded": 8, "unavailable": 5}


def look_at_health(url: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The verdict; everybody, one row each."""

    async def look(store: MetadataStore, cluster: Cluster) -> list[dict[str, Any]]:
        bookies = [{"kind": "bookie", **each} for each in await list_bookies(store, cluster)]
        servers = await _log_servers(store, cluster.own_root)
        found = [*bookies, *servers]
        reached = await asyncio.gather(*(_is_reached(each["address"]) for each in found))
        for each, is_reached in zip(found, reached, strict=True):
            if not is_reached and each["state"] != "down":
                each["state"] = "unreachable"
        return found

    found = run_on_store(url, look)
    return judge(found), found


def judge(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    bookies = [each for each in found if each["kind"] == "bookie"]
    servers = [each for each in found if each["kind"] == "log server"]
    writable = sum(each["state"] == "writable" for each in bookies)
    serving = sum(each["state"] in ("serving", "draining") for each in servers)
    verdict = "healthy"
    if not all(each["state"] in _GOOD for each in found):
        verdict = "degraded"
    if not writable or (servers and not serving):
        verdict = "unavailable"
    return {
        "health": verdict,
        "bookies": f"{writable} of {len(bookies)} writable",
        "log_servers": f"{serving} of {len(servers)} reachable" if servers else "none",
    }


async def server_records(store: MetadataStore, own_root: str) -> list[ServerRecord]:
    try:
        names = await store.children(f"{own_root}/{FOLDER}")
    except NoSuchNode:
        return []
    nodes = [await store.get(f"{own_root}/{FOLDER}/{name}") for name in sorted(names)]
    return [unpack_server_record(node.value) for node in nodes if node is not None]


async def _log_servers(store: MetadataStore, own_root: str) -> list[dict[str, Any]]:
    return [
        {
            "kind": "log server",
            "id": record.name,
            "state": "draining" if record.is_draining else "serving",
            "address": record.info.address,
        }
        for record in await server_records(store, own_root)
    ]


async def _is_reached(address: str | None) -> bool:
    """Somebody listens there; who that is, is not asked."""
    if not address:
        return False
    place = parse_address(address, "the address")
    try:
        async with asyncio.timeout(_REACH_S):
            _, writer = await asyncio.open_connection(place.host, place.port)
    except OSError:  # A timeout, too.
        return False
    writer.close()
    return True
