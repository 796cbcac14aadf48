"""The actions of `rollbook cluster servers` and `rollbook cluster drain`, which list and drain log servers."""

import shlex
import time

from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import tell, tell_rows, time_of
from rollbook.api.client.async_client import Client
from rollbook.proto.errors import QuorumTimeout


def list_servers(access: LogAccess, output: str) -> None:
    found = access.run(lambda client: client.servers())
    rows = [
        {
            "server": each.server_id,
            "address": each.address,
            "state": each.state.value,
            "logs": each.logs_owned,
            "version": each.version,
            "started": time_of(each.started_us),
        }
        for each in found
    ]
    columns = ("server", "address", "state", "logs", "version", "started")
    tell_rows(columns, rows, output, "server")


def drain_server(access: LogAccess, server_id: str, resume: bool, wait: bool, output: str) -> None:
    async def drain(client: Client) -> int:
        left = await client.drain(server_id, resume=resume)
        give_up_at = time.monotonic() + access.timeout_s
        while wait and left and not resume and time.monotonic() < give_up_at:
            left = await client.drain(server_id)
        return left

    left = access.run(drain)
    tell({"server": server_id, "draining": not resume, "logs": left}, output, "logs")
    if wait and left and not resume:
        raise QuorumTimeout(
            f"{server_id} still owns {left} logs",
            next_step=f"rollbook cluster drain {shlex.quote(server_id)}{access.flags} --wait --timeout SECONDS, "
            "with a longer timeout",
        )
