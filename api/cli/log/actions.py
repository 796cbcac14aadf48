"""The actions of `rollbook log` on whole logs. The actions on records are in `append.py` and `read.py`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

import click

from rollbook.api.cli.confirm import ask_whether
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import show_rows, shown, tell, tell_rows, time_of
from rollbook.api.client.async_client import Client
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from rollbook.logservice.log_config import ConfigValues, LogConfig, WriterMode
from rollbook.logservice.position_syntax import parse_age_us, parse_position
from rollbook.proto.errors import InvalidRequest, LogExists, NotEnoughBookies
from rollbook.proto.printable import harmless
from rollbook.proto.quorum import Quorum

# The setting for unlimited retention, which is the default of new logs.
UNBOUNDED: Final = "none"
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TAIL_COLUMNS: Final = ("log", "head", "tail", "last", "sealed", "exact", "owner")
_TAIL_COLUMNS_WIDE: Final = ("owner_epoch", "uid")
_FOR_PROGRAMS: Final = ("json", "ndjson")
_SEGMENT_COLUMNS: Final = (
    "segment_id",
    "ledger_id",
    "state",
    "base_offset",
    "next_offset",
    "records",
    "bytes",
    "reason",
)


# --- Creating and inspecting --------------------------------------------------------------------


def create_log(access: LogAccess, log: str, output: str, anyway: bool, **settings: Any) -> None:
    wanted = settings_of(**settings)

    async def make(client: Client) -> messages.LogState:
        """Creates the log. Fields that the user does not set get the server's defaults."""
        name = LogName.parse(log)
        await require_bookies(client, wanted.get("quorum"), anyway)
        config = ConfigValues(**wanted) if wanted else None
        try:
            state: messages.LogState = await client.ask(
                messages.EnsureLog(name, config, tuple(wanted))
            )
        except LogExists:
            state = await client.ask(messages.GetLog(name))
            for field, value in wanted.items():
                if (has := getattr(state.config, field)) != value:
                    raise LogExists(
                        f"the log exists with another {field}", log=name, has=shown_setting(has),
                        wanted=shown_setting(value),
                    ) from None  # fmt: skip
        return state

    state = access.run(make, log)
    facts = {
        "log": str(state.log), "created": state.was_created, "head": state.head, "tail": state.tail
    }  # fmt: skip
    tell(facts, output, "log")


def settings_of(
    retention_age: str | None,
    retention_bytes: str | None,
    roll_bytes: str | None,
    roll_age: str | None,
    exclusive: bool,
    copies: int | None,
    ensemble: int | None,
    acks: int | None,
    labels: Sequence[str],
    description: str | None,
) -> dict[str, Any]:
    """Returns the configuration fields that the user set."""
    found: dict[str, Any] = {
        "roll_bytes": roll_bytes and bytes_in(roll_bytes),
        "roll_age_s": roll_age and seconds_in(roll_age),
        "writer_mode": WriterMode.EXCLUSIVE if exclusive else None,
        "labels": in_order(map(_label, labels)) or None,
        "description": description,
    }
    if copies or acks or ensemble:
        found["quorum"] = quorum_of(copies, acks, ensemble)
    found = {name: value for name, value in found.items() if value is not None}
    if retention_age:
        found["retention_age_s"] = None if retention_age == UNBOUNDED else seconds_in(retention_age)
    if retention_bytes:
        found["retention_bytes"] = (
            None if retention_bytes == UNBOUNDED else bytes_in(retention_bytes)
        )
    return found


def quorum_of(copies: int | None, acks: int | None, ensemble: int | None) -> Quorum:
    """Derives missing values from the values that the user gave."""
    count = copies or max(acks or 0, min(3, ensemble or 3))
    return Quorum(ensemble or count, count, acks or count // 2 + 1)


async def require_bookies(client: Client, quorum: Quorum | None, anyway: bool) -> None:
    """Raises `NotEnoughBookies` if the log needs more bookies than accept records now. With `anyway`, this only
    prints a warning.
    """
    if quorum is None:
        return
    usable = (await client.limits()).usable_bookies
    if not usable or quorum.ensemble <= usable:
        return
    what = f"{quorum.write} copies need {quorum.ensemble} bookies, but only {usable} accept new records"
    if not anyway:
        raise NotEnoughBookies(
            what,
            next_step="start more bookies, or use --anyway: until more bookies run, records have "
            "fewer copies or cannot be appended",
        )
    click.echo(f"warning: {what}", err=True)


def seconds_in(text: str) -> int:
    """Parses a time. Raises `InvalidRequest` for fractions of a second, which would be dropped: 500ms would become
    0.
    """
    seconds, lost = divmod(parse_age_us(text), 1_000_000)
    if lost:
        raise InvalidRequest(f"{text!r} is not a whole number of seconds")
    return seconds


def bytes_in(text: str) -> int:
    """Parses a size in powers of 1024: K, KiB and KB are the same."""
    found = re.fullmatch(r"(\d+) ?(?:([KMGT])(?:i?B)?|B)?", text, re.ASCII | re.IGNORECASE)
    if found is None:
        raise InvalidRequest(
            f"{text!r} is not a number of bytes", next_step="write 1000, 500M, 256MiB or 10G"
        )
    return int(found[1]) * _UNITS.get((found[2] or "").upper(), 1)


def in_order(labels: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Returns the labels in the order that servers use, because the order has no meaning."""
    return tuple(sorted(labels))


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidRequest(f"--label {text!r} is not NAME=VALUE")
    return name, value


_UID: Final = re.compile("[0-9a-f]{32}", re.ASCII)


def list_logs(
    access: LogAccess, prefix: str, namespace: str, long: bool, limit: int | None, output: str
) -> None:
    if namespace and "/" in prefix:
        raise InvalidRequest(
            f"both {prefix[:80]!r} and --namespace name a namespace",
            next_step="leave out --namespace",
        )

    async def look(client: Client) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        names = client.logs(f"{prefix}*") if "/" in prefix else client.logs(namespace, prefix)
        async for name in names:
            row: dict[str, Any] = {"log": str(name)}
            if long or output == "wide":
                row |= _facts(await client.ask(messages.GetLog(name)))
            rows.append(row)
            if len(rows) == limit:
                break
        return rows

    more = ("head", "tail", "bytes", "segments", "sealed", "owner")
    wide = ("records", "owner_epoch", "writer_epoch", "writer_holder", "uid")
    columns = ("log", *more) if long else ("log",)
    rows = access.run(look)
    tell_rows(columns, rows, output, "log", wide if long else (*more, *wide))
    if not rows and output in ("table", "wide"):
        begun = f" begins with {prefix}" if prefix else ""
        within = f" in the namespace {namespace}" if namespace else ""
        click.echo(f"no log{within}{begun}" if begun or within else "there are no logs", err=True)


def show_log(access: LogAccess, log: str, output: str) -> None:
    async def look(client: Client) -> dict[str, Any]:
        opened = await client.open(log)
        tail = await opened.state_of_tail()
        state = await opened.state()
        config = {
            each.name: shown_setting(getattr(state.config, each.name)) for each in fields(LogConfig)
        }
        return {
            "log": str(state.log),
            **_facts(state),
            "head": tail.head,
            "tail": tail.tail,
            "etag": state.etag,
            "config": config,
        }

    tell(access.run(look, log), output, "tail")


def _facts(state: messages.LogState) -> dict[str, Any]:
    return {
        "head": state.head,
        "tail": state.tail,
        "records": state.records,
        "bytes": state.bytes,
        "segments": state.segments,
        "sealed": state.is_sealed,
        "owner": state.owner,
        "owner_epoch": state.owner_epoch,
        "writer_epoch": state.writer_epoch,
        "writer_holder": state.writer_holder,
        "uid": state.uid,
    }


def shown_setting(value: Any) -> Any:
    """Returns a setting in the form that it has in JSON."""
    if isinstance(value, Quorum):
        return {"ensemble": value.ensemble, "write": value.write, "ack": value.ack}
    if isinstance(value, WriterMode):
        return value.value
    if isinstance(value, tuple):
        return dict(value)
    return value


def list_segments(access: LogAccess, log: str, output: str) -> None:
    async def look(client: Client) -> list[messages.SegmentView]:
        return await (await client.open(log)).segments()

    rows = [segment_facts(each) for each in access.run(look, log)]
    if output == "wide":
        for row in rows:
            row["first_record"] = time_of(row["first_timestamp_us"])
            row["last_record"] = time_of(row["last_timestamp_us"])
    wide = ("first_record", "last_record")
    tell_rows(_SEGMENT_COLUMNS, rows, output, "ledger_id", wide)


def segment_facts(segment: messages.SegmentView) -> dict[str, Any]:
    return {**asdict(segment), "state": segment.state.value}


def show_history(access: LogAccess, log: str, limit: int, output: str) -> None:
    async def look(client: Client) -> tuple[messages.JournalEvent, ...]:
        return await (await client.open(log)).journal(limit)

    rows = [event_facts(each) for each in access.run(look, log)]
    columns = ("time", "kind", "server", "owner_epoch", "reason", "details")
    tell_rows(columns, rows, output, "kind")


def event_facts(event: messages.JournalEvent) -> dict[str, Any]:
    return {
        "time": time_of(event.time_us),
        "kind": event.kind,
        "server": event.server,
        "owner_epoch": event.owner_epoch,
        "reason": event.reason,
        "details": dict(sorted(event.details.items())),
    }


# --- Changes ----------------------------------------------------------------------------------------


def truncate_log(
    access: LogAccess,
    log: str,
    before: str,
    dry_run: bool,
    force_roll: bool,
    yes: bool,
    output: str,
) -> None:
    position = parse_position(before)

    async def plan(client: Client) -> messages.TruncateAnswer:
        return await (await client.open(log)).truncate(position, plan=True, force_roll=force_roll)

    planned = access.run(plan, log)
    if not dry_run:
        ask_whether(
            f"truncate {log} before offset {planned.new_head}, with {planned.records} records", yes
        )

        async def truncate(client: Client) -> messages.TruncateAnswer:
            """Truncates at the offset that the user confirmed, even if the tail has moved since."""
            opened = await client.open(log)
            return await opened.truncate(planned.new_head, force_roll=force_roll)

        planned = access.run(truncate, log)
    tell(
        {
            "log": log,
            "done": not dry_run,
            "old_head": planned.old_head,
            "new_head": planned.new_head,
            "records": planned.records,
            "segments": list(planned.segments),
            "freed_bytes": planned.freed_bytes,
            "kept_bytes": planned.kept_bytes,
            "guards": list(planned.guards),
        },
        output,
        "new_head",
    )


def seal_log(access: LogAccess, log: str, yes: bool, output: str) -> None:
    ask_whether(f"seal {log} permanently, so that nothing can ever be appended again", yes)

    async def seal(client: Client) -> int:
        return await (await client.open(log)).seal()

    tell({"log": log, "tail": access.run(seal, log)}, output, "tail")


def roll_log(access: LogAccess, log: str, output: str) -> None:
    async def roll(client: Client) -> int:
        return await (await client.open(log)).roll()

    tell({"log": log, "segment_id": access.run(roll, log)}, output, "segment_id")


def remove_logs(
    access: LogAccess, logs: Sequence[str], grace: str | None, yes: bool, output: str
) -> None:
    grace_s = None if grace is None else parse_age_us(grace) / 1e6
    ask_whether(f"delete {', '.join(logs)}, with all records", yes)

    async def remove(client: Client) -> list[dict[str, Any]]:
        rows = []
        for log in logs:
            answer = await client.delete(log, grace_s=grace_s)
            rows.append({"log": log, "freed_at": time_of(answer.freed_at_us)})
        return rows

    tell_rows(("log", "freed_at"), access.run(remove), output, "log")


def list_deleted(
    access: LogAccess, prefix: str, namespace: str, limit: int | None, output: str
) -> None:
    async def look(client: Client) -> list[dict[str, Any]]:
        if prefix.count("/"):
            found = await client.deleted(f"{prefix}*")
        else:
            found = await client.deleted(namespace, prefix)
        return [
            {
                "log": str(each.log),
                "uid": each.uid,
                "deleted_at": time_of(each.deleted_us),
                "freed_at": time_of(each.free_at_us),
                "segments": each.segments,
                "name_is_free": each.has_name,
            }
            for each in found[:limit]
        ]

    columns = ("log", "uid", "deleted_at", "freed_at")
    tell_rows(columns, access.run(look), output, "uid", ("segments", "name_is_free"))


def undelete_log(access: LogAccess, log: str, name: str | None, output: str) -> None:
    async def bring_back(client: Client) -> dict[str, Any]:
        wanted, uid = log, ""
        if _UID.fullmatch(log):
            for each in await client.deleted():
                if each.uid == log:
                    wanted, uid = str(each.log), log
        try:
            back = await client.undelete(wanted, uid=uid, to=name)
        except LogExists as error:
            error.next_step = f"rollbook log undelete {log} --as NAME{access.flags}"
            raise
        return {"log": str(back), "next_offset": await (await client.open(back)).tail_offset()}

    tell(access.run(bring_back), output, "log")


def show_tails(access: LogAccess, prefix: str, follow: bool, output: str) -> None:
    def row_of(tail: messages.TailOfLog) -> dict[str, Any]:
        last: Any = tail.timestamp_us if output in _FOR_PROGRAMS else time_of(tail.timestamp_us)
        return {
            "log": str(tail.log),
            "head": tail.head,
            "tail": tail.tail,
            "last": last,
            "sealed": tail.is_sealed,
            "exact": tail.is_exact,
            "owner": tail.owner,
            "owner_epoch": tail.owner_epoch,
            "uid": tail.uid,
        }

    def show(tails: Iterable[messages.TailOfLog]) -> None:
        rows = [row_of(tail) for tail in sorted(tails, key=lambda each: each.log)]
        tell_rows(_TAIL_COLUMNS, rows, output, "log", _TAIL_COLUMNS_WIDE)

    async def look(client: Client) -> None:
        async with client.tails(prefix=prefix) as watch:
            known = await watch.ready()
            if not follow:
                show(known.values())
                return
            async for news in watch:
                _show_tail_news([row_of(tail) for tail in news.tails], map(str, news.gone), output)

    access.run(look)


def _show_tail_news(tails: list[dict[str, Any]], gone: Iterable[str], output: str) -> None:
    """Prints a line for each changed tail."""
    if output in _FOR_PROGRAMS:
        show_rows((), (*tails, *({"log": log, "gone": True} for log in gone)), "ndjson")
        return
    columns = (*_TAIL_COLUMNS, *_TAIL_COLUMNS_WIDE) if output == "wide" else _TAIL_COLUMNS
    for row in tails:
        shown_columns = ("log",) if output in ("raw", "name") else columns
        click.echo("  ".join(shown(row[column]) for column in shown_columns))
    for log in gone:
        click.echo(f"{harmless(log)}  gone")
