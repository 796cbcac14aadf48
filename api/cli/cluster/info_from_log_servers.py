"""`rollbook cluster info` and `health` without the metadata store. They show what a log server knows, and
which members this machine can reach.

A log server knows all log servers, how many bookies accept new records, and its recent failures. It does not
know the bookies that it has not used.
"""

import asyncio
from typing import Any

from rollbook.api.cli.cluster.health import check_reachable, new_logs_with
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.client.async_client import Client
from rollbook.logservice import messages
from rollbook.proto.quorum import Quorum


def look_at_cluster(access: LogAccess) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the cluster's facts and its log servers."""

    async def look(client: Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        servers, limits = await client.servers(), await client.limits()
        facts = {
            "seen_by": client.owners.address_of(None),
            "log_servers": len(servers),
            "usable_bookies": limits.usable_bookies,
            "logs_owned": sum(each.logs_owned for each in servers),
            "logs_degraded": sum(each.logs_degraded for each in servers),
            "logs_unopened": sum(each.logs_unopened for each in servers),
        }
        return facts, [_row(each) | {"logs_owned": each.logs_owned} for each in servers]

    return access.run(look)


def look_at_health(access: LogAccess) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the verdict, the log servers, and what is unavailable."""

    async def look(client: Client) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        servers, limits, outage = await asyncio.gather(
            client.servers(), client.limits(), client.outage()
        )
        rows = [_row(each) for each in servers]
        reached = await asyncio.gather(*(check_reachable(each.address) for each in servers))
        for row, is_there in zip(rows, reached, strict=True):
            if not is_there:
                row["state"] = "unreachable"
        degraded = sum(each.logs_degraded for each in servers)
        unopened = sum(each.logs_unopened for each in servers)
        quorum = _quorum_of(limits)
        facts = {
            "health": verdict(rows, outage, degraded + unopened, limits),
            "seen_by": client.owners.address_of(None),
            "log_servers": f"{sum(reached)} of {len(rows)} reachable",
            "usable_bookies": limits.usable_bookies,
            "new_logs": new_logs_with(limits.usable_bookies, quorum.ack, quorum.ensemble),
            "degraded_logs": degraded,
            "unopened_logs": unopened,
            "cause": outage.cause,
            "next_step": outage.next_step,
        }
        away = [
            {"kind": each.kind.value, "id": each.name, "state": each.why, "address": ""}
            for each in outage.obstacles
        ]
        return facts, rows + away

    return access.run(look)


def verdict(
    servers: list[dict[str, Any]],
    outage: messages.Outage,
    degraded: int,
    limits: messages.ServiceLimits,
) -> str:
    kinds = [each.kind for each in outage.obstacles]
    usable, quorum = limits.usable_bookies, _quorum_of(limits)
    if (
        messages.ObstacleKind.METADATA in kinds
        or usable < quorum.ack
        or all(each["state"] == "unreachable" for each in servers)
    ):
        return "unavailable"
    is_short = degraded or usable < quorum.ensemble
    if kinds or is_short or any(each["state"] != "serving" for each in servers):
        return "degraded"
    return "healthy"


def _quorum_of(limits: messages.ServiceLimits) -> Quorum:
    """Returns the quorum of a new log, or a single bookie if the server does not report it."""
    return limits.quorum or Quorum(1, 1, 1)


def _row(server: messages.ServerView) -> dict[str, Any]:
    return {
        "kind": "log server",
        "id": server.server_id,
        "state": server.state.value,
        "address": server.address,
        "version": server.version,
    }
