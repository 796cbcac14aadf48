"""Gathers the facts that `rollbook explain` shows. Log servers know all of them."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from rollbook.api.cli.log.actions import event_facts, segment_facts
from rollbook.api.cli.log.connection import LogAccess
from rollbook.api.cli.output import show_facts, show_rows, time_of
from rollbook.api.client.async_client import Client
from rollbook.logservice import messages
from rollbook.logservice.ids import LogName
from rollbook.logservice.log_config import WriterMode
from rollbook.proto.errors import OutcomeUnknown, ServerUnreachable, Unavailable

_EVENTS: Final = 5
_PART_S: Final = 0.4  # The time limit of one part, so that the whole answer takes at most a second.
_OUTAGE_S: Final = 0.8
_AGAIN_S: Final = 3.0
_SERVERS_MAX: Final = 8
_SEGMENTS: Final = 10
_SEGMENT_COLUMNS: Final = ("segment_id", "ledger_id", "state", "from", "to", "bytes", "reason")


@dataclass(frozen=True)
class _Found:
    """The parts that arrived in time; all others are None or empty."""

    state: messages.LogState | None
    tail: messages.LogTail | None
    owner: messages.LogOwner | None
    segments: Sequence[messages.SegmentView]
    cursors: Sequence[messages.Cursor]
    events: Sequence[messages.JournalEvent]
    outage: messages.Outage


def explain_log(access: LogAccess, log: str, output: str) -> None:
    async def look(client: Client) -> _Found:
        return await Look(client, LogName.parse(log), access.timeout_s).look()

    found = access.run(look, log)
    segments = [segment_facts(each) for each in found.segments]
    events = [event_facts(each) for each in found.events]
    facts = _facts(found) if found.state is not None else {"log": log, "state": "not known now"}
    if found.outage.obstacles:
        facts |= {"away": found.outage.cause, "would_help": found.outage.next_step}
    if output != "table":
        cursors = {each.name: each.offset for each in found.cursors if each.is_protected}
        facts |= {"protected": cursors, "segments": segments, "events": events}
        show_facts(facts, output)
        return
    show_facts(facts, output)
    if found.state is None:
        return
    click.echo(f"\nsegments{_of(len(segments), _SEGMENTS)}")
    show_rows(_SEGMENT_COLUMNS, map(_ranged, segments[-_SEGMENTS:]), output)
    click.echo("\nlately")
    show_rows(("time", "kind", "server", "reason", "details"), events, output)


class Look:
    """Requests each part separately, so that an unavailable part does not hide the others. If something is
    unavailable, it requests the missing parts from up to `_SERVERS_MAX` servers, within a second. If everything
    is available, it waits for slow parts. No request opens a log.
    """

    def __init__(self, client: Client, log: LogName, timeout_s: float) -> None:
        self._client, self._log, self._timeout_s = client, log, timeout_s
        self._parts: tuple[Any, ...] = (
            messages.GetLog(log),
            messages.Lookup((log,)),
            messages.ListSegments(log),
            messages.ListCursors(log),
            messages.GetJournal(log, _EVENTS),
        )

    async def look(self) -> _Found:
        outage, servers, (tail, parts) = await asyncio.gather(
            self._ask(messages.GetOutage(), _OUTAGE_S),
            self._ask(messages.ListServers(), _PART_S),
            self._parts_at(None),
        )
        # If the server is busy, ask again: the other responses cannot be judged without this one.
        if outage is None:
            outage = await self._ask(messages.GetOutage(), _AGAIN_S) or messages.Outage()
        if None in parts and outage.obstacles:
            # While the metadata store is unavailable, only the log's owner knows the log.
            addresses = [each.address for each in servers.servers] if servers is not None else []
            for other_tail, others in await asyncio.gather(
                *map(self._parts_at, addresses[:_SERVERS_MAX])
            ):
                tail = tail or other_tail
                pairs = zip(parts, others, strict=True)
                parts = [part if part is not None else other for part, other in pairs]
        elif None in parts:  # All servers are available, but some responses are slow.
            parts = [
                part if part is not None else await self._client.ask(request)
                for request, part in zip(self._parts, parts, strict=True)
            ]
            tail = tail or await self._tail_by(parts[1], _PART_S)
        state, owners, segments, cursors, journal = parts
        return _Found(
            state,
            tail,
            _owner_in(owners),
            segments.segments if segments is not None else (),
            cursors.cursors if cursors is not None else (),
            journal.events if journal is not None else (),
            outage,
        )

    async def _parts_at(self, server: str | None) -> tuple[messages.LogTail | None, list[Any]]:
        """Returns the tail, if the log has an owner, and the other parts; each is None if it did not arrive
        in time.
        """
        due_s = time.monotonic() + _PART_S
        asked = [
            asyncio.ensure_future(self._ask(request, _PART_S, server)) for request in self._parts
        ]

        async def tail() -> messages.LogTail | None:
            return await self._tail_by(await asked[1], due_s - time.monotonic())

        async def state() -> messages.LogState | None:
            return await self._state_by(await asked[1], due_s - time.monotonic())

        # A single gather also collects the errors of the other requests if one raises.
        *parts, found, state_there = await asyncio.gather(*asked, tail(), state())
        return found, [state_there or parts[0], *parts[1:]]

    async def _tail_by(
        self, owners: messages.LogOwners | None, timeout_s: float
    ) -> messages.LogTail | None:
        owner = _owner_in(owners)
        if owner is None or not owner.is_owner:
            return None
        request = messages.GetTail(self._log, messages.Consistency.CACHED)
        tail: messages.LogTail | None = await self._ask(request, max(0.0, timeout_s), owner.address)
        return tail

    async def _state_by(
        self, owners: messages.LogOwners | None, timeout_s: float
    ) -> messages.LogState | None:
        """Returns the state from the server that owns or should own the log: only this server knows the log's
        problem.
        """
        owner = _owner_in(owners)
        if owner is None or not owner.address:
            return None
        request = messages.GetLog(self._log)
        found: messages.LogState | None = await self._ask(
            request, max(0.0, timeout_s), owner.address
        )
        return found

    async def _ask(self, request: Any, timeout_s: float, server: str | None = None) -> Any:
        """Returns the response, or None if the server was unavailable or too slow. Raises errors that the server
        returned, such as `NoSuchLog`.
        """
        timeout_s = min(timeout_s, self._timeout_s)
        try:
            return await self._client.ask(request, timeout_s=timeout_s, server=server)
        except ServerUnreachable:
            if server is None:
                raise
        except (Unavailable, OutcomeUnknown):
            pass
        return None


def _owner_in(owners: messages.LogOwners | None) -> messages.LogOwner | None:
    return owners.owners[0] if owners is not None and owners.owners else None


def _of(count: int, shown: int) -> str:
    return f", the last {shown} of {count}" if count > shown else ""


def _ranged(segment: dict[str, Any]) -> dict[str, Any]:
    return segment | {"from": segment["base_offset"], "to": segment["next_offset"]}


def _facts(found: _Found) -> dict[str, Any]:
    state, tail = found.state, found.tail
    assert state is not None
    config, segments = state.config, found.segments
    facts: dict[str, Any] = {"log": str(state.log)}
    if state.is_sealed:
        facts["state"] = "sealed: nothing can be appended any more"
    else:
        facts["state"] = "open"
    facts["owner"] = _owner(found)
    facts["owner_epoch"] = tail.owner_epoch if tail is not None else state.owner_epoch
    if config.writer_mode is WriterMode.EXCLUSIVE or state.writer_epoch:
        holder = state.writer_holder or "nobody"
        facts["writer"] = f"{holder}, in writer epoch {state.writer_epoch}"
    if lost := [each for each in found.segments if each.state is messages.SegmentState.LOST]:
        facts["lost_segments"] = [
            f"{each.segment_id}, with offsets {each.base_offset} to {each.next_offset}: ledger "
            f"{each.ledger_id} was deleted"
            for each in lost
        ]
    facts["head"], facts["tail"] = state.head, state.tail
    is_owned = found.owner is not None and found.owner.is_owner
    if not is_owned and segments and segments[-1].state is messages.SegmentState.OPEN:
        facts["tail"] = f"{state.tail} or more: only an owner knows the end"
    last_us = segments[-1].last_timestamp_us if segments else 0
    if tail is not None:
        facts["head"], facts["tail"], last_us = tail.head, tail.tail, tail.timestamp_us
    facts["last_record"] = time_of(last_us)
    records = (tail.tail - tail.head) if tail is not None else state.records
    facts["kept"] = f"{records} records; {state.bytes} bytes"
    quorum = config.quorum
    facts["copies"] = f"{quorum.write} on {quorum.ensemble} bookies, {quorum.ack} of them acked"
    written = [each for each in found.segments if each.state is messages.SegmentState.OPEN]
    if state.problem:
        facts["problem"] = state.problem
        facts["next_step"] = (
            state.next_step or "`rollbook cluster health` names what is unavailable"
        )
    if written and state.vacant_seats:
        facts["degraded"] = (
            f"segment {written[-1].segment_id} is not written to {'; '.join(state.vacant_seats)}. A new segment "
            f"begins as soon as {quorum.write} bookies accept new ledgers: restart the bookies, or add one"
        )
    elif written and (bookies := written[-1].degraded_to):
        facts["degraded"] = (
            f"segment {written[-1].segment_id} was created with {bookies} of {quorum.ensemble} bookies; a new one "
            "begins as soon as enough bookies accept new ledgers"
        )
    facts["next_roll"] = _next_roll(found)
    facts["retention"] = _retention(found)
    facts["held_back_by"] = [
        f"{each.name} at {each.offset}" for each in found.cursors if each.is_protected
    ]
    return facts


def _owner(found: _Found) -> str:
    state, owner = found.state, found.owner
    if owner is None:
        return "not known now"
    if owner.is_owner:
        named = state.owner_id if state is not None else ""
        return f"{named or 'a server'} at {owner.address}"
    return f"none; {owner.address} would be the next" if owner.address else "none"


def _next_roll(found: _Found) -> str:
    assert found.state is not None
    config = found.state.config
    if found.state.is_sealed:
        return "never"
    sizes = f"{config.roll_bytes} bytes or {config.roll_entries} entries"
    due_us = found.state.roll_due_us
    written = [each for each in found.segments if each.state is messages.SegmentState.OPEN]
    if not due_us and written and written[-1].began_us:
        due_us = written[-1].began_us + config.roll_age_s * 1_000_000
    if not due_us:
        return f"at {sizes}, or after {config.roll_age_s} s"
    return f"at {sizes}, or at {time_of(due_us)}, in {max(0.0, due_us / 1e6 - time.time()):.0f} s"


def _retention(found: _Found) -> str:
    assert found.state is not None
    config = found.state.config
    limits = []
    if config.retention_age_s is not None:
        limits.append(f"records older than {config.retention_age_s} s")
    if config.retention_bytes is not None:
        limits.append(f"records beyond {config.retention_bytes} bytes")
    return (
        f"{' and '.join(limits)} are deleted, by whole segments" if limits else "everything is kept"
    )
