"""The action of `rollbook ledger append`, which writes standard input to a ledger."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from rollbook.api.cli.ledger.connection import LedgerAccess, custom_of, password_of
from rollbook.api.cli.log.record_input import Cutter, input_bytes, standard_input
from rollbook.api.cli.output import tell
from rollbook.api.cli.progress_bars import bar
from rollbook.ledger.ledgers import Ledgers
from rollbook.ledger.writer import LedgerWriter
from rollbook.proto.errors import RollbookError
from rollbook.proto.wire.digest import DigestType

_PIECE_BYTES: Final = 1024 * 1024
_PIECE_ENTRIES: Final = 500


def append_input(
    access: LedgerAccess,
    ledger_id: int | None,
    ensemble: int,
    write: int,
    ack: int,
    digest: str,
    custom: Sequence[str],
    password: str | None,
    frame: str,
    output: str,
) -> None:
    async def append(ledgers: Ledgers) -> dict[str, Any]:
        if ledger_id is None:
            writer = await ledgers.create(
                ensemble=ensemble,
                write=write,
                ack=ack,
                digest=DigestType[digest.upper()],
                password=(password or "").encode(),
                custom=custom_of(custom),
            )
        else:
            writer = await ledgers.claim(ledger_id, password_of(password))
        try:
            async with writer:
                with bar(f"ledger {writer.ledger_id}", input_bytes()) as advance:
                    await _append_chunks(writer, frame, advance)
        except asyncio.CancelledError:
            last_entry = writer.metadata.last_entry
            click.echo(f"interrupted: ledger {writer.ledger_id} ends at {last_entry}", err=True)
            raise
        except RollbookError as error:
            # Confirmed entries stay in the ledger, so the error names the last one.
            confirmed = writer.last_add_confirmed
            error.ids = {"ledger_id": writer.ledger_id, "last_confirmed": confirmed, **error.ids}
            raise
        metadata = writer.metadata
        return {
            "ledger_id": metadata.ledger_id,
            "last_entry": metadata.last_entry,
            "length": metadata.length,
            "state": metadata.state.value,
        }

    tell(access.run(append), output, "ledger_id")


async def _append_chunks(writer: LedgerWriter, frame: str, advance: Callable[[int], None]) -> None:
    cutter = Cutter(frame)
    async for chunk in standard_input():
        await _append_all(writer, cutter.feed(chunk))
        advance(len(chunk))
    await _append_all(writer, cutter.end())
    await writer.flush()


async def _append_all(writer: LedgerWriter, payloads: Sequence[bytes]) -> None:
    """Appends the entries in pieces, because the window and the size of one append are bounded."""
    start = 0
    while start < len(payloads):
        end, size = start, 0
        while end < len(payloads) and end - start < _PIECE_ENTRIES:
            size += len(payloads[end])
            if size > _PIECE_BYTES and end > start:
                break
            end += 1
        piece = payloads[start:end]
        await writer.ready(len(piece), sum(map(len, piece)))
        writer.append_many(piece).add_done_callback(_look)
        start = end


def _look(future: "asyncio.Future[range]") -> None:
    """Retrieves the future's error, so that asyncio does not report it: `flush` raises it."""
    if not future.cancelled():
        future.exception()
