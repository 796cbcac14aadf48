"""The actions of `rollbook log writer`, which show, acquire and release the writer epoch of an exclusive log."""

import shlex
from typing import Any

from rollbook.api.cli.confirm import ask_whether
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import tell
from rollbook.api.client.async_client import Client
from rollbook.api.client.log import Log
from rollbook.api.client.unary_calls import new_attempt
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName, WriterEpoch
from rollbook.logservice.log_config import WriterMode
from rollbook.logservice.position_syntax import parse_age_us
from rollbook.proto.errors import InvalidRequest, Outcome, RollbookError, WriterHeld


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
