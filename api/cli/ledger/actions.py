"""The actions of `rollbook ledger ls|show|create|rm|recover`."""

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import click

from rollbook.api.cli.confirm import ask_whether
from rollbook.api.cli.ledger.connection import LedgerAccess, custom_of, password_of
from rollbook.api.cli.ledger.segment_guard import INSTEAD_OF_RECOVERY, require_no_part
from rollbook.api.cli.output import show_facts, show_rows, tell, tell_rows
from rollbook.api.cli.payload_output import as_text, print_bytes
from rollbook.ledger.ledgers import Ledgers
from rollbook.proto.cluster.ledger_nodes import StoredLedger
from rollbook.proto.errors import NoSuchLedger, RecoveryIncomplete
from rollbook.proto.formats.ledger_metadata import pack_ledger_metadata
from rollbook.proto.ids import NO_ENTRY, LedgerId
from rollbook.proto.metadata import LedgerMetadata
from rollbook.proto.wire.digest import DigestType

_METADATA_READS: Final = 64  # The number of concurrent metadata reads.
_JAVAS_DIGEST: Final[dict[DigestType | None, str]] = {
    DigestType.CRC32: "CRC32",
    DigestType.HMAC: "MAC",
    DigestType.CRC32C: "CRC32C",
    DigestType.DUMMY: "DUMMY",
}
_ROW_COLUMNS: Final = (
    "ledger_id",
    "state",
    "quorum",
    "digest",
    "last_entry",
    "length",
    "fragments",
    "created",
)


def list_ledgers(
    access: LedgerAccess, long: bool, start: int, limit: int | None, output: str
) -> None:
    has_more = long or output == "wide"

    async def collect(ledgers: Ledgers) -> None:
        rows: list[dict[str, Any]] = []
        async for piece in in_pieces(ledgers.list(start), _METADATA_READS, limit):
            more = [{"ledger_id": each} for each in piece]
            if has_more:
                found = await asyncio.gather(*(_read_or_none(ledgers, each) for each in piece))
                more = [facts_of_ledger(each) for each in found if each is not None]
            # Prints rows as they arrive, because there may be millions.
            if output in ("ndjson", "name", "raw"):
                tell_rows((), more, output, "ledger_id")
            else:
                rows += more
        if output in ("table", "wide", "json"):
            columns = _ROW_COLUMNS if has_more else _ROW_COLUMNS[:1]
            tell_rows(columns, rows, output, "ledger_id", ("version", "has_password", "custom"))

    access.run(collect, needs_bookies=False)


async def in_pieces(
    ids: AsyncIterator[LedgerId], size: int, limit: int | None
) -> AsyncIterator[list[LedgerId]]:
    piece: list[LedgerId] = []
    count = 0
    async for ledger_id in ids:
        piece.append(ledger_id)
        count += 1
        if len(piece) == size or count == limit:
            yield piece
            piece = []
        if count == limit:
            return
    if piece:
        yield piece


async def _read_or_none(ledgers: Ledgers, ledger_id: int) -> StoredLedger | None:
    try:
        return await ledgers.metadata(ledger_id)
    except NoSuchLedger:
        return None  # The ledger was deleted after it was listed.


def _row(stored: StoredLedger) -> dict[str, Any]:
    metadata = stored.metadata
    quorum = metadata.quorum
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.value,
        "quorum": f"{quorum.ensemble}/{quorum.write}/{quorum.ack}",
        "digest": metadata.digest_type.name.lower() if metadata.digest_type else None,
        "last_entry": metadata.last_entry,
        "length": metadata.length,
        "fragments": len(metadata.fragments),
        "created": _when(stored.created_ms),
    }


def _rest(stored: StoredLedger) -> dict[str, Any]:
    return {
        "version": stored.version,
        "has_password": bool(stored.metadata.password),
        "custom": {name: as_text(value) for name, value in stored.metadata.custom},
    }


def facts_of_ledger(stored: StoredLedger) -> dict[str, Any]:
    return _row(stored) | _rest(stored)


def facts_as_bookkeeper(stored: StoredLedger) -> dict[str, Any]:
    """Returns the facts under the names that BookKeeper's HTTP server uses, without the password."""
    metadata, quorum = stored.metadata, stored.metadata.quorum
    return {
        "ledger_id": metadata.ledger_id,
        "metadata_format_version": metadata.format_version,
        "ensemble_size": quorum.ensemble,
        "write_quorum_size": quorum.write,
        "ack_quorum_size": quorum.ack,
        "state": metadata.state.name,
        "length": metadata.length or 0,
        "last_entry_id": NO_ENTRY if metadata.last_entry is None else metadata.last_entry,
        "ctime": stored.created_ms,
        "digest_type": _JAVAS_DIGEST.get(metadata.digest_type),
        "password": "",
        "custom_metadata": {name: b64encode(value).decode() for name, value in metadata.custom},
        "closed": metadata.is_closed,
        "all_ensembles": {
            str(each.first_entry): [{"id": str(bookie)} for bookie in each.ensemble]
            for each in metadata.fragments
        },
        "ctoken": metadata.creation_token or 0,
    }


def fragments_of(metadata: LedgerMetadata) -> list[dict[str, Any]]:
    return [
        {
            "first_entry": fragment.first_entry,
            "last_entry": metadata.last_entry_of(index),
            "ensemble": list(fragment.ensemble),
        }
        for index, fragment in enumerate(metadata.fragments)
    ]


def _when(ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms / 1000))


def show_ledger(access: LedgerAccess, ledger_id: int, output: str) -> None:
    async def look(ledgers: Ledgers) -> StoredLedger:
        return await ledgers.metadata(ledger_id, fresh=True)

    stored = access.run(look, needs_bookies=False)
    metadata = stored.metadata
    if output == "raw":
        print_bytes(pack_ledger_metadata(metadata))
        return
    fragments = fragments_of(metadata)
    facts = facts_of_ledger(stored)
    if output != "table":
        show_facts({**facts, "fragments": fragments}, output)
        return
    show_facts(facts, output)
    click.echo("")
    show_rows(("first_entry", "last_entry", "ensemble"), fragments, output)


def create_ledger(
    access: LedgerAccess,
    ensemble: int,
    write: int,
    ack: int,
    digest: str,
    custom: Sequence[str],
    password: str,
    ledger_id: int | None,
    output: str,
) -> None:
    async def make(ledgers: Ledgers) -> int:
        return await ledgers.reserve(
            ensemble=ensemble,
            write=write,
            ack=ack,
            digest=DigestType[digest.upper()],
            password=password.encode(),
            custom=custom_of(custom),
            ledger_id=ledger_id,
        )

    tell({"ledger_id": access.run(make, needs_bookies=False)}, output, "ledger_id")


def remove_ledgers(
    access: LedgerAccess,
    ledger_ids: Sequence[int],
    password: str | None,
    yes: bool,
    force: bool,
    part_of_log: str | None,
    output: str,
) -> None:
    which = ", ".join(map(str, ledger_ids))
    ask_whether(f"delete ledger {which} of {access.metadata.shown}, with all entries", yes)

    async def remove(ledgers: Ledgers) -> list[dict[str, Any]]:
        await require_no_part(
            ledgers,
            ledger_ids,
            part_of_log,
            instead="rollbook log truncate {0} --before OFFSET, or rollbook log rm {0}",
        )
        for ledger_id in ledger_ids:
            try:
                await ledgers.delete(ledger_id, password_of(password), is_forced=force)
            except RecoveryIncomplete as error:
                error.next_step = (
                    "use --force to delete it although its writer may continue for a while"
                )
                raise
        return [{"ledger_id": ledger_id, "state": "deleted"} for ledger_id in ledger_ids]

    tell_rows(("ledger_id", "state"), access.run(remove), output, "ledger_id")


def recover_ledgers(
    access: LedgerAccess,
    ledger_ids: Sequence[int],
    password: str | None,
    part_of_log: str | None,
    output: str,
) -> None:
    async def recover(ledgers: Ledgers) -> list[dict[str, Any]]:
        await require_no_part(
            ledgers,
            ledger_ids,
            part_of_log,
            instead=INSTEAD_OF_RECOVERY,
        )
        return [
            await recover_ledger(ledgers, ledger_id, password_of(password))
            for ledger_id in ledger_ids
        ]

    columns = ("ledger_id", "state", "last_entry", "length")
    tell_rows(columns, access.run(recover), output, "last_entry")


async def recover_ledger(
    ledgers: Ledgers, ledger_id: int, password: bytes | None
) -> dict[str, Any]:
    """Fences the ledger, finds its last entry and closes it."""
    async with await ledgers.open_recover(ledger_id, password) as reader:
        metadata = reader.metadata
        return {
            "ledger_id": ledger_id,
            "state": metadata.state.value,
            "last_entry": metadata.last_entry,
            "length": metadata.length,
        }
