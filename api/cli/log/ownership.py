"""The actions of commands that manage a log's writer and its server, and verify its contents."""

import shlex
import time
from typing import Any

from rollbook.api.cli.confirm import ask_whether
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import tell, tell_rows, time_of
from rollbook.api.client.client import Client
from rollbook.api.client.log import Log
from rollbook.api.client.unary_calls import new_attempt
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName, WriterEpoch
from rollbook.logservice.log_config import WriterMode
from rollbook.logservice.positions import parse_age_us
from rollbook.proto.errors import (
    DataLost,
    InvalidRequest,
    Outcome,
    QuorumTimeout,
    RollbookError,
    WriterHeld,
)

# --- The writer -------------------------------------------------------------------------------


def show_writer(access: LogAccess, log: str, output: str) -> None:
    name = LogName.parse(log)

    async def ask(client: Client) -> dict[str, Any]:
        """Returns the writer that the log's owner names, because no other server knows the writer."""
        owners = await client.lookup([str(name)])
        address = owners[0].address if owners and owners[0].is_owner else None
        state: messages.LogState = await client.ask(messages.GetLog(name), server=address)
        return {
            "log": str(name),
            "mode": state.config.writer_mode.value,
            "writer_epoch": state.writer_epoch,
            "holder": state.writer_holder,
        }

    tell(access.run(ask, log), output, "writer_epoch")


def require_exclusive(log: Log, flags: str) -> None:
    """Raises `InvalidRequest`."""
    if log.config.writer_mode is not WriterMode.EXCLUSIVE:
        raise InvalidRequest(
            f"{log.name} is not exclusive: every client may append, and a holder would not exclude others",
            next_step=f"append without a holder, or create a log with `rollbook log create NAME --exclusive{flags}`",
        )


def acquire_writer(
    access: LogAccess,
    log: str,
    holder: str,
    wait: bool,
    steal: bool,
    ttl: str | None,
    attempt: str | None,
    yes: bool,
    output: str,
) -> None:
    if wait and steal:
        raise InvalidRequest("either --wait or --steal can be used, not both")
    if steal:
        ask_whether(f"fence the writers of {log}", yes)
    mode = messages.AcquireMode.FAIL
    if wait or steal:
        mode = messages.AcquireMode.WAIT if wait else messages.AcquireMode.STEAL
    ttl_ms = parse_age_us(ttl) // 1000 if ttl else 0
    attempt = attempt or new_attempt()
    request = messages.AcquireWriter(LogName.parse(log), holder, mode, ttl_ms, attempt)

    async def acquire(client: Client) -> messages.WriterGrant:
        require_exclusive(await client.open(log), access.flags)
        grant: messages.WriterGrant = await client.ask(request)
        return grant

    try:
        grant = access.run(acquire, log)
    except RollbookError as error:
        again = shlex.join(("rollbook", "log", "writer", "acquire", log, "--holder", holder))
        again += f" --ttl {shlex.quote(ttl)}" if ttl else ""
        if isinstance(error, WriterHeld):
            error.next_step = (
                f"{again} --wait{access.flags}, or use --steal, which fences the holder"
            )
        # The epoch may have been granted; the same attempt id gets the same epoch again.
        elif error.outcome is Outcome.UNKNOWN:
            again += f" --attempt {shlex.quote(attempt)}"
            again += " --wait" if wait else " --steal" if steal else ""
            error.next_step = f"{again}{access.flags}"
        raise
    facts = {
        "log": str(request.log),
        "writer_epoch": grant.writer_epoch,
        "fence_offset": grant.fence_offset,
        "holder": grant.holder,
        "ttl_s": grant.ttl_ms / 1000 or None,
    }
    tell(facts, output, "writer_epoch")


def release_writer(access: LogAccess, log: str, epoch: int, output: str) -> None:
    request = messages.ReleaseWriter(LogName.parse(log), WriterEpoch(epoch))
    access.run(lambda client: client.ask(request), log)
    tell({"log": str(request.log), "released": epoch}, output, "released")


# --- The server -------------------------------------------------------------------------------


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


def transfer_log(access: LogAccess, log: str, to: str, output: str) -> None:
    owner = access.run(lambda client: client.transfer(log, to), log)
    facts = {"log": str(owner.log), "to": to, "address": owner.address}
    tell(facts, output, "address")


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


# --- Verification -------------------------------------------------------------------------------


def verify_log(access: LogAccess, log: str, output: str) -> None:
    """Reads the log like an application, up to a barrier, and checks each block's checksum and each offset."""

    async def read(client: Client) -> dict[str, Any]:
        opened = await client.open(log)
        end = await opened.tail_offset(consistency=messages.Consistency.BARRIER)
        head = await opened.head_offset()
        # Looks for deleted ledgers first, because reads could succeed from a server's memory.
        for segment in await opened.segments():
            if segment.state is messages.SegmentState.LOST:
                raise DataLost(
                    f"the ledger of segment {segment.segment_id} was deleted, and its records are lost",
                    log=log,
                    ledger_id=segment.ledger_id,
                    start=segment.base_offset,
                    end=segment.next_offset,
                    next_step=f"to give these records up: rollbook log truncate {log} --before {segment.next_offset}",
                )
        next_offset, size, batches = int(head), 0, 0
        async for batch in opened.read_batches(head, end):
            if batch.base_offset != next_offset:
                raise DataLost(f"offset {next_offset} is missing", log=log)
            values = batch.values()  # Decodes each block and checks its CRC.
            next_offset += len(values)
            size += sum(map(len, values))
            batches += 1
        if next_offset != end:
            raise DataLost(f"the log ends at offset {next_offset}, before its tail {end}", log=log)
        facts = {"log": str(opened.name), "head": head, "tail": end, "records": end - head}
        return facts | {"bytes": size, "batches": batches, "sound": True}

    tell(access.run(read, log), output, "records")
