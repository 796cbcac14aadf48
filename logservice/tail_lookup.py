"""Finds out where a log ends, from its owner, its list or its bookies, in the order of `core/log_end_source.py`."""

import asyncio
import math
from contextlib import suppress
from dataclasses import replace
from typing import Final

from rollbook.logservice import messages
from rollbook.logservice.core.ledger_list import LedgerList
from rollbook.logservice.core.log_end_source import (
    EndSource,
    end_of_closed_range,
    is_dated,
    listed_end,
    may_have_grown,
    require_within,
    source_of_end,
    unowned_end,
)
from rollbook.logservice.ids import LogName, Offset
from rollbook.logservice.log_ownership import LogServer
from rollbook.logservice.messages import LogTail
from rollbook.logservice.offset_lookup import NOT_OWNED, find_last_time, find_tail
from rollbook.logservice.owner import Owner
from rollbook.logservice.peer_tails import OwnerTails
from rollbook.logservice.position_syntax import AtOffset
from rollbook.proto.errors import LogDeleted, NoSuchLog, NotOwner, OwnerChanging, RollbookError

# How long to wait until the known tail reaches a requested offset: this server may learn later than the
# client that an append was acknowledged.
_ARRIVAL_S: Final = 1.0
# How long a look-up waits until the log is opened. After that, the opening continues in the background.
_REVIVE_S: Final = 5.0
_ASK_S: Final = 1.0  # The time limit for the owner's response.
# The time limit for finding the time of the last record. After that, the response omits it.
_DETAIL_S: Final = 1.0


class TailLookup:
    def __init__(self, server: LogServer, owner_tails: OwnerTails) -> None:
        self._server, self._owner_tails = server, owner_tails
        self._ledgers = server.ledgers
        self._loop = asyncio.get_running_loop()

    def tail_at(self, owner: Owner) -> LogTail:
        ledger_id, last_entry = owner.last_confirmed or (None, None)
        return LogTail(
            head=owner.head,
            tail=owner.tail,
            is_sealed=owner.is_sealed,
            timestamp_us=owner.record_us,
            owner=self._server.address,
            owner_epoch=owner.owner_epoch,
            ledger_id=ledger_id,
            last_entry=last_entry,
            uid=owner.uid,
        )

    async def dated(self, log: LogName, tail: LogTail, due: float = math.inf) -> LogTail:
        """Return the tail with the time of the last record. If the tail lacks that time, search the log for
        it: a tail from a list has no time, and an owner does not know the time of a record that is older than
        the snapshot with which it began. If the search fails, or takes longer than `_DETAIL_S` or half of the
        time until `due`, return the tail unchanged.
        """
        if is_dated(tail):
            return tail
        with suppress(RollbookError, TimeoutError):
            owner = self._server.find(log)
            confirmed = owner.confirmed if owner is not None else NOT_OWNED
            async with asyncio.timeout(min(_DETAIL_S, (due - self._loop.time()) / 2)):
                found = await find_last_time(await self.list_of(log), self._ledgers, confirmed)
            if owner is not None:
                owner.on_dated(found)
            return replace(tail, timestamp_us=found)
        return tail

    async def tail_of(self, log: LogName) -> LogTail:
        """The tail that the owner or a list of closed segments reports, or else the tail that bookies report."""
        return (await self.look_for_tail(log))[0]

    async def look_for_tail(self, log: LogName) -> tuple[LogTail, RollbookError | None]:
        """Return the tail, and None if it is certain. Otherwise return the tail that bookies report, which may
        lack the last acknowledged block, and the error that prevented a certain answer.
        """
        try:
            return await self.certain_tail(log), None
        except (NoSuchLog, LogDeleted):
            raise
        except RollbookError as error:
            doubt = error
        listed, info, is_owner = await self._server.whom_to_ask(log)
        tail, timestamp_us = await find_tail(listed, self._ledgers)
        address = info.address if info is not None and is_owner else ""
        return replace(listed_end(listed, tail, address), timestamp_us=timestamp_us), doubt

    async def certain_tail(self, log: LogName) -> LogTail:
        """A tail that covers every append acknowledged before this call, from the owner or the list.

        Raises `NotOwner` if this server cannot ask the owner, `OwnerChanging` if the log has no owner and
        was not opened in time, `NoSuchLog`, `LogDeleted`, and errors of the metadata store.
        """
        owner = await self._server.find_proven(log)
        if owner is not None:
            return self.tail_at(owner)
        listed, info, is_owner = await self._server.whom_to_ask(log)
        address = info.address if info is not None and is_owner else ""
        source = source_of_end(listed, address, self._server.address)
        if source is EndSource.LIST:
            assert listed.tail is not None
            return listed_end(listed, listed.tail, address)
        due = self._loop.time() + _ASK_S
        if source is EndSource.OPENING:
            due = self._loop.time() + _REVIVE_S
            address = await self.revive(log)
            if (owner := self._server.find(log)) is not None:
                return self.tail_at(owner)
            if not address:
                raise OwnerChanging("the log has no owner at present", log=str(log))
        try:
            return await self._owner_tails.ask(log, address, due)
        except (NotOwner, NoSuchLog, LogDeleted):
            raise
        except RollbookError as error:
            raise NotOwner(
                f"this server cannot ask the log's owner: {error.code.reason}",
                owner=address,
                owner_epoch=listed.owner_epoch,
            ) from error

    async def closed_tail(self, log: LogName) -> LogTail | None:
        """The tail of a log that has no living owner and only closed segments. The list has that tail, so the
        log is not opened (RL7). Returns None if only an owner can report the tail. Raises `NoSuchLog`,
        `LogDeleted`.
        """
        if self._server.find(log) is not None:
            return None
        listed, _, is_owner = await self._server.whom_to_ask(log)
        if is_owner or listed.tail is None:
            return None
        return listed_end(listed, listed.tail, "")

    async def ask_tail(self, log: LogName) -> LogTail | None:
        """Return `certain_tail`, or None if that fails or takes longer than `_ASK_S`."""
        with suppress(TimeoutError, RollbookError):
            async with asyncio.timeout(_ASK_S):
                return await self.certain_tail(log)
        return None

    async def revive(self, log: LogName) -> str:
        """Make sure that the log has an owner. An owner that died may have confirmed appends that no bookie reports
        as confirmed, and only a new owner can find these. Opens the log if this server should own it. Otherwise
        returns the address of the server to ask, or an empty string if that is not known.
        """
        try:
            await self._server.owner_of(log, self._loop.time() + _REVIVE_S)
        except NotOwner as error:
            return str(error.ids.get("owner", ""))
        except RollbookError:
            pass
        return ""

    async def settled_tail(self, request: messages.Read | messages.ReadStream) -> LogTail | None:
        """If this server does not own the log, and the requested range is within closed segments, return the
        end of these segments; otherwise None. The owner is not asked, since it knows no more about this range.
        """
        if not isinstance(request, messages.ReadStream) or not isinstance(request.start, AtOffset):
            return None
        if request.until_offset is None or self._server.find(request.log) is not None:
            return None
        listed, info, _ = await self._server.whom_to_ask(request.log)
        owner = info.address if info is not None else ""
        return end_of_closed_range(listed, request.start.offset, request.until_offset, owner)

    async def tail_from(self, log: LogName, offset: Offset, tail: LogTail, due: float) -> LogTail:
        """Look up the tail again if it is below the offset. Raises `BeyondTail` if the offset is also beyond
        the tail of the owner or of a list of closed segments, and `NotOwner`, `OwnerChanging`, `NoSuchLog` or
        `LogDeleted` if neither reports a tail.
        """
        if offset > tail.tail:
            tail = await self._arrival(log, offset, due)
        if may_have_grown(offset, tail):
            tail = await self._last_word(log, due)
        require_within(offset, tail)
        return tail

    async def _last_word(self, log: LogName, due: float) -> LogTail:
        """The list's tail if the log has no owner and all its segments are closed; the log is then not opened.
        Otherwise the owner's tail.
        """
        if (end := unowned_end(await self.list_of(log))) is not None:
            return end
        return self.tail_at(await self._server.owner_of(log, due))

    async def _arrival(self, log: LogName, offset: Offset, due: float) -> LogTail:
        """Wait until the tail reaches the offset, at most `_ARRIVAL_S`: the servers and bookies that this server
        asks may not know yet that an append was acknowledged.
        """
        give_up_at = min(self._loop.time() + _ARRIVAL_S, due)
        while True:
            tail = await self.tail_of(log)
            if tail.tail >= offset or self._loop.time() >= give_up_at:
                return tail
            await asyncio.sleep(_ARRIVAL_S / 20)

    async def list_of(self, log: LogName) -> LedgerList:
        owner = self._server.find(log)
        return owner.list if owner is not None else (await self._server.whom_to_ask(log))[0]
