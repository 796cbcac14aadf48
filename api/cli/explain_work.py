"""What `rollbook explain` tells, put together from what any log server knows."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from rollbook.api.cli.log_access import LogAccess
from rollbook.api.cli.log_work import journal_facts, segment_facts
from rollbook.api.cli.output import show_facts, show_rows, time_of
from rollbook.api.client.client import Client
from rollbook.logservice import words
from rollbook.logservice.log_config import WriterMode

_EVENTS: Final = 5
_SEGMENTS: Final = 10
_SEGMENT_COLUMNS: Final = ("segment_id", "ledger_id", "state", "from", "to", "bytes", "reason")


@dataclass(frozen=True)
class _Found:
    state: words.LogState
    tail: words.LogTail
    owner: words.LogOwner
    segments: Sequence[words.SegmentView]
    cursors: Sequence[words.Cursor]
    events: Sequence[words.JournalEvent]


def explain_log(access: LogAccess, log: str, output: str) -> None:
    async def look(client: Client) -> _Found:
        opened = await client.open(log)
        tail = await opened.state_of_tail()
        (owner,) = await client.lookup([log])
        return _Found(
            await opened.state(),
            *(tail, owner, await opened.segments(), await opened.cursors()),
            await opened.journal(_EVENTS),
        )

    found = access.run(look, log)
    segments = [segment_facts(each) for each in found.segments]
    events = [journal_facts(each) for each in found.events]
    if output != "table":
        cursors = {each.name: each.offset for each in found.cursors if each.is_protected}
        facts = _facts(found) | {"protected": cursors, "segments": segments, "events": events}
        show_facts(facts, output)
        return
    show_facts(_facts(found), output)
    click.echo(f"\nsegments{_of(len(segments), _SEGMENTS)}")
    show_rows(_SEGMENT_COLUMNS, map(_ranged, segments[-_SEGMENTS:]), output)
    click.echo("\nlately")
    show_rows(("time", "kind", "server", "reason", "details"), events, output)


def _of(count: int, shown: int) -> str:
    return f", the last {shown} of {count}" if count > shown else ""


def _ranged(segment: dict[str, Any]) -> dict[str, Any]:
    return segment | {"from": segment["base_offset"], "to": segment["next_offset"]}


def _facts(found: _Found) -> dict[str, Any]:
    state, tail, config = found.state, found.tail, found.state.config
    facts: dict[str, Any] = {"log": str(state.log)}
    if state.is_sealed:
        facts["state"] = "sealed: nothing is ever appended again"
    else:
        facts["state"] = "open"
    owned = f"{state.owner_id or 'a server'} at {found.owner.address}"
    facts["owner"] = owned if found.owner.is_owner else f"none; {found.owner.address} would be"
    facts["owner_epoch"] = tail.owner_epoch
    if config.writer_mode is WriterMode.EXCLUSIVE or state.writer_epoch:
        holder = state.writer_holder or "nobody"
        facts["writer"] = f"{holder}, in writer epoch {state.writer_epoch}"
    if lost := [each for each in found.segments if each.state is words.SegmentState.LOST]:
        facts["lost_segments"] = [
            f"{each.segment_id}, with offsets {each.base_offset} to {each.next_offset}: ledger "
            f"{each.ledger_id} was deleted"
            for each in lost
        ]
    facts["head"], facts["tail"] = tail.head, tail.tail
    facts["last_record"] = time_of(tail.timestamp_us)
    facts["kept"] = f"{tail.tail - tail.head} records; {state.bytes} bytes"
    quorum = config.quorum
    facts["copies"] = f"{quorum.write} on {quorum.ensemble} bookies, {quorum.ack} of them acked"
    written = [each for each in found.segments if each.state is words.SegmentState.OPEN]
    if written and (bookies := written[-1].degraded_to):
        facts["degraded"] = (
            f"segment {written[-1].segment_id} was made with {bookies} of {quorum.ensemble} bookies; a new one is "
            "begun as soon as enough bookies take new ledgers"
        )
    facts["next_roll"] = _next_roll(found)
    facts["retention"] = _retention(found)
    facts["held_back_by"] = [
        f"{each.name} at {each.offset}" for each in found.cursors if each.is_protected
    ]
    return facts


def _next_roll(found: _Found) -> str:
    config = found.state.config
    if found.state.is_sealed:
        return "never"
    sizes = f"{config.roll_bytes} bytes or {config.roll_entries} entries"
    due_us = found.state.roll_due_us
    written = [each for each in found.segments if each.state is words.SegmentState.OPEN]
    if not due_us and written and written[-1].began_us:
        due_us = written[-1].began_us + config.roll_age_s * 1_000_000
    if not due_us:
        return f"at {sizes}, or after {config.roll_age_s} s"
    return f"at {sizes}, or at {time_of(due_us)}, in {max(0.0, due_us / 1e6 - time.time()):.0f} s"


def _retention(found: _Found) -> str:
    config = found.state.config
    limits = []
    if config.retention_age_s is not None:
        limits.append(f"what is older than {config.retention_age_s} s")
    if config.retention_bytes is not None:
        limits.append(f"what is beyond {config.retention_bytes} bytes")
    return f"{' and '.join(limits)} goes, by whole segments" if limits else "everything is kept"
